//! Pushes and pulls that are started: of all of a tensor, some rows or elements, or factors.

use super::calls::{handle, owned, penstock_request};
use super::lent::{Lent, LentToRead};
use super::registry::Work;
use crate::boundary::{array, array_mut, guard_job, result};
use crate::call::{Call, penstock_call};
use crate::sparse::row;
use crate::status::{Failure, penstock_status};
use crate::tensor::{Given, Units, Wanted, penstock_tensor, pull_slack};
use std::ffi::c_void;
use std::sync::Arc;

/// What is contributed, in memory of the program's.
pub(super) enum LentGiven {
    /// All of it; `None`: what is in the lane.
    Whole(Option<LentToRead>),
    Some(Places, LentToRead),
    Factors([LentToRead; 2], usize),
}

/// Rows or elements.
pub(super) struct Places {
    indices: Vec<u64>,
    length: usize,
}

impl Places {
    fn units(&self) -> Units<'_> {
        Units { indices: &self.indices, length: self.length }
    }
}

impl LentGiven {
    /// The memory.
    ///
    /// # Safety
    ///
    /// - The request is not done, so that the memory is there and nothing writes to it.
    unsafe fn given(&self) -> Given<'_> {
        // SAFETY: the caller's promise.
        let memory = |lent: &LentToRead| unsafe { lent.memory() };
        match self {
            Self::Whole(data) => Given::Whole(data.as_ref().map(memory)),
            Self::Some(places, values) => Given::Some(places.units(), memory(values)),
            Self::Factors(both, rank) => Given::Factors(both.each_ref().map(memory), *rank),
        }
    }
}

/// What is carried out once, however long it takes.
fn once(work: impl FnOnce() -> Result<(), Failure> + Send + 'static) -> Work {
    let mut work = Some(work);
    Box::new(move |_| work.take().map(|work| work()))
}

/// Where the one version of a push or a pull goes.
struct Left(Option<Lent<u64>>);

impl Left {
    /// # Safety
    ///
    /// - The request is not done.
    unsafe fn leave(&self, version: u64) {
        // SAFETY: the caller's promise.
        if let Some([place, ..]) = self.0.as_ref().map(|versions| unsafe { versions.memory() }) {
            *place = version;
        }
    }
}

/// Starts a push, with the settings of now.
pub(super) fn start_push(
    tensor: Arc<penstock_tensor>,
    lent: LentGiven,
    call: Call<'_>,
) -> Result<*mut penstock_request, Failure> {
    let settings = tensor.settings();
    let (more, wait, left) = (call.more, call.timeout, Left(call.versions.map(Lent::to_write)));
    let mine = Arc::clone(&tensor);
    let work = move || {
        // SAFETY: the request is being carried out.
        let given = unsafe { lent.given() };
        let clock = mine.push_started(given, settings, more, wait)?;
        // SAFETY: likewise.
        unsafe { left.leave(clock) };
        Ok(())
    };
    Ok(handle(tensor.requests().in_turn(once(work), true)?))
}

/// Starts a pull as of now: of some places, or of all.
pub(super) fn start_pull(
    tensor: Arc<penstock_tensor>,
    places: Option<Places>,
    out: &mut [u8],
    slack: i64,
    call: Call<'_>,
) -> Result<*mut penstock_request, Failure> {
    let clock = tensor.iteration();
    let (exact, wait, left) = (call.exact, call.timeout, Left(call.versions.map(Lent::to_write)));
    let (out, mine) = (Lent::to_write(out), Arc::clone(&tensor));
    let work = move || {
        // SAFETY: the request is being carried out.
        let out = unsafe { out.memory() };
        let wanted = places.as_ref().map_or(Wanted::Whole, |places| Wanted::Some(places.units()));
        let version = mine.pull_started(clock, (wanted, exact), out, pull_slack(slack), wait)?;
        // SAFETY: likewise.
        unsafe { left.leave(version) };
        Ok(())
    };
    Ok(handle(tensor.requests().in_turn(once(work), false)?))
}

/// Starts a push of some rows, and returns at once; otherwise as penstock_start_push().
///
/// @param rows, count, values, bytes  As for penstock_push_rows(). `values` must live, and not be changed, until the request is done;
///                                    `rows` may be changed at once.
/// @param call, request               As for penstock_start_push().
///
/// Errors: as penstock_start_get(). Errors of the push itself are reported when it ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_start_push_rows(
    tensor: *mut penstock_tensor,
    rows: *const u64,
    count: usize,
    values: *const c_void,
    bytes: usize,
    call: *const penstock_call,
    request: *mut *mut penstock_request,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let tensor = unsafe { owned(tensor, caller) }?;
        // SAFETY: likewise.
        let rows = unsafe { array(rows, count, "rows") }?;
        let places = Places { indices: rows.to_vec(), length: row(tensor.core().spec())? };
        // SAFETY: likewise.
        unsafe { push_some(tensor, places, values, bytes, call, request) }
    })
}

/// The same of single elements.
///
/// @param indices, count, values, bytes  As for penstock_push_elements(), and penstock_start_push_rows().
/// @param call, request                  As for penstock_start_push().
///
/// Errors: as penstock_start_push_rows().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_start_push_elements(
    tensor: *mut penstock_tensor,
    indices: *const u64,
    count: usize,
    values: *const c_void,
    bytes: usize,
    call: *const penstock_call,
    request: *mut *mut penstock_request,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let tensor = unsafe { owned(tensor, caller) }?;
        // SAFETY: likewise.
        let indices = unsafe { array(indices, count, "indices") }?;
        let places = Places { indices: indices.to_vec(), length: 1 };
        // SAFETY: likewise.
        unsafe { push_some(tensor, places, values, bytes, call, request) }
    })
}

/// # Safety
///
/// - As penstock.h says of every pointer.
unsafe fn push_some(
    tensor: Arc<penstock_tensor>,
    places: Places,
    values: *const c_void,
    bytes: usize,
    call: *const penstock_call,
    request: *mut *mut penstock_request,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let values = unsafe { array(values.cast::<u8>(), bytes, "values") }?;
    // SAFETY: likewise.
    let call = unsafe { Call::read(call, 1) }?;
    // SAFETY: likewise.
    let request = unsafe { result(request, "request") }?;
    *request = start_push(tensor, LentGiven::Some(places, LentToRead::of(values)), call)?;
    Ok(())
}

/// Starts a push of the product of two factors, and returns at once; otherwise as penstock_start_push().
///
/// @param u, u_bytes, v, v_bytes, rank  As for penstock_push_factors(). `u` and `v` must live, and not be changed, until the request is
///                                      done.
/// @param call, request                 As for penstock_start_push().
///
/// Errors: as penstock_start_get(). Errors of the push itself are reported when it ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_start_push_factors(
    tensor: *mut penstock_tensor,
    u: *const c_void,
    u_bytes: usize,
    v: *const c_void,
    v_bytes: usize,
    rank: usize,
    call: *const penstock_call,
    request: *mut *mut penstock_request,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let tensor = unsafe { owned(tensor, caller) }?;
        // SAFETY: likewise.
        let u = unsafe { array(u.cast::<u8>(), u_bytes, "u") }?;
        // SAFETY: likewise.
        let v = unsafe { array(v.cast::<u8>(), v_bytes, "v") }?;
        // SAFETY: likewise.
        let call = unsafe { Call::read(call, 1) }?;
        // SAFETY: likewise.
        let request = unsafe { result(request, "request") }?;
        *request = start_push(tensor, LentGiven::Factors([u, v].map(LentToRead::of), rank), call)?;
        Ok(())
    })
}

/// Starts a pull of some rows, and returns at once; otherwise as penstock_start_pull().
///
/// @param rows, count, out, bytes, slack  As for penstock_pull_rows(). `out` must live, and not be used, until the request is done; `rows`
///                                        may be changed at once.
/// @param call, request                   As for penstock_start_pull().
///
/// Errors: as penstock_start_get(). Errors of the pull itself are reported when it ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_start_pull_rows(
    tensor: *mut penstock_tensor,
    rows: *const u64,
    count: usize,
    out: *mut c_void,
    bytes: usize,
    slack: i64,
    call: *const penstock_call,
    request: *mut *mut penstock_request,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let tensor = unsafe { owned(tensor, caller) }?;
        // SAFETY: likewise.
        let rows = unsafe { array(rows, count, "rows") }?;
        let places = Places { indices: rows.to_vec(), length: row(tensor.core().spec())? };
        // SAFETY: likewise.
        unsafe { pull_some(tensor, places, out, bytes, slack, call, request) }
    })
}

/// The same of single elements.
///
/// @param indices, count, out, bytes, slack  As for penstock_pull_elements(), and penstock_start_pull_rows().
/// @param call, request                      As for penstock_start_pull().
///
/// Errors: as penstock_start_pull_rows().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_start_pull_elements(
    tensor: *mut penstock_tensor,
    indices: *const u64,
    count: usize,
    out: *mut c_void,
    bytes: usize,
    slack: i64,
    call: *const penstock_call,
    request: *mut *mut penstock_request,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let tensor = unsafe { owned(tensor, caller) }?;
        // SAFETY: likewise.
        let indices = unsafe { array(indices, count, "indices") }?;
        let places = Places { indices: indices.to_vec(), length: 1 };
        // SAFETY: likewise.
        unsafe { pull_some(tensor, places, out, bytes, slack, call, request) }
    })
}

/// # Safety
///
/// - As penstock.h says of every pointer.
unsafe fn pull_some(
    tensor: Arc<penstock_tensor>,
    places: Places,
    out: *mut c_void,
    bytes: usize,
    slack: i64,
    call: *const penstock_call,
    request: *mut *mut penstock_request,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let out = unsafe { array_mut(out.cast::<u8>(), bytes, "out") }?;
    // SAFETY: likewise.
    let call = unsafe { Call::read(call, 1) }?;
    // SAFETY: likewise.
    let request = unsafe { result(request, "request") }?;
    *request = start_pull(tensor, Some(places), out, slack, call)?;
    Ok(())
}
