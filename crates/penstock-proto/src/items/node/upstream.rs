//! What is wanted of the peer that a partition's rows come from, and how it is told.

use super::kept::Kept;
use super::{Host, Node};
use crate::items::row_memory::Memory as _;
use crate::items::rows::RowSet;
use crate::items::spec::Propagation;
use crate::items::wire::{Message, PartitionId, Shape};
use crate::message::MAX_WORKERS;
use crate::peer::PeerId;
use std::collections::{BTreeMap, BTreeSet};

/// How often the rows that are wanted of a source may change, or fetches be withdrawn, not counting each peer's first
/// rows. A peer that wants other rows again and again would keep a flush of the source, which is repeated for each change, from
/// ever coming back: from then on all rows are wanted, and fetches are kept.
const MOST_CHANGES: u32 = 2 * MAX_WORKERS;
/// The same for all tables of a source together: a flush is repeated for each of them.
const MOST_CHANGES_IN_ALL: u32 = 4 * MOST_CHANGES;

/// Where a partition's rows come from, if not from this host.
#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) peer: PeerId,
    /// As the source knows it.
    pub(super) shape: Shape,
    /// Slots of the source that are wanted: place in this set is place on the wire.
    pub(super) rows: RowSet,
    /// Whether the mirror's slots are the source's, or places.
    pub(super) identity: bool,
    pub(super) done: u64,
    pub(super) serial: u64,
    pub(super) synced: bool,
    pub(super) needs: Vec<u64>,
    /// Fetches without an answer: ticket, version, slots of the source.
    pub(super) fetches: BTreeMap<u64, (u64, RowSet, Kept)>,
    /// Fetches that the source has heard of and need not answer any more, as it does not know yet.
    pub(super) withdrawn: Vec<(u64, Kept)>,
    /// Whether the first rows of a batch have come and the last have not.
    pub(super) receiving: bool,
    /// Eager: the set after which its rows are as they were.
    pub(super) opened: u64,
    /// Whether this connection has heard the subscription.
    pub(super) heard: bool,
    /// How often the rows that are wanted changed, or fetches were no longer wanted.
    pub(super) changes: u32,
}

impl Upstream {
    pub(super) fn new(peer: PeerId, shape: Shape, rows: RowSet, identity: bool) -> Self {
        Self {
            peer,
            shape,
            rows,
            identity,
            done: 0,
            serial: 1,
            synced: false,
            needs: Vec::new(),
            fetches: BTreeMap::new(),
            withdrawn: Vec::new(),
            receiving: false,
            opened: 0,
            heard: false,
            changes: 0,
        }
    }

    /// Whether it may be told once more that something else is wanted: there is a bound for this partition, and one for all of
    /// the source's.
    pub(super) fn may_change(&self, in_all: u32) -> bool {
        self.changes < MOST_CHANGES && in_all < MOST_CHANGES_IN_ALL
    }

    /// Places on the wire of slots of the source.
    pub(super) fn places(&self, slots: &RowSet) -> RowSet {
        RowSet::from_rows(slots.iter().filter_map(|slot| self.rows.place(slot)))
    }
}

impl<H: Host> Node<H> {
    pub(super) fn fetch_slots(
        &mut self,
        id: PartitionId,
        slots: RowSet,
        version: u64,
        kept: Kept,
    ) -> Option<u64> {
        self.next += 1;
        let ticket = self.next;
        let upstream = self.partitions.get_mut(&id)?.upstream.as_mut()?;
        let (peer, places, heard) = (upstream.peer, upstream.places(&slots), upstream.heard);
        upstream.fetches.insert(ticket, (version, slots, kept));
        if heard {
            self.relay_to(peer, &Message::Fetch { partition: id, ticket, version, places });
        }
        Some(ticket)
    }

    /// What is wanted of a partition has changed. Its source is told when it is next sent something: once,
    /// however often it changes.
    pub(super) fn want(&mut self, id: PartitionId) {
        let upstream = self.partitions.get(&id).and_then(|partition| partition.upstream.as_ref());
        let connection = upstream.and_then(|upstream| self.peers.get_mut(&upstream.peer));
        connection.map(|connection| connection.wanted.insert(id));
    }

    /// Tells a source what is wanted of its partitions now.
    pub(super) fn say_wanted(&mut self, source: PeerId) {
        let Some(connection) = self.peers.get_mut(&source) else { return };
        for id in std::mem::take(&mut connection.wanted) {
            let upstream = self.partitions.get_mut(&id).and_then(|partition| partition.upstream.as_mut());
            match upstream.filter(|upstream| upstream.peer == source) {
                Some(upstream) if upstream.heard => {
                    let withdrawn = std::mem::take(&mut upstream.withdrawn);
                    let bounded = upstream.shape.propagation == Propagation::Bounded;
                    let versions = bounded.then(|| upstream.needs.clone());
                    if let Some(versions) = versions {
                        self.relay_to(source, &Message::Need { partition: id, versions });
                    }
                    for (ticket, _kept) in withdrawn {
                        self.relay_to(source, &Message::Withdraw { partition: id, ticket });
                    }
                }
                Some(_) => self.resume(id),
                None => {}
            }
        }
    }

    pub(super) fn subscribe(&mut self, id: PartitionId) {
        let upstream = self.partitions.get_mut(&id).and_then(|partition| partition.upstream.as_mut());
        let Some(upstream) = upstream.filter(|upstream| !upstream.rows.is_empty()) else { return };
        let (peer, shape, done, serial) = (upstream.peer, upstream.shape, upstream.done, upstream.serial);
        upstream.heard = self.peers.contains_key(&peer);
        upstream.withdrawn.clear();
        let rows = upstream.rows.clone();
        self.relay_to(peer, &Message::Subscribe { partition: id, shape, done, serial, rows });
    }

    /// Says again what the source needs to know, on a new connection.
    pub(super) fn resume(&mut self, id: PartitionId) {
        self.subscribe(id);
        let Some(upstream) = self.partitions.get(&id).and_then(|partition| partition.upstream.as_ref())
        else {
            return;
        };
        let fetch = |(&ticket, (version, slots, _)): (&u64, &(u64, RowSet, Kept))| {
            (ticket, *version, upstream.places(slots))
        };
        let fetches: Vec<(u64, u64, RowSet)> = upstream.fetches.iter().map(fetch).collect();
        let (peer, needs, silent) = (upstream.peer, upstream.needs.clone(), !upstream.heard);
        if silent {
            return;
        }
        if !needs.is_empty() {
            self.relay_to(peer, &Message::Need { partition: id, versions: needs });
        }
        for (ticket, version, places) in fetches {
            self.relay_to(peer, &Message::Fetch { partition: id, ticket, version, places });
        }
    }

    /// What is wanted of a partition may have changed: by a peer's `first` subscription to it, of which there is only one, or
    /// in another way.
    pub(super) fn ask_source(&mut self, id: PartitionId, first: bool) {
        let Self { partitions, changes, .. } = self;
        let Some(partition) = partitions.get_mut(&id) else { return };
        let Some(upstream) = &mut partition.upstream else { return };
        let changes = changes.entry(upstream.peer).or_default();
        let here = partition.subscribers.values().map(|subscriber| &subscriber.rows);
        let away = partition.away.values().map(|away| &away.rows);
        let wanted = match upstream.may_change(*changes) {
            true => here.chain(away).fold(RowSet::default(), |all, rows| all.union(rows)),
            false => RowSet::from_ranges(std::iter::once(0..upstream.shape.slots.into())),
        };
        if wanted != upstream.rows {
            if !first {
                (upstream.changes, *changes) = (upstream.changes + 1, *changes + 1);
            }
            // Rows that are new to this node must arrive before it can say what they were after some set.
            (upstream.rows, upstream.done) = (wanted, 0);
            upstream.serial += 1;
            upstream.synced = false;
            partition.memory.abort();
            (upstream.receiving, upstream.heard) = (false, false);
            self.want(id);
        } else if upstream.synced {
            partition.subscribers.values_mut().for_each(|subscriber| subscriber.ready = true);
        }
    }

    pub(super) fn set_needs(&mut self, id: PartitionId, needs: Vec<u64>) {
        let Some(upstream) = self.partitions.get_mut(&id).and_then(|partition| partition.upstream.as_mut())
        else {
            return;
        };
        if upstream.needs != needs {
            upstream.needs = needs;
            // Before the source has heard of the subscription it is told with that.
            if upstream.heard {
                self.want(id);
            }
        }
    }

    /// What the consumers behind this node need, the node needs.
    pub(super) fn merge_needs(&mut self, id: PartitionId) {
        let Some(partition) = self.partitions.get(&id) else { return };
        if partition.shape.propagation == Propagation::Bounded
            && partition.upstream.as_ref().is_some_and(|up| up.identity)
        {
            let needs = partition
                .subscribers
                .values()
                .flat_map(|subscriber| subscriber.needs.versions.iter().copied());
            let needs: BTreeSet<u64> = needs.collect();
            self.set_needs(id, needs.into_iter().collect());
        }
    }
}
