//! How each dtype enters and leaves two ymm registers.

use std::arch::asm;
use std::arch::x86_64::*;

use super::vector::{F32s, F64s};
use crate::arch::x86_64::element;
use crate::vector::{LARGEST_BF16, LARGEST_F16};

/// Loads all registers of a vector from a lane that may be written meanwhile, in one opaque block.
///
/// The function is unsafe: `source` must be good for two loads of `$stride` bytes.
macro_rules! load_foreign {
    ($name:ident, $register:ident, $instruction:literal, $stride:literal) => {
        #[inline]
        #[target_feature(enable = "avx2,f16c")]
        unsafe fn $name(source: *const u8) -> [$register; 2] {
            let (a, b);
            // SAFETY: loads of `$stride` bytes at two places that the caller vouches for; writes nothing but its outputs.
            unsafe {
                asm!(
                    concat!($instruction, " {a}, [{p}]"),
                    concat!($instruction, " {b}, [{p} + ", $stride, "]"),
                    p = in(reg) source,
                    a = out(ymm_reg) a,
                    b = lateout(ymm_reg) b,
                    options(nostack, preserves_flags, readonly),
                );
            }
            [a, b]
        }
    };
}

load_foreign!(load_foreign_ps, __m256, "vmovups", 32);
load_foreign!(load_foreign_pd, __m256d, "vmovupd", 32);
load_foreign!(load_foreign_ph, __m256, "vcvtph2ps", 16);
load_foreign!(load_foreign_words, __m256i, "vpmovzxwd", 16);

#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn load_foreign_bf(source: *const u8) -> [__m256; 2] {
    // SAFETY: the caller's promise.
    let words = unsafe { load_foreign_words(source) };
    [widen(words[0]), widen(words[1])]
}

/// bfloat16 is the upper half of a float32.
#[inline]
#[target_feature(enable = "avx2")]
fn widen(words: __m256i) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
}

/// To nearest even; a NaN keeps its upper payload and is made quiet.
#[inline]
#[target_feature(enable = "avx2")]
fn narrow(a: __m256) -> __m128i {
    let bits = _mm256_castps_si256(a);
    let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
    let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(a, a));
    let words = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan));
    // Packing works within each half of a register: the lower words of each, then brought together.
    let packed = _mm256_packus_epi32(words, words);
    _mm256_castsi256_si128(_mm256_permute4x64_epi64::<0b1000>(packed))
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_ps(piece: &[u8; 32]) -> __m256 {
    // SAFETY: 32 readable bytes.
    unsafe { _mm256_loadu_ps(piece.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_pd(piece: &[u8; 32]) -> __m256d {
    // SAFETY: 32 readable bytes.
    unsafe { _mm256_loadu_pd(piece.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_words(piece: &[u8; 16]) -> __m128i {
    // SAFETY: 16 readable bytes.
    unsafe { _mm_loadu_si128(piece.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn load_ph(piece: &[u8; 16]) -> __m256 {
    _mm256_cvtph_ps(load_words(piece))
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_bf(piece: &[u8; 16]) -> __m256 {
    widen(_mm256_cvtepu16_epi32(load_words(piece)))
}

#[inline]
#[target_feature(enable = "avx2")]
fn store_ps(register: __m256, piece: &mut [u8; 32]) {
    // SAFETY: 32 writable bytes.
    unsafe { _mm256_storeu_ps(piece.as_mut_ptr().cast(), register) };
}

#[inline]
#[target_feature(enable = "avx2")]
fn store_pd(register: __m256d, piece: &mut [u8; 32]) {
    // SAFETY: 32 writable bytes.
    unsafe { _mm256_storeu_pd(piece.as_mut_ptr().cast(), register) };
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn to_half(register: __m256) -> __m128i {
    _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(register)
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn store_ph(register: __m256, piece: &mut [u8; 16]) {
    let words = to_half(register);
    // SAFETY: 16 writable bytes.
    unsafe { _mm_storeu_si128(piece.as_mut_ptr().cast(), words) };
}

#[inline]
#[target_feature(enable = "avx2")]
fn store_bf(register: __m256, piece: &mut [u8; 16]) {
    let words = narrow(register);
    // SAFETY: 16 writable bytes.
    unsafe { _mm_storeu_si128(piece.as_mut_ptr().cast(), words) };
}

/// Stores all registers of a vector to memory that others may look at meanwhile, in one opaque block.
///
/// The function is unsafe: `target` must be good for two stores of `$stride` bytes.
macro_rules! store_foreign {
    ($name:ident, $register:ident in $class:ident, $instruction:literal, $stride:literal) => {
        #[inline]
        #[target_feature(enable = "avx2,f16c")]
        unsafe fn $name(vector: [$register; 2], target: *mut u8) {
            let [a, b] = vector;
            // SAFETY: stores of `$stride` bytes at two places that the caller vouches for.
            unsafe {
                asm!(
                    concat!($instruction, " [{p}], {a}"),
                    concat!($instruction, " [{p} + ", $stride, "], {b}"),
                    p = in(reg) target,
                    a = in($class) a,
                    b = in($class) b,
                    options(nostack, preserves_flags),
                );
            }
        }
    };
}

store_foreign!(store_foreign_ps, __m256 in ymm_reg, "vmovups", 32);
store_foreign!(store_foreign_pd, __m256d in ymm_reg, "vmovupd", 32);
store_foreign!(store_foreign_words, __m128i in xmm_reg, "vmovdqu", 16);

#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn store_foreign_ph(vector: [__m256; 2], target: *mut u8) {
    let [a, b] = vector;
    let words = [to_half(a), to_half(b)];
    // SAFETY: the caller's promise.
    unsafe { store_foreign_words(words, target) };
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
unsafe fn store_foreign_bf(vector: [__m256; 2], target: *mut u8) {
    let [a, b] = vector;
    let words = [narrow(a), narrow(b)];
    // SAFETY: the caller's promise.
    unsafe { store_foreign_words(words, target) };
}

element!(F32, 4, f32::MAX as f64, F32s, F32, 2 x 32, load load_ps, load_foreign load_foreign_ps, store store_ps,
         store_foreign store_foreign_ps);
element!(F64, 8, f64::MAX, F64s, F64, 2 x 32, load load_pd, load_foreign load_foreign_pd, store store_pd,
         store_foreign store_foreign_pd);
element!(F16, 2, LARGEST_F16, F32s, F32, 2 x 16, load load_ph, load_foreign load_foreign_ph, store store_ph,
         store_foreign store_foreign_ph);
element!(Bf16, 2, LARGEST_BF16, F32s, F32, 2 x 16, load load_bf, load_foreign load_foreign_bf, store store_bf,
         store_foreign store_foreign_bf);
