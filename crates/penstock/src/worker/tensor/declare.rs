//! Declaring a tensor on every server, and mapping its memory.

use super::{HomeShard, Tensor};
use crate::limits;
use crate::pools::POOLED_BELOW;
use crate::turn::Turn;
use crate::worker::Error;
use crate::worker::job::Inner;
use crate::worker::link::{Deadline, Link, lock};
use penstock_fabric::memory::{ExtentLayout, Place, ServerPart, WorkerMemory};
use penstock_kernels::{Dtype, Rule};
use penstock_proto::TensorId;
use penstock_proto::adaptive::Adaptive;
use penstock_proto::chunk::Cut;
use penstock_proto::consistency::Consistency;
use penstock_proto::message::{Answer, Ask};
use penstock_proto::placement::Extent;
use penstock_proto::spec::{Reduce, TensorSpec};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// What a tensor is declared to be.
#[derive(Debug, Clone)]
pub struct Declaration {
    /// The declaration proper. Its consistency counts only if `consistency` is `None`.
    pub spec: TensorSpec,
    /// `None`: the job's.
    pub consistency: Option<Consistency>,
    /// Where the slack of pulls that name none is chosen by waiting; `consistency` bounds it.
    pub adaptive: Option<Adaptive>,
    /// How long to wait for the servers; `None`: the option `deadline`.
    pub timeout: Option<Duration>,
}

impl Declaration {
    /// A float32 tensor with the job's consistency, the contributions summed.
    pub fn new(name: &str, shape: &[u64], rule: Rule) -> Self {
        let spec = TensorSpec {
            name: name.to_owned(),
            shape: shape.to_vec(),
            dtype: Dtype::F32,
            rule,
            consistency: Consistency::Bsp,
            reduce: Reduce::Sum,
            rescale: 1.0,
            clip: None,
            refuse_nonfinite: false,
        };
        Self { spec, consistency: None, adaptive: None, timeout: None }
    }
}
impl Tensor {
    pub(in crate::worker) fn declare(job: Arc<Inner>, declaration: Declaration) -> Result<Self, Error> {
        job.fate.check()?;
        job.touch();
        job.has_tensors.store(true, Ordering::Relaxed);
        job.tell_clock()?;
        let Declaration { mut spec, consistency, adaptive, timeout } = declaration;
        spec.consistency = consistency.unwrap_or(job.options.consistency);
        spec.check().map_err(penstock_proto::error::Refusal::from)?;
        let deadline = job.deadline(timeout);
        let links = job.links();
        let first = links.first().ok_or(Error::Closed)?;
        let cut = Cut::new(spec.bytes(), first.welcome.chunk_bytes);
        let (id, extents, homes, parts) = declare_everywhere(&links, &spec, cut, deadline)?;
        let (memory, lane) = WorkerMemory::new(cut, spec.dtype, &parts)
            .map_err(|errno| Error::System { what: "map a tensor", reason: limits::explain(errno) })?;
        debug_assert_eq!(extents.len(), links.len());
        drop(links);
        count(&job, &homes, &cut);
        let adaptive = adaptive.map(|settings| (settings, job.adaptive(settings)));
        Ok(Self {
            job,
            id,
            adaptive,
            spec,
            memory,
            homes,
            position: Mutex::default(),
            lane_turn: Turn::default(),
            lane: Mutex::new(lane),
            has_value: AtomicBool::new(false),
            stale: AtomicBool::new(false),
            seen_barriers: AtomicU64::new(0),
            staleness: AtomicU64::new(0),
            mirror: OnceLock::new(),
        })
    }
}

/// Adds the tensor's bytes to what its shards are home of.
fn count(job: &Inner, homes: &[HomeShard], cut: &Cut) {
    let mut homed = lock(&job.homed);
    for home in homes {
        let bytes = (home.chunks * u64::from(cut.chunk_bytes())).min(cut.bytes());
        homed[home.server][home.shard as usize] += bytes;
    }
}

type Declared = (TensorId, Vec<Extent>, Vec<HomeShard>, Vec<ServerPart>);

/// Asks the first server, which decides, then tells the others.
fn declare_everywhere(
    links: &[Link],
    spec: &TensorSpec,
    cut: Cut,
    deadline: Deadline,
) -> Result<Declared, Error> {
    let mut decided: Option<(TensorId, Vec<Extent>)> = None;
    let mut homes = Vec::new();
    let mut parts = Vec::new();
    for (server, link) in links.iter().enumerate() {
        let ask = Ask::Declare { spec: spec.clone(), decided: decided.clone() };
        let (answer, descriptors) = link.ask(ask, "declare a tensor", deadline)?;
        let Answer::Declared { tensor, extents, homed, loads, slabs } = answer else {
            return Err(link.misunderstood(&answer));
        };
        let bad = |what: &str| Error::Protocol { server: server as u32, what: what.to_owned() };
        let total: u64 = extents.iter().map(|extent| u64::from(extent.count)).sum();
        let extent = *extents.get(server).ok_or_else(|| bad("it named too few extents"))?;
        if extents.len() != links.len()
            || total != u64::from(cut.chunks())
            || homed.len() != link.welcome.shards as usize
        {
            return Err(bad("its extents do not cover the tensor"));
        }
        if decided.as_ref().is_some_and(|decided| *decided != (tensor, extents.clone())) {
            return Err(bad("it does not agree with the first server"));
        }
        let mut descriptors = descriptors.into_iter();
        let (place, remotes) = match (extent.count, link.is_remote()) {
            (0, _) => (None, Vec::new()),
            (_, true) => {
                let layout = ExtentLayout::new(cut, extent, spec.dtype, 0);
                let pooled = cut.bytes() < POOLED_BELOW && extent.count == cut.chunks();
                let (place, remotes) = link.mirror(tensor, layout, pooled, &homed, loads)?;
                (Some(place), remotes)
            }
            (_, false) if slabs.is_some() => (slabs.map(|spots| link.find(&spots)).transpose()?, Vec::new()),
            (_, false) => match (descriptors.next(), descriptors.next()) {
                (Some(model), Some(lane)) => (Some(Place::Own(model, lane)), Vec::new()),
                _ => return Err(bad("a tensor came without its memory")),
            },
        };
        for (&chunks, shard) in homed.iter().zip(0..).filter(|(chunks, _)| **chunks > 0) {
            let submitted = AtomicU64::new(0);
            let remote = remotes.get(shard as usize).cloned();
            homes.push(HomeShard { server, shard, chunks: u64::from(chunks), extent, submitted, remote });
        }
        parts.push(ServerPart { extent, place });
        decided.get_or_insert((tensor, extents));
    }
    let (id, extents) = decided.ok_or(Error::Closed)?;
    Ok((id, extents, homes, parts))
}
