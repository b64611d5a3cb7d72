//! Declarations of tensors: one after the other, each as many turns as it takes to touch its memory. Between two parts others are
//! heard and told that the server lives, whatever a tensor's size.

use super::requests::A_REQUEST;
use super::{Answered, Control, REQUESTS, TICKET_ENTRIES};
use crate::server::catalog::NewTensor;
use crate::server::client::Worker;
use crate::server::shard::Command;
use penstock_fabric::layout::flags;
use penstock_proto::account::{Account, Charge, Exhausted, Resource};
use penstock_proto::error::Refusal;
use penstock_proto::membership::Member;
use penstock_proto::message::Answer;
use penstock_proto::placement::Extent;
use penstock_proto::spec::TensorSpec;
use penstock_proto::{Rank, TensorId};
use rustix::fd::OwnedFd;

/// What the first server has decided of a tensor, for the others.
type Decided = (TensorId, Vec<Extent>);

/// A declaration that waits for its memory, or for those before it.
pub(super) struct Declaring {
    rank: Rank,
    request: u64,
    spec: TensorSpec,
    decided: Option<Decided>,
    _charges: [Charge; 2],
}

impl Declaring {
    fn new(
        account: &Account,
        (rank, request): (Rank, u64),
        spec: TensorSpec,
        decided: Option<Decided>,
    ) -> Result<Self, Refusal> {
        let refuse = |why: Exhausted| why.refuse("another declaration that waits for memory");
        let peer = account.worker(rank);
        let extents = decided.as_ref().map_or(0, |(_, extents)| size_of_val(&extents[..]));
        let bytes = size_of::<Self>() + spec.name.len() + size_of_val(&spec.shape[..]) + extents;
        let charges = [
            peer.charge(Resource::Entries, TICKET_ENTRIES).map_err(refuse)?,
            // The job's, as tensors are: a worker whose tables have all of its share can declare one.
            account.charge(Resource::Bytes, bytes as u64).map_err(refuse)?,
        ];
        Ok(Self { rank, request, spec, decided, _charges: charges })
    }
}

impl Control {
    /// Declares a tensor for a worker, now or in later turns.
    pub(super) fn declare(
        &mut self,
        rank: Rank,
        request: u64,
        spec: TensorSpec,
        decided: Option<Decided>,
    ) -> Option<Answered> {
        if self.declaring.iter().any(|waits| (waits.rank, waits.request) == (rank, request)) {
            return None; // it was asked once more on another connection
        }
        // Before any memory is touched, which would be in vain.
        let waits = match Declaring::new(&self.account, (rank, request), spec, decided) {
            Ok(waits) => waits,
            Err(refusal) => return Some(Err(refusal)),
        };
        let free = self.declaring.is_empty() && !self.first_touch.is_over();
        if free && let Some(answer) = self.try_declare(rank, waits.spec.clone(), waits.decided.clone()) {
            return Some(answer);
        }
        self.declaring.push_back(waits);
        None
    }

    /// Whether there is something to do for declarations at once, whether or not anything comes.
    pub(super) fn is_declaring(&self) -> bool {
        self.is_open() && !self.declaring.is_empty()
    }

    /// Goes on with the declarations that wait: a part each turn.
    pub(super) fn go_on_declaring(&mut self) {
        for _ in 0..REQUESTS {
            if !self.is_declaring() || self.first_touch.is_over() {
                break;
            }
            let Some(next) = self.declaring.pop_front() else { break };
            self.shards.flags.beat(flags::CONTROL);
            match self.try_declare(next.rank, next.spec.clone(), next.decided.clone()) {
                Some(answer) => self.answer(next.rank, next.request, answer),
                None => self.declaring.push_front(next),
            }
        }
    }

    /// A worker has gone: what it declared and was not told so far is given up.
    pub(super) fn stop_declaring(&mut self, rank: Rank) {
        // What is made is the first one's.
        if self.declaring.front().is_some_and(|waits| waits.rank == rank) {
            self.catalog.end_declaration();
        }
        self.declaring.retain(|waits| waits.rank != rank);
    }

    /// Does what can be done in this turn; `None` while memory is still to be touched.
    fn try_declare(&mut self, rank: Rank, spec: TensorSpec, decided: Option<Decided>) -> Option<Answered> {
        let answer = self.declare_in_part(rank, spec, decided).transpose();
        if answer.is_some() {
            self.catalog.end_declaration();
        }
        answer
    }

    fn declare_in_part(
        &mut self,
        rank: Rank,
        spec: TensorSpec,
        decided: Option<Decided>,
    ) -> Result<Option<(Answer, Vec<OwnedFd>)>, Refusal> {
        if matches!(self.roster.of(0), Member::Left | Member::Lost) && !self.catalog.knows(&spec.name) {
            return Err(Refusal::NoValue { name: spec.name });
        }
        let remote = self.workers.get(&rank).is_some_and(Worker::is_remote);
        let Some(id) = self.catalog.declare(rank, remote, spec, decided, &mut self.first_touch)? else {
            return Ok(None);
        };
        let again = self.catalog.is_given(id, rank);
        let Some(lanes) = self.catalog.lane(id, rank, remote, &mut self.first_touch)? else {
            return Ok(None);
        };
        let passed = match self.catalog.pass(id, rank, again) {
            // With the lane, a tensor that is new goes too.
            Err(refusal) if self.catalog.get(id).is_err() => return Err(refusal),
            passed => passed,
        };
        if let Some(NewTensor { id, spec, terms, total, homes }) = self.catalog.settle(id) {
            // A shard that is home of none of it need not know it.
            let homes = self.shards.handles.iter().zip(homes);
            for (shard, home) in homes.filter(|(_, home)| !home.chunks().is_empty()) {
                let (spec, terms) = (Box::new(spec.clone()), terms.clone());
                shard.send(Command::Declare { id, spec, terms, total, home });
            }
        }
        if !again {
            // However many tensors a model has: the memory of each is paid for.
            self.spent -= A_REQUEST;
        }
        let entry = self.catalog.get(id)?;
        // Before anything else can fail: a worker is given a lane once.
        for ((shard, lane), homed) in self.shards.handles.iter().zip(lanes).zip(&entry.homed) {
            if *homed > 0 {
                shard.send(Command::Lane { id, rank, lane });
            }
        }
        let (slabs, descriptors) = passed?;
        let answer = Answer::Declared {
            tensor: id,
            extents: entry.extents.clone(),
            homed: entry.homed.clone(),
            loads: entry.loads.clone(),
            slabs,
        };
        Ok(Some((answer, descriptors)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::travel::members::plain_tensor;
    use penstock_proto::account::Limits;
    use penstock_proto::travel::Travel;

    // What it waits with was charged to the worker, which then had nothing left of its share for it.
    #[test]
    fn a_worker_that_has_all_of_its_share_can_still_have_a_tensor_wait_for_memory() {
        let account = Account::new(Limits::NONE.with(Resource::Bytes, 1 << 20));
        let worker = account.worker(1);
        let mut share = worker.charge(Resource::Bytes, 0).unwrap();
        while share.grow(16).is_ok() {}
        let spec = plain_tensor(&"w".repeat(200), 20, Travel::default());
        let before = (account.taken(Resource::Bytes), worker.taken(Resource::Bytes));
        let waits = Declaring::new(&account, (1, 7), spec, None).unwrap();
        assert!(account.taken(Resource::Bytes) >= before.0 + 200, "it is paid for");
        assert_eq!(worker.taken(Resource::Bytes), before.1);
        assert_eq!(worker.taken(Resource::Entries), TICKET_ENTRIES, "that it waits is the worker's");
        drop(waits);
        assert_eq!((account.taken(Resource::Bytes), worker.taken(Resource::Entries)), (before.0, 0));
    }
}
