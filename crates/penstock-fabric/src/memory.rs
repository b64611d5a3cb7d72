//! Chunks as their home and their readers see them, and lanes as both ends see them.
//!
//! The doors: a home's chunks are lent out as `&mut [u8]` by [`HomeMemory`], of which there is exactly one for each shard
//! and tensor; everyone else sees them through [`Foreign`] loads between two looks at the header ([`crate::publish`]).
//! What is written beside others' eyes, or by more than one thread, is written through [`ForeignMut`] by one owner: a lane by
//! its [`OwnLane`], what a worker on another host sends by the [`LaneView`] of the shard that is home of it.

use crate::layout::{Count, LINE, LaneLayout, ModelLayout};
use crate::publish::{ChunkHeader, Published, Publisher, Torn};
use crate::region::{Access, Mapping, Part, Region, Writers};
use crate::slab::Slab;
use crate::sync::Ordering;
use penstock_kernels::{Dtype, Foreign, ForeignMut};
use penstock_proto::chunk::Cut;
use penstock_proto::placement::Extent;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io;
use std::ops::Range;
use std::sync::Arc;

/// How a server's extent of a tensor lies in its regions.
#[derive(Debug, Clone, Copy)]
pub struct ExtentLayout {
    cut: Cut,
    extent: Extent,
    /// Bytes of optimizer state behind each byte-full chunk.
    state_per_chunk: usize,
    state_per_byte: (usize, usize),
    /// Of one that lies in a region with others: the server's shards.
    pooled: Option<u32>,
}

impl ExtentLayout {
    /// `state_per_element` bytes of state for each element of `dtype`.
    pub fn new(cut: Cut, extent: Extent, dtype: Dtype, state_per_element: usize) -> Self {
        let state_per_byte = (state_per_element, dtype.size());
        let state_per_chunk = cut.chunk_bytes() as usize / dtype.size() * state_per_element;
        Self { cut, extent, state_per_chunk, state_per_byte, pooled: None }
    }

    /// The same, in a region with others, of a server of `shards` shards.
    #[must_use]
    pub fn pooled(self, shards: u32) -> Self {
        Self { pooled: Some(shards), ..self }
    }

    /// Bytes that the model takes of a region with others, with the optimizer's state behind it.
    pub fn pooled_bytes(&self) -> usize {
        self.state_at() + self.state_bytes().next_multiple_of(LINE)
    }

    /// Where the state lies behind the model, in a region with others.
    fn state_at(&self) -> usize {
        self.model().total()
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
        match self.pooled {
            None => ModelLayout::new(self.bytes(), self.extent.count),
            Some(shards) => ModelLayout::pooled(self.bytes(), self.extent.count, shards),
        }
    }

    /// Layout of a lane.
    pub fn lane(&self) -> LaneLayout {
        match self.pooled {
            None => LaneLayout::new(self.bytes()),
            Some(shards) => LaneLayout::pooled(self.bytes(), shards),
        }
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

/// Splits the chunks of an extent, which nobody else has been given, among its shards.
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
        let offset = self.header_at(chunk - self.layout.extent.first);
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

/// Asks for the line at `address` to be brought near, to be read. Any address will do: it is only a hint.
#[inline]
pub(crate) fn bring_near(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch neither faults nor changes anything, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(any(miri, not(target_arch = "x86_64")))]
    let _ = address;
}

/// The same, to be written: other cores give it up. The intrinsic asks to read instead, unless the whole program is compiled for
/// processors that have this instruction; the others take it for none.
#[inline]
pub(crate) fn claim(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch neither faults nor changes anything, whatever the address; where the processor does not know it, it is
    // a no-op by the architecture.
    unsafe {
        std::arch::asm!("prefetchw byte ptr [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(any(miri, not(target_arch = "x86_64")))]
    let _ = address;
}

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
        let region = Region::new(name, layout.total(), Writers::Holders)?;
        let view = |_| Self { mapping: Arc::clone(region.mapping()), layout, received: None };
        Ok(((0..shards).map(view).collect(), region))
    }

    /// Makes the lane of a worker on another host, likewise: `shard_of` names the shard of each chunk of the extent.
    pub fn private(layout: ExtentLayout, shard_of: &Arc<[u32]>, shards: u32) -> io::Result<Vec<Self>> {
        assert_eq!(shard_of.len(), layout.extent.count as usize, "every chunk has one home");
        let lane = layout.lane();
        let mapping = Mapping::private(lane.total())?;
        mapping.touch()?;
        let view = |shard| {
            let received = Received { shard, layout, shard_of: Arc::clone(shard_of) };
            Self { mapping: Arc::clone(&mapping), layout: lane, received: Some(received) }
        };
        Ok((0..shards).map(view).collect())
    }

    /// Takes a lane from a slab of its worker's, at byte `at`, likewise: received into if no other process has the slab. `None` if the
    /// slab does not have that piece to lend.
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
    /// If the lane has no such range, or of a worker on another host: if it is not of one chunk that the view's shard is home of.
    pub fn contribution(&self, range: Range<usize>) -> Foreign<'_> {
        self.check(&range);
        self.mapping.foreign(range)
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
    /// Where its memory is; `None` for an empty extent.
    pub place: Option<Place>,
}

/// Where a worker finds a server's part of a tensor.
#[derive(Debug)]
pub enum Place {
    /// In regions of its own: the model's, and this worker's lane.
    Own(OwnedFd, OwnedFd),
    /// In slabs that are mapped already, with others.
    Slabs {
        /// The server's shards.
        shards: u32,
        /// The model's slab, and the byte at which it starts.
        model: (Arc<Mapping>, usize),
        /// The lane's.
        lane: (Arc<Mapping>, usize),
    },
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
    /// Of a tensor among others: its server's shards, the slab, and where it starts.
    slab: Option<(u32, Arc<Mapping>, usize)>,
    layout: ModelLayout,
    model: Arc<Mapping>,
    lane: Arc<Mapping>,
}

impl WorkerMemory {
    /// Maps the parts, in the servers' order. A region that is smaller than it must be is refused. Beside it comes the one
    /// owner of the lane.
    pub fn new(cut: Cut, dtype: Dtype, servers: &[ServerPart]) -> io::Result<(Self, OwnLane)> {
        let layout = |part: &ServerPart| ExtentLayout::new(cut, part.extent, dtype, 0);
        let mut values = Vec::new();
        let mut lanes = Vec::new();
        let mut tails = Vec::new();
        for part in servers {
            let (model, lane) = match &part.place {
                None => {
                    tails.push(None);
                    continue;
                }
                Some(Place::Own(model, lane)) => (model, lane),
                Some(Place::Slabs { shards, model, lane }) if part.extent.count == cut.chunks() => {
                    let extents = servers.iter().map(|part| part.extent).collect();
                    return Self::in_slabs(cut, layout(part).pooled(*shards), extents, model, lane);
                }
                Some(Place::Slabs { .. }) => return Err(io::Errno::INVAL),
            };
            let (model_layout, lane_layout) = (layout(part).model(), layout(part).lane());
            values.push(Part { fd: model.as_fd(), offset: 0, bytes: model_layout.data });
            lanes.push(Part { fd: lane.as_fd(), offset: 0, bytes: lane_layout.data });
            let tail = |fd, offset: usize, bytes| Part { fd, offset: offset as u64, bytes };
            tails.push(Some(Tail {
                slab: None,
                layout: model_layout,
                model: Mapping::new(
                    &[tail(model.as_fd(), model_layout.data, model_layout.tail())],
                    Access::Read,
                )?,
                lane: Mapping::new(&[tail(lane.as_fd(), lane_layout.data, lane_layout.tail)], Access::Write)?,
            }));
        }
        let value = Mapping::new(&values, Access::Read)?;
        let lane = Mapping::new(&lanes, Access::Write)?;
        value.touch()?;
        lane.touch()?;
        let own = OwnLane { mapping: Arc::clone(&lane) };
        let extents = servers.iter().map(|part| part.extent).collect();
        Ok((Self { cut, extents, value, lane, tails }, own))
    }

    /// A tensor that lies whole in slabs of one server.
    fn in_slabs(
        cut: Cut,
        layout: ExtentLayout,
        extents: Vec<Extent>,
        (model, model_at): &(Arc<Mapping>, usize),
        (lane, lane_at): &(Arc<Mapping>, usize),
    ) -> io::Result<(Self, OwnLane)> {
        let (model_layout, lane_layout) = (layout.model(), layout.lane());
        let piece = |slab: &Arc<Mapping>, at: usize, range: Range<usize>| {
            let (start, end) = (at.checked_add(range.start), at.checked_add(range.end));
            let aligned = at.is_multiple_of(LINE);
            let piece = start.zip(end).filter(|_| aligned).and_then(|(start, end)| slab.piece(start..end));
            piece.ok_or(io::Errno::INVAL)
        };
        let tail = Tail {
            slab: layout.pooled.map(|shards| (shards, Arc::clone(model), *model_at)),
            layout: model_layout,
            model: piece(model, *model_at, model_layout.data..model_layout.total())?,
            lane: piece(lane, *lane_at, lane_layout.data..lane_layout.total())?,
        };
        let value = piece(model, *model_at, 0..model_layout.data)?;
        let lane = piece(lane, *lane_at, 0..lane_layout.data)?;
        let mut tail = Some(tail);
        let tails = extents.iter().map(|extent| if extent.count > 0 { tail.take() } else { None }).collect();
        let own = OwnLane { mapping: Arc::clone(&lane) };
        Ok((Self { cut, extents, value, lane, tails }, own))
    }

    /// The optimizer's state at a server, if it lies behind the value in a slab. `layout`: of the extent there.
    pub fn state_in_slab(&self, server: usize, layout: ExtentLayout) -> Option<StateView> {
        let (shards, slab, at) = self.tails[server].as_ref()?.slab.as_ref()?;
        StateView::in_slab(layout.pooled(*shards), slab, *at)
    }

    /// How the tensor is cut.
    pub fn cut(&self) -> Cut {
        self.cut
    }

    /// The published value; read-only.
    pub fn value(&self) -> &Arc<Mapping> {
        &self.value
    }

    /// This worker's lane; writable. Who writes there by its address does so only while no contribution stands in it that is
    /// not folded yet.
    pub fn lane(&self) -> &Arc<Mapping> {
        &self.lane
    }

    /// Progress of a shard that is home of some of it: version + 1.
    pub fn progress(&self, server: usize, shard: u32) -> Option<u64> {
        let tail = self.tails[server].as_ref()?;
        // Pairs with the release store in the shard's `progress`: who sees it sees the chunks.
        Some(tail.model.peek::<Count>(ModelLayout::progress(shard)).0.load(Ordering::Acquire))
    }

    /// How many of this worker's chunk contributions a shard has taken.
    pub fn folded(&self, server: usize, shard: u32) -> Option<u64> {
        let tail = self.tails[server].as_ref()?;
        // Pairs with the release store in the shard's `folded`: it has read what it counts.
        Some(tail.lane.peek::<Count>(LaneLayout::folded(shard)).0.load(Ordering::Acquire))
    }

    fn header(&self, chunk: u32) -> &ChunkHeader {
        let server = self
            .extents
            .iter()
            .position(|extent| extent.chunks().contains(&chunk))
            .expect("extents cover it");
        let tail = self.tails[server].as_ref().expect("an extent with chunks has regions");
        tail.model.peek(tail.layout.header(chunk - self.extents[server].first))
    }

    /// Copies a chunk's value into `out` and says what it got; on [`Torn`], `out` holds nothing of use.
    pub fn read_chunk<'a>(&self, chunk: u32, out: impl Into<ForeignMut<'a>>) -> Result<Published, Torn> {
        let range = self.cut.range(chunk);
        let value = self.value.foreign(range.start as usize..range.end as usize);
        self.header(chunk).read(|| out.into().copy_from(value))
    }

    /// Runs `copy`, which looks at anything that changes with the chunk, and says what it saw.
    pub fn read_beside(&self, chunk: u32, copy: impl FnOnce()) -> Result<Published, Torn> {
        self.header(chunk).read(copy)
    }
}

/// A worker's end of its lane. There is one for each tensor, and who holds it has waited until the homes have taken what
/// stands in the lane.
#[derive(Debug)]
pub struct OwnLane {
    mapping: Arc<Mapping>,
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

    /// Adds `data` to what stands in the lane. `data` may be the lane itself.
    pub fn add(&mut self, dtype: Dtype, data: Foreign<'_>) {
        let mut lane = self.memory(0..data.len());
        match overlap(lane.as_foreign(), data) {
            Overlap::None | Overlap::Whole => penstock_kernels::accumulate_into(dtype, &mut lane, data),
            Overlap::Part => penstock_kernels::accumulate_into(dtype, &mut lane, Foreign::of(&owned(data))),
        }
    }

    /// The first `bytes` bytes of what stands in the lane, for a check before it is pushed.
    pub fn contribution(&self, bytes: usize) -> Foreign<'_> {
        self.mapping.foreign(0..bytes)
    }

    fn memory(&mut self, range: Range<usize>) -> ForeignMut<'_> {
        let address = self.mapping.pointer(range.clone());
        // SAFETY: inside the lane's writable mapping (`pointer`), which lives as long as the result. No reference covers it: what
        // was lent of the lane is an address, and the server's loads, and a courier's, are of other mappings.
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

/// Memory of this process that values are copied into, to be looked at by whoever has its address. It has one writer.
#[derive(Debug)]
pub struct ValueCopy {
    mapping: Arc<Mapping>,
    bytes: usize,
}

impl ValueCopy {
    /// Memory for `bytes` bytes.
    pub fn new(bytes: usize) -> io::Result<Self> {
        Ok(Self { mapping: Mapping::private(bytes)?, bytes })
    }

    /// What others may look at: an address that lives as long as this.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Where the next value goes.
    pub fn out(&mut self) -> ForeignMut<'_> {
        let address = self.mapping.pointer(0..self.bytes);
        // SAFETY: inside the mapping (`pointer`), which is writable and of which only the address is known elsewhere.
        unsafe { ForeignMut::new(address.as_ptr(), self.bytes) }
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
        // SAFETY: inside the writable mapping (`pointer`), which is never lent as a slice. Readers look through `Foreign` loads.
        unsafe { ForeignMut::new(address.as_ptr(), state.len()) }.copy_from(Foreign::of(state));
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

    /// The state of a tensor that lies in a slab, at byte `at`.
    fn in_slab(layout: ExtentLayout, slab: &Arc<Mapping>, at: usize) -> Option<Self> {
        let start = at.checked_add(layout.state_at())?;
        let mapping = slab.piece(start..start.checked_add(layout.state_bytes())?)?;
        Some(Self { layout, mapping })
    }

    /// Copies array `slot` of a chunk into `out`; to be called inside [`WorkerMemory::read_beside`].
    pub fn copy_slot(&self, chunk: u32, slot: usize, out: &mut [u8]) {
        let range = self.layout.state(chunk);
        let start = range.start + slot * out.len();
        assert!(start + out.len() <= range.end, "slot {slot} of chunk {chunk}");
        self.mapping.foreign(start..start + out.len()).copy_to(out);
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
    #[cfg_attr(miri, ignore = "maps files")]
    fn a_worker_sees_the_extents_of_two_servers_as_one_array() {
        let cut = Cut::new(3 * 4096 + 8, 4096);
        let extents = [Extent { first: 0, count: 2 }, Extent { first: 2, count: 2 }];
        let mut parts = Vec::new();
        let mut homes = Vec::new();
        for extent in extents {
            let layout = ExtentLayout::new(cut, extent, Dtype::F32, 0);
            let (home, descriptors) = HomeRegions::new("w", layout).unwrap().split(&[0, 0], 1);
            let (mut lanes, region) = LaneView::new("lane", layout.lane(), 1).unwrap();
            let fds = (
                descriptors.model().try_clone_to_owned().unwrap(),
                region.fd().try_clone_to_owned().unwrap(),
            );
            parts.push(ServerPart { extent, place: Some(Place::Own(fds.0, fds.1)) });
            homes.push((home.into_iter().next().unwrap(), lanes.remove(0)));
        }
        let (worker, mut own) = WorkerMemory::new(cut, Dtype::F32, &parts).unwrap();
        let mut chunk = homes[1].0.chunk(3);
        chunk.header.begin();
        chunk.value.fill(9);
        assert_eq!(worker.read_chunk(3, &mut [0; 8]), Err(Torn));
        homes[1].0.header(3).publish(Published { version: 5, steps: 4 });
        let mut out = [0; 8];
        assert_eq!(worker.read_chunk(3, &mut out), Ok(Published { version: 5, steps: 4 }));
        assert_eq!(out, [9; 8]);
        own.write(3 * 4096, Foreign::of(&[7; 8]));
        homes[1].1.contribution(4096..4104).copy_to(&mut out);
        assert_eq!(out, [7; 8]);
        let lane = worker.lane().foreign(3 * 4096..3 * 4096 + 8);
        own.write(3 * 4096 + 4, lane.part(0..4));
        own.write(3 * 4096 + 2, lane.part(0..6));
        own.write(3 * 4096, lane);
        homes[1].1.contribution(4096..4104).copy_to(&mut out);
        assert_eq!(out, [7; 8]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps files")]
    #[should_panic(expected = "has another home")]
    fn a_shard_is_not_lent_the_chunk_of_another() {
        let layout = layout(4096 * 2, Extent { first: 0, count: 2 });
        let (mut homes, _) = HomeRegions::new("w", layout).unwrap().split(&[0, 1], 2);
        homes[0].chunk(1);
    }

    fn received() -> Vec<LaneView> {
        let layout = layout(4096 * 3 - 6, Extent { first: 1, count: 2 });
        LaneView::private(layout, &Arc::from([1, 0]), 2).unwrap()
    }

    #[test]
    fn what_is_received_stands_in_the_lane() {
        let mut lanes = received();
        lanes[1].receive(0..4096).fill(3);
        lanes[0].receive(4096..8186).fill(4);
        let mut out = [0; 4096];
        lanes[1].contribution(0..4096).copy_to(&mut out);
        assert_eq!(out, [3; 4096]);
        lanes[0].contribution(4096..8186).copy_to(&mut out[..4090]);
        assert_eq!(out[..4090], [4; 4090]);
    }

    #[test]
    #[should_panic(expected = "is of a chunk that has another home")]
    fn a_shard_receives_nothing_for_another_s_chunk() {
        received()[0].receive(0..4096);
    }

    #[test]
    #[should_panic(expected = "is of a chunk that has another home")]
    fn a_shard_receives_nothing_across_the_end_of_its_chunk() {
        received()[1].receive(4000..4100);
    }

    #[test]
    #[should_panic(expected = "is of a chunk that has another home")]
    fn a_shard_does_not_look_at_what_another_receives() {
        received()[1].contribution(4096..8186);
    }

    /// Rounds of a race: enough to meet it, few enough for an interpreter.
    const ROUNDS: u8 = if cfg!(miri) { 5 } else { 200 };

    #[test]
    fn shards_receive_and_look_at_their_chunks_of_one_lane_at_the_same_time() {
        std::thread::scope(|scope| {
            for (mut lane, range) in received().into_iter().zip([4096..8186, 0..4096]) {
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        lane.receive(range.clone()).fill(round);
                        let mut out = vec![0; range.len()];
                        lane.contribution(range.clone()).copy_to(&mut out);
                        assert!(out.iter().all(|&byte| byte == round));
                        lane.folded(0).0.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
    }

    #[test]
    fn a_value_is_copied_while_somebody_looks_at_the_last() {
        let mut copy = ValueCopy::new(1000).unwrap();
        let mapping = Arc::clone(copy.mapping());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    copy.out().copy_from(Foreign::of(&[round; 1000]));
                }
            });
            for _ in 0..ROUNDS {
                let mut out = [0; 1000];
                mapping.foreign(0..1000).copy_to(&mut out);
                assert!(out.iter().all(|&byte| byte < ROUNDS));
            }
        });
    }

    #[test]
    fn a_lane_is_written_and_added_to_while_a_home_looks() {
        let mapping = Mapping::private(4096).unwrap();
        let mut own = OwnLane { mapping: Arc::clone(&mapping) };
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    own.write(0, Foreign::of(&[round; 1004]));
                    own.add(Dtype::F32, own.mapping.clone().foreign(4..1004));
                    own.add(Dtype::F32, Foreign::of(&[0; 1004]));
                }
            });
            for _ in 0..ROUNDS {
                mapping.foreign(0..1004).copy_to(&mut [0; 1004]);
            }
        });
    }
}
