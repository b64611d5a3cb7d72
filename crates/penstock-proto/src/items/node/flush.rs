//! Flushes: that all that was set here has come to a peer, and all that is due from there has come here.

use super::kept::{ENTRY_BYTES, Kept, keep};
use super::{Broken, Host, Node};
use crate::items::wire::PartitionId;
use crate::peer::PeerId;
use std::collections::BTreeMap;

/// A flush that waits until some partitions' rows have been sent.
#[derive(Debug)]
pub(super) struct Flush {
    pub(super) id: u64,
    /// Whether the peer asked, or this side asks when it is through.
    pub(super) asked: bool,
    /// By partition: the turn, that or a later one, in which what was due must have been taken.
    pub(super) partitions: BTreeMap<PartitionId, u64>,
    pub(super) _kept: Kept,
}

impl<H: Host> Node<H> {
    pub(super) fn begin_flush(&mut self, id: u64, peer: PeerId, asked: bool) -> Result<(), Broken> {
        self.collect_all();
        self.turn += 1;
        // It is looked at once more behind its last answer: then it is known that none is left before the flush.
        let subscribers = self.partitions.values_mut().filter_map(|it| it.subscribers.get_mut(&peer));
        subscribers.for_each(|it| it.dirty |= !it.fetches.is_empty());
        let partitions = self.unsent(peer);
        if let Some(connection) = self.peers.get_mut(&peer) {
            let bytes = ENTRY_BYTES + (partitions.len() * 2 * size_of::<PartitionId>()) as u64;
            let kept = keep(&connection.account, "a flush", bytes)?;
            connection.flushes.push(Flush { id, asked, partitions, _kept: kept });
            if let Some((_, subscribed)) = self.flushing.get_mut(&id).filter(|_| !asked) {
                *subscribed = connection.subscribed;
            }
        }
        self.settle(peer);
        Ok(())
    }

    /// A peer says that a flush is complete. What it has subscribed to since that was begun it may lack: it is flushed again.
    pub(super) fn end_flush(&mut self, id: u64, peer: PeerId) -> Result<(), Broken> {
        let Some((_, before)) = self.flushing.get(&id).filter(|(asked, _)| *asked == peer) else {
            return Ok(());
        };
        if self.peers.get(&peer).is_some_and(|connection| connection.subscribed != *before) {
            return self.begin_flush(id, peer, false);
        }
        self.flushing.remove(&id);
        self.host.flushed(id);
        Ok(())
    }
}
