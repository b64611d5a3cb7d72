//! Which rows come to whom, also when their producer does something between two looks, leaves, or has gone.

use crate::net::*;
use penstock_proto::account::Resource;
use penstock_proto::items::node::Broken;
use penstock_proto::items::wire::{Message, Shape};
use penstock_proto::items::{Propagation, RowSet};
use penstock_proto::peer::{PeerId, Role};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// A row is set once, and then the change log comes round, all between a node's look at what is finished and at the change log.
fn a_row_is_not_lost(propagation: Propagation) {
    let mut net = Net::new(2, propagation);
    let producer = Rc::new(RefCell::new(writer(2)));
    let between = Rc::<RefCell<Between>>::default();
    let memory = followed(producer.borrow().rows());
    net.home.produce(ID, PRODUCER, net.shape, Watched { memory, between: Rc::clone(&between) }, None);
    // It does not consume the row that comes round, so nothing tells that it has looked too early.
    net.consume_some(ONE, RowSet::from_rows([1]));
    if propagation == Propagation::Bounded {
        net.workers.get_mut(&ONE).unwrap().need(ID, vec![1]);
    }
    net.settle();
    set(&mut producer.borrow_mut(), 0, &[1], 10);
    let before = {
        let producer = Rc::clone(&producer);
        move || {
            let mut producer = producer.borrow_mut();
            set(&mut producer, 1, &[1], 1);
            (0..100).for_each(|value| set(&mut producer, 1, &[0], value));
        }
    };
    // The first look at the change log is that of `collect_all`; the second that of the batch.
    let again = Rc::clone(&between);
    let mut before = Some(Box::new(before) as Box<dyn FnMut()>);
    between.borrow_mut().before_change_log =
        Some(Box::new(move || again.borrow_mut().before_change_log = before.take()));
    net.settle();
    assert!(between.borrow().before_change_log.is_none(), "it has happened");
    assert_eq!(net.seen_by(ONE), [1], "N-2, N-4");
}

#[test]
fn an_eager_row_is_not_lost_where_the_change_log_comes_round_between_two_looks() {
    a_row_is_not_lost(Propagation::Eager);
}

#[test]
fn a_bounded_row_is_not_lost_where_the_change_log_comes_round_between_two_looks() {
    a_row_is_not_lost(Propagation::Bounded);
}

#[test]
fn who_subscribes_while_a_set_is_logged_but_not_finished_gets_its_row() {
    let mut net = Net::new(2, Propagation::Eager);
    let mut producer = writer(2);
    let between = net.watch(&producer);
    net.consume(ONE);
    net.settle();
    set(&mut producer, 1, &[1], 5);
    between.borrow_mut().unfinished = true;
    net.settle();
    assert_eq!(net.seen_by(ONE), [0, 0]);
    assert!(net.flushes(ONE), "what is not finished is not waited for");
    net.consume(TWO);
    net.settle();
    between.borrow_mut().unfinished = false;
    net.settle();
    assert_eq!((net.seen_by(ONE), net.seen_by(TWO)), (vec![0, 5], vec![0, 5]), "N-2");
}

#[test]
fn a_follower_gets_the_rows_and_nobody_waits_for_it() {
    for propagation in [Propagation::Eager, Propagation::Bounded, Propagation::Lazy] {
        let (mut net, mut producer) = Net::subscribed(2, propagation);
        net.consume(FOLLOWER);
        net.settle();
        [ONE, FOLLOWER].into_iter().for_each(|peer| net.want(peer));
        net.settle();
        // From now on it reads nothing and says nothing.
        net.silent.insert(FOLLOWER);
        set(&mut producer, 1, &[0, 1], 5);
        producer.raise(1);
        net.settle();
        assert_eq!(net.seen_by(ONE), [5, 5], "{propagation}: the consumer has them");
        assert!(net.flushes(PRODUCER) && net.flushes(ONE), "{propagation}: nobody's flush waits for it");
        assert_eq!(net.seen_by(FOLLOWER), [0, 0], "{propagation}");
        net.silent.clear();
        net.settle();
        assert_eq!(net.seen_by(FOLLOWER), [5, 5], "{propagation}");
        // What it has asked for is there for it as it is for a worker.
        net.home.forget(ONE);
        assert_eq!(net.home.forget(PRODUCER), BTreeSet::new(), "{propagation}");
        assert_eq!(net.home.forget(FOLLOWER), BTreeSet::from([ID]), "{propagation}");
    }
}

#[test]
fn a_worker_that_comes_again_is_sent_nothing_that_was_owed_to_the_first() {
    let again = PeerId { incarnation: 1, ..ONE };
    for propagation in [Propagation::Eager, Propagation::Bounded, Propagation::Lazy] {
        let (mut net, mut producer) = Net::subscribed(2, propagation);
        net.want(ONE);
        net.settle();
        net.silent.insert(ONE);
        set(&mut producer, 1, &[0, 1], 5);
        producer.raise(1);
        net.settle();
        // The first is owed the rows now, and what stands on its connection is not read.
        let sent = |net: &mut Net, peer| {
            let mut bytes = Vec::new();
            net.home.transmit(peer, &mut bytes, 1 << 20);
            bytes
        };
        net.join(again);
        net.settle();
        assert_eq!(sent(&mut net, again), [], "{propagation}: it has asked for nothing");
        assert_ne!(sent(&mut net, ONE), [], "{propagation}: the first still has a connection");
        net.home.lost(ONE);
        net.home.forget(ONE);
        assert_eq!(sent(&mut net, again), [], "{propagation}: it does not inherit either");
        assert_eq!(sent(&mut net, ONE), [], "{propagation}");
        net.consume(again);
        net.want(again);
        net.settle();
        assert_eq!((net.seen_by(again), net.seen_by(ONE)), (vec![5, 5], vec![0, 0]), "{propagation}");
    }
}

#[test]
fn only_the_worker_that_began_them_offers_its_rows() {
    let (mut net, _producer) = Net::subscribed(2, Propagation::Eager);
    let shape = net.shape;
    let offer = Message::Offer { partition: ID, shape };
    let again = PeerId { incarnation: 1, ..PRODUCER };
    for (peer, said) in [
        (again, "an offer of rows that are here"),
        (ONE, "an offer of another worker's rows"),
        (PeerId { role: Role::Follower, ..PRODUCER }, "an offer of another worker's rows"),
    ] {
        net.home.connected(peer);
        assert_eq!(say(&mut net.home, peer, &offer), Err(Broken::Nonsense(said)), "{peer}");
    }
    // They are not asked for any more, and the first has gone for good: then they are another's to offer, and last as
    // long as that one.
    net.home.forget(ONE);
    assert_eq!(net.home.forget(PRODUCER), BTreeSet::from([ID]));
    assert_eq!(say(&mut net.home, again, &offer), Ok(()));
    net.home.forget(TWO);
    assert!(net.home.memory(ID).is_some(), "that the first has gone does not concern them");
    assert_eq!(net.home.forget(again), BTreeSet::from([ID]));
}

// What its producer had offered was replaced, and peers that had subscribed were lost with its next word.
#[test]
fn rows_that_are_here_are_not_replaced_by_others() {
    let (mut net, mut producer) = Net::subscribed(2, Propagation::Eager);
    let memory = Watched { memory: followed(writer(2).rows()), between: Rc::default() };
    net.home.produce(ID, PRODUCER, net.shape, memory, None);
    set(&mut producer, 1, &[0, 1], 5);
    net.settle();
    assert!(net.flushes(ONE));
    assert_eq!(net.seen_by(ONE), [5, 5]);
}

#[test]
fn who_wants_other_rows_of_a_producer_that_has_gone_gets_what_had_come_and_delays_nobody() {
    let mut net = Net::new(2, Propagation::Eager);
    let (shape, mut producer) = (net.shape, writer(2));
    let memory = Watched { memory: followed(producer.rows()), between: Rc::default() };
    net.join(PRODUCER).produce(ID, PRODUCER, shape, memory, Some(HOME));
    net.consume_some(ONE, RowSet::from_rows([0]));
    set(&mut producer, 1, &[0, 1], 5);
    net.settle();
    net.workers.remove(&PRODUCER);
    net.home.lost(PRODUCER);
    assert_eq!(net.home.forget(PRODUCER), BTreeSet::new());
    net.consume(TWO);
    assert!(net.flushes(ONE) && net.flushes(TWO));
    assert_eq!((net.seen_by(ONE), net.seen_by(TWO)), (vec![5], vec![5, 0]));
}

#[test]
fn fetches_of_rows_whose_producer_has_gone_are_given_back() {
    let (mut net, _producer) = Net::subscribed(4, Propagation::Lazy);
    let entries = |net: &mut Net| net.home.host().account.peer(ONE).taken(Resource::Entries);
    let before = entries(&mut net);
    net.workers.get_mut(&ONE).unwrap().fetch(ID, &RowSet::from_rows(0..4), 9);
    net.settle();
    assert_eq!(entries(&mut net), before + 2, "here, and of the source");
    net.workers.remove(&PRODUCER);
    net.home.lost(PRODUCER);
    net.home.forget(PRODUCER);
    net.settle();
    assert_eq!(entries(&mut net), before, "nobody is asked any more, and nobody can answer");
    net.home.lost(ONE);
    assert_eq!(entries(&mut net), 0);
}

// What no other wanted was not asked of the producer any more as soon as another came again, and the peer that had been away
// took what was left.
#[test]
fn who_was_away_while_a_producer_left_finds_all_its_rows_as_they_were_set_last() {
    for propagation in [Propagation::Eager, Propagation::Bounded, Propagation::Lazy] {
        for lost in [false, true].into_iter().filter(|lost| !lost || propagation == Propagation::Eager) {
            let (mut net, mut producer) = Net::subscribed(3, propagation);
            net.consume_some(TWO, RowSet::from_rows([1]));
            net.settle();
            set(&mut producer, 1, &[0, 1, 2], 5);
            producer.raise(1);
            net.want_version(ONE, 3, 1);
            net.settle();
            net.home.lost(ONE);
            net.silent.insert(ONE);
            net.reconnect(TWO);
            net.settle();
            set(&mut producer, 2, &[0, 1, 2], 6);
            producer.raise(2);
            if lost {
                net.settle();
            } else {
                leave(&mut net, &mut |_, _| false);
            }
            net.go(PRODUCER);
            net.silent.clear();
            net.reconnect(ONE);
            net.want_version(ONE, 3, 2);
            assert!(net.flushes(ONE));
            assert_eq!(net.seen_by(ONE), [6, 6, 6], "{propagation}, lost: {lost}");
        }
    }
}

#[test]
fn who_waited_for_rows_and_was_away_when_they_came_and_their_producer_left_finds_them() {
    for propagation in [Propagation::Eager, Propagation::Bounded, Propagation::Lazy] {
        let mut net = Net::new(2, propagation);
        net.consume(ONE);
        net.settle();
        net.home.lost(ONE);
        net.silent.insert(ONE);
        let (shape, mut producer) = (net.shape, writer(2));
        let memory = Watched { memory: followed(producer.rows()), between: Rc::default() };
        net.join(PRODUCER).produce(ID, PRODUCER, shape, memory, Some(HOME));
        net.settle();
        set(&mut producer, 1, &[0, 1], 5);
        producer.raise(1);
        leave(&mut net, &mut |_, _| false);
        net.go(PRODUCER);
        net.silent.clear();
        net.reconnect(ONE);
        net.want_version(ONE, 2, 1);
        assert!(net.flushes(ONE));
        assert_eq!(net.seen_by(ONE), [5, 5], "{propagation}");
    }
}

// All that was under way was begun anew: consumers whose lines broke now and then kept each other from having anything.
#[test]
fn rows_under_way_to_a_consumer_come_though_another_that_has_fetched_some_breaks_or_goes() {
    const ROWS: u32 = 8_000; // several messages
    let all = RowSet::from_ranges(std::iter::once(0..ROWS.into()));
    for propagation in [Propagation::Bounded, Propagation::Lazy] {
        for goes in [true, false] {
            let (mut net, mut producer) = Net::producing(ROWS, propagation, false);
            [ONE, TWO].into_iter().for_each(|peer| net.consume(peer));
            for peer in [TWO, ONE] {
                assert!(net.workers.get_mut(&peer).unwrap().fetch(ID, &all, 1).is_some());
                net.settle();
            }
            set(&mut producer, 1, &(0..ROWS).collect::<Vec<u32>>(), 5);
            let mut first = Vec::new();
            let node = net.workers.get_mut(&PRODUCER).unwrap();
            assert!(node.transmit(HOME, &mut first, 1), "the rest is under way");
            let rest = Net::sent(node, HOME);
            Net::arrive(&first, &mut net.home, PRODUCER, usize::MAX);
            if goes {
                net.go(ONE)
            } else {
                net.reconnect(ONE)
            }
            assert!(!Net::sent(&mut net.home, PRODUCER).is_empty(), "it hears what is not wanted any more");
            Net::arrive(&rest, &mut net.home, PRODUCER, usize::MAX);
            Net::pass(&mut net.home, TWO, net.workers.get_mut(&TWO).unwrap(), HOME, usize::MAX);
            assert!(net.seen_by(TWO) == vec![5; ROWS as usize], "{propagation}, goes: {goes}");
            if !goes {
                net.settle();
                assert!(net.seen_by(ONE) == vec![5; ROWS as usize], "{propagation}");
            }
            assert_eq!(net.home.unanswered(), 0, "{propagation}, goes: {goes}");
        }
    }
}

// They were lost for what their producer had said.
#[test]
fn consumers_of_rows_that_their_producer_offers_as_others_are_not_lost_for_it() {
    for propagation in [Propagation::Eager, Propagation::Bounded, Propagation::Lazy] {
        let mut net = Net::new(2, propagation);
        let (shape, more) = (net.shape, Shape { slots: 3, ..net.shape });
        net.consume(ONE);
        net.want(ONE);
        net.settle();
        net.home.connected(PRODUCER);
        say(&mut net.home, PRODUCER, &Message::Offer { partition: ID, shape: more }).unwrap();
        net.consume(TWO);
        for _ in 0..2 {
            [ONE, TWO].into_iter().for_each(|peer| net.want(peer));
            net.settle();
            assert!(net.flushes(ONE) && net.flushes(TWO), "{propagation}");
        }
        assert_eq!((net.seen_by(ONE), net.seen_by(TWO)), (vec![0, 0], vec![0, 0]), "{propagation}");
        // Nor when it has gone.
        net.workers.remove(&PRODUCER);
        net.home.lost(PRODUCER);
        net.home.forget(PRODUCER);
        [ONE, TWO].into_iter().for_each(|peer| net.want(peer));
        net.settle();
        assert!(net.flushes(ONE) && net.flushes(TWO), "{propagation}");
        // One that asks for rows beyond its own shape has only itself to blame.
        let rows = RowSet::from_rows([2]);
        let beyond = Message::Subscribe { partition: ID, shape, done: 0, serial: 9, rows };
        assert!(say(&mut net.home, ONE, &beyond).is_err(), "{propagation}");
    }
}

// The consumer took its home for one that breaks the protocol, and its job was over.
#[test]
fn whom_a_producer_sends_a_row_of_a_set_that_is_not_finished_does_not_lose_its_home_for_it() {
    for propagation in [Propagation::Eager, Propagation::Bounded, Propagation::Lazy] {
        for slots in [2, 256] {
            let what = format!("{propagation}, {slots} rows");
            let mut net = Net::new(slots, propagation);
            let mut producer = writer(slots);
            let memory = Watched { memory: followed(producer.rows()), between: Rc::default() };
            net.home.produce(ID, PRODUCER, net.shape, memory, None);
            [ONE, TWO].into_iter().for_each(|peer| net.consume(peer));
            [ONE, TWO].into_iter().for_each(|peer| net.want_version(peer, 2, 1));
            net.settle();
            set(&mut producer, 1, &[0], 5);
            producer.refresh(1, 100, 1, 1000, Some(&9u64.to_le_bytes()));
            assert!(net.flushes(ONE) && net.flushes(TWO), "{what}");
            set(&mut producer, 2, &[0], 6);
            net.go(PRODUCER);
            net.reconnect(ONE);
            net.want_version(ONE, 1, 2);
            assert!(net.flushes(ONE) && net.flushes(TWO), "{what}");
            let seen = net.seen_by(ONE);
            assert_eq!(seen[0], 6, "{what}");
            // Where rows come one by one, each is what its producer says of it.
            assert!(propagation != Propagation::Eager || seen[1] == 0, "{what}");
        }
    }
}
