//! Clocks: how far each worker has come, and who is still live.
//!
//! A worker's clock counts the iterations it has completed; it starts at 0 and never falls. An update made in iteration t
//! carries the stamp t. A worker is live from the start of the job, whether it has connected yet or not, until it leaves
//! or is lost: nothing may be folded without a worker that is merely late.
//!
//! Pure state. Memory: 16 bytes a worker.

use crate::Rank;

/// The largest clock, and the largest count of optimizer steps, that a worker may name: one more can always be counted.
pub const MAX_CLOCK: u64 = 1 << 62;

/// The clocks of all workers of a job, and which of them are live.
#[derive(Debug, Clone)]
pub struct Clocks {
    clocks: Vec<u64>,
    live: Vec<bool>,
    live_count: u32,
}

/// A clock that was announced to run backwards: the announcement is refused, the clock stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockWentBack {
    /// The clock that the worker had announced before.
    pub expected_at_least: u64,
    /// The clock that came.
    pub got: u64,
}

impl Clocks {
    /// `workers` workers at clock 0, all live.
    pub fn new(workers: u32) -> Self {
        Self { clocks: vec![0; workers as usize], live: vec![true; workers as usize], live_count: workers }
    }

    /// How many workers the job was made for.
    pub fn size(&self) -> u32 {
        self.clocks.len() as u32
    }

    /// Workers that are live.
    pub fn live_count(&self) -> u32 {
        self.live_count
    }

    /// Whether `rank` is live.
    pub fn is_live(&self, rank: Rank) -> bool {
        self.live[rank as usize]
    }

    /// The live workers, in rank order.
    pub fn live(&self) -> impl Iterator<Item = Rank> + '_ {
        (0..self.size()).filter(|&rank| self.is_live(rank))
    }

    /// Iterations that `rank` has completed.
    pub fn of(&self, rank: Rank) -> u64 {
        self.clocks[rank as usize]
    }

    /// Moves the clock of `rank` on to `clock`.
    pub fn advance(&mut self, rank: Rank, clock: u64) -> Result<(), ClockWentBack> {
        let at = &mut self.clocks[rank as usize];
        if clock < *at {
            return Err(ClockWentBack { expected_at_least: *at, got: clock });
        }
        *at = clock;
        Ok(())
    }

    /// Removes `rank`; `false` if it was not live.
    pub fn remove(&mut self, rank: Rank) -> bool {
        let was = std::mem::replace(&mut self.live[rank as usize], false);
        self.live_count -= u32::from(was);
        was
    }

    /// The least clock over the live workers; `None` if none is live.
    pub fn group(&self) -> Option<u64> {
        self.live().map(|rank| self.of(rank)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_moves_only_when_its_slowest_worker_does() {
        let mut clocks = Clocks::new(3);
        clocks.advance(0, 5).unwrap();
        clocks.advance(1, 2).unwrap();
        assert_eq!(clocks.group(), Some(0));
        clocks.advance(2, 3).unwrap();
        assert_eq!(clocks.group(), Some(2));
    }

    #[test]
    fn the_group_no_longer_waits_for_a_worker_that_was_removed() {
        let mut clocks = Clocks::new(2);
        clocks.advance(0, 4).unwrap();
        assert!(clocks.remove(1));
        assert!(!clocks.remove(1), "a worker is removed once");
        assert_eq!(clocks.group(), Some(4));
        assert_eq!(clocks.live_count(), 1);
    }

    #[test]
    fn a_clock_never_runs_backwards() {
        let mut clocks = Clocks::new(1);
        clocks.advance(0, 4).unwrap();
        assert_eq!(clocks.advance(0, 3), Err(ClockWentBack { expected_at_least: 4, got: 3 }));
        assert_eq!(clocks.of(0), 4);
    }
}
