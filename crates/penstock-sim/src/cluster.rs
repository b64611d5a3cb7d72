//! The event loop: workers, links and shards under one queue of events.

use crate::checkers::{Checker, End};
use crate::faults::{Fate, OnLoss};
use crate::history::{Observation, Tally};
use crate::memory::{Deed, Memory, Mirror};
use crate::rng::Rng;
use crate::scenario::Scenario;
use crate::transport::{Kind, Link, Message, Payload};
use crate::worker::{Need, Op, Outgoing, Reading, State, Then, Worker, ranges};
use crate::workload::{Share, Workload};
use penstock_proto::chunk::Cut;
use penstock_proto::error::{JobFailure, Loss};
use penstock_proto::placement;
use penstock_proto::shard::{Shard, SubmissionRefused};
use penstock_proto::submission::Submission;
use penstock_proto::{Rank, TensorId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::rc::Rc;

/// More events than any of our jobs has: a run that gets there never ends.
const MOST_EVENTS: u64 = 3_000_000;
/// Words that a hostile worker writes before it falls silent.
const HOSTILE_SUBMISSIONS: u64 = 60;
/// Ticks after which a silent worker is taken for lost, in units of the longest delay.
const LEASE: u64 = 10;

/// Why a run is no good.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Failure {
    /// A checker saw a promise broken.
    #[error("{checker}, tick {at}: {what}")]
    Violation {
        /// Which checker.
        checker: &'static str,
        /// When.
        at: u64,
        /// What it saw.
        what: String,
    },
    /// Nothing is under way any more, and someone waits.
    #[error("liveness, tick {at}: nothing moves any more, and {}", waits.join("; "))]
    Stuck {
        /// When.
        at: u64,
        /// Who waits, for what, and who is missing.
        waits: Vec<String>,
    },
    /// The run does not end.
    #[error("liveness, tick {at}: no end after {MOST_EVENTS} events")]
    Endless {
        /// When.
        at: u64,
    },
    /// An honest worker was refused.
    #[error("protocol, tick {at}: worker {rank}, which is honest, was refused: {why}")]
    HonestRefused {
        /// When.
        at: u64,
        /// Who.
        rank: Rank,
        /// Why.
        why: String,
    },
}

/// What came of a run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The tensors' last values, as they stand published.
    pub values: Vec<Vec<u8>>,
    /// Digests of what the workers read at each position, where they read without slack.
    pub reads: BTreeMap<(Rank, TensorId, u64), u64>,
    /// Why the job ended early, if it did.
    pub failure: Option<JobFailure>,
    /// How often each thing happened.
    pub tally: Tally,
    /// How long it took.
    pub ticks: u64,
}

type Chunks = Vec<(u32, Mirror)>;
/// Who is told of everything, with its tick.
pub type Log<'a> = Option<&'a mut dyn FnMut(u64, &Observation<'_>)>;

#[derive(Debug)]
enum Event {
    Step(Rank),
    Wake(Rank),
    Deliver(Rank, usize),
    Heal(Rank, usize),
    Declare(TensorId, usize),
    Ask { rank: Rank, wait: u64, need: Need },
    Answer { rank: Rank, wait: u64, shard: usize, chunks: Chunks },
    Silent(Rank),
    Remove(Rank, usize),
    End(Rank),
}

/// An entry of the queue; the sequence number makes the order of equal ticks the order of their making.
#[derive(Debug)]
struct Due {
    at: u64,
    sequence: u64,
    event: Event,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.sequence) == (other.at, other.sequence)
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

/// How a tensor is cut and where its chunks are at home.
#[derive(Debug)]
struct Map {
    cut: Cut,
    /// For each shard its chunks, ascending.
    homes: Vec<Vec<u32>>,
}

impl Map {
    fn all(scenario: &Scenario) -> Vec<Self> {
        let topology = scenario.topology;
        let mut servers = vec![0; topology.servers as usize];
        let mut shards = vec![vec![0; topology.shards as usize]; topology.servers as usize];
        let map = |id: TensorId| {
            let cut = Cut::new(scenario.workload.spec(id).bytes(), topology.chunk_bytes);
            let mut homes = Vec::new();
            let extents = placement::extents(&mut servers, cut.chunks(), topology.chunk_bytes);
            for (extent, loads) in extents.iter().zip(&mut shards) {
                let size = |chunk| cut.range(chunk).end - cut.range(chunk).start;
                let placed = placement::shards(loads, extent.chunks().map(size));
                let of = |shard: u32| {
                    let here = extent.chunks().zip(&placed).filter(|&(_, &at)| at == shard);
                    here.map(|(chunk, _)| chunk).collect()
                };
                homes.extend((0..topology.shards).map(of));
            }
            Self { cut, homes }
        };
        scenario.workload.ids().map(map).collect()
    }

    fn home(&self, chunk: u32) -> usize {
        self.homes
            .iter()
            .position(|chunks| chunks.binary_search(&chunk).is_ok())
            .expect("every chunk has a home")
    }

    fn bytes(&self, chunk: u32) -> std::ops::Range<usize> {
        let range = self.cut.range(chunk);
        range.start as usize..range.end as usize
    }
}

#[derive(Debug)]
struct Server {
    machine: Shard,
    memory: Memory,
    /// Questions of remote workers that cannot be answered yet.
    asks: Vec<(Rank, u64, Need)>,
}

impl Server {
    fn meets(&self, rank: Rank, need: &Need) -> bool {
        let version = need.version.is_none_or(|least| self.memory.progress(need.tensor) >= Some(least));
        version && self.memory.folded(need.tensor, rank) >= need.folded
    }
}

/// A run under way.
pub struct Cluster<'a> {
    scenario: &'a Scenario,
    workload: &'a Workload,
    maps: Vec<Map>,
    now: u64,
    sequence: u64,
    events: BinaryHeap<Reverse<Due>>,
    rng: Rng,
    servers: Vec<Server>,
    links: Vec<Vec<Link>>,
    workers: Vec<Worker>,
    /// For each tensor: shards that still have to hear of it; `None` before anyone declared it.
    undeclared: Vec<Option<BTreeSet<usize>>>,
    lost: BTreeSet<Rank>,
    failure: Option<JobFailure>,
    checkers: Vec<Box<dyn Checker>>,
    reads: BTreeMap<(Rank, TensorId, u64), u64>,
    tally: Tally,
    log: Log<'a>,
}

impl<'a> Cluster<'a> {
    /// The cluster of a scenario, before its first event.
    pub fn new(scenario: &'a Scenario, checkers: Vec<Box<dyn Checker>>, log: Log<'a>) -> Self {
        let workload = &scenario.workload;
        let mut rng = Rng::new(scenario.seed);
        let (workers, tensors) = (workload.workers(), workload.tensors.len());
        let shards = (scenario.topology.servers * scenario.topology.shards) as usize;
        let server = |rng: &mut Rng| Server {
            machine: Shard::new(workers),
            memory: Memory::new(scenario.sabotage, Rng::new(rng.word())),
            asks: Vec::new(),
        };
        let mut cluster = Self {
            scenario,
            workload,
            maps: Map::all(scenario),
            now: 0,
            sequence: 0,
            events: BinaryHeap::new(),
            servers: (0..shards).map(|_| server(&mut rng)).collect(),
            links: (0..workers).map(|_| (0..shards).map(|_| Link::default()).collect()).collect(),
            workers: (0..workers).map(|rank| Worker::new(rank, tensors, shards)).collect(),
            undeclared: vec![None; tensors],
            lost: BTreeSet::new(),
            failure: None,
            checkers,
            reads: BTreeMap::new(),
            tally: Tally::default(),
            log,
            rng,
        };
        (0..workers).for_each(|rank| cluster.step_later(rank));
        cluster
    }

    /// Runs to the end.
    pub fn run(mut self) -> Result<Outcome, Failure> {
        while let Some(Reverse(due)) = self.events.pop() {
            self.now = due.at;
            if self.sequence > MOST_EVENTS {
                return Err(Failure::Endless { at: self.now });
            }
            self.handle(due.event)?;
        }
        self.finish()
    }

    fn finish(mut self) -> Result<Outcome, Failure> {
        let waits: Vec<String> =
            self.workers.iter().filter_map(|worker| self.describe_wait(worker)).collect();
        if !waits.is_empty() {
            return Err(Failure::Stuck { at: self.now, waits });
        }
        let mut last = Vec::new();
        for (id, map) in self.workload.ids().zip(&self.maps) {
            let mirror = |chunk| {
                let mirror = self.servers[map.home(chunk)].memory.mirror(id, chunk)?;
                Some((id, chunk, mirror.clone()))
            };
            last.extend((0..map.cut.chunks()).filter_map(mirror));
        }
        let end = End { failed: self.failure.is_some(), last: &last };
        for checker in &mut self.checkers {
            let name = checker.name();
            checker.finish(&end).map_err(|what| Failure::Violation { checker: name, at: self.now, what })?;
        }
        let value = |id: TensorId| {
            let chunks = last.iter().filter(|(tensor, ..)| *tensor == id);
            chunks.flat_map(|(.., mirror)| mirror.value.iter().copied()).collect()
        };
        Ok(Outcome {
            values: self.workload.ids().map(value).collect(),
            reads: self.reads,
            failure: self.failure,
            tally: self.tally,
            ticks: self.now,
        })
    }

    fn describe_wait(&self, worker: &Worker) -> Option<String> {
        let rank = worker.rank;
        match &worker.state {
            State::Waiting { needs, .. } => {
                let unmet = needs.iter().find(|need| !self.servers[need.shard].meets(rank, need));
                let Some(&Need { shard, tensor, version, folded }) = unmet else {
                    return Some(format!("worker {rank} was not woken"));
                };
                let machine = &self.servers[shard].machine;
                let missing = machine.missing(tensor, version.unwrap_or(worker.clock));
                let version = version.map_or_else(String::new, |version| format!(" version {version}"));
                Some(format!(
                    "worker {rank} waits for{version} of t{tensor} with {folded} of its own folded at shard {shard}, \
                     which misses {missing:?}"
                ))
            }
            State::Declaring(tensor) => Some(format!("worker {rank} waits for the declaration of t{tensor}")),
            State::Left | State::Lost | State::Failed(_) => None,
            State::Running | State::Reading(_) | State::Hostile(_) => {
                Some(format!("worker {rank} stands still"))
            }
        }
    }

    fn later(&mut self, delay: u64, event: Event) {
        self.at(self.now + delay, event);
    }

    fn at(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse(Due { at, sequence: self.sequence, event }));
    }

    fn delay(&mut self) -> u64 {
        self.scenario.faults.some_delay(&mut self.rng)
    }

    fn step_later(&mut self, rank: Rank) {
        let pace = self.scenario.faults.pace[rank as usize];
        let delay = self.rng.within(1..=pace);
        self.later(delay, Event::Step(rank));
    }

    fn see(&mut self, observation: Observation<'_>) -> Result<(), Failure> {
        self.tally.add(&observation);
        if let Some(log) = &mut self.log {
            log(self.now, &observation);
        }
        let at = self.now;
        for checker in &mut self.checkers {
            let name = checker.name();
            checker.see(&observation).map_err(|what| Failure::Violation { checker: name, at, what })?;
        }
        Ok(())
    }

    fn is_remote(&self, rank: Rank) -> bool {
        self.scenario.faults.remote[rank as usize]
    }

    fn handle(&mut self, event: Event) -> Result<(), Failure> {
        match event {
            Event::Step(rank) => self.step(rank),
            Event::Wake(rank) => {
                self.wake(rank);
                Ok(())
            }
            Event::Deliver(rank, shard) => self.deliver(rank, shard),
            Event::Heal(rank, shard) => self.heal(rank, shard),
            Event::Declare(tensor, shard) => self.declare(tensor, shard),
            Event::Ask { rank, wait, need } => {
                self.servers[need.shard].asks.push((rank, wait, need));
                self.answer(need.shard);
                Ok(())
            }
            Event::Answer { rank, wait, shard, chunks } => self.answered(rank, wait, shard, chunks),
            Event::Silent(rank) => {
                self.lose(rank, &Loss::Died);
                Ok(())
            }
            Event::Remove(rank, shard) => self.remove(rank, shard, false),
            Event::End(rank) => self.end(rank),
        }
    }
}

/// The workers' side.
impl Cluster<'_> {
    fn step(&mut self, rank: Rank) -> Result<(), Failure> {
        let worker = &mut self.workers[rank as usize];
        if worker.has_ended() {
            return Ok(());
        }
        worker.steps += 1;
        let steps = worker.steps;
        match self.scenario.faults.fates[rank as usize] {
            Fate::Crash { after } if steps > after => return self.crash(rank),
            Fate::Hostile { after } if steps > after => return self.turn(rank),
            _ => {}
        }
        if let Some(outgoing) = self.workers[rank as usize].outbox.pop_front() {
            self.submit(rank, outgoing)?;
        } else if matches!(self.workers[rank as usize].state, State::Reading(_)) {
            self.read_on(rank)?;
        } else {
            let op = self.workers[rank as usize].next_op(self.workload, &mut self.rng);
            self.begin(rank, op)?;
        }
        if matches!(self.workers[rank as usize].state, State::Running | State::Reading(_)) {
            self.step_later(rank);
        }
        Ok(())
    }

    fn begin(&mut self, rank: Rank, op: Op) -> Result<(), Failure> {
        match op {
            Op::Declare(tensor) => self.begin_declare(rank, tensor),
            Op::Load(tensor) => self.load(rank, tensor),
            Op::Ready(tensor) => {
                let needs = self.needs(tensor, |_| (Some(0), 0));
                self.wait_for(rank, needs, Then::Go);
            }
            Op::Pull { tensor, slack, trains } => self.pull(rank, tensor, slack, trains),
            Op::Push(tensor) => {
                let sent = self.workers[rank as usize].sent[tensor as usize].clone();
                let mut needs = self.needs(tensor, |shard| (None, sent[shard]));
                needs.retain(|need| need.folded > 0);
                self.wait_for(rank, needs, Then::Fill(tensor));
            }
            Op::Clock => {
                let worker = &mut self.workers[rank as usize];
                worker.clock += 1;
                let clock = worker.clock;
                self.see(Observation::Clocked { rank, clock })?;
                self.tell_all(rank, Kind::Clock, |_| {
                    Message::Submission(Submission::Clock { clock }.encode(), None)
                });
            }
            Op::Leave => self.tell_all(rank, Kind::Other, |_| Message::Bye),
        }
        Ok(())
    }

    fn tell_all(&mut self, rank: Rank, kind: Kind, message: impl Fn(usize) -> Message) {
        let outgoing = (0..self.servers.len()).map(|shard| Outgoing {
            shard,
            message: message(shard),
            kind,
            chunks: Vec::new(),
            update: None,
        });
        let mut outgoing: Vec<Outgoing> = outgoing.collect();
        self.rng.shuffle(&mut outgoing);
        self.workers[rank as usize].outbox.extend(outgoing);
    }

    fn begin_declare(&mut self, rank: Rank, tensor: TensorId) {
        if self.undeclared[tensor as usize].is_none() {
            self.undeclared[tensor as usize] = Some((0..self.servers.len()).collect());
            for shard in 0..self.servers.len() {
                let delay = self.delay();
                self.later(delay, Event::Declare(tensor, shard));
            }
        }
        self.workers[rank as usize].state = State::Declaring(tensor);
        self.wake_later(rank);
    }

    /// A need at every shard that homes chunks of the tensor.
    fn needs(&self, tensor: TensorId, what: impl Fn(usize) -> (Option<u64>, u64)) -> Vec<Need> {
        let homes = self.maps[tensor as usize].homes.iter().enumerate();
        let here = homes.filter(|(_, chunks)| !chunks.is_empty());
        here.map(|(shard, _)| {
            let (version, folded) = what(shard);
            Need { shard, tensor, version, folded }
        })
        .collect()
    }

    fn wait_for(&mut self, rank: Rank, needs: Vec<Need>, then: Then) {
        if needs.is_empty() {
            return self.resume(rank, then);
        }
        let worker = &mut self.workers[rank as usize];
        worker.wait += 1;
        let wait = worker.wait;
        let open = needs.iter().map(|need| need.shard).collect();
        worker.state = State::Waiting { needs: needs.clone(), open, then };
        if self.is_remote(rank) {
            for need in needs {
                let delay = self.delay();
                self.later(delay, Event::Ask { rank, wait, need });
            }
        } else {
            self.wake_later(rank);
        }
    }

    fn wake_later(&mut self, rank: Rank) {
        if !std::mem::replace(&mut self.workers[rank as usize].waking, true) {
            let delay = self.delay();
            self.later(delay, Event::Wake(rank));
        }
    }

    /// A worker looks at what it waits for.
    fn wake(&mut self, rank: Rank) {
        self.workers[rank as usize].waking = false;
        let declared = |tensor| self.undeclared[tensor as usize].as_ref().is_some_and(BTreeSet::is_empty);
        let met = |needs: &[Need]| needs.iter().all(|need| self.servers[need.shard].meets(rank, need));
        let then = match &self.workers[rank as usize].state {
            State::Declaring(tensor) if declared(*tensor) => Then::Go,
            State::Waiting { needs, then, .. } if !self.is_remote(rank) && met(needs) => then.clone(),
            _ => return,
        };
        self.go_on(rank, then);
    }

    fn answered(&mut self, rank: Rank, wait: u64, shard: usize, chunks: Chunks) -> Result<(), Failure> {
        let worker = &mut self.workers[rank as usize];
        if worker.wait != wait {
            return Ok(());
        }
        let State::Waiting { open, then, .. } = &mut worker.state else { return Ok(()) };
        open.remove(&shard);
        let whole = open.is_empty();
        if let Then::Read(reading) = then {
            for (chunk, mirror) in &chunks {
                let bytes = self.maps[reading.tensor as usize].bytes(*chunk);
                reading.value[bytes].copy_from_slice(&mirror.value);
            }
        }
        let then = then.clone();
        if let Then::Read(Reading { tensor, slack, .. }) = then {
            for (chunk, Mirror { version, value }) in &chunks {
                let (chunk, version) = (*chunk, *version);
                self.see(Observation::Read { rank, tensor, chunk, slack, version, value })?;
            }
        }
        if whole {
            self.go_on(rank, then);
        }
        Ok(())
    }

    /// A wait is over.
    fn go_on(&mut self, rank: Rank, then: Then) {
        self.resume(rank, then);
        self.step_later(rank);
    }

    fn resume(&mut self, rank: Rank, then: Then) {
        let remote = self.is_remote(rank);
        self.workers[rank as usize].state = State::Running;
        match then {
            Then::Go => {}
            Then::Fill(tensor) => self.fill(rank, tensor),
            Then::Read(reading) if remote => self.finish_read(rank, reading),
            Then::Read(reading) => self.workers[rank as usize].state = State::Reading(reading),
        }
    }

    fn pull(&mut self, rank: Rank, tensor: TensorId, slack: Option<u32>, trains: bool) {
        let worker = &self.workers[rank as usize];
        let consistency = self.workload.spec(tensor).consistency;
        let position = worker.positions[tensor as usize];
        let requirement = position.requirement(worker.clock, slack, consistency);
        let sent = worker.sent[tensor as usize].clone();
        let own = |shard: usize| if requirement.own_folded { sent[shard] } else { 0 };
        let needs = self.needs(tensor, |shard| (Some(requirement.version), own(shard)));
        let cut = self.maps[tensor as usize].cut;
        let mut left: Vec<u32> = (0..cut.chunks()).collect();
        self.rng.shuffle(&mut left);
        let value = vec![0; cut.bytes() as usize];
        self.wait_for(rank, needs, Then::Read(Reading { tensor, slack, trains, left, value }));
    }

    /// A local reader takes some chunks from their mirrors; the home may go on meanwhile.
    fn read_on(&mut self, rank: Rank) -> Result<(), Failure> {
        let State::Reading(mut reading) =
            std::mem::replace(&mut self.workers[rank as usize].state, State::Running)
        else {
            return Ok(());
        };
        for _ in 0..self.rng.within(1..=4) {
            let Some(chunk) = reading.left.pop() else { break };
            let Reading { tensor, slack, .. } = reading;
            let map = &self.maps[tensor as usize];
            let mirror = self.servers[map.home(chunk)].memory.mirror(tensor, chunk);
            let Mirror { version, value } = mirror.expect("what is ready is published").clone();
            reading.value[map.bytes(chunk)].copy_from_slice(&value);
            self.see(Observation::Read { rank, tensor, chunk, slack, version, value: &value })?;
        }
        if reading.left.is_empty() {
            self.finish_read(rank, reading);
        } else {
            self.workers[rank as usize].state = State::Reading(reading);
        }
        Ok(())
    }

    fn finish_read(&mut self, rank: Rank, reading: Reading) {
        let Reading { tensor, slack, trains, value, .. } = reading;
        let worker = &mut self.workers[rank as usize];
        if slack.is_none() && self.workload.spec(tensor).consistency.folds_together() {
            let position = worker.positions[tensor as usize].at(worker.clock);
            self.reads.insert((rank, tensor, position), crate::rng::digest(&value));
        }
        if trains {
            worker.seen[tensor as usize] = Some(value);
        }
    }

    /// The lane is free: the contribution goes into it, and its submissions into the outbox.
    fn fill(&mut self, rank: Rank, tensor: TensorId) {
        let worker = &mut self.workers[rank as usize];
        let clock = worker.clock;
        let seen = worker.seen[tensor as usize].as_deref();
        let mut lane = self.workload.contribution(rank, tensor, clock, seen);
        if self.scenario.faults.fates[rank as usize] == (Fate::Poison { iteration: clock }) {
            lane.fill(0xff); // a NaN in every dtype
        }
        let position = &mut worker.positions[tensor as usize];
        let contribution = position.contribute(clock, false).expect("a program pushes once in an iteration");
        position.contributed(contribution);
        let share = self.workload.share(rank, tensor, clock);
        let settings = self.workload.settings(tensor, clock);
        let stamp = contribution.stamp;
        let push = |first, count| Submission::Push { tensor, first, count, stamp, settings };
        self.put(rank, tensor, &lane, share, Some(stamp), push);
    }

    fn load(&mut self, rank: Rank, tensor: TensorId) {
        let Some(start) = self.workload.start(tensor) else {
            self.tell_all(rank, Kind::Other, |_| {
                Message::Submission(Submission::Zero { tensor }.encode(), None)
            });
            return;
        };
        let load = |first, count| Submission::Load { tensor, first, count, slot: 0, part: 0, steps: 0 };
        self.put(rank, tensor, &start, Share::Whole, None, load);
    }

    /// Puts `lane` into the lanes, at once where they are the same memory, else with the submissions.
    fn put(
        &mut self,
        rank: Rank,
        tensor: TensorId,
        lane: &[u8],
        share: Share,
        stamp: Option<u64>,
        submission: impl Fn(u32, u32) -> Submission,
    ) {
        let remote = self.is_remote(rank);
        let map = &self.maps[tensor as usize];
        let mut outbox = Vec::new();
        for (first, count) in ranges(map.cut.chunks(), share, &mut self.rng) {
            let words = submission(first, count).encode();
            for (shard, homed) in map.homes.iter().enumerate() {
                let within = homed.iter().copied().filter(|chunk| (first..first + count).contains(chunk));
                let chunks: Vec<u32> = within.collect();
                if chunks.is_empty() {
                    continue;
                }
                let bytes = |&chunk: &u32| (chunk, lane[map.bytes(chunk)].to_vec());
                let payload: Vec<(u32, Vec<u8>)> = chunks.iter().map(bytes).collect();
                if !remote {
                    let memory = &mut self.servers[shard].memory;
                    payload.iter().for_each(|(chunk, bytes)| memory.write_lane(tensor, *chunk, rank, bytes));
                }
                let payload = remote.then(|| Rc::new(Payload { tensor, chunks: payload }));
                let kind = if stamp.is_some() { Kind::Push } else { Kind::Other };
                let message = Message::Submission(words, payload);
                outbox.push(Outgoing { shard, message, kind, chunks, update: Some((tensor, stamp)) });
            }
        }
        self.workers[rank as usize].outbox.extend(outbox);
    }

    fn submit(&mut self, rank: Rank, outgoing: Outgoing) -> Result<(), Failure> {
        let Outgoing { shard, message, kind, chunks, update } = outgoing;
        if let Some((tensor, stamp)) = update {
            self.workers[rank as usize].sent[tensor as usize][shard] += chunks.len() as u64;
            for chunk in chunks {
                if let Some(stamp) = stamp {
                    self.see(Observation::Submitted { rank, tensor, chunk, stamp })?;
                }
            }
        }
        let bye = matches!(message, Message::Bye);
        self.send(rank, shard, message, kind)?;
        if bye && self.workers[rank as usize].outbox.is_empty() {
            self.workers[rank as usize].state = State::Left;
            self.see(Observation::Ended { rank, how: "left" })?;
        }
        Ok(())
    }

    fn send(&mut self, rank: Rank, shard: usize, message: Message, kind: Kind) -> Result<(), Failure> {
        let due = self.now + self.delay();
        let remote = self.is_remote(rank);
        let link = &mut self.links[rank as usize][shard];
        if let Some(due) = link.send(message, kind, due, remote) {
            self.at(due, Event::Deliver(rank, shard));
        }
        let cuts = remote && self.rng.once_in(self.scenario.faults.cut_once_in);
        if cuts && self.links[rank as usize][shard].cut() {
            self.see(Observation::Cut { rank, shard })?;
            let delay = 3 * self.delay();
            self.later(delay, Event::Heal(rank, shard));
        }
        Ok(())
    }

    fn heal(&mut self, rank: Rank, shard: usize) -> Result<(), Failure> {
        if self.lost.contains(&rank) || matches!(self.workers[rank as usize].state, State::Lost) {
            return Ok(());
        }
        let faults = &self.scenario.faults;
        let delay = |rng: &mut Rng| faults.some_delay(rng);
        let dues = self.links[rank as usize][shard].heal(self.now, delay, &mut self.rng);
        self.see(Observation::Healed { rank, shard, resent: dues.len() })?;
        dues.into_iter().for_each(|due| self.at(due, Event::Deliver(rank, shard)));
        Ok(())
    }

    fn crash(&mut self, rank: Rank) -> Result<(), Failure> {
        self.workers[rank as usize].state = State::Lost;
        for link in &mut self.links[rank as usize] {
            link.abandon(&mut self.rng);
        }
        self.see(Observation::Crashed { rank })?;
        let lease = self.rng.within(1..=LEASE * self.scenario.faults.delay);
        self.later(lease, Event::Silent(rank));
        Ok(())
    }

    /// A hostile worker writes one more submission of its own making.
    fn turn(&mut self, rank: Rank) -> Result<(), Failure> {
        let left = match self.workers[rank as usize].state {
            State::Hostile(left) => left,
            _ => {
                self.see(Observation::Turned { rank })?;
                self.workers[rank as usize].outbox.clear();
                self.servers.iter_mut().for_each(|server| server.memory.clear_lanes(rank));
                HOSTILE_SUBMISSIONS
            }
        };
        if left == 0 {
            return self.crash(rank);
        }
        self.workers[rank as usize].state = State::Hostile(left - 1);
        let shard = self.rng.within(0..=self.servers.len() as u64 - 1) as usize;
        let words = self.hostile_words(rank);
        self.send(rank, shard, Message::Submission(words, None), Kind::Other)?;
        self.step_later(rank);
        Ok(())
    }

    /// Words that are wild, on the edge, or nearly right, so that some get far.
    fn hostile_words(&mut self, rank: Rank) -> [u64; 8] {
        let clock = self.workers[rank as usize].clock;
        let edges = [0, 1, 2, 3, 4, clock, clock + 1, u64::MAX, 1 << 32, 1 << 62, u64::from(u32::MAX)];
        let rng = &mut self.rng;
        let mut words: [u64; 8] =
            std::array::from_fn(|_| if rng.once_in(3) { rng.word() } else { rng.pick(&edges) });
        if rng.once_in(2) {
            let tensor = rng.within(0..=self.workload.tensors.len() as u64 - 1);
            words = [1 | tensor << 32, 1 << 32, rng.pick(&[clock, clock + 1]), 0, 0, 0, 0, 0];
        }
        words
    }

    fn end(&mut self, rank: Rank) -> Result<(), Failure> {
        let Some(failure) = self.failure.clone() else { return Ok(()) };
        if self.workers[rank as usize].has_ended() {
            return Ok(());
        }
        let how = failure.to_string();
        self.workers[rank as usize].state = State::Failed(failure);
        self.see(Observation::Ended { rank, how: &how })
    }
}

/// The servers' side.
impl Cluster<'_> {
    fn declare(&mut self, tensor: TensorId, shard: usize) -> Result<(), Failure> {
        let Map { cut, homes } = &self.maps[tensor as usize];
        let spec = self.workload.spec(tensor);
        let Server { machine, memory, .. } = &mut self.servers[shard];
        memory.declare(tensor, spec, *cut, &homes[shard], self.workload.workers());
        machine.declare(tensor, spec.clone(), cut.chunks(), homes[shard].clone());
        self.undeclared[tensor as usize].as_mut().expect("someone declared it").remove(&shard);
        self.give_up_orphans(shard);
        self.after(shard)?;
        let waiting = |worker: &Worker| matches!(worker.state, State::Declaring(_)).then_some(worker.rank);
        let waiting: Vec<Rank> = self.workers.iter().filter_map(waiting).collect();
        waiting.into_iter().for_each(|rank| self.wake_later(rank));
        Ok(())
    }

    fn deliver(&mut self, rank: Rank, shard: usize) -> Result<(), Failure> {
        let Some(message) = self.links[rank as usize][shard].receive(self.now) else { return Ok(()) };
        let Server { machine, memory, .. } = &mut self.servers[shard];
        if !machine.clocks().is_live(rank) {
            return Ok(()); // nobody listens to it any more
        }
        let (words, payload) = match message {
            Message::Bye => return self.remove(rank, shard, true),
            Message::Submission(words, payload) => (words, payload),
        };
        if let Some(Payload { tensor, chunks }) = payload.as_deref() {
            chunks.iter().for_each(|(chunk, bytes)| memory.write_lane(*tensor, *chunk, rank, bytes));
        }
        let submission = match Submission::decode(words) {
            Ok(submission) => submission,
            Err(error) => return self.refused(rank, shard, &error.to_string()),
        };
        match machine.submit(rank, &submission, memory) {
            Ok(()) => self.after(shard),
            Err(SubmissionRefused::Failure(failure)) => {
                self.end_job(failure);
                self.after(shard)
            }
            Err(error) => self.refused(rank, shard, &error.to_string()),
        }
    }

    fn refused(&mut self, rank: Rank, shard: usize, why: &str) -> Result<(), Failure> {
        self.see(Observation::Refused { shard, rank, why })?;
        if !matches!(self.scenario.faults.fates[rank as usize], Fate::Hostile { .. }) {
            return Err(Failure::HonestRefused { at: self.now, rank, why: why.to_owned() });
        }
        self.lose(rank, &Loss::Broke { what: why.to_owned() });
        self.remove(rank, shard, false)
    }

    /// The control plane tells all shards that a worker is lost, each in its own time.
    fn lose(&mut self, rank: Rank, loss: &Loss) {
        if !self.lost.insert(rank) {
            return;
        }
        for shard in 0..self.servers.len() {
            let delay = self.delay();
            self.later(delay, Event::Remove(rank, shard));
        }
        if self.scenario.faults.on_loss == OnLoss::Stop {
            self.end_job(JobFailure::WorkerLost { rank, loss: loss.clone() });
        }
    }

    fn remove(&mut self, rank: Rank, shard: usize, clean: bool) -> Result<(), Failure> {
        let Server { machine, memory, .. } = &mut self.servers[shard];
        if !machine.clocks().is_live(rank) {
            return Ok(());
        }
        if let Err(failure) = machine.remove(rank, memory) {
            self.end_job(failure);
        }
        self.see(Observation::Removed { shard, rank, clean })?;
        self.give_up_orphans(shard);
        self.after(shard)
    }

    /// The server refuses a tensor that is declared after worker 0 has gone, since nobody can give it a value; here its
    /// declaration ends the job.
    fn give_up_orphans(&mut self, shard: usize) {
        let machine = &self.servers[shard].machine;
        let orphan = self.workload.ids().find(|&tensor| !machine.missing(tensor, 0).is_empty());
        if let Some(tensor) = orphan
            && !machine.clocks().is_live(0)
        {
            self.end_job(JobFailure::NoValue { name: format!("t{tensor}") });
        }
    }

    fn end_job(&mut self, failure: JobFailure) {
        if self.failure.is_none() {
            self.failure = Some(failure);
            for rank in 0..self.workload.workers() {
                let delay = self.delay();
                self.later(delay, Event::End(rank));
            }
        }
    }

    /// A shard did something: it is seen, questions are answered, and who waits looks again.
    fn after(&mut self, shard: usize) -> Result<(), Failure> {
        for deed in self.servers[shard].memory.take_deeds() {
            match &deed {
                Deed::Folded { tensor, chunk, writers } => {
                    self.see(Observation::Folded { shard, tensor: *tensor, chunk: *chunk, writers })?;
                }
                Deed::Published { tensor, chunk, mirror: Mirror { version, value } } => {
                    let (tensor, chunk, version) = (*tensor, *chunk, *version);
                    self.see(Observation::Published { shard, tensor, chunk, version, value })?;
                }
            }
        }
        self.answer(shard);
        let waits = |worker: &&Worker| matches!(worker.state, State::Waiting { .. });
        let waiting: Vec<Rank> = self.workers.iter().filter(waits).map(|worker| worker.rank).collect();
        for rank in waiting {
            if !self.is_remote(rank) {
                self.wake_later(rank);
            }
        }
        Ok(())
    }

    fn answer(&mut self, shard: usize) {
        let server = &mut self.servers[shard];
        let asks = std::mem::take(&mut server.asks);
        let (ready, parked): (Vec<_>, Vec<_>) =
            asks.into_iter().partition(|(rank, _, need)| server.meets(*rank, need));
        server.asks = parked;
        for (rank, wait, need) in ready {
            let homed = &self.maps[need.tensor as usize].homes[shard];
            let memory = &self.servers[shard].memory;
            let mirror = |&chunk: &u32| Some((chunk, memory.mirror(need.tensor, chunk)?.clone()));
            let chunks = homed.iter().filter_map(mirror).collect();
            let delay = self.delay();
            self.later(delay, Event::Answer { rank, wait, shard, chunks });
        }
    }
}
