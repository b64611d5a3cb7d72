//! The end that lends: it goes to each child of its host that expects it, offers what is mirrored here, and hears what of it is read.

use super::super::mirrored::Mirrored;
use super::report::not_shared;
use super::{Heard, Unshared, hear_words, say, system};
use crate::user_directory::UserDirectory;
use crate::wire::random;
use penstock_fabric::net::remote_shard::RemoteShard;
use penstock_fabric::socket::Connection;
use penstock_proto::message::Secret;
use penstock_proto::overlay::lending::{self, End, Nonce, Rendezvous, Word};
use penstock_proto::{Rank, TensorId};
use rustix::event::PollFlags;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How often it is tried to lend to one that cannot be lent to for now or hangs up, and how long it is waited between.
pub(super) const ATTEMPTS: u32 = 20;
const ATTEMPTS_APART: Duration = Duration::from_millis(200);
/// Workers that one proxy lends to, at most. Those beyond them are fed by frames.
pub(super) const MOST_BORROWERS: usize = 256;
/// Words of a borrower's that one look takes, at most.
pub(super) const MOST_WORDS: usize = 64;

/// One that would be lent to.
#[derive(Clone, Copy)]
pub(in super::super) struct Attempt {
    rank: Rank,
    rendezvous: Rendezvous,
    pass: Secret,
    /// How often it may still be tried; when.
    left: u32,
    next: Instant,
}

impl Attempt {
    pub(in super::super) fn new(rank: Rank, rendezvous: Rendezvous, pass: Secret) -> Self {
        Self { rank, rendezvous, pass, left: ATTEMPTS - 1, next: Instant::now() }
    }

    /// Once more, unless it was often.
    pub(super) fn again(mut self, now: Instant) -> Option<Self> {
        self.left = self.left.checked_sub(1)?;
        self.next = now + ATTEMPTS_APART;
        Some(self)
    }

    fn who(&self) -> (Rank, &Rendezvous) {
        (self.rank, &self.rendezvous)
    }
}

/// One that is lent to, or is about to be.
pub(super) struct Connected {
    pub(super) attempt: Attempt,
    nonce: Nonce,
    connection: Connection,
    pub(super) proved: bool,
    /// How many tensors had been declared when it was last offered some; those that it was.
    pub(super) seen: usize,
    pub(super) offered: BTreeSet<TensorId>,
    /// Of these, those that it has said it reads: it says so once, until it has said that it does no more.
    pub(super) borrowed: BTreeSet<TensorId>,
    /// The socket takes no more for now.
    full: bool,
}

impl Connected {
    pub(super) fn new(meets: &UserDirectory, attempt: Attempt) -> Result<Self, Unshared> {
        let Attempt { ref rendezvous, ref pass, .. } = attempt;
        let nonce: Nonce = random::bytes().map_err(system("draw a number"))?;
        let path = meets.make()?.join(lending::socket_name(rendezvous));
        let connection = Connection::connect_to(&path).map_err(system("connect to a borrower"))?;
        if !connection.is_neighbours().map_err(system("ask who borrows"))? {
            return Err(Unshared::NoNeighbour);
        }
        let proof = lending::proof(pass, End::Lender, rendezvous, &nonce);
        say(&connection, &Word::Lender { nonce, proof }, &[]).map_err(system("speak to a borrower"))?;
        let (offered, borrowed) = (BTreeSet::new(), BTreeSet::new());
        Ok(Self { attempt, nonce, connection, proved: false, seen: 0, offered, borrowed, full: false })
    }

    /// Hears it, and offers it what it was not offered, if it is fed here by now; whether it stays, and whether anything was done.
    pub(super) fn look(
        &mut self,
        remote: &mut RemoteShard<Mirrored>,
        declared: usize,
        is_fed: bool,
    ) -> (bool, bool) {
        let mut busy = false;
        // What more it says is heard at the next look: others are seen to between.
        for _ in 0..MOST_WORDS {
            let Attempt { rank, ref rendezvous, ref pass, .. } = self.attempt;
            match hear_words(&self.connection) {
                Heard::Nothing => break,
                Heard::Word(Word::Borrower { proof }, _)
                    if !self.proved
                        && lending::proves(pass, End::Borrower, rendezvous, &self.nonce, &proof) =>
                {
                    (self.proved, busy) = (true, true);
                }
                Heard::Word(Word::Borrowed { tensor }, _)
                    if self.offered.contains(&tensor) && self.borrowed.insert(tensor) =>
                {
                    busy = true;
                    remote.lend((rank, rendezvous), tensor);
                }
                Heard::Word(Word::Returned { tensor }, _) if self.offered.remove(&tensor) => {
                    busy = true;
                    self.borrowed.remove(&tensor);
                    remote.lend_no_more((rank, rendezvous), tensor);
                    // It is offered anew, by which it hears that it is sent values again.
                    self.seen = 0;
                }
                Heard::Word(..) | Heard::Over => return (false, true),
            }
        }
        if is_fed && self.is_owed(declared) {
            busy = true;
            match self.offer(remote) {
                Ok(()) => (self.seen, self.full) = (declared, false),
                Err(Errno::AGAIN) => self.full = true,
                Err(error) => {
                    not_shared(None, Some(self.attempt.rank), &error);
                    return (false, true);
                }
            }
        }
        (true, busy)
    }

    /// Whether there may be something that it was not offered.
    fn is_owed(&self, declared: usize) -> bool {
        self.proved && (self.seen < declared || self.full)
    }

    fn offer(&mut self, remote: &RemoteShard<Mirrored>) -> rustix::io::Result<()> {
        for (tensor, mirrored) in remote.tensors() {
            if self.offered.contains(&tensor) {
                continue;
            }
            if let Some(fd) = mirrored.lendable() {
                say(&self.connection, &Word::Lent { tensor }, &[fd])?;
                self.offered.insert(tensor);
            }
        }
        Ok(())
    }
}

/// Those that a proxy lends to, and those that it is still to lend to.
#[derive(Default)]
pub(in super::super) struct Lender {
    pub(super) connected: Vec<Connected>,
    pub(super) pending: Vec<Attempt>,
    /// One waits to be fed, and to be offered something then.
    awaits: bool,
}

impl Lender {
    /// One has come to be fed, and would be lent to.
    pub(in super::super) fn attempt(&mut self, meets: &UserDirectory, attempt: Attempt, now: Instant) {
        // One that comes again is where it says by now.
        self.pending.retain(|before| before.rank != attempt.rank);
        if self.connected.len() >= MOST_BORROWERS {
            return self.put_off(attempt, now);
        }
        match Connected::new(meets, attempt) {
            Ok(connected) => self.connected.push(connected),
            // Others fill its socket, or this process has as many descriptors as it may have.
            Err(Unshared::System {
                errno: Errno::AGAIN | Errno::INTR | Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM,
                ..
            }) => self.put_off(attempt, now),
            // It may be on another host behind the same address, or in another container.
            Err(error) => not_shared(None, Some(attempt.rank), &error),
        }
    }

    fn put_off(&mut self, attempt: Attempt, now: Instant) {
        match attempt.again(now) {
            Some(again) => self.pending.push(again),
            None => not_shared(None, Some(attempt.rank), &Unshared::InVain { attempts: ATTEMPTS }),
        }
    }

    /// Whether one is to be seen to soon, whatever is ready.
    pub(in super::super) fn is_pressing(&self) -> bool {
        !self.pending.is_empty() || self.awaits
    }

    /// What was mirrored here is given up: whoever was offered that is hung up on, and does not borrow it any more. Those that were
    /// offered nothing so far may be lent to again.
    pub(in super::super) fn give_up(&mut self) {
        self.connected.retain(|connected| connected.offered.is_empty());
        self.connected.iter_mut().for_each(|connected| connected.seen = 0);
    }

    /// Sees to each; whether anything was done.
    pub(in super::super) fn look(
        &mut self,
        meets: &UserDirectory,
        remote: &mut RemoteShard<Mirrored>,
        declared: usize,
        now: Instant,
    ) -> bool {
        let mut busy = false;
        for attempt in self.pending.extract_if(.., |attempt| attempt.next <= now).collect::<Vec<_>>() {
            if remote.is_child(attempt.who()) {
                self.attempt(meets, attempt, now);
            }
        }
        let mut again = Vec::new();
        self.awaits = false;
        self.connected.retain_mut(|connected| {
            if !remote.is_child(connected.attempt.who()) {
                return false;
            }
            let is_fed = remote.feeds(connected.attempt.who());
            let (stays, did) = connected.look(remote, declared, is_fed);
            busy |= did;
            if !stays && !connected.proved {
                again.push(connected.attempt);
            }
            self.awaits |= stays && !is_fed && connected.is_owed(declared);
            stays
        });
        again.into_iter().for_each(|attempt| self.put_off(attempt, now));
        busy
    }

    pub(super) fn fds(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        self.connected.iter().map(|connected| {
            let flags = if connected.full { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            (connected.connection.as_fd(), flags)
        })
    }
}
