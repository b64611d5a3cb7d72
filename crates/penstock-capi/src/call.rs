//! What a single call may be told beside its arguments.

use crate::boundary::{array_mut, sized, timeout};
use crate::status::Failure;
use std::time::Duration;

/// More arguments of a single call. Zero all of it, set `struct_size`, then set what should differ from the default.
#[repr(C)]
#[derive(Debug)]
pub struct penstock_call {
    /// sizeof(penstock_call).
    pub struct_size: usize,
    /// Seconds that this call may wait. 0: as the tensor or the table says.
    pub timeout: f64,
    /// NULL, or where versions are stored. A get stores that of each value, `count` of them. A pull stores one: how many updates
    /// of each live worker the value includes at least. A push stores one: the iteration that the contribution belongs to.
    ///
    /// If a producer keeps setting rows while several are read, the version of one may be less than its value's, never more. The
    /// rows of a worker that has left are at 2^63 - 1: nothing newer will come.
    pub versions: *mut u64,
    /// For a push: not 0 if another push of this tensor follows in this iteration. It is added to what is in the lane; the last
    /// one, with 0, sends the sum.
    pub more: u32,
    /// For a pull that copies: not 0 to read the value itself, with this worker's pushes. A filter of broadcasts may hold back something
    /// of it, and what is broadcast under "ssp" or "asp" comes later. It takes memory of the value's size, and all of the value comes
    /// from other hosts: for evaluations and checkpoints. What a filter of pushes holds back is in no value: penstock_flush().
    pub exact: u32,
}

/// The same, checked.
#[derive(Default)]
pub(crate) struct Call<'a> {
    pub(crate) timeout: Option<Duration>,
    pub(crate) versions: Option<&'a mut [u64]>,
    pub(crate) more: bool,
    pub(crate) exact: bool,
}

impl Call<'_> {
    /// What a call is told; nothing where `call` is NULL. It leaves `versions` versions.
    ///
    /// # Safety
    ///
    /// - As penstock.h says of every pointer.
    pub(crate) unsafe fn read(call: *const penstock_call, versions: usize) -> Result<Self, Failure> {
        if call.is_null() {
            return Ok(Self::default());
        }
        // SAFETY: the caller's promise; the structure says itself how long it is, and may be all zeros.
        let call = unsafe { sized::<penstock_call>(call, "call") }?;
        let room = if call.versions.is_null() { 0 } else { versions };
        // SAFETY: likewise.
        let room = unsafe { array_mut(call.versions, room, "call->versions") }?;
        let versions = (!call.versions.is_null()).then_some(room);
        let (more, exact) = (call.more != 0, call.exact != 0);
        Ok(Self { timeout: timeout(call.timeout)?, versions, more, exact })
    }

    /// Leaves a single version, where one is asked for.
    pub(crate) fn leave(&mut self, version: u64) {
        if let Some([place, ..]) = &mut self.versions {
            *place = version;
        }
    }
}
