//! When a worker tells a server what it has measured: seldom.

use super::{Gauge, Measured, is_about};
use std::time::Duration;

/// Least time from one report to the next.
const SELDOM: Duration = Duration::from_secs(3);
/// After so long what was measured again is told again, so that it is not forgotten.
const AGAIN: Duration = Duration::from_secs(40);

/// What one server was told.
#[derive(Debug, Default)]
pub struct Reports {
    told: Option<(Duration, u64, Measured)>,
}

impl Reports {
    /// What it is to be told now, if anything: what has changed by more than a quarter, or was said long ago and holds.
    pub fn due(&mut self, now: Duration, gauge: &Gauge) -> Option<Measured> {
        let measured = gauge.measured(now)?;
        if let Some((at, news, before)) = self.told {
            let since = now.saturating_sub(at);
            let is_same = before.to == measured.to
                && is_about(before.sends as f64, measured.sends as f64)
                && is_about(before.takes as f64, measured.takes as f64);
            if since < SELDOM || news == gauge.news() || is_same && since < AGAIN {
                return None;
            }
        }
        self.told = Some((now, gauge.news(), measured));
        Some(measured)
    }

    /// The server is to hear all anew: another connection leads there.
    pub fn forget(&mut self) {
        self.told = None;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Carried, To};
    use super::*;

    #[test]
    fn a_report_is_seldom_and_only_of_what_has_changed_or_was_said_long_ago() {
        let (mut gauge, mut reports, mut told) = (Gauge::default(), Reports::default(), Vec::new());
        let (mut sent, mut busy) = (0, Duration::ZERO);
        for step in 0..6000_u64 {
            let now = Duration::from_millis(20 * step);
            // Twice as fast after a minute.
            let fast = if step < 3000 { 1 } else { 2 };
            sent += fast * 1_000_000;
            busy += Duration::from_millis(20);
            let to = To::Child(1);
            gauge
                .look(now, [(0, Carried { to, sent, received: 0, busy, held: Duration::ZERO, waits: true })]);
            told.extend(reports.due(now, &gauge).map(|measured| (now.as_secs(), measured.sends / 1_000_000)));
        }
        // The third is of a piece that was begun at the old rate.
        let [first, again, _, changed, last] = told[..] else { panic!("{told:?}") };
        assert_eq!((first, again.1, changed.1, last.1), ((0, 50), 50, 100, 100));
        assert!((40..42).contains(&again.0) && (60..66).contains(&changed.0), "{told:?}");
        // Nothing is learnt any more: nothing is said.
        assert_eq!(reports.due(Duration::from_secs(1000), &gauge), None);
        reports.forget();
        assert_eq!(reports.due(Duration::from_secs(1001), &gauge), None, "what it knew is too old");
        assert!(reports.due(Duration::from_secs(121), &gauge).is_some());
    }
}
