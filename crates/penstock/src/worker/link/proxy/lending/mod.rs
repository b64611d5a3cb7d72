//! How a proxy lends what it mirrors to workers of its host ([`Lender`]), and borrows what another mirrors there ([`Borrower`]):
//! descriptors go over a Unix socket, of whose other end the kernel says whose it is, and which has proved that it is that parent, or
//! that child ([`penstock_proto::overlay::lending`]). What is new there is said on the connection by which the child is fed.
//!
//! Nobody waits here: a proxy looks when a descriptor is ready. Whatever does not come about, values come by frames.

mod borrower;
mod lender;
mod report;

use crate::user_directory::NoDirectory;
use penstock_fabric::socket::{Connection, ListenError};
use penstock_proto::message::{MAX_MESSAGE_BYTES, Secret, Session};
use penstock_proto::overlay::lending::{MAX_WORD_BYTES, Word};
use rustix::event::PollFlags;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

pub(super) use borrower::Borrower;
pub(super) use lender::{Attempt, Lender};
pub(super) use report::not_shared;

/// What both ends know beside what they say to each other.
#[derive(Debug, Clone, Copy)]
pub(in crate::worker::link) struct Credentials {
    /// The job's.
    pub(in crate::worker::link) secret: Secret,
    /// This worker's, by which it knows its children.
    pub(in crate::worker::link) session: Session,
}

/// Why values are not shared with another worker of this host.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unshared {
    /// There is nowhere to meet.
    #[error(transparent)]
    Directory(#[from] NoDirectory),
    /// Nobody can be expected there.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The other is of another user, or of another container.
    #[error(
        "the process at the other end is not seen from here, or of a user that is not certainly this one"
    )]
    NoNeighbour,
    /// The parent has not come.
    #[error("the worker that feeds this one did not come to lend what it has")]
    NotCome,
    /// It was tried as often as it may be.
    #[error("it was tried to lend {attempts} times, in vain")]
    InVain {
        /// How often.
        attempts: u32,
    },
    /// The system says no.
    #[error("{what}: {errno}")]
    System {
        /// What it was asked for.
        what: &'static str,
        /// What it said.
        errno: Errno,
    },
}

fn system(what: &'static str) -> impl Fn(Errno) -> Unshared {
    move |errno| Unshared::System { what, errno }
}

/// A message, or why there is none.
enum Heard {
    Word(Word, Vec<OwnedFd>),
    Nothing,
    /// It has hung up, or said what nobody says.
    Over,
}

/// What one says that has nothing to offer: a descriptor that comes beside is closed.
fn hear_words(connection: &Connection) -> Heard {
    let mut buffer = Box::new([0; MAX_MESSAGE_BYTES]);
    let came = connection.receive(&mut buffer, RecvFlags::DONTWAIT);
    judge(came.map(|length| (length, Vec::new())), &buffer[..])
}

fn hear(connection: &Connection) -> Heard {
    let mut buffer = Box::new([0; MAX_MESSAGE_BYTES]);
    match connection.receive_with_descriptors(&mut buffer, RecvFlags::DONTWAIT) {
        // A descriptor for which this process had no room was closed: what is said of it counts for nothing.
        Ok((_, came)) if came.cut => Heard::Over,
        came => judge(came.map(|(length, came)| (length, came.descriptors)), &buffer[..]),
    }
}

/// What so many bytes say, and the descriptors beside them.
fn judge(came: rustix::io::Result<(usize, Vec<OwnedFd>)>, buffer: &[u8]) -> Heard {
    match came {
        Err(Errno::AGAIN) => Heard::Nothing,
        Ok((length @ 1..=MAX_WORD_BYTES, descriptors)) => {
            Word::decode(&buffer[..length]).map_or(Heard::Over, |word| Heard::Word(word, descriptors))
        }
        _ => Heard::Over,
    }
}

fn say(connection: &Connection, word: &Word, descriptors: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
    connection.send(&word.encode(), descriptors, SendFlags::DONTWAIT)
}

/// What is to be waited for.
pub(super) fn fds<'a>(
    borrower: Option<&'a Borrower>,
    lender: &'a Lender,
) -> impl Iterator<Item = (BorrowedFd<'a>, PollFlags)> {
    borrower.into_iter().flat_map(Borrower::fds).chain(lender.fds())
}

#[cfg(test)]
mod tests;
