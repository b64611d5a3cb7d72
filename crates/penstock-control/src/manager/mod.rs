//! The manager: jobs, servers, and which workers meet where, over gRPC. No data goes through it.
//!
//! | file | does |
//! |---|---|
//! | [`registry`] | which jobs and servers there are, which hosts what: pure state |
//! | [`placement`] | which servers a job goes to |
//! | [`store`] | the state directory |
//! | [`admission`], [`listen`] | connections, and how many of them |
//! | [`routes`] | which service a call is for |
//! | [`proofs`] | challenges, by which callers prove what they know |
//! | [`proved`] | calls whose callers have done so, and the proofs of their answers |
//! | [`admin`], [`servers`], [`jobs`] | the three services that require proofs |
//!
//! A manager may be killed at any moment. What it has told anyone is on disk; jobs that run do not notice, for workers and
//! servers talk to each other; servers register again when it is back.

mod admin;
mod admission;
mod job;
mod jobs;
mod listen;
mod placement;
mod proofs;
mod proved;
mod registry;
mod routes;
mod servers;
mod shared;
mod store;

pub use job::CheckSettings;
pub use shared::Timing;
pub use store::StateError;

use crate::address::{Address, stays_here};
use crate::error::Error;
use crate::proto::admin_server::AdminServer;
use crate::proto::jobs_server::JobsServer;
use crate::proto::proofs_server::ProofsServer;
use crate::proto::servers_server::ServersServer;
use crate::secret::random;
use crate::{limits, tls};
use admission::Admission;
use penstock_proto::message::Secret;
use registry::Registry;
use routes::Routes;
use shared::Shared;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;
use store::Store;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;

/// Connections that wait to be served; a full queue lets the next ones wait in the system's.
const READY_CONNECTIONS: usize = 64;
/// Threads of the control plane: one may wait for the disk while the other answers.
const THREADS: usize = 2;
/// Time for calls under way when the manager stops.
const GRACE: Duration = Duration::from_secs(1);

/// What a manager is told when it starts.
#[derive(Clone)]
pub struct Config {
    /// Where it listens; port 0 lets the system choose.
    pub listen: String,
    /// Its state directory; made if there is none.
    pub state: PathBuf,
    /// Its certificate, as PEM.
    pub certificate: Option<PathBuf>,
    /// The certificate's key, as PEM.
    pub key: Option<PathBuf>,
    /// Whether other hosts may talk to it in plain text.
    pub insecure: bool,
    /// Judges the settings of jobs.
    pub check: Arc<CheckSettings>,
    /// Leases and heartbeats.
    pub timing: Timing,
    /// Connections at once.
    pub connections: usize,
}

impl Config {
    /// The usual values.
    pub fn new(listen: &str, state: impl Into<PathBuf>) -> Self {
        Self {
            listen: listen.to_owned(),
            state: state.into(),
            certificate: None,
            key: None,
            insecure: false,
            check: Arc::new(|_| Ok(())),
            timing: Timing { lease: limits::LEASE, heartbeat: limits::HEARTBEAT },
            connections: limits::CONNECTIONS,
        }
    }
}

/// Why a manager did not start. Nothing is left behind but, perhaps, a new state directory.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// It would talk to other hosts in plain text.
    #[error("listening on {listen} needs TLS: other hosts can reach it, and no certificate was given")]
    NeedsTls {
        /// Where it would listen.
        listen: String,
    },
    /// Only one of the two was given.
    #[error("a certificate and its key must be given together, but only the {got} was given")]
    HalfACertificate {
        /// Which.
        got: &'static str,
    },
    /// The address, or a PEM file.
    #[error(transparent)]
    Setting(#[from] Error),
    /// The system refused.
    #[error("cannot listen on {listen}: {reason}")]
    Listen {
        /// Where it would listen.
        listen: String,
        /// Whether another process listens there.
        in_use: bool,
        /// What the system said.
        reason: String,
    },
    /// The state directory.
    #[error(transparent)]
    State(#[from] StateError),
}

impl StartError {
    /// What to do.
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            Self::NeedsTls { .. } => {
                "make a certificate with `penstock cert --host NAME`, then give --certificate and --key; --insecure listens in plain text"
            }
            Self::HalfACertificate { .. } => "give --certificate and --key",
            Self::Setting(error) => return error.hint(),
            Self::Listen { in_use: true, .. } => "choose another port, or port 0 for any",
            Self::Listen { .. } => "name an address of this host",
            Self::State(error) => return error.hint(),
        };
        Some(text.to_owned())
    }
}

/// Whether serving has ended, and why.
type Ended = Arc<(Mutex<Option<Result<(), String>>>, Condvar)>;

/// A running manager; it stops when dropped.
pub struct Manager {
    address: SocketAddr,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
    ended: Ended,
}

impl std::fmt::Debug for Manager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Manager").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Manager {
    /// Opens the state, listens, and serves from then on.
    pub fn start(config: Config) -> Result<Self, StartError> {
        let listen = config.listen.clone();
        let failed = |error: std::io::Error| StartError::Listen {
            listen: listen.clone(),
            in_use: error.kind() == std::io::ErrorKind::AddrInUse,
            reason: error.to_string(),
        };
        let address = Address::parse(&config.listen)?;
        let tls = certificate(&config)?;
        let runtime = runtime().map_err(failed)?;
        let addresses = runtime.block_on(address.resolve()).map_err(failed)?;
        if tls.is_none() && !stays_here(&addresses) {
            if !config.insecure {
                return Err(StartError::NeedsTls { listen });
            }
            tracing::info!(listen, "insecure: other hosts are talked to in plain text");
        }
        let (store, jobs) = Store::open(&config.state)?;
        let listener = runtime.block_on(TcpListener::bind(&addresses[..])).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let registry = Registry::new(jobs, config.timing.lease, Secret(random()));
        let shared = Arc::new(Shared::new(registry, store, config.timing, config.check));
        let ended = Ended::default();
        runtime.spawn(watch_leases(Arc::clone(&shared)));
        runtime.spawn(serve(
            Arc::clone(&shared),
            listener,
            tls,
            connections(config.connections),
            Arc::clone(&ended),
        ));
        Ok(Self { address, shared, runtime: Some(runtime), ended })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until it has stopped, at most `timeout`; `None` if it has not.
    pub fn wait(&self, timeout: Duration) -> Option<Result<(), String>> {
        let (ended, told) = &*self.ended;
        let ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
        let (ended, _) = told
            .wait_timeout_while(ended, timeout, |ended| ended.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        ended.clone()
    }

    /// Stops; calls under way get an answer or are cut off after a second. Also done when dropped.
    pub fn stop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        self.shared.stopping.send_replace(true);
        self.wait(GRACE);
        runtime.shutdown_timeout(GRACE);
        tell(&self.ended, Ok(()));
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.stop();
    }
}

fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("penstock-manager")
        .enable_all()
        .build()
}

fn certificate(config: &Config) -> Result<Option<TlsAcceptor>, StartError> {
    match (&config.certificate, &config.key) {
        (Some(certificate), Some(key)) => Ok(Some(tls::acceptor(certificate, key)?)),
        (None, None) => Ok(None),
        (Some(_), None) => Err(StartError::HalfACertificate { got: "certificate" }),
        (None, Some(_)) => Err(StartError::HalfACertificate { got: "key" }),
    }
}

/// Half of the descriptors that this process may have at most, so that files and the rest find theirs.
fn connections(wanted: usize) -> usize {
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    wanted.min(usize::try_from(most / 2).unwrap_or(usize::MAX)).max(1)
}

fn tell(ended: &Ended, how: Result<(), String>) {
    let (slot, told) = &**ended;
    slot.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(how);
    told.notify_all();
}

/// Looks for leases that are over.
async fn watch_leases(shared: Arc<Shared>) {
    let mut every = tokio::time::interval(shared.timing.lease / 8);
    loop {
        every.tick().await;
        let now = shared.now();
        if shared.look().is_due(now) {
            let _ = shared.change(|registry, now| {
                registry.tick(now);
                Ok(())
            });
        }
    }
}

async fn serve(
    shared: Arc<Shared>,
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    connections: usize,
    ended: Ended,
) {
    let (ready, incoming) = mpsc::channel(READY_CONNECTIONS);
    tokio::spawn(listen::accept(listener, tls, Admission::new(connections, shared.timing.lease), ready));
    let (health, checks) = tonic_health::server::health_reporter();
    health.set_serving::<AdminServer<admin::AdminService>>().await;
    health.set_serving::<ServersServer<servers::ServersService>>().await;
    health.set_serving::<JobsServer<jobs::JobsService>>().await;
    health.set_serving::<ProofsServer<proofs::ProofsService>>().await;
    let mut stopping = shared.stopping.subscribe();
    let stop = async move { drop(stopping.wait_for(|&stopping| stopping).await) };
    let routes = Routes {
        health: checks.max_decoding_message_size(limits::STRANGER_BYTES),
        proofs: ProofsServer::new(proofs::ProofsService(Arc::clone(&shared)))
            .max_decoding_message_size(limits::STRANGER_BYTES),
        admin: AdminServer::new(admin::AdminService(Arc::clone(&shared)))
            .max_decoding_message_size(limits::ADMIN_BYTES),
        servers: ServersServer::new(servers::ServersService(Arc::clone(&shared)))
            .max_decoding_message_size(limits::SERVER_BYTES),
        jobs: JobsServer::new(jobs::JobsService(Arc::clone(&shared)))
            .max_decoding_message_size(limits::WORKER_BYTES),
        shared,
    };
    let served = Server::builder()
        .timeout(limits::CALL)
        .concurrency_limit_per_connection(limits::CALLS_PER_CONNECTION as usize)
        .load_shed(true)
        .max_concurrent_streams(limits::CALLS_PER_CONNECTION)
        .http2_keepalive_interval(Some(limits::KEEP_ALIVE))
        .http2_keepalive_timeout(Some(limits::KEEP_ALIVE_TIMEOUT))
        .http2_max_header_list_size(limits::HEADER_BYTES)
        .serve_with_incoming_shutdown(routes, ReceiverStream::new(incoming), stop)
        .await;
    tell(&ended, served.map_err(|error| crate::error::deepest(&error)));
}
