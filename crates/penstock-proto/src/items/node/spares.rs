//! Memory of rows on their way that the next ones are taken into: without it every batch would have all of it given by the system
//! anew, page by page.

use super::piece::{PIECE_BYTES, Piece};
use crate::items::row_memory::Changed;

/// Bytes of values that are held, at most.
const MOST: usize = 4 << 20;

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
        if self.0.len() < MOST / PIECE_BYTES
            && (PIECE_BYTES..2 * PIECE_BYTES).contains(&piece.values.capacity())
        {
            piece.rows.clear();
            piece.values.clear();
            self.0.push(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        (0..=MOST / PIECE_BYTES).for_each(|_| spares.give(piece(PIECE_BYTES)));
        assert_eq!(spares.0.iter().map(|piece| piece.values.capacity()).sum::<usize>(), MOST);
    }
}
