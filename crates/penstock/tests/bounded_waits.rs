//! Every wait ends by its own deadline and names whom it waited for; the job works on afterwards. Who leaves is not waited
//! for, who is lost is named.

mod common;

use common::{Cluster, NO_SETTINGS, bytes, declare, pull};
use penstock::worker::{Declaration, Error, Job};
use penstock_kernels::Rule;
use penstock_proto::consistency::Consistency::Bsp;
use penstock_proto::error::{JobFailure, Loss, Refusal};
use std::time::Duration;

const SOON: Option<Duration> = Some(Duration::from_millis(50));

fn two() -> (Cluster, Job, Job) {
    let cluster = Cluster::new(2, 1, &[]);
    let (a, b) = (cluster.join(0), cluster.join(1));
    (cluster, a, b)
}

#[test]
fn a_pull_that_waits_in_vain_names_who_did_not_push_and_the_job_works_on() {
    let (_cluster, a, b) = two();
    let (wa, wb) = (declare(&a, "w", 4, Bsp), declare(&b, "w", 4, Bsp));
    let one = bytes(&[1.0; 4]);
    wa.push(Some(&one), NO_SETTINGS, false, None).unwrap();
    match wa.pull_into(&mut [0; 32], None, SOON).unwrap_err() {
        Error::PullTimeout { missing, version: 1, .. } => assert_eq!(missing, [1]),
        error => panic!("{error}"),
    }
    wb.push(Some(&one), NO_SETTINGS, false, None).unwrap();
    assert_eq!(pull(&wa, None).unwrap(), (1, vec![2.0; 4]));
}

#[test]
fn a_push_whose_lane_is_not_free_names_who_keeps_it_and_overwrites_nothing() {
    let (_cluster, a, b) = two();
    let (wa, wb) = (declare(&a, "w", 4, Bsp), declare(&b, "w", 4, Bsp));
    wa.push(Some(&bytes(&[1.0; 4])), NO_SETTINGS, false, None).unwrap();
    a.clock().unwrap();
    match wa.push(Some(&bytes(&[100.0; 4])), NO_SETTINGS, false, SOON).unwrap_err() {
        Error::LaneTimeout { missing, iteration: 0, .. } => assert_eq!(missing, [1]),
        error => panic!("{error}"),
    }
    wb.push(Some(&bytes(&[1.0; 4])), NO_SETTINGS, false, None).unwrap();
    assert_eq!(pull(&wb, None).unwrap(), (1, vec![2.0; 4]), "the refused push left the lane as it was");
}

#[test]
fn a_barrier_names_who_did_not_come() {
    let (_cluster, a, b) = two();
    match a.barrier(SOON).unwrap_err() {
        Error::BarrierTimeout { missing, .. } => assert_eq!(missing, [1]),
        error => panic!("{error}"),
    }
    std::thread::scope(|scope| {
        scope.spawn(|| b.barrier(None).unwrap());
        a.barrier(None).unwrap();
    });
}

#[test]
fn a_tensor_that_worker_0_never_gave_a_value_says_so() {
    let (_cluster, a, b) = two();
    let w = b.declare(Declaration::new("w", &[4], Rule::Add)).unwrap();
    w.initialize(None, None).unwrap();
    assert!(matches!(w.pull(None, SOON), Err(Error::NoValue { .. })));
    let error = a.leave(None).unwrap_err();
    assert!(matches!(error, Error::Failed(JobFailure::NoValue { .. })), "{error}");
    let error = w.pull(None, None).unwrap_err();
    assert!(matches!(error, Error::Failed(JobFailure::NoValue { .. })), "{error}");
}

#[test]
fn a_server_that_is_not_there_is_named_with_its_path() {
    let cluster = Cluster::new(1, 1, &[("deadline", "0.05")]);
    let mut membership = cluster.membership(0);
    membership.servers = vec![common::socket_path().into()];
    match cluster.try_join(&membership).unwrap_err() {
        Error::ConnectTimeout { server: 0, path, .. } => {
            assert_eq!(path, membership.servers[0].to_string())
        }
        error => panic!("{error}"),
    }
}

#[test]
fn a_worker_that_leaves_is_not_waited_for_and_its_last_push_counts() {
    let (_cluster, a, b) = two();
    let (wa, wb) = (declare(&a, "w", 4, Bsp), declare(&b, "w", 4, Bsp));
    wb.push(Some(&bytes(&[5.0; 4])), NO_SETTINGS, false, None).unwrap();
    b.leave(None).unwrap();
    for iteration in 1..4 {
        wa.push(Some(&bytes(&[1.0; 4])), NO_SETTINGS, false, None).unwrap();
        a.clock().unwrap();
        assert_eq!(pull(&wa, None).unwrap(), (iteration, vec![5.0 + iteration as f64; 4]));
    }
    assert!(
        matches!(wb.push(None, NO_SETTINGS, false, None), Err(Error::Closed)),
        "a push after close is refused"
    );
}

#[test]
fn a_worker_that_fails_is_named_to_the_others_with_its_words() {
    let (cluster, a, b) = two();
    let wa = declare(&a, "w", 4, Bsp);
    b.fail("ValueError: no");
    let error = wa.push(None, NO_SETTINGS, false, None).and_then(|_| pull(&wa, None)).unwrap_err();
    let expected =
        JobFailure::WorkerLost { rank: 1, loss: Loss::Failed { what: "ValueError: no".to_owned() } };
    assert_eq!(error, Error::Failed(expected.clone()));
    assert_eq!(cluster.servers[0].wait(common::seconds(common::DEADLINE)), Some(Err(expected)));
}

#[test]
fn a_job_that_is_dropped_counts_as_failed() {
    let (_cluster, a, b) = two();
    let wa = declare(&a, "w", 4, Bsp);
    drop(b);
    let error = wa.push(None, NO_SETTINGS, false, None).and_then(|_| pull(&wa, None)).unwrap_err();
    assert!(matches!(error, Error::Failed(JobFailure::WorkerLost { rank: 1, .. })), "{error}");
}

#[test]
fn a_server_that_stops_is_noticed_by_every_wait() {
    let (mut cluster, a, _b) = two();
    let wa = declare(&a, "w", 4, Bsp);
    wa.push(Some(&bytes(&[1.0; 4])), NO_SETTINGS, false, None).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pull(&wa, None).unwrap_err());
        let at_barrier = scope.spawn(|| a.barrier(None).unwrap_err());
        cluster.servers[0].stop();
        for error in [waiting.join().unwrap(), at_barrier.join().unwrap()] {
            let stopped = matches!(error, Error::Failed(JobFailure::Stopped | JobFailure::ServerLost { .. }));
            assert!(stopped, "{error}");
        }
    });
}

#[test]
fn who_may_not_join_is_told_why_and_takes_nobodys_place() {
    let cluster = Cluster::new(2, 1, &[]);
    let _a = cluster.join(0);
    let refused = |membership| match cluster.try_join(&membership).unwrap_err() {
        Error::Refused(refusal) => refusal,
        error => panic!("{error}"),
    };
    assert_eq!(refused(cluster.membership(0)), Refusal::RankTaken { rank: 0 });
    assert_eq!(refused(cluster.membership(2)), Refusal::RankOutOfRange { rank: 2, size: 2 });
    let mut other = cluster.membership(1);
    other.size = 3;
    assert_eq!(refused(other), Refusal::SizeMismatch { expected: 2, got: 3 });
    let mut stranger = cluster.membership(1);
    stranger.secret.0[31] ^= 1;
    assert_eq!(refused(stranger), Refusal::Authentication);
    let _b = cluster.join(1);
}

#[test]
fn a_tensor_that_does_not_fit_says_how_much_it_needs_and_leaves_the_job_as_it_was() {
    let cluster = Cluster::new(1, 1, &[("memory", "4MiB")]);
    let job = cluster.join(0);
    let small = declare(&job, "small", 1000, Bsp);
    let error = job.declare(Declaration::new("large", &[1 << 20], Rule::Add)).unwrap_err();
    match error {
        Error::Refused(Refusal::OutOfMemory { needed, available, .. }) => {
            assert!(needed >= 8 << 20 && available < 4 << 20, "{needed} of {available}");
        }
        error => panic!("{error}"),
    }
    small.push(Some(&bytes(&[1.0; 1000])), NO_SETTINGS, false, None).unwrap();
    assert_eq!(pull(&small, None).unwrap(), (1, vec![1.0; 1000]));
    assert!(job.declare(Declaration::new("large", &[100], Rule::Add)).is_ok(), "the name is free");
}
