//! Python, called on a thread of XLA's: nothing is unwound into it, and exceptions become text, which is all that its errors
//! hold.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

// As PyO3 declares it, but for the unwinding: see `Stays`.
unsafe extern "C-unwind" {
    fn PyObject_CallObject(callable: *mut ffi::PyObject, arguments: *mut ffi::PyObject)
    -> *mut ffi::PyObject;
}

/// A thread that comes back to an interpreter which ends is unwound by it, up to Python 3.13, through all that it is in; what
/// called it would be aborted by that, the whole process with it. Such a thread stays here, as it does in later versions.
struct Stays;

impl Drop for Stays {
    fn drop(&mut self) {
        loop {
            std::thread::park();
        }
    }
}

/// Calls Python.
pub(super) fn guarded<'py>(
    call: &Bound<'py, PyAny>,
    arguments: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    let stays = Stays;
    // SAFETY: the interpreter is attached, and both are alive.
    let found = unsafe { PyObject_CallObject(call.as_ptr(), arguments.as_ptr()) };
    std::mem::forget(stays);
    // SAFETY: a new reference, or null with an exception.
    unsafe { Bound::from_owned_ptr_or_err(call.py(), found) }
}

/// An exception as text that is UTF-8, whatever it says: Python's text need not be.
pub(super) fn words(py: Python<'_>, shown: &Bound<'_, PyAny>, error: PyErr) -> String {
    let kind = error.get_type(py);
    let text = PyTuple::new(py, [error.into_value(py)]).and_then(|error| guarded(shown, &error));
    match text.and_then(|text| Ok(text.cast_into::<PyString>()?)) {
        Ok(text) => text.to_string_lossy().into_owned(),
        // It raises itself, or Ctrl-C came meanwhile.
        Err(other) => format!("{kind}, and {} when it was to be shown", other.get_type(py)),
    }
}
