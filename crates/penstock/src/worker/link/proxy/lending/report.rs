//! What the log says of values that are not shared: seldom.

use penstock_proto::{Rank, TensorId};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time from one time that something is done that is done seldom to the next.
const SELDOM: Duration = Duration::from_secs(60);

/// When something was done last that is done seldom.
pub(super) struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Whether it is to be done now.
    pub(super) fn is_time(&self, now: Instant) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_time = last.is_none_or(|last| now.saturating_duration_since(last) >= SELDOM);
        if is_time {
            *last = Some(now);
        }
        is_time
    }
}

/// Says why values of another worker of this host are kept here once more, or not lent, unless that was said a short while ago: it may
/// be so of each of thousands of tensors.
pub(in super::super) fn not_shared(
    tensor: Option<TensorId>,
    other: Option<Rank>,
    error: &dyn std::fmt::Display,
) {
    static SAID: Seldom = Seldom::new();
    if SAID.is_time(Instant::now()) {
        tracing::warn!(tensor, other, %error, "values are kept more than once on this host");
    } else {
        tracing::debug!(tensor, other, %error, "values are kept more than once on this host");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_be_said_of_each_of_many_tensors_is_said_once_a_minute() {
        let (seldom, now) = (Seldom::new(), Instant::now());
        assert!(seldom.is_time(now) && !seldom.is_time(now + SELDOM / 2));
        assert!(seldom.is_time(now + SELDOM) && !seldom.is_time(now + SELDOM));
    }
}
