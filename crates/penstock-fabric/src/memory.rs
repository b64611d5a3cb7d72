//! Chunks as their home and their readers see them, and lanes as both ends see them.
//!
//! The doors: a home's chunks are lent out as `&mut [u8]` by [`HomeMemory`], of which there is exactly one for each shard
//! and tensor; everyone else sees them through [`Foreign`] loads between two looks at the header ([`crate::publish`]).

use crate::layout::{Count, LaneLayout, ModelLayout};
use crate::publish::{ChunkHeader, Published, Publisher, Torn};
use crate::region::{Access, Mapping, Part, Region, Writers};
use penstock_kernels::{Dtype, Foreign};
use penstock_proto::chunk::Cut;
use penstock_proto::placement::Extent;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

/// How a server's extent of a tensor lies in its regions.
#[derive(Debug, Clone, Copy)]
pub struct ExtentLayout {
    cut: Cut,
    extent: Extent,
    /// Bytes of optimizer state behind each byte-full chunk.
    state_per_chunk: usize,
    state_per_byte: (usize, usize),
}

impl ExtentLayout {
    /// `state_per_element` bytes of state for each element of `dtype`.
    pub fn new(cut: Cut, extent: Extent, dtype: Dtype, state_per_element: usize) -> Self {
        let state_per_byte = (state_per_element, dtype.size());
        let state_per_chunk = cut.chunk_bytes() as usize / dtype.size() * state_per_element;
        Self { cut, extent, state_per_chunk, state_per_byte }
    }

    /// Bytes of the extent's values.
    pub fn bytes(&self) -> usize {
        if self.extent.count == 0 {
            return 0;
        }
        let last = self.cut.range(self.extent.first + self.extent.count - 1);
        (last.end - self.cut.range(self.extent.first).start) as usize
    }

    /// Bytes of the extent's state.
    pub fn state_bytes(&self) -> usize {
        self.bytes() / self.state_per_byte.1 * self.state_per_byte.0
    }

    /// Layout of the model's region.
    pub fn model(&self) -> ModelLayout {
        ModelLayout::new(self.bytes(), self.extent.count)
    }

    /// Layout of a lane.
    pub fn lane(&self) -> LaneLayout {
        LaneLayout::new(self.bytes())
    }

    /// Which chunks of the tensor.
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// Where chunk `chunk` of the tensor lies among the extent's values.
    pub fn value(&self, chunk: u32) -> Range<usize> {
        let start = self.cut.range(self.extent.first).start;
        let range = self.cut.range(chunk);
        (range.start - start) as usize..(range.end - start) as usize
    }

    /// Where its state lies: all arrays, one after the other.
    pub fn state(&self, chunk: u32) -> Range<usize> {
        let start = (chunk - self.extent.first) as usize * self.state_per_chunk;
        start..start + self.value(chunk).len() / self.state_per_byte.1 * self.state_per_byte.0
    }
}

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
        let model = Region::new(name, layout.model().total(), Writers::Maker)?;
        let state = match layout.state_bytes() {
            0 => None,
            bytes => Some(Region::new(name, bytes, Writers::Maker)?),
        };
        Ok(Self { layout, model, state })
    }

    /// Splits the chunks: `shard_of` names the shard of each chunk of the extent. The descriptors stay with the caller.
    pub fn split(self, shard_of: &[u32], shards: u32) -> (Vec<HomeMemory>, ModelDescriptors) {
        assert_eq!(shard_of.len(), self.layout.extent.count as usize, "every chunk has one home");
        let first = self.layout.extent.first;
        let memory = |shard: u32| {
            let homed = shard_of.iter().zip(first..).filter(|(of, _)| **of == shard);
            let chunks: Vec<u32> = homed.map(|(_, chunk)| chunk).collect();
            HomeMemory {
                shard,
                layout: self.layout,
                model: Arc::clone(self.model.mapping()),
                state: self.state.as_ref().map(|state| Arc::clone(state.mapping())),
                sequences: vec![0; chunks.len()],
                locals: locals(&chunks, self.layout.extent),
                chunks,
            }
        };
        let homes = (0..shards).map(memory).collect();
        (homes, ModelDescriptors { model: self.model, state: self.state })
    }
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
    /// To be entered before `value` is changed.
    pub header: Publisher<'a>,
    /// The value.
    pub value: &'a mut [u8],
    /// The optimizer's arrays, one after the other.
    pub state: &'a mut [u8],
}

impl HomeMemory {
    /// The chunks, ascending, as indices over the whole tensor.
    pub fn chunks(&self) -> &[u32] {
        &self.chunks
    }

    /// Where a chunk lies in the extent, and so in each lane.
    pub fn range(&self, chunk: u32) -> Range<usize> {
        self.layout.value(chunk)
    }

    /// The chunk with this index over the whole tensor, which must be homed here.
    pub fn chunk(&mut self, chunk: u32) -> HomeChunk<'_> {
        let local = self.local(chunk);
        let value = self.layout.value(chunk);
        let address = self.model.pointer(value.clone());
        // SAFETY: inside the model's writable mapping (`pointer` asserts the range); this `HomeMemory` is the only one with the
        // chunk (`local`, and `split`) and is borrowed exclusively. Readers are other mappings of the same memory, which
        // copy through `Foreign` and verify.
        let value = unsafe { std::slice::from_raw_parts_mut(address.as_ptr(), value.len()) };
        let state = match &self.state {
            None => &mut [],
            Some(mapping) => {
                let range = self.layout.state(chunk);
                let address = mapping.pointer(range.clone());
                // SAFETY: as for the value, in the state's mapping.
                unsafe { std::slice::from_raw_parts_mut(address.as_ptr(), range.len()) }
            }
        };
        let offset = self.layout.model().data + ModelLayout::header(chunk - self.layout.extent.first);
        HomeChunk { header: Publisher::new(self.model.at(offset), &mut self.sequences[local]), value, state }
    }

    /// The value of a chunk that is homed here, to be sent: its home does not change it meanwhile.
    pub fn value(&self, chunk: u32) -> &[u8] {
        self.local(chunk);
        let value = self.layout.value(chunk);
        let address = self.model.pointer(value.clone());
        // SAFETY: inside the mapping (`pointer`); this `HomeMemory` is the only one that writes the chunk (`local`, and `split`),
        // and writing borrows it exclusively.
        unsafe { std::slice::from_raw_parts(address.as_ptr(), value.len()) }
    }

    /// The optimizer's arrays of a chunk that is homed here, likewise.
    pub fn state(&self, chunk: u32) -> &[u8] {
        self.local(chunk);
        let Some(mapping) = &self.state else { return &[] };
        let range = self.layout.state(chunk);
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
            let header: &ChunkHeader = self.model.at(self.layout.model().data + ModelLayout::header(next));
            claim(std::ptr::from_ref(header).cast());
        }
    }

    /// Header of a chunk that is homed here, to publish it.
    pub fn header(&mut self, chunk: u32) -> Publisher<'_> {
        let local = self.local(chunk);
        let offset = self.layout.model().data + ModelLayout::header(chunk - self.layout.extent.first);
        Publisher::new(self.model.at(offset), &mut self.sequences[local])
    }

    /// This shard's progress on the tensor: version + 1.
    pub fn progress(&self) -> &Count {
        self.model.at(self.layout.model().data + ModelLayout::progress(self.shard))
    }
}

/// Asks for the line at `address` to be brought near, to be read. Any address will do: it is only a hint.
#[inline]
pub(crate) fn bring_near(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch neither faults nor changes anything, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// The same, to be written: other cores give it up. The intrinsic asks to read instead, unless the whole program is compiled for
/// processors that have this instruction; the others take it for none.
#[inline]
pub(crate) fn claim(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch neither faults nor changes anything, whatever the address; where the processor does not know it, it is
    // a no-op by the architecture.
    unsafe {
        std::arch::asm!("prefetchw byte ptr [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// A worker's lane, as the server sees it: foreign memory. Or the lane of a worker on another host, of which the server's
/// process has the only mapping: what the worker sends is received into it.
#[derive(Debug, Clone)]
pub struct LaneView {
    mapping: Arc<Mapping>,
    layout: LaneLayout,
    private: bool,
}

impl LaneView {
    /// Makes a lane; the region's descriptor goes to the worker.
    pub fn new(name: &str, layout: LaneLayout) -> io::Result<(Self, Region)> {
        let region = Region::new(name, layout.total(), Writers::Holders)?;
        Ok((Self { mapping: Arc::clone(region.mapping()), layout, private: false }, region))
    }

    /// Makes the lane of a worker on another host.
    pub fn private(layout: LaneLayout) -> io::Result<Self> {
        let mapping = Mapping::private(layout.total())?;
        mapping.touch()?;
        Ok(Self { mapping, layout, private: true })
    }

    /// Whether it is the lane of a worker on another host.
    pub fn is_private(&self) -> bool {
        self.private
    }

    /// Where the contribution to the bytes `range` of the extent is received. `range` must be of a chunk that the caller, a
    /// shard, is home of.
    ///
    /// # Panics
    /// If the lane is shared with a worker of this host, or has no such range.
    pub fn receive(&mut self, range: Range<usize>) -> &mut [u8] {
        assert!(self.private && range.end <= self.layout.data, "{range:?} of {} bytes", self.layout.data);
        let address = self.mapping.pointer(range.clone());
        // SAFETY: inside the mapping (`pointer`), which no other process has. In this one, the shard that is home of the chunk
        // is the only thread that touches this range, and it borrows its view exclusively.
        unsafe { std::slice::from_raw_parts_mut(address.as_ptr(), range.len()) }
    }

    /// What stands in the lane at the bytes `range` of the extent, for this process, the worker's own, to send it.
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        assert!(range.end <= self.layout.data, "{range:?} of {} bytes", self.layout.data);
        let address = self.mapping.pointer(range.clone());
        // SAFETY: inside the mapping (`pointer`). A worker that writes its lane while it is sent races with itself alone, and
        // every bit pattern is a byte; what arrives is then refused by its checksum, or is one of its own mixtures.
        unsafe { std::slice::from_raw_parts(address.as_ptr(), range.len()) }
    }

    /// The contribution to the bytes `range` of the extent.
    pub fn contribution(&self, range: Range<usize>) -> Foreign<'_> {
        assert!(range.end <= self.layout.data, "{range:?} of {} bytes", self.layout.data);
        let address = self.mapping.pointer(range.clone());
        // SAFETY: the range lies inside the mapping (`pointer`), which `self` keeps mapped while the result lives; chunks and
        // mappings start on multiples of 4096 bytes, so it is aligned to 64.
        unsafe { Foreign::new(address.as_ptr(), range.len()) }
    }

    /// How many chunk contributions `shard` has taken.
    pub fn folded(&self, shard: u32) -> &Count {
        self.mapping.at(self.layout.data + LaneLayout::folded(shard))
    }
}

/// One server's part of a tensor, as a worker receives it.
#[derive(Debug)]
pub struct ServerPart {
    /// Chunks.
    pub extent: Extent,
    /// The model's region and this worker's lane; `None` for an empty extent.
    pub regions: Option<(OwnedFd, OwnedFd)>,
}

/// A tensor as a worker sees it: the value of all servers as one array, its lane likewise.
#[derive(Debug)]
pub struct WorkerMemory {
    cut: Cut,
    extents: Vec<Extent>,
    value: Arc<Mapping>,
    lane: Arc<Mapping>,
    /// Progress and headers, by server; `None` for an empty extent.
    tails: Vec<Option<Tail>>,
}

#[derive(Debug)]
struct Tail {
    model: Arc<Mapping>,
    lane: Arc<Mapping>,
}

impl WorkerMemory {
    /// Maps the parts, in the servers' order. A region that is smaller than it must be is refused.
    pub fn new(cut: Cut, dtype: Dtype, servers: &[ServerPart]) -> io::Result<Self> {
        let layout = |part: &ServerPart| ExtentLayout::new(cut, part.extent, dtype, 0);
        let mut values = Vec::new();
        let mut lanes = Vec::new();
        let mut tails = Vec::new();
        for part in servers {
            let Some((model, lane)) = &part.regions else {
                tails.push(None);
                continue;
            };
            let (model_layout, lane_layout) = (layout(part).model(), layout(part).lane());
            values.push(Part { fd: model.as_fd(), offset: 0, bytes: model_layout.data });
            lanes.push(Part { fd: lane.as_fd(), offset: 0, bytes: lane_layout.data });
            let tail = |fd, offset: usize, bytes| Part { fd, offset: offset as u64, bytes };
            tails.push(Some(Tail {
                model: Mapping::new(
                    &[tail(model.as_fd(), model_layout.data, model_layout.tail())],
                    Access::Read,
                )?,
                lane: Mapping::new(&[tail(lane.as_fd(), lane_layout.data, LaneLayout::TAIL)], Access::Write)?,
            }));
        }
        let value = Mapping::new(&values, Access::Read)?;
        let lane = Mapping::new(&lanes, Access::Write)?;
        value.touch()?;
        lane.touch()?;
        Ok(Self { cut, extents: servers.iter().map(|part| part.extent).collect(), value, lane, tails })
    }

    /// How the tensor is cut.
    pub fn cut(&self) -> Cut {
        self.cut
    }

    /// The published value; read-only.
    pub fn value(&self) -> &Arc<Mapping> {
        &self.value
    }

    /// This worker's lane; writable.
    pub fn lane(&self) -> &Arc<Mapping> {
        &self.lane
    }

    /// Progress of a shard that is home of some of it: version + 1.
    pub fn progress(&self, server: usize, shard: u32) -> Option<&Count> {
        self.tails[server].as_ref().map(|tail| tail.model.at(ModelLayout::progress(shard)))
    }

    /// How many of this worker's chunk contributions a shard has taken.
    pub fn folded(&self, server: usize, shard: u32) -> Option<&Count> {
        self.tails[server].as_ref().map(|tail| tail.lane.at(LaneLayout::folded(shard)))
    }

    fn header(&self, chunk: u32) -> &ChunkHeader {
        let server = self
            .extents
            .iter()
            .position(|extent| extent.chunks().contains(&chunk))
            .expect("extents cover it");
        let tail = self.tails[server].as_ref().expect("an extent with chunks has regions");
        tail.model.at(ModelLayout::header(chunk - self.extents[server].first))
    }

    /// Copies a chunk's value into `out` and says what it got; on [`Torn`], `out` holds nothing of use.
    pub fn read_chunk(&self, chunk: u32, out: &mut [u8]) -> Result<Published, Torn> {
        let range = self.cut.range(chunk);
        let range = range.start as usize..range.end as usize;
        let address = self.value.pointer(range.clone());
        // SAFETY: inside the mapping (`pointer`), which `self` keeps; chunks are aligned to pages.
        let foreign = unsafe { Foreign::new(address.as_ptr(), range.len()) };
        self.header(chunk).read(|| foreign.copy_to(out))
    }

    /// Runs `copy`, which looks at anything that changes with the chunk, and says what it saw.
    pub fn read_beside(&self, chunk: u32, copy: impl FnOnce()) -> Result<Published, Torn> {
        self.header(chunk).read(copy)
    }

    /// Copies `data` into the lane at byte `at`. `data` may be the lane itself.
    pub fn write_lane(&self, at: usize, data: &[u8]) {
        let address = self.lane.pointer(at..at + data.len());
        // SAFETY: the target lies inside the lane's writable mapping (`pointer`). It may overlap `data` (`ptr::copy`). No
        // reference to lane memory outlives a call in this process, and the server's loads of it are racing-safe.
        unsafe { ptr::copy(data.as_ptr(), address.as_ptr(), data.len()) };
    }

    /// Adds `data` to what stands in the lane.
    pub fn add_to_lane(&self, dtype: Dtype, data: &[u8]) {
        let address = self.lane.pointer(0..data.len());
        let apart = data.as_ptr_range().end <= address.as_ptr()
            || data.as_ptr() as usize >= address.as_ptr() as usize + data.len();
        let copy;
        let data = if apart {
            data
        } else {
            copy = data.to_vec();
            &copy
        };
        // SAFETY: inside the lane's writable mapping (`pointer`), apart from `data` (checked or copied above), and no other
        // reference to lane memory lives in this process during the call: the tensor's lock is held around it.
        let lane = unsafe { std::slice::from_raw_parts_mut(address.as_ptr(), data.len()) };
        penstock_kernels::accumulate(dtype, lane, data);
    }

    /// What stands in the lane, for a check before it is pushed. The caller's own thread is the only writer.
    pub fn lane_bytes(&self, bytes: usize) -> &[u8] {
        let address = self.lane.pointer(0..bytes);
        // SAFETY: inside the mapping (`pointer`). The server never writes the contribution, and a worker that writes its lane
        // while it pushes it races with itself alone: every bit pattern is a byte.
        unsafe { std::slice::from_raw_parts(address.as_ptr(), bytes) }
    }
}

/// Where a worker receives the optimizer's state of a server on another host, to look at it through a [`StateView`].
#[derive(Debug, Clone)]
pub struct StateMirror {
    layout: ExtentLayout,
    mapping: Arc<Mapping>,
}

impl StateMirror {
    /// Makes the memory; the region's descriptor is for [`StateView::new`].
    pub fn new(name: &str, layout: ExtentLayout) -> io::Result<(Self, Region)> {
        let region = Region::new(name, layout.state_bytes(), Writers::Maker)?;
        Ok((Self { layout, mapping: Arc::clone(region.mapping()) }, region))
    }

    /// Bytes of a chunk's state.
    pub fn bytes(&self, chunk: u32) -> usize {
        self.layout.state(chunk).len()
    }

    /// Writes a chunk's state, which nobody looks at before it has come whole.
    ///
    /// # Panics
    /// If it has another size.
    pub fn write(&self, chunk: u32, state: &[u8]) {
        let range = self.layout.state(chunk);
        assert_eq!(range.len(), state.len(), "the state of chunk {chunk}");
        let address = self.mapping.pointer(range);
        // SAFETY: inside the writable mapping (`pointer`), which is apart from `state`. Readers look through `Foreign` loads.
        unsafe { ptr::copy_nonoverlapping(state.as_ptr(), address.as_ptr(), state.len()) };
    }
}

/// The optimizer's state at one server, as a worker reads it on request.
#[derive(Debug)]
pub struct StateView {
    layout: ExtentLayout,
    mapping: Arc<Mapping>,
}

impl StateView {
    /// Maps the state's region of an extent.
    pub fn new(layout: ExtentLayout, fd: BorrowedFd<'_>) -> io::Result<Self> {
        let bytes = crate::layout::pages(layout.state_bytes());
        Ok(Self { layout, mapping: Mapping::new(&[Part { fd, offset: 0, bytes }], Access::Read)? })
    }

    /// Copies array `slot` of a chunk into `out`; to be called inside [`WorkerMemory::read_beside`].
    pub fn copy_slot(&self, chunk: u32, slot: usize, out: &mut [u8]) {
        let range = self.layout.state(chunk);
        let start = range.start + slot * out.len();
        assert!(start + out.len() <= range.end, "slot {slot} of chunk {chunk}");
        // Racing-safe loads want aligned starts; an array in the last chunk may begin anywhere, so the whole state is copied.
        let mut whole = vec![0; range.len()];
        let address = self.mapping.pointer(range.clone());
        // SAFETY: inside the mapping (`pointer`), which `self` keeps; a chunk's state starts on a multiple of 64.
        unsafe { Foreign::new(address.as_ptr(), range.len()) }.copy_to(&mut whole);
        out.copy_from_slice(&whole[slot * out.len()..][..out.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(bytes: u64, extent: Extent) -> ExtentLayout {
        ExtentLayout::new(Cut::new(bytes, 4096), extent, Dtype::Bf16, 8)
    }

    #[test]
    fn the_last_chunk_of_an_extent_may_be_short_and_its_state_with_it() {
        let layout = layout(4096 * 2 + 10, Extent { first: 1, count: 2 });
        assert_eq!(layout.bytes(), 4096 + 10);
        assert_eq!(layout.value(2), 4096..4106);
        assert_eq!(layout.state(2), 4096 / 2 * 8..4096 / 2 * 8 + 5 * 8);
        assert_eq!(layout.state_bytes(), layout.state(2).end);
    }

    #[test]
    fn a_worker_sees_the_extents_of_two_servers_as_one_array() {
        let cut = Cut::new(3 * 4096 + 8, 4096);
        let extents = [Extent { first: 0, count: 2 }, Extent { first: 2, count: 2 }];
        let mut parts = Vec::new();
        let mut homes = Vec::new();
        for extent in extents {
            let layout = ExtentLayout::new(cut, extent, Dtype::F32, 0);
            let (home, descriptors) = HomeRegions::new("w", layout).unwrap().split(&[0, 0], 1);
            let (lane, region) = LaneView::new("lane", layout.lane()).unwrap();
            let fds = (
                descriptors.model().try_clone_to_owned().unwrap(),
                region.fd().try_clone_to_owned().unwrap(),
            );
            parts.push(ServerPart { extent, regions: Some(fds) });
            homes.push((home.into_iter().next().unwrap(), lane));
        }
        let worker = WorkerMemory::new(cut, Dtype::F32, &parts).unwrap();
        let mut chunk = homes[1].0.chunk(3);
        chunk.header.begin();
        chunk.value.fill(9);
        assert_eq!(worker.read_chunk(3, &mut [0; 8]), Err(Torn));
        homes[1].0.header(3).publish(Published { version: 5, steps: 4 });
        let mut out = [0; 8];
        assert_eq!(worker.read_chunk(3, &mut out), Ok(Published { version: 5, steps: 4 }));
        assert_eq!(out, [9; 8]);
        worker.write_lane(3 * 4096, &[7; 8]);
        homes[1].1.contribution(4096..4104).copy_to(&mut out);
        assert_eq!(out, [7; 8]);
    }

    #[test]
    #[should_panic(expected = "has another home")]
    fn a_shard_is_not_lent_the_chunk_of_another() {
        let layout = layout(4096 * 2, Extent { first: 0, count: 2 });
        let (mut homes, _) = HomeRegions::new("w", layout).unwrap().split(&[0, 1], 2);
        homes[0].chunk(1);
    }
}
