//! Numbers that take few bits, beside those that they are for: of contributions, and of the differences of values.

use crate::Dtype;
use crate::arch::Isa;
use crate::blocks::BLOCK;
use crate::codec::{self, Form};
use crate::number::{Number, Real, largest, power_of_two};
use crate::sweep::ScalarOf;
use crate::vector::{Element, TAIL, Vector};
use std::marker::PhantomData;

/// How what is due becomes what is sent.
pub(crate) trait Round {
    /// Whether what is due is sent as it is, since few bits would never catch up with it.
    fn is_beyond<N: Number>(&self, due: N) -> bool;

    /// Of the elements of a block. What comes out where something is not finite does not matter.
    fn round<N: Number>(&self, due: &[N::Word], sent: &mut [N::Word]);
}

/// Work on elements `E` that rounds.
pub(crate) trait Rounded<E> {
    fn with<R: Round>(self, round: R);
}

/// Finds how to round to numbers of a form, in elements of that dtype.
pub(crate) fn by<I: Isa, E: Element, W: Rounded<E>>(form: Form, dtype: Dtype, threshold: f64, work: W) {
    match form {
        Form::F16 => work.with(Nearest::<I::F16>(PhantomData)),
        Form::Bf16 => work.with(Nearest::<I::Bf16>(PhantomData)),
        Form::Int8 => work.with(Multiple { dtype }),
        Form::TwoBits => work.with(Threshold(threshold)),
        Form::OneBit => work.with(Sign::<E>(PhantomData)),
    }
}

/// The nearest number that `H` can hold, of those that are finite.
pub(crate) struct Nearest<H>(pub(crate) PhantomData<H>);

impl<H: Element> Round for Nearest<H> {
    #[inline(always)]
    fn is_beyond<N: Number>(&self, due: N) -> bool {
        due.magnitude() > N::of(H::LARGEST)
    }

    #[inline(always)]
    fn round<N: Number>(&self, due: &[N::Word], sent: &mut [N::Word]) {
        let lanes = H::Vector::LANES;
        let most = H::Vector::splat(ScalarOf::<H>::of(H::LARGEST));
        for (due, sent) in due.chunks(lanes).zip(sent.chunks_mut(lanes)) {
            let (mut wide, mut narrow) = ([0; TAIL], [0; TAIL]);
            for (wide, due) in f32::words_mut(&mut wide).iter_mut().zip(due) {
                *wide = N::read(*due).narrow().write();
            }
            H::store(H::State::load(&wide).clamp(most), &mut narrow);
            H::State::store(H::load(&narrow), &mut wide);
            for ((wide, due), sent) in f32::words(&wide).iter().zip(due).zip(sent) {
                let due = N::read(*due);
                *sent = (if self.is_beyond(due) { due } else { N::of_narrow(f32::read(*wide)) }).write();
            }
        }
    }
}

/// The nearest multiple of a power of two.
struct Multiple {
    dtype: Dtype,
}

impl Round for Multiple {
    #[inline(always)]
    fn is_beyond<N: Number>(&self, due: N) -> bool {
        let half_a_step_more = f64::from(codec::MOST) + 0.5;
        due.magnitude() >= N::of(half_a_step_more * power_of_two(codec::largest_step(self.dtype)))
    }

    #[inline(always)]
    fn round<N: Number>(&self, due: &[N::Word], sent: &mut [N::Word]) {
        let (most, block) = (N::of(codec::MOST.into()), Form::Int8.block());
        for (due, sent) in due.chunks(block).zip(sent.chunks_mut(block)) {
            let step = codec::step(self.dtype, largest::<N>(due));
            let (scale, inverse) = (N::of(power_of_two(step)), N::of(power_of_two(-step)));
            for (due, sent) in due.iter().zip(sent) {
                let due = N::read(*due);
                let multiple = (due * inverse).whole();
                let beyond = multiple.magnitude() > most;
                let multiple = if beyond { most.signed(multiple) } else { multiple };
                *sent = (if self.is_beyond(due) { due } else { multiple * scale }).write();
            }
        }
    }
}

/// How many thresholds are sent at once where they are due. One at a time each takes a rounding of what is left, always the same
/// way: of so many in float32 a 64th of a threshold.
const WHOLE: f64 = 1024.0;

/// A threshold, its negative, or 0.
struct Threshold(f64);

impl Round for Threshold {
    #[inline(always)]
    fn is_beyond<N: Number>(&self, due: N) -> bool {
        due.magnitude() >= N::of(self.0 * WHOLE)
    }

    #[inline(always)]
    fn round<N: Number>(&self, due: &[N::Word], sent: &mut [N::Word]) {
        let threshold = N::of(self.0);
        for (due, sent) in due.iter().zip(sent) {
            let due = N::read(*due);
            let some = if due.magnitude() >= threshold { threshold.signed(due) } else { N::of(0.0) };
            *sent = (if self.is_beyond(due) { due } else { some }).write();
        }
    }
}

/// The mean magnitude, as an element holds it, with each one's own sign.
struct Sign<E>(PhantomData<E>);

impl<E: Element> Round for Sign<E> {
    #[inline(always)]
    fn is_beyond<N: Number>(&self, _: N) -> bool {
        false
    }

    #[inline(always)]
    fn round<N: Number>(&self, due: &[N::Word], sent: &mut [N::Word]) {
        // In parts of the block's length, so that no sum is too large; and in eight of them, which is fast and has the same bits
        // everywhere.
        let part = power_of_two(-(BLOCK.ilog2() as i32));
        let mut sums = [0.0; 8];
        let mut eights = due.chunks_exact(8);
        let mut add = |eight: &[N::Word]| {
            for (sum, due) in sums.iter_mut().zip(eight) {
                let due = N::read(*due);
                *sum += if due.is_finite() { due.magnitude().wide() * part } else { 0.0 };
            }
        };
        (&mut eights).for_each(&mut add);
        add(eights.remainder());
        let mean = sums.iter().sum::<f64>() / (due.len() as f64 * part);
        let (mut element, mut wide) = ([0; TAIL], [0; TAIL]);
        E::store(E::Vector::splat(ScalarOf::<E>::of(mean.min(E::LARGEST))), &mut element);
        E::State::store(E::load(&element), &mut wide);
        let mean = N::read(N::words(&wide)[0]);
        for (due, sent) in due.iter().zip(sent) {
            *sent = mean.signed(N::read(*due)).write();
        }
    }
}
