//! Whether the job goes on, for all links of a worker: its calls, and the threads that work for them.
//!
//! | | calls | proxies, links' threads, what has begun to be submitted |
//! |---|---|---|
//! | running | go on | go on |
//! | closing: the worker is leaving | are refused, and stop waiting | go on, until what was submitted is taken |
//! | over: it has left, or the job has failed | are refused | end |

use super::link::{Untold, lock};
use crate::notes;
use crate::worker::Error;
use penstock_fabric::doorbell::Bell;
use penstock_fabric::forked::Maker;
use penstock_fabric::layout::page;
use penstock_fabric::region::Mapping;
use penstock_fabric::sync::Ordering;
use penstock_proto::error::JobFailure;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::ThreadId;

const RUNNING: u8 = 0;
const CLOSING: u8 = 1;
const OVER: u8 = 2;

/// Asks whether the caller wants to stop waiting.
type Interrupt = Box<dyn Fn() -> bool + Send + Sync>;

/// What all links of a job share.
#[derive(Default)]
pub(in crate::worker) struct Fate {
    phase: AtomicU8,
    /// A child of `fork` has a copy of all this, and must not use it: the other threads are not there, whatever they held stays
    /// locked, and the memory and the connections are its parent's.
    maker: Maker,
    failure: Mutex<Option<JobFailure>>,
    /// The threads in which a call has failed with it.
    told: Mutex<Vec<ThreadId>>,
    /// The pages to ring when something changes.
    pages: Mutex<Vec<Arc<Mapping>>>,
    /// Where the launcher of the job's processes on this host notes which process is lost.
    notes: OnceLock<Vec<PathBuf>>,
    /// Whether this worker has joined all servers.
    joined: AtomicBool,
    /// This worker's clock, and whether all shards know it.
    pub(in crate::worker) untold: Untold,
    /// Set once. Not under a lock: calling it waits for Python's interpreter, and runs signal handlers.
    interrupt: OnceLock<Interrupt>,
}

impl Fate {
    /// Whether a call may go on. An error is for the caller of the library: it counts as told.
    pub(in crate::worker) fn check(&self) -> Result<(), Error> {
        if self.is_abandoned() {
            return Err(Error::Forked);
        }
        match self.phase.load(Ordering::Acquire) {
            RUNNING => Ok(()),
            _ => Err(self.tell()),
        }
    }

    /// Whether what has begun, or what is left to do on leaving, may go on.
    pub(in crate::worker) fn stands(&self) -> Result<(), Error> {
        match self.phase.load(Ordering::Acquire) {
            OVER => Err(self.tell()),
            _ => Ok(()),
        }
    }

    fn tell(&self) -> Error {
        if self.is_abandoned() {
            // The lock may have been copied while it was held.
            return Error::Forked;
        }
        let Some(failure) = self.failure() else { return Error::Closed };
        let me = std::thread::current().id();
        let mut told = lock(&self.told);
        if !told.contains(&me) {
            told.push(me);
        }
        Error::Failed(failure)
    }

    /// Whether calls are refused.
    pub(in crate::worker) fn is_closed(&self) -> bool {
        self.phase.load(Ordering::Acquire) != RUNNING
    }

    /// Whether the threads are to end.
    pub(in crate::worker) fn is_over(&self) -> bool {
        self.phase.load(Ordering::Acquire) == OVER
    }

    /// Why the job has failed, if it has.
    pub(in crate::worker) fn failure(&self) -> Option<JobFailure> {
        lock(&self.failure).clone()
    }

    /// Whether a call of this thread has failed with the job's failure. What another thread was told may have been hidden by
    /// the end of that thread.
    pub(in crate::worker) fn was_told(&self) -> bool {
        lock(&self.told).contains(&std::thread::current().id())
    }

    /// In a forked child: the job is the parent's, whose pages are not rung.
    pub(in crate::worker) fn abandon(&self) {
        self.phase.store(OVER, Ordering::Release);
    }

    /// Whether this is a copy in a forked child.
    #[inline]
    pub(in crate::worker) fn is_abandoned(&self) -> bool {
        !self.maker.is_here()
    }

    pub(in crate::worker) fn fail(&self, failure: JobFailure) {
        lock(&self.failure).get_or_insert(failure);
        self.end();
    }

    /// This worker begins to leave: calls are refused, and those that wait hear of it.
    pub(in crate::worker) fn close(&self) {
        let _ = self.phase.compare_exchange(RUNNING, CLOSING, Ordering::AcqRel, Ordering::Acquire);
        self.ring();
    }

    pub(in crate::worker) fn end(&self) {
        self.phase.store(OVER, Ordering::Release);
        self.ring();
    }

    fn ring(&self) {
        for page in lock(&self.pages).iter() {
            page.at::<Bell>(page::BELL).ring();
        }
    }

    /// From now on the bell of this page is rung too.
    pub(in crate::worker) fn rings(&self, page: Arc<Mapping>) {
        lock(&self.pages).push(page);
    }

    pub(in crate::worker) fn on_interrupt(&self, interrupt: Interrupt) {
        let _ = self.interrupt.set(interrupt);
    }

    /// The launcher of the job's processes may note there which process is lost: a server that has ended tells no worker.
    pub(in crate::worker) fn expect_notes(&self, paths: Vec<PathBuf>) {
        let _ = self.notes.set(paths);
    }

    /// From now on the servers say which process is lost; the notes count only for a worker that does not reach one.
    pub(in crate::worker) fn mark_joined(&self) {
        self.joined.store(true, Ordering::Release);
    }

    /// Reads the notes, which may say that the job has failed; whether it has.
    pub(in crate::worker) fn read_notes(&self) -> bool {
        if let Some(failure) =
            self.notes.get().and_then(|paths| paths.iter().find_map(|path| notes::read(path)))
        {
            self.fail(failure);
        }
        lock(&self.failure).is_some()
    }

    /// Whether a call may go on waiting: the job goes on, and the caller was not interrupted.
    pub(in crate::worker) fn look(&self) -> Result<(), Error> {
        if !self.joined.load(Ordering::Acquire) {
            self.read_notes();
        }
        self.check()?;
        self.check_interrupt()
    }

    pub(in crate::worker) fn check_interrupt(&self) -> Result<(), Error> {
        match self.interrupt.get() {
            Some(interrupt) if interrupt() => Err(Error::Interrupted),
            _ => Ok(()),
        }
    }
}
