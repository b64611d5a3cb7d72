//! Placement: which server, and which of its shards, is the home of a chunk.
//!
//! Two levels, both by load in bytes:
//!
//! - **Servers** get one contiguous *extent* of a tensor each, so that a worker maps the value of several servers as one
//!   array with one mapping per server. Extents are sized so that loads become as even as they can (water filling).
//! - **Shards** of a server get the chunks of its extent one by one, each to the least loaded shard. All chunks of a
//!   tensor but the last are of one size, so this is the longest-processing-time rule with its 4/3 bound (Graham 1969;
//!   phub.md, 3.2.4), and neighbouring chunks go to different shards: a gradient that arrives from front to back keeps
//!   all of them busy.
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

/// The shard of each chunk with these sizes, in order; adds them to the shards' `loads` (bytes).
pub fn shards(loads: &mut [u64], chunk_sizes: impl Iterator<Item = u64>) -> Vec<u32> {
    chunk_sizes
        .map(|bytes| {
            let (shard, load) =
                loads.iter_mut().enumerate().min_by_key(|(_, load)| **load).expect("a server has a shard");
            *load += bytes;
            shard as u32
        })
        .collect()
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

        #[test]
        fn the_busiest_shard_stays_within_four_thirds_of_the_best(
            tensors in prop::collection::vec(1u64..3_000_000, 1..40), count in 1usize..9,
        ) {
            let mut loads = vec![0; count];
            for bytes in &tensors {
                let cut = crate::chunk::Cut::new(*bytes, 4096);
                shards(&mut loads, (0..cut.chunks()).map(|c| { let r = cut.range(c); r.end - r.start }));
            }
            let total: u64 = tensors.iter().sum();
            let best = (total.div_ceil(count as u64)).max(tensors.iter().map(|&b| b.min(4096)).max().unwrap());
            let slack = 4096; // the tails of tensors come in the order of declaration, not of size
            prop_assert!(*loads.iter().max().unwrap() <= best * 4 / 3 + slack);
        }
    }
}
