//! What happens on the control connections: workers join, stand at barriers, go away from them, and leave.
//!
//! A worker of the servers' host has a connection that holds; one of another host has a [`Wire`](crate::transport::Wire) like
//! those to the shards, numbered behind them.

use super::{Cluster, Event, Failure};
use crate::control::{Asked, AtBarrier, Clerk, HEAD_BYTES, HEARD, HELLO, reply, request};
use crate::faults::Fate;
use crate::history::Observation;
use crate::rng::Rng;
use crate::sabotage::Sabotage;
use crate::socket::some_ahead;
use crate::transport::{End, Way};
use crate::worker::{Op, State};
use penstock_fabric::net::Ended;
use penstock_fabric::net::records::{RecordReader, RecordWriter};
use penstock_proto::Rank;
use penstock_proto::error::{Loss, Refusal};
use penstock_proto::handshake::Session;
use penstock_proto::membership::Member;
use penstock_proto::message::{
    Answer, Ask, Departure, Joining, MAX_MESSAGE_BYTES, PROTOCOL_VERSION, Reply, Request, Welcome, decode,
};
use penstock_proto::peer::PeerId;
use penstock_proto::request::Answers;

/// Times that a worker goes away from one barrier before it is patient.
const IMPATIENT: u64 = 3;
/// Longest time that an impatient worker waits, in units of the longest delay.
const SOON: u64 = 8;

/// What reads at both ends of a control connection.
#[derive(Debug)]
pub(super) struct Records {
    /// By the way that is read.
    readers: [RecordReader; 2],
    /// What says how much a read brings, where that is not all that has arrived.
    reads: [Option<Rng>; 2],
}

impl Records {
    /// Of a new connection.
    pub(super) fn new(rng: &mut Rng) -> Self {
        Self {
            readers: [(); 2].map(|()| RecordReader::new(MAX_MESSAGE_BYTES)),
            reads: [(); 2].map(|()| rng.once_in(2).then(|| Rng::new(rng.word()))),
        }
    }
}

impl Cluster<'_> {
    /// The number of the wire to the control thread, among those of a worker.
    pub(super) fn control(&self) -> usize {
        self.servers.len()
    }

    /// A control connection stands: the worker says who it is, and what has no answer.
    pub(super) fn introduce(&mut self, rank: Rank) {
        self.desk.greeted.remove(&rank);
        let link = &self.links[rank as usize];
        let (session, size) = (link.session, self.workload.workers());
        let hello = Ask::Hello {
            version: PROTOCOL_VERSION,
            session,
            peer: PeerId::worker(rank),
            size,
            overlay: Joining::default(),
        };
        let again: Vec<Vec<u8>> = link.requests.again().map(<[u8]>::to_vec).collect();
        self.post_record(rank, Way::Up, &request(HELLO, hello));
        again.iter().for_each(|message| self.post_record(rank, Way::Up, message));
    }

    pub(super) fn post_record(&mut self, rank: Rank, way: Way, message: &[u8]) {
        let control = self.control();
        let bytes = HEAD_BYTES + message.len();
        let holds = !self.is_remote(rank) || self.is_planned(control);
        let damaged = !holds && self.rng.once_in(self.scenario.faults.damage_once_in);
        let damage = damaged.then(|| {
            let at = self.rng.within(0..=bytes as u64 - 1) as usize;
            (at, 1 << self.rng.within(0..=7))
        });
        let due = self.due(rank);
        let ahead = some_ahead(bytes, (self.now, due), &mut self.rng);
        let mut wire = self.wire(rank, control);
        let mut end = End { due, ahead, damage, ..End::new(&mut wire, way, self.now) };
        // Where the connection is over, the message is lost.
        let _ = RecordWriter::default().send(&mut end, message);
        let arrives = end.arrives;
        drop(wire);
        self.left(rank, control, way, arrives);
    }

    /// Bytes have arrived: what is whole of them is heard.
    pub(super) fn hear_records(&mut self, rank: Rank, number: u64, way: Way) -> Result<(), Failure> {
        let control = self.control();
        while self.is_present(rank, control, number, way) {
            let Records { readers, reads } = &mut self.records[rank as usize];
            let mut wire = self.wires[rank as usize][control].borrow_mut();
            let reads = reads[way as usize].as_mut();
            let mut end = End { reads, ..End::new(&mut wire, way.back(), self.now) };
            let next = readers[way as usize].next(&mut end);
            drop(wire);
            match next {
                Ok(Some(message)) => self.hear_record(rank, way, &message)?,
                Ok(None) => break,
                Err(Ended::Connection(_)) => self.lose_wire(rank, control, number, way)?,
                Err(Ended::Peer(what)) => return self.refused_at_control(rank, what),
                Err(Ended::Exhausted { what, why }) => {
                    return self.refused_at_control(rank, format!("for {what} {why}"));
                }
            }
        }
        Ok(())
    }

    fn hear_record(&mut self, rank: Rank, way: Way, message: &[u8]) -> Result<(), Failure> {
        match way {
            Way::Up => match decode(message) {
                Ok(request) => self.serve(rank, request),
                Err(error) => self.refused_at_control(rank, error.to_string()),
            },
            Way::Down => match decode::<Reply>(message) {
                Ok(reply) => {
                    self.server_spoke(rank, reply.body == Answer::Alive);
                    self.hear_reply(rank, reply)
                }
                Err(error) => self.refused_at_control(rank, error.to_string()),
            },
        }
    }

    fn refused_at_control(&self, rank: Rank, why: String) -> Result<(), Failure> {
        Err(Failure::HonestRefused { at: self.now, rank, why })
    }

    // The worker's end

    fn ask_control(&mut self, rank: Rank, body: Ask, asked: Asked) -> u64 {
        let requests = &mut self.links[rank as usize].requests;
        let (id, message) = requests.ask(body, asked).expect("it is short");
        if self.wire(rank, self.control()).at_worker {
            self.post_record(rank, Way::Up, &message);
        }
        id
    }

    /// The next wait of a worker, with an end if it is impatient.
    fn wait_at_control(&mut self, rank: Rank, state: State, impatient: bool) {
        self.workers[rank as usize].state = state;
        let link = &mut self.links[rank as usize];
        (link.waits, link.impatient) = (link.waits + 1, impatient);
        let wait = link.waits;
        if impatient {
            let delay = self.rng.within(1..=SOON * self.scenario.faults.delay);
            self.later(delay, Event::Alarm(rank, wait));
        }
    }

    pub(super) fn join(&mut self, rank: Rank) {
        if !self.links[rank as usize].joined {
            self.wait_at_control(rank, State::Joining, false);
        }
    }

    /// A worker goes to the barrier with this number.
    pub(super) fn meet(&mut self, rank: Rank, number: u64) -> Result<(), Failure> {
        let worker = &mut self.workers[rank as usize];
        (worker.barrier, worker.attempts) = (number, worker.attempts + 1);
        let impatient = worker.attempts <= IMPATIENT;
        match self.links[rank as usize].doubtful {
            None => {}
            Some((barrier, None)) => {
                self.wait_at_control(rank, State::AtBarrier(AtBarrier::Doubts(barrier)), impatient);
                return Ok(());
            }
            Some((_, Some(true))) => return self.passed(rank),
            Some((_, Some(false))) => self.in_vain(rank)?,
        }
        self.stand(rank)
    }

    fn stand(&mut self, rank: Rank) -> Result<(), Failure> {
        let worker = &self.workers[rank as usize];
        let (round, impatient) = (worker.barrier, worker.attempts <= IMPATIENT);
        self.see(Observation::Stood { rank, round })?;
        let barrier = self.ask_control(rank, Ask::Barrier, Asked::Barrier);
        let impatient = impatient && self.rng.once_in(2);
        self.wait_at_control(rank, State::AtBarrier(AtBarrier::Stands(barrier)), impatient);
        Ok(())
    }

    /// The time is up.
    pub(super) fn alarm(&mut self, rank: Rank, wait: u64) -> Result<(), Failure> {
        if self.links[rank as usize].waits != wait || self.workers[rank as usize].has_ended() {
            return Ok(());
        }
        match self.workers[rank as usize].state {
            State::AtBarrier(AtBarrier::Stands(barrier)) => {
                let withdrawal = self.ask_control(rank, Ask::Withdraw { request: barrier }, Asked::Withdraw);
                let withdraws = AtBarrier::Withdraws { barrier, withdrawal, opened: None };
                self.wait_at_control(rank, State::AtBarrier(withdraws), true);
                Ok(())
            }
            State::AtBarrier(AtBarrier::Withdraws { opened: Some(true), .. }) => self.pass_on(rank),
            State::AtBarrier(AtBarrier::Withdraws { opened: Some(false), .. }) => {
                self.in_vain(rank)?;
                self.meet_again(rank);
                Ok(())
            }
            State::AtBarrier(AtBarrier::Withdraws { barrier, .. } | AtBarrier::Doubts(barrier)) => {
                self.links[rank as usize].doubtful = Some((barrier, None));
                self.meet_again(rank);
                Ok(())
            }
            State::Leaving => self.leave_in_anger(rank),
            _ => Ok(()),
        }
    }

    fn meet_again(&mut self, rank: Rank) {
        let worker = &mut self.workers[rank as usize];
        worker.state = State::Running;
        worker.go_back(Op::Barrier(worker.barrier));
        self.step_later(rank);
    }

    fn passed(&mut self, rank: Rank) -> Result<(), Failure> {
        let worker = &mut self.workers[rank as usize];
        (worker.state, worker.attempts) = (State::Running, 0);
        let round = worker.barrier;
        let link = &mut self.links[rank as usize];
        (link.doubtful, link.waits) = (None, link.waits + 1);
        // What others did before it may be missing from every mirror.
        if self.scenario.sabotage != Some(Sabotage::ForgetsBarriers) {
            self.workers[rank as usize].barriers += 1;
        }
        self.see(Observation::Passed { rank, round })
    }

    fn pass_on(&mut self, rank: Rank) -> Result<(), Failure> {
        self.passed(rank)?;
        self.step_later(rank);
        Ok(())
    }

    /// The worker has gone from the barrier, or hears that it had.
    fn in_vain(&mut self, rank: Rank) -> Result<(), Failure> {
        let round = self.workers[rank as usize].barrier;
        self.links[rank as usize].doubtful = None;
        self.see(Observation::InVain { rank, round })
    }

    fn hear_reply(&mut self, rank: Rank, reply: Reply) -> Result<(), Failure> {
        let worker = &self.workers[rank as usize];
        if worker.has_ended() || matches!(worker.state, State::Hostile(_)) {
            return Ok(());
        }
        let Reply { id, body } = reply;
        if id == HELLO {
            return match body {
                Answer::Welcome(_) => self.welcomed(rank),
                Answer::Refused(_) if self.is_said_lost(rank) => self.outlived(rank),
                other => self.refused_at_control(rank, format!("{other:?}")),
            };
        }
        if self.links[rank as usize].requests.settle(id).is_none() {
            return Ok(()); // it was answered before
        }
        let passed = match body {
            Answer::Left => return self.has_left(rank),
            Answer::BarrierPassed { .. } => true,
            Answer::Missing { .. } => false,
            other => return self.refused_at_control(rank, format!("{other:?}")),
        };
        match self.workers[rank as usize].state {
            State::AtBarrier(AtBarrier::Stands(barrier) | AtBarrier::Doubts(barrier))
                if barrier == id && passed =>
            {
                self.pass_on(rank)
            }
            State::AtBarrier(AtBarrier::Doubts(barrier)) if barrier == id => {
                self.in_vain(rank)?;
                self.stand(rank)
            }
            State::AtBarrier(AtBarrier::Withdraws { barrier, withdrawal, .. }) if barrier == id => {
                let withdraws = AtBarrier::Withdraws { barrier, withdrawal, opened: Some(passed) };
                self.workers[rank as usize].state = State::AtBarrier(withdraws);
                Ok(())
            }
            State::AtBarrier(AtBarrier::Withdraws { withdrawal, opened, .. }) if withdrawal == id => {
                if opened == Some(true) {
                    return self.pass_on(rank);
                }
                self.in_vain(rank)?;
                self.meet_again(rank);
                Ok(())
            }
            // Kept for when it comes to a barrier again.
            _ => {
                let doubtful =
                    self.links[rank as usize].doubtful.as_mut().filter(|(barrier, _)| *barrier == id);
                if let Some((_, heard)) = doubtful {
                    *heard = Some(passed);
                }
                Ok(())
            }
        }
    }

    fn welcomed(&mut self, rank: Rank) -> Result<(), Failure> {
        if std::mem::replace(&mut self.links[rank as usize].joined, true) {
            return Ok(());
        }
        self.see(Observation::Joined { rank })?;
        for shard in (0..self.servers.len()).filter(|_| self.scenario.faults.remote[rank as usize]) {
            let delay = self.delay();
            self.later(delay, Event::Connect { rank, shard, number: 0 });
        }
        if matches!(self.workers[rank as usize].state, State::Joining) {
            self.workers[rank as usize].state = State::Running;
            self.step_later(rank);
        }
        Ok(())
    }

    /// A worker that has said goodbye to every shard asks to be let go.
    pub(super) fn ask_to_leave(&mut self, rank: Rank) {
        self.ask_control(rank, Ask::Leave { how: Departure::Done }, Asked::Leave);
        self.wait_at_control(rank, State::Leaving, false);
        let wait = self.links[rank as usize].waits;
        match self.scenario.faults.fates[rank as usize] {
            Fate::Hurried { within } => self.later(within, Event::Alarm(rank, wait)),
            Fate::Crash { .. } => {
                let delay = self.rng.within(1..=SOON * self.scenario.faults.delay);
                self.later(delay, Event::Die(rank));
            }
            _ => {}
        }
    }

    /// It was not let go in time: it says that it has failed, and is gone.
    fn leave_in_anger(&mut self, rank: Rank) -> Result<(), Failure> {
        let how = Departure::Failed { what: "not everything was taken in time".to_owned() };
        self.ask_control(rank, Ask::Leave { how }, Asked::Leave);
        self.crash(rank)
    }

    fn has_left(&mut self, rank: Rank) -> Result<(), Failure> {
        self.post_record(rank, Way::Up, &request(HEARD, Ask::Heard));
        self.workers[rank as usize].state = State::Left;
        self.links[rank as usize].requests.close();
        self.wires[rank as usize].iter().for_each(|wire| wire.borrow_mut().close_at_worker());
        self.uproot(rank, false);
        self.see(Observation::Ended { rank, how: "left" })
    }

    // The server's end

    fn serve(&mut self, rank: Rank, request: Request) -> Result<(), Failure> {
        let Request { id, settled, mut open, body } = request;
        if self.scenario.sabotage == Some(Sabotage::SettlesWhatIsOpen) {
            open.clear();
        }
        if !self.desk.greeted.contains(&rank) {
            return self.serve_stranger(rank, id, body);
        }
        if self.desk.clerks.contains_key(&rank) && self.is_remote(rank) {
            self.gave_sign(rank);
        }
        let Some(clerk) = self.desk.clerks.get_mut(&rank) else { return Ok(()) };
        let honest = clerk.answers.settle(settled, &open);
        assert!(honest, "what an honest worker says of its requests makes sense");
        if let Some(answer) = clerk.answers.to(id).map(<[u8]>::to_vec) {
            self.post_record(rank, Way::Down, &answer);
            return Ok(());
        }
        if clerk.answers.is_settled(id) {
            return Ok(());
        }
        match body {
            Ask::Beat => self.post_record(rank, Way::Down, &reply(id, Answer::Alive)),
            Ask::Barrier => {
                if clerk.at_barrier.replace(id) != Some(id) {
                    self.desk.roster.arrive(rank);
                    self.open_barrier();
                }
            }
            Ask::Withdraw { request: barrier } => {
                if clerk.at_barrier.take_if(|at| *at == barrier).is_some() {
                    self.desk.roster.withdraw(rank);
                    self.answer_request(rank, barrier, Answer::Missing { ranks: Vec::new() });
                }
                let ranks = self.desk.roster.missing_at_barrier();
                self.answer_request(rank, id, Answer::Missing { ranks });
            }
            Ask::Leave { how: Departure::Done } => {
                clerk.leaving = Some(id);
                self.let_go(rank);
            }
            Ask::Leave { how: Departure::Failed { what } } => self.lose(rank, &Loss::Failed { what }),
            Ask::Hello { .. } => return self.refused_at_control(rank, "it said hello twice".to_owned()),
            other => return self.refused_at_control(rank, format!("{other:?}")),
        }
        Ok(())
    }

    /// Hears a worker that has not said hello on this connection.
    fn serve_stranger(&mut self, rank: Rank, id: u64, body: Ask) -> Result<(), Failure> {
        let answer = match body {
            Ask::Hello { session, peer, size, .. } => match self.enroll(peer, session, size) {
                Ok(()) => Answer::Welcome(self.welcome()),
                Err(refusal) => Answer::Refused(refusal),
            },
            // It was let go, and the answer was lost with a connection.
            Ask::Leave { .. } if self.desk.parted.contains_key(&rank) => Answer::Left,
            Ask::Heard => {
                self.desk.parted.remove(&rank);
                return Ok(());
            }
            _ => return Ok(()),
        };
        self.post_record(rank, Way::Down, &reply(id, answer));
        Ok(())
    }

    /// A worker that comes for the first time, or again.
    fn enroll(&mut self, peer: PeerId, session: Session, size: u32) -> Result<(), Refusal> {
        let rank = self.desk.roster.admit(peer)?;
        if self.desk.parted.get(&rank) == Some(&session) {
            return Ok(()); // it will say again that it leaves
        }
        if self.desk.clerks.get(&rank).is_none_or(|clerk| clerk.session != session) {
            self.desk.roster.join(peer, size)?;
            let clerk = Clerk { session, answers: Answers::default(), at_barrier: None, leaving: None };
            self.desk.clerks.insert(rank, clerk);
            self.begin_lease(rank);
            self.has_come(rank, true);
        }
        self.gave_sign(rank);
        self.desk.greeted.insert(rank);
        Ok(())
    }

    fn welcome(&self) -> Welcome {
        let topology = self.scenario.topology;
        Welcome {
            server: 0,
            servers: topology.servers,
            shards: topology.shards,
            chunk_bytes: topology.chunk_bytes,
            lease_ms: 0,
            others: 1,
            key: [0; 32],
        }
    }

    /// Answers a worker, now or when it has connected again.
    fn answer_request(&mut self, rank: Rank, id: u64, body: Answer) {
        let message = reply(id, body);
        let Some(clerk) = self.desk.clerks.get_mut(&rank) else { return };
        if self.scenario.sabotage != Some(Sabotage::ForgetsAnswers) {
            let kept = clerk.answers.keep(id, &message);
            debug_assert!(kept, "an honest worker settles what it has");
        }
        if self.desk.greeted.contains(&rank) && self.wire(rank, self.control()).at_shard {
            self.post_record(rank, Way::Down, &message);
        }
    }

    fn open_barrier(&mut self) {
        if self.scenario.sabotage == Some(Sabotage::OpensBarriersEarly)
            && let [missing] = self.desk.roster.missing_at_barrier()[..]
        {
            self.desk.roster.arrive(missing);
        }
        let Some(ranks) = self.desk.roster.pass_barrier() else { return };
        let left: Vec<Rank> = self.desk.roster.members().left.into_iter().collect();
        for &rank in &ranks {
            let stood = self.desk.clerks.get_mut(&rank).and_then(|clerk| clerk.at_barrier.take());
            // Whoever is patient would wait for ever.
            let forgets = self.links[rank as usize].impatient && self.breaks(Sabotage::ForgetsWhoStood, 2);
            if let Some(id) = stood.filter(|_| !forgets) {
                let answer = Answer::BarrierPassed { ranks: ranks.clone(), left: left.clone() };
                self.answer_request(rank, id, answer);
            }
        }
    }

    /// A shard has taken a worker's goodbye.
    pub(super) fn departed(&mut self, rank: Rank, shard: usize) {
        self.desk.departed.entry(rank).or_default().insert(shard);
        self.let_go(rank);
    }

    /// Lets a worker go that has asked for it, once all shards have taken what it submitted.
    fn let_go(&mut self, rank: Rank) {
        let departed = self.desk.departed.get(&rank).map_or(0, |shards| shards.len());
        let early = self.scenario.sabotage == Some(Sabotage::LetsGoAtOnce);
        let Some(id) = self.desk.clerks.get(&rank).and_then(|clerk| clerk.leaving) else { return };
        if departed < self.servers.len() && !early {
            return;
        }
        self.answer_request(rank, id, Answer::Left);
        if let Some(clerk) = self.desk.clerks.remove(&rank) {
            self.desk.parted.insert(rank, clerk.session);
        }
        self.desk.greeted.remove(&rank);
        self.desk.roster.leave(rank);
        self.has_come(rank, false);
        self.open_barrier();
    }

    /// A worker is lost: no other waits for it. `false`: it had left.
    pub(super) fn strike_off(&mut self, rank: Rank) -> bool {
        if self.desk.roster.of(rank) == Member::Left {
            return false;
        }
        let _ = self.desk.roster.lose(rank) || self.desk.roster.miss(rank, false);
        self.desk.clerks.remove(&rank);
        self.desk.greeted.remove(&rank);
        self.has_come(rank, false);
        self.open_barrier();
        true
    }
}
