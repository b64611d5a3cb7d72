//! What the environment says of this process and its job, as [`penstock_join::launcher`] reads it for every face.

use crate::error::bad_argument;
use penstock_join::introduce::Topology;
use penstock_join::launcher::{BadVariable, Environment};
use pyo3::prelude::*;
use pyo3::types::PyString;

/// Environment variables, from anything that has `get`.
#[pyclass(frozen, module = "penstock._core")]
pub(crate) struct LauncherVariables {
    of: Py<PyAny>,
}

#[pymethods]
impl LauncherVariables {
    #[new]
    fn new(of: Py<PyAny>) -> Self {
        Self { of }
    }

    #[allow(clippy::type_complexity, reason = "a place, for Python to name its parts")]
    fn place(&self, py: Python<'_>) -> PyResult<Option<(&'static str, u32, u32, &'static str)>> {
        let found = self.read(py, |environment| environment.place())?;
        Ok(found.map(|place| (place.launcher.name(), place.rank, place.size, place.announced_by)))
    }

    fn refuse_rendezvous_alone(&self, py: Python<'_>) -> PyResult<()> {
        self.read(py, |environment| environment.refuse_rendezvous_alone())
    }

    fn several_without_step(&self, py: Python<'_>) -> PyResult<Option<u32>> {
        self.read(py, |environment| Ok(environment.several_without_step()))
    }

    fn servers(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.read(py, |environment| Ok(environment.servers()))
    }

    fn job(&self, py: Python<'_>) -> PyResult<String> {
        self.read(py, |environment| Ok(environment.job()))
    }

    fn secret(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.read(py, |environment| {
            Ok(environment.secret()?.and_then(|_| environment.get("PENSTOCK_SECRET")))
        })
    }

    /// Whether the only server is rank 0's.
    fn alone(&self, py: Python<'_>) -> PyResult<bool> {
        self.read(py, |environment| Ok(environment.topology()? == Topology::Cc))
    }

    fn whole_number(&self, py: Python<'_>, name: &str) -> PyResult<u32> {
        self.read(py, |environment| environment.whole_number(name))
    }
}

impl LauncherVariables {
    fn read<T>(
        &self,
        py: Python<'_>,
        look: impl FnOnce(&Environment<'_>) -> Result<T, BadVariable>,
    ) -> PyResult<T> {
        let of = self.of.bind(py);
        let get = |name: &str| {
            let value = of.call_method1("get", (name,)).ok()?;
            // What is not text is none of the values that are looked for.
            Some(value.cast::<PyString>().ok()?.to_string_lossy().into_owned())
        };
        look(&Environment(&get)).map_err(|error| refuse(py, &error))
    }
}

fn refuse(py: Python<'_>, error: &BadVariable) -> PyErr {
    let class = match error {
        BadVariable::NoNumber { .. }
        | BadVariable::NoSecret { .. }
        | BadVariable::NoWorkersThere { .. }
        | BadVariable::NoTopology { .. } => "OptionError",
        BadVariable::OutOfSize { .. } => "JobFull",
        BadVariable::NoRank { .. } | BadVariable::NoSize { .. } | BadVariable::RendezvousAlone => {
            "NotUnderLauncher"
        }
    };
    bad_argument(py, class, &error.to_string(), Some(&error.hint()))
}
