//! Who passes on to whom: the product's planner, and what becomes of a plan when a worker has left its parent.
//!
//! What stands around it in a job is `crates/penstock/src/server/control/trees.rs`. Here each worker has a host of its own.

use super::home::Stray;
use penstock_proto::Rank;
use penstock_proto::overlay::{
    Better, Cluster, Costs, Judging, Limits, Member, Node, Overlay, Parent, Pass, Place, Plan, PlanError,
    Prediction, Routes, Said, Shape, Standing, Traffic, instead, plan,
};
use penstock_proto::uplink::{Known, Measured, Turns, rates};
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
    /// What is planned: for which shape, and bytes a second of the usual link.
    wanted: Shape,
    traffic: Traffic,
    rate: f64,
    /// What workers say of their links; what was planned with, the home's last; when that may be seen to again.
    known: Known,
    used: Vec<f64>,
    turns: Turns,
    /// How often a plan was made anew for that.
    pub(super) moved: u32,
}

/// A cluster of hosts with these rates beside the usual one, the home's last.
fn cluster(beside: &[f64], rate: f64) -> Result<Cluster, PlanError> {
    let node =
        |(host, beside): (u32, &f64)| Node { place: Place { zone: 0, rack: 0, host }, rate: rate * beside };
    let mut hosts: Vec<Node> = (0..).zip(beside).map(node).collect();
    let servers = hosts.pop().into_iter().collect();
    Cluster::new(servers, hosts, Costs::Both)?.taking(rate)
}

fn limits(plan: &Plan) -> Option<Limits> {
    match plan.shape {
        Shape::Tree { limits, .. } => Some(limits),
        _ => None,
    }
}

impl Trees {
    /// `beside`: what is known before of the links of workers' hosts, and last of the home's, beside the usual one.
    pub(super) fn new(
        beside: Vec<f64>,
        rate: f64,
        shape: Shape,
        traffic: &Traffic,
    ) -> Result<Self, PlanError> {
        let workers = beside.len() as u32 - 1;
        let cluster = cluster(&beside, rate)?;
        let wanted = shape.settled(workers as usize);
        let mut plan = plan(&cluster, wanted, traffic)?;
        let limits = limits(&plan);
        let (shape, prediction) = (plan.shape, plan.prediction);
        let overlay = plan.overlays.swap_remove(0);
        let ranks = (0..workers).collect();
        let (out, judging) = (BTreeSet::new(), Judging::default());
        let (known, turns, routes) = (Known::default(), Turns::default(), Arc::default());
        let (traffic, used, moved) = (*traffic, beside, 0);
        Ok(Self {
            cluster,
            limits,
            ranks,
            out,
            judging,
            shape,
            overlay,
            prediction,
            routes,
            wanted,
            traffic,
            rate,
            known,
            used,
            turns,
            moved,
        })
    }

    /// A worker says what its link carries, as of this time in milliseconds.
    pub(super) fn hear(&mut self, rank: Rank, measured: Measured, now: u64) {
        let heard = self.known.hear(rank, self.ranks.len() as u32, measured, now);
        debug_assert_eq!(heard, Ok(()), "workers are honest here");
    }

    /// Whether there is another plan, as links carry something else than was planned with; `own`: what the home has measured.
    pub(super) fn weigh(&mut self, own: Option<Measured>, now: u64) -> Result<bool, PlanError> {
        self.known.forget(now);
        if !self.turns.is_time(now) {
            return Ok(false);
        }
        self.known.measure(own);
        let mut links: Vec<(Measured, Option<f64>)> =
            self.ranks.iter().map(|&rank| (self.known.of(rank), None)).collect();
        links.push((self.known.own(), None));
        let beside = rates(&links, self.overlay.stripes().len());
        if beside == self.used {
            return Ok(false);
        }
        for (&rank, rate) in self.ranks.iter().zip(&beside) {
            self.known.planned(rank, *rate < 1.0);
        }
        let cluster = cluster(&beside, self.rate)?;
        self.used = beside;
        let standing = Standing::of(&self.overlay, Some, self.out.clone());
        let Some(Better { mut plan, .. }) = instead(&cluster, self.wanted, &self.traffic, 0, &standing)?
        else {
            self.turns.looked(now);
            return Ok(false);
        };
        self.turns.moved(now);
        self.moved += 1;
        (self.cluster, self.limits) = (cluster, limits(&plan));
        self.overlay = plan.overlays.swap_remove(0);
        for leaf in self.out.clone() {
            let view = self.cluster.seen_from(0);
            self.overlay = self.overlay.with_leaf(&view, leaf, (self.limits, &self.out))?.0;
        }
        Ok(true)
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
        let (by, parent) = self.judging.take_due(&self.routes, now)?;
        by.first().map(|&rank| Stray { rank, parent })
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
