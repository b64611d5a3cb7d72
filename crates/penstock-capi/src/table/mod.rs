//! Item tables: rows with versions, which some workers produce and others read.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | a table's handle, and numbers as C has them |
//! | [`options`] | what a table is declared to be |
//! | [`calls`] | declaring and dropping it; set, add and get |
//! | [`views`] | rows that are read in place |

use crate::boundary::{Made, Told};
use crate::call::Call;
use crate::request::Line;
use crate::status::{Failure, penstock_status};
use crate::tensor::{PENSTOCK_SLACK_DEFAULT, PENSTOCK_SLACK_UNBOUNDED};
pub(crate) use calls::Get;
use penstock::worker::{Chosen, Table};
use penstock_fabric::forked::Maker;
use penstock_proto::items::Slack;
use std::cell::UnsafeCell;
use std::time::Duration;

/// The default clock. Of a set or an add: iterations completed, plus one; what is made in iteration t is version t + 1. Of a
/// get: iterations completed.
pub const PENSTOCK_CLOCK_AUTO: u64 = u64::MAX;

// In the order in which penstock.h has them.
pub mod options;

/// A table of a job. The handle is freed with its job; the table too, or when it is dropped.
pub struct penstock_table {
    table: UnsafeCell<Option<Table>>,
    name: String,
    row_bytes: usize,
    timeout: Duration,
    maker: Maker,
    /// Gets that were started and are not done.
    requests: Line,
}

// SAFETY: `table` is written by `penstock_table_drop` alone, while no other call for the table is under way, as penstock.h says.
unsafe impl Sync for penstock_table {}

impl Made for penstock_table {
    fn maker(&self) -> &Maker {
        &self.maker
    }

    fn told(&self) -> &Told {
        self.requests.told()
    }
}

pub mod calls;

pub mod views;

/// A slack as C has it.
pub(crate) fn spell_slack(slack: Slack) -> i64 {
    match slack {
        Slack::Bound(bound) => bound.into(),
        Slack::Unbounded => PENSTOCK_SLACK_UNBOUNDED,
    }
}

/// A clock as the core reads it.
pub(crate) fn clock(clock: u64) -> Option<u64> {
    (clock != PENSTOCK_CLOCK_AUTO).then_some(clock)
}

/// A slack as the core reads it.
pub(crate) fn slack(slack: i64) -> Result<Option<Slack>, Failure> {
    match slack {
        PENSTOCK_SLACK_DEFAULT => Ok(None),
        PENSTOCK_SLACK_UNBOUNDED => Ok(Some(Slack::Unbounded)),
        bound => u32::try_from(bound).map(|bound| Some(Slack::Bound(bound))).map_err(|_| {
            let message = format!("expected a slack from 0 to {}, got {bound}", u32::MAX);
            let hint = "or PENSTOCK_SLACK_DEFAULT, or PENSTOCK_SLACK_UNBOUNDED";
            Failure::new(penstock_status::PENSTOCK_BAD_OPTION, message, hint)
        }),
    }
}

impl penstock_table {
    /// The table, unless it was dropped.
    #[inline]
    pub(crate) fn core(&self) -> Result<&Table, Failure> {
        // SAFETY: no thread drops the table while another call for it is under way, as penstock.h says.
        let table = unsafe { &*self.table.get() };
        table.as_ref().ok_or_else(|| penstock::worker::Error::Dropped { name: self.name.clone() }.into())
    }

    /// Its requests.
    pub(crate) fn requests(&self) -> &Line {
        &self.requests
    }

    /// How long its calls wait.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// A get that was told how long to wait, or where to leave versions.
    fn get(
        &self,
        rows: Chosen<'_>,
        out: &mut [u8],
        clock: Option<u64>,
        slack: Option<Slack>,
        call: Call<'_>,
    ) -> Result<(), Failure> {
        let (table, timeout) = (self.core()?, Some(call.timeout.unwrap_or(self.timeout)));
        match call.versions {
            Some(versions) => table.get_versions(rows, out, versions, clock, slack, timeout)?,
            None => table.get(rows, out, clock, slack, timeout)?,
        };
        Ok(())
    }

    /// Bytes of `count` rows.
    pub(crate) fn bytes(&self, count: usize) -> Result<usize, Failure> {
        count.checked_mul(self.row_bytes).ok_or_else(|| {
            Failure::argument(format!(
                "expected rows that fit into memory, got {count} of {} bytes",
                self.row_bytes
            ))
        })
    }
}
