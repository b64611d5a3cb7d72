//! Factors on their way down: what a home keeps of them until their update has gone out, and what a receiver keeps.
//!
//! Where all contributions to a step of a chunk came as factors, and these are half as long as the step's sum at most, the home's
//! [update](crate::update) of the chunk brings the rows of their left factors in place of the sum, in the order in which the home
//! summed the products. Whoever is sent it multiplies and sums as the home did, by the same kernels, to the same bits.
//!
//! A right factor goes to each receiver once a push and shard, in [pieces](super::PIECE) that are frames of their own, ahead of the
//! first update that [names](Named) it. A home keeps the last two of each worker, since what was folded with one may still be on its
//! way when the next has come; an update that names an older one is not sent any more. A receiver keeps the last that came of each.
//!
//! - **U-2** An update that names a right factor goes behind all of that, on the same connection, and whoever does not hold it whole
//!   refuses the update.
//!
//! Bytes down, for each receiver and step: of each worker its right factor and, with each chunk, the rows that the chunk has a part of,
//! and 16 bytes. Memory: at the home, for each shard and worker on another host, two more right factors and the rows of all chunks,
//! charged to that worker when it declares the tensor; at a receiver a right factor for each worker and shard.

use super::{Held, LowRank, PIECE, Unexpected};
use crate::Rank;
use std::collections::BTreeMap;
use std::ops::Range;

/// Right factors that a home keeps of each worker.
const KEPT: usize = 2;
/// Bytes in front of what an update tells of its factors: the scale of the sum, and how many there are.
const HEAD: usize = 2 * size_of::<u64>();
/// Bytes that tell of one of them: whose it is, its rank, and its turn.
const EACH: usize = 16;

/// By what a right factor is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named {
    /// Whose it is.
    pub writer: Rank,
    /// The how manieth of that worker's at its shard, from 1.
    pub turn: u64,
}

/// A right factor that is sent with an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needed {
    /// Which.
    pub name: Named,
    /// Its rank.
    pub rank: u32,
    /// Its bytes.
    pub bytes: usize,
}

/// What a home keeps of the factors of one tensor's contributions.
#[derive(Debug)]
pub struct Contributed {
    low_rank: LowRank,
    /// Chunks that are homed there.
    chunks: usize,
    /// By worker; of those that never sent any, nothing.
    of: Vec<Option<Box<Worker>>>,
}

/// One worker's.
#[derive(Debug)]
struct Worker {
    turn: u64,
    rights: [Right; KEPT],
    /// By chunk, as they are homed there.
    rows: Vec<Rows>,
}

#[derive(Debug, Default)]
struct Right {
    /// 0: none so far.
    turn: u64,
    rank: u32,
    bytes: Vec<u8>,
}

/// Rows of a left factor whose product stands in the lane.
#[derive(Debug, Default)]
struct Rows {
    /// Of the right factor that they were multiplied with; 0: something else stands there.
    turn: u64,
    rank: u32,
    bytes: Vec<u8>,
}

/// Bytes that a home keeps at most of the factors of one worker on another host, where its shards, so many, are home of so many bytes
/// and chunks.
pub fn bytes_kept(low_rank: &LowRank, bytes: u64, chunks: u64, shards: u64) -> u64 {
    let row = low_rank.left(low_rank.most) as u64;
    // A row goes with each chunk that has a part of it.
    let rows = bytes.div_ceil(low_rank.columns * low_rank.dtype.size() as u64) + 1 + chunks;
    // No more is let in of a chunk than half of it and two rows.
    let most = bytes / 2 + 2 * chunks * row;
    let left = (rows * row).min(most);
    let rights = shards.min(chunks) * (KEPT * low_rank.right(low_rank.most) + size_of::<Worker>()) as u64;
    rights + left + chunks * size_of::<Rows>() as u64
}

impl Contributed {
    /// Nothing so far, of a tensor of which so many chunks are homed here.
    pub fn new(low_rank: LowRank, chunks: usize, workers: u32) -> Self {
        Self { low_rank, chunks, of: (0..workers).map(|_| None).collect() }
    }

    /// A worker's next right factor is here, whole.
    pub fn came(&mut self, writer: Rank, rank: u32, bytes: &[u8]) {
        let chunks = self.chunks;
        let Some(worker) = self.of.get_mut(writer as usize) else { return };
        let worker = worker.get_or_insert_with(|| {
            let rows = (0..chunks).map(|_| Rows::default()).collect();
            Box::new(Worker { turn: 0, rights: Default::default(), rows })
        });
        worker.turn += 1;
        let right = &mut worker.rights[worker.turn as usize % KEPT];
        (right.turn, right.rank) = (worker.turn, rank);
        right.bytes.clear();
        // No more than is paid for.
        right.bytes.reserve_exact(bytes.len());
        right.bytes.extend_from_slice(bytes);
    }

    /// A worker has left, and pays for nothing any more: what of its contributions is not folded yet goes down as a sum.
    pub fn left(&mut self, writer: Rank) {
        if let Some(of) = self.of.get_mut(writer as usize) {
            *of = None;
        }
    }

    /// The product of these rows with the worker's last right factor stands in its lane of a chunk.
    pub fn multiplied(&mut self, writer: Rank, local: usize, rank: u32, rows: &[u8]) {
        let Some(Some(worker)) = self.of.get_mut(writer as usize) else { return };
        let Some(kept) = worker.rows.get_mut(local) else { return };
        (kept.turn, kept.rank) = (worker.turn, rank);
        kept.bytes.clear();
        kept.bytes.reserve_exact(rows.len());
        kept.bytes.extend_from_slice(rows);
    }

    /// Something else is put into the worker's lane of a chunk, or what stood there was folded.
    pub fn forget(&mut self, writer: Rank, local: usize) {
        if let Some(Some(worker)) = self.of.get_mut(writer as usize)
            && let Some(rows) = worker.rows.get_mut(local)
        {
            rows.turn = 0;
        }
    }

    /// What stands in these workers' lanes of a chunk, in this order, if all of it came as factors that are kept.
    pub fn of(&self, local: usize, writers: &[Rank]) -> Option<Factored<'_>> {
        let mut all = Vec::new();
        for &writer in writers {
            let worker = self.of.get(writer as usize)?.as_ref()?;
            let rows = worker.rows.get(local).filter(|rows| rows.turn > 0)?;
            let name = Named { writer, turn: rows.turn };
            self.find(name)?;
            all.push(Factor { name, rank: rows.rank, rows: &rows.bytes });
        }
        (!all.is_empty()).then_some(Factored { low_rank: self.low_rank, chunks: self.chunks, all })
    }

    /// A right factor, if it is kept.
    pub fn find(&self, name: Named) -> Option<&[u8]> {
        let worker = self.of.get(name.writer as usize)?.as_ref()?;
        let right = &worker.rights[name.turn as usize % KEPT];
        (name.turn > 0 && right.turn == name.turn).then_some(&right.bytes)
    }
}

/// One worker's part of a sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Factor<'a> {
    /// Its right factor.
    pub name: Named,
    /// The rank of both.
    pub rank: u32,
    /// The rows of the left one that the chunk has a part of.
    pub rows: &'a [u8],
}

/// All parts of a sum.
#[derive(Debug)]
pub struct Factored<'a> {
    low_rank: LowRank,
    chunks: usize,
    all: Vec<Factor<'a>>,
}

/// Ranks of all factors of a chunk that are multiplied at its receivers, at most: a core takes about as long for these as a link of
/// 1 Gbit/s takes for the sum.
const MOST_RANKS: u32 = 128;

impl Factored<'_> {
    /// Bytes that are sent of them with an update.
    fn length(&self) -> usize {
        HEAD + self.all.iter().map(|one| EACH + one.rows.len()).sum::<usize>()
    }

    /// Whether they are sent in place of a sum that is encoded in so many bytes: where they are half as many at most, each chunk with
    /// its part of the right factors. As on the way up, what is saved by less than that is spent on multiplying; and so it is of more
    /// than [`MOST_RANKS`] together.
    pub fn pays(&self, encoded: usize) -> bool {
        if self.all.iter().map(|one| one.rank).fold(0, u32::saturating_add) > MOST_RANKS {
            return false;
        }
        let rights: usize = self.all.iter().map(|one| self.low_rank.right(one.rank)).sum();
        2 * (self.length() + rights.div_ceil(self.chunks)) <= encoded
    }

    /// Puts them behind an update's prefix, with what their sum was scaled by.
    pub fn write(&self, scale: f64, payload: &mut Vec<u8>) {
        payload.extend_from_slice(&scale.to_le_bytes());
        payload.extend_from_slice(&(self.all.len() as u64).to_le_bytes());
        for Factor { name: Named { writer, turn }, rank, .. } in &self.all {
            payload.extend_from_slice(&writer.to_le_bytes());
            payload.extend_from_slice(&rank.to_le_bytes());
            payload.extend_from_slice(&turn.to_le_bytes());
        }
        self.all.iter().for_each(|one| payload.extend_from_slice(one.rows));
    }
}

/// Factors of an update that no honest home sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotFactored {
    /// Not even how many there are, or none.
    #[error("expected an update of factors, of which there is at least one, got {bytes} bytes")]
    Short {
        /// What came behind the update's prefix.
        bytes: usize,
    },
    /// They have another length than these ranks.
    #[error("expected {expected} bytes of {count} factors and their rows, got {got}")]
    Length {
        /// How many it says there are.
        count: u64,
        /// Their bytes.
        expected: usize,
        /// What came.
        got: usize,
    },
    /// They are not in the order of their workers, or there are two of one.
    #[error(
        "expected factors of each worker once, in the order of their ranks, got another one of worker {writer}"
    )]
    Order {
        /// The worker that comes too late.
        writer: Rank,
    },
    /// The rank is 0 or larger than was declared.
    #[error("expected factors of rank 1 to {most}, got {got}")]
    Rank {
        /// The largest that was declared.
        most: u32,
        /// What came.
        got: u32,
    },
    /// The right factor of one of them has not come (U-2).
    #[error("expected a right factor that has come, got number {} of worker {}", name.turn, name.writer)]
    Missing {
        /// Which.
        name: Named,
    },
}

/// What an update of factors tells of them, and their rows, behind that.
struct Table<'a> {
    scale: f64,
    each: &'a [[u8; EACH]],
    rows: &'a [u8],
}

impl<'a> Table<'a> {
    fn of(sum: &'a [u8]) -> Result<Self, NotFactored> {
        let short = NotFactored::Short { bytes: sum.len() };
        let (head, rest) = sum.split_at_checked(HEAD).ok_or(short)?;
        let [scale, count] = head.as_chunks::<8>().0 else { unreachable!("it has two words") };
        let (scale, count) = (f64::from_le_bytes(*scale), u64::from_le_bytes(*count));
        let most = rest.len() / EACH;
        let fits = usize::try_from(count).ok().filter(|count| (1..=most).contains(count));
        let expected = usize::try_from(count).unwrap_or(usize::MAX).saturating_mul(EACH);
        let length = NotFactored::Length { count, expected, got: rest.len() };
        let count = fits.ok_or(if most == 0 || count == 0 { short } else { length })?;
        let (each, rows) = rest.split_at(EACH * count);
        Ok(Self { scale, each: each.as_chunks().0, rows })
    }

    /// Of each its right factor, and the rank of both.
    fn told(&self) -> impl Iterator<Item = (Named, u32)> + use<'a> {
        self.each.iter().map(Self::one)
    }

    fn one(told: &[u8; EACH]) -> (Named, u32) {
        let word = |at: usize| u32::from_le_bytes(*told[at..].first_chunk().expect("it has sixteen bytes"));
        let turn = u64::from_le_bytes(*told[8..].first_chunk().expect("it has sixteen bytes"));
        (Named { writer: word(0), turn }, word(4))
    }
}

/// The right factor that comes at this place among those that a home's own update names, behind its prefix.
pub fn needed(low_rank: &LowRank, sum: &[u8], place: usize) -> Option<Needed> {
    let (name, rank) = Table::one(Table::of(sum).ok()?.each.get(place)?);
    Some(Needed { name, rank, bytes: low_rank.right(rank) })
}

/// Factors of an update, as they have come: what their sum is scaled by, and each of them, in the order of the sum.
#[derive(Debug)]
pub struct Products<'a> {
    /// The factor on the sum.
    pub scale: f64,
    /// Of which tensor.
    pub low_rank: LowRank,
    /// Where the chunk begins in the first of the rows.
    pub column: usize,
    /// The rank, the rows of the left factor, and the right one.
    pub all: Vec<(u32, &'a [u8], &'a [u8])>,
}

/// Right factors of a tensor's contributions, as they come to who is sent updates.
#[derive(Debug, Default)]
pub struct Shown {
    of: BTreeMap<Rank, (u64, Held)>,
}

impl Shown {
    /// A new connection: what comes is sent again.
    pub fn connect(&mut self) {
        self.of.values_mut().for_each(|(turn, _)| *turn = 0);
    }

    /// A piece has come of a right factor, of a worker of the job.
    pub fn come(
        &mut self,
        low_rank: &LowRank,
        Named { writer, turn }: Named,
        rank: u32,
        at: u64,
        piece: &[u8],
    ) -> Result<(), Unexpected> {
        let (known, held) = self.of.entry(writer).or_default();
        if turn == 0 || at > 0 && *known != turn {
            let end = PIECE.min(low_rank.right(rank.min(low_rank.most)));
            return Err(Unexpected::Piece { at: 0, end, got: at, length: piece.len() });
        }
        let range = held.expect(low_rank, rank, at, piece.len())?;
        *known = turn;
        held.receive(low_rank, rank, range.clone()).copy_from_slice(piece);
        held.came(range);
        Ok(())
    }

    /// Takes apart what an update brings behind its prefix, of a chunk that is these bytes of the tensor.
    pub fn products<'a>(
        &'a self,
        low_rank: &LowRank,
        chunk: Range<u64>,
        sum: &'a [u8],
    ) -> Result<Products<'a>, NotFactored> {
        let table = Table::of(sum)?;
        let mut rows = table.rows;
        let lines = low_rank.rows(chunk.clone());
        let lines = (lines.end - lines.start) as usize;
        let mut expected = 0_usize;
        let mut last = None;
        for (Named { writer, .. }, rank) in table.told() {
            // The order of the home's sum; and none twice, so that there are no more than workers.
            if last.replace(writer).is_some_and(|last| writer <= last) {
                return Err(NotFactored::Order { writer });
            }
            if !(1..=low_rank.most).contains(&rank) {
                return Err(NotFactored::Rank { most: low_rank.most, got: rank });
            }
            expected = expected.saturating_add(lines.saturating_mul(low_rank.left(rank)));
        }
        if rows.len() != expected {
            let before = table.each.as_flattened().len();
            let (expected, got) = (before.saturating_add(expected), before + rows.len());
            return Err(NotFactored::Length { count: table.each.len() as u64, expected, got });
        }
        let mut all = Vec::new();
        for (name, rank) in table.told() {
            let right = self.find(name, rank).ok_or(NotFactored::Missing { name })?;
            let (its, behind) = rows.split_at(lines * low_rank.left(rank));
            all.push((rank, its, right));
            rows = behind;
        }
        Ok(Products { scale: table.scale, low_rank: *low_rank, column: low_rank.column(chunk.start), all })
    }

    fn find(&self, Named { writer, turn }: Named, rank: u32) -> Option<&[u8]> {
        let (known, held) = self.of.get(&writer)?;
        (turn > 0 && *known == turn).then(|| held.complete(rank)).flatten()
    }
}

/// Right factors that a subscriber was sent on its connection: of each worker the last, and how much of it.
#[derive(Debug, Default)]
pub struct Told(BTreeMap<Rank, (u64, usize)>);

impl Told {
    /// A new connection.
    pub fn connect(&mut self) {
        self.0.clear();
    }

    /// Where the next piece of this one begins, unless all of it was sent; this call counts it as sent.
    pub fn next(&mut self, Needed { name: Named { writer, turn }, bytes, .. }: Needed) -> Option<usize> {
        let (known, sent) = self.0.entry(writer).or_default();
        if *known != turn {
            (*known, *sent) = (turn, 0);
        }
        let at = *sent;
        *sent = (at + PIECE).min(bytes);
        (at < bytes).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{piece, pieces};
    use super::*;
    use penstock_kernels::Dtype;

    /// A matrix of 64 columns; a chunk of 4096 bytes is 16 rows.
    const LOW: LowRank = LowRank { dtype: Dtype::F32, columns: 64, most: 4 };
    const CHUNK: usize = 4096;

    fn right(rank: u32, with: u8) -> Vec<u8> {
        vec![with; LOW.right(rank)]
    }

    fn rows(rank: u32, with: u8) -> Vec<u8> {
        vec![with; 16 * LOW.left(rank)]
    }

    /// Two workers' factors of the second of ten chunks.
    fn contributed() -> Contributed {
        let mut contributed = Contributed::new(LOW, 10, 3);
        for (writer, rank, with) in [(0, 1, 3), (2, 2, 5)] {
            contributed.came(writer, rank, &right(rank, with));
            contributed.multiplied(writer, 1, rank, &rows(rank, with));
        }
        contributed
    }

    fn written(contributed: &Contributed, writers: &[Rank]) -> Vec<u8> {
        let mut payload = Vec::new();
        contributed.of(1, writers).unwrap().write(0.5, &mut payload);
        payload
    }

    #[test]
    fn a_sum_is_of_factors_where_all_of_it_came_as_factors_that_are_kept() {
        let mut contributed = contributed();
        assert!(contributed.of(1, &[0, 2]).is_some() && contributed.of(1, &[2]).is_some());
        assert!(contributed.of(1, &[]).is_none(), "there is nothing to sum");
        assert!(contributed.of(1, &[0, 1, 2]).is_none(), "one pushed something else");
        assert!(contributed.of(0, &[0, 2]).is_none() && contributed.of(99, &[0]).is_none());
        contributed.forget(2, 1);
        assert!(contributed.of(1, &[0, 2]).is_none(), "something else stands there now");
        // The last two are kept.
        let first = Named { writer: 0, turn: 1 };
        contributed.came(0, 1, &right(1, 9));
        assert!(contributed.of(1, &[0]).is_some() && contributed.find(first) == Some(&right(1, 3)));
        contributed.came(0, 2, &right(2, 8));
        assert!(contributed.of(1, &[0]).is_none() && contributed.find(first).is_none());
        assert_eq!(contributed.find(Named { writer: 0, turn: 3 }), Some(&right(2, 8)[..]));
        assert!(contributed.find(Named { writer: 0, turn: 0 }).is_none());
        assert!(contributed.find(Named { writer: 7, turn: 1 }).is_none());
    }

    #[test]
    fn factors_pay_where_they_and_their_part_of_the_right_ones_are_half_as_long_as_the_sum() {
        let contributed = contributed();
        let factored = contributed.of(1, &[0, 2]).unwrap();
        // Rows of ranks 1 and 2, what tells of them, and a tenth of both right factors, which have 256 bytes for each rank.
        let cost = 16 + 2 * 16 + 16 * 4 * 3 + (3_usize * 256).div_ceil(10);
        assert!(factored.pays(2 * cost) && !factored.pays(2 * cost - 1));
        let mut payload = Vec::new();
        factored.write(1.0, &mut payload);
        assert_eq!(payload.len(), factored.length());
    }

    #[test]
    fn who_is_sent_them_finds_them_as_they_were_kept_once_their_right_factors_are_whole() {
        let contributed = contributed();
        let payload = written(&contributed, &[0, 2]);
        let chunk = CHUNK as u64..2 * CHUNK as u64;
        let (mut told, mut shown) = (Told::default(), Shown::default());
        for place in 0.. {
            let Some(needed) = needed(&LOW, &payload, place) else {
                assert_eq!(place, 2);
                break;
            };
            let missing = shown.products(&LOW, chunk.clone(), &payload).map(|_| ()).unwrap_err();
            assert_eq!(missing, NotFactored::Missing { name: needed.name });
            let whole = contributed.find(needed.name).unwrap();
            assert_eq!(whole.len(), needed.bytes);
            while let Some(at) = told.next(needed) {
                let part = &whole[at..(at + PIECE).min(whole.len())];
                shown.come(&LOW, needed.name, needed.rank, at as u64, part).unwrap();
            }
            assert_eq!(told.next(needed), None, "it goes once");
        }
        let came = shown.products(&LOW, chunk.clone(), &payload).unwrap();
        assert_eq!((came.scale, came.column, came.all.len()), (0.5, 0, 2));
        let (its, other) = (came.all[0], came.all[1]);
        assert_eq!(its, (1, &rows(1, 3)[..], &right(1, 3)[..]));
        assert_eq!(other, (2, &rows(2, 5)[..], &right(2, 5)[..]));
        // On another connection all is sent again.
        shown.connect();
        told.connect();
        assert!(shown.products(&LOW, chunk, &payload).is_err());
        assert_eq!(told.next(needed(&LOW, &payload, 0).unwrap()), Some(0));
    }

    /// U-2.
    #[test]
    fn factors_that_are_not_those_of_the_update_are_refused() {
        let contributed = contributed();
        let payload = written(&contributed, &[0, 2]);
        let chunk = CHUNK as u64..2 * CHUNK as u64;
        let mut shown = Shown::default();
        for (writer, rank, with) in [(0, 1, 3), (2, 2, 5)] {
            shown.come(&LOW, Named { writer, turn: 1 }, rank, 0, &right(rank, with)).unwrap();
        }
        let refused = |shown: &Shown, payload: &[u8]| shown.products(&LOW, chunk.clone(), payload).err();
        assert_eq!(refused(&shown, &payload), None);
        for length in [0, 15, 16, 31] {
            let short = Some(NotFactored::Short { bytes: length });
            assert_eq!(refused(&shown, &payload[..length]), short, "{length}");
        }
        let changed = |at: usize, with: u8| {
            let mut payload = payload.clone();
            payload[at] = with;
            payload
        };
        assert_eq!(refused(&shown, &changed(8, 0)), Some(NotFactored::Short { bytes: payload.len() }));
        let length = |count, expected| NotFactored::Length { count, expected, got: payload.len() - HEAD };
        let one = 16 + 16 * 4;
        assert_eq!(refused(&shown, &changed(8, 1)), Some(length(1, one)));
        assert_eq!(refused(&shown, &changed(8, 99)), Some(length(99, 99 * 16)));
        assert!(matches!(refused(&shown, &changed(15, 0xff)), Some(NotFactored::Length { .. })));
        let rank = |got| Some(NotFactored::Rank { most: 4, got });
        assert_eq!((refused(&shown, &changed(20, 0)), refused(&shown, &changed(20, 5))), (rank(0), rank(5)));
        for (at, with, writer, turn) in [(16, 1, 1, 1), (24, 2, 0, 2), (24, 0, 0, 0)] {
            let name = Named { writer, turn };
            assert_eq!(refused(&shown, &changed(at, with)), Some(NotFactored::Missing { name }));
        }
        // One that is replaced, in part or whole, or of another rank.
        shown.come(&LOW, Named { writer: 0, turn: 2 }, 1, 0, &right(1, 3)[..100]).unwrap();
        assert_eq!(
            refused(&shown, &payload),
            Some(NotFactored::Missing { name: Named { writer: 0, turn: 1 } })
        );
        assert!(shown.come(&LOW, Named { writer: 0, turn: 1 }, 1, 100, &right(1, 3)[100..]).is_err());
        shown.come(&LOW, Named { writer: 0, turn: 2 }, 1, 100, &right(1, 3)[100..]).unwrap();
        assert_eq!(refused(&shown, &changed(24, 2)), None);
        shown.come(&LOW, Named { writer: 0, turn: 1 }, 2, 0, &right(2, 3)).unwrap();
        assert_eq!(
            refused(&shown, &payload),
            Some(NotFactored::Missing { name: Named { writer: 0, turn: 1 } })
        );
        for (rank, at, bytes) in [(0, 0, 8), (5, 0, 8), (1, 0, 0), (1, 0, 257), (1, 8, 8)] {
            let piece = vec![0; bytes];
            assert!(shown.come(&LOW, Named { writer: 1, turn: 1 }, rank, at, &piece).is_err(), "{rank} {at}");
        }
    }

    #[test]
    fn a_right_factor_of_several_pieces_goes_in_order_and_begins_anew_where_another_is_named() {
        let wide = LowRank { columns: 3000, ..LOW };
        let needed = |turn| Needed { name: Named { writer: 1, turn }, rank: 4, bytes: wide.right(4) };
        let mut told = Told::default();
        let all: Vec<usize> = std::iter::from_fn(|| told.next(needed(1))).collect();
        let expected: Vec<usize> = (0..pieces(48_000)).map(|index| piece(48_000, index).start).collect();
        assert_eq!((all, expected.len()), (expected, 3));
        assert_eq!(
            [told.next(needed(2)), told.next(needed(1)), told.next(needed(1))],
            [Some(0), Some(0), Some(PIECE)]
        );
    }
}
