//! Get: looks at rows where they stand, and waits for those that are too old.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | copying rows that are fresh enough |
//! | [`view`] | a row where it stands |
//! | [`wait`] | waiting for rows that are too old, and for which workers |
//! | [`needs`] | asking for rows that stand on another host |

mod needs;
mod view;
mod wait;

pub use view::View;

use wait::Awaited;

use super::{Chosen, FINAL, Place, Source, Table, TableInner};
use crate::wait::{Deadline, undisturbed};
use crate::worker::link::lock;
use crate::worker::{Due, Error};
use penstock_fabric::items::partition::{Rows, Together};
use penstock_fabric::items::slot::Torn;
use penstock_kernels::{Foreign, ForeignMut};
use penstock_proto::items::{Propagation, Slack};
use std::borrow::Cow;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Bytes that are not copied before it is known that they are fresh.
const LONG: usize = 256;

/// Slots of one producer, and where in `out` their rows go.
#[derive(Clone, Copy)]
enum Slots<'a> {
    /// One by one: to the places in `outs`, or one after the other.
    Each { slots: &'a [u32], outs: Option<&'a [u32]> },
    /// `count` from `first` on, one after the other.
    Run { first: u32, count: u32 },
}

impl<'a> Slots<'a> {
    fn len(&self) -> usize {
        match *self {
            Self::Each { slots, .. } => slots.len(),
            Self::Run { count, .. } => count as usize,
        }
    }

    fn nth(&self, at: usize) -> u32 {
        match *self {
            Self::Each { slots, .. } => slots[at],
            Self::Run { first, .. } => first + at as u32,
        }
    }

    fn list(&self) -> Cow<'a, [u32]> {
        match *self {
            Self::Each { slots, .. } => slots.into(),
            Self::Run { first, count } => (first..first + count).collect(),
        }
    }

    fn read(&self, rows: &Rows, out: ForeignMut<'_>) -> Result<Together, Torn> {
        match *self {
            Self::Each { slots, outs: Some(outs) } => rows.read_together(slots, |at| outs[at] as usize, out),
            Self::Each { slots, outs: None } => rows.read_together(slots, |at| at, out),
            Self::Run { first, .. } => rows.read_run(first, out),
        }
    }
}

/// What a get must return.
#[derive(Clone, Copy)]
struct Wanted {
    clock: u64,
    version: u64,
    slack: Slack,
}

impl Table {
    /// Copies rows into `out`, one after the other, each at a version >= `clock` - `slack` (see `penstock_proto::items`),
    /// waiting for what is older. Rows that one set wrote together come together. Returns the least version among them.
    ///
    /// Without `clock`: this worker's clock. Without `slack`: the table's.
    pub fn get<'a, 'o>(
        &self,
        rows: impl Into<Chosen<'a>>,
        out: impl Into<ForeignMut<'o>>,
        clock: Option<u64>,
        slack: Option<Slack>,
        timeout: Option<Duration>,
    ) -> Result<u64, Error> {
        let (inner, rows, out) = (&*self.inner, rows.into(), out.into());
        inner.check()?;
        inner.check_size(rows.len(), out.len())?;
        let wanted = inner.wanted(clock, slack);
        let Some(first) = rows.first() else { return Ok(0) };
        let version = if rows.len() == 1 && inner.index.is_single() {
            inner.get_one(first, out, wanted, timeout)?
        } else if let Some(place) = rows.run().and_then(|run| inner.index.run(&run)) {
            let slots = Slots::Run { first: place.slot, count: rows.len() as u32 };
            let deadline = inner.job.deadline(timeout);
            inner.read_source(place.source as usize, slots, out, wanted, deadline, |at| rows.nth(at))?
        } else {
            inner.get_several(&rows, out, wanted, timeout)?
        };
        inner.count_get(rows.len(), wanted, version);
        Ok(version)
    }

    /// [`Table::get`], if nobody has to be asked for the rows, and they are fresh enough; `false` if not, and then `out` may hold
    /// anything.
    pub fn try_get<'a, 'o>(
        &self,
        rows: impl Into<Chosen<'a>>,
        out: impl Into<ForeignMut<'o>>,
        clock: Option<u64>,
        slack: Option<Slack>,
    ) -> Result<bool, Error> {
        let (inner, rows, out) = (&*self.inner, rows.into(), out.into());
        inner.check()?;
        inner.check_size(rows.len(), out.len())?;
        let wanted = inner.wanted(clock, slack);
        let place = match rows.run() {
            Some(run) if rows.len() == 1 => match inner.places(run.start)? {
                [place] => Some(*place),
                _ => None,
            },
            Some(run) => inner.index.run(&run),
            None => None,
        };
        let Some(place) = place else { return Ok(false) };
        let source = &inner.sources[place.source as usize];
        if !inner.comes_unasked(source) {
            return Ok(false);
        }
        if out.len() > LONG && source.rows.version(place.slot) < wanted.version {
            return Ok(false);
        }
        let version = if rows.len() == 1 {
            source.rows.read(place.slot, source.rows.now(), out).map(|look| look.clock)
        } else {
            source.rows.read_run(place.slot, out).map(|together| together.version)
        };
        match version {
            Ok(version) if version >= wanted.version => {
                inner.count_get(rows.len(), wanted, version);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// [`Table::get`], and the version of each value. Where a producer sets rows all the while, that of one may be less than its
    /// value's, never more.
    pub fn get_versions<'a>(
        &self,
        rows: impl Into<Chosen<'a>>,
        out: &mut [u8],
        versions: &mut [u64],
        clock: Option<u64>,
        slack: Option<Slack>,
        timeout: Option<Duration>,
    ) -> Result<u64, Error> {
        /// Attempts to find all versions as they were before the copy.
        const ATTEMPTS: usize = 8;
        let (inner, rows) = (&*self.inner, rows.into());
        inner.check_versions(rows.len(), versions.len())?;
        let newest = |row| -> Result<u64, Error> {
            let versions = inner.places(row)?.iter().map(|&place| inner.version(place));
            Ok(versions.min().unwrap_or(0))
        };
        let mut attempts = 0;
        loop {
            // Versions only grow: a value is as new as what was found before it was copied, or newer.
            for (row, version) in rows.iter().zip(&mut *versions) {
                *version = newest(row)?;
            }
            let least = self.get(rows.clone(), &mut *out, clock, slack, timeout)?;
            if let [version] = versions
                && inner.index.is_single()
            {
                *version = least; // that of the one value
                return Ok(least);
            }
            attempts += 1;
            let still = || {
                rows.iter().zip(&*versions).all(|(row, version)| newest(row).is_ok_and(|now| now == *version))
            };
            if attempts == ATTEMPTS || still() {
                return Ok(least);
            }
        }
    }

    /// The newest versions that are here.
    pub fn versions(&self, rows: &[u64], out: &mut [u64]) -> Result<(), Error> {
        let inner = &*self.inner;
        inner.check()?;
        inner.check_versions(rows.len(), out.len())?;
        for (&row, out) in rows.iter().zip(out) {
            let versions = inner.places(row)?.iter().map(|&place| inner.version(place));
            *out = versions.min().unwrap_or(0);
        }
        Ok(())
    }
}

impl TableInner {
    #[inline]
    fn wanted(&self, clock: Option<u64>, slack: Option<Slack>) -> Wanted {
        let clock = clock.unwrap_or_else(|| self.job.shown_clock());
        let slack = slack.unwrap_or_else(|| self.slack_now());
        Wanted { clock, version: slack.required(clock), slack }
    }

    /// The slack of a get that names none, now.
    pub(super) fn slack_now(&self) -> Slack {
        self.adaptive.as_ref().map_or(self.slack, |controller| Slack::Bound(lock(controller).slack()))
    }

    #[inline]
    fn is_own(&self, place: Place) -> bool {
        self.own.as_ref().is_some_and(|own| own.source == place.source as usize)
    }

    /// A row that only this worker could bring further is not waited for.
    fn check_own(&self, row: u64, place: Place, version: u64, wanted: Wanted) -> Result<(), Error> {
        if version >= wanted.version || self.spec.sum.is_some() || !self.is_own(place) {
            return Ok(());
        }
        Err(Error::NeverSet { name: self.spec.name.clone(), row, version, wanted: wanted.version })
    }

    /// The version of a contribution, as far as a get is concerned: this worker's own, and those of workers that have gone,
    /// are what they are.
    fn version(&self, place: Place) -> u64 {
        let source = &self.sources[place.source as usize];
        let version = source.rows.version(place.slot);
        if source.is_gone() { self.last_of(source, version) } else { version }
    }

    /// The version of a row of a producer that is gone, where it stands at `version`. One that has left raises its rows itself, but
    /// not those that it had not mapped by then.
    #[cold]
    fn last_of(&self, source: &Source, version: u64) -> u64 {
        if self.job.has_left(source.rank) { FINAL } else { version }
    }

    fn is_fresh(&self, place: Place, wanted: Wanted) -> bool {
        let source = &self.sources[place.source as usize];
        (self.spec.sum.is_some() && self.is_own(place))
            || source.rows.version(place.slot) >= wanted.version
            || source.is_gone()
    }

    fn check_versions(&self, rows: usize, got: usize) -> Result<(), Error> {
        if got == rows {
            return Ok(());
        }
        Err(Error::WrongSize { name: self.spec.name.clone(), expected: rows * 8, got: got * 8 })
    }

    fn get_one(
        &self,
        row: u64,
        mut out: ForeignMut<'_>,
        wanted: Wanted,
        timeout: Option<Duration>,
    ) -> Result<u64, Error> {
        let place = self.places(row)?[0];
        let source = &self.sources[place.source as usize];
        // Taken where there is something to wait for: to read the time is a good part of a get of what is here.
        let mut deadline = None;
        if !self.is_past_barrier(source) {
            let deadline = *deadline.get_or_insert_with(|| self.job.deadline(timeout));
            self.pass_barrier(source, (row, place), deadline)?;
        }
        loop {
            if out.len() > LONG && !self.is_fresh(place, wanted) {
                let deadline = *deadline.get_or_insert_with(|| self.job.deadline(timeout));
                self.check_own(row, place, source.rows.version(place.slot), wanted)?;
                self.wait(Awaited::version(row, place), &[place.slot], wanted, deadline)?;
                continue;
            }
            let bytes = out.len();
            // Before the row is read: what came last of one that is gone was there before that was known.
            let is_gone = source.is_gone();
            let look = match source.rows.read(place.slot, source.rows.now(), out.part(0..bytes)) {
                Ok(look) => look,
                Err(Torn) => {
                    let deadline = *deadline.get_or_insert_with(|| self.job.deadline(timeout));
                    let look = || source.rows.read(place.slot, source.rows.now(), out.part(0..bytes));
                    self.verified(row, deadline, look)?
                }
            };
            if look.clock >= wanted.version || is_gone {
                self.look_ahead(source, wanted);
                return Ok(if is_gone { self.last_of(source, look.clock) } else { look.clock });
            }
            self.check_own(row, place, look.clock, wanted)?;
            if self.spec.sum.is_some() && self.is_own(place) {
                return Ok(look.clock);
            }
            let deadline = *deadline.get_or_insert_with(|| self.job.deadline(timeout));
            self.wait(Awaited::version(row, place), &[place.slot], wanted, deadline)?;
        }
    }

    fn get_several(
        &self,
        rows: &Chosen<'_>,
        mut out: ForeignMut<'_>,
        wanted: Wanted,
        timeout: Option<Duration>,
    ) -> Result<u64, Error> {
        let deadline = self.job.deadline(timeout);
        // By source: slots, and the places in `out` that they go to.
        let mut slots: Vec<Vec<u32>> = vec![Vec::new(); self.sources.len()];
        let mut outs: Vec<Vec<u32>> = vec![Vec::new(); self.sources.len()];
        for (row, at) in rows.iter().zip(0u32..) {
            for place in self.places(row)? {
                slots[place.source as usize].push(place.slot);
                outs[place.source as usize].push(at);
            }
        }
        let bytes = self.layout.row_bytes();
        let mut filled = vec![false; if self.index.is_single() { 0 } else { rows.len() }];
        let mut scratch = Vec::new();
        let mut least = u64::MAX;
        for (source, (slots, outs)) in
            slots.iter().zip(&outs).enumerate().filter(|(_, (slots, _))| !slots.is_empty())
        {
            let read = |out: ForeignMut<'_>, outs: Option<&[u32]>, row: &dyn Fn(usize) -> u64| {
                self.read_source(source, Slots::Each { slots, outs }, out, wanted, deadline, row)
            };
            let row = |at: usize| rows.nth(outs[at] as usize);
            if self.index.is_single() {
                let all = out.len();
                least = least.min(read(out.part(0..all), Some(outs), &row)?);
                continue;
            }
            scratch.resize(slots.len() * bytes, 0);
            let version = read(ForeignMut::of(&mut scratch), None, &row)?;
            if self.own.as_ref().is_none_or(|own| own.source != source) {
                least = least.min(version);
            }
            for (value, &at) in scratch.chunks_exact(bytes).zip(outs) {
                let at = at as usize;
                let (mut sum, value) = (out.part(at * bytes..(at + 1) * bytes), Foreign::of(value));
                match self.spec.sum {
                    Some(dtype) if filled[at] => penstock_kernels::accumulate_into(dtype, &mut sum, value),
                    _ => sum.copy_from(value),
                }
                filled[at] = true;
            }
        }
        Ok(if least == u64::MAX { wanted.version } else { least })
    }

    /// Reads rows of one producer together, once they are fresh enough. `row`: the row at an index, to name it.
    fn read_source(
        &self,
        source: usize,
        slots: Slots<'_>,
        mut out: ForeignMut<'_>,
        wanted: Wanted,
        deadline: Deadline,
        row: impl Fn(usize) -> u64,
    ) -> Result<u64, Error> {
        let (from, bytes) = (&self.sources[source], out.len());
        let place = |slot| Place { source: source as u32, slot };
        let all = |at: usize| slots.nth(at);
        self.pass_barrier(from, (row(0), place(all(0))), deadline)?;
        loop {
            // Before the rows are read, as for a single one.
            let is_gone = from.is_gone();
            // The first row says most often whether there is something to wait for; then the others need not be read in vain.
            let mut stale = (!self.is_fresh(place(all(0)), wanted)).then_some(0);
            if stale.is_none() {
                let look = || slots.read(&from.rows, out.part(0..bytes));
                let together = match &from.remote {
                    Some(remote) if remote.propagation != Propagation::Eager => {
                        match self.verified_apart(look) {
                            Some(together) => together,
                            // No more comes of them: nobody can tell which of them belong together.
                            None if from.is_gone() => {
                                let list = slots.list();
                                match self.verified(row(0), deadline, || from.rows.apart(&list))? {
                                    Some(at) => return Err(self.apart(from, row(at))),
                                    None => continue, // the last of them came just now
                                }
                            }
                            // Rows that came one by one were never current together: they are fetched together.
                            None => {
                                let old = (0..slots.len()).find(|&at| !self.is_fresh(place(all(at)), wanted));
                                let due = if old.is_some() { Due::Version } else { Due::AtOneMoment };
                                let at = old.unwrap_or(0);
                                let awaited = Awaited { row: row(at), place: place(all(at)), due };
                                self.fetch(from, remote, &slots.list(), wanted, awaited, deadline)?;
                                continue;
                            }
                        }
                    }
                    _ => self.verified(row(0), deadline, look)?,
                };
                if together.version >= wanted.version || is_gone {
                    self.look_ahead(from, wanted);
                    return Ok(if is_gone { self.last_of(from, together.version) } else { together.version });
                }
                if self.is_own(place(all(0))) && self.spec.sum.is_some() {
                    return Ok(together.version);
                }
                stale = (0..slots.len()).find(|&at| !self.is_fresh(place(all(at)), wanted));
            }
            // None: it was old when it was read, and is not any more.
            let Some(at) = stale else { continue };
            let stale = Awaited::version(row(at), place(all(at)));
            self.check_own(stale.row, stale.place, from.rows.version(stale.place.slot), wanted)?;
            self.wait(stale, &slots.list(), wanted, deadline)?;
        }
    }

    fn apart(&self, from: &Source, row: u64) -> Error {
        Error::Apart { name: self.spec.name.clone(), row, producer: from.rank }
    }

    /// Some looks at rows of a mirror whose rows come one by one.
    fn verified_apart<T>(&self, mut look: impl FnMut() -> Result<T, Torn>) -> Option<T> {
        (0..4).find_map(|_| look().ok())
    }

    /// Repeats a look until the producer did not come round meanwhile.
    fn verified<T>(
        &self,
        row: u64,
        deadline: Deadline,
        look: impl FnMut() -> Result<T, Torn>,
    ) -> Result<T, Error> {
        let stands = || self.check().and_then(|()| self.job.fate.check_interrupt());
        let Some((seen, in_vain)) = undisturbed(deadline, stands, look)? else {
            let (name, waited) = (self.spec.name.clone(), deadline.waited());
            return Err(Error::NeverStill { name, row, waited });
        };
        if in_vain > 0 {
            self.counters.retries.fetch_add(in_vain, Ordering::Relaxed);
        }
        Ok(seen)
    }

    #[inline]
    fn count_get(&self, rows: usize, wanted: Wanted, version: u64) {
        let counters = &self.counters;
        counters.gets.fetch_add(1, Ordering::Relaxed);
        counters.rows_got.fetch_add(rows as u64, Ordering::Relaxed);
        let staleness = wanted.clock.saturating_sub(version);
        if version < FINAL && staleness > counters.max_staleness.load(Ordering::Relaxed) {
            counters.max_staleness.fetch_max(staleness, Ordering::Relaxed);
        }
    }
}
