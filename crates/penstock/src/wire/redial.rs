//! Connecting again: one attempt after the other, for a thread that looks between two at whether there is still any use.

use super::dial::{DialError, Dialer};
use super::vigil::Vigil;
use penstock_fabric::net::stream::Stream;
use penstock_proto::error::Refusal;
use penstock_proto::handshake::Purpose;
use std::time::{Duration, Instant};

/// Longest single attempt.
const ATTEMPT: Duration = Duration::from_secs(2);
/// Pause between two attempts, and after a connection that ended before it brought anything.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);

/// What an attempt came to that brought no connection.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The server said no.
    Refused(Refusal),
    /// Its certificate is not trusted: why.
    Untrusted(String),
    /// It did not come about now: why. It may after a [pause](PAUSE).
    ForNow(String),
    /// There is no point in another: `is_over` said so.
    GivenUp,
}

/// One attempt, of a thread that keeps a `vigil` over the server: it shows there that this process lives, and what it lacks.
/// `is_over` is asked now and then.
pub(crate) fn redial(
    dialer: &Dialer,
    purpose: Purpose,
    vigil: &mut Vigil,
    is_over: impl Fn() -> bool,
) -> Result<Stream, Failed> {
    let give_up = || {
        vigil.tick();
        is_over()
    };
    match dialer.dial(purpose, Instant::now() + ATTEMPT, &give_up) {
        Ok(stream) => Ok(stream),
        Err(DialError::Refused(refusal)) => Err(Failed::Refused(refusal)),
        Err(DialError::Untrusted(reason)) => Err(Failed::Untrusted(reason)),
        Err(DialError::GivenUp) => Err(Failed::GivenUp),
        Err(DialError::Unreachable(error)) => Err(Failed::ForNow(error.to_string())),
        Err(DialError::Lacking(lack)) => {
            vigil.lacks(Some(lack.clone()));
            Err(Failed::ForNow(lack))
        }
    }
}
