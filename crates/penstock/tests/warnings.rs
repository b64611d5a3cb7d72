//! A worker that causes warnings without end keeps no other's out of the log.

mod common;

use common::tenants::{EVIL, GOOD, hear, join_by_hand, say, service_of};
use penstock_proto::knot::Goal;
use penstock_proto::message::{Ask, Request, encode};
use std::process::Command;

/// Set in the process whose warnings are read.
const INSIDE: &str = "PENSTOCK_TEST_INSIDE";
/// More than the process said in a minute, of all jobs.
const WAITS: u64 = 1100;

fn flood_and_lose() {
    penstock::log::warn_on_stderr();
    let (service, address) = service_of(256 << 20, &[("on_worker_loss", "continue")]);
    let mut evil = join_by_hand(address, "evil", EVIL);
    let mut id = 1;
    for wait in 0..WAITS {
        for _ in 0..3 {
            id += 1;
            let goal = Goal::Ranks { what: format!("x{wait}"), ranks: vec![0] };
            let body = Ask::Waits { wait, goal: Some(goal), alone: false };
            assert!(say(&mut evil, &encode(&Request { id, settled: id, open: Vec::new(), body }).unwrap()));
            hear(&mut evil).expect("an answer");
        }
    }
    let mut good = join_by_hand(address, "good", GOOD);
    assert!(say(&mut good, b"nonsense"));
    while hear(&mut good).is_some() {}
    // With its threads all that they had to say is written.
    drop(service);
}

// It waited for itself, in other words each time: each was a new line, and of those the process wrote so many a minute.
#[test]
fn a_worker_that_causes_warnings_without_end_mutes_no_other_job() {
    if std::env::var_os(INSIDE).is_some() {
        return flood_and_lose();
    }
    let name = "a_worker_that_causes_warnings_without_end_mutes_no_other_job";
    let mut inside = Command::new(std::env::current_exe().unwrap());
    let output = inside.args(["--exact", name, "--nocapture"]).env(INSIDE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("warning: a worker was lost"), "{} lines, but not that one", said.lines().count());
}
