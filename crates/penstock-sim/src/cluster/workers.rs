//! The workers' side: what a worker does next, and what becomes of it.

use super::{Cluster, Event, Failure, HOSTILE_SUBMISSIONS, LEASE};
use crate::faults::Fate;
use crate::history::Observation;
use crate::sabotage::Sabotage;
use crate::shard_memory::Mirror;
use crate::worker::{Need, Op, Outgoing, Reading, State, Then, ranges};
use crate::workload::{Share, Thin};
use penstock_proto::remote::asking::Changes;
use penstock_proto::remote::home::Chunks as _;
use penstock_proto::spec::TensorSpec;
use penstock_proto::submission::{NO_TICKET, Submission};
use penstock_proto::worker::Requirement;
use penstock_proto::{Rank, TensorId};
use std::collections::BTreeSet;
use std::rc::Rc;

impl Cluster<'_> {
    pub(super) fn step(&mut self, rank: Rank) -> Result<(), Failure> {
        let worker = &mut self.workers[rank as usize];
        if worker.has_ended() {
            return Ok(());
        }
        worker.steps += 1;
        let steps = worker.steps;
        match self.scenario.faults.fates[rank as usize] {
            Fate::Crash { after } if steps > after => return self.crash(rank),
            // Before it has joined there is nothing that it could write to.
            Fate::Hostile { after } if steps > after && self.links[rank as usize].joined => {
                return self.turn(rank);
            }
            _ => {}
        }
        if let Some(outgoing) = self.workers[rank as usize].outbox.pop_front() {
            self.submit(rank, outgoing)?;
        } else if matches!(self.workers[rank as usize].state, State::Reading(_)) {
            self.read_on(rank)?;
        } else {
            let remote = self.is_remote(rank);
            let op = self.workers[rank as usize].next_op(self.workload, remote, &mut self.rng);
            self.begin(rank, op)?;
        }
        if matches!(self.workers[rank as usize].state, State::Running | State::Reading(_)) {
            self.step_later(rank);
        }
        Ok(())
    }

    pub(super) fn begin(&mut self, rank: Rank, op: Op) -> Result<(), Failure> {
        match op {
            Op::Join => self.join(rank),
            Op::Barrier(number) => return self.meet(rank, number),
            Op::Declare(tensor) => self.begin_declare(rank, tensor),
            Op::Load(tensor) => self.load(rank, tensor),
            Op::Ready(tensor) if self.asks_for_last(rank, tensor) => return self.await_last(rank, tensor),
            Op::Ready(tensor) => {
                if self.is_remote(rank) {
                    self.ask(rank, tensor, |proxy| {
                        let lacks = proxy.shard.tensor(tensor).is_some_and(|home| home.progress == 0);
                        lacks.then(|| proxy.want(tensor, 0))
                    })?;
                }
                let needs = self.needs(tensor, |_| (Some(0), 0, NO_TICKET));
                return self.wait_for(rank, needs, Then::Go);
            }
            Op::Pull { tensor, slack, trains } => return self.pull(rank, tensor, slack, trains),
            Op::Gather { tensor, slack } => return self.gather(rank, tensor, slack),
            Op::State(tensor) => return self.ask(rank, tensor, |proxy| proxy.fetch(tensor, 0, true)),
            Op::Push(tensor) => {
                return self.wait_for(rank, self.lane_needs(rank, tensor), Then::Fill(tensor));
            }
            Op::LoadAgain(tensor) => {
                return self.wait_for(rank, self.lane_needs(rank, tensor), Then::Load(tensor));
            }
            Op::Loaded(tensor) => {
                let mut needs = self.lane_needs(rank, tensor);
                if self.scenario.sabotage == Some(Sabotage::AnnouncesLoadsTooEarly) {
                    needs.clear();
                }
                return self.wait_for(rank, needs, Then::Loaded(tensor));
            }
            Op::Clock => {
                let worker = &mut self.workers[rank as usize];
                worker.clock += 1;
                let clock = worker.clock;
                self.see(Observation::Clocked { rank, clock })?;
                self.tell_all(rank, Submission::Clock { clock });
            }
            Op::Leave if self.stays(rank) => self.workers[rank as usize].state = State::Stays,
            Op::Leave => self.tell_all(rank, Submission::Leave),
        }
        Ok(())
    }

    /// Whether a worker that has come to the end of the program is to see what comes then.
    fn stays(&self, rank: Rank) -> bool {
        let stays = self.scenario.trees.as_ref().is_some_and(|trees| trees.stays);
        stays && self.workers[rank as usize].clock == self.workload.iterations
    }

    pub(super) fn tell_all(&mut self, rank: Rank, submission: Submission) {
        let outgoing = (0..self.servers.len()).map(|shard| Outgoing {
            shard,
            submission,
            chunks: Vec::new(),
            update: None,
        });
        let mut outgoing: Vec<Outgoing> = outgoing.collect();
        self.rng.shuffle(&mut outgoing);
        self.workers[rank as usize].outbox.extend(outgoing);
    }

    pub(super) fn begin_declare(&mut self, rank: Rank, tensor: TensorId) {
        for shard in 0..self.servers.len() {
            let delay = self.delay();
            self.later(delay, Event::Declare(rank, tensor, shard));
        }
        self.workers[rank as usize].state = State::Declaring(tensor);
    }

    /// A need at every shard that homes chunks of the tensor.
    pub(super) fn needs(
        &self,
        tensor: TensorId,
        what: impl Fn(usize) -> (Option<u64>, u64, u64),
    ) -> Vec<Need> {
        let homes = self.maps[tensor as usize].homes.iter().enumerate();
        let here = homes.filter(|(_, chunks)| !chunks.is_empty());
        here.map(|(shard, _)| {
            let (version, folded, ticket) = what(shard);
            Need { shard, tensor, version, chunks: None, folded, ticket }
        })
        .collect()
    }

    /// What a worker needs before it writes its lane: all that it has submitted out of it was taken.
    fn lane_needs(&self, rank: Rank, tensor: TensorId) -> Vec<Need> {
        let sent = &self.workers[rank as usize].sent[tensor as usize];
        let mut needs = self.needs(tensor, |shard| (None, sent[shard], NO_TICKET));
        needs.retain(|need| need.folded > 0);
        needs
    }

    pub(super) fn wait_for(&mut self, rank: Rank, needs: Vec<Need>, then: Then) -> Result<(), Failure> {
        if needs.is_empty() {
            return self.resume(rank, then);
        }
        self.workers[rank as usize].state = State::Waiting { needs, then };
        self.wake_later(rank);
        Ok(())
    }

    pub(super) fn wake_later(&mut self, rank: Rank) {
        if !std::mem::replace(&mut self.workers[rank as usize].waking, true) {
            let delay = self.delay();
            self.later(delay, Event::Wake(rank));
        }
    }

    /// Whether what a worker needs is there: at the home, or in its mirror of it.
    pub(super) fn meets(&self, rank: Rank, need: &Need) -> bool {
        if self.is_remote(rank) {
            return self.proxies[rank as usize][need.shard].meets(need);
        }
        self.servers[need.shard].meets(rank, need)
    }

    /// A worker looks at what it waits for.
    pub(super) fn wake(&mut self, rank: Rank) -> Result<(), Failure> {
        self.workers[rank as usize].waking = false;
        let declared = |tensor| self.servers.iter().all(|server| server.memory.has_lane(tensor, rank));
        let then = match &self.workers[rank as usize].state {
            State::Declaring(tensor) if declared(*tensor) => {
                self.mirror(rank, *tensor);
                Then::Go
            }
            State::Waiting { needs, then } if needs.iter().all(|need| self.meets(rank, need)) => then.clone(),
            _ => return Ok(()),
        };
        self.resume(rank, then)?;
        self.step_later(rank);
        Ok(())
    }

    /// A wait is over.
    pub(super) fn resume(&mut self, rank: Rank, then: Then) -> Result<(), Failure> {
        self.workers[rank as usize].state = State::Running;
        match then {
            Then::Go => {}
            Then::Fill(tensor) => return self.fill(rank, tensor),
            Then::Load(tensor) => return self.load_again(rank, tensor),
            Then::Loaded(tensor) => {
                let load = self.workers[rank as usize].newest_loads[tensor as usize];
                return self.see(Observation::Loaded { rank, tensor, load });
            }
            Then::Read(reading) => self.workers[rank as usize].state = State::Reading(reading),
        }
        Ok(())
    }

    pub(super) fn pull(
        &mut self,
        rank: Rank,
        tensor: TensorId,
        slack: Option<u32>,
        trains: bool,
    ) -> Result<(), Failure> {
        let worker = &mut self.workers[rank as usize];
        let TensorSpec { consistency, propagation, .. } = *self.workload.spec(tensor);
        let workers = self.workload.workers();
        let position = worker.positions[tensor as usize];
        let requirement =
            position.requirement(worker.clock, propagation.slack(slack, workers), consistency, propagation);
        let sent = worker.sent[tensor as usize].clone();
        let tickets = self.freshen(rank, tensor, &requirement)?;
        let own = |shard: usize| if requirement.own_folded { sent[shard] } else { 0 };
        let needs = self.needs(tensor, |shard| (Some(requirement.version), own(shard), tickets[shard]));
        let cut = self.maps[tensor as usize].cut;
        let mut left: Vec<u32> = (0..cut.chunks()).collect();
        self.rng.shuffle(&mut left);
        let value = vec![0; cut.bytes() as usize];
        self.wait_for(rank, needs, Then::Read(Reading { tensor, slack, trains, whole: true, left, value }))
    }

    /// Whether a worker on another host waits for one chunk of each home, to know that there is a first value. (In jobs without
    /// pulls of some chunks it has all of the value sent, as of one that is broadcast.)
    fn asks_for_last(&self, rank: Rank, tensor: TensorId) -> bool {
        let broadcast = self.workload.spec(tensor).propagation.is_unasked();
        self.workload.gathers && self.is_remote(rank) && !broadcast
    }

    fn await_last(&mut self, rank: Rank, tensor: TensorId) -> Result<(), Failure> {
        let mut needs = Vec::new();
        for mut need in self.needs(tensor, |_| (Some(0), 0, NO_TICKET)) {
            let Some((want, last)) = self.proxies[rank as usize][need.shard].want_first(tensor) else {
                continue;
            };
            self.say(rank, need.shard, want)?;
            need.chunks = Some(Rc::from([last]));
            needs.push(need);
        }
        self.wait_for(rank, needs, Then::Go)
    }

    /// A pull of some chunks.
    fn gather(&mut self, rank: Rank, tensor: TensorId, slack: Option<u32>) -> Result<(), Failure> {
        let all = self.maps[tensor as usize].cut.chunks();
        let one_in = self.rng.pick(&[2, 8]);
        let mut chunks: Vec<u32> = (0..all).filter(|_| self.rng.once_in(one_in)).collect();
        if chunks.is_empty() {
            chunks.push(self.rng.within(0..=u64::from(all) - 1) as u32);
        }
        let worker = &mut self.workers[rank as usize];
        let TensorSpec { consistency, propagation, .. } = *self.workload.spec(tensor);
        let position = worker.positions[tensor as usize];
        let effective = propagation.slack(slack, self.workload.workers());
        let requirement = position.requirement(worker.clock, effective, consistency, propagation);
        let sent = worker.sent[tensor as usize].clone();
        // What is new of a value that is broadcast comes whole.
        let singly = self.is_remote(rank) && !propagation.is_unasked();
        let tickets = match singly {
            true => Vec::new(),
            false => self.freshen(rank, tensor, &requirement)?,
        };
        // Another thread pulls some just before, and this one does not wait for them.
        if singly && self.rng.once_in(6) {
            let others: Vec<u32> = (0..all).filter(|_| self.rng.once_in(3)).collect();
            self.gather_singly(rank, tensor, &requirement, &others)?;
        }
        let own = |shard: usize| if requirement.own_folded { sent[shard] } else { 0 };
        let needs = match singly {
            true => {
                let mut needs = self.gather_singly(rank, tensor, &requirement, &chunks)?;
                needs.iter_mut().for_each(|need| need.folded = own(need.shard));
                // Another thread reads the state while this one waits.
                if self.rng.once_in(6) {
                    self.ask(rank, tensor, |proxy| proxy.fetch(tensor, 0, true))?;
                }
                needs
            }
            false => self.needs(tensor, |shard| (Some(requirement.version), own(shard), tickets[shard])),
        };
        let value = vec![0; self.maps[tensor as usize].cut.bytes() as usize];
        self.rng.shuffle(&mut chunks);
        let (trains, whole, left) = (false, false, chunks);
        self.wait_for(rank, needs, Then::Read(Reading { tensor, slack, trains, whole, left, value }))
    }

    /// Asks for what a pull of these chunks has to ask other hosts for, and what it then needs of them, but for own contributions.
    fn gather_singly(
        &mut self,
        rank: Rank,
        tensor: TensorId,
        requirement: &Requirement,
        chunks: &[u32],
    ) -> Result<Vec<Need>, Failure> {
        let worker = &self.workers[rank as usize];
        let now = Changes { barriers: worker.barriers, loads: worker.loads[tensor as usize] };
        let anew = now.are_newer_than(worker.fetched[tensor as usize]);
        let mut needs = Vec::new();
        for mut need in self.needs(tensor, |_| (Some(requirement.version), 0, NO_TICKET)) {
            let homed = &self.maps[tensor as usize].homes[need.shard];
            let here: Vec<u32> = chunks.iter().copied().filter(|chunk| homed.contains(chunk)).collect();
            if here.is_empty() {
                continue;
            }
            let (asked, ticket) =
                self.proxies[rank as usize][need.shard].gather(tensor, requirement, anew, &here);
            for submission in asked {
                self.say(rank, need.shard, submission)?;
            }
            (need.chunks, need.ticket) = (Some(here.into()), ticket);
            needs.push(need);
        }
        Ok(needs)
    }

    /// Asks for what a pull has to ask other hosts for: the ticket that it waits for at each shard.
    fn freshen(
        &mut self,
        rank: Rank,
        tensor: TensorId,
        requirement: &Requirement,
    ) -> Result<Vec<u64>, Failure> {
        if !self.is_remote(rank) {
            return Ok(vec![NO_TICKET; self.servers.len()]);
        }
        // Another thread pulls just before, and this one does not wait for it.
        if self.rng.once_in(6) {
            self.freshen_once(rank, tensor, requirement)?;
        }
        let tickets = self.freshen_once(rank, tensor, requirement)?;
        // Another thread reads the state while this one waits.
        if self.rng.once_in(6) {
            self.ask(rank, tensor, |proxy| proxy.fetch(tensor, 0, true))?;
        }
        Ok(tickets)
    }

    fn freshen_once(
        &mut self,
        rank: Rank,
        tensor: TensorId,
        requirement: &Requirement,
    ) -> Result<Vec<u64>, Failure> {
        let worker = &mut self.workers[rank as usize];
        let now = Changes { barriers: worker.barriers, loads: worker.loads[tensor as usize] };
        let fetched = std::mem::replace(&mut worker.fetched[tensor as usize], now);
        let anew = now.are_newer_than(fetched);
        let mut tickets = Vec::new();
        for shard in 0..self.servers.len() {
            let proxy = &mut self.proxies[rank as usize][shard];
            let (asked, ticket) = proxy.freshen(tensor, requirement, anew);
            tickets.push(ticket);
            for submission in asked {
                self.say(rank, shard, submission)?;
            }
        }
        Ok(tickets)
    }

    /// A reader takes some chunks, from the home's memory or from its mirror; both may go on meanwhile.
    pub(super) fn read_on(&mut self, rank: Rank) -> Result<(), Failure> {
        let State::Reading(mut reading) =
            std::mem::replace(&mut self.workers[rank as usize].state, State::Running)
        else {
            return Ok(());
        };
        for _ in 0..self.rng.within(1..=4) {
            let Some(chunk) = reading.left.pop() else { break };
            let Reading { tensor, slack, .. } = reading;
            let map = &self.maps[tensor as usize];
            let home = map.home(chunk);
            let mirror = match self.is_remote(rank) {
                true => self.proxies[rank as usize][home].mirror(tensor, chunk),
                false => self.servers[home].memory.mirror(tensor, chunk),
            };
            let Mirror { version, value, .. } = mirror.expect("what is ready is published").clone();
            reading.value[map.bytes(chunk)].copy_from_slice(&value);
            let mirrored = self.is_remote(rank);
            self.see(Observation::Read { rank, tensor, chunk, slack, mirrored, version, value: &value })?;
        }
        if reading.left.is_empty() {
            self.finish_read(rank, reading);
        } else {
            self.workers[rank as usize].state = State::Reading(reading);
        }
        Ok(())
    }

    pub(super) fn finish_read(&mut self, rank: Rank, reading: Reading) {
        let Reading { tensor, slack, trains, whole, value, .. } = reading;
        let worker = &mut self.workers[rank as usize];
        if whole && slack.is_none() && self.workload.spec(tensor).consistency.folds_together() {
            let position = worker.positions[tensor as usize].at(worker.clock);
            self.reads.insert((rank, tensor, position), crate::rng::digest(&value));
        }
        if trains {
            worker.seen[tensor as usize] = Some(value);
        }
    }

    /// The lane is free: the contribution goes into it, and its submissions into the outbox.
    pub(super) fn fill(&mut self, rank: Rank, tensor: TensorId) -> Result<(), Failure> {
        let worker = &mut self.workers[rank as usize];
        let clock = worker.clock;
        let seen = worker.seen[tensor as usize].as_deref();
        let mut lane = self.workload.contribution(rank, tensor, clock, seen);
        let mut thin = self.workload.factors(rank, tensor, clock, seen);
        if self.scenario.faults.fates[rank as usize] == (Fate::Poison { iteration: clock }) {
            lane.fill(0xff); // a NaN in every dtype
            thin = None;
        }
        let most = self.workload.spec(tensor).travel.low_rank;
        let thin = thin.filter(|thin| thin.rank <= most).map(Rc::new);
        let position = &mut worker.positions[tensor as usize];
        let contribution = position.contribute(clock, false).expect("a program pushes once in an iteration");
        position.contributed(contribution);
        let share = self.workload.share(rank, tensor, clock);
        let settings = self.workload.settings(tensor, clock);
        let stamp = contribution.stamp;
        let rank_of = thin.as_ref().filter(|_| self.is_remote(rank)).map(|thin| thin.rank);
        let push = |first, count| match rank_of {
            None => Submission::Push { tensor, first, count, stamp, settings },
            Some(rank) => Submission::PushProduct { tensor, first, count, stamp, settings, rank },
        };
        if self.is_remote(rank) {
            self.want(rank, tensor, stamp, self.workload.tells_all(rank, tensor, clock))?;
        }
        self.put(rank, tensor, (lane, thin.as_ref()), share, Some(stamp), push);
        if self.workload.skips(rank, tensor, clock) {
            self.skip_rest(rank, tensor, |first, count| Submission::Skip {
                tensor,
                first,
                count,
                stamp,
                settings,
            });
        }
        Ok(())
    }

    pub(super) fn load(&mut self, rank: Rank, tensor: TensorId) {
        let Some(start) = self.workload.start(tensor) else {
            return self.tell_all(rank, Submission::Zero { tensor });
        };
        self.submit_load(rank, tensor, start, 0);
    }

    fn submit_load(&mut self, rank: Rank, tensor: TensorId, value: Vec<u8>, steps: u64) {
        let load = |first, count| Submission::Load { tensor, first, count, slot: 0, part: 0, steps };
        self.put(rank, tensor, (value, None), Share::Whole, None, load);
        if self.scenario.sabotage != Some(Sabotage::ForgetsOwnLoads) {
            self.workers[rank as usize].loads[tensor as usize] += 1;
        }
    }

    /// The lane is free: the next value goes into it.
    fn load_again(&mut self, rank: Rank, tensor: TensorId) -> Result<(), Failure> {
        let newest = &mut self.workers[rank as usize].newest_loads[tensor as usize];
        *newest += 1;
        let load = *newest;
        let value = self.workload.loaded(tensor, load);
        self.see(Observation::Loads { rank, tensor, load, value: &value })?;
        self.submit_load(rank, tensor, value, load);
        Ok(())
    }

    /// Puts `lane` into the worker's lane, which is the home's memory where they share a host.
    pub(super) fn put(
        &mut self,
        rank: Rank,
        tensor: TensorId,
        (lane, thin): (Vec<u8>, Option<&Rc<Thin>>),
        share: Share,
        stamp: Option<u64>,
        submission: impl Fn(u32, u32) -> Submission,
    ) {
        let remote = self.is_remote(rank);
        let map = &self.maps[tensor as usize];
        let mut outbox = Vec::new();
        for (first, count) in ranges(map.cut.chunks(), share, &mut self.rng) {
            let submission = submission(first, count);
            for (shard, homed) in map.homes.iter().enumerate() {
                let within = homed.iter().copied().filter(|chunk| (first..first + count).contains(chunk));
                let chunks: Vec<u32> = within.collect();
                if chunks.is_empty() {
                    continue;
                }
                if !remote {
                    let memory = &mut self.servers[shard].memory;
                    for &chunk in &chunks {
                        memory.lane(tensor, chunk, rank).copy_from_slice(&lane[map.bytes(chunk)]);
                    }
                }
                outbox.push(Outgoing { shard, submission, chunks, update: Some((tensor, stamp)) });
            }
        }
        let worker = &mut self.workers[rank as usize];
        worker.outbox.extend(outbox);
        if remote {
            let lane: Rc<[u8]> = lane.into();
            self.proxies[rank as usize].iter_mut().for_each(|proxy| proxy.fill(tensor, &lane, thin));
            worker.lanes[tensor as usize] = lane;
        }
    }

    /// Says that the worker has nothing for the chunks that it has not put into its outbox, somewhere among what stands there.
    fn skip_rest(&mut self, rank: Rank, tensor: TensorId, skip: impl Fn(u32, u32) -> Submission) {
        let map = &self.maps[tensor as usize];
        let worker = &mut self.workers[rank as usize];
        let of_it =
            worker.outbox.iter().filter(|outgoing| matches!(outgoing.update, Some((of, _)) if of == tensor));
        let put: BTreeSet<u32> = of_it.flat_map(|outgoing| outgoing.chunks.iter().copied()).collect();
        let rest: Vec<u32> = (0..map.cut.chunks()).filter(|chunk| !put.contains(chunk)).collect();
        for run in rest.chunk_by(|one, next| one + 1 == *next) {
            let (first, count) = (run[0], run.len() as u32);
            for (shard, homed) in map.homes.iter().enumerate() {
                let chunks: Vec<u32> = homed.iter().copied().filter(|chunk| run.contains(chunk)).collect();
                if chunks.is_empty() {
                    continue;
                }
                let submission = skip(first, count);
                let at = self.rng.within(0..=worker.outbox.len() as u64) as usize;
                worker
                    .outbox
                    .insert(at, Outgoing { shard, submission, chunks, update: Some((tensor, None)) });
            }
        }
    }

    pub(super) fn submit(&mut self, rank: Rank, outgoing: Outgoing) -> Result<(), Failure> {
        let Outgoing { shard, submission, chunks, update } = outgoing;
        if let Some((tensor, stamp)) = update {
            self.workers[rank as usize].sent[tensor as usize][shard] += chunks.len() as u64;
            for chunk in chunks {
                if let Some(stamp) = stamp {
                    self.see(Observation::Submitted { rank, tensor, chunk, stamp })?;
                } else if let Submission::Skip { stamp, .. } = submission {
                    self.see(Observation::Skipped { rank, tensor, chunk, stamp })?;
                }
            }
        }
        if self.is_remote(rank) {
            self.say(rank, shard, submission)?;
        } else {
            self.send(rank, shard, submission.encode());
        }
        if matches!(submission, Submission::Leave) && self.workers[rank as usize].outbox.is_empty() {
            self.ask_to_leave(rank);
        }
        Ok(())
    }

    fn send(&mut self, rank: Rank, shard: usize, words: [u64; 8]) {
        let due = self.now + self.delay();
        let due = self.rings[rank as usize][shard].send(words, due);
        self.at(due, Event::Deliver(rank, shard));
    }

    pub(super) fn crash(&mut self, rank: Rank) -> Result<(), Failure> {
        self.workers[rank as usize].state = State::Lost;
        self.rings[rank as usize].iter_mut().for_each(|ring| ring.abandon(&mut self.rng));
        for wire in &self.wires[rank as usize] {
            wire.borrow_mut().abandon(self.now, &mut self.rng);
        }
        self.uproot(rank, true);
        self.see(Observation::Crashed { rank })?;
        if self.is_watched(rank) {
            return Ok(());
        }
        let lease = self.rng.within(1..=LEASE * self.scenario.faults.delay);
        self.later(lease, Event::Silent(rank));
        Ok(())
    }

    /// A hostile worker writes one more submission of its own making.
    pub(super) fn turn(&mut self, rank: Rank) -> Result<(), Failure> {
        let left = match self.workers[rank as usize].state {
            State::Hostile(left) => left,
            _ => {
                self.see(Observation::Turned { rank })?;
                self.workers[rank as usize].outbox.clear();
                self.servers.iter_mut().for_each(|server| server.memory.clear_lanes(rank));
                HOSTILE_SUBMISSIONS
            }
        };
        if left == 0 {
            return self.crash(rank);
        }
        self.workers[rank as usize].state = State::Hostile(left - 1);
        let shard = self.rng.within(0..=self.servers.len() as u64 - 1) as usize;
        let words = self.hostile_words(rank);
        self.send(rank, shard, words);
        self.step_later(rank);
        Ok(())
    }

    /// Words that are wild, on the edge, or nearly right, so that some get far.
    pub(super) fn hostile_words(&mut self, rank: Rank) -> [u64; 8] {
        let clock = self.workers[rank as usize].clock;
        let edges = [0, 1, 2, 3, 4, clock, clock + 1, u64::MAX, 1 << 32, 1 << 62, u64::from(u32::MAX)];
        let rng = &mut self.rng;
        let mut words: [u64; 8] =
            std::array::from_fn(|_| if rng.once_in(3) { rng.word() } else { rng.pick(&edges) });
        if rng.once_in(2) {
            // Into a tensor that nobody contributes to none does: its fold, and while that waits for its commit a load is refused.
            let pushed = self.workload.ids().filter(|&tensor| !self.workload.is_loaded(tensor)).count();
            let tensor = rng.within(0..=pushed as u64 - 1);
            words = [1 | tensor << 32, 1 << 32, rng.pick(&[clock, clock + 1]), 0, 0, 0, 0, 0];
        }
        words
    }

    pub(super) fn end(&mut self, rank: Rank) -> Result<(), Failure> {
        let Some(failure) = self.failure.clone() else { return Ok(()) };
        if self.workers[rank as usize].has_ended() {
            return Ok(());
        }
        let how = failure.to_string();
        self.workers[rank as usize].state = State::Failed(failure);
        self.uproot(rank, false);
        self.see(Observation::Ended { rank, how: &how })
    }
}
