//! From a shape that is asked for to trees.

use super::cluster::Cluster;
use super::error::PlanError;
use super::forest::Overlay;
use super::frugal::{self, Wanted};
use super::improve::improved;
use super::limits::Limits;
use super::predict::{Prediction, Traffic, predict, predicted};
use super::shape::Shape;
use super::{lines, striped};
use std::collections::BTreeSet;

/// Degrees that `auto` tries trees of: one more only adds to what every uplink sends.
const DEGREES: std::ops::RangeInclusive<u32> = 2..=4;
/// The most stripes that are tried where nobody says how many: above, a tree is hardly lower, and each node serves more turns.
const MOST_TRIED: u32 = 16;
/// Hosts up to which as many stripes as hosts are tried: two hops, but each block waits for a turn of all hosts.
const A_STRIPE_EACH: u32 = 64;

/// Pairs of hosts, over all servers, that are looked at when trees are improved: seconds of one core. Few servers have their trees
/// gone over until nothing helps; of 64 servers with 1,000 hosts each, once.
const PAIRS: usize = 64_000_000;
/// The most rounds over a tree, each of which but the last has made it cheaper.
const ROUNDS: usize = 16;
/// Pairs beyond which `auto` tries no tree of least cost: each takes seconds to plan, and is slower than stripes.
const PAIRS_OF_AUTO: usize = 8_000_000;

/// An overlay for each server, and how it was made.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The shape, with everything that was left open; never [`Shape::Auto`].
    pub shape: Shape,
    /// By server.
    pub overlays: Vec<Overlay>,
    /// How long it takes.
    pub prediction: Prediction,
}

/// The overlays of all servers of a cluster. They differ, so that not the same hosts are inner nodes of all.
///
/// # Errors
/// The shape cannot be had for this cluster, or nothing is sent.
pub fn plan(cluster: &Cluster, shape: Shape, traffic: &Traffic) -> Result<Plan, PlanError> {
    traffic.check()?;
    let hosts = cluster.hosts();
    match shape {
        Shape::Tree { leaf_penalty, .. } if !(leaf_penalty >= 0.0 && leaf_penalty.is_finite()) => {
            Err(PlanError::LeafPenalty(leaf_penalty))
        }
        Shape::Tree { limits: Limits { degree: 0, .. }, .. } => Err(PlanError::Degree),
        Shape::Tree { limits, .. } if limits.reach() < hosts => {
            let Limits { degree, depth } = limits;
            Err(PlanError::Depth { hosts, degree, depth, most: limits.reach() })
        }
        Shape::Striped { stripes: Some(stripes) } if stripes == 0 || stripes as usize > hosts => {
            Err(PlanError::Stripes { stripes, hosts })
        }
        Shape::Striped { stripes: None } => {
            let hosts = hosts as u32;
            let each = (hosts <= A_STRIPE_EACH).then_some(hosts);
            let counts = (1..=MOST_TRIED.min(hosts)).chain(each);
            let all = counts.map(|stripes| made(cluster, Shape::Striped { stripes: Some(stripes) }, traffic));
            fastest(all).ok_or(PlanError::NoHosts)
        }
        Shape::Auto => {
            let few = pairs(cluster) <= PAIRS_OF_AUTO;
            let trees = DEGREES.filter(|_| few).filter_map(|degree| {
                let depth = Limits::least_depth(hosts, degree)?;
                Some(Shape::Tree { limits: Limits { degree, depth }, leaf_penalty: 0.0 })
            });
            let mut best: Option<Plan> = None;
            for shape in
                [Shape::Star, Shape::Chain, Shape::Striped { stripes: None }].into_iter().chain(trees)
            {
                let beats = |seconds: f64| best.as_ref().is_none_or(|best| seconds < best.prediction.seconds);
                // Most of the time goes into trees, of which it is known before that they take longer.
                if let Shape::Tree { limits, .. } = shape
                    && !beats(least_seconds(cluster, limits, traffic))
                {
                    continue;
                }
                let next = plan(cluster, shape, traffic)?;
                if beats(next.prediction.seconds) {
                    best = Some(next);
                }
            }
            best.ok_or(PlanError::NoHosts)
        }
        // No tree of so many hosts is deeper.
        Shape::Tree { limits, leaf_penalty } => {
            let limits = Limits { depth: limits.depth.min(hosts as u32), ..limits };
            Ok(made(cluster, Shape::Tree { limits, leaf_penalty }, traffic))
        }
        shape => Ok(made(cluster, shape, traffic)),
    }
}

impl Plan {
    /// The plan without a host that was lost: only its children move, in each tree. Returns for each server who moved.
    ///
    /// # Errors
    /// The host is in no overlay, or is the last.
    pub fn without(
        &self,
        cluster: &Cluster,
        host: u32,
        traffic: &Traffic,
    ) -> Result<(Self, Vec<Vec<u32>>), PlanError> {
        let limits = match self.shape {
            Shape::Tree { limits, .. } => Some(limits),
            _ => None,
        };
        let mut overlays = Vec::with_capacity(self.overlays.len());
        let mut moved = Vec::with_capacity(self.overlays.len());
        for (server, overlay) in self.overlays.iter().enumerate() {
            let (next, orphans) =
                overlay.without(&cluster.seen_from(server), host, (limits, &BTreeSet::new()))?;
            overlays.push(next);
            moved.push(orphans);
        }
        let prediction = predict(cluster, &overlays, traffic)?;
        Ok((Self { shape: self.shape, overlays, prediction }, moved))
    }
}

/// Seconds that trees within these limits take at least: in each server's, some node has as many children as it takes to reach all
/// hosts so soon, and sends them all that the server does.
fn least_seconds(cluster: &Cluster, limits: Limits, traffic: &Traffic) -> f64 {
    if !cluster.is_apart() {
        return 0.0;
    }
    let reaches = |&degree: &u32| Limits { degree, ..limits }.reach() >= cluster.hosts();
    let children = (1..=limits.degree).find(reaches).unwrap_or(limits.degree);
    let fastest = cluster.rates().iter().copied().fold(0.0, f64::max);
    f64::from(children) * traffic.bytes as f64 / cluster.servers() as f64 / fastest
}

fn pairs(cluster: &Cluster) -> usize {
    cluster.hosts() * cluster.hosts() * cluster.servers()
}

/// The first of those that take the least time.
fn fastest(plans: impl Iterator<Item = Plan>) -> Option<Plan> {
    plans.min_by(|one, other| one.prediction.seconds.total_cmp(&other.prediction.seconds))
}

/// The overlays of a shape that is known to be possible.
fn made(cluster: &Cluster, shape: Shape, traffic: &Traffic) -> Plan {
    let turns = cluster.servers();
    let rounds = (PAIRS / pairs(cluster)).clamp(1, ROUNDS);
    let mut busy = vec![0; cluster.hosts() + 1];
    let mut overlays = Vec::with_capacity(turns);
    for turn in 0..turns {
        let view = cluster.seen_from(turn);
        let overlay = match shape {
            Shape::Chain => lines::chain(&view, turn, turns),
            Shape::Tree { limits, leaf_penalty } => {
                let wanted = Wanted { view, limits, penalty: leaf_penalty, busy: &busy, rounds };
                frugal::frugal(&wanted, turn, turns, improved)
            }
            Shape::Striped { stripes } => striped::striped(&view, stripes.unwrap_or(1), turn, turns),
            Shape::Star | Shape::Auto => lines::star(&view),
        };
        for stripe in overlay.stripes() {
            for (node, children) in stripe.children().iter().enumerate().skip(1) {
                busy[node] += children.len() as u32;
            }
        }
        overlays.push(overlay);
    }
    let prediction = predicted(cluster, &overlays, traffic);
    Plan { shape, overlays, prediction }
}
