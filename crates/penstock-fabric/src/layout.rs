//! Where everything lies in shared memory. docs/layout.md draws it, and a test reads the drawing.
//!
//! | region | made by | workers map it | holds |
//! |---|---|---|---|
//! | flags | server, one a job | read-only | each shard's sleeping flag; heartbeats of the shards and of the control thread |
//! | page | server, one a worker | writable | bell, heartbeat, a ring for each shard |
//! | model | server, one a tensor | read-only | this server's extent of the value; then progress of each shard; then chunk headers |
//! | lane | server, one for each tensor and worker | writable | the same extent of the contribution; then counts of folded chunks, by shard |
//! | state | server, one a tensor | read-only, on request | the optimizer's arrays, chunk by chunk |

use crate::doorbell::{Bell, Sleeping};
use crate::publish::ChunkHeader;
use crate::ring::Ring;
use crate::sync::AtomicU64;
use penstock_proto::message::MAX_SHARDS;

/// Smallest unit of mappings.
pub const PAGE: usize = 4096;

/// A cache line: what loads of contributions are aligned to.
pub const LINE: usize = 64;

/// `bytes` rounded up to whole pages.
pub const fn pages(bytes: usize) -> usize {
    bytes.div_ceil(PAGE) * PAGE
}

/// A count with a cache line to itself.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Count(pub AtomicU64);

/// A type that is all atomics, so that a shared reference to it is sound whatever other processes write.
///
/// # Safety
/// Every bit pattern is a value, every field is an atomic (or padding), and the type has no destructor.
pub unsafe trait Shared: Sync {}
// SAFETY: one `AtomicU64`.
unsafe impl Shared for Count {}
// SAFETY: five `AtomicU64`.
unsafe impl Shared for ChunkHeader {}
// SAFETY: one `AtomicU32`.
unsafe impl Shared for Sleeping {}
// SAFETY: two `AtomicU32`.
unsafe impl Shared for Bell {}
// SAFETY: `AtomicU64`s only.
unsafe impl Shared for Ring {}

/// The flags: one [`Sleeping`] a shard; then the heartbeats, a [`Count`] for each shard and one for the control thread.
pub mod flags {
    use super::{Count, MAX_SHARDS, Sleeping, pages};
    use crate::region::Mapping;
    use crate::sync::Ordering;

    /// Where the heartbeats lie.
    const BEATS: usize = MAX_SHARDS as usize * size_of::<Sleeping>();
    /// Bytes.
    pub const BYTES: usize = pages(BEATS + (MAX_SHARDS as usize + 1) * size_of::<Count>());
    /// The control thread, where a shard is named.
    pub const CONTROL: u32 = MAX_SHARDS;

    /// Where the heartbeat of `shard`, or of [`CONTROL`], lies. It grows while its thread lives.
    pub fn heartbeat(shard: u32) -> usize {
        BEATS + shard as usize * size_of::<Count>()
    }

    /// Where the flag of `shard` lies.
    pub fn sleeping(shard: u32) -> usize {
        shard as usize * size_of::<Sleeping>()
    }

    /// For a worker, which may only look at the flags: whether a shard sleeps, behind [`published`](crate::doorbell::published).
    pub fn must_ring(flags: &Mapping, shard: u32) -> bool {
        flags.peek::<Sleeping>(sleeping(shard)).must_ring()
    }

    /// For a worker, likewise: how often the thread of `shard`, or of [`CONTROL`], has shown that it lives.
    pub fn beats(flags: &Mapping, shard: u32) -> u64 {
        flags.peek::<Count>(heartbeat(shard)).0.load(Ordering::Relaxed)
    }
}

/// A worker's page.
pub mod page {
    use super::{PAGE, Ring, pages};

    /// Where the [`Bell`](crate::doorbell::Bell) lies.
    pub const BELL: usize = 0;
    /// Where the heartbeat, a [`Count`](super::Count), lies.
    pub const HEARTBEAT: usize = 64;

    /// Where the ring to `shard` lies.
    pub fn ring(shard: u32) -> usize {
        PAGE + shard as usize * pages(size_of::<Ring>())
    }

    /// Bytes, with rings to `shards` shards.
    pub fn bytes(shards: u32) -> usize {
        ring(shards)
    }
}

/// What follows the values in a model's region: progress by shard (version + 1, 0 before the first), then headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelLayout {
    /// Bytes of the values, in whole pages; the values start at 0.
    pub data: usize,
    /// Chunks of the extent.
    pub chunks: u32,
    /// Shards that there is room for.
    pub shards: u32,
    unit: usize,
}

impl ModelLayout {
    /// For an extent of `bytes` bytes in `chunks` chunks, in a region of its own.
    pub fn new(bytes: usize, chunks: u32) -> Self {
        Self { data: pages(bytes), chunks, shards: MAX_SHARDS, unit: PAGE }
    }

    /// The same in a region with others, of a server of `shards` shards: whole cache lines instead of pages.
    pub fn pooled(bytes: usize, chunks: u32, shards: u32) -> Self {
        Self { data: bytes.next_multiple_of(LINE), chunks, shards, unit: LINE }
    }

    /// Where the progress of `shard` lies, from the end of the values.
    pub fn progress(shard: u32) -> usize {
        shard as usize * size_of::<Count>()
    }

    /// Where the header of the extent's chunk `index` lies, from the end of the values.
    pub fn header(&self, index: u32) -> usize {
        Self::progress(self.shards) + index as usize * size_of::<ChunkHeader>()
    }

    /// Bytes after the values, in whole pages or lines.
    pub fn tail(&self) -> usize {
        self.header(self.chunks).next_multiple_of(self.unit)
    }

    /// Bytes of the region.
    pub fn total(&self) -> usize {
        self.data + self.tail()
    }
}

/// What follows the contribution in a lane: how many chunk contributions each shard has taken from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneLayout {
    /// Bytes of the contribution, in whole pages; it starts at 0.
    pub data: usize,
    /// Bytes after the contribution.
    pub tail: usize,
}

impl LaneLayout {
    /// For an extent of `bytes` bytes, in a region of its own.
    pub fn new(bytes: usize) -> Self {
        Self { data: pages(bytes), tail: pages(Self::folded(MAX_SHARDS)) }
    }

    /// The same in a region with others, of a server of `shards` shards: whole cache lines instead of pages.
    pub fn pooled(bytes: usize, shards: u32) -> Self {
        Self { data: bytes.next_multiple_of(LINE), tail: Self::folded(shards) }
    }

    /// Where the count of `shard` lies, from the end of the contribution.
    pub fn folded(shard: u32) -> usize {
        shard as usize * size_of::<Count>()
    }

    /// Bytes of the region.
    pub fn total(&self) -> usize {
        self.data + self.tail
    }
}
