//! Slabs of small tensors, as a worker has them: those of a server on this host, which come once beside the first tensor in
//! them, or its own for the mirrors of a server on another host.

use crate::pools::{Plan, Spot};
use crate::worker::Error;
use penstock_fabric::memory::{ExtentLayout, HomeMemory, LaneView, Place, homes_in};
use penstock_fabric::region::{Access, Mapping, Part, Writers};
use penstock_fabric::slab::Slab;
use penstock_proto::message::SlabSpot;
use rustix::fd::{AsFd, OwnedFd};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A slab that came: its descriptor until it is mapped.
enum Arrived {
    Descriptor(OwnedFd),
    Mapped(Arc<Mapping>),
}

/// Slabs of one kind.
#[derive(Default)]
struct Shelf(BTreeMap<u32, Arrived>);

impl Shelf {
    fn get(&mut self, slab: u32, access: Access) -> Result<Option<Arc<Mapping>>, Error> {
        let Some(arrived) = self.0.get_mut(&slab) else { return Ok(None) };
        if let Arrived::Descriptor(fd) = arrived {
            let failed = || Error::system::<rustix::io::Errno>("map a slab of tensors");
            let bytes = rustix::fs::fstat(&*fd).map_err(failed())?.st_size as usize;
            let mapping =
                Mapping::new(&[Part { fd: fd.as_fd(), offset: 0, bytes }], access).map_err(failed())?;
            mapping.touch().map_err(failed())?;
            *arrived = Arrived::Mapped(mapping);
        }
        match arrived {
            Arrived::Mapped(mapping) => Ok(Some(Arc::clone(mapping))),
            Arrived::Descriptor(_) => Ok(None),
        }
    }
}

/// The mirrors' slabs: each as the proxies have it, and mapped once more as the worker has it.
#[derive(Default)]
struct Mirrors {
    plan: Plan,
    slabs: Vec<(Slab, Arc<Mapping>)>,
}

impl Mirrors {
    fn take(&mut self, bytes: usize, writers: Writers, access: Access) -> Result<Spot, Error> {
        if let Some(wanted) = self.plan.wants(bytes) {
            let made = || Error::system::<rustix::io::Errno>("make a slab for mirrors");
            let slab = Slab::new("penstock-mirrors", wanted, writers).map_err(made())?;
            let mapped = slab.mapped(access).ok_or(Error::Closed)?.map_err(made())?;
            mapped.touch().map_err(made())?;
            self.slabs.push((slab, mapped));
            self.plan.add(wanted);
        }
        Ok(self.plan.take(bytes))
    }

    fn give_back(&mut self, spot: Spot) {
        if self.slabs[spot.slab].0.take_back(spot.at) {
            self.plan.give_back(spot);
        }
    }
}

/// The slabs of one link.
#[derive(Default)]
pub(super) struct Slabs {
    models: Shelf,
    lanes: Shelf,
    own_models: Mirrors,
    own_lanes: Mirrors,
}

impl Slabs {
    /// Keeps what came with an answer, whether or not a thread still waits for it: it comes once.
    pub(super) fn keep(&mut self, spots: &[SlabSpot; 2], descriptors: Vec<OwnedFd>) {
        let mut descriptors = descriptors.into_iter();
        for (spot, shelf) in spots.iter().zip([&mut self.models, &mut self.lanes]) {
            if spot.new
                && let Some(fd) = descriptors.next()
            {
                // It may come again: a worker that declares a tensor again is passed its slabs again.
                shelf.0.entry(spot.slab).or_insert(Arrived::Descriptor(fd));
            }
        }
    }

    /// Where a tensor of a server of `shards` shards is; `None` if its slabs have not come.
    pub(super) fn find(&mut self, spots: &[SlabSpot; 2], shards: u32) -> Result<Option<Place>, Error> {
        let [model, lane] = spots;
        let models = self.models.get(model.slab, Access::Read)?;
        let lanes = self.lanes.get(lane.slab, Access::Write)?;
        Ok(models.zip(lanes).map(|(models, lanes)| Place::Slabs {
            shards,
            model: (models, model.at as usize),
            lane: (lanes, lane.at as usize),
        }))
    }

    /// Makes room for the mirror of a tensor of a server on another host: the proxies' ends, and the worker's.
    pub(super) fn mirror(
        &mut self,
        layout: ExtentLayout,
        shard_of: &Arc<[u32]>,
        shards: u32,
    ) -> Result<(Vec<HomeMemory>, Vec<LaneView>, Place), Error> {
        let model = self.own_models.take(layout.pooled_bytes(), Writers::Maker, Access::Read)?;
        let lane = self.own_lanes.take(layout.lane().total(), Writers::Holders, Access::Write);
        // Whoever tries again, as where there was no descriptor left, takes no other place each time.
        let lane = lane.inspect_err(|_| self.own_models.give_back(model))?;
        let (models, models_seen) = &mut self.own_models.slabs[model.slab];
        let (lanes, lanes_seen) = &mut self.own_lanes.slabs[lane.slab];
        let homes = homes_in(models, model.at, layout, shard_of, shards);
        let views = LaneView::in_slab(lanes, lane.at, layout, shard_of, shards);
        let (homes, views) = homes.zip(views).ok_or(Error::Closed)?;
        let place = Place::Slabs {
            shards,
            model: (Arc::clone(models_seen), model.at),
            lane: (Arc::clone(lanes_seen), lane.at),
        };
        Ok((homes, views, place))
    }
}
