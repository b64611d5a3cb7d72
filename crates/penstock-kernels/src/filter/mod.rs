//! Filters: what of a chunk travels now, and what waits.
//!
//! A sender knows what all its receivers hold, and a filter decides what they are to hold next. The difference between that
//! and the value is what waits: it is carried over by construction. A filter runs once for each publication of a chunk; a
//! [`codec`](crate::codec) then carries exactly what the filter chose, as often as it has to be sent.
//!
//! | file | what travels |
//! |---|---|
//! | `everything.rs` | all of it |
//!
//! A new filter is a file here and a row of [`ALL`]. The type of its elements is part of the filter itself.
//!
//! That is of values, which accumulate. Contributions are fresh sums each time, and have filters of another kind: [`sums`].

mod everything;
pub mod sums;

pub use everything::Everything;

use crate::Dtype;
use std::fmt;
use std::sync::Arc;

/// Settings of a filter at most: a bound, how it changes, and what it is measured in.
pub const SETTINGS: usize = 3;

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
pub const ALL: &[Entry] =
    &[Entry { number: 0, name: "everything", settings: &[], make: |_, _| Ok(Arc::new(Everything)) }];

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
    /// Whether it may hold something back. If it never does, receivers hold the value itself, and no copy is kept of what they
    /// hold.
    fn holds_back(&self) -> bool {
        true
    }

    /// Overwrites `held`, what the receivers of a chunk hold now, with what they are to hold next, given its `value` of the
    /// same length. Where the two agree already, they still agree afterwards.
    fn next(&self, value: &[u8], held: &mut [u8]);
}
