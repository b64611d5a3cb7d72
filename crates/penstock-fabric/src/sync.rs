//! The only way to atomics: the standard library's, or loom's when the protocols are model-checked.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use std::ops::Deref;
use std::time::Duration;

/// An atomic that one thread writes at a time, and reads back.
#[derive(Debug)]
#[repr(transparent)]
#[cfg(not(loom))]
pub struct OwnedU64(AtomicU64);

#[cfg(not(loom))]
impl OwnedU64 {
    /// Holds `value`.
    pub fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    /// For any thread.
    #[inline]
    pub fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    /// For the writer.
    #[inline]
    pub fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }

    /// For the writer: what it left there.
    #[inline]
    pub fn own(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The writer's own looks go past loom, which keeps one last access of an atomic: a load just before a store would hide a race
/// with the store.
#[derive(Debug)]
#[cfg(loom)]
pub struct OwnedU64 {
    shared: AtomicU64,
    own: std::sync::atomic::AtomicU64,
}

#[cfg(loom)]
impl OwnedU64 {
    /// Holds `value`.
    pub fn new(value: u64) -> Self {
        Self { shared: AtomicU64::new(value), own: value.into() }
    }

    /// For any thread.
    pub fn load(&self, order: Ordering) -> u64 {
        self.shared.load(order)
    }

    /// For the writer.
    pub fn store(&self, value: u64, order: Ordering) {
        self.own.store(value, Ordering::Relaxed);
        self.shared.store(value, order);
    }

    /// For the writer: what it left there.
    pub fn own(&self) -> u64 {
        self.own.load(Ordering::Relaxed)
    }
}

/// Which threads sleep on a [`Futex`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Among {
    /// Threads of one process.
    Threads,
    /// Also other processes that have mapped the word.
    Processes,
}

/// A word to sleep on.
#[derive(Debug)]
#[repr(transparent)]
#[cfg(not(loom))]
pub struct Futex(AtomicU32);

#[cfg(not(loom))]
impl Futex {
    /// Holds `value`.
    pub fn new(value: u32) -> Self {
        Self(AtomicU32::new(value))
    }

    /// Sleeps while the word is `was`, at most for `longest`. May return early: the caller looks again.
    pub fn sleep(&self, among: Among, was: u32, longest: Duration) {
        // What is too long for the system is without end.
        let timeout = rustix::time::Timespec::try_from(longest).ok();
        // Whatever ends the sleep (a ring, a word that has moved, the time, a signal), the caller looks again.
        let _ = rustix::thread::futex::wait(&self.0, Self::flags(among), was, timeout.as_ref());
    }

    /// Wakes one that sleeps.
    pub fn wake_one(&self, among: Among) {
        let _ = rustix::thread::futex::wake(&self.0, Self::flags(among), 1);
    }

    /// Wakes all that sleep.
    pub fn wake_all(&self, among: Among) {
        let _ = rustix::thread::futex::wake(&self.0, Self::flags(among), i32::MAX as u32);
    }

    fn flags(among: Among) -> rustix::thread::futex::Flags {
        match among {
            Among::Threads => rustix::thread::futex::Flags::PRIVATE,
            Among::Processes => rustix::thread::futex::Flags::empty(),
        }
    }
}

/// As the kernel's: looking at the word and falling asleep are one step to a thread that wakes others. Time wakes no thread, so
/// one that is forgotten sleeps for good, and the model fails; a sleep of no length returns at once.
#[derive(Debug)]
#[cfg(loom)]
pub struct Futex {
    word: AtomicU32,
    queue: loom::sync::Mutex<()>,
    rung: loom::sync::Condvar,
}

#[cfg(loom)]
impl Futex {
    /// Holds `value`.
    pub fn new(value: u32) -> Self {
        let (queue, rung) = (loom::sync::Mutex::new(()), loom::sync::Condvar::new());
        Self { word: AtomicU32::new(value), queue, rung }
    }

    /// Sleeps while the word is `was`.
    pub fn sleep(&self, _: Among, was: u32, longest: Duration) {
        let queue = self.queue.lock().expect("no model goes on behind a panic");
        // Relaxed: what a thread that wakes others did before it took the lock is seen; nothing later need be.
        if longest != Duration::ZERO && self.word.load(Ordering::Relaxed) == was {
            drop(self.rung.wait(queue).expect("no model goes on behind a panic"));
        }
    }

    /// Wakes one that sleeps.
    pub fn wake_one(&self, _: Among) {
        let _queue = self.queue.lock().expect("no model goes on behind a panic");
        self.rung.notify_one();
    }

    /// Wakes all that sleep.
    pub fn wake_all(&self, _: Among) {
        let _queue = self.queue.lock().expect("no model goes on behind a panic");
        self.rung.notify_all();
    }
}

impl Deref for Futex {
    type Target = AtomicU32;

    #[inline]
    fn deref(&self) -> &AtomicU32 {
        #[cfg(not(loom))]
        let word = &self.0;
        #[cfg(loom)]
        let word = &self.word;
        word
    }
}

impl Default for Futex {
    fn default() -> Self {
        Self::new(0)
    }
}
