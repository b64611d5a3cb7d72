//! Spans: what bitmaps and indices are of.

use super::Undecodable;
use crate::vector::GROUP;

/// Elements of a span.
pub(super) const SPAN: usize = 8192;
/// A bit for each element of a span that is sent.
pub(super) type Marks = [u64; SPAN / GROUP];

/// Refuses a payload.
pub(super) fn refused<T>(what: &'static str, expected: usize, got: usize) -> Result<T, Undecodable> {
    Err(Undecodable { what, expected: expected as u64, got: got as u64 })
}
