//! A producer: it goes on between any two looks of those that pass its rows on, as one on another core does.

use crate::rng::Rng;
use penstock_fabric::items::partition::{Layout, Rows, Writer};
use penstock_proto::items::FINAL;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The rows after a set: by slot, the number of the set that wrote it.
pub(super) type After = BTreeMap<u32, u64>;

pub(super) struct Producer {
    writer: Writer,
    slots: u32,
    row_bytes: usize,
    /// Sets of one row that come round the change log.
    round: u32,
    /// What it has done, set by set.
    pub(super) history: Vec<After>,
    /// By iterations completed: the last set before.
    pub(super) marks: Vec<usize>,
    clock: u64,
    rng: Rng,
    /// Whether it may go on: it has not ended.
    works: bool,
}

pub(super) type Shared = Rc<RefCell<Producer>>;

impl Producer {
    pub(super) fn new(slots: u32, row_bytes: u32, seed: u64) -> Self {
        let layout = Layout::new(slots.max(1), row_bytes);
        let round = layout.entries() + 1;
        let writer = Writer::private(layout).expect("memory for a simulated partition");
        let (history, marks) = (vec![After::new()], vec![0]);
        let (row_bytes, rng) = (row_bytes as usize, Rng::new(seed));
        Self { writer, slots, row_bytes, round, history, marks, clock: 0, rng, works: slots > 0 }
    }

    pub(super) fn rows(&self) -> &Rows {
        self.writer.rows()
    }

    fn value(&self, slot: u32, number: u64) -> Vec<u8> {
        let mut value = vec![slot as u8 ^ number as u8; self.row_bytes];
        value[..8].copy_from_slice(&number.to_le_bytes());
        value
    }

    fn note(&mut self, rows: impl IntoIterator<Item = u32>, number: u64) {
        let mut after = self.history.last().cloned().unwrap_or_default();
        after.extend(rows.into_iter().map(|slot| (slot, number)));
        self.history.push(after);
    }

    fn set(&mut self, rows: &[u32]) {
        let number = self.writer.done() + 1;
        let values: Vec<Vec<u8>> = rows.iter().map(|&slot| self.value(slot, number)).collect();
        let mut set = self.writer.begin(rows.len());
        rows.iter().zip(&values).for_each(|(&slot, value)| set.put(slot, self.clock + 1, value));
        set.finish();
        self.note(rows.iter().copied(), number);
    }

    /// Many rows that follow each other.
    fn set_run(&mut self) {
        let (number, slots) = (self.writer.done() + 1, self.slots);
        let latest = if self.rng.once_in(2) { 0 } else { u64::from(slots) / 4 };
        let first = self.rng.within(0..=latest) as u32;
        let run = first..slots - self.rng.within(0..=u64::from(slots - first) / 8) as u32;
        let values: Vec<u8> = run.clone().flat_map(|slot| self.value(slot, number)).collect();
        let mut set = self.writer.begin(run.len());
        set.put_run(first, self.clock + 1, &values);
        set.finish();
        self.note(run, number);
    }

    /// Sets a row until nothing else stands in the change log.
    fn come_round(&mut self, row: u32) {
        (0..self.round).for_each(|_| self.set(&[row]));
    }

    /// Sets its rows, or most of them, in some sets; now and then one of them until the change log lists none of the others.
    pub(super) fn iterate(&mut self) {
        let mut rows: Vec<u32> = (0..self.slots).filter(|_| !self.rng.once_in(6)).collect();
        self.rng.shuffle(&mut rows);
        while !rows.is_empty() {
            let some = rows.split_off(self.rng.within(0..=rows.len() as u64 - 1) as usize);
            if self.rng.once_in(3) { self.set_run() } else { self.set(&some) }
        }
        if self.slots > 0 && self.rng.once_in(8) {
            let row = self.rng.within(0..=u64::from(self.slots) - 1) as u32;
            self.come_round(row);
        }
    }

    /// Has completed an iteration; its last is the `last`.
    pub(super) fn complete(&mut self, last: u64) {
        self.clock += 1;
        self.marks.push(self.history.len() - 1);
        self.works &= self.clock < last;
        self.writer.raise(self.clock);
    }

    /// The number of its last set.
    pub(super) fn done(&self) -> usize {
        self.history.len() - 1
    }

    /// It leaves: nothing newer comes.
    pub(super) fn leave(&mut self) {
        self.works = false;
        self.writer.raise(FINAL);
    }

    /// Between two looks of another: most often nothing, a set, or so many that the change log comes round.
    pub(super) fn go_on(&mut self) {
        if !self.works || !self.rng.once_in(30) {
            return;
        }
        let last = u64::from(self.slots) - 1;
        let row = self.rng.within(0..=last) as u32;
        if self.rng.once_in(15) {
            let other = self.rng.within(0..=last) as u32;
            self.set(&[other]);
            self.come_round(row);
        } else if self.rng.once_in(2) {
            self.set(&[row]);
        } else {
            let mut rows = vec![row, self.rng.within(0..=last) as u32, self.rng.within(0..=last) as u32];
            rows.sort_unstable();
            rows.dedup();
            self.set(&rows);
        }
    }
}
