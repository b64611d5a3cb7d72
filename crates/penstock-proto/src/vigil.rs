//! Which peer is late, and when: the rule by which both ends of a connection watch each other.
//!
//! | in parts of a lease | what |
//! |---|---|
//! | 1/8 | each end looks at least this often, and shows as often that it is alive |
//! | 1/4 | most that counts of the time between two looks ([`Lived`]): the rest this process was suspended |
//! | 1/2 | a connection on which nothing came for this long (for control: no answer to a sign of life) is given up and made again, which loses nothing |
//! | 1 | a peer from which nothing came for this long, on any connection, is lost |
//!
//! So a connection that is silent one way is made again before any peer is lost for it: where nothing comes the other end sees
//! it, where nothing arrives its answers stop, whatever else it says. Pure state: the caller has the clock, and the
//! time that it names is what its process [lived](Lived).

use crate::membership::{Lease, Lived};

/// The longest sleep of a thread that watches, in milliseconds.
pub const fn look_every(lease_ms: u64) -> u64 {
    if lease_ms < 8 { 1 } else { lease_ms / 8 }
}

/// The time lived, from `now_ms` on, by a process that watches with this lease.
pub fn lived(lease_ms: u64, now_ms: u64) -> Lived {
    Lived::new((lease_ms / 4).max(1), now_ms)
}

/// Watches one peer. A *sign* is any count that grows with what comes from it.
#[derive(Debug, Clone, Copy)]
pub struct Vigil {
    lease_ms: u64,
    connection: Lease,
    peer: Lease,
    next_beat: u64,
}

impl Vigil {
    /// From time 0 on.
    pub fn new(lease_ms: u64) -> Self {
        let (connection, peer) = (Lease::new(lease_ms / 2, 0), Lease::new(lease_ms, 0));
        Self { lease_ms, connection, peer, next_beat: 0 }
    }

    /// Its lease.
    pub fn lease_ms(&self) -> u64 {
        self.lease_ms
    }

    /// A connection stands, from now on.
    pub fn connected(&mut self, now_ms: u64) {
        self.heard(now_ms);
        self.next_beat = 0;
    }

    /// The connection counts as one on which something has just come.
    pub fn heard(&mut self, now_ms: u64) {
        self.connection = Lease::new(self.lease_ms / 2, now_ms);
    }

    /// Whether nothing came on this connection for half a lease. `sign` grows with whatever comes; on a control connection only
    /// with answers to signs of life, as nothing else shows that the peer hears.
    pub fn is_silent(&mut self, sign: u64, now_ms: u64) -> bool {
        self.connection.has_ended(sign, now_ms)
    }

    /// Whether nothing came from the peer for a lease, on any connection; `sign` counts over all of them.
    pub fn is_gone(&mut self, sign: u64, now_ms: u64) -> bool {
        self.peer.has_ended(sign, now_ms)
    }

    /// Whether it is time for a sign of life; asked once, the next is due an eighth of a lease later.
    pub fn is_time_to_beat(&mut self, now_ms: u64) -> bool {
        let due = now_ms >= self.next_beat;
        if due {
            self.next_beat = now_ms + self.lease_ms / 8;
        }
        due
    }
}
