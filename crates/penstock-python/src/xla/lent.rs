//! Memory of XLA's that Python sees for the time of a call.
//!
//! XLA has its memory again when the call returns, and Python keeps objects for as long as it likes. So it gets an object that
//! knows whether the memory may still be reached, and that counts who reaches it: taken back, it makes no more views, and says
//! whether any are left.

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{c_char, c_int};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Memory of XLA's, lent to Python for a call.
#[pyclass(frozen, module = "penstock._core")]
pub(super) struct Lent {
    /// Null when it is taken back.
    data: AtomicPtr<c_char>,
    nbytes: isize,
    readonly: bool,
    /// Views that Python has of it, and those that it asks for just now.
    views: AtomicUsize,
}

impl Lent {
    /// No more of it; whether nothing is left that could reach it.
    fn take_back(&self) -> bool {
        // In one order with the two of `lend`: who is not counted yet at the second finds null.
        self.data.store(null_mut(), Ordering::SeqCst);
        self.views.load(Ordering::SeqCst) == 0
    }

    /// Its address, counted as a view; null when it was taken back, which counts nothing.
    fn lend(&self) -> *mut c_char {
        // Counted before the address is read: without the GIL `take_back` may come in between.
        self.views.fetch_add(1, Ordering::SeqCst);
        let data = self.data.load(Ordering::SeqCst);
        if data.is_null() {
            self.give_back();
        }
        data
    }

    /// A view has gone, or was not made.
    fn give_back(&self) {
        self.views.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What is lent for a call. All of it is taken back, however the call ends.
#[derive(Default)]
pub(super) struct AllLent<'py>(Vec<Bound<'py, Lent>>);

impl<'py> AllLent<'py> {
    /// One more.
    ///
    /// # Safety
    ///
    /// There are `nbytes` bytes at `data` until all is taken back, to be read, and to be written as well unless `readonly`.
    pub(super) unsafe fn lend(
        &mut self,
        py: Python<'py>,
        data: NonNull<c_char>,
        nbytes: isize,
        readonly: bool,
    ) -> PyResult<Bound<'py, Lent>> {
        let data = AtomicPtr::new(data.as_ptr());
        let lent = Bound::new(py, Lent { data, nbytes, readonly, views: AtomicUsize::new(0) })?;
        self.0.push(lent.clone());
        Ok(lent)
    }

    /// How many of them can still be reached.
    pub(super) fn take_back(&self) -> usize {
        self.0.iter().filter(|one| !one.get().take_back()).count()
    }
}

impl Drop for AllLent<'_> {
    fn drop(&mut self) {
        self.take_back();
    }
}

#[pymethods]
impl Lent {
    // SAFETY: called by the interpreter with a view to fill, as the buffer protocol says.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let lent = slf.get();
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no view to fill"));
        }
        let data = lent.lend();
        if data.is_null() {
            return Err(PyBufferError::new_err("the call that this memory was lent for has ended"));
        }
        let readonly = c_int::from(lent.readonly);
        // SAFETY: XLA's memory, of this size by its own word, until all is taken back (`AllLent::lend`); what is left of its views
        // then is an error of the program. Results may be written, and arguments are not: `readonly` says which it is.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), data.cast(), lent.nbytes, readonly, flags) };
        if filled != 0 {
            lent.give_back();
            return Err(PyErr::fetch(slf.py()));
        }
        Ok(())
    }

    // SAFETY: called by the interpreter, once for each view that was filled; the view holds nothing to be freed.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.give_back();
    }
}
