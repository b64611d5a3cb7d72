//! Batches: which rows a subscriber is sent now, as they were at one moment.

use super::Partition;
use super::subscriber::{Answerable, Pass, Together, candidates, follows, merged, sift, some_candidates};
use super::work::Work;
use crate::account::{Account, Charge, Exhausted, Resource};
use crate::items::row_memory::{Changed, Look, Memory, Moment, Torn, Unlisted};
use crate::items::spec::Propagation;
use crate::items::wire::{BATCH_BYTES, Encoder, Entry, Head, PartitionId};
use crate::peer::PeerId;

/// Attempts to take a batch at one moment, before others get their turn.
const ATTEMPTS: usize = 8;
/// Most bytes of rows that are sent as one entry.
const RUN_BYTES: usize = 64 * 1024;

/// Bytes that are charged at once for rows of a batch.
const STEP_BYTES: usize = 256 * 1024;

/// Why a batch was not taken whole.
#[derive(Debug)]
enum Halt {
    Torn,
    Exhausted(Exhausted),
}

impl From<Torn> for Halt {
    fn from(_: Torn) -> Self {
        Self::Torn
    }
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
    fn new(
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
    fn room(&mut self, rows: u32) -> Result<usize, Exhausted> {
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
    fn whole(mut self, head: Head) -> Self {
        self.charge.shrink_to(self.kept_bytes() as u64);
        Self { head, ..self }
    }

    /// Appends a row by itself, whose value stands in `values` if it is sent.
    fn push(&mut self, place: u32, look: Look, value: bool) {
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
        slots: std::ops::Range<u32>,
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
                Err(Torn) if !torn_stays => return Err(Halt::Torn),
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

/// What is due to a peer of a partition.
#[derive(Debug)]
pub(super) enum Due {
    /// These rows.
    Rows(Batch),
    /// Nothing of what was finished in this turn.
    Nothing { turn: u64 },
    /// That cannot be told yet.
    Unknown,
    /// It was not found out in this step.
    Unfinished,
    /// More than the peer can pay for.
    Unpaid(Exhausted),
}

/// Passes on to the subscribers which rows have changed. In memory that it shares, a producer that was lost may go on writing: that
/// is not followed.
pub(super) fn collect<M: Memory>(partition: &mut Partition<M>, scratch: &mut Vec<Changed>) {
    if partition.ended.is_some() {
        return;
    }
    scratch.clear();
    let unlisted = partition.memory.changed(scratch).err();
    let floor = partition.memory.now().floor;
    let last = unlisted.map(|Unlisted { until }| until).or_else(|| scratch.last().map(|changed| changed.set));
    partition.heard = last.unwrap_or(partition.heard);
    for subscriber in partition.subscribers.values_mut() {
        match unlisted {
            None => subscriber.note(scratch),
            Some(Unlisted { until }) => subscriber.note_all(until),
        }
        let risen = floor != subscriber.floor;
        subscriber.all |= risen && subscriber.propagation == Propagation::Bounded;
        subscriber.dirty |= risen || last.is_some();
    }
}

/// All rows that a subscriber lacks, as they were at one moment.
pub(super) fn eager<M: Memory>(
    partition: &mut Partition<M>,
    peer: PeerId,
    id: PartitionId,
    account: &Account,
    scratch: &mut Vec<Changed>,
    turn: u64,
    work: &mut Work,
) -> Due {
    let row_bytes = partition.shape.row_bytes as usize;
    let mut slots = Vec::new();
    let ended = partition.ended.is_some();
    let Partition { memory, subscribers, .. } = &mut *partition;
    if let Some(subscriber) = subscribers.get_mut(&peer).filter(|subscriber| subscriber.ready) {
        if ended {
            // What a lost producer sets is not listed.
            subscriber.all |= subscriber.sifted.take().is_some();
        } else if !sift(subscriber, memory, work) {
            return Due::Unfinished;
        }
    }
    for attempt in 0..ATTEMPTS {
        // Of what a lost producer writes later, no set is passed on in part either.
        let now = partition.ended.unwrap_or_else(|| partition.memory.now());
        // As long as no later set is finished, each row that its producer left whole can be read.
        let torn_stays = ended && attempt + 1 == ATTEMPTS && partition.memory.now().done <= now.done;
        collect(partition, scratch);
        let Some(subscriber) = partition.subscribers.get_mut(&peer).filter(|subscriber| subscriber.ready)
        else {
            return Due::Unknown;
        };
        // Memory that its producer shares may say so. A peer that is told so would conclude that this side breaks the protocol.
        if now.done < subscriber.done {
            subscriber.dirty = !ended;
            return if ended { Due::Nothing { turn } } else { Due::Unknown };
        }
        slots.append(&mut candidates(subscriber, now));
        if attempt > 0 {
            slots = merged(slots);
        }
        let rows: u32 = slots.iter().map(|range| range.end - range.start).sum();
        let mut batch = match Batch::new(id, row_bytes, rows as usize, account) {
            Ok(batch) => batch,
            Err(why) => return Due::Unpaid(why),
        };
        let taken = slots.iter().try_for_each(|range| {
            let place = subscriber.rows.place(range.start.into()).unwrap_or(0) as u32;
            batch.take(&partition.memory, range.clone(), place, now, subscriber.done, torn_stays)
        });
        match taken {
            Err(Halt::Exhausted(why)) => return Due::Unpaid(why),
            Ok(()) if !torn_stays || partition.memory.now().done <= now.done => {}
            Err(Halt::Torn) | Ok(()) => {
                let later = partition.memory.now();
                if ended && later.done > now.done {
                    // A lost producer has set more, and nobody can say any more what was due: its rows end as they were later. All
                    // of them may have been set by then, and no subscriber that is still sent some goes back behind that.
                    partition.ended = Some(later);
                    partition.subscribers.values_mut().for_each(|subscriber| subscriber.all = true);
                }
                continue;
            }
        }
        subscriber.dirty = !ended && (!subscriber.changed.is_empty() || subscriber.all);
        let nothing = batch.rows.is_empty() && subscriber.floor == now.floor && subscriber.done == now.done;
        if nothing && std::mem::replace(&mut subscriber.begun, true) {
            return Due::Nothing { turn };
        }
        subscriber.begun = true;
        (subscriber.done, subscriber.floor) = (now.done, now.floor);
        let head = Head { serial: subscriber.serial, done: now.done, floor: now.floor, ..Head::default() };
        return Due::Rows(batch.whole(head));
    }
    // Torn again and again: what was to be sent is looked for anew, at the next turn.
    if let Some(subscriber) = partition.subscribers.get_mut(&peer) {
        (subscriber.all, subscriber.dirty) = (true, true);
    }
    Due::Unknown
}

/// What came of a look at what those behind a subscriber need.
pub(super) enum Needed {
    /// Rows that it lacks, most likely not all.
    Rows(Batch),
    /// It lacks none.
    None,
    /// None of those that have been looked at.
    Unknown,
}

/// Rows that those behind a subscriber need and it lacks, as far as they are found by as much `work` as is left: they come one by
/// one all the same.
pub(super) fn bounded<M: Memory>(
    partition: &mut Partition<M>,
    peer: PeerId,
    id: PartitionId,
    account: &Account,
    scratch: &mut Vec<Changed>,
    work: &mut Work,
) -> Result<Needed, Exhausted> {
    let row_bytes = partition.shape.row_bytes as usize;
    let ended = partition.ended.is_some();
    let now = partition.ended.unwrap_or_else(|| partition.memory.now());
    collect(partition, scratch);
    let Partition { memory, subscribers, .. } = partition;
    let Some(subscriber) = subscribers.get_mut(&peer) else { return Ok(Needed::None) };
    subscriber.floor = now.floor;
    let mut batch = Batch::new(id, row_bytes, 0, account)?;
    let mut again = Vec::new();
    let slots = some_candidates(subscriber, now, work.left());
    let (mut left, mut looked) = (Vec::new(), false);
    for range in slots {
        if looked && work.is_over() {
            left.push(Changed { first: range.start, count: range.end - range.start, set: now.done as u32 });
            continue;
        }
        let places = subscriber.rows.place(range.start.into()).unwrap_or(0)..;
        for (slot, place) in range.clone().zip(places) {
            // One at least, so that each step leaves fewer.
            if std::mem::replace(&mut looked, true) && work.is_over() {
                left.push(Changed { first: slot, count: range.end - slot, set: now.done as u32 });
                break;
            }
            work.look(1);
            let (version, number) = subscriber.have[place as usize];
            let needs = &subscriber.needs.versions;
            let at = needs.partition_point(|&need| need <= version);
            let Some(&need) = needs.get(at) else { continue };
            work.copy(row_bytes);
            let start = batch.room(1)?;
            let mut read = |moment| memory.read(slot, moment, &mut batch.values[start..]);
            // What a lost producer has overwritten since is taken as it is by now: each row says until when it was current.
            let look = read(now).or_else(|torn| if ended { read(memory.now()) } else { Err(torn) });
            match look {
                Ok(look) if look.clock >= need => {
                    let value = look.number != number;
                    if !value {
                        batch.values.truncate(start);
                    }
                    subscriber.have[place as usize] = (look.clock, look.number);
                    batch.push(place as u32, look, value);
                    continue;
                }
                Ok(_) => {}
                Err(Torn) => again.push(Changed { first: slot, count: 1, set: now.done as u32 }),
            }
            batch.values.truncate(start);
        }
    }
    let is_ripe = |set| !follows(set, now.done as u32);
    let more = !left.is_empty()
        || !subscriber.unseen.is_empty()
        || subscriber.all && subscriber.until.is_none_or(is_ripe)
        || subscriber.changed.iter().any(|changed| is_ripe(changed.set));
    // Those that are torn come last, so that they keep no others waiting.
    subscriber.changed.extend(left.into_iter().chain(again));
    subscriber.dirty = more || !subscriber.changed.is_empty() || subscriber.all;
    let head = Head { serial: subscriber.serial, apart: true, ..Head::default() };
    match (batch.rows.is_empty(), more) {
        (false, _) => Ok(Needed::Rows(batch.whole(head))),
        (true, true) => Ok(Needed::Unknown),
        (true, false) => Ok(Needed::None),
    }
}

/// All rows of a producer that leaves, once.
pub(super) fn whole<M: Memory>(
    partition: &mut Partition<M>,
    peer: PeerId,
    id: PartitionId,
    account: &Account,
) -> Result<Option<Batch>, Exhausted> {
    let row_bytes = partition.shape.row_bytes as usize;
    let subscriber = partition.subscribers.get_mut(&peer).filter(|subscriber| subscriber.handing_over);
    let Some(subscriber) = subscriber else { return Ok(None) };
    for attempt in 0..ATTEMPTS {
        // What a lost producer has overwritten since is taken as it was later.
        let ended = partition.ended.filter(|_| attempt == 0);
        let now = ended.unwrap_or_else(|| partition.memory.now());
        let mut batch = Batch::new(id, row_bytes, subscriber.rows.len() as usize, account)?;
        let taken = subscriber.rows.iter().zip(0..).try_for_each(|(slot, place)| {
            let start = batch.room(1)?;
            let look = partition.memory.read(slot as u32, now, &mut batch.values[start..])?;
            batch.push(place, look, true);
            Ok(())
        });
        match taken {
            Ok(()) => {
                subscriber.handing_over = false;
                let head = Head { serial: subscriber.serial, apart: true, ..Head::default() };
                return Ok(Some(batch.whole(head)));
            }
            Err(Halt::Torn) => {}
            Err(Halt::Exhausted(why)) => return Err(why),
        }
    }
    Ok(None)
}

/// What came of a look at a subscriber's fetches.
pub(super) enum Fetched {
    /// The answer to the first that can be answered.
    Rows(Batch),
    /// None can be answered of those that had come by this turn.
    None { turn: u64 },
    /// Not all have been looked at.
    Unknown,
}

/// The answer to a subscriber's first fetch that can be answered, if that is found by as much `work` as is left.
pub(super) fn fetched<M: Memory>(
    partition: &mut Partition<M>,
    peer: PeerId,
    id: PartitionId,
    account: &Account,
    turn: u64,
    work: &mut Work,
) -> Result<Fetched, Exhausted> {
    let row_bytes = partition.shape.row_bytes as usize;
    let memory = &partition.memory;
    let Some(subscriber) = partition.subscribers.get_mut(&peer) else { return Ok(Fetched::None { turn }) };
    let here = partition.upstream.is_none();
    let goes_on = subscriber.pass.take();
    let Pass { next, turn } = goes_on.unwrap_or(Pass { next: 0, turn });
    for at in next..subscriber.fetches.len() {
        let pending = &mut subscriber.fetches[at];
        let answerable = match work.is_over() {
            true => Answerable::Unknown,
            false => pending.look(memory, here, work),
        };
        work.look(1);
        match answerable {
            Answerable::Yes => {}
            Answerable::NotYet => continue,
            Answerable::Apart => {
                pending.ask_again();
                continue;
            }
            Answerable::Unknown => {
                subscriber.pass = Some(Pass { next: at, turn });
                return Ok(Fetched::Unknown);
            }
        }
        for _ in 0..ATTEMPTS {
            let now = memory.now();
            let mut batch = Batch::new(id, row_bytes, pending.slots.len(), account)?;
            let mut together = Together::default();
            let taken = pending.slots.iter().try_for_each(|&slot| {
                work.copy(row_bytes);
                let start = batch.room(1)?;
                let look = memory.read(slot, now, &mut batch.values[start..])?;
                let place = subscriber.rows.place(slot.into()).unwrap_or(0) as u32;
                batch.push(place, look, true);
                together.take(slot, &look);
                Ok(())
            });
            match taken {
                Ok(()) => {}
                Err(Halt::Torn) => continue,
                Err(Halt::Exhausted(why)) => return Err(why),
            }
            if together.are_apart() {
                pending.together = together;
                pending.ask_again();
                break;
            }
            let (serial, ticket) = (subscriber.serial, pending.ticket);
            let head = Head { serial, ticket, apart: true, ..Head::default() };
            // Those before it were looked at since the first was.
            batch.turn = pending.turn.min(turn);
            subscriber.fetches.remove(at);
            // The next is looked for from the first on, unless that took more than a step.
            subscriber.pass = goes_on.map(|_| Pass { next: at, turn });
            return Ok(Fetched::Rows(batch.whole(head)));
        }
    }
    Ok(Fetched::None { turn })
}
