//! What can go wrong between a client and a manager, and in starting either.
//!
//! A manager refuses with a gRPC status and one stable word in the trailing metadata `penstock-reason`; the hint follows from
//! the word, so that it is written once. No text holds a secret. What comes over the wire without a proof is told in our own
//! words; texts that are proved are shortened, and cannot control a terminal.

use crate::proof::Prover;
use penstock_proto::error::{MAX_TEXT_BYTES, shorten};
use std::path::PathBuf;
use std::time::Duration;
use tonic::codegen::http::HeaderMap;
use tonic::{Code, Status};

/// The trailing metadata that carries the [`Reason`].
pub(crate) const REASON: &str = "penstock-reason";

/// Why a manager refuses, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The admin or the server token is wrong or missing.
    Token,
    /// There is no such job, or the secret is not its own: which of the two is not said.
    JobSecret,
    /// The name is taken.
    JobExists,
    /// There is no such job (said to administrators only).
    NoSuchJob,
    /// More memory or jobs than there is room for.
    Quota,
    /// A value is out of range.
    Invalid,
    /// The challenge that a proof answers was used, is too old, or of an earlier life of the manager.
    StaleProof,
    /// The job has no such rank, or none left.
    Full,
    /// The job has ended.
    Ended,
    /// The job was stopped by an error.
    Failed,
    /// Not all servers of the job host it yet.
    NotReady,
    /// The server is not registered.
    UnknownServer,
    /// Too many calls at once.
    Busy,
    /// The manager could not write its state.
    State,
}

impl Reason {
    const ALL: [(Self, &'static str, Code); 14] = [
        (Self::Token, "token", Code::Unauthenticated),
        (Self::JobSecret, "job-secret", Code::Unauthenticated),
        (Self::JobExists, "job-exists", Code::AlreadyExists),
        (Self::NoSuchJob, "no-such-job", Code::NotFound),
        (Self::Quota, "quota", Code::ResourceExhausted),
        (Self::Invalid, "invalid", Code::InvalidArgument),
        (Self::StaleProof, "stale-proof", Code::Unauthenticated),
        (Self::Full, "full", Code::FailedPrecondition),
        (Self::Ended, "ended", Code::FailedPrecondition),
        (Self::Failed, "failed", Code::FailedPrecondition),
        (Self::NotReady, "not-ready", Code::DeadlineExceeded),
        (Self::UnknownServer, "unknown-server", Code::NotFound),
        (Self::Busy, "busy", Code::ResourceExhausted),
        (Self::State, "state", Code::Internal),
    ];

    fn row(self) -> (Self, &'static str, Code) {
        *Self::ALL.iter().find(|row| row.0 == self).expect("every reason has a row")
    }
}

/// A manager's refusal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// Why, in a word.
    pub reason: Reason,
    /// Why, in a sentence.
    pub message: String,
}

impl Refusal {
    pub(crate) fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    /// The one refusal for a wrong admin or server token.
    pub(crate) fn token(which: &str) -> Self {
        Self::new(Reason::Token, format!("the {which} token is wrong or missing"))
    }

    /// The one refusal for a wrong secret and for a name that does not exist.
    pub(crate) fn job_secret() -> Self {
        Self::new(Reason::JobSecret, "there is no such job, or the secret is not its own")
    }

    /// The same, for a caller that shows its token or secret, or another kind of proof.
    pub(crate) fn of_another_version(self) -> Self {
        let message = "this manager takes this version's proofs, not tokens or secrets: use the same version of Penstock everywhere";
        Self { message: message.to_owned(), ..self }
    }

    /// The same, found out by the client: what answers does not know the secret, so it was told only who asks.
    pub(crate) fn not_its_manager(who: &Prover) -> Self {
        let text = match who {
            Prover::Admin => {
                "the admin token is wrong, or what answers is not the manager that it belongs to"
            }
            Prover::Server => {
                "the server token is wrong, or what answers is not the manager that it belongs to"
            }
            Prover::Worker { .. } => {
                "there is no such job, or the secret is not its own, or what answers is not its manager"
            }
        };
        Self::new(who.refusal().reason, text)
    }

    /// The same, found out by the client: the manager has proved itself, but what answers the call has not.
    pub(crate) fn not_proved(who: &Prover) -> Self {
        let text = "the answer is not proved: something on the way has changed it or the call, or the manager is of another version of Penstock";
        let gone = match who {
            Prover::Worker { .. } => ", or the job has just been deleted",
            Prover::Admin | Prover::Server => "",
        };
        Self::new(who.refusal().reason, format!("{text}{gone}"))
    }

    /// The one refusal of a manager's nonce that does not count, or not any more.
    pub(crate) fn stale() -> Self {
        let message = "the proof is too old, was used before, or was made before the manager restarted";
        Self::new(Reason::StaleProof, message)
    }

    /// The one refusal for too many calls.
    pub(crate) fn busy() -> Self {
        Self::new(Reason::Busy, "the manager has too many calls at once")
    }

    fn read(status: &Status) -> Option<Self> {
        Some(Self::new(reason(status.metadata().as_ref())?, harmless(status.message())))
    }
}

/// Why the manager refuses, if these headers or trailers say that it does.
pub(crate) fn reason(headers: &HeaderMap) -> Option<Reason> {
    let word = headers.get(REASON)?.to_str().ok()?;
    Reason::ALL.iter().find(|row| row.1 == word).map(|row| row.0)
}

/// A peer's text, as it may be shown.
pub(crate) fn harmless(text: impl Into<String>) -> String {
    let mut text = text.into();
    shorten(&mut text, MAX_TEXT_BYTES);
    text
}

/// The error of a status whose words were not taken, because their sender has proved nothing.
pub(crate) fn in_our_words(code: Code) -> Status {
    Status::new(code, format!("it answered with the gRPC status {} ({})", code as i32, code.description()))
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let (_, word, code) = refusal.reason.row();
        let mut status = Self::new(code, refusal.message);
        status.metadata_mut().insert(REASON, word.parse().expect("the words are ASCII"));
        status
    }
}

/// Why a call of a client failed, or an agent or a client could not begin.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The manager refused, and changed nothing; or what answers has not proved that it is the manager.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Not all servers of the job were ready in time.
    #[error("the job's servers were not ready after {:.1} s: {message}", waited.as_secs_f64())]
    NotReady {
        /// What it waited for.
        message: String,
        /// How long.
        waited: Duration,
    },
    /// No connection.
    #[error("the manager at {address} cannot be reached: {reason}")]
    Unreachable {
        /// Its address.
        address: String,
        /// What the system, or TLS, said.
        reason: String,
    },
    /// Its certificate is not to be trusted.
    #[error("the manager at {address} is not trusted: {reason}")]
    Untrusted {
        /// Its address.
        address: String,
        /// What TLS said.
        reason: String,
    },
    /// Connected, but no answer in time.
    #[error("the manager at {address} did not answer within {:.1} s", waited.as_secs_f64())]
    Unanswered {
        /// Its address.
        address: String,
        /// How long.
        waited: Duration,
    },
    /// Plain text to another host.
    #[error("the connection to the manager at {address} needs TLS: it is not on this host")]
    NeedsTls {
        /// Its address.
        address: String,
    },
    /// Not an address.
    #[error("expected HOST:PORT, got `{got}`")]
    Address {
        /// What came.
        got: String,
    },
    /// A file that cannot be used.
    #[error("`{}`: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// What a certificate cannot be made for.
    #[error("expected {expected}, got {got}")]
    Certificate {
        /// What it may be made for.
        expected: String,
        /// What came.
        got: String,
    },
    /// An answer that is not one of ours.
    #[error("the manager at {address} gave an answer that this version does not understand: {reason}")]
    Protocol {
        /// Its address.
        address: String,
        /// What came.
        reason: String,
    },
    /// The caller was interrupted while it waited.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// From a status that came over the wire, or from the transport below it.
    pub(crate) fn from_status(status: &Status, address: &str, waited: Duration) -> Self {
        if let Some(refusal) = Refusal::read(status) {
            return Self::Refused(refusal);
        }
        let address = address.to_owned();
        match status.code() {
            Code::DeadlineExceeded | Code::Cancelled => Self::Unanswered { address, waited },
            Code::Unavailable | Code::Unknown => {
                Self::Unreachable { address, reason: harmless(deepest(status)) }
            }
            Code::ResourceExhausted => Self::Refused(Refusal::busy()),
            code => {
                // Below a source there may be words of whatever listens there.
                let said = if std::error::Error::source(status).is_some() {
                    deepest(status)
                } else {
                    status.message().to_owned()
                };
                Self::Protocol { address, reason: harmless(format!("{code:?}: {said}")) }
            }
        }
    }

    /// Whether another attempt may succeed without any change.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Unanswered { .. } => true,
            Self::Refused(refusal) => {
                matches!(refusal.reason, Reason::Busy | Reason::NotReady | Reason::StaleProof | Reason::State)
            }
            _ => false,
        }
    }

    /// What to do.
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            Self::Refused(refusal) => return refused(refusal.reason).map(str::to_owned),
            Self::NotReady { .. } => {
                "check the job with `penstock job show NAME`; start servers with `penstock server`"
            }
            Self::Untrusted { .. } => {
                "give the CA that signed the manager's certificate: --ca or PENSTOCK_CA"
            }
            Self::Unreachable { .. } => {
                "is `penstock manager` running there? If it has a certificate, name its CA: --ca or PENSTOCK_CA"
            }
            Self::Unanswered { .. } => "is the network down? `penstock job list` asks again",
            Self::NeedsTls { .. } => {
                "name the CA of the manager's certificate: --ca or PENSTOCK_CA; --insecure talks to it in plain text"
            }
            Self::Address { .. } => "such as 10.0.0.1:7701 or [fd00::1]:7701",
            Self::File { .. } => "check the path and its permissions",
            Self::Certificate { .. } => {
                "such as `penstock cert --host manager.example --host 10.0.0.1 --name manager`"
            }
            Self::Protocol { .. } => "use the same version of Penstock everywhere",
            Self::Interrupted => return None,
        };
        Some(text.to_owned())
    }
}

fn refused(reason: Reason) -> Option<&'static str> {
    Some(match reason {
        Reason::Token => {
            "tokens are in the manager's state directory (admin.token, server.token); name the file, or set PENSTOCK_ADMIN_TOKEN or PENSTOCK_SERVER_TOKEN; check the manager's address too"
        }
        Reason::JobSecret => {
            "check PENSTOCK_JOB and PENSTOCK_SECRET, which `penstock job create` gave, and PENSTOCK_MANAGER"
        }
        Reason::JobExists => "choose another name, or delete it first with `penstock job delete NAME`",
        Reason::NoSuchJob => "`penstock job list` lists them",
        Reason::Quota => "ask for less memory, delete a job, or start another `penstock server`",
        Reason::Full => "start as many workers as the job was created with",
        Reason::Ended | Reason::Failed => "create a new job with `penstock job create`",
        Reason::Busy | Reason::StaleProof => "wait a moment and try again",
        Reason::State => "check what the manager prints on standard error: its state directory may be full",
        Reason::Invalid => "`penstock job create --help` lists what it takes",
        Reason::NotReady | Reason::UnknownServer => return None,
    })
}

/// The text of the innermost cause: what lies around it says only "transport error".
pub(crate) fn deepest(error: &(dyn std::error::Error + 'static)) -> String {
    let mut inner = error;
    loop {
        if let Some(http) = http2(inner) {
            // Its own text repeats what the other side says as it closes a connection.
            return match (http.reason(), http.get_io()) {
                (Some(reason), _) => reason.to_string(),
                (None, Some(io)) => io.to_string(),
                (None, None) => "the connection broke".to_owned(),
            };
        }
        let Some(source) = inner.source() else { break };
        inner = source;
    }
    let text = inner.to_string();
    match inner.downcast_ref::<Status>() {
        Some(status) if !status.message().is_empty() => status.message().to_owned(),
        _ => text,
    }
}

/// An error of HTTP/2, perhaps within one of input and output, which does not name it as its source.
fn http2<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a h2::Error> {
    let within = || error.downcast_ref::<std::io::Error>()?.get_ref()?.downcast_ref::<h2::Error>();
    error.downcast_ref::<h2::Error>().or_else(within)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_crosses_the_wire_whole() {
        for (reason, _, code) in Reason::ALL {
            let refusal = Refusal::new(reason, "because");
            let status = Status::from(refusal.clone());
            assert_eq!(status.code(), code);
            assert_eq!(Refusal::read(&status), Some(refusal));
        }
    }

    #[test]
    fn no_text_of_a_peer_controls_a_terminal_or_fills_a_log() {
        let text = format!("\u{1b}[2J\r\nall is well\u{9b}{}", "x".repeat(5000));
        let refusal = Status::from(Refusal::new(Reason::Failed, text.clone()));
        let mut errors = vec![Error::from_status(&refusal, "h:1", Duration::ZERO)];
        errors.extend((1..=16).map(|code| {
            let status = Status::new(Code::from(code), text.clone());
            Error::from_status(&status, "h:1", Duration::ZERO)
        }));
        for error in errors {
            let shown = error.to_string();
            assert!(!shown.contains(char::is_control) && shown.len() < 1200, "{shown:?}");
        }
    }
}
