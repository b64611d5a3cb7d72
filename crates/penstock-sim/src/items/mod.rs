//! Tables of items on one thread, from one seed: producers, a home and consumers, the real nodes over the real memory, and links
//! between them that delay and break.
//!
//! A producer goes on while its rows are passed on and read: between any two looks of a node it may set some, or so many
//! that the change log comes round. A worker sets its rows, completes an iteration, and reads what it consumes with its
//! slack; it goes on when that is fresh enough. Every value names the set that wrote it, so what is read is compared
//! with what its producer did:
//!
//! - never older than the slack allows, never torn, never falling;
//! - rows of one set all or none (I-3, N-1);
//! - every worker comes to the end, and has what was set last, whatever was lost with a connection (N-2, N-5);
//! - lazily, and within bounds, nothing is sent that no worker needed (N-3, N-4).
//!
//! Each seed has a second scenario, in which workers leave when they are done and links stay broken for a while: what a worker
//! had set when it left is there for all others, also for those that were away.

mod producer;
mod reader;
mod traffic;
mod watched;

pub use watched::Sabotage;

use crate::rng::{Rng, hash};
use penstock_fabric::items::partition::{Layout, Waiters, Writer};
use penstock_fabric::items::partition_memory::PartitionMemory;
use penstock_proto::items::node::{Host, Node};
use penstock_proto::items::wire::{Encoder, MAX_MESSAGE_BYTES, Message, PartitionId, Shape};
use penstock_proto::items::{Propagation, RowSet};
use penstock_proto::peer::PeerId;
use penstock_proto::record::{self, LENGTH_BYTES};
use producer::{After, Producer, Shared};
use reader::{Reader, Seen};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::rc::Rc;
use traffic::Traffic;
use watched::Watched;

/// All that a seed decides.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The seed.
    pub seed: u64,
    /// Workers; each with its rows, its slack, and whether it is on the home's host.
    pub workers: Vec<Plan>,
    /// How rows move.
    pub propagation: Propagation,
    /// Iterations.
    pub iterations: u64,
    /// Bytes of a row, at least 8.
    pub row_bytes: u32,
    /// A link breaks once in so many steps; 0: never.
    pub cuts: u64,
    /// Whether workers leave when they are done, and a link that breaks may stay away for a while.
    pub leaves: bool,
    /// A promise that is broken on purpose.
    pub sabotage: Option<Sabotage>,
}

/// One worker.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Rows that it produces.
    pub slots: u32,
    /// Clocks that its reads may lack.
    pub slack: u64,
    /// Whether it shares memory with the home.
    pub near: bool,
    /// Rows that it consumes, by producer.
    pub consumes: BTreeMap<u32, RowSet>,
}

/// What happened, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Reads of rows of one producer.
    pub reads: u64,
    /// Looks at a mirror while rows came in.
    pub looks: u64,
    /// Reads that had to wait.
    pub waits: u64,
    /// Links that broke.
    pub cuts: u64,
    /// Bytes that reached consumers.
    pub bytes: u64,
    /// Most clocks that a row was behind.
    pub staleness: u64,
}

impl Tally {
    /// Adds what happened in another run.
    pub fn merge(&mut self, other: &Self) {
        self.reads += other.reads;
        self.looks += other.looks;
        self.waits += other.waits;
        self.cuts += other.cuts;
        self.bytes += other.bytes;
        self.staleness = self.staleness.max(other.staleness);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reads, looks, waits, cuts, bytes, staleness } = self;
        write!(
            out,
            "{reads} reads, {looks} looks while rows came in, {waits} waits, {cuts} cuts, {bytes} bytes, at most {staleness} clocks behind"
        )
    }
}

impl Scenario {
    /// The scenario of a seed.
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let count = rng.within(2..=4) as u32;
        let slots: Vec<u32> = (0..count).map(|_| rng.pick(&[0, 1, 3, 9, 70])).collect();
        let propagation = rng.pick(&[Propagation::Eager, Propagation::Lazy, Propagation::Bounded]);
        let mut plan = |rank: u32| {
            let mut consumes = BTreeMap::new();
            for (other, &slots) in (0..count).zip(&slots).filter(|(other, _)| *other != rank) {
                let some = RowSet::from_rows((0..u64::from(slots)).filter(|_| !rng.once_in(3)));
                if !some.is_empty() && !rng.once_in(5) {
                    consumes.insert(other, some);
                }
            }
            let slots = slots[rank as usize];
            Plan { slots, slack: rng.pick(&[0, 0, 1, 2, 4, 8]), near: rng.once_in(3), consumes }
        };
        let workers = (0..count).map(&mut plan).collect();
        let iterations = rng.within(3..=14);
        let row_bytes = rng.pick(&[8, 24, 100, 1000, 5000]);
        let cuts = rng.pick(&[0, 300, 1500]);
        let (leaves, sabotage) = (false, None);
        Self { seed, workers, propagation, iterations, row_bytes, cuts, leaves, sabotage }
    }

    /// The same, with a promise broken.
    #[must_use]
    pub fn sabotaged(self, sabotage: Sabotage) -> Self {
        Self { sabotage: Some(sabotage), ..self }
    }

    /// The same, but workers leave when they are done, and links break more often, some for a while.
    #[must_use]
    pub fn leaving(self) -> Self {
        Self { leaves: true, cuts: self.cuts / 3, ..self }
    }

    /// Runs it: what happened, or what did not hold.
    pub fn check(&self) -> Result<Tally, String> {
        Run::new(self).run()
    }
}

/// What a node cannot do itself.
#[derive(Default)]
struct Here {
    answered: BTreeSet<u64>,
    flushed: BTreeSet<u64>,
    sabotage: Option<Sabotage>,
}

impl Host for Here {
    type Memory = Watched;

    fn make(&mut self, _: PartitionId, shape: &Shape) -> Option<Watched> {
        let writer = Writer::private(Layout::new(shape.slots, shape.row_bytes)).ok()?;
        let mirror = PartitionMemory::mirror(writer, Waiters::private().ok()?);
        Some(Watched::new(mirror, None, self.sabotage))
    }

    fn answered(&mut self, ticket: u64) {
        self.answered.insert(ticket);
    }

    fn flushed(&mut self, id: u64) {
        self.flushed.insert(id);
    }
}

/// How far a worker that leaves has come: it flushes, hands its rows over, and flushes again, as a relay does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Leaving {
    Works,
    Flushes(u64),
    HandsOver(u64),
    Left,
}

struct Worker {
    plan: Plan,
    node: Node<Here>,
    producer: Shared,
    clock: u64,
    /// Whether this iteration's rows are set.
    set: bool,
    /// Producers that are still to be read in this iteration, each in two gets: the first half of the rows, and the others.
    unread: Vec<(u32, bool)>,
    ticket: Option<u64>,
    waits: bool,
    leaving: Leaving,
    /// For how many steps its link stays broken.
    away: u64,
    /// Newest number read, by producer and slot.
    newest: BTreeMap<u32, After>,
}

impl Worker {
    /// Grows whenever the worker gets on.
    fn gone(&self) -> u64 {
        (self.clock * 2 + u64::from(self.set)) * 2 * (self.plan.consumes.len() as u64 + 1)
            - self.unread.len() as u64
            + match self.leaving {
                Leaving::Works => 0,
                Leaving::Flushes(_) => 1,
                Leaving::HandsOver(_) => 2,
                Leaving::Left => 3,
            }
    }
}

/// One direction of a link: what was sent and has not come.
type Wire = VecDeque<Vec<u8>>;

struct Run<'a> {
    scenario: &'a Scenario,
    rng: Rng,
    home: Node<Here>,
    workers: Vec<Worker>,
    /// To and from the home, by rank.
    links: Vec<(Wire, Wire)>,
    /// What is sent on these, compared with what was asked.
    traffic: Vec<(Traffic, Traffic)>,
    tally: Tally,
    /// What the reader that looks while rows come in has seen.
    seen: Rc<RefCell<Seen>>,
}

/// Things done without any worker making progress, after which none ever will.
const LONG: u64 = 20_000;
const TABLE: u32 = 0;
const HOME: PeerId = PeerId::server(0);

fn partition(rank: u32) -> PartitionId {
    PartitionId { table: TABLE, rank }
}

impl<'a> Run<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let here = || Here { sabotage: scenario.sabotage, ..Here::default() };
        let mut home = Node::new(here());
        let count = scenario.workers.len();
        let shape = |slots| Shape { slots, row_bytes: scenario.row_bytes, propagation: scenario.propagation };
        let producer = |(plan, rank): (&Plan, u32)| {
            let seed = hash(&[scenario.seed, rank.into()]);
            Rc::new(RefCell::new(Producer::new(plan.slots, scenario.row_bytes, seed)))
        };
        let producers: Vec<Shared> = scenario.workers.iter().zip(0..).map(producer).collect();
        let seen = Rc::new(RefCell::new(Seen::default()));
        let worker = |(plan, rank): (&Plan, u32)| {
            let mut node = Node::new(here());
            let producer = Rc::clone(&producers[rank as usize]);
            if plan.slots > 0 {
                let rows = producer.borrow().rows().clone();
                let memory = PartitionMemory::followed(rows, Waiters::private().unwrap());
                let memory = Watched::new(memory, Some(Rc::clone(&producer)), scenario.sabotage);
                if plan.near {
                    home.produce(partition(rank), PeerId::worker(rank), shape(plan.slots), memory, None);
                } else {
                    node.produce(
                        partition(rank),
                        PeerId::worker(rank),
                        shape(plan.slots),
                        memory,
                        Some(HOME),
                    );
                }
            }
            for (&other, rows) in &plan.consumes {
                if plan.near && scenario.workers[other as usize].near {
                    continue; // looks at the producer's own memory
                }
                let mut memory = here().make(partition(other), &shape(rows.len() as u32)).unwrap();
                memory.read_by(Reader::new(
                    Rc::clone(&producers[other as usize]),
                    rows.iter().map(|slot| slot as u32).collect(),
                    scenario.row_bytes as usize,
                    hash(&[scenario.seed, rank.into(), other.into()]),
                    Rc::clone(&seen),
                ));
                node.consume(
                    partition(other),
                    HOME,
                    shape(scenario.workers[other as usize].slots),
                    rows.clone(),
                    memory,
                );
            }
            Worker {
                plan: plan.clone(),
                node,
                producer,
                clock: 0,
                set: false,
                unread: Vec::new(),
                ticket: None,
                waits: false,
                leaving: Leaving::Works,
                away: 0,
                newest: BTreeMap::new(),
            }
        };
        let workers: Vec<Worker> = scenario.workers.iter().zip(0..).map(worker).collect();
        let links = (0..count).map(|_| Default::default()).collect();
        let rng = Rng::new(scenario.seed ^ 0x5eed);
        let traffic = || Traffic::new(scenario.propagation, scenario.row_bytes);
        let traffic = (0..count).map(|_| (traffic(), traffic())).collect();
        let mut run = Self { scenario, rng, home, workers, links, traffic, tally: Tally::default(), seen };
        for rank in 0..count {
            run.connect(rank);
        }
        run
    }

    fn connect(&mut self, rank: usize) {
        if self.workers[rank].leaving == Leaving::Left {
            return;
        }
        self.workers[rank].away = 0;
        self.links[rank] = Default::default();
        let (up, down) = &mut self.traffic[rank];
        up.connected();
        down.connected();
        self.home.connected(PeerId::worker(rank as u32));
        self.workers[rank].node.connected(HOME);
    }

    /// A link breaks, and stays broken for a while.
    fn part(&mut self, rank: usize) {
        self.links[rank] = Default::default();
        self.home.lost(PeerId::worker(rank as u32));
        self.workers[rank].node.lost(HOME);
        self.workers[rank].away = self.rng.within(1..=2_000);
    }

    /// Links that were broken long enough are made again, or all. Whether any was.
    fn mend(&mut self, all: bool) -> bool {
        let mut any = false;
        for rank in 0..self.workers.len() {
            let worker = &mut self.workers[rank];
            if worker.away > 0 {
                worker.away -= 1;
                if all || worker.away == 0 {
                    self.connect(rank);
                    any = true;
                }
            }
        }
        any
    }

    /// No worker begins, and none leaves, before all have subscribed: declaring a table sees to that.
    fn get_ready(&mut self) -> Result<(), String> {
        let mut did = true;
        while std::mem::take(&mut did) {
            for rank in 0..self.workers.len() {
                did |= self.act(rank, 2)?;
                for what in [0, 1] {
                    while self.act(rank, what)? {
                        did = true;
                    }
                }
            }
        }
        Ok(())
    }

    fn run(mut self) -> Result<Tally, String> {
        let count = self.workers.len();
        if self.scenario.leaves {
            self.get_ready()?;
        }
        let (mut idle, mut since, mut before) = (0, 0, 0);
        // Something may happen for ever without progress: an answer that is never fresh enough.
        while since < LONG {
            let gone = self.workers.iter().map(Worker::gone).sum();
            since = if gone == before { since + 1 } else { 0 };
            before = gone;
            let rank = self.rng.within(0..=count as u64 - 1) as usize;
            let what = self.rng.within(0..=3);
            idle = if self.act(rank, what)? { 0 } else { idle + 1 };
            if self.rng.once_in(self.scenario.cuts) && self.workers.iter().any(|worker| !self.is_done(worker))
            {
                self.tally.cuts += 1;
                if self.scenario.leaves && self.rng.once_in(2) && self.workers[rank].leaving != Leaving::Left
                {
                    self.part(rank);
                } else {
                    self.connect(rank);
                }
            }
            self.mend(false);
            // Chance has found nothing to do for a while: is there anything?
            if idle > 8 * count {
                let mut did = self.mend(true);
                // Twice: what one link brings may be for a link that had its turn.
                for (rank, what) in
                    (0..2 * count).flat_map(|rank| (0..4).map(move |what| (rank % count, what)))
                {
                    did |= self.act(rank, what)?;
                }
                if !did {
                    break;
                }
                idle = 0;
            }
        }
        for (rank, worker) in self.workers.iter().enumerate() {
            if !self.is_done(worker) {
                return Err(format!(
                    "worker {rank} is stuck at clock {}: {:?} are too old",
                    worker.clock, worker.unread
                ));
            }
        }
        self.tally.looks = self.seen.borrow().looks;
        Ok(self.tally)
    }

    fn is_done(&self, worker: &Worker) -> bool {
        let works = self.scenario.leaves && worker.leaving != Leaving::Left;
        worker.clock == self.scenario.iterations && worker.unread.is_empty() && !works
    }

    /// Whether one of four things could be done.
    fn act(&mut self, rank: usize, what: u64) -> Result<bool, String> {
        if self.workers[rank].leaving == Leaving::Left {
            return Ok(false);
        }
        match what {
            0 => self.deliver(rank, true),
            1 => self.deliver(rank, false),
            2 => self.exchange(rank).map_err(|what| format!("link {rank}: {what}")),
            _ => self.step(rank).map_err(|what| format!("worker {rank}: {what}")),
        }
    }

    /// Both ends of a link put what they have on it.
    fn exchange(&mut self, rank: usize) -> Result<bool, String> {
        let (up, down) = &mut self.links[rank];
        let (traffic_up, traffic_down) = &mut self.traffic[rank];
        let repeats = self.scenario.sabotage == Some(Sabotage::SendsAgain);
        let mut did = false;
        let node = &mut self.workers[rank].node;
        node.collect_all();
        self.home.collect_all();
        let home = (&mut self.home, PeerId::worker(rank as u32), down, traffic_down);
        for (node, peer, wire, traffic) in [(node, HOME, up, traffic_up), home] {
            let mut bytes = Vec::new();
            node.transmit(peer, &mut bytes, 300_000);
            did |= !bytes.is_empty();
            let mut rest = &bytes[..];
            while let Some((head, tail)) = rest.split_first_chunk::<LENGTH_BYTES>() {
                let length = record::length(head, MAX_MESSAGE_BYTES).expect("it is undamaged");
                let (record, tail) = tail.split_at(length);
                let message = Message::decode(record).map_err(|malformed| malformed.to_string())?;
                let again = repeats && matches!(message, Message::Rows { .. });
                for _ in 0..1 + u64::from(again) {
                    traffic.sent(&message)?;
                    wire.push_back(record.to_vec());
                }
                rest = tail;
            }
        }
        Ok(did)
    }

    /// A question as it comes to the end that is asked, where that is broken on purpose.
    fn as_it_comes(&self, record: Vec<u8>) -> Vec<u8> {
        let message = match (Message::decode(&record), self.scenario.sabotage) {
            (Ok(Message::Fetch { partition, ticket, places, .. }), Some(Sabotage::AnswersTooEarly)) => {
                Message::Fetch { partition, ticket, version: 0, places }
            }
            (Ok(Message::Need { partition, .. }), Some(Sabotage::SendsUnneeded)) => {
                Message::Need { partition, versions: (1..=self.scenario.iterations).collect() }
            }
            _ => return record,
        };
        let mut bytes = Vec::new();
        Encoder::message(&mut bytes, &message);
        bytes.split_off(LENGTH_BYTES)
    }

    fn deliver(&mut self, rank: usize, up: bool) -> Result<bool, String> {
        let (to_home, to_worker) = &mut self.links[rank];
        let wire = if up { to_home } else { to_worker };
        let Some(record) = wire.pop_front() else { return Ok(false) };
        let (of_worker, of_home) = &mut self.traffic[rank];
        let asked = Message::decode(&record).map_err(|malformed| malformed.to_string())?;
        if up {
            of_home.asked(&asked)
        } else {
            of_worker.asked(&asked)
        }
        let record = self.as_it_comes(record);
        let received = if up {
            self.home.receive(PeerId::worker(rank as u32), &record)
        } else {
            self.tally.bytes += record.len() as u64;
            self.workers[rank].node.receive(HOME, &record)
        };
        received.map_err(|broken| format!("link {rank}: {broken}"))?;
        self.seen.borrow_mut().wrong.take().map_or(Ok(true), |wrong| Err(format!("worker {rank}, {wrong}")))
    }

    /// A worker goes on, if it can.
    fn step(&mut self, rank: usize) -> Result<bool, String> {
        let worker = &mut self.workers[rank];
        if !worker.unread.is_empty() {
            let (producer, half) = worker.unread[0];
            let before = self.workers[rank].ticket;
            if self.read(rank, producer, half)? {
                self.workers[rank].unread.remove(0);
                return Ok(true);
            }
            return Ok(self.workers[rank].ticket != before);
        }
        if worker.clock == self.scenario.iterations {
            return Ok(self.scenario.leaves && self.leave(rank));
        }
        if !worker.set {
            worker.set = true;
            worker.producer.borrow_mut().iterate();
            return Ok(true);
        }
        (worker.clock, worker.set) = (worker.clock + 1, false);
        worker.producer.borrow_mut().complete(self.scenario.iterations);
        worker.unread =
            worker.plan.consumes.keys().flat_map(|&other| [(other, true), (other, false)]).collect();
        self.rng.shuffle(&mut worker.unread);
        Ok(true)
    }

    /// A worker that is done leaves; whether it got on.
    fn leave(&mut self, rank: usize) -> bool {
        let worker = &mut self.workers[rank];
        let (node, peer) = (&mut worker.node, PeerId::worker(rank as u32));
        worker.leaving = match worker.leaving {
            Leaving::Works => {
                worker.producer.borrow_mut().leave();
                Leaving::Flushes(node.flush(HOME))
            }
            Leaving::Flushes(id) if node.host().flushed.contains(&id) => {
                node.hand_over();
                self.traffic[rank].0.handed_over();
                Leaving::HandsOver(node.flush(HOME))
            }
            Leaving::HandsOver(id) if node.host().flushed.contains(&id) => {
                node.lost(HOME);
                self.links[rank] = Default::default();
                self.home.lost(peer);
                self.home.forget(peer);
                worker.away = 0;
                Leaving::Left
            }
            _ => return false,
        };
        true
    }

    /// Reads what a worker consumes of a producer, if it is fresh enough.
    fn read(&mut self, rank: usize, producer: u32, half: bool) -> Result<bool, String> {
        let (scenario, id) = (self.scenario, partition(producer));
        let direct = self.workers[rank].plan.near && self.workers[producer as usize].plan.near;
        let from = Rc::clone(&self.workers[producer as usize].producer);
        let worker = &mut self.workers[rank];
        // Each get has a slack of its own, at most the plan's.
        let slack = hash(&[worker.clock, producer.into(), half.into()]) % (worker.plan.slack + 1);
        let wanted = worker.clock.saturating_sub(slack);
        let all: Vec<u32> = worker.plan.consumes[&producer].iter().map(|slot| slot as u32).collect();
        let (places, slots): (Vec<u32>, Vec<u32>) =
            (0u32..).zip(all.iter().copied()).filter(|(at, _)| (2 * *at < all.len() as u32) == half).unzip();
        if slots.is_empty() {
            return Ok(true);
        }
        let rows = match worker.node.memory(id) {
            Some(memory) => memory.rows().clone(),
            None => from.borrow().rows().clone(),
        };
        let at = if direct { &slots } else { &places };
        let bytes = scenario.row_bytes as usize;
        let mut out = vec![0; bytes * slots.len()];
        let follow = at.windows(2).all(|pair| pair[1] == pair[0] + 1);
        let together = if follow {
            rows.read_run(at[0], &mut out)
        } else {
            let meanwhile = |at| {
                from.borrow_mut().go_on();
                at
            };
            rows.read_together(at, meanwhile, &mut out)
        };
        let fresh = together.as_ref().is_ok_and(|together| together.version >= wanted);
        if !fresh {
            if !worker.waits {
                (worker.waits, self.tally.waits) = (true, self.tally.waits + 1);
            }
            let asked = worker.ticket.is_some_and(|ticket| !worker.node.host().answered.contains(&ticket));
            if !direct && scenario.propagation == Propagation::Bounded {
                worker.node.need(id, vec![wanted]);
            }
            let alone = scenario.propagation == Propagation::Bounded && together.is_ok();
            if !direct && scenario.propagation != Propagation::Eager && !asked && !alone {
                let all = RowSet::from_rows(places.iter().map(|&place| place.into()));
                worker.ticket = worker.node.fetch(id, &all, wanted);
            }
            return Ok(false);
        }
        let version = together.map(|together| together.version).unwrap_or(0);
        (worker.waits, worker.ticket) = (false, None);
        if !direct && scenario.propagation == Propagation::Bounded {
            let next = (worker.clock + 1).saturating_sub(slack);
            worker.node.need(id, vec![wanted, next]);
        }
        self.tally.reads += 1;
        self.tally.staleness = self.tally.staleness.max(worker.clock.saturating_sub(version));
        let from = from.borrow();
        let (history, marks) = (&from.history, &from.marks);
        let newest = worker.newest.entry(producer).or_default();
        let numbers = judge_values(history, &slots, &out, bytes, newest)
            .map_err(|what| format!("of producer {producer}, {what}"))?;
        let last = numbers.values().copied().max().unwrap_or(0) as usize;
        // Looked at while the producer went on, rows of different sets need not have been current together.
        let apart = direct && !follow;
        let holds = if apart { is_whole(history, &numbers) } else { was(&history[last], &numbers) };
        if !holds {
            return Err(format!("rows of {producer} were never like this after set {last}: {numbers:?}"));
        }
        // What the producer had set when it completed the iterations that the slack does not cover must be there.
        if wanted as usize > marks.len() {
            return Err(format!(
                "{producer} has begun {} iterations, version {wanted} was read",
                marks.len()
            ));
        }
        let due = marks.get(wanted as usize).or_else(|| marks.last()).copied().unwrap_or(0);
        // A row has the version from its first set of that iteration on.
        let begun = wanted.checked_sub(1).map_or(0, |before| marks[before as usize]);
        let older = |(slot, &number): (&u32, &u64)| {
            history[due].get(slot).is_some_and(|&due| number < due) && number <= begun as u64
        };
        if numbers.iter().any(older) {
            return Err(format!("rows of {producer} are older than version {wanted}: {numbers:?}"));
        }
        Ok(true)
    }
}

/// The sets that wrote these rows, if each is whole and none is older than it was seen before.
fn judge_values(
    history: &[After],
    slots: &[u32],
    values: &[u8],
    row_bytes: usize,
    newest: &mut After,
) -> Result<After, String> {
    let mut numbers = After::new();
    for (value, &slot) in values.chunks(row_bytes).zip(slots) {
        let number = u64::from_le_bytes(value[..8].try_into().unwrap_or_default());
        let rest = slot as u8 ^ number as u8;
        if number >= history.len() as u64 {
            return Err(format!("row {slot} is torn: no set had the number {number}"));
        }
        if number > 0 && value[8..].iter().any(|&byte| byte != rest) {
            return Err(format!("row {slot} is torn"));
        }
        let newest = newest.entry(slot).or_default();
        if number < *newest {
            return Err(format!("row {slot} fell from set {newest} to {number}"));
        }
        *newest = number;
        numbers.insert(slot, number);
    }
    Ok(numbers)
}

/// Whether these rows were current after a set.
fn was(after: &After, numbers: &After) -> bool {
    numbers.iter().all(|(slot, number)| after.get(slot).copied().unwrap_or(0) == *number)
}

/// Whether each set is in all of these rows that it wrote, itself or under a later one, or in none.
fn is_whole(history: &[After], numbers: &After) -> bool {
    let (oldest, newest) = (numbers.values().min(), numbers.values().max());
    let (Some(&oldest), Some(&newest)) = (oldest, newest) else { return true };
    (oldest + 1..=newest).all(|set| {
        let wrote = |slot: &u32| history[set as usize].get(slot) == Some(&set);
        let mut there = numbers.iter().filter(|(slot, _)| wrote(slot)).map(|(_, number)| *number >= set);
        there.next().is_none_or(|first| there.all(|other| other == first))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I-3, N-1, N-2, N-3, N-4, N-5.
    #[test]
    fn every_seed_keeps_every_promise() {
        let mut all = Tally::default();
        for seed in 0..1500 {
            let scenario = Scenario::from_seed(seed);
            let tally = scenario.check().unwrap_or_else(|what| panic!("seed {seed}: {what}\n{scenario:?}"));
            all.merge(&tally);
        }
        // A simulation that never met a wait or a cut proves nothing.
        assert!(
            all.reads > 5_000
                && all.looks > 20_000
                && all.waits > 2_500
                && all.cuts > 250
                && all.staleness == 8,
            "{all:?}"
        );
    }

    /// The same as workers leave: what they had set is there, also for those that were away.
    #[test]
    fn every_seed_keeps_every_promise_as_workers_leave_and_links_stay_broken() {
        let mut all = Tally::default();
        for seed in 0..1500 {
            let scenario = Scenario::from_seed(seed).leaving();
            let tally = scenario.check().unwrap_or_else(|what| panic!("seed {seed}: {what}\n{scenario:?}"));
            all.merge(&tally);
        }
        assert!(all.reads > 5_000 && all.cuts > 2_500, "{all:?}");
    }

    #[test]
    fn within_bounds_fewer_bytes_travel_the_more_slack_there_is() {
        let bytes = |propagation, slack| {
            let consumes = BTreeMap::from([(0, RowSet::from_rows(0..20))]);
            let producer = Plan { slots: 20, slack: 0, near: true, consumes: BTreeMap::new() };
            let consumer = Plan { slots: 0, slack, near: false, consumes };
            let workers = vec![producer, consumer];
            let (seed, iterations, row_bytes, cuts, leaves) = (1, 40, 1000, 0, false);
            let scenario =
                Scenario { seed, workers, propagation, iterations, row_bytes, cuts, leaves, sabotage: None };
            scenario.check().unwrap().bytes
        };
        let eager = bytes(Propagation::Eager, 0);
        assert!(bytes(Propagation::Bounded, 0) <= eager * 11 / 10);
        assert!(bytes(Propagation::Bounded, 3) < eager / 3, "each row once in four clocks");
        assert!(bytes(Propagation::Lazy, 3) < eager / 3);
    }
}
