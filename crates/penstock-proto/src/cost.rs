//! What it costs to make chunks of a stream shorter, by an encoding or a compressor: measured now and then, and learnt.

use std::time::Duration;

/// How much a new measurement counts among those before, and by how many times what was known it is believed at most: a thread that
/// was put aside meanwhile measures that.
const WEIGHT: f64 = 0.25;
const BELIEVED: f64 = 4.0;

/// What is known of it on one stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    /// Whether it was measured once only: the first call may find nothing in the caches, or makes tables.
    pub(crate) is_first: bool,
    /// Seconds for a byte.
    pub(crate) takes: f64,
    /// What is left of it.
    pub(crate) leaves: f64,
}

impl Known {
    /// With one more measurement: so many bytes became so many, in this time.
    pub(crate) fn learnt(before: Option<Self>, bytes: usize, became: usize, took: Duration) -> Self {
        let each = (bytes as f64).max(1.0);
        let (takes, leaves) = (took.as_secs_f64() / each, became as f64 / each);
        match before {
            None => Self { is_first: true, takes, leaves },
            Some(known) if known.is_first => Self { is_first: false, takes: takes.min(known.takes), leaves },
            Some(known) => Self {
                is_first: false,
                takes: known.takes + WEIGHT * (takes.min(BELIEVED * known.takes) - known.takes),
                leaves: known.leaves + WEIGHT * (leaves - known.leaves),
            },
        }
    }
}
