//! Workers that leave. One that is done is let go when every shard has taken its goodbye, and with it everything before; until
//! then it is a worker like any other, and lost if it dies.
//!
//! On another host the answer may be lost with a connection: who has left may come again and ask again, until it says that it has
//! heard.

use super::control::{Answered, Control, Last};
use crate::options::OnWorkerLoss;
use penstock_proto::Rank;
use penstock_proto::error::{JobFailure, Loss};
use penstock_proto::message::{Answer, Departure};

impl Control {
    pub(super) fn leave(&mut self, token: u64, rank: Rank, request: u64, how: Departure) -> Option<Answered> {
        match how {
            Departure::Done => {
                self.workers.get_mut(&rank)?.leaving = Some(request);
                self.let_go(rank);
            }
            Departure::Failed { what } => self.close(token, Loss::Failed { what }),
            Departure::Heard(failure) => self.hear_of(token, failure),
        }
        None
    }

    /// A worker has heard that the job has failed, from another server or because it lost one. Here nobody may know.
    fn hear_of(&mut self, token: u64, failure: JobFailure) {
        let us = matches!(failure, JobFailure::ServerLost { server, .. } if server == self.config.index);
        match self.config.options.on_worker_loss {
            OnWorkerLoss::Stop if !us => self.end(failure),
            _ => self.close(token, Loss::Failed { what: failure.to_string() }),
        }
    }

    /// Lets a worker go that has asked for it, once all shards have taken what it submitted.
    pub(super) fn let_go(&mut self, rank: Rank) {
        let Some(worker) = self.workers.get(&rank) else { return };
        let Some(request) = worker.leaving.filter(|_| worker.departed == self.shards.handles.len()) else {
            return;
        };
        self.answer(rank, request, Ok((Answer::Left, Vec::new())));
        let Some(worker) = self.workers.remove(&rank) else { return };
        self.forget(rank);
        if self.roster.leave(rank) {
            self.go_on_without(rank);
        }
        if !worker.is_remote() {
            worker.client.map(|token| self.drop_client(token));
            return;
        }
        // Until it has heard the answer it may come again.
        self.departed.insert(rank, (worker.session, Last::Left));
        self.partings.insert(rank, self.clock.now() + self.lease_ms());
        if let Some(client) = worker.client.and_then(|token| self.clients.get_mut(&token)) {
            (client.rank, client.parting) = (None, Some(rank));
        }
    }
}
