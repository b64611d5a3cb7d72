//! The event loop: workers, links and shards under one queue of events.

mod looks;
mod requests;
mod servers;
mod trees;
mod watch;
mod wires;
mod workers;

use crate::checkers::{Checker, End};
use crate::control::{Desk, Link};
use crate::history::{Observation, Tally};
use crate::remote::{Port, Ports, Proxy};
use crate::rng::Rng;
use crate::scenario::Scenario;
use crate::shard_memory::Memory;
use crate::socket::Air;
use crate::transport::{Break, Ring, Way, Wire};
use crate::worker::{Need, State, Worker};
use crate::workload::Workload;
use penstock_fabric::net::remote_shard::Wish;
use penstock_proto::chunk::Cut;
use penstock_proto::error::{JobFailure, Loss};
use penstock_proto::overlay::{Direct, Routes};
use penstock_proto::placement;
use penstock_proto::shard::Shard;
use penstock_proto::{Rank, TensorId};
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::rc::Rc;
use std::sync::Arc;
use wires::JOB;

/// More events than any of our jobs has: a run that gets there never ends.
const MOST_EVENTS: u64 = 3_000_000;
/// Words that a hostile worker writes before it falls silent.
const HOSTILE_SUBMISSIONS: u64 = 60;
/// Ticks after which a silent worker is taken for lost, in units of the longest delay.
const LEASE: u64 = 10;

/// Why a run failed.
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
    /// Nothing is under way any more, and a worker waits.
    #[error("liveness, tick {at}: nothing moves any more, and {}", waits.join("; "))]
    Stuck {
        /// When.
        at: u64,
        /// Which workers wait, for what, and which are missing.
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
    /// A shard sent what no shard sends.
    #[error("protocol, tick {at}: {what}")]
    Broke {
        /// When.
        at: u64,
        /// Which shard, to which worker, and what.
        what: String,
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

/// What is told of everything, with its tick.
pub type Log<'a> = Option<&'a mut dyn FnMut(u64, &Observation<'_>)>;

#[derive(Debug)]
enum Event {
    Step(Rank),
    Wake(Rank),
    Deliver(Rank, usize),
    /// Bytes arrive on a connection.
    Arrive {
        rank: Rank,
        shard: usize,
        number: u64,
        way: Way,
    },
    /// An end of a connection looks at what has arrived meanwhile, and at what it has read.
    Read {
        rank: Rank,
        shard: usize,
        number: u64,
        way: Way,
    },
    Break {
        rank: Rank,
        shard: usize,
        number: u64,
        how: Break,
    },
    Drop {
        rank: Rank,
        shard: usize,
        number: u64,
    },
    GiveUp {
        rank: Rank,
        shard: usize,
        number: u64,
    },
    Connect {
        rank: Rank,
        shard: usize,
        number: u64,
    },
    /// A shard hears that a worker has declared a tensor.
    Declare(Rank, TensorId, usize),
    Commit(usize, TensorId, u32),
    Silent(Rank),
    Remove(Rank, usize),
    End(Rank),
    Die(Rank),
    /// A wait of a worker is over, if it is still that one.
    Alarm(Rank, u64),
    /// A shard has taken a worker's goodbye.
    Departed(Rank, usize),
    /// A worker shows that it lives.
    Beat(Rank),
    /// The control thread looks at leases.
    Look,
    /// A worker's connection to the control thread falls silent.
    FallSilent(Rank, Way),
    /// A worker that was suspended runs again.
    Resume(Rank),
    /// A worker hears that it was lost.
    Outlived(Rank),
    /// A server looks at its plan of trees, or plans for no reason.
    Plan(usize),
    Shake(usize),
    /// A server hears that a worker has left its parent; it forgives the parent.
    Blame(usize, Rank, Rank),
    /// Somebody was heard out at a server.
    Judge(usize),
    /// A shard tells a worker of its route again.
    RouteAgain(Rank, usize),
    Forgive(usize, Rank),
    /// A shard hears how values go from now on.
    Routes(usize, Arc<Routes>),
    /// A worker dials another for its proxy of a shard; it hears what came of that, a connection with this number or none.
    Dial(Rank, usize, Wish),
    Dialed(Rank, usize, Wish, Option<usize>),
    /// Something has come on a connection between workers; one breaks.
    Branch(usize, Way),
    BreakBranch(usize, Break),
    /// A proxy looks whether something is late.
    Tick(Rank, usize),
    /// A worker's proxies look at nothing; they look again.
    Hang(Rank),
    Rouse(Rank),
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

fn for_each_pair<T: Default>(workers: u32, shards: usize) -> Vec<Vec<T>> {
    (0..workers).map(|_| (0..shards).map(|_| T::default()).collect()).collect()
}

struct Server<'a> {
    machine: Shard,
    memory: Memory,
    /// Of each worker on another host that it listens to.
    ports: Ports<'a>,
    /// The peers that it sends values to.
    overlay: Direct,
    /// Who else feeds them; the last route's number.
    routes: Arc<Routes>,
    epoch: u32,
}

impl Server<'_> {
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
    servers: Vec<Server<'a>>,
    /// For each worker and shard: of one host, and of two.
    rings: Vec<Vec<Ring>>,
    /// Behind those to the shards the one to the control thread.
    wires: Vec<Vec<Rc<RefCell<Wire>>>>,
    /// What the ends of those to the shards share.
    air: Rc<Air>,
    /// Whether these look at them later; by the way that is read.
    looks: Vec<Vec<[bool; 2]>>,
    /// What reads at the ends of those to the control thread.
    records: Vec<requests::Records>,
    proxies: Vec<Vec<Proxy<'a>>>,
    links: Vec<Link>,
    desk: Desk,
    workers: Vec<Worker>,
    lost: BTreeSet<Rank>,
    /// The leases, where they decide which workers are lost.
    watch: Option<watch::Watch<'a>>,
    /// Trees, if there are any.
    trees: Option<trees::Grove<'a>>,
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
        let port = |rank: Rank, remote: bool| remote.then(|| Port::new(JOB, rank));
        let server = |rng: &mut Rng| Server {
            machine: Shard::new(workers),
            memory: Memory::new(scenario.faults.wait_once_in, scenario.sabotage, Rng::new(rng.word())),
            ports: Ports(
                (0..).zip(&scenario.faults.remote).map(|(rank, &remote)| port(rank, remote)).collect(),
            ),
            overlay: Direct::default(),
            routes: Arc::default(),
            epoch: 0,
        };
        let mut cluster = Self {
            scenario,
            workload,
            maps: Map::all(scenario),
            now: 0,
            sequence: 0,
            events: BinaryHeap::new(),
            servers: (0..shards).map(|_| server(&mut rng)).collect(),
            rings: for_each_pair(workers, shards),
            wires: for_each_pair(workers, shards + 1),
            air: Rc::default(),
            looks: for_each_pair(workers, shards),
            records: (0..workers).map(|_| requests::Records::new(&mut rng)).collect(),
            proxies: (0..workers)
                .map(|_| (0..shards).map(|_| Proxy::new(JOB, workers, &mut rng)).collect())
                .collect(),
            links: (0..workers).map(|_| Link::new(&mut rng)).collect(),
            desk: Desk::new(workers),
            workers: (0..workers).map(|rank| Worker::new(rank, tensors, shards)).collect(),
            lost: BTreeSet::new(),
            watch: scenario.faults.leases.as_ref().map(watch::Watch::new),
            trees: trees::Grove::new(scenario),
            failure: None,
            checkers,
            reads: BTreeMap::new(),
            tally: Tally::default(),
            log,
            rng,
        };
        cluster.begin_watch();
        cluster.plant();
        for rank in 0..workers {
            cluster.step_later(rank);
            let late = cluster.rng.within(1..=scenario.faults.late[rank as usize]);
            cluster.later(late, Event::Connect { rank, shard: shards, number: 0 });
        }
        cluster
    }

    /// Runs to the end.
    pub fn run(mut self) -> Result<Outcome, Failure> {
        while let Some(Reverse(due)) = self.events.pop() {
            self.now = due.at;
            self.air.now.set(due.at);
            if self.sequence > MOST_EVENTS {
                return Err(Failure::Endless { at: self.now });
            }
            self.handle(due.event)?;
        }
        self.finish()
    }

    fn finish(mut self) -> Result<Outcome, Failure> {
        for checker in &mut self.checkers {
            let name = checker.name();
            checker.quiet().map_err(|what| Failure::Violation { checker: name, at: self.now, what })?;
        }
        let waits: Vec<String> =
            self.workers.iter().filter_map(|worker| self.describe_wait(worker)).collect();
        if !waits.is_empty() {
            return Err(Failure::Stuck { at: self.now, waits });
        }
        let mut last = Vec::new();
        for (id, map) in self.workload.ids().zip(&self.maps) {
            let mirror = |chunk| {
                let mirror = self.servers[map.home(chunk)].memory.whole(id, chunk)?;
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
                let unmet = needs.iter().find(|need| !self.meets(rank, need));
                let Some(&Need { shard, tensor, version, folded, .. }) = unmet else {
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
            State::Joining => Some(format!("worker {rank} waits to be welcomed")),
            State::AtBarrier(at) => Some(format!(
                "worker {rank} is at a barrier ({at:?}) that waits for {:?}",
                self.desk.roster.missing_at_barrier()
            )),
            State::Leaving => Some(format!("worker {rank} waits to be let go")),
            State::Stays | State::Left | State::Lost | State::Failed(_) => None,
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
        if let Some(until) = self.put_off(&event) {
            self.at(until, event);
            return Ok(());
        }
        match event {
            Event::Step(rank) => self.step(rank),
            Event::Wake(rank) => self.wake(rank),
            Event::Deliver(rank, shard) => {
                self.deliver(rank, shard)?;
                self.answer_all(shard)
            }
            Event::Arrive { rank, shard, number, way } => self.arrive(rank, shard, number, way),
            Event::Read { rank, shard, number, way } => self.read(rank, shard, number, way),
            Event::Break { rank, shard, number, how } => self.break_wire(rank, shard, number, how),
            Event::Drop { rank, shard, number } => {
                self.drop_wire(rank, shard, number);
                Ok(())
            }
            Event::GiveUp { rank, shard, number } => {
                self.give_up(rank, shard, number);
                Ok(())
            }
            Event::Connect { rank, shard, number } => self.connect(rank, shard, number),
            Event::Declare(rank, tensor, shard) => {
                self.declare(rank, tensor, shard)?;
                self.answer_all(shard)
            }
            Event::Commit(shard, tensor, chunk) => {
                self.commit(shard, tensor, chunk)?;
                self.answer_all(shard)
            }
            Event::Silent(rank) => {
                self.lose(rank, &Loss::Died);
                Ok(())
            }
            Event::Remove(rank, shard) => {
                self.remove(rank, shard)?;
                self.answer_all(shard)
            }
            Event::End(rank) => self.end(rank),
            Event::Die(rank) if self.workers[rank as usize].has_ended() => Ok(()),
            Event::Die(rank) => self.crash(rank),
            Event::Alarm(rank, wait) => self.alarm(rank, wait),
            Event::Departed(rank, shard) => {
                self.departed(rank, shard);
                Ok(())
            }
            Event::Beat(rank) => self.beat(rank),
            Event::Look => self.look(),
            Event::FallSilent(rank, way) => self.fall_silent(rank, way),
            Event::Resume(rank) => self.resume_process(rank),
            Event::Outlived(rank) => self.outlived(rank),
            Event::Plan(server) => {
                self.plan(server);
                Ok(())
            }
            Event::Shake(server) => {
                self.shake(server);
                Ok(())
            }
            Event::RouteAgain(rank, shard) => self.route_again(rank, shard),
            Event::Blame(server, rank, parent) => {
                self.blame(server, rank, parent);
                Ok(())
            }
            Event::Judge(server) => {
                self.hear_out(server);
                Ok(())
            }
            Event::Forgive(server, rank) => {
                self.forgive(server, rank);
                Ok(())
            }
            Event::Routes(shard, routes) => self.reroute(shard, routes),
            Event::Dial(rank, shard, wish) => self.dial(rank, shard, wish),
            Event::Dialed(rank, shard, wish, branch) => self.dialed(rank, shard, &wish, branch),
            Event::Branch(number, way) => self.branch_news(number, way),
            Event::BreakBranch(number, how) => self.break_branch(number, how),
            Event::Tick(rank, shard) => self.tick(rank, shard),
            Event::Hang(rank) => self.hang(rank),
            Event::Rouse(rank) => self.rouse_proxies(rank),
        }
    }
}
