//! Rows of a batch that lie near each other: taken, taken anew and sent together.

use crate::items::row_memory::Look;
use crate::items::wire::Entry;

/// Bytes of an entry beside its values, about.
pub(super) const ENTRY_BYTES: usize = 32;

/// Rows of a piece at most, and bytes of their values, about. Where one of them is taken anew the others are moved: these are as many
/// as take little longer than a look at a row that is far from others.
pub(super) const PIECE_ROWS: usize = 1024;
pub(super) const PIECE_BYTES: usize = 32 * 1024;

/// Rows of a batch that follow each other and carry the same.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    pub(super) place: u32,
    /// The first of their slots, which follow each other.
    pub(super) slot: u32,
    pub(super) count: u32,
    pub(super) look: Look,
    /// Whether their values are sent.
    pub(super) value: bool,
    /// In a piece: how many rows have their values before those.
    pub(super) at: u32,
}

impl Sent {
    pub(super) fn entry<'a>(&self, value: Option<&'a [u8]>) -> Entry<'a> {
        let Look { number, clock, as_of } = self.look;
        Entry { place: self.place, count: self.count, number, clock, as_of, value }
    }
}

/// Rows of a batch whose slots lie near each other, in the order of their places.
#[derive(Debug, Default)]
pub(super) struct Piece {
    pub(super) rows: Vec<Sent>,
    /// Of each row, in the same order.
    pub(super) values: Vec<u8>,
}

impl Piece {
    pub(super) fn kept_bytes(&self) -> usize {
        if self.rows.is_empty() {
            return 0;
        }
        size_of::<(u32, Self)>() + self.values.capacity() + self.rows.capacity() * size_of::<Sent>()
    }

    /// The entry that has the row at a place, if one has.
    pub(super) fn entry_of(&self, place: u32) -> Option<usize> {
        let at = self.rows.partition_point(|sent| sent.place <= place).checked_sub(1)?;
        (place - self.rows[at].place < self.rows[at].count).then_some(at)
    }

    /// The row at a place, which `entry` has, is another by now.
    pub(super) fn overwrite(&mut self, entry: usize, place: u32, look: Look, value: &[u8]) {
        let sent = self.rows[entry];
        let before = place - sent.place;
        let start = (sent.at + before) as usize * value.len();
        self.values[start..start + value.len()].copy_from_slice(value);
        let part = |from: u32, count, look| {
            let (place, slot, at) = (sent.place + from, sent.slot + from, sent.at + from);
            (count > 0).then_some(Sent { place, slot, count, look, at, ..sent })
        };
        let behind = sent.count - before - 1;
        let parts = [part(0, before, sent.look), part(before, 1, look), part(before + 1, behind, sent.look)];
        self.rows.splice(entry..=entry, parts.into_iter().flatten());
    }

    /// About what it is on the wire.
    pub(super) fn sent_bytes(&self) -> usize {
        self.values.len() + self.rows.len() * ENTRY_BYTES
    }
}

/// The rows of a piece, one stretch after the other.
pub(super) struct Stretches<'a> {
    piece: &'a Piece,
    row_bytes: usize,
    /// The entry that is next, how many of its rows are through, and where the values of the others begin.
    next: usize,
    through: u32,
    value: usize,
}

impl<'a> Stretches<'a> {
    pub(super) fn of(piece: &'a Piece, row_bytes: usize) -> Self {
        Self { piece, row_bytes, next: 0, through: 0, value: 0 }
    }

    /// The next rows that one entry has, up to `place`.
    pub(super) fn before(&mut self, place: u32) -> Option<(Sent, &'a [u8])> {
        let sent = *self.piece.rows.get(self.next)?;
        let first = sent.place + self.through;
        let slot = sent.slot + self.through;
        let count = (sent.count - self.through).min(place.checked_sub(first)?);
        if count == 0 {
            return None;
        }
        let start = self.value;
        self.value += count as usize * self.row_bytes;
        self.through += count;
        if self.through == sent.count {
            (self.next, self.through) = (self.next + 1, 0);
        }
        Some((Sent { place: first, slot, count, ..sent }, &self.piece.values[start..self.value]))
    }

    /// Passes by all up to `place`.
    pub(super) fn skip(&mut self, place: u32) {
        while self.before(place).is_some() {}
    }

    /// The set that wrote the row at `place`, where that is the next.
    pub(super) fn number(&self, place: u32) -> Option<u64> {
        let sent = self.piece.rows.get(self.next)?;
        (sent.place + self.through == place).then_some(sent.look.number)
    }
}
