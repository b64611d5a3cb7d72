//! A worker that leaves cleanly has lost nothing: it waits until the servers have everything, or says what they do not have. One
//! that has seen the job fail never counts as one that left cleanly, and goes at once.

mod common;

use common::raw::{Raw, hello, tell};
use common::tenants::{SESSION, enter, far, frame, greet, hear, say};
use common::{Cluster, Direction, NO_SETTINGS, Way, at_once, bytes, declare, misses, pull, seconds};
use penstock::worker::{Declaration, Error, Job, Table, TableDeclaration, Tensor};
use penstock_kernels::{Rule, Settings};
use penstock_proto::consistency::Consistency::{Asp, Bsp};
use penstock_proto::error::{JobFailure, Loss, Refusal};
use penstock_proto::handshake::Purpose;
use penstock_proto::items::{Propagation, RowSet, Slack};
use penstock_proto::message::{Answer, Ask, Departure, Reply, Request, decode, encode};
use penstock_proto::peer::PeerId;
use penstock_proto::submission::Submission;
use std::io::Write;
use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// Elements of a chunk.
const CHUNK: usize = 1024;
/// Elements of the tensors: 512 KiB, which no buffer of a line that is held takes whole.
const ELEMENTS: u64 = 65_536;
/// What a line lets through when it is held: all that is said before a tensor's first push, and some chunks of that.
const HELD: u64 = 100_000;
const SOON: Option<Duration> = Some(Duration::from_millis(100));

/// Two workers; rank 1 behind a line.
fn two(servers: u32) -> (Cluster, Job, Job) {
    let cluster = Cluster::over(Way::Line, 2, servers, &[("chunk_bytes", "8KiB")]);
    let (a, b) = (cluster.join(0), cluster.join(1));
    (cluster, a, b)
}

fn tensors(a: &Job, b: &Job) -> (Arc<Tensor>, Arc<Tensor>) {
    (declare(a, "w", ELEMENTS, Asp), declare(b, "w", ELEMENTS, Asp))
}

fn push(tensor: &Tensor, value: f64) {
    let data = bytes(&vec![value; ELEMENTS as usize]);
    tensor.push(Some(&data), NO_SETTINGS, false, None).unwrap();
}

fn failed(error: Error) -> JobFailure {
    match error {
        Error::Failed(failure) => failure,
        error => panic!("{error}"),
    }
}

/// 48 MiB over a line of 4 MB/s: the leave gave up after 5 s without a word, and behind the barrier a third of the elements had
/// the update and the others not (M-3).
#[test]
fn nobody_passes_a_barrier_before_a_worker_that_leaves_has_delivered_everything() {
    for servers in [1, 2] {
        let (cluster, a, b) = two(servers);
        let (wa, wb) = tensors(&a, &b);
        cluster.lines.last().unwrap().let_pass(HELD);
        push(&wb, 1.0);
        std::thread::scope(|scope| {
            let leaves = scope.spawn(|| b.leave(None));
            cluster.lines.last().unwrap().wait_until_stuck();
            // If it let any worker pass, it would let this one pass in time.
            misses(&[1], || a.barrier(SOON));
            assert!(!leaves.is_finished());
            cluster.lines.iter().for_each(|line| line.let_pass(u64::MAX));
            a.barrier(None).unwrap();
            assert_eq!(pull(&wa, None).unwrap().1, vec![1.0; ELEMENTS as usize]);
            leaves.join().unwrap().unwrap();
        });
        a.leave(None).unwrap();
        let ended = |server: &penstock::server::Server| server.wait(seconds(common::DEADLINE));
        assert!(cluster.servers.iter().all(|server| ended(server) == Some(Ok(()))));
    }
}

/// Rows of a table, all of them worker 1's and read by worker 0: as many bytes as a tensor has here.
const ROWS: u64 = 64;
const ROW_BYTES: usize = 8192;
const PROPAGATIONS: [Propagation; 3] = [Propagation::Eager, Propagation::Lazy, Propagation::Bounded];

/// The table on both sides.
fn tables(a: &Job, b: &Job, propagation: Propagation) -> (Table, Table) {
    let declare = |job: &Job| {
        let of = |rank| if job.rank() == rank { RowSet::from_rows(0..ROWS) } else { RowSet::default() };
        let declaration = TableDeclaration {
            name: "U".to_owned(),
            rows: ROWS,
            row_bytes: ROW_BYTES as u32,
            element: None,
            holds: String::new(),
            sum: false,
            produce: of(1),
            consume: of(0),
            propagation,
            slack: Slack::Bound(0),
            adaptive: None,
            timeout: None,
        };
        job.table(declaration).unwrap()
    };
    thread::scope(|scope| {
        let there = scope.spawn(|| declare(b));
        (declare(a), there.join().unwrap())
    })
}

/// Worker 1 sets every row.
fn set(table: &Table) {
    let rows: Vec<u64> = (0..ROWS).collect();
    table.set(&rows, &vec![7; ROWS as usize * ROW_BYTES], Some(1)).unwrap();
}

#[test]
fn nobody_passes_a_barrier_before_the_rows_of_a_worker_that_leaves_are_there() {
    for propagation in PROPAGATIONS {
        let (cluster, a, b) = two(1);
        let (there, here) = tables(&a, &b, propagation);
        cluster.lines[0].let_pass(HELD);
        set(&here);
        thread::scope(|scope| {
            let leaves = scope.spawn(|| b.leave(None));
            cluster.lines[0].wait_until_stuck();
            // If it let any worker pass, it would let this one pass in time.
            let met = a.barrier(SOON);
            assert!(matches!(met, Err(Error::BarrierTimeout { .. })), "{propagation}: {met:?}");
            assert!(!leaves.is_finished(), "{propagation}");
            cluster.lines[0].let_pass(u64::MAX);
            leaves.join().unwrap().unwrap();
        });
        a.barrier(None).unwrap();
        let (rows, mut seen) = ((0..ROWS).collect::<Vec<_>>(), vec![0; ROWS as usize * ROW_BYTES]);
        there.get(&rows, &mut seen, Some(1), None, None).unwrap();
        assert!(seen.iter().all(|byte| *byte == 7), "{propagation}: not all rows were delivered");
        a.leave(None).unwrap();
        let ended = cluster.servers[0].wait(seconds(common::DEADLINE));
        assert_eq!(ended, Some(Ok(())), "{propagation}");
    }
}

#[test]
fn a_leave_whose_rows_are_not_taken_in_time_names_the_server_and_the_others_hear_of_it() {
    for propagation in PROPAGATIONS {
        let (cluster, a, b) = two(1);
        let (_there, here) = tables(&a, &b, propagation);
        cluster.lines[0].let_pass(HELD);
        set(&here);
        match b.leave(SOON).unwrap_err() {
            Error::Unanswered { server: 0, what, .. } => assert!(what.contains("rows"), "{what}"),
            error => panic!("{propagation}: {error}"),
        }
        cluster.lines[0].let_pass(u64::MAX);
        let lost = failed(a.barrier(None).unwrap_err());
        let told = matches!(&lost, JobFailure::WorkerLost { rank: 1, loss: Loss::Failed { what } }
            if what.contains("server 0") && what.contains("rows"));
        assert!(told, "{propagation}: {lost}");
    }
}

#[test]
fn a_leave_that_is_not_taken_in_time_says_how_much_was_and_the_others_hear_of_it() {
    let (cluster, a, b) = two(2);
    let (wa, wb) = tensors(&a, &b);
    cluster.lines[1].let_pass(HELD);
    push(&wb, 1.0);
    match b.leave(SOON).unwrap_err() {
        Error::NotTaken { server: 1, taken, submitted, .. } => assert!(taken < submitted),
        error => panic!("{error}"),
    }
    cluster.lines[1].let_pass(u64::MAX);
    let lost = failed(
        wa.pull_into(&mut vec![0; 8 * ELEMENTS as usize], None, None)
            .map_or_else(|error| error, |_| a.barrier(None).unwrap_err()),
    );
    assert!(
        matches!(&lost, JobFailure::WorkerLost { rank: 1, loss: Loss::Failed { what } } if what.contains("server 1")),
        "{lost}"
    );
    assert!(b.leave(None).is_ok(), "leaving twice does nothing");
}

#[test]
fn a_barrier_that_has_to_wait_for_the_line_says_so_and_can_be_tried_again() {
    let (cluster, a, b) = two(1);
    let (wa, wb) = tensors(&a, &b);
    cluster.lines[0].let_pass(HELD);
    push(&wb, 1.0);
    cluster.lines[0].wait_until_stuck();
    assert!(matches!(b.barrier(SOON), Err(Error::NotTaken { server: 0, .. })));
    cluster.lines[0].let_pass(u64::MAX);
    std::thread::scope(|scope| {
        scope.spawn(|| b.barrier(None).unwrap());
        a.barrier(None).unwrap();
    });
    assert_eq!(pull(&wa, None).unwrap().1, vec![1.0; ELEMENTS as usize]);
}

#[test]
fn a_failure_that_comes_while_a_worker_leaves_is_told_to_it() {
    let (cluster, a, b) = two(1);
    let (_wa, wb) = tensors(&a, &b);
    cluster.lines[0].let_pass(HELD);
    push(&wb, 1.0);
    std::thread::scope(|scope| {
        let leaves = scope.spawn(|| b.leave(None));
        cluster.lines[0].wait_until_stuck();
        a.fail("no");
        let failure = failed(leaves.join().unwrap().unwrap_err());
        let expected = JobFailure::WorkerLost { rank: 0, loss: Loss::Failed { what: "no".to_owned() } };
        assert_eq!(failure, expected);
    });
}

#[test]
fn a_server_that_ends_while_a_worker_leaves_is_no_clean_leave() {
    at_once([Way::Memory, Way::Tcp], |way| {
        // The other worker never comes, so the server has no reason of its own to end.
        let mut cluster = Cluster::over(way, 2, 2, &[]);
        let job = cluster.join(0);
        cluster.servers[1].stop();
        let error = job.leave(None).unwrap_err();
        let told = matches!(
            error,
            Error::Failed(JobFailure::Stopped { .. } | JobFailure::ServerLost { server: 1, .. })
        );
        assert!(told, "{way:?}: {error}");
        assert!(
            matches!(
                cluster.servers[0].wait(seconds(common::DEADLINE)),
                Some(Err(JobFailure::Stopped { .. } | JobFailure::ServerLost { server: 1, .. }))
            ),
            "{way:?}: the server that still stood heard what this worker had heard"
        );
    });
}

/// A job that had failed on one server was left cleanly on another, whose workers ended with exit code 0.
#[test]
fn who_has_seen_the_job_fail_leaves_at_once_and_never_cleanly() {
    for way in [Way::Memory, Way::Tcp] {
        let mut cluster = Cluster::over(way, 1, 2, &[]);
        let job = cluster.join(0);
        let tensor = declare(&job, "w", 4, Asp);
        cluster.servers[1].stop();
        let seen = loop {
            match tensor.push(None, NO_SETTINGS, false, None).and_then(|_| job.clock()) {
                Ok(_) => {}
                Err(error) => break failed(error),
            }
        };
        let since = Instant::now();
        assert_eq!(job.leave(None), Ok(()), "{way:?}: it was told before");
        // Well below the deadline of 30 s, however busy the machine is.
        assert!(since.elapsed() < Duration::from_secs(15), "{way:?}: it took {:?}", since.elapsed());
        let ended = cluster.servers[0].wait(seconds(common::DEADLINE));
        assert_eq!(ended, Some(Err(seen)), "{way:?}");
    }
}

// A thread that trains died of it, or the outcome of an asynchronous pull was not looked at: the process ended with 0.
#[test]
fn a_failure_that_only_another_thread_was_told_is_told_by_the_leave() {
    let (_cluster, a, b) = two(1);
    b.fail("no");
    std::thread::scope(|scope| scope.spawn(|| a.barrier(None).unwrap_err()).join()).unwrap();
    failed(a.leave(None).unwrap_err());
}

#[test]
fn a_failure_that_no_call_has_told_is_told_by_the_leave() {
    let cluster = Cluster::new(2, 1, &[]);
    let (a, b) = (cluster.join(0), cluster.join(1));
    b.fail("no");
    cluster.servers[0].wait(seconds(common::DEADLINE));
    let expected = JobFailure::WorkerLost { rank: 1, loss: Loss::Failed { what: "no".to_owned() } };
    assert_eq!(a.leave(None), Err(Error::Failed(expected)));
    assert_eq!(a.leave(None), Ok(()), "once");
}

#[test]
fn a_call_that_waits_while_another_thread_leaves_ends_as_closed() {
    let cluster = Cluster::new(2, 1, &[]);
    let (a, b) = (cluster.join(0), cluster.join(1));
    let (wa, _wb) = (declare(&a, "w", 4, Asp), declare(&b, "w", 4, Asp));
    let (begun, begins) = channel();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            begun.send(()).unwrap();
            a.barrier(None)
        });
        begins.recv().unwrap();
        a.leave(None).unwrap();
        assert_eq!(waits.join().unwrap(), Err(Error::Closed));
    });
    assert!(matches!(wa.push(None, NO_SETTINGS, false, None), Err(Error::Closed)));
    assert!(matches!(a.clock(), Err(Error::Closed)));
    b.leave(None).unwrap();
}

/// The connection may break at every byte of the request to leave, of its answer, and of the last word.
#[test]
fn a_leave_is_exact_wherever_the_control_connection_breaks() {
    let cuts = [Direction::ToServer, Direction::ToWorker].into_iter();
    at_once(
        cuts.flat_map(|direction| (0..30).step_by(3).map(move |after| (direction, after))),
        |(direction, after)| {
            let (cluster, a, b) = two(1);
            let (wa, wb) = tensors(&a, &b);
            push(&wb, 1.0);
            cluster.lines[0].cut(0, direction, after);
            b.leave(None).unwrap_or_else(|error| panic!("cut {after} bytes {direction:?}: {error}"));
            a.barrier(None).unwrap();
            assert_eq!(pull(&wa, None).unwrap().1, vec![1.0; ELEMENTS as usize]);
            a.leave(None).unwrap();
            let ended = cluster.servers[0].wait(seconds(common::DEADLINE));
            assert_eq!(ended, Some(Ok(())), "cut {after} bytes {direction:?}");
        },
    );
}

/// The last to leave: the server ends with it, and must not before its answer has come.
#[test]
fn the_last_to_leave_has_its_answer_though_the_line_breaks() {
    for after in (0..30).step_by(3) {
        let cluster = Cluster::over(Way::Line, 2, 1, &[]);
        let (a, b) = (cluster.join(0), cluster.join(1));
        a.leave(None).unwrap();
        cluster.lines[0].cut(0, Direction::ToWorker, after);
        b.leave(None).unwrap_or_else(|error| panic!("cut {after} bytes: {error}"));
        let ended = cluster.servers[0].wait(seconds(common::DEADLINE));
        assert_eq!(ended, Some(Ok(())), "cut {after} bytes");
    }
}

/// What docs/consistency.md says of `on_worker_loss=continue`.
#[test]
fn the_last_push_of_a_lost_worker_counts_whole_in_each_chunk_or_not_at_all_there() {
    for consistency in [Asp, Bsp] {
        let given = [("chunk_bytes", "8KiB"), ("on_worker_loss", "continue")];
        let cluster = Cluster::over(Way::Line, 2, 1, &given);
        let (a, b) = (cluster.join(0), cluster.join(1));
        let wa = declare(&a, "w", ELEMENTS, consistency);
        let wb = declare(&b, "w", ELEMENTS, consistency);
        push(&wa, 2.0);
        cluster.lines[0].let_pass(HELD);
        push(&wb, 1.0);
        cluster.lines[0].wait_until_stuck();
        b.fail("no");
        a.barrier(None).unwrap();
        a.clock().unwrap();
        let value = pull(&wa, None).unwrap().1;
        for chunk in value.chunks(CHUNK) {
            assert!([2.0, 3.0].contains(&chunk[0]), "{consistency}: {}", chunk[0]);
            assert!(
                chunk.iter().all(|&element| element == chunk[0]),
                "{consistency}: a chunk has half of it"
            );
        }
        assert!(value.contains(&2.0), "{consistency}: not all of it had come");
    }
}

/// Only the home of the tensor sees that the workers disagree; the other server hears of it from the
/// workers, and from all of them.
#[test]
fn what_all_workers_have_heard_of_one_server_another_ends_with_in_the_same_words() {
    for way in [Way::Memory, Way::Tcp] {
        let cluster = Cluster::over(way, 2, 2, &[]);
        let jobs = [cluster.join(0), cluster.join(1)];
        let rule = Rule::Sgd { momentum: false, nesterov: false, maximize: false };
        let tensors = jobs.each_ref().map(|job| job.declare(Declaration::new("w", &[10], rule)).unwrap());
        tensors.iter().for_each(|tensor| tensor.initialize(None, None).unwrap());
        let one = 1f32.to_le_bytes().repeat(10);
        for (tensor, rate) in tensors.iter().zip([0.1, 0.2]) {
            let settings = Settings([rate, 0.0, 0.0, 0.0, 0.0]);
            let pushed = tensor.push(Some(&one), settings, false, None);
            assert!(matches!(pushed, Ok(_) | Err(Error::Failed(_))), "{pushed:?}");
        }
        let told = jobs.each_ref().map(|job| {
            let failure = failed(job.barrier(None).unwrap_err());
            job.leave(None).unwrap();
            failure
        });
        let expected = matches!(told[0], JobFailure::SettingsConflict { first: 0, second: 1, .. });
        assert!(expected, "{way:?}: {}, {}", told[0], told[1]);
        assert_eq!(told[0], told[1]);
        for server in &cluster.servers {
            assert_eq!(server.wait(seconds(common::DEADLINE)), Some(Err(told[0].clone())), "{way:?}");
        }
    }
}

// It was taken for done: it said goodbye, because its interpreter ended, and the others trained on with what there was.
#[test]
fn who_has_left_and_then_ends_badly_is_lost_as_long_as_others_are_there() {
    for way in [Way::Memory, Way::Tcp] {
        let cluster = Cluster::over(way, 3, 1, &[]);
        let (a, b, c) = (cluster.join(0), cluster.join(1), cluster.join(2));
        b.leave(None).unwrap();
        c.leave(None).unwrap();
        cluster.servers[0].worker_ended(2, None);
        assert_eq!(a.clocks().unwrap(), [0, -1, -1], "{way:?}");
        cluster.servers[0].worker_ended(1, Some("ended with exit code 3".to_owned()));
        while a.check().is_ok() {
            std::thread::yield_now();
        }
        let failure = failed(a.check().unwrap_err());
        let expected = Loss::Ended { how: "ended with exit code 3".to_owned() };
        assert_eq!(failure, JobFailure::WorkerLost { rank: 1, loss: expected }, "{way:?}");
    }
}

// The leave said that all was well, whatever the other thread had told the servers, or went on for as long as its line was held.
#[test]
fn who_fails_beside_another_thread_that_leaves_has_not_left_well_and_both_return() {
    for servers in [1, 2] {
        let (cluster, a, b) = two(servers);
        let (_wa, wb) = tensors(&a, &b);
        let (says, waits) = channel();
        b.on_interrupt(Box::new(move || {
            let _ = says.send(());
            false
        }));
        cluster.lines.last().unwrap().let_pass(HELD);
        push(&wb, 1.0);
        while waits.try_recv().is_ok() {}
        thread::scope(|scope| {
            let leaves = scope.spawn(|| b.leave(None));
            waits.recv().unwrap();
            let since = Instant::now();
            b.fail("no");
            assert_eq!(leaves.join().unwrap(), Err(Error::Closed), "{servers} servers");
            // Well below the deadline of 30 s, however busy the machine is.
            assert!(since.elapsed() < Duration::from_secs(15), "{:?}", since.elapsed());
        });
        // Before its goodbye is taken: it was not let go.
        let failure = failed(a.barrier(None).unwrap_err());
        cluster.lines.iter().for_each(|line| line.let_pass(u64::MAX));
        let expected = JobFailure::WorkerLost { rank: 1, loss: Loss::Failed { what: "no".to_owned() } };
        assert_eq!(failure, expected, "{servers} servers");
        assert_eq!(b.leave(None), Ok(()), "once");
    }
}

/// A worker that speaks by hand and has been let go, on this host or on another; it has not said that it heard so.
enum Gone {
    Here(Raw),
    There(TcpStream),
}

impl Gone {
    /// The servers have one shard each.
    fn new(cluster: &Cluster, server: usize, rank: u32) -> Self {
        let mut gone = if cluster.way == Way::Memory {
            let raw = Raw::join_at(cluster, server, rank);
            raw.submit(Submission::Leave.encode());
            Self::Here(raw)
        } else {
            let control = far(cluster, server, rank);
            let purpose = Purpose::Shard { peer: PeerId::worker(rank), session: SESSION, shard: 0 };
            let address = cluster.servers[server].addresses()[0];
            let mut shard = enter(address, "job", common::SECRET, purpose).unwrap();
            shard.write_all(&frame("job", 1, Submission::Leave).encode()).unwrap();
            Self::There(control)
        };
        assert_eq!(gone.leave(2, Departure::Done), Answer::Left);
        gone
    }

    fn leave(&mut self, id: u64, how: Departure) -> Answer {
        let body = Ask::Leave { how };
        match self {
            Self::Here(raw) => raw.ask(id, body),
            Self::There(control) => {
                say(control, &encode(&Request { id, settled: id, open: Vec::new(), body }).unwrap());
                decode::<Reply>(&hear(control).unwrap()).unwrap().body
            }
        }
    }
}

/// Checks that worker 1 is lost in this way, and not one that has left, by a barrier of worker 0.
fn assert_lost(a: &Job, loss: &Loss, on_loss: &str) {
    let met = a.barrier_for("", None);
    if on_loss == "continue" {
        assert_eq!(met.unwrap().left, [], "it is lost");
        a.leave(None).unwrap();
    } else {
        let expected = JobFailure::WorkerLost { rank: 1, loss: loss.clone() };
        assert_eq!(failed(met.unwrap_err()), expected);
    }
}

// It was told once more that it had left well, while its own leave said that it had not; on this host nobody listened any more.
#[test]
fn who_fails_before_it_has_heard_that_it_was_let_go_has_not_left_well() {
    for (way, on_loss) in
        [Way::Memory, Way::Tcp].into_iter().flat_map(|way| [(way, "stop"), (way, "continue")])
    {
        let cluster = Cluster::over(way, 2, 1, &[("shards", "1"), ("on_worker_loss", on_loss)]);
        let a = cluster.join(0);
        let mut gone = Gone::new(&cluster, 0, 1);
        assert_eq!(a.barrier_for("", None).unwrap().left, [1], "the others go on without it");
        let loss = Loss::Failed { what: "no".to_owned() };
        let heard = gone.leave(3, Departure::Failed { what: "no".to_owned() });
        assert_eq!(heard, Answer::Failed(JobFailure::WorkerLost { rank: 1, loss: loss.clone() }), "{way:?}");
        assert_lost(&a, &loss, on_loss);
    }
}

// Its own leave said that it had heard the job fail, and the others ended as if all were well.
#[test]
fn who_has_heard_of_a_failure_before_it_has_heard_that_it_was_let_go_has_not_left_well() {
    for on_loss in ["stop", "continue"] {
        for lost in [0, 1] {
            let given = [("shards", "1"), ("on_worker_loss", on_loss)];
            let cluster = Cluster::over(Way::Tcp, 2, 2, &given);
            let a = cluster.join(0);
            let mut gone = [1, 0].map(|server| Gone::new(&cluster, server, 1));
            let failure = JobFailure::ServerLost { server: lost, reason: "its line broke".to_owned() };
            // The first server is left last: this one has nothing to tell that the first is not told too.
            assert_eq!(gone[0].leave(3, Departure::Heard(failure.clone())), Answer::Left);
            assert_eq!(a.barrier_for("", None).unwrap().left, [1]);
            let loss = Loss::Failed { what: format!("it heard: {failure}") };
            let heard = gone[1].leave(3, Departure::Heard(failure));
            assert_eq!(heard, Answer::Failed(JobFailure::WorkerLost { rank: 1, loss: loss.clone() }));
            assert_lost(&a, &loss, on_loss);
        }
    }
}

#[test]
fn who_has_left_and_does_not_hang_up_is_hung_up_on() {
    let cluster = Cluster::new(2, 1, &[("shards", "1"), ("lease", "0.5")]);
    let _a = cluster.join(0);
    let Gone::Here(raw) = Gone::new(&cluster, 0, 1) else { panic!("it is on this host") };
    raw.wait_for_the_end();
}

/// Connections that have not said hello, for one more of which another goes.
const MOST_STRANGERS: usize = 256;

// They stood in the places of strangers, and did not go for one: whoever came, or came again, was turned away for a lease.
#[test]
fn connections_of_one_that_has_left_keep_no_other_out() {
    let cluster = Cluster::over(Way::Tcp, 2, 1, &[("shards", "1"), ("lease", "60")]);
    let _first = Gone::new(&cluster, 0, 1);
    let mut again: Vec<TcpStream> = (1..MOST_STRANGERS).map(|_| far(&cluster, 0, 1)).collect();
    let a = cluster.join(0);
    let mut newest = Gone::There(again.pop().unwrap());
    assert_eq!(newest.leave(2, Departure::Done), Answer::Left);
    assert!(hear(&mut again[0]).is_none(), "a newer one has taken its place");
    assert_eq!(a.barrier_for("", None).unwrap().left, [1]);
}

/// How long a server waits, at least, for one that has to ask again what its last word was: 100 ms less than its
/// `RETURN_WITHIN_MS`.
const RETURN_WITHIN: Duration = Duration::from_millis(1_900);

/// It says that it has heard the last word.
fn heard() -> Vec<u8> {
    encode(&Request { id: 9, settled: 0, open: Vec::new(), body: Ask::Heard }).unwrap()
}

// The server was gone as soon as it had answered: where the line broke, the worker said of itself that it had failed.
#[test]
fn who_is_told_that_its_failure_came_too_late_may_ask_again() {
    let fails = || Departure::Failed { what: "no".to_owned() };
    let tries = || {
        let cluster = Cluster::over(Way::Tcp, 2, 1, &[("shards", "1"), ("lease", "60")]);
        let a = cluster.join(0);
        let mut gone = Gone::new(&cluster, 0, 1);
        a.leave(None).unwrap();
        while cluster.servers[0].workers_here() > 0 {
            thread::yield_now();
        }
        let since = Instant::now();
        assert_eq!(gone.leave(3, fails()), Answer::Left);
        drop(gone);
        let comes_again = || {
            let mut control = far(&cluster, 0, 1);
            let mut again = Gone::There(control.try_clone().unwrap());
            assert_eq!(again.leave(3, fails()), Answer::Left);
            say(&mut control, &heard());
        };
        if catch_unwind(AssertUnwindSafe(comes_again)).is_err() {
            assert!(
                since.elapsed() >= RETURN_WITHIN,
                "it was gone {:?} after it had answered",
                since.elapsed()
            );
            return false;
        }
        assert_eq!(cluster.servers[0].wait(seconds(common::DEADLINE)), Some(Ok(())));
        true
    };
    // Where this machine was too busy to come again in time nothing is shown.
    assert!((0..30).any(|_| tries()), "it never came again in time");
}

// The server waited for it once more.
#[test]
fn who_has_said_that_it_heard_the_last_word_is_not_taken_for_one_that_has_not() {
    let cluster = Cluster::over(Way::Tcp, 2, 1, &[("shards", "1"), ("lease", "60")]);
    let a = cluster.join(0);
    let Gone::There(mut control) = Gone::new(&cluster, 0, 1) else { panic!("it is on another host") };
    say(&mut control, &heard());
    assert!(hear(&mut control).is_none(), "it is hung up on");
    assert_eq!(greet(&cluster, 0, 1).1, Answer::Refused(Refusal::RankTaken { rank: 1 }));
    a.leave(None).unwrap();
    assert_eq!(cluster.servers[0].wait(seconds(common::DEADLINE)), Some(Ok(())));
}

#[test]
fn who_is_lost_after_it_was_let_go_hears_the_same_however_often_it_asks() {
    let given = [("shards", "1"), ("lease", "60"), ("on_worker_loss", "continue")];
    let cluster = Cluster::over(Way::Tcp, 2, 1, &given);
    let a = cluster.join(0);
    let mut gone = Gone::new(&cluster, 0, 1);
    let lost =
        Answer::Failed(JobFailure::WorkerLost { rank: 1, loss: Loss::Failed { what: "no".to_owned() } });
    let why = |what: &str| Departure::Failed { what: what.to_owned() };
    for (id, how) in [(3, why("no")), (4, why("something else")), (5, Departure::Done)] {
        assert_eq!(gone.leave(id, how), lost);
    }
    drop(gone);
    assert_eq!(greet(&cluster, 0, 1).1, lost);
    assert_eq!(a.barrier_for("", None).unwrap().left, []);
}

// It was welcomed, and told once more that it had left well.
#[test]
fn who_is_lost_after_it_was_let_go_as_its_launcher_saw_hears_so_when_it_comes_again() {
    let given = [("shards", "1"), ("lease", "60"), ("on_worker_loss", "continue")];
    let cluster = Cluster::over(Way::Tcp, 2, 1, &given);
    let a = cluster.join(0);
    let _gone = Gone::new(&cluster, 0, 1);
    let loss = Loss::Ended { how: "ended with exit code 3".to_owned() };
    cluster.servers[0].worker_ended(1, Some("ended with exit code 3".to_owned()));
    while !a.barrier_for("", None).unwrap().left.is_empty() {}
    assert_eq!(greet(&cluster, 0, 1).1, Answer::Failed(JobFailure::WorkerLost { rank: 1, loss }));
}

// Its goodbye was taken after it had said why it failed: it counted as one that had left well, and what it had said was forgotten.
#[test]
fn who_has_said_why_it_fails_does_not_leave_well_when_its_goodbye_is_taken() {
    let cluster = Cluster::new(2, 2, &[("shards", "1"), ("on_worker_loss", "continue")]);
    let a = cluster.join(0);
    let raw = Raw::join(&cluster, 1);
    tell(&raw.connection, 2, Ask::Leave { how: Departure::Done });
    let failure = JobFailure::ServerLost { server: 1, reason: "its line broke".to_owned() };
    let said = raw.ask(3, Ask::Leave { how: Departure::Heard(failure.clone()) });
    assert_eq!(said, Answer::Failed(failure));
    raw.submit(Submission::Leave.encode());
    assert_eq!(a.barrier_for("", None).unwrap().left, [], "it is lost");
    a.leave(None).unwrap();
}

/// Two workers whose connections all stand; rank 1 behind a line over which no sign of life goes meanwhile.
fn two_at_rest(on_loss: &str) -> (Cluster, Job, Job) {
    let cluster = Cluster::over(Way::Line, 2, 1, &[("on_worker_loss", on_loss), ("lease", "600")]);
    let (a, b) = (cluster.join(0), cluster.join(1));
    let (_wa, wb) = tensors(&a, &b);
    push(&wb, 1.0);
    thread::scope(|scope| {
        scope.spawn(|| b.barrier(None).unwrap());
        a.barrier(None).unwrap();
    });
    (cluster, a, b)
}

// Its connection is listened to until it hangs up: as another worker it would have been listened to for ever.
#[test]
fn who_has_left_does_not_come_as_another_on_the_same_connection() {
    let cluster = Cluster::new(2, 1, &[("shards", "1")]);
    let mut gone = Gone::new(&cluster, 0, 1);
    let Gone::Here(raw) = &gone else { panic!("it is on this host") };
    tell(&raw.connection, 3, hello(0, 2));
    assert_eq!(gone.leave(4, Departure::Done), Answer::Left);
    cluster.join(0);
}

/// The connection that a worker makes first.
const CONTROL: u64 = 0;

/// Worker 1 leaves, and the answer is held back on its line; then it fails, and what it says of that is held back too, until the
/// line breaks. What its leave returned.
fn fails_as_its_leave_is_confirmed(cluster: &Cluster, b: &Job, let_go: impl FnOnce()) -> Result<(), Error> {
    let line = &cluster.lines[0];
    line.deafen(true);
    thread::scope(|scope| {
        let leaves = scope.spawn(|| b.leave(None));
        let_go();
        line.let_pass(0);
        let fails = scope.spawn(|| b.fail("no"));
        line.wait_until_stuck_on(CONTROL);
        line.sever();
        fails.join().unwrap();
        leaves.join().unwrap()
    })
}

// It had left well for the others, and not for itself: it said once why it failed, on a line that broke.
#[test]
fn a_failure_that_is_said_as_the_line_breaks_is_told_to_the_others() {
    for on_loss in ["stop", "continue"] {
        let (cluster, a, b) = two_at_rest(on_loss);
        let left = fails_as_its_leave_is_confirmed(&cluster, &b, || {
            assert_eq!(a.barrier_for("", None).unwrap().left, [1], "it was let go");
        });
        assert_eq!(left, Err(Error::Closed), "{on_loss}");
        assert_lost(&a, &Loss::Failed { what: "no".to_owned() }, on_loss);
    }
}

// The job had ended well, and the last worker's leave said that it had not.
#[test]
fn who_fails_when_the_job_has_ended_well_has_left_well() {
    let (cluster, a, b) = two_at_rest("stop");
    a.leave(None).unwrap();
    let left = fails_as_its_leave_is_confirmed(&cluster, &b, || {
        while cluster.servers[0].workers_here() > 0 {
            thread::yield_now();
        }
    });
    assert_eq!(left, Ok(()));
    assert_eq!(cluster.servers[0].wait(seconds(common::DEADLINE)), Some(Ok(())));
}

// A leave that returned an error was a clean one for all others.
#[test]
fn of_a_leave_and_a_failure_at_once_the_others_hear_what_the_leave_says() {
    for way in [Way::Memory, Way::Tcp] {
        for _ in 0..40 {
            let cluster = Cluster::over(way, 2, 1, &[]);
            let (a, b) = (cluster.join(0), cluster.join(1));
            let left = thread::scope(|scope| {
                let leaves = scope.spawn(|| b.leave(None));
                b.fail("no");
                leaves.join().unwrap()
            });
            match a.barrier_for("", None) {
                Ok(met) => assert_eq!((met.left, left), (vec![1], Ok(())), "{way:?}"),
                // Who comes to leave when the failure has been told is not told again.
                Err(error) => {
                    let expected = Loss::Failed { what: "no".to_owned() };
                    assert_eq!(failed(error), JobFailure::WorkerLost { rank: 1, loss: expected }, "{way:?}");
                    assert!(matches!(left, Ok(()) | Err(Error::Closed)), "{way:?}: {left:?}");
                }
            }
        }
    }
}

#[test]
fn of_a_leave_and_a_failure_at_once_the_server_hears_one() {
    for _ in 0..40 {
        let cluster = Cluster::new(1, 1, &[]);
        let job = cluster.join(0);
        let _w = declare(&job, "w", 4, Asp);
        let left = thread::scope(|scope| {
            let leaves = scope.spawn(|| job.leave(None));
            job.fail("no");
            leaves.join().unwrap()
        });
        match cluster.servers[0].wait(seconds(common::DEADLINE)) {
            Some(Ok(())) => assert_eq!(left, Ok(())),
            Some(Err(JobFailure::WorkerLost { rank: 0, loss: Loss::Failed { what } })) if what == "no" => {
                assert!(matches!(left, Ok(()) | Err(Error::Closed)), "{left:?}");
            }
            ended => panic!("{ended:?}, {left:?}"),
        }
    }
}

/// It said that all was well while the first had not done anything yet, and the process could end.
#[test]
fn who_leaves_beside_another_thread_waits_for_that_one_and_hears_what_it_heard() {
    for taken in [true, false] {
        let (cluster, a, b) = two(1);
        let (_wa, wb) = tensors(&a, &b);
        let (says, waits) = channel();
        b.on_interrupt(Box::new(move || {
            let _ = says.send(thread::current().name().map(str::to_owned));
            false
        }));
        let until = |name: &str| while waits.recv().unwrap().as_deref() != Some(name) {};
        let line = cluster.lines.last().unwrap();
        line.let_pass(HELD);
        push(&wb, 1.0);
        thread::scope(|scope| {
            let leave = |name: &str| {
                let thread = thread::Builder::new().name(name.to_owned());
                thread.spawn_scoped(scope, || b.leave(None)).unwrap()
            };
            let first = leave("first");
            until("first");
            assert!(matches!(b.leave(SOON), Err(Error::InLine { .. })));
            let second = leave("second");
            until("second");
            if taken {
                line.let_pass(u64::MAX);
            } else {
                a.fail("enough");
            }
            let (first, second) = (first.join().unwrap(), second.join().unwrap());
            assert_eq!(first.is_ok(), taken, "{first:?}");
            assert_eq!(first, second);
        });
        assert_eq!(b.leave(None), Ok(()), "once");
    }
}

/// Worker 0 has joined the first server, and hears that the second is lost before it has joined that; its process ends.
fn loses_a_server_while_it_joins(cluster: &Cluster) {
    let mut membership = cluster.membership(0);
    let path = common::socket_path();
    let note = PathBuf::from(format!("{}.lost", path.display()));
    membership.servers[1] = path.into();
    let joined = thread::scope(|scope| {
        let joins = scope.spawn(|| cluster.try_join(&membership));
        while cluster.servers[0].workers_here() < cluster.workers {
            thread::yield_now();
        }
        std::fs::write(&note, "server 1\nwas killed by SIGKILL\n").unwrap();
        joins.join().unwrap()
    });
    std::fs::remove_file(note).unwrap();
    let error = joined.unwrap_err();
    assert!(matches!(failed(error), JobFailure::ServerLost { server: 1, .. }));
    cluster.servers[0].worker_ended(0, Some("ended with exit code 1".to_owned()));
}

// The worker that noticed it first was taken for lost, and with it the value that only worker 0 gives: the other heard of that.
#[test]
fn a_server_that_is_lost_is_named_to_whoever_notices_it_later_where_workers_go_on_too() {
    for way in [Way::Memory, Way::Tcp] {
        let mut cluster = Cluster::over(way, 2, 2, &[("on_worker_loss", "continue")]);
        let job = cluster.join(1);
        loses_a_server_while_it_joins(&cluster);
        let declaration = Declaration::new("w", &[4], Rule::Add);
        let tensor = job.declare(declaration).unwrap_or_else(|error| panic!("{way:?}: {error}"));
        let first_value = |timeout| tensor.pull_into(&mut [0; 16], None, timeout);
        let early = first_value(SOON);
        assert!(matches!(early, Err(Error::NoValue { .. })), "{way:?}: {early:?}");
        cluster.servers[1].stop();
        let told = failed(first_value(None).unwrap_err());
        assert!(matches!(told, JobFailure::Stopped { server: 1 }), "{way:?}: {told}");
        job.leave(None).unwrap();
        let ended = cluster.servers[0].wait(seconds(common::DEADLINE));
        assert!(matches!(ended, Some(Err(JobFailure::ServerLost { server: 1, .. }))), "{way:?}: {ended:?}");
    }
}

/// It may be its own line that it lost.
#[test]
fn on_one_workers_word_that_a_server_is_lost_the_others_go_on_without_that_worker() {
    at_once([Way::Memory, Way::Tcp], |way| {
        let cluster = Cluster::over(way, 3, 2, &[("on_worker_loss", "continue")]);
        let jobs = [cluster.join(1), cluster.join(2)];
        loses_a_server_while_it_joins(&cluster);
        let met = thread::scope(|scope| {
            let stand = |job| scope.spawn(move || Job::barrier_for(job, "", None).unwrap());
            jobs.each_ref().map(stand).map(|thread| thread.join().unwrap())
        });
        assert!(met.iter().all(|met| met.ranks == [1, 2] && met.left.is_empty()), "{way:?}: {met:?}");
        jobs.iter().for_each(|job| job.leave(None).unwrap());
        assert_eq!(cluster.servers[0].wait(seconds(common::DEADLINE)), Some(Ok(())), "{way:?}");
    });
}

#[test]
fn who_waits_for_a_value_that_only_worker_0_gives_is_told_why_that_one_went() {
    let cluster = Cluster::new(2, 2, &[("on_worker_loss", "continue")]);
    let job = cluster.join(1);
    let tensor = job.declare(Declaration::new("w", &[4], Rule::Add)).unwrap();
    loses_a_server_while_it_joins(&cluster);
    match failed(tensor.pull_into(&mut [0; 16], None, None).unwrap_err()) {
        JobFailure::NoValue { loss: Some(Loss::Failed { what }), .. }
            if what.contains("server 1 was lost") => {}
        failure => panic!("{failure}"),
    }
}
