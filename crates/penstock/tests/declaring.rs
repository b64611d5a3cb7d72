//! A tensor is one tensor of its worker, however often and from wherever it is declared: one lane, one count of what stands in
//! it, one first value.

mod common;

use common::raw::{Raw, hear, tell};
use common::{Cluster, NO_SETTINGS, Way, bytes, declare, pull, waiting_push};
use penstock::worker::{Declaration, Error};
use penstock_kernels::{Dtype, Rule};
use penstock_proto::consistency::Consistency::{Asp, Bsp, Ssp};
use penstock_proto::error::Refusal;
use penstock_proto::message::{Answer, Ask};
use penstock_proto::propagation::Propagation;
use penstock_proto::spec::{Reduce, TensorSpec};
use penstock_proto::travel::Travel;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SOON: Option<Duration> = Some(Duration::from_millis(50));

/// What each is declared as where it is `declare`d.
fn declaration(elements: u64) -> Declaration {
    let mut declaration = Declaration::new("w", &[elements], Rule::Add);
    declaration.spec.dtype = Dtype::F64;
    declaration.consistency = Some(Bsp);
    declaration
}

// The second had a count of its own, which said that the lane was free: what stood there was overwritten, and 10 was folded
// twice or 1 lost.
#[test]
fn a_tensor_that_is_declared_twice_has_one_lane() {
    for way in [Way::Memory, Way::Tcp] {
        let cluster = Cluster::over(way, 2, 1, &[]);
        let (a, b) = (cluster.join(0), cluster.join(1));
        let (first, theirs) = (declare(&a, "w", 4, Bsp), declare(&b, "w", 4, Bsp));
        let second = declare(&a, "w", 4, Bsp);
        first.push(Some(&bytes(&[1.0; 4])), NO_SETTINGS, false, None).unwrap();
        let again = second.push(Some(&bytes(&[10.0; 4])), NO_SETTINGS, false, SOON);
        assert!(matches!(again, Err(Error::AlreadyPushed { .. })), "{again:?}");
        a.clock().unwrap();
        let early = second.push(Some(&bytes(&[10.0; 4])), NO_SETTINGS, false, SOON);
        assert!(matches!(early, Err(Error::LaneTimeout { .. })), "{early:?}");
        theirs.push(Some(&bytes(&[2.0; 4])), NO_SETTINGS, false, None).unwrap();
        assert_eq!(pull(&second, None).unwrap(), (1, vec![3.0; 4]));
        assert!(Arc::ptr_eq(&first, &second));
    }
}

#[test]
fn threads_that_declare_a_tensor_together_have_one() {
    let cluster = Cluster::new(1, 2, &[]);
    let job = cluster.join(0);
    let tensors: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| declare(&job, "w", 100_000, Bsp))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(tensors.iter().all(|tensor| Arc::ptr_eq(tensor, &tensors[0])));
    assert_eq!(job.balance().iter().flatten().sum::<u64>(), 25 * 32 * 1024, "it counts once");
}

#[test]
fn a_declaration_that_a_server_did_not_answer_goes_on_where_it_got_stuck() {
    let cluster = Cluster::over(Way::Line, 2, 2, &[("chunk_bytes", "8KiB")]);
    let (a, b) = (cluster.join(0), cluster.join(1));
    let theirs = declare(&a, "w", 100_000, Bsp);
    cluster.lines[1].let_pass(0);
    let asked = Declaration { timeout: SOON, ..declaration(100_000) };
    let until = Instant::now() + common::seconds(common::DEADLINE);
    let stuck = loop {
        match b.declare(asked.clone()).unwrap_err() {
            // It lives, and is busy.
            Error::Unanswered { server: 0, .. } if Instant::now() < until => {}
            error => break error,
        }
    };
    assert!(matches!(stuck, Error::Unanswered { server: 1, .. }), "{stuck}");
    let other = b.declare(declaration(7)).unwrap_err();
    assert!(matches!(&other, Error::Refused(Refusal::Conflict { what, .. }) if what == "shape"), "{other}");
    cluster.lines[1].let_pass(u64::MAX);
    let ours = b.declare(declaration(100_000)).unwrap();
    for (tensor, value) in [(&theirs, 1.0), (&ours, 2.0)] {
        tensor.push(Some(&bytes(&vec![value; 100_000])), NO_SETTINGS, false, None).unwrap();
    }
    assert_eq!(pull(&ours, None).unwrap(), (1, vec![3.0; 100_000]));
    assert_eq!(b.balance().iter().flatten().sum::<u64>(), 98 * 8 * 1024);
}

// Worker 0 was interrupted while it waited for its value to stand, and declared the tensor again: that overwrote what others had
// contributed meanwhile.
#[test]
fn a_first_value_is_given_once() {
    let cluster = Cluster::new(2, 1, &[]);
    let (a, b) = (cluster.join(0), cluster.join(1));
    let mut asked = declaration(4);
    asked.consistency = Some(Asp);
    let ours = a.declare(asked.clone()).unwrap();
    let value = bytes(&[5.0; 4]);
    // In time or not, it is on its way.
    let _ = ours.initialize(Some(&value), Some(Duration::ZERO));
    let theirs = b.declare(asked.clone()).unwrap();
    theirs.push(Some(&bytes(&[1.0; 4])), NO_SETTINGS, false, None).unwrap();
    theirs.lane(None).unwrap();
    a.declare(asked).unwrap().initialize(Some(&value), None).unwrap();
    assert_eq!(pull(&ours, None).unwrap().1, vec![6.0; 4]);
}

#[test]
fn another_declaration_of_a_tensor_is_refused_with_what_differs() {
    let cluster = Cluster::new(1, 1, &[]);
    let job = cluster.join(0);
    declare(&job, "w", 4, Bsp);
    let mut other = declaration(4);
    other.consistency = Some(Ssp(8));
    other.adaptive = Some("0:8".parse().unwrap());
    match job.declare(other).unwrap_err() {
        Error::Refused(Refusal::Conflict { what, expected, got, .. }) => {
            assert_eq!((&what[..], &expected[..], &got[..]), ("consistency", "bsp", "ssp:auto:0:8"));
        }
        error => panic!("{error}"),
    }
}

// Shards that are home of nothing are not told of every clock: a worker that declares the first tensor there waits for workers
// that have long passed it, and may compute on for as long as they like. However long the lease is.
#[test]
fn whoever_has_passed_a_tensor_before_its_shard_heard_so_is_not_waited_for() {
    for way in [Way::Memory, Way::Tcp] {
        let cluster = Cluster::over(way, 2, 1, &[("lease", "100")]);
        let (a, b) = (cluster.join(0), cluster.join(1));
        for _ in 0..3 {
            b.clock().unwrap();
            a.clock().unwrap();
        }
        let early = declare(&a, "w", 4, Bsp);
        assert_eq!(pull(&early, None).unwrap(), (3, vec![0.0; 4]));
        let late = declare(&b, "w", 4, Bsp);
        for (tensor, job, value) in [(&early, &a, 1.0), (&late, &b, 2.0)] {
            tensor.push(Some(&bytes(&[value; 4])), NO_SETTINGS, false, None).unwrap();
            job.clock().unwrap();
        }
        assert_eq!(pull(&late, None).unwrap(), (4, vec![3.0; 4]));
        // A shard that is home of nothing hears of a clock a little later.
        let since = Instant::now();
        while a.clocks().unwrap() != [4, 4] {
            assert!(since.elapsed() < Duration::from_secs(20), "{:?}", a.clocks());
        }
    }
}

// The clock that worker 1 had not told kept worker 0 waiting, which kept worker 1 waiting: that was taken for a circle, and
// where it was not, an iteration took an eighth of the lease.
#[test]
fn workers_go_in_step_although_one_has_not_declared_a_tensor_that_the_other_pulls() {
    for way in [Way::Memory, Way::Tcp] {
        let cluster = Cluster::over(way, 2, 1, &[("lease", "100")]);
        let work = |rank| {
            let job = cluster.join(rank);
            job.on_alone(Box::new(|| true));
            let both = declare(&job, "w", 4, Bsp);
            let early = (rank == 0).then(|| declare(&job, "u", 4, Bsp));
            job.barrier(None).unwrap();
            for round in 1..=50 {
                both.push(Some(&bytes(&[1.0; 4])), NO_SETTINGS, false, None).unwrap();
                job.clock().unwrap();
                assert_eq!(pull(&both, None).unwrap().0, round);
                if let Some(early) = &early {
                    assert_eq!(pull(early, None).unwrap().0, round);
                }
            }
            job.barrier(None).unwrap();
        };
        std::thread::scope(|scope| {
            [0, 1].map(|rank| scope.spawn(move || work(rank))).map(|t| t.join().unwrap())
        });
    }
}

// To tell a shard the clock, a thread that came to the barrier waited for the push that waits for the one at the barrier.
#[test]
fn a_push_that_waits_keeps_no_other_thread_from_the_barrier_the_clocks_or_a_declaration() {
    for way in [Way::Memory, Way::Tcp] {
        let cluster = Cluster::over(way, 2, 1, &[]);
        let (a, b) = (cluster.join(0), cluster.join(1));
        let (ours, theirs) = (declare(&a, "w", 4, Bsp), declare(&b, "w", 4, Bsp));
        for job in [&a, &b] {
            job.clock().unwrap();
        }
        let data = bytes(&[1.0; 4]);
        std::thread::scope(|scope| {
            let waits = waiting_push(scope, &a, &ours, &data);
            let other = scope.spawn(|| b.barrier(None));
            a.clocks().unwrap();
            declare(&a, "u", 4, Bsp);
            a.barrier(None).unwrap();
            other.join().unwrap().unwrap();
            assert!(!waits.is_finished());
            theirs.push(Some(&data), NO_SETTINGS, false, None).unwrap();
            b.clock().unwrap();
            waits.join().unwrap().unwrap();
        });
    }
}

/// A worker's request to declare a tensor, as it is on the wire.
fn request(name: String, elements: u64) -> Ask {
    let spec = TensorSpec {
        name,
        shape: vec![elements],
        dtype: Dtype::F32,
        rule: Rule::Add,
        consistency: Bsp,
        propagation: Propagation::Pull,
        reduce: Reduce::Sum,
        rescale: 1.0,
        clip: None,
        refuse_nonfinite: false,
        travel: Travel::default(),
    };
    Ask::Declare { spec, decided: None }
}

// All of its memory was touched in the turn of the request, and whoever asked for a sign of life meanwhile had none: of a few
// gigabytes for so long that honest workers took the server for lost.
#[test]
fn while_a_large_tensor_is_declared_others_are_heard() {
    let cluster = Cluster::new(1, 1, &[("memory", "4GiB")]);
    let raw = Raw::join(&cluster, 0);
    // This thread may be suspended until the tensor is there, but not each time.
    let overtakes = (0..30).any(|attempt| {
        let first = 2 + 3 * attempt;
        tell(&raw.connection, first, request(format!("large {attempt}"), 24 << 20));
        tell(&raw.connection, first + 1, request(format!("small {attempt}"), 16));
        tell(&raw.connection, first + 2, Ask::Beat);
        let heard: Vec<(u64, Answer)> =
            (0..3).map(|_| hear(&raw.connection).0).map(|reply| (reply.id, reply.body)).collect();
        let at = |id| heard.iter().position(|(of, _)| *of == id).unwrap();
        for id in [first, first + 1] {
            assert!(matches!(heard[at(id)].1, Answer::Declared { .. }), "{:?}", heard[at(id)]);
        }
        assert!(at(first) < at(first + 1), "tensors are declared one after the other");
        at(first + 2) == 0
    });
    assert!(overtakes, "a sign of life waited for a tensor's memory each time");
}

// Of the first size for which all but what its connection may have to hold had room, the tensor stayed, without a value that
// anybody could give it: with its memory, and with its name, which could be declared as nothing else.
#[test]
fn a_program_that_asks_for_less_and_less_has_what_fits() {
    let settings = [("chunk_bytes", "4MiB"), ("shards", "1"), ("memory", "80000000")];
    let cluster = Cluster::over(Way::Tcp, 1, 1, &settings);
    let job = cluster.join(0);
    let sizes = (2 << 20..8 << 20).rev().step_by(128 << 10);
    let fits = sizes.map(|elements| {
        job.declare(Declaration::new("w", &[elements], Rule::Adam { amsgrad: false, maximize: false }))
    });
    let mut refused = 0;
    let w = fits.into_iter().find_map(|declared| match declared {
        Ok(w) => Some(w),
        Err(Error::Refused(Refusal::OutOfMemory { .. } | Refusal::Exhausted { .. })) => {
            refused += 1;
            None
        }
        Err(error) => panic!("{error}"),
    });
    assert!(refused > 10, "{refused} were too large");
    w.unwrap().initialize(None, None).unwrap();
    job.close(None).unwrap();
}
