//! What a C program calls: start, test, wait.

use super::later;
use super::lent::{Lent, LentToRead};
use super::registry::{Registry, check_forked, registry, sleep};
use super::some::{LentGiven, start_pull, start_push};
use super::threads::carry_out;
use crate::boundary::{Caller, array, array_mut, guard, guard_job, here, result, timeout};
use crate::call::{Call, penstock_call};
use crate::status::{Failure, penstock_status};
use crate::table::{self, Get, penstock_table};
use crate::tensor::penstock_tensor;
use penstock::worker::{Error, Table};
use penstock_proto::items::Slack;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Something that was started: see penstock_start_get().
pub struct penstock_request {
    _private: [u8; 0],
}

pub(super) fn handle(id: u64) -> *mut penstock_request {
    std::ptr::without_provenance_mut(id as usize)
}

/// The number of a handle that is not NULL, if it is one.
fn number(registry: &Registry, request: *const penstock_request) -> Result<u64, Failure> {
    let id = request.addr() as u64;
    check_forked(id)?;
    if registry.requests.contains_key(&id) {
        return Ok(id);
    }
    let hint = "a request ends with the call that reports it done, or with its job: do not use its handle after that";
    let message = "expected a request that is not done yet, got one that does not exist";
    Err(Failure::new(penstock_status::PENSTOCK_UNKNOWN_REQUEST, message, hint))
}

/// The end of a wait; `None` for as long as the request itself waits.
fn until(seconds: f64) -> Result<Option<Instant>, Failure> {
    Ok(timeout(seconds)?.and_then(|wait| Instant::now().checked_add(wait)))
}

fn late(count: usize) -> Failure {
    let message = format!("none of {count} requests was done in time");
    Failure::new(penstock_status::PENSTOCK_DEADLINE_EXCEEDED, message, "they continue: wait again, or longer")
}

/// Starts a get, and returns at once.
///
/// Requests make progress by themselves, on threads of the library: one for each tensor that has some, and one for each get that
/// has to wait, at most 64 at one time. Further gets are queued, and a call that tests one or waits for it carries it out.
/// `clock` is taken at this call, whatever penstock_clock() does in the meantime.
///
/// @param rows, count, out, clock, slack  As for penstock_get(). `out` must live, and not be used, until the request is done; `rows` may
///                                        be changed at once.
/// @param call     NULL, or see penstock_call: `timeout` counts from when the get begins; `versions` (one a row) as `out`.
/// @param request  Where the request is stored. It ends with the penstock_test(), penstock_wait() or penstock_wait_any() that
///                 reports it done, or with penstock_finish().
///
/// Errors: PENSTOCK_BAD_ARGUMENT, PENSTOCK_BAD_OPTION (the slack), PENSTOCK_TABLE_DROPPED, PENSTOCK_SYSTEM (no thread). Errors of
/// the get itself are reported when it ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_start_get(
    table: *const penstock_table,
    rows: *const u64,
    count: usize,
    out: *mut c_void,
    clock: u64,
    slack: i64,
    call: *const penstock_call,
    request: *mut *mut penstock_request,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let Get { table, rows, out, call } = unsafe { Get::read(table, rows, count, out, call, caller) }?;
        // SAFETY: likewise.
        let request = unsafe { result(request, "request") }?;
        let (core, slack) = (table.core()?.clone(), table::slack(slack)?);
        let clock = table::clock(clock).unwrap_or_else(|| core.iteration());
        let line = table.requests();
        // What goes wrong here goes wrong again where it is told.
        if call.versions.is_none() && core.try_get(rows, &mut *out, Some(clock), slack) == Ok(true) {
            *request = handle(line.note());
            return Ok(());
        }
        let asked = Asked { rows: rows.to_vec(), clock, slack };
        let wait = call.timeout.unwrap_or_else(|| table.timeout());
        let (out, versions) = (Lent::to_write(out), call.versions.map(Lent::to_write));
        let mut first = None;
        let work = move |until: Option<Instant>| {
            // SAFETY: the request is being carried out.
            let out = unsafe { out.memory() };
            // SAFETY: likewise.
            let versions = versions.as_ref().map(|versions| unsafe { versions.memory() });
            let begun = Instant::now();
            let since = *first.get_or_insert(begun);
            asked.get(&core, out, versions, Times { since, begun, own: later(since, wait), until })
        };
        *request = handle(line.beside(Box::new(work))?);
        Ok(())
    })
}

/// Starts a push, and returns at once. It belongs to the iteration that this worker is in: penstock_clock() waits until it has
/// left. The learning rate is taken at this call.
///
/// Requests for one tensor are carried out in the order in which they were started; other pushes and pulls of it wait for those that were
/// started before.
///
/// @param data, bytes  As for penstock_push(). `data` must live, and not be changed, until the request is done.
/// @param call         NULL, or see penstock_call: `timeout`, `more`, and `versions` (one), which must live until the request is done.
/// @param request      As for penstock_start_get().
///
/// Errors: as penstock_start_get(). Errors of the push itself are reported when it ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_start_push(
    tensor: *mut penstock_tensor,
    data: *const c_void,
    bytes: usize,
    call: *const penstock_call,
    request: *mut *mut penstock_request,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let tensor = unsafe { owned(tensor, caller) }?;
        // SAFETY: likewise.
        let given = unsafe { array(data.cast::<u8>(), bytes, "data") }?;
        // SAFETY: likewise.
        let call = unsafe { Call::read(call, 1) }?;
        // SAFETY: likewise.
        let request = unsafe { result(request, "request") }?;
        let data = (!data.is_null()).then(|| LentToRead::of(given));
        *request = start_push(tensor, LentGiven::Whole(data), call)?;
        Ok(())
    })
}

/// Starts a pull, and returns at once. How fresh the value must be depends on this worker's clock at this call: penstock_clock()
/// may be called before the request is done.
///
/// @param out, bytes, slack  As for penstock_pull_into(). `out` must live, and not be used, until the request is done.
/// @param call               NULL, or see penstock_call: `timeout`, `exact`, and `versions` (one), which must live until the request is
///                           done.
/// @param request            As for penstock_start_get().
///
/// Errors: as penstock_start_get(). Errors of the pull itself are reported when it ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_start_pull(
    tensor: *mut penstock_tensor,
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
        let out = unsafe { array_mut(out.cast::<u8>(), bytes, "out") }?;
        // SAFETY: likewise.
        let call = unsafe { Call::read(call, 1) }?;
        // SAFETY: likewise.
        let request = unsafe { result(request, "request") }?;
        *request = start_pull(tensor, None, out, slack, call)?;
        Ok(())
    })
}

/// What a get asks for.
struct Asked {
    rows: Vec<u64>,
    clock: u64,
    slack: Option<Slack>,
}

/// When a get, and this part of it, began; when its own time ends, and that of the thread that carries this part out.
struct Times {
    since: Instant,
    begun: Instant,
    own: Instant,
    until: Option<Instant>,
}

impl Asked {
    /// Gets, or gives up for now: `None`, where another time than the get's own has passed.
    fn get(
        &self,
        table: &Table,
        out: &mut [u8],
        versions: Option<&mut [u64]>,
        times: Times,
    ) -> Option<Result<(), Failure>> {
        let Times { since, begun, own, until } = times;
        let early = until.filter(|&until| until < own);
        let wait = early.unwrap_or(own).saturating_duration_since(begun);
        let (clock, wait) = (Some(self.clock), Some(wait));
        let mut got = match versions {
            Some(versions) => table.get_versions(&self.rows, out, versions, clock, self.slack, wait),
            None => table.get(&self.rows, out, clock, self.slack, wait),
        };
        if let Err(Error::GetTimeout { waited, .. } | Error::NeverStill { waited, .. }) = &mut got {
            if early.is_some() {
                return None;
            }
            *waited = since.elapsed();
        }
        Some(got.map(drop).map_err(Failure::from))
    }
}

/// A share in a tensor: it lives as long as the request.
///
/// # Safety
///
/// - As penstock.h says of every pointer.
pub(super) unsafe fn owned<'a>(
    tensor: *mut penstock_tensor,
    caller: &Caller<'a>,
) -> Result<Arc<penstock_tensor>, Failure> {
    // SAFETY: the caller's promise.
    let tensor: *const penstock_tensor = unsafe { here(tensor.cast_const(), "tensor", caller) }?;
    // SAFETY: what a program is given stands in an `Arc` that its job holds (`job::handle`), and the job lives.
    unsafe { Arc::increment_strong_count(tensor) };
    // SAFETY: the share that was just counted.
    Ok(unsafe { Arc::from_raw(tensor) })
}

/// Whether a request is done; does not wait.
///
/// @param request  The request: set to NULL if it is done, after which its handle must not be used. A NULL request counts as
///                 done.
/// @param done     Set to 1 or 0.
///
/// If it is done, returns what the push, pull or get itself would have returned. Other errors: PENSTOCK_UNKNOWN_REQUEST.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_test(
    request: *mut *mut penstock_request,
    done: *mut i32,
) -> penstock_status {
    guard(|| {
        // SAFETY: as penstock.h says of every pointer.
        let request = unsafe { result(request, "request") }?;
        // SAFETY: likewise.
        let done = unsafe { result(done, "done") }?;
        if request.is_null() {
            *done = 1;
            return Ok(());
        }
        let mut registry = registry();
        let id = number(&registry, *request)?;
        if registry.waits(id) {
            drop(registry);
            carry_out(id, Some(Instant::now()));
            registry = super::registry::registry();
        }
        let taken = registry.take(id);
        *done = taken.is_some().into();
        if taken.is_some() {
            *request = std::ptr::null_mut();
        }
        taken.unwrap_or(Ok(()))
    })
}

/// Waits until a request is done.
///
/// @param request  The request: set to NULL if it is done. A NULL request counts as done.
/// @param timeout  Seconds to wait; 0: as long as the push, pull or get itself waits.
///
/// Returns what the push, pull or get itself would have returned. Other errors: PENSTOCK_DEADLINE_EXCEEDED (`timeout` has passed,
/// and the request continues: `*request` is not NULL), PENSTOCK_UNKNOWN_REQUEST.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_wait(request: *mut *mut penstock_request, timeout: f64) -> penstock_status {
    guard(|| {
        // SAFETY: as penstock.h says of every pointer.
        let request = unsafe { result(request, "request") }?;
        let until = until(timeout)?;
        if request.is_null() {
            return Ok(());
        }
        let mut registry = registry();
        let id = number(&registry, *request)?;
        loop {
            if let Some(done) = registry.take(id) {
                *request = std::ptr::null_mut();
                return done;
            }
            number(&registry, *request)?; // it may have been taken by another thread, or ended with its job
            let in_time;
            (registry, in_time) = if registry.waits(id) {
                drop(registry);
                carry_out(id, until);
                (super::registry::registry(), until.is_none_or(|until| Instant::now() < until))
            } else {
                sleep(registry, until)
            };
            if !in_time {
                return registry
                    .take(id)
                    .inspect(|_| *request = std::ptr::null_mut())
                    .unwrap_or_else(|| Err(late(1)));
            }
        }
    })
}

/// Waits until one of several requests is done. They may belong to several tensors, tables and jobs.
///
/// @param requests  The requests. The one that is done is set to NULL; those that are NULL already do not count.
/// @param count     How many there are.
/// @param index     Set to the index of the one that is done; SIZE_MAX if all are NULL.
/// @param timeout   Seconds to wait; 0: as long as the first of them waits.
///
/// Returns what that push, pull or get itself would have returned. Other errors: PENSTOCK_DEADLINE_EXCEEDED (`timeout` has
/// passed, and all continue; `*index` is unchanged), PENSTOCK_UNKNOWN_REQUEST (`*index` is that of a request that does not
/// exist).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_wait_any(
    requests: *mut *mut penstock_request,
    count: usize,
    index: *mut usize,
    timeout: f64,
) -> penstock_status {
    guard(|| {
        // SAFETY: as penstock.h says of every pointer.
        let requests = unsafe { array_mut(requests, count, "requests") }?;
        // SAFETY: likewise.
        let index = unsafe { result(index, "index") }?;
        let until = until(timeout)?;
        let (mut registry, mut turn, mut in_time) = (registry(), 0usize, true);
        loop {
            let mut waiting = Vec::new();
            let mut any = false;
            for (place, request) in requests.iter_mut().enumerate().filter(|(_, request)| !request.is_null())
            {
                any = true;
                let id = number(&registry, *request).inspect_err(|_| *index = place)?;
                if let Some(done) = registry.take(id) {
                    (*index, *request) = (place, std::ptr::null_mut());
                    return done;
                }
                waiting.extend(registry.waits(id).then_some(id));
            }
            if !any {
                *index = usize::MAX;
                return Ok(());
            }
            if !in_time {
                return Err(late(count));
            }
            (registry, in_time) = if waiting.is_empty() {
                sleep(registry, until)
            } else {
                drop(registry);
                look_at(&waiting, turn, until);
                turn += 1;
                (super::registry::registry(), until.is_none_or(|until| Instant::now() < until))
            };
        }
    })
}

/// How long one of several gets that no thread has taken up is waited for before the others are looked at again.
const BY_TURNS: Duration = Duration::from_millis(1);

/// Looks at gets that no thread has taken up, and waits a short time for the one whose turn it is.
fn look_at(waiting: &[u64], turn: usize, until: Option<Instant>) {
    let now = Instant::now();
    for &id in waiting {
        carry_out(id, Some(now));
    }
    if waiting.iter().all(|&id| registry().waits(id)) {
        let end = now + BY_TURNS;
        carry_out(waiting[turn % waiting.len()], Some(until.map_or(end, |until| until.min(end))));
    }
}
