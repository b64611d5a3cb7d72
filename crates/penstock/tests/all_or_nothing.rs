//! A call that ends with an error has done nothing: no half of an update is left behind, and no worker passes a barrier with a
//! worker that was told it did not (M-1), nor takes for done what worker 0 could not do for all (M-4).

mod common;

use common::{Cluster, NO_SETTINGS, Way, bytes, declare, misses, pull};
use penstock::worker::{Declaration, Error, Job, Tensor};
use penstock_kernels::{Foreign, Rule};
use penstock_proto::consistency::Consistency::{Asp, Bsp};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SOON: Option<Duration> = Some(Duration::from_millis(50));

thread_local! {
    /// Whether this thread's waits are interrupted.
    static INTERRUPTED: Cell<bool> = const { Cell::new(false) };
}

fn interruptible(cluster: &Cluster, rank: u32) -> Job {
    let interrupt = Box::new(|| INTERRUPTED.get());
    Job::connect_interruptibly(&cluster.membership(rank), cluster.options.clone(), Some(interrupt)).unwrap()
}

// Its windows were submitted one by one, each waiting for room: a deadline in the middle left the first ones submitted, which the
// next push of the same iteration submitted again.
#[test]
fn a_push_that_finds_no_room_in_time_has_pushed_nothing() {
    let cluster =
        Cluster::over(Way::Line, 2, 1, &[("deadline", "1"), ("shards", "1"), ("chunk_bytes", "64KiB")]);
    let (a, b) = (cluster.join(0), cluster.join(1));
    // 32 windows.
    let elements = 1 << 20;
    let (wa, wb) = (declare(&a, "w", elements, Asp), declare(&b, "w", elements, Asp));
    let ones = bytes(&vec![1.0; elements as usize]);
    pull(&wb, None).unwrap();
    let mut passes = 0;
    cluster.lines[0].let_pass(passes);
    // Each is a word to the shard, until the ring is full of them.
    while b.clock().is_ok() {}
    for _ in 0..8 {
        let error = wb.push(Some(&ones), NO_SETTINGS, false, SOON).unwrap_err();
        assert!(matches!(error, Error::Unanswered { .. }), "{error}");
        // A few words more fit, and not all.
        passes += 300;
        cluster.lines[0].let_pass(passes);
    }
    cluster.lines[0].let_pass(u64::MAX);
    let patient = Some(common::seconds(common::DEADLINE));
    wb.push(Some(&ones), NO_SETTINGS, false, patient).unwrap();
    b.leave(patient).unwrap();
    assert_eq!(pull(&wa, Some(0)).unwrap().1, vec![1.0; elements as usize]);
}

// Larger than a ring's worth of windows.
#[test]
fn a_tensor_of_any_size_is_pushed_in_as_many_submissions_as_find_room_at_once() {
    let cluster = Cluster::new(1, 1, &[("memory", "2GiB"), ("shards", "1")]);
    let job = cluster.join(0);
    let elements = (96 << 20) / 8 + 1;
    let w = declare(&job, "w", elements, Bsp);
    let ones = bytes(&vec![1.0; elements as usize]);
    w.push(Some(&ones), NO_SETTINGS, false, None).unwrap();
    job.clock().unwrap();
    w.push(Some(&ones), NO_SETTINGS, false, None).unwrap();
    assert!(pull(&w, None).unwrap().1.iter().all(|&value| value == 2.0));
    job.leave(None).unwrap();
}

/// It stood there still: the next of the others passed, and from then on all barriers were off by one (M-1).
#[test]
fn whoever_waited_at_a_barrier_in_vain_stands_there_no_more() {
    for way in [Way::Memory, Way::Tcp] {
        let cluster = Cluster::over(way, 2, 1, &[]);
        let (a, b) = (interruptible(&cluster, 0), cluster.join(1));
        misses(&[1], || a.barrier(SOON));
        misses(&[0], || b.barrier(SOON));
        INTERRUPTED.set(true);
        assert_eq!(a.barrier(None).unwrap_err(), Error::Interrupted);
        INTERRUPTED.set(false);
        misses(&[0], || b.barrier(SOON));
        std::thread::scope(|scope| {
            scope.spawn(|| b.barrier(None).unwrap());
            a.barrier(None).unwrap();
        });
        misses(&[0], || b.barrier(SOON));
    }
}

// The second took the first's place, and the first was never answered.
#[test]
fn threads_of_one_worker_pass_one_barrier_after_another() {
    let cluster = Cluster::new(2, 1, &[]);
    let (a, b) = (cluster.join(0), cluster.join(1));
    std::thread::scope(|scope| {
        let both = [(); 2].map(|()| scope.spawn(|| a.barrier(None)));
        b.barrier(None).unwrap();
        b.barrier(None).unwrap();
        for thread in both {
            thread.join().unwrap().unwrap();
        }
    });
}

// Each took the clock for itself alone, behind the push that waited for what the others would do only after the barrier.
#[test]
fn a_push_that_waits_keeps_no_other_thread_from_barriers_clocks_and_declarations() {
    let cluster = Cluster::new(2, 1, &[]);
    let (a, b) = (cluster.join(0), cluster.join(1));
    let (wa, wb) = (declare(&a, "w", 4, Bsp), declare(&b, "w", 4, Bsp));
    let one = bytes(&[1.0; 4]);
    std::thread::scope(|scope| {
        let waits = common::waiting_push(scope, &a, &wa, &one);
        scope.spawn(|| b.barrier(None).unwrap());
        a.barrier(None).unwrap();
        assert_eq!(a.clocks().unwrap().len(), 2);
        a.declare(Declaration::new("v", &[4], Rule::Add)).unwrap();
        wb.push(Some(&one), NO_SETTINGS, false, None).unwrap();
        assert_eq!(waits.join().unwrap(), Ok(1));
    });
}

// It was told that the barrier was in vain, though the server came to hear first that it stood there, and opened.
#[test]
fn a_barrier_that_opened_while_the_server_said_nothing_is_passed_by_the_next_call() {
    let cluster = Cluster::over(Way::Line, 2, 1, &[]);
    let (a, b) = (cluster.join(0), cluster.join(1));
    cluster.lines[0].let_pass(0);
    let error = b.barrier(SOON).unwrap_err();
    assert!(matches!(error, Error::BarrierTimeout { silent: Some(0), .. }), "{error}");
    std::thread::scope(|scope| {
        scope.spawn(|| a.barrier(None).unwrap());
        // Nearly always it stands there before it is heard that the other one came, and went.
        for _ in 0..200 {
            a.clocks().unwrap();
        }
        cluster.lines[0].let_pass(u64::MAX);
        b.barrier(None).unwrap();
    });
    misses(&[0], || b.barrier(SOON));
}

// The first server had the clock, the second's ring was full: the next push was stamped with a past that the first knew better.
#[test]
fn a_clock_that_is_not_told_to_all_is_told_to_none() {
    let cluster = Cluster::over(Way::Line, 2, 2, &[("deadline", "1"), ("shards", "1")]);
    let (a, b) = (cluster.join(0), cluster.join(1));
    let elements = 1 << 16;
    let (wa, wb) = (declare(&a, "w", elements, Asp), declare(&b, "w", elements, Asp));
    pull(&wb, None).unwrap();
    cluster.lines[1].let_pass(0);
    while b.clock().is_ok() {}
    cluster.lines[1].let_pass(u64::MAX);
    let patient = Some(common::seconds(common::DEADLINE));
    wb.push(Some(&bytes(&vec![1.0; elements as usize])), NO_SETTINGS, false, patient).unwrap();
    b.leave(patient).unwrap();
    assert_eq!(pull(&wa, Some(0)).unwrap().1, vec![1.0; elements as usize]);
}

fn refused() -> Error {
    Error::BadLoad { name: "w".to_owned(), what: "no room".to_owned() }
}

fn failed(error: Error, why: &str) {
    assert!(matches!(error, Error::FirstFailed { .. }) && error.to_string().contains(why), "{error}");
}

// M-4. The others went on as if it were loaded: worker 0's next attempt came to the barrier at which they waited for its last.
#[test]
fn what_worker_0_has_not_done_for_all_is_taken_for_done_by_nobody() {
    for way in [Way::Memory, Way::Tcp] {
        let cluster = Cluster::over(way, 3, 1, &[]);
        let done = AtomicBool::new(false);
        cluster.run(|job| {
            let act = |result: Result<(), Error>| {
                job.by_first("load of `w`", None, || result.inspect(|()| done.store(true, Ordering::SeqCst)))
            };
            let error = act(Err(refused())).unwrap_err();
            match job.rank() {
                0 => assert_eq!(error, refused()),
                _ => failed(error, "no room"),
            }
            act(Ok(())).unwrap();
            assert!(done.load(Ordering::SeqCst), "{way:?}: worker {} did not wait for it", job.rank());
        });
    }
}

#[test]
fn who_waits_for_what_worker_0_does_waits_through_its_attempts_that_end_in_silence() {
    for way in [Way::Memory, Way::Tcp] {
        let cluster = Cluster::over(way, 2, 1, &[]);
        let (a, b) = (cluster.join(0), cluster.join(1));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                b.by_first("load of `w`", None, || Ok(())).unwrap();
                assert!(done.load(Ordering::SeqCst), "{way:?}: it was not done");
                b.barrier(None).unwrap();
            });
            for _ in 0..3 {
                assert!(a.begin_by_first("load of `w`", None, None).unwrap());
            }
            a.by_first("load of `w`", None, || {
                done.store(true, Ordering::SeqCst);
                Ok(())
            })
            .unwrap();
            a.barrier(None).unwrap();
            waits.join().unwrap();
        });
    }
}

// A barrier, and what was done for all, passed for each other: worker 0 loaded, and the others went on behind their barrier before
// it had.
#[test]
fn a_barrier_is_not_taken_for_what_worker_0_does_nor_that_for_a_barrier() {
    for way in [Way::Memory, Way::Tcp] {
        let cluster = Cluster::over(way, 2, 1, &[]);
        let (a, b) = (cluster.join(0), cluster.join(1));
        misses(&[1], || a.by_first("load of `w`", SOON, || panic!("worker 1 is not there")));
        std::thread::scope(|scope| {
            let stands = scope.spawn(|| b.barrier(None).unwrap());
            misses(&[1], || a.by_first("load of `w`", SOON, || panic!("worker 1 stands at a barrier")));
            a.barrier(None).unwrap();
            stands.join().unwrap();
            let stands = scope.spawn(|| a.barrier(None).unwrap());
            misses(&[0], || b.by_first("load of `w`", SOON, || Ok(())));
            b.barrier(None).unwrap();
            stands.join().unwrap();
        });
    }
}

// The second waited behind the first, for which worker 0 came last.
#[test]
fn threads_take_part_in_several_things_at_once() {
    let cluster = Cluster::new(2, 1, &[]);
    let (a, b) = (cluster.join(0), cluster.join(1));
    std::thread::scope(|scope| {
        let loads = ["load of `v`", "load of `w`"].map(|what| {
            let waits = scope.spawn(|| b.by_first(what, None, || Ok(())));
            (what, waits)
        });
        for (what, waits) in loads.into_iter().rev() {
            a.by_first(what, None, || Ok(())).unwrap();
            waits.join().unwrap().unwrap();
        }
    });
}

// The second thread of worker 0 began while the first acted, which nobody was told the end of.
#[test]
fn threads_that_do_the_same_for_all_do_it_one_after_the_other() {
    let cluster = Cluster::new(2, 1, &[]);
    let (a, b) = (cluster.join(0), cluster.join(1));
    for _ in 0..50 {
        std::thread::scope(|scope| {
            for job in [&a, &a, &b, &b] {
                scope.spawn(move || {
                    job.by_first("load of `w`", None, || job.clocks().map(drop)).unwrap();
                });
            }
        });
    }
}

#[test]
fn who_waits_for_what_worker_0_does_hears_that_it_has_gone() {
    let cluster = Cluster::new(2, 1, &[]);
    let (a, b) = (cluster.join(0), cluster.join(1));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| b.by_first("load of `w`", None, || Ok(())).unwrap_err());
        assert!(a.begin_by_first("load of `w`", None, None).unwrap());
        a.leave(None).unwrap();
        let error = waits.join().unwrap();
        assert!(matches!(error, Error::FirstGone { .. }), "{error}");
    });
    let error = b.by_first("load of `w`", None, || Ok(())).unwrap_err();
    assert!(matches!(error, Error::FirstGone { .. }), "{error}");
}

// Repeated, the load of one was taken for the next of another: from then on each of its loads was one behind.
#[test]
fn loads_that_are_repeated_since_a_server_did_not_answer_stay_in_step() {
    let cluster = Cluster::over(Way::Line, 2, 1, &[]);
    let (a, b) = (cluster.join(0), cluster.join(1));
    let (wa, wb) = (declare(&a, "w", 4, Asp), declare(&b, "w", 4, Asp));
    let soon = Some(Duration::from_millis(5));
    let load = |job: &Job, w: &Tensor, value: f64| {
        let given = bytes(&[value; 4]);
        let given = || (job.rank() == 0).then(|| Foreign::of(&given));
        while let Err(error) = w.load_together(job, given(), soon) {
            let expected = matches!(error, Error::BarrierTimeout { .. } | Error::FirstFailed { .. });
            assert!(expected, "{error}");
        }
        assert_eq!(pull(w, None).unwrap().1, vec![value; 4], "worker {}", job.rank());
    };
    let values = || (1..=100).map(f64::from);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                cluster.lines[0].let_pass(0);
                cluster.lines[0].wait_until_stuck();
                cluster.lines[0].let_pass(u64::MAX);
            }
        });
        let others = scope.spawn(|| values().for_each(|value| load(&b, &wb, value)));
        values().for_each(|value| load(&a, &wa, value));
        others.join().unwrap();
        over.store(true, Ordering::SeqCst);
    });
    a.leave(None).unwrap();
    b.leave(None).unwrap();
}

// The thread waited for a lock that it held, so neither a deadline nor Ctrl-C ended the second call.
#[test]
fn a_barrier_is_called_again_and_again_while_the_server_says_nothing() {
    let cluster = Cluster::over(Way::Line, 2, 1, &[]);
    let (a, b) = (cluster.join(0), cluster.join(1));
    cluster.lines[0].let_pass(0);
    for _ in 0..3 {
        let error = b.barrier(SOON).unwrap_err();
        assert!(matches!(error, Error::BarrierTimeout { silent: Some(0), .. }), "{error}");
    }
    cluster.lines[0].let_pass(u64::MAX);
    std::thread::scope(|scope| {
        scope.spawn(|| a.barrier(None).unwrap());
        b.barrier(None).unwrap();
    });
}

#[test]
fn a_load_beside_an_unfinished_contribution_fails_before_the_others_are_met() {
    for way in [Way::Memory, Way::Tcp] {
        let cluster = Cluster::over(way, 2, 1, &[]);
        cluster.run(|job| {
            let w = declare(job, "w", 4, Bsp);
            let (one, hundred) = (bytes(&[1.0; 4]), bytes(&[100.0; 4]));
            if job.rank() == 0 {
                w.push(Some(&one), NO_SETTINGS, true, None).unwrap();
                let error = w.load_together(job, Some(Foreign::of(&hundred)), None).unwrap_err();
                assert!(matches!(error, Error::Unfinished { .. }), "{error}");
                job.clock().unwrap(); // it is lost
                let error = w.load_together(job, None, None).unwrap_err();
                assert!(matches!(error, Error::BadLoad { .. }), "{error}");
            }
            let value = (job.rank() == 0).then(|| Foreign::of(&hundred));
            w.load_together(job, value, None).unwrap();
            assert_eq!(pull(&w, Some(1)).unwrap().1, vec![100.0; 4], "{way:?}: worker {}", job.rank());
            job.barrier(None).unwrap();
        });
    }
}

// Worker 0 alone refused to push it: the others' contributions were of another iteration's, and the workers came apart.
#[test]
fn what_stood_in_a_lane_before_a_load_is_pushed_by_no_worker() {
    for way in [Way::Memory, Way::Tcp] {
        let cluster = Cluster::over(way, 2, 1, &[]);
        cluster.run(|job| {
            let w = declare(job, "w", 4, Bsp);
            let fill = |with: f64| {
                let lane = w.lane(None).unwrap();
                let words = bytes(&[with; 4]);
                // SAFETY: this worker's lane, which has as many bytes and which nobody else writes.
                unsafe {
                    std::ptr::copy_nonoverlapping(words.as_ptr(), lane.base().as_ptr().cast(), words.len())
                };
            };
            let hundred = bytes(&[100.0; 4]);
            let value = (job.rank() == 0).then(|| Foreign::of(&hundred));
            fill(1.0);
            w.load_together(job, value, None).unwrap();
            let before = w.push(None, NO_SETTINGS, false, None);
            fill(2.0);
            let after = w.push(None, NO_SETTINGS, false, None);
            job.clock().unwrap();
            let pulled = pull(&w, Some(0)).unwrap().1;
            job.barrier(None).unwrap();
            let what = format!("{way:?}: worker {}: {before:?}, {after:?}", job.rank());
            assert!(matches!(before, Err(Error::StaleLane { .. })) && after.is_ok(), "{what}");
            assert_eq!(pulled, vec![104.0; 4], "{what}");
        });
    }
}

// Who filled it for each part lost all but the last.
#[test]
fn the_lane_is_lent_to_nobody_while_parts_of_a_contribution_stand_there() {
    for way in [Way::Memory, Way::Tcp] {
        let cluster = Cluster::over(way, 1, 1, &[]);
        cluster.run(|job| {
            let w = declare(job, "w", 4, Bsp);
            w.lane(None).unwrap();
            w.push(Some(&bytes(&[1.0; 4])), NO_SETTINGS, true, None).unwrap();
            let error = w.lane(None).unwrap_err();
            assert!(matches!(error, Error::PartWaits { .. }), "{error}");
            w.push(Some(&bytes(&[2.0; 4])), NO_SETTINGS, true, None).unwrap();
            // Who adds to them there goes on.
            w.lane_until_push(None).unwrap();
            w.push(None, NO_SETTINGS, false, None).unwrap();
            w.lane(None).unwrap();
            job.clock().unwrap();
            assert_eq!(pull(&w, Some(0)).unwrap().1, vec![3.0; 4], "{way:?}");
            w.push(Some(&bytes(&[1.0; 4])), NO_SETTINGS, true, None).unwrap();
            job.clock().unwrap();
            w.lane(None).unwrap(); // they are lost by now
        });
    }
}

// What it had told the servers was noted before all of them were told, so another thread waited for nothing.
#[test]
fn threads_that_pull_and_look_at_the_state_of_a_server_elsewhere_get_all_of_it() {
    let cluster = Cluster::over(Way::Tcp, 1, 1, &[("shards", "4"), ("chunk_bytes", "4KiB")]);
    let job = cluster.join(0);
    let elements = 1 << 15;
    let rule = Rule::Sgd { momentum: true, nesterov: false, maximize: false };
    let w = job.declare(Declaration::new("w", &[elements], rule)).unwrap();
    w.initialize(None, None).unwrap();
    for round in 1..40u32 {
        let fill = (round as f32).to_le_bytes().repeat(elements as usize);
        w.load(0, Foreign::of(&fill), 0, None).unwrap();
        w.load(1, Foreign::of(&fill), 0, None).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut out = vec![0; fill.len()];
                    w.pull_into(&mut out, None, None).unwrap();
                    assert!(out == fill, "the value of round {round}");
                    assert!(w.state(0, None).unwrap() == fill, "the state of round {round}");
                });
            }
        });
    }
    job.leave(None).unwrap();
}
