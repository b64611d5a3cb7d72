//! Servers and jobs for the promise tests: real threads, real sockets, real shared memory.
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod cutter;
mod line;
pub(crate) mod raw;
pub(crate) mod tenants;

#[allow(unused_imports, reason = "each test file uses its part")]
pub(crate) use line::{Direction, Line};
use penstock::options::Options;
use penstock::server::{Server, ServerConfig};
use penstock::worker::{Declaration, Error, Job, Membership, Tensor};
use penstock_fabric::net::endpoint::Endpoint;
use penstock_kernels::{Dtype, Rule, Settings};
use penstock_proto::consistency::Consistency;
use penstock_proto::message::Secret;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longest wait of any test: an end, not a measure.
pub(crate) const DEADLINE: &str = "30";
pub(crate) const SECRET: Secret = Secret([7; 32]);
pub(crate) const NO_SETTINGS: Settings = Settings([0.0; 5]);

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A socket path that no other test has.
pub(crate) fn socket_path() -> PathBuf {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("penstock-{}-{number}.sock", std::process::id()))
}

pub(crate) fn options(given: &[(&str, &str)]) -> Options {
    let all = [("deadline", DEADLINE), ("pin", "off"), ("shards", "2"), ("memory", "512MiB")];
    Options::load(all.iter().chain(given).copied()).expect("the options of a test are valid")
}

/// What the only server of a job of one worker is started with.
pub(crate) fn config(path: Option<PathBuf>, listen: &[String], shards: &str) -> ServerConfig {
    ServerConfig {
        path,
        listen: listen.iter().map(|address| address.parse().unwrap()).collect(),
        job: "job".to_owned(),
        secret: SECRET,
        index: 0,
        servers: 1,
        workers: 1,
        options: options(&[("shards", shards)]),
    }
}

/// How workers reach their servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// By shared memory.
    Memory,
    /// By TCP, plain.
    Tcp,
    /// By TCP under TLS.
    Tls,
    /// Even ranks by shared memory, odd ones by TCP.
    Mixed,
    /// By TCP over a line that breaks again and again.
    Broken,
    /// Rank 0 by TCP, the others by TCP over a line that holds as long as the test wants.
    Line,
}

pub(crate) struct Cluster {
    pub(crate) servers: Vec<Server>,
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) workers: u32,
    pub(crate) options: Options,
    pub(crate) way: Way,
    pub(crate) lines: Vec<Line>,
    /// Where workers go by the network instead of to the only server.
    pub(crate) detour: Option<SocketAddr>,
}

impl Cluster {
    pub(crate) fn new(workers: u32, servers: u32, given: &[(&str, &str)]) -> Self {
        Self::over(Way::Memory, workers, servers, given)
    }

    pub(crate) fn over(way: Way, workers: u32, servers: u32, given: &[(&str, &str)]) -> Self {
        let mut given = given.to_vec();
        given.extend((way == Way::Tls).then_some(("security", "tls")));
        let options = options(&given);
        let paths: Vec<PathBuf> = (0..servers).map(|_| socket_path()).collect();
        let start = |(path, index): (&PathBuf, u32)| {
            let (path, options) = (Some(path.clone()), options.clone());
            let listen = if way == Way::Memory { Vec::new() } else { vec!["127.0.0.1:0".parse().unwrap()] };
            let job = "job".to_owned();
            let config = ServerConfig { path, listen, job, secret: SECRET, index, servers, workers, options };
            Server::start(config).unwrap()
        };
        let running: Vec<Server> = paths.iter().zip(0..).map(start).collect();
        let lines = match way {
            Way::Broken => running.iter().map(|server| Line::to(server.addresses()[0])).collect(),
            Way::Line => running.iter().map(|server| Line::holding(server.addresses()[0])).collect(),
            _ => Vec::new(),
        };
        Self { servers: running, paths, workers, options, way, lines, detour: None }
    }

    /// Where `rank` finds the servers.
    pub(crate) fn endpoints(&self, rank: u32) -> Vec<Endpoint> {
        let memory = self.way == Way::Memory || (self.way == Way::Mixed && rank.is_multiple_of(2));
        let tcp = |address: &SocketAddr| format!("tcp://{address}").parse().unwrap();
        match self.way {
            // Rows of workers that are elsewhere come by the network even so.
            Way::Mixed if memory => {
                let both = |(path, server): (&PathBuf, &Server)| {
                    let (address, host) = (server.addresses()[0], penstock::host::id());
                    format!("tcp://{address}?host={host}&unix={}", path.display()).parse().unwrap()
                };
                self.paths.iter().zip(&self.servers).map(both).collect()
            }
            _ if memory => self.paths.iter().cloned().map(Into::into).collect(),
            _ if let Some(detour) = &self.detour => vec![tcp(detour)],
            Way::Line if rank > 0 => self.lines.iter().map(|line| tcp(&line.address)).collect(),
            Way::Broken => self.lines.iter().map(|line| tcp(&line.address)).collect(),
            _ => self.servers.iter().map(|server| tcp(&server.addresses()[0])).collect(),
        }
    }

    pub(crate) fn membership(&self, rank: u32) -> Membership {
        let (servers, job) = (self.endpoints(rank), "job".to_owned());
        Membership { servers, job, secret: SECRET, rank, size: self.workers }
    }

    pub(crate) fn try_join(&self, membership: &Membership) -> Result<Job, Error> {
        Job::connect(membership, self.options.clone())
    }

    pub(crate) fn join(&self, rank: u32) -> Job {
        self.try_join(&self.membership(rank)).unwrap()
    }

    /// Runs `work` as each worker, in a thread of its own, and closes its job cleanly.
    pub(crate) fn run<T: Send>(&self, work: impl Fn(&Job) -> T + Sync) -> Vec<T> {
        std::thread::scope(|scope| {
            let worker = |rank| {
                let work = &work;
                scope.spawn(move || {
                    let job = self.join(rank);
                    let result = work(&job);
                    job.leave(None).unwrap();
                    result
                })
            };
            let threads: Vec<_> = (0..self.workers).map(worker).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }
}

/// A float64 tensor of `elements` zeros to which contributions are added.
pub(crate) fn declare(job: &Job, name: &str, elements: u64, consistency: Consistency) -> Arc<Tensor> {
    let mut declaration = Declaration::new(name, &[elements], Rule::Add);
    declaration.spec.dtype = Dtype::F64;
    declaration.consistency = Some(consistency);
    let tensor = job.declare(declaration).unwrap();
    tensor.initialize(None, None).unwrap();
    tensor
}

pub(crate) fn bytes(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub(crate) fn numbers(bytes: &[u8]) -> Vec<f64> {
    bytes.chunks_exact(8).map(|eight| f64::from_le_bytes(eight.try_into().unwrap())).collect()
}

/// The tensor's value, copied, and its version.
pub(crate) fn pull(tensor: &Tensor, slack: Option<i64>) -> Result<(u64, Vec<f64>), Error> {
    let mut out = vec![0; tensor.spec().bytes() as usize];
    let version = tensor.pull_into(&mut out, slack, None)?;
    Ok((version, numbers(&out)))
}

/// Pushes twice under BSP where the other workers push nothing; returns when the second is seen to wait for them.
pub(crate) fn waiting_push<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    job: &'scope Job,
    tensor: &'scope Tensor,
    data: &'scope [u8],
) -> std::thread::ScopedJoinHandle<'scope, Result<u64, Error>> {
    tensor.push(Some(data), NO_SETTINGS, false, None).unwrap();
    job.clock().unwrap();
    let waited = job.stats().waited;
    let waits = scope.spawn(|| tensor.push(Some(data), NO_SETTINGS, false, None));
    while job.stats().waited == waited {
        std::thread::yield_now();
    }
    waits
}

/// Tries `each` of these, all at once: for tests that wait most of their time.
pub(crate) fn at_once<T: Send>(these: impl IntoIterator<Item = T>, each: impl Fn(T) + Sync) {
    std::thread::scope(|scope| {
        for this in these {
            let each = &each;
            scope.spawn(move || each(this));
        }
    });
}

/// Calls what waits for `expected` in vain, until it names them: a server may be too busy to say in time for whom a short wait was,
/// and what the others have done may still be on its way to it.
pub(crate) fn misses<T: std::fmt::Debug>(
    expected: &[u32],
    mut call: impl FnMut() -> Result<T, Error>,
) -> Error {
    let until = Instant::now() + seconds(DEADLINE);
    loop {
        let error = call().unwrap_err();
        let (Error::BarrierTimeout { missing, silent, .. }
        | Error::LaneTimeout { missing, silent, .. }
        | Error::PullTimeout { missing, silent, .. }) = &error
        else {
            panic!("{error}")
        };
        if missing == expected {
            return error;
        }
        let may_come = silent.is_some() || expected.iter().all(|rank| missing.contains(rank));
        assert!(may_come && Instant::now() < until, "{error}; it waits for {expected:?}");
    }
}

pub(crate) fn seconds(text: &str) -> Duration {
    Duration::from_secs_f64(text.parse().unwrap())
}
