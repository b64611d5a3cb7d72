//! Which tensors there are, where their chunks live, and what memory is left.

use penstock_fabric::memory::{ExtentLayout, HomeMemory, HomeRegions, LaneView, ModelDescriptors};
use penstock_fabric::region::Region;
use penstock_proto::chunk::Cut;
use penstock_proto::error::Refusal;
use penstock_proto::message::MAX_TENSORS;
use penstock_proto::placement::{self, Extent};
use penstock_proto::spec::TensorSpec;
use penstock_proto::{Rank, TensorId};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A declared tensor.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) spec: TensorSpec,
    pub(super) extents: Vec<Extent>,
    /// Chunks that each shard is home of.
    pub(super) homed: Vec<u32>,
    /// Bytes that each shard was home of before.
    pub(super) loads: Vec<u64>,
    /// The shard of each chunk of this server's extent.
    shard_of: Arc<[u32]>,
    /// Workers on other hosts that have their lane: they declare again when they connect again.
    remote_lanes: Vec<Rank>,
    /// `None` where this server's extent is empty.
    pub(super) descriptors: Option<ModelDescriptors>,
    layout: ExtentLayout,
}

/// A new tensor's memory, for the shards.
#[derive(Debug)]
pub(super) struct NewTensor {
    pub(super) id: TensorId,
    pub(super) spec: TensorSpec,
    /// Chunks of the whole tensor.
    pub(super) total: u32,
    /// By shard.
    pub(super) homes: Vec<HomeMemory>,
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
    memory: u64,
    /// Also taken from by who passes rows on.
    memory_left: Arc<AtomicU64>,
    numbers: HashMap<String, TensorId>,
    entries: HashMap<TensorId, Entry>,
}

impl Catalog {
    pub(super) fn new(
        index: u32,
        servers: u32,
        shards: u32,
        workers: u32,
        chunk_bytes: u32,
        memory: u64,
    ) -> Self {
        Self {
            index,
            workers,
            chunk_bytes,
            server_loads: vec![0; servers as usize],
            shard_loads: vec![0; shards as usize],
            memory,
            memory_left: Arc::new(AtomicU64::new(memory)),
            numbers: HashMap::new(),
            entries: HashMap::new(),
        }
    }

    pub(super) fn get(&self, id: TensorId) -> Result<&Entry, Refusal> {
        self.entries.get(&id).ok_or(Refusal::UnknownTensor { tensor: id })
    }

    /// Bytes that tensors take.
    pub(super) fn taken(&self) -> u64 {
        self.memory.saturating_sub(self.left())
    }

    /// Whether a tensor of this name was declared.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.numbers.contains_key(name)
    }

    /// Declares a tensor for `rank`: its number, and its memory where it is new.
    pub(super) fn declare(
        &mut self,
        rank: Rank,
        spec: TensorSpec,
        decided: Option<(TensorId, Vec<Extent>)>,
    ) -> Result<(TensorId, Option<NewTensor>), Refusal> {
        spec.check()?;
        if let Some(&id) = self.numbers.get(&spec.name) {
            let entry = &self.entries[&id];
            return match entry.spec.difference(&spec) {
                Some((what, expected, got)) => {
                    Err(Refusal::Conflict { name: spec.name, rank, what: what.to_owned(), expected, got })
                }
                None => Ok((id, None)),
            };
        }
        let cut = Cut::new(spec.bytes(), self.chunk_bytes);
        let (id, extents, loads) = self.decide(&cut, decided)?;
        let new = self.make(id, spec, cut, extents)?;
        self.server_loads = loads;
        Ok((id, Some(new)))
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

    fn make(
        &mut self,
        id: TensorId,
        spec: TensorSpec,
        cut: Cut,
        extents: Vec<Extent>,
    ) -> Result<NewTensor, Refusal> {
        let extent = extents[self.index as usize];
        let per_element = spec.rule.slots().len() * spec.dtype.accumulator_size();
        let layout = ExtentLayout::new(cut, extent, spec.dtype, per_element);
        let shards = self.shard_loads.len() as u32;
        let mut homes = Vec::new();
        let mut descriptors = None;
        let mut homes_of: Arc<[u32]> = Arc::default();
        let mut homed = vec![0; shards as usize];
        let before = self.shard_loads.clone();
        if extent.count > 0 {
            let needed = self.needed(&layout);
            if needed > self.left() {
                let (name, available, workers) = (spec.name, self.left(), self.workers);
                return Err(Refusal::OutOfMemory { name, needed, available, workers });
            }
            let mut loads = self.shard_loads.clone();
            let sizes = extent.chunks().map(|chunk| layout.value(chunk).len() as u64);
            let shard_of = placement::shards(&mut loads, sizes);
            let regions =
                HomeRegions::new("penstock-model", layout).map_err(system("make a tensor's memory"))?;
            let (split, fds) = regions.split(&shard_of, shards);
            self.shard_loads = loads;
            homes_of = shard_of.into();
            self.memory_left.fetch_sub(needed, Ordering::Relaxed);
            homed = split.iter().map(|home| home.chunks().len() as u32).collect();
            (homes, descriptors) = (split, Some(fds));
        }
        self.numbers.insert(spec.name.clone(), id);
        let (loads, remote_lanes) = (before, Vec::new());
        let spec_of = spec.clone();
        let shard_of = homes_of;
        let entry =
            Entry { spec: spec_of, extents, homed, loads, shard_of, remote_lanes, descriptors, layout };
        self.entries.insert(id, entry);
        Ok(NewTensor { id, spec, total: cut.chunks(), homes })
    }

    /// Bytes of shared memory for the extent: value, state, and a lane for each worker.
    fn needed(&self, layout: &ExtentLayout) -> u64 {
        let lanes = layout.lane().total() as u64 * u64::from(self.workers);
        layout.model().total() as u64 + layout.state_bytes() as u64 + lanes
    }

    fn left(&self) -> u64 {
        self.memory_left.load(Ordering::Relaxed)
    }

    /// Memory that is left, for others to take of.
    pub(super) fn memory_left(&self) -> &Arc<AtomicU64> {
        &self.memory_left
    }

    /// Takes memory for rows of a table.
    pub(super) fn take_for_table(&mut self, table: u32, needed: u64) -> Result<(), Refusal> {
        let take = |left: u64| left.checked_sub(needed);
        let taken = self.memory_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.map(drop).map_err(|available| {
            let workers = self.workers;
            Refusal::OutOfMemory { name: format!("table {table}"), needed, available, workers }
        })
    }

    /// Gives it back.
    pub(super) fn give_back(&mut self, bytes: u64) {
        self.memory_left.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Makes the lane of a worker on another host, for each shard its view; none where this server's extent is empty, or where
    /// the worker has one.
    pub(super) fn remote_lane(&mut self, id: TensorId, rank: Rank) -> Result<Vec<LaneView>, Refusal> {
        let entry = self.entries.get_mut(&id).ok_or(Refusal::UnknownTensor { tensor: id })?;
        if entry.descriptors.is_none() || entry.remote_lanes.contains(&rank) {
            return Ok(Vec::new());
        }
        let shards = self.shard_loads.len() as u32;
        let lanes =
            LaneView::private(entry.layout, &entry.shard_of, shards).map_err(system("make a lane"))?;
        entry.remote_lanes.push(rank);
        Ok(lanes)
    }

    /// Makes a worker's lane, for each shard its view; `None` where this server's extent is empty.
    pub(super) fn lane(&self, id: TensorId) -> Result<Option<(Vec<LaneView>, Region)>, Refusal> {
        let entry = self.get(id)?;
        if entry.descriptors.is_none() {
            return Ok(None);
        }
        let shards = self.shard_loads.len() as u32;
        LaneView::new("penstock-lane", entry.layout.lane(), shards).map(Some).map_err(system("make a lane"))
    }
}

fn system(what: &'static str) -> impl Fn(rustix::io::Errno) -> Refusal {
    move |errno| Refusal::System { what: what.to_owned(), reason: errno.to_string() }
}
