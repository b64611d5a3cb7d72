//! Workers that wait for each other in a circle are told so within seconds, each wait with its worker and its tensor; a program
//! that is only slow, or whose other threads go on, never is.

mod common;

use common::{Cluster, NO_SETTINGS, Way, bytes, declare, pull};
use penstock::worker::{Declaration, Error, Job, Tensor};
use penstock_kernels::Rule;
use penstock_proto::consistency::Consistency::Bsp;
use penstock_proto::error::JobFailure;
use std::time::{Duration, Instant};

/// Longer than a wait takes to find that it is part of a circle. Nothing tells that something was *not* found.
const LONG: Duration = Duration::from_millis(3500);

fn push(tensor: &Tensor) {
    tensor.push(Some(&bytes(&[1.0; 4])), NO_SETTINGS, false, None).unwrap();
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

#[test]
fn a_worker_that_alone_came_to_load_a_state_is_named_with_those_that_train_on() {
    for way in [Way::Memory, Way::Tcp] {
        let since = Instant::now();
        let (loads, trains) = both(
            way,
            |job| {
                declare(job, "w", 4, Bsp);
                job.barrier(None).unwrap_err()
            },
            |job| {
                let w = declare(job, "w", 4, Bsp);
                push(&w);
                let error = pull(&w, None).unwrap_err();
                let _ = job.close(Some(error.to_string()));
                error
            },
        );
        let Error::Knot { knot, missing, .. } = &trains else { panic!("{way:?}: {trains}") };
        assert_eq!(*missing, [0]);
        let expected =
            "worker 0 stands at the barrier and waits for workers [1]; worker 1 waits for `w` of workers [0]";
        assert_eq!(knot, expected, "{way:?}");
        assert!(matches!(loads, Error::Failed(JobFailure::WorkerLost { rank: 1, .. })), "{way:?}: {loads}");
        assert!(since.elapsed() < Duration::from_secs(15), "{way:?}: {:?}", since.elapsed());
    }
}

#[test]
fn workers_that_declared_other_tensors_are_named_with_what_each_waits_for() {
    let trains = |job: &Job| {
        let w = declare(job, "w", 4, Bsp);
        push(&w);
        let error = pull(&w, None).map(drop);
        let _ = job.close(error.as_ref().err().map(ToString::to_string));
        error
    };
    let waits = |job: &Job| {
        declare(job, "w", 4, Bsp);
        // Worker 0 never declares it, and so never gives it a value.
        let more = job.declare(Declaration::new("more", &[4], Rule::Add)).unwrap();
        let error = more.pull(None, None).map(drop);
        let _ = job.close(error.as_ref().err().map(ToString::to_string));
        error
    };
    let (trained, waited) = both(Way::Memory, trains, waits);
    let errors = [trained.unwrap_err().to_string(), waited.unwrap_err().to_string()];
    let expected = "worker 0 waits for `w` of workers [1]; worker 1 waits for `more` of workers [0]";
    assert!(errors.iter().all(|error| error.contains(expected)), "{errors:?}");
}

#[test]
fn a_worker_that_computes_for_long_and_one_whose_other_thread_goes_on_are_in_no_circle() {
    let slow = |job: &Job| {
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
