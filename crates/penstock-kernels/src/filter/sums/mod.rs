//! Filters of sums: what of a contribution is sent now, and what is carried into the next.
//!
//! A contribution is a fresh sum, so nobody holds an earlier one that could be compared with it. What is *due* is the
//! contribution and what was carried: `due = sum + carry` (parameter-flow.md, equation 6). The filter chooses elements; a chosen
//! one is sent and carried no longer, and one that is not chosen reads 0 in what is sent, and is carried. Or all are sent, each
//! rounded, and what that cuts off is carried. So what was sent and what is carried, together, are what was computed: nothing is
//! lost, and nothing counts twice.
//!
//! | file | which elements are sent |
//! |---|---|
//! | `bounded.rs` | those beyond a bound |
//! | `top.rs` | the largest |
//! | `random.rs` | some, drawn at random |
//! | `quantize.rs` | all, each rounded to a number that takes few bits |
//! | `own.rs` | those that a program says |
//! | `split.rs` | the arithmetic that they share |
//!
//! - **Exact where there is nothing to round.** For float32 and float64 what is sent of an element that was chosen is all that is
//!   due of it. Half precision is carried in float32, and what rounding cuts off is carried too, whoever rounds.
//! - **An empty carry changes no bit**: it is -0.0, the number that leaves every other as it is, -0.0 among them.
//! - **What is not finite is sent.** A NaN that was carried would swallow all that comes after it.
//! - **Each chunk for itself**, so that it depends neither on what else is sent nor on who sends it: the largest are the largest of
//!   a chunk.
//!
//! A new filter is a file here and a row of [`ALL`].

mod bounded;
mod own;
mod quantize;
mod random;
mod split;
mod top;

pub use super::{Coordinates, Follows, Pressure};
pub use bounded::Bounded;
pub use own::Own;
pub use quantize::Quantize;
pub(in crate::filter) use quantize::held_threshold;
pub use random::Random;
#[cfg(test)]
pub(crate) use split::split_on;
pub use split::{HeldBack, collect, empty, held_back, release};
pub use top::Top;

use super::Unfit;
use crate::{Dtype, Foreign, ForeignMut};
use std::fmt;
use std::sync::Arc;

/// A filter of sums, `None` where it would never hold anything back; or why there is none.
pub type Made = Result<Option<Arc<dyn SumFilter>>, Unfit>;

/// A filter of sums, and how declarations name it.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its number, which no other filter is ever given.
    pub number: u8,
    /// What people call it.
    pub name: &'static str,
    /// What people call its settings, in their order: at most [`SETTINGS`](super::SETTINGS).
    pub settings: &'static [&'static str],
    /// Makes it for chunks of such elements, with as many settings as it has: once for each tensor.
    pub make: fn(Dtype, &[f64]) -> Made,
}

/// Every filter of sums that there is.
pub const ALL: &[Entry] = &[
    Entry { number: 0, name: "everything", settings: &[], make: |_, _| Ok(None) },
    Entry { number: 1, name: "DVF", settings: Bounded::SETTINGS, make: Bounded::make },
    Entry { number: 2, name: "TopK", settings: &["fraction"], make: Top::make },
    Entry { number: 3, name: "RandomK", settings: &["fraction", "seed"], make: Random::make },
    Entry { number: 4, name: "Quantize f16", settings: &[], make: Quantize::f16 },
    Entry { number: 5, name: "Quantize bf16", settings: &[], make: Quantize::bf16 },
    Entry { number: 6, name: "Quantize int8", settings: &[], make: Quantize::int8 },
    Entry { number: 7, name: "Quantize 2bit", settings: &["threshold"], make: Quantize::two_bits },
    Entry { number: 8, name: "Quantize 1bit", settings: &[], make: Quantize::one_bit },
    Entry { number: 9, name: "Own", settings: &["which"], make: Own::make },
];

/// Splits sums. Slices in, slices out: no allocation, no waiting.
pub trait SumFilter: fmt::Debug + Send + Sync {
    /// The number of the [`codec`](crate::codec) that makes what it sends shortest. `None`: the one for elements that are mostly 0.
    fn codec(&self) -> Option<u8> {
        None
    }

    /// What of the network it follows; `None`: nothing.
    fn follows(&self) -> Option<Follows> {
        None
    }

    /// Whether it holds nothing back at this pressure but what rounding cuts off, whatever is due.
    fn passes_all(&self, _pressure: Pressure) -> bool {
        false
    }

    /// Of what is due of a chunk, `sum` and `carry`, writes into `sent` what is sent now, 0 where nothing is, and leaves the rest in
    /// `carry`. `sum` and `sent` may be the same memory, and others may look at it; `sent` is not read.
    ///
    /// `carry` has the dtype's accumulator for each element; an empty one is as [`empty`] left it.
    ///
    /// For callers that are [`settled`](crate::settled): how many elements are sent, and beyond which bound, is worked out here, and
    /// must come out the same on every worker.
    ///
    /// # Panics
    ///
    /// If they do not have as many elements.
    fn split(&self, at: Coordinates, sum: Foreign<'_>, sent: &mut ForeignMut<'_>, carry: &mut [u8]);
}

/// A fraction that may be sent: above 0, at most 1.
fn fraction(place: usize, fraction: f64) -> Result<f64, Unfit> {
    match fraction > 0.0 && fraction <= 1.0 {
        true => Ok(fraction),
        false => Err(Unfit::Setting { place, expected: "a number above 0 and at most 1" }),
    }
}

/// Elements of `elements` that are sent where a fraction of them is: at least one.
fn count(elements: usize, fraction: f64) -> usize {
    ((elements as f64 * fraction).round() as usize).clamp(1, elements.max(1))
}
