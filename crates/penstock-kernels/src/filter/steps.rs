//! Values that move by steps: what receivers hold of an element moves towards the value by a whole number of steps, from -127 to 127,
//! of a power of two that 256 elements share. The largest difference of them is 64 steps or more. What that leaves is due with the
//! next change: the difference itself is the error feedback.
//!
//! What receivers hold are ordinary elements, so that those on the home's own host see the same; the [codec](crate::codec::Steps) of
//! the same name finds the steps again. Where something is not finite, or a step would lead beyond the largest number, the value
//! itself passes, and its chunk goes by another codec.

use super::{Coordinates, Filter, Made};
use crate::arch::{self, Dispatch, Isa, Kernel};
use crate::blocks::{self, Room};
use crate::codec::{self, STEP_BLOCK};
use crate::number::{Number, Real, largest, power_of_two};
use crate::sweep::ScalarOf;
use crate::vector::Element;
use crate::{Dtype, Foreign};
use std::marker::PhantomData;
use std::sync::Arc;

/// Lets everything pass by steps.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    dtype: Dtype,
}

impl Steps {
    pub(super) fn make(dtype: Dtype, _: &[f64]) -> Made {
        Ok(Arc::new(Self { dtype }))
    }
}

impl Filter for Steps {
    fn codec(&self) -> Option<u8> {
        Some(codec::Steps::new(self.dtype).number())
    }

    fn passes(&self) -> u32 {
        2
    }

    fn next(&self, _: Coordinates, value: &[u8], held: &mut [u8]) {
        assert_eq!(value.len(), held.len(), "receivers hold as much as there is");
        arch::compute_on_best(Work { dtype: self.dtype, value, held });
    }
}

struct Work<'a> {
    dtype: Dtype,
    value: &'a [u8],
    held: &'a mut [u8],
}

impl Dispatch for Work<'_> {
    type Output = ();

    fn on<I: Isa>(self, isa: I) {
        match self.dtype {
            Dtype::F32 => isa.run(On::<I::F32> { work: self, element: PhantomData }),
            Dtype::F64 => isa.run(On::<I::F64> { work: self, element: PhantomData }),
            Dtype::F16 => isa.run(On::<I::F16> { work: self, element: PhantomData }),
            Dtype::Bf16 => isa.run(On::<I::Bf16> { work: self, element: PhantomData }),
        }
    }
}

struct On<'a, E> {
    work: Work<'a>,
    element: PhantomData<E>,
}

impl<E: Element> Kernel for On<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Work { dtype, value, held } = self.work;
        let (mut now, mut there, mut by) = (Room::new(), Room::new(), Room::new());
        let (mut steps, mut strange) = ([0; STEP_BLOCK], [false; STEP_BLOCK]);
        let mut moved = [0; STEP_BLOCK * 8];
        let block = STEP_BLOCK * E::SIZE;
        for (value, held) in value.chunks(block).zip(held.chunks_mut(block)) {
            let elements = value.len() / E::SIZE;
            let bytes = elements * E::State::SIZE;
            let (now, there, by) = (&mut now.0[..bytes], &mut there.0[..bytes], &mut by.0[..bytes]);
            blocks::load::<E>(&Foreign::of(value), 0, now);
            blocks::load::<E>(&Foreign::of(held), 0, there);
            differences::<E>(now, there, by, &mut strange[..elements]);
            let exponent = count::<E>(dtype, by, &mut steps[..elements]);
            codec::move_by::<E>(held, there, &steps[..elements], exponent, &mut moved);
            blocks::load::<E>(&Foreign::of(&moved[..held.len()]), 0, there);
            let words = ScalarOf::<E>::words(there).iter().zip(ScalarOf::<E>::words(by));
            let largest_there_is = exponent == codec::largest_step(dtype);
            let most = ScalarOf::<E>::of(f64::from(codec::MOST) * power_of_two(exponent));
            for (strange, (moved, by)) in strange.iter_mut().zip(words) {
                // Beyond the numbers that there are, or the steps.
                *strange |= !ScalarOf::<E>::read(*moved).is_finite();
                *strange |= largest_there_is && ScalarOf::<E>::read(*by).magnitude() > most;
            }
            held.copy_from_slice(&moved[..held.len()]);
            if strange[..elements].contains(&true) {
                let pairs = value.chunks_exact(E::SIZE).zip(held.chunks_exact_mut(E::SIZE));
                for ((value, held), _) in pairs.zip(strange).filter(|(_, strange)| *strange) {
                    held.copy_from_slice(value);
                }
            }
        }
    }
}

/// How far the value is from what is held, 0 where that is no finite number: that is `strange`.
#[inline(always)]
fn differences<E: Element>(now: &[u8], there: &[u8], by: &mut [u8], strange: &mut [bool]) {
    let read = ScalarOf::<E>::read;
    let words = ScalarOf::<E>::words(now).iter().zip(ScalarOf::<E>::words(there));
    for ((by, strange), (now, there)) in ScalarOf::<E>::words_mut(by).iter_mut().zip(strange).zip(words) {
        let difference = read(*now) - read(*there);
        *strange = !difference.is_finite();
        *by = if difference.is_finite() { difference.write() } else { ScalarOf::<E>::of(0.0).write() };
    }
}

/// How many steps each element is to move, and the step's exponent.
#[inline(always)]
fn count<E: Element>(dtype: Dtype, by: &[u8], steps: &mut [u8]) -> i32 {
    let by = ScalarOf::<E>::words(by);
    let exponent = codec::step(dtype, largest::<ScalarOf<E>>(by));
    let (inverse, most) = (ScalarOf::<E>::of(power_of_two(-exponent)), ScalarOf::<E>::of(codec::MOST.into()));
    for (by, byte) in by.iter().zip(steps) {
        let multiple = ScalarOf::<E>::read(*by) * inverse;
        let multiple = if multiple.magnitude() > most { most.signed(multiple) } else { multiple };
        *byte = multiple.whole_byte();
    }
    exponent
}
