//! Elements of a chunk, as accumulators that stand side by side in memory of our own.

use crate::accumulate::padded;
use crate::vector::{Element, TAIL};
use crate::{Foreign, ForeignMut};

/// The most elements of a block: a multiple of every vector's.
pub(crate) const BLOCK: usize = 1024;

/// Room for the accumulators of a block, on cache lines.
#[repr(align(64))]
pub(crate) struct Room(pub(crate) [u8; 8 * BLOCK]);

impl Room {
    pub(crate) fn new() -> Self {
        Self([0; 8 * BLOCK])
    }
}

/// Widens the elements from byte `at` on, as many as `to` has room for.
#[inline(always)]
pub(crate) fn load<E: Element>(chunk: &Foreign<'_>, mut at: usize, to: &mut [u8]) {
    let mut vectors = to.chunks_exact_mut(E::State::BYTES);
    for to in &mut vectors {
        E::State::store(E::load_foreign(chunk, at), to);
        at += E::BYTES;
    }
    let rest = vectors.into_remainder();
    if !rest.is_empty() {
        let mut last = [0; TAIL];
        let part = chunk.part(at..at + rest.len() / E::State::SIZE * E::SIZE);
        E::State::store(E::load(&padded(&part, 0)), &mut last);
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// Rounds accumulators and writes them from byte `at` on.
#[inline(always)]
pub(crate) fn store<E: Element>(from: &[u8], chunk: &mut ForeignMut<'_>, mut at: usize) {
    let mut vectors = from.chunks_exact(E::State::BYTES);
    for from in &mut vectors {
        E::store_foreign(E::State::load(from), chunk, at);
        at += E::BYTES;
    }
    let rest = vectors.remainder();
    if !rest.is_empty() {
        let (mut wide, mut last) = ([0; TAIL], [0; TAIL]);
        wide[..rest.len()].copy_from_slice(rest);
        E::store(E::State::load(&wide), &mut last);
        chunk.store_words(at, &last[..rest.len() / E::State::SIZE * E::SIZE]);
    }
}

/// Copies out a block, whatever stands in it, by the vectors of `E`.
#[inline(always)]
pub(crate) fn copy<E: Element>(chunk: &Foreign<'_>, to: &mut [u8]) {
    let mut at = 0;
    let mut vectors = to.chunks_exact_mut(E::BYTES);
    for to in &mut vectors {
        E::store(E::load_foreign(chunk, at), to);
        at += E::BYTES;
    }
    chunk.copy_words(at, vectors.into_remainder());
}
