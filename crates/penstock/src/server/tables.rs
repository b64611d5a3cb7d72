//! Tables of items, as the control thread knows them: the book (on the first server), and the partitions that are homed here.
//!
//! Rows between workers of this host never pass through the server: it makes a partition, gives it to its producer, and, once the
//! producer has mapped it, seals it against every other writer and gives it to the consumers.
//!
//! Only the first server knows which tables there are. So that workers cannot fill a server with tables that do not exist, the
//! worker that asks first for a partition pays for it, and the partition goes when the last of those that asked for it has
//! gone; the thread that passes rows on keeps what others still want.

use super::bells::Bells;
use super::items;
use crate::limits::lacking;
use penstock_fabric::items::partition::{Layout, WAITERS_BYTES, Waiters, make};
use penstock_fabric::region::Region;
use penstock_proto::Rank;
use penstock_proto::account::{Account, Charge, Exhausted, Resource};
use penstock_proto::error::Refusal;
use penstock_proto::items::control::{PART_BYTES, TableAnswer, TableAsk};
use penstock_proto::items::registry::{Inherited, Joined, Registry};
use penstock_proto::items::spec::{MAX_ROW_BYTES, TableId};
use penstock_proto::items::wire::{PartitionId, Shape};
use penstock_proto::items::{RowSet, TableError};
use penstock_proto::membership::Members;
use rustix::fd::{AsFd, OwnedFd};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A partition that is homed here, of a producer on this host.
struct Homed {
    layout: Layout,
    shape: Shape,
    partition: Region,
    page: Region,
    waiters: Waiters,
    sealed: bool,
    /// Workers that are here and have asked for it.
    askers: BTreeSet<Rank>,
    /// Consumers that wait until it is sealed.
    waiting: Vec<Wait>,
    charges: Arc<PartitionCharges>,
}

/// What a partition's bytes, descriptors and mappings were charged: to the worker that asked for it first.
pub(super) type PartitionCharges = [Charge; 3];

/// A request that waits: whose, its number, the table's name.
struct Wait {
    rank: Rank,
    request: u64,
    name: String,
    _charges: [Charge; 2],
}

/// A sealed partition, which only its producer can write, for the thread that passes its rows on.
pub(super) struct Sealed {
    pub(super) id: PartitionId,
    pub(super) partition: OwnedFd,
    pub(super) layout: Layout,
    pub(super) shape: Shape,
    pub(super) waiters: Waiters,
    pub(super) charges: Arc<PartitionCharges>,
}

#[derive(Default)]
pub(super) struct Tables {
    account: Account,
    registry: Registry,
    partitions: BTreeMap<PartitionId, Homed>,
    /// Workers of other hosts, also those that have gone: none of their rows are mapped here.
    elsewhere: BTreeSet<Rank>,
    /// Workers that wait for a table.
    joining: Vec<Wait>,
    /// Workers that are ready for a table, and those that wait until all are.
    ready: BTreeMap<String, BTreeSet<Rank>>,
    waiting: Vec<Wait>,
    /// Tables that some workers no longer use.
    dropped: BTreeMap<TableId, Dropped>,
    /// Tables that no worker uses any more: until the control thread asks for them; and for good, for workers that ask late.
    gone: Vec<TableId>,
    freed: RowSet,
    /// What those numbers were charged, here and where rows are passed on.
    freed_charge: Charge,
    /// Whether the partition of a producer that has gone could not be sealed so far.
    unsealed: bool,
    /// Whether this is the first server, which has the book.
    first: bool,
    /// How many there are.
    servers: u32,
}

/// A table that some workers have dropped.
struct Dropped {
    name: String,
    ranks: BTreeSet<Rank>,
    /// Those that wait until all have.
    waiting: Vec<Wait>,
    _charge: Charge,
}

/// What a request is answered with.
pub(super) type Answered = Result<(TableAnswer, Vec<OwnedFd>), Refusal>;

/// Answers that have become possible, by rank and request.
pub(super) type Answers = Vec<(Rank, u64, Answered)>;

/// The worker that asks.
pub(super) struct Asker<'a> {
    pub(super) rank: Rank,
    pub(super) request: u64,
    /// Whether it is on this host.
    pub(super) local: bool,
    /// Which workers are here, and which are not any more.
    pub(super) members: &'a Members,
    /// The thread that passes rows on, if there is one.
    pub(super) passer: Option<&'a items::Handle>,
}

impl Tables {
    /// Whatever is kept is charged to this job's account.
    pub(super) fn charged_to(account: &Account, first: bool, servers: u32) -> Self {
        let (account, registry) = (account.clone(), Registry::charged_to(account.clone()));
        let freed_charge = account.charge(Resource::Bytes, 0).unwrap_or_default();
        Self { account, registry, freed_charge, first, servers, ..Self::default() }
    }

    /// A worker of another host is here. Workers that want to map its rows are refused, also those that asked before it came.
    pub(super) fn come_from_elsewhere(&mut self, rank: Rank) -> Answers {
        self.elsewhere.insert(rank);
        let (its, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.partitions).into_iter().partition(|(id, _)| id.rank == rank);
        self.partitions = others;
        let waiting = its.into_values().flat_map(|homed| homed.waiting);
        waiting.map(|Wait { rank, request, .. }| (rank, request, Err(out_of_turn(ELSEWHERE)))).collect()
    }

    /// A worker has gone: nothing waits for it, and what only it wanted is not kept any more.
    pub(super) fn forget(&mut self, rank: Rank) {
        let partitions = self.partitions.values_mut().map(|homed| &mut homed.waiting);
        let dropped = self.dropped.values_mut().map(|dropped| &mut dropped.waiting);
        for waiting in partitions.chain(dropped).chain([&mut self.joining, &mut self.waiting]) {
            waiting.retain(|wait| wait.rank != rank);
        }
        self.partitions.values_mut().for_each(|homed| _ = homed.askers.remove(&rank));
        self.partitions.retain(|_, homed| !homed.askers.is_empty());
        self.dropped.values_mut().for_each(|dropped| _ = dropped.ranks.remove(&rank));
        self.dropped.retain(|_, dropped| !dropped.ranks.is_empty());
        self.freed_charge.shrink_to(self.freed_bytes());
    }

    /// A request that waits for a table that was begun; `None` if it waits already.
    fn wait(&self, asker: &Asker<'_>, among: &[Wait], name: String) -> Result<Option<Wait>, Refusal> {
        if !self.registry.knows(&name) {
            return Err(out_of_turn("a wait for a table that was not begun"));
        }
        Wait::new(&self.account, asker, among, name)
    }

    /// Carries out a request: what can be answered now, to the asker and to others, and a partition that was sealed by it.
    pub(super) fn ask(
        &mut self,
        asker: &Asker<'_>,
        ask: TableAsk,
        bells: &mut Bells,
    ) -> (Answers, Vec<Sealed>) {
        let mut answers = Vec::new();
        let mut sealed = Vec::new();
        let rank = asker.rank;
        let done = |result: Result<(), TableError>| match result {
            Ok(()) => Ok((TableAnswer::Done, Vec::new())),
            Err(error) => Err(Refusal::Table(error)),
        };
        let answer = match ask {
            TableAsk::Begin { home, .. } if home >= self.servers => {
                Some(Err(out_of_turn(&format!("rows at home at server {home} of {}", self.servers))))
            }
            TableAsk::Begin { spec, home, near } => {
                let begun = self.registry.begin(rank, &spec, home, near, &asker.members.live);
                if begun.is_err() {
                    // Those that declared it otherwise wait for this one, and are told now.
                    answers.append(&mut self.join(asker.members));
                }
                Some(done(begun))
            }
            TableAsk::Rows { name, part, bytes } => Some(done(self.registry.part(rank, &name, part, &bytes))),
            TableAsk::End { name } => Some(done(self.registry.end(rank, &name))),
            TableAsk::Join { name } => match self.wait(asker, &self.joining, name.clone()) {
                Ok(wait) => {
                    // A worker that asks again has given up on what it asked before.
                    self.joining.retain(|before| wait.is_none() || !before.is_of(rank, &name));
                    self.joining.extend(wait);
                    answers.append(&mut self.join(asker.members));
                    None
                }
                Err(refusal) => Some(Err(refusal)),
            },
            TableAsk::Ready { name } => match self.wait(asker, &self.waiting, name.clone()) {
                Ok(wait) => {
                    self.waiting.retain(|before| wait.is_none() || !before.is_of(rank, &name));
                    self.ready.entry(name).or_default().insert(rank);
                    self.waiting.extend(wait);
                    answers.append(&mut self.join(asker.members));
                    None
                }
                Err(refusal) => Some(Err(refusal)),
            },
            TableAsk::Drop { name, id } => match self.discard(asker, name, id) {
                Ok(true) => Some(done(Ok(()))),
                Ok(false) => {
                    answers.append(&mut self.join(asker.members));
                    None
                }
                Err(refusal) => Some(Err(refusal)),
            },
            TableAsk::Users { id } => {
                let ranks = self.users(id, &asker.members.live);
                Some(Ok((TableAnswer::Absent { ranks }, Vec::new())))
            }
            TableAsk::Absent { name } => {
                let ranks = self.undeclared(&name, &asker.members.live);
                Some(Ok((TableAnswer::Absent { ranks }, Vec::new())))
            }
            TableAsk::Produced { name, rank, from } => Some(self.produced(&name, rank, from)),
            TableAsk::Partition { partition, slots, row_bytes, propagation } => {
                let shape = Shape { slots, row_bytes, propagation };
                let answer = self.partition(asker, partition, shape, &mut answers, bells).transpose();
                // A producer that went before it had mapped its rows will not write to them any more.
                if answer.is_none() && asker.members.is_gone(partition.rank) {
                    sealed.extend(self.abandoned(partition, &mut answers, bells));
                }
                answer
            }
            TableAsk::Mapped { partition } => match self.seal(asker, partition, &mut answers, bells) {
                Ok(it) => {
                    sealed.extend(it);
                    Some(Ok((TableAnswer::Done, Vec::new())))
                }
                Err(refusal) => Some(Err(refusal)),
            },
        };
        answers.extend(answer.map(|answer| (rank, asker.request, answer)));
        (answers, sealed)
    }

    /// Answers those that wait for tables that all live workers have declared, or are ready for.
    pub(super) fn join(&mut self, members: &Members) -> Answers {
        let (live, mut answers) = (&members.live, Vec::new());
        self.waiting.retain(|Wait { rank, request, name, .. }| {
            let all = self.ready.get(name).is_some_and(|ready| live.is_subset(ready));
            if all {
                answers.push((*rank, *request, Ok((TableAnswer::Done, Vec::new()))));
            }
            !all
        });
        self.joining.retain(|Wait { rank, request, name, .. }| {
            match self.registry.joined(*rank, name, members) {
                None => true,
                Some(joined) => {
                    let answer = joined
                        .map(|Joined { id, producers }| (TableAnswer::Joined { id, producers }, Vec::new()));
                    answers.push((*rank, *request, answer.map_err(Refusal::Table)));
                    false
                }
            }
        });
        for Inherited { name, rank, rows } in self.registry.take_inherited() {
            tracing::warn!(
                table = name,
                rank,
                %rows,
                "nobody produces these rows; they count as those of a worker that was lost before it declared the table, and stay zero"
            );
        }
        let unused = |(_, dropped): &(&TableId, &Dropped)| live.is_subset(&dropped.ranks);
        let unused: Vec<TableId> = self.dropped.iter().filter(unused).map(|(id, _)| *id).collect();
        for id in unused {
            let Some(Dropped { name, waiting, .. }) = self.dropped.remove(&id) else { continue };
            self.registry.remove(&name, id);
            self.ready.remove(&name);
            self.gone.push(id);
            self.freed = self.freed.union(&RowSet::from_rows([id.into()]));
            self.freed_charge.shrink_to(self.freed_bytes());
            for Wait { rank, request, .. } in waiting {
                answers.push((rank, request, Ok((TableAnswer::Done, Vec::new()))));
            }
        }
        answers
    }

    /// Which workers have not declared a table, or, when all have, are not ready for it.
    pub(super) fn undeclared(&self, name: &str, live: &BTreeSet<Rank>) -> Vec<Rank> {
        let missing = self.registry.missing(name, live);
        if !missing.is_empty() {
            return missing;
        }
        let ready = self.ready.get(name);
        live.iter().filter(|rank| !ready.is_some_and(|ready| ready.contains(rank))).copied().collect()
    }

    /// Which workers still use a table that others have dropped.
    pub(super) fn users(&self, id: TableId, live: &BTreeSet<Rank>) -> Vec<Rank> {
        let dropped = self.dropped.get(&id);
        let uses = |rank: &&Rank| dropped.is_some_and(|dropped| !dropped.ranks.contains(rank));
        live.iter().filter(uses).copied().collect()
    }

    /// A worker no longer uses a table. Returns whether none does.
    fn discard(&mut self, asker: &Asker<'_>, name: String, id: TableId) -> Result<bool, Refusal> {
        if self.freed.contains(id.into()) {
            return Ok(true);
        }
        if self.first && !self.registry.is(&name, id, asker.rank) {
            return Err(out_of_turn("a table that it has not declared"));
        }
        // Other servers do not know the name. Where something is there of the table, it is freed when all
        // live workers have said so.
        if !self.first && !self.dropped.contains_key(&id) && !self.has(id, asker.passer) {
            return Ok(true);
        }
        // Before anything is kept for it: the waits of a worker bound the tables that it can name.
        let among = self.dropped.get(&id).map_or(&[][..], |dropped| &dropped.waiting);
        let wait = Wait::new(&self.account, asker, among, String::new())?;
        if !self.dropped.contains_key(&id) {
            // Paid now, for when it is freed: numbers that follow each other take no more than one.
            let freed = self.freed_bytes() + FREED_COPIES * FREED_BYTES;
            let more = freed.saturating_sub(self.freed_charge.amount());
            let charged = self.freed_charge.grow(more);
            charged.map_err(|why: Exhausted| why.refuse("the number of a table that is dropped"))?;
            let bytes = (size_of::<Dropped>() + name.len()) as u64;
            let charge = self.account.worker(asker.rank).charge(Resource::Bytes, bytes);
            let charge = charge.map_err(|why: Exhausted| why.refuse("a table that is dropped"))?;
            let (ranks, waiting) = (BTreeSet::new(), Vec::new());
            self.dropped.insert(id, Dropped { name, ranks, waiting, _charge: charge });
        }
        let Some(dropped) = self.dropped.get_mut(&id) else { return Ok(false) };
        dropped.ranks.insert(asker.rank);
        dropped.waiting.retain(|before| wait.is_none() || before.rank != asker.rank);
        dropped.waiting.extend(wait);
        Ok(false)
    }

    /// Whether anything of a table is here.
    fn has(&self, table: TableId, passer: Option<&items::Handle>) -> bool {
        let first = self.partitions.range(PartitionId { table, rank: 0 }..).next();
        first.is_some_and(|(id, _)| id.table == table) || passer.is_some_and(|passer| passer.has(table))
    }

    /// Bytes of the numbers of tables that are gone, and of those that may be the next.
    fn freed_bytes(&self) -> u64 {
        FREED_COPIES * (self.freed.kept_bytes() + self.dropped.len() as u64 * FREED_BYTES)
    }

    /// Frees the partitions of tables that no worker uses any more; returns which, for the thread that passes rows on.
    pub(super) fn free(&mut self) -> Vec<TableId> {
        let gone = std::mem::take(&mut self.gone);
        for id in &gone {
            self.partitions.retain(|partition, _| partition.table != *id);
        }
        gone
    }

    fn produced(&self, name: &str, rank: Rank, from: u64) -> Answered {
        let all = self
            .registry
            .produced(name, rank)
            .ok_or_else(|| out_of_turn("a producer that does not exist"))?;
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(all.len());
        let bytes = all[from..all.len().min(from + PART_BYTES)].to_vec();
        Ok((TableAnswer::Produced { bytes, total: all.len() as u64 }, Vec::new()))
    }

    fn partition(
        &mut self,
        asker: &Asker<'_>,
        id: PartitionId,
        shape: Shape,
        answers: &mut Answers,
        bells: &mut Bells,
    ) -> Result<Option<(TableAnswer, Vec<OwnedFd>)>, Refusal> {
        if !asker.local {
            return Err(out_of_turn("a partition that is to be mapped on another host"));
        }
        if shape.slots == 0 || !(1..=MAX_ROW_BYTES).contains(&shape.row_bytes) {
            return Err(out_of_turn("a partition without rows, or with too long ones"));
        }
        // A producer that has gone may have rows that it never had: those that no worker declared. What came from other hosts
        // stays what it is.
        if self.elsewhere.contains(&id.rank) && !asker.members.is_gone(id.rank) {
            return Err(out_of_turn(ELSEWHERE));
        }
        let none = self.first && self.registry.shape(id, 0) != Some(shape);
        if none || self.freed.contains(id.table.into()) {
            return Err(out_of_turn(&no_partition(id, shape)));
        }
        let layout = Layout::new(shape.slots, shape.row_bytes);
        // Its producer knows best what it holds: a worker that has named something else is told so.
        let wrong = |homed: &Homed| homed.shape != shape && !homed.askers.contains(&id.rank);
        if asker.rank == id.rank && self.partitions.get(&id).is_some_and(wrong) {
            for Wait { rank, request, .. } in
                self.partitions.remove(&id).into_iter().flat_map(|homed| homed.waiting)
            {
                answers.push((rank, request, Err(out_of_turn(OTHER_ROWS))));
            }
        }
        let homed = match self.partitions.entry(id) {
            Entry::Occupied(homed) => homed.into_mut(),
            Entry::Vacant(place) => {
                let peer = self.account.worker(asker.rank);
                place.insert(Homed::make(id, shape, layout, asker.members.size(), &peer)?)
            }
        };
        if homed.shape != shape {
            return Err(out_of_turn(OTHER_ROWS));
        }
        homed.askers.insert(asker.rank);
        if !homed.sealed && asker.rank != id.rank {
            let wait = Wait::new(&self.account, asker, &homed.waiting, String::new())?;
            homed.waiting.retain(|before| wait.is_none() || before.rank != asker.rank);
            homed.waiting.extend(wait);
            return Ok(None);
        }
        homed.pass(bells.of(asker.rank, &self.account)?).map(Some)
    }

    fn seal(
        &mut self,
        asker: &Asker<'_>,
        id: PartitionId,
        answers: &mut Answers,
        bells: &mut Bells,
    ) -> Result<Option<Sealed>, Refusal> {
        if id.rank != asker.rank {
            return Err(out_of_turn("a partition that is another's"));
        }
        self.seal_partition(id, answers, bells)
    }

    /// A producer has gone: what it had not mapped by then it never will, and workers that wait for it are given it as it is.
    pub(super) fn abandon(&mut self, rank: Rank, bells: &mut Bells) -> (Answers, Vec<Sealed>) {
        let (mut answers, mut sealed) = (Vec::new(), Vec::new());
        let open = self.partitions.iter().filter(|(id, homed)| id.rank == rank && !homed.sealed);
        for id in open.map(|(id, _)| *id).collect::<Vec<_>>() {
            sealed.extend(self.abandoned(id, &mut answers, bells));
        }
        (answers, sealed)
    }

    fn abandoned(&mut self, id: PartitionId, answers: &mut Answers, bells: &mut Bells) -> Option<Sealed> {
        self.seal_partition(id, answers, bells).unwrap_or_else(|refusal| {
            if !std::mem::replace(&mut self.unsealed, true) {
                tracing::warn!(rank = id.rank, table = id.table, %refusal, "rows of a worker that has gone cannot be passed on so far");
            }
            None
        })
    }

    /// Whether a partition is to be [sealed again](Self::seal_again).
    pub(super) fn is_unsealed(&self) -> bool {
        self.unsealed
    }

    /// Seals what could not be sealed when its producer went: the system may have descriptors again.
    pub(super) fn seal_again(&mut self, members: &Members, bells: &mut Bells) -> (Answers, Vec<Sealed>) {
        let (mut answers, mut sealed) = (Vec::new(), Vec::new());
        let open = self.partitions.iter().filter(|(id, homed)| !homed.sealed && members.is_gone(id.rank));
        let open: Vec<PartitionId> = open.map(|(id, _)| *id).collect();
        for &id in &open {
            sealed.extend(self.abandoned(id, &mut answers, bells));
        }
        self.unsealed = open.iter().any(|id| self.partitions.get(id).is_some_and(|homed| !homed.sealed));
        (answers, sealed)
    }

    /// Seals a partition against every other writer, and gives it to those that wait for it. Returns what is passed on, unless it
    /// was sealed before.
    fn seal_partition(
        &mut self,
        id: PartitionId,
        answers: &mut Answers,
        bells: &mut Bells,
    ) -> Result<Option<Sealed>, Refusal> {
        let homed =
            self.partitions.get_mut(&id).ok_or_else(|| out_of_turn("a partition that does not exist"))?;
        let new = !homed.sealed;
        let mut passed_on = None;
        if new {
            // Before it is sealed: where there is no descriptor left, a worker that asks again finds everything still to be done.
            passed_on = Some(clone(homed.partition.fd())?);
            homed.partition.seal().map_err(lacking("seal a table's memory"))?;
            homed.sealed = true;
        }
        for Wait { rank, request, .. } in std::mem::take(&mut homed.waiting) {
            let passed = bells.of(rank, &self.account).and_then(|bell| homed.pass(bell));
            answers.push((rank, request, passed));
        }
        // Said twice, it is passed on once.
        let (layout, shape, waiters) = (homed.layout, homed.shape, homed.waiters.clone());
        let charges = Arc::clone(&homed.charges);
        Ok(passed_on.map(|partition| Sealed { id, partition, layout, shape, waiters, charges }))
    }
}

impl Wait {
    fn is_of(&self, rank: Rank, name: &str) -> bool {
        self.rank == rank && self.name == name
    }

    /// `None` if it is among those that wait.
    fn new(
        account: &Account,
        asker: &Asker<'_>,
        among: &[Self],
        name: String,
    ) -> Result<Option<Self>, Refusal> {
        let (rank, request) = (asker.rank, asker.request);
        if among.iter().any(|wait| (wait.rank, wait.request) == (rank, request)) {
            return Ok(None);
        }
        let refuse = |why: Exhausted| why.refuse("another wait for a table");
        let peer = account.worker(rank);
        let bytes = (size_of::<Self>() + name.len()) as u64;
        let charges = [
            peer.charge(Resource::Entries, WAIT_ENTRIES).map_err(refuse)?,
            peer.charge(Resource::Bytes, bytes).map_err(refuse)?,
        ];
        Ok(Some(Self { rank, request, name, _charges: charges }))
    }
}

/// Where numbers of tables that are gone are kept: here, where rows are passed on, and one while it is made anew.
const FREED_COPIES: u64 = 3;
/// Bytes of a number that follows no other.
const FREED_BYTES: u64 = 32;

/// Entries that a wait for a table counts for: all are looked at when one may have become possible.
const WAIT_ENTRIES: u64 = 256;

impl Homed {
    fn make(
        id: PartitionId,
        shape: Shape,
        layout: Layout,
        workers: u32,
        peer: &Account,
    ) -> Result<Self, Refusal> {
        let bytes = (layout.total() + WAITERS_BYTES) as u64;
        let refuse = |why: Exhausted| why.refuse(format!("the memory of table {}", id.table));
        let charges = [
            peer.charge(Resource::Bytes, bytes).map_err(|why| {
                let (name, needed, available) = (format!("table {}", id.table), why.asked, why.left);
                Refusal::OutOfMemory { name, needed, available, workers }
            })?,
            peer.charge(Resource::Descriptors, 3).map_err(refuse)?,
            peer.charge(Resource::Mappings, 3).map_err(refuse)?,
        ];
        let made = make(&layout).and_then(|partition| Ok((partition, Waiters::make()?)));
        let (partition, (waiters, page)) = made.map_err(lacking("make a table's memory"))?;
        let (sealed, askers, waiting, charges) = (false, BTreeSet::new(), Vec::new(), Arc::new(charges));
        Ok(Self { layout, shape, partition, page, waiters, sealed, askers, waiting, charges })
    }

    fn pass(&self, bell: &OwnedFd) -> Answered {
        let descriptors = vec![clone(self.partition.fd())?, clone(self.page.fd())?, clone(bell)?];
        Ok((TableAnswer::Partition, descriptors))
    }
}

fn clone(fd: impl AsFd) -> Result<OwnedFd, Refusal> {
    fd.as_fd().try_clone_to_owned().map_err(lacking("pass a table's memory"))
}

const ELSEWHERE: &str = "a partition of a worker on another host, whose rows come by the network";
const OTHER_ROWS: &str = "a partition with other rows than it has";

fn no_partition(PartitionId { table, rank }: PartitionId, shape: Shape) -> String {
    let Shape { slots, row_bytes, .. } = shape;
    format!(
        "a partition of {slots} rows of {row_bytes} bytes that worker {rank} does not have here in table {table}"
    )
}

fn out_of_turn(what: &str) -> Refusal {
    Refusal::Table(TableError::OutOfTurn { what: what.to_owned() })
}
