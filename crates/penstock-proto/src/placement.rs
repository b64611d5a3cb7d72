//! Placement: which server, and which of its shards, is the home of a chunk.
//!
//! Two levels, both by load in bytes:
//!
//! - **Servers** get one contiguous *extent* of a tensor each, so that a worker maps the value of several servers as one
//!   array with one mapping per server. Extents are sized so that loads become as even as they can (water filling).
//! - **Shards** of a server get as many chunks of its extent as make their loads even, to within a chunk: at least as even
//!   as the longest-processing-time rule, whose 4/3 bound (Graham 1969; phub.md, 3.2.4) is tested. A shard's chunks come in
//!   runs, and the shards take turns: a gradient that arrives from front to back keeps all of them busy.
//!
//! The first server decides extents (it alone sees every declaration); shards are decided by their own server.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The chunks of a tensor that one server is home of: `first..first + count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// First chunk.
    pub first: u32,
    /// How many chunks; may be 0.
    pub count: u32,
}

impl Extent {
    /// The chunks as a range.
    pub fn chunks(&self) -> Range<u32> {
        self.first..self.first + self.count
    }
}

/// Cuts `chunks` chunks of `chunk_bytes` into one extent a server, and adds them to the servers' `loads` (bytes).
pub fn extents(loads: &mut [u64], chunks: u32, chunk_bytes: u32) -> Vec<Extent> {
    let chunk = u64::from(chunk_bytes);
    let mut counts = fill(loads, chunks, chunk);
    let mut first = 0;
    counts
        .drain(..)
        .zip(loads)
        .map(|(count, load)| {
            *load += u64::from(count) * chunk;
            let extent = Extent { first, count };
            first += count;
            extent
        })
        .collect()
}

/// How many chunks each server gets: the level L is the least with sum(max(0, L - load)) >= all bytes; found by bisection.
fn fill(loads: &[u64], chunks: u32, chunk: u64) -> Vec<u32> {
    let room = |level: u64| -> u64 { loads.iter().map(|&load| level.saturating_sub(load) / chunk).sum() };
    let (mut low, mut high) = (0, loads.iter().max().copied().unwrap_or(0) + u64::from(chunks) * chunk);
    while low < high {
        let middle = low + (high - low) / 2;
        if room(middle) >= u64::from(chunks) { high = middle } else { low = middle + 1 }
    }
    let mut left = chunks;
    let take = |&load: &u64| {
        let count = (high.saturating_sub(load) / chunk).min(u64::from(left)) as u32;
        left -= count;
        count
    };
    loads.iter().map(take).collect()
}

/// Bytes of neighbouring chunks that go to one shard before the next shard's turn. Each core's prefetcher runs ahead of it,
/// past the end of its chunk; where the next chunk is another core's, it takes lines away that are being written there.
/// Measured with 4 MiB and 2 shards (`penstock bench pushpull --size 4MiB`): runs of 32 KiB stood at 2.3 times the limit,
/// of 128 KiB at 1.5, of 1 MiB at 1.1. Longer runs would keep shards waiting for a gradient that arrives from the front.
const RUN_BYTES: u64 = 1 << 20;

/// The shard of each chunk with these sizes (all the same but a shorter last one), in order; adds them to the shards' `loads`
/// (bytes). Every shard gets as many chunks as make the loads even, in runs of [`RUN_BYTES`] at most.
pub fn shards(loads: &mut [u64], chunk_sizes: impl Iterator<Item = u64>) -> Vec<u32> {
    let sizes: Vec<u64> = chunk_sizes.collect();
    let Some(&chunk) = sizes.first() else { return Vec::new() };
    let counts = fill(loads, sizes.len() as u32, chunk);
    let most = counts.iter().copied().max().unwrap_or(0);
    let rounds = (u64::from(most) * chunk).div_ceil(RUN_BYTES).max(1);
    let up_to = |count: u32, round: u64| u64::from(count) * round / rounds;
    let mut homes = Vec::with_capacity(sizes.len());
    for round in 0..rounds {
        for (&count, shard) in counts.iter().zip(0..) {
            homes.extend((up_to(count, round)..up_to(count, round + 1)).map(|_| shard));
        }
    }
    for (&shard, bytes) in homes.iter().zip(sizes) {
        loads[shard as usize] += bytes;
    }
    homes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn extents_follow_each_other_and_cover_all_chunks(
            loads in prop::collection::vec(0u64..1_000_000, 1..6), chunks in 0u32..500,
        ) {
            let mut after = loads.clone();
            let extents = extents(&mut after, chunks, 4096);
            let mut at = 0;
            for extent in &extents {
                prop_assert_eq!(extent.first, at);
                at += extent.count;
            }
            prop_assert_eq!(at, chunks);
        }

        #[test]
        fn no_server_is_more_than_a_chunk_above_another_that_got_something(
            loads in prop::collection::vec(0u64..100_000, 1..6), chunks in 0u32..500,
        ) {
            let mut after = loads.clone();
            let extents = extents(&mut after, chunks, 4096);
            let least = after.iter().min().unwrap();
            for (extent, load) in extents.iter().zip(&after) {
                prop_assert!(extent.count == 0 || load - least <= 2 * 4096, "{:?}", after);
            }
        }

        /// Graham's bound for the longest-processing-time rule, level by level: servers, their shards, their interfaces.
        #[test]
        fn every_level_stays_within_four_thirds_of_the_best(
            tensors in prop::collection::vec(1u64..3_000_000, 1..40),
            servers in 1usize..6, per_interface in 1usize..4, interfaces in 1usize..4,
        ) {
            let mut loads = vec![0u64; servers];
            let mut shard_loads = vec![vec![0u64; per_interface * interfaces]; servers];
            for bytes in &tensors {
                let cut = crate::chunk::Cut::new(*bytes, 4096);
                for (extent, shard_loads) in extents(&mut loads, cut.chunks(), 4096).iter().zip(&mut shard_loads) {
                    let sizes = extent.chunks().map(|chunk| { let range = cut.range(chunk); range.end - range.start });
                    shards(shard_loads, sizes);
                }
            }
            // A chunk is counted whole where extents are cut, and each tensor's last may be short.
            let slack = 4096 * 2;
            let best = |loads: &[u64]| loads.iter().sum::<u64>().div_ceil(loads.len() as u64).max(4096);
            prop_assert!(*loads.iter().max().unwrap() <= best(&loads) * 4 / 3 + slack);
            for loads in &shard_loads {
                prop_assert!(*loads.iter().max().unwrap() <= best(loads) * 4 / 3 + slack);
                // Shard s speaks on interface s modulo their number.
                let on = |interface: usize| loads.iter().skip(interface).step_by(interfaces).sum::<u64>();
                let interfaces: Vec<u64> = (0..interfaces).map(on).collect();
                prop_assert!(
                    *interfaces.iter().max().unwrap() <= best(&interfaces) * 4 / 3 + slack * per_interface as u64
                );
            }
        }

        #[test]
        fn the_busiest_shard_stays_within_four_thirds_of_the_best(
            tensors in prop::collection::vec(1u64..3_000_000, 1..40), count in 1usize..9,
        ) {
            let mut loads = vec![0; count];
            for bytes in &tensors {
                let cut = crate::chunk::Cut::new(*bytes, 4096);
                let before = loads.clone();
                let homes = shards(&mut loads, (0..cut.chunks()).map(|c| { let r = cut.range(c); r.end - r.start }));
                prop_assert_eq!(homes.len(), cut.chunks() as usize);
                prop_assert_eq!(loads.iter().sum::<u64>(), before.iter().sum::<u64>() + bytes);
            }
            let total: u64 = tensors.iter().sum();
            let best = (total.div_ceil(count as u64)).max(tensors.iter().map(|&b| b.min(4096)).max().unwrap());
            let slack = 4096; // the tails of tensors come in the order of declaration, not of size
            prop_assert!(*loads.iter().max().unwrap() <= best * 4 / 3 + slack);
        }
    }
}
