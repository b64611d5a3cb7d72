//! Declaring: what is refused, what does not fit, and what is made by a second call.

use crate::common::{Cluster, Way};
use crate::rig::*;
use penstock::worker::{Error, Job, TableDeclaration};
use penstock_kernels::Dtype;
use penstock_proto::error::Refusal;
use penstock_proto::items::{RowSet, Slack, TableError};
use std::thread;
use std::time::Duration;

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
            declare_in_vain(job, &declaration("U", 0..1, 0..1), 1);
        }
        job.barrier(None).unwrap();
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

/// Declares a table that `missing` does not declare now, until that one is named: in a short time not even the servers may have
/// answered.
fn declare_in_vain(job: &Job, given: &TableDeclaration, missing: u32) {
    let mut timeout = Duration::from_millis(30);
    loop {
        let given = TableDeclaration { timeout: Some(timeout), ..given.clone() };
        match job.table(given).unwrap_err() {
            Error::TableTimeout { missing: named, .. } if named == [missing] => return,
            Error::TableTimeout { .. } | Error::Unanswered { .. } => timeout *= 2,
            error => panic!("{error}"),
        }
    }
}

#[test]
fn a_table_for_which_somebody_was_late_is_made_by_declaring_it_again() {
    for way in [Way::Memory, Way::Tcp, Way::Mixed] {
        let cluster = Cluster::over(way, 2, 2, &[("lease", "20")]);
        let jobs = [cluster.join(0), cluster.join(1)];
        let given = |job: &Job| declaration("U", mine(job), all(job));
        declare_in_vain(&jobs[0], &given(&jobs[0]), 1);
        // All have declared it now, but worker 0 does not wait any more: this one gives up too.
        declare_in_vain(&jobs[1], &given(&jobs[1]), 0);
        let other = TableDeclaration { produce: RowSet::default(), ..given(&jobs[0]) };
        let refused = jobs[0].table(other).unwrap_err();
        assert!(
            matches!(&refused, Error::Refused(Refusal::Table(TableError::DeclaredTwice { .. }))),
            "{way:?}: worker 1 knows already who produces what: {refused}"
        );
        let again = |job: &Job| {
            let table = job.table(given(job)).unwrap();
            set(&table, &rows(mine(job)), 1.0, Some(1)).unwrap();
            assert_eq!(get(&table, &rows(all(job)), Some(1), None).unwrap(), [1.0; 8], "{way:?}");
            job.barrier(None).unwrap();
            job.leave(None).unwrap();
        };
        thread::scope(|scope| jobs.each_ref().map(|job| scope.spawn(|| again(job))).map(drop));
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
