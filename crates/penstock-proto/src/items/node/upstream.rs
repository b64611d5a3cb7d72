//! What is wanted of the peer that a partition's rows come from, and how it is told.

use super::kept::{Away, Needs, Shared};
use super::subscriber::Subscriber;
use super::work::Work;
use super::{Host, Node, Partition, Told};
use crate::items::row_memory::Memory as _;
use crate::items::rows::RowSet;
use crate::items::wire::{Encoder, Message, PartitionId, Shape};
use crate::message::MAX_WORKERS;
use crate::peer::{PeerId, Role};
use std::collections::BTreeMap;

/// How often the rows that are wanted of a source may change, or be put together anew because they may have, not counting each
/// peer's first rows. A peer that wants other rows again and again would keep a flush of the source, which is repeated for each
/// change, from ever coming back, and this node busy with what all others want: from then on all rows are wanted.
const MOST_CHANGES: u32 = 2 * MAX_WORKERS;
/// The same for all tables of a source together: a flush is repeated for each of them.
const MOST_CHANGES_IN_ALL: u32 = 4 * MOST_CHANGES;
/// How often one peer may want other rows of a partition than before. Each time the source may have to send anew all that is wanted of
/// it, and what is under way is thrown away: those that wait for it would wait for ever. From then on all rows are wanted, which no
/// peer can change, until that one has gone for good.
const MOST_CHANGES_OF_ONE: u32 = 4;

/// The same for a peer, which may speak for all those behind it.
fn most_changes(peer: PeerId) -> u32 {
    match peer.role {
        Role::Server | Role::Relay => MOST_CHANGES,
        Role::Worker | Role::Follower | Role::Replica => MOST_CHANGES_OF_ONE,
    }
}

/// What a source is asked to fetch.
#[derive(Debug)]
pub(super) struct Asked {
    version: u64,
    /// Of the source.
    slots: RowSet,
    pub(super) paid: Shared,
    /// The peer for which it is asked, if not for this side, and that one's ticket.
    pub(super) of: Option<(PeerId, u64)>,
}

/// Where a partition's rows come from, if not from this host.
#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) peer: PeerId,
    /// As the source knows it.
    pub(super) shape: Shape,
    /// Slots of the source that are wanted: place in this set is place on the wire.
    pub(super) rows: RowSet,
    /// What is paid for them, by those that want them or did when they were put together.
    pub(super) paid: Vec<Shared>,
    /// Whether the mirror's slots are the source's, or places.
    pub(super) identity: bool,
    pub(super) done: u64,
    pub(super) serial: u64,
    pub(super) synced: bool,
    /// Versions that are needed, and by how many.
    pub(super) needs: BTreeMap<u64, u32>,
    /// What is paid for them.
    pub(super) needs_paid: Vec<Shared>,
    /// What peers that are sent nothing any more needed, still counted among them, and paid for: many may go at once.
    pub(super) needed: Vec<Needs>,
    /// Whether this connection has heard them.
    pub(super) needs_told: bool,
    /// Fetches without an answer, by ticket.
    pub(super) fetches: BTreeMap<u64, Asked>,
    /// The last of them that this connection has heard of, if it has heard the subscription: tickets ascend.
    pub(super) told: u64,
    /// Fetches that the source has heard of and need not answer any more, as it does not know yet.
    pub(super) withdrawn: Vec<(u64, Shared)>,
    /// Whether the first rows of a batch have come and the last have not.
    pub(super) receiving: bool,
    /// Eager: the set after which its rows are as they were.
    pub(super) opened: u64,
    /// Whether this connection has heard the subscription.
    pub(super) heard: bool,
    /// How often the rows that are wanted changed, or may have.
    pub(super) changes: u32,
    /// Whether some of the rows may be wanted by nobody any more. If not, they are what all want together.
    pub(super) surplus: bool,
}

impl Upstream {
    pub(super) fn new(peer: PeerId, shape: Shape, rows: RowSet, identity: bool) -> Self {
        Self {
            peer,
            shape,
            rows,
            paid: Vec::new(),
            identity,
            done: 0,
            serial: 1,
            synced: false,
            needs: BTreeMap::new(),
            needs_paid: Vec::new(),
            needed: Vec::new(),
            needs_told: false,
            fetches: BTreeMap::new(),
            told: 0,
            withdrawn: Vec::new(),
            receiving: false,
            opened: 0,
            heard: false,
            changes: 0,
            surplus: false,
        }
    }

    /// Whether it may be told once more that something else is wanted: there is a bound for this partition, and one for all of
    /// the source's.
    pub(super) fn may_change(&self, in_all: u32) -> bool {
        self.changes < MOST_CHANGES && in_all < MOST_CHANGES_IN_ALL
    }

    /// Places on the wire of slots of the source.
    pub(super) fn places(&self, slots: &RowSet) -> RowSet {
        // Those of a range follow each other, if it is wanted as a whole.
        let wanted = slots.intersection(&self.rows);
        let places = wanted.ranges().iter().filter_map(|range| {
            let first = self.rows.place(range.start)?;
            Some(first..first + (range.end - range.start))
        });
        RowSet::from_ranges(places)
    }

    /// Whether the source has heard of a fetch for the subscription that it knows.
    pub(super) fn has_told(&self, ticket: u64) -> bool {
        self.heard && ticket <= self.told
    }

    /// A peer needs these versions no more; whether nobody does.
    fn need_no_more(&mut self, needs: &Needs) -> bool {
        let mut changed = false;
        for version in &needs.versions {
            let Some(count) = self.needs.get_mut(version) else { continue };
            *count -= 1;
            if *count == 0 {
                self.needs.remove(version);
                changed = true;
            }
        }
        changed
    }

    /// Says what the source does not know yet of what is wanted of it; all of it on a new connection, or for a new subscription.
    /// Whether it was all of that, and not as much as `work` allows.
    fn say(&mut self, id: PartitionId, out: &mut Vec<u8>, told: &mut Told, work: &mut Work) -> bool {
        if self.rows.is_empty() {
            return true;
        }
        if !std::mem::replace(&mut self.heard, true) {
            let Self { shape, done, serial, .. } = *self;
            let rows = self.rows.clone();
            work.look(rows.ranges().len() as u64);
            Encoder::message(out, &Message::Subscribe { partition: id, shape, done, serial, rows });
            told.paid.extend(self.paid.iter().cloned());
            // It replaces all that was said before.
            self.withdrawn.clear();
            (self.told, self.needs_told) = (0, self.needs.is_empty());
        }
        if !std::mem::replace(&mut self.needs_told, true) {
            let versions = self.needs.keys().copied().collect();
            Encoder::message(out, &Message::Need { partition: id, versions });
            told.paid.extend(self.needs_paid.iter().cloned());
        }
        for (ticket, paid) in std::mem::take(&mut self.withdrawn) {
            Encoder::message(out, &Message::Withdraw { partition: id, ticket });
            told.paid.push(paid);
        }
        let mut last = self.told;
        for (&ticket, Asked { version, slots, paid, .. }) in self.fetches.range(self.told + 1..) {
            if work.is_over() {
                self.told = last;
                return false;
            }
            work.look(1 + slots.ranges().len() as u64);
            let (version, places) = (*version, self.places(slots));
            Encoder::message(out, &Message::Fetch { partition: id, ticket, version, places });
            told.paid.push(Shared::clone(paid));
            last = ticket;
        }
        self.told = last;
        true
    }
}

impl<H: Host> Node<H> {
    pub(super) fn fetch_slots(
        &mut self,
        id: PartitionId,
        slots: RowSet,
        version: u64,
        paid: Shared,
        of: Option<(PeerId, u64)>,
    ) -> Option<u64> {
        self.next += 1;
        let ticket = self.next;
        let upstream = self.partitions.get_mut(&id)?.upstream.as_mut()?;
        upstream.fetches.insert(ticket, Asked { version, slots, paid, of });
        // Before the source has heard of the subscription it is told with that.
        if upstream.heard {
            self.want(id);
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

    /// Appends what a source does not know yet of what is wanted of its partitions now. Nothing of it is put together before: so
    /// however often it changes, or is asked for and given up, meanwhile, and however slowly the source reads, nothing is kept here
    /// but what is wanted, which was paid for by those who want it. Whether it was all of that: what peers needed that have gone, and
    /// what they fetch, may take more than a step.
    pub(super) fn say_wanted(&mut self, source: PeerId, out: &mut Vec<u8>) -> bool {
        let Some(connection) = self.peers.get_mut(&source) else { return true };
        let (before, mut work) = (out.len(), Work::new(self.step));
        while !work.is_over()
            && let Some(id) = connection.wanted.pop_first()
        {
            let Some(Partition { upstream: Some(upstream), subscribers, .. }) = self.partitions.get_mut(&id)
            else {
                continue;
            };
            if upstream.peer != source {
                continue;
            }
            if !upstream.needed.is_empty() {
                while !work.is_over()
                    && let Some(needs) = upstream.needed.pop()
                {
                    work.look(needs.versions.len() as u64);
                    upstream.needs_told &= !upstream.need_no_more(&needs);
                }
                upstream.needs_paid = needs_paid(subscribers);
                if !upstream.needed.is_empty() {
                    connection.wanted.insert(id);
                    break;
                }
            }
            if !upstream.say(id, out, &mut connection.given.told, &mut work) {
                connection.wanted.insert(id);
                break;
            }
        }
        connection.given.told.bytes += (out.len() - before) as u64;
        connection.wanted.is_empty()
    }

    /// What is wanted of a partition may have changed: by what `peers` want now, all of them for the `first` time or not. There is
    /// only one first time for a peer. All that is wanted is put together anew only where a peer may want less than it did: rows
    /// that are wanted already change nothing, and others are added.
    pub(super) fn ask_source(&mut self, id: PartitionId, peers: &[PeerId], first: bool) {
        let Self { partitions, changes, .. } = self;
        let Some(partition) = partitions.get_mut(&id) else { return };
        let Partition { upstream: Some(upstream), subscribers, away, asked: times, .. } = partition else {
            return;
        };
        // What is consumed here has places in its mirror, whoever asks for it.
        if !upstream.identity {
            return;
        }
        let changes = changes.entry(upstream.peer).or_default();
        let restless = times.iter().any(|(peer, times)| *times > most_changes(*peer));
        let wanted = if restless || !upstream.may_change(*changes) {
            // Once it may change again, what is wanted then is not known.
            upstream.surplus = true;
            let all = 0..u64::from(upstream.shape.slots);
            (upstream.rows.len() < all.end).then(|| RowSet::from_ranges([all]))
        } else if std::mem::take(&mut upstream.surplus) {
            // It counts also where it turns out to be the same: a peer may have it done again and again.
            if !first {
                (upstream.changes, *changes) = (upstream.changes + 1, *changes + 1);
            }
            Some(asked(subscribers, away)).filter(|wanted| *wanted != upstream.rows)
        } else {
            let here = |peer| subscribers.get(peer).map(|subscriber| &subscriber.rows);
            let of = |peer| here(peer).or_else(|| away.get(peer).map(|away| &away.rows));
            let others = peers.iter().filter_map(of).filter(|rows| !rows.is_within(&upstream.rows));
            let others: Vec<&RowSet> = others.collect();
            if !others.is_empty() && !first {
                (upstream.changes, *changes) = (upstream.changes + 1, *changes + 1);
            }
            (!others.is_empty()).then(|| RowSet::union_of(others.into_iter().chain([&upstream.rows])))
        };
        upstream.paid = paid(subscribers, away);
        if let Some(wanted) = wanted {
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

    /// A peer has gone for good. It pays no more for rows that others want too; the source is not asked anew for fewer, and so for
    /// all of them once more. Until the source is asked anew, the peer goes on paying as if it were away: its rows are still among
    /// those wanted here, and are named again when the source reconnects. For its own list, which is gone, it pays too much until
    /// then.
    pub(super) fn share(&mut self, id: PartitionId) {
        let Some(Partition { upstream: Some(upstream), subscribers, away, .. }) =
            self.partitions.get_mut(&id)
        else {
            return;
        };
        if !upstream.surplus || asked(subscribers, away) == upstream.rows {
            upstream.surplus = false;
            upstream.paid = paid(subscribers, away);
        }
    }

    /// The consumer here needs these versions, and no others.
    pub(super) fn set_needs(&mut self, id: PartitionId, versions: Vec<u64>) {
        let partition = self.partitions.get_mut(&id);
        let Some(upstream) = partition.and_then(|partition| partition.upstream.as_mut()) else { return };
        let needs: BTreeMap<u64, u32> = versions.into_iter().map(|version| (version, 1)).collect();
        if upstream.needs != needs {
            (upstream.needs, upstream.needs_told) = (needs, false);
            if upstream.heard {
                self.want(id);
            }
        }
    }

    /// What the consumers behind this node need, the node needs: a peer needs other versions than `before`. Only these are looked
    /// at, and not what all others need.
    pub(super) fn change_needs(&mut self, id: PartitionId, peer: PeerId, before: &Needs) {
        let Some(Partition { upstream: Some(upstream), subscribers, .. }) = self.partitions.get_mut(&id)
        else {
            return;
        };
        let now = subscribers.get(&peer).map_or(&[][..], |subscriber| &subscriber.needs.versions);
        if !upstream.identity || before.versions.is_empty() && now.is_empty() {
            return;
        }
        let mut changed = false;
        for &version in now {
            let count = upstream.needs.entry(version).or_default();
            changed |= *count == 0;
            *count += 1;
        }
        changed |= upstream.need_no_more(before);
        upstream.needs_paid = needs_paid(subscribers);
        if changed {
            upstream.needs_told = false;
            if upstream.heard {
                self.want(id);
            }
        }
    }
}

/// What is paid for the versions that peers need.
fn needs_paid(here: &BTreeMap<PeerId, Subscriber>) -> Vec<Shared> {
    let needs = here.values().map(|subscriber| &subscriber.needs);
    let needs = needs.filter(|needs| !needs.versions.is_empty());
    needs.map(|needs| Shared::clone(&needs.kept)).collect()
}

/// The rows that peers ask for which are here, or may come again.
fn asked(here: &BTreeMap<PeerId, Subscriber>, away: &BTreeMap<PeerId, Away>) -> RowSet {
    let here = here.values().map(|subscriber| &subscriber.rows);
    RowSet::union_of(here.chain(away.values().map(|away| &away.rows)))
}

/// What those peers pay for them.
fn paid(here: &BTreeMap<PeerId, Subscriber>, away: &BTreeMap<PeerId, Away>) -> Vec<Shared> {
    let here = here.values().map(|subscriber| &subscriber.kept);
    here.chain(away.values().map(|away| &away.kept)).map(Shared::clone).collect()
}
