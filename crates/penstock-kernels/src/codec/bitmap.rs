//! Where the elements of a span are that are sent, as a bit for each element: bit `i % 8` of byte `i / 8`. Bits behind the last
//! element are 0.

use super::Undecodable;
use super::span::{Marks, SPAN, refused};

/// Bytes for so many elements.
pub(super) fn bytes(elements: usize) -> usize {
    elements.div_ceil(8)
}

/// Writes as many bytes as `out` has, which is [`bytes`].
#[inline(always)]
pub(super) fn write(marks: &Marks, out: &mut [u8]) {
    let mut all = [0; SPAN / 8];
    for (bytes, marks) in all.as_chunks_mut::<8>().0.iter_mut().zip(marks) {
        *bytes = marks.to_le_bytes();
    }
    out.copy_from_slice(&all[..out.len()]);
}

/// Reads what [`write`] wrote to the front of `payload`, in which `count` of so many elements are marked, and returns how many
/// bytes that were.
#[inline(always)]
pub(super) fn read(
    payload: &[u8],
    count: usize,
    elements: usize,
    marks: &mut Marks,
) -> Result<usize, Undecodable> {
    let expected = bytes(elements);
    let Some(bits) = payload.get(..expected) else { return refused("bitmap", expected, payload.len()) };
    let mut all = [0; SPAN / 8];
    all[..expected].copy_from_slice(bits);
    for (marks, bytes) in marks.iter_mut().zip(all.as_chunks::<8>().0) {
        *marks = u64::from_le_bytes(*bytes);
    }
    let behind = if elements.is_multiple_of(8) { 0 } else { bits[expected - 1] >> (elements % 8) };
    if behind != 0 {
        return refused("bits behind the last element", 0, behind.into());
    }
    let got = marks.iter().map(|marks| marks.count_ones() as usize).sum();
    if got != count { refused("elements in its bitmap", count, got) } else { Ok(expected) }
}
