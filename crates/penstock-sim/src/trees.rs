//! Trees: how a job's values go from worker to worker, and what goes wrong there.
//!
//! Drawn beside everything else that a seed decides, which it leaves as it is.

use crate::faults::Faults;
use crate::rng::Rng;
use crate::workload::Workload;
use penstock_proto::Rank;
use penstock_proto::propagation::Propagation;
use std::ops::Range;
use std::time::Duration;

/// One job in so many of those that could have trees has some.
const ONCE_IN: u64 = 4;
/// How long the product's receivers wait for what is missing, of which all their patience is made: so long is [`Trees::patience`].
const PATIENCE: Duration = Duration::from_millis(400);
/// As often a proxy looks in that time whether something is late.
const LOOKS: u64 = 20;

/// Who feeds whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Each the next one.
    Chain,
    /// Each two others.
    Two,
}

/// All that is decided of them. Times are in ticks.
#[derive(Debug, Clone)]
pub struct Trees {
    /// Who feeds whom, at first.
    pub form: Form,
    /// Trees beside each other, at first.
    pub stripes: u64,
    /// How long 400 ms are: short, and workers leave parents that do nothing wrong.
    pub patience: u64,
    /// When each server plans anew for no reason.
    pub replans: Vec<u64>,
    /// How long one that was blamed is in no tree, at most; 0: for ever.
    pub forgives: u64,
    /// Whether a plan is made before all workers have come.
    pub early: bool,
    /// One connection to a parent in so many cannot be made.
    pub unlucky_once_in: u64,
    /// One write to a child in so many is among the last of its connection.
    pub cut_once_in: u64,
    /// Workers of which no other takes anything.
    pub doorless: Vec<bool>,
    /// When each worker's proxies look at nothing, if ever.
    pub hangs: Vec<Option<Range<u64>>>,
    /// One frame in so many is another than the home's, of those that each worker passes on; 0: it is honest.
    pub lies_once_in: Vec<u64>,
    /// Whether workers that have come to the end of the program do not leave: so it is seen whether the last of all comes to them.
    pub stays: bool,
}

impl Trees {
    /// Those of a job, if it has any.
    pub fn some(seed: u64, workload: &Workload, faults: &Faults) -> Option<Self> {
        let mut rng = Rng::new(seed ^ 0x07_4ee5);
        let broadcast = workload.ids().any(|id| workload.spec(id).propagation == Propagation::Broadcast);
        let remote = faults.remote.iter().filter(|remote| **remote).count();
        (rng.once_in(ONCE_IN) && broadcast && remote > 1).then(|| Self::any(workload, faults, &mut rng))
    }

    /// Any.
    pub fn any(workload: &Workload, faults: &Faults, rng: &mut Rng) -> Self {
        let workers = workload.workers();
        // About as long as a job.
        let long = 60 * faults.delay + 400;
        let patience = faults.delay * rng.pick(&[3, 10, 40]) + 2;
        let hang = |rng: &mut Rng| {
            let start = rng.within(1..=long);
            let length = rng.within(1..=4 * patience);
            rng.once_in(6).then_some(start..start + length)
        };
        let lies = |rng: &mut Rng| if rng.once_in(6) { rng.pick(&[2, 8]) } else { 0 };
        Self {
            form: rng.pick(&[Form::Chain, Form::Two]),
            stripes: rng.within(1..=3),
            patience,
            replans: (0..rng.pick(&[0, 1, 4])).map(|_| rng.within(1..=long)).collect(),
            forgives: rng.pick(&[0, patience, 4 * patience]),
            early: rng.once_in(2),
            unlucky_once_in: rng.pick(&[0, 0, 4, 20]),
            cut_once_in: rng.pick(&[0, 10, 60]),
            doorless: (0..workers).map(|_| rng.once_in(8)).collect(),
            hangs: (0..workers).map(|_| hang(rng)).collect(),
            lies_once_in: (0..workers).map(|_| lies(rng)).collect(),
            stays: rng.once_in(2) && faults.leases.is_none(),
        }
    }

    /// How long so many ticks are to the code that waits.
    pub fn long(&self, ticks: u64) -> Duration {
        PATIENCE.mul_f64(ticks as f64 / self.patience as f64)
    }

    /// How long so many ticks are, in whole milliseconds; and how many ticks so many of these take.
    pub fn millis(&self, ticks: u64) -> u64 {
        ticks * PATIENCE.as_millis() as u64 / self.patience
    }

    /// See there.
    pub fn ticks(&self, millis: u64) -> u64 {
        (millis * self.patience).div_ceil(PATIENCE.as_millis() as u64)
    }

    /// Ticks from one look whether something is late to the next.
    pub fn look_every(&self) -> u64 {
        self.patience.div_ceil(LOOKS)
    }

    /// Until when a worker's proxies look at nothing, if that is so now.
    pub fn hangs(&self, rank: Rank, now: u64) -> Option<u64> {
        let range = self.hangs[rank as usize].as_ref()?;
        range.contains(&now).then_some(range.end)
    }
}
