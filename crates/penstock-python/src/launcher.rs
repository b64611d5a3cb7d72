//! What the environment says of this process and its job, as [`penstock_join::launcher`] reads it for every face.

use crate::error::bad_argument;
use penstock_join::introduce::Topology;
use penstock_join::launcher::{BadVariable, Environment, Place};
use penstock_join::way::{Given, NoWay, Way, way};
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

    fn place(&self, py: Python<'_>) -> PyResult<Option<Standing>> {
        let found = self.read(py, |environment| environment.place())?;
        Ok(found.map(standing))
    }

    /// Which way the process joins, where it stands if anything says so, the servers or where it turns to, and the secret if the
    /// way needs it.
    #[allow(clippy::type_complexity, reason = "a way, for Python to name its parts")]
    fn way(&self, py: Python<'_>) -> PyResult<(&'static str, Option<Standing>, Vec<String>, Option<String>)> {
        let (way, secret) = self.read(py, |environment| {
            Ok::<_, NoWay>((way(&Given::default(), environment)?, environment.get("PENSTOCK_SECRET")))
        })?;
        Ok(match way {
            Way::Servers { servers, place, .. } => ("servers", Some(standing(place)), servers, secret),
            Way::Manager { address, place, .. } => ("manager", place.map(standing), vec![address], secret),
            Way::Rendezvous { at, place, .. } => ("rendezvous", Some(standing(place)), vec![at], secret),
            Way::Launcher(place) => ("launcher", Some(standing(place)), Vec::new(), None),
            Way::Alone { place } => ("alone", place.map(standing), Vec::new(), None),
        })
    }

    fn job(&self, py: Python<'_>) -> PyResult<String> {
        self.read(py, |environment| Ok::<_, NoWay>(environment.job()))
    }

    fn secret(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.read(py, |environment| {
            let secret = environment.secret()?;
            Ok::<_, BadVariable>(secret.and_then(|_| environment.get("PENSTOCK_SECRET")))
        })
    }

    /// Whether the only server is rank 0's.
    fn alone(&self, py: Python<'_>) -> PyResult<bool> {
        self.read(py, |environment| environment.topology().map(|topology| topology == Topology::Cc))
    }

    fn whole_number(&self, py: Python<'_>, name: &str) -> PyResult<u32> {
        self.read(py, |environment| environment.whole_number(name))
    }
}

impl LauncherVariables {
    fn read<T, E: Into<NoWay>>(
        &self,
        py: Python<'_>,
        look: impl FnOnce(&Environment<'_>) -> Result<T, E>,
    ) -> PyResult<T> {
        let of = self.of.bind(py);
        let get = |name: &str| {
            let value = of.call_method1("get", (name,)).ok()?;
            // What is not text is none of the values that are looked for.
            Some(value.cast::<PyString>().ok()?.to_string_lossy().into_owned())
        };
        look(&Environment(&get)).map_err(|error| refuse(py, &error.into()))
    }
}

/// Launcher, rank, size, and the variable that says how many there are.
type Standing = (&'static str, u32, u32, &'static str);

fn standing(place: Place) -> Standing {
    (place.launcher.name(), place.rank, place.size, place.announced_by)
}

fn refuse(py: Python<'_>, error: &NoWay) -> PyErr {
    let class = match error {
        NoWay::Variable(
            BadVariable::NoNumber { .. }
            | BadVariable::NoSecret { .. }
            | BadVariable::NoWorkersThere { .. }
            | BadVariable::NoTopology { .. },
        ) => "OptionError",
        NoWay::Variable(BadVariable::OutOfSize { .. }) => "JobFull",
        _ => "NotUnderLauncher",
    };
    bad_argument(py, class, &error.to_string(), Some(&error.hint()))
}
