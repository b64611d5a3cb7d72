//! The paper's tree (parameter-flow.md, equations 12 to 21): least cost of all edges, and a penalty for each leaf, where a node
//! has at most T children and is at most H edges from the root.
//!
//! Hosts are attached one by one, each where it adds least. That always ends: with T^0 + T^1 + ... hosts that fit below a free
//! place, one that is taken makes room for one host less than before, so that what is left to attach always fits in what is
//! free. Then `improve.rs` changes what it can. Small clusters begin again in other orders, and keep the best.

use super::cluster::View;
use super::forest::{Overlay, Stripe};
use super::limits::Limits;

/// Orders that are tried of one host; of n hosts, n^2 times fewer, so that the time stays the same.
const STARTS: usize = 2048;
/// And so many at most: few hosts have few orders.
const MOST_STARTS: usize = 64;
/// What a child costs, beside its edge, under a host that has one already in another server's tree. It decides between hosts of
/// one rack; ten such children are as dear as one edge inside a rack.
const BUSY: f64 = 0.01;

/// What is wanted of a tree.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    /// The nodes.
    pub(super) view: View<'a>,
    /// The paper's T and H.
    pub(super) limits: Limits,
    /// The paper's alpha.
    pub(super) penalty: f64,
    /// By node: children in the trees of other servers.
    pub(super) busy: &'a [u32],
    /// How often a large tree is gone over, at most.
    pub(super) rounds: usize,
}

/// A tree and what it costs. Equal costs: the lower one is better.
#[derive(Debug, Clone)]
pub(super) struct Draft {
    /// By node; the root's own is not used.
    pub(super) parents: Vec<u32>,
    pub(super) cost: Cost,
}

/// Equation 12, with the surcharge for busy hosts; then the sum of depths.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Cost {
    pub(super) sum: f64,
    pub(super) depths: u32,
}

impl Cost {
    /// Whether it is less, beyond what rounding does.
    pub(super) fn better(self, other: Self) -> bool {
        let apart = self.sum - other.sum;
        apart < -1e-9 || (apart < 1e-9 && self.depths < other.depths)
    }
}

impl Wanted<'_> {
    /// What it costs that one sends to the other.
    pub(super) fn edge(&self, from: u32, to: u32) -> f64 {
        self.view.cost(from, to) + BUSY * f64::from(self.busy[from as usize])
    }

    /// What a tree costs; `None` for what is no tree, or breaks the limits.
    pub(super) fn judge(&self, parents: &[u32]) -> Option<Cost> {
        let mut children = vec![0; parents.len()];
        let mut depths = vec![0_u32; parents.len()];
        let (mut sum, mut deep) = (0.0, 0);
        for node in self.view.hosts() {
            let parent = parents[node as usize];
            sum += self.edge(parent, node);
            children[parent as usize] += 1;
            // Up to the next whose depth is known.
            let (mut up, mut steps) = (node, 0);
            while up != 0 && depths[up as usize] == 0 {
                up = parents[up as usize];
                steps += 1;
                if steps > self.limits.depth {
                    return None;
                }
            }
            let depth = depths[up as usize] + steps;
            if depth > self.limits.depth {
                return None;
            }
            deep += depth;
            let (mut up, mut depth) = (node, depth);
            while up != 0 && depths[up as usize] == 0 {
                depths[up as usize] = depth;
                up = parents[up as usize];
                depth -= 1;
            }
        }
        if children.iter().any(|&count| count > self.limits.degree) {
            return None;
        }
        let leaves = children.iter().filter(|&&count| count == 0).count();
        Some(Cost { sum: sum + self.penalty * leaves as f64, depths: deep })
    }

    /// Attaches the hosts in this order, each where it adds least; of equals near the root, then the first.
    fn attached(&self, order: &[u32]) -> Vec<u32> {
        let nodes = self.view.len();
        let (mut parents, mut depths, mut children) =
            (vec![0; nodes], vec![0_u32; nodes], vec![0_u32; nodes]);
        let mut there = vec![0];
        for &host in order {
            let free = there.iter().copied().filter(|&node: &u32| {
                children[node as usize] < self.limits.degree && depths[node as usize] < self.limits.depth
            });
            let added = |node: u32| {
                // Under a leaf there is one leaf as before, under another node one more.
                let leaf = if children[node as usize] == 0 { 0.0 } else { self.penalty };
                (self.edge(node, host) + leaf, depths[node as usize])
            };
            let best = free
                .map(|node| (added(node), node))
                .min_by(|(one, _), (other, _)| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
            let parent = best.map_or(0, |(_, node)| node);
            parents[host as usize] = parent;
            children[parent as usize] += 1;
            depths[host as usize] = depths[parent as usize] + 1;
            there.push(host);
        }
        parents
    }

    fn in_order(&self, order: &[u32], improve: Improve) -> Option<Draft> {
        let parents = self.attached(order);
        let cost = self.judge(&parents)?;
        Some(improve(self, Draft { parents, cost }))
    }
}

/// What changes a draft for the better.
pub(super) type Improve = fn(&Wanted<'_>, Draft) -> Draft;

/// The tree of one server, after those of others made these nodes `busy`. The limits reach all hosts.
pub(super) fn frugal(wanted: &Wanted<'_>, turn: usize, turns: usize, improve: Improve) -> Overlay {
    let mut order = wanted.view.outward(turn, turns);
    let hosts = order.len();
    let starts = (STARTS / (hosts * hosts)).clamp(1, MOST_STARTS);
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut best: Option<Draft> = None;
    for _ in 0..starts {
        if let Some(draft) = wanted.in_order(&order, improve)
            && best.as_ref().is_none_or(|best| draft.cost.better(best.cost))
        {
            best = Some(draft);
        }
        dice.shuffle(&mut order);
    }
    // The limits reach all hosts, so the first order has made a tree.
    let parents = best.map_or_else(|| vec![0; hosts], |best| best.parents[1..].to_vec());
    Overlay::new(vec![Stripe::new(1.0, parents)])
}

/// The same numbers for everybody (xorshift, Marsaglia 2003).
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    fn shuffle(&mut self, order: &mut [u32]) {
        for last in (1..order.len()).rev() {
            order.swap(last, self.below(last + 1));
        }
    }
}
