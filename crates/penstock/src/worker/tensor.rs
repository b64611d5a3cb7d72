//! A tensor, as a worker pushes and pulls it.
//!
//! The way of a push whose bytes already stand in the lane: one look at the position, one look at each shard's count of
//! folded chunks, 64 bytes into each shard's ring. The way of a pull in place: one look at each shard's progress. Neither
//! copies, neither makes a system call while the shards are awake, and neither costs more for a large tensor than for a
//! small one.

use super::Error;
use super::job::Inner;
use super::link::{Deadline, Link, Waited, lock};
use penstock_fabric::layout::Count;
use penstock_fabric::memory::{ExtentLayout, ServerPart, StateView, WorkerMemory};
use penstock_fabric::publish::{Published, Torn};
use penstock_fabric::region::Mapping;
use penstock_fabric::sync::Ordering;
use penstock_kernels::{Dtype, Rule, Settings};
use penstock_proto::TensorId;
use penstock_proto::chunk::Cut;
use penstock_proto::consistency::{Consistency, MAX_SLACK};
use penstock_proto::message::{Answer, Ask};
use penstock_proto::placement::Extent;
use penstock_proto::spec::{Reduce, TensorSpec};
use penstock_proto::submission::Submission;
use penstock_proto::worker::{Contribution, Position, Requirement};
use rustix::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Bytes that are copied into the lane before the shards hear of them: they fold the first while the next are copied.
/// Small enough to stay in a core's second cache until a shard reads it.
const WINDOW: usize = 256 * 1024;

/// What a tensor is declared to be.
#[derive(Debug, Clone)]
pub struct Declaration {
    /// The declaration proper. Its consistency counts only if `consistency` is `None`.
    pub spec: TensorSpec,
    /// `None`: the job's.
    pub consistency: Option<Consistency>,
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
        Self { spec, consistency: None, timeout: None }
    }
}

/// One shard that is home of some of the tensor.
#[derive(Debug)]
struct HomeShard {
    server: usize,
    shard: u32,
    /// Chunks homed there.
    chunks: u64,
    /// First and last + 1 of the server's chunks.
    extent: Extent,
    /// Chunk contributions handed to it so far. Written under the tensor's lock.
    submitted: AtomicU64,
}

/// A tensor of a job.
pub struct Tensor {
    job: Arc<Inner>,
    id: TensorId,
    spec: TensorSpec,
    memory: WorkerMemory,
    homes: Vec<HomeShard>,
    position: Mutex<Position>,
    /// Whether the tensor was seen to have a value; it never loses it.
    has_value: AtomicBool,
    staleness: AtomicU64,
    mirror: OnceLock<Arc<Mapping>>,
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tensor").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl Tensor {
    pub(super) fn declare(job: Arc<Inner>, declaration: Declaration) -> Result<Self, Error> {
        let Declaration { mut spec, consistency, timeout } = declaration;
        spec.consistency = consistency.unwrap_or(job.options.consistency);
        spec.check().map_err(penstock_proto::error::Refusal::from)?;
        let deadline = job.deadline(timeout);
        let links = job.links();
        let first = links.first().ok_or(Error::Closed)?;
        let cut = Cut::new(spec.bytes(), first.welcome.chunk_bytes);
        let (id, extents, homes, parts) = declare_everywhere(&links, &spec, cut, deadline)?;
        let memory = WorkerMemory::new(cut, spec.dtype, &parts)
            .map_err(|errno| Error::System { what: "map a tensor", reason: errno.to_string() })?;
        debug_assert_eq!(extents.len(), links.len());
        drop(links);
        Ok(Self {
            job,
            id,
            spec,
            memory,
            homes,
            position: Mutex::default(),
            has_value: AtomicBool::new(false),
            staleness: AtomicU64::new(0),
            mirror: OnceLock::new(),
        })
    }

    /// The declaration, with the consistency that holds.
    pub fn spec(&self) -> &TensorSpec {
        &self.spec
    }

    /// Chunks.
    pub fn chunks(&self) -> u32 {
        self.memory.cut().chunks()
    }

    /// The published value, to be looked at after [`Tensor::pull`]; read-only.
    pub fn model(&self) -> &Arc<Mapping> {
        self.memory.value()
    }

    /// This worker's lane, to be filled for the next push. Waits until the homes have taken what stands in it.
    pub fn lane(&self, timeout: Option<Duration>) -> Result<&Arc<Mapping>, Error> {
        self.job.fate.check()?;
        self.wait_for_lane(self.job.deadline(timeout))?;
        Ok(self.memory.lane())
    }

    /// A private copy, filled by [`Tensor::pull_mirror`].
    pub fn mirror(&self) -> Result<&Arc<Mapping>, Error> {
        if self.mirror.get().is_none() {
            let mirror = Mapping::private(self.spec.bytes() as usize)
                .map_err(|errno| Error::System { what: "make a mirror", reason: errno.to_string() })?;
            let _ = self.mirror.set(mirror);
        }
        Ok(self.mirror.get().expect("it was just set"))
    }

    /// Least version that all homes have published; `None` before the tensor has a value.
    pub fn version(&self) -> Option<u64> {
        let links = self.job.links();
        let _ = &links;
        self.homes.iter().map(|home| self.progress(home)).min()?.checked_sub(1)
    }

    /// How many iterations the last pull was behind this worker.
    pub fn staleness(&self) -> u64 {
        self.staleness.load(Ordering::Relaxed)
    }

    fn progress(&self, home: &HomeShard) -> u64 {
        let count: &Count = self.memory.progress(home.server, home.shard).expect("a home has chunks");
        // Pairs with the release store in the shard's `progress`: who sees it sees the chunks.
        count.0.load(Ordering::Acquire)
    }

    fn lane_is_free(&self, home: &HomeShard) -> bool {
        let count = self.memory.folded(home.server, home.shard).expect("a home has chunks");
        // Pairs with the release store in the shard's `folded`: it has read what it counts.
        count.0.load(Ordering::Acquire) >= home.submitted.load(Ordering::Relaxed)
    }

    /// Waits until each home is `done`; what the wait cost is counted.
    fn wait(&self, deadline: Deadline, done: impl Fn(&HomeShard) -> bool) -> Result<Waited, Error> {
        if self.homes.iter().all(&done) {
            return Ok(Waited::Done);
        }
        let since = Instant::now();
        let links = self.job.links();
        let mut result = Ok(Waited::Done);
        for home in &self.homes {
            if done(home) {
                continue;
            }
            let link = links.get(home.server).ok_or(Error::Closed)?;
            result = link.wait(self.id + 1, deadline, || done(home));
            if result != Ok(Waited::Done) {
                break;
            }
        }
        let nanos = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.job.counters.waited_nanos.fetch_add(nanos, Ordering::Relaxed);
        result
    }

    fn wait_for_value(&self, deadline: Deadline) -> Result<(), Error> {
        if self.has_value.load(Ordering::Relaxed) {
            return Ok(());
        }
        match self.wait(deadline, |home| self.progress(home) > 0)? {
            Waited::TimedOut => {
                Err(Error::NoValue { name: self.spec.name.clone(), waited: deadline.waited() })
            }
            Waited::Done => {
                self.has_value.store(true, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    fn wait_for_lane(&self, deadline: Deadline) -> Result<(), Error> {
        if self.wait(deadline, |home| self.lane_is_free(home))? == Waited::Done {
            return Ok(());
        }
        let waited = deadline.waited();
        let version = lock(&self.position).at(0);
        let name = self.spec.name.clone();
        Err(Error::LaneTimeout {
            name,
            iteration: version.saturating_sub(1),
            missing: self.missing(version),
            waited,
        })
    }

    /// Who keeps the tensor from reaching `version`, as far as the servers say.
    fn missing(&self, version: u64) -> Vec<u32> {
        let mut ranks = Vec::new();
        for link in self.job.links().iter() {
            let ask = Ask::Missing { tensor: self.id, version };
            if let Ok((Answer::Missing { ranks: more }, _)) =
                link.ask(ask, "answer", Deadline::new(Duration::from_secs(5)))
            {
                ranks.extend(more);
            }
        }
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    fn check_size(&self, got: usize) -> Result<(), Error> {
        let expected = self.spec.bytes() as usize;
        if got == expected {
            return Ok(());
        }
        Err(Error::WrongSize { name: self.spec.name.clone(), expected, got })
    }

    /// Worker 0: gives the tensor its value (`None`: zeros). Other workers: nothing.
    pub fn initialize(&self, value: Option<&[u8]>, timeout: Option<Duration>) -> Result<(), Error> {
        self.job.fate.check()?;
        if let Some(value) = value {
            self.check_size(value.len())?;
        }
        if self.job.rank != 0 {
            return Ok(());
        }
        let deadline = self.job.deadline(timeout);
        match value {
            Some(value) => self.load_lane(value, 0, 0, 0, deadline)?,
            None => {
                for home in &self.homes {
                    self.tell(home, &Submission::Zero { tensor: self.id }, deadline)?;
                }
            }
        }
        self.wait_for_value(deadline)
    }

    /// Worker 0, while nobody pushes: overwrites the value (`slot` 0) or state array `slot` - 1, and the step count.
    pub fn load(&self, slot: u32, data: &[u8], steps: u64, timeout: Option<Duration>) -> Result<(), Error> {
        self.job.fate.check()?;
        let bad = |what: String| Err(Error::BadLoad { name: self.spec.name.clone(), what });
        let slots = self.spec.rule.slots().len() as u32;
        if self.job.rank != 0 {
            return bad("only worker 0 loads values and states".to_owned());
        }
        if slot > slots {
            return bad(format!(
                "expected one of the optimizer's {slots} state arrays, got number {}",
                slot - 1
            ));
        }
        let deadline = self.job.deadline(timeout);
        if slot == 0 {
            self.check_size(data.len())?;
            return self.load_lane(data, 0, 0, steps, deadline);
        }
        let parts = self.spec.dtype.accumulator_size() / self.spec.dtype.size();
        let expected = self.spec.bytes() as usize * parts;
        if data.len() != expected {
            return Err(Error::WrongSize { name: self.spec.name.clone(), expected, got: data.len() });
        }
        for part in 0..parts {
            self.load_lane(&self.part_of(data, parts, part), slot, part as u32, steps, deadline)?;
        }
        Ok(())
    }

    /// Of an array whose elements are `parts` times as wide as the tensor's: of each chunk the `part`-th lane-full.
    fn part_of<'a>(&self, data: &'a [u8], parts: usize, part: usize) -> std::borrow::Cow<'a, [u8]> {
        if parts == 1 {
            return data.into();
        }
        let cut = self.memory.cut();
        let pieces = (0..cut.chunks()).flat_map(|chunk| {
            let range = cut.range(chunk);
            let bytes = (range.end - range.start) as usize;
            let start = range.start as usize * parts + part * bytes;
            data[start..start + bytes].iter().copied()
        });
        pieces.collect::<Vec<u8>>().into()
    }

    fn load_lane(
        &self,
        data: &[u8],
        slot: u32,
        part: u32,
        steps: u64,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let position = lock(&self.position);
        self.wait(deadline, |home| self.lane_is_free(home))?;
        self.memory.write_lane(0, data);
        for home in &self.homes {
            let Extent { first, count } = home.extent;
            home.submitted.fetch_add(home.chunks, Ordering::Relaxed);
            self.tell(
                home,
                &Submission::Load { tensor: self.id, first, count, slot, part, steps },
                deadline,
            )?;
        }
        drop(position);
        self.wait_for_lane(deadline)
    }

    fn tell(&self, home: &HomeShard, submission: &Submission, deadline: Deadline) -> Result<(), Error> {
        let links = self.job.links();
        links.get(home.server).ok_or(Error::Closed)?.submit(home.shard, submission, deadline)
    }

    /// Contributes `data`, or what stands in the lane. With `more`, it stays in the lane and later contributions of the same
    /// iteration are added to it. Returns the clock that it is stamped with.
    pub fn push(
        &self,
        data: Option<&[u8]>,
        settings: Settings,
        more: bool,
        timeout: Option<Duration>,
    ) -> Result<u64, Error> {
        self.job.fate.check()?;
        if let Some(data) = data {
            self.check_size(data.len())?;
        }
        settings
            .check(self.spec.rule)
            .map_err(|error| Error::Settings { name: self.spec.name.clone(), error })?;
        let deadline = self.job.deadline(timeout);
        let clock = self.job.clock();
        let mut position = lock(&self.position);
        let contribution = position.contribute(*clock, more).map_err(|already| Error::AlreadyPushed {
            name: self.spec.name.clone(),
            rank: self.job.rank,
            iteration: already.iteration,
        })?;
        self.wait_for_value(deadline)?;
        if self.wait(deadline, |home| self.lane_is_free(home))? == Waited::TimedOut {
            drop(position);
            drop(clock);
            return self.wait_for_lane(deadline).map(|()| 0);
        }
        self.check_finite(data)?;
        self.deliver(data, contribution, settings, deadline)?;
        position.contributed(contribution);
        Ok(contribution.stamp)
    }

    fn check_finite(&self, data: Option<&[u8]>) -> Result<(), Error> {
        if !self.spec.refuse_nonfinite {
            return Ok(());
        }
        let data = data.unwrap_or_else(|| self.memory.lane_bytes(self.spec.bytes() as usize));
        match penstock_kernels::first_nonfinite(self.spec.dtype, data) {
            None => Ok(()),
            Some(index) => Err(Error::NonFinite { name: self.spec.name.clone(), rank: self.job.rank, index }),
        }
    }

    fn deliver(
        &self,
        data: Option<&[u8]>,
        contribution: Contribution,
        settings: Settings,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let bytes = self.spec.bytes() as usize;
        let chunk_bytes = self.memory.cut().chunk_bytes() as usize;
        match data {
            Some(data) if contribution.adds => self.memory.add_to_lane(self.spec.dtype, data),
            Some(data) if !contribution.leaves => self.memory.write_lane(0, data),
            Some(data) => {
                let window = WINDOW.max(chunk_bytes) / chunk_bytes * chunk_bytes;
                self.count_submitted();
                for start in (0..bytes).step_by(window) {
                    let end = (start + window).min(bytes);
                    self.memory.write_lane(start, &data[start..end]);
                    self.submit(start..end, contribution.stamp, settings, deadline)?;
                }
                self.count_push(bytes);
                return Ok(());
            }
            None => {}
        }
        if contribution.leaves {
            self.count_submitted();
            self.submit(0..bytes, contribution.stamp, settings, deadline)?;
            self.count_push(bytes);
        }
        Ok(())
    }

    fn count_submitted(&self) {
        for home in &self.homes {
            home.submitted.fetch_add(home.chunks, Ordering::Relaxed);
        }
    }

    fn count_push(&self, bytes: usize) {
        self.job.counters.pushes.fetch_add(1, Ordering::Relaxed);
        self.job.counters.pushed_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Tells the homes that the bytes `range` of the lane are ready.
    fn submit(
        &self,
        range: std::ops::Range<usize>,
        stamp: u64,
        settings: Settings,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let chunk_bytes = self.memory.cut().chunk_bytes() as usize;
        let (begin, end) = ((range.start / chunk_bytes) as u32, range.end.div_ceil(chunk_bytes) as u32);
        let links = self.job.links();
        for home in &self.homes {
            let first = begin.max(home.extent.first);
            let last = end.min(home.extent.first + home.extent.count);
            if first < last {
                let (tensor, count) = (self.id, last - first);
                let link = links.get(home.server).ok_or(Error::Closed)?;
                link.submit(
                    home.shard,
                    &Submission::Push { tensor, first, count, stamp, settings },
                    deadline,
                )?;
            }
        }
        Ok(())
    }

    fn check_slack(&self, slack: Option<i64>) -> Result<Option<u32>, Error> {
        let refuse = |got| Error::Slack { name: self.spec.name.clone(), most: MAX_SLACK, got };
        slack
            .map(|got| u32::try_from(got).ok().filter(|&slack| slack <= MAX_SLACK).ok_or_else(|| refuse(got)))
            .transpose()
    }

    fn requirement(&self, slack: Option<i64>) -> Result<(u64, Requirement), Error> {
        let slack = self.check_slack(slack)?;
        let position = *lock(&self.position);
        let clock = self.job.shown_clock();
        Ok((position.at(clock), position.requirement(clock, slack, self.spec.consistency)))
    }

    /// Whether [`Tensor::pull`] may be used with this slack.
    pub fn stable(&self, slack: Option<i64>) -> Result<bool, Error> {
        Ok(self.requirement(slack)?.1.stands_still)
    }

    /// Waits until the value is fresh enough and stands still until this worker's next push, so that it may be looked at in
    /// place; returns its version.
    pub fn pull(&self, slack: Option<i64>, timeout: Option<Duration>) -> Result<u64, Error> {
        let (position, requirement) = self.requirement(slack)?;
        if !requirement.stands_still {
            return Err(Error::NotStill { name: self.spec.name.clone() });
        }
        self.wait_for_version(&requirement, timeout)?;
        let version = self.homes.iter().map(|home| self.progress(home)).min().unwrap_or(0).saturating_sub(1);
        self.count_pull(position, version);
        Ok(version)
    }

    /// Waits, then copies the value into `out`, chunk by chunk, each verified; returns the least version among them.
    pub fn pull_into(
        &self,
        out: &mut [u8],
        slack: Option<i64>,
        timeout: Option<Duration>,
    ) -> Result<u64, Error> {
        self.check_size(out.len())?;
        let (position, requirement) = self.requirement(slack)?;
        let deadline = self.wait_for_version(&requirement, timeout)?;
        let cut = self.memory.cut();
        let mut least = u64::MAX;
        for chunk in 0..cut.chunks() {
            let range = cut.range(chunk);
            let part = &mut out[range.start as usize..range.end as usize];
            let published = self.verified(deadline, || self.memory.read_chunk(chunk, part))?;
            least = least.min(published.version);
        }
        self.count_pull(position, least);
        Ok(least)
    }

    /// Waits, then fills the mirror; returns the least version among its chunks.
    pub fn pull_mirror(&self, slack: Option<i64>, timeout: Option<Duration>) -> Result<u64, Error> {
        let bytes = self.spec.bytes() as usize;
        let base = self.mirror()?.base();
        // SAFETY: the mirror is private memory of at least `bytes` bytes that lives as long as `self`. It is lent out for
        // reading only; a reader that looks at it during the next pull was told that it is overwritten then.
        let mirror = unsafe { std::slice::from_raw_parts_mut(base.as_ptr(), bytes) };
        self.pull_into(mirror, slack, timeout)
    }

    fn wait_for_version(
        &self,
        requirement: &Requirement,
        timeout: Option<Duration>,
    ) -> Result<Deadline, Error> {
        // A look at the clock on the wall costs as much as the whole of a pull in place that need not wait.
        self.job.fate.check()?;
        let fresh = |home: &HomeShard| {
            self.progress(home) > requirement.version && (!requirement.own_folded || self.lane_is_free(home))
        };
        let deadline = self.job.deadline(timeout);
        if self.wait(deadline, fresh)? == Waited::Done {
            return Ok(deadline);
        }
        let (name, version, waited) = (self.spec.name.clone(), requirement.version, deadline.waited());
        if self.version().is_none() {
            return Err(Error::NoValue { name, waited });
        }
        Err(Error::PullTimeout { name, version, missing: self.missing(version), waited })
    }

    /// Repeats a copy until the home was not inside while it was made.
    fn verified(
        &self,
        deadline: Deadline,
        mut copy: impl FnMut() -> Result<Published, Torn>,
    ) -> Result<Published, Error> {
        let mut tries = 0u64;
        loop {
            match copy() {
                Ok(published) => {
                    if tries > 0 {
                        self.job.counters.copies_retried.fetch_add(tries, Ordering::Relaxed);
                    }
                    return Ok(published);
                }
                Err(Torn) => {
                    tries += 1;
                    // The home is inside for about a microsecond, unless it needs this core.
                    if tries.is_multiple_of(16) {
                        rustix::thread::sched_yield();
                        self.job.fate.check()?;
                        self.job.fate.check_interrupt()?;
                    }
                    if tries.is_multiple_of(1024) && deadline.left().is_zero() {
                        let (name, version) = (self.spec.name.clone(), self.version().unwrap_or(0));
                        return Err(Error::PullTimeout {
                            name,
                            version,
                            missing: Vec::new(),
                            waited: deadline.waited(),
                        });
                    }
                    std::hint::spin_loop();
                }
            }
        }
    }

    fn count_pull(&self, position: u64, version: u64) {
        let staleness = position.saturating_sub(version);
        self.staleness.store(staleness, Ordering::Relaxed);
        let counters = &self.job.counters;
        counters.max_staleness.fetch_max(staleness, Ordering::Relaxed);
        counters.pulls.fetch_add(1, Ordering::Relaxed);
        counters.pulled_bytes.fetch_add(self.spec.bytes(), Ordering::Relaxed);
    }

    /// State array `slot`, in the accumulator's type, with all of this worker's pushes folded.
    pub fn state(&self, slot: u32, timeout: Option<Duration>) -> Result<Vec<u8>, Error> {
        self.job.fate.check()?;
        let slots = self.spec.rule.slots().len();
        if slot as usize >= slots {
            let what = format!("expected one of the optimizer's {slots} state arrays, got number {slot}");
            return Err(Error::BadLoad { name: self.spec.name.clone(), what });
        }
        let deadline = self.job.deadline(timeout);
        self.wait_for_lane(deadline)?;
        let cut = self.memory.cut();
        let width = self.spec.dtype.accumulator_size();
        let parts = width / self.spec.dtype.size();
        let mut out = vec![0; self.spec.bytes() as usize * parts];
        let links = self.job.links();
        for (server, extent) in self.extents() {
            let link = links.get(server).ok_or(Error::Closed)?;
            let (_, descriptors) = link.ask(Ask::State { tensor: self.id }, "pass the state", deadline)?;
            let fd = descriptors
                .first()
                .ok_or_else(|| Error::Protocol { server: server as u32, what: "no state came".to_owned() })?;
            let layout = ExtentLayout::new(cut, extent, self.spec.dtype, slots * width);
            let view = StateView::new(layout, fd.as_fd())
                .map_err(|errno| Error::System { what: "map the state", reason: errno.to_string() })?;
            for chunk in extent.chunks() {
                let range = cut.range(chunk);
                let part = &mut out[range.start as usize * parts..range.end as usize * parts];
                self.verified(deadline, || {
                    self.memory.read_beside(chunk, || view.copy_slot(chunk, slot as usize, part))
                })?;
            }
        }
        Ok(out)
    }

    /// Optimizer steps taken, the least over the chunks, with all of this worker's pushes folded.
    pub fn steps(&self, timeout: Option<Duration>) -> Result<u64, Error> {
        self.job.fate.check()?;
        let deadline = self.job.deadline(timeout);
        self.wait_for_lane(deadline)?;
        let mut least = u64::MAX;
        for chunk in 0..self.chunks() {
            least = least.min(self.verified(deadline, || self.memory.read_beside(chunk, || ()))?.steps);
        }
        Ok(least)
    }

    /// Each server that is home of some of it, with its extent.
    fn extents(&self) -> impl Iterator<Item = (usize, Extent)> + '_ {
        let mut last = None;
        self.homes.iter().filter_map(move |home| {
            let new = last != Some(home.server);
            last = Some(home.server);
            new.then_some((home.server, home.extent))
        })
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
        let Answer::Declared { tensor, extents, homed } = answer else {
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
        for (&chunks, shard) in homed.iter().zip(0..).filter(|(chunks, _)| **chunks > 0) {
            let submitted = AtomicU64::new(0);
            homes.push(HomeShard { server, shard, chunks: u64::from(chunks), extent, submitted });
        }
        let mut descriptors = descriptors.into_iter();
        let regions = match (extent.count, descriptors.next(), descriptors.next()) {
            (0, _, _) => None,
            (_, Some(model), Some(lane)) => Some((model, lane)),
            _ => return Err(bad("a tensor came without its memory")),
        };
        parts.push(ServerPart { extent, regions });
        decided.get_or_insert((tensor, extents));
    }
    let (id, extents) = decided.ok_or(Error::Closed)?;
    Ok((id, extents, homes, parts))
}
