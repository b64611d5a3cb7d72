//! The end that borrows: it expects its lender, takes what that offers, and says what of it it reads.

use super::super::allowance::{Allowance, For};
use super::super::mirrored::Mirrored;
use super::report::{Seldom, not_shared};
use super::{Heard, Unshared, hear, hear_words, say, system};
use crate::user_directory::UserDirectory;
use crate::wire::random;
use penstock_fabric::net::remote_shard::{Mirrored as _, RemoteShard};
use penstock_fabric::socket::{Connection, Expecting};
use penstock_proto::message::Secret;
use penstock_proto::overlay::Pass;
use penstock_proto::overlay::lending::{self, End, Rendezvous, Word};
use penstock_proto::{Rank, TensorId};
use rustix::event::PollFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Processes that have connected and proved nothing so far, at most: one more is refused, and may come again.
pub(super) const MOST_PENDING: usize = 8;
/// Connections that one look takes, at most. Any process of the user can make some.
pub(super) const MOST_ACCEPTED: usize = 8;
/// Time for which none are accepted behind a look that took any, or could not.
pub(super) const ACCEPTS_APART: Duration = Duration::from_millis(20);
/// Time for which one is heard that has connected: who knows the pass says so with its first word.
pub(super) const HEARD_FOR: Duration = Duration::from_secs(1);
/// Time for which a lender is expected that feeds this worker.
pub(super) const EXPECTED_FOR: Duration = Duration::from_secs(10);
/// Offers that one look takes, at most.
const MOST_OFFERS: usize = 256;
/// Offers that are kept before their tensors are declared here, at most.
pub(super) const MOST_EARLY: usize = 256;

/// An offer of a tensor that is not declared here so far: its descriptor, of which one is kept whatever others keep, and those behind it
/// as far as there is room.
type Early = (OwnedFd, Option<Allowance>);

/// What a proxy borrows: of one parent, for all tensors.
pub(in super::super) struct Borrower {
    rendezvous: Rendezvous,
    lender: Rank,
    pass: Secret,
    /// Until the lender has come, or for so long.
    pub(super) socket: Option<Expecting>,
    pub(super) expected_until: Option<Instant>,
    /// When connections are accepted next.
    retry_accept_at: Option<Instant>,
    /// Those that have connected, and until when each is heard.
    pub(super) pending: Vec<(Connection, Instant)>,
    /// To the lender.
    pub(super) connection: Option<Connection>,
    /// Nothing more is taken of the lender for now.
    pub(super) is_full: bool,
    /// What was offered on this connection so far: each tensor once, and once more after it was given back.
    heard: BTreeSet<TensorId>,
    /// What is borrowed no more, as was said, and not offered again so far.
    pub(super) returned: BTreeSet<TensorId>,
    /// What was offered before it was declared here.
    pub(super) early: BTreeMap<TensorId, Early>,
    /// What was offered and is not borrowed.
    pub(in super::super) offered: BTreeSet<TensorId>,
}

impl Borrower {
    /// Expects this parent, of the job's secret and the pass for it.
    pub(in super::super) fn open(
        meets: &UserDirectory,
        lender: Rank,
        pass: &Pass,
        secret: &Secret,
    ) -> Result<Self, Unshared> {
        static CLEANED: Seldom = Seldom::new();
        let directory = meets.make()?;
        if CLEANED.is_time(Instant::now()) {
            Expecting::remove_left_behind(directory, lending::SOCKET_PREFIX);
        }
        let rendezvous: Rendezvous = random::bytes().map_err(system("draw a name"))?;
        let socket = Some(Expecting::bind(&directory.join(lending::socket_name(&rendezvous)))?);
        Ok(Self {
            rendezvous,
            lender,
            pass: pass.secret(secret),
            socket,
            expected_until: None,
            retry_accept_at: None,
            pending: Vec::new(),
            connection: None,
            is_full: false,
            heard: BTreeSet::new(),
            returned: BTreeSet::new(),
            early: BTreeMap::new(),
            offered: BTreeSet::new(),
        })
    }

    pub(in super::super) fn rendezvous(&self) -> Rendezvous {
        self.rendezvous
    }

    pub(in super::super) fn lender(&self) -> Rank {
        self.lender
    }

    /// Whether it is to be looked at soon, whatever is ready.
    pub(in super::super) fn is_pressing(&self) -> bool {
        self.socket.is_some() && (self.retry_accept_at.is_some() || !self.pending.is_empty())
    }

    /// Takes what has come; whether any of that is the lender's. What strangers do is no work: nobody is kept from resting by it.
    pub(in super::super) fn look(&mut self, remote: &mut RemoteShard<Mirrored>, now: Instant) -> bool {
        if self.expected_until.is_none() && remote.feeders().any(|(rank, _)| rank == self.lender) {
            self.expected_until = Some(now + EXPECTED_FOR);
        }
        let busy = self.find_lender(now);
        self.take_early(remote);
        self.take_offers(remote) || busy
    }

    /// Finds the lender among those that have connected: by what it proves, and then proves itself in turn.
    fn find_lender(&mut self, now: Instant) -> bool {
        if self.socket.is_none() {
            return false;
        }
        // Those that have come are heard before others are accepted, or refused.
        if self.hear_pending(now) {
            return true;
        }
        if self.expected_until.is_some_and(|until| until <= now) {
            not_shared(None, Some(self.lender), &Unshared::NotCome);
            (self.socket, self.pending) = (None, Vec::new());
            return false;
        }
        if self.retry_accept_at.is_none_or(|at| at <= now) {
            self.retry_accept_at = self.accept(now).then(|| now + ACCEPTS_APART);
        }
        self.hear_pending(now)
    }

    /// Accepts some connections; whether there were any, or might be.
    fn accept(&mut self, now: Instant) -> bool {
        let Some(socket) = &self.socket else { return false };
        for taken in 0..MOST_ACCEPTED {
            match socket.accept() {
                // Nothing is said to another user's process, and nothing that it says is read.
                Ok(connection) if connection.is_neighbours().unwrap_or(false) => {
                    if self.pending.len() < MOST_PENDING {
                        self.pending.push((connection, now + HEARD_FOR));
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

    /// Hears those that have connected; whether the lender was among them.
    fn hear_pending(&mut self, now: Instant) -> bool {
        let (rendezvous, pass) = (&self.rendezvous, &self.pass);
        let mut at = 0;
        while let Some((connection, until)) = self.pending.get(at) {
            match hear_words(connection) {
                Heard::Nothing if now < *until => at += 1,
                Heard::Word(Word::Lender { nonce, proof }, _)
                    if lending::proves(pass, End::Lender, rendezvous, &nonce, &proof) =>
                {
                    let proof = lending::proof(pass, End::Borrower, rendezvous, &nonce);
                    // Its descriptors come from now on.
                    if connection.let_descriptors_come(true).is_ok()
                        && say(connection, &Word::Borrower { proof }, &[]).is_ok()
                    {
                        self.connection = Some(self.pending.swap_remove(at).0);
                    }
                    // Nobody comes in behind it.
                    (self.socket, self.pending) = (None, Vec::new());
                    return true;
                }
                _ => _ = self.pending.remove(at),
            }
        }
        false
    }

    /// Takes what the lender offers; whether anything.
    fn take_offers(&mut self, remote: &mut RemoteShard<Mirrored>) -> bool {
        let mut busy = false;
        self.is_full = false;
        for _ in 0..MOST_OFFERS {
            let Some(connection) = &self.connection else { break };
            // A descriptor that comes is here before it can be judged.
            let Some((allowance, early)) = self.room() else {
                self.is_full = true;
                break;
            };
            match hear(connection) {
                Heard::Nothing => break,
                Heard::Word(Word::Lent { tensor }, descriptors) if self.heard.insert(tensor) => {
                    let Ok([fd]) = <[OwnedFd; 1]>::try_from(descriptors) else {
                        self.close(remote);
                        break;
                    };
                    busy = true;
                    if remote.tensor(tensor).is_some() {
                        self.take(tensor, (fd, allowance), remote);
                    } else {
                        self.early.insert(tensor, (fd, early));
                    }
                }
                Heard::Word(..) | Heard::Over => self.close(remote),
            }
        }
        busy
    }

    /// For a descriptor, of a tensor that is declared here or is not.
    fn room(&self) -> Option<(Allowance, Option<Allowance>)> {
        let early = match self.early.len() {
            0 => None,
            1..MOST_EARLY => Some(Allowance::take(For::EARLY)?),
            _ => return None,
        };
        Some((Allowance::take(For::OFFER)?, early))
    }

    /// Takes what was offered early and has been declared since.
    fn take_early(&mut self, remote: &mut RemoteShard<Mirrored>) {
        for (id, (fd, early)) in std::mem::take(&mut self.early) {
            let is_declared = remote.tensor(id).is_some();
            match is_declared.then(|| Allowance::take(For::OFFER)).flatten() {
                Some(allowance) => self.take(id, (fd, allowance), remote),
                None => _ = self.early.insert(id, (fd, early)),
            }
        }
    }

    fn take(
        &mut self,
        id: TensorId,
        (fd, allowance): (OwnedFd, Allowance),
        remote: &mut RemoteShard<Mirrored>,
    ) {
        let Some(mirrored) = remote.tensor(id) else { return };
        if mirrored.is_borrowed() {
            // Of before values were cut anew.
            if mirrored.reads_in(fd.as_fd()) {
                return self.say_borrowed(id);
            }
            remote.take_one_back(id);
        }
        // What its lender said before this counted on memory that is not read any more.
        if self.returned.remove(&id) {
            remote.renew(id);
        }
        let Some(mirrored) = remote.tensor_mut(id) else { return };
        match mirrored.offer(fd, allowance) {
            Ok(true) => _ = self.offered.insert(id),
            Ok(false) => {}
            Err(error) => not_shared(Some(id), Some(self.lender), &error),
        }
    }

    /// Hangs up, and gives up what was offered and is not borrowed: whoever lends no more may keep something else there. What was borrowed
    /// stays so, as of what is new there it is said elsewhere.
    pub(in super::super) fn close(&mut self, remote: &mut RemoteShard<Mirrored>) {
        self.connection = None;
        self.early.clear();
        for id in std::mem::take(&mut self.offered) {
            remote.tensor_mut(id).into_iter().for_each(Mirrored::decline);
        }
    }

    /// Borrows what was offered and is new enough; whether anything. What the lender need not send any more it is told.
    pub(in super::super) fn borrow(&mut self, remote: &mut RemoteShard<Mirrored>) -> bool {
        let before = self.offered.len();
        let lender = self.lender;
        for id in std::mem::take(&mut self.offered) {
            if remote.may_borrow(id, lender) && remote.borrow(id, lender) {
                self.say_borrowed(id);
                tracing::info!(tensor = id, lender, "values are read in another worker's memory");
            } else if remote.tensor(id).is_some_and(Mirrored::is_offered) {
                // One that cannot be borrowed has said so.
                self.offered.insert(id);
            }
        }
        self.offered.len() < before
    }

    fn say_borrowed(&self, id: TensorId) {
        let told = self.connection.as_ref().map(|it| say(it, &Word::Borrowed { tensor: id }, &[]));
        // It goes on sending frames, which say no less.
        if !matches!(told, Some(Ok(()))) {
            let lender = self.lender;
            tracing::debug!(tensor = id, lender, "a lender was not told that its memory is read");
        }
    }

    /// Says that tensors are borrowed no more; whether the lender will hear it. Until it has it sends nothing of them.
    pub(in super::super) fn say_returned(&mut self, ids: &[TensorId]) -> bool {
        let Some(connection) = &self.connection else { return false };
        ids.iter().all(|&id| {
            self.heard.remove(&id);
            self.returned.insert(id);
            say(connection, &Word::Returned { tensor: id }, &[]).is_ok()
        })
    }

    pub(super) fn fds(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let socket = self.socket.iter().filter(|_| self.retry_accept_at.is_none()).map(AsFd::as_fd);
        let lender = self.connection.iter().filter(|_| !self.is_full).map(AsFd::as_fd);
        let pending = self.pending.iter().map(|(connection, _)| connection.as_fd());
        socket.chain(pending).chain(lender).map(|fd| (fd, PollFlags::IN))
    }
}
