//! Hundreds of whole jobs, each from one seed. A seed that ever failed becomes a test of its own, with its reason.

use penstock_proto::consistency::Consistency;
use penstock_proto::error::JobFailure;
use penstock_sim::checkers::bits;
use penstock_sim::faults::{Fate, OnLoss};
use penstock_sim::history::{Observation, Tally};
use penstock_sim::workload::Workload;
use penstock_sim::{Outcome, Scenario};

fn check(scenario: &Scenario) -> Outcome {
    scenario.check().unwrap_or_else(|failure| panic!("seed {}: {failure}", scenario.seed))
}

#[test]
fn every_seed_keeps_every_promise() {
    let mut tally = Tally::default();
    for seed in 0..800 {
        tally.merge(&check(&Scenario::from_seed(seed)).tally);
    }
    // A simulation that never met a fault proves nothing.
    for (event, least) in [
        ("cut", 2000),
        ("connect", 5000),
        ("commit", 500),
        ("crash", 100),
        ("turn", 50),
        ("refuse", 50),
        ("read", 5000),
        ("ask", 5000),
        ("want", 1000),
        ("state", 1000),
        ("join", 2000),
        ("pass", 2000),
        ("vain", 500),
    ] {
        assert!(tally.of(event) >= least, "{event} happened {} times: {tally}", tally.of(event));
    }
}

#[test]
fn a_seed_gives_the_same_run_line_by_line() {
    let lines = |seed| {
        let mut lines = Vec::new();
        let scenario = Scenario::from_seed(seed);
        let mut log = |at: u64, observation: &Observation<'_>| lines.push(format!("{at} {observation}"));
        scenario.check_logged(Some(&mut log)).unwrap();
        lines
    };
    for seed in 0..24 {
        assert_eq!(lines(seed), lines(seed), "seed {seed}");
    }
    assert_ne!(lines(0), lines(1));
}

#[test]
fn equal_inputs_give_equal_bits_whatever_the_links_chunk_sizes_servers_and_shards() {
    let mut shapes = std::collections::BTreeSet::new();
    for workload in 0..12 {
        let workers = 2 + workload as u32 % 4;
        let run = |seed| {
            let workload = Workload::descent(workload, workers, Some(Consistency::Bsp));
            Scenario::reproducible(seed, workload)
        };
        let first = check(&run(0));
        assert!(!first.reads.is_empty());
        for seed in 1..12 {
            let scenario = run(seed);
            let shape = scenario.topology;
            shapes.insert((shape.servers, shape.shards, shape.chunk_bytes));
            bits::same(&check(&scenario), &first)
                .unwrap_or_else(|what| panic!("workload {workload}, seed {seed}: {what}"));
        }
    }
    assert!(shapes.len() > 8, "{shapes:?}");
}

#[test]
fn with_one_worker_any_consistency_gives_what_one_process_computes() {
    for workload in 0..10 {
        for consistency in [Consistency::Bsp, Consistency::Ssp(2), Consistency::Asp] {
            for seed in 0..4 {
                let workload = Workload::descent(workload, 1, Some(consistency));
                let alone = workload.alone();
                let outcome = check(&Scenario::reproducible(seed, workload));
                bits::agrees(&outcome.values, &alone).unwrap();
            }
        }
    }
}

/// A synchronous marked job of at least three workers who stay, in which nothing goes wrong yet.
fn job_of_three() -> Scenario {
    let seeds = (0..).map(|seed| Scenario::reproducible(seed, Workload::marked(seed)));
    let fits = |scenario: &Scenario| {
        let workload = &scenario.workload;
        let stay = workload.leaves_at.iter().all(|&at| at == workload.iterations);
        let together = workload.ids().any(|id| workload.spec(id).consistency.folds_together());
        workload.workers() == 3 && stay && together && workload.tensors.len() > 1
    };
    seeds.into_iter().find(fits).unwrap()
}

#[test]
fn a_worker_may_die_after_any_step_and_the_others_come_to_their_end() {
    let mut ends = 0;
    for after in 0..150 {
        let mut scenario = job_of_three();
        scenario.faults.fates[1] = Fate::Crash { after };
        let outcome = check(&scenario);
        assert_eq!(outcome.failure, None);
        ends += outcome.tally.of("crash");
    }
    assert!(ends > 50, "it died {ends} times before its end");
}

#[test]
fn a_loss_ends_the_job_for_all_where_it_is_to_stop_and_names_the_lost() {
    for after in [0, 3, 10, 30] {
        let mut scenario = job_of_three();
        scenario.faults.on_loss = OnLoss::Stop;
        scenario.faults.fates[2] = Fate::Crash { after };
        let failure = check(&scenario).failure;
        assert!(matches!(failure, Some(JobFailure::WorkerLost { rank: 2, .. })), "{failure:?}");
    }
}

#[test]
fn a_job_whose_value_can_never_come_ends_naming_worker_0() {
    let mut scenario = job_of_three();
    scenario.faults.fates[0] = Fate::Crash { after: 0 };
    let failure = check(&scenario).failure;
    assert!(matches!(failure, Some(JobFailure::NoValue { .. })), "{failure:?}");
}

#[test]
fn a_worker_that_writes_arbitrary_words_is_removed_and_harms_no_other() {
    let mut refused = 0;
    for seed in 0..60 {
        let mut scenario = Scenario { seed, ..job_of_three() };
        scenario.faults.fates[1] = Fate::Hostile { after: seed };
        scenario.faults.remote[1] = false;
        let outcome = check(&scenario);
        assert_eq!(outcome.failure, None);
        refused += outcome.tally.of("refuse");
    }
    assert!(refused > 30, "it was refused {refused} times");
}

#[test]
fn a_nan_ends_the_job_and_names_who_contributed_it() {
    let mut named = 0;
    for seed in 0..20 {
        let mut scenario = Scenario { seed, ..job_of_three() };
        scenario.faults.fates[2] = Fate::Poison { iteration: 1 };
        match check(&scenario).failure {
            None => {} // it pushed nothing in that iteration
            Some(failure) => {
                assert!(matches!(failure, JobFailure::NonFinite { rank: 2, .. }), "{failure}");
                named += 1;
            }
        }
    }
    assert!(named > 0);
}
