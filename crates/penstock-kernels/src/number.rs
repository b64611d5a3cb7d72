//! An accumulator as a number by itself: what loops are written in that look at its bits. The compiler makes vectors of them, with
//! whatever instruction set the function around them has.

use std::ops::{Add, Mul, Sub};

/// The scalar of an accumulator: f32 or f64.
pub(crate) trait Real: Copy + PartialEq {
    /// Rounds a setting, prepared in f64, to the accumulator.
    fn of(number: f64) -> Self;
    /// The same number in f64.
    fn wide(self) -> f64;
}

impl Real for f32 {
    fn of(number: f64) -> Self {
        number as Self
    }

    fn wide(self) -> f64 {
        self.into()
    }
}

impl Real for f64 {
    fn of(number: f64) -> Self {
        number
    }

    fn wide(self) -> f64 {
        self
    }
}

/// The same, and how it stands in memory.
pub(crate) trait Number:
    Real + PartialOrd + Add<Output = Self> + Mul<Output = Self> + Sub<Output = Self>
{
    /// Its bytes, little-endian.
    type Word: Copy;
    /// Bits of magnitudes are ordered as these are.
    type Key: Copy + Ord + Default;
    /// The magnitude of infinity: of NaN it is larger.
    const INFINITY: Self::Key;

    /// Those that fill the bytes.
    fn words(bytes: &[u8]) -> &[Self::Word];
    /// The same, to be written.
    fn words_mut(bytes: &mut [u8]) -> &mut [Self::Word];
    fn read(word: Self::Word) -> Self;
    fn write(self) -> Self::Word;

    fn magnitude(self) -> Self;
    /// The bits of the magnitude.
    fn key(self) -> Self::Key;
    fn of_key(key: Self::Key) -> Self;
    /// With the sign of another.
    fn signed(self, as_is: Self) -> Self;
    /// In f32, so that rounding that to half precision gives what rounding this does: where it has no such number, of the two
    /// beside it the one whose last bit is set (rounding to odd).
    fn narrow(self) -> f32;
    fn of_narrow(number: f32) -> Self;
    /// The next whole number, of two that are as near the even one; 0.0 for -0.0. For magnitudes up to 2^20.
    fn whole(self) -> Self;
    /// The low byte of the next whole number, in two's complement. For magnitudes up to 2^20.
    fn whole_byte(self) -> u8;
    /// The whole number that the byte is, in two's complement.
    fn of_byte(byte: u8) -> Self;
    /// Whether it has the same bits.
    fn is(self, other: Self) -> bool;

    fn is_finite(self) -> bool {
        self.key() < Self::INFINITY
    }
}

macro_rules! number {
    ($number:ident, $bits:ident, $shift:expr, $narrow:expr) => {
        impl Number for $number {
            type Word = [u8; size_of::<Self>()];
            type Key = $bits;
            const INFINITY: $bits = Self::INFINITY.to_bits();

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
            fn magnitude(self) -> Self {
                Self::from_bits(Number::key(self))
            }

            #[inline(always)]
            fn key(self) -> $bits {
                self.to_bits() & ($bits::MAX >> 1)
            }

            #[inline(always)]
            fn of_key(key: $bits) -> Self {
                Self::from_bits(key)
            }

            #[inline(always)]
            fn signed(self, as_is: Self) -> Self {
                Self::from_bits(self.to_bits() | (as_is.to_bits() & !($bits::MAX >> 1)))
            }

            #[inline(always)]
            fn narrow(self) -> f32 {
                $narrow(self)
            }

            #[inline(always)]
            fn of_narrow(number: f32) -> Self {
                number.into()
            }

            #[inline(always)]
            fn whole(self) -> Self {
                (self + $shift) - $shift
            }

            #[inline(always)]
            fn whole_byte(self) -> u8 {
                (self + $shift).to_bits() as u8
            }

            #[inline(always)]
            fn of_byte(byte: u8) -> Self {
                byte.cast_signed().into()
            }

            #[inline(always)]
            fn is(self, other: Self) -> bool {
                self.to_bits() == other.to_bits()
            }
        }
    };
}

// Behind a number of that size there is no fraction; half of it more, so that what is below 0 does not make it smaller.
number!(f32, u32, 1.5 * (1_u32 << 23) as f32, std::convert::identity);
number!(f64, u64, 1.5 * (1_u64 << 52) as f64, to_odd);

#[inline(always)]
fn to_odd(number: f64) -> f32 {
    let near = number as f32;
    let (bits, back) = (near.to_bits(), f64::from(near));
    if back == number || bits & 1 == 1 || number.is_nan() {
        return near;
    }
    // The next one towards zero, or away from it.
    f32::from_bits(if back.abs() > number.abs() { bits - 1 } else { bits + 1 })
}

/// The power of two that is at most as large as this: its exponent. For finite numbers but 0 and those too small to be normal
/// in f64, of which it is less than any other's.
#[inline(always)]
pub(crate) fn exponent(number: f64) -> i32 {
    ((number.to_bits() >> 52) & 0x7ff) as i32 - 1023
}

/// Two to that power, from -1022 to 1023.
#[inline(always)]
pub(crate) fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// The largest magnitude of those that are finite; 0 if there are none.
#[inline(always)]
pub(crate) fn largest<N: Number>(numbers: &[N::Word]) -> f64 {
    let key = |word: &N::Word| {
        let key = N::read(*word).key();
        if key < N::INFINITY { key } else { N::Key::default() }
    };
    N::of_key(numbers.iter().map(key).fold(N::Key::default(), Ord::max)).wide()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_the_nearest_and_their_bytes_are_in_twos_complement() {
        let cases: [(f64, f64); 6] =
            [(0.5, 0.0), (-0.5, 0.0), (1.5, 2.0), (-2.5, -2.0), (126.6, 127.0), (-127.0, -127.0)];
        for (number, whole) in cases {
            assert_eq!((number as f32).whole().to_bits(), (whole as f32).to_bits());
            assert_eq!(number.whole().to_bits(), whole.to_bits());
            assert_eq!((number as f32).whole_byte() as i8, whole as i8);
            assert_eq!(number.whole_byte() as i8, whole as i8);
        }
        assert_eq!(Number::whole(-0.0_f32).to_bits(), 0);
    }

    #[test]
    fn half_precision_is_rounded_to_once_from_f64_too() {
        // Halfway between two numbers of binary16 but for a bit that f32 has not.
        let number = 1.0 + 2_f64.powi(-11) + 2_f64.powi(-40);
        assert_eq!(half::f16::from_f32(number.narrow()), half::f16::from_f32(1.0 + 2_f32.powi(-10)));
        assert_eq!(half::f16::from_f32((-number).narrow()), half::f16::from_f32(-1.0 - 2_f32.powi(-10)));
        assert_eq!(1e300.narrow(), f32::MAX);
        assert!(f64::NAN.narrow().is_nan() && f64::INFINITY.narrow() == f32::INFINITY);
        for exact in [0.0, -0.0, 0.1_f32.into(), f64::from(f32::MIN_POSITIVE)] {
            assert_eq!(f64::from(exact.narrow()).to_bits(), f64::to_bits(exact));
        }
    }

    #[test]
    fn powers_of_two_are_told_by_their_exponents() {
        for power in [-1022, -149, -1, 0, 1, 127, 1023] {
            assert_eq!(exponent(power_of_two(power)), power);
            assert_eq!(exponent(-1.99 * power_of_two(power)), power);
        }
        assert_eq!(exponent(0.0), -1023);
        assert_eq!(exponent(f64::from_bits(1)), -1023);
    }
}
