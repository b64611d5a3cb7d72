//! Copies by non-temporal stores, for what would be evicted before anybody reads it.
//!
//! An ordinary store first fetches the line that it writes to, and evicts another for it. Where the values together are larger
//! than the last-level cache, both are wasted.

/// Copies `source` to `target` by stores past the caches, where the processor has such stores. They keep the order that ordinary
/// ones would: whoever sees one of these bytes sees what this thread stored with release before, and whoever sees what it stores
/// with release later sees all of them.
///
/// # Panics
///
/// If the two are not equally long.
pub fn copy_past_cache(source: &[u8], target: &mut [u8]) {
    assert_eq!(source.len(), target.len(), "a copy needs as many bytes as there are");
    let done = lines(source, target);
    target[done..].copy_from_slice(&source[done..]);
}

/// Bytes of a cache line.
#[cfg(all(target_arch = "x86_64", not(any(miri, penstock_portable))))]
const LINE: usize = 64;

/// The whole lines, if the target starts on one; how many bytes that were.
#[cfg(all(target_arch = "x86_64", not(any(miri, penstock_portable))))]
fn lines(source: &[u8], target: &mut [u8]) -> usize {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    if !target.as_ptr().cast::<[u8; LINE]>().addr().is_multiple_of(LINE) {
        return 0;
    }
    // These stores keep no order with others: this fence keeps them behind what was stored before, such as the number that says
    // that a value is being written, and the second one before what is stored later.
    // SAFETY: every processor of this kind has the instruction, which touches nothing.
    unsafe { _mm_sfence() };
    let (from, _) = source.as_chunks::<LINE>();
    let (to, _) = target.as_chunks_mut::<LINE>();
    for (from, to) in from.iter().zip(to) {
        let (from, to) = (from.as_ptr().cast::<__m128i>(), to.as_mut_ptr().cast::<__m128i>());
        // SAFETY: each has the four parts of a line, and every processor of this kind has the instruction.
        let parts = std::array::from_fn::<_, 4, _>(|at| unsafe { _mm_loadu_si128(from.wrapping_add(at)) });
        for (at, part) in parts.into_iter().enumerate() {
            // SAFETY: likewise; the target starts on a line (above), so each part is aligned. No other thread is told of them
            // before the fence below.
            unsafe { _mm_stream_si128(to.wrapping_add(at), part) };
        }
    }
    // SAFETY: as above.
    unsafe { _mm_sfence() };
    source.len() / LINE * LINE
}

#[cfg(not(all(target_arch = "x86_64", not(any(miri, penstock_portable)))))]
fn lines(_: &[u8], _: &mut [u8]) -> usize {
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::naive::Aligned;

    #[test]
    fn all_is_copied_wherever_it_starts_and_nothing_beside_it() {
        let given: Vec<u8> = (0..700).map(|at| (at * 31 % 251) as u8).collect();
        for start in [0, 1, 16, 63, 64] {
            for bytes in (0..200).chain([511, 512, 513, 600]) {
                let mut out = Aligned::new(&[0xee; 800]);
                copy_past_cache(&given[3..3 + bytes], &mut out[start..start + bytes]);
                assert!(out[start..start + bytes] == given[3..3 + bytes], "{bytes} bytes at {start}");
                let beside = out[..start].iter().chain(&out[start + bytes..]);
                assert!(beside.copied().all(|byte| byte == 0xee), "{bytes} bytes at {start}");
            }
        }
    }

    #[test]
    #[should_panic = "as many bytes"]
    fn a_target_of_another_length_is_refused() {
        copy_past_cache(&[1; 64], &mut [0; 65]);
    }
}
