//! A service that homes many jobs, under a manager's direction, as a Python object.

use crate::detach::{Core, Detached, let_go};
use crate::error::{bad_argument, raise_option, raise_start};
use crate::job::{pairs, secret};
use crate::manager::{raise, target, token};
use penstock::options::Options;
use penstock::service::{JobConfig, JobStatus};
use penstock_control::agent::{Agent, Host, HostedJob, HostedStatus};
use penstock_fabric::net::endpoint::{Address, NoEndpoint};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Longest sleep between two looks for signals.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A running service.
#[pyclass(frozen, module = "penstock._core")]
pub(crate) struct Service {
    running: Core<Mutex<Option<Arc<Running>>>>,
    endpoint: String,
}

/// What the manager's agent directs.
struct Running {
    service: penstock::service::Service,
    endpoint: String,
    memory: u64,
}

impl Host for Running {
    fn endpoint(&self) -> String {
        self.endpoint.clone()
    }

    fn memory(&self) -> u64 {
        self.memory
    }

    fn create(&self, job: HostedJob) -> Result<(), String> {
        let HostedJob { name, secret, index, servers, workers, options, share, memory } = job;
        let job = JobConfig { name, secret, index, servers, workers, options, memory, share };
        self.service.create(job).map_err(|error| error.to_string())
    }

    fn delete(&self, name: &str) {
        self.service.delete(name);
    }

    fn status(&self) -> Vec<HostedStatus> {
        let hosted = |JobStatus { name, workers, memory, ended }| HostedStatus {
            name,
            workers_joined: workers,
            memory_used: memory,
            ended: ended.map(|how| how.map_err(|failure| failure.to_string())),
        };
        self.service.status().into_iter().map(hosted).collect()
    }
}

fn address(py: Python<'_>, text: &str) -> PyResult<Address> {
    text.parse().map_err(|_: NoEndpoint| {
        let message = format!("expected an address as HOST:PORT, got {text:?}");
        bad_argument(
            py,
            "OptionError",
            &message,
            Some("such as 10.0.0.1:7700; port 0 lets the system choose"),
        )
    })
}

impl Service {
    fn running(&self, free: &Detached) -> Option<Arc<Running>> {
        self.running.lock(free).clone()
    }
}

#[pymethods]
impl Service {
    #[new]
    #[pyo3(signature = (listen, options, advertise=None))]
    fn new(
        py: Python<'_>,
        listen: Vec<String>,
        options: &Bound<'_, PyDict>,
        advertise: Option<&str>,
    ) -> PyResult<Self> {
        let options = Options::load(pairs(options)?.iter().map(|(name, value)| (&name[..], &value[..])));
        let options = options.map_err(|error| raise_option(py, &error))?;
        let listen = listen.iter().map(|text| address(py, text)).collect::<PyResult<Vec<_>>>()?;
        let advertise = advertise.map(|text| address(py, text)).transpose()?;
        let started = let_go(py, |_| {
            let memory = penstock::server::memory_budget(&options);
            let service = penstock::service::Service::start(&listen, options)?;
            let endpoint = service.endpoint(advertise.as_ref()).to_string();
            let running = Running { service, endpoint: endpoint.clone(), memory };
            Ok((Core::new(Mutex::new(Some(Arc::new(running)))), endpoint))
        })?;
        let (running, endpoint) = started.map_err(|error| raise_start(py, &error))?;
        Ok(Self { running, endpoint })
    }

    /// Where workers find it; `{job}` in the socket's path stands for the job's number.
    #[getter]
    fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Homes what the manager says, until it is stopped.
    #[pyo3(signature = (manager, token, ca="", insecure=false))]
    fn serve(&self, py: Python<'_>, manager: &str, token: &str, ca: &str, insecure: bool) -> PyResult<()> {
        let token = self::token(py, token)?;
        let target = target(manager, ca, insecure);
        let start = |free: &Detached| {
            let started = self.running(free).map(|running| Agent::start(&target, token, running));
            started.transpose().map(|agent| agent.map(Core::new))
        };
        let Some(agent) = let_go(py, start)?.map_err(|error| raise(py, &error))? else { return Ok(()) };
        loop {
            py.check_signals()?;
            let look = |free: &Detached| (self.running(free).is_some(), agent.on(free).wait(LOOK_EVERY));
            match let_go(py, look)? {
                (_, Some(ended)) => return ended.map_err(|error| raise(py, &error)),
                (true, None) => {}
                (false, None) => return Ok(()),
            }
        }
    }

    /// Homes a job without a manager.
    #[pyo3(signature = (name, secret, index, servers, workers, options, memory=0, share=1.0))]
    #[expect(clippy::too_many_arguments, reason = "the seam is flat; Python's front has names and defaults")]
    fn create(
        &self,
        py: Python<'_>,
        name: String,
        secret: &str,
        index: u32,
        servers: u32,
        workers: u32,
        options: &Bound<'_, PyDict>,
        memory: u64,
        share: f64,
    ) -> PyResult<()> {
        let (secret, options) = (self::secret(py, secret)?, pairs(options)?);
        let job = JobConfig { name, secret, index, servers, workers, options, memory, share };
        let create =
            |free: &Detached| self.running(free).map_or(Ok(()), |running| running.service.create(job));
        let_go(py, create)?.map_err(|error| match error {
            penstock::service::CreateError::Options(error) => raise_option(py, &error),
            penstock::service::CreateError::Start(error) => raise_start(py, &error),
            other => bad_argument(py, "PenstockError", &other.to_string(), None),
        })
    }

    /// Ends a job and forgets it; False if there was none.
    fn delete(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        let_go(py, |free| self.running(free).is_some_and(|running| running.service.delete(name)))
    }

    /// Stops every job.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let_go(py, |free| {
            let running = self.running.lock(free).take();
            // Outside the lock: it waits for the jobs' threads.
            drop(running);
        })
    }

    fn __repr__(&self) -> String {
        format!("<penstock._core.Service at {}>", self.endpoint)
    }
}
