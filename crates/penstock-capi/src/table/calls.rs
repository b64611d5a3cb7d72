//! Declaring and dropping a table; set, add and get.

use super::options::{judge, penstock_range, penstock_table_options};
use super::{clock, penstock_table, slack};
use crate::boundary::{Caller, array, array_mut, guard_job, here, result, shared, timeout, value};
use crate::call::{Call, penstock_call};
use crate::job::penstock_job;
use crate::request::later;
use crate::status::{Failure, penstock_status};
use penstock::worker::Chosen;
use penstock_fabric::forked::Maker;
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::null;
use std::time::Instant;

/// Declares a table. Every worker of the job declares every table; it may declare that it produces and consumes no rows.
///
/// Rows start as zeros with version 0. A row's version is the clock of the newest set or add; a worker that has completed t
/// iterations has all its rows at version t or above: a row that it did not set counts as unchanged. Memory: the rows that
/// this worker produces or consumes. Returns when all workers have declared it.
///
/// Repeating the declaration gives the same table; a different one with its name is PENSTOCK_DECLARATION_CONFLICT, and the text
/// names what differs. If a worker was late (PENSTOCK_DEADLINE_EXCEEDED), all workers whose call failed may repeat it.
///
/// @param table  Where the table is stored. It belongs to the job: penstock_finish() frees it.
///
/// Errors: PENSTOCK_BAD_NAME, PENSTOCK_BAD_SHAPE, PENSTOCK_BAD_DTYPE, PENSTOCK_BAD_OPTION (the slack), PENSTOCK_UNKNOWN_ROW,
/// PENSTOCK_TWO_PRODUCERS, PENSTOCK_DECLARATION_CONFLICT, PENSTOCK_OUT_OF_MEMORY, PENSTOCK_DEADLINE_EXCEEDED (the text names
/// the ranks that have not declared it), PENSTOCK_TABLE_DROPPED (others have not dropped a table of this name yet),
/// PENSTOCK_JOB_CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_table_create(
    job: *const penstock_job,
    options: *const penstock_table_options,
    table: *mut *mut penstock_table,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let job = unsafe { here(job, "job", caller) }?;
        // SAFETY: likewise.
        let options = unsafe { shared(options, "options") }?;
        // SAFETY: likewise.
        let table = unsafe { result(table, "table") }?;
        // SAFETY: likewise.
        let declaration = unsafe { options.read() }?;
        let (row_bytes, timeout) = (declaration.row_bytes as usize, declaration.timeout);
        let core = job.core().table(declaration)?;
        *table = job.keep(core, |core| penstock_table {
            name: core.spec().name.clone(),
            table: UnsafeCell::new(Some(core)),
            row_bytes,
            timeout: timeout.unwrap_or_else(|| job.core().options().deadline),
            maker: Maker::this(),
            requests: job.requests().line(),
        });
        Ok(())
    })
}

/// Drops a table. Every worker drops it, as every worker declared it; the call returns when all have.
///
/// Then its memory is free, and so is its name, for another table. Only penstock_finish() frees its handle; from now on every
/// call with it returns PENSTOCK_TABLE_DROPPED, even if the others are late: then repeat this call to continue waiting. Until
/// they drop it too, the others read what this worker has set so far, and do not wait for anything newer from it. Views of it
/// stay valid.
///
/// No other call for the table may be in progress in another thread; requests for it are waited for.
///
/// @param timeout  Seconds to wait; 0: the option `deadline`.
///
/// Errors: PENSTOCK_DEADLINE_EXCEEDED (the text names the ranks that have not dropped it), PENSTOCK_TABLE_DROPPED (it was dropped
/// before), and those of penstock_clock().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_table_drop(table: *mut penstock_table, timeout: f64) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let table = unsafe { here(table.cast_const(), "table", caller) }?;
        let core = table.core()?;
        let wait = self::timeout(timeout)?.unwrap_or(table.timeout);
        let since = Instant::now();
        let until = later(since, wait);
        table.requests.take_turn(&format!("dropping table `{}`", table.name), since, until)?;
        core.discard(Some(until.saturating_duration_since(Instant::now())))?;
        // SAFETY: no other thread makes a call for the table meanwhile, as penstock.h says, and no reference to it is left here.
        drop(unsafe { &mut *table.table.get() }.take());
        Ok(())
    })
}

/// Bytes of a row. 0 if `table` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_row_bytes(table: *const penstock_table) -> usize {
    // SAFETY: as penstock.h says of every pointer.
    value(0, || Ok(unsafe { shared(table, "table") }?.row_bytes))
}

/// Sets rows that this worker produces, all together: a reader sees all of them or none.
///
/// @param rows    The rows, each once.
/// @param count   How many.
/// @param values  Their values, one after the other: `count` times penstock_row_bytes().
/// @param clock   Their version, not below the one that they have: any number that never falls, or PENSTOCK_CLOCK_AUTO.
///
/// Errors: PENSTOCK_NOT_PRODUCER, PENSTOCK_UNKNOWN_ROW, PENSTOCK_ROW_TWICE, PENSTOCK_CLOCK_BACKWARDS, PENSTOCK_BAD_OPTION (the
/// table has a fold: use penstock_add()), and those of penstock_clock(). Nothing was set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_set(
    table: *const penstock_table,
    rows: *const u64,
    count: usize,
    values: *const c_void,
    clock: u64,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let (table, rows, values) = unsafe { listed(table, rows, count, values, caller) }?;
        Ok(table.core()?.set(rows, values, self::clock(clock))?)
    })
}

/// Adds to rows that this worker produces, all together: a reader sees all of them or none. The table has PENSTOCK_FOLD_SUM.
///
/// @param rows    The rows; values for a row that is named twice add up.
/// @param count   How many.
/// @param values  What is added, one after the other: `count` times penstock_row_bytes().
/// @param clock   As for penstock_set().
///
/// Errors: as penstock_set(); PENSTOCK_BAD_OPTION if the table has no fold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_add(
    table: *const penstock_table,
    rows: *const u64,
    count: usize,
    values: *const c_void,
    clock: u64,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let (table, rows, values) = unsafe { listed(table, rows, count, values, caller) }?;
        Ok(table.core()?.add(rows, values, self::clock(clock))?)
    })
}

/// Copies rows, each of version max(clock - slack, 0) or above, and waits if it has to. Rows that were set together are seen
/// together.
///
/// This worker's own rows are always current. It does not wait for a row that only this worker could make fresh enough:
/// PENSTOCK_NEVER_SET.
///
/// @param rows   The rows, which this worker consumes or produces.
/// @param count  How many.
/// @param out    Where their values are copied to, one after the other: `count` times penstock_row_bytes().
/// @param clock  The clock to ask for, or PENSTOCK_CLOCK_AUTO.
/// @param slack  How many versions they may lag behind: 0 or above, PENSTOCK_SLACK_DEFAULT (the table's own) or
///               PENSTOCK_SLACK_UNBOUNDED (never waits).
///
/// Errors: PENSTOCK_UNKNOWN_ROW, PENSTOCK_NEVER_SET, PENSTOCK_GET_TIMEOUT (the text names rows, versions and producers),
/// PENSTOCK_ROWS_APART, PENSTOCK_BAD_OPTION (the slack), and those of penstock_clock(). The content of `out` is then undefined.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_get(
    table: *const penstock_table,
    rows: *const u64,
    count: usize,
    out: *mut c_void,
    clock: u64,
    slack: i64,
) -> penstock_status {
    // SAFETY: as penstock.h says of every pointer.
    unsafe { penstock_get_with(table, rows, count, out, clock, slack, null()) }
}

/// penstock_set() for ranges of rows: all together, in the order of the ranges.
///
/// @param ranges       The ranges; a row may be in only one of them.
/// @param range_count  How many.
/// @param values       Their values, one after the other.
///
/// Errors: as penstock_set().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_set_ranges(
    table: *const penstock_table,
    ranges: *const penstock_range,
    range_count: usize,
    values: *const c_void,
    clock: u64,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let (table, rows, values) = unsafe { ranged(table, ranges, range_count, values, caller) }?;
        Ok(table.core()?.set(rows.chosen(), values, self::clock(clock))?)
    })
}

/// penstock_add() for ranges of rows: all together, in the order of the ranges.
///
/// @param ranges       The ranges; values for a row that is in several add up.
/// @param range_count  How many.
/// @param values       What is added, one after the other.
///
/// Errors: as penstock_add().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_add_ranges(
    table: *const penstock_table,
    ranges: *const penstock_range,
    range_count: usize,
    values: *const c_void,
    clock: u64,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let (table, rows, values) = unsafe { ranged(table, ranges, range_count, values, caller) }?;
        Ok(table.core()?.add(rows.chosen(), values, self::clock(clock))?)
    })
}

/// penstock_get() for ranges of rows, with more arguments. A single range costs the least: its rows are found with one lookup,
/// and copied at once if they were set together.
///
/// @param ranges       The ranges, whose rows this worker consumes or produces.
/// @param range_count  How many.
/// @param out          Where their values are copied to, one after the other, in the order of the ranges.
/// @param clock, slack As for penstock_get().
/// @param call         NULL, or see penstock_call: `timeout`, `versions` (one a row).
///
/// Errors: as penstock_get().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_get_ranges(
    table: *const penstock_table,
    ranges: *const penstock_range,
    range_count: usize,
    out: *mut c_void,
    clock: u64,
    slack: i64,
    call: *const penstock_call,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let (table, rows) = unsafe { chosen(table, ranges, range_count, caller) }?;
        // SAFETY: likewise; there is room for the value of each row.
        let out = unsafe { array_mut(out.cast::<u8>(), table.bytes(rows.len())?, "out") }?;
        // SAFETY: likewise.
        let call = unsafe { Call::read(call, rows.len()) }?;
        table.get(rows.chosen(), out, self::clock(clock), self::slack(slack)?, call)
    })
}

/// penstock_get() with its own timeout, and the versions of the values.
///
/// @param call  NULL, or see penstock_call: `timeout`, `versions` (one a row).
///
/// Errors: as penstock_get().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_get_with(
    table: *const penstock_table,
    rows: *const u64,
    count: usize,
    out: *mut c_void,
    clock: u64,
    slack: i64,
    call: *const penstock_call,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let Get { table, rows, out, call } = unsafe { Get::read(table, rows, count, out, call, caller) }?;
        table.get(rows.into(), out, self::clock(clock), self::slack(slack)?, call)
    })
}

/// penstock_set() for one row.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_set_row(
    table: *const penstock_table,
    row: u64,
    value: *const c_void,
    clock: u64,
) -> penstock_status {
    // SAFETY: as penstock.h says of every pointer; the row lives until the call returns.
    unsafe { penstock_set(table, &raw const row, 1, value, clock) }
}

/// penstock_get() for one row. A row that is fresh enough costs as much as its copy, and a few tens of nanoseconds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_get_row(
    table: *const penstock_table,
    row: u64,
    out: *mut c_void,
    clock: u64,
    slack: i64,
) -> penstock_status {
    // SAFETY: as penstock.h says of every pointer; the row lives until the call returns.
    unsafe { penstock_get(table, &raw const row, 1, out, clock, slack) }
}

/// Starts fetching what a later penstock_get() of these rows would wait for, and returns at once. On one host there is nothing to
/// fetch.
///
/// @param rows, count, clock, slack  As for that penstock_get().
///
/// Errors: PENSTOCK_UNKNOWN_ROW, PENSTOCK_BAD_OPTION (the slack), and those of penstock_clock().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_prefetch(
    table: *const penstock_table,
    rows: *const u64,
    count: usize,
    clock: u64,
    slack: i64,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let table = unsafe { here(table, "table", caller) }?;
        // SAFETY: likewise.
        let rows = unsafe { array(rows, count, "rows") }?;
        table.core()?.prefetch(rows, self::clock(clock), self::slack(slack)?)?;
        Ok(())
    })
}

/// The newest version that is here of each row.
///
/// @param versions  Where they are stored: `count` of them.
///
/// Errors: PENSTOCK_UNKNOWN_ROW, and those of penstock_clock().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_versions(
    table: *const penstock_table,
    rows: *const u64,
    count: usize,
    versions: *mut u64,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let table = unsafe { here(table, "table", caller) }?;
        // SAFETY: likewise.
        let rows = unsafe { array(rows, count, "rows") }?;
        // SAFETY: likewise.
        let versions = unsafe { array_mut(versions, count, "versions") }?;
        table.core()?.versions(rows, versions)?;
        Ok(())
    })
}

/// Rows that a call names by ranges.
enum Named {
    One(Range<u64>),
    Several(Vec<u64>),
}

impl Named {
    fn len(&self) -> usize {
        self.chosen().len()
    }

    fn chosen(&self) -> Chosen<'_> {
        match self {
            Self::One(range) => range.clone().into(),
            Self::Several(rows) => rows.into(),
        }
    }
}

/// A table, and rows of it.
///
/// # Safety
///
/// - As penstock.h says of every pointer.
unsafe fn chosen<'a>(
    table: *const penstock_table,
    ranges: *const penstock_range,
    count: usize,
    caller: &Caller<'a>,
) -> Result<(&'a penstock_table, Named), Failure> {
    // SAFETY: the caller's promise.
    let table = unsafe { here(table, "table", caller) }?;
    // SAFETY: likewise.
    let ranges = unsafe { array(ranges, count, "ranges") }?;
    judge(ranges, "ranges")?;
    let rows = table.core()?.spec().rows;
    // Before any memory is taken for them.
    if let Some(range) = ranges.iter().find(|range| range.end > rows) {
        let message =
            format!("`{}`: expected rows below {rows}, got {} to {}", table.name, range.first, range.end);
        let hint = "ranges end after their last row";
        return Err(Failure::new(penstock_status::PENSTOCK_UNKNOWN_ROW, message, hint));
    }
    let total = ranges.iter().try_fold(0u64, |sum, range| sum.checked_add(range.end - range.first));
    table.bytes(total.and_then(|total| usize::try_from(total).ok()).unwrap_or(usize::MAX))?;
    Ok(match ranges {
        [range] => (table, Named::One(range.first..range.end)),
        _ => (table, Named::Several(ranges.iter().flat_map(|range| range.first..range.end).collect())),
    })
}

/// A table, rows of it, and a value for each.
///
/// # Safety
///
/// - As penstock.h says of every pointer.
unsafe fn listed<'a>(
    table: *const penstock_table,
    rows: *const u64,
    count: usize,
    values: *const c_void,
    caller: &Caller<'a>,
) -> Result<(&'a penstock_table, &'a [u64], &'a [u8]), Failure> {
    // SAFETY: the caller's promise.
    let table = unsafe { here(table, "table", caller) }?;
    // SAFETY: likewise.
    let rows = unsafe { array(rows, count, "rows") }?;
    // SAFETY: likewise.
    let values = unsafe { array(values.cast::<u8>(), table.bytes(count)?, "values") }?;
    Ok((table, rows, values))
}

/// The same for ranges of rows.
///
/// # Safety
///
/// - As penstock.h says of every pointer.
unsafe fn ranged<'a>(
    table: *const penstock_table,
    ranges: *const penstock_range,
    count: usize,
    values: *const c_void,
    caller: &Caller<'a>,
) -> Result<(&'a penstock_table, Named, &'a [u8]), Failure> {
    // SAFETY: the caller's promise.
    let (table, rows) = unsafe { chosen(table, ranges, count, caller) }?;
    // SAFETY: likewise.
    let values = unsafe { array(values.cast::<u8>(), table.bytes(rows.len())?, "values") }?;
    Ok((table, rows, values))
}

/// What a get is given.
pub(crate) struct Get<'a> {
    pub(crate) table: &'a penstock_table,
    pub(crate) rows: &'a [u64],
    /// Room for the value of each row.
    pub(crate) out: &'a mut [u8],
    pub(crate) call: Call<'a>,
}

impl<'a> Get<'a> {
    /// Its arguments, checked.
    ///
    /// # Safety
    ///
    /// - As penstock.h says of every pointer.
    pub(crate) unsafe fn read(
        table: *const penstock_table,
        rows: *const u64,
        count: usize,
        out: *mut c_void,
        call: *const penstock_call,
        caller: &Caller<'a>,
    ) -> Result<Self, Failure> {
        // SAFETY: the caller's promise.
        let table = unsafe { here(table, "table", caller) }?;
        // SAFETY: likewise.
        let rows = unsafe { array(rows, count, "rows") }?;
        // SAFETY: likewise.
        let out = unsafe { array_mut(out.cast::<u8>(), table.bytes(count)?, "out") }?;
        // SAFETY: likewise.
        let call = unsafe { Call::read(call, count) }?;
        Ok(Self { table, rows, out, call })
    }
}
