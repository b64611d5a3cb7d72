//! Requests: pushes, pulls and gets that are started, and tested or waited for later.
//!
//! Whatever cannot be done at once is carried out by threads of the job's own, its *crew*: so it goes on while the program computes, and
//! nobody has to ask for that. Requests for one tensor go one after the other, in the order in which they were started, on one thread;
//! gets each on their own, up to [`MOST_GETS`] at one time. A get beyond that stands in a queue, and whoever waits for it carries it out
//! itself.
//!
//! All that is known of requests stands on one board, under one lock: `penstock_wait_any` may wait for requests of several jobs. A
//! handle is a number on that board and no address, so one that is done already is noticed and not followed.
//!
//! A contribution is stamped with the clock that it meets, and a pull asks for what its clock says. So `penstock_clock` waits until the
//! stamps of all that was started are fixed ([`Stamp`]): a push's when it is done, a pull's when it has begun.

use crate::boundary::{array, array_mut, guard, result, shared, timeout};
use crate::call::{Call, penstock_call};
use crate::status::{Failure, penstock_status};
use crate::table::{self, penstock_table};
use crate::tensor::{penstock_tensor, pull_slack};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Gets of one job that wait at one time, each on a thread.
const MOST_GETS: usize = 64;
/// A thread without work ends after this time.
const IDLE: Duration = Duration::from_secs(5);
/// Their stacks: they run this library's code only.
const STACK: usize = 256 * 1024;

/// Something that was started: see penstock_start_get().
pub struct penstock_request {
    _private: [u8; 0],
}

/// Holds back the clock until the request's stamp is fixed: when this is dropped.
struct Stamp(Option<Arc<AtomicUsize>>);

impl Stamp {
    fn new(unstamped: &Arc<AtomicUsize>) -> Self {
        unstamped.fetch_add(1, Ordering::Relaxed);
        Self(Some(Arc::clone(unstamped)))
    }
}

impl Drop for Stamp {
    fn drop(&mut self) {
        if let Some(unstamped) = self.0.take() {
            // Under the lock, so that who has just looked sleeps before it is woken.
            let _board = board();
            // Pairs with the acquire load in `Requests::settle`: what was stamped is seen behind it.
            unstamped.fetch_sub(1, Ordering::Release);
            CHANGED.notify_all();
        }
    }
}

type Work = Box<dyn FnOnce(Stamp) -> Result<(), Failure> + Send>;

enum State {
    Queued(Work, Stamp),
    Running,
    Done(Result<(), Failure>),
}

struct Entry {
    job: u64,
    state: State,
    /// Whether the order does not matter: whoever waits for it may carry it out.
    free: bool,
    /// Requests for its tensor or table that are not done.
    pending: Arc<AtomicUsize>,
}

/// What a thread takes up.
enum Task {
    One(u64),
    Line(u64),
}

/// The threads of a job.
#[derive(Default)]
struct Crew {
    queue: VecDeque<Task>,
    threads: usize,
    idle: usize,
    handles: Vec<JoinHandle<()>>,
    over: bool,
}

#[derive(Default)]
struct Board {
    next: u64,
    requests: BTreeMap<u64, Entry>,
    crews: BTreeMap<u64, Crew>,
    /// By tensor: what was started and not taken up. One that is here has a thread, or will have.
    lines: BTreeMap<u64, VecDeque<u64>>,
}

static BOARD: Mutex<Board> =
    Mutex::new(Board { next: 0, requests: BTreeMap::new(), crews: BTreeMap::new(), lines: BTreeMap::new() });
/// A request is done, or a stamp fixed.
static CHANGED: Condvar = Condvar::new();
/// There is work, or a job is over.
static WORK: Condvar = Condvar::new();

fn board() -> MutexGuard<'static, Board> {
    BOARD.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Board {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// Sleeps until something is done, at most until `until`; `false` if that has passed.
fn sleep(board: MutexGuard<'static, Board>, until: Option<Instant>) -> (MutexGuard<'static, Board>, bool) {
    let Some(until) = until else {
        return (CHANGED.wait(board).unwrap_or_else(PoisonError::into_inner), true);
    };
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return (board, false);
    }
    (CHANGED.wait_timeout(board, left).unwrap_or_else(PoisonError::into_inner).0, true)
}

/// Those of a job.
pub(crate) struct Requests {
    job: u64,
    unstamped: Arc<AtomicUsize>,
}

/// Those for one tensor or table.
pub(crate) struct Line {
    job: u64,
    id: u64,
    pending: Arc<AtomicUsize>,
    unstamped: Arc<AtomicUsize>,
}

impl Requests {
    pub(crate) fn new() -> Self {
        Self { job: board().number(), unstamped: Arc::default() }
    }

    pub(crate) fn line(&self) -> Line {
        let (id, unstamped) = (board().number(), Arc::clone(&self.unstamped));
        Line { job: self.job, id, pending: Arc::default(), unstamped }
    }

    /// Waits until the stamps of all that was started are fixed.
    pub(crate) fn settle(&self) {
        wait_for_none(&self.unstamped);
    }

    /// The job is over, and its calls return: nothing of the program's memory is touched behind this, and its requests are gone.
    pub(crate) fn end(&self) {
        let mut board = board();
        let mut given_up = Vec::new();
        for entry in board.requests.values_mut().filter(|entry| entry.job == self.job) {
            if matches!(entry.state, State::Queued(..)) {
                let closed = State::Done(Err(penstock::worker::Error::Closed.into()));
                given_up.push(std::mem::replace(&mut entry.state, closed));
            }
        }
        let mut crew = board.crews.remove(&self.job).unwrap_or_default();
        let handles = std::mem::take(&mut crew.handles);
        crew.over = true;
        board.crews.insert(self.job, crew);
        WORK.notify_all();
        drop(board);
        drop(given_up); // their stamps need the board
        for thread in handles {
            let _ = thread.join();
        }
        let mut board = self::board();
        // What a thread of the program's carries out.
        while board
            .requests
            .values()
            .any(|entry| entry.job == self.job && matches!(entry.state, State::Running))
        {
            board = CHANGED.wait(board).unwrap_or_else(PoisonError::into_inner);
        }
        board.requests.retain(|_, entry| entry.job != self.job);
        board.crews.remove(&self.job);
    }
}

fn wait_for_none(count: &AtomicUsize) {
    // Pairs with the release in `Stamp::drop` and in `carry_out`.
    if count.load(Ordering::Acquire) == 0 {
        return;
    }
    let mut board = board();
    while count.load(Ordering::Acquire) > 0 {
        board = CHANGED.wait(board).unwrap_or_else(PoisonError::into_inner);
    }
}

impl Line {
    /// Waits until nothing that was started before is under way.
    pub(crate) fn take_turn(&self) {
        wait_for_none(&self.pending);
    }

    /// Notes something that is done already.
    fn note(&self) -> u64 {
        let (mut board, pending) = (board(), Arc::default());
        let id = board.number();
        board.requests.insert(id, Entry { job: self.job, state: State::Done(Ok(())), free: true, pending });
        id
    }

    /// Starts something that goes behind whatever was started before for the same tensor.
    fn in_turn(&self, work: Work) -> Result<u64, Failure> {
        let stamp = Stamp::new(&self.unstamped);
        self.start(work, stamp, false)
    }

    /// Starts something that goes beside everything else.
    fn beside(&self, work: Work) -> Result<u64, Failure> {
        self.start(work, Stamp(None), true)
    }

    fn start(&self, work: Work, stamp: Stamp, free: bool) -> Result<u64, Failure> {
        let mut board = board();
        let id = board.number();
        if !free && let Some(line) = board.lines.get_mut(&self.id) {
            line.push_back(id);
        } else {
            if let Err(failure) = board.hand_over(self.job, free) {
                drop(board);
                drop((work, stamp));
                return Err(failure);
            }
            let task = if free { Task::One(id) } else { Task::Line(self.id) };
            let crew = board.crews.entry(self.job).or_default();
            // A tensor's never stands behind gets that wait for others: those may wait for it.
            if free {
                crew.queue.push_back(task)
            } else {
                crew.queue.push_front(task)
            }
            if !free {
                board.lines.insert(self.id, VecDeque::from([id]));
            }
        }
        self.pending.fetch_add(1, Ordering::Relaxed);
        let pending = Arc::clone(&self.pending);
        board.requests.insert(id, Entry { job: self.job, state: State::Queued(work, stamp), free, pending });
        WORK.notify_all();
        Ok(id)
    }
}

impl Board {
    /// Sees to it that a thread will take up one more task.
    fn hand_over(&mut self, job: u64, free: bool) -> Result<(), Failure> {
        let crew = self.crews.entry(job).or_default();
        if crew.over {
            return Err(penstock::worker::Error::Closed.into());
        }
        if crew.idle > crew.queue.len() || (free && crew.threads >= MOST_GETS) {
            return Ok(());
        }
        crew.handles.retain(|thread| !thread.is_finished());
        let thread = std::thread::Builder::new().name("penstock-request".to_owned()).stack_size(STACK);
        let thread = thread.spawn(move || serve(job)).map_err(|error| {
            let what = format!("could not start a thread for a request: {error}");
            Failure::new(
                penstock_status::PENSTOCK_SYSTEM,
                what,
                "wait for some requests before more are started",
            )
        })?;
        crew.threads += 1;
        crew.handles.push(thread);
        Ok(())
    }
}

/// A thread of a crew.
fn serve(job: u64) {
    let mut board = board();
    loop {
        let Some(crew) = board.crews.get_mut(&job) else { return };
        match crew.queue.pop_front() {
            Some(Task::One(id)) => {
                drop(board);
                carry_out(id);
                board = self::board();
            }
            Some(Task::Line(line)) => {
                while let Some(id) = board.lines.get_mut(&line).and_then(VecDeque::pop_front) {
                    drop(board);
                    carry_out(id);
                    board = self::board();
                }
                board.lines.remove(&line);
            }
            None if crew.over => break,
            None => {
                crew.idle += 1;
                let (woken, slept) = WORK.wait_timeout(board, IDLE).unwrap_or_else(PoisonError::into_inner);
                board = woken;
                let Some(crew) = board.crews.get_mut(&job) else { return };
                crew.idle -= 1;
                if slept.timed_out() && crew.queue.is_empty() {
                    break;
                }
            }
        }
    }
    if let Some(crew) = board.crews.get_mut(&job) {
        crew.threads -= 1;
    }
}

/// Carries out a request that nobody has taken up.
fn carry_out(id: u64) {
    let mut board = board();
    let Some(entry) = board.requests.get_mut(&id) else { return };
    if !matches!(entry.state, State::Queued(..)) {
        return;
    }
    let State::Queued(work, stamp) = std::mem::replace(&mut entry.state, State::Running) else { return };
    drop(board);
    let done =
        catch_unwind(AssertUnwindSafe(|| work(stamp))).unwrap_or_else(|panic| Err(Failure::bug(&*panic)));
    let mut board = self::board();
    if let Some(entry) = board.requests.get_mut(&id) {
        entry.state = State::Done(done);
        entry.pending.fetch_sub(1, Ordering::Release);
    }
    CHANGED.notify_all();
}

fn handle(id: u64) -> *mut penstock_request {
    std::ptr::without_provenance_mut(id as usize)
}

/// The number of a handle that is not NULL, if it is one.
fn number(board: &Board, request: *const penstock_request) -> Result<u64, Failure> {
    let id = request.addr() as u64;
    if board.requests.contains_key(&id) {
        return Ok(id);
    }
    let hint = "a request ends with the call that says it is done, or with its job: forget its handle then";
    let message = "expected a request that is not done, got one that there is not";
    Err(Failure::new(penstock_status::PENSTOCK_UNKNOWN_REQUEST, message, hint))
}

impl Board {
    /// Takes a request off the board, if it is done.
    fn take(&mut self, id: u64) -> Option<Result<(), Failure>> {
        if !matches!(self.requests.get(&id)?.state, State::Done(_)) {
            return None;
        }
        match self.requests.remove(&id)?.state {
            State::Done(result) => Some(result),
            _ => None,
        }
    }
}

/// The end of a wait; `None` for as long as the request itself waits.
fn until(seconds: f64) -> Result<Option<Instant>, Failure> {
    Ok(timeout(seconds)?.and_then(|wait| Instant::now().checked_add(wait)))
}

fn late(count: usize) -> Failure {
    let message = format!("none of {count} requests was done in time");
    Failure::new(penstock_status::PENSTOCK_DEADLINE_EXCEEDED, message, "they go on: wait again, or longer")
}

/// Memory of the program's that a request reads or writes until it is done.
struct Lent<T> {
    first: *mut T,
    count: usize,
}

// SAFETY: penstock.h says that nobody else uses the memory until the request is done. `T` is a number.
unsafe impl<T: Send> Send for Lent<T> {}

impl<T> Lent<T> {
    fn to_write(memory: &mut [T]) -> Self {
        Self { first: memory.as_mut_ptr(), count: memory.len() }
    }

    /// The memory.
    ///
    /// # Safety
    ///
    /// - The request is not done, so that the memory is there and nobody else's.
    unsafe fn memory<'a>(&self) -> &'a mut [T] {
        // SAFETY: it came from a slice of this length; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.first, self.count) }
    }
}

/// Memory of the program's that a request reads until it is done.
struct LentToRead {
    first: *const u8,
    count: usize,
}

// SAFETY: penstock.h says that nobody writes to the memory until the request is done.
unsafe impl Send for LentToRead {}

impl LentToRead {
    /// The memory.
    ///
    /// # Safety
    ///
    /// - The request is not done, so that the memory is there and nobody writes to it.
    unsafe fn memory<'a>(&self) -> &'a [u8] {
        // SAFETY: it came from a slice of this length; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.first, self.count) }
    }
}

/// Starts a get, and returns at once.
///
/// Requests go on by themselves, on threads of the library: one for each tensor that has some, and one for each get that has to wait,
/// at most 64 at one time; gets beyond that stand in a queue, and penstock_wait() carries out the one it is called for. `clock` is that
/// of this call, whatever penstock_clock() does meanwhile.
///
/// @param rows, count, out, clock, slack  As for penstock_get(). `out` must live, and not be used, until the request is done; `rows` may
///                                        be changed at once.
/// @param call     NULL, or see penstock_call: `timeout` counts from when the get begins; `versions` (one a row) as `out`.
/// @param request  Where the request is left. It ends with the penstock_test(), penstock_wait() or penstock_wait_any() that says it is
///                 done, or with penstock_finish().
///
/// Errors: PENSTOCK_BAD_ARGUMENT, PENSTOCK_BAD_OPTION (the slack), PENSTOCK_TABLE_DROPPED, PENSTOCK_SYSTEM (no thread). What the get
/// itself has to say comes with its end.
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
    guard(|| {
        // SAFETY: as penstock.h says of every pointer.
        let table = unsafe { shared(table, "table") }?;
        // SAFETY: likewise.
        let rows = unsafe { array(rows, count, "rows") }?;
        // SAFETY: likewise; there is room for the value of each row.
        let out = unsafe { array_mut(out.cast::<u8>(), table.bytes(count)?, "out") }?;
        // SAFETY: likewise.
        let call = unsafe { Call::read(call, count) }?;
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
        let (rows, out, wait) =
            (rows.to_vec(), Lent::to_write(out), call.timeout.or_else(|| table.timeout()));
        let versions = call.versions.map(Lent::to_write);
        let work = move |_: Stamp| {
            // SAFETY: the request is being carried out.
            let out = unsafe { out.memory() };
            // SAFETY: likewise.
            match versions.as_ref().map(|versions| unsafe { versions.memory() }) {
                Some(versions) => core.get_versions(&rows, out, versions, Some(clock), slack, wait)?,
                None => core.get(&rows, out, Some(clock), slack, wait)?,
            };
            Ok(())
        };
        *request = handle(line.beside(Box::new(work))?);
        Ok(())
    })
}

/// Starts a push, and returns at once. It is of the iteration that this worker is in: penstock_clock() waits until it has left.
///
/// Requests for one tensor are carried out in the order in which they were started; other pushes and pulls of it wait for them.
///
/// @param data, bytes  As for penstock_push(). `data` must live, and not be changed, until the request is done.
/// @param call         NULL, or see penstock_call: `timeout`, `more`, and `versions` (one), which must live until the request is done.
/// @param request      As for penstock_start_get().
///
/// Errors: as penstock_start_get(). What the push itself has to say comes with its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_start_push(
    tensor: *mut penstock_tensor,
    data: *const c_void,
    bytes: usize,
    call: *const penstock_call,
    request: *mut *mut penstock_request,
) -> penstock_status {
    guard(|| {
        // SAFETY: as penstock.h says of every pointer.
        let tensor = unsafe { owned(tensor) }?;
        // SAFETY: likewise.
        let given = unsafe { array(data.cast::<u8>(), bytes, "data") }?;
        // SAFETY: likewise.
        let call = unsafe { Call::read(call, 1) }?;
        // SAFETY: likewise.
        let request = unsafe { result(request, "request") }?;
        let lent = LentToRead { first: given.as_ptr(), count: given.len() };
        let given = (!data.is_null()).then_some(lent);
        let (more, wait, versions) = (call.more, call.timeout, call.versions.map(Lent::to_write));
        let mine = Arc::clone(&tensor);
        let work = move |stamp: Stamp| {
            // SAFETY: the request is being carried out.
            let data = given.as_ref().map(|lent| unsafe { lent.memory() });
            let clock = mine.push(data, more, wait)?;
            // SAFETY: likewise.
            if let Some([place, ..]) = versions.as_ref().map(|versions| unsafe { versions.memory() }) {
                *place = clock;
            }
            drop(stamp);
            Ok(())
        };
        *request = handle(tensor.requests().in_turn(Box::new(work))?);
        Ok(())
    })
}

/// Starts a pull, and returns at once. How fresh the value is follows from where this worker is in this call: penstock_clock() may be
/// called before the request is done.
///
/// @param out, bytes, slack  As for penstock_pull_into(). `out` must live, and not be used, until the request is done.
/// @param call               NULL, or see penstock_call: `timeout`, and `versions` (one), which must live until the request is done.
/// @param request            As for penstock_start_get().
///
/// Errors: as penstock_start_get(). What the pull itself has to say comes with its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_start_pull(
    tensor: *mut penstock_tensor,
    out: *mut c_void,
    bytes: usize,
    slack: i64,
    call: *const penstock_call,
    request: *mut *mut penstock_request,
) -> penstock_status {
    guard(|| {
        // SAFETY: as penstock.h says of every pointer.
        let tensor = unsafe { owned(tensor) }?;
        // SAFETY: likewise.
        let out = unsafe { array_mut(out.cast::<u8>(), bytes, "out") }?;
        // SAFETY: likewise.
        let call = unsafe { Call::read(call, 1) }?;
        // SAFETY: likewise.
        let request = unsafe { result(request, "request") }?;
        let (out, wait, versions) = (Lent::to_write(out), call.timeout, call.versions.map(Lent::to_write));
        let mine = Arc::clone(&tensor);
        let work = move |stamp: Stamp| {
            // SAFETY: the request is being carried out.
            let out = unsafe { out.memory() };
            let version = mine.pull_begun(out, pull_slack(slack), wait, || drop(stamp))?;
            // SAFETY: likewise.
            if let Some([place, ..]) = versions.as_ref().map(|versions| unsafe { versions.memory() }) {
                *place = version;
            }
            Ok(())
        };
        *request = handle(tensor.requests().in_turn(Box::new(work))?);
        Ok(())
    })
}

/// A share in a tensor: it lives as long as the request.
///
/// # Safety
///
/// - As penstock.h says of every pointer.
unsafe fn owned(tensor: *mut penstock_tensor) -> Result<Arc<penstock_tensor>, Failure> {
    // SAFETY: the caller's promise.
    let tensor: *const penstock_tensor = unsafe { shared(tensor.cast_const(), "tensor") }?;
    // SAFETY: what a program is given stands in an `Arc` that its job holds (`job::handle`), and the job lives.
    unsafe { Arc::increment_strong_count(tensor) };
    // SAFETY: the share that was just counted.
    Ok(unsafe { Arc::from_raw(tensor) })
}

/// Whether a request is done; does not wait.
///
/// @param request  The request: NULL is left where it is done, and its handle is worth nothing any more. One that is NULL is done.
/// @param done     Where 1 is left, or 0.
///
/// Returns what the push, pull or get itself would have returned, where it is done. Errors besides: PENSTOCK_UNKNOWN_REQUEST.
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
        let mut board = board();
        let id = number(&board, *request)?;
        let taken = board.take(id);
        *done = taken.is_some().into();
        if taken.is_some() {
            *request = std::ptr::null_mut();
        }
        taken.unwrap_or(Ok(()))
    })
}

/// Waits until a request is done.
///
/// @param request  The request: NULL is left where it is done. One that is NULL is done.
/// @param timeout  Seconds to wait; 0: as long as the push, pull or get itself waits.
///
/// Returns what the push, pull or get itself would have returned. Errors besides: PENSTOCK_DEADLINE_EXCEEDED (`timeout` has passed, and
/// the request goes on: `*request` is not NULL), PENSTOCK_UNKNOWN_REQUEST.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_wait(request: *mut *mut penstock_request, timeout: f64) -> penstock_status {
    guard(|| {
        // SAFETY: as penstock.h says of every pointer.
        let request = unsafe { result(request, "request") }?;
        let until = until(timeout)?;
        if request.is_null() {
            return Ok(());
        }
        let mut board = board();
        let id = number(&board, *request)?;
        let queued = |entry: &Entry| entry.free && matches!(entry.state, State::Queued(..));
        if until.is_none() && board.requests.get(&id).is_some_and(queued) {
            drop(board);
            carry_out(id);
            board = self::board();
        }
        loop {
            if let Some(done) = board.take(id) {
                *request = std::ptr::null_mut();
                return done;
            }
            number(&board, *request)?; // it may have been taken by another thread, or ended with its job
            let (woken, in_time) = sleep(board, until);
            board = woken;
            if !in_time {
                return Err(late(1));
            }
        }
    })
}

/// Waits until one of several requests is done. They may be of several tensors, tables and jobs.
///
/// @param requests  The requests. NULL is left in the place of the one that is done; those that are NULL already do not count.
/// @param count     How many places there are.
/// @param index     Where the place of the one that is done is left; SIZE_MAX if all are NULL.
/// @param timeout   Seconds to wait; 0: as long as the first of them waits.
///
/// Returns what that push, pull or get itself would have returned. Errors besides: PENSTOCK_DEADLINE_EXCEEDED (`timeout` has passed, and
/// all go on; `*index` is untouched), PENSTOCK_UNKNOWN_REQUEST (`*index` is the place of one that there is not).
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
        let mut board = board();
        loop {
            let mut any = false;
            for (place, request) in requests.iter_mut().enumerate().filter(|(_, request)| !request.is_null())
            {
                any = true;
                let id = number(&board, *request).inspect_err(|_| *index = place)?;
                if let Some(done) = board.take(id) {
                    (*index, *request) = (place, std::ptr::null_mut());
                    return done;
                }
            }
            if !any {
                *index = usize::MAX;
                return Ok(());
            }
            let (woken, in_time) = sleep(board, until);
            board = woken;
            if !in_time {
                return Err(late(count));
            }
        }
    })
}
