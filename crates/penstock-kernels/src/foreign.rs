//! Memory that another process may write while we read it: the lanes.
//!
//! There is never a `&[f32]` over foreign memory: a reference would promise the compiler that the values stand still. What
//! reads here is either a vector load in inline assembly, opaque to the compiler and done exactly once as written, or a
//! relaxed atomic load (generic variant, and the tail that fills no vector). Any value may come from a racing load, and
//! none is undefined. Nothing is decided from one look and used from another, except where `fold` says how it guards that.
//!
//! What else was tried, with the figures that decided, stands in the crate's header.

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::arch;
use crate::vector::{Element, Isa, Kernel};

/// Every lane starts on a cache line, so that no vector load of a whole chunk crosses one.
pub const ALIGNMENT: usize = 64;

/// Bytes that someone else may be writing.
#[derive(Clone, Copy)]
pub struct Foreign<'a> {
    base: *const u8,
    len: usize,
    memory: PhantomData<&'a AtomicU8>,
}

// SAFETY: a pointer and a length; all that is done through them is loads that may race, from whichever thread.
unsafe impl Send for Foreign<'_> {}
// SAFETY: as for `Send`; there is no state of its own that two threads could share.
unsafe impl Sync for Foreign<'_> {}

impl<'a> Foreign<'a> {
    /// The `len` bytes at `ptr`.
    ///
    /// # Safety
    ///
    /// - `ptr..ptr + len` stays mapped and readable for `'a`.
    /// - No `&mut` reference of this process covers them while they are read through this.
    ///
    /// # Panics
    ///
    /// If there are bytes and `ptr` is not aligned to [`ALIGNMENT`].
    pub unsafe fn new(ptr: *const u8, len: usize) -> Self {
        assert!(len == 0 || (ptr as usize).is_multiple_of(ALIGNMENT), "a lane must start on a cache line");
        Self { base: ptr, len, memory: PhantomData }
    }

    /// Bytes that are our own and stand still, as a lane.
    ///
    /// # Panics
    ///
    /// If there are bytes and they do not start aligned to [`ALIGNMENT`].
    pub fn of(bytes: &'a [u8]) -> Self {
        // SAFETY: a shared borrow for `'a` is mapped, readable, and excludes `&mut`.
        unsafe { Self::new(bytes.as_ptr(), bytes.len()) }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the bytes out with loads that may race, each byte loaded once.
    ///
    /// # Panics
    ///
    /// If `dst` is not exactly as long as this.
    pub fn copy_to(&self, dst: &mut [u8]) {
        assert_eq!(dst.len(), self.len, "a copy needs as many bytes as the lane has");
        arch::on_best(Copy { lane: *self, dst });
    }

    /// Where the `bytes` bytes from byte `at` stand: a pointer that is good for `bytes` loads.
    #[inline(always)]
    pub(crate) fn window(&self, at: usize, bytes: usize) -> *const u8 {
        assert!(bytes <= self.len && at <= self.len - bytes, "a load must stay inside its lane");
        self.base.wrapping_add(at)
    }

    /// The `N` words from byte `at`, a multiple of 8.
    #[inline(always)]
    pub(crate) fn words<const N: usize>(&self, at: usize) -> [u64; N] {
        debug_assert_eq!(at % 8, 0);
        let source = self.window(at, 8 * N).cast::<u64>();
        std::array::from_fn(|i| {
            // SAFETY: inside the lane (`window`), aligned because `at` is a multiple of 8.
            unsafe { AtomicU64::from_ptr(source.wrapping_add(i).cast_mut()) }.load(Ordering::Relaxed)
        })
    }

    /// Copies out what stands from byte `at`, a multiple of 8, in the widest words that fit: no element is torn.
    #[inline]
    pub(crate) fn copy_words(&self, at: usize, dst: &mut [u8]) {
        debug_assert_eq!(at % 8, 0);
        let mut source = self.window(at, dst.len());
        let (words, rest) = dst.as_chunks_mut::<8>();
        for word in words {
            // SAFETY: inside the lane (`window`, which covers all of `dst`), aligned because `at` is a multiple of 8.
            let loaded = unsafe { AtomicU64::from_ptr(source.cast_mut().cast()) }.load(Ordering::Relaxed);
            *word = loaded.to_le_bytes();
            source = source.wrapping_add(8);
        }
        copy_last(source, rest);
    }
}

/// The last 0 to 7 bytes: a word of 4, of 2 and of 1, as the length has them.
fn copy_last(mut source: *const u8, mut dst: &mut [u8]) {
    if let Some(head) = dst.split_off_mut(..4) {
        // SAFETY: `source` starts 8-aligned, with `dst.len() >= 4` bytes of its lane left.
        let loaded = unsafe { AtomicU32::from_ptr(source.cast_mut().cast()) }.load(Ordering::Relaxed);
        head.copy_from_slice(&loaded.to_le_bytes());
        source = source.wrapping_add(4);
    }
    if let Some(head) = dst.split_off_mut(..2) {
        // SAFETY: 4-aligned at least, with two bytes left.
        let loaded = unsafe { AtomicU16::from_ptr(source.cast_mut().cast()) }.load(Ordering::Relaxed);
        head.copy_from_slice(&loaded.to_le_bytes());
        source = source.wrapping_add(2);
    }
    if let [last] = dst {
        // SAFETY: one byte left.
        *last = unsafe { AtomicU8::from_ptr(source.cast_mut()) }.load(Ordering::Relaxed);
    }
}

impl fmt::Debug for Foreign<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Foreign").field("base", &self.base).field("len", &self.len).finish()
    }
}

struct Copy<'a> {
    lane: Foreign<'a>,
    dst: &'a mut [u8],
}

impl arch::Dispatch for Copy<'_> {
    type Output = ();

    fn on<I: Isa>(self, isa: I) {
        isa.run(CopyOn::<I::F32> { copy: self, element: PhantomData });
    }
}

struct CopyOn<'a, E> {
    copy: Copy<'a>,
    element: PhantomData<E>,
}

impl<E: Element> Kernel for CopyOn<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Copy { lane, dst } = self.copy;
        let mut at = 0;
        let mut blocks = dst.chunks_exact_mut(E::BYTES);
        for block in &mut blocks {
            E::store(E::load_foreign(&lane, at), block);
            at += E::BYTES;
        }
        lane.copy_words(at, blocks.into_remainder());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::Aligned;

    #[test]
    fn copy_to_gives_every_byte_at_every_length() {
        for len in (0..600).chain([1023, 4096, 32_768, 32_771]) {
            let source: Vec<u8> = (0..len).map(|i| (i * 31 % 251) as u8).collect();
            let lane = Aligned::new(&source);
            let mut out = vec![0xee; len + 1];
            Foreign::of(&lane).copy_to(&mut out[1..]);
            assert_eq!(out[1..], source[..], "length {len}");
        }
    }

    #[test]
    fn copy_to_keeps_the_bits_of_signalling_nans() {
        let source: Vec<u8> = [0x7fa0_0001_u32; 100].into_iter().flat_map(u32::to_le_bytes).collect();
        let lane = Aligned::new(&source);
        let mut out = vec![0; source.len()];
        Foreign::of(&lane).copy_to(&mut out);
        assert_eq!(out, source);
    }

    #[test]
    #[should_panic(expected = "must start on a cache line")]
    fn a_lane_that_starts_inside_a_cache_line_is_refused() {
        let lane = Aligned::new(&[0; 16]);
        Foreign::of(&lane[8..]);
    }

    #[test]
    #[should_panic(expected = "as many bytes as the lane")]
    fn a_copy_of_another_length_is_refused() {
        let lane = Aligned::new(&[0; 16]);
        Foreign::of(&lane).copy_to(&mut [0; 15]);
    }
}
