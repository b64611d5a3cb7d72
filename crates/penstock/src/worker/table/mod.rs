//! Tables of items, as a worker uses them (lapser.md, chapter 3; `penstock_proto::items`).
//!
//! | file | what |
//! |---|---|
//! | [`discard`] | dropping it, as all do |
//! | [`declare`] | agreeing with the others on who produces what, and mapping their rows |
//! | [`index`] | where each row stands |
//! | [`relay`] | rows to and from other hosts |
//! | [`set`] | set, add, and the clock |
//! | [`get`] | get, prefetch, views, and what they wait for |
//!
//! A producer writes its rows into memory of its own, and consumers on its host look at them there: a get of a row that is fresh
//! enough is a few looks at memory, without any other's help.

mod declare;
mod discard;
mod get;
mod index;
mod relay;
mod set;

pub(super) use declare::Progress;
pub use declare::TableDeclaration;
pub use get::View;
pub(super) use relay::{Relay, Setup as RelaySetup};

use super::Error;
use super::job::Inner;
use index::{Index, Place};
use penstock_fabric::items::partition::{Layout, Rows, Waiters, Writer};
use penstock_proto::Rank;
use penstock_proto::adaptive::Controller;
use penstock_proto::items::wire::PartitionId;
use penstock_proto::items::{FINAL, Propagation, RowSet, Slack, TableSpec};
use rustix::fd::OwnedFd;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One producer's rows, as this worker sees them.
struct Source {
    rank: Rank,
    rows: Rows,
    waiters: Waiters,
    /// Whether the producer is no longer waited for, and all that it set is here: it has left, or was lost and the job goes on.
    gone: AtomicBool,
    /// How its rows come, if they do not stand in its own memory.
    remote: Option<Remote>,
}

/// Rows that are mirrored.
struct Remote {
    relay: Arc<Relay>,
    id: PartitionId,
    /// Rows of the mirror.
    len: u32,
    propagation: Propagation,
    /// Bounded: what is needed.
    needs: Mutex<Needs>,
    /// Barriers that had been passed when this worker last made sure that what was set before them is here.
    barriers: AtomicU64,
}

/// Rows of a call, in its order.
#[derive(Debug, Clone)]
pub enum Chosen<'a> {
    /// One by one; any may come twice, but not where rows are set.
    Each(&'a [u64]),
    /// All of a range, ascending.
    Run(Range<u64>),
}

impl Chosen<'_> {
    /// Rows, those that come twice counted twice.
    pub fn len(&self) -> usize {
        match self {
            Self::Each(rows) => rows.len(),
            Self::Run(run) => run.end.saturating_sub(run.start) as usize,
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rows.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        let (each, run) = match self {
            Self::Each(rows) => (*rows, 0..0),
            Self::Run(run) => (&[][..], run.clone()),
        };
        each.iter().copied().chain(run)
    }

    fn first(&self) -> Option<u64> {
        self.iter().next()
    }

    fn nth(&self, at: usize) -> u64 {
        match self {
            Self::Each(rows) => rows[at],
            Self::Run(run) => run.start + at as u64,
        }
    }

    /// The rows as a range, if each follows the one before.
    fn run(&self) -> Option<Range<u64>> {
        match self {
            Self::Run(run) => Some(run.clone()),
            Self::Each(rows) => {
                let (&first, &last) = (rows.first()?, rows.last()?);
                // Most rows that do not follow each other are refused by their ends.
                (last.checked_sub(first)? == rows.len() as u64 - 1).then_some(())?;
                let follow = rows.iter().zip(first..).fold(true, |all, (&row, next)| all & (row == next));
                follow.then_some(first..last + 1)
            }
        }
    }
}

impl<'a> From<&'a [u64]> for Chosen<'a> {
    fn from(rows: &'a [u64]) -> Self {
        Self::Each(rows)
    }
}

impl<'a> From<&'a Vec<u64>> for Chosen<'a> {
    fn from(rows: &'a Vec<u64>) -> Self {
        Self::Each(rows)
    }
}

impl<'a, const N: usize> From<&'a [u64; N]> for Chosen<'a> {
    fn from(rows: &'a [u64; N]) -> Self {
        Self::Each(rows)
    }
}

impl From<Range<u64>> for Chosen<'_> {
    fn from(run: Range<u64>) -> Self {
        Self::Run(run)
    }
}

/// The rows that this worker produces.
struct Own {
    /// Index of its source.
    source: usize,
    produce: RowSet,
    writer: Mutex<Writer>,
    rows: Rows,
    waiters: Waiters,
    bell: Bell,
}

/// Versions that a worker needs of a producer's rows.
#[derive(Debug, Default)]
struct Needs {
    /// What the last get asked for, and what the next will.
    now: u64,
    next: u64,
    /// What gets of other threads wait for, and how many.
    waiting: BTreeMap<u64, u32>,
    /// What was said last.
    said: Vec<u64>,
}

/// What passes this worker's rows on to other hosts.
enum Bell {
    /// The home, on this host: its bell.
    Home(OwnedFd),
    /// This worker's own connection to it.
    Relay(Arc<Relay>),
}

/// What a worker has done with a table since it declared it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TableStats {
    /// Calls of set and add.
    pub sets: u64,
    /// Rows that they wrote.
    pub rows_set: u64,
    /// Calls of get.
    pub gets: u64,
    /// Rows that they returned.
    pub rows_got: u64,
    /// Time that gets waited.
    pub waited: Duration,
    /// Copies that were repeated because the producer came round.
    pub retries: u64,
    /// Most clocks that a row was behind what a get asked for without slack.
    pub max_staleness: u64,
    /// Bytes sent to and received from other hosts.
    pub sent_bytes: u64,
    /// See `sent_bytes`.
    pub received_bytes: u64,
}

#[derive(Default)]
struct Counters {
    sets: AtomicU64,
    rows_set: AtomicU64,
    gets: AtomicU64,
    rows_got: AtomicU64,
    waited_nanos: AtomicU64,
    retries: AtomicU64,
    max_staleness: AtomicU64,
}

pub(super) struct TableInner {
    job: Arc<Inner>,
    id: u32,
    spec: TableSpec,
    layout: Layout,
    slack: Slack,
    /// What chooses the slack of gets that name none, instead.
    adaptive: Option<Arc<Mutex<Controller>>>,
    consume: RowSet,
    index: Index,
    sources: Vec<Source>,
    own: Option<Own>,
    counters: Counters,
    /// Whether this worker has dropped it.
    dropped: AtomicBool,
}

/// A table of a job.
#[derive(Clone)]
pub struct Table {
    inner: Arc<TableInner>,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("spec", &self.inner.spec).finish_non_exhaustive()
    }
}

impl Table {
    /// Its declaration.
    pub fn spec(&self) -> &TableSpec {
        &self.inner.spec
    }

    /// Iterations that this worker has completed: the clock of a get that names none.
    pub fn iteration(&self) -> u64 {
        self.inner.job.shown_clock()
    }

    /// Whether this is a handle of the same table.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// The slack of a get that names none, now.
    pub fn slack(&self) -> Slack {
        self.inner.slack_now()
    }

    /// Rows that this worker produces.
    pub fn produced(&self) -> RowSet {
        self.inner.own.as_ref().map(|own| own.produce.clone()).unwrap_or_default()
    }

    /// Rows that this worker consumes.
    pub fn consumed(&self) -> &RowSet {
        &self.inner.consume
    }

    /// What this worker has done with it.
    pub fn stats(&self) -> TableStats {
        let counters = &self.inner.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let relays = if self.inner.job.fate.is_abandoned() { Vec::new() } else { self.inner.relays() };
        let traffic = relays.into_iter().map(|relay| relay.traffic(self.inner.id));
        let (sent, received) = traffic.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        TableStats {
            sets: get(&counters.sets),
            rows_set: get(&counters.rows_set),
            gets: get(&counters.gets),
            rows_got: get(&counters.rows_got),
            waited: Duration::from_nanos(get(&counters.waited_nanos)),
            retries: get(&counters.retries),
            max_staleness: get(&counters.max_staleness),
            sent_bytes: sent,
            received_bytes: received,
        }
    }
}

impl TableInner {
    /// Whether the job goes on, and the table with it.
    #[inline]
    fn check(&self) -> Result<(), Error> {
        self.job.touch();
        self.job.fate.check()?;
        if self.dropped.load(Ordering::Relaxed) {
            return Err(Error::Dropped { name: self.spec.name.clone() });
        }
        Ok(())
    }

    /// Whether this worker no longer sets or gets any of it.
    #[inline]
    fn is_over(&self) -> bool {
        self.dropped.load(Ordering::Relaxed) || self.job.fate.is_closed()
    }

    /// The connections that its rows come and go by.
    fn relays(&self) -> Vec<&Arc<Relay>> {
        let own = self.own.as_ref().and_then(|own| match &own.bell {
            Bell::Relay(relay) => Some(relay),
            Bell::Home(_) => None,
        });
        let remote = self.sources.iter().filter_map(|source| Some(&source.remote.as_ref()?.relay));
        let mut all: Vec<&Arc<Relay>> = own.into_iter().chain(remote).collect();
        all.sort_by_key(|relay| Arc::as_ptr(relay));
        all.dedup_by_key(|relay| Arc::as_ptr(relay));
        all
    }

    fn unknown(&self, row: u64) -> Error {
        let (name, rows) = (self.spec.name.clone(), self.spec.rows);
        Error::UnknownRow { name, row, rows }
    }

    #[inline]
    fn places(&self, row: u64) -> Result<&[Place], Error> {
        self.index.places(row).ok_or_else(|| self.unknown(row))
    }

    fn check_size(&self, rows: usize, got: usize) -> Result<(), Error> {
        let expected = rows.saturating_mul(self.layout.row_bytes());
        if got == expected {
            return Ok(());
        }
        Err(Error::WrongSize { name: self.spec.name.clone(), expected, got })
    }
}
