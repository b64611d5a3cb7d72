//! Connecting again, for a thread that keeps a connection to a server: until one stands, the server is gone, or it is not wanted
//! any more. When the next attempt is due [`penstock_proto::redial`] says, and [`Vigil`] when a server counts as lost.

use super::dial::{DialError, Dialer};
use super::vigil::Vigil;
use penstock_fabric::net::stream::Stream;
use penstock_proto::Rank;
use penstock_proto::error::{JobFailure, Refusal};
use penstock_proto::handshake::Purpose;
use penstock_proto::redial::{self, Next, Pauses};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest single attempt.
const ATTEMPT: Duration = Duration::from_secs(2);
/// Pause between two attempts, and after a connection that ended before it brought anything.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);

/// The thread that connects.
pub(crate) trait Caller {
    /// Whether it has other things to do than to connect.
    fn is_over(&self) -> bool;
    /// Sleeps, at most for `longest`; it may wake up earlier, for whatever reason.
    fn sleep(&self, longest: Duration);
    /// Is told that an attempt has failed; whether there is any point in another.
    fn goes_on(&self) -> bool {
        true
    }
}

/// Why there is no connection.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The server said no.
    Refused(Refusal),
    /// Its certificate is not trusted: why.
    Untrusted(String),
    /// Nothing came from the server for a lease, on any connection; why the last attempt failed, if one has.
    Gone(Option<String>),
    /// The caller has other things to do, or sees no point in another attempt.
    GivenUp,
}

impl Failed {
    /// Why the job ends with this for a thread of worker `rank` that works for `server` and keeps this `vigil`. `None` if that is
    /// not for the thread to say: on a refusal, the link's own thread hears whether the job has ended there, and why. A peer that
    /// is gone is called `part`, and `place` says on which connection that showed, if that matters.
    pub(crate) fn failure(
        self,
        vigil: &Vigil,
        (server, rank): (u32, Rank),
        part: &str,
        place: &str,
    ) -> Option<JobFailure> {
        match self {
            Self::Untrusted(reason) => {
                let reason = format!("its certificate is not trusted: {reason}");
                Some(JobFailure::ServerLost { server, reason })
            }
            Self::Gone(_) => {
                let reason = format!("{part} {}{place}", vigil.epitaph());
                Some(vigil.verdict(server, rank, reason))
            }
            Self::Refused(_) | Self::GivenUp => None,
        }
    }
}

/// The connection of one thread to a server, made again and again.
pub(crate) struct Redial {
    dialer: Arc<Dialer>,
    purpose: Purpose,
    rule: redial::Redial,
    since: Instant,
    /// Why the last attempt failed, or the last connection ended.
    reason: Option<String>,
}

impl Redial {
    pub(crate) fn new(dialer: Arc<Dialer>, purpose: Purpose) -> Self {
        let rule = redial::Redial::new(Pauses::even(PAUSE));
        Self { dialer, purpose, rule, since: Instant::now(), reason: None }
    }

    /// Connects, however many attempts it takes. The thread keeps a `vigil` over the server: it shows there that this process
    /// lives, and what it lacks; `sign` counts what came of the server on all connections so far. What the server said no to may
    /// be tried again.
    pub(crate) fn connect(
        &mut self,
        vigil: &mut Vigil,
        sign: u64,
        caller: &impl Caller,
    ) -> Result<Stream, Failed> {
        loop {
            if caller.is_over() {
                return Err(Failed::GivenUp);
            }
            if vigil.is_gone(sign) {
                return Err(Failed::Gone(self.reason.clone()));
            }
            match self.rule.next(self.since.elapsed()) {
                Next::Attempt => {}
                Next::Pause(pause) => {
                    caller.sleep(pause);
                    continue;
                }
                Next::TooLate => unreachable!("there is no deadline but the vigil's"),
            }
            let give_up = || {
                vigil.tick();
                caller.is_over()
            };
            let mut lack = None;
            let (reason, failed) = match self.dialer.dial(self.purpose, Instant::now() + ATTEMPT, &give_up) {
                Ok(stream) => {
                    vigil.connected();
                    return Ok(stream);
                }
                Err(DialError::GivenUp) => return Err(Failed::GivenUp),
                Err(DialError::Refused(refusal)) => (refusal.to_string(), Some(Failed::Refused(refusal))),
                // The server has let this worker in before: whoever this is, it is not the server, which may still come back.
                Err(DialError::Unproved(refusal)) => {
                    tracing::debug!(address = %self.dialer.address(), %refusal, "refused without a proof");
                    ("what answers there does not prove that it is the server".to_owned(), None)
                }
                Err(DialError::Untrusted(why)) => (why.clone(), Some(Failed::Untrusted(why))),
                Err(DialError::Unreachable(error)) => (error.to_string(), None),
                Err(DialError::Lacking(what)) => {
                    lack = Some(what.clone());
                    (what, None)
                }
            };
            // A shortage that has passed is not why the server cannot be reached.
            vigil.lacks(lack);
            if self.reason.as_ref() != Some(&reason) {
                tracing::info!(address = %self.dialer.address(), reason, "a connection could not be made");
            }
            self.ended(false, reason);
            if let Some(failed) = failed {
                return Err(failed);
            }
            if !caller.goes_on() {
                return Err(Failed::GivenUp);
            }
        }
    }

    /// The connection has ended, for this reason; whether it had `brought` something.
    pub(crate) fn ended(&mut self, brought: bool, reason: impl Into<String>) {
        self.reason = Some(reason.into());
        self.rule.ended(brought, self.since.elapsed());
    }
}
