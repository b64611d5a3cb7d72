//! Whether the other end of a connection lives, and showing it that this one does.
//!
//! [`penstock_proto::vigil`] says which peer is late, and when; here is the clock by which it is asked, and what is said of a
//! peer that is gone.

use penstock_proto::Rank;
use penstock_proto::error::{JobFailure, Loss};
use penstock_proto::membership::Lived;
use penstock_proto::vigil;
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
        Self { since: Instant::now(), lived: Cell::new(vigil::lived(milliseconds(lease), 0)) }
    }

    pub(crate) fn now(&self) -> u64 {
        let mut lived = self.lived.get();
        let now = lived.until(milliseconds(self.since.elapsed()));
        self.lived.set(lived);
        now
    }
}

/// The longest sleep of a thread that keeps a vigil.
pub(crate) fn look_every(lease: Duration) -> Duration {
    Duration::from_millis(vigil::look_every(milliseconds(lease)))
}

/// Watches one peer. A *sign* is any count that grows with what comes from it.
#[derive(Debug)]
pub(crate) struct Vigil {
    clock: LivedClock,
    rule: vigil::Vigil,
    /// What this process lacked when it wanted to connect again.
    lack: Option<String>,
}

impl Vigil {
    pub(crate) fn new(lease: Duration) -> Self {
        Self { clock: LivedClock::new(lease), rule: vigil::Vigil::new(milliseconds(lease)), lack: None }
    }

    /// To be called now and then in whatever takes longer than a look: this process lives.
    pub(crate) fn tick(&self) {
        self.clock.now();
    }

    /// A connection stands, from now on.
    pub(crate) fn connected(&mut self) {
        self.rule.connected(self.clock.now());
        self.lack = None;
    }

    /// What this process lacked when the last attempt to connect failed (descriptors, say); `None` if it failed otherwise.
    pub(crate) fn lacks(&mut self, lack: Option<String>) {
        self.lack = lack;
    }

    /// The connection counts as one on which something has just come.
    pub(crate) fn heard(&mut self) {
        self.rule.heard(self.clock.now());
    }

    /// Whether nothing came on this connection for half a lease. `sign` grows with whatever comes; on a control connection only
    /// with answers to signs of life, as nothing else shows that the peer hears.
    pub(crate) fn is_silent(&mut self, sign: u64) -> bool {
        self.rule.is_silent(sign, self.clock.now())
    }

    /// Whether nothing came from the peer for a lease, on any connection; `sign` counts over all of them.
    pub(crate) fn is_gone(&mut self, sign: u64) -> bool {
        self.rule.is_gone(sign, self.clock.now())
    }

    /// Whether it is time for a sign of life; asked once, the next is due an eighth of a lease later.
    pub(crate) fn is_time_to_beat(&mut self) -> bool {
        self.rule.is_time_to_beat(self.clock.now())
    }

    /// Why the job ends when the peer, a part of `server`, is gone. The server is to blame, for `reason`, unless it was this
    /// worker, `rank`, that could not come back.
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
        format!("gave no sign of life for {} ms (the lease)", self.rule.lease_ms())
    }
}
