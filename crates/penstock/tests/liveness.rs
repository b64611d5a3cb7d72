//! A process that gives no sign of life for a lease is named, on the same host too; one that was suspended and wakes blames no
//! other falsely. The processes here are real ones: a test runs itself again as a worker.

mod common;

use common::cutter::Cutter;
use common::{Cluster, NO_SETTINGS, SECRET, Way, at_once, bytes, declare, pull, seconds, socket_path};
use penstock::options::Options;
use penstock::server::{Server, ServerConfig};
use penstock::worker::{Declaration, Error, Job, Membership, TableDeclaration};
use penstock_fabric::net::endpoint::Endpoint;
use penstock_kernels::{Dtype, Rule};
use penstock_proto::consistency::Consistency::Bsp;
use penstock_proto::error::{JobFailure, Loss, Refusal};
use penstock_proto::items::{Propagation, RowSet, Slack};
use penstock_proto::travel::{Filtering, Travel};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

const LEASE: Duration = Duration::from_millis(2000);
const OPTIONS: [(&str, &str); 2] = [("lease", "2"), ("deadline", "30")];
/// Where a test that runs itself again as a worker is told the server's endpoint, its rank, and the job's size.
const ROLE: &str = "PENSTOCK_TEST_WORKER";

/// Where it is told that it is a server: the job's size, and where to listen.
const SERVER_ROLE: &str = "PENSTOCK_TEST_SERVER";

/// A process that is ended with the test.
struct Process(Child);

impl Process {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Stops or kills it, and waits until none of its threads runs.
    fn halt(&self, signal: Signal) {
        self.signal(signal);
        let halted = |stat: String| {
            stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['T', 'Z', 'X']))
        };
        let runs = || {
            let threads =
                std::fs::read_dir(format!("/proc/{}/task", self.0.id())).into_iter().flatten().flatten();
            threads
                .filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok())
                .any(|stat| !halted(stat))
        };
        while runs() {
            std::thread::yield_now();
        }
    }

    /// Halts one thread, of `all` of this name the `at`-th that was started, while the others live. `None`, aloud, where this
    /// process may not.
    #[expect(clippy::print_stderr, reason = "a skip is said aloud")]
    fn halt_thread(&self, name: &str, at: usize, all: usize) -> Option<HaltedThread> {
        // In the order in which they were started. A thread names itself when it first runs, with 15 characters at most.
        let named = || -> Vec<i32> {
            let threads = std::fs::read_dir(format!("/proc/{}/task", self.0.id())).unwrap().flatten();
            let named = |thread: &std::fs::DirEntry| {
                std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name)
            };
            threads
                .filter(named)
                .map(|thread| thread.file_name().to_str().unwrap().parse().unwrap())
                .collect()
        };
        let until = Instant::now() + Duration::from_secs(30);
        let thread = loop {
            match named()[..] {
                ref found if found.len() == all => break found[at],
                ref found => assert!(Instant::now() < until, "threads {found:?} are called {name}"),
            }
        };
        if trace(SEIZE, thread) != 0 || trace(INTERRUPT, thread) != 0 {
            eprintln!("SKIPPED: a thread is halted by ptrace: {}", std::io::Error::last_os_error());
            return None;
        }
        let halted = HaltedThread(thread);
        let mut status = 0;
        // SAFETY: it writes to the status only.
        let stands = unsafe { waitpid(thread, &raw mut status, ANY_THREAD) };
        assert_eq!((stands, status & 0xff), (thread, 0x7f), "the thread stands");
        Some(halted)
    }

    /// This test's program as a server; `listen` is `--socket PATH` or `--listen ADDRESS`, or both.
    fn server(listen: &[String], workers: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "the_server_of_another_test", "--nocapture"]);
        command.env(SERVER_ROLE, format!("{workers} {}", listen.join(" ")));
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// This test's program as a worker; it says a line for every step, and takes the next when it is told to.
    fn worker(endpoint: &Endpoint, rank: u32, size: u32) -> (Self, ChildStdin, impl Iterator<Item = String>) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "the_worker_of_another_test", "--nocapture"]);
        command.env(ROLE, format!("{endpoint} {rank} {size}"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let lines = BufReader::new(stdout).lines().map_while(Result::ok);
        (Self(child), stdin, lines.filter_map(|line| Some(line.split_once("worker: ")?.1.to_owned())))
    }
}

unsafe extern "C" {
    unsafe fn ptrace(request: i32, ...) -> std::ffi::c_long;
    unsafe fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
}

// As linux/ptrace.h and linux/wait.h have them.
const SEIZE: i32 = 0x4206;
const INTERRUPT: i32 = 0x4207;
const DETACH: i32 = 17;
const ANY_THREAD: i32 = 0x4000_0000;

fn trace(request: i32, thread: i32) -> i64 {
    // SAFETY: none of the three reads or writes memory: they take a thread's number, and two words that are 0.
    unsafe { ptrace(request, thread, 0_usize, 0_usize) }
}

/// One that goes on when this is dropped: before then its process cannot end, nor be waited for.
struct HaltedThread(i32);

impl Drop for HaltedThread {
    fn drop(&mut self) {
        trace(DETACH, self.0);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How a server is told to listen, by shared memory and by TCP, and where it is found then.
fn ways() -> [([String; 2], Endpoint); 2] {
    let (path, port) = (socket_path(), port());
    let tcp = format!("tcp://{port}").parse().unwrap();
    let shown = path.to_str().unwrap().to_owned();
    [(["--socket".to_owned(), shown], path.into()), (["--listen".to_owned(), port], tcp)]
}

/// A server of two workers that listens as `listen` says, and the jobs of both.
fn served(listen: &[String], endpoint: &Endpoint) -> (Process, Job, Job) {
    let server = Process::server(listen, "2");
    let (a, b) = std::thread::scope(|scope| {
        let b = scope.spawn(|| join(endpoint, 1, 2));
        (join(endpoint, 0, 2), b.join().unwrap())
    });
    (server, a, b)
}

fn join(endpoint: &Endpoint, rank: u32, size: u32) -> Job {
    let servers = vec![endpoint.clone()];
    let membership = Membership { servers, job: "job".to_owned(), secret: SECRET, rank, size };
    let options = Options::load([("deadline", "30"), ("lease", "2")]).unwrap();
    Job::connect(&membership, options).unwrap()
}

/// A free port of this host.
fn port() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
#[expect(clippy::print_stdout, reason = "it tells another process how far it is")]
fn the_worker_of_another_test() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let [endpoint, rank, size] = role.split(' ').collect::<Vec<_>>()[..] else { panic!("{role}") };
    let job = join(&endpoint.parse().unwrap(), rank.parse().unwrap(), size.parse().unwrap());
    let tensor = declare(&job, "w", 4, Bsp);
    println!("\nworker: here");
    for step in std::io::stdin().lines().map_while(Result::ok) {
        let one = bytes(&[1.0; 4]);
        let result = tensor.push(Some(&one), NO_SETTINGS, false, None).and_then(|_| job.clock());
        match result.and_then(|_| pull(&tensor, None)) {
            Ok((version, _)) => println!("\nworker: {step} {version}"),
            Err(error) => {
                println!("\nworker: {error}");
                return;
            }
        }
    }
    job.leave(None).unwrap();
    println!("\nworker: done");
}

#[test]
fn the_server_of_another_test() {
    let Ok(role) = std::env::var(SERVER_ROLE) else { return };
    let (workers, rest) = role.split_once(' ').unwrap();
    let words: Vec<&str> = rest.split(' ').collect();
    let given = |name| words.iter().position(|word| *word == name).map(|at| words[at + 1]);
    let lease = given("--lease").unwrap_or("2");
    let more = [("lease", lease), ("pin", "off"), ("shards", "2"), ("memory", "256MiB")];
    let config = ServerConfig {
        path: given("--socket").map(Into::into),
        listen: given("--listen").iter().map(|address| address.parse().unwrap()).collect(),
        job: "job".to_owned(),
        secret: SECRET,
        index: 0,
        servers: 1,
        workers: workers.parse().unwrap(),
        options: Options::load([("deadline", "30")].into_iter().chain(more)).unwrap(),
    };
    let server = Server::start(config).unwrap();
    while server.wait(Duration::from_secs(60)).is_none() {}
}

/// Suspends processes for longer than a lease. There is no event to wait for: what is tested is that time passes.
fn suspend(processes: &[&Process]) {
    processes.iter().for_each(|process| process.signal(Signal::STOP));
    std::thread::sleep(LEASE * 3 / 2);
    processes.iter().for_each(|process| process.signal(Signal::CONT));
}

#[test]
fn a_server_that_is_stopped_is_named_within_its_lease_by_shared_memory_and_by_tcp() {
    at_once(ways(), |(listen, endpoint)| {
        // The second keeps the pull waiting.
        let (server, a, _b) = served(&listen, &endpoint);
        let tensor = declare(&a, "w", 4, Bsp);
        tensor.push(Some(&bytes(&[1.0; 4])), NO_SETTINGS, false, None).unwrap();
        server.halt(Signal::STOP);
        let since = Instant::now();
        match pull(&tensor, None).unwrap_err() {
            Error::Failed(JobFailure::ServerLost { server: 0, reason }) => {
                assert!(reason.contains("gave no sign of life for 2000 ms (the lease)"), "{reason}");
            }
            error => panic!("{error}"),
        }
        // A lease and a little, not the deadline of 30 s, however busy the machine is.
        assert!(since.elapsed() < Duration::from_secs(15), "{:?}", since.elapsed());
        server.signal(Signal::CONT);
    });
}

/// What a worker is told of its server's end.
fn told_of_the_server(error: Error) -> String {
    match error {
        Error::Failed(JobFailure::ServerLost { server: 0, reason }) => reason,
        error => panic!("{error}"),
    }
}

#[test]
fn a_shard_that_hangs_is_named_though_its_server_lives_by_shared_memory_and_by_tcp() {
    let both = (0..2).flat_map(|shard| ways().map(|way| (shard, way)));
    at_once(both, |(shard, (listen, endpoint))| {
        let (server, a, _b) = served(&listen, &endpoint);
        let Some(halted) = server.halt_thread("penstock-shard-", shard, 2) else { return };
        let reason = told_of_the_server(a.barrier(None).unwrap_err());
        let expected = format!("its shard {shard} gave no sign of life for 2000 ms (the lease)");
        assert!(reason.contains(&expected), "{endpoint}: {reason}");
        drop((halted, server));
    });
}

#[test]
fn a_thread_that_hangs_while_it_passes_rows_on_is_noticed_by_who_is_connected_with_it() {
    let (listen, endpoint) = ways()[1].clone();
    let (server, a, b) = served(&listen, &endpoint);
    let declare = |job: &Job| {
        let (mine, all) = (u64::from(job.rank()), 0..2);
        let declaration = TableDeclaration {
            name: "U".to_owned(),
            rows: 2,
            row_bytes: 8,
            element: None,
            holds: String::new(),
            sum: false,
            produce: RowSet::from_rows([mine]),
            consume: RowSet::from_ranges([all]),
            propagation: Propagation::Eager,
            slack: Slack::Bound(0),
            adaptive: None,
            timeout: None,
        };
        job.table(declaration).unwrap()
    };
    let (table, _other) = std::thread::scope(|scope| {
        let other = scope.spawn(|| declare(&b));
        (declare(&a), other.join().unwrap())
    });
    let Some(halted) = server.halt_thread("penstock-items", 0, 1) else { return };
    let reason = told_of_the_server(table.get(&[1], &mut [0; 8], Some(1), None, None).unwrap_err());
    let expected = "it gave no sign of life for 2000 ms (the lease) on a connection for items";
    assert!(reason.contains(expected), "{reason}");
    drop((halted, server));
}

#[test]
fn a_server_that_is_suspended_or_killed_while_a_worker_leaves_is_named_and_ends_the_leave() {
    let both = [Signal::STOP, Signal::KILL].into_iter().flat_map(|signal| ways().map(|way| (signal, way)));
    at_once(both, |(signal, (listen, endpoint))| {
        let (server, a, _b) = served(&listen, &endpoint);
        declare(&a, "w", 4, Bsp);
        // Nothing answers the leave any more: it surely waits.
        server.halt(signal);
        let since = Instant::now();
        let error = a.leave(None).unwrap_err();
        assert!(
            matches!(error, Error::Failed(JobFailure::ServerLost { server: 0, .. })),
            "{endpoint}, {signal:?}: {error}"
        );
        assert!(since.elapsed() < Duration::from_secs(15), "{endpoint}, {signal:?}: {:?}", since.elapsed());
    });
}

// The question whether the wait is part of a circle, and that it no longer waits, took two seconds each, whatever was left.
#[test]
fn a_wait_with_a_short_deadline_ends_soon_after_it_while_the_server_is_suspended() {
    at_once(ways(), |(listen, endpoint)| {
        let listen = [&listen[..], &["--lease".to_owned(), "60".to_owned()]].concat();
        let server = Process::server(&listen, "2");
        let options = Options::load([("deadline", "2"), ("lease", "60")]).unwrap();
        let membership = Membership {
            servers: vec![endpoint.clone()],
            job: "job".to_owned(),
            secret: SECRET,
            rank: 0,
            size: 2,
        };
        // The process may take longer to start than its worker would wait for it.
        let until = Instant::now() + Duration::from_secs(30);
        let job = loop {
            match Job::connect(&membership, options.clone()) {
                Ok(job) => break job,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
        };
        server.halt(Signal::STOP);
        let waits = || {
            let since = Instant::now();
            let error = job.barrier(None).unwrap_err();
            assert!(matches!(&error, Error::BarrierTimeout { missing, .. } if missing.is_empty()), "{error}");
            since.elapsed()
        };
        // A tenth of it is for the question for whom it waited, and as much for each other one; on a busy machine not each time.
        let took: Vec<Duration> = (0..4).map(|_| waits()).take_while(|took| took.as_secs() >= 4).collect();
        server.signal(Signal::CONT);
        assert!(took.len() < 4, "{endpoint}: {took:?}");
    });
}

#[test]
fn of_forty_workers_one_that_pauses_for_less_than_the_lease_holds_up_the_others_and_nobody_is_lost() {
    const WORKERS: u32 = 40;
    let cluster = Cluster::over(Way::Mixed, WORKERS, 1, &[("lease", "20"), ("deadline", "60")]);
    let last = WORKERS - 1;
    // Its own lease is 2 s: when it wakes it blames no other either.
    let endpoints = cluster.endpoints(last);
    let (worker, mut say, mut heard) = Process::worker(&endpoints[0], last, WORKERS);
    std::thread::scope(|scope| {
        let train = |rank| {
            let job = cluster.join(rank);
            let tensor = declare(&job, "w", 4, Bsp);
            tensor.push(Some(&bytes(&[1.0; 4])), NO_SETTINGS, false, None).unwrap();
            job.clock().unwrap();
            let (version, value) = pull(&tensor, None).unwrap();
            job.leave(None).unwrap();
            (version, value)
        };
        let others: Vec<_> = (0..last).map(|rank| scope.spawn(move || train(rank))).collect();
        assert_eq!(heard.next().unwrap(), "here");
        suspend(&[&worker]);
        writeln!(say, "step").unwrap();
        assert_eq!(heard.next().unwrap(), "step 1");
        drop(say);
        assert_eq!(heard.next().unwrap(), "done");
        for other in others {
            assert_eq!(other.join().unwrap(), (1, vec![f64::from(WORKERS); 4]));
        }
    });
}

#[test]
fn a_job_that_is_suspended_for_longer_than_its_lease_goes_on_when_it_wakes() {
    std::thread::scope(|scope| {
        for (listen, endpoint) in ways() {
            scope.spawn(move || {
                let server = Process::server(&listen, "1");
                let (worker, mut say, mut heard) = Process::worker(&endpoint, 0, 1);
                assert_eq!(heard.next().unwrap(), "here");
                suspend(&[&server, &worker]);
                writeln!(say, "step").unwrap();
                assert_eq!(heard.next().unwrap(), "step 1", "{endpoint}");
                drop(say);
                assert_eq!(heard.next().unwrap(), "done");
            });
        }
    });
}

#[test]
fn a_worker_that_alone_was_suspended_is_lost_and_hears_when_it_wakes_that_it_was_itself() {
    for way in [Way::Memory, Way::Tcp] {
        let cluster = Cluster::over(way, 2, 1, &OPTIONS);
        let endpoint = &cluster.endpoints(1)[0];
        let a = cluster.join(0);
        let (worker, mut say, mut heard) = Process::worker(endpoint, 1, 2);
        let tensor = declare(&a, "w", 4, Bsp);
        assert_eq!(heard.next().unwrap(), "here");
        worker.signal(Signal::STOP);
        tensor.push(Some(&bytes(&[1.0; 4])), NO_SETTINGS, false, None).unwrap();
        let error = pull(&tensor, None).unwrap_err();
        let expected = JobFailure::WorkerLost { rank: 1, loss: Loss::Silent { lease_ms: 2000 } };
        assert_eq!(error, Error::Failed(expected.clone()), "{way:?}");
        // It finds this as it wakes, beside the news that it was lost.
        writeln!(say, "step").unwrap();
        worker.signal(Signal::CONT);
        let error = heard.next().unwrap();
        assert!(error.contains(&expected.to_string()), "{way:?}: {error}");
    }
}

#[test]
fn a_worker_whose_line_was_away_when_the_job_failed_hears_who_was_to_blame() {
    let mut cluster = Cluster::over(Way::Tcp, 2, 1, &[("lease", "10")]);
    let a = cluster.join(0);
    let line = Cutter::to(cluster.servers[0].addresses()[0], Vec::new());
    cluster.detour = Some(line.address);
    let b = cluster.join(1);
    line.take_away();
    a.fail("ValueError: no");
    line.give_back();
    let expected =
        JobFailure::WorkerLost { rank: 0, loss: Loss::Failed { what: "ValueError: no".to_owned() } };
    assert_eq!(b.barrier(None).unwrap_err(), Error::Failed(expected.clone()));
    assert_eq!(cluster.servers[0].wait(seconds(common::DEADLINE)), Some(Err(expected)));
}

#[test]
fn joining_a_job_that_has_ended_says_how_it_ended() {
    for failed in [None, Some("ValueError: no".to_owned())] {
        let cluster = Cluster::over(Way::Tcp, 1, 1, &[]);
        cluster.join(0).close(failed.clone()).unwrap();
        let ended = cluster.servers[0].wait(seconds(common::DEADLINE));
        assert_eq!(ended.is_some_and(|outcome| outcome.is_ok()), failed.is_none());
        let expected = match failed {
            None => Refusal::Over,
            Some(what) => JobFailure::WorkerLost { rank: 0, loss: Loss::Failed { what } }.into(),
        };
        match cluster.try_join(&cluster.membership(0)) {
            Err(Error::Refused(refusal)) => assert_eq!(refusal, expected),
            other => panic!("{other:?}"),
        }
    }
}

/// That server was told to flush before it heard, folded behind that, and held it back from everybody.
#[test]
fn a_flush_has_what_a_server_folds_that_hears_later_that_a_worker_was_lost() {
    let given = [("lease", "2"), ("deadline", "30"), ("on_worker_loss", "continue")];
    let cluster = Cluster::over(Way::Line, 2, 2, &given);
    let (a, b) = (cluster.join(0), cluster.join(1));
    let held_back = Filtering::of_values("DVF", &[1000.0, 0.0, 0.0, 1000.0, 0.0]).unwrap();
    let [w, _] = [&a, &b].map(|job| {
        let mut declaration = Declaration::new("w", &[1 << 16], Rule::Add);
        declaration.spec.dtype = Dtype::F64;
        declaration.spec.travel = Travel::filtered(Filtering::NONE, held_back, Dtype::F64);
        let tensor = job.declare(declaration).unwrap();
        tensor.initialize(None, None).unwrap();
        tensor
    });
    cluster.lines[1].let_pass(0);
    b.fail("no");
    w.push(Some(&bytes(&[1.0; 1 << 16])), NO_SETTINGS, false, None).unwrap();
    w.release_together(&a, None).unwrap();
    assert!(pull(&w, None).unwrap().1.iter().all(|&seen| seen == 1.0));
}
