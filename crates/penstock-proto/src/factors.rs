//! Contributions of low rank: between hosts `u @ v` travels as `u` and `v`.
//!
//! A tensor of m rows and n columns declares the largest rank r that its contributions may travel with ([`LowRank`]). Then v, of r
//! rows, goes to each of its shards once a push, in [pieces](PIECE) that are frames of their own; and the frame of each chunk
//! carries, instead of the chunk, the rows of u that the chunk has a part of, encoded as [`ROWS`]. The shard multiplies where it would
//! decode: what stands in the lane is the product, by the same kernel as on the worker, so nothing behind it knows of factors.
//!
//! Both factors stand in the worker's lane, at the beginning of each server's extent ([`Standing`]), in place of the product: the
//! lane is not written again before its contribution is folded (S-1), so v is whole there for as long as a frame of it may have to
//! be sent again, and no v comes while a chunk of the last push is under way. The shard [keeps](Held) what has come of v over
//! connections, as frames are taken once; it takes pieces in order, and rows only once v is whole.
//!
//! Where a tensor's [updates](crate::update) are sent, they may come [down](down) as factors as well.
//!
//! Bytes of a push: r (m + shards n) elements, and a header for each chunk. Memory: r n elements for each shard and worker on
//! another host, which is charged to that worker when it declares the tensor.

pub mod down;

use crate::encoding::Encoding;
use penstock_kernels::Dtype;
use std::ops::Range;

/// Rows of the left factor, in place of a chunk; of an update likewise of all left factors, in place of the sum.
pub const ROWS: Encoding = Encoding(63);
/// Largest rank: with it a chunk of 32 KiB costs its shard a millisecond.
pub const MAX_RANK: u32 = 1024;
/// Bytes of a piece of the right factor, but for the last: as many as one send has frames fill it.
pub const PIECE: usize = 16 * 1024;

/// Contributions to a matrix that may travel as factors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LowRank {
    /// Its elements.
    pub dtype: Dtype,
    /// Columns: elements of a row.
    pub columns: u64,
    /// The largest rank, from 1 to [`MAX_RANK`].
    pub most: u32,
}

impl LowRank {
    /// Bytes of the right factor.
    pub fn right(&self, rank: u32) -> usize {
        self.columns as usize * self.left(rank)
    }

    /// Bytes of a row of the left factor.
    pub fn left(&self, rank: u32) -> usize {
        rank as usize * self.dtype.size()
    }

    /// Most bytes of rows that come in place of a chunk of so many bytes.
    pub fn longest(&self, bytes: usize, rank: u32) -> usize {
        // Of the first and the last of them the chunk may have any part.
        bytes / 2 + 2 * self.left(rank)
    }

    /// The rows that these bytes of the tensor, which are whole elements and not none, are of.
    pub fn rows(&self, bytes: Range<u64>) -> Range<u64> {
        let row = self.columns * self.dtype.size() as u64;
        bytes.start / row..bytes.end.div_ceil(row)
    }

    /// The column of the element at this byte of the tensor.
    pub fn column(&self, byte: u64) -> usize {
        (byte / self.dtype.size() as u64 % self.columns) as usize
    }

    /// Whether factors of this rank are sent to the `shards` shards of a server in place of these bytes of the tensor, so many chunks:
    /// where that is half as much at most. A row goes with each chunk that has a part of it.
    pub fn pays(&self, rank: u32, bytes: Range<u64>, shards: u64, chunks: u64) -> bool {
        let rows = self.rows(bytes.clone());
        let sent = (shards * self.columns + rows.end - rows.start + chunks.saturating_sub(1))
            * self.left(rank) as u64;
        (1..=self.most).contains(&rank) && 2 * sent <= bytes.end - bytes.start
    }
}

/// Factors that stand in the lane in place of an extent: all of the right one, then the rows of the left one that the extent has a
/// part of.
#[derive(Debug, Clone, Copy)]
pub struct Standing {
    /// Of which tensor.
    pub low_rank: LowRank,
    /// Their rank.
    pub rank: u32,
    /// Where the extent begins in the tensor, in bytes.
    pub start: u64,
}

impl Standing {
    /// Where the right factor stands, from the extent's beginning on.
    pub fn right(&self) -> Range<usize> {
        0..self.low_rank.right(self.rank)
    }

    /// Where the rows of the left one stand that these bytes of the tensor are of.
    pub fn left(&self, bytes: Range<u64>) -> Range<usize> {
        let (row, first) = (self.low_rank.left(self.rank), self.start / self.row_bytes());
        let rows = self.low_rank.rows(bytes);
        let at = |number: u64| self.low_rank.right(self.rank) + (number - first) as usize * row;
        at(rows.start)..at(rows.end)
    }

    fn row_bytes(&self) -> u64 {
        self.low_rank.columns * self.low_rank.dtype.size() as u64
    }
}

/// Frames that the right factor takes, where it has so many bytes.
pub fn pieces(bytes: usize) -> u32 {
    bytes.div_ceil(PIECE) as u32
}

/// Which bytes of it the frame of this number is.
pub fn piece(bytes: usize, index: u32) -> Range<usize> {
    let start = index as usize * PIECE;
    start..(start + PIECE).min(bytes)
}

/// Factors that no honest worker sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unexpected {
    /// The rank is 0 or larger than was declared.
    #[error("expected factors of rank 1 to {most}, got {got}")]
    Rank {
        /// The largest that was declared; 0: the tensor's contributions do not travel as factors.
        most: u32,
        /// What came.
        got: u32,
    },
    /// A piece that is not the next.
    #[error("expected bytes {at} to at most {end} of a right factor, got {length} from {got} on")]
    Piece {
        /// Where the next begins.
        at: usize,
        /// Where it ends at the latest.
        end: usize,
        /// Where the one that came begins.
        got: u64,
        /// Its bytes.
        length: usize,
    },
    /// Rows of a left factor whose right factor is not there.
    #[error("expected a right factor, of which {come} of {bytes} bytes have come, got rows of the left one")]
    Alone {
        /// Bytes of the right factor that are there.
        come: usize,
        /// Its bytes.
        bytes: usize,
    },
    /// Rows where they do not pay.
    #[error("expected at most {most} bytes of rows of a left factor, where factors pay, got {got}")]
    Longer {
        /// Most bytes.
        most: usize,
        /// What came.
        got: usize,
    },
    /// Not as many rows as the chunk has a part of.
    #[error("expected {expected} bytes of rows of a left factor, got {got}")]
    Rows {
        /// Their bytes.
        expected: usize,
        /// What came.
        got: usize,
    },
}

/// The right factor of a worker's contributions to a tensor, as it comes to a shard.
#[derive(Debug, Default)]
pub struct Held {
    rank: u32,
    /// Bytes that were taken.
    come: usize,
    /// It only grows, up to what was charged.
    bytes: Vec<u8>,
    /// Those that are of this one.
    length: usize,
}

impl Held {
    /// Judges a piece: where it goes. Nothing of it is there yet.
    pub fn expect(
        &self,
        low_rank: &LowRank,
        rank: u32,
        got: u64,
        length: usize,
    ) -> Result<Range<usize>, Unexpected> {
        if !(1..=low_rank.most).contains(&rank) {
            return Err(Unexpected::Rank { most: low_rank.most, got: rank });
        }
        let bytes = low_rank.right(rank);
        // A new one begins whatever was there.
        let at = if got > 0 && rank == self.rank { self.come } else { 0 };
        let end = (at + PIECE).min(bytes);
        if got == at as u64 && length > 0 && length <= end - at {
            return Ok(at..at + length);
        }
        Err(Unexpected::Piece { at, end, got, length })
    }

    /// Where a piece that was judged is received, the same bytes each time until [it has come](Self::came).
    pub fn receive(&mut self, low_rank: &LowRank, rank: u32, piece: Range<usize>) -> &mut [u8] {
        if piece.start == 0 {
            (self.rank, self.come, self.length) = (rank, 0, low_rank.right(rank));
            if self.bytes.capacity() < self.length {
                self.bytes.clear();
                self.bytes.reserve_exact(self.length);
            }
        }
        // Its memory is touched as it comes.
        if self.bytes.len() < piece.end {
            self.bytes.resize(piece.end, 0);
        }
        &mut self.bytes[piece]
    }

    /// The piece is there, verified.
    pub fn came(&mut self, piece: Range<usize>) {
        self.come = piece.end;
    }

    /// Judges rows of a left factor that come in place of these bytes of the tensor: their rank.
    pub fn expect_rows(&self, low_rank: &LowRank, bytes: Range<u64>, got: usize) -> Result<u32, Unexpected> {
        if self.length == 0 || self.come < self.length {
            return Err(Unexpected::Alone { come: self.come, bytes: self.length });
        }
        let rows = low_rank.rows(bytes.clone());
        let row = low_rank.left(self.rank);
        let expected = (rows.end - rows.start) as usize * row;
        if got != expected {
            return Err(Unexpected::Rows { expected, got });
        }
        let most = low_rank.longest((bytes.end - bytes.start) as usize, self.rank);
        if got > most { Err(Unexpected::Longer { most, got }) } else { Ok(self.rank) }
    }

    /// The factor, once [it is whole](Self::expect_rows).
    pub fn whole(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// The factor, if all of it has come and it has this rank.
    pub fn complete(&self, rank: u32) -> Option<&[u8]> {
        (self.length > 0 && self.come == self.length && self.rank == rank).then(|| self.whole())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const F32: Dtype = Dtype::F32;

    #[test]
    fn factors_pay_where_they_are_half_as_much_at_most_and_their_rank_was_declared() {
        let low_rank = LowRank { dtype: F32, columns: 100, most: 8 };
        let all = 0..100 * 100 * 4;
        assert!(low_rank.pays(8, all.clone(), 1, 1) && !low_rank.pays(9, all.clone(), 1, 1));
        assert!(!low_rank.pays(0, all.clone(), 1, 1));
        // 8 (s 100 + 100) elements of 5000 that are allowed.
        assert!(low_rank.pays(8, all.clone(), 5, 1) && !low_rank.pays(8, all.clone(), 6, 1));
        // Of 26 chunks 25 begin in the middle of a row, which goes with the one before as well.
        assert!(low_rank.pays(8, all.clone(), 5, 26) && !low_rank.pays(8, all, 5, 27));
    }

    #[test]
    fn pieces_are_taken_in_order_and_rows_once_all_are_there() {
        let low_rank = LowRank { dtype: F32, columns: 2000, most: 4 };
        let bytes = low_rank.right(4);
        assert_eq!((bytes, pieces(bytes)), (32_000, 2));
        let mut held = Held::default();
        let rows = 0..4 * 8192;
        let alone = Unexpected::Alone { come: 0, bytes: 0 };
        assert_eq!(held.expect_rows(&low_rank, rows.clone(), 32), Err(alone));
        assert_eq!(held.expect(&low_rank, 5, 0, 8), Err(Unexpected::Rank { most: 4, got: 5 }));
        assert_eq!(held.expect(&low_rank, 0, 0, 8), Err(Unexpected::Rank { most: 4, got: 0 }));
        assert!(held.expect(&low_rank, 4, 0, 0).is_err() && held.expect(&low_rank, 4, 0, PIECE + 1).is_err());
        assert!(held.expect(&low_rank, 4, PIECE as u64, 8).is_err(), "it is the second");
        for index in 0..2 {
            let range = piece(bytes, index);
            let judged = held.expect(&low_rank, 4, range.start as u64, range.len());
            assert_eq!(judged, Ok(range.clone()));
            // A connection that breaks meanwhile brings it again.
            held.receive(&low_rank, 4, range.clone()).fill(1);
            assert!(held.expect_rows(&low_rank, rows.clone(), 32).is_err());
            held.receive(&low_rank, 4, range.clone()).fill(7);
            held.came(range);
        }
        assert!(held.whole().iter().all(|&byte| byte == 7) && held.whole().len() == bytes);
        assert!(held.expect(&low_rank, 4, bytes as u64, 8).is_err(), "it is whole");
        assert!(held.expect(&low_rank, 3, PIECE as u64, 8).is_err(), "another begins at its beginning");
        let of_two_rows = 4 * 1500..4 * 2500;
        assert_eq!(held.expect_rows(&low_rank, of_two_rows.clone(), 32), Ok(4));
        assert_eq!(
            held.expect_rows(&low_rank, of_two_rows, 16),
            Err(Unexpected::Rows { expected: 32, got: 16 })
        );
        let thin = LowRank { columns: 2, ..low_rank };
        let longer = Unexpected::Longer { most: 2048 + 32, got: 512 * 16 };
        assert_eq!(held.expect_rows(&thin, 0..4096, 512 * 16), Err(longer), "it does not pay");
        let begun = piece(low_rank.right(2), 0);
        held.receive(&low_rank, 2, begun).fill(9);
        assert!(held.expect_rows(&low_rank, rows, 8).is_err(), "the next one is not whole");
    }

    proptest! {
        #[test]
        fn what_stands_in_an_extent_fits_it_where_it_pays_and_every_chunk_finds_its_rows(
            columns in 1_u64..5000, rows in 1_u64..200, rank in 1_u32..9, first in 0_u64..40, count in 1_u64..40,
        ) {
            let low_rank = LowRank { dtype: F32, columns, most: 8 };
            let bytes = columns * rows * 4;
            let (start, end) = (first * 4096, ((first + count) * 4096).min(bytes));
            prop_assume!(start < end && low_rank.pays(rank, start..end, 1, count));
            let standing = Standing { low_rank, rank, start };
            let mut last = standing.right().end;
            for chunk in (start..end).step_by(4096) {
                let chunk = chunk..(chunk + 4096).min(end);
                let left = standing.left(chunk.clone());
                let count = (chunk.end - 1) / (columns * 4) - chunk.start / (columns * 4) + 1;
                prop_assert_eq!(left.len() as u64, count * u64::from(rank) * 4);
                prop_assert!(left.start <= last && left.end >= last);
                let held = Held { rank, come: 1, bytes: Vec::new(), length: 1 };
                prop_assert_eq!(held.expect_rows(&low_rank, chunk, left.len()), Ok(rank));
                last = left.end;
            }
            prop_assert!(last as u64 <= end - start);
        }
    }
}
