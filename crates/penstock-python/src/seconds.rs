//! A span that a caller names, in seconds: every timeout comes in by this type, so that each is judged in the same way and in
//! the same words.

use crate::error::bad_argument;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat};
use std::convert::Infallible;
use std::time::Duration;

/// The longest span; longer ones count as this: some 35,000 years.
const LONGEST: Duration = Duration::from_secs(1 << 40);

/// A number of seconds, 0 or more; `inf` and whatever else is beyond [`LONGEST`] counts as [`LONGEST`]. Or why it is not valid:
/// PyO3 adds a note of its own to what an argument's extraction fails with, and a call's hint is the last line.
#[derive(Debug)]
pub(crate) struct Seconds(PyResult<Duration>);

impl Seconds {
    pub(crate) fn judged(self) -> PyResult<Duration> {
        self.0
    }
}

/// A timeout, if there is one.
pub(crate) fn span(timeout: Option<Seconds>) -> PyResult<Option<Duration>> {
    timeout.map(Seconds::judged).transpose()
}

impl FromPyObject<'_, '_> for Seconds {
    type Error = Infallible;

    fn extract(given: Borrowed<'_, '_, PyAny>) -> Result<Self, Infallible> {
        Ok(Self(judge(given)))
    }
}

fn judge(given: Borrowed<'_, '_, PyAny>) -> PyResult<Duration> {
    let number = match given.cast_exact::<PyFloat>() {
        Ok(float) => float.value(),
        Err(_) => number(given)?,
    };
    if number.is_nan() || number < 0.0 {
        return Err(refuse(given));
    }
    Ok(Duration::try_from_secs_f64(number).map_or(LONGEST, |span| span.min(LONGEST)))
}

/// For what is not a float itself. A truth value is a number to Python, and a mistake here, NumPy's too (`bool_` before its 2.0).
fn number(given: Borrowed<'_, '_, PyAny>) -> PyResult<f64> {
    let is_truth =
        given.is_instance_of::<PyBool>() || matches!(given.get_type().name()?.to_str()?, "bool" | "bool_");
    if is_truth {
        return Err(refuse(given));
    }
    given.extract::<f64>().or_else(|error| {
        let py = given.py();
        if error.is_instance_of::<PyOverflowError>(py) {
            // A whole number that no float can hold.
            return if given.gt(0)? { Ok(f64::INFINITY) } else { Err(refuse(given)) };
        }
        let other = error.is_instance_of::<PyTypeError>(py) || error.is_instance_of::<PyValueError>(py);
        Err(if other { refuse(given) } else { error })
    })
}

fn refuse(given: Borrowed<'_, '_, PyAny>) -> PyErr {
    let shown = given.repr().map_or_else(|_| String::new(), |repr| repr.to_string());
    let kind = given.get_type().name().map_or_else(|_| String::new(), |name| name.to_string());
    let message = format!("expected a timeout in seconds, a number of 0 or more, got {shown} ({kind})");
    bad_argument(
        given.py(),
        "OptionError",
        &message,
        Some("give a number, such as timeout=2.5, or leave it out"),
    )
}

/// A timeout as a float, at most [`LONGEST`].
#[pyfunction]
pub(crate) fn seconds(timeout: Seconds) -> PyResult<f64> {
    Ok(timeout.judged()?.as_secs_f64())
}
