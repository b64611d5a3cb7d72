//! Push and pull.

use crate::boundary::{Made, Told, array, guard_job, here, or, result, shared, text, timeout, value};
use crate::call::{Call, penstock_call};
use crate::filter::penstock_filters;
use crate::job::penstock_job;
use crate::optimizer::penstock_optimizer;
use crate::request::{Line, Turns};
use crate::status::{Failure, penstock_status};
use penstock::turn::{Taken, Turn};
use penstock::worker::{Declaration, Error, Tensor};
use penstock_fabric::forked::Maker;
use penstock_kernels::{Dtype, Settings, SettingsError};
use penstock_proto::Rank;
use penstock_proto::adaptive::{Adaptive, ParseAdaptiveError};
use penstock_proto::choice::ParseAskedError;
use penstock_proto::consistency::{Consistency, MAX_SLACK, ParseConsistencyError};
use penstock_proto::error::Refusal;
use penstock_proto::propagation::Propagation;
use penstock_proto::spec::{MAX_DIMENSIONS, Reduce, TensorSpec};
use penstock_proto::travel::Travel;
use std::ffi::{c_char, c_void};
use std::ptr::null;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The slack of the tensor or table itself.
pub const PENSTOCK_SLACK_DEFAULT: i64 = -1;
/// No bound: whatever has arrived.
pub const PENSTOCK_SLACK_UNBOUNDED: i64 = -2;

/// The type of elements.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum penstock_dtype {
    /// float.
    PENSTOCK_F32 = 0,
    /// double.
    PENSTOCK_F64 = 1,
    /// IEEE 754 binary16. Tensors only.
    PENSTOCK_F16 = 2,
    /// The upper half of a float. Tensors only.
    PENSTOCK_BF16 = 3,
}

/// How the workers' contributions of an iteration become one.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum penstock_reduce {
    /// Their sum, divided by the number of live workers.
    PENSTOCK_MEAN = 0,
    /// Their sum.
    PENSTOCK_SUM = 1,
}

/// A tensor of a job. Freed with its job.
pub struct penstock_tensor {
    tensor: Arc<Tensor>,
    /// Its name, as errors have it.
    name: String,
    /// As it was declared.
    declared: Settings,
    /// What travels with the next push; copied when one is called or started.
    settings: Mutex<Settings>,
    /// Of pushes and pulls: they go one after the other.
    turn: Turn,
    timeout: Option<Duration>,
    /// The option `deadline`.
    deadline: Duration,
    maker: Maker,
    /// Requests for it that are not done, which go one after the other.
    requests: Line,
}

/// The declaration of a tensor. Every worker makes the same. Zero all of it, then set what should differ from the default.
#[repr(C)]
pub struct penstock_tensor_options {
    /// Its key: 1 to 512 bytes of UTF-8 without control characters. Not NULL.
    pub name: *const c_char,
    /// One of penstock_dtype. 0: float.
    pub dtype: u32,
    /// Dimensions of the shape. 0: a scalar.
    pub dimensions: u32,
    /// Elements along each dimension, at least 1; those along the last dimension are contiguous.
    pub shape: *const u64,
    /// Its first value: as many elements as the shape has. Rank 0's counts. NULL: zeros.
    pub value: *const c_void,
    /// What it does with contributions. Zeroed: adds them.
    pub optimizer: penstock_optimizer,
    /// "bsp", "ssp:SLACK", "ssp:auto:MIN:MAX" (the slack adapts to waiting, between the two) or "asp". NULL: the job's option
    /// `consistency`, which is "bsp" unless set.
    pub consistency: *const c_char,
    /// One of penstock_reduce. 0: the mean.
    pub reduce: u32,
    /// Not 0: contributions that hold a NaN or an infinity are refused.
    pub refuse_nonfinite: u32,
    /// Factor on the reduced contribution. 0: 1.
    pub rescale: f64,
    /// Then each element is clipped to [-clip, clip]. 0: no clipping.
    pub clip: f64,
    /// Seconds that this and every later call for the tensor may wait. 0: the option `deadline`.
    pub timeout: f64,
    /// "pull" (workers on other hosts fetch the value) or "broadcast" (servers send them what is new; under "ssp" nobody sees
    /// updates before they are in a version, and under "asp" a worker's own come back with the others': see `exact` of penstock_call
    /// and penstock_flush()), or, under "bsp", "update" (as "broadcast", but servers send the sum that the optimizer was given, and
    /// each worker applies that to the same bits). "auto": "broadcast" under "bsp" where the job has the option `tree`,
    /// and under "ssp" where a filter of broadcasts may hold something back; else "pull".
    /// NULL: "pull".
    pub propagation: *const c_char,
    /// What of pushes, and of the value, is sent now, and what later. NULL: all of it.
    pub filters: *const penstock_filters,
    /// Not 0: pushes are mostly of some rows or elements (penstock_push_rows()): between hosts, contributions and values travel as the
    /// elements that differ from zero and from what was sent before, where that is cheaper.
    pub sparse: u32,
    /// Of two dimensions: the largest rank with which penstock_push_factors() sends factors, in place of their product, to servers on
    /// other hosts; 1024 at most. 0: none.
    pub low_rank: u32,
    /// For later versions: 0.
    pub reserved: u64,
}

/// Declares a tensor. Every worker makes the same declaration; rank 0's value counts.
///
/// Returns after this worker's own declaration; the first pull waits for rank 0's. Repeating the declaration gives the same
/// tensor, with its value unchanged. Shared memory: the value and the optimizer's state once, and a lane of the value's size for
/// each worker; what filters, `sparse` and `low_rank` take is in docs/filters.md, docs/sparse.md and docs/factors.md.
///
/// @param tensor  Where the tensor is stored. It belongs to the job: penstock_finish() frees it.
///
/// Errors: PENSTOCK_BAD_NAME, PENSTOCK_BAD_SHAPE, PENSTOCK_BAD_DTYPE, PENSTOCK_BAD_SETTINGS (the optimizer's or a filter's, or
/// `low_rank`), PENSTOCK_BAD_OPTION (the consistency or the propagation), PENSTOCK_DECLARATION_CONFLICT, PENSTOCK_OUT_OF_MEMORY, PENSTOCK_DEADLINE_EXCEEDED, PENSTOCK_JOB_CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_tensor_create(
    job: *const penstock_job,
    options: *const penstock_tensor_options,
    tensor: *mut *mut penstock_tensor,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let job = unsafe { here(job, "job", caller) }?;
        // SAFETY: likewise.
        let options = unsafe { shared(options, "options") }?;
        // SAFETY: likewise.
        let tensor = unsafe { result(tensor, "tensor") }?;
        // SAFETY: likewise.
        let (declaration, settings) = unsafe { options.read(job) }?;
        let timeout = declaration.timeout;
        *tensor = job.tensor(declaration, settings, |core, wait| {
            if job.core().rank() == 0 {
                let bytes = if options.value.is_null() { 0 } else { core.spec().bytes() as usize };
                // SAFETY: likewise; `value` holds as many elements as the shape says.
                let value = unsafe { array(options.value.cast::<u8>(), bytes, "options->value") }?;
                core.initialize((!options.value.is_null()).then_some(value), wait)?;
            }
            Ok(penstock_tensor {
                name: format!("`{}`", core.spec().name),
                tensor: core,
                declared: settings,
                settings: Mutex::new(settings),
                turn: Turn::default(),
                timeout,
                deadline: job.core().options().deadline,
                maker: Maker::this(),
                requests: job.requests().line(),
            })
        })?;
        Ok(())
    })
}

/// Bytes of the tensor's value. 0 if `tensor` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_tensor_bytes(tensor: *const penstock_tensor) -> usize {
    // SAFETY: as penstock.h says of every pointer.
    value(0, || Ok(unsafe { shared(tensor, "tensor") }?.bytes()))
}

/// Contributes to the iteration that this worker is in.
///
/// Returns as soon as the contribution is in the worker's lane; `data` may be changed at once.
///
/// @param data   The contribution, of the tensor's shape and dtype. NULL: what is in the lane (see penstock_lane()).
/// @param bytes  Its size, penstock_tensor_bytes(); 0 if `data` is NULL.
///
/// Waits until requests that were started before are done and the servers have taken the worker's previous contribution. Errors:
/// PENSTOCK_BAD_SHAPE, PENSTOCK_BAD_ARGUMENT (`data` is NULL, and what is in the lane was lost when its iteration ended, or was
/// loaded), PENSTOCK_DEADLINE_EXCEEDED (requests or another thread's call were not done in time), PENSTOCK_ALREADY_PUSHED, PENSTOCK_NON_FINITE, PENSTOCK_LANE_TIMEOUT (the text names the ranks that are waited for),
/// PENSTOCK_PULL_TIMEOUT (rank 0 has given no value), and those of penstock_clock().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_push(
    tensor: *const penstock_tensor,
    data: *const c_void,
    bytes: usize,
) -> penstock_status {
    // SAFETY: as penstock.h says of every pointer.
    unsafe { penstock_push_with(tensor, data, bytes, null()) }
}

/// penstock_push() with its own timeout, in parts (`more`), and with the clock that it is stamped with.
///
/// @param call  NULL, or see penstock_call: `timeout`, `more`, `versions` (one).
///
/// Errors: as penstock_push().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_push_with(
    tensor: *const penstock_tensor,
    data: *const c_void,
    bytes: usize,
    call: *const penstock_call,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let tensor = unsafe { here(tensor, "tensor", caller) }?;
        // SAFETY: likewise.
        let given = unsafe { array(data.cast::<u8>(), bytes, "data") }?;
        // SAFETY: likewise.
        let mut call = unsafe { Call::read(call, 1) }?;
        tensor.push(Given::Whole((!data.is_null()).then_some(given)), &mut call)
    })
}

/// The lane: memory of the tensor's shape that the servers of this host read. A contribution that is written there and pushed with
/// NULL is not copied for them, and once for servers of other hosts.
///
/// @param lane  Where its address is stored. It is the same every time, and valid until penstock_finish(). Its content may be
///              changed from this call until the next push, and is undefined at first. What was written there before a load is
///              no contribution: ask for it once more before it is filled and pushed with NULL. A filter of pushes leaves there
///              what it sends.
///
/// Waits until the servers have taken what is in it. Errors: PENSTOCK_BAD_OPTION (a part that was pushed with `more` waits in it,
/// and would be lost: push data, which is added to it, or NULL, which sends it), and as penstock_push().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_lane(
    tensor: *const penstock_tensor,
    lane: *mut *mut c_void,
) -> penstock_status {
    // SAFETY: as penstock.h says of every pointer.
    unsafe { penstock_lane_with(tensor, lane, null()) }
}

/// penstock_lane() with its own timeout.
///
/// @param call  NULL, or see penstock_call: `timeout`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_lane_with(
    tensor: *const penstock_tensor,
    lane: *mut *mut c_void,
    call: *const penstock_call,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let tensor = unsafe { here(tensor, "tensor", caller) }?;
        // SAFETY: likewise.
        let lane = unsafe { result(lane, "lane") }?;
        // SAFETY: likewise.
        let call = unsafe { Call::read(call, 1) }?;
        let (_turn, wait) = tensor.take_turn(call.timeout)?;
        *lane = tensor.tensor.lane(wait)?.base().as_ptr().cast();
        Ok(())
    })
}

/// Copies the value, as fresh as the tensor's consistency asks for.
///
/// At position t (the clock, plus one after a push in this iteration) with slack s, it includes every update stamped below t - s
/// of every live worker, and all of this worker's own, unless it is broadcast under "ssp" or "asp"; but for what a filter of broadcasts
/// holds back (`exact` of penstock_call reads that too).
///
/// @param out    Where it is copied to.
/// @param bytes  Its size, penstock_tensor_bytes().
/// @param slack  Iterations that this one read may lag behind: 0 or above, PENSTOCK_SLACK_DEFAULT (the tensor's own) or
///               PENSTOCK_SLACK_UNBOUNDED.
///
/// Waits if it has to, after requests that were started before. Errors: PENSTOCK_BAD_SHAPE, PENSTOCK_BAD_OPTION (the slack),
/// PENSTOCK_PULL_TIMEOUT (the text names the ranks that are waited for; the content of `out` is undefined),
/// PENSTOCK_DEADLINE_EXCEEDED (requests or another thread's call were not done in time), and those of penstock_clock().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_pull_into(
    tensor: *const penstock_tensor,
    out: *mut c_void,
    bytes: usize,
    slack: i64,
) -> penstock_status {
    // SAFETY: as penstock.h says of every pointer.
    unsafe { penstock_pull_into_with(tensor, out, bytes, slack, null()) }
}

/// penstock_pull_into() with its own timeout, the value's version, or of the value itself, whatever filters of broadcasts hold back (`exact`).
///
/// @param call  NULL, or see penstock_call: `timeout`, `versions` (one), `exact`.
///
/// Errors: as penstock_pull_into(); with `exact`, PENSTOCK_DEADLINE_EXCEEDED also if a server did not send it in time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_pull_into_with(
    tensor: *const penstock_tensor,
    out: *mut c_void,
    bytes: usize,
    slack: i64,
    call: *const penstock_call,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let tensor = unsafe { here(tensor, "tensor", caller) }?;
        // SAFETY: likewise.
        let out = unsafe { crate::boundary::array_mut(out.cast::<u8>(), bytes, "out") }?;
        // SAFETY: likewise.
        let mut call = unsafe { Call::read(call, 1) }?;
        tensor.pull(Wanted::Whole, out, slack, &mut call)
    })
}

/// Gives access to the value in place, as fresh as penstock_pull_into() would copy it.
///
/// Under "bsp" without slack that is the servers' own memory if they are on this host: nothing is copied, and the value does not
/// change until this worker's next push of the tensor, or a flush of what a filter of broadcasts holds back. Otherwise it is a copy of this worker's own, which does not change until
/// its next pull of the tensor.
///
/// Unless the option `lend` is `off`, other pages with the same values may be mapped at that address: do not pin that memory or
/// register it with a device (`cudaHostRegister`, RDMA, io_uring), as these would keep the old pages; copy it.
///
/// @param value  Where its address is stored. Not to be written to; valid until penstock_finish().
/// @param slack  As for penstock_pull_into().
///
/// Waits if it has to. Errors: as penstock_pull_into().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_pull(
    tensor: *const penstock_tensor,
    value: *mut *const c_void,
    slack: i64,
) -> penstock_status {
    // SAFETY: as penstock.h says of every pointer.
    unsafe { penstock_pull_with(tensor, value, slack, null()) }
}

/// penstock_pull() with its own timeout, and the value's version.
///
/// @param call  NULL, or see penstock_call: `timeout`, `versions` (one).
///
/// Errors: as penstock_pull().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_pull_with(
    tensor: *const penstock_tensor,
    value: *mut *const c_void,
    slack: i64,
    call: *const penstock_call,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let tensor = unsafe { here(tensor, "tensor", caller) }?;
        // SAFETY: likewise.
        let value = unsafe { result(value, "value") }?;
        // SAFETY: likewise.
        let mut call = unsafe { Call::read(call, 1) }?;
        if call.exact {
            let message = format!("{}: expected 0 for `exact` of a pull in place, got 1", tensor.name);
            let hint = "what is exact is a copy: use penstock_pull_into_with()";
            return Err(Failure::new(penstock_status::PENSTOCK_BAD_ARGUMENT, message, hint));
        }
        let (_turn, wait) = tensor.take_turn(call.timeout)?;
        let (core, slack) = (&tensor.tensor, pull_slack(slack));
        let (version, memory) = if core.stable(slack)? {
            (core.pull(slack, wait)?, core.model())
        } else {
            (core.pull_mirror(slack, wait)?, core.mirror()?)
        };
        call.leave(version);
        *value = memory.base().as_ptr().cast_const().cast();
        Ok(())
    })
}

/// Overwrites the value, for instance to continue from a checkpoint. Every worker of the job makes the call; rank 0's value
/// counts.
///
/// The optimizer's state and its step count stay. Contributions that workers made before go into what is overwritten, except
/// those that under BSP still wait for another worker's: they are folded into what was loaded. Every pull afterwards sees the new
/// value.
///
/// @param job      The tensor's job.
/// @param value    On rank 0 the value, of the tensor's shape and dtype; ignored elsewhere.
/// @param bytes    Its size, penstock_tensor_bytes().
/// @param timeout  Seconds to wait for the others to call; 0: the tensor's. When they have, the value goes whole, however little is
///                 left: each wait behind it has the job's deadline.
///
/// Errors: PENSTOCK_BAD_SHAPE (on rank 0), PENSTOCK_BAD_OPTION (this worker has pushed a part of its contribution, with `more`, and
/// not the last: the others wait for it), PENSTOCK_BARRIER_TIMEOUT (the text names the ranks that did not come: the value is as it was,
/// or, after the job's deadline, rank 0 had not come to the end; the call again is the same load), PENSTOCK_FIRST_FAILED (not on rank 0, whose call has failed: the text
/// has its error, and the value is as it was or a part of it is new; call it again on every rank), and those of penstock_clock().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_load(
    job: *const penstock_job,
    tensor: *const penstock_tensor,
    value: *const c_void,
    bytes: usize,
    timeout: f64,
) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let job = unsafe { here(job, "job", caller) }?;
        // SAFETY: likewise.
        let tensor = unsafe { here(tensor, "tensor", caller) }?;
        job.check_owns(tensor)?;
        let job = job.core();
        let wait = self::timeout(timeout)?.or(tensor.timeout);
        let value = match job.rank() {
            // SAFETY: likewise.
            0 => Some(unsafe { array(value.cast::<u8>(), bytes, "value") }?),
            _ => None,
        };
        let _turn = tensor.take_turn(wait)?;
        tensor.tensor.load_together(job, value.map(Into::into), wait)?;
        Ok(())
    })
}

/// Sets the learning rate, from this worker's next push on; a push that was started before keeps the rate that was set then.
/// Under "bsp" all workers must set the same.
///
/// @param lr  0 or above.
///
/// Errors: PENSTOCK_BAD_SETTINGS (the rate is out of its range, or the tensor's rule has none).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_set_lr(tensor: *const penstock_tensor, lr: f64) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let tensor = unsafe { here(tensor, "tensor", caller) }?;
        let mut settings = lock(&tensor.settings);
        let mut changed = *settings;
        changed.0[0] = lr;
        let spec = tensor.tensor.spec();
        changed.check(spec.rule).map_err(|error| {
            let (message, hint) = match &error {
                SettingsError::Unused { rule, .. } => (
                    format!("{rule} has no learning rate (`lr`), so it must be 0, got {lr}"),
                    "leave out penstock_set_lr(), or declare the tensor with an optimizer that has one"
                        .to_owned(),
                ),
                error => (error.to_string(), error.hint()),
            };
            let message = format!("`{}`: {message}", spec.name);
            Failure::new(penstock_status::PENSTOCK_BAD_SETTINGS, message, hint)
        })?;
        *settings = changed;
        Ok(())
    })
}

/// A slack of a tensor, as the core reads it: the core judges what is not valid.
pub(crate) fn pull_slack(slack: i64) -> Option<i64> {
    match slack {
        PENSTOCK_SLACK_DEFAULT => None,
        PENSTOCK_SLACK_UNBOUNDED => Some(i64::from(MAX_SLACK)),
        slack => Some(slack),
    }
}

/// A consistency, and the bounds of its slack where it follows waiting.
fn consistency(text: &str) -> Result<(Consistency, Option<Adaptive>), Failure> {
    let refuse = |error: String| {
        let hint = "such as \"bsp\", \"ssp:4\", \"ssp:auto:0:8\" or \"asp\"";
        Failure::new(penstock_status::PENSTOCK_BAD_OPTION, error, hint)
    };
    let Some(bounds) = text.strip_prefix("ssp:auto:") else {
        return Ok((text.parse().map_err(|error: ParseConsistencyError| refuse(error.to_string()))?, None));
    };
    let adaptive: Adaptive = bounds.parse().map_err(|error: ParseAdaptiveError| refuse(error.to_string()))?;
    let bound = format!("ssp:{}", adaptive.max);
    let consistency = bound.parse().map_err(|error: ParseConsistencyError| refuse(error.to_string()))?;
    Ok((consistency, Some(adaptive)))
}

/// Who moves the values of a tensor with that consistency and element type, which travels so.
fn propagation(
    text: &str,
    job: &penstock_job,
    consistency: Consistency,
    travel: &Travel,
    dtype: Dtype,
) -> Result<Propagation, Failure> {
    let options = job.core().options();
    let chosen = penstock::worker::propagation(text, options, Some(consistency), travel, dtype);
    let hint = "use \"pull\", \"broadcast\", \"update\" or \"auto\"";
    let refuse =
        |error: ParseAskedError| Failure::new(penstock_status::PENSTOCK_BAD_OPTION, error.to_string(), hint);
    Ok(chosen.map_err(refuse)?.propagation)
}

/// The element type of a number in C.
pub(crate) fn dtype(code: u32, what: &str) -> Result<Dtype, Failure> {
    Dtype::ALL.get(code as usize).copied().ok_or_else(|| {
        let message = format!("expected a dtype from 0 to {} for `{what}`, got {code}", Dtype::ALL.len() - 1);
        let hint = "use PENSTOCK_F32, PENSTOCK_F64, PENSTOCK_F16 or PENSTOCK_BF16";
        Failure::new(penstock_status::PENSTOCK_BAD_DTYPE, message, hint)
    })
}

impl Made for penstock_tensor {
    fn maker(&self) -> &Maker {
        &self.maker
    }

    fn told(&self) -> &Told {
        self.requests.told()
    }
}

impl penstock_tensor {
    /// Whether it is a handle of this tensor.
    pub(crate) fn is(&self, core: &Arc<Tensor>) -> bool {
        Arc::ptr_eq(&self.tensor, core)
    }

    fn bytes(&self) -> usize {
        self.tensor.spec().bytes() as usize
    }

    /// Refuses another declaration of the same tensor by worker `rank`, naming the first setting that differs.
    pub(crate) fn compare(&self, rank: Rank, now: &Settings) -> Result<(), Failure> {
        let spec = self.tensor.spec();
        let names = spec.rule.row().settings.iter().map(|setting| setting.name);
        let fields = names.zip(self.declared.0.iter().zip(&now.0));
        match fields.into_iter().find(|(_, (before, now))| before != now) {
            None => Ok(()),
            Some((what, (before, now))) => Err(Failure::from(Error::Refused(Refusal::Conflict {
                name: spec.name.clone(),
                rank,
                what: what.to_owned(),
                expected: before.to_string(),
                got: now.to_string(),
            }))),
        }
    }

    /// What travels with a push that is called or started now.
    pub(crate) fn settings(&self) -> Settings {
        *lock(&self.settings)
    }

    /// Iterations that its worker has completed.
    pub(crate) fn iteration(&self) -> u64 {
        self.tensor.iteration()
    }

    /// A turn at pushing and pulling, behind what was started before, and what is left of the call's time.
    pub(crate) fn take_turn(&self, wait: Option<Duration>) -> Result<(Taken<'_>, Option<Duration>), Failure> {
        self.wait_behind(Some(&self.requests), wait)
    }

    fn wait_behind<'a>(
        &'a self,
        requests: Option<&'a Line>,
        wait: Option<Duration>,
    ) -> Result<(Taken<'a>, Option<Duration>), Failure> {
        let turns = Turns { turn: &self.turn, requests, what: &self.name };
        turns.take(wait.or(self.timeout), self.deadline)
    }

    /// A push that is called.
    pub(crate) fn push(&self, given: Given<'_>, call: &mut Call<'_>) -> Result<(), Failure> {
        let settings = self.settings();
        let (_turn, wait) = self.take_turn(call.timeout)?;
        call.leave(given.push(&self.tensor, settings, call.more, wait)?);
        Ok(())
    }

    /// A pull that is called, of a copy.
    pub(crate) fn pull(
        &self,
        wanted: Wanted<'_>,
        out: &mut [u8],
        slack: i64,
        call: &mut Call<'_>,
    ) -> Result<(), Failure> {
        let (_turn, wait) = self.take_turn(call.timeout)?;
        call.leave(wanted.pull(&self.tensor, None, pull_slack(slack), call.exact, out, wait)?);
        Ok(())
    }

    /// A push that was started, when its turn among requests has come.
    pub(crate) fn push_started(
        &self,
        given: Given<'_>,
        settings: Settings,
        more: bool,
        timeout: Option<Duration>,
    ) -> Result<u64, Failure> {
        let (_turn, wait) = self.wait_behind(None, timeout)?;
        Ok(given.push(&self.tensor, settings, more, wait)?)
    }

    /// A pull that was started at `clock`, likewise.
    pub(crate) fn pull_started(
        &self,
        clock: u64,
        (wanted, exact): (Wanted<'_>, bool),
        out: &mut [u8],
        slack: Option<i64>,
        timeout: Option<Duration>,
    ) -> Result<u64, Failure> {
        let (_turn, wait) = self.wait_behind(None, timeout)?;
        // Pushes that were started before are in it; none behind it has begun.
        Ok(wanted.pull(&self.tensor, Some(clock), slack, exact, out, wait)?)
    }

    pub(crate) fn core(&self) -> &Arc<Tensor> {
        &self.tensor
    }

    /// Its requests.
    pub(crate) fn requests(&self) -> &Line {
        &self.requests
    }
}

/// What a push contributes.
pub(crate) enum Given<'a> {
    /// A value's size of it; `None`: what is in the lane.
    Whole(Option<&'a [u8]>),
    /// Some rows or elements, and zeros for the others.
    Some(Units<'a>, &'a [u8]),
    /// The product of two factors of this rank.
    Factors([&'a [u8]; 2], usize),
}

/// Rows or elements of a tensor.
#[derive(Clone, Copy)]
pub(crate) struct Units<'a> {
    pub(crate) indices: &'a [u64],
    /// Elements of each.
    pub(crate) length: usize,
}

impl Given<'_> {
    pub(crate) fn push(
        self,
        tensor: &Tensor,
        settings: Settings,
        more: bool,
        wait: Option<Duration>,
    ) -> Result<u64, Error> {
        match self {
            Self::Whole(data) => tensor.push(data, settings, more, wait),
            Self::Some(Units { indices, length }, values) => {
                tensor.push_sparse(indices, length, values.into(), settings, more, wait)
            }
            Self::Factors([u, v], rank) => {
                tensor.push_factors(u.into(), v.into(), rank, settings, more, wait)
            }
        }
    }
}

/// What a pull copies.
#[derive(Clone, Copy)]
pub(crate) enum Wanted<'a> {
    /// All of the value.
    Whole,
    /// Some rows or elements.
    Some(Units<'a>),
}

impl Wanted<'_> {
    /// As of when this worker's clock was `clock`, or now; `exact`: of the value itself.
    pub(crate) fn pull(
        self,
        tensor: &Tensor,
        clock: Option<u64>,
        slack: Option<i64>,
        exact: bool,
        out: &mut [u8],
        wait: Option<Duration>,
    ) -> Result<u64, Error> {
        let asked = match clock {
            Some(clock) => tensor.ask_as_of(clock, slack)?,
            None => tensor.ask(slack)?,
        };
        match (self, exact) {
            (Self::Whole, false) => tensor.pull_asked(asked, out, wait),
            (Self::Whole, true) => tensor.pull_whole_asked(asked, out, wait),
            (Self::Some(Units { indices, length }), false) => {
                tensor.pull_sparse_asked(asked, indices, length, out, wait)
            }
            (Self::Some(Units { indices, length }), true) => {
                tensor.pull_sparse_whole_asked(asked, indices, length, out, wait)
            }
        }
    }
}

/// Held for a look or a change, never across a wait.
fn lock(settings: &Mutex<Settings>) -> MutexGuard<'_, Settings> {
    settings.lock().unwrap_or_else(PoisonError::into_inner)
}

impl penstock_tensor_options {
    /// The declaration, and the optimizer's numbers.
    ///
    /// # Safety
    ///
    /// - As penstock.h says of every pointer.
    unsafe fn read(&self, job: &penstock_job) -> Result<(Declaration, Settings), Failure> {
        // SAFETY: the caller's promise.
        let name = unsafe { text(self.name, "options->name") }?.to_owned();
        if self.dimensions as usize > MAX_DIMENSIONS {
            let message =
                format!("`{name}`: expected at most {MAX_DIMENSIONS} dimensions, got {}", self.dimensions);
            return Err(Failure {
                status: penstock_status::PENSTOCK_BAD_SHAPE,
                message,
                hint: None,
                of_job: false,
            });
        }
        // SAFETY: likewise.
        let shape = unsafe { array(self.shape, self.dimensions as usize, "options->shape") }?.to_vec();
        let (consistency, adaptive) = if self.consistency.is_null() {
            (job.core().options().consistency, None)
        } else {
            // SAFETY: likewise.
            consistency(unsafe { text(self.consistency, "options->consistency") }?)?
        };
        let reduce = match self.reduce {
            0 => Reduce::Mean,
            1 => Reduce::Sum,
            got => {
                return Err(Failure::argument(format!(
                    "`{name}`: expected PENSTOCK_MEAN or PENSTOCK_SUM, got {got}"
                )));
            }
        };
        if self.reserved != 0 {
            return Err(Failure::argument(format!(
                "`{name}`: expected 0 in what is reserved: zero the options first"
            )));
        }
        let (rule, settings) = self.optimizer.read(&name)?;
        // SAFETY: likewise.
        let filters = unsafe { self.filters.as_ref() }.copied().unwrap_or_default();
        let (sums, values) = filters.read(&name)?;
        let dtype = dtype(self.dtype, &name)?;
        let travel = Travel::filtered(sums, values, dtype);
        let propagation = if self.propagation.is_null() {
            Propagation::Pull
        } else {
            // SAFETY: likewise.
            let asked = unsafe { text(self.propagation, "options->propagation") }?;
            propagation(asked, job, consistency, &travel, dtype)?
        };
        let travel = if self.sparse != 0 { travel.sparse(dtype) } else { travel };
        let spec = TensorSpec {
            dtype,
            name,
            shape,
            rule,
            consistency,
            propagation,
            reduce,
            rescale: or(self.rescale, 1.0),
            clip: (self.clip != 0.0).then_some(self.clip),
            refuse_nonfinite: self.refuse_nonfinite != 0,
            travel: travel.low_rank(self.low_rank),
        };
        let declaration =
            Declaration { spec, consistency: Some(consistency), adaptive, timeout: timeout(self.timeout)? };
        Ok((declaration, settings))
    }
}
