//! Memory of the core that Python may look at through the buffer protocol.

use penstock_fabric::region::Mapping;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::sync::Arc;

/// A piece of memory that speaks the buffer protocol and keeps its mapping alive.
#[pyclass(frozen, module = "penstock._core")]
pub(crate) struct Memory {
    mapping: Arc<Mapping>,
    #[pyo3(get)]
    nbytes: usize,
    #[pyo3(get)]
    readonly: bool,
}

impl Memory {
    /// The first `nbytes` bytes of `mapping`.
    pub(crate) fn new(mapping: &Arc<Mapping>, nbytes: usize, readonly: bool) -> Self {
        assert!(nbytes <= mapping.len());
        Self { mapping: Arc::clone(mapping), nbytes, readonly }
    }
}

#[pymethods]
impl Memory {
    #[getter]
    fn address(&self) -> usize {
        self.mapping.base().as_ptr() as usize
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
        let (base, nbytes) = (memory.mapping.base().as_ptr(), memory.nbytes as ffi::Py_ssize_t);
        let readonly = c_int::from(memory.readonly);
        // SAFETY: the memory is mapped as long as the mapping lives, which the object that the view refers to holds. Python
        // knows no other way to share memory than this one; who writes it when is documented with each tensor method.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), base.cast(), nbytes, readonly, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
