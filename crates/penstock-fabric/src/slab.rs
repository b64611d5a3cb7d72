//! Slabs: one region for the memory of many small tensors, so that none of them costs a descriptor, a mapping, or whole pages.
//!
//! A slab lends each of its bytes once, until it takes them back. Who writes it, and how it is sealed, is as for any region:
//! models share slabs with models, and each worker's lanes have slabs of their own.

use crate::layout::LINE;
use crate::region::{Access, Mapping, Part, Region, Writers};
use rustix::fd::BorrowedFd;
use rustix::io;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

/// A region, or memory of this process alone, and which pieces of it were lent.
#[derive(Debug)]
pub struct Slab {
    region: Option<Region>,
    mapping: Arc<Mapping>,
    /// Where each piece starts and ends, and the piece.
    lent: BTreeMap<usize, (usize, Weak<Mapping>)>,
}

impl Slab {
    /// Makes, touches and seals a region.
    pub fn new(name: &str, bytes: usize, writers: Writers) -> io::Result<Self> {
        let region = Region::new(name, bytes, writers)?;
        let mapping = Arc::clone(region.mapping());
        Ok(Self { region: Some(region), mapping, lent: BTreeMap::new() })
    }

    /// Memory that no other process has.
    pub fn private(bytes: usize) -> io::Result<Self> {
        let mapping = Mapping::private(bytes)?;
        mapping.touch()?;
        Ok(Self { region: None, mapping, lent: BTreeMap::new() })
    }

    /// Whether no other process has it.
    pub fn is_private(&self) -> bool {
        self.region.is_none()
    }

    /// The region's descriptor, to be passed on.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.region.as_ref().map(Region::fd)
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.mapping.len()
    }

    /// The region, mapped once more: as a worker sees it. `None` for memory of this process alone.
    pub fn mapped(&self, access: Access) -> Option<io::Result<Arc<Mapping>>> {
        Some(Mapping::new(&[Part { fd: self.fd()?, offset: 0, bytes: self.bytes() }], access))
    }

    /// Lends a piece: `None` if it is not there, does not start on a cache line, or was lent before.
    pub(crate) fn lend(&mut self, range: Range<usize>) -> Option<Arc<Mapping>> {
        if range.is_empty() || !range.start.is_multiple_of(LINE) {
            return None;
        }
        let before = self.lent.range(..range.end).next_back();
        if before.is_some_and(|(_, (end, _))| *end > range.start) {
            return None;
        }
        let piece = self.mapping.piece(range.clone())?;
        self.lent.insert(range.start, (range.end, Arc::downgrade(&piece)));
        Some(piece)
    }

    /// Takes back the piece that starts at byte `at`, unless somebody has some of it still. Whether it may be lent now: what was
    /// written there stays.
    pub fn take_back(&mut self, at: usize) -> bool {
        // A piece of a piece keeps it.
        if self.lent.get(&at).is_some_and(|(_, piece)| piece.strong_count() > 0) {
            return false;
        }
        self.lent.remove(&at);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_is_lent_twice() {
        let mut slab = Slab::private(4096).unwrap();
        assert!(slab.lend(64..192).is_some());
        for overlapping in [64..128, 128..256, 0..128, 0..4096, 64..192] {
            assert!(slab.lend(overlapping.clone()).is_none(), "{overlapping:?}");
        }
        assert!(slab.lend(192..256).is_some() && slab.lend(0..64).is_some());
    }

    #[test]
    fn what_is_taken_back_is_lent_again_and_nothing_is_taken_from_who_has_it() {
        let mut slab = Slab::private(4096).unwrap();
        let part = slab.lend(64..192).unwrap().piece(0..64).unwrap();
        assert!(!slab.take_back(64) && slab.lend(64..128).is_none(), "a part of it is in use");
        drop(part);
        assert!(slab.lend(64..128).is_none(), "it was not taken back");
        assert!(slab.take_back(64) && slab.lend(64..256).is_some());
        assert!(slab.take_back(512), "that was not lent");
    }

    #[test]
    fn a_piece_that_is_not_there_or_not_aligned_is_not_lent() {
        let mut slab = Slab::private(4096).unwrap();
        for range in [4096..4160, 4032..4160, 8..72, 64..64] {
            assert!(slab.lend(range.clone()).is_none(), "{range:?}");
        }
    }

    #[test]
    fn a_piece_outlives_its_slab_and_is_unmapped_with_the_last() {
        let mut slab = Slab::new("test", 4096, Writers::Maker).unwrap();
        let piece = slab.lend(64..128).unwrap();
        drop(slab);
        assert_eq!(piece.at::<crate::layout::Count>(0).0.load(crate::sync::Ordering::Relaxed), 0);
        assert_eq!(piece.len(), 64);
    }
}
