//! Words by permutations of eight lanes of four bytes, out of a table. An element of two bytes is widened to a lane; one of eight
//! is two lanes, whose bits are the same.

use std::arch::x86_64::*;

use crate::vector::{GROUP, Words};

/// The lanes that have a bit, one behind the other: the number of each, a byte each.
const PACK: [u64; 256] = {
    let mut table = [0; 256];
    let mut which = 0;
    while which < 256 {
        let (mut lane, mut count) = (0, 0);
        while lane < 8 {
            if which >> lane & 1 == 1 {
                table[which] |= (lane as u64) << (8 * count);
                count += 1;
            }
            lane += 1;
        }
        which += 1;
    }
    table
};

/// For each lane that has a bit, how many before it have one.
const UNPACK: [u64; 256] = {
    let mut table = [0; 256];
    let mut which = 0;
    while which < 256 {
        let (mut lane, mut count) = (0, 0);
        while lane < 8 {
            if which >> lane & 1 == 1 {
                table[which] |= count << (8 * lane);
                count += 1;
            }
            lane += 1;
        }
        which += 1;
    }
    table
};

#[inline]
#[target_feature(enable = "avx2")]
fn permuted(lanes: __m256i, table: &[u64; 256], which: u8) -> __m256i {
    let order = _mm_cvtsi64_si128(table[usize::from(which)].cast_signed());
    _mm256_permutevar8x32_epi32(lanes, _mm256_cvtepu8_epi32(order))
}

/// All bits of the lanes that have a bit.
#[inline]
#[target_feature(enable = "avx2")]
fn lanes(which: u8) -> __m256i {
    let bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(which.into()), bits), bits)
}

/// The lanes that have a bit come from `next`, where they lie one behind the other.
#[inline]
#[target_feature(enable = "avx2")]
fn unpacked(next: __m256i, which: u8, old: __m256i) -> __m256i {
    _mm256_blendv_epi8(old, permuted(next, &UNPACK, which), lanes(which))
}

/// A bit for each lane that is all ones.
#[inline]
#[target_feature(enable = "avx2")]
fn bits(lanes: __m256i) -> u8 {
    _mm256_movemask_ps(_mm256_castsi256_ps(lanes)) as u8
}

#[inline]
#[target_feature(enable = "avx2")]
fn differing(now: __m256i, base: __m256i) -> u8 {
    !bits(_mm256_cmpeq_epi32(now, base))
}

#[inline]
#[target_feature(enable = "avx2")]
fn differing_pairs(now: __m256i, base: __m256i) -> u8 {
    !bits(_mm256_cmpeq_epi64(now, base))
}

#[inline]
#[target_feature(enable = "avx2")]
fn same(which: u8, new: __m256i, old: __m256i) -> u8 {
    bits(_mm256_cmpeq_epi32(new, old)) & which
}

#[inline]
#[target_feature(enable = "avx2")]
fn same_pairs(which: u8, new: __m256i, old: __m256i) -> u8 {
    bits(_mm256_cmpeq_epi64(new, old)) & which
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(piece: &[u8; 32]) -> __m256i {
    // SAFETY: 32 readable bytes.
    unsafe { _mm256_loadu_si256(piece.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(register: __m256i, piece: &mut [u8; 32]) {
    // SAFETY: 32 writable bytes.
    unsafe { _mm256_storeu_si256(piece.as_mut_ptr().cast(), register) };
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_wide(piece: &[u8; 16]) -> __m256i {
    // SAFETY: 16 readable bytes.
    _mm256_cvtepu16_epi32(unsafe { _mm_loadu_si128(piece.as_ptr().cast()) })
}

#[inline]
#[target_feature(enable = "avx2")]
fn store_narrow(register: __m256i, piece: &mut [u8; 16]) {
    // Each half of the register by itself: the lower half's elements come to be the first word, the upper half's the third.
    let narrow = _mm256_permute4x64_epi64::<0b10_00>(_mm256_packus_epi32(register, register));
    let narrow = _mm256_castsi256_si128(narrow);
    // SAFETY: 16 writable bytes.
    unsafe { _mm_storeu_si128(piece.as_mut_ptr().cast(), narrow) };
}

/// The bits of lanes are bits of elements.
#[inline(always)]
fn each(which: u8) -> u8 {
    which
}

/// A bit of every two.
#[inline(always)]
fn of_pairs(which: u8) -> u8 {
    which & 1 | which >> 1 & 2 | which >> 2 & 4 | which >> 3 & 8
}

/// Every bit twice.
#[inline(always)]
fn to_pairs(which: u8) -> u8 {
    [0x00, 0x03, 0x0c, 0x0f, 0x30, 0x33, 0x3c, 0x3f, 0xc0, 0xc3, 0xcc, 0xcf, 0xf0, 0xf3, 0xfc, 0xff]
        [usize::from(which & 15)]
}

macro_rules! words {
    ($name:ident, $size:literal, $lanes:literal in $piece:literal, load $load:path, store $store:path,
     differ $differ:path, same $same:path, narrow $narrow:path, widen $widen:path) => {
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
                    // SAFETY: as above.
                    let packed = unsafe { permuted(now, &PACK, differ) };
                    let differ = $narrow(differ);
                    which |= u64::from(differ) << (piece * $lanes);
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
                    let these = $widen((which >> (piece * $lanes)) as u8);
                    let next = packed[at..].first_chunk::<$piece>().expect("a piece's packed elements");
                    // SAFETY: as in `pack`.
                    let next = unsafe { $load(next) };
                    // SAFETY: as in `pack`.
                    let old = unsafe { $load(group) };
                    // SAFETY: as in `pack`.
                    let new = unsafe { unpacked(next, these, old) };
                    // SAFETY: as in `pack`; the array is as long as what is stored.
                    unsafe { $store(new, group) };
                    at += $size * $narrow(these).count_ones() as usize;
                }
            }

            #[inline(always)]
            fn repeats(which: u64, packed: &[u8], group: &[u8]) -> bool {
                let packed = &packed[..Self::BYTES];
                let (group, _) = group[..Self::BYTES].as_chunks::<$piece>();
                let (mut at, mut repeats) = (0, 0);
                for (piece, group) in group.iter().enumerate() {
                    let these = $widen((which >> (piece * $lanes)) as u8);
                    let next = packed[at..].first_chunk::<$piece>().expect("a piece's packed elements");
                    // SAFETY: as in `pack`.
                    let next = unsafe { $load(next) };
                    // SAFETY: as in `pack`.
                    let old = unsafe { $load(group) };
                    // SAFETY: as in `pack`.
                    let new = unsafe { unpacked(next, these, old) };
                    // SAFETY: as in `pack`.
                    repeats |= unsafe { $same(these, new, old) };
                    at += $size * $narrow(these).count_ones() as usize;
                }
                repeats != 0
            }

            #[inline(always)]
            fn numbers(which: u64, first: u16, out: &mut [u16; GROUP]) {
                // SAFETY: as in `pack`.
                unsafe { numbers(which, first, out) };
            }
        }
    };
}

/// Eight at a time.
#[inline]
#[target_feature(enable = "avx2,popcnt")]
fn numbers(which: u64, first: u16, out: &mut [u16; GROUP]) {
    let mut start = _mm_set1_epi16(first.cast_signed());
    let mut at = 0;
    for piece in 0..8 {
        let which = (which >> (8 * piece)) as u8;
        let lanes = _mm_cvtsi64_si128(PACK[usize::from(which)].cast_signed());
        let packed = _mm_add_epi16(_mm_cvtepu8_epi16(lanes), start);
        // No more came before this piece than its place in the group, so there is room for all of it.
        let room = out[at..].first_chunk_mut::<8>().expect("a piece's room");
        // SAFETY: 16 writable bytes.
        unsafe { _mm_storeu_si128(room.as_mut_ptr().cast(), packed) };
        start = _mm_add_epi16(start, _mm_set1_epi16(8));
        at += which.count_ones() as usize;
    }
}

words!(Words2, 2, 8 in 16, load load_wide, store store_narrow, differ differing, same same, narrow each, widen each);
words!(Words4, 4, 8 in 32, load load, store store, differ differing, same same, narrow each, widen each);
words!(Words8, 8, 4 in 32, load load, store store, differ differing_pairs, same same_pairs,
       narrow of_pairs, widen to_pairs);
