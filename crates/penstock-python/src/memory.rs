//! Memory of the core that Python may look at through the buffer protocol.

use crate::error::bad_argument;
use penstock_fabric::region::Mapping;
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

/// A buffer of the caller's, held while the core reads or writes it.
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

    pub(crate) fn bytes(&self) -> &[u8] {
        let (base, bytes) = (self.buffer.buf_ptr().cast::<u8>(), self.buffer.len_bytes());
        if bytes == 0 {
            return &[];
        }
        // SAFETY: the exporter keeps the memory alive and in place while the buffer is held, and it is contiguous (checked). A
        // caller that writes its own array from another thread during the call races with itself; every bit pattern is a byte.
        unsafe { std::slice::from_raw_parts(base, bytes) }
    }

    pub(crate) fn bytes_mut(&mut self, py: Python<'_>) -> PyResult<&mut [u8]> {
        if self.buffer.readonly() {
            return Err(bad_argument(
                py,
                "ShapeError",
                "expected a writable buffer, got a read-only one",
                None,
            ));
        }
        let (base, bytes) = (self.buffer.buf_ptr().cast::<u8>(), self.buffer.len_bytes());
        if bytes == 0 {
            return Ok(&mut []);
        }
        // SAFETY: as in `bytes`; writable by the exporter's word.
        Ok(unsafe { std::slice::from_raw_parts_mut(base, bytes) })
    }

    /// The buffer as 64-bit words: what is left over is left out, and the caller's rows are never odd.
    pub(crate) fn words(&self) -> &[u64] {
        let bytes = self.bytes();
        // SAFETY: every bit pattern is a word; `align_to` cuts what is not aligned.
        match unsafe { bytes.align_to::<u64>() } {
            ([], words, []) => words,
            _ => &[],
        }
    }

    /// The same, to write: after [`Held::bytes_mut`] has said that it may be written.
    pub(crate) fn words_mut(&mut self) -> &mut [u64] {
        let (base, bytes) = (self.buffer.buf_ptr().cast::<u64>(), self.buffer.len_bytes());
        if self.buffer.readonly() || bytes == 0 || !base.is_aligned() {
            return &mut [];
        }
        // SAFETY: as in `bytes_mut`; aligned (checked), whole words.
        unsafe { std::slice::from_raw_parts_mut(base, bytes / 8) }
    }
}
