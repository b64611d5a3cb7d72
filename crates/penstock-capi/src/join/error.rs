//! Why a process did not join its job. No job was joined, no server is left behind.

use crate::status::{penstock_status, start};
use penstock::environment::Stray;
use penstock::server::StartError;
use penstock::user_directory::NoDirectory;
use penstock::worker::Error;
use penstock_fabric::net::endpoint::NoEndpoint;
use penstock_join::introduce::Disagreement;
use penstock_join::launcher::BadVariable;
use penstock_join::tcp::{Cause, NoRendezvousAddress, RendezvousError, RoundError};
use penstock_join::way::NoWay;
use std::time::Duration;

const HOW_TO_LIST_SERVERS: &str =
    "PENSTOCK_SERVERS lists them, separated by commas, such as tcp://10.0.0.1:7700,tcp://10.0.0.2:7700";
const HOW_TO_NAME_SERVERS: &str = "give every process PENSTOCK_SECRET and PENSTOCK_RENDEZVOUS=HOST:PORT, where HOST is rank 0's; or start servers with `penstock-server`, and give every process PENSTOCK_SERVERS and PENSTOCK_SECRET";

/// Why a process did not join its job.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum JoinError {
    /// What the core says.
    #[error(transparent)]
    Core(#[from] Error),
    /// What the environment says.
    #[error(transparent)]
    Variable(#[from] BadVariable),
    /// A variable that is nearly one of ours.
    #[error("{0}")]
    Misspelled(Stray),
    /// No way in.
    #[error(transparent)]
    NoWay(#[from] NoWay),
    /// A server's name that is not valid.
    #[error("{what}")]
    BadServer { what: NoEndpoint },
    /// A rank by hand, and nothing to meet at.
    #[error("PENSTOCK_SIZE says that {size} processes were started, but PENSTOCK_SERVERS names no servers")]
    NoServers { size: u32 },
    /// What the manager says, or that it does not answer.
    #[error(transparent)]
    Manager(#[from] penstock_control::Error),
    /// Some are elsewhere.
    #[error(
        "{announced_by} says that {size} processes were started, some of them on other hosts, but PENSTOCK_SERVERS names no servers"
    )]
    SeveralHosts { size: u32, announced_by: &'static str },
    /// The directory in which processes meet.
    #[error(transparent)]
    Directory(#[from] NoDirectory),
    /// Rank 0's server.
    #[error("the job's server could not be started: {0}")]
    Server(StartError),
    /// What rank 0 has left for the others.
    #[error("rank 0 could not join: {reason}")]
    RankZero { reason: String },
    /// What is not a rendezvous address.
    #[error(transparent)]
    NoRendezvousAddress(#[from] NoRendezvousAddress),
    /// Where processes meet.
    #[error(transparent)]
    Round(#[from] RoundError),
    /// What they say of themselves.
    #[error(transparent)]
    Disagreement(#[from] Disagreement),
    /// The other hosts cannot reach this one.
    #[error("this host has no address but loopback, so the job's other hosts cannot reach its server")]
    NoAddress,
    /// Not all came.
    #[error("waited {waited:.1?} for {} of {size} to call penstock_init(){}", ranks(missing), because(cause.as_ref()))]
    Late { missing: Vec<u32>, size: u32, waited: Duration, cause: Option<Cause> },
    /// The system.
    #[error("could not {what}: {reason}")]
    System { what: &'static str, reason: String },
}

impl From<RendezvousError> for JoinError {
    fn from(error: RendezvousError) -> Self {
        Self::Round(error.into())
    }
}

/// What went wrong where processes meet.
fn met(error: &RoundError) -> penstock_status {
    use penstock_status::*;
    match error {
        RoundError::Rendezvous(error) => match error {
            RendezvousError::NoAddress { .. }
            | RendezvousError::OtherSize { .. }
            | RendezvousError::TooMany { .. } => PENSTOCK_BAD_OPTION,
            RendezvousError::Taken { .. } => PENSTOCK_JOB_FULL,
            RendezvousError::Unresolved { .. }
            | RendezvousError::Late { .. }
            | RendezvousError::Undecided { .. } => PENSTOCK_DEADLINE_EXCEEDED,
            RendezvousError::InUse { .. } => PENSTOCK_ADDRESS_IN_USE,
            RendezvousError::OtherSecret { .. } => PENSTOCK_AUTHENTICATION,
            RendezvousError::Left { .. } | RendezvousError::Changed { .. } => PENSTOCK_PROTOCOL,
            _ => PENSTOCK_SYSTEM,
        },
        RoundError::Late { .. } => PENSTOCK_DEADLINE_EXCEEDED,
        RoundError::Failed { .. } => PENSTOCK_JOB_FAILED,
        RoundError::Verdict(_) | RoundError::TooLong { .. } => PENSTOCK_PROTOCOL,
    }
}

/// Why rank 0 was not reached, or could not let all in, if that is known.
fn because(cause: Option<&Cause>) -> String {
    cause.map_or_else(String::new, |cause| format!(": {cause}"))
}

fn ranks(missing: &[u32]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = missing.iter().take(SHOWN).map(u32::to_string).collect();
    let more = missing.len().saturating_sub(SHOWN);
    let plural = if missing.len() == 1 { "" } else { "s" };
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("rank{plural} {}{rest}", shown.join(", "))
}

/// What the environment says that cannot be.
fn variable(error: &BadVariable) -> penstock_status {
    use penstock_status::*;
    match error {
        BadVariable::NoNumber { .. }
        | BadVariable::NoSecret { .. }
        | BadVariable::NoWorkersThere { .. }
        | BadVariable::NoTopology { .. } => PENSTOCK_BAD_OPTION,
        BadVariable::OutOfSize { .. } => PENSTOCK_JOB_FULL,
        BadVariable::NoRank { .. } | BadVariable::NoSize { .. } | BadVariable::RendezvousAlone => {
            PENSTOCK_NOT_UNDER_LAUNCHER
        }
    }
}

/// A manager's error.
fn asked(error: &penstock_control::Error) -> penstock_status {
    use penstock_control::{Error, Reason};
    use penstock_status::*;
    match error {
        Error::Refused(refusal) => match refusal.reason {
            Reason::JobSecret | Reason::Token => PENSTOCK_AUTHENTICATION,
            Reason::Full => PENSTOCK_JOB_FULL,
            Reason::Invalid => PENSTOCK_BAD_OPTION,
            Reason::Ended => PENSTOCK_JOB_CLOSED,
            Reason::Failed => PENSTOCK_JOB_FAILED,
            Reason::NotReady => PENSTOCK_CONNECT_TIMEOUT,
            _ => PENSTOCK_SYSTEM,
        },
        Error::NotReady { .. } | Error::Unreachable { .. } | Error::Unanswered { .. } => {
            PENSTOCK_CONNECT_TIMEOUT
        }
        Error::Untrusted { .. } => PENSTOCK_AUTHENTICATION,
        Error::NeedsTls { .. } | Error::Address { .. } | Error::File { .. } | Error::Certificate { .. } => {
            PENSTOCK_BAD_OPTION
        }
        Error::Protocol { .. } => PENSTOCK_PROTOCOL,
        _ => PENSTOCK_SYSTEM,
    }
}

impl JoinError {
    pub(crate) fn status(&self) -> penstock_status {
        use penstock_status::*;
        match self {
            Self::Manager(error) => asked(error),
            Self::Round(error) => met(error),
            Self::Disagreement(Disagreement::Foreign { .. } | Disagreement::NoServer { .. }) => {
                PENSTOCK_PROTOCOL
            }
            Self::Variable(error) | Self::NoWay(NoWay::Variable(error)) => variable(error),
            Self::NoRendezvousAddress(_) | Self::NoAddress => PENSTOCK_BAD_OPTION,
            Self::BadServer { .. } | Self::Misspelled(_) => PENSTOCK_BAD_OPTION,
            Self::Server(error) => start(error),
            Self::RankZero { .. } => PENSTOCK_JOB_FAILED,
            Self::Late { .. } => PENSTOCK_DEADLINE_EXCEEDED,
            Self::Directory(_) | Self::System { .. } | Self::Core(_) => PENSTOCK_SYSTEM,
            _ => PENSTOCK_NOT_UNDER_LAUNCHER,
        }
    }

    pub(crate) fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Core(error) => return error.hint(),
            Self::Server(error) => return error.hint(),
            Self::Manager(error) => return error.hint(),
            Self::Variable(error) => error.hint(),
            Self::NoWay(error) => error.hint(),
            Self::NoRendezvousAddress(error) => error.hint().to_owned(),
            Self::Round(RoundError::Rendezvous(error)) => return error.hint().map(str::to_owned),
            Self::Round(RoundError::Failed { .. }) => {
                "see the output of the process that it names".to_owned()
            }
            Self::Round(_) => "is another program there?".to_owned(),
            Self::Disagreement(error) => error.hint().to_owned(),
            Self::NoAddress => {
                "set PENSTOCK_ADDRESS on this host to the address by which the others reach it".to_owned()
            }
            Self::Misspelled(stray) => return stray.hint(),
            Self::BadServer { what } => what.hint().unwrap_or_else(|| HOW_TO_LIST_SERVERS.to_owned()),
            Self::NoServers { .. } | Self::SeveralHosts { .. } => HOW_TO_NAME_SERVERS.to_owned(),
            Self::Directory(NoDirectory { path, .. }) => {
                format!(
                    "{} must be a directory of this user that nobody else can enter (mode 0700)",
                    path.display()
                )
            }
            Self::RankZero { .. } => "see its output".to_owned(),
            Self::Late { cause: Some(cause), .. } => cause.hint().to_owned(),
            Self::Late { .. } => {
                "check what they do or print, or raise the option `deadline` (PENSTOCK_DEADLINE)".to_owned()
            }
            Self::System { .. } => "run `penstock doctor` on this host".to_owned(),
        };
        Some(hint)
    }
}
