//! How long it takes until every host has every byte, and whose uplink decides.
//!
//! Bytes go in blocks, and a block goes on as soon as it has arrived (cut-through). So a path is a pipeline: its slowest stage is
//! busy with all of its blocks, and each other stage adds the time of one. A stage is a node's uplink, which sends each block
//! once for each child, in turns where it serves several stripes or trees.
//!
//! | shape, n hosts of one rate, b bytes in blocks of m | time, in transfers of b over one link |
//! |---|---|
//! | star | n |
//! | chain | 1 + (n - 1) m / b |
//! | tree of degree T, depth H | T + (H - 1) T m / b |
//! | k stripes, each down a tree of degree k, depth H | 1 + (H - 1) k m / b |
//!
//! Links carry as much in as out, both at once, and the network between them carries everything: a host's link is what limits.
//! Between a server and workers on its own host nothing goes over a link.

use super::cluster::{Cluster, View};
use super::error::PlanError;
use super::forest::{Overlay, Stripe};

/// The largest block. A larger one is later at the end of a long path; a smaller one costs more calls for the same bytes.
pub const BLOCK_BYTES: u64 = 1 << 20;

/// What is sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Traffic {
    /// Bytes of all servers together; each has its equal part of them.
    pub bytes: u64,
    /// Bytes of a block, at most [`BLOCK_BYTES`].
    pub block: u64,
    /// Seconds that a block takes from one host to the next beside the bytes' own time.
    pub hop: f64,
}

impl Traffic {
    /// So many bytes in the largest blocks, over hops that take no time.
    pub fn of(bytes: u64) -> Self {
        Self { bytes, block: BLOCK_BYTES, hop: 0.0 }
    }

    pub(super) fn check(&self) -> Result<(), PlanError> {
        let wrong = |what, got, least| Err(PlanError::Traffic { what, got, least });
        match () {
            () if self.bytes == 0 => wrong("the number of bytes", 0.0, "at least 1"),
            () if !(1..=BLOCK_BYTES).contains(&self.block) => {
                wrong("the block", self.block as f64, "from 1 to 1048576")
            }
            () if !(self.hop >= 0.0 && self.hop.is_finite()) => {
                wrong("the time of a hop", self.hop, "at least 0")
            }
            () => Ok(()),
        }
    }
}

/// How long a broadcast takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// Until the last host has the last byte.
    pub seconds: f64,
    /// Beside the time that the same bytes take over the first server's link, once.
    pub ratio: f64,
    /// Of these, how long the busiest uplink sends.
    pub busiest: f64,
    /// Edges from a root to the farthest host.
    pub depth: u32,
}

/// How long it takes that each server sends its part of the bytes down its overlay, all at once.
///
/// Cost: O(hosts x stripes x servers).
///
/// # Errors
/// There is not one overlay for each server, one has other hosts than the cluster, or nothing is sent.
pub fn predict(cluster: &Cluster, overlays: &[Overlay], traffic: &Traffic) -> Result<Prediction, PlanError> {
    traffic.check()?;
    if overlays.len() != cluster.servers() {
        return Err(PlanError::Overlays { got: overlays.len(), servers: cluster.servers() });
    }
    for overlay in overlays {
        if overlay.len() != cluster.hosts() + 1 {
            return Err(PlanError::NotAMember { node: overlay.len() as u32 - 1 });
        }
    }
    Ok(predicted(cluster, overlays, traffic))
}

/// [`predict`] for overlays that the planner made. Those of servers that have none yet may be missing: they send nothing.
pub(super) fn predicted(cluster: &Cluster, overlays: &[Overlay], traffic: &Traffic) -> Prediction {
    let part = traffic.bytes as f64 / cluster.servers() as f64;
    let mut stages = vec![Stage::default(); cluster.rates().len()];
    let each = |server: usize| {
        overlays[server].stripes().iter().map(move |stripe| (cluster.seen_from(server), stripe))
    };
    for (view, stripe) in (0..overlays.len()).flat_map(each) {
        occupy(&view, stripe, part * stripe.share(), traffic, &mut stages);
    }
    let mut last = Arrival::default();
    for (view, stripe) in (0..overlays.len()).flat_map(each) {
        last = last.later(slowest_path(&view, stripe, &stages, traffic.hop));
    }
    let busiest = stages.iter().map(|stage| stage.load).fold(0.0, f64::max);
    let one = traffic.bytes as f64 / cluster.seen_from(0).node(0).rate;
    let seconds = last.seconds.max(busiest).max(last_in(cluster, overlays, part));
    Prediction { seconds, ratio: seconds / one, busiest, depth: last.depth }
}

/// An uplink's part in all that is sent.
#[derive(Debug, Clone, Copy, Default)]
struct Stage {
    /// Seconds that it sends.
    load: f64,
    /// Seconds until a block has gone to all that it is for, where every stripe and tree has its turn.
    turn: f64,
}

/// When the last byte is where, and how far that is.
#[derive(Debug, Clone, Copy, Default)]
struct Arrival {
    seconds: f64,
    depth: u32,
}

impl Arrival {
    fn later(self, other: Self) -> Self {
        Self { seconds: self.seconds.max(other.seconds), depth: self.depth.max(other.depth) }
    }
}

/// Children that a node reaches over its uplink.
fn remote(view: &View<'_>, node: u32, children: &[u32]) -> usize {
    children.iter().filter(|&&child| !view.together(node, child)).count()
}

fn occupy(view: &View<'_>, stripe: &Stripe, bytes: f64, traffic: &Traffic, stages: &mut [Stage]) {
    let block = bytes.min(traffic.block as f64);
    for (node, children) in (0..).zip(stripe.children()) {
        let copies = remote(view, node, &children) as f64;
        let stage = &mut stages[view.uplink(node)];
        stage.load += copies * bytes / view.node(node).rate;
        stage.turn += copies * block / view.node(node).rate;
    }
}

fn slowest_path(view: &View<'_>, stripe: &Stripe, stages: &[Stage], hop: f64) -> Arrival {
    /// Down to a node: the most loaded stage, the turns of all, hops.
    #[derive(Clone, Copy)]
    struct Path {
        slowest: Stage,
        turns: f64,
        hops: u32,
        depth: u32,
    }
    let children = stripe.children();
    let mut last = Arrival::default();
    let mut next = vec![(0, Path { slowest: Stage::default(), turns: 0.0, hops: 0, depth: 0 })];
    while let Some((node, path)) = next.pop() {
        let seconds = path.slowest.load + (path.turns - path.slowest.turn) + f64::from(path.hops) * hop;
        last = last.later(Arrival { seconds, depth: path.depth });
        let stage = stages[view.uplink(node)];
        for &child in &children[node as usize] {
            let mut path = Path { depth: path.depth + 1, ..path };
            if !view.together(node, child) {
                path.turns += stage.turn;
                path.hops += 1;
                if stage.load > path.slowest.load {
                    path.slowest = stage;
                }
            }
            next.push((child, path));
        }
    }
    last
}

/// How long the slowest link takes in what comes in.
fn last_in(cluster: &Cluster, overlays: &[Overlay], part: f64) -> f64 {
    let mut slowest = 0.0_f64;
    let mut come = vec![0.0; cluster.hosts()];
    for (server, overlay) in overlays.iter().enumerate() {
        let view = cluster.seen_from(server);
        for stripe in overlay.stripes() {
            for host in view.hosts() {
                if stripe.parent(host).is_some_and(|parent| !view.together(parent, host)) {
                    come[host as usize - 1] += part * stripe.share() / cluster.takes(view.node(host));
                }
            }
        }
    }
    for seconds in come {
        slowest = slowest.max(seconds);
    }
    slowest
}
