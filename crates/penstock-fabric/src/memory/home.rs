//! A server's memory of a tensor: its chunks, lent to the shard that is home of each.

use super::extent::ExtentLayout;
use super::near::claim;
use crate::layout::{Count, ModelLayout};
use crate::publish::{ChunkHeader, Publisher};
use crate::region::{Mapping, Region, Untouched, Writers};
use crate::slab::Slab;
use penstock_proto::placement::Extent;
use rustix::fd::BorrowedFd;
use rustix::io;
use std::ops::Range;
use std::sync::Arc;

/// A server's memory of one tensor: made once, then split among its shards.
#[derive(Debug)]
pub struct HomeRegions {
    layout: ExtentLayout,
    model: Region,
    state: Option<Region>,
}

impl HomeRegions {
    /// Makes, touches and seals the regions.
    pub fn new(name: &str, layout: ExtentLayout) -> io::Result<Self> {
        let (regions, mut untouched) = Self::untouched(name, layout)?;
        untouched.touch_all()?;
        Ok(regions)
    }

    /// Makes and seals the regions, which are still to be touched.
    pub fn untouched(name: &str, layout: ExtentLayout) -> io::Result<(Self, Untouched)> {
        let make = |bytes| Region::untouched(name, bytes, Writers::Maker);
        let model = make(layout.model().total())?;
        let state = match layout.state_bytes() {
            0 => None,
            bytes => Some(make(bytes)?),
        };
        let untouched = Untouched::of([&model].into_iter().chain(&state).map(Region::mapping));
        Ok((Self { layout, model, state }, untouched))
    }

    /// Splits the chunks: `shard_of` names the shard of each chunk of the extent. The descriptors stay with the caller.
    pub fn split(self, shard_of: &[u32], shards: u32) -> (Vec<HomeMemory>, ModelDescriptors) {
        let state = self.state.as_ref().map(Region::mapping);
        let homes = split(self.layout, self.model.mapping(), state, shard_of, shards);
        (homes, ModelDescriptors { model: self.model, state: self.state })
    }
}

/// The same for an extent that lies in a slab, at byte `at`; `None` if the slab does not have that piece to lend.
pub fn homes_in(
    slab: &mut Slab,
    at: usize,
    layout: ExtentLayout,
    shard_of: &[u32],
    shards: u32,
) -> Option<Vec<HomeMemory>> {
    let whole = slab.lend(at..at.checked_add(layout.pooled_bytes())?)?;
    let model = whole.piece(0..layout.state_at())?;
    let state = match layout.state_bytes() {
        0 => None,
        bytes => Some(whole.piece(layout.state_at()..layout.state_at() + bytes)?),
    };
    Some(split(layout, &model, state.as_ref(), shard_of, shards))
}

/// Splits the chunks of an extent, which were given out to no other, among its shards.
fn split(
    layout: ExtentLayout,
    model: &Arc<Mapping>,
    state: Option<&Arc<Mapping>>,
    shard_of: &[u32],
    shards: u32,
) -> Vec<HomeMemory> {
    assert_eq!(shard_of.len(), layout.extent.count as usize, "every chunk has one home");
    let first = layout.extent.first;
    let memory = |shard: u32| {
        let homed = shard_of.iter().zip(first..).filter(|(of, _)| **of == shard);
        let chunks: Vec<u32> = homed.map(|(_, chunk)| chunk).collect();
        HomeMemory {
            shard,
            layout,
            model: Arc::clone(model),
            state: state.map(Arc::clone),
            sequences: vec![0; chunks.len()],
            locals: locals(&chunks, layout.extent),
            chunks,
        }
    };
    (0..shards).map(memory).collect()
}

/// The regions' descriptors, to be passed to workers.
#[derive(Debug)]
pub struct ModelDescriptors {
    model: Region,
    state: Option<Region>,
}

impl ModelDescriptors {
    /// The model.
    pub fn model(&self) -> BorrowedFd<'_> {
        self.model.fd()
    }

    /// The model's region.
    pub fn into_model(self) -> Region {
        self.model
    }

    /// The optimizer's state, if there is any.
    pub fn state(&self) -> Option<BorrowedFd<'_>> {
        self.state.as_ref().map(Region::fd)
    }
}

/// The chunks of one tensor that one shard is home of. There is one for each shard and tensor, and no two hold the same
/// chunk ([`HomeRegions::split`] gives each chunk to one).
#[derive(Debug)]
pub struct HomeMemory {
    shard: u32,
    layout: ExtentLayout,
    model: Arc<Mapping>,
    state: Option<Arc<Mapping>>,
    chunks: Vec<u32>,
    /// For each chunk of the extent, its place among `chunks`, or [`ELSEWHERE`]. A search instead would touch some ten cache
    /// lines for each chunk, which the chunks themselves have pushed out of the nearer caches.
    locals: Vec<u32>,
    /// The sequence of each chunk's header: what the home last stored there.
    sequences: Vec<u64>,
}

/// The chunk has another home.
const ELSEWHERE: u32 = u32::MAX;

fn locals(chunks: &[u32], extent: Extent) -> Vec<u32> {
    let mut locals = vec![ELSEWHERE; extent.count as usize];
    for (&chunk, local) in chunks.iter().zip(0..) {
        locals[(chunk - extent.first) as usize] = local;
    }
    locals
}

/// One chunk, as its home works on it.
#[derive(Debug)]
pub struct HomeChunk<'a> {
    /// To be entered before anything of it is changed.
    pub header: Publisher<'a>,
    /// What readers see of the value.
    pub seen: &'a mut [u8],
    /// The value, where a filter may hold back some of what readers see; else they see the value itself.
    pub whole: Option<&'a mut [u8]>,
    /// The optimizer's arrays, one after the other.
    pub state: &'a mut [u8],
}

impl HomeMemory {
    /// The chunks, ascending, as indices over the whole tensor.
    pub fn chunks(&self) -> &[u32] {
        &self.chunks
    }

    /// The same chunks, of which nothing was published, in another region of this layout, which was given out to no other home of these.
    ///
    /// # Panics
    /// If the optimizer's state, or the value whole, stands beside it.
    pub fn in_another(&self, model: &Arc<Mapping>) -> Self {
        assert!(
            self.state.is_none() && model.len() >= self.layout.model().total(),
            "a mirror's values alone"
        );
        Self {
            shard: self.shard,
            layout: self.layout,
            model: Arc::clone(model),
            state: None,
            chunks: self.chunks.clone(),
            locals: self.locals.clone(),
            sequences: vec![0; self.sequences.len()],
        }
    }

    /// Whether optimizer's state, or the value whole, stands beside it.
    pub fn has_state(&self) -> bool {
        self.state.is_some()
    }

    /// Where a chunk lies in the extent, and so in each lane.
    pub fn range(&self, chunk: u32) -> Range<usize> {
        self.layout.value(chunk)
    }

    /// Where a chunk starts in the tensor's value, in bytes.
    pub fn start(&self, chunk: u32) -> u64 {
        self.layout.cut.range(chunk).start
    }

    /// The chunk with this index over the whole tensor, which must be homed here.
    pub fn chunk(&mut self, chunk: u32) -> HomeChunk<'_> {
        let local = self.local(chunk);
        let seen = self.layout.value(chunk);
        let address = self.model.pointer(seen.clone());
        // SAFETY: inside the model's writable mapping (`pointer` asserts the range); this `HomeMemory` is the only one with the
        // chunk (`local`, and `split`) and is borrowed exclusively. Readers are other mappings of the same memory, which
        // copy through `Foreign` and verify.
        let seen = unsafe { std::slice::from_raw_parts_mut(address.as_ptr(), seen.len()) };
        let (mut whole, mut state): (_, &mut [u8]) = (None, &mut []);
        if let Some(mapping) = &self.state {
            let range = self.layout.state(chunk);
            let address = mapping.pointer(range.clone());
            // SAFETY: as for what readers see, in the state's mapping.
            state = unsafe { std::slice::from_raw_parts_mut(address.as_ptr(), range.len()) };
            if let Some(range) = self.layout.whole(chunk) {
                let address = mapping.pointer(range.clone());
                // SAFETY: likewise; the layout has it end before the chunk's state.
                whole = Some(unsafe { std::slice::from_raw_parts_mut(address.as_ptr(), range.len()) });
            }
        }
        let offset = self.header_at(chunk - self.layout.extent.first);
        let header = Publisher::new(self.model.at(offset), &mut self.sequences[local]);
        HomeChunk { header, seen, whole, state }
    }

    /// What readers see of a chunk that is homed here, to be sent: its home does not change it meanwhile.
    pub fn seen(&self, chunk: u32) -> &[u8] {
        self.local(chunk);
        let value = self.layout.value(chunk);
        let address = self.model.pointer(value.clone());
        // SAFETY: inside the mapping (`pointer`); this `HomeMemory` is the only one that writes the chunk (`local`, and `split`),
        // and writing borrows it exclusively.
        unsafe { std::slice::from_raw_parts(address.as_ptr(), value.len()) }
    }

    /// The optimizer's arrays of a chunk that is homed here, likewise, and before them the value, where that is held back.
    pub fn beside(&self, chunk: u32) -> &[u8] {
        self.local(chunk);
        let Some(mapping) = &self.state else { return &[] };
        let range = self.layout.beside(chunk);
        let address = mapping.pointer(range.clone());
        // SAFETY: as for the value, in the state's mapping.
        unsafe { std::slice::from_raw_parts(address.as_ptr(), range.len()) }
    }

    /// Counts the publications of a chunk that is homed here: 0 before the first, and another number after each.
    pub fn sequence(&self, local: usize) -> u64 {
        self.sequences[local]
    }

    /// The place among [`HomeMemory::chunks`] of a chunk, if it is homed here.
    pub fn find(&self, chunk: u32) -> Option<usize> {
        let at = chunk.checked_sub(self.layout.extent.first)? as usize;
        self.locals.get(at).copied().filter(|&local| local != ELSEWHERE).map(|local| local as usize)
    }

    fn local(&self, chunk: u32) -> usize {
        let at = chunk.wrapping_sub(self.layout.extent.first) as usize;
        let local = self.locals.get(at).copied().unwrap_or(ELSEWHERE);
        assert!(local != ELSEWHERE, "chunk {chunk} has another home");
        local as usize
    }

    /// Brings the header of the chunk after `chunk` near, while `chunk` is worked on: its line was pushed out of every cache
    /// by the chunks between, and the stores behind it would have to wait for it.
    pub fn expect_after(&self, chunk: u32) {
        let next = chunk - self.layout.extent.first + 1;
        if next < self.layout.extent.count {
            let header: &ChunkHeader = self.model.at(self.header_at(next));
            claim(std::ptr::from_ref(header).cast());
        }
    }

    /// Header of a chunk that is homed here, to publish it.
    pub fn header(&mut self, chunk: u32) -> Publisher<'_> {
        let local = self.local(chunk);
        let offset = self.header_at(chunk - self.layout.extent.first);
        Publisher::new(self.model.at(offset), &mut self.sequences[local])
    }

    fn header_at(&self, index: u32) -> usize {
        let layout = self.layout.model();
        layout.data + layout.header(index)
    }

    /// This shard's progress on the tensor: version + 1.
    pub fn progress(&self) -> &Count {
        self.model.at(self.layout.model().data + ModelLayout::progress(self.shard))
    }
}
