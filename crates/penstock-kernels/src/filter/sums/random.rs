//! Elements drawn at random: of each chunk a fraction, one from each of as many runs that are equally long (Random-k with memory).
//!
//! Who draws is told by seed, clock and place alone, so workers at the same clock draw the same elements, and their sum has no
//! more of them than each contribution.

use super::split::{EVERYTHING, send, split};
use super::{Coordinates, Made, SumFilter, count, fraction};
use crate::filter::{self, Everything, Filter, Unfit, difference};
use crate::{Dtype, Foreign, ForeignMut};
use std::sync::Arc;

/// The largest whole number below which each is a number of its own.
const MOST_SEED: f64 = 9_007_199_254_740_992.0;

/// Lets what is drawn pass.
#[derive(Clone, Copy, Debug)]
pub struct Random {
    dtype: Dtype,
    fraction: f64,
    seed: u64,
}

impl Random {
    pub(super) fn make(dtype: Dtype, settings: &[f64]) -> Made {
        Ok(Self::new(dtype, settings)?.map(|filter| Arc::new(filter) as Arc<dyn SumFilter>))
    }

    pub(in crate::filter) fn of_values(dtype: Dtype, settings: &[f64]) -> filter::Made {
        Ok(Self::new(dtype, settings)?.map_or_else(Everything::shared, |filter| Arc::new(filter)))
    }

    /// `None` where everything is sent.
    fn new(dtype: Dtype, settings: &[f64]) -> Result<Option<Self>, Unfit> {
        let [of, seed] = *settings else {
            return Err(Unfit::Setting { place: settings.len(), expected: "two settings" });
        };
        let fraction = fraction(0, of)?;
        if !(0.0..MOST_SEED).contains(&seed) || seed.fract() != 0.0 {
            return Err(Unfit::Setting { place: 1, expected: "a whole number from 0 to 2^53 - 1" });
        }
        let filter = Self { dtype, fraction, seed: seed as u64 };
        Ok((fraction < 1.0).then_some(filter))
    }

    /// The elements that are drawn of a chunk of so many, ascending.
    fn drawn(&self, at: Coordinates, elements: usize) -> impl Iterator<Item = usize> {
        let draws = if elements == 0 { 0 } else { count(elements, self.fraction) };
        let seed = mixed(mixed(mixed(self.seed) ^ at.clock) ^ at.first);
        let start = move |draw: usize| draw * elements / draws;
        (0..draws).map(move |draw| {
            let run = start(draw)..start(draw + 1);
            // Of 64 bits so little is lost that no run's first is seen to be likelier.
            run.start + ((u128::from(mixed(seed ^ draw as u64)) * run.len() as u128) >> 64) as usize
        })
    }
}

impl SumFilter for Random {
    fn split(&self, at: Coordinates, sum: Foreign<'_>, sent: &mut ForeignMut<'_>, carry: &mut [u8]) {
        split(self.dtype, Some(sum), sent, carry, f64::INFINITY);
        let elements = sum.len() / self.dtype.size();
        // What is not finite was sent with the others, and leaves nothing.
        let mut drawn = self.drawn(at, elements).map(|element| (element, EVERYTHING));
        send(self.dtype, &mut drawn, sent, carry);
    }
}

impl Filter for Random {
    fn passes(&self) -> u32 {
        2
    }

    fn next(&self, at: Coordinates, value: &[u8], held: &mut [u8]) {
        difference::pass(self.dtype, value, held, f64::INFINITY);
        let size = self.dtype.size();
        for element in self.drawn(at, value.len() / size) {
            let bytes = element * size..(element + 1) * size;
            held[bytes.clone()].copy_from_slice(&value[bytes]);
        }
    }
}

/// A number that looks like nothing else of its kind (SplitMix64's step).
fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
