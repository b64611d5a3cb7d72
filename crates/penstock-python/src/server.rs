//! A server as a Python object.

use crate::error::{raise_option, raise_start};
use crate::job::{pairs, secret};
use penstock::options::Options;
use penstock::server::ServerConfig;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

/// Longest sleep between two looks for signals.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A running server.
#[pyclass(frozen, module = "penstock._core")]
pub(crate) struct Server {
    server: Mutex<penstock::server::Server>,
}

impl Server {
    fn lock(&self) -> std::sync::MutexGuard<'_, penstock::server::Server> {
        self.server.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[pymethods]
impl Server {
    #[new]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        secret: &str,
        index: u32,
        servers: u32,
        workers: u32,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<Self> {
        let options = Options::load(pairs(options)?.iter().map(|(name, value)| (&name[..], &value[..])));
        let options = options.map_err(|error| raise_option(py, &error))?;
        let secret = self::secret(py, secret)?;
        let config = ServerConfig { path: Some(path), secret, index, servers, workers, options };
        let server = penstock::server::Server::start(config).map_err(|error| raise_start(py, &error))?;
        Ok(Self { server: Mutex::new(server) })
    }

    fn wait(&self, py: Python<'_>) -> PyResult<Option<String>> {
        loop {
            py.check_signals()?;
            if let Some(outcome) = py.detach(|| self.lock().wait(LOOK_EVERY)) {
                return Ok(outcome.err().map(|failure| failure.to_string()));
            }
        }
    }

    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.lock().stop());
    }

    fn __repr__(&self) -> String {
        "<penstock._core.Server>".to_owned()
    }
}
