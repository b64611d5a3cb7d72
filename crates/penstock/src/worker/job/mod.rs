//! A job, as one of its workers holds it.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | what tensors and tables need of it; barriers |
//! | [`clock`] | the worker's clock: what is stamped with it, when it moves, which shards are told |
//! | [`first`] | what worker 0 does for all, while the others wait |
//! | [`join`] | joining the servers |

mod clock;
mod first;
mod join;

pub use join::Membership;

use self::first::Deeds;
use super::Error;
use super::circle::{Circle, Company};
use super::leaving::Leaving;
use super::link::{Introduction, Link, Met, Passed, lock};
use super::table::{Progress, Relay, RelaySetup, Table, TableDeclaration, TableInner};
use super::tensor::{Declaration, Progress as TensorProgress, Tensor};
use crate::options::Options;
use crate::server::{Server, StartError};
use crate::turn::{Floor, Turn};
use crate::wait::{Crowd, Deadline, INTERRUPT_EVERY};
use crate::wire::dial::Dialer;
use crate::worker::fate::Fate;
use penstock_fabric::net::stream::Traffic;
use penstock_fabric::sync::Ordering;
use penstock_proto::Rank;
use penstock_proto::adaptive::{Adaptive, Controller};
use penstock_proto::compress::Squeezed;
use penstock_proto::handshake::{Purpose, Session};
use penstock_proto::knot::Goal;
use penstock_proto::message::{Answer, Ask, LEFT};
use penstock_proto::peer::PeerId;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

/// What a worker has done since it joined.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stats {
    /// Bytes of contributions that left.
    pub pushed_bytes: u64,
    /// Bytes of values that were copied out or shown in place.
    pub pulled_bytes: u64,
    /// Bytes that connections by TCP to servers, and between workers that pass values on, took, before encryption: there is seen what
    /// filters and encodings save.
    pub sent_bytes: u64,
    /// Bytes that these brought.
    pub received_bytes: u64,
    /// Connections to other workers that feed this one now, over all servers and shards, and to those that it feeds.
    pub parents: usize,
    /// See there.
    pub children: usize,
    /// Chunks of contributions to tensors that may be compressed, on connections by TCP to servers.
    pub squeezed_sent: Squeezed,
    /// Chunks of their values that came, and were news here.
    pub squeezed_received: Squeezed,
    /// Contributions that left.
    pub pushes: u64,
    /// Pulls.
    pub pulls: u64,
    /// Time spent waiting for the others.
    pub waited: Duration,
    /// Most iterations that a pull was behind.
    pub max_staleness: u64,
    /// Copies of chunks that were repeated because the home was inside.
    pub copies_retried: u64,
    /// The most slack that is in force where it is chosen by waiting.
    pub slack: u32,
}

/// Which workers were at a barrier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gathered {
    /// Workers that stood there.
    pub ranks: Vec<Rank>,
    /// Workers that had left the job by then. Those that are in neither list were lost.
    pub left: Vec<Rank>,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) pushed_bytes: AtomicU64,
    pub(super) pulled_bytes: AtomicU64,
    pub(super) traffic: Arc<Traffic>,
    pub(super) pushes: AtomicU64,
    pub(super) pulls: AtomicU64,
    pub(super) waited_nanos: AtomicU64,
    pub(super) max_staleness: AtomicU64,
    pub(super) copies_retried: AtomicU64,
}

/// A worker that is not waited for any more.
struct Gone {
    /// When this one heard of it.
    since: Instant,
    /// Whether it had left: it was not lost.
    left: bool,
}

/// What chooses slack.
#[derive(Default)]
struct Choosing {
    /// By their bounds.
    controllers: BTreeMap<Adaptive, Arc<Mutex<Controller>>>,
    /// When the iteration began.
    began: Option<Instant>,
}

/// What a job's tensors need of it.
pub(super) struct Inner {
    /// A thread that needs the relays too locks these first, and none locks them twice at a time: it would stand behind a thread
    /// that leaves the job meanwhile, and that one behind it.
    pub(super) links: RwLock<Vec<Link>>,
    pub(super) fate: Arc<Fate>,
    pub(super) counters: Counters,
    /// Shared while something is stamped with the clock, so that none is stamped with the past; the clock moves for a
    /// thread that is alone.
    pub(super) stamping: Floor,
    /// Of the threads of this worker that come to a barrier.
    gathering: Turn,
    /// What worker 0 has done for all.
    deeds: Deeds,
    /// Barriers passed: what others did before one must be seen behind it, also on other hosts.
    barriers: AtomicU64,
    /// Bytes that each shard is home of, by server.
    pub(super) homed: Mutex<Vec<Vec<u64>>>,
    /// When this was made.
    made: Instant,
    /// From when on, in nanoseconds since then, all shards are to be told the clock again.
    tell_from: AtomicU64,
    /// Where the servers are, and who this worker is to them; `None` with a server in this process.
    membership: Option<(Membership, Session)>,
    /// Connections about items, by server.
    pub(super) relays: Mutex<BTreeMap<u32, Arc<Relay>>>,
    /// Made when slack is first chosen.
    adaptive: OnceLock<Mutex<Choosing>>,
    /// The tables, which are told of the clock. They live until they are dropped or the job ends, whether or not a handle is
    /// left: others wait for their rows.
    pub(super) tables: Mutex<Vec<Arc<TableInner>>>,
    /// By name, how far their declarations have come.
    pub(super) declared: Mutex<BTreeMap<String, Arc<Progress>>>,
    /// The same for tensors. They live until the job ends, whether or not a handle is left: the servers give this worker
    /// no second lane.
    pub(super) tensors: Mutex<BTreeMap<String, Arc<TensorProgress>>>,
    /// Whether other threads may use the job while one waits.
    pub(super) company: Company,
    /// Numbers long waits.
    pub(super) waits: AtomicU64,
    /// Workers that are not waited for any more.
    gone: Mutex<BTreeMap<Rank, Gone>>,
    pub(super) rank: Rank,
    /// Workers of the job.
    pub(super) size: u32,
    pub(super) options: Options,
}

impl Inner {
    /// Whether more of the job's threads are awake on this host than it has cores.
    pub(super) fn crowd(&self) -> Option<Arc<Crowd>> {
        self.links().first().map(|link| Arc::clone(link.crowd()))
    }

    /// How long a thread that stands in line behind other threads of this worker may sleep until it looks again.
    pub(super) fn look(&self, what: &str, deadline: Deadline) -> Result<Duration, Error> {
        self.fate.check()?;
        // Before a signal handler may fork: the rings are not the child's.
        self.fate.untold.tell();
        self.fate.look()?;
        let left = deadline.left();
        if left.is_zero() {
            return Err(Error::InLine { what: what.to_owned(), waited: deadline.waited() });
        }
        Ok(left.min(INTERRUPT_EVERY))
    }

    /// When this worker heard that another is no longer waited for.
    pub(super) fn gone_since(&self, rank: Rank) -> Option<Instant> {
        lock(&self.gone).get(&rank).map(|gone| gone.since)
    }

    /// Whether a worker that is gone had left: it was not lost.
    pub(super) fn has_left(&self, rank: Rank) -> bool {
        lock(&self.gone).get(&rank).is_some_and(|gone| gone.left)
    }

    /// Whether a worker is no longer waited for, if the server says so in time. Notes all that are not: where several are lost
    /// together, the time that their last rows are given runs for all of them at once.
    pub(super) fn is_gone(&self, rank: Rank, deadline: Deadline) -> Result<bool, Error> {
        if self.gone_since(rank).is_some() {
            return Ok(true);
        }
        let links = self.links();
        let first = links.first().ok_or(Error::Closed)?;
        match first.ask(Ask::Clocks, "tell the clocks", deadline) {
            Ok((Answer::Clocks { clocks }, _)) => {
                let (mut gone, now) = (lock(&self.gone), Instant::now());
                for (rank, &clock) in (0..).zip(&clocks).filter(|&(_, &clock)| clock < 0) {
                    gone.entry(rank).or_insert(Gone { since: now, left: clock == LEFT });
                }
                Ok(gone.contains_key(&rank))
            }
            Ok((other, _)) => Err(first.misunderstood(&other)),
            Err(Error::Unanswered { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The connection about items to a server, made when it is first needed.
    pub(super) fn relay(&self, server: u32) -> Result<Arc<Relay>, Error> {
        // Before the relays, which a barrier looks at while it holds the links.
        let lease = self.links().get(server as usize).map(|link| link.welcome.lease_ms);
        let mut relays = lock(&self.relays);
        if let Some(relay) = relays.get(&server) {
            return Ok(Arc::clone(relay));
        }
        let nowhere = || {
            let what = "rows are on another host than their home, which has no network address".to_owned();
            Error::Protocol { server, what }
        };
        let (membership, session) = self.membership.as_ref().ok_or_else(nowhere)?;
        let lease = lease.map_or(self.options.lease, Duration::from_millis);
        let address = membership.servers.get(server as usize).and_then(|endpoint| endpoint.tcp.clone());
        let Membership { job, secret, rank, .. } = membership;
        let dialer = Dialer::new(address.ok_or_else(nowhere)?, job, *secret, &self.options)
            .map_err(StartError::from)?
            .counting(&self.counters.traffic);
        let setup = RelaySetup {
            server,
            rank: *rank,
            purpose: Purpose::Items { peer: PeerId::worker(*rank), session: *session },
            dialer: Arc::new(dialer),
            fate: Arc::clone(&self.fate),
            // The servers', which may be another than this worker was told.
            lease,
        };
        let relay = Arc::new(Relay::start(setup)?);
        relays.insert(server, Arc::clone(&relay));
        Ok(relay)
    }

    pub(super) fn all_relays(&self) -> Vec<Arc<Relay>> {
        lock(&self.relays).values().cloned().collect()
    }

    /// What chooses slack between these bounds, for all tensors and tables of this worker.
    pub(super) fn adaptive(&self, settings: Adaptive) -> Arc<Mutex<Controller>> {
        let mut adaptive = lock(self.adaptive.get_or_init(Mutex::default));
        Arc::clone(
            adaptive
                .controllers
                .entry(settings)
                .or_insert_with(|| Arc::new(Mutex::new(Controller::new(settings)))),
        )
    }

    /// The most slack that is in force where it is chosen by waiting.
    fn widest_slack(&self) -> u32 {
        if self.fate.is_abandoned() {
            return 0; // the thread that held the lock is not in this process
        }
        let Some(adaptive) = self.adaptive.get() else { return 0 };
        lock(adaptive).controllers.values().map(|one| lock(one).slack()).max().unwrap_or(0)
    }

    pub(super) fn each_table(&self, tell: impl Fn(&TableInner)) {
        lock(&self.tables).iter().for_each(|table| tell(table));
    }

    /// Lets go of all tables and tensors: each knows the job, so both would live for ever.
    pub(super) fn forget_all(&self) {
        let tables = std::mem::take(&mut *lock(&self.tables));
        let declared = std::mem::take(&mut *lock(&self.declared));
        let tensors = std::mem::take(&mut *lock(&self.tensors));
        drop((tables, declared, tensors));
    }

    pub(super) fn deadline(&self, timeout: Option<Duration>) -> Deadline {
        timeout.map_or_else(|| Deadline::default_of(self.options.deadline), Deadline::new)
    }

    /// Notes which thread uses the job.
    #[inline]
    pub(super) fn touch(&self) {
        self.company.touch();
    }

    pub(super) fn links(&self) -> RwLockReadGuard<'_, Vec<Link>> {
        self.links.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was submitted so far is taken, before any other worker goes on behind `goal`: what it submits there, such as a load, is
    /// taken later. On this host, too: a shard takes turns at the rings of its workers.
    fn settle_before(&self, goal: &Goal, deadline: Deadline) -> Result<(), Error> {
        self.tell_clock(deadline)?;
        let what = "take what came before the barrier";
        let links = self.links();
        let taken = links
            .iter()
            .try_for_each(|link| link.empty_rings(what, deadline).and_then(|()| link.drain(what, deadline)))
            .and_then(|()| self.all_relays().iter().try_for_each(|relay| relay.deliver(deadline)));
        taken.map_err(|error| match error {
            // No matter which server does not answer, what the caller waited for is the barrier.
            Error::Unanswered { server, .. } => Self::in_vain(goal, Vec::new(), Some(server), deadline),
            error => error,
        })
    }

    fn in_vain(goal: &Goal, missing: Vec<u32>, silent: Option<u32>, deadline: Deadline) -> Error {
        let silent = silent.or_else(|| missing.is_empty().then_some(0));
        Error::BarrierTimeout { barrier: goal.to_string(), missing, silent, waited: deadline.waited() }
    }

    pub(super) fn barriers(&self) -> u64 {
        self.barriers.load(Ordering::Relaxed)
    }
}

/// A worker's connection to the servers of its job. Leaves as one that failed when it is dropped without [`Job::leave`].
pub struct Job {
    pub(super) inner: Arc<Inner>,
    pub(super) embedded: Mutex<Option<Server>>,
    pub(super) leaving: Leaving,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job")
            .field("rank", &self.inner.rank)
            .field("size", &self.inner.size)
            .finish_non_exhaustive()
    }
}

impl Job {
    fn new(
        links: Vec<Link>,
        fate: Arc<Fate>,
        counters: Counters,
        who: &Introduction,
        options: Options,
        embedded: Option<Server>,
        membership: Option<(Membership, Session)>,
    ) -> Self {
        let homed = links.iter().map(|link| vec![0; link.welcome.shards as usize]).collect();
        let inner = Inner {
            homed: Mutex::new(homed),
            made: Instant::now(),
            tell_from: AtomicU64::new(0),
            membership,
            adaptive: OnceLock::new(),
            relays: Mutex::default(),
            tables: Mutex::default(),
            declared: Mutex::default(),
            tensors: Mutex::default(),
            links: RwLock::new(links),
            fate,
            counters,
            stamping: Floor::default(),
            gathering: Turn::default(),
            deeds: Deeds::default(),
            barriers: AtomicU64::new(0),
            company: Company::default(),
            waits: AtomicU64::new(0),
            gone: Mutex::default(),
            rank: who.rank,
            size: who.size,
            options,
        };
        let (inner, embedded) = (Arc::new(inner), Mutex::new(embedded));
        Self { inner, embedded, leaving: Leaving::default() }
    }

    /// `interrupt` is asked now and then, in every wait, whether to give up. The first one given counts.
    pub fn on_interrupt(&self, interrupt: Box<dyn Fn() -> bool + Send + Sync>) {
        self.inner.fate.on_interrupt(interrupt);
    }

    /// `alone` is asked, in long waits, whether no thread but the calling one could use the job: then workers that wait for each
    /// other in a circle are told so. The first one given counts; without any, whether the process has other threads.
    pub fn on_alone(&self, alone: Box<dyn Fn() -> bool + Send + Sync>) {
        self.inner.company.on_alone(alone);
    }

    /// This worker's number.
    pub fn rank(&self) -> Rank {
        self.inner.rank
    }

    /// Workers of the job.
    pub fn size(&self) -> u32 {
        self.inner.size
    }

    /// Its options.
    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    /// Servers of the job.
    pub fn servers(&self) -> u32 {
        self.inner.links().len() as u32
    }

    /// Shards of all servers.
    pub fn shards(&self) -> u32 {
        self.inner.links().iter().map(|link| link.welcome.shards).sum()
    }

    /// Bytes of this worker's tensors that each shard is home of, by server.
    pub fn balance(&self) -> Vec<Vec<u64>> {
        lock(&self.inner.homed).clone()
    }

    /// Bytes of a chunk.
    pub fn chunk_bytes(&self) -> u32 {
        self.inner.links().first().map_or(self.inner.options.chunk_bytes, |link| link.welcome.chunk_bytes)
    }

    /// Iterations that this worker has completed.
    pub fn iteration(&self) -> u64 {
        self.inner.shown_clock()
    }

    /// Whether the job goes on.
    pub fn check(&self) -> Result<(), Error> {
        self.inner.fate.check()
    }

    /// Whether this is a child of `fork`, where the job is the parent's. Unlike [`Self::check`] this does not count as
    /// reporting that the job has failed: if no other call has, [`Self::leave`] still does.
    pub fn is_forked(&self) -> bool {
        self.inner.fate.is_abandoned()
    }

    /// Whether this worker has left the job, is leaving it, or the job has failed.
    pub fn is_closed(&self) -> bool {
        self.inner.fate.is_closed()
    }

    /// Waits until all workers stand here. After an error this worker no longer stands here, so no other passes the barrier as if
    /// it had. Threads of one worker that come at once pass one barrier after another.
    pub fn barrier(&self, timeout: Option<Duration>) -> Result<(), Error> {
        self.barrier_for("", timeout).map(drop)
    }

    /// The same; returns which workers stood there. Workers that have left or were lost did not. Errors call the barrier by
    /// `what` it is for.
    pub fn barrier_for(&self, what: &str, timeout: Option<Duration>) -> Result<Gathered, Error> {
        let deadline = self.inner.deadline(timeout);
        self.inner.fate.check()?;
        self.inner.touch();
        let _turn = self.inner.gathering.take(|| self.inner.look("standing at the barrier", deadline))?;
        let goal = Goal::Barrier { what: what.to_owned() };
        self.inner.settle_before(&goal, deadline)?;
        let links = self.inner.links();
        let first = links.first().ok_or(Error::Closed)?;
        let mut circle = Circle::new(&self.inner, deadline);
        let look = || circle.look(|| Ok(Some(goal.clone())));
        match first.stand_at_barrier(deadline, look)? {
            Met::Passed(Passed { ranks, left }) => {
                self.inner.barriers.fetch_add(1, Ordering::Relaxed);
                Ok(Gathered { ranks, left })
            }
            Met::InVain { missing } => Err(Inner::in_vain(&goal, missing, None, deadline)),
        }
    }

    /// Declares a tensor, as all workers do. The same declaration again gives the same tensor, from whichever thread; one that
    /// failed on its way goes on from there.
    pub fn declare(&self, declaration: Declaration) -> Result<Arc<Tensor>, Error> {
        Tensor::declare(&self.inner, declaration)
    }

    /// Declares a table of items, as all workers do, each with the rows that it produces and consumes. The same declaration
    /// again gives the same table; one that failed because another worker was late is made again by the same call.
    pub fn table(&self, declaration: TableDeclaration) -> Result<Table, Error> {
        Table::declare(&self.inner, declaration)
    }

    /// What this worker has done.
    pub fn stats(&self) -> Stats {
        let counters = &self.inner.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let squeezed = counters.traffic.squeezed();
        let (parents, children) = counters.traffic.place();
        Stats {
            parents,
            children,
            pushed_bytes: get(&counters.pushed_bytes),
            pulled_bytes: get(&counters.pulled_bytes),
            sent_bytes: counters.traffic.sent(),
            received_bytes: counters.traffic.received(),
            squeezed_sent: squeezed.0,
            squeezed_received: squeezed.1,
            pushes: get(&counters.pushes),
            pulls: get(&counters.pulls),
            waited: Duration::from_nanos(get(&counters.waited_nanos)),
            max_staleness: get(&counters.max_staleness),
            copies_retried: get(&counters.copies_retried),
            slack: self.inner.widest_slack(),
        }
    }

    /// In a forked child: this worker is the parent's. Every later call is refused, and a wait that was copied by the fork ends;
    /// nothing is said to the servers. Takes no lock, since any may have been copied while it was held.
    pub fn abandon(&self) {
        self.inner.fate.abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::link::Threshold;
    use penstock_proto::message::Secret;
    use rustix::thread::gettid;
    use std::sync::mpsc::channel;

    /// Whether a thread of this process waits for something.
    fn sleeps(thread: rustix::thread::Pid) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{}/stat", thread.as_raw_nonzero()));
        stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|state| state.starts_with('S')))
    }

    // It held the relays and stood behind the thread that left the job, that one behind a barrier's links, and the barrier behind
    // the relays.
    #[test]
    fn who_waits_for_the_links_to_make_a_relay_keeps_nobody_from_the_relays() {
        let (job, secret) = ("job".to_owned(), Secret([0; 32]));
        let options = Options::load([]).unwrap();
        let threshold = Threshold::new(&options);
        let who = Introduction { job: job.clone(), secret, session: [0; 16], rank: 0, size: 1, threshold };
        let servers = vec![std::path::PathBuf::from("/nowhere").into()];
        let membership = Membership { servers, job, secret, rank: 0, size: 1 };
        let (counters, membership) = (Counters::default(), Some((membership, [0; 16])));
        let job = Job::new(Vec::new(), Arc::default(), counters, &who, options, None, membership);
        let (say, hear) = channel();
        std::thread::scope(|scope| {
            let leaves = job.inner.links.write().unwrap();
            let declares = scope.spawn(|| {
                say.send(gettid()).unwrap();
                job.inner.relay(0).map(drop)
            });
            let thread = hear.recv().unwrap();
            while !sleeps(thread) {
                std::thread::yield_now();
            }
            let free = job.inner.relays.try_lock().is_ok();
            drop(leaves);
            assert!(declares.join().unwrap().is_err(), "it has no network address");
            assert!(free, "a barrier looks at them while it holds the links");
        });
    }
}
