//! What a declaration took is given back when it fails half-way. A test file of its own, because it lowers the limit on descriptors,
//! which belongs to the process.

mod common;

use common::{Cluster, NO_SETTINGS, Way, bytes, declare, pull, seconds};
use penstock::worker::{Declaration, Error, Job, Table, TableDeclaration};
use penstock_kernels::{Dtype, Rule};
use penstock_proto::consistency::Consistency::Bsp;
use penstock_proto::error::Refusal;
use penstock_proto::items::{Propagation, RowSet, Slack};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Held by the test that has lowered the limit, or has taken all descriptors.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work` while the process can open no more than `left` descriptors.
fn with_descriptors<T>(left: usize, work: impl FnOnce() -> T) -> T {
    let limit = getrlimit(Resource::Nofile);
    let allow = |current| setrlimit(Resource::Nofile, Rlimit { current, maximum: limit.maximum }).unwrap();
    allow(Some(256));
    let mut taken = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    taken.truncate(taken.len() - left);
    let result = work();
    drop(taken);
    allow(limit.current);
    result
}

#[test]
fn a_slab_that_cannot_be_made_costs_nothing() {
    let _alone = alone();
    let cluster = Cluster::new(1, 1, &[]);
    let job = cluster.join(0);
    let limit = getrlimit(Resource::Nofile);
    let allow = |current| setrlimit(Resource::Nofile, Rlimit { current, maximum: limit.maximum }).unwrap();
    allow(Some(3));
    let mut taken = Vec::new();
    for _ in 0..4 {
        let refused = job.declare(Declaration::new("w", &[10], Rule::Add)).unwrap_err();
        assert!(matches!(&refused, Error::Refused(Refusal::System { .. })), "{refused}");
        // The control thread tells once a turn; its next one is behind this answer.
        let _ = job.clocks();
        let _ = job.clocks();
        taken.push(cluster.servers[0].memory_taken());
    }
    allow(limit.current);
    assert!(taken.iter().all(|one| *one == taken[0]), "{taken:?}");
    declare(&job, "w", 10, Bsp);
    job.leave(None).unwrap();
}

/// The lane was made, and its shards never heard of it: the next declaration succeeded without, and the first push ended the job.
#[test]
fn a_declaration_that_failed_for_want_of_descriptors_is_made_by_the_same_call_wherever_it_failed() {
    let _alone = alone();
    // Among other tensors, and in regions of its own.
    for elements in [10, 1 << 20] {
        let mut failed = 0;
        for left in 0..8 {
            let cluster = Cluster::new(1, 1, &[("memory", "256MiB")]);
            let job = cluster.join(0);
            let declaration = || {
                let mut declaration = Declaration::new("w", &[elements], Rule::Add);
                declaration.spec.dtype = Dtype::F64;
                declaration.consistency = Some(Bsp);
                declaration.timeout = Some(seconds("0.3"));
                declaration
            };
            failed += u32::from(with_descriptors(left, || job.declare(declaration()).is_err()));
            let tensor = declare(&job, "w", elements, Bsp);
            tensor.push(Some(&bytes(&vec![1.0; elements as usize])), NO_SETTINGS, false, None).unwrap();
            job.clock().unwrap();
            assert_eq!(pull(&tensor, None).unwrap().1[0], 1.0, "{elements} elements, {left} descriptors");
            job.leave(None).unwrap();
        }
        assert!((1..8).contains(&failed), "{failed} declarations of {elements} elements failed");
    }
}

/// All rows are rank 0's.
fn table(job: &Job, name: &str, timeout: &str) -> Result<Table, Error> {
    let all = RowSet::from_rows(0..4);
    let produce = if job.rank() == 0 { all.clone() } else { RowSet::default() };
    job.table(TableDeclaration {
        name: name.to_owned(),
        rows: 4,
        row_bytes: 8,
        element: Some(Dtype::F64),
        holds: String::new(),
        sum: false,
        produce,
        consume: all,
        propagation: Propagation::Eager,
        slack: Slack::Bound(0),
        adaptive: None,
        timeout: Some(seconds(timeout)),
    })
}

/// The region was sealed, and whoever passes rows on to other hosts never heard of it: their gets waited in vain.
#[test]
fn a_table_that_failed_for_want_of_descriptors_is_made_by_the_same_call_wherever_it_failed() {
    let _alone = alone();
    let cluster = Cluster::over(Way::Mixed, 2, 1, &[]);
    let (a, b) = (cluster.join(0), cluster.join(1));
    let both = |name: &str, timeout| {
        std::thread::scope(|scope| {
            let theirs = scope.spawn(|| table(&b, name, timeout));
            [table(&a, name, timeout), theirs.join().unwrap()]
        })
    };
    // Its connections are there then.
    assert!(both("before", "20").iter().all(Result::is_ok));
    let mut failed = 0;
    for left in 0..10 {
        let name = format!("with {left}");
        let first = with_descriptors(left, || both(&name, "0.3"));
        failed += u32::from(first.iter().any(Result::is_err));
        drop(first);
        let [mine, theirs] =
            both(&name, "20").map(|made| made.unwrap_or_else(|error| panic!("{name}: {error}")));
        mine.set(&[2], &7.0f64.to_le_bytes(), Some(1)).unwrap();
        let mut out = [0; 8];
        theirs
            .get(&[2], &mut out, Some(1), None, Some(seconds("5")))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(out, 7.0f64.to_le_bytes());
    }
    assert!((1..10).contains(&failed), "{failed}");
    a.leave(None).unwrap();
    b.leave(None).unwrap();
}
