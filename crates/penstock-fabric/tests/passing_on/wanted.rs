//! What is wanted of a source is put together of what all its subscribers want: not anew for each that says something. The thread that
//! does it does it for all of them. What it costs is counted in bytes that are asked for.

use crate::heap::asked_by;
use crate::net::*;
use penstock_proto::items::node::Node;
use penstock_proto::items::wire::{
    Encoder, Entries, Entry, Head, MAX_MESSAGE_BYTES, Message, PartitionId, Shape,
};
use penstock_proto::items::{Propagation, RowSet};
use penstock_proto::message::MAX_WORKERS;
use penstock_proto::peer::PeerId;
use penstock_proto::record::{self, LENGTH_BYTES};
use std::collections::BTreeSet;

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

/// Messages, one by one.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let (head, rest) = bytes.split_first_chunk::<LENGTH_BYTES>()?;
        let (record, rest) = rest.split_at(record::length(head, MAX_MESSAGE_BYTES).unwrap());
        bytes = rest;
        Some(Message::decode(record).unwrap())
    })
}

/// Rows of a source by themselves, as they were set with a version.
fn rows_set(places: impl IntoIterator<Item = u32>, version: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let head = Head { serial: 2, apart: true, first: true, last: true, ..Head::default() };
    let mut message = Encoder::rows(&mut bytes, ID, &head);
    for place in places {
        let (number, clock, as_of, value) = (version, version, version, Some(&[1; ROW_BYTES as usize][..]));
        message.entry(&Entry { place, count: 1, number, clock, as_of, value }, true);
    }
    message.end();
    bytes
}

// Each of them was noted by itself for each subscriber: one message kept the thread for seconds.
#[test]
fn rows_that_come_together_are_noted_together_for_each_that_wants_them() {
    const PEERS: u32 = 100;
    const ROWS: u32 = 1 << 15;
    let shape = Shape { slots: ROWS, row_bytes: ROW_BYTES, propagation: Propagation::Bounded };
    let mut home = Node::new(Here::default());
    home.connected(PRODUCER);
    let peers: Vec<PeerId> = (100..100 + PEERS).map(PeerId::worker).collect();
    let rows = RowSet::from_ranges(std::iter::once(0..ROWS.into()));
    for &peer in &peers {
        home.connected(peer);
        let rows = rows.clone();
        say(&mut home, peer, &Message::Subscribe { partition: ID, shape, done: 0, serial: 1, rows }).unwrap();
        say(&mut home, peer, &Message::Need { partition: ID, versions: vec![2, 3] }).unwrap();
    }
    say(&mut home, PRODUCER, &Message::Offer { partition: ID, shape }).unwrap();
    peers.iter().for_each(|&peer| _ = Net::sent(&mut home, peer));
    // What it costs, and how many rows each peer is sent then.
    let mut receive = |bytes: &[u8], is_whole: bool| {
        let cost = asked_by(|| {
            assert_eq!(home.receive(PRODUCER, &bytes[LENGTH_BYTES..]).is_ok(), is_whole);
        });
        // They are sent with what comes next.
        if !is_whole {
            home.receive(PRODUCER, &rows_set([], 3)[LENGTH_BYTES..]).unwrap();
        }
        let sent: BTreeSet<usize> = peers.iter().map(|&peer| rows_in(&Net::sent(&mut home, peer))).collect();
        assert_eq!(sent.len(), 1, "all want the same");
        (cost, sent.into_iter().sum::<usize>())
    };
    let (cost, sent) = receive(&rows_set(0..ROWS, 1), true);
    assert!(cost < 1 << 20, "{cost} bytes for rows that follow each other");
    assert_eq!(sent, 0, "nobody needs them");
    let (cost, sent) = receive(&rows_set((0..ROWS).step_by(2), 2), true);
    assert!(cost < 1 << 20, "{cost} bytes for rows that do not");
    assert_eq!(sent, ROWS as usize / 2);
    let (_, sent) = receive(&rows_set([1, 2, 3, 5, 7, ROWS], 3), false);
    assert_eq!(sent, 5, "also of a message that turns out to be broken");
}

fn rows_in(bytes: &[u8]) -> usize {
    let rows = messages(bytes).map(|message| match message {
        Message::Rows { head, entries, .. } => Entries::new(entries, ROW_BYTES, head.apart).count(),
        _ => 0,
    });
    rows.sum()
}

// What was under way was thrown away each time, and the source had to send all of it again: it came to nobody.
#[test]
fn who_wants_other_rows_again_and_again_has_the_source_asked_anew_a_few_times() {
    for propagation in [Propagation::Eager, Propagation::Bounded, Propagation::Lazy] {
        let shape = Shape { propagation, ..SHAPE };
        let subscribe = |home: &mut Node<Here>, peer, rows: &[u64]| {
            let rows = RowSet::from_rows(rows.iter().copied());
            let asks = Message::Subscribe { partition: ID, shape, done: 0, serial: 1, rows };
            say(home, peer, &asks).unwrap();
            let told = Net::sent(home, PRODUCER);
            messages(&told).filter(|message| matches!(message, Message::Subscribe { .. })).count()
        };
        let mut home = Node::new(Here::default());
        let late: Vec<PeerId> = (0..64).map(|nth| PeerId::worker(100 + nth)).collect();
        [PRODUCER, ONE, TWO].iter().chain(&late).for_each(|&peer| home.connected(peer));
        say(&mut home, PRODUCER, &Message::Offer { partition: ID, shape }).unwrap();
        assert_eq!(subscribe(&mut home, TWO, &[0, 1]), 1);
        for (rows, &peer) in (100..).zip(&late[..32]) {
            assert_eq!(subscribe(&mut home, peer, &[rows]), 1, "who comes later is asked for at once");
        }
        for _ in 0..100 {
            home.connected(TWO);
            assert_eq!(subscribe(&mut home, TWO, &[0, 1]), 0, "it wants what it did");
        }
        let asked = |home: &mut Node<Here>| -> usize {
            (0..1000).map(|turn| subscribe(home, ONE, &[2 + turn % 2])).sum()
        };
        let times = asked(&mut home);
        assert!(times <= 8, "{propagation}: {times} times");
        // Nor where others come and go between.
        for (rows, &peer) in (200..).zip(&late[32..]) {
            assert_eq!(subscribe(&mut home, peer, &[rows]), 0, "all are asked for");
            home.lost(peer);
            home.forget(peer);
            assert_eq!(asked(&mut home), 0, "{propagation}");
        }
        // Once it has gone for good, those that are wanted are asked for.
        home.lost(ONE);
        home.forget(ONE);
        assert_eq!(subscribe(&mut home, TWO, &[0, 1, 2]), 1, "{propagation}");
    }
}
