//! Vectors of four zmm registers.

use std::arch::x86_64::*;

use crate::arch::x86_64::vector;

#[inline]
#[target_feature(enable = "avx512f")]
fn flip_ps(a: __m512, sign: __m512) -> __m512 {
    _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(a), _mm512_castps_si512(sign)))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn flip_pd(a: __m512d, sign: __m512d) -> __m512d {
    _mm512_castsi512_pd(_mm512_xor_si512(_mm512_castpd_si512(a), _mm512_castpd_si512(sign)))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn larger_ps(a: __m512, b: __m512) -> __m512 {
    // The instruction gives b where either is NaN, so only a NaN in a is left to keep.
    _mm512_mask_mov_ps(_mm512_max_ps(a, b), _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a), a)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn larger_pd(a: __m512d, b: __m512d) -> __m512d {
    _mm512_mask_mov_pd(_mm512_max_pd(a, b), _mm512_cmp_pd_mask::<_CMP_UNORD_Q>(a, a), a)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn finite_mask_ps(a: __m512) -> __mmask16 {
    _mm512_cmp_ps_mask::<_CMP_LE_OQ>(_mm512_abs_ps(a), _mm512_set1_ps(f32::MAX))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn finite_mask_pd(a: __m512d) -> __mmask8 {
    _mm512_cmp_pd_mask::<_CMP_LE_OQ>(_mm512_abs_pd(a), _mm512_set1_pd(f64::MAX))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn finite_ps(a: __m512) -> bool {
    finite_mask_ps(a) == __mmask16::MAX
}

#[inline]
#[target_feature(enable = "avx512f")]
fn finite_pd(a: __m512d) -> bool {
    finite_mask_pd(a) == __mmask8::MAX
}

#[inline]
#[target_feature(enable = "avx512f")]
fn finite_or_zero_ps(a: __m512) -> __m512 {
    _mm512_maskz_mov_ps(finite_mask_ps(a), a)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn finite_or_zero_pd(a: __m512d) -> __m512d {
    _mm512_maskz_mov_pd(finite_mask_pd(a), a)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn beyond_or_zero_ps(a: __m512, limit: __m512) -> __m512 {
    let beyond = _mm512_cmp_ps_mask::<_CMP_NLE_UQ>(_mm512_abs_ps(a), limit);
    _mm512_maskz_mov_ps(beyond, a)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn beyond_or_zero_pd(a: __m512d, limit: __m512d) -> __m512d {
    let beyond = _mm512_cmp_pd_mask::<_CMP_NLE_UQ>(_mm512_abs_pd(a), limit);
    _mm512_maskz_mov_pd(beyond, a)
}

vector! {
    F32s, f32, __m512 x 4, 64,
    splat _mm512_set1_ps, add _mm512_add_ps, sub _mm512_sub_ps, mul _mm512_mul_ps, div _mm512_div_ps,
    sqrt _mm512_sqrt_ps, min _mm512_min_ps, max _mm512_max_ps, flip flip_ps, larger larger_ps,
    finite finite_ps, finite_or_zero finite_or_zero_ps, beyond_or_zero beyond_or_zero_ps,
}

vector! {
    F64s, f64, __m512d x 4, 32,
    splat _mm512_set1_pd, add _mm512_add_pd, sub _mm512_sub_pd, mul _mm512_mul_pd, div _mm512_div_pd,
    sqrt _mm512_sqrt_pd, min _mm512_min_pd, max _mm512_max_pd, flip flip_pd, larger larger_pd,
    finite finite_pd, finite_or_zero finite_or_zero_pd, beyond_or_zero beyond_or_zero_pd,
}
