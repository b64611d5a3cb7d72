//! Gets that wait in vain say for what.

use crate::common::cutter::Cutter;
use crate::common::{Cluster, Way};
use crate::rig::*;
use penstock::worker::{Due, Error, Job, TableDeclaration};
use penstock_proto::items::Slack;
use std::sync::Barrier;
use std::time::{Duration, Instant};

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

// Behind calls that took what came, the connection's own thread leaves more to them.
#[test]
fn what_no_call_waits_for_comes_soon_behind_quick_exchanges() {
    for way in [Way::Tcp, Way::Tls] {
        let cluster = Cluster::over(way, 2, 1, &[]);
        cluster.run(|job| {
            let table = job.table(declaration("U", mine(job), all(job))).unwrap();
            let (own, other) = (mine(job).start, ROWS * u64::from(1 - job.rank()));
            for round in 0..20 {
                let clock = round * 100;
                for step in clock + 1..clock + 100 {
                    if job.rank() == 0 {
                        set(&table, &[own], step as f64, Some(step)).unwrap();
                    }
                    assert!(get(&table, &[other], Some(step), None).unwrap()[0] >= step as f64, "{way:?}");
                    if job.rank() == 1 {
                        set(&table, &[own], step as f64, Some(step)).unwrap();
                    }
                }
                let last = clock + 100;
                if job.rank() == 1 {
                    std::thread::sleep(Duration::from_micros(300 * round));
                    set(&table, &[own], last as f64, Some(last)).unwrap();
                    continue;
                }
                let since = Instant::now();
                while get(&table, &[other], None, Some(Slack::Unbounded)).unwrap() != [last as f64] {
                    assert!(since.elapsed() < Duration::from_secs(5), "{way:?}: it never came");
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
            job.barrier(None).unwrap();
        });
    }
}
