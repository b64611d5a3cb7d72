//! All that a seed decides.

use crate::checkers::{self, Checker};
use crate::cluster::{Cluster, Failure, Log, Outcome};
use crate::encodings;
use crate::faults::{Fate, Faults, OnLoss};
use crate::rng::Rng;
use crate::sabotage::Sabotage;
use crate::trees::Trees;
use crate::workload::{Kind, Workload};
use penstock_proto::consistency::Consistency;
use penstock_proto::propagation::Propagation;
use penstock_proto::{Rank, TensorId};

/// Where the chunks are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Topology {
    /// Servers.
    pub servers: u32,
    /// Shards of each server.
    pub shards: u32,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
}

impl Topology {
    fn any(rng: &mut Rng) -> Self {
        Self {
            servers: rng.within(1..=3) as u32,
            shards: rng.within(1..=3) as u32,
            chunk_bytes: rng.pick(&[4096, 4096, 8192, 16384]),
        }
    }
}

/// A run, fully determined.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// What chance in the run is drawn from.
    pub seed: u64,
    /// What the workers do.
    pub workload: Workload,
    /// Where the chunks are.
    pub topology: Topology,
    /// What goes wrong.
    pub faults: Faults,
    /// How values go from worker to worker, if they do.
    pub trees: Option<Trees>,
    /// What promise the memory breaks, in tests of the checkers.
    pub sabotage: Option<Sabotage>,
}

impl Scenario {
    /// The scenario of a seed: of every eight, four are marked jobs with all faults, in one of which a tensor is loaded again and
    /// again; in one of sixteen, one is too, and some pulls are of some chunks alone; two are synchronous descents whose bits are
    /// judged, one is a descent by a single worker under any consistency, judged in the same way, and one a descent out of step.
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let its = rng.word();
        match seed % 8 {
            1 if seed % 16 == 1 => {
                let workload = Workload::marked(its).with_loads().with_gathers();
                Self::marked(seed, workload, &mut rng)
            }
            0..3 => Self::marked(seed, Workload::marked(its), &mut rng),
            3 => Self::marked(seed, Workload::marked(its).with_loads(), &mut rng),
            4 | 5 => {
                let workers = rng.within(2..=5) as u32;
                Self::reproducible(seed, Workload::descent(its, workers, Some(Consistency::Bsp)))
            }
            6 => Self::reproducible(seed, Workload::descent(its, 1, None)),
            _ => {
                let workload = Workload::descent(its, rng.within(2..=5) as u32, None);
                let mut faults = Faults::of_all(&workload, false, &mut rng);
                if rng.once_in(4) {
                    let rank = rng.within(0..=u64::from(workload.workers()) - 1);
                    faults.fates[rank as usize] =
                        Fate::Poison { iteration: rng.within(0..=workload.iterations - 1) };
                }
                Self::of(seed, workload, faults, &mut rng)
            }
        }
    }

    /// A scenario of a seed in which workers are suspended and leases decide: of every four, three are marked jobs in which
    /// workers are lost, one of them with a tensor that is loaded again and again; one is a synchronous descent in which none is, and whose bits are judged.
    pub fn suspended(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x51ee9);
        let its = rng.word();
        let workload = match seed % 4 {
            2 => Workload::marked(its).with_loads(),
            0..2 => Workload::marked(its),
            _ => Workload::descent(its, rng.within(2..=5) as u32, Some(Consistency::Bsp)),
        };
        let faults = Faults::of_leases(&workload, seed % 4 < 3, &mut rng);
        Self::of(seed, workload, faults, &mut rng)
    }

    /// A scenario of a seed in which values go from worker to worker: that of [`from_seed`](Self::from_seed), with most workers on
    /// other hosts and most tensors broadcast. Of every sixteen, one is of [`suspended`](Self::suspended).
    pub fn with_trees(seed: u64) -> Self {
        let mut scenario = if seed % 16 == 15 { Self::suspended(seed) } else { Self::from_seed(seed) };
        let mut rng = Rng::new(seed ^ 0x74ee);
        let Self { workload, faults, .. } = &mut scenario;
        for (fate, remote) in faults.fates.iter().zip(&mut faults.remote) {
            *remote |= !matches!(fate, Fate::Hostile { .. }) && !rng.once_in(6);
        }
        for tensor in &mut workload.tensors {
            if !rng.once_in(4) {
                tensor.spec.propagation = Propagation::Broadcast;
            }
        }
        scenario.trees = Some(Trees::any(workload, faults, &mut rng));
        scenario
    }

    /// A scenario of a seed in which updates are sent of all tensors of which they can be: that of [`from_seed`](Self::from_seed),
    /// with most workers on other hosts.
    pub fn with_updates(seed: u64) -> Self {
        let mut scenario = Self::from_seed(seed);
        let mut rng = Rng::new(seed ^ 0x0bda7e);
        let Self { workload, faults, .. } = &mut scenario;
        for (fate, remote) in faults.fates.iter().zip(&mut faults.remote) {
            *remote |= !matches!(fate, Fate::Hostile { .. }) && !rng.once_in(6);
        }
        workload.tensors.iter_mut().for_each(|tensor| encodings::send_updates(&mut tensor.spec));
        scenario
    }

    fn of(seed: u64, mut workload: Workload, faults: Faults, rng: &mut Rng) -> Self {
        encodings::declare(seed, &mut workload);
        let trees = Trees::some(seed, &workload, &faults);
        Self { seed, topology: Topology::any(rng), faults, workload, trees, sabotage: None }
    }

    fn marked(seed: u64, workload: Workload, rng: &mut Rng) -> Self {
        let faults = Faults::of_all(&workload, true, rng);
        Self::of(seed, workload, faults, rng)
    }

    /// A run of `workload` in which only links fail, with topology and faults of `seed`: under BSP, or with one worker, its
    /// values must not depend on the seed.
    pub fn reproducible(seed: u64, workload: Workload) -> Self {
        let mut rng = Rng::new(seed ^ 0x5eed);
        let faults = Faults::of_links(&workload, &mut rng);
        Self::of(seed, workload, faults, &mut rng)
    }

    /// The same, with a promise broken.
    pub fn sabotaged(self, sabotage: Sabotage) -> Self {
        Self { sabotage: Some(sabotage), ..self }
    }

    /// Whether the values at the end are determined by the workload alone.
    pub fn is_reproducible(&self) -> bool {
        let together = |tensor: TensorId| self.workload.spec(tensor).consistency.folds_together();
        let in_step = self.workload.workers() == 1 || self.workload.ids().all(together);
        let unharmed = (0..self.workload.workers()).all(|rank| self.faults.is_honest(rank));
        self.workload.kind == Kind::Descent && in_step && unharmed
    }

    /// Runs it and judges it: by all checkers on the way and, where the values are determined, by what one process computes.
    pub fn check(&self) -> Result<Outcome, Failure> {
        self.check_logged(None)
    }

    /// As [`Scenario::check`], telling `log` of everything with its tick.
    pub fn check_logged<'a>(&'a self, log: Log<'a>) -> Result<Outcome, Failure> {
        let outcome = Cluster::new(self, self.checkers(), log).run()?;
        self.judge_ends(&outcome)?;
        if self.is_reproducible() {
            checkers::bits::agrees(&outcome.values, &self.workload.alone())
                .map_err(|what| Failure::Violation { checker: "bits", at: outcome.ticks, what })?;
        }
        Ok(outcome)
    }

    fn checkers(&self) -> Vec<Box<dyn Checker>> {
        let shards = (self.topology.servers * self.topology.shards) as usize;
        let mut checkers: Vec<Box<dyn Checker>> = vec![
            Box::new(checkers::staleness::Staleness::new(&self.workload)),
            Box::new(checkers::loads::Loads::new(self)),
            Box::new(checkers::atomicity::Atomicity::new(self)),
            Box::new(checkers::bits::Bits::new(&self.workload)),
            Box::new(checkers::asked::Asked::new(&self.workload)),
            Box::new(checkers::carried::Carried),
            Box::new(checkers::membership::Membership::new(self.workload.workers(), shards)),
        ];
        checkers.extend(
            checkers::exactly_once::ExactlyOnce::new(self)
                .map(|checker| -> Box<dyn Checker> { Box::new(checker) }),
        );
        checkers
    }

    /// Liveness has a second half: a job may fail only for a reason.
    fn judge_ends(&self, outcome: &Outcome) -> Result<(), Failure> {
        let Some(failure) = &outcome.failure else { return Ok(()) };
        let at_fault = |rank: Rank| !self.faults.is_honest(rank);
        let poisons = |fate: &Fate| matches!(fate, Fate::Poison { .. });
        let has_reason = match failure {
            penstock_proto::error::JobFailure::WorkerLost { rank, .. } => {
                at_fault(*rank) && self.faults.on_loss == OnLoss::Stop
            }
            penstock_proto::error::JobFailure::NoValue { .. } => at_fault(0),
            penstock_proto::error::JobFailure::NonFinite { rank, .. } => {
                poisons(&self.faults.fates[*rank as usize])
            }
            _ => false,
        };
        if has_reason {
            return Ok(());
        }
        let what = format!("the job failed for no reason: {failure}");
        Err(Failure::Violation { checker: "liveness", at: outcome.ticks, what })
    }
}
