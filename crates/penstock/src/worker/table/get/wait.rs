//! Waiting for rows that are too old, and for which workers.

use super::Wanted;
use crate::wait::{Crowd, Deadline, INTERRUPT_EVERY, Patience};
use crate::worker::circle::Circle;
use crate::worker::link::lock;
use crate::worker::table::{Place, Source, TableInner};
use crate::worker::{Due, Error};
use penstock_proto::items::Propagation;
use penstock_proto::knot::Goal;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Between two looks at whether the producer that is waited for is still there.
pub(super) const LOOK_FOR_PRODUCER: Duration = Duration::from_millis(500);
/// Longest sleep of a reader that found no line to sleep on.
const WITHOUT_LINE: Duration = Duration::from_millis(1);

/// A row that is waited for, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Awaited {
    pub(super) row: u64,
    pub(super) place: Place,
    pub(super) due: Due,
}

impl Awaited {
    /// A row that is too old.
    pub(super) fn version(row: u64, place: Place) -> Self {
        Self { row, place, due: Due::Version }
    }

    /// What of a get's slots has not come in time; `None`: nothing. Another thread may have had some of them sent.
    pub(super) fn still(
        self,
        slots: &[u32],
        is_old: impl Fn(u32) -> bool,
        row: impl Fn(Place) -> Option<u64>,
    ) -> Option<Self> {
        if self.due != Due::Version || is_old(self.place.slot) {
            return Some(self);
        }
        if slots.iter().all(|slot| *slot == self.place.slot) {
            return None;
        }
        let old = slots.iter().find(|slot| is_old(**slot)).map(|&slot| Place { slot, ..self.place });
        let named = old.and_then(|place| Some(Self::version(row(place)?, place)));
        Some(named.unwrap_or(Self { due: Due::AtOneMoment, ..self }))
    }

    /// The same once its producer is gone: the version may never come, what is due for another reason must.
    pub(super) fn of_gone(self) -> Self {
        let due = if self.due == Due::Version { Due::BeforeGone } else { self.due };
        Self { due, ..self }
    }
}

impl Source {
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}

impl TableInner {
    /// Waits until a row has the version, or its producer is gone.
    pub(super) fn wait(
        &self,
        stale: Awaited,
        slots: &[u32],
        wanted: Wanted,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let since = Instant::now();
        let source = &self.sources[stale.place.source as usize];
        let result = match &source.remote {
            Some(remote) if remote.propagation == Propagation::Lazy => {
                self.fetch(source, remote, slots, wanted, stale, deadline)
            }
            Some(remote) if remote.propagation == Propagation::Bounded => {
                remote.wait_for(wanted.version, true);
                let result = self.wait_for(&stale, wanted, deadline);
                remote.wait_for(wanted.version, false);
                result
            }
            _ => self.wait_for(&stale, wanted, deadline),
        };
        let waited = since.elapsed();
        let nanos = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        self.counters.waited_nanos.fetch_add(nanos, Ordering::Relaxed);
        if let Some(controller) = &self.adaptive {
            lock(controller).waited(waited);
        }
        result
    }

    fn wait_for(&self, stale: &Awaited, wanted: Wanted, deadline: Deadline) -> Result<(), Error> {
        let source = &self.sources[stale.place.source as usize];
        let slot = stale.place.slot;
        let local = source.remote.is_none();
        let crowd = if local { self.job.crowd() } else { None };
        let mut patience = match &crowd {
            Some(crowd) => Patience::for_memory(crowd),
            None => Patience::new(&Crowd::Taken(true)),
        };
        while patience.pause() {
            if let Some(remote) = &source.remote {
                remote.relay.help();
            }
            if self.is_fresh(stale.place, wanted) {
                return Ok(());
            }
        }
        if let Some(remote) = &source.remote {
            remote.relay.stop_helping();
        }
        let seat = source.waiters.seat();
        let mut looked = Instant::now();
        let mut circle = Circle::new(&self.job, deadline);
        let mut slept = false;
        loop {
            let rings = seat.as_ref().map(|seat| seat.announce(slot, wanted.version));
            if self.is_fresh(stale.place, wanted) {
                return Ok(());
            }
            self.check()?;
            let untold = self.job.fate.untold.before_sleep(&mut slept);
            self.job.fate.check_interrupt()?;
            let left = deadline.left();
            if left.is_zero() {
                return Err(self.too_late(source, *stale, wanted, deadline));
            }
            match (&seat, rings) {
                (Some(seat), Some(rings)) => seat.sleep(rings, left.min(INTERRUPT_EVERY).min(untold)),
                // More readers sleep on this host than the page has lines: this one looks again by itself.
                _ => std::thread::sleep(left.min(WITHOUT_LINE)),
            }
            // What comes by the network may be on its way: only in its producer's own memory is a row surely what it is.
            if local && source.rank != self.job.rank {
                circle.look(|| Ok(Some(self.goal(source, stale))))?;
            }
            if looked.elapsed() > LOOK_FOR_PRODUCER || self.job.gone_since(source.rank).is_some() {
                looked = Instant::now();
                if self.is_lost(source, deadline)? {
                    // A reader that was away when it left may have older rows than it set.
                    if !self.hear_out(source, deadline)? {
                        // It may have come while others were waited for.
                        if self.is_fresh(stale.place, wanted) {
                            return Ok(());
                        }
                        return Err(self.too_late(source, stale.of_gone(), wanted, deadline));
                    }
                    source.gone.store(true, Ordering::Release);
                }
            }
        }
    }

    /// Whether the servers no longer wait for a producer. A server that does not say so now is asked again at the next look:
    /// meanwhile the row may come.
    pub(super) fn is_lost(&self, source: &Source, deadline: Deadline) -> Result<bool, Error> {
        self.job.is_gone(source.rank, deadline.at_most(deadline.waited() + LOOK_FOR_PRODUCER))
    }

    fn goal(&self, source: &Source, stale: &Awaited) -> Goal {
        let what = format!("row {} of table `{}`", stale.row, self.spec.name);
        Goal::Ranks { what, ranks: vec![source.rank] }
    }

    pub(super) fn too_late(
        &self,
        source: &Source,
        awaited: Awaited,
        wanted: Wanted,
        deadline: Deadline,
    ) -> Error {
        let Awaited { row, place, due } = awaited;
        Error::GetTimeout {
            due,
            name: self.spec.name.clone(),
            row,
            version: source.rows.version(place.slot),
            wanted: wanted.version,
            producer: source.rank,
            waited: deadline.waited(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Rows 10, 11, ... stand in slots 0, 1, ...
    fn awaited(slot: u32) -> Awaited {
        Awaited::version(u64::from(slot) + 10, Place { source: 3, slot })
    }

    // It named the row that it had waited for, which another thread had had sent meanwhile.
    #[test]
    fn a_get_that_waited_in_vain_names_a_row_that_is_too_old_if_there_is_one() {
        let still = |awaited: Awaited, slots: &[u32], old: &[u32]| {
            awaited.still(slots, |slot| old.contains(&slot), |place| Some(u64::from(place.slot) + 10))
        };
        assert_eq!(still(awaited(0), &[0, 1, 2], &[0, 2]), Some(awaited(0)));
        assert_eq!(still(awaited(0), &[0, 1, 2], &[2]), Some(awaited(2)));
        let apart = Awaited { due: Due::AtOneMoment, ..awaited(0) };
        assert_eq!(still(awaited(0), &[0, 1, 2], &[]), Some(apart), "each has come, but never all at once");
        assert_eq!(still(awaited(0), &[0, 0], &[]), None);
        let behind_a_barrier = Awaited { due: Due::BeforeBarrier, ..awaited(0) };
        assert_eq!(still(behind_a_barrier, &[0, 1], &[]), Some(behind_a_barrier));
    }
}
