//! The home's machine: a contribution comes in, a fold falls due, a version goes out.
//!
//! A [`Shard`] owns its chunks outright: it alone decides when a chunk is folded and what version it then has. It is fed
//! with submissions and losses, and acts through [`Home`], which moves the bytes: shared memory in the server, plain
//! vectors in the simulator.
//!
//! What it promises (numbers as in docs/ARCHITECTURE.md):
//!
//! - **C-1** A chunk's version never falls.
//! - **C-2** Version v is published only when every update stamped < v of every live worker is folded, or can never come.
//! - **C-3** An update (worker, stamp, chunk) is folded at most once, however often it is submitted.
//! - **C-4** Under BSP the contributions to a version are folded in one step, in rank order, whatever order they came in.
//! - **C-5** A submission that is refused changes nothing.
//!
//! A fold is two steps. [`Home::fold`] adds the contributions up; its *commit* makes the result the chunk's value and publishes
//! it. Where the answer is [`Folded::Committed`] the two are one. Where it is [`Folded::Waits`], for the norm of all sums, for
//! replicas, for what a rack's other servers have, the chunk stands still until [`Shard::commit`] is called: its contributions
//! stay in their lanes, which are not free, and later ones stand in line behind them.
//!
//! A worker that has nothing for a chunk may skip it: where a contribution of zeros changes nothing, that is one, and
//! nothing is folded for it.
//!
//! Cost of a push, each chunk: one look at the worker's stamp and a count. Cost of a fold: O(workers) beside the fold itself.
//! Memory: 8 bytes for each worker and chunk, 24 for each chunk. No allocation after a tensor is declared.

use crate::clock::{Clocks, MAX_CLOCK};
use crate::error::JobFailure;
use crate::numbered::Numbered;
use crate::peer::PeerId;
use crate::progress::Progress;
use crate::spec::TensorSpec;
use crate::submission::Submission;
use crate::{Rank, TensorId};
use penstock_kernels::{Rule, Settings};
use stamp::Stamp;
use std::collections::BTreeMap;

mod stamp;

/// What to fold a chunk with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fold {
    /// The optimizer's numbers.
    pub settings: Settings,
    /// Optimizer steps that the chunk has behind it.
    pub step: u64,
    /// Factor on the sum of the contributions.
    pub scale: f64,
}

/// A fold that was refused: a NaN or infinity in the contribution of this writer. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NonFiniteFrom(pub Rank);

/// What became of a fold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Folded {
    /// It is in the chunk's value.
    Committed,
    /// It is kept aside until [`Shard::commit`].
    Waits,
}

/// The memory of a shard, as its machine sees it. `chunk` is always an index over the whole tensor, homed here.
pub trait Home {
    /// Folds the lanes of `writers`, in this order, into the chunk, or aside.
    fn fold(
        &mut self,
        tensor: TensorId,
        chunk: u32,
        fold: &Fold,
        writers: &[Rank],
    ) -> Result<Folded, NonFiniteFrom>;
    /// What was folded aside becomes the chunk's value. Called only for a fold that answered [`Folded::Waits`].
    fn commit(&mut self, tensor: TensorId, chunk: u32);
    /// Takes the chunk's value (`slot` 0) or lane-full `part` of its state array `slot` - 1 from the lane of `writer`.
    fn load(&mut self, tensor: TensorId, chunk: u32, slot: u32, part: u32, writer: Rank);
    /// All that a filter holds back of the chunk's value passes; whether there was any.
    fn flush(&mut self, tensor: TensorId, chunk: u32) -> bool;
    /// The chunk has this version now, and readers see of it what a filter lets pass. Called after each fold, load or flush of a chunk, and when a version passes without one.
    fn publish(&mut self, tensor: TensorId, chunk: u32, version: u64, steps: u64);
    /// All chunks of the tensor that are homed here have at least this version.
    fn progress(&mut self, tensor: TensorId, version: u64);
    /// So many contributions of `writer` to chunks homed here were taken from its lane, since the start.
    fn folded(&mut self, tensor: TensorId, writer: Rank, count: u64);
}

/// Why a submission was refused. Nothing has changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmissionRefused {
    /// No such tensor is homed here.
    #[error("it submitted tensor {got}, which this shard does not know")]
    UnknownTensor {
        /// What came.
        got: TensorId,
    },
    /// The chunks are not the tensor's.
    #[error("it submitted chunks {first}+{count} of a tensor with {chunks}")]
    OutsideTensor {
        /// First chunk.
        first: u32,
        /// How many.
        count: u32,
        /// Chunks of the tensor.
        chunks: u32,
    },
    /// The tensor holds no value yet.
    #[error("it pushed `{name}` before worker 0 gave it a value")]
    NotLoaded {
        /// The tensor.
        name: String,
    },
    /// The stamp is not the worker's clock.
    #[error("it stamped an update {got} when its clock was {expected}")]
    WrongStamp {
        /// Its clock.
        expected: u64,
        /// What came.
        got: u64,
    },
    /// The clock ran backwards.
    #[error("it set its clock to {got} after {expected_at_least}")]
    ClockWentBack {
        /// Its clock.
        expected_at_least: u64,
        /// What came.
        got: u64,
    },
    /// A clock or a count that no honest worker reaches: counting on from it could overflow.
    #[error("it set {what} to {got}, expected at most {limit}")]
    TooLarge {
        /// Which number.
        what: &'static str,
        /// The largest there may be.
        limit: u64,
        /// What came.
        got: u64,
    },
    /// Its lane holds an update of an earlier iteration, which would be lost.
    #[error("it pushed `{name}` in iteration {got} before its update of iteration {pending} was folded")]
    StillPending {
        /// The tensor.
        name: String,
        /// The stamp of the update that waits.
        pending: u64,
        /// What came.
        got: u64,
    },
    /// A skip where zeros would change something.
    #[error("it skipped chunks of `{name}`, whose optimizer makes something of zeros: {rule}")]
    ZerosCount {
        /// The tensor.
        name: String,
        /// The optimizer.
        rule: Rule,
    },
    /// The numbers are not valid settings of the tensor's optimizer.
    #[error("it pushed `{name}` with bad settings: {reason}")]
    BadSettings {
        /// The tensor.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// A lane is loaded that holds an update still to be folded, or by a worker that may not, or to a slot that does not exist.
    #[error(
        "it loaded slot {slot} of `{name}`: only worker 0 may, with nothing pending, to slots up to {slots}"
    )]
    BadLoad {
        /// The tensor.
        name: String,
        /// What came.
        slot: u32,
        /// Largest slot.
        slots: u32,
    },
    /// A contribution of a peer that is not a worker.
    #[error("expected contributions of workers only, got one of {peer}")]
    NoWorker {
        /// Who it is.
        peer: PeerId,
    },
    /// A fetch by a worker that shares memory with the home and has no use for it.
    #[error("it asked for tensor {tensor} to be sent, which it sees in shared memory")]
    NothingToFetch {
        /// The tensor.
        tensor: TensorId,
    },
    /// Something about how values come to it, by a worker that shares memory with the home.
    #[error("it says how values come to it, which it sees in shared memory")]
    NothingToFeed,
    /// Factors where the product is expected.
    #[error("it submitted factors of tensor {tensor} where a push is expected")]
    Factors {
        /// The tensor.
        tensor: TensorId,
    },
    /// The update must not enter the job at all, and the job cannot go on without it.
    #[error(transparent)]
    Failure(#[from] JobFailure),
}

/// A judged submission and its writer. Only [`Shard::judge`] makes one, and only [`Shard::take`] takes one: so what comes over
/// the network in two parts is judged once, by its first part.
#[derive(Debug, PartialEq)]
pub struct Judged {
    peer: PeerId,
    submission: Submission,
}

impl Judged {
    /// What it is.
    pub fn submission(&self) -> &Submission {
        &self.submission
    }
}

/// What a chunk is gone over for beside how far each worker is, in such looks.
pub const BESIDE_WORKERS: usize = 4;
/// What a tensor is that a clock looks at, likewise: there may be very many, and what is known of each lies in several places.
pub const A_TENSOR: usize = 16;

/// State of one chunk.
#[derive(Debug, Clone, Copy)]
struct ChunkState {
    version: u64,
    steps: u64,
    /// Live workers whose update stamped `version` has come. BSP only.
    arrived: u32,
    loaded: bool,
    /// Readers may lack something of it: it was folded since it was flushed or loaded. Of what has not been, whoever asks for a
    /// flush again and again makes nobody go over it.
    unflushed: bool,
}

/// A tensor, as far as it is homed here.
#[derive(Debug)]
struct Tensor {
    spec: TensorSpec,
    /// Chunks of the whole tensor.
    total: u32,
    /// Those homed here, ascending.
    chunks: Vec<u32>,
    states: Vec<ChunkState>,
    /// For each chunk homed here, how far each worker is: chunk-major.
    stamped: Vec<Stamp>,
    /// Each worker's settings, with its last push.
    settings: Vec<Settings>,
    /// Each worker's last stamp + 1, over the whole tensor.
    pushed: Vec<u64>,
    /// Each worker's last stamp + 1, and how many of the chunks homed here carry it.
    covered: Vec<(u64, usize)>,
    /// Contributions taken from each worker's lane.
    folded: Vec<u64>,
    /// Contributions of each worker that wait in its lane: for others under BSP, for a commit.
    pending: Vec<usize>,
    /// Folds that wait for their commit, by local index, and whose contributions are in them. A chunk that
    /// is in here stands still.
    uncommitted: BTreeMap<usize, Vec<Rank>>,
    /// SSP and ASP: contributions to such chunks, as they came.
    behind: Vec<(usize, Rank)>,
    /// Workers whose `folded` has moved since it was last told.
    moved: Vec<bool>,
    /// How many chunks are.
    unflushed: usize,
    /// Chunks homed here that are not loaded yet; while above 0 nothing is folded or read.
    unloaded: usize,
    progress: Progress,
}

/// The machine of one shard for one job.
#[derive(Debug)]
pub struct Shard {
    clocks: Clocks,
    tensors: Numbered<Tensor>,
    /// Writers of the fold at hand; kept to allocate once.
    writers: Vec<Rank>,
    /// What it went over since it was asked, other than for contributions.
    gone_over: usize,
}

impl Shard {
    /// A shard of a job of `workers` workers.
    pub fn new(workers: u32) -> Self {
        Self {
            clocks: Clocks::new(workers),
            tensors: Numbered::default(),
            writers: Vec::with_capacity(workers as usize),
            gone_over: 0,
        }
    }

    /// What clocks, flushes and skips, whoever sent them, had it go over since the last call of this: how far some worker is, so many
    /// times. A chunk is as many such looks as there are workers, and [`BESIDE_WORKERS`]; a tensor is [`A_TENSOR`], beside its chunks.
    pub fn take_gone_over(&mut self) -> usize {
        std::mem::take(&mut self.gone_over)
    }

    /// The workers' clocks, as far as this shard has heard.
    pub fn clocks(&self) -> &Clocks {
        &self.clocks
    }

    /// Becomes home of `chunks` (ascending) of a tensor of `total` chunks. The declaration was checked.
    pub fn declare(&mut self, id: TensorId, spec: TensorSpec, total: u32, chunks: Vec<u32>) {
        let workers = self.clocks.size() as usize;
        let state = ChunkState { version: 0, steps: 0, arrived: 0, loaded: false, unflushed: false };
        let tensor = Tensor {
            spec,
            total,
            states: vec![state; chunks.len()],
            stamped: vec![Stamp::default(); chunks.len() * workers],
            settings: vec![Settings([0.0; 5]); workers],
            pushed: vec![0; workers],
            covered: vec![(0, 0); workers],
            folded: vec![0; workers],
            pending: vec![0; workers],
            uncommitted: BTreeMap::new(),
            behind: Vec::new(),
            moved: vec![false; workers],
            unflushed: 0,
            unloaded: chunks.len(),
            progress: Progress::default(),
            chunks,
        };
        self.tensors.insert(id, tensor);
    }

    /// Takes a submission of `writer`, which is live and sees the values itself. Judges it, and takes it at once.
    pub fn submit(
        &mut self,
        writer: Rank,
        submission: &Submission,
        home: &mut impl Home,
    ) -> Result<(), SubmissionRefused> {
        let judged = self.judge_local(PeerId::worker(writer), submission)?;
        self.take(judged, home)
    }

    /// Judges what a peer of this host submits: a worker there has nothing to be sent.
    pub fn judge_local(&self, peer: PeerId, submission: &Submission) -> Result<Judged, SubmissionRefused> {
        match *submission {
            Submission::Fetch { tensor, .. } | Submission::FetchChunks { tensor, .. }
                if peer.rank().is_some() =>
            {
                Err(SubmissionRefused::NothingToFetch { tensor })
            }
            Submission::Factor { tensor, .. } => Err(SubmissionRefused::Factors { tensor }),
            Submission::Attached { .. } | Submission::Strayed { .. } | Submission::Holds { .. } => {
                Err(SubmissionRefused::NothingToFeed)
            }
            _ => self.judge(peer, submission),
        }
    }

    /// Judges what a peer submits, and changes nothing: before its payload is let into the lane. A peer that is not a worker may
    /// fetch and leave.
    ///
    /// Only the peer's own submissions, which come in order, change what is judged here: it still holds when the payload has
    /// come, whatever others have done meanwhile. What they can change is looked at by [`Shard::take`].
    pub fn judge(&self, peer: PeerId, submission: &Submission) -> Result<Judged, SubmissionRefused> {
        match (*submission, peer.rank()) {
            (Submission::Fetch { tensor, version, .. }, _) => {
                self.known(tensor)?;
                // The push of the last clock makes the version behind it.
                check_limit(FETCHED_CLOCK, version.saturating_sub(1))?;
            }
            (Submission::FetchChunks { tensor, first, count, version, .. }, _) => {
                self.check_range(tensor, first, count)?;
                check_limit(FETCHED_CLOCK, version.saturating_sub(1))?;
            }
            (Submission::Leave | Submission::Attached { .. } | Submission::Strayed { .. }, _) => {}
            (Submission::Holds { tensor, first, .. }, _) => _ = self.check_range(tensor, first, 1)?,
            (_, None) => return Err(SubmissionRefused::NoWorker { peer }),
            (Submission::Skip { tensor, first, count, stamp, settings }, Some(writer)) => {
                self.check_push(writer, tensor, first, count, stamp, &settings)?;
                let TensorSpec { name, rule, .. } = &self.known(tensor)?.spec;
                if !rule.ignores_zeros(&settings) {
                    return Err(SubmissionRefused::ZerosCount { name: name.clone(), rule: *rule });
                }
            }
            (Submission::Push { tensor, first, count, stamp, settings }, Some(writer)) => {
                self.check_push(writer, tensor, first, count, stamp, &settings)?;
            }
            (Submission::Load { tensor, first, count, slot, part, steps }, Some(writer)) => {
                self.check_load(writer, tensor, first, count, (slot, part))?;
                check_limit("the steps of a load", steps)?;
            }
            (Submission::Zero { tensor }, Some(writer)) => self.check_load(writer, tensor, 0, 0, (0, 0))?,
            (Submission::Flush { tensor }, Some(writer)) => {
                let tensor = self.known(tensor)?;
                if writer != 0 {
                    return Err(tensor.bad_load(0));
                }
            }
            (Submission::Clock { clock }, Some(_)) => check_limit("its clock", clock)?,
            // What it brings is judged by whoever keeps it.
            (Submission::Factor { tensor, .. }, Some(_)) => _ = self.known(tensor)?,
            (Submission::PushProduct { tensor, .. }, Some(_)) => {
                return Err(SubmissionRefused::Factors { tensor });
            }
        }
        Ok(Judged { peer, submission: *submission })
    }

    /// Takes what was judged, of a peer that is live, before anything else of that peer is judged. A fetch does nothing here:
    /// whatever sends values sees to it; nor does a factor, which whoever receives contributions keeps.
    pub fn take(&mut self, judged: Judged, home: &mut impl Home) -> Result<(), SubmissionRefused> {
        debug_assert!(self.judge(judged.peer, &judged.submission).is_ok(), "what was judged still holds");
        let Some(writer) = judged.peer.rank() else { return Ok(()) };
        match judged.submission {
            Submission::Push { tensor, first, count, stamp, settings } => {
                self.check_settings(writer, tensor, stamp, &settings)?;
                self.contribute(writer, tensor, first..first + count, (stamp, true), settings, home)
            }
            Submission::Skip { tensor, first, count, stamp, settings } => {
                self.check_settings(writer, tensor, stamp, &settings)?;
                self.contribute(writer, tensor, first..first + count, (stamp, false), settings, home)
            }
            Submission::Clock { clock } => self.clock(writer, clock, home),
            Submission::Load { tensor, first, count, slot, part, steps } => {
                self.check_committed(tensor, slot)?;
                self.load(writer, tensor, first..first + count, (slot, part, steps), home)
            }
            Submission::Zero { tensor } => {
                self.check_committed(tensor, 0)?;
                self.zero(tensor, home)
            }
            Submission::Flush { tensor } => {
                self.flush(tensor, home);
                Ok(())
            }
            Submission::Fetch { .. }
            | Submission::FetchChunks { .. }
            | Submission::Factor { .. }
            | Submission::PushProduct { .. }
            | Submission::Attached { .. }
            | Submission::Strayed { .. }
            | Submission::Holds { .. } => Ok(()),
            Submission::Leave => Ok(self.remove(writer, home)?),
        }
    }

    /// Commits the fold of a chunk that waits for it, and goes on from there. `false`: none waits, and nothing has changed.
    pub fn commit(&mut self, id: TensorId, chunk: u32, home: &mut impl Home) -> Result<bool, JobFailure> {
        let Self { clocks, tensors, writers, .. } = self;
        let Some(tensor) = tensors.get_mut(id) else { return Ok(false) };
        let Ok(local) = tensor.chunks.binary_search(&chunk) else { return Ok(false) };
        let Some(committed) = tensor.uncommitted.remove(&local) else { return Ok(false) };
        home.commit(id, chunk);
        for &writer in &committed {
            tensor.pending[writer as usize] -= 1;
        }
        writers.clone_from(&committed);
        let mut step = Step { id, clocks, writers, home };
        let result = step.go_on(tensor, local);
        tensor.tell(id, home);
        result.map(|()| true)
    }

    /// Goes on without `rank`: nothing waits for it any more. What it submitted before stays.
    pub fn remove(&mut self, rank: Rank, home: &mut impl Home) -> Result<(), JobFailure> {
        let removed = self.clocks.remove(rank);
        let waits = |(_, tensor): &(TensorId, &Tensor)| tensor.unloaded > 0;
        // Also for a worker that was removed before: a tensor may have been declared since.
        if rank == 0
            && let Some((_, tensor)) = self.tensors.iter().find(waits)
        {
            return Err(JobFailure::NoValue { name: tensor.spec.name.clone(), loss: None });
        }
        if removed {
            for place in 0..self.tensors.len() {
                let Some(id) = self.tensors.number(place) else { break };
                self.recount(id);
                self.advance_all(id, home)?;
            }
        }
        Ok(())
    }

    /// Live workers that keep the tensor here from reaching `version`.
    pub fn missing(&self, id: TensorId, version: u64) -> Vec<Rank> {
        let Some(tensor) = self.tensors.get(id) else { return Vec::new() };
        if tensor.unloaded > 0 {
            return vec![0];
        }
        // What it stamps is its clock, so no stamp is beyond a version that its clock has not reached.
        let behind = |&rank: &Rank| self.clocks.of(rank) < version && !tensor.pushed_whole(rank, version);
        if tensor.chunks.is_empty() {
            return Vec::new();
        }
        self.clocks.live().filter(behind).collect()
    }

    /// How many contributions of `reader` must have been folded before it is sent a value: out of step, it finds all of its own
    /// in what it reads, even those that wait for a commit. A peer that is not a worker has contributed nothing.
    pub fn promised(&self, reader: PeerId, id: TensorId) -> u64 {
        let tensor = self.tensors.get(id).filter(|tensor| !tensor.spec.consistency.folds_together());
        match (tensor, reader.rank()) {
            (Some(tensor), Some(rank)) => tensor.folded[rank as usize] + tensor.pending[rank as usize] as u64,
            _ => 0,
        }
    }

    fn known(&self, id: TensorId) -> Result<&Tensor, SubmissionRefused> {
        self.tensors.get(id).ok_or(SubmissionRefused::UnknownTensor { got: id })
    }

    fn check_range(&self, id: TensorId, first: u32, count: u32) -> Result<&Tensor, SubmissionRefused> {
        let tensor = self.known(id)?;
        let chunks = tensor.total;
        match first.checked_add(count) {
            Some(end) if end <= chunks => Ok(tensor),
            _ => Err(SubmissionRefused::OutsideTensor { first, count, chunks }),
        }
    }

    fn check_push(
        &self,
        writer: Rank,
        id: TensorId,
        first: u32,
        count: u32,
        stamp: u64,
        settings: &Settings,
    ) -> Result<(), SubmissionRefused> {
        let tensor = self.check_range(id, first, count)?;
        let expected = self.clocks.of(writer);
        if stamp != expected {
            return Err(SubmissionRefused::WrongStamp { expected, got: stamp });
        }
        let name = || tensor.spec.name.clone();
        if tensor.unloaded > 0 {
            return Err(SubmissionRefused::NotLoaded { name: name() });
        }
        let last = tensor.pushed[writer as usize];
        if tensor.pending[writer as usize] > 0 && last <= stamp {
            // To fold it now would take the new numbers for the old ones, or lose the update: C-2.
            return Err(SubmissionRefused::StillPending { name: name(), pending: last - 1, got: stamp });
        }
        // What the worker's last push brought was judged then.
        let is_new = last == 0 || tensor.settings[writer as usize] != *settings;
        if is_new && let Err(error) = settings.check(tensor.spec.rule) {
            return Err(SubmissionRefused::BadSettings { name: name(), reason: error.to_string() });
        }
        Ok(())
    }

    /// Under BSP one step is taken for all, also for those that have left since: they must mean the same step.
    fn check_settings(
        &self,
        writer: Rank,
        id: TensorId,
        stamp: u64,
        settings: &Settings,
    ) -> Result<(), SubmissionRefused> {
        let tensor = self.known(id)?;
        if !tensor.spec.consistency.folds_together() {
            return Ok(());
        }
        let same_iteration = |&other: &Rank| other != writer && tensor.pushed[other as usize] == stamp + 1;
        let disagrees = |&other: &Rank| tensor.settings[other as usize] != *settings;
        match (0..self.clocks.size()).filter(same_iteration).find(disagrees) {
            None => Ok(()),
            Some(other) => {
                let (first, second) = (writer.min(other), writer.max(other));
                let (mine, its) = (settings.0, tensor.settings[other as usize].0);
                let (ours, theirs) = if writer < other { (mine, its) } else { (its, mine) };
                let name = tensor.spec.name.clone();
                Err(JobFailure::SettingsConflict { name, first, second, stamp, ours, theirs }.into())
            }
        }
    }

    fn check_load(
        &self,
        writer: Rank,
        id: TensorId,
        first: u32,
        count: u32,
        (slot, part): (u32, u32),
    ) -> Result<(), SubmissionRefused> {
        let tensor = self.check_range(id, first, count)?;
        let slots = tensor.spec.rule.slots().count() as u32;
        let dtype = tensor.spec.dtype;
        let parts = if slot == 0 { 1 } else { dtype.accumulator_size() / dtype.size() } as u32;
        if writer != 0 || slot > slots || part >= parts || tensor.pending[writer as usize] > 0 {
            return Err(tensor.bad_load(slot));
        }
        Ok(())
    }

    /// A fold that waits for its commit would undo a load.
    fn check_committed(&self, id: TensorId, slot: u32) -> Result<(), SubmissionRefused> {
        let tensor = self.known(id)?;
        if tensor.uncommitted.is_empty() { Ok(()) } else { Err(tensor.bad_load(slot)) }
    }

    /// A push of what stands in the lane, or a skip, for which nothing does.
    fn contribute(
        &mut self,
        writer: Rank,
        id: TensorId,
        chunks: std::ops::Range<u32>,
        (stamp, in_lane): (u64, bool),
        settings: Settings,
        home: &mut impl Home,
    ) -> Result<(), SubmissionRefused> {
        let Self { clocks, tensors, writers, gone_over } = self;
        let tensor = tensors.get_mut(id).expect("check_push knows it");
        tensor.settings[writer as usize] = settings;
        tensor.pushed[writer as usize] = stamp + 1;
        let locals = tensor.locals(chunks.start, chunks.end - chunks.start);
        if !in_lane {
            *gone_over += locals.len() * (clocks.size() as usize + BESIDE_WORKERS);
        }
        let mut result = Ok(());
        for local in locals {
            let slot = &mut tensor.stamped[local * clocks.size() as usize + writer as usize];
            if slot.reached() > stamp {
                continue; // C-3: it came before
            }
            *slot = Stamp::of(stamp, in_lane);
            tensor.cover(writer, stamp + 1);
            let mut step = Step { id, clocks, writers, home };
            result = match (tensor.spec.consistency.folds_together(), in_lane) {
                (false, true) => step.fold_alone(tensor, local, writer),
                (false, false) => {
                    step.skip_alone(tensor, local, writer);
                    Ok(())
                }
                (true, _) => {
                    tensor.pending[writer as usize] += 1;
                    tensor.states[local].arrived += u32::from(tensor.states[local].version == stamp);
                    step.advance_together(tensor, local)
                }
            };
            if result.is_err() {
                break;
            }
        }
        tensor.tell(id, home);
        Ok(result?)
    }

    fn clock(&mut self, writer: Rank, clock: u64, home: &mut impl Home) -> Result<(), SubmissionRefused> {
        self.clocks.advance(writer, clock).map_err(|error| SubmissionRefused::ClockWentBack {
            expected_at_least: error.expected_at_least,
            got: error.got,
        })?;
        for place in 0..self.tensors.len() {
            let Some(id) = self.tensors.number(place) else { break };
            // A tensor that the worker pushed whole stands where the push left it; only what it left out moves now.
            let Some(tensor) = self.tensors.get(id).filter(|tensor| !tensor.pushed_whole(writer, clock))
            else {
                continue;
            };
            let keeps = tensor.kept_by(&self.clocks);
            self.gone_over +=
                A_TENSOR + keeps.map_or_else(|| self.clocks.size() as usize, |before| before + 1);
            if keeps.is_none() {
                self.advance_all(id, home)?;
            }
        }
        Ok(())
    }

    fn load(
        &mut self,
        writer: Rank,
        id: TensorId,
        chunks: std::ops::Range<u32>,
        (slot, part, steps): (u32, u32, u64),
        home: &mut impl Home,
    ) -> Result<(), SubmissionRefused> {
        let tensor = self.tensors.get_mut(id).expect("check_load knows it");
        let unloaded = tensor.unloaded;
        for local in tensor.locals(chunks.start, chunks.end - chunks.start) {
            let chunk = tensor.chunks[local];
            home.load(id, chunk, slot, part, writer);
            let state = &mut tensor.states[local];
            state.steps = steps;
            if slot == 0 && std::mem::take(&mut state.unflushed) {
                tensor.unflushed -= 1;
            }
            if slot == 0 && !std::mem::replace(&mut state.loaded, true) {
                tensor.unloaded -= 1;
            }
            home.publish(id, chunk, state.version, steps);
            tensor.folded[writer as usize] += 1;
            tensor.moved[writer as usize] = true;
        }
        if unloaded > 0 && tensor.unloaded == 0 {
            return self.begin(id, home);
        }
        tensor.tell(id, home);
        Ok(())
    }

    fn zero(&mut self, id: TensorId, home: &mut impl Home) -> Result<(), SubmissionRefused> {
        let tensor = self.tensors.get_mut(id).expect("check_load knows it");
        for local in 0..tensor.chunks.len() {
            let state = &mut tensor.states[local];
            if !std::mem::replace(&mut state.loaded, true) {
                tensor.unloaded -= 1;
                home.publish(id, tensor.chunks[local], state.version, state.steps);
            }
        }
        self.begin(id, home)
    }

    /// What was folded so far is seen, all of it; the versions stay.
    fn flush(&mut self, id: TensorId, home: &mut impl Home) {
        let tensor = self.tensors.get_mut(id).expect("it was judged to be known");
        if std::mem::take(&mut tensor.unflushed) == 0 {
            return;
        }
        self.gone_over += tensor.chunks.len() * BESIDE_WORKERS;
        for (&chunk, state) in tensor.chunks.iter().zip(&mut tensor.states) {
            if state.loaded && std::mem::take(&mut state.unflushed) && home.flush(id, chunk) {
                home.publish(id, chunk, state.version, state.steps);
            }
        }
    }

    /// The tensor has its first value, whole: workers that have already passed iterations by move it on.
    fn begin(&mut self, id: TensorId, home: &mut impl Home) -> Result<(), SubmissionRefused> {
        self.advance_all(id, home)?;
        Ok(())
    }

    /// Moves every chunk of the tensor as far as clocks and contributions allow.
    fn advance_all(&mut self, id: TensorId, home: &mut impl Home) -> Result<(), JobFailure> {
        let Self { clocks, tensors, writers, gone_over } = self;
        let Some(tensor) = tensors.get_mut(id) else { return Ok(()) };
        *gone_over += tensor.chunks.len() * (clocks.size() as usize + BESIDE_WORKERS);
        let mut result = Ok(());
        for local in 0..tensor.chunks.len() {
            let mut step = Step { id, clocks, writers, home };
            result = if tensor.spec.consistency.folds_together() {
                step.advance_together(tensor, local)
            } else {
                step.advance_alone(tensor, local);
                Ok(())
            };
            if result.is_err() {
                break;
            }
        }
        tensor.tell(id, home);
        result
    }

    /// After the set of live workers changed: which of them have arrived at each chunk.
    fn recount(&mut self, id: TensorId) {
        let Self { clocks, tensors, .. } = self;
        let Some(tensor) = tensors.get_mut(id) else { return };
        for local in 0..tensor.chunks.len() {
            tensor.states[local].arrived = tensor.arrivals(clocks, local);
        }
    }
}

/// What a fetch names.
const FETCHED_CLOCK: &str = "the clock that a fetch asks for";

/// Whether a number that a worker names leaves room to count on from it.
fn check_limit(what: &'static str, got: u64) -> Result<(), SubmissionRefused> {
    let limit = MAX_CLOCK;
    if got <= limit { Ok(()) } else { Err(SubmissionRefused::TooLarge { what, limit, got }) }
}

impl Tensor {
    fn bad_load(&self, slot: u32) -> SubmissionRefused {
        let slots = self.spec.rule.slots().count() as u32;
        SubmissionRefused::BadLoad { name: self.spec.name.clone(), slot, slots }
    }

    /// Local indices of the chunks homed here among `first..first + count`.
    fn locals(&self, first: u32, count: u32) -> std::ops::Range<usize> {
        let at = |chunk: u32| self.chunks.partition_point(|&homed| homed < chunk);
        at(first)..at(first + count)
    }

    fn stamps(&self, workers: u32, local: usize) -> &[Stamp] {
        &self.stamped[local * workers as usize..][..workers as usize]
    }

    fn cover(&mut self, writer: Rank, stamp: u64) {
        let (last, count) = &mut self.covered[writer as usize];
        *count = if *last == stamp { *count + 1 } else { 1 };
        *last = stamp;
    }

    /// Whether `writer` pushed every chunk homed here in the iteration that brought it to `clock`.
    fn pushed_whole(&self, writer: Rank, clock: u64) -> bool {
        self.covered[writer as usize] == (clock, self.chunks.len())
    }

    /// How many live workers come before one that keeps every chunk from moving: it has neither contributed to the least version of
    /// them, nor passed that by. `None`: there is none such, and each chunk has to be looked at.
    fn kept_by(&self, clocks: &Clocks) -> Option<usize> {
        let least = self.progress.least().unwrap_or(0);
        clocks.live().position(|rank| clocks.of(rank) <= least && self.pushed[rank as usize] <= least)
    }

    /// Live workers whose update to the chunk's present version has come.
    fn arrivals(&self, clocks: &Clocks, local: usize) -> u32 {
        let due = self.states[local].version + 1;
        let stamps = self.stamps(clocks.size(), local);
        clocks.live().filter(|&rank| stamps[rank as usize].reached() == due).count() as u32
    }

    /// Whether a fold of the chunk waits for its commit.
    fn stands_still(&self, local: usize) -> bool {
        !self.uncommitted.is_empty() && self.uncommitted.contains_key(&local)
    }

    /// Tells lanes and progress what has changed.
    fn tell(&mut self, id: TensorId, home: &mut impl Home) {
        for (rank, moved) in self.moved.iter_mut().enumerate() {
            if std::mem::take(moved) {
                home.folded(id, rank as Rank, self.folded[rank]);
            }
        }
        if self.unloaded > 0 {
            return;
        }
        if let Some(least) = self.progress.risen(self.states.iter().map(|state| state.version)) {
            home.progress(id, least);
        }
    }

    fn set_version(&mut self, local: usize, version: u64) {
        let state = &mut self.states[local];
        debug_assert!(version > state.version, "C-1");
        self.progress.leaves(state.version);
        state.version = version;
    }
}

/// One chunk's move, with all that it needs.
struct Step<'a, H> {
    id: TensorId,
    clocks: &'a Clocks,
    writers: &'a mut Vec<Rank>,
    home: &'a mut H,
}

impl<H: Home> Step<'_, H> {
    /// After a commit, with those in it as writers: publishes it, then sees what stood in line behind it.
    fn go_on(&mut self, tensor: &mut Tensor, local: usize) -> Result<(), JobFailure> {
        if tensor.spec.consistency.folds_together() {
            let version = tensor.states[local].version;
            self.committed_together(tensor, local, version + 1);
            return self.advance_together(tensor, local);
        }
        self.committed_alone(tensor, local);
        while !tensor.uncommitted.contains_key(&local)
            && let Some(first) = tensor.behind.iter().position(|&(behind, _)| behind == local)
        {
            let (_, writer) = tensor.behind.remove(first);
            tensor.pending[writer as usize] -= 1;
            self.fold_alone(tensor, local, writer)?;
        }
        Ok(())
    }

    /// SSP and ASP: folds the update that just came, then sees how far the version may move.
    fn fold_alone(&mut self, tensor: &mut Tensor, local: usize, writer: Rank) -> Result<(), JobFailure> {
        if tensor.stands_still(local) {
            tensor.pending[writer as usize] += 1;
            tensor.behind.push((local, writer));
            return Ok(());
        }
        self.writers.clear();
        self.writers.push(writer);
        match self.fold(tensor, local)? {
            Folded::Committed => self.committed_alone(tensor, local),
            Folded::Waits => {
                tensor.pending[writer as usize] += 1;
                tensor.uncommitted.insert(local, self.writers.clone());
            }
        }
        Ok(())
    }

    /// SSP and ASP: a contribution of zeros, which change nothing: a step, and no fold.
    fn skip_alone(&mut self, tensor: &mut Tensor, local: usize, writer: Rank) {
        tensor.states[local].steps += 1;
        tensor.folded[writer as usize] += 1;
        tensor.moved[writer as usize] = true;
        if !tensor.stands_still(local) {
            let before = tensor.states[local].version;
            self.raise_alone(tensor, local);
            self.publish(tensor, local, before);
        }
    }

    fn committed_alone(&mut self, tensor: &mut Tensor, local: usize) {
        self.count(tensor, local);
        let before = tensor.states[local].version;
        self.raise_alone(tensor, local);
        self.publish(tensor, local, before);
    }

    /// SSP and ASP: publishes a version that moved by clocks alone.
    fn advance_alone(&mut self, tensor: &mut Tensor, local: usize) {
        let ChunkState { version: before, loaded, .. } = tensor.states[local];
        if !loaded || tensor.stands_still(local) {
            return; // there is no value yet to publish
        }
        self.raise_alone(tensor, local);
        if tensor.states[local].version > before {
            self.publish(tensor, local, before);
        }
    }

    /// C-2: the version is the least, over live workers, of what they have stamped or passed by; less where one of those stamps
    /// stands in line for a commit.
    fn raise_alone(&mut self, tensor: &mut Tensor, local: usize) {
        if tensor.behind.iter().any(|&(behind, _)| behind == local) {
            return;
        }
        let stamps = tensor.stamps(self.clocks.size(), local);
        let reached = |rank: Rank| stamps[rank as usize].reached().max(self.clocks.of(rank));
        if let Some(version) = self.clocks.live().map(reached).min()
            && version > tensor.states[local].version
        {
            tensor.set_version(local, version);
        }
    }

    /// BSP: folds and publishes as long as every live worker has contributed to the present version or passed it by.
    fn advance_together(&mut self, tensor: &mut Tensor, local: usize) -> Result<(), JobFailure> {
        while tensor.states[local].loaded && !tensor.stands_still(local) {
            let ChunkState { version, arrived, .. } = tensor.states[local];
            if arrived < self.clocks.live_count() && !self.is_due(tensor, local) {
                break;
            }
            self.writers.clear();
            let stamps = tensor.stamps(self.clocks.size(), local);
            // The last contribution of a worker that has gone is folded with the others: it was submitted whole.
            let contributes = |&rank: &Rank| stamps[rank as usize].is_in_lane(version);
            self.writers.extend((0..self.clocks.size()).filter(contributes));
            let mut next = version + 1;
            if self.writers.is_empty() {
                // Unless somebody skipped it, it is passed by.
                if !stamps.iter().any(|stamp| stamp.reached() == next) {
                    let Some(due) = self.next_due(tensor, local) else { break };
                    next = due;
                }
            } else if self.fold(tensor, local)? == Folded::Waits {
                tensor.uncommitted.insert(local, self.writers.clone());
                break;
            } else {
                self.writers.iter().for_each(|&writer| tensor.pending[writer as usize] -= 1);
            }
            self.committed_together(tensor, local, next);
        }
        Ok(())
    }

    /// The chunk reaches version `next` with the update of the writers, if there are any.
    fn committed_together(&mut self, tensor: &mut Tensor, local: usize, next: u64) {
        let version = tensor.states[local].version;
        let mut skipped = false;
        for rank in 0..self.clocks.size() as usize {
            if tensor.stamped[local * self.clocks.size() as usize + rank].is_skipped(version) {
                skipped = true;
                tensor.pending[rank] -= 1;
                tensor.folded[rank] += 1;
                tensor.moved[rank] = true;
            }
        }
        if !self.writers.is_empty() {
            self.count(tensor, local);
        } else if skipped {
            // By zeros, which change nothing: a step all the same.
            tensor.states[local].steps += 1;
        }
        tensor.set_version(local, next);
        tensor.states[local].arrived = tensor.arrivals(self.clocks, local);
        self.publish(tensor, local, version);
    }

    fn is_due(&self, tensor: &Tensor, local: usize) -> bool {
        let version = tensor.states[local].version;
        let stamps = tensor.stamps(self.clocks.size(), local);
        let ready = |rank: Rank| stamps[rank as usize].reached() > version || self.clocks.of(rank) > version;
        self.clocks.live().all(ready)
    }

    /// The next version that a worker contributes to, or that a live worker has not passed by, when none contributes to this one.
    /// `None`: no worker is left, and nothing waits.
    fn next_due(&self, tensor: &Tensor, local: usize) -> Option<u64> {
        let stamps = tensor.stamps(self.clocks.size(), local);
        let version = tensor.states[local].version;
        let bound = |rank: Rank| {
            let stamped = stamps[rank as usize].reached();
            // Also what a worker that has gone left behind: it must not be passed over.
            let contributes = (stamped > version + 1).then(|| stamped - 1);
            contributes.or_else(|| self.clocks.is_live(rank).then(|| self.clocks.of(rank)))
        };
        let next = (0..self.clocks.size()).filter_map(bound).min()?;
        Some(next.max(version + 1))
    }

    fn fold(&mut self, tensor: &Tensor, local: usize) -> Result<Folded, JobFailure> {
        let chunk = tensor.chunks[local];
        let settings = tensor.settings[self.writers[0] as usize];
        let scale = tensor.spec.scale(self.clocks.live_count() + self.gone(tensor, local));
        let fold = Fold { settings, step: tensor.states[local].steps, scale };
        self.home
            .fold(self.id, chunk, &fold, self.writers)
            .map_err(|NonFiniteFrom(rank)| JobFailure::NonFinite { rank, name: tensor.spec.name.clone() })
    }

    /// The contributions of the writers are in the value: a step more, and room in their lanes.
    fn count(&self, tensor: &mut Tensor, local: usize) {
        let state = &mut tensor.states[local];
        state.steps += 1;
        tensor.unflushed += usize::from(!std::mem::replace(&mut state.unflushed, true));
        for &writer in self.writers.iter() {
            tensor.folded[writer as usize] += 1;
            tensor.moved[writer as usize] = true;
        }
    }

    /// Workers that have gone but still count in a mean under BSP: it is over every worker whose update is in it, and every
    /// worker that had completed that iteration. So it does not depend on when the others hear that one left.
    fn gone(&self, tensor: &Tensor, local: usize) -> u32 {
        if !tensor.spec.consistency.folds_together() {
            return 0;
        }
        let version = tensor.states[local].version;
        let stamps = tensor.stamps(self.clocks.size(), local);
        let took_part =
            |&rank: &Rank| stamps[rank as usize].reached() == version + 1 || self.clocks.of(rank) > version;
        (0..self.clocks.size()).filter(|&rank| !self.clocks.is_live(rank)).filter(took_part).count() as u32
    }

    fn publish(&mut self, tensor: &mut Tensor, local: usize, before: u64) {
        let ChunkState { version, steps, .. } = tensor.states[local];
        debug_assert!(version >= before, "C-1");
        self.home.publish(self.id, tensor.chunks[local], version, steps);
    }
}
