//! A tensor, as a worker pushes and pulls it.
//!
//! The way of a push whose bytes already stand in the lane: one look at the position, one look at each shard's count of folded
//! chunks, 64 bytes into each shard's ring. The way of a pull in place: one look at each shard's progress. Neither copies,
//! neither makes a system call while the shards are awake, and neither costs more for a large tensor than for a small one.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | a tensor, and the waits that pushes and pulls share |
//! | `declare.rs` | declaring it on every server, mapping its memory |
//! | `push.rs` | contributions |
//! | `carry.rs` | what a filter holds back of them |
//! | `sparse.rs`, `factors.rs` | those of which some elements are given, or two factors |
//! | `divide.rs` | contributions of which the program itself says what is sent |
//! | `pull.rs` | values, in place or copied |
//! | `gather.rs` | values of some elements |
//! | `state.rs` | first values, the optimizer's state, and putting them back |

mod carry;
mod declare;
mod divide;
mod factors;
mod gather;
mod pull;
mod push;
mod sparse;
mod state;

pub(super) use declare::Progress;
pub use declare::{Declaration, propagation};
pub use divide::Divided;
pub use pull::Asked;

use self::carry::Carry;
use super::Error;
use super::circle::{Circle, LOOK_EVERY};
use super::job::Inner;
use super::link::{Link, RemoteHome, Rooms, Waited, lock};
use crate::turn::{Taken, Turn};
use crate::wait::{Deadline, INTERRUPT_EVERY};
use penstock_fabric::doorbell::single_chunks;
use penstock_fabric::memory::{OwnLane, ValueCopy, WorkerMemory};
use penstock_fabric::region::Mapping;
use penstock_fabric::sync::Ordering;
use penstock_proto::TensorId;
use penstock_proto::adaptive::{Adaptive, Controller};
use penstock_proto::factors::LowRank;
use penstock_proto::knot::Goal;
use penstock_proto::message::{Answer, Ask};
use penstock_proto::placement::Extent;
use penstock_proto::spec::TensorSpec;
use penstock_proto::submission::{NO_TICKET, Submission};
use penstock_proto::worker::Position;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// One shard that is home of some of the tensor.
#[derive(Debug)]
struct HomeShard {
    /// Its place among the tensor's.
    place: usize,
    server: usize,
    shard: u32,
    /// Chunks homed there.
    chunks: u64,
    /// Those of the server.
    extent: Extent,
    /// Chunk contributions handed to it so far. Written by the thread that has the lane's turn.
    submitted: AtomicU64,
    /// Of a server on another host: what the proxy and the tensor tell each other.
    remote: Option<Arc<RemoteHome>>,
}

/// For each home, in their order, the ticket that one call waits for there: tickets of other calls do not concern it.
type Tickets = SmallVec<[u64; 4]>;

/// A tensor of a job.
pub struct Tensor {
    job: Arc<Inner>,
    id: TensorId,
    spec: TensorSpec,
    /// What chooses the slack of pulls that name none.
    adaptive: Option<(Adaptive, Arc<Mutex<Controller>>)>,
    memory: WorkerMemory,
    homes: Vec<HomeShard>,
    /// Held to look at it or to change it, never while its thread waits.
    position: Mutex<Position>,
    /// Of the threads that write the lane.
    lane_turn: Turn,
    /// Locked only by the thread that has its turn.
    lane: Mutex<OwnLane>,
    /// Whether contributions may travel as factors.
    low_rank: Option<LowRank>,
    /// What a filter of contributions holds back; `None`: there is no such filter. Locked likewise.
    carry: Option<Mutex<Carry>>,
    /// Whether a filter may hold back some of the values.
    holds_back: bool,
    /// Whether it does so by a filter.
    filtered: bool,
    /// Whether that filter follows the network.
    filter_follows: bool,
    /// Whether this worker has given the tensor its first value, which is given once.
    is_given: AtomicBool,
    /// Whether the tensor was seen to have a value; it never loses it.
    has_value: AtomicBool,
    /// The stamp + 1 of the last push that was a flush; 0: none.
    flushed: AtomicU64,
    /// How often what is due, or the lane, has changed where there is a carry: for who looks at it and comes back.
    changes: AtomicU64,
    /// How often this worker has loaded something. Of interest for other hosts only, as below.
    loads: AtomicU64,
    /// The same, and barriers passed, when the value was last fetched from every home.
    seen_loads: AtomicU64,
    seen_barriers: AtomicU64,
    /// Of the threads that have the optimizer's state sent: there is one place for it.
    state_turn: Turn,
    staleness: AtomicU64,
    mirror: OnceLock<Mirror>,
}

/// A copy of the value that is looked at where it stands.
#[derive(Debug)]
struct Mirror {
    mapping: Arc<Mapping>,
    /// Of the threads that fill it. A value that is published as fast as it is copied takes the one inside until its deadline.
    turn: Turn,
    /// Locked only by the thread that has its turn.
    copy: Mutex<ValueCopy>,
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tensor").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl Tensor {
    /// The declaration, with the consistency that holds.
    pub fn spec(&self) -> &TensorSpec {
        &self.spec
    }

    /// Chunks.
    pub fn chunks(&self) -> u32 {
        self.memory.cut().chunks()
    }

    /// The published value, to be looked at after [`Tensor::pull`]; read-only.
    pub fn model(&self) -> &Arc<Mapping> {
        self.memory.value()
    }

    /// This worker's lane, to be filled for the next push. Waits until the homes have taken what stands in it. A thread that
    /// writes there between a push and the next call of this may spoil this worker's contribution: from now on what goes to
    /// other hosts is copied out of it first. Refused while parts of a contribution stand there, which would be lost.
    pub fn lane(&self, timeout: Option<Duration>) -> Result<&Arc<Mapping>, Error> {
        self.job.fate.check()?;
        self.check_for_parts()?;
        // Before the wait: what another thread pushes behind it would be sent from there.
        for remote in self.homes.iter().filter_map(|home| home.remote.as_ref()) {
            remote.is_lane_exposed.store(true, Ordering::Relaxed);
        }
        self.wait_for_lane(self.job.deadline(timeout))?;
        // Another thread may have pushed one meanwhile.
        self.lend(false)
    }

    /// The same for a caller that never writes there after the push: what goes to other hosts is sent from where it stands. It
    /// keeps the parts that stand there, and adds to them itself.
    pub fn lane_until_push(&self, timeout: Option<Duration>) -> Result<&Arc<Mapping>, Error> {
        self.job.fate.check()?;
        self.wait_for_lane(self.job.deadline(timeout))?;
        self.lend(true)
    }

    fn lend(&self, with_parts: bool) -> Result<&Arc<Mapping>, Error> {
        let clock = self.job.shown_clock();
        let mut position = lock(&self.position);
        if !with_parts && position.is_open(clock) {
            return Err(Error::PartWaits { name: self.spec.name.clone() });
        }
        position.lent(clock);
        Ok(self.memory.lane())
    }

    fn check_for_parts(&self) -> Result<(), Error> {
        match lock(&self.position).is_open(self.job.shown_clock()) {
            true => Err(Error::PartWaits { name: self.spec.name.clone() }),
            false => Ok(()),
        }
    }

    /// A private copy, filled by [`Tensor::pull_mirror`].
    pub fn mirror(&self) -> Result<&Arc<Mapping>, Error> {
        Ok(&self.mirrored()?.mapping)
    }

    fn mirrored(&self) -> Result<&Mirror, Error> {
        if self.mirror.get().is_none() {
            let copy = ValueCopy::new(self.spec.bytes() as usize).map_err(Error::system("make a mirror"))?;
            let mapping = Arc::clone(copy.mapping());
            let _ = self.mirror.set(Mirror { mapping, turn: Turn::default(), copy: Mutex::new(copy) });
        }
        Ok(self.mirror.get().expect("it was just set"))
    }

    /// Least version that all homes have published; `None` before the tensor has a value.
    pub fn version(&self) -> Option<u64> {
        self.homes.iter().map(|home| self.progress(home)).min()?.checked_sub(1)
    }

    /// Iterations that this worker has completed.
    pub fn iteration(&self) -> u64 {
        self.job.shown_clock()
    }

    /// How many iterations the last pull was behind this worker.
    pub fn staleness(&self) -> u64 {
        self.staleness.load(Ordering::Relaxed)
    }

    /// Whether all of the value is read in memory that other workers of this host lend, for now.
    pub fn is_borrowed(&self) -> bool {
        let borrows = |home: &HomeShard| {
            home.remote.as_ref().is_some_and(|remote| remote.borrows.load(Ordering::Relaxed))
        };
        !self.homes.is_empty() && self.homes.iter().all(borrows)
    }

    fn progress(&self, home: &HomeShard) -> u64 {
        self.memory.progress(home.server, home.shard).expect("a home has chunks")
    }

    fn lane_is_free(&self, home: &HomeShard) -> bool {
        let folded = self.memory.folded(home.server, home.shard).expect("a home has chunks");
        folded >= home.submitted.load(Ordering::Relaxed)
    }

    /// Waits until each home is `done`; what the wait cost is counted.
    fn wait(&self, deadline: Deadline, done: impl Fn(&HomeShard) -> bool) -> Result<Waited, Error> {
        if self.homes.iter().all(&done) {
            return Ok(Waited::Done);
        }
        self.wait_since(Instant::now(), deadline, false, done)
    }

    /// The same for a wait that began just now, `since` when the clock was looked at: a look at the clock costs a hundredth of a
    /// push of a small tensor. `singly`: for chunks, each by itself.
    fn wait_since(
        &self,
        since: Instant,
        deadline: Deadline,
        singly: bool,
        done: impl Fn(&HomeShard) -> bool,
    ) -> Result<Waited, Error> {
        let links = self.job.links();
        let what = if singly { single_chunks(self.id + 1) } else { self.id + 1 };
        let mut result = Ok(Waited::Done);
        for home in &self.homes {
            if done(home) {
                continue;
            }
            let link = links.get(home.server).ok_or(Error::Closed)?;
            result = link.wait(what, deadline, || done(home));
            if result != Ok(Waited::Done) {
                break;
            }
        }
        let nanos = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.job.counters.waited_nanos.fetch_add(nanos, Ordering::Relaxed);
        result
    }

    /// The same, for what others have to do so that the tensor reaches `version`: a wait that has become long asks now and
    /// then whether it is part of a circle.
    fn wait_long(
        &self,
        deadline: Deadline,
        version: u64,
        done: impl Fn(&HomeShard) -> bool,
    ) -> Result<Waited, Error> {
        self.wait_long_for(deadline, version, false, done)
    }

    /// The same, with `singly` as in [`Tensor::wait_since`].
    fn wait_long_for(
        &self,
        deadline: Deadline,
        version: u64,
        singly: bool,
        done: impl Fn(&HomeShard) -> bool,
    ) -> Result<Waited, Error> {
        // A wait that is already over looks at no clock.
        if self.homes.iter().all(&done) {
            return Ok(Waited::Done);
        }
        let mut now = Instant::now();
        let mut circle = Circle::begun(now, &self.job, deadline);
        loop {
            let until = deadline.at_most(now.duration_since(deadline.began()) + LOOK_EVERY);
            let result = self.wait_since(now, until, singly, &done);
            if result != Ok(Waited::TimedOut) || deadline.left().is_zero() {
                return result;
            }
            circle.look(|| self.goal(version, deadline))?;
            now = Instant::now();
        }
    }

    /// Which workers the wait for `version` is for; `None` if it is for this worker itself.
    fn goal(&self, version: u64, deadline: Deadline) -> Result<Option<Goal>, Error> {
        // What this worker has done itself must have arrived, wherever another may wait for it.
        for link in self.job.links().iter() {
            link.drain("take what this worker has done", Deadline::new(LOOK_EVERY))?;
        }
        let ranks = self.missing(version, deadline.for_a_look())?;
        let waits = !ranks.is_empty() && !ranks.contains(&self.job.rank);
        Ok(waits.then(|| Goal::Ranks { what: format!("`{}`", self.spec.name), ranks }))
    }

    /// Bounds of the slack, where it is chosen by waiting.
    pub fn adaptive(&self) -> Option<Adaptive> {
        self.adaptive.as_ref().map(|(settings, _)| *settings)
    }

    /// The slack of a pull that names none now; `None` is unbounded.
    pub fn slack(&self) -> Option<u32> {
        match &self.adaptive {
            Some((_, controller)) => Some(lock(controller).slack()),
            None => self.spec.consistency.slack(),
        }
    }

    fn wait_for_value(&self, deadline: Deadline) -> Result<(), Error> {
        if self.has_value.load(Ordering::Relaxed) {
            return Ok(());
        }
        for home in &self.homes {
            match &home.remote {
                Some(remote) if !self.has_first(home) => self.want_first(home, remote, deadline)?,
                _ => {}
            }
        }
        match self.wait_long_for(deadline, 0, true, |home| self.has_first(home))? {
            Waited::TimedOut => {
                Err(Error::NoValue { name: self.spec.name.clone(), waited: deadline.waited() })
            }
            Waited::Done => {
                self.has_value.store(true, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    /// Whether all of the home's part has a value. Worker 0 gives it chunk by chunk, so that the last has one when all have: of a
    /// home on another host, which need not send the others for that.
    fn has_first(&self, home: &HomeShard) -> bool {
        match home.remote.as_ref().and_then(|remote| remote.chunks.last()) {
            Some(&last) if !self.spec.propagation.is_unasked() => self.memory.chunk_progress(last) > 0,
            _ => self.progress(home) > 0,
        }
    }

    /// Whether no part of a value was ever seen: of the homes on other hosts one has only what was asked for.
    fn may_lack_value(&self) -> bool {
        let has_some = |home: &HomeShard| match &home.remote {
            Some(remote) => remote.chunks.iter().any(|&chunk| self.memory.chunk_progress(chunk) > 0),
            None => self.progress(home) > 0,
        };
        !self.has_value.load(Ordering::Relaxed) && !self.homes.iter().any(has_some)
    }

    fn want_first(&self, home: &HomeShard, remote: &RemoteHome, deadline: Deadline) -> Result<(), Error> {
        match remote.chunks.len().checked_sub(1) {
            Some(last) if !self.spec.propagation.is_unasked() => {
                self.fetch_chunks(home, remote, &[last], 0, false, deadline).map(|_| ())
            }
            _ => self.want(home, 0, deadline),
        }
    }

    fn wait_for_lane(&self, deadline: Deadline) -> Result<(), Error> {
        // All of them at one look: homes are waited for one after the other, and another thread may push meanwhile.
        while !self.homes.iter().all(|home| self.lane_is_free(home)) {
            let version = lock(&self.position).at(0);
            let waited = self.wait_long(deadline, version, |home| self.lane_is_free(home))?;
            let is_late =
                || deadline.left().is_zero() && !self.homes.iter().all(|home| self.lane_is_free(home));
            if waited == Waited::TimedOut || is_late() {
                return Err(self.lane_timeout(version, deadline));
            }
        }
        Ok(())
    }

    /// Waits until no other thread of this worker writes the lane.
    fn take_turn(&self, deadline: Deadline) -> Result<Taken<'_>, Error> {
        self.lane_turn.take(|| {
            self.job.fate.check()?;
            self.job.fate.check_interrupt()?;
            let left = deadline.left();
            if left.is_zero() {
                return Err(self.lane_timeout(lock(&self.position).at(0), deadline));
            }
            Ok(left.min(INTERRUPT_EVERY))
        })
    }

    /// The lane is not free: the update with which the tensor reaches `version` is not folded.
    fn lane_timeout(&self, version: u64, deadline: Deadline) -> Error {
        let (name, waited) = (self.spec.name.clone(), deadline.waited());
        let iteration = version.saturating_sub(1);
        match self.whom(version, deadline, |home| !self.lane_is_free(home)) {
            Ok((missing, silent)) => Error::LaneTimeout { name, iteration, missing, silent, waited },
            Err(error) => error,
        }
    }

    /// Which peers a wait in vain for `version` was for: workers; or a server, if it does not name any, or if it is home of a
    /// part that `lags` although no worker is missing.
    fn whom(
        &self,
        version: u64,
        deadline: Deadline,
        lags: impl Fn(&HomeShard) -> bool,
    ) -> Result<(Vec<u32>, Option<u32>), Error> {
        match self.missing(version, deadline.for_questions()) {
            Ok(missing) if missing.is_empty() => Ok((missing, Some(self.home_that(lags)))),
            Ok(missing) => Ok((missing, None)),
            Err(Error::Unanswered { server, .. }) => Ok((Vec::new(), Some(server))),
            Err(error) => Err(error),
        }
    }

    /// The server that is home of a part which `lags`.
    fn home_that(&self, lags: impl Fn(&HomeShard) -> bool) -> u32 {
        self.homes.iter().find(|home| lags(home)).map_or(0, |home| home.server as u32)
    }

    /// Which workers keep the tensor from reaching `version`, as the servers say; an error that names the server which does not.
    fn missing(&self, version: u64, deadline: Deadline) -> Result<Vec<u32>, Error> {
        let mut ranks = Vec::new();
        for link in self.job.links().iter() {
            let ask = Ask::Missing { tensor: self.id, version };
            match link.ask(ask, "say whom a wait is for", deadline) {
                Ok((Answer::Missing { ranks: more }, _)) => ranks.extend(more),
                Ok((other, _)) => return Err(link.misunderstood(&other)),
                Err(error) => return Err(error),
            }
        }
        ranks.sort_unstable();
        ranks.dedup();
        Ok(ranks)
    }

    fn check_size(&self, got: usize) -> Result<(), Error> {
        let expected = self.spec.bytes() as usize;
        if got == expected {
            return Ok(());
        }
        Err(Error::WrongSize { name: self.spec.name.clone(), expected, got })
    }

    /// Asks a home on another host to send what has changed and has `version`, and the rest once it has it; or the optimizer's
    /// state. The ticket comes back behind what is there now.
    fn fetch(&self, home: &HomeShard, version: u64, state: bool, deadline: Deadline) -> Result<u64, Error> {
        let Some(remote) = &home.remote else { return Ok(NO_TICKET) };
        let links = self.job.links();
        let mut room = links.get(home.server).ok_or(Error::Closed)?.room(home.shard, 1, deadline)?;
        // Drawn only now: a ticket that was never told would be waited for without end.
        let mut ticket = NO_TICKET;
        room.submit_made(|| {
            ticket = remote.ticket.fetch_add(1, Ordering::Relaxed) + 1;
            Submission::Fetch { tensor: self.id, state, version, ticket }
        });
        if !state {
            self.has_asked(remote);
        }
        Ok(ticket)
    }

    /// The value was asked for: from now on a home that broadcasts sends what is new unasked.
    fn has_asked(&self, remote: &RemoteHome) {
        if self.spec.propagation.is_unasked() {
            remote.is_sent.store(true, Ordering::Relaxed);
        }
    }

    /// Asks a home on another host to send `version` once it is there.
    fn want(&self, home: &HomeShard, version: u64, deadline: Deadline) -> Result<(), Error> {
        let links = self.job.links();
        let mut room = links.get(home.server).ok_or(Error::Closed)?.room(home.shard, 1, deadline)?;
        room.submit(&Submission::Fetch { tensor: self.id, state: false, version, ticket: NO_TICKET });
        if let Some(remote) = &home.remote {
            self.has_asked(remote);
        }
        Ok(())
    }

    /// Whether what was asked of a home on another host with its ticket has come.
    fn is_fetched(home: &HomeShard, tickets: &Tickets) -> bool {
        home.remote.as_ref().is_none_or(|remote| remote.has_come(tickets[home.place]))
    }

    /// Brings the mirrors of homes on other hosts up to date, whatever their version.
    fn refresh(&self, deadline: Deadline) -> Result<(), Error> {
        if self.homes.iter().all(|home| home.remote.is_none()) {
            return Ok(());
        }
        let fetch = |home| self.fetch(home, 0, false, deadline);
        let tickets = self.homes.iter().map(fetch).collect::<Result<Tickets, Error>>()?;
        match self.wait(deadline, |home| Self::is_fetched(home, &tickets))? {
            Waited::Done => Ok(()),
            Waited::TimedOut => {
                let server = self.home_that(|home| !Self::is_fetched(home, &tickets));
                let what = "send a tensor's newest value";
                Err(Error::Unanswered { server, what, waited: deadline.waited() })
            }
        }
    }

    /// Waits until there is room at each home, in their order, for as many submissions as `count` says.
    fn rooms<'a>(
        &self,
        links: &'a [Link],
        count: impl Fn(&HomeShard) -> u64,
        deadline: Deadline,
    ) -> Result<Rooms<'a>, Error> {
        let mut rooms = Rooms::new();
        for home in &self.homes {
            let link = links.get(home.server).ok_or(Error::Closed)?;
            rooms.push(link.room(home.shard, count(home), deadline)?);
        }
        Ok(rooms)
    }
}
