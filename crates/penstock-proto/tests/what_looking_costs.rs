//! What a node does in one step has a bound, whatever peers ask: the thread that passes rows on does it for all of them. What is
//! left is done in the steps that follow.

use penstock_proto::items::RowSet;
use penstock_proto::items::node::{Host, Node};
use penstock_proto::items::row_memory::{Changed, Look, Memory, Moment, Torn, Unlisted};
use penstock_proto::items::spec::Propagation;
use penstock_proto::items::wire::{Encoder, Entries, Entry, Head, Message, PartitionId, Shape};
use penstock_proto::message::MAX_WORKERS;
use penstock_proto::peer::PeerId;
use penstock_proto::record::LENGTH_BYTES;
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
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
    /// Looks at change logs.
    logs: Cell<u64>,
}

/// Rows that come from a peer one by one, of which each look and each byte that is read is counted.
struct Mirror {
    rows: Vec<Look>,
    /// The sets before those that they are of, which can be read beside them.
    before: Vec<u64>,
    /// Of sets, which change one row each.
    done: Cell<u64>,
    log: RefCell<Vec<Changed>>,
    /// Up to which set some have changed that were not listed, so many times.
    unlisted: Cell<(u32, u32)>,
    /// A row that is set when it is asked next which have changed, and not listed.
    sets_when_asked: Option<u32>,
    /// The iteration for which all rows are complete, and how many times it is asked for the moment before that is the next.
    floor: Cell<(u64, u32)>,
    /// Rows that are torn.
    torn: RefCell<BTreeSet<u32>>,
    counted: Rc<Counted>,
}

impl Mirror {
    fn new(slots: u32, counted: &Rc<Counted>) -> Self {
        let rows = vec![Look { number: 0, clock: 0, as_of: 0 }; slots as usize];
        Self {
            rows,
            before: vec![0; slots as usize],
            done: Cell::default(),
            log: RefCell::default(),
            unlisted: Cell::default(),
            sets_when_asked: None,
            floor: Cell::default(),
            torn: RefCell::default(),
            counted: Rc::clone(counted),
        }
    }

    /// All that has changed is not listed, nor by a set that is not finished.
    fn begin_unlisted(&self) {
        self.log.borrow_mut().clear();
        self.unlisted.set((self.done.get() as u32 + 1, 1));
    }

    /// A producer of this host sets a row.
    fn set(&mut self, slot: u32) {
        let number = self.done.get() + 1;
        self.before[slot as usize] = self.rows[slot as usize].number;
        self.rows[slot as usize] = Look { number, clock: 1, as_of: 0 };
        self.log.borrow_mut().push(Changed { first: slot, count: 1, set: number as u32 });
        self.done.set(number);
    }
}

impl Memory for Mirror {
    fn changed(&mut self, changed: &mut Vec<Changed>) -> Result<(), Unlisted> {
        self.counted.logs.set(self.counted.logs.get() + 1);
        if let Some(slot) = self.sets_when_asked.take() {
            self.set(slot);
            self.begin_unlisted();
        }
        let (until, times) = self.unlisted.get();
        if times > 0 {
            self.unlisted.set((until, times - 1));
            return Err(Unlisted { until });
        }
        changed.append(&mut self.log.borrow_mut());
        Ok(())
    }

    fn now(&self) -> Moment {
        let (mut floor, until) = self.floor.get();
        floor += u64::from(until == 1);
        self.floor.set((floor, until.saturating_sub(1)));
        Moment { done: self.done.get(), several: 0, floor }
    }

    fn look(&self, slot: u32, now: Moment) -> Result<Look, Torn> {
        self.counted.looks.set(self.counted.looks.get() + 1);
        if self.torn.borrow().contains(&slot) || self.before[slot as usize] > now.done {
            return Err(Torn);
        }
        let look = self.rows[slot as usize];
        let as_of = look.as_of.max(now.done);
        let number = if look.number <= as_of { look.number } else { self.before[slot as usize] };
        Ok(Look { number, as_of, clock: look.clock.max(now.floor) })
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
            for calls in 0.. {
                assert!(calls < 20_000, "it goes on where nothing can be done");
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

    /// What the reader is sent in one step, and whether there may be more.
    fn step(&mut self) -> (Vec<Vec<u8>>, bool) {
        self.step_of(STEP + 10)
    }

    /// The same of a step that may look at so many rows.
    fn step_of(&mut self, most: u64) -> (Vec<Vec<u8>>, bool) {
        self.node.collect_all();
        let (mut bytes, before) = (Vec::new(), self.counted.looks.get());
        let more = self.node.transmit(READER, &mut bytes, 1);
        let looks = self.counted.looks.get() - before;
        assert!(looks <= most, "{looks} rows were looked at in one step");
        (messages(&bytes), more)
    }

    fn memory(&mut self, rank: u32) -> &mut Mirror {
        self.node.memory(PartitionId { table: 0, rank }).unwrap()
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

/// Producers on the node's host, by rank, each with so many rows, of which a reader wants all.
fn here(slots: &[u32], propagation: Propagation) -> Net {
    let counted = Rc::<Counted>::default();
    let mut node = Node::new(Home(Rc::clone(&counted)));
    node.look_at_most(STEP);
    node.connected(READER);
    let shape = Shape { slots: 0, row_bytes: 8, propagation };
    let mut net = Net { node, shape, counted, serial: 0 };
    for (rank, &slots) in (0..).zip(slots) {
        let (partition, shape) = (PartitionId { table: 0, rank }, Shape { slots, ..shape });
        let memory = Mirror::new(slots, &net.counted);
        net.node.produce(partition, PeerId::worker(7 + rank), shape, memory, None);
        let rows = all(slots.into());
        net.say(READER, &Message::Subscribe { partition, shape, done: 0, serial: 1, rows });
        if propagation == Propagation::Bounded {
            net.say(READER, &Message::Need { partition, versions: vec![1] });
        }
    }
    net.settle();
    net
}

/// Producer, place and number of each row in messages.
fn rows_in<'a>(messages: impl IntoIterator<Item = &'a Vec<u8>>) -> Vec<(u32, u32, u64)> {
    let mut rows = Vec::new();
    for message in messages {
        if let Ok(Message::Rows { partition, head, entries }) = Message::decode(message) {
            let entries = Entries::new(entries, 8, head.apart).map(|entry| entry.unwrap());
            rows.extend(entries.map(|entry| (partition.rank, entry.place, entry.number)));
        }
    }
    rows
}

fn is_flushed(message: &[u8]) -> bool {
    matches!(Message::decode(message), Ok(Message::Flushed { .. }))
}

/// Of the fetch that rows answer.
fn ticket_of(message: &[u8]) -> Option<u64> {
    match Message::decode(message) {
        Ok(Message::Rows { head, .. }) => Some(head.ticket),
        _ => None,
    }
}

/// Bytes of the first message, with its length.
fn first_length(bytes: &[u8]) -> usize {
    LENGTH_BYTES + messages(bytes)[0].len()
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
    // Also where they wait for the last row: what the others were by then says nothing of what they are when it has come.
    for waits in [false, true] {
        let mut net = Net::new(3, 1 << 16, Propagation::Lazy, all(3));
        let ask = |net: &mut Net| (1..=FETCHES).for_each(|ticket| net.fetch(ticket, 1, all(3)));
        if waits {
            net.row(0, Look { number: 10, clock: 10, as_of: 20 });
            net.row(1, Look { number: 12, clock: 10, as_of: 13 });
            ask(&mut net);
            assert_eq!(net.cost().1, 0, "one is not there");
        } else {
            net.row(0, Look { number: 10, clock: 10, as_of: 20 });
        }
        net.row(1, Look { number: 35, clock: 10, as_of: 40 });
        net.row(2, Look { number: 30, clock: 10, as_of: 40 });
        if !waits {
            ask(&mut net);
        }
        assert_eq!(net.cost().1, 0, "bytes were read");
        let (looks, bytes) = net.cost();
        assert!(looks <= 4 * 4 * FETCHES && bytes == 0, "{looks} looks");
        net.row(0, Look { number: 10, clock: 10, as_of: 40 });
        let rows = net.settle().into_iter().filter(|message| is_rows(message));
        assert_eq!(rows.count() as u64, FETCHES);
    }
}

// Whether they belong together took another look at each.
#[test]
fn rows_that_are_there_are_looked_at_once_and_taken() {
    const ROWS: u32 = 50;
    let mut net = Net::new(ROWS, 8, Propagation::Lazy, all(ROWS.into()));
    (0..ROWS).for_each(|row| net.row(row, Look { number: 1, clock: 7, as_of: 9 }));
    net.fetch(1, 7, all(ROWS.into()));
    let (looks, bytes) = net.cost();
    assert_eq!(bytes, 8 * u64::from(ROWS), "all were taken");
    // What is taken is looked at, too; and two once more, whether they are together.
    assert!(looks <= 2 * u64::from(ROWS) + 2, "{looks} looks");
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
    let batch = |message: &Vec<u8>| {
        let Ok(Message::Rows { head, .. }) = Message::decode(message) else { panic!("rows") };
        let rows = rows_in([message]).into_iter().map(|(_, place, number)| (place, number));
        (head.done, rows.collect::<Vec<(u32, u64)>>())
    };
    let first = (2, vec![(7, 1), (ROWS - 2, 2)]);
    let then = (5, vec![(3, 3), (7, 4), (ROWS - 1, 5)]);
    assert_eq!(sent.iter().map(batch).collect::<Vec<_>>(), [first, then]);
    assert_eq!(net.cost(), (0, 0));
}

// It took every step of its subscriber.
#[test]
fn what_stays_torn_keeps_nobody_waiting_and_nobody_busy_and_is_sent_once_it_is_whole() {
    const ROWS: u32 = 5000;
    for propagation in [Propagation::Eager, Propagation::Bounded] {
        for torn in [1, ROWS] {
            let mut net = here(&[ROWS, 3], propagation);
            (0..ROWS).for_each(|slot| net.memory(0).set(slot));
            net.memory(0).torn.get_mut().extend(0..torn);
            net.settle();
            net.memory(1).set(2);
            let sent: Vec<_> = (0..3).flat_map(|_| net.step().0).collect();
            assert!(rows_in(&sent).contains(&(1, 2, 1)), "{propagation}, {torn}");
            net.settle();
            let (looks, _) = net.cost();
            assert!(looks <= 100, "{propagation}, {torn}: {looks} looks for what stays torn");
            net.memory(0).torn.get_mut().clear();
            net.memory(0).set(ROWS - 1);
            let mut rows = BTreeSet::new();
            for _ in 0..ROWS {
                rows.extend(rows_in(&net.settle()));
            }
            let last = u64::from(ROWS) + 1;
            assert!(rows.contains(&(0, 0, 1)), "{propagation}, {torn}");
            assert!(propagation == Propagation::Bounded || rows.contains(&(0, ROWS - 1, last)), "{torn}");
            assert_eq!(net.cost(), (0, 0), "{propagation}, {torn}");
        }
    }
}

#[test]
fn a_fetch_of_a_row_that_stays_torn_costs_a_look_and_is_answered_once_it_is_whole() {
    const ROWS: u32 = 300;
    let mut net = here(&[ROWS, 3], Propagation::Lazy);
    net.memory(0).set(0);
    net.fetch(1, 0, all(ROWS.into()));
    let mut calls = 0;
    // It is torn when all that is asked for is there.
    net.memory(0).torn.get_mut().insert(ROWS - 1);
    while net.step().1 {
        calls += 1;
        assert!(calls < 10, "it goes on where nothing can be done");
    }
    net.settle();
    assert!(net.cost().0 < 10, "for what stays torn");
    net.memory(0).torn.get_mut().clear();
    net.memory(0).set(1);
    assert!(rows_in(&net.settle()).contains(&(0, ROWS - 1, 0)));
}

// Others had theirs when it was through.
#[test]
fn what_takes_many_steps_lets_others_have_theirs_between() {
    const ROWS: u32 = 50_000;
    for propagation in [Propagation::Eager, Propagation::Bounded] {
        let mut net = here(&[ROWS, 3], propagation);
        net.memory(0).set(ROWS - 1);
        net.memory(0).log.get_mut().clear();
        net.memory(0).unlisted.set((1, 1));
        assert!(net.step().1, "a step is a small part of them");
        net.memory(1).set(2);
        let sent: Vec<_> = (0..3).flat_map(|_| net.step().0).collect();
        assert_eq!(rows_in(&sent), [(1, 2, 1)], "{propagation}");
        assert_eq!(rows_in(&net.settle()), [(0, ROWS - 1, 1)], "{propagation}");
    }
}

// Each look found all of them anew.
#[test]
fn a_set_that_is_not_finished_has_all_rows_looked_at_once_until_it_is() {
    const ROWS: u32 = 50_000;
    for propagation in [Propagation::Eager, Propagation::Bounded] {
        let mut net = here(&[ROWS], propagation);
        net.memory(0).set(7);
        net.memory(0).begin_unlisted();
        assert_eq!(rows_in(&net.settle()), [(0, 7, 1)], "{propagation}");
        assert_eq!(net.cost(), (0, 0), "{propagation}");
        net.memory(0).set(ROWS - 1);
        net.memory(0).log.get_mut().clear();
        assert_eq!(rows_in(&net.settle()), [(0, ROWS - 1, 2)], "{propagation}");
        assert_eq!(net.cost(), (0, 0), "{propagation}");
    }
}

// They were looked at as they had been before, and not again before the set behind was finished.
#[test]
fn rows_of_a_set_that_is_finished_just_before_one_that_comes_round_are_found() {
    const ROWS: u32 = 50_000;
    for lost in [false, true] {
        for propagation in [Propagation::Eager, Propagation::Bounded] {
            let mut net = here(&[ROWS], propagation);
            net.memory(0).set(ROWS - 1);
            net.memory(0).sets_when_asked = Some(7);
            let mut sent = net.step().0;
            if lost {
                net.node.forget(PeerId::worker(7));
            }
            sent.append(&mut net.settle());
            let mut sent = rows_in(&sent);
            sent.sort_unstable();
            assert_eq!(sent, [(0, 7, 2), (0, ROWS - 1, 1)], "{propagation}, lost: {lost}");
        }
    }
}

// It was taken for one for which all had been looked at.
#[test]
fn rows_that_are_complete_for_an_iteration_which_ends_while_they_are_looked_at_are_sent() {
    for asked in 1..8 {
        let mut net = here(&[3], Propagation::Bounded);
        net.memory(0).floor.set((0, asked));
        net.memory(0).set(1);
        let sent: Vec<_> = (0..4).flat_map(|_| net.settle()).collect();
        let rows: BTreeSet<_> = rows_in(&sent).into_iter().map(|(_, place, _)| place).collect();
        assert_eq!(rows, BTreeSet::from([0, 1, 2]), "as it was asked for the {asked}th time");
    }
}

// Its rows were gone over for ever.
#[test]
fn a_set_that_a_lost_producer_left_unfinished_is_waited_for_by_nobody() {
    const ROWS: u32 = 50_000;
    for propagation in [Propagation::Eager, Propagation::Bounded] {
        let mut net = here(&[ROWS], propagation);
        net.memory(0).set(7);
        net.memory(0).begin_unlisted();
        let (mut sent, more) = net.step();
        assert!(more, "a step is a small part of them");
        net.node.forget(PeerId::worker(7));
        sent.append(&mut net.settle());
        assert_eq!(rows_in(&sent), [(0, 7, 1)], "{propagation}");
        assert_eq!(net.cost(), (0, 0), "{propagation}");
        // Nor by one who comes later.
        let (partition, shape) = (PARTITION, Shape { slots: ROWS, ..net.shape });
        net.say(READER, &Message::Subscribe { partition, shape, done: 0, serial: 2, rows: all(ROWS.into()) });
        if propagation == Propagation::Bounded {
            net.say(READER, &Message::Need { partition, versions: vec![1] });
        }
        assert_eq!(rows_in(&net.settle()), [(0, 7, 1)], "{propagation}");
        assert_eq!(net.cost(), (0, 0), "{propagation}");
    }
}

// They were taken in one go.
#[test]
fn rows_that_change_too_often_to_be_listed_are_taken_bit_by_bit_as_they_were_at_one_moment() {
    const ROWS: u32 = 50_000;
    let mut net = here(&[ROWS], Propagation::Eager);
    [7, ROWS - 2].into_iter().for_each(|slot| net.memory(0).set(slot));
    net.memory(0).log.get_mut().clear();
    net.memory(0).unlisted.set((2, 200));
    let mut sent = Vec::new();
    while sent.is_empty() {
        let (mut messages, more) = net.step();
        assert!(more);
        sent.append(&mut messages);
    }
    assert_eq!(rows_in(&sent), [(0, 7, 1), (0, ROWS - 2, 2)]);
    net.settle();
    net.memory(0).unlisted.set((2, 0));
    net.settle();
    assert_eq!(net.cost(), (0, 0));
}

#[test]
fn a_batch_of_more_rows_than_a_step_is_taken_in_several() {
    const ROWS: u32 = 50_000;
    let mut net = here(&[ROWS], Propagation::Eager);
    (0..ROWS).for_each(|slot| net.memory(0).set(slot));
    let sent: Vec<Vec<u8>> = net.settle();
    assert_eq!(rows_in(&sent).len(), ROWS as usize);
    assert_eq!(net.cost(), (0, 0));
}

/// A producer of rows some of which it sets twice between any two steps, one of another partition that sets a row as often, and what
/// the reader has.
struct Often {
    net: Net,
    often: Vec<u32>,
    /// The slot that each set wrote.
    sets: Vec<u32>,
    /// The number of each row that the reader has.
    has: Vec<u64>,
    begun: bool,
    /// Batches that came whole, and rows of the other partition.
    came: (usize, usize),
}

impl Often {
    const ROWS: u32 = 50_000;

    fn new(often: Vec<u32>) -> Self {
        let net = here(&[Self::ROWS, 3], Propagation::Eager);
        let (sets, has) = (Vec::new(), vec![0; Self::ROWS as usize]);
        Self { net, often, sets, has, begun: false, came: (0, 0) }
    }

    fn set(&mut self, slot: u32) {
        self.net.memory(0).set(slot);
        self.sets.push(slot);
    }

    /// Between two steps; `listed`: what is set is.
    fn step(&mut self, listed: bool) {
        for slot in self.often.clone() {
            self.set(slot);
            self.set(slot);
        }
        if !listed {
            let memory = self.net.memory(0);
            memory.log.get_mut().clear();
            memory.unlisted.set((memory.done.get() as u32, 1));
        }
        self.net.memory(1).set(2);
        let sent = self.net.step_of(STEP + 10 + self.often.len() as u64).0;
        for message in &sent {
            let Ok(Message::Rows { partition, head, .. }) = Message::decode(message) else { continue };
            let rows = rows_in([message]);
            if partition.rank == 1 {
                self.came.1 += rows.len();
                continue;
            }
            assert_eq!(head.first, !std::mem::replace(&mut self.begun, !head.last), "one after the other");
            for (_, place, number) in rows {
                self.has[place as usize] = number;
            }
            if head.last {
                self.came.0 += 1;
                let mut then = vec![0; Self::ROWS as usize];
                for (number, &slot) in (1..=head.done).zip(&self.sets) {
                    then[slot as usize] = number;
                }
                let differs = (0..Self::ROWS as usize).find(|&row| then[row] != self.has[row]);
                assert_eq!(differs, None, "as they were after set {}", head.done);
            }
        }
    }
}

// Each batch was overtaken by what its producer set while others had their turns. Then it was taken at once, and others had none.
#[test]
fn rows_that_are_set_again_and_again_are_sent_as_of_a_moment_and_others_have_their_turns_meanwhile() {
    const LAST: u32 = Often::ROWS - 1;
    for listed in [true, false] {
        for often in [vec![LAST], vec![0, LAST / 2, LAST], (0..LAST).step_by(997).collect()] {
            let mut net = Often::new(often);
            for _ in 0..3 {
                (0..=LAST).for_each(|slot| net.set(slot));
                net.came = (0, 0);
                // A round takes about two, and each has a dozen more of those that are set again and again.
                let most = 40 * u64::from(Often::ROWS) / STEP;
                let steps = (1..=most).find(|_| {
                    net.step(listed);
                    net.came.0 > 0
                });
                let steps =
                    steps.unwrap_or_else(|| panic!("{:?}, {listed}: it is taken at no moment", net.often));
                assert!(net.came.1 as u64 >= steps / 3, "{} of the other's in {steps} steps", net.came.1);
            }
        }
    }
}

// What is torn, and what has changed since, was taken anew only with all the others.
#[test]
fn of_rows_that_were_overtaken_only_those_that_have_changed_are_read_once_more() {
    let mut net = Often::new(vec![Often::ROWS - 1]);
    (0..Often::ROWS).for_each(|slot| net.set(slot));
    let before = net.net.counted.bytes.get();
    while net.came.0 == 0 {
        net.step(true);
    }
    let read = (net.net.counted.bytes.get() - before) / 8;
    assert!(read < u64::from(Often::ROWS) + 1000, "{read} rows were read");
}

/// Fetches, of which all but the last row of each has come, and a flush.
fn fetched_in_steps() -> Net {
    const ROWS: u32 = 50_000;
    let mut net = Net::new(ROWS, 8, Propagation::Lazy, all(ROWS.into()));
    (1..ROWS).for_each(|row| net.row(row, Look { number: 1, clock: 7, as_of: 9 }));
    net
}

#[test]
fn a_step_of_one_row_leaves_fewer_for_the_next() {
    for propagation in [Propagation::Eager, Propagation::Bounded, Propagation::Lazy] {
        let mut net = here(&[5, 3], propagation);
        net.node.look_at_most(1);
        (0..5).for_each(|slot| net.memory(0).set(slot));
        net.memory(1).set(2);
        if propagation == Propagation::Lazy {
            net.fetch(1, 1, all(5));
        }
        net.say(READER, &Message::Bring { id: 1, partition: PARTITION });
        let sent: Vec<_> = (0..100).flat_map(|_| net.step().0).collect();
        let rows: BTreeSet<_> = rows_in(&sent).into_iter().filter(|row| row.0 == 0).collect();
        assert_eq!(rows.len(), 5, "{propagation}");
        assert!(sent.iter().any(|message| is_flushed(message)), "{propagation}");
        assert!(!net.step().1, "{propagation}");
    }
}

// What had moved to its place was not looked at.
#[test]
fn a_flush_waits_for_the_answer_to_a_fetch_before_which_another_was_withdrawn() {
    let mut net = fetched_in_steps();
    net.fetch(1, 1, all(2));
    net.fetch(2, 1, RowSet::from_ranges(std::iter::once(1..600)));
    net.fetch(3, 1, RowSet::from_ranges(std::iter::once(1..400)));
    net.say(READER, &Message::Bring { id: 4, partition: PARTITION });
    // Half of the second has been looked at.
    net.node.look_at_most(300);
    let mut sent = net.step().0;
    net.say(READER, &Message::Withdraw { partition: PARTITION, ticket: 1 });
    while !sent.iter().any(|message| is_flushed(message)) {
        let (mut messages, more) = net.step();
        sent.append(&mut messages);
        assert!(more || sent.iter().any(|message| is_flushed(message)));
    }
    let rows = sent.iter().take_while(|message| !is_flushed(message));
    assert!(rows_in(rows.clone()).contains(&(0, 598, 1)));
}

// Nobody looked again.
#[test]
fn a_flush_that_comes_while_fetches_are_looked_at_is_answered_and_they_are_not_looked_at_for_ever() {
    let mut net = fetched_in_steps();
    let rows = RowSet::from_ranges(std::iter::once(1..50_000));
    (1..=3).for_each(|ticket| net.fetch(ticket, 8, rows.clone()));
    (4..5000).for_each(|ticket| net.fetch(ticket, 1, all(2)));
    assert!(net.step().1, "a step is a small part of them");
    net.say(READER, &Message::Bring { id: 1, partition: PARTITION });
    let (mut flushed, mut more) = (false, true);
    while more {
        let (messages, goes_on) = net.step();
        flushed |= messages.iter().any(|message| is_flushed(message));
        more = goes_on;
    }
    assert!(flushed);
    net.settle();
    assert_eq!(net.cost(), (0, 0), "nothing has come");
    net.row(0, Look { number: 1, clock: 7, as_of: 9 });
    assert_eq!(net.settle().into_iter().filter(|message| is_rows(message)).count(), 5000 - 4);
}

// All that it had needed was gone over at once, in the turn of whoever had hung up.
#[test]
fn what_a_peer_needed_that_has_hung_up_is_gone_over_in_steps_before_its_source_is_told() {
    const OTHER: PeerId = PeerId::worker(2);
    const PARTITIONS: u32 = 20;
    let mut net = Net::new(1, 8, Propagation::Bounded, all(1));
    net.node.connected(OTHER);
    let (shape, ids) = (net.shape, (1..=PARTITIONS).map(|table| PartitionId { table, rank: 0 }));
    for partition in ids {
        net.say(PRODUCER, &Message::Offer { partition, shape });
        for (peer, versions) in [(READER, (0..STEP).collect()), (OTHER, vec![7])] {
            net.say(peer, &Message::Subscribe { partition, shape, done: 0, serial: 1, rows: all(1) });
            net.say(peer, &Message::Need { partition, versions });
        }
    }
    net.settle();
    net.node.lost(READER);
    net.say(PRODUCER, &Message::Flush { id: 9 });
    let (mut told, mut more) = (BTreeSet::new(), true);
    while more {
        let mut bytes = Vec::new();
        more = net.node.transmit(PRODUCER, &mut bytes, 1 << 20);
        let messages = messages(&bytes);
        assert!(messages.len() <= 3, "{} messages in one step", messages.len());
        for message in messages {
            match Message::decode(&message).unwrap() {
                Message::Need { partition, versions } => {
                    assert_eq!(versions, [7], "others need it");
                    assert!(told.insert(partition.table));
                }
                Message::Flushed { .. } => {
                    assert_eq!(told.len() as u32, PARTITIONS, "it knows what is wanted of it");
                    told.clear();
                }
                _ => panic!("nothing else"),
            }
        }
    }
    assert!(told.is_empty(), "it was flushed");
}

// Each had all partitions gone over, three times: a megabyte of questions kept the thread for half a minute.
#[test]
fn a_question_about_a_partition_has_no_other_gone_over() {
    const MANY: u32 = 500;
    let mut net = here(&[1; MANY as usize], Propagation::Lazy);
    let ids = |table| (0..MANY).map(move |rank| PartitionId { table, rank });
    for partition in ids(0) {
        net.say(READER, &Message::Fetch { partition, ticket: 1, version: 99, places: all(1) });
    }
    let asked = |net: &mut Net, what: &str, ask: &mut dyn FnMut(&mut Net)| {
        let before = net.counted.logs.get();
        ask(net);
        let logs = net.counted.logs.get() - before;
        assert!(logs <= 4 * u64::from(MANY), "{what}: {logs} looks");
        let answers = net.settle().iter().filter(|message| is_flushed(message)).count();
        assert_eq!(answers, MANY as usize, "{what}");
    };
    let shape = Shape { slots: 1, ..net.shape };
    let ask = |net: &mut Net, table| {
        for (partition, id) in ids(table).zip(u64::from(table) << 32..) {
            net.say(READER, &Message::Bring { id, partition });
        }
    };
    let subscribe = |net: &mut Net, table| {
        for partition in ids(table) {
            net.say(READER, &Message::Subscribe { partition, shape, done: 0, serial: 1, rows: all(1) });
        }
    };
    asked(&mut net, "that are here", &mut |net| ask(net, 0));
    subscribe(&mut net, 1);
    ask(&mut net, 1);
    asked(&mut net, "that come", &mut |net| {
        for partition in ids(1) {
            let (memory, producer) = (Mirror::new(1, &net.counted), PeerId::worker(7 + partition.rank));
            net.node.produce(partition, producer, shape, memory, None);
        }
    });
    net.node.connected(PRODUCER);
    let of_one = (2..MANY + 2).map(|table| PartitionId { table, rank: 0 });
    for partition in of_one.clone() {
        net.say(PRODUCER, &Message::Offer { partition, shape });
        net.say(READER, &Message::Subscribe { partition, shape, done: 0, serial: 1, rows: all(1) });
    }
    net.settle();
    net.node.stop_answering(PRODUCER);
    for (partition, id) in of_one.zip(1 << 40..) {
        net.say(READER, &Message::Bring { id, partition });
    }
    asked(&mut net, "whose source has left", &mut |net| net.node.lost(PRODUCER));
}

#[test]
fn a_question_about_rows_that_are_on_their_way_is_answered_behind_them() {
    const ROWS: u32 = 100_000;
    let mut net = here(&[ROWS], Propagation::Eager);
    net.node.look_at_most(u64::MAX);
    (0..ROWS).for_each(|slot| net.memory(0).set(slot));
    net.node.collect_all();
    let mut bytes = Vec::new();
    assert!(net.node.transmit(READER, &mut bytes, 1), "they take several messages");
    net.say(READER, &Message::Bring { id: 1, partition: PARTITION });
    while net.node.transmit(READER, &mut bytes, usize::MAX) {}
    let (sent, head) = (messages(&bytes), |message: &[u8]| match Message::decode(message) {
        Ok(Message::Rows { head, .. }) => head.last,
        _ => false,
    });
    let [.., rows, flushed] = &sent[..] else { panic!("{} messages", sent.len()) };
    assert!(head(rows) && is_flushed(flushed) && rows_in(&sent).len() == ROWS as usize);
}

#[test]
fn questions_about_partitions_that_are_not_here_are_answered_in_steps() {
    const MANY: u32 = 5 * STEP as u32;
    let mut net = here(&[1], Propagation::Lazy);
    let (shape, ids) = (net.shape, (1..=MANY).map(|table| PartitionId { table, rank: 0 }));
    let shape = Shape { slots: 1, ..shape };
    for partition in ids {
        net.say(READER, &Message::Subscribe { partition, shape, done: 0, serial: 1, rows: all(1) });
        net.say(READER, &Message::Bring { id: partition.table.into(), partition });
    }
    // That one was made, and cannot be read.
    let unreadable = |id: &PartitionId| id.table == 7;
    for step in 0.. {
        assert!(step < 10, "it goes on where nothing can be done");
        let more = net.node.answer_waiting(unreadable);
        let answers = net.settle().iter().filter(|message| is_flushed(message)).count() as u64;
        assert!(answers <= STEP);
        assert_eq!(answers == 0, step > 4, "{answers} in step {step}");
        if !more {
            break;
        }
    }
    net.node.drop_table(7);
    assert!(net.settle().iter().any(|message| is_flushed(message)));
}

// All rows of all fetches were gone over in the turn in which it was told: readers of other producers' rows waited for seconds.
#[test]
fn what_a_producer_that_has_gone_leaves_unanswered_is_given_up_in_steps() {
    const FETCHES: u64 = 20;
    let mut net = fetched_in_steps();
    let all = all(50_000);
    // One row of each is too old, or was never current together with the others.
    net.row(0, Look { number: 20, clock: 7, as_of: 20 });
    let rest = RowSet::from_ranges(std::iter::once(1..50_000));
    (1..=FETCHES).for_each(|ticket| net.fetch(ticket, 7, all.clone()));
    (1..=FETCHES).for_each(|ticket| net.fetch(FETCHES + ticket, 8, rest.clone()));
    net.settle();
    net.node.lost(PRODUCER);
    let before = net.counted.looks.get();
    net.node.forget(PRODUCER);
    (1..=FETCHES).for_each(|ticket| net.fetch(2 * FETCHES + ticket, 7, all.clone()));
    let looks = net.counted.looks.get() - before;
    assert!(looks <= STEP, "{looks} rows were looked at before anybody else had a turn");
    // What can still be answered is, and a flush comes back behind it.
    let last = 3 * FETCHES + 1;
    net.fetch(last, 7, RowSet::from_ranges(std::iter::once(1..500)));
    net.say(READER, &Message::Bring { id: 1, partition: PARTITION });
    let sent = net.settle();
    let tickets: BTreeSet<u64> = sent.iter().filter_map(|message| ticket_of(message)).collect();
    assert_eq!(tickets, BTreeSet::from([last]));
    let flushed = sent.iter().position(|message| is_flushed(message)).unwrap();
    assert!(sent[flushed..].iter().all(|message| !is_rows(message)));
    assert_eq!(net.cost(), (0, 0), "what can never be answered was kept");
}

// What was fetched of many rows was put together, and said, in one go.
#[test]
fn what_a_source_is_asked_to_fetch_is_put_together_and_said_in_steps() {
    const ROWS: u64 = 50_000;
    const FETCHES: u64 = 20;
    let mut net = Net::new(ROWS as u32, 8, Propagation::Lazy, all(ROWS));
    let rows = RowSet::from_rows((0..ROWS).step_by(2));
    let fetches = |bytes: &[u8]| {
        let fetches = messages(bytes).into_iter().map(|message| match Message::decode(&message) {
            Ok(Message::Fetch { places, .. }) => places,
            _ => panic!("nothing else is wanted"),
        });
        fetches.collect::<Vec<RowSet>>()
    };
    (1..=FETCHES).for_each(|ticket| net.fetch(ticket, 1, rows.clone()));
    let (mut told, mut bytes, mut more) = (0, Vec::new(), true);
    while more {
        more = net.step().1;
        bytes.clear();
        while net.node.transmit(PRODUCER, &mut bytes, usize::MAX) {}
        let fetches = fetches(&bytes).len() as u64;
        assert!(fetches <= 1, "{fetches} of many rows were put together in one step");
        told += fetches;
    }
    assert_eq!(told, FETCHES);
    // On a new connection they are said anew.
    net.node.connected(PRODUCER);
    let shape = net.shape;
    net.say(PRODUCER, &Message::Offer { partition: PARTITION, shape });
    bytes.clear();
    assert!(net.node.transmit(PRODUCER, &mut bytes, usize::MAX), "a step is a small part of them");
    assert!(messages(&bytes).len() <= 2);
    let mut told = fetches(&bytes[first_length(&bytes)..]);
    more = true;
    while more {
        bytes.clear();
        more = net.node.transmit(PRODUCER, &mut bytes, usize::MAX);
        let mut some = fetches(&bytes);
        assert!(some.len() <= 1, "{} of many rows were said in one step", some.len());
        told.append(&mut some);
    }
    assert_eq!(told, vec![rows; FETCHES as usize]);
}

impl Net {
    /// What the source is asked for, each time anew.
    fn asked_for(&mut self) -> Vec<RowSet> {
        let mut bytes = Vec::new();
        while self.node.transmit(PRODUCER, &mut bytes, usize::MAX) {}
        let asked = messages(&bytes).into_iter().filter_map(|message| match Message::decode(&message) {
            Ok(Message::Subscribe { rows, .. }) => Some(rows),
            _ => None,
        });
        asked.collect()
    }
}

// Each of them may want other rows a few times, and a flush of their producer is repeated for each.
#[test]
fn however_many_want_other_rows_again_what_is_wanted_of_their_producer_changes_a_bounded_number_of_times() {
    const PEERS: u32 = 600;
    const SLOTS: u32 = 2 * PEERS + 2;
    let mut net = Net::new(SLOTS, 8, Propagation::Lazy, RowSet::from_rows([0]));
    let ranks = 2..PEERS + 2;
    for rank in ranks.clone() {
        net.node.connected(PeerId::worker(rank));
        net.subscribe(PeerId::worker(rank), RowSet::from_rows([rank.into()]));
    }
    net.asked_for();
    let mut asked = Vec::new();
    for time in 1..=4 {
        for rank in ranks.clone() {
            let row = rank + time % 2 * PEERS;
            net.subscribe(PeerId::worker(rank), RowSet::from_rows([row.into()]));
            asked.append(&mut net.asked_for());
        }
    }
    assert_eq!(asked.len() as u32, 2 * MAX_WORKERS + 1, "each of them may change it four times");
    assert_eq!(asked.last(), Some(&all(SLOTS.into())), "from then on all is wanted");
}

// The same for one that wants other rows of many tables.
#[test]
fn however_many_tables_one_wants_other_rows_of_they_change_a_bounded_number_of_times_together() {
    const TABLES: u32 = 2 * MAX_WORKERS + 52;
    let mut net = Net::new(4, 8, Propagation::Lazy, RowSet::from_rows([0]));
    let shape = net.shape;
    let tables = 1..=TABLES;
    for table in tables.clone() {
        net.say(PRODUCER, &Message::Offer { partition: PartitionId { table, rank: 0 }, shape });
    }
    let mut asked = Vec::new();
    for time in 0..=4 {
        for table in tables.clone() {
            let (partition, rows) = (PartitionId { table, rank: 0 }, RowSet::from_rows([1 + time % 2]));
            net.say(READER, &Message::Subscribe { partition, shape, done: 0, serial: 1, rows });
        }
        let now = net.asked_for();
        assert_eq!(now.len() as u32, TABLES);
        asked.extend(now.into_iter().filter(|_| time > 0));
    }
    let all = asked.iter().filter(|&rows| *rows == all(4)).count() as u32;
    assert_eq!(asked.len() as u32 - all, 8 * MAX_WORKERS, "it may change each of them four times");
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
        // How often each has wanted others than before, some of which may have been wanted all the same.
        let mut times = BTreeMap::from([(1, 0)]);
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
                    times.remove(&other);
                }
                Between::Mistakes => {
                    let shape = net.shape;
                    net.shape.row_bytes += 1;
                    net.subscribe(peer, RowSet::from_rows([1]));
                    net.shape = shape;
                    wanted.remove(&other);
                    times.entry(other).and_modify(|times| *times += 1).or_default();
                }
            }
            let rows = RowSet::from_rows(rows);
            let gone = wanted.insert(rank, rows.clone());
            let others = u32::from(gone.as_ref() != Some(&rows));
            times.entry(rank).and_modify(|times| *times += others).or_default();
            net.subscribe(PeerId::worker(rank), rows);
            let mut bytes = Vec::new();
            net.node.transmit(PRODUCER, &mut bytes, 1 << 20);
            for message in messages(&bytes) {
                if let Ok(Message::Subscribe { rows, .. }) = Message::decode(&message) {
                    told = rows;
                }
            }
            // Where one has wanted others again and again, all rows are.
            let wanted = match times.values().any(|times| *times > 4) && told == all(12) {
                true => all(12),
                false => RowSet::union_of(wanted.values()),
            };
            prop_assert_eq!(&told, &wanted, "{:?} of {} before", gone, rank);
        }
    }
}

fn between() -> impl Strategy<Value = Between> {
    const OTHERS: &[Between] = &[Between::Reconnects, Between::Goes, Between::Mistakes];
    prop_oneof![3 => Just(Between::Nothing), 2 => prop::sample::select(OTHERS)]
}
