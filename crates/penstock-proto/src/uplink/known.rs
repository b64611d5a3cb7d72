//! What a server makes of what hosts say of their links.
//!
//! Each says what it sends, at most to whom, and what it takes. Where it went to one alone, nobody knows from that which of the two
//! was slow, and it counts against its sender, who said so. Unless two senders say the same of one receiver, and that receiver has
//! never taken more: then it is the slow one, and they are what they were. So one worker that lies makes itself a leaf, or busier,
//! and nobody else.
//!
//! A host that says nothing counts as the usual one does: it is given something to do, and then it is known.

use super::{APART, Measured, is_about};
use crate::Rank;
use std::collections::BTreeMap;

/// How long what a host has said counts, in milliseconds; of one that was slow, twice as long each time, so many times.
const KEPT_MS: u64 = 120_000;
const MOST_DOUBLED: u32 = 5;
/// From one step of rates to the next. Rates within a quarter of each other are of one step.
const STEP: f64 = 1.8;
/// Steps up and down at most.
const MOST_STEPS: f64 = 6.0;

/// What is kept of a worker.
#[derive(Debug, Clone, Copy)]
struct Said {
    measured: Option<Measured>,
    until: u64,
    /// How often it was slow, and was given another chance.
    times: u32,
    /// Whether it was slow in the last plan that was made with it.
    slow: bool,
}

/// Why a report is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// It names a worker that cannot be.
    #[error("expected another worker of the job that it sends to, got {0}")]
    To(Rank),
}

/// What all workers have said, and what the server itself has measured.
#[derive(Debug, Default)]
pub struct Known {
    said: BTreeMap<Rank, Said>,
    own: Option<Measured>,
}

/// Whoever says nothing.
const NOTHING: Measured = Measured { sends: 0, to: None, takes: 0 };

impl Known {
    /// A worker of a job of so many says this, as of this time in milliseconds.
    ///
    /// # Errors
    /// It makes no sense; then nothing is kept of it.
    pub fn hear(&mut self, rank: Rank, workers: u32, measured: Measured, now: u64) -> Result<(), Unknown> {
        if let Some(to) = measured.to.filter(|&to| to == rank || to >= workers) {
            return Err(Unknown::To(to));
        }
        let said = self.said.entry(rank).or_insert(Said { measured: None, until: 0, times: 0, slow: false });
        let mut measured = measured.sane();
        match said.measured {
            // It has not sent lately, as one that feeds nobody has not: what it said before counts for as long as it would have.
            Some(Measured { sends, to, .. }) if measured.sends == 0 && sends > 0 => {
                (measured.sends, measured.to) = (sends, to);
            }
            _ => said.until = now + (KEPT_MS << said.times.min(MOST_DOUBLED)),
        }
        said.measured = Some(measured);
        Ok(())
    }

    /// What the server has measured of its own link.
    pub fn measure(&mut self, own: Option<Measured>) {
        self.own = own;
    }

    /// It has left, and whoever comes in its place may stand elsewhere: what others have said of sending to it counts no more.
    pub fn leave(&mut self, rank: Rank) {
        self.said.remove(&rank);
        self.said.retain(|_, said| said.measured.is_none_or(|measured| measured.to != Some(rank)));
    }

    /// What was said long ago counts no more: who was slow then has another chance.
    pub fn forget(&mut self, now: u64) {
        for said in self.said.values_mut().filter(|said| said.until <= now && said.measured.is_some()) {
            said.measured = None;
            said.times = if said.slow { said.times + 1 } else { 0 };
        }
    }

    /// A plan was made in which it is slow, or not.
    pub fn planned(&mut self, rank: Rank, slow: bool) {
        // Who is not known is not known to be fast.
        if let Some(said) = self.said.get_mut(&rank).filter(|said| said.measured.is_some()) {
            said.slow = slow;
        }
    }

    /// What a worker has said, if that still counts.
    pub fn of(&self, rank: Rank) -> Measured {
        self.said.get(&rank).and_then(|said| said.measured).unwrap_or(NOTHING)
    }

    /// What the server has measured.
    pub fn own(&self) -> Measured {
        self.own.unwrap_or(NOTHING)
    }
}

/// The rates of hosts beside the usual one, in steps: 1.0 is as usual. `links`: by host, what it has measured, in which `to` is the
/// place of a host here, and what its user says of it, in bytes a second. The last one is the server itself.
/// `parents`: how many feed a host at once, each with a part, where values go along stripes.
pub fn rates(links: &[(Measured, Option<f64>)], parents: usize) -> Vec<f64> {
    let slow: Vec<Option<f64>> = (0..links.len()).map(|place| slow_receiver(links, place)).collect();
    let sends = |&(measured, declared): &(Measured, Option<f64>)| {
        let rate = Some(measured.sends as f64).filter(|rate| *rate > 0.0);
        let receiver = measured.to.and_then(|to| slow.get(to as usize).copied().flatten());
        // It was the receiver's doing.
        let is_its = |rate: &f64| receiver.is_none_or(|slow| !is_about(*rate, slow));
        let has_more = |rate: &f64| measured.to.is_some_and(|to| is_one_of_many(links, to, *rate, parents));
        rate.filter(|rate| is_its(rate) && !has_more(rate)).or(declared)
    };
    let known: Vec<Option<f64>> = links.iter().map(sends).collect();
    let usual = usual(&known);
    let beside = |(sends, slow): (&Option<f64>, &Option<f64>)| {
        let rate = sends.unwrap_or(usual).min(slow.unwrap_or(f64::INFINITY));
        STEP.powf(((rate / usual).ln() / STEP.ln()).round().clamp(-MOST_STEPS, MOST_STEPS))
    };
    known.iter().zip(&slow).map(beside).collect()
}

/// Workers whose links have to be known until they say by themselves what is usual among them.
const ENOUGH: usize = 3;

/// What a host has whose link nobody knows: what half of all workers that are known have no more than; while these are few, what the
/// server has, if that is more.
fn usual(known: &[Option<f64>]) -> f64 {
    let (own, workers) = known.split_last().map_or((None, known), |(own, workers)| (*own, workers));
    let mut all: Vec<f64> = workers.iter().copied().flatten().collect();
    let own = own.filter(|_| all.len() < ENOUGH);
    all.extend(own);
    all.sort_by(f64::total_cmp);
    let middle = all.get(all.len().saturating_sub(1) / 2).copied();
    middle.into_iter().chain(own).reduce(f64::max).unwrap_or(1.0)
}

/// Whether a host that sends so much to one alone may have more: others send there at the same time, and each has its part of what
/// that one takes.
fn is_one_of_many(links: &[(Measured, Option<f64>)], to: Rank, rate: f64, parents: usize) -> bool {
    let takes = links.get(to as usize).map_or(0.0, |(receiver, _)| receiver.takes as f64);
    parents > 1 && rate * APART >= takes / parents as f64 && takes > rate * APART
}

/// What a host takes at most, if two senders that sent to nobody else have found so and it has not taken more.
fn slow_receiver(links: &[(Measured, Option<f64>)], place: usize) -> Option<f64> {
    let sent = links.iter().filter(|(measured, _)| measured.to == Some(place as Rank) && measured.sends > 0);
    let sent: Vec<f64> = sent.map(|(measured, _)| measured.sends as f64).collect();
    let most = sent.iter().copied().reduce(f64::max)?;
    let agree = sent.iter().filter(|rate| is_about(**rate, most)).count();
    let takes = links[place].0.takes as f64;
    (agree > 1 && takes > 0.0 && (takes <= most || is_about(takes, most))).then_some(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FAST: u64 = 125_000_000;
    const SLOW: u64 = FAST / 5;

    fn link(sends: u64, to: Option<Rank>, takes: u64) -> (Measured, Option<f64>) {
        (Measured { sends, to, takes }, None)
    }

    fn slow(rates: &[f64]) -> Vec<usize> {
        (0..rates.len()).filter(|&place| rates[place] < 1.0).collect()
    }

    #[test]
    fn rates_within_a_quarter_of_each_other_are_all_the_same() {
        for own in [0, 100, 111, 125] {
            let sends = [0, 100, 125, 110, 0, 118, 100, 125, own];
            let links: Vec<_> = sends.iter().map(|sends| link(sends * 1_000_000, None, 0)).collect();
            assert_eq!(rates(&links, 1), [1.0; 9], "{own}");
        }
        assert_eq!(rates(&[link(0, None, 0); 3], 1), [1.0; 3]);
        assert_eq!(rates(&[], 1), [0.0; 0]);
    }

    #[test]
    fn a_slow_host_is_slow_beside_the_server_though_no_other_is_known() {
        let links =
            [link(0, None, 0), link(SLOW, Some(2), SLOW), link(0, None, SLOW), link(FAST, Some(0), 0)];
        let rates = rates(&links, 1);
        assert_eq!(slow(&rates), [1]);
        assert!((0.15..0.25).contains(&rates[1]), "{rates:?}");
    }

    #[test]
    fn a_fast_host_among_others_is_faster_and_a_slow_server_makes_nobody_slow() {
        let all = [link(FAST, None, 0), link(10 * FAST, None, 0), link(FAST, None, 0), link(FAST, None, 0)];
        assert!(rates(&all, 1)[1] > 8.0 && slow(&rates(&all, 1)).is_empty());
        assert!(slow(&rates(&[link(FAST, None, 0), link(0, None, 0), link(SLOW, None, 0)], 1)).is_empty());
    }

    // What was blamed on a host stood nowhere beside what was measured.
    #[test]
    fn a_receiver_that_two_find_slow_is_slow_and_they_are_not() {
        let mut links = vec![
            link(SLOW, Some(2), FAST),
            link(SLOW, Some(2), FAST),
            link(0, None, SLOW),
            link(0, None, FAST),
        ];
        links.push(link(FAST, Some(0), 0));
        assert_eq!(slow(&rates(&links, 1)), [2]);
        // One that says so may be slow itself, and so may two if the receiver has had more of somebody.
        let one = [link(SLOW, Some(2), FAST), link(0, None, FAST), link(0, None, SLOW), link(FAST, None, 0)];
        assert_eq!(slow(&rates(&one, 1)), [0]);
        links[2] = link(0, None, FAST);
        assert_eq!(slow(&rates(&links, 1)), [0, 1]);
        // The server is a sender like others.
        let own =
            [link(SLOW, Some(1), FAST), link(0, None, SLOW), link(FAST, None, FAST), link(SLOW, Some(1), 0)];
        assert_eq!(slow(&rates(&own, 1)), [1]);
    }

    #[test]
    fn one_of_several_parents_is_not_slow_because_its_child_takes_of_all_of_them() {
        let links = [link(FAST / 2, Some(1), FAST), link(FAST, None, FAST), link(FAST, None, FAST)];
        assert_eq!((slow(&rates(&links, 1)), slow(&rates(&links, 2))), (vec![0], vec![]));
        let links = [link(SLOW, Some(1), FAST), link(FAST, None, FAST), link(FAST, None, FAST)];
        assert_eq!(slow(&rates(&links, 2)), [0], "its part would be more");
    }

    #[test]
    fn what_a_user_says_counts_until_it_is_measured() {
        let gbit = |n: f64| Some(n * 125e6);
        let mut links =
            vec![(NOTHING, gbit(1.0)), (NOTHING, gbit(1.0)), (NOTHING, gbit(0.1)), (NOTHING, None)];
        assert_eq!(slow(&rates(&links, 1)), [2]);
        links[2].0 = link(FAST, None, 0).0;
        assert_eq!(rates(&links, 1), [1.0; 4]);
    }

    #[test]
    fn who_was_slow_is_forgotten_for_another_chance_and_later_each_time() {
        let mut known = Known::default();
        let mut now = 0;
        for kept in [KEPT_MS, 2 * KEPT_MS, 4 * KEPT_MS] {
            known.hear(1, 4, link(SLOW, None, 0).0, now).unwrap();
            known.planned(1, true);
            known.forget(now + kept - 1);
            assert_eq!(known.of(1).sends, SLOW);
            now += kept;
            known.forget(now);
            assert_eq!(known.of(1), NOTHING);
            // The next plan is made without knowing it.
            known.planned(1, false);
        }
        known.hear(1, 4, link(FAST, None, 0).0, now).unwrap();
        known.planned(1, false);
        known.forget(u64::MAX);
        known.hear(1, 4, link(SLOW, None, 0).0, now).unwrap();
        known.planned(1, true);
        known.forget(now + KEPT_MS);
        assert_eq!(known.of(1), NOTHING, "who was fast begins anew");
    }

    #[test]
    fn a_report_that_names_nobody_who_can_be_is_not_taken() {
        let mut known = Known::default();
        for to in [1, 4, u32::MAX] {
            assert_eq!(
                known.hear(1, 4, Measured { to: Some(to), ..link(SLOW, None, 0).0 }, 0),
                Err(Unknown::To(to))
            );
        }
        assert_eq!(known.of(1), NOTHING);
        known.hear(1, 4, Measured { sends: u64::MAX, to: Some(2), takes: 1 }, 0).unwrap();
        assert_eq!(
            known.of(1),
            Measured { sends: super::super::MOST, to: Some(2), takes: super::super::LEAST }
        );
    }

    proptest! {
        #[test]
        fn whatever_one_host_says_the_others_are_no_slower_for_it(
            sends: u64, to in prop::option::of(0_u32..6), takes: u64, place in 0_usize..5,
            others in prop::collection::vec(prop::sample::select(vec![0, FAST]), 6),
        ) {
            let mut links: Vec<_> = others.into_iter().map(|sends| link(sends, None, FAST)).collect();
            links[place].0 = Measured { sends, to, takes }.sane();
            let rates = rates(&links, 1);
            for (at, rate) in rates.into_iter().enumerate() {
                prop_assert!(rate.is_finite() && rate > 0.0);
                prop_assert!(at == place || rate >= 1.0, "{at}: {rate}");
            }
        }
    }
}
