//! Staleness: a read at position t with slack s sees a version >= t - s, under BSP without slack exactly t; what one reader
//! sees of one chunk never moves backwards, nor does what its home publishes (C-1).

use super::Checker;
use crate::history::Observation;
use crate::workload::Workload;
use penstock_proto::consistency::Consistency;
use penstock_proto::{Rank, TensorId};
use std::collections::{BTreeMap, BTreeSet};

/// Watches versions.
#[derive(Debug)]
pub struct Staleness {
    consistency: Vec<Consistency>,
    clocks: BTreeMap<Rank, u64>,
    pushed: BTreeMap<(Rank, TensorId), u64>,
    seen: BTreeMap<(Rank, TensorId, u32), u64>,
    published: BTreeMap<(TensorId, u32), u64>,
    /// No worker waits for them, and what they still read may be newer than they may see.
    lost: BTreeSet<Rank>,
}

impl Staleness {
    /// For the tensors of `workload`.
    pub fn new(workload: &Workload) -> Self {
        Self::of(workload.ids().map(|tensor| workload.spec(tensor).consistency).collect())
    }

    fn of(consistency: Vec<Consistency>) -> Self {
        Self {
            consistency,
            clocks: BTreeMap::new(),
            pushed: BTreeMap::new(),
            seen: BTreeMap::new(),
            published: BTreeMap::new(),
            lost: BTreeSet::new(),
        }
    }

    fn position(&self, rank: Rank, tensor: TensorId) -> u64 {
        let clock = self.clocks.get(&rank).copied().unwrap_or(0);
        clock.max(self.pushed.get(&(rank, tensor)).copied().unwrap_or(0))
    }

    fn read(
        &mut self,
        rank: Rank,
        tensor: TensorId,
        chunk: u32,
        slack: Option<u32>,
        version: u64,
    ) -> Result<(), String> {
        let position = self.position(rank, tensor);
        let consistency = self.consistency[tensor as usize];
        let who =
            format!("worker {rank} at position {position} read version {version} of t{tensor}[{chunk}]");
        // Counted here anew, so that a slip in `Consistency` is seen.
        let allowed = slack.or(match consistency {
            Consistency::Bsp => Some(0),
            Consistency::Ssp(slack) => Some(slack),
            Consistency::Asp => None,
        });
        if let Some(allowed) = allowed
            && version + u64::from(allowed) < position
        {
            return Err(format!("{who}, more than {allowed} behind"));
        }
        if consistency == Consistency::Bsp && slack.is_none() && version != position {
            return Err(format!("{who}, which no synchronous reader may see yet"));
        }
        match self.seen.insert((rank, tensor, chunk), version) {
            Some(before) if before > version => Err(format!("{who} after version {before}")),
            _ => Ok(()),
        }
    }
}

impl Checker for Staleness {
    fn name(&self) -> &'static str {
        "staleness"
    }

    fn see(&mut self, observation: &Observation<'_>) -> Result<(), String> {
        match *observation {
            Observation::Clocked { rank, clock } => {
                self.clocks.insert(rank, clock);
            }
            Observation::Submitted { rank, tensor, stamp, .. }
            | Observation::Skipped { rank, tensor, stamp, .. } => {
                self.pushed.insert((rank, tensor), stamp + 1);
            }
            Observation::Published { tensor, chunk, version, .. } => {
                if let Some(before) = self.published.insert((tensor, chunk), version)
                    && before > version
                {
                    return Err(format!("t{tensor}[{chunk}] went from version {before} to {version}"));
                }
            }
            Observation::Lost { rank } => {
                self.lost.insert(rank);
            }
            Observation::Read { rank, .. } if self.lost.contains(&rank) => {}
            Observation::Read { rank, tensor, chunk, slack, version, .. } => {
                return self.read(rank, tensor, chunk, slack, version);
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(slack: Option<u32>, version: u64) -> Observation<'static> {
        Observation::Read { rank: 1, tensor: 0, chunk: 3, slack, mirrored: false, version, value: &[] }
    }

    fn at(consistency: Consistency, clock: u64) -> Staleness {
        let mut checker = Staleness::of(vec![consistency]);
        checker.see(&Observation::Clocked { rank: 1, clock }).unwrap();
        checker
    }

    #[test]
    fn a_read_older_than_its_slack_is_seen() {
        at(Consistency::Ssp(2), 5).see(&read(None, 3)).unwrap();
        at(Consistency::Ssp(2), 5).see(&read(None, 2)).unwrap_err();
        at(Consistency::Ssp(2), 5).see(&read(Some(0), 4)).unwrap_err();
        at(Consistency::Asp, 5).see(&read(None, 0)).unwrap();
        at(Consistency::Asp, 5).see(&read(Some(1), 3)).unwrap_err();
    }

    #[test]
    fn a_synchronous_read_ahead_of_its_reader_is_seen() {
        at(Consistency::Bsp, 5).see(&read(None, 5)).unwrap();
        at(Consistency::Bsp, 5).see(&read(None, 6)).unwrap_err();
        at(Consistency::Bsp, 5).see(&read(None, 4)).unwrap_err();
        let mut pushed = at(Consistency::Bsp, 5);
        pushed.see(&Observation::Submitted { rank: 1, tensor: 0, chunk: 0, stamp: 5 }).unwrap();
        pushed.see(&read(None, 6)).unwrap();
    }

    #[test]
    fn a_version_that_moves_backwards_is_seen_at_the_reader_and_at_the_home() {
        let mut checker = at(Consistency::Ssp(3), 5);
        checker.see(&read(None, 4)).unwrap();
        checker.see(&read(None, 3)).unwrap_err();
        let published = |version| Observation::Published {
            shard: 0,
            tensor: 0,
            chunk: 0,
            version,
            value: &[],
            held: &[],
        };
        checker.see(&published(4)).unwrap();
        checker.see(&published(4)).unwrap();
        checker.see(&published(3)).unwrap_err();
    }
}
