//! The workers' side: what a worker does next, and what becomes of it.

use super::{Chunks, Cluster, Event, Failure, HOSTILE_SUBMISSIONS, LEASE};
use crate::faults::Fate;
use crate::history::Observation;
use crate::memory::Mirror;
use crate::rng::Rng;
use crate::transport::{Kind, Message, Payload};
use crate::worker::{Need, Op, Outgoing, Reading, State, Then, ranges};
use crate::workload::Share;
use penstock_proto::submission::Submission;
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
            Fate::Hostile { after } if steps > after => return self.turn(rank),
            _ => {}
        }
        if let Some(outgoing) = self.workers[rank as usize].outbox.pop_front() {
            self.submit(rank, outgoing)?;
        } else if matches!(self.workers[rank as usize].state, State::Reading(_)) {
            self.read_on(rank)?;
        } else {
            let op = self.workers[rank as usize].next_op(self.workload, &mut self.rng);
            self.begin(rank, op)?;
        }
        if matches!(self.workers[rank as usize].state, State::Running | State::Reading(_)) {
            self.step_later(rank);
        }
        Ok(())
    }

    pub(super) fn begin(&mut self, rank: Rank, op: Op) -> Result<(), Failure> {
        match op {
            Op::Declare(tensor) => self.begin_declare(rank, tensor),
            Op::Load(tensor) => self.load(rank, tensor),
            Op::Ready(tensor) => {
                let needs = self.needs(tensor, |_| (Some(0), 0));
                self.wait_for(rank, needs, Then::Go);
            }
            Op::Pull { tensor, slack, trains } => self.pull(rank, tensor, slack, trains),
            Op::Push(tensor) => {
                let sent = self.workers[rank as usize].sent[tensor as usize].clone();
                let mut needs = self.needs(tensor, |shard| (None, sent[shard]));
                needs.retain(|need| need.folded > 0);
                self.wait_for(rank, needs, Then::Fill(tensor));
            }
            Op::Clock => {
                let worker = &mut self.workers[rank as usize];
                worker.clock += 1;
                let clock = worker.clock;
                self.see(Observation::Clocked { rank, clock })?;
                self.tell_all(rank, Kind::Clock, |_| {
                    Message::Submission(Submission::Clock { clock }.encode(), None)
                });
            }
            Op::Leave => self.tell_all(rank, Kind::Other, |_| Message::Bye),
        }
        Ok(())
    }

    pub(super) fn tell_all(&mut self, rank: Rank, kind: Kind, message: impl Fn(usize) -> Message) {
        let outgoing = (0..self.servers.len()).map(|shard| Outgoing {
            shard,
            message: message(shard),
            kind,
            chunks: Vec::new(),
            update: None,
        });
        let mut outgoing: Vec<Outgoing> = outgoing.collect();
        self.rng.shuffle(&mut outgoing);
        self.workers[rank as usize].outbox.extend(outgoing);
    }

    pub(super) fn begin_declare(&mut self, rank: Rank, tensor: TensorId) {
        if self.undeclared[tensor as usize].is_none() {
            self.undeclared[tensor as usize] = Some((0..self.servers.len()).collect());
            for shard in 0..self.servers.len() {
                let delay = self.delay();
                self.later(delay, Event::Declare(tensor, shard));
            }
        }
        self.workers[rank as usize].state = State::Declaring(tensor);
        self.wake_later(rank);
    }

    /// A need at every shard that homes chunks of the tensor.
    pub(super) fn needs(&self, tensor: TensorId, what: impl Fn(usize) -> (Option<u64>, u64)) -> Vec<Need> {
        let homes = self.maps[tensor as usize].homes.iter().enumerate();
        let here = homes.filter(|(_, chunks)| !chunks.is_empty());
        here.map(|(shard, _)| {
            let (version, folded) = what(shard);
            Need { shard, tensor, version, folded }
        })
        .collect()
    }

    pub(super) fn wait_for(&mut self, rank: Rank, needs: Vec<Need>, then: Then) {
        if needs.is_empty() {
            return self.resume(rank, then);
        }
        let worker = &mut self.workers[rank as usize];
        worker.wait += 1;
        let wait = worker.wait;
        let open = needs.iter().map(|need| need.shard).collect();
        worker.state = State::Waiting { needs: needs.clone(), open, then };
        if self.is_remote(rank) {
            for need in needs {
                let delay = self.delay();
                self.later(delay, Event::Ask { rank, wait, need });
            }
        } else {
            self.wake_later(rank);
        }
    }

    pub(super) fn wake_later(&mut self, rank: Rank) {
        if !std::mem::replace(&mut self.workers[rank as usize].waking, true) {
            let delay = self.delay();
            self.later(delay, Event::Wake(rank));
        }
    }

    /// A worker looks at what it waits for.
    pub(super) fn wake(&mut self, rank: Rank) {
        self.workers[rank as usize].waking = false;
        let declared = |tensor| self.undeclared[tensor as usize].as_ref().is_some_and(BTreeSet::is_empty);
        let met = |needs: &[Need]| needs.iter().all(|need| self.servers[need.shard].meets(rank, need));
        let then = match &self.workers[rank as usize].state {
            State::Declaring(tensor) if declared(*tensor) => Then::Go,
            State::Waiting { needs, then, .. } if !self.is_remote(rank) && met(needs) => then.clone(),
            _ => return,
        };
        self.go_on(rank, then);
    }

    pub(super) fn answered(
        &mut self,
        rank: Rank,
        wait: u64,
        shard: usize,
        chunks: Chunks,
    ) -> Result<(), Failure> {
        let worker = &mut self.workers[rank as usize];
        if worker.wait != wait {
            return Ok(());
        }
        let State::Waiting { open, then, .. } = &mut worker.state else { return Ok(()) };
        open.remove(&shard);
        let whole = open.is_empty();
        if let Then::Read(reading) = then {
            for (chunk, mirror) in &chunks {
                let bytes = self.maps[reading.tensor as usize].bytes(*chunk);
                reading.value[bytes].copy_from_slice(&mirror.value);
            }
        }
        let then = then.clone();
        if let Then::Read(Reading { tensor, slack, .. }) = then {
            for (chunk, Mirror { version, value }) in &chunks {
                let (chunk, version) = (*chunk, *version);
                self.see(Observation::Read { rank, tensor, chunk, slack, version, value })?;
            }
        }
        if whole {
            self.go_on(rank, then);
        }
        Ok(())
    }

    /// A wait is over.
    pub(super) fn go_on(&mut self, rank: Rank, then: Then) {
        self.resume(rank, then);
        self.step_later(rank);
    }

    pub(super) fn resume(&mut self, rank: Rank, then: Then) {
        let remote = self.is_remote(rank);
        self.workers[rank as usize].state = State::Running;
        match then {
            Then::Go => {}
            Then::Fill(tensor) => self.fill(rank, tensor),
            Then::Read(reading) if remote => self.finish_read(rank, reading),
            Then::Read(reading) => self.workers[rank as usize].state = State::Reading(reading),
        }
    }

    pub(super) fn pull(&mut self, rank: Rank, tensor: TensorId, slack: Option<u32>, trains: bool) {
        let worker = &self.workers[rank as usize];
        let consistency = self.workload.spec(tensor).consistency;
        let position = worker.positions[tensor as usize];
        let requirement = position.requirement(worker.clock, slack, consistency);
        let sent = worker.sent[tensor as usize].clone();
        let own = |shard: usize| if requirement.own_folded { sent[shard] } else { 0 };
        let needs = self.needs(tensor, |shard| (Some(requirement.version), own(shard)));
        let cut = self.maps[tensor as usize].cut;
        let mut left: Vec<u32> = (0..cut.chunks()).collect();
        self.rng.shuffle(&mut left);
        let value = vec![0; cut.bytes() as usize];
        self.wait_for(rank, needs, Then::Read(Reading { tensor, slack, trains, left, value }));
    }

    /// A local reader takes some chunks from their mirrors; the home may go on meanwhile.
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
            let mirror = self.servers[map.home(chunk)].memory.mirror(tensor, chunk);
            let Mirror { version, value } = mirror.expect("what is ready is published").clone();
            reading.value[map.bytes(chunk)].copy_from_slice(&value);
            self.see(Observation::Read { rank, tensor, chunk, slack, version, value: &value })?;
        }
        if reading.left.is_empty() {
            self.finish_read(rank, reading);
        } else {
            self.workers[rank as usize].state = State::Reading(reading);
        }
        Ok(())
    }

    pub(super) fn finish_read(&mut self, rank: Rank, reading: Reading) {
        let Reading { tensor, slack, trains, value, .. } = reading;
        let worker = &mut self.workers[rank as usize];
        if slack.is_none() && self.workload.spec(tensor).consistency.folds_together() {
            let position = worker.positions[tensor as usize].at(worker.clock);
            self.reads.insert((rank, tensor, position), crate::rng::digest(&value));
        }
        if trains {
            worker.seen[tensor as usize] = Some(value);
        }
    }

    /// The lane is free: the contribution goes into it, and its submissions into the outbox.
    pub(super) fn fill(&mut self, rank: Rank, tensor: TensorId) {
        let worker = &mut self.workers[rank as usize];
        let clock = worker.clock;
        let seen = worker.seen[tensor as usize].as_deref();
        let mut lane = self.workload.contribution(rank, tensor, clock, seen);
        if self.scenario.faults.fates[rank as usize] == (Fate::Poison { iteration: clock }) {
            lane.fill(0xff); // a NaN in every dtype
        }
        let position = &mut worker.positions[tensor as usize];
        let contribution = position.contribute(clock, false).expect("a program pushes once in an iteration");
        position.contributed(contribution);
        let share = self.workload.share(rank, tensor, clock);
        let settings = self.workload.settings(tensor, clock);
        let stamp = contribution.stamp;
        let push = |first, count| Submission::Push { tensor, first, count, stamp, settings };
        self.put(rank, tensor, &lane, share, Some(stamp), push);
    }

    pub(super) fn load(&mut self, rank: Rank, tensor: TensorId) {
        let Some(start) = self.workload.start(tensor) else {
            self.tell_all(rank, Kind::Other, |_| {
                Message::Submission(Submission::Zero { tensor }.encode(), None)
            });
            return;
        };
        let load = |first, count| Submission::Load { tensor, first, count, slot: 0, part: 0, steps: 0 };
        self.put(rank, tensor, &start, Share::Whole, None, load);
    }

    /// Puts `lane` into the lanes, at once where they are the same memory, else with the submissions.
    pub(super) fn put(
        &mut self,
        rank: Rank,
        tensor: TensorId,
        lane: &[u8],
        share: Share,
        stamp: Option<u64>,
        submission: impl Fn(u32, u32) -> Submission,
    ) {
        let remote = self.is_remote(rank);
        let map = &self.maps[tensor as usize];
        let mut outbox = Vec::new();
        for (first, count) in ranges(map.cut.chunks(), share, &mut self.rng) {
            let words = submission(first, count).encode();
            for (shard, homed) in map.homes.iter().enumerate() {
                let within = homed.iter().copied().filter(|chunk| (first..first + count).contains(chunk));
                let chunks: Vec<u32> = within.collect();
                if chunks.is_empty() {
                    continue;
                }
                let bytes = |&chunk: &u32| (chunk, lane[map.bytes(chunk)].to_vec());
                let payload: Vec<(u32, Vec<u8>)> = chunks.iter().map(bytes).collect();
                if !remote {
                    let memory = &mut self.servers[shard].memory;
                    payload.iter().for_each(|(chunk, bytes)| memory.write_lane(tensor, *chunk, rank, bytes));
                }
                let payload = remote.then(|| Rc::new(Payload { tensor, chunks: payload }));
                let kind = if stamp.is_some() { Kind::Push } else { Kind::Other };
                let message = Message::Submission(words, payload);
                outbox.push(Outgoing { shard, message, kind, chunks, update: Some((tensor, stamp)) });
            }
        }
        self.workers[rank as usize].outbox.extend(outbox);
    }

    pub(super) fn submit(&mut self, rank: Rank, outgoing: Outgoing) -> Result<(), Failure> {
        let Outgoing { shard, message, kind, chunks, update } = outgoing;
        if let Some((tensor, stamp)) = update {
            self.workers[rank as usize].sent[tensor as usize][shard] += chunks.len() as u64;
            for chunk in chunks {
                if let Some(stamp) = stamp {
                    self.see(Observation::Submitted { rank, tensor, chunk, stamp })?;
                }
            }
        }
        let bye = matches!(message, Message::Bye);
        self.send(rank, shard, message, kind)?;
        if bye && self.workers[rank as usize].outbox.is_empty() {
            self.workers[rank as usize].state = State::Left;
            self.see(Observation::Ended { rank, how: "left" })?;
        }
        Ok(())
    }

    pub(super) fn send(
        &mut self,
        rank: Rank,
        shard: usize,
        message: Message,
        kind: Kind,
    ) -> Result<(), Failure> {
        let due = self.now + self.delay();
        let remote = self.is_remote(rank);
        let link = &mut self.links[rank as usize][shard];
        if let Some(due) = link.send(message, kind, due, remote) {
            self.at(due, Event::Deliver(rank, shard));
        }
        let cuts = remote && self.rng.once_in(self.scenario.faults.cut_once_in);
        if cuts && self.links[rank as usize][shard].cut() {
            self.see(Observation::Cut { rank, shard })?;
            let delay = 3 * self.delay();
            self.later(delay, Event::Heal(rank, shard));
        }
        Ok(())
    }

    pub(super) fn heal(&mut self, rank: Rank, shard: usize) -> Result<(), Failure> {
        if self.lost.contains(&rank) || matches!(self.workers[rank as usize].state, State::Lost) {
            return Ok(());
        }
        let faults = &self.scenario.faults;
        let delay = |rng: &mut Rng| faults.some_delay(rng);
        let dues = self.links[rank as usize][shard].heal(self.now, delay, &mut self.rng);
        self.see(Observation::Healed { rank, shard, resent: dues.len() })?;
        dues.into_iter().for_each(|due| self.at(due, Event::Deliver(rank, shard)));
        Ok(())
    }

    pub(super) fn crash(&mut self, rank: Rank) -> Result<(), Failure> {
        self.workers[rank as usize].state = State::Lost;
        for link in &mut self.links[rank as usize] {
            link.abandon(&mut self.rng);
        }
        self.see(Observation::Crashed { rank })?;
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
        self.send(rank, shard, Message::Submission(words, None), Kind::Other)?;
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
            let tensor = rng.within(0..=self.workload.tensors.len() as u64 - 1);
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
        self.see(Observation::Ended { rank, how: &how })
    }
}
