//! A table of items as a Python object.

mod calls;

pub(crate) use calls::TableCalls;

use crate::buffers::{Held, Memory};
use crate::detach::{Core, Quick, detached, let_go};
use crate::error::bad_argument;
use crate::seconds::{Seconds, span};
use penstock::worker::{Table as CoreTable, View as CoreView};
use penstock_kernels::Foreign;
use penstock_proto::items::{RowSet, Slack, TableSpec};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Rows of at most this many bytes are copied without letting go of the interpreter, which would cost more than the copy.
const AT_ONCE: usize = 64 * 1024;

/// A table of a job.
#[pyclass(frozen, module = "penstock._core")]
pub(crate) struct Table {
    table: Core<CoreTable>,
}

/// A row where it stands.
#[pyclass(frozen, module = "penstock._core")]
pub(crate) struct View {
    view: CoreView,
}

impl Table {
    pub(crate) fn new(table: CoreTable) -> Self {
        Self { table: Core::new(table) }
    }

    fn spec(&self) -> &TableSpec {
        self.table.quick().spec()
    }
}

/// Facts that stand since the declaration.
impl<'a> Quick<'a, CoreTable> {
    pub(super) fn spec(&self) -> &'a TableSpec {
        self.0.spec()
    }

    fn produced(&self) -> RowSet {
        self.0.produced()
    }

    fn consumed(&self) -> &'a RowSet {
        self.0.consumed()
    }

    fn is(&self, other: &Core<CoreTable>) -> bool {
        self.0.is(other.quick().0)
    }

    /// Another handle.
    pub(super) fn share(&self) -> Core<CoreTable> {
        Core::new(self.0.clone())
    }
}

/// A slack as Python gives it: `None` is the table's, -1 none.
pub(crate) fn slack(py: Python<'_>, slack: Option<i64>) -> PyResult<Option<Slack>> {
    match slack {
        None => Ok(None),
        Some(-1) => Ok(Some(Slack::Unbounded)),
        Some(got) => match u32::try_from(got) {
            Ok(slack) if penstock_proto::items::spec::is_slack(slack) => Ok(Some(Slack::Bound(slack))),
            _ => {
                let message = format!("expected a slack from 0 to 2**30, got {got}");
                Err(bad_argument(py, "OptionError", &message, None))
            }
        },
    }
}

/// A clock as Python has it.
fn clock(py: Python<'_>, clock: Option<i64>) -> PyResult<Option<u64>> {
    let Some(got) = clock else { return Ok(None) };
    let clock = u64::try_from(got).map_err(|_| {
        let message = format!("expected a clock of 0 or more, got {got}");
        bad_argument(py, "OptionError", &message, Some("clocks count iterations"))
    });
    clock.map(Some)
}

#[pymethods]
impl Table {
    #[getter]
    fn name(&self) -> &str {
        &self.spec().name
    }

    #[getter]
    fn slack(&self, py: Python<'_>) -> PyResult<i64> {
        Ok(match let_go(py, |free| self.table.on(free).slack())? {
            Slack::Bound(slack) => i64::from(slack),
            Slack::Unbounded => -1,
        })
    }

    fn produced(&self) -> Vec<(u64, u64)> {
        self.table.quick().produced().ranges().iter().map(|range| (range.start, range.end)).collect()
    }

    fn consumed(&self) -> Vec<(u64, u64)> {
        self.table.quick().consumed().ranges().iter().map(|range| (range.start, range.end)).collect()
    }

    fn write(
        &self,
        py: Python<'_>,
        rows: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        clock: Option<i64>,
        add: bool,
    ) -> PyResult<()> {
        let clock = self::clock(py, clock)?;
        let (rows, values) = (Held::new(rows)?, Held::new(values)?);
        detached(py, |free| {
            let (table, rows) = (self.table.on(free), &rows.words()[..]);
            if add { table.add(rows, values.bytes(), clock) } else { table.set(rows, values.bytes(), clock) }
        })
    }

    fn get(
        &self,
        py: Python<'_>,
        rows: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        clock: Option<i64>,
        slack: Option<i64>,
        timeout: Option<Seconds>,
    ) -> PyResult<u64> {
        let (clock, slack) = (self::clock(py, clock)?, self::slack(py, slack)?);
        let timeout = span(timeout)?;
        let (rows, mut out) = (Held::new(rows)?, Held::new(out)?);
        let out = out.bytes_mut(py)?;
        detached(py, |free| self.table.on(free).get(&rows.words()[..], out, clock, slack, timeout))
    }

    fn prefetch(
        &self,
        py: Python<'_>,
        rows: &Bound<'_, PyAny>,
        clock: Option<u64>,
        slack: Option<i64>,
    ) -> PyResult<()> {
        let slack = self::slack(py, slack)?;
        let rows = Held::new(rows)?;
        detached(py, |free| self.table.on(free).prefetch(&rows.words(), clock, slack))
    }

    fn versions(&self, py: Python<'_>, rows: &Bound<'_, PyAny>, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let (rows, mut out) = (Held::new(rows)?, Held::new(out)?);
        let mut versions = vec![0; out.bytes().len() / 8];
        detached(py, |free| self.table.on(free).versions(&rows.words(), &mut versions))?;
        let bytes: Vec<u8> = versions.into_iter().flat_map(u64::to_le_bytes).collect();
        out.bytes_mut(py)?.part(0..bytes.len()).copy_from(Foreign::of(&bytes));
        Ok(())
    }

    fn view(
        &self,
        py: Python<'_>,
        row: u64,
        clock: Option<u64>,
        slack: Option<i64>,
        timeout: Option<Seconds>,
    ) -> PyResult<View> {
        let (timeout, slack) = (span(timeout)?, self::slack(py, slack)?);
        Ok(View { view: detached(py, |free| self.table.on(free).view(row, clock, slack, timeout))? })
    }

    /// Whether it is a handle of the same table.
    fn is_same(&self, other: &Bound<'_, Self>) -> bool {
        self.table.quick().is(&other.get().table)
    }

    fn drop(&self, py: Python<'_>, timeout: Option<Seconds>) -> PyResult<()> {
        let timeout = span(timeout)?;
        detached(py, |free| self.table.on(free).discard(timeout))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = let_go(py, |free| self.table.on(free).stats())?;
        let dict = PyDict::new(py);
        dict.set_item("sets", stats.sets)?;
        dict.set_item("rows_set", stats.rows_set)?;
        dict.set_item("gets", stats.gets)?;
        dict.set_item("rows_got", stats.rows_got)?;
        dict.set_item("waited", stats.waited.as_secs_f64())?;
        dict.set_item("retries", stats.retries)?;
        dict.set_item("max_staleness", stats.max_staleness)?;
        dict.set_item("bytes_sent", stats.sent_bytes)?;
        dict.set_item("bytes_received", stats.received_bytes)?;
        Ok(dict)
    }

    fn __repr__(&self) -> String {
        let spec = self.spec();
        format!("<penstock._core.Table {:?} {} rows of {} bytes>", spec.name, spec.rows, spec.row_bytes)
    }
}

#[pymethods]
impl View {
    fn memory(&self) -> Memory {
        let (mapping, at) = self.view.place();
        Memory::part(mapping, at, self.view.len())
    }

    #[getter]
    fn version(&self) -> u64 {
        self.view.version()
    }

    fn valid(&self) -> bool {
        self.view.is_valid()
    }
}
