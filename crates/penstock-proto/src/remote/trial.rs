//! Whether it was a parent's fault that a stripe was late.
//!
//! Who is late may be slow itself: then it leaves a parent that is well, and what the home sends it comes no sooner. So a subscriber
//! that leaves its parent as late blames nobody yet. It goes by what the home then brings it: much more in the time, and it was the
//! parent's fault; no more for as long, or until nothing is missing, and it was not. That the little that was missing came soon says
//! nothing: it comes so to a slow one too. The home has to know first that it is to bring something: until it has taken the frame that
//! says so, which stands behind whatever this end is sending, no time counts.

use crate::overlay::Stripes;
use crate::{Rank, TensorId};
use std::time::Duration;

/// Longest time from one look to the next, while something is missing, that counts.
pub(super) const UNLOOKED: Duration = Duration::from_millis(300);
/// How much more the home has to bring in the same time.
const TIMES_BETTER: f64 = 2.0;
/// What comes in less time says nothing of a rate: it may have stood in some buffer.
const LEAST_TIME: Duration = Duration::from_millis(100);

/// What a parent has brought of a stripe before it was left as late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Given {
    /// How long it was waited for.
    pub(super) waited: Duration,
    /// Bytes that it brought in that time.
    pub(super) bytes: u64,
}

/// One that was left.
#[derive(Debug)]
pub(super) struct Trial {
    /// Under which route.
    pub(super) epoch: u32,
    pub(super) parent: Rank,
    /// Those of its stripes that were late.
    pub(super) stripes: Stripes,
    pub(super) given: Given,
    /// Number of the frame in which the home is told; and whether it has taken that.
    pub(super) told: u64,
    pub(super) begun: bool,
    /// When it had, and what had come of the stripes by then.
    pub(super) since: Duration,
    pub(super) start: u64,
    pub(super) looked: Duration,
    /// What was missing: by stripe and tensor, the digest that is to be reached.
    pub(super) missing: Vec<(u32, TensorId, u64)>,
}

impl Trial {
    /// The home has taken so many frames, as of this time, when so much had come of the stripes.
    pub(super) fn taken(&mut self, taken: u64, now: Duration, brought: u64) {
        if !self.begun && taken >= self.told {
            (self.begun, self.since, self.looked, self.start) = (true, now, now, brought);
        }
    }

    /// Whether it was the parent's fault, once that is seen. `brought`: what has come of the stripes; `is_whole`: nothing of what was
    /// missing is any more.
    pub(super) fn look(&mut self, now: Duration, brought: u64, is_whole: bool) -> Option<bool> {
        if !self.begun {
            return None;
        }
        let apart = now.saturating_sub(std::mem::replace(&mut self.looked, now));
        // While nobody looked nothing was taken either.
        if apart > UNLOOKED {
            self.since += apart;
        }
        let (took, bytes) = (now.saturating_sub(self.since), brought - self.start);
        let Given { waited, bytes: given } = self.given;
        let by_home = bytes as f64 * waited.as_secs_f64();
        let is_better = bytes > 0 && by_home > TIMES_BETTER * given as f64 * took.as_secs_f64();
        match is_whole || given == 0 && bytes > 0 || took >= LEAST_TIME {
            true if is_better => Some(true),
            true if is_whole || took >= waited => Some(false),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// When it is seen whose fault it was that a parent brought so much in 800 ms, where the home brings a MiB so many milliseconds apart
    /// of so many that are missing; and whether the parent's.
    fn judged(given: u64, missing: u64, apart: u64) -> (u64, bool) {
        let given = Given { waited: Duration::from_millis(800), bytes: given };
        let stripes = Stripes::default().with(1);
        let (since, looked) = (Duration::from_secs(5), Duration::from_secs(5));
        let (epoch, told, missing_now) = (4, 7, vec![(1, 3, 7)]);
        let mut trial = Trial {
            epoch,
            parent: 2,
            stripes,
            given,
            told,
            begun: true,
            since,
            start: 10,
            looked,
            missing: missing_now,
        };
        (20..10_000)
            .step_by(20)
            .find_map(|after| {
                let came = (after / apart).min(missing);
                let now = since + Duration::from_millis(after);
                Some((after, trial.look(now, 10 + came * MIB, came == missing)?))
            })
            .unwrap()
    }

    #[test]
    fn a_parent_is_to_blame_where_the_home_brings_more() {
        assert_eq!(judged(10 * MIB, 100, 10), (100, true));
        assert_eq!(judged(10 * MIB, 6, 10), (60, true), "all of it, before a rate can be seen");
        assert_eq!(judged(0, 100, 40), (40, true), "one that brought nothing, as soon as anything comes");
    }

    #[test]
    fn nobody_is_to_blame_where_what_the_home_sends_comes_as_slowly() {
        assert_eq!(judged(10 * MIB, 100, 80), (800, false));
        assert_eq!(judged(10 * MIB, 5, 80), (400, false), "half of it was missing");
        // It had a healthy parent blamed.
        assert_eq!(judged(10 * MIB, 2, 80), (160, false), "a fifth, which comes soon, and no faster");
        assert_eq!(judged(0, 1, 1000), (800, false), "nothing comes of the home either");
    }

    #[test]
    fn time_in_which_nobody_looked_does_not_count() {
        let given = Given { waited: Duration::from_millis(800), bytes: MIB };
        let (since, looked) = (Duration::ZERO, Duration::ZERO);
        let stripes = Stripes::default().with(0);
        let (epoch, told, missing) = (1, 7, Vec::new());
        let mut trial =
            Trial { epoch, parent: 2, stripes, given, told, begun: true, since, start: 0, looked, missing };
        assert_eq!(trial.look(Duration::from_secs(60), 0, false), None);
        let mut judged = |millis: u64| trial.look(Duration::from_millis(60_000 + millis), 0, false);
        assert_eq!((judged(200), judged(400), judged(600), judged(800)), (None, None, None, Some(false)));
    }
}
