//! A server without a descriptor to spare lets strangers go. A test file of its own, because the limit on descriptors, which
//! belongs to the process, is lowered for good.

mod common;

use common::{config, socket_path};
use penstock::server::Server;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::fs::File;
use std::io::Read as _;
use std::net::TcpStream;
use std::time::Duration;

// A stranger kept its descriptor for ten seconds, while a worker stood in the queue.
#[test]
fn strangers_with_the_last_descriptors_go_for_whoever_comes() {
    let config = config(Some(socket_path()), &["127.0.0.1:0".to_owned()], "1");
    let server = Server::start(config).unwrap();
    let address = server.addresses()[0];
    setrlimit(Resource::Nofile, Rlimit { current: Some(256), maximum: Some(256) }).unwrap();
    let mut taken = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    // One of them for the first, another for the server's end of it, and the last for the second.
    taken.truncate(taken.len() - 3);
    let mut first = TcpStream::connect(address).unwrap();
    // Until it has been let in there is room for two.
    let room_for_two = || matches!((File::open("/dev/null"), File::open("/dev/null")), (Ok(_), Ok(_)));
    while room_for_two() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let _second = TcpStream::connect(address).unwrap();
    first.set_read_timeout(Some(Duration::from_secs(8))).unwrap();
    assert_eq!(first.read(&mut [0]).ok(), Some(0));
}
