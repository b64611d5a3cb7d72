//! Pulls: the value in place where it stands still, else copied chunk by chunk, each verified.

use super::{HomeShard, Tensor, Tickets};
use crate::wait::{Deadline, undisturbed};
use crate::worker::Error;
use crate::worker::link::{Waited, lock};
use penstock_fabric::publish::{Published, Torn};
use penstock_fabric::sync::Ordering;
use penstock_kernels::{Foreign, ForeignMut, Settings};
use penstock_proto::consistency::MAX_SLACK;
use penstock_proto::remote::asking::{self, AtPull, Known};
use penstock_proto::spec::TensorSpec;
use penstock_proto::submission::NO_TICKET;
use penstock_proto::worker::Requirement;
use std::time::{Duration, Instant};

/// What a pull asks for.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    pub(super) position: u64,
    pub(super) requirement: Requirement,
}

impl Tensor {
    fn check_slack(&self, slack: Option<i64>) -> Result<Option<u32>, Error> {
        let refuse = |got| Error::Slack { name: self.spec.name.clone(), most: MAX_SLACK, got };
        slack
            .map(|got| u32::try_from(got).ok().filter(|&slack| slack <= MAX_SLACK).ok_or_else(|| refuse(got)))
            .transpose()
    }

    fn requirement(&self, slack: Option<i64>) -> Result<(u64, Requirement), Error> {
        self.requirement_at(None, slack)
    }

    /// The same for a worker whose clock was less, or is the job's.
    fn requirement_at(&self, clock: Option<u64>, slack: Option<i64>) -> Result<(u64, Requirement), Error> {
        self.job.fate.check()?;
        self.job.touch();
        let slack = self.check_slack(slack)?;
        let slack = match (slack, &self.adaptive) {
            (None, Some(_)) => self.slack(),
            _ => slack,
        };
        let position = *lock(&self.position);
        let clock = clock.unwrap_or_else(|| self.job.shown_clock());
        let TensorSpec { consistency, propagation, .. } = self.spec;
        let slack = propagation.slack(slack, self.job.size);
        Ok((position.at(clock), position.requirement(clock, slack, consistency, propagation)))
    }

    /// Whether [`Tensor::pull`] may be used with this slack.
    pub fn stable(&self, slack: Option<i64>) -> Result<bool, Error> {
        Ok(self.requirement(slack)?.1.stands_still)
    }

    /// Waits until the value is fresh enough and stands still until this worker's next push, so that it may be looked at in
    /// place; returns its version.
    pub fn pull(&self, slack: Option<i64>, timeout: Option<Duration>) -> Result<u64, Error> {
        // A look at the clock on the wall would cost as much as the rest of a pull in place that need not wait.
        self.pull_within(slack, || self.job.deadline(timeout))
    }

    /// [`Tensor::push_from`], then [`Tensor::pull`]; the timeout is for both together.
    pub fn pushpull_from(
        &self,
        data: Option<Foreign<'_>>,
        settings: Settings,
        timeout: Option<Duration>,
    ) -> Result<u64, Error> {
        let deadline = self.job.deadline(timeout);
        self.push_within(data, settings, false, deadline)?;
        self.pull_within(None, || deadline)
    }

    fn pull_within(&self, slack: Option<i64>, deadline: impl FnOnce() -> Deadline) -> Result<u64, Error> {
        let (position, requirement) = self.requirement(slack)?;
        if !requirement.stands_still {
            return Err(Error::NotStill { name: self.spec.name.clone() });
        }
        if !self.is_there(&requirement) {
            self.wait_for_version(&requirement, deadline())?;
        }
        let version = self.homes.iter().map(|home| self.progress(home)).min().unwrap_or(0).saturating_sub(1);
        self.count_pull(position, version, self.spec.bytes() as usize);
        Ok(version)
    }

    /// Waits, then copies the value into `out`, chunk by chunk, each verified; returns the least version among them.
    pub fn pull_into<'o>(
        &self,
        out: impl Into<ForeignMut<'o>>,
        slack: Option<i64>,
        timeout: Option<Duration>,
    ) -> Result<u64, Error> {
        let out = out.into();
        self.check_size(out.len())?;
        self.pull_asked(self.ask(slack)?, out, timeout)
    }

    /// What a pull would ask for now, for a [`Tensor::pull_asked`] later.
    pub fn ask(&self, slack: Option<i64>) -> Result<Asked, Error> {
        let (position, requirement) = self.requirement(slack)?;
        Ok(Asked { position, requirement })
    }

    /// What a pull would have asked for when this worker's clock was `clock`; all that it has pushed so far counts.
    pub fn ask_as_of(&self, clock: u64, slack: Option<i64>) -> Result<Asked, Error> {
        let (position, requirement) = self.requirement_at(Some(clock), slack)?;
        Ok(Asked { position, requirement })
    }

    /// [`Tensor::pull_into`] as of an earlier moment.
    pub fn pull_asked<'a>(
        &self,
        asked: Asked,
        out: impl Into<ForeignMut<'a>>,
        timeout: Option<Duration>,
    ) -> Result<u64, Error> {
        let out = out.into();
        self.check_size(out.len())?;
        let Asked { position, requirement } = asked;
        let deadline = self.job.deadline(timeout);
        self.wait_for_version(&requirement, deadline)?;
        self.copy_value(out, position, deadline)
    }

    pub(super) fn copy_value(
        &self,
        mut out: ForeignMut<'_>,
        position: u64,
        deadline: Deadline,
    ) -> Result<u64, Error> {
        let cut = self.memory.cut();
        let mut least = u64::MAX;
        for chunk in 0..cut.chunks() {
            let range = cut.range(chunk);
            let bytes = (range.end - range.start) as usize;
            let mut part = out.part(range.start as usize..range.end as usize);
            let read = || self.memory.read_chunk(chunk, part.part(0..bytes));
            let published = self.verified(deadline, read)?;
            least = least.min(published.version);
        }
        self.count_pull(position, least, self.spec.bytes() as usize);
        Ok(least)
    }

    /// Waits, then fills the mirror; returns the least version among its chunks.
    pub fn pull_mirror(&self, slack: Option<i64>, timeout: Option<Duration>) -> Result<u64, Error> {
        let mirror = self.mirrored()?;
        let (position, requirement) = self.requirement(slack)?;
        let deadline = self.job.deadline(timeout);
        self.wait_for_version(&requirement, deadline)?;
        let what = || format!("copying `{}`", self.spec.name);
        let _turn = mirror.turn.take(|| self.job.look(&what(), deadline))?;
        self.copy_value(lock(&mirror.copy).out(), position, deadline)
    }

    fn is_fresh(&self, home: &HomeShard, requirement: &Requirement) -> bool {
        self.progress(home) > requirement.version && (!requirement.own_folded || self.lane_is_free(home))
    }

    /// Whether the value is as fresh as that already, and nothing has to be asked of another host.
    fn is_there(&self, requirement: &Requirement) -> bool {
        self.homes.iter().all(|home| home.remote.is_none() && self.is_fresh(home, requirement))
    }

    pub(super) fn wait_for_version(
        &self,
        requirement: &Requirement,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let tickets = self.freshen(requirement, deadline)?;
        let fresh = |home: &HomeShard| self.is_fresh(home, requirement) && Self::is_fetched(home, &tickets);
        let old = |home: &HomeShard| self.progress(home) <= requirement.version;
        self.wait_until_fresh(
            requirement,
            deadline,
            false,
            (fresh, old, || self.version().is_none() && self.may_lack_value()),
        )
    }

    /// Waits until each home is `fresh`; `old` are those that lack the version, and `lacks_value` says whether there may be none.
    /// `singly`: for chunks, each by itself.
    pub(super) fn wait_until_fresh(
        &self,
        requirement: &Requirement,
        deadline: Deadline,
        singly: bool,
        (fresh, old, lacks_value): (
            impl Fn(&HomeShard) -> bool,
            impl Fn(&HomeShard) -> bool,
            impl Fn() -> bool,
        ),
    ) -> Result<(), Error> {
        // Waiting for the others is what more slack would save; it would save nothing of the wait for this worker's own
        // update to be folded.
        // The only worker of a job waits for itself.
        let others = self.adaptive.as_ref().filter(|_| self.job.size > 1 && self.homes.iter().any(&old));
        let since = others.map(|_| Instant::now());
        let waited = self.wait_long_for(deadline, requirement.version, singly, &fresh)?;
        if let (Some((_, controller)), Some(since)) = (others, since) {
            lock(controller).waited(since.elapsed());
        }
        if waited == Waited::Done {
            return Ok(());
        }
        let (name, version, waited) = (self.spec.name.clone(), requirement.version, deadline.waited());
        if lacks_value() {
            return Err(Error::NoValue { name, waited });
        }
        let (missing, silent) = self.whom(version, deadline, |home| !fresh(home))?;
        Err(Error::PullTimeout { name, version, missing, silent, waited })
    }

    /// Asks homes on other hosts for what the mirrors lack. Under BSP without slack that is nothing where the last push has
    /// asked for its result already; a value that moves by itself is fetched at every pull, as new as it is.
    fn freshen(&self, requirement: &Requirement, deadline: Deadline) -> Result<Tickets, Error> {
        if self.homes.iter().all(|home| home.remote.is_none()) {
            return Ok(Tickets::new());
        }
        let now = self.changes();
        let anew = now.are_newer_than(self.fetched_at());
        let freshen = |home| self.freshen_home(home, requirement, anew, deadline);
        let tickets = self.homes.iter().map(freshen).collect::<Result<Tickets, Error>>()?;
        // Noted once every home has been told: a thread that sees it sees the tickets, and waits for them.
        self.seen_barriers.fetch_max(now.barriers, Ordering::Release);
        self.seen_loads.fetch_max(now.loads, Ordering::Release);
        Ok(tickets)
    }

    /// The same for one home. With `anew`, the value may have changed without a new version, for every thread and every slack:
    /// then all of it is fetched, and later pulls count on that.
    fn freshen_home(
        &self,
        home: &HomeShard,
        requirement: &Requirement,
        anew: bool,
        deadline: Deadline,
    ) -> Result<u64, Error> {
        let Some(remote) = &home.remote else { return Ok(NO_TICKET) };
        remote.pulled.store(true, Ordering::Relaxed);
        let known = Known {
            progress: self.progress(home),
            wanted: remote.wanted.load(Ordering::Relaxed),
            is_sent: remote.is_sent.load(Ordering::Relaxed),
        };
        match asking::at_pull(requirement, known, anew) {
            AtPull::Nothing => Ok(remote.renewed.load(Ordering::Relaxed)),
            AtPull::Fetch { version } => self.fetch(home, version, false, deadline),
            AtPull::Anew { want } => {
                let ticket = self.fetch(home, 0, false, deadline)?;
                remote.renewed.fetch_max(ticket, Ordering::Relaxed);
                if let Some(version) = want {
                    self.want(home, version, deadline)?;
                }
                Ok(ticket)
            }
        }
    }

    /// Repeats a copy until the home was not inside while it was made.
    pub(super) fn verified(
        &self,
        deadline: Deadline,
        copy: impl FnMut() -> Result<Published, Torn>,
    ) -> Result<Published, Error> {
        let stands = || self.job.fate.check().and_then(|()| self.job.fate.check_interrupt());
        let Some((published, in_vain)) = undisturbed(deadline, stands, copy)? else {
            let (name, version) = (self.spec.name.clone(), self.version().unwrap_or(0));
            return Err(Error::PullTimeout {
                name,
                version,
                missing: Vec::new(),
                silent: None,
                waited: deadline.waited(),
            });
        };
        if in_vain > 0 {
            self.job.counters.copies_retried.fetch_add(in_vain, Ordering::Relaxed);
        }
        Ok(published)
    }

    pub(super) fn count_pull(&self, position: u64, version: u64, bytes: usize) {
        let staleness = position.saturating_sub(version);
        self.staleness.store(staleness, Ordering::Relaxed);
        let counters = &self.job.counters;
        counters.max_staleness.fetch_max(staleness, Ordering::Relaxed);
        counters.pulls.fetch_add(1, Ordering::Relaxed);
        counters.pulled_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}
