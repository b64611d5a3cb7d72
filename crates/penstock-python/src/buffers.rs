//! Memory of the core that Python may look at through the buffer protocol.

use crate::error::bad_argument;
use penstock_fabric::region::Mapping;
use penstock_kernels::{Foreign, ForeignMut};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::Arc;

/// A piece of memory that speaks the buffer protocol and keeps its mapping alive.
#[pyclass(frozen, module = "penstock._core")]
pub(crate) struct Memory {
    mapping: Arc<Mapping>,
    at: usize,
    #[pyo3(get)]
    nbytes: usize,
    #[pyo3(get)]
    readonly: bool,
}

impl Memory {
    /// The first `nbytes` bytes of `mapping`.
    pub(crate) fn new(mapping: &Arc<Mapping>, nbytes: usize, readonly: bool) -> Self {
        assert!(nbytes <= mapping.len());
        Self { mapping: Arc::clone(mapping), at: 0, nbytes, readonly }
    }

    /// `nbytes` bytes of `mapping` from `at` on, to look at.
    pub(crate) fn part(mapping: &Arc<Mapping>, at: usize, nbytes: usize) -> Self {
        assert!(at + nbytes <= mapping.len());
        Self { mapping: Arc::clone(mapping), at, nbytes, readonly: true }
    }
}

#[pymethods]
impl Memory {
    #[getter]
    fn address(&self) -> usize {
        self.mapping.base().as_ptr() as usize + self.at
    }

    fn __len__(&self) -> usize {
        self.nbytes
    }

    // SAFETY: called by the interpreter with a view to fill, as the buffer protocol says.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("expected a view to fill, got NULL"));
        }
        let memory = slf.get();
        let base = memory.mapping.base().as_ptr().wrapping_add(memory.at);
        let nbytes = memory.nbytes as ffi::Py_ssize_t;
        let readonly = c_int::from(memory.readonly);
        // SAFETY: the memory is mapped as long as the mapping lives, which the object that the view refers to holds. Python knows
        // no other way to share memory than this one; what writes it, and when, is documented with each tensor method.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), base.cast(), nbytes, readonly, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

/// A C-contiguous buffer of the caller's, held while the core reads or writes it. Other threads may write it meanwhile, and
/// other arrays may share its memory, so no reference ever covers it: what is read from it comes once, whatever it is by then.
pub(crate) struct Held {
    view: ffi::Py_buffer,
    /// Lengths of the first two dimensions, and how many there are. Not the view's own, which may point into itself, and so may
    /// not move.
    lengths: [isize; 2],
    dimensions: usize,
}

// SAFETY: threads that are detached share it to reach the memory, whose address it holds. It is not `Send`: it is released by
// the thread that took it, which is attached again by then.
unsafe impl Sync for Held {}

impl Held {
    /// With an error that says what is wrong.
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::ask(object, ffi::PyBUF_ND).map_err(|error| match Self::ask(object, ffi::PyBUF_FULL_RO) {
            Err(_) => error,
            Ok(_) => bad_argument(
                object.py(),
                "ShapeError",
                "expected a C-contiguous buffer, got one with gaps or another order",
                Some("pass np.ascontiguousarray(x)"),
            ),
        })
    }

    /// `None` if it is not contiguous, or is to be written and may not be: a closer look says what is wrong.
    #[inline]
    pub(crate) fn quick(object: &Bound<'_, PyAny>, writable: bool) -> Option<Self> {
        Self::ask(object, ffi::PyBUF_ND | if writable { ffi::PyBUF_WRITABLE } else { 0 }).ok()
    }

    #[inline]
    fn ask(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<Self> {
        let mut view = MaybeUninit::<ffi::Py_buffer>::uninit();
        // SAFETY: the interpreter is attached (`Bound`), and fills the view or says that it did not.
        let failed = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) } != 0;
        if failed {
            return Err(PyErr::fetch(object.py()));
        }
        // SAFETY: filled (above).
        let view = unsafe { view.assume_init_ref() };
        let mut lengths = [0; 2];
        let dimensions = if view.shape.is_null() { 0 } else { view.ndim as usize };
        for (dimension, length) in lengths.iter_mut().enumerate().take(dimensions) {
            // SAFETY: there are as many lengths as dimensions, alive as long as the view, which has not moved since it was filled.
            *length = unsafe { *view.shape.wrapping_add(dimension) };
        }
        Ok(Self { view: *view, lengths, dimensions })
    }

    /// Its lengths; `None` where there are more than two.
    pub(crate) fn shape(&self) -> Option<&[isize]> {
        self.lengths.get(..self.dimensions)
    }

    pub(crate) fn bytes(&self) -> Foreign<'_> {
        // SAFETY: the exporter keeps the memory alive and in place while the view is held, and it is contiguous: `PyBUF_ND`
        // asks for no strides.
        unsafe { Foreign::new(self.view.buf.cast(), self.view.len as usize) }
    }

    pub(crate) fn bytes_mut(&mut self, py: Python<'_>) -> PyResult<ForeignMut<'_>> {
        if self.view.readonly != 0 {
            return Err(bad_argument(
                py,
                "ShapeError",
                "expected a writable buffer, got a read-only one",
                None,
            ));
        }
        // SAFETY: as in `bytes`; writable by the exporter's word (checked).
        Ok(unsafe { ForeignMut::new(self.view.buf.cast(), self.view.len as usize) })
    }

    /// The buffer's 64-bit words as they are now: what is left over is left out, and the caller's rows are never odd.
    pub(crate) fn words(&self) -> Vec<u64> {
        let mut words = vec![0; self.view.len as usize / 8];
        self.bytes().copy_to_words(&mut words);
        words
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: filled by `PyObject_GetBuffer`, released once, and by an attached thread: see `Sync`.
        unsafe { ffi::PyBuffer_Release(&raw mut self.view) };
    }
}
