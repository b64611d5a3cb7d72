//! What goes wrong: on the links, and with the workers.

use crate::rng::Rng;
use crate::workload::Workload;
use penstock_proto::Rank;

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

    /// Whether `rank` runs to its end.
    pub fn is_honest(&self, rank: Rank) -> bool {
        self.fates[rank as usize] == Fate::Honest
    }

    /// How long something is under way.
    pub fn some_delay(&self, rng: &mut Rng) -> u64 {
        let delay = rng.within(1..=self.delay);
        if rng.once_in(self.stall_once_in) { delay * 20 } else { delay }
    }
}
