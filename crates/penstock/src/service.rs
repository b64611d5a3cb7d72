//! A service: one process that homes the chunks of many jobs, each as if it were alone.
//!
//! Every job has a [`Server`] of its own behind the one acceptor: a control thread and shards that no other job's bytes ever
//! reach, a catalog, a memory budget, a Unix socket. Jobs share the processor, which the kernel divides fairly among threads;
//! the network; and the acceptor, which knows no more of a job than its secret.

use crate::directory::Directory;
use crate::host;
use crate::options::{OptionError, Options};
use crate::server::acceptor::Acceptor;
use crate::server::{Server, ServerConfig, StartError};
use crate::sockets::socket_in;
use penstock_fabric::forked::Maker;
use penstock_fabric::net::endpoint::{Address, Endpoint};
use penstock_proto::error::JobFailure;
use penstock_proto::message::Secret;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long creating a job waits for the last one of that name, which was deleted, to end.
const ENDS_WITHIN: Duration = Duration::from_secs(1);
/// Time between two looks at whether it has.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// One job, as a service is told to home it.
#[derive(Debug, Clone)]
pub struct JobConfig {
    /// Its name.
    pub name: String,
    /// Its secret.
    pub secret: Secret,
    /// This server's number among the job's.
    pub index: u32,
    /// Servers of the job.
    pub servers: u32,
    /// Workers of the job.
    pub workers: u32,
    /// Its settings: names and values of the option table.
    pub options: Vec<(String, String)>,
    /// Bytes of memory that it may take here; 0: what its settings say.
    pub memory: u64,
    /// Its share of the network, above 0, in proportion to the other jobs'.
    pub share: f64,
}

/// How a job fares.
#[derive(Debug, Clone, PartialEq)]
pub struct JobStatus {
    /// Its name.
    pub name: String,
    /// Workers that are here.
    pub workers: u32,
    /// Bytes of memory that its tensors take.
    pub memory: u64,
    /// How it ended, if it has.
    pub ended: Option<Result<(), JobFailure>>,
}

/// Why a job was not taken in.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// Its settings.
    #[error(transparent)]
    Options(#[from] OptionError),
    /// Its server did not start.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// A running service. Its jobs are stopped when it is dropped.
#[derive(Debug)]
pub struct Service {
    acceptor: Arc<Acceptor>,
    options: Options,
    directory: Directory,
    jobs: Mutex<HashMap<String, Server>>,
    /// Jobs that were deleted and whose threads have not all ended.
    ending: Mutex<HashMap<String, Server>>,
    maker: Maker,
}

impl Service {
    /// Listens on these addresses. `options`: security, certificate and key of the acceptor, and what jobs do not set.
    pub fn start(listen: &[Address], options: Options) -> Result<Self, StartError> {
        let acceptor = Arc::new(Acceptor::new(listen, &options)?);
        acceptor.open();
        let temporary = std::env::temp_dir();
        Directory::remove_left_behind(&temporary, DIRECTORY);
        let directory = Directory::new(&temporary, DIRECTORY)
            .map_err(StartError::system("make a directory for sockets"))?;
        Ok(Self {
            acceptor,
            options,
            directory,
            jobs: Mutex::default(),
            ending: Mutex::default(),
            maker: Maker::this(),
        })
    }

    fn jobs(&self) -> MutexGuard<'_, HashMap<String, Server>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Jobs that are still ending; those that have ended are dropped.
    fn ending(&self) -> MutexGuard<'_, HashMap<String, Server>> {
        let mut ending = self.ending.lock().unwrap_or_else(PoisonError::into_inner);
        ending.retain(|_, server| !server.has_stopped());
        ending
    }

    /// Waits for the last job of this name to end whole: its socket, and its connections behind the acceptor, go by the name.
    fn wait_for_end(&self, name: &str) {
        let until = Instant::now() + ENDS_WITHIN;
        while self.ending().contains_key(name) && Instant::now() < until {
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Where it listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        self.acceptor.addresses()
    }

    /// Where workers of any job find it: workers on this host by the job's own socket (`{job}` stands for the job's number).
    /// `advertise` replaces a listening address that others cannot reach, such as 0.0.0.0.
    pub fn endpoint(&self, advertise: Option<&Address>) -> Endpoint {
        let mut listening =
            self.acceptor.addresses().iter().map(|at| Address { host: at.ip().to_string(), port: at.port() });
        let tcp = match (advertise, listening.next()) {
            (Some(Address { host, port: 0 }), Some(at)) => {
                Some(Address { host: host.clone(), port: at.port })
            }
            (Some(address), _) => Some(address.clone()),
            (None, at) => at,
        };
        let unix = Some(self.directory.path().join("{job}.sock"));
        Endpoint { tcp, also: listening.collect(), unix, host: Some(host::id()) }
    }

    /// Homes a job from now on.
    pub fn create(&self, job: JobConfig) -> Result<(), CreateError> {
        self.wait_for_end(&job.name);
        let mut jobs = self.jobs();
        if jobs.contains_key(&job.name) || self.ending().contains_key(&job.name) {
            return Err(StartError::JobExists { name: job.name }.into());
        }
        let given = job.options.iter().map(|(name, value)| (&name[..], &value[..]));
        let mut options = Options::load(given)?;
        if job.memory > 0 {
            options.memory = job.memory;
        }
        let path = Some(socket_in(self.directory.path(), &job.name));
        let config = ServerConfig {
            path,
            listen: Vec::new(),
            job: job.name.clone(),
            secret: job.secret,
            index: job.index,
            servers: job.servers,
            workers: job.workers,
            options,
        };
        let share = if job.share > 0.0 { job.share } else { 1.0 };
        let server = Server::start_behind(config, Arc::clone(&self.acceptor), share)?;
        jobs.insert(job.name, server);
        Ok(())
    }

    /// Ends a job and forgets it; `false` if there was none. Its threads end by and by: a caller that directs many jobs waits
    /// for none of them.
    pub fn delete(&self, name: &str) -> bool {
        let mut jobs = self.jobs();
        let Some(mut server) = jobs.remove(name) else { return false };
        server.begin_to_stop();
        self.ending().insert(name.to_owned(), server);
        true
    }

    /// How every job fares, by name.
    pub fn status(&self) -> Vec<JobStatus> {
        let jobs = self.jobs();
        let status = |(name, server): (&String, &Server)| JobStatus {
            name: name.clone(),
            workers: server.workers_here(),
            memory: server.memory_taken(),
            ended: server.wait(Duration::ZERO),
        };
        let mut all: Vec<_> = jobs.iter().map(status).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// What the service itself was started with.
    pub fn options(&self) -> &Options {
        &self.options
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // In a forked child they are the parent's, one of whose threads may hold the lock, and their sockets stay.
        if !self.maker.is_here() {
            let jobs = self.jobs.get_mut().unwrap_or_else(PoisonError::into_inner);
            let ending = self.ending.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget((std::mem::take(jobs), std::mem::take(ending)));
            return;
        }
        // Before the directory of their sockets goes; all at once.
        self.jobs().values_mut().for_each(Server::begin_to_stop);
        self.jobs().clear();
        self.ending().clear();
    }
}

/// Start of the name of a service's directory.
const DIRECTORY: &str = "penstock-service-";
