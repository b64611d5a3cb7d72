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
//! | `upstream.rs` | what is wanted of a partition's source |
//! | `subscribing.rs` | peers that subscribe, wait to, or are away |
//! | `subscriber.rs` | what one peer has of a partition, and lacks |
//! | `flush.rs` | until when all has come: what was set here, or what is due from elsewhere |
//! | `given_up.rs` | what nobody waits for any more |
//! | `kept.rs` | what a peer makes a node keep |
//! | `batch.rs` | which rows go together |
//! | `taken.rs` | rows as they were at one moment, on their way |
//! | `work.rs` | how much is done at a time |
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
//!   gone when it is back. Nor is what a producer had under way lost when it leaves: a flush that is answered behind another
//!   subscription is repeated.
//! - **N-6** A flush waits for what its asker has set. Only one that asks for the rows of a partition waits for those, and for
//!   no other producer's: a producer that brings nothing, or leaves a row torn, delays only those that ask for its rows.

mod batch;
mod flush;
mod given_up;
mod incoming;
mod kept;
mod outgoing;
mod piece;
mod spares;
mod subscriber;
mod subscribing;
mod taken;
mod upstream;
mod work;

use super::row_memory::{Changed, Memory, Moment};
use super::rows::RowSet;
use super::spec::Propagation;
use super::wire::{Encoder, Malformed, Message, PartitionId, Shape};
use crate::account::{Account, Charge, Exhausted, Resource};
use crate::peer::PeerId;
use batch::collect;
use flush::{Bringing, Flush, Flushing};
use given_up::Ahead;
pub use given_up::{MOST_AHEAD, MOST_ROWS_AHEAD};
use kept::{Away, FREE_BYTES, Needs, Shared};
use spares::Scratch;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use subscriber::Subscriber;
use subscribing::Waiting;
use taken::Batch;
use upstream::Upstream;

/// Whatever the node cannot do itself.
pub trait Host {
    /// The memory of rows.
    type Memory: Memory;

    /// Memory for rows that a peer produces; `None` if there is none left.
    fn make(&mut self, partition: PartitionId, shape: &Shape) -> Option<Self::Memory>;

    /// The rows of a fetch are here.
    fn answered(&mut self, ticket: u64);

    /// A flush is complete, of either kind.
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
    /// The moment at which the producer had gone, if it has: what was here then is all that ever comes. Or a later one,
    /// if it has overwritten since what was still due.
    ended: Option<Moment>,
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
    /// Peers that have subscribed, the producer apart, and have not gone for good: one whose connection broke comes again. And how
    /// often each has wanted other rows than before, such that others were wanted of the source.
    asked: BTreeMap<PeerId, u32>,
    /// Low half of the number of the last set that the change log reported.
    heard: u32,
    /// Bytes of rows that were sent and that came.
    traffic: (u64, u64),
    /// See [`Node::overtaken`].
    overtaken: (u64, u64),
}

/// What a source was told of what others want of it, as long as that may lie here for it.
#[derive(Debug, Default)]
struct Told {
    bytes: u64,
    /// What those others pay for it.
    paid: Vec<Shared>,
}

/// What a peer was given and may not have read.
#[derive(Debug, Default)]
struct Given {
    /// What it was told for others' sake.
    told: Told,
    /// What it pays for itself.
    own: Vec<Charge>,
}

#[derive(Debug, Default)]
struct Connection {
    account: Account,
    messages: Vec<u8>,
    given: Given,
    /// Flushes that are through, and answers to flushes: said behind what is wanted of the peer's partitions, so that the peer
    /// that flushes knows of it.
    flushed: Vec<u8>,
    /// Partitions of this peer of which others want something other than what it knows.
    wanted: BTreeSet<PartitionId>,
    /// What of the messages that are here was charged: for what is on its way its taker still has room.
    unread: Charge,
    batch: Option<Batch>,
    /// Why the peer is to be taken for lost.
    overdrawn: Option<Broken>,
    flushes: Vec<Flush>,
    brings: BTreeMap<PartitionId, Bringing>,
    /// How often this peer has subscribed.
    subscribed: u64,
    /// The partition that had the last turn.
    turn: Option<PartitionId>,
    /// The partition at which the last step ended, where it did before all had been looked at.
    stopped: Option<PartitionId>,
    /// Whether nothing reaches the peer any more.
    deaf: bool,
    /// Partitions that the peer wants brought once what their source has left has been heard, with its flush.
    later: BTreeMap<PartitionId, u64>,
}

/// The machine.
#[derive(Debug)]
pub struct Node<H: Host> {
    host: H,
    partitions: BTreeMap<PartitionId, Partition<H::Memory>>,
    peers: BTreeMap<PeerId, Connection>,
    waiting: BTreeMap<PartitionId, Vec<Waiting>>,
    /// Those of them whose peers may have asked whether the rows were brought.
    asking: BTreeSet<(PartitionId, PeerId)>,
    /// The last of these that was gone over in the step before, where they are more than a step's.
    answered: Option<(PartitionId, PeerId)>,
    /// Flushes that were asked for here and are not complete.
    flushing: BTreeMap<u64, Flushing>,
    /// Fetches of this side that nobody waits for.
    ahead: Ahead,
    next: u64,
    /// Counts flushes that were begun: what is taken in a later turn holds all that was finished before.
    turn: u64,
    /// Rows that are looked at in one step.
    step: u64,
    scratch: Scratch,
    /// Tables that all have dropped: what is still under way of them no longer matters.
    dropped: RowSet,
    /// Partitions of which a peer that has gone may still pay for what others want too. Many may go in one turn.
    to_share: BTreeSet<PartitionId>,
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
            asking: BTreeSet::new(),
            answered: None,
            flushing: BTreeMap::new(),
            ahead: Ahead::default(),
            next: 0,
            turn: 0,
            step: work::STEP,
            scratch: Scratch::default(),
            dropped: RowSet::default(),
            to_share: BTreeSet::new(),
            gone: BTreeSet::new(),
            changes: BTreeMap::new(),
        }
    }

    /// From now on it looks at about so many rows in one call of [`Node::transmit`], at one at least.
    pub fn look_at_most(&mut self, rows: u64) {
        self.step = rows.max(1);
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
        let partition = place.insert(Partition::new(memory, shape, Some(producer), None, home));
        if self.gone.contains(&producer) {
            partition.end_with_its_producer(&mut self.scratch.changed);
        }
        self.offer(id);
        self.admit(id);
        true
    }

    /// Rows that are wanted of a peer, in memory with as many slots, in their order. `shape`: as their producer has them.
    pub fn consume(&mut self, id: PartitionId, peer: PeerId, shape: Shape, rows: RowSet, memory: H::Memory) {
        let mirror = Shape { slots: rows.len() as u32, ..shape };
        let upstream = Upstream::new(peer, shape, rows, false);
        self.partitions.insert(id, Partition::new(memory, mirror, None, Some(upstream), None));
        self.want(id);
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
                self.want(id);
            }
        }
        let flushing: Vec<_> = self.flushing.iter().filter(|(_, it)| it.peer == peer).collect();
        let flushing: Vec<_> = flushing.into_iter().map(|(id, it)| (*id, it.of)).collect();
        flushing.into_iter().for_each(|(id, of)| _ = self.begin_flush(id, peer, of));
    }

    /// The connection to a peer is gone: what it was to be sent, it will ask for again, and what it has fetched. The rows that
    /// it wants are wanted all the same.
    pub fn lost(&mut self, peer: PeerId) {
        let Some(Connection { deaf, .. }) = self.peers.remove(&peer) else { return };
        for waiting in self.waiting.values_mut().flatten().filter(|waiting| waiting.peer == peer) {
            (waiting.away, waiting.needs, waiting.fetches) = (true, Needs::default(), Vec::new());
            waiting.bring = None;
        }
        let ids: Vec<PartitionId> = self.partitions.keys().copied().collect();
        for id in ids {
            let Some(partition) = self.partitions.get_mut(&id) else { continue };
            if let Some(upstream) = partition.upstream.as_mut().filter(|upstream| upstream.peer == peer) {
                partition.memory.abort();
                (upstream.receiving, upstream.heard) = (false, false);
                upstream.withdrawn.clear();
            }
            partition.mistaken.remove(&peer);
            if let Some(gone) = self.unsubscribe(id, peer) {
                self.miss(id, peer, gone);
            }
        }
        if deaf {
            self.bring_what_waited(peer);
        }
    }

    /// Nothing reaches a peer any more on its connection, but what it has said there is still heard. Of that counts what others
    /// depend on; what it asks for is not done for it, and it asks again if it comes again.
    pub fn stop_answering(&mut self, peer: PeerId) {
        if let Some(connection) = self.peers.get_mut(&peer) {
            connection.deaf = true;
            connection.flushes.clear();
            connection.brings.clear();
        }
    }

    fn is_deaf(&self, peer: PeerId) -> bool {
        self.peers.get(&peer).is_some_and(|connection| connection.deaf)
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

    /// How often a batch became one of a later moment, since its producer had overtaken it, and how often one was given up for others.
    pub fn overtaken(&self) -> (u64, u64) {
        let of = self.partitions.values().map(|partition| partition.overtaken);
        of.fold((0, 0), |sum, (later, given_up)| (sum.0 + later, sum.1 + given_up))
    }

    /// Asks for rows at `places` of what is consumed, once they have the version; the ticket comes back to [`Host::answered`].
    pub fn fetch(&mut self, id: PartitionId, places: &RowSet, version: u64) -> Option<u64> {
        let upstream = self.partitions.get(&id)?.upstream.as_ref()?;
        let slots =
            RowSet::from_ranges(places.ranges().iter().flat_map(|range| upstream.rows.at(range.clone())));
        self.fetch_slots(id, slots, version, Shared::default(), None)
    }

    /// Bounded: from now on the consumer here needs these versions, ascending: what its gets wait for, and
    /// what the next will ask for.
    pub fn need(&mut self, id: PartitionId, versions: Vec<u64>) {
        self.set_needs(id, versions);
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
        self.answer_of(table);
        self.waiting.retain(|id, _| id.table != table);
        let ids = self.partitions.keys().filter(|id| id.table == table).copied().collect();
        self.remove(&ids);
    }

    /// Whether a peer has gone for good.
    pub fn has_gone(&self, peer: PeerId) -> bool {
        self.gone.contains(&peer)
    }

    /// Whether any peer that has not gone waits for a partition that is not here.
    pub fn is_awaited(&self, partition: PartitionId) -> bool {
        self.waiting.get(&partition).is_some_and(|waiting| !waiting.is_empty())
    }

    /// A peer has gone for good. What it produced is kept as long as a peer that is here has asked for it, and no longer: this
    /// node does not know which tables there are. Returns what is not kept any more.
    pub fn forget(&mut self, peer: PeerId) -> BTreeSet<PartitionId> {
        self.gone.insert(peer);
        self.changes.remove(&peer);
        self.asking.retain(|(_, asks)| *asks != peer);
        self.waiting.retain(|_, waiting| {
            waiting.retain(|waiting| waiting.peer != peer);
            !waiting.is_empty()
        });
        let mut asked = Vec::new();
        for (id, partition) in &mut self.partitions {
            if partition.asked.remove(&peer).is_some() {
                asked.push(*id);
            }
            if partition.away.remove(&peer).is_some()
                && let Some(upstream) = &mut partition.upstream
            {
                upstream.surplus = true;
            }
            if partition.producer == Some(peer) {
                partition.end_with_its_producer(&mut self.scratch.changed);
            }
        }
        self.to_share.extend(asked);
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
                ids.iter().for_each(|id| connection.brought(*id, u64::MAX));
                for flush in &mut connection.flushes {
                    flush.partitions.retain(|id, _| !ids.contains(id));
                }
            }
            self.settle(peer);
        }
    }

    // What peers are told

    fn say(&mut self, peer: PeerId, message: &Message<'_>) {
        if let Some(connection) = self.peers.get_mut(&peer) {
            Encoder::message(&mut connection.messages, message);
            connection.note_messages();
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
            ended: None,
            home,
            leaving: false,
            subscribers: BTreeMap::new(),
            away: BTreeMap::new(),
            mistaken: BTreeSet::new(),
            asked: BTreeMap::new(),
            heard: 0,
            traffic: (0, 0),
            overtaken: (0, 0),
        }
    }

    /// No peer is asked any more, and no reader waits for rows that have not come by now: it is as if those had never been set.
    /// That it has gone may be said more than once, and what it has set between is not followed. Rows and fetches may be many, and
    /// so may be those who wait for them: none is looked at here.
    fn end_with_its_producer(&mut self, scratch: &mut Vec<Changed>) {
        if self.ended.is_some() {
            return;
        }
        self.away.clear();
        if self.upstream.take().is_some() {
            self.memory.abort();
            self.subscribers.values_mut().for_each(|it| (it.ready, it.dirty) = (true, true));
        }
        // What it has set by now.
        let now = self.memory.now();
        collect(self, scratch);
        self.ended = Some(now);
        // What each of them waits for is gone over in steps.
        self.subscribers.values_mut().for_each(Subscriber::end);
    }
}

impl Connection {
    /// Whether there is nothing to say to it, but perhaps rows that have not been taken yet.
    fn is_quiet(&self) -> bool {
        !self.has_messages() && self.batch.is_none() && self.stopped.is_none()
    }

    /// Whether there is something to say to it, apart from rows.
    fn has_messages(&self) -> bool {
        !self.messages.is_empty() || !self.flushed.is_empty() || !self.wanted.is_empty()
    }

    /// Charges the messages that are longer than what is always under way.
    fn note_messages(&mut self) {
        let bytes = (self.messages.len() + self.flushed.len()) as u64;
        let more = bytes.saturating_sub(FREE_BYTES).saturating_sub(self.unread.amount());
        if more > 0
            && let Err(why) = self.unread.grow(more)
        {
            self.overdrawn = Some(Broken::Exhausted { what: "messages that it does not read", why });
        }
    }

    /// All messages have been given: what was charged for them goes with them, and pays for none that comes later.
    fn give_charge(&mut self) {
        if self.unread.amount() > 0 {
            let none = self.account.charge(Resource::Bytes, 0).unwrap_or_default();
            self.given.own.push(std::mem::replace(&mut self.unread, none));
        }
    }
}
