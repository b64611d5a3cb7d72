//! The writer's end.

use super::super::slot::{Spot, UNFINISHED, newest, target};
use super::super::steps::{Steps, Words};
use super::layout::{AHEAD, CLAIM_BYTES, HEADS, LINE, Layout, Piece, is_long};
use super::rows::Rows;
use crate::memory::claim;
use crate::region::{Access, Mapping};
use penstock_kernels::{Dtype, Foreign, ForeignMut};
use rustix::fd::BorrowedFd;
use rustix::io;
use std::ops::Range;
use std::ptr;

/// The rows as their writer sees them. There is one for each partition.
#[derive(Debug)]
pub struct Writer {
    /// The order of whatever readers see.
    steps: Steps<Rows>,
    /// No row's clock is larger; the largest there is where another writer may have come before.
    bound: u64,
}

impl Writer {
    /// Rows that only this process sees.
    pub fn private(layout: Layout) -> io::Result<Self> {
        let mapping = Mapping::private(layout.total())?;
        Ok(Self { steps: Steps::over(Rows { mapping, layout }), bound: 0 })
    }

    /// Rows in a partition that others map.
    pub fn shared(layout: Layout, fd: BorrowedFd<'_>) -> io::Result<Self> {
        let steps = Steps::over(Rows::map(layout, fd, Access::Write)?);
        let bound = if steps.is_untouched() { 0 } else { u64::MAX };
        Ok(Self { steps, bound })
    }

    /// What readers see.
    pub fn rows(&self) -> &Rows {
        self.steps.words()
    }

    /// Sets that are finished.
    pub fn done(&self) -> u64 {
        self.steps.done()
    }

    /// Number and clock of a row's newest value.
    pub fn peek(&self, slot: u32) -> (u64, u64) {
        self.steps.peek(slot)
    }

    /// Whether a clock is as large as that of every row: found without a look at any.
    #[inline]
    pub fn is_latest(&self, clock: u64) -> bool {
        clock >= self.bound
    }

    /// The largest clock of the newest values of `count` rows from `first` on.
    pub fn newest_clock(&self, first: u32, count: u32) -> u64 {
        let layout = self.rows().layout;
        layout
            .pieces(first, count)
            .map(|piece| match piece {
                Piece::RowGroup(row_group) => match self.rows().row_group(row_group).clock() {
                    Some(clock) => clock,
                    None => layout.rows_of(row_group).map(|slot| self.peek(slot).1).max().unwrap_or(0),
                },
                Piece::Row(slot) => self.peek(slot).1,
            })
            .max()
            .unwrap_or(0)
    }

    /// Begins the next set, of `rows` rows.
    pub fn begin(&mut self, rows: usize) -> Set<'_> {
        self.open(self.done() + 1, rows);
        Set { writer: self }
    }

    /// The same for a mirror: after it the rows are as after set `number` of the origin. What was open is dropped.
    pub fn open(&mut self, number: u64, rows: usize) {
        self.steps.open(number, rows);
    }

    /// In an open set of a mirror: the row of `slot` is `value`, as set `number` of the origin wrote it at `clock`.
    /// Nothing is done if it has a later one.
    pub fn put_from(&mut self, slot: u32, number: u64, clock: u64, value: &[u8]) {
        let (newest, _) = self.peek(slot);
        if newest == UNFINISHED || number > newest {
            self.put(slot, number, clock, Foreign::of(value));
        }
    }

    /// The same for rows that follow each other from `first` on, which one set wrote. No row comes twice in
    /// an open set of a mirror.
    pub fn put_run_from(&mut self, first: u32, number: u64, clock: u64, values: &[u8]) {
        let (layout, bytes) = (self.rows().layout, self.rows().layout.row_bytes);
        let value = |slot: u32, count: u32| {
            let at = (slot - first) as usize * bytes;
            &values[at..at + count as usize * bytes]
        };
        for piece in layout.pieces(first, (values.len() / bytes) as u32) {
            let rows = match piece {
                Piece::Row(slot) => slot..slot + 1,
                Piece::RowGroup(row_group) => {
                    let rows = layout.rows_of(row_group);
                    let newest_of = |slot: u32| self.peek(slot).0;
                    // Most often all of them came at once before, and one look says that they are older.
                    let later = match self.rows().row_group(row_group).number() {
                        Some(newest) => newest >= number,
                        None => rows.clone().any(|slot| newest_of(slot) >= number),
                    };
                    if !later {
                        let values = Foreign::of(value(rows.start, layout.group));
                        self.put_row_groups(row_group..row_group + 1, number, clock, values);
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
        self.bound = self.bound.max(clock);
        self.steps.put(slot, number, clock, |rows, to, _| {
            // SAFETY: this is the partition's writer, borrowed exclusively.
            unsafe { Buffer::of_row(rows, slot, to) }.copy(value);
        });
    }

    /// All rows of the open set are written: they are seen from now on.
    pub fn finish(&mut self) {
        self.steps.finish();
    }

    /// The open set is dropped: no number of it stays behind, since the next may have the same.
    pub fn abort(&mut self) {
        self.steps.abort();
    }

    /// A row of a mirror whose rows come one by one, each with a limit of its own: set `number` of the origin wrote it, and after
    /// set `as_of` it was still the newest, of version `clock`. Without `value` the number is the one that it has.
    pub fn refresh(&mut self, slot: u32, number: u64, clock: u64, as_of: u64, value: Option<&[u8]>) {
        let fill = value.map(|value| {
            move |rows: &Rows, to: usize, _: Spot| {
                // SAFETY: as in `put`.
                unsafe { Buffer::of_row(rows, slot, to) }.copy(Foreign::of(value));
            }
        });
        self.bound = self.bound.max(clock);
        self.steps.refresh(slot, number, clock, as_of, fill);
    }

    /// The producer has completed `floor` iterations. Nothing falls when a thread comes late with fewer.
    pub fn raise(&mut self, floor: u64) {
        self.steps.raise(floor);
    }

    /// Begins to take the lines of a row group from the readers' caches, while something else is written: asked for one by one,
    /// each would keep the writer waiting.
    #[inline(always)]
    fn claim_row_group(&self, row_group: u32) {
        let rows = self.rows();
        let to = target(rows.row_group(row_group).buffers.numbers(), UNFINISHED);
        let at = rows.layout.values(row_group, to);
        let bytes = rows.layout.row_group_bytes().min(CLAIM_BYTES);
        let base = rows.mapping.pointer(at..at + bytes).as_ptr();
        (0..bytes).step_by(LINE).for_each(|line| claim(base.wrapping_add(line)));
    }

    #[inline(always)]
    fn claim_head(&self, row_group: u32) {
        claim(ptr::from_ref(self.rows().row_group(row_group)).cast());
    }

    /// Begins to take the first lines of `row_groups`.
    #[inline(always)]
    fn claim_first(&self, row_groups: &Range<u32>) {
        (row_groups.start..row_groups.end.min(row_groups.start + HEADS)).for_each(|at| self.claim_head(at));
        (row_groups.start..row_groups.end.min(row_groups.start + AHEAD))
            .for_each(|at| self.claim_row_group(at));
    }

    /// All rows of `row_groups`, of which none was written by itself in this set.
    ///
    /// Readers hold the lines that are written, so these stores wait in the core's store buffer, and each store behind them, to the
    /// stack too, takes one of its few places. So all is done in this one function; where the processor has AVX-512, and row groups
    /// are whole blocks of 256 bytes and less than 4 KiB, it calls none. What is only said when something is wrong goes by value.
    #[inline(never)]
    fn put_row_groups(&mut self, row_groups: Range<u32>, number: u64, clock: u64, values: Foreign<'_>) {
        let bytes = self.rows().layout.row_group_bytes();
        assert!(values.len() == row_groups.len() * bytes, "row groups have as many bytes");
        self.bound = self.bound.max(clock);
        for (row_group, at) in row_groups.clone().zip((0..).step_by(bytes)) {
            if row_group + AHEAD < row_groups.end {
                self.claim_row_group(row_group + AHEAD);
            }
            if row_group + HEADS < row_groups.end {
                self.claim_head(row_group + HEADS);
            }
            let values = values.part(at..at + bytes);
            self.steps.put_row_group(row_group, number, clock, |rows, to| {
                let to = rows.layout.values(row_group, to);
                let address = rows.mapping.pointer(to..to + bytes);
                // SAFETY: as in `Buffer::of_row`. A row group is whole cache lines; of one row in it readers take words, or its own
                // lines.
                unsafe { ForeignMut::new(address.as_ptr(), bytes) }.copy_from(values);
            });
        }
    }
}

/// A row's buffer, to be written.
struct Buffer<'a> {
    /// In whole words where it is short.
    memory: ForeignMut<'a>,
    bytes: usize,
    long: bool,
}

impl<'a> Buffer<'a> {
    /// The one of the slot's two that is to be written.
    ///
    /// # Safety
    /// Only the writer of `rows` calls this, and lets go of one buffer before it takes the next.
    #[inline]
    unsafe fn of_row(rows: &'a Rows, slot: u32, to: usize) -> Self {
        assert!(slot < rows.layout.slots, "there is no such slot");
        let (at, bytes) = (rows.layout.value(slot, Spot::Slot(to)), rows.layout.row_bytes);
        let long = is_long(at, bytes);
        let room = if long { bytes } else { bytes.next_multiple_of(8) };
        let address = rows.mapping.pointer(at..at + room);
        // SAFETY: inside the mapping (`pointer`), which the writer has mapped writable and which lives as long as the result. It is
        // never lent as a slice: readers, of this process too, look through `Foreign` and words, and verify.
        let memory = unsafe { ForeignMut::new(address.as_ptr(), room) };
        Self { memory, bytes, long }
    }

    #[inline(always)]
    fn copy(mut self, value: Foreign<'_>) {
        assert!(value.len() == self.bytes, "a row has as many bytes");
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

/// A set that is being written. No reader sees its rows before it is finished; dropped before that, they are as they were.
#[derive(Debug)]
pub struct Set<'a> {
    writer: &'a mut Writer,
}

impl Set<'_> {
    /// Whether this set has written the row of `slot`, by itself.
    #[inline]
    pub fn has(&self, slot: u32) -> bool {
        let numbers = self.writer.rows().head(slot).buffers.numbers();
        self.writer.steps.number() == Some(numbers[newest(numbers)])
    }

    /// The row of `slot` is `value`, at `clock`.
    pub fn put<'v>(&mut self, slot: u32, clock: u64, value: impl Into<Foreign<'v>>) {
        let number = self.writer.steps.number().unwrap_or(0);
        self.writer.put(slot, number, clock, value.into());
    }

    /// The rows from `first` on are `values`, at `clock`.
    pub fn put_run<'v>(&mut self, first: u32, clock: u64, values: impl Into<Foreign<'v>>) {
        let values = values.into();
        let Some(number) = self.writer.steps.number() else { return };
        let (layout, bytes) = (self.writer.rows().layout, self.writer.rows().layout.row_bytes);
        let count = (values.len() / bytes) as u32;
        // Once a set has written a row by itself, it could not be told which of two values came last.
        let fresh = self.writer.steps.is_fresh();
        let row_groups = Some(layout.whole_row_groups(first, count)).filter(|all| fresh && !all.is_empty());
        let Some(row_groups) = row_groups else {
            return self.put_each(first..first + count, first, clock, values);
        };
        self.writer.claim_first(&row_groups);
        let inside = layout.rows_of(row_groups.start).start..layout.rows_of(row_groups.end).start;
        self.put_each(first..inside.start, first, clock, values);
        let place = |slot: u32| (slot - first) as usize * bytes;
        let common = values.part(place(inside.start)..place(inside.end));
        self.writer.put_row_groups(row_groups, number, clock, common);
        self.put_each(inside.end..first + count, first, clock, values);
    }

    /// Each of the rows `slots` by itself, where `values` are those from `first` on.
    fn put_each(&mut self, slots: Range<u32>, first: u32, clock: u64, values: Foreign<'_>) {
        let bytes = self.writer.rows().layout.row_bytes;
        for slot in slots {
            let at = (slot - first) as usize * bytes;
            self.put(slot, clock, values.part(at..at + bytes));
        }
    }

    /// The row of `slot` grows by `value`, at `clock`.
    pub fn add<'v>(&mut self, slot: u32, clock: u64, dtype: Dtype, value: impl Into<Foreign<'v>>) {
        let number = self.writer.steps.number().unwrap_or(0);
        let value = value.into();
        self.writer.bound = self.writer.bound.max(clock);
        self.writer.steps.put(slot, number, clock, |rows, to, from| {
            let (at, bytes) = (rows.layout.value(slot, from), rows.layout.row_bytes);
            // What is added to stands in the buffer itself, or in another that is not written now.
            let room = if is_long(at, bytes) { bytes } else { bytes.next_multiple_of(8) };
            let before = (from != Spot::Slot(to)).then(|| rows.mapping.foreign(at..at + room));
            // SAFETY: this is the partition's writer, borrowed exclusively.
            unsafe { Buffer::of_row(rows, slot, to) }.add(dtype, before, value);
        });
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
