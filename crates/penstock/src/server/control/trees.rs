//! Trees: who passes on what this server's shards send to workers on other hosts.
//!
//! Workers say in their hellos which trees they want, where they take others in (their door), and in which rack their host stands.
//! When all have come a plan is made ([`penstock_proto::overlay`]), and from it the routes that every shard gets. All servers plan
//! the same cluster, each takes the trees that are its own, and so not the same workers are inner nodes of all.
//!
//! A node of the plan is a host. The first worker of a host, the one of the lowest rank, is fed by the plan's parent, and feeds the
//! others there: edges inside a host cost nothing. A worker without a door is fed by the shards themselves.
//!
//! | what happens | what becomes of the plan |
//! |---|---|
//! | a worker leaves or is lost | its children get other parents, and nobody else does |
//! | a worker has left its parent, whose fault that was | unless the parent starved itself ([`Judging`]) it passes nothing on any more: it becomes a leaf, behind its children. One that says so of more than [`MOST_STRAYS`] parents is believed no more, and becomes one itself. After a minute, or longer each time, there is a new plan, in which it passes on again |
//! | a worker comes late | a new plan |
//! | links carry something else than when the plan was made, and another plan takes a quarter less time | that one ([`rates`](super::rates)) |
//!
//! A plan for many hosts takes long: another thread makes it, and until it has the plan before is mended, if there is one.
//!
//! Pure state. Nothing is planned for a job whose workers want a star.

use super::rates::Rates;
use crate::uplink::Uplink;
use penstock_proto::Rank;
use penstock_proto::error::Refusal;
use penstock_proto::message::{Joining, Session};
use penstock_proto::overlay::{
    BLOCK_BYTES, Better, Cluster, Costs, Feed, Judging, LOOKS_APART_MS, Limits, MAX_SHAPE_BYTES, Node,
    Overlay, Parent, Pass, Place, Plan, PlanError, Rack, Rate, Routes, Said, Shape, Standing, Traffic,
    instead, plan,
};
use penstock_proto::uplink::Measured;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Most parents that a worker may have left because of them in ten minutes.
const MOST_STRAYS: usize = 8;
/// How long a worker passes nothing on for which others have left it, in milliseconds; twice as long each time that it comes to that
/// again, so many times.
const OUT_FOR_MS: u64 = 60_000;
const MOST_DOUBLED: u32 = 6;
/// How long it counts that a worker has left a parent, in milliseconds.
const BELIEVED_AGAIN_MS: u64 = 600_000;
/// Bytes a second of every uplink. Only how they compare counts, and a hop's time beside what a block takes.
const RATE: f64 = 1.25e9;
/// What is planned for: bytes of all servers together.
const BYTES: u64 = 64 << 20;
/// Seconds from one host to the next, beside the bytes' own time: a switch, and two threads that are woken. Without them `auto`
/// would take the longest chain for as good as any tree.
const HOP: f64 = 1e-4;

/// Pairs of a host and another, for each server, beyond which a plan takes tens of milliseconds or more, but for that of a star or a
/// chain.
const LONG: usize = 10_000;

/// All that a plan is made of, on any thread.
#[derive(Debug)]
pub(in crate::server) struct Planning {
    /// Its number.
    number: u64,
    index: usize,
    shape: Shape,
    traffic: Traffic,
    servers: Vec<Node>,
    nodes: Vec<Node>,
    hosts: Vec<Host>,
    /// Its rates, to be shown.
    rates: String,
    /// What stands, if the plan is only to be made where it is so much better that it is worth to move.
    standing: Option<Standing>,
}

/// What came of that.
#[derive(Debug)]
pub(in crate::server) struct Made {
    number: u64,
    planned: Option<Planned>,
    /// What stands is as good, or nearly, and stays; it stood, and others move to this.
    stays: bool,
    moves: bool,
}

/// What is kept of a worker that others have left.
#[derive(Debug, Clone, Copy, Default)]
struct Out {
    /// Whether it passes nothing on, and until when.
    is_out: bool,
    until: u64,
    /// How often it came to that.
    times: u32,
}

/// A worker on another host, with a door.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Subscriber {
    door: SocketAddr,
    session: Session,
    rack: Rack,
}

/// A node of the plan: a host, or a worker of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Host {
    At(IpAddr),
    /// Behind loopback each is one by itself: what is sent there goes over no network, whoever sends it.
    Alone(Rank),
}

impl Subscriber {
    fn host(&self, rank: Rank) -> Host {
        match self.door.ip().to_canonical() {
            ip if ip.is_loopback() => Host::Alone(rank),
            ip => Host::At(ip),
        }
    }
}

/// This server's part of a plan, and what its numbers mean.
#[derive(Debug)]
pub(in crate::server) struct Planned {
    overlay: Overlay,
    limits: Option<Limits>,
    cluster: Cluster,
    /// By number, less 1.
    hosts: Vec<Host>,
}

/// The trees of one server.
#[derive(Debug)]
pub(super) struct Trees {
    /// The server's number, and how many there are.
    index: u32,
    servers: u32,
    block: u64,
    /// What the first worker wanted; all others want the same.
    shape: Option<Shape>,
    /// Those that take part, and those among them that pass nothing on because of what others have said of them.
    subscribers: BTreeMap<Rank, Subscriber>,
    out: BTreeMap<Rank, Out>,
    /// By worker, the parents that it has left because of them, and when.
    strays: BTreeMap<Rank, BTreeMap<Rank, u64>>,
    judging: Judging,
    /// Workers that have left a parent that is not at fault: they are to be told of their routes again.
    again: Vec<Rank>,
    planned: Option<Planned>,
    /// Plans that were begun; the number of the one that another thread makes; and that one, until it is taken there.
    begun: u64,
    awaited: Option<u64>,
    planning: Option<Planning>,
    /// What the shards were told.
    routes: Arc<Routes>,
    /// Whether the routes may be others now; whether the plan cannot be mended, but is to be made anew.
    changed: bool,
    anew: bool,
    /// What links carry.
    rates: Rates,
    /// When it was last asked what the time is.
    now: u64,
    /// Whether the plan that is waited for is made for the sake of rates alone.
    weighing: bool,
}

/// What a worker wants, judged.
pub(super) struct Wish {
    shape: Shape,
    door: Option<SocketAddr>,
    rack: Rack,
    rate: Rate,
}

fn malformed<T>(what: &str) -> Result<T, Refusal> {
    Err(Refusal::Malformed { what: what.to_owned() })
}

impl Trees {
    pub(super) fn new(index: u32, servers: u32, chunk_bytes: u32) -> Self {
        Self {
            index,
            servers,
            block: BLOCK_BYTES.min(chunk_bytes.into()),
            shape: None,
            subscribers: BTreeMap::new(),
            out: BTreeMap::new(),
            strays: BTreeMap::new(),
            judging: Judging::default(),
            again: Vec::new(),
            planned: None,
            begun: 0,
            awaited: None,
            planning: None,
            routes: Arc::default(),
            changed: false,
            anew: false,
            rates: Rates::default(),
            now: 0,
            weighing: false,
        }
    }

    /// The same that plans with what this host's link is found to carry, or what its user says of it.
    pub(super) fn measuring(mut self, uplink: Arc<Uplink>, (workers, rate): (u32, Rate)) -> Self {
        self.rates = Rates::new(uplink, (workers, rate));
        self
    }

    /// Whether a worker may join that says this. Nothing is kept.
    pub(super) fn judge(&self, rank: Rank, joining: &Joining) -> Result<Wish, Refusal> {
        let shape = match &joining.tree[..] {
            "" => Ok(Shape::Star),
            text if text.len() > MAX_SHAPE_BYTES => return malformed("the trees that it wants are too long"),
            text => text.parse::<Shape>(),
        };
        let Ok(shape) = shape else { return malformed("the trees that it wants are none that there are") };
        let Ok(rack) = joining.rack.parse::<Rack>() else { return malformed("its rack is none") };
        let rate = Rate(joining.rate);
        if !rate.is_sane() {
            return malformed("its link has a rate that no link has");
        }
        let no_door = |door: &SocketAddr| {
            door.port() == 0 || door.ip().is_unspecified() || door.ip().to_canonical().is_multicast()
        };
        if joining.door.as_ref().is_some_and(no_door) {
            return malformed("nobody can come in at its door");
        }
        match self.shape.filter(|expected| *expected != shape) {
            None => Ok(Wish { shape, door: joining.door, rack, rate }),
            Some(expected) => {
                Err(Refusal::Tree { rank, expected: expected.to_string(), got: shape.to_string() })
            }
        }
    }

    /// A worker has joined, in this session.
    pub(super) fn join(&mut self, rank: Rank, session: Session, wish: Wish, is_remote: bool) {
        self.shape.get_or_insert(wish.shape);
        if wish.shape == Shape::Star || !is_remote {
            return;
        }
        let Some(door) = wish.door else {
            tracing::warn!(
                worker = rank,
                "a worker passes nothing on, as it has no door: servers send to it themselves"
            );
            return;
        };
        self.subscribers.insert(rank, Subscriber { door, session, rack: wish.rack });
        self.rates.join(rank, wish.rate);
        (self.changed, self.anew) = (true, true);
    }

    /// A worker has left, or was lost.
    pub(super) fn leave(&mut self, rank: Rank) {
        self.changed |= self.subscribers.remove(&rank).is_some();
        self.out.remove(&rank);
        self.strays.remove(&rank);
        self.judging.forget(rank);
        self.rates.leave(rank);
        // The last one that was waited for may be one that never came.
        self.changed = self.planned.is_none() && !self.subscribers.is_empty() || self.changed;
    }

    /// A worker has left its parent, whose fault that was, at this time in milliseconds.
    pub(super) fn stray(&mut self, rank: Rank, parent: Rank, now: u64) {
        // Another's children say so themselves, and of one that has gone it is known.
        let is_fed = |feed: &Feed| feed.parent.as_ref().is_some_and(|fed_by| fed_by.rank == parent);
        let feeds = self.routes.members.get(&rank).is_some_and(|member| member.feeds.iter().any(is_fed));
        if !feeds || !self.subscribers.contains_key(&rank) || !self.passes_on(parent) {
            return;
        }
        if !self.believes(rank, parent, now) {
            return self.distrust(rank, now);
        }
        match self.judging.accuse(&self.routes, (rank, parent), now) {
            Said::Believed => self.blame(rank, parent, now),
            Said::HeardOut => {}
            Said::Excused => self.again.push(rank),
        }
    }

    /// Whether a worker has not left more parents because of them than can be at fault, with this one.
    fn believes(&mut self, rank: Rank, parent: Rank, now: u64) -> bool {
        let Some(left) = self.strays.get_mut(&rank) else { return true };
        left.retain(|_, at| now.saturating_sub(*at) < BELIEVED_AGAIN_MS);
        left.keys().filter(|other| **other != parent).count() < MOST_STRAYS
    }

    /// A worker that is believed no more says that its parent is at fault: it stays where it is, and passes nothing on.
    fn distrust(&mut self, rank: Rank, now: u64) {
        self.again.push(rank);
        if self.passes_on(rank) {
            tracing::warn!(
                worker = rank,
                "a worker has left more parents than can be at fault: it passes nothing on any more"
            );
            self.silence(rank, now);
        }
    }

    /// A worker has left its parent, and nobody above that one is at fault.
    fn blame(&mut self, rank: Rank, parent: Rank, now: u64) {
        self.strays.entry(rank).or_default().insert(parent, now);
        tracing::warn!(
            worker = rank,
            parent,
            "a worker was not fed by another as it should have been: worker {parent} passes nothing on any more"
        );
        self.silence(parent, now);
    }

    fn silence(&mut self, rank: Rank, now: u64) {
        self.judging.found(&self.routes, rank, now);
        let out = self.out.entry(rank).or_default();
        (out.is_out, out.until) = (true, now + OUT_FOR_MS * (1 << out.times.min(MOST_DOUBLED)));
        out.times += 1;
        self.changed = true;
    }

    /// Those of whom others have waited for long enough whether they starve themselves are at fault, as of this time, if any is believed
    /// who says so. All others who do are told of their routes again: those may stay as they are.
    pub(super) fn hear_out(&mut self, now: u64) {
        while let Some((by, parent)) = self.judging.take_due(&self.routes, now) {
            let mut is_found = !self.passes_on(parent);
            for rank in by {
                if is_found {
                    self.again.push(rank);
                } else if self.believes(rank, parent, now) {
                    self.blame(rank, parent, now);
                    is_found = true;
                } else {
                    self.distrust(rank, now);
                }
            }
        }
    }

    /// This process runs, at `ran` milliseconds by a clock that counts those in which it did not too.
    pub(super) fn runs(&mut self, ran: u64, now: u64) {
        // Where nobody passes anything on it sleeps for longer.
        if self.routes.members.is_empty() {
            self.judging.rests();
        } else if self.judging.runs(ran, now) {
            tracing::info!("this server stood still for a while: no worker is taken for slow for that");
        }
    }

    /// How long it may be until it is to be said again that this process [runs](Self::runs), if it is.
    pub(super) fn runs_again_in(&self) -> Option<Duration> {
        (!self.routes.members.is_empty()).then_some(Duration::from_millis(LOOKS_APART_MS))
    }

    /// When that is to be looked at next, if it is.
    pub(super) fn hears_out_at(&self) -> Option<u64> {
        self.judging.next(&self.routes)
    }

    /// Workers that are to be told of their routes again.
    pub(super) fn take_again(&mut self) -> Vec<Rank> {
        std::mem::take(&mut self.again)
    }

    /// Workers that have passed nothing on for long enough may again, as of this time.
    pub(super) fn forgive(&mut self, now: u64) {
        for out in self.out.values_mut().filter(|out| out.is_out && out.until <= now) {
            out.is_out = false;
            (self.changed, self.anew) = (true, true);
        }
    }

    /// Whether a worker may pass something on.
    fn passes_on(&self, rank: Rank) -> bool {
        self.subscribers.contains_key(&rank) && !self.out.get(&rank).is_some_and(|out| out.is_out)
    }

    /// The routes, if they are others than before; `all_came`: no worker of the job is still to come.
    pub(super) fn routes(&mut self, all_came: bool) -> Option<Arc<Routes>> {
        // What was planned once is mended whenever something happens.
        if !self.changed || !(all_came || self.planned.is_some()) {
            return None;
        }
        self.changed = false;
        let mut routes = self.planned_routes();
        // Who is fed and who feeds speak of the same stripes by it.
        routes.striping = self.routes.striping + u32::from(routes.shares != self.routes.shares);
        (routes != *self.routes).then(|| {
            self.routes = Arc::new(routes);
            Arc::clone(&self.routes)
        })
    }

    fn planned_routes(&mut self) -> Routes {
        if self.subscribers.len() < 2 {
            (self.planned, self.planning, self.awaited) = (None, None, None);
            self.anew = true;
            return Routes::default();
        }
        // One at a time: what has changed since that one began is planned for behind it.
        if self.awaited.is_none() && std::mem::take(&mut self.anew) {
            let planning = self.begin();
            self.weighing = false;
            self.make_or_put_off(planning);
            self.changed = false;
        }
        self.mend();
        self.planned.as_ref().map_or_else(Routes::default, |planned| self.along(planned))
    }

    fn make_or_put_off(&mut self, planning: Planning) {
        self.awaited = Some(planning.number);
        if planning.is_long() {
            self.planning = Some(planning);
        } else {
            self.made(planning.make());
        }
    }

    /// A worker has measured its host's link.
    pub(super) fn hear_rate(&mut self, rank: Rank, measured: Measured, now: u64) {
        if self.subscribers.contains_key(&rank) {
            self.rates.hear(rank, measured, now);
        }
    }

    /// Where links carry something else than when the plan was made, as of this time, looks whether another is so much better that it is
    /// worth to move.
    pub(super) fn weigh(&mut self, now: u64) {
        self.now = now;
        self.rates.fed_by(self.routes.shares.len() * self.servers as usize);
        // What has changed is planned for first: what stands may have lost a host just now.
        let waits = self.awaited.is_some() || self.anew || self.changed;
        if self.planned.is_none() || waits || !self.rates.is_time(now) {
            return;
        }
        let hosts = self.hosts();
        if !self.rates.have_changed(&hosts) {
            return;
        }
        let planning = self.begin();
        let standing = self.standing(&planning.hosts);
        self.weighing = true;
        self.make_or_put_off(Planning { standing, ..planning });
    }

    /// What stands, over these hosts, which are those that are left of it.
    fn standing(&self, hosts: &[Host]) -> Option<Standing> {
        let Planned { overlay, hosts: before, .. } = self.planned.as_ref()?;
        let numbers: BTreeMap<&Host, u32> = hosts.iter().zip(1..).collect();
        let number = |node: u32| match (node as usize).checked_sub(1) {
            None => Some(0),
            Some(place) => before.get(place).and_then(|host| numbers.get(host)).copied(),
        };
        let by_host = self.hosts();
        let is_silent =
            |(host, _): &(&Host, u32)| !by_host.get(*host).is_some_and(|ranks| self.passes_on(ranks[0]));
        let silent = hosts.iter().zip(1..).filter(is_silent).map(|(_, number)| number).collect();
        Some(Standing::of(overlay, number, silent))
    }

    /// A plan that is to be made on another thread, once; for [`made`](Self::made).
    pub(super) fn take_planning(&mut self) -> Option<Planning> {
        self.planning.take()
    }

    /// It is not made there: what it was for is planned when something changes next.
    pub(super) fn not_made(&mut self) {
        if self.awaited.take().is_some() {
            // Where links alone were the reason, what stands goes on.
            self.anew |= !std::mem::take(&mut self.weighing);
        }
    }

    /// The plan that was made there.
    pub(super) fn made(&mut self, made: Made) {
        if self.awaited.take_if(|number| *number == made.number).is_some() {
            self.changed = true;
            if made.stays {
                return self.rates.stays(self.now);
            }
            if made.moves {
                self.rates.moves(self.now);
            }
            self.planned = made.planned;
        }
    }

    /// The workers of each host, ascending, those that pass nothing on behind the others.
    fn hosts(&self) -> BTreeMap<Host, Vec<Rank>> {
        let mut hosts: BTreeMap<Host, Vec<Rank>> = BTreeMap::new();
        for (&rank, subscriber) in &self.subscribers {
            hosts.entry(subscriber.host(rank)).or_default().push(rank);
        }
        hosts.values_mut().for_each(|ranks| ranks.sort_by_key(|&rank| !self.passes_on(rank)));
        hosts
    }

    /// Takes the hosts out of the plan that have nobody left, and has those pass nothing on that have nobody who may.
    fn mend(&mut self) {
        let left = self.hosts();
        let passes = |host: &Host| left.get(host).is_some_and(|ranks| self.passes_on(ranks[0]));
        let passes: BTreeSet<Host> = left.keys().copied().filter(passes).collect();
        let Some(Planned { overlay, limits, cluster, hosts }) = &mut self.planned else { return };
        let silent = |(host, _): &(&Host, u32)| left.contains_key(*host) && !passes.contains(*host);
        let leaves: BTreeSet<u32> = hosts.iter().zip(1..).filter(silent).map(|(_, number)| number).collect();
        let view = cluster.seen_from(self.index as usize);
        for (host, number) in hosts.iter().zip(1..) {
            if left.contains_key(host) || !overlay.has(number) {
                continue;
            }
            // There are two workers at least, so it is not the last.
            if let Ok((mended, _)) = overlay.without(&view, number, (*limits, &leaves)) {
                *overlay = mended;
            }
        }
        for &leaf in &leaves {
            let is_inner = overlay.stripes().iter().any(|stripe| stripe.inner().contains(&leaf));
            if is_inner && let Ok((mended, _)) = overlay.with_leaf(&view, leaf, (*limits, &leaves)) {
                *overlay = mended;
            }
        }
    }

    fn traffic(&self) -> Traffic {
        Traffic { bytes: BYTES, block: self.block, hop: HOP }
    }

    fn begin(&mut self) -> Planning {
        let by_host = self.hosts();
        // In the order of their first workers, whatever their addresses are.
        let mut hosts: Vec<(Rank, Host)> = by_host.iter().map(|(&host, ranks)| (ranks[0], host)).collect();
        hosts.sort_unstable();
        let hosts: Vec<Host> = hosts.into_iter().map(|(_, host)| host).collect();
        let (rates, shown) = self.rates.plan_with(&hosts, &by_host);
        let racks: BTreeSet<&Rack> =
            by_host.values().filter_map(|ranks| self.rack(ranks)).chain([&UNKNOWN]).collect();
        let node = |rack: &Rack, host: usize, beside: f64| {
            let zones: BTreeSet<&str> = racks.iter().map(|rack| &rack.zone[..]).collect();
            let zone = zones.iter().position(|zone| *zone == rack.zone).unwrap_or(0) as u32;
            let rack = racks.iter().position(|other| *other == rack).unwrap_or(0) as u32;
            Node { place: Place { zone, rack, host: host as u32 }, rate: RATE * beside }
        };
        let rack = |host: &Host| by_host.get(host).and_then(|ranks| self.rack(ranks)).unwrap_or(&UNKNOWN);
        let (own, beside) = rates.split_last().map_or((1.0, &[][..]), |(own, beside)| (*own, beside));
        let nodes = hosts.iter().zip(beside).zip(0..);
        let nodes = nodes.map(|((host, beside), number)| node(rack(host), number, *beside)).collect();
        // Where the other servers stand nobody here knows: each on a host of its own, as this one, with a link as most have.
        let server = |server: usize| {
            node(&UNKNOWN, hosts.len() + server, if server == self.index as usize { own } else { 1.0 })
        };
        let servers = (0..self.servers as usize).map(server).collect();
        let (shape, traffic) = (self.shape.unwrap_or(Shape::Star), self.traffic());
        self.begun += 1;
        let (number, index) = (self.begun, self.index as usize);
        Planning { number, index, shape, traffic, servers, nodes, hosts, rates: shown, standing: None }
    }

    /// Where a host stands, as the first of its workers says.
    fn rack(&self, ranks: &[Rank]) -> Option<&Rack> {
        ranks.first().and_then(|rank| self.subscribers.get(rank)).map(|subscriber| &subscriber.rack)
    }

    /// The routes of all along a plan.
    fn along(&self, planned: &Planned) -> Routes {
        let by_host = self.hosts();
        let ranks = |number: u32| {
            let host = planned.hosts.get((number as usize).wrapping_sub(1));
            host.and_then(|host| by_host.get(host)).map_or(&[][..], |ranks| ranks)
        };
        let parent = |child: Rank, rank: Rank| {
            let Subscriber { door, session, .. } = self.subscribers.get(&rank)?;
            Some(Parent { rank, address: *door, pass: Pass::new(session, self.index, child) })
        };
        // Where nobody of a host may pass anything on, the shards feed all of them but the first.
        Routes::along(&planned.overlay, ranks, |rank| self.passes_on(rank), parent)
    }
}

impl Planning {
    fn is_long(&self) -> bool {
        let is_quick = matches!(self.shape, Shape::Star | Shape::Chain);
        !is_quick && self.hosts.len() * self.hosts.len() * self.servers.len() > LONG
    }

    /// Makes the plan.
    pub(super) fn make(self) -> Made {
        let Self { number, index, shape, traffic, servers, nodes, hosts, rates, standing } = self;
        // What comes in is measured of nobody: every link takes what the usual one does.
        let cluster = Cluster::new(servers, nodes, Costs::Both).and_then(|cluster| cluster.taking(RATE));
        let settled = shape.settled(hosts.len());
        let planned = cluster.and_then(|cluster| {
            let plan = match &standing {
                None => plan(&cluster, settled, &traffic)?,
                Some(standing) => match instead(&cluster, settled, &traffic, index, standing)? {
                    None => return Ok(None),
                    Some(Better { plan, seconds, instead_of }) => {
                        let percent = (100.0 * (1.0 - seconds / instead_of)).round();
                        tracing::info!(
                            rates,
                            "trees are planned anew, as links carry something else than was planned with: \
                             what goes along them takes {percent} % less time"
                        );
                        plan
                    }
                },
            };
            Ok::<_, PlanError>(Some((cluster, plan)))
        });
        let moves = standing.is_some();
        let planned = match planned {
            // What stands is no plan for these hosts, or there is none: it is planned for when something changes next.
            Ok(None) | Err(_) if moves => return Made { number, planned: None, stays: true, moves: false },
            Ok(None) => None,
            Ok(Some((cluster, mut plan))) => {
                if !moves {
                    let Plan { shape, .. } = &plan;
                    tracing::info!(%shape, hosts = hosts.len(), rates, "trees are planned");
                }
                let limits = match plan.shape {
                    Shape::Tree { limits, .. } => Some(limits),
                    _ => None,
                };
                let overlay = plan.overlays.swap_remove(index);
                Some(Planned { overlay, limits, cluster, hosts })
            }
            Err(error) => {
                let (hosts, hint) = (hosts.len(), error.hint());
                tracing::warn!(%shape, hosts, %error, hint, "the servers send to every worker themselves");
                None
            }
        };
        Made { number, planned, stays: false, moves }
    }

    /// Makes the plan on a thread of its own, which must say something whatever happens: a plan that is waited for keeps others
    /// from being made.
    pub(super) fn make_or_none(self) -> Made {
        let (number, stays) = (self.number, self.standing.is_some());
        let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.make()));
        made.unwrap_or(Made { number, planned: None, stays, moves: false })
    }
}

/// Where a host stands that says nothing of it.
static UNKNOWN: Rack = Rack { zone: String::new(), rack: String::new() };

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_proto::overlay::{EXCUSED_MS, HEARD_OUT_MS, Member, WHOLE};
    use proptest::prelude::*;

    /// The only server, unless said otherwise.
    fn trees() -> Trees {
        Trees::new(0, 1, 32 * 1024)
    }

    fn door(host: u8) -> Option<SocketAddr> {
        Some(SocketAddr::from(([10, 0, 0, host], 4000)))
    }

    fn joining(tree: &str, door: Option<SocketAddr>, rack: &str) -> Joining {
        Joining { tree: tree.to_owned(), door, rack: rack.to_owned(), rate: 0 }
    }

    fn join(trees: &mut Trees, rank: Rank, tree: &str, door: Option<SocketAddr>) {
        let wish = trees.judge(rank, &joining(tree, door, "")).unwrap();
        trees.join(rank, [rank as u8; 16], wish, true);
    }

    /// So many workers, each on a host of its own.
    fn joined(tree: &str, workers: u32) -> Trees {
        let mut trees = trees();
        (0..workers).for_each(|rank| join(&mut trees, rank, tree, door(rank as u8)));
        trees
    }

    /// Who feeds each, where there is one stripe.
    fn fed(routes: &Routes) -> Vec<(Rank, Option<Rank>, u32)> {
        assert!(routes.shares.len() < 2 && routes.shares.iter().all(|&share| share == WHOLE));
        let feed = |member: &Member| {
            assert_eq!(member.feeds.len(), 1);
            (member.feeds[0].parent.as_ref().map(|parent| parent.rank), member.feeds[0].depth)
        };
        let fed = routes.members.iter().map(|(&rank, member)| (rank, feed(member)));
        fed.map(|(rank, (parent, depth))| (rank, parent, depth)).collect()
    }

    fn inner(routes: &Routes) -> Vec<Rank> {
        routes.members.iter().filter(|(_, member)| member.passes_on).map(|(&rank, _)| rank).collect()
    }

    /// Each stripe is a tree from the home over these workers, and says of nobody what is not so.
    fn check(routes: &Routes, workers: &[Rank], doors: impl Fn(Rank) -> Option<SocketAddr>) {
        assert_eq!(routes.shares.iter().sum::<u32>(), WHOLE);
        assert!(routes.members.keys().eq(workers));
        let parents: BTreeSet<Rank> = routes
            .members
            .values()
            .flat_map(|member| member.feeds.iter().flat_map(|feed| &feed.parent))
            .map(|parent| {
                assert_eq!(Some(parent.address), doors(parent.rank));
                parent.rank
            })
            .collect();
        assert_eq!(parents.into_iter().collect::<Vec<_>>(), inner(routes));
        for (&rank, member) in &routes.members {
            assert_eq!(member.feeds.len(), routes.shares.len());
            for (stripe, feed) in member.feeds.iter().enumerate() {
                let pass = |parent: &Parent| Pass::new(&[parent.rank as u8; 16], 0, rank);
                assert!(feed.parent.as_ref().is_none_or(|parent| parent.pass == pass(parent)));
                let above =
                    feed.parent.as_ref().map_or(0, |parent| routes.members[&parent.rank].feeds[stripe].depth);
                assert_eq!(feed.depth, above + 1, "so there is no circle either");
            }
        }
    }

    #[test]
    fn nothing_is_planned_before_all_have_come_and_nothing_twice() {
        let mut trees = joined("chain", 3);
        assert_eq!(trees.routes(false), None);
        let routes = trees.routes(true).unwrap();
        assert_eq!(fed(&routes), [(0, None, 1), (1, Some(0), 2), (2, Some(1), 3)]);
        assert_eq!(inner(&routes), [0, 1]);
        assert_eq!(trees.routes(true), None, "nothing has happened since");
    }

    #[test]
    fn where_a_star_is_wanted_or_nobody_is_far_away_there_are_no_routes() {
        let mut star = joined("", 3);
        assert_eq!(star.routes(true), None);
        let mut one = joined("chain", 1);
        let wish = one.judge(1, &joining("chain", None, "")).unwrap();
        one.join(1, [1; 16], wish, true);
        let wish = one.judge(2, &joining("chain", door(2), "")).unwrap();
        one.join(2, [2; 16], wish, false);
        assert_eq!(one.routes(true), None, "one of the others has no door, and one is on this host");
    }

    #[test]
    fn a_worker_without_a_door_is_fed_by_the_shards_and_feeds_nobody() {
        let mut trees = joined("chain", 3);
        let wish = trees.judge(3, &joining("chain", None, "")).unwrap();
        trees.join(3, [3; 16], wish, true);
        assert!(!trees.routes(true).unwrap().members.contains_key(&3));
    }

    #[test]
    fn who_wants_other_trees_than_the_first_is_refused_with_both() {
        let mut trees = joined("tree:degree=2,leaf_penalty=0.5", 1);
        let refused = |trees: &Trees, tree| trees.judge(1, &joining(tree, None, "")).map(|_| ()).unwrap_err();
        let tree = |expected: &str, got: &str| Refusal::Tree {
            rank: 1,
            expected: expected.to_owned(),
            got: got.to_owned(),
        };
        let wanted = "tree:degree=2,leaf_penalty=0.5";
        assert_eq!(refused(&trees, "chain"), tree(wanted, "chain"));
        assert_eq!(refused(&trees, ""), tree(wanted, "star"));
        join(&mut trees, 1, "tree:leaf_penalty=0.50,degree=2", door(1));
        let star = joined("star", 1);
        assert_eq!(refused(&star, "auto"), tree("star", "auto"));
        assert!(star.judge(1, &joining("", None, "")).is_ok());
    }

    #[test]
    fn hostile_words_are_refused_and_nothing_is_kept() {
        let trees = trees();
        let long = "1".repeat(100);
        for wrong in [
            joining("ring", None, ""),
            joining(&format!("striped:{long}"), None, ""),
            joining("tree:degree=0", None, ""),
            joining("chain", None, "a/b/c"),
            joining("chain", None, "a\u{1b}[2J"),
            joining("chain", None, &long),
            joining("chain", Some(SocketAddr::from(([0, 0, 0, 0], 4000))), ""),
            joining("chain", Some(SocketAddr::from(([10, 0, 0, 1], 0))), ""),
            joining("chain", Some(SocketAddr::from(([224, 0, 0, 1], 4000))), ""),
        ] {
            assert!(matches!(trees.judge(0, &wrong), Err(Refusal::Malformed { .. })), "{wrong:?}");
        }
        assert!(trees.shape.is_none() && trees.subscribers.is_empty());
    }

    #[test]
    fn the_longest_hello_of_an_honest_worker_is_read() {
        use crate::server::control::MAX_HELLO_BYTES;
        use penstock_proto::message::{Ask, Request, encode};
        use penstock_proto::overlay::{MAX_LEAF_PENALTY, MAX_RACK_BYTES};
        use penstock_proto::peer::PeerId;
        let limits = Limits { degree: u32::MAX, depth: u32::MAX };
        let tree = Shape::Tree { limits, leaf_penalty: MAX_LEAF_PENALTY / 3.0 };
        let door = Some("[fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535".parse().unwrap());
        let overlay =
            Joining { rate: Rate::BOUNDS.1, ..joining(&tree.to_string(), door, &"r".repeat(MAX_RACK_BYTES)) };
        assert!(trees().judge(0, &overlay).is_ok());
        let peer = PeerId::worker(u32::MAX);
        let (version, session, size) = (u32::MAX, [255; 16], u32::MAX);
        let body = Ask::Hello { version, session, peer, size, overlay };
        let hello = Request { id: u64::MAX, settled: u64::MAX, open: Vec::new(), body };
        assert!(encode(&hello).unwrap().len() <= MAX_HELLO_BYTES);
    }

    #[test]
    fn of_several_workers_on_one_host_the_first_feeds_the_others_and_the_next_does_when_it_has_gone() {
        let mut trees = trees();
        for (rank, host) in [(0, 1), (1, 2), (2, 2), (3, 1), (4, 2)] {
            join(&mut trees, rank, "chain", door(host));
        }
        let routes = trees.routes(true).unwrap();
        assert_eq!(
            fed(&routes),
            [(0, None, 1), (1, Some(0), 2), (2, Some(1), 3), (3, Some(0), 2), (4, Some(1), 3)]
        );
        trees.leave(1);
        let routes = trees.routes(true).unwrap();
        assert_eq!(fed(&routes), [(0, None, 1), (2, Some(0), 2), (3, Some(0), 2), (4, Some(2), 3)]);
        trees.leave(0);
        assert_eq!(fed(&trees.routes(true).unwrap()), [(2, Some(3), 2), (3, None, 1), (4, Some(2), 3)]);
        trees.leave(3);
        assert_eq!(fed(&trees.routes(true).unwrap()), [(2, None, 1), (4, Some(2), 2)], "one host is left");
        trees.leave(4);
        let alone = trees.routes(true).unwrap();
        assert!(alone.shares.is_empty() && alone.members.is_empty(), "nobody is left to pass anything on to");
    }

    // Tests run whole jobs on one host.
    #[test]
    fn workers_behind_loopback_are_hosts_of_their_own() {
        let mut trees = trees();
        for rank in 0..3 {
            join(&mut trees, rank, "chain", Some(SocketAddr::from(([127, 0, 0, 1], 4000 + rank as u16))));
        }
        assert_eq!(fed(&trees.routes(true).unwrap()), [(0, None, 1), (1, Some(0), 2), (2, Some(1), 3)]);
    }

    #[test]
    fn when_a_worker_goes_only_its_children_get_other_parents() {
        for tree in
            ["chain", "tree:degree=2", "tree:degree=3,depth=3,leaf_penalty=0.5", "striped:4", "striped"]
        {
            let mut trees = joined(tree, 13);
            let before = trees.routes(true).unwrap();
            let lost = inner(&before)[0];
            trees.leave(lost);
            let after = trees.routes(true).unwrap();
            let left: Vec<Rank> = (0..13).filter(|&rank| rank != lost).collect();
            check(&after, &left, |rank| door(rank as u8));
            for (rank, member) in &after.members {
                for (now, then) in member.feeds.iter().zip(&before.members[rank].feeds) {
                    let moved = now.parent != then.parent;
                    let orphan = then.parent.as_ref().is_some_and(|parent| parent.rank == lost);
                    assert_eq!(moved, orphan, "{tree}: worker {rank}");
                }
            }
        }
    }

    /// A worker has left its parent at this time, and nobody above that one is said to be at fault.
    fn stray(trees: &mut Trees, rank: Rank, parent: Rank, now: u64) {
        trees.stray(rank, parent, now);
        trees.hear_out(now + HEARD_OUT_MS);
    }

    #[test]
    fn a_parent_that_was_left_for_its_fault_passes_nothing_on_any_more() {
        let mut trees = joined("chain", 4);
        trees.routes(true).unwrap();
        stray(&mut trees, 2, 1, 0);
        stray(&mut trees, 2, 1, 0);
        let routes = trees.routes(true).unwrap();
        assert_eq!(fed(&routes), [(0, None, 1), (1, Some(3), 4), (2, Some(0), 2), (3, Some(2), 3)]);
        // Another child, or another shard, says it late; what is no parent's fault is not believed.
        for (rank, parent) in [(2, 1), (3, 1), (3, 0), (1, 0), (9, 0), (3, 9), (2, 2), (1, 1)] {
            stray(&mut trees, rank, parent, 10_000);
        }
        assert_eq!(trees.routes(true), None);
        trees.leave(1);
        assert_eq!(fed(&trees.routes(true).unwrap()), [(0, None, 1), (2, Some(0), 2), (3, Some(2), 3)]);
        join(&mut trees, 1, "chain", door(1));
        assert!(inner(&trees.routes(true).unwrap()).contains(&1), "who comes anew begins anew");
    }

    // Behind a slow worker of a chain the next was blamed too: it was out for a minute, and each broadcast took two transfers.
    #[test]
    fn who_starves_itself_is_not_blamed_whoever_says_so_first() {
        let mut trees = joined("chain", 5);
        trees.routes(true).unwrap();
        trees.stray(3, 2, 1_000);
        assert_eq!((trees.routes(true), trees.hears_out_at()), (None, Some(1_000 + HEARD_OUT_MS)));
        trees.stray(1, 0, 1_300);
        // The chain stays one: who passes nothing on is its end, and nobody else moves.
        let chain = [(0, Some(4), 5), (1, None, 1), (2, Some(1), 2), (3, Some(2), 3), (4, Some(3), 4)];
        assert_eq!(fed(&trees.routes(true).unwrap()), chain);
        trees.stray(4, 3, 1_299 + EXCUSED_MS);
        trees.hear_out(10_000);
        assert_eq!((trees.routes(true), trees.hears_out_at()), (None, None));
        assert_eq!(trees.take_again(), [4], "it is to come back to its parent");
        stray(&mut trees, 4, 3, 10_000);
        assert!(!trees.passes_on(3) && trees.passes_on(2));
    }

    #[test]
    fn who_has_left_more_parents_than_can_be_at_fault_is_believed_no_more() {
        let mut trees = joined("chain", 12);
        let mut routes = trees.routes(true).unwrap();
        let mut parent_of_last = || {
            let parent = routes.members[&11].feeds[0].parent.as_ref().map(|parent| parent.rank)?;
            stray(&mut trees, 11, parent, 0);
            routes = trees.routes(true)?;
            Some(parent)
        };
        let left: Vec<Rank> = (0..MOST_STRAYS).filter_map(|_| parent_of_last()).collect();
        assert_eq!(left, [10, 9, 8, 7, 6, 5, 4, 3]);
        assert!(trees.passes_on(2) && trees.passes_on(11));
        stray(&mut trees, 11, 2, 0);
        assert!(trees.passes_on(2) && !trees.passes_on(11));
    }

    // The first that accuses a parent was the only one that counted: then nobody was out, and no route came again.
    #[test]
    fn of_all_that_accuse_a_parent_the_first_that_is_believed_counts_and_others_get_routes_again() {
        for liar_first in [true, false] {
            let mut trees = joined("tree:degree=2", 14);
            let routes = trees.routes(true).unwrap();
            let children = |of: Rank| -> Vec<Rank> {
                let fed = fed(&routes);
                fed.iter().filter(|(_, parent, _)| *parent == Some(of)).map(|(rank, ..)| *rank).collect()
            };
            let second = |rank: &Rank| fed(&routes)[*rank as usize].2 == 2 && children(*rank).len() == 2;
            let parent = inner(&routes).into_iter().find(second).unwrap();
            let [one, other] = children(parent)[..] else { panic!("{routes:?}") };
            let (liar, honest) = (one, other);
            let long_ago: BTreeMap<Rank, u64> =
                (100..100 + MOST_STRAYS as u32 - 1).map(|it| (it, 0)).collect();
            trees.strays.insert(liar, long_ago);
            let said = if liar_first { [liar, honest] } else { [honest, liar] };
            said.into_iter().for_each(|rank| trees.stray(rank, parent, 1_000));
            // Meanwhile it has left one more.
            trees.strays.get_mut(&liar).unwrap().insert(99, 1_000);
            trees.hear_out(1_000 + HEARD_OUT_MS);
            assert!(!trees.passes_on(parent) && trees.strays[&honest].contains_key(&parent));
            assert_eq!(trees.take_again(), [liar]);
        }
    }

    #[test]
    fn one_that_is_believed_no_more_keeps_nobody_elses_word_back_and_is_told_its_route() {
        let mut trees = joined("chain", 5);
        trees.routes(true).unwrap();
        trees.strays.insert(2, (100..100 + MOST_STRAYS as u32).map(|it| (it, 0)).collect());
        for again in 0..3 {
            trees.stray(2, 1, 1_000 + again);
            assert_eq!((trees.take_again(), trees.hears_out_at()), (vec![2], None));
        }
        assert!(trees.passes_on(1) && !trees.passes_on(2));
        assert_eq!(trees.out[&2].times, 1, "and is not out for longer each time");
        trees.stray(2, 1, BELIEVED_AGAIN_MS);
        assert_eq!(
            (trees.take_again(), trees.hears_out_at()),
            (vec![], Some(BELIEVED_AGAIN_MS + HEARD_OUT_MS))
        );
    }

    // Two servers on one laptop, whose lid was closed for a second: all hosts next to them were leaves for a minute.
    #[test]
    fn nobody_is_blamed_for_what_a_server_owes_that_stood_still() {
        let mut trees = joined("chain", 4);
        assert_eq!(trees.runs_again_in(), None);
        trees.routes(true).unwrap();
        assert!(trees.runs_again_in().is_some());
        trees.runs(1_000, 1_000);
        trees.runs(1_200, 1_200);
        trees.runs(2_200, 1_300);
        trees.stray(1, 0, 1_400);
        assert_eq!((trees.take_again(), trees.routes(true)), (vec![1], None));
        trees.stray(1, 0, 1_300 + EXCUSED_MS);
        assert!(!trees.passes_on(0));
    }

    #[test]
    fn who_has_passed_nothing_on_for_long_passes_on_again_and_then_has_to_wait_longer() {
        let mut trees = joined("chain", 3);
        let first = trees.routes(true).unwrap();
        for (from, until) in [(0, OUT_FOR_MS), (OUT_FOR_MS, 3 * OUT_FOR_MS)] {
            stray(&mut trees, 1, 0, from);
            assert!(!inner(&trees.routes(true).unwrap()).contains(&0));
            trees.forgive(until - 1);
            assert_eq!(trees.routes(true), None);
            trees.forgive(until);
            assert_eq!(fed(&trees.routes(true).unwrap()), fed(&first));
        }
    }

    #[test]
    fn who_comes_late_is_planned_for() {
        let mut trees = joined("chain", 3);
        trees.routes(true).unwrap();
        join(&mut trees, 3, "chain", door(3));
        check(&trees.routes(false).unwrap(), &[0, 1, 2, 3], |rank| door(rank as u8));
    }

    #[test]
    fn limits_that_do_not_reach_so_many_hosts_leave_it_a_star() {
        let mut trees = joined("tree:degree=2,depth=1", 3);
        assert_eq!(trees.routes(true), None);
        let routes = joined("striped:4", 3).routes(true).unwrap();
        assert_eq!(routes.shares.len(), 3, "there are no more stripes than hosts");
        let mut trees = joined("tree:degree=2", 30);
        let routes = trees.routes(true).unwrap();
        let deepest = routes.members.values().map(|member| member.feeds[0].depth).max();
        assert_eq!(deepest, Some(4), "the least depth that reaches all");
    }

    #[test]
    fn a_plan_for_many_hosts_is_made_elsewhere_and_what_happens_meanwhile_is_seen_to() {
        let mut trees = trees();
        let at = |rank: Rank| Some(SocketAddr::from(([10, 0, (rank >> 8) as u8, rank as u8], 4000)));
        let come = |trees: &mut Trees, rank| {
            let wish = trees.judge(rank, &joining("striped:4", at(rank), "")).unwrap();
            trees.join(rank, [rank as u8; 16], wish, true);
        };
        (0..200).for_each(|rank| come(&mut trees, rank));
        assert_eq!(trees.routes(true), None, "the shards feed everybody");
        let first = trees.take_planning().unwrap();
        assert!(trees.take_planning().is_none());
        // Meanwhile one leaves, and one comes.
        trees.leave(7);
        come(&mut trees, 200);
        assert_eq!(trees.routes(true), None);
        assert!(trees.take_planning().is_none(), "one at a time");
        trees.made(first.make());
        let routes = trees.routes(true).unwrap();
        let there: Vec<Rank> = (0..200).filter(|&rank| rank != 7).collect();
        check(&routes, &there, at);
        // The one that has come is planned for behind it, and until then the shards feed it.
        let second = trees.take_planning().unwrap();
        trees.leave(9);
        let mended = trees.routes(true).unwrap();
        assert!(!mended.members.contains_key(&9) && mended.members.contains_key(&8));
        let stale = Made { number: second.number - 1, planned: None, stays: false, moves: false };
        trees.made(stale);
        assert_eq!(trees.routes(true), None, "that was another one");
        trees.made(second.make());
        let there: Vec<Rank> = (0..201).filter(|rank| ![7, 9].contains(rank)).collect();
        check(&trees.routes(true).unwrap(), &there, at);
        assert!(trees.take_planning().is_none() && trees.routes(true).is_none());
    }

    const FAST: u64 = 125_000_000;

    fn sends(rate: u64, to: Option<Rank>) -> Measured {
        Measured { sends: rate, to, takes: 0 }
    }

    /// Of a chain that is planned, whose hosts' links are known to be alike, but for one that has a fifth.
    fn with_a_slow_one(workers: u32, slow: Rank) -> Trees {
        let mut trees = joined("chain", workers).measuring(Arc::new(Uplink::new()), (workers, Rate(0)));
        trees.routes(true).unwrap();
        for rank in 0..workers {
            let rate = if rank == slow { FAST / 5 } else { FAST };
            trees.hear_rate(rank, sends(rate, None), 0);
        }
        trees
    }

    #[test]
    fn who_is_found_to_have_a_slow_link_feeds_nobody_in_a_new_plan_and_nobody_is_out() {
        let mut trees = with_a_slow_one(5, 1);
        assert_eq!(trees.routes(true), None, "nobody has looked");
        trees.weigh(0);
        let routes = trees.routes(true).unwrap();
        assert_eq!(fed(&routes).last(), Some(&(4, Some(3), 4)));
        assert_eq!(fed(&routes)[1], (1, Some(4), 5));
        assert!(trees.out.is_empty() && trees.passes_on(1));
        // All is as was planned with.
        for now in (0..100_000).step_by(1000) {
            trees.weigh(now);
            assert_eq!(trees.routes(true), None);
        }
    }

    #[test]
    fn links_that_are_alike_within_a_quarter_are_no_reason_for_another_plan() {
        for tree in ["chain", "auto", "striped", "tree:degree=2"] {
            let mut trees = joined(tree, 9).measuring(Arc::new(Uplink::new()), (9, Rate(0)));
            trees.routes(true).unwrap();
            for now in 0..200_u64 {
                let rank = now as Rank % 9;
                trees.hear_rate(
                    rank,
                    sends(FAST + FAST / 100 * (now * 7 % 25), Some((rank + 1) % 9)),
                    1000 * now,
                );
                trees.weigh(1000 * now);
                assert_eq!(trees.routes(true), None, "{tree}");
            }
        }
    }

    #[test]
    fn who_was_slow_gets_another_chance_when_something_is_planned_and_plans_for_rates_are_seldom() {
        let mut trees = with_a_slow_one(5, 1);
        let mut plans = Vec::new();
        // A worker says another thing each second.
        for second in 0..600_u64 {
            let rate = if second % 2 == 0 { FAST / 5 } else { FAST };
            for (rank, rate) in [(1, rate), (3, FAST + FAST / 5 - rate)] {
                trees.hear_rate(rank, sends(rate, None), 1000 * second);
            }
            trees.weigh(1000 * second);
            plans.extend(trees.routes(true).map(|_| second));
        }
        assert!((2..8).contains(&plans.len()), "{plans:?}");
        // It says nothing any more: it counts as others do.
        let mut trees = with_a_slow_one(5, 1);
        trees.weigh(0);
        assert!(!inner(&trees.routes(true).unwrap()).contains(&1));
        trees.weigh(200_000);
        join(&mut trees, 5, "chain", door(5));
        assert!(inner(&trees.routes(true).unwrap()).contains(&1));
    }

    // E-2.
    #[test]
    fn whatever_a_worker_says_of_its_link_it_harms_nobody_else() {
        for said in [0, 1, FAST / 5, u64::MAX] {
            for to in [None, Some(0), Some(2), Some(4), Some(5), Some(u32::MAX)] {
                for takes in [0, 1, u64::MAX] {
                    let mut trees = with_a_slow_one(5, 9);
                    trees.hear_rate(2, Measured { sends: said, to, takes }, 0);
                    trees.hear_rate(77, sends(1, None), 0);
                    trees.weigh(0);
                    let Some(routes) = trees.routes(true) else { continue };
                    check(&routes, &[0, 1, 2, 3, 4], |rank| door(rank as u8));
                    assert_eq!(inner(&routes), [0, 1, 3, 4], "{said} {to:?}: it became a leaf itself");
                }
            }
        }
    }

    #[test]
    fn what_users_say_of_links_counts_from_the_first_plan_on_and_a_rate_that_no_link_has_is_refused() {
        let mut trees = trees().measuring(Arc::new(Uplink::new()), (4, Rate(FAST)));
        for rank in 0..4 {
            let rate = if rank == 0 { FAST / 10 } else { FAST };
            let wish =
                trees.judge(rank, &Joining { rate, ..joining("chain", door(rank as u8), "") }).unwrap();
            trees.join(rank, [rank as u8; 16], wish, true);
        }
        assert_eq!(fed(&trees.routes(true).unwrap())[0], (0, Some(3), 4));
        for rate in [1, u64::MAX] {
            let wrong = Joining { rate, ..joining("chain", door(9), "") };
            assert!(matches!(trees.judge(9, &wrong), Err(Refusal::Malformed { .. })));
        }
    }

    #[test]
    fn a_plan_for_many_hosts_that_is_no_better_leaves_all_as_it_is_and_what_came_meanwhile_is_planned_for() {
        let mut trees = trees().measuring(Arc::new(Uplink::new()), (201, Rate(0)));
        let at = |rank: Rank| Some(SocketAddr::from(([10, 0, (rank >> 8) as u8, rank as u8], 4000)));
        let come = |trees: &mut Trees, rank| {
            let wish = trees.judge(rank, &joining("striped:4", at(rank), "")).unwrap();
            trees.join(rank, [rank as u8; 16], wish, true);
        };
        (0..200).for_each(|rank| come(&mut trees, rank));
        assert_eq!(trees.routes(true), None);
        let first = trees.take_planning().unwrap();
        trees.made(first.make());
        let stands = trees.routes(true).unwrap();
        // One that passes nothing on anyway has a slow link.
        let leaf = stands.members.iter().find(|(_, member)| !member.passes_on).map(|(&rank, _)| rank);
        let silent = leaf.unwrap_or(0);
        (0..200).for_each(|rank| {
            trees.hear_rate(rank, sends(if rank == silent { FAST / 5 } else { FAST }, None), 0)
        });
        trees.weigh(0);
        let planning = trees.take_planning().unwrap();
        come(&mut trees, 200);
        assert_eq!(trees.routes(true), None);
        let made = planning.make();
        let stays = made.stays;
        trees.made(made);
        let routes = trees.routes(true);
        assert!(stays || routes.is_some());
        let second = trees.take_planning().expect("one has come");
        trees.made(second.make());
        check(&trees.routes(true).unwrap(), &(0..201).collect::<Vec<_>>(), at);
    }

    #[test]
    fn servers_have_different_workers_pass_on() {
        let of = |index| {
            let mut trees = Trees::new(index, 2, 32 * 1024);
            (0..8).for_each(|rank| join(&mut trees, rank, "tree:degree=2", door(rank as u8)));
            inner(&trees.routes(true).unwrap())
        };
        assert_ne!(of(0), of(1));
    }

    #[test]
    fn hosts_of_a_rack_are_fed_from_inside_it() {
        let mut trees = trees();
        for rank in 0..6 {
            let rack = if rank < 3 { "one" } else { "two" };
            let wish = trees.judge(rank, &joining("tree:degree=3", door(rank as u8), rack)).unwrap();
            trees.join(rank, [rank as u8; 16], wish, true);
        }
        let fed = fed(&trees.routes(true).unwrap());
        let across =
            fed.iter().filter(|(rank, parent, _)| parent.is_some_and(|parent| (*rank < 3) != (parent < 3)));
        assert!(across.count() <= 1, "{fed:?}");
    }

    proptest! {
        #[test]
        fn whatever_happens_all_that_take_part_are_reached(
            tree in prop::sample::select(vec![
                "chain", "auto", "striped", "striped:3", "tree:degree=2", "tree:degree=3,leaf_penalty=0.5",
            ]),
            hosts in prop::collection::vec(1u8..8, 4..16),
            events in prop::collection::vec((0u32..16, 0usize..16, 0..3u8), 0..20),
        ) {
            let mut trees = trees();
            for (&host, rank) in hosts.iter().zip(0..) {
                join(&mut trees, rank, tree, door(host));
            }
            let mut last = trees.routes(true).unwrap_or_default();
            for (rank, at, what) in events {
                match what {
                    0 => trees.leave(rank),
                    1 if !inner(&last).is_empty() => {
                        let inner = inner(&last);
                        stray(&mut trees, rank, inner[at % inner.len()], 0);
                    }
                    _ if (rank as usize) < hosts.len() => join(&mut trees, rank, tree, door(hosts[rank as usize])),
                    _ => {}
                }
                if let Some(routes) = trees.routes(true) {
                    last = routes;
                }
                if last.members.is_empty() {
                    continue;
                }
                let in_trees: Vec<Rank> = trees.subscribers.keys().copied().collect();
                check(&last, &in_trees, |rank| door(hosts[rank as usize]));
            }
        }
    }
}
