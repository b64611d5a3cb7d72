//! Readers that must wait sleep on a line of the partition's waiters' page, which says what they wait for; the writer wakes those
//! whose row has come. While no reader sleeps a set costs the writer one look.
//!
//! The page is writable by all readers of the partition, all of one job. A reader that writes lies into it can make the writer
//! ring for nothing, or take a line away from another reader, which then looks again by itself after a short sleep.
//!
//! Each side has a sequentially consistent fence between its store and its look (I-4), as in [`crate::doorbell`]. The writer
//! takes the summary with a swap, so that it sees the line of the reader that set it.

use crate::sync::{Among, AtomicU32, AtomicU64, Futex, Ordering, fence};
use std::time::Duration;

/// Lines of a page: more readers than this that sleep at once on one host wake up by themselves.
pub const LINES: usize = 63;

/// Head of the page.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Summary {
    /// Whether a line may be armed.
    armed: AtomicU32,
    /// Whether the follower, which passes rows on, sleeps.
    follower: AtomicU32,
}

/// One reader that sleeps.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Line {
    owned: AtomicU32,
    armed: AtomicU32,
    /// Counts rings; the futex word.
    pub(super) rings: Futex,
    slot: AtomicU32,
    version: AtomicU64,
}

/// What a line waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// The row's slot.
    pub slot: u32,
    /// The version that it must reach.
    pub version: u64,
}

impl Summary {
    /// No reader sleeps.
    pub fn new() -> Self {
        Self { armed: AtomicU32::new(0), follower: AtomicU32::new(0) }
    }

    /// For a reader: it is about to sleep, after which it must look once more. Returns the count to sleep on.
    pub fn announce(&self, line: &Line, wanted: Wanted) -> u32 {
        let rings = line.rings.load(Ordering::Acquire);
        line.slot.store(wanted.slot, Ordering::Relaxed);
        line.version.store(wanted.version, Ordering::Relaxed);
        line.armed.store(1, Ordering::Release);
        // Pairs with the swap in `take`: the writer that takes it sees the line.
        self.armed.store(1, Ordering::Release);
        // Pairs with the fence in `anyone`: I-4.
        fence(Ordering::SeqCst);
        rings
    }

    /// For the writer, after publishing: whether a reader or the follower may have to be woken.
    fn anyone(&self) -> bool {
        // Pairs with the fences in `announce` and `announce_follower`: I-4.
        fence(Ordering::SeqCst);
        self.armed.load(Ordering::Relaxed) != 0 || self.follower.load(Ordering::Relaxed) != 0
    }

    /// For the writer, after publishing: those of `lines` that are `served` are woken; whether the follower must be rung.
    pub fn published<'a>(
        &self,
        lines: impl Iterator<Item = &'a Line>,
        served: impl Fn(Wanted) -> bool,
        wake: impl FnMut(&'a Line),
    ) -> bool {
        if !self.anyone() {
            return false;
        }
        self.wake(lines, served, wake);
        self.take_follower()
    }

    /// For the writer, if there may be one to wake: takes the summary. Those of `lines` that are `served` are disarmed and
    /// passed to `wake`.
    fn wake<'a>(
        &self,
        lines: impl Iterator<Item = &'a Line>,
        served: impl Fn(Wanted) -> bool,
        mut wake: impl FnMut(&'a Line),
    ) {
        if self.armed.load(Ordering::Relaxed) == 0 || self.armed.swap(0, Ordering::AcqRel) == 0 {
            return;
        }
        let mut left = false;
        for line in lines {
            if line.armed.load(Ordering::Acquire) == 0 {
                continue;
            }
            let slot = line.slot.load(Ordering::Relaxed);
            if served(Wanted { slot, version: line.version.load(Ordering::Relaxed) }) {
                line.armed.store(0, Ordering::Relaxed);
                line.rings.fetch_add(1, Ordering::Release);
                wake(line);
            } else {
                left = true;
            }
        }
        if left {
            self.armed.store(1, Ordering::Relaxed);
        }
    }

    /// For the follower: it is about to sleep. [`announce_then_look`] calls this.
    pub fn announce_follower(&self, _: &Announcing) {
        self.follower.store(1, Ordering::Relaxed);
        // Pairs with the fence in `anyone`: I-4.
        fence(Ordering::SeqCst);
    }

    /// For the writer: whether the follower must be rung; asked once for each sleep.
    fn take_follower(&self) -> bool {
        self.follower.load(Ordering::Relaxed) != 0 && self.follower.swap(0, Ordering::AcqRel) != 0
    }
}

/// Shows that a look follows. Nobody else makes one.
#[derive(Debug)]
pub struct Announcing(());

/// For whoever follows rows, before it sleeps or leaves them to a thread that does: `announce`s that, for all that it follows, and
/// only then takes the last `look`. Of what another thread sets, the look finds what was set before, and that thread rings for
/// the rest. The other way round, what it sets in between would be neither (I-4).
pub fn announce_then_look<F: ?Sized, T>(
    followed: &mut F,
    announce: impl FnOnce(&mut F, &Announcing),
    look: impl FnOnce(&mut F) -> T,
) -> T {
    announce(followed, &Announcing(()));
    look(followed)
}

impl Default for Summary {
    fn default() -> Self {
        Self::new()
    }
}

impl Line {
    /// No reader's.
    pub fn new() -> Self {
        let zero = || AtomicU32::new(0);
        Self { owned: zero(), armed: zero(), rings: Futex::new(0), slot: zero(), version: AtomicU64::new(0) }
    }

    /// For a reader: takes the line if it is free.
    pub fn claim(&self) -> bool {
        self.owned.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// For its reader: gives it back.
    pub fn release(&self) {
        self.armed.store(0, Ordering::Relaxed);
        self.owned.store(0, Ordering::Release);
    }

    /// For its reader: sleeps until a ring after the one counted in `rings`, at most for `longest`. May return early.
    pub fn sleep(&self, rings: u32, longest: Duration) {
        self.rings.sleep(Among::Processes, rings, longest);
    }

    /// For the writer: wakes the reader of a line that was served.
    pub fn ring(&self) {
        self.rings.wake_all(Among::Processes);
    }
}

impl Default for Line {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    struct Shared {
        summary: Summary,
        lines: [Line; 2],
        done: AtomicU64,
    }

    impl Shared {
        fn new() -> Arc<Self> {
            let lines = [Line::new(), Line::new()];
            Arc::new(Self { summary: Summary::new(), lines, done: AtomicU64::new(0) })
        }

        /// Publishes `done` and wakes the readers that it serves; how many.
        fn set(&self, done: u64) -> usize {
            self.done.store(done, Ordering::Release);
            let mut woken = 0;
            let wake = |line: &Line| {
                line.ring();
                woken += 1;
            };
            self.summary.published(self.lines.iter(), |wanted| wanted.version <= done, wake);
            woken
        }

        /// Whether a reader would sleep for good: announced, looked once more, found nothing, and the word has not moved.
        fn would_sleep(&self, line: usize, version: u64) -> (bool, u32) {
            let rings = self.summary.announce(&self.lines[line], Wanted { slot: 0, version });
            (self.done.load(Ordering::Acquire) < version, rings)
        }

        fn rung(&self, line: usize, rings: u32) -> bool {
            self.lines[line].rings.load(Ordering::Acquire) != rings
        }
    }

    #[test]
    fn a_reader_never_sleeps_over_the_set_that_it_waits_for() {
        let seen = std::sync::Arc::new(Mutex::new(BTreeSet::new()));
        let all = std::sync::Arc::clone(&seen);
        loom::model(move || {
            let shared = Shared::new();
            let writer = Arc::clone(&shared);
            let thread = loom::thread::spawn(move || (writer.set(1), writer.set(2)));
            let (sleeps, rings) = shared.would_sleep(0, 2);
            if sleeps {
                // Time does not pass in a model: a reader that is not rung for sleeps for good, which loom calls a
                // deadlock (I-4).
                shared.lines[0].sleep(rings, Duration::from_secs(60));
            }
            let woken = thread.join().unwrap();
            seen.lock().unwrap().insert((sleeps, woken));
        });
        let all = all.lock().unwrap();
        for expected in [(true, (0, 1)), (false, (0, 0)), (false, (0, 1))] {
            assert!(all.contains(&expected), "{expected:?} never came up");
        }
    }

    #[test]
    fn of_two_sleepers_each_is_woken_by_its_own_set() {
        loom::model(|| {
            let shared = Shared::new();
            let other = Arc::clone(&shared);
            let second = loom::thread::spawn(move || other.would_sleep(1, 1));
            let woken = shared.set(1);
            let (sleeps, rings) = second.join().unwrap();
            assert!(!sleeps || shared.rung(1, rings), "I-4");
            assert!(woken <= 1);
            // A sleeper whose set has not come stays announced.
            let (sleeps, rings) = shared.would_sleep(0, 2);
            assert!(sleeps);
            shared.set(2);
            assert!(shared.rung(0, rings), "I-4");
        });
    }

    /// A thread that sets a row and finds the follower asleep sends it itself, and leaves the follower asleep.
    #[test]
    fn who_sends_in_the_followers_place_never_leaves_anothers_set_behind() {
        let seen = std::sync::Arc::new(Mutex::new(BTreeSet::new()));
        let all = std::sync::Arc::clone(&seen);
        loom::model(move || {
            let shared = Arc::new((Summary::new(), AtomicU64::new(0)));
            let found = |mut shared: &(Summary, AtomicU64)| {
                let look = |shared: &mut &(Summary, AtomicU64)| shared.1.load(Ordering::Acquire) == 1;
                announce_then_look(&mut shared, |shared, by| shared.0.announce_follower(by), look)
            };
            assert!(!found(&shared));
            let other = Arc::clone(&shared);
            let second = loom::thread::spawn(move || {
                other.1.store(1, Ordering::Release);
                other.0.anyone() && other.0.take_follower()
            });
            let stands_in = shared.0.anyone() && shared.0.take_follower();
            let found = stands_in && found(&shared);
            let rang = second.join().unwrap();
            assert!(found || rang, "I-4");
            seen.lock().unwrap().insert((found, rang));
        });
        assert_eq!(*all.lock().unwrap(), BTreeSet::from([(false, true), (true, false), (true, true)]));
    }

    #[test]
    fn the_follower_never_sleeps_over_a_set() {
        loom::model(|| {
            let shared = Shared::new();
            let writer = Arc::clone(&shared);
            let thread = loom::thread::spawn(move || {
                writer.done.store(1, Ordering::Release);
                writer.summary.anyone() && writer.summary.take_follower()
            });
            let found = announce_then_look(
                &mut &*shared,
                |shared, by| shared.summary.announce_follower(by),
                |shared| shared.done.load(Ordering::Acquire) == 1,
            );
            let rung = thread.join().unwrap();
            assert!(found || rung, "I-4");
        });
    }
}
