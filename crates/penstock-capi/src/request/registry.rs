//! The registry: what is known of every request, under one lock.
//!
//! A child of `fork` has a registry of its own: the parent's may have been copied while it was locked, and its threads are not there.
//! Numbers continue from where the parent's were at the fork, so a handle of the parent's is recognized as such.

use super::threads::Pools;
use crate::boundary::Told;
use crate::status::Failure;
use penstock::worker::Error;
use penstock_fabric::forked::Maker;
use std::collections::{BTreeMap, VecDeque};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Carries a request out, at most until then; `None`: it is not done, and may be continued.
pub(super) type Work = Box<dyn FnMut(Option<Instant>) -> Option<Result<(), Failure>> + Send>;

pub(super) enum State {
    /// It stands in a queue.
    Queued(Work),
    Running,
    Done(Result<(), Failure>),
}

/// How many were started, how many of those are done, and how many have failed and were not reported.
#[derive(Default)]
pub(super) struct Count {
    started: AtomicU64,
    done: AtomicU64,
    failed: AtomicU64,
}

impl Count {
    pub(super) fn started(&self) -> u64 {
        self.started.load(Ordering::Relaxed)
    }

    /// How many of the first `started` are not done: where they are done in order, or where these are all.
    pub(super) fn left(&self, started: u64) -> u64 {
        // Pairs with the release in `Entry::finish`: what they did is seen behind it.
        started.saturating_sub(self.done.load(Ordering::Acquire))
    }

    /// Whether some have failed and were not reported. Counted under the registry's lock; [`Count::left`] comes first, behind
    /// which those that are done are seen to have failed.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed) > 0
    }
}

pub(super) struct Entry {
    pub(super) job: u64,
    /// Whether the program knows that the job has failed.
    told: Arc<Told>,
    pub(super) state: State,
    /// A get: the order does not matter, so a thread that waits for it may carry it out.
    pub(super) free: bool,
    /// Whether it stands in its pool's queue; it may, although another thread has taken it.
    pub(super) queued: bool,
    /// Whether it has failed and was not reported.
    untold: bool,
    /// Those for the same tensor or table, and the job's pushes if it is one.
    counts: Vec<Arc<Count>>,
}

impl Entry {
    pub(super) fn new(job: u64, told: Arc<Told>, work: Work, free: bool, counts: Vec<Arc<Count>>) -> Self {
        for count in &counts {
            count.started.fetch_add(1, Ordering::Relaxed);
        }
        Self { job, told, state: State::Queued(work), free, queued: free, untold: false, counts }
    }

    pub(super) fn done(job: u64, told: Arc<Told>) -> Self {
        let state = State::Done(Ok(()));
        Self { job, told, state, free: true, queued: false, untold: false, counts: Vec::new() }
    }

    /// Reports what became of it.
    fn tell(&mut self) -> &State {
        if std::mem::take(&mut self.untold) {
            for count in &self.counts {
                count.failed.fetch_sub(1, Ordering::Relaxed);
            }
        }
        if let State::Done(Err(failure)) = &self.state {
            self.told.hear(failure);
        }
        &self.state
    }

    /// A get that no thread has taken up.
    pub(super) fn waits(&self) -> bool {
        self.free && matches!(self.state, State::Queued(_))
    }

    /// Takes it up, if no thread has.
    pub(super) fn begin(&mut self) -> Option<Work> {
        match std::mem::replace(&mut self.state, State::Running) {
            State::Queued(work) => Some(work),
            other => {
                self.state = other;
                None
            }
        }
    }

    /// It is done; what stood there before is returned.
    pub(super) fn finish(&mut self, result: Result<(), Failure>) -> State {
        self.untold = result.is_err();
        for count in &self.counts {
            count.failed.fetch_add(self.untold.into(), Ordering::Relaxed);
            count.done.fetch_add(1, Ordering::Release);
        }
        std::mem::replace(&mut self.state, State::Done(result))
    }
}

#[derive(Default)]
pub(super) struct Registry {
    pub(super) requests: BTreeMap<u64, Entry>,
    pub(super) pools: BTreeMap<u64, Pools>,
    /// By tensor: what was started and not taken up. One that is here has a thread, or will have.
    pub(super) lines: BTreeMap<u64, VecDeque<u64>>,
}

/// The registry, and what is rung beside it.
pub(super) struct Desk {
    maker: Maker,
    /// The last number of a forefather of this process.
    before: u64,
    registry: Mutex<Registry>,
    /// A request is done, or one that was taken up is free again.
    pub(super) changed: Condvar,
    /// There is work, or a job is over.
    pub(super) work: Condvar,
}

static DESK: AtomicPtr<Desk> = AtomicPtr::new(ptr::null_mut());
static LAST: AtomicU64 = AtomicU64::new(0);

/// A number that this process and its forefathers have not used.
pub(super) fn number() -> u64 {
    desk(); // what is numbered before a process has a desk is its forefathers'
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// This process's.
pub(super) fn desk() -> &'static Desk {
    // Pairs with the release below: a thread that sees the address sees what stands there.
    let found = DESK.load(Ordering::Acquire);
    // SAFETY: what is put there is never freed, and never written to but through its locks.
    if let Some(desk) = unsafe { found.as_ref() }.filter(|desk| desk.maker.is_here()) {
        return desk;
    }
    let (registry, changed, work) = (Mutex::default(), Condvar::new(), Condvar::new());
    let desk = Desk { maker: Maker::this(), before: LAST.load(Ordering::Relaxed), registry, changed, work };
    let made = Box::into_raw(Box::new(desk));
    match DESK.compare_exchange(found, made, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: as above; a parent's desk is left as it is.
        Ok(_) => unsafe { &*made },
        Err(other) => {
            // SAFETY: it came from `Box::into_raw` above, and no other thread has seen it.
            drop(unsafe { Box::from_raw(made) });
            // SAFETY: as above; another thread of this process has put it there.
            unsafe { &*other }
        }
    }
}

pub(super) fn registry() -> MutexGuard<'static, Registry> {
    desk().registry.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a request was started by the process that this one was forked from.
pub(super) fn check_forked(id: u64) -> Result<(), Failure> {
    if id <= desk().before { Err(Error::Forked.into()) } else { Ok(()) }
}

/// Sleeps until something is done, at most until `until`; `false` if that has passed.
pub(super) fn sleep(
    registry: MutexGuard<'static, Registry>,
    until: Option<Instant>,
) -> (MutexGuard<'static, Registry>, bool) {
    let changed = &desk().changed;
    let Some(until) = until else {
        return (changed.wait(registry).unwrap_or_else(PoisonError::into_inner), true);
    };
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return (registry, false);
    }
    (changed.wait_timeout(registry, left).unwrap_or_else(PoisonError::into_inner).0, true)
}

/// Waits until none is `left`; returns how many are, if that takes too long.
pub(super) fn wait_for_none(left: impl Fn() -> u64, until: Instant) -> Result<(), u64> {
    let mut registry = registry();
    loop {
        let now = left();
        if now == 0 {
            return Ok(());
        }
        let (woken, in_time) = sleep(registry, Some(until));
        registry = woken;
        if !in_time {
            return Err(now);
        }
    }
}

impl Registry {
    /// Takes a request out of the registry, if it is done.
    pub(super) fn take(&mut self, id: u64) -> Option<Result<(), Failure>> {
        if !matches!(self.requests.get(&id)?.state, State::Done(_)) {
            return None;
        }
        let mut entry = self.requests.remove(&id)?;
        entry.tell();
        match entry.state {
            State::Done(result) => Some(result),
            _ => None,
        }
    }

    /// Why the first one failed, of those that this count counts and that were not reported; now it is.
    pub(super) fn tell_failure(&mut self, counted: &Arc<Count>) -> Option<Failure> {
        let counts = |entry: &Entry| entry.counts.iter().any(|count| Arc::ptr_eq(count, counted));
        match self.requests.values_mut().find(|entry| entry.untold && counts(entry))?.tell() {
            State::Done(result) => result.clone().err(),
            _ => None,
        }
    }

    /// Whether a request is a get that no thread has taken up.
    pub(super) fn waits(&self, id: u64) -> bool {
        self.requests.get(&id).is_some_and(Entry::waits)
    }
}
