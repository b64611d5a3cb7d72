//! How much of what may take long a node does at a time, before others get their turn.

/// Rows that are looked at in one step, unless a node is told otherwise: less than a tenth of a second's, and more than most
/// partitions have.
pub(super) const STEP: u64 = 1 << 20;
/// Bytes of a row that take as long to copy as a look at it.
const BYTES: usize = 256;

/// What is left of a step, in rows that are looked at.
#[derive(Debug)]
pub(super) struct Work {
    whole: u64,
    left: u64,
    /// Whether nothing may be begun that is kept from this step to the next.
    closed: bool,
}

impl Work {
    pub(super) fn new(rows: u64) -> Self {
        Self { whole: rows, left: rows, closed: false }
    }

    /// From now on, or not any more, nothing may be begun that is kept from this step to the next.
    pub(super) fn close(&mut self, closed: bool) {
        self.closed = closed;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// What a step is at most.
    pub(super) fn whole(&self) -> u64 {
        self.whole
    }

    /// Whether nothing of the step has been done.
    pub(super) fn is_whole(&self) -> bool {
        self.left == self.whole
    }

    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// Whether what is left to do is for the next step.
    pub(super) fn is_over(&self) -> bool {
        self.left == 0
    }

    /// Rows, or something like them, are looked at.
    pub(super) fn look(&mut self, rows: u64) {
        self.left = self.left.saturating_sub(rows);
    }

    /// A row is copied, whatever comes of it.
    pub(super) fn copy(&mut self, row_bytes: usize) {
        self.look(1 + (row_bytes / BYTES) as u64);
    }
}
