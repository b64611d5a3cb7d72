//! A line on which something happens as a schedule says, at a byte of a connection in one direction: it ends, is reset, falls
//! silent, or changes a bit. It can also be taken away altogether for a while.

use rustix::net::connect_unspec;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What happens to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// It ends, after what was under way.
    End,
    /// It is reset, which takes what is under way with it.
    Reset,
    /// Nothing comes any more in this direction, and neither end hears of it.
    Silence,
    /// A bit changes.
    Flip,
}

/// What happens to one connection, and where.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    /// Whether bytes to the server are counted, or those from it.
    pub(crate) to_server: bool,
    /// After so many of them.
    pub(crate) after: u64,
    pub(crate) how: How,
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

/// What happens to the first connections, at most to `most` of them, from a seed: in the handshake, in the messages behind
/// it, in the data.
pub(crate) fn schedule(seed: u64, hows: &[How], most: u64) -> Vec<Cut> {
    let mut chance = Chance(seed);
    let count = 1 + chance.below(most);
    let cut = |_| {
        let bytes = [400, 2_500, 200_000][chance.below(3) as usize];
        let (to_server, after) = (chance.below(2) == 0, chance.below(bytes));
        Cut { to_server, after, how: hows[chance.below(hows.len() as u64) as usize] }
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
    /// Whether there is no line at all for now.
    away: AtomicBool,
    ways: Mutex<Vec<Arc<TcpStream>>>,
}

impl Cutter {
    pub(crate) fn to(target: SocketAddr, schedule: Vec<Cut>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let cuts = Mutex::new(schedule.into());
        let shared = Arc::new(Shared {
            cuts,
            made: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            away: AtomicBool::new(false),
            ways: Mutex::default(),
        });
        let relay = Arc::clone(&shared);
        std::thread::spawn(move || {
            for from in listener.incoming() {
                if relay.ended.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(from), Ok(to)) = (from, TcpStream::connect(target)) else { continue };
                if relay.away.load(Ordering::Relaxed) {
                    continue;
                }
                let cut = relay.cuts.lock().unwrap().pop_front();
                let (from, to) = (Arc::new(from), Arc::new(to));
                relay.ways.lock().unwrap().extend([Arc::clone(&from), Arc::clone(&to)]);
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

    /// How often something happened.
    pub(crate) fn made(&self) -> u64 {
        self.shared.made.load(Ordering::Relaxed)
    }

    /// Takes the line away, with all that is on it.
    pub(crate) fn take_away(&self) {
        self.shared.away.store(true, Ordering::Relaxed);
        for way in self.shared.ways.lock().unwrap().drain(..) {
            let _ = connect_unspec(&*way);
        }
    }

    /// Gives it back.
    pub(crate) fn give_back(&self) {
        self.shared.away.store(false, Ordering::Relaxed);
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

fn pump(mut source: &TcpStream, mut sink: &TcpStream, mut cut: Option<Cut>, relay: &Shared) {
    let mut left = cut.map_or(u64::MAX, |cut| cut.after);
    let mut buffer = [0; 4096];
    while let Ok(bytes) = source.read(&mut buffer)
        && bytes > 0
    {
        let mut pass = left.min(bytes as u64);
        let here = left < bytes as u64;
        if here && cut.is_some_and(|cut| cut.how == How::Flip) {
            buffer[left as usize] ^= 1 << (left % 8);
            pass = bytes as u64;
        }
        let whole = sink.write_all(&buffer[..pass as usize]).is_ok();
        left = left.saturating_sub(bytes as u64);
        if let Some(Cut { how, .. }) = cut.filter(|_| here) {
            relay.made.fetch_add(1, Ordering::Relaxed);
            match how {
                How::End => break,
                How::Reset => {
                    // The kernel's own way to throw a connection away at once.
                    let _ = (connect_unspec(source), connect_unspec(sink));
                    break;
                }
                How::Silence => {
                    // What comes is taken and goes nowhere, until either end has enough.
                    while source.read(&mut buffer).is_ok_and(|bytes| bytes > 0) {}
                    break;
                }
                How::Flip => (cut, left) = (None, u64::MAX),
            }
        }
        if !whole {
            break;
        }
    }
    let _ = (source.shutdown(Shutdown::Both), sink.shutdown(Shutdown::Both));
}
