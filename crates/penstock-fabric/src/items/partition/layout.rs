//! Geometry: change log, slots and row groups one after the other. Drawn in docs/layout.md.

use super::super::slot::{Progress, RowGroup, Slot, Spot};
use super::super::steps::{WHOLE_GROUP, places};
use super::super::written::Written;
use crate::layout::pages;
use penstock_proto::items::spec::MAX_OWN_ROWS;
pub use penstock_proto::items::spec::MAX_ROW_BYTES;
use std::ops::Range;

pub(super) const LINE: usize = 64;
const CHANGE_LOG: usize = size_of::<Progress>();
/// Most and fewest entries of a change log: a follower that falls further behind looks at all rows.
const ENTRIES: (u32, u32) = (1 << 16, 64);
/// Longest row that stands in a row group too: the head of a longer one is little beside it.
const GROUPED_ROW_BYTES: usize = 1024;
/// Bytes of a row group that is long enough, and fewest and most rows of one.
const GROUP_BYTES: usize = 1024;
const GROUP_ROWS: (usize, usize) = (8, 64);
/// Places are found by shifts.
const _: () = assert!(GROUP_ROWS.0.is_power_of_two() && GROUP_ROWS.1.is_power_of_two());
/// Most bytes of a row group that are asked for in advance: as much as a core can wait for at once, and some more.
pub(super) const CLAIM_BYTES: usize = 2048;
/// Row groups that are asked for in advance when they are written.
pub(super) const AHEAD: u32 = 2;
/// Row groups whose heads are asked for in advance.
pub(super) const HEADS: u32 = 16;
/// Most rows of a partition.
pub const MAX_SLOTS: u32 = WHOLE_GROUP;
/// What a worker may declare has a layout.
const _: () = assert!(MAX_OWN_ROWS <= MAX_SLOTS as u64);

/// Geometry of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    pub(super) slots: u32,
    pub(super) row_bytes: usize,
    /// Bytes of one of a slot's two buffers, and where the first starts.
    pub(super) buffer: usize,
    pub(super) first: usize,
    pub(super) stride: usize,
    pub(super) entries: u32,
    /// Row groups, and rows of one.
    pub(super) row_groups: u32,
    pub(super) group: u32,
}

impl Layout {
    /// For `slots` rows of `row_bytes` bytes. A row of at most 40 bytes shares its head's cache lines; longer ones start on
    /// cache lines of their own. Short rows of whole words also have a place in a row group, but for the last few that fill none.
    ///
    /// # Panics
    /// If it has more than [`MAX_SLOTS`] rows; what comes from others is [checked](Self::checked).
    pub fn new(slots: u32, row_bytes: u32) -> Self {
        Self::checked(slots, row_bytes)
            .unwrap_or_else(|| panic!("expected at most {MAX_SLOTS} rows, got {slots}"))
    }

    /// The same of what somebody else says. `None`: too many rows, or too long ones.
    pub fn checked(slots: u32, row_bytes: u32) -> Option<Self> {
        if slots > MAX_SLOTS || row_bytes > MAX_ROW_BYTES {
            return None;
        }
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
            (GROUP_BYTES / row_bytes.max(1)).next_power_of_two().clamp(GROUP_ROWS.0, GROUP_ROWS.1) as u32;
        let row_groups =
            if row_bytes.is_multiple_of(8) && row_bytes <= GROUPED_ROW_BYTES { slots / group } else { 0 };
        Some(Self { slots, row_bytes, buffer, first, stride, entries, row_groups, group })
    }

    /// Rows.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Entries of the change log.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Bytes of the partition.
    pub fn total(&self) -> usize {
        pages(self.values(self.row_groups, 1))
    }

    /// Most bytes that its writer takes beside while a set is open.
    pub fn most_beside(&self) -> usize {
        Written::most_bytes(places(self.slots, self.row_groups))
    }

    /// Where a slot lies.
    #[inline(always)]
    pub fn slot(&self, slot: u32) -> usize {
        let slots = (CHANGE_LOG + 8 * self.entries as usize).next_multiple_of(LINE);
        slots + slot as usize * self.stride
    }

    #[inline(always)]
    pub(super) fn value(&self, slot: u32, spot: Spot) -> usize {
        match spot {
            Spot::Slot(buffer) => self.slot(slot) + self.first + buffer * self.buffer,
            Spot::RowGroup(buffer) => self.values(0, buffer) + slot as usize * self.row_bytes,
        }
    }

    /// Row groups that are whole before a slot: a shift, since `group` is a power of two, where a division for each piece of a
    /// set of 256 rows took 4 % of it.
    #[inline]
    fn row_groups_before(&self, slot: u32) -> u32 {
        slot >> self.group.trailing_zeros()
    }

    /// Whether a row group begins with a slot.
    #[inline]
    pub(super) fn begins_row_group(&self, slot: u32) -> bool {
        slot & (self.group - 1) == 0
    }

    /// The row groups that are whole among `count` rows from `first` on. Where none is, the range may end before it begins.
    #[inline]
    pub(super) fn whole_row_groups(&self, first: u32, count: u32) -> Range<u32> {
        self.row_groups_before(first) + u32::from(!self.begins_row_group(first))
            ..self.row_groups_before(first + count).min(self.row_groups)
    }

    /// Where an entry of the change log lies: there is a power of two of them.
    #[inline(always)]
    pub(super) fn entry(&self, at: u64) -> usize {
        CHANGE_LOG + 8 * (at & u64::from(self.entries - 1)) as usize
    }

    /// The row group that a slot's row is in.
    #[inline]
    pub(super) fn row_group_of(&self, slot: u32) -> Option<u32> {
        let row_group = self.row_groups_before(slot);
        (row_group < self.row_groups).then_some(row_group)
    }

    /// Where the head of a row group lies: behind the slots.
    #[inline(always)]
    pub(super) fn row_group(&self, row_group: u32) -> usize {
        self.slot(self.slots) + row_group as usize * size_of::<RowGroup>()
    }

    /// The rows of a row group.
    pub(super) fn rows_of(&self, row_group: u32) -> Range<u32> {
        row_group * self.group..(row_group + 1) * self.group
    }

    /// `count` rows from `first` on: whole row groups where they are whole.
    pub(super) fn pieces(&self, first: u32, count: u32) -> impl Iterator<Item = Piece> {
        let (layout, whole, mut at) = (*self, self.whole_row_groups(first, count), first);
        std::iter::from_fn(move || {
            (at < first + count).then(|| {
                let row_group = layout.row_groups_before(at);
                let is_whole = whole.contains(&row_group);
                let piece = if is_whole { Piece::RowGroup(row_group) } else { Piece::Row(at) };
                at += if is_whole { layout.group } else { 1 };
                piece
            })
        })
    }

    #[inline(always)]
    pub(super) fn row_group_bytes(&self) -> usize {
        self.group as usize * self.row_bytes
    }

    /// Where the rows of a row group lie: behind the heads, the first buffers of all row groups, then the second.
    #[inline(always)]
    pub(super) fn values(&self, row_group: u32, buffer: usize) -> usize {
        let before = buffer * self.row_groups as usize + row_group as usize;
        self.row_group(self.row_groups) + before * self.row_group_bytes()
    }
}

/// Whether `bytes` bytes at `at` are copied by cache lines, not by words: by writer and readers.
#[inline]
pub(super) fn is_long(at: usize, bytes: usize) -> bool {
    at.is_multiple_of(LINE) && bytes >= LINE
}

/// For some rows that follow each other.
#[derive(Debug, Clone, Copy)]
pub(super) enum Piece {
    /// All rows of a row group.
    RowGroup(u32),
    Row(u32),
}
