//! The control plane: a manager as a Python object, and the calls of its clients.

use crate::detach::{Core, finish, interrupted, let_go};
use crate::error::{bad_argument, raise_option};
use crate::job::{pairs, secret};
use penstock::options::{Options, Security};
use penstock_control::client::{Balance, Client, Job, JobSpec, Target, Worker};
use penstock_control::manager::{Config, StartError};
use penstock_control::secret::hex;
use penstock_control::{Error, Reason, cert};
use penstock_join::way;
use penstock_proto::message::Secret;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Longest sleep between two looks for signals.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A running manager.
#[pyclass(frozen, module = "penstock._core")]
pub(crate) struct Manager {
    manager: Core<Mutex<penstock_control::manager::Manager>>,
    address: String,
}

#[pymethods]
impl Manager {
    #[new]
    #[pyo3(signature = (listen, state, certificate=None, key=None, insecure=false))]
    fn new(
        py: Python<'_>,
        listen: &str,
        state: PathBuf,
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
        insecure: bool,
    ) -> PyResult<Self> {
        let config =
            Config { certificate, key, insecure, check: Arc::new(check), ..Config::new(listen, state) };
        let started = let_go(py, |_| {
            let manager = penstock_control::manager::Manager::start(config)?;
            Ok((manager.address().to_string(), Core::new(Mutex::new(manager))))
        })?;
        let (address, manager) = started.map_err(|error: StartError| {
            bad_argument(py, start(&error), &error.to_string(), error.hint().as_deref())
        })?;
        Ok(Self { address, manager })
    }

    /// Where it listens, with the port that the system chose.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        loop {
            py.check_signals()?;
            match let_go(py, |free| self.manager.lock(free).wait(LOOK_EVERY))? {
                Some(Ok(())) => return Ok(()),
                Some(Err(reason)) => return Err(bad_argument(py, "PenstockError", &reason, None)),
                None => {}
            }
        }
    }

    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let_go(py, |free| self.manager.lock(free).stop())
    }

    fn __repr__(&self) -> String {
        format!("<penstock._core.Manager at {}>", self.address)
    }
}

/// Judges a job's settings by the table of options.
fn check(settings: &[(String, String)]) -> Result<(), String> {
    let given = settings.iter().map(|(name, value)| (&name[..], &value[..]));
    Options::load(given).map(drop).map_err(|error| error.to_string())
}

fn start(error: &StartError) -> &'static str {
    match error {
        StartError::Listen { in_use: true, .. } => "AddressInUse",
        StartError::NeedsTls { .. } | StartError::HalfACertificate { .. } | StartError::Setting(_) => {
            "OptionError"
        }
        _ => "PenstockError",
    }
}

/// Creates a job.
#[pyfunction]
#[pyo3(signature = (manager, token, name, workers, servers, memory, share, settings, ca="", insecure=false))]
#[allow(clippy::too_many_arguments, reason = "one for each of Python's")]
pub(crate) fn create_job<'py>(
    py: Python<'py>,
    manager: &str,
    token: &str,
    name: String,
    workers: u32,
    servers: u32,
    memory: u64,
    share: f64,
    settings: &Bound<'py, PyDict>,
    ca: &str,
    insecure: bool,
) -> PyResult<Bound<'py, PyDict>> {
    let spec = JobSpec { name, workers, servers, memory, share, settings: pairs(settings)? };
    let token = self::token(py, token)?;
    let client = client(py, manager, ca, insecure)?;
    let created = call(py, || client.create_job(&token, &spec))?;
    let shown = job(py, &created.job)?;
    shown.set_item("secret", hex(&created.secret.0))?;
    shown.set_item("balance", balance(py, &created.balance)?)?;
    Ok(shown)
}

/// All jobs, all servers, and how evenly the jobs lie.
#[pyfunction]
#[pyo3(signature = (manager, token, ca="", insecure=false))]
pub(crate) fn list_jobs<'py>(
    py: Python<'py>,
    manager: &str,
    token: &str,
    ca: &str,
    insecure: bool,
) -> PyResult<Bound<'py, PyDict>> {
    let token = self::token(py, token)?;
    let client = client(py, manager, ca, insecure)?;
    let listing = call(py, || client.list_jobs(&token))?;
    let servers = PyList::empty(py);
    for server in &listing.servers {
        let entry = PyDict::new(py);
        entry.set_item("id", &server.id)?;
        entry.set_item("endpoint", &server.endpoint)?;
        entry.set_item("memory", server.memory)?;
        entry.set_item("memory_free", server.memory_free)?;
        entry.set_item("load", server.load)?;
        entry.set_item("jobs", server.jobs)?;
        entry.set_item("live", server.live)?;
        servers.append(entry)?;
    }
    let jobs: Vec<_> = listing.jobs.iter().map(|one| job(py, one)).collect::<PyResult<_>>()?;
    let shown = PyDict::new(py);
    shown.set_item("jobs", jobs)?;
    shown.set_item("servers", servers)?;
    shown.set_item("balance", balance(py, &listing.balance)?)?;
    Ok(shown)
}

/// One job; with its secret if that is asked for.
#[pyfunction]
#[pyo3(signature = (manager, token, name, reveal=false, ca="", insecure=false))]
pub(crate) fn show_job<'py>(
    py: Python<'py>,
    manager: &str,
    token: &str,
    name: &str,
    reveal: bool,
    ca: &str,
    insecure: bool,
) -> PyResult<Bound<'py, PyDict>> {
    let token = self::token(py, token)?;
    let client = client(py, manager, ca, insecure)?;
    let shown = job(py, &call(py, || client.show_job(&token, name))?)?;
    if reveal {
        shown.set_item("secret", hex(&call(py, || client.reveal_secret(&token, name))?.0))?;
    }
    Ok(shown)
}

/// Deletes a job.
#[pyfunction]
#[pyo3(signature = (manager, token, name, ca="", insecure=false))]
pub(crate) fn delete_job(
    py: Python<'_>,
    manager: &str,
    token: &str,
    name: &str,
    ca: &str,
    insecure: bool,
) -> PyResult<()> {
    let token = self::token(py, token)?;
    let client = client(py, manager, ca, insecure)?;
    call(py, || client.delete_job(&token, name))
}

/// Whether the manager serves.
#[pyfunction]
#[pyo3(signature = (manager, ca="", insecure=false))]
pub(crate) fn health(py: Python<'_>, manager: &str, ca: &str, insecure: bool) -> PyResult<bool> {
    let client = client(py, manager, ca, insecure)?;
    call(py, || client.health())
}

/// A worker's place in its job: waits for the job's servers, at most as long as the option `deadline` says.
#[pyfunction]
#[pyo3(signature = (manager, job, secret, rank, size, ca, options))]
#[allow(clippy::too_many_arguments, reason = "one for each of Python's")]
pub(crate) fn connect<'py>(
    py: Python<'py>,
    manager: &str,
    job: &str,
    secret: &str,
    rank: Option<u32>,
    size: Option<u32>,
    ca: &str,
    options: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyDict>> {
    let given = pairs(options)?;
    let options = Options::load(given.iter().map(|(name, value)| (&name[..], &value[..])));
    let options = options.map_err(|error| raise_option(py, &error))?;
    let secret = self::secret(py, secret)?;
    let client = client(py, manager, ca, options.security == Security::Insecure)?;
    let worker = Worker { rank, size, host: penstock::host::id() };
    let place = call(py, || client.connect(job, &secret, &worker, options.deadline))?;
    let settings = PyDict::new(py);
    for (name, value) in &place.settings {
        settings.set_item(name, value)?;
    }
    let shown = PyDict::new(py);
    shown.set_item("servers", place.servers)?;
    shown.set_item("rank", place.rank)?;
    shown.set_item("size", place.size)?;
    shown.set_item("options", settings)?;
    Ok(shown)
}

/// The options that count for a worker of a managed job: those that it is given go before the job's.
#[pyfunction]
pub(crate) fn options_under_manager<'py>(
    py: Python<'py>,
    of_job: &Bound<'py, PyDict>,
    given: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyDict>> {
    let (of_job, given) = (pairs(of_job)?, pairs(given)?);
    let says = |name: &str| given.iter().any(|(known, _)| known == name);
    let of_job = of_job.iter().map(|(name, value)| (&name[..], &value[..]));
    let own = given.iter().map(|(name, value)| (&name[..], &value[..]));
    let options = PyDict::new(py);
    for (name, value) in way::options_under_manager(of_job, own, says) {
        options.set_item(name, value)?;
    }
    Ok(options)
}

/// Makes a certificate, and a development CA if there is none.
#[pyfunction]
pub(crate) fn make_certificate<'py>(
    py: Python<'py>,
    folder: PathBuf,
    name: &str,
    hosts: Vec<String>,
    days: u32,
    force: bool,
) -> PyResult<Bound<'py, PyDict>> {
    let files = let_go(py, |_| cert::make(&folder, name, &hosts, days, force))?;
    let files = files.map_err(|error| raise(py, &error))?;
    let shown = PyDict::new(py);
    shown.set_item("ca", files.ca)?;
    shown.set_item("ca_kept", files.ca_kept)?;
    shown.set_item("certificate", files.certificate)?;
    shown.set_item("key", files.key)?;
    Ok(shown)
}

fn job<'py>(py: Python<'py>, job: &Job) -> PyResult<Bound<'py, PyDict>> {
    let servers = PyList::empty(py);
    for server in &job.servers {
        let entry = PyDict::new(py);
        entry.set_item("server", &server.server)?;
        entry.set_item("endpoint", &server.endpoint)?;
        entry.set_item("live", server.live)?;
        entry.set_item("hosted", server.hosted)?;
        entry.set_item("workers_joined", server.workers_joined)?;
        entry.set_item("memory_used", server.memory_used)?;
        servers.append(entry)?;
    }
    let settings = PyDict::new(py);
    for (name, value) in &job.settings {
        settings.set_item(name, value)?;
    }
    let shown = PyDict::new(py);
    shown.set_item("name", &job.name)?;
    shown.set_item("state", job.state)?;
    shown.set_item("detail", &job.detail)?;
    shown.set_item("workers", job.workers)?;
    shown.set_item("servers_wanted", job.servers_wanted)?;
    shown.set_item("memory", job.memory)?;
    shown.set_item("share", job.share)?;
    shown.set_item("settings", settings)?;
    shown.set_item("servers", servers)?;
    shown.set_item("created", job.created)?;
    Ok(shown)
}

fn balance<'py>(py: Python<'py>, balance: &Balance) -> PyResult<Bound<'py, PyDict>> {
    let shown = PyDict::new(py);
    shown.set_item("most", balance.most)?;
    shown.set_item("mean", balance.mean)?;
    shown.set_item("servers", balance.servers)?;
    Ok(shown)
}

/// The manager to talk to.
pub(crate) fn target(address: &str, ca: &str, insecure: bool) -> Target {
    let ca = (!ca.is_empty()).then(|| PathBuf::from(ca));
    Target { ca, insecure, ..Target::new(address) }
}

fn client(py: Python<'_>, address: &str, ca: &str, insecure: bool) -> PyResult<Client> {
    let client = let_go(py, |_| Client::new(target(address, ca, insecure)))?;
    let client = client.map_err(|error| raise(py, &error))?;
    Ok(client.with_interrupt(Arc::new(interrupted)))
}

/// An administrator's or a server's token, as its file holds it.
pub(crate) fn token(py: Python<'_>, hex: &str) -> PyResult<Secret> {
    Secret::from_hex(hex).ok_or_else(|| {
        let message =
            format!("expected a token of 64 hexadecimal digits, got {} characters", hex.chars().count());
        let hint = "use it as it is in the manager's state directory: admin.token or server.token";
        bad_argument(py, "AuthenticationError", &message, Some(hint))
    })
}

/// Calls the manager without the interpreter; Ctrl-C ends the wait.
fn call<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T, Error> + Send) -> PyResult<T> {
    let_go(py, |_| work())?.map_err(|error| raise(py, &error))
}

/// The exception for an error of the control plane.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    if *error == Error::Interrupted
        && let Err(raised) = finish::<()>(py, Err(penstock::worker::Error::Interrupted))
    {
        return raised;
    }
    let exception = bad_argument(py, class(error), &error.to_string(), error.hint().as_deref());
    if let Error::NotReady { waited, .. } = error {
        // Left out if it cannot be set: the message says it all the same.
        let _ = exception.value(py).setattr("waited", waited.as_secs_f64());
    }
    exception
}

fn class(error: &Error) -> &'static str {
    match error {
        Error::Refused(refusal) => match refusal.reason {
            Reason::Token | Reason::JobSecret => "AuthenticationError",
            Reason::JobExists => "JobExists",
            Reason::NoSuchJob => "NoSuchJob",
            Reason::Quota => "QuotaExceeded",
            Reason::Invalid => "OptionError",
            Reason::Full => "JobFull",
            Reason::Ended => "JobClosed",
            Reason::Failed => "JobFailed",
            Reason::NotReady => "ConnectTimeout",
            Reason::Busy | Reason::StaleProof | Reason::State => "ManagerUnavailable",
            _ => "ProtocolError",
        },
        Error::NotReady { .. } => "ConnectTimeout",
        Error::Unreachable { .. } | Error::Untrusted { .. } | Error::Unanswered { .. } => {
            "ManagerUnavailable"
        }
        Error::NeedsTls { .. } | Error::Address { .. } | Error::File { .. } | Error::Certificate { .. } => {
            "OptionError"
        }
        Error::Protocol { .. } => "ProtocolError",
        _ => "PenstockError",
    }
}
