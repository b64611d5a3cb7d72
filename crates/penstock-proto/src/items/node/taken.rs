//! Rows that were taken of memory as they were at one moment, and are on their way to a peer.

use super::work::Work;
use crate::account::{Account, Charge, Exhausted, Resource};
use crate::items::row_memory::{Look, Memory, Moment, Torn};
use crate::items::rows::RowSet;
use crate::items::wire::{BATCH_BYTES, Encoder, Entry, Head, PartitionId};
use std::ops::Range;

/// Most bytes of rows that are sent as one entry.
const RUN_BYTES: usize = 64 * 1024;

/// Bytes that are charged at once for rows of a batch.
const STEP_BYTES: usize = 256 * 1024;

/// Why a batch was not taken whole.
#[derive(Debug)]
pub(super) enum Halt {
    /// This slot is.
    Torn(u32),
    Exhausted(Exhausted),
}

impl From<Exhausted> for Halt {
    fn from(why: Exhausted) -> Self {
        Self::Exhausted(why)
    }
}

/// Rows of a batch that follow each other and carry the same.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    place: u32,
    count: u32,
    look: Look,
    /// Whether their values are sent.
    value: bool,
}

/// Rows on their way to a peer.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) partition: PartitionId,
    pub(super) head: Head,
    /// The turn in which all that was due was taken. For a batch that answers a fetch, the turn in which the fetch came, since
    /// earlier fetches are answered first.
    pub(super) turn: u64,
    /// Their values stand in `values` one after the other.
    pub(super) rows: Vec<Sent>,
    pub(super) values: Vec<u8>,
    pub(super) next: usize,
    pub(super) value: usize,
    pub(super) row_bytes: usize,
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
        Ok(Self { partition, head, turn: 0, rows: Vec::new(), values, next, value, row_bytes, charge })
    }

    /// Bytes that it takes.
    fn kept_bytes(&self) -> usize {
        self.values.len() + self.rows.len() * size_of::<Sent>()
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

    /// All of it is taken: what was charged too much is given back.
    pub(super) fn whole(mut self, head: Head) -> Self {
        self.charge.shrink_to(self.kept_bytes() as u64);
        Self { head, ..self }
    }

    /// Appends a row by itself, whose value stands in `values` if it is sent.
    pub(super) fn push(&mut self, place: u32, look: Look, value: bool) {
        self.rows.push(Sent { place, count: 1, look, value });
    }

    /// Appends rows that one set wrote, whose values stand in `values`: to those before, if they carry the same. Entries before
    /// `from` are of slots that these do not follow.
    fn extend(&mut self, from: usize, place: u32, count: u32, look: Look) {
        if let Some(last) = self.rows[from..].last_mut()
            && (last.place + last.count, last.look) == (place, look)
            && (last.count + count) as usize * self.row_bytes <= RUN_BYTES
        {
            last.count += count;
            return;
        }
        self.rows.push(Sent { place, count, look, value: true });
    }

    /// Takes the rows of some slots that changed after set `after`, as they were at one moment. With `torn_stays` those that are
    /// torn are left out: their writer has gone, so they are never made whole.
    fn take<M: Memory>(
        &mut self,
        memory: &M,
        slots: Range<u32>,
        mut place: u32,
        now: Moment,
        after: u64,
        torn_stays: bool,
    ) -> Result<(), Halt> {
        let (run, from) = (memory.run(), self.rows.len());
        let mut slot = slots.start;
        while slot < slots.end {
            let whole = run > 0 && slot.is_multiple_of(run) && slots.end - slot >= run;
            let mut count = if whole { run } else { 1 };
            let start = self.room(count)?;
            let together = match whole {
                true => memory.read_run(slot, now, &mut self.values[start..]),
                false => Ok(None),
            };
            let look = match together {
                Ok(Some(look)) => Ok(look),
                Err(Torn) if !torn_stays => Err(Torn),
                Ok(None) | Err(Torn) => {
                    count = 1;
                    self.values.truncate(start + self.row_bytes);
                    memory.read(slot, now, &mut self.values[start..])
                }
            };
            match look {
                // Rows that come in whole sets have no limits of their own. Where their producer has written one all the same, in
                // memory that it shares, a row may carry a set that is not finished: a peer that is sent such a row takes this
                // side for one that breaks the protocol.
                Ok(look) if look.number > after && look.number <= now.done => {
                    self.extend(from, place, count, look);
                }
                Err(Torn) if !torn_stays => return Err(Halt::Torn(slot)),
                Ok(_) | Err(Torn) => self.values.truncate(start),
            }
            (slot, place) = (slot + count, place + count);
        }
        Ok(())
    }

    /// Appends the next message; whether it was the last.
    pub(super) fn send(&mut self, out: &mut Vec<u8>) -> bool {
        let mut bytes = 0;
        let count = self.rows[self.next..].iter().take_while(|sent| {
            bytes += sent.count as usize * self.row_bytes + 32;
            bytes <= BATCH_BYTES
        });
        let count = count.count().max(1).min(self.rows.len() - self.next);
        let end = self.next + count;
        self.head.last = end == self.rows.len();
        let mut message = Encoder::rows(out, self.partition, &self.head);
        for &Sent { place, count, look, value } in &self.rows[self.next..end] {
            let value = value.then(|| {
                let start = self.value;
                self.value += self.row_bytes * count as usize;
                &self.values[start..self.value]
            });
            let Look { number, clock, as_of } = look;
            message.entry(&Entry { place, count, number, clock, as_of, value }, self.head.apart);
        }
        message.end();
        self.next = end;
        self.head.first = false;
        self.head.last
    }
}

/// How a batch ends that is taken bit by bit.
#[derive(Debug)]
pub(super) enum Taken {
    All,
    /// The rest is for the next step.
    Some,
}

/// A batch that is being taken: some rows, as they were at one moment, however long that takes.
#[derive(Debug)]
pub(super) struct Taking {
    pub(super) now: Moment,
    /// The turn in which it was begun.
    pub(super) turn: u64,
    /// Whether rows that are torn are left out.
    pub(super) torn_stays: bool,
    /// Slots, ascending.
    pub(super) slots: Vec<Range<u32>>,
    pub(super) batch: Batch,
    /// The first of the ranges that has not been taken whole, and how many of its slots have been.
    at: usize,
    taken: u32,
    /// For the slots, where they are kept from one step to the next.
    slots_charge: Charge,
}

impl Taking {
    pub(super) fn new(
        now: Moment,
        turn: u64,
        torn_stays: bool,
        slots: Vec<Range<u32>>,
        batch: Batch,
    ) -> Self {
        Self { now, turn, torn_stays, slots, batch, at: 0, taken: 0, slots_charge: Charge::default() }
    }

    /// It is kept until the next step, with its slots: they may be as many as there are rows.
    pub(super) fn keep(&mut self, account: &Account) -> Result<(), Exhausted> {
        if self.slots_charge.amount() == 0 {
            let bytes = self.slots.capacity() * size_of::<Range<u32>>();
            self.slots_charge = account.charge(Resource::Bytes, bytes as u64)?;
        }
        Ok(())
    }

    /// Takes those that have changed after set `after`, as many as there is `work` for, and some more. `rows`: those that have places.
    pub(super) fn go_on<M: Memory>(
        &mut self,
        memory: &M,
        rows: &RowSet,
        after: u64,
        work: &mut Work,
    ) -> Result<Taken, Halt> {
        // A run is taken whole.
        let run = memory.run().max(1);
        while let Some(range) = self.slots.get(self.at) {
            if work.is_over() {
                return Ok(Taken::Some);
            }
            let from = range.start + self.taken;
            let most = u32::try_from(work.rows(self.batch.row_bytes)).unwrap_or(u32::MAX);
            let end = from.saturating_add(most).checked_next_multiple_of(run).unwrap_or(u32::MAX);
            let some = from..end.min(range.end);
            let (place, before) = (rows.place(from.into()).unwrap_or(0) as u32, self.batch.values.len());
            work.look((some.end - from).into());
            self.batch.take(memory, some.clone(), place, self.now, after, self.torn_stays)?;
            work.copy(self.batch.values.len() - before);
            (self.at, self.taken) =
                if some.end == range.end { (self.at + 1, 0) } else { (self.at, some.end - range.start) };
        }
        Ok(Taken::All)
    }
}
