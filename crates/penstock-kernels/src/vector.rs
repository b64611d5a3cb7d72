//! The small vector: what kernels are written in, once, for every instruction set.
//!
//! A [`Vector`] is a handful of registers of accumulators; an [`Element`] says how elements of a dtype become one and
//! are stored again; an [`Isa`](crate::arch::Isa) names both for one instruction set. Every operation
//! is one IEEE operation on each number, in the order written: nothing is fused or reassociated, so all instruction sets
//! give the same bits (NaNs are equal only as NaNs: which payload survives is the compiler's choice).

use crate::foreign::{Foreign, ForeignMut};
use crate::number::Number;

/// Some accumulators side by side.
pub(crate) trait Vector: Copy {
    /// One accumulator.
    type Scalar: Number;
    /// How many.
    const LANES: usize;

    fn splat(number: Self::Scalar) -> Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    fn sqrt(self) -> Self;
    /// Flips the signs where `sign` is -0.0; leaves all where it is 0.0.
    fn flip(self, sign: Self) -> Self;
    /// Into `[-limit, limit]`; NaN stays NaN.
    fn clamp(self, limit: Self) -> Self;
    /// The larger of each two; NaN where either is.
    fn larger(self, other: Self) -> Self;
    /// Whether every number is finite.
    fn is_finite(self) -> bool;
    /// Zero in place of every number that is not finite.
    fn finite_or_zero(self) -> Self;
    /// Zero in place of every number that is not beyond `limit`, whatever its sign. NaN is beyond every limit, and all are beyond
    /// NaN.
    fn beyond_or_zero(self, limit: Self) -> Self;
}

/// The largest finite numbers in half precision.
pub(crate) const LARGEST_F16: f64 = 65504.0;
pub(crate) const LARGEST_BF16: f64 = 255.0 * (1_u128 << 120) as f64;

/// A dtype, as one instruction set reads and writes it.
pub(crate) trait Element {
    /// What is computed in.
    type Vector: Vector;
    /// The accumulator's own dtype, in which state is kept.
    type State: Element<Vector = Self::Vector>;
    /// Bytes of one element.
    const SIZE: usize;
    /// The largest finite number.
    const LARGEST: f64;
    /// Bytes of a vector's worth of elements.
    const BYTES: usize = Self::SIZE * <Self::Vector as Vector>::LANES;

    /// Reads the first `BYTES` of `bytes`.
    fn load(bytes: &[u8]) -> Self::Vector;
    /// Reads `BYTES` from byte `at` of a lane.
    fn load_foreign(lane: &Foreign<'_>, at: usize) -> Self::Vector;
    /// Rounds to nearest even and writes the first `BYTES` of `bytes`.
    fn store(vector: Self::Vector, bytes: &mut [u8]);
    /// The same to memory that others may look at, from byte `at`.
    fn store_foreign(vector: Self::Vector, target: &mut ForeignMut<'_>, at: usize);
}

/// Room for a vector's worth of elements of any dtype: the padded tail of a chunk.
pub(crate) const TAIL: usize = 256;

/// Elements of one width, [`GROUP`] at a time and as bits alone: what those that differ from others are packed by.
pub(crate) trait Words {
    /// Bytes of an element.
    const SIZE: usize;
    /// Bytes of a group.
    const BYTES: usize = Self::SIZE * GROUP;

    /// Which elements of the group `now` differ from those of `base`, a bit each. They are written one behind the other to
    /// `out`, and anything behind them, but for no byte behind `BYTES`.
    fn pack(now: &[u8], base: &[u8], out: &mut [u8]) -> u64;
    /// Writes the elements `packed`, which lie one behind the other, over those of the group that have a bit. Behind them there
    /// may be anything, but `BYTES` in all.
    fn unpack(which: u64, packed: &[u8], group: &mut [u8]);
    /// Whether any of them is what stands there already.
    fn repeats(which: u64, packed: &[u8], group: &[u8]) -> bool;
    /// Writes the numbers of the elements that have a bit to `out`, ascending and counted from `first`, and anything behind them.
    fn numbers(which: u64, first: u16, out: &mut [u16; GROUP]);
}

/// Elements that have a bit in one word.
pub(crate) const GROUP: usize = 64;
