//! Doorbells: how a thread that has nothing to do sleeps, and is woken without a system call while it is awake.
//!
//! A thread that is about to sleep says so in a flag, then looks once more; a thread that has brought something looks at the
//! flag. Between its store and its look each side has a sequentially consistent fence, so at least one of them sees the other:
//!
//! - **D-1** No thread sleeps through an event without being woken.
//!
//! Two directions, because the rights differ. A shard sleeps on one descriptor (eventfd) for each worker, so that workers share
//! nothing writable; its flag stands among the server's flags, which workers only read. A worker sleeps on a futex in its own
//! page; a hostile worker can make the shard ring for nothing, at its own job's cost.

use crate::sync::{Among, AtomicU32, Futex, Ordering, fence};
use std::time::Duration;

/// One of the flags: whether a shard sleeps. Written by the shard, read by workers.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Sleeping(AtomicU32);

impl Sleeping {
    /// Awake.
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// The shard is about to sleep. It must look at everything once more before it does.
    pub fn announce(&self) {
        self.0.store(1, Ordering::Relaxed);
        // Pairs with the fence in `published`: D-1.
        fence(Ordering::SeqCst);
    }

    /// The shard is awake.
    pub fn awake(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Whether the shard sleeps, for a thread that has just brought it something and called [`published`].
    pub fn must_ring(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

impl Default for Sleeping {
    fn default() -> Self {
        Self::new()
    }
}

/// In a worker's page: what it waits for, and the futex word it sleeps on.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Bell {
    /// Counts rings; the futex word.
    rings: Futex,
    /// 0: no thread waits; n + 1: for tensor n; [`single_chunks`] of that: for some of its chunks; [`ANYTHING`]: for anything.
    waits_for: AtomicU32,
}

/// The worker waits for more than one thing.
pub const ANYTHING: u32 = u32::MAX;

/// What a thread waits for that waits for some chunks of a tensor, each by itself. `tensor`: its number + 1, which is what one waits
/// for that has to have all of them: it is not woken for each.
pub const fn single_chunks(tensor: u32) -> u32 {
    tensor | 1 << 31
}

impl Bell {
    /// No thread waits.
    pub fn new() -> Self {
        Self { rings: Futex::new(0), waits_for: AtomicU32::new(0) }
    }

    /// The worker is about to sleep until something happens to `what` (a tensor's number + 1, [`single_chunks`] of that, or
    /// [`ANYTHING`]). Returns the count to sleep on. It must look once more before it does.
    pub fn announce(&self, what: u32) -> u32 {
        let rings = self.rings.load(Ordering::Acquire);
        self.waits_for.store(what, Ordering::Relaxed);
        // Pairs with the fence in `published`: D-1.
        fence(Ordering::SeqCst);
        rings
    }

    /// The worker no longer waits.
    pub fn awake(&self) {
        self.waits_for.store(0, Ordering::Relaxed);
    }

    /// Whether the worker waits for `what`, for a thread that has just published it and called [`published`].
    pub fn must_ring(&self, what: u32) -> bool {
        let waits_for = self.waits_for.load(Ordering::Relaxed);
        waits_for == what || waits_for == ANYTHING
    }

    /// Whether the worker waits for anything at all.
    pub fn waits(&self) -> bool {
        self.waits_for.load(Ordering::Relaxed) != 0
    }

    /// Whether the worker waits for some chunks of any tensor, or for anything.
    pub fn waits_singly(&self) -> bool {
        self.waits_for.load(Ordering::Relaxed) >= single_chunks(0)
    }

    /// Counts a ring, so that a worker that is just falling asleep stays awake.
    fn count_ring(&self) {
        self.rings.fetch_add(1, Ordering::Release);
    }

    /// Sleeps until a ring after the one counted in `rings`, at most for `longest`. May return early.
    pub fn sleep(&self, rings: u32, longest: Duration) {
        self.rings.sleep(Among::Processes, rings, longest);
    }

    /// Wakes every thread that sleeps on the bell.
    pub fn ring(&self) {
        self.count_ring();
        self.rings.wake_all(Among::Processes);
    }
}

impl Default for Bell {
    fn default() -> Self {
        Self::new()
    }
}

/// To be called once between bringing or publishing something and asking any number of shards or bells whether they must be
/// rung: it waits until all that was stored has left this core.
pub fn published() {
    // Pairs with the fences in `announce`: D-1.
    fence(Ordering::SeqCst);
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    #[test]
    fn a_shard_never_sleeps_over_a_submission_without_being_rung_for() {
        let outcomes = std::sync::Arc::new(Mutex::new(BTreeSet::new()));
        let seen = std::sync::Arc::clone(&outcomes);
        loom::model(move || {
            let shared = Arc::new((Sleeping::new(), AtomicU64::new(0)));
            let worker = Arc::clone(&shared);
            let writer = loom::thread::spawn(move || {
                worker.1.store(1, Ordering::Release);
                published();
                worker.0.must_ring()
            });
            shared.0.announce();
            let found = shared.1.load(Ordering::Acquire) == 1;
            let rang = writer.join().unwrap();
            assert!(found || rang, "D-1");
            seen.lock().unwrap().insert((found, rang));
        });
        assert_eq!(*outcomes.lock().unwrap(), BTreeSet::from([(false, true), (true, false), (true, true)]));
    }

    #[test]
    fn a_worker_never_sleeps_over_a_publication_without_being_rung_for() {
        let outcomes = std::sync::Arc::new(Mutex::new(BTreeSet::new()));
        let seen = std::sync::Arc::clone(&outcomes);
        loom::model(move || {
            let shared = Arc::new((Bell::new(), AtomicU64::new(0)));
            let shard = Arc::clone(&shared);
            let writer = loom::thread::spawn(move || {
                shard.1.store(1, Ordering::Release);
                published();
                let rings = shard.0.must_ring(7);
                if rings {
                    shard.0.ring();
                }
                rings
            });
            let count = shared.0.announce(7);
            let found = shared.1.load(Ordering::Acquire) == 1;
            if !found {
                // Time does not pass in a model: a thread that is not rung for sleeps for good, which loom calls a
                // deadlock (D-1).
                shared.0.sleep(count, Duration::from_secs(60));
            }
            let rang = writer.join().unwrap();
            seen.lock().unwrap().insert((found, rang));
        });
        assert_eq!(*outcomes.lock().unwrap(), BTreeSet::from([(false, true), (true, false), (true, true)]));
    }
}
