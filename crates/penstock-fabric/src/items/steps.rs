//! The steps of a partition's writer, in the order on which the promises to readers rest (I-1 to I-3, N-1). That order is
//! written here and nowhere else: the program takes these steps over mapped memory ([`Writer`](super::partition::Writer)), the
//! models over their own.

use super::slot::{Buffers, Progress, RowGroup, Slot, Spot, UNFINISHED, age, newest, target};
use super::written::Written;
use crate::sync::{Ordering, OwnedU64};

/// In an entry of the change log: all rows of the row group whose number follows.
pub(super) const WHOLE_GROUP: u32 = 1 << 31;

/// Where the words of a partition lie.
pub(super) trait Words {
    fn progress(&self) -> &Progress;
    /// Entries of the change log.
    fn entries(&self) -> u64;
    /// Entry `at` of all that ever were, or what has taken its place since.
    fn entry(&self, at: u64) -> &OwnedU64;
    fn slots(&self) -> u32;
    fn head(&self, slot: u32) -> &Slot;
    fn row_groups(&self) -> u32;
    fn row_group(&self, row_group: u32) -> &RowGroup;
    /// The row group that a slot's row is in.
    fn row_group_of(&self, slot: u32) -> Option<&RowGroup>;
}

/// The one writer of a partition.
#[derive(Debug)]
pub(super) struct Steps<W> {
    words: W,
    done: u64,
    logged: u64,
    open: Option<Open>,
    /// What the open set has written whose entries in the change log it has written over.
    unlisted: Option<Written>,
}

/// A set under way.
#[derive(Debug, Clone, Copy)]
struct Open {
    number: u64,
    /// Entries of the change log that are about it, and that it has announced.
    logged: u64,
    begun: u64,
}

impl<W: Words> Steps<W> {
    /// Goes on where the writer before has stopped. If that was inside a set, no follower may look on: it would not hear that
    /// entries which it has not read have been written over.
    pub(super) fn over(words: W) -> Self {
        let (done, logged) = (words.progress().done(), words.progress().logged());
        Self { words, done, logged, open: None, unlisted: None }
    }

    #[inline]
    pub(super) fn words(&self) -> &W {
        &self.words
    }

    /// Sets that are finished.
    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// Whether no row was ever written here, not even in a set that was not finished.
    #[cfg(not(loom))]
    pub(super) fn is_untouched(&self) -> bool {
        self.done == 0 && self.logged == 0 && self.words.progress().begun.own() == 0
    }

    /// Number of the open set.
    #[cfg(not(loom))]
    #[inline]
    pub(super) fn number(&self) -> Option<u64> {
        self.open.map(|open| open.number)
    }

    /// Whether a set is open that has written nothing.
    #[cfg(not(loom))]
    #[inline]
    pub(super) fn is_fresh(&self) -> bool {
        self.open.is_some_and(|open| open.logged == 0)
    }

    /// Where a row's newest value stands, and its number.
    #[inline]
    pub(super) fn newest(&self, slot: u32) -> (Spot, u64) {
        let newest_of = |buffers: &Buffers| {
            let numbers = buffers.numbers();
            let newest = newest(numbers);
            (newest, numbers[newest])
        };
        let (buffer, number) = newest_of(&self.words.head(slot).buffers);
        match self.words.row_group_of(slot).map(|row_group| newest_of(&row_group.buffers)) {
            Some((other, later)) if age(later) > age(number) => (Spot::RowGroup(other), later),
            _ => (Spot::Slot(buffer), number),
        }
    }

    /// Number and clock of a row's newest value.
    #[inline]
    pub(super) fn peek(&self, slot: u32) -> (u64, u64) {
        let (spot, number) = self.newest(slot);
        let clock = match spot {
            Spot::Slot(buffer) => self.words.head(slot).buffers.clock(buffer),
            Spot::RowGroup(buffer) => {
                self.words.row_group_of(slot).map_or(0, |row_group| row_group.buffers.clock(buffer))
            }
        };
        (number, clock)
    }

    /// Begins set `number`, of `rows` rows. What was open is dropped.
    #[inline]
    pub(super) fn open(&mut self, number: u64, rows: usize) {
        self.abort();
        if rows > 1 {
            self.words.progress().begin_several(number);
        }
        self.words.progress().begin_log(self.logged + rows as u64);
        self.open = Some(Open { number, logged: 0, begun: rows as u64 });
    }

    /// In the open set, writes a row as set `number` has it: `fill` is given the slot's buffer to be filled, and
    /// where the row stands now.
    #[inline]
    pub(super) fn put(&mut self, slot: u32, number: u64, clock: u64, fill: impl FnOnce(&W, usize, Spot)) {
        self.write(slot, number, clock, fill);
        self.log(slot);
    }

    /// The same for all rows of a row group. None of them was written by itself in this set.
    #[inline(always)]
    pub(super) fn put_row_group(
        &mut self,
        row_group: u32,
        number: u64,
        clock: u64,
        fill: impl FnOnce(&W, usize),
    ) {
        let buffers = &self.words.row_group(row_group).buffers;
        let to = target(buffers.numbers(), number);
        buffers.begin(to);
        fill(&self.words, to);
        buffers.finish(to, number, clock);
        self.log(row_group | WHOLE_GROUP);
    }

    /// All rows of the open set are written: they are seen from now on.
    #[inline]
    pub(super) fn finish(&mut self) {
        let Some(open) = self.open.take() else { return };
        self.unlisted = None;
        self.finish_log(open);
        self.done = open.number;
        self.words.progress().finish(open.number);
    }

    /// The open set is dropped: no number of it stays behind, since the next may have the same.
    #[inline]
    pub(super) fn abort(&mut self) {
        if let Some(open) = self.open.take() {
            self.drop_set(open);
        }
    }

    /// Looks at what the set has put and at nothing else: whoever sends rows may begin sets and not end them.
    #[cold]
    fn drop_set(&mut self, open: Open) {
        let slots = self.words.slots() as usize;
        for place in self.unlisted.take().into_iter().flat_map(Written::into_places) {
            match place.checked_sub(slots) {
                Some(row_group) => self.undo(&self.words.row_group(row_group as u32).buffers),
                None => self.undo(&self.words.head(place as u32).buffers),
            }
        }
        let end = self.logged + open.logged;
        for at in end - open.logged.min(self.words.entries())..end {
            let entry = self.words.entry(at);
            let place = entry.own() as u32;
            if place & WHOLE_GROUP != 0 {
                self.undo(&self.words.row_group(place & !WHOLE_GROUP).buffers);
            } else {
                self.undo(&self.words.head(place).buffers);
            }
            // What was logged is heard of by followers, to which it must say nothing new: no set of that number may ever be
            // finished.
            entry.store(u64::from(place) | self.done << 32, Ordering::Relaxed);
        }
        self.finish_log(open);
    }

    /// No number of a set that is not finished stays in these.
    fn undo(&self, buffers: &Buffers) {
        for (buffer, number) in buffers.numbers().into_iter().enumerate() {
            if number > self.done && number != UNFINISHED {
                buffers.begin(buffer);
            }
        }
    }

    #[inline]
    fn finish_log(&mut self, open: Open) {
        self.logged += open.logged;
        self.words.progress().finish_log(self.logged);
        // Entries that were announced and did not come would bring the writer round before its time.
        if open.begun > open.logged {
            self.words.progress().end_log(self.logged);
        }
    }

    /// A row of a mirror whose rows come one by one, each with a limit of its own: set `number` of the origin wrote it, and after
    /// set `as_of` it was still the newest, of version `clock`. Without `fill` the number is the one that it has.
    #[inline]
    pub(super) fn refresh(
        &mut self,
        slot: u32,
        number: u64,
        clock: u64,
        as_of: u64,
        fill: Option<impl FnOnce(&W, usize, Spot)>,
    ) {
        let numbers = self.words.head(slot).buffers.numbers();
        if let Some(fill) = fill
            && number > numbers[newest(numbers)]
        {
            self.write(slot, number, clock, fill);
        }
        let (newest_number, known) = self.peek(slot);
        if newest_number == number {
            let head = self.words.head(slot);
            head.confirm(newest(head.buffers.numbers()), clock.max(known), as_of.max(head.as_of()));
        }
    }

    /// The producer has completed `floor` iterations. Nothing falls when a thread comes late with fewer: one thread of the
    /// producer may have read its clock before another completed an iteration, or left.
    #[inline]
    pub(super) fn raise(&self, floor: u64) {
        if floor > self.words.progress().raised() {
            self.words.progress().raise(floor);
        }
    }

    #[inline]
    fn write(&mut self, slot: u32, number: u64, clock: u64, fill: impl FnOnce(&W, usize, Spot)) {
        let buffers = &self.words.head(slot).buffers;
        let to = target(buffers.numbers(), number);
        let (from, _) = self.newest(slot);
        if let Some(row_group) = self.words.row_group_of(slot) {
            row_group.part(number);
        }
        buffers.begin(to);
        fill(&self.words, to, from);
        buffers.finish(to, number, clock);
    }

    /// Notes in the change log that a row was written, or a whole row group.
    #[inline(always)]
    fn log(&mut self, place: u32) {
        let Some(open) = &mut self.open else { return };
        if open.logged == open.begun {
            // Few announcements, and none of so many that a follower near by is behind at once.
            open.begun += (self.words.entries() / 8).max(1);
            self.words.progress().begin_log(self.logged + open.begun);
        }
        let entry = self.words.entry(self.logged + open.logged);
        if open.logged >= self.words.entries() {
            note(&mut self.unlisted, &self.words, entry.own() as u32);
        }
        entry.store(u64::from(place) | open.number << 32, Ordering::Relaxed);
        open.logged += 1;
    }
}

/// Places of a partition: its slots, then its row groups.
pub(super) fn places(slots: u32, row_groups: u32) -> usize {
    slots as usize + row_groups as usize
}

/// Notes a place whose entry in the change log is about to be written over.
#[inline(never)]
fn note(unlisted: &mut Option<Written>, words: &impl Words, place: u32) {
    let (slots, row_groups) = (words.slots(), words.row_groups());
    let number = if place & WHOLE_GROUP != 0 {
        slots as usize + (place & !WHOLE_GROUP) as usize
    } else {
        place as usize
    };
    unlisted.get_or_insert_with(|| Written::of(places(slots, row_groups))).note(number);
}
