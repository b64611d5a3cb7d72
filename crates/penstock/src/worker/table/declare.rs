//! Declaring a table: every worker tells the first server which rows it produces and consumes, hears who the others are, and maps
//! what it needs of them.

use super::{Bell, Counters, Own, Remote, Source, Table, TableInner};
use crate::worker::Error;
use crate::worker::job::Inner;
use crate::worker::link::{ASK_WITHIN, Deadline, Link, lock};
use penstock_fabric::items::region::{Layout, Rows, Waiters, Writer};
use penstock_kernels::Dtype;
use penstock_proto::adaptive::Adaptive;
use penstock_proto::error::Refusal;
use penstock_proto::items::control::{PART_BYTES, TableAnswer, TableAsk};
use penstock_proto::items::registry::{Part, Producer};
use penstock_proto::items::wire::{RegionId, Shape};
use penstock_proto::items::{Propagation, RowSet, Slack, TableError, TableSpec};
use penstock_proto::message::{Answer, Ask};
use rustix::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
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
    /// Whether any number of producers may add to a row.
    pub sum: bool,
    /// Rows that this worker produces.
    pub produce: RowSet,
    /// Rows that it consumes.
    pub consume: RowSet,
    /// Who moves rows between hosts.
    pub propagation: Propagation,
    /// The slack of a get that names none.
    pub slack: Slack,
    /// Where it is chosen by waiting; `slack` is then not used.
    pub adaptive: Option<Adaptive>,
    /// How long to wait for the others to declare it; without, the option `deadline`.
    pub timeout: Option<Duration>,
}

impl Table {
    pub(in crate::worker) fn declare(job: Arc<Inner>, declaration: TableDeclaration) -> Result<Self, Error> {
        let TableDeclaration {
            name,
            rows,
            row_bytes,
            element,
            sum,
            produce,
            consume,
            propagation,
            slack,
            adaptive,
            timeout,
        } = declaration;
        job.fate.check()?;
        // A sum of what is no floating-point number is refused by the check, by name.
        let sum = sum.then_some(element.unwrap_or(Dtype::F16));
        let spec = TableSpec { name, rows, row_bytes, sum, propagation };
        let refused = |error: TableError| Error::Refused(Refusal::Table(error));
        spec.check().map_err(refused)?;
        let deadline = job.deadline(timeout);
        let (id, producers) = agree(&job, &spec, &produce, &consume, deadline)?;
        let layout = |slots| Layout::new(slots, row_bytes);
        let (mut sources, mut sets, mut own) = (Vec::new(), Vec::new(), None);
        // First this worker's own region: others may wait for it.
        if let Some(me) = producers.iter().find(|producer| producer.rank == job.rank) {
            own = Some(Own::make(&job, id, me, produce.clone(), layout(me.slots), propagation, deadline)?);
        }
        for producer in &producers {
            if let Some(own) = own.as_mut().filter(|_| producer.rank == job.rank) {
                own.source = sources.len();
                let (rows, waiters) = (own.rows.clone(), own.waiters.clone());
                let gone = AtomicBool::new(false);
                sources.push(Source { rank: job.rank, rows, waiters, gone, remote: None });
                sets.push(produce.clone());
                continue;
            }
            let theirs = produced(&job, &spec.name, producer.rank, deadline)?;
            let here = job.links().get(producer.home as usize).is_some_and(|link| !link.is_remote());
            if producer.near && here {
                let layout = layout(producer.slots);
                sources.push(Source::map(&job, id, producer, layout, propagation, deadline)?);
                sets.push(theirs);
                continue;
            }
            // Only what this worker consumes is mirrored.
            let wanted = theirs.intersection(&consume);
            let slots = RowSet::from_rows(wanted.iter().filter_map(|row| theirs.place(row)));
            let shape = Shape { slots: producer.slots, row_bytes, propagation };
            sources.push(Source::mirror(
                &job,
                RegionId { table: id, rank: producer.rank },
                producer,
                shape,
                slots,
            )?);
            sets.push(wanted);
        }
        let sets: Vec<&RowSet> = sets.iter().collect();
        let known = consume.union(&produce);
        let index = super::Index::new(known, &sets);
        let layout = layout(1);
        let counters = Counters::default();
        let adaptive = adaptive.map(|settings| job.adaptive(settings));
        let inner =
            TableInner { job, id, spec, layout, slack, adaptive, consume, index, sources, own, counters };
        let inner = Arc::new(inner);
        for courier in inner.couriers() {
            courier.flush(deadline)?;
        }
        inner.get_ready(deadline)?;
        lock(&inner.job.tables).push(Arc::downgrade(&inner));
        inner.raise(inner.job.shown_clock());
        Ok(Self { inner })
    }
}

impl TableInner {
    /// Waits until all have mapped and subscribed to what they need.
    fn get_ready(&self, deadline: Deadline) -> Result<(), Error> {
        let links = self.job.links();
        let first = links.first().ok_or(Error::Closed)?;
        match asked(first, TableAsk::Ready { name: self.spec.name.clone() }, deadline)? {
            (TableAnswer::Done, _) => Ok(()),
            (other, _) => Err(first.misunderstood(&Answer::Table(other))),
        }
    }
}

fn asked(link: &Link, ask: TableAsk, deadline: Deadline) -> Result<(TableAnswer, Vec<OwnedFd>), Error> {
    match link.ask(Ask::Table(ask), "answer about a table", deadline)? {
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
    match asked(first, TableAsk::Join { name: name() }, deadline) {
        Ok((TableAnswer::Joined { id, producers }, _)) => Ok((id, producers)),
        Ok((other, _)) => Err(first.misunderstood(&Answer::Table(other))),
        Err(Error::Unanswered { waited, .. }) => {
            let absent = TableAsk::Absent { name: name() };
            match asked(first, absent, Deadline::new(ASK_WITHIN))? {
                (TableAnswer::Absent { ranks: missing }, _) if !missing.is_empty() => {
                    Err(Error::TableTimeout { name: name(), missing, waited })
                }
                _ => {
                    Err(Error::Unanswered { server: 0, what: "make a table that all have declared", waited })
                }
            }
        }
        Err(error) => Err(error),
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

/// The descriptors of a region on this host.
fn region(
    job: &Inner,
    id: RegionId,
    producer: &Producer,
    layout: Layout,
    propagation: Propagation,
    deadline: Deadline,
) -> Result<[OwnedFd; 3], Error> {
    let links = job.links();
    let home = links.get(producer.home as usize).ok_or(Error::Closed)?;
    let ask = TableAsk::Region {
        region: id,
        slots: producer.slots,
        row_bytes: layout.row_bytes() as u32,
        propagation,
    };
    match asked(home, ask, deadline)? {
        (TableAnswer::Region, fds) => fds.try_into().map_err(|_| Error::Protocol {
            server: producer.home,
            what: "a region came without its descriptors".to_owned(),
        }),
        (other, _) => Err(home.misunderstood(&Answer::Table(other))),
    }
}

fn system(errno: rustix::io::Errno) -> Error {
    Error::System { what: "map a table's memory", reason: errno.to_string() }
}

impl Own {
    fn make(
        job: &Inner,
        table: u32,
        me: &Producer,
        produce: RowSet,
        layout: Layout,
        propagation: Propagation,
        deadline: Deadline,
    ) -> Result<Self, Error> {
        let id = RegionId { table, rank: me.rank };
        if !me.near {
            let writer = Writer::private(layout).map_err(system)?;
            let waiters = Waiters::private().map_err(system)?;
            let (rows, courier) = (writer.rows().clone(), job.courier(me.home)?);
            let shape = Shape { slots: me.slots, row_bytes: layout.row_bytes() as u32, propagation };
            courier.produce(id, shape, rows.clone(), waiters.clone());
            let bell = Bell::Courier(courier);
            return Ok(Self { source: 0, produce, writer: Mutex::new(writer), rows, waiters, bell });
        }
        let [memory, page, bell] = region(job, id, me, layout, propagation, deadline)?;
        let writer = Writer::shared(layout, memory.as_fd()).map_err(system)?;
        let waiters = Waiters::open(page.as_fd()).map_err(system)?;
        let links = job.links();
        let home = links.get(me.home as usize).ok_or(Error::Closed)?;
        asked(home, TableAsk::Mapped { region: id }, deadline)?;
        let rows = writer.rows().clone();
        Ok(Self { source: 0, produce, writer: Mutex::new(writer), rows, waiters, bell: Bell::Home(bell) })
    }
}

impl Source {
    /// Looks at the rows in their producer's own memory.
    fn map(
        job: &Inner,
        table: u32,
        producer: &Producer,
        layout: Layout,
        propagation: Propagation,
        deadline: Deadline,
    ) -> Result<Self, Error> {
        let id = RegionId { table, rank: producer.rank };
        let [memory, page, _] = region(job, id, producer, layout, propagation, deadline)?;
        let rows = Rows::open(layout, memory.as_fd()).map_err(system)?;
        let waiters = Waiters::open(page.as_fd()).map_err(system)?;
        Ok(Self { rank: producer.rank, rows, waiters, gone: AtomicBool::new(false), remote: None })
    }

    /// Has the rows sent.
    fn mirror(
        job: &Inner,
        id: RegionId,
        producer: &Producer,
        shape: Shape,
        slots: RowSet,
    ) -> Result<Self, Error> {
        let (courier, len) = (job.courier(producer.home)?, slots.len() as u32);
        let (rows, waiters) = courier.consume(id, shape, slots)?;
        let remote = Remote {
            courier,
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
