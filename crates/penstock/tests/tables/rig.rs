//! Declarations, sets and gets as these tests use them.

use crate::common::{self, Way};
use penstock::worker::{Error, Job, Table, TableDeclaration};
use penstock_kernels::Dtype;
use penstock_proto::items::{Propagation, RowSet, Slack};
use std::ops::Range;

pub(crate) const WIDTH: usize = 5;
pub(crate) const ROWS: u64 = 4;
pub(crate) const PROPAGATIONS: [Propagation; 3] =
    [Propagation::Eager, Propagation::Lazy, Propagation::Bounded];
pub(crate) const WAYS: [Way; 5] = [Way::Memory, Way::Tcp, Way::Tls, Way::Mixed, Way::Broken];

pub(crate) fn declaration(name: &str, produce: Range<u64>, consume: Range<u64>) -> TableDeclaration {
    TableDeclaration {
        name: name.to_owned(),
        rows: 64,
        row_bytes: 8 * WIDTH as u32,
        element: Some(Dtype::F64),
        holds: String::new(),
        sum: false,
        produce: RowSet::from_ranges([produce]),
        consume: RowSet::from_ranges([consume]),
        propagation: Propagation::Eager,
        slack: Slack::Bound(0),
        adaptive: None,
        timeout: None,
    }
}

pub(crate) fn mine(job: &Job) -> Range<u64> {
    let rank = u64::from(job.rank());
    rank * ROWS..(rank + 1) * ROWS
}

pub(crate) fn all(job: &Job) -> Range<u64> {
    0..u64::from(job.size()) * ROWS
}

pub(crate) fn rows(range: Range<u64>) -> Vec<u64> {
    range.collect()
}

pub(crate) fn row(value: f64) -> Vec<u8> {
    value.to_le_bytes().repeat(WIDTH)
}

pub(crate) fn set(table: &Table, rows: &[u64], value: f64, clock: Option<u64>) -> Result<(), Error> {
    table.set(rows, &row(value).repeat(rows.len()), clock)
}

/// What stands in some rows: each is one number, or the test fails.
pub(crate) fn get(
    table: &Table,
    rows: &[u64],
    clock: Option<u64>,
    slack: Option<Slack>,
) -> Result<Vec<f64>, Error> {
    let mut out = vec![0; 8 * WIDTH * rows.len()];
    table.get(rows, &mut out, clock, slack, None)?;
    let numbers = common::numbers(&out);
    let whole = numbers.chunks(WIDTH).all(|row| row.iter().all(|number| *number == row[0]));
    assert!(whole, "torn: {numbers:?}");
    Ok(numbers.chunks(WIDTH).map(|row| row[0]).collect())
}

/// A cheap stream of numbers.
pub(crate) fn chance(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}
