//! Rows that were taken of memory as they were at one moment, and are on their way to a peer.

use super::piece::{ENTRY_BYTES, PIECE_BYTES, PIECE_ROWS, Piece, Sent, Stretches};
use super::spares::Spares;
use super::work::Work;
use crate::account::{Account, Charge, Exhausted, Resource};
use crate::items::row_memory::{Changed, Look, Memory, Moment, Torn};
use crate::items::rows::RowSet;
use crate::items::wire::{BATCH_BYTES, Encoder, Head, PartitionId};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// Most bytes of rows that are sent as one entry.
const RUN_BYTES: usize = 64 * 1024;

/// Bytes that are moved in the time of a look at a row.
const MOVED: u64 = 1024;

/// Ranges of rows that were torn, at most: where there are more, all rows are looked at.
const TORN: usize = 4096;

/// Moments of a batch that others wait for, at most. Where one is found, it is by then: each round is as long as what has changed
/// during the one before.
const ROUNDS: u32 = 16;

/// Bytes that are charged at once for rows of a batch.
const STEP_BYTES: usize = 256 * 1024;

/// Rows on their way to a peer.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) partition: PartitionId,
    pub(super) head: Head,
    /// The turn in which all that was due was taken. For a batch that answers a fetch, the turn in which the fetch came, since
    /// earlier fetches are answered first.
    pub(super) turn: u64,
    /// Those that are sent, or are being taken. Their values stand in `values` one after the other.
    pub(super) rows: Vec<Sent>,
    pub(super) values: Vec<u8>,
    pub(super) next: usize,
    pub(super) value: usize,
    pub(super) row_bytes: usize,
    /// Or else the pieces that have them, and the bytes that these take.
    pieces: BTreeMap<u32, Piece>,
    kept: usize,
    /// Of values and rows: charged before they are taken.
    charge: Charge,
}

impl Batch {
    /// For so many rows, most likely, charged to `account` as they are taken.
    pub(super) fn new(
        partition: PartitionId,
        row_bytes: usize,
        rows: usize,
        account: &Account,
    ) -> Result<Self, Exhausted> {
        let (head, charge) = (Head::default(), account.charge(Resource::Bytes, 0)?);
        let room = (rows * row_bytes).min(STEP_BYTES);
        let (values, next, value) = (Vec::with_capacity(room), 0, 0);
        let rows = Vec::with_capacity(rows.min(STEP_BYTES / size_of::<Sent>()));
        let pieces = BTreeMap::new();
        Ok(Self { partition, head, turn: 0, rows, values, next, value, row_bytes, pieces, kept: 0, charge })
    }

    /// Bytes that it takes.
    fn kept_bytes(&self) -> usize {
        self.kept + self.values.len() + self.rows.len() * size_of::<Sent>()
    }

    /// Whether it has no row.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.pieces.is_empty()
    }

    /// Makes room for the values of `rows` more rows, if it is paid for. Returns where it begins.
    pub(super) fn room(&mut self, rows: u32) -> Result<usize, Exhausted> {
        let start = self.values.len();
        let bytes = rows as usize * self.row_bytes;
        let needed = (self.kept_bytes() + bytes + size_of::<Sent>()) as u64;
        if let Some(more) = needed.checked_sub(self.charge.amount()).filter(|&more| more > 0) {
            // What is left may be enough where a whole step is not there.
            self.charge.grow(more.max(STEP_BYTES as u64)).or_else(|_| self.charge.grow(more))?;
        }
        self.values.resize(start + bytes, 0);
        Ok(start)
    }

    /// Makes room for the rows of one piece, if there is none.
    fn make_room(&mut self, spares: &mut Spares) {
        if self.values.capacity() == 0 && self.row_bytes < PIECE_BYTES {
            Piece { rows: self.rows, values: self.values } = spares.take();
        }
    }

    /// All rows are in pieces: what they were taken into is not needed any more.
    pub(super) fn rest(&mut self, spares: &mut Spares) {
        let (rows, values) = (std::mem::take(&mut self.rows), std::mem::take(&mut self.values));
        spares.give(Piece { rows, values });
    }

    /// All of it is taken: what was charged too much is given back.
    pub(super) fn whole(mut self, head: Head) -> Self {
        self.charge.shrink_to(self.kept_bytes() as u64);
        Self { head, ..self }
    }

    /// Appends a row by itself, whose value stands in `values` if it is sent.
    pub(super) fn push(&mut self, place: u32, look: Look, value: bool) {
        self.rows.push(Sent { place, slot: place, count: 1, look, value, at: 0 });
    }

    /// Appends rows that one set wrote, whose values stand in `values`: to those before, if they follow them, by their slots too, and
    /// carry the same.
    fn extend(&mut self, place: u32, slot: u32, count: u32, look: Look) {
        if let Some(last) = self.rows.last_mut()
            && (last.place + last.count, last.slot + last.count, last.look) == (place, slot, look)
            && (last.count + count) as usize * self.row_bytes <= RUN_BYTES
        {
            last.count += count;
            return;
        }
        let at = self.rows.last().map_or(0, |last| last.at + last.count);
        self.rows.push(Sent { place, slot, count, look, value: true, at });
    }

    /// Appends rows that were taken before.
    fn keep(&mut self, (sent, values): (Sent, &[u8])) {
        self.values.extend_from_slice(values);
        self.extend(sent.place, sent.slot, sent.count, sent.look);
    }

    /// What has been appended takes the place of piece `number`, which was `before`.
    fn replace(&mut self, number: u32, mut before: Piece, spares: &mut Spares) {
        self.kept -= before.kept_bytes();
        if self.rows.is_empty() {
            return spares.give(before);
        }
        // What does not fill a spare takes no more than it needs: a piece is charged what it keeps.
        if self.values.len() < PIECE_BYTES / 8 * 7 {
            before = Piece { rows: self.rows.clone(), values: self.values.clone() };
        } else {
            if before.values.capacity() < PIECE_BYTES && self.row_bytes < PIECE_BYTES {
                before = spares.take();
            }
            before.rows.clone_from(&self.rows);
            std::mem::swap(&mut before.values, &mut self.values);
            // Long values take no more than they need.
            before.values.shrink_to(PIECE_BYTES);
        }
        self.rows.clear();
        self.values.clear();
        self.kept += before.kept_bytes();
        self.pieces.insert(number, before);
    }

    /// Appends the next message; whether it was the last.
    pub(super) fn send(&mut self, out: &mut Vec<u8>, spares: &mut Spares) -> bool {
        match self.pieces.is_empty() {
            true => self.send_rows(out),
            false => self.send_pieces(out, spares),
        }
        self.head.first = false;
        self.head.last
    }

    /// The next pieces, as many as one message has.
    fn send_pieces(&mut self, out: &mut Vec<u8>, spares: &mut Spares) {
        let mut bytes = 0;
        let fit = self.pieces.values().take_while(|piece| {
            bytes += piece.sent_bytes();
            bytes <= BATCH_BYTES
        });
        let count = fit.count().max(1);
        self.head.last = count == self.pieces.len();
        let mut message = Encoder::rows(out, self.partition, &self.head);
        for (_, piece) in std::iter::from_fn(|| self.pieces.pop_first()).take(count) {
            let mut rows = Stretches::of(&piece, self.row_bytes);
            while let Some((sent, values)) = rows.before(u32::MAX) {
                message.entry(&sent.entry(Some(values)), self.head.apart);
            }
            spares.give(piece);
        }
        message.end();
    }

    /// The next rows, likewise.
    fn send_rows(&mut self, out: &mut Vec<u8>) {
        let mut bytes = 0;
        let count = self.rows[self.next..].iter().take_while(|sent| {
            bytes += sent.count as usize * self.row_bytes + ENTRY_BYTES;
            bytes <= BATCH_BYTES
        });
        let count = count.count().max(1).min(self.rows.len() - self.next);
        let end = self.next + count;
        self.head.last = end == self.rows.len();
        let mut message = Encoder::rows(out, self.partition, &self.head);
        for sent in &self.rows[self.next..end] {
            let value = sent.value.then(|| {
                let start = self.value;
                self.value += self.row_bytes * sent.count as usize;
                &self.values[start..self.value]
            });
            message.entry(&sent.entry(value), self.head.apart);
        }
        message.end();
        self.next = end;
    }
}

/// A batch that is being taken bit by bit: some rows as they were at one moment. Rows that their producer overtakes meanwhile, so that
/// they cannot be read as of that moment any more, make it a batch of a later moment: once the others have been taken, what has changed
/// since is taken anew, and so on, until none is torn. Each round is as long as what has changed during the one before, so it ends
/// where fewer rows change than can be taken in that time.
#[derive(Debug)]
pub(super) struct Taking {
    /// The moment. Each row that is not due is in the batch as of then, if it has changed since the batch before.
    pub(super) now: Moment,
    /// The turn in which that was.
    pub(super) turn: u64,
    pub(super) batch: Batch,
    /// Slots that are due, ascending; then the places from which on all rows are; then those of these changes that were finished.
    due: VecDeque<Range<u32>>,
    pub(super) unseen: Range<u64>,
    pub(super) changed: VecDeque<Changed>,
    /// Moments so far.
    rounds: u32,
    /// What this round has taken of steps, and the two before it took, the last first.
    spent: u64,
    before: [u64; 2],
    /// Whether the slots are some of many, most of which may not have changed.
    sweeps: bool,
    /// Whether a run of rows that is torn is looked at row by row: its producer has gone, and none is made whole any more.
    apart: bool,
    /// Slots that were torn in this round.
    torn: Vec<Range<u32>>,
    /// Whether there are more that were torn, or slots that are neither due nor in the batch: all rows are looked at.
    unknown: bool,
    /// Slots that were torn in earlier rounds: they change often, so each round begins with them.
    often: RowSet,
    /// For the slots, where they are kept from one step to the next.
    slots_charge: Charge,
    /// What its rows may be taken into, while they are.
    pub(super) spares: Spares,
}

impl Taking {
    /// Nothing is due so far.
    pub(super) fn new(now: Moment, turn: u64, apart: bool, batch: Batch) -> Self {
        Self {
            now,
            turn,
            batch,
            due: VecDeque::new(),
            unseen: 0..0,
            changed: VecDeque::new(),
            rounds: 0,
            spent: 0,
            before: [0; 2],
            sweeps: false,
            apart,
            torn: Vec::new(),
            unknown: false,
            often: RowSet::default(),
            slots_charge: Charge::default(),
            spares: Spares::default(),
        }
    }

    /// It is kept until the next step, with its slots.
    pub(super) fn keep(&mut self, account: &Account) -> Result<(), Exhausted> {
        let bytes = (self.due.capacity() + self.torn.capacity()) * size_of::<Range<u32>>();
        // One after the other: who can pay for them once is not refused.
        self.slots_charge = Charge::default();
        self.slots_charge = account.charge(Resource::Bytes, bytes as u64 + self.often.kept_bytes())?;
        Ok(())
    }

    /// The slots of all that is due or is in the batch, if these are about `most` ranges or less and all are known.
    pub(super) fn slots(&self, rows: &RowSet, most: usize) -> Option<Vec<Range<u32>>> {
        let Self { batch, due, torn, often, .. } = self;
        let taken = batch.pieces.values().map(|piece| piece.rows.len()).sum::<usize>() + batch.rows.len();
        let ranges = taken + due.len() + torn.len() + often.ranges().len();
        if self.unknown || !self.unseen.is_empty() || ranges > most {
            return None;
        }
        let places = batch.pieces.values().flat_map(|piece| &piece.rows).chain(&batch.rows);
        let places = places.map(|sent| sent.place.into()..u64::from(sent.place + sent.count));
        let taken = places.flat_map(|places| rows.at(places)).chain(often.ranges().iter().cloned());
        let taken = taken.map(|range| range.start as u32..range.end as u32);
        Some(due.iter().chain(torn).cloned().chain(taken).collect())
    }

    /// Whether nothing is due.
    pub(super) fn is_through(&self) -> bool {
        self.due.is_empty() && self.unseen.is_empty() && self.changed.is_empty()
    }

    /// A slot that was torn in this round, if any was.
    pub(super) fn torn(&self) -> Option<u32> {
        self.torn.first().map(|range| range.start)
    }

    /// This round has taken so much more.
    pub(super) fn spend(&mut self, looks: u64) {
        self.spent = self.spent.saturating_add(looks);
    }

    /// Whether no moment is about to be found: its rounds take more than a `step` and do not become shorter by a quarter at least. A round
    /// is a look at all rows at most, so those that do are four such looks together. It has two in any case: a set of all rows may
    /// have overtaken the first, and no other comes before the second is through.
    pub(super) fn is_overtaken(&self, step: u64) -> bool {
        let [last, before] = self.before;
        self.rounds > ROUNDS || self.rounds > 2 && last > step && last > before - before / 4
    }

    /// It becomes a batch of a later moment. What has changed since is due, and that is for the caller to say; `all` rows are if that
    /// is not known. Those that were torn are due first.
    pub(super) fn move_to(&mut self, now: Moment, turn: u64, all: bool, rows: &RowSet) {
        (self.now, self.turn, self.rounds) = (now, turn, self.rounds + 1);
        self.before = [std::mem::take(&mut self.spent), self.before[0]];
        let torn = std::mem::take(&mut self.torn).into_iter();
        let torn = RowSet::from_ranges(torn.map(|range| range.start.into()..range.end.into()));
        let often = self.often.union(&torn);
        self.often = if often.ranges().len() > TORN { torn } else { often };
        self.unseen = if std::mem::take(&mut self.unknown) || all { 0..rows.len() } else { 0..0 };
        self.due = self.often.ranges().iter().map(|range| range.start as u32..range.end as u32).collect();
        self.sweeps = false;
    }

    /// These slots are due, ascending. Those that this round began with are not looked at once more: they were taken as of its moment,
    /// and may be torn by now.
    pub(super) fn is_due(&mut self, slots: Vec<Range<u32>>, sweeps: bool) {
        self.sweeps = sweeps;
        self.due = slots.into();
        if !self.often.is_empty() {
            let due = self.due.iter().map(|range| range.start.into()..range.end.into());
            let due = RowSet::from_sorted(due).without(&self.often);
            self.due = due.ranges().iter().map(|range| range.start as u32..range.end as u32).collect();
        }
    }

    /// Takes slots that are due, as many as there is `work` for; whether that was all. `rows`: those that have places. `after`: the set
    /// after which the batch before was taken.
    pub(super) fn take<M: Memory>(
        &mut self,
        memory: &M,
        rows: &RowSet,
        after: u64,
        work: &mut Work,
    ) -> Result<bool, Exhausted> {
        let run = memory.run().max(1) as usize;
        let slots = (PIECE_BYTES / self.batch.row_bytes.max(1)).clamp(1, PIECE_ROWS);
        let slots = (slots / run).max(1) * run;
        while let Some(range) = self.due.front() {
            if work.is_over() {
                return Ok(false);
            }
            let number = range.start / slots as u32;
            let end = u64::from(number + 1) * slots as u64;
            let slot = range.start;
            if range.end - slot == 1 && self.take_in_place(memory, rows, after, number, slot, work)? {
                self.due.pop_front();
                continue;
            }
            self.batch.make_room(&mut self.spares);
            if let Err(why) = self.take_piece(memory, rows, after, number, end, work) {
                // Some of what the piece had is not in the batch any more.
                self.unknown = true;
                return Err(why);
            }
        }
        Ok(true)
    }

    /// A row that the batch has, where the others of its piece need not be moved; whether it is done.
    fn take_in_place<M: Memory>(
        &mut self,
        memory: &M,
        rows: &RowSet,
        after: u64,
        number: u32,
        slot: u32,
        work: &mut Work,
    ) -> Result<bool, Exhausted> {
        let row_bytes = self.batch.row_bytes;
        // Of those that stay torn none is sent.
        if self.apart || row_bytes >= PIECE_BYTES {
            return Ok(false);
        }
        let place = rows.place(slot.into()).unwrap_or(0) as u32;
        let entry = self.batch.pieces.get(&number).and_then(|piece| piece.entry_of(place));
        let Some(entry) = entry else { return Ok(false) };
        let start = self.batch.room(1)?;
        work.copy(row_bytes);
        let look = memory.read(slot, self.now, &mut self.batch.values[start..]);
        let Batch { pieces, kept, values, .. } = &mut self.batch;
        let is_done = match look {
            Ok(look) if look.number > after && look.number <= self.now.done => {
                if let Some(piece) = pieces.get_mut(&number) {
                    *kept -= piece.kept_bytes();
                    piece.overwrite(entry, place, look, &values[start..]);
                    *kept += piece.kept_bytes();
                }
                true
            }
            Ok(_) => false,
            Err(Torn) => true,
        };
        values.truncate(start);
        if look.is_err() {
            self.is_torn(slot..slot + 1);
        }
        Ok(is_done)
    }

    /// Those of one piece, whose slots end before `end`.
    fn take_piece<M: Memory>(
        &mut self,
        memory: &M,
        rows: &RowSet,
        after: u64,
        number: u32,
        end: u64,
        work: &mut Work,
    ) -> Result<(), Exhausted> {
        let piece = self.batch.pieces.remove(&number).unwrap_or_default();
        let mut before = Stretches::of(&piece, self.batch.row_bytes);
        while let Some(range) = self.due.front().filter(|range| u64::from(range.start) < end).cloned()
            && !work.is_over()
        {
            let mut place = rows.place(range.start.into()).unwrap_or(0) as u32;
            while let Some(kept) = before.before(place) {
                self.batch.keep(kept);
            }
            let mut slot = range.start;
            let stop = u64::from(range.end).min(end) as u32;
            while slot < stop && !work.is_over() {
                let count = self.take_some(memory, slot..stop, place, &mut before, after, work)?;
                (slot, place) = (slot + count, place + count);
            }
            self.due.pop_front();
            if slot < range.end {
                self.due.push_front(slot..range.end);
            }
        }
        while let Some(kept) = before.before(u32::MAX) {
            self.batch.keep(kept);
        }
        if !piece.rows.is_empty() {
            work.look((self.batch.values.len() + self.batch.rows.len() * size_of::<Sent>()) as u64 / MOVED);
        }
        self.batch.replace(number, piece, &mut self.spares);
        Ok(())
    }

    /// The first of some slots, or the run that begins with it; how many these are.
    fn take_some<M: Memory>(
        &mut self,
        memory: &M,
        slots: Range<u32>,
        place: u32,
        before: &mut Stretches<'_>,
        after: u64,
        work: &mut Work,
    ) -> Result<u32, Exhausted> {
        let (now, run, slot, row_bytes) = (self.now, memory.run(), slots.start, self.batch.row_bytes);
        // Rows that come in whole sets have no limits of their own. Where their producer has written one all the same, in memory that
        // it shares, a row may carry a set that is not finished: a peer that is sent such a row takes this side for one that breaks
        // the protocol.
        let is_new = |look: &Look| look.number > after && look.number <= now.done;
        if run > 0 && slot.is_multiple_of(run) && slots.end - slot >= run {
            let start = self.batch.room(run)?;
            match memory.read_run(slot, now, &mut self.batch.values[start..]) {
                Ok(Some(look)) => {
                    work.look(run.into());
                    work.copy(run as usize * row_bytes);
                    before.skip(place + run);
                    if is_new(&look) {
                        self.batch.extend(place, slot, run, look);
                    } else {
                        self.batch.values.truncate(start);
                    }
                    return Ok(run);
                }
                Err(Torn) if !self.apart => {
                    work.look(1);
                    self.batch.values.truncate(start);
                    before.skip(place + run);
                    self.is_torn(slot..slot + run);
                    return Ok(run);
                }
                Ok(None) | Err(Torn) => self.batch.values.truncate(start),
            }
        }
        if self.sweeps {
            work.look(1);
            let has = before.number(place).unwrap_or(after);
            if memory.look(slot, now).is_ok_and(|look| look.number <= has) {
                if let Some(kept) = before.before(place + 1) {
                    self.batch.keep(kept);
                }
                return Ok(1);
            }
        }
        before.skip(place + 1);
        let start = self.batch.room(1)?;
        match memory.read(slot, now, &mut self.batch.values[start..]) {
            Ok(look) => {
                work.copy(row_bytes);
                if is_new(&look) {
                    self.batch.extend(place, slot, 1, look);
                } else {
                    self.batch.values.truncate(start);
                }
            }
            Err(Torn) => {
                // It may have been copied in part.
                work.copy(row_bytes);
                self.batch.values.truncate(start);
                self.is_torn(slot..slot + 1);
            }
        }
        Ok(1)
    }

    fn is_torn(&mut self, slots: Range<u32>) {
        let many = self.torn.len() >= TORN;
        match self.torn.last_mut() {
            Some(last) if last.end == slots.start => last.end = slots.end,
            _ if many => self.unknown = true,
            _ => self.torn.push(slots),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::Limits;
    use crate::items::row_memory::Unlisted;
    use std::cell::Cell;

    const ROWS: u32 = 10;

    /// Rows that are written by each set.
    struct Rows(Cell<u64>);

    impl Memory for Rows {
        fn changed(&mut self, _: &mut Vec<Changed>) -> Result<(), Unlisted> {
            Ok(())
        }

        fn now(&self) -> Moment {
            Moment { done: self.0.get(), several: 0, floor: 0 }
        }

        fn look(&self, _: u32, _: Moment) -> Result<Look, Torn> {
            let number = self.0.get();
            Ok(Look { number, clock: number, as_of: number })
        }

        fn read(&self, slot: u32, now: Moment, _: &mut [u8]) -> Result<Look, Torn> {
            self.look(slot, now)
        }

        fn run(&self) -> u32 {
            0
        }

        fn read_run(&self, _: u32, _: Moment, _: &mut [u8]) -> Result<Option<Look>, Torn> {
            Ok(None)
        }

        fn open(&mut self, _: u64, _: usize) {}

        fn put(&mut self, _: u32, _: u64, _: u64, _: &[u8]) {}

        fn put_run(&mut self, _: u32, _: u64, _: u64, _: &[u8]) {}

        fn finish(&mut self) {}

        fn abort(&mut self) {}

        fn refresh(&mut self, _: u32, _: u64, _: u64, _: u64, _: Option<&[u8]>) {}

        fn raise(&mut self, _: u64) {}

        fn wake(&mut self) {}
    }

    // They were forgotten, and sent to nobody before they were set once more.
    #[test]
    fn rows_of_a_piece_that_cannot_be_paid_when_it_is_taken_anew_are_not_taken_for_done() {
        let (memory, rows) = (Rows(Cell::new(1)), RowSet::from_ranges(std::iter::once(0..u64::from(ROWS))));
        let account = Account::new(Limits::NONE.with(Resource::Bytes, 300));
        let batch = Batch::new(PartitionId { table: 0, rank: 0 }, 8, 0, &account).unwrap();
        let (mut taking, mut work) = (Taking::new(memory.now(), 0, false, batch), Work::new(1000));
        let all = || -> Vec<Range<u32>> { std::iter::once(0..ROWS).collect() };
        taking.is_due(all(), false);
        assert!(taking.take(&memory, &rows, 0, &mut work).unwrap());
        assert_eq!(taking.slots(&rows, 1000), Some(all()));
        memory.0.set(2);
        taking.move_to(memory.now(), 0, false, &rows);
        taking.is_due(vec![0..1, 2..4], false);
        taking.take(&memory, &rows, 0, &mut work).unwrap_err();
        assert_eq!(taking.slots(&rows, 1000), None);
    }
}
