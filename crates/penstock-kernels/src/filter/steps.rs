//! Values that move: what receivers hold of an element moves towards the value by a number that takes few bits, as contributions are
//! [quantized](super::sums::Quantize). What that leaves is due with the next change: the difference itself is the error feedback.
//!
//! | form | by how much an element moves |
//! |---|---|
//! | `f16`, `bf16` | the nearest such number to the difference |
//! | `int8` | the nearest multiple, from -127 to 127, of a power of two that 256 elements share; the largest difference is 64 of them or more |
//! | `2bit` | `threshold` where it is at least as far, its negative where at most that, else not |
//! | `1bit` | the mean distance of 1024 elements, towards the value. So one that is there already moves off, and comes back later |
//!
//! What receivers hold are ordinary elements, so that those on the home's own host see the same; the [codec](crate::codec::Steps) of
//! the same name finds again by how much they moved. Where something is not finite, or a move would lead beyond the largest number or
//! never arrive (see [`Round::is_beyond`]), the value itself passes, and its chunk goes by another codec. What is too small for a form
//! to say (half precision below 2^-25, signs whose mean is below a last bit of the element) waits for a flush.

use super::sums::held_threshold;
use super::{Coordinates, Everything, Filter, Made};
use crate::Dtype;
use crate::arch::{self, Dispatch, Isa, Kernel};
use crate::blocks::{BLOCK, Room};
use crate::codec::{self, Form};
use crate::moves::{differences, load, move_by};
use crate::number::Number;
use crate::round::{self, Round, Rounded};
use crate::sweep::ScalarOf;
use crate::vector::Element;
use std::marker::PhantomData;
use std::sync::Arc;

/// Lets everything pass by steps.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    dtype: Dtype,
    form: Form,
    /// Of the form that has one.
    threshold: f64,
}

impl Steps {
    pub(super) fn f16(dtype: Dtype, _: &[f64]) -> Made {
        Self::made(Form::F16, dtype, 0.0)
    }

    pub(super) fn bf16(dtype: Dtype, _: &[f64]) -> Made {
        Self::made(Form::Bf16, dtype, 0.0)
    }

    pub(super) fn int8(dtype: Dtype, _: &[f64]) -> Made {
        Self::made(Form::Int8, dtype, 0.0)
    }

    pub(super) fn two_bits(dtype: Dtype, settings: &[f64]) -> Made {
        Self::made(Form::TwoBits, dtype, settings.first().copied().unwrap_or(f64::NAN))
    }

    pub(super) fn one_bit(dtype: Dtype, _: &[f64]) -> Made {
        Self::made(Form::OneBit, dtype, 0.0)
    }

    fn made(form: Form, dtype: Dtype, threshold: f64) -> Made {
        // As of contributions: what has 16 bits already would be no shorter.
        if form.is_half() && dtype.size() == 2 {
            return Ok(Everything::shared());
        }
        Ok(Arc::new(Self { dtype, form, threshold: held_threshold(form, dtype, threshold)? }))
    }
}

impl Filter for Steps {
    fn codec(&self) -> Option<u8> {
        Some(codec::Steps::new(self.form, self.dtype).number())
    }

    fn passes(&self) -> u32 {
        2
    }

    fn next(&self, _: Coordinates, value: &[u8], held: &mut [u8]) {
        assert_eq!(value.len(), held.len(), "receivers hold as much as there is");
        arch::compute_on_best(Work { filter: *self, value, held });
    }
}

struct Work<'a> {
    filter: Steps,
    value: &'a [u8],
    held: &'a mut [u8],
}

impl Dispatch for Work<'_> {
    type Output = ();

    fn on<I: Isa>(self, isa: I) {
        match self.filter.dtype {
            Dtype::F32 => self.of::<I, I::F32>(isa),
            Dtype::F64 => self.of::<I, I::F64>(isa),
            Dtype::F16 => self.of::<I, I::F16>(isa),
            Dtype::Bf16 => self.of::<I, I::Bf16>(isa),
        }
    }
}

impl Work<'_> {
    fn of<I: Isa, E: Element>(self, isa: I) {
        let Steps { dtype, form, threshold } = self.filter;
        round::by::<I, E, _>(form, dtype, threshold, With { work: self, isa });
    }
}

/// The same, once it is known how to round.
struct With<'a, I> {
    work: Work<'a>,
    isa: I,
}

impl<I: Isa, E: Element> Rounded<E> for With<'_, I> {
    fn with<R: Round>(self, round: R) {
        self.isa.run(On::<E, R> { work: self.work, round, element: PhantomData });
    }
}

struct On<'a, E, R> {
    work: Work<'a>,
    round: R,
    element: PhantomData<E>,
}

impl<E: Element, R: Round> Kernel for On<'_, E, R> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { work: Work { filter, value, held }, round, .. } = self;
        let (mut now, mut there) = (Room::new(), Room::new());
        let (mut due, mut by, mut moved) = (Room::new(), Room::new(), Room::new());
        let mut strange = [false; BLOCK];
        let block = filter.form.block() * E::SIZE;
        for (value, held) in value.chunks(block).zip(held.chunks_mut(block)) {
            let elements = value.len() / E::SIZE;
            let bytes = elements * E::State::SIZE;
            let (now, there) = (&mut now.0[..bytes], &mut there.0[..bytes]);
            let (due, by, moved) = (&mut due.0[..bytes], &mut by.0[..bytes], &mut moved.0[..held.len()]);
            load::<E>(value, now);
            load::<E>(held, there);
            differences::<E>(now, there, due, |at, is_finite| strange[at] = !is_finite);
            let (words, words_mut) = (ScalarOf::<E>::words, ScalarOf::<E>::words_mut);
            round.round::<ScalarOf<E>>(words(due), words_mut(by));
            move_by::<E>(held, there, by, moved);
            load::<E>(moved, there);
            let mut any = false;
            for (strange, (moved, due)) in strange.iter_mut().zip(words(there).iter().zip(words(due))) {
                *strange |= !ScalarOf::<E>::read(*moved).is_finite();
                *strange |= round.is_beyond(ScalarOf::<E>::read(*due));
                any |= *strange;
            }
            held.copy_from_slice(moved);
            if any {
                let pairs = value.chunks_exact(E::SIZE).zip(held.chunks_exact_mut(E::SIZE));
                for ((value, held), _) in pairs.zip(&strange).filter(|(_, strange)| **strange) {
                    held.copy_from_slice(value);
                }
            }
        }
    }
}
