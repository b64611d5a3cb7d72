//! The servers' side: what a shard does with what arrives, and which workers are taken for lost.

use super::{Cluster, Event, Failure, Map, Server};
use crate::encodings;
use crate::faults::{Fate, OnLoss};
use crate::history::Observation;
use crate::sabotage::Sabotage;
use crate::shard_memory::{Deed, Mirror};
use crate::worker::State;
use penstock_proto::error::{JobFailure, Loss};
use penstock_proto::peer::PeerId;
use penstock_proto::remote::home;
use penstock_proto::shard::{Judged, SubmissionRefused};
use penstock_proto::submission::Submission;
use penstock_proto::{Rank, TensorId};
use std::sync::Arc;

impl Cluster<'_> {
    /// A shard hears that a worker has declared a tensor: the first makes it known there, and each gets a lane.
    pub(super) fn declare(&mut self, rank: Rank, tensor: TensorId, shard: usize) -> Result<(), Failure> {
        if !self.servers[shard].memory.is_declared(tensor) {
            self.make_known(tensor, shard)?;
        }
        self.servers[shard].memory.give_lane(tensor, rank);
        if matches!(self.workers[rank as usize].state, State::Declaring(_)) {
            self.wake_later(rank);
        }
        Ok(())
    }

    fn make_known(&mut self, tensor: TensorId, shard: usize) -> Result<(), Failure> {
        let Map { cut, homes } = &self.maps[tensor as usize];
        let spec = self.workload.spec(tensor);
        let known = match self.scenario.sabotage {
            Some(Sabotage::DecodesByAnother) => &encodings::ANOTHER,
            _ => &encodings::KNOWN,
        };
        let terms = Arc::new(encodings::terms(spec, known));
        let Server { machine, memory, .. } = &mut self.servers[shard];
        memory.declare(tensor, spec, terms, *cut, &homes[shard], self.workload.workers());
        machine.declare(tensor, spec.clone(), cut.chunks(), homes[shard].clone());
        self.give_up_orphans(shard);
        self.after(shard)
    }

    pub(super) fn deliver(&mut self, rank: Rank, shard: usize) -> Result<(), Failure> {
        let Some(words) = self.rings[rank as usize][shard].receive(self.now) else { return Ok(()) };
        if !self.servers[shard].machine.clocks().is_live(rank) {
            return Ok(()); // it is not listened to any more
        }
        let submission = match Submission::decode(words) {
            Ok(submission) => submission,
            Err(error) => return self.refused(rank, shard, &error.to_string()),
        };
        let Server { machine, memory, .. } = &self.servers[shard];
        let peer = PeerId::worker(rank);
        if let Err(undeclared) = home::check_declared(peer, &submission, memory) {
            return self.refused(rank, shard, &undeclared.to_string());
        }
        match machine.judge_local(peer, &submission) {
            Ok(judged) => self.take_judged(rank, shard, judged),
            Err(refused) => self.refused(rank, shard, &refused.to_string()),
        }
    }

    pub(super) fn take_judged(&mut self, rank: Rank, shard: usize, judged: Judged) -> Result<(), Failure> {
        let Server { machine, memory, .. } = &mut self.servers[shard];
        let leaves = matches!(judged.submission(), Submission::Leave);
        match machine.take(judged, memory) {
            Ok(()) => {}
            Err(SubmissionRefused::Failure(failure)) => self.end_job(failure),
            Err(error) => return self.refused(rank, shard, &error.to_string()),
        }
        if leaves {
            // A worker on another host still has to hear that its goodbye was taken.
            if let Some(port) = &mut self.servers[shard].ports.0[rank as usize] {
                port.peer.let_go();
            }
            self.see(Observation::Removed { shard, rank, clean: true })?;
            let delay = self.delay();
            self.later(delay, Event::Departed(rank, shard));
            self.give_up_orphans(shard);
        }
        self.after(shard)
    }

    pub(super) fn refused(&mut self, rank: Rank, shard: usize, why: &str) -> Result<(), Failure> {
        self.see(Observation::Refused { shard, rank, why })?;
        if !matches!(self.scenario.faults.fates[rank as usize], Fate::Hostile { .. }) {
            return Err(Failure::HonestRefused { at: self.now, rank, why: why.to_owned() });
        }
        self.lose(rank, &Loss::Broke { what: why.to_owned() });
        self.remove(rank, shard)
    }

    /// The control plane tells all shards that a worker is lost, each in its own time.
    pub(super) fn lose(&mut self, rank: Rank, loss: &Loss) {
        if !self.strike_off(rank) || !self.lost.insert(rank) {
            return;
        }
        let deaf = usize::from(self.scenario.sabotage == Some(Sabotage::KeepsTheLost));
        for shard in deaf..self.servers.len() {
            let delay = self.delay();
            self.later(delay, Event::Remove(rank, shard));
        }
        if self.scenario.faults.on_loss == OnLoss::Stop {
            self.end_job(JobFailure::WorkerLost { rank, loss: loss.clone() });
        }
    }

    /// A shard goes on without a worker that was lost.
    pub(super) fn remove(&mut self, rank: Rank, shard: usize) -> Result<(), Failure> {
        let Server { machine, memory, ports, overlay, .. } = &mut self.servers[shard];
        ports.0[rank as usize] = None;
        overlay.leave(PeerId::worker(rank));
        if !machine.clocks().is_live(rank) {
            return Ok(());
        }
        if let Err(failure) = machine.remove(rank, memory) {
            self.end_job(failure);
        }
        self.see(Observation::Removed { shard, rank, clean: false })?;
        self.give_up_orphans(shard);
        self.after(shard)
    }

    /// A fold that waited is committed.
    pub(super) fn commit(&mut self, shard: usize, tensor: TensorId, chunk: u32) -> Result<(), Failure> {
        let Server { machine, memory, .. } = &mut self.servers[shard];
        match machine.commit(tensor, chunk, memory) {
            Ok(waited) => debug_assert!(waited, "it is committed once"),
            Err(failure) => self.end_job(failure),
        }
        self.see(Observation::Committed { shard, tensor, chunk })?;
        self.after(shard)
    }

    /// The server refuses a tensor that is declared after worker 0 has gone, since no worker can give it a value; here its
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

    /// A shard did something: it is seen, what is owed to other hosts is noted, and those of its own that wait look again.
    pub(super) fn after(&mut self, shard: usize) -> Result<(), Failure> {
        for deed in self.servers[shard].memory.take_deeds() {
            match &deed {
                Deed::Folded { tensor, chunk, writers } => {
                    self.see(Observation::Folded { shard, tensor: *tensor, chunk: *chunk, writers })?;
                }
                Deed::Waits { tensor, chunk } => {
                    let delay = self.delay();
                    self.later(delay, Event::Commit(shard, *tensor, *chunk));
                }
                Deed::Published { tensor, chunk, mirror: Mirror { version, value, .. }, held } => {
                    let (tensor, chunk, version) = (*tensor, *chunk, *version);
                    self.see(Observation::Published { shard, tensor, chunk, version, value, held })?;
                }
                Deed::Told(event) => {
                    let Server { memory, ports, overlay, .. } = &mut self.servers[shard];
                    home::tell(*event, overlay, ports, memory);
                }
            }
        }
        for rank in 0..self.workload.workers() {
            if !self.is_remote(rank) && matches!(self.workers[rank as usize].state, State::Waiting { .. }) {
                self.wake_later(rank);
            }
        }
        Ok(())
    }
}
