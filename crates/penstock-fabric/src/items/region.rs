//! Where a table's rows of one producer lie: progress, journal, slots. The writer's end, the readers' end, and the page that
//! readers sleep on. Drawn in docs/layout.md.

use super::slot::{Look, Moment, Overtaken, Progress, Slot, UNFINISHED, newest, target};
use super::waiters::{LINES, Line, Summary, Wanted};
use crate::layout::{PAGE, Shared, pages};
use crate::region::{Access, Mapping, Part, Region, Writers};
use crate::sync::{AtomicU64, Ordering};
use penstock_kernels::{Dtype, Foreign};
use rustix::fd::BorrowedFd;
use rustix::io;
use rustix::thread::futex;
use rustix::time::Timespec;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

// SAFETY: `AtomicU64`s only.
unsafe impl Shared for Slot {}
// SAFETY: `AtomicU64`s only.
unsafe impl Shared for Progress {}
// SAFETY: two `AtomicU32`.
unsafe impl Shared for Summary {}
// SAFETY: `AtomicU32`s and an `AtomicU64`.
unsafe impl Shared for Line {}
// SAFETY: an atomic.
unsafe impl Shared for AtomicU64 {}

const LINE: usize = 64;
const JOURNAL: usize = size_of::<Progress>();
/// Most and fewest entries of a journal: a follower that falls further behind looks at all rows.
const ENTRIES: (u32, u32) = (1 << 16, 64);
/// Longest row.
pub const MAX_ROW_BYTES: u32 = 1 << 24;

/// Geometry of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    slots: u32,
    row_bytes: usize,
    /// Bytes of one of a slot's two buffers, and where the first starts.
    buffer: usize,
    first: usize,
    stride: usize,
    entries: u32,
}

impl Layout {
    /// For `slots` rows of `row_bytes` bytes. A row of at most 40 bytes shares its head's cache lines; longer ones start on
    /// cache lines of their own.
    pub fn new(slots: u32, row_bytes: u32) -> Self {
        let row_bytes = row_bytes as usize;
        let words = row_bytes.next_multiple_of(8);
        let head = size_of::<Slot>();
        let (first, buffer) = if head + 2 * words <= 2 * LINE {
            (head, words)
        } else {
            (LINE, row_bytes.next_multiple_of(LINE))
        };
        let stride = (first + 2 * buffer).next_multiple_of(LINE);
        let entries = slots.saturating_mul(2).clamp(ENTRIES.1, ENTRIES.0).next_power_of_two();
        Self { slots, row_bytes, buffer, first, stride, entries }
    }

    /// Rows.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Bytes of the region.
    pub fn total(&self) -> usize {
        pages(self.slot(self.slots))
    }

    /// Where a slot lies.
    pub fn slot(&self, slot: u32) -> usize {
        let slots = (JOURNAL + 8 * self.entries as usize).next_multiple_of(LINE);
        slots + slot as usize * self.stride
    }

    fn value(&self, slot: u32, buffer: usize) -> usize {
        self.slot(slot) + self.first + buffer * self.buffer
    }
}

/// Makes a region that other processes map: whoever gets the descriptor may write until it is [sealed](Region::seal).
pub fn make(layout: &Layout) -> io::Result<Region> {
    Region::open_to_writers("penstock-items", layout.total())
}

/// The rows as their writer sees them. There is one for each region.
#[derive(Debug)]
pub struct Writer {
    rows: Rows,
    done: u64,
    logged: u64,
    open: Option<Open>,
}

/// A set under way.
#[derive(Debug, Clone, Copy)]
struct Open {
    number: u64,
    /// Entries of the journal that are about it, and that it has announced.
    logged: u64,
    begun: u64,
}

/// The rows as anyone sees them.
#[derive(Debug, Clone)]
pub struct Rows {
    mapping: Arc<Mapping>,
    layout: Layout,
}

impl Writer {
    /// Rows that only this process sees.
    pub fn private(layout: Layout) -> io::Result<Self> {
        let mapping = Mapping::private(layout.total())?;
        Ok(Self::over(Rows { mapping, layout }))
    }

    /// Rows in a region that others map.
    pub fn shared(layout: Layout, fd: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self::over(Rows::map(layout, fd, Access::Write)?))
    }

    fn over(rows: Rows) -> Self {
        let (done, logged) = (rows.progress().done(), rows.progress().logged());
        Self { rows, done, logged, open: None }
    }

    /// What readers see.
    pub fn rows(&self) -> &Rows {
        &self.rows
    }

    /// Sets that are finished.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Number and clock of a row's newest value.
    pub fn peek(&self, slot: u32) -> (u64, u64) {
        let head = self.rows.head(slot);
        let numbers = head.numbers();
        let newest = newest(numbers);
        (numbers[newest], head.clock(newest))
    }

    /// Begins the next set, of `rows` rows.
    pub fn begin(&mut self, rows: usize) -> Set<'_> {
        self.open(self.done + 1, rows);
        Set { writer: self }
    }

    /// The same for a mirror: after it the rows are as after set `number` of the origin. What was open is dropped.
    pub fn open(&mut self, number: u64, rows: usize) {
        self.abort();
        if rows > 1 {
            self.rows.progress().begin_several(number);
        }
        self.rows.progress().begin_log(self.logged + rows as u64);
        self.open = Some(Open { number, logged: 0, begun: rows as u64 });
    }

    /// In an open set of a mirror: the row of `slot` is `value`, as set `number` of the origin wrote it at `clock`.
    /// Nothing is done if it has a later one.
    pub fn put_from(&mut self, slot: u32, number: u64, clock: u64, value: &[u8]) {
        let (newest, _) = self.peek(slot);
        if newest == UNFINISHED || number > newest {
            self.put(slot, number, clock, value);
        }
    }

    fn put(&mut self, slot: u32, number: u64, clock: u64, value: &[u8]) {
        self.write(slot, number, clock, |to, _| to.copy_from_slice(value));
        self.log(slot);
    }

    /// All rows of the open set are written: they are seen from now on.
    pub fn finish(&mut self) {
        let Some(open) = self.open.take() else { return };
        self.logged += open.logged;
        self.rows.progress().finish_log(self.logged);
        self.done = open.number;
        self.rows.progress().finish(open.number);
    }

    /// The open set is dropped: no number of it stays behind, since the next may have the same.
    pub fn abort(&mut self) {
        let Some(open) = self.open.take() else { return };
        let entries = u64::from(self.rows.layout.entries);
        let written: Vec<u32> = if open.logged <= entries {
            let entry = |at| self.rows.entry(at).load(Ordering::Relaxed) as u32;
            (self.logged..self.logged + open.logged).map(entry).collect()
        } else {
            (0..self.rows.layout.slots).collect()
        };
        for slot in written {
            let head = self.rows.head(slot);
            for (buffer, number) in head.numbers().into_iter().enumerate() {
                if number > self.done && number != UNFINISHED {
                    head.begin(buffer);
                }
            }
        }
        // What was logged is heard of by followers, to whom it says nothing new.
        self.logged += open.logged;
        self.rows.progress().finish_log(self.logged);
    }

    fn log(&mut self, slot: u32) {
        let Some(open) = &mut self.open else { return };
        if open.logged == open.begun {
            open.begun += 1024;
            self.rows.progress().begin_log(self.logged + open.begun);
        }
        let entry = u64::from(slot) | open.number << 32;
        self.rows.entry(self.logged + open.logged).store(entry, Ordering::Relaxed);
        open.logged += 1;
    }

    /// A row of a mirror whose rows come one by one, each with a limit of its own: set `number` of the origin wrote it, and after
    /// set `as_of` it still was the newest, of version `clock`. Without `value` the number is the one that it has.
    pub fn refresh(&mut self, slot: u32, number: u64, clock: u64, as_of: u64, value: Option<&[u8]>) {
        let numbers = self.rows.head(slot).numbers();
        let newest_number = numbers[newest(numbers)];
        if let Some(value) = value
            && number > newest_number
        {
            self.write(slot, number, clock, |to, _| to.copy_from_slice(value));
        }
        let (newest_number, known) = self.peek(slot);
        if newest_number == number {
            let head = self.rows.head(slot);
            head.confirm(newest(head.numbers()), clock.max(known), as_of.max(head.as_of()));
        }
    }

    /// The producer has completed `floor` iterations.
    pub fn raise(&mut self, floor: u64) {
        self.rows.progress().raise(floor);
    }

    fn buffer(&mut self, slot: u32, buffer: usize) -> NonNull<u8> {
        let at = self.rows.layout.value(slot, buffer);
        assert!(slot < self.rows.layout.slots, "slot {slot} of {}", self.rows.layout.slots);
        self.rows.mapping.pointer(at..at + self.rows.layout.row_bytes)
    }

    fn write(&mut self, slot: u32, number: u64, clock: u64, fill: impl FnOnce(&mut [u8], &[u8])) {
        let numbers = self.rows.head(slot).numbers();
        let (from, to) = (newest(numbers), target(numbers, number));
        let source = self.buffer(slot, from);
        let destination = self.buffer(slot, to);
        let bytes = self.rows.layout.row_bytes;
        self.rows.head(slot).begin(to);
        // SAFETY: inside the mapping (`buffer`), which this writer alone writes and has borrowed exclusively; readers are other
        // mappings, or look through `Foreign` and words, and verify. The slices are one buffer or two that do not overlap:
        // if they are one, `source` is not given out.
        let destination = unsafe { std::slice::from_raw_parts_mut(destination.as_ptr(), bytes) };
        let source = if from == to {
            &[]
        } else {
            // SAFETY: as above; the newest buffer, which is not written now.
            unsafe { std::slice::from_raw_parts(source.as_ptr(), bytes) }
        };
        fill(destination, source);
        self.rows.head(slot).finish(to, number, clock);
    }
}

/// A set that is being written. Nobody sees its rows before it is finished; dropped before, they are as they were.
#[derive(Debug)]
pub struct Set<'a> {
    writer: &'a mut Writer,
}

impl Set<'_> {
    /// The row of `slot` is `value`, at `clock`.
    pub fn put(&mut self, slot: u32, clock: u64, value: &[u8]) {
        let number = self.writer.open.map_or(0, |open| open.number);
        self.writer.put(slot, number, clock, value);
    }

    /// The row of `slot` grows by `value`, at `clock`.
    pub fn add(&mut self, slot: u32, clock: u64, dtype: Dtype, value: &[u8]) {
        let number = self.writer.open.map_or(0, |open| open.number);
        self.writer.write(slot, number, clock, |to, from| {
            if !from.is_empty() {
                to.copy_from_slice(from);
            }
            penstock_kernels::accumulate(dtype, to, value);
        });
        self.writer.log(slot);
    }

    /// All rows are written: they are seen from now on.
    pub fn finish(self) {
        self.writer.finish();
    }
}

impl Drop for Set<'_> {
    fn drop(&mut self) {
        self.writer.abort();
    }
}

/// Rows that were looked at together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Together {
    /// The least version among them.
    pub version: u64,
    /// The last set after which they still were the newest.
    pub as_of: u64,
}

impl Rows {
    /// Maps a region of another process, to look.
    pub fn open(layout: Layout, fd: BorrowedFd<'_>) -> io::Result<Self> {
        Self::map(layout, fd, Access::Read)
    }

    fn map(layout: Layout, fd: BorrowedFd<'_>, access: Access) -> io::Result<Self> {
        let mapping = Mapping::new(&[Part { fd, offset: 0, bytes: layout.total() }], access)?;
        Ok(Self { mapping, layout })
    }

    /// Its geometry.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    fn progress(&self) -> &Progress {
        self.mapping.at(0)
    }

    fn entry(&self, at: u64) -> &AtomicU64 {
        self.mapping.at(JOURNAL + 8 * (at % u64::from(self.layout.entries)) as usize)
    }

    fn head(&self, slot: u32) -> &Slot {
        assert!(slot < self.layout.slots, "slot {slot} of {}", self.layout.slots);
        self.mapping.at(self.layout.slot(slot))
    }

    /// Now.
    pub fn now(&self) -> Moment {
        self.progress().now()
    }

    /// Iterations that the producer has completed.
    pub fn floor(&self) -> u64 {
        self.progress().floor()
    }

    /// Sets that are finished.
    pub fn done(&self) -> u64 {
        self.now().done
    }

    /// The version of a row now: nothing is copied.
    pub fn version(&self, slot: u32) -> u64 {
        let now = self.now();
        // Overtaken: a newer one stands there, whose clock is not known yet.
        self.head(slot).read(now.done, |_| {}).map_or(now.floor, |look| look.clock.max(now.floor))
    }

    /// Copies the row of `slot` as of a moment.
    pub fn read(&self, slot: u32, now: Moment, out: &mut [u8]) -> Result<Look, Overtaken> {
        assert_eq!(out.len(), self.layout.row_bytes, "a copy needs as many bytes as the row has");
        let mut look = self.head(slot).read(now.done, |buffer| self.copy(slot, buffer, out))?;
        look.clock = look.clock.max(now.floor);
        Ok(look)
    }

    /// What a row carries as of a moment, without its value.
    pub fn look(&self, slot: u32, now: Moment) -> Result<Look, Overtaken> {
        let mut look = self.head(slot).read(now.done, |_| {})?;
        look.clock = look.clock.max(now.floor);
        Ok(look)
    }

    #[inline]
    fn copy(&self, slot: u32, buffer: usize, out: &mut [u8]) {
        let at = self.layout.value(slot, buffer);
        let address = self.mapping.pointer(at..at + self.layout.buffer);
        if self.layout.first == LINE {
            // SAFETY: inside the mapping (`pointer`), which `self` holds; it starts on a cache line, as longer rows do; nobody in
            // this process has a `&mut` over it but its writer while it fills a buffer, which the caller's look then finds out.
            unsafe { Foreign::new(address.as_ptr(), out.len()) }.copy_to(out);
            return;
        }
        let mut words = address.cast::<AtomicU64>();
        for piece in out.chunks_mut(8) {
            // SAFETY: buffers are whole words, aligned to 8, inside the mapping (`pointer`).
            let word = unsafe { words.as_ref() }.load(Ordering::Relaxed).to_le_bytes();
            piece.copy_from_slice(&word[..piece.len()]);
            // SAFETY: one word on, at most one behind the last of the buffer.
            words = unsafe { words.add(1) };
        }
    }

    /// Brings the head of a slot near, while others are looked at.
    pub fn expect(&self, slot: u32) {
        if slot < self.layout.slots {
            crate::memory::bring_near(std::ptr::from_ref(self.head(slot)).cast());
        }
    }

    /// One attempt to copy several rows that belong together: each of `slots` to the place in `out` that `place` gives for its index.
    pub fn read_together(
        &self,
        slots: &[u32],
        place: impl Fn(usize) -> usize,
        out: &mut [u8],
    ) -> Result<Together, Overtaken> {
        const AHEAD: usize = 8;
        let bytes = self.layout.row_bytes;
        let first = self.now();
        let (mut now, mut strict) = (first, true);
        let mut version = u64::MAX;
        let (mut newest, mut as_of) = (0, u64::MAX);
        for (at, &slot) in slots.iter().enumerate() {
            if let Some(&next) = slots.get(at + AHEAD) {
                self.expect(next);
            }
            let start = place(at) * bytes;
            let out = &mut out[start..start + bytes];
            let look = match self.read(slot, now, out) {
                Ok(look) => look,
                // The writer came round on this row. If its sets are of one row each, a later moment will do.
                Err(Overtaken) => {
                    (now, strict) = (self.now(), false);
                    self.read(slot, now, out)?
                }
            };
            version = version.min(look.clock);
            newest = newest.max(look.number);
            as_of = as_of.min(look.as_of);
        }
        // Of one moment all rows are within its limit; rows of a mirror must have been current at one common set.
        if newest <= as_of || (!strict && self.progress().belong_together(first)) {
            return Ok(Together { version, as_of });
        }
        Err(Overtaken)
    }

    /// The same without asking whether they belong together: what is left of a producer that was lost.
    pub fn read_apart(
        &self,
        slots: &[u32],
        place: impl Fn(usize) -> usize,
        out: &mut [u8],
    ) -> Result<u64, Overtaken> {
        let bytes = self.layout.row_bytes;
        let mut version = u64::MAX;
        for (at, &slot) in slots.iter().enumerate() {
            let start = place(at) * bytes;
            version = version.min(self.read(slot, self.now(), &mut out[start..start + bytes])?.clock);
        }
        Ok(version)
    }

    /// A row as of a moment, where it stands: `bytes` bytes from the address, which others may be writing.
    pub fn show(&self, slot: u32, now: Moment) -> Result<Shown, Overtaken> {
        let mut at = 0;
        let look = self.head(slot).read(now.done, |buffer| at = buffer)?;
        Ok(Shown { rows: self.clone(), slot, buffer: at, look, version: look.clock.max(now.floor) })
    }
}

/// A row in place.
#[derive(Debug)]
pub struct Shown {
    rows: Rows,
    slot: u32,
    buffer: usize,
    look: Look,
    version: u64,
}

impl Shown {
    /// Where its bytes stand. The producer writes them when it comes round: look again at [`Shown::is_valid`] after reading.
    pub fn address(&self) -> NonNull<u8> {
        let at = self.rows.layout.value(self.slot, self.buffer);
        self.rows.mapping.pointer(at..at + self.rows.layout.row_bytes)
    }

    /// The mapping that it stands in, and where.
    pub fn place(&self) -> (&Arc<Mapping>, usize) {
        (&self.rows.mapping, self.rows.layout.value(self.slot, self.buffer))
    }

    /// Its version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether all that was read so far was read unmixed.
    pub fn is_valid(&self) -> bool {
        self.rows.head(self.slot).still(self.buffer, self.look)
    }
}

/// Follows which rows change.
#[derive(Debug, Default)]
pub struct Follower {
    position: u64,
}

impl Follower {
    /// Appends the rows that were written since the last look, each as slot and the low half of the set's number, some perhaps more
    /// than once, some of sets that are not finished; `false` if there were too many: any row may have changed.
    pub fn changed(&mut self, rows: &Rows, changed: &mut Vec<(u32, u32)>) -> bool {
        let (before, entries) = (changed.len(), u64::from(rows.layout.entries));
        let progress = rows.progress();
        let read = progress.read_log(self.position, entries, |at| {
            let entry = rows.entry(at).load(Ordering::Relaxed);
            // The journal may be another process's: what is no slot is not passed on.
            let slot = entry as u32;
            changed.extend((slot < rows.layout.slots).then_some((slot, (entry >> 32) as u32)));
        });
        match read {
            Some(end) => self.position = end,
            None => {
                changed.truncate(before);
                self.position = progress.logged();
            }
        }
        read.is_some()
    }
}

/// The page that readers of one region sleep on.
#[derive(Debug, Clone)]
pub struct Waiters {
    mapping: Arc<Mapping>,
}

/// Bytes of the page.
pub const WAITERS_BYTES: usize = PAGE;

impl Waiters {
    /// Makes a page for readers in several processes.
    pub fn make() -> io::Result<(Self, Region)> {
        let region = Region::new("penstock-waiters", WAITERS_BYTES, Writers::Holders)?;
        Ok((Self { mapping: Arc::clone(region.mapping()) }, region))
    }

    /// A page for readers of this process.
    pub fn private() -> io::Result<Self> {
        Ok(Self { mapping: Mapping::private(WAITERS_BYTES)? })
    }

    /// Maps the page of another process.
    pub fn open(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let part = Part { fd, offset: 0, bytes: WAITERS_BYTES };
        Ok(Self { mapping: Mapping::new(&[part], Access::Write)? })
    }

    fn summary(&self) -> &Summary {
        self.mapping.at(0)
    }

    fn line(&self, line: usize) -> &Line {
        self.mapping.at(size_of::<Summary>() + line * size_of::<Line>())
    }

    /// For the writer, after publishing: wakes the readers whose row has come; whether the follower must be rung.
    pub fn wake(&self, rows: &Rows) -> bool {
        let summary = self.summary();
        if !summary.anyone() {
            return false;
        }
        // The slot comes from the page, which every reader may write.
        let served =
            |wanted: Wanted| wanted.slot >= rows.layout.slots || rows.version(wanted.slot) >= wanted.version;
        let lines = (0..LINES).map(|line| self.line(line));
        summary.wake(lines, served, |line| {
            let _ = futex::wake(line.word(), futex::Flags::empty(), i32::MAX as u32);
        });
        summary.take_follower()
    }

    /// For the follower: it is about to sleep, and must look once more.
    pub fn announce_follower(&self) {
        self.summary().announce_follower();
    }

    /// For a reader: a line of its own, if one is free.
    pub fn seat(&self) -> Option<Seat<'_>> {
        (0..LINES)
            .map(|line| self.line(line))
            .find(|line| line.claim())
            .map(|line| Seat { waiters: self, line })
    }
}

/// A reader's line.
#[derive(Debug)]
pub struct Seat<'a> {
    waiters: &'a Waiters,
    line: &'a Line,
}

impl Seat<'_> {
    /// Announces that the reader is about to sleep until the row has the version; it must look once more before it does.
    pub fn announce(&self, slot: u32, version: u64) -> u32 {
        self.waiters.summary().announce(self.line, Wanted { slot, version })
    }

    /// Sleeps until a ring after the one counted in `rings`, at most for `longest`. May return early.
    pub fn sleep(&self, rings: u32, longest: Duration) {
        let timeout = Timespec {
            tv_sec: i64::try_from(longest.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(longest.subsec_nanos()),
        };
        let _ = futex::wait(self.line.word(), futex::Flags::empty(), rings, Some(&timeout));
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.line.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn writer(slots: u32, row_bytes: u32) -> Writer {
        Writer::private(Layout::new(slots, row_bytes)).unwrap()
    }

    fn set(writer: &mut Writer, clock: u64, rows: &[(u32, u8)]) {
        let bytes = writer.rows().layout().row_bytes();
        let mut set = writer.begin(rows.len());
        for &(slot, value) in rows {
            set.put(slot, clock, &vec![value; bytes]);
        }
        set.finish();
    }

    fn get(rows: &Rows, slots: &[u32]) -> (Together, Vec<u8>) {
        let bytes = rows.layout().row_bytes();
        let mut out = vec![0; bytes * slots.len()];
        let together = rows.read_together(slots, |at| at, &mut out).unwrap();
        assert!(out.chunks(bytes).all(|row| row.iter().all(|&byte| byte == row[0])), "I-1");
        (together, out.chunks(bytes).map(|row| row[0]).collect())
    }

    #[test]
    fn rows_of_every_length_come_back_as_they_were_set() {
        for bytes in (1..140).chain([1000, 4096, 65_536]) {
            let mut writer = writer(3, bytes);
            for round in 1..5u8 {
                let mut one = writer.begin(3);
                for slot in 0..3u8 {
                    let row: Vec<u8> = (0..bytes).map(|at| (at as u8).wrapping_mul(round) ^ slot).collect();
                    one.put(slot.into(), u64::from(round), &row);
                }
                one.finish();
                for slot in 0..3u8 {
                    let mut out = vec![0xee; bytes as usize];
                    let look = writer.rows().read(slot.into(), writer.rows().now(), &mut out).unwrap();
                    let row: Vec<u8> = (0..bytes).map(|at| (at as u8).wrapping_mul(round) ^ slot).collect();
                    assert_eq!((out, look.clock), (row, u64::from(round)), "{bytes} bytes");
                }
            }
        }
    }

    #[test]
    fn a_set_that_was_dropped_changes_nothing_and_the_next_is_whole() {
        let mut writer = writer(2, 16);
        set(&mut writer, 1, &[(0, 1), (1, 1)]);
        let mut broken = writer.begin(2);
        broken.put(0, 2, &[9; 16]);
        drop(broken);
        assert_eq!(get(writer.rows(), &[0, 1]), (Together { version: 1, as_of: 1 }, vec![1, 1]));
        set(&mut writer, 2, &[(1, 2)]);
        assert_eq!(
            get(writer.rows(), &[0, 1]).1,
            [1, 2],
            "the next set has the number of the one that was dropped"
        );
    }

    #[test]
    fn a_row_that_comes_twice_in_a_set_has_its_last_value_and_adds_up() {
        let mut writer = writer(1, 8);
        set(&mut writer, 1, &[(0, 1)]);
        set(&mut writer, 2, &[(0, 2), (0, 3)]);
        assert_eq!(get(writer.rows(), &[0]).1, [3]);
        let mut sums = Writer::private(Layout::new(1, 8)).unwrap();
        for clock in 1..4 {
            let mut one = sums.begin(2);
            one.add(0, clock, Dtype::F64, &1.5f64.to_le_bytes());
            one.add(0, clock, Dtype::F64, &0.5f64.to_le_bytes());
            one.finish();
        }
        let mut out = [0; 8];
        sums.rows().read(0, sums.rows().now(), &mut out).unwrap();
        assert_eq!(f64::from_le_bytes(out), 6.0);
    }

    #[test]
    fn rows_of_a_mirror_that_were_never_current_together_are_refused() {
        let mut mirror = writer(2, 8);
        // Set 3 wrote both; the mirror fetched row 0 after it and row 1 before it.
        mirror.refresh(1, 1, 1, 2, Some(&[1; 8]));
        mirror.refresh(0, 3, 3, 3, Some(&[3; 8]));
        let together = mirror.rows().read_together(&[0, 1], |at| at, &mut [0; 16]);
        assert_eq!(together, Err(Overtaken), "I-3");
        // Had set 3 not changed row 1, as a second look says, they would belong together.
        mirror.refresh(1, 1, 3, 3, None);
        assert_eq!(get(mirror.rows(), &[0, 1]), (Together { version: 3, as_of: 3 }, vec![3, 1]));
    }

    #[test]
    fn a_view_says_when_the_writer_has_come_round() {
        let mut writer = writer(1, 64);
        set(&mut writer, 1, &[(0, 1)]);
        let shown = writer.rows().show(0, writer.rows().now()).unwrap();
        assert!(shown.is_valid());
        set(&mut writer, 2, &[(0, 2)]);
        assert!(shown.is_valid(), "the other buffer was written");
        set(&mut writer, 3, &[(0, 3)]);
        assert!(!shown.is_valid());
    }

    #[test]
    fn a_region_that_was_sealed_has_one_writer() {
        let layout = Layout::new(4, 32);
        let region = make(&layout).unwrap();
        let mut writer = Writer::shared(layout, region.fd()).unwrap();
        region.seal().unwrap();
        assert!(Writer::shared(layout, region.fd()).is_err(), "the kernel refuses a second");
        let reader = Rows::open(layout, region.fd()).unwrap();
        set(&mut writer, 1, &[(3, 7)]);
        assert_eq!(get(&reader, &[3, 0]).1, [7, 0]);
    }

    #[test]
    fn a_sleeper_is_woken_by_its_row_and_not_by_another() {
        let mut writer = writer(2, 8);
        let (waiters, region) = Waiters::make().unwrap();
        let other = Waiters::open(region.fd()).unwrap();
        let seat = other.seat().unwrap();
        let rings = seat.announce(1, 1);
        set(&mut writer, 1, &[(0, 1)]);
        assert!(!waiters.wake(writer.rows()));
        assert_eq!(seat.line.word().load(Ordering::Relaxed), rings, "row 0 is not what it waits for");
        set(&mut writer, 1, &[(1, 1)]);
        waiters.wake(writer.rows());
        assert_ne!(seat.line.word().load(Ordering::Relaxed), rings);
        seat.sleep(rings, Duration::from_secs(60));
    }

    proptest! {
        #[test]
        fn a_follower_hears_of_every_row_that_changed(sets in prop::collection::vec(prop::collection::vec(0u32..40, 1..60), 0..12)) {
            let mut writer = writer(40, 8);
            let mut follower = Follower::default();
            for (rows, clock) in sets.iter().zip(1..) {
                let before = writer.done();
                let rows: Vec<(u32, u8)> = rows.iter().map(|&slot| (slot, 1)).collect();
                set(&mut writer, clock, &rows);
                if clock % 3 == 0 {
                    continue; // falls behind
                }
                let mut heard = Vec::new();
                if follower.changed(writer.rows(), &mut heard) {
                    for slot in 0..40 {
                        let number = writer.peek(slot).0;
                        prop_assert!(number <= before || heard.contains(&(slot, number as u32)));
                    }
                }
            }
        }
    }
}
