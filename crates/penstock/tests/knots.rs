//! Workers that wait for each other in a circle are told so within seconds, each wait with its worker and what it is for; a
//! program that is only slow, or whose other threads go on, never is.

mod common;

use common::{Cluster, NO_SETTINGS, Way, at_once, bytes, declare, pull};
use penstock::worker::{Declaration, Error, Job, Table, TableDeclaration, Tensor};
use penstock_kernels::Rule;
use penstock_proto::consistency::Consistency::Bsp;
use penstock_proto::error::Refusal;
use penstock_proto::items::{Propagation, RowSet, Slack, TableError};
use std::fmt::{Debug, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Longer than a wait takes to find that it is part of a circle. Nothing tells that something was *not* found.
const LONG: Duration = Duration::from_millis(3500);

fn push(tensor: &Tensor) {
    tensor.push(Some(&bytes(&[1.0; 4])), NO_SETTINGS, false, None).unwrap();
}

fn table(job: &Job, name: &str, rows: u64) -> Result<Table, Error> {
    let all = || RowSet::from_ranges(std::iter::once(0..rows));
    job.table(TableDeclaration {
        name: name.to_owned(),
        rows,
        row_bytes: 8,
        element: None,
        holds: String::new(),
        sum: false,
        produce: if job.rank() == 0 { all() } else { RowSet::default() },
        consume: all(),
        propagation: Propagation::Eager,
        slack: Slack::Bound(0),
        adaptive: None,
        timeout: None,
    })
}

/// Runs both workers, each in its own thread and with all that it does.
fn both<A: Send, B>(way: Way, first: impl Fn(&Job) -> A + Sync, second: impl Fn(&Job) -> B) -> (A, B) {
    let cluster = Cluster::over(way, 2, 1, &[]);
    let (cluster, first, second) = (&cluster, &first, &second);
    std::thread::scope(|scope| {
        let one = scope.spawn(move || {
            let job = cluster.join(0);
            let result = first(&job);
            let _ = job.close(None);
            result
        });
        let job = cluster.join(1);
        let other = second(&job);
        let _ = job.close(None);
        (one.join().unwrap(), other)
    })
}

/// The same, with workers that have no other threads than the one that waits; returns the circle as it was told to the worker
/// that heard of it first. The other hears that this one has failed with it.
fn knot(
    way: Way,
    first: impl Fn(&Job) -> Result<(), Error> + Sync,
    second: impl Fn(&Job) -> Result<(), Error> + Sync,
) -> String {
    fn alone(job: &Job, work: impl Fn(&Job) -> Result<(), Error>) -> Error {
        job.on_alone(Box::new(|| true));
        let error = work(job).expect_err("it waits in a circle");
        let _ = job.close(Some(error.to_string()));
        error
    }
    let since = Instant::now();
    let (one, other) = both(way, |job| alone(job, &first), |job| alone(job, &second));
    assert!(since.elapsed() < Duration::from_secs(15), "{way:?}: {:?}", since.elapsed());
    match (one, other) {
        (Error::Knot { knot, missing, .. }, other) => {
            assert_eq!(missing, [1], "{way:?}");
            assert!(other.to_string().contains(&knot), "{way:?}: {other}");
            knot
        }
        (other, Error::Knot { knot, missing, .. }) => {
            assert_eq!(missing, [0], "{way:?}");
            assert!(other.to_string().contains(&knot), "{way:?}: {other}");
            knot
        }
        neither => panic!("{way:?}: {neither:?}"),
    }
}

fn trains(job: &Job) -> Result<(), Error> {
    let w = declare(job, "w", 4, Bsp);
    push(&w);
    pull(&w, None).map(drop)
}

#[test]
fn a_worker_that_alone_came_to_load_a_state_is_named_with_those_that_train_on() {
    let loads = |job: &Job| {
        declare(job, "w", 4, Bsp);
        job.barrier_for("load", None).map(drop)
    };
    let expected = "worker 0 stands at the barrier `load` and waits for workers [1]; worker 1 waits for `w` of workers [0]";
    at_once([Way::Memory, Way::Tcp], |way| assert_eq!(knot(way, loads, trains), expected, "{way:?}"));
}

#[test]
fn workers_that_declared_other_tensors_are_named_with_what_each_waits_for() {
    let waits = |job: &Job| {
        declare(job, "w", 4, Bsp);
        // Worker 0 never declares it, and so never gives it a value.
        let more = job.declare(Declaration::new("more", &[4], Rule::Add)).unwrap();
        more.pull(None, None).map(drop)
    };
    let expected = "worker 0 waits for `w` of workers [1]; worker 1 waits for `more` of workers [0]";
    assert_eq!(knot(Way::Memory, trains, waits), expected);
}

#[test]
fn workers_that_declare_tables_in_different_orders_are_named_with_the_tables() {
    let expected = "worker 0 declares table `T` and waits for workers [1]; \
                    worker 1 declares table `U` and waits for workers [0]";
    let declares = |name| move |job: &Job| table(job, name, 4).map(drop);
    at_once([Way::Memory, Way::Tcp], |way| {
        assert_eq!(knot(way, declares("T"), declares("U")), expected, "{way:?}")
    });
}

#[test]
fn a_table_that_only_one_worker_declares_drops_or_sets_is_named_with_what_the_other_waits_for() {
    let declares = |job: &Job| table(job, "T", 4).map(drop);
    let expected = "worker 0 declares table `T` and waits for workers [1]; worker 1 stands at the barrier and waits for workers [0]";
    assert_eq!(knot(Way::Memory, declares, |job| job.barrier(None)), expected);

    let drops = |job: &Job| table(job, "T", 4)?.discard(None);
    let stays = |job: &Job| {
        let _table = table(job, "T", 4)?;
        job.barrier(None)
    };
    let expected = "worker 0 drops table `T` and waits for workers [1]; worker 1 stands at the barrier and waits for workers [0]";
    assert_eq!(knot(Way::Memory, drops, stays), expected);

    let sets_nothing = stays;
    let gets = |job: &Job| table(job, "T", 4)?.get(&[3], &mut [0; 8][..], Some(1), None, None).map(drop);
    let expected = "worker 0 stands at the barrier and waits for workers [1]; worker 1 waits for row 3 of table `T` of workers [0]";
    assert_eq!(knot(Way::Memory, sets_nothing, gets), expected);
}

#[test]
fn a_worker_that_declares_a_table_otherwise_is_told_so_and_with_it_those_who_wait() {
    let declares = |rows| {
        move |job: &Job| {
            let refused = table(job, "T", rows).unwrap_err();
            // The worker that was refused goes on to something else; the others no longer wait for the table.
            job.barrier(None).unwrap();
            refused
        }
    };
    let since = Instant::now();
    let (one, other) = both(Way::Memory, declares(4), declares(5));
    for error in [one, other] {
        let Error::Refused(Refusal::Table(TableError::Differs { .. })) = error else { panic!("{error}") };
    }
    assert!(since.elapsed() < Duration::from_secs(15), "{:?}", since.elapsed());
}

#[test]
fn a_worker_that_computes_for_long_and_one_whose_other_thread_goes_on_are_in_no_circle() {
    let slow = |job: &Job| {
        job.on_alone(Box::new(|| true));
        let w = declare(job, "w", 4, Bsp);
        job.barrier(None).unwrap();
        push(&w);
        pull(&w, None).unwrap()
    };
    let goes_on = |job: &Job| {
        let w = declare(job, "w", 4, Bsp);
        push(&w);
        std::thread::scope(|scope| {
            let pulls = scope.spawn(|| pull(&w, None).unwrap());
            std::thread::sleep(LONG);
            // What worker 0, which the pull waits for, waits for.
            job.barrier(None).unwrap();
            pulls.join().unwrap()
        })
    };
    let (one, other) = both(Way::Memory, slow, goes_on);
    assert_eq!(one, other);
}

/// One thread waits; another, of which the job has never heard, then does what the other worker waits for.
fn waits_at_the_barrier(job: &Job, begins: impl Fn() + Sync) -> (u64, Vec<f64>) {
    let w = declare(job, "w", 4, Bsp);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            begins();
            std::thread::sleep(LONG);
            push(&w);
        });
        job.barrier(None).unwrap();
        other.join().unwrap();
    });
    pull(&w, None).unwrap()
}

fn pulls_first(job: &Job, waits: impl Fn()) -> (u64, Vec<f64>) {
    job.on_alone(Box::new(|| true));
    let w = declare(job, "w", 4, Bsp);
    waits();
    push(&w);
    let value = pull(&w, None).unwrap();
    job.barrier(None).unwrap();
    value
}

#[test]
fn a_worker_whose_other_thread_has_not_used_the_job_yet_is_in_no_circle() {
    let (one, other) = both(
        Way::Memory,
        |job| waits_at_the_barrier(job, || ()), // it says nothing of its threads: the process has others
        |job| pulls_first(job, || ()),
    );
    assert_eq!(one, other);
}

#[test]
fn a_worker_that_starts_another_thread_while_it_waits_takes_back_that_it_is_alone() {
    let alone = Arc::new(AtomicBool::new(true));
    let starts_one = |job: &Job| {
        let asked = Arc::clone(&alone);
        job.on_alone(Box::new(move || asked.load(Ordering::Relaxed)));
        waits_at_the_barrier(job, || {
            std::thread::sleep(Duration::from_secs(2)); // it has said so by then
            alone.store(false, Ordering::Relaxed);
        })
    };
    let is_started = || {
        while alone.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let (one, other) = both(Way::Memory, starts_one, |job| pulls_first(job, is_started));
    assert_eq!(one, other);
}

/// Keeps what the servers of this process say.
struct Kept(Arc<Mutex<String>>);

struct Words<'a>(&'a mut String);

impl Visit for Words<'_> {
    fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
        let _ = writeln!(self.0, "{value:?}");
    }
}

impl Subscriber for Kept {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Words(&mut self.0.lock().unwrap()));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

// Nobody heard of it before the deadline, as soon as a worker's process had another thread or a call a timeout.
#[test]
fn a_circle_that_another_thread_or_a_timeout_may_end_is_warned_of_and_ends_no_wait() {
    let said = Arc::new(Mutex::default());
    tracing::subscriber::set_global_default(Kept(Arc::clone(&said))).unwrap();
    let circle = "worker 0 stands at the barrier and waits for workers [1]; worker 1 waits for `doubtful`";
    // The first pulls in the end too, so that the other's wait is over; each looks for the words before it goes on.
    let is_said = || said.lock().unwrap().contains(circle);
    let barrier = |job: &Job| {
        let w = declare(job, "doubtful", 4, Bsp);
        // Of its own, and as long as a busy machine needs to find the circle.
        let mut timeout = Duration::from_secs(8);
        while !is_said() {
            assert!(matches!(job.barrier(Some(timeout)).unwrap_err(), Error::BarrierTimeout { .. }));
            timeout *= 2;
        }
        push(&w);
        pull(&w, None).unwrap()
    };
    // This process has other threads.
    let pulls = |job: &Job| {
        let w = declare(job, "doubtful", 4, Bsp);
        push(&w);
        pull(&w, None).unwrap()
    };
    let (one, other) = both(Way::Memory, barrier, pulls);
    assert_eq!(one, other);
    let said = said.lock().unwrap();
    assert!(said.contains("until another thread of theirs goes on"), "{said}");
}
