//! The optimizer's state, as workers look at it.

use super::extent::ExtentLayout;
use crate::region::{Access, Mapping, Part, Region, Writers};
use penstock_kernels::{Foreign, ForeignMut};
use rustix::fd::BorrowedFd;
use rustix::io;
use std::sync::Arc;

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

    /// Bytes of a chunk's state, and of what stands with it.
    pub fn bytes(&self, chunk: u32) -> usize {
        self.layout.beside(chunk).len()
    }

    /// Writes a chunk's state, which no reader looks at before it has come whole.
    ///
    /// # Panics
    /// If it has another size.
    pub fn write(&self, chunk: u32, state: &[u8]) {
        let range = self.layout.beside(chunk);
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
    pub(super) fn in_slab(layout: ExtentLayout, slab: &Arc<Mapping>, at: usize) -> Option<Self> {
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

    /// Copies a chunk's whole value, of which a filter holds something back, likewise.
    pub fn copy_whole(&self, chunk: u32, out: &mut [u8]) {
        let range = self.layout.whole(chunk).expect("a filter holds something back");
        self.mapping.foreign(range).copy_to(out);
    }
}
