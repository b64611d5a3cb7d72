//! Leases: a server and its workers watch each other, processes are suspended and wake, die, and connections fall silent one way.
//!
//! The product's own machines say which process is late, and when: [`Vigil`], [`Lived`], [`Lease`], and [`Roster`] for which
//! worker is lost. Messages are a real job's, in records, on simulated wires. What stands around them is written once more: a
//! worker's loop on its link, and the server's turn. A tick is a millisecond.
//!
//! - A process that is said to be lost was silent for at least the lease, counting only time in which the watcher
//!   itself ran (M-2).
//! - A process that is silent for longer than the lease and two looks is said to be lost.
//! - No process is lost because one connection fell silent: it is made again.
//! - No worker that was lost contributes afterwards.

mod judge;
mod line;
mod sabotage;

pub use sabotage::Sabotage;

use crate::control::{self, HELLO, reply, request};
use crate::rng::Rng;
use crate::transport::Way;
use judge::{Life, Look, judge};
use line::Line;
use penstock_proto::Rank;
use penstock_proto::error::Refusal;
use penstock_proto::handshake::Session;
use penstock_proto::membership::{Lease, Lived, Member, Roster};
use penstock_proto::message::{Answer, Ask, Joining, PROTOCOL_VERSION, Reply, Request, Welcome, decode};
use penstock_proto::peer::PeerId;
use penstock_proto::vigil::{self, Vigil};
use std::fmt;
use std::ops::Range;

/// What happened, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Looks of a watcher at one that it watches.
    pub looks: u64,
    /// Workers that the server said were lost.
    pub workers_lost: u64,
    /// Workers that said that the server was lost.
    pub servers_lost: u64,
    /// Workers that were lost and came back, and were told so.
    pub refused: u64,
    /// Connections that were made again.
    pub again: u64,
    /// Suspensions of longer than the lease.
    pub suspensions: u64,
    /// Contributions that the server took.
    pub contributions: u64,
}

impl Tally {
    /// Adds what happened in another run.
    pub fn merge(&mut self, other: &Self) {
        self.looks += other.looks;
        self.workers_lost += other.workers_lost;
        self.servers_lost += other.servers_lost;
        self.refused += other.refused;
        self.again += other.again;
        self.suspensions += other.suspensions;
        self.contributions += other.contributions;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { looks, workers_lost, servers_lost, refused, again, suspensions, contributions } = self;
        write!(
            out,
            "{looks} looks, {workers_lost} workers and {servers_lost} servers lost, {refused} came back too late, {again} connections \
             made again, {suspensions} long suspensions, {contributions} contributions"
        )
    }
}

/// All that a seed decides.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The seed.
    pub seed: u64,
    /// The lease, in ticks.
    pub lease: u64,
    /// The server's process, then the workers'.
    pub processes: Vec<Plan>,
    /// A promise that is broken on purpose.
    pub sabotage: Option<Sabotage>,
}

/// One process.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Whether it is on another host than the server.
    pub remote: bool,
    /// When it is suspended.
    pub suspended: Vec<Range<u64>>,
    /// When it dies.
    pub dies: Option<u64>,
    /// When nothing passes between it and the server, up or down.
    pub outages: Vec<(Range<u64>, Way)>,
    /// When the connection that it then has falls silent.
    pub falls_silent: Vec<(u64, Way)>,
}

/// Leases that a run lasts.
const LONG: u64 = 16;

impl Scenario {
    /// The scenario of a seed.
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x1ea5e);
        let lease = rng.pick(&[64, 160, 400]);
        let workers = rng.within(1..=4);
        // In most runs few things go wrong: what comes of one is not to be hidden by another.
        let calm = rng.pick(&[2, 4, 8]);
        let mut plans: Vec<Plan> =
            (0..=workers).map(|number| Self::plan(&mut rng, lease, calm, number > 0)).collect();
        // A host is suspended with all that is on it.
        if rng.once_in(3) {
            let range = Self::some_time(&mut rng, lease);
            let here = plans.iter_mut().filter(|plan| !plan.remote);
            here.for_each(|plan| plan.suspended = vec![range.clone()]);
        }
        Self { seed, lease, processes: plans, sabotage: None }
    }

    fn some_time(rng: &mut Rng, lease: u64) -> Range<u64> {
        let start = rng.within(lease..=(LONG - 5) * lease);
        start..start + rng.within(1..=3 * lease)
    }

    fn plan(rng: &mut Rng, lease: u64, calm: u64, may_be_remote: bool) -> Plan {
        let mut plan = Plan { remote: may_be_remote && rng.once_in(2), ..Plan::default() };
        let way = |rng: &mut Rng| rng.pick(&[Way::Up, Way::Down]);
        if rng.once_in(calm) {
            plan.suspended.push(Self::some_time(rng, lease));
        }
        if rng.once_in(2 * calm) {
            plan.dies = Some(Self::some_time(rng, lease).start);
        }
        if plan.remote && rng.once_in(calm) {
            plan.outages.push((Self::some_time(rng, lease), way(rng)));
        }
        for _ in 0..if plan.remote { rng.within(0..=3) } else { 0 } {
            plan.falls_silent.push((Self::some_time(rng, lease).start, way(rng)));
        }
        plan
    }

    /// The same, with a promise broken.
    #[must_use]
    pub fn sabotaged(self, sabotage: Sabotage) -> Self {
        Self { sabotage: Some(sabotage), ..self }
    }

    /// Runs it: what happened, or what did not hold.
    pub fn check(&self) -> Result<Tally, String> {
        Run::new(self).run()
    }
}

/// The number of what stands for a contribution: a question that the server answers to no one.
const CONTRIBUTION: u64 = 1;

fn welcome(lease: u64) -> Answer {
    let (server, servers, shards, chunk_bytes, others) = (0, 1, 1, 4096, 1);
    Answer::Welcome(Welcome { server, servers, shards, chunk_bytes, lease_ms: lease, others, key: [0; 32] })
}

/// A process, as it runs.
struct Process<'a> {
    plan: &'a Plan,
    life: Life,
    lived: Lived,
    next_look: u64,
}

impl<'a> Process<'a> {
    fn new(plan: &'a Plan, lease: u64) -> Self {
        let life = Life { suspended: plan.suspended.clone(), ..Life::default() };
        Self { plan, life, lived: vigil::lived(lease, 0), next_look: 0 }
    }

    fn runs(&self, now: u64) -> bool {
        self.life.ended.is_none() && !self.plan.suspended.iter().any(|range| range.contains(&now))
    }

    /// The time by which it judges others.
    fn clock(&mut self, now: u64, sabotage: Option<Sabotage>) -> u64 {
        let lived = self.lived.until(now);
        if sabotage == Some(Sabotage::CountsSuspension) { now } else { lived }
    }
}

struct Worker<'a> {
    process: Process<'a>,
    vigil: Vigil,
    /// Its connections, of which the server has not read the end: the last may stand. What was sent on one that it has closed
    /// comes all the same.
    lines: Vec<Line>,
    /// What came from the server: messages, or beats on its flags that were seen.
    heard: u64,
    /// Signs of life that it has answered.
    answered: u64,
    /// Its own beats on its page.
    beats: u64,
    /// On this host: contributions in its ring.
    ring: u64,
    /// When something last came from the server, and from it to the server.
    from_server: u64,
    to_server: u64,
    /// When connections of it fell silent.
    broken: Vec<u64>,
}

impl Worker<'_> {
    /// The connection that stands.
    fn line(&mut self) -> Option<&mut Line> {
        self.lines.last_mut().filter(|line| line.stands())
    }

    fn has_news(&self, way: Way, now: u64) -> bool {
        self.lines.iter().any(|line| line.has_news(way, now))
    }
}

/// What the server keeps of a worker.
struct Watched {
    lease: Lease,
    signs: u64,
    said_lost: bool,
}

struct Run<'a> {
    scenario: &'a Scenario,
    rng: Rng,
    now: u64,
    server: Process<'a>,
    roster: Roster,
    watched: Vec<Watched>,
    /// Beats on the server's flags.
    beats: u64,
    workers: Vec<Worker<'a>>,
    tally: Tally,
}

impl<'a> Run<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let lease = scenario.lease;
        // One that is impatient believes that the lease is shorter.
        let judged = if scenario.sabotage == Some(Sabotage::IsImpatient) { lease / 2 } else { lease };
        let workers: Vec<Worker<'_>> = scenario.processes[1..]
            .iter()
            .map(|plan| Worker {
                process: Process::new(plan, lease),
                vigil: Vigil::new(judged),
                lines: Vec::new(),
                heard: 0,
                answered: 0,
                beats: 0,
                ring: 0,
                from_server: 0,
                to_server: 0,
                broken: Vec::new(),
            })
            .collect();
        let mut roster = Roster::new(workers.len() as u32);
        for rank in 0..roster.size() {
            roster.join(PeerId::worker(rank), workers.len() as u32).expect("each joins once");
        }
        let watched = workers
            .iter()
            .map(|_| Watched { lease: Lease::new(judged, 0), signs: 0, said_lost: false })
            .collect();
        let (rng, server) = (Rng::new(scenario.seed), Process::new(&scenario.processes[0], lease));
        let tally = Tally {
            suspensions: scenario
                .processes
                .iter()
                .flat_map(|plan| &plan.suspended)
                .filter(|range| range.end - range.start > lease)
                .count() as u64,
            ..Tally::default()
        };
        Self { scenario, rng, now: 0, server, roster, watched, beats: 0, workers, tally }
    }

    fn is(&self, sabotage: Sabotage) -> bool {
        self.scenario.sabotage == Some(sabotage)
    }

    fn run(mut self) -> Result<Tally, String> {
        for now in 0..LONG * self.scenario.lease {
            self.now = now;
            self.pass_time();
            let wakes = |run: &Self| {
                let has_come = |worker: &Worker<'_>| worker.ring > 0 || worker.has_news(Way::Up, now);
                now >= run.server.next_look || run.workers.iter().any(has_come)
            };
            if self.server.runs(now) && wakes(&self) {
                self.serve().map_err(|what| format!("tick {now}, the server: {what}"))?;
            }
            for rank in 0..self.workers.len() {
                let worker = &self.workers[rank];
                let has_come = worker.has_news(Way::Down, now);
                if worker.process.runs(now) && (now >= worker.process.next_look || has_come) {
                    self.work(rank).map_err(|what| format!("tick {now}, worker {rank}: {what}"))?;
                }
            }
        }
        Ok(self.tally)
    }

    /// Processes die and run, connections fall silent, and what is under way arrives.
    fn pass_time(&mut self) {
        let now = self.now;
        for process in
            std::iter::once(&mut self.server).chain(self.workers.iter_mut().map(|it| &mut it.process))
        {
            if process.plan.dies == Some(now) {
                process.life.ended.get_or_insert(now);
            }
            let runs = process.runs(now);
            process.life.passes(runs);
        }
        for worker in &mut self.workers {
            let falls_silent = &worker.process.plan.falls_silent;
            for &(at, way) in falls_silent.iter().filter(|(at, _)| *at == now) {
                if let Some(line) = worker.lines.last_mut().filter(|line| line.stands()) {
                    line.fall_silent(way, now, &mut self.rng);
                    worker.broken.push(at);
                }
            }
            if worker.lines.iter().any(|line| line.brings(Way::Up, now)) {
                worker.to_server = now;
            }
            if worker.lines.iter().any(|line| line.brings(Way::Down, now)) {
                worker.from_server = now;
            }
        }
    }

    /// When the network that passes nothing that way does so again, if it does not now.
    fn outage(&self, rank: usize, way: Way) -> Option<u64> {
        let mut outages = self.workers[rank].process.plan.outages.iter();
        let outage = outages.find(|(range, which)| *which == way && range.contains(&self.now));
        outage.map(|(range, _)| range.end)
    }

    /// A message goes out on a connection. What the network does not pass now is sent again when it does.
    fn post(&mut self, rank: usize, line: usize, way: Way, message: &[u8]) {
        let now = self.outage(rank, way).unwrap_or(self.now);
        let longest = self.scenario.lease / 16;
        self.workers[rank].lines[line].send(way, message, now, longest, &mut self.rng);
    }

    /// The same, on the connection that stands.
    fn say(&mut self, rank: usize, message: &[u8]) {
        if self.workers[rank].line().is_some() {
            self.post(rank, self.workers[rank].lines.len() - 1, Way::Up, message);
        }
    }

    /// The server's turn: it shows that it lives, takes what has come, and looks at leases.
    fn serve(&mut self) -> Result<(), String> {
        let (now, sabotage) = (self.now, self.scenario.sabotage);
        self.beats += 1;
        for worker in self.workers.iter_mut().filter(|worker| !worker.process.plan.remote) {
            worker.from_server = now;
        }
        for rank in 0..self.workers.len() {
            self.take(rank)?;
        }
        let clock = self.server.clock(now, sabotage);
        self.server.next_look = now + self.rng.within(1..=vigil::look_every(self.scenario.lease));
        for rank in 0..self.workers.len() {
            if self.roster.of(rank as Rank) == Member::Joined && !self.is(Sabotage::NeverJudges) {
                let Worker { process, beats, .. } = &self.workers[rank];
                let Watched { lease, signs, .. } = &mut self.watched[rank];
                let sign = if process.plan.remote { *signs } else { *beats };
                if lease.has_ended(sign, clock) {
                    self.roster.lose(rank as Rank);
                    // It hears so when it comes again.
                    self.workers[rank].lines.iter_mut().for_each(Line::close_at_server);
                }
            }
            if self.watched[rank].said_lost {
                continue;
            }
            let lost = self.roster.of(rank as Rank) == Member::Lost;
            self.watched[rank].said_lost = lost;
            self.tally.workers_lost += u64::from(lost);
            self.tally.looks += 1;
            let Worker { process, to_server, broken, .. } = &self.workers[rank];
            self.see(&self.server.life, &process.life, *to_server, rank, broken, lost)
                .map_err(|what| format!("worker {rank}: {what}"))?;
        }
        Ok(())
    }

    fn see(
        &self,
        watcher: &Life,
        watched: &Life,
        sign: u64,
        rank: usize,
        broken: &[u64],
        lost: bool,
    ) -> Result<(), String> {
        let outages: Vec<Range<u64>> =
            self.workers[rank].process.plan.outages.iter().map(|(range, _)| range.clone()).collect();
        let look = Look { watcher, watched, sign, outages: &outages, broken, lost, now: self.now };
        judge(self.scenario.lease, &look)
    }

    /// Takes what a worker has sent.
    fn take(&mut self, rank: usize) -> Result<(), String> {
        let mut contributions = std::mem::take(&mut self.workers[rank].ring);
        let mut at = 0;
        while let Some(line) = self.workers[rank].lines.get_mut(at) {
            match line.next(Way::Up, self.now) {
                Ok(Some(message)) => contributions += u64::from(self.hear(rank, at, &message)?),
                Ok(None) => at += 1,
                // Its end was read; the worker's may still have something to read.
                Err(_) if line.stands() => {
                    line.close_at_server();
                    at += 1;
                }
                Err(_) => _ = self.workers[rank].lines.remove(at),
            }
        }
        // A worker that was lost is not listened to.
        let listens = self.roster.of(rank as Rank) == Member::Joined || self.is(Sabotage::HearsTheLost);
        if contributions > 0 && listens {
            self.tally.contributions += contributions;
            if self.watched[rank].said_lost {
                return Err(format!("worker {rank} was lost, and contributes"));
            }
        }
        Ok(())
    }

    /// Hears what has come on a connection of a worker; whether it contributes.
    fn hear(&mut self, rank: usize, line: usize, message: &[u8]) -> Result<bool, String> {
        let Request { id, body, .. } = decode(message).map_err(|error| error.to_string())?;
        let is_here = self.roster.of(rank as Rank) == Member::Joined || self.is(Sabotage::HearsTheLost);
        if let Ask::Hello { peer, .. } = body {
            let rank_of = self.roster.admit(peer).map_err(|refusal| refusal.to_string())?;
            let answer = match is_here {
                true => welcome(self.scenario.lease),
                false => Answer::Refused(Refusal::RankTaken { rank: rank_of }),
            };
            self.workers[rank].lines[line].greeted = is_here;
            self.watched[rank].signs += u64::from(is_here);
            self.post(rank, line, Way::Down, &reply(id, answer));
            return Ok(false);
        }
        if !is_here || !self.workers[rank].lines[line].greeted {
            return Ok(false);
        }
        self.watched[rank].signs += 1;
        if body == Ask::Beat {
            self.post(rank, line, Way::Down, &reply(id, Answer::Alive));
        }
        Ok(id == CONTRIBUTION)
    }

    /// A worker's look: it hears what has come, judges the server, and shows that it lives.
    fn work(&mut self, rank: usize) -> Result<(), String> {
        let (now, lease, sabotage) = (self.now, self.scenario.lease, self.scenario.sabotage);
        let next = now + self.rng.within(1..=vigil::look_every(lease));
        let contributes = self.rng.once_in(2);
        let worker = &mut self.workers[rank];
        worker.process.next_look = next;
        let clock = worker.process.clock(now, sabotage);
        while let Some(line) = worker.line() {
            let message = match line.next(Way::Down, now) {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(_) => {
                    line.close_at_worker();
                    self.tally.again += 1;
                    break;
                }
            };
            let Reply { body, .. } = decode(&message).map_err(|error| error.to_string())?;
            worker.heard += 1;
            worker.answered += u64::from(body == Answer::Alive);
            if matches!(body, Answer::Refused(_)) {
                worker.process.life.ended = Some(now);
                self.tally.refused += 1;
                return Ok(());
            }
        }
        let remote = worker.process.plan.remote;
        let sign = if remote { worker.heard } else { self.beats };
        let lost = worker.vigil.is_gone(sign, clock);
        self.tally.looks += 1;
        let worker = &self.workers[rank];
        self.see(&worker.process.life, &self.server.life, worker.from_server, rank, &worker.broken, lost)
            .map_err(|what| format!("its server: {what}"))?;
        let worker = &mut self.workers[rank];
        if lost {
            self.tally.servers_lost += 1;
            worker.process.life.ended = Some(now);
            return Ok(());
        }
        if !remote {
            (worker.beats, worker.to_server) = (worker.beats + 1, now);
            worker.ring += u64::from(contributes);
            return Ok(());
        }
        let silent = worker.line().is_some() && worker.vigil.is_silent(worker.answered, clock);
        if silent
            && !self.is(Sabotage::KeepsSilentConnections)
            && let Some(line) = self.workers[rank].line()
        {
            line.close_at_worker();
            self.tally.again += 1;
        }
        if self.workers[rank].line().is_none() {
            // Both ends speak before a connection stands.
            let passes = [Way::Up, Way::Down].into_iter().all(|way| self.outage(rank, way).is_none());
            if !passes || !self.server.runs(now) {
                return Ok(());
            }
            self.workers[rank].lines.push(Line::new());
            self.workers[rank].vigil.connected(clock);
            let (session, size) = (Session::default(), self.workers.len() as u32);
            let peer = PeerId::worker(rank as Rank);
            let hello =
                Ask::Hello { version: PROTOCOL_VERSION, session, peer, size, overlay: Joining::default() };
            self.say(rank, &request(HELLO, hello));
        }
        if self.workers[rank].vigil.is_time_to_beat(clock) {
            self.say(rank, &control::beat());
        }
        if contributes {
            self.say(rank, &request(CONTRIBUTION, Ask::Clocks));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// M-2.
    #[test]
    fn nobody_is_lost_too_early_nor_too_late_nor_heard_afterwards() {
        let mut all = Tally::default();
        for seed in 0..3000 {
            let scenario = Scenario::from_seed(seed);
            let tally = scenario.check().unwrap_or_else(|what| panic!("seed {seed}: {what}\n{scenario:#?}"));
            all.merge(&tally);
        }
        // A simulation in which no worker was lost, came back or spoke proves nothing.
        let Tally { workers_lost, servers_lost, refused, again, suspensions, contributions, .. } = all;
        assert!(
            workers_lost > 500 && servers_lost > 500 && refused > 100 && again > 500 && suspensions > 500,
            "{all}"
        );
        assert!(contributions > 100_000, "{all}");
    }
}
