//! Peers: what a process sends to, and receives from.
//!
//! A worker contributes: its clock, its lanes and its place at a barrier go by its [rank](crate::Rank). What is at the other end
//! of a connection is a *peer*, and need not be a worker: connections, ports and subscriptions, of tensors and of rows, go by its
//! [`PeerId`]; accounts by its role and number, so that one that comes back owes what is still kept for it. A worker
//! is both, and [`PeerId::rank`] is the only way from one to the other.
//!
//! Today a server takes in workers of the first incarnation ([`PeerId::worker`]), and no other peer.

use crate::Rank;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a peer is to the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Contributes, and is sent what it asks for. Its number is its rank.
    Worker,
    /// Is home of chunks and rows.
    Server,
    /// Reads, and contributes nothing: no peer waits for it.
    Follower,
    /// Passes on to others what it is sent: a rack's.
    Relay,
    /// Keeps what a server has, to take its place.
    Replica,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Worker => "worker",
            Self::Server => "server",
            Self::Follower => "follower",
            Self::Relay => "relay",
            Self::Replica => "replica",
        })
    }
}

/// What is at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PeerId {
    /// What it is.
    pub role: Role,
    /// Its number among those of its role.
    pub number: u32,
    /// How many peers of this role and number came before: one that comes back after it was lost is another peer.
    pub incarnation: u32,
}

impl PeerId {
    /// The first of this role and number.
    pub const fn first(role: Role, number: u32) -> Self {
        Self { role, number, incarnation: 0 }
    }

    /// The first worker of a rank.
    pub const fn worker(rank: Rank) -> Self {
        Self::first(Role::Worker, rank)
    }

    /// A server, as its workers know it.
    pub const fn server(number: u32) -> Self {
        Self::first(Role::Server, number)
    }

    /// The rank under which it contributes; `None`: it does not.
    pub const fn rank(self) -> Option<Rank> {
        match self.role {
            Role::Worker => Some(self.number),
            _ => None,
        }
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role, self.number)?;
        match self.incarnation {
            0 => Ok(()),
            again => write!(f, " (incarnation {again})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_says_who_it_is_and_only_a_worker_has_a_rank() {
        let returned = PeerId { incarnation: 2, ..PeerId::worker(3) };
        assert_eq!(PeerId::worker(3).to_string(), "worker 3");
        assert_eq!(returned.to_string(), "worker 3 (incarnation 2)");
        assert_eq!(PeerId::first(Role::Follower, 0).to_string(), "follower 0");
        assert_eq!((returned.rank(), PeerId::server(3).rank()), (Some(3), None));
        for role in [Role::Follower, Role::Relay, Role::Replica] {
            assert_eq!(PeerId::first(role, 3).rank(), None, "{role}");
        }
    }

    #[test]
    fn who_comes_back_is_another_peer() {
        let first = PeerId::worker(3);
        assert_ne!(PeerId { incarnation: 1, ..first }, first);
        assert_ne!(PeerId::first(Role::Follower, 3), first);
    }
}
