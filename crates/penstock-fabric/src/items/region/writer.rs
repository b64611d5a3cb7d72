//! The writer's end.

use super::super::slot::{Buffers, Spot, UNFINISHED, age, newest, target};
use super::layout::{CLAIM_BYTES, HEADS, LINE, Layout, Piece, WHOLE_SHEET, is_long};
use super::rows::Rows;
use crate::memory::claim;
use crate::region::{Access, Mapping};
use crate::sync::Ordering;
use penstock_kernels::{Dtype, Foreign, ForeignMut};
use rustix::fd::BorrowedFd;
use rustix::io;
use std::ptr;

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
            self.put(slot, number, clock, Foreign::of(value));
        }
    }

    /// The same for rows that follow each other from `first` on, which one set wrote. No row comes twice in an open set of a mirror.
    pub fn put_run_from(&mut self, first: u32, number: u64, clock: u64, values: &[u8]) {
        let (layout, bytes) = (self.rows.layout, self.rows.layout.row_bytes);
        let value = |slot: u32, count: u32| {
            let at = (slot - first) as usize * bytes;
            &values[at..at + count as usize * bytes]
        };
        for piece in layout.pieces(first, (values.len() / bytes) as u32) {
            let rows = match piece {
                Piece::Row(slot) => slot..slot + 1,
                Piece::Sheet(sheet) => {
                    let rows = layout.rows_of(sheet);
                    let head = self.rows.sheet(sheet);
                    let newest_of = |slot: u32| self.peek(slot).0;
                    // Most often all of them came at once before, and one look says that they are older.
                    let later = match head.number() {
                        Some(newest) => newest >= number,
                        None => rows.clone().any(|slot| newest_of(slot) >= number),
                    };
                    if !later {
                        let values = Foreign::of(value(rows.start, layout.group));
                        self.write_sheet(sheet, number, clock, values);
                        self.log(sheet | WHOLE_SHEET);
                        continue;
                    }
                    rows
                }
            };
            for slot in rows {
                self.put_from(slot, number, clock, value(slot, 1));
            }
        }
    }

    fn put(&mut self, slot: u32, number: u64, clock: u64, value: Foreign<'_>) {
        self.write(slot, number, clock, |mut to, _| to.copy(value));
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
        let listed = open.logged.min(entries);
        let listed =
            || (self.logged + open.logged - listed..self.logged + open.logged).map(|at| self.rows.entry(at));
        let written: Vec<u32> = if open.logged <= entries {
            listed().map(|entry| entry.load(Ordering::Relaxed) as u32).collect()
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
        // What was logged is heard of by followers, to whom it shall say nothing new: no set of that number may ever be finished.
        for entry in listed() {
            let place = entry.load(Ordering::Relaxed) & u64::from(u32::MAX);
            entry.store(place | self.done << 32, Ordering::Relaxed);
        }
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
            self.write(slot, number, clock, |mut to, _| to.copy(Foreign::of(value)));
        }
        let (newest_number, known) = self.peek(slot);
        if newest_number == number {
            let head = self.rows.head(slot);
            head.confirm(newest(head.buffers.numbers()), clock.max(known), as_of.max(head.as_of()));
        }
    }

    /// The producer has completed `floor` iterations. Nothing falls where somebody comes late with fewer: one thread of the producer
    /// may have read its clock before another completed an iteration, or left.
    pub fn raise(&mut self, floor: u64) {
        if floor > self.rows.floor() {
            self.rows.progress().raise(floor);
        }
    }

    fn write(
        &mut self,
        slot: u32,
        number: u64,
        clock: u64,
        fill: impl FnOnce(Buffer<'_>, Option<Foreign<'_>>),
    ) {
        let to = target(self.rows.head(slot).buffers.numbers(), number);
        let (from, _) = self.newest(slot);
        let bytes = self.rows.layout.row_bytes;
        if let Some(sheet) = self.rows.sheet_of(slot) {
            sheet.part(number);
        }
        self.rows.head(slot).buffers.begin(to);
        let at = self.rows.layout.value(slot, from);
        // What is added to stands in the buffer itself, or in another that is not written now.
        let room = if is_long(at, bytes) { bytes } else { bytes.next_multiple_of(8) };
        let source = (from != Spot::Slot(to)).then(|| self.rows.mapping.foreign(at..at + room));
        // SAFETY: this is the region's writer, borrowed exclusively.
        let buffer = unsafe { Buffer::new(&self.rows, slot, Spot::Slot(to), bytes) };
        fill(buffer, source);
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
    fn write_sheet(&mut self, sheet: u32, number: u64, clock: u64, values: Foreign<'_>) {
        let to = target(self.rows.sheet(sheet).buffers.numbers(), number);
        let first = self.rows.layout.rows_of(sheet).start;
        assert_eq!(values.len(), self.rows.layout.sheet_bytes(), "a sheet has as many bytes");
        self.rows.sheet(sheet).buffers.begin(to);
        // SAFETY: as in `write`.
        unsafe { Buffer::new(&self.rows, first, Spot::Sheet(to), values.len()) }.copy(values);
        self.rows.sheet(sheet).buffers.finish(to, number, clock);
    }
}

/// A row's buffer, or a sheet's, to be written.
struct Buffer<'a> {
    /// In whole words where it is short.
    memory: ForeignMut<'a>,
    bytes: usize,
    long: bool,
}

impl<'a> Buffer<'a> {
    /// `bytes` bytes from a row's buffer on.
    ///
    /// # Safety
    /// Only the writer of `rows` calls this, and lets go of one buffer before it takes the next.
    #[inline]
    unsafe fn new(rows: &'a Rows, slot: u32, spot: Spot, bytes: usize) -> Self {
        assert!(slot < rows.layout.slots, "slot {slot} of {}", rows.layout.slots);
        let at = rows.layout.value(slot, spot);
        let long = is_long(at, bytes);
        let room = if long { bytes } else { bytes.next_multiple_of(8) };
        let address = rows.mapping.pointer(at..at + room);
        // SAFETY: inside the mapping (`pointer`), which the writer has mapped writable and which lives as long as the result. It is
        // never lent as a slice: readers, of this process too, look through `Foreign` and words, and verify.
        let memory = unsafe { ForeignMut::new(address.as_ptr(), room) };
        Self { memory, bytes, long }
    }

    #[inline]
    fn copy(&mut self, value: Foreign<'_>) {
        assert_eq!(value.len(), self.bytes, "a row has as many bytes");
        if self.long {
            self.memory.copy_from(value);
        } else {
            self.memory.copy_words_from(value);
        }
    }

    /// The sum of `value` and what was before; `None`: what stands in the buffer.
    fn add(&mut self, dtype: Dtype, before: Option<Foreign<'_>>, value: Foreign<'_>) {
        assert_eq!(value.len(), self.bytes, "a row has as many bytes");
        if !self.long {
            let mut sum = [0; LINE];
            let sum = &mut sum[..self.bytes];
            // In whole words, as readers look at them.
            ForeignMut::of(sum).copy_from_words(before.unwrap_or(self.memory.as_foreign()));
            penstock_kernels::accumulate_into(dtype, &mut ForeignMut::of(sum), value);
            self.memory.copy_words_from(Foreign::of(sum));
        } else if let Some(before) = before {
            penstock_kernels::add_into(dtype, &mut self.memory, before, value);
        } else {
            penstock_kernels::accumulate_into(dtype, &mut self.memory, value);
        }
    }
}

/// A set that is being written. Nobody sees its rows before it is finished; dropped before, they are as they were.
#[derive(Debug)]
pub struct Set<'a> {
    writer: &'a mut Writer,
}

impl Set<'_> {
    /// Whether this set has written the row of `slot`, by itself.
    #[inline]
    pub fn has(&self, slot: u32) -> bool {
        let numbers = self.writer.rows.head(slot).buffers.numbers();
        self.writer.open.is_some_and(|open| numbers[newest(numbers)] == open.number)
    }

    /// The row of `slot` is `value`, at `clock`.
    pub fn put<'v>(&mut self, slot: u32, clock: u64, value: impl Into<Foreign<'v>>) {
        let number = self.writer.open.map_or(0, |open| open.number);
        self.writer.put(slot, number, clock, value.into());
    }

    /// The rows from `first` on are `values`, at `clock`.
    pub fn put_run<'v>(&mut self, first: u32, clock: u64, values: impl Into<Foreign<'v>>) {
        let values = values.into();
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
                    let values = values.part(at..at + layout.sheet_bytes());
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
                        self.put(slot, clock, values.part(at..at + bytes));
                    }
                }
                Piece::Row(slot) => {
                    let at = (slot - first) as usize * bytes;
                    self.put(slot, clock, values.part(at..at + bytes));
                }
            }
        }
    }

    /// The row of `slot` grows by `value`, at `clock`.
    pub fn add<'v>(&mut self, slot: u32, clock: u64, dtype: Dtype, value: impl Into<Foreign<'v>>) {
        let number = self.writer.open.map_or(0, |open| open.number);
        let value = value.into();
        self.writer.write(slot, number, clock, |mut to, before| to.add(dtype, before, value));
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
