//! Tables of items, as the control thread knows them: the book (on the first server), and the partitions that are homed here.
//!
//! Rows between workers of this host never pass through the server: it makes a partition, gives it to its producer, and, once the
//! producer has mapped it, seals it against every other writer and gives it to the consumers.
//!
//! Only the first server knows which tables there are. So that workers cannot fill a server with tables that do not exist, the
//! worker that asks first for a partition pays for it, and the partition goes when the last of those that asked for it has
//! gone; the thread that passes rows on keeps what others still want.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | the book: what workers ask, and what they wait for until others have asked it too |
//! | [`partitions`] | partitions that are homed here |

mod partitions;

use super::bells::Bells;
use super::items;
use partitions::{Homed, elsewhere};
pub(in crate::server) use partitions::{PartitionCharges, Sealed};
use penstock_proto::Rank;
use penstock_proto::account::{Account, Charge, Exhausted, Resource};
use penstock_proto::error::Refusal;
use penstock_proto::items::control::{PART_BYTES, TableAnswer, TableAsk};
use penstock_proto::items::registry::{Inherited, Joined, Registry, Settled, Work};
use penstock_proto::items::spec::TableId;
use penstock_proto::items::wire::{PartitionId, Shape};
use penstock_proto::items::{RowSet, TableError};
use penstock_proto::membership::Members;
use rustix::fd::OwnedFd;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

/// A request that waits: whose, its number, the table's name.
struct Wait {
    rank: Rank,
    request: u64,
    name: String,
    _charges: [Charge; 2],
}

#[derive(Default)]
pub(in crate::server) struct Tables {
    account: Account,
    registry: Registry,
    partitions: BTreeMap<PartitionId, Homed>,
    /// Those of them whose memory is still to be touched, and which was touched last.
    untouched: BTreeSet<PartitionId>,
    touched_last: Option<PartitionId>,
    /// Workers of other hosts, also those that have gone: none of their rows are mapped here.
    elsewhere: BTreeSet<Rank>,
    /// Workers that wait for a table.
    joining: Vec<Wait>,
    /// Whether some of them can be answered once more has been done for it.
    unsettled: bool,
    /// Workers that wait until all are ready for a table.
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
    /// How many waits were gone over, each as often as its price says.
    gone_over: Cell<usize>,
    /// Ends of ranges that were gone over since that was last asked, and whether none are for now.
    swept: Work,
    rests: bool,
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
pub(in crate::server) type Answered = Result<(TableAnswer, Vec<OwnedFd>), Refusal>;

/// Answers that have become possible, by rank and request.
pub(in crate::server) type Answers = Vec<(Rank, u64, Answered)>;

/// The worker that asks.
pub(in crate::server) struct Asker<'a> {
    pub(in crate::server) rank: Rank,
    pub(in crate::server) request: u64,
    /// Whether it is on this host.
    pub(in crate::server) local: bool,
    /// Which workers are here, and which are not any more.
    pub(in crate::server) members: &'a Members,
    /// The thread that passes rows on, if there is one.
    pub(in crate::server) passer: Option<&'a items::Handle>,
}

impl Tables {
    /// Whatever is kept is charged to this job's account.
    pub(in crate::server) fn charged_to(account: &Account, first: bool, servers: u32) -> Self {
        let (account, registry) = (account.clone(), Registry::charged_to(account.clone()));
        let freed_charge = account.charge(Resource::Bytes, 0).unwrap_or_default();
        Self { account, registry, freed_charge, first, servers, ..Self::default() }
    }

    /// A worker of another host is here. Workers that want to map its rows are refused, also those that asked before it came.
    pub(in crate::server) fn come_from_elsewhere(&mut self, rank: Rank) -> Answers {
        self.elsewhere.insert(rank);
        let (its, others): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.partitions).into_iter().partition(|(id, _)| id.rank == rank);
        self.partitions = others;
        let waiting = its.into_values().flat_map(|homed| homed.waiting);
        waiting.map(|Wait { rank: asker, request, .. }| (asker, request, Err(elsewhere(rank)))).collect()
    }

    /// A worker has gone: nothing waits for it, and what only it wanted is not kept any more.
    pub(in crate::server) fn forget(&mut self, rank: Rank) {
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
    pub(in crate::server) fn ask(
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
            // At other servers it is found out when somebody asks to map its rows.
            TableAsk::Begin { home: 0, near: true, .. } if self.first && !asker.local => Some(Err(
                out_of_turn(&format!("rows in this host's memory of worker {rank}, which is on another")),
            )),
            TableAsk::Begin { spec, home, near } => {
                let begun = self.registry.begin(rank, &spec, home, near, &asker.members.live);
                if begun.is_err() {
                    // Those that declared it otherwise wait for this one, and are told now.
                    answers.append(&mut self.join_one(&spec.name, asker.members));
                }
                Some(done(begun))
            }
            TableAsk::Rows { name, part, bytes } => Some(done(self.registry.part(rank, &name, part, &bytes))),
            TableAsk::End { name } => {
                let ended = self.registry.end(rank, &name);
                // Those that wait for it need not wait until this worker does, too, which may be interrupted before that.
                answers.append(&mut self.join_one(&name, asker.members));
                // It hears with them what is wrong, or they could not declare it anew before it asks.
                Some(done(ended.and_then(|()| self.registry.tell_failure(rank, &name))))
            }
            TableAsk::Join { name } => match self.wait(asker, &self.joining, name.clone()) {
                Ok(wait) => {
                    // A worker that asks again has given up on what it asked before.
                    self.joining.retain(|before| wait.is_none() || !before.is_of(rank, &name));
                    self.joining.extend(wait);
                    answers.append(&mut self.join_one(&name, asker.members));
                    None
                }
                Err(refusal) => Some(Err(refusal)),
            },
            TableAsk::Ready { name } => match self.wait(asker, &self.waiting, name.clone()) {
                Ok(wait) => {
                    self.waiting.retain(|before| wait.is_none() || !before.is_of(rank, &name));
                    self.registry.get_ready(rank, &name);
                    self.waiting.extend(wait);
                    answers.append(&mut self.let_use(Some(&name), asker.members));
                    None
                }
                Err(refusal) => Some(Err(refusal)),
            },
            TableAsk::Drop { name, id } => match self.discard(asker, name, id) {
                Ok(true) => Some(done(Ok(()))),
                Ok(false) => {
                    answers.append(&mut self.end_unused(Some(id), asker.members));
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
    ///
    /// However large the tables are, this takes no longer than a turn may: what is left is for [`settle`](Self::settle).
    pub(in crate::server) fn join(&mut self, members: &Members) -> Answers {
        let mut answers = self.let_use(None, members);
        // While they rest, it is for a later turn.
        self.unsettled |= self.rests;
        // Requests that come meanwhile make no turn longer.
        if !self.unsettled {
            answers.append(&mut self.settle(members));
        }
        answers.append(&mut self.end_unused(None, members));
        answers
    }

    /// How many waits were gone over since the last call of this, each as often as its price says.
    pub(in crate::server) fn take_gone_over(&self) -> usize {
        self.gone_over.take()
    }

    /// How many ends of ranges were gone over since the last call of this.
    pub(in crate::server) fn take_swept(&mut self) -> Work {
        std::mem::take(&mut self.swept)
    }

    /// Whether no ranges are gone over until this is called again: what there is to do for tables stays.
    pub(in crate::server) fn rest(&mut self, rests: bool) {
        self.rests = rests;
    }

    /// So many waits are gone over.
    fn note(&self, times: usize) {
        self.gone_over.set(self.gone_over.get() + times);
    }

    /// Answers those that wait for one table: a request for it changes nothing for the others.
    fn join_one(&mut self, name: &str, members: &Members) -> Answers {
        self.note(A_NAME * self.joining.len());
        // As in `join`.
        self.unsettled |= self.rests;
        if self.unsettled {
            return Vec::new();
        }
        let share = A_TURN / self.joining.len().max(1) as Work + LEAST;
        let answers = self.settle_these(BTreeSet::from([name.to_owned()]), share, members);
        if self.unsettled {
            // All are gone over in the next turn.
            self.note(A_SETTLED * self.joining.len());
        }
        answers
    }

    /// Answers those that wait until all are ready, for one table or for any.
    fn let_use(&mut self, only: Option<&str>, members: &Members) -> Answers {
        self.note(A_NAME * self.waiting.len());
        let (live, mut answers) = (&members.live, Vec::new());
        self.waiting.retain(|Wait { rank, request, name, .. }| {
            let all = only.is_none_or(|only| only == name)
                && self.registry.ready(name).is_some_and(|ready| live.is_subset(ready));
            if all {
                answers.push((*rank, *request, Ok((TableAnswer::Done, Vec::new()))));
            }
            !all
        });
        answers
    }

    /// Lets go of what all live workers have dropped, one table or any, and answers those that wait for that.
    fn end_unused(&mut self, only: Option<TableId>, members: &Members) -> Answers {
        let (live, mut answers) = (&members.live, Vec::new());
        let unused = |(id, dropped): &(&TableId, &Dropped)| {
            only.is_none_or(|only| only == **id) && live.is_subset(&dropped.ranks)
        };
        let unused: Vec<TableId> = self.dropped.iter().filter(unused).map(|(id, _)| *id).collect();
        for id in unused {
            let Some(Dropped { name, waiting, .. }) = self.dropped.remove(&id) else { continue };
            self.registry.remove(&name, id);
            self.gone.push(id);
            self.freed = self.freed.union(&RowSet::from_rows([id.into()]));
            self.freed_charge.shrink_to(self.freed_bytes());
            for Wait { rank, request, .. } in waiting {
                answers.push((rank, request, Ok((TableAnswer::Done, Vec::new()))));
            }
        }
        answers
    }

    /// Whether it is to be [gone on](Self::settle) with tables that workers wait for.
    pub(in crate::server) fn is_unsettled(&self) -> bool {
        self.unsettled
    }

    /// Whether that is to be done now.
    pub(in crate::server) fn may_settle(&self) -> bool {
        self.unsettled && !self.rests
    }

    /// Goes on with tables that all live workers have declared: a part of what there is to do, and the answers that are known.
    pub(in crate::server) fn settle(&mut self, members: &Members) -> Answers {
        let names: BTreeSet<&str> = self.joining.iter().map(|wait| &wait.name[..]).collect();
        let names: BTreeSet<String> = names.into_iter().map(str::to_owned).collect();
        self.note(A_NAME * self.joining.len());
        // No table waits for another.
        let share = A_TURN / names.len().max(1) as Work + LEAST;
        self.settle_these(names, share, members)
    }

    fn settle_these(&mut self, names: BTreeSet<String>, share: Work, members: &Members) -> Answers {
        let (mut known, mut unsettled) = (BTreeMap::new(), false);
        for name in names {
            let mut work = share;
            let settled = self.registry.settle(&name, members, &mut work);
            self.swept += share - work;
            match settled {
                Settled::Lacking => {}
                Settled::Partly => unsettled = true,
                Settled::Known => _ = known.insert(name, work),
            }
        }
        let mut answers = Vec::new();
        self.joining.retain(|Wait { rank, request, name, .. }| {
            let Some(work) = known.get_mut(name) else { return true };
            if *work == 0 {
                unsettled = true;
                return true;
            }
            let Some(joined) = self.registry.joined(*rank, name) else { return true };
            let told = joined.as_ref().map_or(0, |joined| joined.producers.len() as Work);
            *work = work.saturating_sub(1 + told);
            let answer =
                joined.map(|Joined { id, producers }| (TableAnswer::Joined { id, producers }, Vec::new()));
            answers.push((*rank, *request, answer.map_err(Refusal::Table)));
            false
        });
        self.unsettled = unsettled;
        for Inherited { name, rank, rows } in self.registry.take_inherited() {
            tracing::warn!(
                table = name,
                rank,
                %rows,
                "nobody produces these rows; they count as those of a worker that was lost before it declared the table, and stay zero"
            );
        }
        answers
    }

    /// Which workers have not declared a table, or, when all have, are not ready for it.
    pub(in crate::server) fn undeclared(&self, name: &str, live: &BTreeSet<Rank>) -> Vec<Rank> {
        let missing = self.registry.missing(name, live);
        if !missing.is_empty() {
            return missing;
        }
        self.note(A_NAME * self.joining.len());
        // It is being made: those that still wait for it wait for no worker.
        if self.joining.iter().any(|wait| wait.name == name) {
            return Vec::new();
        }
        let ready = self.registry.ready(name);
        live.iter().filter(|rank| !ready.is_some_and(|ready| ready.contains(rank))).copied().collect()
    }

    /// Which workers a worker waits for that has said that it waits for a table: for those that have not declared it, or, when it
    /// has it, for those that are not ready. One that was answered meanwhile waits for none, and none waits for itself.
    pub(in crate::server) fn awaited_by(&self, rank: Rank, name: &str, live: &BTreeSet<Rank>) -> Vec<Rank> {
        // Only of this worker's waits are names compared.
        self.note(self.joining.len() + self.waiting.len());
        let waits = |among: &[Wait]| among.iter().any(|wait| wait.is_of(rank, name));
        match (waits(&self.joining), waits(&self.waiting)) {
            (true, _) => self.registry.missing(name, live),
            (_, true) => self.undeclared(name, live),
            _ => Vec::new(),
        }
    }

    /// Which workers still use a table that others have dropped.
    pub(in crate::server) fn users(&self, id: TableId, live: &BTreeSet<Rank>) -> Vec<Rank> {
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
    pub(in crate::server) fn free(&mut self) -> Vec<TableId> {
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

/// How much is done in one turn for tables that all have declared: a few milliseconds.
const A_TURN: Work = 1 << 16;
/// The least for each of them, however many there are.
const LEAST: Work = 16;

/// What it costs to compare a wait's name, which may be long, in waits that are gone over for a circle.
const A_NAME: usize = 4;
/// What it costs to go on with a wait's table.
const A_SETTLED: usize = 50;

/// Entries that a wait for a table counts for: all are looked at when one may have become possible.
const WAIT_ENTRIES: u64 = 256;

fn out_of_turn(what: &str) -> Refusal {
    Refusal::Table(TableError::OutOfTurn { what: what.to_owned() })
}

#[cfg(test)]
mod tests;
