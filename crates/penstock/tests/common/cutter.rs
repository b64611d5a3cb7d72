//! A line that is cut as a schedule says: at a byte of a connection, in one direction, in order or by a reset.

use rustix::net::connect_unspec;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// How one connection ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    /// Whether bytes to the server are counted, or those from it.
    pub(crate) to_server: bool,
    /// After so many of them.
    pub(crate) after: u64,
    /// By a reset, which takes what is under way with it.
    pub(crate) reset: bool,
}

/// A cheap stream of numbers.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % most
    }
}

/// Cuts of the first connections, from a seed: in the handshake, in the messages behind it, in the data.
pub(crate) fn schedule(seed: u64) -> Vec<Cut> {
    let mut chance = Chance(seed);
    let count = 1 + chance.below(12);
    let cut = |_| {
        let most = [400, 2_500, 200_000][chance.below(3) as usize];
        Cut { to_server: chance.below(2) == 0, after: chance.below(most), reset: chance.below(2) == 0 }
    };
    (0..count).map(cut).collect()
}

/// The relay.
pub(crate) struct Cutter {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    cuts: Mutex<VecDeque<Cut>>,
    made: AtomicU64,
    ended: AtomicBool,
}

impl Cutter {
    pub(crate) fn to(target: SocketAddr, schedule: Vec<Cut>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let cuts = Mutex::new(schedule.into());
        let shared = Arc::new(Shared { cuts, made: AtomicU64::new(0), ended: AtomicBool::new(false) });
        let relay = Arc::clone(&shared);
        std::thread::spawn(move || {
            for from in listener.incoming() {
                if relay.ended.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(from), Ok(to)) = (from, TcpStream::connect(target)) else { continue };
                let cut = relay.cuts.lock().unwrap().pop_front();
                let (from, to) = (Arc::new(from), Arc::new(to));
                for to_server in [true, false] {
                    let (from, to) = (Arc::clone(&from), Arc::clone(&to));
                    let (source, sink) = if to_server { (from, to) } else { (to, from) };
                    let cut = cut.filter(|cut| cut.to_server == to_server);
                    let relay = Arc::clone(&relay);
                    std::thread::spawn(move || pump(&source, &sink, cut, &relay));
                }
            }
        });
        Self { address, shared }
    }

    /// How often it cut.
    pub(crate) fn made(&self) -> u64 {
        self.shared.made.load(Ordering::Relaxed)
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

fn pump(mut source: &TcpStream, mut sink: &TcpStream, cut: Option<Cut>, relay: &Shared) {
    let mut left = cut.map_or(u64::MAX, |cut| cut.after);
    let mut buffer = [0; 4096];
    while let Ok(bytes) = source.read(&mut buffer)
        && bytes > 0
    {
        let pass = left.min(bytes as u64);
        let whole = sink.write_all(&buffer[..pass as usize]).is_ok();
        left -= pass;
        if cut.is_some() && left == 0 {
            relay.made.fetch_add(1, Ordering::Relaxed);
            if cut.is_some_and(|cut| cut.reset) {
                // The kernel's own way to throw a connection away at once.
                let _ = (connect_unspec(source), connect_unspec(sink));
            }
            break;
        }
        if !whole {
            break;
        }
    }
    let _ = (source.shutdown(Shutdown::Both), sink.shutdown(Shutdown::Both));
}
