//! How much of what may take long a node does at a time, before others get their turn.

/// Rows that are looked at in one step, unless a node is told otherwise: less than a tenth of a second's, and more than most
/// partitions have.
pub(super) const STEP: u64 = 1 << 20;
/// Bytes of a row that take as long to copy as a look at it.
const BYTES: usize = 256;

/// What is left of a step, in rows that are looked at.
#[derive(Debug)]
pub(super) struct Work {
    left: u64,
}

impl Work {
    pub(super) fn new(rows: u64) -> Self {
        Self { left: rows }
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
