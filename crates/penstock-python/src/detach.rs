//! Waiting without holding the interpreter, and Ctrl-C while waiting.

use crate::error::raise;
use penstock::worker::Error;
use pyo3::prelude::*;
use std::sync::Mutex;

/// What a signal handler raised while a thread was waiting detached.
static RAISED: Mutex<Option<PyErr>> = Mutex::new(None);

/// Asked by every wait now and then: runs pending signal handlers; whether one of them raised.
pub(crate) fn interrupted() -> bool {
    Python::attach(|py| match py.check_signals() {
        Ok(()) => false,
        Err(error) => {
            *RAISED.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(error);
            true
        }
    })
}

/// Runs `work` without the interpreter and turns its error into Python's.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Error> + Send,
) -> PyResult<T> {
    finish(py, py.detach(work))
}

/// Turns a call's error into Python's.
pub(crate) fn finish<T>(py: Python<'_>, result: Result<T, Error>) -> PyResult<T> {
    result.map_err(|error| match error {
        Error::Interrupted => {
            let raised = RAISED.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
            raised.unwrap_or_else(|| pyo3::exceptions::PyKeyboardInterrupt::new_err(()))
        }
        error => raise(py, &error),
    })
}
