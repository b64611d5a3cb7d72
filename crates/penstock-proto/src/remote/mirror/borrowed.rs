//! Values that stand in memory which another worker of the host lends: what stands there is what is held, and nothing is written.
//!
//! The lender writes as its own mirror says, by the rules of everything else here, and with each chunk the numbers by which the home
//! knows it: version, publication, content. Who borrows takes these for its own when it looks, so tickets, digests and what it tells
//! the home are exact, as if the frames had come to itself. What the home sends nevertheless is not written anywhere: it is waited for
//! as what others bring is, and if the borrower goes back to memory of its own before that stands there, it says that it has lost it.

use super::{Broken, Effect, Mirror, Mirrored};
use crate::TensorId;
use crate::clock::MAX_CLOCK;
use crate::remote::contents::Contents;
use crate::remote::returning::Holding;

/// What stands of a chunk in a lender's memory, by its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stands {
    /// Its version.
    pub version: u64,
    /// Optimizer steps behind it.
    pub steps: u64,
    /// The publication whose value it is.
    pub publication: u64,
    /// The one that last changed what is seen.
    pub content: u64,
}

impl Mirrored {
    /// Whether what stands there is at least what is held.
    fn is_reached_by(&self, local: usize, stands: &Stands) -> bool {
        stands.version <= MAX_CLOCK
            && stands.version + 1 >= self.versions[local]
            && stands.content >= self.contents[local]
            && stands.publication >= self.positions[local]
            && stands.publication > 0
    }

    /// The home has sent a chunk's value, which is not written.
    pub(super) fn sent_nevertheless(&mut self, local: usize, version: u64, publication: u64, content: u64) {
        if publication > self.positions[local] {
            self.lost.insert(local, publication);
            self.expects(self.chunks[local], [Holding { content, version }]);
        }
    }

    /// The home has raised chunks, as they are held here, to a version.
    pub(super) fn raised_nevertheless(&mut self, chunk: u32, count: u32, version: u64, contents: Contents) {
        // Where something newer stands by now, that has come to a version of its own.
        if self.contents(chunk, count) != Some(contents) {
            return;
        }
        let Ok(first) = self.chunks.binary_search(&chunk) else { return };
        for local in first..first + count as usize {
            let content = self.contents[local];
            self.expects(self.chunks[local], [Holding { content, version }]);
        }
    }
}

impl Mirror {
    /// The chunks of a tensor, and whether it is one that may be borrowed now: the home was asked for it, and broadcasts.
    pub fn may_borrow(&self, tensor: TensorId) -> bool {
        self.tensors.get(tensor).is_some_and(|it| it.broadcast && it.asked && !it.borrowed) && !self.left
    }

    /// Whether of each chunk what is held here, or something newer, stands in a lender's memory.
    pub fn is_reached(&self, tensor: TensorId, stands: impl IntoIterator<Item = (u32, Stands)>) -> bool {
        let Some(mirrored) = self.tensors.get(tensor) else { return false };
        let mut seen = 0;
        let all = stands.into_iter().all(|(chunk, stands)| {
            seen += 1;
            mirrored.chunks.binary_search(&chunk).is_ok_and(|local| mirrored.is_reached_by(local, &stands))
        });
        all && seen == mirrored.chunks.len()
    }

    /// From now on a tensor's values stand in a lender's memory, or do no more.
    pub fn borrow(&mut self, tensor: TensorId, is_borrowed: bool) {
        if let Some(mirrored) = self.tensors.get_mut(tensor) {
            mirrored.borrowed = is_borrowed;
        }
    }

    /// This stands of a chunk in a lender's memory, and is held from now on. Refused is what no honest lender has there.
    pub fn found(&mut self, tensor: TensorId, chunk: u32, stands: Stands) -> Result<Effect, Broken> {
        let Some(mirrored) = self.tensors.get_mut(tensor) else { return Ok(Effect::Nothing) };
        let Ok(local) = mirrored.chunks.binary_search(&chunk) else { return Ok(Effect::Nothing) };
        let Stands { version, steps, publication, content } = stands;
        if version > MAX_CLOCK {
            return Err(Broken::TooNew { chunk, version });
        }
        if !mirrored.is_reached_by(local, &stands) {
            return Err(Broken::Fell { chunk, version });
        }
        let held = (mirrored.versions[local], mirrored.contents[local], mirrored.positions[local]);
        if held == (version + 1, content, publication) {
            return Ok(Effect::Nothing);
        }
        let progress = mirrored.take(local, version, publication, content);
        if mirrored.lost.get(&local).is_some_and(|&since| publication >= since) {
            mirrored.lost.remove(&local);
        }
        Ok(Effect::Publish { tensor, chunk, version, steps, progress })
    }

    /// Of a chunk nothing is held any more: its lender's memory was left in the middle of a write. It had come to this version.
    pub fn lose(&mut self, tensor: TensorId, chunk: u32, version: u64) {
        let Some(mirrored) = self.tensors.get_mut(tensor) else { return };
        let Ok(local) = mirrored.chunks.binary_search(&chunk) else { return };
        let was = mirrored.versions[local];
        if (was..=MAX_CLOCK).contains(&version) {
            mirrored.versions[local] = version + 1;
            mirrored.progress.leaves(was);
            let _ = mirrored.progress.risen(mirrored.versions.iter().copied());
        }
        // No home's frame that speaks of what was held is taken for it.
        (mirrored.positions[local], mirrored.contents[local]) = (0, 0);
        mirrored.lost.insert(local, u64::MAX);
    }

    /// The least version + 1 of a tensor's chunks.
    pub fn least(&self, tensor: TensorId) -> u64 {
        self.tensors.get(tensor).and_then(|mirrored| mirrored.progress.least()).unwrap_or(0)
    }

    /// Whether a tensor's values stand in a lender's memory.
    pub fn is_borrowed(&self, tensor: TensorId) -> bool {
        self.tensors.get(tensor).is_some_and(|mirrored| mirrored.borrowed)
    }
}
