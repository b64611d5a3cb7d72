//! Pushes: contributions on their way into the lane and from there to the homes.

use super::Tensor;
use crate::worker::Error;
use crate::worker::link::{Deadline, Waited, lock};
use penstock_fabric::memory::OwnLane;
use penstock_fabric::sync::Ordering;
use penstock_kernels::{Foreign, Settings};
use penstock_proto::submission::Submission;
use penstock_proto::worker::Contribution;
use std::time::Duration;

/// Bytes that are copied into the lane before the shards hear of them: they fold the first while the next are copied.
/// Small enough to stay in a core's second cache until a shard reads it.
const WINDOW: usize = 256 * 1024;
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
        self.job.fate.check()?;
        self.job.touch();
        if let Some(data) = data {
            self.check_size(data.len())?;
        }
        settings
            .check(self.spec.rule)
            .map_err(|error| Error::Settings { name: self.spec.name.clone(), error })?;
        let deadline = self.job.deadline(timeout);
        let _turn = self.take_turn(deadline)?;
        let (clock, _stands_still) = self.job.clock(deadline)?;
        let position = *lock(&self.position);
        let mut lane = lock(&self.lane);
        let contribution = position.contribute(clock, more).map_err(|already| Error::AlreadyPushed {
            name: self.spec.name.clone(),
            rank: self.job.rank,
            iteration: already.iteration,
        })?;
        self.wait_for_value(deadline)?;
        if self.wait_long(deadline, position.at(0), |home| self.lane_is_free(home))? == Waited::TimedOut {
            return Err(self.lane_timeout(position.at(0), deadline));
        }
        self.check_finite(&lane, data)?;
        if contribution.leaves {
            self.ask_for_result(contribution.stamp);
        }
        self.deliver(&mut lane, data, contribution, settings, deadline)?;
        lock(&self.position).contributed(contribution);
        Ok(contribution.stamp)
    }

    /// Under BSP nearly every push is followed by a pull of its result: a home on another host sends it back as soon as it is
    /// there, chunk by chunk, while later chunks still arrive. Unless the last result was never looked at.
    fn ask_for_result(&self, stamp: u64) {
        for remote in self.homes.iter().filter_map(|home| home.remote.as_ref()) {
            let pulled = remote.pulled.swap(false, Ordering::Relaxed);
            let wants = pulled && self.spec.consistency.folds_together();
            remote.wants.store(wants, Ordering::Relaxed);
            if wants {
                // Pairs with the acquire load in the courier, when it connects again.
                remote.wanted.store(stamp + 2, Ordering::Release);
            }
        }
    }

    fn check_finite(&self, lane: &OwnLane, data: Option<Foreign<'_>>) -> Result<(), Error> {
        if !self.spec.refuse_nonfinite {
            return Ok(());
        }
        let data = data.unwrap_or_else(|| lane.contribution(self.spec.bytes() as usize));
        match penstock_kernels::first_nonfinite(self.spec.dtype, data) {
            None => Ok(()),
            Some(index) => Err(Error::NonFinite { name: self.spec.name.clone(), rank: self.job.rank, index }),
        }
    }

    fn deliver(
        &self,
        lane: &mut OwnLane,
        data: Option<Foreign<'_>>,
        contribution: Contribution,
        settings: Settings,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let bytes = self.spec.bytes() as usize;
        let chunk_bytes = self.memory.cut().chunk_bytes() as usize;
        match data {
            Some(data) if contribution.adds => lane.add(self.spec.dtype, data),
            Some(data) if !contribution.leaves => lane.write(0, data),
            Some(data) => {
                let window = WINDOW.max(chunk_bytes) / chunk_bytes * chunk_bytes;
                self.count_submitted();
                for start in (0..bytes).step_by(window) {
                    let end = (start + window).min(bytes);
                    lane.write(start, data.part(start..end));
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
}
