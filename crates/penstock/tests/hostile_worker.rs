//! A worker that lies, scribbles and rings for nothing harms its own job at most: the server stays up, another server's job
//! does not notice, and where the job is to go on without lost workers, it goes on.

mod common;

use common::raw::{Raw, enter, exchange, hear, hello, say, tell};
use common::{Cluster, NO_SETTINGS, bytes, declare, pull, seconds};
use penstock::worker::{Error, Job};
use penstock_fabric::layout::{Count, page};
use penstock_fabric::region::{Access, Mapping, Part};
use penstock_fabric::ring::{CAPACITY, Producer};
use penstock_fabric::socket::Connection;
use penstock_proto::consistency::Consistency::{Asp, Bsp};
use penstock_proto::error::{JobFailure, Loss, MAX_TEXT_BYTES, Refusal};
use penstock_proto::handshake::{Purpose, WorkerHandshake};
use penstock_proto::items::control::TableAsk;
use penstock_proto::message::{Answer, Ask, Departure, MAX_MESSAGE_BYTES, Request, Secret, encode};
use penstock_proto::propagation::Propagation;
use penstock_proto::submission::Submission;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::net::{RecvFlags, SendFlags};
use std::sync::atomic::{AtomicBool, Ordering};

/// Ten iterations of an honest worker under ASP, which waits for no other.
fn honest(job: &Job) -> Vec<f64> {
    let tensor = declare(job, "w", 3000, Asp);
    let one = bytes(&[1.0; 3000]);
    for _ in 0..10 {
        tensor.push(Some(&one), NO_SETTINGS, false, None).unwrap();
        job.clock().unwrap();
    }
    pull(&tensor, None).unwrap().1
}

/// What `attack` does as worker 1, the honest worker 0 survives, and the server removes worker 1.
fn survives(what: &str, attack: impl FnOnce(&Raw)) {
    let cluster = Cluster::new(2, 1, &[("on_worker_loss", "continue")]);
    let job = cluster.join(0);
    let hostile = Raw::join(&cluster, 1);
    declare(&job, "first", 10, Bsp);
    attack(&hostile);
    hostile.wait_for_the_end();
    assert_eq!(honest(&job), vec![10.0; 3000], "{what}");
    let tensor = declare(&job, "together", 10, Bsp);
    tensor.push(Some(&bytes(&[2.0; 10])), NO_SETTINGS, false, None).unwrap();
    assert_eq!(
        pull(&tensor, None).unwrap(),
        (11, vec![2.0; 10]),
        "{what}: nobody waits for a removed worker"
    );
    job.leave(None).unwrap();
    assert_eq!(cluster.servers[0].wait(common::seconds(common::DEADLINE)), Some(Ok(())), "{what}");
}

#[test]
fn words_that_are_no_submission_are_refused_and_their_writer_removed() {
    survives("garbage", |raw| raw.submit([u64::MAX; 8]));
    survives("zeros", |raw| raw.submit([0; 8]));
}

#[test]
fn a_submission_of_what_was_never_declared_is_refused() {
    let push = Submission::Push { tensor: 0, first: 0, count: 1, stamp: 0, settings: NO_SETTINGS };
    survives("without a lane", |raw| raw.submit(push.encode()));
    let push = Submission::Push {
        tensor: u32::MAX,
        first: u32::MAX,
        count: u32::MAX,
        stamp: 0,
        settings: NO_SETTINGS,
    };
    survives("no such tensor", |raw| raw.submit(push.encode()));
    survives("a clock from the end of time", |raw| {
        raw.submit(Submission::Clock { clock: u64::MAX }.encode())
    });
}

#[test]
fn a_ring_whose_count_cannot_be_true_is_found_out() {
    survives("scribbled page", |raw| {
        let bytes = page::bytes(raw.welcome.shards);
        // SAFETY: the page is mapped writable for this many bytes; that the server reads it meanwhile is the point.
        unsafe { std::ptr::write_bytes(raw.page.base().as_ptr(), 0xA5, bytes) };
        for wakeup in &raw.descriptors[2..] {
            rustix::io::write(wakeup, &1u64.to_le_bytes()).unwrap();
        }
    });
}

#[test]
fn messages_that_are_none_end_the_connection() {
    for message in [vec![0xff; 100], vec![1], vec![0; MAX_MESSAGE_BYTES]] {
        survives("no message", |raw| raw.connection.send(&message, &[], SendFlags::empty()).unwrap());
    }
    survives("hello twice, then garbage", |raw| {
        let (answer, _) = say(&raw.connection, 2, hello(1, 2));
        assert!(matches!(answer, Answer::Refused(_)), "{answer:?}");
        raw.connection.send(&[9; 9], &[], SendFlags::empty()).unwrap();
    });
}

#[test]
fn a_worker_that_never_reads_its_answers_is_not_waited_for() {
    survives("deaf", |raw| {
        let bytes =
            encode(&Request { id: 5, settled: 0, open: Vec::new(), body: Ask::Withdraw { request: 4 } })
                .unwrap();
        while raw.connection.send(&bytes, &[], SendFlags::DONTWAIT).is_ok() {}
        // Whether it was the server's queue or ours that is full: the server empties its own, then ours fills up.
        for _ in 0..10_000 {
            let _ = raw.connection.send(&bytes, &[], SendFlags::DONTWAIT);
            std::thread::yield_now();
        }
        rustix::net::shutdown(&raw.connection, rustix::net::Shutdown::Write).unwrap();
    });
}

#[test]
fn where_the_job_stops_at_a_loss_the_others_learn_who_broke_it() {
    let cluster = Cluster::new(2, 1, &[]);
    let job = cluster.join(0);
    let tensor = declare(&job, "w", 10, Bsp);
    let hostile = Raw::join(&cluster, 1);
    hostile.submit([u64::MAX; 8]);
    tensor.push(Some(&bytes(&[1.0; 10])), NO_SETTINGS, false, None).unwrap();
    let error = pull(&tensor, None).unwrap_err();
    let Error::Failed(JobFailure::WorkerLost { rank: 1, loss: Loss::Broke { .. } }) = error else {
        panic!("{error}")
    };
}

#[test]
fn strangers_learn_nothing_and_take_no_room() {
    let cluster = Cluster::new(1, 1, &[]);
    let silent: Vec<_> = (0..1000).filter_map(|_| Connection::connect(&cluster.paths[0]).ok()).collect();
    assert!(silent.len() > 100, "the socket took {}", silent.len());
    drop(silent);
    let (_, hello_of_theirs) =
        WorkerHandshake::start("job", Secret([8; 32]), Purpose::Control, [6; 32]).unwrap();
    let request = encode(&Request { id: 1, settled: 0, open: Vec::new(), body: hello(0, 1) }).unwrap();
    for words in [&request[..], &[0xff; 40], &[0]] {
        let connection = Connection::connect(&cluster.paths[0]).unwrap();
        let refused = WorkerHandshake::finish(&exchange(&connection, words)).unwrap_err();
        assert!(matches!(refused, Refusal::Malformed { .. }), "{refused}: a request before a proof");
        let connection = Connection::connect(&cluster.paths[0]).unwrap();
        exchange(&connection, &hello_of_theirs);
        let answer = exchange(&connection, words);
        assert!(WorkerHandshake::finish(&answer).is_err(), "{answer:?}: something else than a proof");
        let mut buffer = Box::new([0; MAX_MESSAGE_BYTES]);
        assert_eq!(connection.receive(&mut buffer, RecvFlags::empty()), Ok(0), "and that was all");
    }
    let connection = Connection::connect(&cluster.paths[0]).unwrap();
    exchange(&connection, &hello_of_theirs);
    // As long as a proof.
    let refused = WorkerHandshake::finish(&exchange(&connection, &[9; 32])).unwrap_err();
    assert_eq!(refused, Refusal::Authentication);
    let job = cluster.join(0);
    assert_eq!(honest(&job), vec![10.0; 3000]);
    job.leave(None).unwrap();
}

#[test]
fn a_worker_cannot_map_the_model_writable() {
    let cluster = Cluster::new(2, 1, &[]);
    let job = cluster.join(0);
    declare(&job, "w", 10, Bsp);
    let raw = Raw::join(&cluster, 1);
    let mut declaration = penstock::worker::Declaration::new("w", &[10], penstock_kernels::Rule::Add);
    declaration.spec.dtype = penstock_kernels::Dtype::F64;
    let (answer, descriptors) =
        say(&raw.connection, 2, Ask::Declare { spec: declaration.spec, decided: None });
    assert!(matches!(answer, Answer::Declared { .. }), "{answer:?}");
    let model = Part { fd: descriptors[0].as_fd(), offset: 0, bytes: 4096 };
    assert!(Mapping::new(&[model], Access::Read).is_ok());
    assert_eq!(Mapping::new(&[model], Access::Write).unwrap_err(), rustix::io::Errno::PERM);
    let flags = Part { fd: raw.descriptors[1].as_fd(), offset: 0, bytes: 4096 };
    assert_eq!(Mapping::new(&[flags], Access::Write).unwrap_err(), rustix::io::Errno::PERM);
    assert_eq!(rustix::io::pwrite(&descriptors[0], b"x", 0).unwrap_err(), rustix::io::Errno::PERM);
}

#[test]
fn a_lane_that_is_scribbled_over_while_it_is_folded_brings_no_nan_where_none_may_be() {
    let cluster = Cluster::new(1, 1, &[("chunk_bytes", "4KiB")]);
    let job = cluster.join(0);
    let mut declaration = penstock::worker::Declaration::new("w", &[200_000], penstock_kernels::Rule::Add);
    declaration.spec.refuse_nonfinite = true;
    let tensor = job.declare(declaration).unwrap();
    tensor.initialize(None, None).unwrap();
    let lane = tensor.lane(None).unwrap().base().as_ptr() as usize;
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut element = 0usize;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                element = (element + 7919) % 200_000;
                // SAFETY: inside the lane, which lives as long as the tensor. That it is folded meanwhile is the point.
                unsafe { std::ptr::write_volatile((lane as *mut f32).wrapping_add(element), f32::NAN) };
                // SAFETY: as above.
                unsafe { std::ptr::write_volatile((lane as *mut f32).wrapping_add(element), 1.0) };
            }
        });
        for _ in 0..300 {
            let pushed = tensor.push(None, NO_SETTINGS, false, None);
            let ended = matches!(pushed, Err(Error::Failed(JobFailure::NonFinite { rank: 0, .. })));
            if ended || job.clock().is_err() {
                break; // the server saw it first: the job has stopped, and nothing was folded
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let mut out = vec![0u8; 800_000];
    let mut published = tensor.model().base().as_ptr() as *const f32;
    if tensor.pull_into(&mut out, None, None).is_ok() {
        published = out.as_ptr().cast();
    }
    // SAFETY: 200,000 elements are mapped, and nothing changes them any more.
    let value = unsafe { std::slice::from_raw_parts(published, 200_000) };
    assert!(value.iter().all(|x| x.is_finite()));
}

#[test]
fn a_declaration_that_is_repeated_brings_the_same_memory_and_costs_nothing() {
    let cluster = Cluster::new(2, 1, &[]);
    let raw = Raw::join(&cluster, 0);
    let spec = penstock_proto::spec::TensorSpec {
        name: "w".to_owned(),
        shape: vec![1 << 20],
        dtype: penstock_kernels::Dtype::F32,
        rule: penstock_kernels::Rule::Add,
        consistency: Bsp,
        propagation: Propagation::Pull,
        reduce: penstock_proto::spec::Reduce::Sum,
        rescale: 1.0,
        clip: None,
        refuse_nonfinite: false,
        travel: penstock_proto::travel::Travel::default(),
    };
    let declare = |id| {
        let ask = Ask::Declare { spec: spec.clone(), decided: None };
        let (answer, descriptors) = say(&raw.connection, id, ask);
        assert!(matches!(answer, Answer::Declared { .. }), "{answer:?}");
        let file = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_ino;
        descriptors.iter().map(file).collect::<Vec<_>>()
    };
    let first = declare(2);
    assert_eq!(first.len(), 2, "the model and the lane");
    for id in 3..40 {
        assert_eq!(declare(id), first, "the same model, the same lane");
    }
    assert!(cluster.servers[0].memory_taken() < 16 << 20, "{} bytes", cluster.servers[0].memory_taken());
}

/// Fills the worker's rings again and again, until `stop`: clocks that say nothing new, which are all in order.
fn flood(raw: &Raw, stop: &AtomicBool) {
    // Behind the counts, of which each has a line of its own, every slot holds such a clock from here on.
    const TAKEN: usize = 64;
    let rings: Vec<_> = (0..raw.welcome.shards).map(page::ring).collect();
    for &ring in &rings {
        let mut producer = Producer::default();
        for _ in 0..CAPACITY {
            producer.push(raw.page.at(ring), (Submission::Clock { clock: 0 }).encode()).unwrap();
        }
    }
    while !stop.load(Ordering::Relaxed) {
        for &ring in &rings {
            let taken = raw.page.at::<Count>(ring + TAKEN).0.load(Ordering::Relaxed);
            raw.page.at::<Count>(ring).0.store(taken + CAPACITY, Ordering::Release);
        }
        for wakeup in &raw.descriptors[2..] {
            let _ = rustix::io::write(wakeup, &1u64.to_le_bytes());
        }
    }
}

#[test]
fn a_worker_that_goes_on_submitting_when_it_is_gone_keeps_no_shard_and_no_stop_waiting() {
    let mut cluster = Cluster::new(2, 1, &[("on_worker_loss", "continue")]);
    let job = cluster.join(0);
    let hostile = Raw::join(&cluster, 1);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| flood(&hostile, &stop));
        // Its process is gone, as far as the server sees; its memory is not.
        rustix::net::shutdown(&hostile.connection, rustix::net::Shutdown::Both).unwrap();
        let tensor = declare(&job, "w", 3000, Bsp);
        tensor.push(Some(&bytes(&[2.0; 3000])), NO_SETTINGS, false, None).unwrap();
        job.clock().unwrap();
        assert_eq!(pull(&tensor, None).unwrap(), (1, vec![2.0; 3000]), "nobody waits for who is gone");
        cluster.servers[0].stop();
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_worker_that_changes_flags_of_the_descriptors_it_shares_makes_no_thread_of_the_server_wait() {
    let cluster = Cluster::new(2, 1, &[("on_worker_loss", "continue")]);
    let job = cluster.join(0);
    let hostile = Raw::join(&cluster, 1);
    for wakeup in &hostile.descriptors[2..] {
        // Flags belong to the open file, which the server has too: a thread that reads an empty one waits from now on.
        rustix::fs::fcntl_setfl(wakeup, OFlags::RDWR).unwrap();
        for _ in 0..20_000 {
            rustix::io::write(wakeup, &1u64.to_le_bytes()).unwrap();
            rustix::io::read(wakeup, &mut [0; 8]).unwrap();
        }
        // And full: a thread that writes waits.
        rustix::io::write(wakeup, &(u64::MAX - 1).to_le_bytes()).unwrap();
    }
    assert_eq!(honest(&job), vec![10.0; 3000]);
    drop(hostile);
    job.leave(None).unwrap();
    assert_eq!(cluster.servers[0].wait(common::seconds(common::DEADLINE)), Some(Ok(())));
}

fn punch_hole(fd: &OwnedFd, bytes: u64) -> rustix::io::Result<()> {
    rustix::fs::fallocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, bytes)
}

#[test]
fn a_hole_can_be_punched_only_into_what_is_the_workers_own_and_reads_as_zeros_there() {
    let cluster = Cluster::new(2, 1, &[("on_worker_loss", "continue")]);
    let job = cluster.join(0);
    let tensor = declare(&job, "hollow", 10, Asp);
    let raw = Raw::join(&cluster, 1);
    let mut declaration = penstock::worker::Declaration::new("hollow", &[10], penstock_kernels::Rule::Add);
    declaration.spec.dtype = penstock_kernels::Dtype::F64;
    declaration.spec.consistency = Asp;
    let (answer, descriptors) =
        say(&raw.connection, 2, Ask::Declare { spec: declaration.spec, decided: None });
    assert!(matches!(answer, Answer::Declared { .. }), "{answer:?}");
    // The value and the flags: refused by the kernel, like every other write.
    for sealed in [&descriptors[0], &raw.descriptors[1]] {
        assert_eq!(punch_hole(sealed, 4096).unwrap_err(), rustix::io::Errno::PERM);
        let more = rustix::fs::fallocate(sealed, FallocateFlags::empty(), 0, 1 << 30);
        assert_eq!(more.unwrap_err(), rustix::io::Errno::PERM);
    }
    // Its lane and its page: holes, but no byte more than they had.
    let lane = Mapping::new(&[Part { fd: descriptors[1].as_fd(), offset: 0, bytes: 4096 }], Access::Write);
    let lane = lane.unwrap();
    lane.at::<Count>(0).0.store(7f64.to_bits(), Ordering::Relaxed);
    for own in [&descriptors[1], &raw.descriptors[0]] {
        punch_hole(own, 1 << 20).unwrap();
        for flags in [FallocateFlags::empty(), FallocateFlags::KEEP_SIZE] {
            let more = rustix::fs::fallocate(own, flags, 0, 1 << 30);
            assert_eq!(more.unwrap_err(), rustix::io::Errno::PERM);
        }
    }
    assert_eq!(lane.at::<Count>(0).0.load(Ordering::Relaxed), 0);
    let push = Submission::Push { tensor: 0, first: 0, count: 1, stamp: 0, settings: NO_SETTINGS };
    raw.submit(push.encode());
    tensor.push(Some(&bytes(&[1.0; 10])), NO_SETTINGS, false, None).unwrap();
    job.clock().unwrap();
    assert_eq!(pull(&tensor, Some(0)).unwrap().1, vec![1.0; 10], "a hole adds zeros");
    assert_eq!(honest(&job), vec![10.0; 3000]);
    drop(raw);
    job.leave(None).unwrap();
}

/// Two workers, one of which says these last words; what the other hears.
fn heard_beside(last: Departure) -> JobFailure {
    let cluster = Cluster::new(2, 1, &[]);
    let job = cluster.join(0);
    let hostile = Raw::join(&cluster, 1);
    let request = Request { id: 2, settled: 0, open: Vec::new(), body: Ask::Leave { how: last } };
    hostile.connection.send(&encode(&request).unwrap(), &[], SendFlags::empty()).unwrap();
    match job.barrier(None).unwrap_err() {
        Error::Failed(failure) => failure,
        error => panic!("{error}"),
    }
}

#[test]
fn who_says_that_another_was_lost_says_it_under_its_own_name() {
    let lies = [
        JobFailure::WorkerLost { rank: 0, loss: Loss::Died },
        JobFailure::NonFinite { rank: 0, name: "w".to_owned() },
        JobFailure::ServerLost { server: 3, reason: "it burnt down".to_owned() },
        JobFailure::Stopped { server: 0 },
    ];
    for lie in lies {
        let heard = heard_beside(Departure::Heard(lie.clone()));
        let JobFailure::WorkerLost { rank: 1, loss: Loss::Failed { what } } = &heard else {
            panic!("{heard}")
        };
        assert!(what.ends_with(&lie.to_string()), "{what}");
    }
}

// A worker that came to the barrier meanwhile passed it with one that had gone, and was told afterwards.
#[test]
fn nobody_passes_a_barrier_with_a_worker_that_has_gone_from_it() {
    let cluster = Cluster::new(2, 1, &[]);
    let job = cluster.join(0);
    let hostile = Raw::join(&cluster, 1);
    tell(&hostile.connection, 2, Ask::Barrier);
    let lie = JobFailure::NonFinite { rank: 0, name: "w".to_owned() };
    tell(&hostile.connection, 3, Ask::Leave { how: Departure::Heard(lie) });
    hostile.wait_for_the_end();
    let met = job.barrier(None);
    assert!(matches!(met, Err(Error::Failed(JobFailure::WorkerLost { rank: 1, .. }))), "{met:?}");
}

// The first server is left last: a worker that has left it well is not lost because another says so.
#[test]
fn who_has_left_well_is_not_lost_on_anothers_word() {
    let ended = || Loss::Ended { how: "was killed by SIGSEGV".to_owned() };
    // The other server does not know which workers have left the first: it waits for what the others heard.
    for (workers, liar, loss, server) in [(3, 2, ended(), 0), (3, 2, ended(), 1), (2, 0, Loss::Died, 0)] {
        let cluster = Cluster::new(workers, 2, &[]);
        // Another worker that is there, or none.
        let _there = (liar != 0).then(|| cluster.join(0));
        cluster.join(1).leave(None).unwrap();
        let hostile = Raw::join_at(&cluster, server, liar);
        let lie = JobFailure::WorkerLost { rank: 1, loss };
        let request = Request {
            id: 2,
            settled: 0,
            open: Vec::new(),
            body: Ask::Leave { how: Departure::Heard(lie.clone()) },
        };
        hostile.connection.send(&encode(&request).unwrap(), &[], SendFlags::empty()).unwrap();
        let ended = cluster.servers[server].wait(seconds(common::DEADLINE));
        let Some(Err(JobFailure::WorkerLost { rank, loss: Loss::Failed { what } })) = ended else {
            panic!("{ended:?}")
        };
        assert!(rank == liar && what.ends_with(&lie.to_string()), "{rank}: {what}");
    }
}

// When all that were here had said something, the first word that could be true was believed: it was the liar's.
#[test]
fn a_lie_does_not_become_true_because_another_has_something_to_say_too() {
    let ended = Loss::Ended { how: "was killed by SIGKILL: it ate all the memory".to_owned() };
    for (way_on, loss) in
        [("stop", ended.clone()), ("stop", Loss::Died), ("continue", ended), ("continue", Loss::Died)]
    {
        let mut cluster = Cluster::new(2, 2, &[("on_worker_loss", way_on)]);
        let (hostile, _beside) = (Raw::join_at(&cluster, 0, 0), Raw::join_at(&cluster, 1, 0));
        let job = cluster.join(1);
        tell(
            &hostile.connection,
            2,
            Ask::Leave { how: Departure::Heard(JobFailure::WorkerLost { rank: 1, loss }) },
        );
        hostile.wait_for_the_end();
        cluster.servers[1].stop();
        let heard = job.barrier(None).unwrap_err();
        assert!(matches!(heard, Error::Failed(JobFailure::Stopped { server: 1 })), "{way_on}: {heard}");
        let _ = job.leave(None);
        let ended = cluster.servers[0].wait(seconds(common::DEADLINE));
        assert!(matches!(ended, Some(Err(JobFailure::Stopped { server: 1 }))), "{way_on}: {ended:?}");
    }
}

// The last worker of a job was believed that it had lost a server that the job does not have.
#[test]
fn nobody_is_believed_that_a_server_or_a_worker_was_lost_that_there_is_not() {
    let lies = [
        JobFailure::ServerLost { server: 7, reason: "it burnt down".to_owned() },
        JobFailure::Stopped { server: 2 },
        JobFailure::WorkerLost { rank: 1, loss: Loss::Ended { how: "was killed by SIGKILL".to_owned() } },
        JobFailure::NonFinite { rank: 1, name: "w".to_owned() },
    ];
    for (lie, way_on) in lies.iter().flat_map(|lie| [(lie, "stop"), (lie, "continue")]) {
        let cluster = Cluster::new(1, 2, &[("on_worker_loss", way_on)]);
        let hostile = Raw::join(&cluster, 0);
        tell(&hostile.connection, 2, Ask::Leave { how: Departure::Heard(lie.clone()) });
        match cluster.servers[0].wait(seconds(common::DEADLINE)) {
            Some(Err(JobFailure::WorkerLost { rank: 0, loss: Loss::Failed { what } })) => {
                assert!(way_on == "stop" && what.ends_with(&lie.to_string()), "{way_on}: {what}");
            }
            // Where the others go on without a worker, it was the last one.
            ended => {
                assert!(way_on == "continue" && matches!(ended, Some(Ok(()))), "{way_on}, {lie}: {ended:?}")
            }
        }
    }
}

// A server believed the remaining worker about what only its own shards can find out.
#[test]
fn the_last_worker_there_is_blames_nobody_for_what_the_only_server_did_not_see() {
    let cluster = Cluster::new(2, 1, &[]);
    cluster.join(0).leave(None).unwrap();
    let hostile = Raw::join(&cluster, 1);
    let lie = JobFailure::NonFinite { name: "w".to_owned(), rank: 0 };
    let request =
        Request { id: 2, settled: 0, open: Vec::new(), body: Ask::Leave { how: Departure::Heard(lie) } };
    hostile.connection.send(&encode(&request).unwrap(), &[], SendFlags::empty()).unwrap();
    let ended = cluster.servers[0].wait(seconds(common::DEADLINE));
    let blamed = matches!(ended, Some(Err(JobFailure::WorkerLost { rank: 1, loss: Loss::Failed { .. } })));
    assert!(blamed, "{ended:?}");
}

// It heard only that the connection had ended, took the server for lost, and told other servers so.
#[test]
fn who_broke_the_protocol_is_told_what_it_did() {
    let cluster = Cluster::new(2, 1, &[]);
    let _other = cluster.join(0);
    let hostile = Raw::join(&cluster, 1);
    hostile.submit([u64::MAX; 8]);
    let heard = hear(&hostile.connection).0.body;
    let told = matches!(&heard, Answer::Failed(JobFailure::WorkerLost { rank: 1, loss: Loss::Broke { .. } }));
    assert!(told, "{heard:?}");
}

#[test]
fn last_words_as_long_as_a_message_are_cut_and_still_heard() {
    let heard = heard_beside(Departure::Failed { what: "x".repeat(MAX_MESSAGE_BYTES - 16) });
    let JobFailure::WorkerLost { rank: 1, loss: Loss::Failed { what } } = &heard else { panic!("{heard}") };
    assert!(what.len() <= MAX_TEXT_BYTES && what.ends_with("..."), "{} bytes", what.len());
}

#[test]
fn an_honest_worker_with_much_to_say_is_heard_too() {
    let cluster = Cluster::new(2, 1, &[]);
    let (job, other) = (cluster.join(0), cluster.join(1));
    other.fail(&"x".repeat(1 << 20));
    let error = job.barrier(None).unwrap_err();
    assert!(
        matches!(&error, Error::Failed(JobFailure::WorkerLost { rank: 1, loss: Loss::Failed { what } }) if what.starts_with("xxx")),
        "{error}"
    );
}

#[test]
fn the_end_of_a_worker_that_there_is_not_ends_nothing() {
    let cluster = Cluster::new(1, 1, &[]);
    let job = cluster.join(0);
    cluster.servers[0].worker_ended(99, Some("was killed by SIGKILL".to_owned()));
    cluster.servers[0].worker_ended(u32::MAX, None);
    assert_eq!(honest(&job), vec![10.0; 3000]);
    job.leave(None).unwrap();
    assert_eq!(cluster.servers[0].wait(common::seconds(common::DEADLINE)), Some(Ok(())));
}

#[test]
fn a_hello_with_a_rank_that_there_is_not_is_refused_as_often_as_it_is_said() {
    let cluster = Cluster::new(1, 1, &[]);
    let mut buffer = Box::new([0; MAX_MESSAGE_BYTES]);
    for rank in 1..500 {
        let connection = enter(&cluster, 0);
        let (answer, descriptors) = say(&connection, u64::from(rank), hello(rank, 1));
        let refused = Answer::Refused(Refusal::RankOutOfRange { rank, size: 1 });
        assert!(answer == refused && descriptors.is_empty(), "{answer:?}");
        assert_eq!(connection.receive(&mut buffer, RecvFlags::empty()), Ok(0), "it is heard once");
    }
    // This one would be let in, and names requests as a worker does that has been.
    let long = Request { id: 1, settled: 1000, open: (0..1000).collect(), body: hello(0, 1) };
    let answer = exchange(&enter(&cluster, 0), &encode(&long).unwrap());
    assert!(answer.is_empty(), "a hello of any length is taken");
    assert_eq!(honest(&cluster.join(0)), vec![10.0; 3000]);
}

#[test]
fn only_a_table_that_it_has_declared_can_a_worker_drop() {
    let cluster = Cluster::new(1, 1, &[]);
    let raw = Raw::join(&cluster, 0);
    let before = cluster.servers[0].memory_taken();
    for id in (0..1000).step_by(2) {
        let ask = TableAsk::Drop { name: "nobody's".to_owned(), id };
        let (answer, _) = say(&raw.connection, 2 + u64::from(id), Ask::Table(ask));
        assert!(matches!(answer, Answer::Refused(Refusal::Table(_))), "{answer:?}");
    }
    assert_eq!(cluster.servers[0].memory_taken(), before);
}
