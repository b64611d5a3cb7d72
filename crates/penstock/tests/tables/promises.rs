//! What a get promises: age, wholeness, barriers, views, versions.

use crate::common;
use crate::common::{Cluster, Way};
use crate::rig::*;
use penstock::worker::{Error, TableDeclaration};
use penstock_proto::items::{Propagation, Slack};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[test]
fn no_read_is_older_than_its_slack_torn_or_apart_by_any_way_and_propagation() {
    for way in WAYS {
        for propagation in PROPAGATIONS {
            let cluster = Cluster::over(way, 3, 2, &[("lease", "20")]);
            cluster.run(|job| {
                let given = TableDeclaration { propagation, ..declaration("U", mine(job), all(job)) };
                let table = job.table(given).unwrap();
                let (mine, all) = (rows(mine(job)), rows(all(job)));
                let mut state = u64::from(job.rank()) + 1;
                let mut before = vec![0.0; all.len()];
                for clock in 1..=60 {
                    set(&table, &mine, clock as f64, Some(clock)).unwrap();
                    let slack = [0, 0, 1, 2, 8][chance(&mut state) as usize % 5];
                    let seen = get(&table, &all, Some(clock), Some(Slack::Bound(slack))).unwrap();
                    for (producer, rows) in seen.chunks(ROWS as usize).enumerate() {
                        let fresh = rows[0] >= clock as f64 - f64::from(slack);
                        assert!(
                            fresh,
                            "{way:?} {propagation}: {rows:?} of {producer} at {clock}, slack {slack}"
                        );
                        assert!(
                            rows.iter().all(|row| *row == rows[0]),
                            "{way:?} {propagation}: {rows:?} were set together"
                        );
                    }
                    assert!(seen.iter().zip(&before).all(|(new, old)| new >= old), "{way:?} {propagation}");
                    before = seen;
                    job.clock().unwrap();
                }
                job.barrier(None).unwrap();
            });
        }
    }
}

#[test]
fn a_sum_is_what_all_have_added_and_a_worker_reads_its_own_at_once() {
    for way in WAYS {
        for propagation in PROPAGATIONS {
            let cluster = Cluster::over(way, 3, 1, &[("lease", "20")]);
            cluster.run(|job| {
                let shared = 0..6;
                let given =
                    TableDeclaration { sum: true, propagation, ..declaration("S", shared.clone(), shared) };
                let table = job.table(given).unwrap();
                for clock in 1..=40u64 {
                    let own = get(&table, &[2], None, Some(Slack::Unbounded)).unwrap()[0];
                    table.add(&[2, 5], &row(1.0).repeat(2), None).unwrap();
                    let now = get(&table, &[2], None, Some(Slack::Unbounded)).unwrap()[0];
                    assert!(now >= own + 1.0, "{way:?} {propagation}: {now} after {own}");
                    job.clock().unwrap();
                    let seen = get(&table, &[2, 5], None, None).unwrap();
                    assert!(
                        seen[0] >= (3 * clock) as f64 && seen[1] >= (3 * clock) as f64,
                        "{way:?}: {seen:?} at {clock}"
                    );
                }
                job.barrier(None).unwrap();
                let end = get(&table, &[2, 5, 0], None, Some(Slack::Unbounded)).unwrap();
                assert_eq!(end, [120.0, 120.0, 0.0], "{way:?} {propagation}");
            });
        }
    }
}

/// N-2.
#[test]
fn what_was_set_before_a_barrier_is_seen_behind_it_even_without_any_bound() {
    for way in WAYS {
        for propagation in PROPAGATIONS {
            let cluster = Cluster::over(way, 2, 1, &[("lease", "20")]);
            cluster.run(|job| {
                let given = TableDeclaration {
                    propagation,
                    slack: Slack::Unbounded,
                    ..declaration("U", mine(job), all(job))
                };
                let table = job.table(given).unwrap();
                for round in 1..=10 {
                    set(&table, &rows(mine(job)), f64::from(round), None).unwrap();
                    job.barrier(None).unwrap();
                    let seen = get(&table, &rows(all(job)), None, None).unwrap();
                    assert!(
                        seen.iter().all(|row| *row == f64::from(round)),
                        "{way:?} {propagation}: {seen:?}"
                    );
                    job.barrier(None).unwrap();
                }
                // A view of a row is the first that is asked for behind the barrier.
                for round in 11..=15 {
                    set(&table, &rows(mine(job)), f64::from(round), None).unwrap();
                    job.barrier(None).unwrap();
                    for row in rows(all(job)) {
                        let view = table.view(row, None, None, None).unwrap();
                        // SAFETY: the row stands in memory that `view` holds, and nothing sets it before the next barrier.
                        let seen = unsafe { std::slice::from_raw_parts(view.address().as_ptr(), view.len()) };
                        assert_eq!(common::numbers(seen), [f64::from(round); WIDTH], "{way:?} {propagation}");
                    }
                    job.barrier(None).unwrap();
                }
            });
        }
    }
}

// Python and C try this first, since it waits for nothing.
#[test]
fn a_get_that_asks_nobody_takes_rows_that_come_unasked_and_behind_a_barrier_only_when_they_have_come() {
    for way in [Way::Memory, Way::Tcp] {
        for propagation in PROPAGATIONS {
            let cluster = Cluster::over(way, 2, 1, &[("lease", "20")]);
            cluster.run(|job| {
                let given = TableDeclaration { propagation, ..declaration("U", mine(job), all(job)) };
                let table = job.table(given).unwrap();
                let others = if job.rank() == 0 { ROWS..2 * ROWS } else { 0..ROWS };
                let at_once = |clock, slack| {
                    let mut out = vec![0; 8 * WIDTH * ROWS as usize];
                    let is_there = table.try_get(others.clone(), &mut out, Some(clock), Some(slack)).unwrap();
                    is_there.then(|| common::numbers(&out))
                };
                let shared = way == Way::Memory;
                let comes_unasked = shared || propagation == Propagation::Eager;
                for clock in 1..=10 {
                    let value = vec![clock as f64; WIDTH * ROWS as usize];
                    set(&table, &rows(mine(job)), clock as f64, Some(clock)).unwrap();
                    job.barrier(None).unwrap();
                    let behind = at_once(0, Slack::Unbounded);
                    assert_eq!(
                        behind,
                        shared.then(|| value.clone()),
                        "{way:?} {propagation}: nobody has asked"
                    );
                    get(&table, &rows(others.clone()), Some(clock), None).unwrap();
                    let now = at_once(clock, Slack::Bound(0));
                    assert_eq!(now, comes_unasked.then_some(value), "{way:?} {propagation}");
                    assert_eq!(at_once(clock + 1, Slack::Bound(0)), None, "{way:?} {propagation}: too old");
                    job.barrier(None).unwrap();
                }
            });
        }
    }
}

/// In a burst calls leave their rows to a thread, which looks for more for a while and then leaves them to calls again: at either
/// change none may be left lying until something else is set.
#[test]
fn rows_that_are_set_in_bursts_and_by_themselves_come_without_another_call() {
    const ROUNDS: u64 = 400;
    // An eighth of the lease is longer than is waited for: then threads look by themselves, and would find what was left.
    let cluster = Cluster::over(Way::Tcp, 2, 1, &[("lease", "200"), ("deadline", "20")]);
    let heard = AtomicU64::new(0);
    cluster.run(|job| {
        let given =
            TableDeclaration { propagation: Propagation::Eager, ..declaration("U", mine(job), all(job)) };
        let table = job.table(given).unwrap();
        let first = rows(mine(job));
        for round in 1..=ROUNDS {
            if job.rank() == 0 {
                let calls = [1, 3, 15, 16, 33, 100, 400][round as usize % 7];
                for call in 1..=calls {
                    set(&table, &first, (1000 * round + call) as f64, Some(round)).unwrap();
                }
                // Nothing is called meanwhile that could send them.
                let began = Instant::now();
                while heard.load(Ordering::Acquire) < round {
                    assert!(began.elapsed() < Duration::from_secs(30), "round {round} was not heard");
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_micros([0, 50, 120, 400, 2000][round as usize % 5]));
            } else {
                let calls = [1, 3, 15, 16, 33, 100, 400][round as usize % 7];
                let last = (1000 * round + calls) as f64;
                let began = Instant::now();
                while get(&table, &[0], Some(round), Some(Slack::Bound(0))).unwrap()[0] < last {
                    assert!(
                        began.elapsed() < Duration::from_secs(15),
                        "the last row of round {round} lies there"
                    );
                }
                heard.store(round, Ordering::Release);
            }
        }
        job.barrier(None).unwrap();
    });
}

#[test]
fn a_view_is_the_row_itself_and_says_when_it_was_overwritten() {
    let cluster = Cluster::new(1, 1, &[]);
    cluster.run(|job| {
        let table = job.table(declaration("U", 0..1, 0..1)).unwrap();
        set(&table, &[0], 1.0, Some(1)).unwrap();
        let view = table.view(0, Some(1), None, None).unwrap();
        assert_eq!((view.len(), view.version(), view.is_valid()), (8 * WIDTH, 1, true));
        set(&table, &[0], 2.0, Some(2)).unwrap();
        assert!(view.is_valid(), "the newer value stands beside it");
        set(&table, &[0], 3.0, Some(3)).unwrap();
        assert!(!view.is_valid());
    });
}

#[test]
fn a_get_tells_the_version_of_each_value() {
    let cluster = Cluster::new(1, 1, &[]);
    cluster.run(|job| {
        let table = job.table(declaration("U", 0..4, 0..4)).unwrap();
        set(&table, &[0, 2], 1.0, Some(5)).unwrap();
        set(&table, &[1], 1.0, Some(7)).unwrap();
        let mut out = vec![0; 8 * WIDTH * 3];
        let mut versions = [0; 3];
        let least = table.get_versions(&[1, 0, 3], &mut out, &mut versions, Some(0), None, None).unwrap();
        assert_eq!((versions, least), ([7, 5, 0], 0));
        let refused = table.get_versions(&[1, 0, 3], &mut out, &mut versions[..2], Some(0), None, None);
        assert!(matches!(refused, Err(Error::WrongSize { expected: 24, got: 16, .. })));
    });
}
