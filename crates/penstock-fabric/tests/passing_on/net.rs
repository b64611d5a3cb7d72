//! Nodes over wires that the test holds in its hands.

use penstock_fabric::items::partition::{Layout, Rows, Waiters, Writer};
use penstock_fabric::items::partition_memory::PartitionMemory;
use penstock_proto::account::Account;
use penstock_proto::items::node::{Broken, Host, Node};
use penstock_proto::items::row_memory::{Changed, Look, Memory, Moment, Torn, Unlisted};
use penstock_proto::items::wire::{Encoder, MAX_MESSAGE_BYTES, Message, PartitionId, Shape};
use penstock_proto::items::{Propagation, RowSet};
use penstock_proto::peer::{PeerId, Role};
use penstock_proto::record::{self, LENGTH_BYTES};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

pub(super) const ROW_BYTES: u32 = 8;
/// At its peers.
pub(super) const HOME: PeerId = PeerId::server(0);
pub(super) const PRODUCER: PeerId = PeerId::worker(7);
pub(super) const ID: PartitionId = PartitionId { table: 0, rank: 7 };
/// Consumers.
pub(super) const ONE: PeerId = PeerId::worker(1);
pub(super) const TWO: PeerId = PeerId::worker(2);
pub(super) const FOLLOWER: PeerId = PeerId::first(Role::Follower, 1);

pub(super) fn writer(slots: u32) -> Writer {
    Writer::private(Layout::new(slots, ROW_BYTES)).unwrap()
}

pub(super) fn followed(rows: &Rows) -> PartitionMemory {
    PartitionMemory::followed(rows.clone(), Waiters::private().unwrap())
}

pub(super) fn mirror(slots: u32) -> PartitionMemory {
    PartitionMemory::mirror(writer(slots), Waiters::private().unwrap())
}

pub(super) fn set(writer: &mut Writer, clock: u64, rows: &[u32], value: u64) {
    let mut set = writer.begin(rows.len());
    rows.iter().for_each(|&row| set.put(row, clock, &value.to_le_bytes()));
    set.finish();
}

pub(super) fn values(rows: &Rows) -> Vec<u64> {
    let value = |slot| {
        let mut out = [0; ROW_BYTES as usize];
        rows.read(slot, rows.now(), &mut out).unwrap();
        u64::from_le_bytes(out)
    };
    (0..rows.layout().slots()).map(value).collect()
}

/// What happens elsewhere between two looks of a node.
#[derive(Default)]
pub(super) struct Between {
    /// Done before the change log is looked at.
    pub(super) before_change_log: Option<Box<dyn FnMut()>>,
    /// The last set is logged but not finished, as far as can be seen.
    pub(super) unfinished: bool,
    /// Done before rows are read.
    pub(super) before_read: Option<Box<dyn FnMut()>>,
    /// A row that is never whole.
    pub(super) torn: Option<u32>,
}

impl Between {
    fn read(&mut self) {
        self.before_read.iter_mut().for_each(|before| before());
    }

    fn whole(&self, rows: std::ops::Range<u32>) -> Result<(), Torn> {
        if self.torn.is_some_and(|torn| rows.contains(&torn)) { Err(Torn) } else { Ok(()) }
    }
}

pub(super) struct Watched {
    pub(super) memory: PartitionMemory,
    pub(super) between: Rc<RefCell<Between>>,
}

impl Memory for Watched {
    fn changed(&mut self, changed: &mut Vec<Changed>) -> Result<(), Unlisted> {
        let before = self.between.borrow_mut().before_change_log.take();
        before.into_iter().for_each(|mut before| before());
        self.memory.changed(changed)
    }

    fn now(&self) -> Moment {
        let now = self.memory.now();
        Moment { done: now.done - u64::from(self.between.borrow().unfinished), ..now }
    }

    fn look(&self, slot: u32, now: Moment) -> Result<Look, Torn> {
        self.between.borrow().whole(slot..slot + 1)?;
        self.memory.look(slot, now)
    }

    fn read(&self, slot: u32, now: Moment, out: &mut [u8]) -> Result<Look, Torn> {
        self.between.borrow_mut().read();
        self.between.borrow().whole(slot..slot + 1)?;
        self.memory.read(slot, now, out)
    }

    fn run(&self) -> u32 {
        self.memory.run()
    }

    fn read_run(&self, first: u32, now: Moment, out: &mut [u8]) -> Result<Option<Look>, Torn> {
        self.between.borrow_mut().read();
        self.between.borrow().whole(first..first + self.run())?;
        self.memory.read_run(first, now, out)
    }

    fn open(&mut self, number: u64, rows: usize) {
        self.memory.open(number, rows);
    }

    fn put(&mut self, slot: u32, number: u64, clock: u64, value: &[u8]) {
        self.memory.put(slot, number, clock, value);
    }

    fn put_run(&mut self, first: u32, number: u64, clock: u64, values: &[u8]) {
        self.memory.put_run(first, number, clock, values);
    }

    fn finish(&mut self) {
        self.memory.finish();
    }

    fn abort(&mut self) {
        self.memory.abort();
    }

    fn refresh(&mut self, slot: u32, number: u64, version: u64, as_of: u64, value: Option<&[u8]>) {
        self.memory.refresh(slot, number, version, as_of, value);
    }

    fn raise(&mut self, floor: u64) {
        self.memory.raise(floor);
    }

    fn wake(&mut self) {
        self.memory.wake();
    }
}

#[derive(Default)]
pub(super) struct Here {
    pub(super) flushed: BTreeSet<u64>,
    /// What peers make this node keep.
    pub(super) account: Account,
}

impl Host for Here {
    type Memory = Watched;

    fn make(&mut self, _: PartitionId, shape: &Shape) -> Option<Watched> {
        Some(Watched { memory: mirror(shape.slots), between: Rc::default() })
    }

    fn account(&self, peer: PeerId) -> Account {
        self.account.peer(peer)
    }

    fn answered(&mut self, _: u64) {}

    fn flushed(&mut self, id: u64) {
        self.flushed.insert(id);
    }
}

/// A home, and workers that are connected to it.
pub(super) struct Net {
    pub(super) home: Node<Here>,
    pub(super) workers: BTreeMap<PeerId, Node<Here>>,
    /// Those that neither read nor say anything.
    pub(super) silent: BTreeSet<PeerId>,
    pub(super) shape: Shape,
}

impl Net {
    /// The producer's rows stand in the home's own memory; what happens between two looks at them is up to what is returned.
    pub(super) fn watch(&mut self, producer: &Writer) -> Rc<RefCell<Between>> {
        let between = Rc::<RefCell<Between>>::default();
        let memory = Watched { memory: followed(producer.rows()), between: Rc::clone(&between) };
        self.home.produce(ID, PRODUCER, self.shape, memory, None);
        between
    }

    pub(super) fn new(slots: u32, propagation: Propagation) -> Self {
        let shape = Shape { slots, row_bytes: ROW_BYTES, propagation };
        Self { home: Node::new(Here::default()), workers: BTreeMap::new(), silent: BTreeSet::new(), shape }
    }

    /// With a producer of all rows: one on the home's host, or one that is connected to it.
    pub(super) fn producing(slots: u32, propagation: Propagation, near: bool) -> (Self, Writer) {
        let mut net = Self::new(slots, propagation);
        let (shape, producer) = (net.shape, writer(slots));
        let memory = Watched { memory: followed(producer.rows()), between: Rc::default() };
        match near {
            true => _ = net.home.produce(ID, PRODUCER, shape, memory, None),
            false => _ = net.join(PRODUCER).produce(ID, PRODUCER, shape, memory, Some(HOME)),
        }
        (net, producer)
    }

    /// With a producer of all rows elsewhere and one consumer of them, which have heard of each other.
    pub(super) fn subscribed(slots: u32, propagation: Propagation) -> (Self, Writer) {
        let (mut net, producer) = Self::producing(slots, propagation, false);
        net.consume(ONE);
        net.settle();
        (net, producer)
    }

    pub(super) fn join(&mut self, peer: PeerId) -> &mut Node<Here> {
        self.home.connected(peer);
        let mut node = Node::new(Here::default());
        node.connected(HOME);
        self.workers.entry(peer).or_insert(node)
    }

    pub(super) fn consume(&mut self, peer: PeerId) {
        self.consume_some(peer, RowSet::from_rows(0..self.shape.slots.into()));
    }

    pub(super) fn consume_some(&mut self, peer: PeerId, rows: RowSet) {
        let shape = self.shape;
        let memory = Watched { memory: mirror(rows.len() as u32), between: Rc::default() };
        self.join(peer).consume(ID, HOME, shape, rows, memory);
    }

    pub(super) fn seen_by(&mut self, peer: PeerId) -> Vec<u64> {
        values(self.workers.get_mut(&peer).unwrap().memory(ID).unwrap().memory.rows())
    }

    /// A peer's line breaks, and it comes again.
    pub(super) fn reconnect(&mut self, peer: PeerId) {
        self.home.connected(peer);
        self.workers.get_mut(&peer).unwrap().connected(HOME);
    }

    /// A peer has gone for good.
    pub(super) fn go(&mut self, peer: PeerId) {
        self.workers.remove(&peer);
        self.home.lost(peer);
        self.home.forget(peer);
    }

    /// A consumer wants all its rows as of a version.
    pub(super) fn want_version(&mut self, peer: PeerId, rows: u64, version: u64) {
        let propagation = self.shape.propagation;
        let node = self.workers.get_mut(&peer).unwrap();
        match propagation {
            Propagation::Eager => {}
            Propagation::Bounded => node.need(ID, vec![version]),
            Propagation::Lazy => assert!(node.fetch(ID, &RowSet::from_rows(0..rows), version).is_some()),
        }
    }

    /// Messages from one node to the other, whole or until `most` have come.
    pub(super) fn pass(
        from: &mut Node<Here>,
        to_peer: PeerId,
        to: &mut Node<Here>,
        from_peer: PeerId,
        most: usize,
    ) -> bool {
        from.collect_all();
        Self::arrive(&Self::sent(from, to_peer), to, from_peer, most)
    }

    pub(super) fn sent(from: &mut Node<Here>, to_peer: PeerId) -> Vec<u8> {
        let mut bytes = Vec::new();
        from.transmit(to_peer, &mut bytes, 1 << 20);
        bytes
    }

    pub(super) fn arrive(bytes: &[u8], to: &mut Node<Here>, from_peer: PeerId, most: usize) -> bool {
        let mut rest = bytes;
        let mut left = most;
        while let Some((head, tail)) = rest.split_first_chunk::<LENGTH_BYTES>().filter(|_| left > 0) {
            let length = record::length(head, MAX_MESSAGE_BYTES).unwrap();
            let (record, tail) = tail.split_at(length);
            to.receive(from_peer, record).unwrap();
            (rest, left) = (tail, left - 1);
        }
        !bytes.is_empty()
    }

    /// Until none has anything to say, asked twice: a node that falls asleep announces it, and asks once more.
    pub(super) fn settle(&mut self) {
        let mut silent = 0;
        while silent < 2 {
            let mut more = false;
            for (&peer, node) in self.workers.iter_mut().filter(|(peer, _)| !self.silent.contains(peer)) {
                more |= Self::pass(node, HOME, &mut self.home, peer, usize::MAX);
                more |= Self::pass(&mut self.home, peer, node, HOME, usize::MAX);
            }
            silent = if more { 0 } else { silent + 1 };
        }
    }

    /// A peer wants all rows as of the first iteration.
    pub(super) fn want(&mut self, peer: PeerId) {
        self.want_version(peer, self.shape.slots.into(), 1);
    }

    /// Whether flushes of both kinds come back to a worker: what it has set is taken, and the rows that it consumes are brought.
    pub(super) fn flushes(&mut self, peer: PeerId) -> bool {
        let (delivered, brought) = (self.delivers(peer), self.brings(peer, ID));
        delivered && brought.unwrap_or(true)
    }

    /// Whether a flush of what a worker has set comes back.
    pub(super) fn delivers(&mut self, peer: PeerId) -> bool {
        let id = self.workers.get_mut(&peer).unwrap().flush(HOME);
        self.settle();
        self.workers.get_mut(&peer).unwrap().host().flushed.contains(&id)
    }

    /// Whether a flush of the rows of a partition comes back to a worker; `None` if it consumes none of them.
    pub(super) fn brings(&mut self, peer: PeerId, partition: PartitionId) -> Option<bool> {
        let id = self.workers.get_mut(&peer).unwrap().bring(partition)?;
        self.settle();
        Some(self.workers.get_mut(&peer).unwrap().host().flushed.contains(&id))
    }
}

pub(super) fn say(home: &mut Node<Here>, peer: PeerId, message: &Message<'_>) -> Result<(), Broken> {
    let mut bytes = Vec::new();
    Encoder::message(&mut bytes, message);
    home.receive(peer, &bytes[LENGTH_BYTES..])
}

/// A producer leaves as a worker does: it flushes, hands over, and flushes again; after each turn `event` may do something, and
/// says whether the line broke with what was on it. From then on it says nothing.
pub(super) fn leave(net: &mut Net, event: &mut dyn FnMut(&mut Net, usize) -> bool) {
    leave_within(net, 40, event);
}

/// The same, within so many turns.
pub(super) fn leave_within(net: &mut Net, most: usize, event: &mut dyn FnMut(&mut Net, usize) -> bool) {
    let mut turn = 0;
    for hands_over in [true, false] {
        let node = net.workers.get_mut(&PRODUCER).unwrap();
        let id = node.flush(HOME);
        while !net.workers.get_mut(&PRODUCER).unwrap().host().flushed.contains(&id) {
            let node = net.workers.get_mut(&PRODUCER).unwrap();
            node.collect_all();
            let bytes = Net::sent(node, HOME);
            if !event(net, turn) {
                Net::arrive(&bytes, &mut net.home, PRODUCER, usize::MAX);
            }
            let bytes = Net::sent(&mut net.home, PRODUCER);
            if !event(net, turn + 1) {
                Net::arrive(&bytes, net.workers.get_mut(&PRODUCER).unwrap(), HOME, usize::MAX);
            }
            turn += 2;
            assert!(turn < most, "its flush comes back");
        }
        if hands_over {
            net.workers.get_mut(&PRODUCER).unwrap().hand_over();
        }
    }
}
