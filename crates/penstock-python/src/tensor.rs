//! A tensor as a Python object.

use crate::buffers::{Held, Memory};
use crate::detach::{Core, Quick, detached, let_go};
use crate::seconds::{Seconds, span};
use penstock::worker::{Divided, Error, Tensor as CoreTensor};
use penstock_fabric::region::Mapping;
use penstock_kernels::Settings;
use penstock_proto::adaptive::Adaptive;
use penstock_proto::choice::Why;
use penstock_proto::pressure::Change;
use penstock_proto::spec::TensorSpec;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use std::sync::Arc;

/// An optimizer's settings, as Python's side packs them. Taken out of a tuple of floats, which they are, item by item: to go by
/// the protocol of sequences would cost a twentieth of a push of a small tensor.
struct GivenSettings(Settings);

impl FromPyObject<'_, '_> for GivenSettings {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let mut numbers = Settings([0.0; 5]);
        match given.cast_exact::<PyTuple>() {
            Ok(packed) if packed.len() == numbers.0.len() => {
                for (number, item) in numbers.0.iter_mut().zip(packed.iter_borrowed()) {
                    *number = item.extract()?;
                }
            }
            _ => numbers.0 = given.extract()?,
        }
        Ok(Self(numbers))
    }
}

/// A tensor of a job.
#[pyclass(frozen, module = "penstock._core")]
pub(crate) struct Tensor {
    tensor: Core<Arc<CoreTensor>>,
    /// Why "auto" moves its values so.
    why: Option<Why>,
}

impl Tensor {
    pub(crate) fn new(tensor: Arc<CoreTensor>, why: Option<Why>) -> Self {
        Self { tensor: Core::new(tensor), why }
    }

    fn spec(&self) -> &TensorSpec {
        self.tensor.quick().spec()
    }

    fn bytes(&self) -> usize {
        self.spec().bytes() as usize
    }
}

/// Facts that stand since the declaration, and one atomic number.
impl<'a> Quick<'a, Arc<CoreTensor>> {
    fn spec(&self) -> &'a TensorSpec {
        self.0.spec()
    }

    fn chunks(&self) -> u32 {
        self.0.chunks()
    }

    fn lags(&self) -> bool {
        self.0.lags()
    }

    fn model(&self) -> &'a Arc<Mapping> {
        self.0.model()
    }

    fn adaptive(&self) -> Option<Adaptive> {
        self.0.adaptive()
    }

    fn staleness(&self) -> u64 {
        self.0.staleness()
    }

    fn is_borrowed(&self) -> bool {
        self.0.is_borrowed()
    }
}

/// A clock or version, the share of the way between two bounds, how busy the busiest link was, and bytes a second of the slowest.
type Followed = (u64, f64, f64, Option<f64>);

fn followed(change: &Change) -> Followed {
    let Change { at, pressure, busy, slowest } = *change;
    (at, pressure.share(), busy, slowest)
}

#[pymethods]
impl Tensor {
    #[getter]
    fn name(&self) -> &str {
        &self.spec().name
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.bytes()
    }

    #[getter]
    fn elements(&self) -> u64 {
        self.spec().elements().unwrap_or(0)
    }

    #[getter]
    fn chunks(&self) -> u32 {
        self.tensor.quick().chunks()
    }

    #[getter]
    fn consistency(&self) -> String {
        match self.tensor.quick().adaptive() {
            Some(bounds) => format!("ssp:auto:{bounds}"),
            None => self.spec().consistency.to_string(),
        }
    }

    #[getter]
    fn propagation(&self) -> String {
        self.spec().propagation.to_string()
    }

    #[getter]
    fn why_propagation(&self) -> Option<String> {
        self.why.map(|why| why.to_string())
    }

    #[getter]
    fn slack(&self, py: Python<'_>) -> PyResult<i64> {
        Ok(let_go(py, |free| self.tensor.on(free).slack())?.map_or(-1, i64::from))
    }

    #[getter]
    fn version(&self, py: Python<'_>) -> PyResult<i64> {
        Ok(let_go(py, |free| self.tensor.on(free).version())?.map_or(-1, |version| version as i64))
    }

    #[getter]
    fn staleness(&self) -> u64 {
        self.tensor.quick().staleness()
    }

    #[getter]
    fn borrowed(&self) -> bool {
        self.tensor.quick().is_borrowed()
    }

    #[getter]
    fn slots(&self) -> Vec<&'static str> {
        self.spec().rule.slots().collect()
    }

    fn lane(&self, py: Python<'_>) -> PyResult<Memory> {
        let lane = detached(py, |free| self.tensor.on(free).lane(None))?;
        Ok(Memory::new(lane, self.bytes(), false))
    }

    fn loaded(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, |free| {
            self.tensor.on(free).loaded();
            Ok(())
        })
    }

    fn lane_until_push(&self, py: Python<'_>) -> PyResult<Memory> {
        let lane = detached(py, |free| self.tensor.on(free).lane_until_push(None))?;
        Ok(Memory::new(lane, self.bytes(), false))
    }

    fn model(&self) -> Memory {
        Memory::new(self.tensor.quick().model(), self.bytes(), true)
    }

    fn mirror(&self, py: Python<'_>) -> PyResult<Memory> {
        let mirror = detached(py, |free| self.tensor.on(free).mirror())?;
        Ok(Memory::new(mirror, self.bytes(), true))
    }

    fn initialize(
        &self,
        py: Python<'_>,
        value: Option<&Bound<'_, PyAny>>,
        timeout: Option<Seconds>,
    ) -> PyResult<()> {
        let timeout = span(timeout)?;
        let held = value.map(Held::new).transpose()?;
        detached(py, |free| self.tensor.on(free).initialize_from(held.as_ref().map(Held::bytes), timeout))
    }

    fn push(
        &self,
        py: Python<'_>,
        data: Option<&Bound<'_, PyAny>>,
        settings: GivenSettings,
        more: bool,
        timeout: Option<Seconds>,
    ) -> PyResult<u64> {
        let timeout = span(timeout)?;
        let held = data.map(Held::new).transpose()?;
        detached(py, |free| {
            let data = held.as_ref().map(Held::bytes);
            self.tensor.on(free).push_from(data, settings.0, more, timeout)
        })
    }

    #[expect(clippy::too_many_arguments, reason = "the seam is flat; Python's front has names and defaults")]
    fn push_sparse(
        &self,
        py: Python<'_>,
        units: &Bound<'_, PyAny>,
        unit: usize,
        values: &Bound<'_, PyAny>,
        settings: GivenSettings,
        more: bool,
        timeout: Option<Seconds>,
    ) -> PyResult<u64> {
        let timeout = span(timeout)?;
        let units = Held::new(units)?.words();
        let held = Held::new(values)?;
        detached(py, |free| {
            self.tensor.on(free).push_sparse(&units, unit, held.bytes(), settings.0, more, timeout)
        })
    }

    #[expect(clippy::too_many_arguments, reason = "the seam is flat; Python's front has names and defaults")]
    fn push_factors(
        &self,
        py: Python<'_>,
        u: &Bound<'_, PyAny>,
        v: &Bound<'_, PyAny>,
        rank: usize,
        settings: GivenSettings,
        more: bool,
        timeout: Option<Seconds>,
    ) -> PyResult<u64> {
        let timeout = span(timeout)?;
        let (u, v) = (Held::new(u)?, Held::new(v)?);
        detached(py, |free| {
            self.tensor.on(free).push_factors(u.bytes(), v.bytes(), rank, settings.0, more, timeout)
        })
    }

    /// What that contributes.
    fn product(
        &self,
        py: Python<'_>,
        u: &Bound<'_, PyAny>,
        v: &Bound<'_, PyAny>,
        rank: usize,
        out: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (u, v, mut out) = (Held::new(u)?, Held::new(v)?, Held::new(out)?);
        let out = out.bytes_mut(py)?;
        detached(py, |free| self.tensor.on(free).product(u.bytes(), v.bytes(), rank, out))
    }

    fn due(
        &self,
        py: Python<'_>,
        data: Option<&Bound<'_, PyAny>>,
        out: &Bound<'_, PyAny>,
        settings: GivenSettings,
        timeout: Option<Seconds>,
    ) -> PyResult<(u64, u64)> {
        let timeout = span(timeout)?;
        let held = data.map(Held::new).transpose()?;
        let mut out = Held::new(out)?;
        let out = out.bytes_mut(py)?;
        detached(py, |free| {
            let data = held.as_ref().map(Held::bytes);
            self.tensor.on(free).due(data, out, settings.0, timeout)
        })
    }

    #[expect(clippy::too_many_arguments, reason = "the seam is flat; Python's front has names and defaults")]
    fn push_divided(
        &self,
        py: Python<'_>,
        sent: &Bound<'_, PyAny>,
        kept: &Bound<'_, PyAny>,
        is_array: bool,
        due: (u64, u64),
        settings: GivenSettings,
        timeout: Option<Seconds>,
    ) -> PyResult<Option<u64>> {
        let timeout = span(timeout)?;
        let (sent, kept) = (Held::new(sent)?, Held::new(kept)?);
        detached(py, |free| {
            let parts = Divided { sent: sent.bytes(), kept: kept.bytes(), is_array };
            self.tensor.on(free).push_divided(parts, due, settings.0, timeout)
        })
    }

    fn flush(
        &self,
        py: Python<'_>,
        settings: GivenSettings,
        timeout: Option<Seconds>,
    ) -> PyResult<Option<u64>> {
        let timeout = span(timeout)?;
        detached(py, |free| self.tensor.on(free).flush(settings.0, timeout))
    }

    #[getter]
    fn lags(&self) -> bool {
        self.tensor.quick().lags()
    }

    fn release(&self, py: Python<'_>, timeout: Option<Seconds>) -> PyResult<()> {
        let timeout = span(timeout)?;
        detached(py, |free| self.tensor.on(free).release(timeout))
    }

    fn pull_whole(
        &self,
        py: Python<'_>,
        out: &Bound<'_, PyAny>,
        slack: Option<i64>,
        timeout: Option<Seconds>,
    ) -> PyResult<u64> {
        let timeout = span(timeout)?;
        let mut held = Held::new(out)?;
        let out = held.bytes_mut(py)?;
        detached(py, |free| self.tensor.on(free).pull_whole(out, slack, timeout))
    }

    fn held_back(&self, py: Python<'_>) -> PyResult<(f64, u64)> {
        let held = detached(py, |free| self.tensor.on(free).held_back())?;
        Ok((held.norm(), held.elements))
    }

    /// How this worker's filter of pushes has followed the network.
    fn pushes_followed(&self, py: Python<'_>, timeout: Option<Seconds>) -> PyResult<Vec<Followed>> {
        let timeout = span(timeout)?;
        let changes = detached(py, |free| self.tensor.on(free).pushes_followed(timeout))?;
        Ok(changes.iter().map(followed).collect())
    }

    /// The same of the servers' filter of the value: of each shard.
    fn values_followed(
        &self,
        py: Python<'_>,
        timeout: Option<Seconds>,
    ) -> PyResult<Vec<(usize, u32, Vec<Followed>)>> {
        let timeout = span(timeout)?;
        let shards = detached(py, |free| self.tensor.on(free).values_followed(timeout))?;
        let shard = |(server, shard, changes): (_, _, Vec<Change>)| {
            (server, shard, changes.iter().map(followed).collect())
        };
        Ok(shards.into_iter().map(shard).collect())
    }

    /// A push, then a pull in place.
    fn pushpull(
        &self,
        py: Python<'_>,
        data: Option<&Bound<'_, PyAny>>,
        settings: GivenSettings,
        timeout: Option<Seconds>,
    ) -> PyResult<u64> {
        let timeout = span(timeout)?;
        let held = data.map(Held::new).transpose()?;
        detached(py, |free| {
            let data = held.as_ref().map(Held::bytes);
            self.tensor.on(free).pushpull_from(data, settings.0, timeout)
        })
    }

    fn pull(&self, py: Python<'_>, slack: Option<i64>, timeout: Option<Seconds>) -> PyResult<u64> {
        let timeout = span(timeout)?;
        detached(py, |free| self.tensor.on(free).pull(slack, timeout))
    }

    fn pull_mirror(&self, py: Python<'_>, slack: Option<i64>, timeout: Option<Seconds>) -> PyResult<u64> {
        let timeout = span(timeout)?;
        detached(py, |free| self.tensor.on(free).pull_mirror(slack, timeout))
    }

    fn pull_into(
        &self,
        py: Python<'_>,
        out: &Bound<'_, PyAny>,
        slack: Option<i64>,
        timeout: Option<Seconds>,
    ) -> PyResult<u64> {
        let timeout = span(timeout)?;
        let mut held = Held::new(out)?;
        let out = held.bytes_mut(py)?;
        detached(py, |free| self.tensor.on(free).pull_into(out, slack, timeout))
    }

    #[expect(clippy::too_many_arguments, reason = "as for a push")]
    fn pull_sparse(
        &self,
        py: Python<'_>,
        units: &Bound<'_, PyAny>,
        unit: usize,
        out: &Bound<'_, PyAny>,
        slack: Option<i64>,
        exact: bool,
        timeout: Option<Seconds>,
    ) -> PyResult<u64> {
        let timeout = span(timeout)?;
        let units = Held::new(units)?.words();
        let mut held = Held::new(out)?;
        let out = held.bytes_mut(py)?;
        detached(py, |free| {
            let tensor = self.tensor.on(free);
            match exact {
                true => tensor.pull_sparse_whole(&units, unit, out, slack, timeout),
                false => tensor.pull_sparse(&units, unit, out, slack, timeout),
            }
        })
    }

    fn stable(&self, py: Python<'_>, slack: Option<i64>) -> PyResult<bool> {
        detached(py, |free| self.tensor.on(free).stable(slack))
    }

    fn state<'py>(
        &self,
        py: Python<'py>,
        slot: u32,
        timeout: Option<Seconds>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let timeout = span(timeout)?;
        let state = detached(py, |free| self.tensor.on(free).state(slot, timeout))?;
        Ok(PyBytes::new(py, &state))
    }

    fn steps(&self, py: Python<'_>, timeout: Option<Seconds>) -> PyResult<u64> {
        let timeout = span(timeout)?;
        detached(py, |free| self.tensor.on(free).steps(timeout))
    }

    fn load(
        &self,
        py: Python<'_>,
        slot: i64,
        data: &Bound<'_, PyAny>,
        steps: u64,
        timeout: Option<Seconds>,
    ) -> PyResult<()> {
        let timeout = span(timeout)?;
        let held = Held::new(data)?;
        let slot = u32::try_from(slot + 1).map_err(|_| {
            let what = format!("expected state array -1 (the value) or above, got {slot}");
            crate::error::raise(py, &Error::BadLoad { name: self.spec().name.clone(), what })
        })?;
        detached(py, |free| self.tensor.on(free).load(slot, held.bytes(), steps, timeout))
    }

    fn __repr__(&self) -> String {
        format!("<penstock._core.Tensor {:?} {} bytes>", self.spec().name, self.bytes())
    }
}
