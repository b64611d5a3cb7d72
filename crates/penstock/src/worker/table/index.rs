//! Where each row that a worker knows stands: which producer's partition, which slot.

use penstock_proto::items::RowSet;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

/// Rows of at most this many ranges are found by comparing.
const FEW_RANGES: usize = 4;
/// A direct table may be this many times as long as the rows that it holds.
const SPARSEST: u64 = 8;

/// One producer's contribution to a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Index of the source.
    pub(super) source: u32,
    /// Slot of its partition.
    pub(super) slot: u32,
}

/// Keys are spread by one multiplication: they come from the caller's own job.
#[derive(Default)]
pub(super) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = (self.0 ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

/// From a row to its place among the known rows.
enum Finder {
    Ranges,
    Direct { first: u64, places: Vec<u32> },
    Hashed(HashMap<u64, u32, BuildHasherDefault<Spread>>),
}

/// All rows that a worker knows of a table.
pub(super) struct Index {
    known: RowSet,
    finder: Finder,
    /// By place: where its contributions begin in `places`. Empty where each row has one.
    starts: Vec<u32>,
    places: Vec<Place>,
    /// Where each row has one contribution: places that do not follow the one before, in the same source.
    breaks: Vec<u32>,
}

const NONE: u32 = u32::MAX;

impl Index {
    /// `sources`: what each producer produces, in the order of ranks. Rows without a producer are not known.
    pub(super) fn new(known: RowSet, sources: &[&RowSet]) -> Self {
        let finder = Self::finder(&known);
        let mut counts = vec![0u32; known.len() as usize];
        let shared: Vec<RowSet> = sources.iter().map(|produced| produced.intersection(&known)).collect();
        for row in shared.iter().flat_map(RowSet::iter) {
            counts[known.place(row).unwrap_or(0) as usize] += 1;
        }
        let single = counts.iter().all(|&count| count == 1);
        let mut starts: Vec<u32> =
            counts.iter().scan(0, |sum, count| Some(std::mem::replace(sum, *sum + count))).collect();
        let total = counts.iter().sum::<u32>();
        let mut places = vec![Place { source: NONE, slot: NONE }; total as usize];
        let mut next = starts.clone();
        for ((produced, shared), source) in sources.iter().zip(&shared).zip(0..) {
            for row in shared.iter() {
                let (at, slot) = (known.place(row).unwrap_or(0) as usize, produced.place(row).unwrap_or(0));
                places[next[at] as usize] = Place { source, slot: slot as u32 };
                next[at] += 1;
            }
        }
        let mut breaks = Vec::new();
        if single {
            starts = Vec::new();
            let follows = |pair: &[Place]| {
                pair[1].source == pair[0].source && Some(pair[1].slot) == pair[0].slot.checked_add(1)
            };
            let pairs = places.windows(2).zip(1..);
            breaks = pairs.filter(|(pair, _)| !follows(pair)).map(|(_, at)| at).collect();
        } else {
            starts.push(total);
        }
        Self { known, finder, starts, places, breaks }
    }

    /// The place of the first of some rows that follow each other, if each has one contribution, and those follow each
    /// other in one source.
    pub(super) fn run(&self, run: &Range<u64>) -> Option<Place> {
        let at = self.known.place_of_run(run)? as usize;
        let place = *self.places.get(at).filter(|_| self.is_single())?;
        let end = self.breaks.get(self.breaks.partition_point(|&start| start as usize <= at));
        let left = end.map_or(self.places.len(), |&end| end as usize) - at;
        (run.end - run.start <= left as u64).then_some(place)
    }

    fn finder(known: &RowSet) -> Finder {
        if known.ranges().len() <= FEW_RANGES {
            return Finder::Ranges;
        }
        let first = known.ranges().first().map_or(0, |range| range.start);
        let span = known.end() - first;
        if span <= known.len().saturating_mul(SPARSEST) {
            let mut places = vec![NONE; span as usize];
            for (row, place) in known.iter().zip(0..) {
                places[(row - first) as usize] = place;
            }
            return Finder::Direct { first, places };
        }
        Finder::Hashed(known.iter().zip(0..).collect())
    }

    #[inline]
    fn find(&self, row: u64) -> Option<usize> {
        match &self.finder {
            Finder::Ranges => self.known.place(row).map(|place| place as usize),
            Finder::Direct { first, places } => {
                let place = *places.get(usize::try_from(row.checked_sub(*first)?).ok()?)?;
                (place != NONE).then_some(place as usize)
            }
            Finder::Hashed(places) => places.get(&row).map(|&place| place as usize),
        }
    }

    /// The contributions to a row, in the order of ranks; `None` for one that is not known.
    #[inline]
    pub(super) fn places(&self, row: u64) -> Option<&[Place]> {
        let at = self.find(row)?;
        if self.starts.is_empty() {
            return self.places.get(at..=at);
        }
        self.places.get(self.starts[at] as usize..self.starts[at + 1] as usize)
    }

    /// The row that a contribution is to. Looks at all: for messages.
    pub(super) fn row(&self, place: Place) -> Option<u64> {
        let at = self.places.iter().position(|other| *other == place)?;
        let at = match self.is_single() {
            true => at,
            false => self.starts.partition_point(|&start| start as usize <= at).checked_sub(1)?,
        };
        self.known.nth(at as u64)
    }

    /// Whether every row has one contribution.
    pub(super) fn is_single(&self) -> bool {
        self.starts.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_known_row_is_found_with_all_its_producers(
            a in prop::collection::btree_set(prop_oneof![0u64..50, (1 << 50)..(1 << 50) + 9u64], 0..40),
            b in prop::collection::btree_set(0u64..50, 0..40),
            known in prop::collection::btree_set(prop_oneof![0u64..50, (1 << 50)..(1 << 50) + 9u64], 0..60),
        ) {
            let sources = [RowSet::from_rows(a.clone()), RowSet::from_rows(b.clone())];
            let index = Index::new(RowSet::from_rows(known.clone()), &[&sources[0], &sources[1]]);
            for row in (0..60).chain([1 << 50, (1 << 50) + 3, u64::MAX]) {
                let expected: Vec<Place> = sources.iter().zip(0..).filter_map(|(set, source)| {
                    Some(Place { source, slot: set.place(row)? as u32 })
                }).collect();
                match index.places(row) {
                    None => prop_assert!(!known.contains(&row)),
                    Some(places) => {
                        prop_assert_eq!(places, &expected[..]);
                        places.iter().for_each(|&place| assert_eq!(index.row(place), Some(row)));
                    }
                }
            }
            for (start, end) in (0..52).flat_map(|start| (start + 1..=52).map(move |end| (start, end))) {
                let each: Option<Vec<Place>> = (start..end).map(|row| match index.places(row)? {
                    [place] => Some(*place),
                    _ => None,
                }).collect();
                let follow = |places: &Vec<Place>| places.windows(2).all(|pair| {
                    pair[1] == Place { source: pair[0].source, slot: pair[0].slot + 1 }
                });
                let expected = each.filter(follow).filter(|_| index.is_single()).map(|places| places[0]);
                prop_assert_eq!(index.run(&(start..end)), expected);
            }
        }
    }
}
