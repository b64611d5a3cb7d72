//! Who is sent what, when: one machine for a server, for a producer and for a consumer on another host.
//!
//! A node holds *partitions*: rows of one producer of one table. A partition's rows come from memory that is written on this
//! host, or from a peer; they go to peers that have subscribed to them. On a producer's host the worker's node holds the
//! partition and its one subscriber, the home; at the home the partition comes from that peer (or from shared memory) and goes
//! to all consumers on other hosts; a consumer's node holds a mirror without subscribers.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | partitions, connections; what the host asks |
//! | `incoming.rs` | what peers say |
//! | `outgoing.rs` | what they are sent |
//! | `subscriber.rs` | what one peer has of a partition, and lacks |
//! | `batch.rs` | which rows go together |
//!
//! Peers are known by their [`PeerId`], and any may subscribe: a follower, a relay, a worker that came back. Only the worker of a
//! partition's rank may offer its rows. A worker that comes back is another peer, and is sent what it asks for itself.
//!
//! What is sent is always state: a *batch* of rows as they were at one moment, with the numbers of the sets that wrote them.
//!
//! - **N-1** Rows of one set reach a subscriber together: a batch is taken at one moment between two sets, and applied as one.
//! - **N-2** Eager: when nothing is under way, each subscriber has every row as its producer last set it.
//! - **N-3** Lazy: a row is sent only in answer to a fetch, and never older than it asks for.
//! - **N-4** Bounded: a row is sent only if some consumer behind the subscriber needs a version that the
//!   subscriber lacks, and it has it.
//! - **N-5** A connection that breaks loses nothing: a subscription names what the subscriber has, and the rows that it
//!   wants, where they come without being fetched, go on coming to the node that passes them on, since their producer may be
//!   gone when it is back. Nor does what a producer had under way as it left: a flush that is answered behind another
//!   subscription is repeated.

mod batch;
mod incoming;
mod outgoing;
mod subscriber;

use super::row_memory::{Changed, Memory};
use super::rows::RowSet;
use super::spec::Propagation;
use super::wire::{Encoder, Malformed, Message, PartitionId, Shape};
use crate::account::{Account, Charge, Exhausted, Resource};
use crate::message::MAX_WORKERS;
use crate::peer::{PeerId, Role};
use batch::{Batch, collect};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use subscriber::Subscriber;

/// Most versions that a consumer's need may name: one for each of so many gets that wait, the newest that one asked for, and
/// the one that the next will ask for.
const MOST_NEEDS: usize = 1024 + 2;

/// How often the rows that are wanted of a source may change, or fetches be withdrawn, not counting each peer's first
/// rows. A peer that wants other rows again and again would keep a flush of the source, which is repeated for each change, from
/// ever coming back: from then on all rows are wanted, and fetches are kept.
const MOST_CHANGES: u32 = 2 * MAX_WORKERS;
/// The same for all tables of a source together: a flush is repeated for each of them.
const MOST_CHANGES_IN_ALL: u32 = 4 * MOST_CHANGES;

/// Most versions that a peer's need may name: a peer that passes rows on says what all those behind it need, and cannot make
/// them need less.
fn most_needs(peer: PeerId) -> usize {
    match peer.role {
        Role::Server | Role::Relay => MOST_NEEDS * MAX_WORKERS as usize,
        Role::Worker | Role::Follower | Role::Replica => MOST_NEEDS,
    }
}

/// Whatever the node cannot do itself.
pub trait Host {
    /// The memory of rows.
    type Memory: Memory;

    /// Memory for rows that a peer produces; `None` if there is none left.
    fn make(&mut self, partition: PartitionId, shape: &Shape) -> Option<Self::Memory>;

    /// The rows of a fetch are here.
    fn answered(&mut self, ticket: u64);

    /// A flush is complete.
    fn flushed(&mut self, id: u64);

    /// What is kept for a peer is charged to this.
    fn account(&self, _peer: PeerId) -> Account {
        Account::default()
    }

    /// Whether a peer's rows come from it, and not from memory of this host.
    fn is_elsewhere(&self, _peer: PeerId) -> bool {
        true
    }

    /// The memory that [`Host::make`] made for a partition is not needed any more.
    fn unmade(&mut self, _partition: PartitionId, _shape: &Shape) {}
}

/// A peer said what no honest one says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// Bytes that are not a message.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A message that makes no sense from this peer.
    #[error("it sent {0}")]
    Nonsense(&'static str),
    /// More would have to be kept for it than may be.
    #[error("for {what} {why}")]
    Exhausted {
        /// What.
        what: &'static str,
        /// What was asked, what is left.
        why: Exhausted,
    },
}

/// Where a partition's rows come from, if not from this host.
#[derive(Debug)]
struct Upstream {
    peer: PeerId,
    /// As the source knows it.
    shape: Shape,
    /// Slots of the source that are wanted: place in this set is place on the wire.
    rows: RowSet,
    /// Whether the mirror's slots are the source's, or places.
    identity: bool,
    done: u64,
    serial: u64,
    synced: bool,
    needs: Vec<u64>,
    /// Fetches without an answer: ticket, version, slots of the source.
    fetches: BTreeMap<u64, (u64, RowSet, Kept)>,
    /// Whether the first rows of a batch have come and the last have not.
    receiving: bool,
    /// Whether this connection has heard the subscription.
    heard: bool,
    /// How often the rows that are wanted changed, or fetches were no longer wanted.
    changes: u32,
}

#[derive(Debug)]
struct Partition<M> {
    memory: M,
    shape: Shape,
    /// The peer that writes the rows; `None`: one behind the source.
    producer: Option<PeerId>,
    /// `None`: this host, or a producer that has gone.
    upstream: Option<Upstream>,
    /// Whether the host made the memory for rows of a peer.
    made: bool,
    /// Whether the producer has gone: what is here is all that ever comes.
    ended: bool,
    /// The peer that is told of rows that are produced here.
    home: Option<PeerId>,
    /// Whether the producer here leaves: a peer that subscribes from now on, perhaps again, is sent all that it subscribes to.
    leaving: bool,
    subscribers: BTreeMap<PeerId, Subscriber>,
    /// Peers that had subscribed and are not here, but may come again: the source goes on sending their rows here, since they may
    /// be gone with their producer when the peer comes.
    away: BTreeMap<PeerId, Away>,
    /// Peers that have subscribed to other rows than these, and are sent none: they or the producer have said something other
    /// than what was declared, and which of the two is not known here.
    mistaken: BTreeSet<PeerId>,
    /// Peers that have subscribed, the producer apart, and have not gone for good: one whose connection broke comes again.
    asked: BTreeSet<PeerId>,
    /// Low half of the number of the last set that the change log reported.
    heard: u32,
    /// Bytes of rows that were sent and that came.
    traffic: (u64, u64),
}

/// What a peer that is not here had subscribed to.
#[derive(Debug)]
struct Away {
    rows: RowSet,
    _kept: Kept,
}

/// What was charged for something that is kept: bytes and entries.
type Kept = [Charge; 2];

/// Charges a peer with something to be kept for it.
fn keep(account: &Account, what: &'static str, bytes: u64) -> Result<Kept, Broken> {
    let refuse = |why| Broken::Exhausted { what, why };
    let entry = account.charge(Resource::Entries, 1).map_err(refuse)?;
    Ok([account.charge(Resource::Bytes, bytes).map_err(refuse)?, entry])
}

/// Bytes of what is kept for a subscription or a fetch, beside its rows.
const ENTRY_BYTES: u64 = 512;
/// Bytes of what is kept for the rows of a subscription: they, also as what is wanted of the source and said to it.
fn wanted_bytes(rows: &RowSet) -> u64 {
    ENTRY_BYTES + 3 * rows.kept_bytes()
}

/// Bytes of what is kept for each version that a peer needs: here, and among those that are needed of the source.
const NEED_BYTES: u64 = 3 * size_of::<u64>() as u64;
/// Bytes of messages for a peer that are not charged: what is always under way.
const FREE_BYTES: u64 = 64 * 1024;

/// Versions that are needed, ascending, and what they were charged.
#[derive(Debug, Default)]
struct Needs {
    versions: Vec<u64>,
    _kept: Charge,
}

impl Needs {
    fn new(account: &Account, versions: Vec<u64>) -> Result<Self, Broken> {
        let charge = account.charge(Resource::Bytes, versions.len() as u64 * NEED_BYTES);
        let kept = charge.map_err(|why| Broken::Exhausted { what: "versions that it needs", why })?;
        Ok(Self { versions, _kept: kept })
    }
}

/// A flush that waits until some partitions' rows have been sent.
#[derive(Debug)]
struct Flush {
    id: u64,
    /// Whether the peer asked, or this side asks when it is through.
    asked: bool,
    /// By partition: the turn, that or a later one, in which what was due must have been taken.
    partitions: BTreeMap<PartitionId, u64>,
    _kept: Kept,
}

#[derive(Debug, Default)]
struct Connection {
    account: Account,
    messages: Vec<u8>,
    /// Flushes that are through, and answers to flushes: said behind what is wanted of the peer's partitions, so that the peer
    /// that flushes knows of it.
    flushed: Vec<u8>,
    /// Bytes of the messages that another peer has paid for: they are said for its sake.
    relayed: u64,
    /// Partitions of this peer of which others want something other than what it knows.
    wanted: BTreeSet<PartitionId>,
    /// What of the messages, here and on their way, was charged.
    unread: Charge,
    batch: Option<Batch>,
    /// Why the peer is to be taken for lost.
    overdrawn: Option<Broken>,
    flushes: Vec<Flush>,
    /// How often this peer has subscribed.
    subscribed: u64,
    /// The partition that had the last turn.
    turn: Option<PartitionId>,
}

/// A subscription to a partition that is not here yet.
#[derive(Debug)]
struct Waiting {
    peer: PeerId,
    shape: Shape,
    done: u64,
    serial: u64,
    rows: RowSet,
    needs: Needs,
    /// Ticket, version, places.
    fetches: Vec<(u64, u64, RowSet, Kept)>,
    /// Whether the peer is not here, and may come again.
    away: bool,
    kept: Kept,
}

/// The machine.
#[derive(Debug)]
pub struct Node<H: Host> {
    host: H,
    partitions: BTreeMap<PartitionId, Partition<H::Memory>>,
    peers: BTreeMap<PeerId, Connection>,
    waiting: BTreeMap<PartitionId, Vec<Waiting>>,
    /// Flushes that were asked for here and are not complete: of which peer, and how often that peer had subscribed when
    /// each was begun.
    flushing: BTreeMap<u64, (PeerId, u64)>,
    next: u64,
    /// Counts flushes that were begun: what is taken in a later turn holds all that was finished before.
    turn: u64,
    scratch: Vec<Changed>,
    /// Tables that all have dropped: what is still under way of them no longer matters.
    dropped: RowSet,
    /// Peers that have gone for good.
    gone: BTreeSet<PeerId>,
    /// By source: the changes of all its partitions.
    changes: BTreeMap<PeerId, u32>,
}

impl<H: Host> Node<H> {
    /// Without partitions and peers.
    pub fn new(host: H) -> Self {
        Self {
            host,
            partitions: BTreeMap::new(),
            peers: BTreeMap::new(),
            waiting: BTreeMap::new(),
            flushing: BTreeMap::new(),
            next: 0,
            turn: 0,
            scratch: Vec::new(),
            dropped: RowSet::default(),
            gone: BTreeSet::new(),
            changes: BTreeMap::new(),
        }
    }

    /// What it cannot do itself.
    pub fn host(&mut self) -> &mut H {
        &mut self.host
    }

    /// The memory of a partition.
    pub fn memory(&mut self, partition: PartitionId) -> Option<&mut H::Memory> {
        self.partitions.get_mut(&partition).map(|partition| &mut partition.memory)
    }

    /// Rows that `producer` writes on this host, to be offered to `home`, or to any peer that asks for them. `false` if such rows
    /// are here already: these stay, with their subscribers.
    pub fn produce(
        &mut self,
        id: PartitionId,
        producer: PeerId,
        shape: Shape,
        memory: H::Memory,
        home: Option<PeerId>,
    ) -> bool {
        let Entry::Vacant(place) = self.partitions.entry(id) else { return false };
        let ended = self.gone.contains(&producer);
        place.insert(Partition { ended, ..Partition::new(memory, shape, Some(producer), None, home) });
        self.offer(id);
        self.admit(id);
        true
    }

    /// Rows that are wanted of a peer, in memory with as many slots, in their order. `shape`: as their producer has them.
    pub fn consume(&mut self, id: PartitionId, peer: PeerId, shape: Shape, rows: RowSet, memory: H::Memory) {
        let mirror = Shape { slots: rows.len() as u32, ..shape };
        let upstream = Upstream::new(peer, shape, rows, false);
        self.partitions.insert(id, Partition::new(memory, mirror, None, Some(upstream), None));
        self.subscribe(id);
    }

    /// A connection to a peer stands, for the first time or again.
    pub fn connected(&mut self, peer: PeerId) {
        self.lost(peer);
        let account = self.host.account(peer);
        let unread = account.charge(Resource::Bytes, 0).unwrap_or_default();
        self.peers.insert(peer, Connection { account, unread, ..Connection::default() });
        let ids: Vec<PartitionId> = self.partitions.keys().copied().collect();
        for id in ids {
            self.offer(id);
            let partition = &self.partitions[&id];
            // A producer that comes again offers its rows first.
            if partition.upstream.as_ref().is_some_and(|upstream| upstream.peer == peer && !upstream.identity)
            {
                self.resume(id);
            }
        }
        let flushing: Vec<u64> =
            self.flushing.iter().filter(|(_, (other, _))| *other == peer).map(|(id, _)| *id).collect();
        flushing.into_iter().for_each(|id| _ = self.begin_flush(id, peer, false));
    }

    /// The connection to a peer is gone: what it was to be sent, it will ask for again, and what it has fetched. The rows that
    /// it wants are wanted all the same.
    pub fn lost(&mut self, peer: PeerId) {
        if self.peers.remove(&peer).is_none() {
            return;
        }
        for waiting in self.waiting.values_mut().flatten().filter(|waiting| waiting.peer == peer) {
            (waiting.away, waiting.needs, waiting.fetches) = (true, Needs::default(), Vec::new());
        }
        let ids: Vec<PartitionId> = self.partitions.keys().copied().collect();
        for id in ids {
            let Some(partition) = self.partitions.get_mut(&id) else { continue };
            if let Some(upstream) = partition.upstream.as_mut().filter(|upstream| upstream.peer == peer) {
                partition.memory.abort();
                (upstream.receiving, upstream.heard) = (false, false);
            }
            partition.mistaken.remove(&peer);
            if let Some(gone) = self.unsubscribe(id, peer) {
                self.miss(id, peer, gone);
                self.merge_needs(id);
            }
        }
    }

    /// Whether any peer has subscribed to a partition.
    pub fn is_wanted(&self, partition: PartitionId) -> bool {
        self.partitions.get(&partition).is_some_and(|partition| !partition.subscribers.is_empty())
    }

    /// Bytes of a table's rows that were sent from here and that came here, in messages.
    pub fn traffic(&self, table: u32) -> (u64, u64) {
        let of = self.partitions.iter().filter(|(id, _)| id.table == table);
        of.fold((0, 0), |sum, (_, partition)| (sum.0 + partition.traffic.0, sum.1 + partition.traffic.1))
    }

    /// Asks for rows at `places` of what is consumed, once they have the version; the ticket comes back to [`Host::answered`].
    pub fn fetch(&mut self, id: PartitionId, places: &RowSet, version: u64) -> Option<u64> {
        let upstream = self.partitions.get(&id)?.upstream.as_ref()?;
        let slots = RowSet::from_rows(places.iter().filter_map(|place| upstream.rows.nth(place)));
        self.fetch_slots(id, slots, version, Kept::default())
    }

    fn fetch_slots(&mut self, id: PartitionId, slots: RowSet, version: u64, kept: Kept) -> Option<u64> {
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

    /// Bounded: from now on the consumer here needs these versions, ascending: what its gets wait for, and
    /// what the next will ask for.
    pub fn need(&mut self, id: PartitionId, versions: Vec<u64>) {
        self.set_needs(id, versions);
    }

    /// Asks `peer` to say, to [`Host::flushed`], when all that was set here has come there, and all that
    /// was due here has been sent.
    pub fn flush(&mut self, peer: PeerId) -> u64 {
        self.next += 1;
        self.flushing.insert(self.next, (peer, 0));
        let _ = self.begin_flush(self.next, peer, false);
        self.next
    }

    /// The producer here leaves: a peer that passes its rows on gets all that it subscribed to, since it can ask for none later.
    pub fn hand_over(&mut self) {
        for partition in self.partitions.values_mut().filter(|partition| partition.home.is_some()) {
            partition.leaving = true;
            for subscriber in partition.subscribers.values_mut() {
                let apart = subscriber.propagation != Propagation::Eager;
                (subscriber.handing_over, subscriber.dirty) = (apart, true);
            }
        }
    }

    /// All workers have dropped a table: its rows are neither kept nor passed on any more, and what a peer still says of them is
    /// not listened to.
    pub fn drop_table(&mut self, table: u32) {
        self.dropped = self.dropped.union(&RowSet::from_rows([table.into()]));
        self.waiting.retain(|id, _| id.table != table);
        let ids = self.partitions.keys().filter(|id| id.table == table).copied().collect();
        self.remove(&ids);
    }

    /// A peer has gone for good. What it produced is kept as long as a peer that is here has asked for it, and no longer: this
    /// node does not know which tables there are. Returns what is not kept any more.
    pub fn forget(&mut self, peer: PeerId) -> BTreeSet<PartitionId> {
        self.gone.insert(peer);
        self.changes.remove(&peer);
        self.waiting.retain(|_, waiting| {
            waiting.retain(|waiting| waiting.peer != peer);
            !waiting.is_empty()
        });
        for partition in self.partitions.values_mut() {
            partition.asked.remove(&peer);
            partition.away.remove(&peer);
            if partition.producer == Some(peer) {
                partition.end_with_its_producer();
            }
        }
        let unused = |(_, partition): &(&PartitionId, &Partition<_>)| {
            let orphaned = partition.producer.is_some_and(|producer| self.gone.contains(&producer));
            orphaned && partition.asked.is_empty()
        };
        let ids = self.partitions.iter().filter(unused).map(|(id, _)| *id).collect();
        self.remove(&ids);
        ids
    }

    /// Neither keeps nor passes on the rows of some partitions any more.
    fn remove(&mut self, ids: &BTreeSet<PartitionId>) {
        for id in ids {
            let Some(partition) = self.partitions.remove(id) else { continue };
            if let Some(upstream) = &partition.upstream
                && let Some(changes) = self.changes.get_mut(&upstream.peer)
            {
                *changes = changes.saturating_sub(upstream.changes);
            }
            if partition.made {
                self.host.unmade(*id, &partition.shape);
            }
        }
        let peers: Vec<PeerId> = self.peers.keys().copied().collect();
        for peer in peers {
            if let Some(connection) = self.peers.get_mut(&peer) {
                let _ = connection.batch.take_if(|batch| ids.contains(&batch.partition));
                for flush in &mut connection.flushes {
                    flush.partitions.retain(|id, _| !ids.contains(id));
                }
            }
            self.settle(peer);
        }
    }

    fn begin_flush(&mut self, id: u64, peer: PeerId, asked: bool) -> Result<(), Broken> {
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
    fn end_flush(&mut self, id: u64, peer: PeerId) -> Result<(), Broken> {
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

    // Partitions and subscriptions

    fn say(&mut self, peer: PeerId, message: &Message<'_>) {
        if let Some(connection) = self.peers.get_mut(&peer) {
            Encoder::message(&mut connection.messages, message);
            connection.note_messages();
        }
    }

    /// Says what others want of a source's rows. They have paid for it: a source that is slow to read is not lost for their sake.
    fn relay_to(&mut self, source: PeerId, message: &Message<'_>) {
        if let Some(connection) = self.peers.get_mut(&source) {
            let before = connection.messages.len();
            Encoder::message(&mut connection.messages, message);
            connection.relayed += (connection.messages.len() - before) as u64;
        }
    }

    /// What is wanted of a partition has changed. Its source is told when it is next sent something: once,
    /// however often it changes.
    fn want(&mut self, id: PartitionId) {
        let upstream = self.partitions.get(&id).and_then(|partition| partition.upstream.as_ref());
        let connection = upstream.and_then(|upstream| self.peers.get_mut(&upstream.peer));
        connection.map(|connection| connection.wanted.insert(id));
    }

    /// Tells a source what is wanted of its partitions now.
    fn say_wanted(&mut self, source: PeerId) {
        let Some(connection) = self.peers.get_mut(&source) else { return };
        for id in std::mem::take(&mut connection.wanted) {
            let upstream = self.partitions.get(&id).and_then(|partition| partition.upstream.as_ref());
            match upstream.filter(|upstream| upstream.peer == source) {
                Some(upstream) if upstream.heard => {
                    let versions = upstream.needs.clone();
                    self.relay_to(source, &Message::Need { partition: id, versions });
                }
                Some(_) => self.resume(id),
                None => {}
            }
        }
    }

    /// A peer that does not read what it is sent, and for which no more can be kept: it is to be taken for lost.
    pub fn overdrawn(&mut self) -> Option<(PeerId, Broken)> {
        self.peers.iter_mut().find_map(|(peer, connection)| Some((*peer, connection.overdrawn.take()?)))
    }

    fn offer(&mut self, id: PartitionId) {
        if let Some(Partition { home: Some(home), shape, .. }) = self.partitions.get(&id) {
            let (home, shape) = (*home, *shape);
            self.say(home, &Message::Offer { partition: id, shape });
        }
    }

    fn subscribe(&mut self, id: PartitionId) {
        let upstream = self.partitions.get_mut(&id).and_then(|partition| partition.upstream.as_mut());
        let Some(upstream) = upstream.filter(|upstream| !upstream.rows.is_empty()) else { return };
        let (peer, shape, done, serial) = (upstream.peer, upstream.shape, upstream.done, upstream.serial);
        upstream.heard = self.peers.contains_key(&peer);
        let rows = upstream.rows.clone();
        self.relay_to(peer, &Message::Subscribe { partition: id, shape, done, serial, rows });
    }

    /// Says again what the source needs to know, on a new connection.
    fn resume(&mut self, id: PartitionId) {
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

    /// Lets in those that have waited for a partition.
    fn admit(&mut self, id: PartitionId) {
        for waiting in self.waiting.remove(&id).unwrap_or_default() {
            let Waiting { peer, shape, done, serial, rows, needs, fetches, away, kept } = waiting;
            drop(kept);
            if away {
                self.expect(id, peer, shape, rows);
                continue;
            }
            let mut entered = self.enter(id, peer, shape, done, serial, rows);
            if !needs.versions.is_empty() {
                entered = entered.and_then(|()| self.needed(id, peer, needs));
            }
            for (ticket, version, places, kept) in fetches {
                drop(kept);
                entered = entered.and_then(|()| self.wanted(id, peer, ticket, version, &places));
            }
            // It would wait for ever for what it was promised.
            if let (Err(why), Some(connection)) = (entered, self.peers.get_mut(&peer)) {
                connection.overdrawn = Some(why);
            }
        }
    }

    /// A peer that waited for a partition was not here when the partition came: its rows are wanted for when the
    /// peer comes again.
    fn expect(&mut self, id: PartitionId, peer: PeerId, shape: Shape, rows: RowSet) {
        let account = self.host.account(peer);
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let fits = shape == partition.shape && rows.end() <= u64::from(shape.slots);
        if !fits || partition.producer == Some(peer) {
            return;
        }
        let first = partition.asked.insert(peer);
        // Where that cannot be kept it is asked for later.
        let Ok(kept) = keep(&account, "a subscription", wanted_bytes(&rows)) else { return };
        if partition.upstream.is_some() {
            partition.away.insert(peer, Away { rows, _kept: kept });
            self.ask_source(id, first);
        }
    }

    fn enter(
        &mut self,
        id: PartitionId,
        peer: PeerId,
        shape: Shape,
        done: u64,
        serial: u64,
        rows: RowSet,
    ) -> Result<(), Broken> {
        let account = self.host.account(peer);
        let Some(partition) = self.partitions.get_mut(&id) else { return Ok(()) };
        if rows.end() > u64::from(shape.slots) || rows.is_empty() {
            return Err(Broken::Nonsense("a subscription to other rows than there are"));
        }
        let differs = shape != partition.shape;
        self.unsubscribe(id, peer);
        let Some(partition) = self.partitions.get_mut(&id) else { return Ok(()) };
        partition.away.remove(&peer);
        if differs {
            // A peer that expects other rows than there are hears nothing; its own wait ends it.
            partition.mistaken.insert(peer);
            // Also when the producer has gone: a peer that is ignored must not be lost for rows that are gone.
            if partition.producer != Some(peer) {
                partition.asked.insert(peer);
            }
            self.merge_needs(id);
            return Ok(());
        }
        partition.mistaken.remove(&peer);
        // The rows; which of them have changed; and what it has of each.
        let bytes = wanted_bytes(&rows) + (rows.len() + 1024) * size_of::<Changed>() as u64;
        let bounded = shape.propagation == Propagation::Bounded;
        let had = if bounded { rows.len() * size_of::<(u64, u64)>() as u64 } else { 0 };
        let kept = keep(&account, "a subscription", bytes + had)?;
        // What was heard before it came is not told to it.
        collect(partition, &mut self.scratch);
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
            changed: Vec::new(),
            all: true,
            until: Some(partition.heard),
            dirty: true,
            have,
            needs: Needs::default(),
            fetches: VecDeque::new(),
            handing_over: partition.leaving && shape.propagation != Propagation::Eager,
            _kept: kept,
        };
        partition.subscribers.insert(peer, subscriber);
        if let Some(connection) = self.peers.get_mut(&peer) {
            connection.subscribed += 1;
        }
        let first = partition.producer != Some(peer) && partition.asked.insert(peer);
        self.ask_source(id, first);
        Ok(())
    }

    /// A peer is sent nothing more, at least until it subscribes again. What it has fetched is not asked of the source any
    /// more, which hears that as it is told anew what is wanted: a subscription replaces all that it keeps.
    fn unsubscribe(&mut self, id: PartitionId, peer: PeerId) -> Option<Subscriber> {
        let Self { partitions, changes, .. } = self;
        let partition = partitions.get_mut(&id)?;
        let gone = partition.subscribers.remove(&peer)?;
        let Some(upstream) = &mut partition.upstream else { return Some(gone) };
        let relayed: Vec<u64> = gone.fetches.iter().filter_map(|pending| pending.relayed).collect();
        let asked = relayed.iter().any(|ticket| upstream.fetches.contains_key(ticket));
        // Where the source has been told too often, it keeps them, and the peer that asked goes on paying for them.
        let changes = changes.entry(upstream.peer).or_default();
        if !asked || upstream.heard && !upstream.may_change(*changes) {
            return Some(gone);
        }
        relayed.iter().for_each(|ticket| _ = upstream.fetches.remove(ticket));
        if std::mem::take(&mut upstream.heard) {
            // What is under way was sent for what was wanted before: of what others have fetched it comes again.
            upstream.serial += 1;
            upstream.receiving = false;
            partition.memory.abort();
            (upstream.changes, *changes) = (upstream.changes + 1, *changes + 1);
            self.want(id);
        }
        Some(gone)
    }

    /// A subscriber is not here any more, and may come again.
    fn miss(&mut self, id: PartitionId, peer: PeerId, gone: Subscriber) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let Subscriber { rows, _kept: mut kept, .. } = gone;
        if partition.upstream.is_some() && partition.asked.contains(&peer) {
            kept[0].shrink_to(wanted_bytes(&rows));
            partition.away.insert(peer, Away { rows, _kept: kept });
        }
    }

    /// What is wanted of a partition may have changed: by a peer's `first` subscription to it, of which there is only one, or
    /// in another way.
    fn ask_source(&mut self, id: PartitionId, first: bool) {
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
            // Rows that are new to this node must come before it can say how they were after some set.
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

    fn set_needs(&mut self, id: PartitionId, needs: Vec<u64>) {
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
    fn merge_needs(&mut self, id: PartitionId) {
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

impl<M: Memory> Partition<M> {
    fn new(
        memory: M,
        shape: Shape,
        producer: Option<PeerId>,
        upstream: Option<Upstream>,
        home: Option<PeerId>,
    ) -> Self {
        let made = upstream.as_ref().is_some_and(|upstream| upstream.identity);
        Self {
            memory,
            shape,
            producer,
            upstream,
            made,
            ended: false,
            home,
            leaving: false,
            subscribers: BTreeMap::new(),
            away: BTreeMap::new(),
            mistaken: BTreeSet::new(),
            asked: BTreeSet::new(),
            heard: 0,
            traffic: (0, 0),
        }
    }

    /// No peer is asked any more, and none waits for what has not come by now: those rows are as if they had never been set.
    fn end_with_its_producer(&mut self) {
        self.ended = true;
        self.away.clear();
        if self.upstream.take().is_some() {
            self.memory.abort();
            self.subscribers.values_mut().for_each(|it| (it.ready, it.dirty) = (true, true));
        }
        let memory = &self.memory;
        for subscriber in self.subscribers.values_mut() {
            subscriber.fetches.retain(|pending| answers(memory, &pending.slots, pending.version));
        }
    }
}

/// Whether the rows of a producer that has gone answer a fetch: they are fresh enough, and were current
/// together. In doubt they do.
fn answers<M: Memory>(memory: &M, slots: &[u32], version: u64) -> bool {
    let now = memory.now();
    let (mut newest, mut as_of) = (0, u64::MAX);
    for look in slots.iter().filter_map(|&slot| memory.look(slot, now).ok()) {
        if look.clock < version {
            return false;
        }
        (newest, as_of) = (look.number.max(newest), look.as_of.min(as_of));
    }
    newest <= as_of
}

impl Connection {
    /// Whether there is something to say to it, apart from rows.
    fn has_messages(&self) -> bool {
        !self.messages.is_empty() || !self.flushed.is_empty() || !self.wanted.is_empty()
    }

    /// Charges the messages for its own sake that are longer than what is always under way.
    fn note_messages(&mut self) {
        let bytes = (self.messages.len() + self.flushed.len()) as u64 - self.relayed;
        let more = bytes.saturating_sub(FREE_BYTES).saturating_sub(self.unread.amount());
        if more > 0
            && let Err(why) = self.unread.grow(more)
        {
            self.overdrawn = Some(Broken::Exhausted { what: "messages that it does not read", why });
        }
    }
}

impl Upstream {
    fn new(peer: PeerId, shape: Shape, rows: RowSet, identity: bool) -> Self {
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
            receiving: false,
            heard: false,
            changes: 0,
        }
    }

    /// Whether it may be told once more that something else is wanted: there is a bound for this partition, and one for all of
    /// the source's.
    fn may_change(&self, in_all: u32) -> bool {
        self.changes < MOST_CHANGES && in_all < MOST_CHANGES_IN_ALL
    }

    /// Places on the wire of slots of the source.
    fn places(&self, slots: &RowSet) -> RowSet {
        RowSet::from_rows(slots.iter().filter_map(|slot| self.rows.place(slot)))
    }
}
