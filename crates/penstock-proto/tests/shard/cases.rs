//! One promise each, by a case in which it would show.

use crate::rig::*;
use penstock_kernels::{Dtype, Rule, Settings};
use penstock_proto::clock::MAX_CLOCK;
use penstock_proto::consistency::Consistency::{Asp, Bsp, Ssp};
use penstock_proto::error::JobFailure;
use penstock_proto::peer::{PeerId, Role};
use penstock_proto::shard::{A_TENSOR, BESIDE_WORKERS, Shard, SubmissionRefused};
use penstock_proto::spec::{Reduce, TensorSpec};
use penstock_proto::submission::Submission;
use std::collections::BTreeMap;

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
fn a_flush_publishes_what_is_held_back_as_the_version_that_it_is_and_nothing_else() {
    for consistency in [Bsp, Ssp(2), Asp] {
        let mut rig = Rig::new(2, 3, consistency);
        rig.push(0, (0, 3), 0, 1.0);
        rig.push(1, (0, 3), 0, 10.0);
        let (before, publications) = (rig.home.published.clone(), rig.home.publications.len());
        rig.home.held_back = [(W, 0), (W, 2)].into();
        rig.submit(0, Submission::Flush { tensor: W });
        let flushes = rig.home.flushes;
        assert_eq!(flushes, 3, "{consistency}");
        rig.submit(0, Submission::Flush { tensor: W });
        assert_eq!(rig.home.flushes, flushes, "{consistency}: nothing was published since");
        let refused = rig.refuse(1, Submission::Flush { tensor: W });
        assert!(matches!(refused, SubmissionRefused::BadLoad { .. }), "worker 0 does it for all");
        assert_eq!(rig.home.publications[publications..], [0, 2], "{consistency}");
        assert_eq!(rig.home.published, before, "{consistency}");
        let refused = rig.refuse(0, Submission::Flush { tensor: 9 });
        assert_eq!(refused, SubmissionRefused::UnknownTensor { got: 9 });
        for (rank, value) in [(0, 1.0), (1, 10.0)] {
            rig.submit(rank, Submission::Clock { clock: 1 });
            rig.push(rank, (0, 3), 1, value);
        }
        rig.home.held_back = [(W, 1)].into();
        let publications = rig.home.publications.len();
        rig.submit(0, Submission::Flush { tensor: W });
        assert_eq!(rig.home.publications[publications..], [1], "{consistency}");
        let flushes = rig.home.flushes;
        (0..2).for_each(|rank| rig.submit(rank, Submission::Clock { clock: 3 }));
        rig.submit(0, Submission::Flush { tensor: W });
        assert_eq!(
            rig.home.flushes, flushes,
            "{consistency}: nothing was folded since, whatever the version is"
        );
    }
    let mut fresh = Shard::new(1);
    let mut home = Numbers { held_back: [(W, 0)].into(), ..Numbers::default() };
    fresh.declare(W, spec(Bsp), 1, vec![0]);
    fresh.submit(0, &Submission::Flush { tensor: W }, &mut home).unwrap();
    assert_eq!(home.publications, [0; 0], "there is no value yet");
}

/// It was taken for a frame, whatever the number of chunks.
#[test]
fn what_a_clock_or_a_flush_goes_over_is_counted() {
    for consistency in [Bsp, Ssp(2), Asp] {
        let mut rig = Rig::new(2, 300, consistency);
        rig.push(0, (0, 300), 0, 1.0);
        rig.shard.take_gone_over();
        rig.submit(0, Submission::Clock { clock: 1 });
        assert_eq!(rig.shard.take_gone_over(), 0, "{consistency}: it pushed all of them");
        rig.submit(0, Submission::Clock { clock: 2 });
        let kept = rig.shard.take_gone_over();
        assert_eq!(kept, A_TENSOR + 2, "{consistency}: worker 1 keeps all of them from moving");
        rig.push(1, (0, 300), 0, 1.0);
        rig.shard.take_gone_over();
        rig.submit(1, Submission::Clock { clock: 2 });
        let gone_over = A_TENSOR + 2 + 300 * (2 + BESIDE_WORKERS);
        assert_eq!(rig.shard.take_gone_over(), gone_over, "{consistency}");
        for gone_over in [300 * BESIDE_WORKERS, 0] {
            rig.submit(0, Submission::Flush { tensor: W });
            assert_eq!(rig.shard.take_gone_over(), gone_over, "{consistency}");
        }
    }
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
    assert!(rig.shard.judge(PeerId::worker(0), &fetch(MAX_CLOCK + 1)).is_ok());
    let refused = rig.shard.judge(PeerId::worker(0), &fetch(u64::MAX)).unwrap_err();
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

#[test]
fn who_is_no_worker_may_fetch_and_leave_and_contributes_nothing() {
    let mut rig = Rig::new(2, 1, Asp);
    rig.push(0, (0, 1), 0, 1.0);
    let follower = PeerId::first(Role::Follower, 0);
    assert_eq!((rig.shard.promised(PeerId::worker(0), W), rig.shard.promised(follower, W)), (1, 0));
    let fetch = |version| Submission::Fetch { tensor: W, state: false, version, ticket: 1 };
    assert_eq!(rig.shard.judge(follower, &fetch(1)).map(drop), Ok(()));
    assert_eq!(rig.shard.judge(follower, &Submission::Leave).map(drop), Ok(()));
    assert!(matches!(rig.shard.judge(follower, &fetch(u64::MAX)), Err(SubmissionRefused::TooLarge { .. })));
    for contribution in [Submission::Zero { tensor: W }, Submission::Clock { clock: 1 }] {
        let refused = rig.shard.judge(follower, &contribution).map(drop);
        assert_eq!(refused, Err(SubmissionRefused::NoWorker { peer: follower }));
    }
}

#[test]
fn what_was_judged_is_taken_whatever_others_have_submitted_meanwhile() {
    for consistency in [Bsp, Ssp(2), Asp] {
        let mut rig = Rig::new(3, 2, consistency);
        rig.push(0, (0, 2), 0, 1.0);
        // Its header has come, its payload has not.
        let judged = rig.shard.judge(PeerId::worker(1), &pushed(0, 2, 0)).unwrap();
        assert_eq!(*judged.submission(), pushed(0, 2, 0));
        rig.push(2, (0, 2), 0, 1.0);
        rig.clock(2, 1);
        rig.clock(0, 1);
        rig.remove(2);
        rig.home.lanes.insert((W, 1), 1.0);
        rig.shard.take(judged, &mut rig.home).unwrap();
        assert_eq!((rig.chunk(0).value, rig.chunk(1).value), (3.0, 3.0), "{consistency:?}");
    }
}

#[test]
fn what_others_can_change_is_looked_at_when_it_is_taken() {
    // The header came before any worker had pushed; another worker's push, with another rate, came before the payload.
    let mut rig = Rig::new(2, 1, Bsp);
    let judged = rig.shard.judge(PeerId::worker(1), &rated(0, 1, 0, 0.25)).unwrap();
    rig.push(0, (0, 1), 0, 1.0);
    let before = (format!("{:?}", rig.shard), rig.home.clone());
    let refused = rig.shard.take(judged, &mut rig.home).unwrap_err();
    assert!(
        matches!(
            refused,
            SubmissionRefused::Failure(JobFailure::SettingsConflict { first: 0, second: 1, .. })
        ),
        "{refused}"
    );
    assert_eq!((format!("{:?}", rig.shard), rig.home.clone()), before, "C-5");

    // The header of a load came before a fold that waits for its commit.
    let mut rig = Rig::new(2, 1, Asp);
    let judged = rig.shard.judge(PeerId::worker(0), &load(0, 1, 0, 0)).unwrap();
    rig.home.late = true;
    rig.push(1, (0, 1), 0, 1.0);
    let before = (format!("{:?}", rig.shard), rig.home.clone());
    let refused = rig.shard.take(judged, &mut rig.home);
    assert!(matches!(refused, Err(SubmissionRefused::BadLoad { .. })), "{refused:?}");
    assert_eq!((format!("{:?}", rig.shard), rig.home.clone()), before, "C-5");
}

#[test]
fn factors_are_no_contribution_in_shared_memory_nor_is_what_only_a_proxy_understands() {
    let mut rig = Rig::new(1, 1, Bsp);
    let factor = Submission::Factor { tensor: W, rank: 1, at: 0 };
    let (settings, rank) = (Settings([0.5, 0.0, 0.0, 0.0, 0.0]), 1);
    let product = Submission::PushProduct { tensor: W, first: 0, count: 1, stamp: 0, settings, rank };
    for submission in [factor, product] {
        assert_eq!(rig.refuse(0, submission), SubmissionRefused::Factors { tensor: W });
    }
    let refused = rig.shard.judge(PeerId::worker(0), &product).unwrap_err();
    assert_eq!(refused, SubmissionRefused::Factors { tensor: W });
    let unknown = Submission::Factor { tensor: 9, rank: 1, at: 0 };
    let refused = rig.shard.judge(PeerId::worker(0), &unknown).unwrap_err();
    assert_eq!(refused, SubmissionRefused::UnknownTensor { got: 9 });
}

/// A rule that ignores zeros: the settings of `pushed`.
fn skipped(first: u32, count: u32, stamp: u64) -> Submission {
    Submission::Skip { tensor: W, first, count, stamp, settings: Settings([0.5, 0.0, 0.0, 0.0, 0.0]) }
}

#[test]
fn what_a_worker_skips_counts_as_contributed_and_is_folded_by_nobody() {
    let mut rig = Rig::new(2, 3, Bsp);
    rig.push(0, (0, 1), 0, 1.0);
    rig.submit(0, skipped(1, 2, 0));
    assert_eq!(rig.home.folded.get(&(W, 0)), None, "as a push, until all have come");
    rig.push(1, (1, 1), 0, 10.0);
    rig.submit(1, skipped(0, 1, 0));
    rig.submit(1, skipped(2, 1, 0));
    // The clocks have not moved: each worker may look at the result before.
    assert_eq!(
        [0, 1].map(|chunk| rig.chunk(chunk)),
        [1.0, 10.0].map(|value| Published { version: 1, steps: 1, value })
    );
    assert_eq!(rig.chunk(2), Published { version: 1, steps: 1, value: 0.0 }, "a step, as by zeros");
    assert_eq!((rig.folds(), rig.progress()), (vec![vec![1], vec![0]], Some(1)));
    assert_eq!(rig.home.folded, BTreeMap::from([((W, 0), 3), ((W, 1), 3)]));
    // Again: once is enough.
    for rank in [0, 1] {
        rig.submit(rank, skipped(0, 3, 0));
        rig.clock(rank, 1);
    }
    assert_eq!((rig.folds().len(), rig.progress(), rig.chunk(2).steps), (2, Some(1), 1));
    assert_eq!(rig.home.folded, BTreeMap::from([((W, 0), 3), ((W, 1), 3)]));
}

#[test]
fn out_of_step_a_skip_moves_the_version_and_the_count_of_steps_and_is_no_fold() {
    for consistency in [Ssp(2), Asp] {
        let mut rig = Rig::new(2, 1, consistency);
        rig.submit(0, skipped(0, 1, 0));
        assert_eq!(rig.chunk(0), Published { version: 0, steps: 1, value: 0.0 }, "worker 1 is not there");
        rig.clock(0, 1);
        rig.submit(0, skipped(0, 1, 1));
        assert_eq!(rig.chunk(0), Published { version: 0, steps: 2, value: 0.0 });
        assert_eq!(rig.home.folded, BTreeMap::from([((W, 0), 2)]), "{consistency}");
        rig.push(1, (0, 1), 0, 4.0);
        assert_eq!(rig.chunk(0), Published { version: 1, steps: 3, value: 4.0 }, "{consistency}");
        assert_eq!(rig.folds(), [[1]]);
        rig.clock(1, 1);
        rig.submit(1, skipped(0, 1, 1));
        assert_eq!(rig.chunk(0), Published { version: 2, steps: 4, value: 4.0 }, "{consistency}");
    }
}

#[test]
fn a_mean_is_over_those_that_skipped_too_and_one_that_is_lost_has_skipped_for_good() {
    let mut rig = Rig::with(2, TensorSpec { reduce: Reduce::Mean, ..spec(Bsp) }, 2, vec![0, 1]);
    rig.push(0, (0, 1), 0, 8.0);
    rig.submit(0, skipped(1, 1, 0));
    rig.submit(1, skipped(0, 1, 0));
    assert_eq!(rig.chunk(0).value, 4.0);
    rig.remove(1);
    assert_eq!(rig.chunk(1), Published { version: 1, steps: 1, value: 0.0 });
    rig.clock(0, 1);
    rig.push(0, (0, 2), 1, 8.0);
    assert_eq!([0, 1].map(|chunk| rig.chunk(chunk).value), [12.0, 8.0], "alone");
}

#[test]
fn what_is_skipped_where_zeros_count_or_out_of_its_iteration_is_refused() {
    let rule = Rule::Sgd { momentum: true, nesterov: false, maximize: false };
    let mut rig = Rig::with(2, TensorSpec { rule, ..spec(Bsp) }, 1, vec![0]);
    let skip =
        |settings| Submission::Skip { tensor: W, first: 0, count: 1, stamp: 0, settings: Settings(settings) };
    let refused = rig.refuse(0, skip([0.5, 0.9, 0.0, 0.0, 0.0])).to_string();
    assert_eq!(
        refused,
        "it skipped chunks of `w`, whose optimizer makes something of zeros: SGD with momentum"
    );
    rig.refuse(0, skip([0.5, 0.0, 0.0, 0.1, 0.0]));
    rig.refuse(0, skipped(0, 2, 0));
    rig.refuse(0, skipped(0, 1, 1));
    rig.submit(0, skip([0.5, 0.0, 0.0, 0.0, 0.0]));
    let conflict = rig.refuse(1, skip([0.25, 0.0, 0.0, 0.0, 0.0]));
    assert!(
        matches!(conflict, SubmissionRefused::Failure(JobFailure::SettingsConflict { .. })),
        "{conflict}"
    );
}

// The next contribution took the place of the one that was skipped, and a step was lost.
#[test]
fn a_skip_is_a_step_whoever_moves_the_version_and_whenever() {
    for last in ["a clock", "a loss"] {
        let mut rig = Rig::new(2, 1, Bsp);
        rig.submit(0, skipped(0, 1, 0));
        rig.clock(0, 1);
        let pending = rig.refuse(0, skipped(0, 1, 1)).to_string();
        assert!(pending.contains("before its update of iteration 0 was folded"), "{pending}");
        match last {
            "a clock" => rig.clock(1, 5),
            _ => rig.remove(1),
        }
        assert_eq!(rig.chunk(0), Published { version: 1, steps: 1, value: 0.0 }, "{last}");
        assert_eq!(rig.home.folded, BTreeMap::from([((W, 0), 1)]));
        rig.submit(0, skipped(0, 1, 1));
        assert_eq!(rig.chunk(0), Published { version: 2, steps: 2, value: 0.0 }, "{last}");
        rig.clock(0, 2);
        rig.push(0, (0, 1), 2, 4.0);
        assert_eq!(rig.chunk(0), Published { version: 3, steps: 3, value: 4.0 }, "{last}");
    }
}
