//! A peer that is sent rows of a partition: what it has, what may have changed since, and what it waits for.

use super::kept::{Kept, Needs, Shared};
use crate::account::Charge;
use crate::items::row_memory::{Changed, Moment};
use crate::items::rows::RowSet;
use crate::items::spec::Propagation;
use std::collections::VecDeque;
use std::ops::Range;

/// A fetch that a subscriber waits for.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) ticket: u64,
    pub(super) version: u64,
    pub(super) slots: Vec<u32>,
    /// Slots before this one have the version.
    pub(super) fresh: usize,
    /// The ticket by which the partition's own source was asked, and whether it has answered.
    pub(super) relayed: Option<u64>,
    pub(super) answered: bool,
    /// Bytes that the source's being asked takes.
    pub(super) relay_bytes: u64,
    /// The turn in which it came: flushes that came before it do not wait for it.
    pub(super) turn: u64,
    pub(super) _kept: Kept,
}

/// A peer that is sent rows of a partition.
#[derive(Debug)]
pub(super) struct Subscriber {
    pub(super) rows: RowSet,
    pub(super) propagation: Propagation,
    /// Repeated with every batch.
    pub(super) serial: u64,
    /// Whether a batch was made since it subscribed.
    pub(super) begun: bool,
    /// Whether all of its rows are known here.
    pub(super) ready: bool,
    /// Eager: its rows are as after this set, and it knows this floor.
    pub(super) done: u64,
    pub(super) floor: u64,
    /// Rows that may have changed; or `all`, which stays until a moment after the last set of those that were not listed:
    /// `until`, the low half of its number.
    pub(super) changed: Vec<Changed>,
    pub(super) all: bool,
    pub(super) until: Option<u32>,
    /// Whether there may be something to send.
    pub(super) dirty: bool,
    /// Bounded: version and number that it was sent, by place.
    pub(super) have: Vec<(u64, u64)>,
    /// Bounded: versions needed by those behind it, ascending.
    pub(super) needs: Needs,
    pub(super) fetches: VecDeque<Pending>,
    /// Whether all rows are to be sent, whatever the propagation: their producer leaves.
    pub(super) handing_over: bool,
    /// For its rows.
    pub(super) kept: Shared,
    /// For which of them have changed, and what it has of each.
    pub(super) _noted: Charge,
}

impl Subscriber {
    /// Whether a flush that is about it has to wait: for rows, or for the answers to what it has fetched, as far as they can be given.
    pub(super) fn is_due(&self) -> bool {
        match self.propagation {
            Propagation::Eager => self.dirty,
            _ => self.dirty && self.handing_over || !self.fetches.is_empty(),
        }
    }

    /// Rows have changed.
    pub(super) fn note(&mut self, changed: &[Changed]) {
        let Some(last) = changed.last() else { return };
        if self.until.is_some() || self.changed.len() + changed.len() > self.rows.len() as usize + 1024 {
            self.note_all(changed.iter().fold(last.set, |newest, other| later(newest, other.set)));
        } else {
            self.changed.extend_from_slice(changed);
        }
    }

    /// Any row may have changed, by sets up to `until`.
    pub(super) fn note_all(&mut self, until: u32) {
        let listed = self.changed.iter().map(|changed| changed.set).chain(self.until);
        self.until = Some(listed.fold(until, later));
        (self.all, self.changed) = (true, Vec::new());
    }
}

/// The later of two sets, by the low halves of their numbers.
fn later(set: u32, other: u32) -> u32 {
    if follows(other, set) { other } else { set }
}

/// Whether a set comes after another, by the low halves of their numbers.
pub(super) fn follows(set: u32, other: u32) -> bool {
    set.wrapping_sub(other) as i32 > 0
}

/// Rows that have changed, as slots, ascending, apart from those whose set is not finished at `now`, which are kept.
pub(super) fn candidates(subscriber: &mut Subscriber, now: Moment) -> Vec<Range<u32>> {
    let subscribed = |range: &Range<u64>| range.start as u32..range.end as u32;
    if subscriber.all {
        // Any row of a set that is not finished may have been among those that were not listed.
        subscriber.until = subscriber.until.filter(|&until| follows(until, now.done as u32));
        subscriber.all = subscriber.until.is_some();
        return subscriber.rows.ranges().iter().map(subscribed).collect();
    }
    let (later, ripe): (Vec<_>, Vec<_>) = std::mem::take(&mut subscriber.changed)
        .into_iter()
        .partition(|changed| follows(changed.set, now.done as u32));
    subscriber.changed = later;
    let slots = ripe
        .into_iter()
        .map(|changed| changed.first.into()..u64::from(changed.first) + u64::from(changed.count));
    let slots = RowSet::from_ranges(slots).intersection(&subscriber.rows);
    slots.ranges().iter().map(subscribed).collect()
}

/// All slots of some ranges, ascending.
pub(super) fn merged(ranges: Vec<Range<u32>>) -> Vec<Range<u32>> {
    let ranges = ranges.into_iter().map(|range| range.start.into()..range.end.into());
    let all = RowSet::from_ranges(ranges);
    all.ranges().iter().map(|range| range.start as u32..range.end as u32).collect()
}
