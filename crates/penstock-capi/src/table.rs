//! Item tables: rows with versions, which some workers produce and others read.

use crate::boundary::{
    Caller, Made, Told, array, array_mut, guard, guard_job, here, result, shared, text, timeout, value,
};
use crate::call::{Call, penstock_call};
use crate::job::penstock_job;
use crate::request::{Line, later};
use crate::status::{Failure, penstock_status};
use crate::tensor::{PENSTOCK_SLACK_DEFAULT, PENSTOCK_SLACK_UNBOUNDED, dtype};
use penstock::worker::{Chosen, Table, TableDeclaration, View};
use penstock_fabric::forked::Maker;
use penstock_kernels::Dtype;
use penstock_proto::adaptive::{Adaptive, ParseAdaptiveError};
use penstock_proto::items::{Propagation, RowSet, Slack};
use std::cell::UnsafeCell;
use std::ffi::{c_char, c_void};
use std::ops::Range;
use std::ptr::null;
use std::time::{Duration, Instant};

/// The default clock. Of a set or an add: iterations completed, plus one; what is made in iteration t is version t + 1. Of a
/// get: iterations completed.
pub const PENSTOCK_CLOCK_AUTO: u64 = u64::MAX;

/// What a table does if a row has several producers.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum penstock_fold {
    /// Every row has at most one producer; penstock_set() replaces its value.
    PENSTOCK_FOLD_NONE = 0,
    /// Any number of producers; penstock_add() adds to what the worker has contributed. A row is the sum of its producers'
    /// contributions, taken in rank order.
    PENSTOCK_FOLD_SUM = 1,
}

/// When rows move to a consumer on another host. On one host nothing moves.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum penstock_propagation {
    /// Every set is sent to the consumers at once.
    PENSTOCK_EAGER = 0,
    /// A row is fetched when a get or a prefetch needs it.
    PENSTOCK_LAZY = 1,
    /// A row is sent when a consumer's slack would be violated at its next clock.
    PENSTOCK_BOUNDED = 2,
}

/// Rows `first` to `end` - 1.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct penstock_range {
    /// The first row.
    pub first: u64,
    /// The row after the last one.
    pub end: u64,
}

/// The declaration of a table. Every worker makes the same, except for the rows that it produces and consumes. Zero all of it,
/// then set what should differ from the default.
#[repr(C)]
pub struct penstock_table_options {
    /// Its key: 1 to 512 bytes of UTF-8 without control characters. Not NULL.
    pub name: *const c_char,
    /// Number of rows, which are numbered from 0: 1 to 2^63. Rows that nobody produces or consumes cost nothing.
    pub rows: u64,
    /// Bytes of a row, at least 1.
    pub row_bytes: u32,
    /// One of penstock_dtype: the type of elements. Only PENSTOCK_FOLD_SUM needs it: PENSTOCK_F32 or PENSTOCK_F64.
    pub dtype: u32,
    /// Rows that this worker sets: a list, in any order. NULL: none.
    pub produce: *const u64,
    /// How many.
    pub produce_count: usize,
    /// Rows that this worker sets: ranges, in addition to the list. NULL: none.
    pub produce_ranges: *const penstock_range,
    /// How many ranges.
    pub produce_range_count: usize,
    /// Rows that this worker reads: a list. It may always read those that it produces. NULL: none.
    pub consume: *const u64,
    /// How many.
    pub consume_count: usize,
    /// Rows that this worker reads: ranges, in addition to the list. NULL: none.
    pub consume_ranges: *const penstock_range,
    /// How many ranges.
    pub consume_range_count: usize,
    /// One of penstock_fold. 0: one producer for each row.
    pub fold: u32,
    /// One of penstock_propagation. 0: eager.
    pub propagation: u32,
    /// Slack of reads that do not give one: 0 or above, or PENSTOCK_SLACK_UNBOUNDED. 0: none.
    pub slack: i64,
    /// Seconds that this and every later call for the table may wait. 0: the option `deadline`.
    pub timeout: f64,
    /// Least slack, if it is adaptive: see `adaptive_max`.
    pub adaptive_min: u32,
    /// Not 0: the slack of reads that do not give one adapts to waiting, between `adaptive_min` and this. Then `slack` is 0.
    pub adaptive_max: u32,
    /// For later versions: 0.
    pub reserved: [u64; 3],
}

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

/// A row that is read in place.
pub struct penstock_view {
    view: View,
    name: String,
    row: u64,
}

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
/// PENSTOCK_BAD_OPTION (the slack), and those of penstock_clock(). The content of `out` is then undefined.
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

/// Gives access to a row in place, as fresh as penstock_get_row() would copy it. Nothing is copied. The table must have no fold.
///
/// Its producer does not wait for readers: what is read counts only if penstock_view_end() returns PENSTOCK_OK.
///
/// @param view   Where the view is stored; end it with penstock_view_end(), before penstock_finish().
/// @param bytes  Where the row's address is stored: penstock_row_bytes() bytes, not to be written to, valid until the view ends.
///
/// Errors: as penstock_get(); PENSTOCK_BAD_OPTION if the table has a fold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_view_begin(
    table: *const penstock_table,
    row: u64,
    clock: u64,
    slack: i64,
    view: *mut *mut penstock_view,
    bytes: *mut *const c_void,
) -> penstock_status {
    // SAFETY: as penstock.h says of every pointer.
    unsafe { penstock_view_begin_with(table, row, clock, slack, view, bytes, null()) }
}

/// penstock_view_begin() with its own timeout, and the row's version.
///
/// @param call  NULL, or see penstock_call: `timeout`, `versions` (one).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_view_begin_with(
    table: *const penstock_table,
    row: u64,
    clock: u64,
    slack: i64,
    view: *mut *mut penstock_view,
    bytes: *mut *const c_void,
    call: *const penstock_call,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let table = unsafe { here(table, "table", caller) }?;
        // SAFETY: likewise.
        let mut call = unsafe { Call::read(call, 1) }?;
        // SAFETY: likewise.
        let view = unsafe { result(view, "view") }?;
        // SAFETY: likewise.
        let bytes = unsafe { result(bytes, "bytes") }?;
        let (clock, slack) = (self::clock(clock), self::slack(slack)?);
        let core = table.core()?.view(row, clock, slack, Some(call.timeout.unwrap_or(table.timeout)))?;
        *bytes = core.address().as_ptr().cast_const().cast();
        call.leave(core.version());
        let name = table.name.clone();
        *view = Box::into_raw(Box::new(penstock_view { view: core, name, row }));
        Ok(())
    })
}

/// Ends a view, and reports whether what was read in it counts.
///
/// @param view  NULL: nothing is done.
///
/// Errors: PENSTOCK_TORN_VIEW (the row was overwritten in the meantime: discard what was read, and read again). The view has
/// ended in either case.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_view_end(view: *mut penstock_view) -> penstock_status {
    guard(|| {
        if view.is_null() {
            return Ok(());
        }
        // SAFETY: it came from `Box::into_raw` in `penstock_view_begin`, and nothing else has it, as penstock.h says.
        let penstock_view { view, name, row } = *unsafe { Box::from_raw(view) };
        if view.is_valid() {
            return Ok(());
        }
        let message = format!("row {row} of `{name}` was overwritten while it was read in place");
        let hint = "discard what was read and read again, or copy it with penstock_get_row()";
        Err(Failure::new(penstock_status::PENSTOCK_TORN_VIEW, message, hint))
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

impl penstock_table_options {
    /// The declaration.
    ///
    /// # Safety
    ///
    /// - As penstock.h says of every pointer.
    unsafe fn read(&self) -> Result<TableDeclaration, Failure> {
        // SAFETY: the caller's promise.
        let name = unsafe { text(self.name, "options->name") }?.to_owned();
        if self.reserved != [0; 3] {
            let message = format!("`{name}`: expected 0 in what is reserved: zero the options first");
            return Err(Failure::argument(message));
        }
        let sum = match self.fold {
            0 => false,
            1 => true,
            got => {
                let message =
                    format!("`{name}`: expected PENSTOCK_FOLD_NONE or PENSTOCK_FOLD_SUM, got {got}");
                return Err(Failure::argument(message));
            }
        };
        let propagation = match self.propagation {
            0 => Propagation::Eager,
            1 => Propagation::Lazy,
            2 => Propagation::Bounded,
            got => {
                let message = format!("`{name}`: expected a propagation from 0 to 2, got {got}");
                return Err(Failure::argument(message));
            }
        };
        // SAFETY: likewise.
        let produce = unsafe {
            rows(self.produce, self.produce_count, self.produce_ranges, self.produce_range_count, "produce")
        }?;
        // SAFETY: likewise.
        let consume = unsafe {
            rows(self.consume, self.consume_count, self.consume_ranges, self.consume_range_count, "consume")
        }?;
        let adaptive = adaptive(self.adaptive_min, self.adaptive_max, &name)?;
        if adaptive.is_some() && self.slack != 0 {
            let message =
                format!("`{name}`: expected `slack` 0 together with `adaptive_max`, got {}", self.slack);
            return Err(Failure::argument(message));
        }
        Ok(TableDeclaration {
            adaptive,
            rows: self.rows,
            row_bytes: self.row_bytes,
            element: sum.then(|| element(self.dtype, &name)).transpose()?,
            holds: String::new(),
            sum,
            produce,
            consume,
            propagation,
            slack: slack(self.slack)?.unwrap_or(Slack::Bound(0)),
            timeout: timeout(self.timeout)?,
            name,
        })
    }
}

/// Bounds of a slack that follows waiting; none where both are 0.
fn adaptive(min: u32, max: u32, name: &str) -> Result<Option<Adaptive>, Failure> {
    if (min, max) == (0, 0) {
        return Ok(None);
    }
    let bounds = format!("{min}:{max}").parse().map_err(|error: ParseAdaptiveError| {
        let hint = "`adaptive_min` is at most `adaptive_max`";
        Failure::new(penstock_status::PENSTOCK_BAD_OPTION, format!("`{name}`: {error}"), hint)
    })?;
    Ok(Some(bounds))
}

/// The element type of a table that sums.
fn element(code: u32, name: &str) -> Result<Dtype, Failure> {
    match dtype(code, name)? {
        element @ (Dtype::F32 | Dtype::F64) => Ok(element),
        other => {
            let message =
                format!("`{name}`: expected PENSTOCK_F32 or PENSTOCK_F64 for a sum, got {}", other.name());
            Err(Failure { status: penstock_status::PENSTOCK_BAD_DTYPE, message, hint: None, of_job: false })
        }
    }
}

/// Rows as a list and as ranges, together.
///
/// # Safety
///
/// - As penstock.h says of every pointer.
unsafe fn rows(
    list: *const u64,
    count: usize,
    ranges: *const penstock_range,
    range_count: usize,
    what: &str,
) -> Result<RowSet, Failure> {
    // SAFETY: the caller's promise.
    let list = unsafe { array(list, count, what) }?;
    // SAFETY: likewise.
    let ranges = unsafe { array(ranges, range_count, what) }?;
    judge(ranges, what)?;
    let single = list.iter().map(|&row| row..row.saturating_add(1));
    Ok(RowSet::from_ranges(ranges.iter().map(|range| range.first..range.end).chain(single)))
}

/// Refuses ranges that end before they begin.
fn judge(ranges: &[penstock_range], what: &str) -> Result<(), Failure> {
    let Some(range) = ranges.iter().find(|range| range.first > range.end) else { return Ok(()) };
    let message = format!(
        "expected ranges in `{what}` that end after their first row, got {} to {}",
        range.first, range.end
    );
    Err(Failure::argument(message))
}
