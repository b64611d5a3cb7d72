//! How processes find each other: both ends of a rendezvous over TCP, and what they tell each other, however it is carried.

use crate::detach::{Core, Detached, finish, interrupted, let_go};
use crate::error::{bad_argument, deadline_exceeded};
use crate::job::secret;
use crate::seconds::Seconds;
use penstock_join::address;
use penstock_join::exchange::{self, Contributions, NoVerdict, Verdict};
use penstock_join::introduce::{self, Disagreement, Introduction, MadeSecret, Plan, Topology};
use penstock_join::patience::Patience;
use penstock_join::tcp::{Cause, Party, RendezvousAddress, RendezvousError, Root, Visitor};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use std::sync::Mutex;
use std::time::Duration;

/// Rank 0's end of a rendezvous over TCP.
#[pyclass(frozen, module = "penstock._core")]
pub(crate) struct RendezvousRoot {
    end: Core<Mutex<Option<Root>>>,
    #[pyo3(get)]
    port: u16,
}

#[pymethods]
impl RendezvousRoot {
    #[new]
    fn new(
        py: Python<'_>,
        size: u32,
        host: String,
        port: u16,
        secret: &str,
        job: String,
        seconds: Seconds,
    ) -> PyResult<Self> {
        let longest = seconds.judged()?;
        let party = Party { rank: 0, size, secret: self::secret(py, secret)?, job };
        let patience = || Patience::new(longest, &interrupted);
        let end = let_go(py, |_| Root::listen(party, &RendezvousAddress { host, port }, &patience()))?;
        let end = end.map_err(|error| raise(py, &error))?;
        Ok(Self { port: end.port(), end: Core::new(Mutex::new(Some(end))) })
    }

    #[allow(clippy::type_complexity, reason = "what came, who is missing, and what is known of why")]
    fn collect<'py>(
        &self,
        py: Python<'py>,
        own: &[u8],
        seconds: Seconds,
    ) -> PyResult<(Bound<'py, PyDict>, Vec<u32>, Option<String>, Option<Why>)> {
        let longest = seconds.judged()?;
        let (found, unproved) = use_end(py, &self.end, |end| {
            Ok((end.collect(own, &Patience::new(longest, &interrupted))?, end.unproved()))
        })?;
        let came = PyDict::new(py);
        for (rank, contribution) in &found.came {
            came.set_item(rank, PyBytes::new(py, contribution))?;
        }
        let unproved = unproved.map(|host| Cause::Unproved { host });
        Ok((came, found.missing, found.no_room, unproved.map(|cause| (cause.to_string(), cause.hint()))))
    }

    fn announce(&self, py: Python<'_>, verdict: &[u8]) -> PyResult<()> {
        use_end(py, &self.end, |end| end.announce(verdict, &Patience::new(Duration::ZERO, &interrupted)))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let_go(py, |free| drop(self.end.lock(free).take()))
    }
}

/// Everyone else's.
#[pyclass(frozen, module = "penstock._core")]
pub(crate) struct RendezvousVisitor {
    end: Core<Mutex<Option<Visitor>>>,
}

#[pymethods]
impl RendezvousVisitor {
    #[new]
    #[allow(clippy::too_many_arguments, reason = "one for each of Python's")]
    fn new(
        py: Python<'_>,
        rank: u32,
        size: u32,
        host: String,
        port: u16,
        secret: &str,
        job: String,
    ) -> PyResult<Self> {
        let party = Party { rank, size, secret: self::secret(py, secret)?, job };
        Ok(Self { end: Core::new(Mutex::new(Some(Visitor::new(party, RendezvousAddress { host, port })))) })
    }

    fn deliver(&self, py: Python<'_>, contribution: &[u8], seconds: Seconds) -> PyResult<()> {
        let longest = seconds.judged()?;
        use_end(py, &self.end, |end| end.deliver(contribution, &Patience::new(longest, &interrupted)))
    }

    fn await_verdict<'py>(&self, py: Python<'py>, seconds: Seconds) -> PyResult<Bound<'py, PyBytes>> {
        let longest = seconds.judged()?;
        let found = use_end(py, &self.end, |end| end.await_verdict(&Patience::new(longest, &interrupted)))?;
        Ok(PyBytes::new(py, &found))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let_go(py, |free| drop(self.end.lock(free).take()))
    }
}

/// Does something with an end that was not closed.
fn use_end<T, Answer>(
    py: Python<'_>,
    end: &Core<Mutex<Option<T>>>,
    work: impl FnOnce(&mut T) -> Result<Answer, RendezvousError> + Send,
) -> PyResult<Answer>
where
    T: Send,
    Answer: Send,
{
    let answer = let_go(py, |free: &Detached| end.lock(free).as_mut().map(work))?;
    match answer {
        Some(answer) => answer.map_err(|error| raise(py, &error)),
        None => finish(py, Err(penstock::worker::Error::Closed)),
    }
}

fn raise(py: Python<'_>, error: &RendezvousError) -> PyErr {
    let class = match error {
        RendezvousError::Interrupted(_) => return stopped(py),
        RendezvousError::NoAddress { .. }
        | RendezvousError::OtherSize { .. }
        | RendezvousError::TooMany { .. } => "OptionError",
        RendezvousError::InUse { .. } => "AddressInUse",
        RendezvousError::Taken { .. } => "JobFull",
        RendezvousError::OtherSecret { .. } => "AuthenticationError",
        RendezvousError::Late { .. } => {
            return deadline_exceeded(py, &[0], &error.to_string(), error.hint());
        }
        // Rank 0 is there: only it knows which ranks it waits for.
        RendezvousError::Undecided { .. } => {
            return deadline_exceeded(py, &[], &error.to_string(), error.hint());
        }
        RendezvousError::Unresolved { .. } => "DeadlineExceeded",
        RendezvousError::Left { .. } | RendezvousError::Changed { .. } => "ProtocolError",
        _ => "PenstockError",
    };
    bad_argument(py, class, &error.to_string(), error.hint())
}

/// What the caller's signal handler raised.
fn stopped(py: Python<'_>) -> PyErr {
    match finish::<()>(py, Err(penstock::worker::Error::Interrupted)) {
        Ok(()) => bad_argument(py, "PenstockError", "interrupted", None),
        Err(raised) => raised,
    }
}

/// The address by which other hosts reach this one, if there is one.
#[pyfunction]
pub(crate) fn reachable(
    py: Python<'_>,
    rendezvous_host: String,
    seconds: Seconds,
) -> PyResult<Option<String>> {
    let longest = seconds.judged()?;
    let found = let_go(py, |_| address::reachable(&rendezvous_host, &Patience::new(longest, &interrupted)))?;
    found.map_err(|_| stopped(py))
}

/// What a process says of itself in the first round.
#[pyfunction]
pub(crate) fn introduction<'py>(
    py: Python<'py>,
    host: String,
    job: String,
    has_secret: bool,
    alone: Option<bool>,
    secret: Option<String>,
) -> Bound<'py, PyBytes> {
    let topology = alone.map(|alone| if alone { Topology::Cc } else { Topology::Cs });
    let said = Introduction { host, job, has_secret, topology, secret: secret.map(MadeSecret) };
    PyBytes::new(py, &said.spell())
}

/// What all conclude from it: who starts each server, whether all are on one host, the secret that rank 0 has made.
#[pyfunction]
pub(crate) fn agree(py: Python<'_>, messages: Vec<Vec<u8>>) -> PyResult<(Vec<usize>, bool, Option<String>)> {
    let Plan { owners, one_host, secret } =
        introduce::agree(&messages).map_err(|error| disagreement(py, &error))?;
    Ok((owners, one_host, secret.map(|MadeSecret(secret)| secret)))
}

/// The servers' endpoint strings, from what each rank has said in the second round.
#[pyfunction]
pub(crate) fn named_servers(py: Python<'_>, owners: Vec<usize>, told: Vec<Vec<u8>>) -> PyResult<Vec<String>> {
    introduce::servers(&owners, &told).map_err(|error| disagreement(py, &error))
}

fn disagreement(py: Python<'_>, error: &Disagreement) -> PyErr {
    let class = match error {
        Disagreement::Foreign { .. } | Disagreement::NoServer { .. } => "ProtocolError",
        Disagreement::Job { .. } | Disagreement::Secret { .. } => "NotUnderLauncher",
    };
    bad_argument(py, class, &error.to_string(), Some(error.hint()))
}

/// Host and port of `HOST:PORT`.
#[pyfunction]
pub(crate) fn rendezvous_address(py: Python<'_>, text: &str) -> PyResult<(String, u16)> {
    match text.parse::<RendezvousAddress>() {
        Ok(RendezvousAddress { host, port }) => Ok((host, port)),
        Err(error) => Err(bad_argument(py, "OptionError", &error.to_string(), Some(error.hint()))),
    }
}

/// What a process gives in a round.
#[pyfunction]
pub(crate) fn given<'py>(py: Python<'py>, message: &[u8]) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &exchange::given(message))
}

/// That it cannot go on.
#[pyfunction]
pub(crate) fn failed<'py>(py: Python<'py>, why: &str) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &exchange::failed(why))
}

/// Whether a process says that it cannot go on.
#[pyfunction]
pub(crate) fn is_failure(contribution: &[u8]) -> bool {
    exchange::is_failure(contribution)
}

/// The most bytes of a verdict.
#[pyfunction]
pub(crate) fn verdict_limit(size: u32) -> usize {
    exchange::verdict_limit(size)
}

/// What rank 0 tells all when contributions have come.
#[pyfunction]
pub(crate) fn verdict(py: Python<'_>, contributions: Contributions) -> Bound<'_, PyBytes> {
    PyBytes::new(py, &Verdict::over(&contributions).spell())
}

/// What rank 0 tells all when some have not come.
#[pyfunction]
pub(crate) fn late_verdict(
    py: Python<'_>,
    missing: Vec<u32>,
    waited: Seconds,
    no_room: Option<String>,
) -> PyResult<Bound<'_, PyBytes>> {
    let verdict = Verdict::Late { missing, waited: waited.judged()?, no_room };
    Ok(PyBytes::new(py, &verdict.spell()))
}

/// Why a process did not come, and what to do.
type Why = (String, &'static str);

/// Which ranks are missing, how many seconds rank 0 waited, and what kept it from letting more in, with what to do.
type Late = (Vec<u32>, f64, Option<Why>);

/// A verdict: the messages of all, or that some are missing, or why a process could not go on.
#[pyfunction]
#[allow(clippy::type_complexity, reason = "one of three, for Python to tell apart")]
pub(crate) fn judge<'py>(
    py: Python<'py>,
    verdict: &[u8],
    size: u32,
) -> PyResult<(Option<Bound<'py, PyList>>, Option<Late>, Option<String>)> {
    match Verdict::read(verdict, size) {
        Ok(Verdict::Given(messages)) => {
            let messages = PyList::new(py, messages.iter().map(|message| PyBytes::new(py, message)))?;
            Ok((Some(messages), None, None))
        }
        Ok(Verdict::Late { missing, waited, no_room }) => {
            let why = no_room.map(|reason| Cause::NoRoom { reason });
            let why = why.map(|cause| (cause.to_string(), cause.hint()));
            Ok((None, Some((missing, waited.as_secs_f64(), why)), None))
        }
        Ok(Verdict::Failed { text }) => Ok((None, None, Some(text))),
        Err(error) => {
            let hint = (error == NoVerdict::Foreign).then_some("is another program there?");
            Err(bad_argument(py, "ProtocolError", &error.to_string(), hint))
        }
    }
}
