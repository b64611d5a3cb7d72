//! The slabs of a job's small tensors: models in common ones, each worker's lanes in its own, so that a worker sees no other's.
//!
//! Lanes lie at the same place in every worker's slabs: it is chosen with the tensor, and paid for all workers,
//! which may come late.

use crate::limits::lacking;
use crate::pools::{Plan, Spot};
use penstock_fabric::memory::{ExtentLayout, HomeMemory, LaneView, homes_in};
use penstock_fabric::region::Writers;
use penstock_fabric::slab::Slab;
use penstock_proto::Rank;
use penstock_proto::account::{Account, Charge, Exhausted, Resource};
use penstock_proto::error::Refusal;
use penstock_proto::message::SlabSpot;
use rustix::fd::OwnedFd;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Model,
    Lane,
}

/// Where a tensor lies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pooled {
    model: Spot,
    lane: Spot,
}

#[derive(Debug)]
pub(super) struct Slabs {
    account: Account,
    workers: u32,
    models: Plan,
    model_slabs: Vec<Slab>,
    lanes: Plan,
    lane_slabs: BTreeMap<(Rank, usize), Slab>,
    /// Which slabs were passed to which workers.
    passed: BTreeSet<(Rank, Kind, usize)>,
    charges: Vec<Charge>,
    /// Bytes of slabs that were made, and touched with that, since it was asked last.
    touched: usize,
}

/// Where a tensor lies: its model and its lane; and the descriptors that its worker does not have yet.
type Passed = ([SlabSpot; 2], Vec<OwnedFd>);

impl Slabs {
    pub(super) fn new(account: Account, workers: u32) -> Self {
        Self {
            account,
            workers,
            models: Plan::default(),
            model_slabs: Vec::new(),
            lanes: Plan::default(),
            lane_slabs: BTreeMap::new(),
            passed: BTreeSet::new(),
            charges: Vec::new(),
            touched: 0,
        }
    }

    /// Bytes of slabs that were made, and touched with that, since this was asked last.
    pub(super) fn take_touched(&mut self) -> usize {
        std::mem::take(&mut self.touched)
    }

    /// Finds a place for a tensor and its lanes, and splits its chunks among the shards.
    pub(super) fn place(
        &mut self,
        name: &str,
        layout: ExtentLayout,
        shard_of: &[u32],
        shards: u32,
    ) -> Result<(Pooled, Vec<HomeMemory>), Refusal> {
        let (model_bytes, lane_bytes) = (layout.pooled_bytes(), layout.lane().total());
        if let Some(wanted) = self.lanes.wants(lane_bytes) {
            let (bytes, paid) = self.pay(name, wanted, Plan::least(lane_bytes), u64::from(self.workers))?;
            self.lanes.add(bytes);
            self.charges.extend(paid);
        }
        if let Some(wanted) = self.models.wants(model_bytes) {
            let (bytes, paid) = self.pay(name, wanted, Plan::least(model_bytes), 1)?;
            let slab = Slab::new("penstock-models", bytes, Writers::Maker);
            self.model_slabs.push(slab.map_err(lacking("make a slab for tensors"))?);
            self.models.add(bytes);
            self.touched += bytes;
            self.charges.extend(paid);
        }
        let (model, lane) = (self.models.take(model_bytes), self.lanes.take(lane_bytes));
        let slab = &mut self.model_slabs[model.slab];
        let homes = homes_in(slab, model.at, layout, shard_of, shards).ok_or_else(taken)?;
        Ok((Pooled { model, lane }, homes))
    }

    /// Pays for a slab in `copies`, of `wanted` bytes or of the `least` if there is not that much. Returns how many bytes it has,
    /// and what is given back unless it is made.
    fn pay(
        &self,
        name: &str,
        wanted: usize,
        least: usize,
        copies: u64,
    ) -> Result<(usize, [Charge; 3]), Refusal> {
        let pay = |bytes: usize| self.account.charge(Resource::Bytes, bytes as u64 * copies);
        let (bytes, paid) = match pay(wanted) {
            Ok(paid) => (wanted, paid),
            Err(_) => (least, pay(least).map_err(|why| self.out_of_memory(name, why))?),
        };
        let refuse = |why: Exhausted| why.refuse(format!("the memory of `{name}`"));
        let descriptors = self.account.charge(Resource::Descriptors, copies).map_err(refuse)?;
        let mappings = self.account.charge(Resource::Mappings, copies).map_err(refuse)?;
        Ok((bytes, [paid, descriptors, mappings]))
    }

    fn out_of_memory(&self, name: &str, why: Exhausted) -> Refusal {
        let (name, needed, available, workers) = (name.to_owned(), why.asked, why.left, self.workers);
        Refusal::OutOfMemory { name, needed, available, workers }
    }

    /// A worker's lane of a tensor, for each shard its view, in memory of this process alone if the worker is on another host.
    pub(super) fn lane(
        &mut self,
        place: Pooled,
        rank: Rank,
        remote: bool,
        layout: ExtentLayout,
        shard_of: &Arc<[u32]>,
        shards: u32,
    ) -> Result<Vec<LaneView>, Refusal> {
        let Spot { slab, at } = place.lane;
        let bytes = self.lanes.bytes(slab);
        let begun = self.lane_slabs.remove(&(rank, slab));
        if begun.is_none() {
            self.touched += bytes;
        }
        let made = match begun {
            Some(slab) => Ok(slab),
            None if remote => Slab::private(bytes),
            None => Slab::new("penstock-lanes", bytes, Writers::Holders),
        };
        let mut own = made.map_err(lacking("make a slab for lanes"))?;
        let views = LaneView::in_slab(&mut own, at, layout, shard_of, shards);
        self.lane_slabs.insert((rank, slab), own);
        views.ok_or_else(taken)
    }

    /// Where a worker on this host finds a tensor, and the descriptors of slabs that are new to it, or of
    /// both if it asks `again`.
    pub(super) fn pass(&mut self, place: Pooled, rank: Rank, again: bool) -> Result<Option<Passed>, Refusal> {
        let Some(lane) = self.lane_slabs.get(&(rank, place.lane.slab)).and_then(Slab::fd) else {
            return Ok(None);
        };
        let Some(model) = self.model_slabs[place.model.slab].fd() else { return Ok(None) };
        let mut descriptors = Vec::new();
        let mut spots = Vec::new();
        for (kind, spot, fd) in [(Kind::Model, place.model, model), (Kind::Lane, place.lane, lane)] {
            let new = again || !self.passed.contains(&(rank, kind, spot.slab));
            if new {
                let copied = fd.try_clone_to_owned();
                descriptors.push(copied.map_err(lacking("pass a slab of tensors"))?);
            }
            spots.push(SlabSpot { slab: spot.slab as u32, at: spot.at as u64, new });
        }
        self.passed.insert((rank, Kind::Model, place.model.slab));
        self.passed.insert((rank, Kind::Lane, place.lane.slab));
        Ok(Some(([spots[0], spots[1]], descriptors)))
    }

    /// Nothing comes of the tensor that was placed last, nor of the lane that `rank` was to have of it: another takes its place.
    pub(super) fn give_back(&mut self, Pooled { model, lane }: Pooled, rank: Rank) {
        if self.model_slabs[model.slab].take_back(model.at) {
            self.models.give_back(model);
        }
        let given = self.lane_slabs.get_mut(&(rank, lane.slab));
        if given.is_none_or(|slab| slab.take_back(lane.at)) {
            self.lanes.give_back(lane);
        }
    }

    /// A worker has gone: its lanes need not be given out any more.
    pub(super) fn forget(&mut self, rank: Rank) {
        self.lane_slabs.retain(|(of, _), _| *of != rank);
    }
}

/// A place was given twice: a mistake of this server's own, which costs the worker that asked.
fn taken() -> Refusal {
    Refusal::System {
        what: "find room for a tensor".to_owned(),
        reason: "its place in a slab is taken".to_owned(),
    }
}
