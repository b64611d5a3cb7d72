//! How each dtype enters and leaves four zmm registers.

use std::arch::asm;
use std::arch::x86_64::*;

use super::vector::{F32s, F64s};
use crate::arch::x86_64::element;
use crate::vector::{LARGEST_BF16, LARGEST_F16};

/// Loads all registers of a vector from a lane that may be written meanwhile, in one opaque block.
///
/// The function is unsafe: `source` must be good for four loads of `$stride` bytes.
macro_rules! load_foreign {
    ($name:ident, $register:ident, $instruction:literal, $stride:literal) => {
        #[inline]
        #[target_feature(enable = "avx512f")]
        unsafe fn $name(source: *const u8) -> [$register; 4] {
            let (a, b, c, d);
            // SAFETY: loads of `$stride` bytes at four places that the caller vouches for; writes nothing but its outputs.
            unsafe {
                asm!(
                    concat!($instruction, " {a}, [{p}]"),
                    concat!($instruction, " {b}, [{p} + ", $stride, "]"),
                    concat!($instruction, " {c}, [{p} + 2 * ", $stride, "]"),
                    concat!($instruction, " {d}, [{p} + 3 * ", $stride, "]"),
                    p = in(reg) source,
                    a = out(zmm_reg) a,
                    b = out(zmm_reg) b,
                    c = out(zmm_reg) c,
                    d = lateout(zmm_reg) d,
                    options(nostack, preserves_flags, readonly),
                );
            }
            [a, b, c, d]
        }
    };
}

load_foreign!(load_foreign_ps, __m512, "vmovups", 64);
load_foreign!(load_foreign_pd, __m512d, "vmovupd", 64);
load_foreign!(load_foreign_ph, __m512, "vcvtph2ps", 32);
load_foreign!(load_foreign_words, __m512i, "vpmovzxwd", 32);

#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load_foreign_bf(source: *const u8) -> [__m512; 4] {
    // SAFETY: the caller's promise.
    let words = unsafe { load_foreign_words(source) };
    [widen(words[0]), widen(words[1]), widen(words[2]), widen(words[3])]
}

/// bfloat16 is the upper half of a float32.
#[inline]
#[target_feature(enable = "avx512f")]
fn widen(words: __m512i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))
}

/// To nearest even; a NaN keeps its upper payload and is made quiet. (`vcvtneps2bf16` would flush denormals.)
///
/// The masked forms halve the obvious sequence of shifts and adds, which held hot bfloat16 chunks at 4.5 times a copy.
#[inline]
#[target_feature(enable = "avx512f")]
fn narrow(a: __m512) -> __m256i {
    let bits = _mm512_castps_si512(a);
    // Half of the last place that stays; one more where that place is odd, so that a tie goes to the even neighbour.
    let odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x0001_0000));
    let half = _mm512_mask_mov_epi32(_mm512_set1_epi32(0x7fff), odd, _mm512_set1_epi32(0x8000));
    let rounded = _mm512_add_epi32(bits, half);
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a);
    let kept = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x0040_0000));
    _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(kept))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_ps(piece: &[u8; 64]) -> __m512 {
    // SAFETY: 64 readable bytes.
    unsafe { _mm512_loadu_ps(piece.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_pd(piece: &[u8; 64]) -> __m512d {
    // SAFETY: 64 readable bytes.
    unsafe { _mm512_loadu_pd(piece.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_words(piece: &[u8; 32]) -> __m256i {
    // SAFETY: 32 readable bytes.
    unsafe { _mm256_loadu_si256(piece.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_ph(piece: &[u8; 32]) -> __m512 {
    _mm512_cvtph_ps(load_words(piece))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_bf(piece: &[u8; 32]) -> __m512 {
    widen(_mm512_cvtepu16_epi32(load_words(piece)))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_ps(register: __m512, piece: &mut [u8; 64]) {
    // SAFETY: 64 writable bytes.
    unsafe { _mm512_storeu_ps(piece.as_mut_ptr().cast(), register) };
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_pd(register: __m512d, piece: &mut [u8; 64]) {
    // SAFETY: 64 writable bytes.
    unsafe { _mm512_storeu_pd(piece.as_mut_ptr().cast(), register) };
}

#[inline]
#[target_feature(enable = "avx512f")]
fn to_half(register: __m512) -> __m256i {
    _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(register)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_ph(register: __m512, piece: &mut [u8; 32]) {
    let words = to_half(register);
    // SAFETY: 32 writable bytes.
    unsafe { _mm256_storeu_si256(piece.as_mut_ptr().cast(), words) };
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_bf(register: __m512, piece: &mut [u8; 32]) {
    let words = narrow(register);
    // SAFETY: 32 writable bytes.
    unsafe { _mm256_storeu_si256(piece.as_mut_ptr().cast(), words) };
}

/// Stores all registers of a vector to memory that others may look at meanwhile, in one opaque block.
///
/// The function is unsafe: `target` must be good for four stores of `$stride` bytes.
macro_rules! store_foreign {
    ($name:ident, $register:ident in $class:ident, $instruction:literal, $stride:literal) => {
        #[inline]
        #[target_feature(enable = "avx512f")]
        unsafe fn $name(vector: [$register; 4], target: *mut u8) {
            let [a, b, c, d] = vector;
            // SAFETY: stores of `$stride` bytes at four places that the caller vouches for.
            unsafe {
                asm!(
                    concat!($instruction, " [{p}], {a}"),
                    concat!($instruction, " [{p} + ", $stride, "], {b}"),
                    concat!($instruction, " [{p} + 2 * ", $stride, "], {c}"),
                    concat!($instruction, " [{p} + 3 * ", $stride, "], {d}"),
                    p = in(reg) target,
                    a = in($class) a,
                    b = in($class) b,
                    c = in($class) c,
                    d = in($class) d,
                    options(nostack, preserves_flags),
                );
            }
        }
    };
}

store_foreign!(store_foreign_ps, __m512 in zmm_reg, "vmovups", 64);
store_foreign!(store_foreign_pd, __m512d in zmm_reg, "vmovupd", 64);
store_foreign!(store_foreign_words, __m256i in ymm_reg, "vmovdqu", 32);

#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store_foreign_ph(vector: [__m512; 4], target: *mut u8) {
    let [a, b, c, d] = vector;
    let words = [to_half(a), to_half(b), to_half(c), to_half(d)];
    // SAFETY: the caller's promise.
    unsafe { store_foreign_words(words, target) };
}

#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store_foreign_bf(vector: [__m512; 4], target: *mut u8) {
    let [a, b, c, d] = vector;
    let words = [narrow(a), narrow(b), narrow(c), narrow(d)];
    // SAFETY: the caller's promise.
    unsafe { store_foreign_words(words, target) };
}

element!(F32, 4, f32::MAX as f64, F32s, F32, 4 x 64, load load_ps, load_foreign load_foreign_ps, store store_ps,
         store_foreign store_foreign_ps);
element!(F64, 8, f64::MAX, F64s, F64, 4 x 64, load load_pd, load_foreign load_foreign_pd, store store_pd,
         store_foreign store_foreign_pd);
element!(F16, 2, LARGEST_F16, F32s, F32, 4 x 32, load load_ph, load_foreign load_foreign_ph, store store_ph,
         store_foreign store_foreign_ph);
element!(Bf16, 2, LARGEST_BF16, F32s, F32, 4 x 32, load load_bf, load_foreign load_foreign_bf, store store_bf,
         store_foreign store_foreign_bf);
