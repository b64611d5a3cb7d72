//! Declaring a tensor on every server, and mapping its memory.

use super::carry::Carry;
use super::{HomeShard, Tensor};
use crate::options::Options;
use crate::pools::POOLED_BELOW;
use crate::turn::Turn;
use crate::wait::Deadline;
use crate::wire::travel::KNOWN;
use crate::worker::Error;
use crate::worker::job::Inner;
use crate::worker::link::{Link, lock};
use penstock_fabric::memory::{ExtentLayout, OwnLane, Place, ServerPart, WorkerMemory};
use penstock_kernels::{Dtype, Rule};
use penstock_proto::adaptive::Adaptive;
use penstock_proto::choice::{Asked, Chosen, Circumstances, ParseAskedError};
use penstock_proto::chunk::Cut;
use penstock_proto::consistency::Consistency;
use penstock_proto::error::Refusal;
use penstock_proto::message::{Answer, Ask};
use penstock_proto::placement::Extent;
use penstock_proto::propagation::Propagation;
use penstock_proto::spec::{Reduce, TensorSpec};
use penstock_proto::travel::{Terms, Travel};
use penstock_proto::{Rank, TensorId};
use std::sync::atomic::{AtomicBool, AtomicU64};
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
            propagation: Propagation::Pull,
            reduce: Reduce::Sum,
            rescale: 1.0,
            clip: None,
            refuse_nonfinite: false,
            travel: Travel::default(),
        };
        Self { spec, consistency: None, adaptive: None, timeout: None }
    }
}

/// Who moves the values of a tensor that is declared with the word `asked`, that consistency (`None`: the job's), and travels so. A
/// filter that cannot be made holds nothing back: the declaration refuses it.
pub fn propagation(
    asked: &str,
    options: &Options,
    consistency: Option<Consistency>,
    travel: &Travel,
    dtype: Dtype,
) -> Result<Chosen, ParseAskedError> {
    let holds_back = travel.resolve(dtype, &KNOWN).is_ok_and(|terms| terms.filter.holds_back());
    let consistency = consistency.unwrap_or(options.consistency);
    Ok(asked.parse::<Asked>()?.choose(&Circumstances { consistency, tree: options.tree, holds_back }))
}

/// How far a tensor's declaration has come in this worker. A call that fails on its way leaves here what it has achieved, and
/// the next goes on from there: a worker has one lane of a tensor, so there is one that counts what stands in it.
#[derive(Default)]
pub(in crate::worker) struct Progress {
    /// Of the thread that declares the tensor: a second one that does so too waits, and gets the same tensor.
    turn: Turn,
    /// Locked only by the thread that has the turn.
    state: Mutex<State>,
}

#[derive(Default)]
enum State {
    #[default]
    New,
    /// The first servers may have declared it.
    Begun(Box<Draft>),
    Made(Arc<Tensor>),
}

impl State {
    /// What stands, because a server has said so.
    fn decided(&self) -> Option<(&TensorSpec, Option<Adaptive>)> {
        match self {
            Self::New => None,
            Self::Begun(draft) => draft.decided.as_ref().map(|_| (&draft.spec, draft.adaptive)),
            Self::Made(tensor) => Some((&tensor.spec, tensor.adaptive())),
        }
    }

    /// Refuses another declaration of the same tensor, naming what differs.
    fn compare(&self, rank: Rank, now: &TensorSpec, adaptive: Option<Adaptive>) -> Result<(), Refusal> {
        let Some((before, bounds)) = self.decided() else { return Ok(()) };
        let spelled = |spec: &TensorSpec, bounds: Option<Adaptive>| {
            bounds.map_or_else(|| spec.consistency.to_string(), |bounds| format!("ssp:auto:{bounds}"))
        };
        let (ours, theirs) = (spelled(before, bounds), spelled(now, adaptive));
        let other = (ours != theirs).then_some(("consistency", ours, theirs));
        match other.or_else(|| before.difference(now)) {
            None => Ok(()),
            Some((what, expected, got)) => {
                let (name, what) = (now.name.clone(), what.to_owned());
                Err(Refusal::Conflict { name, rank, what, expected, got })
            }
        }
    }
}

/// A tensor that not every server has declared.
struct Draft {
    spec: TensorSpec,
    /// What it says of how chunks travel.
    terms: Arc<Terms>,
    adaptive: Option<Adaptive>,
    /// What the first server has decided.
    decided: Option<(TensorId, Vec<Extent>)>,
    homes: Vec<HomeShard>,
    /// Of the first servers, in their order.
    parts: Vec<ServerPart>,
}

impl Tensor {
    pub(in crate::worker) fn declare(job: &Arc<Inner>, declaration: Declaration) -> Result<Arc<Self>, Error> {
        job.fate.check()?;
        job.touch();
        let Declaration { mut spec, consistency, adaptive, timeout } = declaration;
        spec.consistency = consistency.unwrap_or(job.options.consistency);
        let terms = Arc::new(spec.check(&KNOWN).map_err(Refusal::from)?);
        let deadline = job.deadline(timeout);
        job.tell_clock(deadline)?;
        let progress = Arc::clone(lock(&job.tensors).entry(spec.name.clone()).or_default());
        let _turn = progress.turn.take(|| job.look(&format!("declaring `{}`", spec.name), deadline))?;
        let mut state = lock(&progress.state);
        state.compare(job.rank, &spec, adaptive)?;
        if let State::Made(tensor) = &*state {
            return Ok(Arc::clone(tensor));
        }
        if state.decided().is_none() {
            *state = State::Begun(Box::new(Draft::new(spec, terms, adaptive)));
        }
        let State::Begun(draft) = &mut *state else { return Err(Error::Closed) };
        let memory = draft.go_on(job, deadline)?;
        job.move_in(draft.homes.iter().map(|home| (home.server, home.shard)), deadline)?;
        let State::Begun(draft) = std::mem::take(&mut *state) else { return Err(Error::Closed) };
        let tensor = Arc::new(draft.finish(job, memory)?);
        *state = State::Made(Arc::clone(&tensor));
        // The job may have been closed meanwhile, by another thread.
        job.fate.check().inspect_err(|_| job.forget_all())?;
        Ok(tensor)
    }
}

/// A tensor's memory: what its servers share with it, and what a filter of contributions carries.
type Memory = (WorkerMemory, OwnLane, Option<Carry>);

impl Draft {
    fn new(spec: TensorSpec, terms: Arc<Terms>, adaptive: Option<Adaptive>) -> Self {
        Self { spec, terms, adaptive, decided: None, homes: Vec::new(), parts: Vec::new() }
    }

    /// Asks the first server, which decides, then tells the others, as far as they were not told; then maps what they gave.
    fn go_on(&mut self, job: &Inner, deadline: Deadline) -> Result<Memory, Error> {
        let links = job.links();
        let first = links.first().ok_or(Error::Closed)?;
        let cut = Cut::new(self.spec.bytes(), first.welcome.chunk_bytes);
        while let Some(link) = links.get(self.parts.len()) {
            self.declare(link, links.len(), cut, deadline)?;
        }
        let filter = self.terms.sums.as_ref();
        let carry = filter.map(|filter| Carry::new(&self.spec, Arc::clone(filter))).transpose()?;
        let mapped =
            WorkerMemory::new(cut, self.spec.dtype, &self.parts).map_err(Error::system("map a tensor"));
        mapped.map(|(memory, lane)| (memory, lane, carry))
    }

    /// Has the next server declare it.
    fn declare(&mut self, link: &Link, servers: usize, cut: Cut, deadline: Deadline) -> Result<(), Error> {
        let server = self.parts.len();
        let ask = || Ask::Declare { spec: self.spec.clone(), decided: self.decided.clone() };
        let (mut answer, mut descriptors) = link.ask(ask(), "declare a tensor", deadline)?;
        if let Answer::Declared { slabs: Some(spots), .. } = &answer
            && !link.is_remote()
            && link.find(spots)?.is_none()
        {
            // They were passed with another tensor, and lost. A worker that declares again is passed them again.
            (answer, descriptors) = link.ask(ask(), "declare a tensor", deadline)?;
        }
        let Answer::Declared { tensor, extents, homed, loads, slabs } = answer else {
            return Err(link.misunderstood(&answer));
        };
        let bad = |what: &str| Error::Protocol { server: server as u32, what: what.to_owned() };
        let total: u64 = extents.iter().map(|extent| u64::from(extent.count)).sum();
        let extent = *extents.get(server).ok_or_else(|| bad("it named too few extents"))?;
        if extents.len() != servers
            || total != u64::from(cut.chunks())
            || homed.len() != link.welcome.shards as usize
        {
            return Err(bad("its extents do not cover the tensor"));
        }
        if self.decided.as_ref().is_some_and(|decided| *decided != (tensor, extents.clone())) {
            return Err(bad("it does not agree with the first server"));
        }
        self.decided.get_or_insert((tensor, extents));
        let mut descriptors = descriptors.into_iter();
        let (place, remotes) = match (extent.count, link.is_remote()) {
            (0, _) => (None, Vec::new()),
            (_, true) => {
                // Who folds updates keeps what the rule keeps.
                let slots = self.terms.updates.map_or(0, |_| self.spec.rule.slots().count());
                let per_element = slots * self.spec.dtype.accumulator_size();
                let layout = ExtentLayout::new(cut, extent, self.spec.dtype, per_element);
                let pooled = cut.bytes() < POOLED_BELOW && extent.count == cut.chunks();
                let (place, remotes) = link.mirror(tensor, layout, pooled, &self.terms, &homed, loads)?;
                (Some(place), remotes)
            }
            (_, false) if let Some(spots) = slabs => {
                let place = link.find(&spots)?.ok_or_else(|| bad("a tensor came without its slabs"))?;
                (Some(place), Vec::new())
            }
            (_, false) => match (descriptors.next(), descriptors.next()) {
                (Some(model), Some(lane)) => (Some(Place::Own(model, lane)), Vec::new()),
                _ => return Err(bad("a tensor came without its memory")),
            },
        };
        for (&chunks, shard) in homed.iter().zip(0..).filter(|(chunks, _)| **chunks > 0) {
            let submitted = AtomicU64::new(0);
            let remote = remotes.get(shard as usize).cloned();
            self.homes.push(HomeShard {
                place: self.homes.len(),
                server,
                shard,
                chunks: u64::from(chunks),
                extent,
                submitted,
                remote,
            });
        }
        self.parts.push(ServerPart { extent, place });
        Ok(())
    }

    fn finish(self, job: &Arc<Inner>, (memory, lane, carry): Memory) -> Result<Tensor, Error> {
        let Self { spec, adaptive, decided, homes, .. } = self;
        let (id, _) = decided.ok_or(Error::Closed)?;
        count(job, &homes, &memory.cut());
        Ok(Tensor {
            job: Arc::clone(job),
            id,
            adaptive: adaptive.map(|settings| (settings, job.adaptive(settings))),
            low_rank: self.terms.low_rank,
            carry: carry.map(Mutex::new),
            holds_back: self.terms.holds_back(),
            filtered: self.terms.filter.holds_back(),
            filter_follows: self.terms.filter.follows().is_some(),
            spec,
            memory,
            homes,
            position: Mutex::default(),
            lane_turn: Turn::default(),
            lane: Mutex::new(lane),
            is_given: AtomicBool::new(false),
            has_value: AtomicBool::new(false),
            flushed: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            loads: AtomicU64::new(0),
            seen_loads: AtomicU64::new(0),
            state_turn: Turn::default(),
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
