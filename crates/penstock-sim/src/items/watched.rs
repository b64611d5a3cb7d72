//! Memory of the simulated nodes: the real one, beside whose looks the producer goes on; broken on purpose
//! where that is asked for.

use super::producer::Shared;
use super::reader::Reader;
use super::sabotage::Sabotage;
use penstock_fabric::items::partition::Rows;
use penstock_fabric::items::partition_memory::PartitionMemory;
use penstock_proto::items::row_memory::{Changed, Look, Memory, Moment, Torn, Unlisted};
use std::cell::Cell;
use std::collections::BTreeMap;

pub(super) struct Watched {
    memory: PartitionMemory,
    /// What writes it, if nothing here does.
    producer: Option<Shared>,
    sabotage: Option<Sabotage>,
    /// What reads while it is written.
    reader: Option<Reader>,
    /// What was written first, by slot.
    first: BTreeMap<u32, Vec<u8>>,
    writes: u64,
    /// Whether a row was torn since what has changed was last listed.
    torn: Cell<bool>,
}

impl Watched {
    pub(super) fn new(memory: PartitionMemory, producer: Option<Shared>, sabotage: Option<Sabotage>) -> Self {
        Self {
            memory,
            producer,
            sabotage,
            reader: None,
            first: BTreeMap::new(),
            writes: 0,
            torn: Cell::default(),
        }
    }

    pub(super) fn rows(&self) -> &Rows {
        self.memory.rows()
    }

    pub(super) fn read_by(&mut self, reader: Reader) {
        self.reader = Some(reader);
    }

    /// Something was written.
    fn written(&mut self, number: u64) {
        if self.is(Sabotage::ShowsHalfSets) {
            self.memory.finish();
            self.memory.open(number, 1);
        }
        self.shown();
    }

    fn shown(&mut self) {
        if let Some(reader) = &mut self.reader {
            reader.look(self.memory.rows());
        }
    }

    fn is(&self, sabotage: Sabotage) -> bool {
        self.sabotage == Some(sabotage)
    }

    fn meanwhile(&self) {
        if let Some(producer) = &self.producer {
            producer.borrow_mut().go_on();
        }
    }

    fn moment(&self, now: Moment) -> Moment {
        if self.is(Sabotage::SplitsSets) { self.memory.now() } else { now }
    }

    /// What is written for rows that came.
    fn spoilt(&mut self, slot: u32, value: &[u8]) -> Option<Vec<u8>> {
        self.writes += 1;
        let some = self.writes.is_multiple_of(3);
        let mut value = value.to_vec();
        let first = self.first.entry(slot).or_insert_with(|| value.clone());
        match self.sabotage {
            Some(Sabotage::LosesRows) if some => return None,
            Some(Sabotage::FallsBack) if some && first.len() == value.len() => value.clone_from(first),
            Some(Sabotage::TearsRows) if some => {
                if let Some(last) = value.last_mut() {
                    *last ^= 0x80;
                }
            }
            _ => {}
        }
        Some(value)
    }

    fn version(&self, version: u64) -> u64 {
        version + u64::from(self.is(Sabotage::PromisesTooMuch))
    }
}

impl Memory for Watched {
    fn changed(&mut self, changed: &mut Vec<Changed>) -> Result<(), Unlisted> {
        self.meanwhile();
        let (before, listed) = (changed.len(), self.memory.changed(changed));
        match self.sabotage {
            Some(Sabotage::ForgetsTheUnlisted) => Ok(()),
            Some(Sabotage::KeepsSilent) => {
                changed.truncate(before);
                Ok(())
            }
            Some(Sabotage::ForgetsWhatChangedMeanwhile) => {
                if self.torn.take() && changed.len() > before {
                    changed.remove(before);
                }
                listed
            }
            _ => listed,
        }
    }

    fn now(&self) -> Moment {
        self.meanwhile();
        self.memory.now()
    }

    fn look(&self, slot: u32, now: Moment) -> Result<Look, Torn> {
        self.meanwhile();
        self.memory.look(slot, self.moment(now))
    }

    fn read(&self, slot: u32, now: Moment, out: &mut [u8]) -> Result<Look, Torn> {
        self.meanwhile();
        let look = self.memory.read(slot, self.moment(now), out);
        self.torn.set(self.torn.get() || look.is_err());
        let look = look?;
        // As of the moment that was asked for, or so it says.
        let number = if self.is(Sabotage::SplitsSets) { look.number.min(now.done) } else { look.number };
        Ok(Look { number, ..look })
    }

    fn run(&self) -> u32 {
        self.memory.run()
    }

    fn read_run(&self, first: u32, now: Moment, out: &mut [u8]) -> Result<Option<Look>, Torn> {
        self.meanwhile();
        self.memory.read_run(first, self.moment(now), out)
    }

    fn open(&mut self, number: u64, rows: usize) {
        self.memory.open(number, rows);
        self.shown();
    }

    fn put(&mut self, slot: u32, number: u64, clock: u64, value: &[u8]) {
        if let Some(value) = self.spoilt(slot, value) {
            let clock = self.version(clock);
            self.memory.put(slot, number, clock, &value);
            self.written(number);
        }
    }

    fn put_run(&mut self, first: u32, number: u64, clock: u64, values: &[u8]) {
        if let Some(values) = self.spoilt(first, values) {
            let clock = self.version(clock);
            self.memory.put_run(first, number, clock, &values);
            self.written(number);
        }
    }

    fn finish(&mut self) {
        self.memory.finish();
        self.shown();
    }

    fn abort(&mut self) {
        self.memory.abort();
        self.shown();
    }

    fn refresh(&mut self, slot: u32, number: u64, version: u64, as_of: u64, value: Option<&[u8]>) {
        let version = self.version(version);
        match value {
            None => self.memory.refresh(slot, number, version, as_of, None),
            Some(value) => {
                if let Some(value) = self.spoilt(slot, value) {
                    self.memory.refresh(slot, number, version, as_of, Some(&value));
                }
            }
        }
        self.shown();
    }

    fn raise(&mut self, floor: u64) {
        self.memory.raise(self.version(floor));
    }

    fn wake(&mut self) {
        self.memory.wake();
    }
}
