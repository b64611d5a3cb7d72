//! Memory of models' atomics, for the models of this folder: what is written to it is written by the
//! [`Steps`] that the program takes.

use super::slot::{Look, Progress, RowGroup, Slot, Spot, Torn};
use super::steps::{Steps, Words};
use crate::sync::{AtomicU64, Ordering, OwnedU64};
use loom::sync::Arc;

/// A partition's words. Every word of a row is the number of the set that wrote it, and its clock too.
pub(super) struct Memory {
    pub(super) progress: Progress,
    pub(super) slots: Vec<Slot>,
    pub(super) row_group: Option<RowGroup>,
    /// By row, buffer and word.
    own: Vec<[Vec<AtomicU64>; 2]>,
    /// The row group's: by buffer and row.
    common: [Vec<AtomicU64>; 2],
    entries: Vec<OwnedU64>,
}

/// The writer of a [`Memory`].
pub(super) type Writer = Steps<Arc<Memory>>;

impl Memory {
    /// `rows` rows of `words` words, and a change log of two entries.
    pub(super) fn new(rows: usize, words: usize) -> Arc<Self> {
        Arc::new(Self::made(rows, words, None))
    }

    /// Two rows of one word, which have a row group.
    pub(super) fn with_row_group() -> Arc<Self> {
        Arc::new(Self::made(2, 1, Some(RowGroup::new())))
    }

    fn made(rows: usize, words: usize, row_group: Option<RowGroup>) -> Self {
        let zeros = |words| (0..words).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        Self {
            progress: Progress::new(),
            slots: (0..rows).map(|_| Slot::new()).collect(),
            row_group,
            own: (0..rows).map(|_| [zeros(words), zeros(words)]).collect(),
            common: [zeros(rows), zeros(rows)],
            entries: (0..2).map(|_| OwnedU64::new(0)).collect(),
        }
    }

    /// One look at a row as of set `done`.
    pub(super) fn look(&self, row: usize, done: u64) -> Result<Look, Torn> {
        let mut words = Vec::new();
        let look =
            self.slots[row].read(self.row_group.as_ref(), done, |spot| words = self.words(row, spot))?;
        assert!(words.iter().all(|&word| word == look.number), "I-1: {words:?} of {look:?}");
        assert_eq!(look.clock, look.number, "I-1: figure 3.1");
        Ok(look)
    }

    /// The same for a row that is read where it stands, after it was looked at.
    pub(super) fn view(&self, row: usize, done: u64) -> Result<u64, Torn> {
        let mut at = Spot::Slot(0);
        let look = self.slots[row].read(self.row_group.as_ref(), done, |spot| at = spot)?;
        let words = self.words(row, at);
        if !self.slots[row].still(self.row_group.as_ref(), at, look) {
            return Err(Torn);
        }
        assert!(words.iter().all(|&word| word == look.number), "I-1: {words:?} of {look:?}");
        Ok(look.number)
    }

    fn words(&self, row: usize, spot: Spot) -> Vec<u64> {
        match spot {
            Spot::Slot(buffer) => self.own[row][buffer].iter().map(load).collect(),
            Spot::RowGroup(buffer) => vec![load(&self.common[buffer][row])],
        }
    }

    /// The same, for its number.
    pub(super) fn get(&self, row: usize, done: u64) -> Result<u64, Torn> {
        self.look(row, done).map(|look| look.number)
    }

    /// The rows of the row group, if the newest of all stands there.
    pub(super) fn get_row_group(&self, done: u64) -> Result<Option<u64>, Torn> {
        let Some(row_group) = &self.row_group else { return Ok(None) };
        let mut words = Vec::new();
        let look = row_group.read(done, |buffer| words.extend(self.common[buffer].iter().map(load)))?;
        look.map_or(Ok(None), |look| {
            assert!(words.iter().all(|&word| word == look.number), "I-1: {words:?} of {look:?}");
            Ok(Some(look.number))
        })
    }
}

fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

impl Words for Arc<Memory> {
    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn entries(&self) -> u64 {
        self.entries.len() as u64
    }

    fn entry(&self, at: u64) -> &OwnedU64 {
        &self.entries[at as usize % self.entries.len()]
    }

    fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    fn head(&self, slot: u32) -> &Slot {
        &self.slots[slot as usize]
    }

    fn row_groups(&self) -> u32 {
        self.row_group.iter().count() as u32
    }

    fn row_group(&self, _: u32) -> &RowGroup {
        self.row_group.as_ref().expect("the rows have a row group")
    }

    fn row_group_of(&self, _: u32) -> Option<&RowGroup> {
        self.row_group.as_ref()
    }
}

impl Writer {
    /// One set of some rows.
    pub(super) fn set(&mut self, rows: &[usize]) {
        let number = self.done() + 1;
        self.open(number, rows.len());
        rows.iter().for_each(|&row| self.put_number(row, number));
        self.finish();
    }

    /// One set of all rows, in their row group.
    pub(super) fn set_row_group(&mut self) {
        let number = self.done() + 1;
        self.open(number, self.words().slots.len());
        self.put_row_group_number(number);
        self.finish();
    }

    /// All rows in the open set, in their row group.
    pub(super) fn put_row_group_number(&mut self, number: u64) {
        self.put_row_group(0, number, number, |memory, buffer| {
            memory.common[buffer].iter().for_each(|word| word.store(number, Ordering::Relaxed));
        });
    }

    /// A row of the open set.
    pub(super) fn put_number(&mut self, row: usize, number: u64) {
        self.put(row as u32, number, number, |memory, buffer, _| memory.fill(row, buffer, number));
    }

    /// A row of a mirror whose rows come one by one.
    pub(super) fn refresh_to(&mut self, row: usize, number: u64) {
        let fill = |memory: &Arc<Memory>, buffer: usize, _: Spot| memory.fill(row, buffer, number);
        self.refresh(row as u32, number, number, number, Some(fill));
    }
}

impl Memory {
    fn fill(&self, row: usize, buffer: usize, number: u64) {
        self.own[row][buffer].iter().for_each(|word| word.store(number, Ordering::Relaxed));
    }
}
