//! Dropping: memory and names come back, and whoever waits hears of it.

use crate::common;
use crate::common::{Cluster, Way};
use crate::rig::*;
use penstock::worker::{Error, TableDeclaration};
use penstock_proto::items::RowSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

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

#[test]
fn who_does_not_drop_a_table_is_named_and_goes_on_reading_what_was_set() {
    let cluster = Cluster::new(2, 1, &[]);
    let turn = Barrier::new(2);
    cluster.run(|job| {
        let given = declaration("U", mine(job), all(job));
        let table = job.table(given.clone()).unwrap();
        set(&table, &rows(mine(job)), 3.0, Some(1)).unwrap();
        if job.rank() == 0 {
            let until = Instant::now() + common::seconds(common::DEADLINE);
            let late = loop {
                match table.discard(Some(Duration::from_millis(20))).unwrap_err() {
                    // The server is too busy to say in time for whom it was.
                    Error::DropTimeout { missing, .. } if missing.is_empty() && Instant::now() < until => {}
                    Error::Unanswered { .. } if Instant::now() < until => {}
                    error => break error,
                }
            };
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
