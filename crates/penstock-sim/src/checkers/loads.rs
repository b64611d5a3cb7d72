//! Loads: what worker 0 loads while others work. A chunk that is read is that of one load, whole, and of one that has begun. What
//! one reader sees of a chunk never falls to an earlier load. And no reader sees an older load than the newest that had returned
//! before the loader came to a barrier which the reader has passed; the loader itself none that is older than its own last load
//! that has returned.
//!
//! So behind such a barrier, and as long as no other load has begun, all chunks are of one load. While one is under way some are of
//! the load before: that is all that is promised (docs/consistency.md).

use super::Checker;
use crate::history::Observation;
use crate::scenario::Scenario;
use penstock_proto::{Rank, TensorId};
use std::collections::{BTreeMap, BTreeSet};

/// The worker that loads.
const LOADER: Rank = 0;

/// A tensor that is loaded.
#[derive(Debug, Default)]
struct Loaded {
    /// The value of each load that has begun; at first, the first value.
    begun: Vec<Vec<u8>>,
    /// The newest load that has returned.
    returned: u64,
    /// The newest that had returned when the loader last came to a barrier, by the barrier's number.
    at_barriers: BTreeMap<u64, u64>,
    /// The oldest load that each worker may still see.
    oldest: BTreeMap<Rank, u64>,
    /// The load that each worker saw last of each chunk.
    seen: BTreeMap<(Rank, u32), u64>,
}

/// Watches what is loaded.
#[derive(Debug)]
pub struct Loads {
    chunk_bytes: usize,
    tensors: BTreeMap<TensorId, Loaded>,
    /// What these still read nobody has promised anything of.
    lost: BTreeSet<Rank>,
}

impl Loads {
    /// For the tensors of `scenario` that are loaded.
    pub fn new(scenario: &Scenario) -> Self {
        let workload = &scenario.workload;
        let loaded = workload.ids().filter(|&tensor| workload.is_loaded(tensor));
        let first_values = loaded.map(|tensor| (tensor, workload.loaded(tensor, 0)));
        Self::of(scenario.topology.chunk_bytes as usize, first_values)
    }

    fn of(chunk_bytes: usize, first_values: impl Iterator<Item = (TensorId, Vec<u8>)>) -> Self {
        let loaded = |(tensor, value)| (tensor, Loaded { begun: vec![value], ..Loaded::default() });
        Self { chunk_bytes, tensors: first_values.map(loaded).collect(), lost: BTreeSet::new() }
    }
}

impl Loaded {
    fn read(
        &mut self,
        rank: Rank,
        chunk: u32,
        (first, what): (usize, &str),
        value: &[u8],
    ) -> Result<(), String> {
        let wrote = |written: &Vec<u8>| written.get(first..first + value.len()) == Some(value);
        let Some(load) = self.begun.iter().rposition(wrote) else {
            return Err(format!("worker {rank} read of {what} what no load has written"));
        };
        let (load, oldest) = (load as u64, self.oldest.get(&rank).copied().unwrap_or(0));
        if let Some(before) = self.seen.insert((rank, chunk), load).filter(|&before| before > load) {
            return Err(format!("worker {rank} read load {load} of {what}, which fell from load {before}"));
        }
        let behind = if rank == LOADER { "its own" } else { "a barrier that followed" };
        match load < oldest {
            true => Err(format!("worker {rank} read load {load} of {what} behind {behind} load {oldest}")),
            false => Ok(()),
        }
    }
}

impl Checker for Loads {
    fn name(&self) -> &'static str {
        "loads"
    }

    fn see(&mut self, observation: &Observation<'_>) -> Result<(), String> {
        match *observation {
            Observation::Loads { tensor, value, .. } => {
                self.tensors.entry(tensor).or_default().begun.push(value.to_vec());
            }
            Observation::Loaded { rank, tensor, load } => {
                let loaded = self.tensors.entry(tensor).or_default();
                loaded.returned = load;
                loaded.oldest.insert(rank, load);
            }
            Observation::Stood { rank: LOADER, round } => {
                for loaded in self.tensors.values_mut() {
                    loaded.at_barriers.insert(round, loaded.returned);
                }
            }
            Observation::Passed { rank, round } => {
                for loaded in self.tensors.values_mut() {
                    let returned = loaded.at_barriers.get(&round).copied().unwrap_or(0);
                    let oldest = loaded.oldest.entry(rank).or_default();
                    *oldest = returned.max(*oldest);
                }
            }
            Observation::Lost { rank } => {
                self.lost.insert(rank);
            }
            Observation::Read { rank, .. } if self.lost.contains(&rank) => {}
            Observation::Read { rank, tensor, chunk, value, .. } => {
                if let Some(loaded) = self.tensors.get_mut(&tensor) {
                    let first = chunk as usize * self.chunk_bytes;
                    return loaded.read(rank, chunk, (first, &format!("t{tensor}[{chunk}]")), value);
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

    /// Two chunks of two bytes, each its place and the number of the load; loads 1 and 2 have begun, and 1 has returned.
    fn checker() -> Loads {
        let mut checker = Loads::of(2, std::iter::once((0, vec![0, 0, 1, 0])));
        for observation in [loads(1, &[0, 1, 1, 1]), RETURNED, loads(2, &[0, 2, 1, 2])] {
            checker.see(&observation).unwrap();
        }
        checker
    }

    const RETURNED: Observation<'static> = Observation::Loaded { rank: 0, tensor: 0, load: 1 };

    fn loads(load: u64, value: &[u8]) -> Observation<'_> {
        Observation::Loads { rank: 0, tensor: 0, load, value }
    }

    fn read(checker: &mut Loads, rank: Rank, chunk: u32, value: &[u8]) -> Result<(), String> {
        let (slack, mirrored, version) = (None, true, 0);
        checker.see(&Observation::Read { rank, tensor: 0, chunk, slack, mirrored, version, value })
    }

    #[test]
    fn half_a_chunk_of_a_load_another_chunk_and_a_load_that_has_not_begun_are_seen() {
        read(&mut checker(), 1, 0, &[0, 1]).unwrap();
        read(&mut checker(), 1, 1, &[1, 2]).unwrap();
        for value in [[1, 1], [0, 3], [2, 1]] {
            let none = read(&mut checker(), 1, 0, &value).unwrap_err();
            assert!(none.contains("what no load has written"), "{none}");
        }
    }

    #[test]
    fn chunks_of_two_loads_are_no_mistake_while_one_is_under_way() {
        let mut checker = checker();
        read(&mut checker, 1, 0, &[0, 2]).unwrap();
        read(&mut checker, 1, 1, &[1, 1]).unwrap();
    }

    #[test]
    fn a_chunk_that_falls_to_an_earlier_load_is_seen() {
        let mut checker = checker();
        read(&mut checker, 1, 0, &[0, 2]).unwrap();
        let fell = read(&mut checker, 1, 0, &[0, 1]).unwrap_err();
        assert!(fell.contains("fell from load 2"), "{fell}");
        read(&mut checker, 2, 0, &[0, 1]).unwrap();
    }

    #[test]
    fn an_older_load_behind_a_barrier_or_at_the_loader_is_seen() {
        let mut checker = checker();
        let own = read(&mut checker, 0, 0, &[0, 0]).unwrap_err();
        assert!(own.contains("behind its own load 1"), "{own}");
        read(&mut checker, 1, 0, &[0, 0]).unwrap();
        checker.see(&Observation::Stood { rank: 0, round: 3 }).unwrap();
        checker.see(&Observation::Passed { rank: 1, round: 3 }).unwrap();
        let old = read(&mut checker, 1, 0, &[0, 0]).unwrap_err();
        assert!(old.contains("behind a barrier that followed load 1"), "{old}");
        read(&mut checker, 1, 0, &[0, 1]).unwrap();
        // What had not returned when the loader came there is not promised.
        read(&mut checker, 2, 0, &[0, 0]).unwrap();
    }
}
