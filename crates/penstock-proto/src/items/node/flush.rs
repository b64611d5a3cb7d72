//! Flushes. There are two kinds, so that no producer delays what does not concern its rows:
//!
//! - *Take mine* ([`Node::flush`]): all that was set here has come to the peer, and all that the peer wants is known here. It
//!   waits for what this side has not sent yet and for an answer, not for what the peer has for this side: those may be rows of
//!   a producer that never brings them, or never leaves them whole. A worker that stands at a barrier, declares a table or
//!   leaves waits for this kind.
//! - *Bring* ([`Node::bring`]): of one partition, all that is due has come here. It waits for that partition's producer, and
//!   the side that asks knows which one that is. A get after a barrier waits for this kind.

use super::kept::{ENTRY_BYTES, Kept, keep};
use super::subscriber::Subscriber;
use super::{Broken, Connection, Host, Node, collect};
use crate::items::wire::{Encoder, Message, PartitionId};
use crate::peer::PeerId;
use std::collections::BTreeMap;

/// A flush of this side that waits until some partitions' rows have been sent: then the peer is asked.
#[derive(Debug)]
pub(super) struct Flush {
    pub(super) id: u64,
    /// By partition: the turn, that or a later one, in which what was due must have been taken.
    pub(super) partitions: BTreeMap<PartitionId, u64>,
    pub(super) _kept: Kept,
}

/// The newest question of a peer whether what is due to it of a partition has been brought, while it has not.
#[derive(Debug)]
pub(super) struct Bringing {
    id: u64,
    /// The turn, that or a later one, in which what was due must have been taken.
    turn: u64,
    _kept: Kept,
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
        let _ = self.begin_flush(self.next, peer, of);
        self.next
    }

    /// Asks a peer once all that it is to know before has been said.
    pub(super) fn begin_flush(
        &mut self,
        id: u64,
        peer: PeerId,
        of: Option<PartitionId>,
    ) -> Result<(), Broken> {
        // On its next connection it is asked again.
        if self.is_deaf(peer) {
            return Ok(());
        }
        let partitions = if of.is_none() { self.due_in_all(peer) } else { BTreeMap::new() };
        let Some(connection) = self.peers.get_mut(&peer) else { return Ok(()) };
        match of {
            Some(partition) => connection.say_behind(&Message::Bring { id, partition }),
            None => {
                let bytes = ENTRY_BYTES + (partitions.len() * 2 * size_of::<PartitionId>()) as u64;
                let kept = keep(&connection.account, "a flush", bytes)?;
                connection.flushes.push(Flush { id, partitions, _kept: kept });
            }
        }
        if let Some(flushing) = self.flushing.get_mut(&id) {
            flushing.subscribed = connection.subscribed;
        }
        self.settle(peer);
        Ok(())
    }

    /// What is due to a peer by now, of all partitions.
    fn due_in_all(&mut self, peer: PeerId) -> BTreeMap<PartitionId, u64> {
        self.collect_all();
        self.turn += 1;
        let subscribers = self.partitions.values_mut().filter_map(|it| it.subscribers.get_mut(&peer));
        subscribers.for_each(Subscriber::look_once_more);
        self.unsent(peer)
    }

    /// A peer flushes: what it has set has been heard, and what is wanted of it is said before.
    pub(super) fn answer_flush(&mut self, id: u64, peer: PeerId) {
        if !self.is_deaf(peer)
            && let Some(connection) = self.peers.get_mut(&peer)
        {
            connection.say_behind(&Message::Flushed { id });
        }
    }

    /// Answers a peer once what is due to it of a partition has been sent. No other partition is looked at: a peer may ask about as
    /// many as it likes.
    pub(super) fn begin_bring(&mut self, id: u64, peer: PeerId, of: PartitionId) -> Result<(), Broken> {
        // On its next connection it asks again.
        if self.is_deaf(peer) {
            return Ok(());
        }
        let Self { partitions, peers, scratch, turn, .. } = self;
        let Some(connection) = peers.get_mut(&peer) else { return Ok(()) };
        // The answer to the later one answers the earlier one too: a peer that asks again and again for rows which do not come makes
        // this side keep one.
        connection.brings.remove(&of);
        let under_way = connection.batch.as_ref().filter(|batch| batch.partition == of);
        let mut until = under_way.map(|batch| batch.turn);
        if let Some(partition) = partitions.get_mut(&of).filter(|it| it.subscribers.contains_key(&peer)) {
            collect(partition, &mut scratch.changed);
            if let Some(subscriber) = partition.subscribers.get_mut(&peer) {
                subscriber.look_once_more();
                if subscriber.is_due() {
                    *turn += 1;
                    until = Some(*turn);
                }
            }
        }
        let Some(turn) = until else {
            connection.say_behind(&Message::Flushed { id });
            return Ok(());
        };
        let bytes = ENTRY_BYTES + 2 * size_of::<PartitionId>() as u64;
        let kept = keep(&connection.account, "a flush", bytes)?;
        connection.brings.insert(of, Bringing { id, turn, _kept: kept });
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
        self.begin_bring(id, peer, partition)
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
            if let Err(broken) = self.begin_bring(flush, peer, id)
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
            return self.begin_flush(id, peer, None);
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

impl Connection {
    /// Says something behind what is wanted of the peer's partitions.
    fn say_behind(&mut self, message: &Message<'_>) {
        Encoder::message(&mut self.flushed, message);
        self.note_messages();
    }

    /// What was due of a partition up to a turn has been sent.
    pub(super) fn brought(&mut self, id: PartitionId, turn: u64) {
        if self.brings.get(&id).is_some_and(|bring| bring.turn <= turn)
            && let Some(Bringing { id, .. }) = self.brings.remove(&id)
        {
            self.say_behind(&Message::Flushed { id });
        }
    }
}
