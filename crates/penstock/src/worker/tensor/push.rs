//! Pushes: contributions on their way into the lane and from there to the homes.

use super::carry::{Passing, Sum};
use super::divide::Divided;
use super::factors::Product;
use super::sparse::{MOST_RUNS, Run, Scattered, runs};
use super::{HomeShard, Tensor};
use crate::turn::{Place, Taken};
use crate::wait::Deadline;
use crate::worker::Error;
use crate::worker::link::{Link, Room, Rooms, Waited, lock, ring};
use penstock_fabric::memory::OwnLane;
use penstock_fabric::ring::CAPACITY;
use penstock_fabric::sync::Ordering;
use penstock_kernels::{Foreign, Settings};
use penstock_proto::layer::Layer;
use penstock_proto::remote::asking;
use penstock_proto::submission::Submission;
use penstock_proto::worker::Contribution;
use std::ops::Range;
use std::sync::MutexGuard;
use std::time::Duration;

/// Bytes that are copied into the lane before the shards hear of them: they fold the first while the next are copied.
/// Small enough to stay in a core's second cache until a shard reads it.
const WINDOW: usize = 256 * 1024;

/// Most submissions to one shard that a push is made of: half of what its ring holds, so that the next push finds room while this
/// one is folded. The windows of a tensor that would need more are larger.
pub(super) const MOST: usize = CAPACITY as usize / 2;

/// What a push brings.
pub(super) enum Given<'a> {
    /// A contribution, or what stands in the lane.
    New(Option<Foreign<'a>>),
    /// Some elements, and zeros for all others.
    Sparse(&'a mut Scattered),
    /// The product of two factors.
    Product(&'a mut Product),
    /// Nothing new: what was held back.
    HeldBack,
    /// All that was due, as the program has divided it.
    Divided(&'a Divided<'a>),
}

/// A contribution that is put together where it goes, chunk by chunk.
pub(super) trait Fill {
    /// Writes a chunk into the lane.
    fn write(&mut self, lane: &mut OwnLane, chunk: u32);
    /// Adds all of it to what stands in the lane.
    fn add(&mut self, lane: &mut OwnLane);
}

/// A contribution that may be made: nothing is changed yet, and nobody else changes anything meanwhile.
pub(super) struct Ready<'a> {
    pub(super) lane: MutexGuard<'a, OwnLane>,
    pub(super) contribution: Contribution,
    _stands_still: Place<'a>,
    _turn: Taken<'a>,
}

/// What is added to the parts of a contribution that stand in the lane.
enum Added<'a> {
    Dense(Foreign<'a>),
    Filled(&'a mut dyn Fill),
}

impl Tensor {
    /// Contributes `data`, or what stands in the lane. With `more`, it stays in the lane and later contributions of the same
    /// iteration are added to it. Returns the clock that it is stamped with.
    pub fn push(
        &self,
        data: Option<&[u8]>,
        settings: Settings,
        more: bool,
        timeout: Option<Duration>,
    ) -> Result<u64, Error> {
        self.push_from(data.map(Foreign::of), settings, more, timeout)
    }

    /// [`Tensor::push`] of memory that others may be writing: then what they write comes mixed with what was there.
    pub fn push_from(
        &self,
        data: Option<Foreign<'_>>,
        settings: Settings,
        more: bool,
        timeout: Option<Duration>,
    ) -> Result<u64, Error> {
        self.push_within(data, settings, more, self.job.deadline(timeout))
    }

    pub(super) fn push_within(
        &self,
        data: Option<Foreign<'_>>,
        settings: Settings,
        more: bool,
        deadline: Deadline,
    ) -> Result<u64, Error> {
        self.contribute(Given::New(data), settings, more, deadline)
    }

    /// Pushes what a filter has held back.
    pub(super) fn flush_within(&self, settings: Settings, deadline: Deadline) -> Result<u64, Error> {
        self.contribute(Given::HeldBack, settings, false, deadline)
    }

    pub(super) fn contribute(
        &self,
        given: Given<'_>,
        settings: Settings,
        more: bool,
        deadline: Deadline,
    ) -> Result<u64, Error> {
        let ready = self.ready(&given, settings, more, deadline)?;
        self.make(ready, given, settings, deadline)
    }

    /// All that may keep a contribution from being made is waited for or refused, but for room at the homes.
    pub(super) fn ready(
        &self,
        given: &Given<'_>,
        settings: Settings,
        more: bool,
        deadline: Deadline,
    ) -> Result<Ready<'_>, Error> {
        self.job.fate.check()?;
        self.job.touch();
        if let Given::New(Some(data)) = given {
            self.check_size(data.len())?;
        }
        settings
            .check(self.spec.rule)
            .map_err(|error| Error::Settings { name: self.spec.name.clone(), error })?;
        let turn = self.take_turn(deadline)?;
        let (clock, stands_still) = self.job.clock(deadline)?;
        let position = *lock(&self.position);
        let lane = lock(&self.lane);
        let contribution = position.contribute(clock, more).map_err(|already| Error::AlreadyPushed {
            name: self.spec.name.clone(),
            rank: self.job.rank,
            iteration: already.iteration,
        })?;
        if matches!(given, Given::New(None)) && position.is_stale(clock) {
            return Err(Error::StaleLane { name: self.spec.name.clone() });
        }
        self.wait_for_value(deadline)?;
        if self.wait_long(deadline, position.at(0), |home| self.lane_is_free(home))? == Waited::TimedOut {
            return Err(self.lane_timeout(position.at(0), deadline));
        }
        match given {
            Given::New(data) => self.check_finite(&lane, *data)?,
            Given::Sparse(scattered) if self.spec.refuse_nonfinite => {
                self.refuse_nonfinite(scattered.first_nonfinite())?;
            }
            Given::Product(product) if self.spec.refuse_nonfinite => {
                self.refuse_nonfinite(product.first_nonfinite())?;
            }
            Given::Sparse(_) | Given::Product(_) => {}
            Given::HeldBack | Given::Divided(_) => {}
        }
        Ok(Ready { lane, contribution, _stands_still: stands_still, _turn: turn })
    }

    /// Makes it.
    pub(super) fn make(
        &self,
        mut ready: Ready<'_>,
        mut given: Given<'_>,
        settings: Settings,
        deadline: Deadline,
    ) -> Result<u64, Error> {
        let (lane, contribution) = (&mut *ready.lane, ready.contribution);
        let mut carry = self.carry.as_ref().filter(|_| contribution.leaves).map(lock);
        let mut kept = None;
        let (all, is_sparse) = (matches!(given, Given::HeldBack), matches!(given, Given::Sparse(_)));
        let is_divided = matches!(given, Given::Divided(_));
        let passing = match &mut carry {
            Some(carry) if !is_divided => {
                let links = self.job.links();
                carry.begin(contribution.stamp, all, || links.iter().flat_map(Link::flows))
            }
            Some(_) => Passing::Chosen,
            None => Passing::Untouched,
        };
        if let Given::Sparse(scattered) = &mut given
            && contribution.leaves
            && !contribution.adds
            && passing == Passing::Untouched
            && !self.filtered
            && self.spec.rule.ignores_zeros(&settings)
        {
            self.deliver_touched(lane, scattered, contribution.stamp, settings, deadline)?;
            let mut position = lock(&self.position);
            position.contributed(contribution);
            // Of chunks that were not touched whatever was there before.
            position.loaded();
            return Ok(contribution.stamp);
        }
        if let Given::Product(product) = &mut given
            && contribution.leaves
            && !contribution.adds
            && passing == Passing::Untouched
            && self.any_travels_as_factors(product)
        {
            self.deliver_product(lane, product, contribution.stamp, settings, deadline)?;
            let mut position = lock(&self.position);
            position.contributed(contribution);
            position.loaded();
            return Ok(contribution.stamp);
        }
        let is_filled = match &given {
            Given::Sparse(_) | Given::Product(_) => true,
            Given::Divided(parts) => !parts.is_array,
            Given::New(_) | Given::HeldBack => false,
        };
        if let (Given::Divided(parts), Some(_)) = (&given, &carry) {
            kept = Some(parts.kept);
        }
        let (sum, mut written, added) = match (given, contribution.adds) {
            (Given::Divided(parts), _) => (Sum::Given(parts.sent), None, None),
            (Given::New(Some(data)), false) => (Sum::Given(data), None, None),
            (Given::Sparse(scattered), false) => (Sum::Lane, Some(scattered as &mut dyn Fill), None),
            (Given::Product(product), false) => (Sum::Lane, Some(product as &mut dyn Fill), None),
            (Given::HeldBack, false) => (Sum::None, None, None),
            (Given::New(Some(data)), true) => (Sum::Lane, None, Some(Added::Dense(data))),
            (Given::Sparse(scattered), true) => (Sum::Lane, None, Some(Added::Filled(scattered))),
            (Given::Product(product), true) => (Sum::Lane, None, Some(Added::Filled(product))),
            (Given::New(None), _) | (Given::HeldBack, true) => (Sum::Lane, None, None),
        };
        let links = self.job.links();
        let is_written = passing != Passing::Untouched || written.is_some() || !matches!(sum, Sum::Lane);
        let window = if is_written { self.window() } else { self.whole() };
        // Nothing is changed before there is room for all of it, and from then on nothing waits: it counts whole, or not at
        // all.
        let mut rooms = match contribution.leaves {
            true => self.make_room(&links, window, deadline)?,
            false => Rooms::new(),
        };
        match added {
            Some(Added::Dense(data)) => lane.add(self.spec.dtype, 0, data),
            Some(Added::Filled(filled)) => filled.add(lane),
            None => {}
        }
        if contribution.leaves {
            self.ask_for_result(contribution.stamp, is_sparse);
            if let (Some(kept), Some(carry)) = (kept, &mut carry) {
                carry.keep(kept);
            }
            let fill = |lane: &mut OwnLane, window: Range<usize>| {
                if let Some(filled) = &mut written {
                    self.places_of(window.clone()).for_each(|chunk| filled.write(lane, chunk));
                }
                match (&mut carry, sum) {
                    (Some(carry), sum) if !is_divided && passing != Passing::Untouched => {
                        let spent = self.job.counters.traffic.spent();
                        for chunk in self.chunks_of(window) {
                            spent.on(Layer::Filter, || carry.pass(lane, chunk, sum, contribution.stamp, all));
                        }
                    }
                    (_, Sum::Given(data)) => lane.write(window.start, data.part(window)),
                    (_, Sum::Lane | Sum::None) => {}
                }
            };
            self.deliver(lane, fill, window, contribution.stamp, settings, &mut rooms);
            if let Some(carry) = &mut carry {
                carry.end(passing);
            }
        } else if let Sum::Given(data) = sum {
            lane.write(0, data);
        } else if let Some(filled) = written {
            (0..self.chunks()).for_each(|chunk| filled.write(lane, chunk));
        }
        if all {
            self.flushed.store(contribution.stamp + 1, Ordering::Relaxed);
        }
        if self.carry.is_some() {
            self.changes.fetch_add(1, Ordering::Relaxed);
        }
        let mut position = lock(&self.position);
        position.contributed(contribution);
        if is_filled && contribution.leaves {
            position.loaded();
        }
        Ok(contribution.stamp)
    }

    /// Contributes what is touched, and skips the rest: zeros, of which the rule makes nothing.
    fn deliver_touched(
        &self,
        lane: &mut OwnLane,
        scattered: &mut Scattered,
        stamp: u64,
        settings: Settings,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let runs = runs(&scattered.touched(), self.chunks(), MOST_RUNS);
        let links = self.job.links();
        let within = |home: &HomeShard, run: &Run| Self::within(home, &run.chunks);
        let count = |home: &HomeShard| runs.iter().filter(|run| within(home, run).is_some()).count() as u64;
        let mut rooms = self.rooms(&links, count, deadline)?;
        self.ask_for_result(stamp, true);
        self.count_submitted();
        let tensor = self.id;
        for run in &runs {
            if run.touched {
                run.chunks.clone().for_each(|chunk| scattered.write(lane, chunk));
            }
            for (home, room) in self.homes.iter().zip(&mut *rooms) {
                let Some((first, count)) = within(home, run) else { continue };
                room.put(|| match run.touched {
                    true => Submission::Push { tensor, first, count, stamp, settings },
                    false => Submission::Skip { tensor, first, count, stamp, settings },
                });
            }
            if run.touched {
                ring(&mut rooms);
            }
        }
        ring(&mut rooms);
        self.count_push(scattered.bytes());
        Ok(())
    }

    /// Those of the chunks that are homed on the home's server: the first, and how many.
    pub(super) fn within(home: &HomeShard, chunks: &Range<u32>) -> Option<(u32, u32)> {
        let first = chunks.start.max(home.extent.first);
        let last = chunks.end.min(home.extent.first + home.extent.count);
        (first < last).then(|| (first, last - first))
    }

    /// The numbers of the chunks in a window, in bytes.
    pub(super) fn places_of(&self, window: Range<usize>) -> Range<u32> {
        let chunk_bytes = self.memory.cut().chunk_bytes() as usize;
        (window.start / chunk_bytes) as u32..window.end.div_ceil(chunk_bytes) as u32
    }

    /// The chunks in a window, in bytes.
    pub(super) fn chunks_of(&self, window: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let chunk_bytes = self.memory.cut().chunk_bytes() as usize;
        let end = window.end;
        window.step_by(chunk_bytes).map(move |start| start..(start + chunk_bytes).min(end))
    }

    /// Under BSP nearly every push is followed by a pull of its result: a home on another host sends it back as soon as it is
    /// there, chunk by chunk, while later chunks still arrive. Unless the last result was never looked at, or not at all of it.
    pub(super) fn ask_for_result(&self, stamp: u64, is_sparse: bool) {
        for remote in self.homes.iter().filter_map(|home| home.remote.as_ref()) {
            // Who has not pulled so far and pushes all of it is likely to pull that.
            let is_fresh = remote.is_fresh.swap(false, Ordering::Relaxed) && !is_sparse;
            let pulled = remote.pulled.swap(false, Ordering::Relaxed) || is_fresh;
            let is_sent = remote.is_sent.load(Ordering::Relaxed);
            let version = asking::at_push(pulled, is_sent, self.spec.consistency, stamp);
            remote.wants.store(version.is_some(), Ordering::Relaxed);
            if let Some(version) = version {
                // Pairs with the acquire load in the proxy, when it connects again.
                remote.wanted.store(version + 1, Ordering::Release);
            }
        }
    }

    fn check_finite(&self, lane: &OwnLane, data: Option<Foreign<'_>>) -> Result<(), Error> {
        if !self.spec.refuse_nonfinite {
            return Ok(());
        }
        let data = data.unwrap_or_else(|| lane.contribution(self.spec.bytes() as usize));
        self.refuse_nonfinite(penstock_kernels::first_nonfinite(self.spec.dtype, data))
    }

    fn refuse_nonfinite(&self, first: Option<usize>) -> Result<(), Error> {
        match first {
            None => Ok(()),
            Some(index) => Err(Error::NonFinite { name: self.spec.name.clone(), rank: self.job.rank, index }),
        }
    }

    /// Bytes of all chunks, were the last one full.
    fn whole(&self) -> usize {
        (self.spec.bytes() as usize).next_multiple_of(self.memory.cut().chunk_bytes() as usize)
    }

    /// Bytes, a multiple of the chunks', that are copied before the shards hear of them.
    pub(super) fn window(&self) -> usize {
        let chunk_bytes = self.memory.cut().chunk_bytes() as usize;
        WINDOW.max((self.spec.bytes() as usize).div_ceil(MOST)).next_multiple_of(chunk_bytes)
    }

    /// Waits until each home has room for all that a push in windows of so many bytes tells it.
    fn make_room<'a>(
        &self,
        links: &'a [Link],
        window: usize,
        deadline: Deadline,
    ) -> Result<Rooms<'a>, Error> {
        self.rooms(links, |home| self.windows(home, window), deadline)
    }

    /// The windows of so many bytes that a home's server has a part of.
    pub(super) fn windows(&self, home: &HomeShard, window: usize) -> u64 {
        let chunk_bytes = u64::from(self.memory.cut().chunk_bytes());
        let (first, count) = (u64::from(home.extent.first), u64::from(home.extent.count));
        let (begin, end) = (first * chunk_bytes, (first + count) * chunk_bytes);
        end.div_ceil(window as u64) - begin / window as u64
    }

    /// Has the lane filled, window by window, and tells the homes that it is.
    fn deliver(
        &self,
        lane: &mut OwnLane,
        mut fill: impl FnMut(&mut OwnLane, Range<usize>),
        window: usize,
        stamp: u64,
        settings: Settings,
        rooms: &mut [Room<'_>],
    ) {
        let bytes = self.spec.bytes() as usize;
        let chunk_bytes = self.memory.cut().chunk_bytes() as usize;
        self.count_submitted();
        for start in (0..bytes).step_by(window) {
            let end = (start + window).min(bytes);
            fill(lane, start..end);
            let (begin, end) = ((start / chunk_bytes) as u32, end.div_ceil(chunk_bytes) as u32);
            for (home, room) in self.homes.iter().zip(&mut *rooms) {
                if let Some((first, count)) = Self::within(home, &(begin..end)) {
                    let tensor = self.id;
                    room.put(|| Submission::Push { tensor, first, count, stamp, settings });
                }
            }
            ring(rooms);
        }
        self.count_push(bytes);
    }

    pub(super) fn count_submitted(&self) {
        for home in &self.homes {
            home.submitted.fetch_add(home.chunks, Ordering::Relaxed);
        }
    }

    pub(super) fn count_push(&self, bytes: usize) {
        self.job.counters.pushes.fetch_add(1, Ordering::Relaxed);
        self.job.counters.pushed_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}
