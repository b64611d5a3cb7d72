//! How a proxy lends what it mirrors to workers of its host, and borrows what another mirrors there: descriptors go over a Unix socket,
//! of whose other end the kernel says whose it is, and which has proved that it is that parent, or that child
//! ([`penstock_proto::overlay::lending`]). What is new there is said on the connection by which the child is fed.
//!
//! Nobody waits here: a proxy looks when a descriptor is ready. Whatever does not come about, values come by frames.

use super::mirrored::Mirrored;
use crate::wire::random;
use penstock_fabric::memory::LendError;
use penstock_fabric::net::remote_shard::RemoteShard;
use penstock_fabric::socket::{Connection, Expecting};
use penstock_proto::message::{MAX_MESSAGE_BYTES, Secret, Session};
use penstock_proto::overlay::Pass;
use penstock_proto::overlay::lending::{self, End, MAX_WORD_BYTES, Nonce, Word};
use penstock_proto::{Rank, TensorId};
use rustix::event::PollFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::collections::{BTreeMap, BTreeSet};

pub(in crate::worker::link) use penstock_proto::overlay::lending::Lodging as Name;

/// Processes at a borrower's socket that have proved nothing so far, at most: the one that came first goes for one more.
const MOST_KNOCKING: usize = 4;
/// Workers that one proxy lends to, at most. Those beyond them are fed by frames.
const MOST_LODGERS: usize = 256;
/// Tensors of which a borrower keeps what was offered before it has declared them, at most: a descriptor each.
const MOST_EARLY: usize = 256;

/// What both ends know beside what they say to each other.
#[derive(Debug, Clone, Copy)]
pub(in crate::worker::link) struct Credentials {
    /// The job's.
    pub(in crate::worker::link) secret: Secret,
    /// This worker's, by which it knows its children.
    pub(in crate::worker::link) session: Session,
}

/// A message, or why there is none.
enum Heard {
    Word(Word, Vec<OwnedFd>),
    Nothing,
    /// It has hung up, or said what nobody says.
    Over,
}

fn hear(connection: &Connection) -> Heard {
    let mut buffer = Box::new([0; MAX_MESSAGE_BYTES]);
    match connection.receive_with_descriptors(&mut buffer, RecvFlags::DONTWAIT) {
        Err(Errno::AGAIN) => Heard::Nothing,
        // A descriptor for which this process had no room was closed: what is said of it counts for nothing.
        Ok((1..=MAX_WORD_BYTES, came)) if came.cut => Heard::Over,
        Ok((length @ 1..=MAX_WORD_BYTES, came)) => match Word::decode(&buffer[..length]) {
            Some(word) => Heard::Word(word, came.descriptors),
            None => Heard::Over,
        },
        _ => Heard::Over,
    }
}

fn say(connection: &Connection, word: &Word, descriptors: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
    connection.send(&word.encode(), descriptors, SendFlags::DONTWAIT)
}

/// Where a borrower is lent to: by one parent.
pub(super) struct Lodging {
    name: Name,
    lender: Rank,
    pass: Secret,
    /// Until it has come.
    socket: Option<Expecting>,
    knocking: Vec<Connection>,
    connection: Option<Connection>,
    /// What was offered before it was declared here.
    early: BTreeMap<TensorId, OwnedFd>,
    /// What was offered and is not borrowed.
    pub(super) offered: BTreeSet<TensorId>,
}

impl Lodging {
    /// Where this parent is expected, of the job's secret and the pass for it.
    pub(super) fn open(lender: Rank, pass: &Pass, secret: &Secret) -> rustix::io::Result<Self> {
        let name: Name = random::bytes()?;
        let socket = Some(Expecting::bind(&lending::socket_name(&name))?);
        let (knocking, early, offered) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
        let pass = pass.secret(secret);
        Ok(Self { name, lender, pass, socket, knocking, connection: None, early, offered })
    }

    pub(super) fn name(&self) -> Name {
        self.name
    }

    pub(super) fn lender(&self) -> Rank {
        self.lender
    }

    /// Takes what has come; whether anything has.
    pub(super) fn look(&mut self, remote: &mut RemoteShard<Mirrored>) -> bool {
        let mut busy = self.let_in();
        while let Some(connection) = &self.connection {
            match hear(connection) {
                Heard::Nothing => break,
                Heard::Word(Word::Lent { tensor, bytes: _ }, descriptors) if descriptors.len() == 1 => {
                    busy = true;
                    self.early.extend(descriptors.into_iter().map(|fd| (tensor, fd)));
                    if self.early.len() > MOST_EARLY {
                        self.early.pop_last();
                    }
                }
                // What was borrowed stays so: of what is new it says so elsewhere.
                Heard::Word(..) | Heard::Over => self.connection = None,
            }
        }
        self.settle(remote);
        busy
    }

    /// Keeps what was offered of tensors that are declared here.
    fn settle(&mut self, remote: &mut RemoteShard<Mirrored>) {
        if self.early.is_empty() {
            return;
        }
        for (id, fd) in std::mem::take(&mut self.early) {
            match remote.tensor_mut(id) {
                None => _ = self.early.insert(id, fd),
                Some(mirrored) => match mirrored.offer(fd) {
                    Ok(true) => _ = self.offered.insert(id),
                    Ok(false) => {}
                    Err(error) => not_borrowed(id, self.lender, &error),
                },
            }
        }
    }

    /// Finds the lender among those that have come: by what it proves, and then proves it in turn.
    fn let_in(&mut self) -> bool {
        let Some(socket) = &self.socket else { return false };
        let mut busy = false;
        while let Ok(connection) = socket.accept() {
            busy = true;
            // Nothing is said to another user's process, and nothing that it says is read.
            if !connection.is_own_users().unwrap_or(false) {
                continue;
            }
            if self.knocking.len() == MOST_KNOCKING {
                self.knocking.remove(0);
            }
            self.knocking.push(connection);
        }
        let (name, pass) = (&self.name, &self.pass);
        let mut at = 0;
        while let Some(connection) = self.knocking.get(at) {
            match hear(connection) {
                Heard::Nothing => at += 1,
                Heard::Word(Word::Lender { nonce, proof }, _)
                    if lending::proves(pass, End::Lender, name, &nonce, &proof) =>
                {
                    let proof = lending::proof(pass, End::Borrower, name, &nonce);
                    if say(connection, &Word::Borrower { proof }, &[]).is_ok() {
                        self.connection = Some(self.knocking.swap_remove(at));
                    }
                    // Nobody comes in behind it.
                    (self.socket, self.knocking) = (None, Vec::new());
                    return true;
                }
                Heard::Word(..) | Heard::Over => _ = self.knocking.remove(at),
            }
        }
        busy
    }

    /// Borrows what was offered and is new enough; whether anything. What the lender need not send any more it is told.
    pub(super) fn borrow(&mut self, remote: &mut RemoteShard<Mirrored>) -> bool {
        let before = self.offered.len();
        let (lender, connection) = (self.lender, &self.connection);
        self.offered.retain(|&id| {
            if !remote.may_borrow(id, lender) {
                return true;
            }
            if remote.borrow(id, lender) {
                let told = connection.as_ref().map(|it| say(it, &Word::Borrowed { tensor: id }, &[]));
                // It goes on sending frames, which say no less.
                if !matches!(told, Some(Ok(()))) {
                    tracing::debug!(tensor = id, lender, "a lender was not told that its memory is read");
                }
                tracing::info!(tensor = id, lender, "values are read in another worker's memory");
                return false;
            }
            // One that cannot be borrowed has said so.
            remote.tensor(id).is_some_and(Mirrored::is_offered)
        });
        self.offered.len() < before
    }

    fn fds(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let socket = self.socket.iter().map(AsFd::as_fd);
        let connections = self.knocking.iter().chain(&self.connection).map(AsFd::as_fd);
        socket.chain(connections).map(|fd| (fd, PollFlags::IN))
    }
}

fn not_borrowed(tensor: TensorId, lender: Rank, error: &LendError) {
    tracing::warn!(tensor, lender, %error, "values of a worker of this host are kept here once more");
}

/// One that is lent to.
struct Lodger {
    name: Name,
    pass: Secret,
    nonce: Nonce,
    connection: Connection,
    proved: bool,
    /// How many tensors had been declared when it was last seen to; those that it was offered.
    seen: usize,
    offered: BTreeSet<TensorId>,
    /// The socket takes no more for now.
    full: bool,
}

impl Lodger {
    fn new(name: Name, pass: Secret) -> rustix::io::Result<Self> {
        let nonce: Nonce = random::bytes()?;
        let connection = Connection::connect_to(&lending::socket_name(&name))?;
        if !connection.is_own_users()? {
            return Err(Errno::PERM);
        }
        let proof = lending::proof(&pass, End::Lender, &name, &nonce);
        say(&connection, &Word::Lender { nonce, proof }, &[])?;
        let (proved, seen, offered, full) = (false, 0, BTreeSet::new(), false);
        Ok(Self { name, pass, nonce, connection, proved, seen, offered, full })
    }

    /// Hears it, and offers it what it was not offered; whether it stays, and whether anything was done.
    fn look(&mut self, remote: &mut RemoteShard<Mirrored>, declared: usize) -> (bool, bool) {
        let mut busy = false;
        loop {
            match hear(&self.connection) {
                Heard::Nothing => break,
                Heard::Word(Word::Borrower { proof }, _)
                    if !self.proved
                        && lending::proves(&self.pass, End::Borrower, &self.name, &self.nonce, &proof) =>
                {
                    (self.proved, busy) = (true, true);
                }
                Heard::Word(Word::Borrowed { tensor }, _) if self.offered.contains(&tensor) => {
                    busy = true;
                    remote.lend(&self.name, tensor);
                }
                Heard::Word(..) | Heard::Over => return (false, true),
            }
        }
        if self.proved && (self.seen < declared || self.full) {
            busy = true;
            match self.offer(remote) {
                Ok(()) => (self.seen, self.full) = (declared, false),
                Err(Errno::AGAIN) => self.full = true,
                Err(error) => {
                    tracing::warn!(%error, "values are not lent to a worker of this host");
                    return (false, true);
                }
            }
        }
        (true, busy)
    }

    fn offer(&mut self, remote: &RemoteShard<Mirrored>) -> rustix::io::Result<()> {
        for (tensor, mirrored) in remote.tensors() {
            if self.offered.contains(&tensor) {
                continue;
            }
            if let Some((fd, bytes)) = mirrored.lendable() {
                say(&self.connection, &Word::Lent { tensor, bytes }, &[fd])?;
                self.offered.insert(tensor);
            }
        }
        Ok(())
    }
}

/// Those that a proxy lends to.
#[derive(Default)]
pub(super) struct Lodgers(Vec<Lodger>);

impl Lodgers {
    /// One has come that would be lent to.
    pub(super) fn add(&mut self, name: Name, pass: Secret) {
        if self.0.len() == MOST_LODGERS {
            return;
        }
        match Lodger::new(name, pass) {
            Ok(lodger) => self.0.push(lodger),
            // It may be on another host behind the same address, or of another user.
            Err(error) => tracing::debug!(%error, "a worker of this host is not lent to"),
        }
    }

    /// Nothing more is offered, as what was is not kept there any more.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Sees to each; whether anything was done.
    pub(super) fn look(&mut self, remote: &mut RemoteShard<Mirrored>, declared: usize) -> bool {
        let mut busy = false;
        self.0.retain_mut(|lodger| {
            if !remote.lodges(&lodger.name) {
                return false;
            }
            let (stays, did) = lodger.look(remote, declared);
            busy |= did;
            stays
        });
        busy
    }

    fn fds(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        self.0.iter().map(|lodger| {
            let flags = if lodger.full { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            (lodger.connection.as_fd(), flags)
        })
    }
}

/// What is to be waited for.
pub(super) fn fds<'a>(
    lodging: Option<&'a Lodging>,
    lodgers: &'a Lodgers,
) -> impl Iterator<Item = (BorrowedFd<'a>, PollFlags)> {
    lodging.into_iter().flat_map(Lodging::fds).chain(lodgers.fds())
}

#[cfg(test)]
mod tests;
