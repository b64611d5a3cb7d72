//! A gate in a process without a descriptor to spare. A test file of its own, because descriptors belong to the process.

use penstock_fabric::net::gate::{Gate, Strangers, listen};
use penstock_proto::strangers::{Places, Stranger};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, TcpStream};

#[derive(Default)]
struct Kept {
    sockets: BTreeMap<u64, TcpStream>,
    came: u64,
    stuck: u64,
}

impl Strangers for Kept {
    type Key = u64;

    fn all(&self) -> impl Iterator<Item = Stranger<u64>> + Clone {
        let host = Ipv4Addr::LOCALHOST.into();
        self.sockets.keys().map(move |&key| Stranger { key, host, silent: false })
    }

    fn insert(&mut self, socket: TcpStream, _: IpAddr) {
        self.sockets.insert(self.came, socket);
        self.came += 1;
    }

    fn remove(&mut self, key: u64) {
        self.sockets.remove(&key).expect("it is there");
    }

    fn flows(&mut self) {}

    fn is_stuck(&mut self, _: &io::Error) -> bool {
        self.stuck += 1;
        false
    }
}

// The next accept found no descriptor although nobody was left in the queue, and the caller that had the last one was dropped for
// nobody: a worker whose line to a full server broke never came back.
#[test]
fn who_takes_the_last_descriptor_stays_until_another_stands_there() {
    let listener = listen((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    let address = listener.local_addr().expect("it has one");
    let mut gate = Gate::new(vec![listener], Places { a_host: 8, all: 8, few: 8 });
    let mut kept = Kept::default();
    let callers = [(); 2].map(|()| TcpStream::connect(address).expect("it listens"));
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(64);
    setrlimit(Resource::Nofile, limit).expect("it may be lowered");
    let mut taken = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    taken.pop().expect("there was one");
    gate.accept(0, &mut kept);
    assert_eq!((kept.sockets.keys().copied().collect(), kept.stuck), (vec![0], 0), "it may speak");
    gate.accept(0, &mut kept);
    assert_eq!((kept.sockets.keys().copied().collect(), kept.stuck), (vec![1], 1), "it goes for the next");
    drop((taken, callers));
}
