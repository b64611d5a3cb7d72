//! Vectors as arrays of 64 bytes.

use crate::vector::Vector;

/// Accumulators in an array.
#[derive(Clone, Copy)]
pub(crate) struct Array<T, const N: usize>(pub(super) [T; N]);

pub(crate) type F32s = Array<f32, 16>;
pub(crate) type F64s = Array<f64, 8>;

macro_rules! vector {
    ($scalar:ident, $lanes:literal) => {
        impl Array<$scalar, $lanes> {
            #[inline(always)]
            fn each(self, operation: impl Fn($scalar) -> $scalar) -> Self {
                Self(std::array::from_fn(|i| operation(self.0[i])))
            }

            #[inline(always)]
            fn both(self, other: Self, operation: impl Fn($scalar, $scalar) -> $scalar) -> Self {
                Self(std::array::from_fn(|i| operation(self.0[i], other.0[i])))
            }
        }

        impl Vector for Array<$scalar, $lanes> {
            type Scalar = $scalar;
            const LANES: usize = $lanes;

            #[inline(always)]
            fn splat(number: $scalar) -> Self {
                Self([number; $lanes])
            }

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.both(other, |a, b| a + b)
            }

            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                self.both(other, |a, b| a - b)
            }

            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self.both(other, |a, b| a * b)
            }

            #[inline(always)]
            fn div(self, other: Self) -> Self {
                self.both(other, |a, b| a / b)
            }

            #[inline(always)]
            fn sqrt(self) -> Self {
                self.each($scalar::sqrt)
            }

            #[inline(always)]
            fn flip(self, sign: Self) -> Self {
                self.both(sign, |a, sign| $scalar::from_bits(a.to_bits() ^ sign.to_bits()))
            }

            #[inline(always)]
            fn clamp(self, limit: Self) -> Self {
                self.both(limit, |a, limit| if -limit > a { -limit } else { a })
                    .both(limit, |a, limit| if limit < a { limit } else { a })
            }

            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                self.both(other, |a, b| if a > b || a.is_nan() { a } else { b })
            }

            #[inline(always)]
            fn is_finite(self) -> bool {
                self.0.iter().fold(true, |all, number| all & number.is_finite())
            }

            #[inline(always)]
            fn finite_or_zero(self) -> Self {
                self.each(|a| if a.is_finite() { a } else { 0.0 })
            }

            #[inline(always)]
            fn beyond_or_zero(self, limit: Self) -> Self {
                self.both(limit, |a, limit| if a.abs() <= limit { 0.0 } else { a })
            }
        }
    };
}

vector!(f32, 16);
vector!(f64, 8);
