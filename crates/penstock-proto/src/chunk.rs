//! Chunks: how a tensor is cut into short pieces of memory, each with one home.
//!
//! All chunks of a tensor have `chunk_bytes` bytes but the last, which has what is left. 32 KiB by default (phub.md, 3.2.3
//! and figure 16): a chunk and its lanes fit into a core's first cache, and a tensor is spread evenly over shards.

use std::ops::Range;

/// Bytes of a chunk where nothing else is asked for.
pub const DEFAULT_CHUNK_BYTES: u32 = 32 * 1024;
/// A page: chunks of different servers are mapped next to each other, so no chunk may end inside one.
pub const MIN_CHUNK_BYTES: u32 = 4096;
/// Beyond this a chunk fits into no core's cache, and the sums would run at the speed of memory three times over.
pub const MAX_CHUNK_BYTES: u32 = 4 * 1024 * 1024;

/// Whether a chunk may have this many bytes: a power of two between [`MIN_CHUNK_BYTES`] and [`MAX_CHUNK_BYTES`].
pub const fn is_chunk_size(bytes: u32) -> bool {
    bytes.is_power_of_two() && bytes >= MIN_CHUNK_BYTES && bytes <= MAX_CHUNK_BYTES
}

/// How `bytes` bytes are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    bytes: u64,
    chunk_bytes: u32,
}

impl Cut {
    /// Cuts `bytes` bytes into chunks of `chunk_bytes`.
    ///
    /// # Panics
    /// If `chunk_bytes` is not a chunk size; it is checked where it enters (options, `Welcome`).
    pub fn new(bytes: u64, chunk_bytes: u32) -> Self {
        assert!(is_chunk_size(chunk_bytes), "{chunk_bytes} is not a chunk size");
        Self { bytes, chunk_bytes }
    }

    /// Bytes of the whole.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of every chunk but the last.
    pub fn chunk_bytes(&self) -> u32 {
        self.chunk_bytes
    }

    /// How many chunks there are.
    pub fn chunks(&self) -> u32 {
        u32::try_from(self.bytes.div_ceil(u64::from(self.chunk_bytes)))
            .expect("spec bounds the size of a tensor")
    }

    /// Where chunk `index` lies, in bytes.
    pub fn range(&self, index: u32) -> Range<u64> {
        let start = u64::from(index) * u64::from(self.chunk_bytes);
        start..(start + u64::from(self.chunk_bytes)).min(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_chunks_of_a_tensor_cover_it_without_gap_or_overlap(bytes in 1u64..10_000_000, power in 12u32..=22) {
            let cut = Cut::new(bytes, 1 << power);
            let mut at = 0;
            for index in 0..cut.chunks() {
                let range = cut.range(index);
                prop_assert_eq!(range.start, at);
                prop_assert!(range.end > range.start);
                at = range.end;
            }
            prop_assert_eq!(at, bytes);
        }
    }

    #[test]
    fn a_chunk_size_that_would_cut_a_page_is_none() {
        assert!(is_chunk_size(DEFAULT_CHUNK_BYTES) && is_chunk_size(4096));
        assert!(!is_chunk_size(0) && !is_chunk_size(2048) && !is_chunk_size(5000) && !is_chunk_size(8 << 20));
    }
}
