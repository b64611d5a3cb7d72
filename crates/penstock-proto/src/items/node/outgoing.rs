//! What peers are sent: rows that they lack, answers, what is passed on.

use super::batch::{Due, Fetched, Needed, bounded, collect, eager, fetched, whole};
use super::kept::{FREE_BYTES, Shared, keep};
use super::subscriber::{Subscriber, Unripe};
use super::taken::Batch;
use super::work::Work;
use super::{Broken, Connection, Given, Host, Node, Partition};
use crate::account::{Account, Charge, Exhausted};
use crate::items::rows::RowSet;
use crate::items::spec::Propagation;
use crate::items::wire::{Encoder, Message, PartitionId};
use crate::peer::PeerId;
use std::collections::{BTreeMap, VecDeque};

impl<H: Host> Node<H> {
    /// Rows on this host have changed.
    pub fn collect_all(&mut self) {
        std::mem::take(&mut self.to_share).into_iter().for_each(|id| self.share(id));
        let Self { partitions, scratch, .. } = self;
        for partition in partitions.values_mut().filter(|partition| !partition.subscribers.is_empty()) {
            collect(partition, &mut scratch.changed);
        }
    }

    /// Partitions of which a peer may have to be sent something, each with the turn in which that is taken.
    pub(super) fn unsent(&self, peer: PeerId) -> BTreeMap<PartitionId, u64> {
        let sending = self.peers.get(&peer).and_then(|peer| peer.batch.as_ref());
        let due = |partition: &Partition<H::Memory>| {
            partition.subscribers.get(&peer).is_some_and(Subscriber::is_due)
        };
        let dirty =
            self.partitions.iter().filter(|(_, partition)| due(partition)).map(|(id, _)| (*id, self.turn));
        sending.map(|batch| (batch.partition, batch.turn)).into_iter().chain(dirty).collect()
    }

    /// Asks the peer for the answers to flushes that are through.
    pub(super) fn settle(&mut self, peer: PeerId) {
        let Some(connection) = self.peers.get_mut(&peer) else { return };
        let Connection { flushes, flushed, .. } = connection;
        flushes.retain(|flush| {
            let through = flush.partitions.is_empty();
            if through {
                Encoder::message(flushed, &Message::Flush { id: flush.id });
            }
            !through
        });
        connection.note_messages();
    }

    /// Appends to `out` what a peer is to be sent, until it holds about `limit` bytes; whether there may be more. To find it may
    /// take long: then this returns before all that the peer waits for has been looked at, perhaps with nothing, and the next call
    /// goes on.
    pub fn transmit(&mut self, peer: PeerId, out: &mut Vec<u8>, limit: usize) -> bool {
        if out.is_empty() {
            self.taken(peer);
        }
        loop {
            // A thread that waits for rows looks again and again.
            if !self.owes(peer) {
                return false;
            }
            let Some(connection) = self.peers.get_mut(&peer) else { return false };
            hand_over(&mut connection.messages, out);
            // Before all of it is said no flush is answered.
            if !self.say_wanted(peer, out) {
                return true;
            }
            let Some(connection) = self.peers.get_mut(&peer) else { return false };
            hand_over(&mut connection.flushed, out);
            connection.give_charge();
            while let Some(batch) = &mut connection.batch {
                if out.len() >= limit {
                    return true;
                }
                let (before, id) = (out.len(), batch.partition);
                let (last, turn) = (batch.send(out, &mut self.scratch.spares), batch.turn);
                if let Some(partition) = self.partitions.get_mut(&id) {
                    partition.traffic.0 += (out.len() - before) as u64;
                }
                if last {
                    connection.batch = None;
                    if !self.is_handing_over(peer, id) {
                        self.sent(peer, &[(id, turn)]);
                    }
                    break;
                }
            }
            let Some(connection) = self.peers.get_mut(&peer) else { return false };
            if connection.has_messages() {
                continue;
            }
            if out.len() >= limit {
                return self.owes(peer);
            }
            match self.next_batch(peer) {
                Ok(Next::Rows(batch)) => {
                    let Some(connection) = self.peers.get_mut(&peer) else { return false };
                    connection.batch = Some(batch);
                }
                Err(why) => {
                    let Some(connection) = self.peers.get_mut(&peer) else { return false };
                    connection.overdrawn = Some(Broken::Exhausted { what: "rows on their way", why });
                    return false;
                }
                Ok(Next::Unfinished) => return true,
                // A fetch may have been relayed to this very peer.
                Ok(Next::Nothing) => {
                    let more = self.peers.get(&peer).is_some_and(Connection::has_messages);
                    if !more {
                        return false;
                    }
                }
            }
        }
    }

    /// What was given to a peer has gone: its taker takes no more until then.
    pub fn taken(&mut self, peer: PeerId) {
        if let Some(connection) = self.peers.get_mut(&peer) {
            connection.given = Given::default();
        }
    }

    /// Whether there may be something to send to a peer.
    pub fn owes(&self, peer: PeerId) -> bool {
        let owes = |partition: &Partition<H::Memory>| {
            partition.subscribers.get(&peer).is_some_and(Subscriber::has_work)
        };
        let Some(connection) = self.peers.get(&peer) else { return false };
        !connection.is_quiet() || self.partitions.values().any(owes)
    }

    /// Bytes that were paid for when they were put together, of those that [`Node::transmit`] gave since its taker last had
    /// none: who takes them does not pay once more, and a source does not pay for what others ask of it.
    pub fn paid(&self, peer: PeerId) -> u64 {
        let paid = |Given { told, own }: &Given| told.bytes + own.iter().map(Charge::amount).sum::<u64>();
        self.peers.get(&peer).map_or(0, |connection| paid(&connection.given))
    }

    /// What was due to a peer of some partitions, which ascend, has been sent, of each in some turn. What is not finished yet is not due.
    /// It takes as long for many partitions as for one: all flushes of this side are gone over.
    fn sent(&mut self, peer: PeerId, turns: &[(PartitionId, u64)]) {
        let Some(connection) = self.peers.get_mut(&peer) else { return };
        turns.iter().for_each(|&(id, turn)| connection.brought(id, turn));
        let turn_of = |id: &PartitionId| {
            let at = turns.binary_search_by_key(id, |(id, _)| *id).ok()?;
            Some(turns[at].1)
        };
        let through = |id: &PartitionId, wanted: &mut u64| turn_of(id).is_some_and(|turn| *wanted <= turn);
        for flush in &mut connection.flushes {
            flush.partitions.retain(|id, wanted| !through(id, wanted));
        }
        self.settle(peer);
    }

    /// Whether all rows of a partition are still to be sent to a peer, since their producer leaves.
    fn is_handing_over(&self, peer: PeerId, id: PartitionId) -> bool {
        let subscriber = self.partitions.get(&id).and_then(|partition| partition.subscribers.get(&peer));
        subscriber.is_some_and(|subscriber| subscriber.handing_over)
    }

    /// The next batch for a peer, which is charged to it before a value is taken. Partitions take turns. Of the batches that take more
    /// than a step one is begun at a time, or a peer would have to pay for as many as there are partitions. A partition that has to wait
    /// for it gives it its own turn; once it is through, the next that waits comes after it in the order of partitions.
    fn next_batch(&mut self, peer: PeerId) -> Result<Next, Exhausted> {
        let Some(connection) = self.peers.get_mut(&peer) else { return Ok(Next::Nothing) };
        let (turn, account) = (connection.turn, connection.account.clone());
        let (stopped, mut work) = (connection.stopped.take(), Work::new(self.step));
        let (mut ids, mut begun) = (Vec::new(), None);
        for (&id, partition) in &self.partitions {
            let Some(subscriber) = partition.subscribers.get(&peer) else { continue };
            if subscriber.has_work() {
                ids.push(id);
            }
            if begun.is_none() && subscriber.taking.is_some() {
                begun = Some(id);
            }
        }
        // Behind the one that had the last turn.
        let behind = ids.partition_point(|id| Some(*id) <= turn);
        ids.rotate_left(behind);
        // Those before were looked at in earlier steps.
        if let Some(at) = ids.iter().position(|id| Some(*id) == stopped) {
            ids.drain(..at);
        }
        let is_begun = |partition: &Partition<H::Memory>| {
            partition.subscribers.get(&peer).is_some_and(|it| it.taking.is_some())
        };
        let (mut next, mut through) = (Ok(Next::Nothing), Vec::new());
        for (at, id) in ids.into_iter().enumerate() {
            let mut of = id;
            let mut due = match work.is_over() {
                true => Due::Unfinished,
                false => self.batch_beside(peer, id, begun, &account, &mut work),
            };
            if let (Due::Behind, Some(begun)) = (&due, begun) {
                // It is looked at once more, whatever comes of the other.
                next = Ok(Next::Unfinished);
                if self.gives_way(peer, begun) {
                    break;
                }
                of = begun;
                due = match work.is_over() {
                    true => Due::Unfinished,
                    false => self.batch_beside(peer, begun, Some(begun), &account, &mut work),
                };
            }
            work.look(1);
            if self.partitions.get(&of).is_some_and(is_begun) {
                begun = Some(of);
            }
            match due {
                Due::Rows(batch) => {
                    if let Some(connection) = self.peers.get_mut(&peer) {
                        connection.turn = Some(of);
                    }
                    next = Ok(Next::Rows(batch));
                    break;
                }
                Due::Unpaid(why) => {
                    next = Err(why);
                    break;
                }
                Due::Nothing { turn } => {
                    // It was begun before the last flush came, and that waits for another look.
                    if turn < self.turn {
                        next = Ok(Next::Unfinished);
                    }
                    through.push((of, turn));
                }
                Due::Waits | Due::Behind => {}
                Due::Unfinished => {
                    // What took a whole step goes on when others have had their turn.
                    if let Some(connection) = self.peers.get_mut(&peer) {
                        match at {
                            0 => connection.turn = Some(id),
                            _ => connection.stopped = Some(id),
                        }
                    }
                    next = Ok(Next::Unfinished);
                    break;
                }
            }
        }
        if !through.is_empty() {
            // Of one that was looked at twice the later turn counts.
            through.sort_unstable();
            through.dedup_by(|later, before| {
                later.0 == before.0 && {
                    before.1 = later.1;
                    true
                }
            });
            self.sent(peer, &through);
        }
        next
    }

    /// Whether the batch that is begun is given up, where others wait for it, since its producer overtakes it again and again: it comes
    /// behind them, and behind all of them before its next turn, or two such would keep a third from ever coming.
    fn gives_way(&mut self, peer: PeerId, begun: PartitionId) -> bool {
        let step = self.step;
        let Some(partition) = self.partitions.get_mut(&begun) else { return false };
        let Some(subscriber) = partition.subscribers.get_mut(&peer) else { return false };
        let Some(taking) = subscriber.taking.take_if(|taking| taking.is_overtaken(step)) else {
            return false;
        };
        subscriber.give_up(taking);
        partition.overtaken.1 += 1;
        if let Some(connection) = self.peers.get_mut(&peer) {
            connection.turn = Some(begun);
        }
        true
    }

    /// The same of one partition, while a batch of `begun` is being taken.
    fn batch_beside(
        &mut self,
        peer: PeerId,
        id: PartitionId,
        begun: Option<PartitionId>,
        account: &Account,
        work: &mut Work,
    ) -> Due {
        let beside = begun.is_some_and(|begun| begun != id);
        let subscriber = self.partitions.get_mut(&id).and_then(|it| it.subscribers.get_mut(&peer));
        let behind = subscriber.is_some_and(|it| {
            it.behind &= beside;
            it.behind
        });
        if behind {
            return Due::Behind;
        }
        work.close(beside);
        match self.batch(peer, id, account, work) {
            Due::Unpaid(_) if beside => {
                let subscriber = self.partitions.get_mut(&id).and_then(|it| it.subscribers.get_mut(&peer));
                if let Some(subscriber) = subscriber {
                    subscriber.behind = true;
                }
                Due::Behind
            }
            due => due,
        }
    }

    fn batch(&mut self, peer: PeerId, id: PartitionId, account: &Account, work: &mut Work) -> Due {
        let Self { partitions, scratch, turn, .. } = self;
        let Some(partition) = partitions.get_mut(&id) else { return Due::Nothing { turn: *turn } };
        let turn = match fetched(partition, peer, id, account, *turn, work) {
            Ok(Fetched::Rows(batch)) => return Due::Rows(batch),
            // Before it is known which can be answered, a flush that waits for the answers is not through.
            Ok(Fetched::Unfinished) => return Due::Unfinished,
            Ok(Fetched::None { turn }) => turn,
            Err(why) => return Due::Unpaid(why),
        };
        let due = match whole(partition, peer, id, account) {
            Ok(Some(batch)) => Due::Rows(batch),
            Err(why) => Due::Unpaid(why),
            Ok(None) if partition.subscribers.get(&peer).is_some_and(|it| it.handing_over) => Due::Waits,
            Ok(None) => match partition.shape.propagation {
                Propagation::Eager => return eager(partition, peer, id, account, scratch, turn, work),
                Propagation::Bounded => {
                    match bounded(partition, peer, id, account, &mut scratch.changed, work) {
                        Ok(Needed::Rows(batch)) => Due::Rows(batch),
                        Ok(Needed::None) => Due::Nothing { turn },
                        Ok(Needed::Unfinished) => Due::Unfinished,
                        Err(why) => Due::Unpaid(why),
                    }
                }
                Propagation::Lazy => {
                    collect(partition, &mut scratch.changed);
                    if let Some(subscriber) = partition.subscribers.get_mut(&peer) {
                        (subscriber.changed, subscriber.all, subscriber.until) =
                            (VecDeque::new(), false, None);
                        subscriber.unripe = Unripe::default();
                        subscriber.dirty = false;
                    }
                    Due::Nothing { turn }
                }
            },
        };
        // What a flush that came since the first fetch was looked at waits for is known when all have been once more.
        if turn < self.turn
            && let Some(subscriber) = partition.subscribers.get_mut(&peer)
        {
            subscriber.dirty = true;
        }
        match due {
            Due::Rows(mut batch) => {
                batch.turn = turn;
                Due::Rows(batch)
            }
            Due::Unpaid(why) => Due::Unpaid(why),
            due => match self.relay(peer, id, account, work) {
                true => due,
                false => Due::Unfinished,
            },
        }
    }

    /// Asks the source for what a peer fetches and is not fresh enough here: for one fetch after the other, each paid for before
    /// its rows are put together. Where one cannot be paid it is asked for later, and with it those behind it. Whether it was done for
    /// as many as it can be, and not for as many as `work` allows.
    fn relay(&mut self, peer: PeerId, id: PartitionId, account: &Account, work: &mut Work) -> bool {
        // Some of it in any case: the fetches were looked at first, and will be once more.
        let mut own = Work::new(work.left().max(work.whole() / 8).max(1));
        let mut at = 0;
        while let Some(partition) = self.partitions.get_mut(&id).filter(|it| it.upstream.is_some())
            && let Some(subscriber) = partition.subscribers.get_mut(&peer)
            && let Some(open) = subscriber.fetches.range(at..).position(|it| it.relayed.is_none())
        {
            if own.is_over() {
                return false;
            }
            at += open;
            let pending = &subscriber.fetches[at];
            let (of, (version, slots, bytes)) = (Some((peer, pending.ticket)), pending.asks_for());
            let Ok(kept) = keep(account, "a fetch", bytes) else { return true };
            // That takes a quarter of a look for each.
            let looks = 1 + slots.len() as u64 / 4;
            [&mut own, &mut *work].into_iter().for_each(|work| work.look(looks));
            let slots = RowSet::from_sorted(slots.iter().map(|&slot| u64::from(slot)..u64::from(slot) + 1));
            let ticket = self.fetch_slots(id, slots, version, Shared::new(kept), of);
            let partition = self.partitions.get_mut(&id);
            let subscriber = partition.and_then(|it| it.subscribers.get_mut(&peer));
            if let Some(pending) = subscriber.and_then(|it| it.fetches.get_mut(at)) {
                pending.relayed = ticket;
            }
            at += 1;
        }
        true
    }
}

/// What a look for a peer's next batch found.
enum Next {
    Rows(Batch),
    /// Nothing is due.
    Nothing,
    /// Not all has been looked at.
    Unfinished,
}

/// Moves messages, and the room for many.
fn hand_over(messages: &mut Vec<u8>, out: &mut Vec<u8>) {
    out.append(messages);
    if messages.capacity() > FREE_BYTES as usize {
        *messages = Vec::new();
    }
}
