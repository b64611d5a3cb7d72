//! What a peer is sent is charged to it before it is kept: a peer that cannot pay for it makes a node keep, and read, no
//! more than it can.

use penstock_proto::account::{Account, Limits, Resource};
use penstock_proto::items::RowSet;
use penstock_proto::items::node::{Broken, Host, Node};
use penstock_proto::items::row_memory::{Changed, Look, Memory, Moment, Torn, Unlisted};
use penstock_proto::items::spec::Propagation;
use penstock_proto::items::wire::{Encoder, Message, PartitionId, Shape};
use penstock_proto::peer::PeerId;
use penstock_proto::record::LENGTH_BYTES;
use std::cell::Cell;
use std::rc::Rc;

const PEER: PeerId = PeerId::worker(1);
const PARTITION: PartitionId = PartitionId { table: 0, rank: 0 };
const ROWS: u32 = 1024;
const ROW_BYTES: u32 = 64 * 1024;
/// What the peer may have: a small part of the rows.
const QUOTA: u64 = 4 << 20;

/// Rows that one set wrote, all of them; and how many bytes were read of them.
struct Written(Rc<Cell<u64>>);

impl Memory for Written {
    fn changed(&mut self, _: &mut Vec<Changed>) -> Result<(), Unlisted> {
        Err(Unlisted { until: 1 })
    }

    fn now(&self) -> Moment {
        Moment { done: 1, several: 1, floor: 5 }
    }

    fn look(&self, _: u32, _: Moment) -> Result<Look, Torn> {
        Ok(Look { number: 1, clock: 5, as_of: 1 })
    }

    fn read(&self, slot: u32, now: Moment, out: &mut [u8]) -> Result<Look, Torn> {
        self.0.set(self.0.get() + out.len() as u64);
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

struct Job(Account);

impl Host for Job {
    type Memory = Written;

    fn make(&mut self, _: PartitionId, _: &Shape) -> Option<Written> {
        None
    }

    fn answered(&mut self, _: u64) {}

    fn flushed(&mut self, _: u64) {}

    fn account(&self, peer: PeerId) -> Account {
        self.0.peer(peer)
    }
}

fn say(node: &mut Node<Job>, message: &Message<'_>) {
    let mut bytes = Vec::new();
    Encoder::message(&mut bytes, message);
    node.receive(PEER, &bytes[LENGTH_BYTES..]).unwrap();
}

/// Subscribes to `rows` of all the rows, and asks for them.
fn node(propagation: Propagation, rows: u32) -> (Node<Job>, Account, Rc<Cell<u64>>) {
    let (account, read) = (Account::new(Limits::NONE.with(Resource::Bytes, QUOTA)), Rc::default());
    let mut node = Node::new(Job(account.clone()));
    let shape = Shape { slots: ROWS, row_bytes: ROW_BYTES, propagation };
    node.produce(PARTITION, PeerId::worker(0), shape, Written(Rc::clone(&read)), None);
    node.connected(PEER);
    let rows = RowSet::from_ranges(std::iter::once(0..rows.into()));
    say(
        &mut node,
        &Message::Subscribe { partition: PARTITION, shape, done: 0, serial: 1, rows: rows.clone() },
    );
    match propagation {
        Propagation::Eager => {}
        Propagation::Bounded => say(&mut node, &Message::Need { partition: PARTITION, versions: vec![1] }),
        Propagation::Lazy => {
            say(&mut node, &Message::Fetch { partition: PARTITION, ticket: 1, version: 1, places: rows });
        }
    }
    (node, account, read)
}

#[test]
fn rows_that_a_peer_cannot_pay_for_are_not_even_read() {
    for propagation in [Propagation::Eager, Propagation::Bounded, Propagation::Lazy] {
        let (mut node, account, read) = node(propagation, ROWS);
        let mut out = Vec::new();
        node.transmit(PEER, &mut out, 1 << 20);
        let overdrawn = node.overdrawn();
        assert!(
            matches!(overdrawn, Some((PEER, Broken::Exhausted { what: "rows on their way", .. }))),
            "{propagation:?}: {overdrawn:?}"
        );
        assert!(read.get() <= QUOTA, "{propagation:?}: {} bytes were read", read.get());
        drop(node);
        assert_eq!(account.taken(Resource::Bytes), 0, "{propagation:?}");
    }
}

#[test]
fn what_was_charged_for_rows_is_given_back_when_they_have_gone() {
    for propagation in [Propagation::Eager, Propagation::Bounded, Propagation::Lazy] {
        let (mut node, account, read) = node(propagation, 16);
        let before = account.taken(Resource::Bytes);
        let mut out = Vec::new();
        node.transmit(PEER, &mut out, 1 << 10);
        let charged = account.taken(Resource::Bytes) - before;
        assert!(charged >= u64::from(15 * ROW_BYTES), "{propagation:?}: {charged}");
        out.clear();
        while node.transmit(PEER, &mut out, 1 << 10) {
            out.clear();
        }
        assert!(node.overdrawn().is_none(), "{propagation:?}");
        assert!(read.get() >= u64::from(16 * ROW_BYTES), "{propagation:?}");
        assert!(account.taken(Resource::Bytes) <= before, "{propagation:?}");
    }
}
