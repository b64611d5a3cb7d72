//! Why a server did not start, and what to do about it.

use crate::limits::explain_io;
use penstock_fabric::net::tls::TlsError;
use penstock_fabric::socket::ListenError;

/// Why a server did not start.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Its socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A number is out of range.
    #[error("expected {expected}, got {got} {what}")]
    OutOfRange {
        /// Of what.
        what: &'static str,
        /// The range.
        expected: String,
        /// What came.
        got: u32,
    },
    /// A network address.
    #[error("the server could not listen on {address}: {reason}")]
    Bind {
        /// The address.
        address: String,
        /// What the system said.
        reason: String,
    },
    /// Certificate or key.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A certificate without its key, or the other way round.
    #[error("expected both of the options `certificate` and `key`, or neither, got one of them")]
    HalfCertificate,
    /// There is a job of this name behind the same acceptor.
    #[error("this server already hosts a job named {name:?}")]
    JobExists {
        /// The name.
        name: String,
    },
    /// The system refused a thread, a descriptor or memory.
    #[error("the server could not {what}: {reason}")]
    System {
        /// What it tried.
        what: &'static str,
        /// What the system said.
        reason: String,
    },
}

impl StartError {
    /// What to do.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Listen(ListenError::InUse { .. }) => {
                Some("give each server a socket path of its own".to_owned())
            }
            Self::Listen(ListenError::PathTooLong { .. }) => {
                Some("choose a shorter directory, such as one under /tmp".to_owned())
            }
            Self::Listen(ListenError::NoSocket { .. }) => {
                Some("give a path where nothing exists, or a socket that a server has left behind".to_owned())
            }
            Self::Listen(ListenError::NoLock { .. }) => {
                Some("give another path, beside which nothing of that name is".to_owned())
            }
            Self::Listen(ListenError::System { .. }) => {
                Some("the directory must exist and be writable".to_owned())
            }
            Self::OutOfRange { .. } | Self::JobExists { .. } => None,
            Self::Bind { .. } => {
                Some("choose an address of this host, and a port that is free (0: any)".to_owned())
            }
            Self::Tls(_) | Self::HalfCertificate => {
                Some("`penstock cert` makes a certificate authority, certificates and keys".to_owned())
            }
            Self::System { .. } => Some("run `penstock doctor` on this host".to_owned()),
        }
    }

    /// What the system said when `what` was tried, with the limit that was reached, if it was one.
    pub(crate) fn system<E: Into<std::io::Error>>(what: &'static str) -> impl Fn(E) -> Self {
        move |error| Self::System { what, reason: explain_io(&error.into()) }
    }

    pub(crate) fn thread(error: std::io::Error) -> Self {
        Self::system("start a thread")(error)
    }
}
