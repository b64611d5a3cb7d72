//! What the home publishes: one tensor, of which each version has other bits in every chunk.

use crate::rng::hash;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The versions that somebody may still be sent.
pub(super) struct Model {
    seed: u64,
    chunks: u32,
    chunk_bytes: usize,
    versions: BTreeMap<u64, Rc<[u8]>>,
}

/// Versions that are kept.
const KEPT: usize = 3;

impl Model {
    pub(super) fn new(seed: u64, chunks: u32, chunk_bytes: usize) -> Self {
        Self { seed, chunks, chunk_bytes, versions: BTreeMap::new() }
    }

    /// A version comes to be.
    pub(super) fn make(&mut self, version: u64) {
        let mut bytes = vec![0; self.chunks as usize * self.chunk_bytes];
        for (chunk, bytes) in bytes.chunks_exact_mut(self.chunk_bytes).enumerate() {
            let mut word = hash(&[self.seed, version, chunk as u64]);
            for bytes in bytes.as_chunks_mut::<8>().0 {
                // Enough that no two words of a model are the same.
                word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                *bytes = word.to_le_bytes();
            }
        }
        self.versions.insert(version, bytes.into());
        while self.versions.len() > KEPT {
            self.versions.pop_first();
        }
    }

    /// A chunk of a version.
    pub(super) fn chunk(&self, version: u64, chunk: u32) -> Option<&[u8]> {
        let start = chunk as usize * self.chunk_bytes;
        self.versions.get(&version).map(|bytes| &bytes[start..start + self.chunk_bytes])
    }
}
