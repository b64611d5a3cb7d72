//! A tensor as a worker sees it, and the copies that it makes of values.

use super::extent::ExtentLayout;
use super::lane::OwnLane;
use super::state::StateView;
use super::windows::Windows;
use crate::layout::{Count, LINE, LaneLayout, ModelLayout};
use crate::publish::{ChunkHeader, Published, Torn};
use crate::region::{Access, Mapping, Part};
use crate::sync::Ordering;
use penstock_kernels::{Dtype, ForeignMut};
use penstock_proto::chunk::Cut;
use penstock_proto::placement::Extent;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io;
use std::ops::Range;
use std::sync::Arc;

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
    /// The same of a mirror, which may be seen elsewhere later.
    Windows(OwnedFd, OwnedFd, Arc<Windows>),
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
    model: Model,
    lane: Arc<Mapping>,
}

/// Where progress and headers are seen.
#[derive(Debug)]
enum Model {
    Here(Arc<Mapping>),
    /// Of each shard's chunks elsewhere, maybe.
    Windows(Arc<Windows>),
}

impl WorkerMemory {
    /// Maps the parts, in the servers' order. A region that is smaller than it must be is refused. Beside it comes the one
    /// owner of the lane.
    pub fn new(cut: Cut, dtype: Dtype, servers: &[ServerPart]) -> io::Result<(Self, OwnLane)> {
        let layout = |part: &ServerPart| ExtentLayout::new(cut, part.extent, dtype, 0);
        let mut values = Vec::new();
        let mut lanes = Vec::new();
        let mut tails = Vec::new();
        let mut seats: Vec<(&Arc<Windows>, usize, Arc<Mapping>)> = Vec::new();
        for part in servers {
            let (model, lane, windows) = match &part.place {
                None => {
                    tails.push(None);
                    continue;
                }
                Some(Place::Own(model, lane)) => (model, lane, None),
                Some(Place::Windows(model, lane, windows)) => (model, lane, Some(windows)),
                Some(Place::Slabs { shards, model, lane }) if part.extent.count == cut.chunks() => {
                    let extents = servers.iter().map(|part| part.extent).collect();
                    return Self::in_slabs(cut, layout(part).pooled(*shards), extents, model, lane);
                }
                Some(Place::Slabs { .. }) => return Err(io::Errno::INVAL),
            };
            let (model_layout, lane_layout) = (layout(part).model(), layout(part).lane());
            let at: usize = values.iter().map(|part: &Part<'_>| part.bytes).sum();
            values.push(Part { fd: model.as_fd(), offset: 0, bytes: model_layout.data });
            lanes.push(Part { fd: lane.as_fd(), offset: 0, bytes: lane_layout.data });
            let tail = |fd, offset: usize, bytes| Part { fd, offset: offset as u64, bytes };
            let seen =
                Mapping::new(&[tail(model.as_fd(), model_layout.data, model_layout.tail())], Access::Read)?;
            let model = match windows {
                None => Model::Here(seen),
                Some(windows) => {
                    seats.push((windows, at, seen));
                    Model::Windows(Arc::clone(windows))
                }
            };
            tails.push(Some(Tail {
                slab: None,
                layout: model_layout,
                model,
                lane: Mapping::new(&[tail(lane.as_fd(), lane_layout.data, lane_layout.tail)], Access::Write)?,
            }));
        }
        let value = Mapping::new(&values, Access::Read)?;
        let lane = Mapping::new(&lanes, Access::Write)?;
        value.touch()?;
        lane.touch()?;
        seats.iter().for_each(|(windows, at, tail)| windows.sit(&value, *at, tail));
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
            model: Model::Here(piece(model, *model_at, model_layout.data..model_layout.total())?),
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

    /// This worker's lane; writable. A thread that writes there by its address does so only while no contribution stands in it
    /// that is not folded yet.
    pub fn lane(&self) -> &Arc<Mapping> {
        &self.lane
    }

    /// Progress of a shard that is home of some of it: version + 1.
    pub fn progress(&self, server: usize, shard: u32) -> Option<u64> {
        let tail = self.tails[server].as_ref()?;
        Some(match &tail.model {
            // Pairs with the release store in the shard's `progress`: a reader that sees it sees the chunks.
            Model::Here(model) => model.peek::<Count>(ModelLayout::progress(shard)).0.load(Ordering::Acquire),
            Model::Windows(windows) => windows.progress(shard),
        })
    }

    /// How many of this worker's chunk contributions a shard has taken.
    pub fn folded(&self, server: usize, shard: u32) -> Option<u64> {
        let tail = self.tails[server].as_ref()?;
        // Pairs with the release store in the shard's `folded`: it has read what it counts.
        Some(tail.lane.peek::<Count>(LaneLayout::folded(shard)).0.load(Ordering::Acquire))
    }

    /// The server of a chunk, and where its part's headers are.
    fn tail(&self, chunk: u32) -> (usize, &Tail) {
        let server = self.extents.iter().position(|extent| extent.chunks().contains(&chunk));
        let server = server.expect("extents cover it");
        (server, self.tails[server].as_ref().expect("an extent with chunks has regions"))
    }

    /// Looks at a chunk's header; meanwhile its value stays where it is.
    fn header(
        &self,
        chunk: u32,
        look: impl FnOnce(&ChunkHeader) -> Result<Published, Torn>,
    ) -> Result<Published, Torn> {
        let (server, tail) = self.tail(chunk);
        match &tail.model {
            Model::Here(model) => look(model.peek(tail.layout.header(chunk - self.extents[server].first))),
            Model::Windows(windows) => windows.read(chunk, look),
        }
    }

    /// Copies a chunk's value into `out` and says what it got; on [`Torn`], `out` holds nothing of use.
    pub fn read_chunk<'a>(&self, chunk: u32, out: impl Into<ForeignMut<'a>>) -> Result<Published, Torn> {
        let range = self.cut.range(chunk);
        let value = self.value.foreign(range.start as usize..range.end as usize);
        self.header(chunk, |header| header.read(|| out.into().copy_from(value)))
    }

    /// The chunk's version + 1, or a later one's; 0 before the first. What is then read of it is not older.
    pub fn chunk_progress(&self, chunk: u32) -> u64 {
        let (server, tail) = self.tail(chunk);
        match &tail.model {
            Model::Here(model) => {
                let at = tail.layout.header(chunk - self.extents[server].first);
                model.peek::<ChunkHeader>(at).progress()
            }
            Model::Windows(windows) => windows.chunk_progress(chunk),
        }
    }

    /// Copies parts of a chunk's value, each a range of its bytes, to places in `out`, and says what it got; on [`Torn`], there is
    /// nothing of use at those places.
    pub fn read_parts(
        &self,
        chunk: u32,
        parts: impl Iterator<Item = (Range<usize>, usize)>,
        out: &mut ForeignMut<'_>,
    ) -> Result<Published, Torn> {
        let range = self.cut.range(chunk);
        let value = self.value.foreign(range.start as usize..range.end as usize);
        self.header(chunk, |header| {
            header.read(|| {
                for (part, at) in parts {
                    out.part(at..at + part.len()).copy_from(value.part(part));
                }
            })
        })
    }

    /// Runs `copy`, which looks at anything that changes with the chunk, and says what it saw.
    pub fn read_beside(&self, chunk: u32, copy: impl FnOnce()) -> Result<Published, Torn> {
        self.header(chunk, |header| header.read(copy))
    }
}

/// Memory of this process that values are copied into, to be looked at by any thread that has its address. It has one writer.
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
