//! A shard's memory in the simulator: lanes, values, state and mirrors as plain vectors, folded by the real kernels.
//!
//! What it keeps beside the bytes, and the rules of that, are the product's own ([`Ledger`]).
//!
//! A mirror is replaced as a whole when a chunk is published, and a reader takes it as a whole: what the model checker shows
//! of the real publish protocol is taken for granted here. Where a [`Sabotage`] is asked for, a promise is broken on purpose.

use crate::rng::Rng;
use crate::sabotage::Sabotage;
use penstock_fabric::net::remote_peer::Homed;
use penstock_kernels::filter::{Coordinates, Pressure};
use penstock_kernels::{Foreign, Plan, fold_summed};
use penstock_proto::chunk::Cut;
use penstock_proto::encoding::{Agreed, Encoding, Sent};
use penstock_proto::factors::LowRank;
use penstock_proto::factors::down::{Named, Needed};
use penstock_proto::propagation::Propagation;
use penstock_proto::remote::home::{Chunks, Event, Publication};
use penstock_proto::remote::judge::LanePart;
use penstock_proto::remote::ledger::Ledger;
use penstock_proto::seal::Sealer;
use penstock_proto::shard::{Fold, Folded, Home, NonFiniteFrom};
use penstock_proto::spec::TensorSpec;
use penstock_proto::travel::Terms;
use penstock_proto::update::Updates;
use penstock_proto::{Rank, TensorId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut, Range};
use std::rc::Rc;
use std::sync::Arc;

/// Bytes that start on a cache line, as the kernels ask for.
#[derive(Debug)]
pub struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// `len` zeros.
    pub fn zeroed(len: usize) -> Self {
        let bytes = vec![0; len + 64];
        let start = bytes.as_ptr().align_offset(64);
        Self { bytes, start, len }
    }

    /// A copy of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut copy = Self::zeroed(bytes.len());
        copy.copy_from_slice(bytes);
        copy
    }
}

impl Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..][..self.len]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.len]
    }
}

/// What stands published of a chunk.
#[derive(Debug, Clone)]
pub struct Mirror {
    /// Its version.
    pub version: u64,
    /// Optimizer steps behind it.
    pub steps: u64,
    /// Its value, never changed in place.
    pub value: Rc<[u8]>,
}

/// What a shard did, in order.
#[derive(Debug, Clone)]
pub enum Deed {
    /// It folded the lanes of `writers` into the chunk.
    Folded {
        /// The tensor.
        tensor: TensorId,
        /// The chunk.
        chunk: u32,
        /// In the order of the fold.
        writers: Vec<Rank>,
    },
    /// What it folded is kept aside until it is committed.
    Waits {
        /// The tensor.
        tensor: TensorId,
        /// The chunk.
        chunk: u32,
    },
    /// It has something to tell workers on other hosts.
    Told(Event),
    /// It published the chunk.
    Published {
        /// The tensor.
        tensor: TensorId,
        /// The chunk.
        chunk: u32,
        /// What it is.
        mirror: Mirror,
        /// What of it readers see from now on.
        held: Rc<[u8]>,
    },
}

#[derive(Debug)]
struct Chunk {
    value: Aligned,
    state: Aligned,
    lanes: Vec<Aligned>,
    mirror: Option<Mirror>,
    /// What stood published before: of use to [`Sabotage`] alone.
    before: Option<Rc<[u8]>>,
    /// What stood published before the last publication, likewise.
    undone: Option<Rc<[u8]>>,
    /// The last two values that were loaded, likewise.
    loaded: [Option<Rc<[u8]>>; 2],
    /// What the filter has let pass; empty where everything passes.
    held: Vec<u8>,
    /// What is sent instead of that: of use to [`Sabotage`] alone.
    leaked: Option<Rc<[u8]>>,
    /// What is told instead of the last publication that changed it, likewise.
    unsaid: Option<u64>,
    /// Publications so far.
    sequence: u64,
    /// A fold that waits for its commit.
    aside: Option<(Fold, Vec<Rank>)>,
}

#[derive(Debug)]
struct Tensor {
    plan: Plan,
    cut: Cut,
    ledger: Ledger,
    chunks: BTreeMap<u32, Chunk>,
    /// Those chunks, ascending.
    homed: Vec<u32>,
    progress: Option<u64>,
    folded: Vec<u64>,
    /// Workers that have declared it, and so have a lane.
    declared: BTreeSet<Rank>,
}

/// The memory of one shard.
#[derive(Debug)]
pub struct Memory {
    tensors: BTreeMap<TensorId, Tensor>,
    deeds: Vec<Deed>,
    wait_once_in: u64,
    sabotage: Option<Sabotage>,
    rng: Rng,
    /// The share of each stripe that values go in to workers on other hosts.
    shares: Vec<u32>,
    /// What seals those that are passed on.
    sealer: Option<Sealer>,
}

impl Memory {
    /// Memory without a tensor, in which one fold of so many waits for its commit.
    pub fn new(wait_once_in: u64, sabotage: Option<Sabotage>, rng: Rng) -> Self {
        let (tensors, deeds) = (BTreeMap::new(), Vec::new());
        Self { tensors, deeds, wait_once_in, sabotage, rng, shares: Vec::new(), sealer: None }
    }

    /// What is passed on is sealed with this.
    pub fn seal_with(&mut self, sealer: Sealer) {
        self.sealer = Some(sealer);
    }

    /// How routes cut what goes to workers on other hosts.
    pub fn stripe_by(&mut self, shares: &[u32]) {
        self.shares = shares.to_vec();
        self.tensors.values_mut().for_each(|tensor| tensor.ledger.stripe_by(shares));
    }

    /// Tensors that are broadcast.
    pub fn broadcast(&self) -> Vec<TensorId> {
        let is_broadcast = |tensor: &Tensor| tensor.ledger.terms().propagation == Propagation::Broadcast;
        self.tensors.iter().filter(|(_, tensor)| is_broadcast(tensor)).map(|(&id, _)| id).collect()
    }

    /// Whether a tensor's values go by others too; whether that is new.
    pub fn go_by_trees(&mut self, id: TensorId, by_trees: bool) -> bool {
        self.tensors.get_mut(&id).is_some_and(|tensor| tensor.ledger.go_by_trees(by_trees))
    }

    /// Makes room for these chunks of a tensor.
    pub fn declare(
        &mut self,
        id: TensorId,
        spec: &TensorSpec,
        terms: Arc<Terms>,
        cut: Cut,
        chunks: &[u32],
        workers: u32,
    ) {
        let room = |&chunk: &u32| {
            let range = cut.range(chunk);
            let bytes = (range.end - range.start) as usize;
            let state = spec.state_bytes((bytes / spec.dtype.size()) as u64) as usize;
            let lanes = (0..workers).map(|_| Aligned::zeroed(bytes)).collect();
            let (value, state) = (Aligned::zeroed(bytes), Aligned::zeroed(state));
            (
                chunk,
                Chunk {
                    value,
                    state,
                    lanes,
                    mirror: None,
                    before: None,
                    undone: None,
                    loaded: [None, None],
                    held: vec![0; if terms.holds_back() { bytes } else { 0 }],
                    leaked: None,
                    unsaid: None,
                    sequence: 0,
                    aside: None,
                },
            )
        };
        let (homed, room) = (chunks.to_vec(), chunks.iter().map(room).collect());
        let length = |&chunk: &u32| (cut.range(chunk).end - cut.range(chunk).start) as usize;
        let ledger = Ledger::new(id, terms, chunks.iter().map(length), workers, &self.shares);
        let folded = vec![0; workers as usize];
        let (plan, progress, declared) = (spec.plan(), None, BTreeSet::new());
        let tensor = Tensor { plan, cut, ledger, chunks: room, homed, progress, folded, declared };
        self.tensors.insert(id, tensor);
    }

    /// Where a worker's contribution to a chunk stands.
    pub fn lane(&mut self, id: TensorId, chunk: u32, rank: Rank) -> &mut [u8] {
        &mut self.chunk(id, chunk).lanes[rank as usize]
    }

    /// Zeroes all lanes of a worker.
    pub fn clear_lanes(&mut self, rank: Rank) {
        let chunks = self.tensors.values_mut().flat_map(|tensor| tensor.chunks.values_mut());
        chunks.for_each(|chunk| chunk.lanes[rank as usize].fill(0));
    }

    /// What stands published of the chunk.
    pub fn mirror(&self, id: TensorId, chunk: u32) -> Option<&Mirror> {
        self.tensors.get(&id)?.chunks.get(&chunk)?.mirror.as_ref()
    }

    /// What the chunk has come to, though readers may not see all of it.
    pub fn whole(&self, id: TensorId, chunk: u32) -> Option<Mirror> {
        let Chunk { mirror, value, held, .. } = self.tensors.get(&id)?.chunks.get(&chunk)?;
        let mirror = mirror.clone()?;
        Some(if held.is_empty() { mirror } else { Mirror { value: Rc::from(&value[..]), ..mirror } })
    }

    /// Whether the tensor is known here.
    pub fn is_declared(&self, id: TensorId) -> bool {
        self.tensors.contains_key(&id)
    }

    /// A worker has declared the tensor, which is known here.
    pub fn give_lane(&mut self, id: TensorId, rank: Rank) {
        self.tensors.get_mut(&id).expect("it was asked whether it is known").declared.insert(rank);
    }

    /// The least version of the tensor's chunks here, as the shard told it.
    pub fn progress(&self, id: TensorId) -> Option<u64> {
        self.tensors.get(&id)?.progress
    }

    /// Contributions of `rank` that were taken from its lane.
    pub fn folded(&self, id: TensorId, rank: Rank) -> u64 {
        self.tensors.get(&id).map_or(0, |tensor| tensor.folded[rank as usize])
    }

    /// What was done since the last call.
    pub fn take_deeds(&mut self) -> Vec<Deed> {
        std::mem::take(&mut self.deeds)
    }

    fn chunk(&mut self, id: TensorId, chunk: u32) -> &mut Chunk {
        let tensor = self.tensors.get_mut(&id).expect("the shard knows the tensor");
        tensor.chunks.get_mut(&chunk).expect("the chunk is homed here")
    }

    /// Whether the fold is refused is seen at once; it is done when it is committed.
    fn fold_aside(
        &mut self,
        id: TensorId,
        chunk: u32,
        fold: &Fold,
        writers: Vec<Rank>,
    ) -> Result<Folded, NonFiniteFrom> {
        let plan = self.tensors[&id].plan;
        let Chunk { value, state, lanes, aside, .. } = self.chunk(id, chunk);
        let (mut beside, mut arrays) = (Aligned::of(value), Aligned::of(state));
        fold_lanes(&plan, fold, lanes, &writers, &mut beside, &mut arrays)?;
        *aside = Some((*fold, writers.clone()));
        self.deeds.push(Deed::Folded { tensor: id, chunk, writers });
        self.deeds.push(Deed::Waits { tensor: id, chunk });
        Ok(Folded::Waits)
    }

    fn breaks(&mut self, sabotage: Sabotage, once_in: u64) -> bool {
        self.sabotage == Some(sabotage) && self.rng.once_in(once_in)
    }

    fn fold_once(
        &mut self,
        id: TensorId,
        chunk: u32,
        fold: &Fold,
        writers: &[Rank],
    ) -> Result<(), NonFiniteFrom> {
        let tensor = self.tensors.get_mut(&id).expect("the shard knows the tensor");
        let local = tensor.homed.binary_search(&chunk).expect("it is homed here");
        let Tensor { plan, ledger, chunks, .. } = tensor;
        let Chunk { value, state, lanes, .. } = chunks.get_mut(&chunk).expect("it is homed here");
        ledger.falls_behind(local);
        if ledger.updates().is_none() {
            fold_lanes(plan, fold, lanes, writers, value, state)?;
            ledger.folded(local, fold, writers, None, true);
            return Ok(());
        }
        let mut sum = Aligned::zeroed(value.len());
        let Fold { settings, step, scale } = fold;
        let lanes: Vec<Foreign<'_>> =
            writers.iter().map(|&rank| Foreign::of(&lanes[rank as usize])).collect();
        fold_summed(plan, settings, *step, *scale, &lanes, &mut sum, value, state)
            .map_err(|refused| NonFiniteFrom(writers[refused.lane]))?;
        ledger.folded(local, fold, writers, Some(&sum), true);
        Ok(())
    }
}

fn fold_lanes(
    plan: &Plan,
    fold: &Fold,
    lanes: &[Aligned],
    writers: &[Rank],
    value: &mut [u8],
    state: &mut [u8],
) -> Result<(), NonFiniteFrom> {
    let lanes: Vec<Foreign<'_>> = writers.iter().map(|&rank| Foreign::of(&lanes[rank as usize])).collect();
    penstock_kernels::fold(plan, &fold.settings, fold.step, fold.scale, &lanes, value, state)
        .map_err(|refused| NonFiniteFrom(writers[refused.lane]))
}

impl Home for Memory {
    fn fold(
        &mut self,
        id: TensorId,
        chunk: u32,
        fold: &Fold,
        writers: &[Rank],
    ) -> Result<Folded, NonFiniteFrom> {
        let mut writers = writers.to_vec();
        if self.breaks(Sabotage::FoldsInAnyOrder, 1) {
            self.rng.shuffle(&mut writers);
        }
        if self.breaks(Sabotage::LosesAnUpdate, 8) {
            writers.pop();
        }
        if self.rng.once_in(self.wait_once_in) && !writers.is_empty() {
            return self.fold_aside(id, chunk, fold, writers);
        }
        if !writers.is_empty() {
            if self.breaks(Sabotage::UndoesAFold, 8) {
                let Chunk { value, undone, .. } = self.chunk(id, chunk);
                undone.iter().for_each(|undone| value.copy_from_slice(undone));
            }
            self.fold_once(id, chunk, fold, &writers)?;
        }
        if self.breaks(Sabotage::FoldsTwice, 8) {
            self.fold_once(id, chunk, fold, &writers)?;
        }
        self.deeds.push(Deed::Folded { tensor: id, chunk, writers });
        Ok(Folded::Committed)
    }

    fn commit(&mut self, id: TensorId, chunk: u32) {
        if let Some((fold, writers)) = self.chunk(id, chunk).aside.take() {
            // What stands in the lanes now, so that one which was free too early is seen.
            let folded = self.fold_once(id, chunk, &fold, &writers);
            debug_assert!(folded.is_ok(), "it was finite when it was folded");
        }
    }

    fn load(&mut self, id: TensorId, chunk: u32, slot: u32, part: u32, writer: Rank) {
        let loses = self.breaks(Sabotage::LosesChunksOfLoads, 8);
        let halves = self.breaks(Sabotage::HalvesLoads, 8);
        let brings_back = self.breaks(Sabotage::BringsBackLoads, 4);
        let keeps = self.sabotage == Some(Sabotage::BringsBackLoads);
        let dtype = self.tensors[&id].plan.dtype;
        let wider = dtype.accumulator_size() / dtype.size();
        let Tensor { chunks, homed, ledger, .. } =
            self.tensors.get_mut(&id).expect("the shard knows the tensor");
        let local = homed.binary_search(&chunk).expect("only what is homed here is loaded here");
        let Chunk { value, state, lanes, mirror, loaded, held, leaked, sequence, .. } =
            chunks.get_mut(&chunk).expect("it is homed here");
        let lane = &lanes[writer as usize];
        if let Some(mirror) = mirror {
            ledger.keep(local, *sequence, leaked.as_ref().unwrap_or(&mirror.value));
        }
        ledger.loaded(local, slot);
        if slot == 0 {
            match &loaded[0] {
                _ if loses => {}
                _ if halves => value[..lane.len() / 2].copy_from_slice(&lane[..lane.len() / 2]),
                Some(before_last) if brings_back => value.copy_from_slice(before_last),
                _ => value.copy_from_slice(lane),
            }
            if keeps {
                *loaded = [loaded[1].take(), Some(Rc::from(&lane[..]))];
            }
            if !held.is_empty() {
                held.copy_from_slice(value);
            }
        } else {
            // An array is as many lane-fulls as its elements are wider than the tensor's.
            let at = (slot - 1) as usize * wider + part as usize;
            state[at * lane.len()..][..lane.len()].copy_from_slice(lane);
        }
    }

    fn flush(&mut self, id: TensorId, chunk: u32) -> bool {
        let Tensor { chunks, homed, ledger, .. } =
            self.tensors.get_mut(&id).expect("the shard knows the tensor");
        let local = homed.binary_search(&chunk).expect("only what is homed here is flushed here");
        let Chunk { value, held, .. } = chunks.get_mut(&chunk).expect("it is homed here");
        if !ledger.catches_up(local) || held.is_empty() || held[..] == value[..] {
            return false;
        }
        held.copy_from_slice(value);
        ledger.changes(local);
        true
    }

    fn publish(&mut self, id: TensorId, chunk: u32, version: u64, steps: u64) {
        let early = u64::from(self.breaks(Sabotage::PublishesTooEarly, 4));
        let late = if self.breaks(Sabotage::FallsBack, 8) { 2 } else { 0 };
        let torn = self.breaks(Sabotage::TearsAChunk, 4);
        let kept = self.breaks(Sabotage::KeepsTheOldMirror, 3);
        let mistakes = self.breaks(Sabotage::MistakesTheShadow, 2);
        let leaks = self.breaks(Sabotage::LeaksThroughTheFilter, 4);
        let shows = self.breaks(Sabotage::ShowsWhatIsHeldBack, 4);
        let impatient = self.breaks(Sabotage::ShowsWhatIsNotFinal, 2);
        let forgets = self.breaks(Sabotage::ForgetsToBroadcast, 3);
        let unsays = self.breaks(Sabotage::RaisesWhatHasChanged, 3);
        let Tensor { chunks, homed, ledger, .. } =
            self.tensors.get_mut(&id).expect("the shard knows the tensor");
        let local = homed.binary_search(&chunk).expect("it is homed here");
        let Chunk { value, mirror, before, undone, held, leaked, unsaid, sequence, .. } =
            chunks.get_mut(&chunk).expect("the chunk is homed here");
        if let Some(Mirror { value, .. }) = mirror {
            let sent = || leaked.as_ref().unwrap_or(value).clone();
            let held = before.take_if(|_| mistakes).unwrap_or_else(sent);
            ledger.keep(local, *sequence, &held);
            *before = Some(held);
        }
        let unseen = ledger.is_unseen(local, version, mirror.is_some()) && !impatient;
        if ledger.is_behind(local) && !unseen {
            ledger.choose(local, Coordinates::of_version(version, 0, Pressure::NONE), value, held);
        }
        *sequence += 1;
        // What is sent on purpose instead of what is seen differs each time.
        let otherwise = leaked.is_some() || leaks || shows || torn;
        if otherwise {
            ledger.changes(local);
        }
        let version = (version + early).saturating_sub(late);
        let last = ledger.publication(local, 0).changed;
        ledger.published(local, version, steps, *sequence);
        *unsaid = Some(last).filter(|_| unsays && !otherwise);
        let new = Mirror { version, steps, value: Rc::from(&value[..]) };
        let held = if held.is_empty() { new.value.clone() } else { Rc::from(&held[..]) };
        *leaked = if leaks { Some(new.value.clone()) } else { Some(held.clone()).filter(|_| shows) };
        let mut seen = Mirror { value: if shows { new.value.clone() } else { held.clone() }, ..new };
        match mirror {
            Some(_) if kept => return,
            Some(old) if torn => {
                let half = held.len() / 2;
                seen.value = [&held[..half], &old.value[half..]].concat().into();
            }
            _ => {}
        }
        *undone = mirror.as_ref().map(|mirror| mirror.value.clone());
        *mirror = Some(seen);
        self.deeds.push(Deed::Published { tensor: id, chunk, mirror: new, held });
        if !unseen && !forgets {
            self.deeds.push(Deed::Told(Event::Published { tensor: id, local }));
        }
    }

    fn progress(&mut self, id: TensorId, version: u64) {
        if self.sabotage == Some(Sabotage::KeepsSilent) && version > 1 {
            return;
        }
        self.tensors.get_mut(&id).expect("the shard knows the tensor").progress = Some(version);
    }

    fn folded(&mut self, id: TensorId, writer: Rank, count: u64) {
        let tensor = self.tensors.get_mut(&id).expect("the shard knows the tensor");
        tensor.folded[writer as usize] = count;
        self.deeds.push(Deed::Told(Event::Folded { tensor: id, writer, count }));
    }
}

impl Chunks for Memory {
    fn chunks(&self, id: TensorId) -> usize {
        self.tensors[&id].homed.len()
    }

    fn publication(&self, id: TensorId, local: usize) -> Publication {
        let Tensor { chunks, homed, ledger, .. } = &self.tensors[&id];
        let Chunk { sequence, unsaid, .. } = &chunks[&homed[local]];
        let told = ledger.publication(local, *sequence);
        Publication { changed: unsaid.unwrap_or(told.changed), ..told }
    }

    fn local(&self, id: TensorId, chunk: u32) -> Option<usize> {
        self.tensors.get(&id)?.homed.binary_search(&chunk).ok()
    }

    fn broadcasts(&self, id: TensorId) -> bool {
        self.tensors.get(&id).is_some_and(|tensor| tensor.ledger.terms().propagation.is_unasked())
    }

    fn sends_updates(&self, id: TensorId) -> bool {
        self.tensors.get(&id).is_some_and(|tensor| tensor.ledger.updates().is_some())
    }

    fn update_base(&self, id: TensorId, local: usize) -> Option<u64> {
        let base = self.tensors[&id].ledger.update_base(local)?;
        Some(if self.sabotage == Some(Sabotage::SendsUpdatesToAnyone) { 0 } else { base })
    }

    fn needed(&self, id: TensorId, local: usize, place: usize) -> Option<Needed> {
        self.tensors[&id].ledger.needed(local, place)
    }

    fn has_lane(&self, id: TensorId, rank: Rank) -> bool {
        self.tensors.get(&id).is_some_and(|tensor| tensor.declared.contains(&rank))
    }

    fn goes_by_trees(&self, id: TensorId) -> bool {
        self.tensors.get(&id).is_some_and(|tensor| tensor.ledger.goes_by_trees())
    }

    fn stripe(&self, id: TensorId, local: usize) -> usize {
        self.tensors[&id].ledger.stripe(local)
    }

    fn digest(&self, id: TensorId, stripe: usize) -> u64 {
        self.tensors[&id].ledger.digest(stripe)
    }
}

/// A lane is here a lane of each chunk.
impl Homed for Memory {
    fn homed(&self, id: TensorId, chunk: u32) -> Option<Range<usize>> {
        Some(0..self.tensors.get(&id)?.chunks.get(&chunk)?.value.len())
    }

    fn start(&self, id: TensorId, chunk: u32) -> Option<u64> {
        let tensor = self.tensors.get(&id)?;
        tensor.chunks.contains_key(&chunk).then(|| tensor.cut.range(chunk).start)
    }

    fn contributions(&self, id: TensorId) -> &Agreed {
        self.tensors[&id].ledger.contributions()
    }

    fn low_rank(&self, id: TensorId) -> Option<LowRank> {
        self.tensors.get(&id)?.ledger.low_rank()
    }

    fn receive(&mut self, part: &LanePart) -> &mut [u8] {
        let tensor = self.tensors.get_mut(&part.tensor).expect("the shard knows the tensor");
        if let Ok(local) = tensor.homed.binary_search(&part.chunk) {
            tensor.ledger.receives(part.rank, local);
        }
        self.lane(part.tensor, part.chunk, part.rank)
    }

    fn keep_right(&mut self, id: TensorId, writer: Rank, rank: u32, bytes: &[u8]) {
        let tensor = self.tensors.get_mut(&id).expect("the shard knows the tensor");
        tensor.ledger.keep_right(writer, rank, bytes);
    }

    fn keep_rows(&mut self, part: &LanePart, rank: u32, rows: &[u8]) {
        let tensor = self.tensors.get_mut(&part.tensor).expect("the shard knows the tensor");
        if let Ok(local) = tensor.homed.binary_search(&part.chunk) {
            tensor.ledger.keep_rows(part.rank, local, rank, rows);
        }
    }

    fn right(&self, id: TensorId, name: Named) -> &[u8] {
        let ledger = &self.tensors[&id].ledger;
        let other = Named { turn: name.turn.saturating_sub(1), ..name };
        // Of use to sabotage alone: the one before.
        let before = ledger.right(other).filter(|_| self.sabotage == Some(Sabotage::SendsAnotherFactor));
        let right = ledger.right(name).expect("an update is sent while what it names is kept");
        before.filter(|before| before.len() == right.len()).unwrap_or(right)
    }

    fn chunk(&self, id: TensorId, local: usize) -> u32 {
        self.tensors[&id].homed[local]
    }

    fn value(&self, id: TensorId, local: usize, position: u64) -> (u32, &Agreed, Sent<'_>) {
        let Tensor { ledger, chunks, homed, .. } = &self.tensors[&id];
        let Chunk { mirror, leaked, sequence, .. } = &chunks[&homed[local]];
        let value = &mirror.as_ref().expect("what is sent is published").value;
        let value = leaked.as_ref().unwrap_or(value);
        (homed[local], ledger.values(), ledger.send(local, *sequence, value, position))
    }

    fn updates(&self, id: TensorId) -> Option<&Updates> {
        self.tensors[&id].ledger.updates()
    }

    fn update(&self, id: TensorId, local: usize) -> (u32, Encoding, &[u8]) {
        let Tensor { ledger, homed, .. } = &self.tensors[&id];
        let (encoding, payload) = ledger.update(local);
        (homed[local], encoding, payload)
    }

    fn standing(&self, id: TensorId, local: usize) -> (u32, &[u8]) {
        let Tensor { chunks, homed, .. } = &self.tensors[&id];
        (homed[local], &chunks[&homed[local]].mirror.as_ref().expect("what is sent is published").value)
    }

    fn state(&self, id: TensorId, local: usize) -> (u32, &[u8]) {
        let Tensor { chunks, homed, .. } = &self.tensors[&id];
        (homed[local], &chunks[&homed[local]].state)
    }

    fn sealer(&self) -> Option<&Sealer> {
        self.sealer.as_ref()
    }
}
