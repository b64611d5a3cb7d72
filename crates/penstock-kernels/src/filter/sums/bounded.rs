//! The value-bounded filter: what is due of an element waits while it is within a bound (parameter-flow.md 3.3, equation 10).
//!
//! The bound may shrink with the contributor's clock (equation 11, with `t = clock + 1`), which is what makes training converge to
//! where it would have converged without it (Theorem 1). It is a number in units of what is pushed, or relative: a multiple of
//! the root mean square of what is due of the chunk, and at most seven eighths of the largest of it, so that something is always
//! sent. That is our addition: it fits gradients of any size, and of each layer.
//!
//! There may be two bounds, `low` and `up`: where the network presses the sender the bound goes from one to the other (section
//! 3.3.3). The paper knows the two ends; the steps between them are ours.

use super::split::{EVERYTHING, collect, split, spread};
use super::{Coordinates, Follows, Made, Pressure, SumFilter};
use crate::filter::spread::Spread;
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
    up: f64,
    decay: Decay,
    relative: bool,
    /// Bytes a second on each link that suffice; `None`: what counts is how much of the time goes to sending.
    sufficient: Option<f64>,
}

impl Bounded {
    /// What its settings are called.
    pub(in crate::filter) const SETTINGS: &[&str] = &["low", "decay", "relative", "up", "sufficient"];

    pub(super) fn make(dtype: Dtype, settings: &[f64]) -> Made {
        Ok(Self::new(dtype, settings)?.map(|filter| Arc::new(filter) as Arc<dyn SumFilter>))
    }

    pub(in crate::filter) fn of_values(dtype: Dtype, settings: &[f64]) -> filter::Made {
        Ok(Self::new(dtype, settings)?.map_or_else(Everything::shared, |filter| Arc::new(filter)))
    }

    /// `None` where nothing is ever held back.
    fn new(dtype: Dtype, settings: &[f64]) -> Result<Option<Self>, Unfit> {
        let [low, decay, relative, up, sufficient] = *settings else {
            return Err(Unfit::Setting { place: settings.len(), expected: "five settings" });
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
        if up < low {
            return unfit(3, "a number of at least `low`");
        }
        if sufficient < 0.0 {
            return unfit(4, "bytes a second, or 0 for none");
        }
        let sufficient = Some(sufficient).filter(|bytes| *bytes > 0.0);
        Ok((up > 0.0).then_some(Self { dtype, low, up, decay, relative, sufficient }))
    }

    /// What it follows, if its two bounds differ.
    fn followed(&self) -> Option<Follows> {
        (self.low < self.up).then(|| self.sufficient.map_or(Follows::Time, Follows::Bandwidth))
    }

    /// The bound, or what the root mean square is multiplied with; `None`: everything passes.
    fn bound(&self, at: Coordinates) -> Option<f64> {
        let bound = match at.pressure {
            Pressure::MOST => self.up,
            pressure => self.low + (self.up - self.low) * pressure.share(),
        };
        let bound = match self.decay {
            Decay::None => bound,
            Decay::Sqrt => bound / (at.clock as f64 + 1.0).sqrt(),
        };
        Some(bound).filter(|_| !self.passes_all(at.pressure))
    }
}

/// So many times their root mean square, but not so much that none of them is beyond it.
fn within(times: f64, Spread { root_mean_square, largest }: Spread) -> f64 {
    // Of the least numbers that there are seven eighths may be as much: these all pass.
    let most = if largest > f32::MIN_POSITIVE.into() { largest * 0.875 } else { 0.0 };
    let bound = times * root_mean_square;
    if bound > most { most } else { bound }
}

impl SumFilter for Bounded {
    fn follows(&self) -> Option<Follows> {
        self.followed()
    }

    fn passes_all(&self, pressure: Pressure) -> bool {
        self.low == 0.0 && pressure == Pressure::NONE
    }

    fn split(&self, at: Coordinates, sum: Foreign<'_>, sent: &mut ForeignMut<'_>, carry: &mut [u8]) {
        let Some(bound) = self.bound(at) else {
            return split(self.dtype, Some(sum), sent, carry, EVERYTHING);
        };
        if !self.relative {
            return split(self.dtype, Some(sum), sent, carry, bound);
        }
        collect(self.dtype, sum, carry);
        let bound = within(bound, spread(self.dtype, carry));
        split(self.dtype, None, sent, carry, bound);
    }
}

impl Filter for Bounded {
    fn follows(&self) -> Option<Follows> {
        self.followed()
    }

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
        let Some(bound) = self.bound(at) else { return held.copy_from_slice(value) };
        let bound = match self.relative {
            true => within(bound, difference::spread(self.dtype, value, held)),
            false => bound,
        };
        difference::pass(self.dtype, value, held, bound);
    }
}
