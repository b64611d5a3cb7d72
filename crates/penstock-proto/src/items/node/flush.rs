//! Flushes. There are two kinds, so that no producer delays what does not concern its rows:
//!
//! - *Take mine* ([`Node::flush`]): all that was set here has come to the peer, and all that the peer wants is known here. It
//!   waits for what this side has not sent yet and for an answer, not for what the peer has for this side: those may be rows of
//!   a producer that never brings them, or never leaves them whole. A worker that stands at a barrier, declares a table or
//!   leaves waits for this kind.
//! - *Bring* ([`Node::bring`]): of one partition, all that is due has come here. It waits for that partition's producer, and
//!   the side that asks knows which one that is. A get after a barrier waits for this kind.

use super::kept::{ENTRY_BYTES, Kept, keep};
use super::{Broken, Host, Node};
use crate::items::wire::{Message, PartitionId};
use crate::peer::PeerId;
use std::collections::BTreeMap;

/// A flush that waits until some partitions' rows have been sent.
#[derive(Debug)]
pub(super) struct Flush {
    pub(super) id: u64,
    /// Whether the peer asked, or this side asks when it is through.
    pub(super) asked: bool,
    /// The partition that is to be brought.
    pub(super) of: Option<PartitionId>,
    /// By partition: the turn, that or a later one, in which what was due must have been taken.
    pub(super) partitions: BTreeMap<PartitionId, u64>,
    pub(super) _kept: Kept,
}

impl Flush {
    /// What the peer is told when it is through.
    pub(super) fn message(&self) -> Message<'static> {
        match (self.asked, self.of) {
            (true, _) => Message::Flushed { id: self.id },
            (false, None) => Message::Flush { id: self.id },
            (false, Some(partition)) => Message::Bring { id: self.id, partition },
        }
    }
}

/// A flush that was asked for here and is not complete.
#[derive(Debug)]
pub(super) struct Flushing {
    pub(super) peer: PeerId,
    pub(super) of: Option<PartitionId>,
    /// How often the peer had subscribed when it was begun.
    pub(super) subscribed: u64,
    /// Whether nobody waits for it any more.
    pub(super) given_up: bool,
}

impl<H: Host> Node<H> {
    /// Asks `peer` to say, to [`Host::flushed`], when all that was set here has come there, and all that it wants of what is
    /// produced here is known here.
    pub fn flush(&mut self, peer: PeerId) -> u64 {
        self.ask_to_flush(peer, None)
    }

    /// Asks the peer that a partition's rows come from to say, to [`Host::flushed`], when all of them that were due by then have
    /// come here. `None` where they come from no peer.
    pub fn bring(&mut self, partition: PartitionId) -> Option<u64> {
        let peer = self.partitions.get(&partition)?.upstream.as_ref()?.peer;
        Some(self.ask_to_flush(peer, Some(partition)))
    }

    fn ask_to_flush(&mut self, peer: PeerId, of: Option<PartitionId>) -> u64 {
        self.next += 1;
        self.flushing.insert(self.next, Flushing { peer, of, subscribed: 0, given_up: false });
        let _ = self.begin_flush(self.next, peer, false, of);
        self.next
    }

    pub(super) fn begin_flush(
        &mut self,
        id: u64,
        peer: PeerId,
        asked: bool,
        of: Option<PartitionId>,
    ) -> Result<(), Broken> {
        // On its next connection it asks again, and is asked again.
        if self.is_deaf(peer) {
            return Ok(());
        }
        self.collect_all();
        self.turn += 1;
        // It is looked at once more behind its last answer: then it is known that none is left before the flush.
        let subscribers = self.partitions.values_mut().filter_map(|it| it.subscribers.get_mut(&peer));
        subscribers.for_each(|it| it.dirty |= !it.fetches.is_empty());
        let mut partitions = self.unsent(peer);
        partitions.retain(|unsent, _| if asked { of == Some(*unsent) } else { of.is_none() });
        if let Some(connection) = self.peers.get_mut(&peer) {
            // The answer to the later one answers the earlier one too: a peer that asks again and again for rows which do
            // not come makes this side keep one.
            connection.flushes.retain(|flush| !asked || of.is_none() || !flush.asked || flush.of != of);
            let bytes = ENTRY_BYTES + (partitions.len() * 2 * size_of::<PartitionId>()) as u64;
            let kept = keep(&connection.account, "a flush", bytes)?;
            connection.flushes.push(Flush { id, asked, of, partitions, _kept: kept });
            if let Some(flushing) = self.flushing.get_mut(&id).filter(|_| !asked) {
                flushing.subscribed = connection.subscribed;
            }
        }
        self.settle(peer);
        Ok(())
    }

    /// A peer wants a partition brought: at once, unless its source has left something that has not been heard.
    pub(super) fn bring_to(&mut self, id: u64, peer: PeerId, partition: PartitionId) -> Result<(), Broken> {
        let upstream = self.partitions.get(&partition).and_then(|partition| partition.upstream.as_ref());
        if upstream.is_some_and(|upstream| self.is_deaf(upstream.peer))
            && !self.is_deaf(peer)
            && let Some(connection) = self.peers.get_mut(&peer)
        {
            // The answer to a later one answers those before it.
            connection.later.insert(partition, id);
            return Ok(());
        }
        self.begin_flush(id, peer, true, Some(partition))
    }

    /// What a source had left has been heard: of its partitions is brought what others want brought.
    pub(super) fn bring_what_waited(&mut self, source: PeerId) {
        let Self { peers, partitions, .. } = self;
        let mut due = Vec::new();
        for (&peer, connection) in peers {
            connection.later.retain(|id, flush| {
                let upstream = partitions.get(id).and_then(|partition| partition.upstream.as_ref());
                let waits = upstream.is_some_and(|upstream| upstream.peer != source);
                if !waits {
                    due.push((*flush, peer, *id));
                }
                waits
            });
        }
        for (flush, peer, id) in due {
            if let Err(broken) = self.begin_flush(flush, peer, true, Some(id))
                && let Some(connection) = self.peers.get_mut(&peer)
            {
                connection.overdrawn = Some(broken);
            }
        }
    }

    /// A peer says that a flush is complete. What it has subscribed to since that was begun it may lack: it is flushed again.
    pub(super) fn end_flush(&mut self, id: u64, peer: PeerId) -> Result<(), Broken> {
        let Some(Flushing { of, subscribed, .. }) = self.flushing.get(&id).filter(|it| it.peer == peer)
        else {
            return Ok(());
        };
        let (of, before) = (*of, *subscribed);
        if of.is_none() && self.peers.get(&peer).is_some_and(|it| it.subscribed != before) {
            return self.begin_flush(id, peer, false, None);
        }
        // What was due for an earlier one that asks for the same is among what was due for this one.
        let answers = |other: &u64, it: &Flushing| {
            *other == id || of.is_some() && *other < id && it.peer == peer && it.of == of
        };
        let of_it = self.flushing.range(..=id).filter(|(other, it)| answers(other, it));
        for answered in of_it.map(|(&other, _)| other).collect::<Vec<u64>>() {
            if self.flushing.remove(&answered).is_some_and(|it| !it.given_up) {
                self.host.flushed(answered);
            }
        }
        self.forget_given_up(peer, of);
        Ok(())
    }

    /// Nobody waits any more for a flush of this side; `false` if it is none.
    pub(super) fn give_up_flush(&mut self, id: u64) -> bool {
        let Some(flushing) = self.flushing.get_mut(&id) else { return false };
        flushing.given_up = true;
        let (peer, of) = (flushing.peer, flushing.of);
        self.forget_given_up(peer, of);
        true
    }

    /// Of those that ask a peer to bring the same it keeps the newest: that one's answer is the only one that those before it
    /// may have, and it is not forgotten while one of them is waited for.
    fn forget_given_up(&mut self, peer: PeerId, of: Option<PartitionId>) {
        let same = |it: &Flushing| it.peer == peer && it.of == of;
        let mut all = self.flushing.iter().filter(|(_, it)| same(it));
        let waited_for = of.is_some() && all.clone().any(|(_, it)| !it.given_up);
        let newest = all.next_back().map(|(&id, _)| id).filter(|_| waited_for);
        self.flushing.retain(|&id, it| !it.given_up || !same(it) || newest == Some(id));
    }
}
