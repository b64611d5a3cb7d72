//! The largest elements: of each chunk a fraction, by magnitude (Top-k with memory; Stich, Cordonnier, Jaggi 2018).
//!
//! Of elements that are equally large those that come first are sent. Where there are fewer that are not 0 than may be sent, those
//! are sent.

use super::split::{collect, send, split};
use super::{Coordinates, Made, SumFilter, count, fraction};
use crate::{Dtype, Foreign, ForeignMut};
use std::sync::Arc;

/// Lets the largest pass.
#[derive(Clone, Copy, Debug)]
pub struct Top {
    dtype: Dtype,
    fraction: f64,
}

impl Top {
    pub(super) fn make(dtype: Dtype, settings: &[f64]) -> Made {
        let fraction = fraction(0, settings.first().copied().unwrap_or(f64::NAN))?;
        Ok((fraction < 1.0).then(|| Arc::new(Self { dtype, fraction }) as Arc<dyn SumFilter>))
    }
}

impl SumFilter for Top {
    fn split(&self, _: Coordinates, sum: Foreign<'_>, sent: &mut ForeignMut<'_>, carry: &mut [u8]) {
        collect(self.dtype, sum, carry);
        let elements = sum.len() / self.dtype.size();
        if elements == 0 {
            return;
        }
        let wanted = count(elements, self.fraction);
        match self.dtype.accumulator_size() {
            8 => {
                let key = |word| u64::from_le_bytes(word) << 1 >> 1;
                self.send_top::<8>(wanted, key, f64::from_bits, sent, carry);
            }
            _ => {
                let key = |word| u64::from(u32::from_le_bytes(word) << 1 >> 1);
                self.send_top::<4>(wanted, key, |key| f32::from_bits(key as u32).into(), sent, carry);
            }
        }
    }
}

/// Elements that a part of a chunk begins at a multiple of: whatever their type, it is aligned.
const BLOCK: usize = 64;

impl Top {
    /// Sends the `wanted` largest of what is due, all of which stands in `carry`. The order of keys is that of magnitudes; NaN comes
    /// above infinity.
    fn send_top<const BYTES: usize>(
        &self,
        wanted: usize,
        key: impl Fn([u8; BYTES]) -> u64 + Copy,
        number: impl Fn(u64) -> f64,
        sent: &mut ForeignMut<'_>,
        carry: &mut [u8],
    ) {
        let keys = || carry.as_chunks::<BYTES>().0.iter().map(|&word| key(word));
        let Found { least, above } = find(keys, 8 * BYTES as u32, wanted);
        // Those beyond the least of them. As a limit, NaN would let all pass.
        let limit = number(least);
        if least == 0 || !limit.is_finite() {
            let limit = if limit.is_finite() { limit } else { f64::INFINITY };
            return split(self.dtype, None, sent, carry, limit);
        }
        // Of the equal ones the first, as many as are still wanted: before `end` all that are as large are sent. It is decided before
        // anything is: what rounding leaves of an element may be as large as they are.
        let mut equal = keys().enumerate().filter(|(_, key)| *key == least);
        let end = equal.nth(wanted - above - 1).map_or(0, |(at, _)| at + 1);
        let below = number(least - 1);
        let elements = carry.len() / BYTES;
        let (first, second) = (end / BLOCK * BLOCK, (end.next_multiple_of(BLOCK)).min(elements));
        let size = self.dtype.size();
        for (part, limit) in [(0..first, below), (first..second, limit), (second..elements, limit)] {
            let mut sent = sent.part(part.start * size..part.end * size);
            let carry = &mut carry[part.start * BYTES..part.end * BYTES];
            if part.start < end && limit != below {
                // Both kinds of limits in one block: zeros first.
                let mut due = [0; 8 * BLOCK];
                let due = &mut due[..carry.len()];
                due.copy_from_slice(carry);
                split(self.dtype, None, &mut sent, carry, f64::INFINITY);
                carry.copy_from_slice(due);
                let mut each = part.clone().map(|at| (at - part.start, if at < end { below } else { limit }));
                send(self.dtype, &mut each, &mut sent, carry);
            } else {
                split(self.dtype, None, &mut sent, carry, limit);
            }
        }
    }
}

/// The `wanted`-largest key.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    least: u64,
    /// Keys above it.
    above: usize,
}

/// Bits that one look at all keys decides.
const DIGIT: u32 = 11;

/// The `wanted`-largest of keys of so many bits, digit by digit from the top: each look counts the keys that agree with what is
/// known.
fn find<I: Iterator<Item = u64>>(keys: impl Fn() -> I, bits: u32, wanted: usize) -> Found {
    let (mut prefix, mut above, mut undecided) = (0, 0, bits);
    while undecided > 0 {
        let width = DIGIT.min(undecided);
        let shift = undecided - width;
        let mut counts = [0_u32; 1 << DIGIT];
        for key in keys() {
            if undecided == bits || key >> undecided == prefix {
                counts[(key >> shift) as usize & ((1 << width) - 1)] += 1;
            }
        }
        let mut digit = (1 << width) - 1;
        while digit > 0 && above + (counts[digit] as usize) < wanted {
            above += counts[digit] as usize;
            digit -= 1;
        }
        prefix = prefix << width | digit as u64;
        undecided = shift;
    }
    Found { least: prefix, above }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_wanted_largest_is_found_among_keys_of_any_width(
            bits in prop::sample::select(&[32_u32, 64, 31]),
            keys in prop::collection::vec(any::<u64>(), 1..200),
            same in prop::collection::vec(any::<prop::sample::Index>(), 0..50),
            wanted in any::<prop::sample::Index>(),
        ) {
            let mut keys: Vec<u64> = keys.into_iter().map(|key| key >> (64 - bits)).collect();
            let again: Vec<u64> = same.iter().map(|at| *at.get(&keys)).collect();
            keys.extend(again);
            let wanted = wanted.index(keys.len()) + 1;
            let found = find(|| keys.iter().copied(), bits, wanted);
            keys.sort_unstable_by(|a, b| b.cmp(a));
            let least = keys[wanted - 1];
            let above = keys.iter().filter(|&&key| key > least).count();
            prop_assert_eq!(found, Found { least, above });
        }
    }
}
