//! A shard's memory: what its machine acts on, and what of it is sent to workers on other hosts.

use super::shard::Flags;
use penstock_fabric::memory::{HomeChunk, HomeMemory, LaneView};
use penstock_fabric::net::remote_peer::Homed;
use penstock_fabric::publish::Published;
use penstock_fabric::spent::Spent;
use penstock_fabric::sync::Ordering;
use penstock_kernels::filter::{Coordinates, Pressure};
use penstock_kernels::{Foreign, Plan, SumRoom, fold_summed};
use penstock_proto::consistency::Consistency;
use penstock_proto::encoding::{Agreed, Encoding, Sent};
use penstock_proto::factors::LowRank;
use penstock_proto::factors::down::{Named, Needed};
use penstock_proto::layer::Layer;
use penstock_proto::numbered::Numbered;
use penstock_proto::overlay::{Member, Routes};
use penstock_proto::pressure::{Change, Flow, Gauge};
use penstock_proto::propagation::Propagation;
use penstock_proto::remote::home::{Chunks, Event, Publication};
use penstock_proto::remote::judge::LanePart;
use penstock_proto::remote::ledger::Ledger;
use penstock_proto::seal::Sealer;
use penstock_proto::shard::{Fold, Folded, Home, NonFiniteFrom};
use penstock_proto::travel::Terms;
use penstock_proto::update::Updates;
use penstock_proto::{Rank, TensorId};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Bytes that are worked on between two signs of life: a submission may be about any number of them.
const BYTES_A_BEAT: usize = 4 << 20;
/// What a chunk costs that is published though nothing was folded, in looks ([`super::pace::Pace::work`]). What a filter or a flush
/// goes over then is not in it: each flush of a chunk is behind a fold, which costs as much, and over a job's life a filter goes over
/// a chunk that rests some thirty times ([`Behind`](penstock_kernels::filter::Behind)).
const LOOKS_A_PUBLICATION: usize = 8;
/// Bytes that are worked on in the time that a publication takes at least.
const BYTES_A_PUBLICATION: usize = 512;

/// Writers whose lanes fit on the stack; more are collected on the heap.
const USUAL_WRITERS: usize = 32;

/// Tensors to which something has happened since all were told.
#[derive(Debug, Clone, Copy)]
pub(super) enum Touched {
    One(TensorId),
    Many,
}

impl Touched {
    /// That, and something to this one.
    fn and(touched: Option<Self>, id: TensorId) -> Self {
        match touched {
            None => Self::One(id),
            Some(Self::One(other)) if other == id => Self::One(id),
            Some(_) => Self::Many,
        }
    }
}

/// A shard's memory.
pub(super) struct Memory {
    shard: u32,
    tensors: Numbered<TensorMemory>,
    /// Those whose filter follows the network.
    following: Vec<TensorId>,
    touched: Option<Touched>,
    /// Those of which some chunk was published.
    published: Option<Touched>,
    /// Kept only while some worker is on another host.
    events: Option<Vec<Event>>,
    life: Life,
    /// Whether the chunk at hand was folded just now.
    folded: bool,
    /// What chunks cost that were published though nothing was folded, in looks, since it was asked.
    idle_looks: usize,
    /// Peers on other hosts; of these, how many come by routes, and to how many of those each stripe goes from here.
    links: usize,
    members: usize,
    fed: Vec<usize>,
    /// The share of each stripe that values go in to peers on other hosts.
    shares: Vec<u32>,
    /// What seals those that are passed on.
    sealer: Option<Sealer>,
    spent: Arc<Spent>,
    /// Where contributions are summed that are sent as updates.
    sum: SumRoom,
}

/// Shows that the shard lives while it works.
struct Life {
    flags: Flags,
    shard: u32,
    /// Bytes since the last sign of it.
    worked: usize,
    /// Whether there was one since it was asked.
    long: bool,
}

impl Life {
    fn work(&mut self, bytes: usize) {
        self.worked += bytes;
        if self.worked >= BYTES_A_BEAT {
            (self.worked, self.long) = (0, true);
            self.flags.beat(self.shard);
        }
    }
}

struct TensorMemory {
    plan: Plan,
    home: HomeMemory,
    lanes: Vec<Option<LaneView>>,
    ledger: Ledger,
    /// How hard the network presses, where the filter follows that.
    pressed: Option<Pressed>,
}

/// How hard the network presses what is sent of a tensor's values.
struct Pressed {
    gauge: Gauge,
    /// Versions since it was looked at.
    versions: u32,
    version: u64,
}

impl Memory {
    /// Counts the time that folds and filters take.
    pub(super) fn count_time(&mut self, spent: Arc<Spent>) {
        self.spent = spent;
    }

    pub(super) fn new(shard: u32, flags: Flags) -> Self {
        let life = Life { flags, shard, worked: 0, long: false };
        let (tensors, following) = (Numbered::default(), Vec::new());
        let (touched, published, events) = (None, None, None);
        Self {
            shard,
            tensors,
            following,
            touched,
            published,
            events,
            life,
            folded: false,
            idle_looks: 0,
            links: 0,
            members: 0,
            fed: Vec::new(),
            shares: Vec::new(),
            sealer: None,
            spent: Arc::default(),
            sum: SumRoom::default(),
        }
    }

    /// So many peers are on other hosts.
    pub(super) fn serve(&mut self, links: usize) {
        self.links = links;
    }

    /// Whether so much was worked on since the last call of this that others may have to be shown that this thread lives.
    pub(super) fn take_long(&mut self) -> bool {
        std::mem::take(&mut self.life.long)
    }

    /// A worker has left: nothing is kept of what it alone is charged for.
    pub(super) fn left(&mut self, rank: Rank) {
        self.tensors.iter_mut().for_each(|(_, tensor)| tensor.ledger.left(rank));
    }

    /// What chunks cost that were published though nothing was folded, in looks, since the last call of this.
    pub(super) fn take_idle_looks(&mut self) -> usize {
        std::mem::take(&mut self.idle_looks)
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

    /// Which workers to wake; and which of those that wait for single chunks.
    pub(super) fn take_touched(&mut self) -> (Option<Touched>, Option<Touched>) {
        (self.touched.take(), self.published.take())
    }

    pub(super) fn declare(
        &mut self,
        id: TensorId,
        plan: Plan,
        terms: Arc<Terms>,
        home: HomeMemory,
        consistency: Consistency,
        workers: u32,
    ) {
        let lanes = (0..workers).map(|_| None).collect();
        let gauge = terms.filter.follows().map(|follows| Gauge::new(follows, consistency));
        let pressed = gauge.map(|gauge| Pressed { gauge, versions: 0, version: 0 });
        if pressed.is_some() && self.tensors.get(id).is_none() {
            self.following.push(id);
        }
        let lengths = home.chunks().iter().map(|&chunk| home.range(chunk).len());
        let ledger = Ledger::new(id, terms, lengths, workers, &self.shares);
        let tensor = TensorMemory { plan, home, lanes, ledger, pressed };
        self.tensors.insert(id, tensor);
    }

    /// Values that go by others too go along these routes.
    pub(super) fn send_along(&mut self, routes: &Routes) {
        let is_fed = |member: &Member, stripe: usize| {
            member.feeds.get(stripe).is_none_or(|feed| feed.parent.is_none())
        };
        let fed = |stripe| routes.members.values().filter(|member| is_fed(member, stripe)).count();
        self.members = routes.members.len();
        self.fed = (0..routes.shares.len()).map(fed).collect();
    }

    /// How routes cut what goes to peers on other hosts.
    pub(super) fn stripe_by(&mut self, shares: &[u32]) {
        self.shares = shares.to_vec();
        self.tensors.iter_mut().for_each(|(_, tensor)| tensor.ledger.stripe_by(shares));
    }

    /// Tensors that are broadcast.
    pub(super) fn broadcast(&self) -> Vec<TensorId> {
        let is_broadcast =
            |tensor: &TensorMemory| tensor.ledger.terms().propagation == Propagation::Broadcast;
        self.tensors.iter().filter(|(_, tensor)| is_broadcast(tensor)).map(|(id, _)| id).collect()
    }

    /// Whether a tensor's values go by others too; whether that is new.
    pub(super) fn go_by_trees(&mut self, id: TensorId, by_trees: bool) -> bool {
        self.tensors.get_mut(id).is_some_and(|tensor| tensor.ledger.go_by_trees(by_trees))
    }

    /// What is passed on is sealed with this.
    pub(super) fn seal_with(&mut self, sealer: Sealer) {
        self.sealer = Some(sealer);
    }

    /// Whether some filter follows the network.
    pub(super) fn follows(&self) -> bool {
        !self.following.is_empty()
    }

    /// Looks at how hard the network presses, for those tensors of which enough versions were published since; `flows`: by the peers'
    /// places, of those on other hosts.
    pub(super) fn look_at_network(&mut self, now: Duration, mut flows: impl FnMut() -> Vec<Option<Flow>>) {
        for &id in &self.following {
            let Some(pressed) = self.tensors.get_mut(id).and_then(|tensor| tensor.pressed.as_mut()) else {
                continue;
            };
            let versions = std::mem::take(&mut pressed.versions);
            if pressed.gauge.is_time(versions, now) {
                pressed.gauge.look(now, pressed.version + 1, flows().into_iter());
            }
        }
    }

    /// How the filter of a tensor's values has followed it: its last changes.
    pub(super) fn followed(&self, id: TensorId) -> Vec<Change> {
        let pressed = self.tensors.get(id).and_then(|tensor| tensor.pressed.as_ref());
        pressed.map(|pressed| pressed.gauge.changes().copied().collect()).unwrap_or_default()
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

    fn tensor(&mut self, id: TensorId) -> &mut TensorMemory {
        self.tensors.get_mut(id).expect("the machine acts on declared tensors")
    }

    fn touch(&mut self, id: TensorId) {
        self.touched = Some(Touched::and(self.touched, id));
    }
}

impl TensorMemory {
    fn parts(&mut self) -> (&Plan, &mut HomeMemory, &[Option<LaneView>]) {
        (&self.plan, &mut self.home, &self.lanes)
    }

    /// The chunk is about to change, or to be published as it is: called before it is entered, or behind that, where it does
    /// nothing, because a chunk that was entered has a number that no publication has.
    fn keep(&mut self, local: usize, chunk: u32) {
        self.ledger.keep(local, self.home.sequence(local), self.home.seen(chunk));
    }
}

impl Chunks for Memory {
    fn chunks(&self, id: TensorId) -> usize {
        self.look(id).ledger.len()
    }

    fn publication(&self, id: TensorId, local: usize) -> Publication {
        let TensorMemory { home, ledger, .. } = self.look(id);
        ledger.publication(local, home.sequence(local))
    }

    fn local(&self, id: TensorId, chunk: u32) -> Option<usize> {
        self.look(id).home.find(chunk)
    }

    fn broadcasts(&self, id: TensorId) -> bool {
        self.look(id).ledger.terms().propagation.is_unasked()
    }

    fn sends_updates(&self, id: TensorId) -> bool {
        self.look(id).ledger.updates().is_some()
    }

    fn update_base(&self, id: TensorId, local: usize) -> Option<u64> {
        self.look(id).ledger.update_base(local)
    }

    fn needed(&self, id: TensorId, local: usize, place: usize) -> Option<Needed> {
        self.look(id).ledger.needed(local, place)
    }

    fn has_lane(&self, id: TensorId, rank: Rank) -> bool {
        self.tensors.get(id).is_some_and(|tensor| tensor.lanes[rank as usize].is_some())
    }

    fn goes_by_trees(&self, id: TensorId) -> bool {
        self.look(id).ledger.goes_by_trees()
    }

    fn stripe(&self, id: TensorId, local: usize) -> usize {
        self.look(id).ledger.stripe(local)
    }

    fn digest(&self, id: TensorId, stripe: usize) -> u64 {
        self.look(id).ledger.digest(stripe)
    }
}

impl Homed for Memory {
    fn homed(&self, id: TensorId, chunk: u32) -> Option<Range<usize>> {
        let tensor = self.tensors.get(id)?;
        tensor.home.find(chunk).map(|_| tensor.home.range(chunk))
    }

    fn start(&self, id: TensorId, chunk: u32) -> Option<u64> {
        let home = &self.tensors.get(id)?.home;
        home.find(chunk).map(|_| home.start(chunk))
    }

    fn contributions(&self, id: TensorId) -> &Agreed {
        self.look(id).ledger.contributions()
    }

    fn low_rank(&self, id: TensorId) -> Option<LowRank> {
        self.tensors.get(id)?.ledger.low_rank()
    }

    fn receive(&mut self, part: &LanePart) -> &mut [u8] {
        let tensor = self.tensor(part.tensor);
        if let Some(local) = tensor.home.find(part.chunk) {
            tensor.ledger.receives(part.rank, local);
        }
        self.lane(part.tensor, part.rank).receive(part.range.clone())
    }

    fn keep_right(&mut self, id: TensorId, writer: Rank, rank: u32, bytes: &[u8]) {
        self.tensor(id).ledger.keep_right(writer, rank, bytes);
    }

    fn keep_rows(&mut self, part: &LanePart, rank: u32, rows: &[u8]) {
        let tensor = self.tensor(part.tensor);
        if let Some(local) = tensor.home.find(part.chunk) {
            tensor.ledger.keep_rows(part.rank, local, rank, rows);
        }
    }

    fn right(&self, id: TensorId, name: Named) -> &[u8] {
        self.look(id).ledger.right(name).expect("an update is sent while what it names is kept")
    }

    fn worked(&mut self, bytes: usize) {
        self.life.work(bytes);
    }

    fn links(&self, id: TensorId, local: usize) -> usize {
        let tensor = self.look(id);
        let stripe = tensor.ledger.stripe(local);
        match self.fed.get(stripe).filter(|_| tensor.ledger.goes_by_trees()) {
            None => self.links,
            Some(fed) => self.links.saturating_sub(self.members) + fed,
        }
    }

    fn chunk(&self, id: TensorId, local: usize) -> u32 {
        self.look(id).home.chunks()[local]
    }

    fn value(&self, id: TensorId, local: usize, position: u64) -> (u32, &Agreed, Sent<'_>) {
        let TensorMemory { home, ledger, .. } = self.look(id);
        let (chunk, sequence) = (home.chunks()[local], home.sequence(local));
        debug_assert!(sequence.is_multiple_of(2), "what is sent is published, and nobody is inside");
        (chunk, ledger.values(), ledger.send(local, sequence, home.seen(chunk), position))
    }

    fn updates(&self, id: TensorId) -> Option<&Updates> {
        self.look(id).ledger.updates()
    }

    fn update(&self, id: TensorId, local: usize) -> (u32, Encoding, &[u8]) {
        let TensorMemory { home, ledger, .. } = self.look(id);
        let (encoding, payload) = ledger.update(local);
        (home.chunks()[local], encoding, payload)
    }

    fn standing(&self, id: TensorId, local: usize) -> (u32, &[u8]) {
        let home = &self.look(id).home;
        debug_assert!(
            home.sequence(local).is_multiple_of(2),
            "what is sent is published, and nobody is inside"
        );
        (home.chunks()[local], home.seen(home.chunks()[local]))
    }

    fn sealer(&self) -> Option<&Sealer> {
        self.sealer.as_ref()
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
        let is_sent = self.events.is_some();
        let Self { tensors, sum, spent, .. } = self;
        let tensor = tensors.get_mut(id).expect("the machine acts on declared tensors");
        let local = tensor.home.find(chunk).expect("only what is homed here is folded here");
        tensor.keep(local, chunk);
        tensor.ledger.falls_behind(local);
        let TensorMemory { plan, home, lanes, ledger, .. } = tensor;
        let range = home.range(chunk);
        let worked = range.len() * (writers.len() + 1);
        let lane = |&writer: &Rank| lanes[writer as usize].as_ref().expect("who pushed has a lane");
        let contributions: SmallVec<[Foreign<'_>; USUAL_WRITERS]> =
            writers.iter().map(|writer| lane(writer).contribution(range.clone())).collect();
        home.expect_after(chunk);
        let mut chunk = home.chunk(chunk);
        chunk.header.begin();
        let Fold { settings, step, scale } = fold;
        let value = chunk.whole.unwrap_or(chunk.seen);
        let sum = ledger.updates().map(|_| sum.of(value.len()));
        let (folded, sum) = match sum {
            None => {
                let act = || {
                    penstock_kernels::fold(plan, settings, *step, *scale, &contributions, value, chunk.state)
                };
                (spent.on(Layer::Fold, act), None)
            }
            Some(sum) => {
                let state = chunk.state;
                let act = || fold_summed(plan, settings, *step, *scale, &contributions, sum, value, state);
                (spent.on(Layer::Fold, act), Some(&*sum))
            }
        };
        drop(contributions);
        self.folded = folded.is_ok();
        let folded = match folded {
            Ok(()) => {
                let mut tell = || ledger.folded(local, fold, writers, sum, is_sent);
                if sum.is_some() {
                    spent.on(Layer::Encode, tell)
                } else {
                    tell()
                }
                Ok(Folded::Committed)
            }
            Err(refused) => {
                chunk.header.leave();
                Err(NonFiniteFrom(writers[refused.lane]))
            }
        };
        self.life.work(worked);
        folded
    }

    fn commit(&mut self, _: TensorId, _: u32) {
        unreachable!("what is folded here is in the value at once");
    }

    fn load(&mut self, id: TensorId, chunk: u32, slot: u32, part: u32, writer: Rank) {
        let tensor = self.tensor(id);
        let local = tensor.home.find(chunk).expect("only what is homed here is loaded here");
        tensor.keep(local, chunk);
        tensor.ledger.loaded(local, slot);
        let TensorMemory { plan, home, lanes, .. } = tensor;
        // Arrays are as long as the value, or twice as long where their elements are twice as wide.
        let parts = plan.dtype.accumulator_size() / plan.dtype.size();
        let lane = lanes[writer as usize].as_ref().expect("who loads has a lane");
        let contribution = lane.contribution(home.range(chunk));
        let HomeChunk { mut header, seen, whole, state } = home.chunk(chunk);
        header.begin();
        let bytes = seen.len();
        match slot {
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
        self.life.work(bytes);
    }

    fn flush(&mut self, id: TensorId, chunk: u32) -> bool {
        let tensor = self.tensor(id);
        let local = tensor.home.find(chunk).expect("only what is homed here is flushed here");
        tensor.keep(local, chunk);
        if !tensor.ledger.catches_up(local) {
            return false;
        }
        let HomeChunk { mut header, seen, whole, .. } = tensor.home.chunk(chunk);
        let bytes = seen.len();
        let passes = whole.filter(|whole| **whole != *seen);
        let flushed = passes.is_some();
        if let Some(whole) = passes {
            header.begin();
            seen.copy_from_slice(whole);
            tensor.ledger.changes(local);
        }
        self.life.work(bytes);
        flushed
    }

    fn publish(&mut self, id: TensorId, chunk: u32, version: u64, steps: u64) {
        let folded = std::mem::take(&mut self.folded);
        let Self { tensors, published: told, spent, .. } = self;
        let tensor = tensors.get_mut(id).expect("the machine acts on declared tensors");
        let local = tensor.home.find(chunk).expect("only what is homed here is published here");
        tensor.keep(local, chunk);
        let TensorMemory { plan, home, pressed, ledger, .. } = tensor;
        let unseen = ledger.is_unseen(local, version, home.sequence(local) > 0);
        let mut filtered = 0;
        if ledger.is_behind(local) && !unseen {
            let first = home.start(chunk) / plan.dtype.size() as u64;
            let HomeChunk { mut header, seen, whole, .. } = home.chunk(chunk);
            let whole = whole.expect("it was made for a filter that holds back");
            header.begin();
            let pressure = pressed.as_ref().map_or(Pressure::NONE, |pressed| pressed.gauge.pressure());
            let at = Coordinates::of_version(version, first, pressure);
            let choices = spent.on(Layer::Filter, || ledger.choose(local, at, whole, seen));
            filtered = seen.len() * (choices * ledger.terms().filter.passes()) as usize;
        }
        home.header(chunk).publish(Published { version, steps });
        *told = Some(Touched::and(*told, id));
        ledger.published(local, version, steps, home.sequence(local));
        if !folded {
            self.idle_looks += LOOKS_A_PUBLICATION;
        }
        self.life.work(BYTES_A_PUBLICATION + filtered);
        if let Some(events) = self.events.as_mut().filter(|_| !unseen) {
            events.push(Event::Published { tensor: id, local });
        }
    }

    fn progress(&mut self, id: TensorId, version: u64) {
        let tensor = self.tensor(id);
        if let Some(pressed) = &mut tensor.pressed {
            (pressed.versions, pressed.version) = (pressed.versions.saturating_add(1), version);
        }
        let (_, home, _) = tensor.parts();
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
