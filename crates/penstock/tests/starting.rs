//! A server that starts refuses no honest worker for good, and where descriptors run out its threads wait until there are some; a
//! child of `fork` ends nothing of its parent's.
//!
//! One test after the other: limits and descriptors belong to the process.

mod common;

use common::{Cluster, NO_SETTINGS, SECRET, Way, bytes, config, declare, options, pull, socket_path};
use penstock::server::Server;
use penstock::service::{JobConfig, Service};
use penstock::worker::{Error, Job, Membership};
use penstock_fabric::net::endpoint::Endpoint;
use penstock_proto::consistency::Consistency::Bsp;
use penstock_proto::error::{JobFailure, Loss};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn join(endpoint: &Endpoint) -> Job {
    let (servers, job) = (vec![endpoint.clone()], "job".to_owned());
    let membership = Membership { servers, job, secret: SECRET, rank: 0, size: 1 };
    Job::connect(&membership, options(&[])).unwrap()
}

#[test]
fn an_honest_worker_that_comes_while_a_server_starts_is_let_in_when_it_has() {
    let _alone = alone();
    for round in 0..20 {
        // A port that is free now, so that the worker can be there first.
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let path = (round % 2 == 0).then(socket_path);
        let unix = path.as_ref().map(|path| format!("?unix={}", path.display())).unwrap_or_default();
        let endpoint: Endpoint = format!("tcp://{free}{unix}").parse().unwrap();
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| join(&endpoint));
            // Many shards: the longer it takes to start, the more likely the worker comes meanwhile.
            let server = Server::start(config(path, &[free.to_string()], "32")).unwrap();
            worker.join().unwrap().leave(None).unwrap();
            assert_eq!(server.wait(Duration::from_secs(30)), Some(Ok(())));
        });
    }
}

/// The threads of this process whose names start so.
fn threads(prefix: &str) -> Vec<PathBuf> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten().map(|entry| entry.path());
    let named = |task: &PathBuf| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with(prefix))
    };
    tasks.filter(named).collect()
}

/// How often a thread has gone to sleep of its own accord, as its status file says. One that spins never does.
fn sleeps(status: &File) -> u64 {
    let mut text = [0; 4096];
    let length = status.read_at(&mut text, 0).unwrap();
    let text = std::str::from_utf8(&text[..length]).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < until, "{what}");
        std::thread::yield_now();
    }
}

/// Every descriptor that the process may still have.
fn all_descriptors() -> Vec<OwnedFd> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(400), maximum: limit.maximum }).unwrap();
    let file = rustix::fs::memfd_create("filler", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let mut all: Vec<OwnedFd> = std::iter::from_fn(|| rustix::io::dup(&file).ok()).collect();
    all.push(file);
    all
}

#[test]
fn where_descriptors_run_out_the_threads_that_accept_sleep_and_go_on_when_there_are_some() {
    let _alone = alone();
    let cluster = Cluster::over(Way::Tcp, 1, 1, &[]);
    // A thread names itself when it first runs.
    let mut accepting = Vec::new();
    wait_until("the server's threads run", || {
        accepting = [threads("penstock-accept"), threads("penstock-contro")].concat();
        accepting.len() == 2
    });
    let accepting: Vec<File> =
        accepting.iter().map(|task| File::open(task.join("status")).unwrap()).collect();
    let socket = |family, kind| rustix::net::socket(family, kind, None).unwrap();
    let by_network = socket(AddressFamily::INET, SocketType::STREAM);
    let by_file = socket(AddressFamily::UNIX, SocketType::SEQPACKET);
    let taken = all_descriptors();
    rustix::net::connect(&by_network, &cluster.servers[0].addresses()[0]).unwrap();
    rustix::net::connect(&by_file, &SocketAddrUnix::new(&cluster.paths[0]).unwrap()).unwrap();
    for status in &accepting {
        let before = sleeps(status);
        wait_until("a thread that cannot accept spins", || sleeps(status) >= before + 3);
    }
    drop((taken, by_network, by_file));
    cluster.run(|job| job.rank());
}

/// Ends every connection by TCP that this process has.
fn cut_all(descriptors: &[i32]) {
    for &number in descriptors {
        // SAFETY: it is looked at for this line only; if its owner has closed it meanwhile, the number is bad, or that of one of
        // this test's sockets.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        let is_tcp = rustix::net::sockopt::socket_domain(fd) == Ok(AddressFamily::INET);
        if is_tcp && rustix::net::getpeername(fd).is_ok() {
            let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Both);
        }
    }
}

// The server was called lost, to the other workers too.
#[test]
fn a_worker_that_cannot_connect_again_for_want_of_descriptors_blames_itself() {
    let _alone = alone();
    let cluster = Cluster::over(Way::Tcp, 1, 1, &[("lease", "3")]);
    let job = cluster.join(0);
    let w = declare(&job, "w", 4, Bsp);
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let open: Vec<i32> = open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), maximum: limit.maximum }).unwrap();
    cut_all(&open);
    let trained = || {
        w.push(Some(&bytes(&[1.0; 4])), NO_SETTINGS, false, None)?;
        job.clock()?;
        pull(&w, None)
    };
    let error = std::iter::repeat_with(trained).find_map(Result::err).unwrap();
    setrlimit(Resource::Nofile, limit).unwrap();
    match error {
        Error::Failed(JobFailure::WorkerLost { rank: 0, loss: Loss::Failed { what } }) => {
            assert!(what.contains("server 0") && what.contains("ulimit -n"), "{what}");
        }
        error => panic!("{error}"),
    }
}

/// A forked child that lets go of a copy: how it ended. One that hangs is killed by its alarm.
fn dropped_in_a_child<T>(copy: T) -> i32 {
    unsafe extern "C" {
        safe fn fork() -> i32;
        safe fn alarm(seconds: u32) -> u32;
        safe fn _exit(code: i32) -> !;
        safe fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
    }
    let process = fork();
    if process == 0 {
        alarm(10);
        drop(copy);
        _exit(0);
    }
    std::mem::forget(copy); // the parent's is the caller's
    let mut status = -1;
    assert_eq!(waitpid(process, &raw mut status, 0), process);
    status
}

#[test]
fn a_forked_child_lets_go_of_its_parents_service_and_the_service_goes_on() {
    let _alone = alone();
    let service = Service::start(&["127.0.0.1:0".parse().unwrap()], options(&[])).unwrap();
    let create = |name: &str| {
        let (name, options) = (name.to_owned(), vec![("shards".to_owned(), "1".to_owned())]);
        let config = JobConfig {
            name,
            secret: SECRET,
            index: 0,
            servers: 1,
            workers: 1,
            options,
            memory: 0,
            share: 1.0,
        };
        service.create(config).unwrap();
    };
    create("before");
    // One without jobs is the last to hold its acceptor.
    let idle = Service::start(&["127.0.0.1:0".parse().unwrap()], options(&[])).unwrap();
    for service in [&service, &idle] {
        // SAFETY: the copy is dropped in the child only, whose memory is its own; here it is forgotten, and never used.
        let copy = unsafe { std::ptr::read(service) };
        assert_eq!(dropped_in_a_child(copy), 0, "the child waited for threads that it does not have");
    }
    create("after");
    let all = service.endpoint(None);
    let (here, there) = (Endpoint { tcp: None, ..all.clone() }, Endpoint { unix: None, ..all });
    for (job, endpoint) in [("before", here), ("after", there)] {
        let (servers, job) = (vec![endpoint], job.to_owned());
        let membership = Membership { servers, job, secret: SECRET, rank: 0, size: 1 };
        Job::connect(&membership, options(&[])).unwrap().leave(None).unwrap();
    }
}

/// docs/services.md says so, and how many jobs that makes.
#[test]
fn an_idle_job_of_a_service_costs_at_most_three_threads_and_ten_descriptors() {
    const JOBS: usize = 16;
    let _alone = alone();
    let service = Service::start(&["127.0.0.1:0".parse().unwrap()], options(&[])).unwrap();
    let count = |folder: &str| std::fs::read_dir(folder).unwrap().count();
    let all = || ["/proc/self/task", "/proc/self/fd"].map(count);
    let before = all();
    for number in 0..JOBS {
        let options = vec![("shards".to_owned(), "2".to_owned())];
        let (name, secret, index, servers) = (format!("idle-{number}"), SECRET, 0, 1);
        let (workers, memory, share) = (2, 1 << 26, 1.0);
        service.create(JobConfig { name, secret, index, servers, workers, options, memory, share }).unwrap();
    }
    // Beside a thread or two that the tests' own harness starts meanwhile.
    let each: Vec<usize> = before.iter().zip(all()).map(|(before, after)| (after - before) / JOBS).collect();
    assert!(each[0] <= 3 && each[1] <= 10, "threads and descriptors: {each:?}");
}
