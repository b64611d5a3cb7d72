//! Lanes, as both ends see them: a shard by its [`LaneView`], the worker by its [`OwnLane`].

use super::extent::ExtentLayout;
use crate::layout::{Count, LaneLayout};
use crate::region::{Mapping, Region, Untouched, Writers};
use crate::slab::Slab;
use penstock_kernels::{Dtype, Foreign, ForeignMut};
use rustix::io;
use std::ops::Range;
use std::sync::Arc;

/// A worker's lane, as one shard of the server sees it: foreign memory. Or the lane of a worker on another host, of which the
/// server's process has the only mapping: what the worker sends of the shard's chunks is received into it. There is one for each
/// shard and lane.
#[derive(Debug)]
pub struct LaneView {
    mapping: Arc<Mapping>,
    layout: LaneLayout,
    received: Option<Received>,
}

/// Which chunks of a lane are received through a view.
#[derive(Debug)]
struct Received {
    shard: u32,
    layout: ExtentLayout,
    /// The shard of each chunk of the extent.
    shard_of: Arc<[u32]>,
}

impl Received {
    /// Whether `range` lies in one chunk that the shard is home of.
    fn covers(&self, range: &Range<usize>) -> bool {
        let index = range.start / self.layout.cut.chunk_bytes() as usize;
        self.shard_of.get(index) == Some(&self.shard)
            && range.end <= self.layout.value(self.layout.extent.first + index as u32).end
    }
}

impl LaneView {
    /// Makes a lane, for each of `shards` shards a view of it; the region's descriptor goes to the worker.
    pub fn new(name: &str, layout: LaneLayout, shards: u32) -> io::Result<(Vec<Self>, Region)> {
        let (views, region, mut untouched) = Self::untouched(name, layout, shards)?;
        untouched.touch_all()?;
        Ok((views, region))
    }

    /// The same, but for the lane's first touch.
    pub fn untouched(
        name: &str,
        layout: LaneLayout,
        shards: u32,
    ) -> io::Result<(Vec<Self>, Region, Untouched)> {
        let region = Region::untouched(name, layout.total(), Writers::Holders)?;
        let view = |_| Self { mapping: Arc::clone(region.mapping()), layout, received: None };
        let untouched = Untouched::of([region.mapping()]);
        Ok(((0..shards).map(view).collect(), region, untouched))
    }

    /// Makes the lane of a worker on another host, likewise untouched: `shard_of` names the shard of each chunk of the extent.
    pub fn private(
        layout: ExtentLayout,
        shard_of: &Arc<[u32]>,
        shards: u32,
    ) -> io::Result<(Vec<Self>, Untouched)> {
        assert_eq!(shard_of.len(), layout.extent.count as usize, "every chunk has one home");
        let lane = layout.lane();
        let mapping = Mapping::private(lane.total())?;
        let view = |shard| {
            let received = Received { shard, layout, shard_of: Arc::clone(shard_of) };
            Self { mapping: Arc::clone(&mapping), layout: lane, received: Some(received) }
        };
        Ok(((0..shards).map(view).collect(), Untouched::of([&mapping])))
    }

    /// Takes a lane from a slab of its worker's, at byte `at`, likewise: if no other process has the slab, what the worker
    /// sends is received into it. `None` if the slab does not have that piece to lend.
    pub fn in_slab(
        slab: &mut Slab,
        at: usize,
        layout: ExtentLayout,
        shard_of: &Arc<[u32]>,
        shards: u32,
    ) -> Option<Vec<Self>> {
        assert_eq!(shard_of.len(), layout.extent.count as usize, "every chunk has one home");
        let lane = layout.lane();
        let mapping = slab.lend(at..at.checked_add(lane.total())?)?;
        let view = |shard| {
            let received = Received { shard, layout, shard_of: Arc::clone(shard_of) };
            let received = slab.is_private().then_some(received);
            Self { mapping: Arc::clone(&mapping), layout: lane, received }
        };
        Some((0..shards).map(view).collect())
    }

    /// Whether it is the lane of a worker on another host.
    pub fn is_private(&self) -> bool {
        self.received.is_some()
    }

    fn check(&self, range: &Range<usize>) {
        let inside = range.start <= range.end && range.end <= self.layout.data;
        assert!(inside, "{range:?} of {} bytes", self.layout.data);
        let covers = self.received.as_ref().is_none_or(|received| received.covers(range));
        assert!(covers, "{range:?} is of a chunk that has another home");
    }

    /// Where the contribution to the bytes `range` of the extent is received.
    ///
    /// # Panics
    /// If the lane is shared with a worker of this host, or `range` is not of one chunk that the view's shard is home of.
    pub fn receive(&mut self, range: Range<usize>) -> &mut [u8] {
        assert!(self.is_private(), "a lane that is shared is written by its worker");
        self.check(&range);
        let address = self.mapping.pointer(range.clone());
        // SAFETY: inside the mapping (`pointer`), which no other process has, and in this one only the views that were made with
        // this one. None of them gives out this chunk (`check`, and `private` gives each shard one), and this one is
        // borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(address.as_ptr(), range.len()) }
    }

    /// The contribution to the bytes `range` of the extent.
    ///
    /// # Panics
    /// If the lane has no such range, or, for a worker on another host, if it is not of one chunk that the view's
    /// shard is home of.
    pub fn contribution(&self, range: Range<usize>) -> Foreign<'_> {
        self.check(&range);
        self.mapping.foreign(range)
    }

    /// How many chunk contributions `shard` has taken.
    pub fn folded(&self, shard: u32) -> &Count {
        self.mapping.at(self.layout.data + LaneLayout::folded(shard))
    }
}

/// A worker's end of its lane. There is one for each tensor, and its holder has waited until the homes have taken what
/// stands in the lane.
#[derive(Debug)]
pub struct OwnLane {
    pub(super) mapping: Arc<Mapping>,
}

impl OwnLane {
    /// Copies `data` into the lane at byte `at`. `data` may be the lane itself.
    pub fn write(&mut self, at: usize, data: Foreign<'_>) {
        let mut lane = self.memory(at..at + data.len());
        match overlap(lane.as_foreign(), data) {
            Overlap::None => lane.copy_from(data),
            Overlap::Whole => {}
            Overlap::Part => lane.copy_from(Foreign::of(&owned(data))),
        }
    }

    /// Adds `data` to what stands in the lane from byte `at` on. `data` may be the lane itself.
    pub fn add(&mut self, dtype: Dtype, at: usize, data: Foreign<'_>) {
        let mut lane = self.memory(at..at + data.len());
        match overlap(lane.as_foreign(), data) {
            Overlap::None | Overlap::Whole => penstock_kernels::accumulate_into(dtype, &mut lane, data),
            Overlap::Part => penstock_kernels::accumulate_into(dtype, &mut lane, Foreign::of(&owned(data))),
        }
    }

    /// Overwrites bytes of the lane with what `change` makes of `sum`, or of what stands there. `sum` may be of the lane itself.
    ///
    /// # Panics
    ///
    /// If the lane has no such bytes.
    pub fn rewrite(
        &mut self,
        range: Range<usize>,
        sum: Option<Foreign<'_>>,
        change: impl FnOnce(Foreign<'_>, &mut ForeignMut<'_>),
    ) {
        let mapping = Arc::clone(&self.mapping);
        let standing = mapping.foreign(range.clone());
        let mut lane = self.memory(range);
        match sum {
            Some(sum) if overlap(standing, sum) == Overlap::Part => {
                change(Foreign::of(&owned(sum)), &mut lane)
            }
            Some(sum) => change(sum, &mut lane),
            None => change(standing, &mut lane),
        }
    }

    /// The first `bytes` bytes of what stands in the lane, for a check before it is pushed.
    pub fn contribution(&self, bytes: usize) -> Foreign<'_> {
        self.mapping.foreign(0..bytes)
    }

    fn memory(&mut self, range: Range<usize>) -> ForeignMut<'_> {
        let address = self.mapping.pointer(range.clone());
        // SAFETY: inside the lane's writable mapping (`pointer`), which lives as long as the result. No reference covers it: what
        // was lent of the lane is an address, and the server's loads, and a proxy's, are of other mappings.
        unsafe { ForeignMut::new(address.as_ptr(), range.len()) }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Overlap {
    None,
    /// They are the same bytes.
    Whole,
    Part,
}

fn overlap(a: Foreign<'_>, b: Foreign<'_>) -> Overlap {
    let (a, b, bytes) = (a.as_ptr() as usize, b.as_ptr() as usize, a.len());
    match a.abs_diff(b) {
        0 => Overlap::Whole,
        apart if apart >= bytes => Overlap::None,
        _ => Overlap::Part,
    }
}

fn owned(data: Foreign<'_>) -> Vec<u8> {
    let mut copy = vec![0; data.len()];
    data.copy_to(&mut copy);
    copy
}
