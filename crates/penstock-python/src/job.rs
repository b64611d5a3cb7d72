//! A job as a Python object.

use crate::detach::{
    Core, Quick, alone, close_later, closing, detached, finish, interrupted, let_go, within,
};
use crate::error::{bad_argument, raise_option};
use crate::seconds::{Seconds, span};
use crate::table::Table;
use crate::tensor::Tensor;
use penstock::options::Options;
use penstock::worker::{
    Declaration, Error, Job as CoreJob, Membership, TableDeclaration, propagation as choose,
};
use penstock_fabric::net::endpoint::{Endpoint, NoEndpoint};
use penstock_kernels::{Dtype, Flag, RULES, Rule, Settings};
use penstock_proto::adaptive::{Adaptive, ParseAdaptiveError};
use penstock_proto::compress::{Compress, Squeezed};
use penstock_proto::consistency::Consistency;
use penstock_proto::items::spec::ParsePropagationError;
use penstock_proto::items::{RowSet, Slack};
use penstock_proto::layer::{Layer, Nanos};
use penstock_proto::message::Secret;
use penstock_proto::spec::{Reduce, TensorSpec};
use penstock_proto::travel::{Filtering, Travel};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A worker's connection to the servers of a job.
#[pyclass(frozen, module = "penstock._core")]
pub(crate) struct Job {
    job: Arc<Core<CoreJob>>,
    servers: u32,
    shards: u32,
    chunk_bytes: u32,
}

/// Facts that stand since the job was joined, and flags.
impl<'a> Quick<'a, CoreJob> {
    fn rank(&self) -> u32 {
        self.0.rank()
    }

    fn size(&self) -> u32 {
        self.0.size()
    }

    fn iteration(&self) -> u64 {
        self.0.iteration()
    }

    fn done_by_first(&self, what: &str) -> Result<u64, Error> {
        self.0.done_by_first(what)
    }

    fn options(&self) -> &'a Options {
        self.0.options()
    }

    fn abandon(&self) {
        self.0.abandon();
    }

    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

impl Job {
    /// What outlives the Python object.
    pub(crate) fn core(&self) -> Arc<Core<CoreJob>> {
        Arc::clone(&self.job)
    }

    fn new(py: Python<'_>, join: impl FnOnce() -> Result<CoreJob, Error> + Send) -> PyResult<Self> {
        let joined = detached(py, |_| {
            let job = join()?;
            job.on_alone(Box::new(alone));
            let numbers = (job.servers(), job.shards(), job.chunk_bytes());
            Ok((Core::new(job), numbers))
        });
        let (job, (servers, shards, chunk_bytes)) = joined?;
        Ok(Self { job: Arc::new(job), servers, shards, chunk_bytes })
    }
}

/// A Python mapping of words to words.
pub(crate) fn pairs(options: &Bound<'_, PyDict>) -> PyResult<Vec<(String, String)>> {
    options.iter().map(|(name, value)| Ok((name.extract()?, value.extract()?))).collect()
}

/// A job's secret, as the environment holds it.
pub(crate) fn secret(py: Python<'_>, hex: &str) -> PyResult<Secret> {
    Secret::from_hex(hex).ok_or_else(|| {
        let message =
            format!("expected a secret of 64 hexadecimal digits, got {} characters", hex.chars().count());
        bad_argument(py, "AuthenticationError", &message, Some("use PENSTOCK_SECRET as the launcher set it"))
    })
}

/// Where a server is.
pub(crate) fn endpoint(py: Python<'_>, text: &str) -> PyResult<Endpoint> {
    text.parse().map_err(|error: NoEndpoint| {
        let hint = "PENSTOCK_SERVERS lists them, separated by commas, such as tcp://10.0.0.1:7700,tcp://10.0.0.2:7700";
        let hint = error.hint().unwrap_or_else(|| hint.to_owned());
        bad_argument(py, "OptionError", &error.to_string(), Some(&hint))
    })
}

fn options(py: Python<'_>, given: &Bound<'_, PyDict>) -> PyResult<Options> {
    let pairs = pairs(given)?;
    let options = Options::load(pairs.iter().map(|(name, value)| (&name[..], &value[..])));
    options.map_err(|error| raise_option(py, &error))
}

fn adaptive(py: Python<'_>, bounds: &str) -> PyResult<Adaptive> {
    bounds
        .parse()
        .map_err(|error: ParseAdaptiveError| bad_argument(py, "OptionError", &error.to_string(), None))
}

/// A rule by the name of its row in small letters, and its flags by theirs.
fn rule(py: Python<'_>, name: &str, flags: &[String]) -> PyResult<Rule> {
    let Some(row) = RULES.iter().find(|row| row.name.to_lowercase() == name) else {
        let message = format!("expected an optimizer of this library, got {name:?}");
        return Err(bad_argument(py, "SettingsError", &message, None));
    };
    let known: Vec<_> = row.flags.iter().map(|flag| flag.name()).collect();
    if let Some(flag) = flags.iter().find(|flag| !known.contains(&&flag[..])) {
        let message = format!("the optimizer `{name}` has no flag `{flag}`, only {known:?}");
        return Err(bad_argument(py, "SettingsError", &message, None));
    }
    let is_set = |flag: &Flag| flags.iter().any(|given| given == flag.name());
    Ok(row.plain.with(row.flags.iter().copied().filter(is_set).collect()))
}

/// A filter that Python names, with its settings.
type Named = (String, Vec<f64>);

/// Seconds, by layer.
type Layers = BTreeMap<String, f64>;

fn filtering(
    py: Python<'_>,
    (name, settings): &Named,
    find: impl FnOnce(&str, &[f64]) -> Option<Filtering>,
) -> PyResult<Filtering> {
    find(name, settings).ok_or_else(|| {
        let message =
            format!("expected a filter of this library and its settings, got {name:?} with {settings:?}");
        bad_argument(py, "OptionError", &message, None)
    })
}

#[pymethods]
impl Job {
    #[staticmethod]
    fn connect(
        py: Python<'_>,
        servers: Vec<String>,
        job: String,
        secret: &str,
        rank: u32,
        size: u32,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<Self> {
        let options = self::options(py, options)?;
        let servers = servers.iter().map(|server| endpoint(py, server)).collect::<PyResult<_>>()?;
        let membership = Membership { servers, job, secret: self::secret(py, secret)?, rank, size };
        Self::new(py, || CoreJob::connect_interruptibly(&membership, options, Some(Box::new(interrupted))))
    }

    #[staticmethod]
    fn embedded(py: Python<'_>, options: &Bound<'_, PyDict>) -> PyResult<Self> {
        let options = self::options(py, options)?;
        Self::new(py, || {
            let job = CoreJob::embedded(options)?;
            job.on_interrupt(Box::new(interrupted));
            Ok(job)
        })
    }

    #[getter]
    fn rank(&self) -> u32 {
        self.job.quick().rank()
    }

    #[getter]
    fn size(&self) -> u32 {
        self.job.quick().size()
    }

    #[getter]
    fn iteration(&self) -> u64 {
        self.job.quick().iteration()
    }

    #[getter]
    fn deadline(&self) -> f64 {
        self.job.quick().options().deadline.as_secs_f64()
    }

    #[getter]
    fn closed(&self) -> bool {
        self.job.quick().is_closed()
    }

    #[getter]
    fn servers(&self) -> u32 {
        self.servers
    }

    #[getter]
    fn shards(&self) -> u32 {
        self.shards
    }

    #[getter]
    fn chunk_bytes(&self) -> u32 {
        self.chunk_bytes
    }

    #[getter]
    fn default_consistency(&self) -> String {
        self.job.quick().options().consistency.to_string()
    }

    fn balance(&self, py: Python<'_>) -> PyResult<Vec<Vec<u64>>> {
        let_go(py, |free| self.job.on(free).balance())
    }

    fn clock(&self, py: Python<'_>) -> PyResult<u64> {
        detached(py, |free| self.job.on(free).clock())
    }

    fn barrier(
        &self,
        py: Python<'_>,
        timeout: Option<Seconds>,
        what: &str,
    ) -> PyResult<(Vec<u32>, Vec<u32>)> {
        let timeout = span(timeout)?;
        let met = detached(py, |free| self.job.on(free).barrier_for(what, timeout))?;
        Ok((met.ranks, met.left))
    }

    fn begin_by_first(
        &self,
        py: Python<'_>,
        what: &str,
        timeout: Option<Seconds>,
        then: Option<Seconds>,
    ) -> PyResult<bool> {
        let (timeout, then) = (span(timeout)?, span(then)?);
        detached(py, |free| self.job.on(free).begin_by_first(what, timeout, then))
    }

    fn end_by_first(&self, py: Python<'_>, what: &str, timeout: Option<Seconds>) -> PyResult<()> {
        let timeout = span(timeout)?;
        detached(py, |free| self.job.on(free).end_by_first(what, timeout))
    }

    fn done_by_first(&self, py: Python<'_>, what: &str) -> PyResult<u64> {
        finish(py, self.job.quick().done_by_first(what))
    }

    fn fail_by_first(&self, py: Python<'_>, what: &str, why: String) {
        let fail = |free: &_| {
            self.job.on(free).fail_by_first(what, why);
            Ok(())
        };
        // Nothing is waited for.
        let _ = detached(py, fail);
    }

    #[expect(clippy::too_many_arguments, reason = "the seam is flat; Python's front has names and defaults")]
    fn declare(
        &self,
        py: Python<'_>,
        name: String,
        shape: Vec<u64>,
        dtype: &str,
        rule: &str,
        flags: Vec<String>,
        settings: [f64; 5],
        consistency: &str,
        propagation: &str,
        sparse: bool,
        low_rank: u32,
        compress: &str,
        mean: bool,
        rescale: f64,
        clip: Option<f64>,
        refuse_nonfinite: bool,
        push_filter: Named,
        broadcast_filter: Named,
        timeout: Option<Seconds>,
    ) -> PyResult<Tensor> {
        let dtype = Dtype::from_name(dtype).ok_or_else(|| {
            let message = format!("expected float32, float64, float16 or bfloat16 for `{name}`, got {dtype}");
            bad_argument(py, "DtypeError", &message, None)
        })?;
        let rule = self::rule(py, rule, &flags)?;
        let checked = Settings(settings).check(rule);
        finish(py, checked.map_err(|error| Error::Settings { name: name.clone(), error }))?;
        let (consistency, adaptive) = match consistency.strip_prefix("ssp:auto:") {
            Some(bounds) => {
                let adaptive: Adaptive = adaptive(py, bounds)?;
                (&format!("ssp:{}", adaptive.max)[..], Some(adaptive))
            }
            None => (consistency, None),
        };
        let consistency = match consistency {
            "" => None,
            text => Some(text.parse::<Consistency>().map_err(|error| {
                bad_argument(
                    py,
                    "OptionError",
                    &error.to_string(),
                    Some("use ps.BSP(), ps.SSP(slack) or ps.ASP()"),
                )
            })?),
        };
        let travel = Travel::filtered(
            filtering(py, &push_filter, Filtering::of_sums)?,
            filtering(py, &broadcast_filter, Filtering::of_values)?,
            dtype,
        );
        let chosen = choose(propagation, self.job.quick().options(), consistency, &travel, dtype)
            .map_err(|error| bad_argument(py, "OptionError", &error.to_string(), None))?;
        let reduce = if mean { Reduce::Mean } else { Reduce::Sum };
        let spec = TensorSpec {
            name,
            shape,
            dtype,
            rule,
            consistency: Consistency::Bsp,
            propagation: chosen.propagation,
            reduce,
            rescale,
            clip,
            refuse_nonfinite,
            travel,
        };
        let spec = if sparse { TensorSpec { travel: spec.travel.sparse(dtype), ..spec } } else { spec };
        let compress = compress
            .parse::<Compress>()
            .map_err(|error| bad_argument(py, "OptionError", &error.to_string(), None))?;
        let travel = spec.travel.low_rank(low_rank).compressed(compress);
        let spec = TensorSpec { travel, ..spec };
        let declaration = Declaration { spec, consistency, adaptive, timeout: span(timeout)? };
        let tensor = detached(py, |free| self.job.on(free).declare(declaration))?;
        Ok(Tensor::new(tensor, chosen.why))
    }

    #[expect(clippy::too_many_arguments, reason = "the seam is flat; Python's front has names and defaults")]
    fn table(
        &self,
        py: Python<'_>,
        name: String,
        rows: u64,
        row_bytes: u32,
        element: &str,
        holds: String,
        sum: bool,
        produce: Vec<(u64, u64)>,
        consume: Vec<(u64, u64)>,
        propagation: &str,
        slack: Option<i64>,
        bounds: Option<&str>,
        timeout: Option<Seconds>,
    ) -> PyResult<Table> {
        let set =
            |ranges: Vec<(u64, u64)>| RowSet::from_ranges(ranges.into_iter().map(|(start, end)| start..end));
        let propagation = propagation.parse().map_err(|error: ParsePropagationError| {
            bad_argument(py, "OptionError", &error.to_string(), None)
        })?;
        let slack = crate::table::slack(py, slack)?.unwrap_or(Slack::Bound(0));
        let declaration = TableDeclaration {
            name,
            rows,
            row_bytes,
            element: Dtype::from_name(element),
            holds,
            sum,
            produce: set(produce),
            consume: set(consume),
            propagation,
            slack,
            adaptive: bounds.map(|bounds| adaptive(py, bounds)).transpose()?,
            timeout: span(timeout)?,
        };
        Ok(Table::new(detached(py, |free| self.job.on(free).table(declaration))?))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = let_go(py, |free| self.job.on(free).stats())?;
        let dict = PyDict::new(py);
        dict.set_item("pushed_bytes", stats.pushed_bytes)?;
        dict.set_item("pulled_bytes", stats.pulled_bytes)?;
        dict.set_item("sent_bytes", stats.sent_bytes)?;
        dict.set_item("received_bytes", stats.received_bytes)?;
        dict.set_item("parents", stats.parents)?;
        dict.set_item("children", stats.children)?;
        for (way, Squeezed { chunks, raw, before, after }) in
            [("sent", stats.squeezed_sent), ("received", stats.squeezed_received)]
        {
            dict.set_item(format!("compressed_chunks_{way}"), chunks)?;
            dict.set_item(format!("uncompressed_chunks_{way}"), raw)?;
            dict.set_item(format!("compress_before_{way}"), before)?;
            dict.set_item(format!("compress_after_{way}"), after)?;
        }
        dict.set_item("pushes", stats.pushes)?;
        dict.set_item("pulls", stats.pulls)?;
        dict.set_item("waited_seconds", stats.waited.as_secs_f64())?;
        dict.set_item("max_staleness", stats.max_staleness)?;
        dict.set_item("copies_retried", stats.copies_retried)?;
        dict.set_item("slack", stats.slack)?;
        dict.set_item("iteration", self.job.quick().iteration())?;
        Ok(dict)
    }

    fn spent(&self, py: Python<'_>, timeout: Option<Seconds>) -> PyResult<(Layers, Vec<Layers>)> {
        let timeout = span(timeout)?;
        let (own, servers) = detached(py, |free| self.job.on(free).spent(timeout))?;
        let named = |nanos: Nanos| {
            Layer::ALL
                .iter()
                .zip(nanos)
                .map(|(layer, nanos)| (layer.to_string(), nanos as f64 / 1e9))
                .collect()
        };
        Ok((named(own), servers.into_iter().map(named).collect()))
    }

    fn clocks(&self, py: Python<'_>) -> PyResult<Vec<i64>> {
        detached(py, |free| self.job.on(free).clocks())
    }

    /// In a forked child, before anything else.
    fn abandon(&self) {
        self.job.quick().abandon();
    }

    fn leave(&self, py: Python<'_>, timeout: Option<Seconds>) -> PyResult<()> {
        let timeout = span(timeout)?;
        if within() {
            close_later(Arc::clone(&self.job), None);
            return Ok(());
        }
        detached(py, |free| closing(&self.job, free, |job| job.leave(timeout)))
    }

    fn fail(&self, py: Python<'_>, what: String) -> PyResult<()> {
        if within() {
            close_later(Arc::clone(&self.job), Some(what));
            return Ok(());
        }
        let_go(py, |free| closing(&self.job, free, |job| job.fail(&what)))
    }

    fn __repr__(&self) -> String {
        format!("<penstock._core.Job rank={} size={}>", self.job.quick().rank(), self.job.quick().size())
    }
}
