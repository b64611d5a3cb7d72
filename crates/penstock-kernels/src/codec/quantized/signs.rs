//! Elements that are all of one magnitude.

use super::bits::{self, Bits};
use super::{Moved, Packing, magnitude, opened};
use crate::blocks::{self, BLOCK, Room};
use crate::codec::Undecodable;
use crate::codec::span::refused;
use crate::number::{Number, Real};
use crate::sweep::ScalarOf;
use crate::vector::Element;
use crate::{Foreign, ForeignMut};
use std::marker::PhantomData;

/// Copied out by the vectors of `E`.
pub(super) struct Signs<E, B>(PhantomData<(E, B)>);

impl<E: Element, B: Bits> Packing for Signs<E, B> {
    const GUESSES: usize = magnitude::GUESSES;

    /// All by the magnitude: those that come to what stands there, and the others by its negative.
    #[inline(always)]
    fn guess<M: Element>(guess: usize, moved: Moved<'_>, by: &mut [u8]) {
        let magnitude = ScalarOf::<M>::of(magnitude::guess::<M>(guess, moved, true));
        let by = ScalarOf::<M>::words_mut(by);
        by.fill(magnitude.write());
        let (mut held, mut there) = (Room::new(), Room::new());
        let (held, there) = (&mut held.0[..moved.held.len()], &mut there.0[..moved.base.len()]);
        held.copy_from_slice(moved.held);
        for held in ScalarOf::<M>::words_mut(held) {
            *held = (ScalarOf::<M>::read(*held) + magnitude).write();
        }
        blocks::store::<M>(held, &mut ForeignMut::of(there), 0);
        let elements = there.chunks_exact(M::SIZE).zip(moved.stands.chunks_exact(M::SIZE));
        for (by, (there, stands)) in by.iter_mut().zip(elements) {
            let sign = ScalarOf::<M>::of(if there == stands { 1.0 } else { -1.0 });
            *by = magnitude.signed(sign).write();
        }
    }

    #[inline(always)]
    fn pack(block: &Foreign<'_>, room: &mut Room, out: &mut [u8]) -> bool {
        let elements = &mut room.0[..block.len()];
        blocks::copy::<E>(block, elements);
        let elements = B::words(elements);
        let magnitude = B::read(elements[0]) & B::MAGNITUDE;
        let mut negative = [0; BLOCK];
        let mut differ = false;
        for (word, negative) in elements.iter().zip(&mut negative) {
            let element = B::read(*word);
            differ |= (element & B::MAGNITUDE) != magnitude;
            *negative = element.sign();
        }
        let (first, negatives) = out.split_at_mut(B::SIZE);
        B::words_mut(first)[0] = magnitude.write();
        bits::pack(&negative, negatives);
        !differ
    }

    #[inline(always)]
    fn check(packed: &[u8], elements: usize) -> Result<(), Undecodable> {
        let (magnitude, negatives) = opened::<B>(packed);
        if magnitude & B::SIGN != B::default() {
            return refused("sign of a magnitude", 0, 1);
        }
        bits::check(negatives, elements)
    }

    #[inline(always)]
    fn unpack(packed: &[u8], _: &mut Room, block: &mut [u8]) {
        let (magnitude, negatives) = opened::<B>(packed);
        let mut negative = [0; BLOCK];
        bits::unpack(negatives, &mut negative);
        for (word, &negative) in B::words_mut(block).iter_mut().zip(&negative) {
            *word = (magnitude | B::SIGN.if_set(negative)).write();
        }
    }
}
