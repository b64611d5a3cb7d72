//! Filters: what of a chunk travels now, and what waits.
//!
//! A sender knows what all its receivers hold, and a filter decides what they are to hold next. The difference between that
//! and the value is what waits: it is carried over by construction. For a sum, receivers hold zeros before each one. A filter
//! runs once for each step of a stream; a [`codec`](crate::codec) then carries exactly what the filter chose, as often as it
//! has to be sent.
//!
//! | file | what travels |
//! |---|---|
//! | `everything.rs` | all of it |
//!
//! A new filter is a file here. The type of its elements is part of the filter itself.

mod everything;

pub use everything::Everything;

use std::fmt;

/// Decides what travels. Slices in, slices out: no allocation, no waiting.
pub trait Filter: fmt::Debug + Send + Sync {
    /// What the receivers of a chunk with this `value` are to hold next. A filter that holds something back writes it over
    /// `held`, which is what they hold now; one that never does needs no `held`.
    fn next<'a>(&self, value: &'a [u8], held: &'a mut [u8]) -> &'a [u8];
}
