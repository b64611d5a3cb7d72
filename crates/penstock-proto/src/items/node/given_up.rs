//! What nobody waits for any more, or ever did: it is kept neither here nor at the peer that was asked.

use super::upstream::Asked;
use super::{Host, Node};
use crate::items::rows::RowSet;
use crate::items::wire::PartitionId;
use crate::peer::PeerId;
use std::collections::BTreeMap;

/// Fetches ahead without an answer that are kept, the newest. Each takes an entry of those that a peer may make others keep
/// ([`crate::account::Resource::Entries`]). Above it the oldest is withdrawn, and whoever wants its rows later waits for them.
pub const MOST_AHEAD: usize = 1024;
/// Rows that these name together, apart from the newest's: about eight bytes each, at the peer.
pub const MOST_ROWS_AHEAD: u64 = 1 << 20;

/// Fetches that nobody waits for.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// By ticket: the partition, and how many rows.
    fetches: BTreeMap<u64, (PartitionId, u64)>,
    rows: u64,
}

impl Ahead {
    fn add(&mut self, ticket: u64, id: PartitionId, rows: u64) {
        self.fetches.insert(ticket, (id, rows));
        self.rows += rows;
    }

    /// It has been answered, or never will be.
    pub(super) fn remove(&mut self, ticket: u64) {
        if let Some((_, rows)) = self.fetches.remove(&ticket) {
            self.rows -= rows;
        }
    }

    /// The oldest, where there are too many.
    fn surplus(&mut self) -> Option<(u64, PartitionId)> {
        let many = self.fetches.len() > MOST_AHEAD || self.rows > MOST_ROWS_AHEAD;
        if !many || self.fetches.len() == 1 {
            return None;
        }
        let (ticket, (id, rows)) = self.fetches.pop_first()?;
        self.rows -= rows;
        Some((ticket, id))
    }
}

impl<H: Host> Node<H> {
    /// [`Node::fetch`] for rows that nobody waits for now.
    pub fn fetch_ahead(&mut self, id: PartitionId, places: &RowSet, version: u64) {
        if let Some(ticket) = self.fetch(id, places, version) {
            self.ahead.add(ticket, id, places.len());
        }
        while let Some((ticket, id)) = self.ahead.surplus() {
            self.withdraw(id, ticket);
        }
    }

    /// Nobody waits any more for the answer to a fetch or flush of this node.
    pub fn give_up(&mut self, number: u64) {
        if self.give_up_flush(number) {
            return;
        }
        let mut partitions = self.partitions.iter();
        let asked = partitions.find(|(_, it)| {
            it.upstream.as_ref().is_some_and(|upstream| upstream.fetches.contains_key(&number))
        });
        if let Some((&id, _)) = asked {
            self.withdraw(id, number);
        }
    }

    /// Fetches and flushes of this node that are waited for, and have no answer.
    pub fn unanswered(&self) -> usize {
        let upstreams = self.partitions.values().filter_map(|partition| partition.upstream.as_ref());
        let flushes = self.flushing.values().filter(|flush| !flush.given_up).count();
        flushes + upstreams.map(|upstream| upstream.fetches.len()).sum::<usize>()
    }

    /// A partition's source need not answer a fetch any more.
    pub(super) fn withdraw(&mut self, id: PartitionId, ticket: u64) {
        let partition = self.partitions.get_mut(&id);
        let Some(upstream) = partition.and_then(|partition| partition.upstream.as_mut()) else { return };
        let Some(Asked { paid, .. }) = upstream.fetches.remove(&ticket) else { return };
        // Whoever asked for it pays until a source that has heard of it hears that it is withdrawn.
        if upstream.has_told(ticket) {
            upstream.withdrawn.push((ticket, paid));
            self.want(id);
        }
    }

    /// A peer no longer waits for what it has fetched. It may have been answered meanwhile.
    pub(super) fn take_back(&mut self, id: PartitionId, peer: PeerId, ticket: u64) {
        // A peer whose tickets do not ascend does without.
        if let Some(waiting) = self.is_waiting(id, peer) {
            if let Ok(at) = waiting.fetches.binary_search_by_key(&ticket, |fetch| fetch.0) {
                waiting.fetches.remove(at);
            }
            return;
        }
        let partition = self.partitions.get_mut(&id);
        let Some(subscriber) = partition.and_then(|it| it.subscribers.get_mut(&peer)) else { return };
        let Some(at) = subscriber.place_of(ticket) else { return };
        let Some(pending) = subscriber.fetches.remove(at) else { return };
        subscriber.over -= usize::from(pending.is_over);
        if let Some(pass) = subscriber.pass.as_mut().filter(|pass| pass.next > at) {
            pass.next -= 1;
        }
        if let Some(ticket) = pending.relayed {
            self.withdraw(id, ticket);
        }
    }
}
