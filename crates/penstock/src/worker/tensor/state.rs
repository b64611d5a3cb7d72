//! First values, the optimizer's state, and putting them back (checkpoints, `state_dict`).

use super::pull::Asked;
use super::{HomeShard, Tensor, Tickets};
use crate::turn::Taken;
use crate::wait::Deadline;
use crate::worker::link::{Waited, lock};
use crate::worker::{Error, Job};
use penstock_fabric::memory::{ExtentLayout, StateView};
use penstock_fabric::sync::Ordering;
use penstock_kernels::{Foreign, ForeignMut};
use penstock_proto::message::Ask;
use penstock_proto::placement::Extent;
use penstock_proto::submission::{NO_TICKET, Submission};
use penstock_proto::worker::Requirement;
use rustix::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Where a lane-full is loaded to: the value (`slot` 0) or state array `slot` - 1; the part of it; the steps that it stands for.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    slot: u32,
    part: u32,
    steps: u64,
}

impl Tensor {
    /// Worker 0: gives the tensor its first value (`None`: zeros), and waits until it stands. Once a value is given, a second
    /// one is ignored: others may have contributed to the first. Other workers: nothing.
    pub fn initialize(&self, value: Option<&[u8]>, timeout: Option<Duration>) -> Result<(), Error> {
        self.initialize_from(value.map(Foreign::of), timeout)
    }

    /// [`Tensor::initialize`] from memory that others may be writing.
    pub fn initialize_from(
        &self,
        value: Option<Foreign<'_>>,
        timeout: Option<Duration>,
    ) -> Result<(), Error> {
        self.job.fate.check()?;
        self.job.touch();
        if let Some(value) = value {
            self.check_size(value.len())?;
        }
        if self.job.rank != 0 {
            return Ok(());
        }
        let deadline = self.job.deadline(timeout);
        self.give(value, deadline)?;
        self.wait_for_value(deadline)
    }

    /// Submits the first value, unless it was. Where that fails on its way it may be done again: without all of it no
    /// worker contributes.
    fn give(&self, value: Option<Foreign<'_>>, deadline: Deadline) -> Result<(), Error> {
        let turn = self.take_turn(deadline)?;
        if self.is_given.load(Ordering::Relaxed) {
            return Ok(());
        }
        match value {
            Some(value) => self.submit_load(&turn, value, Place::default(), deadline)?,
            None => {
                let _whole = self.job.clock(deadline)?;
                let links = self.job.links();
                for mut room in self.rooms(&links, |_| 1, deadline)? {
                    room.submit(&Submission::Zero { tensor: self.id });
                }
            }
        }
        self.is_given.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Overwrites the value, as all workers do together: worker 0's counts, and is given by it alone. Nobody returns as if it were
    /// there before it is, and all of it. `timeout` is for the others to come; each wait behind that has the job's deadline.
    pub fn load_together(
        &self,
        job: &Job,
        value: Option<Foreign<'_>>,
        timeout: Option<Duration>,
    ) -> Result<(), Error> {
        match value {
            Some(value) => self.check_size(value.len())?,
            None if self.job.rank == 0 => {
                let (name, what) = (self.spec.name.clone(), "worker 0 gives no value".to_owned());
                return Err(Error::BadLoad { name, what });
            }
            None => {}
        }
        // The others are not kept waiting for what must be mended here first.
        self.check_sent(self.job.shown_clock())?;
        let what = format!("load of `{}` (every worker calls it)", self.spec.name);
        job.by_first(&what, timeout, || match value {
            Some(value) => self.load(0, value, self.steps(None)?, None),
            None => Ok(()),
        })?;
        self.loaded();
        Ok(())
    }

    /// All workers have loaded together. What this one wrote into its lane before is no contribution: on worker 0 the load went
    /// through the lane, and no worker contributes what another cannot.
    pub fn loaded(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
        lock(&self.position).loaded();
    }

    /// That this worker has sent all that it has pushed in the iteration `clock`.
    fn check_sent(&self, clock: u64) -> Result<(), Error> {
        match lock(&self.position).is_open(clock) {
            true => Err(Error::Unfinished { name: self.spec.name.clone() }),
            false => Ok(()),
        }
    }

    /// Worker 0, while no worker pushes: overwrites the value (`slot` 0) or state array `slot` - 1, and the step count.
    pub fn load<'d>(
        &self,
        slot: u32,
        data: impl Into<Foreign<'d>>,
        steps: u64,
        timeout: Option<Duration>,
    ) -> Result<(), Error> {
        let data = data.into();
        self.job.fate.check()?;
        self.job.touch();
        let bad = |what: String| Err(Error::BadLoad { name: self.spec.name.clone(), what });
        let slots = self.spec.rule.slots().count() as u32;
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
            return self.load_lane(data, Place { steps, ..Place::default() }, deadline);
        }
        let parts = self.spec.dtype.accumulator_size() / self.spec.dtype.size();
        let expected = self.spec.bytes() as usize * parts;
        if data.len() != expected {
            return Err(Error::WrongSize { name: self.spec.name.clone(), expected, got: data.len() });
        }
        if parts == 1 {
            return self.load_lane(data, Place { slot, part: 0, steps }, deadline);
        }
        for part in 0..parts {
            let data = self.part_of(data, parts, part);
            self.load_lane(Foreign::of(&data), Place { slot, part: part as u32, steps }, deadline)?;
        }
        Ok(())
    }

    /// Of an array whose elements are `parts` times as wide as the tensor's: of each chunk the `part`-th lane-full.
    fn part_of(&self, data: Foreign<'_>, parts: usize, part: usize) -> Vec<u8> {
        let mut out = vec![0; data.len() / parts];
        let cut = self.memory.cut();
        for chunk in 0..cut.chunks() {
            let range = cut.range(chunk);
            let bytes = (range.end - range.start) as usize;
            let start = range.start as usize * parts + part * bytes;
            data.part(start..start + bytes).copy_to(&mut out[range.start as usize..range.end as usize]);
        }
        out
    }

    fn load_lane(&self, data: Foreign<'_>, place: Place, deadline: Deadline) -> Result<(), Error> {
        let turn = self.take_turn(deadline)?;
        self.submit_load(&turn, data, place, deadline)?;
        drop(turn);
        self.wait_for_lane(deadline)
    }

    fn submit_load(
        &self,
        _turn: &Taken<'_>,
        data: Foreign<'_>,
        place: Place,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let Place { slot, part, steps } = place;
        let position = *lock(&self.position);
        if self.wait(deadline, |home| self.lane_is_free(home))? == Waited::TimedOut {
            return Err(self.lane_timeout(position.at(0), deadline));
        }
        // So that it goes whole, or not at all if the job is being closed.
        let (clock, _whole) = self.job.clock(deadline)?;
        self.check_sent(clock)?;
        let links = self.job.links();
        let rooms = self.rooms(&links, |_| 1, deadline)?;
        lock(&self.position).loaded();
        lock(&self.lane).write(0, data);
        for (home, mut room) in self.homes.iter().zip(rooms) {
            let Extent { first, count } = home.extent;
            room.submit(&Submission::Load { tensor: self.id, first, count, slot, part, steps });
            home.submitted.fetch_add(home.chunks, Ordering::Relaxed);
        }
        self.loads.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// State array `slot`, in the accumulator's type, with all of this worker's pushes folded.
    pub fn state(&self, slot: u32, timeout: Option<Duration>) -> Result<Vec<u8>, Error> {
        self.job.fate.check()?;
        self.job.touch();
        let slots = self.spec.rule.slots().count();
        if slot as usize >= slots {
            let what = format!("expected one of the optimizer's {slots} state arrays, got number {slot}");
            return Err(Error::BadLoad { name: self.spec.name.clone(), what });
        }
        let deadline = self.job.deadline(timeout);
        let _turn = self.take_state_turn(deadline)?;
        self.wait_for_lane(deadline)?;
        let parts = self.spec.dtype.accumulator_size() / self.spec.dtype.size();
        let mut out = vec![0; self.spec.bytes() as usize * parts];
        let copy = |view: &StateView, chunk, part: &mut [u8]| view.copy_slot(chunk, slot as usize, part);
        self.look_beside(parts, &mut out, copy, deadline)?;
        Ok(out)
    }

    /// [`Tensor::pull_into`] of the value itself, of which a filter may hold back something that other pulls then lack.
    pub fn pull_whole<'o>(
        &self,
        out: impl Into<ForeignMut<'o>>,
        slack: Option<i64>,
        timeout: Option<Duration>,
    ) -> Result<u64, Error> {
        let out = out.into();
        self.check_size(out.len())?;
        self.pull_whole_asked(self.ask(slack)?, out, timeout)
    }

    /// [`Tensor::pull_whole`] as of an earlier moment, as [`Tensor::pull_asked`].
    pub fn pull_whole_asked<'o>(
        &self,
        asked: Asked,
        out: impl Into<ForeignMut<'o>>,
        timeout: Option<Duration>,
    ) -> Result<u64, Error> {
        if !self.lags() {
            return self.pull_asked(asked, out, timeout);
        }
        let mut out = out.into();
        self.check_size(out.len())?;
        let Asked { position, requirement } = asked;
        // What this worker has pushed is in the value, though it may be in no version yet.
        let own_folded = !self.spec.consistency.folds_together();
        let requirement = Requirement { own_folded, ..requirement };
        let deadline = self.job.deadline(timeout);
        self.wait_for_version(&requirement, deadline)?;
        if !self.holds_back {
            self.refresh(deadline)?;
            return self.copy_value(out, position, deadline);
        }
        let _turn = self.take_state_turn(deadline)?;
        let mut whole = vec![0; self.spec.bytes() as usize];
        let version = self.look_beside(1, &mut whole, StateView::copy_whole, deadline)?;
        out.copy_from(Foreign::of(&whole));
        self.count_pull(position, version, whole.len());
        Ok(version)
    }

    fn take_state_turn(&self, deadline: Deadline) -> Result<Taken<'_>, Error> {
        let what = || format!("looking at the state of `{}`", self.spec.name);
        self.state_turn.take(|| self.job.look(&what(), deadline))
    }

    /// Has `copy` copy, of each chunk, what stands beside what readers see of it: elements that are `parts` times as wide as the
    /// tensor's. Returns a version that all chunks have, and may have passed where they are elsewhere.
    fn look_beside(
        &self,
        parts: usize,
        out: &mut [u8],
        copy: impl Fn(&StateView, u32, &mut [u8]),
        deadline: Deadline,
    ) -> Result<u64, Error> {
        let cut = self.memory.cut();
        let per_element = self.spec.rule.slots().count() * self.spec.dtype.accumulator_size();
        let mut least = u64::MAX;
        self.refresh(deadline)?;
        for (server, extent) in self.extents() {
            let layout =
                ExtentLayout::new(cut, extent, self.spec.dtype, per_element).holding_back(self.holds_back);
            let remote = self.homes.iter().any(|home| home.server == server && home.remote.is_some());
            // From elsewhere state and values come in frames of their own: a value that is broadcast meanwhile may be newer than the
            // state that came before it. What is held now is no newer than what the state is of.
            let mut held = u64::MAX;
            if remote {
                for chunk in extent.chunks() {
                    let published = self.verified(deadline, || self.memory.read_beside(chunk, || ()))?;
                    held = held.min(published.version);
                }
            }
            let view = match self.memory.state_in_slab(server, layout) {
                Some(view) if !remote => view,
                _ => {
                    let fd = &self.state_memory(server, layout, deadline)?;
                    StateView::new(layout, fd.as_fd()).map_err(Error::system("map the state"))?
                }
            };
            least = least.min(held);
            for chunk in extent.chunks() {
                let range = cut.range(chunk);
                let part = &mut out[range.start as usize * parts..range.end as usize * parts];
                let published =
                    self.verified(deadline, || self.memory.read_beside(chunk, || copy(&view, chunk, part)))?;
                least = least.min(published.version);
            }
        }
        Ok(least)
    }

    /// Has all pass that a filter holds back of the values: once every worker has come, what each of them reads is the value
    /// itself. All of them make the call, as with [`Tensor::load_together`].
    pub fn release_together(&self, job: &Job, timeout: Option<Duration>) -> Result<(), Error> {
        if !self.lags() {
            return self.job.fate.check();
        }
        let what = format!("flush of `{}` (every worker calls it)", self.spec.name);
        job.by_first(&what, timeout, || self.release(None))
    }

    /// Worker 0, while no worker pushes: the homes let pass all that a filter holds back of the values. Under BSP all that was
    /// pushed by then: every home has folded it before one is told.
    pub fn release(&self, timeout: Option<Duration>) -> Result<(), Error> {
        self.job.fate.check()?;
        self.job.touch();
        if !self.lags() {
            return Ok(());
        }
        let deadline = self.job.deadline(timeout);
        if self.spec.consistency.folds_together() {
            // A server may hear later than the first that a worker was lost, and fold then: what it would hold back of that, the
            // others would not see.
            self.wait_for_version(&self.ask(Some(0))?.requirement, deadline)?;
        }
        let _whole = self.job.clock(deadline)?;
        let links = self.job.links();
        // A submission counts as taken before it is done, and as done once the next is taken: the second finds nothing to do.
        for mut room in self.rooms(&links, |_| 2, deadline)? {
            room.submit(&Submission::Flush { tensor: self.id });
            room.submit(&Submission::Flush { tensor: self.id });
        }
        self.loads.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Whether pulls may lack some of what the homes have folded, by a filter, or as it comes unasked: an exact pull and a flush see
    /// it.
    pub fn lags(&self) -> bool {
        let comes = self.spec.propagation.is_unasked();
        self.holds_back || comes && !self.spec.consistency.folds_together()
    }

    /// The memory that holds a server's part of the state: its own, or a copy that is fetched from another host.
    fn state_memory(
        &self,
        server: usize,
        layout: ExtentLayout,
        deadline: Deadline,
    ) -> Result<OwnedFd, Error> {
        let memory = {
            // Let go before the fetch, which takes them again: a thread that closes the job stands in line between the two.
            let links = self.job.links();
            let link = links.get(server).ok_or(Error::Closed)?;
            if !link.is_remote() {
                let (_, descriptors) =
                    link.ask(Ask::State { tensor: self.id }, "pass the state", deadline)?;
                return descriptors.into_iter().next().ok_or_else(|| Error::Protocol {
                    server: server as u32,
                    what: "no state came".to_owned(),
                });
            }
            link.state_mirror(self.id, layout)?
        };
        let fetch = |home: &HomeShard| match home.server == server {
            true => self.fetch(home, 0, true, deadline),
            false => Ok(NO_TICKET),
        };
        let tickets = self.homes.iter().map(fetch).collect::<Result<Tickets, Error>>()?;
        match self.wait(deadline, |home| Self::is_fetched(home, &tickets))? {
            Waited::Done => Ok(memory),
            Waited::TimedOut => {
                let (server, waited) = (server as u32, deadline.waited());
                Err(Error::Unanswered { server, what: "send the state", waited })
            }
        }
    }

    /// Optimizer steps taken, the least over the chunks, with all of this worker's pushes folded.
    pub fn steps(&self, timeout: Option<Duration>) -> Result<u64, Error> {
        self.job.fate.check()?;
        self.job.touch();
        let deadline = self.job.deadline(timeout);
        self.wait_for_lane(deadline)?;
        self.refresh(deadline)?;
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
