//! What a node does in one step has a bound, whatever peers ask: the thread that passes rows on does it for all of them. What is
//! left is done in the steps that follow.

use penstock_proto::items::RowSet;
use penstock_proto::items::node::{Host, Node};
use penstock_proto::items::row_memory::{Changed, Look, Memory, Moment, Torn, Unlisted};
use penstock_proto::items::spec::Propagation;
use penstock_proto::items::wire::{Encoder, Entries, Entry, Head, Message, PartitionId, Shape};
use penstock_proto::peer::PeerId;
use penstock_proto::record::LENGTH_BYTES;
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

const PRODUCER: PeerId = PeerId::worker(0);
const READER: PeerId = PeerId::worker(1);
const PARTITION: PartitionId = PartitionId { table: 0, rank: 0 };
/// Rows that are looked at in one step, about.
const STEP: u64 = 1000;

#[derive(Default)]
struct Counted {
    looks: Cell<u64>,
    bytes: Cell<u64>,
}

/// Rows that come from a peer one by one, of which each look and each byte that is read is counted.
struct Mirror {
    rows: Vec<Look>,
    /// Of sets, which change one row each.
    done: Cell<u64>,
    log: RefCell<Vec<Changed>>,
    counted: Rc<Counted>,
}

impl Mirror {
    fn new(slots: u32, counted: &Rc<Counted>) -> Self {
        let rows = vec![Look { number: 0, clock: 0, as_of: 0 }; slots as usize];
        Self { rows, done: Cell::default(), log: RefCell::default(), counted: Rc::clone(counted) }
    }

    /// A producer of this host sets a row.
    fn set(&mut self, slot: u32) {
        let number = self.done.get() + 1;
        self.rows[slot as usize] = Look { number, clock: 1, as_of: number };
        self.log.borrow_mut().push(Changed { first: slot, count: 1, set: number as u32 });
        self.done.set(number);
    }
}

impl Memory for Mirror {
    fn changed(&mut self, changed: &mut Vec<Changed>) -> Result<(), Unlisted> {
        changed.append(&mut self.log.borrow_mut());
        Ok(())
    }

    fn now(&self) -> Moment {
        Moment { done: self.done.get(), several: 0, floor: 0 }
    }

    fn look(&self, slot: u32, _: Moment) -> Result<Look, Torn> {
        self.counted.looks.set(self.counted.looks.get() + 1);
        Ok(self.rows[slot as usize])
    }

    fn read(&self, slot: u32, now: Moment, out: &mut [u8]) -> Result<Look, Torn> {
        self.counted.bytes.set(self.counted.bytes.get() + out.len() as u64);
        self.look(slot, now)
    }

    fn run(&self) -> u32 {
        0
    }

    fn read_run(&self, _: u32, _: Moment, _: &mut [u8]) -> Result<Option<Look>, Torn> {
        Ok(None)
    }

    fn open(&mut self, _: u64, _: usize) {}

    fn put(&mut self, _: u32, _: u64, _: u64, _: &[u8]) {}

    fn put_run(&mut self, _: u32, _: u64, _: u64, _: &[u8]) {}

    fn finish(&mut self) {}

    fn abort(&mut self) {}

    fn refresh(&mut self, slot: u32, number: u64, clock: u64, as_of: u64, _: Option<&[u8]>) {
        self.rows[slot as usize] = Look { number, clock, as_of };
    }

    fn raise(&mut self, _: u64) {}

    fn wake(&mut self) {}
}

#[derive(Default)]
struct Home(Rc<Counted>);

impl Host for Home {
    type Memory = Mirror;

    fn make(&mut self, _: PartitionId, shape: &Shape) -> Option<Mirror> {
        Some(Mirror::new(shape.slots, &self.0))
    }

    fn answered(&mut self, _: u64) {}

    fn flushed(&mut self, _: u64) {}
}

struct Net {
    node: Node<Home>,
    shape: Shape,
    counted: Rc<Counted>,
    /// Of the source, as it has been told.
    serial: u64,
}

impl Net {
    /// A producer's rows, of which a reader wants `wanted`.
    fn new(slots: u32, row_bytes: u32, propagation: Propagation, wanted: RowSet) -> Self {
        let counted = Rc::<Counted>::default();
        let mut node = Node::new(Home(Rc::clone(&counted)));
        node.look_at_most(STEP);
        [PRODUCER, READER].into_iter().for_each(|peer| node.connected(peer));
        let shape = Shape { slots, row_bytes, propagation };
        let mut net = Self { node, shape, counted, serial: 0 };
        net.say(PRODUCER, &Message::Offer { partition: PARTITION, shape });
        net.subscribe(READER, wanted);
        net.settle();
        net
    }

    fn say(&mut self, peer: PeerId, message: &Message<'_>) {
        let mut bytes = Vec::new();
        Encoder::message(&mut bytes, message);
        self.node.receive(peer, &bytes[LENGTH_BYTES..]).unwrap();
    }

    fn subscribe(&mut self, peer: PeerId, rows: RowSet) {
        let (partition, shape) = (PARTITION, self.shape);
        self.say(peer, &Message::Subscribe { partition, shape, done: 0, serial: 1, rows });
    }

    fn fetch(&mut self, ticket: u64, version: u64, places: RowSet) {
        self.say(READER, &Message::Fetch { partition: PARTITION, ticket, version, places });
    }

    /// The source sends a row by itself.
    fn row(&mut self, place: u32, Look { number, clock, as_of }: Look) {
        let value = vec![1; self.shape.row_bytes as usize];
        let mut bytes = Vec::new();
        let head = Head { serial: self.serial, apart: true, first: true, last: true, ..Head::default() };
        let mut message = Encoder::rows(&mut bytes, PARTITION, &head);
        message.entry(&Entry { place, count: 1, number, clock, as_of, value: Some(&value) }, true);
        message.end();
        self.node.receive(PRODUCER, &bytes[LENGTH_BYTES..]).unwrap();
    }

    /// All that there is to send is sent; what the reader was sent. No step took longer than it may.
    fn settle(&mut self) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        for peer in [PRODUCER, READER, PRODUCER, READER] {
            self.node.collect_all();
            loop {
                let (mut bytes, before) = (Vec::new(), self.counted.looks.get());
                let more = self.node.transmit(peer, &mut bytes, 1);
                let looks = self.counted.looks.get() - before;
                assert!(looks <= STEP + 10, "{looks} rows were looked at in one step");
                for message in messages(&bytes) {
                    if let Ok(Message::Subscribe { serial, .. }) = Message::decode(&message) {
                        self.serial = serial;
                    }
                    if peer == READER {
                        sent.push(message);
                    }
                }
                if !more {
                    break;
                }
            }
        }
        sent
    }

    /// Looks, and bytes that are read, until all has been sent once more.
    fn cost(&mut self) -> (u64, u64) {
        let before = (self.counted.looks.get(), self.counted.bytes.get());
        self.settle();
        (self.counted.looks.get() - before.0, self.counted.bytes.get() - before.1)
    }
}

fn messages(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() {
        let length = penstock_proto::record::length(head, bytes.len()).unwrap();
        all.push(rest[..length].to_vec());
        bytes = &rest[length..];
    }
    all
}

fn is_rows(message: &[u8]) -> bool {
    matches!(Message::decode(message), Ok(Message::Rows { .. }))
}

fn all(rows: u64) -> RowSet {
    RowSet::from_ranges(std::iter::once(0..rows))
}

// They were copied on each look, and thrown away: a few bytes that ask for long rows kept the thread for as long as they liked.
#[test]
fn rows_that_were_never_current_together_are_not_copied_and_are_sent_once_they_were() {
    const FETCHES: u64 = 5000;
    let mut net = Net::new(2, 1 << 16, Propagation::Lazy, all(2));
    net.row(0, Look { number: 10, clock: 10, as_of: 10 });
    net.row(1, Look { number: 5, clock: 10, as_of: 5 });
    (1..=FETCHES).for_each(|ticket| net.fetch(ticket, 1, all(2)));
    assert_eq!(net.cost().1, 0, "bytes were read");
    let (looks, bytes) = net.cost();
    assert!(looks <= 4 * 4 * FETCHES && bytes == 0, "{looks} looks");
    net.row(1, Look { number: 5, clock: 10, as_of: 10 });
    let rows = net.settle().into_iter().filter(|message| is_rows(message));
    assert_eq!(rows.count() as u64, FETCHES);
}

#[test]
fn a_fetch_of_many_rows_is_looked_at_bit_by_bit_and_once() {
    const ROWS: u32 = 50_000;
    for (version, clock) in [(0, penstock_proto::items::FINAL), (1, 7)] {
        let mut net = Net::new(ROWS, 8, Propagation::Lazy, all(ROWS.into()));
        (1..ROWS).for_each(|row| net.row(row - 1, Look { number: 1, clock, as_of: 9 }));
        net.fetch(1, version, all(ROWS.into()));
        assert_eq!(net.cost().1, 0, "one of them is not there");
        let (looks, bytes) = net.cost();
        assert!(looks < 10 && bytes == 0, "{looks} looks for one row that has not come");
        net.row(ROWS - 1, Look { number: 1, clock, as_of: 9 });
        // They are copied at one moment.
        net.node.look_at_most(1 << 20);
        let mut bytes = Vec::new();
        while net.node.transmit(READER, &mut bytes, usize::MAX) {}
        let rows = messages(&bytes).into_iter().filter(|message| is_rows(message));
        assert!(rows.count() > 0, "version {version}");
    }
}

// A need of a few bytes had all rows gone over at once.
#[test]
fn what_is_needed_is_looked_for_bit_by_bit() {
    const ROWS: u32 = 50_000;
    let mut net = Net::new(ROWS, 8, Propagation::Bounded, all(ROWS.into()));
    for (version, last) in [(1, ROWS - 1), (2, 3), (3, ROWS / 2)] {
        net.say(READER, &Message::Need { partition: PARTITION, versions: vec![version] });
        net.row(last, Look { number: version, clock: version, as_of: version });
        // One more comes before all have been looked at.
        let more = net.node.transmit(READER, &mut Vec::new(), 1);
        assert!(more, "a step is a small part of them");
        net.row(0, Look { number: version, clock: version, as_of: version });
        let sent = net.settle().into_iter().filter(|message| is_rows(message)).count();
        assert!(sent >= 1, "version {version}");
        assert_eq!(net.cost().1, 0, "all that it lacks was sent");
    }
}

// A subscription of a few bytes had all rows gone over at once.
#[test]
fn which_rows_a_new_subscriber_lacks_is_found_bit_by_bit_and_they_are_sent_as_of_one_moment() {
    const ROWS: u32 = 50_000;
    let counted = Rc::<Counted>::default();
    let mut node = Node::new(Home(Rc::clone(&counted)));
    node.look_at_most(STEP);
    node.connected(READER);
    let shape = Shape { slots: ROWS, row_bytes: 8, propagation: Propagation::Eager };
    let mut memory = Mirror::new(ROWS, &counted);
    [7, ROWS - 2].into_iter().for_each(|slot| memory.set(slot));
    node.produce(PARTITION, PRODUCER, shape, memory, None);
    let mut net = Net { node, shape, counted, serial: 0 };
    net.subscribe(READER, all(ROWS.into()));
    let mut bytes = Vec::new();
    for _ in 0..3 {
        assert!(net.node.transmit(READER, &mut bytes, 1), "a step is a small part of them");
        assert!(bytes.is_empty());
    }
    // Before and behind what has been looked at.
    [3, 7, ROWS - 1].into_iter().for_each(|slot| net.node.memory(PARTITION).unwrap().set(slot));
    let sent: Vec<Vec<u8>> = net.settle().into_iter().filter(|message| is_rows(message)).collect();
    let [batch] = &sent[..] else { panic!("{} batches", sent.len()) };
    let Ok(Message::Rows { head, entries, .. }) = Message::decode(batch) else { panic!("rows") };
    let entries = Entries::new(entries, 8, false).map(|entry| entry.unwrap());
    let rows: Vec<(u32, u64)> = entries.map(|entry| (entry.place, entry.number)).collect();
    assert_eq!((head.done, rows), (5, vec![(3, 3), (7, 4), (ROWS - 2, 2), (ROWS - 1, 5)]));
    assert_eq!(net.cost(), (0, 0));
}

/// What may happen between two subscriptions.
#[derive(Debug, Clone, Copy)]
enum Between {
    Nothing,
    /// The peer is lost and comes again.
    Reconnects,
    /// It has gone for good, and another comes as the same.
    Goes,
    /// It says that the rows are others than they are.
    Mistakes,
}

proptest! {
    // What is wanted of the source is put together anew only where it may have changed.
    #[test]
    fn the_source_is_always_asked_for_all_that_is_wanted(
        wants in prop::collection::vec(
            (1u32..4, prop::collection::btree_set(0u64..12, 1..12), 1u32..4, between()), 1..40),
    ) {
        let mut net = Net::new(12, 8, Propagation::Lazy, RowSet::from_rows([0]));
        (2..4).for_each(|rank| net.node.connected(PeerId::worker(rank)));
        let mut wanted = BTreeMap::from([(1, RowSet::from_rows([0]))]);
        let mut told = RowSet::from_rows([0]);
        for (rank, rows, other, between) in wants {
            let peer = PeerId::worker(other);
            match between {
                Between::Nothing => {}
                Between::Reconnects => net.node.connected(peer),
                Between::Goes => {
                    net.node.lost(peer);
                    net.node.forget(peer);
                    net.node.connected(peer);
                    wanted.remove(&other);
                }
                Between::Mistakes => {
                    let shape = net.shape;
                    net.shape.row_bytes += 1;
                    net.subscribe(peer, RowSet::from_rows([1]));
                    net.shape = shape;
                    wanted.remove(&other);
                }
            }
            let rows = RowSet::from_rows(rows);
            let gone = wanted.insert(rank, rows.clone());
            net.subscribe(PeerId::worker(rank), rows);
            let mut bytes = Vec::new();
            net.node.transmit(PRODUCER, &mut bytes, 1 << 20);
            for message in messages(&bytes) {
                if let Ok(Message::Subscribe { rows, .. }) = Message::decode(&message) {
                    told = rows;
                }
            }
            let all = RowSet::union_of(wanted.values());
            prop_assert_eq!(&told, &all, "{:?} of {} before", gone, rank);
        }
    }
}

fn between() -> impl Strategy<Value = Between> {
    const OTHERS: &[Between] = &[Between::Reconnects, Between::Goes, Between::Mistakes];
    prop_oneof![3 => Just(Between::Nothing), 2 => prop::sample::select(OTHERS)]
}
