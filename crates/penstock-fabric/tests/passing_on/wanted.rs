//! What is wanted of a source is put together of what all its subscribers want: not anew for each that says something. The thread that
//! does it does it for all of them. What it costs is counted in bytes that are asked for.

use crate::heap::asked_by;
use crate::net::*;
use penstock_proto::items::node::Node;
use penstock_proto::items::wire::{MAX_MESSAGE_BYTES, Message, PartitionId, Shape};
use penstock_proto::items::{Propagation, RowSet};
use penstock_proto::message::MAX_WORKERS;
use penstock_proto::peer::PeerId;
use penstock_proto::record::{self, LENGTH_BYTES};

const RANGES: u64 = 1 << 12;
const SHAPE: Shape = Shape { slots: 2 * RANGES as u32, row_bytes: ROW_BYTES, propagation: Propagation::Lazy };

/// Every other row.
fn many() -> RowSet {
    RowSet::from_rows((0..RANGES).map(|row| 2 * row))
}

fn subscribe(home: &mut Node<Here>, partition: PartitionId, peer: PeerId, rows: RowSet) {
    let subscribe = Message::Subscribe { partition, shape: SHAPE, done: 0, serial: 1, rows };
    say(home, peer, &subscribe).unwrap();
}

/// A home of a source of which one peer wants many rows.
fn home() -> Node<Here> {
    let mut home = Node::new(Here::default());
    [PRODUCER, ONE, TWO].into_iter().for_each(|peer| home.connected(peer));
    say(&mut home, PRODUCER, &Message::Offer { partition: ID, shape: SHAPE }).unwrap();
    subscribe(&mut home, ID, TWO, many());
    Net::sent(&mut home, PRODUCER);
    home
}

/// Bytes that one such set takes to be put together, at least.
fn once() -> u64 {
    many().kept_bytes()
}

// A few bytes had all that all others want put together anew, each time.
#[test]
fn who_subscribes_to_rows_that_are_wanted_anyway_again_and_again_has_nothing_put_together() {
    let mut home = home();
    let cost = asked_by(|| {
        for turn in 0..RANGES {
            // The same as before, or one more.
            subscribe(&mut home, ID, ONE, RowSet::from_rows((0..=turn / 512).map(|row| 2 * row)));
        }
    });
    assert!(cost < 100 * once(), "{cost} bytes, where all takes {}", once());
    assert!(Net::sent(&mut home, PRODUCER).is_empty(), "the source is asked for nothing else");
}

#[test]
fn who_wants_other_rows_again_and_again_has_what_all_want_put_together_a_bounded_number_of_times() {
    let mut home = home();
    let other = |turn: u64| RowSet::from_rows([2 * (turn % 2)]);
    (0..u64::from(3 * MAX_WORKERS)).for_each(|turn| subscribe(&mut home, ID, ONE, other(turn)));
    let cost = asked_by(|| (0..RANGES).for_each(|turn| subscribe(&mut home, ID, ONE, other(turn))));
    assert!(cost < 100 * once(), "{cost} bytes, where all takes {}", once());
}

#[test]
fn what_all_want_that_have_waited_for_a_partition_is_put_together_once() {
    const PEERS: u64 = 64;
    let mut home = Node::new(Here::default());
    home.connected(PRODUCER);
    for nth in 0..PEERS {
        let peer = PeerId::worker(100 + nth as u32);
        home.connected(peer);
        let rows = RowSet::from_rows((0..RANGES / PEERS).map(|row| 2 * (row * PEERS + nth)));
        subscribe(&mut home, ID, peer, rows);
    }
    let offer = Message::Offer { partition: ID, shape: SHAPE };
    let cost = asked_by(|| say(&mut home, PRODUCER, &offer).unwrap());
    assert!(cost < 20 * once(), "{cost} bytes, where all takes {}", once());
    let told = Net::sent(&mut home, PRODUCER);
    assert!(many().encode().len() < told.len(), "the source is asked for all of it");
}

// The same for versions.
#[test]
fn who_needs_other_versions_again_and_again_has_those_that_others_need_put_together_once() {
    const OTHERS: u32 = 20;
    let shape = Shape { propagation: Propagation::Bounded, ..SHAPE };
    let mut home = Node::new(Here::default());
    home.connected(PRODUCER);
    say(&mut home, PRODUCER, &Message::Offer { partition: ID, shape }).unwrap();
    let versions: Vec<u64> = (0..1000).map(|version| 2 * version).collect();
    for rank in 100..=100 + OTHERS {
        let peer = PeerId::worker(rank);
        home.connected(peer);
        let rows = RowSet::from_rows([0]);
        say(&mut home, peer, &Message::Subscribe { partition: ID, shape, done: 0, serial: 1, rows }).unwrap();
        say(&mut home, peer, &Message::Need { partition: ID, versions: versions.clone() }).unwrap();
    }
    let needs = |version| Message::Need { partition: ID, versions: vec![version] };
    let cost = asked_by(|| {
        (0..1000).for_each(|version| say(&mut home, PeerId::worker(100), &needs(version)).unwrap());
    });
    assert!(cost < 1000 * 1000, "{cost} bytes");
    let told = |home: &mut Node<Here>| {
        let mut needed = None;
        let bytes = Net::sent(home, PRODUCER);
        let mut rest = &bytes[..];
        while let Some((head, tail)) = rest.split_first_chunk::<LENGTH_BYTES>() {
            let (record, tail) = tail.split_at(record::length(head, MAX_MESSAGE_BYTES).unwrap());
            if let Ok(Message::Need { versions, .. }) = Message::decode(record) {
                needed = Some(versions);
            }
            rest = tail;
        }
        needed
    };
    let all = |more: u64| {
        let mut all = versions.clone();
        all.push(more);
        all.sort_unstable();
        Some(all)
    };
    assert_eq!(told(&mut home), all(999));
    say(&mut home, PeerId::worker(100), &needs(8)).unwrap();
    assert_eq!(told(&mut home), Some(versions.clone()));
    say(&mut home, PeerId::worker(100), &needs(10)).unwrap();
    assert_eq!(told(&mut home), None, "others need both");
    home.lost(PeerId::worker(101));
    assert_eq!(told(&mut home), None, "others need all of it");
    (102..=100 + OTHERS).for_each(|rank| home.lost(PeerId::worker(rank)));
    assert_eq!(told(&mut home), Some(vec![10]));
}

// Each row was looked for by itself, here and where the source is asked.
#[test]
fn a_fetch_of_rows_that_follow_each_other_takes_a_number_for_each_and_no_more() {
    const SLOTS: u64 = 1 << 20;
    let shape = Shape { slots: SLOTS as u32, ..SHAPE };
    let mut home = Node::new(Here::default());
    [PRODUCER, ONE].into_iter().for_each(|peer| home.connected(peer));
    say(&mut home, PRODUCER, &Message::Offer { partition: ID, shape }).unwrap();
    let rows = RowSet::from_ranges(std::iter::once(10..SLOTS));
    let subscribe = Message::Subscribe { partition: ID, shape, done: 0, serial: 1, rows };
    say(&mut home, ONE, &subscribe).unwrap();
    Net::sent(&mut home, PRODUCER);
    let places = RowSet::from_ranges([3..7, 20..SLOTS - 20]);
    let cost = asked_by(|| {
        let fetch = Message::Fetch { partition: ID, ticket: 1, version: 1, places: places.clone() };
        say(&mut home, ONE, &fetch).unwrap();
        Net::sent(&mut home, ONE);
        let bytes = Net::sent(&mut home, PRODUCER);
        let Ok(Message::Fetch { places: asked, .. }) = Message::decode(&bytes[LENGTH_BYTES..]) else {
            panic!("a fetch");
        };
        assert_eq!(asked, places, "the source is asked for the same rows");
    });
    assert!(cost < 4 * SLOTS + (64 << 10), "{cost} bytes for {SLOTS} rows");
}
