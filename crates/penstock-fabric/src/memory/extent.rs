//! How a server's extent of a tensor lies in memory.

use crate::layout::{LINE, LaneLayout, ModelLayout};
use penstock_kernels::Dtype;
use penstock_proto::chunk::Cut;
use penstock_proto::placement::Extent;
use std::ops::Range;

/// How a server's extent of a tensor lies in its regions.
#[derive(Debug, Clone, Copy)]
pub struct ExtentLayout {
    pub(super) cut: Cut,
    pub(super) extent: Extent,
    /// Bytes of optimizer state of each full chunk, and of its whole value before that.
    state_per_chunk: usize,
    state_per_byte: (usize, usize),
    /// Whether a filter holds back some of the values: then they stand whole before each chunk's state.
    holds_back: bool,
    /// Of one that lies in a region with others: the server's shards.
    pub(super) pooled: Option<u32>,
}

impl ExtentLayout {
    /// `state_per_element` bytes of state for each element of `dtype`.
    pub fn new(cut: Cut, extent: Extent, dtype: Dtype, state_per_element: usize) -> Self {
        let state_per_byte = (state_per_element, dtype.size());
        let state_per_chunk = cut.chunk_bytes() as usize / dtype.size() * state_per_element;
        Self { cut, extent, state_per_chunk, state_per_byte, holds_back: false, pooled: None }
    }

    /// The same for a tensor of whose values a filter may hold something back.
    #[must_use]
    pub fn holding_back(self, holds_back: bool) -> Self {
        let whole = if holds_back && !self.holds_back { self.cut.chunk_bytes() as usize } else { 0 };
        Self { holds_back, state_per_chunk: self.state_per_chunk + whole, ..self }
    }

    /// The same, in a region with others, of a server of `shards` shards.
    #[must_use]
    pub fn pooled(self, shards: u32) -> Self {
        Self { pooled: Some(shards), ..self }
    }

    /// Bytes that the model takes of a region with others, with the optimizer's state behind it.
    pub fn pooled_bytes(&self) -> usize {
        self.state_at() + self.state_bytes().next_multiple_of(LINE)
    }

    /// Where the state lies behind the model, in a region with others.
    pub(super) fn state_at(&self) -> usize {
        self.model().total()
    }

    /// Bytes of the extent's values.
    pub fn bytes(&self) -> usize {
        if self.extent.count == 0 {
            return 0;
        }
        let last = self.cut.range(self.extent.first + self.extent.count - 1);
        (last.end - self.cut.range(self.extent.first).start) as usize
    }

    /// Bytes of the extent's state, and of what stands with it.
    pub fn state_bytes(&self) -> usize {
        match self.extent.count {
            0 => 0,
            count => self.beside(self.extent.first + count - 1).end,
        }
    }

    /// Layout of the model's region.
    pub fn model(&self) -> ModelLayout {
        match self.pooled {
            None => ModelLayout::new(self.bytes(), self.extent.count),
            Some(shards) => ModelLayout::pooled(self.bytes(), self.extent.count, shards),
        }
    }

    /// Layout of a lane.
    pub fn lane(&self) -> LaneLayout {
        match self.pooled {
            None => LaneLayout::new(self.bytes()),
            Some(shards) => LaneLayout::pooled(self.bytes(), shards),
        }
    }

    /// Which chunks of the tensor.
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// Where chunk `chunk` of the tensor lies among the extent's values.
    pub fn value(&self, chunk: u32) -> Range<usize> {
        let start = self.cut.range(self.extent.first).start;
        let range = self.cut.range(chunk);
        (range.start - start) as usize..(range.end - start) as usize
    }

    /// Where its state lies: all arrays, one after the other.
    pub fn state(&self, chunk: u32) -> Range<usize> {
        let start = (chunk - self.extent.first) as usize * self.state_per_chunk;
        let bytes = self.value(chunk).len();
        // The kernels want both to start on a cache line.
        let start = start + if self.holds_back { bytes.next_multiple_of(LINE) } else { 0 };
        start..start + bytes / self.state_per_byte.1 * self.state_per_byte.0
    }

    /// Where its value stands whole, beside the one that readers see; `None` where nothing of that is held back.
    pub fn whole(&self, chunk: u32) -> Option<Range<usize>> {
        let start = (chunk - self.extent.first) as usize * self.state_per_chunk;
        self.holds_back.then(|| start..start + self.value(chunk).len())
    }

    /// All that lies beside what readers see of it: its value, where that is held back, and its state.
    pub fn beside(&self, chunk: u32) -> Range<usize> {
        let start = (chunk - self.extent.first) as usize * self.state_per_chunk;
        start..self.state(chunk).end
    }
}
