//! What a table is declared to be.

use super::slack;
use crate::boundary::{array, text, timeout};
use crate::status::{Failure, penstock_status};
use crate::tensor::dtype;
use penstock::worker::TableDeclaration;
use penstock_kernels::Dtype;
use penstock_proto::adaptive::{Adaptive, ParseAdaptiveError};
use penstock_proto::items::{Propagation, RowSet, Slack};
use std::ffi::c_char;

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

impl penstock_table_options {
    /// The declaration.
    ///
    /// # Safety
    ///
    /// - As penstock.h says of every pointer.
    pub(super) unsafe fn read(&self) -> Result<TableDeclaration, Failure> {
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
pub(super) fn judge(ranges: &[penstock_range], what: &str) -> Result<(), Failure> {
    let Some(range) = ranges.iter().find(|range| range.first > range.end) else { return Ok(()) };
    let message = format!(
        "expected ranges in `{what}` that end after their first row, got {} to {}",
        range.first, range.end
    );
    Err(Failure::argument(message))
}
