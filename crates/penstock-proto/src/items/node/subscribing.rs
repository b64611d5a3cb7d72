//! Peers that subscribe to a partition, wait for a partition that is not here yet, or are away and may come back.

use super::batch::collect;
use super::kept::{Away, Kept, Needs, Shared, keep, wanted_bytes};
use super::subscriber::{Subscriber, Unripe};
use super::upstream::Upstream;
use super::work::Work;
use super::{Broken, Host, Node, Partition};
use crate::account::{Account, Charge, Resource};
use crate::items::row_memory::Changed;
use crate::items::rows::RowSet;
use crate::items::spec::Propagation;
use crate::items::wire::{PartitionId, Shape};
use crate::peer::PeerId;
use std::collections::btree_map::Entry;
use std::collections::{BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

/// A subscription to a partition that is not here yet.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) peer: PeerId,
    pub(super) shape: Shape,
    pub(super) done: u64,
    pub(super) serial: u64,
    pub(super) rows: RowSet,
    pub(super) needs: Needs,
    /// Ticket, version, places.
    pub(super) fetches: Vec<(u64, u64, RowSet, Kept)>,
    /// The peer's newest question whether what is due of the partition has been brought.
    pub(super) bring: Option<u64>,
    /// Whether the peer is not here, and may come again.
    pub(super) away: bool,
    pub(super) kept: Kept,
}

/// What a subscription changes for the source.
struct Placed {
    /// Whether it is the peer's first.
    first: bool,
    /// Whether others may be wanted of the source than before.
    others: bool,
}

impl<H: Host> Node<H> {
    /// Lets in those that have waited for a partition.
    pub(super) fn admit(&mut self, id: PartitionId) {
        let all = self.waiting.remove(&id).unwrap_or_default();
        let peers: Vec<PeerId> = all.iter().map(|waiting| waiting.peer).collect();
        for waiting in all {
            let Waiting { peer, shape, done, serial, rows, needs, fetches, bring, away, kept } = waiting;
            drop(kept);
            if away {
                self.expect(id, peer, shape, rows);
                continue;
            }
            let mut entered = self.place(id, peer, shape, done, serial, rows).map(|_| ());
            if !needs.versions.is_empty() {
                entered = entered.and_then(|()| self.needed(id, peer, needs));
            }
            for (ticket, version, places, kept) in fetches {
                drop(kept);
                entered = entered.and_then(|()| self.wanted(id, peer, ticket, version, places, true));
            }
            if let Some(flush) = bring {
                entered = entered.and_then(|()| self.begin_bring(flush, peer, id));
            }
            // It would wait for ever for what it was promised.
            if let (Err(why), Some(connection)) = (entered, self.peers.get_mut(&peer)) {
                connection.overdrawn = Some(why);
            }
        }
        // What all of them want is put together once.
        self.ask_source(id, &peers, true);
    }

    /// All partitions that were made on this host before peers asked for their rows are here by now, but for those that were
    /// made and cannot be read: peers that ask for others are told that nothing of them is due. Whether there may be more to be
    /// told: that is for the next step.
    pub fn answer_waiting(&mut self, is_unreadable: impl Fn(&PartitionId) -> bool) -> bool {
        let (goes_on, mut work) = (self.answered.take(), Work::new(self.step));
        let mut last = goes_on;
        loop {
            let from = last.map_or(Bound::Unbounded, Bound::Excluded);
            let Some(&asks) = self.asking.range((from, Bound::Unbounded)).next() else { break };
            if work.is_over() {
                self.answered = last;
                return true;
            }
            work.look(1);
            last = Some(asks);
            if !is_unreadable(&asks.0) {
                self.asking.remove(&asks);
                self.answer_one(asks);
            }
        }
        // Some may have asked meanwhile about what comes before.
        goes_on.is_some()
    }

    /// The same, at once to all that ask for rows of a table, which is dropped.
    pub(super) fn answer_of(&mut self, table: u32) {
        let of_it = |(id, _): &(PartitionId, PeerId)| id.table == table;
        let asked: Vec<_> = self.asking.iter().copied().filter(of_it).collect();
        self.asking.retain(|asks| !of_it(asks));
        for asks in asked {
            self.answer_one(asks);
        }
    }

    /// What is not here owes nothing.
    fn answer_one(&mut self, (id, peer): (PartitionId, PeerId)) {
        if let Some(flush) = self.is_waiting(id, peer).and_then(|it| it.bring.take()) {
            self.answer_flush(flush, peer);
        }
    }

    /// A peer that waited for a partition was not here when the partition came: its rows are wanted for when the
    /// peer comes again.
    pub(super) fn expect(&mut self, id: PartitionId, peer: PeerId, shape: Shape, rows: RowSet) {
        let account = self.host.account(peer);
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let fits = shape == partition.shape && rows.end() <= u64::from(shape.slots);
        if !fits || partition.producer == Some(peer) {
            return;
        }
        partition.asked.entry(peer).or_default();
        // Where that cannot be kept it is asked for later.
        let Ok(kept) = keep(&account, "a subscription", wanted_bytes(&rows)) else { return };
        if partition.upstream.is_some() {
            partition.away.insert(peer, Away { rows, kept: Arc::new(kept) });
        }
    }

    /// A peer subscribes.
    pub(super) fn enter(
        &mut self,
        id: PartitionId,
        peer: PeerId,
        shape: Shape,
        done: u64,
        serial: u64,
        rows: RowSet,
    ) -> Result<(), Broken> {
        if let Some(Placed { first, others }) = self.place(id, peer, shape, done, serial, rows)? {
            // Rows that are wanted already are not compared once more.
            self.ask_source(id, &[peer][..usize::from(others)], first);
        }
        Ok(())
    }

    /// The same, but for the source, which is to be asked for what it wants; `None` where it is sent nothing.
    fn place(
        &mut self,
        id: PartitionId,
        peer: PeerId,
        shape: Shape,
        done: u64,
        serial: u64,
        rows: RowSet,
    ) -> Result<Option<Placed>, Broken> {
        let account = self.host.account(peer);
        let Some(partition) = self.partitions.get_mut(&id) else { return Ok(None) };
        if rows.end() > u64::from(shape.slots) || rows.is_empty() {
            return Err(Broken::Nonsense("a subscription to other rows than there are"));
        }
        let differs = shape != partition.shape;
        let before = self.unsubscribe(id, peer).map(|Subscriber { rows, kept, .. }| Away { rows, kept });
        let Some(partition) = self.partitions.get_mut(&id) else { return Ok(None) };
        let before = partition.away.remove(&peer).or(before);
        let same = before.as_ref().is_some_and(|before| before.rows == rows);
        let mut others = false;
        let wants_less =
            before.as_ref().is_some_and(|before| differs || !same && !before.rows.is_within(&rows));
        if let Some(upstream) = &mut partition.upstream {
            upstream.surplus |= wants_less;
            others = !same && (upstream.surplus || !rows.is_within(&upstream.rows));
        }
        if differs {
            // A peer that expects other rows than there are hears nothing; its own wait ends it.
            partition.mistaken.insert(peer);
            // Also when the producer has gone: a peer that is ignored must not be lost for rows that are gone.
            partition.asks(peer, others);
            return Ok(None);
        }
        partition.mistaken.remove(&peer);
        let upstream = partition.upstream.as_mut();
        let (kept, noted) = match pay(&account, &rows, shape.propagation, before, upstream) {
            Ok(paid) => paid,
            Err(why) => {
                if let Some(upstream) = &mut partition.upstream {
                    upstream.surplus = true;
                }
                return Err(why);
            }
        };
        // It is not told what was heard before it came.
        collect(partition, &mut self.scratch.changed);
        let have = match shape.propagation {
            Propagation::Bounded => vec![(0, 0); rows.len() as usize],
            _ => Vec::new(),
        };
        let subscriber = Subscriber {
            rows,
            propagation: shape.propagation,
            serial,
            begun: false,
            ready: partition.upstream.is_none() || shape.propagation != Propagation::Eager,
            done,
            floor: 0,
            changed: VecDeque::new(),
            all: true,
            until: partition.ended.is_none().then_some(partition.heard),
            unripe: Unripe::default(),
            torn: BTreeSet::new(),
            torn_next: 0,
            dirty: true,
            have,
            needs: Needs::default(),
            fetches: VecDeque::new(),
            over: 0,
            pass: None,
            unanswerable: None,
            unseen: 0..0,
            taking: None,
            behind: false,
            handing_over: partition.leaving && shape.propagation != Propagation::Eager,
            kept,
            _noted: noted,
        };
        partition.subscribers.insert(peer, subscriber);
        if let Some(connection) = self.peers.get_mut(&peer) {
            connection.subscribed += 1;
        }
        Ok(Some(Placed { first: partition.asks(peer, others), others }))
    }

    /// A peer is sent nothing more, at least until it subscribes again. What it has fetched of the source is withdrawn there, one by
    /// one: what others have fetched may be under way, and goes on coming. What it needed is not needed for it any more: it says it again
    /// if it subscribes again.
    pub(super) fn unsubscribe(&mut self, id: PartitionId, peer: PeerId) -> Option<Subscriber> {
        let mut gone = self.partitions.get_mut(&id)?.subscribers.remove(&peer)?;
        let relayed = gone.fetches.iter().filter_map(|pending| pending.relayed);
        relayed.for_each(|ticket| self.withdraw(id, ticket));
        let needs = std::mem::take(&mut gone.needs);
        if let Some(upstream) = self.partitions.get_mut(&id).and_then(|partition| partition.upstream.as_mut())
            && upstream.identity
            && !needs.versions.is_empty()
        {
            // With many partitions it takes long to go over them.
            upstream.needed.push(needs);
            if upstream.heard {
                self.want(id);
            }
        }
        Some(gone)
    }

    /// A subscriber is not here any more, and may come again.
    pub(super) fn miss(&mut self, id: PartitionId, peer: PeerId, gone: Subscriber) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let Subscriber { rows, kept, .. } = gone;
        let Some(upstream) = &mut partition.upstream else { return };
        if partition.asked.contains_key(&peer) {
            partition.away.insert(peer, Away { rows, kept });
        } else {
            upstream.surplus = true;
        }
    }
}

impl<M> Partition<M> {
    /// A peer subscribes, perhaps so that others are wanted of the source than before; whether it does for the first time. The producer
    /// never does.
    fn asks(&mut self, peer: PeerId, others: bool) -> bool {
        if self.producer == Some(peer) {
            return false;
        }
        match self.asked.entry(peer) {
            Entry::Vacant(place) => {
                place.insert(0);
                true
            }
            Entry::Occupied(mut times) => {
                *times.get_mut() = times.get().saturating_add(others.into());
                false
            }
        }
    }
}

/// Charges a peer for a subscription: for the rows, and for what is noted of each.
fn pay(
    account: &Account,
    rows: &RowSet,
    propagation: Propagation,
    before: Option<Away>,
    upstream: Option<&mut Upstream>,
) -> Result<(Shared, Charge), Broken> {
    // Which of the rows have changed, and what it has of each.
    let bounded = propagation == Propagation::Bounded;
    let had = if bounded { rows.len() * size_of::<(u64, u64)>() as u64 } else { 0 };
    let noted = (rows.len() + 1024) * size_of::<Changed>() as u64 + had;
    let noted = account.charge(Resource::Bytes, noted);
    let noted = noted.map_err(|why| Broken::Exhausted { what: "a subscription", why })?;
    let kept = match before {
        // It has paid for the same, which may be on its way to the source.
        Some(Away { rows: same, kept }) if same == *rows => kept,
        Some(Away { kept, .. }) => pay_instead(account, rows, kept, upstream)?,
        None => Arc::new(keep(account, "a subscription", wanted_bytes(rows))?),
    };
    Ok((kept, noted))
}

/// Charges a peer for other rows than `before`, which the source is asked for no more once it is told; only what is on its way there
/// costs both. A peer that cannot pay goes on paying for what it wanted: that is wanted of the source all the same.
fn pay_instead(
    account: &Account,
    rows: &RowSet,
    before: Shared,
    mut upstream: Option<&mut Upstream>,
) -> Result<Shared, Broken> {
    if let Some(upstream) = &mut upstream {
        upstream.paid.retain(|paid| !Arc::ptr_eq(paid, &before));
    }
    let bytes = wanted_bytes(rows);
    let (paid, before) = match Arc::try_unwrap(before) {
        Ok(mut kept) => {
            kept[0].shrink_to(bytes);
            match kept[0].grow(bytes - kept[0].amount()) {
                Ok(()) => return Ok(Arc::new(kept)),
                Err(why) => (Err(Broken::Exhausted { what: "a subscription", why }), Arc::new(kept)),
            }
        }
        Err(before) => (keep(account, "a subscription", bytes).map(Arc::new), before),
    };
    if let (Err(_), Some(upstream)) = (&paid, upstream) {
        upstream.paid.push(before);
    }
    paid
}
