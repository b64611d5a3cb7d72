//! Where a worker sees a server's part of a value that is mirrored: in memory of its own process, or in that of another worker of the
//! host, which lends it. Each shard's chunks are seen where that shard's proxy says, and may be seen elsewhere at any time.
//!
//! The value keeps its address: pages of the other region are mapped over those that were seen there. So what was handed out shows
//! whatever is shown now, and whoever switches sees to it that this is the same to the bit, or newer where it may be newer.
//!
//! - **W-1** What a reader gets of a chunk is of one publication, wherever it stands: header and value are read under a lock that
//!   switching takes for itself.
//! - **W-2** No reader gets an older version behind a switch: back from a lender's memory, what stands there is copied under that lock,
//!   and every earlier reader has left by then.
//! - **W-3** Of a lender's memory no reader gets a version below what its own process has counted of all chunks, nor one that no job
//!   reaches: it gets [`Torn`], and that is [noted](Windows::take_unread).
//! - **W-4** Where a switch has failed halfway, no reader gets anything until the next one has not.

use super::extent::ExtentLayout;
use crate::layout::{Count, ModelLayout};
use crate::publish::{ChunkHeader, Numbers, Published, Torn};
use crate::region::{Access, Mapping, Part, Region, Writers};
use crate::sync::Ordering;
use penstock_kernels::Foreign;
use penstock_proto::clock::MAX_CLOCK;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize};
use std::sync::{Arc, PoisonError, RwLock, Weak};

/// Pieces of mappings that all switching of this process may leave behind, at most. The kernel allows a process some 65,000 in all, and
/// going back must not fail for want of them.
const MOST_PIECES: usize = 16 * 1024;
/// Those that may be there by now.
static PIECES: AtomicUsize = AtomicUsize::new(0);

/// Bytes that are brought in at once.
const AT_ONCE: usize = 16 << 20;

/// Why something is not lent or borrowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LendError {
    /// The system says no.
    #[error("{what}: {errno}")]
    System {
        /// What it was asked for.
        what: &'static str,
        /// What it said.
        errno: Errno,
    },
    /// This process has as many pieces of mappings as it may have for this.
    #[error("it would take {more} pieces of mappings more than the {MOST_PIECES} that there may be")]
    Pieces {
        /// How many.
        more: usize,
    },
    /// There is no memory for what is to be kept here.
    #[error("there is no memory for {bytes} bytes: {errno}")]
    Memory {
        /// How many.
        bytes: usize,
        /// What the system said.
        errno: Errno,
    },
    /// What came is no region of that tensor.
    #[error("expected a region of {expected} bytes, got {got}")]
    NoRegion {
        /// Of the tensor.
        expected: u64,
        /// What came.
        got: u64,
    },
    /// Its length might change, or others might write it.
    #[error("expected a region with seals {expected:#x}, got {got:#x}")]
    Unsealed {
        /// Those that each region has.
        expected: u32,
        /// Its own.
        got: u32,
    },
    /// It is no memory of small pages: what is mapped of others covers more than was asked for.
    #[error("expected a region of tmpfs ({expected:#x}), got one of file system {got:#x}")]
    Pages {
        /// Of tmpfs.
        expected: u64,
        /// What came.
        got: u64,
    },
}

/// Why a chunk is not read where another worker lends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unread {
    /// It is being written, for as long as it takes.
    HalfWritten,
    /// Its version fell, or is one that no job reaches: no honest lender has such there.
    NotSo,
}

impl Unread {
    /// As it is noted; 0: nothing is.
    fn mark(self) -> u8 {
        match self {
            Self::HalfWritten => 1,
            Self::NotSo => 2,
        }
    }

    fn of(mark: u8) -> Option<Self> {
        [Self::HalfWritten, Self::NotSo].into_iter().find(|unread| unread.mark() == mark)
    }
}

fn system(what: &'static str) -> impl Fn(Errno) -> LendError {
    move |errno| LendError::System { what, errno }
}

/// What is said where pages could not be brought in. Where a store would have ended this process for want of memory, that is a bad
/// address to the system.
fn without_memory(errno: Errno) -> Errno {
    if errno == Errno::FAULT { Errno::NOMEM } else { errno }
}

#[derive(Debug, Default)]
struct Seen {
    /// Where the worker has mapped the value, and at which byte of it the extent begins.
    seat: Option<(Weak<Mapping>, usize)>,
    /// By shard: headers, and progress. That is this process's own: whoever lends has its word for each chunk, and for no more.
    tails: Vec<Arc<Mapping>>,
    counts: Vec<Arc<Mapping>>,
    /// By shard: whether its chunks may be seen in two places at once, as a switch has failed.
    stopped: Vec<bool>,
}

/// Where the chunks of one extent are seen, shard by shard.
#[derive(Debug)]
pub struct Windows {
    layout: ExtentLayout,
    shard_of: Box<[u32]>,
    /// By shard: bytes of the values that are its chunks', in whole pages.
    runs: Box<[Vec<Range<usize>>]>,
    seen: RwLock<Seen>,
    /// Pieces that were counted for it.
    counted: AtomicUsize,
    /// By chunk: why a reader did not get it of a lender since that was asked last, while none has got it since. And by shard, whether
    /// any of its chunks may be so.
    unread: Box<[AtomicU8]>,
    any_unread: Box<[AtomicBool]>,
}

impl Windows {
    /// For an extent in a region of its own, whose chunks these shards are homes of.
    pub fn new(layout: ExtentLayout, shard_of: &[u32], shards: u32) -> Self {
        assert!(layout.pooled.is_none(), "pages are not shared with other tensors");
        let end = layout.model().data;
        let mut runs = vec![Vec::<Range<usize>>::new(); shards as usize];
        for (&shard, chunk) in shard_of.iter().zip(layout.extent.first..) {
            let Range { start, end: to } = layout.value(chunk);
            // Chunks are whole pages, but for the last, which has the rest of its page to itself.
            let to = if chunk + 1 == layout.extent.first + layout.extent.count { end } else { to };
            let runs = &mut runs[shard as usize];
            match runs.last_mut().filter(|last| last.end == start) {
                Some(last) => last.end = to,
                None => runs.push(start..to),
            }
        }
        let (shard_of, runs) = (shard_of.into(), runs.into());
        let unread = (0..layout.extent.count).map(|_| AtomicU8::new(0)).collect();
        let any_unread = (0..shards).map(|_| AtomicBool::new(false)).collect();
        let (seen, counted) = (RwLock::default(), AtomicUsize::new(0));
        Self { layout, shard_of, runs, seen, counted, unread, any_unread }
    }

    /// How the extent lies in each region.
    pub fn layout(&self) -> ExtentLayout {
        self.layout
    }

    /// The worker has mapped the value, in which this extent begins at a byte; where its progress and headers are for now.
    pub(super) fn sit(&self, value: &Arc<Mapping>, at: usize, tail: &Arc<Mapping>) {
        let mut seen = self.seen.write().unwrap_or_else(PoisonError::into_inner);
        seen.seat = Some((Arc::downgrade(value), at));
        seen.tails = vec![Arc::clone(tail); self.runs.len()];
        seen.counts = seen.tails.clone();
        seen.stopped = vec![false; self.runs.len()];
    }

    /// Notes that a reader has got a chunk of a lender, or why not.
    fn note(&self, index: u32, shard: usize, unread: Option<Unread>) {
        let place = &self.unread[index as usize];
        let before = place.load(Ordering::Relaxed);
        match unread.map(Unread::mark) {
            Some(mark) => {
                if mark > before {
                    place.store(mark, Ordering::Relaxed);
                }
                // Pairs with the acquire in `take_unread`. A note that is missed nevertheless comes again, as its reader does.
                if !self.any_unread[shard].load(Ordering::Relaxed) {
                    self.any_unread[shard].store(true, Ordering::Release);
                }
            }
            // What was not so is not forgiven for what is so behind it.
            None if before == Unread::HalfWritten.mark() => place.store(0, Ordering::Relaxed),
            None => {}
        }
    }

    /// The worst that readers of a shard's chunks have met in a lender's memory since this was asked last, of those chunks that none has
    /// got since.
    pub fn take_unread(&self, shard: u32) -> Option<Unread> {
        let any = &self.any_unread[shard as usize];
        if !any.load(Ordering::Relaxed) || !any.swap(false, Ordering::Acquire) {
            return None;
        }
        let of_shard = self.unread.iter().zip(&self.shard_of).filter(|(_, of)| **of == shard);
        let marks = of_shard.map(|(place, _)| match place.load(Ordering::Relaxed) {
            0 => 0,
            _ => place.swap(0, Ordering::Relaxed),
        });
        Unread::of(marks.max()?)
    }

    /// Whether the worker has mapped it.
    pub fn is_seated(&self) -> bool {
        self.seen.read().unwrap_or_else(PoisonError::into_inner).seat.is_some()
    }

    /// Counts what switching this may take; refused where that is too much.
    pub fn count_pieces(&self) -> Result<(), LendError> {
        let all: usize = self.runs.iter().map(Vec::len).sum();
        if self.counted.load(Ordering::Relaxed) > 0 || all < 2 {
            return Ok(());
        }
        // Each may split what stands around it.
        let more = 2 * all;
        let add = |before: usize| before.checked_add(more).filter(|&after| after <= MOST_PIECES);
        if PIECES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_err() {
            return Err(LendError::Pieces { more });
        }
        // Of two shards that count at once one may have counted for nothing.
        if self.counted.swap(more, Ordering::Relaxed) > 0 {
            PIECES.fetch_sub(more, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Progress of a shard: version + 1.
    pub(super) fn progress(&self, shard: u32) -> u64 {
        // Pairs with the release store in the `progress` of whoever writes there.
        let seen = self.seen.read().unwrap_or_else(PoisonError::into_inner);
        let count = seen.counts[shard as usize].peek::<Count>(ModelLayout::progress(shard));
        count.0.load(Ordering::Acquire)
    }

    /// The version + 1 of a chunk, or a later one's. A lender that takes back what it said of it keeps nobody waiting: it was counted.
    pub(super) fn chunk_progress(&self, chunk: u32) -> u64 {
        let index = chunk - self.layout.extent.first;
        let seen = self.seen.read().unwrap_or_else(PoisonError::into_inner);
        let shard = self.shard_of[index as usize];
        let header: &ChunkHeader = seen.tails[shard as usize].peek(self.layout.model().header(index));
        let count = seen.counts[shard as usize].peek::<Count>(ModelLayout::progress(shard));
        header.progress().max(count.0.load(Ordering::Acquire))
    }

    /// Reads of a chunk what `look` does, by its header; meanwhile its value is seen where that says. What is not got of a lender is noted.
    pub(super) fn read(
        &self,
        chunk: u32,
        look: impl FnOnce(&ChunkHeader) -> Result<Published, Torn>,
    ) -> Result<Published, Torn> {
        let index = chunk - self.layout.extent.first;
        let (at, shard) = (self.layout.model().header(index), self.shard_of[index as usize] as usize);
        let seen = self.seen.read().unwrap_or_else(PoisonError::into_inner);
        if seen.stopped[shard] {
            return Err(Torn);
        }
        let (tail, count) = (&seen.tails[shard], &seen.counts[shard]);
        if Arc::ptr_eq(tail, count) {
            return look(tail.peek(at));
        }
        // Before the look: this process counts what it has seen there, so behind it an honest lender shows no less.
        let count = count.peek::<Count>(ModelLayout::progress(shard as u32)).0.load(Ordering::Acquire);
        let is_so = |it: &Published| it.version <= MAX_CLOCK && it.version + 1 >= count;
        let looked = match look(tail.peek(at)) {
            Ok(published) if is_so(&published) => Ok(published),
            Ok(_) => Err(Unread::NotSo),
            Err(Torn) => Err(Unread::HalfWritten),
        };
        self.note(index, shard, looked.err());
        looked.map_err(|_| Torn)
    }

    /// Brings in the pages that going back to a region of this layout takes for a shard's chunks, piece by piece; `between` is told how
    /// many bytes each was. An error: there is no memory for them, and no store was tried.
    pub fn touch(
        &self,
        shard: u32,
        region: &Region,
        between: &mut dyn FnMut(usize),
    ) -> Result<(), LendError> {
        let runs = &self.runs[shard as usize];
        for run in runs {
            for start in run.clone().step_by(AT_ONCE) {
                let piece = start..run.end.min(start + AT_ONCE);
                let bytes = piece.len();
                region.mapping().touch_part(piece).map_err(|errno| LendError::Memory {
                    bytes: runs.iter().map(Range::len).sum(),
                    errno: without_memory(errno),
                })?;
                between(bytes);
            }
        }
        Ok(())
    }

    /// From now on a shard's chunks are seen in this region, with this tail, which is part of it, and its progress in that one. `last`
    /// runs when no reader is there any more, and before the next comes. On an error some may be seen there: nobody reads any of them
    /// before another switch has not failed, and whoever called has to see to that.
    pub fn switch(
        &self,
        shard: u32,
        to: BorrowedFd<'_>,
        (tail, count): (Arc<Mapping>, Arc<Mapping>),
        last: impl FnOnce(),
    ) -> Result<(), LendError> {
        let mut seen = self.seen.write().unwrap_or_else(PoisonError::into_inner);
        last();
        if let Some(stopped) = seen.stopped.get_mut(shard as usize) {
            *stopped = true;
        }
        // A worker that has gone sees nothing.
        if let Some((value, at)) = seen.seat.as_ref().and_then(|(value, at)| Some((value.upgrade()?, at))) {
            for run in &self.runs[shard as usize] {
                let part = Part { fd: to, offset: run.start as u64, bytes: run.len() };
                value.replace(at + run.start, &part).map_err(system("map a region over another"))?;
            }
        }
        if let Some(place) = seen.tails.get_mut(shard as usize) {
            *place = tail;
        }
        if let Some(place) = seen.counts.get_mut(shard as usize) {
            *place = count;
        }
        if let Some(stopped) = seen.stopped.get_mut(shard as usize) {
            *stopped = false;
        }
        // What was met in one lender's memory is not held against the next.
        self.take_unread(shard);
        Ok(())
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        PIECES.fetch_sub(self.counted.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// A region that another worker of this host lends: to be looked at. It may write there at any time, honestly or not.
#[derive(Debug)]
pub struct Lent {
    layout: ExtentLayout,
    fd: OwnedFd,
    mapping: Arc<Mapping>,
    tail: Arc<Mapping>,
}

/// What was read of a chunk there, with the sequence that its header had then.
pub type Look = (u64, Published, Numbers);

impl Lent {
    /// Maps a region that came. Refused is what is not as each region of this layout is, in its seals, kind and length.
    pub fn new(fd: OwnedFd, layout: ExtentLayout) -> Result<Self, LendError> {
        // First, as it is refused of what is no memory: another file system might think for hours about its answer.
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(system("ask for a region's seals"))?;
        if !seals.contains(Region::SEALS) {
            return Err(LendError::Unsealed { expected: Region::SEALS.bits(), got: seals.bits() });
        }
        let kind = rustix::fs::fstatfs(&fd).map_err(system("ask for a region's file system"))?.f_type as u64;
        let expected = libc::TMPFS_MAGIC as u64;
        if kind != expected {
            return Err(LendError::Pages { expected, got: kind });
        }
        let model = layout.model();
        let expected = model.total() as u64;
        let got = rustix::fs::fstat(&fd).map_err(system("ask for a region's size"))?.st_size as u64;
        if got != expected {
            return Err(LendError::NoRegion { expected, got });
        }
        let part = Part { fd: fd.as_fd(), offset: 0, bytes: model.total() };
        let mapping = Mapping::new(&[part], Access::Read).map_err(system("map a region that is lent"))?;
        let tail = mapping
            .piece(model.data..model.total())
            .ok_or_else(|| system("map a region's headers")(Errno::INVAL))?;
        Ok(Self { layout, fd, mapping, tail })
    }

    /// Its descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Progress and headers.
    pub fn tail(&self) -> &Arc<Mapping> {
        &self.tail
    }

    fn header(&self, chunk: u32) -> &ChunkHeader {
        self.tail.peek(self.layout.model().header(chunk - self.layout.extent.first))
    }

    /// What stands there of a chunk; `None`: nothing was published.
    pub fn look(&self, chunk: u32) -> Result<Option<Look>, Torn> {
        self.header(chunk).numbers()
    }

    /// Whether a chunk is as it was when its header had that sequence.
    pub fn is_still(&self, chunk: u32, sequence: u64) -> bool {
        self.header(chunk).sequence() == sequence
    }

    /// Copies a chunk's bytes as they stand, of whatever they are.
    pub fn copy_unverified(&self, chunk: u32, out: &mut [u8]) {
        penstock_kernels::ForeignMut::from(out).copy_from(self.mapping.foreign(self.layout.value(chunk)));
    }

    /// Copies a chunk's value and says what it is; what it has not published is none. On [`Torn`] there is nothing of use in `out`.
    pub fn copy(&self, chunk: u32, out: &mut [u8]) -> Result<Option<Look>, Torn> {
        let value: Foreign<'_> = self.mapping.foreign(self.layout.value(chunk));
        let Some(look) = self.look(chunk)? else { return Ok(None) };
        penstock_kernels::ForeignMut::from(out).copy_from(value);
        // Pairs with the release fence in `begin`: who has seen a byte that was written since sees the sequence that was stored before.
        crate::sync::fence(Ordering::Acquire);
        if self.is_still(chunk, look.0) { Ok(Some(look)) } else { Err(Torn) }
    }
}

/// A region for an extent's values, which take no memory until something is written there. Its headers are brought in.
pub fn untouched(name: &str, layout: ExtentLayout) -> Result<Region, LendError> {
    let model = layout.model();
    let region = Region::untouched(name, model.total(), Writers::Maker).map_err(system("make a region"))?;
    let lacking = |errno| LendError::Memory { bytes: model.tail(), errno: without_memory(errno) };
    region.mapping().touch_part(model.data..model.total()).map_err(lacking)?;
    Ok(region)
}
