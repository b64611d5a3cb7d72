//! Vectors of two ymm registers.

use std::arch::x86_64::*;

use crate::arch::x86_64::vector;

#[inline]
#[target_feature(enable = "avx2")]
fn larger_ps(a: __m256, b: __m256) -> __m256 {
    // The instruction gives b where either is NaN, so only a NaN in a is left to keep.
    _mm256_blendv_ps(_mm256_max_ps(a, b), a, _mm256_cmp_ps::<_CMP_UNORD_Q>(a, a))
}

#[inline]
#[target_feature(enable = "avx2")]
fn larger_pd(a: __m256d, b: __m256d) -> __m256d {
    _mm256_blendv_pd(_mm256_max_pd(a, b), a, _mm256_cmp_pd::<_CMP_UNORD_Q>(a, a))
}

#[inline]
#[target_feature(enable = "avx2")]
fn finite_mask_ps(a: __m256) -> __m256 {
    let magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0), a);
    _mm256_cmp_ps::<_CMP_LE_OQ>(magnitude, _mm256_set1_ps(f32::MAX))
}

#[inline]
#[target_feature(enable = "avx2")]
fn finite_mask_pd(a: __m256d) -> __m256d {
    let magnitude = _mm256_andnot_pd(_mm256_set1_pd(-0.0), a);
    _mm256_cmp_pd::<_CMP_LE_OQ>(magnitude, _mm256_set1_pd(f64::MAX))
}

#[inline]
#[target_feature(enable = "avx2")]
fn finite_ps(a: __m256) -> bool {
    _mm256_movemask_ps(finite_mask_ps(a)) == 0xff
}

#[inline]
#[target_feature(enable = "avx2")]
fn finite_pd(a: __m256d) -> bool {
    _mm256_movemask_pd(finite_mask_pd(a)) == 0xf
}

#[inline]
#[target_feature(enable = "avx2")]
fn finite_or_zero_ps(a: __m256) -> __m256 {
    _mm256_and_ps(finite_mask_ps(a), a)
}

#[inline]
#[target_feature(enable = "avx2")]
fn finite_or_zero_pd(a: __m256d) -> __m256d {
    _mm256_and_pd(finite_mask_pd(a), a)
}

#[inline]
#[target_feature(enable = "avx2")]
fn beyond_or_zero_ps(a: __m256, limit: __m256) -> __m256 {
    let magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0), a);
    _mm256_and_ps(_mm256_cmp_ps::<_CMP_NLE_UQ>(magnitude, limit), a)
}

#[inline]
#[target_feature(enable = "avx2")]
fn beyond_or_zero_pd(a: __m256d, limit: __m256d) -> __m256d {
    let magnitude = _mm256_andnot_pd(_mm256_set1_pd(-0.0), a);
    _mm256_and_pd(_mm256_cmp_pd::<_CMP_NLE_UQ>(magnitude, limit), a)
}

vector! {
    F32s, f32, __m256 x 2, 16,
    splat _mm256_set1_ps, add _mm256_add_ps, sub _mm256_sub_ps, mul _mm256_mul_ps, div _mm256_div_ps,
    sqrt _mm256_sqrt_ps, min _mm256_min_ps, max _mm256_max_ps, flip _mm256_xor_ps, larger larger_ps,
    finite finite_ps, finite_or_zero finite_or_zero_ps, beyond_or_zero beyond_or_zero_ps,
}

vector! {
    F64s, f64, __m256d x 2, 8,
    splat _mm256_set1_pd, add _mm256_add_pd, sub _mm256_sub_pd, mul _mm256_mul_pd, div _mm256_div_pd,
    sqrt _mm256_sqrt_pd, min _mm256_min_pd, max _mm256_max_pd, flip _mm256_xor_pd, larger larger_pd,
    finite finite_pd, finite_or_zero finite_or_zero_pd, beyond_or_zero beyond_or_zero_pd,
}
