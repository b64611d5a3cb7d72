//! A shard: one thread that owns its chunks, with one loop. It takes orders, pops submissions, lets the machine of
//! `penstock-proto` decide, folds in shared memory, publishes, rings for who waits, and sleeps when there is nothing to do.

use super::{Shared, StartError, Wakeup};
use crate::wait::Patience;
use penstock_fabric::doorbell::{self, ANYTHING, Bell, Sleeping};
use penstock_fabric::layout::{board, page};
use penstock_fabric::memory::{HomeMemory, LaneView};
use penstock_fabric::publish::Published;
use penstock_fabric::region::{Mapping, Region, Writers};
use penstock_fabric::ring::{Broken, Consumer, Ring};
use penstock_fabric::sync::Ordering;
use penstock_kernels::{Foreign, Plan};
use penstock_proto::error::JobFailure;
use penstock_proto::shard::{Fold, Home, NonFiniteFrom, Shard, SubmissionRefused};
use penstock_proto::spec::TensorSpec;
use penstock_proto::submission::{Submission, WORDS};
use penstock_proto::{Rank, TensorId};
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Submissions taken from one worker before the next worker's turn.
const TURN: usize = 16;
/// Writers whose lanes fit on the stack; more are collected on the heap.
const USUAL_WRITERS: usize = 32;

/// What the control thread tells a shard.
#[derive(Debug)]
pub(super) enum Command {
    Join { rank: Rank, page: Arc<Mapping>, wakeup: OwnedFd },
    Declare { id: TensorId, spec: Box<TensorSpec>, total: u32, home: HomeMemory },
    Lane { id: TensorId, rank: Rank, lane: LaneView },
    Remove { rank: Rank },
    Missing { ticket: u64, id: TensorId, version: u64 },
    Clocks { ticket: u64 },
    Stop,
}

/// What a shard tells the control thread.
#[derive(Debug)]
pub(super) enum Report {
    Failed(JobFailure),
    Broke { rank: Rank, what: String },
    Missing { ticket: u64, ranks: Vec<Rank> },
    Clocks { ticket: u64, clocks: Vec<i64> },
}

/// Where all shards of a server show whether they sleep.
#[derive(Debug, Clone)]
pub(super) struct Board(Arc<Region>);

impl Board {
    pub(super) fn new() -> rustix::io::Result<Self> {
        Ok(Self(Arc::new(Region::new("penstock-board", board::BYTES, Writers::Maker)?)))
    }

    pub(super) fn region(&self) -> &Region {
        &self.0
    }

    fn sleeping(&self, shard: u32) -> &Sleeping {
        self.0.mapping().at(board::sleeping(shard))
    }
}

/// What a shard is started with.
pub(super) struct Setup {
    pub(super) index: u32,
    pub(super) workers: u32,
    pub(super) crowded: bool,
    pub(super) core: Option<usize>,
    pub(super) board: Board,
    pub(super) reports: Sender<Report>,
    pub(super) control: Arc<Shared>,
}

/// The control thread's end of a shard.
#[derive(Debug)]
pub(super) struct Handle {
    commands: Sender<Command>,
    /// Whether there are commands; set before anyone can act on what they bring.
    flag: Arc<AtomicBool>,
    wakeup: Arc<Wakeup>,
}

impl Handle {
    pub(super) fn send(&self, command: Command) {
        // A shard that has ended needs no commands.
        let _ = self.commands.send(command);
        self.flag.store(true, Ordering::Release);
        self.wakeup.ring();
    }
}

pub(super) fn start(setup: Setup) -> Result<(Handle, JoinHandle<()>), StartError> {
    let (commands, inbox) = channel();
    let (flag, wakeup) = (Arc::new(AtomicBool::new(false)), Arc::new(Wakeup::new()?));
    let handle = Handle { commands, flag: Arc::clone(&flag), wakeup: Arc::clone(&wakeup) };
    let epoll =
        epoll::create(epoll::CreateFlags::CLOEXEC).map_err(StartError::system("make an epoll descriptor"))?;
    let watch = epoll::add(&epoll, &*wakeup, epoll::EventData::new_u64(u64::MAX), epoll::EventFlags::IN);
    watch.map_err(StartError::system("watch a wake-up descriptor"))?;
    let name = format!("penstock-shard-{}", setup.index);
    let ports = (0..setup.workers).map(|_| None).collect();
    let memory = Memory { shard: setup.index, tensors: Vec::new(), touched: None };
    let machine = Shard::new(setup.workers);
    let run =
        Loop { setup, inbox, flag, wakeup, epoll, machine, ports, memory, running: true, failed: false };
    let thread = std::thread::Builder::new().name(name).spawn(move || run.run());
    let thread =
        thread.map_err(|error| StartError::System { what: "start a thread", reason: error.to_string() })?;
    Ok((handle, thread))
}

/// A worker that has joined, as far as this shard has to do with it.
struct Port {
    page: Arc<Mapping>,
    wakeup: OwnedFd,
    ring_at: usize,
    consumer: Consumer,
}

impl Port {
    fn ring(&self) -> &Ring {
        self.page.at(self.ring_at)
    }

    fn bell(&self) -> &Bell {
        self.page.at(page::BELL)
    }
}

struct Loop {
    setup: Setup,
    inbox: Receiver<Command>,
    flag: Arc<AtomicBool>,
    wakeup: Arc<Wakeup>,
    epoll: OwnedFd,
    machine: Shard,
    ports: Vec<Option<Port>>,
    memory: Memory,
    running: bool,
    /// The job has failed here: nothing more is folded or published, so that nobody takes half an update for a whole one.
    failed: bool,
}

impl Loop {
    fn run(mut self) {
        self.pin();
        let mut patience = Patience::new(self.setup.crowded);
        while self.running {
            if self.look() {
                patience = Patience::new(self.setup.crowded);
            } else if !patience.pause() {
                self.sleep();
                patience = Patience::new(self.setup.crowded);
            }
        }
    }

    fn pin(&self) {
        if let Some(core) = self.setup.core {
            let mut set = rustix::thread::CpuSet::new();
            set.set(core);
            if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
                tracing::warn!(shard = self.setup.index, core, %error, "the shard is not bound to its core");
            }
        }
    }

    /// Does what there is to do; `false` if there was nothing.
    fn look(&mut self) -> bool {
        let mut busy = self.take_commands();
        if self.failed {
            return busy;
        }
        for rank in 0..self.ports.len() as Rank {
            busy |= self.take_turn(rank);
        }
        busy
    }

    fn has_work(&self) -> bool {
        let waiting = |port: &Port| !port.consumer.is_empty(port.ring());
        self.flag.load(Ordering::Acquire) || (!self.failed && self.ports.iter().flatten().any(waiting))
    }

    fn sleep(&mut self) {
        let sleeping = self.setup.board.sleeping(self.setup.index);
        sleeping.announce();
        if !self.has_work() {
            let mut events = Vec::with_capacity(16);
            let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None);
            for event in events {
                self.clear(event.data.u64());
            }
        }
        self.setup.board.sleeping(self.setup.index).awake();
    }

    fn clear(&self, token: u64) {
        if token == u64::MAX {
            Wakeup::clear(self.wakeup.as_fd());
        } else if let Some(Some(port)) = self.ports.get(token as usize) {
            Wakeup::clear(port.wakeup.as_fd());
        }
    }

    fn take_commands(&mut self) -> bool {
        if !self.flag.load(Ordering::Acquire) {
            return false;
        }
        self.flag.store(false, Ordering::Relaxed);
        while let Ok(command) = self.inbox.try_recv() {
            self.obey(command);
        }
        true
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Join { rank, page, wakeup } => self.join(rank, page, wakeup),
            Command::Declare { id, spec, total, home } => {
                let chunks = home.chunks().to_vec();
                self.memory.declare(id, spec.plan(), home, self.setup.workers);
                self.machine.declare(id, *spec, total, chunks);
            }
            Command::Lane { id, rank, lane } => self.memory.give_lane(id, rank, lane),
            Command::Remove { rank } => self.remove(rank),
            Command::Missing { ticket, id, version } => {
                let ranks = self.machine.missing(id, version);
                self.report(Report::Missing { ticket, ranks });
            }
            Command::Clocks { ticket } => {
                let clocks = self.machine.clocks();
                let shown = |rank| if clocks.is_live(rank) { clocks.of(rank) as i64 } else { -1 };
                let clocks = (0..clocks.size()).map(shown).collect();
                self.report(Report::Clocks { ticket, clocks });
            }
            Command::Stop => self.running = false,
        }
    }

    fn report(&self, report: Report) {
        let _ = self.setup.reports.send(report);
        self.setup.control.wakeup.ring();
    }

    fn join(&mut self, rank: Rank, page: Arc<Mapping>, wakeup: OwnedFd) {
        let token = epoll::EventData::new_u64(u64::from(rank));
        if let Err(error) = epoll::add(&self.epoll, &wakeup, token, epoll::EventFlags::IN) {
            self.report(Report::Broke { rank, what: format!("its wake-up cannot be watched: {error}") });
            return;
        }
        let ring_at = page::ring(self.setup.index);
        self.ports[rank as usize] = Some(Port { page, wakeup, ring_at, consumer: Consumer::default() });
    }

    /// Takes what the worker still submitted, then goes on without it.
    fn remove(&mut self, rank: Rank) {
        while !self.failed && self.take_turn(rank) {}
        if let Some(port) = self.ports[rank as usize].take() {
            let _ = epoll::delete(&self.epoll, &port.wakeup);
        }
        if self.failed {
            return;
        }
        let result = self.machine.remove(rank, &mut self.memory);
        self.tell_waiting();
        if let Err(failure) = result {
            self.fail(failure);
        }
    }

    /// Takes some submissions of one worker; `false` if there were none.
    fn take_turn(&mut self, rank: Rank) -> bool {
        let mut taken = 0;
        while taken < TURN && !self.failed && self.has_submission(rank) {
            // A tensor, or a lane, is announced here before the worker hears of it, so before it can submit from it.
            self.take_commands();
            match self.pop(rank) {
                Ok(None) => return true, // it was removed just now
                Ok(Some(words)) => {
                    taken += 1;
                    if let Err(what) = self.submit(rank, words) {
                        self.drop_worker(rank, what);
                    }
                    self.tell_waiting();
                }
                Err(broken) => {
                    self.drop_worker(rank, broken.to_string());
                    return true;
                }
            }
        }
        if taken > 0 {
            self.tell_who_waits_for_room(rank);
        }
        taken > 0
    }

    fn has_submission(&self, rank: Rank) -> bool {
        self.ports[rank as usize].as_ref().is_some_and(|port| !port.consumer.is_empty(port.ring()))
    }

    fn pop(&mut self, rank: Rank) -> Result<Option<[u64; WORDS]>, Broken> {
        let Some(port) = &mut self.ports[rank as usize] else { return Ok(None) };
        port.consumer.pop(port.page.at(port.ring_at))
    }

    fn fail(&mut self, failure: JobFailure) {
        self.failed = true;
        self.report(Report::Failed(failure));
    }

    /// The shard listens to this worker no more; the control thread decides what becomes of the job.
    fn drop_worker(&mut self, rank: Rank, what: String) {
        if let Some(port) = self.ports[rank as usize].take() {
            let _ = epoll::delete(&self.epoll, &port.wakeup);
        }
        self.report(Report::Broke { rank, what });
    }

    fn submit(&mut self, rank: Rank, words: [u64; WORDS]) -> Result<(), String> {
        let submission = Submission::decode(words).map_err(|error| error.to_string())?;
        if let Submission::Push { tensor, .. } | Submission::Load { tensor, .. } = submission
            && !self.memory.has_lane(tensor, rank)
        {
            return Err(format!("it submitted tensor {tensor} without having declared it"));
        }
        match self.machine.submit(rank, &submission, &mut self.memory) {
            Ok(()) => Ok(()),
            Err(SubmissionRefused::Failure(failure)) => {
                self.fail(failure);
                Ok(())
            }
            Err(refused) => Err(refused.to_string()),
        }
    }

    /// Rings for everyone who waits for the tensor that something has just happened to.
    fn tell_waiting(&mut self) {
        match self.memory.touched.take() {
            None => {}
            Some(touched) => {
                doorbell::published();
                let waits = |port: &&Port| match touched {
                    Touched::One(id) => port.bell().must_ring(id + 1),
                    Touched::Many => port.bell().waits(),
                };
                self.ports.iter().flatten().filter(waits).for_each(|port| port.bell().ring());
            }
        }
    }

    fn tell_who_waits_for_room(&self, rank: Rank) {
        if let Some(port) = &self.ports[rank as usize] {
            doorbell::published();
            if port.bell().must_ring(ANYTHING) {
                port.bell().ring();
            }
        }
    }
}

/// Which tensors something has happened to since everyone was told.
#[derive(Debug, Clone, Copy)]
enum Touched {
    One(TensorId),
    Many,
}

/// The shard's memory: what its machine acts on.
struct Memory {
    shard: u32,
    tensors: Vec<Option<TensorMemory>>,
    touched: Option<Touched>,
}

struct TensorMemory {
    plan: Plan,
    home: HomeMemory,
    lanes: Vec<Option<LaneView>>,
}

impl Memory {
    fn declare(&mut self, id: TensorId, plan: Plan, home: HomeMemory, workers: u32) {
        let index = id as usize;
        if self.tensors.len() <= index {
            self.tensors.resize_with(index + 1, || None);
        }
        let lanes = (0..workers).map(|_| None).collect();
        self.tensors[index] = Some(TensorMemory { plan, home, lanes });
    }

    fn give_lane(&mut self, id: TensorId, rank: Rank, lane: LaneView) {
        self.tensor(id).lanes[rank as usize] = Some(lane);
    }

    fn has_lane(&self, id: TensorId, rank: Rank) -> bool {
        let tensor = self.tensors.get(id as usize).and_then(Option::as_ref);
        tensor.is_some_and(|tensor| tensor.lanes[rank as usize].is_some())
    }

    fn tensor(&mut self, id: TensorId) -> &mut TensorMemory {
        self.tensors[id as usize].as_mut().expect("the machine acts on declared tensors")
    }

    fn touch(&mut self, id: TensorId) {
        self.touched = match self.touched {
            None => Some(Touched::One(id)),
            Some(Touched::One(other)) if other == id => Some(Touched::One(id)),
            Some(_) => Some(Touched::Many),
        };
    }
}

impl TensorMemory {
    fn parts(&mut self) -> (&Plan, &mut HomeMemory, &[Option<LaneView>]) {
        (&self.plan, &mut self.home, &self.lanes)
    }
}

impl Home for Memory {
    fn fold(&mut self, id: TensorId, chunk: u32, fold: &Fold, writers: &[Rank]) -> Result<(), NonFiniteFrom> {
        let (plan, home, lanes) = self.tensor(id).parts();
        let range = home.range(chunk);
        let lane = |&writer: &Rank| lanes[writer as usize].as_ref().expect("who pushed has a lane");
        let contributions: SmallVec<[Foreign<'_>; USUAL_WRITERS]> =
            writers.iter().map(|writer| lane(writer).contribution(range.clone())).collect();
        home.expect_after(chunk);
        let mut chunk = home.chunk(chunk);
        chunk.header.begin();
        let Fold { settings, step, scale } = fold;
        let folded =
            penstock_kernels::fold(plan, settings, *step, *scale, &contributions, chunk.value, chunk.state);
        folded.map_err(|refused| {
            chunk.header.leave();
            NonFiniteFrom(writers[refused.lane])
        })
    }

    fn load(&mut self, id: TensorId, chunk: u32, slot: u32, part: u32, writer: Rank) {
        let (plan, home, lanes) = self.tensor(id).parts();
        // Arrays are as long as the value, or twice as long where their elements are twice as wide.
        let parts = plan.dtype.accumulator_size() / plan.dtype.size();
        let lane = lanes[writer as usize].as_ref().expect("who loads has a lane");
        let contribution = lane.contribution(home.range(chunk));
        let mut chunk = home.chunk(chunk);
        chunk.header.begin();
        let bytes = chunk.value.len();
        match slot {
            0 => contribution.copy_to(chunk.value),
            slot => {
                let at = ((slot as usize - 1) * parts + part as usize) * bytes;
                contribution.copy_to(&mut chunk.state[at..at + bytes]);
            }
        }
    }

    fn publish(&mut self, id: TensorId, chunk: u32, version: u64, steps: u64) {
        let (_, home, _) = self.tensor(id).parts();
        home.header(chunk).publish(Published { version, steps });
    }

    fn progress(&mut self, id: TensorId, version: u64) {
        let (_, home, _) = self.tensor(id).parts();
        // Pairs with the acquire load in the worker's pull: who sees the progress sees the chunks.
        home.progress().0.store(version + 1, Ordering::Release);
        self.touch(id);
    }

    fn folded(&mut self, id: TensorId, writer: Rank, count: u64) {
        let shard = self.shard;
        let (_, _, lanes) = self.tensor(id).parts();
        if let Some(lane) = &lanes[writer as usize] {
            // Pairs with the acquire load before the worker writes its lane again: the home has read what it counts.
            lane.folded(shard).0.store(count, Ordering::Release);
        }
        self.touch(id);
    }
}
