//! A checker that never fails proves nothing: here each promise is broken on purpose, and the checker that watches over
//! it has to say so.

use penstock_proto::items::Propagation;
use penstock_sim::sabotage::Sabotage;
use penstock_sim::{Failure, Scenario, items, leases};
use std::collections::BTreeMap;

/// Which checkers saw it, how often, in `seeds` seeds.
fn seen(sabotage: Sabotage, of_seed: fn(u64) -> Scenario, seeds: u64) -> BTreeMap<&'static str, u64> {
    let mut seen = BTreeMap::new();
    for seed in 0..seeds {
        let by = match of_seed(seed).sabotaged(sabotage).check() {
            Ok(_) => "nobody",
            Err(Failure::Violation { checker, .. }) => checker,
            Err(Failure::Stuck { .. } | Failure::Endless { .. }) => "liveness",
            Err(Failure::Broke { .. }) => "protocol",
            Err(failure) => panic!("seed {seed}: {failure}"),
        };
        *seen.entry(by).or_default() += 1;
    }
    seen
}

fn is_seen_by(sabotage: Sabotage, checker: &str, least: u64) {
    let seen = seen(sabotage, Scenario::from_seed, 240);
    assert!(seen.get(checker).is_some_and(|&count| count >= least), "{sabotage:?} was seen by {seen:?}");
}

/// Likewise, in jobs in which workers are suspended.
fn is_seen_of_leases(sabotage: Sabotage, least: u64) {
    let seen = seen(sabotage, Scenario::suspended, 240);
    assert!(seen.get("losses").is_some_and(|&count| count >= least), "{sabotage:?} was seen by {seen:?}");
}

/// Likewise, in jobs in which workers feed each other.
fn is_seen_of_trees(sabotage: Sabotage, checker: &str, least: u64) {
    let seen = seen(sabotage, Scenario::with_trees, 240);
    assert!(seen.get(checker).is_some_and(|&count| count >= least), "{sabotage:?} was seen by {seen:?}");
}

/// Likewise, in jobs in which updates are sent.
fn is_seen_of_updates(sabotage: Sabotage, checker: &str, least: u64) {
    let seen = seen(sabotage, Scenario::with_updates, 240);
    assert!(seen.get(checker).is_some_and(|&count| count >= least), "{sabotage:?} was seen by {seen:?}");
}

/// U-1.
#[test]
fn an_update_that_is_folded_twice_or_not_at_all_is_seen() {
    is_seen_of_updates(Sabotage::AppliesUpdatesTwice, "asked for", 40);
    is_seen_of_updates(Sabotage::SkipsUpdates, "asked for", 40);
}

/// U-1.
#[test]
fn an_update_that_is_folded_with_another_state_than_the_home_s_is_seen() {
    is_seen_of_updates(Sabotage::KeepsTheOldState, "asked for", 5);
}

/// U-1.
#[test]
fn an_update_of_something_that_is_not_held_is_refused() {
    is_seen_of_updates(Sabotage::SendsUpdatesToAnyone, "protocol", 40);
}

/// S-5.
#[test]
fn what_a_worker_passes_on_to_nobody_and_nobody_misses_is_seen() {
    is_seen_of_trees(Sabotage::LosesWhatIsPassedOn, "asked for", 8);
}

#[test]
fn what_a_worker_has_changed_and_others_believe_is_seen() {
    is_seen_of_trees(Sabotage::BelievesAnySeal, "asked for", 25);
}

/// E-1.
#[test]
fn a_home_that_believes_of_who_has_left_its_parents_that_it_holds_all_is_seen() {
    is_seen_of_trees(Sabotage::TrustsPositions, "asked for", 8);
    is_seen_of_trees(Sabotage::TrustsPositions, "protocol", 2);
}

/// S-5.
#[test]
fn a_home_that_does_not_feed_who_has_left_its_parents_is_seen() {
    is_seen_of_trees(Sabotage::ForgetsWhoStrayed, "asked for", 6);
}

/// Likewise, in these words.
fn is_said_by(sabotage: Sabotage, checker: &str, words: &str, least: usize) {
    let check = |seed| Scenario::from_seed(seed).sabotaged(sabotage).check().err();
    let said: Vec<String> = (0..240).filter_map(check).map(|failure| failure.to_string()).collect();
    let count = said.iter().filter(|said| said.starts_with(checker) && said.contains(words)).count();
    assert!(count >= least, "{sabotage:?} was seen {count} times as {words:?}: {said:#?}");
}

#[test]
fn who_is_lost_in_a_job_before_its_lease_is_over_is_seen() {
    is_seen_of_leases(Sabotage::IsImpatient, 40);
}

#[test]
fn a_shard_that_waits_for_who_is_lost_is_seen() {
    is_seen_of_leases(Sabotage::KeepsTheLost, 40);
}

#[test]
fn a_control_connection_in_a_job_that_is_silent_and_kept_is_seen() {
    is_seen_of_leases(Sabotage::KeepsSilentConnections, 10);
}

/// Likewise, in these words.
fn is_said_of_leases(sabotage: Sabotage, words: &str, least: usize) {
    let check = |seed| Scenario::suspended(seed).sabotaged(sabotage).check().err();
    let said: Vec<String> = (0..240).filter_map(check).map(|failure| failure.to_string()).collect();
    let count = said.iter().filter(|said| said.starts_with("losses") && said.contains(words)).count();
    assert!(count >= least, "{sabotage:?} was seen {count} times as {words:?}: {said:#?}");
}

#[test]
fn a_server_that_takes_nobody_in_a_job_for_lost_is_seen() {
    is_said_of_leases(Sabotage::LosesNobody, "and is not lost", 40);
}

#[test]
fn a_worker_that_takes_a_server_that_runs_for_lost_is_seen() {
    is_said_of_leases(Sabotage::IsDeaf, "takes the server for lost, which runs", 40);
}

/// U-2.
#[test]
fn an_update_that_is_multiplied_with_another_right_factor_than_the_home_s_is_seen() {
    is_seen_of_updates(Sabotage::SendsAnotherFactor, "asked for", 5);
}

#[test]
fn a_left_factor_with_the_right_one_of_another_push_is_seen() {
    is_seen_by(Sabotage::SendsTheLastFactor, "carried", 20);
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
fn a_version_ahead_of_its_synchronous_reader_is_seen() {
    is_said_by(Sabotage::PublishesTooEarly, "staleness", "which no synchronous reader may see yet", 20);
}

#[test]
fn a_version_that_falls_at_its_home_is_seen() {
    is_said_by(Sabotage::FallsBack, "staleness", " went from version ", 20);
}

/// Out of step: there a version holds more than it has to.
#[test]
fn an_update_that_goes_out_of_a_value_again_is_seen() {
    is_said_by(Sabotage::UndoesAFold, "exactly once", " went out of ", 3);
}

#[test]
fn who_is_told_that_a_barrier_was_in_vain_which_others_have_passed_is_seen() {
    is_said_by(Sabotage::ForgetsWhoStood, "membership", " was in vain, which worker ", 10);
}

#[test]
fn a_home_that_does_not_say_how_far_it_came_is_seen() {
    is_seen_by(Sabotage::KeepsSilent, "liveness", 60);
}

#[test]
fn a_subscriber_that_forgets_which_results_are_wanted_is_seen() {
    is_seen_by(Sabotage::ForgetsWhatIsWanted, "asked for", 40);
}

#[test]
fn a_fetch_that_is_not_made_again_is_seen() {
    is_seen_by(Sabotage::DoesNotFetchAgain, "asked for", 20);
}

#[test]
fn a_ticket_that_is_returned_too_early_is_seen() {
    is_seen_by(Sabotage::ReturnsTicketsTooEarly, "asked for", 60);
}

#[test]
fn values_that_are_left_out_of_what_was_asked_for_are_seen() {
    is_seen_by(Sabotage::LosesNotices, "asked for", 60);
}

#[test]
fn a_payload_that_is_flipped_behind_its_checksum_and_believed_is_seen() {
    is_seen_by(Sabotage::BelievesDamagedFrames, "asked for", 40);
    // Before it is folded: sums and bits are not reached any more.
    is_seen_by(Sabotage::BelievesDamagedFrames, "carried", 20);
}

/// E-1.
#[test]
fn a_home_that_decodes_by_another_encoding_than_was_agreed_to_is_seen() {
    is_seen_by(Sabotage::DecodesByAnother, "carried", 40);
    is_seen_by(Sabotage::DecodesByAnother, "asked for", 15);
}

/// E-1.
#[test]
fn a_difference_against_what_its_receivers_do_not_hold_is_seen() {
    // An element that is sent is assigned, whatever stood there: sparse, this shows in what is not sent alone.
    is_seen_by(Sabotage::MistakesTheShadow, "asked for", 25);
}

#[test]
fn what_a_filter_holds_back_and_is_sent_all_the_same_is_seen() {
    is_seen_by(Sabotage::LeaksThroughTheFilter, "asked for", 5);
}

#[test]
fn what_a_filter_holds_back_and_is_seen_on_the_home_s_host_all_the_same_is_seen() {
    is_seen_by(Sabotage::ShowsWhatIsHeldBack, "atomicity", 5);
}

#[test]
fn what_is_not_final_and_is_seen_all_the_same_is_seen() {
    is_said_by(Sabotage::ShowsWhatIsNotFinal, "atomicity", "was shown as two values", 5);
}

#[test]
fn a_value_that_is_taken_for_one_that_was_sent_is_seen() {
    is_said_by(Sabotage::RaisesWhatHasChanged, "asked for", "with a value that it never had", 20);
}

/// S-5.
#[test]
fn a_home_that_does_not_broadcast_what_it_should_is_seen() {
    is_said_by(Sabotage::ForgetsToBroadcast, "asked for", "which broadcasts it", 3);
}

#[test]
fn a_barrier_that_opens_early_is_seen() {
    is_seen_by(Sabotage::OpensBarriersEarly, "membership", 60);
}

#[test]
fn a_request_that_is_carried_out_twice_is_seen() {
    is_seen_by(Sabotage::ForgetsAnswers, "membership", 2);
}

#[test]
fn a_request_that_is_open_and_taken_for_settled_is_seen() {
    is_seen_by(Sabotage::SettlesWhatIsOpen, "liveness", 2);
}

#[test]
fn who_has_left_before_its_shards_let_it_go_is_seen() {
    is_seen_by(Sabotage::LetsGoAtOnce, "membership", 40);
}

#[test]
fn what_was_read_ahead_and_is_not_looked_at_is_seen() {
    is_seen_by(Sabotage::ForgetsWhatItHasRead, "asked for", 20);
}

#[test]
fn what_was_read_ahead_and_is_dropped_is_seen() {
    is_seen_by(Sabotage::DropsWhatItHasRead, "asked for", 15);
    is_seen_by(Sabotage::DropsWhatItHasRead, "protocol", 5);
}

#[test]
fn a_connection_that_has_ended_and_is_kept_is_seen_at_either_end() {
    is_said_by(Sabotage::KeepsEndedConnections, "protocol", "was not given up", 60);
}

/// The checker sees it in some jobs in which workers pull some chunks alone, in these words.
fn is_said_of_some_chunks(sabotage: Sabotage, words: &str, least: usize) {
    let check = |seed: u64| Scenario::from_seed(16 * seed + 1).sabotaged(sabotage).check().err();
    let said: Vec<String> = (0..120).filter_map(check).map(|failure| failure.to_string()).collect();
    let count = said.iter().filter(|said| said.starts_with("asked for") && said.contains(words)).count();
    assert!(count >= least, "{sabotage:?} was seen {count} times as {words:?}: {said:#?}");
}

#[test]
fn a_home_that_sends_all_to_who_asks_for_some_is_seen() {
    is_said_of_some_chunks(Sabotage::SendsAllForSome, "which has not asked for it", 10);
}

#[test]
fn a_home_that_leaves_out_some_of_the_chunks_that_are_asked_for_is_seen() {
    is_said_of_some_chunks(Sabotage::SendsOneForSome, "which lacks publication", 3);
}

/// Jobs with a tensor that is loaded again and again.
fn with_loads(seed: u64) -> Scenario {
    Scenario::from_seed(8 * seed + 3)
}

/// The checker of loads sees it in some of the first `seeds` of these, in these words.
fn is_seen_of_loads(sabotage: Sabotage, seeds: u64, words: &str, least: usize) {
    let check = |seed| with_loads(seed).sabotaged(sabotage).check().err();
    let said: Vec<String> = (0..seeds).filter_map(check).map(|failure| failure.to_string()).collect();
    let count = said.iter().filter(|said| said.starts_with("loads") && said.contains(words)).count();
    assert!(count >= least, "{sabotage:?} was seen {count} times as {words:?}: {said:#?}");
}

#[test]
fn a_load_that_returns_before_its_chunks_are_taken_is_seen() {
    is_seen_of_loads(Sabotage::AnnouncesLoadsTooEarly, 300, "", 5);
}

#[test]
fn a_chunk_of_a_load_that_is_lost_is_seen() {
    is_seen_of_loads(Sabotage::LosesChunksOfLoads, 120, "behind its own load", 20);
    is_seen_of_loads(Sabotage::LosesChunksOfLoads, 400, "behind a barrier that followed", 2);
}

#[test]
fn half_a_chunk_of_a_load_is_seen() {
    is_seen_of_loads(Sabotage::HalvesLoads, 120, "what no load has written", 40);
}

#[test]
fn a_load_that_goes_out_of_a_value_again_is_seen() {
    is_seen_of_loads(Sabotage::BringsBackLoads, 120, "fell from load", 20);
}

#[test]
fn who_reads_an_older_load_behind_a_barrier_is_seen() {
    is_seen_of_loads(Sabotage::ForgetsBarriers, 120, "behind a barrier that followed", 5);
}

#[test]
fn a_loader_that_reads_an_older_load_than_its_own_is_seen() {
    is_seen_of_loads(Sabotage::ForgetsOwnLoads, 120, "behind its own load", 5);
}

/// The checker of tables sees it in some of these seeds, in these words.
fn is_seen_in_tables(sabotage: items::Sabotage, seeds: u64, words: &str, least: usize) {
    is_seen_in(items::Scenario::from_seed, sabotage, seeds, words, least);
}

/// Workers that meet often and may read what is old, over links that take their time, with rows that are sent as they are set.
fn slow(seed: u64) -> items::Scenario {
    let mut scenario = items::Scenario::from_seed(seed);
    (scenario.propagation, scenario.barriers) = (Propagation::Eager, 2);
    scenario.workers.iter_mut().for_each(|plan| (plan.slack, plan.near) = (8, false));
    (scenario.links.window, scenario.links.takes) = (4, 2_000);
    scenario
}

/// Likewise, in such scenarios.
fn is_seen_in(
    of_seed: fn(u64) -> items::Scenario,
    sabotage: items::Sabotage,
    seeds: u64,
    words: &str,
    least: usize,
) {
    let check = |seed| of_seed(seed).sabotaged(sabotage).check().err();
    let said: Vec<String> = (0..seeds).filter_map(check).collect();
    let count = said.iter().filter(|said| said.contains(words)).count();
    assert!(count >= least, "{sabotage:?} was seen {count} times as {words:?}: {said:#?}");
}

#[test]
fn rows_that_are_left_out_are_seen() {
    is_seen_in_tables(items::Sabotage::LosesRows, 120, "were never like this", 5);
    is_seen_in_tables(items::Sabotage::LosesRows, 40, "is stuck", 5);
}

#[test]
fn rows_that_the_change_log_could_not_list_and_that_are_forgotten_are_seen() {
    is_seen_in_tables(items::Sabotage::ForgetsTheUnlisted, 240, "were never like this", 5);
}

#[test]
fn what_changed_while_a_batch_was_overtaken_is_not_forgotten() {
    is_seen_in_tables(items::Sabotage::ForgetsWhatChangedMeanwhile, 240, "were never like this", 2);
}

#[test]
fn a_torn_row_is_seen() {
    is_seen_in_tables(items::Sabotage::TearsRows, 120, "is torn", 30);
}

#[test]
fn a_row_that_falls_back_is_seen() {
    is_seen_in_tables(items::Sabotage::FallsBack, 120, "fell from set", 5);
}

#[test]
fn half_a_set_is_seen() {
    is_seen_in_tables(items::Sabotage::SplitsSets, 400, "were never like this", 2);
}

#[test]
fn a_set_that_comes_in_and_is_shown_by_halves_is_seen() {
    is_seen_in_tables(
        items::Sabotage::ShowsHalfSets,
        120,
        "while rows came in: rows were never like this",
        5,
    );
}

#[test]
fn a_version_that_is_promised_too_early_is_seen() {
    is_seen_in_tables(items::Sabotage::PromisesTooMuch, 120, "older than version", 20);
}

#[test]
fn a_change_log_that_keeps_silent_is_seen() {
    is_seen_in_tables(items::Sabotage::KeepsSilent, 120, "older than version", 9);
}

#[test]
fn a_question_that_nobody_waits_for_and_that_is_kept_is_seen() {
    is_seen_in_tables(items::Sabotage::KeepsQuestions, 240, "questions that nobody waits for", 10);
}

/// N-6.
#[test]
fn rows_that_are_said_to_be_brought_and_are_not_are_seen() {
    is_seen_in(slow, items::Sabotage::BringsNothing, 120, "before a barrier that was passed", 5);
}

/// N-6.
#[test]
fn who_stands_at_a_barrier_before_its_rows_are_at_the_home_is_seen() {
    is_seen_in(slow, items::Sabotage::StandsUnflushed, 120, "before a barrier that was passed", 20);
}

/// The checker of leases sees it in some of these seeds, in these words.
fn is_seen_in_leases(sabotage: leases::Sabotage, words: &str, least: usize) {
    let check = |seed| leases::Scenario::from_seed(seed).sabotaged(sabotage).check().err();
    let said: Vec<String> = (0..300).filter_map(check).collect();
    let count = said.iter().filter(|said| said.contains(words)).count();
    assert!(count >= least, "{sabotage:?} was seen {count} times as {words:?}: {said:#?}");
}

#[test]
fn who_wakes_and_takes_others_for_lost_at_once_is_seen() {
    is_seen_in_leases(leases::Sabotage::CountsSuspension, "in which who says it ran", 10);
}

#[test]
fn who_takes_others_for_lost_before_the_lease_is_over_is_seen() {
    is_seen_in_leases(leases::Sabotage::IsImpatient, "after a sign of life", 20);
}

#[test]
fn a_server_that_takes_nobody_for_lost_is_seen() {
    is_seen_in_leases(leases::Sabotage::NeverJudges, "and nobody is lost", 50);
}

#[test]
fn a_lost_worker_that_is_heard_is_seen() {
    is_seen_in_leases(leases::Sabotage::HearsTheLost, "was lost, and contributes", 5);
}

#[test]
fn a_silent_connection_that_is_not_made_again_is_seen() {
    is_seen_in_leases(leases::Sabotage::KeepsSilentConnections, "was not made again", 20);
}

/// N-3.
#[test]
fn a_row_that_is_older_than_its_fetch_asks_for_is_seen() {
    is_seen_in_tables(items::Sabotage::AnswersTooEarly, 160, "which asks for", 20);
}

/// N-4.
#[test]
fn a_row_that_nobody_needs_is_seen() {
    is_seen_in_tables(items::Sabotage::SendsUnneeded, 120, "are needed", 10);
}

/// N-3, N-4.
#[test]
fn rows_that_are_sent_once_more_than_they_are_asked_for_are_seen() {
    is_seen_in_tables(items::Sabotage::SendsAgain, 120, "which is not open", 10);
    is_seen_in_tables(items::Sabotage::SendsAgain, 120, "are needed", 10);
}

/// N-3.
#[test]
fn rows_that_nobody_fetched_are_seen() {
    is_seen_in_tables(items::Sabotage::ForgetsTickets, 120, "which nobody fetched", 10);
}

/// N-3.
#[test]
fn an_answer_that_lacks_rows_is_seen() {
    is_seen_in_tables(items::Sabotage::AnswersInPart, 120, "N-3: the answer to fetch", 10);
}

/// N-3.
#[test]
fn an_answer_with_more_rows_than_were_asked_for_is_seen() {
    is_seen_in_tables(items::Sabotage::AnswersTooMuch, 120, "which it did not ask for", 10);
}

/// N-3.
#[test]
fn an_answer_that_nobody_waits_for_any_more_is_seen() {
    is_seen_in_tables(items::Sabotage::IgnoresWithdrawals, 240, "which was withdrawn", 10);
}

#[test]
fn rows_of_a_subscription_that_was_replaced_are_seen() {
    is_seen_in_tables(items::Sabotage::IgnoresResubscriptions, 120, "of a subscription that was replaced", 5);
}

/// N-5.
#[test]
fn rows_that_nobody_subscribed_to_on_a_new_connection_are_seen() {
    is_seen_in_tables(items::Sabotage::MistakesConnections, 240, "that nobody subscribed to", 5);
}
