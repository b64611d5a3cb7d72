//! A line between workers and a server: a relay that cuts each connection after some bytes, in the middle of whatever is under
//! way; or that lets only so much through, until it is told to let more through; or that cuts one connection at one byte.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// The relay.
pub(crate) struct Line {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    /// Whether connections still break.
    breaking: AtomicBool,
    breaks: AtomicU64,
    connections: AtomicU64,
    ended: AtomicBool,
    valve: Mutex<Valve>,
    turned: Condvar,
    /// Both ends of every connection.
    ends: Mutex<Vec<TcpStream>>,
}

struct Valve {
    /// Bytes of each connection that pass towards the server.
    passes: u64,
    /// The connections that have waited for it to be opened.
    stuck: BTreeSet<u64>,
    /// Whether what the server sends is left where it is: its sockets fill.
    deaf: bool,
    /// One connection, by number, is cut when so many more bytes have passed, towards the server or from there.
    cut: Option<(u64, Direction, u64)>,
}

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    ToServer,
    ToWorker,
}

impl Line {
    /// A line that breaks again and again.
    pub(crate) fn to(target: SocketAddr) -> Self {
        Self::new(target, true)
    }

    /// A line that holds.
    pub(crate) fn holding(target: SocketAddr) -> Self {
        Self::new(target, false)
    }

    fn new(target: SocketAddr, breaking: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            breaking: AtomicBool::new(breaking),
            breaks: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            valve: Mutex::new(Valve { passes: u64::MAX, stuck: BTreeSet::new(), deaf: false, cut: None }),
            turned: Condvar::new(),
            ends: Mutex::default(),
        });
        let relay = Arc::clone(&shared);
        std::thread::spawn(move || {
            for (from, number) in listener.incoming().zip(0u64..) {
                if relay.ended.load(Ordering::Relaxed) {
                    return;
                }
                relay.connections.fetch_add(1, Ordering::Relaxed);
                let (Ok(from), Ok(to)) = (from, TcpStream::connect(target)) else { continue };
                // Long enough to get through the handshake, and longer each time, so that every frame gets through at last.
                let bytes = 3_000 + number * 2_777 % 60_000 + number * 1_500;
                let (back, forth) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                relay.ends.lock().unwrap().extend([from.try_clone().unwrap(), to.try_clone().unwrap()]);
                for (source, sink, way) in
                    [(from, forth, Direction::ToServer), (to, back, Direction::ToWorker)]
                {
                    let pump = Pump { source, sink, number, way, left: bytes, passed: 0 };
                    let relay = Arc::clone(&relay);
                    std::thread::spawn(move || pump.run(&relay));
                }
            }
        });
        Self { address, shared }
    }

    /// How often it broke.
    pub(crate) fn breaks(&self) -> u64 {
        self.shared.breaks.load(Ordering::Relaxed)
    }

    /// How many connections were made over it.
    pub(crate) fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// From now on it holds.
    pub(crate) fn mend(&self) {
        self.shared.breaking.store(false, Ordering::Relaxed);
    }

    /// No more than so many bytes of each connection reach the server, counted from its beginning.
    pub(crate) fn let_pass(&self, bytes: u64) {
        self.shared.valve.lock().unwrap().passes = bytes;
        self.shared.turned.notify_all();
    }

    /// Whether what the server sends is left where it is.
    pub(crate) fn deafen(&self, deaf: bool) {
        self.shared.valve.lock().unwrap().deaf = deaf;
        self.shared.turned.notify_all();
    }

    /// Waits until something is held back.
    pub(crate) fn wait_until_stuck(&self) {
        let valve = self.shared.valve.lock().unwrap();
        drop(self.shared.turned.wait_while(valve, |valve| valve.stuck.is_empty()).unwrap());
    }

    /// The same on one connection (0 is the first that was made).
    pub(crate) fn wait_until_stuck_on(&self, connection: u64) {
        let valve = self.shared.valve.lock().unwrap();
        drop(self.shared.turned.wait_while(valve, |valve| !valve.stuck.contains(&connection)).unwrap());
    }

    /// Cuts every connection that there is, and with it what was held back; those that are made afterwards hold.
    pub(crate) fn sever(&self) {
        for end in self.shared.ends.lock().unwrap().drain(..) {
            let _ = end.shutdown(Shutdown::Both);
        }
        self.let_pass(u64::MAX);
        self.deafen(false);
    }

    /// Cuts a connection (0 is the first that was made) when so many more bytes have gone this way.
    pub(crate) fn cut(&self, connection: u64, way: Direction, after: u64) {
        self.shared.valve.lock().unwrap().cut = Some((connection, way, after));
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        self.let_pass(u64::MAX);
        self.deafen(false);
        let _ = TcpStream::connect(self.address);
    }
}

/// One way of one connection.
struct Pump {
    source: TcpStream,
    sink: TcpStream,
    number: u64,
    way: Direction,
    /// Bytes until it breaks, if the line breaks.
    left: u64,
    passed: u64,
}

impl Pump {
    fn run(mut self, relay: &Shared) {
        let mut buffer = [0; 4096];
        while let Ok(bytes) = self.source.read(&mut buffer)
            && bytes > 0
        {
            let breaks = relay.breaking.load(Ordering::Relaxed) && bytes as u64 >= self.left;
            let whole = if breaks { self.left as usize } else { bytes };
            self.left = self.left.saturating_sub(whole as u64);
            let pass = self.until_cut(whole, relay);
            if !self.pass_on(&buffer[..pass], relay) {
                break;
            }
            if breaks || pass < whole {
                relay.breaks.fetch_add(1, Ordering::Relaxed);
                break;
            }
        }
        let _ = self.source.shutdown(Shutdown::Both);
        let _ = self.sink.shutdown(Shutdown::Both);
    }

    /// How many of so many bytes pass before the connection is cut.
    fn until_cut(&self, bytes: usize, relay: &Shared) -> usize {
        let mut valve = relay.valve.lock().unwrap();
        let Some((number, way, left)) = valve.cut else { return bytes };
        if number != self.number || way != self.way {
            return bytes;
        }
        valve.cut = (left >= bytes as u64).then(|| (number, way, left - bytes as u64));
        bytes.min(left as usize)
    }

    fn pass_on(&mut self, mut bytes: &[u8], relay: &Shared) -> bool {
        while !bytes.is_empty() {
            let room = match self.way {
                Direction::ToWorker => {
                    let valve = relay.valve.lock().unwrap();
                    drop(relay.turned.wait_while(valve, |valve| valve.deaf).unwrap());
                    bytes.len()
                }
                Direction::ToServer => self.wait_for_room(relay).min(bytes.len() as u64) as usize,
            };
            let (now, later) = bytes.split_at(room);
            if self.sink.write_all(now).is_err() {
                return false;
            }
            self.passed += room as u64;
            bytes = later;
        }
        true
    }

    fn wait_for_room(&self, relay: &Shared) -> u64 {
        let mut valve = relay.valve.lock().unwrap();
        while valve.passes <= self.passed {
            valve.stuck.insert(self.number);
            relay.turned.notify_all();
            valve = relay.turned.wait(valve).unwrap();
        }
        valve.passes - self.passed
    }
}
