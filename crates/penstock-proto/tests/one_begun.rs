//! Of the batches that take several steps one is begun at a time for each connection: a peer that can pay for one is sent all,
//! one after the other, and small ones come meanwhile.

use penstock_proto::account::{Account, Limits, Resource};
use penstock_proto::items::RowSet;
use penstock_proto::items::node::{Host, Node};
use penstock_proto::items::row_memory::{Changed, Look, Memory, Moment, Torn, Unlisted};
use penstock_proto::items::spec::Propagation;
use penstock_proto::items::wire::{Encoder, Entries, Entry, Head, Message, PartitionId, Shape};
use penstock_proto::peer::PeerId;
use penstock_proto::record::LENGTH_BYTES;
use std::cell::Cell;
use std::rc::Rc;

const PEER: PeerId = PeerId::worker(9);
const ROW_BYTES: u32 = 1024;
/// What a row takes of a step.
const ROW: u64 = 5;
/// Rows that are taken in one step.
const STEP: u32 = 8;
/// Rows of a large partition, and of a small one.
const LARGE: u32 = 5 * STEP;
const SMALL: u32 = STEP / 2;
/// What a partition takes, beside its values.
const BESIDE: u64 = 64 * 1024;

/// Rows of one producer on this host.
#[derive(Default)]
struct Rows {
    /// Sets, each of all rows.
    done: Cell<u64>,
    /// A row that stays torn.
    torn: Cell<Option<u32>>,
    /// Whether only every second row is ever set.
    scattered: bool,
}

struct Written(Rc<Rows>, u64);

impl Memory for Written {
    fn changed(&mut self, _: &mut Vec<Changed>) -> Result<(), Unlisted> {
        let done = self.0.done.get();
        match std::mem::replace(&mut self.1, done) == done {
            true => Ok(()),
            false => Err(Unlisted { until: done as u32 }),
        }
    }

    fn now(&self) -> Moment {
        Moment { done: self.0.done.get(), several: self.0.done.get(), floor: 0 }
    }

    fn look(&self, slot: u32, now: Moment) -> Result<Look, Torn> {
        let done = self.0.done.get();
        if self.0.torn.get() == Some(slot) || done > now.done {
            return Err(Torn);
        }
        let number = if self.0.scattered && slot % 2 == 1 { 0 } else { done };
        Ok(Look { number, clock: done, as_of: done })
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

struct Net {
    node: Node<Job>,
    account: Account,
    rows: Vec<Rc<Rows>>,
    shapes: Vec<Shape>,
}

impl Net {
    /// Of producers with so many rows each, all of which the peer subscribes to. Beside what is always kept it can pay for
    /// `quota` bytes.
    fn new(producers: &[(u32, Propagation)], quota: u64) -> Self {
        // Of what there is a fifth is left to others.
        let quota = (quota + producers.len() as u64 * BESIDE) * 5 / 4;
        let account = Account::new(Limits::NONE.with(Resource::Bytes, quota));
        let mut node = Node::new(Job(account.clone()));
        node.look_at_most(ROW * u64::from(STEP));
        node.connected(PEER);
        let (mut rows, mut shapes) = (Vec::new(), Vec::new());
        for (rank, &(slots, propagation)) in (0..).zip(producers) {
            let (its, shape) = (Rc::<Rows>::default(), Shape { slots, row_bytes: ROW_BYTES, propagation });
            its.done.set(1);
            node.produce(id(rank), PeerId::worker(rank), shape, Written(Rc::clone(&its), 0), None);
            rows.push(its);
            shapes.push(shape);
        }
        let mut net = Self { node, account, rows, shapes };
        (0..producers.len() as u32).for_each(|rank| net.subscribe(rank, 1));
        net
    }

    fn say(&mut self, message: &Message<'_>) {
        let mut bytes = Vec::new();
        Encoder::message(&mut bytes, message);
        self.node.receive(PEER, &bytes[LENGTH_BYTES..]).unwrap();
    }

    fn subscribe(&mut self, rank: u32, serial: u64) {
        let (partition, shape) = (id(rank), self.shapes[rank as usize]);
        let rows = RowSet::from_ranges(std::iter::once(0..u64::from(shape.slots)));
        self.say(&Message::Subscribe { partition, shape, done: 0, serial, rows });
    }

    fn set(&mut self, rank: u32) {
        let done = &self.rows[rank as usize].done;
        done.set(done.get() + 1);
        self.node.collect_all();
    }

    /// One call of the node: of whom it sent a whole batch, if of any, with its number of rows, and whether there may be more.
    fn step(&mut self) -> (Option<(u32, u32)>, bool) {
        let (mut out, mut whole, mut count) = (Vec::new(), None, 0);
        loop {
            // A message at a time, so that no other batch is begun once one has been found.
            let more = self.node.transmit(PEER, &mut out, 1);
            assert_eq!(self.node.overdrawn(), None);
            if out.is_empty() {
                return (whole, more);
            }
            for (rank, head, rows) in heard(&std::mem::take(&mut out), &self.shapes) {
                count += rows;
                if head.last {
                    assert_eq!(whole.replace((rank, count)), None, "one batch at a time");
                }
            }
            if whole.is_some() {
                return (whole, true);
            }
        }
    }

    /// Steps until nothing is left: whose batches were sent, in order.
    fn all(&mut self) -> Vec<u32> {
        let mut sent = Vec::new();
        for _ in 0..10_000 {
            let (whole, more) = self.step();
            if let Some((rank, rows)) = whole {
                assert_eq!(rows, self.shapes[rank as usize].slots, "of {rank}");
                sent.push(rank);
            }
            if !more {
                return sent;
            }
        }
        panic!("it never ends: {sent:?}");
    }
}

fn id(rank: u32) -> PartitionId {
    PartitionId { table: 0, rank }
}

/// Rows that were sent, message by message.
fn heard(mut out: &[u8], shapes: &[Shape]) -> Vec<(u32, Head, u32)> {
    let mut heard = Vec::new();
    while !out.is_empty() {
        let length = u32::from_le_bytes(out[..4].try_into().unwrap()) as usize;
        let record = &out[LENGTH_BYTES..LENGTH_BYTES + length];
        if let Message::Rows { partition, head, entries } = Message::decode(record).unwrap() {
            let row_bytes = shapes[partition.rank as usize].row_bytes;
            let entries = Entries::new(entries, row_bytes, head.apart);
            let rows = entries.map(|entry| entry.unwrap()).map(|Entry { count, .. }| count).sum();
            heard.push((partition.rank, head, rows));
        }
        out = &out[LENGTH_BYTES + length..];
    }
    heard
}

const EAGER: Propagation = Propagation::Eager;

fn bytes(rows: u32) -> u64 {
    u64::from(rows * ROW_BYTES)
}

#[test]
fn a_peer_that_can_pay_for_one_is_sent_all_of_them() {
    let large = [(1 << 10, EAGER); 4];
    let mut net = Net::new(&large, bytes(1 << 10) * 5 / 4);
    assert_eq!(net.all(), [0, 1, 2, 3]);
    net.set(2);
    net.set(1);
    assert_eq!(net.all(), [1, 2]);
}

#[test]
fn small_ones_come_while_a_large_one_is_taken_and_none_waits_for_ever() {
    let producers = [LARGE, SMALL, LARGE, LARGE, SMALL].map(|rows| (rows, EAGER));
    let mut net = Net::new(&producers, bytes(2 * LARGE));
    let mut sent = [0; 5];
    let mut calls = 0;
    // Each is set anew as soon as it was sent.
    while sent.iter().sum::<u32>() < 300 {
        calls += 1;
        assert!(calls < 10_000, "{sent:?}");
        if let (Some((rank, _)), _) = net.step() {
            sent[rank as usize] += 1;
            net.set(rank);
        }
    }
    let (least, most) = ([0, 2, 3].map(|large| sent[large]), sent[1].max(sent[4]));
    assert!(least.iter().max() <= least.iter().min().map(|least| least + 1).as_ref(), "{sent:?}");
    assert!(sent[1].min(sent[4]) >= *least.iter().max().unwrap(), "a small one comes as often: {sent:?}");
    assert!(*least.iter().min().unwrap() * 8 >= most, "nor is a large one behind: {sent:?}");
}

#[test]
fn what_cannot_be_paid_beside_it_comes_when_it_has_gone() {
    for propagation in [Propagation::Lazy, Propagation::Bounded] {
        // As many bytes as the large one, taken in one step.
        let mut net = Net::new(&[(1 << 10, EAGER), (1 << 10, propagation)], bytes(1 << 10) * 5 / 4);
        let places = RowSet::from_ranges(std::iter::once(0..1 << 10));
        assert_eq!(net.step(), (None, true), "the first is begun");
        match propagation {
            Propagation::Lazy => {
                net.say(&Message::Fetch { partition: id(1), ticket: 1, version: 1, places });
            }
            _ => net.say(&Message::Need { partition: id(1), versions: vec![1] }),
        }
        let (mut eager, mut rest) = (0, 0);
        while let (whole, true) = net.step() {
            match whole {
                Some((0, rows)) => eager += rows,
                Some((_, rows)) => rest += rows,
                None => {}
            }
        }
        assert_eq!((eager, rest), (1 << 10, 1 << 10), "{propagation:?}");
    }
}

#[test]
fn one_that_is_not_taken_any_more_holds_up_no_other() {
    // Its row is torn and stays so; it is subscribed to anew; all have dropped its table; its producer has gone.
    for what in 0..4 {
        let mut net =
            Net::new(&[(LARGE, EAGER), (LARGE, EAGER), (SMALL, EAGER)], bytes(LARGE + STEP) * 5 / 4);
        let begun = net.step();
        assert_eq!(begun, (None, true));
        let first = match what {
            0 => {
                net.rows[0].torn.set(Some(LARGE - 1));
                vec![]
            }
            1 => {
                net.subscribe(0, 2);
                vec![0]
            }
            2 => {
                net.node.forget(PeerId::worker(0));
                vec![0]
            }
            _ => {
                // Overtaken, it comes as it is later.
                net.set(0);
                vec![0]
            }
        };
        let mut sent = net.all();
        sent.sort_unstable();
        assert_eq!(sent, [first, vec![1, 2]].concat(), "{what}");
        net.rows[0].torn.set(None);
        net.set(0);
        assert_eq!(net.all(), if what == 2 { vec![] } else { vec![0] }, "{what}");
    }
}

#[test]
fn which_rows_are_left_of_one_is_not_kept() {
    const MANY: u32 = 1 << 14;
    let mut net = Net::new(&[(MANY, EAGER)], bytes(2 * MANY) + 24 * u64::from(MANY));
    // Every second row is set, of more than are looked at in a step: listed one by one, those that are left would take much.
    net.rows[0] = Rc::new(Rows { scattered: true, ..Rows::default() });
    net.rows[0].done.set(1);
    let shape = net.shapes[0];
    net.node.produce(id(1), PeerId::worker(1), shape, Written(Rc::clone(&net.rows[0]), 0), None);
    net.all();
    net.shapes.push(shape);
    net.subscribe(1, 1);
    let before = net.account.taken(Resource::Bytes);
    let mut steps = 0;
    // The rows of the first step are charged in steps of their own.
    while net.account.taken(Resource::Bytes) == before {
        assert_eq!(net.step(), (None, true));
        steps += 1;
        assert!(steps < 100_000);
    }
    let charged = net.account.taken(Resource::Bytes) - before;
    let slots = u64::from(MANY / 2) * 8;
    assert!((256 * 1024..256 * 1024 + slots / 8).contains(&charged), "{charged} bytes for a step's rows");
}

// It stayed the one that was begun, and the other waited for ever.
#[test]
fn a_batch_that_is_overtaken_again_and_again_gives_way_to_another_that_is_large() {
    let mut net =
        Net::new(&[(LARGE, Propagation::Eager), (LARGE, Propagation::Eager)], u64::from(LARGE) * 4096);
    net.all();
    for _ in 0..3 {
        net.set(1);
        let came = (0..1000).any(|_| {
            // All of them are torn, as of the moment that it had.
            net.set(0);
            net.step().0.is_some_and(|(rank, _)| rank == 1)
        });
        assert!(came);
    }
    net.all();
}

// It had sixteen rounds, each of which may be a look at all rows of its partition.
#[test]
fn how_long_another_waits_for_it_is_a_few_looks_at_its_rows() {
    // In steps. A row that is torn is looked at, and copied in part.
    let look_at_all = |rows: u32| u64::from(rows) * (ROW + 1) / (ROW * u64::from(STEP));
    for busy in [LARGE, 4 * LARGE, 16 * LARGE] {
        // By itself, and beside a second that is overtaken as often.
        for others in 1..=2 {
            let mut producers = vec![(busy, EAGER); others];
            producers.push((LARGE, EAGER));
            let mut net = Net::new(&producers, u64::from(busy) * 4096 * others as u64);
            net.all();
            let quiet = others as u32;
            for round in 0..6 {
                // Whatever has been done by then of the others.
                for _ in 0..7 * round {
                    (0..quiet).for_each(|rank| net.set(rank));
                    net.step();
                }
                net.set(quiet);
                let mut steps = 0;
                loop {
                    (0..quiet).for_each(|rank| net.set(rank));
                    steps += 1;
                    assert!(steps < 100_000);
                    if net.step().0.is_some_and(|(rank, _)| rank == quiet) {
                        break;
                    }
                }
                let most = 2 * look_at_all(busy) * others as u64 + look_at_all(LARGE) + 20;
                assert!(steps <= most, "{steps} steps, not {most}, beside {others} of {busy} rows");
            }
        }
    }
}

#[test]
fn one_that_a_set_of_all_rows_has_overtaken_comes_next_all_the_same() {
    let mut net = Net::new(&[(LARGE, EAGER), (LARGE, EAGER)], u64::from(LARGE) * 4096);
    net.all();
    net.set(0);
    net.step();
    net.set(1);
    net.step();
    net.set(0);
    assert_eq!(net.all(), [0, 1]);
}

// Nothing was sent any more, and the thread never slept.
#[test]
fn a_batch_whose_sets_are_taken_back_meanwhile_gives_way_to_another() {
    let mut net =
        Net::new(&[(LARGE, Propagation::Eager), (LARGE, Propagation::Eager)], u64::from(LARGE) * 4096);
    net.all();
    net.set(0);
    net.step();
    let done = &net.rows[0].done;
    done.set(done.get() - 1);
    net.set(1);
    let sent: Vec<_> = (0..100).map(|_| net.step()).collect();
    assert!(sent.iter().any(|(whole, _)| *whole == Some((1, LARGE))));
    assert!(!sent[99].1, "it goes on where nothing can be done");
}
