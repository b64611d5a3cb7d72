//! Whether a worker sets rows so fast that it pays to leave them to the relay's thread, which sends those of many calls at once:
//! each call that sends takes some microseconds for it.

use std::time::{Duration, Instant};

/// So many calls, each of which sent something, within that time of the first of them are a burst. A worker that waits for an answer
/// between its sets makes fewer: a round trip takes tens of microseconds.
const CALLS: u32 = 16;
const WITHIN: Duration = Duration::from_micros(300);
/// It is over once nothing was sent for so long: several times what a wake-up costs.
const OVER_AFTER: Duration = Duration::from_micros(100);

/// While one lasts the thread looks for this worker's rows without a pause. Until it announces that it stops, no call needs to
/// ring for it.
#[derive(Default)]
pub(super) struct Burst {
    /// Calls that have sent something since `began`, when the first of them did.
    calls: u32,
    began: Option<Instant>,
    /// How often something had been sent when that was last seen to grow, and when that was; `None` where there is no burst.
    lasts: Option<(u64, Instant)>,
}

impl Burst {
    pub(super) fn lasts(&self) -> bool {
        self.lasts.is_some()
    }

    /// A call has sent what it has set, the last of so many `sends`.
    pub(super) fn called(&mut self, sends: u64, now: Instant) {
        if self.began.is_none_or(|began| now - began >= WITHIN) {
            (self.began, self.calls) = (Some(now), 0);
        }
        self.calls += 1;
        if self.calls == CALLS {
            (self.began, self.lasts) = (None, Some((sends, now)));
        }
    }

    /// The thread has looked, after which something has been sent so often: whether it is to look again.
    pub(super) fn goes_on(&mut self, sends: u64, now: impl FnOnce() -> Instant) -> bool {
        let Some((seen, since)) = self.lasts else { return false };
        let now = now();
        if seen != sends {
            self.lasts = Some((sends, now));
        } else if now - since >= OVER_AFTER {
            self.end();
        }
        self.lasts()
    }

    pub(super) fn end(&mut self) {
        self.lasts = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls that sent something, each so long after the last, the first just after `start`; whether it is a burst then.
    fn called(burst: &mut Burst, start: Instant, calls: u32, apart: Duration) -> bool {
        let mut now = start;
        for call in 0..calls {
            burst.called(call.into(), now);
            now += apart;
        }
        burst.lasts()
    }

    #[test]
    fn calls_are_a_burst_if_enough_of_them_come_quickly_enough() {
        let start = Instant::now();
        assert!(!called(&mut Burst::default(), start, CALLS - 1, Duration::ZERO));
        assert!(called(&mut Burst::default(), start, CALLS, WITHIN / CALLS));
        assert!(!called(&mut Burst::default(), start, 10 * CALLS, WITHIN / (CALLS - 1)));
        for earlier in [1, CALLS - 1, CALLS] {
            let mut burst = Burst::default();
            assert!(!called(&mut burst, start, earlier, WITHIN));
            let later = start + CALLS * WITHIN;
            assert!(called(&mut burst, later, CALLS, Duration::ZERO), "those before count no longer");
        }
    }

    #[test]
    fn a_burst_is_over_when_nothing_was_sent_for_a_while() {
        let start = Instant::now();
        let mut burst = Burst::default();
        assert!(!burst.goes_on(0, || start));
        assert!(called(&mut burst, start, CALLS, Duration::ZERO));
        let sends = u64::from(CALLS) - 1;
        let short = OVER_AFTER - Duration::from_nanos(1);
        assert!(burst.goes_on(sends, || start + short));
        assert!(burst.goes_on(sends + 1, || start + OVER_AFTER), "something was sent");
        assert!(burst.goes_on(sends + 1, || start + OVER_AFTER + short));
        assert!(!burst.goes_on(sends + 1, || start + 2 * OVER_AFTER));
        assert!(!burst.goes_on(sends + 2, || start + 2 * OVER_AFTER), "it begins with calls alone");
    }
}
