//! A row that is looked at where it stands.

use super::wait::Awaited;
use crate::worker::Error;
use crate::worker::table::Table;
use penstock_fabric::items::partition::Shown;
use penstock_fabric::region::Mapping;
use penstock_proto::items::Slack;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

/// A row where it stands.
#[derive(Debug)]
pub struct View {
    shown: Shown,
    bytes: usize,
}

impl View {
    /// Its bytes, which the producer may be writing once it has come round: look at [`View::is_valid`] after reading.
    pub fn address(&self) -> NonNull<u8> {
        self.shown.address()
    }

    /// The mapping that they stand in, and where.
    pub fn place(&self) -> (&Arc<Mapping>, usize) {
        self.shown.place()
    }

    /// Bytes of the row.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Its version.
    pub fn version(&self) -> u64 {
        self.shown.version()
    }

    /// Whether all that was read so far was read unmixed.
    pub fn is_valid(&self) -> bool {
        self.shown.is_valid()
    }
}

impl Table {
    /// Waits as [`Table::get`] does, and shows the row where it stands, without a copy. A row that is a sum of several producers
    /// stands nowhere.
    pub fn view(
        &self,
        row: u64,
        clock: Option<u64>,
        slack: Option<Slack>,
        timeout: Option<Duration>,
    ) -> Result<View, Error> {
        let inner = &*self.inner;
        inner.check()?;
        let wanted = inner.wanted(clock, slack);
        let &[place] = inner.places(row)? else {
            return Err(Error::WrongFold { name: inner.spec.name.clone(), sum: true });
        };
        let deadline = inner.job.deadline(timeout);
        let source = &inner.sources[place.source as usize];
        inner.pass_barrier(source, (row, place), deadline)?;
        loop {
            // Before the row is looked at, as in a get.
            let is_gone = source.is_gone();
            let shown = inner.verified(row, deadline, || source.rows.show(place.slot, source.rows.now()))?;
            if shown.version() >= wanted.version || inner.is_own(place) || is_gone {
                inner.check_own(row, place, shown.version(), wanted)?;
                return Ok(View { shown, bytes: inner.layout.row_bytes() });
            }
            inner.wait(Awaited::version(row, place), &[place.slot], wanted, deadline)?;
        }
    }
}
