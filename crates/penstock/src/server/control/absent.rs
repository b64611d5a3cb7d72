//! What goes: connections that end, workers that are lost, leases.

use super::{Control, HELLO_WITHIN_MS, Last, RETURN_WITHIN_MS};
use crate::log::LOSSES;
use crate::options::OnWorkerLoss;
use crate::server::client::{Channel, Client, Worker};
use crate::server::items;
use crate::server::shard::Command;
use penstock_proto::Rank;
use penstock_proto::error::{JobFailure, Loss};
use penstock_proto::message::{Answer, Reply, encode};
use penstock_proto::peer::PeerId;
use rustix::event::epoll;

impl Control {
    /// The connection is over. A worker on this host is lost with it; one on another host may come again.
    pub(in crate::server) fn close(&mut self, token: u64, loss: Loss) {
        let Some(client) = self.clients.get(&token) else { return };
        let Some(rank) = client.peer.and_then(|peer| self.rank_of(peer)) else {
            self.drop_client(token);
            return;
        };
        let may_return = matches!(client.channel, Channel::Remote(_)) && loss == Loss::Died;
        if let Some(worker) = self.workers.get_mut(&rank)
            && may_return
        {
            let current = worker.client.take_if(|client| *client == token).is_some();
            self.drop_client(token);
            if current {
                self.look_at_end(rank);
            }
            return;
        }
        self.lose(rank, loss);
        if self.clients.get(&token).is_some_and(|client| client.parting.is_none()) {
            self.drop_client(token);
        }
    }

    pub(in crate::server) fn drop_client(&mut self, token: u64) -> Option<Client> {
        let client = self.clients.remove(&token)?;
        let _ = epoll::delete(&self.epoll, &client.channel);
        Some(client)
    }

    pub(in crate::server) fn lose_rank(&mut self, rank: Rank, loss: Loss) {
        match self.workers.get(&rank).and_then(|worker| worker.client) {
            Some(token) if matches!(loss, Loss::Broke { .. } | Loss::Exhausted { .. }) => {
                self.close(token, loss)
            }
            _ => self.lose(rank, loss),
        }
    }

    /// The launcher of a worker saw its process end.
    pub(super) fn gone(&mut self, rank: Rank, how: Option<String>) {
        if rank >= self.config.workers {
            tracing::warn!(rank, workers = self.config.workers, "a worker ended that this job does not have");
            return;
        }
        // It does not come again to hear the last word.
        let peer = self.roster.peer(rank);
        self.partings.remove(&peer);
        match how {
            None if self.roster.miss(rank, true) => self.go_on_without(rank),
            Some(how) if self.roster.miss(rank, false) => self.note_loss(rank, Loss::Ended { how }),
            // It said goodbye as if it were done, but was not: otherwise the others would take what has come for everything.
            Some(how) if self.disown(peer, &Loss::Ended { how: how.clone() }) => {}
            // It has said itself why, and that is judged once others have had time to say more.
            _ if self.hearsay.contains_key(&rank) => {}
            // Where the others go on, what it sent before counts, and may still be on its way.
            Some(how) if self.config.options.on_worker_loss == OnWorkerLoss::Stop => {
                self.lose(rank, Loss::Ended { how });
            }
            how => self.await_end(rank, how),
        }
    }

    /// The process of a worker that has not left has ended. On this host that ends its connection, which is enough; on another it
    /// is lost as soon as all that it sent has come.
    fn await_end(&mut self, rank: Rank, how: Option<String>) {
        // Said twice, each connection that ends counts once all the same.
        let awaited = |worker: &&mut Worker| worker.is_remote() && worker.ending.is_none();
        let Some(worker) = self.workers.get_mut(&rank).filter(awaited) else { return };
        let how = how.unwrap_or_else(|| "ended without closing the job".to_owned());
        let shards = &self.shards.handles;
        worker.ending = Some((how, shards.len() + usize::from(self.items.is_some())));
        let peer = worker.peer;
        shards.iter().for_each(|shard| shard.send(Command::AwaitEnd { peer }));
        if let Some(items) = &self.items {
            items.send(items::Command::AwaitEnd { peer });
        }
    }

    /// Whether the last connection of a worker whose process has ended has ended too. What it reported itself is judged in its
    /// own time.
    pub(super) fn look_at_end(&mut self, rank: Rank) {
        if self.hearsay.contains_key(&rank) {
            return;
        }
        let ended = |worker: &Worker| match &worker.ending {
            Some((how, 0)) if worker.client.is_none() => Some(how.clone()),
            _ => None,
        };
        if let Some(how) = self.workers.get(&rank).and_then(ended) {
            self.lose(rank, Loss::Ended { how });
        }
    }

    /// Those that came have gone, and others never came: nothing would end this server.
    pub(super) fn look_for_the_awaited(&mut self) {
        let now = self.clock.now();
        self.came |= !self.workers.is_empty();
        let deserted = self.came && self.workers.is_empty();
        let Some(rank) = self.roster.awaited().next().filter(|_| deserted) else {
            self.deserted_since = None;
            return;
        };
        let waited_ms = now - *self.deserted_since.get_or_insert(now);
        if u128::from(waited_ms) > self.config.options.deadline.as_millis() {
            self.end(JobFailure::WorkerLost { rank, loss: Loss::Absent { waited_ms } });
        }
    }

    fn lose(&mut self, rank: Rank, loss: Loss) {
        let loss = loss.brief();
        if let Some(worker) = self.workers.remove(&rank) {
            if worker.is_remote() {
                self.departed.insert(worker.peer, (worker.session, Last::Lost(loss.clone())));
            }
            if let Some(token) = worker.client {
                self.dismiss(token, worker.peer, rank, &loss);
            }
        }
        self.forget(rank);
        if self.roster.lose(rank) {
            self.note_loss(rank, loss);
        }
    }

    pub(in crate::server) fn note_loss(&mut self, rank: Rank, loss: Loss) {
        if rank == 0 {
            self.loss_of_first = Some(loss.clone());
        }
        match self.config.options.on_worker_loss {
            OnWorkerLoss::Stop => self.end(JobFailure::WorkerLost { rank, loss }),
            OnWorkerLoss::Continue => {
                tracing::warn!(
                    target: LOSSES,
                    rank,
                    %loss,
                    "a worker was lost, and the others go on without it"
                );
                self.go_on_without(rank);
            }
        }
    }

    /// Tells a worker that it is lost, which it may not know, and why: it was suspended, its line was silent, it broke the
    /// protocol, or needs more than it may have.
    fn dismiss(&mut self, token: u64, peer: PeerId, rank: Rank, loss: &Loss) {
        let failure = JobFailure::WorkerLost { rank, loss: loss.clone() };
        let reply = Reply { id: 0, body: Answer::Failed(failure) };
        let until = self.clock.now() + RETURN_WITHIN_MS;
        match (self.clients.get_mut(&token), encode(&reply)) {
            (Some(client), Ok(bytes))
                if matches!(loss, Loss::Silent { .. } | Loss::Broke { .. } | Loss::Exhausted { .. }) =>
            {
                let sent = client.channel.send(&bytes, &[]).is_ok();
                if sent && matches!(client.channel, Channel::Remote(_)) {
                    (client.peer, client.parting) = (None, Some(peer));
                    self.partings.insert(peer, until);
                    return self.watch(token);
                }
            }
            _ => {}
        }
        self.drop_client(token);
    }

    /// Nothing is kept for a worker that has gone; it is not listened to, and what it has said is not believed.
    pub(in crate::server) fn forget(&mut self, rank: Rank) {
        if let Some(items) = &self.items {
            items.send(items::Command::Leave { peer: self.roster.peer(rank) });
        }
        self.stop_declaring(rank);
        self.catalog.forget(rank);
        self.tables.forget(rank);
        self.tickets.retain(|_, ticket| ticket.rank != rank);
        self.hearsay.remove(&rank);
    }

    pub(in crate::server) fn go_on_without(&mut self, rank: Rank) {
        self.end_wait(rank);
        self.trees.leave(rank);
        if let (Some(bell), Some(items)) = (self.bells.remove(rank), &self.items) {
            items.send(items::Command::Silence(bell));
        }
        self.table_without(rank);
        let peer = self.roster.peer(rank);
        for shard in &self.shards.handles {
            shard.send(Command::Remove { peer });
        }
        self.wait_without(rank);
    }

    pub(super) fn look_at_leases(&mut self) {
        let (now, lease_ms) = (self.clock.now(), self.lease_ms());
        if self.ended.is_none() {
            // A worker that has reported the job's failure says nothing more, and is no longer judged by its silence.
            let expected = |(rank, _): &(&Rank, &mut Worker)| !self.hearsay.contains_key(rank);
            let silent = |(&rank, worker): (&Rank, &mut Worker)| worker.is_silent(now).then_some(rank);
            let silent: Vec<Rank> = self.workers.iter_mut().filter(expected).filter_map(silent).collect();
            for rank in silent {
                self.lose_rank(rank, Loss::Silent { lease_ms });
            }
        }
        // It may be a worker that was stopped for as long: it comes again.
        let late =
            |client: &Client| client.is_stranger() && now.saturating_sub(client.since) > HELLO_WITHIN_MS;
        let late: Vec<u64> =
            self.clients.iter().filter_map(|(&token, client)| late(client).then_some(token)).collect();
        late.into_iter().for_each(|token| self.turn_client_away(token));
        self.partings.retain(|_, until| now <= *until);
        let partings = &self.partings;
        self.clients.retain(|_, client| match (client.peer, client.parting) {
            (None, Some(peer)) => match client.channel {
                Channel::Remote(_) => partings.contains_key(&peer),
                // It has left, and hangs up.
                Channel::Local(_) => now.saturating_sub(client.since) <= lease_ms,
            },
            _ => true,
        });
    }
}
