//! A tensor as a Python object.

use crate::detach::{detached, finish};
use crate::job::timeout;
use crate::memory::{Held, Memory};
use penstock::worker::Error;
use penstock_kernels::Settings;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Arc;

/// A tensor of a job.
#[pyclass(frozen, module = "penstock._core")]
pub(crate) struct Tensor {
    tensor: Arc<penstock::worker::Tensor>,
}

impl Tensor {
    pub(crate) fn new(tensor: penstock::worker::Tensor) -> Self {
        Self { tensor: Arc::new(tensor) }
    }

    fn bytes(&self) -> usize {
        self.tensor.spec().bytes() as usize
    }
}

#[pymethods]
impl Tensor {
    #[getter]
    fn name(&self) -> &str {
        &self.tensor.spec().name
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.bytes()
    }

    #[getter]
    fn elements(&self) -> u64 {
        self.tensor.spec().elements().unwrap_or(0)
    }

    #[getter]
    fn chunks(&self) -> u32 {
        self.tensor.chunks()
    }

    #[getter]
    fn consistency(&self) -> String {
        match self.tensor.adaptive() {
            Some(bounds) => format!("ssp:auto:{bounds}"),
            None => self.tensor.spec().consistency.to_string(),
        }
    }

    #[getter]
    fn slack(&self) -> i64 {
        self.tensor.slack().map_or(-1, i64::from)
    }

    #[getter]
    fn version(&self) -> i64 {
        self.tensor.version().map_or(-1, |version| version as i64)
    }

    #[getter]
    fn staleness(&self) -> u64 {
        self.tensor.staleness()
    }

    #[getter]
    fn slots(&self) -> Vec<&'static str> {
        self.tensor.spec().rule.slots().to_vec()
    }

    fn lane(&self, py: Python<'_>) -> PyResult<Memory> {
        let lane = detached(py, || self.tensor.lane(None))?;
        Ok(Memory::new(lane, self.bytes(), false))
    }

    fn model(&self) -> Memory {
        Memory::new(self.tensor.model(), self.bytes(), true)
    }

    fn mirror(&self, py: Python<'_>) -> PyResult<Memory> {
        Ok(Memory::new(finish(py, self.tensor.mirror())?, self.bytes(), true))
    }

    fn initialize(
        &self,
        py: Python<'_>,
        value: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let timeout = self::timeout(py, timeout)?;
        let held = value.map(Held::new).transpose()?;
        detached(py, || self.tensor.initialize_from(held.as_ref().map(Held::bytes), timeout))
    }

    fn push(
        &self,
        py: Python<'_>,
        data: Option<&Bound<'_, PyAny>>,
        settings: [f64; 5],
        more: bool,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        let timeout = self::timeout(py, timeout)?;
        let held = data.map(Held::new).transpose()?;
        detached(py, || {
            self.tensor.push_from(held.as_ref().map(Held::bytes), Settings(settings), more, timeout)
        })
    }

    fn pull(&self, py: Python<'_>, slack: Option<i64>, timeout: Option<f64>) -> PyResult<u64> {
        let timeout = self::timeout(py, timeout)?;
        detached(py, || self.tensor.pull(slack, timeout))
    }

    fn pull_mirror(&self, py: Python<'_>, slack: Option<i64>, timeout: Option<f64>) -> PyResult<u64> {
        let timeout = self::timeout(py, timeout)?;
        detached(py, || self.tensor.pull_mirror(slack, timeout))
    }

    fn pull_into(
        &self,
        py: Python<'_>,
        out: &Bound<'_, PyAny>,
        slack: Option<i64>,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        let timeout = self::timeout(py, timeout)?;
        let mut held = Held::new(out)?;
        let out = held.bytes_mut(py)?;
        detached(py, || self.tensor.pull_into(out, slack, timeout))
    }

    fn stable(&self, py: Python<'_>, slack: Option<i64>) -> PyResult<bool> {
        finish(py, self.tensor.stable(slack))
    }

    fn state<'py>(&self, py: Python<'py>, slot: u32, timeout: Option<f64>) -> PyResult<Bound<'py, PyBytes>> {
        let timeout = self::timeout(py, timeout)?;
        let state = detached(py, || self.tensor.state(slot, timeout))?;
        Ok(PyBytes::new(py, &state))
    }

    fn steps(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<u64> {
        let timeout = self::timeout(py, timeout)?;
        detached(py, || self.tensor.steps(timeout))
    }

    fn load(
        &self,
        py: Python<'_>,
        slot: i64,
        data: &Bound<'_, PyAny>,
        steps: u64,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let timeout = self::timeout(py, timeout)?;
        let held = Held::new(data)?;
        let slot = u32::try_from(slot + 1).map_err(|_| {
            let what = format!("expected state array -1 (the value) or above, got {slot}");
            crate::error::raise(py, &Error::BadLoad { name: self.tensor.spec().name.clone(), what })
        })?;
        detached(py, || self.tensor.load(slot, held.bytes(), steps, timeout))
    }

    fn __repr__(&self) -> String {
        format!("<penstock._core.Tensor {:?} {} bytes>", self.tensor.spec().name, self.bytes())
    }
}
