//! Workers that leave. One that is done is let go when every shard has taken its goodbye, and with it everything before; until
//! then it is a worker like any other, and lost if it dies.
//!
//! The answer may be lost with a connection to another host: a worker that has left may come again and ask again, until it says
//! that it has heard. Until it hangs up, it may also say that it failed before it heard so, and has not left well then: the worker
//! itself, the server and the others are to know the same of it.

use super::control::{Answered, Control, Last, RETURN_WITHIN_MS, plain};
use crate::options::OnWorkerLoss;
use penstock_proto::Rank;
use penstock_proto::error::{JobFailure, Loss};
use penstock_proto::membership::Member;
use penstock_proto::message::{Answer, Departure, Reply, encode};
use penstock_proto::peer::PeerId;

/// After one worker reports a failure that it has heard of: how long workers that know better may take to say so, in
/// milliseconds. At least a quarter of a lease, within which all workers on the network notice that a server gives no more
/// signs of life.
const HEARSAY_WITHIN_MS: u64 = 2_000;

/// Whether two reports are of the same loss: what counts is who was lost, not how that was noticed, which differs from worker
/// to worker.
fn is_same(one: &JobFailure, other: &JobFailure) -> bool {
    use JobFailure::{NoValue, NonFinite, ServerLost, SettingsConflict, Stopped, WorkerLost};
    match (one, other) {
        (WorkerLost { rank: a, .. }, WorkerLost { rank: b, .. }) => a == b,
        (
            ServerLost { server: a, .. } | Stopped { server: a },
            ServerLost { server: b, .. } | Stopped { server: b },
        ) => a == b,
        (NonFinite { rank: a, name: x }, NonFinite { rank: b, name: y }) => (a, x) == (b, y),
        (
            SettingsConflict { name: x, first: a, second: c, stamp: s, .. },
            SettingsConflict { name: y, first: b, second: d, stamp: t, .. },
        ) => (x, a, c, s) == (y, b, d, t),
        (NoValue { name: x, .. }, NoValue { name: y, .. }) => x == y,
        _ => false,
    }
}

/// What becomes of a worker that has heard of a failure which nobody else confirms.
fn it_heard(failure: &JobFailure) -> Loss {
    Loss::Failed { what: format!("it heard: {failure}") }
}

impl Control {
    pub(super) fn leave(&mut self, token: u64, rank: Rank, request: u64, how: Departure) -> Option<Answered> {
        match how.brief() {
            Departure::Done => {
                self.workers.get_mut(&rank)?.leaving = Some(request);
                self.let_go(rank);
            }
            Departure::Failed { what } => {
                let loss = Loss::Failed { what };
                self.answer_last(
                    token,
                    request,
                    Answer::Failed(JobFailure::WorkerLost { rank, loss: loss.clone() }),
                );
                self.close(token, loss);
            }
            Departure::Heard(failure) => {
                self.answer_last(token, request, Answer::Failed(failure.clone()));
                self.hear_of(token, rank, failure);
            }
        }
        None
    }

    /// Answers a client that is hung up on next. One that has hung up itself needs to hear nothing.
    fn answer_last(&mut self, token: u64, request: u64, answer: Answer) {
        if let Some(client) = self.clients.get_mut(&token)
            && let Ok(bytes) = encode(&Reply { id: request, body: answer })
        {
            let _ = client.channel.send(&bytes, &[]);
        }
    }

    /// A worker that has been told the last word says that it leaves: the answer was lost with a connection. Or it fails after
    /// all, and has not heard that it was let go. Then it has not left well, whatever the others were told meanwhile: as when
    /// its launcher says so, what it submitted counts, and they hear how it ended. Not where the job has ended, which then
    /// counts for the worker too.
    ///
    /// This answer may be lost as well: until the worker says that it has heard it, it may come again, for as long as it waits
    /// for it. That it has heard may be lost too, with the connection that it ends.
    pub(super) fn leave_again(&mut self, peer: PeerId, how: Departure) -> Option<Answered> {
        let fails = !matches!(how, Departure::Done);
        let loss = match how.brief() {
            Departure::Done => None,
            Departure::Failed { what } => Some(Loss::Failed { what }),
            // The first server is left last: where another has let a worker go, the first hears from it what it heard, and judges
            // it. Here it is this worker's word alone, and what it cannot have from another server: they all let it go before.
            Departure::Heard(failure) => (self.config.index == 0).then(|| it_heard(&failure)),
        };
        if let Some(loss) = loss.as_ref().filter(|_| self.is_open()) {
            self.disown(peer, loss);
        }
        let soon = self.clock.now() + RETURN_WITHIN_MS;
        if let Some(until) = self.partings.get_mut(&peer).filter(|_| fails) {
            *until = soon.min(*until);
        }
        let rank = self.rank_of(peer)?;
        match self.roster.of(rank) {
            Member::Left => plain(Answer::Left),
            Member::Lost => {
                // Of a worker on this host, whose connection does not break, nothing is kept.
                let loss = match self.departed.get(&peer) {
                    Some((_, Last::Lost(kept))) => kept.clone(),
                    _ => loss?,
                };
                plain(Answer::Failed(JobFailure::WorkerLost { rank, loss }))
            }
            // It has been told how the job ended.
            Member::Awaited | Member::Joined => None,
        }
    }

    /// A peer that had left is lost after all. `false` if it had not left.
    pub(super) fn disown(&mut self, peer: PeerId, loss: &Loss) -> bool {
        let Some(rank) = self.rank_of(peer).filter(|&rank| self.roster.disown(rank)) else { return false };
        if let Some((_, last)) = self.departed.get_mut(&peer) {
            *last = Last::Lost(loss.clone());
        }
        self.note_loss(rank, loss.clone());
        true
    }

    /// A worker has heard that the job has failed, from another server or because it lost one. This server may not know it.
    fn hear_of(&mut self, token: u64, rank: Rank, failure: JobFailure) {
        let us = matches!(failure, JobFailure::ServerLost { server, .. } if server == self.config.index);
        let itself = matches!(failure, JobFailure::WorkerLost { rank: lost, .. } if lost == rank);
        if us || itself && self.goes_on() {
            return self.close(token, it_heard(&failure));
        }
        // It says nothing more, and needs to be told nothing.
        self.drop_client(token);
        if let Some(worker) = self.workers.get_mut(&rank) {
            // It does not leave well any more, even if its shards take its goodbye now.
            (worker.client, worker.leaving) = (None, None);
        }
        self.stand_aside(rank);
        let within = HEARSAY_WITHIN_MS.max(self.lease_ms() / 4);
        // Its first word stands, with its time: a worker that says it again is not judged any later.
        self.hearsay.entry(rank).or_insert_with(|| (self.clock.now() + within, failure));
        self.judge_hearsay();
    }

    /// Whether the others go on without a worker that is lost.
    fn goes_on(&self) -> bool {
        self.config.options.on_worker_loss == OnWorkerLoss::Continue
    }

    /// Ends the job because of what workers have heard elsewhere, if this server knows nothing against it or all workers here
    /// say the same. Otherwise those that know better have some time to say so; after that it is one worker's word against
    /// another's, and the failure is reported in the name of the worker that said it.
    ///
    /// Where the others go on without a lost worker, one worker's word ends nothing: it may be its own line that failed. Nor
    /// does it count as gone before the others have had that time: they may be unable to go on without it, and would be told
    /// that instead of what it noticed first.
    pub(super) fn judge_hearsay(&mut self) {
        if let Some(failure) = self.believed_at_once().or_else(|| self.agreed()).cloned() {
            return self.end(failure);
        }
        let now = self.clock.now();
        let late =
            self.hearsay.iter().filter(|(_, (until, _))| now >= *until).min_by_key(|(_, (until, _))| *until);
        if let Some((rank, loss)) = late.map(|(&rank, (_, failure))| (rank, it_heard(failure))) {
            self.lose_rank(rank, loss);
        }
    }

    fn believed_at_once(&self) -> Option<&JobFailure> {
        let mut heard = self.hearsay.values().map(|(_, failure)| failure);
        heard.find(|failure| !self.goes_on() && self.may_be(failure))
    }

    /// What all workers here say, if it is possible.
    fn agreed(&self) -> Option<&JobFailure> {
        let all = self.workers.keys().all(|rank| self.hearsay.contains_key(rank))
            && self.roster.awaited().next().is_none();
        let mut heard = self.hearsay.values().map(|(_, failure)| failure);
        let first = heard.clone().next().filter(|_| all)?;
        heard.all(|failure| self.can_be(failure) && is_same(first, failure)).then_some(first)
    }

    /// Whether this server knows nothing against it. It knows nothing at all about other servers.
    fn may_be(&self, failure: &JobFailure) -> bool {
        match failure {
            JobFailure::ServerLost { server, .. } => *server < self.config.servers,
            JobFailure::Stopped { server } => *server != self.config.index && *server < self.config.servers,
            JobFailure::WorkerLost { rank, .. } => {
                let silent = self.workers.get(rank).is_none_or(|worker| worker.client.is_none());
                // It is silent because it has said its last word, and that says more of it than another's.
                let denies = self.hearsay.get(rank).is_some_and(|(_, its)| !is_same(failure, its));
                let here = !matches!(self.roster.of(*rank), Member::Awaited | Member::Left);
                self.config.servers > 1 && *rank < self.config.workers && silent && !denies && here
            }
            _ => false,
        }
    }

    /// Whether it can be so if all that are here say so. Of a worker that has been let go, only its end can still be reported, by
    /// its launcher.
    fn can_be(&self, failure: &JobFailure) -> bool {
        let is_worker = |rank: &Rank| *rank < self.config.workers;
        // Where this is the only server, it has found out itself whatever a tensor's home finds out.
        let others = self.config.servers > 1;
        match failure {
            JobFailure::WorkerLost { rank, loss: Loss::Ended { .. } } => is_worker(rank),
            JobFailure::WorkerLost { rank, .. } => is_worker(rank) && !self.has_let_go(*rank),
            JobFailure::ServerLost { server, .. } | JobFailure::Stopped { server } => {
                *server != self.config.index && *server < self.config.servers
            }
            JobFailure::NonFinite { rank, .. } => others && is_worker(rank),
            JobFailure::SettingsConflict { first, second, .. } => {
                others && is_worker(first) && is_worker(second)
            }
            _ => others,
        }
    }

    /// Whether a worker is known to have left well: the first server is left last, so a worker that has left it has
    /// left all others.
    fn has_let_go(&self, rank: Rank) -> bool {
        self.config.index == 0 && self.roster.of(rank) == Member::Left
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
        let (peer, now) = (worker.peer, self.clock.now());
        if worker.is_remote() {
            // Until it has heard the answer it may come again.
            self.departed.insert(peer, (worker.session, Last::Left));
            self.partings.insert(peer, now + self.lease_ms());
        }
        if let Some(client) = worker.client.and_then(|token| self.clients.get_mut(&token)) {
            (client.peer, client.parting, client.since) = (None, Some(peer), now);
        }
    }
}
