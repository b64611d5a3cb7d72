//! When a flush comes back, and what it does not wait for.

use crate::net::*;
use penstock_proto::account::Resource;
use penstock_proto::items::node::Node;
use penstock_proto::items::wire::{MAX_MESSAGE_BYTES, Message, PartitionId, Shape};
use penstock_proto::items::{Propagation, RowSet};
use penstock_proto::peer::PeerId;
use penstock_proto::record::{self, LENGTH_BYTES};
use std::collections::BTreeSet;
use std::rc::Rc;

#[test]
fn a_flush_does_not_wait_for_a_set_whose_producer_died_inside() {
    let mut net = Net::new(2, Propagation::Eager);
    let mut producer = writer(2);
    let memory = Watched { memory: followed(producer.rows()), between: Rc::default() };
    net.home.produce(ID, PRODUCER, net.shape, memory, None);
    set(&mut producer, 1, &[0, 1], 5);
    let mut last = producer.begin(2);
    last.put(0, 2, &[9; ROW_BYTES as usize]);
    std::mem::forget(last);
    net.consume(ONE);
    assert!(net.flushes(ONE));
    assert_eq!(net.seen_by(ONE), [5, 5], "I-3");
}

#[test]
fn a_flush_does_not_wait_for_a_batch_whose_producer_was_lost_in_the_middle() {
    const ROWS: u32 = 80_000; // several messages
    let (mut net, mut producer) = Net::subscribed(ROWS, Propagation::Eager);
    let all: Vec<u32> = (0..ROWS).rev().collect();
    set(&mut producer, 1, &all, 5);
    let node = net.workers.get_mut(&PRODUCER).unwrap();
    Net::pass(node, HOME, &mut net.home, PRODUCER, 1);
    assert!(net.home.memory(ID).unwrap().memory.rows().now().done == 0, "half of it is there");
    net.workers.remove(&PRODUCER);
    net.home.lost(PRODUCER);
    assert!(net.flushes(ONE));
    assert_eq!(net.seen_by(ONE), vec![0; ROWS as usize], "I-3");
}

// They waited for ever, and with them the barrier and the end.
#[test]
fn a_flush_does_not_wait_for_the_first_batch_of_a_producer_that_has_gone() {
    const ROWS: u32 = 80_000; // several messages
    let mut net = Net::new(ROWS, Propagation::Eager);
    let (shape, mut producer) = (net.shape, writer(ROWS));
    let all: Vec<u32> = (0..ROWS).rev().collect();
    set(&mut producer, 1, &all, 5);
    net.consume(ONE);
    net.settle();
    let memory = Watched { memory: followed(producer.rows()), between: Rc::default() };
    net.join(PRODUCER).produce(ID, PRODUCER, shape, memory, Some(HOME));
    let mut node = net.workers.remove(&PRODUCER).unwrap();
    Net::pass(&mut node, HOME, &mut net.home, PRODUCER, 1); // offers
    Net::pass(&mut net.home, PRODUCER, &mut node, HOME, usize::MAX);
    Net::pass(&mut node, HOME, &mut net.home, PRODUCER, 1); // half of the rows
    net.home.lost(PRODUCER);
    assert!(!net.flushes(ONE), "it may come again");
    assert_eq!(net.home.forget(PRODUCER), BTreeSet::new(), "they were asked for");
    assert!(net.flushes(ONE));
    assert_eq!(net.seen_by(ONE), vec![0; ROWS as usize], "I-3");
    net.consume(TWO);
    assert!(net.flushes(TWO), "nor does who comes later");
}

// A flush came back before the home had said again what it wants, or behind rows that it had not taken; and what a producer
// hands over was not handed over on its next connection.
#[test]
fn a_producer_that_has_left_has_delivered_everything_whatever_happened_on_its_lines_meanwhile() {
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum What {
        /// Its line breaks.
        Breaks,
        /// Another goes for good and the consumer comes again, so that the home wants less.
        WantsLess,
        /// Another comes that wants more.
        WantsMore,
    }
    for propagation in [Propagation::Eager, Propagation::Bounded, Propagation::Lazy] {
        for what in [What::Breaks, What::WantsLess, What::WantsMore] {
            for (at, again) in (0..8).flat_map(|at| (at..8).map(move |again| (at, again))) {
                let mut net = Net::new(3, propagation);
                let (shape, mut producer) = (net.shape, writer(3));
                let memory = Watched { memory: followed(producer.rows()), between: Rc::default() };
                net.join(PRODUCER).produce(ID, PRODUCER, shape, memory, Some(HOME));
                net.consume_some(ONE, RowSet::from_rows([0, 1]));
                if what == What::WantsLess {
                    net.consume(TWO);
                }
                net.settle();
                set(&mut producer, 1, &[0, 1, 2], 5);
                producer.raise(1);
                leave(&mut net, &mut |net, turn| {
                    if turn != at && turn != again {
                        return false;
                    }
                    match what {
                        What::Breaks => {
                            net.reconnect(PRODUCER);
                            return true;
                        }
                        What::WantsLess => {
                            if turn == at {
                                net.go(TWO);
                            }
                            net.reconnect(ONE);
                        }
                        What::WantsMore if turn == at => net.consume(TWO),
                        What::WantsMore => net.reconnect(TWO),
                    }
                    for peer in [ONE, TWO] {
                        if let Some(node) = net.workers.get_mut(&peer) {
                            Net::pass(node, HOME, &mut net.home, peer, usize::MAX);
                        }
                    }
                    false
                });
                net.go(PRODUCER);
                net.want_version(ONE, 2, 1);
                net.settle();
                assert_eq!(net.seen_by(ONE), [5, 5], "N-5: {propagation}, {what:?} at {at} and {again}");
            }
        }
    }
}

#[test]
fn a_flush_is_complete_when_the_peer_says_so_that_was_asked() {
    let mut home = Node::new(Here::default());
    [ONE, TWO].into_iter().for_each(|peer| home.connected(peer));
    let id = home.flush(ONE);
    say(&mut home, TWO, &Message::Flushed { id }).unwrap();
    assert!(home.host().flushed.is_empty());
    say(&mut home, ONE, &Message::Flushed { id }).unwrap();
    assert_eq!(home.host().flushed, BTreeSet::from([id]));
}

/// What a node has for a peer, message by message, until a flush of that one has come back.
fn until_flushed(from: &mut Node<Here>, peer: PeerId, to: &mut Node<Here>, id: u64) -> bool {
    let mut more = true;
    while more && !to.host().flushed.contains(&id) {
        let mut bytes = Vec::new();
        more = from.transmit(peer, &mut bytes, 1);
        Net::arrive(&bytes, to, HOME, usize::MAX);
    }
    to.host().flushed.contains(&id)
}

// The flush came back first: the peer that had asked took it for all that there is, and had nothing.
#[test]
fn what_was_fetched_before_a_flush_comes_before_it_is_answered() {
    const ROWS: u32 = 80_000; // several messages
    let all: Vec<u32> = (0..ROWS).collect();
    for propagation in [Propagation::Bounded, Propagation::Lazy] {
        for near in [true, false] {
            let (mut net, mut producer) = Net::producing(ROWS, propagation, near);
            net.consume(ONE);
            net.settle();
            set(&mut producer, 1, &all, 5);
            producer.raise(1);
            net.home.lost(ONE);
            let mut one = net.workers.remove(&ONE).unwrap();
            one.lost(HOME);
            if !near {
                leave(&mut net, &mut |_, _| false);
            }
            net.go(PRODUCER);
            // The last can never be answered.
            let rows = RowSet::from_ranges(std::iter::once(0..ROWS.into()));
            for (rows, version) in [(&rows, 0), (&RowSet::from_rows([3]), 1), (&rows, 9)] {
                assert!(one.fetch(ID, rows, version).is_some());
            }
            let id = one.bring(ID).unwrap();
            net.home.connected(ONE);
            one.connected(HOME);
            Net::pass(&mut one, HOME, &mut net.home, ONE, usize::MAX);
            assert!(until_flushed(&mut net.home, ONE, &mut one, id), "{propagation}, near: {near}");
            let seen = values(one.memory(ID).unwrap().memory.rows());
            assert!(seen == vec![5; ROWS as usize], "{propagation}, near: {near}");
        }
    }
}

#[test]
fn a_flush_waits_for_no_fetch_that_nobody_can_answer_yet_nor_for_those_behind_it() {
    for propagation in [Propagation::Bounded, Propagation::Lazy] {
        let (mut net, mut producer) = Net::subscribed(4, propagation);
        set(&mut producer, 1, &[0, 1, 2, 3], 5);
        let all = RowSet::from_rows(0..4);
        net.workers.get_mut(&ONE).unwrap().fetch(ID, &all, 9);
        net.settle();
        for version in [1, 9] {
            net.workers.get_mut(&ONE).unwrap().fetch(ID, &all, version);
            assert!(net.flushes(ONE), "{propagation}, version {version}");
            assert!(net.flushes(PRODUCER), "{propagation}, version {version}");
        }
        // One that fetches as fast as it is answered, ahead of what it is sent.
        let mut one = net.workers.remove(&ONE).unwrap();
        let id = one.bring(ID).unwrap();
        let came = (0..100).any(|_| {
            (0..2).for_each(|_| assert!(one.fetch(ID, &all, 1).is_some()));
            Net::pass(&mut one, HOME, &mut net.home, ONE, usize::MAX);
            let mut bytes = Vec::new();
            net.home.transmit(ONE, &mut bytes, 1);
            Net::arrive(&bytes, &mut one, HOME, usize::MAX);
            one.host().flushed.contains(&id)
        });
        assert!(came, "{propagation}");
    }
}

// It was flushed again for each subscription, as long as they came.
#[test]
fn who_wants_other_rows_again_and_again_keeps_no_flush_of_their_producer_from_coming_back() {
    for propagation in [Propagation::Eager, Propagation::Bounded, Propagation::Lazy] {
        let (mut net, mut producer) = Net::subscribed(4, propagation);
        let shape = net.shape;
        net.consume_some(TWO, RowSet::from_rows([0]));
        net.settle();
        net.silent.insert(ONE);
        set(&mut producer, 1, &[0, 1, 2, 3], 5);
        producer.raise(1);
        let mut serial = 1;
        leave_within(&mut net, 100_000, &mut |net, _| {
            serial += 1;
            let rows = RowSet::from_rows([1 + serial % 2]);
            say(&mut net.home, ONE, &Message::Subscribe { partition: ID, shape, done: 0, serial, rows })
                .unwrap();
            false
        });
        net.go(PRODUCER);
        net.want_version(TWO, 1, 1);
        net.settle();
        assert_eq!(net.seen_by(TWO), [5], "{propagation}");
    }
}

// It waited for ever.
#[test]
fn a_flush_does_not_wait_for_a_row_that_its_producer_left_torn() {
    for propagation in [Propagation::Eager, Propagation::Bounded, Propagation::Lazy] {
        for slots in [3, 256] {
            let mut net = Net::new(slots, propagation);
            let mut producer = writer(slots);
            let between = net.watch(&producer);
            net.consume(ONE);
            set(&mut producer, 1, &(0..slots).collect::<Vec<u32>>(), 5);
            producer.raise(1);
            between.borrow_mut().torn = Some(1);
            net.settle();
            net.go(PRODUCER);
            net.want_version(ONE, 1, 1);
            assert!(net.flushes(ONE), "{propagation}, {slots} rows");
            let seen = net.seen_by(ONE);
            assert_eq!((seen[0], seen[1]), (5, 0), "{propagation}, {slots} rows");
            assert!(
                propagation == Propagation::Lazy || seen[2..].iter().all(|&value| value == 5),
                "{propagation}"
            );
            net.consume(TWO);
            assert!(net.flushes(TWO), "{propagation}, {slots} rows");
        }
    }
}

#[test]
fn who_subscribes_again_and_again_with_fetches_open_keeps_no_flush_of_their_producer_from_coming_back() {
    let (mut net, mut producer) = Net::subscribed(4, Propagation::Lazy);
    let (shape, all) = (net.shape, RowSet::from_rows(0..4));
    net.silent.insert(ONE);
    set(&mut producer, 1, &[0, 1, 2, 3], 5);
    let mut ticket = 0;
    leave_within(&mut net, 100_000, &mut |net, _| {
        ticket += 1;
        let rows = all.clone();
        let said = Message::Subscribe { partition: ID, shape, done: 0, serial: 9, rows };
        say(&mut net.home, ONE, &said).unwrap();
        let fetch = Message::Fetch { partition: ID, ticket, version: 9, places: all.clone() };
        say(&mut net.home, ONE, &fetch).unwrap();
        Net::sent(&mut net.home, ONE);
        false
    });
    assert_eq!(ticket, 4, "what is withdrawn is no other subscription: neither flush is repeated");
}

// It was flushed again for each, table after table.
#[test]
fn who_wants_other_rows_of_many_tables_holds_a_flush_of_their_producer_no_longer_than_with_a_few() {
    const TABLES: u32 = 12;
    const A_TABLE: u32 = 2 * 1024;
    let (mut net, _producer) = Net::subscribed(4, Propagation::Lazy);
    let shape = net.shape;
    let id = |table| PartitionId { table, ..ID };
    for table in 1..TABLES {
        let memory = Watched { memory: followed(writer(4).rows()), between: Rc::default() };
        net.workers.get_mut(&PRODUCER).unwrap().produce(id(table), PRODUCER, shape, memory, Some(HOME));
    }
    net.settle();
    net.silent.insert(ONE);
    let mut serial = 1;
    leave_within(&mut net, 2 * 5 * A_TABLE as usize, &mut |net, turn| {
        if turn.is_multiple_of(2) {
            serial += 1;
            let partition = id(serial as u32 / A_TABLE % TABLES);
            let rows = RowSet::from_rows([1 + serial % 2]);
            say(&mut net.home, ONE, &Message::Subscribe { partition, shape, done: 0, serial, rows }).unwrap();
        }
        false
    });
}

// A home keeps the newest question of a partition, and its answer was ignored once the get that had asked gave up: one of another
// thread, which had asked before, waited until its time was up although its rows were there.
#[test]
fn who_gives_up_a_flush_takes_the_answer_from_no_other_that_waits_for_the_same_rows() {
    const NEVER: usize = 4;
    // In which turn each is given up, the one in which it is asked or a later one.
    let given_up = (0..125).map(|case| [case / 25, case / 5 % 5, case % 5]);
    let given_up = given_up.filter(|turns| turns.iter().enumerate().all(|(asked, turn)| asked <= *turn));
    let cases = given_up.flat_map(|turns| [(turns, true, false), (turns, false, false), (turns, true, true)]);
    for (given_up, here, breaks) in cases {
        let case = format!("given up: {given_up:?}, rows here: {here}, the line breaks: {breaks}");
        let mut net = Net::new(2, Propagation::Eager);
        let mut producer = writer(2);
        set(&mut producer, 1, &[0, 1], 5);
        if here {
            net.watch(&producer);
        }
        net.consume(ONE);
        let mut one = net.workers.remove(&ONE).unwrap();
        let mut asked = Vec::new();
        for turn in 0..NEVER {
            if turn < given_up.len() {
                asked.push(one.bring(ID).unwrap());
            }
            let ends = asked.iter().zip(given_up).filter(|&(_, at)| at == turn);
            ends.for_each(|(&id, _)| one.give_up(id));
            // The home hears all of it, and its line is slow.
            Net::pass(&mut one, HOME, &mut net.home, ONE, usize::MAX);
        }
        let waited_for: BTreeSet<u64> =
            asked.into_iter().zip(given_up).filter(|&(_, at)| at == NEVER).map(|(id, _)| id).collect();
        assert_eq!(one.unanswered(), waited_for.len(), "{case}");
        net.workers.insert(ONE, one);
        if breaks {
            net.reconnect(ONE);
        }
        if !here {
            net.watch(&producer);
        }
        net.settle();
        let one = net.workers.get_mut(&ONE).unwrap();
        assert!(one.host().flushed.is_superset(&waited_for), "{case}");
        assert_eq!(one.unanswered(), 0, "{case}");
        assert_eq!(net.seen_by(ONE), [5, 5], "{case}");
    }
}

/// A home that waits for rows of many partitions of one worker, which it has fetched itself and asked to be brought.
fn asked_for_many(partitions: u32) -> Node<Here> {
    let mut home = Node::new(Here::default());
    home.connected(ONE);
    let shape = Shape { slots: 1, row_bytes: ROW_BYTES, propagation: Propagation::Lazy };
    let all = || (0..partitions).map(|table| PartitionId { table, rank: 1 });
    for partition in all() {
        let rows = || RowSet::from_rows([0]);
        say(&mut home, ONE, &Message::Offer { partition, shape }).unwrap();
        let subscribe = Message::Subscribe { partition, shape, done: 0, serial: 1, rows: rows() };
        say(&mut home, ONE, &subscribe).unwrap();
        say(&mut home, ONE, &Message::Fetch { partition, ticket: 1, version: 9, places: rows() }).unwrap();
    }
    home
}

fn bring(home: &mut Node<Here>, table: u32) {
    let partition = PartitionId { table, rank: 1 };
    say(home, ONE, &Message::Bring { id: u64::from(table) + 1, partition }).unwrap();
}

fn answered(home: &mut Node<Here>) -> BTreeSet<u64> {
    let bytes = Net::sent(home, ONE);
    let mut rest = &bytes[..];
    let mut answered = BTreeSet::new();
    while let Some((head, tail)) = rest.split_first_chunk::<LENGTH_BYTES>() {
        let (record, tail) = tail.split_at(record::length(head, MAX_MESSAGE_BYTES).unwrap());
        if let Ok(Message::Flushed { id }) = Message::decode(record) {
            answered.insert(id);
        }
        rest = tail;
    }
    answered
}

// For each partition all of them were gone over.
#[test]
fn flushes_of_many_partitions_of_which_nothing_can_be_sent_are_answered_together() {
    const PARTITIONS: u32 = 500;
    let mut home = asked_for_many(PARTITIONS);
    (0..PARTITIONS).for_each(|table| bring(&mut home, table));
    assert_eq!(answered(&mut home), (1..=u64::from(PARTITIONS)).collect());
    assert_eq!(answered(&mut home), BTreeSet::new(), "once");
}

// A server heard millions of questions of a peer whose connection had been reset, and meanwhile nobody else.
#[test]
fn what_a_peer_asks_that_cannot_be_answered_is_not_done_and_what_it_sets_counts() {
    let (mut net, mut producer) = Net::subscribed(1, Propagation::Eager);
    let mut home = asked_for_many(1);
    let taken = |home: &mut Node<Here>| home.host().account.peer(ONE).taken(Resource::Entries);
    let before = taken(&mut home);
    bring(&mut home, 0);
    assert_eq!(taken(&mut home), before + 1);
    home.stop_answering(ONE);
    bring(&mut home, 0);
    let partition = PartitionId { table: 0, rank: 1 };
    let places = RowSet::from_rows([0]);
    say(&mut home, ONE, &Message::Fetch { partition, ticket: 2, version: 9, places }).unwrap();
    (1..100).for_each(|id| say(&mut home, ONE, &Message::Flush { id }).unwrap());
    assert_eq!((taken(&mut home), answered(&mut home)), (before, BTreeSet::new()));
    home.connected(ONE);
    say(&mut home, ONE, &Message::Flush { id: 100 }).unwrap();
    assert_eq!(answered(&mut home), BTreeSet::from([100]), "on another connection");

    set(&mut producer, 1, &[0], 5);
    net.home.stop_answering(PRODUCER);
    let node = net.workers.get_mut(&PRODUCER).unwrap();
    assert!(Net::pass(node, HOME, &mut net.home, PRODUCER, usize::MAX));
    net.home.lost(PRODUCER);
    net.silent.insert(PRODUCER);
    net.settle();
    assert_eq!(net.seen_by(ONE), [5]);
}

// It was answered before the last rows of a producer that had gone, and old ones were taken for the last.
#[test]
fn what_is_to_be_brought_of_a_source_that_has_gone_waits_for_what_it_has_left() {
    let (mut net, mut producer) = Net::subscribed(1, Propagation::Eager);
    set(&mut producer, 1, &[0], 5);
    net.home.stop_answering(PRODUCER);
    say(&mut net.home, ONE, &Message::Bring { id: 7, partition: ID }).unwrap();
    assert_eq!(answered(&mut net.home), BTreeSet::new());
    let node = net.workers.get_mut(&PRODUCER).unwrap();
    assert!(Net::pass(node, HOME, &mut net.home, PRODUCER, usize::MAX));
    assert_eq!(answered(&mut net.home), BTreeSet::new());
    net.home.lost(PRODUCER);
    assert_eq!(answered(&mut net.home), BTreeSet::from([7]));
}
