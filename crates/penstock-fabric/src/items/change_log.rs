//! The change log: which rows were written, for the node that passes them on. A ring of entries, each a place and the low half of
//! a set's number.
//!
//! Entries of a set stand there before the set is finished, so that a follower that looks at what is finished first, and at the
//! change log then, misses none of it. It may find entries of the one set that is not finished yet, behind all others. Where the
//! writer came round before the follower, the last entry says up to which set rows may have changed that are not listed.

use super::slot::Progress;
use crate::sync::{Ordering, fence};
use penstock_proto::items::row_memory::Unlisted;

/// Looks for the last entry, while the writer comes round.
const ATTEMPTS: usize = 8;

/// How far a follower has come.
#[derive(Debug, Default)]
pub struct Position(u64);

/// `begun` is never less than the number of entries that were ever stored, of sets that were finished or not. So a follower
/// that has read an entry of a later round in place of its own finds `begun` too large, whichever of its values it sees.
impl Progress {
    /// For the writer: entries up to `begun` are about to be written.
    pub fn begin_log(&self, begun: u64) {
        self.begun.store(begun, Ordering::Relaxed);
        // Pairs with the acquire fence in `stands`.
        fence(Ordering::Release);
    }

    /// For the writer: no entry from `logged` on comes of those that were announced.
    pub fn end_log(&self, logged: u64) {
        self.begun.store(logged, Ordering::Relaxed);
    }

    /// For the writer: entries up to `logged` are written. Before the set that they are about is finished.
    pub fn finish_log(&self, logged: u64) {
        self.logged.store(logged, Ordering::Release);
    }

    /// Entries so far.
    pub fn logged(&self) -> u64 {
        self.logged.load(Ordering::Acquire)
    }

    /// Whether no entry from `from` on, of those that were read, was of a later round.
    fn stands(&self, from: u64, capacity: u64) -> bool {
        // Pairs with the release fence in `begin_log`: a reader that saw an entry of the next round sees that it was begun, or
        // what was said later.
        fence(Ordering::Acquire);
        self.begun.load(Ordering::Relaxed).wrapping_sub(from) <= capacity
    }
}

impl Position {
    /// Passes the entries since the last call to `take`. `entry` loads one, at its number modulo `capacity`. If the writer came
    /// round, what was taken means nothing.
    pub fn advance(
        &mut self,
        progress: &Progress,
        capacity: u64,
        entry: impl Fn(u64) -> u64,
        mut take: impl FnMut(u64),
    ) -> Result<(), Unlisted> {
        let (from, logged) = (self.0, progress.logged());
        if logged == from {
            // Nothing is read, so it is all the same how many entries are being written: while a set has more of them than there is
            // room for, all rows would be looked at again and again.
            return Ok(());
        }
        if logged.wrapping_sub(from) <= capacity {
            (from..logged).for_each(|at| take(entry(at)));
            if progress.stands(from, capacity) {
                self.0 = logged;
                return Ok(());
            }
        }
        Err(self.skip(progress, capacity, entry))
    }

    /// Goes on behind the last entry.
    fn skip(&mut self, progress: &Progress, capacity: u64, entry: impl Fn(u64) -> u64) -> Unlisted {
        for _ in 0..ATTEMPTS {
            self.0 = progress.logged();
            let Some(last) = self.0.checked_sub(1) else { break };
            let until = (entry(last) >> 32) as u32;
            if progress.stands(last, capacity) {
                return Unlisted { until };
            }
        }
        // Sets come too quickly, or one of more rows than the change log has entries: they are of the next set at most.
        Unlisted { until: progress.now().done.wrapping_add(1) as u32 }
    }
}

/// The node over the change log and a mirror: a producer on one thread, its home and a consumer on the other. What moves rows
/// is the code that runs; the memory is of models' atomics.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::super::model::{Memory as Model, Writer};
    use super::super::steps::Words;
    use super::*;
    use loom::sync::Arc;
    use penstock_proto::items::node::{Host, Node};
    use penstock_proto::items::row_memory::{Changed, Look, Memory, Moment, Torn};
    use penstock_proto::items::wire::{MAX_MESSAGE_BYTES, PartitionId, Shape};
    use penstock_proto::items::{Propagation, RowSet};
    use penstock_proto::peer::PeerId;
    use penstock_proto::record::{self, LENGTH_BYTES};
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    const HOME: PeerId = PeerId::server(0);
    const CONSUMER: PeerId = PeerId::worker(1);
    const ID: PartitionId = PartitionId { table: 0, rank: 2 };
    const SHAPE: Shape = Shape { slots: 2, row_bytes: 8, propagation: Propagation::Eager };
    /// Rows as a node sees them: those of the producer, or a mirror.
    enum Rows {
        Followed {
            memory: Arc<Model>,
            position: Position,
            /// Whether the change log ever came round.
            unlisted: bool,
        },
        Mirror {
            rows: Vec<Look>,
            open: Option<(u64, Vec<Look>)>,
            done: u64,
        },
    }

    impl Memory for Rows {
        fn changed(&mut self, changed: &mut Vec<Changed>) -> Result<(), Unlisted> {
            let Self::Followed { memory, position, unlisted } = self else { return Ok(()) };
            let before = changed.len();
            let entry = |at| memory.entry(at).load(Ordering::Relaxed);
            let listed = position.advance(&memory.progress, memory.entries(), entry, |entry| {
                changed.push(Changed { first: entry as u32, count: 1, set: (entry >> 32) as u32 });
            });
            if listed.is_err() {
                changed.truncate(before);
                *unlisted = true;
            }
            listed
        }

        fn now(&self) -> Moment {
            match self {
                Self::Followed { memory, .. } => memory.progress.now(),
                Self::Mirror { done, .. } => Moment { done: *done, several: *done, floor: 0 },
            }
        }

        fn look(&self, slot: u32, now: Moment) -> Result<Look, Torn> {
            self.read(slot, now, &mut [0; 8])
        }

        fn read(&self, slot: u32, now: Moment, out: &mut [u8]) -> Result<Look, Torn> {
            match self {
                Self::Followed { memory, .. } => {
                    let look = memory.look(slot as usize, now.done)?;
                    out.copy_from_slice(&look.number.to_le_bytes());
                    Ok(look)
                }
                Self::Mirror { rows, .. } => Ok(rows[slot as usize]),
            }
        }

        fn run(&self) -> u32 {
            0
        }

        fn read_run(&self, _: u32, _: Moment, _: &mut [u8]) -> Result<Option<Look>, Torn> {
            Ok(None)
        }

        fn open(&mut self, number: u64, _: usize) {
            if let Self::Mirror { rows, open, .. } = self {
                *open = Some((number, rows.clone()));
            }
        }

        fn put(&mut self, slot: u32, number: u64, clock: u64, value: &[u8]) {
            assert_eq!(value, number.to_le_bytes(), "I-1");
            if let Self::Mirror { open: Some((_, rows)), .. } = self
                && number > rows[slot as usize].number
            {
                rows[slot as usize] = Look { number, clock, as_of: 0 };
            }
        }

        fn put_run(&mut self, first: u32, number: u64, clock: u64, values: &[u8]) {
            for (slot, value) in (first..).zip(values.chunks(SHAPE.row_bytes as usize)) {
                self.put(slot, number, clock, value);
            }
        }

        fn finish(&mut self) {
            if let Self::Mirror { rows, open, done } = self
                && let Some((number, all)) = open.take()
            {
                (*rows, *done) = (all, number);
            }
        }

        fn abort(&mut self) {
            if let Self::Mirror { open, .. } = self {
                *open = None;
            }
        }

        fn refresh(&mut self, _: u32, _: u64, _: u64, _: u64, _: Option<&[u8]>) {}

        fn raise(&mut self, _: u64) {}

        fn wake(&mut self) {}
    }

    struct Here;

    impl Host for Here {
        type Memory = Rows;

        fn make(&mut self, _: PartitionId, _: &Shape) -> Option<Rows> {
            None
        }

        fn answered(&mut self, _: u64) {}

        fn flushed(&mut self, _: u64) {}
    }

    struct Net {
        home: Node<Here>,
        consumer: Node<Here>,
    }

    impl Net {
        fn new(memory: &Arc<Model>, consumed: &[u64]) -> Self {
            let (mut home, mut consumer) = (Node::new(Here), Node::new(Here));
            let rows =
                Rows::Followed { memory: Arc::clone(memory), position: Position::default(), unlisted: false };
            home.produce(ID, PeerId::worker(ID.rank), SHAPE, rows, None);
            home.connected(CONSUMER);
            consumer.connected(HOME);
            let none = Look { number: 0, clock: 0, as_of: 0 };
            let mirror = Rows::Mirror { rows: vec![none; consumed.len()], open: None, done: 0 };
            consumer.consume(ID, HOME, SHAPE, RowSet::from_rows(consumed.iter().copied()), mirror);
            let mut net = Self { home, consumer };
            net.settle();
            net
        }

        fn carry(from: &mut Node<Here>, to_peer: PeerId, to: &mut Node<Here>, from_peer: PeerId) -> bool {
            let mut bytes = Vec::new();
            from.transmit(to_peer, &mut bytes, 1 << 20);
            let mut rest = &bytes[..];
            while let Some((head, tail)) = rest.split_first_chunk::<LENGTH_BYTES>() {
                let length = record::length(head, MAX_MESSAGE_BYTES).expect("it is undamaged");
                let (record, tail) = tail.split_at(length);
                to.receive(from_peer, record).unwrap();
                rest = tail;
            }
            !bytes.is_empty()
        }

        fn pass(&mut self) -> bool {
            self.home.collect_all();
            Self::carry(&mut self.home, CONSUMER, &mut self.consumer, HOME)
        }

        /// Until nothing comes, asked twice.
        fn settle(&mut self) {
            Self::carry(&mut self.consumer, HOME, &mut self.home, CONSUMER);
            let mut silent = 0;
            while silent < 2 {
                silent = if self.pass() { 0 } else { silent + 1 };
            }
        }

        fn unlisted(&mut self) -> bool {
            matches!(self.home.memory(ID), Some(Rows::Followed { unlisted: true, .. }))
        }

        /// The mirror's rows, and the set after which they were so.
        fn seen(&mut self) -> (Vec<u64>, u64) {
            match self.consumer.memory(ID) {
                Some(Rows::Mirror { rows, done, .. }) => (rows.iter().map(|row| row.number).collect(), *done),
                _ => (Vec::new(), 0),
            }
        }
    }

    /// What a consumer of some rows saw once while a producer set, and whether the change log had come
    /// round; it sees all in the end.
    fn seen(sets: &'static [&'static [usize]], consumed: &'static [u64]) -> BTreeSet<(Vec<u64>, bool)> {
        let seen = std::sync::Arc::new(Mutex::new(BTreeSet::new()));
        let all = std::sync::Arc::clone(&seen);
        let mut history = vec![vec![0; 2]];
        for (set, number) in sets.iter().zip(1..) {
            let mut rows: Vec<u64> = history[history.len() - 1].clone();
            set.iter().for_each(|&row| rows[row] = number);
            history.push(rows);
        }
        let consumed_of =
            |rows: &Vec<u64>| consumed.iter().map(|&row| rows[row as usize]).collect::<Vec<u64>>();
        let history: Vec<Vec<u64>> = history.iter().map(consumed_of).collect();
        let mut model = loom::model::Builder::new();
        // Without a bound it takes minutes; what is asserted to be met is met within it.
        model.preemption_bound = Some(2);
        model.check(move || {
            let memory = Model::new(2, 1);
            let mut net = Net::new(&memory, consumed);
            let mut producer = Writer::over(Arc::clone(&memory));
            let thread = loom::thread::spawn(move || sets.iter().for_each(|set| producer.set(set)));
            net.pass();
            let (before, done) = net.seen();
            assert_eq!(before, history[done as usize], "N-1: as set {done} left them");
            seen.lock().unwrap().insert((before, net.unlisted()));
            thread.join().unwrap();
            net.settle();
            assert_eq!(Some(&net.seen().0), history.last(), "N-2");
        });
        all.lock().unwrap().clone()
    }

    /// Each of these seen both before the change log came round and after: all that there is to be met.
    fn each_of<const N: usize>(rows: [Vec<u64>; N]) -> BTreeSet<(Vec<u64>, bool)> {
        rows.into_iter().flat_map(|rows| [(rows.clone(), false), (rows, true)]).collect()
    }

    #[test]
    fn rows_of_a_set_reach_a_mirror_together_and_none_is_lost() {
        let seen = seen(&[&[0, 1], &[0]], &[0, 1]);
        assert_eq!(seen, each_of([vec![0, 0], vec![1, 1], vec![2, 1]]));
    }

    #[test]
    fn a_mirror_that_is_as_of_a_set_has_the_rows_of_that_set() {
        // The second set writes no row of the first, so no entry of the first makes up for one of the second that comes late.
        let seen = seen(&[&[0], &[1]], &[0, 1]);
        let met = [vec![0, 0], vec![1, 0], vec![1, 2]];
        assert_eq!(seen, met.into_iter().map(|rows| (rows, false)).collect());
    }

    #[test]
    fn no_row_is_lost_where_the_change_log_comes_round() {
        let seen = seen(&[&[1], &[0], &[0]], &[1]);
        // Nobody looks before a set is listed, and then the first is finished or the change log has not come round.
        assert_eq!(seen, BTreeSet::from([(vec![0], false), (vec![1], false), (vec![1], true)]));
    }
}
