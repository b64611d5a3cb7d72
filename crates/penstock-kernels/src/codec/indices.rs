//! Where the elements of a span are that are sent, as gaps: for each of them, how many before it are not sent, since the last one
//! that is or the front of the span.
//!
//! Gaps go in blocks of 64, the last of which may be short: a byte says how many bits each gap of the block takes, the fewest that
//! hold its widest, and the gaps follow, the first from the lowest bit of the first byte on. Bits behind the last are 0. So a wide
//! gap costs no more than its block, and where all elements in a row are sent a block is its one byte.

use super::Undecodable;
use super::span::{Marks, SPAN, refused};
use crate::vector::{GROUP, Words};

/// Gaps of a block.
const BLOCK: usize = 64;
/// The most bits of a gap.
const WIDEST: usize = (SPAN - 1).ilog2() as usize + 1;
const _: () = assert!(4 * WIDEST + 7 < 64, "four gaps fit a word, wherever in a byte they begin");
/// What a block's bits take at most, and as much behind them as a load or store of a word may touch.
const ROOM: usize = BLOCK * WIDEST / 8 + 8;

/// Gives each block of gaps to `take`, until that has had enough. Returns whether it had all.
#[inline(always)]
fn blocks<W: Words>(marks: &Marks, mut take: impl FnMut(&[u16]) -> bool) -> bool {
    // In front of the numbers of elements the one before them, or what is one less than the first that there can be.
    let mut numbers = [0u16; 1 + 2 * BLOCK];
    numbers[0] = u16::MAX;
    let mut count = 0;
    for (first, &marks) in (0..).step_by(GROUP).zip(marks) {
        if marks == 0 {
            continue;
        }
        W::numbers(marks, first, numbers[1 + count..].first_chunk_mut().expect("room for a group's"));
        count += marks.count_ones() as usize;
        if count >= BLOCK {
            if !take(&gaps(&numbers, BLOCK)) {
                return false;
            }
            numbers.copy_within(BLOCK..=2 * BLOCK, 0);
            count -= BLOCK;
        }
    }
    count == 0 || take(&gaps(&numbers, count)[..count])
}

/// Between each of the first so many numbers and the one before it; 0 behind them.
#[inline(always)]
fn gaps(numbers: &[u16; 1 + 2 * BLOCK], count: usize) -> [u16; BLOCK] {
    std::array::from_fn(|at| {
        let gap = numbers[at + 1].wrapping_sub(numbers[at]).wrapping_sub(1);
        if at < count { gap } else { 0 }
    })
}

/// Bits that each of the gaps takes.
#[inline(always)]
fn width(gaps: &[u16]) -> usize {
    let all = gaps.iter().fold(0, |all, gap| all | gap);
    (u16::BITS - all.leading_zeros()) as usize
}

/// Bytes of a block's gaps.
#[inline(always)]
fn bytes_of(gaps: usize, width: usize) -> usize {
    (gaps * width).div_ceil(8)
}

/// Bytes of these, if they are fewer than `limit`.
#[inline(always)]
pub(super) fn bytes_below<W: Words>(marks: &Marks, limit: usize) -> Option<usize> {
    let mut bytes = 0;
    let all = blocks::<W>(marks, |gaps| {
        bytes += 1 + bytes_of(gaps.len(), width(gaps));
        bytes < limit
    });
    (all && bytes < limit).then_some(bytes)
}

/// Writes as many bytes as `out` has, which are [as many as these take](bytes_below).
#[inline(always)]
pub(super) fn write<W: Words>(marks: &Marks, mut out: &mut [u8]) {
    blocks::<W>(marks, |gaps| {
        let width = width(gaps);
        let block =
            out.split_off_mut(..1 + bytes_of(gaps.len(), width)).expect("as many bytes as were counted");
        block[0] = width as u8;
        let mut bits = [0; ROOM];
        let (mut word, mut bit) = (0u64, 0);
        let mut all = [0; BLOCK];
        all[..gaps.len()].copy_from_slice(gaps);
        for four in all.as_chunks::<4>().0 {
            // Four of them by themselves, and then to what is left of those before, which is less than a byte.
            let [a, b, c, d] = four.map(u64::from);
            let four = a | b << width | c << (2 * width) | d << (3 * width);
            word |= four << (bit % 8);
            bits[bit / 8..bit / 8 + 8].copy_from_slice(&word.to_le_bytes());
            let next = bit + 4 * width;
            word >>= 8 * (next / 8 - bit / 8);
            bit = next;
        }
        let rest = &mut block[1..];
        rest.copy_from_slice(&bits[..rest.len()]);
        true
    });
}

/// Reads what [`write`] wrote to the front of `payload`, which marks `count` of so many elements, and returns how many bytes that
/// were.
#[inline(always)]
pub(super) fn read(
    payload: &[u8],
    count: usize,
    elements: usize,
    marks: &mut Marks,
) -> Result<usize, Undecodable> {
    *marks = [0; SPAN / 64];
    let (mut at, mut left, mut next, mut last) = (0, count, 0, (0, 0));
    while left > 0 {
        let gaps = left.min(BLOCK);
        let Some(&width) = payload.get(at) else { return refused("blocks of gaps", at + 1, at) };
        let width = usize::from(width);
        if width > WIDEST {
            return refused("most bits of a gap", WIDEST, width);
        }
        let bytes = bytes_of(gaps, width);
        let Some(block) = payload.get(at + 1..at + 1 + bytes) else {
            return refused("bytes of gaps", at + 1 + bytes, payload.len());
        };
        let mut bits = [0; ROOM];
        bits[..bytes].copy_from_slice(block);
        let (mut all, mask) = (0, (1 << width) - 1);
        for first in (0..gaps).step_by(4) {
            let bit = first * width;
            let word = bits[bit / 8..].first_chunk::<8>().expect("room for a word behind the last bit");
            let word = u64::from_le_bytes(*word) >> (bit % 8);
            for gap in 0..4.min(gaps - first) {
                let gap = (word >> (gap * width)) as usize & mask;
                all |= gap;
                let place = next + gap;
                if place >= elements {
                    return refused("last element", elements - 1, place);
                }
                // Kept beside what is stored: a word that was just stored cannot be loaded again at once.
                let (word, bit) = (place / 64, 1 << (place % 64));
                last = (word, if word == last.0 { last.1 | bit } else { bit });
                marks[word] = last.1;
                next = place + 1;
            }
        }
        let fewest = (usize::BITS - all.leading_zeros()) as usize;
        if fewest != width {
            return refused("bits of a gap", fewest, width);
        }
        let used = gaps * width % 8;
        let behind = if used == 0 { 0 } else { block[bytes - 1] >> used };
        if behind != 0 {
            return refused("bits behind the last gap", 0, behind.into());
        }
        at += 1 + bytes;
        left -= gaps;
    }
    Ok(at)
}
