//! What this host's link carries, as a worker or a server finds out while it sends: the connections that are looked at for it, and
//! when. What is made of that is [`penstock_proto::uplink`].
//!
//! Any thread that moves bytes looks, if it is time to; it looks at all connections at once, also those of other threads, as they
//! share the link. A look costs a system call for each, so many connections are looked at more seldom.

use penstock_fabric::net::stream::{Stream, Watched};
use penstock_proto::uplink::{Gauge, Measured, Reports, To};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Least time from one look to the next.
const APART: Duration = Duration::from_millis(10);
/// At least so many times as long as the look took.
const SELDOM: u32 = 50;

/// One connection.
#[derive(Debug)]
struct Connection {
    number: u64,
    to: To,
    watched: Watched,
}

#[derive(Debug, Default)]
struct Inner {
    connections: Vec<Connection>,
    count: u64,
    gauge: Gauge,
}

/// Measures one host's link.
#[derive(Debug)]
pub(crate) struct Uplink {
    since: Instant,
    /// When it is next time to look, in nanoseconds since.
    next: AtomicU64,
    /// Whether anybody wants to know.
    wanted: AtomicBool,
    inner: Mutex<Inner>,
}

impl Uplink {
    /// One that looks at no connection so far.
    pub(crate) fn new() -> Self {
        Self {
            since: Instant::now(),
            next: AtomicU64::new(0),
            wanted: AtomicBool::new(true),
            inner: Mutex::default(),
        }
    }

    /// The same that looks at none before somebody [wants](Self::want) to know.
    pub(crate) fn at_rest() -> Self {
        Self { wanted: AtomicBool::new(false), ..Self::new() }
    }

    /// What it measures is used from now on.
    pub(crate) fn want(&self) {
        self.wanted.store(true, Ordering::Relaxed);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at this connection too, as long as it stands; at none that stays on this host.
    pub(crate) fn watch(&self, stream: &Stream, to: To) {
        let Some(watched) = stream.watched() else { return };
        let mut inner = self.inner();
        // Those that are over go at the next look, and here, where nobody looks.
        if inner.connections.len() == inner.connections.capacity() {
            inner.connections.retain(|connection| !connection.watched.is_over());
        }
        let number = inner.count;
        inner.count += 1;
        inner.connections.push(Connection { number, to, watched });
    }

    /// Looks at all of them, if it is time to and no other thread does.
    pub(crate) fn look(&self, now: Instant) {
        let since = now.saturating_duration_since(self.since);
        // Ordering: which thread looks the lock decides.
        if !self.wanted.load(Ordering::Relaxed)
            || (since.as_nanos() as u64) < self.next.load(Ordering::Relaxed)
        {
            return;
        }
        let Ok(mut inner) = self.inner.try_lock() else { return };
        let Inner { connections, gauge, .. } = &mut *inner;
        connections.retain(|connection| !connection.watched.is_over());
        let began = Instant::now();
        let carried = connections.iter().filter_map(|one| Some((one.number, one.watched.carried(one.to)?)));
        // The moment of the look, not that of the caller's last one.
        gauge.look(began.saturating_duration_since(self.since), carried);
        let next = began.elapsed() * SELDOM;
        let next = began.saturating_duration_since(self.since) + next.max(APART);
        self.next.store(next.as_nanos() as u64, Ordering::Relaxed);
    }

    /// What is known.
    pub(crate) fn measured(&self) -> Option<Measured> {
        self.inner().gauge.measured(self.since.elapsed())
    }

    /// What one server is to be told now, if anything.
    pub(crate) fn due(&self, reports: &mut Reports) -> Option<Measured> {
        reports.due(self.since.elapsed(), &self.inner().gauge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn what_stays_on_this_host_is_not_looked_at() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream = Stream::plain(ours, Duration::from_secs(9)).unwrap();
        let uplink = Uplink::new();
        uplink.watch(&stream, To::Child(1));
        assert!(uplink.inner().connections.is_empty());
        uplink.look(Instant::now());
        assert_eq!(uplink.measured(), None);
    }
}
