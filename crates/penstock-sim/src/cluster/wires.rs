//! Connections: made, broken, unnoticed at first, given up, and made again; and what a worker says to the shards over them. What their
//! ends do when they look is [`super::looks`]'s.

use super::requests::Records;
use super::{Cluster, Event, Failure, LEASE};
use crate::encodings;
use crate::history::Observation;
use crate::remote::Proxy;
use crate::rng::Rng;
use crate::sabotage::Sabotage;
use crate::socket::{Broken, Line, Sent, Socket};
use crate::transport::{Break, Way, Wire};
use penstock_proto::submission::Submission;
use penstock_proto::{Rank, TensorId};
use std::cell::RefMut;

/// The job's number in frames.
pub(super) const JOB: u64 = 0x0070_656e_7374_6f63;
/// So many breaks of one wire, and they become as many times rarer: what is sent whole on no connection would never come.
const USUAL_BREAKS: u64 = 8;

impl<'a> Cluster<'a> {
    /// A worker's connections to a shard, or to the control thread.
    pub(super) fn wire(&self, rank: Rank, shard: usize) -> RefMut<'_, Wire> {
        self.wires[rank as usize][shard].borrow_mut()
    }

    // Connections

    /// Something was sent: it may be among the last.
    fn tempt(&mut self, rank: Rank, shard: usize) {
        if self.is_planned(shard) {
            return;
        }
        let Wire { number, doomed, .. } = *self.wire(rank, shard);
        let once_in = self.scenario.faults.cut_once_in * (1 + number / USUAL_BREAKS);
        if doomed || !self.rng.once_in(once_in) {
            return;
        }
        self.wire(rank, shard).doomed = true;
        let how = self.rng.pick(&[Break::Cut, Break::Cut, Break::Silent(Way::Up), Break::Silent(Way::Down)]);
        let delay = self.rng.within(0..=2 * self.scenario.faults.delay);
        self.later(delay, Event::Break { rank, shard, number, how });
    }

    /// Whether leases decide what breaks connections there, and which end notices it.
    pub(super) fn is_planned(&self, shard: usize) -> bool {
        self.watch.is_some() && shard == self.control()
    }

    /// Whether this is about the present connection, and the worker still cares about it.
    fn minds(&self, rank: Rank, shard: usize, number: u64) -> bool {
        self.wire(rank, shard).number == number && !self.workers[rank as usize].has_ended()
    }

    pub(super) fn break_wire(
        &mut self,
        rank: Rank,
        shard: usize,
        number: u64,
        how: Break,
    ) -> Result<(), Failure> {
        if !self.minds(rank, shard, number) {
            return Ok(());
        }
        self.wires[rank as usize][shard].borrow_mut().shatter(how, self.now, &mut self.rng);
        // An end that hears nothing for half a lease gives the connection up.
        let silence = LEASE / 2 * self.scenario.faults.delay;
        let (how, at_worker, at_shard) = match how {
            Break::Cut => {
                let (one, other) = (self.delay(), self.delay());
                ("cut", Some(one), self.rng.once_in(2).then_some(other))
            }
            // The end that hears nothing gives the connection up, and the other then hears that it has ended.
            Break::Silent(Way::Up) => ("silent up", None, Some(silence)),
            Break::Silent(Way::Down) => {
                ("silent down", Some(silence), self.rng.once_in(4).then_some(silence))
            }
        };
        let scripted = !self.is_planned(shard);
        if let Some(delay) = at_worker.filter(|_| scripted) {
            self.later(delay, Event::GiveUp { rank, shard, number });
        }
        if let Some(delay) = at_shard.filter(|_| scripted) {
            self.later(delay, Event::Drop { rank, shard, number });
        }
        self.see(Observation::Cut { rank, shard, how })
    }

    /// The shard gives a connection up, and closes it.
    pub(super) fn drop_wire(&mut self, rank: Rank, shard: usize, number: u64) {
        let mut wire = self.wire(rank, shard);
        if wire.number != number || !wire.at_shard {
            return;
        }
        wire.close_at_shard();
        drop(wire);
        if shard == self.control() {
            self.desk.greeted.remove(&rank);
        } else if let Some(port) = &mut self.servers[shard].ports.0[rank as usize] {
            port.peer.detach();
        }
        let delay = self.delay();
        self.later(delay, Event::GiveUp { rank, shard, number });
    }

    /// The worker gives a connection up, and makes another.
    pub(super) fn give_up(&mut self, rank: Rank, shard: usize, number: u64) {
        let mut wire = self.wire(rank, shard);
        if wire.number == number && wire.at_worker {
            wire.close_at_worker();
            drop(wire);
            if shard != self.control() {
                self.proxies[rank as usize][shard].shard.detach();
                self.closed();
            }
            let delay = self.delay();
            self.later(delay, Event::Connect { rank, shard, number });
        }
    }

    /// A new connection stands. The shard may not have noticed that the old one has ended.
    pub(super) fn connect(&mut self, rank: Rank, shard: usize, number: u64) -> Result<(), Failure> {
        if !self.minds(rank, shard, number) {
            return Ok(());
        }
        if shard == self.control() {
            self.wire(rank, shard).connect();
            self.records[rank as usize] = Records::new(&mut self.rng);
            self.watch_server(rank);
            self.introduce(rank);
            return self.see(Observation::Connected { rank, shard, taken: 0, submitted: 0 });
        }
        if self.servers[shard].ports.0[rank as usize].is_none() {
            return Ok(());
        }
        self.wire(rank, shard).connect();
        self.looks[rank as usize][shard] = [false; 2];
        let [up, down] = [Way::Up, Way::Down].map(|out| self.socket(rank, shard, out));
        if let Some(port) = &mut self.servers[shard].ports.0[rank as usize] {
            port.attach(down);
        }
        self.tell_route(rank, shard)?;
        let proxy = &mut self.proxies[rank as usize][shard].shard;
        proxy.attach(up);
        let (taken, submitted) = proxy.progress();
        self.see(Observation::Connected { rank, shard, taken, submitted })?;
        self.look_soon(rank, shard, Way::Up)?;
        self.look_soon(rank, shard, Way::Down)
    }

    /// An end of a connection that stands.
    pub(super) fn socket(&mut self, rank: Rank, shard: usize, out: Way) -> Socket<'a> {
        let broken = match (self.scenario.sabotage, out) {
            (Some(Sabotage::LosesNotices), Way::Down) => Some(Broken::LosesValues(4)),
            (Some(Sabotage::DropsWhatItHasRead), Way::Up) => Some(Broken::LosesTheEnd(4)),
            _ => None,
        };
        let (wire, rng) = (&self.wires[rank as usize][shard], Rng::new(self.rng.word()));
        let line = Line::Shard { rank, shard };
        Socket::new(wire, &self.air, &self.scenario.faults, line, out, rng, broken)
    }

    /// When what goes out now would arrive.
    pub(super) fn due(&mut self, rank: Rank) -> u64 {
        self.now + self.delay() * self.scenario.faults.slow[rank as usize]
    }

    /// Something has gone out, and arrives then, if ever.
    pub(super) fn left(&mut self, rank: Rank, shard: usize, way: Way, arrives: [Option<u64>; 2]) {
        let number = self.wire(rank, shard).number;
        for due in arrives.into_iter().flatten() {
            self.at(due, Event::Arrive { rank, shard, number, way });
        }
        if self.is_remote(rank) {
            self.tempt(rank, shard);
        }
    }

    /// What was written to sockets is under way.
    pub(super) fn sent(&mut self) {
        for Sent { line, way, arrives } in self.air.sent.take() {
            match line {
                Line::Shard { rank, shard } => self.left(rank, shard, way, arrives),
                Line::Branch { number, .. } => self.passed_on(number, way, arrives),
            }
        }
        self.closed();
    }

    pub(super) fn breaks(&mut self, sabotage: Sabotage, once_in: u64) -> bool {
        self.scenario.sabotage == Some(sabotage) && self.rng.once_in(once_in)
    }

    // The worker's end

    /// Hands a submission to the proxy.
    pub(super) fn say(&mut self, rank: Rank, shard: usize, submission: Submission) -> Result<(), Failure> {
        let proxy = &mut self.proxies[rank as usize][shard];
        proxy.shard.submitter().ring.push_back(submission);
        proxy.left |= matches!(submission, Submission::Leave);
        let asked = match submission {
            Submission::Fetch { tensor, state, version, ticket } => {
                Some((tensor, ticket, version, state, 0..u32::MAX))
            }
            Submission::FetchChunks { tensor, first, count, version, ticket } => {
                Some((tensor, ticket, version, false, first..first + count))
            }
            _ => None,
        };
        if let Some((tensor, ticket, version, state, range)) = asked {
            let homed = self.maps[tensor as usize].homes[shard].iter().copied();
            let chunks: &[u32] = &homed.filter(|chunk| range.contains(chunk)).collect::<Vec<_>>();
            let some = matches!(submission, Submission::FetchChunks { .. });
            self.see(Observation::Asked { rank, shard, tensor, ticket, version, state, some, chunks })?;
            if self.scenario.sabotage == Some(Sabotage::ReturnsTicketsTooEarly) {
                self.proxies[rank as usize][shard].return_ticket(tensor, ticket);
            }
        }
        self.look_soon(rank, shard, Way::Down)
    }

    /// A shard does what none does.
    pub(super) fn broke(&self, rank: Rank, shard: usize, what: &dyn std::fmt::Display) -> Failure {
        let what = format!("shard {shard} broke the protocol to worker {rank}: {what}");
        Failure::Broke { at: self.now, what }
    }

    /// An end finds out that a connection has ended, or that bytes came damaged: it gives the connection up.
    pub(super) fn lose_wire(
        &mut self,
        rank: Rank,
        shard: usize,
        number: u64,
        way: Way,
    ) -> Result<(), Failure> {
        let port = self.servers.get(shard).and_then(|server| server.ports.0[rank as usize].as_ref());
        let proxy = self.proxies[rank as usize].get(shard);
        let kept = match way {
            Way::Up => port.is_some_and(|port| port.peer.link().is_some()),
            Way::Down => proxy.is_some_and(|proxy| proxy.shard.link().is_some()),
        };
        if kept {
            let what =
                format!("the connection of worker {rank} to shard {shard} has ended, and was not given up");
            return Err(Failure::Broke { at: self.now, what });
        }
        let wire = self.wire(rank, shard);
        let (told, damaged) = (wire.is_over(way), wire.damaged);
        drop(wire);
        match way {
            Way::Up => self.drop_wire(rank, shard, number),
            Way::Down => self.give_up(rank, shard, number),
        }
        if told {
            return Ok(());
        }
        if !damaged {
            let what =
                format!("bytes between worker {rank} and shard {shard} are read as others than were sent");
            return Err(Failure::Broke { at: self.now, what });
        }
        self.see(Observation::Cut { rank, shard, how: "damaged" })
    }

    /// Fetches made for `rank` at each shard that is home of some of the tensor.
    pub(super) fn ask(
        &mut self,
        rank: Rank,
        tensor: TensorId,
        fetch: impl Fn(&mut Proxy<'a>) -> Option<Submission>,
    ) -> Result<(), Failure> {
        for shard in 0..self.servers.len() {
            if let Some(submission) = fetch(&mut self.proxies[rank as usize][shard]) {
                debug_assert!(!self.maps[tensor as usize].homes[shard].is_empty());
                self.say(rank, shard, submission)?;
            }
        }
        Ok(())
    }

    /// The declaration stands everywhere: mirrors are made.
    pub(super) fn mirror(&mut self, rank: Rank, tensor: TensorId) {
        let at_mirrors = self.scenario.sabotage.filter(|sabotage| sabotage.is_at_mirrors());
        let keeps_factor = self.scenario.sabotage == Some(Sabotage::SendsTheLastFactor);
        let (map, spec) = (&self.maps[tensor as usize], self.workload.spec(tensor));
        let terms = encodings::terms(spec, &encodings::KNOWN);
        for (proxy, homed) in self.proxies[rank as usize].iter_mut().zip(&map.homes) {
            if !homed.is_empty() {
                let broken = at_mirrors.map(|sabotage| (sabotage, Rng::new(self.rng.word())));
                proxy.declare(tensor, spec, &terms, (map.cut, homed), broken, keeps_factor);
            }
        }
    }

    /// A push asks for its result.
    pub(super) fn want(
        &mut self,
        rank: Rank,
        tensor: TensorId,
        stamp: u64,
        whole: bool,
    ) -> Result<(), Failure> {
        let consistency = self.workload.spec(tensor).consistency;
        for shard in 0..self.servers.len() {
            let proxy = &mut self.proxies[rank as usize][shard];
            if let Some(version) = proxy.ask_for_result(tensor, stamp, whole, consistency) {
                self.see(Observation::Wanted { rank, shard, tensor, version })?;
            }
        }
        Ok(())
    }
}
