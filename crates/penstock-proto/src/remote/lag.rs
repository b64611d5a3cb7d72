//! How far a subscriber is behind what its home says that it should hold by now, and when that is its parent's fault.
//!
//! The home says so directly, whenever it publishes, in a few bytes. So a subscriber that others feed knows that something is
//! missing, however its parents fail: they die, they hang, they are slow, or never got it themselves. What is missing may still be under
//! way. A stripe is *late* when what should have been there by some time is not, and
//!
//! - nothing of the stripe has come for a while, or
//! - for as long, what comes takes six times as long for each byte as it usually does.
//!
//! A subscriber waits longer the farther it is from the home: so of a whole subtree that starves its highest node leaves its parent
//! first, is fed by the home, and feeds the others again before their time has come.

use super::trial::{Given, Trial, UNLOOKED};
use crate::overlay::{MAX_STRIPES, Stripes};
use crate::{Rank, TensorId};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a stripe of which something is missing may bring nothing.
const QUIET: Duration = Duration::from_millis(400);
/// The same as long as nothing was ever waited for: connections open slowly, and hosts begin at different times.
const QUIET_AT_FIRST: Duration = Duration::from_secs(2);
/// So much longer for each edge from the home, up to so many.
const AN_EDGE: Duration = Duration::from_millis(200);
const MOST_EDGES: u32 = 16;
/// How long a stripe may bring nothing that another parent feeds than did before, until what is missing is asked of the home: the new
/// one passes on what comes to it from now on, and the old one may have owed something of before.
const QUIET_BEHIND_ANOTHER: Duration = Duration::from_millis(100);
/// So long something may come to be known to be missing that the old one owed: the home says so with the next thing that it sends.
const OWED_WITHIN: Duration = Duration::from_secs(2);
/// How long it may not be seen that all has come, though something goes on coming.
const DOUBT: Duration = Duration::from_secs(30);
/// How many times what is usual a byte may take.
const TIMES_USUAL: f64 = 6.0;
/// What brought less than this says nothing of how long a byte takes: it may have stood in some buffer.
const LEAST_BYTES: u64 = 1 << 20;
/// Nothing takes less, as far as can be seen from one look to the next.
const LEAST_TIME: f64 = 0.02;

/// What is missing of one stripe of one tensor.
#[derive(Debug, Clone, Copy)]
struct Missing {
    /// The digest that was to be reached when this began to be waited for; and since when, once the time is known.
    mark: u64,
    since: Option<Duration>,
    /// What had come of the stripe by then, in bytes.
    start: u64,
    /// The newest.
    told: u64,
}

/// What is missing of all that others feed.
#[derive(Debug, Default)]
pub(super) struct Lag {
    missing: BTreeMap<(u32, TensorId), Missing>,
    /// By stripe: when something of it came last.
    came: Vec<Duration>,
    moved: Stripes,
    /// When it was last looked at.
    looked: Duration,
    /// By stripe: bytes that ever came.
    brought: Vec<u64>,
    /// Whether what was waited for ever came.
    met: bool,
    /// By stripe and tensor that something is told of: when it was last seen that all has come.
    whole: BTreeMap<(u32, TensorId), Option<Duration>>,
    /// Seconds that a byte takes.
    usual: Option<f64>,
    /// By stripe that another parent feeds than did before: since when, once the time is known.
    handed_over: BTreeMap<usize, Option<Duration>>,
    /// Those of them of which the home is to be told what is held.
    owed: Stripes,
    /// By stripe that was late at the last look: what its parent had brought.
    given: BTreeMap<usize, Given>,
    /// Parents that were left as late, of which it is not known yet whether that was their fault.
    trials: Vec<Trial>,
}

/// Whether a digest has reached another: both only grow, modulo 2^64.
fn reaches(held: u64, told: u64) -> bool {
    held.wrapping_sub(told) < 1 << 63
}

/// What a byte took, where so much says anything.
fn a_byte(took: Duration, bytes: u64) -> Option<f64> {
    (bytes >= LEAST_BYTES).then(|| took.as_secs_f64().max(LEAST_TIME) / bytes as f64)
}

/// Something came, in so long and so much. What is slower counts for more: who waits too long for a slow parent loses less than who
/// leaves a good one. But one that became slow in the middle of something must still be slow in the next: no more than twice the usual
/// is learnt of it.
fn learn(usual: &mut Option<f64>, took: Duration, bytes: u64) {
    let Some(now) = a_byte(took, bytes) else { return };
    *usual = Some(match *usual {
        None => now,
        Some(usual) if now > usual => usual + (now.min(2.0 * usual) - usual) / 4.0,
        Some(usual) => usual + (now - usual) / 8.0,
    });
}

/// A parent is left for what came so slowly. If that is how it is from now on, nobody is left for it again.
fn resign(usual: &mut Option<f64>, took: Duration, bytes: u64) {
    if let (Some(usual), Some(now)) = (usual, a_byte(took, bytes)) {
        *usual = (*usual + now) / 2.0;
    }
}

impl Lag {
    /// A new connection, or another cut into stripes: nothing is known to be missing.
    pub(super) fn clear(&mut self) {
        self.whole.clear();
        self.missing.clear();
        self.handed_over.clear();
        self.owed = Stripes::default();
        self.trials.clear();
    }

    /// A new route: what is missing is still missing, and the new parents have all the time that there is for it.
    pub(super) fn reroute(&mut self) {
        self.begin_again();
        // Who has left a parent may stand at one again soon: what comes then is not the home's alone.
        self.trials.clear();
    }

    fn begin_again(&mut self) {
        self.missing.values_mut().for_each(|missing| missing.since = None);
    }

    /// Nothing more is taken of these now: what is missing is waited for anew.
    pub(super) fn hold(&mut self, stripes: Stripes) {
        self.moved = self.moved.or(stripes);
        let held = self.missing.iter_mut().filter(|((stripe, _), _)| stripes.has(*stripe as usize));
        held.for_each(|(_, missing)| missing.since = None);
    }

    /// Nothing is waited for of these any more.
    pub(super) fn forget(&mut self, stripes: Stripes) {
        self.missing.retain(|&(stripe, _), _| !stripes.has(stripe as usize));
        self.whole.retain(|&(stripe, _), _| !stripes.has(stripe as usize));
        self.handed_over.retain(|stripe, _| !stripes.has(*stripe));
        self.owed = self.owed.without(stripes);
    }

    /// The parent of these stripes is left as late, under this route: the home feeds them once it has taken the frame of this number,
    /// `told`. Before they are forgotten. Whether it will be seen whose fault that was: nothing is, where none of them was late.
    pub(super) fn try_parent(&mut self, epoch: u32, parent: Rank, stripes: Stripes, told: u64) -> bool {
        let late: Stripes = stripes.iter().filter(|stripe| self.given.contains_key(stripe)).collect();
        let of = late.iter().filter_map(|stripe| self.given.get(&stripe));
        let given = of.copied().reduce(|one, other| Given {
            waited: one.waited.max(other.waited),
            bytes: one.bytes + other.bytes,
        });
        let missing = self.missing.iter().filter(|((stripe, _), _)| late.has(*stripe as usize));
        let missing = missing.map(|(&(stripe, tensor), missing)| (stripe, tensor, missing.told)).collect();
        let (since, start) = (self.looked, self.brought_of(late));
        let Some(given) = given else { return false };
        let trial = Trial {
            epoch,
            parent,
            stripes: late,
            given,
            told,
            begun: false,
            since,
            start,
            looked: since,
            missing,
        };
        self.trials.push(trial);
        true
    }

    /// The home has taken so many frames.
    pub(super) fn taken(&mut self, taken: u64) {
        let mut trials = std::mem::take(&mut self.trials);
        trials.iter_mut().for_each(|trial| trial.taken(taken, self.looked, self.brought_of(trial.stripes)));
        self.trials = trials;
    }

    fn brought_of(&self, stripes: Stripes) -> u64 {
        stripes.iter().filter_map(|stripe| self.brought.get(stripe)).sum()
    }

    /// Parents that were left as late, under which route, and whether that was their fault, now that it is seen.
    pub(super) fn judge(
        &mut self,
        now: Duration,
        held: impl Fn(TensorId, usize) -> u64,
    ) -> Vec<(u32, Rank, bool)> {
        let mut judged = Vec::new();
        let mut trials = std::mem::take(&mut self.trials);
        trials.retain_mut(|trial| {
            let comes =
                |&(stripe, tensor, told): &(u32, TensorId, u64)| reaches(held(tensor, stripe as usize), told);
            let is_whole = trial.missing.iter().all(comes);
            let its = trial.look(now, self.brought_of(trial.stripes), is_whole);
            judged.extend(its.map(|is_its| (trial.epoch, trial.parent, is_its)));
            its.is_none()
        });
        self.trials = trials;
        judged
    }

    /// Another parent feeds these from now on, and no more the one before. What that one had under way still comes; what it owed does not,
    /// and the new one may have had it before.
    pub(super) fn hand_over(&mut self, stripes: Stripes) {
        for stripe in stripes.iter() {
            let quiet = self.came.get(stripe).map(|came| self.looked.saturating_sub(*came));
            let is_quiet = quiet > Some(QUIET_BEHIND_ANOTHER) && !self.moved.has(stripe);
            if is_quiet && self.is_missing(stripe) {
                self.owed = self.owed.with(stripe);
            } else {
                self.handed_over.insert(stripe, None);
            }
        }
    }

    /// Stripes of which the home is to be told what is held, as another parent feeds them than the one that owed what is missing.
    pub(super) fn take_owed(&mut self) -> Stripes {
        std::mem::take(&mut self.owed)
    }

    fn is_missing(&self, stripe: usize) -> bool {
        let first = (stripe as u32, TensorId::MIN);
        self.missing.range(first..).next().is_some_and(|((next, _), _)| *next as usize == stripe)
    }

    /// What was handed over and is missing, of which nothing comes.
    fn look_at_handed_over(&mut self, now: Duration) {
        let mut handed_over = std::mem::take(&mut self.handed_over);
        handed_over.retain(|&stripe, since| {
            let waited = now.saturating_sub(*since.get_or_insert(now));
            if !self.is_missing(stripe) {
                return waited <= OWED_WITHIN;
            }
            let is_quiet = now.saturating_sub(self.came[stripe]) > QUIET_BEHIND_ANOTHER;
            if is_quiet {
                self.owed = self.owed.with(stripe);
            }
            !is_quiet
        });
        self.handed_over = handed_over;
    }

    /// The home says what should be held; `held`, what is.
    pub(super) fn told(&mut self, tensor: TensorId, stripe: u32, told: u64, held: u64) {
        if held == told {
            self.whole.remove(&(stripe, tensor));
        } else {
            self.whole.entry((stripe, tensor)).or_default();
        }
        if reaches(held, told) {
            self.missing.remove(&(stripe, tensor));
            return;
        }
        let fresh = Missing { mark: told, since: None, start: 0, told };
        self.missing.entry((stripe, tensor)).or_insert(fresh).told = told;
    }

    /// Something of a stripe has come, of so many bytes.
    pub(super) fn came(&mut self, stripe: usize, bytes: u64) {
        self.moved = self.moved.with(stripe);
        if self.brought.len() <= stripe {
            self.brought.resize(stripe + 1, 0);
        }
        self.brought[stripe] += bytes;
    }

    /// Stripes of which it was not seen for long that all has come, each once in that time. Sums tell that something is missing, and not
    /// what: where much goes on coming, what else comes makes up for something that is kept back.
    pub(super) fn doubtful(&mut self, now: Duration) -> Stripes {
        let mut doubtful = Stripes::default();
        for (&(stripe, _), since) in &mut self.whole {
            if now.saturating_sub(*since.get_or_insert(now)) > DOUBT {
                (*since, doubtful) = (Some(now), doubtful.with(stripe as usize));
            }
        }
        doubtful
    }

    /// What is late by now, of stripes that are so many edges from the home. `held`: the digest that is held.
    pub(super) fn look(
        &mut self,
        now: Duration,
        depth: impl Fn(usize) -> u32,
        held: impl Fn(TensorId, usize) -> u64,
    ) -> Stripes {
        self.came.resize(MAX_STRIPES, now);
        // While nobody looked nothing was taken either: this process was suspended, or had no core.
        if now.saturating_sub(std::mem::replace(&mut self.looked, now)) > UNLOOKED {
            self.begin_again();
            self.came.fill(now);
        }
        for stripe in std::mem::take(&mut self.moved).iter() {
            self.came[stripe] = now;
        }
        self.look_at_handed_over(now);
        let Self { missing, came, brought, met, whole, usual, given, .. } = self;
        given.clear();
        let mut late = Stripes::default();
        missing.retain(|&(stripe, tensor), missing| {
            let stripe = stripe as usize;
            let held = held(tensor, stripe);
            let brought = brought.get(stripe).copied().unwrap_or(0);
            if missing.since.is_none() {
                (missing.since, missing.start) = (Some(now), brought);
            }
            let since = missing.since.unwrap_or(now);
            let (waited, bytes) = (now.saturating_sub(since), brought - missing.start);
            if reaches(held, missing.mark) {
                *met = true;
                learn(usual, waited, bytes);
                if held == missing.told {
                    whole.remove(&(stripe as u32, tensor));
                }
                if reaches(held, missing.told) {
                    return false;
                }
                (missing.mark, missing.since, missing.start) = (missing.told, Some(now), brought);
                return true;
            }
            let least = if *met { QUIET } else { QUIET_AT_FIRST } + AN_EDGE * depth(stripe).min(MOST_EDGES);
            let quiet = now.saturating_sub(since.max(came[stripe]));
            let takes = |usual: f64| TIMES_USUAL * usual * bytes.max(LEAST_BYTES) as f64;
            let slow = waited > least && usual.is_some_and(|usual| waited.as_secs_f64() > takes(usual));
            if slow {
                resign(usual, waited, bytes);
            }
            if quiet > least || slow {
                late = late.with(stripe);
                let is_quiet = quiet > least;
                let (waited, bytes) = if is_quiet { (quiet, 0) } else { (waited, bytes) };
                given.insert(stripe, Given { waited, bytes });
            }
            true
        });
        late
    }

    /// Whether something is missing: then it is to be looked at again soon.
    pub(super) fn is_behind(&self) -> bool {
        !self.missing.is_empty()
            || !self.whole.is_empty()
            || !self.handed_over.is_empty()
            || !self.trials.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: TensorId = 3;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    const MIB: u64 = 1 << 20;

    /// A MiB that was told and came so much later, so often: that is usual then.
    fn used_to(took: u64) -> (Lag, u64, u64) {
        let (mut lag, mut digest, mut now) = (Lag::default(), 0, 0);
        for _ in 0..40 {
            digest += 1;
            lag.told(W, 0, digest, digest - 1);
            assert!(lag.look(at(now), |_| 1, |_, _| digest - 1).is_empty());
            now += took;
            lag.came(0, MIB);
            assert!(lag.look(at(now), |_| 1, |_, _| digest).is_empty());
            assert!(!lag.is_behind());
        }
        (lag, digest, now)
    }

    /// When it is late that so many MiB come one by one, so many milliseconds apart; `None`: never.
    fn late(lag: &mut Lag, (digest, start): (u64, u64), mibs: u64, apart: u64) -> Option<u64> {
        lag.told(W, 0, digest + 1, digest);
        (0..mibs * apart).step_by(20).find(|&after| {
            if after > 0 && after % apart < 20 {
                lag.came(0, MIB);
            }
            !lag.look(at(start + after), |_| 1, |_, _| digest).is_empty()
        })
    }

    // A child that takes too little had its parent's parent blamed: this end had stopped reading.
    #[test]
    fn what_is_not_read_here_is_not_late() {
        for is_held in [false, true] {
            let (mut lag, digest, now) = used_to(10);
            lag.told(W, 0, digest + 1, digest);
            let looks = (0..100).map(|look| now + 20 * look);
            let is_late = looks.clone().any(|now| {
                if is_held {
                    lag.hold(Stripes::default().with(0));
                }
                !lag.look(at(now), |_| 1, |_, _| digest).is_empty()
            });
            assert_eq!(is_late, !is_held);
        }
    }

    #[test]
    fn what_comes_to_a_halt_is_late_and_sooner_near_the_home() {
        for (depth, late_after) in [(1, 620), (4, 1220)] {
            let (mut lag, digest, start) = used_to(500);
            lag.told(W, 0, digest + 5, digest);
            let mut late = |after| !lag.look(at(start + after), |_| depth, |_, _| digest).is_empty();
            let first = (0..3000).step_by(20).find(|&after| late(after));
            assert_eq!(first, Some(late_after), "{depth} edges from the home");
        }
    }

    #[test]
    fn however_much_there_is_of_it_what_comes_as_it_usually_does_is_not_late() {
        let (mut lag, digest, start) = used_to(40);
        assert_eq!(late(&mut lag, (digest, start), 1000, 40), None);
        assert_eq!(late(&mut lag, (digest, start + 40_000), 200, 200), None, "nor at a fifth of the rate");
    }

    #[test]
    fn what_comes_at_a_tenth_of_the_usual_rate_is_late_as_soon_as_that_can_be_seen() {
        let (mut lag, digest, start) = used_to(40);
        let first = late(&mut lag, (digest, start), 1000, 380).unwrap();
        assert!((600..1200).contains(&first), "{first}");
        // If everything is so slow by now, nobody is left for it again and again.
        lag.forget(Stripes::default().with(0));
        assert_eq!(late(&mut lag, (digest, start + 10_000), 100, 380), None);
    }

    // It was waited for in each of the next: what the first took, slow in its second half, was half of what was usual from then on.
    #[test]
    fn what_becomes_slow_in_the_middle_of_something_is_late_in_the_next() {
        let (mut lag, digest, start) = used_to(10);
        let bring = |lag: &mut Lag, (digest, begins): (u64, u64), apart: &dyn Fn(u64) -> u64| {
            let mut now = begins;
            lag.told(W, 0, digest + 1, digest);
            for mib in 0..16 {
                let held = |_, _| digest;
                for _ in 0..apart(mib) / 10 {
                    if !lag.look(at(now), |_| 1, held).is_empty() {
                        return Err(now - begins);
                    }
                    now += 10;
                }
                lag.came(0, MIB);
            }
            let came = lag.look(at(now), |_| 1, |_, _| digest + 1);
            if came.is_empty() { Ok(now) } else { Err(now - begins) }
        };
        let mut now = start;
        for digest in digest..digest + 20 {
            now = bring(&mut lag, (digest, now), &|_| 10).unwrap();
        }
        let digest = digest + 20;
        now = bring(&mut lag, (digest, now), &|mib| if mib < 8 { 10 } else { 90 }).unwrap();
        let left = bring(&mut lag, (digest + 1, now), &|_| 90).unwrap_err();
        assert!((600..1400).contains(&left), "{left}");
    }

    #[test]
    fn as_long_as_nothing_is_usual_whatever_moves_is_not_late() {
        let mut lag = Lag::default();
        lag.told(W, 0, 1_000, 0);
        for after in (0..60_000).step_by(100) {
            lag.came(0, 100);
            assert!(lag.look(at(after), |_| 1, |_, _| after / 100).is_empty());
        }
        let mut late = |after| !lag.look(at(after), |_| 1, |_, _| 600).is_empty();
        assert_eq!((60_000..65_000).step_by(20).find(|&after| late(after)), Some(62_120));
    }

    const FIRST: Stripes = Stripes(1);

    /// When the home is told what is held, of a stripe that is handed over so long after something has come of it that was not all, if
    /// the new parent then brings something every so many milliseconds, so often.
    fn told(handed_over: u64, apart: u64, times: u64) -> Option<u64> {
        let (mut lag, digest, start) = used_to(10);
        lag.told(W, 0, digest + 9, digest);
        let look = |lag: &mut Lag, after| _ = lag.look(at(start + after), |_| 1, |_, _| digest);
        (0..handed_over).step_by(20).for_each(|after| look(&mut lag, after));
        lag.hand_over(FIRST);
        (handed_over..3_000).step_by(20).find(|&after| {
            if (after - handed_over).is_multiple_of(apart) && after < handed_over + times * apart {
                lag.came(0, MIB);
            }
            let told = !lag.take_owed().is_empty();
            look(&mut lag, after);
            told
        })
    }

    // The new parent was waited for as long as for the old one, and then taken for as bad.
    #[test]
    fn what_the_parent_before_owed_is_asked_for_at_once_where_it_had_brought_nothing_for_long() {
        assert_eq!(told(600, 20, 10), Some(600));
    }

    #[test]
    fn what_the_parent_before_has_under_way_is_not_asked_for_as_long_as_anything_comes() {
        assert_eq!(told(20, 40, 10), Some(20 + 9 * 40 + 120 + 20));
        let (mut lag, digest, start) = used_to(10);
        lag.hand_over(FIRST);
        assert!(lag.is_behind());
        (0..3_000).step_by(20).for_each(|after| _ = lag.look(at(start + after), |_| 1, |_, _| digest));
        assert!(lag.take_owed().is_empty() && !lag.is_behind(), "nothing was missing");
    }

    #[test]
    fn a_parent_that_was_left_as_late_is_judged_by_what_comes_without_it() {
        for (apart, judged) in [(10, (9, 4, true)), (1000, (9, 4, false))] {
            let (mut lag, digest, start) = used_to(40);
            let late = late(&mut lag, (digest, start), 1000, 380).unwrap();
            assert!(!lag.try_parent(9, 4, Stripes::default().with(1), 30), "that is not late");
            assert!(lag.try_parent(9, 4, FIRST, 30));
            lag.forget(FIRST);
            // However long the home does not hear of it.
            lag.taken(29);
            let looks = (0..20_000).step_by(20).map(|after| at(start + late + after));
            assert!(looks.map(|now| lag.judge(now, |_, _| digest)).all(|judged| judged.is_empty()));
            lag.look(at(start + late), |_| 1, |_, _| digest);
            lag.taken(30);
            assert!(lag.is_behind());
            let judge = |after| {
                if after % apart == 0 {
                    lag.came(0, MIB);
                }
                let judged = lag.judge(at(start + late + after), |_, _| digest);
                judged.first().copied()
            };
            assert_eq!((10..3_000).step_by(10).find_map(judge), Some(judged));
            assert!(!lag.is_behind());
        }
    }

    #[test]
    fn time_in_which_this_end_was_suspended_is_nobodys_fault() {
        let (mut lag, digest, start) = used_to(40);
        lag.told(W, 0, digest + 1, digest);
        let mut look = |after| !lag.look(at(start + after), |_| 1, |_, _| digest).is_empty();
        assert!(!look(0) && !look(20) && !look(60_000));
        assert!((60_020..60_600).step_by(20).all(|after| !look(after)) && (60_620..60_700).any(look));
    }

    #[test]
    fn what_is_kept_back_while_much_goes_on_coming_is_asked_for_now_and_then() {
        let mut lag = Lag::default();
        let mut asked = Vec::new();
        for (second, digest) in (0..100).zip((0..).step_by(10)) {
            // One of ten is missing of what came before.
            lag.told(W, 3, digest, digest - digest / 10);
            if !lag.doubtful(Duration::from_secs(second)).is_empty() {
                asked.push(second);
            }
        }
        assert_eq!(asked.len(), 3, "{asked:?}");
        lag.told(W, 3, 1_000, 1_000);
        assert!(lag.doubtful(Duration::from_secs(1_000)).is_empty());
    }

    #[test]
    fn what_stood_in_a_buffer_makes_nothing_usual() {
        let mut lag = Lag::default();
        for digest in 1..100 {
            lag.told(W, 0, digest, digest - 1);
            lag.look(at(digest * 20), |_| 1, |_, _| digest - 1);
            lag.came(0, 32 * 1024);
            lag.look(at(digest * 20), |_| 1, |_, _| digest);
        }
        assert_eq!(
            late(&mut lag, (99, 2_000), 100, 200),
            None,
            "a MiB in 200 ms may be all that the line carries"
        );
    }

    #[test]
    fn a_home_that_goes_on_publishing_makes_nobody_late_who_keeps_up() {
        let (mut lag, mut digest, start) = used_to(10);
        for after in (0..20_000).step_by(10) {
            // Always two behind.
            digest += 1;
            lag.told(W, 0, digest + 2, digest);
            lag.came(0, MIB);
            assert!(lag.look(at(start + after), |_| 1, |_, _| digest).is_empty(), "after {after} ms");
        }
    }

    #[test]
    fn what_came_before_it_was_told_is_not_missing_also_around_the_end_of_the_count() {
        let mut lag = Lag::default();
        lag.told(W, 0, 5, 5);
        lag.told(W, 1, u64::MAX, 3);
        assert!(lag.missing.is_empty());
        lag.told(W, 0, 2, u64::MAX - 2);
        assert!(lag.is_behind());
        lag.forget(Stripes::default().with(0));
        assert!(lag.missing.is_empty());
    }
}
