//! A peer that is sent rows of a partition: what it has, what may have changed since, and what it waits for.

use super::kept::{ENTRY_BYTES, Kept, Needs, Shared, fetch_bytes};
use super::taken::Taking;
use super::work::Work;
use crate::account::Charge;
use crate::items::FINAL;
use crate::items::row_memory::{Changed, Look, Memory, Moment, Torn};
use crate::items::rows::RowSet;
use crate::items::spec::Propagation;
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

/// Rows of a fetch that take as long to write down, and to free, as a look at one.
const UNFOLDED: u64 = 16;

/// A fetch that a subscriber waits for.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) ticket: u64,
    version: u64,
    /// What it names, until it is first looked at: a few bytes may name any number of rows.
    places: Option<RowSet>,
    pub(super) slots: Vec<u32>,
    /// Slots before this one have the version.
    fresh: usize,
    /// Slots before this one have a version that is their last.
    last: usize,
    pub(super) together: Together,
    /// A slot that was torn when all were to be taken: most likely it still is.
    pub(super) torn: Option<u32>,
    /// The ticket by which the partition's own source was asked, and whether it has answered.
    pub(super) relayed: Option<u64>,
    pub(super) answered: bool,
    /// Bytes that the source's being asked takes.
    relay_bytes: u64,
    /// The turn in which it came: flushes that came before it do not wait for it.
    pub(super) turn: u64,
    /// Whether no answer will ever come.
    pub(super) is_over: bool,
    kept: Kept,
}

/// Whether the rows of a fetch were current together, as far as they have been looked at.
#[derive(Debug, Default)]
pub(super) struct Together {
    /// Slots before this one have been looked at.
    looked: usize,
    /// The slot with the newest set among them, and the number of that; the one that was current least long, and until which set.
    newest: Option<(u32, u64)>,
    oldest: Option<(u32, u64)>,
}

impl Together {
    /// How many have been looked at.
    pub(super) fn looked(&self) -> usize {
        self.looked
    }

    pub(super) fn take(&mut self, slot: u32, look: &Look) {
        self.looked += 1;
        if self.newest.is_none_or(|(_, number)| look.number > number) {
            self.newest = Some((slot, look.number));
        }
        if self.oldest.is_none_or(|(_, as_of)| look.as_of < as_of) {
            self.oldest = Some((slot, look.as_of));
        }
    }

    /// Whether one of them was not current any more when another was set, as they were looked at.
    pub(super) fn are_apart(&self) -> bool {
        let (Some((_, newest)), Some((_, oldest))) = (self.newest, self.oldest) else { return false };
        newest > oldest
    }

    /// The same of the two that showed it, as they are now.
    fn still_are<M: Memory>(&self, memory: &M, now: Moment, work: &mut Work) -> bool {
        let (Some((newest, _)), Some((oldest, _))) = (self.newest, self.oldest) else { return false };
        work.look(2);
        match (memory.look(newest, now), memory.look(oldest, now)) {
            (Ok(newest), Ok(oldest)) => newest.number > oldest.as_of,
            _ => false,
        }
    }
}

/// Whether a fetch can be answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answerable {
    /// Most likely. Whether its rows were current together is known when they have been taken.
    Yes,
    NotYet,
    /// Its rows were not current together.
    Apart,
    /// Nor ever: their producer has gone.
    Never,
    /// Not all has been looked at in this step.
    Unfinished,
}

impl Pending {
    /// Bytes of what is kept for one: here each row takes memory. Until it is first looked at it may take more, if it is scattered.
    pub(super) fn bytes(places: &RowSet, is_looked_at: bool) -> u64 {
        let slots = places.len() * size_of::<u32>() as u64;
        ENTRY_BYTES + if is_looked_at { slots } else { slots.max(places.kept_bytes()) }
    }

    /// It came in this `turn`.
    pub(super) fn new(ticket: u64, version: u64, places: RowSet, turn: u64, kept: Kept) -> Self {
        Self {
            ticket,
            version,
            places: Some(places),
            slots: Vec::new(),
            fresh: 0,
            last: 0,
            together: Together::default(),
            torn: None,
            relayed: None,
            answered: false,
            relay_bytes: 0,
            turn,
            is_over: false,
            kept,
        }
    }

    /// What its source is to be asked for, once it has been looked at: the version, slots, ascending, and what being asked takes.
    pub(super) fn asks_for(&self) -> (u64, &[u32], u64) {
        debug_assert!(
            self.places.is_none(),
            "it is relayed where a look has shown that it cannot be answered"
        );
        (self.version, &self.slots, self.relay_bytes)
    }

    /// Its slots are known from now on, of a subscriber that wants `rows`.
    pub(super) fn unfold(&mut self, rows: &RowSet, work: &mut Work) {
        let Some(places) = self.places.take() else { return };
        work.look(1 + places.ranges().len() as u64 + places.len() / UNFOLDED);
        let mut slots = Vec::with_capacity(places.len() as usize);
        // Range by range: a search for each row would take many times as long.
        for range in places.ranges().iter().flat_map(|places| rows.at(places.clone())) {
            slots.extend(range.start as u32..range.end as u32);
        }
        self.kept[0].shrink_to(Self::bytes(&places, true));
        (self.relay_bytes, self.slots) = (fetch_bytes(&slots), slots);
    }

    /// Its rows were not current together, also if the source has been asked: then that is asked once more.
    pub(super) fn ask_again(&mut self) {
        if std::mem::take(&mut self.answered) {
            self.relayed = None;
        }
    }

    /// Looks whether it can be answered, without a look at any value. `here`: its rows are written on this host, or by nobody. With
    /// `ended` their producer has gone: what is too old stays so, and what was never current together. A peer that asks for such rows
    /// learns that from the processes that know which workers have gone.
    pub(super) fn look<M: Memory>(
        &mut self,
        memory: &M,
        rows: &RowSet,
        here: bool,
        ended: bool,
        work: &mut Work,
    ) -> Answerable {
        self.unfold(rows, work);
        let found = match self.judge(memory, here, ended, work) {
            Answerable::Apart if ended => Answerable::Never,
            found => found,
        };
        if found == Answerable::Never {
            self.is_over = true;
            work.look(self.slots.len() as u64 / UNFOLDED);
        }
        found
    }

    fn judge<M: Memory>(&mut self, memory: &M, here: bool, ended: bool, work: &mut Work) -> Answerable {
        let now = memory.now();
        if let Some(slot) = self.torn {
            work.look(1);
            if memory.look(slot, now).is_err() {
                return Answerable::NotYet;
            }
            self.torn = None;
        }
        let were_looked_at = self.together.looked == self.slots.len();
        // As of this moment, where the first round below goes over all of them: then no other has to. What was seen in earlier moments
        // would not do: it may be over, while others of the rows have come to be apart.
        let mut seen = Together::default();
        // Versions do not fall: where one was missing, it is looked at again.
        for (at, version) in [(&mut self.fresh, self.version), (&mut self.last, FINAL)] {
            // Rows that come from a peer one by one may never have been current together: then they are fetched together.
            if version == FINAL && (here || self.version > 0 || self.answered) {
                continue;
            }
            while let Some(&slot) = self.slots.get(*at) {
                if work.is_over() {
                    return Answerable::Unfinished;
                }
                work.look(1);
                match memory.look(slot, now) {
                    Ok(look) if look.clock >= version => {
                        if seen.looked == *at {
                            seen.take(slot, &look);
                        }
                        *at += 1;
                    }
                    Ok(_) if ended => return Answerable::Never,
                    Ok(_) | Err(Torn) => return Answerable::NotYet,
                }
            }
        }
        let together = &mut self.together;
        if were_looked_at {
            // As long as the two are, it does not matter what has become of the others.
            if together.still_are(memory, now, work) {
                return Answerable::Apart;
            }
            *together = Together::default();
        } else if seen.looked == self.slots.len() {
            *together = seen;
        }
        while let Some(&slot) = self.slots.get(together.looked) {
            if work.is_over() {
                return Answerable::Unfinished;
            }
            work.look(1);
            match memory.look(slot, now) {
                Ok(look) => together.take(slot, &look),
                // From a later moment it may be seen.
                Err(Torn) => together.looked += 1,
            }
        }
        if together.still_are(memory, now, work) { Answerable::Apart } else { Answerable::Yes }
    }
}

/// How far a peer's fetches have been looked at in steps before this one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pass {
    pub(super) next: usize,
    /// The turn in which the first was.
    pub(super) turn: u64,
    /// The moment before that, unless something has come since.
    pub(super) since: Option<Moment>,
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
    /// Rows that may have changed, or `all` of them.
    pub(super) changed: VecDeque<Changed>,
    pub(super) all: bool,
    /// Some that were not listed may have been of sets that are not finished: the last of these, by the low half of its number. Once
    /// it is finished, all may have changed.
    pub(super) until: Option<u32>,
    /// Those of `changed` whose sets were found not to be finished.
    pub(super) unripe: Unripe,
    /// Bounded: slots that were torn. Eager: the one for which no batch could be taken. As long as they are, nothing can be done
    /// about them.
    pub(super) torn: BTreeSet<u32>,
    /// The one of them from which on they are looked at next.
    pub(super) torn_next: u32,
    /// Whether there may be something to send.
    pub(super) dirty: bool,
    /// Bounded: version and number that it was sent, by place.
    pub(super) have: Vec<(u64, u64)>,
    /// Bounded: versions needed by those behind it, ascending.
    pub(super) needs: Needs,
    pub(super) fetches: VecDeque<Pending>,
    /// Of these, those that will never be answered and are still among them.
    pub(super) over: usize,
    /// Where not all of them were looked at.
    pub(super) pass: Option<Pass>,
    /// The moment from which on none of them could be answered, as long as nothing else has come: where it takes more than a step to
    /// find that out, it is not done again before.
    pub(super) unanswerable: Option<Moment>,
    /// Bounded: places of rows that are still to be looked at, since any of them may have to be sent.
    pub(super) unseen: Range<u64>,
    /// Eager: the batch that is being taken, where that takes more than a step.
    pub(super) taking: Option<Box<Taking>>,
    /// Whether what is due to it cannot be taken before the batch of another partition that is being taken for the peer is through:
    /// that takes more than a step, or the two cannot be paid at once.
    pub(super) behind: bool,
    /// Whether all rows are to be sent, whatever the propagation: their producer leaves.
    pub(super) handing_over: bool,
    /// For its rows.
    pub(super) kept: Shared,
    /// For which of them have changed, and what it has of each.
    pub(super) _noted: Charge,
}

impl Subscriber {
    /// Whether a look may find something to send.
    pub(super) fn has_work(&self) -> bool {
        self.dirty && self.ready || !self.fetches.is_empty()
    }

    /// Whether a flush that is about it has to wait: for rows, or for the answers to what it has fetched, as far as they can be given.
    pub(super) fn is_due(&self) -> bool {
        match self.propagation {
            Propagation::Eager => self.dirty,
            _ => self.dirty && self.handing_over || !self.fetches.is_empty(),
        }
    }

    /// It is looked at once more behind its last answer: then it is known that none is left before a flush.
    pub(super) fn look_once_more(&mut self) {
        self.dirty |= !self.fetches.is_empty();
    }

    /// Rows have changed.
    pub(super) fn note(&mut self, changed: &[Changed]) {
        let Some(last) = changed.last() else { return };
        self.news();
        let most = self.rows.len() as usize + 1024;
        let taken = self.taking.as_ref().map_or(0, |taking| taking.changed.len());
        let many = self.changed.len() + self.unripe.changed.len() + taken + changed.len() > most;
        if many || self.all && self.until.is_some() {
            self.note_all(changed.iter().fold(last.set, |newest, other| later(newest, other.set)));
        } else {
            self.changed.extend(changed);
        }
    }

    /// Any row may have changed, by sets up to `until`.
    pub(super) fn note_all(&mut self, until: u32) {
        let unripe = std::mem::take(&mut self.unripe);
        let listed = self.changed.iter().chain(&unripe.changed).map(|changed| changed.set).chain(self.until);
        self.until = Some(listed.fold(until, later));
        (self.all, self.changed) = (true, VecDeque::new());
        self.news();
    }

    /// Something has come, for which what it has fetched may have waited.
    pub(super) fn news(&mut self) {
        self.unanswerable = None;
        if let Some(pass) = &mut self.pass {
            pass.since = None;
        }
    }

    /// A batch is not taken after all: which rows are due is found out once more.
    pub(super) fn give_up(&mut self, mut taking: Box<Taking>) {
        self.changed.append(&mut taking.changed);
        let most = self.rows.len() as usize + 1024;
        match taking.slots(&self.rows, most.saturating_sub(self.changed.len() + self.unripe.changed.len())) {
            Some(slots) if !self.all => {
                let set = taking.now.done as u32;
                let changed =
                    |slots: Range<u32>| Changed { first: slots.start, count: slots.end - slots.start, set };
                self.changed.extend(slots.into_iter().map(changed));
            }
            _ => self.all = true,
        }
    }

    /// Changes that `taking` is to have if it is a batch of this moment. None of an earlier moment is taken any more.
    pub(super) fn due(&mut self, taking: &mut Taking, now: Moment, turn: u64) {
        self.ripen(now, taking.now.done);
        let all = std::mem::take(&mut self.all);
        if all {
            self.changed.retain(|changed| follows(changed.set, now.done as u32));
        } else {
            taking.changed.append(&mut self.changed);
        }
        taking.move_to(now, turn, all, &self.rows);
    }

    /// Some of the slots that were torn, in turns, about `most`.
    pub(super) fn some_torn(&mut self, most: u64) -> Vec<u32> {
        if self.torn.is_empty() {
            return Vec::new();
        }
        let next = self.torn_next;
        let some = self.torn.range(next..).chain(self.torn.range(..next)).take(most as usize);
        let some: Vec<u32> = some.copied().collect();
        self.torn_next = some.last().map_or(0, |last| last + 1);
        some
    }

    /// Rows of sets that have been finished may have changed. Those of sets up to `looked` have been looked for.
    pub(super) fn ripen(&mut self, now: Moment, looked: u64) {
        let is_ripe = |set: u32| !follows(set, now.done as u32);
        let eager = self.propagation == Propagation::Eager;
        if self.until.take_if(|until| is_ripe(*until)).is_some() {
            self.all = true;
        } else if self.until.is_some() && eager && now.done > looked {
            // Some of those that were not listed may be of sets that have been finished since, before the last of them. A batch of
            // this moment has them, or nobody looks for them again.
            self.all = true;
        }
        if self.unripe.first.is_some_and(is_ripe) {
            self.changed.append(&mut std::mem::take(&mut self.unripe).changed);
        }
    }

    /// No set is finished any more. What waits for one, or is being taken, may be many rows, of sets that were finished
    /// too: all are looked at, in steps.
    pub(super) fn end(&mut self) {
        (self.pass, self.unanswerable) = (None, None);
        let Unripe { first, .. } = std::mem::take(&mut self.unripe);
        let (until, taking) = (self.until.take(), self.taking.take());
        if first.is_some() || until.is_some() || taking.is_some() {
            (self.all, self.changed) = (true, VecDeque::new());
            self.dirty = true;
        }
    }

    /// Where a fetch stands among its own. Their tickets ascend: a peer whose do not does without.
    pub(super) fn place_of(&self, ticket: u64) -> Option<usize> {
        self.fetches.binary_search_by_key(&ticket, |pending| pending.ticket).ok()
    }

    /// That fetch.
    pub(super) fn fetched_by(&mut self, ticket: u64) -> Option<&mut Pending> {
        let at = self.place_of(ticket)?;
        self.fetches.get_mut(at)
    }

    /// Fetches that will never be answered are kept no more. Those behind others that are kept go together, unless `all` do at once:
    /// for each of them all behind it would be moved.
    pub(super) fn drop_what_is_over(&mut self, all: bool) {
        let gone = self.fetches.iter().take_while(|pending| pending.is_over).count();
        self.fetches.drain(..gone);
        self.over -= gone;
        let mut next = self.pass.map_or(0, |pass| pass.next.saturating_sub(gone));
        if self.over > 0 && (all || 2 * self.over > self.fetches.len()) {
            next -= self.fetches.range(..next).filter(|pending| pending.is_over).count();
            self.fetches.retain(|pending| !pending.is_over);
            self.over = 0;
        }
        if let Some(pass) = &mut self.pass {
            pass.next = next;
        }
    }

    /// Whether there is something that waits for its producer to go on.
    pub(super) fn waits(&self) -> bool {
        self.until.is_some() || self.unripe.first.is_some() || !self.torn.is_empty()
    }
}

/// Rows that have changed, by sets that are not finished.
#[derive(Debug, Default)]
pub(super) struct Unripe {
    changed: VecDeque<Changed>,
    /// The first of these sets.
    first: Option<u32>,
}

impl Unripe {
    fn push(&mut self, changed: Changed) {
        let first = self.first.filter(|&first| !follows(first, changed.set));
        self.first = Some(first.unwrap_or(changed.set));
        self.changed.push_back(changed);
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

/// Some of the rows that may have changed, as slots, ascending: about `most`. Those that are left stay for later.
pub(super) fn some_candidates(subscriber: &mut Subscriber, now: Moment, most: u64) -> Vec<Range<u32>> {
    let most = most.max(1);
    if subscriber.unseen.is_empty() && std::mem::take(&mut subscriber.all) {
        subscriber.unseen = 0..subscriber.rows.len();
        subscriber.torn.clear();
    }
    let unseen = &mut subscriber.unseen;
    if !unseen.is_empty() {
        let places = unseen.start..unseen.end.min(unseen.start.saturating_add(most));
        unseen.start = places.end;
        return subscriber.rows.at(places).map(|range| subscribed(&range)).collect();
    }
    let some = subscriber.changed.len().min(most as usize);
    let some: Vec<Changed> = subscriber.changed.drain(..some).collect();
    let slots = ripe(subscriber, some, now);
    if subscriber.changed.is_empty() {
        subscriber.changed = VecDeque::new();
    }
    slots
}

/// Of some that have changed those whose set is finished, as slots, ascending. The others are kept.
pub(super) fn ripe(
    subscriber: &mut Subscriber,
    changed: impl IntoIterator<Item = Changed>,
    now: Moment,
) -> Vec<Range<u32>> {
    let Subscriber { rows, unripe, .. } = subscriber;
    let ripe = changed.into_iter().filter(|changed| {
        let is_later = follows(changed.set, now.done as u32);
        if is_later {
            unripe.push(*changed);
        }
        !is_later
    });
    slots_among(rows, ripe)
}

/// Those of `rows` that have changed, as slots, ascending and apart.
fn slots_among(rows: &RowSet, changed: impl Iterator<Item = Changed>) -> Vec<Range<u32>> {
    let (mut slots, mut ascend): (Vec<Range<u32>>, _) = (Vec::new(), true);
    for Changed { first, count, .. } in changed {
        let end = first.saturating_add(count);
        match slots.last_mut() {
            Some(last) if first < last.start => ascend = false,
            Some(last) if first <= last.end => {
                last.end = last.end.max(end);
                continue;
            }
            _ => {}
        }
        slots.push(first..end);
    }
    // What one set wrote, most times, of a peer that wants all of it: that takes no set of rows.
    if let ([all], true) = (rows.ranges(), ascend) {
        for slots in &mut slots {
            let within = u64::from(slots.start).max(all.start)..u64::from(slots.end).min(all.end);
            *slots = subscribed(&within);
        }
        slots.retain(|slots| !slots.is_empty());
        return slots;
    }
    let slots = slots.into_iter().map(|slots| slots.start.into()..slots.end.into());
    RowSet::from_ranges(slots).intersection(rows).ranges().iter().map(subscribed).collect()
}

/// A range of slots.
pub(super) fn subscribed(range: &Range<u64>) -> Range<u32> {
    range.start as u32..range.end as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_slots_of_what_has_changed_are_those_of_the_sets_of_rows(
            wanted in vec((0u32..60, 1u32..30), 0..4),
            changed in vec((0u32..90, 1u32..20), 0..8),
            sorted in any::<bool>(),
        ) {
            let rows = |ranges: &[(u32, u32)]| {
                RowSet::from_ranges(ranges.iter().map(|&(first, count)| first.into()..u64::from(first + count)))
            };
            let mut changed = changed;
            if sorted {
                changed.sort_unstable();
            }
            let changes = changed.iter().map(|&(first, count)| Changed { first, count, set: 1 });
            let slots = slots_among(&rows(&wanted), changes);
            let expected = rows(&changed).intersection(&rows(&wanted));
            prop_assert!(slots.windows(2).all(|two| two[0].end < two[1].start), "{slots:?}");
            prop_assert_eq!(slots.iter().map(subscribed_by).collect::<Vec<_>>(), expected.ranges());
        }
    }

    fn subscribed_by(slots: &Range<u32>) -> Range<u64> {
        slots.start.into()..slots.end.into()
    }
}
