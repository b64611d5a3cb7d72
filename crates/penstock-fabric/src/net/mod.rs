//! Bytes between hosts: links, what goes over them and what both ends do with it, and the names of servers.
//!
//! | file | what |
//! |---|---|
//! | [`link`] | a connection that never blocks, whatever it is made of |
//! | [`stream`] | one over TCP, plain or under TLS 1.3 |
//! | `tcp_info` | what the kernel knows of a connection's sending |
//! | `sharing` | connections that share lines with others of the same trees |
//! | `backlog` | what a link did not take, until it does |
//! | [`gate`] | where connections come in, and which of them goes when there is no room for one more |
//! | [`quiet`] | writing to a socket without a signal where its peer has gone |
//! | [`tls`] | who is trusted, and with which certificate a server shows itself |
//! | [`loopback`] | connections that do not leave their host |
//! | [`frames`] | frames of a link and onto it |
//! | [`records`] | control messages, likewise |
//! | [`messages`] | messages about items, likewise |
//! | [`remote_shard`] | what a proxy says to its shard on another host, and makes of what it hears |
//! | [`remote_peer`] | what the shard says to that proxy, likewise |
//! | [`endpoint`] | how a server is named |

mod backlog;
pub mod endpoint;
mod feeder;
pub mod frames;
pub mod gate;
pub mod link;
pub mod loopback;
pub mod messages;
mod passing_on;
pub mod quiet;
pub mod records;
pub mod remote_peer;
pub mod remote_shard;
mod sharing;
mod squeeze;
pub mod stream;
mod tcp_info;
pub mod tls;

use penstock_proto::account::Exhausted;
use penstock_proto::items::node::Broken;
use std::io;

/// Why a connection is over.
#[derive(Debug)]
pub enum Ended {
    /// It broke, or brought damaged bytes: another may be made.
    Connection(io::Error),
    /// The peer did what no honest one does.
    Peer(String),
    /// It needs more than may be kept for it.
    Exhausted {
        /// For what.
        what: &'static str,
        /// What was asked, what is left.
        why: Exhausted,
    },
}

impl Ended {
    /// The line changed bytes on their way.
    pub fn damaged(what: &impl ToString) -> Self {
        Self::Connection(io::Error::other(what.to_string()))
    }
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        Self::Connection(error)
    }
}

impl From<Broken> for Ended {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Malformed(damaged) if damaged.is_damage() => Self::damaged(&damaged),
            Broken::Exhausted { what, why } => Self::Exhausted { what, why },
            broken => Self::Peer(broken.to_string()),
        }
    }
}

impl From<Ended> for io::Error {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Connection(error) => error,
            Ended::Peer(what) => Self::new(io::ErrorKind::InvalidData, what),
            Ended::Exhausted { what, why } => {
                Self::new(io::ErrorKind::OutOfMemory, format!("for {what} {why}"))
            }
        }
    }
}
