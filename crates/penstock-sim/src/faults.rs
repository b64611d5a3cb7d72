//! What goes wrong: on the links, and with the workers.

use crate::rng::Rng;
use crate::transport::Way;
use crate::workload::Workload;
use penstock_proto::Rank;
use std::ops::Range;

/// How a worker ends, if not by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It runs through its program and leaves.
    Honest,
    /// It dies after so many steps: between two submissions of one push as well as anywhere else.
    Crash {
        /// Steps.
        after: u64,
    },
    /// After so many steps it writes arbitrary words into its rings.
    Hostile {
        /// Steps.
        after: u64,
    },
    /// It waits no longer than so many ticks to be let go, and else leaves as one that failed.
    Hurried {
        /// Ticks.
        within: u64,
    },
    /// It contributes a NaN in this iteration.
    Poison {
        /// Iteration.
        iteration: u64,
    },
}

/// What the job does when a worker is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLoss {
    /// The others go on without it.
    Continue,
    /// The job ends for all.
    Stop,
}

/// Workers that are suspended, and leases that say what becomes of them.
#[derive(Debug, Clone)]
pub struct Leases {
    /// The lease.
    pub lease: u64,
    /// When each worker's process is suspended, if it is.
    pub suspended: Vec<Option<Range<u64>>>,
    /// When each worker's connection to the control thread falls silent, and which way.
    pub falls_silent: Vec<Vec<(u64, Way)>>,
}

impl Leases {
    /// Longest time under way of what shows that a worker lives, in parts of the lease.
    const UNDER_WAY: u64 = 16;

    /// Draws the suspensions of these faults' workers. If any may last longer than a lease, half of them do; the others last
    /// half a lease at most. A worker meets only one thing at a time that may cost it half a lease: with two it could not be
    /// expected to survive.
    fn some(faults: &Faults, long: bool, rng: &mut Rng) -> Self {
        let slowest = faults.delay * faults.slow.iter().max().copied().unwrap_or(1);
        let lease = Self::UNDER_WAY * slowest + 64;
        let (mut suspended, mut falls_silent) = (Vec::new(), Vec::new());
        for &remote in &faults.remote {
            let sleeps = rng.once_in(2);
            let start = rng.within(1..=2 * lease);
            let length = match long && rng.once_in(2) {
                true => lease + rng.within(lease / 2..=2 * lease),
                false => rng.within(1..=lease / 2),
            };
            suspended.push(sleeps.then_some(start..start + length));
            let times = 0..if remote && !sleeps { 2 } else { 0 };
            falls_silent.push(
                times.map(|turn| (start + turn * 2 * lease, rng.pick(&[Way::Up, Way::Down]))).collect(),
            );
        }
        Self { lease, suspended, falls_silent }
    }

    /// Whether `rank` is suspended for longer than it may.
    pub fn loses(&self, rank: Rank) -> bool {
        self.suspended[rank as usize].as_ref().is_some_and(|range| range.end - range.start >= self.lease)
    }
}

/// All that goes wrong in a run. Times are in ticks.
#[derive(Debug, Clone)]
pub struct Faults {
    /// Longest ordinary delay of anything under way.
    pub delay: u64,
    /// One message in so many is stalled for 20 times as long.
    pub stall_once_in: u64,
    /// One frame in so many is among the last of its connection, which is cut or falls silent one way.
    pub cut_once_in: u64,
    /// One frame in so many arrives damaged.
    pub damage_once_in: u64,
    /// Frames under way at most, each way of each connection.
    pub window: usize,
    /// One fold in so many is committed later than it is folded.
    pub wait_once_in: u64,
    /// Each worker's fate.
    pub fates: Vec<Fate>,
    /// Workers on another host: their lanes and mirrors are not the home's memory.
    pub remote: Vec<bool>,
    /// Longest time between two steps of each worker.
    pub pace: Vec<u64>,
    /// How much longer anything is under way on each worker's connections than on others.
    pub slow: Vec<u64>,
    /// Longest time until each worker's first connection to the control thread.
    pub late: Vec<u64>,
    /// What a loss means for the others.
    pub on_loss: OnLoss,
    /// Suspensions and leases; without them a worker that crashes is lost after a while.
    pub leases: Option<Leases>,
}

impl Faults {
    /// Nothing goes wrong, everything takes its time.
    pub fn none(workload: &Workload, rng: &mut Rng) -> Self {
        let workers = workload.workers() as usize;
        Self {
            delay: rng.pick(&[1, 4, 20, 100]),
            stall_once_in: 0,
            cut_once_in: 0,
            damage_once_in: 0,
            window: rng.pick(&[1, 4, 100]),
            wait_once_in: 0,
            fates: vec![Fate::Honest; workers],
            remote: (0..workers).map(|_| rng.once_in(2)).collect(),
            pace: (0..workers).map(|_| rng.pick(&[1, 5, 5, 60])).collect(),
            slow: (0..workers).map(|_| rng.pick(&[1, 1, 1, 8])).collect(),
            late: (0..workers).map(|_| rng.pick(&[1, 10, 10, 500])).collect(),
            on_loss: OnLoss::Continue,
            leases: None,
        }
    }

    /// The links fail and folds wait, the workers do not fail: what a reproducible run must not notice.
    pub fn of_links(workload: &Workload, rng: &mut Rng) -> Self {
        Self {
            stall_once_in: rng.pick(&[0, 10, 50]),
            cut_once_in: rng.pick(&[0, 5, 20, 60]),
            damage_once_in: rng.pick(&[0, 0, 0, 60]),
            wait_once_in: rng.pick(&[0, 0, 0, 4, 1]),
            ..Self::none(workload, rng)
        }
    }

    /// Links fail, and so may workers; `hostile` tells whether the workload can stand a hostile one.
    pub fn of_all(workload: &Workload, hostile: bool, rng: &mut Rng) -> Self {
        let mut faults = Self::of_links(workload, rng);
        faults.on_loss = rng.pick(&[OnLoss::Continue, OnLoss::Continue, OnLoss::Continue, OnLoss::Stop]);
        let steps = workload.iterations * 8;
        for rank in 0..workload.workers() {
            let after = rng.within(0..=steps);
            if rng.once_in(5) {
                faults.fates[rank as usize] = Fate::Crash { after };
            } else if hostile && rank != 0 && rng.once_in(5) {
                faults.fates[rank as usize] = Fate::Hostile { after };
                faults.remote[rank as usize] = false;
            } else if rng.once_in(10) {
                faults.fates[rank as usize] = Fate::Hurried { within: rng.within(1..=20 * faults.delay) };
            }
        }
        faults
    }

    /// Links fail, workers are suspended, and if `lose` some for longer than a lease or for good; the others go on without them.
    pub fn of_leases(workload: &Workload, lose: bool, rng: &mut Rng) -> Self {
        let mut faults =
            if lose { Self::of_all(workload, false, rng) } else { Self::of_links(workload, rng) };
        (faults.stall_once_in, faults.on_loss) = (0, OnLoss::Continue);
        for fate in &mut faults.fates {
            // A worker without patience would get itself lost by what it says.
            if matches!(fate, Fate::Hurried { .. }) {
                *fate = Fate::Honest;
            }
        }
        Self { leases: Some(Leases::some(&faults, lose, rng)), ..faults }
    }

    /// Whether `rank` runs to its end.
    pub fn is_honest(&self, rank: Rank) -> bool {
        let is_lost = self.leases.as_ref().is_some_and(|leases| leases.loses(rank));
        self.fates[rank as usize] == Fate::Honest && !is_lost
    }

    /// How long something is under way.
    pub fn some_delay(&self, rng: &mut Rng) -> u64 {
        let delay = rng.within(1..=self.delay);
        if rng.once_in(self.stall_once_in) { delay * 20 } else { delay }
    }
}
