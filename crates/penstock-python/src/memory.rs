//! Memory of the core that Python may look at through the buffer protocol.

use crate::error::bad_argument;
use penstock_fabric::region::Mapping;
use penstock_kernels::{Foreign, ForeignMut};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
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
        // SAFETY: the memory is mapped as long as the mapping lives, which the object that the view refers to holds. Python
        // knows no other way to share memory than this one; who writes it when is documented with each tensor method.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), base.cast(), nbytes, readonly, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

/// A buffer of the caller's, held while the core reads or writes it. Other threads may write it meanwhile, and other arrays may
/// share its memory, so no reference ever covers it: what is read from it comes once, whatever it is by then.
pub(crate) struct Held {
    buffer: PyUntypedBuffer,
}

// SAFETY: the pointer is used by the thread that took the buffer, which is detached meanwhile; the buffer is released by a
// thread that is attached again.
unsafe impl Send for Held {}
// SAFETY: as for `Send`.
unsafe impl Sync for Held {}

impl Held {
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(bad_argument(
                object.py(),
                "ShapeError",
                "expected a C-contiguous buffer, got one with gaps or another order",
                Some("pass np.ascontiguousarray(x)"),
            ));
        }
        Ok(Self { buffer })
    }

    pub(crate) fn bytes(&self) -> Foreign<'_> {
        // SAFETY: the exporter keeps the memory alive and in place while the buffer is held, and it is contiguous (checked).
        unsafe { Foreign::new(self.buffer.buf_ptr().cast(), self.buffer.len_bytes()) }
    }

    pub(crate) fn bytes_mut(&mut self, py: Python<'_>) -> PyResult<ForeignMut<'_>> {
        if self.buffer.readonly() {
            return Err(bad_argument(
                py,
                "ShapeError",
                "expected a writable buffer, got a read-only one",
                None,
            ));
        }
        // SAFETY: as in `bytes`; writable by the exporter's word (checked).
        Ok(unsafe { ForeignMut::new(self.buffer.buf_ptr().cast(), self.buffer.len_bytes()) })
    }

    /// The buffer's 64-bit words as they are now: what is left over is left out, and the caller's rows are never odd.
    pub(crate) fn words(&self) -> Vec<u64> {
        words(self.bytes()).collect()
    }
}

/// 64-bit words as they are now, whole ones.
pub(crate) fn words(bytes: Foreign<'_>) -> impl Iterator<Item = u64> {
    (0..bytes.len() / 8).map(move |word| bytes.word(8 * word))
}
