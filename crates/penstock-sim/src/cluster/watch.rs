//! Leases, while pushes and folds go on: the control thread watches the workers, and each on another host its connection to it.
//!
//! The product's own machines say which process is late, and when: [`Lease`], [`Lived`] and [`Vigil`]. What stands around them is
//! written once more (the control thread's look at leases, and a worker's loop on its link). The server is never suspended here,
//! and of connections to shards it is still the scenario that says when their ends notice: [`crate::leases`] has the rule alone,
//! with all of that. What must hold of it, [`Losses`] judges.

use super::{Cluster, Event, Failure};
use crate::checkers::losses::Losses;
use crate::control::beat_of;
use crate::faults::Leases;
use crate::history::Observation;
use crate::sabotage::Sabotage;
use crate::transport::{Break, Way, Wire};
use crate::worker::State;
use penstock_proto::Rank;
use penstock_proto::error::Loss;
use penstock_proto::membership::{Lease, Lived, Member};
use penstock_proto::vigil::{self, Vigil};

/// What the control thread keeps of a worker.
#[derive(Debug, Default)]
struct Watched {
    /// Since it has joined.
    lease: Option<Lease>,
    /// What came of it.
    signs: u64,
    /// Whether it was said to be lost.
    lost: bool,
}

/// A worker's end of its connection to the control thread.
#[derive(Debug)]
struct Own {
    vigil: Vigil,
    lived: Lived,
    /// What came from the server, and how much of it was signs of life that it answered.
    heard: u64,
    answered: u64,
}

/// Which process watches which.
#[derive(Debug)]
pub(super) struct Watch<'a> {
    plan: &'a Leases,
    /// Of the server's process.
    lived: Lived,
    watched: Vec<Watched>,
    /// Of workers on other hosts, once they have had a connection.
    own: Vec<Option<Own>>,
    losses: Losses<'a>,
}

impl<'a> Watch<'a> {
    pub(super) fn new(plan: &'a Leases) -> Self {
        let workers = plan.suspended.len();
        Self {
            plan,
            lived: vigil::lived(plan.lease, 0),
            watched: (0..workers).map(|_| Watched::default()).collect(),
            own: (0..workers).map(|_| None).collect(),
            losses: Losses::new(plan),
        }
    }
}

impl Cluster<'_> {
    pub(super) fn begin_watch(&mut self) {
        let Some(Watch { plan, .. }) = self.watch else { return };
        for (rank, range) in (0..).zip(&plan.suspended) {
            if let Some(range) = range {
                self.at(range.end, Event::Resume(rank));
            }
            for &(at, way) in &plan.falls_silent[rank as usize] {
                self.at(at, Event::FallSilent(rank, way));
            }
            self.later(1, Event::Beat(rank));
        }
        self.later(1, Event::Look);
    }

    /// Until when a worker is suspended, if it is.
    pub(super) fn suspended(&self, rank: Rank) -> Option<u64> {
        let range = self.watch.as_ref()?.plan.suspended[rank as usize].as_ref()?;
        range.contains(&self.now).then_some(range.end)
    }

    /// What happens in a worker's process happens when that runs.
    pub(super) fn put_off(&self, event: &Event) -> Option<u64> {
        match *event {
            Event::Step(rank)
            | Event::Wake(rank)
            | Event::Arrive { rank, way: Way::Down, .. }
            | Event::Read { rank, way: Way::Down, .. }
            | Event::GiveUp { rank, .. }
            | Event::Connect { rank, .. }
            | Event::End(rank)
            | Event::Alarm(rank, _)
            | Event::Beat(rank)
            | Event::Outlived(rank)
            | Event::Dialed(rank, ..)
            | Event::Tick(rank, _) => self.suspended(rank),
            _ => None,
        }
    }

    /// A worker runs again: what it had to say goes out.
    pub(super) fn resume_process(&mut self, rank: Rank) -> Result<(), Failure> {
        if self.workers[rank as usize].has_ended() {
            return Ok(());
        }
        (0..self.servers.len()).try_for_each(|shard| self.look_soon(rank, shard, Way::Down))
    }

    /// The connection that a worker then has to the control thread falls silent one way, and neither end is told.
    pub(super) fn fall_silent(&mut self, rank: Rank, way: Way) -> Result<(), Failure> {
        let number = self.wire(rank, self.control()).number;
        self.break_wire(rank, self.control(), number, Break::Silent(way))
    }

    // The worker's end

    /// A connection to the control thread stands.
    pub(super) fn watch_server(&mut self, rank: Rank) {
        let (now, Some(Watch { plan, own, .. })) = (self.now, &mut self.watch) else { return };
        let lease = plan.lease;
        let own = own[rank as usize].get_or_insert_with(|| {
            let (vigil, lived) = (Vigil::new(lease), vigil::lived(lease, now));
            Own { vigil, lived, heard: 0, answered: 0 }
        });
        let clock = own.lived.until(now);
        own.vigil.connected(clock);
    }

    /// Something came from the control thread, perhaps the answer to a sign of life.
    pub(super) fn server_spoke(&mut self, rank: Rank, alive: bool) {
        let deaf = self.scenario.sabotage == Some(Sabotage::IsDeaf);
        if let Some(Watch { own, .. }) = &mut self.watch
            && let Some(own) = own[rank as usize].as_mut().filter(|_| !deaf)
        {
            own.heard += 1;
            own.answered += u64::from(alive);
        }
    }

    /// A worker shows that it lives: on its page, or on its connection, at which it looks.
    pub(super) fn beat(&mut self, rank: Rank) -> Result<(), Failure> {
        let Some(Watch { plan, .. }) = self.watch else { return Ok(()) };
        if self.workers[rank as usize].has_ended() {
            return Ok(());
        }
        let next = self.rng.within(1..=vigil::look_every(plan.lease));
        self.later(next, Event::Beat(rank));
        if !self.is_remote(rank) {
            self.gave_sign(rank);
            return Ok(());
        }
        let (now, control) = (self.now, self.control());
        let keeps = self.scenario.sabotage == Some(Sabotage::KeepsSilentConnections);
        let Some(Watch { own, losses, .. }) = &mut self.watch else { return Ok(()) };
        let Some(Own { vigil, lived, heard, answered }) = &mut own[rank as usize] else { return Ok(()) };
        let clock = lived.until(now);
        if vigil.is_gone(*heard, clock) {
            losses.server_lost(rank).map_err(|what| broken(now, what))?;
        }
        let Wire { number, at_worker, .. } = *self.wires[rank as usize][control].borrow();
        if !at_worker {
            return Ok(());
        }
        if vigil.is_silent(*answered, clock) && !keeps {
            self.give_up(rank, control, number);
        } else if vigil.is_time_to_beat(clock) {
            let beat = beat_of(&self.links[rank as usize].requests);
            self.post_record(rank, Way::Up, &beat);
        }
        Ok(())
    }

    /// A worker has heard that it was lost.
    pub(super) fn outlived(&mut self, rank: Rank) -> Result<(), Failure> {
        if self.workers[rank as usize].has_ended() {
            return Ok(());
        }
        self.workers[rank as usize].state = State::Lost;
        self.links[rank as usize].requests.close();
        self.wires[rank as usize].iter().for_each(|wire| wire.borrow_mut().close_at_worker());
        self.uproot(rank, false);
        self.see(Observation::Ended { rank, how: "lost" })
    }

    // The server's end

    /// The control thread has taken a worker in.
    pub(super) fn begin_lease(&mut self, rank: Rank) {
        let (now, sabotage) = (self.now, self.scenario.sabotage);
        let Some(Watch { plan, lived, watched, losses, .. }) = &mut self.watch else { return };
        losses.joined(rank);
        // One that is impatient believes that the lease is shorter.
        let lease = if sabotage == Some(Sabotage::IsImpatient) { plan.lease / 4 } else { plan.lease };
        watched[rank as usize].lease = Some(Lease::new(lease, lived.until(now)));
    }

    /// A sign of life of a worker came to where the control thread finds it.
    pub(super) fn gave_sign(&mut self, rank: Rank) {
        let now = self.now;
        if let Some(Watch { watched, losses, .. }) = &mut self.watch {
            watched[rank as usize].signs += 1;
            losses.sign(rank, now);
        }
    }

    /// Whether leases decide what becomes of a worker that falls silent.
    pub(super) fn is_watched(&self, rank: Rank) -> bool {
        self.watch.is_some() && self.desk.roster.of(rank) == Member::Joined
    }

    pub(super) fn is_said_lost(&self, rank: Rank) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.watched[rank as usize].lost)
    }

    /// The control thread looks at the leases.
    pub(super) fn look(&mut self) -> Result<(), Failure> {
        if self.failure.is_some() {
            return Ok(()); // those that are here hear that, and none is judged any more
        }
        let now = self.now;
        let joined: Vec<Rank> = self.desk.roster.joined().collect();
        let Some(Watch { plan, lived, watched, .. }) = &mut self.watch else { return Ok(()) };
        let (plan, clock) = (*plan, lived.until(now));
        let never = self.scenario.sabotage == Some(Sabotage::LosesNobody);
        let ends = |&rank: &Rank| {
            let Watched { lease, signs, .. } = &mut watched[rank as usize];
            lease.as_mut().is_some_and(|lease| lease.has_ended(*signs, clock) && !never)
        };
        let silent: Vec<Rank> = joined.iter().copied().filter(ends).collect();
        for rank in silent {
            self.lose_silent(rank)?;
        }
        self.judge(&joined).map_err(|what| broken(now, what))?;
        let goes_on = self.workers.iter().any(|worker| !worker.has_ended());
        if goes_on || self.desk.roster.joined().next().is_some() {
            let next = self.rng.within(1..=vigil::look_every(plan.lease));
            self.later(next, Event::Look);
        }
        Ok(())
    }

    /// By what the looks of the control thread have come to, for those that were in the job before.
    fn judge(&self, joined: &[Rank]) -> Result<(), String> {
        let Some(Watch { losses, .. }) = &self.watch else { return Ok(()) };
        joined
            .iter()
            .filter(|&&rank| self.is_watched(rank))
            .try_for_each(|&rank| losses.kept(rank, self.now))?;
        let waiting = |rank| self.servers.iter().position(|server| server.machine.clocks().is_live(rank));
        losses.are_heard_of(self.now, self.scenario.faults.delay, waiting)
    }

    fn lose_silent(&mut self, rank: Rank) -> Result<(), Failure> {
        let died = self.workers[rank as usize].is_lost();
        let (now, Some(Watch { plan, watched, losses, .. })) = (self.now, &mut self.watch) else {
            return Ok(());
        };
        let lease = plan.lease;
        watched[rank as usize].lost = true;
        losses.lost(rank, died, now).map_err(|what| broken(now, what))?;
        self.see(Observation::Lost { rank })?;
        self.lose(rank, &Loss::Silent { lease_ms: lease });
        match self.is_remote(rank) {
            // It hears so when it comes again.
            true => {
                let number = self.wire(rank, self.control()).number;
                self.drop_wire(rank, self.control(), number);
            }
            false => {
                let delay = self.delay();
                self.later(delay, Event::Outlived(rank));
            }
        }
        Ok(())
    }
}

fn broken(at: u64, what: String) -> Failure {
    Failure::Violation { checker: Losses::NAME, at, what }
}
