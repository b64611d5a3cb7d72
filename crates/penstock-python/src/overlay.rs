//! The planner of overlay trees, for `penstock plan --tree`.

use crate::detach::let_go;
use crate::error::bad_argument;
use penstock_proto::overlay::{
    Cluster, Costs, Limits, Node, Overlay, Place, Plan, PlanError, Prediction, Shape, Stripe, Traffic, plan,
    predict,
};
use pyo3::prelude::*;

/// Zone, rack, host, bytes per second.
type Row = (u32, u32, u32, f64);
/// Share, and by host from 1 who sends to it.
type Tree = (f64, Vec<Option<u32>>);
/// Share, and who sends to whom.
type Edges = (f64, Vec<(u32, u32)>);
/// Seconds, ratio to one link's transfer, seconds of the busiest uplink, depth.
type Times = (f64, f64, f64, u32);

/// Servers and hosts, as Python gives them.
#[pyclass(frozen, module = "penstock._core")]
pub(crate) struct OverlayPlanner {
    cluster: Cluster,
    traffic: Traffic,
}

#[pymethods]
impl OverlayPlanner {
    #[new]
    fn new(
        py: Python<'_>,
        servers: Vec<Row>,
        hosts: Vec<Row>,
        measured: bool,
        traffic: (u64, u64, f64),
    ) -> PyResult<Self> {
        let nodes = |rows: Vec<Row>| {
            rows.into_iter()
                .map(|(zone, rack, host, rate)| Node { place: Place { zone, rack, host }, rate })
                .collect()
        };
        let costs = if measured { Costs::Measured } else { Costs::Labels };
        let cluster = Cluster::new(nodes(servers), nodes(hosts), costs).map_err(|error| raise(py, &error))?;
        let (bytes, block, hop) = traffic;
        Ok(Self { cluster, traffic: Traffic { bytes, block, hop } })
    }

    /// The trees of each server, and what they take.
    fn plan(
        &self,
        py: Python<'_>,
        shape: &str,
        limits: (u32, u32, f64),
        stripes: Option<u32>,
    ) -> PyResult<(String, Times, Vec<Vec<Tree>>)> {
        let (degree, depth, leaf_penalty) = limits;
        let shape = match shape {
            "star" => Shape::Star,
            "chain" => Shape::Chain,
            "tree" => Shape::Tree { limits: Limits { degree, depth }, leaf_penalty },
            "striped" => Shape::Striped { stripes },
            "auto" => Shape::Auto,
            other => {
                let hint = Some("auto, star, chain, striped or tree");
                return Err(bad_argument(py, "OptionError", &format!("there is no shape {other:?}"), hint));
            }
        };
        let Self { cluster, traffic } = self;
        let made = let_go(py, |_| plan(cluster, shape, traffic))?.map_err(|error| raise(py, &error))?;
        let Plan { shape, overlays, prediction } = made;
        Ok((named(shape), times(prediction), overlays.iter().map(trees).collect()))
    }

    /// What given trees take: of each server the stripes, each a share and its edges.
    fn predict(&self, py: Python<'_>, overlays: Vec<Vec<Edges>>) -> PyResult<Times> {
        let hosts = self.cluster.hosts();
        let made: Result<Vec<Overlay>, PlanError> =
            overlays.iter().map(|stripes| Overlay::from_edges(hosts, stripes)).collect();
        made.and_then(|overlays| predict(&self.cluster, &overlays, &self.traffic))
            .map(times)
            .map_err(|error| raise(py, &error))
    }
}

/// The least depth at which a tree of this degree reaches so many hosts; `None` for degree 0.
#[pyfunction]
pub(crate) fn least_depth(hosts: usize, degree: u32) -> Option<u32> {
    Limits::least_depth(hosts, degree)
}

fn raise(py: Python<'_>, error: &PlanError) -> PyErr {
    bad_argument(py, "OptionError", &error.to_string(), Some(&error.hint()))
}

fn times(prediction: Prediction) -> Times {
    let Prediction { seconds, ratio, busiest, depth } = prediction;
    (seconds, ratio, busiest, depth)
}

fn trees(overlay: &Overlay) -> Vec<Tree> {
    let hosts = overlay.len() as u32;
    let tree = |stripe: &Stripe| (stripe.share(), (1..hosts).map(|host| stripe.parent(host)).collect());
    overlay.stripes().iter().map(tree).collect()
}

fn named(shape: Shape) -> String {
    match shape {
        Shape::Star => "star".into(),
        Shape::Chain => "chain".into(),
        Shape::Tree { limits: Limits { degree, depth }, .. } => {
            format!("tree of degree {degree}, depth {depth}")
        }
        Shape::Striped { stripes: Some(1) } => "striped, 1 stripe".into(),
        Shape::Striped { stripes: Some(stripes) } => format!("striped, {stripes} stripes"),
        Shape::Striped { stripes: None } => "striped".into(),
        Shape::Auto => "auto".into(),
    }
}
