//! Who passes on to whom: the product's planner, and what becomes of a plan when a worker has left its parent.
//!
//! What stands around it in a job is `crates/penstock/src/server/control/trees.rs`. Here each worker has a host of its own.

use super::home::Stray;
use penstock_proto::Rank;
use penstock_proto::overlay::{
    Cluster, Costs, Judging, Limits, Member, Node, Overlay, Parent, Pass, Place, PlanError, Prediction,
    Routes, Said, Shape, Traffic, plan,
};
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// The only worker of a node of the plan, and the node of a worker: the home is node 0.
fn rank(node: u32) -> Rank {
    node - 1
}

fn node(rank: Rank) -> u32 {
    rank + 1
}

/// A plan for one server and as many workers as hosts.
pub(super) struct Trees {
    cluster: Cluster,
    limits: Option<Limits>,
    ranks: Vec<Rank>,
    /// Nodes that pass nothing on any more.
    out: BTreeSet<u32>,
    judging: Judging,
    pub(super) shape: Shape,
    pub(super) overlay: Overlay,
    pub(super) prediction: Prediction,
    routes: Arc<Routes>,
}

impl Trees {
    pub(super) fn new(workers: u32, rate: f64, shape: Shape, traffic: &Traffic) -> Result<Self, PlanError> {
        let at = |host| Node { place: Place { zone: 0, rack: 0, host }, rate };
        let servers = vec![at(workers)];
        let cluster = Cluster::new(servers, (0..workers).map(at).collect(), Costs::Labels)?;
        let mut plan = plan(&cluster, shape.settled(workers as usize), traffic)?;
        let limits = match plan.shape {
            Shape::Tree { limits, .. } => Some(limits),
            _ => None,
        };
        let (shape, prediction) = (plan.shape, plan.prediction);
        let overlay = plan.overlays.swap_remove(0);
        let ranks = (0..workers).collect();
        let (out, judging) = (BTreeSet::new(), Judging::default());
        Ok(Self { cluster, limits, ranks, out, judging, shape, overlay, prediction, routes: Arc::default() })
    }

    /// The routes, if they are others than before.
    pub(super) fn routes(&mut self) -> Option<Arc<Routes>> {
        let of = |node: u32| {
            let is_in = node > 0 && self.overlay.has(node);
            if is_in { std::slice::from_ref(&self.ranks[rank(node) as usize]) } else { &[] }
        };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let mut routes = Routes::along(
            &self.overlay,
            of,
            |_| true,
            |child, rank| Some(Parent { rank, address, pass: Pass::new(&[0; 16], 0, child) }),
        );
        routes.striping = self.routes.striping + u32::from(routes.shares != self.routes.shares);
        (routes != *self.routes).then(|| {
            self.routes = Arc::new(routes);
            Arc::clone(&self.routes)
        })
    }

    /// A worker has left its parent, whose fault that was, at this time in milliseconds: what is made of it, if that one passes anything
    /// on to it.
    pub(super) fn stray(&mut self, stray: Stray, now: u64) -> Option<Said> {
        let Stray { rank, parent } = stray;
        let is_its = |member: &Member| {
            member.feeds.iter().any(|feed| feed.parent.as_ref().is_some_and(|fed_by| fed_by.rank == parent))
        };
        if !self.routes.members.get(&rank).is_some_and(is_its) || self.out.contains(&node(parent)) {
            return None;
        }
        Some(self.judging.accuse(&self.routes, (rank, parent), now))
    }

    /// One that was heard out, and is at fault.
    pub(super) fn take_due(&mut self, now: u64) -> Option<Stray> {
        self.judging.take_due(now).map(|(rank, parent)| Stray { rank, parent })
    }

    /// One passes nothing on any more. Whether it did.
    pub(super) fn blame(&mut self, parent: Rank, now: u64) -> Result<bool, PlanError> {
        if !self.out.insert(node(parent)) {
            return Ok(false);
        }
        self.judging.found(&self.routes, parent, now);
        let view = self.cluster.seen_from(0);
        self.overlay = self.overlay.with_leaf(&view, node(parent), (self.limits, &self.out))?.0;
        Ok(true)
    }

    /// Children of the busiest node, and of the home.
    pub(super) fn most_children(&self) -> (usize, usize) {
        let mut of = vec![0; self.ranks.len() + 1];
        for stripe in self.overlay.stripes() {
            stripe.children().iter().zip(&mut of).for_each(|(children, of)| *of += children.len());
        }
        (of.iter().copied().max().unwrap_or(0), of[0])
    }

    /// An inner node that many others hang on: of all inner ones of the first stripe the middle one, by depth.
    pub(super) fn some_inner(&self) -> Option<Rank> {
        let stripe = self.overlay.stripes().first()?;
        let depths = stripe.depths();
        let mut inner: Vec<u32> = stripe.inner().into_iter().filter(|&node| node > 0).collect();
        inner.sort_by_key(|&node| (depths[node as usize], node));
        inner.get(inner.len() / 2).map(|&node| rank(node))
    }
}
