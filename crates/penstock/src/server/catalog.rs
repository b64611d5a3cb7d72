//! Which tensors there are, where their chunks live, and what memory is left.

use super::first_touch::FirstTouch;
use super::slabs::{Pooled, Slabs};
use crate::limits::lacking;
use crate::pools::POOLED_BELOW;
use crate::wire::travel::KNOWN;
use penstock_fabric::memory::{ExtentLayout, HomeMemory, HomeRegions, LaneView, ModelDescriptors};
use penstock_fabric::net::frames::BATCH_BYTES;
use penstock_fabric::region::{Region, Untouched};
use penstock_kernels::compress::Compressor;
use penstock_proto::account::{Account, Charge, Exhausted, Resource};
use penstock_proto::chunk::Cut;
use penstock_proto::compress::{Chooser, Compress};
use penstock_proto::encoding::Worth;
use penstock_proto::error::Refusal;
use penstock_proto::factors::down;
use penstock_proto::message::{MAX_TENSORS, SlabSpot};
use penstock_proto::placement::{self, Extent};
use penstock_proto::spec::TensorSpec;
use penstock_proto::stream::bytes_kept;
use penstock_proto::travel::Terms;
use penstock_proto::update;
use penstock_proto::{Rank, TensorId};
use rustix::fd::{BorrowedFd, OwnedFd};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// A declared tensor.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) spec: TensorSpec,
    /// How its chunks travel.
    terms: Arc<Terms>,
    pub(super) extents: Vec<Extent>,
    /// Chunks that each shard is home of.
    pub(super) homed: Vec<u32>,
    /// Bytes that each shard was home of before.
    pub(super) loads: Vec<u64>,
    /// The shard of each chunk of this server's extent.
    shard_of: Arc<[u32]>,
    /// Workers that have their lane: one that declares again is given no other.
    given: BTreeSet<Rank>,
    held: Held,
    layout: ExtentLayout,
    /// What all of it was charged, for as long as the tensor is there.
    _charges: Vec<Charge>,
}

/// Where a tensor's memory is.
#[derive(Debug)]
enum Held {
    /// This server's extent is empty.
    Nowhere,
    /// In regions of its own; and those of the lanes of workers on this host.
    Own(ModelDescriptors, BTreeMap<Rank, OwnLane>),
    /// Among others.
    Pooled(Pooled),
}

#[derive(Debug)]
struct OwnLane {
    region: Region,
    _descriptor: Charge,
}

/// A new tensor's memory, for the shards.
#[derive(Debug)]
pub(super) struct NewTensor {
    pub(super) id: TensorId,
    pub(super) spec: TensorSpec,
    /// What it says of how chunks travel.
    pub(super) terms: Arc<Terms>,
    /// Chunks of the whole tensor.
    pub(super) total: u32,
    /// By shard.
    pub(super) homes: Vec<HomeMemory>,
}

/// What a worker on another host was charged for what it may have to be sent, by this server as long as it is here.
#[derive(Debug, Default)]
struct SendingCharges {
    /// What one of its connections may have to hold beside a usual batch.
    longest: u64,
    charges: Vec<Charge>,
}

/// A tensor that was made, but perhaps for the first touch of its memory, and for the lane of the worker that declares it. Nobody
/// knows of it so far: if there is no memory for all of that, it goes with all that it was charged.
#[derive(Debug)]
struct NewEntry {
    rank: Rank,
    entry: Entry,
    tensor: NewTensor,
    untouched: Untouched,
    /// For what that worker may have to be sent, if it is on another host: before it has a place among others, which is not given
    /// back.
    paid: Option<Sending>,
    /// Bytes homed with it, by server and by shard of this one.
    server_loads: Vec<u64>,
    shard_loads: Vec<u64>,
}

/// What one of a worker's connections may have to hold, and what was charged for that and for notes of a tensor's chunks.
#[derive(Debug)]
struct Sending {
    longest: u64,
    charge: Charge,
}

/// A lane, likewise.
#[derive(Debug)]
struct NewLane {
    id: TensorId,
    rank: Rank,
    views: Vec<LaneView>,
    own: Option<OwnLane>,
    untouched: Untouched,
    paid: Option<Sending>,
}

#[derive(Debug)]
pub(super) struct Catalog {
    index: u32,
    workers: u32,
    chunk_bytes: u32,
    /// Bytes homed, by server. Kept by the first server, which decides extents.
    server_loads: Vec<u64>,
    /// Bytes homed, by shard of this server.
    shard_loads: Vec<u64>,
    /// The job's.
    account: Account,
    slabs: Slabs,
    numbers: HashMap<String, TensorId>,
    entries: HashMap<TensorId, Entry>,
    sending: BTreeMap<Rank, SendingCharges>,
    /// What is made for the declaration that is under way: there is one at a time.
    new_entry: Option<Box<NewEntry>>,
    new_lane: Option<NewLane>,
}

impl Catalog {
    pub(super) fn new(
        index: u32,
        servers: u32,
        shards: u32,
        workers: u32,
        chunk_bytes: u32,
        account: Account,
    ) -> Self {
        Self {
            index,
            workers,
            chunk_bytes,
            server_loads: vec![0; servers as usize],
            shard_loads: vec![0; shards as usize],
            slabs: Slabs::new(account.clone(), workers),
            account,
            numbers: HashMap::new(),
            entries: HashMap::new(),
            sending: BTreeMap::new(),
            new_entry: None,
            new_lane: None,
        }
    }

    /// The declaration that was under way is over, or given up: what was made for it and not touched to its end goes.
    pub(super) fn end_declaration(&mut self) {
        self.new_lane = None;
        if let Some(NewEntry { rank, entry, tensor, .. }) = self.new_entry.take().map(|new| *new) {
            drop(tensor);
            if let Held::Pooled(place) = entry.held {
                self.slabs.give_back(place, rank);
            }
        }
    }

    pub(super) fn get(&self, id: TensorId) -> Result<&Entry, Refusal> {
        self.entries.get(&id).ok_or(Refusal::UnknownTensor { tensor: id })
    }

    /// Whether a tensor of this name was declared.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.numbers.contains_key(name)
    }

    /// Declares a tensor for `rank`: its number. `None`: its memory is not touched so far; it is gone on with when this is asked
    /// again, in another turn, and nothing else is declared before. A new one is known once it is [settled](Self::settle).
    pub(super) fn declare(
        &mut self,
        rank: Rank,
        remote: bool,
        spec: TensorSpec,
        decided: Option<(TensorId, Vec<Extent>)>,
        first_touch: &mut FirstTouch,
    ) -> Result<Option<TensorId>, Refusal> {
        let terms = Arc::new(spec.check(&KNOWN)?);
        if let Some(&id) = self.numbers.get(&spec.name) {
            let entry = &self.entries[&id];
            return match entry.spec.difference(&spec) {
                Some((what, expected, got)) => {
                    Err(Refusal::Conflict { name: spec.name, rank, what: what.to_owned(), expected, got })
                }
                None => Ok(Some(id)),
            };
        }
        let begun = self.new_entry.take_if(|new| new.rank == rank && new.tensor.spec.name == spec.name);
        let mut new = match begun {
            Some(new) => new,
            None => {
                self.end_declaration();
                let cut = Cut::new(spec.bytes(), self.chunk_bytes);
                let (id, extents, server_loads) = self.decide(&cut, decided)?;
                let new = self.make((rank, remote), id, spec, terms, cut, extents, server_loads);
                first_touch.spend(self.slabs.take_touched());
                Box::new(new?)
            }
        };
        let touched = first_touch.touch(&mut new.untouched);
        let id = touched.map_err(lacking("make a tensor's memory"))?.then_some(new.tensor.id);
        self.new_entry = Some(new);
        Ok(id)
    }

    /// The declaration of a tensor has all that it needs: where it was new, it is known from now on, and has this memory.
    pub(super) fn settle(&mut self, id: TensorId) -> Option<NewTensor> {
        let NewEntry { entry, tensor, server_loads, shard_loads, .. } =
            *self.new_entry.take_if(|new| new.tensor.id == id)?;
        (self.server_loads, self.shard_loads) = (server_loads, shard_loads);
        self.numbers.insert(tensor.spec.name.clone(), tensor.id);
        self.entries.insert(tensor.id, entry);
        Some(tensor)
    }

    /// A tensor, or the one whose declaration is under way.
    fn entry(&self, id: TensorId) -> Result<&Entry, Refusal> {
        let new = self.new_entry.as_ref().filter(|new| new.tensor.id == id);
        new.map_or_else(|| self.get(id), |new| Ok(&new.entry))
    }

    fn entry_mut(&mut self, id: TensorId) -> Result<&mut Entry, Refusal> {
        match &mut self.new_entry {
            Some(new) if new.tensor.id == id => Ok(&mut new.entry),
            _ => self.entries.get_mut(&id).ok_or(Refusal::UnknownTensor { tensor: id }),
        }
    }

    /// Number and extents, and the servers' loads with them.
    fn decide(
        &self,
        cut: &Cut,
        decided: Option<(TensorId, Vec<Extent>)>,
    ) -> Result<(TensorId, Vec<Extent>, Vec<u64>), Refusal> {
        let malformed = |what: &str| Err(Refusal::Malformed { what: what.to_owned() });
        let mut loads = self.server_loads.clone();
        match (self.index, decided) {
            (0, None) if self.entries.len() >= MAX_TENSORS as usize => {
                malformed(&format!("a job has at most {MAX_TENSORS} tensors"))
            }
            (0, None) => {
                let extents = placement::extents(&mut loads, cut.chunks(), self.chunk_bytes);
                Ok((self.entries.len() as TensorId, extents, loads))
            }
            (0, Some(_)) => malformed("the first server decides extents itself"),
            (_, None) => malformed("the first server decides extents, and was not asked"),
            (_, Some((id, extents))) => {
                let mut at = 0u32;
                let follow = extents.iter().all(|extent| {
                    let follows = extent.first == at;
                    at = at.saturating_add(extent.count);
                    follows
                });
                let fits = follow && at == cut.chunks() && extents.len() == loads.len();
                if !fits || id >= MAX_TENSORS || self.entries.contains_key(&id) {
                    return malformed("extents that do not cover the tensor, or a number that is taken");
                }
                Ok((id, extents, loads))
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what was decided of one tensor")]
    fn make(
        &mut self,
        (rank, remote): (Rank, bool),
        id: TensorId,
        spec: TensorSpec,
        terms: Arc<Terms>,
        cut: Cut,
        extents: Vec<Extent>,
        server_loads: Vec<u64>,
    ) -> Result<NewEntry, Refusal> {
        let extent = extents[self.index as usize];
        let per_element = spec.rule.slots().count() * spec.dtype.accumulator_size();
        let layout = ExtentLayout::new(cut, extent, spec.dtype, per_element).holding_back(terms.holds_back());
        let shards = self.shard_loads.len() as u32;
        let pooled = cut.bytes() < POOLED_BELOW && extent.count == cut.chunks();
        let layout = if pooled { layout.pooled(shards) } else { layout };
        let mut homes = Vec::new();
        // Also where nothing of it is homed here.
        let mut charges = vec![self.charge(&spec.name, self.books(&spec, &extents, &layout))?];
        // What workers on other hosts hold is kept once for all of them, wherever the tensor's own memory is.
        let streams = bytes_kept(&terms, extent.count.into(), layout.bytes() as u64);
        let updates = update::bytes_kept(terms.updates.as_ref(), extent.count.into(), layout.bytes() as u64);
        for kept in [streams, updates].into_iter().filter(|&kept| kept > 0) {
            charges.push(self.charge(&spec.name, kept)?);
        }
        let paid = remote.then(|| self.pay_for_sending(rank, &spec.name, &layout, &terms)).transpose()?;
        // Before its chunks are gone over: a declaration that is refused costs no more than a request. What is pooled has few.
        if extent.count > 0 && !pooled {
            charges.extend(self.pay(&spec.name, &layout)?);
        }
        let mut held = Held::Nowhere;
        let mut homes_of: Arc<[u32]> = Arc::default();
        let mut homed = vec![0; shards as usize];
        let mut shard_loads = self.shard_loads.clone();
        let mut untouched = Untouched::default();
        if extent.count > 0 {
            let sizes = extent.chunks().map(|chunk| layout.value(chunk).len() as u64);
            let shard_of = placement::shards(&mut shard_loads, sizes);
            let split;
            (split, held) = if pooled {
                let (place, split) = self.slabs.place(&spec.name, layout, &shard_of, shards)?;
                (split, Held::Pooled(place))
            } else {
                let made = HomeRegions::untouched("penstock-model", layout);
                let regions;
                (regions, untouched) = made.map_err(lacking("make a tensor's memory"))?;
                let (split, descriptors) = regions.split(&shard_of, shards);
                (split, Held::Own(descriptors, BTreeMap::new()))
            };
            homes_of = shard_of.into();
            homed = split.iter().map(|home| home.chunks().len() as u32).collect();
            homes = split;
        }
        let (loads, given) = (self.shard_loads.clone(), BTreeSet::new());
        let entry = Entry {
            spec: spec.clone(),
            terms: Arc::clone(&terms),
            extents,
            homed,
            loads,
            shard_of: homes_of,
            given,
            held,
            layout,
            _charges: charges,
        };
        let tensor = NewTensor { id, spec, terms, total: cut.chunks(), homes };
        Ok(NewEntry { rank, entry, tensor, untouched, paid, server_loads, shard_loads })
    }

    /// Pays for a tensor in regions of its own: value, state, and a lane for each worker.
    fn pay(&self, name: &str, layout: &ExtentLayout) -> Result<[Charge; 3], Refusal> {
        let workers = u64::from(self.workers);
        let lanes = layout.lane().total() as u64 * workers;
        let needed = layout.model().total() as u64 + layout.state_bytes() as u64 + lanes;
        let regions = 1 + u64::from(layout.state_bytes() > 0);
        let refuse = |why: Exhausted| why.refuse(format!("the memory of `{name}`"));
        Ok([
            self.charge(name, needed)?,
            self.account.charge(Resource::Descriptors, regions).map_err(refuse)?,
            self.account.charge(Resource::Mappings, regions + workers).map_err(refuse)?,
        ])
    }

    fn charge(&self, name: &str, needed: u64) -> Result<Charge, Refusal> {
        self.account.charge(Resource::Bytes, needed).map_err(|why| {
            let (name, available, workers) = (name.to_owned(), why.left, self.workers);
            Refusal::OutOfMemory { name, needed, available, workers }
        })
    }

    /// Bytes that this server keeps of a tensor beside its memory.
    fn books(&self, spec: &TensorSpec, extents: &[Extent], layout: &ExtentLayout) -> u64 {
        let (workers, chunks) = (u64::from(self.workers), u64::from(layout.extent().count));
        let shards = self.shard_loads.len();
        let homes = chunks.min(shards as u64);
        // The name is kept with the number, with the specification, and with that of each home.
        let names = (2 + homes) * spec.name.len() as u64;
        let lists = size_of_val(extents) + shards * (size_of::<u64>() + size_of::<u32>());
        ENTRY_BYTES
            + names
            + lists as u64
            + homes * (BOOK_BYTES + workers * BOOK_BYTES_A_WORKER)
            + chunks * (CHUNK_BYTES + 8 * workers)
    }

    /// A worker has gone: its lanes need not be given out any more.
    pub(super) fn forget(&mut self, rank: Rank) {
        self.slabs.forget(rank);
        self.sending.remove(&rank);
        for entry in self.entries.values_mut() {
            if let Held::Own(_, lanes) = &mut entry.held {
                lanes.remove(&rank);
            }
        }
    }

    /// Has a worker on another host pay for what it may be owed of a tensor that it declares: a note of each chunk, and, for
    /// each shard that it has a connection to, what that may have to hold beside a usual batch, and keeps of what it sends.
    fn pay_for_sending(
        &self,
        rank: Rank,
        name: &str,
        layout: &ExtentLayout,
        terms: &Terms,
    ) -> Result<Sending, Refusal> {
        let extent = layout.extent();
        let before = self.sending.get(&rank).map_or(0, |charges| charges.longest);
        // Only the last chunk may be shorter.
        let held = extent.chunks().next().map_or(0, |chunk| held_to_send(layout, terms, chunk));
        let longest = before.max(held as u64);
        let notes = u64::from(extent.count) * NOTE_BYTES;
        let held = (longest - before) * self.shard_loads.len() as u64;
        // What each of its shards keeps of contributions that come as factors.
        let right = terms.low_rank.map_or(0, |low_rank| low_rank.right(low_rank.most) as u64);
        let factors = right * u64::from(extent.count).min(self.shard_loads.len() as u64);
        // And what of them goes down with updates.
        let down = terms.low_rank.filter(|_| terms.updates.is_some());
        let down = down.map_or(0, |low_rank| {
            let shards = self.shard_loads.len() as u64;
            down::bytes_kept(&low_rank, layout.bytes() as u64, extent.count.into(), shards)
        });
        // What each notes of what compressing its values costs, or encoding them.
        let noted = match terms.values.compress() {
            Compress::None if !terms.values.gives_way() => 0,
            _ => CHOOSER_BYTES * self.shard_loads.len() as u64,
        };
        let charge = self.account.worker(rank).charge(Resource::Bytes, notes + held + factors + down + noted);
        let what = || format!("what it may have to send of `{name}` to worker {rank} on another host");
        Ok(Sending { longest, charge: charge.map_err(|why| why.refuse(what()))? })
    }

    /// Makes a worker's lane, for each shard its view; none where this server's extent is empty, or where the worker has one: a
    /// declaration that is repeated costs nothing, and contributions may wait in the first lane. `None`: it is not touched so far,
    /// as for [`declare`](Self::declare).
    pub(super) fn lane(
        &mut self,
        id: TensorId,
        rank: Rank,
        remote: bool,
        first_touch: &mut FirstTouch,
    ) -> Result<Option<Vec<LaneView>>, Refusal> {
        if self.entry(id)?.given.contains(&rank) {
            return Ok(Some(Vec::new()));
        }
        let begun = self.new_lane.take().filter(|lane| (lane.id, lane.rank) == (id, rank));
        let mut lane = match begun {
            Some(lane) => lane,
            None => {
                let lane = self.make_lane(id, rank, remote);
                first_touch.spend(self.slabs.take_touched());
                lane?
            }
        };
        if !first_touch.touch(&mut lane.untouched).map_err(lacking("make a lane"))? {
            self.new_lane = Some(lane);
            return Ok(None);
        }
        let entry = self.entry_mut(id)?;
        if let (Held::Own(_, lanes), Some(own)) = (&mut entry.held, lane.own) {
            lanes.insert(rank, own);
        }
        entry.given.insert(rank);
        if let Some(Sending { longest, charge }) = lane.paid {
            let sending = self.sending.entry(rank).or_default();
            sending.longest = longest;
            sending.charges.push(charge);
        }
        Ok(Some(lane.views))
    }

    fn make_lane(&mut self, id: TensorId, rank: Rank, remote: bool) -> Result<NewLane, Refusal> {
        let paid = self.new_entry.as_mut().filter(|new| new.tensor.id == id).and_then(|new| new.paid.take());
        let entry = self.entry(id)?;
        let paid = match paid {
            None if remote => {
                Some(self.pay_for_sending(rank, &entry.spec.name, &entry.layout, &entry.terms)?)
            }
            paid => paid,
        };
        let (layout, shards) = (entry.layout, self.shard_loads.len() as u32);
        let shard_of = Arc::clone(&entry.shard_of);
        let (mut own, mut untouched) = (None, Untouched::default());
        let views = match &entry.held {
            Held::Nowhere => Vec::new(),
            Held::Pooled(place) => {
                let place = *place;
                self.slabs.lane(place, rank, remote, layout, &shard_of, shards)?
            }
            Held::Own(..) if remote => {
                let views;
                (views, untouched) =
                    LaneView::private(layout, &shard_of, shards).map_err(lacking("make a lane"))?;
                views
            }
            Held::Own(..) => {
                let charge = self.account.charge(Resource::Descriptors, 1);
                let charge = charge.map_err(|why| why.refuse(format!("a lane of `{}`", entry.spec.name)))?;
                let made = LaneView::untouched("penstock-lane", layout.lane(), shards);
                let (views, region);
                (views, region, untouched) = made.map_err(lacking("make a lane"))?;
                own = Some(OwnLane { region, _descriptor: charge });
                views
            }
        };
        Ok(NewLane { id, rank, views, own, untouched, paid })
    }

    /// Whether a worker has declared a tensor before.
    pub(super) fn is_given(&self, id: TensorId, rank: Rank) -> bool {
        self.entry(id).is_ok_and(|entry| entry.given.contains(&rank))
    }

    /// What a worker on this host is given of a tensor: where it lies in slabs, if it does, and descriptors; all of them
    /// where it declares the tensor `again`, since it may have had no room for them. Nothing for a worker on another
    /// host, or of an empty extent.
    pub(super) fn pass(
        &mut self,
        id: TensorId,
        rank: Rank,
        again: bool,
    ) -> Result<(Option<[SlabSpot; 2]>, Vec<OwnedFd>), Refusal> {
        let entry = self.entry(id)?;
        match &entry.held {
            Held::Nowhere => Ok((None, Vec::new())),
            Held::Pooled(place) => {
                let place = *place;
                let passed = self.slabs.pass(place, rank, again)?;
                Ok(passed.map_or((None, Vec::new()), |(spots, fds)| (Some(spots), fds)))
            }
            Held::Own(model, lanes) => {
                let Some(lane) = lanes.get(&rank) else { return Ok((None, Vec::new())) };
                let fds = [model.model(), lane.region.fd()].map(|fd| fd.try_clone_to_owned());
                let fds: Result<_, std::io::Error> = fds.into_iter().collect();
                Ok((None, fds.map_err(lacking("pass a tensor's memory"))?))
            }
        }
    }
}

/// Bytes that a connection may have to hold of a chunk and its like beside a usual batch: a value or a state that is longer than
/// one, if it is not read; where payloads are not the chunks themselves, what they are encoded into and decoded from; and where they
/// are compressed, what they are compressed into and decompressed into.
fn held_to_send(layout: &ExtentLayout, terms: &Terms, chunk: u32) -> usize {
    let Terms { values, contributions, low_rank, updates, .. } = terms;
    let bytes = layout.value(chunk).len();
    let payload = values.longest(bytes).max(layout.beside(chunk).len());
    // Where updates are sent, what is whole is copied, and encoded.
    let whole = updates.map_or(0, |updates| updates.agreed.longest(bytes + layout.beside(chunk).len()));
    let payload = payload.max(whole);
    let unread = if payload > BATCH_BYTES { payload } else { 0 };
    let outgoing = if values.is_verbatim() { 0 } else { BATCH_BYTES + values.longest(bytes) };
    let outgoing = if whole > 0 { BATCH_BYTES + 3 * whole } else { outgoing };
    let incoming = if contributions.is_verbatim() { 0 } else { contributions.longest(bytes) };
    // Rows of a left factor, and the same in accumulators.
    let rows = low_rank.map_or(0, |low_rank| {
        let rows = low_rank.longest(bytes, low_rank.most);
        rows + rows / low_rank.dtype.size() * low_rank.dtype.accumulator_size()
    });
    let packed = match values.compress() {
        Compress::None => 0,
        _ => Compressor::ALL.map(|by| by.room(values.longest(bytes))).into_iter().max().unwrap_or(0),
    };
    // Of updates only what comes is compressed.
    let unpacked = match contributions.compress() {
        Compress::None => 0,
        _ => contributions.longest(bytes),
    };
    unread + outgoing + incoming.max(rows) + packed + unpacked
}

impl Entry {
    /// The optimizer's state, if it has a region of its own.
    pub(super) fn state(&self) -> Option<BorrowedFd<'_>> {
        match &self.held {
            Held::Own(descriptors, _) => descriptors.state(),
            _ => None,
        }
    }
}

/// What the control thread keeps of a tensor beside its memory, its name and its lists, at most.
const ENTRY_BYTES: u64 = 2048;
/// What a shard keeps of a tensor beside its memory, at most; for each worker; and for each chunk.
const BOOK_BYTES: u64 = 2048;
const BOOK_BYTES_A_WORKER: u64 = 320;
const CHUNK_BYTES: u64 = 112;
/// What a shard notes of a chunk for a worker on another host: what is owed, and its place in a queue that grows by doubling.
const NOTE_BYTES: u64 = 64;
/// What a shard notes, for each worker on another host, of a tensor that is compressed or encoded, in lists that grow by doubling.
const CHOOSER_BYTES: u64 = 768;
const _: () = assert!(2 * (size_of::<Chooser>() + size_of::<Worth>()) as u64 + 128 <= CHOOSER_BYTES);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::travel::members::{LOUD, differences};
    use penstock_kernels::{Dtype, Rule};
    use penstock_proto::account::Limits;
    use penstock_proto::consistency::Consistency;
    use penstock_proto::encoding::Encoding;
    use penstock_proto::propagation::Propagation;
    use penstock_proto::spec::{Reduce, SpecError};
    use penstock_proto::travel::Travel;
    use rustix::time::{ClockId, clock_gettime};
    use std::time::Duration;

    const CHUNK: u32 = 4 << 20;
    const SHARDS: u32 = 2;

    fn spec(name: &str) -> TensorSpec {
        TensorSpec {
            name: name.to_owned(),
            shape: vec![u64::from(CHUNK) / 2],
            dtype: Dtype::F32,
            rule: Rule::Adam { amsgrad: false, maximize: false },
            consistency: Consistency::Bsp,
            propagation: Propagation::Pull,
            reduce: Reduce::Sum,
            rescale: 1.0,
            clip: None,
            refuse_nonfinite: false,
            travel: Travel::default(),
        }
    }

    /// Declares a tensor for a worker of this host, however many turns that takes; the worker has no lane so far.
    fn declare_in_turns(
        catalog: &mut Catalog,
        rank: Rank,
        spec: TensorSpec,
        decided: Option<(TensorId, Vec<Extent>)>,
    ) -> Result<(TensorId, Option<NewTensor>), Refusal> {
        let touch = &mut FirstTouch::default();
        let (_, id) =
            turns(touch, |touch| catalog.declare(rank, false, spec.clone(), decided.clone(), touch))?;
        Ok((id, catalog.settle(id)))
    }

    /// Makes a lane, likewise.
    fn lane_in_turns(
        catalog: &mut Catalog,
        id: TensorId,
        rank: Rank,
        remote: bool,
    ) -> Result<Vec<LaneView>, Refusal> {
        turns(&mut FirstTouch::default(), |touch| catalog.lane(id, rank, remote, touch))
            .map(|(_, views)| views)
    }

    #[test]
    fn what_a_worker_elsewhere_may_leave_unread_is_paid_for() {
        let account = Account::new(Limits::NONE);
        let mut catalog = Catalog::new(0, 1, SHARDS, 3, CHUNK, account.clone());
        let (id, _) = declare_in_turns(&mut catalog, 0, spec("w"), None).unwrap();
        let taken = || account.taken(Resource::Bytes);
        let before = taken();
        let declared = before;
        lane_in_turns(&mut catalog, id, 0, false).unwrap();
        assert_eq!(taken(), before, "on this host nothing is sent");
        // Two chunks are noted, and each shard may hold two arrays of one for Adam.
        let state = 2 * u64::from(CHUNK);
        lane_in_turns(&mut catalog, id, 1, true).unwrap();
        assert_eq!(taken(), before + 2 * NOTE_BYTES + u64::from(SHARDS) * state);
        let (other, _) = declare_in_turns(&mut catalog, 0, spec("v"), None).unwrap();
        let before = taken();
        lane_in_turns(&mut catalog, other, 1, true).unwrap();
        assert_eq!(taken(), before + 2 * NOTE_BYTES, "a connection holds one at a time");
        let whose = [0, 1].map(|rank| account.worker(rank).taken(Resource::Bytes));
        assert_eq!(whose, [0, 4 * NOTE_BYTES + u64::from(SHARDS) * state], "it is the worker's");
        let before = taken();
        catalog.forget(1);
        assert_eq!(taken(), before - 4 * NOTE_BYTES - u64::from(SHARDS) * state);

        // A worker for which it would not fit is given no lane, and nothing is kept of the attempt.
        let poor = Account::new(Limits::NONE.with(Resource::Bytes, declared + state));
        let mut catalog = Catalog::new(0, 1, SHARDS, 3, CHUNK, poor.clone());
        let (id, _) = declare_in_turns(&mut catalog, 0, spec("w"), None).unwrap();
        let before = poor.taken(Resource::Bytes);
        let refused = lane_in_turns(&mut catalog, id, 1, true).unwrap_err();
        // It spoke of the shared memory of a whole tensor, and was not charged to the worker.
        assert!(matches!(refused, Refusal::Exhausted { .. }), "{refused}");
        assert!(refused.to_string().contains("to send of `w` to worker 1 on another host"), "{refused}");
        assert_eq!(poor.taken(Resource::Bytes), before);
        lane_in_turns(&mut catalog, id, 0, false).unwrap();
    }

    #[test]
    fn what_is_kept_of_what_travels_is_paid_for_by_the_job_and_by_those_it_is_sent_to() {
        let account = Account::new(Limits::NONE);
        let mut catalog = Catalog::new(0, 1, SHARDS, 3, CHUNK, account.clone());
        let taken = || account.taken(Resource::Bytes);
        let mut declare = |name: &str, travel: Travel| {
            let before = taken();
            let (id, new) =
                declare_in_turns(&mut catalog, 0, TensorSpec { travel, ..spec(name) }, None).unwrap();
            let declared = taken() - before;
            let streams = bytes_kept(&new.unwrap().terms, 2, 2 * u64::from(CHUNK));
            let before = account.worker(1).taken(Resource::Bytes);
            lane_in_turns(&mut catalog, id, 1, true).unwrap();
            (declared, streams, account.worker(1).taken(Resource::Bytes) - before)
        };
        let (raw, nothing, to_send) = declare("r", Travel::default());
        assert_eq!(nothing, 0);
        let (declared, streams, more) = declare("d", differences(LOUD));
        let value = 2 * u64::from(CHUNK);
        assert_eq!(
            declared,
            raw + value + streams,
            "the value beside what is seen of it, and what receivers held"
        );
        assert!(streams > value);
        // A value is encoded behind a batch, a contribution comes beside its lane, and the whole value goes with the state.
        assert_eq!(to_send - 2 * NOTE_BYTES, u64::from(SHARDS) * 2 * u64::from(CHUNK), "its state");
        let room = BATCH_BYTES as u64 + 3 * u64::from(CHUNK);
        assert_eq!(more - 2 * NOTE_BYTES, u64::from(SHARDS) * room);

        let poor = Account::new(Limits::NONE.with(Resource::Bytes, 2 * raw));
        let mut catalog = Catalog::new(0, 1, SHARDS, 3, CHUNK, poor.clone());
        let kept = poor.charge(Resource::Bytes, raw / 4 * 3).unwrap();
        let before = poor.taken(Resource::Bytes);
        let refused =
            declare_in_turns(&mut catalog, 0, TensorSpec { travel: differences(LOUD), ..spec("d") }, None)
                .unwrap_err();
        assert!(matches!(refused, Refusal::OutOfMemory { .. }), "{refused}");
        assert_eq!(poor.taken(Resource::Bytes), before, "nothing is kept of the attempt");
        assert!(
            declare_in_turns(&mut catalog, 0, spec("d"), None).is_ok(),
            "there was room for the tensor without that"
        );
        drop(kept);
    }

    #[test]
    fn updates_are_kept_at_the_job_s_cost_and_value_and_state_are_sent_at_the_worker_s() {
        let charged = |propagation| {
            let account = Account::new(Limits::NONE);
            let mut catalog = Catalog::new(0, 1, SHARDS, 3, CHUNK, account.clone());
            let spec = TensorSpec { propagation, ..spec("w") };
            let (id, new) = declare_in_turns(&mut catalog, 0, spec, None).unwrap();
            let (declared, value) = (account.taken(Resource::Bytes), 2 * u64::from(CHUNK));
            lane_in_turns(&mut catalog, id, 1, true).unwrap();
            let kept = update::bytes_kept(new.unwrap().terms.updates.as_ref(), 2, value);
            (declared, kept, account.worker(1).taken(Resource::Bytes))
        };
        let (broadcast, nothing, values) = charged(Propagation::Broadcast);
        let (updated, kept, wholes) = charged(Propagation::Update);
        assert_eq!((nothing, updated), (0, broadcast + kept));
        assert!(kept > 2 * u64::from(CHUNK));
        // Adam's arrays are two: value and state as they are copied, encoded, put behind a batch, and held where nobody reads.
        let whole = 3 * u64::from(CHUNK);
        let least = u64::from(SHARDS) * (BATCH_BYTES as u64 + 3 * whole);
        assert!(wholes > values && wholes >= least, "{wholes} bytes, {values} of values, expected {least}");
    }

    #[test]
    fn room_for_factors_is_charged_to_the_worker_on_another_host_that_may_send_them() {
        let charged = |low_rank, remote| {
            let account = Account::new(Limits::NONE);
            let mut catalog = Catalog::new(0, 1, SHARDS, 3, CHUNK, account.clone());
            let (shape, travel) = (vec![2, u64::from(CHUNK) / 4], Travel::default().low_rank(low_rank));
            let spec = TensorSpec { shape, travel, ..spec("w") };
            let (id, _) = declare_in_turns(&mut catalog, 0, spec, None).unwrap();
            lane_in_turns(&mut catalog, id, 1, remote).unwrap();
            account.worker(1).taken(Resource::Bytes)
        };
        // Three rows of the matrix; and of a left factor half a chunk and two rows more, as it comes and in accumulators.
        let (right, left) = (3 * CHUNK, 2 * (CHUNK / 2 + 2 * 3 * 4));
        let shards = u64::from(SHARDS);
        assert_eq!(
            charged(3, true) - charged(0, true),
            shards.min(2) * u64::from(right) + shards * u64::from(left)
        );
        assert_eq!(charged(3, false), charged(0, false));
    }

    #[test]
    fn room_for_factors_that_go_down_is_charged_to_the_worker_that_may_send_them() {
        let charged = |low_rank, propagation| {
            let account = Account::new(Limits::NONE);
            let mut catalog = Catalog::new(0, 1, SHARDS, 3, CHUNK, account.clone());
            let (shape, travel) = (vec![2, u64::from(CHUNK) / 4], Travel::default().low_rank(low_rank));
            let spec = TensorSpec { shape, travel, propagation, ..spec("w") };
            let (id, _) = declare_in_turns(&mut catalog, 0, spec, None).unwrap();
            lane_in_turns(&mut catalog, id, 1, true).unwrap();
            account.worker(1).taken(Resource::Bytes)
        };
        let more = |propagation| charged(3, propagation) - charged(0, propagation);
        let down = more(Propagation::Update) - more(Propagation::Broadcast);
        // Two more right factors for each shard; and less than a page for the rows of two chunks and what tells of them.
        let rights = u64::from(SHARDS).min(2) * 2 * 3 * u64::from(CHUNK);
        assert!((rights..rights + 4096).contains(&down), "{down}, {rights} of right factors");
    }

    #[test]
    fn room_to_compress_and_decompress_is_charged_to_the_worker_on_another_host() {
        let charged = |compress, remote| {
            let account = Account::new(Limits::NONE);
            let mut catalog = Catalog::new(0, 1, SHARDS, 3, CHUNK, account.clone());
            let (shape, travel) = (vec![u64::from(CHUNK)], Travel::default().compressed(compress));
            let spec = TensorSpec { shape, travel, ..spec("w") };
            let (id, _) = declare_in_turns(&mut catalog, 0, spec, None).unwrap();
            lane_in_turns(&mut catalog, id, 1, remote).unwrap();
            account.worker(1).taken(Resource::Bytes)
        };
        for compress in [Compress::Auto, Compress::By(Compressor::Lz4)] {
            let more = charged(compress, true) - charged(Compress::None, true);
            // A batch; and a chunk as it is encoded, as it becomes at most, as it comes, and decompressed.
            let each = BATCH_BYTES as u64 + 4 * u64::from(CHUNK) + CHOOSER_BYTES;
            let most = each + u64::from(CHUNK) / 8 + 1024;
            assert!((each..most).contains(&(more / u64::from(SHARDS))), "{more}, {each}");
            assert_eq!(charged(compress, false), charged(Compress::None, false));
        }
    }

    // The chunks of a tensor that has more than the memory there is were gone over before that was found out: half a second here.
    #[test]
    fn a_tensor_that_there_is_no_memory_for_is_refused_before_its_chunks_are_gone_over() {
        const SMALLEST: u32 = 4 << 10;
        const CHUNKS: u64 = 64 << 20;
        let spec = || TensorSpec { shape: vec![CHUNKS * u64::from(SMALLEST) / 4], ..spec("w") };
        // There is enough for what is kept of the chunks, and none for the chunks.
        let memory = CHUNKS * (CHUNK_BYTES + 2 * 8 * 3);
        let account = Account::new(Limits::NONE.with(Resource::Bytes, memory));
        let mut catalog = Catalog::new(0, 1, SHARDS, 3, SMALLEST, account.clone());
        let own_time = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
        let began = own_time();
        let refused = catalog.declare(0, false, spec(), None, &mut FirstTouch::default()).unwrap_err();
        let took = own_time() - began;
        assert!(
            matches!(refused, Refusal::OutOfMemory { needed, .. } if needed > CHUNKS * u64::from(SMALLEST)),
            "{refused}"
        );
        assert!(took < Duration::from_millis(50), "{took:?}");
        assert_eq!(account.taken(Resource::Bytes), 0);
    }

    /// Turns that pass until something is there.
    fn turns<T>(
        touch: &mut FirstTouch,
        mut part: impl FnMut(&mut FirstTouch) -> Result<Option<T>, Refusal>,
    ) -> Result<(usize, T), Refusal> {
        let mut turns = 1;
        loop {
            touch.begin_turn();
            match part(touch)? {
                Some(it) => return Ok((turns, it)),
                None => assert!(touch.is_over(), "what is left has to wait for another turn"),
            }
            turns += 1;
        }
    }

    // All of it was touched in the turn of the request: the server showed no life meanwhile.
    #[test]
    fn a_large_tensor_and_its_lanes_are_touched_in_turns_and_known_when_all_of_them_were() {
        let mut catalog = Catalog::new(0, 1, SHARDS, 3, CHUNK, Account::new(Limits::NONE));
        let large = || TensorSpec { shape: vec![8 << 20], ..spec("w") };
        let touch = &mut FirstTouch::default();
        let (turns_for_it, id) =
            turns(touch, |touch| catalog.declare(0, false, large(), None, touch)).unwrap();
        // Of 32 MiB, and 64 MiB for Adam.
        assert!(turns_for_it >= 6, "{turns_for_it} turns");
        for (rank, remote) in [(0, false), (1, true)] {
            let (turns, _) = turns(touch, |touch| {
                assert!(!catalog.is_given(id, rank));
                catalog.lane(id, rank, remote, touch)
            })
            .unwrap();
            assert!(turns >= 2, "{turns} turns for the lane of worker {rank}");
            assert_eq!(catalog.knows("w"), rank > 0, "all that was asked for is there");
            assert_eq!(catalog.settle(id).is_some(), rank == 0);
        }
        let again = catalog.declare(1, true, large(), None, touch).unwrap();
        assert!(again == Some(0) && catalog.settle(0).is_none(), "what is known takes no turn");
    }

    #[test]
    fn a_declaration_that_finds_no_memory_half_way_or_is_given_up_leaves_nothing() {
        let account = Account::new(Limits::NONE);
        let mut catalog = Catalog::new(0, 1, SHARDS, 3, CHUNK, account.clone());
        let large = || TensorSpec { shape: vec![8 << 20], ..spec("w") };
        let before = (account.taken(Resource::Bytes), account.taken(Resource::Descriptors));
        let taken = || (account.taken(Resource::Bytes), account.taken(Resource::Descriptors));
        let no_memory = |refused: Refusal, of: &str| {
            assert!(matches!(&refused, Refusal::System { what, .. } if what == of), "{refused}");
        };
        let touch = &mut FirstTouch::within(40 << 20);
        let refused = turns(touch, |touch| catalog.declare(0, false, large(), None, touch)).unwrap_err();
        no_memory(refused, "make a tensor's memory");
        assert!(taken() == before && !catalog.knows("w") && catalog.shard_loads == [0, 0]);

        let touch = &mut FirstTouch::default();
        assert!(catalog.declare(0, false, large(), None, touch).unwrap().is_none() && taken() != before);
        catalog.end_declaration();
        assert_eq!(taken(), before, "its worker has gone");

        // The tensor that was refused with the lane of its first worker was known from then on, and its memory gone.
        for remote in [false, true] {
            let touch = &mut FirstTouch::within(100 << 20);
            let (_, id) = turns(touch, |touch| catalog.declare(0, remote, large(), None, touch)).unwrap();
            let refused = turns(touch, |touch| catalog.lane(id, 0, remote, touch)).map(|(turns, _)| turns);
            no_memory(refused.unwrap_err(), "make a lane");
            catalog.end_declaration();
            assert!(taken() == before && !catalog.knows("w") && catalog.shard_loads == [0, 0]);
        }

        let (id, _) = declare_in_turns(&mut catalog, 0, large(), None).unwrap();
        let before = taken();
        for remote in [false, true] {
            let touch = &mut FirstTouch::within(20 << 20);
            let refused = turns(touch, |touch| catalog.lane(id, 1, remote, touch)).map(|(turns, _)| turns);
            no_memory(refused.unwrap_err(), "make a lane");
            assert!(taken() == before && !catalog.is_given(id, 1));
        }
        assert_eq!(lane_in_turns(&mut catalog, id, 1, false).unwrap().len(), SHARDS as usize);
    }

    // Each attempt of a worker that tried again, as where the system had no descriptor left, took another place.
    #[test]
    fn a_small_tensor_of_which_nothing_comes_keeps_no_place_among_the_others() {
        let small = |name: &str| TensorSpec { shape: vec![4096], ..spec(name) };
        let account = Account::new(Limits::NONE);
        let mut catalog = Catalog::new(0, 1, SHARDS, 3, CHUNK, account.clone());
        let (first, _) = declare_in_turns(&mut catalog, 0, small("v"), None).unwrap();
        lane_in_turns(&mut catalog, first, 0, false).unwrap();
        let mut taken = Vec::new();
        for attempt in 0..1000 {
            let touch = &mut FirstTouch::default();
            let (_, id) = turns(touch, |touch| catalog.declare(0, false, small("w"), None, touch)).unwrap();
            // It is refused before it has its lane, or with the descriptors that it is to be passed.
            if attempt % 2 == 1 {
                let (_, lanes) = turns(touch, |touch| catalog.lane(id, 0, false, touch)).unwrap();
                assert_eq!(lanes.len(), SHARDS as usize);
            }
            catalog.end_declaration();
            taken.push(account.taken(Resource::Bytes));
        }
        assert_eq!(taken[999], taken[0], "the slabs grew with each attempt");
        // And no place is given to two.
        for name in ["w", "x"] {
            let (id, new) = declare_in_turns(&mut catalog, 0, small(name), None).unwrap();
            assert!(matches!(catalog.get(id).unwrap().held, Held::Pooled(_)));
            assert_eq!(new.unwrap().homes.len(), SHARDS as usize);
            assert_eq!(lane_in_turns(&mut catalog, id, 0, false).unwrap().len(), SHARDS as usize);
        }
    }

    // A worker of its own version may name what this server does not have.
    #[test]
    fn a_declaration_that_this_server_cannot_carry_out_is_refused_and_leaves_nothing() {
        let account = Account::new(Limits::NONE);
        let mut catalog = Catalog::new(0, 1, SHARDS, 3, CHUNK, account.clone());
        let travel = Travel { values: vec![Encoding(77), Encoding::RAW], ..Travel::default() };
        let before = account.taken(Resource::Bytes);
        let refused =
            declare_in_turns(&mut catalog, 0, TensorSpec { travel, ..spec("w") }, None).unwrap_err();
        assert!(matches!(refused, Refusal::Spec(SpecError::Travel { .. })), "{refused}");
        assert!(!catalog.knows("w") && account.taken(Resource::Bytes) == before);
    }

    // Each declaration of it was credited to the pace of the job's requests, however often it came.
    #[test]
    fn who_has_declared_a_tensor_that_lives_elsewhere_is_known_to_have() {
        let mut catalog = Catalog::new(1, 2, SHARDS, 2, CHUNK, Account::new(Limits::NONE));
        let nowhere = vec![Extent { first: 0, count: 2 }, Extent { first: 2, count: 0 }];
        let (id, _) = declare_in_turns(&mut catalog, 0, spec("w"), Some((0, nowhere))).unwrap();
        for (rank, remote) in [(0, false), (1, true)] {
            assert!(!catalog.is_given(id, rank));
            assert!(lane_in_turns(&mut catalog, id, rank, remote).unwrap().is_empty());
            assert!(catalog.is_given(id, rank), "worker {rank}");
        }
    }
}
