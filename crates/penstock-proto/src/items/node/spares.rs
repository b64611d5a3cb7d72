//! Memory of rows on their way that the next ones are taken into: without it every batch would have all of it given by the system
//! anew, page by page.

use super::piece::{PIECE_BYTES, Piece};
use crate::items::row_memory::Changed;

/// Pieces that are held, at most: 4 MiB of values.
const MOST: usize = (4 << 20) / PIECE_BYTES;
/// Entries for which a piece that is held has room, at most. Room for many would be charged to whoever has few in it next.
const MOST_ENTRIES: usize = 64;

/// What one look at a partition leaves to the next.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) changed: Vec<Changed>,
    pub(super) spares: Spares,
}

/// Pieces without rows, which have room for as many as a piece has.
#[derive(Debug, Default)]
pub(super) struct Spares(Vec<Piece>);

impl Spares {
    /// One of them, or else a new one.
    pub(super) fn take(&mut self) -> Piece {
        self.0.pop().unwrap_or_else(|| Piece { rows: Vec::new(), values: Vec::with_capacity(PIECE_BYTES) })
    }

    /// Holds a piece whose rows were sent, unless it is of another size, or enough are held.
    pub(super) fn give(&mut self, mut piece: Piece) {
        if self.0.len() < MOST && piece.values.capacity() == PIECE_BYTES {
            piece.rows.clear();
            piece.rows.shrink_to(MOST_ENTRIES);
            piece.values.clear();
            self.0.push(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::items::node::piece::Sent;
    use crate::items::row_memory::Look;

    #[test]
    fn what_was_sent_is_room_for_others_within_bounds() {
        let mut spares = Spares::default();
        let piece = |bytes| Piece { rows: Vec::new(), values: vec![7; bytes] };
        spares.give(piece(PIECE_BYTES));
        let taken = spares.take();
        assert!(taken.values.is_empty() && taken.values.capacity() >= PIECE_BYTES);
        // Neither those of a few rows nor long ones are held, nor any number.
        [PIECE_BYTES / 2, 2 * PIECE_BYTES].into_iter().for_each(|bytes| spares.give(piece(bytes)));
        assert!(spares.0.is_empty());
        let look = Look { number: 1, clock: 1, as_of: 1 };
        let many = vec![Sent { place: 0, slot: 0, count: 1, look, value: true, at: 0 }; 1024];
        (0..=MOST).for_each(|_| spares.give(Piece { rows: many.clone(), ..piece(PIECE_BYTES) }));
        assert_eq!(spares.0.iter().map(|piece| piece.values.capacity()).sum::<usize>(), MOST * PIECE_BYTES);
        assert!(spares.0.iter().all(|piece| piece.rows.capacity() <= MOST_ENTRIES));
    }
}
