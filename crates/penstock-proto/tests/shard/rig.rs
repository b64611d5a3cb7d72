//! A shard whose home is plain numbers.

use penstock_kernels::{Dtype, Rule, Settings};
use penstock_proto::consistency::Consistency::{self};
use penstock_proto::propagation::Propagation;
use penstock_proto::shard::{self, Fold, Home, NonFiniteFrom, Shard, SubmissionRefused};
use penstock_proto::spec::{Reduce, TensorSpec};
use penstock_proto::submission::Submission;
use penstock_proto::travel::Travel;
use penstock_proto::{Rank, TensorId};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const W: TensorId = 0;

/// One fold, as the home was asked for it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Folded {
    pub(crate) chunk: u32,
    pub(crate) step: u64,
    pub(crate) scale: f64,
    pub(crate) lr: f64,
    pub(crate) writers: Vec<Rank>,
}

/// What stands published of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Published {
    pub(crate) version: u64,
    pub(crate) steps: u64,
    pub(crate) value: f64,
}

/// A home of plain numbers. The contribution of a worker to all of a tensor's chunks is one number.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Numbers {
    pub(crate) lanes: BTreeMap<(TensorId, Rank), f64>,
    pub(crate) values: BTreeMap<(TensorId, u32), f64>,
    pub(crate) published: BTreeMap<(TensorId, u32), Published>,
    pub(crate) progress: BTreeMap<TensorId, Vec<u64>>,
    pub(crate) folded: BTreeMap<(TensorId, Rank), u64>,
    pub(crate) folds: BTreeMap<TensorId, Vec<Folded>>,
    /// Chunk, slot and part of each load.
    pub(crate) loads: Vec<(u32, u32, u32)>,
    /// Of which something is held back.
    pub(crate) held_back: BTreeSet<(TensorId, u32)>,
    /// Chunks that were gone over for that.
    pub(crate) flushes: usize,
    /// Chunks that were published, in order.
    pub(crate) publications: Vec<u32>,
    /// Whether folds wait for their commit, as they do where a norm of all sums or a replica is waited for.
    pub(crate) late: bool,
    /// What was folded, and waits.
    pub(crate) aside: BTreeMap<(TensorId, u32), f64>,
}

impl Home for Numbers {
    fn fold(
        &mut self,
        tensor: TensorId,
        chunk: u32,
        fold: &Fold,
        writers: &[Rank],
    ) -> Result<shard::Folded, NonFiniteFrom> {
        let lane = |rank: &Rank| self.lanes.get(&(tensor, *rank)).copied().unwrap_or(0.0);
        if let Some(&rank) = writers.iter().find(|rank| !lane(rank).is_finite()) {
            return Err(NonFiniteFrom(rank));
        }
        let sum: f64 = writers.iter().map(lane).sum();
        let value = self.values.entry((tensor, chunk)).or_default();
        let folded = *value + sum * fold.scale;
        if self.late {
            assert_eq!(self.aside.insert((tensor, chunk), folded), None, "one fold a chunk at a time");
        } else {
            *value = folded;
        }
        let (step, scale, lr) = (fold.step, fold.scale, fold.settings.0[0]);
        self.folds.entry(tensor).or_default().push(Folded {
            chunk,
            step,
            scale,
            lr,
            writers: writers.to_vec(),
        });
        Ok(if self.late { shard::Folded::Waits } else { shard::Folded::Committed })
    }

    fn commit(&mut self, tensor: TensorId, chunk: u32) {
        let folded = self.aside.remove(&(tensor, chunk)).expect("it was folded, and waits");
        self.values.insert((tensor, chunk), folded);
    }

    fn load(&mut self, tensor: TensorId, chunk: u32, slot: u32, part: u32, writer: Rank) {
        if slot == 0 {
            self.values.insert((tensor, chunk), self.lanes.get(&(tensor, writer)).copied().unwrap_or(0.0));
        }
        self.loads.push((chunk, slot, part));
    }

    fn flush(&mut self, tensor: TensorId, chunk: u32) -> bool {
        self.flushes += 1;
        self.held_back.remove(&(tensor, chunk))
    }

    fn publish(&mut self, tensor: TensorId, chunk: u32, version: u64, steps: u64) {
        self.publications.push(chunk);
        let value = self.values.get(&(tensor, chunk)).copied().unwrap_or(0.0);
        let old = self.published.insert((tensor, chunk), Published { version, steps, value });
        assert!(
            old.is_none_or(|old| old.version <= version),
            "C-1: {old:?} was followed by version {version}"
        );
    }

    fn progress(&mut self, tensor: TensorId, version: u64) {
        self.progress.entry(tensor).or_default().push(version);
    }

    fn folded(&mut self, tensor: TensorId, writer: Rank, count: u64) {
        let old = self.folded.insert((tensor, writer), count);
        assert!(old.is_none_or(|old| old < count), "a count that did not grow was told");
    }
}

pub(crate) const SGD: Rule = Rule::Sgd { momentum: false, nesterov: false, maximize: false };

pub(crate) fn spec(consistency: Consistency) -> TensorSpec {
    TensorSpec {
        name: "w".into(),
        shape: vec![4],
        dtype: Dtype::F64,
        rule: SGD,
        consistency,
        propagation: Propagation::Pull,
        reduce: Reduce::Sum,
        rescale: 1.0,
        clip: None,
        refuse_nonfinite: true,
        travel: Travel::default(),
    }
}

pub(crate) fn rated(first: u32, count: u32, stamp: u64, lr: f64) -> Submission {
    Submission::Push { tensor: W, first, count, stamp, settings: Settings([lr, 0.0, 0.0, 0.0, 0.0]) }
}

pub(crate) fn pushed(first: u32, count: u32, stamp: u64) -> Submission {
    rated(first, count, stamp, 0.5)
}

pub(crate) fn load(first: u32, count: u32, slot: u32, steps: u64) -> Submission {
    Submission::Load { tensor: W, first, count, slot, part: 0, steps }
}

/// A shard and its home.
pub(crate) struct Rig {
    pub(crate) shard: Shard,
    pub(crate) home: Numbers,
}

impl Rig {
    /// Home of chunks `0..chunks` of `w`, which starts at zero.
    pub(crate) fn new(workers: u32, chunks: u32, consistency: Consistency) -> Self {
        Self::with(workers, spec(consistency), chunks, (0..chunks).collect())
    }

    pub(crate) fn with(workers: u32, spec: TensorSpec, total: u32, chunks: Vec<u32>) -> Self {
        let mut rig = Self { shard: Shard::new(workers), home: Numbers::default() };
        rig.shard.declare(W, spec, total, chunks);
        rig.submit(0, Submission::Zero { tensor: W });
        rig
    }

    pub(crate) fn try_submit(&mut self, rank: Rank, submission: Submission) -> Result<(), SubmissionRefused> {
        self.shard.submit(rank, &submission, &mut self.home)
    }

    pub(crate) fn submit(&mut self, rank: Rank, submission: Submission) {
        self.try_submit(rank, submission).unwrap();
    }

    /// Contributes `value` to chunks `first..first + count`.
    pub(crate) fn push(&mut self, rank: Rank, (first, count): (u32, u32), stamp: u64, value: f64) {
        self.home.lanes.insert((W, rank), value);
        self.submit(rank, pushed(first, count, stamp));
    }

    pub(crate) fn clock(&mut self, rank: Rank, clock: u64) {
        self.submit(rank, Submission::Clock { clock });
    }

    /// Commits the first chunk that waits, or another one; `false` if none does.
    pub(crate) fn commit(&mut self, which: prop::sample::Index) -> bool {
        let waiting: Vec<u32> = self.home.aside.keys().map(|&(_, chunk)| chunk).collect();
        if waiting.is_empty() {
            return false;
        }
        self.shard.commit(W, *which.get(&waiting), &mut self.home).unwrap()
    }

    pub(crate) fn remove(&mut self, rank: Rank) {
        self.shard.remove(rank, &mut self.home).unwrap();
    }

    pub(crate) fn chunk(&self, chunk: u32) -> Published {
        self.home.published[&(W, chunk)]
    }

    pub(crate) fn folds(&self) -> Vec<Vec<Rank>> {
        let folds = self.home.folds.get(&W).into_iter().flatten();
        folds.map(|fold| fold.writers.clone()).collect()
    }

    pub(crate) fn progress(&self) -> Option<u64> {
        self.home.progress.get(&W)?.last().copied()
    }

    /// Submits what has to be refused, and sees that it left no trace (C-5).
    pub(crate) fn refuse(&mut self, rank: Rank, submission: Submission) -> SubmissionRefused {
        let before = (format!("{:?}", self.shard), self.home.clone());
        let refused = self.try_submit(rank, submission).expect_err("it has to be refused");
        assert_eq!((format!("{:?}", self.shard), self.home.clone()), before, "C-5: {refused}");
        refused
    }
}
