//! Batches: which rows a subscriber is sent now, as they were at one moment.

use super::Partition;
use super::spares::Scratch;
use super::subscriber::{Answerable, Pass, Subscriber, Together, ripe, some_candidates, subscribed};
use super::taken::{Batch, Taking};
use super::work::Work;
use crate::account::{Account, Exhausted};
use crate::items::row_memory::{Changed, Memory, Moment, Torn, Unlisted};
use crate::items::spec::Propagation;
use crate::items::wire::{Head, PartitionId};
use crate::peer::PeerId;
use std::collections::{BTreeSet, VecDeque};

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
    /// Something that cannot be taken yet: a row is torn, or not all rows have come.
    Waits,
    /// Not all has been looked at in this step.
    Unfinished,
    /// Another partition's batch that is being taken comes first.
    Behind,
    /// More than the peer can pay for.
    Unpaid(Exhausted),
}

/// Passes on to the subscribers which rows have changed. In memory that it shares, a producer that was lost may go on writing: that
/// is not followed.
/// For how many iterations the producer has said that its rows are complete, as that was then: for a later number all rows have to be
/// looked at.
pub(super) fn collect<M: Memory>(partition: &mut Partition<M>, scratch: &mut Vec<Changed>) -> u64 {
    if let Some(ended) = partition.ended {
        return ended.floor;
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
    floor
}

/// All rows that a subscriber lacks, as they were at one moment.
pub(super) fn eager<M: Memory>(
    partition: &mut Partition<M>,
    peer: PeerId,
    id: PartitionId,
    account: &Account,
    scratch: &mut Scratch,
    turn: u64,
    work: &mut Work,
) -> Due {
    let row_bytes = partition.shape.row_bytes as usize;
    let is_whole = work.is_whole();
    for _ in 0..ATTEMPTS {
        // Of what a lost producer writes later, no set is passed on in part either.
        let now = partition.ended.unwrap_or_else(|| partition.memory.now());
        collect(partition, &mut scratch.changed);
        let Partition { memory, subscribers, ended, overtaken, .. } = &mut *partition;
        let Some(subscriber) = subscribers.get_mut(&peer).filter(|subscriber| subscriber.ready) else {
            return Due::Waits;
        };
        let lost = ended.is_some();
        subscriber.dirty = true;
        // Memory that its producer shares may say so. A peer that is told so would conclude that this side breaks the protocol.
        let before = subscriber.taking.as_ref().map_or(subscriber.done, |taking| taking.now.done);
        if now.done < before {
            if let Some(taking) = subscriber.taking.take() {
                subscriber.give_up(taking);
            }
            subscriber.dirty = !lost;
            return if lost { Due::Nothing { turn } } else { Due::Waits };
        }
        let mut taking = match subscriber.taking.take() {
            Some(mut begun) => {
                if begun.is_through() {
                    overtaken.0 += 1;
                    subscriber.due(&mut begun, now, turn);
                }
                begun
            }
            None => {
                // As long as it is torn, nothing can be taken.
                if !lost && subscriber.torn.first().is_some_and(|&slot| memory.look(slot, now).is_err()) {
                    return Due::Waits;
                }
                subscriber.torn.clear();
                let batch = match Batch::new(id, row_bytes, 0, account) {
                    Ok(batch) => batch,
                    Err(why) => return Due::Unpaid(why),
                };
                // It has what the batch before had.
                let before = Moment { done: subscriber.done, ..now };
                let mut taking = Box::new(Taking::new(before, turn, lost, batch));
                subscriber.due(&mut taking, now, turn);
                taking
            }
        };
        let left = work.left();
        std::mem::swap(&mut taking.spares, &mut scratch.spares);
        let taken = take(&mut taking, subscriber, memory, work);
        std::mem::swap(&mut taking.spares, &mut scratch.spares);
        taking.spend(left - work.left());
        match taken {
            Ok(true) => {}
            Ok(false) => return goes_on(taking, subscriber, account, is_whole, work),
            Err(why) => {
                subscriber.give_up(taking);
                return Due::Unpaid(why);
            }
        }
        let Some(torn) = taking.torn() else {
            taking.batch.rest(&mut scratch.spares);
            return taken_whole(subscriber, *taking, lost, turn);
        };
        if lost {
            let later = memory.now();
            // Each row that it left whole can be read as long as it has finished no later set.
            if later.done <= now.done {
                taking.batch.rest(&mut scratch.spares);
                return taken_whole(subscriber, *taking, lost, turn);
            }
            // A lost producer has set more, and nobody can say any more what was due: its rows end as they were later. All
            // of them may have been set by then, and no subscriber that is still sent some goes back behind that.
            *ended = Some(later);
            subscribers.values_mut().for_each(|it| (it.all, it.taking) = (true, None));
            if let Some(subscriber) = subscribers.get_mut(&peer) {
                subscriber.taking = Some(taking);
            }
        } else if (0..ATTEMPTS).all(|_| memory.look(torn, memory.now()).is_err()) {
            // It was not overtaken: its producer has left it so.
            subscriber.torn = BTreeSet::from([torn]);
            subscriber.give_up(taking);
            return Due::Waits;
        } else {
            subscriber.taking = Some(taking);
        }
        if work.is_over() {
            break;
        }
    }
    let subscriber = partition.subscribers.get_mut(&peer);
    let Some((taking, subscriber)) = subscriber.and_then(|it| Some((it.taking.take()?, it))) else {
        return Due::Waits;
    };
    match goes_on(taking, subscriber, account, is_whole, work) {
        // Torn again and again: at the next turn.
        Due::Unfinished if !work.is_over() => Due::Waits,
        due => due,
    }
}

/// A batch goes on in the next step. `is_whole`: it had a whole one.
fn goes_on(
    mut taking: Box<Taking>,
    subscriber: &mut Subscriber,
    account: &Account,
    is_whole: bool,
    work: &Work,
) -> Due {
    if work.is_closed() {
        subscriber.give_up(taking);
        // In the next step there may be enough left.
        subscriber.behind = is_whole;
        return if is_whole { Due::Behind } else { Due::Unfinished };
    }
    if let Err(why) = taking.keep(account) {
        subscriber.give_up(taking);
        return Due::Unpaid(why);
    }
    subscriber.taking = Some(taking);
    Due::Unfinished
}

/// Takes rows as of the batch's moment, as many as there is work for; whether that was all.
fn take<M: Memory>(
    taking: &mut Taking,
    subscriber: &mut Subscriber,
    memory: &M,
    work: &mut Work,
) -> Result<bool, Exhausted> {
    loop {
        if !taking.take(memory, &subscriber.rows, subscriber.done, work)? {
            return Ok(false);
        }
        if taking.is_through() {
            return Ok(true);
        }
        if work.is_over() {
            return Ok(false);
        }
        let unseen = &mut taking.unseen;
        if !unseen.is_empty() {
            let places = unseen.start..unseen.end.min(unseen.start.saturating_add(work.left()));
            unseen.start = places.end;
            let slots = subscriber.rows.at(places).map(|range| subscribed(&range)).collect();
            taking.is_due(slots, true);
            continue;
        }
        // They are sorted, which takes as long as a look at each.
        let some = taking.changed.len().min(work.left().div_ceil(2) as usize);
        work.look(some as u64);
        let slots = ripe(subscriber, taking.changed.drain(..some), taking.now);
        if taking.changed.is_empty() {
            taking.changed = VecDeque::new();
        }
        taking.is_due(slots, false);
    }
}

/// A batch has been taken whole.
fn taken_whole(subscriber: &mut Subscriber, taking: Taking, lost: bool, turn: u64) -> Due {
    let Taking { now, turn: begun, batch, .. } = taking;
    subscriber.torn.clear();
    let more = !subscriber.changed.is_empty() || subscriber.all || !lost && subscriber.waits();
    // What a flush that came since it was begun waits for is known when it has been looked at once more.
    subscriber.dirty = more || begun < turn;
    let nothing = batch.is_empty() && subscriber.floor == now.floor && subscriber.done == now.done;
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
    /// None of those that have been looked at, and these are not all.
    Unfinished,
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
    let floor = collect(partition, scratch);
    // Behind `collect`: where it says that rows have changed that are not listed, those of every set before the last that it found
    // are looked at as that set's predecessor left them.
    let now = partition.ended.unwrap_or_else(|| partition.memory.now());
    let Partition { memory, subscribers, .. } = partition;
    let Some(subscriber) = subscribers.get_mut(&peer) else { return Ok(Needed::None) };
    subscriber.ripen(now, 0);
    // Not that of `now`, which may have risen since: nobody would look at all rows for it.
    subscriber.floor = floor;
    let mut batch = Batch::new(id, row_bytes, 0, account)?;
    let slots = some_candidates(subscriber, now, work.left());
    // Where all that can be done is, those that were torn are looked at once more, a few at a time.
    let again = subscriber.some_torn(1 + work.left() / TORN).into_iter().map(|slot| slot..slot + 1);
    let (mut left, mut looked, mut unpaid) = (Vec::new(), false, None);
    let ranges = slots.into_iter().map(|range| (range, false)).chain(again.map(|range| (range, true)));
    for (range, again) in ranges {
        let places = subscriber.rows.place(range.start.into()).unwrap_or(0)..;
        for (slot, place) in range.clone().zip(places) {
            // One at least, so that each step leaves fewer.
            if std::mem::replace(&mut looked, true) && (work.is_over() || unpaid.is_some()) {
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
            let start = match batch.room(1) {
                Ok(start) => start,
                Err(why) if work.is_closed() => {
                    // What is there is sent, and the rest when the other partition's batch is through.
                    unpaid = Some(why);
                    if again {
                        subscriber.torn.insert(slot);
                    } else {
                        left.push(Changed { first: slot, count: range.end - slot, set: now.done as u32 });
                    }
                    break;
                }
                Err(why) => return Err(why),
            };
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
    if let Some(why) = unpaid.filter(|_| batch.rows.is_empty()) {
        return Err(why);
    }
    match (batch.rows.is_empty(), more) {
        (false, _) => Ok(Needed::Rows(batch.whole(head))),
        (true, true) => Ok(Needed::Unfinished),
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
        let mut torn = false;
        for (slot, place) in subscriber.rows.iter().zip(0..) {
            let start = batch.room(1)?;
            match partition.memory.read(slot as u32, now, &mut batch.values[start..]) {
                Ok(look) => batch.push(place, look, true),
                Err(Torn) => torn = true,
            }
            if torn {
                break;
            }
        }
        if !torn {
            subscriber.handing_over = false;
            let head = Head { serial: subscriber.serial, apart: true, ..Head::default() };
            return Ok(Some(batch.whole(head)));
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
    Unfinished,
}

/// The answer to a subscriber's first fetch that can be answered, if that is found by as much `work` as is left. Those that never
/// will be are kept no more.
pub(super) fn fetched<M: Memory>(
    partition: &mut Partition<M>,
    peer: PeerId,
    id: PartitionId,
    account: &Account,
    turn: u64,
    work: &mut Work,
) -> Result<Fetched, Exhausted> {
    let found = first_answer(partition, peer, id, account, turn, work);
    if let Some(subscriber) = partition.subscribers.get_mut(&peer).filter(|it| it.over > 0) {
        subscriber.drop_what_is_over(!matches!(found, Ok(Fetched::Rows(_))));
    }
    found
}

fn first_answer<M: Memory>(
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
    let (here, ended) = (partition.upstream.is_none(), partition.ended.is_some());
    let before = memory.now();
    let goes_on = subscriber.pass.take();
    if goes_on.is_none() && subscriber.unanswerable == Some(before) {
        return Ok(Fetched::None { turn });
    }
    let Pass { next, turn, since } = goes_on.unwrap_or(Pass { next: 0, turn, since: Some(before) });
    for at in next..subscriber.fetches.len() {
        let pending = &mut subscriber.fetches[at];
        let answerable = match work.is_over() {
            true => Answerable::Unfinished,
            false if pending.is_over => Answerable::NotYet,
            false => pending.look(memory, &subscriber.rows, here, ended, work),
        };
        match answerable {
            Answerable::Yes => {}
            Answerable::NotYet => {
                work.look(1);
                continue;
            }
            Answerable::Never => {
                work.look(1);
                subscriber.over += 1;
                continue;
            }
            Answerable::Apart => {
                work.look(1);
                pending.ask_again();
                continue;
            }
            Answerable::Unfinished => {
                subscriber.pass = Some(Pass { next: at, turn, since });
                return Ok(Fetched::Unfinished);
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
                    return Ok(Fetched::Unfinished);
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
