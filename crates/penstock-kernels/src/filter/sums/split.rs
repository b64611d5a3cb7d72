//! The arithmetic of splitting a sum: what is due, what is sent, what is carried.

use super::super::spread::Spread;
use crate::accumulate::padded;
use crate::arch::{self, Dispatch, Isa, Kernel};
use crate::control_word::settled;
use crate::number::Real;
use crate::sweep::ScalarOf;
use crate::vector::{Element, TAIL, Vector};
use crate::{Dtype, Foreign, ForeignMut};
use std::marker::PhantomData;

/// The limit that every number is beyond.
pub(super) const EVERYTHING: f64 = -1.0;

/// How much is carried.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HeldBack {
    /// Elements of which something is.
    pub elements: u64,
    /// The sum of their squares.
    pub squares: f64,
}

impl HeldBack {
    /// The Euclidean norm of what is carried.
    pub fn norm(self) -> f64 {
        settled(|| self.squares.sqrt())
    }
}

/// Makes a carry empty.
pub fn empty(dtype: Dtype, carry: &mut [u8]) {
    match dtype.accumulator_size() {
        8 => carry.as_chunks_mut().0.fill((-0.0_f64).to_le_bytes()),
        _ => carry.as_chunks_mut().0.fill((-0.0_f32).to_le_bytes()),
    }
}

/// How much is carried.
pub fn held_back(dtype: Dtype, carry: &[u8]) -> HeldBack {
    let count = |held: HeldBack, number: f64| HeldBack {
        elements: held.elements + u64::from(number != 0.0),
        squares: held.squares + number * number,
    };
    settled(|| numbers(dtype, carry).fold(HeldBack::default(), count))
}

/// The accumulators in `carry`.
fn numbers(dtype: Dtype, carry: &[u8]) -> impl Iterator<Item = f64> {
    let size = dtype.accumulator_size();
    carry.chunks_exact(size).map(move |bytes| match size {
        8 => f64::from_le_bytes(bytes.try_into().expect("eight bytes")),
        _ => f32::from_le_bytes(bytes.try_into().expect("four bytes")).into(),
    })
}

/// What there is of what is carried; zeros if there is nothing. The sum goes in eight parts, so that it can go fast and has the same
/// bits everywhere. For callers that are [`settled`].
pub(super) fn spread(dtype: Dtype, carry: &[u8]) -> Spread {
    /// The sum of their squares, and the largest magnitude.
    fn parts<const BYTES: usize>(carry: &[u8], number: impl Fn([u8; BYTES]) -> f64) -> (f64, f64) {
        let (mut squares, mut largest) = ([0.0; 8], [0.0; 8]);
        let mut take = |block: &[[u8; BYTES]]| {
            for ((square, largest), &word) in squares.iter_mut().zip(&mut largest).zip(block) {
                let number = number(word);
                *square += number * number;
                // NaN is none.
                *largest = if number.abs() > *largest { number.abs() } else { *largest };
            }
        };
        let (words, _) = carry.as_chunks::<BYTES>();
        let mut blocks = words.chunks_exact(8);
        (&mut blocks).for_each(&mut take);
        take(blocks.remainder());
        (squares.iter().sum(), largest.into_iter().fold(0.0, f64::max))
    }
    let elements = (carry.len() / dtype.accumulator_size()) as f64;
    if elements == 0.0 {
        return Spread::default();
    }
    if dtype.accumulator_size() == 4 {
        let (squares, largest) = parts(carry, |word| f32::from_le_bytes(word).into());
        return Spread { root_mean_square: (squares / elements).sqrt(), largest };
    }
    let (squares, largest) = parts(carry, f64::from_le_bytes);
    if squares.is_finite() {
        return Spread { root_mean_square: (squares / elements).sqrt(), largest };
    }
    // Squares of numbers that are there may be too large to be.
    let small = f64::from_bits((1023 - 540) << 52);
    let (squares, _) = parts(carry, |word| f64::from_le_bytes(word) * small);
    Spread { root_mean_square: (squares / elements).sqrt() / small, largest }
}

/// Sends all that is due of `sum` (nothing: zeros) and `carry`: what is carried then is what rounding cut off.
///
/// # Panics
///
/// As [`SumFilter::split`](super::SumFilter::split).
pub fn release(dtype: Dtype, sum: Option<Foreign<'_>>, sent: &mut ForeignMut<'_>, carry: &mut [u8]) {
    split(dtype, sum, sent, carry, EVERYTHING);
}

/// Sends what is due of `sum` (nothing: zeros) and `carry` where it is beyond `limit`, or not finite; all if that is NaN.
pub(super) fn split(
    dtype: Dtype,
    sum: Option<Foreign<'_>>,
    sent: &mut ForeignMut<'_>,
    carry: &mut [u8],
    limit: f64,
) {
    arch::compute_on_best(splitting(dtype, sum, sent, carry, limit));
}

fn splitting<'a>(
    dtype: Dtype,
    sum: Option<Foreign<'a>>,
    sent: &'a mut ForeignMut<'_>,
    carry: &'a mut [u8],
    limit: f64,
) -> Work<'a> {
    let most = if dtype == Dtype::F64 { f64::MAX } else { f32::MAX.into() };
    let limit = if limit > most { most } else { limit };
    let bytes = sent.len();
    Work { dtype, what: What::Split { sum, sent: sent.part(0..bytes), limit }, carry }
}

/// [`split`] with the variant `arch`; `None` where this machine lacks it.
#[cfg(test)]
pub(crate) fn split_on(
    arch: arch::Arch,
    dtype: Dtype,
    sum: Option<Foreign<'_>>,
    sent: &mut ForeignMut<'_>,
    carry: &mut [u8],
    limit: f64,
) -> Option<()> {
    arch::compute_on(arch, splitting(dtype, sum, sent, carry, limit))
}

/// Adds `sum` to `carry`, which is then all that is due. For callers that are [`settled`].
///
/// # Panics
///
/// As [`SumFilter::split`](super::SumFilter::split).
pub fn collect(dtype: Dtype, sum: Foreign<'_>, carry: &mut [u8]) {
    arch::compute_on_best(Work { dtype, what: What::Collect { sum }, carry });
}

/// Sends what is carried of some elements where it is beyond the limit that stands beside each; `sent` has what is sent of the
/// others already. An element of which nothing is carried is left as it is.
pub(super) fn send(
    dtype: Dtype,
    elements: &mut dyn Iterator<Item = (usize, f64)>,
    sent: &mut ForeignMut<'_>,
    carry: &mut [u8],
) {
    let bytes = sent.len();
    let sent = sent.part(0..bytes);
    arch::compute_on_best(Work { dtype, what: What::Send { elements, sent }, carry });
}

enum What<'a> {
    Split { sum: Option<Foreign<'a>>, sent: ForeignMut<'a>, limit: f64 },
    Collect { sum: Foreign<'a> },
    Send { elements: &'a mut dyn Iterator<Item = (usize, f64)>, sent: ForeignMut<'a> },
}

struct Work<'a> {
    dtype: Dtype,
    what: What<'a>,
    carry: &'a mut [u8],
}

impl Dispatch for Work<'_> {
    type Output = ();

    fn on<I: Isa>(self, isa: I) {
        let Self { dtype, what, carry } = self;
        let bytes = match &what {
            What::Split { sum, sent, .. } => {
                assert!(
                    sum.is_none_or(|sum| sum.len() == sent.len()),
                    "as much is sent as there is of the sum"
                );
                sent.len()
            }
            What::Collect { sum } => sum.len(),
            What::Send { sent, .. } => sent.len(),
        };
        assert_eq!(bytes % dtype.size(), 0, "a sum holds whole elements");
        let accumulators = bytes / dtype.size() * dtype.accumulator_size();
        assert_eq!(carry.len(), accumulators, "a carry has an accumulator for each element");
        match dtype {
            Dtype::F32 => isa.run(On::<I::F32> { what, carry, element: PhantomData }),
            Dtype::F64 => isa.run(On::<I::F64> { what, carry, element: PhantomData }),
            Dtype::F16 => isa.run(On::<I::F16> { what, carry, element: PhantomData }),
            Dtype::Bf16 => isa.run(On::<I::Bf16> { what, carry, element: PhantomData }),
        }
    }
}

struct On<'a, E> {
    what: What<'a>,
    carry: &'a mut [u8],
    element: PhantomData<E>,
}

/// What becomes of what is due: sent, and carried.
#[inline(always)]
fn divide<E: Element>(due: E::Vector, limit: E::Vector) -> (E::Vector, E::Vector) {
    let number = |number| E::Vector::splat(ScalarOf::<E>::of(number));
    let mut chosen = due.beyond_or_zero(limit);
    if E::SIZE != E::State::SIZE {
        // Finite numbers that the element cannot hold are sent in part, and the rest is carried. What is not finite is added again, and
        // -0.0, which changes no bit, where there is no such thing.
        let finite = chosen.finite_or_zero();
        chosen = finite.clamp(number(E::LARGEST)).add(finite.sub(chosen).flip(number(-0.0)));
    }
    let sent = if E::SIZE == E::State::SIZE { chosen } else { rounded::<E>(chosen) };
    // Negated, what is sent whole leaves -0.0; where it is not finite nothing is left either.
    (chosen, sent.sub(due).finite_or_zero().flip(number(-0.0)))
}

/// As it is after a store and a load.
#[inline(always)]
fn rounded<E: Element>(vector: E::Vector) -> E::Vector {
    let mut bytes = [0; TAIL];
    E::store(vector, &mut bytes);
    E::load(&bytes)
}

/// A vector's worth of accumulators from a carry's last, -0.0 behind.
#[inline(always)]
fn load_carry<E: Element>(carry: &[u8]) -> E::Vector {
    let mut padded = [0; TAIL];
    padded[..carry.len()].copy_from_slice(carry);
    E::State::load(&padded)
}

#[inline(always)]
fn store_carry<E: Element>(vector: E::Vector, carry: &mut [u8]) {
    let mut padded = [0; TAIL];
    E::State::store(vector, &mut padded);
    carry.copy_from_slice(&padded[..carry.len()]);
}

impl<E: Element> Kernel for On<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { what, carry, .. } = self;
        match what {
            What::Split { sum, sent, limit } => on_all::<E>(sum, sent, limit, carry),
            What::Collect { sum } => on_sum::<E>(sum, carry),
            What::Send { elements, sent } => on_some::<E>(elements, sent, carry),
        }
    }
}

#[inline(always)]
fn on_all<E: Element>(sum: Option<Foreign<'_>>, mut sent: ForeignMut<'_>, limit: f64, carry: &mut [u8]) {
    let limit = E::Vector::splat(ScalarOf::<E>::of(limit));
    // Of an empty carry 0.0 is sent, not -0.0.
    let zero = E::Vector::splat(ScalarOf::<E>::of(0.0));
    let mut at = 0;
    let mut blocks = carry.chunks_exact_mut(E::State::BYTES);
    for block in &mut blocks {
        let due = match &sum {
            Some(sum) => E::load_foreign(sum, at).add(E::State::load(block)),
            None => E::State::load(block).add(zero),
        };
        let (chosen, carried) = divide::<E>(due, limit);
        E::store_foreign(chosen, &mut sent, at);
        E::State::store(carried, block);
        at += E::BYTES;
    }
    let rest = blocks.into_remainder();
    if !rest.is_empty() {
        let due = match &sum {
            Some(sum) => E::load(&padded(sum, at)).add(load_carry::<E>(rest)),
            None => load_carry::<E>(rest).add(zero),
        };
        let (chosen, carried) = divide::<E>(due, limit);
        let mut last = [0; TAIL];
        E::store(chosen, &mut last);
        sent.store_words(at, &last[..sent.len() - at]);
        store_carry::<E>(carried, rest);
    }
}

#[inline(always)]
fn on_sum<E: Element>(sum: Foreign<'_>, carry: &mut [u8]) {
    let mut at = 0;
    let mut blocks = carry.chunks_exact_mut(E::State::BYTES);
    for block in &mut blocks {
        E::State::store(E::load_foreign(&sum, at).add(E::State::load(block)), block);
        at += E::BYTES;
    }
    let rest = blocks.into_remainder();
    if !rest.is_empty() {
        store_carry::<E>(E::load(&padded(&sum, at)).add(load_carry::<E>(rest)), rest);
    }
}

#[inline(always)]
fn on_some<E: Element>(
    elements: &mut dyn Iterator<Item = (usize, f64)>,
    mut sent: ForeignMut<'_>,
    carry: &mut [u8],
) {
    for (element, limit) in elements {
        let carried = &mut carry[element * E::State::SIZE..][..E::State::SIZE];
        let (sign, rest) = carried.split_last().expect("an accumulator has bytes");
        if *sign == 0x80 && rest.iter().all(|&byte| byte == 0) {
            continue;
        }
        let limit = E::Vector::splat(ScalarOf::<E>::of(limit));
        let (chosen, left) = divide::<E>(load_carry::<E>(carried), limit);
        let mut one = [0; TAIL];
        E::store(chosen, &mut one);
        sent.store_words(element * E::SIZE, &one[..E::SIZE]);
        store_carry::<E>(left, carried);
    }
}
