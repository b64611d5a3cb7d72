//! A reader of a mirror that looks while rows come in, as a thread on another core does: between any two steps
//! of what is written there.

use super::judge::{judge_values, was};
use super::producer::{After, Shared};
use crate::rng::Rng;
use penstock_fabric::items::partition::Rows;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Most rows of one look.
const MOST: u64 = 8;

/// What all readers saw.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Looks of which all rows were current together.
    pub(super) looks: u64,
    /// The first thing that may not be.
    pub(super) wrong: Option<String>,
}

pub(super) struct Reader {
    producer: Shared,
    /// The producer's row at each place of the mirror.
    slots: Vec<u32>,
    row_bytes: usize,
    /// Newest number seen, by slot.
    newest: After,
    rng: Rng,
    seen: Rc<RefCell<Seen>>,
}

impl Reader {
    pub(super) fn new(
        producer: Shared,
        slots: Vec<u32>,
        row_bytes: usize,
        seed: u64,
        seen: Rc<RefCell<Seen>>,
    ) -> Self {
        Self { producer, slots, row_bytes, newest: BTreeMap::new(), rng: Rng::new(seed), seen }
    }

    /// Looks at some rows, or not now.
    pub(super) fn look(&mut self, rows: &Rows) {
        if self.slots.is_empty() || self.rng.once_in(2) {
            return;
        }
        let places = self.some_places();
        let mut out = vec![0; self.row_bytes * places.len()];
        let follow = places.windows(2).all(|pair| pair[1] == pair[0] + 1);
        let together = match follow {
            true => rows.read_run(places[0], &mut out),
            false => rows.read_together(&places, |at| at, &mut out),
        };
        // Rows that were never current together are asked for again.
        if together.is_err() {
            return;
        }
        let slots: Vec<u32> = places.iter().map(|&place| self.slots[place as usize]).collect();
        let judged = self.judge(&slots, &out);
        let mut seen = self.seen.borrow_mut();
        seen.looks += 1;
        if let Err(wrong) = judged {
            seen.wrong.get_or_insert_with(|| format!("while rows came in: {wrong}"));
        }
    }

    fn some_places(&mut self) -> Vec<u32> {
        let last = self.slots.len() as u64 - 1;
        let count = self.rng.within(1..=MOST.min(last + 1));
        if self.rng.once_in(2) {
            let first = self.rng.within(0..=last + 1 - count);
            return (first..first + count).map(|place| place as u32).collect();
        }
        let mut places: Vec<u32> = (0..count).map(|_| self.rng.within(0..=last) as u32).collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    fn judge(&mut self, slots: &[u32], values: &[u8]) -> Result<(), String> {
        let history = &self.producer.borrow().history;
        let numbers = judge_values(history, slots, values, self.row_bytes, &mut self.newest)?;
        let last = numbers.values().copied().max().unwrap_or(0);
        if was(&history[last as usize], &numbers) {
            return Ok(());
        }
        Err(format!("rows were never like this after set {last}: {numbers:?}"))
    }
}
