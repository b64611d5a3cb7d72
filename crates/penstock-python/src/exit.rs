//! The code that the process ends with.
//!
//! What fails when the interpreter ends (`atexit`) is printed and forgotten: the process would end with 0, and whoever started it would
//! believe that all is well.

use pyo3::prelude::*;
use std::sync::atomic::{AtomicI32, Ordering};

static CODE: AtomicI32 = AtomicI32::new(0);

extern "C" fn end() {
    std::process::exit(CODE.load(Ordering::Relaxed));
}

/// When the interpreter has ended, and with it everything that was registered for that, the process ends with this code.
#[pyfunction]
pub(crate) fn exit_with(_py: Python<'_>, code: i32) {
    if CODE.swap(code, Ordering::Relaxed) == 0 {
        // SAFETY: `end` lives as long as the process, touches nothing of the interpreter, and the interpreter is attached here.
        // Where there is no room for another such function, the code stays as it is.
        let _ = unsafe { pyo3::ffi::Py_AtExit(Some(end)) };
    }
}
