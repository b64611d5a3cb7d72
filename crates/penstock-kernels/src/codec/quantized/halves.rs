//! Elements `E` whose numbers are those of `H`, which has half precision.

use super::{Moved, Packing};
use crate::blocks::{self, Room};
use crate::codec::Undecodable;
use crate::codec::span::refused;
use crate::number::Number;
use crate::round::{Nearest, Round};
use crate::sweep::ScalarOf;
use crate::vector::{Element, TAIL, Vector};
use crate::{Foreign, ForeignMut};
use std::marker::PhantomData;

/// Bytes of a half.
pub(super) const SIZE: usize = 2;

pub(super) struct Halves<E, H>(PhantomData<(E, H)>);

impl<E: Element, H: Element> Halves<E, H> {
    /// Whether any is NaN: more than infinity.
    #[inline(always)]
    fn any_nan(halves: &[u8]) -> bool {
        let mut infinite = [0; TAIL];
        H::store(H::Vector::splat(ScalarOf::<H>::of_narrow(f32::INFINITY)), &mut infinite);
        let infinity = u16::from_le_bytes([infinite[0], infinite[1]]);
        let halves = halves.as_chunks::<SIZE>().0.iter();
        halves.fold(false, |any, half| any | (u16::from_le_bytes(*half) & (u16::MAX >> 1) > infinity))
    }
}

impl<E: Element, H: Element> Packing for Halves<E, H> {
    const GUESSES: usize = 1;

    /// The nearest: rounding has moved the element by less than that can tell apart, or the half has all bits of it.
    #[inline(always)]
    fn guess<M: Element>(_: usize, moved: Moved<'_>, by: &mut [u8]) {
        let off = ScalarOf::<M>::words(moved.off);
        Nearest::<H>(PhantomData).round::<ScalarOf<M>>(off, ScalarOf::<M>::words_mut(by));
    }

    #[inline(always)]
    fn pack(block: &Foreign<'_>, room: &mut Room, out: &mut [u8]) -> bool {
        let numbers = &mut room.0[..block.len() / E::SIZE * E::State::SIZE];
        blocks::load::<E>(block, 0, numbers);
        let lanes = H::Vector::LANES;
        let mut differ = false;
        for (numbers, out) in numbers.chunks(lanes * E::State::SIZE).zip(out.chunks_mut(lanes * SIZE)) {
            let numbers = ScalarOf::<E>::words(numbers);
            let (mut wide, mut halves) = ([0; TAIL], [0; TAIL]);
            for (wide, number) in f32::words_mut(&mut wide).iter_mut().zip(numbers) {
                *wide = ScalarOf::<E>::read(*number).narrow().write();
            }
            H::store(H::State::load(&wide), &mut halves);
            H::State::store(H::load(&halves), &mut wide);
            for (wide, number) in f32::words(&wide).iter().zip(numbers) {
                let again = ScalarOf::<E>::of_narrow(f32::read(*wide));
                differ |= !again.is(ScalarOf::<E>::read(*number));
            }
            out.copy_from_slice(&halves[..out.len()]);
        }
        !differ && !Self::any_nan(out)
    }

    #[inline(always)]
    fn check(packed: &[u8], _: usize) -> Result<(), Undecodable> {
        if Self::any_nan(packed) { refused("numbers that are NaN", 0, 1) } else { Ok(()) }
    }

    #[inline(always)]
    fn unpack(packed: &[u8], room: &mut Room, block: &mut [u8]) {
        let numbers = &mut room.0[..block.len() / E::SIZE * E::State::SIZE];
        let lanes = H::Vector::LANES;
        for (packed, numbers) in packed.chunks(lanes * SIZE).zip(numbers.chunks_mut(lanes * E::State::SIZE)) {
            let (mut wide, mut halves) = ([0; TAIL], [0; TAIL]);
            halves[..packed.len()].copy_from_slice(packed);
            H::State::store(H::load(&halves), &mut wide);
            for (wide, number) in f32::words(&wide).iter().zip(ScalarOf::<E>::words_mut(numbers)) {
                *number = ScalarOf::<E>::of_narrow(f32::read(*wide)).write();
            }
        }
        blocks::store::<E>(numbers, &mut ForeignMut::of(block), 0);
    }
}
