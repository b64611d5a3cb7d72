//! The arithmetic of filters of values: how far what receivers hold is behind the value.
//!
//! A difference is taken in the dtype's accumulator, which is exact enough to choose by: what travels is the value itself, bit for
//! bit. What is not finite is no difference to choose by, and always passes. One pass over value and held for each look; the
//! loops hold no branch that depends on the numbers, so that the compiler can make vectors of them.

use super::spread::Spread;
use crate::Dtype;
use half::bf16;

/// What differences are taken in.
trait Wide: Copy {
    /// Bits of a key.
    const BITS: u32;
    fn of(number: f64) -> Self;
    fn number(self) -> f64;
    fn minus(self, other: Self) -> Self;
    /// Whether it is beyond a bound that is finite, or not finite itself.
    fn is_beyond(self, bound: Self) -> bool;
    /// Ordered as magnitudes are; NaN comes above infinity.
    fn key(self) -> u64;
}

impl Wide for f32 {
    const BITS: u32 = 32;

    fn of(number: f64) -> Self {
        number.min(Self::MAX.into()) as Self
    }

    fn number(self) -> f64 {
        self.into()
    }

    fn minus(self, other: Self) -> Self {
        self - other
    }

    #[expect(clippy::neg_cmp_op_on_partial_ord, reason = "NaN is beyond every bound")]
    fn is_beyond(self, bound: Self) -> bool {
        !(self.abs() <= bound)
    }

    fn key(self) -> u64 {
        self.abs().to_bits().into()
    }
}

impl Wide for f64 {
    const BITS: u32 = 64;

    fn of(number: f64) -> Self {
        number.min(Self::MAX)
    }

    fn number(self) -> f64 {
        self
    }

    fn minus(self, other: Self) -> Self {
        self - other
    }

    #[expect(clippy::neg_cmp_op_on_partial_ord, reason = "NaN is beyond every bound")]
    fn is_beyond(self, bound: Self) -> bool {
        !(self.abs() <= bound)
    }

    fn key(self) -> u64 {
        self.abs().to_bits()
    }
}

/// What is to be done with elements of whatever type.
trait Work {
    type Output;

    fn on<const BYTES: usize, W: Wide>(self, widen: impl Fn([u8; BYTES]) -> W + Copy) -> Self::Output;
}

fn dispatch<T: Work>(dtype: Dtype, work: T) -> T::Output {
    match dtype {
        Dtype::F32 => work.on::<4, f32>(f32::from_le_bytes),
        Dtype::F64 => work.on::<8, f64>(f64::from_le_bytes),
        Dtype::F16 => work.on::<2, f32>(|word| widened(u16::from_le_bytes(word))),
        Dtype::Bf16 => work.on::<2, f32>(|word| bf16::from_le_bytes(word).to_f32()),
    }
}

/// The number that a float16 of these bits is, by operations that vectors have, and without float32s that are denormal. What `half`
/// does asks the processor for each element what it can.
fn widened(bits: u16) -> f32 {
    const EXPONENT: u32 = 0x1f << 23;
    const REBIASED: u32 = (127 - 15) << 23;
    /// 2^-14, the least float16 that is normal.
    const LEAST_NORMAL: u32 = REBIASED + (1 << 23);
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let normal = magnitude + REBIASED;
    let denormal = (f32::from_bits(magnitude + LEAST_NORMAL) - f32::from_bits(LEAST_NORMAL)).to_bits();
    let beyond = normal + REBIASED;
    let number = match magnitude >> 23 {
        0 => denormal,
        exponent if exponent == EXPONENT >> 23 => beyond,
        _ => normal,
    };
    f32::from_bits(number | u32::from(bits & 0x8000) << 16)
}

/// Lets pass what is further behind than `bound`, 0 or above.
pub(super) fn pass(dtype: Dtype, value: &[u8], held: &mut [u8], bound: f64) {
    struct Pass<'a>(&'a [u8], &'a mut [u8], f64);

    impl Work for Pass<'_> {
        type Output = ();

        fn on<const BYTES: usize, W: Wide>(self, widen: impl Fn([u8; BYTES]) -> W + Copy) {
            let Self(value, held, bound) = self;
            let bound = W::of(bound);
            for (&now, held) in value.as_chunks::<BYTES>().0.iter().zip(held.as_chunks_mut::<BYTES>().0) {
                let passes = widen(now).minus(widen(*held)).is_beyond(bound);
                *held = if passes { now } else { *held };
            }
        }
    }
    assert_eq!(value.len(), held.len(), "receivers hold as much as there is");
    dispatch(dtype, Pass(value, held, bound));
}

/// What there is of the differences that are finite; zeros if there is nothing. The sum goes in eight parts, so that it can go fast
/// and has the same bits everywhere. For callers that are [`settled`](crate::settled).
pub(super) fn spread(dtype: Dtype, value: &[u8], held: &[u8]) -> Spread {
    /// The sum of their squares, and the largest magnitude.
    struct Squares<'a>(&'a [u8], &'a [u8], f64);

    impl Work for Squares<'_> {
        type Output = (f64, f64);

        fn on<const BYTES: usize, W: Wide>(self, widen: impl Fn([u8; BYTES]) -> W + Copy) -> (f64, f64) {
            let Self(value, held, factor) = self;
            let finite = |now, held| {
                let number = widen(now).minus(widen(held)).number();
                if number.is_finite() { number * factor } else { 0.0 }
            };
            let (mut squares, mut largest) = ([0.0; 8], [0.0; 8]);
            let (now, held) = (value.as_chunks::<BYTES>().0, held.as_chunks::<BYTES>().0);
            for (now, held) in now.chunks(8).zip(held.chunks(8)) {
                let parts = squares.iter_mut().zip(&mut largest);
                for ((square, largest), (&now, &held)) in parts.zip(now.iter().zip(held)) {
                    let number = finite(now, held);
                    *square += number * number;
                    *largest = if number.abs() > *largest { number.abs() } else { *largest };
                }
            }
            (squares.iter().sum(), largest.into_iter().fold(0.0, f64::max))
        }
    }
    let elements = (value.len() / dtype.size()) as f64;
    if elements == 0.0 {
        return Spread::default();
    }
    let (squares, largest) = dispatch(dtype, Squares(value, held, 1.0));
    if squares.is_finite() {
        return Spread { root_mean_square: (squares / elements).sqrt(), largest };
    }
    // Squares of numbers that are there may be too large to be.
    let small = f64::from_bits((1023 - 540) << 52);
    let (squares, _) = dispatch(dtype, Squares(value, held, small));
    Spread { root_mean_square: (squares / elements).sqrt() / small, largest }
}

/// Lets pass the `wanted` elements that are furthest behind; of equal ones the first.
pub(super) fn pass_top(dtype: Dtype, value: &[u8], held: &mut [u8], wanted: usize) {
    struct Top<'a>(&'a [u8], &'a mut [u8], usize);

    impl Work for Top<'_> {
        type Output = ();

        fn on<const BYTES: usize, W: Wide>(self, widen: impl Fn([u8; BYTES]) -> W + Copy) {
            let Self(value, held, wanted) = self;
            let now = value.as_chunks::<BYTES>().0;
            // What is the same has nothing to send; what differs in its sign of zero alone comes last.
            let key = |now: [u8; BYTES], held: [u8; BYTES]| {
                let key = widen(now).minus(widen(held)).key() + 1;
                if now == held { 0 } else { key }
            };
            let there = held.as_chunks::<BYTES>().0;
            let keys = || now.iter().zip(there).map(|(&now, &held)| key(now, held));
            let Found { least, above } = find(keys, W::BITS, wanted);
            let infinite = W::of(f64::MAX).key() + 2;
            let mut left = wanted - above;
            for (&now, held) in now.iter().zip(held.as_chunks_mut::<BYTES>().0) {
                let key = key(now, *held);
                let first = key == least && left > 0;
                left -= usize::from(first);
                if key > 0 && (first || key > least || key >= infinite) {
                    *held = now;
                }
            }
        }
    }
    assert_eq!(value.len(), held.len(), "receivers hold as much as there is");
    dispatch(dtype, Top(value, held, wanted));
}

/// The `wanted`-largest key.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) least: u64,
    /// Keys above it.
    pub(super) above: usize,
}

/// Bits that one look at all keys decides.
const DIGIT: u32 = 11;

/// How often [`find`] looks at all keys of so many bits.
pub(super) fn looks(bits: u32) -> u32 {
    bits.div_ceil(DIGIT)
}

/// The `wanted`-largest of keys of so many bits, digit by digit from the top: each look counts the keys that agree with what is
/// known.
pub(super) fn find<I: Iterator<Item = u64>>(keys: impl Fn() -> I, bits: u32, wanted: usize) -> Found {
    let (mut prefix, mut above, mut undecided) = (0, 0, bits);
    while undecided > 0 {
        let width = DIGIT.min(undecided);
        let shift = undecided - width;
        let mut counts = [0_u32; 1 << DIGIT];
        for key in keys() {
            if undecided == bits || key >> undecided == prefix {
                counts[(key >> shift) as usize & ((1 << width) - 1)] += 1;
            }
        }
        let mut digit = (1 << width) - 1;
        while digit > 0 && above + (counts[digit] as usize) < wanted {
            above += counts[digit] as usize;
            digit -= 1;
        }
        prefix = prefix << width | digit as u64;
        undecided = shift;
    }
    Found { least: prefix, above }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;
    use proptest::prelude::*;

    #[test]
    fn every_float16_is_widened_to_the_number_that_it_is() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (widened(bits), f16::from_bits(bits).to_f32());
            assert!(
                ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()),
                "{bits:#x}: {ours}"
            );
        }
    }

    proptest! {
        #[test]
        fn the_wanted_largest_is_found_among_keys_of_any_width(
            bits in prop::sample::select(&[32_u32, 64, 31]),
            keys in prop::collection::vec(any::<u64>(), 1..200),
            same in prop::collection::vec(any::<prop::sample::Index>(), 0..50),
            wanted in any::<prop::sample::Index>(),
        ) {
            let mut keys: Vec<u64> = keys.into_iter().map(|key| key >> (64 - bits)).collect();
            let again: Vec<u64> = same.iter().map(|at| *at.get(&keys)).collect();
            keys.extend(again);
            let wanted = wanted.index(keys.len()) + 1;
            let found = find(|| keys.iter().copied(), bits, wanted);
            keys.sort_unstable_by(|a, b| b.cmp(a));
            let least = keys[wanted - 1];
            let above = keys.iter().filter(|&&key| key > least).count();
            prop_assert_eq!(found, Found { least, above });
        }
    }
}
