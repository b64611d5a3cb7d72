//! What the nodes promise over the real memory, when its producer does something between two looks of theirs.

#[path = "passing_on/net.rs"]
mod net;

use net::*;
use penstock_proto::account::{Account, Limits, Resource};
use penstock_proto::items::node::{Broken, Node};
use penstock_proto::items::wire::{Encoder, Message, PartitionId, Shape};
use penstock_proto::items::{Propagation, RowSet};
use penstock_proto::peer::{PeerId, Role};
use penstock_proto::record::LENGTH_BYTES;
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
    let between = Rc::<RefCell<Between>>::default();
    let memory = Watched { memory: followed(producer.rows()), between: Rc::clone(&between) };
    net.home.produce(ID, PRODUCER, net.shape, memory, None);
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

// A worker offered rows of tables that do not exist, and they stayed when it went.
#[test]
fn rows_of_who_has_gone_are_kept_as_long_as_somebody_who_is_here_has_asked_for_them() {
    let mut net = Net::new(2, Propagation::Lazy);
    let producer = writer(2);
    let shape = net.shape;
    let memory = || Watched { memory: followed(producer.rows()), between: Rc::default() };
    net.join(PRODUCER).produce(ID, PRODUCER, shape, memory(), Some(HOME));
    net.settle();
    net.home.lost(PRODUCER);
    assert!(net.home.memory(ID).is_some(), "it may come again");
    assert_eq!(net.home.forget(PRODUCER), BTreeSet::from([ID]), "nobody has asked for them");
    assert!(net.home.memory(ID).is_none());

    let mut net = Net::new(2, Propagation::Lazy);
    net.home.produce(ID, PRODUCER, shape, memory(), None);
    [ONE, TWO].into_iter().for_each(|rank| net.consume(rank));
    net.settle();
    assert_eq!(net.home.forget(PRODUCER), BTreeSet::new());
    net.home.lost(ONE);
    assert_eq!(net.home.forget(TWO), BTreeSet::new(), "the other may come again, and finds them");
    assert_eq!(net.home.forget(ONE), BTreeSet::from([ID]));
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

#[test]
fn what_a_consumer_asks_of_a_producer_costs_the_consumer_and_not_the_producer() {
    const SLOTS: u32 = 64;
    for propagation in [Propagation::Bounded, Propagation::Lazy, Propagation::Eager] {
        let (mut net, _producer) = Net::subscribed(SLOTS, propagation);
        let shape = net.shape;
        // Greedy: other rows, versions and fetches again and again, while the producer reads nothing.
        let home = &mut net.home;
        let say = |home: &mut Node<Here>, message: &Message<'_>| say(home, ONE, message).unwrap();
        for turn in 1..2_000u64 {
            let rows = RowSet::from_rows((turn % 2..SLOTS.into()).step_by(2));
            say(home, &Message::Subscribe { partition: ID, shape, done: 0, serial: turn, rows });
            if propagation == Propagation::Bounded {
                say(home, &Message::Need { partition: ID, versions: (turn..turn + 512).collect() });
            }
            if turn % 10 == 0 && propagation == Propagation::Lazy {
                let places = RowSet::from_rows([turn % 16]);
                say(home, &Message::Fetch { partition: ID, ticket: turn, version: turn, places });
                home.collect_all();
                home.transmit(ONE, &mut Vec::new(), 1 << 20);
            }
        }
        assert_eq!(net.home.host().account.peer(PRODUCER).taken(Resource::Bytes), 0, "{propagation}");
        let mut bytes = Vec::new();
        net.home.transmit(PRODUCER, &mut bytes, usize::MAX);
        assert!(bytes.len() < 64 << 10, "{propagation}: {} bytes of what was wanted meanwhile", bytes.len());
        assert!(net.home.overdrawn().is_none());
    }
}

fn say(home: &mut Node<Here>, peer: PeerId, message: &Message<'_>) -> Result<(), Broken> {
    let mut bytes = Vec::new();
    Encoder::message(&mut bytes, message);
    home.receive(peer, &bytes[LENGTH_BYTES..])
}

#[test]
fn who_asks_for_flushes_and_reads_no_answer_is_charged_for_them_and_lost() {
    const LIMIT: u64 = 1 << 20;
    let account = Account::new(Limits::NONE.with(Resource::Bytes, LIMIT));
    let mut home = Node::new(Here { account: account.clone(), ..Here::default() });
    home.connected(ONE);
    let asked = (1..LIMIT).find(|&id| say(&mut home, ONE, &Message::Flush { id }).is_err());
    assert!(asked.is_some(), "it is lost before its answers take more than the whole job has");
    assert!(account.taken(Resource::Bytes) > LIMIT / 2, "the answers were charged");
    home.lost(ONE);
    assert_eq!(account.taken(Resource::Bytes), 0);
}

#[test]
fn who_offers_its_rows_again_and_again_is_told_once_what_is_wanted() {
    const SLOTS: u32 = 4096;
    let (mut net, _producer) = Net::subscribed(SLOTS, Propagation::Lazy);
    let shape = net.shape;
    // Every other row takes as many bytes as a subscription can.
    let rows = RowSet::from_rows((0..SLOTS.into()).step_by(2));
    say(&mut net.home, ONE, &Message::Subscribe { partition: ID, shape, done: 0, serial: 9, rows }).unwrap();
    for _ in 0..1000 {
        say(&mut net.home, PRODUCER, &Message::Offer { partition: ID, shape }).unwrap();
    }
    let mut bytes = Vec::new();
    net.home.transmit(PRODUCER, &mut bytes, usize::MAX);
    assert!(!bytes.is_empty(), "it is told");
    assert!(bytes.len() < 64 << 10, "{} bytes of what is wanted", bytes.len());
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

// It took its home for one that breaks the protocol, and its job was over.
#[test]
fn what_consumers_need_together_is_not_too_much_for_their_producer() {
    // A thousand and twenty-four gets that wait, what one asked for, and what the next will.
    const MOST: u64 = 1024 + 2;
    let (mut net, mut producer) = Net::subscribed(2, Propagation::Bounded);
    net.consume(TWO);
    net.settle();
    net.workers.get_mut(&ONE).unwrap().need(ID, (1..=MOST).collect());
    net.workers.get_mut(&TWO).unwrap().need(ID, vec![2 * MOST]);
    net.settle();
    set(&mut producer, MOST, &[0, 1], 4);
    net.settle();
    assert_eq!(net.seen_by(ONE), [4, 4]);
    set(&mut producer, 2 * MOST, &[0, 1], 5);
    net.settle();
    assert_eq!(net.seen_by(TWO), [5, 5], "N-4");
    let versions = (0..=MOST).collect();
    assert!(say(&mut net.home, ONE, &Message::Need { partition: ID, versions }).is_err());
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
    assert_eq!(entries(&mut net), before, "nobody is asked any more, and nobody can answer");
    net.home.lost(ONE);
    assert_eq!(entries(&mut net), 0);
}

// They stayed, each charged, until the peer that had asked was lost for them.
#[test]
fn a_fetch_that_comes_when_nobody_can_answer_it_any_more_is_not_kept_and_one_that_can_be_answered_is() {
    for near in [true, false] {
        let mut net = Net::new(4, Propagation::Lazy);
        let (shape, mut producer) = (net.shape, writer(4));
        let memory = Watched { memory: followed(producer.rows()), between: Rc::default() };
        match near {
            true => _ = net.home.produce(ID, PRODUCER, shape, memory, None),
            false => _ = net.join(PRODUCER).produce(ID, PRODUCER, shape, memory, Some(HOME)),
        }
        [ONE, TWO].into_iter().for_each(|peer| net.consume(peer));
        set(&mut producer, 3, &[0, 1, 2, 3], 5);
        net.settle();
        net.want_version(TWO, 4, 3);
        net.settle();
        let entries = |net: &mut Net| net.home.host().account.peer(ONE).taken(Resource::Entries);
        let before = entries(&mut net);
        net.want_version(ONE, 4, 9);
        net.settle();
        assert!(entries(&mut net) > before, "near: {near}");
        net.go(PRODUCER);
        assert_eq!(entries(&mut net), before, "near: {near}");
        for version in 4..40 {
            net.want_version(ONE, 4, version);
            net.settle();
            assert_eq!(entries(&mut net), before, "near: {near}, version {version}");
        }
        net.want_version(ONE, 4, 3);
        net.settle();
        assert_eq!((net.seen_by(ONE), entries(&mut net)), (vec![5; 4], before), "near: {near}");
    }
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

#[test]
fn what_is_wanted_for_who_is_away_costs_it_until_it_has_gone() {
    let (mut net, _producer) = Net::subscribed(64, Propagation::Eager);
    net.consume_some(TWO, RowSet::from_rows([0]));
    net.settle();
    let taken = |net: &mut Net| net.home.host().account.peer(ONE).taken(Resource::Bytes);
    let here = taken(&mut net);
    net.home.lost(ONE);
    let away = taken(&mut net);
    assert!(0 < away && away < here, "{away} of {here}");
    net.home.lost(ONE);
    net.home.connected(ONE);
    net.home.lost(ONE);
    assert_eq!(taken(&mut net), away, "however often it comes and says nothing");
    net.home.forget(ONE);
    assert_eq!(taken(&mut net), 0);
    // Nor is any peer asked for its rows.
    net.silent.insert(ONE);
    net.reconnect(TWO);
    Net::pass(net.workers.get_mut(&TWO).unwrap(), HOME, &mut net.home, TWO, usize::MAX);
    let bytes = Net::sent(&mut net.home, PRODUCER);
    let (_, record) = bytes.split_first_chunk::<LENGTH_BYTES>().unwrap();
    let wanted = RowSet::from_rows([0]);
    let subscribed = Message::decode(record).unwrap();
    assert!(matches!(subscribed, Message::Subscribe { rows, .. } if rows == wanted));
    // The same for a peer that waits for what is not there yet.
    let mut home = Node::new(Here::default());
    home.connected(ONE);
    let (shape, rows) = (net.shape, RowSet::from_rows([0]));
    let subscribe = Message::Subscribe { partition: ID, shape, done: 0, serial: 1, rows };
    for _ in 0..3 {
        say(&mut home, ONE, &subscribe).unwrap();
        home.lost(ONE);
        home.connected(ONE);
        assert_eq!(home.host().account.peer(ONE).taken(Resource::Entries), 1);
    }
    home.forget(ONE);
    assert_eq!(home.host().account.peer(ONE).taken(Resource::Entries), 0);
}

/// A producer leaves as a worker does: it flushes, hands over, and flushes again; after each turn `event` may do something, and
/// says whether the line broke with what was on it. From then on it says nothing.
fn leave(net: &mut Net, event: &mut dyn FnMut(&mut Net, usize) -> bool) {
    leave_within(net, 40, event);
}

/// The same, within so many turns.
fn leave_within(net: &mut Net, most: usize, event: &mut dyn FnMut(&mut Net, usize) -> bool) {
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
            let mut net = Net::new(ROWS, propagation);
            let (shape, mut producer) = (net.shape, writer(ROWS));
            let memory = Watched { memory: followed(producer.rows()), between: Rc::default() };
            match near {
                true => _ = net.home.produce(ID, PRODUCER, shape, memory, None),
                false => _ = net.join(PRODUCER).produce(ID, PRODUCER, shape, memory, Some(HOME)),
            }
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
            let id = one.flush(HOME);
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
        let id = one.flush(HOME);
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

// It was not: a peer that waited never heard anything.
#[test]
fn who_cannot_pay_for_what_it_waited_for_is_lost_for_it() {
    const ROWS: u32 = 1024;
    let account = Account::new(Limits::NONE.with(Resource::Bytes, 16 << 10));
    let mut home = Node::new(Here { account, ..Here::default() });
    home.connected(ONE);
    let shape = Shape { slots: ROWS, row_bytes: ROW_BYTES, propagation: Propagation::Eager };
    let rows = RowSet::from_ranges(std::iter::once(0..ROWS.into()));
    say(&mut home, ONE, &Message::Subscribe { partition: ID, shape, done: 0, serial: 1, rows }).unwrap();
    assert!(home.overdrawn().is_none());
    let memory = Watched { memory: followed(writer(ROWS).rows()), between: Rc::default() };
    home.produce(ID, PRODUCER, shape, memory, None);
    let lost = home.overdrawn();
    assert!(matches!(lost, Some((ONE, Broken::Exhausted { .. }))), "{lost:?}");
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

// It waited for ever.
#[test]
fn a_flush_does_not_wait_for_a_row_that_its_producer_left_torn() {
    for propagation in [Propagation::Eager, Propagation::Bounded, Propagation::Lazy] {
        for slots in [3, 256] {
            let mut net = Net::new(slots, propagation);
            let mut producer = writer(slots);
            let between = Rc::<RefCell<Between>>::default();
            let memory = Watched { memory: followed(producer.rows()), between: Rc::clone(&between) };
            net.home.produce(ID, PRODUCER, net.shape, memory, None);
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

// Its producer was lost for the answer: where sets are sent, no row comes by itself.
#[test]
fn who_fetches_rows_that_are_sent_in_whole_sets_has_only_itself_to_blame() {
    let (mut net, mut producer) = Net::subscribed(2, Propagation::Eager);
    let places = RowSet::from_rows([0]);
    let fetch = Message::Fetch { partition: ID, ticket: 1, version: 1, places };
    let said = say(&mut net.home, ONE, &fetch);
    net.settle();
    set(&mut producer, 1, &[0, 1], 5);
    net.settle();
    assert!(matches!(said, Err(Broken::Nonsense(_))), "{said:?}");
}

// The producer kept them all, and sent the rows of each once they were there.
#[test]
fn fetches_of_a_subscription_that_is_replaced_or_gone_are_kept_neither_here_nor_at_the_source() {
    const ROWS: u32 = 64;
    let all = RowSet::from_ranges(std::iter::once(0..ROWS.into()));
    for propagation in [Propagation::Bounded, Propagation::Lazy] {
        for reconnects in [true, false] {
            let (mut net, mut producer) = Net::subscribed(ROWS, propagation);
            let (shape, rows) = (net.shape, all.clone());
            net.consume(TWO);
            assert!(net.workers.get_mut(&TWO).unwrap().fetch(ID, &all, 1).is_some());
            net.silent.insert(ONE);
            let said = Message::Subscribe { partition: ID, shape, done: 0, serial: 9, rows };
            let kept = |net: &mut Net| {
                let node = net.workers.get_mut(&PRODUCER).unwrap();
                let (home, source) = (net.home.host().account.peer(ONE), node.host().account.peer(HOME));
                let taken = |it: Account| (it.taken(Resource::Bytes), it.taken(Resource::Entries));
                (taken(home), taken(source))
            };
            let mut once = None;
            for ticket in 1..=200 {
                if reconnects {
                    net.home.connected(ONE);
                }
                say(&mut net.home, ONE, &said).unwrap();
                let fetch = Message::Fetch { partition: ID, ticket, version: 1, places: all.clone() };
                say(&mut net.home, ONE, &fetch).unwrap();
                Net::sent(&mut net.home, ONE);
                net.settle();
                let now = kept(&mut net);
                assert_eq!(now, *once.get_or_insert(now), "{propagation}, {reconnects}, {ticket}");
            }
            let charged = once.unwrap().0.0;
            assert!(
                charged > 3 * 4 * u64::from(ROWS),
                "{charged} bytes of what stands here and at the source"
            );
            net.go(ONE);
            net.settle();
            assert_eq!(kept(&mut net).0, (0, 0), "{propagation}, {reconnects}");
            let all: Vec<u32> = (0..ROWS).collect();
            set(&mut producer, 1, &all, 5);
            net.settle();
            assert_eq!(net.seen_by(TWO), [5; ROWS as usize], "{propagation}, {reconnects}: nobody else's");
            let came = net.home.traffic(ID.table).1;
            let most = 2 * u64::from(ROWS) * (40 + u64::from(ROW_BYTES));
            assert!(came < most, "{propagation}, {reconnects}: {came} bytes, {most} at most");
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
    assert!(ticket > 4, "the producer hears that none is open");
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
