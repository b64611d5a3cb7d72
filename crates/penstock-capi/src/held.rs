//! What filters hold back, and how they follow the network.

use crate::boundary::{array_mut, guard_job, here, result, timeout};
use crate::call::{Call, penstock_call};
use crate::job::penstock_job;
use crate::request::later;
use crate::status::penstock_status;
use crate::tensor::penstock_tensor;
use penstock_proto::pressure::Change;
use std::time::Instant;

/// Sends what the tensor's filters hold back, all of it.
///
/// With a filter of pushes that is a push like any other, which brings nothing new: it is the iteration's only one, or the last after
/// some with `more`; under "bsp" every worker makes the same call, and the servers apply their rule once more. What is held back of
/// pushes is not in the value: flush before an evaluation or a checkpoint that should have it, and before penstock_finish(), after
/// which it is gone.
///
/// With a filter of broadcasts, or for a value that is broadcast under "ssp" or "asp", every worker of the job makes the call, as with
/// penstock_load(): when it returns, each of them reads the value itself, with all that has been folded. Under "bsp" all make it in
/// the same iteration, in which all of them have pushed, or none.
///
/// A call that failed may be made again. In one iteration each flush after the first pushes nothing more.
///
/// @param job   The tensor's job.
/// @param call  NULL, or see penstock_call: `timeout`, `versions` (one, the iteration that the push belongs to; UINT64_MAX where nothing
///              was pushed, as the tensor has no filter of pushes).
///
/// Errors: PENSTOCK_ALREADY_PUSHED (a push without `more` was made in this iteration, which was no flush), PENSTOCK_LANE_TIMEOUT,
/// PENSTOCK_BARRIER_TIMEOUT (the text names the ranks that did not come; what was pushed, was), PENSTOCK_FIRST_FAILED,
/// PENSTOCK_DEADLINE_EXCEEDED (requests or another thread's call were not done in time), and those of penstock_clock().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_flush(
    job: *const penstock_job,
    tensor: *const penstock_tensor,
    call: *const penstock_call,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let job = unsafe { here(job, "job", caller) }?;
        // SAFETY: likewise.
        let tensor = unsafe { here(tensor, "tensor", caller) }?;
        job.check_owns(tensor)?;
        // SAFETY: likewise.
        let mut call = unsafe { Call::read(call, 1) }?;
        let settings = tensor.settings();
        let (_turn, wait) = tensor.take_turn(call.timeout)?;
        let until = wait.map(|wait| later(Instant::now(), wait));
        let stamp = tensor.core().flush(settings, wait)?;
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        tensor.core().release_together(job.core(), left)?;
        call.leave(stamp.unwrap_or(u64::MAX));
        Ok(())
    })
}

/// What the tensor's filter of pushes holds back of this worker's. It is counted anew each time, in as long as a push takes.
///
/// @param norm      Set to its Euclidean norm.
/// @param elements  Set to how many elements there are of which something is held back. Both 0 without such a filter.
///
/// Waits until requests that were started before are done. Errors: PENSTOCK_DEADLINE_EXCEEDED (they, or another thread's call, were not
/// done in time), PENSTOCK_LANE_TIMEOUT, and those of penstock_clock().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_held_back(
    tensor: *const penstock_tensor,
    norm: *mut f64,
    elements: *mut u64,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let tensor = unsafe { here(tensor, "tensor", caller) }?;
        // SAFETY: likewise.
        let norm = unsafe { result(norm, "norm") }?;
        // SAFETY: likewise.
        let elements = unsafe { result(elements, "elements") }?;
        let (_turn, _) = tensor.take_turn(None)?;
        let held = tensor.core().held_back()?;
        (*norm, *elements) = (held.norm(), held.elements);
        Ok(())
    })
}

/// When a filter that follows the network changed its bound, and why.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct penstock_pressed {
    /// From about where on: this worker's clock; of values, a version.
    pub at: u64,
    /// Which part of the way from `low` to `up`: 0, a quarter, half, three quarters or 1.
    pub share: f64,
    /// For which part of the time before the busiest connection was at work, by its bytes and its rate.
    pub busy: f64,
    /// Bytes a second that the slowest connection made; 0 if that was not known.
    pub slowest: f64,
    /// Whose filter: UINT32_MAX: of this worker's pushes; else of the values that this server sends,
    pub server: u32,
    /// with this shard of it.
    pub shard: u32,
}

/// How the tensor's filters have followed the network, if they do, as those with `up`: their last changes, at most 16 of each; first
/// of this worker's pushes, then of the values, by server and shard, the oldest first. The servers are asked for theirs.
///
/// @param changes  Where they are stored, as many as there is room for.
/// @param room     For how many. 0: `changes` may be NULL.
/// @param count    Set to how many there are. 0: `low` so far, or no filter follows the network.
/// @param timeout  Seconds to wait; 0: the tensor's.
///
/// Errors: PENSTOCK_DEADLINE_EXCEEDED (a server did not answer, or requests or another thread's call were not done in time),
/// PENSTOCK_LANE_TIMEOUT, and those of penstock_clock().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_pressure(
    tensor: *const penstock_tensor,
    changes: *mut penstock_pressed,
    room: usize,
    count: *mut usize,
    timeout: f64,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let tensor = unsafe { here(tensor, "tensor", caller) }?;
        // SAFETY: likewise.
        let out = unsafe { array_mut(changes, room, "changes") }?;
        // SAFETY: likewise.
        let count = unsafe { result(count, "count") }?;
        let (_turn, wait) = tensor.take_turn(self::timeout(timeout)?)?;
        let mut found = Vec::new();
        let mut add = |server, shard, changes: Vec<Change>| {
            found.extend(changes.iter().map(|change| penstock_pressed::of(change, server, shard)));
        };
        add(u32::MAX, 0, tensor.core().pushes_followed(wait)?);
        for (server, shard, changes) in tensor.core().values_followed(wait)? {
            add(server as u32, shard, changes);
        }
        let stored = found.len().min(out.len());
        out[..stored].copy_from_slice(&found[..stored]);
        *count = found.len();
        Ok(())
    })
}

impl penstock_pressed {
    fn of(change: &Change, server: u32, shard: u32) -> Self {
        let Change { at, pressure, busy, slowest } = *change;
        Self { at, share: pressure.share(), busy, slowest: slowest.unwrap_or(0.0), server, shard }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_kernels::filter::sums::Pressure;

    #[test]
    fn a_change_says_whose_it_is_and_0_for_what_is_not_known() {
        let change = Change { at: 7, pressure: Pressure::of(3), busy: 0.5, slowest: None };
        let told = penstock_pressed::of(&change, u32::MAX, 0);
        assert_eq!((told.at, told.share, told.busy, told.slowest), (7, 0.75, 0.5, 0.0));
        assert_eq!((told.server, told.shard), (u32::MAX, 0));
        let known = Change { slowest: Some(1e6), ..change };
        let told = penstock_pressed::of(&known, 1, 2);
        assert_eq!((told.slowest, told.server, told.shard), (1e6, 1, 2));
    }
}
