//! The runner and its page, docs/simulation.md.

use penstock_sim::Scenario;
use penstock_sim::history::Tally;
use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_penstock-sim")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_run_that_holds_says_so() {
    let output = run(&["--seeds", "0..8"]);
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stdout).starts_with("8 seeds hold: ask "), "{output:?}");
}

#[test]
fn a_run_that_fails_exits_nonzero_and_names_its_seed() {
    let output = run(&["--seeds", "0..64", "--sabotage", "keeps-silent"]);
    assert!(!output.status.success());
    let error = text(&output.stderr);
    let seed = error.strip_prefix("seed ").and_then(|rest| rest.split_once(':')).unwrap().0;
    let again = run(&["--seed", seed, "--sabotage", "keeps-silent", "-v"]);
    assert_eq!(text(&again.stderr), error, "the seed that it names fails in the same way");
}

#[test]
fn tables_have_seeds_of_their_own_which_are_played_alone_too() {
    let output = run(&["--tables", "--seeds", "0..20"]);
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stdout).starts_with("20 seeds hold: "), "{output:?}");
    let one = text(&run(&["--tables", "--seed", "7", "-v"]).stdout);
    assert!(one.contains("seed: 7") && one.contains("propagation: "), "{one}");
    assert_eq!(one, text(&run(&["--tables", "--seed", "7", "-v"]).stdout));
    assert!(!run(&["--tables", "--sabotage", "folds-twice"]).status.success(), "that is for jobs");
}

#[test]
fn jobs_with_leases_have_seeds_of_their_own_and_are_broken_on_purpose_too() {
    let output = run(&["--suspended", "--seeds", "0..20"]);
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stdout).contains(", lose "), "{output:?}");
    let broken = text(&run(&["--suspended", "--seeds", "0..20", "--sabotage", "is-impatient"]).stderr);
    assert!(
        broken.contains("losses, tick ")
            && broken.contains("`penstock-sim --suspended --sabotage is-impatient --seed "),
        "{broken}"
    );
    assert!(!run(&["--suspended", "--tables"]).status.success());
}

#[test]
fn jobs_with_trees_have_seeds_of_their_own_and_are_broken_on_purpose_too() {
    let output = run(&["--trees", "--seeds", "0..20"]);
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output.stdout).contains(", attach "), "{output:?}");
    let broken = text(&run(&["--trees", "--seeds", "0..60", "--sabotage", "believes-any-seal"]).stderr);
    assert!(broken.contains("`penstock-sim --trees --sabotage believes-any-seal --seed "), "{broken}");
    assert!(text(&run(&["--sabotage", "believes-any-seal"]).stderr).contains("hint: add --trees"));
    assert!(!run(&["--trees", "--suspended"]).status.success());
}

#[test]
fn seeds_that_are_no_range_are_refused() {
    for bad in ["5", "5..5", "9..3", "a..b"] {
        let output = run(&["--seeds", bad]);
        assert!(!output.status.success());
        assert!(text(&output.stderr).contains("expected seeds as N..M"), "{output:?}");
    }
}

/// Words in the first column of the page's table of events.
fn documented() -> Vec<String> {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/simulation.md")).unwrap();
    let (_, table) = page.split_once("| event | by |").expect("the page has a table of events");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with("| `"));
    let mut words: Vec<String> = rows.map(|row| row.split('`').nth(1).unwrap().to_owned()).collect();
    words.sort();
    words
}

#[test]
fn the_page_explains_every_event_that_the_log_knows_and_no_other() {
    let mut tally = Tally::default();
    for seed in 0..80 {
        tally.merge(&Scenario::from_seed(seed).check().unwrap().tally);
        tally.merge(&Scenario::suspended(seed).check().unwrap().tally);
        tally.merge(&Scenario::with_trees(seed).check().unwrap().tally);
    }
    assert_eq!(documented(), tally.words().collect::<Vec<_>>());
}

#[test]
fn a_line_of_the_log_has_the_columns_that_the_page_explains() {
    let output = text(&run(&["--seed", "1", "-v"]).stdout);
    let words = documented();
    let lines: Vec<&str> =
        output.lines().filter(|line| line.contains(" worker ") || line.contains(" shard ")).collect();
    assert!(lines.len() > 20);
    for line in lines {
        let columns: Vec<&str> = line.split_whitespace().collect();
        columns[0].parse::<u64>().unwrap();
        assert!(["worker", "shard"].contains(&columns[1]), "{line}");
        columns[2].parse::<u32>().unwrap();
        assert!(words.iter().any(|word| word == columns[3]), "{line}");
        assert!(columns[4] == "-" || columns[4].starts_with('t'), "{line}");
    }
}
