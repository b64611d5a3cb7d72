//! A shard's memory: what its machine acts on, and what of it is sent to workers on other hosts.

use penstock_fabric::memory::{HomeChunk, HomeMemory, LaneView};
use penstock_fabric::net::remote_peer::Homed;
use penstock_fabric::publish::Published;
use penstock_fabric::sync::Ordering;
use penstock_kernels::filter::Coordinates;
use penstock_kernels::{Foreign, Plan};
use penstock_proto::checksum::OncePublished;
use penstock_proto::encoding::{Agreed, Sent, Source};
use penstock_proto::numbered::Numbered;
use penstock_proto::remote::home::{Chunks, Event, Publication};
use penstock_proto::remote::judge::LanePart;
use penstock_proto::shard::{Fold, Folded, Home, NonFiniteFrom};
use penstock_proto::stream::Streams;
use penstock_proto::travel::Terms;
use penstock_proto::{Rank, TensorId};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// Writers whose lanes fit on the stack; more are collected on the heap.
const USUAL_WRITERS: usize = 32;

/// Tensors to which something has happened since all were told.
#[derive(Debug, Clone, Copy)]
pub(super) enum Touched {
    One(TensorId),
    Many,
}

/// A shard's memory.
pub(super) struct Memory {
    shard: u32,
    tensors: Numbered<TensorMemory>,
    touched: Option<Touched>,
    /// Kept only while some worker is on another host.
    events: Option<Vec<Event>>,
}

struct TensorMemory {
    plan: Plan,
    /// How its chunks travel.
    terms: Arc<Terms>,
    /// What workers on other hosts held, where that has to be kept.
    streams: Option<Streams>,
    home: HomeMemory,
    lanes: Vec<Option<LaneView>>,
    /// Of each chunk homed here.
    published: Vec<Published>,
    /// Likewise: what stands there, as it is sent to several.
    sums: Vec<OncePublished>,
}

impl Memory {
    pub(super) fn new(shard: u32) -> Self {
        Self { shard, tensors: Numbered::default(), touched: None, events: None }
    }

    /// From now on events are kept for [`Memory::events`].
    pub(super) fn keep_events(&mut self) {
        self.events.get_or_insert_default();
    }

    /// What has happened since the last look.
    pub(super) fn events(&mut self) -> Vec<Event> {
        self.events.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The events' buffer back, so that it is allocated once.
    pub(super) fn recycle(&mut self, mut events: Vec<Event>) {
        events.clear();
        if let Some(kept) = &mut self.events
            && kept.is_empty()
        {
            *kept = events;
        }
    }

    /// Which workers to wake.
    pub(super) fn take_touched(&mut self) -> Option<Touched> {
        self.touched.take()
    }

    pub(super) fn declare(
        &mut self,
        id: TensorId,
        plan: Plan,
        terms: Arc<Terms>,
        home: HomeMemory,
        workers: u32,
    ) {
        let lanes = (0..workers).map(|_| None).collect();
        let published = vec![Published { version: 0, steps: 0 }; home.chunks().len()];
        let streams = Streams::new(&terms, home.chunks().iter().map(|&chunk| home.range(chunk).len()));
        let sums = home.chunks().iter().map(|_| OncePublished::default()).collect();
        let tensor = TensorMemory { plan, terms, streams, home, lanes, published, sums };
        self.tensors.insert(id, tensor);
    }

    /// When a worker declares a tensor again it must not get a second lane: contributions may wait in the first.
    pub(super) fn give_lane(&mut self, id: TensorId, rank: Rank, lane: LaneView) {
        let slot = &mut self.tensor(id).lanes[rank as usize];
        let taken = slot.as_ref().is_some_and(LaneView::is_private);
        if !taken {
            *slot = Some(lane);
        }
    }

    /// The lane of a worker that has one.
    pub(super) fn lane(&mut self, id: TensorId, rank: Rank) -> &mut LaneView {
        self.tensor(id).lanes[rank as usize].as_mut().expect("it was asked whether there is one")
    }

    fn look(&self, id: TensorId) -> &TensorMemory {
        self.tensors.get(id).expect("it was asked whether it is declared")
    }

    /// What readers see of a chunk, where it stands.
    #[cfg(test)]
    pub(super) fn standing(&self, id: TensorId, local: usize) -> &[u8] {
        let home = &self.look(id).home;
        home.seen(home.chunks()[local])
    }

    fn tensor(&mut self, id: TensorId) -> &mut TensorMemory {
        self.tensors.get_mut(id).expect("the machine acts on declared tensors")
    }

    fn touch(&mut self, id: TensorId) {
        self.touched = match self.touched {
            None => Some(Touched::One(id)),
            Some(Touched::One(other)) if other == id => Some(Touched::One(id)),
            Some(_) => Some(Touched::Many),
        };
    }
}

impl TensorMemory {
    fn parts(&mut self) -> (&Plan, &mut HomeMemory, &[Option<LaneView>]) {
        (&self.plan, &mut self.home, &self.lanes)
    }

    /// The chunk is about to change, or to be published as it is: called before it is entered, or behind that, where it does
    /// nothing, because a chunk that was entered has a number that no publication has.
    fn keep(&mut self, chunk: u32) {
        if let Some(streams) = &mut self.streams
            && let Some(local) = self.home.find(chunk)
        {
            streams.keep(local, self.home.sequence(local), self.home.seen(chunk));
        }
    }
}

impl Chunks for Memory {
    fn chunks(&self, id: TensorId) -> usize {
        self.look(id).home.chunks().len()
    }

    fn publication(&self, id: TensorId, local: usize) -> Publication {
        let tensor = self.look(id);
        let Published { version, steps } = tensor.published[local];
        Publication { version, steps, sequence: tensor.home.sequence(local) }
    }

    fn local(&self, id: TensorId, chunk: u32) -> Option<usize> {
        self.look(id).home.find(chunk)
    }

    fn has_lane(&self, id: TensorId, rank: Rank) -> bool {
        self.tensors.get(id).is_some_and(|tensor| tensor.lanes[rank as usize].is_some())
    }
}

impl Homed for Memory {
    fn homed(&self, id: TensorId, chunk: u32) -> Option<Range<usize>> {
        let tensor = self.tensors.get(id)?;
        tensor.home.find(chunk).map(|_| tensor.home.range(chunk))
    }

    fn contributions(&self, id: TensorId) -> &Agreed {
        &self.look(id).terms.contributions
    }

    fn receive(&mut self, part: &LanePart) -> &mut [u8] {
        self.lane(part.tensor, part.rank).receive(part.range.clone())
    }

    fn value(&self, id: TensorId, local: usize, position: u64) -> (u32, &Agreed, Sent<'_>) {
        let TensorMemory { home, terms, streams, sums, .. } = self.look(id);
        let (chunk, sequence) = (home.chunks()[local], home.sequence(local));
        debug_assert!(sequence.is_multiple_of(2), "what is sent is published, and nobody is inside");
        let value = home.seen(chunk);
        let sent = match streams {
            None => {
                let source = Source::Published(value, &sums[local], sequence);
                Sent { source, shadow: None, position }
            }
            Some(streams) => streams.send(local, sequence, value, position),
        };
        (chunk, &terms.values, sent)
    }

    fn state(&self, id: TensorId, local: usize) -> (u32, &[u8]) {
        let home = &self.look(id).home;
        (home.chunks()[local], home.beside(home.chunks()[local]))
    }
}

impl Home for Memory {
    fn fold(
        &mut self,
        id: TensorId,
        chunk: u32,
        fold: &Fold,
        writers: &[Rank],
    ) -> Result<Folded, NonFiniteFrom> {
        let tensor = self.tensor(id);
        tensor.keep(chunk);
        let (plan, home, lanes) = tensor.parts();
        let range = home.range(chunk);
        let lane = |&writer: &Rank| lanes[writer as usize].as_ref().expect("who pushed has a lane");
        let contributions: SmallVec<[Foreign<'_>; USUAL_WRITERS]> =
            writers.iter().map(|writer| lane(writer).contribution(range.clone())).collect();
        home.expect_after(chunk);
        let mut chunk = home.chunk(chunk);
        chunk.header.begin();
        let Fold { settings, step, scale } = fold;
        let value = chunk.whole.unwrap_or(chunk.seen);
        let folded =
            penstock_kernels::fold(plan, settings, *step, *scale, &contributions, value, chunk.state);
        match folded {
            Ok(()) => Ok(Folded::Committed),
            Err(refused) => {
                chunk.header.leave();
                Err(NonFiniteFrom(writers[refused.lane]))
            }
        }
    }

    fn commit(&mut self, _: TensorId, _: u32) {
        unreachable!("what is folded here is in the value at once");
    }

    fn load(&mut self, id: TensorId, chunk: u32, slot: u32, part: u32, writer: Rank) {
        let tensor = self.tensor(id);
        tensor.keep(chunk);
        let TensorMemory { plan, home, lanes, .. } = tensor;
        // Arrays are as long as the value, or twice as long where their elements are twice as wide.
        let parts = plan.dtype.accumulator_size() / plan.dtype.size();
        let lane = lanes[writer as usize].as_ref().expect("who loads has a lane");
        let contribution = lane.contribution(home.range(chunk));
        let HomeChunk { mut header, seen, whole, state } = home.chunk(chunk);
        header.begin();
        let bytes = seen.len();
        match slot {
            // Nothing of what is loaded is held back: a filter's bound is for changes. Otherwise all that is small in a fresh model
            // would read zero.
            0 => match whole {
                None => contribution.copy_to(seen),
                Some(whole) => {
                    contribution.copy_to(whole);
                    seen.copy_from_slice(whole);
                }
            },
            slot => {
                let at = ((slot as usize - 1) * parts + part as usize) * bytes;
                contribution.copy_to(&mut state[at..at + bytes]);
            }
        }
    }

    fn flush(&mut self, id: TensorId, chunk: u32) -> bool {
        let tensor = self.tensor(id);
        tensor.keep(chunk);
        let HomeChunk { mut header, seen, whole, .. } = tensor.home.chunk(chunk);
        match whole {
            Some(whole) if *whole != *seen => {
                header.begin();
                seen.copy_from_slice(whole);
                true
            }
            _ => false,
        }
    }

    fn publish(&mut self, id: TensorId, chunk: u32, version: u64, steps: u64) {
        let published = Published { version, steps };
        let tensor = self.tensor(id);
        tensor.keep(chunk);
        let TensorMemory { plan, terms, home, .. } = tensor;
        if terms.filter.holds_back() {
            let first = home.start(chunk) / plan.dtype.size() as u64;
            let HomeChunk { mut header, seen, whole, .. } = home.chunk(chunk);
            let whole = whole.expect("it was made for a filter that holds back");
            header.begin();
            terms.filter.next(Coordinates::of_version(version, first), whole, seen);
        }
        home.header(chunk).publish(published);
        let local = home.find(chunk).expect("only what is homed here is published here");
        tensor.published[local] = published;
        if let Some(events) = &mut self.events {
            events.push(Event::Published { tensor: id, local });
        }
    }

    fn progress(&mut self, id: TensorId, version: u64) {
        let (_, home, _) = self.tensor(id).parts();
        // Pairs with the acquire load in the worker's pull: a worker that sees the progress sees the chunks.
        home.progress().0.store(version + 1, Ordering::Release);
        self.touch(id);
    }

    fn folded(&mut self, id: TensorId, writer: Rank, count: u64) {
        let shard = self.shard;
        let (_, _, lanes) = self.tensor(id).parts();
        if let Some(lane) = &lanes[writer as usize] {
            // Pairs with the acquire load before the worker writes its lane again: the home has read what it counts.
            lane.folded(shard).0.store(count, Ordering::Release);
        }
        if let Some(events) = &mut self.events {
            events.push(Event::Folded { tensor: id, writer, count });
        }
        self.touch(id);
    }
}
