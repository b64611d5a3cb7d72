//! What a declaration took is given back when it fails half-way. A test file of its own, because it lowers the limit on
//! descriptors, which belongs to the process.

mod common;

use common::{Cluster, NO_SETTINGS, Way, bytes, declare, pull, raw, seconds};
use penstock::worker::{Declaration, Error, Job, Table, TableDeclaration};
use penstock_kernels::{Dtype, Rule};
use penstock_proto::consistency::Consistency::Bsp;
use penstock_proto::error::Refusal;
use penstock_proto::items::control::{TableAnswer, TableAsk};
use penstock_proto::items::wire::PartitionId;
use penstock_proto::items::{Propagation, RowSet, Slack, TableSpec};
use penstock_proto::message::{Answer, Ask};
use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::io::IoSlice;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

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
            let refused = with_descriptors(left, || job.declare(declaration()).err());
            failed += u32::from(refused.is_some());
            if let Some(Error::Refused(refusal @ Refusal::System { .. })) = refused {
                assert!(refusal.to_string().contains("ulimit -n"), "{refusal}");
            }
            let tensor = declare(&job, "w", elements, Bsp);
            tensor.push(Some(&bytes(&vec![1.0; elements as usize])), NO_SETTINGS, false, None).unwrap();
            job.clock().unwrap();
            assert_eq!(pull(&tensor, None).unwrap().1[0], 1.0, "{elements} elements, {left} descriptors");
            job.leave(None).unwrap();
        }
        assert!((1..8).contains(&failed), "{failed} declarations of {elements} elements failed");
    }
}

/// Gives up what lets this thread, and those that it starts, have more descriptors under way than a process may have open.
fn without_privileges() {
    use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
    let CapabilitySets { effective, permitted, inheritable } = capabilities(None).unwrap();
    let effective = effective - CapabilitySet::SYS_ADMIN - CapabilitySet::SYS_RESOURCE;
    set_capabilities(None, CapabilitySets { effective, permitted, inheritable }).unwrap();
}

/// As many descriptors on their way as the system lets a user have, and more.
fn descriptors_under_way() -> Vec<(UnixStream, UnixStream)> {
    let file = File::open("/dev/null").unwrap();
    let descriptors = [file.as_fd(); 250];
    let mut pairs = Vec::new();
    loop {
        let (sender, receiver) = UnixStream::pair().unwrap();
        let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(250))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        let sent = sendmsg(&sender, &[IoSlice::new(b"x")], &mut control, SendFlags::DONTWAIT);
        pairs.push((sender, receiver));
        match sent {
            Ok(_) => assert!(pairs.len() < 1000, "the system passes on whatever it is given"),
            Err(Errno::TOOMANYREFS) => return pairs,
            Err(error) => panic!("{error}"),
        }
    }
}

// It had joined all the same, was lost, and the rank was taken for good.
#[test]
fn a_worker_whose_descriptors_cannot_be_passed_on_has_not_joined_and_may_try_again() {
    let _alone = alone();
    // The server's threads have the rights of the thread that starts them.
    thread::spawn(|| {
        without_privileges();
        let cluster = Cluster::new(1, 1, &[]);
        let connections = [raw::enter(&cluster, 0), raw::enter(&cluster, 0)];
        let limit = getrlimit(Resource::Nofile);
        let allow =
            |current| setrlimit(Resource::Nofile, Rlimit { current, maximum: limit.maximum }).unwrap();
        allow(Some(512));
        let under_way = descriptors_under_way();
        let (refused, _) = raw::say(&connections[0], 1, raw::hello(0, 1));
        drop(under_way);
        allow(limit.current);
        assert!(matches!(&refused, Answer::Refused(Refusal::System { .. })), "{refused:?}");
        drop(connections);
        let job = cluster.join(0);
        declare(&job, "w", 10, Bsp);
        job.leave(None).unwrap();
        assert_eq!(cluster.servers[0].wait(seconds(common::DEADLINE)), Some(Ok(())));
    })
    .join()
    .unwrap();
}

// Nothing tried again: workers that waited for its rows did so until the deadline.
#[test]
fn rows_of_a_lost_producer_that_could_not_be_sealed_at_first_are_sealed_later() {
    let _alone = alone();
    let cluster = Cluster::new(2, 1, &[("on_worker_loss", "continue")]);
    let (consumer, producer) = (raw::Raw::join(&cluster, 0), raw::Raw::join(&cluster, 1));
    set_socket_timeout(&consumer.connection, Timeout::Recv, Some(seconds("20"))).unwrap();
    let (name, propagation) = ("U".to_owned(), Propagation::Eager);
    let spec =
        TableSpec { name: name.clone(), rows: 4, row_bytes: 8, sum: None, propagation, holds: String::new() };
    let (all, none) = (RowSet::from_rows(0..4), RowSet::default());
    let next = consumer.declare(&spec, &none, &all);
    producer.declare(&spec, &all, &none);
    let ask = |raw: &raw::Raw, id, ask| raw.ask(id, Ask::Table(ask));
    let joined = ask(&consumer, next, TableAsk::Join { name });
    assert!(matches!(joined, Answer::Table(TableAnswer::Joined { .. })), "{joined:?}");
    let partition = PartitionId { table: 0, rank: 1 };
    let partition = TableAsk::Partition { partition, slots: 4, row_bytes: 8, propagation };
    assert_eq!(ask(&producer, 9, partition.clone()), Answer::Table(TableAnswer::Partition));
    raw::tell(&consumer.connection, next + 1, Ask::Table(partition));
    ask(&consumer, next + 2, TableAsk::Users { id: 0 });
    // No number below is free, whatever is closed now.
    let limit = getrlimit(Resource::Nofile);
    let allow = |current| setrlimit(Resource::Nofile, Rlimit { current, maximum: limit.maximum }).unwrap();
    allow(Some(3));
    drop(producer);
    let mut id = next + 3;
    let lost = |answer| matches!(answer, Answer::Clocks { clocks } if clocks[1] < 0);
    while !lost(consumer.ask(id, Ask::Clocks)) {
        id += 1;
    }
    allow(limit.current);
    let (reply, descriptors) = raw::hear(&consumer.connection);
    assert_eq!((reply.id, reply.body), (next + 1, Answer::Table(TableAnswer::Partition)));
    assert_eq!(descriptors.len(), 3);
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

/// The partition was sealed, and the thread that passes rows on to other hosts never heard of it: their gets waited in vain.
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
