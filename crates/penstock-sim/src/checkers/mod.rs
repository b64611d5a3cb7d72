//! Checkers: each watches a run for one promise of the design, and knows nothing of how it is kept.
//!
//! | checker | promise |
//! |---|---|
//! | [`staleness`] | no read is older than its slack allows, and no version moves backwards |
//! | [`exactly_once`] | version v holds every update stamped < v once, and no update twice |
//! | [`atomicity`] | a reader never sees a torn chunk |
//! | [`loads`] | behind a barrier or its own load nobody sees an older load, and nobody half of one |
//! | [`bits`] | under BSP equal inputs give equal bits |
//! | [`membership`] | no worker passes a barrier without the others, nor has left before its shards let it go |
//! | [`asked`] | between hosts, what was asked for comes, and a ticket comes back behind it |
//! | [`carried`] | between hosts, what arrives is bit for bit what was sent, however it was encoded |
//! | [`losses`] | no worker is lost before its lease is over, nor kept after it; the event loop tells it of signs of life |
//!
//! That every job ends (liveness) is judged by the event loop itself, which knows when nothing is under way any more.

pub mod asked;
pub mod atomicity;
pub mod bits;
pub mod carried;
pub mod exactly_once;
pub mod loads;
pub mod losses;
pub mod membership;
pub mod staleness;

use crate::history::Observation;
use crate::shard_memory::Mirror;
use penstock_proto::TensorId;

/// How a run ended.
#[derive(Debug)]
pub struct End<'a> {
    /// Whether the job failed: then nothing has to be complete.
    pub failed: bool,
    /// What stands published of each chunk.
    pub last: &'a [(TensorId, u32, Mirror)],
}

/// A watcher of one promise. An error says in words what was seen.
pub trait Checker {
    /// Its name, for failures.
    fn name(&self) -> &'static str;
    /// Sees what happens.
    fn see(&mut self, observation: &Observation<'_>) -> Result<(), String>;
    /// Sees that nothing is under way any more, though a worker may wait.
    fn quiet(&mut self) -> Result<(), String> {
        Ok(())
    }
    /// Sees the end.
    fn finish(&mut self, _end: &End<'_>) -> Result<(), String> {
        Ok(())
    }
}
