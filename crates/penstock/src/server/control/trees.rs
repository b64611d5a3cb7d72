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
//! | a worker has left its parent, whose fault that was | the parent is in no tree any more: the shards feed it themselves. One that says so of more than [`MOST_STRAYS`] parents is believed no more, and goes itself |
//! | a worker comes late | a new plan |
//!
//! Pure state. Nothing is planned for a job whose workers want a star.

use penstock_proto::Rank;
use penstock_proto::error::Refusal;
use penstock_proto::message::Joining;
use penstock_proto::overlay::{
    BLOCK_BYTES, Cluster, Costs, Feed, Limits, MAX_SHAPE_BYTES, Member, Node, Overlay, Parent, Place, Rack,
    Routes, Shape, Traffic, WHOLE, plan,
};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Most parents that a worker may have left because of them.
const MOST_STRAYS: usize = 8;
/// Bytes a second of every uplink. Only how they compare counts, and a hop's time beside what a block takes.
const RATE: f64 = 1.25e9;
/// What is planned for: bytes of all servers together.
const BYTES: u64 = 64 << 20;
/// Seconds from one host to the next, beside the bytes' own time: a switch, and two threads that are woken. Without them `auto`
/// would take the longest chain for as good as any tree.
const HOP: f64 = 1e-4;

/// A worker on another host, with a door.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Subscriber {
    door: SocketAddr,
    rack: Rack,
}

/// A node of the plan: a host, or a worker of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Host {
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
struct Planned {
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
    /// Those that take part, and those that are fed by the shards because of what others have said of them.
    subscribers: BTreeMap<Rank, Subscriber>,
    out: BTreeSet<Rank>,
    /// By worker, the parents that it has left because of them.
    strays: BTreeMap<Rank, BTreeSet<Rank>>,
    planned: Option<Planned>,
    /// What the shards were told.
    routes: Arc<Routes>,
    /// Whether the routes may be others now; whether the plan cannot be mended, but is to be made anew.
    changed: bool,
    anew: bool,
}

/// What a worker wants, judged.
pub(super) struct Wish {
    shape: Shape,
    door: Option<SocketAddr>,
    rack: Rack,
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
            out: BTreeSet::new(),
            strays: BTreeMap::new(),
            planned: None,
            routes: Arc::default(),
            changed: false,
            anew: false,
        }
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
        let no_door = |door: &SocketAddr| {
            door.port() == 0 || door.ip().is_unspecified() || door.ip().to_canonical().is_multicast()
        };
        if joining.door.as_ref().is_some_and(no_door) {
            return malformed("nobody can come in at its door");
        }
        match self.shape.filter(|expected| *expected != shape) {
            None => Ok(Wish { shape, door: joining.door, rack }),
            Some(expected) => {
                Err(Refusal::Tree { rank, expected: expected.to_string(), got: shape.to_string() })
            }
        }
    }

    /// A worker has joined.
    pub(super) fn join(&mut self, rank: Rank, wish: Wish, is_remote: bool) {
        self.shape.get_or_insert(wish.shape);
        if let Some(door) = wish.door.filter(|_| is_remote && wish.shape != Shape::Star) {
            self.subscribers.insert(rank, Subscriber { door, rack: wish.rack });
            (self.changed, self.anew) = (true, true);
        }
    }

    /// A worker has left, or was lost.
    pub(super) fn leave(&mut self, rank: Rank) {
        self.take_out(rank);
        self.out.remove(&rank);
        self.strays.remove(&rank);
        // The last one that was waited for may be one that never came.
        self.changed = self.planned.is_none() && !self.subscribers.is_empty() || self.changed;
    }

    /// A worker has left its parent, whose fault that was.
    pub(super) fn stray(&mut self, rank: Rank, parent: Rank) {
        // Another's children say so themselves, and of one that has gone it is known.
        let is_fed = |feed: &Feed| feed.parent.as_ref().is_some_and(|fed_by| fed_by.rank == parent);
        let feeds = self.routes.members.get(&rank).is_some_and(|member| member.feeds.iter().any(is_fed));
        if !feeds || !self.subscribers.contains_key(&rank) || !self.subscribers.contains_key(&parent) {
            return;
        }
        let left = self.strays.entry(rank).or_default();
        left.insert(parent);
        let out = if left.len() > MOST_STRAYS { rank } else { parent };
        tracing::warn!(
            worker = rank,
            parent,
            "a worker was not fed by another as it should have been: worker {out} takes no part in the trees any more"
        );
        if self.take_out(out) {
            self.out.insert(out);
        }
    }

    fn take_out(&mut self, rank: Rank) -> bool {
        let was_in = self.subscribers.remove(&rank).is_some();
        if was_in {
            self.changed = true;
        }
        was_in
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
            self.planned = None;
            self.anew = true;
            return Routes::default();
        }
        if !std::mem::take(&mut self.anew) {
            self.mend();
        } else {
            self.planned = self.plan();
        }
        self.planned.as_ref().map_or_else(Routes::default, |planned| self.along(planned))
    }

    /// The workers of each host, ascending.
    fn hosts(&self) -> BTreeMap<Host, Vec<Rank>> {
        let mut hosts: BTreeMap<Host, Vec<Rank>> = BTreeMap::new();
        for (&rank, subscriber) in &self.subscribers {
            hosts.entry(subscriber.host(rank)).or_default().push(rank);
        }
        hosts
    }

    /// Takes the hosts out of the plan that have nobody left.
    fn mend(&mut self) {
        let left = self.hosts();
        let Some(Planned { overlay, limits, cluster, hosts }) = &mut self.planned else { return };
        for (host, number) in hosts.iter().zip(1..) {
            if left.contains_key(host) || !overlay.has(number) {
                continue;
            }
            // There are two workers at least, so it is not the last.
            if let Ok((mended, _)) = overlay.without(&cluster.seen_from(self.index as usize), number, *limits)
            {
                *overlay = mended;
            }
        }
    }

    fn traffic(&self) -> Traffic {
        Traffic { bytes: BYTES, block: self.block, hop: HOP }
    }

    fn plan(&self) -> Option<Planned> {
        let by_host = self.hosts();
        let racks: BTreeSet<&Rack> =
            by_host.values().filter_map(|ranks| self.rack(ranks)).chain([&UNKNOWN]).collect();
        // In the order of their first workers, whatever their addresses are.
        let mut hosts: Vec<(Rank, Host)> = by_host.iter().map(|(&host, ranks)| (ranks[0], host)).collect();
        hosts.sort_unstable();
        let hosts: Vec<Host> = hosts.into_iter().map(|(_, host)| host).collect();
        let node = |rack: &Rack, host: usize| {
            let zones: BTreeSet<&str> = racks.iter().map(|rack| &rack.zone[..]).collect();
            let zone = zones.iter().position(|zone| *zone == rack.zone).unwrap_or(0) as u32;
            let rack = racks.iter().position(|other| *other == rack).unwrap_or(0) as u32;
            Node { place: Place { zone, rack, host: host as u32 }, rate: RATE }
        };
        let rack = |host: &Host| by_host.get(host).and_then(|ranks| self.rack(ranks)).unwrap_or(&UNKNOWN);
        let nodes = hosts.iter().zip(0..).map(|(host, number)| node(rack(host), number)).collect();
        // Where the other servers stand nobody here knows: each on a host of its own, as this one.
        let servers = (0..self.servers as usize).map(|server| node(&UNKNOWN, hosts.len() + server)).collect();
        let shape = self.shape.unwrap_or(Shape::Star);
        let planned = Cluster::new(servers, nodes, Costs::Labels).and_then(|cluster| {
            plan(&cluster, shape.settled(hosts.len()), &self.traffic()).map(|plan| (cluster, plan))
        });
        match planned {
            Ok((cluster, mut plan)) => {
                let limits = match plan.shape {
                    Shape::Tree { limits, .. } => Some(limits),
                    _ => None,
                };
                let overlay = plan.overlays.swap_remove(self.index as usize);
                Some(Planned { overlay, limits, cluster, hosts })
            }
            Err(error) => {
                let (hosts, hint) = (hosts.len(), error.hint());
                tracing::warn!(%shape, hosts, %error, hint, "the servers send to every worker themselves");
                None
            }
        }
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
        let parent = |rank: Rank| {
            self.subscribers.get(&rank).map(|subscriber| Parent { rank, address: subscriber.door })
        };
        let mut members: BTreeMap<Rank, Member> = BTreeMap::new();
        let mut shares = Vec::new();
        let (mut sum, mut cut) = (0.0, 0);
        for stripe in planned.overlay.stripes() {
            sum += stripe.share();
            // They add up, whatever each was rounded to.
            let to = ((sum * f64::from(WHOLE)).round() as u32).min(WHOLE);
            shares.push(to - cut);
            cut = to;
            for (number, depth) in (0..).zip(stripe.depths()).skip(1) {
                let (Some(depth), Some((&first, others))) = (depth, ranks(number).split_first()) else {
                    continue;
                };
                let from = stripe.parent(number).and_then(|number| ranks(number).first()).copied();
                let feeds = |rank: Rank, from: Option<Rank>, depth| {
                    (rank, Feed { parent: from.and_then(parent), depth })
                };
                let fed = [feeds(first, from, depth)].into_iter();
                for (rank, feed) in fed.chain(others.iter().map(|&rank| feeds(rank, Some(first), depth + 1)))
                {
                    let from = feed.parent.as_ref().map(|parent| parent.rank);
                    members.entry(rank).or_default().feeds.push(feed);
                    if let Some(from) = from {
                        members.entry(from).or_default().passes_on = true;
                    }
                }
            }
        }
        if members.values().any(|member| member.passes_on) {
            Routes { striping: 0, shares, members }
        } else {
            Routes::default()
        }
    }
}

/// Where a host stands that says nothing of it.
static UNKNOWN: Rack = Rack { zone: String::new(), rack: String::new() };
