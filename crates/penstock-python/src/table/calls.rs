//! The calls that are made a million times a second: set, add and get of arguments that the core takes as they are. Everything
//! else is handled in Python (`penstock/table.py`), which also reports what is wrong with it.

use super::{AT_ONCE, Table};
use crate::buffers::Held;
use crate::detach::{Core, Quick, detached, finish};
use crate::seconds::Seconds;
use penstock::worker::{Chosen, Error, Table as CoreTable};
use penstock_kernels::{Foreign, ForeignMut};
use penstock_proto::items::Slack;
use penstock_proto::items::spec::is_slack;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyInt, PySlice, PyString, PyType};
use smallvec::SmallVec;
use std::time::Duration;

/// What `penstock.Table` inherits.
#[pyclass(subclass, frozen, module = "penstock._core")]
pub(crate) struct TableCalls {
    table: Core<CoreTable>,
    width: usize,
    dtype: Py<PyAny>,
    /// The element type if the buffer protocol knows it.
    plain: Option<Py<PyAny>>,
    /// Element types of rows that are taken as they are: 64-bit whole numbers. A negative one is a row that no worker declared.
    keys: [Py<PyAny>; 2],
    ndarray: Py<PyType>,
    empty: Py<PyAny>,
    names: Names,
}

/// Names that are looked up. Each table has its own: see `clippy.toml` on what would make them once for all.
struct Names {
    dtype: Py<PyString>,
    write: Py<PyString>,
    read: Py<PyString>,
}

impl Names {
    fn new(py: Python<'_>) -> Self {
        let name = |name| PyString::intern(py, name).unbind();
        Self { dtype: name("dtype"), write: name("_write"), read: name("_read") }
    }
}

/// The quick calls: they give up where they would have to wait.
impl Quick<'_, CoreTable> {
    fn try_write(
        &self,
        rows: Chosen<'_>,
        values: Foreign<'_>,
        clock: Option<u64>,
        add: bool,
    ) -> Result<bool, Error> {
        if add { self.0.try_add(rows, values, clock) } else { self.0.try_set(rows, values, clock) }
    }

    fn try_get(
        &self,
        rows: Chosen<'_>,
        out: ForeignMut<'_>,
        clock: Option<u64>,
        slack: Option<Slack>,
    ) -> Result<bool, Error> {
        self.0.try_get(rows, out, clock, slack)
    }
}

/// Rows that were given one by one: a copy, since an array may change while it is gone through. A few fit without the heap.
type Keys = SmallVec<[u64; 16]>;

/// Rows as they were given.
enum Rows {
    One([u64; 1]),
    Run(std::ops::Range<u64>),
    Each(Keys),
}

impl Rows {
    fn chosen(&self) -> Chosen<'_> {
        match self {
            Self::One(row) => Chosen::Each(row),
            Self::Run(run) => Chosen::Run(run.clone()),
            Self::Each(keys) => Chosen::Each(keys),
        }
    }
}

/// What a get is given besides rows and memory.
struct Terms {
    clock: Option<u64>,
    slack: Option<Slack>,
    timeout: Option<Duration>,
}

/// A whole number that is given or not; the outer `None`: something else was given.
#[expect(clippy::option_option, reason = "given or not, and of the right kind or not")]
fn number(given: Option<&Bound<'_, PyAny>>) -> Option<Option<u64>> {
    let Some(given) = given else { return Some(None) };
    let number = given.cast_exact::<PyInt>().ok()?.extract::<i64>();
    number.ok().and_then(|number| u64::try_from(number).ok()).map(Some)
}

impl TableCalls {
    /// Whether it is an array of the table's element type, by which it has as many bytes as it should.
    fn is_plain(&self, array: &Bound<'_, PyAny>) -> bool {
        let Some(plain) = &self.plain else { return false };
        self.is_array(array)
            && array.getattr(self.names.dtype.bind(array.py())).is_ok_and(|dtype| dtype.is(plain))
    }

    fn is_array(&self, object: &Bound<'_, PyAny>) -> bool {
        object.get_type().is(&self.ndarray)
    }

    fn rows(&self, rows: &Bound<'_, PyAny>) -> Option<Rows> {
        let py = rows.py();
        if let Ok(row) = rows.cast_exact::<PyInt>() {
            return Some(Rows::One([u64::try_from(row.extract::<i64>().ok()?).ok()?]));
        }
        if let Ok(slice) = rows.cast_exact::<PySlice>() {
            let of = self.table.quick().spec().rows;
            let Ok(found) = slice.indices(isize::try_from(of).ok()?) else {
                drop(PyErr::take(py));
                return None;
            };
            let whole = found.step == 1 && found.start >= 0 && found.stop >= found.start;
            return whole.then(|| Rows::Run(found.start as u64..found.stop as u64));
        }
        if self.is_array(rows) {
            let dtype = rows.getattr(self.names.dtype.bind(py)).ok()?;
            if self.keys.iter().any(|key| dtype.is(key)) {
                let held = Held::quick(rows, false)?;
                let Some(&[count]) = held.shape() else { return None };
                // 64-bit numbers in a list, as they are now.
                let mut keys = Keys::from_elem(0, count as usize);
                held.bytes().copy_to_words(&mut keys);
                return Some(Rows::Each(keys));
            }
        }
        None
    }

    fn fits(&self, rows: &Rows, held: &Held) -> bool {
        let count = match rows {
            Rows::One(_) => return held.shape() == Some(&[self.width as isize]),
            Rows::Run(run) => (run.end - run.start) as usize,
            Rows::Each(keys) => keys.len(),
        };
        held.shape() == Some(&[count as isize, self.width as isize])
    }

    /// `false`: the arguments are not taken as they are, and nothing was written.
    fn write(
        &self,
        rows: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        clock: Option<&Bound<'_, PyAny>>,
        add: bool,
    ) -> PyResult<bool> {
        if !self.is_plain(values) {
            return Ok(false);
        }
        let (Some(rows), Some(clock)) = (self.rows(rows), number(clock)) else { return Ok(false) };
        let Some(held) = Held::quick(values, false) else { return Ok(false) };
        if !self.fits(&rows, &held) {
            return Ok(false);
        }
        let (chosen, bytes) = (rows.chosen(), held.bytes());
        let py = values.py();
        // What is short is copied without letting go of the interpreter, which would cost more than the copy.
        if bytes.len() > AT_ONCE
            || !finish(py, self.table.quick().try_write(chosen.clone(), bytes, clock, add))?
        {
            detached(py, |free| {
                let table = self.table.on(free);
                if add { table.add(chosen, bytes, clock) } else { table.set(chosen, bytes, clock) }
            })?;
        }
        Ok(true)
    }

    /// Also what is not taken as it is.
    fn write_as_given(
        slf: &Bound<'_, Self>,
        rows: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        clock: Option<&Bound<'_, PyAny>>,
        add: bool,
    ) -> PyResult<()> {
        let calls = Bound::get(slf);
        if !calls.write(rows, values, clock, add)? {
            slf.call_method1(calls.names.write.bind(slf.py()), (rows, values, clock, add))?;
        }
        Ok(())
    }

    fn terms(
        clock: Option<&Bound<'_, PyAny>>,
        slack: Option<&Bound<'_, PyAny>>,
        timeout: Option<&Bound<'_, PyAny>>,
    ) -> Option<Terms> {
        let slack = match number(slack)? {
            None => None,
            Some(slack) => Some(Slack::Bound(u32::try_from(slack).ok().filter(|&slack| is_slack(slack))?)),
        };
        let timeout = match timeout {
            None => None,
            Some(timeout) => Some(timeout.extract::<Seconds>().ok()?.judged().ok()?),
        };
        Some(Terms { clock: number(clock)?, slack, timeout })
    }

    /// An array for rows of a get that names none.
    fn fresh<'py>(&self, py: Python<'py>, rows: &Rows) -> PyResult<Bound<'py, PyAny>> {
        let dtype = self.dtype.bind(py);
        let empty = self.empty.bind(py);
        match rows {
            Rows::One(_) => empty.call1((self.width, dtype)),
            Rows::Run(run) => empty.call1(((run.end - run.start, self.width), dtype)),
            Rows::Each(keys) => empty.call1(((keys.len(), self.width), dtype)),
        }
    }

    /// `None`: the arguments are not taken as they are.
    fn read<'py>(
        &self,
        rows: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        terms: Option<Terms>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = rows.py();
        if self.plain.is_none() || out.is_some_and(|out| !self.is_plain(out)) {
            return Ok(None);
        }
        let (Some(rows), Some(terms)) = (self.rows(rows), terms) else { return Ok(None) };
        let Terms { clock, slack, timeout } = terms;
        let out = match out {
            Some(out) => out.clone(),
            None => self.fresh(py, &rows)?,
        };
        let Some(mut held) = Held::quick(&out, true) else { return Ok(None) };
        if !self.fits(&rows, &held) {
            return Ok(None);
        }
        let chosen = rows.chosen();
        let mut bytes = held.bytes_mut(py)?;
        let length = bytes.len();
        // What is fresh is copied without letting go of the interpreter, which would cost more than the copy.
        let waits = length > AT_ONCE || {
            let got = self.table.quick().try_get(chosen.clone(), bytes.part(0..length), clock, slack);
            !finish(py, got)?
        };
        if waits {
            detached(py, |free| self.table.on(free).get(chosen, bytes, clock, slack, timeout))?;
        }
        drop(held);
        Ok(Some(out))
    }
}

#[pymethods]
impl TableCalls {
    #[new]
    #[pyo3(signature = (core, rows, width, dtype, *_others))]
    fn new(
        core: &Bound<'_, Table>,
        rows: &Bound<'_, PyAny>,
        width: usize,
        dtype: Bound<'_, PyAny>,
        _others: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let py = rows.py();
        let numpy = py.import("numpy")?;
        let kind: String = dtype.getattr("kind")?.extract()?;
        let key = |name: &str| numpy.call_method1("dtype", (name,)).map(Bound::unbind);
        let ndarray = numpy.getattr("ndarray")?;
        Ok(Self {
            table: core.get().table.quick().share(),
            width,
            plain: "biufc".contains(&kind).then(|| dtype.clone().unbind()),
            dtype: dtype.unbind(),
            keys: [key("uint64")?, key("int64")?],
            ndarray: ndarray
                .cast_into::<PyType>()
                .map_err(|error| PyTypeError::new_err(error.to_string()))?
                .unbind(),
            empty: numpy.getattr("empty")?.unbind(),
            names: Names::new(py),
        })
    }

    /// Replace rows that this worker produces. Returns at once.
    ///
    /// Readers see all rows of one call or none of them, on this host and on others, even if this worker dies in
    /// the middle. Another call is another set.
    ///
    /// Parameters
    /// ----------
    /// rows
    ///     Which, each once. Consecutive rows (a slice) are the fastest.
    /// values
    ///     Of shape (number of rows, width), or (width,) for one row given as a number; of the table's element
    ///     type. Copied.
    /// clock
    ///     The version that the rows get: 0 or more, not below the one they have. Default: this worker's clock
    ///     plus one, so that what is set in iteration t is what others read in iteration t + 1.
    ///
    /// Raises
    /// ------
    /// NotProducer, UnknownRow, RowTwice, ClockBackwards, ShapeError, DtypeError
    ///     Nothing was set.
    /// JobClosed
    ///     The job has ended.
    ///
    /// Examples
    /// --------
    /// >>> U.set([0, 1], [[1.0, 2.0], [3.0, 4.0]], clock=1)
    #[pyo3(signature = (rows, values, clock = None))]
    fn set(
        slf: &Bound<'_, Self>,
        rows: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        clock: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        Self::write_as_given(slf, rows, values, clock, false)
    }

    /// Add to rows of a table with fold="sum". Arguments, visibility and errors are those of `set`; a row that
    /// is named twice is added to twice.
    ///
    /// A worker reads its own additions at once. The additions of several producers are summed in the order of
    /// their ranks, so the same additions give the same bits.
    ///
    /// Raises
    /// ------
    /// NotProducer, UnknownRow, ClockBackwards, ShapeError, DtypeError
    ///     Nothing was added.
    /// JobClosed
    ///     The job has ended.
    ///
    /// Examples
    /// --------
    /// >>> gradient_sums.add([3, 7], -0.1 * gradients)
    #[pyo3(signature = (rows, values, clock = None))]
    fn add(
        slf: &Bound<'_, Self>,
        rows: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        clock: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        Self::write_as_given(slf, rows, values, clock, true)
    }

    /// Copy rows that this worker consumes or produces, each at a version >= clock - slack.
    ///
    /// Waits for rows that are older. Rows that one `set` wrote are seen together: all as it left them, or all as
    /// they were before.
    ///
    /// Parameters
    /// ----------
    /// rows
    ///     Which, in the order in which they are returned.
    /// clock
    ///     Default: this worker's clock, so that slack 0 returns what every producer set in the iterations that
    ///     this worker has completed.
    /// slack
    ///     Clocks that a row may lag behind, 0 to 2**30; `ps.ASP()`: any number. Default: the table's.
    /// out
    ///     Written to, and returned as a NumPy array: C-contiguous, of the shape and element type of the result.
    ///     Where the call raises it may hold anything. Default: a new array.
    /// timeout
    ///     Seconds to wait. Default: the job's `deadline`.
    ///
    /// Returns
    /// -------
    /// numpy.ndarray
    ///     Shape (number of rows, width), or (width,) for one row given as a number.
    ///
    /// Raises
    /// ------
    /// UnknownRow
    ///     A row is outside the table, or was not declared by this worker.
    /// NeverSet
    ///     One of this worker's own rows is older than that: no other worker could set it, so there is no point in waiting.
    /// GetTimeout
    ///     A row was not fresh enough in time; the message names it and its producer.
    /// RowsApart
    ///     A producer was lost, and what had come of these of its rows was never current together.
    /// ShapeError, DtypeError, OptionError
    ///     `out`, `slack` or `clock` is not valid.
    /// JobClosed
    ///     The job has ended.
    ///
    /// Examples
    /// --------
    /// >>> U.get(slice(0, 2), clock=5, slack=4)
    /// array([[1., 2.],
    ///        [3., 4.]])
    #[pyo3(signature = (rows, clock = None, slack = None, out = None, timeout = None))]
    fn get<'py>(
        slf: &Bound<'py, Self>,
        rows: &Bound<'py, PyAny>,
        clock: Option<&Bound<'py, PyAny>>,
        slack: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let calls = Bound::get(slf);
        match calls.read(rows, out, Self::terms(clock, slack, timeout))? {
            Some(out) => Ok(out),
            None => slf.call_method1(calls.names.read.bind(slf.py()), (rows, clock, slack, out, timeout)),
        }
    }
}
