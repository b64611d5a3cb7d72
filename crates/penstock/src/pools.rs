//! Where small tensors lie: one behind the other in slabs that grow with what there is, so that thousands cost a few regions,
//! and one costs little more than itself.

use penstock_fabric::layout::{LINE, pages};

/// Tensors below this share slabs, where one server is home of all of it. A larger one has regions of its own: it starts on a
/// page, may be spread over servers, and what two mappings and a descriptor cost no longer counts.
pub(crate) const POOLED_BELOW: u64 = 256 * 1024;
/// The first slab.
const FIRST: usize = 64 * 1024;
/// The largest, but for the last resort.
const LARGEST: usize = 64 << 20;

/// A place in a slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spot {
    /// The slab's number.
    pub(crate) slab: usize,
    /// The first byte.
    pub(crate) at: usize,
}

/// How slabs are filled.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Their bytes.
    slabs: Vec<usize>,
    /// Bytes of the last that are taken.
    used: usize,
}

impl Plan {
    /// Bytes of the slab that would have to be made for `bytes` more, if there is no room: as many as there are already.
    pub(crate) fn wants(&self, bytes: usize) -> Option<usize> {
        let last = self.slabs.last().copied().unwrap_or(0);
        let room = last - self.used.min(last);
        (room < bytes).then(|| {
            let all: usize = self.slabs.iter().sum();
            all.clamp(FIRST, LARGEST).max(pages(bytes))
        })
    }

    /// The least that such a slab may have, if there is not that much memory left.
    pub(crate) fn least(bytes: usize) -> usize {
        pages(bytes)
    }

    /// A slab was made.
    pub(crate) fn add(&mut self, bytes: usize) {
        self.slabs.push(bytes);
        self.used = 0;
    }

    /// Takes a place for `bytes`, for which there is room.
    pub(crate) fn take(&mut self, bytes: usize) -> Spot {
        let spot = Spot { slab: self.slabs.len() - 1, at: self.used };
        self.used += bytes.next_multiple_of(LINE);
        spot
    }

    /// Gives back the place that was taken last.
    pub(crate) fn give_back(&mut self, spot: Spot) {
        if spot.slab + 1 == self.slabs.len() {
            self.used = self.used.min(spot.at);
        }
    }

    /// Bytes of a slab.
    pub(crate) fn bytes(&self, slab: usize) -> usize {
        self.slabs[slab]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(plan: &mut Plan, bytes: usize) -> Spot {
        if let Some(slab) = plan.wants(bytes) {
            plan.add(slab);
        }
        plan.take(bytes)
    }

    #[test]
    fn a_hundred_thousand_small_pieces_take_a_few_slabs_and_at_most_twice_their_bytes() {
        let mut plan = Plan::default();
        let mut sum = 0;
        for index in 0..100_000usize {
            let bytes = 64 + index % 16 * 64;
            sum += bytes;
            let spot = place(&mut plan, bytes);
            assert!(spot.at + bytes <= plan.bytes(spot.slab) && spot.at.is_multiple_of(LINE));
        }
        assert!(plan.slabs.len() <= 14, "{}", plan.slabs.len());
        assert!(plan.slabs.iter().sum::<usize>() <= 2 * sum + LARGEST);
    }

    #[test]
    fn pieces_of_a_slab_follow_each_other_and_never_overlap() {
        let mut plan = Plan::default();
        let spots: Vec<Spot> = [100, 64, 1].into_iter().map(|bytes| place(&mut plan, bytes)).collect();
        assert_eq!(spots.iter().map(|spot| spot.at).collect::<Vec<_>>(), [0, 128, 192]);
    }
}
