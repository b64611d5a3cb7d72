//! Memory that another process, or another thread that keeps none of our rules, may write while we read it, or read while we
//! write it: lanes, rows of tables, arrays of Python's.
//!
//! There is never a `&[f32]` over foreign memory: a reference would promise the compiler that the values stand still. What
//! reads or writes here is either a load or store in inline assembly, of a vector or of a word that is not aligned, opaque to
//! the compiler and done exactly once as written, or a relaxed atomic (generic variant, and the tail that fills no vector). A
//! racing load may bring any value, and is never undefined. Nothing is decided from one look and used from another, except
//! where `fold` says how it guards that, and where a lane is sent from where it stands: if its two looks differ, the frame is
//! damaged, and its receiver refuses it.
//!
//! What else was tried, with the figures that decided, stands in the crate's header.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

mod copy;

/// Every lane starts on a cache line, so that no vector load of a whole chunk crosses one.
pub const ALIGNMENT: usize = 64;

/// Bytes that another process or thread may be writing, to be read.
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
    pub unsafe fn new(ptr: *const u8, len: usize) -> Self {
        Self { base: ptr, len, memory: PhantomData }
    }

    /// Bytes that are our own and stand still.
    pub fn of(bytes: &'a [u8]) -> Self {
        // SAFETY: a shared borrow for `'a` is mapped, readable, and excludes `&mut`.
        unsafe { Self::new(bytes.as_ptr(), bytes.len()) }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where they start. What may be done there is for the caller to know.
    pub fn as_ptr(&self) -> *const u8 {
        self.base
    }

    /// Whether they start on a cache line, as a lane does, or there are none.
    pub fn is_aligned(&self) -> bool {
        self.len == 0 || (self.base as usize).is_multiple_of(ALIGNMENT)
    }

    /// Some of the bytes.
    ///
    /// # Panics
    ///
    /// If there are no such bytes.
    #[inline]
    pub fn part(&self, range: Range<usize>) -> Self {
        check_part(&range, self.len);
        Self { base: self.base.wrapping_add(range.start), len: range.end - range.start, memory: PhantomData }
    }

    /// The word of 8 bytes at byte `at`, or what there is of it with zeros behind.
    #[inline]
    pub fn word(&self, at: usize) -> u64 {
        let bytes = self.len.saturating_sub(at).min(8);
        let source = self.window(at, bytes);
        if bytes == 8 {
            // SAFETY: inside (`window`).
            return unsafe { copy::unaligned_word(source) };
        }
        let mut word = [0; 8];
        self.copy_words(at, &mut word[..bytes]);
        u64::from_le_bytes(word)
    }

    /// Copies out whole words of 8 bytes, each as it is now.
    ///
    /// # Panics
    ///
    /// If there are not as many.
    #[inline]
    pub fn copy_to_words(&self, to: &mut [u64]) {
        let source = self.window(0, 8 * to.len()).cast::<u64>();
        if source.is_aligned() {
            // SAFETY: good for as many loads (`window`), and aligned (above); `to` is whole words that are ours alone.
            unsafe { move_words(to.as_mut_ptr().cast(), source.cast(), to.len()) };
        } else {
            to.iter_mut().zip((0..).step_by(8)).for_each(|(to, at)| *to = self.word(at));
        }
    }

    /// Where the `bytes` bytes from byte `at` stand: a pointer that is good for `bytes` loads.
    #[inline(always)]
    pub(crate) fn window(&self, at: usize, bytes: usize) -> *const u8 {
        assert!(bytes <= self.len && at <= self.len - bytes, "a load must stay inside its memory");
        self.base.wrapping_add(at)
    }

    /// The `N` words from byte `at`.
    #[inline(always)]
    pub(crate) fn words<const N: usize>(&self, at: usize) -> [u64; N] {
        let source = self.window(at, 8 * N).cast::<u64>();
        if !source.is_aligned() {
            return std::array::from_fn(|i| self.word(at + 8 * i));
        }
        std::array::from_fn(|i| {
            // SAFETY: inside (`window`), aligned (above).
            unsafe { AtomicU64::from_ptr(source.wrapping_add(i).cast_mut()) }.load(Ordering::Relaxed)
        })
    }

    /// Copies out what stands from byte `at`, in the widest words that stand aligned there: no element is torn.
    #[inline]
    pub(crate) fn copy_words(&self, at: usize, dst: &mut [u8]) {
        let source = self.window(at, dst.len());
        // SAFETY: good for as many loads as `dst` has bytes (`window`).
        unsafe { load_words(source, dst) };
    }
}

/// Memory that another process or thread may be reading or writing, to be written: stores that may race, each done
/// once as written.
///
/// One owner: it is neither copied nor shared, so that two threads of this process do not write one place by accident.
pub struct ForeignMut<'a> {
    base: *mut u8,
    len: usize,
    memory: PhantomData<&'a mut AtomicU8>,
}

// SAFETY: a pointer and a length; all that is done through them is loads and stores that may race, from whichever thread.
unsafe impl Send for ForeignMut<'_> {}
// SAFETY: as for `Send`; a shared reference gives loads only.
unsafe impl Sync for ForeignMut<'_> {}

impl<'a> ForeignMut<'a> {
    /// The `len` bytes at `ptr`.
    ///
    /// # Safety
    ///
    /// - `ptr..ptr + len` stays mapped and writable for `'a`.
    /// - No reference to non-atomic values of this process covers them while they are written through this.
    pub unsafe fn new(ptr: *mut u8, len: usize) -> Self {
        Self { base: ptr, len, memory: PhantomData }
    }

    /// Bytes that are our own.
    pub fn of(bytes: &'a mut [u8]) -> Self {
        // SAFETY: an exclusive borrow for `'a` is mapped, writable, and excludes every other reference.
        unsafe { Self::new(bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Some of the bytes, for a while.
    ///
    /// # Panics
    ///
    /// If there are no such bytes.
    #[inline]
    pub fn part(&mut self, range: Range<usize>) -> ForeignMut<'_> {
        check_part(&range, self.len);
        ForeignMut {
            base: self.base.wrapping_add(range.start),
            len: range.end - range.start,
            memory: PhantomData,
        }
    }

    /// What stands there now.
    pub fn as_foreign(&self) -> Foreign<'_> {
        Foreign { base: self.base, len: self.len, memory: PhantomData }
    }

    /// The same in words of 8 bytes, for what is short: the last one with zeros behind.
    ///
    /// # Panics
    ///
    /// If this is not as many whole words, aligned.
    #[inline]
    pub fn copy_words_from(&mut self, source: Foreign<'_>) {
        assert_eq!(source.len.next_multiple_of(8), self.len, "whole words");
        assert!(self.base.cast::<u64>().is_aligned(), "aligned words");
        if source.len == self.len && source.base.cast::<u64>().is_aligned() {
            // SAFETY: both are as long, in whole words (above), and aligned.
            return unsafe { move_words(self.base, source.base, self.len / 8) };
        }
        // SAFETY: as many whole words as `source` fills, aligned (above).
        unsafe { pad_words(self.base, source) };
    }

    /// Copies what stands in whole words of 8 bytes, as [`ForeignMut::copy_words_from`] left it.
    ///
    /// # Panics
    ///
    /// If `source` is not as long as this, rounded up to words.
    #[inline]
    pub fn copy_from_words(&mut self, source: Foreign<'_>) {
        assert_eq!(source.len, self.len.next_multiple_of(8), "whole words");
        let aligned = source.base.cast::<u64>().is_aligned() && self.base.cast::<u64>().is_aligned();
        if source.len == self.len && aligned {
            // SAFETY: both are as long, in whole words (above), and aligned.
            return unsafe { move_words(self.base, source.base, self.len / 8) };
        }
        self.cut_words_from(source);
    }

    #[inline(never)]
    fn cut_words_from(&mut self, source: Foreign<'_>) {
        for at in (0..self.len).step_by(8) {
            let bytes = (self.len - at).min(8);
            self.store_words(at, &source.word(at).to_le_bytes()[..bytes]);
        }
    }

    /// Where the `bytes` bytes from byte `at` stand: a pointer that is good for `bytes` stores.
    #[inline(always)]
    pub(crate) fn window(&mut self, at: usize, bytes: usize) -> *mut u8 {
        assert!(bytes <= self.len && at <= self.len - bytes, "a store must stay inside its memory");
        self.base.wrapping_add(at)
    }

    /// Writes `src` from byte `at` on, in the widest words that stand aligned there.
    #[inline]
    pub(crate) fn store_words(&mut self, at: usize, src: &[u8]) {
        let target = self.window(at, src.len());
        // SAFETY: good for as many stores as `src` has bytes (`window`).
        unsafe { store_words(target, src) };
    }
}

impl<'a> From<&'a [u8]> for Foreign<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::of(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Foreign<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::of(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for Foreign<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self::of(bytes)
    }
}

impl<'a> From<&'a mut [u8]> for ForeignMut<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        Self::of(bytes)
    }
}

impl<'a, const N: usize> From<&'a mut [u8; N]> for ForeignMut<'a> {
    fn from(bytes: &'a mut [u8; N]) -> Self {
        Self::of(bytes)
    }
}

impl<'a> From<&'a mut Vec<u8>> for ForeignMut<'a> {
    fn from(bytes: &'a mut Vec<u8>) -> Self {
        Self::of(bytes)
    }
}

impl fmt::Debug for ForeignMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForeignMut").field("base", &self.base).field("len", &self.len).finish()
    }
}

/// One width of relaxed loads and stores over as much as it fills.
macro_rules! width {
    ($load:ident, $store:ident, $atomic:ident, $number:ident, $bytes:literal) => {
        /// # Safety
        /// `source` is good for as many loads as `dst` has bytes, and aligned to the width.
        #[inline(always)]
        unsafe fn $load<'d>(source: &mut *const u8, dst: &'d mut [u8]) -> &'d mut [u8] {
            let (words, rest) = dst.as_chunks_mut::<$bytes>();
            for word in words {
                // SAFETY: the caller's promise: inside and aligned, and so is the next.
                let loaded = unsafe { $atomic::from_ptr(source.cast_mut().cast()) }.load(Ordering::Relaxed);
                *word = loaded.to_le_bytes();
                *source = source.wrapping_add($bytes);
            }
            rest
        }

        /// # Safety
        /// `target` is good for as many stores as `src` has bytes, and aligned to the width.
        #[inline(always)]
        unsafe fn $store<'s>(target: &mut *mut u8, src: &'s [u8]) -> &'s [u8] {
            let (words, rest) = src.as_chunks::<$bytes>();
            for word in words {
                // SAFETY: as above.
                let place = unsafe { $atomic::from_ptr(target.cast()) };
                place.store($number::from_le_bytes(*word), Ordering::Relaxed);
                *target = target.wrapping_add($bytes);
            }
            rest
        }
    };
}

width!(load_8, store_8, AtomicU64, u64, 8);
width!(load_4, store_4, AtomicU32, u32, 4);
width!(load_2, store_2, AtomicU16, u16, 2);
width!(load_1, store_1, AtomicU8, u8, 1);

/// Copies whole words that are aligned on both sides, as most rows are.
///
/// # Safety
/// `from` is good for `words` loads of 8 bytes, and `to` for as many stores; both are aligned to 8.
#[inline(always)]
unsafe fn move_words(to: *mut u8, from: *const u8, words: usize) {
    for at in 0..words {
        // SAFETY: the caller's promise: inside and aligned.
        let from = unsafe { AtomicU64::from_ptr(from.cast_mut().cast::<u64>().wrapping_add(at)) };
        // SAFETY: likewise.
        let to = unsafe { AtomicU64::from_ptr(to.cast::<u64>().wrapping_add(at)) };
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// # Safety
/// `source` is good for as many loads as `dst` has bytes.
#[inline]
unsafe fn load_words(mut source: *const u8, mut dst: &mut [u8]) {
    if source.cast::<u64>().is_aligned() {
        // SAFETY: the caller's promise, and aligned.
        dst = unsafe { load_8(&mut source, dst) };
    }
    if source.cast::<u32>().is_aligned() {
        // SAFETY: likewise: as many bytes are left as `dst` still has.
        dst = unsafe { load_4(&mut source, dst) };
    }
    if source.cast::<u16>().is_aligned() {
        // SAFETY: likewise.
        dst = unsafe { load_2(&mut source, dst) };
    }
    // SAFETY: likewise; bytes are always aligned.
    unsafe { load_1(&mut source, dst) };
}

/// # Safety
/// `target` is good for as many stores as `src` has bytes.
#[inline]
unsafe fn store_words(mut target: *mut u8, mut src: &[u8]) {
    if target.cast::<u64>().is_aligned() {
        // SAFETY: the caller's promise, and aligned.
        src = unsafe { store_8(&mut target, src) };
    }
    if target.cast::<u32>().is_aligned() {
        // SAFETY: likewise: as many bytes are left as `src` still has.
        src = unsafe { store_4(&mut target, src) };
    }
    if target.cast::<u16>().is_aligned() {
        // SAFETY: likewise.
        src = unsafe { store_2(&mut target, src) };
    }
    // SAFETY: likewise; bytes are always aligned.
    unsafe { store_1(&mut target, src) };
}

/// Writes the words that `source` fills, the last one with zeros behind.
///
/// # Safety
/// `target` is good for as many stores, and aligned.
#[inline(never)]
unsafe fn pad_words(target: *mut u8, source: Foreign<'_>) {
    for at in (0..source.len).step_by(8) {
        // SAFETY: one of the words, aligned (the caller's promise).
        let word = unsafe { AtomicU64::from_ptr(target.wrapping_add(at).cast()) };
        word.store(source.word(at), Ordering::Relaxed);
    }
}

#[inline(always)]
fn check_part(range: &Range<usize>, bytes: usize) {
    /// Given by value: what a message refers to would be written to the stack where nothing is wrong, too.
    #[cold]
    #[inline(never)]
    fn outside(start: usize, end: usize, bytes: usize) -> ! {
        panic!("{start}..{end} of {bytes} bytes")
    }
    if range.start > range.end || range.end > bytes {
        outside(range.start, range.end, bytes);
    }
}

impl fmt::Debug for Foreign<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Foreign").field("base", &self.base).field("len", &self.len).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::naive::Aligned;

    #[test]
    fn copy_to_gives_every_byte_at_every_length() {
        let lengths = (0..600).chain([1023, 4096, 32_768, 32_771]);
        for len in lengths.filter(|len| !cfg!(miri) || (*len < 600 && len % 37 == 0)) {
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
    fn a_copy_between_any_two_alignments_gives_every_byte_and_no_other() {
        let source: Vec<u8> = (0..700).map(|i| (i * 31 % 251) as u8).collect();
        let from = Aligned::new(&source);
        let step = if cfg!(miri) { 3 } else { 1 };
        let shifts = || (0..9).step_by(step);
        for (shift, other, len) in shifts().flat_map(|a| shifts().map(move |b| (a, b, 600 + 7 * a + b))) {
            let mut out = Aligned::new(&[0xee; 700]);
            ForeignMut::of(&mut out[shift..shift + len]).copy_from(Foreign::of(&from[other..other + len]));
            assert_eq!(out[shift..shift + len], source[other..other + len]);
            assert!(out[..shift].iter().chain(&out[shift + len..]).all(|&byte| byte == 0xee));
        }
    }

    #[test]
    fn words_are_padded_with_zeros() {
        let source = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13];
        let mut out = Aligned::new(&[0xee; 16]);
        ForeignMut::of(&mut out).copy_words_from(Foreign::of(&source));
        assert_eq!(out[..], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 0, 0, 0]);
    }

    #[test]
    fn whole_words_are_those_that_stand_there_at_every_alignment() {
        let source: Vec<u8> = (0..64).collect();
        let from = Aligned::new(&source);
        for (shift, count) in (0..9).flat_map(|shift| (0..6).map(move |count| (shift, count))) {
            let mut words = vec![0; count];
            Foreign::of(&from[shift..shift + 8 * count]).copy_to_words(&mut words);
            let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
            assert_eq!(bytes, source[shift..shift + 8 * count]);
        }
    }

    #[test]
    #[should_panic(expected = "a load must stay inside its memory")]
    fn a_word_that_is_not_there_whole_is_refused() {
        Foreign::of(&[0; 15]).copy_to_words(&mut [0; 2]);
    }

    #[test]
    #[should_panic(expected = "8..17 of 16 bytes")]
    fn a_part_that_leaves_its_memory_is_refused() {
        ForeignMut::of(&mut [0; 16]).part(8..17);
    }

    #[test]
    #[should_panic(expected = "as many bytes as there are")]
    fn a_copy_of_another_length_is_refused() {
        let lane = Aligned::new(&[0; 16]);
        Foreign::of(&lane).copy_to(&mut [0; 15]);
    }
}
