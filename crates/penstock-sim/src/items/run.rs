//! The event loop of tables: at each step chance picks a link or a worker to go on.

use super::links::{Link, SILENCE};
use super::producer::{Producer, Shared};
use super::reader::{Reader, Seen};
use super::traffic::Traffic;
use super::watched::Watched;
use super::worker::{Leaving, Meeting, Worker};
use super::{Plan, Sabotage, Scenario, Tally};
use crate::rng::{Rng, hash};
use penstock_fabric::items::partition::{Layout, Waiters, Writer};
use penstock_fabric::items::partition_memory::PartitionMemory;
use penstock_proto::items::node::{Host, Node};
use penstock_proto::items::wire::{PartitionId, Shape};
use penstock_proto::peer::PeerId;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// What a node cannot do itself.
#[derive(Default)]
pub(super) struct Here {
    pub(super) answered: BTreeSet<u64>,
    pub(super) flushed: BTreeSet<u64>,
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

pub(super) struct Run<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) rng: Rng,
    /// Steps so far, and those that were skipped because nothing happened in them.
    pub(super) now: u64,
    pub(super) home: Node<Here>,
    pub(super) workers: Vec<Worker>,
    /// The number of each worker's last set when it came to a barrier.
    pub(super) stood: Vec<usize>,
    /// To the home, by rank.
    pub(super) links: Vec<Link>,
    /// What is sent on these, to the home and from it, compared with what was asked.
    pub(super) traffic: Vec<(Traffic, Traffic)>,
    /// By rank and way: whether all that there is to send was not found in the last turn.
    pub(super) unfinished: Vec<[bool; 2]>,
    pub(super) tally: Tally,
    /// What the reader that looks while rows come in has seen.
    pub(super) seen: Rc<RefCell<Seen>>,
}

/// Things done without any worker making progress, after which none ever will.
const LONG: u64 = 20_000;
/// The same over thin links: these may break again and again before a long message has come whole, until they break less often.
const LONG_IF_THIN: u64 = 200_000;
const TABLE: u32 = 0;
/// Of the hash that says how many rows nodes look at in one step.
pub(super) const STEPS: u64 = 0x57e9;
pub(super) const HOME: PeerId = PeerId::server(0);

pub(super) fn partition(rank: u32) -> PartitionId {
    PartitionId { table: TABLE, rank }
}

impl<'a> Run<'a> {
    pub(super) fn new(scenario: &'a Scenario) -> Self {
        let here = || Here { sabotage: scenario.sabotage, ..Here::default() };
        // Some nodes find what there is to send bit by bit, so that rows come and go between. Not so few rows at a time that what is
        // fetched is given up before all of it has been looked at.
        let rows: u64 = scenario.workers.iter().map(|plan| u64::from(plan.slots)).sum();
        // A long row counts as several.
        let rows = rows * (1 + u64::from(scenario.row_bytes) / 256);
        let step = |drawn: u64| [u64::MAX, rows / 24, rows / 8, rows / 3, rows][(drawn % 5) as usize];
        let drawn = hash(&[scenario.seed, STEPS]);
        let node = |step| {
            let mut node = Node::new(here());
            node.look_at_most(step);
            node
        };
        let mut home = node(step(drawn));
        // A worker's own node takes no steps in a real job, and is still held to the same promises where it does.
        let own = if (drawn / 5).is_multiple_of(2) { u64::MAX } else { step(drawn / 10) };
        let count = scenario.workers.len();
        let shape = |slots| Shape { slots, row_bytes: scenario.row_bytes, propagation: scenario.propagation };
        let producer = |(plan, rank): (&Plan, u32)| {
            let seed = hash(&[scenario.seed, rank.into()]);
            Rc::new(RefCell::new(Producer::new(plan.slots, scenario.row_bytes, seed)))
        };
        let producers: Vec<Shared> = scenario.workers.iter().zip(0..).map(producer).collect();
        let seen = Rc::new(RefCell::new(Seen::default()));
        let worker = |(plan, rank): (&Plan, u32)| {
            let mut node = node(own);
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
            Worker::new(plan.clone(), node, producer)
        };
        let workers: Vec<Worker> = scenario.workers.iter().zip(0..).map(worker).collect();
        let mut rng = Rng::new(scenario.seed ^ 0x5eed);
        let links = (0..count).map(|_| Link::new(scenario.links, &mut rng)).collect();
        let traffic = || Traffic::new(scenario.propagation, scenario.row_bytes);
        let traffic = (0..count).map(|_| (traffic(), traffic())).collect();
        let (now, tally) = (0, Tally::default());
        let (stood, unfinished) = (vec![0; count], vec![[false; 2]; count]);
        let mut run =
            Self { scenario, rng, now, home, workers, stood, links, traffic, unfinished, tally, seen };
        for rank in 0..count {
            run.connect(rank);
        }
        run
    }

    /// No worker begins, and none leaves, before all have subscribed: declaring a table sees to that.
    fn get_ready(&mut self) -> Result<(), String> {
        let mut did = true;
        while std::mem::take(&mut did) {
            did |= self.pass_time(SILENCE, true);
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

    pub(super) fn run(mut self) -> Result<Tally, String> {
        let count = self.workers.len();
        if self.scenario.leaves {
            self.get_ready()?;
        }
        let (mut idle, mut since, mut before) = (0, 0, 0);
        // Something may happen for ever without progress: an answer that is never fresh enough.
        let long = if self.scenario.links.is_thin() { LONG_IF_THIN } else { LONG };
        while since < long {
            let gone = self.workers.iter().map(Worker::gone).sum();
            since = if gone == before { since + 1 } else { 0 };
            before = gone;
            let rank = self.rng.within(0..=count as u64 - 1) as usize;
            let what = self.rng.within(0..=3);
            idle = if self.act(rank, what)? { 0 } else { idle + 1 };
            if self.rng.once_in(self.scenario.cuts) && self.workers.iter().any(|worker| !self.is_done(worker))
            {
                self.shatter(rank);
            }
            self.pass_time(1, false);
            // Chance has found nothing to do for a while: is there anything, once all that is under way has come?
            if idle > 8 * count {
                let mut did = self.pass_time(SILENCE, true);
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
                    "worker {rank} is stuck at clock {}, {:?} at a barrier: {:?} are too old",
                    worker.clock, worker.meeting, worker.unread
                ));
            }
        }
        self.nothing_is_left()?;
        self.tally.looks = self.seen.borrow().looks;
        self.tally.withdrawn = self.traffic.iter().map(|(up, down)| up.withdrawn + down.withdrawn).sum();
        for node in self.workers.iter().map(|worker| &worker.node).chain([&self.home]) {
            let (overtaken, given_up) = node.overtaken();
            self.tally.overtaken += overtaken;
            self.tally.given_up += given_up;
        }
        Ok(self.tally)
    }

    /// When nothing moves any more, each fetch was answered or withdrawn, wherever it was passed on to.
    fn nothing_is_left(&self) -> Result<(), String> {
        let stay = (0..).zip(&self.workers).filter(|(_, worker)| worker.leaving != Leaving::Left);
        let left = stay.map(|(rank, worker)| (format!("worker {rank}"), worker.node.unanswered()));
        match std::iter::once(("the home".to_owned(), self.home.unanswered()))
            .chain(left)
            .find(|left| left.1 > 0)
        {
            None => Ok(()),
            Some((who, count)) => Err(format!("{who} keeps {count} questions that nobody waits for")),
        }
    }

    fn is_done(&self, worker: &Worker) -> bool {
        let works = self.scenario.leaves && worker.leaving != Leaving::Left;
        let met = worker.meeting == Meeting::Works;
        worker.clock == self.scenario.iterations && worker.unread.is_empty() && met && !works
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
}
