//! The servers' side: what a shard does with what arrives, and who is taken for lost.

use super::{Cluster, Event, Failure, Map, Server};
use crate::faults::{Fate, OnLoss};
use crate::history::Observation;
use crate::memory::{Deed, Mirror};
use crate::transport::{Message, Payload};
use crate::worker::{State, Worker};
use penstock_proto::error::{JobFailure, Loss};
use penstock_proto::shard::SubmissionRefused;
use penstock_proto::submission::Submission;
use penstock_proto::{Rank, TensorId};

impl Cluster<'_> {
    pub(super) fn declare(&mut self, tensor: TensorId, shard: usize) -> Result<(), Failure> {
        let Map { cut, homes } = &self.maps[tensor as usize];
        let spec = self.workload.spec(tensor);
        let Server { machine, memory, .. } = &mut self.servers[shard];
        memory.declare(tensor, spec, *cut, &homes[shard], self.workload.workers());
        machine.declare(tensor, spec.clone(), cut.chunks(), homes[shard].clone());
        self.undeclared[tensor as usize].as_mut().expect("someone declared it").remove(&shard);
        self.give_up_orphans(shard);
        self.after(shard)?;
        let waiting = |worker: &Worker| matches!(worker.state, State::Declaring(_)).then_some(worker.rank);
        let waiting: Vec<Rank> = self.workers.iter().filter_map(waiting).collect();
        waiting.into_iter().for_each(|rank| self.wake_later(rank));
        Ok(())
    }

    pub(super) fn deliver(&mut self, rank: Rank, shard: usize) -> Result<(), Failure> {
        let Some(message) = self.links[rank as usize][shard].receive(self.now) else { return Ok(()) };
        let Server { machine, memory, .. } = &mut self.servers[shard];
        if !machine.clocks().is_live(rank) {
            return Ok(()); // nobody listens to it any more
        }
        let (words, payload) = match message {
            Message::Bye => return self.remove(rank, shard, true),
            Message::Submission(words, payload) => (words, payload),
        };
        if let Some(Payload { tensor, chunks }) = payload.as_deref() {
            chunks.iter().for_each(|(chunk, bytes)| memory.write_lane(*tensor, *chunk, rank, bytes));
        }
        let submission = match Submission::decode(words) {
            Ok(submission) => submission,
            Err(error) => return self.refused(rank, shard, &error.to_string()),
        };
        match machine.submit(rank, &submission, memory) {
            Ok(()) => self.after(shard),
            Err(SubmissionRefused::Failure(failure)) => {
                self.end_job(failure);
                self.after(shard)
            }
            Err(error) => self.refused(rank, shard, &error.to_string()),
        }
    }

    pub(super) fn refused(&mut self, rank: Rank, shard: usize, why: &str) -> Result<(), Failure> {
        self.see(Observation::Refused { shard, rank, why })?;
        if !matches!(self.scenario.faults.fates[rank as usize], Fate::Hostile { .. }) {
            return Err(Failure::HonestRefused { at: self.now, rank, why: why.to_owned() });
        }
        self.lose(rank, &Loss::Broke { what: why.to_owned() });
        self.remove(rank, shard, false)
    }

    /// The control plane tells all shards that a worker is lost, each in its own time.
    pub(super) fn lose(&mut self, rank: Rank, loss: &Loss) {
        if !self.lost.insert(rank) {
            return;
        }
        for shard in 0..self.servers.len() {
            let delay = self.delay();
            self.later(delay, Event::Remove(rank, shard));
        }
        if self.scenario.faults.on_loss == OnLoss::Stop {
            self.end_job(JobFailure::WorkerLost { rank, loss: loss.clone() });
        }
    }

    pub(super) fn remove(&mut self, rank: Rank, shard: usize, clean: bool) -> Result<(), Failure> {
        let Server { machine, memory, .. } = &mut self.servers[shard];
        if !machine.clocks().is_live(rank) {
            return Ok(());
        }
        if let Err(failure) = machine.remove(rank, memory) {
            self.end_job(failure);
        }
        self.see(Observation::Removed { shard, rank, clean })?;
        self.give_up_orphans(shard);
        self.after(shard)
    }

    /// The server refuses a tensor that is declared after worker 0 has gone, since nobody can give it a value; here its
    /// declaration ends the job.
    pub(super) fn give_up_orphans(&mut self, shard: usize) {
        let machine = &self.servers[shard].machine;
        let orphan = self.workload.ids().find(|&tensor| !machine.missing(tensor, 0).is_empty());
        if let Some(tensor) = orphan
            && !machine.clocks().is_live(0)
        {
            self.end_job(JobFailure::NoValue { name: format!("t{tensor}"), loss: None });
        }
    }

    pub(super) fn end_job(&mut self, failure: JobFailure) {
        if self.failure.is_none() {
            self.failure = Some(failure);
            for rank in 0..self.workload.workers() {
                let delay = self.delay();
                self.later(delay, Event::End(rank));
            }
        }
    }

    /// A shard did something: it is seen, questions are answered, and who waits looks again.
    pub(super) fn after(&mut self, shard: usize) -> Result<(), Failure> {
        for deed in self.servers[shard].memory.take_deeds() {
            match &deed {
                Deed::Folded { tensor, chunk, writers } => {
                    self.see(Observation::Folded { shard, tensor: *tensor, chunk: *chunk, writers })?;
                }
                Deed::Published { tensor, chunk, mirror: Mirror { version, value } } => {
                    let (tensor, chunk, version) = (*tensor, *chunk, *version);
                    self.see(Observation::Published { shard, tensor, chunk, version, value })?;
                }
            }
        }
        self.answer(shard);
        let waits = |worker: &&Worker| matches!(worker.state, State::Waiting { .. });
        let waiting: Vec<Rank> = self.workers.iter().filter(waits).map(|worker| worker.rank).collect();
        for rank in waiting {
            if !self.is_remote(rank) {
                self.wake_later(rank);
            }
        }
        Ok(())
    }

    pub(super) fn answer(&mut self, shard: usize) {
        let server = &mut self.servers[shard];
        let asks = std::mem::take(&mut server.asks);
        let (ready, parked): (Vec<_>, Vec<_>) =
            asks.into_iter().partition(|(rank, _, need)| server.meets(*rank, need));
        server.asks = parked;
        for (rank, wait, need) in ready {
            let homed = &self.maps[need.tensor as usize].homes[shard];
            let memory = &self.servers[shard].memory;
            let mirror = |&chunk: &u32| Some((chunk, memory.mirror(need.tensor, chunk)?.clone()));
            let chunks = homed.iter().filter_map(mirror).collect();
            let delay = self.delay();
            self.later(delay, Event::Answer { rank, wait, shard, chunks });
        }
    }
}
