//! Tables of items over real servers, by every way that workers reach them: what a get promises, whatever else happens.

mod common;

use common::cutter::Cutter;
use common::{Cluster, Way, seconds};
use penstock::worker::{Due, Error, Job, Table, TableDeclaration};
use penstock_kernels::Dtype;
use penstock_proto::error::Refusal;
use penstock_proto::items::{Propagation, RowSet, Slack, TableError};
use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const WIDTH: usize = 5;
const ROWS: u64 = 4;
const PROPAGATIONS: [Propagation; 3] = [Propagation::Eager, Propagation::Lazy, Propagation::Bounded];
const WAYS: [Way; 5] = [Way::Memory, Way::Tcp, Way::Tls, Way::Mixed, Way::Broken];

fn declaration(name: &str, produce: Range<u64>, consume: Range<u64>) -> TableDeclaration {
    TableDeclaration {
        name: name.to_owned(),
        rows: 64,
        row_bytes: 8 * WIDTH as u32,
        element: Some(Dtype::F64),
        holds: String::new(),
        sum: false,
        produce: RowSet::from_ranges([produce]),
        consume: RowSet::from_ranges([consume]),
        propagation: Propagation::Eager,
        slack: Slack::Bound(0),
        adaptive: None,
        timeout: None,
    }
}

fn mine(job: &Job) -> Range<u64> {
    let rank = u64::from(job.rank());
    rank * ROWS..(rank + 1) * ROWS
}

fn all(job: &Job) -> Range<u64> {
    0..u64::from(job.size()) * ROWS
}

fn rows(range: Range<u64>) -> Vec<u64> {
    range.collect()
}

fn row(value: f64) -> Vec<u8> {
    value.to_le_bytes().repeat(WIDTH)
}

fn set(table: &Table, rows: &[u64], value: f64, clock: Option<u64>) -> Result<(), Error> {
    table.set(rows, &row(value).repeat(rows.len()), clock)
}

/// What stands in some rows: each is one number, or the test fails.
fn get(table: &Table, rows: &[u64], clock: Option<u64>, slack: Option<Slack>) -> Result<Vec<f64>, Error> {
    let mut out = vec![0; 8 * WIDTH * rows.len()];
    table.get(rows, &mut out, clock, slack, None)?;
    let numbers = common::numbers(&out);
    let whole = numbers.chunks(WIDTH).all(|row| row.iter().all(|number| *number == row[0]));
    assert!(whole, "torn: {numbers:?}");
    Ok(numbers.chunks(WIDTH).map(|row| row[0]).collect())
}

/// A cheap stream of numbers.
fn chance(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

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
                for clock in 1..=150 {
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
            let cluster = Cluster::over(way, 3, 1, &[("lease", "20"), ("deadline", "6")]);
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

#[test]
fn a_producer_that_leaves_is_not_waited_for() {
    for way in [Way::Memory, Way::Tcp] {
        let cluster = Cluster::over(way, 2, 1, &[]);
        let both = Barrier::new(2);
        cluster.run(|job| {
            let table = job.table(declaration("U", mine(job), all(job))).unwrap();
            set(&table, &rows(mine(job)), 1.0, None).unwrap();
            both.wait();
            if job.rank() == 0 {
                return; // closes the job
            }
            for _ in 0..5 {
                job.clock().unwrap();
            }
            assert_eq!(get(&table, &[0], None, None).unwrap(), [1.0], "{way:?}");
        });
    }
}

// It took what it had for all that there ever was.
#[test]
fn who_was_away_when_a_producer_left_hears_whose_rows_have_not_come_and_finds_them_when_it_is_back() {
    for propagation in PROPAGATIONS {
        let cluster = Cluster::over(Way::Tcp, 2, 2, &[("lease", "30")]);
        // The home of worker 1's rows is the second server; the first one says which has gone.
        let line = Cutter::to(cluster.servers[1].addresses()[0], Vec::new());
        let mut reader = cluster.membership(0);
        reader.servers[1] = format!("tcp://{}", line.address).parse().unwrap();
        let both = Barrier::new(2);
        let declare = |job: &Job| {
            let given = TableDeclaration { propagation, ..declaration("U", mine(job), all(job)) };
            job.table(given).unwrap()
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let job = cluster.join(1);
                let table = declare(&job);
                set(&table, &rows(mine(&job)), 1.0, Some(1)).unwrap();
                both.wait();
                both.wait();
                set(&table, &rows(mine(&job)), 2.0, Some(2)).unwrap();
                job.leave(None).unwrap();
                both.wait();
            });
            let job = cluster.try_join(&reader).unwrap();
            let table = declare(&job);
            both.wait();
            assert_eq!(get(&table, &[ROWS], Some(1), None).unwrap(), [1.0], "{propagation}");
            line.take_away();
            both.wait();
            both.wait();
            let timeout = Some(Duration::from_millis(1500));
            for attempt in 0..2 {
                let got = table.get(&[ROWS], &mut [0; 8 * WIDTH][..], Some(2), None, timeout);
                let expected = (ROWS, 1, 2, 1);
                match got {
                    Err(Error::GetTimeout { due, row, version, wanted, producer, .. }) => {
                        assert_eq!((row, version, wanted, producer), expected, "{propagation}");
                        assert!(attempt == 0 || due == Due::BeforeGone, "{propagation}: {due:?}");
                    }
                    other => panic!("{propagation}: {other:?}"),
                }
            }
            line.give_back();
            assert_eq!(get(&table, &[ROWS], Some(2), None).unwrap(), [2.0], "{propagation}");
            job.leave(None).unwrap();
        });
    }
}

// It counted as ready with its wait over: the producer went on and left, and its rows reached no one.
#[test]
fn who_could_not_say_what_it_wants_is_not_counted_as_ready() {
    for propagation in PROPAGATIONS {
        let cluster = Cluster::over(Way::Tcp, 2, 2, &[("lease", "30")]);
        // The home of worker 1's rows is the second server; the first one says which are ready.
        let line = Cutter::to(cluster.servers[1].addresses()[0], Vec::new());
        let mut reader = cluster.membership(0);
        reader.servers[1] = format!("tcp://{}", line.address).parse().unwrap();
        let made = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let job = cluster.try_join(&reader).unwrap();
            line.take_away();
            scope.spawn(|| {
                let job = cluster.join(1);
                let given = TableDeclaration { propagation, ..declaration("U", mine(&job), all(&job)) };
                let table = job.table(given).unwrap();
                made.store(true, Ordering::Relaxed);
                set(&table, &rows(mine(&job)), 2.0, Some(2)).unwrap();
                job.leave(None).unwrap();
            });
            let given = TableDeclaration { propagation, ..declaration("U", mine(&job), all(&job)) };
            let timeout = Some(Duration::from_secs(1));
            let error = job.table(TableDeclaration { timeout, ..given.clone() }).unwrap_err();
            assert!(matches!(error, Error::Unanswered { server: 1, .. }), "{propagation}: {error}");
            std::thread::sleep(Duration::from_millis(200));
            assert!(!made.load(Ordering::Relaxed), "{propagation}");
            line.give_back();
            let table = job.table(given).unwrap();
            assert_eq!(get(&table, &[ROWS], Some(2), None).unwrap(), [2.0], "{propagation}");
            job.leave(None).unwrap();
        });
    }
}

// If no peer had what one get asked for, all rows counted as never set; and with their home away the next get failed.
#[test]
fn rows_of_the_lost_are_the_newest_that_their_home_has_and_need_it_no_more() {
    let cluster = Cluster::over(Way::Tcp, 3, 2, &[("on_worker_loss", "continue"), ("lease", "3")]);
    let line = Cutter::to(cluster.servers[1].addresses()[0], Vec::new());
    let three = Barrier::new(3);
    std::thread::scope(|scope| {
        for rank in 0..3 {
            let (cluster, line, three) = (&cluster, &line, &three);
            scope.spawn(move || {
                let mut member = cluster.membership(rank);
                if rank == 0 {
                    member.servers[1] = format!("tcp://{}", line.address).parse().unwrap();
                }
                let job = cluster.try_join(&member).unwrap();
                let propagation = Propagation::Lazy;
                let given = TableDeclaration { propagation, ..declaration("U", mine(&job), all(&job)) };
                let table = job.table(given).unwrap();
                let lost = rows(ROWS..2 * ROWS);
                if rank == 1 {
                    set(&table, &lost, 1.0, Some(5)).unwrap();
                    three.wait();
                    three.wait();
                    drop(job); // without closing it: lost
                    return;
                }
                three.wait();
                if rank == 2 {
                    assert_eq!(get(&table, &lost, Some(5), None).unwrap(), [1.0; 4]);
                }
                three.wait();
                if rank == 0 {
                    assert_eq!(get(&table, &lost[..1], Some(9), None).unwrap(), [1.0]);
                    assert_eq!(get(&table, &lost, Some(9), None).unwrap(), [1.0; 4]);
                }
                job.barrier(None).unwrap();
                if rank == 0 {
                    line.take_away();
                    let timeout = Some(Duration::from_millis(500));
                    let got = table.get(&[ROWS], &mut [0; 8 * WIDTH][..], Some(10), None, timeout);
                    line.give_back();
                    assert_eq!(got.unwrap(), 5);
                }
                job.leave(None).unwrap();
            });
        }
    });
}

// They were returned as if one set had left them so: of the second set one row, of the first the other.
#[test]
fn rows_of_the_lost_that_came_one_by_one_are_not_taken_for_rows_of_one_set() {
    let cluster = Cluster::over(Way::Tcp, 2, 1, &[("on_worker_loss", "continue"), ("lease", "1")]);
    let both = Barrier::new(2);
    let [older, newer] = [ROWS, ROWS + 1];
    let declare = |job: &Job| {
        let propagation = Propagation::Lazy;
        job.table(TableDeclaration { propagation, ..declaration("U", mine(job), all(job)) }).unwrap()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let job = cluster.join(1);
            let table = declare(&job);
            for version in [1, 2] {
                set(&table, &[older, newer], version as f64, Some(version)).unwrap();
                both.wait();
                both.wait(); // one of its rows has been read
            }
            drop((table, job)); // without closing it: lost
            both.wait();
        });
        let job = cluster.join(0);
        let table = declare(&job);
        for (row, version) in [(older, 1), (newer, 2)] {
            both.wait();
            assert_eq!(get(&table, &[row], Some(version), None).unwrap(), [version as f64]);
            both.wait();
        }
        both.wait();
        for _ in 0..2 {
            match get(&table, &[newer, older], Some(1), None) {
                Err(Error::Apart { row, producer, .. }) => assert_eq!((row, producer), (older, 1)),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(get(&table, &[older], Some(9), None).unwrap(), [1.0]);
        assert_eq!(get(&table, &[newer], Some(9), None).unwrap(), [2.0]);
        job.leave(None).unwrap();
    });
}

// Each of them was given half a lease for its last rows, one after the other.
#[test]
fn several_producers_that_are_lost_together_are_waited_for_together() {
    const LOST: u32 = 4;
    let cluster = Cluster::over(Way::Tcp, 1 + LOST, 1, &[("on_worker_loss", "continue"), ("lease", "6")]);
    let all_set = Barrier::new(1 + LOST as usize);
    std::thread::scope(|scope| {
        for rank in 0..=LOST {
            let (cluster, all_set) = (&cluster, &all_set);
            scope.spawn(move || {
                let job = cluster.join(rank);
                let propagation = Propagation::Lazy;
                let given = TableDeclaration { propagation, ..declaration("U", mine(&job), all(&job)) };
                let table = job.table(given).unwrap();
                set(&table, &rows(mine(&job)), 1.0, Some(1)).unwrap();
                job.barrier(None).unwrap();
                all_set.wait();
                if rank > 0 {
                    drop(job); // without closing it: lost
                    return;
                }
                let lost: Vec<u64> = (1..=u64::from(LOST)).map(|rank| rank * ROWS).collect();
                let mut values = vec![0; 8 * WIDTH * lost.len()];
                // Less than two of them would take one after the other, three seconds each.
                let timeout = Some(Duration::from_secs(6));
                // Lazy rows that nobody had asked for are gone with their producer.
                assert_eq!(table.get(&lost, &mut values, Some(9), None, timeout).unwrap(), 0);
                job.leave(None).unwrap();
            });
        }
    });
}

#[test]
fn a_job_that_goes_on_does_not_wait_for_rows_of_the_lost() {
    for way in [Way::Memory, Way::Tcp] {
        let cluster = Cluster::over(way, 2, 1, &[("on_worker_loss", "continue"), ("lease", "1")]);
        let both = Barrier::new(2);
        std::thread::scope(|scope| {
            for rank in 0..2 {
                let (cluster, both) = (&cluster, &both);
                scope.spawn(move || {
                    let job = cluster.join(rank);
                    let table = job.table(declaration("U", mine(&job), all(&job))).unwrap();
                    set(&table, &rows(mine(&job)), 1.0, None).unwrap();
                    job.clock().unwrap();
                    job.barrier(None).unwrap();
                    both.wait();
                    if rank == 0 {
                        drop(job); // without closing it: lost
                        return;
                    }
                    job.clock().unwrap();
                    assert_eq!(get(&table, &[0], None, None).unwrap(), [1.0], "{way:?}");
                    job.leave(None).unwrap();
                });
            }
        });
    }
}

#[test]
fn a_get_that_waits_in_vain_names_row_version_and_producer() {
    for propagation in PROPAGATIONS {
        for way in [Way::Memory, Way::Tcp] {
            let cluster = Cluster::over(way, 2, 1, &[]);
            cluster.run(|job| {
                let given = TableDeclaration { propagation, ..declaration("U", mine(job), all(job)) };
                let table = job.table(given).unwrap();
                if job.rank() == 0 {
                    let mut out = vec![0; 8 * WIDTH];
                    let timeout = Some(Duration::from_millis(30));
                    let error =
                        table.get(&[5], &mut out, Some(3), Some(Slack::Bound(1)), timeout).unwrap_err();
                    let Error::GetTimeout { due, row, version, wanted, producer, .. } = error else {
                        panic!("{way:?} {propagation}: {error}");
                    };
                    assert_eq!((row, version, wanted, producer), (5, 0, 2, 1), "{way:?} {propagation}");
                    assert_eq!(due, Due::Version, "{way:?} {propagation}");
                }
                job.barrier(None).unwrap();
            });
        }
    }
}

// Lazily the version was that of the first row of the get, which was new enough.
#[test]
fn a_get_of_several_rows_that_waits_in_vain_names_the_version_of_the_row_that_is_too_old() {
    for propagation in PROPAGATIONS {
        for way in [Way::Memory, Way::Tcp] {
            let cluster = Cluster::over(way, 2, 1, &[]);
            cluster.run(|job| {
                let given = TableDeclaration { propagation, ..declaration("U", mine(job), all(job)) };
                let table = job.table(given).unwrap();
                if job.rank() == 1 {
                    set(&table, &[4], 1.0, Some(2)).unwrap();
                } else {
                    assert_eq!(get(&table, &[4], Some(2), None).unwrap(), [1.0], "{way:?} {propagation}");
                    let mut out = vec![0; 2 * 8 * WIDTH];
                    let timeout = Some(Duration::from_millis(30));
                    let error = table.get(&[4, 5], &mut out, Some(2), None, timeout).unwrap_err();
                    let Error::GetTimeout { row, version, wanted, producer, .. } = error else {
                        panic!("{way:?} {propagation}: {error}");
                    };
                    assert_eq!((row, version, wanted, producer), (5, 0, 2, 1), "{way:?} {propagation}");
                }
                job.barrier(None).unwrap();
            });
        }
    }
}

// It was said to wait for a version that the row had.
#[test]
fn the_first_get_behind_a_barrier_that_waits_in_vain_says_that_it_waits_for_what_was_set_before() {
    for propagation in PROPAGATIONS {
        let cluster = Cluster::over(Way::Tcp, 2, 2, &[("lease", "30")]);
        // The home of worker 1's rows is the second server.
        let line = Cutter::to(cluster.servers[1].addresses()[0], Vec::new());
        let mut reader = cluster.membership(0);
        reader.servers[1] = format!("tcp://{}", line.address).parse().unwrap();
        let both = Barrier::new(2);
        let declare = |job: &Job| {
            let given = TableDeclaration { propagation, ..declaration("U", mine(job), all(job)) };
            job.table(given).unwrap()
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let job = cluster.join(1);
                let table = declare(&job);
                set(&table, &rows(mine(&job)), 1.0, None).unwrap();
                job.barrier(None).unwrap();
                both.wait();
                job.leave(None).unwrap();
            });
            let job = cluster.try_join(&reader).unwrap();
            let table = declare(&job);
            job.barrier(None).unwrap();
            line.take_away();
            let timeout = Some(Duration::from_millis(300));
            let slack = Some(Slack::Unbounded);
            let error = table.get(&[ROWS], &mut [0; 8 * WIDTH][..], None, slack, timeout).unwrap_err();
            let Error::GetTimeout { due, row, producer, .. } = error else {
                panic!("{propagation}: {error}");
            };
            assert_eq!((due, row, producer), (Due::BeforeBarrier, ROWS, 1), "{propagation}");
            line.give_back();
            assert_eq!(get(&table, &[ROWS], None, slack).unwrap(), [1.0], "{propagation}");
            both.wait();
            job.leave(None).unwrap();
        });
    }
}

#[test]
fn what_is_refused_changes_nothing() {
    let cluster = Cluster::new(2, 1, &[]);
    cluster.run(|job| {
        let table = job.table(declaration("U", mine(job), all(job))).unwrap();
        let (own, other) = (mine(job).start, (mine(job).start + ROWS) % (2 * ROWS));
        set(&table, &[own], 1.0, Some(5)).unwrap();
        let refused = [
            set(&table, &[own, other], 2.0, Some(6)).unwrap_err(),
            set(&table, &[own, 99], 2.0, Some(6)).unwrap_err(),
            set(&table, &[own + 1, own], 2.0, Some(4)).unwrap_err(),
            table.set(&[own], &[0; 7], Some(6)).unwrap_err(),
            table.add(&[own], &row(2.0), Some(6)).unwrap_err(),
        ];
        assert!(matches!(refused[0], Error::NotProducer { row, .. } if row == other));
        assert!(matches!(refused[1], Error::UnknownRow { row: 99, .. }));
        assert!(matches!(refused[2], Error::ClockBackwards { clock: 5, got: 4, .. }));
        assert!(matches!(refused[3], Error::WrongSize { expected: 40, got: 7, .. }));
        assert!(matches!(refused[4], Error::WrongFold { sum: false, .. }));
        let now = get(&table, &[own, own + 1], None, Some(Slack::Unbounded)).unwrap();
        assert_eq!(now, [1.0, 0.0]);
        let error = get(&table, &[own], Some(7), Some(Slack::Bound(1))).unwrap_err();
        assert!(matches!(error, Error::NeverSet { version: 5, wanted: 6, .. }), "{error}");
        assert_eq!(get(&table, &[own], Some(7), Some(Slack::Bound(2))).unwrap(), [1.0]);
        job.barrier(None).unwrap();
    });
}

#[test]
fn declarations_that_do_not_fit_fail_on_every_worker_and_the_job_goes_on() {
    for way in [Way::Memory, Way::Tcp] {
        let cluster = Cluster::over(way, 2, 1, &[]);
        cluster.run(|job| {
            let refused = |given: TableDeclaration| match job.table(given).unwrap_err() {
                Error::Refused(Refusal::Table(error)) => error,
                error => panic!("{error}"),
            };
            let error = refused(declaration("two", 0..3, 0..0));
            assert!(matches!(error, TableError::TwoProducers { row: 0, first: 0, second: 1, .. }));
            let error = refused(declaration("none", mine(job), 60..61));
            assert!(matches!(error, TableError::NoProducer { row: 60, .. }));
            let error = refused(declaration("far", mine(job), 64..65));
            assert!(matches!(error, TableError::RowOutOfRange { got: 64, .. }));
            let bytes = 8 * (job.rank() + 1);
            let given = TableDeclaration { row_bytes: bytes, ..declaration("differs", mine(job), 0..0) };
            assert!(matches!(refused(given), TableError::Differs { .. }));
            let given =
                TableDeclaration { element: Some(Dtype::F16), sum: true, ..declaration("sum", 0..1, 0..1) };
            assert!(matches!(refused(given), TableError::BadSum { .. }));
            let table = job.table(declaration("U", mine(job), all(job))).unwrap();
            set(&table, &rows(mine(job)), 1.0, None).unwrap();
            job.clock().unwrap();
            assert_eq!(get(&table, &rows(all(job)), None, None).unwrap(), [1.0; 2 * ROWS as usize]);
            job.barrier(None).unwrap();
        });
    }
}

#[test]
fn a_table_that_one_worker_never_declares_names_it() {
    let cluster = Cluster::new(2, 1, &[]);
    cluster.run(|job| {
        if job.rank() == 0 {
            let given = TableDeclaration { timeout: Some(seconds("0.05")), ..declaration("U", 0..1, 0..1) };
            let error = job.table(given).unwrap_err();
            assert!(matches!(&error, Error::TableTimeout { missing, .. } if missing == &[1]), "{error}");
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
fn memory_beyond_the_servers_is_refused_with_the_numbers() {
    let cluster = Cluster::new(1, 1, &[("memory", "16MiB")]);
    cluster.run(|job| {
        let given = TableDeclaration { rows: 1 << 40, row_bytes: 1 << 20, ..declaration("U", 0..20, 0..1) };
        let error = job.table(given).unwrap_err();
        assert!(matches!(error, Error::Refused(Refusal::OutOfMemory { .. })), "{error}");
        let given = TableDeclaration {
            rows: 1 << 40,
            row_bytes: 1 << 20,
            ..declaration("V", (1 << 39)..(1 << 39) + 2, 0..0)
        };
        let table = job.table(given).unwrap();
        assert_eq!(table.produced().len(), 2, "a table of 2^40 rows costs what is produced");
    });
}

#[test]
fn a_table_for_which_somebody_was_late_is_made_by_declaring_it_again() {
    for way in [Way::Memory, Way::Tcp, Way::Mixed] {
        let cluster = Cluster::over(way, 2, 2, &[("lease", "20")]);
        let turn = Barrier::new(2);
        cluster.run(|job| {
            let soon = Some(Duration::from_millis(30));
            let given = declaration("U", mine(job), all(job));
            let hasty = || job.table(TableDeclaration { timeout: soon, ..given.clone() });
            if job.rank() == 0 {
                let late = hasty().unwrap_err();
                assert!(
                    matches!(&late, Error::TableTimeout { missing, .. } if *missing == [1]),
                    "{way:?}: {late}"
                );
                turn.wait();
            } else {
                turn.wait();
                // All have declared it now, but worker 0 does not wait any more: this one gives up too, if a little later.
                let late = hasty().unwrap_err();
                assert!(
                    matches!(&late, Error::TableTimeout { missing, .. } if *missing == [0]),
                    "{way:?}: {late}"
                );
            }
            turn.wait();
            let other = TableDeclaration { produce: RowSet::default(), ..given.clone() };
            if job.rank() == 0 {
                let refused = job.table(other).unwrap_err();
                let twice = |error: &Error| {
                    matches!(error, Error::Refused(Refusal::Table(TableError::DeclaredTwice { .. })))
                };
                assert!(twice(&refused), "{way:?}: worker 1 knows already who produces what: {refused}");
            }
            let table = job.table(given.clone()).unwrap();
            set(&table, &rows(mine(job)), 1.0, Some(1)).unwrap();
            assert_eq!(get(&table, &rows(all(job)), Some(1), None).unwrap(), [1.0; 8], "{way:?}");
            job.barrier(None).unwrap();
        });
    }
}

#[test]
fn the_same_declaration_gives_the_same_table_and_another_is_refused_by_what_differs() {
    let cluster = Cluster::new(1, 1, &[]);
    cluster.run(|job| {
        let given = declaration("U", 0..4, 0..4);
        let first = job.table(given.clone()).unwrap();
        set(&first, &[3], 7.0, Some(1)).unwrap();
        drop(first);
        // Whether or not a handle is left: others may wait for its rows.
        let again = job.table(given.clone()).unwrap();
        assert_eq!(get(&again, &[3], Some(1), None).unwrap(), [7.0]);
        let others = [
            (TableDeclaration { rows: 65, ..given.clone() }, "other rows: 64 then, 65 now"),
            (TableDeclaration { slack: Slack::Bound(3), ..given.clone() }, "other slack: 0 then, 3 now"),
            (
                TableDeclaration { element: Some(Dtype::F32), ..given.clone() },
                "other elements: float64 then, float32 now",
            ),
            (declaration("U", 0..5, 0..4), "row 4 not among those that are produced then"),
            (declaration("U", 0..4, 1..4), "row 0 among those that are consumed then"),
        ];
        for (other, said) in others {
            let refused = job.table(other).unwrap_err().to_string();
            assert!(refused.contains(said), "{refused}");
        }
        let all = std::thread::scope(|scope| {
            let one = || scope.spawn(|| job.table(declaration("V", 0..4, 0..4)).unwrap());
            [one(), one(), one()].map(|thread| thread.join().unwrap())
        });
        set(&all[0], &[1], 5.0, Some(1)).unwrap();
        assert!(all.iter().all(|table| get(table, &[1], Some(1), None) == Ok(vec![5.0])));
    });
}

#[test]
fn a_table_that_all_have_dropped_gives_back_its_memory_and_its_name() {
    for way in [Way::Memory, Way::Tcp, Way::Mixed] {
        for propagation in PROPAGATIONS {
            // Room for some tables, but not for all that are made one after the other.
            let cluster = Cluster::over(way, 2, 2, &[("lease", "20"), ("memory", "8MiB")]);
            cluster.run(|job| {
                for turn in 1..=12u32 {
                    let wide = TableDeclaration {
                        rows: 2 * 1024,
                        row_bytes: 8 * WIDTH as u32 * turn,
                        produce: RowSet::from_ranges(std::iter::once(
                            u64::from(job.rank()) * 1024..u64::from(job.rank() + 1) * 1024,
                        )),
                        consume: RowSet::from_ranges(std::iter::once(0..2 * 1024)),
                        propagation,
                        ..declaration("U", 0..0, 0..0)
                    };
                    let table = job.table(wide.clone()).unwrap();
                    let value = f64::from(turn);
                    let own = u64::from(job.rank()) * 1024;
                    table.set(&[own], &value.to_le_bytes().repeat(WIDTH * turn as usize), Some(1)).unwrap();
                    let mut out = vec![0; 8 * WIDTH * turn as usize];
                    table.get(&[1024 - own], &mut out, Some(1), None, None).unwrap();
                    assert!(common::numbers(&out).iter().all(|got| *got == value), "{way:?} {propagation}");
                    table.discard(None).unwrap();
                    let refused = table.set(&[own], &out, Some(2)).unwrap_err();
                    assert_eq!(refused, Error::Dropped { name: "U".to_owned() }, "{way:?} {propagation}");
                    assert!(table.get(&[own], &mut out, None, None, None).is_err());
                }
                job.barrier(None).unwrap();
            });
        }
    }
}

/// By a lazy table it ran out of time, and named the producer.
#[test]
fn who_waits_for_a_row_of_a_table_that_is_dropped_meanwhile_hears_that() {
    for way in [Way::Memory, Way::Tcp] {
        for propagation in PROPAGATIONS {
            let cluster = Cluster::over(way, 2, 1, &[("lease", "20"), ("deadline", "20")]);
            cluster.run(|job| {
                let given = TableDeclaration { propagation, ..declaration("U", mine(job), all(job)) };
                let table = job.table(given).unwrap();
                let theirs = (1 - u64::from(job.rank())) * ROWS;
                let waiting = Barrier::new(2);
                std::thread::scope(|scope| {
                    let waits = scope.spawn(|| {
                        waiting.wait();
                        let began = Instant::now();
                        (get(&table, &[theirs], Some(7), None), began.elapsed())
                    });
                    waiting.wait();
                    std::thread::sleep(Duration::from_millis(20)); // most often it waits by now
                    table.discard(None).unwrap();
                    let (got, waited) = waits.join().unwrap();
                    // It may have what the other had set last, if it hears first that nothing newer will come.
                    let dropped = Err(Error::Dropped { name: "U".to_owned() });
                    assert!(got == dropped || got == Ok(vec![0.0]), "{way:?} {propagation}: {got:?}");
                    assert!(waited < Duration::from_secs(10), "{way:?} {propagation}: {waited:?}");
                });
                job.barrier(None).unwrap();
            });
        }
    }
}

/// What was set behind the last word of a worker that leaves reached no one.
#[test]
fn what_another_thread_sets_while_this_worker_leaves_is_refused_or_arrives() {
    for way in [Way::Memory, Way::Tcp].into_iter().cycle().take(12) {
        let cluster = Cluster::over(way, 2, 1, &[("lease", "20")]);
        let newest = std::sync::atomic::AtomicU64::new(0);
        let left = Barrier::new(2);
        cluster.run(|job| {
            let table = job.table(declaration("U", mine(job), all(job))).unwrap();
            if job.rank() == 1 {
                left.wait();
                assert_eq!(
                    get(&table, &[0], Some(u64::MAX >> 2), None).unwrap(),
                    [newest.load(Ordering::Relaxed) as f64],
                    "{way:?}"
                );
                return;
            }
            let begun = Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for clock in 1.. {
                        if set(&table, &[0], clock as f64, Some(clock)).is_err() {
                            break;
                        }
                        newest.store(clock, Ordering::Relaxed);
                        if clock == 100 {
                            begun.wait();
                        }
                    }
                });
                begun.wait();
                job.leave(None).unwrap();
            });
            left.wait();
        });
    }
}

/// A thread that looked at the table on its way to be told that it is dropped kept its name from being free, for ever.
#[test]
fn a_name_is_free_again_though_other_threads_declare_the_table_while_it_is_dropped() {
    let cluster = Cluster::new(1, 1, &[]);
    let job = cluster.join(0);
    let (over, dropped) = (AtomicBool::new(false), Error::Dropped { name: "U".to_owned() });
    let again = || match job.table(declaration("U", 0..4, 0..4)) {
        Err(error) if error == dropped => None,
        made => Some(made.unwrap()),
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    again();
                }
            });
        }
        let mut refused = 0;
        for _ in 0..400 {
            let began = Instant::now();
            let table = loop {
                match again() {
                    Some(table) => break Some(table),
                    None if began.elapsed() > Duration::from_secs(10) => break None,
                    None => {}
                }
            };
            let Some(table) = table else {
                refused += 1;
                break;
            };
            table.discard(None).unwrap();
        }
        over.store(true, Ordering::Relaxed);
        assert_eq!(refused, 0, "nobody has the table, and its name is taken");
    });
    job.leave(None).unwrap();
}

/// One that ended between the server's seal and its answer mapped memory that was sealed against it, again and again.
#[test]
fn a_declaration_that_ends_anywhere_on_its_way_is_made_by_the_same_call() {
    let cluster = Cluster::new(1, 1, &[]);
    let job = cluster.join(0);
    for turn in 0..400 {
        let given = declaration("U", 0..4, 0..4);
        let hasty = Some(Duration::from_micros(5 * (1 + turn % 80)));
        let made = job.table(TableDeclaration { timeout: hasty, ..given.clone() });
        let table = made.or_else(|_| job.table(given)).unwrap();
        set(&table, &[1], 3.0, Some(1)).unwrap();
        assert_eq!(get(&table, &[1], Some(1), None).unwrap(), [3.0]);
        table.discard(None).unwrap();
    }
    job.leave(None).unwrap();
}

#[test]
fn who_does_not_drop_a_table_is_named_and_goes_on_reading_what_was_set() {
    let cluster = Cluster::new(2, 1, &[]);
    let turn = Barrier::new(2);
    cluster.run(|job| {
        let given = declaration("U", mine(job), all(job));
        let table = job.table(given.clone()).unwrap();
        set(&table, &rows(mine(job)), 3.0, Some(1)).unwrap();
        if job.rank() == 0 {
            let late = table.discard(Some(Duration::from_millis(20))).unwrap_err();
            assert!(matches!(&late, Error::DropTimeout { missing, .. } if *missing == [1]), "{late}");
            let again = job.table(given.clone()).unwrap_err();
            assert_eq!(again, Error::Dropped { name: "U".to_owned() }, "not before all have");
            turn.wait();
        } else {
            turn.wait();
            // Nothing newer will come from a worker that has dropped it, so none waits for that.
            assert_eq!(get(&table, &rows(0..ROWS), Some(9), None).unwrap(), [3.0; 4]);
        }
        table.discard(None).unwrap();
        let anew = job.table(given.clone()).unwrap();
        assert_eq!(get(&anew, &rows(all(job)), Some(0), None).unwrap(), [0.0; 8], "a table of its own");
        job.barrier(None).unwrap();
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
