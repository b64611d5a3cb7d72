//! Fewer bits for each element: what is due is rounded to a number that takes few of them, and what rounding cuts off is carried
//! (error feedback: Seide et al. 2014; Karimireddy et al. 2019).
//!
//! | form | what is sent of an element | bits |
//! |---|---|---|
//! | `f16`, `bf16` | the nearest such number | 16 |
//! | `int8` | a whole multiple, -127 to 127, of a power of two that 256 elements share | 8 |
//! | `2bit` | `threshold` where at least as much is due, its negative where at most that is, else 0 (MXNet's `GradientCompression`) | 2 |
//! | `1bit` | the sign, with the mean magnitude of what is due of 1024 elements (EF-signSGD) | 1 |
//!
//! What is sent are ordinary elements, so that lanes hold the same on every host, and servers add them as any others; the codec
//! of the same name finds the few bits in them. A power of two as the scale loses up to one bit against a free one, and makes
//! every product exact: so multiples are found again from the numbers alone.
//!
//! What is not finite is sent as it is, and so is what is due so much of that few bits would never catch up, or that a carry
//! rounds what is left of: numbers beyond the largest of half precision, 1,024 thresholds or more, and steps beyond the most of a
//! block whose step is the largest there is. Where its block has no such form then, the chunk travels raw.

use super::{Coordinates, Made, SumFilter};
use crate::arch::{self, Dispatch, Isa, Kernel};
use crate::blocks::{self, BLOCK, Room};
use crate::codec::{Form, Quantized};
use crate::control_word::settled;
use crate::filter::Unfit;
use crate::number::{Number, Real};
use crate::round::{self, Round, Rounded};
use crate::sweep::ScalarOf;
use crate::vector::{Element, TAIL, Vector};
use crate::{Dtype, Foreign, ForeignMut};
use std::marker::PhantomData;
use std::sync::Arc;

/// Lets a rounded number of everything pass.
#[derive(Clone, Copy, Debug)]
pub struct Quantize {
    dtype: Dtype,
    form: Form,
    /// Of the form that has one; else 0.
    threshold: f64,
}

impl Quantize {
    /// The threshold of `2bit` where a program names none, as in MXNet.
    pub const THRESHOLD: f64 = 0.5;

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
        // What has 16 bits already would be no shorter: in a model of several dtypes it is sent as it is.
        if form.is_half() && dtype.size() == 2 {
            return Ok(None);
        }
        Ok(Some(Arc::new(Self::new(form, dtype, threshold)?)))
    }

    pub(crate) fn new(form: Form, dtype: Dtype, threshold: f64) -> Result<Self, Unfit> {
        let threshold = held_threshold(form, dtype, threshold)?;
        Ok(Self { dtype, form, threshold })
    }
}

/// The threshold of a form that has one, as an element holds it: every worker is to come to the same. Of others it does not matter.
pub(in crate::filter) fn held_threshold(form: Form, dtype: Dtype, threshold: f64) -> Result<f64, Unfit> {
    let threshold = settled(|| match dtype {
        Dtype::F64 => threshold,
        Dtype::F32 => (threshold as f32).into(),
        Dtype::F16 => half::f16::from_f32(threshold.narrow()).into(),
        Dtype::Bf16 => half::bf16::from_f32(threshold.narrow()).into(),
    });
    if form == Form::TwoBits && !(threshold > 0.0 && threshold < f64::INFINITY) {
        return Err(Unfit::Setting { place: 0, expected: "a number above 0 that an element can hold" });
    }
    Ok(threshold)
}

impl SumFilter for Quantize {
    fn codec(&self) -> Option<u8> {
        Some(Quantized::new(self.form, self.dtype).number())
    }

    fn split(&self, _: Coordinates, sum: Foreign<'_>, sent: &mut ForeignMut<'_>, carry: &mut [u8]) {
        let bytes = sent.len();
        assert_eq!(sum.len(), bytes, "as much is sent as there is of the sum");
        assert_eq!(bytes % self.dtype.size(), 0, "a sum holds whole elements");
        let accumulators = bytes / self.dtype.size() * self.dtype.accumulator_size();
        assert_eq!(carry.len(), accumulators, "a carry has an accumulator for each element");
        arch::compute_on_best(self.work(sum, sent, carry));
    }
}

impl Quantize {
    fn work<'a>(&self, sum: Foreign<'a>, sent: &'a mut ForeignMut<'_>, carry: &'a mut [u8]) -> Work<'a> {
        let bytes = sent.len();
        Work { filter: *self, sum, sent: sent.part(0..bytes), carry }
    }

    /// [`SumFilter::split`] with the variant `arch`; `None` where this machine lacks it.
    #[cfg(test)]
    pub(crate) fn split_on(
        &self,
        arch: arch::Arch,
        sum: Foreign<'_>,
        sent: &mut ForeignMut<'_>,
        carry: &mut [u8],
    ) -> Option<()> {
        arch::compute_on(arch, self.work(sum, sent, carry))
    }
}

struct Work<'a> {
    filter: Quantize,
    sum: Foreign<'a>,
    sent: ForeignMut<'a>,
    carry: &'a mut [u8],
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
        let Quantize { dtype, form, threshold } = self.filter;
        round::by::<I, E, _>(form, dtype, threshold, With { work: self, isa })
    }
}

/// The same, once it is known how to round.
struct With<'a, I> {
    work: Work<'a>,
    isa: I,
}

impl<I: Isa, E: Element> Rounded<E> for With<'_, I> {
    fn with<R: Round>(self, round: R) {
        let Work { sum, sent, carry, .. } = self.work;
        self.isa.run(On::<E, R> { round, sum, sent, carry, element: PhantomData });
    }
}

struct On<'a, E, R> {
    round: R,
    sum: Foreign<'a>,
    sent: ForeignMut<'a>,
    carry: &'a mut [u8],
    element: PhantomData<E>,
}

impl<E: Element, R: Round> Kernel for On<'_, E, R> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { round, sum, mut sent, carry, .. } = self;
        let (mut due, mut to) = (Room::new(), Room::new());
        let mut at = 0;
        for carry in carry.chunks_mut(BLOCK * E::State::SIZE) {
            let (due, to) = (&mut due.0[..carry.len()], &mut to.0[..carry.len()]);
            blocks::load::<E>(&sum, at, due);
            divide::<E>(&round, due, to, carry);
            blocks::store::<E>(to, &mut sent, at);
            at += carry.len() / E::State::SIZE * E::SIZE;
        }
    }
}

/// Of `due`, which is the sum yet, what is sent and what is carried.
#[inline(always)]
fn divide<E: Element>(round: &impl Round, due: &mut [u8], sent: &mut [u8], carry: &mut [u8]) {
    let words = ScalarOf::<E>::words_mut;
    let number = ScalarOf::<E>::read;
    for (due, carry) in words(due).iter_mut().zip(&*words(carry)) {
        *due = (number(*due) + number(*carry)).write();
    }
    round.round::<ScalarOf<E>>(words(due), words(sent));
    if E::SIZE != E::State::SIZE {
        hold::<E>(sent);
    }
    let nothing = ScalarOf::<E>::of(0.0);
    let empty = ScalarOf::<E>::of(-0.0).write();
    for ((due, sent), carry) in words(due).iter().zip(words(sent)).zip(words(carry)) {
        let due = number(*due);
        let goes = if due.is_finite() { number(*sent) } else { due };
        let left = due - goes;
        *sent = goes.write();
        *carry = if left.is_finite() && left != nothing { left.write() } else { empty };
    }
}

/// What elements hold of what is sent whole: the rest is carried. All else they hold as it is.
#[inline(always)]
fn hold<E: Element>(sent: &mut [u8]) {
    let most = E::Vector::splat(ScalarOf::<E>::of(E::LARGEST));
    for sent in sent.chunks_mut(E::State::BYTES) {
        let (mut wide, mut narrow) = ([0; TAIL], [0; TAIL]);
        wide[..sent.len()].copy_from_slice(sent);
        E::store(E::State::load(&wide).clamp(most), &mut narrow);
        E::State::store(E::load(&narrow), &mut wide);
        sent.copy_from_slice(&wide[..sent.len()]);
    }
}
