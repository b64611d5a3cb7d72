//! Declaring a table: every worker tells the first server which rows it produces and consumes, hears which the others are, and
//! maps what it needs of them.

use super::{Bell, Counters, Own, Remote, Source, Table, TableInner};
use crate::turn::Turn;
use crate::wait::Deadline;
use crate::worker::Error;
use crate::worker::circle::Circle;
use crate::worker::job::Inner;
use crate::worker::link::{Link, lock};
use penstock_fabric::items::partition::{Layout, Rows, Waiters, Writer};
use penstock_kernels::Dtype;
use penstock_proto::adaptive::Adaptive;
use penstock_proto::error::Refusal;
use penstock_proto::items::control::{PART_BYTES, TableAnswer, TableAsk};
use penstock_proto::items::registry::{Part, Producer};
use penstock_proto::items::wire::{PartitionId, Shape};
use penstock_proto::items::{Propagation, RowSet, Slack, TableError, TableSpec};
use penstock_proto::knot::Goal;
use penstock_proto::message::{Answer, Ask};
use rustix::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

/// How a worker declares a table.
#[derive(Debug, Clone)]
pub struct TableDeclaration {
    /// Its key.
    pub name: String,
    /// Rows: keys are `0..rows`.
    pub rows: u64,
    /// Bytes of a row.
    pub row_bytes: u32,
    /// What its elements are; needed for a sum.
    pub element: Option<Dtype>,
    /// What a row holds, in the program's words, at most [`MAX_HOLDS_BYTES`](penstock_proto::items::MAX_HOLDS_BYTES) of them:
    /// compared with what others say. Empty where it does not say.
    pub holds: String,
    /// Whether any number of producers may add to a row.
    pub sum: bool,
    /// Rows that this worker produces.
    pub produce: RowSet,
    /// Rows that it consumes.
    pub consume: RowSet,
    /// How rows move between hosts.
    pub propagation: Propagation,
    /// The slack of a get that names none.
    pub slack: Slack,
    /// Where it is chosen by waiting; `slack` is then not used.
    pub adaptive: Option<Adaptive>,
    /// How long to wait for the others to declare it; without, the option `deadline`.
    pub timeout: Option<Duration>,
}

impl TableDeclaration {
    fn spec(&self) -> TableSpec {
        // A sum of elements that are not floating-point numbers is refused by the check, by name.
        let sum = self.sum.then_some(self.element.unwrap_or(Dtype::F16));
        let (name, rows) = (self.name.clone(), self.rows);
        let holds = self.holds.clone();
        TableSpec { name, rows, row_bytes: self.row_bytes, sum, propagation: self.propagation, holds }
    }

    /// Refuses another declaration of the same table by this worker, naming what differs.
    fn compare(&self, now: &Self) -> Result<(), TableError> {
        let slack = |it: &Self| match (it.adaptive, it.slack) {
            (Some(bounds), _) => format!("auto:{bounds}"),
            (None, Slack::Bound(slack)) => slack.to_string(),
            (None, Slack::Unbounded) => "unbounded".to_owned(),
        };
        let elements = |it: &Self| it.element.map_or("another", Dtype::name).to_owned();
        let fields = [("elements", elements(self), elements(now)), ("slack", slack(self), slack(now))];
        let other = || fields.into_iter().find(|(_, before, now)| before != now);
        if let Some((what, before, now)) = self.spec().difference(&now.spec()).or_else(other) {
            let (name, what) = (self.name.clone(), what.to_owned());
            return Err(TableError::DeclaredTwice { name, what, before, now });
        }
        let rows =
            |before, now, what| TableError::rows_differ(&self.name, before, now, what).map_or(Ok(()), Err);
        rows(&self.produce, &now.produce, "produced")?;
        rows(&self.consume, &now.consume, "consumed")
    }
}

/// How far a table's declaration has come in this worker. A call that fails on its way, most often because another worker was
/// late, leaves here what it has achieved; the next one goes on from there. Until all have agreed it tells its rows anew.
#[derive(Default)]
pub(in crate::worker) struct Progress {
    /// Of the thread that declares the table: a second one that does so too waits, and gets the same table.
    turn: Turn,
    /// Locked only by the thread that has the turn.
    state: Mutex<State>,
    /// The table, once it is made: a thread that drops it asks without a turn, while others may declare it again.
    made: OnceLock<Weak<TableInner>>,
}

#[derive(Default)]
enum State {
    #[default]
    New,
    /// All have declared it; this worker has some of what it needs.
    Agreed(Box<Draft>),
    /// This worker has all, but not all others may have.
    Mapped(TableDeclaration, Table),
    Made(TableDeclaration, Table),
}

impl Progress {
    /// Whether it is the declaration of this table, and not of a later one of its name.
    pub(super) fn is_of(&self, inner: &Arc<TableInner>) -> bool {
        self.made.get().is_some_and(|made| std::ptr::eq(made.as_ptr(), Arc::as_ptr(inner)))
    }
}

/// A table of which not every partition is there.
struct Draft {
    given: TableDeclaration,
    id: u32,
    producers: Vec<Producer>,
    own: Option<Own>,
    /// Whether `own` is mapped for good: its home has sealed it then, and gives it to the others.
    sealed: bool,
    /// Of the first producers, in their order.
    sources: Vec<Source>,
    sets: Vec<RowSet>,
}

impl State {
    fn given(&self) -> Option<&TableDeclaration> {
        match self {
            Self::New => None,
            Self::Agreed(draft) => Some(&draft.given),
            Self::Mapped(given, _) | Self::Made(given, _) => Some(given),
        }
    }
}

impl Table {
    pub(in crate::worker) fn declare(job: &Arc<Inner>, given: TableDeclaration) -> Result<Self, Error> {
        job.fate.check()?;
        job.touch();
        let refused = |error: TableError| Error::Refused(Refusal::Table(error));
        let spec = given.spec();
        spec.check().map_err(refused)?;
        let deadline = job.deadline(given.timeout);
        let progress = Arc::clone(lock(&job.declared).entry(spec.name.clone()).or_default());
        let _turn = progress.turn.take(|| job.look(&format!("declaring table `{}`", spec.name), deadline))?;
        let mut state = lock(&progress.state);
        if let Some(before) = state.given() {
            before.compare(&given).map_err(refused)?;
        }
        if let State::Made(_, table) = &*state {
            table.inner.check()?;
        }
        if matches!(*state, State::New) {
            let (id, producers) = agree(job, &spec, &given.produce, &given.consume, deadline)?;
            let (sources, sets) = (Vec::new(), Vec::new());
            let (own, sealed) = (None, false);
            *state = State::Agreed(Box::new(Draft { given, id, producers, own, sealed, sources, sets }));
        }
        if let State::Agreed(draft) = &mut *state {
            draft.map(job, deadline)?;
            let State::Agreed(draft) = std::mem::take(&mut *state) else { return Err(Error::Closed) };
            *state = draft.finish(job, spec);
        }
        if let State::Mapped(given, table) = &*state {
            let inner = &table.inner;
            // Others rely on every ready worker having subscribed: rows that are handed over earlier would not reach this
            // worker.
            for relay in inner.relays() {
                relay.deliver(deadline)?;
            }
            inner.get_ready(deadline)?;
            lock(&job.tables).push(Arc::clone(inner));
            inner.raise(job.shown_clock());
            let _ = progress.made.set(Arc::downgrade(inner));
            *state = State::Made(given.clone(), table.clone());
        }
        // The job may have been closed meanwhile, by another thread.
        job.fate.check().inspect_err(|_| job.forget_all())?;
        match &*state {
            State::Made(_, table) => Ok(table.clone()),
            _ => Err(Error::Closed),
        }
    }
}

impl Draft {
    /// Maps, or subscribes to, what this worker does not have yet.
    fn map(&mut self, job: &Inner, deadline: Deadline) -> Result<(), Error> {
        let TableDeclaration { row_bytes, propagation, produce, consume, name, .. } = &self.given;
        let (row_bytes, propagation) = (*row_bytes, *propagation);
        let layout = |slots| Layout::new(slots, row_bytes);
        // First this worker's own partition: others may wait for it.
        if let Some(me) = self.producers.iter().find(|producer| producer.rank == job.rank) {
            if self.own.is_none() {
                let (id, rows, layout) = ((&name[..], self.id), produce.clone(), layout(me.slots));
                self.own = Some(Own::make(job, id, me, rows, layout, propagation, deadline)?);
            }
            // Kept before it is sealed, after which no process can map it for writing again.
            if me.near && !self.sealed {
                seal(job, PartitionId { table: self.id, rank: me.rank }, me, deadline)?;
                self.sealed = true;
            }
        }
        while let Some(producer) = self.producers.get(self.sources.len()) {
            if let Some(own) = self.own.as_mut().filter(|_| producer.rank == job.rank) {
                own.source = self.sources.len();
                let (rows, waiters) = (own.rows.clone(), own.waiters.clone());
                let gone = AtomicBool::new(false);
                self.sources.push(Source { rank: job.rank, rows, waiters, gone, remote: None });
                self.sets.push(produce.clone());
                continue;
            }
            let theirs = produced(job, name, producer.rank, deadline)?;
            let here = job.links().get(producer.home as usize).is_some_and(|link| !link.is_remote());
            if producer.near && here {
                let layout = layout(producer.slots);
                self.sources.push(Source::map(
                    job,
                    (name, self.id),
                    producer,
                    layout,
                    propagation,
                    deadline,
                )?);
                self.sets.push(theirs);
                continue;
            }
            // Only what this worker consumes is mirrored.
            let wanted = theirs.intersection(consume);
            let slots = RowSet::from_rows(wanted.iter().filter_map(|row| theirs.place(row)));
            let shape = Shape { slots: producer.slots, row_bytes, propagation };
            let id = PartitionId { table: self.id, rank: producer.rank };
            self.sources.push(Source::mirror(job, id, producer, shape, slots)?);
            self.sets.push(wanted);
        }
        Ok(())
    }

    fn finish(self, job: &Arc<Inner>, spec: TableSpec) -> State {
        let Self { given, id, own, sources, sets, .. } = self;
        let sets: Vec<&RowSet> = sets.iter().collect();
        let index = super::Index::new(given.consume.union(&given.produce), &sets);
        let inner = TableInner {
            job: Arc::clone(job),
            id,
            spec,
            layout: Layout::new(1, given.row_bytes),
            slack: given.slack,
            adaptive: given.adaptive.map(|settings| job.adaptive(settings)),
            consume: given.consume.clone(),
            index,
            sources,
            own,
            counters: Counters::default(),
            dropped: AtomicBool::new(false),
        };
        State::Mapped(given, Table { inner: Arc::new(inner) })
    }
}

impl TableInner {
    /// Waits until all have mapped and subscribed to what they need.
    fn get_ready(&self, deadline: Deadline) -> Result<(), Error> {
        let links = self.job.links();
        let first = links.first().ok_or(Error::Closed)?;
        let name = self.spec.name.clone();
        let goal = Goal::Table { name: name.clone() };
        match asked_together(&self.job, first, TableAsk::Ready { name }, &goal, deadline) {
            Ok((TableAnswer::Done, _)) => Ok(()),
            Ok((other, _)) => Err(first.misunderstood(&Answer::Table(other))),
            Err(error) => Err(whose_fault(first, &self.spec.name, error, deadline)),
        }
    }
}

pub(super) fn asked(
    link: &Link,
    ask: TableAsk,
    deadline: Deadline,
) -> Result<(TableAnswer, Vec<OwnedFd>), Error> {
    match link.ask(Ask::Table(ask), "answer about a table", deadline)? {
        (Answer::Table(answer), fds) => Ok((answer, fds)),
        (other, _) => Err(link.misunderstood(&other)),
    }
}

/// The same, for what is answered when all have asked it.
pub(super) fn asked_together(
    job: &Inner,
    link: &Link,
    ask: TableAsk,
    goal: &Goal,
    deadline: Deadline,
) -> Result<(TableAnswer, Vec<OwnedFd>), Error> {
    let mut circle = Circle::new(job, deadline);
    let look = || circle.look(|| Ok(Some(goal.clone())));
    match link.ask_while(Ask::Table(ask), "answer about a table", deadline, look)? {
        (Answer::Table(answer), fds) => Ok((answer, fds)),
        (other, _) => Err(link.misunderstood(&other)),
    }
}

/// Declares the table at the first server and waits until all have.
fn agree(
    job: &Inner,
    spec: &TableSpec,
    produce: &RowSet,
    consume: &RowSet,
    deadline: Deadline,
) -> Result<(u32, Vec<Producer>), Error> {
    let links = job.links();
    let first = links.first().ok_or(Error::Closed)?;
    let near = links.iter().position(|link| !link.is_remote());
    let home = near.unwrap_or(job.rank as usize % links.len()) as u32;
    let name = || spec.name.clone();
    asked(first, TableAsk::Begin { spec: spec.clone(), home, near: near.is_some() }, deadline)?;
    for (part, set) in [(Part::Produce, produce), (Part::Consume, consume)] {
        for bytes in set.encode().chunks(PART_BYTES) {
            asked(first, TableAsk::Rows { name: name(), part, bytes: bytes.to_vec() }, deadline)?;
        }
    }
    asked(first, TableAsk::End { name: name() }, deadline)?;
    let goal = Goal::Table { name: name() };
    match asked_together(job, first, TableAsk::Join { name: name() }, &goal, deadline) {
        Ok((TableAnswer::Joined { id, producers }, _)) => Ok((id, producers)),
        Ok((other, _)) => Err(first.misunderstood(&Answer::Table(other))),
        Err(error) => Err(whose_fault(first, &spec.name, error, deadline)),
    }
}

/// Names the workers that a wait for all, which ended with `error`, was waiting for.
fn whose_fault(first: &Link, name: &str, error: Error, deadline: Deadline) -> Error {
    let Error::Unanswered { waited, .. } = error else { return error };
    let absent = TableAsk::Absent { name: name.to_owned() };
    match asked(first, absent, deadline.for_questions()) {
        Ok((TableAnswer::Absent { ranks: missing }, _)) if !missing.is_empty() => {
            Error::TableTimeout { name: name.to_owned(), missing, waited }
        }
        Ok(_) => Error::Unanswered { server: 0, what: "make a table that all have declared", waited },
        Err(error) => error,
    }
}

/// The rows that another worker produces.
fn produced(job: &Inner, name: &str, rank: u32, deadline: Deadline) -> Result<RowSet, Error> {
    let links = job.links();
    let first = links.first().ok_or(Error::Closed)?;
    let mut all = Vec::new();
    loop {
        let ask = TableAsk::Produced { name: name.to_owned(), rank, from: all.len() as u64 };
        match asked(first, ask, deadline)? {
            (TableAnswer::Produced { bytes, total }, _) => {
                let none = bytes.is_empty();
                all.extend(bytes);
                if all.len() as u64 >= total || none {
                    break;
                }
            }
            (other, _) => return Err(first.misunderstood(&Answer::Table(other))),
        }
    }
    RowSet::decode(&all).map_err(|error| Error::Protocol { server: 0, what: error.to_string() })
}

/// The descriptors of a partition on this host.
fn partition(
    job: &Inner,
    (name, id): (&str, PartitionId),
    producer: &Producer,
    layout: Layout,
    propagation: Propagation,
    deadline: Deadline,
) -> Result<[OwnedFd; 3], Error> {
    let links = job.links();
    let home = links.get(producer.home as usize).ok_or(Error::Closed)?;
    let ask = TableAsk::Partition {
        partition: id,
        slots: producer.slots,
        row_bytes: layout.row_bytes() as u32,
        propagation,
    };
    match asked(home, ask, deadline) {
        Ok((TableAnswer::Partition, fds)) => fds.try_into().map_err(|_| Error::Protocol {
            server: producer.home,
            what: "a partition came without its descriptors".to_owned(),
        }),
        Ok((other, _)) => Err(home.misunderstood(&Answer::Table(other))),
        // A consumer's is answered when the producer has mapped it.
        Err(Error::Unanswered { waited, .. }) if id.rank != job.rank => {
            Err(Error::TableTimeout { name: name.to_owned(), missing: vec![id.rank], waited })
        }
        Err(error) => Err(error),
    }
}

/// Tells the home of this worker's partition that it is mapped.
fn seal(job: &Inner, partition: PartitionId, me: &Producer, deadline: Deadline) -> Result<(), Error> {
    let links = job.links();
    let home = links.get(me.home as usize).ok_or(Error::Closed)?;
    asked(home, TableAsk::Mapped { partition }, deadline).map(drop)
}

const MAP: &str = "map a table's memory";

impl Own {
    fn make(
        job: &Inner,
        (name, table): (&str, u32),
        me: &Producer,
        produce: RowSet,
        layout: Layout,
        propagation: Propagation,
        deadline: Deadline,
    ) -> Result<Self, Error> {
        let id = PartitionId { table, rank: me.rank };
        if !me.near {
            let writer = Writer::private(layout).map_err(Error::system(MAP))?;
            let waiters = Waiters::private().map_err(Error::system(MAP))?;
            let (rows, relay) = (writer.rows().clone(), job.relay(me.home)?);
            let shape = Shape { slots: me.slots, row_bytes: layout.row_bytes() as u32, propagation };
            relay.produce(id, shape, rows.clone(), waiters.clone());
            let bell = Bell::Relay(relay);
            return Ok(Self { source: 0, produce, writer: Mutex::new(writer), rows, waiters, bell });
        }
        let [memory, page, bell] = partition(job, (name, id), me, layout, propagation, deadline)?;
        let writer = Writer::shared(layout, memory.as_fd()).map_err(Error::system(MAP))?;
        let waiters = Waiters::open(page.as_fd()).map_err(Error::system(MAP))?;
        let rows = writer.rows().clone();
        Ok(Self { source: 0, produce, writer: Mutex::new(writer), rows, waiters, bell: Bell::Home(bell) })
    }
}

impl Source {
    /// Looks at the rows in their producer's own memory.
    fn map(
        job: &Inner,
        (name, table): (&str, u32),
        producer: &Producer,
        layout: Layout,
        propagation: Propagation,
        deadline: Deadline,
    ) -> Result<Self, Error> {
        let id = PartitionId { table, rank: producer.rank };
        let [memory, page, _] = partition(job, (name, id), producer, layout, propagation, deadline)?;
        let rows = Rows::open(layout, memory.as_fd()).map_err(Error::system(MAP))?;
        let waiters = Waiters::open(page.as_fd()).map_err(Error::system(MAP))?;
        Ok(Self { rank: producer.rank, rows, waiters, gone: AtomicBool::new(false), remote: None })
    }

    /// Has the rows sent.
    fn mirror(
        job: &Inner,
        id: PartitionId,
        producer: &Producer,
        shape: Shape,
        slots: RowSet,
    ) -> Result<Self, Error> {
        let (relay, len) = (job.relay(producer.home)?, slots.len() as u32);
        let (rows, waiters) = relay.consume(id, shape, slots)?;
        let remote = Remote {
            relay,
            id,
            len,
            propagation: shape.propagation,
            needs: Mutex::default(),
            barriers: AtomicU64::new(job.barriers()),
        };
        let (rank, gone) = (producer.rank, AtomicBool::new(false));
        Ok(Self { rank, rows, waiters, gone, remote: Some(remote) })
    }
}
