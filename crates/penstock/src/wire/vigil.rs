//! Whether the other end of a connection lives, and showing it that this one does.
//!
//! Both ends say something at least every quarter of a lease, as often as they look. A connection on which nothing came for half a lease is given up
//! and made again, which loses nothing; a peer of which nothing came for a whole lease, on any connection, is lost. What counts
//! is the time that this process lived itself: see [`Lived`].

use penstock_proto::Rank;
use penstock_proto::error::{JobFailure, Loss};
use penstock_proto::membership::{Lease, Lived};
use std::cell::Cell;
use std::time::{Duration, Instant};

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// A clock that counts the milliseconds that this process has lived since.
#[derive(Debug)]
pub(crate) struct LivedClock {
    since: Instant,
    lived: Cell<Lived>,
}

impl LivedClock {
    /// For one that looks at it every eighth of `lease`.
    pub(crate) fn new(lease: Duration) -> Self {
        let step = (milliseconds(lease) / 4).max(1);
        Self { since: Instant::now(), lived: Cell::new(Lived::new(step, 0)) }
    }

    pub(crate) fn now(&self) -> u64 {
        let mut lived = self.lived.get();
        let now = lived.until(milliseconds(self.since.elapsed()));
        self.lived.set(lived);
        now
    }
}

/// The longest sleep of whoever keeps a vigil.
pub(crate) fn look_every(lease: Duration) -> Duration {
    (lease / 8).max(Duration::from_millis(1))
}

/// Watches one peer. A *sign* is any count that grows with what comes from it.
#[derive(Debug)]
pub(crate) struct Vigil {
    clock: LivedClock,
    lease_ms: u64,
    connection: Lease,
    peer: Lease,
    next_beat: u64,
    /// What this process lacked when it wanted to connect again.
    lack: Option<String>,
}

impl Vigil {
    pub(crate) fn new(lease: Duration) -> Self {
        let lease_ms = milliseconds(lease);
        Self {
            clock: LivedClock::new(lease),
            lease_ms,
            connection: Lease::new(lease_ms / 2, 0),
            peer: Lease::new(lease_ms, 0),
            next_beat: 0,
            lack: None,
        }
    }

    /// To be called now and then in whatever takes longer than a look: this process lives.
    pub(crate) fn tick(&self) {
        self.clock.now();
    }

    /// A connection stands, from now on.
    pub(crate) fn connected(&mut self) {
        self.heard();
        self.next_beat = 0;
        self.lack = None;
    }

    /// The last attempt to connect failed at what this process has no more of, or did not.
    pub(crate) fn lacks(&mut self, lack: Option<String>) {
        self.lack = lack;
    }

    /// The connection counts as one on which something has just come.
    pub(crate) fn heard(&mut self) {
        self.connection = Lease::new(self.lease_ms / 2, self.clock.now());
    }

    /// Whether nothing came on this connection for half a lease.
    pub(crate) fn is_silent(&mut self, sign: u64) -> bool {
        let now = self.clock.now();
        self.connection.has_ended(sign, now)
    }

    /// Whether nothing came of the peer for a lease, on whatever connection; `sign` counts over all of them.
    pub(crate) fn is_gone(&mut self, sign: u64) -> bool {
        let now = self.clock.now();
        self.peer.has_ended(sign, now)
    }

    /// Whether it is time for a sign of life; asked once, the next is due an eighth of a lease later.
    pub(crate) fn is_time_to_beat(&mut self) -> bool {
        let now = self.clock.now();
        let due = now >= self.next_beat;
        if due {
            self.next_beat = now + self.lease_ms / 8;
        }
        due
    }

    /// Why the job ends when the peer, a part of `server`, is gone: for a `reason` that is the server's, unless it is worker `rank`,
    /// this one, that could not come back.
    pub(crate) fn verdict(&self, server: u32, rank: Rank, reason: String) -> JobFailure {
        match &self.lack {
            None => JobFailure::ServerLost { server, reason },
            Some(lack) => {
                let what = format!("it could not connect to server {server} again: {lack}");
                JobFailure::WorkerLost { rank, loss: Loss::Failed { what } }
            }
        }
    }

    /// What to say of a peer that is gone.
    pub(crate) fn epitaph(&self) -> String {
        format!("gave no sign of life for {} ms (the lease)", self.lease_ms)
    }
}
