//! Exactly once: version v of a chunk holds every update stamped < v of every worker that is live at its home (C-2), no update is
//! in it twice (C-3), none that was never submitted, and under BSP none stamped >= v (C-4). What is in stays in. A reader outside
//! BSP finds all of its own, unless versions are broadcast. And at the end no update of a worker that was not lost is missing,
//! and each chunk has as many steps behind it as it was given, those by zeros that were skipped among them.

use super::{Checker, End};
use crate::encodings::holds_back;
use crate::history::Observation;
use crate::marks::{Counts, Marks};
use crate::scenario::Scenario;
use crate::workload::{Kind, decode};
use penstock_kernels::Dtype;
use penstock_proto::consistency::Consistency;
use penstock_proto::propagation::Propagation;
use penstock_proto::spec::TensorSpec;
use penstock_proto::{Rank, TensorId};
use std::collections::{BTreeMap, BTreeSet};

/// Watches marked contributions.
#[derive(Debug)]
pub struct ExactlyOnce {
    marks: Marks,
    chunk_elements: u64,
    workers: u32,
    shards: usize,
    iterations: u64,
    together: Vec<bool>,
    /// Whether readers find all of their own, whatever version they read.
    own: Vec<bool>,
    /// Tensors of which a filter holds something back: what is read of them is not whole updates.
    filtered: BTreeSet<TensorId>,
    /// Tensors to which nobody contributes: [`super::loads`] judges them.
    loaded: BTreeSet<TensorId>,
    submitted: BTreeSet<(TensorId, u32, Rank, u64)>,
    /// What was skipped, likewise.
    skipped: BTreeSet<(TensorId, u32, Rank, u64)>,
    /// Workers that a shard no longer listens to, though they did not leave.
    removed: BTreeSet<(usize, Rank)>,
    lost: BTreeSet<Rank>,
    hostile: BTreeSet<Rank>,
    published: BTreeMap<(TensorId, u32), Counts>,
}

/// What a value is judged by.
struct Case<'a> {
    what: String,
    tensor: TensorId,
    chunk: u32,
    version: u64,
    counts: &'a Counts,
}

impl ExactlyOnce {
    /// For `scenario`, if its contributions are marked.
    pub fn new(scenario: &Scenario) -> Option<Self> {
        let workload = &scenario.workload;
        let Kind::Marked(marks) = workload.kind else { return None };
        let together = |tensor| workload.spec(tensor).consistency.folds_together();
        let own = |tensor| {
            let TensorSpec { propagation, consistency, .. } = *workload.spec(tensor);
            propagation == Propagation::Pull && consistency != Consistency::Bsp
        };
        Some(Self {
            marks,
            chunk_elements: u64::from(scenario.topology.chunk_bytes) / 8,
            workers: workload.workers(),
            shards: (scenario.topology.servers * scenario.topology.shards) as usize,
            iterations: workload.iterations,
            together: workload.ids().map(together).collect(),
            own: workload.ids().map(own).collect(),
            filtered: workload.ids().filter(|&tensor| holds_back(workload.spec(tensor))).collect(),
            loaded: workload.ids().filter(|&tensor| workload.is_loaded(tensor)).collect(),
            submitted: BTreeSet::new(),
            skipped: BTreeSet::new(),
            removed: BTreeSet::new(),
            lost: BTreeSet::new(),
            hostile: BTreeSet::new(),
            published: BTreeMap::new(),
        })
    }

    fn counts(&self, tensor: TensorId, chunk: u32, value: &[u8]) -> Result<Counts, String> {
        let first = u64::from(chunk) * self.chunk_elements;
        let values = decode(Dtype::F64, value);
        self.marks.read(first, values).map_err(|error| format!("t{tensor}[{chunk}]: {error}"))
    }

    /// Where everybody came through: each contribution out of step is a step, and in step each iteration to which there was one.
    fn judge_steps(&self, tensor: TensorId, chunk: u32, steps: u64) -> Result<(), String> {
        if !(self.lost.is_empty() && self.removed.is_empty() && self.hostile.is_empty()) {
            return Ok(());
        }
        let all = self.submitted.iter().chain(&self.skipped);
        let given = all
            .filter(|(of, at, ..)| (*of, *at) == (tensor, chunk))
            .map(|&(_, _, rank, stamp)| (rank, stamp));
        let expected = match self.together[tensor as usize] {
            true => given.map(|(_, stamp)| stamp).collect::<BTreeSet<_>>().len(),
            false => given.count(),
        };
        if steps == expected as u64 {
            return Ok(());
        }
        Err(format!("t{tensor}[{chunk}] ended with {steps} steps, expected {expected}"))
    }

    fn is_removed(&self, rank: Rank) -> bool {
        (0..self.shards).all(|shard| self.removed.contains(&(shard, rank)))
    }

    fn updates(&self) -> impl Iterator<Item = (Rank, u64)> + '_ {
        let trusted = (0..self.workers).filter(|rank| !self.hostile.contains(rank));
        trusted.flat_map(|rank| (0..self.iterations).map(move |stamp| (rank, stamp)))
    }

    /// Judges a value; `must` says which submitted updates it has to hold.
    fn judge(&self, case: &Case<'_>, must: impl Fn(Rank, u64) -> bool) -> Result<(), String> {
        let Case { what, tensor, chunk, version, counts } = case;
        for (rank, stamp) in self.updates() {
            let submitted = self.submitted.contains(&(*tensor, *chunk, rank, stamp));
            let least = u64::from(submitted && must(rank, stamp));
            let too_early = self.together[*tensor as usize] && stamp >= *version;
            let most = u64::from(submitted && !too_early);
            let got = counts.of(rank, stamp);
            if got < least || got > most {
                return Err(format!(
                    "{what} version {version} of t{tensor}[{chunk}] with update {stamp} of worker {rank} in it {got} times, \
                     expected {least} to {most}"
                ));
            }
        }
        Ok(())
    }

    fn published(
        &mut self,
        shard: usize,
        tensor: TensorId,
        chunk: u32,
        version: u64,
        value: &[u8],
    ) -> Result<(), String> {
        let counts = self.counts(tensor, chunk, value)?;
        let what = format!("shard {shard} published");
        let case = Case { what, tensor, chunk, version, counts: &counts };
        self.judge(&case, |rank, stamp| stamp < version && !self.removed.contains(&(shard, rank)))?;
        if let Some(before) = self.published.get(&(tensor, chunk)) {
            let went = self.updates().find(|&(rank, stamp)| before.of(rank, stamp) > counts.of(rank, stamp));
            if let Some((rank, stamp)) = went {
                return Err(format!("update {stamp} of worker {rank} went out of t{tensor}[{chunk}] again"));
            }
        }
        self.published.insert((tensor, chunk), counts);
        Ok(())
    }

    fn read(
        &self,
        reader: Rank,
        tensor: TensorId,
        chunk: u32,
        version: u64,
        value: &[u8],
    ) -> Result<(), String> {
        let counts = self.counts(tensor, chunk, value)?;
        let what = format!("worker {reader} read");
        let case = Case { what, tensor, chunk, version, counts: &counts };
        let own = self.own[tensor as usize];
        self.judge(&case, |rank, stamp| {
            (stamp < version && !self.lost.contains(&rank)) || (own && rank == reader)
        })
    }
}

impl Checker for ExactlyOnce {
    fn name(&self) -> &'static str {
        "exactly once"
    }

    fn see(&mut self, observation: &Observation<'_>) -> Result<(), String> {
        match *observation {
            // What it submits when no shard listens to it any more is in no value.
            Observation::Submitted { rank, .. } if self.is_removed(rank) => {}
            Observation::Submitted { rank, tensor, chunk, stamp } => {
                self.submitted.insert((tensor, chunk, rank, stamp));
            }
            Observation::Skipped { rank, tensor, chunk, stamp } => {
                self.skipped.insert((tensor, chunk, rank, stamp));
            }
            Observation::Removed { shard, rank, clean: false } => {
                self.removed.insert((shard, rank));
            }
            Observation::Crashed { rank } | Observation::Lost { rank } => {
                self.lost.insert(rank);
            }
            Observation::Published { tensor, .. } | Observation::Read { tensor, .. }
                if self.loaded.contains(&tensor) => {}
            // It may be a while until it hears that it was lost.
            Observation::Read { rank, .. } if self.lost.contains(&rank) => {}
            Observation::Read { tensor, .. } if self.filtered.contains(&tensor) => {}
            Observation::Turned { rank } => {
                self.hostile.insert(rank);
            }
            Observation::Published { shard, tensor, chunk, version, value, .. } => {
                return self.published(shard, tensor, chunk, version, value);
            }
            Observation::Read { rank, tensor, chunk, version, value, .. } => {
                return self.read(rank, tensor, chunk, version, value);
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self, end: &End<'_>) -> Result<(), String> {
        let judged = |(tensor, ..): &&(TensorId, _, _)| !end.failed && !self.loaded.contains(tensor);
        for (tensor, chunk, mirror) in end.last.iter().filter(judged) {
            let counts = self.counts(*tensor, *chunk, &mirror.value)?;
            let (what, version) = ("the job ended with".to_owned(), mirror.version);
            let case = Case { what, tensor: *tensor, chunk: *chunk, version, counts: &counts };
            self.judge(&case, |rank, _| !self.lost.contains(&rank))?;
            self.judge_steps(*tensor, *chunk, mirror.steps)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::encode;

    const SUBMITTED: [(Rank, u64); 4] = [(0, 0), (0, 1), (1, 0), (1, 1)];

    fn checker(together: bool) -> ExactlyOnce {
        let mut checker = ExactlyOnce {
            marks: Marks::new(2, 3),
            chunk_elements: 512,
            workers: 2,
            shards: 2,
            iterations: 3,
            together: vec![together],
            own: vec![!together],
            filtered: BTreeSet::new(),
            loaded: BTreeSet::new(),
            submitted: BTreeSet::new(),
            skipped: BTreeSet::new(),
            removed: BTreeSet::new(),
            lost: BTreeSet::new(),
            hostile: BTreeSet::new(),
            published: BTreeMap::new(),
        };
        for (rank, stamp) in SUBMITTED {
            checker.see(&Observation::Submitted { rank, tensor: 0, chunk: 0, stamp }).unwrap();
        }
        checker
    }

    fn sum(updates: &[(Rank, u64)]) -> Vec<u8> {
        let marks = Marks::new(2, 3);
        let mut sum = vec![0.0; 8];
        for &(rank, stamp) in updates {
            let contribution = marks.contribution(rank, stamp, 8);
            sum.iter_mut().zip(contribution).for_each(|(sum, more)| *sum += more);
        }
        encode(Dtype::F64, sum.into_iter())
    }

    fn publish(checker: &mut ExactlyOnce, version: u64, updates: &[(Rank, u64)]) -> Result<(), String> {
        let value = sum(updates);
        checker.see(&Observation::Published {
            shard: 0,
            tensor: 0,
            chunk: 0,
            version,
            value: &value,
            held: &value,
        })
    }

    #[test]
    fn an_update_that_is_missing_doubled_early_or_made_up_is_seen() {
        publish(&mut checker(true), 1, &[(0, 0), (1, 0)]).unwrap();
        let missing = publish(&mut checker(true), 1, &[(0, 0)]).unwrap_err();
        assert!(missing.contains("update 0 of worker 1 in it 0 times, expected 1 to 1"), "{missing}");
        publish(&mut checker(true), 1, &[(0, 0), (1, 0), (1, 0)]).unwrap_err();
        publish(&mut checker(true), 1, &[(0, 0), (1, 0), (1, 1)]).unwrap_err();
        publish(&mut checker(false), 1, &[(0, 0), (1, 0), (1, 1)]).unwrap();
        publish(&mut checker(false), 1, &[(0, 0), (1, 0), (1, 2)]).unwrap_err();
    }

    #[test]
    fn an_update_that_goes_out_again_is_seen() {
        let mut checker = checker(false);
        publish(&mut checker, 0, &[(0, 0), (1, 1)]).unwrap();
        let went = publish(&mut checker, 0, &[(0, 0)]).unwrap_err();
        assert!(went.contains("update 1 of worker 1 went out"), "{went}");
    }

    #[test]
    fn only_a_worker_that_was_removed_may_be_missing() {
        let mut checker = checker(true);
        checker.see(&Observation::Removed { shard: 1, rank: 1, clean: false }).unwrap();
        checker.see(&Observation::Removed { shard: 0, rank: 0, clean: true }).unwrap();
        publish(&mut checker, 1, &[(0, 0)]).unwrap_err();
        checker.see(&Observation::Removed { shard: 0, rank: 1, clean: false }).unwrap();
        publish(&mut checker, 1, &[(0, 0)]).unwrap();
        publish(&mut checker, 2, &[(0, 0)]).unwrap_err();
    }

    #[test]
    fn a_reader_out_of_step_that_misses_its_own_update_is_seen() {
        let read = |together, updates: &[(Rank, u64)]| {
            let value = sum(updates);
            let read = Observation::Read {
                rank: 1,
                tensor: 0,
                chunk: 0,
                slack: None,
                mirrored: false,
                version: 0,
                value: &value,
            };
            checker(together).see(&read)
        };
        read(false, &[(1, 0), (1, 1)]).unwrap();
        read(false, &[(1, 0), (0, 1)]).unwrap_err();
        read(true, &[]).unwrap();
    }

    #[test]
    fn an_update_lost_at_the_very_end_is_seen() {
        let finish = |updates: &[(Rank, u64)], lost: Option<Rank>, failed| {
            let mut checker = checker(true);
            if let Some(rank) = lost {
                checker.see(&Observation::Crashed { rank }).unwrap();
            }
            let mirror = crate::shard_memory::Mirror { version: 2, steps: 2, value: sum(updates).into() };
            checker.finish(&End { failed, last: &[(0, 0, mirror)] })
        };
        finish(&SUBMITTED, None, false).unwrap();
        finish(&SUBMITTED[..3], None, false).unwrap_err();
        finish(&SUBMITTED[..3], Some(1), false).unwrap();
        finish(&SUBMITTED[..3], None, true).unwrap();
    }
}
