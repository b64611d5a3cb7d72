//! A peer may ask as often as it likes, and for rows that never come: what a question costs does not grow with what is not asked
//! about, and what an answer costs does not grow with what else waits.

use penstock_proto::items::RowSet;
use penstock_proto::items::node::{Host, Node};
use penstock_proto::items::row_memory::{Changed, Look, Memory, Moment, Torn, Unlisted};
use penstock_proto::items::spec::Propagation;
use penstock_proto::items::wire::{Encoder, Message, PartitionId, Shape};
use penstock_proto::peer::PeerId;
use penstock_proto::record::{self, LENGTH_BYTES};
use std::cell::Cell;
use std::rc::Rc;

const PEER: PeerId = PeerId::worker(1);
const OTHER: PeerId = PeerId::worker(2);
const SHAPE: Shape = Shape { slots: 1, row_bytes: 8, propagation: Propagation::Lazy };

const fn partition(table: u32) -> PartitionId {
    PartitionId { table, rank: 0 }
}

/// One row, for all partitions, whose version is set here; and what was done with it.
#[derive(Debug, Default)]
struct Row {
    version: Cell<u64>,
    steps: Cell<u64>,
}

impl Row {
    fn step(&self) {
        self.steps.set(self.steps.get() + 1);
    }
}

struct Counted(Rc<Row>);

impl Memory for Counted {
    fn changed(&mut self, _: &mut Vec<Changed>) -> Result<(), Unlisted> {
        self.0.step();
        Ok(())
    }

    fn now(&self) -> Moment {
        Moment { done: self.0.version.get(), several: 0, floor: 0 }
    }

    fn look(&self, _: u32, now: Moment) -> Result<Look, Torn> {
        self.0.step();
        Ok(Look { number: now.done, clock: now.done, as_of: now.done })
    }

    fn read(&self, slot: u32, now: Moment, _: &mut [u8]) -> Result<Look, Torn> {
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

    fn refresh(&mut self, _: u32, _: u64, _: u64, _: u64, _: Option<&[u8]>) {}

    fn raise(&mut self, _: u64) {}

    fn wake(&mut self) {}
}

struct Nobody;

impl Host for Nobody {
    type Memory = Counted;

    fn make(&mut self, _: PartitionId, _: &Shape) -> Option<Counted> {
        None
    }

    fn answered(&mut self, _: u64) {}

    fn flushed(&mut self, _: u64) {}
}

fn say(node: &mut Node<Nobody>, peer: PeerId, message: &Message<'_>) {
    let mut bytes = Vec::new();
    Encoder::message(&mut bytes, message);
    node.receive(peer, &bytes[LENGTH_BYTES..]).unwrap();
}

/// A node with so many partitions, to all of which both peers have subscribed.
fn node(partitions: u32) -> (Node<Nobody>, Rc<Row>) {
    let (mut node, row) = (Node::new(Nobody), Rc::<Row>::default());
    [PEER, OTHER].into_iter().for_each(|peer| node.connected(peer));
    for id in (0..partitions).map(partition) {
        node.produce(id, PeerId::worker(0), SHAPE, Counted(Rc::clone(&row)), None);
        for peer in [PEER, OTHER] {
            let rows = RowSet::from_rows([0]);
            let subscribe = Message::Subscribe { partition: id, shape: SHAPE, done: 0, serial: 1, rows };
            say(&mut node, peer, &subscribe);
        }
    }
    (node, row)
}

fn fetch(node: &mut Node<Nobody>, table: u32, ticket: u64, version: u64) {
    let (partition, places) = (partition(table), RowSet::from_rows([0]));
    say(node, PEER, &Message::Fetch { partition, ticket, version, places });
}

/// The tickets and flushes that a turn answers, in order.
fn answers(node: &mut Node<Nobody>) -> Vec<u64> {
    node.collect_all();
    let (mut bytes, mut limit) = (Vec::new(), 1);
    while node.transmit(PEER, &mut bytes, limit) {
        limit = bytes.len() + 1;
    }
    let (mut rest, mut answered) = (&bytes[..], Vec::new());
    while let Some((head, tail)) = rest.split_first_chunk::<LENGTH_BYTES>() {
        let (message, tail) = tail.split_at(record::length(head, 1 << 20).unwrap());
        match Message::decode(message).unwrap() {
            Message::Rows { head, .. } => answered.push(head.ticket),
            Message::Flushed { id } => answered.push(id),
            other => panic!("{other:?}"),
        }
        rest = tail;
    }
    answered
}

// Each looked at all partitions: a peer that sent many of them at once occupied its server for longer than a lease.
#[test]
fn a_flush_looks_at_no_partition_that_it_is_not_about() {
    const ASKED: u64 = 100;
    let (mut node, row) = node(50);
    answers(&mut node);
    row.steps.set(0);
    for id in 0..ASKED {
        say(&mut node, PEER, &Message::Flush { id });
    }
    assert_eq!(row.steps.get(), 0);
    for id in 0..ASKED {
        say(&mut node, PEER, &Message::Bring { id, partition: partition(7) });
    }
    assert!(row.steps.get() <= ASKED, "{} steps", row.steps.get());
    let all: Vec<u64> = (0..ASKED).chain(0..ASKED).collect();
    assert_eq!(answers(&mut node), all);
}

// Each answer looked at all fetches that came before its own. That one be answered once it can be, and before a flush behind it, holds
// all the same.
#[test]
fn an_answer_looks_at_no_fetch_that_waits_for_another_version() {
    const STUCK: u64 = 1000;
    const ASKED: u64 = 500;
    let (mut node, row) = node(2);
    row.version.set(1);
    (1..=STUCK).for_each(|ticket| fetch(&mut node, 0, ticket, 9));
    // Of the same partition, and of another.
    let asked: Vec<u64> = (STUCK + 1..=STUCK + ASKED).collect();
    asked.iter().for_each(|&ticket| fetch(&mut node, (ticket % 2) as u32, ticket, 1));
    row.steps.set(0);
    let mut answered = answers(&mut node);
    answered.sort_unstable();
    assert_eq!(answered, asked);
    let most = 4 * (STUCK + ASKED);
    assert!(row.steps.get() <= most, "{} steps, not {most}", row.steps.get());
    // Those that were looked at wait no longer than for the version.
    row.version.set(9);
    let (later, flush) = (STUCK + ASKED + 1, 1 << 40);
    say(&mut node, PEER, &Message::Bring { id: flush, partition: partition(0) });
    fetch(&mut node, 0, later, 9);
    let expected: Vec<u64> = (1..=STUCK).chain([later]).collect();
    let answered = answers(&mut node);
    let rows: Vec<u64> = answered.iter().copied().filter(|&it| it != flush).collect();
    assert_eq!(rows, expected);
    assert!(answered.iter().position(|&it| it == flush) > answered.iter().position(|&it| it == STUCK));
}

#[test]
fn what_is_taken_back_is_not_answered() {
    let (mut node, row) = node(1);
    (1..=3).for_each(|ticket| fetch(&mut node, 0, ticket, 9));
    assert_eq!(answers(&mut node), [0; 0]);
    say(&mut node, PEER, &Message::Withdraw { partition: partition(0), ticket: 2 });
    row.version.set(9);
    assert_eq!(answers(&mut node), [1, 3]);
}
