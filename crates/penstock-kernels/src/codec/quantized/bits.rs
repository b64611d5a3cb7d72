//! Elements as bits, and bits of elements, eight in a byte.

use crate::codec::Undecodable;
use crate::codec::span::refused;
use std::ops::{BitAnd, BitOr};

/// An element, whatever number it is.
pub(super) trait Bits:
    Copy + Eq + Default + BitAnd<Output = Self> + BitOr<Output = Self> + From<bool>
{
    /// Its bytes, little-endian.
    type Word: Copy;
    /// How many.
    const SIZE: usize;
    /// The sign's bit.
    const SIGN: Self;
    /// All others.
    const MAGNITUDE: Self;

    /// Those that fill the bytes.
    fn words(bytes: &[u8]) -> &[Self::Word];
    /// The same, to be written.
    fn words_mut(bytes: &mut [u8]) -> &mut [Self::Word];
    fn read(word: Self::Word) -> Self;
    fn write(self) -> Self::Word;
    /// All bits of it, or none.
    fn if_set(self, bit: u8) -> Self;
    /// 1 if it has the sign's bit, else 0.
    fn sign(self) -> u8;
}

macro_rules! bits {
    ($bits:ident) => {
        impl Bits for $bits {
            type Word = [u8; size_of::<Self>()];
            const SIZE: usize = size_of::<Self>();
            const SIGN: Self = !(Self::MAX >> 1);
            const MAGNITUDE: Self = Self::MAX >> 1;

            #[inline(always)]
            fn words(bytes: &[u8]) -> &[Self::Word] {
                bytes.as_chunks().0
            }

            #[inline(always)]
            fn words_mut(bytes: &mut [u8]) -> &mut [Self::Word] {
                bytes.as_chunks_mut().0
            }

            #[inline(always)]
            fn read(word: Self::Word) -> Self {
                Self::from_le_bytes(word)
            }

            #[inline(always)]
            fn write(self) -> Self::Word {
                self.to_le_bytes()
            }

            #[inline(always)]
            fn if_set(self, bit: u8) -> Self {
                self & Self::from(bit).wrapping_neg()
            }

            #[inline(always)]
            fn sign(self) -> u8 {
                (self >> (Self::BITS - 1)) as u8
            }
        }
    };
}

bits!(u16);
bits!(u32);
bits!(u64);

/// Bytes of as many bits.
pub(super) fn bytes(elements: usize) -> usize {
    elements.div_ceil(8)
}

/// Packs bits, a byte each, which is 0 or 1; behind the last there are zeros up to the next eight.
#[inline(always)]
pub(super) fn pack(bits: &[u8], out: &mut [u8]) {
    for (eight, out) in bits.as_chunks::<8>().0.iter().zip(out) {
        // Each bit to its place in the highest byte, and none to where another is.
        *out = (u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8;
    }
}

/// Unpacks what [`pack`] wrote.
#[inline(always)]
pub(super) fn unpack(packed: &[u8], bits: &mut [u8]) {
    for (&byte, eight) in packed.iter().zip(bits.as_chunks_mut::<8>().0) {
        // The byte eight times, of each one bit, moved into its highest bit.
        let each = u64::from(byte).wrapping_mul(0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
        *eight = (((each + 0x7f7f_7f7f_7f7f_7f7f) >> 7) & 0x0101_0101_0101_0101).to_le_bytes();
    }
}

/// Refuses bits behind the last element.
#[inline(always)]
pub(super) fn check(packed: &[u8], elements: usize) -> Result<(), Undecodable> {
    match packed.last() {
        Some(last) if !elements.is_multiple_of(8) && last >> (elements % 8) != 0 => {
            refused("bits behind the last element", 0, (last >> (elements % 8)).into())
        }
        _ => Ok(()),
    }
}
