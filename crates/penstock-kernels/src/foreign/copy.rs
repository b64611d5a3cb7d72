//! Copies of memory that others may be writing: what is short in place, the rest by a kernel; and a word, wherever it stands.

use super::{Foreign, ForeignMut, load_words, store_words};
use crate::arch::{self, Isa, Kernel};
use crate::vector::Element;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

impl Foreign<'_> {
    /// Copies the bytes out with loads that may race, each byte loaded once.
    ///
    /// # Panics
    ///
    /// If `dst` is not exactly as long as this.
    pub fn copy_to(&self, dst: &mut [u8]) {
        ForeignMut::of(dst).copy_from(*self);
    }
}

impl ForeignMut<'_> {
    /// Copies `source`, each byte loaded once and stored once. Where the two overlap, but for being the same, what
    /// comes is some mixture.
    ///
    /// # Panics
    ///
    /// If it is not exactly as long as this.
    #[inline(always)]
    pub fn copy_from(&mut self, source: Foreign<'_>) {
        assert_eq!(source.len, self.len, "a copy needs as many bytes as there are");
        if self.len < SHORT {
            // SAFETY: both are good for as many bytes, by the promises that they were made with.
            unsafe { copy_short(source.base, self.base, self.len) };
        } else {
            copy_long(source, self.part(0..self.len));
        }
    }
}

#[inline(never)]
fn copy_long(source: Foreign<'_>, target: ForeignMut<'_>) {
    arch::on_best(Copy { source, target });
}

/// Bytes from which on a call of a kernel costs little beside the copy.
const SHORT: usize = 4096;

/// A function that copies blocks of four registers' bytes as long as there are whole ones, and returns how many bytes that
/// were. Pointers come by value: those that a function may move are kept in memory. Behind the registers:
/// the instruction at its end, if one is needed, and what it changes besides memory.
#[cfg(all(target_arch = "x86_64", not(any(miri, penstock_portable))))]
macro_rules! copies_blocks {
    (
        $name:ident, $feature:literal, $width:literal, [$a:tt, $b:tt, $c:tt, $d:tt],
        [$($end:literal)?], [$($changes:tt)*]
    ) => {
        /// # Safety
        /// `source` is good for `bytes` loads, `target` for as many stores; the processor has
        #[doc = concat!("`", $feature, "`.")]
        #[inline]
        unsafe fn $name(source: *const u8, target: *mut u8, bytes: usize) -> usize {
            let whole = bytes / (4 * $width) * (4 * $width);
            if whole > 0 {
                // SAFETY: loads and stores of `whole` bytes, which the caller vouches for, as for the instructions; the loop
                // ends, since there is a block (above). All registers that it uses are named.
                unsafe {
                    std::arch::asm!(
                        "2:",
                        concat!("vmovups ", $a, ", [rsi]"),
                        concat!("vmovups ", $b, ", [rsi + {width}]"),
                        concat!("vmovups ", $c, ", [rsi + 2 * {width}]"),
                        concat!("vmovups ", $d, ", [rsi + 3 * {width}]"),
                        concat!("vmovups [rdi], ", $a),
                        concat!("vmovups [rdi + {width}], ", $b),
                        concat!("vmovups [rdi + 2 * {width}], ", $c),
                        concat!("vmovups [rdi + 3 * {width}], ", $d),
                        "add rsi, 4 * {width}",
                        "add rdi, 4 * {width}",
                        "sub rcx, 4 * {width}",
                        "jnz 2b",
                        $($end,)?
                        width = const $width,
                        inout("rsi") source => _,
                        inout("rdi") target => _,
                        inout("rcx") whole => _,
                        $($changes)*
                        options(nostack),
                    );
                }
            }
            whole
        }
    };
}

#[cfg(all(target_arch = "x86_64", not(any(miri, penstock_portable))))]
copies_blocks!(
    // Registers that older instructions do not know, which these therefore need not leave clean.
    copy_blocks_avx512, "avx512f", 64, ["zmm16", "zmm17", "zmm18", "zmm19"],
    [], [out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _,]
);
#[cfg(all(target_arch = "x86_64", not(any(miri, penstock_portable))))]
copies_blocks!(
    copy_blocks_avx,
    "avx",
    32,
    ["ymm0", "ymm1", "ymm2", "ymm3"],
    // It changes a part of all registers of this kind.
    ["vzeroupper"],
    [clobber_abi("C"),]
);

/// The word at `source`, which need not be aligned: rows stand in a message as they come. One load where the processor has one, as
/// the blocks above; else in the widest words that stand aligned. It may be torn, but no element in it that stands aligned.
///
/// # Safety
/// `source` is good for 8 loads.
#[inline(always)]
pub(super) unsafe fn unaligned_word(source: *const u8) -> u64 {
    if source.cast::<u64>().is_aligned() {
        // SAFETY: the caller's promise, and aligned.
        return unsafe { AtomicU64::from_ptr(source.cast_mut().cast()) }.load(Ordering::Relaxed);
    }
    #[cfg(all(target_arch = "x86_64", not(any(miri, penstock_portable))))]
    {
        let word: u64;
        // SAFETY: one load of 8 bytes, which the caller vouches for.
        unsafe {
            std::arch::asm!(
                "mov {word}, qword ptr [{source}]",
                word = lateout(reg) word,
                source = in(reg) source,
                options(nostack, preserves_flags, readonly),
            );
        }
        word
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, penstock_portable)))))]
    {
        let mut word = [0; 8];
        // SAFETY: the caller's promise.
        unsafe { load_words(source, &mut word) };
        u64::from_le_bytes(word)
    }
}

/// Copies what is short in place: by blocks of the widest registers, then by words. Blocks of the widest are copied without a call:
/// what a call writes to the stack would take a place in the store buffer, behind stores to lines that another core has.
///
/// # Safety
/// `source` is good for `bytes` loads, `target` for as many stores.
#[inline(always)]
unsafe fn copy_short(source: *const u8, target: *mut u8, bytes: usize) {
    // Where assembly may not stand: see `arch::on_best`.
    #[cfg(all(target_arch = "x86_64", not(any(miri, penstock_portable))))]
    let done = match bytes >= 256 && std::arch::is_x86_feature_detected!("avx512f") {
        // SAFETY: as for the caller; the processor has the instructions.
        true => unsafe { copy_blocks_avx512(source, target, bytes) },
        false => 0,
    };
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, penstock_portable)))))]
    let done = 0;
    if done < bytes {
        // SAFETY: so many are left.
        unsafe { copy_rest(source.wrapping_add(done), target.wrapping_add(done), bytes - done) };
    }
}

/// Likewise without the widest.
///
/// # Safety
/// As of [`copy_short`].
unsafe fn copy_rest(mut source: *const u8, mut target: *mut u8, mut bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, penstock_portable))))]
    if bytes >= 128 && std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: as for the caller; the processor has the instructions.
        let done = unsafe { copy_blocks_avx(source, target, bytes) };
        (source, target, bytes) = (source.wrapping_add(done), target.wrapping_add(done), bytes - done);
    }
    if source.cast::<u64>().is_aligned() && target.cast::<u64>().is_aligned() {
        while bytes >= 8 {
            // SAFETY: 8 bytes are left, aligned.
            let word = unsafe { AtomicU64::from_ptr(source.cast_mut().cast()) }.load(Ordering::Relaxed);
            // SAFETY: likewise.
            unsafe { AtomicU64::from_ptr(target.cast()) }.store(word, Ordering::Relaxed);
            (source, target, bytes) = (source.wrapping_add(8), target.wrapping_add(8), bytes - 8);
        }
    }
    while bytes > 0 {
        let mut word = [0; 8];
        let word = &mut word[..bytes.min(8)];
        // SAFETY: as many bytes are left.
        unsafe { load_words(source, word) };
        // SAFETY: likewise.
        unsafe { store_words(target, word) };
        let done = word.len();
        (source, target, bytes) = (source.wrapping_add(done), target.wrapping_add(done), bytes - done);
    }
}

struct Copy<'a> {
    source: Foreign<'a>,
    target: ForeignMut<'a>,
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
        let Copy { source, mut target } = self.copy;
        let bytes = source.len;
        let mut at = 0;
        while bytes - at >= E::BYTES {
            E::store_foreign(E::load_foreign(&source, at), &mut target, at);
            at += E::BYTES;
        }
        while bytes - at >= 8 {
            target.store_words(at, &source.word(at).to_le_bytes());
            at += 8;
        }
        let mut rest = [0; 8];
        let rest = &mut rest[..bytes - at];
        source.copy_words(at, rest);
        target.store_words(at, rest);
    }
}

#[cfg(all(test, target_arch = "x86_64", not(any(miri, penstock_portable))))]
mod tests {
    use super::*;

    type Blocks = unsafe fn(*const u8, *mut u8, usize) -> usize;

    /// Also the variants that this processor would not use for copies of such a length.
    #[test]
    fn blocks_of_each_width_are_copied_and_nothing_behind_them() {
        let widths: [(bool, usize, Blocks); 2] = [
            (std::arch::is_x86_feature_detected!("avx512f"), 256, copy_blocks_avx512),
            (std::arch::is_x86_feature_detected!("avx"), 128, copy_blocks_avx),
        ];
        let given: Vec<u8> = (0..1100).map(|at| (at * 31 % 251) as u8).collect();
        for (_, block, copy) in widths.into_iter().filter(|(there, ..)| *there) {
            for bytes in 0..1100 {
                let mut out = vec![0xee; 1100];
                // SAFETY: both are at least as long; the processor has the instructions (`filter`).
                let whole = unsafe { copy(given.as_ptr(), out.as_mut_ptr(), bytes) };
                assert_eq!(whole, bytes - bytes % block);
                assert!(out[..whole] == given[..whole] && out[whole..].iter().all(|&byte| byte == 0xee));
            }
        }
    }
}
