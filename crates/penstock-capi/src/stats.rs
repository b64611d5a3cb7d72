//! What a worker has done: counters of a job and of a table.

use crate::boundary::{guard, guard_job, here, shared, written};
use crate::job::penstock_job;
use crate::status::penstock_status;
use crate::table::penstock_table;

/// What a worker has done since it joined. Set `struct_size` before the call.
#[repr(C)]
#[derive(Debug, Default)]
pub struct penstock_job_counters {
    /// sizeof(penstock_job_counters).
    pub struct_size: usize,
    /// Bytes of contributions that left.
    pub pushed_bytes: u64,
    /// Bytes of values that were copied out or read in place.
    pub pulled_bytes: u64,
    /// Contributions that left.
    pub pushes: u64,
    /// Pulls.
    pub pulls: u64,
    /// Seconds spent waiting for the others.
    pub waited: f64,
    /// The most iterations that a pull lagged behind.
    pub max_staleness: u64,
    /// Copies of chunks that were repeated because their server was writing.
    pub copies_retried: u64,
    /// The largest slack in force, where it is adaptive.
    pub slack: u64,
}

/// What a worker has done with a table since it declared it. Set `struct_size` before the call.
#[repr(C)]
#[derive(Debug, Default)]
pub struct penstock_table_counters {
    /// sizeof(penstock_table_counters).
    pub struct_size: usize,
    /// Calls of set and add.
    pub sets: u64,
    /// Rows that they wrote.
    pub rows_set: u64,
    /// Calls of get.
    pub gets: u64,
    /// Rows that they returned.
    pub rows_got: u64,
    /// Seconds that gets waited.
    pub waited: f64,
    /// Copies that were repeated because the producer overtook them.
    pub retries: u64,
    /// The most clocks that a row lagged behind what a get without slack would ask for.
    pub max_staleness: u64,
    /// Bytes sent to other hosts.
    pub sent_bytes: u64,
    /// Bytes received from other hosts.
    pub received_bytes: u64,
    /// The current slack of a get that does not give one; PENSTOCK_SLACK_UNBOUNDED for no bound.
    pub slack: i64,
}

/// What this worker has done since it joined.
///
/// @param counters  Where it is left: as many of its bytes as `counters->struct_size` says.
///
/// Errors: PENSTOCK_BAD_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_job_stats(
    job: *const penstock_job,
    counters: *mut penstock_job_counters,
) -> penstock_status {
    guard(|| {
        // SAFETY: as penstock.h says of every pointer.
        let stats = unsafe { shared(job, "job") }?.core().stats();
        let made = penstock_job_counters {
            struct_size: 0,
            pushed_bytes: stats.pushed_bytes,
            pulled_bytes: stats.pulled_bytes,
            pushes: stats.pushes,
            pulls: stats.pulls,
            waited: stats.waited.as_secs_f64(),
            max_staleness: stats.max_staleness,
            copies_retried: stats.copies_retried,
            slack: stats.slack.into(),
        };
        // SAFETY: likewise; the structure says itself how long it is.
        unsafe { written(counters, made, "counters") }
    })
}

/// What this worker has done with a table since it declared it.
///
/// @param counters  Where it is left: as many of its bytes as `counters->struct_size` says.
///
/// Errors: PENSTOCK_BAD_ARGUMENT, PENSTOCK_TABLE_DROPPED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_table_stats(
    table: *const penstock_table,
    counters: *mut penstock_table_counters,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let table = unsafe { here(table, "table", caller) }?.core()?;
        let stats = table.stats();
        let made = penstock_table_counters {
            struct_size: 0,
            sets: stats.sets,
            rows_set: stats.rows_set,
            gets: stats.gets,
            rows_got: stats.rows_got,
            waited: stats.waited.as_secs_f64(),
            retries: stats.retries,
            max_staleness: stats.max_staleness,
            sent_bytes: stats.sent_bytes,
            received_bytes: stats.received_bytes,
            slack: crate::table::spell_slack(table.slack()),
        };
        // SAFETY: likewise; the structure says itself how long it is.
        unsafe { written(counters, made, "counters") }
    })
}
