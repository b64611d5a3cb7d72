//! One row: two buffers, each with the number of the set that wrote it. Several rows at once: a sheet, of the same kind.
//!
//! The writer always writes the older buffer, and readers take the newest of those that are finished, so they meet only if the
//! writer comes round twice during one look. A set is finished when the region's `done` reaches its number: what
//! carries a higher number is not looked at (I-3).
//!
//! Why it holds. [`Buffers::begin`] marks a buffer before its payload is touched, ordered by a release fence; a reader that saw
//! any of those writes therefore sees, behind its acquire fence, a mark that is not the number it started from. Numbers
//! are stored with release after the payload, and a reader that starts from one sees all of it (I-1). If both buffers were
//! overtaken while a reader looked, none carries a number within its limit, or the one it took has changed: it looks again
//! with a later limit. lapser.md, 3.3.1 (figure 3.1) is the same race with a clock that overtakes its value.

use crate::sync::{AtomicU64, Ordering, fence};
pub use penstock_proto::items::memory::{Look, Moment, Overtaken};

/// Number of a buffer that is being written, or was left half-written: older than any.
pub const UNFINISHED: u64 = u64::MAX;

/// What is known of two buffers that are written in turns. Written by the region's writer only.
#[derive(Debug)]
#[repr(C)]
pub struct Buffers {
    /// Number of the set that wrote each buffer.
    numbers: [AtomicU64; 2],
    /// Clock that it was given.
    clocks: [AtomicU64; 2],
}

/// Head of a row, 40 bytes. Drawn in docs/layout.md.
#[derive(Debug)]
#[repr(C)]
pub struct Slot {
    /// The row's own buffers.
    pub buffers: Buffers,
    /// In a mirror: the newest number is that of the row as it was after this set.
    as_of: AtomicU64,
}

/// Head of a sheet: some rows that stand one after the other, in two more buffers. A set that has all of them writes the sheet
/// and leaves their slots alone, so a row's newest value stands in its slot or in its sheet, whichever has the later number; with
/// the same, in its slot.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Sheet {
    /// The sheet's buffers.
    pub buffers: Buffers,
    /// Number of the first set after the sheet's newest that wrote one of its rows by itself; any before it if there was none.
    apart: AtomicU64,
}

/// Where a row's value stands: which buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spot {
    /// Of its slot.
    Slot(usize),
    /// Of its sheet.
    Sheet(usize),
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
        let zeros = || [AtomicU64::new(0), AtomicU64::new(0)];
        Self { numbers: zeros(), clocks: zeros() }
    }

    /// For the writer: the numbers of both buffers, as it left them.
    pub fn numbers(&self) -> [u64; 2] {
        [0, 1].map(|buffer: usize| self.numbers[buffer].load(Ordering::Relaxed))
    }

    /// For the writer: the clock of a buffer, as it left it.
    pub fn clock(&self, buffer: usize) -> u64 {
        self.clocks[buffer].load(Ordering::Relaxed)
    }

    /// For the writer: marks a buffer, the one that [`target`] names, before it is written.
    pub fn begin(&self, buffer: usize) {
        self.numbers[buffer].store(UNFINISHED, Ordering::Relaxed);
        // Pairs with the acquire fence in `read`: who sees a write that follows also sees the mark.
        fence(Ordering::Release);
    }

    /// For the writer: the buffer's payload is that of set `number`.
    pub fn finish(&self, buffer: usize, number: u64, clock: u64) {
        self.clocks[buffer].store(clock, Ordering::Relaxed);
        // Pairs with the acquire loads in `within`: who sees the number also sees payload and clock.
        self.numbers[buffer].store(number, Ordering::Release);
    }

    /// The newest that no set after `limit` has written. If neither buffer is within the limit, what was has been overwritten. If
    /// one is, the other is older, or later than the limit, or being written: nothing between them was lost, as long as the one
    /// still [stands](Buffers::still) when all has been read.
    #[inline]
    fn within(&self, limit: u64) -> Result<Found, Overtaken> {
        let numbers = [0, 1].map(|buffer: usize| self.numbers[buffer].load(Ordering::Acquire));
        let within = numbers.map(|number| if number <= limit { age(number) } else { 0 });
        let buffer = usize::from(within[1] > within[0]);
        if within[buffer] == 0 { Err(Overtaken) } else { Ok(Found { buffer, number: numbers[buffer] }) }
    }

    fn clock_of(&self, found: Found) -> u64 {
        self.clocks[found.buffer].load(Ordering::Relaxed)
    }

    /// Whether a buffer still is what it was when it was found: behind an acquire fence, which pairs with the release fence in
    /// `begin`.
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
        Self { buffers: Buffers::new(), as_of: AtomicU64::new(0) }
    }

    /// For the writer of a mirror: the limit that it last gave the row.
    pub fn as_of(&self) -> u64 {
        self.as_of.load(Ordering::Relaxed)
    }

    /// For the writer of a mirror: the value in `buffer`, the newest, has this clock by now, and still was the newest after set
    /// `as_of`.
    pub fn confirm(&self, buffer: usize, clock: u64, as_of: u64) {
        self.buffers.clocks[buffer].store(clock, Ordering::Relaxed);
        // Pairs with the acquire load in `read`: who sees it also sees the number that it is about.
        self.as_of.store(as_of, Ordering::Release);
    }

    /// Copies the newest value that no set after `done` has written, with `copy`, which is given where it stands and must use
    /// racing-safe loads. `sheet`: the one that the row is in. In a mirror, rows carry their own limit.
    #[inline]
    pub fn read(&self, sheet: Option<&Sheet>, done: u64, copy: impl FnOnce(Spot)) -> Result<Look, Overtaken> {
        let limit = done.max(self.as_of.load(Ordering::Acquire));
        let own = self.buffers.within(limit)?;
        let Some(sheet) = sheet else {
            let clock = self.buffers.clock_of(own);
            copy(Spot::Slot(own.buffer));
            fence(Ordering::Acquire);
            let still = self.buffers.still(own);
            return if still { Ok(Look { number: own.number, clock, as_of: limit }) } else { Err(Overtaken) };
        };
        let common = sheet.buffers.within(limit)?;
        let (number, clock) = if common.number > own.number {
            let clock = sheet.buffers.clock_of(common);
            copy(Spot::Sheet(common.buffer));
            (common.number, clock)
        } else {
            let clock = self.buffers.clock_of(own);
            copy(Spot::Slot(own.buffer));
            (own.number, clock)
        };
        fence(Ordering::Acquire);
        // Both: what was found in the one says that nothing later stood in the other.
        let still = self.buffers.still(own) && sheet.buffers.still(common);
        if still { Ok(Look { number, clock, as_of: limit }) } else { Err(Overtaken) }
    }

    /// Whether a value that was shown in place still stands: `look` and `spot` come from [`Slot::read`].
    pub fn still(&self, sheet: Option<&Sheet>, spot: Spot, look: Look) -> bool {
        fence(Ordering::Acquire);
        let found = |buffer| Found { buffer, number: look.number };
        match (spot, sheet) {
            (Spot::Slot(buffer), _) => self.buffers.still(found(buffer)),
            (Spot::Sheet(buffer), Some(sheet)) => sheet.buffers.still(found(buffer)),
            (Spot::Sheet(_), None) => false,
        }
    }
}

impl Sheet {
    /// Zeros: what fresh memory holds.
    pub fn new() -> Self {
        Self { buffers: Buffers::new(), apart: AtomicU64::new(0) }
    }

    /// For the writer: the buffer of all rows, if the newest of each stands in the sheet.
    fn whole(&self) -> Option<usize> {
        let numbers = self.buffers.numbers();
        let newest = newest(numbers);
        (age(self.apart.load(Ordering::Relaxed)) < age(numbers[newest])).then_some(newest)
    }

    /// For the writer: the clock of all rows, if the newest of each stands in the sheet.
    pub fn clock(&self) -> Option<u64> {
        self.whole().map(|buffer| self.buffers.clock(buffer))
    }

    /// For the writer: their number, likewise.
    pub fn number(&self) -> Option<u64> {
        self.whole().map(|buffer| self.buffers.numbers()[buffer])
    }

    /// For the writer: set `number` is about to write a row of the sheet by itself.
    #[inline]
    pub fn part(&self, number: u64) {
        let numbers = self.buffers.numbers();
        // Later ones need not be told: what the first says stands until the sheet is written again, and readers keep the line.
        if self.apart.load(Ordering::Relaxed) <= numbers[newest(numbers)] {
            // Readers that may see the row have seen the end of its set, which is stored later, with release.
            self.apart.store(number, Ordering::Relaxed);
        }
    }

    /// Copies all rows with `copy`, which is given the buffer, if the newest of each that no set after `done` has written stands in
    /// the sheet; `None` if some stand in their slots, or all do.
    #[inline]
    pub fn read(&self, done: u64, copy: impl FnOnce(usize)) -> Result<Option<Look>, Overtaken> {
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
        if self.buffers.still(found) { Ok(Some(look)) } else { Err(Overtaken) }
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

impl Default for Sheet {
    fn default() -> Self {
        Self::new()
    }
}

/// The head of a region: how far its writer has come. Written by the writer only.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Progress {
    /// Sets that are finished.
    done: AtomicU64,
    /// Number of the last set of more than one row that was begun.
    several: AtomicU64,
    /// Iterations that the producer has completed: every row's version is at least this.
    floor: AtomicU64,
    /// Of the [journal](super::journal): entries that were ever begun, and that were ever written.
    pub(super) begun: AtomicU64,
    pub(super) logged: AtomicU64,
}

impl Progress {
    /// Nothing was set.
    pub fn new() -> Self {
        let zero = || AtomicU64::new(0);
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
        // Pairs with the release stores of numbers: who saw a row of a set sees that the set was begun.
        fence(Ordering::Acquire);
        first.several <= first.done && self.several.load(Ordering::Relaxed) == first.several
    }

    /// For the writer: sets that it has finished.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// For the writer: set `number`, of several rows, begins.
    pub fn begin_several(&self, number: u64) {
        self.several.store(number, Ordering::Relaxed);
        // Pairs with `belong_together`; the rows' numbers are stored later, with release.
        fence(Ordering::Release);
    }

    /// For the writer: all rows of set `number` stand.
    pub fn finish(&self, number: u64) {
        // Pairs with the acquire load in `now`: who sees it sees all rows of the set.
        self.done.store(number, Ordering::Release);
    }

    /// For the writer: `floor` iterations are complete, no fewer than it said before.
    pub fn raise(&self, floor: u64) {
        self.floor.store(floor, Ordering::Release);
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
    use super::super::journal::Position;
    use super::*;
    use loom::sync::Arc;
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    /// A region of `N` rows of two words.
    struct Region<const N: usize> {
        progress: Progress,
        slots: [Slot; N],
        words: [[[AtomicU64; 2]; 2]; N],
    }

    impl<const N: usize> Region<N> {
        fn new() -> Arc<Self> {
            let words = || [0, 1].map(|_| [0, 1].map(|_| AtomicU64::new(0)));
            Arc::new(Self {
                progress: Progress::new(),
                slots: std::array::from_fn(|_| Slot::new()),
                words: std::array::from_fn(|_| words()),
            })
        }

        fn get(&self, row: usize, done: u64) -> Result<u64, Overtaken> {
            let mut words = [0; 2];
            let look = self.slots[row].read(None, done, |spot| {
                let Spot::Slot(buffer) = spot else { unreachable!("there is no sheet") };
                for (copy, word) in words.iter_mut().zip(&self.words[row][buffer]) {
                    *copy = word.load(Ordering::Relaxed);
                }
            })?;
            assert_eq!(words, [look.number; 2], "I-1");
            assert_eq!(look.clock, look.number, "I-1: figure 3.1");
            Ok(look.number)
        }
    }

    /// The writer. It keeps what it has written itself: loom explores a race between a load and a store only if the storing
    /// thread has not looked at the same atomic before.
    struct Writer<const N: usize> {
        region: Arc<Region<N>>,
        done: u64,
        numbers: [[u64; 2]; N],
    }

    impl<const N: usize> Writer<N> {
        fn new(region: &Arc<Region<N>>) -> Self {
            Self { region: Arc::clone(region), done: 0, numbers: [[0; 2]; N] }
        }

        fn begin(&mut self, row: usize, number: u64) -> usize {
            let buffer = target(self.numbers[row], number);
            self.numbers[row][buffer] = UNFINISHED;
            self.region.slots[row].buffers.begin(buffer);
            buffer
        }

        fn write(&mut self, row: usize, number: u64) {
            let buffer = self.begin(row, number);
            for word in &self.region.words[row][buffer] {
                word.store(number, Ordering::Relaxed);
            }
            self.region.slots[row].buffers.finish(buffer, number, number);
            self.numbers[row][buffer] = number;
        }

        fn set(&mut self, rows: &[usize]) {
            let number = self.done + 1;
            if rows.len() > 1 {
                self.region.progress.begin_several(number);
            }
            for &row in rows {
                self.write(row, number);
            }
            self.region.progress.finish(number);
            self.done = number;
        }
    }

    type Outcomes<T> = std::sync::Arc<Mutex<BTreeSet<T>>>;

    fn outcomes<T>() -> (Outcomes<T>, Outcomes<T>) {
        let all = Outcomes::default();
        (std::sync::Arc::clone(&all), all)
    }

    #[test]
    fn a_torn_or_mixed_item_is_never_returned() {
        let (seen, all) = outcomes();
        loom::model(move || {
            let region = Region::<1>::new();
            let mut producer = Writer::new(&region);
            let writer = loom::thread::spawn(move || {
                producer.set(&[0]);
                producer.set(&[0]);
            });
            let got = region.get(0, region.progress.now().done);
            seen.lock().unwrap().insert(got);
            writer.join().unwrap();
            assert_eq!(region.get(0, region.progress.now().done), Ok(2), "who comes after it sees it");
        });
        assert_eq!(*all.lock().unwrap(), BTreeSet::from([Ok(0), Ok(1), Ok(2), Err(Overtaken)]));
    }

    #[test]
    fn one_set_never_keeps_a_reader_waiting() {
        let (seen, all) = outcomes();
        loom::model(move || {
            let region = Region::<1>::new();
            let mut producer = Writer::new(&region);
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
            let region = Region::<1>::new();
            let mut producer = Writer::new(&region);
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
            let region = Region::<2>::new();
            let mut producer = Writer::new(&region);
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
            let region = Region::<2>::new();
            let mut producer = Writer::new(&region);
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
            let region = Region::<2>::new();
            let mut producer = Writer::new(&region);
            producer.set(&[0, 1]);
            let writer = loom::thread::spawn(move || {
                // Set 2 writes the first row, marks the second, and is heard of no more.
                producer.region.progress.begin_several(2);
                producer.write(0, 2);
                producer.begin(1, 2);
                producer
            });
            for _ in 0..2 {
                let now = region.progress.now();
                assert_eq!((region.get(0, now.done), region.get(1, now.done)), (Ok(1), Ok(1)), "I-3");
            }
            // Whoever takes over writes set 2 from the start.
            writer.join().unwrap().set(&[0, 1]);
            let now = region.progress.now();
            assert_eq!((region.get(0, now.done), region.get(1, now.done)), (Ok(2), Ok(2)));
        });
    }

    #[test]
    fn a_follower_reads_what_was_logged_or_hears_that_it_was_overtaken() {
        let (seen, all) = outcomes();
        loom::model(move || {
            let shared = Arc::new((Progress::new(), [AtomicU64::new(0), AtomicU64::new(0)]));
            let producer = Arc::clone(&shared);
            let writer = loom::thread::spawn(move || {
                for entry in 0..3u64 {
                    producer.0.begin_log(entry + 1);
                    producer.1[entry as usize % 2].store(entry + 1, Ordering::Relaxed);
                    producer.0.finish_log(entry + 1);
                }
            });
            let mut read = Vec::new();
            let entry = |at: u64| shared.1[at as usize % 2].load(Ordering::Relaxed);
            let listed = Position::default().advance(&shared.0, 2, entry, |entry| read.push(entry));
            let end = listed.ok().map(|()| read.len() as u64);
            if let Some(end) = end {
                assert_eq!(read, (1..=end).collect::<Vec<u64>>());
            }
            seen.lock().unwrap().insert(end);
            writer.join().unwrap();
        });
        assert_eq!(*all.lock().unwrap(), BTreeSet::from([None, Some(0), Some(1), Some(2)]));
    }

    #[test]
    fn a_floor_is_never_seen_before_what_was_set_below_it() {
        loom::model(|| {
            let region = Region::<1>::new();
            let mut producer = Writer::new(&region);
            let writer = loom::thread::spawn(move || {
                producer.set(&[0]);
                producer.region.progress.raise(1);
            });
            let now = region.progress.now();
            if now.floor == 1 {
                assert_eq!(region.get(0, now.done), Ok(1));
            }
            writer.join().unwrap();
        });
    }

    /// Two rows of a word in a sheet.
    struct Sheeted {
        progress: Progress,
        slots: [Slot; 2],
        sheet: Sheet,
        /// By row and buffer.
        own: [[AtomicU64; 2]; 2],
        /// By buffer and row.
        common: [[AtomicU64; 2]; 2],
    }

    impl Sheeted {
        fn new() -> Arc<Self> {
            let words = || [0, 1].map(|_| [0, 1].map(|_| AtomicU64::new(0)));
            Arc::new(Self {
                progress: Progress::new(),
                slots: [Slot::new(), Slot::new()],
                sheet: Sheet::new(),
                own: words(),
                common: words(),
            })
        }

        fn get(&self, row: usize, done: u64) -> Result<u64, Overtaken> {
            let mut word = 0;
            let look = self.slots[row].read(Some(&self.sheet), done, |spot| {
                word = match spot {
                    Spot::Slot(buffer) => self.own[row][buffer].load(Ordering::Relaxed),
                    Spot::Sheet(buffer) => self.common[buffer][row].load(Ordering::Relaxed),
                };
            })?;
            assert_eq!((word, look.clock), (look.number, look.number), "I-1");
            Ok(word)
        }

        /// Both rows: at once if they stand in the sheet.
        fn get_both(&self, done: u64) -> Result<([u64; 2], bool), Overtaken> {
            let mut words = [0; 2];
            let look = self.sheet.read(done, |buffer| {
                words = [0, 1].map(|row: usize| self.common[buffer][row].load(Ordering::Relaxed));
            })?;
            match look {
                Some(look) => {
                    assert_eq!(words, [look.number; 2], "I-1");
                    Ok((words, true))
                }
                None => Ok(([self.get(0, done)?, self.get(1, done)?], false)),
            }
        }
    }

    /// What a set has.
    #[derive(Clone, Copy)]
    enum Rows {
        One(usize),
        Both,
    }

    /// The writer; it keeps what it has written itself, as [`Writer`] does.
    struct SheetWriter {
        region: Arc<Sheeted>,
        done: u64,
        own: [[u64; 2]; 2],
        common: [u64; 2],
        apart: u64,
    }

    impl SheetWriter {
        fn new(region: &Arc<Sheeted>) -> Self {
            Self { region: Arc::clone(region), done: 0, own: [[0; 2]; 2], common: [0; 2], apart: 0 }
        }

        fn set(&mut self, rows: Rows) {
            let (number, region) = (self.done + 1, &self.region);
            match rows {
                Rows::One(row) => {
                    // As `Sheet::part`.
                    if self.apart <= self.common[newest(self.common)] {
                        region.sheet.apart.store(number, Ordering::Relaxed);
                        self.apart = number;
                    }
                    let buffer = target(self.own[row], number);
                    region.slots[row].buffers.begin(buffer);
                    region.own[row][buffer].store(number, Ordering::Relaxed);
                    region.slots[row].buffers.finish(buffer, number, number);
                    self.own[row][buffer] = number;
                }
                Rows::Both => {
                    let buffer = target(self.common, number);
                    region.sheet.buffers.begin(buffer);
                    for word in &region.common[buffer] {
                        word.store(number, Ordering::Relaxed);
                    }
                    region.sheet.buffers.finish(buffer, number, number);
                    self.common[buffer] = number;
                }
            }
            region.progress.finish(number);
            self.done = number;
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
            let region = Sheeted::new();
            let mut writer = SheetWriter::new(&region);
            sets[..first].iter().for_each(|&set| writer.set(set));
            let writing = loom::thread::spawn(move || sets[first..].iter().for_each(|&set| writer.set(set)));
            let done = region.progress.now().done;
            if let Ok((rows, at_once)) = region.get_both(done) {
                assert_eq!(rows, history(sets)[done as usize], "I-3: the rows are those of the moment");
                seen.lock().unwrap().insert((rows, at_once));
            }
            writing.join().unwrap();
            let after = region.get_both(region.progress.now().done).map(|(rows, _)| rows);
            assert_eq!(after.ok(), history(sets).last().copied(), "who comes after it sees it");
        });
        std::sync::Arc::try_unwrap(all).unwrap().into_inner().unwrap()
    }

    #[test]
    fn rows_of_a_sheet_are_those_of_one_moment_while_one_of_them_is_set() {
        use Rows::{Both, One};
        let seen = rows_are_as_they_were_at_one_moment(&[Both, One(0), One(1)], 1);
        let expected = [([1, 1], true), ([1, 1], false), ([2, 1], false), ([2, 3], false)];
        assert_eq!(seen, BTreeSet::from(expected));
    }

    #[test]
    fn rows_of_a_sheet_are_those_of_one_moment_while_the_sheet_is_set() {
        use Rows::{Both, One};
        let seen = rows_are_as_they_were_at_one_moment(&[Both, One(0), Both, One(1)], 2);
        // From before the set of both: never at once, since row 0 had been set by itself.
        let expected = [([2, 1], false), ([3, 3], true), ([3, 3], false), ([3, 4], false)];
        assert_eq!(seen, BTreeSet::from(expected));
    }

    #[test]
    fn a_sheet_that_is_overtaken_is_not_read() {
        use Rows::Both;
        let seen = rows_are_as_they_were_at_one_moment(&[Both, Both, Both], 1);
        assert_eq!(seen, BTreeSet::from([([1, 1], true), ([2, 2], true), ([3, 3], true)]));
    }

    #[test]
    fn a_row_never_falls_back_from_its_sheet_to_its_slot() {
        let (seen, all) = outcomes();
        loom::model(move || {
            let region = Sheeted::new();
            let mut writer = SheetWriter::new(&region);
            writer.set(Rows::One(0));
            let writing = loom::thread::spawn(move || {
                // The sheet comes round: at a moment between, neither of its buffers says what was.
                (0..3).for_each(|_| writer.set(Rows::Both));
            });
            let done = region.progress.now().done;
            let got = region.get(0, done);
            assert!(got.is_err() || got == Ok(done), "I-2: got {got:?} after set {done}");
            seen.lock().unwrap().insert(got);
            writing.join().unwrap();
        });
        assert_eq!(*all.lock().unwrap(), BTreeSet::from([Ok(1), Ok(2), Ok(3), Ok(4), Err(Overtaken)]));
    }
}
