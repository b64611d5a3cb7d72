//! The value-bounded filter: what is due of an element waits while it is within a bound (parameter-flow.md 3.3, equation 10).
//!
//! The bound may shrink with the contributor's clock (equation 11, with `t = clock + 1`), which is what makes training converge to
//! where it would have converged without it (Theorem 1). It is a number in units of what is pushed, or relative: a multiple of
//! the root mean square of what is due of the chunk. That is our addition: it fits gradients of any size, and of each layer.

use super::split::{collect, root_mean_square, split};
use super::{Coordinates, Made, SumFilter};
use crate::filter::{self, Everything, Filter, Unfit, difference};
use crate::{Dtype, Foreign, ForeignMut};
use std::sync::Arc;

/// How the bound changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decay {
    /// Not.
    None,
    /// With the square root of the clock.
    Sqrt,
}

/// Lets what is beyond a bound pass.
#[derive(Clone, Copy, Debug)]
pub struct Bounded {
    dtype: Dtype,
    low: f64,
    decay: Decay,
    relative: bool,
}

impl Bounded {
    pub(super) fn make(dtype: Dtype, settings: &[f64]) -> Made {
        Ok(Self::new(dtype, settings)?.map(|filter| Arc::new(filter) as Arc<dyn SumFilter>))
    }

    pub(in crate::filter) fn of_values(dtype: Dtype, settings: &[f64]) -> filter::Made {
        Ok(Self::new(dtype, settings)?.map_or_else(Everything::shared, |filter| Arc::new(filter)))
    }

    /// `None` where nothing is ever held back.
    fn new(dtype: Dtype, settings: &[f64]) -> Result<Option<Self>, Unfit> {
        let [low, decay, relative] = *settings else {
            return Err(Unfit::Setting { place: settings.len(), expected: "three settings" });
        };
        let unfit = |place, expected| Err(Unfit::Setting { place, expected });
        if low < 0.0 {
            return unfit(0, "a number of at least 0");
        }
        let decay = match decay {
            0.0 => Decay::None,
            1.0 => Decay::Sqrt,
            _ => return unfit(1, "0 (none) or 1 (sqrt)"),
        };
        let relative = match relative {
            0.0 => false,
            1.0 => true,
            _ => return unfit(2, "0 (absolute) or 1 (relative)"),
        };
        Ok((low > 0.0).then_some(Self { dtype, low, decay, relative }))
    }

    /// The bound, or what the root mean square is multiplied with.
    fn low_at(&self, clock: u64) -> f64 {
        match self.decay {
            Decay::None => self.low,
            Decay::Sqrt => self.low / (clock as f64 + 1.0).sqrt(),
        }
    }
}

impl SumFilter for Bounded {
    fn split(&self, at: Coordinates, sum: Foreign<'_>, sent: &mut ForeignMut<'_>, carry: &mut [u8]) {
        let low = self.low_at(at.clock);
        if !self.relative {
            return split(self.dtype, Some(sum), sent, carry, low);
        }
        collect(self.dtype, sum, carry);
        let bound = low * root_mean_square(self.dtype, carry);
        split(self.dtype, None, sent, carry, bound);
    }
}

impl Filter for Bounded {
    fn passes(&self) -> u32 {
        1 + u32::from(self.relative)
    }

    /// Where the bound is half of what it was: so nothing is further behind than twice the bound.
    fn again_at(&self, clock: u64) -> Option<u64> {
        match self.decay {
            Decay::None => None,
            Decay::Sqrt => Some(clock.saturating_add(1).saturating_mul(4) - 1),
        }
    }

    fn next(&self, at: Coordinates, value: &[u8], held: &mut [u8]) {
        let low = self.low_at(at.clock);
        let bound = match self.relative {
            true => low * difference::root_mean_square(self.dtype, value, held),
            false => low,
        };
        difference::pass(self.dtype, value, held, bound);
    }
}
