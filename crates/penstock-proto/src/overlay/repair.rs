//! A host is lost, or is to pass on nothing more: its children get other parents, and nobody else does. So every stream goes on but
//! those that broke.
//!
//! Each orphan comes with all below it, the highest first, and is attached to the node that then takes least time: within the limits if
//! any node is, then where the uplink sends least, then where fewest are fed through the node, then near the root, then where the edge
//! costs least. The first usually takes the lost one's place, whose parent has a free turn. Where every node is as busy as a whole
//! transfer takes, as in a chain, one has to send twice: the last, and not the first, behind which all would wait for that.

use super::cluster::View;
use super::error::PlanError;
use super::forest::{Overlay, Stripe};
use super::limits::Limits;
use std::cmp::{Ordering, Reverse};
use std::collections::BTreeSet;

impl Overlay {
    /// The overlay without a host, and its orphans, ascending: the only hosts with another parent than before, in any stripe.
    /// The numbers of the others stay. Where nobody has room within `limits`, these give way. `leaves` pass nothing on.
    ///
    /// # Errors
    /// The host is none of this overlay, or its last.
    pub fn without(
        &self,
        view: &View<'_>,
        host: u32,
        (limits, leaves): (Option<Limits>, &BTreeSet<u32>),
    ) -> Result<(Self, Vec<u32>), PlanError> {
        self.repaired(view, host, (limits, leaves), false)
    }

    /// The overlay in which a host passes nothing on any more: as [`without`](Self::without) it, but that it is attached again as a
    /// leaf, behind its orphans.
    ///
    /// # Errors
    /// The host is none of this overlay, or its last.
    pub fn with_leaf(
        &self,
        view: &View<'_>,
        host: u32,
        (limits, leaves): (Option<Limits>, &BTreeSet<u32>),
    ) -> Result<(Self, Vec<u32>), PlanError> {
        self.repaired(view, host, (limits, leaves), true)
    }

    fn repaired(
        &self,
        view: &View<'_>,
        host: u32,
        (limits, leaves): (Option<Limits>, &BTreeSet<u32>),
        comes_back: bool,
    ) -> Result<(Self, Vec<u32>), PlanError> {
        if !self.has(host) || view.len() != self.len() {
            return Err(PlanError::NotAMember { node: host });
        }
        if view.hosts().all(|other| other == host || !self.has(other)) {
            return Err(PlanError::NoHosts);
        }
        let mut overlay = self.clone();
        let mut loads = vec![0.0; self.len()];
        for stripe in self.stripes() {
            for (from, children) in (0_u32..).zip(stripe.children()).filter(|(from, _)| *from != host) {
                let sent = children.iter().filter(|&&child| child != host && !view.together(from, child));
                loads[from as usize] += stripe.share() * sent.count() as f64 / view.node(from).rate;
            }
        }
        let mut moved = Vec::new();
        let mut below = vec![0; self.len()];
        overlay.stripes().iter().for_each(|stripe| count_below(stripe, &mut below));
        for stripe in overlay.stripes_mut() {
            let mut its = vec![0; self.len()];
            count_below(stripe, &mut its);
            let elsewhere: Vec<usize> = below.iter().zip(&its).map(|(all, its)| all - its).collect();
            let mut orphans = orphans(stripe, host);
            if comes_back {
                orphans.push(host);
            }
            adopt(view, stripe, &orphans, (limits, leaves), (&mut loads, &elsewhere));
            below = elsewhere;
            count_below(stripe, &mut below);
            moved.extend(orphans);
        }
        moved.sort_unstable();
        moved.dedup();
        Ok((overlay, moved))
    }
}

/// Takes the host out of a tree: its children, the highest first.
fn orphans(stripe: &mut Stripe, host: u32) -> Vec<u32> {
    let mut orphans = stripe.children()[host as usize].clone();
    orphans.sort_by_key(|&orphan| Reverse(height(stripe, orphan)));
    stripe.remove(host);
    orphans
}

/// Attaches hosts that have no parent, one after the other, to others that are no leaves. `elsewhere`: how many are fed through each node
/// in other stripes.
fn adopt(
    view: &View<'_>,
    stripe: &mut Stripe,
    orphans: &[u32],
    (limits, leaves): (Option<Limits>, &BTreeSet<u32>),
    (loads, elsewhere): (&mut [f64], &[usize]),
) {
    for &orphan in orphans {
        let height = height(stripe, orphan);
        let mut rooted = rooted(stripe, view.len());
        rooted.retain(|(node, _)| !leaves.contains(node) && *node != orphan);
        let children = stripe.children();
        let mut below = elsewhere.to_vec();
        count_below(stripe, &mut below);
        let best = rooted.iter().map(|&(node, depth)| {
            let sent = if view.together(node, orphan) { 0.0 } else { stripe.share() / view.node(node).rate };
            let over = limits.is_some_and(|limits| {
                children[node as usize].len() as u32 >= limits.degree || depth + 1 + height > limits.depth
            });
            let load = loads[node as usize] + sent;
            let below = below[node as usize];
            Choice { over, load, below, depth, cost: view.cost(node, orphan), node }
        });
        if let Some(best) = best.min_by(Choice::order) {
            stripe.set_parent(orphan, best.node);
            loads[best.node as usize] = best.load;
        }
    }
}

/// A node that an orphan may be attached to.
struct Choice {
    over: bool,
    load: f64,
    below: usize,
    depth: u32,
    cost: f64,
    node: u32,
}

impl Choice {
    fn order(&self, other: &Self) -> Ordering {
        // Sums of shares: what is equal may differ in the last digit.
        let load = if (self.load - other.load).abs() <= 1e-9 * self.load.max(other.load) {
            Ordering::Equal
        } else {
            self.load.total_cmp(&other.load)
        };
        self.over
            .cmp(&other.over)
            .then(load)
            .then(self.below.cmp(&other.below))
            .then(self.depth.cmp(&other.depth))
            .then(self.cost.total_cmp(&other.cost))
            .then(self.node.cmp(&other.node))
    }
}

/// Adds how many are fed through each node that the root reaches.
fn count_below(stripe: &Stripe, below: &mut [usize]) {
    let children = stripe.children();
    let mut order = vec![0];
    let mut at = 0;
    while let Some(&node) = order.get(at) {
        order.extend(&children[node as usize]);
        at += 1;
    }
    let mut counts = vec![0; children.len()];
    for &node in order.iter().rev() {
        let fed = |child: &u32| 1 + counts[*child as usize];
        counts[node as usize] = children[node as usize].iter().map(fed).sum();
        below[node as usize] += counts[node as usize];
    }
}

/// Edges to the farthest below a host.
fn height(stripe: &Stripe, host: u32) -> u32 {
    let children = stripe.children();
    let mut most = 0;
    let mut next = vec![(host, 0)];
    while let Some((node, depth)) = next.pop() {
        most = most.max(depth);
        next.extend(children[node as usize].iter().map(|&child| (child, depth + 1)));
    }
    most
}

/// Those that the root reaches, with their depths: no orphan that still waits, and nobody below one.
fn rooted(stripe: &Stripe, nodes: usize) -> Vec<(u32, u32)> {
    let depths = stripe.depths();
    (0..nodes as u32).filter_map(|node| Some((node, depths[node as usize]?))).collect()
}
