//! What may block: only a thread that has let go of the interpreter.
//!
//! Waits of the core ask now and then for pending signals, and for that they need the interpreter. Many of them hold a lock
//! meanwhile (a push holds its tensor's position, every wait the list of links). So a thread that took such a lock with the
//! interpreter attached would wait for a thread that waits for it, for ever. The rule, which the types enforce:
//!
//! - what may block stands in a [`Core`], which gives it out only for a [`Detached`], which only this file makes;
//! - [`Core::quick`] gives an attached thread what takes no lock that is held across a wait: the methods of [`Quick`];
//! - a [`Core`] is dropped detached too, since dropping joins threads;
//! - the standard locks, joins, and other ways to attach and detach are disallowed in this crate outside this file
//!   (`clippy.toml` beside `Cargo.toml`).
//!
//! A signal handler runs inside the wait that it interrupts, under the locks of that wait. A call of the core that it makes is
//! refused ([`within`]); a job that it closes is closed when the wait has ended ([`close_later`]). Closing itself is not ended by
//! that, since a job that is left in the middle of leaving has failed for all: only what a handler raises ends it.

use crate::error::{bad_argument, raise};
use penstock::worker::{Error, Job};
use pyo3::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

/// Proof that this thread does not hold the interpreter.
pub(crate) struct Detached(());

/// A part of the core that may block.
pub(crate) struct Core<T: Send>(Option<T>);

/// What of the core an attached thread may use: see the methods, one block for each type.
pub(crate) struct Quick<'a, T>(pub(crate) &'a T);

/// A job to be closed, and why if it failed.
type Closing = (Arc<Core<Job>>, Option<String>);

/// Whether the interpreter is about to end, or has ended: waits go on without it.
static ENDED: AtomicBool = AtomicBool::new(false);
/// The process, and above that how many of its threads are in the middle of a wait and look whether it is to end. Not a lock: a
/// child of `fork` may have a job of its own, and it has a copy of this, but none of the threads that it counts.
static LOOKING: AtomicU64 = AtomicU64::new(0);
/// Longest wait for such threads when the interpreter is about to end: one that runs a signal handler may take its time.
const LAST_LOOKS: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// This thread is inside a call of the core.
const WITHIN: u8 = 1;
/// A signal handler raised, or closed a job, and Python has not heard it.
const UNHEARD: u8 = 2;

thread_local! {
    /// The two above. All that a call looks at in which nothing happens: each look at what belongs to a thread costs nanoseconds.
    static HERE: Cell<u8> = const { Cell::new(0) };
    /// What a signal handler raised meanwhile.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
    /// Jobs that a signal handler closed meanwhile.
    static TO_CLOSE: RefCell<VecDeque<Closing>> = const { RefCell::new(VecDeque::new()) };
    /// The job that this thread closes right now. Compared, never followed.
    static CLOSES: Cell<*const Core<Job>> = const { Cell::new(ptr::null()) };
}

impl<T: Send> Core<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Some(value))
    }

    fn value(&self) -> &T {
        self.0.as_ref().expect("it is taken only when it is dropped")
    }

    /// All of it.
    pub(crate) fn on(&self, _: &Detached) -> &T {
        self.value()
    }

    /// What does not block.
    pub(crate) fn quick(&self) -> Quick<'_, T> {
        Quick(self.value())
    }
}

impl<T: Send> Drop for Core<T> {
    #[expect(clippy::disallowed_methods, reason = "only this file may")]
    fn drop(&mut self) {
        let value = self.0.take();
        // Without an interpreter there is nothing to let go of, and the closure is dropped with the value.
        let _ = Python::try_attach(move |py| py.detach(move || drop(value)));
    }
}

impl<T> Core<Mutex<T>>
where
    Mutex<T>: Send,
{
    /// The inside, for one thread at a time.
    #[expect(clippy::disallowed_methods, reason = "only this file may")]
    pub(crate) fn lock(&self, detached: &Detached) -> MutexGuard<'_, T> {
        self.on(detached).lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Sync> Core<RwLock<T>>
where
    RwLock<T>: Send,
{
    /// The inside, beside others that look.
    #[expect(clippy::disallowed_methods, reason = "only this file may")]
    pub(crate) fn read(&self, detached: &Detached) -> RwLockReadGuard<'_, T> {
        self.on(detached).read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The inside, alone.
    #[expect(clippy::disallowed_methods, reason = "only this file may")]
    pub(crate) fn write(&self, detached: &Detached) -> RwLockWriteGuard<'_, T> {
        self.on(detached).write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// While it lives, this thread is inside a call of the core.
struct Inside<'a>(&'a Cell<u8>);

impl<'a> Inside<'a> {
    fn new(here: &'a Cell<u8>) -> Self {
        here.set(here.get() | WITHIN);
        Self(here)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() & !WITHIN);
    }
}

/// Notes that there is something which Python has to hear.
fn unheard() {
    HERE.set(HERE.get() | UNHEARD);
}

/// While it lives, this thread closes a job.
struct Closes;

impl Closes {
    fn new(job: &Arc<Core<Job>>) -> Self {
        CLOSES.set(Arc::as_ptr(job));
        Self
    }
}

impl Drop for Closes {
    fn drop(&mut self) {
        CLOSES.set(ptr::null());
    }
}

/// A look at the interpreter in the middle of a wait, while the wait's locks are held. An interpreter that ends stops for ever
/// any thread that comes back to it, so no look begins once that is near, and those that have begun are waited for.
struct Look {
    /// Whose: a signal handler that runs in it may fork.
    process: u32,
}

impl Look {
    fn new() -> Option<Self> {
        let look = Self { process: std::process::id() };
        look.count(|looking| looking + 1);
        // Either this sees that the end is near, or the thread that ends it sees this look: both are in one order with what
        // they write first.
        (!ENDED.load(Ordering::SeqCst)).then_some(look)
    }

    /// Of this process.
    fn looking() -> u64 {
        let looking = LOOKING.load(Ordering::SeqCst);
        if looking as u32 == std::process::id() { looking >> 32 } else { 0 }
    }

    fn count(&self, change: impl Fn(u64) -> u64) {
        let process = u64::from(self.process);
        let _ = LOOKING.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |looking| {
            let here = if looking as u32 == self.process { looking >> 32 } else { 0 };
            Some(change(here) << 32 | process)
        });
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            self.count(|looking| looking - 1);
        }
    }
}

/// From here on no wait looks at the interpreter, which is about to end; so no thread is stopped in the middle of one.
#[expect(clippy::disallowed_methods, reason = "only this file may")]
pub(crate) fn about_to_end(py: Python<'_>) {
    py.detach(|| {
        ENDED.store(true, Ordering::SeqCst);
        let began = Instant::now();
        while Look::looking() > 0 && began.elapsed() < LAST_LOOKS {
            std::thread::sleep(LOOK_AGAIN);
        }
    });
}

/// Asked by every wait now and then: runs pending signal handlers; whether the wait is to end.
#[expect(clippy::disallowed_methods, reason = "only this file may")]
pub(crate) fn interrupted() -> bool {
    // While something is dropped there is nowhere to report what a handler raises: it runs afterwards.
    if !within() {
        return false;
    }
    let look = |py: Python<'_>| match py.check_signals() {
        Ok(()) => CLOSES.get().is_null() && TO_CLOSE.with_borrow(|jobs| !jobs.is_empty()),
        Err(error) => {
            // Outside the borrow: letting go of errors may run any code of Python's.
            let error = behind(py, error, RAISED.take());
            RAISED.set(Some(error));
            unheard();
            true
        }
    };
    let Some(_look) = Look::new() else { return false };
    // An interpreter that is ending gives no thread back to Python.
    Python::try_attach(look).unwrap_or(true)
}

/// Runs `work` with the interpreter, in a thread that is inside nothing of ours: what it calls of the core lets go again. `None`
/// where the interpreter is not there (any more).
#[expect(clippy::disallowed_methods, reason = "only this file may")]
pub(crate) fn attached<T>(work: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    Python::try_attach(work)
}

/// Asked by long waits: whether nothing else can happen in this process. Any other thread of Python's could use the job, whether it
/// has before or not; and what an alarm is set for may end the wait.
#[expect(clippy::disallowed_methods, reason = "only this file may")]
pub(crate) fn alone() -> bool {
    let look = |py: Python<'_>| -> PyResult<bool> {
        let threads = py.import("sys")?.call_method0("_current_frames")?.len()?;
        let signal = py.import("signal")?;
        let alarm = signal.call_method1("getitimer", (signal.getattr("ITIMER_REAL")?,))?;
        let (left, _): (f64, f64) = alarm.extract()?;
        Ok(threads <= 1 && left == 0.0)
    };
    let Some(_look) = Look::new() else { return false };
    Python::try_attach(|py| look(py).unwrap_or(false)).unwrap_or(false)
}

/// Runs `work` when the interpreter has ended, for good: there is nothing to let go of, and no signal handler.
pub(crate) fn at_exit<T>(work: impl FnOnce(&Detached) -> T) -> T {
    ENDED.store(true, Ordering::Relaxed);
    work(&Detached(()))
}

/// Whether this thread is inside a call of the core, and thus runs a signal handler.
pub(crate) fn within() -> bool {
    HERE.get() & WITHIN != 0
}

/// Closes a job as soon as the call that this thread is inside has ended; nothing more if that is what this thread does already.
pub(crate) fn close_later(job: Arc<Core<Job>>, failed: Option<String>) {
    if ptr::eq(CLOSES.get(), Arc::as_ptr(&job)) {
        return;
    }
    TO_CLOSE.with_borrow_mut(|jobs| {
        if !jobs.iter().any(|(other, _)| Arc::ptr_eq(other, &job)) {
            jobs.push_back((job, failed));
        }
    });
    unheard();
}

/// Runs `work`, which closes the job.
pub(crate) fn closing<T>(job: &Arc<Core<Job>>, free: &Detached, work: impl FnOnce(&Job) -> T) -> T {
    let _closes = Closes::new(job);
    work(job.on(free))
}

/// `error`, and what came before it, as when a `finally` raises. One that has a history keeps it.
fn behind(py: Python<'_>, error: PyErr, before: Option<PyErr>) -> PyErr {
    if let Some(before) = before.filter(|before| !before.value(py).is(error.value(py)))
        && error.context(py).is_none()
    {
        error.set_context(py, Some(before));
    }
    error
}

/// Runs `work` without the interpreter; refuses to do so inside another call.
pub(crate) fn let_go<T: Send>(py: Python<'_>, work: impl FnOnce(&Detached) -> T + Send) -> PyResult<T> {
    let_go_then(py, work, Ok)
}

/// The same; what came of it goes straight to `then`: a result that may be an `Error` is large, and each hand-over would copy it.
#[inline]
#[expect(clippy::disallowed_methods, reason = "only this file may")]
fn let_go_then<R: Send, T>(
    py: Python<'_>,
    work: impl FnOnce(&Detached) -> R + Send,
    then: impl FnOnce(R) -> PyResult<T>,
) -> PyResult<T> {
    HERE.with(|here| {
        if here.get() & WITHIN != 0 {
            return Err(inside_another(py));
        }
        let inside = Inside::new(here);
        let result = py.detach(|| work(&Detached(())));
        drop(inside);
        // Even if the work went on regardless: the handler raised, and Python has to be told.
        if here.get() & UNHEARD != 0 {
            hear(py, here)?;
        }
        then(result)
    })
}

#[cold]
fn inside_another(py: Python<'_>) -> PyErr {
    let message = "a signal handler called penstock while this thread waits inside another call of it";
    let hint = "let the handler raise an exception, set a flag, or call job.close()";
    bad_argument(py, "PenstockError", message, Some(hint))
}

/// Does what signal handlers left to do in a call, and raises what they raised.
#[cold]
#[expect(clippy::disallowed_methods, reason = "only this file may")]
fn hear(py: Python<'_>, here: &Cell<u8>) -> PyResult<()> {
    let mut told = RAISED.take();
    while let Some((job, failed)) = TO_CLOSE.with_borrow_mut(VecDeque::pop_front) {
        let closed = {
            let _inside = Inside::new(here);
            py.detach(|| closing(&job, &Detached(()), |job| job.close(failed)))
        };
        let unclean = closed.err().filter(|error| !matches!(error, Error::Interrupted));
        for error in [RAISED.take(), unclean.map(|error| raise(py, &error))].into_iter().flatten() {
            told = Some(behind(py, error, told));
        }
    }
    here.set(here.get() & !UNHEARD);
    told.map_or(Ok(()), Err)
}

/// Runs `work` without the interpreter and turns its error into Python's.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&Detached) -> Result<T, Error> + Send,
) -> PyResult<T> {
    let_go_then(py, work, |result| finish(py, result))
}

/// Turns a call's error into Python's.
#[inline]
pub(crate) fn finish<T>(py: Python<'_>, result: Result<T, Error>) -> PyResult<T> {
    match result {
        Ok(value) => Ok(value),
        Err(error) => Err(failed(py, error)),
    }
}

#[cold]
fn failed(py: Python<'_>, error: Error) -> PyErr {
    match error {
        // Interrupted, but nothing was raised: a handler closed a job.
        Error::Interrupted => raise(py, &Error::Closed),
        error => raise(py, &error),
    }
}
