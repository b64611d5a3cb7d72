//! How the chunks of a tensor are cut into stripes, and what is held of each stripe, in one number.
//!
//! A home tells a subscriber that others feed this number, and the subscriber compares it with its own: so each learns in a few bytes
//! whether something is missing, whatever the tensor's size.

use super::routes::{MAX_STRIPES, Striping};
use crate::TensorId;

/// Of the chunks of one tensor that one shard is home of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digests {
    tensor: TensorId,
    chunk_bytes: u64,
    striping: Striping,
    /// What each chunk adds.
    counted: Vec<u64>,
    /// The sum of that, by stripe, modulo 2^64.
    sums: Vec<u64>,
}

impl Digests {
    /// Of so many chunks, of which nothing is held, of so many bytes each but for the tensor's last.
    pub fn new(tensor: TensorId, chunks: usize, chunk_bytes: u64, shares: &[u32]) -> Self {
        let (striping, counted, sums) = (Striping::default(), vec![0; chunks], Vec::new());
        let mut digests = Self { tensor, chunk_bytes, striping, counted, sums };
        digests.cut(shares);
        digests
    }

    /// Cuts it into other stripes.
    pub fn cut(&mut self, shares: &[u32]) {
        self.striping = Striping::new(self.tensor, self.counted.len(), self.chunk_bytes, shares);
        self.sums = vec![0; shares.len().clamp(1, MAX_STRIPES)];
        for (local, &counted) in self.counted.iter().enumerate() {
            let sum = &mut self.sums[self.striping.of(local)];
            *sum = sum.wrapping_add(counted);
        }
    }

    /// Of a chunk this is held from now on: its version, and the publication that last changed what is seen of it.
    pub fn count(&mut self, local: usize, version: u64, content: u64) {
        let now = content.wrapping_add(version + 1);
        let before = std::mem::replace(&mut self.counted[local], now);
        let sum = &mut self.sums[self.striping.of(local)];
        *sum = sum.wrapping_add(now.wrapping_sub(before));
    }

    /// Of a chunk nothing is held any more.
    pub fn forget(&mut self, local: usize) {
        let before = std::mem::take(&mut self.counted[local]);
        let sum = &mut self.sums[self.striping.of(local)];
        *sum = sum.wrapping_sub(before);
    }

    /// The stripe of a chunk, by its place among those homed there.
    pub fn stripe(&self, local: usize) -> usize {
        self.striping.of(local)
    }

    /// What is held of a stripe: the sum, over its chunks of which something is, of their versions + 1 and of the publications that last
    /// changed what is seen of them; modulo 2^64. `None`: there is no such stripe.
    pub fn of(&self, stripe: usize) -> Option<u64> {
        self.sums.get(stripe).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_held_of_the_stripes_together_is_what_was_counted_however_it_is_cut(
            chunks in 1usize..40,
            counts in prop::collection::vec((any::<prop::sample::Index>(), 0u64..100, any::<u64>()), 0..60),
            cuts in prop::collection::vec(prop::collection::vec(1u32..9, 0..5), 1..4),
        ) {
            let mut digests = Digests::new(1, chunks, 4096, &[]);
            let mut held = vec![0u64; chunks];
            for (turn, (at, version, content)) in counts.iter().enumerate() {
                digests.cut(&cuts[turn % cuts.len()]);
                let local = at.index(chunks);
                digests.count(local, *version, *content);
                held[local] = content.wrapping_add(version + 1);
            }
            for stripe in 0..5 {
                let mine = (0..chunks).filter(|&local| digests.stripe(local) == stripe).map(|local| held[local]);
                prop_assert_eq!(digests.of(stripe).unwrap_or(0), mine.fold(0, u64::wrapping_add));
            }
        }
    }
}
