//! Producers that leave, are lost, or were away: what becomes of their rows.

use crate::common::cutter::Cutter;
use crate::common::{Cluster, Way, at_once};
use crate::rig::*;
use penstock::worker::{Due, Error, Job, TableDeclaration};
use penstock_proto::items::Propagation;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

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
    at_once(PROPAGATIONS, |propagation| {
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
    });
}

// It counted as ready with its wait over: the producer went on and left, and its rows reached no one.
#[test]
fn who_could_not_say_what_it_wants_is_not_counted_as_ready() {
    at_once(PROPAGATIONS, |propagation| {
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
    });
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
    let cluster = Cluster::over(Way::Tcp, 2, 1, &[("on_worker_loss", "continue"), ("lease", "3")]);
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
                // One after the other they would take twelve seconds, three each.
                let timeout = Some(Duration::from_secs(10));
                // Lazy rows that nobody had asked for are gone with their producer.
                assert_eq!(table.get(&lost, &mut values, Some(9), None, timeout).unwrap(), 0);
                job.leave(None).unwrap();
            });
        }
    });
}

#[test]
fn a_job_that_goes_on_does_not_wait_for_rows_of_the_lost() {
    at_once([Way::Memory, Way::Tcp], |way| {
        let cluster = Cluster::over(way, 2, 1, &[("on_worker_loss", "continue"), ("lease", "3")]);
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
    });
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
