//! How a proxy lends what it mirrors to workers of its host, and borrows what another mirrors there: descriptors go over a Unix socket,
//! of whose other end the kernel says whose it is, and which has proved that it is that parent, or that child
//! ([`penstock_proto::overlay::lending`]). What is new there is said on the connection by which the child is fed.
//!
//! Nobody waits here: a proxy looks when a descriptor is ready. Whatever does not come about, values come by frames.

use super::allowance::{Allowance, For};
use super::mirrored::Mirrored;
use crate::user_directory::{NoDirectory, UserDirectory};
use crate::wire::random;
use penstock_fabric::net::remote_shard::RemoteShard;
use penstock_fabric::socket::{Connection, Expecting, ListenError};
use penstock_proto::message::{MAX_MESSAGE_BYTES, Secret, Session};
use penstock_proto::overlay::Pass;
use penstock_proto::overlay::lending::{self, End, MAX_WORD_BYTES, Nonce, Word};
use penstock_proto::{Rank, TensorId};
use rustix::event::PollFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub(in crate::worker::link) use penstock_proto::overlay::lending::Lodging as Name;

/// Processes at a borrower's socket that have proved nothing so far, at most: one more is refused, and may come again.
const MOST_KNOCKING: usize = 8;
/// Connections that one look takes, at most. Any process of the host can make some.
const MOST_ACCEPTED: usize = 8;
/// Time for which a borrower's socket is not looked at behind a look that took any, or could not.
const DEAF: Duration = Duration::from_millis(20);
/// Time for which one is heard that has come: who knows the pass says so with its first word.
const HEARD_FOR: Duration = Duration::from_secs(1);
/// Time for which a lender is expected that feeds this worker.
const EXPECTED_FOR: Duration = Duration::from_secs(10);
/// How often a lender goes to a borrower whose socket has no room or hangs up, and how long it waits between.
const VISITS: u32 = 20;
const VISITS_APART: Duration = Duration::from_millis(200);
/// Why values are not shared the log says once in this time, of all tensors and shards.
const SAID_EVERY: Duration = Duration::from_secs(60);
/// Workers that one proxy lends to, at most. Those beyond them are fed by frames.
const MOST_LODGERS: usize = 256;
/// Words of a borrower's that one look takes, at most.
const MOST_WORDS: usize = 64;
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
    /// The system says no.
    #[error("{what}: {errno}")]
    System { what: &'static str, errno: Errno },
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

/// When something was said last that is said seldom.
struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
    /// Whether it is to be said now.
    fn is_time(&self, now: Instant) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_time = last.is_none_or(|last| now.saturating_duration_since(last) >= SAID_EVERY);
        if is_time {
            *last = Some(now);
        }
        is_time
    }
}

/// Says why values of another worker of this host are kept here once more, or not lent, unless that was said a short while ago: it may
/// be so of each of thousands of tensors.
pub(super) fn not_shared(tensor: Option<TensorId>, other: Option<Rank>, error: &dyn std::fmt::Display) {
    static SAID: Seldom = Seldom(Mutex::new(None));
    if SAID.is_time(Instant::now()) {
        tracing::warn!(tensor, other, %error, "values are kept more than once on this host");
    } else {
        tracing::debug!(tensor, other, %error, "values are kept more than once on this host");
    }
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

/// Where a borrower is lent to: by one parent.
pub(super) struct Lodging {
    name: Name,
    lender: Rank,
    pass: Secret,
    /// Until it has come, or for so long.
    socket: Option<Expecting>,
    expected_until: Option<Instant>,
    /// When connections are taken next.
    deaf_until: Option<Instant>,
    /// Those that have come, and until when each is heard.
    knocking: Vec<(Connection, Instant)>,
    connection: Option<Connection>,
    /// Nothing more is taken of the lender for now.
    is_full: bool,
    /// What was offered before it was declared here.
    early: BTreeMap<TensorId, (OwnedFd, Allowance)>,
    /// What was offered and is not borrowed.
    pub(super) offered: BTreeSet<TensorId>,
}

impl Lodging {
    /// Where this parent is expected, of the job's secret and the pass for it.
    pub(super) fn open(
        meets: &UserDirectory,
        lender: Rank,
        pass: &Pass,
        secret: &Secret,
    ) -> Result<Self, Unshared> {
        static CLEANED: Seldom = Seldom(Mutex::new(None));
        let directory = meets.make()?;
        if CLEANED.is_time(Instant::now()) {
            Expecting::remove_left_behind(directory, lending::SOCKET_PREFIX);
        }
        let name: Name = random::bytes().map_err(system("draw a name"))?;
        let socket = Some(Expecting::bind(&directory.join(lending::socket_name(&name)))?);
        Ok(Self {
            name,
            lender,
            pass: pass.secret(secret),
            socket,
            expected_until: None,
            deaf_until: None,
            knocking: Vec::new(),
            connection: None,
            is_full: false,
            early: BTreeMap::new(),
            offered: BTreeSet::new(),
        })
    }

    pub(super) fn name(&self) -> Name {
        self.name
    }

    pub(super) fn lender(&self) -> Rank {
        self.lender
    }

    /// Whether it is to be looked at soon, whatever is ready.
    pub(super) fn is_pressing(&self) -> bool {
        self.socket.is_some() && (self.deaf_until.is_some() || !self.knocking.is_empty())
    }

    /// Takes what has come; whether any of that is the lender's. What strangers do is no work: nobody is kept from resting by it.
    pub(super) fn look(&mut self, remote: &mut RemoteShard<Mirrored>, now: Instant) -> bool {
        if self.expected_until.is_none() && remote.feeders().any(|(rank, _)| rank == self.lender) {
            self.expected_until = Some(now + EXPECTED_FOR);
        }
        let mut busy = self.let_in(now);
        for (id, offer) in std::mem::take(&mut self.early) {
            self.take(id, offer, remote);
        }
        self.is_full = false;
        for _ in 0..MOST_EARLY {
            let Some(connection) = &self.connection else { break };
            // A descriptor that comes is here before it can be judged.
            let room = Some(()).filter(|()| self.early.len() < MOST_EARLY);
            let Some(allowance) = room.and_then(|()| Allowance::take(For::OFFER)) else {
                self.is_full = true;
                break;
            };
            match hear(connection) {
                Heard::Nothing => break,
                Heard::Word(Word::Lent { tensor, bytes: _ }, mut descriptors) if descriptors.len() == 1 => {
                    busy = true;
                    let offer = descriptors.pop().map(|fd| (fd, allowance));
                    offer.into_iter().for_each(|offer| self.take(tensor, offer, remote));
                }
                // What was borrowed stays so: of what is new it says so elsewhere.
                Heard::Word(..) | Heard::Over => self.connection = None,
            }
        }
        busy
    }

    /// Keeps what was offered, for later if the tensor is not declared here so far.
    fn take(
        &mut self,
        id: TensorId,
        (fd, allowance): (OwnedFd, Allowance),
        remote: &mut RemoteShard<Mirrored>,
    ) {
        match remote.tensor_mut(id) {
            None => _ = self.early.insert(id, (fd, allowance)),
            Some(mirrored) => match mirrored.offer(fd, allowance) {
                Ok(true) => _ = self.offered.insert(id),
                Ok(false) => {}
                Err(error) => not_shared(Some(id), Some(self.lender), &error),
            },
        }
    }

    /// Gives up what was offered and is not borrowed.
    pub(super) fn close(self, remote: &mut RemoteShard<Mirrored>) {
        for id in self.offered {
            remote.tensor_mut(id).into_iter().for_each(Mirrored::decline);
        }
    }

    /// Finds the lender among those that have come: by what it proves, and then proves it in turn.
    fn let_in(&mut self, now: Instant) -> bool {
        if self.socket.is_none() {
            return false;
        }
        // Those that have come are heard before others are let in, or refused.
        if self.hear_knocking(now) {
            return true;
        }
        if self.expected_until.is_some_and(|until| until <= now) {
            tracing::debug!(lender = self.lender, "a worker of this host did not come to lend what it has");
            (self.socket, self.knocking) = (None, Vec::new());
            return false;
        }
        if self.deaf_until.is_none_or(|until| until <= now) {
            self.deaf_until = self.accept(now).then(|| now + DEAF);
        }
        self.hear_knocking(now)
    }

    /// Takes some that have come; whether there were any, or might be.
    fn accept(&mut self, now: Instant) -> bool {
        let Some(socket) = &self.socket else { return false };
        for taken in 0..MOST_ACCEPTED {
            match socket.accept() {
                // Nothing is said to another user's process, and nothing that it says is read.
                Ok(connection) if connection.is_neighbours().unwrap_or(false) => {
                    if self.knocking.len() < MOST_KNOCKING {
                        self.knocking.push((connection, now + HEARD_FOR));
                    }
                }
                Ok(_) | Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(Errno::AGAIN) => return taken > 0,
                // It has no descriptor for it, and would be told again and again that somebody waits.
                Err(_) => return true,
            }
        }
        true
    }

    /// Hears those that have come; whether the lender was among them.
    fn hear_knocking(&mut self, now: Instant) -> bool {
        let (name, pass) = (&self.name, &self.pass);
        let mut at = 0;
        while let Some((connection, until)) = self.knocking.get(at) {
            match hear_words(connection) {
                Heard::Nothing if now < *until => at += 1,
                Heard::Word(Word::Lender { nonce, proof }, _)
                    if lending::proves(pass, End::Lender, name, &nonce, &proof) =>
                {
                    let proof = lending::proof(pass, End::Borrower, name, &nonce);
                    // Its descriptors come from now on.
                    if connection.let_descriptors_come(true).is_ok()
                        && say(connection, &Word::Borrower { proof }, &[]).is_ok()
                    {
                        self.connection = Some(self.knocking.swap_remove(at).0);
                    }
                    // Nobody comes in behind it.
                    (self.socket, self.knocking) = (None, Vec::new());
                    return true;
                }
                _ => _ = self.knocking.remove(at),
            }
        }
        false
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
        let socket = self.socket.iter().filter(|_| self.deaf_until.is_none()).map(AsFd::as_fd);
        let lender = self.connection.iter().filter(|_| !self.is_full).map(AsFd::as_fd);
        let knocking = self.knocking.iter().map(|(connection, _)| connection.as_fd());
        socket.chain(knocking).chain(lender).map(|fd| (fd, PollFlags::IN))
    }
}

/// A way to one that would be lent to.
#[derive(Clone, Copy)]
pub(super) struct Visit {
    rank: Rank,
    name: Name,
    pass: Secret,
    /// How often it may still be gone to; when.
    left: u32,
    next: Instant,
}

impl Visit {
    pub(super) fn to(rank: Rank, name: Name, pass: Secret) -> Self {
        Self { rank, name, pass, left: VISITS - 1, next: Instant::now() }
    }

    /// Once more, unless it was often.
    fn again(mut self, now: Instant) -> Option<Self> {
        self.left = self.left.checked_sub(1)?;
        self.next = now + VISITS_APART;
        Some(self)
    }
}

/// One that is lent to.
struct Lodger {
    visit: Visit,
    nonce: Nonce,
    connection: Connection,
    proved: bool,
    /// How many tensors had been declared when it was last seen to; those that it was offered.
    seen: usize,
    offered: BTreeSet<TensorId>,
    /// Of these, those that it has said it reads: it says so once.
    borrowed: BTreeSet<TensorId>,
    /// The socket takes no more for now.
    full: bool,
}

impl Lodger {
    fn new(meets: &UserDirectory, visit: Visit) -> Result<Self, Unshared> {
        let Visit { ref name, ref pass, .. } = visit;
        let nonce: Nonce = random::bytes().map_err(system("draw a number"))?;
        let path = meets.make()?.join(lending::socket_name(name));
        let connection = Connection::connect_to(&path).map_err(system("connect to a borrower"))?;
        if !connection.is_neighbours().map_err(system("ask who borrows"))? {
            return Err(Unshared::NoNeighbour);
        }
        let proof = lending::proof(pass, End::Lender, name, &nonce);
        say(&connection, &Word::Lender { nonce, proof }, &[]).map_err(system("speak to a borrower"))?;
        let (proved, seen, offered, borrowed, full) = (false, 0, BTreeSet::new(), BTreeSet::new(), false);
        Ok(Self { visit, nonce, connection, proved, seen, offered, borrowed, full })
    }

    /// Hears it, and offers it what it was not offered; whether it stays, and whether anything was done.
    fn look(&mut self, remote: &mut RemoteShard<Mirrored>, declared: usize) -> (bool, bool) {
        let mut busy = false;
        // What more it says is heard at the next look: others are seen to between.
        for _ in 0..MOST_WORDS {
            let Visit { rank, ref name, ref pass, .. } = self.visit;
            match hear_words(&self.connection) {
                Heard::Nothing => break,
                Heard::Word(Word::Borrower { proof }, _)
                    if !self.proved && lending::proves(pass, End::Borrower, name, &self.nonce, &proof) =>
                {
                    (self.proved, busy) = (true, true);
                }
                Heard::Word(Word::Borrowed { tensor }, _)
                    if self.offered.contains(&tensor) && self.borrowed.insert(tensor) =>
                {
                    busy = true;
                    remote.lend((rank, name), tensor);
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
                    not_shared(None, Some(self.visit.rank), &error);
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

/// Those that a proxy lends to, and those that it is to go to again.
#[derive(Default)]
pub(super) struct Lodgers {
    inside: Vec<Lodger>,
    outside: Vec<Visit>,
}

impl Lodgers {
    /// Goes to one that has come to be fed, and would be lent to.
    pub(super) fn visit(&mut self, meets: &UserDirectory, visit: Visit) {
        if self.inside.len() + self.outside.len() >= MOST_LODGERS {
            return;
        }
        match Lodger::new(meets, visit) {
            Ok(lodger) => self.inside.push(lodger),
            // Others fill its socket, or this process has as many descriptors as it may have.
            Err(Unshared::System {
                errno: Errno::AGAIN | Errno::INTR | Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM,
                ..
            }) => {
                self.outside.extend(visit.again(Instant::now()));
            }
            // It may be on another host behind the same address, or of another user.
            Err(error) => tracing::debug!(%error, "a worker of this host is not lent to"),
        }
    }

    /// Whether one is to be gone to soon.
    pub(super) fn is_pressing(&self) -> bool {
        !self.outside.is_empty()
    }

    /// Nothing more is offered, as what was is not kept there any more.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Sees to each; whether anything was done.
    pub(super) fn look(
        &mut self,
        meets: &UserDirectory,
        remote: &mut RemoteShard<Mirrored>,
        declared: usize,
        now: Instant,
    ) -> bool {
        let mut busy = false;
        for visit in self.outside.extract_if(.., |visit| visit.next <= now).collect::<Vec<_>>() {
            if remote.lodges((visit.rank, &visit.name)) {
                self.visit(meets, visit);
            }
        }
        let Self { inside, outside } = self;
        inside.retain_mut(|lodger| {
            if !remote.lodges((lodger.visit.rank, &lodger.visit.name)) {
                return false;
            }
            let (stays, did) = lodger.look(remote, declared);
            busy |= did;
            if !stays && !lodger.proved {
                outside.extend(lodger.visit.again(now));
            }
            stays
        });
        busy
    }

    fn fds(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        self.inside.iter().map(|lodger| {
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
