//! Elements that are all 0 or of one magnitude.

use super::bits::{self, Bits};
use super::{Moved, Packing, magnitude, opened};
use crate::Foreign;
use crate::blocks::{self, BLOCK, Room};
use crate::codec::Undecodable;
use crate::codec::span::refused;
use crate::number::{Number, Real};
use crate::sweep::ScalarOf;
use crate::vector::Element;
use std::marker::PhantomData;

/// Copied out by the vectors of `E`.
pub(super) struct Thirds<E, B>(PhantomData<(E, B)>);

impl<E: Element, B: Bits> Packing for Thirds<E, B> {
    const GUESSES: usize = magnitude::GUESSES;

    /// Those that have moved by the magnitude, in the direction in which they have.
    #[inline(always)]
    fn guess<M: Element>(guess: usize, moved: Moved<'_>, by: &mut [u8]) {
        let magnitude = ScalarOf::<M>::of(magnitude::guess::<M>(guess, moved, false));
        let elements = moved.base.chunks_exact(M::SIZE).zip(moved.stands.chunks_exact(M::SIZE));
        let words = ScalarOf::<M>::words(moved.off).iter().zip(ScalarOf::<M>::words_mut(by));
        for ((off, by), (base, stands)) in words.zip(elements) {
            let some = magnitude.signed(ScalarOf::<M>::read(*off));
            *by = (if base == stands { ScalarOf::<M>::of(0.0) } else { some }).write();
        }
    }

    #[inline(always)]
    fn pack(block: &Foreign<'_>, room: &mut Room, out: &mut [u8]) -> bool {
        let elements = &mut room.0[..block.len()];
        blocks::copy::<E>(block, elements);
        let elements = B::words(elements);
        let magnitudes = elements.iter().map(|word| B::read(*word) & B::MAGNITUDE);
        // Of one magnitude all that are not 0 have the same bits together as by themselves.
        let magnitude = magnitudes.fold(B::default(), |all, one| all | one);
        let (mut set, mut negative) = ([0; BLOCK], [0; BLOCK]);
        let mut differ = false;
        for ((word, set), negative) in elements.iter().zip(&mut set).zip(&mut negative) {
            let element = B::read(*word);
            let some = element & B::MAGNITUDE != B::default();
            differ |= (element & B::MAGNITUDE) != magnitude.if_set(some.into());
            // -0.0 is neither.
            differ |= !some & (element != B::default());
            (*set, *negative) = (some.into(), element.sign());
        }
        let (first, rest) = out.split_at_mut(B::SIZE);
        B::words_mut(first)[0] = magnitude.write();
        let (sets, negatives) = rest.split_at_mut(bits::bytes(elements.len()));
        bits::pack(&set, sets);
        bits::pack(&negative, negatives);
        !differ
    }

    #[inline(always)]
    fn check(packed: &[u8], elements: usize) -> Result<(), Undecodable> {
        let (magnitude, rest) = opened::<B>(packed);
        if magnitude & B::SIGN != B::default() {
            return refused("sign of a magnitude", 0, 1);
        }
        let (sets, negatives) = rest.split_at(bits::bytes(elements));
        bits::check(sets, elements)?;
        let any = sets.iter().fold(0, |all, set| all | set) != 0;
        if any != (magnitude != B::default()) {
            return refused("elements that are not 0, or none", usize::from(!any), usize::from(any));
        }
        let stray = sets.iter().zip(negatives).fold(0, |all, (set, negative)| all | (negative & !set));
        if stray != 0 { refused("signs of elements that are 0", 0, stray.into()) } else { Ok(()) }
    }

    #[inline(always)]
    fn unpack(packed: &[u8], _: &mut Room, block: &mut [u8]) {
        let (magnitude, rest) = opened::<B>(packed);
        let (sets, negatives) = rest.split_at(bits::bytes(block.len() / B::SIZE));
        let (mut set, mut negative) = ([0; BLOCK], [0; BLOCK]);
        bits::unpack(sets, &mut set);
        bits::unpack(negatives, &mut negative);
        for ((word, &set), &negative) in B::words_mut(block).iter_mut().zip(&set).zip(&negative) {
            *word = (magnitude.if_set(set) | B::SIGN.if_set(negative)).write();
        }
    }
}
