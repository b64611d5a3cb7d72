//! Adaptive slack: within a bound that always holds, as much slack as waiting makes worthwhile, in the spirit of dynamic SSP
//! (Zhao et al. 2019, whose server picks each worker's threshold from a range so that its predicted waiting is least).
//!
//! Slack costs convergence and saves waiting. A worker measures how much of each iteration it spent waiting. While that is a
//! noticeable part, its slack grows, by as many iterations as it waited for; when waiting has vanished for some iterations, it
//! shrinks by one. Waiting that comes back right after doubles the patience before the next try, so that the slack neither
//! flutters nor sticks. If a worker is permanently slower, no slack helps for long: the fast ones only run ahead to the bound
//! and wait there. A worker that still waits at the bound for long goes back to the least slack, and tries again later.
//!
//! No clock is read here: durations come from outside.

use crate::consistency::MAX_SLACK;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Where slack may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Adaptive {
    /// Least slack.
    pub min: u32,
    /// Most: what a read never exceeds.
    pub max: u32,
}

/// Bounds that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected bounds of an adaptive slack as `MIN:MAX`, MIN at most MAX, at most {MAX_SLACK}, got `{got}`"
)]
pub struct ParseAdaptiveError {
    got: String,
}

impl fmt::Display for Adaptive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.min, self.max)
    }
}

impl FromStr for Adaptive {
    type Err = ParseAdaptiveError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |digits: &str| digits.parse().ok().filter(|&slack: &u32| slack <= MAX_SLACK);
        let bounds = text.split_once(':').and_then(|(min, max)| Some((number(min)?, number(max)?)));
        match bounds {
            Some((min, max)) if min <= max => Ok(Self { min, max }),
            _ => Err(ParseAdaptiveError { got: text.to_owned() }),
        }
    }
}

/// Part of an iteration from which on waiting is noticeable, and below which it has vanished.
const NOTICEABLE: f64 = 0.10;
const VANISHED: f64 = 0.02;
/// Weight of the last iteration in the average.
const LAST: f64 = 0.4;
/// Iterations without waiting before slack shrinks: at first, and at most.
const PATIENCE: (u32, u32) = (8, 128);
/// Iterations of waiting at the bound before slack is given up, and before it is tried again.
const GIVE_UP: u32 = 48;
const TRY_AGAIN: u32 = 192;

/// Chooses the slack of one worker's reads.
#[derive(Debug, Clone)]
pub struct Controller {
    settings: Adaptive,
    slack: u32,
    /// Waited in this iteration.
    waited: Duration,
    /// Average part of an iteration that was spent waiting.
    share: f64,
    /// Iterations without waiting; since slack last shrank; of waiting at the bound.
    calm: u32,
    since_shrunk: u32,
    at_bound: u32,
    patience: u32,
    /// Iterations for which slack is not tried.
    rest: u32,
}

impl Controller {
    /// Starts with the least slack.
    pub fn new(settings: Adaptive) -> Self {
        Self {
            settings,
            slack: settings.min,
            waited: Duration::ZERO,
            share: 0.0,
            calm: 0,
            since_shrunk: u32::MAX,
            at_bound: 0,
            patience: PATIENCE.0,
            rest: 0,
        }
    }

    /// The slack in force.
    pub fn slack(&self) -> u32 {
        self.slack
    }

    /// A read has waited.
    pub fn waited(&mut self, waited: Duration) {
        self.waited = self.waited.saturating_add(waited);
    }

    /// An iteration is complete, waiting included.
    pub fn iteration(&mut self, took: Duration) {
        let waited = std::mem::take(&mut self.waited).min(took);
        if took.is_zero() {
            return;
        }
        let now = waited.as_secs_f64() / took.as_secs_f64();
        self.share += LAST * (now - self.share);
        self.since_shrunk = self.since_shrunk.saturating_add(1);
        if self.rest > 0 {
            self.rest -= 1;
            return;
        }
        if self.share > NOTICEABLE && now > NOTICEABLE {
            self.grow(waited, took - waited);
        } else if self.share < VANISHED {
            self.shrink();
        } else {
            self.calm = 0;
        }
    }

    fn grow(&mut self, waited: Duration, worked: Duration) {
        self.calm = 0;
        if self.since_shrunk < self.patience {
            self.patience = (2 * self.patience).min(PATIENCE.1);
        }
        if self.slack == self.settings.max {
            self.at_bound += 1;
            if self.at_bound >= GIVE_UP {
                (self.slack, self.at_bound, self.rest) = (self.settings.min, 0, TRY_AGAIN);
            }
            return;
        }
        // So many iterations more would have fitted into the waiting; at most twice the slack at once.
        let missing = (waited.as_secs_f64() / worked.as_secs_f64().max(1e-9)).ceil();
        let step = (missing as u32).clamp(1, self.slack.max(1));
        self.slack = self.slack.saturating_add(step).min(self.settings.max);
    }

    fn shrink(&mut self) {
        self.at_bound = 0;
        self.calm += 1;
        if self.calm >= self.patience && self.slack > self.settings.min {
            self.slack -= 1;
            (self.calm, self.since_shrunk) = (0, 0);
        } else if self.calm >= 2 * self.patience {
            // Calm for long at the least: the next trouble is met with fresh patience.
            self.patience = PATIENCE.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SETTINGS: Adaptive = Adaptive { min: 0, max: 16 };

    fn run(controller: &mut Controller, iterations: u32, waited: impl Fn(u32, u32) -> u64) -> Vec<u32> {
        let step = |at| {
            let waited = waited(at, controller.slack());
            controller.waited(Duration::from_millis(waited));
            controller.iteration(Duration::from_millis(100 + waited));
            controller.slack()
        };
        (0..iterations).map(step).collect()
    }

    proptest! {
        #[test]
        fn slack_stays_between_its_bounds_whatever_is_measured(
            min in 0u32..5, more in 0u32..30, times in prop::collection::vec((0u64..5000, 0u64..5000), 0..400),
        ) {
            let settings = Adaptive { min, max: min + more };
            let mut controller = Controller::new(settings);
            for (waited, took) in times {
                controller.waited(Duration::from_micros(waited));
                controller.iteration(Duration::from_micros(took));
                prop_assert!((settings.min..=settings.max).contains(&controller.slack()));
            }
        }

        #[test]
        fn without_waiting_slack_ends_at_the_least(before in prop::collection::vec(0u64..400, 0..60)) {
            let mut controller = Controller::new(SETTINGS);
            run(&mut controller, before.len() as u32, |at, _| before[at as usize]);
            run(&mut controller, 20 * PATIENCE.1 + TRY_AGAIN, |_, _| 0);
            prop_assert_eq!(controller.slack(), 0);
        }
    }

    #[test]
    fn bounds_read_back_and_nonsense_is_refused() {
        let bounds = Adaptive { min: 2, max: 9 };
        assert_eq!(bounds.to_string().parse(), Ok(bounds));
        for text in ["", "3", "3:2", "a:4", "0:-1", "0:99999999999"] {
            assert!(text.parse::<Adaptive>().is_err(), "{text}");
        }
    }

    #[test]
    fn equal_workers_keep_the_least_slack() {
        let slacks = run(&mut Controller::new(SETTINGS), 200, |at, _| u64::from(at % 7 == 0));
        assert!(slacks.iter().all(|slack| *slack == 0), "{slacks:?}");
    }

    #[test]
    fn slack_grows_to_what_removes_the_waiting_and_stays_near() {
        // A straggler that is up to 6 iterations late, by chance: less slack than that waits.
        let mut controller = Controller::new(SETTINGS);
        let slacks = run(&mut controller, 600, |_, slack| 40 * u64::from(6u32.saturating_sub(slack)));
        let late = &slacks[300..];
        assert!(late.iter().all(|slack| (4..=8).contains(slack)), "{late:?}");
        let moves = late.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!(moves < 30, "it flutters: {late:?}");
    }

    #[test]
    fn when_the_straggler_has_recovered_slack_comes_down() {
        let mut controller = Controller::new(SETTINGS);
        run(&mut controller, 60, |_, slack| 30 * u64::from(8u32.saturating_sub(slack)));
        assert!(controller.slack() >= 6);
        run(&mut controller, 2000, |_, _| 0);
        assert_eq!(controller.slack(), 0);
    }

    #[test]
    fn against_a_worker_that_is_slower_for_good_slack_is_given_up_for_a_while() {
        let slacks = run(&mut Controller::new(SETTINGS), 200, |_, _| 100);
        assert_eq!(slacks.iter().max(), Some(&16));
        assert_eq!(slacks.last(), Some(&0), "staleness that saves nothing is not paid for");
    }
}
