//! Sets of rows: sorted ranges of 64-bit keys. What a worker produces or consumes of a table is one.

use std::fmt;
use std::ops::Range;

/// A set of rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowSet {
    /// Sorted, apart, none empty.
    ranges: Vec<Range<u64>>,
    /// Rows before each range.
    before: Vec<u64>,
}

/// Bytes of memory for each range.
const RANGE_BYTES: u64 = (size_of::<Range<u64>>() + size_of::<u64>()) as u64;

/// Ranges that are gone over in the time that a search among all of a set's takes, about.
const SEARCH: usize = 16;

/// Bytes that are not a set of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected an encoded set of rows")]
pub struct NoRowSet;

impl RowSet {
    /// The set of some rows, in any order, repeated or not.
    pub fn from_rows(rows: impl IntoIterator<Item = u64>) -> Self {
        let mut rows: Vec<u64> = rows.into_iter().collect();
        rows.sort_unstable();
        Self::from_sorted(rows.into_iter().map(|row| row..row.saturating_add(1)))
    }

    /// The union of some ranges, in any order, overlapping or not.
    pub fn from_ranges(ranges: impl IntoIterator<Item = Range<u64>>) -> Self {
        let mut ranges: Vec<Range<u64>> = ranges.into_iter().filter(|range| !range.is_empty()).collect();
        // Stable, because it goes along what is sorted already: sets that were put one behind the other.
        ranges.sort_by_key(|range| range.start);
        Self::from_sorted(ranges)
    }

    /// The union of some ranges in the order of their beginnings. None of them is empty.
    pub(super) fn from_sorted(sorted: impl IntoIterator<Item = Range<u64>>) -> Self {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for range in sorted {
            match ranges.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => ranges.push(range),
            }
        }
        Self::from_apart(ranges)
    }

    /// Of ranges that are sorted, apart and not empty.
    pub(super) fn from_apart(mut ranges: Vec<Range<u64>>) -> Self {
        ranges.shrink_to_fit();
        let (mut before, mut sum) = (Vec::with_capacity(ranges.len()), 0);
        for range in &ranges {
            before.push(sum);
            sum += range.end - range.start;
        }
        Self { ranges, before }
    }

    /// Rows.
    pub fn len(&self) -> u64 {
        match (self.ranges.last(), self.before.last()) {
            (Some(range), Some(before)) => before + (range.end - range.start),
            _ => 0,
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ranges, ascending.
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// The rows, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.ranges.iter().cloned().flatten()
    }

    /// One more than the largest row; 0 without any.
    pub fn end(&self) -> u64 {
        self.ranges.last().map_or(0, |range| range.end)
    }

    /// The smallest row.
    pub fn first(&self) -> Option<u64> {
        self.ranges.first().map(|range| range.start)
    }

    /// The place of a row among all, ascending.
    pub fn place(&self, row: u64) -> Option<u64> {
        let after = self.ranges.partition_point(|range| range.start <= row);
        let range = self.ranges.get(after.checked_sub(1)?)?;
        range.contains(&row).then(|| self.before[after - 1] + (row - range.start))
    }

    /// The place of the first of some rows that follow each other, if all are among them: the others' places follow too.
    pub fn place_of_run(&self, run: &Range<u64>) -> Option<u64> {
        let place = self.place(run.start)?;
        let last = self.place(run.end.checked_sub(1)?)?;
        // Places of one more than there are rows between them: some row between is missing.
        (last.checked_sub(place)? == run.end - 1 - run.start).then_some(place)
    }

    /// The row at a place.
    pub fn nth(&self, place: u64) -> Option<u64> {
        let at = self.before.partition_point(|&before| before <= place).checked_sub(1)?;
        let row = self.ranges[at].start.checked_add(place - self.before[at])?;
        self.ranges[at].contains(&row).then_some(row)
    }

    /// The rows at some places, ascending.
    pub fn at(&self, places: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let from = self.before.partition_point(|&before| before <= places.start).saturating_sub(1);
        let ranges = self.ranges[from..].iter().zip(&self.before[from..]);
        let ranges = ranges.take_while(move |&(_, &before)| before < places.end);
        let cut = move |(range, &before): (&Range<u64>, &u64)| {
            let end = (range.end - range.start).min(places.end - before);
            range.start + places.start.saturating_sub(before).min(end)..range.start + end
        };
        ranges.map(cut).filter(|range| !range.is_empty())
    }

    /// One more than the last of the rows that follow a row without a gap, if that is among them.
    pub fn end_of_run(&self, row: u64) -> Option<u64> {
        let range = self.ranges.get(self.ranges.partition_point(|range| range.end <= row))?;
        range.contains(&row).then_some(range.end)
    }

    /// Whether a row is among them.
    pub fn contains(&self, row: u64) -> bool {
        self.place(row).is_some()
    }

    /// Whether all of its rows are in the other, of which only those ranges are gone over that lie beside its own.
    pub fn is_within(&self, other: &Self) -> bool {
        self.is_within_by(other, |_| {})
    }

    /// The same; `looks` at each range of the other that a range is compared with. Where both have many, each is looked at once or
    /// twice: a search among all for each would take many times as long.
    fn is_within_by(&self, other: &Self, looks: impl Fn(&Range<u64>)) -> bool {
        let mut rest = &other.ranges[..];
        self.ranges.iter().all(|range| {
            let ends_before = |there: &Range<u64>| {
                looks(there);
                there.end <= range.start
            };
            let mut reach = 1;
            while rest.get(reach - 1).is_some_and(ends_before) {
                reach *= 2;
            }
            // Those before the half of it, and the last, have been seen.
            let (seen, end) = (reach / 2, rest.len().min(reach - 1));
            let some = rest.get(seen..end).unwrap_or_default();
            rest = &rest[rest.len().min(seen + some.partition_point(ends_before))..];
            rest.first().is_some_and(|there| there.start <= range.start && range.end <= there.end)
        })
    }

    /// Rows of both. Of a set with many more ranges than the other only those are gone over that lie beside the other's.
    pub fn intersection(&self, other: &Self) -> Self {
        let (few, many) = if self.ranges.len() <= other.ranges.len() { (self, other) } else { (other, self) };
        if few.ranges.len() * SEARCH < many.ranges.len() {
            let common = few.ranges.iter().flat_map(|range| {
                let from = many.ranges.partition_point(|there| there.end <= range.start);
                let met = many.ranges[from..].iter().take_while(|there| there.start < range.end);
                met.map(|there| there.start.max(range.start)..there.end.min(range.end))
            });
            return Self::from_sorted(common);
        }
        let (mut a, mut b) = (self.ranges.iter().peekable(), other.ranges.iter().peekable());
        let mut both = Vec::new();
        while let (Some(left), Some(right)) = (a.peek(), b.peek()) {
            let common = left.start.max(right.start)..left.end.min(right.end);
            if left.end <= right.end {
                a.next();
            } else {
                b.next();
            }
            if !common.is_empty() {
                both.push(common);
            }
        }
        Self::from_sorted(both)
    }

    /// Rows of either.
    pub fn union(&self, other: &Self) -> Self {
        Self::union_of([self, other])
    }

    /// Rows of any of these sets, in one pass: one after the other, the first would be gone over for each that follows.
    pub fn union_of<'a>(sets: impl IntoIterator<Item = &'a Self>) -> Self {
        let sets: Vec<&Self> = sets.into_iter().filter(|set| !set.is_empty()).collect();
        if let [one] = sets[..] {
            return one.clone();
        }
        Self::from_ranges(sets.into_iter().flat_map(|set| set.ranges.iter().cloned()))
    }

    /// Rows of this set that are not in the other.
    pub fn without(&self, other: &Self) -> Self {
        let mut left = Vec::new();
        let mut others = other.ranges.iter().peekable();
        for range in &self.ranges {
            let mut start = range.start;
            while others.next_if(|other| other.end <= start).is_some() {}
            // One that reaches beyond this range is looked at again for the next.
            while let Some(other) = others.peek().filter(|other| other.start < range.end) {
                if start < other.start {
                    left.push(start..other.start);
                }
                start = other.end.min(range.end);
                if other.end > range.end {
                    break;
                }
                others.next();
            }
            if start < range.end {
                left.push(start..range.end);
            }
        }
        Self::from_sorted(left)
    }

    /// A row that is in one of two sets only, and whether that is this one; `None` if they are the same.
    pub fn difference(&self, other: &Self) -> Option<(u64, bool)> {
        let (mut mine, mut theirs) = (self.ranges.iter(), other.ranges.iter());
        loop {
            match (mine.next(), theirs.next()) {
                (None, None) => return None,
                (Some(range), None) => return Some((range.start, true)),
                (None, Some(range)) => return Some((range.start, false)),
                (Some(a), Some(b)) if a.start != b.start => {
                    return Some((a.start.min(b.start), a.start < b.start));
                }
                (Some(a), Some(b)) if a.end != b.end => return Some((a.end.min(b.end), a.end > b.end)),
                _ => {}
            }
        }
    }

    /// As bytes: for each range its distance from the one before and its length, in seven bits a byte.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut at = 0;
        for range in &self.ranges {
            push(&mut bytes, range.start - at);
            push(&mut bytes, range.end - range.start);
            at = range.end;
        }
        bytes
    }

    /// Bytes of memory that the set in `bytes` takes at most: many times as many as it has on the wire.
    pub fn decoded_bytes(bytes: &[u8]) -> u64 {
        // Each range is two numbers, and the last byte of a number is below 128.
        let numbers = bytes.iter().filter(|&&byte| byte < 0x80).count();
        Self::bytes_of_ranges((numbers as u64).div_ceil(2))
    }

    /// Bytes of memory that it takes.
    pub fn kept_bytes(&self) -> u64 {
        Self::bytes_of_ranges(self.ranges.len() as u64)
    }

    /// Bytes of memory that a set of so many ranges takes.
    pub fn bytes_of_ranges(ranges: u64) -> u64 {
        RANGE_BYTES * ranges
    }

    /// The set in `bytes`.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, NoRowSet> {
        let numbers = bytes.iter().filter(|&&byte| byte < 0x80).count();
        let mut ranges = Vec::with_capacity(numbers.div_ceil(2));
        let mut at = 0u64;
        while !bytes.is_empty() {
            let gap = pop(&mut bytes)?;
            let length = pop(&mut bytes)?;
            let start = at.checked_add(gap).ok_or(NoRowSet)?;
            let end = start.checked_add(length).ok_or(NoRowSet)?;
            if length == 0 || (gap == 0 && !ranges.is_empty()) {
                return Err(NoRowSet);
            }
            ranges.push(start..end);
            at = end;
        }
        // Sorted and apart: it was checked.
        Ok(Self::from_apart(ranges))
    }
}

/// For people: the first few ranges.
impl fmt::Display for RowSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, range) in self.ranges.iter().take(SHOWN).enumerate() {
            f.write_str(if at > 0 { ", " } else { "" })?;
            match range.end - range.start {
                1 => write!(f, "{}", range.start)?,
                _ => write!(f, "{} to {}", range.start, range.end - 1)?,
            }
        }
        match self.ranges.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} ranges more"),
        }
    }
}

/// Ranges that are shown to people.
const SHOWN: usize = 8;

/// Appends a number in seven bits a byte, the lowest first.
pub(crate) fn push(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Takes such a number.
pub(crate) fn pop(bytes: &mut &[u8]) -> Result<u64, NoRowSet> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or(NoRowSet)?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return Err(NoRowSet);
        }
        number |= bits << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(NoRowSet)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn rows() -> impl Strategy<Value = BTreeSet<u64>> {
        let row = prop_oneof![0..60u64, (1 << 40)..(1 << 40) + 20u64, Just(u64::MAX - 1)];
        prop::collection::btree_set(row, 0..40)
    }

    // Each range was searched for among all of the other set: sixteen million kept a server's thread for seconds.
    #[test]
    fn whether_one_set_is_within_another_takes_a_look_or_two_at_each_range() {
        const MANY: u64 = 1 << 16;
        let every = |step: usize| RowSet::from_rows((0..2 * MANY).step_by(step));
        let looks = |set: &RowSet, other: &RowSet| {
            let looks = std::cell::Cell::new(0);
            assert!(set.is_within_by(other, |_| looks.set(looks.get() + 1)));
            looks.get()
        };
        assert!(looks(&every(2), &every(2)) <= 3 * MANY);
        assert!(looks(&every(4), &every(2)) <= 3 * MANY);
        assert!(looks(&RowSet::from_rows([2 * MANY - 2]), &every(2)) <= 3 * 16, "a search");
    }

    #[test]
    fn people_are_shown_some_ranges() {
        assert_eq!(RowSet::from_rows([1, 2, 3, 7]).to_string(), "1 to 3, 7");
        let many = RowSet::from_rows((0..20).step_by(2)).to_string();
        assert_eq!(many, "0, 2, 4, 6, 8, 10, 12, 14 and 2 ranges more");
    }

    proptest! {
        #[test]
        fn it_is_a_set(a in rows(), b in rows()) {
            let (left, right) = (RowSet::from_rows(a.clone()), RowSet::from_rows(b.clone()));
            prop_assert_eq!(left.iter().collect::<BTreeSet<u64>>(), a.clone());
            prop_assert_eq!(left.len(), a.len() as u64);
            prop_assert_eq!(left.intersection(&right), RowSet::from_rows(a.intersection(&b).copied()));
            prop_assert_eq!(left.union(&right), RowSet::from_rows(a.union(&b).copied()));
            prop_assert_eq!(left.without(&right), RowSet::from_rows(a.difference(&b).copied()));
            for (place, row) in a.iter().enumerate() {
                prop_assert_eq!(left.place(*row), Some(place as u64));
                prop_assert_eq!(left.end_of_run(*row), (*row..=u64::MAX).find(|row| !a.contains(row)));
                prop_assert_eq!(left.nth(place as u64), Some(*row));
            }
            prop_assert_eq!(left.nth(a.len() as u64), None);
            let (from, to) = (a.len() / 3, a.len() - a.len() / 4);
            let some = left.at(from as u64..to as u64).flatten().collect::<Vec<u64>>();
            prop_assert_eq!(some, a.iter().copied().collect::<Vec<u64>>()[from..to].to_vec());
            prop_assert_eq!(left.at(0..u64::MAX).collect::<Vec<_>>(), left.ranges().to_vec());
            let one = b.iter().take(1).copied();
            let same = one.clone().filter(|row| a.contains(row));
            prop_assert_eq!(left.intersection(&RowSet::from_rows(one)), RowSet::from_rows(same));
            prop_assert_eq!(left.is_within(&right), a.is_subset(&b));
            prop_assert!(left.intersection(&right).is_within(&left) && left.is_within(&left.union(&right)));
            let differs = a.symmetric_difference(&b).next().is_some();
            match left.difference(&right) {
                None => prop_assert!(!differs),
                Some((row, mine)) => prop_assert_eq!((a.contains(&row), b.contains(&row)), (mine, !mine)),
            }
            for row in b.difference(&a) {
                prop_assert!(!left.contains(*row));
                prop_assert_eq!(left.end_of_run(*row), None);
            }
            prop_assert_eq!(RowSet::decode(&left.encode()), Ok(left));
        }

        #[test]
        fn a_union_of_many_is_that_of_one_after_the_other(sets in prop::collection::vec(rows(), 0..6)) {
            let sets: Vec<RowSet> = sets.into_iter().map(RowSet::from_rows).collect();
            let one_by_one = sets.iter().fold(RowSet::default(), |all, set| all.union(set));
            prop_assert_eq!(RowSet::union_of(&sets), one_by_one);
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(set) = RowSet::decode(&bytes) {
                prop_assert_eq!(RowSet::decode(&set.encode()), Ok(set));
            }
        }
    }
}
