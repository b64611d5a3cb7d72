//! A rendezvous over TCP, for launchers that only say which process is which: rank 0 listens, the others come.
//!
//! | file | word |
//! |---|---|
//! | [`proof`] | what both sides say, and how each knows that the other knows the secret |
//! | [`caller`] | what rank 0 makes of the bytes of one connection |
//! | [`root`] | rank 0's end |
//! | [`visitor`] | everyone else's |
//! | [`round`] | a whole round, whichever end this process has |
//!
//! Rank 0 has one thread and one loop. A connection that has not proved itself costs it 8 KiB at most, a place among a limited
//! number, and a few seconds; then it is dropped, and so is one that sends anything but the next message of the handshake. A
//! process that has given something and then goes away ends the attempt at once; one that has proved itself and gives nothing for
//! five seconds loses its rank.

pub mod caller;
pub mod proof;
mod root;
mod round;
mod visitor;

pub use root::{Collected, Root, STRANGERS};
pub use round::{Rendezvous, RoundError};
pub use visitor::Visitor;

use crate::patience::{Interrupted, Patience};
use penstock_proto::message::{MAX_WORKERS, Secret};
use penstock_proto::redial::{Pauses, Redial};
use proof::Nonce;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;
use std::str::FromStr;
use std::time::Duration;

/// Time in which a connection must prove itself, and then again in which it must give something.
const STRANGER_TIME: Duration = Duration::from_secs(5);

/// Pauses before a process tries again: rank 0 may not be listening yet, or its name not be known yet.
const PAUSES: Pauses = Pauses::doubling(Duration::from_millis(50), Duration::from_secs(1));

/// Makes attempts until one breaks off, or the time is over.
fn again<Done, Failed>(
    patience: &Patience<'_>,
    attempt: impl FnMut() -> Result<ControlFlow<Done, Failed>, RendezvousError>,
) -> Result<ControlFlow<Done, Failed>, RendezvousError> {
    let redial = Redial::until(PAUSES, patience.waited() + patience.left());
    redial.run(|| patience.waited(), |pause| Ok(patience.sleep(pause)?), attempt)
}

/// Where processes meet: `HOST:PORT`; an IPv6 address stands in brackets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RendezvousAddress {
    /// A name or an address, without brackets.
    pub host: String,
    /// Never 0 in one that was read.
    pub port: u16,
}

impl fmt::Display for RendezvousAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') {
            write!(formatter, "[{host}]:{port}")
        } else {
            write!(formatter, "{host}:{port}")
        }
    }
}

impl FromStr for RendezvousAddress {
    type Err = NoRendezvousAddress;

    /// What was not UTF-8 comes with a character in its place that no name has.
    fn from_str(text: &str) -> Result<Self, NoRendezvousAddress> {
        let refused = || NoRendezvousAddress { got: text.to_owned() };
        let (host, port) = text.rsplit_once(':').ok_or_else(refused)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = bare
            .or_else(|| (!host.contains(':')).then_some(host))
            .filter(|host| !host.is_empty() && !host.contains(['[', ']', char::REPLACEMENT_CHARACTER]));
        let port = Some(port).filter(|port| port.bytes().all(|digit| digit.is_ascii_digit()));
        let port = port.and_then(|port| port.parse().ok()).filter(|&port| port != 0);
        match (host, port) {
            (Some(host), Some(port)) => Ok(Self { host: host.to_owned(), port }),
            _ => Err(refused()),
        }
    }
}

/// What is not a rendezvous address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected PENSTOCK_RENDEZVOUS to be HOST:PORT, got `{got}`")]
pub struct NoRendezvousAddress {
    /// What came.
    pub got: String,
}

impl NoRendezvousAddress {
    /// What the user can do about it.
    pub fn hint(&self) -> &'static str {
        "name the host of rank 0 and a port that is free there, such as node1:7070; IPv6 as [fd00::1]:7070"
    }
}

/// Why a rendezvous did not begin, or ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// The rendezvous host's name has no address here.
    #[error("the rendezvous host `{host}` has no address: {reason}")]
    NoAddress {
        /// Its name.
        host: String,
        /// What the system says.
        reason: String,
    },
    /// Another program listens at the port.
    #[error("port {port} for the rendezvous is taken on this host")]
    InUse {
        /// The port.
        port: u16,
    },
    /// Rank 0 cannot listen.
    #[error("rank 0 cannot listen at {at}: {reason}")]
    Listen {
        /// Where.
        at: RendezvousAddress,
        /// What the system says.
        reason: String,
    },
    /// Rank 0 does not know the secret, or says that this process does not.
    #[error("the rendezvous at {at} has a different secret or job name from rank {rank}'s")]
    OtherSecret {
        /// Where.
        at: RendezvousAddress,
        /// This process.
        rank: u32,
    },
    /// Rank 0 was told another number of processes.
    #[error(
        "rank 0 at {at} expects {expected} processes, but this process was told that it is rank {rank} of {size}"
    )]
    OtherSize {
        /// Where.
        at: RendezvousAddress,
        /// What rank 0 was told.
        expected: u32,
        /// This process.
        rank: u32,
        /// What it was told.
        size: u32,
    },
    /// No job has so many.
    #[error("expected a job of at most {MAX_WORKERS} processes, got {size}")]
    TooMany {
        /// How many this process was told that there are.
        size: u32,
    },
    /// The name server did not tell rank 0 in time where to listen.
    #[error("the address of the rendezvous host `{host}` was not found within {waited:.1?}")]
    Unresolved {
        /// Its name.
        host: String,
        /// How long it was looked up.
        waited: Duration,
    },
    /// Another process has this rank.
    #[error("another process has come to the rendezvous at {at} as rank {rank}")]
    Taken {
        /// Where.
        at: RendezvousAddress,
        /// The rank of both.
        rank: u32,
    },
    /// Rank 0 was not reached in time.
    #[error("rank 0 was not reached at {at}: {cause}")]
    Late {
        /// Where.
        at: RendezvousAddress,
        /// What became of the last attempts.
        cause: Cause,
    },
    /// Rank 0 was reached, and waits for others longer than this process does.
    #[error("rank 0 was reached at {at}, but has not heard from all ranks")]
    Undecided {
        /// Where.
        at: RendezvousAddress,
    },
    /// Rank 0 has ended, or let go of this process.
    #[error("rank 0 went away during the rendezvous at {at}")]
    Left {
        /// Where.
        at: RendezvousAddress,
    },
    /// Something in between.
    #[error("the answer of the rendezvous at {at} was changed on the way")]
    Changed {
        /// Where.
        at: RendezvousAddress,
    },
    /// The system.
    #[error("could not {what}: {reason}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system says.
        reason: String,
    },
    /// The caller was interrupted.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

/// Why a process and rank 0 did not come together. Another attempt may succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The host's name has no address so far.
    #[error("the name `{host}` has no address: {reason}")]
    NoAddress {
        /// The name.
        host: String,
        /// What the system says.
        reason: String,
    },
    /// The system has not said yet whether it has one.
    #[error("the address of `{host}` is still being looked up")]
    Unresolved {
        /// The name.
        host: String,
    },
    /// There is no connection.
    #[error("{reason} at {address}")]
    Unreachable {
        /// The last address that was tried.
        address: SocketAddr,
        /// What the system says.
        reason: String,
    },
    /// Nothing answers.
    #[error("nobody answered there")]
    Silent,
    /// Something takes connections there, and ends them.
    #[error("the process listening there closed the connection")]
    Ended,
    /// Something listens there that is not rank 0.
    #[error("the process listening there is not rank 0 of a job")]
    Foreign,
    /// Rank 0 is there, and had no room for all that came.
    #[error("rank 0 could not accept a connection: {reason}")]
    NoRoom {
        /// What the system says.
        reason: String,
    },
    /// A process has come to rank 0 that could not prove itself, and may be one of the missing.
    #[error("a process from {host} used a different secret or job name")]
    Unproved {
        /// Where it came from.
        host: IpAddr,
    },
    /// Another process has this rank.
    #[error("another process has come there as rank {rank}")]
    Taken {
        /// The rank of both.
        rank: u32,
    },
}

impl Cause {
    /// What the user can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoAddress { .. } | Self::Unresolved { .. } => {
                "PENSTOCK_RENDEZVOUS=HOST:PORT names the host of rank 0 as the others reach it, by an address if its name is not known there"
            }
            Self::Unreachable { .. } => {
                "check what rank 0 prints, and that PENSTOCK_RENDEZVOUS names its host and a port that no firewall closes"
            }
            Self::Taken { .. } => TAKEN_HINT,
            Self::Ended | Self::Foreign => {
                "another program may use this port: then choose another in PENSTOCK_RENDEZVOUS"
            }
            Self::NoRoom { .. } => {
                "rank 0 has no open file or memory left: raise `ulimit -n` there, or see what else runs on its host"
            }
            Self::Unproved { .. } => OTHER_SECRET_HINT,
            Self::Silent => "check what rank 0 prints",
        }
    }
}

const TAKEN_HINT: &str = "start one process for each rank: give each a PENSTOCK_RANK of its own, and end those of an earlier start";

const OTHER_SECRET_HINT: &str = "give all processes the same PENSTOCK_SECRET and PENSTOCK_JOB; another job may use this port: then choose another in PENSTOCK_RENDEZVOUS";

impl RendezvousError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoAddress { .. } => {
                Some("PENSTOCK_RENDEZVOUS=HOST:PORT names the host of rank 0 as the others reach it")
            }
            Self::InUse { .. } => Some(
                "set PENSTOCK_RENDEZVOUS=HOST:PORT, the same for all processes, to a port that is free there; if rank 0 of this job has it, give each process a PENSTOCK_RANK of its own",
            ),
            Self::Listen { .. } => Some(
                "PENSTOCK_RENDEZVOUS=HOST:PORT names the host on which rank 0 runs, the same for all processes",
            ),
            Self::OtherSecret { .. } => Some(OTHER_SECRET_HINT),
            Self::OtherSize { .. } => {
                Some("start all processes of the job with one command, or give all the same PENSTOCK_SIZE")
            }
            Self::TooMany { .. } => Some("start fewer processes, or check what says how many there are"),
            Self::Undecided { .. } => Some(
                "check what the other ranks do or print; give all the same option `deadline` (PENSTOCK_DEADLINE), or raise it",
            ),
            Self::Unresolved { .. } => {
                Some("name rank 0's host in PENSTOCK_RENDEZVOUS by its address, or check the name server")
            }
            Self::Taken { .. } => Some(TAKEN_HINT),
            Self::Late { cause, .. } => Some(cause.hint()),
            Self::Left { .. } => Some("check what rank 0 prints"),
            Self::System { .. } => Some("run `penstock doctor` on this host"),
            Self::Changed { .. } | Self::Interrupted(_) => None,
        }
    }
}

fn nonce() -> Result<Nonce, RendezvousError> {
    let mut nonce = Nonce::default();
    let refused = |reason: String| RendezvousError::System { what: "draw a nonce", reason };
    match rustix::rand::getrandom(&mut nonce[..], rustix::rand::GetRandomFlags::empty()) {
        Ok(count) if count == nonce.len() => Ok(nonce),
        Ok(_) => Err(refused("too few random bytes".to_owned())),
        Err(errno) => Err(refused(errno.to_string())),
    }
}

/// Which process of which job this is.
#[derive(Debug, Clone)]
pub struct Party {
    /// This process.
    pub rank: u32,
    /// How many there are.
    pub size: u32,
    /// The job's.
    pub secret: Secret,
    /// Its name.
    pub job: String,
}

impl Party {
    /// What rank 0 holds, and what a verdict may take, grows with the number of processes.
    fn refuse_too_many(&self) -> Result<(), RendezvousError> {
        let size = self.size;
        if size > MAX_WORKERS { Err(RendezvousError::TooMany { size }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rendezvous_address_reads_back_as_it_was_written() {
        for (text, host, port) in
            [("a:1", "a", 1), ("[fd00::1]:70", "fd00::1", 70), ("10.0.0.1:65535", "10.0.0.1", 65535)]
        {
            let at: RendezvousAddress = text.parse().expect("it is one");
            assert_eq!((&at.host[..], at.port, at.to_string()), (host, port, text.to_owned()));
        }
    }

    #[test]
    fn a_rendezvous_address_that_is_none_is_refused() {
        for text in [
            "",
            "a",
            "a:",
            ":1",
            "a:b",
            "a:0",
            "a:+1",
            "a:65536",
            "fd00::1:70",
            "[fd00::1]",
            "[]:1",
            "[[a]]:1",
            "a\u{fffd}:70",
            "a]:1",
            "a:\u{ff11}",
        ] {
            let refused = text.parse::<RendezvousAddress>().expect_err(text);
            assert_eq!(
                refused.to_string(),
                format!("expected PENSTOCK_RENDEZVOUS to be HOST:PORT, got `{text}`")
            );
        }
    }
}
