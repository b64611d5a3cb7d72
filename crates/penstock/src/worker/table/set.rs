//! Set and add: rows go into this worker's own partition; threads that wait for them are woken.

use super::{Bell, Chosen, FINAL, Own, Table, TableInner};
use crate::thread;
use crate::worker::Error;
use crate::worker::link::lock;
use penstock_fabric::items::partition::Writer;
use penstock_kernels::Foreign;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, TryLockError};

/// Largest clock that can be given.
pub(super) const MAX_CLOCK: u64 = FINAL - 1;

impl Table {
    /// Replaces rows: `values` holds them one after the other, and they are seen together or not at all. `clock` is the version
    /// that they get; without it, the one after this worker's clock. A row that comes twice is refused, and nothing is set.
    pub fn set<'a, 'v>(
        &self,
        rows: impl Into<Chosen<'a>>,
        values: impl Into<Foreign<'v>>,
        clock: Option<u64>,
    ) -> Result<(), Error> {
        self.inner.write(rows.into(), values.into(), clock, false)
    }

    /// [`Table::set`], unless another thread is writing; then `false`, and nothing was set.
    pub fn try_set<'a, 'v>(
        &self,
        rows: impl Into<Chosen<'a>>,
        values: impl Into<Foreign<'v>>,
        clock: Option<u64>,
    ) -> Result<bool, Error> {
        self.inner.try_write(rows.into(), values.into(), clock, false)
    }

    /// [`Table::add`], likewise.
    pub fn try_add<'a, 'v>(
        &self,
        rows: impl Into<Chosen<'a>>,
        values: impl Into<Foreign<'v>>,
        clock: Option<u64>,
    ) -> Result<bool, Error> {
        self.inner.try_write(rows.into(), values.into(), clock, true)
    }

    /// Adds to rows of a table with a sum, likewise. What comes twice is added twice.
    pub fn add<'a, 'v>(
        &self,
        rows: impl Into<Chosen<'a>>,
        values: impl Into<Foreign<'v>>,
        clock: Option<u64>,
    ) -> Result<(), Error> {
        self.inner.write(rows.into(), values.into(), clock, true)
    }
}

impl TableInner {
    fn write(
        &self,
        rows: Chosen<'_>,
        values: Foreign<'_>,
        clock: Option<u64>,
        add: bool,
    ) -> Result<(), Error> {
        match self.own_of(&rows, values, add)? {
            Some((first, own)) => self.write_by(own, lock(&own.writer), first, &rows, values, clock),
            None => Ok(()),
        }
    }

    #[inline]
    fn try_write(
        &self,
        rows: Chosen<'_>,
        values: Foreign<'_>,
        clock: Option<u64>,
        add: bool,
    ) -> Result<bool, Error> {
        let Some((first, own)) = self.own_of(&rows, values, add)? else { return Ok(true) };
        let writer = match own.writer.try_lock() {
            Ok(writer) => writer,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(false),
        };
        self.write_by(own, writer, first, &rows, values, clock).map(|()| true)
    }

    /// The first of the rows, and where this worker's rows stand; `None` if there is nothing to write.
    #[inline]
    fn own_of(
        &self,
        rows: &Chosen<'_>,
        values: Foreign<'_>,
        add: bool,
    ) -> Result<Option<(u64, &Own)>, Error> {
        self.check()?;
        if self.spec.sum.is_some() != add {
            return Err(Error::WrongFold { name: self.spec.name.clone(), sum: self.spec.sum.is_some() });
        }
        self.check_size(rows.len(), values.len())?;
        let Some(first) = rows.first() else { return Ok(None) };
        Ok(Some((first, self.own.as_ref().ok_or_else(|| self.foreign(first))?)))
    }

    #[inline]
    fn write_by(
        &self,
        own: &Own,
        mut writer: MutexGuard<'_, Writer>,
        first: u64,
        rows: &Chosen<'_>,
        values: Foreign<'_>,
        clock: Option<u64>,
    ) -> Result<(), Error> {
        // Another thread may have left the job, or dropped the table, since the call began: rows that are set after that reach
        // no reader.
        if self.is_over() {
            self.check()?;
        }
        let clock = clock.unwrap_or_else(|| self.job.shown_clock() + 1);
        // Everything is judged before anything is written, except whether a row comes twice: in that case what was written is
        // dropped.
        if rows.len() == 1 {
            let slot = self.slot(own, &writer, first, clock)?;
            let mut set = writer.begin(1);
            match self.spec.sum {
                Some(dtype) => set.add(slot, clock, dtype, values),
                None => set.put(slot, clock, values),
            }
            set.finish();
        } else if let Some(slot) = self.run(own, &writer, rows, clock) {
            let mut set = writer.begin(rows.len());
            set.put_run(slot, clock, values);
            set.finish();
        } else {
            let slots: Result<Vec<u32>, Error> =
                rows.iter().map(|row| self.slot(own, &writer, row, clock)).collect();
            let slots = slots?;
            let mut set = writer.begin(slots.len());
            let bytes = self.layout.row_bytes();
            for (at, slot) in slots.into_iter().enumerate() {
                let value = values.part(at * bytes..(at + 1) * bytes);
                match self.spec.sum {
                    Some(dtype) => set.add(slot, clock, dtype, value),
                    None if set.has(slot) => return Err(self.twice(own, slot)),
                    None => set.put(slot, clock, value),
                }
            }
            set.finish();
        }
        drop(writer);
        self.wake(own);
        self.counters.sets.fetch_add(1, Ordering::Relaxed);
        self.counters.rows_set.fetch_add(rows.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// The first slot of rows that follow each other, if they can be set all at once.
    fn run(&self, own: &Own, writer: &Writer, rows: &Chosen<'_>, clock: u64) -> Option<u32> {
        let run = rows.run().filter(|_| self.spec.sum.is_none())?;
        let first = own.produce.place_of_run(&run)? as u32;
        let forwards = writer.is_latest(clock) || clock >= writer.newest_clock(first, rows.len() as u32);
        (forwards && clock <= MAX_CLOCK).then_some(first)
    }

    #[inline]
    fn slot(&self, own: &Own, writer: &Writer, row: u64, clock: u64) -> Result<u32, Error> {
        let slot = own.produce.place(row).ok_or_else(|| self.foreign(row))? as u32;
        if writer.is_latest(clock) && clock <= MAX_CLOCK {
            return Ok(slot);
        }
        let (_, newest) = writer.peek(slot);
        if clock < newest || clock > MAX_CLOCK {
            let name = self.spec.name.clone();
            return Err(Error::ClockBackwards { name, row, clock: newest, got: clock });
        }
        Ok(slot)
    }

    fn twice(&self, own: &Own, slot: u32) -> Error {
        let row = own.produce.nth(slot.into()).unwrap_or_default();
        Error::RowTwice { name: self.spec.name.clone(), row }
    }

    fn foreign(&self, row: u64) -> Error {
        if row >= self.spec.rows {
            return self.unknown(row);
        }
        Error::NotProducer { name: self.spec.name.clone(), row, rank: self.job.rank }
    }

    fn wake(&self, own: &Own) {
        if !own.waiters.wake(&own.rows) {
            return;
        }
        match &own.bell {
            Bell::Home(bell) => thread::ring(bell),
            Bell::Relay(relay) => relay.kick(),
        }
    }

    /// This worker has completed `clock` iterations: rows that it did not set are unchanged by them.
    pub(in crate::worker) fn raise(&self, clock: u64) {
        if let Some(own) = &self.own {
            lock(&own.writer).raise(clock);
            self.wake(own);
        }
    }

    /// This worker leaves: nothing newer will come of its rows.
    pub(in crate::worker) fn leave(&self) {
        self.raise(FINAL);
    }
}
