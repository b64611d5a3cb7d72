//! The journal: which rows were written, for who passes them on. A ring of entries, each a place and the low half of a set's number.
//!
//! Entries of a set stand there before the set is finished, so that a follower that looks at what is finished first, and at the
//! journal then, misses none of it. It may find entries of the one set that is not finished yet, behind all others. Where the
//! writer came round before the follower, the last entry says up to which set rows may have changed that are not listed.

use super::slot::Progress;
use crate::sync::{Ordering, fence};
use penstock_proto::items::memory::Unlisted;

/// Looks for the last entry, while the writer comes round.
const ATTEMPTS: usize = 8;

/// How far a follower has come.
#[derive(Debug, Default)]
pub struct Position(u64);

impl Progress {
    /// For the writer: entries up to `begun` are about to be written.
    pub fn begin_log(&self, begun: u64) {
        self.begun.store(begun, Ordering::Relaxed);
        // Pairs with the acquire fence in `stands`.
        fence(Ordering::Release);
    }

    /// For the writer: entries up to `logged` are written. Before the set that they are about is finished.
    pub fn finish_log(&self, logged: u64) {
        self.logged.store(logged, Ordering::Release);
    }

    /// Entries so far.
    pub fn logged(&self) -> u64 {
        self.logged.load(Ordering::Acquire)
    }

    /// Whether no entry from `from` on, of those that were read, was of a later round.
    fn stands(&self, from: u64, capacity: u64) -> bool {
        // Pairs with the release fence in `begin_log`: who saw an entry of the next round sees that it was begun.
        fence(Ordering::Acquire);
        self.begun.load(Ordering::Relaxed).wrapping_sub(from) <= capacity
    }
}

impl Position {
    /// Passes the entries since the last call to `take`. `entry` loads one, at its number modulo `capacity`. If the writer came round,
    /// what was taken means nothing.
    pub fn advance(
        &mut self,
        progress: &Progress,
        capacity: u64,
        entry: impl Fn(u64) -> u64,
        mut take: impl FnMut(u64),
    ) -> Result<(), Unlisted> {
        let (from, logged) = (self.0, progress.logged());
        if logged.wrapping_sub(from) <= capacity {
            (from..logged).for_each(|at| take(entry(at)));
            if progress.stands(from, capacity) {
                self.0 = logged;
                return Ok(());
            }
        }
        Err(self.skip(progress, capacity, entry))
    }

    /// Goes on behind the last entry.
    fn skip(&mut self, progress: &Progress, capacity: u64, entry: impl Fn(u64) -> u64) -> Unlisted {
        for _ in 0..ATTEMPTS {
            self.0 = progress.logged();
            let Some(last) = self.0.checked_sub(1) else { break };
            let until = (entry(last) >> 32) as u32;
            if progress.stands(last, capacity) {
                return Unlisted { until };
            }
        }
        // Sets come too quickly, or one of more rows than the journal has entries: they are of the next set at most.
        Unlisted { until: progress.now().done.wrapping_add(1) as u32 }
    }
}
