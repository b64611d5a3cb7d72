//! Functions beside the classes.

use crate::buffers::Held;
use crate::detach::{let_go, within};
use crate::error::raise_option;
use crate::job::pairs;
use penstock::environment::strays;
use penstock::options::{Options, TABLE};
use penstock_kernels::{Dtype, Flag, RULES};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// An id that two processes share exactly if they may share memory.
#[pyfunction]
pub(crate) fn host_id() -> String {
    penstock::host::id()
}

/// Warnings go to standard error from now on. A process that was started without standard error may have another file under its
/// number by now.
#[pyfunction]
pub(crate) fn warn_on_stderr(py: Python<'_>) -> PyResult<()> {
    if !py.import("sys")?.getattr("__stderr__")?.is_none() {
        penstock::log::warn_on_stderr();
    }
    Ok(())
}

/// The table of options.
#[pyfunction]
pub(crate) fn options(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    TABLE
        .iter()
        .map(|row| {
            let dict = PyDict::new(py);
            dict.set_item("name", row.name)?;
            dict.set_item("env", row.env)?;
            dict.set_item("default", row.default)?;
            dict.set_item("unit", row.unit)?;
            dict.set_item("minimum", row.minimum)?;
            dict.set_item("maximum", row.maximum)?;
            dict.set_item("doc", row.doc)?;
            Ok(dict)
        })
        .collect()
}

/// The table of optimizers.
#[pyfunction]
pub(crate) fn optimizers(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    let name = |flag: Option<Flag>| flag.map(Flag::name);
    RULES
        .iter()
        .map(|row| {
            let settings = row.settings.iter().map(|setting| {
                let dict = PyDict::new(py);
                dict.set_item("name", setting.name)?;
                dict.set_item("default", setting.default)?;
                dict.set_item("below", setting.bound.below)?;
                dict.set_item("expected", setting.bound.expected)?;
                dict.set_item("needs", name(setting.needs))?;
                dict.set_item("zero_with", name(setting.zero_with))?;
                Ok(dict)
            });
            let flags = row.flags.iter().map(|flag| {
                let dict = PyDict::new(py);
                dict.set_item("name", flag.name())?;
                dict.set_item("needs", name(flag.needs()))?;
                Ok(dict)
            });
            let dict = PyDict::new(py);
            dict.set_item("name", row.name)?;
            dict.set_item("settings", settings.collect::<PyResult<Vec<_>>>()?)?;
            dict.set_item("flags", flags.collect::<PyResult<Vec<_>>>()?)?;
            let slots = row.slots.iter().map(|slot| {
                let dict = PyDict::new(py);
                dict.set_item("name", slot.name)?;
                dict.set_item("needs", name(slot.needs))?;
                Ok(dict)
            });
            dict.set_item("slots", slots.collect::<PyResult<Vec<_>>>()?)?;
            Ok(dict)
        })
        .collect()
}

/// Refuses options that no server would take.
#[pyfunction]
pub(crate) fn check_options(py: Python<'_>, options: &Bound<'_, PyDict>) -> PyResult<()> {
    let given = pairs(options)?;
    let checked = Options::load(given.iter().map(|(name, value)| (&name[..], &value[..])));
    checked.map(drop).map_err(|error| raise_option(py, &error))
}

/// What is to be said of each environment variable of ours that nothing reads, with a hint if it is nearly one that
/// something does.
#[pyfunction]
pub(crate) fn stray_names(names: Vec<String>) -> Vec<(String, Option<String>)> {
    strays(names).into_iter().map(|stray| (stray.to_string(), stray.hint())).collect()
}

/// The machine's limit for pushpull.
#[pyfunction]
pub(crate) fn limit_pushpull(
    py: Python<'_>,
    nbytes: usize,
    workers: usize,
    threads: usize,
    repeats: usize,
) -> PyResult<Vec<f64>> {
    if nbytes < 4 || workers == 0 || threads == 0 || repeats == 0 {
        return Err(PyValueError::new_err(format!(
            "expected 4 bytes, 1 worker, 1 thread and 1 repeat at least, got {nbytes}, {workers}, {threads}, {repeats}"
        )));
    }
    let_go(py, |_| penstock_bench::limit::sgd(nbytes, workers, threads, repeats))
}

/// Nanoseconds for a cache line to another core and back.
#[pyfunction]
pub(crate) fn core_distance(py: Python<'_>) -> PyResult<f64> {
    let_go(py, |_| penstock_bench::cores::distance_ns())
}

/// Whether this thread is inside another call of this module, and thus runs a signal handler.
#[pyfunction]
pub(crate) fn is_interrupting() -> bool {
    within()
}

/// The variant of the kernels in use.
#[pyfunction]
pub(crate) fn cpu_features() -> &'static str {
    penstock_kernels::cpu_features()
}

/// Index of the first NaN or infinity.
#[pyfunction]
pub(crate) fn first_nonfinite(dtype: &str, data: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    let dtype = Dtype::from_name(dtype).ok_or_else(|| {
        PyTypeError::new_err(format!("expected float32, float64, float16 or bfloat16, got {dtype}"))
    })?;
    let held = Held::new(data)?;
    if held.bytes().len() % dtype.size() != 0 {
        return Err(PyValueError::new_err("expected whole elements"));
    }
    Ok(penstock_kernels::first_nonfinite(dtype, held.bytes()))
}

/// XXH3 of a contiguous buffer: whether two hold the same.
#[pyfunction]
pub(crate) fn checksum(data: &Bound<'_, PyAny>) -> PyResult<u64> {
    Ok(penstock_proto::checksum::of_foreign(Held::new(data)?.bytes()))
}
