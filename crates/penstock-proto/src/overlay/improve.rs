//! Small changes to a tree of least cost, until none makes it cheaper.
//!
//! | change | hosts | tried |
//! |---|---|---|
//! | a host is attached to another parent, with all below it | any | each host on each other |
//! | two hosts change places | any | each that passes on with each other |
//! | a host leaves its children to its parent, and goes between another and its parent, or below another | up to 32 | each host with each other |
//!
//! Cost: O(hosts^2 x degree) a round, and the rounds are bounded; of small trees the whole is judged each time.

use super::frugal::{Cost, Draft, Wanted};

/// Hosts up to which all changes are tried.
const ALL_CHANGES: usize = 32;
/// The tree after all changes that make it better.
pub(super) fn improved(wanted: &Wanted<'_>, mut draft: Draft) -> Draft {
    for _ in 0..wanted.rounds {
        let before = draft.cost;
        if wanted.view.hosts().len() > ALL_CHANGES {
            reattach(wanted, &mut draft);
            exchange(wanted, &mut draft);
        } else {
            change(wanted, &mut draft);
        }
        if !draft.cost.better(before) {
            break;
        }
    }
    // What was counted change by change is what the whole costs.
    debug_assert!(wanted.judge(&draft.parents).is_some_and(|whole| {
        (whole.sum - draft.cost.sum).abs() < 1e-6 && whole.depths == draft.cost.depths
    }));
    draft
}

/// Takes each change of a small tree that makes it better.
fn change(wanted: &Wanted<'_>, draft: &mut Draft) {
    let mut tried = draft.parents.clone();
    let keep = |tried: &mut Vec<u32>, draft: &mut Draft| match wanted
        .judge(tried)
        .filter(|cost| cost.better(draft.cost))
    {
        Some(cost) => {
            draft.parents.clone_from(tried);
            draft.cost = cost;
        }
        None => tried.clone_from(&draft.parents),
    };
    for host in wanted.view.hosts() {
        for other in 0..wanted.view.len() as u32 {
            if other == host {
                continue;
            }
            tried[host as usize] = other;
            keep(&mut tried, draft);
            if other == 0 {
                continue;
            }
            swap(&mut tried, host, other);
            keep(&mut tried, draft);
            insert(&mut tried, host, other);
            keep(&mut tried, draft);
            leave(&mut tried, host, other);
            keep(&mut tried, draft);
        }
    }
}

/// Two hosts change places.
fn swap(parents: &mut [u32], one: u32, other: u32) {
    parents.swap(one as usize, other as usize);
    for parent in parents.iter_mut() {
        *parent = match *parent {
            node if node == one => other,
            node if node == other => one,
            node => node,
        };
    }
}

/// A host's children go to its parent, and it goes below another.
fn leave(parents: &mut [u32], host: u32, below: u32) {
    let parent = parents[host as usize];
    for (_, up) in (0_u32..).zip(parents.iter_mut()).filter(|(node, up)| *node != 0 && **up == host) {
        *up = parent;
    }
    parents[host as usize] = below;
}

/// A host's children go to its parent, and it goes between another and that one's parent.
fn insert(parents: &mut [u32], host: u32, above: u32) {
    leave(parents, host, above);
    let parent = parents[above as usize];
    parents[host as usize] = parent;
    parents[above as usize] = host;
}

/// Attaches each host of a large tree where it, with all below it, costs least.
fn reattach(wanted: &Wanted<'_>, draft: &mut Draft) {
    let nodes = wanted.view.len();
    let mut tree = Tree::of(&draft.parents);
    for host in wanted.view.hosts() {
        let from = draft.parents[host as usize];
        let leaf_of = |node: u32, without: u32| {
            if tree.children[node as usize].len() as u32 == without { wanted.penalty } else { 0.0 }
        };
        // What goes if it leaves: its edge, unless its parent becomes a leaf by that.
        let (saved, was) = (wanted.edge(from, host) - leaf_of(from, 1), tree.depths[host as usize]);
        let height = tree.height(host);
        let below = tree.below(host);
        let mut best = (0.0, was, from);
        for node in 0..nodes as u32 {
            let depth = tree.depths[node as usize] + 1;
            let fits = (tree.children[node as usize].len() as u32) < wanted.limits.degree
                && depth + height <= wanted.limits.depth;
            if node == from || !fits || below.contains(&node) {
                continue;
            }
            let added = wanted.edge(node, host) - leaf_of(node, 0) - saved;
            if added < best.0 - 1e-9 || (added < best.0 + 1e-9 && depth < best.1) {
                best = (added, depth, node);
            }
        }
        if best.2 != from {
            draft.parents[host as usize] = best.2;
            let size = below.len() as u32;
            let depths = draft.cost.depths + best.1 * size - was * size;
            draft.cost = Cost { sum: draft.cost.sum + best.0, depths };
            tree.attach(host, from, best.2);
        }
    }
}

/// Has hosts of a large tree change places: each that passes on with the one that makes the tree cheapest.
fn exchange(wanted: &Wanted<'_>, draft: &mut Draft) {
    let mut tree = Tree::of(&draft.parents);
    for host in wanted.view.hosts() {
        if tree.children[host as usize].is_empty() {
            continue;
        }
        let mut best = (-1e-9, host);
        for other in wanted.view.hosts() {
            let parents = &draft.parents;
            // One that sends to the other keeps its edge in neither place: left to other rounds.
            if other == host || parents[other as usize] == host || parents[host as usize] == other {
                continue;
            }
            let added = moved(wanted, draft, &tree, host, other) + moved(wanted, draft, &tree, other, host);
            if added < best.0 {
                best = (added, other);
            }
        }
        if best.1 != host {
            swap(&mut draft.parents, host, best.1);
            draft.cost.sum += best.0;
            tree.swap(&draft.parents, host, best.1);
        }
    }
}

/// What the edges of `host`'s place cost more with `other` in it.
fn moved(wanted: &Wanted<'_>, draft: &Draft, tree: &Tree, host: u32, other: u32) -> f64 {
    let parent = draft.parents[host as usize];
    let up = wanted.edge(parent, other) - wanted.edge(parent, host);
    let down = tree.children[host as usize]
        .iter()
        .map(|&child| wanted.edge(other, child) - wanted.edge(host, child));
    up + down.sum::<f64>()
}

/// A tree from above.
struct Tree {
    children: Vec<Vec<u32>>,
    depths: Vec<u32>,
}

impl Tree {
    fn of(parents: &[u32]) -> Self {
        let mut tree = Self { children: vec![Vec::new(); parents.len()], depths: vec![0; parents.len()] };
        for (node, &parent) in (0_u32..).zip(parents).skip(1) {
            tree.children[parent as usize].push(node);
        }
        tree.settle(0, 0);
        tree
    }

    /// All below a node, itself first.
    fn below(&self, node: u32) -> Vec<u32> {
        let mut all = vec![node];
        let mut at = 0;
        while at < all.len() {
            all.extend(&self.children[all[at] as usize]);
            at += 1;
        }
        all
    }

    /// Edges to the farthest below.
    fn height(&self, node: u32) -> u32 {
        let deepest = self.below(node).into_iter().map(|node| self.depths[node as usize]).max();
        deepest.unwrap_or(0) - self.depths[node as usize]
    }

    fn attach(&mut self, node: u32, from: u32, to: u32) {
        self.children[from as usize].retain(|&child| child != node);
        self.children[to as usize].push(node);
        self.settle(node, self.depths[to as usize] + 1);
    }

    /// After two that are not parent and child changed places; `parents` is as it is now.
    fn swap(&mut self, parents: &[u32], one: u32, other: u32) {
        self.children.swap(one as usize, other as usize);
        self.depths.swap(one as usize, other as usize);
        let (above, beside) = (parents[one as usize], parents[other as usize]);
        if above != beside {
            for (parent, from, to) in [(above, other, one), (beside, one, other)] {
                for child in self.children[parent as usize].iter_mut().filter(|child| **child == from) {
                    *child = to;
                }
            }
        }
    }

    fn settle(&mut self, top: u32, depth: u32) {
        let mut next = vec![(top, depth)];
        while let Some((node, depth)) = next.pop() {
            self.depths[node as usize] = depth;
            next.extend(self.children[node as usize].iter().map(|&child| (child, depth + 1)));
        }
    }
}
