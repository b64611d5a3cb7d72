//! Filters: what of a chunk travels now, and what waits.
//!
//! A sender knows what all its receivers hold, and a filter decides what they are to hold next. The difference between that
//! and the value is what waits: it is carried over by construction. A filter runs once for each publication of a chunk that has
//! something new ([`Behind`]); a [`codec`](crate::codec) then carries exactly what the filter chose, as often as it has to be sent.
//!
//! | file | what travels |
//! |---|---|
//! | `everything.rs` | all of it |
//! | `sums/bounded.rs` | the elements that are further behind than a bound |
//! | `sums/top.rs` | those that are furthest behind |
//! | `sums/random.rs` | some, drawn at random |
//! | `steps.rs` | all of it, moved towards the value by numbers that take few bits |
//! | `difference.rs` | the arithmetic of those that choose |
//! | `spread.rs` | what a relative bound is relative to |
//! | `behind.rs` | when a filter chooses |
//!
//! A new filter is a file and a row of [`ALL`]. The type of its elements is part of the filter itself.
//!
//! That is of values, which accumulate. Contributions are fresh sums each time, and have filters of another kind: [`sums`]. What
//! chooses by the same settings stands in one file.
//!
//! - **New values, bit for bit.** An element that passes is copied; it is not added to, but for steps.
//! - **What is the same is never chosen**, and sameness is of bits: -0.0 is not 0.0. (But for the form `1bit` of `steps.rs`, where
//!   something else of the block is not.)
//! - **What is not finite passes**, and so does what replaces it.
//! - **Each chunk for itself**, as with sums.

mod behind;
mod difference;
mod everything;
mod spread;
mod steps;
pub mod sums;

pub use behind::Behind;
pub use everything::Everything;
pub use steps::Steps;

use crate::Dtype;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Settings of a filter at most: two bounds, how they change, what they are measured in, and which bandwidth suffices.
pub const SETTINGS: usize = 5;

/// A filter, or why there is none.
pub type Made = Result<Arc<dyn Filter>, Unfit>;

/// A filter, and how declarations name it.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its number, which no other filter is ever given.
    pub number: u8,
    /// What people call it.
    pub name: &'static str,
    /// What people call its settings, in their order: at most [`SETTINGS`].
    pub settings: &'static [&'static str],
    /// Makes it for chunks of such elements, with as many settings as it has: once for each tensor.
    pub make: fn(Dtype, &[f64]) -> Made,
}

/// Every filter that there is.
pub const ALL: &[Entry] = &[
    Entry { number: 0, name: "everything", settings: &[], make: |_, _| Ok(Everything::shared()) },
    Entry { number: 1, name: "DVF", settings: sums::Bounded::SETTINGS, make: sums::Bounded::of_values },
    Entry { number: 2, name: "TopK", settings: &["fraction"], make: sums::Top::of_values },
    Entry { number: 3, name: "RandomK", settings: &["fraction", "seed"], make: sums::Random::of_values },
    Entry { number: 4, name: "Quantize f16", settings: &[], make: Steps::f16 },
    Entry { number: 5, name: "Quantize bf16", settings: &[], make: Steps::bf16 },
    Entry { number: 6, name: "Quantize int8", settings: &[], make: Steps::int8 },
    Entry { number: 7, name: "Quantize 2bit", settings: &["threshold"], make: Steps::two_bits },
    Entry { number: 8, name: "Quantize 1bit", settings: &[], make: Steps::one_bit },
];

/// Where a chunk of a contribution or of a value stands: in clocks, and in the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coordinates {
    /// Iterations that the contributor had completed before; of a value those before the last that it reflects.
    pub clock: u64,
    /// The chunk's first element among the tensor's.
    pub first: u64,
    /// How hard the network presses whoever sends it.
    pub pressure: Pressure,
}

impl Coordinates {
    /// Those of a value: of the last clock that this version reflects, or of the first.
    pub fn of_version(version: u64, first: u64, pressure: Pressure) -> Self {
        Self { clock: version.saturating_sub(1), first, pressure }
    }
}

/// How hard the network presses a sender, in steps: how far a filter that [follows](Follows) it goes from the least that it holds
/// back to the most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "u8", into = "u8")]
pub struct Pressure(u8);

impl Pressure {
    /// Not at all.
    pub const NONE: Self = Self(0);
    /// As hard as it can.
    pub const MOST: Self = Self(4);

    /// So many steps, or the most.
    pub fn of(steps: u8) -> Self {
        Self(steps).min(Self::MOST)
    }

    /// How many steps.
    pub fn steps(self) -> u8 {
        self.0
    }

    /// A step less, or none.
    #[must_use]
    pub fn eased(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// Which part of the way, from 0 to 1.
    pub fn share(self) -> f64 {
        f64::from(self.0) / f64::from(Self::MOST.0)
    }
}

impl From<u8> for Pressure {
    fn from(steps: u8) -> Self {
        Self::of(steps)
    }
}

impl From<Pressure> for u8 {
    fn from(pressure: Pressure) -> Self {
        pressure.0
    }
}

/// What a filter that follows the network goes by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Follows {
    /// How much of the time goes to sending.
    Time,
    /// Whether every link has so many bytes a second (parameter-flow.md 3.3.3).
    Bandwidth(f64),
}

/// Why a filter cannot be made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unfit {
    /// It does not know elements of that type.
    Dtype,
    /// A setting is out of its range.
    Setting {
        /// Its place among the settings.
        place: usize,
        /// Its range.
        expected: &'static str,
    },
}

/// Decides what travels. Slices in, slices out: no allocation, no waiting.
pub trait Filter: fmt::Debug + Send + Sync {
    /// The number of the [`codec`](crate::codec) that makes what it lets pass shortest. `None`: the one of elements that differ.
    fn codec(&self) -> Option<u8> {
        None
    }

    /// What of the network it follows; `None`: nothing.
    fn follows(&self) -> Option<Follows> {
        None
    }

    /// Whether it may hold something back. If it never does, receivers hold the value itself, and no copy is kept of what they
    /// hold.
    fn holds_back(&self) -> bool {
        true
    }

    /// What [`Filter::next`] costs, about, in passes over a chunk at memory's speed: for whoever answers for that.
    fn passes(&self) -> u32 {
        1
    }

    /// The later clock at which it chooses once more of a chunk to which nothing has come since it chose at this one. That costs as
    /// much as if something had come, so it is seldom: from one such clock to the next their number doubles, or more.
    fn again_at(&self, _clock: u64) -> Option<u64> {
        None
    }

    /// Overwrites `held`, what the receivers of a chunk hold now, with what they are to hold next, given its `value` of the
    /// same length. Where the two agree already in all of the chunk, they still agree afterwards.
    ///
    /// For callers that are [`settled`](crate::settled), as the bound is worked out here.
    fn next(&self, at: Coordinates, value: &[u8], held: &mut [u8]);
}
