//! Trees: who is fed by whom, as a control thread, a shard and a worker's proxy see to it, and the connections between workers.
//!
//! What passes values on is the code of a job ([`RemoteShard`](penstock_fabric::net::remote_shard::RemoteShard)), and so is what a
//! home makes of it. What stands around it is written once more: a server's turn with its routes
//! (`crates/penstock/src/server/shard.rs`), a proxy's with parents and children (`crates/penstock/src/worker/link/proxy`), its
//! door. Who feeds whom says a [`Planner`].

use super::wires::JOB;
use super::{Cluster, Event, Failure, LEASE, Server};
use crate::history::Observation;
use crate::liar::Liar;
use crate::planner::Planner;
use crate::rng::{Rng, hash};
use crate::sabotage::Sabotage;
use crate::scenario::Scenario;
use crate::socket::{Line, Socket};
use crate::transport::{Break, Way, Wire};
use crate::trees::Trees;
use penstock_fabric::net::remote_shard::{Left, Unreached, Wish};
use penstock_proto::overlay::{HEARD_OUT_MS, Routes, Said};
use penstock_proto::remote::home::Chunks as _;
use penstock_proto::seal::{Scope, Sealer, Verifier};
use penstock_proto::submission::{NOBODY, Submission};
use penstock_proto::{Rank, TensorId};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// A connection between two workers.
pub(super) struct Branch<'a> {
    wire: Rc<RefCell<Wire>>,
    child: Rank,
    parent: Rank,
    shard: usize,
    /// The child's end, until its proxy has it.
    held: Option<Socket<'a>>,
}

impl Branch<'_> {
    /// Whose end reads this way.
    fn reader(&self, way: Way) -> Rank {
        if way == Way::Down { self.child } else { self.parent }
    }
}

/// What a proxy's thread keeps beside its machine.
#[derive(Debug, Default)]
struct Tending {
    /// How often the worker was told of its route again.
    again: u32,
    /// Parents that the door was asked to dial.
    wished: Vec<Wish>,
    /// When it looks again whether something is late, and whether it will be woken for that.
    next: u64,
    woken: bool,
}

/// All that there is of trees.
pub(super) struct Grove<'a> {
    plan: &'a Trees,
    rng: Rng,
    branches: Vec<Branch<'a>>,
    /// By worker and shard.
    tending: Vec<Vec<Tending>>,
    /// By server; and whether it is to look at its plan.
    planners: Vec<Planner>,
    looks: Vec<bool>,
    /// When the last command arrives at each shard: they are taken in order.
    due: Vec<u64>,
}

impl<'a> Grove<'a> {
    pub(super) fn new(scenario: &'a Scenario) -> Option<Self> {
        let plan = scenario.trees.as_ref()?;
        let mut rng = Rng::new(hash(&[scenario.seed, 0x9_0e5]));
        let (servers, shards) =
            (scenario.topology.servers, scenario.topology.servers * scenario.topology.shards);
        let tending = || (0..shards).map(|_| Tending::default()).collect();
        Some(Self {
            plan,
            branches: Vec::new(),
            tending: (0..scenario.workload.workers()).map(|_| tending()).collect(),
            planners: (0..servers).map(|_| Planner::new(plan, Rng::new(rng.word()))).collect(),
            looks: vec![false; servers as usize],
            due: vec![0; shards as usize],
            rng,
        })
    }
}

impl<'a> Cluster<'a> {
    /// Keys are given out, and what goes wrong is planned.
    pub(super) fn plant(&mut self) {
        let Some(Grove { plan, .. }) = self.trees else { return };
        for shard in 0..self.servers.len() {
            let sealer = self.sealer(shard);
            let key = sealer.key();
            self.servers[shard].memory.seal_with(sealer);
            for proxies in &mut self.proxies {
                let verifier = Verifier::new(&key, self.scenario.scope(shard)).expect("it is a home's key");
                proxies[shard].shard.trust(verifier);
            }
        }
        for server in 0..self.scenario.topology.servers as usize {
            for &at in &plan.replans {
                self.at(at, Event::Shake(server));
            }
        }
        for (rank, hang) in (0..).zip(&plan.hangs) {
            if let Some(range) = hang {
                self.at(range.start, Event::Hang(rank));
                self.at(range.end, Event::Rouse(rank));
            }
        }
    }

    /// What a shard seals with.
    fn sealer(&self, shard: usize) -> Sealer {
        let mut rng = Rng::new(hash(&[self.scenario.seed, 0x5ea1, shard as u64]));
        let mut seed = [0; 32];
        seed.chunks_mut(8).for_each(|bytes| bytes.copy_from_slice(&rng.word().to_le_bytes()));
        Sealer::new(&seed, self.scenario.scope(shard))
    }

    fn server_of(&self, shard: usize) -> usize {
        shard / self.scenario.topology.shards as usize
    }

    // The control threads

    /// A worker has joined, left, or was lost: all servers hear of it.
    pub(super) fn has_come(&mut self, rank: Rank, comes: bool) {
        let remote = self.is_remote(rank);
        let Some(Grove { plan, planners, .. }) = &mut self.trees else { return };
        if !remote || plan.doorless[rank as usize] {
            if !comes {
                self.look_at_plans();
            }
            return;
        }
        for planner in planners {
            if comes { planner.join(rank) } else { planner.leave(rank) }
        }
        self.look_at_plans();
    }

    fn look_at_plans(&mut self) {
        (0..self.scenario.topology.servers as usize).for_each(|server| self.look_at_plan(server));
    }

    /// A server looks at its plan soon.
    fn look_at_plan(&mut self, server: usize) {
        let Some(Grove { looks, .. }) = &mut self.trees else { return };
        if !std::mem::replace(&mut looks[server], true) {
            let delay = self.delay();
            self.later(delay, Event::Plan(server));
        }
    }

    /// A server plans for no reason.
    pub(super) fn shake(&mut self, server: usize) {
        if let Some(Grove { planners, .. }) = &mut self.trees {
            planners[server].shake();
        }
        self.look_at_plan(server);
    }

    /// A server sends its shards new routes, if they are others.
    pub(super) fn plan(&mut self, server: usize) {
        let workers = 0..self.workload.workers();
        let all_came =
            workers.into_iter().all(|rank| self.links[rank as usize].joined || self.lost.contains(&rank));
        let Some(Grove { plan, planners, looks, .. }) = &mut self.trees else { return };
        looks[server] = false;
        if !plan.early && !all_came {
            return;
        }
        let Some(routes) = planners[server].routes() else { return };
        let shards = self.scenario.topology.shards as usize;
        for shard in server * shards..(server + 1) * shards {
            let delay = self.delay();
            let now = self.now;
            let Some(Grove { due, .. }) = &mut self.trees else { return };
            due[shard] = (now + delay).max(due[shard]);
            let at = due[shard];
            self.at(at, Event::Routes(shard, Arc::clone(&routes)));
        }
    }

    /// A server hears that a worker has left its parent, whose fault that was.
    pub(super) fn blame(&mut self, server: usize, rank: Rank, parent: Rank) {
        let Some(Grove { plan, planners, .. }) = &mut self.trees else { return };
        // A tick more: what is rounded must have passed.
        let (now, heard_out) = (plan.millis(self.now), plan.ticks(HEARD_OUT_MS) + 1);
        match planners[server].stray(rank, parent, now) {
            Some(Said::Believed) => self.is_out(server, parent),
            Some(Said::HeardOut) => self.later(heard_out, Event::Judge(server)),
            Some(Said::Excused) => self.comes_back(server, rank),
            None => {}
        }
    }

    /// Somebody was heard out.
    pub(super) fn hear_out(&mut self, server: usize) {
        loop {
            let Some(Grove { plan, planners, .. }) = &mut self.trees else { return };
            let Some((is_its, parent, by)) = planners[server].hear_out(plan.millis(self.now)) else { return };
            if is_its {
                self.is_out(server, parent);
            }
            by.into_iter().skip(usize::from(is_its)).for_each(|rank| self.comes_back(server, rank));
        }
    }

    /// A worker passes nothing on any more.
    fn is_out(&mut self, server: usize, parent: Rank) {
        let Some(Grove { plan, .. }) = &self.trees else { return };
        if plan.forgives > 0 {
            let forgives = plan.forgives;
            let delay = self.rng.within(1..=forgives);
            self.later(delay, Event::Forgive(server, parent));
        }
        self.look_at_plan(server);
    }

    /// A worker has left a parent that was not at fault: it is told of its route again.
    fn comes_back(&mut self, server: usize, rank: Rank) {
        let shards = self.scenario.topology.shards as usize;
        for shard in server * shards..(server + 1) * shards {
            let delay = 20 * self.delay();
            self.later(delay, Event::RouteAgain(rank, shard));
        }
    }

    /// One that was blamed takes part again, as long as anybody is there.
    pub(super) fn forgive(&mut self, server: usize, rank: Rank) {
        if let Some(Grove { planners, .. }) = &mut self.trees {
            planners[server].forgive(rank);
        }
        self.look_at_plan(server);
    }

    // A shard

    /// Values go to workers on other hosts along other routes from now on.
    pub(super) fn reroute(&mut self, shard: usize, routes: Arc<Routes>) -> Result<(), Failure> {
        let Server { memory, ports, routes: before, .. } = &mut self.servers[shard];
        let is_cut_anew = routes.striping != before.striping;
        *before = routes;
        if is_cut_anew {
            memory.stripe_by(&before.shares);
            for port in ports.0.iter_mut().flatten() {
                port.peer.subscriber().recut(memory);
            }
        }
        (0..self.workload.workers()).try_for_each(|rank| self.tell_route(rank, shard))?;
        let broadcast = self.servers[shard].memory.broadcast();
        broadcast.into_iter().for_each(|id| self.look_who_asks(shard, id));
        self.answer_all(shard)
    }

    /// Tells a worker how values come to it, if that is not by this shard alone.
    pub(super) fn tell_route(&mut self, rank: Rank, shard: usize) -> Result<(), Failure> {
        let Server { memory, ports, routes, epoch, .. } = &mut self.servers[shard];
        let Some(port) = &mut ports.0[rank as usize] else { return Ok(()) };
        // One that was never told of any gets everything from here as it is.
        if !routes.members.contains_key(&rank) && port.epoch == 0 {
            return Ok(());
        }
        *epoch += 1;
        port.epoch = *epoch;
        let (route, passes_on) = routes.of(rank, *epoch);
        port.peer.passes_on(passes_on);
        port.peer.subscriber().route(route.epoch, route.parents(), route.encode().into(), memory);
        let parents: Vec<Option<Rank>> =
            route.feeds.iter().map(|feed| feed.parent.as_ref().map(|parent| parent.rank)).collect();
        self.see(Observation::Routed { shard, rank, epoch: route.epoch, parents: &parents })
    }

    /// Finds out whether others may pass on a tensor's values, and tells those whom it concerns if that is new.
    pub(super) fn look_who_asks(&mut self, shard: usize, id: TensorId) {
        let Server { memory, ports, routes, .. } = &mut self.servers[shard];
        let may = routes.may_carry(|rank| {
            let port = ports.0[rank as usize].as_mut();
            port.is_none_or(|port| port.peer.subscriber().asks_for_each(id))
        });
        if memory.go_by_trees(id, may) {
            for port in ports.0.iter_mut().flatten() {
                port.peer.subscriber().turned(id, memory);
            }
        }
    }

    /// What a shard does beside for what a worker has submitted.
    pub(super) fn heed(&mut self, rank: Rank, shard: usize, submission: &Submission) -> Result<(), Failure> {
        if self.trees.is_none() {
            return Ok(());
        }
        match *submission {
            Submission::Fetch { tensor, state: false, .. }
                if self.servers[shard].memory.broadcasts(tensor) =>
            {
                self.look_who_asks(shard, tensor);
                Ok(())
            }
            Submission::Attached { epoch, stripes } => {
                self.see(Observation::Attached { shard, rank, epoch, stripes: stripes.0 })
            }
            Submission::Strayed { epoch, stripes, parent } => {
                let blame = self.servers[shard].ports.0[rank as usize].as_mut();
                let blame = blame.and_then(|port| port.peer.subscriber().take_blame());
                let (delay, server) = (self.delay(), self.server_of(shard));
                match blame {
                    Some(NOBODY) => self.later(20 * delay, Event::RouteAgain(rank, shard)),
                    Some(parent) => self.later(delay, Event::Blame(server, rank, parent)),
                    None => {}
                }
                self.see(Observation::Strayed { shard, rank, epoch, stripes: stripes.0, parent })
            }
            _ => Ok(()),
        }
    }

    /// A worker that has left a parent by nobody's fault is told of its route again: so often, that a job comes to an end.
    pub(super) fn route_again(&mut self, rank: Rank, shard: usize) -> Result<(), Failure> {
        let Some(Grove { tending, .. }) = &mut self.trees else { return Ok(()) };
        let again = &mut tending[rank as usize][shard].again;
        *again += 1;
        if *again > ROUTES_AGAIN {
            return Ok(());
        }
        self.tell_route(rank, shard)?;
        self.answer_all(shard)
    }

    // A worker's proxy

    /// Before a proxy looks: what its connections to others have, it finds out by reading.
    pub(super) fn poll_others(&mut self, rank: Rank, shard: usize) {
        if self.trees.is_some() {
            let proxy = &mut self.proxies[rank as usize][shard].shard;
            proxy.links().for_each(|(link, _)| _ = link.poll());
            proxy.links_ready();
        }
    }

    /// Has parents dialed that the shard has named, and leaves those that are late.
    pub(super) fn see_to_others(&mut self, rank: Rank, shard: usize) -> Result<(), Failure> {
        let never = self.scenario.sabotage == Some(Sabotage::LosesWhatIsPassedOn);
        let Some(Grove { plan, tending, .. }) = &mut self.trees else { return Ok(()) };
        let (now, plan) = (self.now, *plan);
        let proxy = &mut self.proxies[rank as usize][shard].shard;
        let tending = &mut tending[rank as usize][shard];
        let awaits = proxy.link().is_some() && !never;
        if awaits && now >= tending.next && proxy.awaits() {
            tending.next = now + plan.look_every();
            proxy.tick(plan.long(now));
        }
        let (left, wishes) = (proxy.take_left(), proxy.take_wishes());
        for wish in &wishes {
            tending.wished.retain(|before| before.stripes.and(wish.stripes).is_empty());
            tending.wished.push(wish.clone());
        }
        if awaits && proxy.awaits() && !std::mem::replace(&mut tending.woken, true) {
            let at = tending.next.max(now + 1);
            self.at(at, Event::Tick(rank, shard));
        }
        for Left { parent, what } in left {
            self.see(Observation::Left { rank, shard, parent, why: &what })?;
        }
        for wish in wishes {
            let delay = self.delay();
            self.later(delay, Event::Dial(rank, shard, wish));
        }
        Ok(())
    }

    /// A proxy looks whether something is late.
    pub(super) fn tick(&mut self, rank: Rank, shard: usize) -> Result<(), Failure> {
        if let Some(Grove { tending, .. }) = &mut self.trees {
            tending[rank as usize][shard].woken = false;
        }
        self.look_again(rank, shard)
    }

    fn look_again(&mut self, rank: Rank, shard: usize) -> Result<(), Failure> {
        if self.workers[rank as usize].has_ended() {
            return Ok(());
        }
        self.look_soon(rank, shard, Way::Down)
    }

    /// A worker's proxies look at nothing from now on.
    pub(super) fn hang(&mut self, rank: Rank) -> Result<(), Failure> {
        if self.workers[rank as usize].has_ended() || !self.is_remote(rank) {
            return Ok(());
        }
        self.see(Observation::Hung { rank })
    }

    /// They look again.
    pub(super) fn rouse_proxies(&mut self, rank: Rank) -> Result<(), Failure> {
        (0..self.servers.len()).try_for_each(|shard| self.look_again(rank, shard))
    }

    pub(super) fn hangs(&self, rank: Rank) -> bool {
        self.trees.as_ref().is_some_and(|Grove { plan, .. }| plan.hangs(rank, self.now).is_some())
    }

    // Connections between workers

    /// A worker dials another.
    pub(super) fn dial(&mut self, rank: Rank, shard: usize, wish: Wish) -> Result<(), Failure> {
        let parent = wish.parent.rank;
        let gone = self.workers[parent as usize].has_ended();
        let Some(Grove { plan, tending, .. }) = &self.trees else { return Ok(()) };
        // A newer wish for the same has taken its place.
        let wished = tending[rank as usize][shard].wished.contains(&wish);
        let plan = *plan;
        if !wished || self.workers[rank as usize].has_ended() {
            return Ok(());
        }
        let unlucky = self.rng.once_in(plan.unlucky_once_in);
        let delay = self.delay();
        if gone || unlucky {
            // Nobody answers, or somebody says that there is nobody.
            let delay = if unlucky { delay } else { delay * self.rng.pick(&[1, LEASE]) };
            self.later(delay, Event::Dialed(rank, shard, wish, None));
            return Ok(());
        }
        let number = self.trees.as_ref().map_or(0, |grove| grove.branches.len());
        let wire: Rc<RefCell<Wire>> = Rc::default();
        wire.borrow_mut().connect();
        let line = Line::Branch { number, child: rank, parent };
        let [up, down] = [Way::Up, Way::Down].map(|out| {
            let rng = Rng::new(self.rng.word());
            Socket::new(&wire, &self.air, &self.scenario.faults, line, out, rng, None)
        });
        let down = down.lying(self.liar(parent, shard));
        let branch = Branch { wire, child: rank, parent, shard, held: Some(up) };
        if let Some(grove) = &mut self.trees {
            grove.branches.push(branch);
        }
        self.proxies[parent as usize][shard].shard.child_came(rank, (wish.striping, wish.stripes), down);
        self.later(delay, Event::Dialed(rank, shard, wish, Some(number)));
        self.closed();
        self.look_again(parent, shard)
    }

    /// How a worker lies to one that it feeds, if it does.
    fn liar(&mut self, rank: Rank, shard: usize) -> Option<Liar> {
        let Some(Grove { plan, rng, .. }) = &mut self.trees else { return None };
        let (lies, rng) = (plan.lies_once_in[rank as usize], Rng::new(rng.word()));
        match self.scenario.sabotage {
            Some(Sabotage::LosesWhatIsPassedOn) => Some(Liar::withholding(8, rng)),
            Some(Sabotage::BelievesAnySeal) => Some(Liar::sealing(4, rng, self.sealer(shard))),
            _ => (lies > 0).then(|| Liar::new(lies, rng)),
        }
    }

    /// A worker hears what came of a dial.
    pub(super) fn dialed(
        &mut self,
        rank: Rank,
        shard: usize,
        wish: &Wish,
        branch: Option<usize>,
    ) -> Result<(), Failure> {
        let ended = self.workers[rank as usize].has_ended();
        let Some(Grove { branches, tending, .. }) = &mut self.trees else { return Ok(()) };
        let held = branch.map(|number| branches[number].held.take().ok_or_else(|| unreached("it is gone")));
        let link = held.unwrap_or_else(|| Err(unreached("nobody is there")));
        let wished = &mut tending[rank as usize][shard].wished;
        let asked = |other: &Wish| {
            (other.epoch, other.parent.rank, other.stripes) == (wish.epoch, wish.parent.rank, wish.stripes)
        };
        if let Some(at) = wished.iter().position(asked).filter(|_| !ended) {
            let wish = wished.swap_remove(at);
            self.proxies[rank as usize][shard].shard.parent_came(&wish, link);
        } else {
            drop(link);
        }
        self.closed();
        self.look_again(rank, shard)
    }

    /// Something has come on a connection between workers, to the end that reads this way: bytes, or that it is over.
    pub(super) fn branch_news(&mut self, number: usize, way: Way) -> Result<(), Failure> {
        let Some(Grove { branches, .. }) = &self.trees else { return Ok(()) };
        let branch = &branches[number];
        if !branch.wire.borrow().is_read(way) || branch.held.is_some() && way == Way::Down {
            return Ok(());
        }
        self.look_again(branch.reader(way), branch.shard)
    }

    /// What was written between workers is under way.
    pub(super) fn passed_on(&mut self, number: usize, way: Way, arrives: [Option<u64>; 2]) {
        for due in arrives.into_iter().flatten() {
            self.at(due, Event::Branch(number, way));
        }
        let Some(Grove { plan, rng, branches, .. }) = &mut self.trees else { return };
        let mut wire = branches[number].wire.borrow_mut();
        if wire.doomed || !rng.once_in(plan.cut_once_in) {
            return;
        }
        wire.doomed = true;
        drop(wire);
        let how = rng.pick(&[Break::Cut, Break::Cut, Break::Silent(Way::Up), Break::Silent(Way::Down)]);
        let delay = rng.within(0..=2 * self.scenario.faults.delay);
        self.later(delay, Event::BreakBranch(number, how));
    }

    /// A connection between workers breaks. Both ends hear so, or none.
    pub(super) fn break_branch(&mut self, number: usize, how: Break) -> Result<(), Failure> {
        let Some(Grove { branches, .. }) = &self.trees else { return Ok(()) };
        let Branch { wire, child, parent, shard, .. } = &branches[number];
        let (rank, parent, shard) = (*child, *parent, *shard);
        wire.borrow_mut().shatter(how, self.now, &mut self.rng);
        let how = match how {
            Break::Cut => {
                for way in [Way::Up, Way::Down] {
                    let delay = self.delay();
                    self.later(delay, Event::Branch(number, way));
                }
                "cut"
            }
            Break::Silent(Way::Up) => "silent up",
            Break::Silent(Way::Down) => "silent down",
        };
        self.see(Observation::Severed { rank, parent, shard, how })
    }

    /// The other ends of connections that were closed hear so, once what came before has come.
    pub(super) fn closed(&mut self) {
        for (number, way) in self.air.closed.take() {
            let delay = self.delay();
            self.later(delay, Event::Branch(number, way));
        }
    }

    /// What liars have passed on.
    pub(super) fn lied(&mut self) -> Result<(), Failure> {
        for (rank, child, lie) in self.air.lies.take() {
            self.see(Observation::Lied { rank, child, how: lie.word() })?;
        }
        Ok(())
    }

    /// A worker is gone, and its connections to others with it: they are closed, or nobody says anything any more.
    pub(super) fn uproot(&mut self, rank: Rank, dies: bool) {
        let quietly = dies && self.trees.is_some() && self.rng.once_in(2);
        let Some(Grove { branches, rng, .. }) = &mut self.trees else { return };
        let mut closed = Vec::new();
        for (number, branch) in branches.iter().enumerate() {
            let mut wire = branch.wire.borrow_mut();
            for out in [Way::Up, Way::Down] {
                if branch.reader(out.back()) != rank || !wire.is_read(out.back()) {
                    continue;
                }
                if dies {
                    wire.shatter(Break::Silent(out), self.now, rng);
                }
                if quietly {
                    // The other end may write on, and nobody reads.
                    continue;
                }
                match out {
                    Way::Up => wire.close_at_worker(),
                    Way::Down => wire.close_at_shard(),
                }
                closed.push((number, out));
            }
        }
        self.air.closed.borrow_mut().extend(closed);
        self.closed();
    }

    /// Wakes proxies that wait for room on connections to others.
    pub(super) fn rouse_others(&mut self, rank: Rank, shard: usize) {
        let Some(Grove { branches, .. }) = &self.trees else { return };
        let writes = |of: Rank| {
            let links = self.proxies[of as usize][shard].shard.links();
            links.filter(|(_, interest)| interest.write).any(|(link, _)| link.poll().1)
        };
        let parents = branches.iter().filter(|branch| (branch.child, branch.shard) == (rank, shard));
        let mut wake: Vec<Rank> = parents.map(|branch| branch.parent).chain([rank]).collect();
        wake.sort_unstable();
        wake.dedup();
        wake.retain(|&of| !self.workers[of as usize].has_ended() && !self.hangs(of) && writes(of));
        wake.into_iter().for_each(|of| self.look_later(of, shard, Way::Down));
    }
}

impl Scenario {
    /// Whose values a shard seals.
    fn scope(&self, shard: usize) -> Scope {
        let shards = self.topology.shards;
        Scope { job: JOB, server: shard as u32 / shards, shard: shard as u32 % shards }
    }
}

/// How often a worker is told of its route again by one shard, at most.
const ROUTES_AGAIN: u32 = 4;

fn unreached(why: &str) -> Unreached {
    Unreached { why: why.to_owned(), is_its: true }
}
