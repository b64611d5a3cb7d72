//! Elements that move: from what is held by so much, rounded once. Whoever chooses by how much, whoever finds that again and whoever is
//! told does the same here, so that all hold the same bits.

use crate::blocks;
use crate::number::{Number, Real};
use crate::sweep::ScalarOf;
use crate::vector::Element;
use crate::{Foreign, ForeignMut};

/// How far accumulators are from those that are held, 0 where that is no finite number: `each` hears whether.
#[inline(always)]
pub(crate) fn differences<E: Element>(
    now: &[u8],
    held: &[u8],
    by: &mut [u8],
    mut each: impl FnMut(usize, bool),
) {
    let read = ScalarOf::<E>::read;
    let words = ScalarOf::<E>::words(now).iter().zip(ScalarOf::<E>::words(held));
    for (at, (by, (now, held))) in ScalarOf::<E>::words_mut(by).iter_mut().zip(words).enumerate() {
        let difference = read(*now) - read(*held);
        each(at, difference.is_finite());
        *by = if difference.is_finite() { difference.write() } else { ScalarOf::<E>::of(0.0).write() };
    }
}

/// A block of elements `base`, each moved and rounded, goes to `to`: those that do not move as they stand, bit for bit. `held` has their
/// accumulators, and is worked in; `by`, likewise, by how much.
#[inline(always)]
pub(crate) fn move_by<E: Element>(base: &[u8], held: &mut [u8], by: &[u8], to: &mut [u8]) {
    let (read, nothing) = (ScalarOf::<E>::read, ScalarOf::<E>::of(0.0));
    let by = ScalarOf::<E>::words(by);
    for (held, by) in ScalarOf::<E>::words_mut(held).iter_mut().zip(by) {
        *held = (read(*held) + read(*by)).write();
    }
    blocks::store::<E>(held, &mut ForeignMut::of(to), 0);
    let elements = to.chunks_exact_mut(E::SIZE).zip(base.chunks_exact(E::SIZE));
    for ((to, base), by) in elements.zip(by) {
        let rests = read(*by) == nothing;
        for (to, base) in to.iter_mut().zip(base) {
            *to = if rests { *base } else { *to };
        }
    }
}

/// The accumulators of elements that stand in memory of our own.
#[inline(always)]
pub(crate) fn load<E: Element>(elements: &[u8], to: &mut [u8]) {
    blocks::load::<E>(&Foreign::of(elements), 0, to);
}
