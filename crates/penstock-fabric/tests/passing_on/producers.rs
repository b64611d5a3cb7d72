//! Whom a producer delays that brings nothing, leaves rows torn or says that sets were undone: those who ask for its own rows,
//! and nobody else.

use crate::net::*;
use penstock_fabric::items::partition::Writer;
use penstock_proto::account::{Account, Limits, Resource};
use penstock_proto::items::node::{Broken, Node};
use penstock_proto::items::wire::{Encoder, Entry, Head, Message, PartitionId, Shape};
use penstock_proto::items::{Propagation, RowSet};
use penstock_proto::peer::PeerId;
use penstock_proto::record::LENGTH_BYTES;
use std::collections::BTreeSet;
use std::rc::Rc;

/// An honest producer, of as many rows.
const OTHER: PeerId = PeerId::worker(8);
const OTHERS: PartitionId = PartitionId { table: 0, rank: 8 };

/// A worker that consumes of both producers.
fn consume_of_both(net: &mut Net, peer: PeerId) {
    net.consume(peer);
    let (shape, rows) = (net.shape, RowSet::from_rows(0..net.shape.slots.into()));
    let memory = Watched { memory: mirror(shape.slots), between: Rc::default() };
    net.workers.get_mut(&peer).unwrap().consume(OTHERS, HOME, shape, rows, memory);
}

/// What a worker has of the honest producer's rows.
fn seen_of_other(net: &mut Net, peer: PeerId) -> Vec<u64> {
    values(net.workers.get_mut(&peer).unwrap().memory(OTHERS).unwrap().memory.rows())
}

// It waited as long as the producer was there: no consumer passed a barrier or left, and it was blamed for it.
#[test]
fn a_flush_waits_for_no_row_that_a_producer_which_is_there_leaves_torn() {
    for slots in [3, 256] {
        let mut net = Net::new(slots, Propagation::Eager);
        let (mut producer, mut other) = (writer(slots), writer(slots));
        let between = net.watch(&producer);
        let memory = Watched { memory: followed(other.rows()), between: Rc::default() };
        net.home.produce(OTHERS, OTHER, net.shape, memory, None);
        [ONE, TWO].into_iter().for_each(|peer| consume_of_both(&mut net, peer));
        let all: Vec<u32> = (0..slots).collect();
        set(&mut producer, 1, &all, 5);
        net.settle();
        between.borrow_mut().torn = Some(1);
        set(&mut producer, 2, &all, 6);
        set(&mut other, 1, &all, 7);
        for peer in [ONE, TWO] {
            assert_eq!(net.brings(peer, ID), Some(false), "{slots} rows: nobody takes old rows for new ones");
            assert!(net.delivers(peer), "{slots} rows: what it set itself is there");
            assert_eq!(net.brings(peer, OTHERS), Some(true), "{slots} rows: nor does another producer's");
            assert_eq!(seen_of_other(&mut net, peer), vec![7; slots as usize], "{slots} rows: N-2");
            assert_eq!(net.seen_by(peer), vec![5; slots as usize], "{slots} rows: N-1");
        }
        // Once they are whole all is as ever, also for flushes that were given up.
        between.borrow_mut().torn = None;
        net.settle();
        assert!(net.flushes(ONE) && net.flushes(TWO));
        assert_eq!(net.seen_by(ONE), vec![6; slots as usize], "{slots} rows: N-2");
    }
}

// The same.
#[test]
fn a_flush_waits_for_no_source_that_offers_rows_and_brings_none() {
    let mut net = Net::new(2, Propagation::Eager);
    let (shape, mut other) = (net.shape, writer(2));
    net.home.connected(PRODUCER);
    say(&mut net.home, PRODUCER, &Message::Offer { partition: ID, shape }).unwrap();
    let memory = Watched { memory: followed(other.rows()), between: Rc::default() };
    net.join(OTHER).produce(OTHERS, OTHER, shape, memory, Some(HOME));
    [ONE, TWO].into_iter().for_each(|peer| consume_of_both(&mut net, peer));
    net.settle();
    set(&mut other, 1, &[0, 1], 7);
    for peer in [ONE, TWO] {
        assert!(net.delivers(peer) && net.delivers(OTHER));
        assert_eq!(net.brings(peer, OTHERS), Some(true));
        assert_eq!(seen_of_other(&mut net, peer), [7, 7], "N-2");
        assert_eq!(net.brings(peer, ID), Some(false), "what it has set nobody knows");
    }
    let asked = net.workers.get_mut(&ONE).unwrap().bring(ID).unwrap();
    net.go(PRODUCER);
    net.settle();
    assert!(net.workers.get_mut(&ONE).unwrap().host().flushed.contains(&asked), "it can set nothing more");
    assert_eq!(net.brings(TWO, ID), Some(true));
}

// A server's thread may hear its readers before it hears that a producer of its host has made its rows.
#[test]
fn who_asks_for_rows_that_have_not_come_to_their_home_yet_waits_for_them() {
    for propagation in [Propagation::Eager, Propagation::Lazy, Propagation::Bounded] {
        let mut net = Net::new(2, propagation);
        let mut producer = writer(2);
        set(&mut producer, 1, &[0, 1], 5);
        [ONE, TWO].into_iter().for_each(|peer| net.consume(peer));
        let asked =
            [ONE, TWO, ONE].map(|peer| (peer, net.workers.get_mut(&peer).unwrap().bring(ID).unwrap()));
        net.settle();
        net.reconnect(TWO);
        net.settle();
        let flushed = |net: &mut Net, peer| net.workers.get_mut(&peer).unwrap().host().flushed.clone();
        assert!(flushed(&mut net, ONE).is_empty() && flushed(&mut net, TWO).is_empty(), "{propagation:?}");
        net.watch(&producer);
        net.settle();
        for (peer, id) in asked {
            assert!(flushed(&mut net, peer).contains(&id), "{propagation:?}");
        }
        if propagation == Propagation::Eager {
            assert_eq!((net.seen_by(ONE), net.seen_by(TWO)), (vec![5, 5], vec![5, 5]), "N-6");
        }
    }
}

// The worker that was to make them has gone, perhaps before it was ever here.
#[test]
fn who_asks_for_rows_that_nobody_has_made_is_told_once_all_that_was_made_is_known() {
    let mut net = Net::new(2, Propagation::Eager);
    [ONE, TWO].into_iter().for_each(|peer| net.consume(peer));
    assert_eq!((net.brings(ONE, ID), net.brings(TWO, ID)), (Some(false), Some(false)));
    let asked = net.workers.get_mut(&ONE).unwrap().bring(ID).unwrap();
    net.reconnect(TWO);
    net.settle();
    net.home.answer_waiting(|_| false);
    net.settle();
    assert!(net.workers.get_mut(&ONE).unwrap().host().flushed.contains(&asked));
    assert_eq!(net.workers.get_mut(&TWO).unwrap().host().flushed.len(), 1);
}

// Its home could not map them: nobody knows what was set.
#[test]
fn who_asks_for_rows_that_their_home_cannot_read_is_not_told_that_they_were_brought() {
    let mut net = Net::new(2, Propagation::Eager);
    consume_of_both(&mut net, ONE);
    let [lacking, other] =
        [ID, OTHERS].map(|partition| net.workers.get_mut(&ONE).unwrap().bring(partition).unwrap());
    net.settle();
    for _ in 0..2 {
        net.home.answer_waiting(|id| *id == ID);
        net.settle();
        assert_eq!(net.workers.get_mut(&ONE).unwrap().host().flushed, BTreeSet::from([other]));
    }
    net.home.drop_table(ID.table);
    net.settle();
    assert_eq!(net.workers.get_mut(&ONE).unwrap().host().flushed, BTreeSet::from([lacking, other]));
}

// What a worker had asked when its line broke, and what of that is answered together.
#[test]
fn flushes_of_rows_that_do_not_come_are_answered_together_once_they_come_over_whichever_connection() {
    let mut net = Net::new(2, Propagation::Eager);
    let mut producer = writer(2);
    let between = net.watch(&producer);
    net.consume(ONE);
    net.settle();
    between.borrow_mut().torn = Some(0);
    set(&mut producer, 1, &[0, 1], 5);
    let mut asked = Vec::new();
    for turn in 0..6 {
        asked.push(net.workers.get_mut(&ONE).unwrap().bring(ID).unwrap());
        net.settle();
        if turn % 2 == 1 {
            net.reconnect(ONE);
        }
    }
    assert!(net.workers.get_mut(&ONE).unwrap().host().flushed.is_empty());
    between.borrow_mut().torn = None;
    net.settle();
    assert_eq!(net.workers.get_mut(&ONE).unwrap().host().flushed, asked.into_iter().collect());
    assert_eq!(net.seen_by(ONE), [5, 5]);
}

// Each was kept until the rows came: a worker whose gets failed for its producer was lost for what it had asked.
#[test]
fn who_asks_again_and_again_for_rows_that_do_not_come_is_charged_once() {
    let account = Account::new(Limits::NONE.with(Resource::Bytes, 64 << 10));
    let mut home = Node::new(Here { account: account.clone(), ..Here::default() });
    [PRODUCER, ONE].into_iter().for_each(|peer| home.connected(peer));
    let shape = Shape { slots: 2, row_bytes: ROW_BYTES, propagation: Propagation::Eager };
    say(&mut home, PRODUCER, &Message::Offer { partition: ID, shape }).unwrap();
    let rows = RowSet::from_rows([0, 1]);
    say(&mut home, ONE, &Message::Subscribe { partition: ID, shape, done: 0, serial: 1, rows }).unwrap();
    let mut once = None;
    for id in 1..10_000 {
        say(&mut home, ONE, &Message::Bring { id, partition: ID }).unwrap();
        let now = (account.taken(Resource::Bytes), account.taken(Resource::Entries));
        assert_eq!(now, *once.get_or_insert(now), "{id}");
    }
}

/// One row of a partition, as its source sends it in a batch.
fn a_batch(head: Head, number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut message = Encoder::rows(&mut bytes, ID, &head);
    let value = [9; ROW_BYTES as usize];
    message.entry(&Entry { place: 0, count: 1, number, clock: 1, as_of: 0, value: Some(&value) }, false);
    message.end();
    bytes.split_off(LENGTH_BYTES)
}

// The home's rows were torn from then on, for all that subscribed later.
#[test]
fn a_source_that_says_that_sets_were_undone_breaks_the_protocol() {
    let whole = Head { serial: 2, first: true, last: true, ..Head::default() };
    let (begun, ends) = (Head { last: false, ..whole }, Head { first: false, ..whole });
    for again in [false, true] {
        let mut net = Net::new(2, Propagation::Eager);
        let shape = net.shape;
        net.home.connected(PRODUCER);
        say(&mut net.home, PRODUCER, &Message::Offer { partition: ID, shape }).unwrap();
        net.consume_some(ONE, RowSet::from_rows([0]));
        net.settle();
        net.home.receive(PRODUCER, &a_batch(Head { done: 5, ..whole }, 5)).unwrap();
        let said = match again {
            false => net.home.receive(PRODUCER, &a_batch(Head { done: 4, ..whole }, 4)),
            // Also for one who wants more of its rows.
            true => {
                net.consume(TWO);
                net.settle();
                net.home.receive(PRODUCER, &a_batch(Head { done: 4, serial: 3, ..whole }, 4))
            }
        };
        assert_eq!(said, Err(Broken::Nonsense("rows as of an earlier set than before")));
        net.home.lost(PRODUCER);
        net.home.forget(PRODUCER);
        assert!(net.flushes(ONE));
        net.consume(TWO);
        assert!(net.flushes(TWO));
        let row = u64::from_le_bytes([9; 8]);
        assert_eq!((net.seen_by(ONE), net.seen_by(TWO)), (vec![row], vec![row, 0]));
    }
    let mut net = Net::new(2, Propagation::Eager);
    let shape = net.shape;
    net.home.connected(PRODUCER);
    say(&mut net.home, PRODUCER, &Message::Offer { partition: ID, shape }).unwrap();
    net.consume(ONE);
    net.settle();
    net.home.receive(PRODUCER, &a_batch(Head { done: 5, ..begun }, 5)).unwrap();
    let said = net.home.receive(PRODUCER, &a_batch(Head { done: 9, ..ends }, 9));
    assert_eq!(said, Err(Broken::Nonsense("a batch that ends as of another set than it began")));
}

// Its home passed that on, and its consumers took the home for one that breaks the protocol.
#[test]
fn whom_a_producer_tells_in_its_memory_that_sets_were_undone_does_not_lose_its_home_for_it() {
    let mut net = Net::new(2, Propagation::Eager);
    let mut producer = writer(2);
    let between = net.watch(&producer);
    net.consume(ONE);
    set(&mut producer, 1, &[0, 1], 5);
    net.settle();
    between.borrow_mut().unfinished = true;
    net.reconnect(ONE);
    net.settle();
    assert!(net.delivers(ONE));
    assert_eq!(net.brings(ONE, ID), Some(false), "for what it says next nobody knows");
    net.go(PRODUCER);
    assert!(net.flushes(ONE));
    assert_eq!(net.seen_by(ONE), [5, 5]);
    // Who comes new takes what there is.
    net.consume(TWO);
    assert!(net.flushes(TWO));
}

/// A cheap stream of numbers.
fn chance(state: &mut u64, of: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % of
}

/// A peer and its home exchange what they have, or their line breaks in the middle of it.
fn exchange(net: &mut Net, peer: PeerId, state: &mut u64) {
    let breaks = chance(state, 6) == 0;
    let most = if breaks { chance(state, 3) as usize } else { usize::MAX };
    let node = net.workers.get_mut(&peer).unwrap();
    match chance(state, 2) {
        0 => Net::pass(node, HOME, &mut net.home, peer, most),
        _ => Net::pass(&mut net.home, peer, node, HOME, most),
    };
    if breaks {
        net.reconnect(peer);
    }
}

// As at a barrier: the producer delivers, and then the others ask for its rows. N-2, N-5, N-6.
#[test]
fn what_a_producer_had_delivered_is_there_once_who_asks_for_its_rows_has_an_answer() {
    let peers = [PRODUCER, ONE, TWO];
    for seed in 0..400 {
        let (mut net, mut producer) = Net::subscribed(3, Propagation::Eager);
        let state = &mut (seed * 7919 + 1);
        for value in 1..6 {
            // One who comes later, and wants rows that nobody wanted before.
            if value == 2 {
                let some = chance(state, 3);
                net.consume_some(ONE, RowSet::from_rows([some]));
                net.consume(TWO);
            }
            set(&mut producer, value, &[0, 1, 2], value);
            let consumers = if value < 2 { &peers[1..2] } else { &peers[1..] };
            let mut asked: Vec<(PeerId, u64)> =
                vec![(PRODUCER, net.workers.get_mut(&PRODUCER).unwrap().flush(HOME))];
            for asks in [true, false] {
                let mut turns = 0;
                while let Some(&(peer, id)) = asked.last() {
                    if net.workers.get_mut(&peer).unwrap().host().flushed.contains(&id) {
                        asked.pop();
                        continue;
                    }
                    let one = peers[chance(state, 3) as usize];
                    if net.workers.contains_key(&one) {
                        exchange(&mut net, one, state);
                    }
                    turns += 1;
                    assert!(turns < 100_000, "seed {seed}: a flush of {peer} does not come back");
                }
                if asks {
                    let mut bring = |&peer| (peer, net.workers.get_mut(&peer).unwrap().bring(ID).unwrap());
                    asked = consumers.iter().map(&mut bring).collect();
                }
            }
            for &peer in consumers {
                let seen = net.seen_by(peer);
                assert!(seen.iter().all(|&it| it == value), "seed {seed}: {peer} has {seen:?}, not {value}");
            }
        }
    }
}

// A worker that was lost went on being heard about its rows: their home followed the memory that it shares.
#[test]
fn what_a_producer_sets_once_it_was_lost_is_passed_on_to_nobody() {
    for propagation in [Propagation::Eager, Propagation::Bounded, Propagation::Lazy] {
        let (mut net, mut producer) = Net::producing(2, propagation, true);
        net.consume(ONE);
        net.settle();
        set(&mut producer, 1, &[0, 1], 5);
        net.want_version(ONE, 2, 1);
        net.settle();
        assert_eq!(net.seen_by(ONE), [5, 5], "{propagation}");
        set(&mut producer, 2, &[0], 6);
        net.go(PRODUCER);
        set(&mut producer, 3, &[1], 7);
        net.settle();
        let last = if propagation == Propagation::Eager { 6 } else { 5 };
        assert_eq!(net.seen_by(ONE), [last, 5], "{propagation}");
    }
}

// The row that was due when it was lost came as its next set had left it, and the other row of that set never.
#[test]
fn no_part_of_a_set_that_a_producer_makes_once_it_was_lost_takes_the_place_of_what_was_due() {
    let (mut net, mut producer) = Net::producing(2, Propagation::Eager, true);
    net.consume(ONE);
    net.settle();
    set(&mut producer, 1, &[0, 1], 5);
    net.settle();
    net.silent.insert(ONE);
    set(&mut producer, 2, &[0], 6);
    net.settle();
    net.go(PRODUCER);
    set(&mut producer, 3, &[0, 1], 7);
    net.silent.clear();
    net.settle();
    assert_eq!(net.seen_by(ONE)[1], 5);
    assert_ne!(net.seen_by(ONE)[0], 7, "its set was {{0, 1}}");
}

/// The rows after each of some sets, of which one has the rows of a range and all its rows have its value.
fn history(slots: u32, sets: &[(std::ops::Range<u32>, u64)]) -> Vec<Vec<u64>> {
    let mut rows = vec![0; slots as usize];
    let after = sets.iter().map(|(range, value)| {
        rows[range.start as usize..range.end as usize].fill(*value);
        rows.clone()
    });
    after.collect()
}

/// A producer near its home makes some sets. One consumer has the first two, and another the first only, since its line was busy,
/// when the producer is lost; it makes the rest before it hears of that.
fn lost_behind_the_second(sets: &[(std::ops::Range<u32>, u64)], slots: u32) -> (Net, Writer) {
    let (mut net, mut producer) = Net::producing(slots, Propagation::Eager, true);
    [ONE, TWO].into_iter().for_each(|peer| net.consume(peer));
    net.settle();
    for (at, (rows, value)) in sets.iter().enumerate() {
        set(&mut producer, at as u64 + 1, &rows.clone().collect::<Vec<u32>>(), *value);
        match at {
            0 => {
                net.settle();
                net.silent.insert(ONE);
            }
            1 => {
                net.settle();
                net.go(PRODUCER);
            }
            _ => {}
        }
    }
    net.silent.clear();
    (net, producer)
}

// The rows that were overwritten twice were left out, and the rest of the set that was due went out: half a set.
#[test]
fn what_was_due_of_a_lost_producer_comes_as_it_was_at_some_moment_however_much_it_sets_later() {
    for slots in [2, 3, 256, 300] {
        let (all, one, last, most) = (0..slots, 0..1, slots - 1..slots, 0..slots - 1);
        let later = [
            vec![one.clone(), one.clone()],
            vec![one.clone(), last.clone()],
            vec![last.clone(), last, one.clone(), one.clone(), one.clone()],
            vec![all.clone(), all.clone()],
            vec![all.clone(), one.clone()],
            vec![one.clone(), all.clone(), one],
            vec![most.clone(), most.clone(), most],
        ];
        for later in later {
            let sets = [all.clone(), all.clone()].into_iter().chain(later.iter().cloned());
            let sets: Vec<_> = sets.zip(5..).collect();
            let (mut net, _producer) = lost_behind_the_second(&sets, slots);
            assert!(net.flushes(ONE) && net.flushes(TWO), "{slots} rows, {later:?}");
            let (history, seen) = (history(slots, &sets), net.seen_by(ONE));
            let found = history[1..].contains(&seen);
            assert!(found, "{slots} rows, {later:?}: I-3: {seen:?}");
            assert_eq!(net.seen_by(TWO), history[1], "{slots} rows, {later:?}: what it had is not followed");
        }
    }
}

#[test]
fn of_a_lost_producer_that_sets_rows_without_end_no_half_set_is_passed_on() {
    for slots in [2, 256] {
        let mut net = Net::new(slots, Propagation::Eager);
        let mut producer = writer(slots);
        let between = net.watch(&producer);
        net.consume(ONE);
        net.settle();
        let all: Vec<u32> = (0..slots).collect();
        set(&mut producer, 1, &all, 5);
        net.settle();
        net.silent.insert(ONE);
        set(&mut producer, 2, &all, 6);
        net.settle();
        net.go(PRODUCER);
        let mut value = 6;
        between.borrow_mut().before_read = Some(Box::new(move || {
            for _ in 0..2 {
                value += 1;
                set(&mut producer, value, &all[..all.len() - 1], value);
            }
        }));
        net.silent.clear();
        assert_eq!(net.brings(ONE, ID), Some(false), "{slots} rows: nobody takes old rows for new ones");
        assert_eq!(net.seen_by(ONE), vec![5; slots as usize], "{slots} rows: N-1");
        between.borrow_mut().before_read = None;
        assert!(net.flushes(ONE), "{slots} rows");
        let (mut seen, last) = (net.seen_by(ONE), slots as usize - 1);
        assert_eq!(seen.remove(last), 6, "{slots} rows");
        assert!(seen.iter().all(|&value| value == seen[0] && value > 6), "{slots} rows: {seen:?}");
    }
}

// Who passes rows on takes a source that goes back behind what it has sent for one that breaks the protocol.
#[test]
fn who_asks_for_other_rows_of_a_lost_producer_is_sent_them_as_of_no_earlier_set_than_before() {
    let sets = [(0..2, 5), (0..2, 6), (0..1, 7), (0..1, 8)];
    let (mut net, _producer) = lost_behind_the_second(&sets, 2);
    net.settle();
    assert_eq!(net.seen_by(ONE), [8, 6]);
    let (shape, rows) = (net.shape, RowSet::from_rows([1]));
    let subscribe = Message::Subscribe { partition: ID, shape, done: 0, serial: 9, rows };
    say(&mut net.home, ONE, &subscribe).unwrap();
    let bytes = Net::sent(&mut net.home, ONE);
    let (_, record) = bytes.split_first_chunk::<LENGTH_BYTES>().unwrap();
    let message = Message::decode(record).unwrap();
    assert!(matches!(&message, Message::Rows { head, .. } if head.done == 4), "{message:?}");
}

// When it was lost once more, what it had set meanwhile was taken for due, and some of it came.
#[test]
fn a_producer_that_is_lost_twice_ends_where_it_was_lost_first() {
    let sets = [(0..2, 5), (0..1, 6), (0..2, 7)];
    let (mut net, _producer) = lost_behind_the_second(&sets, 2);
    net.home.forget(PRODUCER);
    net.settle();
    assert_eq!((net.seen_by(ONE), net.seen_by(TWO)), (vec![6, 5], vec![6, 5]));
}

// A consumer of rows by themselves was sent what the producer set once it was lost.
#[test]
fn a_row_that_is_needed_of_a_lost_producer_comes_as_it_was_then_or_later_where_that_is_overwritten() {
    for (later, expected) in [(1, 5), (2, 7)] {
        let mut net = Net::new(2, Propagation::Bounded);
        let mut producer = writer(2);
        let between = net.watch(&producer);
        net.consume(ONE);
        net.settle();
        set(&mut producer, 2, &[0, 1], 5);
        net.silent.insert(ONE);
        net.want_version(ONE, 2, 2);
        // Begun when it is lost, and finished later.
        between.borrow_mut().unfinished = true;
        set(&mut producer, 3, &[0], 6);
        net.settle();
        net.go(PRODUCER);
        between.borrow_mut().unfinished = false;
        (1..later).for_each(|_| set(&mut producer, 4, &[0], 7));
        net.silent.clear();
        assert!(net.flushes(ONE), "{later}");
        assert_eq!(net.seen_by(ONE), [expected, 5], "{later}");
    }
}
