//! A server: one control thread, and shards that own the chunks.
//!
//! | file | thread | does |
//! |---|---|---|
//! | `mod.rs` | the owner's | starts and stops a server, waits for its end |
//! | [`error`] | the owner's | why a server did not start |
//! | [`outcome`] | all | how the job ended, also if a thread panics |
//! | [`control`] | control | takes workers in, declares tensors, watches leases, ends the job |
//! | [`shard`] | one a shard | pops submissions, folds, publishes, sleeps |
//! | [`catalog`] | control | which tensors there are, where their chunks live, what memory is left |
//! | [`leaving`] | control | lets workers go that are done, once their shards have taken everything |
//! | [`slabs`] | control | where small tensors lie together |
//! | [`client`] | control | who is at the other end of a control connection |
//! | [`proof`] | control | what a connection by a Unix socket has proved so far |
//! | [`budget`] | control | how much memory this server may take |
//! | [`tables`] | control | which tables of items there are, and the partitions that are homed here |
//! | [`bells`] | control, items | how workers of this host ring for the thread that passes rows on |
//! | [`items`] | items | passes rows of tables on to other hosts |
//! | [`shard_memory`] | one a shard | what the shard's machine acts on |
//! | [`ports`] | one a shard | which peers the shard hears and sends to, on this host or another |
//! | [`remote`] | one a shard | workers on other hosts: their frames, and what is owed to them |
//! | [`fair_share`] | one a shard | how jobs behind one acceptor share the network |
//! | [`pace`] | control, one a shard | how much a job may say beside others that moves no values |
//! | [`acceptor`] | acceptor | the jobs behind the thread that accepts network connections and has them prove which they belong to |
//! | [`arrivals`] | all | connections on their way to the threads that hear them |
//!
//! The control thread never waits for a worker, and no shard waits for the control thread.

pub(crate) mod acceptor;
mod arrivals;
mod bells;
mod budget;
mod catalog;
mod client;
mod control;
mod error;
pub(crate) mod fair_share;
mod first_touch;
mod items;
mod leaving;
mod living;
mod outcome;
mod pace;
mod ports;
mod proof;
mod remote;
mod shard;
mod shard_memory;
mod slabs;
mod tables;

use crate::options::Options;
use crate::thread;
use crate::uplink::Uplink;
use crate::wire::random;
use acceptor::Acceptor;
pub use error::StartError;
use fair_share::Place;
use outcome::{LastWill, Obituary, Shared};
use penstock_fabric::descriptors;
use penstock_fabric::forked::Maker;
use penstock_fabric::net::endpoint::Address;
use penstock_fabric::socket::{Connection, Listener};
use penstock_proto::Rank;
use penstock_proto::error::JobFailure;
use penstock_proto::job::job_number;
use penstock_proto::message::{MAX_SERVERS, MAX_SHARDS, MAX_WORKERS, Secret};
use penstock_proto::seal::{Scope, Sealer};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What a server is told when it starts.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Path of its socket; `None` for a server inside a worker's process, or one that only listens to the network.
    pub path: Option<PathBuf>,
    /// Addresses on which it listens to the network.
    pub listen: Vec<Address>,
    /// The job's name: workers on other hosts name it.
    pub job: String,
    /// The job's secret.
    pub secret: Secret,
    /// Its number among the job's servers.
    pub index: u32,
    /// Servers of the job.
    pub servers: u32,
    /// Workers of the job.
    pub workers: u32,
    /// Everything that can be set.
    pub options: Options,
}

/// A running server. It is stopped when dropped.
#[derive(Debug)]
pub struct Server {
    /// A child of `fork` has none of the threads, and must not end its parent's.
    maker: Maker,
    shared: Arc<Shared>,
    orders: Sender<Order>,
    threads: Threads,
    job: String,
    acceptor: Option<Arc<Acceptor>>,
}

/// Threads of a server, which never outlive it: dropping this waits until they have ended. A shard ends when its
/// [handle](shard::Handle) goes.
#[derive(Debug, Default)]
struct Threads(Vec<JoinHandle<()>>);

impl Threads {
    fn join(&mut self) {
        for thread in self.0.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.join();
    }
}

/// What the control thread is asked by its own process.
#[derive(Debug)]
enum Order {
    Accept(Connection),
    /// One more connection from the network has proved to belong to the job: it is [there](Shared::arrivals).
    Enter,
    /// The launcher of a worker saw its process end: how, or `None` if it ended well.
    Gone {
        rank: Rank,
        how: Option<String>,
    },
    Stop,
}

impl Server {
    /// Starts a server: when this returns, workers can join.
    pub fn start(config: ServerConfig) -> Result<Self, StartError> {
        check(&config)?;
        raise_descriptor_limit();
        // Before the acceptor: a worker of this host that finds an open port finds the socket too.
        let listener = config.path.as_deref().map(Listener::bind).transpose()?;
        let acceptor = match &config.listen[..] {
            [] => None,
            listen => Some(Arc::new(Acceptor::new(listen, &config.options)?)),
        };
        let server = Self::run(config, listener, acceptor, None)?;
        // A worker that comes earlier stands in the queue: an acceptor that was open without a job behind it would
        // refuse it for good.
        server.acceptor.iter().for_each(|acceptor| acceptor.open());
        Ok(server)
    }

    /// Starts a server behind an acceptor that others may share; `share`: its part of the network, in proportion to the others'.
    pub(crate) fn start_behind(
        config: ServerConfig,
        acceptor: Arc<Acceptor>,
        share: f64,
    ) -> Result<Self, StartError> {
        check(&config)?;
        raise_descriptor_limit();
        let listener = config.path.as_deref().map(Listener::bind).transpose()?;
        let (shares, job) = (Arc::clone(acceptor.shares()), job_number(&config.job));
        // A job that did not start takes no share of the others'.
        Self::run(config, listener, Some(acceptor), Some(share)).inspect_err(|_| shares.dismiss(job))
    }

    fn run(
        config: ServerConfig,
        listener: Option<Listener>,
        acceptor: Option<Arc<Acceptor>>,
        share: Option<f64>,
    ) -> Result<Self, StartError> {
        let shared = Arc::new(Shared::new()?);
        let (orders, inbox) = channel();
        let place = acceptor
            .as_ref()
            .map(|acceptor| acceptor.shares().admit(job_number(&config.job), share.unwrap_or(1.0)));
        let others = others(&config, share.is_some());
        let mut threads = Threads::default();
        let shards = start_shards(&config, &shared, place.as_ref(), others, &mut threads)?;
        let (job, secret, index) = (config.job.clone(), config.secret, config.index);
        // Control, shards, and the thread that passes rows on.
        let most = 2 + u64::from(shard_count(&config));
        let limits = budget::limits(config.options.memory, most, share.is_some());
        let shared_with = Arc::clone(&shared);
        let control = control::Control::new(config, listener, shards, inbox, shared_with, place, limits)?;
        let last_will = LastWill { shared: Arc::clone(&shared), index };
        let thread = thread::spawn("penstock-control", move || {
            let _last_will = last_will;
            control.run();
        });
        threads.0.push(thread.map_err(StartError::thread)?);
        let mut server = Self { maker: Maker::this(), shared, orders, threads, job, acceptor: None };
        if let Some(acceptor) = acceptor {
            if !acceptor.admit(&server.job, secret, server.orders.clone(), Arc::clone(&server.shared)) {
                let name = server.job.clone();
                return Err(StartError::JobExists { name });
            }
            server.acceptor = Some(acceptor);
        }
        Ok(server)
    }

    /// Network addresses on which workers find it.
    pub fn addresses(&self) -> &[SocketAddr] {
        self.acceptor.as_ref().map_or(&[], |acceptor| acceptor.addresses())
    }

    /// Workers that are here now.
    pub fn workers_here(&self) -> u32 {
        self.shared.workers.load(Ordering::Relaxed)
    }

    /// Bytes of memory that tensors take.
    pub fn memory_taken(&self) -> u64 {
        self.shared.memory.load(Ordering::Relaxed)
    }

    /// A connection for a worker in this process.
    pub fn connect(&self) -> rustix::io::Result<Connection> {
        let (ours, theirs) = Connection::pair()?;
        let _ = self.orders.send(Order::Accept(ours));
        self.shared.wakeup.ring();
        Ok(theirs)
    }

    /// The launcher of worker `rank` saw its process end: `how` (`was killed by SIGKILL`), or `None` if it ended well. One that
    /// has not joined is not waited for any more.
    pub fn worker_ended(&self, rank: Rank, how: Option<String>) {
        let _ = self.orders.send(Order::Gone { rank, how });
        self.shared.wakeup.ring();
    }

    /// Waits until the job has ended, at most for `longest`: how it ended, or `None` if it has not.
    pub fn wait(&self, longest: Duration) -> Option<Result<(), JobFailure>> {
        let until = Instant::now() + longest;
        let mut outcome = self.shared.outcome.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        while outcome.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.shared.ended.wait_timeout(outcome, left);
            outcome = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        outcome.clone()
    }

    /// Ends the job, if it has not ended, and every thread of the server.
    pub fn stop(&mut self) {
        if !self.maker.is_here() {
            std::mem::forget((std::mem::take(&mut self.threads), self.acceptor.take()));
            return;
        }
        self.begin_to_stop();
        self.threads.join();
    }

    /// The same without waiting: no worker is let in any more, and the threads end by and by.
    pub(crate) fn begin_to_stop(&mut self) {
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.dismiss(&self.job);
            acceptor.shares().dismiss(job_number(&self.job));
        }
        let _ = self.orders.send(Order::Stop);
        self.shared.wakeup.ring();
    }

    /// Whether all its threads have ended.
    pub(crate) fn has_stopped(&self) -> bool {
        self.threads.0.iter().all(JoinHandle::is_finished)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Bytes of memory that a server with these options may take, or all the jobs of a service together.
pub fn memory_budget(options: &Options) -> u64 {
    budget::budget(options.memory)
}

fn check(config: &ServerConfig) -> Result<(), StartError> {
    let ranges = [
        ("workers", config.workers, MAX_WORKERS),
        ("servers", config.servers, MAX_SERVERS),
        ("server index + 1", config.index.saturating_add(1), config.servers),
    ];
    for (what, got, most) in ranges {
        if got == 0 || got > most {
            return Err(StartError::OutOfRange { what, expected: format!("1 to {most}"), got });
        }
    }
    Ok(())
}

/// A tensor keeps two descriptors open, so that workers may come late: more than a thousand tensors would not fit into what many
/// systems allow at first. This takes what they allow at most; where that is little, a declaration says so.
fn raise_descriptor_limit() {
    if let Err(error) = descriptors::raise_limit() {
        tracing::warn!(%error, "the limit on open descriptors stays as it is");
    }
}

/// Cores that this process may use, in order.
fn cores() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return vec![0] };
    let cores: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect();
    if cores.is_empty() { vec![0] } else { cores }
}

fn shard_count(config: &ServerConfig) -> u32 {
    match config.options.shards {
        0 => (cores().len() as u32 / config.servers).clamp(1, MAX_SHARDS),
        shards => shards,
    }
}

/// Threads of the job on this host beside this server's shards, as a [`Welcome`](penstock_proto::message::Welcome) says it.
fn others(config: &ServerConfig, is_shared: bool) -> u32 {
    match is_shared {
        // A thread that spins would take time that belongs to another job.
        true => u32::MAX,
        false => config.workers + config.servers.saturating_sub(1) * shard_count(config),
    }
}

fn start_shards(
    config: &ServerConfig,
    shared: &Arc<Shared>,
    place: Option<&Place>,
    others: u32,
    threads: &mut Threads,
) -> Result<control::Shards, StartError> {
    let (reports, inbox): (_, Receiver<shard::Report>) = channel();
    let flags = shard::Flags::new().map_err(StartError::system("make the flags"))?;
    let cores = cores();
    let count = shard_count(config);
    let seal_seed = random::bytes().map_err(StartError::system("draw a key"))?;
    let scope = Scope { job: job_number(&config.job), server: config.index, shard: 0 };
    // Of the seed alone: all shards have the same.
    let key = Sealer::new(&seal_seed, scope).key();
    let (mut handles, mut spent) = (Vec::new(), Vec::new());
    let uplink = Arc::new(Uplink::at_rest());
    for index in 0..count {
        let core = (config.index * count + index) as usize % cores.len();
        let setup = shard::Setup {
            index,
            server: config.index,
            job: config.job.clone(),
            workers: config.workers,
            others,
            cores: (cores.len() as u32).min(crate::wait::cores()),
            shards: count,
            seal_seed,
            lease: config.options.lease,
            place: place.cloned(),
            core: config.options.pin.then_some(cores[core]),
            flags: flags.clone(),
            reports: reports.clone(),
            control: Arc::clone(shared),
            spent: Arc::default(),
            uplink: Arc::clone(&uplink),
        };
        spent.push(Arc::clone(&setup.spent));
        let (handle, thread) = shard::start(setup)?;
        handles.push(handle);
        threads.0.push(thread);
    }
    Ok(control::Shards { handles, spent, uplink, reports: inbox, sender: reports, flags, key })
}
