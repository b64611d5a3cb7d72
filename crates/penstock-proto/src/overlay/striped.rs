//! Stripes: the bytes are cut, and each part goes down a tree of its own. A host passes on in one tree at most, and is a leaf in
//! all others, so that every uplink sends about as much as comes in (SplitStream, Castro et al. 2003).
//!
//! With k stripes, the hosts are dealt into k groups; those of a group are the inner nodes of one tree, with about k children
//! each. The stripes' shares are what makes all groups take the same time, also where k does not divide the hosts or their
//! uplinks differ.

use super::cluster::View;
use super::forest::{Overlay, Stripe};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// The overlay of `stripes` trees; at most as many as there are hosts on other hosts than the root's.
pub(super) fn striped(view: &View<'_>, stripes: u32, turn: usize, turns: usize) -> Overlay {
    let outward = view.outward(turn, turns);
    // The root's host has everything from there, and its uplink is the root's: it passes nothing on.
    let remote: Vec<u32> = outward.into_iter().filter(|&host| !view.together(0, host)).collect();
    if remote.len() < 2 {
        return super::lines::star(view);
    }
    let groups = dealt(view, &remote, (stripes as usize).min(remote.len()));
    let trees: Vec<(f64, Vec<u32>)> = groups.iter().map(|group| grown(view, &remote, group)).collect();
    let sum: f64 = trees.iter().map(|(slowness, _)| 1.0 / slowness).sum();
    Overlay::new(
        trees.into_iter().map(|(slowness, parents)| Stripe::new(1.0 / slowness / sum, parents)).collect(),
    )
}

/// The hosts in as many groups, whose uplinks carry about the same together: the fastest first, each to the weakest group.
fn dealt(view: &View<'_>, hosts: &[u32], groups: usize) -> Vec<Vec<u32>> {
    let mut fastest = hosts.to_vec();
    fastest.sort_by(|&one, &other| view.node(other).rate.total_cmp(&view.node(one).rate));
    let mut dealt = vec![(0.0_f64, Vec::new()); groups];
    for host in fastest {
        let weakest = dealt.iter_mut().min_by(|one, other| one.0.total_cmp(&other.0));
        if let Some((carried, group)) = weakest {
            *carried += view.node(host).rate;
            group.push(host);
        }
    }
    dealt.into_iter().map(|(_, group)| group).collect()
}

/// A tree over all hosts with its inner nodes in `group`, and how slow it is: the most children for its rate.
fn grown(view: &View<'_>, hosts: &[u32], group: &[u32]) -> (f64, Vec<u32>) {
    let counts = children(view, group, hosts.len() - 1);
    let slowness = |(&host, &count): (&u32, &u32)| f64::from(count) / view.node(host).rate;
    let slowest = group.iter().zip(&counts).map(slowness).fold(0.0, f64::max);

    // Those with most children come first, which makes the tree low.
    let mut inner: Vec<(u32, u32)> =
        group.iter().copied().zip(counts).filter(|&(_, count)| count > 0).collect();
    inner.sort_by_key(|&(_, count)| Reverse(count));
    let mut leaves: Vec<u32> = hosts.to_vec();
    leaves.retain(|host| inner.iter().all(|(other, _)| other != host));

    // Hosts on the root's host stay with the root.
    let mut parents = vec![0; view.len() - 1];
    let mut slots: VecDeque<(u32, u32)> = VecDeque::from([(0, 1)]);
    while !inner.is_empty() {
        let Some((parent, free)) = slots.pop_front() else { break };
        let wide = inner[0].1;
        let alike = inner.iter().take_while(|&&(_, count)| count == wide).map(|&(host, _)| host);
        let (host, count) = inner.remove(nearest(view, parent, alike));
        parents[host as usize - 1] = parent;
        slots.push_back((host, count));
        match free - 1 {
            0 => {}
            left => slots.push_front((parent, left)),
        }
    }
    seated(view, slots.into(), leaves, &mut parents);
    (slowest, parents)
}

/// Gives each free place (a parent, how many) a leaf: of its own rack, else of its zone, else any.
fn seated(view: &View<'_>, mut free: Vec<(u32, u32)>, mut leaves: Vec<u32>, parents: &mut [u32]) {
    let rack = |node: u32| (view.node(node).place.zone, Some(view.node(node).place.rack));
    let near: [&dyn Fn(u32) -> (u32, Option<u32>); 3] = [&rack, &|node| (rack(node).0, None), &|_| (0, None)];
    for near in near {
        let mut waiting: BTreeMap<_, VecDeque<u32>> = BTreeMap::new();
        for leaf in leaves.drain(..) {
            waiting.entry(near(leaf)).or_default().push_back(leaf);
        }
        for (parent, left) in &mut free {
            let Some(near) = waiting.get_mut(&near(*parent)) else { continue };
            while *left > 0
                && let Some(leaf) = near.pop_front()
            {
                parents[leaf as usize - 1] = *parent;
                *left -= 1;
            }
        }
        leaves.extend(waiting.into_values().flatten());
    }
}

/// How many children each of a group has, so many together: the next goes to where it makes the least time.
fn children(view: &View<'_>, group: &[u32], edges: usize) -> Vec<u32> {
    #[derive(PartialEq)]
    struct After(f64, usize);
    impl Eq for After {}
    impl PartialOrd for After {
        fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
            Some(self.cmp(other))
        }
    }
    impl Ord for After {
        fn cmp(&self, other: &Self) -> std::cmp::Ordering {
            self.0.total_cmp(&other.0).then(self.1.cmp(&other.1))
        }
    }
    let after =
        |place: usize, count: u32| Reverse(After(f64::from(count) / view.node(group[place]).rate, place));
    let mut counts = vec![0; group.len()];
    let mut next: BinaryHeap<_> = (0..group.len()).map(|place| after(place, 1)).collect();
    for _ in 0..edges {
        if let Some(Reverse(After(_, place))) = next.pop() {
            counts[place] += 1;
            next.push(after(place, counts[place] + 1));
        }
    }
    counts
}

/// The place of the one that costs least to send to; the first of several.
fn nearest(view: &View<'_>, from: u32, among: impl Iterator<Item = u32>) -> usize {
    let costs = among.map(|host| view.cost(from, host)).enumerate();
    costs.min_by(|one, other| one.1.total_cmp(&other.1)).map_or(0, |(place, _)| place)
}
