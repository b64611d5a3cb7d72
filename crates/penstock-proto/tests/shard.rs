//! The shard's machine through its public face, over plain numbers: one `f64` for each chunk, so that every sum is exact.

use penstock_kernels::{Dtype, Rule, Settings};
use penstock_proto::clock::MAX_CLOCK;
use penstock_proto::consistency::Consistency::{self, Asp, Bsp, Ssp};
use penstock_proto::error::JobFailure;
use penstock_proto::shard::{self, Fold, Home, NonFiniteFrom, Shard, SubmissionRefused};
use penstock_proto::spec::{Reduce, TensorSpec};
use penstock_proto::submission::Submission;
use penstock_proto::{Rank, TensorId};
use proptest::prelude::*;
use std::collections::BTreeMap;

const W: TensorId = 0;

/// One fold, as the home was asked for it.
#[derive(Debug, Clone, PartialEq)]
struct Folded {
    chunk: u32,
    step: u64,
    scale: f64,
    lr: f64,
    writers: Vec<Rank>,
}

/// What stands published of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Published {
    version: u64,
    steps: u64,
    value: f64,
}

/// A home of plain numbers. The contribution of a worker to all of a tensor's chunks is one number.
#[derive(Debug, Clone, PartialEq, Default)]
struct Numbers {
    lanes: BTreeMap<(TensorId, Rank), f64>,
    values: BTreeMap<(TensorId, u32), f64>,
    published: BTreeMap<(TensorId, u32), Published>,
    progress: BTreeMap<TensorId, Vec<u64>>,
    folded: BTreeMap<(TensorId, Rank), u64>,
    folds: BTreeMap<TensorId, Vec<Folded>>,
    /// Chunk, slot and part of each load.
    loads: Vec<(u32, u32, u32)>,
    /// Whether folds wait for their commit, as they do where a norm of all sums or a replica is waited for.
    late: bool,
    /// What was folded, and waits.
    aside: BTreeMap<(TensorId, u32), f64>,
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

    fn publish(&mut self, tensor: TensorId, chunk: u32, version: u64, steps: u64) {
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

const SGD: Rule = Rule::Sgd { momentum: false, nesterov: false, maximize: false };

fn spec(consistency: Consistency) -> TensorSpec {
    TensorSpec {
        name: "w".into(),
        shape: vec![4],
        dtype: Dtype::F64,
        rule: SGD,
        consistency,
        reduce: Reduce::Sum,
        rescale: 1.0,
        clip: None,
        refuse_nonfinite: true,
    }
}

fn rated(first: u32, count: u32, stamp: u64, lr: f64) -> Submission {
    Submission::Push { tensor: W, first, count, stamp, settings: Settings([lr, 0.0, 0.0, 0.0, 0.0]) }
}

fn pushed(first: u32, count: u32, stamp: u64) -> Submission {
    rated(first, count, stamp, 0.5)
}

fn load(first: u32, count: u32, slot: u32, steps: u64) -> Submission {
    Submission::Load { tensor: W, first, count, slot, part: 0, steps }
}

/// A shard and its home.
struct Rig {
    shard: Shard,
    home: Numbers,
}

impl Rig {
    /// Home of chunks `0..chunks` of `w`, which starts at zero.
    fn new(workers: u32, chunks: u32, consistency: Consistency) -> Self {
        Self::with(workers, spec(consistency), chunks, (0..chunks).collect())
    }

    fn with(workers: u32, spec: TensorSpec, total: u32, chunks: Vec<u32>) -> Self {
        let mut rig = Self { shard: Shard::new(workers), home: Numbers::default() };
        rig.shard.declare(W, spec, total, chunks);
        rig.submit(0, Submission::Zero { tensor: W });
        rig
    }

    fn try_submit(&mut self, rank: Rank, submission: Submission) -> Result<(), SubmissionRefused> {
        self.shard.submit(rank, &submission, &mut self.home)
    }

    fn submit(&mut self, rank: Rank, submission: Submission) {
        self.try_submit(rank, submission).unwrap();
    }

    /// Contributes `value` to chunks `first..first + count`.
    fn push(&mut self, rank: Rank, (first, count): (u32, u32), stamp: u64, value: f64) {
        self.home.lanes.insert((W, rank), value);
        self.submit(rank, pushed(first, count, stamp));
    }

    fn clock(&mut self, rank: Rank, clock: u64) {
        self.submit(rank, Submission::Clock { clock });
    }

    /// Commits the first chunk that waits, or another one; `false` if none does.
    fn commit(&mut self, which: prop::sample::Index) -> bool {
        let waiting: Vec<u32> = self.home.aside.keys().map(|&(_, chunk)| chunk).collect();
        if waiting.is_empty() {
            return false;
        }
        self.shard.commit(W, *which.get(&waiting), &mut self.home).unwrap()
    }

    fn remove(&mut self, rank: Rank) {
        self.shard.remove(rank, &mut self.home).unwrap();
    }

    fn chunk(&self, chunk: u32) -> Published {
        self.home.published[&(W, chunk)]
    }

    fn folds(&self) -> Vec<Vec<Rank>> {
        let folds = self.home.folds.get(&W).into_iter().flatten();
        folds.map(|fold| fold.writers.clone()).collect()
    }

    fn progress(&self) -> Option<u64> {
        self.home.progress.get(&W)?.last().copied()
    }

    /// Submits what has to be refused, and sees that it left no trace (C-5).
    fn refuse(&mut self, rank: Rank, submission: Submission) -> SubmissionRefused {
        let before = (format!("{:?}", self.shard), self.home.clone());
        let refused = self.try_submit(rank, submission).expect_err("it has to be refused");
        assert_eq!((format!("{:?}", self.shard), self.home.clone()), before, "C-5: {refused}");
        refused
    }
}

#[test]
fn contributions_are_folded_in_rank_order_whatever_order_they_came_in() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let mut rig = Rig::new(3, 1, Bsp);
        for rank in order {
            rig.push(rank, (0, 1), 0, f64::from(rank + 1));
        }
        assert_eq!(rig.folds(), [[0, 1, 2]], "C-4, arrivals {order:?}");
        assert_eq!(rig.chunk(0), Published { version: 1, steps: 1, value: 6.0 });
    }
}

#[test]
fn nothing_is_folded_while_a_worker_is_merely_late() {
    let mut rig = Rig::new(3, 2, Bsp);
    rig.push(0, (0, 2), 0, 1.0);
    rig.push(2, (0, 2), 0, 1.0);
    assert!(rig.folds().is_empty());
    rig.push(1, (1, 1), 0, 1.0);
    assert_eq!(rig.chunk(0).version, 0);
    assert_eq!(rig.chunk(1).version, 1, "chunks do not wait for each other");
}

#[test]
fn an_update_that_is_submitted_again_is_folded_once() {
    for consistency in [Bsp, Ssp(2), Asp] {
        let mut rig = Rig::new(2, 2, consistency);
        for _ in 0..3 {
            rig.push(0, (0, 2), 0, 1.0);
        }
        rig.push(1, (0, 1), 0, 10.0);
        rig.push(0, (0, 2), 0, 1.0);
        rig.push(1, (0, 2), 0, 10.0);
        assert_eq!([rig.chunk(0).value, rig.chunk(1).value], [11.0; 2], "C-3, {consistency}");
        assert_eq!(rig.home.folded, BTreeMap::from([((W, 0), 2), ((W, 1), 2)]));
    }
}

#[test]
fn an_iteration_without_a_push_moves_the_version_and_takes_no_step() {
    let mut rig = Rig::new(2, 2, Bsp);
    for rank in [0, 1] {
        rig.clock(rank, 1);
    }
    assert_eq!(rig.chunk(0), Published { version: 1, steps: 0, value: 0.0 });
    rig.push(0, (0, 2), 1, 4.0);
    rig.clock(0, 2);
    assert_eq!(rig.chunk(1).version, 1, "worker 1 may still push");
    rig.clock(1, 2);
    assert_eq!(rig.chunk(1), Published { version: 2, steps: 1, value: 4.0 });
    assert_eq!(rig.folds(), [[0], [0]], "one fold a chunk, without the worker that passed it by");
}

#[test]
fn a_worker_that_pushed_part_of_a_tensor_passes_the_rest_by_with_its_clock() {
    let mut rig = Rig::new(2, 3, Bsp);
    rig.push(0, (0, 3), 0, 1.0);
    rig.push(1, (1, 1), 0, 10.0);
    assert_eq!(rig.progress(), Some(0));
    rig.clock(1, 1);
    assert_eq!([0, 1, 2].map(|chunk| rig.chunk(chunk).value), [1.0, 11.0, 1.0]);
    assert_eq!(rig.progress(), Some(1));
}

#[test]
fn a_tensor_declared_late_starts_at_the_clock_of_the_slowest() {
    for consistency in [Bsp, Ssp(3), Asp] {
        let mut rig = Rig { shard: Shard::new(2), home: Numbers::default() };
        rig.clock(0, 1000);
        rig.clock(1, 1002);
        rig.shard.declare(W, spec(consistency), 2, vec![0, 1]);
        rig.home.lanes.insert((W, 0), 7.0);
        rig.submit(0, load(0, 2, 0, 0));
        assert_eq!(rig.chunk(1), Published { version: 1000, steps: 0, value: 7.0 }, "{consistency}");
        assert_eq!(rig.progress(), Some(1000));
        assert!(rig.folds().is_empty());
        rig.push(0, (0, 2), 1000, 1.0);
        rig.push(1, (0, 2), 1002, 1.0);
        rig.clock(0, 1002);
        assert_eq!(rig.chunk(0).value, if consistency == Bsp { 8.0 } else { 9.0 });
        rig.clock(0, 1003);
        assert_eq!(rig.chunk(0), Published { version: 1003, steps: 2, value: 9.0 });
    }
}

#[test]
fn a_chunk_is_not_published_before_it_has_a_value() {
    for consistency in [Bsp, Ssp(3), Asp] {
        let mut rig = Rig { shard: Shard::new(1), home: Numbers::default() };
        rig.shard.declare(W, spec(consistency), 2, vec![0, 1]);
        rig.clock(0, 5);
        rig.submit(0, load(0, 1, 0, 0));
        assert!(!rig.home.published.contains_key(&(W, 1)), "{consistency}");
        assert_eq!(rig.progress(), None);
        rig.submit(0, load(1, 1, 0, 0));
        assert_eq!((rig.chunk(1).version, rig.progress()), (5, Some(5)), "{consistency}");
    }
}

#[test]
fn optimizer_state_is_loaded_with_the_steps_it_has_behind_it() {
    let momentum = Rule::Sgd { momentum: true, nesterov: false, maximize: false };
    let mut rig = Rig::with(1, TensorSpec { rule: momentum, ..spec(Bsp) }, 1, vec![0]);
    rig.submit(0, load(0, 1, 1, 12));
    assert_eq!(rig.home.loads, [(0, 1, 0)]);
    rig.push(0, (0, 1), 0, 1.0);
    assert_eq!(rig.home.folds[&W][0].step, 12);
    assert_eq!(rig.home.folded[&(W, 0)], 2, "a load frees the lane as a fold does");
    let refused = rig.refuse(0, load(0, 1, 2, 0));
    assert!(matches!(refused, SubmissionRefused::BadLoad { slot: 2, slots: 1, .. }));
}

#[test]
fn state_that_is_wider_than_the_tensor_is_loaded_in_two_parts() {
    let part = |part, slot| Submission::Load { tensor: W, first: 0, count: 1, slot, part, steps: 1 };
    let adam = Rule::Adam { amsgrad: false, maximize: false };
    for (dtype, parts) in [(Dtype::F32, 1), (Dtype::F64, 1), (Dtype::F16, 2), (Dtype::Bf16, 2)] {
        let mut rig = Rig::with(1, TensorSpec { rule: adam, dtype, ..spec(Bsp) }, 1, vec![0]);
        for at in 0..parts {
            rig.submit(0, part(at, 2));
            assert_eq!(rig.home.loads[at as usize], (0, 2, at));
        }
        assert!(matches!(rig.refuse(0, part(parts, 2)), SubmissionRefused::BadLoad { .. }), "{dtype:?}");
        assert!(matches!(rig.refuse(0, part(1, 0)), SubmissionRefused::BadLoad { .. }), "{dtype:?}");
    }
}

#[test]
fn a_fold_that_waits_for_its_commit_is_neither_seen_nor_loaded_over_and_keeps_its_lanes() {
    for consistency in [Bsp, Ssp(2), Asp] {
        let mut rig = Rig::new(2, 1, consistency);
        rig.home.late = true;
        rig.push(1, (0, 1), 0, 10.0);
        rig.push(0, (0, 1), 0, 1.0);
        assert_eq!(rig.chunk(0), Published::default(), "{consistency}");
        assert!(rig.home.folded.is_empty(), "what waits may have to be folded again");
        assert!(matches!(rig.refuse(0, load(0, 1, 0, 0)), SubmissionRefused::BadLoad { .. }));
        rig.clock(1, 1);
        assert!(matches!(rig.refuse(1, pushed(0, 1, 1)), SubmissionRefused::StillPending { .. }));
        while rig.shard.commit(W, 0, &mut rig.home).unwrap() {}
        let steps = if consistency == Bsp { 1 } else { 2 };
        assert_eq!(rig.chunk(0), Published { version: 1, steps, value: 11.0 }, "{consistency}");
        assert_eq!(rig.home.folded, BTreeMap::from([((W, 0), 1), ((W, 1), 1)]));
        assert_eq!(rig.shard.commit(W, 7, &mut rig.home), Ok(false), "nothing of that chunk waits");
        rig.submit(0, load(0, 1, 0, 0));
    }
}

#[test]
fn a_worker_that_leaves_after_its_last_push_still_counts_in_that_fold() {
    let mut rig = Rig::with(3, TensorSpec { reduce: Reduce::Mean, ..spec(Bsp) }, 1, vec![0]);
    rig.push(1, (0, 1), 0, 6.0);
    rig.remove(1);
    rig.push(2, (0, 1), 0, 3.0);
    rig.push(0, (0, 1), 0, 9.0);
    assert_eq!(rig.folds(), [[0, 1, 2]]);
    assert_eq!(rig.chunk(0).value, 6.0, "the mean of three");
    for (rank, value) in [(0, 1.0), (2, 3.0)] {
        rig.clock(rank, 1);
        rig.push(rank, (0, 1), 1, value);
    }
    assert_eq!(rig.chunk(0).value, 8.0, "and then of two");
}

#[test]
fn who_says_goodbye_is_waited_for_no_more_and_everything_before_counts() {
    for consistency in [Bsp, Ssp(1), Asp] {
        let mut rig = Rig::new(2, 2, consistency);
        rig.push(1, (0, 2), 0, 10.0);
        rig.submit(1, Submission::Leave);
        rig.push(0, (0, 2), 0, 1.0);
        assert_eq!((rig.chunk(0).value, rig.chunk(1).value), (11.0, 11.0), "{consistency}");
        assert_eq!(rig.progress(), Some(1), "{consistency}");
        assert!(!rig.shard.clocks().is_live(1));
    }
}

#[test]
fn a_tensor_declared_after_worker_0_said_goodbye_fails_the_job_when_it_is_let_go() {
    let mut rig = Rig::new(2, 1, Bsp);
    rig.submit(0, Submission::Leave);
    rig.shard.declare(W + 1, spec(Bsp), 1, vec![0]);
    assert_eq!(rig.shard.remove(0, &mut rig.home), Err(JobFailure::NoValue { name: "w".into(), loss: None }));
}

#[test]
fn a_worker_that_left_after_an_iteration_without_push_divides_that_mean_whenever_it_is_taken() {
    let fold = |leaves_first: bool| {
        let mut rig = Rig::with(2, TensorSpec { reduce: Reduce::Mean, ..spec(Bsp) }, 1, vec![0]);
        rig.clock(1, 1);
        if leaves_first {
            rig.remove(1);
        }
        rig.push(0, (0, 1), 0, 8.0);
        rig.chunk(0).value
    };
    assert_eq!(fold(false), 4.0);
    assert_eq!(fold(true), 4.0, "when the others hear of its leaving must not change a bit");
}

#[test]
fn an_update_of_a_worker_that_left_is_not_skipped_over_when_the_others_pass_it_by() {
    let mut rig = Rig::new(3, 1, Bsp);
    rig.clock(1, 5);
    rig.push(1, (0, 1), 5, 1.0);
    rig.remove(1);
    rig.clock(0, 10);
    rig.remove(2);
    assert_eq!(rig.chunk(0), Published { version: 10, steps: 1, value: 1.0 });
}

#[test]
fn the_last_updates_are_folded_even_when_nobody_is_left() {
    let mut rig = Rig::new(2, 2, Bsp);
    rig.push(0, (0, 2), 0, 1.0);
    rig.remove(0);
    assert!(rig.folds().is_empty());
    rig.remove(1);
    assert_eq!(rig.chunk(1), Published { version: 1, steps: 1, value: 1.0 });
    assert_eq!(rig.progress(), Some(1));
}

#[test]
fn removing_a_worker_releases_those_who_waited_for_it() {
    for consistency in [Bsp, Ssp(1), Asp] {
        let mut rig = Rig::new(3, 2, consistency);
        for rank in [0, 2] {
            rig.push(rank, (0, 2), 0, 1.0);
            rig.clock(rank, 1);
        }
        assert_eq!(rig.progress(), Some(0));
        rig.remove(1);
        assert_eq!(rig.progress(), Some(1), "{consistency}");
        assert_eq!(rig.chunk(0).value, 2.0);
        rig.remove(1);
        assert_eq!(rig.progress(), Some(1), "it is removed once");
    }
}

#[test]
fn a_job_whose_first_worker_goes_before_it_gave_a_value_fails_instead_of_waiting_for_ever() {
    let mut shard = Shard::new(2);
    shard.declare(W, spec(Bsp), 1, vec![0]);
    let mut home = Numbers::default();
    assert_eq!(shard.remove(1, &mut home), Ok(()), "another worker is not waited for");
    assert_eq!(shard.remove(0, &mut home), Err(JobFailure::NoValue { name: "w".into(), loss: None }));
}

#[test]
fn a_worker_that_dies_between_the_submissions_of_a_push_counts_only_where_it_came() {
    let mut rig = Rig::new(2, 2, Bsp);
    rig.push(0, (0, 2), 0, 1.0);
    rig.push(1, (0, 1), 0, 10.0);
    rig.remove(1);
    assert_eq!([rig.chunk(0).value, rig.chunk(1).value], [11.0, 1.0]);
    assert_eq!(rig.progress(), Some(1));
}

#[test]
fn a_refused_submission_leaves_no_trace() {
    let mut rig = Rig::new(2, 4, Bsp);
    rig.push(0, (0, 2), 0, 1.0);
    rig.clock(1, 3);
    for (first, count) in [(0, 5), (4, 1), (u32::MAX, 2), (1, u32::MAX)] {
        let expected = SubmissionRefused::OutsideTensor { first, count, chunks: 4 };
        assert_eq!(rig.refuse(0, pushed(first, count, 0)), expected);
        assert_eq!(rig.refuse(0, load(first, count, 0, 0)), expected);
    }
    assert_eq!(rig.refuse(0, pushed(0, 1, 1)), SubmissionRefused::WrongStamp { expected: 0, got: 1 });
    assert_eq!(rig.refuse(1, pushed(0, 1, 2)), SubmissionRefused::WrongStamp { expected: 3, got: 2 });
    let back = SubmissionRefused::ClockWentBack { expected_at_least: 3, got: 2 };
    assert_eq!(rig.refuse(1, Submission::Clock { clock: 2 }), back);
    for lr in [-1.0, f64::NAN] {
        assert!(matches!(rig.refuse(0, rated(0, 1, 0, lr)), SubmissionRefused::BadSettings { .. }));
    }
    let unknown = Submission::Push { tensor: 9, first: 0, count: 1, stamp: 0, settings: Settings::NONE };
    assert_eq!(rig.refuse(0, unknown), SubmissionRefused::UnknownTensor { got: 9 });
    assert_eq!(rig.refuse(0, Submission::Zero { tensor: 9 }), SubmissionRefused::UnknownTensor { got: 9 });
}

#[test]
fn only_worker_0_loads_and_never_over_an_update_that_waits() {
    let mut rig = Rig::new(2, 2, Bsp);
    assert!(matches!(rig.refuse(1, load(0, 1, 0, 0)), SubmissionRefused::BadLoad { .. }));
    assert!(matches!(rig.refuse(1, Submission::Zero { tensor: W }), SubmissionRefused::BadLoad { .. }));
    rig.push(0, (1, 1), 0, 1.0);
    assert!(matches!(rig.refuse(0, load(0, 1, 0, 0)), SubmissionRefused::BadLoad { .. }));
    rig.push(1, (1, 1), 0, 1.0);
    rig.submit(0, load(0, 1, 0, 0));
}

#[test]
fn a_push_before_the_value_is_refused() {
    let mut rig = Rig { shard: Shard::new(2), home: Numbers::default() };
    rig.shard.declare(W, spec(Ssp(1)), 2, vec![0, 1]);
    rig.submit(0, load(0, 1, 0, 0));
    assert_eq!(rig.refuse(1, pushed(0, 1, 0)), SubmissionRefused::NotLoaded { name: "w".into() });
    assert_eq!(rig.shard.missing(W, 0), [0], "its value has to come from worker 0");
    rig.submit(0, load(1, 1, 0, 0));
    rig.submit(1, pushed(0, 1, 0));
}

#[test]
fn a_push_over_an_update_that_is_not_folded_yet_is_refused() {
    let mut rig = Rig::new(2, 2, Bsp);
    rig.push(0, (0, 1), 0, 1.0);
    rig.clock(0, 1);
    for chunk in [0, 1] {
        let refused = rig.refuse(0, rated(chunk, 1, 1, 0.25));
        assert_eq!(refused, SubmissionRefused::StillPending { name: "w".into(), pending: 0, got: 1 });
    }
    rig.clock(1, 1);
    assert_eq!(rig.home.folds[&W][0].lr, 0.5, "it is folded with the numbers that it came with");
    rig.submit(0, rated(0, 2, 1, 0.25));
}

#[test]
fn a_number_that_could_overflow_is_refused() {
    let mut rig = Rig::new(1, 1, Bsp);
    for got in [u64::MAX, MAX_CLOCK + 1] {
        let refused = rig.refuse(0, Submission::Clock { clock: got });
        assert_eq!(refused, SubmissionRefused::TooLarge { what: "its clock", limit: MAX_CLOCK, got });
        let refused = rig.refuse(0, load(0, 1, 0, got));
        assert_eq!(
            refused,
            SubmissionRefused::TooLarge { what: "the steps of a load", limit: MAX_CLOCK, got }
        );
    }
    let fetch = |version| Submission::Fetch { tensor: W, state: false, version, ticket: 1 };
    assert!(rig.shard.judge(0, &fetch(MAX_CLOCK + 1)).is_ok());
    let refused = rig.shard.judge(0, &fetch(u64::MAX)).unwrap_err();
    assert!(matches!(refused, SubmissionRefused::TooLarge { limit: MAX_CLOCK, .. }), "{refused}");
    rig.clock(0, MAX_CLOCK);
    rig.submit(0, load(0, 1, 0, MAX_CLOCK));
    rig.push(0, (0, 1), MAX_CLOCK, 1.0);
    assert_eq!(rig.chunk(0), Published { version: MAX_CLOCK + 1, steps: MAX_CLOCK + 1, value: 1.0 });
}

#[test]
fn a_nan_enters_no_chunk_and_its_writer_is_named() {
    for consistency in [Bsp, Ssp(1)] {
        let mut rig = Rig::new(2, 1, consistency);
        rig.home.lanes.insert((W, 1), f64::NAN);
        let mut refused = rig.try_submit(1, pushed(0, 1, 0));
        if consistency == Bsp {
            assert_eq!(refused, Ok(()), "it is seen when it is folded");
            refused = rig.try_submit(0, pushed(0, 1, 0));
        }
        let failure = JobFailure::NonFinite { rank: 1, name: "w".into() };
        assert_eq!(refused, Err(SubmissionRefused::Failure(failure)));
        assert_eq!(rig.chunk(0), Published::default(), "{consistency}");
        assert!(rig.folds().is_empty() && rig.home.folded.is_empty());
    }
}

#[test]
fn workers_that_disagree_about_one_step_are_both_named() {
    let failure = JobFailure::SettingsConflict {
        name: "w".into(),
        first: 0,
        second: 1,
        stamp: 0,
        ours: [0.5, 0.0, 0.0, 0.0, 0.0],
        theirs: [0.25, 0.0, 0.0, 0.0, 0.0],
    };
    for left in [false, true] {
        let mut rig = Rig::new(3, 1, Bsp);
        rig.push(0, (0, 1), 0, 1.0);
        if left {
            rig.remove(0);
        }
        let refused = rig.refuse(1, rated(0, 1, 0, 0.25));
        assert_eq!(refused, SubmissionRefused::Failure(failure.clone()), "left: {left}");
    }
    let mut rig = Rig::new(2, 1, Asp);
    rig.submit(0, rated(0, 1, 0, 0.5));
    rig.submit(1, rated(0, 1, 0, 0.25));
    let rates: Vec<f64> = rig.home.folds[&W].iter().map(|fold| fold.lr).collect();
    assert_eq!(rates, [0.5, 0.25], "folded alone, each takes its own");
}

#[test]
fn a_changed_rate_takes_effect_with_exactly_the_update_it_came_with() {
    let mut rig = Rig::new(2, 1, Bsp);
    for (stamp, lr) in [(0, 0.5), (1, 0.25)] {
        for rank in [1, 0] {
            rig.submit(rank, rated(0, 1, stamp, lr));
            rig.clock(rank, stamp + 1);
        }
    }
    let rates: Vec<f64> = rig.home.folds[&W].iter().map(|fold| fold.lr).collect();
    assert_eq!(rates, [0.5, 0.25]);
}

#[test]
fn the_lane_is_counted_free_chunk_by_chunk_as_its_contributions_are_folded() {
    let mut rig = Rig::new(2, 3, Bsp);
    rig.push(0, (0, 3), 0, 1.0);
    assert_eq!(rig.home.folded.get(&(W, 0)), None);
    rig.push(1, (0, 2), 0, 1.0);
    assert_eq!((rig.home.folded[&(W, 0)], rig.home.folded[&(W, 1)]), (2, 2));
    rig.push(1, (2, 1), 0, 1.0);
    assert_eq!((rig.home.folded[&(W, 0)], rig.home.folded[&(W, 1)]), (3, 3));
}

#[test]
fn those_who_are_missing_are_exactly_those_who_are_awaited() {
    for consistency in [Bsp, Ssp(1)] {
        let mut rig = Rig::new(4, 2, consistency);
        assert_eq!(rig.shard.missing(W, 0), []);
        assert_eq!(rig.shard.missing(W, 1), [0, 1, 2, 3]);
        rig.push(0, (0, 2), 0, 1.0);
        rig.push(1, (0, 1), 0, 1.0);
        rig.clock(2, 1);
        assert_eq!(rig.shard.missing(W, 1), [1, 3], "{consistency}");
        rig.push(1, (1, 1), 0, 1.0);
        rig.remove(3);
        assert_eq!(rig.shard.missing(W, 1), []);
        assert_eq!(rig.progress(), Some(1));
        assert_eq!(rig.shard.missing(W, 2), [0, 1, 2]);
        assert_eq!(rig.shard.missing(7, 1), [], "nobody is awaited for what is not here");
    }
}

#[test]
fn outside_bsp_an_update_is_folded_when_it_arrives_and_the_version_waits_for_the_slowest() {
    for consistency in [Ssp(2), Asp] {
        let mut rig = Rig::new(2, 1, consistency);
        for stamp in 0..3 {
            rig.push(0, (0, 1), stamp, 1.0);
            rig.clock(0, stamp + 1);
        }
        assert_eq!(rig.chunk(0), Published { version: 0, steps: 3, value: 3.0 }, "{consistency}");
        rig.push(1, (0, 1), 0, 10.0);
        assert_eq!(rig.chunk(0), Published { version: 1, steps: 4, value: 13.0 });
        rig.clock(1, 1);
        rig.clock(1, 2);
        assert_eq!(rig.chunk(0), Published { version: 2, steps: 4, value: 13.0 });
        rig.remove(1);
        assert_eq!(rig.chunk(0).version, 3);
    }
}

#[test]
fn a_shard_that_homes_no_chunk_of_a_tensor_takes_its_submissions_and_waits_for_nobody() {
    let mut rig = Rig::with(2, spec(Bsp), 2, vec![]);
    rig.push(0, (0, 2), 0, 1.0);
    rig.clock(0, 1);
    assert_eq!(rig.shard.missing(W, 1), []);
    assert!(rig.home.published.is_empty() && rig.home.folded.is_empty());
}

/// What one worker does in one iteration: the chunk ranges that it pushes, each so many times.
type Iteration = Vec<(u32, u32, usize)>;

/// Workers' programs, the chunks homed here, and the order in which the workers move.
#[derive(Debug, Clone)]
struct Plan {
    total: u32,
    chunks: Vec<u32>,
    programs: Vec<Vec<Iteration>>,
    order: Vec<prop::sample::Index>,
    /// Who is removed, after so many moves.
    lost: Option<(usize, u32)>,
    /// Whether folds wait for their commit.
    late: bool,
}

const ITERATIONS: usize = 5;

fn iteration(total: u32) -> impl Strategy<Value = Iteration> {
    let range = (0..total, 1..=total, 1usize..3).prop_map(move |(first, count, times)| {
        (first, count.min(total - first), times) // ranges may overlap: what comes twice is folded once
    });
    prop::collection::vec(range, 0..4)
}

fn plans() -> impl Strategy<Value = Plan> {
    (1u32..5, 1u32..6).prop_flat_map(|(workers, total)| {
        let program = prop::collection::vec(iteration(total), ITERATIONS);
        let programs = prop::collection::vec(program, workers as usize);
        let chunks = prop::sample::subsequence((0..total).collect::<Vec<_>>(), 1..=total as usize);
        let order = prop::collection::vec(any::<prop::sample::Index>(), 400);
        let lost = prop::option::weighted(0.3, (0usize..40, 0..workers));
        let all = (Just(total), chunks, programs, order, lost, any::<bool>());
        all.prop_map(|(total, chunks, programs, order, lost, late)| Plan {
            total,
            chunks,
            programs,
            order,
            lost,
            late,
        })
    })
}

/// A worker on its way through its program.
#[derive(Debug, Clone, Default)]
struct Walker {
    moves: Vec<Submission>,
    at: usize,
    /// Contributions it has made to chunks homed here, and for each chunk the stamps.
    made: u64,
    stamps: BTreeMap<u32, Vec<u64>>,
}

impl Walker {
    fn new(program: &[Iteration]) -> Self {
        let mut moves = Vec::new();
        for (stamp, ranges) in (0u64..).zip(program) {
            for &(first, count, times) in ranges {
                moves.extend(std::iter::repeat_n(pushed(first, count, stamp), times));
            }
            moves.push(Submission::Clock { clock: stamp + 1 });
        }
        Self { moves, ..Self::default() }
    }

    fn note(&mut self, chunks: &[u32]) {
        if let Submission::Push { first, count, stamp, .. } = self.moves[self.at] {
            for &chunk in chunks.iter().filter(|&&chunk| (first..first + count).contains(&chunk)) {
                let stamps = self.stamps.entry(chunk).or_default();
                if stamps.last() != Some(&stamp) {
                    stamps.push(stamp);
                    self.made += 1;
                }
            }
        }
        self.at += 1;
    }
}

/// What worker `rank` contributes with `stamp`: a power of two of its own, so that a sum names its updates.
fn mark(rank: Rank, stamp: u64) -> f64 {
    f64::from(1u32 << (rank * ITERATIONS as u32 + stamp as u32))
}

/// Walks the plan; `check` sees the shard after each move.
fn walk(plan: &Plan, consistency: Consistency, mut check: impl FnMut(&Rig, &[Walker])) -> (Rig, Vec<Walker>) {
    let workers = plan.programs.len() as u32;
    let mut rig = Rig::with(workers, spec(consistency), plan.total, plan.chunks.clone());
    rig.home.late = plan.late;
    let mut walkers: Vec<Walker> = plan.programs.iter().map(|program| Walker::new(program)).collect();
    let mut order = plan.order.iter().cycle();
    for moved in 0.. {
        if let Some((after, rank)) = plan.lost
            && moved == after
        {
            rig.remove(rank);
            check(&rig, &walkers);
        }
        let can_move = |&rank: &Rank| {
            let walker = &walkers[rank as usize];
            let folded = rig.home.folded.get(&(W, rank)).copied().unwrap_or(0);
            // An honest worker overwrites its lane only when all of it is folded.
            let stamp = |at: usize| match walker.moves.get(at) {
                Some(&Submission::Push { stamp, .. }) => Some(stamp),
                _ => None,
            };
            let goes_on = walker.at > 0 && stamp(walker.at) == stamp(walker.at - 1);
            let free = stamp(walker.at).is_none() || goes_on || folded == walker.made;
            rig.shard.clocks().is_live(rank) && walker.at < walker.moves.len() && free
        };
        let movable: Vec<Rank> = (0..workers).filter(can_move).collect();
        let &chance = order.next().unwrap();
        if (movable.is_empty() || chance.index(2) == 0) && rig.commit(chance) {
            check(&rig, &walkers);
            continue;
        }
        if movable.is_empty() {
            break;
        }
        let rank = *order.next().unwrap().get(&movable);
        let walker = &mut walkers[rank as usize];
        if let Submission::Push { stamp, .. } = walker.moves[walker.at] {
            rig.home.lanes.insert((W, rank), mark(rank, stamp));
        }
        let submission = walker.moves[walker.at];
        walker.note(&plan.chunks);
        rig.submit(rank, submission);
        check(&rig, &walkers);
    }
    (rig, walkers)
}

/// The sum of the updates to `chunk` that `which` (of rank and stamp) holds for.
fn sum_of(walkers: &[Walker], chunk: u32, which: impl Fn(Rank, u64) -> bool) -> f64 {
    let of = |(rank, walker): (Rank, &Walker)| -> f64 {
        let stamps = walker.stamps.get(&chunk).into_iter().flatten();
        stamps.filter(|&&stamp| which(rank, stamp)).map(|&stamp| mark(rank, stamp)).sum()
    };
    (0..).zip(walkers).map(of).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn under_bsp_version_v_is_exactly_the_updates_stamped_below_v(plan in plans()) {
        walk(&plan, Bsp, |rig, walkers| {
            for &chunk in &plan.chunks {
                let Published { version, value, .. } = rig.chunk(chunk);
                assert_eq!(value, sum_of(walkers, chunk, |_, stamp| stamp < version), "C-2, C-3: chunk {chunk}");
            }
        });
    }

    #[test]
    fn under_bsp_every_interleaving_folds_the_same_sets_in_the_same_order(
        plan in plans(), other in prop::collection::vec(any::<prop::sample::Index>(), 400),
    ) {
        let plan = Plan { lost: None, ..plan };
        let folds = |plan: &Plan, chunk: u32| -> Vec<Folded> {
            let (rig, _) = walk(plan, Bsp, |_, _| {});
            assert_eq!(rig.chunk(chunk).version, ITERATIONS as u64, "everybody came through");
            rig.home.folds.get(&W).into_iter().flatten().filter(|fold| fold.chunk == chunk).cloned().collect()
        };
        let again = Plan { order: other, late: !plan.late, ..plan.clone() };
        for &chunk in &plan.chunks {
            let first = folds(&plan, chunk);
            prop_assert_eq!(&first, &folds(&again, chunk), "C-4");
            prop_assert!(first.iter().all(|fold| fold.writers.is_sorted()), "C-4");
        }
    }

    #[test]
    fn outside_bsp_version_v_holds_every_update_below_v_of_the_live_and_none_twice(plan in plans()) {
        let plan = Plan { late: false, ..plan };
        walk(&plan, Ssp(1), |rig, walkers| {
            for &chunk in &plan.chunks {
                let Published { version, value, .. } = rig.chunk(chunk);
                assert_eq!(value, sum_of(walkers, chunk, |_, _| true), "C-3: all that came, once");
                let clocks = rig.shard.clocks();
                let reached = |rank: Rank| {
                    let stamps = walkers[rank as usize].stamps.get(&chunk);
                    clocks.of(rank).max(stamps.and_then(|stamps| stamps.last()).map_or(0, |stamp| stamp + 1))
                };
                let least = clocks.live().map(reached).min();
                assert!(least.is_none_or(|least| version == least), "C-2: chunk {chunk}, {version}, {least:?}");
            }
        });
    }

    #[test]
    fn outside_bsp_what_waits_for_a_commit_is_in_no_version_and_comes_in_its_turn(plan in plans()) {
        let plan = Plan { late: true, ..plan };
        let (rig, walkers) = walk(&plan, Ssp(1), |rig, walkers| {
            for &chunk in &plan.chunks {
                let Published { version, value, .. } = rig.chunk(chunk);
                let came = sum_of(walkers, chunk, |_, _| true) as u64;
                let live = |rank: Rank| rig.shard.clocks().is_live(rank);
                let due = sum_of(walkers, chunk, |rank, stamp| live(rank) && stamp < version) as u64;
                let holds = value as u64;
                assert_eq!(holds & !came, 0, "C-3: nothing that did not come");
                assert_eq!(due & !holds, 0, "C-2: chunk {chunk}, version {version}");
            }
        });
        for &chunk in &plan.chunks {
            assert_eq!(rig.chunk(chunk).value, sum_of(&walkers, chunk, |_, _| true), "all of it, in the end");
        }
    }

    #[test]
    fn progress_is_the_least_version_and_the_missing_are_who_holds_it_there(plan in plans(), asp: bool) {
        walk(&plan, if asp { Asp } else { Bsp }, |rig, _| {
            let least = plan.chunks.iter().map(|&chunk| rig.chunk(chunk).version).min();
            assert_eq!(rig.progress(), least);
            let told = &rig.home.progress[&W];
            assert!(told.is_sorted_by(|a, b| a < b), "each value is told once: {told:?}");
            let least = least.unwrap();
            assert!(rig.shard.missing(W, least).is_empty());
            let missing = rig.shard.missing(W, least + 1);
            let waits = rig.shard.clocks().live_count() == 0 || !rig.home.aside.is_empty();
            assert!(!missing.is_empty() || waits, "{missing:?}");
            assert!(missing.iter().all(|&rank| rig.shard.clocks().is_live(rank)));
        });
    }

    #[test]
    fn every_contribution_is_counted_back_to_its_writer_once(plan in plans()) {
        let plan = Plan { lost: None, ..plan };
        for consistency in [Bsp, Asp] {
            let (rig, walkers) = walk(&plan, consistency, |_, _| {});
            for (rank, walker) in (0..).zip(&walkers) {
                assert_eq!(rig.home.folded.get(&(W, rank)).copied().unwrap_or(0), walker.made);
            }
        }
    }

    #[test]
    fn no_words_make_the_shard_panic_or_move_another_workers_clock(
        words in prop::collection::vec(prop::collection::vec((0u64..6, any::<u64>(), 0u8..3), 8), 1..40),
    ) {
        for consistency in [Bsp, Ssp(1)] {
            let mut rig = Rig::new(3, 4, consistency);
            for eight in &words {
                // Small numbers mostly, so that some are accepted; wild ones and the edges between.
                let pick = |&(small, wild, which): &(u64, u64, u8)| match which {
                    0 => wild,
                    1 => [u64::MAX, MAX_CLOCK, 1 << 32, u64::from(u32::MAX)][wild as usize % 4],
                    _ => small,
                };
                let eight: [u64; 8] = std::array::from_fn(|at| pick(&eight[at]));
                if let Ok(submission) = Submission::decode(eight) {
                    let _ = rig.try_submit(1, submission);
                }
            }
            prop_assert_eq!(rig.shard.clocks().of(0), 0);
            rig.remove(1);
            for rank in [0, 2] {
                rig.submit(rank, pushed(0, 4, 0));
            }
            prop_assert_eq!(rig.progress(), Some(1), "the others go on");
        }
    }
}
