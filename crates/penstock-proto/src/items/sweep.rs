//! One pass over all ranges of rows that the workers of a table produce and consume: who produces what others consume.
//!
//! Each worker's ranges are sorted, so a heap with at most one entry for each set merges them: nothing is copied, and what the
//! pass keeps does not grow with the ranges. Pairs of workers are compared nowhere: at each end of a range there is the set of
//! workers that produce this row, and the set of those that consume it.
//!
//! Workers are numbered by rank here, without gaps.

use super::rows::RowSet;
use crate::Rank;
use crate::account::{Account, Charge, Exhausted, Resource};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::ops::Range;
use std::sync::Arc;

/// What a worker produces, and what it consumes.
pub(super) type Sets = Arc<(RowSet, RowSet)>;

/// How much may still be done in this turn: for each end of a range, and for each producer that a worker is told of, at least one.
pub type Work = u64;

/// Why it cannot be a table.
#[derive(Debug)]
pub(super) enum Wrong {
    /// Workers that produce one row: the first such row.
    Both {
        row: u64,
        first: Rank,
        second: Rank,
    },
    Exhausted(Exhausted),
}

/// A row without a producer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Orphan {
    pub(super) consumer: Rank,
    pub(super) row: u64,
}

/// Which workers produce what each of them consumes.
#[derive(Debug)]
pub(super) struct Sources {
    ranks: Vec<Rank>,
    /// Producers, for each worker.
    of: Vec<Workers>,
    _charge: Charge,
}

/// The pass, as far as it has come.
#[derive(Debug)]
pub(super) struct Sweep {
    sources: Sources,
    sets: Vec<Sets>,
    /// Whether a row may have several producers.
    shared: bool,
    /// Ends of ranges that come next: of each set, that of the range at its place in `next`.
    ends: BinaryHeap<Reverse<End>>,
    next: Vec<[usize; 2]>,
    /// Up to here it is done.
    at: u64,
    /// Workers that produce the rows before the next end, and those that consume them.
    producing: Workers,
    consuming: Workers,
    /// For each producer, the consumers that have it among their sources.
    readers: Vec<Workers>,
    /// Consumers of rows without a producer, and the first such row of the first of them.
    orphaned: Workers,
    orphan: Option<(usize, u64)>,
    /// All such rows, where they are to be listed.
    orphans: Option<Vec<Range<u64>>>,
    orphans_charge: Charge,
}

/// Where a range begins or ends. Sorted as they count: at one row, what ends has ended before anything begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct End {
    row: u64,
    begins: bool,
    consumes: bool,
    worker: u32,
}

/// A set of workers.
#[derive(Debug, Clone, Default)]
struct Workers(Vec<u64>);

impl Workers {
    fn none(of: usize) -> Self {
        Self(vec![0; of.div_ceil(64)])
    }

    fn insert(&mut self, worker: usize) {
        self.0[worker / 64] |= 1 << (worker % 64);
    }

    fn remove(&mut self, worker: usize) {
        self.0[worker / 64] &= !(1 << (worker % 64));
    }

    fn first(&self) -> Option<usize> {
        self.iter().next()
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(at, &word)| bits(word).map(move |bit| at * 64 + bit))
    }

    fn extend(&mut self, others: &Self) {
        self.0.iter_mut().zip(&others.0).for_each(|(word, other)| *word |= other);
    }

    /// Inserts `others`, and shows those that were not there.
    fn extend_by(&mut self, others: &Self, mut show: impl FnMut(usize)) {
        for (at, (word, other)) in self.0.iter_mut().zip(&others.0).enumerate() {
            bits(other & !*word).for_each(|bit| show(at * 64 + bit));
            *word |= other;
        }
    }
}

fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then_some(word.trailing_zeros() as usize)?;
        word &= word - 1;
        Some(bit)
    })
}

/// Bytes that a row of a table's orphans takes: listed here, as a set, encoded, and as a set once more for who looks on.
const ORPHAN_BYTES: u64 = 96;
/// Bytes for each worker beside its sets of others.
const WORKER_BYTES: usize = 256;

impl Sources {
    /// Producers of rows that a worker consumes, by rank; `None` if it has declared none.
    pub(super) fn of(&self, rank: Rank) -> Option<Vec<Rank>> {
        let at = self.ranks.iter().position(|&one| one == rank)?;
        let mut ranks: Vec<Rank> = self.of[at].iter().map(|source| self.ranks[source]).collect();
        ranks.sort_unstable();
        Some(ranks)
    }
}

impl Sweep {
    /// Of `workers`, ascending. What it keeps is charged to the account.
    pub(super) fn new(
        workers: Vec<(Rank, Sets)>,
        shared: bool,
        list_orphans: bool,
        account: &Account,
    ) -> Result<Self, Exhausted> {
        // One place more, for a worker that is given the rows without a producer.
        let places = workers.len() + 1;
        let words = places.div_ceil(64) * 8;
        let bytes = places * (2 * words + WORKER_BYTES);
        let charge = account.charge(Resource::Bytes, bytes as u64)?;
        let orphans_charge = account.charge(Resource::Bytes, 0)?;
        let (ranks, sets): (Vec<Rank>, Vec<Sets>) = workers.into_iter().unzip();
        let none = || Workers::none(places);
        let mut sweep = Self {
            next: vec![[0; 2]; sets.len()],
            sources: Sources { ranks, of: vec![none(); places], _charge: charge },
            shared,
            ends: BinaryHeap::with_capacity(2 * sets.len()),
            at: 0,
            producing: none(),
            consuming: none(),
            readers: vec![none(); places],
            orphaned: none(),
            orphan: None,
            orphans: list_orphans.then(Vec::new),
            orphans_charge,
            sets,
        };
        for (worker, sets) in sweep.sets.iter().enumerate() {
            for (consumes, set) in [(false, &sets.0), (true, &sets.1)] {
                let end = set.first().map(|row| End { row, begins: true, consumes, worker: worker as u32 });
                sweep.ends.extend(end.map(Reverse));
            }
        }
        Ok(sweep)
    }

    /// Goes on, with as much as is left of `work`; whether it is done.
    pub(super) fn go_on(&mut self, work: &mut Work) -> Result<bool, Wrong> {
        // A few words of a set are gone over as fast as an end is found.
        let cost = 1 + self.producing.0.len() as Work / 4;
        while let Some(Reverse(end)) = self.ends.peek().copied() {
            if *work == 0 {
                return Ok(false);
            }
            // However little is left, it goes on.
            *work = work.saturating_sub(cost);
            self.pass(end.row)?;
            self.take(end)?;
        }
        Ok(true)
    }

    /// Goes to a row, beyond which something changes.
    fn pass(&mut self, row: u64) -> Result<(), Wrong> {
        let from = std::mem::replace(&mut self.at, row);
        if from == row || self.producing.first().is_some() {
            return Ok(());
        }
        let Some(first) = self.consuming.first() else { return Ok(()) };
        self.orphaned.extend(&self.consuming);
        // One before it had no such row so far.
        if self.orphan.is_none_or(|(before, _)| first < before) {
            self.orphan = Some((first, from));
        }
        let Some(orphans) = &mut self.orphans else { return Ok(()) };
        match orphans.last_mut() {
            Some(last) if last.end == from => last.end = row,
            _ => {
                if orphans.len() == orphans.capacity() {
                    let more = orphans.len().max(64);
                    self.orphans_charge.grow(more as u64 * ORPHAN_BYTES).map_err(Wrong::Exhausted)?;
                    orphans.reserve_exact(more);
                }
                orphans.push(from..row);
            }
        }
        Ok(())
    }

    fn take(&mut self, end: End) -> Result<(), Wrong> {
        let worker = end.worker as usize;
        let (sets, at) = (&self.sets[worker], &mut self.next[worker][usize::from(end.consumes)]);
        let ranges = if end.consumes { sets.1.ranges() } else { sets.0.ranges() };
        let next = if end.begins {
            Some(End { row: ranges[*at].end, begins: false, ..end })
        } else {
            *at += 1;
            ranges.get(*at).map(|range| End { row: range.start, begins: true, ..end })
        };
        match (self.ends.peek_mut(), next) {
            (Some(mut top), Some(next)) => top.0 = next,
            (Some(top), None) => _ = PeekMut::pop(top),
            (None, _) => {}
        }
        match (end.begins, end.consumes) {
            (false, false) => self.producing.remove(worker),
            (false, true) => self.consuming.remove(worker),
            (true, false) => {
                if let Some(other) = self.producing.first().filter(|_| !self.shared) {
                    let ranks = [other.min(worker), other.max(worker)].map(|it| self.sources.ranks[it]);
                    return Err(Wrong::Both { row: end.row, first: ranks[0], second: ranks[1] });
                }
                self.producing.insert(worker);
                self.sources.of[worker].insert(worker);
                let of = &mut self.sources.of;
                self.readers[worker].extend_by(&self.consuming, |reader| of[reader].insert(worker));
            }
            (true, true) => {
                self.consuming.insert(worker);
                let readers = &mut self.readers;
                self.sources.of[worker].extend_by(&self.producing, |source| readers[source].insert(worker));
            }
        }
        Ok(())
    }

    /// The first worker that consumes a row that no worker produces, and its first such row.
    pub(super) fn orphan(&self) -> Option<Orphan> {
        self.orphan.map(|(worker, row)| Orphan { consumer: self.sources.ranks[worker], row })
    }

    /// Workers that consume such rows, by rank.
    pub(super) fn orphaned(&self) -> impl Iterator<Item = Rank> {
        self.orphaned.iter().map(|worker| self.sources.ranks[worker])
    }

    /// Whether all such rows are listed.
    pub(super) fn lists_orphans(&self) -> bool {
        self.orphans.is_some()
    }

    /// All such rows, and what they were charged; `None` if they were not listed.
    pub(super) fn take_orphans(&mut self) -> Option<(RowSet, Charge)> {
        let orphans = RowSet::from_apart(self.orphans.take()?);
        Some((orphans, std::mem::take(&mut self.orphans_charge)))
    }

    /// Which workers produce what each consumes, with `heir` for rows that no worker produces.
    pub(super) fn into_sources(self, heir: Option<Rank>) -> Sources {
        let Self { mut sources, orphaned, .. } = self;
        if let Some(heir) = heir {
            let place = sources.ranks.len();
            sources.ranks.push(heir);
            sources.of[place].insert(place);
            orphaned.iter().for_each(|worker| sources.of[worker].insert(place));
        }
        sources
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn declared() -> impl Strategy<Value = Vec<(Rank, Sets)>> {
        let rows = || prop::collection::btree_set(0..40u64, 0..12).prop_map(RowSet::from_rows);
        let sets = prop::collection::vec((rows(), rows()), 1..70);
        sets.prop_map(|sets| (0..).step_by(3).zip(sets.into_iter().map(Arc::new)).collect())
    }

    /// Done in turns of so much work.
    fn done(sweep: &mut Sweep, turn: Work) -> Result<(), Wrong> {
        while !sweep.go_on(&mut turn.clone())? {}
        Ok(())
    }

    proptest! {
        #[test]
        fn it_finds_what_a_look_at_each_pair_finds(workers in declared(), turn in 2..9u64) {
            let account = Account::default();
            let mut sweep = Sweep::new(workers.clone(), true, true, &account).unwrap();
            done(&mut sweep, turn).unwrap();
            let produced = RowSet::union_of(workers.iter().map(|(_, sets)| &sets.0));
            let lacks = |(rank, sets): &(Rank, Sets)| Some((*rank, sets.1.without(&produced).first()?));
            let orphan = sweep.orphan().map(|it| (it.consumer, it.row));
            prop_assert_eq!(orphan, workers.iter().find_map(lacks));
            let lacking: Vec<Rank> = workers.iter().filter_map(lacks).map(|(rank, _)| rank).collect();
            prop_assert_eq!(sweep.orphaned().collect::<Vec<_>>(), lacking.clone());
            let (orphans, _charge) = sweep.take_orphans().unwrap();
            prop_assert_eq!(&orphans, &RowSet::union_of(workers.iter().map(|(_, sets)| &sets.1)).without(&produced));
            let heir = (!orphans.is_empty()).then_some(1);
            let sources = sweep.into_sources(heir);
            for (rank, sets) in &workers {
                let concerns = |(other, theirs): &&(Rank, Sets)| {
                    !theirs.0.is_empty() && (other == rank || !theirs.0.intersection(&sets.1).is_empty())
                };
                let mut expected: BTreeSet<Rank> = workers.iter().filter(concerns).map(|(rank, _)| *rank).collect();
                expected.extend(heir.filter(|_| lacking.contains(rank)));
                prop_assert_eq!(sources.of(*rank), Some(expected.into_iter().collect()));
            }
            drop(sources);
            prop_assert_eq!(account.taken(Resource::Bytes), 96 * 64 * u64::from(heir.is_some()));
        }

        #[test]
        fn it_names_the_first_row_of_two_producers(workers in declared(), turn in 2..9u64) {
            let mut sweep = Sweep::new(workers.clone(), false, false, &Account::default()).unwrap();
            let producers = |row| workers.iter().filter(move |(_, sets)| sets.0.contains(row)).map(|(rank, _)| *rank);
            let twice = (0..40).find(|&row| producers(row).count() > 1);
            match done(&mut sweep, turn) {
                Ok(()) => prop_assert_eq!(twice, None),
                Err(Wrong::Both { row, first, second }) => {
                    prop_assert_eq!(twice, Some(row));
                    let producers: Vec<Rank> = producers(row).collect();
                    prop_assert!(first < second && producers.contains(&first) && producers.contains(&second));
                }
                Err(wrong) => prop_assert!(false, "{:?}", wrong),
            }
        }
    }
}
