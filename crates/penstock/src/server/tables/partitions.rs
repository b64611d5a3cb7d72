//! Partitions that are homed here: made for their producers, sealed once those have mapped them, and given to consumers.

use super::super::bells::Bells;
use super::super::first_touch::FirstTouch;
use super::{Answered, Answers, Asker, Tables, Wait, out_of_turn};
use crate::limits::lacking;
use penstock_fabric::items::partition::{Layout, WAITERS_BYTES, Waiters, make};
use penstock_fabric::region::{Region, Untouched};
use penstock_proto::Rank;
use penstock_proto::account::{Account, Charge, Exhausted, Resource};
use penstock_proto::error::Refusal;
use penstock_proto::items::control::TableAnswer;
use penstock_proto::items::wire::{PartitionId, Shape};
use penstock_proto::membership::Members;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::collections::btree_map::Entry;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

/// A partition that is homed here, of a producer on this host.
pub(super) struct Homed {
    layout: Layout,
    shape: Shape,
    partition: Region,
    page: Region,
    waiters: Waiters,
    /// What of it is still to be touched: before, nobody is given it.
    untouched: Untouched,
    sealed: bool,
    /// Workers that are here and have asked for it.
    pub(super) askers: BTreeSet<Rank>,
    /// Its producer, if it waits until all is touched, and consumers that wait until it is sealed.
    pub(super) waiting: Vec<Wait>,
    charges: Arc<PartitionCharges>,
}

/// What a partition's bytes, descriptors and mappings were charged: to the worker that asked for it first.
pub(in crate::server) type PartitionCharges = [Charge; 3];

/// A sealed partition, which only its producer can write, for the thread that passes its rows on.
pub(in crate::server) struct Sealed {
    pub(in crate::server) id: PartitionId,
    pub(in crate::server) partition: OwnedFd,
    pub(in crate::server) layout: Layout,
    pub(in crate::server) shape: Shape,
    pub(in crate::server) waiters: Waiters,
    pub(in crate::server) charges: Arc<PartitionCharges>,
}

impl Tables {
    pub(super) fn partition(
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
        let layout = Layout::checked(shape.slots, shape.row_bytes);
        let Some(layout) = layout.filter(|_| shape.slots > 0 && shape.row_bytes > 0) else {
            return Err(out_of_turn("a partition without rows, or with too many or too long ones"));
        };
        // A producer that has gone may have rows that it never had: those that no worker declared. What came from other hosts
        // stays what it is.
        if self.elsewhere.contains(&id.rank) && !asker.members.is_gone(id.rank) {
            return Err(elsewhere(id.rank));
        }
        let none = self.first && self.registry.shape(id, 0) != Some(shape);
        if none || self.freed.contains(id.table.into()) {
            return Err(out_of_turn(&no_partition(id, shape)));
        }
        // Its producer knows best what it holds: a worker that has named something else is told so.
        let wrong = |homed: &Homed| homed.shape != shape && !homed.askers.contains(&id.rank);
        if asker.rank == id.rank && self.partitions.get(&id).is_some_and(wrong) {
            for Wait { rank, request, .. } in
                self.partitions.remove(&id).into_iter().flat_map(|homed| homed.waiting)
            {
                answers.push((rank, request, Err(other_rows(id.rank))));
            }
        }
        let homed = match self.partitions.entry(id) {
            Entry::Occupied(homed) => homed.into_mut(),
            Entry::Vacant(place) => {
                let peer = self.account.worker(asker.rank);
                let homed = place.insert(Homed::make(id, shape, layout, asker.members.size(), &peer)?);
                self.untouched.insert(id);
                homed
            }
        };
        if homed.shape != shape {
            return Err(other_rows(id.rank));
        }
        homed.askers.insert(asker.rank);
        if !homed.is_ready_for(id, asker.rank) {
            let wait = Wait::new(&self.account, asker, &homed.waiting, String::new())?;
            homed.waiting.retain(|before| wait.is_none() || before.rank != asker.rank);
            homed.waiting.extend(wait);
            return Ok(None);
        }
        homed.pass(bells.of(asker.rank, &self.account)?).map(Some)
    }

    pub(super) fn seal(
        &mut self,
        asker: &Asker<'_>,
        id: PartitionId,
        answers: &mut Answers,
        bells: &mut Bells,
    ) -> Result<Option<Sealed>, Refusal> {
        if id.rank != asker.rank {
            return Err(out_of_turn("a partition that is another's"));
        }
        if self.partitions.get(&id).is_some_and(|homed| !homed.untouched.is_done()) {
            return Err(out_of_turn("a partition that it was not given so far"));
        }
        self.seal_partition(id, answers, bells)
    }

    /// Whether memory is still to be [touched](Self::touch).
    pub(in crate::server) fn is_untouched(&self) -> bool {
        !self.untouched.is_empty()
    }

    /// Touches what partitions that were asked for still lack, as much as a turn may, of another in each turn: a small one waits
    /// for no large one. Who waits for one that is all there is answered, and if there is no memory, all that wait for it.
    pub(in crate::server) fn touch(
        &mut self,
        members: &Members,
        bells: &mut Bells,
        first_touch: &mut FirstTouch,
    ) -> (Answers, Vec<Sealed>) {
        let (mut answers, mut sealed) = (Vec::new(), Vec::new());
        while !first_touch.is_over()
            && let Some(id) = self.next_untouched()
        {
            self.touched_last = Some(id);
            let touched = match self.partitions.get_mut(&id) {
                Some(homed) => first_touch.touch(&mut homed.untouched),
                None => Ok(true),
            };
            if touched != Ok(false) {
                self.untouched.remove(&id);
            }
            match touched {
                Ok(true) => sealed.extend(self.complete(id, members, &mut answers, bells)),
                Ok(false) => {}
                Err(errno) => {
                    let waiting = self.partitions.remove(&id).into_iter().flat_map(|homed| homed.waiting);
                    let lacking = |Wait { rank, request, .. }| (rank, request, Err(no_memory(errno)));
                    answers.extend(waiting.map(lacking));
                }
            }
        }
        (answers, sealed)
    }

    fn next_untouched(&self) -> Option<PartitionId> {
        let after = self.touched_last.map_or(Unbounded, Excluded);
        self.untouched.range((after, Unbounded)).next().or_else(|| self.untouched.first()).copied()
    }

    /// All of a partition was touched: its producer is given it.
    fn complete(
        &mut self,
        id: PartitionId,
        members: &Members,
        answers: &mut Answers,
        bells: &mut Bells,
    ) -> Option<Sealed> {
        let homed = self.partitions.get_mut(&id)?;
        let its = |wait: &mut Wait| wait.rank == id.rank;
        for Wait { rank, request, .. } in homed.waiting.extract_if(.., its).collect::<Vec<_>>() {
            let passed = bells.of(rank, &self.account).and_then(|bell| homed.pass(bell));
            answers.push((rank, request, passed));
        }
        // A producer that went meanwhile will not map it any more.
        if members.is_gone(id.rank) { self.abandoned(id, answers, bells) } else { None }
    }

    /// A producer has gone: what it had not mapped by then it never will, and workers that wait for it are given it as it is.
    pub(in crate::server) fn abandon(
        &mut self,
        rank: Rank,
        live: &BTreeSet<Rank>,
        bells: &mut Bells,
    ) -> (Answers, Vec<Sealed>) {
        for (table, rows) in self.registry.never_set(rank, live) {
            tracing::warn!(
                table,
                rank,
                %rows,
                "a worker that has gone was to produce these rows, and had not finished declaring the table; they stay zero"
            );
        }
        let (mut answers, mut sealed) = (Vec::new(), Vec::new());
        let open = self.partitions.iter().filter(|(id, homed)| id.rank == rank && !homed.sealed);
        for id in open.map(|(id, _)| *id).collect::<Vec<_>>() {
            sealed.extend(self.abandoned(id, &mut answers, bells));
        }
        (answers, sealed)
    }

    pub(super) fn abandoned(
        &mut self,
        id: PartitionId,
        answers: &mut Answers,
        bells: &mut Bells,
    ) -> Option<Sealed> {
        let sealed = match self.renew(id) {
            Ok(true) => Ok(None),
            Ok(false) => self.seal_partition(id, answers, bells),
            Err(refusal) => Err(refusal),
        };
        sealed.unwrap_or_else(|refusal| {
            if !std::mem::replace(&mut self.unsealed, true) {
                tracing::warn!(rank = id.rank, table = id.table, %refusal, "rows of a worker that has gone cannot be passed on so far");
            }
            None
        })
    }

    /// Whether a partition is to be [sealed again](Self::seal_again).
    pub(in crate::server) fn is_unsealed(&self) -> bool {
        self.unsealed
    }

    /// Seals what could not be sealed when its producer went: the system may have descriptors again.
    pub(in crate::server) fn seal_again(
        &mut self,
        members: &Members,
        bells: &mut Bells,
    ) -> (Answers, Vec<Sealed>) {
        let (mut answers, mut sealed) = (Vec::new(), Vec::new());
        let lacks = |homed: &Homed| !homed.sealed && homed.untouched.is_done();
        let open = self.partitions.iter().filter(|(id, homed)| lacks(homed) && members.is_gone(id.rank));
        let open: Vec<PartitionId> = open.map(|(id, _)| *id).collect();
        for &id in &open {
            sealed.extend(self.abandoned(id, &mut answers, bells));
        }
        self.unsealed = open.iter().any(|id| self.partitions.get(id).is_some_and(|homed| !homed.sealed));
        (answers, sealed)
    }

    /// A producer that has gone may have seen to it that its memory can never be sealed: other memory, still to be touched, takes its
    /// place. No consumer was given what it had set there. Returns whether that was so.
    fn renew(&mut self, id: PartitionId) -> Result<bool, Refusal> {
        let Some(homed) = self.partitions.get_mut(&id) else { return Ok(false) };
        let mine = homed.sealed || !homed.untouched.is_done();
        if mine || !homed.partition.is_closed_to_seals().map_err(lacking("seal a table's memory"))? {
            return Ok(false);
        }
        homed.partition = make(&homed.layout).map_err(lacking("make a table's memory"))?;
        homed.untouched = Untouched::of([homed.partition.mapping()]);
        self.untouched.insert(id);
        Ok(true)
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
        // It is sealed when all of it was touched.
        if !homed.untouched.is_done() {
            return Ok(None);
        }
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
        let (partition, (waiters, page)) = made.map_err(no_memory)?;
        let untouched = Untouched::of([partition.mapping()]);
        let (sealed, askers, waiting, charges) = (false, BTreeSet::new(), Vec::new(), Arc::new(charges));
        Ok(Self { layout, shape, partition, page, waiters, untouched, sealed, askers, waiting, charges })
    }

    /// Whether a worker can be given it: its producer when all of it was touched, others when it is sealed.
    fn is_ready_for(&self, id: PartitionId, rank: Rank) -> bool {
        self.sealed || self.untouched.is_done() && rank == id.rank
    }

    #[cfg(test)]
    pub(super) fn in_memory(&self) -> u64 {
        let blocks = rustix::fs::fstat(self.partition.fd()).map_or(0, |stat| stat.st_blocks);
        512 * blocks as u64
    }

    fn pass(&self, bell: &OwnedFd) -> Answered {
        let descriptors = vec![clone(self.partition.fd())?, clone(self.page.fd())?, clone(bell)?];
        Ok((TableAnswer::Partition, descriptors))
    }
}

fn clone(fd: impl AsFd) -> Result<OwnedFd, Refusal> {
    fd.as_fd().try_clone_to_owned().map_err(lacking("pass a table's memory"))
}

fn no_memory(errno: Errno) -> Refusal {
    lacking("make a table's memory")(errno)
}

pub(super) fn elsewhere(rank: Rank) -> Refusal {
    out_of_turn(&format!(
        "a partition of worker {rank}, which is on another host: its rows come by the network"
    ))
}

fn other_rows(rank: Rank) -> Refusal {
    out_of_turn(&format!("a partition of worker {rank} with other rows than it has"))
}

fn no_partition(PartitionId { table, rank }: PartitionId, shape: Shape) -> String {
    let Shape { slots, row_bytes, .. } = shape;
    format!(
        "a partition of {slots} rows of {row_bytes} bytes that worker {rank} does not have here in table {table}"
    )
}
