//! Joining, clock, barrier, leaving.

use crate::boundary::{
    Made, Told, array, guard, guard_job, here, optional, result, shared, sized, text, timeout, value,
};
use crate::join::{Given, Joined, OPTIONS, join};
use crate::request::{Requests, Turns};
use crate::status::{Failure, penstock_status};
use crate::table::penstock_table;
use crate::tensor::penstock_tensor;
use penstock::turn::Turn;
use penstock::worker::{Declaration, Error, Job, Table, Tensor};
use penstock_fabric::forked::Maker;
use penstock_join::way;
use penstock_kernels::Settings;
use penstock_proto::message::Secret;
use std::ffi::c_char;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// This process as one worker of a job.
pub struct penstock_job {
    joined: Joined,
    maker: Maker,
    /// Of the threads that declare a tensor.
    declaring: Turn,
    /// Handed out. They live as long as the job. Locked for looks, never across a wait.
    tensors: Mutex<Vec<Arc<penstock_tensor>>>,
    tables: Mutex<Vec<Arc<penstock_table>>>,
    requests: Requests,
}

/// An option: one of those that `penstock run --help` lists.
#[repr(C)]
pub struct penstock_option {
    /// Its name, such as "deadline". Underscores, no dashes.
    pub name: *const c_char,
    /// Its value as text, in the units of `penstock run --help`, such as "120" or "64KiB".
    pub value: *const c_char,
}

/// Options of a job. Zeroed: all from the environment, or else their defaults.
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
/// The environment decides, as for `penstock.init()` in Python:
///
///   - PENSTOCK_SERVERS names servers (`penstock run` sets it): those.
///   - PENSTOCK_MANAGER names a manager: the servers that it names for the job in PENSTOCK_JOB.
///   - mpirun, mpiexec, srun or torchrun started several processes, all on this host: rank 0 runs a server, and the others find
///     it. All processes must make the call; each returns when all have. MPI need not be initialized.
///   - Otherwise this is a job of one worker.
///
/// If the launcher's processes are on several hosts, start servers there (`penstock-server`) and give every process
/// PENSTOCK_SERVERS and PENSTOCK_SECRET, or let a manager name them.
///
/// @param options  NULL: as if zeroed.
/// @param job      Where the job is stored; free it with penstock_finish().
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
        let options = match unsafe { options.as_ref() } {
            // SAFETY: likewise.
            Some(options) => unsafe { pairs(options.list, options.count) }?,
            None => Vec::new(),
        };
        *job = enter(&Given { options, ..Given::default() })?;
        Ok(())
    })
}

/// Who this process is, and in which job. Zero all of it, set `struct_size`, then set what should differ from the default.
#[repr(C)]
pub struct penstock_init_options {
    /// sizeof(penstock_init_options), so that a library may be newer than the program, or older.
    pub struct_size: usize,
    /// The job's name. NULL: PENSTOCK_JOB, or else "job". Processes of one launch may have several jobs at once, with different
    /// names.
    pub job: *const c_char,
    /// The job's secret, 64 hexadecimal digits, if `servers` are named. NULL: PENSTOCK_SECRET.
    pub secret: *const c_char,
    /// Where the servers are, in their order: each as `penstock-server` was told to listen, such as "tcp://10.0.0.1:7700", or the
    /// path of a socket. NULL: PENSTOCK_SERVERS, unless `job` is another job than the environment's: then rank 0 runs the server,
    /// and the others find it.
    pub servers: *const *const c_char,
    /// How many.
    pub server_count: usize,
    /// This worker's number, from 0, if `size` is not 0.
    pub rank: u32,
    /// Workers of the job. 0: rank and size come from the environment.
    pub size: u32,
    /// Seconds to wait for the others, in this call and wherever no other timeout is given. 0: the option `deadline`.
    pub deadline: f64,
    /// Options that count whatever the environment says; see penstock_options.
    pub list: *const penstock_option,
    /// How many.
    pub count: usize,
}

/// Joins the job that the program names: rank, size, servers and options are given in a structure. What it leaves open is as
/// penstock_init() finds it.
///
/// So an MPI communicator, or any subset of the processes that were started together on one host, can be a job:
///
///     penstock_init_options options = {0};
///     options.struct_size = sizeof options;
///     options.job = "left half";
///     MPI_Comm_rank(half, &rank);
///     MPI_Comm_size(half, &size);
///     options.rank = (uint32_t)rank;
///     options.size = (uint32_t)size;
///     penstock_init_with(&options, &job);
///
/// Without servers the job's processes find each other by its name: those of one launch or, without a launcher, those of one
/// parent process. Every rank from 0 to size - 1 must make the call; jobs at the same time need different names. With `size` 1
/// and without servers it is a job of this process alone.
///
/// @param options  Not NULL.
/// @param job      Where the job is stored; free it with penstock_finish().
///
/// Waits at most `deadline`. Errors: PENSTOCK_BAD_ARGUMENT (`struct_size` is not set, or is larger than this library's and a
/// member that it does not know is not 0), PENSTOCK_JOB_FULL (the rank is outside the size), and those of penstock_init().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_init_with(
    options: *const penstock_init_options,
    job: *mut *mut penstock_job,
) -> penstock_status {
    guard(|| {
        // SAFETY: as penstock.h says of every pointer.
        let job = unsafe { result(job, "job") }?;
        // SAFETY: likewise; the structure says itself how long it is.
        let options = unsafe { sized::<penstock_init_options>(options, "options") }?;
        // SAFETY: likewise.
        let given = unsafe { options.read() }?;
        let seconds = options.deadline.to_string();
        let mut given = given;
        if timeout(options.deadline)?.is_some() {
            given.options.push(("deadline", &seconds));
        }
        *job = enter(&given)?;
        Ok(())
    })
}

/// Joins, and hands out what came of it.
fn enter(given: &Given<'_>) -> Result<*mut penstock_job, Failure> {
    let joined = join(given)?;
    Ok(Box::into_raw(Box::new(penstock_job {
        joined,
        maker: Maker::this(),
        declaring: Turn::default(),
        tensors: Mutex::default(),
        tables: Mutex::default(),
        requests: Requests::new(),
    })))
}

impl penstock_init_options {
    /// What the program says.
    ///
    /// # Safety
    ///
    /// - As penstock.h says of every pointer.
    unsafe fn read<'a>(&self) -> Result<Given<'a>, Failure> {
        // SAFETY: the caller's promise.
        let job = unsafe { optional(self.job, "options->job") }?;
        // SAFETY: likewise.
        let secret = unsafe { optional(self.secret, "options->secret") }?;
        if let Some(secret) = secret.filter(|secret| Secret::from_hex(secret).is_none()) {
            let got = secret.chars().count();
            let message =
                format!("expected `options->secret` to be 64 hexadecimal digits, got {got} characters");
            let hint =
                "`penstock secret` makes one; give the same to every process of the job and to its servers";
            return Err(Failure::new(penstock_status::PENSTOCK_BAD_OPTION, message, hint));
        }
        // SAFETY: likewise.
        let servers = unsafe { array(self.servers, self.server_count, "options->servers") }?;
        // SAFETY: likewise.
        let servers = servers.iter().map(|&server| unsafe { text(server, "options->servers[]") });
        let servers = servers.collect::<Result<Vec<&str>, Failure>>()?;
        if let Some(odd) = servers.iter().find(|server| server.is_empty() || server.contains(',')) {
            let message = format!("expected one server in each of `options->servers`, got {odd:?}");
            return Err(Failure::argument(message));
        }
        let place = (self.size > 0).then_some((self.rank, self.size));
        if self.size == 0 && self.rank != 0 {
            let message = format!("expected a size with rank {}, got 0", self.rank);
            return Err(Failure::argument(message));
        }
        // SAFETY: likewise.
        let options = unsafe { pairs(self.list, self.count) }?;
        Ok(Given { said: way::Given { job, secret, servers, place, by: OPTIONS }, options })
    }
}

/// The options' names and values.
///
/// # Safety
///
/// - As penstock.h says of every pointer.
unsafe fn pairs<'a>(list: *const penstock_option, count: usize) -> Result<Vec<(&'a str, &'a str)>, Failure> {
    // SAFETY: the caller's promise.
    let list = unsafe { array(list, count, "options->list") }?;
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
/// A tensor that was not pushed in it is skipped; a row that was not set in it counts as unchanged. Waits until every push that
/// was started has left, so that it counts for the iteration in which it was started; at most as long as the option `deadline`
/// says.
///
/// @param clock  NULL, or where the new clock is stored: iterations that this worker has completed.
///
/// Errors: PENSTOCK_DEADLINE_EXCEEDED (a push that was started has not left in time: the clock is as it was), that of a push that was
/// started and failed, if its request was neither tested nor waited for (once, and of several in as many calls; the clock is as it was),
/// PENSTOCK_JOB_CLOSED, PENSTOCK_JOB_FAILED, PENSTOCK_WORKER_LOST, PENSTOCK_SERVER_LOST, PENSTOCK_SETTINGS_CONFLICT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_clock(job: *const penstock_job, clock: *mut u64) -> penstock_status {
    guard_job(|caller| {
        // SAFETY: as penstock.h says of every pointer.
        let job = unsafe { here(job, "job", caller) }?;
        job.requests.settle("the clock", job.core().options().deadline)?;
        let now = job.core().clock()?;
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
    guard_job(|caller| {
        let wait = self::timeout(timeout)?;
        // SAFETY: as penstock.h says of every pointer.
        unsafe { here(job, "job", caller) }?.core().barrier(wait)?;
        Ok(())
    })
}

/// Leaves the job, and frees it with all its tensors and tables. The other workers carry on without this one.
///
/// What a filter of pushes still holds back is gone: call penstock_flush() before. When this returns PENSTOCK_OK, the servers have
/// taken everything that this worker pushed and set, or the job had failed before
/// and an earlier call reported that. It waits for that as long as the option `deadline` says; a job that has failed is left at
/// once. The job is freed in every case.
///
/// If mpirun, srun or torchrun started the job, rank 0 runs the server: its call returns when all others have left. So nobody may
/// wait for rank 0 before this call, for example in an MPI barrier; the right place is before MPI_Finalize.
///
/// @param job  NULL: nothing is done. In a child of fork() nothing is done either: the job is the parent's (PENSTOCK_JOB_CLOSED).
///
/// A process that ends without this call counts as lost, and its job stops with an error that names it.
///
/// Errors: PENSTOCK_DEADLINE_EXCEEDED (a push that was started has not left in time, or a server did not take everything; the
/// others are told that this worker failed); that of a push that was started and failed, and that no call has reported (the
/// others are told, too); PENSTOCK_JOB_FAILED, PENSTOCK_WORKER_LOST, PENSTOCK_SERVER_LOST, PENSTOCK_SETTINGS_CONFLICT (the job
/// has failed, and no call of this worker has reported that before).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_finish(job: *mut penstock_job) -> penstock_status {
    guard(|| {
        // SAFETY: as penstock.h says of every pointer; nothing uses the job meanwhile or afterwards.
        unsafe { leave(job, None) }
    })
}

/// Leaves the job because of an error, and frees it as penstock_finish() does. The other workers are told, and stop or carry on
/// as the option `on_worker_loss` says.
///
/// @param job  NULL: nothing is done.
/// @param why  The error, which the others are told. NULL: they are not told what it was.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_fail(job: *mut penstock_job, why: *const c_char) -> penstock_status {
    guard(|| {
        let why = if why.is_null() {
            "it did not say why"
        } else {
            // SAFETY: as penstock.h says of every pointer.
            unsafe { text(why, "why") }?
        };
        // SAFETY: as penstock.h says of every pointer; nothing uses the job meanwhile or afterwards.
        unsafe { leave(job, Some(why.to_owned())) }
    })
}

/// Leaves the job and frees it.
///
/// # Safety
///
/// - `job` is NULL or came from [`penstock_init`], was not freed yet, and nothing uses it or what belongs to it any more.
unsafe fn leave(job: *mut penstock_job, failed: Option<String>) -> Result<(), Failure> {
    if job.is_null() {
        return Ok(());
    }
    // SAFETY: it came from `penstock_init` and was not freed yet (the caller's promise).
    if unsafe { &*job }.core().is_forked() {
        return Err(Error::Forked.into()); // the parent's: it stays as it is
    }
    // SAFETY: it came from `Box::into_raw` in `penstock_init`, and nothing else has it (the caller's promise).
    let penstock_job { joined, tensors, tables, requests, .. } = *unsafe { Box::from_raw(job) };
    let (told, failure) = (requests.told().is_told(), joined.job.failure());
    let cleanly = failed.is_none();
    let settled = if cleanly {
        requests.settle("leaving the job", joined.job.options().deadline).map(Some)
    } else {
        Ok(None)
    };
    // What was started and has not left is lost, so the others hear that this worker failed.
    let failed = failed.or_else(|| settled.as_ref().err().map(|late| late.message.clone()));
    let left = joined.leave(failed, settled.as_ref().ok().copied().flatten());
    requests.end();
    drop((tensors, tables));
    // The core keeps, for each thread, what it was told: what the threads that carry out requests were told has reached no
    // caller, and what one thread of the program was told, the program knows on all.
    match settled.and_then(|_| left.map_err(Failure::from)) {
        Err(failure) if failure.of_job && told => Ok(()),
        Ok(()) if cleanly && !told => failure.map_or(Ok(()), |failure| Err(Error::Failed(failure).into())),
        result => result,
    }
}

impl Made for penstock_job {
    fn maker(&self) -> &Maker {
        &self.maker
    }

    fn told(&self) -> &Told {
        self.requests.told()
    }
}

impl penstock_job {
    pub(crate) fn core(&self) -> &Job {
        &self.joined.job
    }

    /// What was started.
    pub(crate) fn requests(&self) -> &Requests {
        &self.requests
    }

    /// The handle of the tensor, as the core declares it or finds it declared before; `make` makes the handle of one that has
    /// none, in the time that is left to it.
    pub(crate) fn tensor(
        &self,
        declaration: Declaration,
        settings: Settings,
        make: impl FnOnce(Arc<Tensor>, Option<Duration>) -> Result<penstock_tensor, Failure>,
    ) -> Result<*mut penstock_tensor, Failure> {
        let (what, wait) = (format!("declaring `{}`", declaration.spec.name), declaration.timeout);
        let core = self.core().declare(declaration)?;
        let kept = || -> Result<Option<*mut penstock_tensor>, Failure> {
            let tensors = self.tensors();
            let Some(kept) = tensors.iter().find(|kept| kept.is(&core)) else { return Ok(None) };
            // They travel with pushes, so the core does not compare them.
            kept.compare(self.core().rank(), &settings)?;
            Ok(Some(handle(kept)))
        };
        if let Some(kept) = kept()? {
            return Ok(kept);
        }
        let turns = Turns { turn: &self.declaring, requests: None, what: &what };
        let (_turn, left) = turns.take(wait, self.core().options().deadline)?;
        // Another thread may have made it meanwhile.
        if let Some(kept) = kept()? {
            return Ok(kept);
        }
        let tensor = Arc::new(make(Arc::clone(&core), left)?);
        let handle = handle(&tensor);
        self.tensors().push(tensor);
        Ok(handle)
    }

    /// Refuses a tensor of another job.
    pub(crate) fn check_owns(&self, tensor: &penstock_tensor) -> Result<(), Failure> {
        match self.tensors().iter().any(|kept| kept.is(tensor.core())) {
            true => Ok(()),
            false => Err(Failure::argument(format!(
                "expected a tensor of this job, got `{}` of another",
                tensor.core().spec().name
            ))),
        }
    }

    fn tensors(&self) -> MutexGuard<'_, Vec<Arc<penstock_tensor>>> {
        self.tensors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handle of a table, kept as long as the job lives; `make` makes the handle of one that has none.
    pub(crate) fn keep(
        &self,
        core: Table,
        make: impl FnOnce(Table) -> penstock_table,
    ) -> *mut penstock_table {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |kept: &&Arc<penstock_table>| kept.core().is_ok_and(|table| table.is(&core));
        if let Some(kept) = tables.iter().find(same) {
            return handle(kept);
        }
        let table = Arc::new(make(core));
        let handle = handle(&table);
        tables.push(table);
        handle
    }
}

/// What a C program is given: it never moves, and nothing writes through it.
fn handle<T>(kept: &Arc<T>) -> *mut T {
    Arc::as_ptr(kept).cast_mut()
}
