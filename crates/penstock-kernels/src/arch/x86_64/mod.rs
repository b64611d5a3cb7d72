//! x86-64: the same three files for each instruction set, and here what they share.
//!
//! Each operation is a list of registers, mapped one by one; the compiler keeps them in registers once everything is inlined
//! into `Isa::run`. Foreign memory is loaded or stored by one assembly block for all registers of a vector: opaque, done once,
//! in order. (`ptr::read_volatile` of a `__m512` gives the same loads, but is a plain racing read to the language.)

pub(crate) mod avx2;
pub(crate) mod avx512;

/// Whether the processor counts bits, and zeros at either end of them, by one instruction each: all that have vectors do.
fn counts_bits() -> bool {
    is_x86_feature_detected!("popcnt")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("lzcnt")
}

/// A vector of `$count` registers `$register`, with `$lanes` numbers `$scalar` in all, from the named operations on one register.
macro_rules! vector {
    (
        $name:ident, $scalar:ident, $register:ident x $count:literal, $lanes:literal,
        splat $splat:path, add $add:path, sub $sub:path, mul $mul:path, div $div:path, sqrt $sqrt:path,
        min $min:path, max $max:path, flip $flip:path, larger $larger:path, finite $finite:path,
        finite_or_zero $finite_or_zero:path, beyond_or_zero $beyond_or_zero:path,
    ) => {
        /// Accumulators in registers.
        #[derive(Clone, Copy)]
        pub(crate) struct $name(pub(super) [$register; $count]);

        impl $name {
            #[inline(always)]
            fn both(mut self, other: Self, operation: impl Fn($register, $register) -> $register) -> Self {
                for i in 0..$count {
                    self.0[i] = operation(self.0[i], other.0[i]);
                }
                self
            }
        }

        impl $crate::vector::Vector for $name {
            type Scalar = $scalar;
            const LANES: usize = $lanes;

            #[inline(always)]
            fn splat(number: $scalar) -> Self {
                // SAFETY: vectors are only made inside `Isa::run`, whose token proves the instruction set (so below, too).
                Self([unsafe { $splat(number) }; $count])
            }

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                // SAFETY: as in `splat`.
                self.both(other, |a, b| unsafe { $add(a, b) })
            }

            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                // SAFETY: as in `splat`.
                self.both(other, |a, b| unsafe { $sub(a, b) })
            }

            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                // SAFETY: as in `splat`.
                self.both(other, |a, b| unsafe { $mul(a, b) })
            }

            #[inline(always)]
            fn div(self, other: Self) -> Self {
                // SAFETY: as in `splat`.
                self.both(other, |a, b| unsafe { $div(a, b) })
            }

            #[inline(always)]
            fn sqrt(self) -> Self {
                // SAFETY: as in `splat`.
                self.both(self, |a, _| unsafe { $sqrt(a) })
            }

            #[inline(always)]
            fn flip(self, sign: Self) -> Self {
                // SAFETY: as in `splat`.
                self.both(sign, |a, sign| unsafe { $flip(a, sign) })
            }

            #[inline(always)]
            fn clamp(self, limit: Self) -> Self {
                let low = limit.flip(Self::splat(-0.0));
                // SAFETY: as in `splat`. The instruction gives its second operand where either is NaN.
                let raised = self.both(low, |a, low| unsafe { $max(low, a) });
                // SAFETY: as above.
                raised.both(limit, |a, limit| unsafe { $min(limit, a) })
            }

            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                // SAFETY: as in `splat`.
                self.both(other, |a, b| unsafe { $larger(a, b) })
            }

            #[inline(always)]
            fn is_finite(self) -> bool {
                // SAFETY: as in `splat`.
                self.0.into_iter().fold(true, |all, a| all & unsafe { $finite(a) })
            }

            #[inline(always)]
            fn finite_or_zero(self) -> Self {
                // SAFETY: as in `splat`.
                self.both(self, |a, _| unsafe { $finite_or_zero(a) })
            }

            #[inline(always)]
            fn beyond_or_zero(self, limit: Self) -> Self {
                // SAFETY: as in `splat`.
                self.both(limit, |a, limit| unsafe { $beyond_or_zero(a, limit) })
            }
        }
    };
}

/// A dtype whose elements fill `$count` pieces of `$piece` bytes, from one operation that reads a piece from our own
/// memory, one that reads all pieces from a lane, one that writes a piece, and one that writes all to where others look.
macro_rules! element {
    ($name:ident, $size:literal, $largest:expr, $vector:ident, $state:ident, $count:literal x $piece:literal,
     load $load:path, load_foreign $load_foreign:path, store $store:path, store_foreign $store_foreign:path) => {
        /// One dtype.
        pub(crate) struct $name;

        impl $crate::vector::Element for $name {
            type Vector = $vector;
            type State = $state;
            const SIZE: usize = $size;
            const LARGEST: f64 = $largest;

            #[inline(always)]
            fn load(bytes: &[u8]) -> $vector {
                let (pieces, _) = bytes[..Self::BYTES].as_chunks::<$piece>();
                // SAFETY: the token proves the instruction set (see `Vector::splat`); the array is `$piece` bytes.
                let piece = |i: usize| unsafe { $load(&pieces[i]) };
                $vector(std::array::from_fn(piece))
            }

            #[inline(always)]
            fn load_foreign(lane: &$crate::Foreign<'_>, at: usize) -> $vector {
                let source = lane.window(at, Self::BYTES);
                // SAFETY: the token proves the instruction set; `window` gives a pointer that is good for `BYTES` loads.
                $vector(unsafe { $load_foreign(source) })
            }

            #[inline(always)]
            fn store(vector: $vector, bytes: &mut [u8]) {
                let (pieces, _) = bytes[..Self::BYTES].as_chunks_mut::<$piece>();
                for (register, piece) in vector.0.into_iter().zip(pieces) {
                    // SAFETY: the token proves the instruction set; the array is `$piece` bytes.
                    unsafe { $store(register, piece) };
                }
            }

            #[inline(always)]
            fn store_foreign(vector: $vector, target: &mut $crate::ForeignMut<'_>, at: usize) {
                let target = target.window(at, Self::BYTES);
                // SAFETY: the token proves the instruction set; `window` gives a pointer that is good for `BYTES` stores.
                unsafe { $store_foreign(vector.0, target) };
            }
        }
    };
}

use {element, vector};
