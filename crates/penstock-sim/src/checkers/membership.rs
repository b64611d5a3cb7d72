//! Membership: who passes a barrier, and who has left. No worker passes a barrier before all that may still come stand at it,
//! nor with one that was told it did not (M-1).
//! A worker that is told it has left has been let go by every shard, which has then taken everything from it (M-3).
//! A request that was carried out twice would make a worker stand where it does not.

use super::Checker;
use crate::history::Observation;
use penstock_proto::Rank;
use std::collections::{BTreeMap, BTreeSet};

/// Watches barriers. Each has a number, its round.
#[derive(Debug)]
pub struct Membership {
    workers: u32,
    shards: usize,
    /// Where each worker stands, as far as it knows.
    stands: BTreeMap<Rank, u64>,
    passed: BTreeMap<Rank, u64>,
    gone: BTreeSet<Rank>,
    /// Shards that let each worker go.
    let_go: BTreeMap<Rank, BTreeSet<usize>>,
}

impl Membership {
    /// For a job of so many workers, and shards.
    pub fn new(workers: u32, shards: usize) -> Self {
        let (stands, passed, gone, let_go) = Default::default();
        Self { workers, shards, stands, passed, gone, let_go }
    }

    fn has_passed(&self, rank: Rank, round: u64) -> bool {
        self.passed.get(&rank).is_some_and(|&passed| passed >= round)
    }

    fn pass(&mut self, rank: Rank, round: u64) -> Result<(), String> {
        let absent = |&other: &Rank| {
            !self.gone.contains(&other)
                && !self.has_passed(other, round)
                && self.stands.get(&other) != Some(&round)
        };
        if let Some(other) = (0..self.workers).find(absent) {
            return Err(format!(
                "worker {rank} passed barrier {round}, at which worker {other} does not stand"
            ));
        }
        self.passed.insert(rank, round);
        Ok(())
    }
}

impl Checker for Membership {
    fn name(&self) -> &'static str {
        "membership"
    }

    fn see(&mut self, observation: &Observation<'_>) -> Result<(), String> {
        match *observation {
            Observation::Stood { rank, round } => {
                self.stands.insert(rank, round);
            }
            Observation::Passed { rank, round } => return self.pass(rank, round),
            // A worker that was lost hears late of what was before.
            Observation::InVain { rank, .. } if self.gone.contains(&rank) => {}
            Observation::InVain { rank, round } => {
                self.stands.remove(&rank);
                if let Some(other) = (0..self.workers).find(|&other| self.has_passed(other, round)) {
                    return Err(format!(
                        "worker {rank} was told that barrier {round} was in vain, which worker {other} has passed"
                    ));
                }
            }
            Observation::Crashed { rank } | Observation::Lost { rank } | Observation::Turned { rank } => {
                self.gone.insert(rank);
            }
            Observation::Removed { shard, rank, clean } => {
                self.gone.insert(rank);
                if clean {
                    self.let_go.entry(rank).or_default().insert(shard);
                }
            }
            Observation::Ended { rank, how: "left" } => {
                let by = self.let_go.get(&rank).map_or(0, BTreeSet::len);
                if by < self.shards {
                    return Err(format!(
                        "worker {rank} has left, and {by} of {} shards have let it go",
                        self.shards
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(observations: &[Observation<'_>]) -> Result<(), String> {
        let mut checker = Membership::new(2, 2);
        observations.iter().try_for_each(|observation| checker.see(observation))
    }

    /// M-1.
    #[test]
    fn who_passes_without_another_is_seen() {
        let (stood, passed) =
            (|rank| Observation::Stood { rank, round: 3 }, |rank| Observation::Passed { rank, round: 3 });
        after(&[stood(0), stood(1), passed(0), passed(1)]).unwrap();
        after(&[stood(0), passed(0)]).unwrap_err();
        after(&[stood(0), Observation::Stood { rank: 1, round: 2 }, passed(0)]).unwrap_err();
        after(&[stood(0), Observation::Crashed { rank: 1 }, passed(0)]).unwrap();
        after(&[passed(0)]).unwrap_err();
    }

    /// M-3.
    #[test]
    fn who_has_left_before_every_shard_let_it_go_is_seen() {
        let removed = |shard| Observation::Removed { shard, rank: 1, clean: true };
        let left = Observation::Ended { rank: 1, how: "left" };
        after(&[removed(0), removed(1), left]).unwrap();
        after(&[removed(0), left]).unwrap_err();
        after(&[removed(0), Observation::Removed { shard: 1, rank: 1, clean: false }, left]).unwrap_err();
        after(&[Observation::Ended { rank: 1, how: "the job failed" }]).unwrap();
    }

    /// M-1; and Q-1, without which a server tells it so.
    #[test]
    fn who_is_told_that_it_was_in_vain_after_another_has_passed_with_it_is_seen() {
        let stood = |rank| Observation::Stood { rank, round: 3 };
        let vain = Observation::InVain { rank: 1, round: 3 };
        let passed = Observation::Passed { rank: 0, round: 3 };
        after(&[stood(0), stood(1), vain, stood(1), passed]).unwrap();
        after(&[stood(0), stood(1), passed, vain]).unwrap_err();
        after(&[stood(0), stood(1), vain, passed]).unwrap_err();
    }
}
