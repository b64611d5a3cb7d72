//! Batches: which rows a subscriber is sent now, as they were at one moment.

use super::Partition;
use super::subscriber::{Answerable, Pass, Subscriber, Together, candidates, merged, sift, some_candidates};
use super::taken::{Batch, Halt, Taken, Taking};
use super::work::Work;
use crate::account::{Account, Exhausted};
use crate::items::row_memory::{Changed, Memory, Torn, Unlisted};
use crate::items::spec::Propagation;
use crate::items::wire::{Head, PartitionId};
use crate::peer::PeerId;
use std::collections::BTreeSet;

/// Attempts to take a batch at one moment, before others get their turn.
const ATTEMPTS: usize = 8;
/// Of the work of a step, the part for rows that were torn when they were looked at before: one in so many.
const TORN: u64 = 64;

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
    step: &mut Work,
) -> Due {
    let row_bytes = partition.shape.row_bytes as usize;
    let (mut slots, mut all) = (Vec::new(), Work::new(u64::MAX));
    for attempt in 0..ATTEMPTS {
        // Of what a lost producer writes later, no set is passed on in part either.
        let now = partition.ended.unwrap_or_else(|| partition.memory.now());
        collect(partition, scratch);
        let Partition { memory, subscribers, ended, .. } = &mut *partition;
        let Some(subscriber) = subscribers.get_mut(&peer).filter(|subscriber| subscriber.ready) else {
            return Due::Unknown;
        };
        let lost = ended.is_some();
        let work = if subscriber.hurried { &mut all } else { &mut *step };
        let goes_on = subscriber.taking.is_some();
        let last = attempt + 1 == ATTEMPTS || lost && attempt > 0 && work.is_over();
        let mut taking = match subscriber.taking.take() {
            Some(begun) => *begun,
            None => {
                // Memory that its producer shares may say so. A peer that is told so would conclude that this side breaks the
                // protocol.
                if now.done < subscriber.done {
                    subscriber.put_back(slots, now);
                    subscriber.dirty = !lost;
                    return if lost { Due::Nothing { turn } } else { Due::Unknown };
                }
                subscriber.ripen(now);
                let torn = subscriber.torn.first().is_some_and(|&slot| memory.look(slot, now).is_err());
                // As long as it is, nothing can be taken.
                if torn && !lost {
                    subscriber.put_back(slots, now);
                    subscriber.dirty = true;
                    return Due::Unknown;
                }
                if !sift(subscriber, memory, now, work, attempt > 0) {
                    subscriber.put_back(slots, now);
                    return Due::Unfinished;
                }
                slots.append(&mut candidates(subscriber, now));
                if attempt > 0 {
                    slots = merged(slots);
                }
                // As long as no later set is finished, each row that its producer left whole can be read.
                let torn_stays = lost && (last || torn) && memory.now().done <= now.done;
                let rows: u32 = slots.iter().map(|range| range.end - range.start).sum();
                let batch = match Batch::new(id, row_bytes, rows as usize, account) {
                    Ok(batch) => batch,
                    Err(why) => return Due::Unpaid(why),
                };
                Taking::new(now, turn, torn_stays, std::mem::take(&mut slots), batch)
            }
        };
        match taking.go_on(memory, &subscriber.rows, subscriber.done, work) {
            Ok(Taken::Some) => {
                subscriber.taking = Some(Box::new(taking));
                return Due::Unfinished;
            }
            Ok(Taken::All) if !taking.torn_stays || memory.now().done <= taking.now.done => {
                return taken_whole(subscriber, taking, lost, turn);
            }
            Ok(Taken::All) => {}
            Err(Halt::Torn(slot)) => {
                subscriber.torn = BTreeSet::from([slot]);
                // A producer that sets rows again and again would overtake each batch that others have their turns within.
                let overtaken = || memory.look(slot, memory.now()).is_ok();
                subscriber.hurried |= !lost && (goes_on || work.is_over()) && overtaken();
            }
            Err(Halt::Exhausted(why)) => return Due::Unpaid(why),
        }
        slots = taking.slots;
        let later = memory.now();
        if !lost && work.is_over() {
            // Where it was overtaken, it is whole at a later moment.
            let stays = subscriber.torn.first().is_some_and(|&slot| memory.look(slot, later).is_err());
            subscriber.put_back(slots, now);
            subscriber.dirty = true;
            return if stays { Due::Unknown } else { Due::Unfinished };
        }
        if lost && later.done > now.done {
            // A lost producer has set more, and nobody can say any more what was due: its rows end as they were later. All
            // of them may have been set by then, and no subscriber that is still sent some goes back behind that.
            *ended = Some(later);
            subscribers.values_mut().for_each(|it| (it.all, it.taking) = (true, None));
        }
        if last {
            break;
        }
    }
    // Torn again and again: it is tried once more at the next turn.
    let now = partition.memory.now();
    if let Some(subscriber) = partition.subscribers.get_mut(&peer) {
        subscriber.put_back(slots, now);
        subscriber.dirty = true;
    }
    Due::Unknown
}

/// A batch has been taken whole.
fn taken_whole(subscriber: &mut Subscriber, taking: Taking, lost: bool, turn: u64) -> Due {
    let Taking { now, turn: begun, batch, .. } = taking;
    subscriber.torn.clear();
    subscriber.hurried = false;
    let more = !subscriber.changed.is_empty() || subscriber.all || !lost && subscriber.waits();
    // What a flush that came since it was begun waits for is known when it has been looked at once more.
    subscriber.dirty = more || begun < turn;
    let nothing = batch.rows.is_empty() && subscriber.floor == now.floor && subscriber.done == now.done;
    if nothing && std::mem::replace(&mut subscriber.begun, true) {
        return Due::Nothing { turn: begun };
    }
    subscriber.begun = true;
    (subscriber.done, subscriber.floor) = (now.done, now.floor);
    let head = Head { serial: subscriber.serial, done: now.done, floor: now.floor, ..Head::default() };
    let mut batch = batch.whole(head);
    batch.turn = begun;
    Due::Rows(batch)
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
    collect(partition, scratch);
    // Behind `collect`: where it says that rows have changed that are not listed, those of every set before the last that it found
    // are looked at as that set's predecessor left them.
    let now = partition.ended.unwrap_or_else(|| partition.memory.now());
    let Partition { memory, subscribers, .. } = partition;
    let Some(subscriber) = subscribers.get_mut(&peer) else { return Ok(Needed::None) };
    subscriber.ripen(now);
    subscriber.floor = now.floor;
    let mut batch = Batch::new(id, row_bytes, 0, account)?;
    let slots = some_candidates(subscriber, now, work.left());
    // Where all that can be done is, those that were torn are looked at once more, a few at a time.
    let again = subscriber.some_torn(1 + work.left() / TORN).into_iter().map(|slot| slot..slot + 1);
    let (mut left, mut looked) = (Vec::new(), false);
    let ranges = slots.into_iter().map(|range| (range, false)).chain(again.map(|range| (range, true)));
    for (range, again) in ranges {
        let places = subscriber.rows.place(range.start.into()).unwrap_or(0)..;
        for (slot, place) in range.clone().zip(places) {
            // One at least, so that each step leaves fewer.
            if std::mem::replace(&mut looked, true) && work.is_over() {
                if !again {
                    left.push(Changed { first: slot, count: range.end - slot, set: now.done as u32 });
                }
                break;
            }
            work.look(1);
            let (version, number) = subscriber.have[place as usize];
            let needs = &subscriber.needs.versions;
            let at = needs.partition_point(|&need| need <= version);
            let need = needs.get(at).copied();
            if !subscriber.torn.is_empty() {
                subscriber.torn.remove(&slot);
            }
            let Some(need) = need else { continue };
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
                Err(Torn) => _ = subscriber.torn.insert(slot),
            }
            batch.values.truncate(start);
        }
    }
    subscriber.changed.extend(left);
    // What is torn may stay so: it is nothing that can be done.
    let more = !subscriber.changed.is_empty() || !subscriber.unseen.is_empty() || subscriber.all;
    subscriber.dirty = more || subscriber.waits();
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
            let look = partition.memory.read(slot as u32, now, &mut batch.values[start..]);
            batch.push(place, look.map_err(|Torn| Halt::Torn(slot as u32))?, true);
            Ok(())
        });
        match taken {
            Ok(()) => {
                subscriber.handing_over = false;
                let head = Head { serial: subscriber.serial, apart: true, ..Head::default() };
                return Ok(Some(batch.whole(head)));
            }
            Err(Halt::Torn(_)) => {}
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
    if subscriber.fetches.is_empty() {
        subscriber.pass = None;
        return Ok(Fetched::None { turn });
    }
    let here = partition.upstream.is_none();
    let before = memory.now();
    let goes_on = subscriber.pass.take();
    if goes_on.is_none() && subscriber.unanswerable == Some(before) {
        return Ok(Fetched::None { turn });
    }
    let Pass { next, turn, since } = goes_on.unwrap_or(Pass { next: 0, turn, since: Some(before) });
    for at in next..subscriber.fetches.len() {
        let pending = &mut subscriber.fetches[at];
        let answerable = match work.is_over() {
            true => Answerable::Unknown,
            false => pending.look(memory, here, work),
        };
        match answerable {
            Answerable::Yes => {}
            Answerable::NotYet => {
                work.look(1);
                continue;
            }
            Answerable::Apart => {
                work.look(1);
                pending.ask_again();
                continue;
            }
            Answerable::Unknown => {
                subscriber.pass = Some(Pass { next: at, turn, since });
                return Ok(Fetched::Unknown);
            }
        }
        for _ in 0..ATTEMPTS {
            let now = memory.now();
            let mut batch = Batch::new(id, row_bytes, pending.slots.len(), account)?;
            let mut together = Together::default();
            let mut torn = None;
            while let Some(&slot) = pending.slots.get(together.looked()) {
                work.copy(row_bytes);
                let start = batch.room(1)?;
                let Ok(look) = memory.read(slot, now, &mut batch.values[start..]) else {
                    torn = Some(slot);
                    break;
                };
                let place = subscriber.rows.place(slot.into()).unwrap_or(0) as u32;
                batch.push(place, look, true);
                together.take(slot, &look);
            }
            if let Some(slot) = torn {
                pending.torn = torn;
                // Where it was overtaken, it is whole at a later moment; where it stays torn, that costs no more than a look.
                if memory.look(slot, memory.now()).is_err() {
                    break;
                }
                if work.is_over() {
                    subscriber.pass = Some(Pass { next: at, turn, since });
                    return Ok(Fetched::Unknown);
                }
                continue;
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
            subscriber.pass = goes_on.map(|_| Pass { next: at, turn, since });
            return Ok(Fetched::Rows(batch.whole(head)));
        }
    }
    subscriber.unanswerable = since.filter(|_| goes_on.is_some());
    Ok(Fetched::None { turn })
}
