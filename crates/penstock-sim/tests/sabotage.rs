//! A checker that never fails proves nothing: here each promise is broken on purpose, and the checker that watches over it
//! has to say so.

use penstock_sim::memory::Sabotage;
use penstock_sim::{Failure, Scenario};
use std::collections::BTreeMap;

/// Which checkers saw it, how often, in `seeds` seeds.
fn seen(sabotage: Sabotage, seeds: u64) -> BTreeMap<&'static str, u64> {
    let mut seen = BTreeMap::new();
    for seed in 0..seeds {
        let by = match Scenario::from_seed(seed).sabotaged(sabotage).check() {
            Ok(_) => "nobody",
            Err(Failure::Violation { checker, .. }) => checker,
            Err(Failure::Stuck { .. }) => "liveness",
            Err(failure) => panic!("seed {seed}: {failure}"),
        };
        *seen.entry(by).or_default() += 1;
    }
    seen
}

fn is_seen_by(sabotage: Sabotage, checker: &str, least: u64) {
    let seen = seen(sabotage, 160);
    assert!(seen.get(checker).is_some_and(|&count| count >= least), "{sabotage:?} was seen by {seen:?}");
}

#[test]
fn a_fold_that_is_taken_twice_is_seen() {
    is_seen_by(Sabotage::FoldsTwice, "exactly once", 20);
}

#[test]
fn a_contribution_left_out_of_a_fold_is_seen() {
    is_seen_by(Sabotage::LosesAnUpdate, "exactly once", 20);
}

#[test]
fn a_sum_out_of_rank_order_is_seen() {
    is_seen_by(Sabotage::FoldsInAnyOrder, "bits", 10);
}

#[test]
fn a_torn_chunk_is_seen() {
    is_seen_by(Sabotage::TearsAChunk, "atomicity", 40);
}

#[test]
fn a_mirror_that_lags_behind_what_was_promised_is_seen() {
    is_seen_by(Sabotage::KeepsTheOldMirror, "staleness", 20);
}

#[test]
fn a_version_published_before_its_updates_is_seen() {
    is_seen_by(Sabotage::PublishesTooEarly, "exactly once", 5);
    is_seen_by(Sabotage::PublishesTooEarly, "staleness", 40);
}

#[test]
fn a_home_that_does_not_say_how_far_it_came_is_seen() {
    is_seen_by(Sabotage::KeepsSilent, "liveness", 60);
}
