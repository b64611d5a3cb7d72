//! What a reader asks for that stands on another host: rows ahead of their time, or now.

use super::Wanted;
use super::wait::{Awaited, LOOK_FOR_PRODUCER};
use crate::wait::Deadline;
use crate::worker::link::lock;
use crate::worker::table::relay::{Fetch, Fetched};
use crate::worker::table::{Needs, Place, Remote, Source, Table, TableInner};
use crate::worker::{Due, Error};
use penstock_proto::items::{Propagation, RowSet, Slack};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Table {
    /// Starts what a later get with the same arguments would wait for. Returns at once.
    pub fn prefetch(&self, rows: &[u64], clock: Option<u64>, slack: Option<Slack>) -> Result<(), Error> {
        let inner = &*self.inner;
        inner.check()?;
        let wanted = inner.wanted(clock, slack);
        let mut places: Vec<Vec<u64>> = vec![Vec::new(); inner.sources.len()];
        for &row in rows {
            for place in inner.places(row)? {
                places[place.source as usize].push(place.slot.into());
            }
        }
        for (source, places) in inner.sources.iter().zip(places).filter(|(_, places)| !places.is_empty()) {
            // No peer answers for a producer that has gone.
            let Some(remote) = source.remote.as_ref().filter(|_| !source.is_gone()) else { continue };
            let old = |slot: &u64| source.rows.version(*slot as u32) < wanted.version;
            match remote.propagation {
                Propagation::Eager => {}
                Propagation::Lazy if places.iter().any(old) => {
                    let (id, places) = (remote.id, &RowSet::from_rows(places));
                    remote.relay.prefetch(Fetch { id, places, version: wanted.version });
                }
                Propagation::Lazy => {}
                Propagation::Bounded => remote.need(wanted.version, wanted.version),
            }
        }
        Ok(())
    }
}

impl Remote {
    /// Whether what its producer had set before the last of so many barriers is here. Pairs with [`Remote::pass`]: a thread that need
    /// not ask sees the rows that came for the one that did.
    fn has_passed(&self, barriers: u64) -> bool {
        self.barriers.load(Ordering::Acquire) == barriers
    }

    fn pass(&self, barriers: u64) {
        self.barriers.store(barriers, Ordering::Release);
    }

    /// Says which versions are needed: the one asked for, the one that the next get will ask for, and those that are waited for.
    fn need(&self, now: u64, next: u64) {
        let mut needs = lock(&self.needs);
        let newer = (now.max(needs.now), next.max(needs.next));
        // Every get that has found its rows says it; most often another of the same clock has said so.
        if newer != (needs.now, needs.next) {
            (needs.now, needs.next) = newer;
            self.say(&mut needs);
        }
    }

    /// Notes that a get waits for a version, or no longer does.
    pub(super) fn wait_for(&self, version: u64, begins: bool) {
        let mut needs = lock(&self.needs);
        let count = needs.waiting.entry(version).or_default();
        *count = if begins { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            needs.waiting.remove(&version);
        }
        if begins {
            self.say(&mut needs);
        }
    }

    fn say(&self, needs: &mut Needs) {
        let waiting = needs.waiting.keys().copied();
        let all: BTreeSet<u64> =
            waiting.chain([needs.now, needs.next]).filter(|&version| version > 0).collect();
        // What was said and is not needed any more does no harm: it is left until something is added.
        if all.iter().any(|version| !needs.said.contains(version)) {
            needs.said = all.into_iter().collect();
            self.relay.need(self.id, needs.said.clone());
        }
    }
}

impl TableInner {
    /// Has rows sent that are fresh enough, all as of one moment.
    pub(super) fn fetch(
        &self,
        source: &Source,
        remote: &Remote,
        slots: &[u32],
        wanted: Wanted,
        awaited: Awaited,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let places = RowSet::from_rows(slots.iter().map(|&slot| slot.into()));
        let mut looked = Instant::now();
        let mut gone = source.is_gone() || self.job.gone_since(source.rank).is_some();
        let is_gone = || {
            if !gone && looked.elapsed() > LOOK_FOR_PRODUCER {
                looked = Instant::now();
                gone = self.is_lost(source, deadline)?;
            }
            Ok(gone)
        };
        let lost = || self.job.gone_since(source.rank);
        let fetch = Fetch { id: remote.id, places: &places, version: wanted.version };
        let fetched = remote.relay.fetch(fetch, deadline, || self.check(), is_gone, lost)?;
        if fetched == Fetched::Rows {
            return Ok(());
        }
        // Of a table that is dropped there is nothing.
        self.check()?;
        if fetched == Fetched::Nothing && gone {
            // No peer has these as new as that, but perhaps older ones, and others.
            let all = wanted.version == 0 && places.len() == u64::from(remote.len);
            // Only when all that was set has come: from then on no one asks for more.
            if all || source.is_gone() || self.hear_out(source, deadline)? {
                source.gone.store(true, Ordering::Release);
                return Ok(());
            }
        }
        let is_old = |slot| source.rows.version(slot) < wanted.version;
        let Some(awaited) = awaited.still(slots, is_old, |place| self.index.row(place)) else {
            return Ok(());
        };
        let awaited = if gone { awaited.of_gone() } else { awaited };
        Err(self.too_late(source, awaited, wanted, deadline))
    }

    /// Whether a get has to ask nobody for rows of a producer: they stand on this host, or what is set is sent, and all that was set
    /// before the last barrier is here.
    pub(super) fn comes_unasked(&self, source: &Source) -> bool {
        let is_sent = |remote: &Remote| remote.propagation == Propagation::Eager;
        source.remote.as_ref().is_none_or(is_sent) && self.is_past_barrier(source)
    }

    /// Whether all that the producer of the rows set before the last barrier is here. Of one that has gone it is.
    #[inline]
    pub(super) fn is_past_barrier(&self, source: &Source) -> bool {
        let passed = |remote: &Remote| source.is_gone() || remote.has_passed(self.job.barriers());
        source.remote.as_ref().is_none_or(passed)
    }

    /// After a barrier, what the producer of the rows set before it must be here; no other producer is waited for. The row is
    /// one of them, to name it.
    pub(super) fn pass_barrier(
        &self,
        source: &Source,
        (row, place): (u64, Place),
        deadline: Deadline,
    ) -> Result<(), Error> {
        let barriers = self.job.barriers();
        let Some(remote) = source.remote.as_ref().filter(|_| !self.is_past_barrier(source)) else {
            return Ok(());
        };
        let wanted = Wanted { clock: 0, version: 0, slack: Slack::Unbounded };
        let awaited = Awaited { row, place, due: Due::BeforeBarrier };
        match remote.propagation {
            Propagation::Eager => {
                if !remote.relay.bring(remote.id, deadline, || self.check())? {
                    return Err(self.too_late(source, awaited, wanted, deadline));
                }
            }
            _ => {
                let all: Vec<u32> = (0..remote.len).collect();
                self.fetch(source, remote, &all, wanted, awaited, deadline)?;
            }
        }
        remote.pass(barriers);
        Ok(())
    }

    /// Within bounds: rows that the next get will find too old are sent before it asks.
    pub(super) fn look_ahead(&self, source: &Source, wanted: Wanted) {
        if let Some(remote) = &source.remote
            && remote.propagation == Propagation::Bounded
        {
            remote.need(wanted.version, wanted.slack.required(wanted.clock + 1));
        }
    }

    /// A producer is gone: what it set before may still be on its way from its home. `false` if it did not come in time.
    pub(super) fn hear_out(&self, source: &Source, deadline: Deadline) -> Result<bool, Error> {
        let Some(remote) = &source.remote else { return Ok(true) };
        if remote.propagation == Propagation::Eager {
            return remote.relay.bring(remote.id, deadline, || self.check());
        }
        let all = RowSet::from_ranges(std::iter::once(0..u64::from(remote.len)));
        let lost = || self.job.gone_since(source.rank);
        let fetch = Fetch { id: remote.id, places: &all, version: 0 };
        let fetched = remote.relay.fetch(fetch, deadline, || self.check(), || Ok(true), lost)?;
        if fetched != Fetched::Rows {
            self.check()?;
        }
        Ok(fetched != Fetched::TooLate)
    }
}
