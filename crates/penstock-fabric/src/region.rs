//! Regions: memory made once, sealed, touched once, and mapped into several processes.
//!
//! A region is a memfd: it has no name that could be left behind. It is sealed against shrinking, so that no peer can pull the
//! memory from under a mapping (no SIGBUS). A region that only its maker may write is sealed against any later writable mapping
//! (`F_SEAL_FUTURE_WRITE`): isolation by the kernel. Mappings of 2 MiB and more start on a multiple of it and ask for huge
//! pages; first touch happens in [`Region::new`], not under a training step, since it costs ten times the copy itself. A thread
//! that others wait for makes it [`untouched`](Region::untouched), and touches it part by part ([`Untouched`]).
//!
//! Under Miri, which maps no files, there is private memory only: an allocation.

use crate::layout::{PAGE, Shared, pages};
use penstock_kernels::Foreign;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::{self, Errno};
use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use std::ops::Range;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// Mappings start on multiples of this, so that huge pages fit.
const ALIGNMENT: usize = 2 * 1024 * 1024;
/// Bytes that are touched, or unmapped, in one call: meanwhile no other thread of the process is given a mapping, and who waits for
/// one keeps all others from touching anything.
const AT_ONCE: usize = 64 << 20;

/// Who may write a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writers {
    /// Only its maker, through the mapping that it made it with.
    Maker,
    /// Any process that has the descriptor.
    Holders,
}

/// A region and its maker's mapping.
#[derive(Debug)]
pub struct Region {
    fd: OwnedFd,
    mapping: Arc<Mapping>,
}

impl Region {
    /// Those of a region that only its maker writes.
    pub const SEALS: SealFlags =
        SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

    /// Makes a region of `bytes` bytes of zeros (rounded up to pages), maps it writable, touches it, seals it.
    pub fn new(name: &str, bytes: usize, writers: Writers) -> io::Result<Self> {
        let region = Self::untouched(name, bytes, writers)?;
        region.mapping.touch()?;
        Ok(region)
    }

    /// The same, but for its first touch.
    pub fn untouched(name: &str, bytes: usize, writers: Writers) -> io::Result<Self> {
        let region = Self::open_to_writers(name, bytes)?;
        match writers {
            Writers::Maker => region.seal()?,
            Writers::Holders => rustix::fs::fcntl_add_seals(&region.fd, SealFlags::SEAL)?,
        }
        Ok(region)
    }

    /// The same, likewise untouched, but any process that has the descriptor may map it writable until it is
    /// [sealed](Self::seal): for a region whose one writer is another process.
    pub fn open_to_writers(name: &str, bytes: usize) -> io::Result<Self> {
        let bytes = pages(bytes.max(1));
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, bytes as u64)?;
        let mapping = Mapping::new(&[Part { fd: fd.as_fd(), offset: 0, bytes }], Access::Write)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
        Ok(Self { fd, mapping })
    }

    /// From now on no process gets another writable mapping; existing ones stay.
    pub fn seal(&self) -> io::Result<()> {
        rustix::fs::fcntl_add_seals(&self.fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL)
    }

    /// Whether nobody can [seal](Self::seal) it any more: it is, or another process that has the descriptor has seen to that.
    pub fn is_closed_to_seals(&self) -> io::Result<bool> {
        Ok(rustix::fs::fcntl_get_seals(&self.fd)?.contains(SealFlags::SEAL))
    }

    /// The descriptor, to pass on.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The maker's mapping.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }
}

/// What a mapping may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Look.
    Read,
    /// Look and write.
    Write,
}

/// A piece of a region, to be mapped next to others.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// The region.
    pub fd: BorrowedFd<'a>,
    /// Where the piece starts: whole pages.
    pub offset: u64,
    /// How long it is: whole pages.
    pub bytes: usize,
}

/// One contiguous piece of address space with parts of regions (or private memory) in it. Unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    access: Access,
    /// Of a piece: the mapping that it is a piece of, which unmaps it.
    whole: Option<Arc<Self>>,
}

// SAFETY: a mapping is address space, not data: what may be done with it from which thread is decided by the functions of this
// crate that lend parts of it.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `parts` one behind the other. A part that the descriptor's file does not have is refused.
    pub fn new(parts: &[Part<'_>], access: Access) -> io::Result<Arc<Self>> {
        let bytes = parts.iter().map(|part| part.bytes).sum();
        let mapping = Self::reserve(bytes, access)?;
        let mut at = 0;
        for part in parts {
            let size = rustix::fs::fstat(part.fd)?.st_size as u64;
            if part.offset.checked_add(part.bytes as u64).is_none_or(|end| end > size) {
                return Err(Errno::INVAL);
            }
            mapping.fill(at, part)?;
            at += part.bytes;
        }
        mapping.ask_for_huge_pages();
        Ok(Arc::new(mapping))
    }

    /// Private memory of `bytes` zeros that looks like any other mapping.
    #[cfg(miri)]
    pub fn private(bytes: usize) -> io::Result<Arc<Self>> {
        let bytes = pages(bytes.max(1));
        // SAFETY: the layout is not empty.
        let base = unsafe { std::alloc::alloc_zeroed(Self::allocation(bytes)) };
        let base = NonNull::new(base).ok_or(Errno::NOMEM)?;
        Ok(Arc::new(Self { base, bytes, access: Access::Write, whole: None }))
    }

    #[cfg(miri)]
    fn allocation(bytes: usize) -> std::alloc::Layout {
        std::alloc::Layout::from_size_align(bytes, PAGE).expect("no allocation is that large")
    }

    /// Private memory of `bytes` zeros that looks like any other mapping.
    #[cfg(not(miri))]
    pub fn private(bytes: usize) -> io::Result<Arc<Self>> {
        let mapping = Self::reserve(pages(bytes.max(1)), Access::Write)?;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: the fixed address lies in address space that `reserve` just took for this mapping and that is not in use.
        unsafe {
            mm::mmap_anonymous(mapping.base.as_ptr().cast(), mapping.bytes, mapping.protection(), flags)
        }?;
        mapping.ask_for_huge_pages();
        Ok(Arc::new(mapping))
    }

    fn protection(&self) -> ProtFlags {
        match self.access {
            Access::Read => ProtFlags::READ,
            Access::Write => ProtFlags::READ | ProtFlags::WRITE,
        }
    }

    /// Takes address space without memory in it, aligned for huge pages where one would fit. What is taken in excess to
    /// align it is given back: a process has only so many mappings.
    fn reserve(bytes: usize, access: Access) -> io::Result<Self> {
        let bytes = bytes.max(PAGE);
        let excess = if bytes < ALIGNMENT { 0 } else { ALIGNMENT };
        let whole = bytes.checked_add(excess).ok_or(Errno::NOMEM)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new anonymous mapping where the kernel likes touches nothing that exists.
        let start = unsafe { mm::mmap_anonymous(null_mut(), whole, ProtFlags::empty(), flags) }?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(Errno::NOMEM)?;
        let before = if excess == 0 { 0 } else { start.as_ptr().align_offset(ALIGNMENT) };
        let after = excess - before;
        // SAFETY: `before <= excess`, so the result lies inside the `bytes + excess` that were just reserved.
        let base = unsafe { start.add(before) };
        // SAFETY: `before + bytes <= whole`, likewise.
        let end = unsafe { base.add(bytes) };
        for (piece, length) in [(start, before), (end, after)] {
            if length > 0 {
                // SAFETY: the piece was reserved above, lies outside `base..base + bytes`, and no other code knows of it.
                unsafe { mm::munmap(piece.as_ptr().cast(), length) }?;
            }
        }
        Ok(Self { base, bytes, access, whole: None })
    }

    fn fill(&self, at: usize, part: &Part<'_>) -> io::Result<()> {
        if part.bytes == 0 {
            return Ok(());
        }
        assert!(at + part.bytes <= self.bytes, "parts add up to the mapping");
        // SAFETY: `at` is inside the mapping (assertion).
        let address = unsafe { self.base.add(at) };
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the fixed range lies in address space that `reserve` took for this mapping (assertion above). It was not lent to
        // anything yet, since the mapping is still under construction, or only as what may change at any time (`replace`).
        unsafe {
            mm::mmap(address.as_ptr().cast(), part.bytes, self.protection(), flags, part.fd, part.offset)
        }?;
        Ok(())
    }

    /// Maps a piece of a region, in whole pages, over what is seen there now. Whoever looks meanwhile sees one or the other.
    ///
    /// # Panics
    /// If it may be written, or is a piece of another, or has no such pages.
    pub(crate) fn replace(&self, at: usize, part: &Part<'_>) -> io::Result<()> {
        assert!(
            self.access == Access::Read && self.whole.is_none(),
            "a whole mapping that is only looked at"
        );
        assert!(at.is_multiple_of(PAGE) && part.bytes.is_multiple_of(PAGE), "whole pages");
        let size = rustix::fs::fstat(part.fd)?.st_size as u64;
        if part.offset.checked_add(part.bytes as u64).is_none_or(|end| end > size) {
            return Err(Errno::INVAL);
        }
        // What was lent of a mapping that is only looked at are atomics and `Foreign` memory, of which each look may find anything, and
        // which stays mapped: the kernel puts one page in the place of another in one step.
        self.fill(at, part)
    }

    fn ask_for_huge_pages(&self) {
        if self.bytes >= ALIGNMENT {
            // SAFETY: the advice changes no contents, and the range is ours. A kernel that refuses it gives small pages.
            let _ = unsafe { mm::madvise(self.base.as_ptr().cast(), self.bytes, Advice::LinuxHugepage) };
        }
    }

    /// Brings all pages into memory now, so that no step pays for it; says so where there is no memory left.
    pub fn touch(&self) -> io::Result<()> {
        let mut starts = (0..self.bytes).step_by(AT_ONCE);
        starts.try_for_each(|at| self.touch_part(at..self.bytes.min(at + AT_ONCE)))
    }

    /// The same for the pages of `range`, which starts with one.
    pub(crate) fn touch_part(&self, range: Range<usize>) -> io::Result<()> {
        if cfg!(miri) || self.whole.is_some() {
            return Ok(()); // a piece was touched with the rest
        }
        let (start, bytes) = (self.pointer(range.clone()), range.len());
        let advice = match self.access {
            Access::Read => Advice::LinuxPopulateRead,
            Access::Write => Advice::LinuxPopulateWrite,
        };
        // SAFETY: populating changes no contents, and the range is ours (`pointer`).
        match unsafe { mm::madvise(start.as_ptr().cast(), bytes, advice) } {
            Err(Errno::INVAL) => Ok(()), // a kernel before 5.14: pages come at first use
            other => other,
        }
    }

    /// A piece of it, that is seen as a mapping of its own; `None` if it has no such bytes.
    pub fn piece(self: &Arc<Self>, range: Range<usize>) -> Option<Arc<Self>> {
        if range.start > range.end || range.end > self.bytes {
            return None;
        }
        let (base, bytes) = (self.pointer(range.clone()), range.len());
        Some(Arc::new(Self { base, bytes, access: self.access, whole: Some(Arc::clone(self)) }))
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Whether it may be written.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Where it starts. What may be done there is for the caller to know.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The address of `range`, which must lie inside.
    #[inline(always)]
    pub(crate) fn pointer(&self, range: Range<usize>) -> NonNull<u8> {
        /// Given by value: what a message refers to would be written to the stack where nothing is wrong, too.
        #[cold]
        #[inline(never)]
        fn outside(start: usize, end: usize, bytes: usize) -> ! {
            panic!("{start}..{end} of {bytes} bytes")
        }
        if range.start > range.end || range.end > self.bytes {
            outside(range.start, range.end, self.bytes);
        }
        // SAFETY: inside the mapping (above).
        unsafe { self.base.add(range.start) }
    }

    /// The shared structure at `offset` of a mapping that may be written.
    ///
    /// # Panics
    /// If it may only be looked at (a store would end the process), or has no such place.
    pub fn at<T: Shared>(&self, offset: usize) -> &T {
        assert!(self.access == Access::Write, "a mapping that may only be looked at");
        self.peek(offset)
    }

    /// The same where nothing is stored to it: outside of this crate only numbers are handed out.
    #[inline(always)]
    pub(crate) fn peek<T: Shared>(&self, offset: usize) -> &T {
        let pointer = self.pointer(offset..offset + size_of::<T>()).cast::<T>();
        assert!(pointer.is_aligned(), "an offset that is not aligned");
        // SAFETY: inside the mapping and aligned (checked above); `T: Shared` may be referred to whichever process writes it, and
        // every other look at memory that can be reached through this is atomic or racing-safe: memory that is lent as slices (a
        // home's chunks, a lane that is received into) has mappings that are never handed out.
        unsafe { pointer.as_ref() }
    }

    /// The bytes `range`, which others may be writing.
    pub(crate) fn foreign(&self, range: Range<usize>) -> Foreign<'_> {
        let address = self.pointer(range.clone());
        // SAFETY: inside the mapping (`pointer`), which lives as long as the result. Where bytes of a mapping are lent as `&mut`
        // (as above), its one owner gives out either those or this.
        unsafe { Foreign::new(address.as_ptr(), range.len()) }
    }
}

/// Memory whose pages are brought in part by part, by a thread that has other things to do between. Until it
/// [is done](Self::is_done), there may turn out to be no memory.
#[derive(Debug, Default)]
pub struct Untouched {
    mappings: Vec<Arc<Mapping>>,
    /// Bytes of the last of them that were touched.
    touched: usize,
}

impl Untouched {
    /// All of these.
    pub fn of<'a>(mappings: impl IntoIterator<Item = &'a Arc<Mapping>>) -> Self {
        Self { mappings: mappings.into_iter().map(Arc::clone).collect(), touched: 0 }
    }

    /// Whether there is nothing left to touch.
    pub fn is_done(&self) -> bool {
        self.mappings.is_empty()
    }

    /// Touches all that is left.
    pub fn touch_all(&mut self) -> io::Result<()> {
        while !self.is_done() {
            self.touch(AT_ONCE)?;
        }
        Ok(())
    }

    /// Touches up to `most` bytes, rounded up to whole huge pages; returns how many.
    pub fn touch(&mut self, most: usize) -> io::Result<usize> {
        let most = most.next_multiple_of(ALIGNMENT);
        let mut touched = 0;
        while touched < most
            && let Some(mapping) = self.mappings.last()
        {
            let end = mapping.len().min(self.touched + (most - touched));
            mapping.touch_part(self.touched..end)?;
            touched += end - self.touched;
            self.touched = end;
            if end == mapping.len() {
                self.mappings.pop();
                self.touched = 0;
            }
        }
        Ok(touched)
    }
}

#[cfg(miri)]
impl Drop for Mapping {
    fn drop(&mut self) {
        if self.whole.is_some() {
            return;
        }
        // SAFETY: allocated in `private` with this layout, and what was lent from it borrowed the mapping or held its `Arc`.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), Self::allocation(self.bytes)) };
    }
}

#[cfg(not(miri))]
impl Drop for Mapping {
    fn drop(&mut self) {
        if self.whole.is_some() {
            return;
        }
        for start in (0..self.bytes).step_by(AT_ONCE) {
            let bytes = AT_ONCE.min(self.bytes - start);
            let part = self.base.as_ptr().wrapping_byte_add(start).cast();
            // SAFETY: the range was reserved for this mapping, and what was lent from it borrowed the mapping or held its `Arc`.
            let unmapped = unsafe { mm::munmap(part, bytes) };
            debug_assert!(unmapped.is_ok(), "{unmapped:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Count;
    use crate::sync::Ordering;

    #[test]
    #[cfg_attr(miri, ignore = "maps files")]
    fn what_the_maker_writes_a_reader_sees_and_cannot_change() {
        let region = Region::new("test", 3 * PAGE, Writers::Maker).unwrap();
        let part = Part { fd: region.fd(), offset: 0, bytes: 3 * PAGE };
        let reader = Mapping::new(&[part], Access::Read).unwrap();
        region.mapping().at::<Count>(PAGE).0.store(7, Ordering::Relaxed);
        assert_eq!(reader.peek::<Count>(PAGE).0.load(Ordering::Relaxed), 7);
        assert_eq!(
            Mapping::new(&[part], Access::Write).unwrap_err(),
            Errno::PERM,
            "the kernel refuses a writable mapping"
        );
        assert_eq!(rustix::io::write(region.fd(), b"x").unwrap_err(), Errno::PERM);
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps files")]
    #[should_panic(expected = "may only be looked at")]
    fn what_may_only_be_looked_at_gives_out_nothing_that_could_be_stored_to() {
        let region = Region::new("test", PAGE, Writers::Maker).unwrap();
        let part = Part { fd: region.fd(), offset: 0, bytes: PAGE };
        Mapping::new(&[part], Access::Read).unwrap().at::<Count>(0);
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps files")]
    fn nobody_can_pull_the_memory_from_under_a_mapping() {
        let region = Region::new("test", PAGE, Writers::Holders).unwrap();
        assert_eq!(rustix::fs::ftruncate(region.fd(), 0).unwrap_err(), Errno::PERM);
        assert_eq!(rustix::fs::ftruncate(region.fd(), 2 * PAGE as u64).unwrap_err(), Errno::PERM);
    }

    // It was unmapped in one call: for as long as that took, no other thread of the server was given a mapping.
    #[test]
    #[cfg_attr(miri, ignore = "maps files")]
    fn what_is_large_is_unmapped_in_pieces() {
        const WHOLE: usize = 4 * AT_ONCE;
        let mapped = || -> usize {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let lines = maps.lines().filter(|line| line.contains("memfd:unmapped-in-pieces"));
            let ends = lines.filter_map(|line| line.split_once(' ')?.0.split_once('-'));
            let address = |hex: &str| usize::from_str_radix(hex, 16).unwrap();
            ends.map(|(start, end)| address(end) - address(start)).sum()
        };
        // Whoever looks may not be running during the few milliseconds, or with huge pages the few microseconds, that it takes.
        let seen_half_way = (0..100).any(|_| {
            let region = Region::new("unmapped-in-pieces", WHOLE, Writers::Holders).unwrap();
            assert_eq!(mapped(), WHOLE);
            let looking = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                let looks = scope.spawn(|| {
                    looking.wait();
                    let sizes = std::iter::repeat_with(mapped).take_while(|&bytes| bytes > 0);
                    sizes.filter(|&bytes| bytes < WHOLE).count()
                });
                looking.wait();
                drop(region);
                looks.join().unwrap() > 0
            })
        });
        assert!(seen_half_way, "nobody ever saw a part of it");
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps files")]
    fn parts_of_several_regions_stand_one_behind_the_other() {
        let (a, b) = (
            Region::new("a", PAGE, Writers::Holders).unwrap(),
            Region::new("b", 2 * PAGE, Writers::Holders).unwrap(),
        );
        let parts = [
            Part { fd: a.fd(), offset: 0, bytes: PAGE },
            Part { fd: b.fd(), offset: PAGE as u64, bytes: PAGE },
        ];
        let joined = Mapping::new(&parts, Access::Write).unwrap();
        joined.at::<Count>(0).0.store(1, Ordering::Relaxed);
        joined.at::<Count>(PAGE).0.store(2, Ordering::Relaxed);
        assert_eq!(a.mapping().at::<Count>(0).0.load(Ordering::Relaxed), 1);
        assert_eq!(b.mapping().at::<Count>(PAGE).0.load(Ordering::Relaxed), 2);
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps files")]
    fn a_part_that_the_region_does_not_have_is_refused() {
        let region = Region::new("test", PAGE, Writers::Holders).unwrap();
        for (offset, bytes) in [(0, 2 * PAGE), (PAGE as u64, PAGE), (u64::MAX - 10, PAGE)] {
            assert_eq!(
                Mapping::new(&[Part { fd: region.fd(), offset, bytes }], Access::Read).unwrap_err(),
                Errno::INVAL
            );
        }
    }
}
