//! Every error of the core as the exception of `penstock.exceptions` that says the same.

use penstock::options::OptionError;
use penstock::server::StartError;
use penstock::worker::Error;
use penstock_fabric::socket::ListenError;
use penstock_proto::account::Resource;
use penstock_proto::error::{JobFailure, Loss, Refusal};
use penstock_proto::items::TableError;
use penstock_proto::spec::SpecError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::time::Duration;

/// An exception by name, with what is set on it.
struct Shape<'py> {
    class: &'static str,
    attributes: Bound<'py, PyDict>,
}

impl<'py> Shape<'py> {
    fn new(py: Python<'py>, class: &'static str) -> Self {
        Self { class, attributes: PyDict::new(py) }
    }

    fn with(self, name: &str, value: impl IntoPyObject<'py>) -> Self {
        // An attribute that cannot be made is left out: the message says it all the same.
        let _ = self.attributes.set_item(name, value);
        self
    }

    fn waited(self, missing: &[u32], waited: Duration) -> Self {
        self.with("missing", missing.to_vec()).with("waited", waited.as_secs_f64())
    }

    fn build(self, message: &str, hint: Option<String>) -> PyResult<PyErr> {
        let py = self.attributes.py();
        let class = py.import("penstock.exceptions")?.getattr(self.class)?;
        let _ = self.attributes.set_item("hint", hint);
        Ok(PyErr::from_value(class.call((message,), Some(&self.attributes))?))
    }
}

/// The exception for an error of a worker.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    shape(py, error).build(&error.to_string(), error.hint()).unwrap_or_else(|failed| failed)
}

/// The name of what [`raise`] would give for an error of leaving, where there is no interpreter.
pub(crate) fn class_of(error: &Error) -> &'static str {
    match error {
        Error::Failed(JobFailure::WorkerLost { .. }) => "WorkerLost",
        Error::Failed(JobFailure::ServerLost { .. }) => "ServerLost",
        Error::Failed(JobFailure::SettingsConflict { .. }) => "SettingsConflict",
        Error::Failed(_) => "JobFailed",
        Error::NotTaken { .. } => "NotDelivered",
        Error::Unanswered { .. } | Error::InLine { .. } => "DeadlineExceeded",
        Error::Protocol { .. } => "ProtocolError",
        _ => "PenstockError",
    }
}

/// The exception for an option.
pub(crate) fn raise_option(py: Python<'_>, error: &OptionError) -> PyErr {
    Shape::new(py, "OptionError").build(&error.to_string(), error.hint()).unwrap_or_else(|failed| failed)
}

/// The exception for a server that did not start.
pub(crate) fn raise_start(py: Python<'_>, error: &StartError) -> PyErr {
    Shape::new(py, start(error)).build(&error.to_string(), error.hint()).unwrap_or_else(|failed| failed)
}

/// A wait for these ranks that came to its end; for none where it is not known which.
pub(crate) fn deadline_exceeded(py: Python<'_>, missing: &[u32], message: &str, hint: Option<&str>) -> PyErr {
    let shape = Shape::new(py, "DeadlineExceeded").with("missing", missing.to_vec());
    shape.build(message, hint.map(str::to_owned)).unwrap_or_else(|failed| failed)
}

/// An argument that is out of range.
pub(crate) fn bad_argument(py: Python<'_>, class: &'static str, message: &str, hint: Option<&str>) -> PyErr {
    Shape::new(py, class).build(message, hint.map(str::to_owned)).unwrap_or_else(|failed| failed)
}

fn start(error: &StartError) -> &'static str {
    match error {
        StartError::Listen(ListenError::InUse { .. }) => "AddressInUse",
        StartError::OutOfRange { .. } => "OptionError",
        _ => "PenstockError",
    }
}

fn shape<'py>(py: Python<'py>, error: &Error) -> Shape<'py> {
    let named = |class| Shape::new(py, class);
    match error {
        Error::Closed | Error::Forked => named("JobClosed"),
        Error::Failed(failure) => self::failure(py, failure),
        Error::Refused(refusal) => self::refusal(py, refusal),
        Error::Options(_) | Error::Slack { .. } => named("OptionError"),
        Error::Start(error) => named(start(error)),
        Error::AlreadyPushed { .. } => named("AlreadyPushed"),
        Error::WrongSize { .. } | Error::NoMatrix { .. } => named("ShapeError"),
        Error::UnknownElement { place, .. } => named("UnknownElement").with("place", *place),
        Error::NonFinite { index, .. } => named("NonFiniteError").with("index", *index),
        Error::Settings { .. } | Error::BadLoad { .. } => named("SettingsError"),
        Error::NotStill { .. }
        | Error::Unfinished { .. }
        | Error::PartWaits { .. }
        | Error::StaleLane { .. } => named("OptionError"),
        Error::UnknownRow { .. } => named("UnknownRow"),
        Error::NotProducer { .. } => named("NotProducer"),
        Error::RowTwice { row, .. } => named("RowTwice").with("row", *row),
        Error::ClockBackwards { .. } => named("ClockBackwards"),
        Error::NeverSet { .. } => named("NeverSet"),
        Error::WrongFold { .. } => named("OptionError"),
        Error::GetTimeout { row, version, wanted, producer, waited, .. } => named("GetTimeout")
            .waited(&[*producer], *waited)
            .with("row", *row)
            .with("version", *version)
            .with("wanted", *wanted),
        Error::NeverStill { row, waited, .. } => named("GetTimeout").waited(&[], *waited).with("row", *row),
        Error::Apart { row, producer, .. } => {
            named("RowsApart").with("row", *row).with("producer", *producer)
        }
        Error::Dropped { .. } => named("TableDropped"),
        Error::DropTimeout { missing, waited, .. } => named("DeadlineExceeded").waited(missing, *waited),
        Error::TableTimeout { missing, waited, .. } => named("DeadlineExceeded").waited(missing, *waited),
        Error::PullTimeout { missing, waited, .. } => named("PullTimeout").waited(missing, *waited),
        Error::Knot { missing, waited, .. } => named("CircularWait").waited(missing, *waited),
        Error::NoValue { waited, .. } => named("PullTimeout").waited(&[0], *waited),
        Error::LaneTimeout { missing, waited, .. } => named("LaneTimeout").waited(missing, *waited),
        Error::BarrierTimeout { missing, waited, .. } => named("BarrierTimeout").waited(missing, *waited),
        Error::FirstFailed { .. } => named("FirstFailed"),
        Error::FirstGone { .. } => named("WorkerLost").with("rank", 0),
        Error::Untrusted { .. } | Error::OtherUser { .. } => named("AuthenticationError"),
        Error::ConnectTimeout { waited, .. } => named("ConnectTimeout").waited(&[], *waited),
        Error::Unanswered { waited, .. } | Error::InLine { waited, .. } => {
            named("DeadlineExceeded").waited(&[], *waited)
        }
        Error::NotTaken { server, taken, submitted, waited } => named("NotDelivered")
            .waited(&[], *waited)
            .with("server", *server)
            .with("taken", *taken)
            .with("submitted", *submitted),
        Error::Protocol { .. } => named("ProtocolError"),
        _ => named("PenstockError"),
    }
}

fn refusal<'py>(py: Python<'py>, refusal: &Refusal) -> Shape<'py> {
    let named = |class| Shape::new(py, class);
    match refusal {
        Refusal::Authentication => named("AuthenticationError"),
        Refusal::SizeMismatch { .. }
        | Refusal::RankOutOfRange { .. }
        | Refusal::RankTaken { .. }
        | Refusal::NotAdmitted { .. } => named("JobFull"),
        Refusal::Spec(SpecError::BadName { .. }) => named("TensorNameError"),
        Refusal::Spec(SpecError::BadShape { .. } | SpecError::TooLarge { .. }) => named("ShapeError"),
        // A filter that the dtype cannot have, or that this version does not know.
        Refusal::Spec(SpecError::Travel { .. }) | Refusal::Tree { .. } => named("OptionError"),
        Refusal::Spec(_) => named("SettingsError"),
        Refusal::Table(error) => match error {
            TableError::BadName { .. } => named("TensorNameError"),
            TableError::BadRowBytes { .. } => named("ShapeError"),
            TableError::BadSum { .. } => named("DtypeError"),
            TableError::RowOutOfRange { .. } => named("UnknownRow"),
            TableError::NoProducer { gone, .. } => named("UnknownRow").with("missing", gone.clone()),
            TableError::TooManyRows { .. } | TableError::TooManyTables => named("OptionError"),
            TableError::TwoProducers { row, first, second, .. } => {
                named("TwoProducers").with("row", *row).with("ranks", vec![*first, *second])
            }
            TableError::Differs { .. } | TableError::DeclaredTwice { .. } | TableError::NotAllTold { .. } => {
                named("DeclarationConflict")
            }
            TableError::Exhausted { why, .. } if why.resource == Resource::Bytes => {
                named("OutOfMemory").with("needed", why.asked).with("available", why.left)
            }
            TableError::Exhausted { .. } => named("PenstockError"),
            _ => named("ProtocolError"),
        },
        Refusal::NoValue { .. } => named("WorkerLost").with("rank", 0),
        Refusal::Conflict { .. } => named("DeclarationConflict"),
        Refusal::OutOfMemory { needed, available, .. } => {
            named("OutOfMemory").with("needed", *needed).with("available", *available)
        }
        Refusal::Exhausted { why, .. } if why.resource == Resource::Bytes => {
            named("OutOfMemory").with("needed", why.asked).with("available", why.left)
        }
        Refusal::Ended(failure) => self::failure(py, failure),
        Refusal::ProtocolVersion { .. } | Refusal::Malformed { .. } | Refusal::UnknownTensor { .. } => {
            named("ProtocolError")
        }
        _ => named("PenstockError"),
    }
}

fn failure<'py>(py: Python<'py>, failure: &JobFailure) -> Shape<'py> {
    let named = |class| Shape::new(py, class);
    match failure {
        JobFailure::WorkerLost { rank, loss } => {
            let died = matches!(loss, Loss::Died | Loss::Silent { .. } | Loss::Ended { .. });
            named("WorkerLost").with("rank", *rank).with("died", died)
        }
        JobFailure::ServerLost { server, .. } => named("ServerLost").with("server", *server),
        JobFailure::SettingsConflict { .. } => named("SettingsConflict"),
        JobFailure::NonFinite { rank, .. } => named("JobFailed").with("rank", *rank),
        _ => named("JobFailed"),
    }
}
