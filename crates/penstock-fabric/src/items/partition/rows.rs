//! The readers' end.

use super::super::slot::{Look, Moment, Progress, RowGroup, Slot, Spot, Torn};
use super::super::steps::Words;
use super::super::together::{Gathered, Together};
use super::layout::{CLAIM_BYTES, HEADS, LINE, Layout, Piece, is_long};
use crate::memory::bring_near;
use crate::region::{Access, Mapping, Part};
use crate::sync::OwnedU64;
use penstock_kernels::ForeignMut;
use rustix::fd::BorrowedFd;
use rustix::io;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// The rows as any process sees them.
#[derive(Debug, Clone)]
pub struct Rows {
    pub(super) mapping: Arc<Mapping>,
    pub(super) layout: Layout,
}

impl Rows {
    /// Maps a partition of another process, to look.
    pub fn open(layout: Layout, fd: BorrowedFd<'_>) -> io::Result<Self> {
        Self::map(layout, fd, Access::Read)
    }

    pub(super) fn map(layout: Layout, fd: BorrowedFd<'_>, access: Access) -> io::Result<Self> {
        let mapping = Mapping::new(&[Part { fd, offset: 0, bytes: layout.total() }], access)?;
        Ok(Self { mapping, layout })
    }

    /// Its geometry.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Looks at a row as of a moment.
    #[inline]
    fn see(&self, slot: u32, now: Moment, copy: impl FnOnce(Spot)) -> Result<Look, Torn> {
        let mut look = self.head(slot).read(self.row_group_of(slot), now.done, copy)?;
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
        // Torn: a newer one stands there, whose clock is not known yet.
        self.see(slot, now, |_| {}).map_or(now.floor, |look| look.clock)
    }

    /// Copies the row of `slot` as of a moment.
    pub fn read<'o>(&self, slot: u32, now: Moment, out: impl Into<ForeignMut<'o>>) -> Result<Look, Torn> {
        let out = out.into();
        assert_eq!(out.len(), self.layout.row_bytes, "a copy needs as many bytes as the row has");
        self.see(slot, now, |spot| self.copy(slot, spot, out))
    }

    /// What a row carries as of a moment, without its value.
    pub fn look(&self, slot: u32, now: Moment) -> Result<Look, Torn> {
        self.see(slot, now, |_| {})
    }

    #[inline]
    fn copy(&self, slot: u32, spot: Spot, mut out: ForeignMut<'_>) {
        let at = self.layout.value(slot, spot);
        // As the writer does it, so that both work with words of one size.
        if is_long(at, out.len()) {
            out.copy_from(self.mapping.foreign(at..at + out.len()));
        } else {
            out.copy_from_words(self.mapping.foreign(at..at + out.len().next_multiple_of(8)));
        }
    }

    /// Brings the head of a slot near, while others are looked at.
    pub fn expect(&self, slot: u32) {
        if slot < self.layout.slots {
            bring_near(ptr::from_ref(self.head(slot)).cast());
        }
    }

    fn expect_head(&self, row_group: u32) {
        bring_near(ptr::from_ref(self.row_group(row_group)).cast());
    }

    /// Brings a row group near, while another is read. Most often it stands in the buffer that the one before stood in.
    fn expect_row_group(&self, row_group: u32, buffer: usize) {
        let at = self.layout.values(row_group, buffer);
        let bytes = self.layout.row_group_bytes().min(CLAIM_BYTES);
        let base = self.mapping.pointer(at..at + bytes).as_ptr();
        (0..bytes).step_by(LINE).for_each(|line| bring_near(base.wrapping_add(line)));
    }

    /// Rows of a row group; 0 if there are none.
    pub fn row_group_rows(&self) -> u32 {
        if self.layout.row_groups > 0 { self.layout.group } else { 0 }
    }

    /// Copies the rows of the row group that begins at slot `first`, as of a moment, if one set wrote the newest of each;
    /// `None` if not, or if none begins there.
    pub fn read_row_group<'o>(
        &self,
        first: u32,
        now: Moment,
        out: impl Into<ForeignMut<'o>>,
    ) -> Result<Option<Look>, Torn> {
        let out = out.into();
        let Some(row_group) = self.layout.row_group_of(first).filter(|_| self.layout.begins_row_group(first))
        else {
            return Ok(None);
        };
        assert_eq!(out.len(), self.layout.row_group_bytes(), "a copy needs as many bytes as the rows have");
        let look = self
            .row_group(row_group)
            .read(now.done, |buffer| self.copy(first, Spot::RowGroup(buffer), out))?;
        Ok(look.map(|look| Look { clock: look.clock.max(now.floor), ..look }))
    }

    /// One attempt to copy the rows from `first` on, which belong together, to `out`.
    pub fn read_run<'o>(&self, first: u32, out: impl Into<ForeignMut<'o>>) -> Result<Together, Torn> {
        let mut out = out.into();
        let mut all = Gathered::new(self.progress());
        let bytes = self.layout.row_bytes;
        let place = |slot: u32| (slot - first) as usize * bytes;
        let mut before = 0;
        let count = (out.len() / bytes) as u32;
        let Range { start: first_row_group, end: end_row_group } = self.layout.whole_row_groups(first, count);
        (first_row_group..end_row_group.min(first_row_group + HEADS))
            .for_each(|row_group| self.expect_head(row_group));
        for piece in self.layout.pieces(first, count) {
            let rows = match piece {
                Piece::Row(slot) => slot..slot + 1,
                Piece::RowGroup(row_group) => {
                    let slot = self.layout.rows_of(row_group).start;
                    let at = place(slot);
                    let mut out = out.part(at..at + self.layout.row_group_bytes());
                    let bytes = out.len();
                    if row_group + 1 < end_row_group {
                        self.expect_row_group(row_group + 1, before);
                    }
                    if row_group + HEADS < end_row_group {
                        self.expect_head(row_group + HEADS);
                    }
                    let look = |now: Moment| {
                        self.row_group(row_group).read(now.done, |buffer| {
                            before = buffer;
                            self.copy(slot, Spot::RowGroup(buffer), out.part(0..bytes));
                        })
                    };
                    if let Some(look) = all.look(look)? {
                        all.take(look);
                        continue;
                    }
                    self.layout.rows_of(row_group)
                }
            };
            for slot in rows {
                let mut out = out.part(place(slot)..place(slot) + bytes);
                let look = all.look(|now| self.read(slot, now, out.part(0..bytes)))?;
                all.take(look);
            }
        }
        all.together()
    }

    /// One attempt to copy several rows that belong together: each of `slots` to the place in `out` that
    /// `place` gives for its index.
    pub fn read_together<'o>(
        &self,
        slots: &[u32],
        place: impl Fn(usize) -> usize,
        out: impl Into<ForeignMut<'o>>,
    ) -> Result<Together, Torn> {
        const AHEAD: usize = 8;
        let mut out = out.into();
        let bytes = self.layout.row_bytes;
        let mut all = Gathered::new(self.progress());
        for (at, &slot) in slots.iter().enumerate() {
            if let Some(&next) = slots.get(at + AHEAD) {
                self.expect(next);
            }
            let start = place(at) * bytes;
            let mut out = out.part(start..start + bytes);
            let look = all.look(|now| self.read(slot, now, out.part(0..bytes)))?;
            all.take(look);
        }
        all.together()
    }

    /// Of rows that came one by one, which was not current any more when the newest of them was set; `None` if they
    /// belong together.
    pub fn apart(&self, slots: &[u32]) -> Result<Option<usize>, Torn> {
        let looks =
            || -> Result<Vec<Look>, Torn> { slots.iter().map(|&slot| self.look(slot, self.now())).collect() };
        let seen = looks()?;
        // What a row carries only grows: what was there twice was there all the time in between, beside the others.
        if looks()? != seen {
            return Err(Torn);
        }
        let newest = seen.iter().map(|look| look.number).max().unwrap_or(0);
        Ok(seen.iter().position(|look| look.as_of < newest))
    }

    /// A row as of a moment, where it stands: `bytes` bytes from the address, which others may be writing.
    pub fn show(&self, slot: u32, now: Moment) -> Result<Shown, Torn> {
        let mut at = Spot::Slot(0);
        let look = self.see(slot, now, |spot| at = spot)?;
        Ok(Shown { rows: self.clone(), slot, spot: at, look })
    }
}

impl Words for Rows {
    #[inline(always)]
    fn progress(&self) -> &Progress {
        self.mapping.peek(0)
    }

    fn entries(&self) -> u64 {
        self.layout.entries.into()
    }

    #[inline(always)]
    fn entry(&self, at: u64) -> &OwnedU64 {
        self.mapping.peek(self.layout.entry(at))
    }

    fn slots(&self) -> u32 {
        self.layout.slots
    }

    #[inline]
    fn head(&self, slot: u32) -> &Slot {
        assert!(slot < self.layout.slots, "slot {slot} of {}", self.layout.slots);
        self.mapping.peek(self.layout.slot(slot))
    }

    fn row_groups(&self) -> u32 {
        self.layout.row_groups
    }

    #[inline(always)]
    fn row_group(&self, row_group: u32) -> &RowGroup {
        assert!(row_group < self.layout.row_groups, "there is no such row group");
        self.mapping.peek(self.layout.row_group(row_group))
    }

    #[inline]
    fn row_group_of(&self, slot: u32) -> Option<&RowGroup> {
        self.layout.row_group_of(slot).map(|row_group| self.row_group(row_group))
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
        self.rows.head(self.slot).still(self.rows.row_group_of(self.slot), self.spot, self.look)
    }
}
