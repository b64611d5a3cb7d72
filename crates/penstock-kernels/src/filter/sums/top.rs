//! The largest elements: of each chunk a fraction, by magnitude (Top-k with memory; Stich, Cordonnier, Jaggi 2018).
//!
//! Of elements that are equally large those that come first are sent. Where there are fewer that are not 0 than may be sent, those
//! are sent.

use super::split::{collect, send, split};
use super::{Coordinates, Made, SumFilter, count, fraction};
use crate::filter::difference::{Found, find, looks, pass_top};
use crate::filter::{self, Everything, Filter, Unfit};
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
        Ok(Self::new(dtype, settings)?.map(|filter| Arc::new(filter) as Arc<dyn SumFilter>))
    }

    pub(in crate::filter) fn of_values(dtype: Dtype, settings: &[f64]) -> filter::Made {
        Ok(Self::new(dtype, settings)?.map_or_else(Everything::shared, |filter| Arc::new(filter)))
    }

    /// `None` where everything is sent.
    fn new(dtype: Dtype, settings: &[f64]) -> Result<Option<Self>, Unfit> {
        let fraction = fraction(0, settings.first().copied().unwrap_or(f64::NAN))?;
        Ok((fraction < 1.0).then_some(Self { dtype, fraction }))
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

impl Filter for Top {
    fn passes(&self) -> u32 {
        // Counting by digits is nothing that vectors can do.
        2 * looks(8 * self.dtype.accumulator_size() as u32) + 1
    }

    fn next(&self, _: Coordinates, value: &[u8], held: &mut [u8]) {
        let elements = value.len() / self.dtype.size();
        if elements > 0 {
            pass_top(self.dtype, value, held, count(elements, self.fraction));
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
