//! How long a value takes along trees, over links with rates: the numbers that docs/trees.md has, for fewer hosts.

use penstock_proto::overlay::Shape;
use penstock_sim::rates::{Failure, Outcome, Rates, Scenario, Trouble, Unlike};

fn shape(text: &str) -> Shape {
    text.parse().unwrap()
}

fn run(hosts: u32, text: &str) -> Outcome {
    Scenario::new(hosts, shape(text)).run().unwrap()
}

/// Of the last version: transfers of one link until all hold it, and what the busiest uplink sent.
fn last(outcome: &Outcome) -> (f64, f64) {
    let held = outcome.held.last().unwrap();
    (held.ratio, held.busiest)
}

#[test]
fn a_star_takes_as_many_transfers_as_there_are_hosts() {
    for hosts in [1, 4, 9] {
        let (ratio, busiest) = last(&run(hosts, "star"));
        let hosts = f64::from(hosts);
        assert!(
            (ratio / hosts - 1.0).abs() < 0.02 && (busiest / hosts - 1.0).abs() < 0.01,
            "{ratio} {busiest}"
        );
    }
}

#[test]
fn chains_and_stripes_take_little_more_than_one_transfer_whatever_is_sent_to_how_many() {
    for hosts in [4, 8, 15] {
        for text in ["chain", "striped"] {
            let (ratio, busiest) = last(&run(hosts, text));
            assert!((1.0..1.1).contains(&ratio), "{hosts} hosts, {text}: {ratio}");
            assert!((1.0..1.1).contains(&busiest), "{hosts} hosts, {text}: {busiest}");
        }
    }
}

// Stripes of different shares come from the home at one rate as long as all of them do, so that the larger ones come late.
#[test]
fn stripes_that_do_not_divide_the_hosts_take_a_little_longer_than_planned() {
    for (hosts, text) in [(4, "striped:3"), (8, "striped:3"), (5, "striped:4")] {
        let (ratio, busiest) = last(&run(hosts, text));
        assert!((1.0..1.25).contains(&ratio) && busiest < 1.1, "{hosts} hosts, {text}: {ratio} {busiest}");
    }
}

#[test]
fn what_workers_push_takes_its_part_of_their_uplinks() {
    let scenario = Scenario::new(6, Shape::Chain);
    let plain = last(&scenario.run().unwrap()).0;
    let pushed = Scenario { push: scenario.bytes / 10, ..scenario }.run().unwrap();
    assert!((last(&pushed).0 - plain - 0.1).abs() < 0.02, "{plain} {pushed:?}");
}

#[test]
fn a_chain_is_as_long_as_it_has_hosts_and_stripes_are_not() {
    let ratio = |text| last(&run(200, text)).0;
    // A block for each host: 256 are a transfer.
    assert!((ratio("chain") - (1.0 + 199.0 / 256.0)).abs() < 0.05);
    assert!(ratio("striped") < 1.25);
}

#[test]
fn a_thousand_hosts_have_a_value_in_little_more_than_one_transfer() {
    let scenario = Scenario { versions: 1, ..Scenario::new(1000, shape("striped")) };
    let (ratio, busiest) = last(&scenario.run().unwrap());
    assert!((1.0..1.25).contains(&ratio) && busiest < 1.1, "{ratio} {busiest}");
}

#[test]
fn a_tree_takes_as_many_transfers_as_it_has_branches() {
    for degree in [2, 3] {
        let (ratio, busiest) = last(&run(15, &format!("tree:degree={degree}")));
        let degree = f64::from(degree);
        assert!((degree..degree * 1.1).contains(&ratio) && (busiest / degree - 1.0).abs() < 0.02, "{ratio}");
    }
}

#[test]
fn the_planner_says_what_it_takes() {
    for text in ["star", "chain", "striped", "striped:4", "tree:degree=2", "tree:degree=3"] {
        for hosts in [3, 8, 40] {
            let hosts = if text == "striped:4" { hosts.max(4) } else { hosts };
            let outcome = run(hosts, text);
            let off = last(&outcome).0 / outcome.prediction.ratio;
            assert!((0.98..1.1).contains(&off), "{hosts} hosts, {text}: {off} times what was planned");
        }
    }
}

#[test]
fn every_chunk_comes_once_and_where_it_is_passed_on_with_its_seal() {
    for text in ["chain", "striped", "tree:degree=2"] {
        let outcome = run(8, text);
        let frames = outcome.held.last().unwrap().frames;
        assert_eq!(frames.values, 8 * 256, "{text}");
        // Who passes nothing on is sent none by the home.
        assert!(frames.seals <= 8 * 256 && frames.seals > 4 * 256, "{text}: {}", frames.seals);
        assert!(outcome.left.is_empty(), "{text}");
    }
}

#[test]
fn the_same_scenario_is_the_same_run() {
    let hangs = || {
        let scenario = Scenario::new(12, shape("striped:3"));
        Scenario { trouble: Some(Trouble::Hangs), versions: 4, ..scenario }.run().unwrap()
    };
    assert_eq!(hangs(), hangs());
    assert_eq!(run(12, "striped:3"), run(12, "striped:3"));
}

#[test]
fn where_an_inner_node_hangs_the_others_have_the_version_soon_and_the_next_as_if_it_were_a_leaf() {
    for text in ["chain", "striped", "tree:degree=2"] {
        let scenario = Scenario::new(8, shape(text));
        let outcome = Scenario { trouble: Some(Trouble::Hangs), versions: 4, ..scenario }.run().unwrap();
        let [_, usual, troubled, next] = outcome.held[..] else { panic!("{outcome:?}") };
        let blamed = outcome.troubled.map(|(rank, _)| rank);
        assert!(blamed.is_some() && !outcome.left.is_empty(), "{text}");
        assert!(
            outcome.left.iter().all(|left| left.parent == blamed && left.version == 2),
            "{text}: {outcome:?}"
        );
        // Until its children lose patience, and what they missed comes from the home, which has others to feed.
        assert!(troubled.seconds < usual.seconds + 3.0, "{text}: {troubled:?}");
        assert!(next.ratio < usual.ratio * 1.3, "{text}: {next:?}");
    }
}

#[test]
fn an_inner_node_that_is_very_slow_is_left_too() {
    let scenario = Scenario::new(8, shape("chain"));
    let outcome = Scenario { trouble: Some(Trouble::Slow(0.05)), versions: 4, ..scenario }.run().unwrap();
    let blamed = outcome.troubled.map(|(rank, _)| rank);
    assert!(outcome.left.iter().any(|left| left.parent == blamed), "{outcome:?}");
}

/// Values of some megabytes in small blocks, as many models have them: a broadcast is over before anybody loses patience.
fn small(hosts: u32, text: &str, trouble: Trouble, behind: u64) -> Outcome {
    let scenario = Scenario::new(hosts, shape(text));
    let (versions, trouble) = (8 + behind, Some(trouble));
    let scenario = Scenario { bytes: 16 << 20, block: 32 << 10, versions, trouble, behind, ..scenario };
    scenario.run().unwrap()
}

// What the old parent still owed was lost, and the new one was taken for late as well.
#[test]
fn what_one_that_hangs_still_owed_comes_by_its_childrens_next_parents_and_none_of_them_is_left() {
    for text in ["chain", "striped", "striped:3", "tree:degree=2", "tree:degree=3"] {
        for hosts in [4, 5, 8, 13] {
            let outcome = small(hosts, text, Trouble::Hangs, 2);
            let (troubled, version) = outcome.troubled.unwrap();
            assert_eq!(outcome.blamed, [troubled], "{hosts} hosts, {text}: {outcome:?}");
            assert!(
                outcome.left.iter().all(|left| left.parent == Some(troubled) && left.version == version),
                "{hosts} hosts, {text}: {:?}",
                outcome.left
            );
            // One patience, not two, of which the nearer is 600 ms.
            let [.., during, _, after] = outcome.held[..] else { panic!("{outcome:?}") };
            assert!(during.seconds < 2.5, "{hosts} hosts, {text}: {during:?}");
            assert!(after.ratio < 1.6 * outcome.held[4].ratio, "{hosts} hosts, {text}: {after:?}");
        }
    }
}

// Behind it others were taken for slow too, and two leaves of a chain hung on the home.
#[test]
fn behind_one_that_sends_slowly_nobody_else_is_blamed_and_a_chain_stays_one() {
    for text in ["chain", "striped", "tree:degree=2"] {
        for hosts in [4, 5, 8] {
            let outcome = small(hosts, text, Trouble::SlowUp(0.05), 6);
            let (troubled, _) = outcome.troubled.unwrap();
            assert!(
                outcome.blamed.iter().all(|blamed| *blamed == troubled),
                "{hosts} hosts, {text}: {outcome:?}"
            );
            if text == "chain" {
                assert_eq!(
                    (&outcome.blamed[..], outcome.most_children),
                    (&[troubled][..], (1, 1)),
                    "{outcome:?}"
                );
                assert!(outcome.held.last().unwrap().ratio < 1.1, "{outcome:?}");
            }
        }
    }
}

// It is nearer to the home than its children, and so it was its parent that was left first.
#[test]
fn the_parent_of_one_that_is_slow_both_ways_is_not_blamed_for_it() {
    for text in ["chain", "striped", "tree:degree=2"] {
        for hosts in [4, 5, 8] {
            // With the last three little was missing when the parent was left.
            let parts =
                if hosts == 4 && text == "chain" { &[0.03, 0.1, 0.14, 0.15, 0.16][..] } else { &[0.03, 0.1] };
            for &part in parts {
                let outcome = small(hosts, text, Trouble::Slow(part), 6);
                let (troubled, _) = outcome.troubled.unwrap();
                let what = format!("{hosts} hosts, {text}, {part}");
                assert!(outcome.blamed.iter().all(|blamed| *blamed == troubled), "{what}: {outcome:?}");
            }
        }
    }
}

#[test]
fn what_cannot_be_run_says_so() {
    let wrong = |scenario: Scenario| matches!(scenario.run(), Err(Failure::Scenario { .. }));
    let usual = Scenario::new(3, Shape::Chain);
    assert!(wrong(Scenario { chunk: 5000, ..usual.clone() }));
    assert!(wrong(Scenario { chunk: 2 << 20, ..usual.clone() }));
    assert!(wrong(Scenario { bytes: 0, ..usual.clone() }));
    assert!(matches!(Scenario { hosts: 0, ..usual }.run(), Err(Failure::Plan(_))));
}

/// One of 8 hosts has an uplink, and perhaps a downlink, of a fifth.
fn with_a_slow_host(text: &str, rates: Rates, (rank, down): (u32, f64), versions: u64) -> Outcome {
    let unlike = vec![Unlike { rank, up: 0.2, down }];
    Scenario { unlike, rates, versions, ..Scenario::new(8, shape(text)) }.run().unwrap()
}

#[test]
fn a_host_with_a_slow_uplink_becomes_a_leaf_and_values_come_as_if_that_had_been_known() {
    for (text, rank) in [("chain", 3), ("striped", 3), ("tree:degree=2", 1), ("auto", 2)] {
        let known = last(&with_a_slow_host(text, Rates::Known, (rank, 1.0), 2)).0;
        let alike = last(&with_a_slow_host(text, Rates::Alike, (rank, 1.0), 2)).0;
        let measured = with_a_slow_host(text, Rates::Measured, (rank, 1.0), 12);
        let adapted = last(&measured).0;
        assert!(alike > 1.5 * known, "{text}: {alike} {known}, or it is no test");
        let took: Vec<f64> = measured.held.iter().map(|held| held.ratio).collect();
        assert!(adapted < 1.3 * known, "{text}: {took:?} {known}, {} plans", measured.moved);
        assert!((1..4).contains(&measured.moved) && measured.left.is_empty(), "{text}: {measured:?}");
    }
}

// Of so little nobody is let go for taking too little.
#[test]
fn a_host_that_is_slow_both_ways_comes_to_stand_where_the_others_do_not_wait_for_it() {
    let half = |rates, versions| {
        let unlike = vec![Unlike { rank: 2, up: 0.2, down: 0.2 }];
        let small = Scenario { bytes: 8 << 20, block: 64 << 10, ..Scenario::new(8, shape("chain")) };
        Scenario { unlike, rates, versions, ..small }.run().unwrap().held.last().unwrap().half
    };
    let [known, alike, measured] = [(Rates::Known, 2), (Rates::Alike, 2), (Rates::Measured, 80)]
        .map(|(rates, versions)| half(rates, versions));
    assert!(alike > 3.0 * known && measured < 1.3 * known, "{known} {alike} {measured}");
}

#[test]
fn where_all_links_are_alike_no_plan_is_made_anew_and_all_is_as_if_nothing_was_measured() {
    for text in ["star", "chain", "striped", "striped:3", "tree:degree=2", "auto"] {
        for pace in [0.0, 2e-3] {
            let scenario = Scenario { versions: 12, pace, push: 30 << 20, ..Scenario::new(8, shape(text)) };
            let measured = scenario.run().unwrap();
            let alike = Scenario { rates: Rates::Alike, ..scenario }.run().unwrap();
            assert_eq!(measured.moved, 0, "{text}");
            assert!(measured == alike, "{text}");
        }
    }
}
