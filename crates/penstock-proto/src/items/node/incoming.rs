//! What peers say: subscriptions, needs, fetches, rows.

use super::kept::{ENTRY_BYTES, FREE_BYTES, Kept, Needs, keep, most_needs};
use super::subscriber::{Pending, Subscriber};
use super::subscribing::Waiting;
use super::upstream::Upstream;
use super::work::{STEP, Work};
use super::{Broken, Host, Node, Partition};
use crate::items::row_memory::Changed;
use crate::items::row_memory::Memory;
use crate::items::rows::RowSet;
use crate::items::spec::Propagation;
use crate::items::wire::{Entries, Entry, Head, Message, PartitionId, Shape};
use crate::peer::PeerId;
use std::collections::BTreeMap;

impl<H: Host> Node<H> {
    /// Takes a message, without its length, of a peer. On an error the peer is to be taken for lost.
    pub fn receive(&mut self, peer: PeerId, record: &[u8]) -> Result<(), Broken> {
        self.take(peer, record)?;
        // Nothing more is taken from a peer that has asked for more than it can pay for.
        let overdrawn = self.peers.get_mut(&peer).and_then(|connection| connection.overdrawn.take());
        overdrawn.map_or(Ok(()), Err)
    }

    pub(super) fn take(&mut self, peer: PeerId, record: &[u8]) -> Result<(), Broken> {
        // A long message other than rows is a set of rows, which takes more memory than it has bytes.
        let _decoded = match record.len() > FREE_BYTES as usize && !Message::is_rows(record) {
            true => keep(&self.host.account(peer), "a long message", RowSet::decoded_bytes(record))?,
            false => Kept::default(),
        };
        let message = Message::decode(record)?;
        if !self.dropped.is_empty()
            && message.partition().is_some_and(|id| self.dropped.contains(id.table.into()))
        {
            return Ok(());
        }
        let for_itself = matches!(
            message,
            Message::Fetch { .. } | Message::Need { .. } | Message::Flush { .. } | Message::Bring { .. }
        );
        if for_itself && self.is_deaf(peer) {
            return Ok(());
        }
        match message {
            Message::Offer { partition, shape } => self.offered(peer, partition, shape),
            Message::Subscribe { partition, shape, done, serial, rows } => {
                if self.partitions.contains_key(&partition) {
                    return self.enter(partition, peer, shape, done, serial, rows);
                }
                let bring = self.is_waiting(partition, peer).and_then(|before| before.bring);
                if let Some(waiting) = self.waiting.get_mut(&partition) {
                    waiting.retain(|waiting| waiting.peer != peer);
                }
                let bytes = ENTRY_BYTES + rows.kept_bytes();
                let kept = keep(&self.host.account(peer), "a subscription", bytes)?;
                let (needs, fetches, away) = (Needs::default(), Vec::new(), false);
                let waiting = Waiting { peer, shape, done, serial, rows, needs, fetches, bring, away, kept };
                self.waiting.entry(partition).or_default().push(waiting);
                Ok(())
            }
            Message::Fetch { partition, ticket, version, places } => {
                let account = self.host.account(peer);
                if let Some(waiting) = self.is_waiting(partition, peer) {
                    let kept = keep(&account, "a fetch", ENTRY_BYTES + places.kept_bytes())?;
                    waiting.fetches.push((ticket, version, places, kept));
                    return Ok(());
                }
                self.wanted(partition, peer, ticket, version, places, false)
            }
            Message::Need { partition, versions } => {
                if versions.len() > most_needs(peer) {
                    return Err(Broken::Nonsense("more versions than its gets can wait for"));
                }
                let needs = Needs::new(&self.host.account(peer), versions)?;
                if let Some(waiting) = self.is_waiting(partition, peer) {
                    waiting.needs = needs;
                    return Ok(());
                }
                self.needed(partition, peer, needs)
            }
            Message::Rows { partition, head, entries } => self.rows(peer, partition, &head, entries),
            Message::Flush { id } => {
                self.answer_flush(id, peer);
                Ok(())
            }
            Message::Bring { id, partition } => {
                if let Some(waiting) = self.is_waiting(partition, peer) {
                    // The answer to a later one answers those before it.
                    waiting.bring = Some(id);
                    self.asking.insert((partition, peer));
                    return Ok(());
                }
                self.bring_to(id, peer, partition)
            }
            Message::Flushed { id } => self.end_flush(id, peer),
            Message::Withdraw { partition, ticket } => {
                self.take_back(partition, peer, ticket);
                Ok(())
            }
        }
    }

    pub(super) fn is_waiting(&mut self, id: PartitionId, peer: PeerId) -> Option<&mut Waiting> {
        self.waiting.get_mut(&id)?.iter_mut().find(|waiting| waiting.peer == peer)
    }

    /// A peer fetches rows. If the fetch has `waited` for the partition, so may have many, which are all let in at once.
    pub(super) fn wanted(
        &mut self,
        id: PartitionId,
        peer: PeerId,
        ticket: u64,
        version: u64,
        places: RowSet,
        waited: bool,
    ) -> Result<(), Broken> {
        let (account, turn) = (self.host.account(peer), self.turn);
        let Some(subscriber) = self.subscriber(id, peer)? else { return Ok(()) };
        // The answer would be rows by themselves, for which a peer that passes them on takes their source for one that
        // breaks the protocol.
        if subscriber.propagation == Propagation::Eager {
            return Err(Broken::Nonsense("a fetch where sets are sent"));
        }
        if places.end() > subscriber.rows.len() {
            return Err(Broken::Nonsense("a fetch of rows that it has not subscribed to"));
        }
        // A few bytes may name any number of rows, which are written down when it is looked at. Where they are as many as the bytes, they
        // take less when they are written down.
        let at_once = !waited && Pending::bytes(&places, false) > Pending::bytes(&places, true);
        let kept = keep(&account, "a fetch", Pending::bytes(&places, at_once))?;
        let mut pending = Pending::new(ticket, version, places, turn, kept);
        if at_once {
            pending.unfold(&subscriber.rows, &mut Work::new(0));
        }
        subscriber.fetches.push_back(pending);
        subscriber.news();
        subscriber.dirty = true;
        Ok(())
    }

    pub(super) fn needed(&mut self, id: PartitionId, peer: PeerId, needs: Needs) -> Result<(), Broken> {
        let Some(subscriber) = self.subscriber(id, peer)? else { return Ok(()) };
        if subscriber.propagation != Propagation::Bounded || !needs.versions.is_sorted() {
            return Err(Broken::Nonsense("needs where there are none, or in no order"));
        }
        let before = std::mem::replace(&mut subscriber.needs, needs);
        (subscriber.all, subscriber.dirty) = (true, true);
        self.change_needs(id, peer, &before);
        Ok(())
    }

    /// The subscriber that asks; `None` if it is sent nothing, whatever it asks.
    fn subscriber(&mut self, id: PartitionId, peer: PeerId) -> Result<Option<&mut Subscriber>, Broken> {
        const NOT_SUBSCRIBED: Broken =
            Broken::Nonsense("a question about rows that it has not subscribed to");
        let partition = self.partitions.get_mut(&id).ok_or(NOT_SUBSCRIBED)?;
        match partition.subscribers.get_mut(&peer) {
            None if !partition.mistaken.contains(&peer) => Err(NOT_SUBSCRIBED),
            subscriber => Ok(subscriber),
        }
    }

    fn offered(&mut self, peer: PeerId, id: PartitionId, shape: Shape) -> Result<(), Broken> {
        if peer.rank() != Some(id.rank) {
            return Err(Broken::Nonsense("an offer of another worker's rows"));
        }
        if !self.host.is_elsewhere(peer) {
            return Err(Broken::Nonsense("an offer of rows that it shares in memory"));
        }
        match self.partitions.get(&id) {
            // Also those of an earlier incarnation: its sets have numbers of their own, and a row's never fall (I-2).
            Some(partition)
                if partition.upstream.is_none()
                    || partition.shape != shape
                    || partition.producer != Some(peer) =>
            {
                return Err(Broken::Nonsense("an offer of rows that are here"));
            }
            // However often it offers them before it reads what is wanted, it is told once.
            Some(_) => {
                if let Some(Partition { memory, upstream: Some(upstream), .. }) = self.partitions.get_mut(&id)
                    && std::mem::take(&mut upstream.heard)
                {
                    // The rest of what is under way was sent for what it heard before, and all of it comes again.
                    upstream.serial += 1;
                    upstream.receiving = false;
                    memory.abort();
                }
                self.want(id);
            }
            None => {
                let memory = self.host.make(id, &shape);
                let memory =
                    memory.ok_or(Broken::Nonsense("an offer of more rows than there is memory for"))?;
                let upstream = Upstream::new(peer, shape, RowSet::default(), true);
                self.partitions.insert(id, Partition::new(memory, shape, Some(peer), Some(upstream), None));
                self.admit(id);
            }
        }
        Ok(())
    }

    fn rows(&mut self, peer: PeerId, id: PartitionId, head: &Head, entries: &[u8]) -> Result<(), Broken> {
        let partition =
            self.partitions.get_mut(&id).ok_or(Broken::Nonsense("rows that were not asked for"))?;
        partition.traffic.1 += entries.len() as u64;
        let Partition { memory, shape, upstream, subscribers, .. } = partition;
        let upstream = upstream.as_mut().filter(|upstream| upstream.peer == peer);
        let upstream = upstream.ok_or(Broken::Nonsense("rows that were not asked for"))?;
        let exact = shape.propagation == Propagation::Eager;
        // Rows for an earlier subscription may still come after another was made.
        if head.serial != upstream.serial {
            return Ok(());
        }
        if head.apart == exact {
            return Err(Broken::Nonsense("rows by themselves where sets are sent, or the other way round"));
        }
        if head.first {
            // To all that look at them from now on, the rows that are here would be torn.
            if exact && head.done < memory.now().done {
                return Err(Broken::Nonsense("rows as of an earlier set than before"));
            }
            (upstream.receiving, upstream.opened) = (true, head.done);
            if exact {
                memory.open(head.done, 2);
            }
        }
        if !upstream.receiving {
            return Err(Broken::Nonsense("a batch without its beginning"));
        }
        if exact && head.done != upstream.opened {
            return Err(Broken::Nonsense("a batch that ends as of another set than it began"));
        }
        // Those that came by themselves, noted together: a message may name any number of them, and any number of peers want them.
        let mut came = Came::of(subscribers, &mut self.scratch.changed);
        for entry in Entries::new(entries, shape.row_bytes, head.apart) {
            let Entry { place, count, number, clock, as_of, value } = entry?;
            let row_of =
                |place: u64| upstream.rows.nth(place).ok_or(Broken::Nonsense("a row that was not asked for"));
            let row = row_of(place.into())?;
            let slot = if upstream.identity { row as u32 } else { place };
            let value = match value {
                _ if head.apart && count == 1 => {
                    memory.refresh(slot, number, clock, as_of, value);
                    came.add(slot);
                    continue;
                }
                Some(value) if !head.apart && number <= head.done => value,
                _ => return Err(Broken::Nonsense("a row of a set that is not finished")),
            };
            let follow = u64::from(count) - 1;
            if count == 1 {
                memory.put(slot, number, clock, value);
            } else if row_of(u64::from(place) + follow)? == row + follow {
                memory.put_run(slot, number, clock, value);
            } else {
                return Err(Broken::Nonsense("rows at once that do not follow each other"));
            }
        }
        drop(came);
        if !head.last {
            return Ok(());
        }
        upstream.receiving = false;
        if exact {
            memory.finish();
            memory.raise(head.floor);
            (upstream.done, upstream.synced) = (head.done, true);
            subscribers.values_mut().for_each(|subscriber| subscriber.ready = true);
        }
        for subscriber in subscribers.values_mut() {
            subscriber.news();
            subscriber.dirty = true;
        }
        memory.wake();
        if head.apart
            && let Some(asked) = upstream.fetches.remove(&head.ticket)
        {
            if let Some((peer, ticket)) = asked.of
                && let Some(pending) = subscribers.get_mut(&peer).and_then(|it| it.fetched_by(ticket))
            {
                pending.answered |= pending.relayed == Some(head.ticket);
            }
            self.ahead.remove(head.ticket);
            self.host.answered(head.ticket);
        }
        Ok(())
    }
}

/// Rows of a message that have come by themselves. The subscribers are told of all of them at the end, also where the message turns
/// out to be broken.
struct Came<'a> {
    subscribers: &'a mut BTreeMap<PeerId, Subscriber>,
    slots: &'a mut Vec<Changed>,
}

impl<'a> Came<'a> {
    fn of(subscribers: &'a mut BTreeMap<PeerId, Subscriber>, slots: &'a mut Vec<Changed>) -> Self {
        slots.clear();
        Self { subscribers, slots }
    }

    fn add(&mut self, slot: u32) {
        match self.slots.last_mut() {
            Some(last) if last.first.checked_add(last.count) == Some(slot) => last.count += 1,
            _ => self.slots.push(Changed { first: slot, count: 1, set: 0 }),
        }
    }
}

impl Drop for Came<'_> {
    fn drop(&mut self) {
        // Each subscriber has a list of its own. Where all these would take long, they look at all that they want, in steps.
        let many = (self.slots.len() * self.subscribers.len()) as u64 > STEP;
        for subscriber in self.subscribers.values_mut() {
            match many {
                true => subscriber.note_all(0),
                false => subscriber.note(self.slots),
            }
        }
        if self.slots.len() * size_of::<Changed>() > FREE_BYTES as usize {
            *self.slots = Vec::new();
        }
    }
}
