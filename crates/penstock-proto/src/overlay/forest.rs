//! The trees that a server's bytes go down: one for each stripe.
//!
//! Node 0 is the root, a server; the hosts are 1 and up ([`Cluster`](super::Cluster)). All stripes have the same hosts: after a
//! loss the numbers of those that are left stay as they were.

use super::error::{NotATree, PlanError};
use super::limits::Limits;
use std::ops::Range;

/// Shares may be off by so much together: they are sums of rounded numbers.
const SHARES_OFF: f64 = 1e-6;
/// A host that is not in the overlay.
const ABSENT: u32 = u32::MAX;

/// A part of the bytes, and the tree that it goes down.
#[derive(Debug, Clone, PartialEq)]
pub struct Stripe {
    /// Which part of the bytes it is, above 0 and at most 1.
    share: f64,
    /// By host, from 1: who sends to it.
    parents: Vec<u32>,
}

impl Stripe {
    /// A stripe whose parents are known to make a tree.
    pub(super) fn new(share: f64, parents: Vec<u32>) -> Self {
        debug_assert_eq!(tree(&parents), Ok(()));
        Self { share, parents }
    }

    /// Which part of the bytes goes down here.
    pub fn share(&self) -> f64 {
        self.share
    }

    /// Who sends to this node; `None` for the root and for who is not in the overlay.
    pub fn parent(&self, node: u32) -> Option<u32> {
        let parent = *self.parents.get((node as usize).checked_sub(1)?)?;
        (parent != ABSENT).then_some(parent)
    }

    /// To whom each node sends, ascending; the root's come first.
    pub fn children(&self) -> Vec<Vec<u32>> {
        let mut children = vec![Vec::new(); self.parents.len() + 1];
        for (host, &parent) in (1..).zip(&self.parents) {
            if parent != ABSENT {
                children[parent as usize].push(host);
            }
        }
        children
    }

    /// Edges from the root to each node; `None` for who is not in the overlay.
    pub fn depths(&self) -> Vec<Option<u32>> {
        let children = self.children();
        let mut depths = vec![None; children.len()];
        let mut next = vec![(0, 0)];
        while let Some((node, depth)) = next.pop() {
            depths[node as usize] = Some(depth);
            next.extend(children[node as usize].iter().map(|&child| (child, depth + 1)));
        }
        depths
    }

    /// The hosts that pass on, ascending.
    pub fn inner(&self) -> Vec<u32> {
        let children = self.children();
        (1..children.len() as u32).filter(|&host| !children[host as usize].is_empty()).collect()
    }

    pub(super) fn set_parent(&mut self, host: u32, parent: u32) {
        self.parents[host as usize - 1] = parent;
    }

    pub(super) fn remove(&mut self, host: u32) {
        self.parents[host as usize - 1] = ABSENT;
    }
}

/// The trees of one server, which together carry all of its bytes.
///
/// Memory: 4 bytes for each host and stripe.
#[derive(Debug, Clone, PartialEq)]
pub struct Overlay {
    stripes: Vec<Stripe>,
}

impl Overlay {
    /// Stripes that the planner made.
    pub(super) fn new(stripes: Vec<Stripe>) -> Self {
        debug_assert!((stripes.iter().map(Stripe::share).sum::<f64>() - 1.0).abs() < SHARES_OFF);
        Self { stripes }
    }

    /// The overlay over `hosts` hosts that somebody else has made: for each stripe its share and its edges (who sends, to whom).
    ///
    /// # Errors
    /// There are no hosts, the shares do not add up to 1, or the edges of a stripe are no tree that reaches every host.
    pub fn from_edges(hosts: usize, stripes: &[(f64, Vec<(u32, u32)>)]) -> Result<Self, PlanError> {
        if hosts == 0 {
            return Err(PlanError::NoHosts);
        }
        if hosts > crate::message::MAX_WORKERS as usize {
            return Err(PlanError::TooMany { what: "hosts", got: hosts, most: crate::message::MAX_WORKERS });
        }
        let shares: Vec<f64> = stripes.iter().map(|(share, _)| *share).collect();
        let whole = (shares.iter().sum::<f64>() - 1.0).abs() < SHARES_OFF;
        if !whole || shares.iter().any(|&share| share.is_nan() || share <= 0.0) {
            return Err(PlanError::Shares(shares));
        }
        let mut made = Vec::with_capacity(stripes.len());
        for (stripe, (share, edges)) in stripes.iter().enumerate() {
            let parents = parents(hosts, edges).map_err(|why| PlanError::NotATree { stripe, why })?;
            made.push(Stripe { share: *share, parents });
        }
        Ok(Self { stripes: made })
    }

    /// Whether it keeps these limits too.
    ///
    /// # Errors
    /// A node sends to more than allowed, or is farther from the root.
    pub fn keeps(&self, limits: Limits) -> Result<(), PlanError> {
        for (stripe, trees) in self.stripes.iter().enumerate() {
            check(limits, trees).map_err(|why| PlanError::NotATree { stripe, why })?;
        }
        Ok(())
    }

    /// The trees.
    pub fn stripes(&self) -> &[Stripe] {
        &self.stripes
    }

    pub(super) fn stripes_mut(&mut self) -> &mut [Stripe] {
        &mut self.stripes
    }

    /// All numbers that nodes have or had, the root's among them.
    pub fn len(&self) -> usize {
        self.stripes[0].parents.len() + 1
    }

    /// Never: there is a root.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Whether a host is in it.
    pub fn has(&self, host: u32) -> bool {
        self.stripes[0].parent(host).is_some()
    }

    /// Edges from the root to the farthest host, in any stripe.
    pub fn depth(&self) -> u32 {
        self.stripes.iter().flat_map(Stripe::depths).flatten().max().unwrap_or(0)
    }

    /// Which bytes of so many go down which stripe: without a gap, in the stripes' order.
    pub fn cut(&self, bytes: u64) -> Vec<Range<u64>> {
        let mut from = 0;
        let mut sum = 0.0;
        let mut ranges: Vec<Range<u64>> = Vec::with_capacity(self.stripes.len());
        for (index, stripe) in self.stripes.iter().enumerate() {
            sum += stripe.share;
            let last = index + 1 == self.stripes.len();
            let to = if last { bytes } else { ((sum * bytes as f64).round() as u64).clamp(from, bytes) };
            ranges.push(from..to);
            from = to;
        }
        ranges
    }
}

/// Whether a stripe keeps to these limits.
fn check(limits: Limits, stripe: &Stripe) -> Result<(), NotATree> {
    for (node, children) in (0..).zip(stripe.children()) {
        let got = children.len() as u32;
        if got > limits.degree {
            return Err(NotATree::Degree { node, got, most: limits.degree });
        }
    }
    for (node, depth) in (0..).zip(stripe.depths()) {
        if let Some(got) = depth.filter(|&depth| depth > limits.depth) {
            return Err(NotATree::Depth { node, got, most: limits.depth });
        }
    }
    Ok(())
}

/// Who sends to each host, where the edges make a tree over all of them.
fn parents(hosts: usize, edges: &[(u32, u32)]) -> Result<Vec<u32>, NotATree> {
    let mut parents = vec![ABSENT; hosts];
    for &(from, to) in edges {
        for node in [from, to] {
            if node as usize > hosts {
                return Err(NotATree::Unknown(node));
            }
        }
        let Some(place) = (to as usize).checked_sub(1) else { return Err(NotATree::ToRoot(from)) };
        if parents[place] != ABSENT {
            return Err(NotATree::TwoParents { node: to, first: parents[place], second: from });
        }
        parents[place] = from;
    }
    if let Some(place) = parents.iter().position(|&parent| parent == ABSENT) {
        return Err(NotATree::Orphan(place as u32 + 1));
    }
    tree(&parents)?;
    Ok(parents)
}

/// Whether the root reaches each that has a parent.
fn tree(parents: &[u32]) -> Result<(), NotATree> {
    const ROOTED: u32 = 0;
    // By node: in which walk upwards it was first met.
    let mut met = vec![u32::MAX; parents.len() + 1];
    met[0] = ROOTED;
    for start in 1..=parents.len() as u32 {
        let mut path = Vec::new();
        let mut node = start;
        while met[node as usize] == u32::MAX {
            met[node as usize] = start;
            path.push(node);
            node = match parents[node as usize - 1] {
                ABSENT if node == start => 0,
                ABSENT => return Err(NotATree::Orphan(node)),
                parent => parent,
            };
        }
        if met[node as usize] == start && path.contains(&node) {
            let first = path.iter().position(|&other| other == node).unwrap_or(0);
            let mut circle = path.split_off(first);
            circle.sort_unstable();
            return Err(NotATree::Cycle(circle));
        }
        for node in path {
            met[node as usize] = ROOTED;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn made(hosts: usize, edges: &[(u32, u32)]) -> Result<Overlay, PlanError> {
        Overlay::from_edges(hosts, &[(1.0, edges.to_vec())])
    }

    fn refused(hosts: usize, edges: &[(u32, u32)]) -> NotATree {
        match made(hosts, edges) {
            Err(PlanError::NotATree { stripe: 0, why }) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn edges_that_are_no_tree_are_refused_for_what_is_wrong_with_them() {
        assert!(made(3, &[(0, 1), (1, 2), (1, 3)]).is_ok());
        // What the paper's P3 admits as printed.
        assert_eq!(refused(3, &[(0, 1), (2, 3), (3, 2)]), NotATree::Cycle(vec![2, 3]));
        assert_eq!(refused(2, &[(0, 1), (2, 2)]), NotATree::Cycle(vec![2]));
        assert_eq!(refused(4, &[(0, 1), (4, 2), (2, 3), (3, 4)]), NotATree::Cycle(vec![2, 3, 4]));
        assert_eq!(refused(3, &[(0, 1), (1, 2)]), NotATree::Orphan(3));
        let twice = NotATree::TwoParents { node: 2, first: 0, second: 1 };
        assert_eq!(refused(2, &[(0, 1), (0, 2), (1, 2)]), twice);
        assert_eq!(refused(2, &[(0, 1), (0, 3)]), NotATree::Unknown(3));
        assert_eq!(refused(2, &[(0, 1), (u32::MAX, 2)]), NotATree::Unknown(u32::MAX));
        assert_eq!(refused(2, &[(0, 1), (0, 2), (1, 0)]), NotATree::ToRoot(1));
    }

    #[test]
    fn shares_that_do_not_make_the_whole_are_refused() {
        let edges = vec![(0, 1)];
        for shares in [vec![], vec![0.5], vec![0.5, 0.6], vec![1.5, -0.5], vec![f64::NAN], vec![1.0, 0.0]] {
            let stripes: Vec<_> = shares.iter().map(|&share| (share, edges.clone())).collect();
            assert!(matches!(Overlay::from_edges(1, &stripes), Err(PlanError::Shares(_))), "{shares:?}");
        }
        assert_eq!(Overlay::from_edges(0, &[(1.0, vec![])]), Err(PlanError::NoHosts));
    }

    #[test]
    fn limits_are_kept_or_the_node_that_breaks_them_is_named() {
        let overlay = made(3, &[(0, 1), (1, 2), (1, 3)]).unwrap();
        let keeps = |degree, depth| overlay.keeps(Limits { degree, depth });
        assert_eq!(keeps(2, 2), Ok(()));
        let why = NotATree::Degree { node: 1, got: 2, most: 1 };
        assert_eq!(keeps(1, 2), Err(PlanError::NotATree { stripe: 0, why }));
        let why = NotATree::Depth { node: 2, got: 2, most: 1 };
        assert_eq!(keeps(2, 1), Err(PlanError::NotATree { stripe: 0, why }));
    }

    #[test]
    fn so_many_hosts_are_reached_and_not_one_more() {
        assert_eq!([1, 2, 3].map(|depth| Limits { degree: 2, depth }.reach()), [2, 6, 14]);
        assert_eq!(Limits { degree: 1, depth: 7 }.reach(), 7);
        assert_eq!(Limits { degree: 0, depth: 7 }.reach(), 0);
        assert!(Limits { degree: u32::MAX, depth: u32::MAX }.reach() > 1024);
        assert_eq!([2, 6, 7, 14].map(|hosts| Limits::least_depth(hosts, 2)), [1, 2, 3, 3].map(Some));
        assert_eq!(Limits::least_depth(1, 0), None);
    }

    proptest! {
        #[test]
        fn every_byte_is_in_one_stripe(bytes in 0_u64..1 << 50, parts in prop::collection::vec(1_u32..100, 1..9)) {
            let sum: u32 = parts.iter().sum();
            let stripes = parts.iter().map(|&part| (f64::from(part) / f64::from(sum), vec![(0, 1)]));
            let ranges = Overlay::from_edges(1, &stripes.collect::<Vec<_>>()).unwrap().cut(bytes);
            prop_assert_eq!(ranges[0].start, 0);
            prop_assert_eq!(ranges[ranges.len() - 1].end, bytes);
            for pair in ranges.windows(2) {
                prop_assert_eq!(pair[0].end, pair[1].start);
            }
        }

        #[test]
        fn whatever_edges_come_they_are_a_tree_or_refused(
            edges in prop::collection::vec((0_u32..7, 0_u32..7), 0..9), hosts in 1_usize..7,
        ) {
            // The obvious check: as many edges as hosts, one into each, and everybody is reached.
            let mut reached = vec![0];
            let mut at = 0;
            while at < reached.len() && reached.len() <= edges.len() + 1 {
                let here = reached[at];
                reached.extend(edges.iter().filter(|(from, _)| *from == here).map(|(_, to)| *to));
                at += 1;
            }
            reached.sort_unstable();
            let tree = edges.len() == hosts && reached.iter().copied().eq(0..=hosts as u32);
            prop_assert_eq!(made(hosts, &edges).is_ok(), tree);
        }
    }
}
