//! Words by compression and expansion in registers. (To memory, the compressing store takes an order of magnitude longer on
//! some processors.) Elements of two bytes are widened, as their own instructions are of a later set.

use std::arch::x86_64::*;

use crate::vector::{GROUP, Words};

macro_rules! words {
    ($name:ident, $size:literal, $lanes:literal in $piece:literal, $mask:ident,
     load $load:path, store $store:path, differ $differ:path, same $same:path,
     compress $compress:path, expand $expand:path) => {
        /// Of one width.
        pub(crate) struct $name;

        impl Words for $name {
            const SIZE: usize = $size;

            #[inline(always)]
            fn pack(now: &[u8], base: &[u8], out: &mut [u8]) -> u64 {
                let (now, _) = now[..Self::BYTES].as_chunks::<$piece>();
                let (base, _) = base[..Self::BYTES].as_chunks::<$piece>();
                let out = &mut out[..Self::BYTES];
                let (mut which, mut at) = (0, 0);
                for (piece, (now, base)) in now.iter().zip(base).enumerate() {
                    // SAFETY: words are only packed inside `Isa::run`, whose token proves the instruction set (so below, too).
                    let now = unsafe { $load(now) };
                    // SAFETY: as above.
                    let base = unsafe { $load(base) };
                    // SAFETY: as above.
                    let differ = unsafe { $differ(now, base) };
                    which |= u64::from(differ) << (piece * $lanes);
                    // SAFETY: as above.
                    let packed = unsafe { $compress(differ, now) };
                    // No more came before this piece than its place in the group, so there is room for all of it.
                    let room = out[at..].first_chunk_mut::<$piece>().expect("a piece's room");
                    // SAFETY: as above; the array is as long as what is stored.
                    unsafe { $store(packed, room) };
                    at += $size * differ.count_ones() as usize;
                }
                which
            }

            #[inline(always)]
            fn unpack(which: u64, packed: &[u8], group: &mut [u8]) {
                let packed = &packed[..Self::BYTES];
                let (group, _) = group[..Self::BYTES].as_chunks_mut::<$piece>();
                let mut at = 0;
                for (piece, group) in group.iter_mut().enumerate() {
                    let which = (which >> (piece * $lanes)) as $mask;
                    let next = packed[at..].first_chunk::<$piece>().expect("a piece's packed elements");
                    // SAFETY: as in `pack`.
                    let next = unsafe { $load(next) };
                    // SAFETY: as in `pack`.
                    let old = unsafe { $load(group) };
                    // SAFETY: as in `pack`.
                    let new = unsafe { $expand(old, which, next) };
                    // SAFETY: as in `pack`; the array is as long as what is stored.
                    unsafe { $store(new, group) };
                    at += $size * which.count_ones() as usize;
                }
            }

            #[inline(always)]
            fn repeats(which: u64, packed: &[u8], group: &[u8]) -> bool {
                let packed = &packed[..Self::BYTES];
                let (group, _) = group[..Self::BYTES].as_chunks::<$piece>();
                let (mut at, mut repeats) = (0, 0);
                for (piece, group) in group.iter().enumerate() {
                    let which = (which >> (piece * $lanes)) as $mask;
                    let next = packed[at..].first_chunk::<$piece>().expect("a piece's packed elements");
                    // SAFETY: as in `pack`.
                    let next = unsafe { $load(next) };
                    // SAFETY: as in `pack`.
                    let old = unsafe { $load(group) };
                    // SAFETY: as in `pack`.
                    let new = unsafe { $expand(old, which, next) };
                    // SAFETY: as in `pack`.
                    repeats |= unsafe { $same(which, new, old) };
                    at += $size * which.count_ones() as usize;
                }
                repeats != 0
            }

            #[inline(always)]
            fn numbers(which: u64, first: u16, out: &mut [u16; GROUP]) {
                // SAFETY: as in `pack`.
                unsafe { numbers(which, first, out) };
            }
        }

        const _: () = assert!($name::BYTES == $size * GROUP && $piece == $size * $lanes);
    };
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(piece: &[u8; 64]) -> __m512i {
    // SAFETY: 64 readable bytes.
    unsafe { _mm512_loadu_si512(piece.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(register: __m512i, piece: &mut [u8; 64]) {
    // SAFETY: 64 writable bytes.
    unsafe { _mm512_storeu_si512(piece.as_mut_ptr().cast(), register) };
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_wide(piece: &[u8; 32]) -> __m512i {
    // SAFETY: 32 readable bytes.
    _mm512_cvtepu16_epi32(unsafe { _mm256_loadu_si256(piece.as_ptr().cast()) })
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_narrow(register: __m512i, piece: &mut [u8; 32]) {
    let narrow = _mm512_cvtepi32_epi16(register);
    // SAFETY: 32 writable bytes.
    unsafe { _mm256_storeu_si256(piece.as_mut_ptr().cast(), narrow) };
}

/// Sixteen at a time.
#[inline]
#[target_feature(enable = "avx512f,popcnt")]
fn numbers(which: u64, first: u16, out: &mut [u16; GROUP]) {
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let mut these = _mm512_add_epi32(lanes, _mm512_set1_epi32(first.into()));
    let mut at = 0;
    for piece in 0..4 {
        let which = (which >> (16 * piece)) as __mmask16;
        let packed = _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(which, these));
        // No more came before this piece than its place in the group, so there is room for all of it.
        let room = out[at..].first_chunk_mut::<16>().expect("a piece's room");
        // SAFETY: 32 writable bytes.
        unsafe { _mm256_storeu_si256(room.as_mut_ptr().cast(), packed) };
        these = _mm512_add_epi32(these, _mm512_set1_epi32(16));
        at += which.count_ones() as usize;
    }
}

words!(Words2, 2, 16 in 32, __mmask16, load load_wide, store store_narrow, differ _mm512_cmpneq_epi32_mask,
       same _mm512_mask_cmpeq_epi32_mask, compress _mm512_maskz_compress_epi32, expand _mm512_mask_expand_epi32);
words!(Words4, 4, 16 in 64, __mmask16, load load, store store, differ _mm512_cmpneq_epi32_mask,
       same _mm512_mask_cmpeq_epi32_mask, compress _mm512_maskz_compress_epi32, expand _mm512_mask_expand_epi32);
words!(Words8, 8, 8 in 64, __mmask8, load load, store store, differ _mm512_cmpneq_epi64_mask,
       same _mm512_mask_cmpeq_epi64_mask, compress _mm512_maskz_compress_epi64, expand _mm512_mask_expand_epi64);
