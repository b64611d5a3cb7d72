//! A line between workers and a server that breaks: a relay that cuts each connection after some bytes, in the middle of
//! whatever is under way.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The relay.
pub(crate) struct Line {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    /// Whether connections still break.
    breaking: AtomicBool,
    breaks: AtomicU64,
    ended: AtomicBool,
}

impl Line {
    pub(crate) fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            breaking: AtomicBool::new(true),
            breaks: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        });
        let relay = Arc::clone(&shared);
        std::thread::spawn(move || {
            for (from, number) in listener.incoming().zip(0u64..) {
                if relay.ended.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(from), Ok(to)) = (from, TcpStream::connect(target)) else { continue };
                // Long enough to get through the handshake, and longer each time, so that every frame gets through at last.
                let bytes = 3_000 + number * 2_777 % 60_000 + number * 1_500;
                for (mut source, mut sink) in
                    [(from.try_clone().unwrap(), to.try_clone().unwrap()), (to, from)]
                {
                    let relay = Arc::clone(&relay);
                    std::thread::spawn(move || pump(&mut source, &mut sink, bytes, &relay));
                }
            }
        });
        Self { address, shared }
    }

    /// How often it broke.
    pub(crate) fn breaks(&self) -> u64 {
        self.shared.breaks.load(Ordering::Relaxed)
    }

    /// From now on it holds.
    pub(crate) fn mend(&self) {
        self.shared.breaking.store(false, Ordering::Relaxed);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

fn pump(from: &mut TcpStream, to: &mut TcpStream, mut left: u64, relay: &Shared) {
    let mut buffer = [0; 4096];
    while let Ok(bytes) = from.read(&mut buffer)
        && bytes > 0
    {
        let cut = relay.breaking.load(Ordering::Relaxed) && bytes as u64 >= left;
        let pass = if cut { left as usize } else { bytes };
        left = left.saturating_sub(pass as u64);
        if to.write_all(&buffer[..pass]).is_err() {
            break;
        }
        if cut {
            relay.breaks.fetch_add(1, Ordering::Relaxed);
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
