//! A control thread's plan of trees, made by hand: of the shapes that the product plans the simplest, and more often than there is
//! a reason to.

use crate::rng::Rng;
use crate::trees::{Form, Trees};
use penstock_proto::Rank;
use penstock_proto::overlay::{Feed, Judging, Member, Parent, Pass, Routes, Said, WHOLE};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// How often one that was blamed is forgiven.
const FORGIVEN: u32 = 3;

/// One server's.
#[derive(Debug)]
pub struct Planner {
    rng: Rng,
    form: Form,
    shares: Vec<u32>,
    /// Workers that take part, in the order in which they feed each other.
    order: Vec<Rank>,
    /// Those of them that were blamed.
    out: BTreeSet<Rank>,
    judging: Judging,
    /// How often each was forgiven.
    forgiven: BTreeMap<Rank, u32>,
    /// What the shards were told.
    routes: Arc<Routes>,
}

impl Planner {
    /// Nobody has come.
    pub fn new(trees: &Trees, mut rng: Rng) -> Self {
        let shares = shares(trees.stripes, &mut rng);
        let (order, out, forgiven) = (Vec::new(), BTreeSet::new(), BTreeMap::new());
        let (judging, routes) = (Judging::default(), Arc::default());
        Self { rng, form: trees.form, shares, order, out, judging, forgiven, routes }
    }

    /// A worker with a door has joined.
    pub fn join(&mut self, rank: Rank) {
        if !self.order.contains(&rank) {
            let at = self.rng.within(0..=self.order.len() as u64) as usize;
            self.order.insert(at, rank);
        }
    }

    /// A worker has left, or was lost.
    pub fn leave(&mut self, rank: Rank) {
        self.order.retain(|&other| other != rank);
        self.judging.forget(rank);
    }

    /// A worker has left its parent, whose fault that was, at this time in milliseconds: what is made of it, if that counts.
    pub fn stray(&mut self, rank: Rank, parent: Rank, now: u64) -> Option<Said> {
        let is_fed = |feed: &Feed| feed.parent.as_ref().is_some_and(|fed_by| fed_by.rank == parent);
        let feeds = self.routes.members.get(&rank).is_some_and(|member| member.feeds.iter().any(is_fed));
        if !feeds || !self.passes_on(parent) {
            return None;
        }
        let said = self.judging.accuse(&self.routes, (rank, parent), now);
        if said == Said::Believed {
            self.blame(parent, now);
        }
        Some(said)
    }

    fn passes_on(&self, rank: Rank) -> bool {
        self.order.contains(&rank) && !self.out.contains(&rank)
    }

    fn blame(&mut self, parent: Rank, now: u64) {
        self.judging.found(&self.routes, parent, now);
        self.out.insert(parent);
    }

    /// Of those that were heard out the next: whether it is at fault, who it is, and who has said so.
    pub fn hear_out(&mut self, now: u64) -> Option<(bool, Rank, Vec<Rank>)> {
        let (by, parent) = self.judging.take_due(&self.routes, now)?;
        let is_its = self.passes_on(parent);
        if is_its {
            self.blame(parent, now);
        }
        Some((is_its, parent, by))
    }

    /// One that was blamed takes part again, unless that was so often before: a plan settles in the end.
    pub fn forgive(&mut self, rank: Rank) {
        let times = self.forgiven.entry(rank).or_default();
        *times += 1;
        if *times <= FORGIVEN {
            self.out.remove(&rank);
        }
    }

    /// The next plan is another one.
    pub fn shake(&mut self) {
        let Self { rng, order, form, shares, .. } = self;
        match rng.within(0..=3) {
            0 => rng.shuffle(order),
            1 => *form = rng.pick(&[Form::Chain, Form::Two]),
            _ => {
                let stripes = rng.within(1..=3);
                *shares = self::shares(stripes, rng);
            }
        }
    }

    /// The routes, if they are others than before.
    pub fn routes(&mut self) -> Option<Arc<Routes>> {
        let mut routes = self.planned();
        routes.striping = self.routes.striping + u32::from(routes.shares != self.routes.shares);
        (routes != *self.routes).then(|| {
            self.routes = Arc::new(routes);
            Arc::clone(&self.routes)
        })
    }

    fn planned(&self) -> Routes {
        let order: Vec<Rank> = self.order.iter().copied().filter(|rank| !self.out.contains(rank)).collect();
        if order.len() < 2 {
            return Routes::default();
        }
        let mut members: BTreeMap<Rank, Member> = BTreeMap::new();
        for stripe in 0..self.shares.len() {
            // Others are inner nodes of each stripe.
            let first = stripe * order.len() / self.shares.len();
            let at = |place: usize| order[(first + place) % order.len()];
            let mut depths: Vec<u32> = Vec::new();
            for place in 0..order.len() {
                let above = match self.form {
                    Form::Chain => place.checked_sub(1),
                    Form::Two => place.checked_sub(1).map(|place| place / 2),
                };
                let depth = above.map_or(1, |above| depths[above] + 1);
                depths.push(depth);
                let pass = Pass::new(&[0; 16], 0, at(place));
                let parent = above.map(|above| Parent { rank: at(above), address: door(at(above)), pass });
                if let Some(parent) = &parent {
                    members.entry(parent.rank).or_default().passes_on = true;
                }
                members.entry(at(place)).or_default().feeds.push(Feed { parent, depth });
            }
        }
        Routes { striping: 0, shares: self.shares.clone(), members }
    }
}

/// Where a worker lets others in.
fn door(rank: Rank) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 1024 + rank as u16).into()
}

/// Of so many stripes, at most three.
fn shares(stripes: u64, rng: &mut Rng) -> Vec<u32> {
    let first = rng.pick(&[WHOLE / stripes as u32, WHOLE / 5]);
    match stripes {
        1 => vec![WHOLE],
        2 => vec![first, WHOLE - first],
        _ => vec![first, WHOLE / 3, WHOLE - first - WHOLE / 3],
    }
}
