//! What a peer makes a node keep, who pays for it, and when it is given back.

use crate::heap::most_taken_by;
use crate::net::*;
use penstock_proto::account::{Account, Limits, Resource, SHARE};
use penstock_proto::items::node::{Broken, MOST_AHEAD, Node};
use penstock_proto::items::wire::{MAX_MESSAGE_BYTES, Message, PartitionId, Shape};
use penstock_proto::items::{Propagation, RowSet};
use penstock_proto::record::{self, LENGTH_BYTES};
use std::collections::BTreeSet;
use std::rc::Rc;

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

// What a consumer had fetched lay there for a producer that did not read when the consumer paid for it no longer: two that worked
// together made their home keep many times what their job may take.
#[test]
fn what_many_tables_keep_for_a_producer_that_does_not_read_is_paid_for_to_the_last_byte() {
    const TABLES: u32 = 300;
    const QUOTA: u64 = 16 << 20;
    const PLACES: u32 = 512;
    for propagation in [Propagation::Lazy, Propagation::Bounded] {
        let account = Account::new(Limits::NONE.with(Resource::Bytes, QUOTA));
        let mut home = Node::new(Here { account: account.clone(), ..Here::default() });
        [PRODUCER, ONE].into_iter().for_each(|peer| home.connected(peer));
        let shape = Shape { slots: 2 * PLACES, row_bytes: ROW_BYTES, propagation };
        let ids = || (0..TABLES).map(|table| PartitionId { table, ..ID });
        let subscribe = |home: &mut Node<Here>, partition, serial| {
            let rows = RowSet::from_rows(0..shape.slots.into());
            say(home, ONE, &Message::Subscribe { partition, shape, done: 0, serial, rows }).unwrap();
        };
        for partition in ids() {
            say(&mut home, PRODUCER, &Message::Offer { partition, shape }).unwrap();
            subscribe(&mut home, partition, 1);
        }
        // It reads once, and never again.
        assert!(!Net::sent(&mut home, PRODUCER).is_empty());
        let mut ticket = 0;
        for partition in ids() {
            let left = |home: &mut Node<Here>| home.host().account.peer(ONE).left(Resource::Bytes);
            while left(&mut home) > 128 << 10 {
                ticket += 1;
                let places = RowSet::from_rows((0..u64::from(shape.slots)).step_by(2));
                let fetch = Message::Fetch { partition, ticket, version: u64::MAX, places };
                say(&mut home, ONE, &fetch).unwrap();
                Net::sent(&mut home, ONE);
            }
            subscribe(&mut home, partition, 2 + u64::from(partition.table));
        }
        assert!(home.overdrawn().is_none());
        let paid = account.taken(Resource::Bytes);
        let mut bytes = Vec::new();
        home.transmit(PRODUCER, &mut bytes, usize::MAX);
        assert!(bytes.len() as u64 <= paid, "{propagation}: {} bytes, {paid} paid", bytes.len());
        assert_eq!(home.paid(PRODUCER), bytes.len() as u64, "{propagation}: others pay for all of it");
    }
}

// A subscription, or what was needed, stood at home as what is wanted of the source when its place had been taken by another.
#[test]
fn what_was_wanted_before_is_paid_for_as_long_as_it_stands_here_or_on_its_way() {
    const ROWS: u64 = 1 << 12;
    let (mut net, _producer) = Net::producing(2 * ROWS as u32, Propagation::Bounded, false);
    let shape = net.shape;
    net.consume_some(ONE, RowSet::from_rows([0]));
    net.settle();
    let taken = |net: &mut Net| net.home.host().account.peer(ONE).taken(Resource::Bytes);
    let (scattered, one) = (RowSet::from_rows((0..ROWS).map(|row| 2 * row)), RowSet::from_rows([0]));
    let at_least = 3 * scattered.kept_bytes();
    let subscribe = |net: &mut Net, shape, serial, rows: &RowSet| {
        let rows = rows.clone();
        say(&mut net.home, ONE, &Message::Subscribe { partition: ID, shape, done: 0, serial, rows }).unwrap();
    };
    let before = taken(&mut net);
    subscribe(&mut net, shape, 8, &scattered);
    assert!(taken(&mut net) > before + at_least);
    // To other rows than there are: it is sent nothing, and what it wanted is wanted of the source all the same.
    subscribe(&mut net, Shape { slots: 1, ..shape }, 9, &one);
    assert!(taken(&mut net) > at_least, "{} bytes", taken(&mut net));
    // On its way to the source.
    assert!(!Net::sent(&mut net.home, PRODUCER).is_empty());
    subscribe(&mut net, shape, 10, &one);
    assert!(taken(&mut net) > at_least, "{} bytes", taken(&mut net));
    Net::sent(&mut net.home, PRODUCER);
    Net::sent(&mut net.home, PRODUCER);
    assert_eq!(taken(&mut net), before);
    // The same for versions.
    let versions: Vec<u64> = (1..=1000).collect();
    say(&mut net.home, ONE, &Message::Need { partition: ID, versions }).unwrap();
    Net::sent(&mut net.home, PRODUCER);
    subscribe(&mut net, shape, 11, &one);
    assert!(taken(&mut net) >= before + 1000 * 8, "{} bytes", taken(&mut net));
    let bytes = Net::sent(&mut net.home, PRODUCER);
    assert!(bytes.len() < 64, "what it needs no more is not needed of the source: {} bytes", bytes.len());
    Net::sent(&mut net.home, PRODUCER);
    assert_eq!(taken(&mut net), before);
}

#[test]
fn what_is_wanted_of_a_source_is_said_once_however_often_other_things_change() {
    let (mut net, _producer) = Net::subscribed(2, Propagation::Bounded);
    let versions = (1..=1000).collect();
    say(&mut net.home, ONE, &Message::Need { partition: ID, versions }).unwrap();
    let needs = Net::sent(&mut net.home, PRODUCER).len();
    for ticket in 1..=10 {
        let places = RowSet::from_rows([0]);
        say(&mut net.home, ONE, &Message::Fetch { partition: ID, ticket, version: 9, places }).unwrap();
        Net::sent(&mut net.home, ONE);
        let asked = Net::sent(&mut net.home, PRODUCER).len();
        say(&mut net.home, ONE, &Message::Withdraw { partition: ID, ticket }).unwrap();
        let withdrawn = Net::sent(&mut net.home, PRODUCER).len();
        assert!(
            0 < asked && asked < needs / 8 && 0 < withdrawn && withdrawn < needs / 8,
            "{asked}, {withdrawn}"
        );
    }
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

// They stayed, each charged, until the peer that had asked was lost for them.
#[test]
fn a_fetch_that_comes_when_nobody_can_answer_it_any_more_is_not_kept_and_one_that_can_be_answered_is() {
    for near in [true, false] {
        let (mut net, mut producer) = Net::producing(4, Propagation::Lazy, near);
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
        net.settle();
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

#[test]
fn what_is_wanted_for_who_is_away_costs_it_until_it_is_wanted_no_more() {
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
    // It has gone, and its rows come as before: their source is not asked for everything anew.
    net.home.forget(ONE);
    assert!(Net::sent(&mut net.home, PRODUCER).is_empty());
    assert_eq!(taken(&mut net), away);
    // When it is asked again, it is asked for them no more.
    net.silent.insert(ONE);
    net.reconnect(TWO);
    Net::pass(net.workers.get_mut(&TWO).unwrap(), HOME, &mut net.home, TWO, usize::MAX);
    let bytes = Net::sent(&mut net.home, PRODUCER);
    let (_, record) = bytes.split_first_chunk::<LENGTH_BYTES>().unwrap();
    let wanted = RowSet::from_rows([0]);
    let subscribed = Message::decode(record).unwrap();
    assert!(matches!(subscribed, Message::Subscribe { rows, .. } if rows == wanted));
    assert_eq!(taken(&mut net), 0);
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

// A reader whose gets timed out was lost for what they had fetched.
#[test]
fn what_is_fetched_and_then_given_up_is_kept_neither_at_home_nor_at_the_source() {
    const ROWS: u32 = 64;
    let all = RowSet::from_ranges(std::iter::once(0..ROWS.into()));
    for propagation in [Propagation::Bounded, Propagation::Lazy] {
        for near in [true, false] {
            let (mut net, mut producer) = Net::producing(ROWS, propagation, near);
            net.consume(ONE);
            net.settle();
            let kept = |net: &mut Net| {
                let taken = |it: Account| (it.taken(Resource::Bytes), it.taken(Resource::Entries));
                let source = net.workers.get_mut(&PRODUCER).map(|node| node.host().account.peer(HOME));
                let waits = net.workers[&ONE].unanswered();
                (taken(net.home.host().account.peer(ONE)), source.map(taken), waits)
            };
            let before = kept(&mut net);
            let mut flushes = Vec::new();
            for version in 1..20 {
                let node = net.workers.get_mut(&ONE).unwrap();
                let ticket = node.fetch(ID, &all, version).unwrap();
                // It waits for what can be answered of what was fetched before it.
                flushes.push(node.bring(ID).unwrap());
                match version % 3 {
                    // Before its home has heard of it, and after.
                    0 => {}
                    1 => _ = Net::pass(node, HOME, &mut net.home, ONE, usize::MAX),
                    _ => net.settle(),
                }
                assert_ne!(kept(&mut net), before, "{propagation}, near: {near}, version {version}");
                net.workers.get_mut(&ONE).unwrap().give_up(ticket);
                net.settle();
                assert_eq!(kept(&mut net), before, "{propagation}, near: {near}, version {version}");
            }
            let flushed = &net.workers.get_mut(&ONE).unwrap().host().flushed;
            assert!(flushes.iter().all(|id| flushed.contains(id)), "{propagation}, near: {near}");
            // What others wait for comes as ever.
            let node = net.workers.get_mut(&ONE).unwrap();
            let (waits, given_up) = (node.fetch(ID, &all, 1).unwrap(), node.fetch(ID, &all, 1).unwrap());
            net.settle();
            net.workers.get_mut(&ONE).unwrap().give_up(given_up);
            net.settle();
            let rows: Vec<u32> = (0..ROWS).collect();
            set(&mut producer, 1, &rows, 5);
            net.settle();
            assert_eq!(net.seen_by(ONE), [5; ROWS as usize], "{propagation}, near: {near}, {waits}");
            assert_eq!(kept(&mut net), before, "{propagation}, near: {near}");
        }
    }
}

#[test]
fn what_is_fetched_and_given_up_before_its_rows_have_a_home_is_not_kept() {
    let mut net = Net::new(2, Propagation::Lazy);
    net.consume(ONE);
    net.settle();
    let entries = |net: &mut Net| net.home.host().account.peer(ONE).taken(Resource::Entries);
    let before = entries(&mut net);
    let node = net.workers.get_mut(&ONE).unwrap();
    let tickets = [1, 2, 3].map(|version| node.fetch(ID, &RowSet::from_rows([0]), version).unwrap());
    net.settle();
    assert_eq!(entries(&mut net), before + 3);
    for (ticket, left) in tickets.into_iter().zip([2, 1, 0]) {
        net.workers.get_mut(&ONE).unwrap().give_up(ticket);
        net.settle();
        assert_eq!(entries(&mut net), before + left);
    }
}

// For a source that does not read any number of fetches, and of their ends, were kept for nothing.
#[test]
fn what_is_fetched_and_given_up_again_and_again_before_the_source_has_heard_is_not_kept_for_it() {
    let (mut net, _producer) = Net::subscribed(2, Propagation::Lazy);
    net.silent.insert(PRODUCER);
    let entries = |net: &mut Net| net.home.host().account.peer(ONE).taken(Resource::Entries);
    let before = entries(&mut net);
    let fetch = |net: &mut Net, version| {
        let node = net.workers.get_mut(&ONE).unwrap();
        let ticket = node.fetch(ID, &RowSet::from_rows([0]), version).unwrap();
        net.settle();
        ticket
    };
    let give_up = |net: &mut Net, ticket| {
        net.workers.get_mut(&ONE).unwrap().give_up(ticket);
        net.settle();
    };
    for version in 1..=100 {
        let ticket = fetch(&mut net, version);
        assert_eq!(entries(&mut net), before + 2);
        give_up(&mut net, ticket);
        assert_eq!(entries(&mut net), before);
    }
    assert!(Net::sent(&mut net.home, PRODUCER).is_empty());
    // What it was told costs until it has heard the end of it too.
    let ticket = fetch(&mut net, 101);
    assert!(!Net::sent(&mut net.home, PRODUCER).is_empty());
    give_up(&mut net, ticket);
    assert_eq!(entries(&mut net), before + 1);
    assert!(!Net::sent(&mut net.home, PRODUCER).is_empty());
    assert_eq!(entries(&mut net), before + 1, "that is on its way");
    assert!(Net::sent(&mut net.home, PRODUCER).is_empty());
    assert_eq!(entries(&mut net), before);
}

// A fetch ahead without an answer was kept for ever.
#[test]
fn of_what_is_fetched_ahead_and_does_not_come_the_newest_is_kept() {
    let (mut net, mut producer) = Net::subscribed(2, Propagation::Lazy);
    let entries = |net: &mut Net| net.home.host().account.peer(ONE).taken(Resource::Entries);
    let before = entries(&mut net);
    // At home, and for what it has asked of the source.
    let most = before + 2 * MOST_AHEAD as u64;
    for version in 1..=MOST_AHEAD as u64 + 100 {
        net.workers.get_mut(&ONE).unwrap().fetch_ahead(ID, &RowSet::from_rows([0]), version);
        if version % 64 == 0 {
            net.settle();
        }
    }
    net.settle();
    assert_eq!(entries(&mut net), most);
    set(&mut producer, 2 * MOST_AHEAD as u64, &[0, 1], 5);
    net.settle();
    assert_eq!((net.seen_by(ONE)[0], entries(&mut net)), (5, before));
    assert_eq!(net.workers[&ONE].unanswered(), 0);
}

// Each was asked again on every new connection.
#[test]
fn a_flush_that_was_given_up_is_not_asked_again() {
    let mut net = Net::new(2, Propagation::Eager);
    net.consume(ONE);
    net.settle();
    let node = net.workers.get_mut(&ONE).unwrap();
    for _ in 0..3 {
        let asked = [node.bring(ID).unwrap(), node.flush(HOME)];
        asked.into_iter().for_each(|id| node.give_up(id));
    }
    assert_eq!(node.unanswered(), 0);
    node.connected(HOME);
    let bytes = Net::sent(node, HOME);
    let mut rest = &bytes[..];
    while let Some((head, tail)) = rest.split_first_chunk::<LENGTH_BYTES>() {
        let (record, tail) = tail.split_at(record::length(head, MAX_MESSAGE_BYTES).unwrap());
        let message = Message::decode(record).unwrap();
        assert!(matches!(message, Message::Subscribe { .. }), "{message:?}");
        rest = tail;
    }
}

/// What all peers together may have where one needs so much, and leaves the others their share.
fn barely(needed: u64) -> u64 {
    needed + needed.div_ceil(SHARE) + 8
}

// It paid for the same rows a second time before what it had paid for them before was given back, and was lost for it.
#[test]
fn who_comes_again_and_again_for_the_same_rows_needs_no_more_than_it_did_at_first() {
    for propagation in [Propagation::Lazy, Propagation::Bounded, Propagation::Eager] {
        let shape = Shape { slots: 1 << 12, row_bytes: ROW_BYTES, propagation };
        let rows = RowSet::from_rows((0..u64::from(shape.slots)).step_by(2));
        let subscribe = |home: &mut Node<Here>, serial| {
            let rows = rows.clone();
            say(home, ONE, &Message::Subscribe { partition: ID, shape, done: 0, serial, rows }).unwrap();
        };
        let subscribed = |account: &Account| {
            let mut home = Node::new(Here { account: account.clone(), ..Here::default() });
            [PRODUCER, ONE].into_iter().for_each(|peer| home.connected(peer));
            say(&mut home, PRODUCER, &Message::Offer { partition: ID, shape }).unwrap();
            subscribe(&mut home, 1);
            home
        };
        let unlimited = Account::default();
        let _home = subscribed(&unlimited);
        let needed = unlimited.peer(ONE).taken(Resource::Bytes);
        let account = Account::new(Limits::NONE.with(Resource::Bytes, barely(needed)));
        let mut home = subscribed(&account);
        // Its source reads nothing behind the first.
        Net::sent(&mut home, PRODUCER);
        for serial in 2..10 {
            if serial % 2 == 0 {
                home.lost(ONE);
                home.connected(ONE);
            }
            subscribe(&mut home, serial);
            home.collect_all();
            assert_eq!(account.peer(ONE).taken(Resource::Bytes), needed, "{propagation}, {serial}");
        }
    }
}

#[test]
fn who_wants_as_many_other_rows_does_not_pay_for_both_at_once() {
    let shape = Shape { slots: 1 << 12, row_bytes: ROW_BYTES, propagation: Propagation::Lazy };
    let some = |from: u64, step| RowSet::from_rows((from..u64::from(shape.slots)).step_by(step));
    let subscribe = |home: &mut Node<Here>, serial, rows| {
        say(home, ONE, &Message::Subscribe { partition: ID, shape, done: 0, serial, rows })
    };
    let run = |account: &Account| {
        let mut home = Node::new(Here { account: account.clone(), ..Here::default() });
        [PRODUCER, ONE].into_iter().for_each(|peer| home.connected(peer));
        say(&mut home, PRODUCER, &Message::Offer { partition: ID, shape }).unwrap();
        subscribe(&mut home, 1, some(0, 4)).unwrap();
        home
    };
    let unlimited = Account::default();
    let _home = run(&unlimited);
    let needed = unlimited.peer(ONE).taken(Resource::Bytes);
    let account = Account::new(Limits::NONE.with(Resource::Bytes, barely(needed)));
    let mut home = run(&account);
    subscribe(&mut home, 2, some(1, 4)).unwrap();
    assert_eq!(account.peer(ONE).taken(Resource::Bytes), needed);
    // It cannot pay for more: what it wanted before is wanted of its source all the same, and so it goes on paying for it.
    assert!(matches!(subscribe(&mut home, 3, some(0, 2)), Err(Broken::Exhausted { .. })));
    assert!(account.peer(ONE).taken(Resource::Bytes) >= 3 * some(1, 4).kept_bytes());
}

// What had been handed over paid for as much that came later: a quota was passed by as much again.
#[test]
fn what_was_handed_over_pays_for_nothing_that_comes_later() {
    const QUOTA: u64 = 1 << 20;
    let account = Account::new(Limits::NONE.with(Resource::Bytes, QUOTA));
    let mut home = Node::new(Here { account: account.clone(), ..Here::default() });
    home.connected(ONE);
    let mut ids = 0..;
    let mut ask = |home: &mut Node<Here>, left: u64| {
        while account.peer(ONE).left(Resource::Bytes) > left {
            let id = ids.next().unwrap();
            say(home, ONE, &Message::Flush { id })?;
        }
        Ok::<(), Broken>(())
    };
    ask(&mut home, QUOTA / 4).unwrap();
    let mut out = Vec::new();
    home.transmit(ONE, &mut out, usize::MAX);
    let free = 64 << 10;
    assert!(out.len() as u64 > QUOTA / 2 && home.paid(ONE) + free >= out.len() as u64);
    let before = account.taken(Resource::Bytes);
    // The taker still has it.
    let more = ask(&mut home, 1 << 10);
    assert!(home.overdrawn().is_none() && more.is_ok());
    let came = account.taken(Resource::Bytes) - before;
    let mut later = Vec::new();
    home.transmit(ONE, &mut later, usize::MAX);
    assert!(came + free >= later.len() as u64, "{came} paid of {}", later.len());
    assert_eq!(account.taken(Resource::Bytes), home.paid(ONE), "the first are gone");
    home.transmit(ONE, &mut Vec::new(), usize::MAX);
    assert_eq!(account.taken(Resource::Bytes), 0);
}

// All were put together before the first was paid for: together many times the bytes that had been charged for them.
#[test]
fn what_a_source_is_asked_for_others_is_paid_for_before_it_is_put_together() {
    const SLOTS: u32 = 1 << 15;
    const FETCHES: u64 = 40;
    let shape = Shape { slots: SLOTS, row_bytes: ROW_BYTES, propagation: Propagation::Lazy };
    let fetching = |account: &Account| {
        let mut home = Node::new(Here { account: account.clone(), ..Here::default() });
        [PRODUCER, ONE].into_iter().for_each(|peer| home.connected(peer));
        say(&mut home, PRODUCER, &Message::Offer { partition: ID, shape }).unwrap();
        let rows = RowSet::from_rows(0..SLOTS.into());
        say(&mut home, ONE, &Message::Subscribe { partition: ID, shape, done: 0, serial: 1, rows }).unwrap();
        for ticket in 1..=FETCHES {
            // Each is a range of its own.
            let places = RowSet::from_rows((0..SLOTS.into()).step_by(2));
            say(&mut home, ONE, &Message::Fetch { partition: ID, ticket, version: 1, places }).unwrap();
        }
        home
    };
    let taken = |account: &Account| account.peer(ONE).taken(Resource::Bytes);
    let unlimited = Account::default();
    let mut home = fetching(&unlimited);
    let before = taken(&unlimited);
    Net::sent(&mut home, ONE);
    let one = (taken(&unlimited) - before) / FETCHES;
    let account = Account::new(Limits::NONE.with(Resource::Bytes, barely(before + 3 * one + one / 2)));
    let mut home = fetching(&account);
    let most = most_taken_by(|| _ = Net::sent(&mut home, ONE));
    assert_eq!(taken(&account), before + 3 * one);
    assert!(most < 4 * one, "{most} bytes where {one} are charged for each of three");
    let most = most_taken_by(|| _ = Net::sent(&mut home, ONE));
    assert!(most < one / 8, "{most} bytes for what cannot be paid");
    // What is given back pays for others.
    for ticket in 1..=3 {
        say(&mut home, ONE, &Message::Withdraw { partition: ID, ticket }).unwrap();
    }
    assert!(taken(&account) < before);
    Net::sent(&mut home, ONE);
    assert!(taken(&account) > before + 2 * one);
}
