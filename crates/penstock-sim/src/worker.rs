//! A worker on its way through its program.
//!
//! It moves in steps: each sends one submission, reads some chunks, or begins one operation. Between any two of them it may
//! be slow, die or turn hostile. What it may ask for it learns from the real [`Position`].

use crate::control::AtBarrier;
use crate::rng::Rng;
use crate::workload::{Share, Workload};
use penstock_proto::error::JobFailure;
use penstock_proto::remote::asking::Changes;
use penstock_proto::submission::Submission;
use penstock_proto::worker::Position;
use penstock_proto::{Rank, TensorId};
use std::collections::VecDeque;
use std::rc::Rc;

/// One operation of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Waits until it is welcomed.
    Join,
    /// Waits until all stand at the barrier with this number.
    Barrier(u64),
    /// Declares the tensor and waits until all servers know it.
    Declare(TensorId),
    /// Gives it its first value; worker 0 only.
    Load(TensorId),
    /// Waits until it has a value.
    Ready(TensorId),
    /// Loads it anew while others work; worker 0 only.
    LoadAgain(TensorId),
    /// Waits until what it has loaded was taken everywhere.
    Loaded(TensorId),
    /// Reads it, with a slack of its own or the tensor's; `trains` if a gradient is computed from it.
    Pull {
        /// The tensor.
        tensor: TensorId,
        /// The read's own slack.
        slack: Option<u32>,
        /// Whether the next contribution depends on it.
        trains: bool,
    },
    /// Reads some of its chunks.
    Gather {
        /// The tensor.
        tensor: TensorId,
        /// The read's own slack.
        slack: Option<u32>,
    },
    /// Contributes to it.
    Push(TensorId),
    /// On another host: has the optimizer's state sent, as another thread would, and goes on meanwhile.
    State(TensorId),
    /// Completes the iteration.
    Clock,
    /// Closes the job.
    Leave,
}

/// What a wait is for, at one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    /// The shard.
    pub shard: usize,
    /// The tensor.
    pub tensor: TensorId,
    /// Least version of each chunk.
    pub version: Option<u64>,
    /// On another host: of these chunks alone, each by itself.
    pub chunks: Option<Rc<[u32]>>,
    /// Own contributions that must have been taken from the lane.
    pub folded: u64,
    /// On another host: the ticket that must have come back, or [`NO_TICKET`](penstock_proto::submission::NO_TICKET).
    pub ticket: u64,
}

/// A pull under way.
#[derive(Debug, Clone)]
pub struct Reading {
    /// The tensor.
    pub tensor: TensorId,
    /// The read's own slack.
    pub slack: Option<u32>,
    /// Whether the next contribution depends on it.
    pub trains: bool,
    /// Whether all of it is read.
    pub whole: bool,
    /// Chunks still to be read, one after the other.
    pub left: Vec<u32>,
    /// What was read, as far as it was.
    pub value: Vec<u8>,
}

/// What follows a wait.
#[derive(Debug, Clone)]
pub enum Then {
    /// The next operation.
    Go,
    /// Filling the lane.
    Fill(TensorId),
    /// Filling it with what is loaded.
    Load(TensorId),
    /// What was loaded was taken everywhere: the load returns.
    Loaded(TensorId),
    /// Reading.
    Read(Reading),
}

/// Where a worker stands.
#[derive(Debug, Clone)]
pub enum State {
    /// It waits to be welcomed.
    Joining,
    /// It is at a barrier, or on its way there and back.
    AtBarrier(AtBarrier),
    /// It will take its next step.
    Running,
    /// It waits until the tensor is declared everywhere.
    Declaring(TensorId),
    /// It waits for all of these needs.
    Waiting {
        /// The needs.
        needs: Vec<Need>,
        /// What follows.
        then: Then,
    },
    /// It reads in place.
    Reading(Reading),
    /// It writes arbitrary words, so many more times.
    Hostile(u64),
    /// It has said goodbye to every shard, and waits to be let go.
    Leaving,
    /// It has come to the end of the program, and does not leave.
    Stays,
    /// It has left.
    Left,
    /// It died, or it was hostile and fell silent.
    Lost,
    /// The job ended before it did.
    Failed(JobFailure),
}

/// A submission that a worker is about to make.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// To which shard.
    pub shard: usize,
    /// What.
    pub submission: Submission,
    /// The chunks that it contributes or loads there.
    pub chunks: Vec<u32>,
    /// Of which tensor, and for a push with which stamp.
    pub update: Option<(TensorId, Option<u64>)>,
}

/// A simulated worker.
#[derive(Debug)]
pub struct Worker {
    /// Its number.
    pub rank: Rank,
    /// Iterations completed.
    pub clock: u64,
    /// Steps taken.
    pub steps: u64,
    /// Where it stands.
    pub state: State,
    /// What it is about to submit.
    pub outbox: VecDeque<Outgoing>,
    /// Its position on each tensor.
    pub positions: Vec<Position>,
    /// For each tensor and shard: chunks submitted, pushed and loaded.
    pub sent: Vec<Vec<u64>>,
    /// What the next gradient is computed from.
    pub seen: Vec<Option<Vec<u8>>>,
    /// On another host: its lane of each tensor. The others' are the home's memory.
    pub lanes: Vec<Rc<[u8]>>,
    /// Barriers that it has passed.
    pub barriers: u64,
    /// How often it has loaded each tensor, its first value included.
    pub loads: Vec<u64>,
    /// The number of its newest load of each tensor; 0: the first value.
    pub newest_loads: Vec<u64>,
    /// On another host: both, when it last fetched all of each tensor.
    pub fetched: Vec<Changes>,
    /// The number of the barrier that it is at, or has passed last.
    pub barrier: u64,
    /// Attempts to pass it.
    pub attempts: u64,
    /// Whether it will be woken.
    pub waking: bool,
    ops: VecDeque<Op>,
}

impl Worker {
    /// A worker at clock 0.
    pub fn new(rank: Rank, tensors: usize, shards: usize) -> Self {
        Self {
            rank,
            clock: 0,
            steps: 0,
            state: State::Running,
            outbox: VecDeque::new(),
            positions: vec![Position::default(); tensors],
            sent: vec![vec![0; shards]; tensors],
            seen: vec![None; tensors],
            lanes: vec![Rc::default(); tensors],
            barriers: 0,
            loads: vec![0; tensors],
            newest_loads: vec![0; tensors],
            fetched: vec![Changes::default(); tensors],
            barrier: 0,
            attempts: 0,
            waking: false,
            ops: VecDeque::from([Op::Join]),
        }
    }

    /// Does this operation before the next.
    pub fn go_back(&mut self, op: Op) {
        self.ops.push_front(op);
    }

    /// Whether it died, or has heard that it was lost.
    pub fn is_lost(&self) -> bool {
        matches!(self.state, State::Lost)
    }

    /// Whether it takes no further step by itself.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, State::Left | State::Lost | State::Failed(_))
    }

    /// The next operation of the program.
    pub fn next_op(&mut self, workload: &Workload, remote: bool, rng: &mut Rng) -> Op {
        if self.ops.is_empty() {
            self.plan(workload, remote, rng);
        }
        match self.ops.pop_front().expect("a plan ends with a clock or with leaving") {
            Op::Pull { tensor, slack, .. } if workload.gathers(self.rank, tensor, self.steps) => {
                Op::Gather { tensor, slack }
            }
            op => op,
        }
    }

    fn plan(&mut self, workload: &Workload, remote: bool, rng: &mut Rng) {
        let Self { rank, clock, .. } = *self;
        self.seen.fill(None);
        if clock >= workload.leaves_at[rank as usize] {
            let stayed = clock == workload.iterations;
            let last = workload.ids().filter(|_| stayed);
            self.ops.extend(last.map(|tensor| Op::Pull { tensor, slack: None, trains: false }));
            self.ops.push_back(Op::Leave);
            return;
        }
        // Before anything that others may wait for with a barrier still to come.
        let [in_front, before_loads, behind_loads] = Workload::barriers(clock).map(Op::Barrier);
        self.ops.extend(workload.meets(clock).then_some(in_front));
        for tensor in workload.ids().filter(|&id| workload.tensors[id as usize].declared_at == clock) {
            self.ops.push_back(Op::Declare(tensor));
            self.ops.extend((rank == 0).then_some(Op::Load(tensor)));
            self.ops.push_back(Op::Ready(tensor));
        }
        // Likewise before anything that others may wait for.
        for tensor in workload.ids() {
            let pull = Op::Pull { tensor, slack: None, trains: false };
            let together = workload.loads_together(tensor, clock);
            if together {
                self.ops.extend(rng.once_in(2).then_some(pull));
                self.ops.push_back(before_loads);
                // Another thread pulls meanwhile.
                self.ops.extend((rank > 0 && rng.once_in(3)).then_some(pull));
            }
            self.plan_loads(workload, tensor, false, rng);
            self.ops.extend(together.then_some([behind_loads, pull]).into_iter().flatten());
        }
        let mut order: Vec<TensorId> = workload.ids().collect();
        rng.shuffle(&mut order);
        let pulls = order.iter().filter(|&&tensor| workload.pulls(rank, tensor, clock));
        self.ops.extend(pulls.map(|&tensor| Op::Pull { tensor, slack: None, trains: true }));
        let pushes = order.iter().filter(|&&tensor| workload.share(rank, tensor, clock) != Share::None);
        self.ops.extend(pushes.map(|&tensor| Op::Push(tensor)));
        let declared = |&tensor: &TensorId| workload.tensors[tensor as usize].declared_at <= clock;
        let looks = order.iter().copied().find(declared).filter(|_| remote && rng.once_in(3));
        self.ops.extend(looks.map(Op::State));
        let again = order.iter().filter_map(|&tensor| {
            let slack = workload.pulls_again(rank, tensor, clock)?;
            Some(Op::Pull { tensor, slack, trains: false })
        });
        self.ops.extend(again);
        workload.ids().for_each(|tensor| self.plan_loads(workload, tensor, true, rng));
        self.ops.push_back(Op::Clock);
    }

    /// The loads of an iteration: some before it reads and contributes, the others behind that.
    fn plan_loads(&mut self, workload: &Workload, tensor: TensorId, late: bool, rng: &mut Rng) {
        let pull = Op::Pull { tensor, slack: None, trains: false };
        for _ in 0..workload.loads(self.rank, tensor, self.clock, late) {
            self.ops.push_back(Op::LoadAgain(tensor));
            // Another thread pulls before the load returns.
            self.ops.extend(rng.once_in(3).then_some(pull));
            self.ops.push_back(Op::Loaded(tensor));
            self.ops.extend(rng.once_in(2).then_some(pull));
        }
    }
}

/// Cuts `0..total` into ranges, in any order; of a part, some are left out.
pub fn ranges(total: u32, share: Share, rng: &mut Rng) -> Vec<(u32, u32)> {
    let mut ranges = Vec::new();
    let mut first = 0;
    while first < total {
        let count = rng.within(1..=u64::from(total - first)) as u32;
        if share == Share::Whole || !rng.once_in(2) {
            ranges.push((first, count));
        }
        first += count;
    }
    rng.shuffle(&mut ranges);
    ranges
}
