//! How long a value takes to all workers: a run with rates, and no faults but a host that is slow or hangs.
//!
//! One home publishes version after version of one tensor that is broadcast, and up to a thousand workers on hosts of their own hold
//! them, along any shape that the planner has. At both ends of every connection the product's own machines are at work (`net::remote_peer`,
//! `net::remote_shard` with its parents and children), over frames with seals; the network between them has rates. Time is virtual: a run is
//! a function of its scenario.
//!
//! | file | word |
//! |---|---|
//! | `net.rs` | time, links with rates, connections with buffers |
//! | `home.rs` | the home, and what it publishes |
//! | `worker.rs` | a worker, whose mirror compares and forgets |
//! | `trees.rs` | the plan, and the one after that |
//! | `model.rs` | bits |
//! | `tally.rs` | frames, counted where they are written |
//! | `report.rs` | what came of it, as a table |
//!
//! What is not there: time that processors take, memory bandwidth, acknowledgements and losses of TCP, and folds; of pushes only
//! the bytes that they take of an uplink.
//!
//! Memory: some kilobytes for each worker and connection, and what is under way. Time: a second for a gigabyte that is held, all
//! workers together.

mod home;
mod model;
mod net;
pub mod report;
mod tally;
mod trees;
mod worker;

pub use tally::Tally;

use home::{Home, Stray};
use model::Model;
use net::{Event, Net, Number, Speed, Time};
use penstock_fabric::net::remote_shard::{Unreached, Wish};
use penstock_proto::Rank;
use penstock_proto::overlay::{BLOCK_BYTES, HEARD_OUT_MS, PlanError, Prediction, Said, Shape, Traffic};
use penstock_proto::seal::{Scope, Sealer, Verifier};
use penstock_proto::submission::NOBODY;
use penstock_proto::uplink::{Gauge, Measured};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use trees::Trees;
use worker::{Shared, Worker};

/// The job's number in frames.
const JOB: u64 = 1;
/// What of a link's rate is left for what TCP carries: of a frame of 1514 bytes of Ethernet, 1448.
pub const PAYLOAD_SHARE: f64 = 1448.0 / 1514.0;
/// From one look whether something is late to the next, as a proxy has it.
const TICKS_APART: Time = 20_000_000;
/// From one look at what a link carries to the next, likewise.
const GAUGES_APART: Time = 10_000_000;
/// Hops until a parent that is dialed has let its child in: a connection, two proofs, and a look.
const DIALS_TAKE: Time = 6;
/// How long a door that does not answer is tried.
const DIALS_WITHIN: Time = 2_000_000_000;
/// How long after it has left a parent by nobody's fault a worker is told of its route again.
const AGAIN_AFTER: Time = 1_000_000_000;
/// Events of one run at most, for each chunk that a worker is to hold: more is a run that goes round in circles.
const MOST_EVENTS: u64 = 4096;

/// What one host does to the others, while a version is on its way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Trouble {
    /// Its link has this part of its rate from then on, both ways.
    Slow(f64),
    /// Its uplink has; what comes to it comes as before.
    SlowUp(f64),
    /// It does nothing any more, though its connections stand.
    Hangs,
}

/// A host whose link is not as that of the others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unlike {
    /// Whose worker that is.
    pub rank: Rank,
    /// The part of the usual rate that its uplink has, and its downlink.
    pub up: f64,
    /// See there.
    pub down: f64,
}

/// What a plan is made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rates {
    /// All links are taken to be alike.
    Alike,
    /// What hosts measure, while they send.
    Measured,
    /// What links carry is known before.
    Known,
}

/// All that decides a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// What the bits come from.
    pub seed: u64,
    /// One worker each.
    pub hosts: u32,
    /// Who passes on to whom.
    pub shape: Shape,
    /// Bytes of a version, taken as whole blocks, and of a block, which goes on as soon as it has come: a chunk.
    pub bytes: u64,
    /// See there.
    pub block: u64,
    /// Bytes of each chunk that are really there: each takes the time and the room of so many.
    pub chunk: u32,
    /// Bytes a second of every host's link.
    pub rate: f64,
    /// Seconds from one host to another, beside the bytes' own time.
    pub hop: f64,
    /// Bytes of a connection's buffers, at each end.
    pub buffer: u64,
    /// How many versions are published, each when all hold the one before.
    pub versions: u64,
    /// Seconds from one chunk to the next that is published of a version.
    pub pace: f64,
    /// Bytes that each worker's uplink sends beside each version: what it pushes.
    pub push: u64,
    /// What befalls an inner node while a version is on its way: it is slow from the first byte on, or hangs when a quarter of a transfer
    /// is over.
    pub trouble: Option<Trouble>,
    /// How many versions are published behind that one.
    pub behind: u64,
    /// Hosts with other links than the usual one.
    pub unlike: Vec<Unlike>,
    /// What is known of that.
    pub rates: Rates,
}

impl Scenario {
    /// So many hosts with links of 1 Gbit/s, 256 MiB in blocks of 1 MiB, of each of which 4 KiB are there.
    pub fn new(hosts: u32, shape: Shape) -> Self {
        Self {
            seed: 1,
            hosts,
            shape,
            bytes: 256 << 20,
            block: 1 << 20,
            chunk: 4 << 10,
            rate: 125e6,
            hop: 1e-4,
            buffer: 4 << 20,
            versions: 2,
            pace: 0.0,
            push: 0,
            trouble: None,
            behind: 1,
            unlike: Vec::new(),
            rates: Rates::Measured,
        }
    }

    /// Seconds that a version's bytes take over one link, once.
    pub fn transfer(&self) -> f64 {
        (u64::from(self.chunks()) * self.block) as f64 / (self.rate * PAYLOAD_SHARE)
    }

    fn chunks(&self) -> u32 {
        self.bytes.div_ceil(self.block) as u32
    }

    /// What is there of each byte.
    fn scale(&self) -> f64 {
        f64::from(self.chunk) / self.block as f64
    }

    /// Runs it.
    ///
    /// # Errors
    /// There is no such plan, or a worker does not come to hold a version, or holds other bits than the home's.
    pub fn run(&self) -> Result<Outcome, Failure> {
        Run::new(self)?.run()
    }
}

/// What became of one version.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Held {
    /// Seconds until all workers held it, but for the one in trouble; and until half of them did.
    pub seconds: f64,
    /// See there.
    pub half: f64,
    /// The first beside one transfer.
    pub ratio: f64,
    /// Bytes that the busiest uplink sent, and all together, beside those of one version.
    pub busiest: f64,
    /// See there.
    pub all: f64,
    /// Frames on all links.
    pub frames: Tally,
}

/// A worker has left its parent.
#[derive(Debug, Clone, PartialEq)]
pub struct Left {
    /// The worker.
    pub rank: Rank,
    /// Its parent.
    pub parent: Option<Rank>,
    /// While this version was on its way.
    pub version: u64,
    /// Seconds since the version was published.
    pub after: f64,
    /// Why.
    pub why: String,
}

/// What came of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The shape, with what was left open.
    pub shape: Shape,
    /// What the planner says.
    pub prediction: Prediction,
    /// By version.
    pub held: Vec<Held>,
    /// The worker in trouble, and from which version on.
    pub troubled: Option<(Rank, u64)>,
    /// Who has left its parent.
    pub left: Vec<Left>,
    /// Who passes nothing on any more, as that was its fault, in the order in which that was seen.
    pub blamed: Vec<Rank>,
    /// Of the last plan, the children of the busiest node, and of the home.
    pub most_children: (usize, usize),
    /// How often a plan was made anew, as links carried something else than was planned with.
    pub moved: u32,
}

/// Why there is no outcome.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Failure {
    /// The plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A scenario that cannot be run.
    #[error("expected {expected}, got {got}")]
    Scenario {
        /// What.
        expected: &'static str,
        /// Instead.
        got: String,
    },
    /// A connection broke, though nobody breaks any.
    #[error("worker {rank}: {what}")]
    Broke {
        /// Whose.
        rank: Rank,
        /// How.
        what: String,
    },
    /// Likewise, as the home sees it.
    #[error("the home: {0}")]
    Home(String),
    /// Nothing moves any more.
    #[error(
        "expected all workers to hold version {version}, but {count} do not, the first of them worker {rank}"
    )]
    Missing {
        /// The version.
        version: u64,
        /// How many.
        count: usize,
        /// The first.
        rank: Rank,
    },
    /// It moves for ever.
    #[error("expected version {version} to come to rest, but after {events} events it has not")]
    Restless {
        /// The version.
        version: u64,
        /// So many.
        events: u64,
    },
    /// Somebody held other bits than the home's.
    #[error("{0} chunks came with other bits than the home's")]
    Wrong(u64),
}

/// What is to be done at some time.
enum Due {
    Publish { version: u64, chunk: u32 },
    Dialed { rank: Rank, wish: Wish },
    Plan(Stray),
    Judge,
    Again(Rank),
    Rate(Rank, Measured),
    Trouble(Trouble),
}

struct Run<'a> {
    scenario: &'a Scenario,
    net: Rc<RefCell<Net>>,
    shared: Rc<Shared>,
    home: Home,
    workers: Vec<Worker>,
    trees: Trees,
    due: Vec<Option<Due>>,
    troubled: Option<Rank>,
    /// The version at hand, and when it was published.
    version: u64,
    start: Time,
    left: Vec<Left>,
    blamed: Vec<Rank>,
    events: u64,
    /// The home's link, and when each host's was looked at last.
    gauge: Gauge,
    gauged: Vec<Time>,
}

/// The home's host; a worker's is the next behind its rank.
const HOME: Number = 0;

fn host(rank: Rank) -> Number {
    rank as Number + 1
}

fn nanos(seconds: f64) -> Time {
    (seconds * 1e9).round() as Time
}

impl<'a> Run<'a> {
    fn new(scenario: &'a Scenario) -> Result<Self, Failure> {
        let &Scenario { seed, hosts, shape, bytes, block, chunk, rate, hop, buffer, .. } = scenario;
        let wrong = |expected, got: &dyn ToString| Err(Failure::Scenario { expected, got: got.to_string() });
        if block == 0 || bytes == 0 {
            return wrong("bytes, in blocks of some", &bytes);
        }
        if !penstock_proto::chunk::is_chunk_size(chunk) || u64::from(chunk) > block {
            return wrong("a chunk that a tensor may have, no longer than a block", &chunk);
        }
        let traffic = Traffic { bytes, block: block.min(BLOCK_BYTES), hop };
        let mut links = vec![(1.0, 1.0); hosts as usize + 1];
        for &Unlike { rank, up, down } in &scenario.unlike {
            let is_one = |part: f64| part > 0.0 && part.is_finite();
            if rank >= hosts || !is_one(up) || !is_one(down) {
                return wrong("a host that there is, and parts of the usual rate above 0", &rank);
            }
            links[host(rank)] = (up, down);
        }
        // As the planner has them: the home last.
        let known =
            |&(up, down): &(f64, f64)| if scenario.rates == Rates::Known { f64::min(up, down) } else { 1.0 };
        let beside = links[1..].iter().chain(&links[..1]).map(known).collect();
        let trees = Trees::new(beside, rate * PAYLOAD_SHARE, shape, &traffic)?;
        let scaled = |bytes: u64| (bytes as f64 * scenario.scale()) as usize;
        let speed = Speed {
            rates: links
                .iter()
                .map(|(up, down)| (up * rate * PAYLOAD_SHARE, down * rate * PAYLOAD_SHARE))
                .collect(),
            hop: nanos(hop),
            packet: scaled((block / 4).max(16 << 10)),
            buffer: scaled(buffer).max(chunk as usize),
            scale: 1.0 / scenario.scale(),
        };
        let net = Rc::new(RefCell::new(Net::new(&speed)));
        let (chunks, chunk_bytes) = (scenario.chunks(), chunk as usize);
        let model = Rc::new(RefCell::new(Model::new(seed, chunks, chunk_bytes)));
        let shared = Rc::new(Shared {
            model: Rc::clone(&model),
            chunks: (0..chunks).collect(),
            chunk_bytes,
            now: Cell::new(0),
            wrong: Cell::new(0),
            scratch: RefCell::new(vec![0; chunk_bytes]),
        });
        let scope = Scope { job: JOB, server: 0, shard: 0 };
        let sealer = Sealer::new(&[7; 32], scope);
        let verifier = Verifier::new(&sealer.key(), scope).expect("a key that was made is one");
        let (mut ends, mut workers) = (Vec::new(), Vec::new());
        for rank in 0..hosts {
            let [one, other] = Net::connect(&net, HOME, host(rank));
            ends.push(one);
            let mut worker = Worker::new(JOB, &shared, other);
            worker.shard.trust(verifier.clone());
            workers.push(worker);
        }
        let home = Home::new(JOB, &model, (chunks, chunk_bytes), sealer, ends);
        let (due, troubled, left, blamed) = (Vec::new(), None, Vec::new(), Vec::new());
        let (version, start, events) = (0, 0, 0);
        let (gauge, gauged) = (Gauge::default(), vec![0; hosts as usize + 1]);
        Ok(Self {
            scenario,
            net,
            shared,
            home,
            workers,
            trees,
            due,
            troubled,
            version,
            start,
            left,
            blamed,
            events,
            gauge,
            gauged,
        })
    }

    fn run(mut self) -> Result<Outcome, Failure> {
        // The first words on each connection, then the routes, and the doors.
        self.home.send_all().map_err(Failure::Home)?;
        for rank in 0..self.scenario.hosts {
            self.net.borrow_mut().rouse(host(rank));
        }
        self.settle(0)?;
        self.reroute()?;
        self.settle(0)?;
        let mut held = Vec::new();
        for version in 0..self.scenario.versions {
            held.push(self.version(version)?);
        }
        if self.shared.wrong.get() > 0 {
            return Err(Failure::Wrong(self.shared.wrong.get()));
        }
        let most_children = self.trees.most_children();
        let since = self.scenario.versions.saturating_sub(1 + self.scenario.behind);
        let troubled = self.troubled.map(|rank| (rank, since));
        let Self { trees: Trees { shape, prediction, moved, .. }, left, blamed, .. } = self;
        Ok(Outcome { shape, prediction, held, troubled, left, blamed, most_children, moved })
    }

    /// Publishes a version, and waits until nothing moves.
    fn version(&mut self, version: u64) -> Result<Held, Failure> {
        self.weigh()?;
        self.shared.model.borrow_mut().make(version);
        self.start = self.net.borrow().now;
        self.version = version;
        let (sent, frames) = (self.net.borrow().sent(), self.net.borrow().tally());
        if version + 1 + self.scenario.behind == self.scenario.versions
            && let Some(trouble) = self.scenario.trouble
        {
            self.troubled = self.trees.some_inner();
            let begins = if trouble == Trouble::Hangs { self.scenario.transfer() / 4.0 } else { 0.0 };
            self.after(nanos(begins), Due::Trouble(trouble));
        }
        for rank in 0..self.scenario.hosts {
            self.net.borrow_mut().owe(host(rank), self.scenario.push);
        }
        let pace = nanos(self.scenario.pace);
        if pace == 0 {
            self.home.publish(version, 0..self.scenario.chunks()).map_err(Failure::Home)?;
        } else {
            for chunk in 0..self.scenario.chunks() {
                self.after(pace * Time::from(chunk), Due::Publish { version, chunk });
            }
        }
        self.settle(version)?;
        let mut took = Vec::new();
        let mut missing = Vec::new();
        for (rank, worker) in (0..).zip(&self.workers).filter(|(rank, _)| Some(*rank) != self.troubled) {
            let mirror = worker.mirror();
            if mirror.progress == version + 1 {
                took.push((mirror.since - self.start) as f64 / 1e9);
            } else {
                missing.push(rank);
            }
        }
        if let Some(&rank) = missing.first() {
            return Err(Failure::Missing { version, count: missing.len(), rank });
        }
        took.sort_by(f64::total_cmp);
        let (half, seconds) = (took[took.len() / 2], took[took.len() - 1]);
        let net = self.net.borrow();
        let model = (u64::from(self.scenario.chunks()) * self.scenario.block) as f64;
        let sent: Vec<u64> = net.sent().iter().zip(&sent).map(|(now, before)| now - before).collect();
        Ok(Held {
            seconds,
            half,
            ratio: seconds / self.scenario.transfer(),
            busiest: sent.iter().copied().max().unwrap_or(0) as f64 / model,
            all: sent.iter().sum::<u64>() as f64 / model,
            frames: net.tally().since(&frames),
        })
    }

    fn after(&mut self, later: Time, due: Due) {
        self.due.push(Some(due));
        self.net.borrow_mut().after(later, Event::Due(self.due.len() - 1));
    }

    /// Goes on until nothing is to happen any more.
    fn settle(&mut self, version: u64) -> Result<(), Failure> {
        let chunks = u64::from(self.scenario.chunks()) * u64::from(self.scenario.hosts);
        let most = self.events + MOST_EVENTS * chunks;
        loop {
            let Some(event) = self.net.borrow_mut().next() else { return Ok(()) };
            self.events += 1;
            if self.events > most {
                return Err(Failure::Restless { version, events: self.events });
            }
            self.shared.now.set(self.net.borrow().now);
            match event {
                Event::Look(HOME) => {
                    let news = self.net.borrow_mut().look(HOME);
                    let strays = self.home.look(&news).map_err(Failure::Home)?;
                    self.measure(HOME);
                    let hop = self.net.borrow().hop();
                    strays.into_iter().for_each(|stray| self.after(hop, Due::Plan(stray)));
                }
                Event::Look(at) => {
                    self.net.borrow_mut().look(at);
                    self.look(at as Rank - 1)?;
                    self.measure(at);
                }
                Event::Tick(at) => {
                    let now = self.net.borrow().now;
                    let worker = &mut self.workers[at - 1];
                    worker.ticks = false;
                    if !worker.hangs {
                        worker.tick(now);
                        self.look(at as Rank - 1)?;
                    }
                }
                Event::Due(at) => {
                    if let Some(due) = self.due[at].take() {
                        self.do_due(due)?;
                    }
                }
                event => self.net.borrow_mut().happens(event),
            }
        }
    }

    /// A host looks at what its link carries, if it is time to.
    fn measure(&mut self, at: Number) {
        let now = self.net.borrow().now;
        if self.scenario.rates != Rates::Measured || now < self.gauged[at] + GAUGES_APART {
            return;
        }
        self.gauged[at] = now;
        let net = self.net.borrow();
        // What a worker sends home is no child's.
        let child = |to: Number| (to != HOME).then(|| to as Rank - 1);
        let carried = net.carried(at, child);
        let since = Duration::from_nanos(now);
        if at == HOME {
            self.gauge.look(since, carried);
            return;
        }
        let rank = at as Rank - 1;
        let Worker { gauge, reports, .. } = &mut self.workers[rank as usize];
        gauge.look(since, carried);
        if let Some(measured) = reports.due(since, gauge) {
            let hop = net.hop();
            drop(net);
            self.after(hop, Due::Rate(rank, measured));
        }
    }

    /// Whether another plan is better, with what is known of links.
    fn weigh(&mut self) -> Result<(), Failure> {
        let now = self.net.borrow().now;
        let measured = self.gauge.measured(Duration::from_nanos(now));
        if self.scenario.rates == Rates::Measured && self.trees.weigh(measured, now / 1_000_000)? {
            self.reroute()?;
        }
        Ok(())
    }

    fn look(&mut self, rank: Rank) -> Result<(), Failure> {
        let worker = &mut self.workers[rank as usize];
        if worker.hangs {
            return Ok(());
        }
        worker.look().map_err(|what| Failure::Broke { rank, what })?;
        let (wishes, left) = worker.others();
        if worker.shard.awaits() && !std::mem::replace(&mut worker.ticks, true) {
            self.net.borrow_mut().after(TICKS_APART, Event::Tick(host(rank)));
        }
        let after = (self.net.borrow().now - self.start) as f64 / 1e9;
        let version = self.version;
        let left =
            left.into_iter().map(|left| Left { rank, parent: left.parent, version, after, why: left.what });
        self.left.extend(left);
        for wish in wishes {
            let hop = self.net.borrow().hop();
            let hangs = self.workers[wish.parent.rank as usize].hangs;
            self.after(if hangs { DIALS_WITHIN } else { DIALS_TAKE * hop }, Due::Dialed { rank, wish });
        }
        Ok(())
    }

    fn do_due(&mut self, due: Due) -> Result<(), Failure> {
        match due {
            Due::Publish { version, chunk } => {
                self.home.publish(version, chunk..chunk + 1).map_err(Failure::Home)
            }
            Due::Dialed { rank, wish } => self.dialed(rank, &wish),
            Due::Plan(stray) if stray.parent == NOBODY => {
                self.after(AGAIN_AFTER, Due::Again(stray.rank));
                Ok(())
            }
            Due::Plan(stray) => {
                match self.trees.stray(stray, self.millis()) {
                    Some(Said::Believed) => return self.blame(stray.parent),
                    Some(Said::HeardOut) => self.after(HEARD_OUT_MS * 1_000_000, Due::Judge),
                    Some(Said::Excused) => self.after(AGAIN_AFTER, Due::Again(stray.rank)),
                    None => {}
                }
                Ok(())
            }
            Due::Judge => {
                while let Some(stray) = self.trees.take_due(self.millis()) {
                    self.blame(stray.parent)?;
                }
                Ok(())
            }
            Due::Again(rank) => self.home.route_again(rank).map_err(Failure::Home),
            Due::Rate(rank, measured) => {
                let now = self.net.borrow().now / 1_000_000;
                self.trees.hear(rank, measured, now);
                self.weigh()
            }
            Due::Trouble(trouble) => {
                let Some(rank) = self.troubled else { return Ok(()) };
                match trouble {
                    Trouble::Hangs => self.workers[rank as usize].hangs = true,
                    Trouble::Slow(part) => {
                        let rate = self.scenario.rate * PAYLOAD_SHARE * part;
                        self.net.borrow_mut().set_rates(host(rank), (rate, rate));
                    }
                    Trouble::SlowUp(part) => {
                        let rate = self.scenario.rate * PAYLOAD_SHARE;
                        self.net.borrow_mut().set_rates(host(rank), (rate * part, rate));
                    }
                }
                Ok(())
            }
        }
    }

    /// A parent was dialed that a worker wishes to be fed by.
    fn dialed(&mut self, rank: Rank, wish: &Wish) -> Result<(), Failure> {
        let child = &mut self.workers[rank as usize];
        let Some(at) = child.wished.iter().position(|wished| wished == wish) else { return Ok(()) };
        child.wished.swap_remove(at);
        let parent = wish.parent.rank;
        if self.workers[parent as usize].hangs {
            let child = &mut self.workers[rank as usize];
            child.shard.parent_came(
                wish,
                Err(Unreached { why: "nobody answers at its door".to_owned(), is_its: true }),
            );
        } else {
            let [down, up] = Net::connect(&self.net, host(parent), host(rank));
            let (striping, stripes) = (wish.striping, wish.stripes);
            self.workers[parent as usize].shard.child_came(rank, (striping, stripes), down);
            self.workers[rank as usize].shard.parent_came(wish, Ok(up));
            self.net.borrow_mut().rouse(host(parent));
        }
        self.net.borrow_mut().rouse(host(rank));
        Ok(())
    }

    fn millis(&self) -> u64 {
        self.net.borrow().now / 1_000_000
    }

    /// A worker passes nothing on any more.
    fn blame(&mut self, rank: Rank) -> Result<(), Failure> {
        if self.trees.blame(rank, self.millis())? {
            self.blamed.push(rank);
            self.reroute()?;
        }
        Ok(())
    }

    fn reroute(&mut self) -> Result<(), Failure> {
        match self.trees.routes() {
            Some(routes) => self.home.reroute(routes).map_err(Failure::Home),
            None => Ok(()),
        }
    }
}
