//! Elements that are whole multiples of a step, a power of two that those of a block share.

use super::{Moved, Packing};
use crate::blocks::{self, Room};
use crate::codec::Undecodable;
use crate::codec::span::refused;
use crate::number::{Number, Real, exponent, largest, power_of_two};
use crate::sweep::ScalarOf;
use crate::vector::Element;
use crate::{Dtype, Foreign, ForeignMut};
use std::marker::PhantomData;
use std::ops::RangeInclusive;

/// The most steps either way.
pub(crate) const MOST: u8 = 127;
/// Bytes of a step.
pub(super) const STEP: usize = 2;

/// Exponents of steps: of all multiples the dtype has the numbers, and of the step's inverse its accumulator.
const fn steps(dtype: Dtype) -> RangeInclusive<i32> {
    match dtype {
        Dtype::F32 | Dtype::Bf16 => -126..=121,
        Dtype::F64 => -1022..=1017,
        Dtype::F16 => -24..=9,
    }
}

/// The exponent of the step for a block whose largest magnitude is that: it is 64 or more of them, and less than 128.
#[inline(always)]
pub(crate) fn step(dtype: Dtype, largest: f64) -> i32 {
    let (least, most) = steps(dtype).into_inner();
    (exponent(largest) - 6).clamp(least, most)
}

/// The exponent of the largest step that there is.
#[inline(always)]
pub(crate) fn largest_step(dtype: Dtype) -> i32 {
    *steps(dtype).end()
}

/// Refuses a step that there is not, and numbers of them that no block has: too many, or fewer than half of the most for the largest.
#[inline(always)]
fn check_steps(dtype: Dtype, step: &[u8], bytes: &[u8]) -> Result<(), Undecodable> {
    let step = i32::from(i16::from_le_bytes([step[0], step[1]]));
    let (least, most) = steps(dtype).into_inner();
    if step < least || step > most {
        let (what, bound) = match step < least {
            true => ("least exponent of a step, and 2^15", least),
            false => ("largest exponent of a step, and 2^15", most),
        };
        let shown = |exponent: i32| (exponent + (1 << 15)) as usize;
        return refused(what, shown(bound), shown(step));
    }
    let largest = bytes.iter().fold(0, |largest, byte| byte.cast_signed().unsigned_abs().max(largest));
    if largest > MOST {
        return refused("most steps", MOST.into(), largest.into());
    }
    if largest <= MOST / 2 && step > least {
        return refused("least steps of the largest", usize::from(MOST / 2) + 1, largest.into());
    }
    Ok(())
}

pub(super) struct Multiples<E, const DTYPE: u8>(PhantomData<E>);

impl<E: Element, const DTYPE: u8> Multiples<E, DTYPE> {
    const DTYPE: Dtype = Dtype::ALL[DTYPE as usize];
}

impl<E: Element, const DTYPE: u8> Packing for Multiples<E, DTYPE> {
    const GUESSES: usize = 2;

    /// The nearest multiples of the step that fits, and of the next: where the largest has moved by just 64 steps, rounding may have
    /// made it less than that.
    #[inline(always)]
    fn guess<M: Element>(guess: usize, moved: Moved<'_>, by: &mut [u8]) {
        let off = ScalarOf::<M>::words(moved.off);
        let fits = step(Self::DTYPE, largest::<ScalarOf<M>>(off)) + guess as i32;
        let step = fits.min(largest_step(Self::DTYPE));
        let (scale, inverse) =
            (ScalarOf::<M>::of(power_of_two(step)), ScalarOf::<M>::of(power_of_two(-step)));
        for (off, by) in off.iter().zip(ScalarOf::<M>::words_mut(by)) {
            *by = ((ScalarOf::<M>::read(*off) * inverse).whole() * scale).write();
        }
    }

    #[inline(always)]
    fn pack(block: &Foreign<'_>, room: &mut Room, out: &mut [u8]) -> bool {
        let numbers = &mut room.0[..block.len() / E::SIZE * E::State::SIZE];
        blocks::load::<E>(block, 0, numbers);
        let numbers = ScalarOf::<E>::words(numbers);
        let step = step(Self::DTYPE, largest::<ScalarOf<E>>(numbers));
        let (scale, inverse) =
            (ScalarOf::<E>::of(power_of_two(step)), ScalarOf::<E>::of(power_of_two(-step)));
        let (first, bytes) = out.split_at_mut(STEP);
        first.copy_from_slice(&(step as i16).to_le_bytes());
        let mut differ = false;
        for (number, byte) in numbers.iter().zip(bytes) {
            let number = ScalarOf::<E>::read(*number);
            let steps = number * inverse;
            *byte = steps.whole_byte();
            // What is more than 127 comes out as another number, and so does what is between two.
            differ |= !(ScalarOf::<E>::of_byte(*byte) * scale).is(number);
        }
        !differ
    }

    #[inline(always)]
    fn check(packed: &[u8], _: usize) -> Result<(), Undecodable> {
        let (step, bytes) = packed.split_at(STEP);
        check_steps(Self::DTYPE, step, bytes)
    }

    #[inline(always)]
    fn unpack(packed: &[u8], room: &mut Room, block: &mut [u8]) {
        let numbers = &mut room.0[..block.len() / E::SIZE * E::State::SIZE];
        let (step, bytes) = packed.split_at(STEP);
        let scale = ScalarOf::<E>::of(power_of_two(i16::from_le_bytes([step[0], step[1]]).into()));
        for (number, &byte) in ScalarOf::<E>::words_mut(numbers).iter_mut().zip(bytes) {
            *number = (ScalarOf::<E>::of_byte(byte) * scale).write();
        }
        blocks::store::<E>(numbers, &mut ForeignMut::of(block), 0);
    }
}
