//! Joining, clock, barrier, leaving.

use crate::boundary::{array, guard, result, shared, text, timeout, value};
use crate::join::{Joined, join};
use crate::status::{Failure, penstock_status};
use crate::table::penstock_table;
use crate::tensor::penstock_tensor;
use penstock::worker::{Error, Job};
use penstock_proto::spec::TensorSpec;
use std::ffi::c_char;
use std::sync::{Arc, Mutex, PoisonError};

/// This process as one worker of a job.
pub struct penstock_job {
    joined: Joined,
    /// Handed out, by name. They live as long as the job.
    tensors: Mutex<Vec<Declared>>,
    tables: Mutex<Vec<Arc<penstock_table>>>,
}

/// A tensor, and as what it was declared.
struct Declared {
    spec: TensorSpec,
    tensor: Arc<penstock_tensor>,
}

/// An option: one of those that `penstock run --help` lists.
#[repr(C)]
pub struct penstock_option {
    /// Its name, such as "deadline". Underscores, no dashes.
    pub name: *const c_char,
    /// Its value as text, in the units of `penstock run --help`, such as "120" or "64KiB".
    pub value: *const c_char,
}

/// Options of a job. Zeroed: all from the environment, else their defaults.
#[repr(C)]
pub struct penstock_options {
    /// Options that count whatever the environment says. An option that is not among them has the value of its
    /// environment variable (PENSTOCK_DEADLINE and so on), else its default.
    pub list: *const penstock_option,
    /// How many there are.
    pub count: usize,
}

/// Joins the job that this process was started for; alone, starts one with a server inside this process.
///
/// What the environment says decides, as for `penstock.init()` in Python:
///
///   - PENSTOCK_SERVERS names servers (`penstock run` sets it): those.
///   - PENSTOCK_MANAGER names a manager: the servers that it names for the job in PENSTOCK_JOB.
///   - mpirun, mpiexec, srun or torchrun started several processes, all on this host: rank 0 carries a server, the others
///     find it. All processes must call; each returns when all have. MPI need not be initialized.
///   - Otherwise this is a job of one worker.
///
/// Where the launcher's processes are on several hosts, start servers there (`penstock-server`) and give every process
/// PENSTOCK_SERVERS and PENSTOCK_SECRET, or let a manager name them.
///
/// @param options  NULL: as if zeroed.
/// @param job      Where the job is left; free it with penstock_finish().
///
/// Waits at most as long as the option `deadline` says (60 s by default). Errors: PENSTOCK_BAD_OPTION,
/// PENSTOCK_NOT_UNDER_LAUNCHER, PENSTOCK_DEADLINE_EXCEEDED (the text names the ranks that did not come),
/// PENSTOCK_CONNECT_TIMEOUT, PENSTOCK_AUTHENTICATION, PENSTOCK_JOB_FULL, PENSTOCK_JOB_FAILED, PENSTOCK_PROTOCOL,
/// PENSTOCK_SYSTEM.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_init(
    options: *const penstock_options,
    job: *mut *mut penstock_job,
) -> penstock_status {
    guard(|| {
        // SAFETY: as penstock.h says of every pointer.
        let job = unsafe { result(job, "job") }?;
        // SAFETY: likewise.
        let given = unsafe { pairs(options) }?;
        let joined = join(&given)?;
        *job = Box::into_raw(Box::new(penstock_job {
            joined,
            tensors: Mutex::default(),
            tables: Mutex::default(),
        }));
        Ok(())
    })
}

/// The options' names and values.
///
/// # Safety
///
/// - As penstock.h says of every pointer.
unsafe fn pairs<'a>(options: *const penstock_options) -> Result<Vec<(&'a str, &'a str)>, Failure> {
    // SAFETY: the caller's promise.
    let Some(options) = (unsafe { options.as_ref() }) else { return Ok(Vec::new()) };
    // SAFETY: likewise.
    let list = unsafe { array(options.list, options.count, "options->list") }?;
    let pair = |option: &penstock_option| {
        // SAFETY: likewise.
        let name = unsafe { text(option.name, "options->list[].name") }?;
        // SAFETY: likewise.
        let value = unsafe { text(option.value, "options->list[].value") }?;
        Ok((name, value))
    };
    list.iter().map(pair).collect()
}

/// This worker's number, 0 to penstock_size() - 1. UINT32_MAX if `job` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_rank(job: *const penstock_job) -> u32 {
    // SAFETY: as penstock.h says of every pointer.
    value(u32::MAX, || Ok(unsafe { shared(job, "job") }?.core().rank()))
}

/// Workers that the job was made for. 0 if `job` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_size(job: *const penstock_job) -> u32 {
    // SAFETY: as penstock.h says of every pointer.
    value(0, || Ok(unsafe { shared(job, "job") }?.core().size()))
}

/// Iterations that this worker has completed: its clock. 0 if `job` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_iteration(job: *const penstock_job) -> u64 {
    // SAFETY: as penstock.h says of every pointer.
    value(0, || Ok(unsafe { shared(job, "job") }?.core().iteration()))
}

/// Completes an iteration.
///
/// A tensor that was not pushed in it counts as passed by; a row that was not set in it counts as unchanged.
///
/// @param clock  NULL, or where the new clock is left: iterations that this worker has completed.
///
/// Errors: PENSTOCK_JOB_CLOSED, PENSTOCK_JOB_FAILED, PENSTOCK_WORKER_LOST, PENSTOCK_SERVER_LOST,
/// PENSTOCK_SETTINGS_CONFLICT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_clock(job: *const penstock_job, clock: *mut u64) -> penstock_status {
    guard(|| {
        // SAFETY: as penstock.h says of every pointer.
        let now = unsafe { shared(job, "job") }?.core().clock()?;
        // SAFETY: likewise.
        if let Some(clock) = unsafe { clock.as_mut() } {
            *clock = now;
        }
        Ok(())
    })
}

/// Waits until every live worker is here.
///
/// @param timeout  Seconds to wait; 0: the option `deadline`.
///
/// Errors: PENSTOCK_BARRIER_TIMEOUT (the text names the ranks that did not come), and those of penstock_clock().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_barrier(job: *const penstock_job, timeout: f64) -> penstock_status {
    guard(|| {
        let wait = self::timeout(timeout)?;
        // SAFETY: as penstock.h says of every pointer.
        unsafe { shared(job, "job") }?.core().barrier(wait)?;
        Ok(())
    })
}

/// Leaves the job, and frees it with all its tensors and tables. The other workers go on without this one.
///
/// When this returns PENSTOCK_OK, the servers have taken everything that this worker pushed and set, or the job had failed
/// before and an earlier call said so. It waits for that as long as the option `deadline` says; a job that has failed is left at
/// once. The job is freed in every case.
///
/// Where mpirun, srun or torchrun started the job, rank 0 carries the server: its call returns when all others have left.
/// So nobody may wait for rank 0 before calling, in a barrier of MPI for example; before MPI_Finalize is the right place.
///
/// @param job  NULL: nothing is done. In a child of fork() nothing either: the job is the parent's (PENSTOCK_JOB_CLOSED).
///
/// A process that ends without this call counts as lost, and its job stops with an error that names it.
///
/// Errors: PENSTOCK_DEADLINE_EXCEEDED (a server did not take everything in time; the others are told that this worker failed);
/// PENSTOCK_JOB_FAILED, PENSTOCK_WORKER_LOST, PENSTOCK_SERVER_LOST, PENSTOCK_SETTINGS_CONFLICT (the job has failed, and no
/// call of this worker has said so before).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_finish(job: *mut penstock_job) -> penstock_status {
    guard(|| {
        // SAFETY: as penstock.h says of every pointer; nobody uses the job meanwhile or afterwards.
        unsafe { leave(job, None) }
    })
}

/// Leaves the job because of an error, and frees it as penstock_finish() does. The other workers are told, and stop or go on
/// as the option `on_worker_loss` says.
///
/// @param job  NULL: nothing is done.
/// @param why  The error, for the others' texts. NULL: it is not told.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_fail(job: *mut penstock_job, why: *const c_char) -> penstock_status {
    guard(|| {
        let why = if why.is_null() {
            "it did not say why"
        } else {
            // SAFETY: as penstock.h says of every pointer.
            unsafe { text(why, "why") }?
        };
        // SAFETY: as penstock.h says of every pointer; nobody uses the job meanwhile or afterwards.
        unsafe { leave(job, Some(why.to_owned())) }
    })
}

/// Leaves the job and frees it.
///
/// # Safety
///
/// - `job` is NULL or came from [`penstock_init`], was not freed yet, and nobody uses it or what belongs to it any more.
unsafe fn leave(job: *mut penstock_job, failed: Option<String>) -> Result<(), Failure> {
    if job.is_null() {
        return Ok(());
    }
    // SAFETY: it came from `penstock_init` and was not freed yet (the caller's promise).
    if let Err(forked @ Error::Forked) = unsafe { &*job }.core().check() {
        return Err(forked.into()); // the parent's: it stays as it is
    }
    // SAFETY: it came from `Box::into_raw` in `penstock_init`, and nobody else has it (the caller's promise).
    let job = unsafe { Box::from_raw(job) };
    Ok(job.joined.leave(failed)?)
}

impl penstock_job {
    pub(crate) fn core(&self) -> &Job {
        &self.joined.job
    }

    /// The tensor of that name, if it was declared before, alike; `make` makes one that was not.
    pub(crate) fn tensor(
        &self,
        spec: &TensorSpec,
        make: impl FnOnce() -> Result<penstock_tensor, Failure>,
    ) -> Result<*mut penstock_tensor, Failure> {
        let mut tensors = self.tensors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = tensors.iter().find(|before| before.spec.name == spec.name) {
            if before.spec == *spec {
                return Ok(handle(&before.tensor));
            }
            let message = format!("`{}` was declared differently before", spec.name);
            let hint = "give the tensor another name, or declare it alike";
            return Err(Failure::new(penstock_status::PENSTOCK_DECLARATION_CONFLICT, message, hint));
        }
        let tensor = Arc::new(make()?);
        let handle = handle(&tensor);
        tensors.push(Declared { spec: spec.clone(), tensor });
        Ok(handle)
    }

    /// Keeps a table as long as the job lives.
    pub(crate) fn keep(&self, table: penstock_table) -> *mut penstock_table {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        let table = Arc::new(table);
        let handle = handle(&table);
        tables.push(table);
        handle
    }
}

/// What a C program is given: it never moves, and nobody writes through it.
fn handle<T>(kept: &Arc<T>) -> *mut T {
    Arc::as_ptr(kept).cast_mut()
}
