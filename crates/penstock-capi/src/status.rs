//! What calls return, and the text that belongs to it.

use crate::face::spoken;
use crate::join::JoinError;
use penstock::server::StartError;
use penstock::worker::Error;
use penstock_fabric::socket::ListenError;
use penstock_proto::account::Resource;
use penstock_proto::error::{JobFailure, Refusal};
use penstock_proto::items::TableError;
use penstock_proto::knot::Goal;
use penstock_proto::spec::SpecError;
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

/// What a call returns. `penstock_last_error()` has the text.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum penstock_status {
    /// Done.
    PENSTOCK_OK = 0,
    /// An argument is NULL, or a number is out of its range.
    PENSTOCK_BAD_ARGUMENT = 1,
    /// There is no such option, or it cannot have this value; environment variables are checked too.
    PENSTOCK_BAD_OPTION = 2,
    /// The environment says that there are several processes, but they have no way to find each other.
    PENSTOCK_NOT_UNDER_LAUNCHER = 3,
    /// A server or another process did not answer in time.
    PENSTOCK_DEADLINE_EXCEEDED = 4,
    /// A server or the manager could not be reached in time.
    PENSTOCK_CONNECT_TIMEOUT = 5,
    /// The job has another secret, or the certificate of a server or the manager is not trusted.
    PENSTOCK_AUTHENTICATION = 6,
    /// The rank is taken or outside the job's size.
    PENSTOCK_JOB_FULL = 7,
    /// The two sides do not understand each other: their versions differ.
    PENSTOCK_PROTOCOL = 8,
    /// The address that a server should listen on is taken.
    PENSTOCK_ADDRESS_IN_USE = 9,
    /// The job has ended for this worker.
    PENSTOCK_JOB_CLOSED = 10,
    /// The job has failed.
    PENSTOCK_JOB_FAILED = 11,
    /// The job has failed: a worker died, hung, or broke the protocol.
    PENSTOCK_WORKER_LOST = 12,
    /// The job has failed: a server is gone.
    PENSTOCK_SERVER_LOST = 13,
    /// The job has failed: workers pushed with different settings in one iteration.
    PENSTOCK_SETTINGS_CONFLICT = 14,
    /// Not every worker came to the barrier in time.
    PENSTOCK_BARRIER_TIMEOUT = 15,
    /// Worker 0 could not do what it was to do for all, such as penstock_load(): nothing was done, or only a part.
    PENSTOCK_FIRST_FAILED = 16,
    /// A name that no tensor or table may have.
    PENSTOCK_BAD_NAME = 20,
    /// A shape that no tensor may have, or a buffer of another size.
    PENSTOCK_BAD_SHAPE = 21,
    /// An element type that cannot be used here.
    PENSTOCK_BAD_DTYPE = 22,
    /// A setting of an optimizer, or a number of a declaration, is out of its range.
    PENSTOCK_BAD_SETTINGS = 23,
    /// It was declared differently before, by this worker or another.
    PENSTOCK_DECLARATION_CONFLICT = 24,
    /// It does not fit into the shared memory that a server may take.
    PENSTOCK_OUT_OF_MEMORY = 25,
    /// A second push of a tensor in one iteration.
    PENSTOCK_ALREADY_PUSHED = 30,
    /// A NaN or an infinity for a tensor that refuses them.
    PENSTOCK_NON_FINITE = 31,
    /// A pull was not fresh enough in time.
    PENSTOCK_PULL_TIMEOUT = 32,
    /// The previous push was not taken in time.
    PENSTOCK_LANE_TIMEOUT = 33,
    /// The tensor has no such row or element.
    PENSTOCK_UNKNOWN_ELEMENT = 34,
    /// The table has no such row, or this worker did not declare that it reads it.
    PENSTOCK_UNKNOWN_ROW = 40,
    /// This worker did not declare that it produces the row.
    PENSTOCK_NOT_PRODUCER = 41,
    /// Two workers declared that they produce one row of a table without a fold.
    PENSTOCK_TWO_PRODUCERS = 42,
    /// The clock is below the one that the row was set with before.
    PENSTOCK_CLOCK_BACKWARDS = 43,
    /// Only this worker can make the row fresh enough, and it has not done so.
    PENSTOCK_NEVER_SET = 44,
    /// A row was not fresh enough in time.
    PENSTOCK_GET_TIMEOUT = 45,
    /// A row was overwritten while it was read in place: discard what was read.
    PENSTOCK_TORN_VIEW = 46,
    /// A row occurs twice in one set.
    PENSTOCK_ROW_TWICE = 47,
    /// The table was dropped.
    PENSTOCK_TABLE_DROPPED = 48,
    /// The rows' producer was lost, and they were never current together: get them one at a time.
    PENSTOCK_ROWS_APART = 49,
    /// There is no such request: it is done, or its job has ended.
    PENSTOCK_UNKNOWN_REQUEST = 50,
    /// The system refused memory, a thread, a descriptor or a file.
    PENSTOCK_SYSTEM = 60,
    /// A bug in Penstock itself. Please report the error's text.
    PENSTOCK_INTERNAL = 61,
}

use penstock_status::*;

/// Why a call failed, as it is told to a C program.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) status: penstock_status,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    /// Whether it is the job that has failed, of which the program is told once.
    pub(crate) of_job: bool,
}

thread_local! {
    /// The text of this thread's last failure.
    static LAST: RefCell<CString> = RefCell::default();
}

/// The version of the library, such as "0.1.0". Never NULL; always valid.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("a version holds no zero byte"),
        };
    VERSION.as_ptr()
}

/// The text of this thread's last failed call: what was expected, what it got instead and, after "hint: ", what to do.
///
/// Never NULL: "" if no call of this thread has failed yet. A call that succeeds does not change the text. Valid until this
/// thread's next call that fails, or its end.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_last_error() -> *const c_char {
    // A thread that is ending has no text any more.
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

impl Failure {
    pub(crate) fn new(status: penstock_status, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { status, message: message.into(), hint: Some(hint.into()), of_job: false }
    }

    /// An argument that is not what it should be. What was expected and came says enough.
    pub(crate) fn argument(message: impl Into<String>) -> Self {
        Self { status: PENSTOCK_BAD_ARGUMENT, message: message.into(), hint: None, of_job: false }
    }

    /// A panic: never the caller's fault.
    pub(crate) fn bug(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let message = format!("an error of Penstock itself: {}", text.unwrap_or("it does not say which"));
        Self::new(PENSTOCK_INTERNAL, message, "please report it, and what the program did")
    }

    /// Keeps the text for `penstock_last_error`.
    pub(crate) fn record(self) -> penstock_status {
        let text = match self.hint {
            Some(hint) => format!("{}\nhint: {}", self.message, spoken(&hint)),
            None => self.message,
        };
        let text = CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default();
        let _ = LAST.try_with(|last| *last.borrow_mut() = text);
        self.status
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let of_job = matches!(error, Error::Failed(_) | Error::Refused(Refusal::Ended(_)));
        Self { status: status(&error), message: error.to_string(), hint: error.hint(), of_job }
    }
}

impl From<JoinError> for Failure {
    fn from(error: JoinError) -> Self {
        match error {
            JoinError::Core(error) => error.into(),
            error => {
                Self { status: error.status(), message: error.to_string(), hint: error.hint(), of_job: false }
            }
        }
    }
}

pub(crate) fn start(error: &StartError) -> penstock_status {
    match error {
        StartError::Listen(ListenError::InUse { .. }) => PENSTOCK_ADDRESS_IN_USE,
        StartError::OutOfRange { .. } => PENSTOCK_BAD_OPTION,
        _ => PENSTOCK_SYSTEM,
    }
}

fn status(error: &Error) -> penstock_status {
    match error {
        Error::Closed | Error::Forked => PENSTOCK_JOB_CLOSED,
        Error::Failed(failure) => self::failure(failure),
        Error::Refused(refusal) => self::refusal(refusal),
        Error::StaleLane { .. } => PENSTOCK_BAD_ARGUMENT,
        Error::Options(_)
        | Error::Slack { .. }
        | Error::WrongFold { .. }
        | Error::Unfinished { .. }
        | Error::PartWaits { .. } => PENSTOCK_BAD_OPTION,
        Error::Start(error) => start(error),
        Error::AlreadyPushed { .. } => PENSTOCK_ALREADY_PUSHED,
        Error::WrongSize { .. } | Error::NoMatrix { .. } => PENSTOCK_BAD_SHAPE,
        Error::UnknownElement { .. } => PENSTOCK_UNKNOWN_ELEMENT,
        Error::NonFinite { .. } => PENSTOCK_NON_FINITE,
        Error::Settings { .. } => PENSTOCK_BAD_SETTINGS,
        Error::PullTimeout { .. } | Error::NoValue { .. } => PENSTOCK_PULL_TIMEOUT,
        Error::LaneTimeout { .. } => PENSTOCK_LANE_TIMEOUT,
        Error::UnknownRow { .. } => PENSTOCK_UNKNOWN_ROW,
        Error::NotProducer { .. } => PENSTOCK_NOT_PRODUCER,
        Error::RowTwice { .. } => PENSTOCK_ROW_TWICE,
        Error::ClockBackwards { .. } => PENSTOCK_CLOCK_BACKWARDS,
        Error::NeverSet { .. } => PENSTOCK_NEVER_SET,
        Error::GetTimeout { .. } | Error::NeverStill { .. } => PENSTOCK_GET_TIMEOUT,
        Error::Knot { goal: Goal::Barrier { .. }, .. } | Error::BarrierTimeout { .. } => {
            PENSTOCK_BARRIER_TIMEOUT
        }
        Error::FirstFailed { .. } => PENSTOCK_FIRST_FAILED,
        Error::FirstGone { .. } => PENSTOCK_WORKER_LOST,
        Error::Untrusted { .. } | Error::OtherUser { .. } => PENSTOCK_AUTHENTICATION,
        Error::ConnectTimeout { .. } => PENSTOCK_CONNECT_TIMEOUT,
        Error::Apart { .. } => PENSTOCK_ROWS_APART,
        Error::Dropped { .. } => PENSTOCK_TABLE_DROPPED,
        Error::Unanswered { .. }
        | Error::InLine { .. }
        | Error::TableTimeout { .. }
        | Error::Knot { .. }
        | Error::NotTaken { .. }
        | Error::DropTimeout { .. } => PENSTOCK_DEADLINE_EXCEEDED,
        Error::Protocol { .. } => PENSTOCK_PROTOCOL,
        _ => PENSTOCK_SYSTEM,
    }
}

fn refusal(refusal: &Refusal) -> penstock_status {
    match refusal {
        Refusal::Authentication => PENSTOCK_AUTHENTICATION,
        Refusal::SizeMismatch { .. }
        | Refusal::RankOutOfRange { .. }
        | Refusal::RankTaken { .. }
        | Refusal::NotAdmitted { .. } => PENSTOCK_JOB_FULL,
        Refusal::Spec(SpecError::BadName { .. }) => PENSTOCK_BAD_NAME,
        Refusal::Spec(SpecError::BadShape { .. } | SpecError::TooLarge { .. }) => PENSTOCK_BAD_SHAPE,
        Refusal::Spec(_) => PENSTOCK_BAD_SETTINGS,
        Refusal::Tree { .. } => PENSTOCK_BAD_OPTION,
        Refusal::Table(error) => table(error),
        Refusal::NoValue { .. } => PENSTOCK_WORKER_LOST,
        Refusal::Conflict { .. } => PENSTOCK_DECLARATION_CONFLICT,
        Refusal::OutOfMemory { .. } => PENSTOCK_OUT_OF_MEMORY,
        Refusal::Exhausted { why, .. } if why.resource == Resource::Bytes => PENSTOCK_OUT_OF_MEMORY,
        Refusal::Ended(failure) => self::failure(failure),
        Refusal::ProtocolVersion { .. } | Refusal::Malformed { .. } | Refusal::UnknownTensor { .. } => {
            PENSTOCK_PROTOCOL
        }
        _ => PENSTOCK_SYSTEM,
    }
}

fn table(error: &TableError) -> penstock_status {
    match error {
        TableError::BadName { .. } => PENSTOCK_BAD_NAME,
        TableError::BadRowBytes { .. } => PENSTOCK_BAD_SHAPE,
        TableError::BadSum { .. } => PENSTOCK_BAD_DTYPE,
        TableError::RowOutOfRange { .. } | TableError::NoProducer { .. } => PENSTOCK_UNKNOWN_ROW,
        TableError::TooManyRows { .. } | TableError::TooManyTables => PENSTOCK_BAD_OPTION,
        TableError::TwoProducers { .. } => PENSTOCK_TWO_PRODUCERS,
        TableError::Differs { .. } | TableError::DeclaredTwice { .. } | TableError::NotAllTold { .. } => {
            PENSTOCK_DECLARATION_CONFLICT
        }
        TableError::Exhausted { why, .. } if why.resource == Resource::Bytes => PENSTOCK_OUT_OF_MEMORY,
        TableError::Exhausted { .. } => PENSTOCK_SYSTEM,
        _ => PENSTOCK_PROTOCOL,
    }
}

fn failure(failure: &JobFailure) -> penstock_status {
    match failure {
        JobFailure::WorkerLost { .. } => PENSTOCK_WORKER_LOST,
        JobFailure::ServerLost { .. } => PENSTOCK_SERVER_LOST,
        JobFailure::SettingsConflict { .. } => PENSTOCK_SETTINGS_CONFLICT,
        _ => PENSTOCK_JOB_FAILED,
    }
}
