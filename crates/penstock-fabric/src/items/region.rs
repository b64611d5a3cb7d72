//! Where a table's rows of one producer lie: progress, journal, slots. The writer's end, the readers' end, and the page that
//! readers sleep on. Drawn in docs/layout.md.

use super::slot::{
    Buffers, Look, Moment, Overtaken, Progress, Sheet, Slot, Spot, UNFINISHED, age, newest, target,
};
use super::waiters::{LINES, Line, Summary, Wanted};
use crate::layout::{PAGE, Shared, pages};
use crate::memory::{bring_near, claim};
use crate::region::{Access, Mapping, Part, Region, Writers};
use crate::sync::{AtomicU64, Ordering};
use penstock_kernels::{Dtype, Foreign};
use rustix::fd::BorrowedFd;
use rustix::io;
use rustix::thread::futex;
use rustix::time::Timespec;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

// SAFETY: `AtomicU64`s only.
unsafe impl Shared for Slot {}
// SAFETY: `AtomicU64`s only.
unsafe impl Shared for Sheet {}
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
/// Longest row that stands in a sheet too: the head of a longer one is little beside it.
const SHEET_ROW: usize = 1024;
/// Bytes of a sheet that is long enough, and fewest and most rows of one.
const SHEET_BYTES: usize = 1024;
const SHEET_ROWS: (usize, usize) = (8, 64);
/// Most bytes of a sheet that are asked for in advance: as much as a core can wait for at once, and some more.
const CLAIM_BYTES: usize = 2048;
/// Sheets whose heads are asked for in advance.
const HEADS: u32 = 16;
/// In an entry of the journal: all rows of the sheet whose number follows.
const WHOLE_SHEET: u32 = 1 << 31;
/// Most rows of a region.
pub const MAX_SLOTS: u32 = WHOLE_SHEET;
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
    /// Sheets, and rows of one.
    sheets: u32,
    group: u32,
}

impl Layout {
    /// For `slots` rows of `row_bytes` bytes. A row of at most 40 bytes shares its head's cache lines; longer ones start on
    /// cache lines of their own. Short rows of whole words also have a place in a sheet, but for the last few that fill none.
    pub fn new(slots: u32, row_bytes: u32) -> Self {
        assert!(slots <= MAX_SLOTS, "expected at most {MAX_SLOTS} rows, got {slots}");
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
        let group =
            (SHEET_BYTES / row_bytes.max(1)).next_power_of_two().clamp(SHEET_ROWS.0, SHEET_ROWS.1) as u32;
        let sheets = if row_bytes.is_multiple_of(8) && row_bytes <= SHEET_ROW { slots / group } else { 0 };
        Self { slots, row_bytes, buffer, first, stride, entries, sheets, group }
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
        pages(self.values(self.sheets, 1))
    }

    /// Where a slot lies.
    pub fn slot(&self, slot: u32) -> usize {
        let slots = (JOURNAL + 8 * self.entries as usize).next_multiple_of(LINE);
        slots + slot as usize * self.stride
    }

    fn value(&self, slot: u32, spot: Spot) -> usize {
        match spot {
            Spot::Slot(buffer) => self.slot(slot) + self.first + buffer * self.buffer,
            Spot::Sheet(buffer) => self.values(0, buffer) + slot as usize * self.row_bytes,
        }
    }

    /// The sheet that a slot's row is in.
    #[inline]
    fn sheet_of(&self, slot: u32) -> Option<u32> {
        let sheet = slot / self.group;
        (sheet < self.sheets).then_some(sheet)
    }

    /// Where the head of a sheet lies: behind the slots.
    fn sheet(&self, sheet: u32) -> usize {
        self.slot(self.slots) + sheet as usize * size_of::<Sheet>()
    }

    /// The rows of a sheet.
    fn rows_of(&self, sheet: u32) -> std::ops::Range<u32> {
        sheet * self.group..(sheet + 1) * self.group
    }

    /// `count` rows from `first` on: whole sheets where they are whole.
    fn pieces(&self, first: u32, count: u32) -> impl Iterator<Item = Piece> {
        let (layout, mut at) = (*self, first);
        std::iter::from_fn(move || {
            let left = (first + count).checked_sub(at).filter(|&left| left > 0)?;
            let whole = at.is_multiple_of(layout.group) && left >= layout.group;
            let sheet = layout.sheet_of(at).filter(|_| whole);
            let piece = sheet.map_or(Piece::Row(at), Piece::Sheet);
            at += if sheet.is_some() { layout.group } else { 1 };
            Some(piece)
        })
    }

    fn sheet_bytes(&self) -> usize {
        self.group as usize * self.row_bytes
    }

    /// Where the rows of a sheet lie: behind the heads, the first buffers of all sheets, then the second.
    fn values(&self, sheet: u32, buffer: usize) -> usize {
        let before = buffer * self.sheets as usize + sheet as usize;
        self.sheet(self.sheets) + before * self.sheet_bytes()
    }
}

/// Of some rows that follow each other.
#[derive(Debug, Clone, Copy)]
enum Piece {
    /// All rows of a sheet.
    Sheet(u32),
    Row(u32),
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
        let (spot, number) = self.newest(slot);
        let clock = match spot {
            Spot::Slot(buffer) => self.rows.head(slot).buffers.clock(buffer),
            Spot::Sheet(buffer) => self.rows.sheet_of(slot).map_or(0, |sheet| sheet.buffers.clock(buffer)),
        };
        (number, clock)
    }

    /// The largest clock of the newest values of `count` rows from `first` on.
    pub fn newest_clock(&self, first: u32, count: u32) -> u64 {
        self.rows
            .layout
            .pieces(first, count)
            .map(|piece| match piece {
                Piece::Sheet(sheet) => match self.rows.sheet(sheet).clock() {
                    Some(clock) => clock,
                    None => self.rows.layout.rows_of(sheet).map(|slot| self.peek(slot).1).max().unwrap_or(0),
                },
                Piece::Row(slot) => self.peek(slot).1,
            })
            .max()
            .unwrap_or(0)
    }

    /// Where a row's newest value stands, and its number.
    fn newest(&self, slot: u32) -> (Spot, u64) {
        let newest_of = |buffers: &Buffers| {
            let numbers = buffers.numbers();
            let newest = newest(numbers);
            (newest, numbers[newest])
        };
        let (buffer, number) = newest_of(&self.rows.head(slot).buffers);
        match self.rows.sheet_of(slot).map(|sheet| newest_of(&sheet.buffers)) {
            Some((other, later)) if age(later) > age(number) => (Spot::Sheet(other), later),
            _ => (Spot::Slot(buffer), number),
        }
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
            let layout = &self.rows.layout;
            (0..layout.slots).chain((0..layout.sheets).map(|sheet| sheet | WHOLE_SHEET)).collect()
        };
        for entry in written {
            let buffers = if entry & WHOLE_SHEET != 0 {
                &self.rows.sheet(entry & !WHOLE_SHEET).buffers
            } else {
                &self.rows.head(entry).buffers
            };
            for (buffer, number) in buffers.numbers().into_iter().enumerate() {
                if number > self.done && number != UNFINISHED {
                    buffers.begin(buffer);
                }
            }
        }
        // What was logged is heard of by followers, to whom it says nothing new.
        self.logged += open.logged;
        self.rows.progress().finish_log(self.logged);
    }

    /// Notes in the journal that a row was written, or a whole sheet.
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
        let buffers = &self.rows.head(slot).buffers;
        let numbers = buffers.numbers();
        if let Some(value) = value
            && number > numbers[newest(numbers)]
        {
            self.write(slot, number, clock, |to, _| to.copy_from_slice(value));
        }
        let (newest_number, known) = self.peek(slot);
        if newest_number == number {
            let head = self.rows.head(slot);
            head.confirm(newest(head.buffers.numbers()), clock.max(known), as_of.max(head.as_of()));
        }
    }

    /// The producer has completed `floor` iterations.
    pub fn raise(&mut self, floor: u64) {
        self.rows.progress().raise(floor);
    }

    /// Memory of `bytes` bytes from a row's buffer on.
    fn memory(&mut self, slot: u32, spot: Spot, bytes: usize) -> NonNull<u8> {
        assert!(slot < self.rows.layout.slots, "slot {slot} of {}", self.rows.layout.slots);
        let at = self.rows.layout.value(slot, spot);
        self.rows.mapping.pointer(at..at + bytes)
    }

    fn write(&mut self, slot: u32, number: u64, clock: u64, fill: impl FnOnce(&mut [u8], &[u8])) {
        let to = target(self.rows.head(slot).buffers.numbers(), number);
        let (from, _) = self.newest(slot);
        let bytes = self.rows.layout.row_bytes;
        let (source, destination) =
            (self.memory(slot, from, bytes), self.memory(slot, Spot::Slot(to), bytes));
        if let Some(sheet) = self.rows.sheet_of(slot) {
            sheet.part(number);
        }
        self.rows.head(slot).buffers.begin(to);
        // SAFETY: inside the mapping (`memory`), which this writer alone writes and has borrowed exclusively; readers are other
        // mappings, or look through `Foreign` and words, and verify. The slices are one buffer or two that do not overlap:
        // if they are one, `source` is not given out.
        let destination = unsafe { std::slice::from_raw_parts_mut(destination.as_ptr(), bytes) };
        let source = if from == Spot::Slot(to) {
            &[]
        } else {
            // SAFETY: as above; the newest buffer, which is not written now.
            unsafe { std::slice::from_raw_parts(source.as_ptr(), bytes) }
        };
        fill(destination, source);
        self.rows.head(slot).buffers.finish(to, number, clock);
    }

    /// Begins to take the lines of a sheet from the readers' caches, while something else is written: asked for one by one, each
    /// would keep the writer waiting.
    fn claim_sheet(&self, sheet: u32) {
        if sheet >= self.rows.layout.sheets {
            return;
        }
        let to = target(self.rows.sheet(sheet).buffers.numbers(), UNFINISHED);
        let at = self.rows.layout.values(sheet, to);
        let bytes = self.rows.layout.sheet_bytes().min(CLAIM_BYTES);
        let base = self.rows.mapping.pointer(at..at + bytes).as_ptr();
        (0..bytes).step_by(LINE).for_each(|line| claim(base.wrapping_add(line)));
    }

    fn claim_head(&self, sheet: u32) {
        if sheet < self.rows.layout.sheets {
            claim(ptr::from_ref(self.rows.sheet(sheet)).cast());
        }
    }

    /// All rows of a sheet. None of them was written by itself in this set.
    fn write_sheet(&mut self, sheet: u32, number: u64, clock: u64, values: &[u8]) {
        let to = target(self.rows.sheet(sheet).buffers.numbers(), number);
        let first = self.rows.layout.rows_of(sheet).start;
        let destination = self.memory(first, Spot::Sheet(to), values.len());
        assert_eq!(values.len(), self.rows.layout.sheet_bytes(), "a sheet has as many bytes");
        self.rows.sheet(sheet).buffers.begin(to);
        // SAFETY: as in `write`: inside the mapping, written by this writer alone; `values` is the caller's own memory.
        unsafe { std::slice::from_raw_parts_mut(destination.as_ptr(), values.len()) }.copy_from_slice(values);
        self.rows.sheet(sheet).buffers.finish(to, number, clock);
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

    /// The rows from `first` on are `values`, at `clock`.
    pub fn put_run(&mut self, first: u32, clock: u64, values: &[u8]) {
        let Some(open) = self.writer.open else { return };
        let (layout, bytes) = (self.writer.rows.layout, self.writer.rows.layout.row_bytes);
        let count = (values.len() / bytes) as u32;
        // Of a set that has written a row already, nobody could tell which of two values came last.
        let sheets = open.logged == 0;
        let first_sheet = first.div_ceil(layout.group);
        let end_sheet = (first + count) / layout.group;
        (first_sheet..end_sheet.min(first_sheet + HEADS)).for_each(|sheet| self.writer.claim_head(sheet));
        (first_sheet..end_sheet.min(first_sheet + 2)).for_each(|sheet| self.writer.claim_sheet(sheet));
        for piece in layout.pieces(first, count) {
            match piece {
                Piece::Sheet(sheet) if sheets => {
                    let at = (layout.rows_of(sheet).start - first) as usize * bytes;
                    let values = &values[at..at + layout.sheet_bytes()];
                    if sheet + 2 < end_sheet {
                        self.writer.claim_sheet(sheet + 2);
                    }
                    if sheet + HEADS < end_sheet {
                        self.writer.claim_head(sheet + HEADS);
                    }
                    self.writer.write_sheet(sheet, open.number, clock, values);
                    self.writer.log(sheet | WHOLE_SHEET);
                }
                Piece::Sheet(sheet) => {
                    for slot in layout.rows_of(sheet) {
                        let at = (slot - first) as usize * bytes;
                        self.put(slot, clock, &values[at..at + bytes]);
                    }
                }
                Piece::Row(slot) => {
                    let at = (slot - first) as usize * bytes;
                    self.put(slot, clock, &values[at..at + bytes]);
                }
            }
        }
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

    fn sheet(&self, sheet: u32) -> &Sheet {
        assert!(sheet < self.layout.sheets, "sheet {sheet} of {}", self.layout.sheets);
        self.mapping.at(self.layout.sheet(sheet))
    }

    /// The sheet that a slot's row is in.
    #[inline]
    fn sheet_of(&self, slot: u32) -> Option<&Sheet> {
        self.layout.sheet_of(slot).map(|sheet| self.sheet(sheet))
    }

    /// Looks at a row as of a moment.
    #[inline]
    fn see(&self, slot: u32, now: Moment, copy: impl FnOnce(Spot)) -> Result<Look, Overtaken> {
        let mut look = self.head(slot).read(self.sheet_of(slot), now.done, copy)?;
        look.clock = look.clock.max(now.floor);
        Ok(look)
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
        self.see(slot, now, |_| {}).map_or(now.floor, |look| look.clock)
    }

    /// Copies the row of `slot` as of a moment.
    pub fn read(&self, slot: u32, now: Moment, out: &mut [u8]) -> Result<Look, Overtaken> {
        assert_eq!(out.len(), self.layout.row_bytes, "a copy needs as many bytes as the row has");
        self.see(slot, now, |spot| self.copy(slot, spot, out))
    }

    /// What a row carries as of a moment, without its value.
    pub fn look(&self, slot: u32, now: Moment) -> Result<Look, Overtaken> {
        self.see(slot, now, |_| {})
    }

    #[inline]
    fn copy(&self, slot: u32, spot: Spot, out: &mut [u8]) {
        let at = self.layout.value(slot, spot);
        let address = self.mapping.pointer(at..at + out.len().next_multiple_of(8));
        if at.is_multiple_of(LINE) && out.len() >= LINE {
            // SAFETY: inside the mapping (`pointer`), which `self` holds; it starts on a cache line; nobody in this process has a
            // `&mut` over it but its writer while it fills a buffer, which the caller's look then finds out.
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
            bring_near(ptr::from_ref(self.head(slot)).cast());
        }
    }

    fn expect_head(&self, sheet: u32) {
        if sheet < self.layout.sheets {
            bring_near(ptr::from_ref(self.sheet(sheet)).cast());
        }
    }

    /// Brings a sheet near, while another is read. Most often it stands in the buffer that the one before stood in.
    fn expect_sheet(&self, sheet: u32, buffer: usize) {
        if sheet < self.layout.sheets {
            let at = self.layout.values(sheet, buffer);
            let bytes = self.layout.sheet_bytes().min(CLAIM_BYTES);
            let base = self.mapping.pointer(at..at + bytes).as_ptr();
            (0..bytes).step_by(LINE).for_each(|line| bring_near(base.wrapping_add(line)));
        }
    }

    /// One attempt to copy the rows from `first` on, which belong together, to `out`.
    pub fn read_run(&self, first: u32, out: &mut [u8]) -> Result<Together, Overtaken> {
        let mut all = Gathered::new(self);
        let bytes = self.layout.row_bytes;
        let place = |slot: u32| (slot - first) as usize * bytes;
        let mut before = 0;
        let count = (out.len() / bytes) as u32;
        let (first_sheet, end_sheet) =
            (first.div_ceil(self.layout.group), (first + count) / self.layout.group);
        (first_sheet..end_sheet.min(first_sheet + HEADS)).for_each(|sheet| self.expect_head(sheet));
        for piece in self.layout.pieces(first, count) {
            let rows = match piece {
                Piece::Row(slot) => slot..slot + 1,
                Piece::Sheet(sheet) => {
                    let slot = self.layout.rows_of(sheet).start;
                    let out = &mut out[place(slot)..][..self.layout.sheet_bytes()];
                    if sheet + 1 < end_sheet {
                        self.expect_sheet(sheet + 1, before);
                    }
                    if sheet + HEADS < end_sheet {
                        self.expect_head(sheet + HEADS);
                    }
                    let look = |now: Moment| {
                        self.sheet(sheet).read(now.done, |buffer| {
                            before = buffer;
                            self.copy(slot, Spot::Sheet(buffer), out);
                        })
                    };
                    if let Some(look) = all.look(look)? {
                        all.take(look);
                        continue;
                    }
                    self.layout.rows_of(sheet)
                }
            };
            for slot in rows {
                let out = &mut out[place(slot)..][..bytes];
                let look = all.look(|now| self.read(slot, now, out))?;
                all.take(look);
            }
        }
        all.together()
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
        let mut all = Gathered::new(self);
        for (at, &slot) in slots.iter().enumerate() {
            if let Some(&next) = slots.get(at + AHEAD) {
                self.expect(next);
            }
            let start = place(at) * bytes;
            let out = &mut out[start..start + bytes];
            let look = all.look(|now| self.read(slot, now, out))?;
            all.take(look);
        }
        all.together()
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
        let mut at = Spot::Slot(0);
        let look = self.see(slot, now, |spot| at = spot)?;
        Ok(Shown { rows: self.clone(), slot, spot: at, look })
    }
}

/// Looks at several rows, which shall belong together.
struct Gathered<'a> {
    rows: &'a Rows,
    first: Moment,
    now: Moment,
    /// All looks were from one moment.
    strict: bool,
    version: u64,
    newest: u64,
    as_of: u64,
}

impl<'a> Gathered<'a> {
    fn new(rows: &'a Rows) -> Self {
        let first = rows.now();
        Self { rows, first, now: first, strict: true, version: u64::MAX, newest: 0, as_of: u64::MAX }
    }

    #[inline]
    fn look<T>(&mut self, mut look: impl FnMut(Moment) -> Result<T, Overtaken>) -> Result<T, Overtaken> {
        look(self.now).or_else(|Overtaken| {
            // The writer came round here. If its sets are of one row each, a later moment will do.
            (self.now, self.strict) = (self.rows.now(), false);
            look(self.now)
        })
    }

    #[inline]
    fn take(&mut self, look: Look) {
        self.version = self.version.min(look.clock.max(self.now.floor));
        self.newest = self.newest.max(look.number);
        self.as_of = self.as_of.min(look.as_of);
    }

    fn together(&self) -> Result<Together, Overtaken> {
        // Of one moment all rows are within its limit; rows of a mirror must have been current at one common set.
        let common = self.newest <= self.as_of;
        if common || (!self.strict && self.rows.progress().belong_together(self.first)) {
            return Ok(Together { version: self.version, as_of: self.as_of });
        }
        Err(Overtaken)
    }
}

/// A row in place.
#[derive(Debug)]
pub struct Shown {
    rows: Rows,
    slot: u32,
    spot: Spot,
    look: Look,
}

impl Shown {
    /// Where its bytes stand. The producer writes them when it comes round: look again at [`Shown::is_valid`] after reading.
    pub fn address(&self) -> NonNull<u8> {
        let at = self.rows.layout.value(self.slot, self.spot);
        self.rows.mapping.pointer(at..at + self.rows.layout.row_bytes)
    }

    /// The mapping that it stands in, and where.
    pub fn place(&self) -> (&Arc<Mapping>, usize) {
        (&self.rows.mapping, self.rows.layout.value(self.slot, self.spot))
    }

    /// Its version.
    pub fn version(&self) -> u64 {
        self.look.clock
    }

    /// Whether all that was read so far was read unmixed.
    pub fn is_valid(&self) -> bool {
        self.rows.head(self.slot).still(self.rows.sheet_of(self.slot), self.spot, self.look)
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
            let (place, number) = (entry as u32, (entry >> 32) as u32);
            // The journal may be another process's: what is no slot is not passed on.
            let slots = match place & !WHOLE_SHEET {
                sheet if sheet != place => {
                    if sheet < rows.layout.sheets {
                        rows.layout.rows_of(sheet)
                    } else {
                        0..0
                    }
                }
                slot if slot < rows.layout.slots => slot..slot + 1,
                _ => 0..0,
            };
            changed.extend(slots.map(|slot| (slot, number)));
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
    fn a_run_of_rows_of_every_length_comes_back_as_it_was_set() {
        for bytes in (1..140).chain([512, 1000, 1024, 4096]) {
            let mut writer = writer(70, bytes);
            for round in 1..5u8 {
                let byte = |at| (at as u8).wrapping_mul(round | 1) ^ round;
                let all: Vec<u8> = (0..70 * bytes).map(byte).collect();
                let mut one = writer.begin(70);
                one.put_run(0, round.into(), &all);
                one.finish();
                let mut out = vec![0xee; all.len()];
                writer.rows().read_run(0, &mut out).unwrap();
                assert!(out == all, "{bytes} bytes, at once");
                for (slot, row) in (0..70).zip(all.chunks(bytes as usize)) {
                    let out = &mut out[..bytes as usize];
                    writer.rows().read(slot, writer.rows().now(), out).unwrap();
                    assert!(*out == *row, "{bytes} bytes, row {slot}");
                }
                let row = &all[..bytes as usize];
                let mut one = writer.begin(1);
                one.put(69, round.into(), row);
                one.finish();
                writer.rows().read(69, writer.rows().now(), &mut out[..bytes as usize]).unwrap();
                assert!(out[..bytes as usize] == *row, "{bytes} bytes, by itself");
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

    /// What a test does to a region of rows of a word.
    #[derive(Debug, Clone)]
    enum Step {
        Run {
            first: u32,
            count: u32,
        },
        Rows(Vec<u32>),
        /// A row, then a run, then a row, in one set.
        Mixed {
            row: u32,
            first: u32,
            count: u32,
        },
        Add(Vec<u32>),
    }

    const ROWS: u32 = 200;

    fn run() -> impl Strategy<Value = (u32, u32)> {
        (0..ROWS).prop_flat_map(|first| (Just(first), 1..=ROWS - first))
    }

    fn step() -> impl Strategy<Value = Step> {
        let rows = || prop::collection::vec(0..ROWS, 1..8);
        prop_oneof![
            3 => run().prop_map(|(first, count)| Step::Run { first, count }),
            1 => Just(Step::Run { first: 0, count: ROWS }),
            3 => rows().prop_map(Step::Rows),
            1 => (0..ROWS, run()).prop_map(|(row, (first, count))| Step::Mixed { row, first, count }),
            2 => rows().prop_map(Step::Add),
        ]
    }

    fn words(rows: &[u64]) -> Vec<u8> {
        rows.iter().flat_map(|row| row.to_le_bytes()).collect()
    }

    proptest! {
        #[test]
        fn rows_in_slots_and_sheets_are_those_that_were_set_last(
            steps in prop::collection::vec((step(), any::<bool>()), 1..20),
            look in run(),
        ) {
            let mut writer = writer(ROWS, 8);
            let mut follower = Follower::default();
            let mut model = vec![(0u64, 0u64); ROWS as usize];
            for ((step, kept), clock) in steps.into_iter().zip(1u64..) {
                let mut after = model.clone();
                let mut value = 1000 * clock;
                let mut next = || { value += 1; value };
                let mut one = writer.begin(ROWS as usize);
                match &step {
                    Step::Run { first, count } => {
                        let values: Vec<u64> = (0..*count).map(|_| next()).collect();
                        one.put_run(*first, clock, &words(&values));
                        (*first..).zip(values).for_each(|(row, value)| after[row as usize] = (value, clock));
                    }
                    Step::Mixed { row, first, count } => {
                        let values: Vec<u64> = (0..*count).map(|_| next()).collect();
                        one.put(*row, clock, &next().to_le_bytes());
                        one.put_run(*first, clock, &words(&values));
                        (*first..).zip(values).for_each(|(row, value)| after[row as usize] = (value, clock));
                        let last = next();
                        one.put(*first, clock, &last.to_le_bytes());
                        after[*first as usize] = (last, clock);
                        if !(*first..first + count).contains(row) {
                            after[*row as usize] = (5000, clock);
                            one.put(*row, clock, &5000u64.to_le_bytes());
                        }
                    }
                    Step::Rows(rows) => for &row in rows {
                        let value = next();
                        one.put(row, clock, &value.to_le_bytes());
                        after[row as usize] = (value, clock);
                    },
                    Step::Add(rows) => for &row in rows {
                        let (sum, _) = after[row as usize];
                        let sum = f64::from_bits(sum) + 1.0;
                        one.add(row, clock, Dtype::F64, &1f64.to_le_bytes());
                        after[row as usize] = (sum.to_bits(), clock);
                    },
                }
                if kept {
                    one.finish();
                } else {
                    drop(one);
                }
                let mut heard = Vec::new();
                prop_assert!(follower.changed(writer.rows(), &mut heard));
                let number = writer.done() as u32;
                for row in 0..ROWS {
                    let at = row as usize;
                    prop_assert!(!kept || model[at] == after[at] || heard.contains(&(row, number)), "row {row}");
                }
                if kept {
                    model = after;
                }
                let rows = writer.rows();
                let mut out = [0; 8];
                for row in 0..ROWS {
                    let look = rows.read(row, rows.now(), &mut out).unwrap();
                    prop_assert_eq!((u64::from_le_bytes(out), look.clock), model[row as usize]);
                    prop_assert_eq!(writer.peek(row).1, look.clock);
                }
                let (first, count) = (look.0 as usize, look.1 as usize);
                let expected = &model[first..first + count];
                let mut run = vec![0; 8 * count];
                let together = rows.read_run(look.0, &mut run).unwrap();
                let values: Vec<u64> = expected.iter().map(|&(value, _)| value).collect();
                prop_assert_eq!(run, words(&values));
                prop_assert_eq!(Some(together.version), expected.iter().map(|&(_, clock)| clock).min());
                prop_assert_eq!(Some(writer.newest_clock(look.0, look.1)), expected.iter().map(|&(_, clock)| clock).max());
            }
        }
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
