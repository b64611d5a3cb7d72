//! A server as a Python object.

use crate::detach::{Core, let_go};
use crate::error::{raise_option, raise_start};
use crate::job::{endpoint, pairs, secret};
use penstock::options::Options;
use penstock::server::ServerConfig;
use penstock_fabric::net::endpoint::{Address, Endpoint};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::RwLock;
use std::time::Duration;

/// Longest sleep between two looks for signals.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A running server.
#[pyclass(frozen, module = "penstock._core")]
pub(crate) struct Server {
    server: Core<RwLock<penstock::server::Server>>,
    endpoint: Endpoint,
}

/// The endpoint of a server that listens there.
pub(crate) fn found_at(addresses: &[SocketAddr], unix: Option<PathBuf>) -> Endpoint {
    let mut addresses =
        addresses.iter().map(|address| Address { host: address.ip().to_string(), port: address.port() });
    let tcp = addresses.next();
    let host = (tcp.is_some() && unix.is_some()).then(penstock::host::id);
    Endpoint { tcp, also: addresses.collect(), unix, host }
}

#[pymethods]
impl Server {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "the seam is flat; Python's launcher has names")]
    fn new(
        py: Python<'_>,
        endpoint: &str,
        job: String,
        secret: &str,
        index: u32,
        servers: u32,
        workers: u32,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<Self> {
        let options = Options::load(pairs(options)?.iter().map(|(name, value)| (&name[..], &value[..])));
        let options = options.map_err(|error| raise_option(py, &error))?;
        let secret = self::secret(py, secret)?;
        let Endpoint { tcp, also, unix: path, .. } = self::endpoint(py, endpoint)?;
        let (listen, socket): (Vec<_>, _) = (tcp.into_iter().chain(also).collect(), path.clone());
        let config = ServerConfig { path, listen, job, secret, index, servers, workers, options };
        let server = let_go(py, |_| {
            let server = penstock::server::Server::start(config)?;
            let endpoint = self::found_at(server.addresses(), socket);
            Ok((Core::new(RwLock::new(server)), endpoint))
        })?;
        let (server, endpoint) = server.map_err(|error| raise_start(py, &error))?;
        Ok(Self { server, endpoint })
    }

    /// Where workers find it: with the port that the system chose, and the id of this host.
    #[getter]
    fn endpoint(&self) -> String {
        self.endpoint.to_string()
    }

    fn wait(&self, py: Python<'_>) -> PyResult<Option<String>> {
        loop {
            py.check_signals()?;
            if let Some(outcome) = let_go(py, |free| self.server.read(free).wait(LOOK_EVERY))? {
                return Ok(outcome.err().map(|failure| failure.to_string()));
            }
        }
    }

    /// Its starter saw worker `rank` end: how, or None if it ended well.
    #[pyo3(signature = (rank, how=None))]
    fn worker_ended(&self, py: Python<'_>, rank: u32, how: Option<String>) -> PyResult<()> {
        let_go(py, |free| self.server.read(free).worker_ended(rank, how))
    }

    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let_go(py, |free| self.server.write(free).stop())
    }

    fn __repr__(&self) -> String {
        "<penstock._core.Server>".to_owned()
    }
}
