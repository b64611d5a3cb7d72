//! Every wait ends by its own deadline and names what it waited for; the job works on afterwards. A worker that leaves is not
//! waited for; one that is lost is named.

mod common;

use common::{Cluster, NO_SETTINGS, Way, at_once, bytes, declare, misses, pull};
use penstock::worker::{Declaration, Error, Job, Membership, TableDeclaration, Tensor};
use penstock_fabric::net::endpoint::Endpoint;
use penstock_fabric::socket::Listener;
use penstock_kernels::{Foreign, Rule};
use penstock_proto::consistency::Consistency::{Asp, Bsp, Ssp};
use penstock_proto::error::{JobFailure, Loss, Refusal};
use penstock_proto::items::{Propagation, RowSet, Slack};
use std::cell::Cell;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

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
    let error = misses(&[1], || wa.pull_into(&mut [0; 32], None, SOON));
    assert!(matches!(error, Error::PullTimeout { version: 1, .. }), "{error}");
    wb.push(Some(&one), NO_SETTINGS, false, None).unwrap();
    assert_eq!(pull(&wa, None).unwrap(), (1, vec![2.0; 4]));
}

// Over the network every later fetch waited for a version that no pull waited for any more, until a worker pushed it.
#[test]
fn a_pull_in_vain_holds_up_no_other_of_the_same_worker() {
    for way in [Way::Memory, Way::Tcp] {
        let cluster = Cluster::over(way, 2, 1, &[]);
        let (a, b) = (cluster.join(0), cluster.join(1));
        let w = declare(&a, "w", 20_000, Ssp(4));
        let _other = declare(&b, "w", 20_000, Ssp(4));
        w.push(Some(&bytes(&[1.0; 20_000])), NO_SETTINGS, false, None).unwrap();
        a.clock().unwrap();
        let loose = || pull(&w, Some(4)).unwrap();
        let strict = |timeout| w.pull_into(vec![0; 160_000].as_mut_slice(), Some(0), timeout);
        assert!(matches!(strict(SOON), Err(Error::PullTimeout { version: 1, .. })), "{way:?}");
        assert_eq!(loose().1, [1.0; 20_000], "{way:?}");
        assert_eq!(w.steps(None).unwrap(), 1, "{way:?}");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| strict(None));
            for _ in 0..20 {
                std::thread::sleep(Duration::from_millis(5));
                loose();
            }
            assert!(!waits.is_finished(), "{way:?}");
            b.clock().unwrap();
            assert_eq!(waits.join().unwrap(), Ok(1), "{way:?}");
        });
    }
}

#[test]
fn a_push_whose_lane_is_not_free_names_who_keeps_it_and_overwrites_nothing() {
    let (_cluster, a, b) = two();
    let (wa, wb) = (declare(&a, "w", 4, Bsp), declare(&b, "w", 4, Bsp));
    wa.push(Some(&bytes(&[1.0; 4])), NO_SETTINGS, false, None).unwrap();
    a.clock().unwrap();
    let error = misses(&[1], || wa.push(Some(&bytes(&[100.0; 4])), NO_SETTINGS, false, SOON));
    assert!(matches!(error, Error::LaneTimeout { iteration: 0, .. }), "{error}");
    wb.push(Some(&bytes(&[1.0; 4])), NO_SETTINGS, false, None).unwrap();
    assert_eq!(pull(&wb, None).unwrap(), (1, vec![2.0; 4]), "the refused push left the lane as it was");
}

// The wait for the lane and the wait for the version: what both took is compared with how long the call says that it waited, so
// that a busy machine changes nothing.
#[test]
fn a_limit_bounds_both_halves_of_a_push_and_pull_together() {
    let limit = Duration::from_secs(2);
    let (_cluster, a, b) = two();
    let (wa, wb) = (declare(&a, "w", 4, Bsp), declare(&b, "w", 4, Bsp));
    let push = |tensor: &Tensor, value| {
        tensor.push(Some(&bytes(&[value; 4])), NO_SETTINGS, false, None).unwrap();
    };
    push(&wa, 1.0);
    a.clock().unwrap();
    let before = a.stats().waited;
    let error = std::thread::scope(|scope| {
        let three = bytes(&[3.0; 4]);
        let both = scope.spawn(move || {
            wa.pushpull_from(Some(Foreign::of(&three)), NO_SETTINGS, Some(limit)).unwrap_err()
        });
        while a.stats().waited == before {
            std::thread::yield_now();
        }
        push(&wb, 1.0);
        both.join().unwrap()
    });
    let spent = a.stats().waited - before;
    match error {
        Error::PullTimeout { missing, version: 2, waited, silent, .. } => {
            // The server may be too busy to say in time for whom it was.
            assert!(missing == [1] || silent == Some(0), "{missing:?}");
            assert!(limit <= waited && spent <= waited, "{spent:?} of waits in {waited:?}");
        }
        error => panic!("{error}"),
    }
    b.clock().unwrap();
    push(&wb, 1.0);
    assert_eq!(pull(&wb, None).unwrap(), (2, vec![6.0; 4]), "what was pushed counts");
}

#[test]
fn a_barrier_names_who_did_not_come() {
    let (_cluster, a, b) = two();
    misses(&[1], || a.barrier(SOON));
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

// It was told that its last attempt had timed out, for which there was no time left.
#[test]
fn who_tries_a_server_on_the_network_in_vain_is_told_why() {
    let cluster = Cluster::new(1, 1, &[("deadline", "0.3")]);
    let mut membership = cluster.membership(0);
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    membership.servers = vec![format!("tcp://{nobody}").parse().unwrap()];
    let error = cluster.try_join(&membership).unwrap_err();
    assert!(
        matches!(&error, Error::ConnectTimeout { server: 0, reason, .. } if reason.contains("refused")),
        "{error}"
    );
}

/// Joins as rank 1 a job of two servers of which the second is not heard of, while worker 0 fails; what it is told.
fn join_while_the_job_fails(way: Way, second: impl FnOnce() -> Endpoint) -> Error {
    let cluster = Cluster::over(way, 2, 2, &[]);
    let first = cluster.join(0);
    let mut membership = cluster.membership(1);
    membership.servers[1] = second();
    std::thread::scope(|scope| {
        let latecomer = scope.spawn(|| cluster.try_join(&membership).unwrap_err());
        while first.clocks().unwrap()[1] < 0 {
            std::thread::yield_now();
        }
        first.fail("no");
        latecomer.join().unwrap()
    })
}

// A worker that had joined some of the servers waited for the others as long as `deadline` said, though it had heard that
// the job was gone.
#[test]
fn whoever_waits_for_a_further_server_hears_that_the_job_has_failed() {
    let failed = |error: Error| {
        assert!(matches!(error, Error::Failed(JobFailure::WorkerLost { rank: 0, .. })), "{error}");
    };
    failed(join_while_the_job_fails(Way::Memory, || common::socket_path().into()));
    let path = common::socket_path();
    let _never_answers = Listener::bind(&path).unwrap();
    failed(join_while_the_job_fails(Way::Memory, || path.into()));
    let never_answers = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = || format!("tcp://{}", never_answers.local_addr().unwrap()).parse().unwrap();
    failed(join_while_the_job_fails(Way::Tcp, address));
}

// It said that it could not join, and was itself named to the others.
#[test]
fn whoever_finds_a_server_gone_while_it_joins_names_it_to_the_others() {
    let cluster = Cluster::new(2, 2, &[]);
    let first = cluster.join(0);
    let path = common::socket_path();
    let hangs_up = Listener::bind(&path).unwrap();
    let mut membership = cluster.membership(1);
    membership.servers[1] = path.into();
    std::thread::scope(|scope| {
        scope.spawn(|| while hangs_up.accept().map(drop).is_err() {});
        let error = cluster.try_join(&membership).unwrap_err();
        assert!(matches!(error, Error::Failed(JobFailure::ServerLost { server: 1, .. })), "{error:?}");
    });
    let error = first.barrier(None).unwrap_err();
    assert!(matches!(error, Error::Failed(JobFailure::ServerLost { server: 1, .. })), "{error}");
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
            let stopped =
                matches!(error, Error::Failed(JobFailure::Stopped { .. } | JobFailure::ServerLost { .. }));
            assert!(stopped, "{error}");
        }
    });
}

/// The servers' launcher says that worker 2 was killed.
fn worker_2_is_killed(cluster: &Cluster) -> JobFailure {
    let how = "was killed by SIGKILL".to_owned();
    cluster.servers.iter().for_each(|server| server.worker_ended(2, Some(how.clone())));
    JobFailure::WorkerLost { rank: 2, loss: Loss::Ended { how } }
}

// It had no connection that could break: those that waited for it did so until their deadline.
#[test]
fn who_waits_for_a_worker_that_was_killed_before_it_joined_hears_so() {
    for way in [Way::Memory, Way::Tcp] {
        let cluster = Cluster::over(way, 3, 2, &[]);
        let (a, b) = (cluster.join(0), cluster.join(1));
        let (wa, _wb) = (declare(&a, "w", 4, Bsp), declare(&b, "w", 4, Bsp));
        wa.push(Some(&bytes(&[1.0; 4])), NO_SETTINGS, false, None).unwrap();
        misses(&[1, 2], || wa.pull_into(&mut [0; 32], None, SOON));
        std::thread::scope(|scope| {
            let waited = a.stats().waited;
            let waits = [
                scope.spawn(|| pull(&wa, None).unwrap_err()),
                scope.spawn(|| b.barrier(None).unwrap_err()),
                scope.spawn(|| b.table(common_table("t")).map(drop).unwrap_err()),
            ];
            while a.stats().waited == waited {
                std::thread::yield_now();
            }
            let expected = worker_2_is_killed(&cluster);
            for wait in waits {
                assert_eq!(wait.join().unwrap(), Error::Failed(expected.clone()), "{way:?}");
            }
            for server in &cluster.servers {
                let ended = server.wait(common::seconds(common::DEADLINE));
                assert_eq!(ended, Some(Err(expected.clone())), "{way:?}");
            }
        });
    }
}

#[test]
fn where_the_others_may_go_on_nobody_waits_for_a_worker_that_was_killed_before_it_joined() {
    for way in [Way::Memory, Way::Tcp] {
        let cluster = Cluster::over(way, 3, 2, &[("on_worker_loss", "continue")]);
        let (a, b) = (cluster.join(0), cluster.join(1));
        let (wa, wb) = (declare(&a, "w", 4, Bsp), declare(&b, "w", 4, Bsp));
        let one = bytes(&[1.0; 4]);
        for w in [&wa, &wb] {
            w.push(Some(&one), NO_SETTINGS, false, None).unwrap();
        }
        misses(&[2], || wa.pull_into(&mut [0; 32], None, SOON));
        worker_2_is_killed(&cluster);
        assert_eq!(pull(&wa, None).unwrap(), (1, vec![2.0; 4]), "{way:?}");
        std::thread::scope(|scope| {
            scope.spawn(|| b.barrier(None).unwrap());
            a.barrier(None).unwrap();
        });
        [a, b].iter().for_each(|job| job.leave(None).unwrap());
        for server in &cluster.servers {
            let ended = server.wait(common::seconds(common::DEADLINE));
            assert_eq!(ended, Some(Ok(())), "{way:?}");
        }
    }
}

// No process was left that would have ended the server: it stayed for ever.
#[test]
fn a_server_whose_workers_have_gone_waits_as_long_as_its_deadline_for_those_that_never_came() {
    at_once([Way::Memory, Way::Tcp], |way| {
        let cluster = Cluster::over(way, 3, 1, &[("deadline", "0.2")]);
        let soon = common::seconds("0.4");
        assert_eq!(cluster.servers[0].wait(soon), None, "{way:?}: whoever has not come may still come");
        let patient = |membership| Job::connect(&membership, common::options(&[]));
        let a = patient(cluster.membership(0)).unwrap();
        assert_eq!(cluster.servers[0].wait(soon), None, "{way:?}: somebody is here");
        a.leave(None).unwrap();
        // A worker that says another size is refused as long as there is a job, and then hears why there is none.
        let refused = || patient(Membership { size: 2, ..cluster.membership(2) }).unwrap_err();
        let until = Instant::now() + common::seconds(common::DEADLINE);
        let told = loop {
            match refused() {
                Error::Refused(Refusal::SizeMismatch { .. }) if Instant::now() < until => {}
                error => break error,
            }
        };
        let Some(Err(failure)) = cluster.servers[0].wait(common::seconds(common::DEADLINE)) else {
            panic!("{way:?}: the job goes on");
        };
        let JobFailure::WorkerLost { rank: 1, loss: Loss::Absent { waited_ms } } = &failure else {
            panic!("{way:?}: {failure}");
        };
        assert!(*waited_ms > 200, "{way:?}: {waited_ms}");
        assert!(told.to_string().contains(&failure.to_string()), "{way:?}: {told}");
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

thread_local! {
    /// Whether this thread's waits are interrupted.
    static INTERRUPTED: Cell<bool> = const { Cell::new(false) };
}

// A thread behind another's push or declaration waited on a lock: it ignored Ctrl-C, and waited as long as the other did,
// whatever its own deadline.
#[test]
fn whoever_waits_behind_another_thread_can_be_interrupted_and_waits_no_longer_than_it_wants() {
    let cluster = Cluster::new(2, 1, &[]);
    let interrupt = Box::new(|| INTERRUPTED.get());
    let joined = Job::connect_interruptibly(&cluster.membership(0), cluster.options.clone(), Some(interrupt));
    let (a, b) = (joined.unwrap(), cluster.join(1));
    let (wa, wb) = (declare(&a, "w", 4, Bsp), declare(&b, "w", 4, Bsp));
    let one = bytes(&[1.0; 4]);
    std::thread::scope(|scope| {
        let waits = common::waiting_push(scope, &a, &wa, &one);
        INTERRUPTED.set(true);
        assert_eq!(a.clock().unwrap_err(), Error::Interrupted);
        INTERRUPTED.set(false);
        wb.push(Some(&one), NO_SETTINGS, false, None).unwrap();
        assert_eq!(waits.join().unwrap(), Ok(1));
    });
    let table = |timeout| {
        let mut declaration = common_table("t");
        declaration.timeout = timeout;
        a.table(declaration)
    };
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| table(None).unwrap());
        while !matches!(table(SOON).unwrap_err(), Error::InLine { .. }) {}
        INTERRUPTED.set(true);
        assert_eq!(table(None).unwrap_err(), Error::Interrupted);
        INTERRUPTED.set(false);
        b.table(common_table("t")).unwrap();
        waits.join().unwrap();
    });
}

/// It stood at a lock, which knows no timeout and hears no Ctrl-C.
#[test]
fn who_waits_for_another_thread_to_fill_the_mirror_can_give_up() {
    /// Of calls most of which meet the other thread inside.
    const ATTEMPTS: u32 = 1000;
    let cluster = Cluster::new(1, 1, &[]);
    let interrupt = Box::new(|| INTERRUPTED.get());
    let joined = Job::connect_interruptibly(&cluster.membership(0), cluster.options.clone(), Some(interrupt));
    let job = joined.unwrap();
    let w = declare(&job, "w", 1 << 21, Asp);
    let filled = AtomicU32::new(0);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let fills = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                w.pull_mirror(None, None).unwrap();
                filled.fetch_add(1, Ordering::Relaxed);
            }
        });
        // Each attempt comes once the other thread has filled it again: whoever leaves a turn and comes back at once may have every
        // turn of a busy machine, and would never stand behind anybody.
        let ends = |mirror: &dyn Fn() -> Result<u64, Error>, expected: &dyn Fn(&Error) -> bool| {
            (0..ATTEMPTS).any(|_| {
                let before = filled.load(Ordering::Relaxed);
                while filled.load(Ordering::Relaxed) == before && !fills.is_finished() {
                    std::thread::yield_now();
                }
                mirror().is_err_and(|error| expected(&error))
            })
        };
        let late = ends(&|| w.pull_mirror(None, Some(Duration::ZERO)), &|error| {
            matches!(error, Error::InLine { .. })
        });
        INTERRUPTED.set(true);
        let interrupted = ends(&|| w.pull_mirror(None, None), &|error| *error == Error::Interrupted);
        INTERRUPTED.set(false);
        over.store(true, Ordering::Relaxed);
        fills.join().unwrap();
        assert!(late && interrupted, "{late} {interrupted}");
    });
}

/// A table whose rows no worker has.
fn common_table(name: &str) -> TableDeclaration {
    TableDeclaration {
        name: name.to_owned(),
        rows: 4,
        row_bytes: 8,
        element: None,
        holds: String::new(),
        sum: false,
        produce: RowSet::default(),
        consume: RowSet::default(),
        propagation: Propagation::Eager,
        slack: Slack::Bound(0),
        adaptive: None,
        timeout: None,
    }
}

// It held what every other thread needs, the job's clock and the way to the shard, as long as its own deadline allowed: a close
// that was to take a second took those thirty.
#[test]
fn a_call_that_waits_for_room_keeps_no_other_longer_than_that_one_wants() {
    let cluster = Cluster::over(Way::Line, 2, 1, &[]);
    let (a, b) = (cluster.join(0), cluster.join(1));
    let (_wa, wb) = (declare(&a, "w", 4, Asp), declare(&b, "w", 4, Asp));
    pull(&wb, None).unwrap();
    let began = Instant::now();
    cluster.lines[0].let_pass(0);
    std::thread::scope(|scope| {
        // Each is a word to every shard, and none is waited for.
        let fills = scope.spawn(|| {
            loop {
                if let Err(error) = b.clock() {
                    return error;
                }
            }
        });
        while b.iteration() == 0 {
            std::thread::yield_now();
        }
        let met = b.barrier(SOON).unwrap_err();
        assert!(matches!(met, Error::NotTaken { .. }), "{met}");
        let pulled = wb.pull_into(&mut [0; 32], Some(0), SOON).unwrap_err();
        assert!(matches!(pulled, Error::Unanswered { .. } | Error::PullTimeout { .. }), "{pulled}");
        let left = b.leave(SOON).unwrap_err();
        assert!(matches!(left, Error::Unanswered { .. } | Error::NotTaken { .. }), "{left}");
        assert_eq!(fills.join().unwrap(), Error::Closed);
    });
    assert!(began.elapsed() < common::seconds(common::DEADLINE) * 2 / 3, "nobody waited for its deadline");
    cluster.lines[0].let_pass(u64::MAX);
    let error = a.barrier(None).unwrap_err();
    assert!(matches!(error, Error::Failed(JobFailure::WorkerLost { rank: 1, .. })), "{error}");
}

// Each took two seconds more, for a server to say which workers it was for.
#[test]
fn a_limit_bounds_the_whole_call_where_a_server_says_nothing_at_all() {
    let cluster = Cluster::over(Way::Line, 2, 1, &[("lease", "60")]);
    let (a, b) = (cluster.join(0), cluster.join(1));
    let (_wa, wb) = (declare(&a, "w", 4, Bsp), declare(&b, "w", 4, Bsp));
    let [_va, vb] = [&a, &b].map(|job| {
        let rule = Rule::Sgd { momentum: true, nesterov: false, maximize: false };
        let tensor = job.declare(Declaration::new("v", &[4], rule)).unwrap();
        tensor.initialize(None, None).unwrap();
        tensor
    });
    wb.push(Some(&bytes(&[1.0; 4])), NO_SETTINGS, false, None).unwrap();
    b.clock().unwrap();
    cluster.lines[0].let_pass(0);
    let began = Instant::now();
    for _ in 0..3 {
        // Each says what was waited for, though no server says which workers: code that waits for one thing catches that error.
        let pushed = wb.push(None, NO_SETTINGS, false, SOON).unwrap_err();
        assert!(matches!(pushed, Error::LaneTimeout { silent: Some(0), .. }), "{pushed}");
        let pulled = wb.pull_into(&mut [0; 32], None, SOON).unwrap_err();
        assert!(matches!(pulled, Error::PullTimeout { silent: Some(0), .. }), "{pulled}");
        let others = [
            wb.steps(SOON).map(drop),
            vb.state(0, SOON).map(drop),
            b.table(TableDeclaration { timeout: SOON, ..common_table("t") }).map(drop),
            b.barrier(SOON),
        ];
        for other in others {
            let error = other.unwrap_err();
            let names_it = match &error {
                Error::Unanswered { server, .. } | Error::NotTaken { server, .. } => *server == 0,
                Error::LaneTimeout { silent, .. } | Error::PullTimeout { silent, .. } => *silent == Some(0),
                _ => false,
            };
            assert!(names_it && error.to_string().contains("server 0"), "{error}");
        }
    }
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}
