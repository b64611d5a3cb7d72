//! One row: two buffers, each with the number of the set that wrote it. Several rows at once: a row group, of the same kind.
//!
//! The writer always writes the older buffer, and readers take the newest of those that are finished, so they meet only if the
//! writer comes round twice during one look. A set is finished when the partition's `done` reaches its number: what
//! carries a higher number is not looked at (I-3).
//!
//! Why it holds. [`Buffers::begin`] marks a buffer before its payload is touched, ordered by a release fence; a reader that saw
//! any of those writes therefore sees, behind its acquire fence, a mark that is not the number it started from. Numbers
//! are stored with release after the payload, and a reader that starts from one sees all of it (I-1). If both buffers were
//! overtaken while a reader looked, none carries a number within its limit, or the one it took has changed: it looks again
//! with a later limit. lapser.md, 3.3.1 (figure 3.1) is the same race with a clock that overtakes its value.

use crate::sync::{Ordering, OwnedU64, fence};
pub use penstock_proto::items::row_memory::{Look, Moment, Torn};

/// Number of a buffer that is being written, or was left half-written: older than any.
pub const UNFINISHED: u64 = u64::MAX;

/// What is known of two buffers that are written in turns. Written by the partition's writer only.
#[derive(Debug)]
#[repr(C)]
pub struct Buffers {
    /// Number of the set that wrote each buffer.
    numbers: [OwnedU64; 2],
    /// Clock that it was given.
    clocks: [OwnedU64; 2],
}

/// Head of a row, 40 bytes. Drawn in docs/layout.md.
#[derive(Debug)]
#[repr(C)]
pub struct Slot {
    /// The row's own buffers.
    pub buffers: Buffers,
    /// In a mirror: the newest number is that of the row as it was after this set.
    as_of: OwnedU64,
}

/// Head of a row group: some rows that stand one after the other, in two more buffers. A set that has all of them writes the
/// row group and leaves their slots alone, so a row's newest value stands in its slot or in its row group, whichever has the
/// later number; with the same, in its slot.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct RowGroup {
    /// The row group's buffers.
    pub buffers: Buffers,
    /// Number of the first set after the row group's newest that wrote one of its rows by itself; any
    /// before it if there was none.
    apart: OwnedU64,
}

/// Where a row's value stands: which buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spot {
    /// Of its slot.
    Slot(usize),
    /// Of its row group.
    RowGroup(usize),
}

/// Rises with the number of a set; 0 for what is not finished.
pub fn age(number: u64) -> u64 {
    if number == UNFINISHED { 0 } else { number + 1 }
}

/// Which buffer holds the newest finished value.
pub fn newest(numbers: [u64; 2]) -> usize {
    usize::from(age(numbers[1]) > age(numbers[0]))
}

/// Which buffer set `number` writes: the older. A row that comes twice in a set is written twice in the same buffer, so that the
/// other keeps what was before the set.
pub fn target(numbers: [u64; 2], number: u64) -> usize {
    let newest = newest(numbers);
    if numbers[newest] == number && number != 0 { newest } else { 1 - newest }
}

impl Buffers {
    /// Zeros: what fresh memory holds.
    pub fn new() -> Self {
        let zeros = || [OwnedU64::new(0), OwnedU64::new(0)];
        Self { numbers: zeros(), clocks: zeros() }
    }

    /// For the writer: the numbers of both buffers, as it left them.
    pub fn numbers(&self) -> [u64; 2] {
        [0, 1].map(|buffer: usize| self.numbers[buffer].own())
    }

    /// For the writer: the clock of a buffer, as it left it.
    pub fn clock(&self, buffer: usize) -> u64 {
        self.clocks[buffer].own()
    }

    /// For the writer: marks a buffer, the one that [`target`] names, before it is written.
    pub fn begin(&self, buffer: usize) {
        self.numbers[buffer].store(UNFINISHED, Ordering::Relaxed);
        // Pairs with the acquire fence in `read`: a reader that sees a write that follows also sees the mark.
        fence(Ordering::Release);
    }

    /// For the writer: the buffer's payload is that of set `number`.
    pub fn finish(&self, buffer: usize, number: u64, clock: u64) {
        self.clocks[buffer].store(clock, Ordering::Relaxed);
        // Pairs with the acquire loads in `within`: a reader that sees the number also sees payload and clock.
        self.numbers[buffer].store(number, Ordering::Release);
    }

    /// The newest that no set after `limit` has written. If neither buffer is within the limit, what was has been overwritten. If
    /// one is, the other is older, or later than the limit, or being written: nothing between them was lost, as long as the one
    /// still [stands](Buffers::still) when all has been read.
    #[inline]
    fn within(&self, limit: u64) -> Result<Found, Torn> {
        let numbers = [0, 1].map(|buffer: usize| self.numbers[buffer].load(Ordering::Acquire));
        let within = numbers.map(|number| if number <= limit { age(number) } else { 0 });
        let buffer = usize::from(within[1] > within[0]);
        if within[buffer] == 0 { Err(Torn) } else { Ok(Found { buffer, number: numbers[buffer] }) }
    }

    fn clock_of(&self, found: Found) -> u64 {
        self.clocks[found.buffer].load(Ordering::Relaxed)
    }

    /// Whether a buffer is still what it was when it was found: behind an acquire fence, which pairs with the release
    /// fence in `begin`.
    #[inline]
    fn still(&self, found: Found) -> bool {
        self.numbers[found.buffer].load(Ordering::Relaxed) == found.number
    }
}

/// A buffer, and the set that wrote it.
#[derive(Debug, Clone, Copy)]
struct Found {
    buffer: usize,
    number: u64,
}

impl Slot {
    /// A row of zeros: what fresh memory holds.
    pub fn new() -> Self {
        Self { buffers: Buffers::new(), as_of: OwnedU64::new(0) }
    }

    /// For the writer of a mirror: the limit that it last gave the row.
    pub fn as_of(&self) -> u64 {
        self.as_of.own()
    }

    /// For the writer of a mirror: the value in `buffer`, the newest, has this clock by now, and was still the newest
    /// after set `as_of`.
    pub fn confirm(&self, buffer: usize, clock: u64, as_of: u64) {
        self.buffers.clocks[buffer].store(clock, Ordering::Relaxed);
        // Pairs with the acquire load in `read`: a reader that sees it also sees the number that it is about.
        self.as_of.store(as_of, Ordering::Release);
    }

    /// Copies the newest value that no set after `done` has written, with `copy`, which is given where it stands and must use
    /// racing-safe loads. `row_group`: the one that the row is in. In a mirror, rows carry their own limit.
    #[inline]
    pub fn read(
        &self,
        row_group: Option<&RowGroup>,
        done: u64,
        copy: impl FnOnce(Spot),
    ) -> Result<Look, Torn> {
        let limit = done.max(self.as_of.load(Ordering::Acquire));
        let own = self.buffers.within(limit)?;
        let Some(row_group) = row_group else {
            let clock = self.buffers.clock_of(own);
            copy(Spot::Slot(own.buffer));
            fence(Ordering::Acquire);
            let still = self.buffers.still(own);
            return if still { Ok(Look { number: own.number, clock, as_of: limit }) } else { Err(Torn) };
        };
        let common = row_group.buffers.within(limit)?;
        let (number, clock) = if common.number > own.number {
            let clock = row_group.buffers.clock_of(common);
            copy(Spot::RowGroup(common.buffer));
            (common.number, clock)
        } else {
            let clock = self.buffers.clock_of(own);
            copy(Spot::Slot(own.buffer));
            (own.number, clock)
        };
        fence(Ordering::Acquire);
        // Both: what was found in the one says that nothing later stood in the other.
        let still = self.buffers.still(own) && row_group.buffers.still(common);
        if still { Ok(Look { number, clock, as_of: limit }) } else { Err(Torn) }
    }

    /// Whether a value that was shown in place still stands: `look` and `spot` come from [`Slot::read`].
    pub fn still(&self, row_group: Option<&RowGroup>, spot: Spot, look: Look) -> bool {
        fence(Ordering::Acquire);
        let found = |buffer| Found { buffer, number: look.number };
        match (spot, row_group) {
            (Spot::Slot(buffer), _) => self.buffers.still(found(buffer)),
            (Spot::RowGroup(buffer), Some(row_group)) => row_group.buffers.still(found(buffer)),
            (Spot::RowGroup(_), None) => false,
        }
    }
}

impl RowGroup {
    /// Zeros: what fresh memory holds.
    pub fn new() -> Self {
        Self { buffers: Buffers::new(), apart: OwnedU64::new(0) }
    }

    /// For the writer: the buffer of all rows, if the newest of each stands in the row group.
    fn whole(&self) -> Option<usize> {
        let numbers = self.buffers.numbers();
        let newest = newest(numbers);
        (age(self.apart.own()) < age(numbers[newest])).then_some(newest)
    }

    /// For the writer: the clock of all rows, if the newest of each stands in the row group.
    pub fn clock(&self) -> Option<u64> {
        self.whole().map(|buffer| self.buffers.clock(buffer))
    }

    /// For the writer: their number, likewise.
    pub fn number(&self) -> Option<u64> {
        self.whole().map(|buffer| self.buffers.numbers()[buffer])
    }

    /// For the writer: set `number` is about to write a row of the row group by itself.
    #[inline]
    pub fn part(&self, number: u64) {
        let numbers = self.buffers.numbers();
        // Later ones need not be told: what the first says stands until the row group is written again,
        // and readers keep the line.
        if self.apart.own() <= numbers[newest(numbers)] {
            // Readers that may see the row have seen the end of its set, which is stored later, with release.
            self.apart.store(number, Ordering::Relaxed);
        }
    }

    /// Copies all rows with `copy`, which is given the buffer, if the newest of each that no set after `done` has written
    /// stands in the row group; `None` if some stand in their slots, or all do.
    #[inline]
    pub fn read(&self, done: u64, copy: impl FnOnce(usize)) -> Result<Option<Look>, Torn> {
        let apart = self.apart.load(Ordering::Relaxed);
        let found = self.buffers.within(done)?;
        // A row that was written by itself within the limit and after this set is at least as late as `apart`.
        if apart >= found.number {
            return Ok(None);
        }
        let clock = self.buffers.clock_of(found);
        copy(found.buffer);
        fence(Ordering::Acquire);
        let look = Look { number: found.number, clock, as_of: done };
        if self.buffers.still(found) { Ok(Some(look)) } else { Err(Torn) }
    }
}

impl Default for Buffers {
    fn default() -> Self {
        Self::new()
    }
}

impl Default for Slot {
    fn default() -> Self {
        Self::new()
    }
}

impl Default for RowGroup {
    fn default() -> Self {
        Self::new()
    }
}

/// The head of a partition: how far its writer has come. Written by the writer only.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Progress {
    /// Sets that are finished.
    done: OwnedU64,
    /// Number of the last set of more than one row that was begun.
    several: OwnedU64,
    /// Iterations that the producer has completed: every row's version is at least this.
    floor: OwnedU64,
    /// Entries of the [change log](super::change_log) that were written or may be by the open set, and that were ever written.
    pub(super) begun: OwnedU64,
    pub(super) logged: OwnedU64,
}

impl Progress {
    /// Nothing was set.
    pub fn new() -> Self {
        let zero = || OwnedU64::new(0);
        Self { done: zero(), several: zero(), floor: zero(), begun: zero(), logged: zero() }
    }

    /// For a reader: now.
    pub fn now(&self) -> Moment {
        // The floor first: what was set before it was raised is then among what is done.
        let floor = self.floor.load(Ordering::Acquire);
        let several = self.several.load(Ordering::Acquire);
        Moment { done: self.done.load(Ordering::Acquire), several, floor }
    }

    /// For a reader of several rows, each looked at in a moment at or after `first`: whether no set of several rows was
    /// under way then or begun meanwhile, so that the rows belong together although the moments differ.
    pub fn belong_together(&self, first: Moment) -> bool {
        // Pairs with the release stores of numbers: a reader that saw a row of a set sees that the set was begun.
        fence(Ordering::Acquire);
        first.several <= first.done && self.several.load(Ordering::Relaxed) == first.several
    }

    /// For the writer: sets that it has finished.
    pub fn done(&self) -> u64 {
        self.done.own()
    }

    /// For the writer: set `number`, of several rows, begins.
    pub fn begin_several(&self, number: u64) {
        self.several.store(number, Ordering::Relaxed);
        // Pairs with `belong_together`; the rows' numbers are stored later, with release.
        fence(Ordering::Release);
    }

    /// For the writer: all rows of set `number` stand.
    pub fn finish(&self, number: u64) {
        // Pairs with the acquire load in `now`: a reader that sees it sees all rows of the set.
        self.done.store(number, Ordering::Release);
    }

    /// For the writer: `floor` iterations are complete, no fewer than it said before.
    pub fn raise(&self, floor: u64) {
        self.floor.store(floor, Ordering::Release);
    }

    /// For the writer: what it said last.
    pub fn raised(&self) -> u64 {
        self.floor.own()
    }

    /// Iterations that the producer has completed.
    pub fn floor(&self) -> u64 {
        self.floor.load(Ordering::Acquire)
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::super::change_log::Position;
    use super::super::model::{Memory, Writer};
    use super::super::steps::Words;
    use super::*;
    use loom::sync::Arc;
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    type Outcomes<T> = std::sync::Arc<Mutex<BTreeSet<T>>>;

    fn outcomes<T>() -> (Outcomes<T>, Outcomes<T>) {
        let all = Outcomes::default();
        (std::sync::Arc::clone(&all), all)
    }

    /// I-1.
    #[test]
    fn a_torn_or_mixed_item_is_never_returned() {
        let (seen, all) = outcomes();
        loom::model(move || {
            let region = Memory::new(1, 2);
            let mut producer = Writer::over(Arc::clone(&region));
            let writer = loom::thread::spawn(move || {
                producer.set(&[0]);
                producer.set(&[0]);
            });
            let got = region.get(0, region.progress.now().done);
            seen.lock().unwrap().insert(got);
            writer.join().unwrap();
            assert_eq!(region.get(0, region.progress.now().done), Ok(2), "who comes after it sees it");
        });
        assert_eq!(*all.lock().unwrap(), BTreeSet::from([Ok(0), Ok(1), Ok(2), Err(Torn)]));
    }

    #[test]
    fn a_row_that_is_read_in_place_is_whole_if_it_still_stands() {
        let (seen, all) = outcomes();
        loom::model(move || {
            let region = Memory::new(1, 1);
            let mut producer = Writer::over(Arc::clone(&region));
            let writer = loom::thread::spawn(move || (0..2).for_each(|_| producer.set(&[0])));
            let got = region.view(0, region.progress.now().done);
            seen.lock().unwrap().insert(got);
            writer.join().unwrap();
        });
        assert_eq!(*all.lock().unwrap(), BTreeSet::from([Ok(0), Ok(1), Ok(2), Err(Torn)]));
    }

    #[test]
    fn one_set_never_keeps_a_reader_waiting() {
        let (seen, all) = outcomes();
        loom::model(move || {
            let region = Memory::new(1, 2);
            let mut producer = Writer::over(Arc::clone(&region));
            producer.set(&[0]);
            let writer = loom::thread::spawn(move || producer.set(&[0]));
            let got = region.get(0, region.progress.now().done);
            assert!(got.is_ok(), "the other buffer is whole");
            seen.lock().unwrap().insert(got);
            writer.join().unwrap();
        });
        assert_eq!(*all.lock().unwrap(), BTreeSet::from([Ok(1), Ok(2)]));
    }

    #[test]
    fn what_a_reader_gets_of_a_row_never_falls() {
        let (seen, all) = outcomes();
        loom::model(move || {
            let region = Memory::new(1, 2);
            let mut producer = Writer::over(Arc::clone(&region));
            let writer = loom::thread::spawn(move || producer.set(&[0]));
            let first = region.get(0, region.progress.now().done);
            let second = region.get(0, region.progress.now().done);
            if let (Ok(first), Ok(second)) = (first, second) {
                assert!(first <= second, "I-2");
            }
            seen.lock().unwrap().insert((first, second));
            writer.join().unwrap();
        });
        let all = all.lock().unwrap();
        for expected in [(Ok(0), Ok(0)), (Ok(0), Ok(1)), (Ok(1), Ok(1))] {
            assert!(all.contains(&expected), "{expected:?} never came up");
        }
    }

    #[test]
    fn rows_set_together_are_seen_together_from_one_moment() {
        let (seen, all) = outcomes();
        loom::model(move || {
            let region = Memory::new(2, 2);
            let mut producer = Writer::over(Arc::clone(&region));
            let writer = loom::thread::spawn(move || producer.set(&[0, 1]));
            let now = region.progress.now();
            if let (Ok(a), Ok(b)) = (region.get(0, now.done), region.get(1, now.done)) {
                assert_eq!(a, b, "I-3");
                seen.lock().unwrap().insert((a, b));
            }
            writer.join().unwrap();
        });
        assert_eq!(*all.lock().unwrap(), BTreeSet::from([(0, 0), (1, 1)]));
    }

    #[test]
    fn rows_looked_at_in_different_moments_belong_together_if_no_set_of_several_came_between() {
        let (seen, all) = outcomes();
        loom::model(move || {
            let region = Memory::new(2, 2);
            let mut producer = Writer::over(Arc::clone(&region));
            let writer = loom::thread::spawn(move || producer.set(&[0, 1]));
            let first = region.progress.now();
            let a = region.get(0, first.done);
            let b = region.get(1, region.progress.now().done);
            let together = region.progress.belong_together(first);
            if let (Ok(a), Ok(b), true) = (a, b, together) {
                assert_eq!(a, b, "I-3");
            }
            seen.lock().unwrap().insert((a, b, together));
            writer.join().unwrap();
        });
        let all = all.lock().unwrap();
        assert!(all.contains(&(Ok(0), Ok(1), false)), "the mixture came up, and was refused");
        assert!(all.contains(&(Ok(0), Ok(0), true)) && all.contains(&(Ok(1), Ok(1), true)));
    }

    #[test]
    fn a_writer_that_dies_inside_leaves_the_rows_as_they_were() {
        loom::model(|| {
            let region = Memory::new(2, 2);
            let mut producer = Writer::over(Arc::clone(&region));
            producer.set(&[0, 1]);
            let writer = loom::thread::spawn(move || {
                // Set 2 writes the first row, marks the second, and is never heard of again.
                producer.open(2, 2);
                producer.put_number(0, 2);
                let second = &producer.words().head(1).buffers;
                second.begin(target(second.numbers(), 2));
            });
            for _ in 0..2 {
                let now = region.progress.now();
                assert_eq!((region.get(0, now.done), region.get(1, now.done)), (Ok(1), Ok(1)), "I-3");
            }
            // The writer that takes over writes set 2 from the start.
            writer.join().unwrap();
            Writer::over(Arc::clone(&region)).set(&[0, 1]);
            let now = region.progress.now();
            assert_eq!((region.get(0, now.done), region.get(1, now.done)), (Ok(2), Ok(2)));
        });
    }

    /// What a follower makes of three sets of one row, of which each announces so many rows: how many entries it read, if it
    /// was not overtaken.
    fn followed(announced: usize) -> BTreeSet<Option<u64>> {
        let (seen, all) = outcomes();
        let mut model = loom::model::Builder::new();
        // Without a bound it takes minutes; what is asserted to be met is met within it.
        model.preemption_bound = Some(2);
        model.check(move || {
            let region = Memory::new(1, 1);
            let mut producer = Writer::over(Arc::clone(&region));
            let writer = loom::thread::spawn(move || {
                for number in 1..=3 {
                    producer.open(number, announced);
                    producer.put_number(0, number);
                    producer.finish();
                }
            });
            let mut read = Vec::new();
            let entry = |at: u64| region.entry(at).load(Ordering::Relaxed);
            let listed =
                Position::default().advance(&region.progress, 2, entry, |entry| read.push(entry >> 32));
            let end = listed.ok().map(|()| read.len() as u64);
            if let Some(end) = end {
                assert_eq!(read, (1..=end).collect::<Vec<u64>>());
            }
            seen.lock().unwrap().insert(end);
            writer.join().unwrap();
        });
        let all = all.lock().unwrap();
        all.clone()
    }

    #[test]
    fn a_follower_reads_what_was_logged_or_hears_that_it_was_overtaken() {
        assert_eq!(followed(1), BTreeSet::from([None, Some(0), Some(1), Some(2)]));
    }

    #[test]
    fn a_follower_of_sets_that_grow_reads_what_was_logged_or_hears_that_it_was_overtaken() {
        // A set that outgrows what it announced announces more: no fence of a row stands between that and its entry.
        assert_eq!(followed(0), BTreeSet::from([None, Some(0), Some(1), Some(2)]));
    }

    #[test]
    fn a_follower_of_sets_that_write_less_than_they_announce_is_overtaken_by_what_was_written() {
        assert_eq!(followed(2), BTreeSet::from([None, Some(0), Some(1), Some(2)]));
    }

    #[test]
    fn a_row_of_a_mirror_that_comes_late_is_whole_before_its_set_is_finished() {
        let (seen, all) = outcomes();
        loom::model(move || {
            let region = Memory::new(1, 2);
            let mut mirror = Writer::over(Arc::clone(&region));
            // It is as of set 2 when it first asks for the row, which set 1 wrote.
            mirror.open(2, 0);
            mirror.finish();
            let writer = loom::thread::spawn(move || {
                mirror.open(3, 1);
                mirror.put_number(0, 1);
            });
            let got = region.get(0, 2);
            seen.lock().unwrap().insert(got);
            writer.join().unwrap();
        });
        assert_eq!(*all.lock().unwrap(), BTreeSet::from([Ok(0), Ok(1)]));
    }

    #[test]
    fn rows_of_a_mirror_s_row_group_that_come_late_are_whole_before_their_set_is_finished() {
        let (seen, all) = outcomes();
        loom::model(move || {
            let region = Memory::with_row_group();
            let mut mirror = Writer::over(Arc::clone(&region));
            mirror.open(2, 0);
            mirror.finish();
            let writer = loom::thread::spawn(move || {
                mirror.open(3, 1);
                mirror.put_row_group_number(1);
            });
            let got = region.get_row_group(2);
            seen.lock().unwrap().insert(got);
            writer.join().unwrap();
        });
        assert_eq!(*all.lock().unwrap(), BTreeSet::from([Ok(None), Ok(Some(1))]));
    }

    #[test]
    fn a_floor_is_never_seen_before_what_was_set_below_it() {
        loom::model(|| {
            let region = Memory::new(1, 2);
            let mut producer = Writer::over(Arc::clone(&region));
            let writer = loom::thread::spawn(move || {
                producer.set(&[0]);
                producer.raise(1);
            });
            let now = region.progress.now();
            if now.floor == 1 {
                assert_eq!(region.get(0, now.done), Ok(1));
            }
            writer.join().unwrap();
        });
    }

    /// Both rows of a row group: at once if they stand in it.
    fn get_both(region: &Memory, done: u64) -> Result<([u64; 2], bool), Torn> {
        match region.get_row_group(done)? {
            Some(number) => Ok(([number; 2], true)),
            None => Ok(([region.get(0, done)?, region.get(1, done)?], false)),
        }
    }

    /// What a set has.
    #[derive(Clone, Copy)]
    enum Rows {
        One(usize),
        Both,
    }

    fn set(writer: &mut Writer, rows: Rows) {
        match rows {
            Rows::One(row) => writer.set(&[row]),
            Rows::Both => writer.set_row_group(),
        }
    }

    /// Rows after each set.
    fn history(sets: &[Rows]) -> Vec<[u64; 2]> {
        let mut rows = [0; 2];
        let after = sets.iter().zip(1..).map(|(set, number)| {
            match set {
                Rows::One(row) => rows[*row] = number,
                Rows::Both => rows = [number; 2],
            }
            rows
        });
        std::iter::once([0; 2]).chain(after).collect()
    }

    /// A reader of both rows meets the sets from `first` on, of which those before are done.
    fn rows_are_as_they_were_at_one_moment(
        sets: &'static [Rows],
        first: usize,
    ) -> BTreeSet<([u64; 2], bool)> {
        let (seen, all) = outcomes();
        loom::model(move || {
            let region = Memory::with_row_group();
            let mut writer = Writer::over(Arc::clone(&region));
            sets[..first].iter().for_each(|&rows| set(&mut writer, rows));
            let writing =
                loom::thread::spawn(move || sets[first..].iter().for_each(|&rows| set(&mut writer, rows)));
            let done = region.progress.now().done;
            if let Ok((rows, at_once)) = get_both(&region, done) {
                assert_eq!(rows, history(sets)[done as usize], "I-3: the rows are those of the moment");
                seen.lock().unwrap().insert((rows, at_once));
            }
            writing.join().unwrap();
            let after = get_both(&region, region.progress.now().done).map(|(rows, _)| rows);
            assert_eq!(after.ok(), history(sets).last().copied(), "who comes after it sees it");
        });
        std::sync::Arc::try_unwrap(all).unwrap().into_inner().unwrap()
    }

    #[test]
    fn rows_of_a_row_group_are_those_of_one_moment_while_one_of_them_is_set() {
        use Rows::{Both, One};
        let seen = rows_are_as_they_were_at_one_moment(&[Both, One(0), One(1)], 1);
        let expected = [([1, 1], true), ([1, 1], false), ([2, 1], false), ([2, 3], false)];
        assert_eq!(seen, BTreeSet::from(expected));
    }

    #[test]
    fn rows_of_a_row_group_are_those_of_one_moment_while_the_row_group_is_set() {
        use Rows::{Both, One};
        let seen = rows_are_as_they_were_at_one_moment(&[Both, One(0), Both, One(1)], 2);
        // From before the set of both: never at once, since row 0 had been set by itself.
        let expected = [([2, 1], false), ([3, 3], true), ([3, 3], false), ([3, 4], false)];
        assert_eq!(seen, BTreeSet::from(expected));
    }

    #[test]
    fn a_row_group_that_is_torn_is_not_read() {
        use Rows::Both;
        let seen = rows_are_as_they_were_at_one_moment(&[Both, Both, Both], 1);
        assert_eq!(seen, BTreeSet::from([([1, 1], true), ([2, 2], true), ([3, 3], true)]));
    }

    #[test]
    fn a_row_never_falls_back_from_its_row_group_to_its_slot() {
        let (seen, all) = outcomes();
        loom::model(move || {
            let region = Memory::with_row_group();
            let mut writer = Writer::over(Arc::clone(&region));
            writer.set(&[0]);
            let writing = loom::thread::spawn(move || {
                // The row group comes round: at a moment between, neither of its buffers says what was.
                (0..3).for_each(|_| writer.set_row_group());
            });
            let done = region.progress.now().done;
            let got = region.get(0, done);
            assert!(got.is_err() || got == Ok(done), "I-2: got {got:?} after set {done}");
            seen.lock().unwrap().insert(got);
            writing.join().unwrap();
        });
        assert_eq!(*all.lock().unwrap(), BTreeSet::from([Ok(1), Ok(2), Ok(3), Ok(4), Err(Torn)]));
    }
}
