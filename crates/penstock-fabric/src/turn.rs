//! Turns: one thread at a time, where the one inside may wait for long.
//!
//! With a lock, the threads behind would wait for as long as the one inside takes, whatever their own deadlines, and deaf to
//! Ctrl-C. So a thread that stands in line looks up now and then, and leaves when it has waited long enough. The word is a
//! futex: free, taken, or taken while another may sleep (Drepper, *Futexes are tricky*, mutex 3).
//!
//! A `Floor` is the same for what many may do together, or one alone. A thread that wants to be alone goes before those
//! that come later.
//!
//! - **T-1** A thread that has a turn, or is alone, sees all that those before it did, and no other is inside.
//! - **T-2** No thread sleeps in a line that it could leave, no matter which others give up.

use crate::sync::{Among, AtomicU32, Futex, Ordering};
use std::time::Duration;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Taken, and the thread that leaves wakes the next.
const WANTED: u32 = 2;

/// What threads take turns at.
#[derive(Debug, Default)]
pub struct Turn(Futex);

/// A turn; it ends when this is dropped.
#[derive(Debug)]
pub struct Taken<'a>(&'a Turn);

impl Turn {
    /// Waits for a turn. `look` is asked before each sleep how long it may be; its error ends the wait.
    pub fn take<E>(&self, mut look: impl FnMut() -> Result<Duration, E>) -> Result<Taken<'_>, E> {
        if self.0.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return Ok(Taken(self));
        }
        // Others may sleep beside this thread, so a thread that comes in from here on leaves the word as wanted.
        while self.0.swap(WANTED, Ordering::Acquire) != FREE {
            self.0.sleep(Among::Threads, WANTED, look()?);
        }
        Ok(Taken(self))
    }
}

impl Drop for Taken<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.0.0.swap(FREE, Ordering::Release) == WANTED {
            self.0.0.wake_one(Among::Threads);
        }
    }
}

/// One is inside, alone.
const ALONE: u32 = 1 << 31;
/// A thread may sleep: the one that leaves the floor empty wakes all.
const AWAITED: u32 = 1 << 30;

/// What many threads are on together, or one alone.
#[derive(Debug, Default)]
pub struct Floor {
    /// How many are on it, or [`ALONE`]; and [`AWAITED`].
    word: AtomicU32,
    /// How often the sleepers were rung for: what they sleep on. The word will not do: it may come round, once one thread has
    /// given up and another has come in and left, and a thread that saw it before would sleep although it could come in.
    rings: Futex,
    /// How many wait to be alone.
    line: AtomicU32,
}

/// A place on the floor; it is given up when this is dropped.
#[derive(Debug)]
pub struct Place<'a>(&'a Floor);

impl Floor {
    /// Waits until no thread is alone, or wants to be. `look` as in [`Turn::take`].
    pub fn share<E>(&self, look: impl FnMut() -> Result<Duration, E>) -> Result<Place<'_>, E> {
        let free = |word: u32| word & ALONE == 0 && self.line.load(Ordering::Relaxed) == 0;
        self.enter(|word| free(word).then_some(word + 1), look)
    }

    /// Waits until no other thread is there. `look` as in [`Turn::take`].
    pub fn alone<E>(&self, look: impl FnMut() -> Result<Duration, E>) -> Result<Place<'_>, E> {
        if self.word.compare_exchange(0, ALONE, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return Ok(Place(self));
        }
        self.line.fetch_add(1, Ordering::Relaxed);
        let mut in_line = InLine { floor: self, entered: false };
        let place = self.enter(|word| (word & !AWAITED == 0).then_some(word | ALONE), look)?;
        in_line.entered = true;
        Ok(place)
    }

    /// Wakes all that sleep, and those that are about to.
    fn ring(&self) {
        self.rings.fetch_add(1, Ordering::Release);
        self.rings.wake_all(Among::Threads);
    }

    fn enter<E>(
        &self,
        inside: impl Fn(u32) -> Option<u32>,
        mut look: impl FnMut() -> Result<Duration, E>,
    ) -> Result<Place<'_>, E> {
        let swap =
            |was, next| self.word.compare_exchange(was, next, Ordering::Acquire, Ordering::Relaxed).is_ok();
        loop {
            // First: a ring after this look is heard, and what was done before an earlier ring is seen below.
            let rings = self.rings.load(Ordering::Acquire);
            let word = self.word.load(Ordering::Relaxed);
            match inside(word) {
                Some(next) if swap(word, next) => return Ok(Place(self)),
                // Announced: everything is looked at once more before a sleep.
                None if word & AWAITED == 0 => {
                    swap(word, word | AWAITED);
                }
                None => self.rings.sleep(Among::Threads, rings, look()?),
                _ => {}
            }
        }
    }
}

/// A thread that waits to be alone, until it has come in, has given up or has panicked.
struct InLine<'a> {
    floor: &'a Floor,
    entered: bool,
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        self.floor.line.fetch_sub(1, Ordering::Relaxed);
        if !self.entered {
            // Those behind it need not wait for those before it.
            self.floor.ring();
        }
    }
}

impl Drop for Place<'_> {
    #[inline]
    fn drop(&mut self) {
        let leave = |word: u32| {
            let next = if word & ALONE != 0 { word & !ALONE } else { word - 1 };
            Some(if next == AWAITED { 0 } else { next })
        };
        let before = self.0.word.fetch_update(Ordering::Release, Ordering::Relaxed, leave);
        let word = before.unwrap_or_else(|word| word);
        if word & AWAITED != 0 && (word & ALONE != 0 || word & !AWAITED == 1) {
            self.0.ring();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::AtomicU64;
    use std::sync::mpsc::channel;
    use std::time::Instant;

    /// A thread that is forgotten looks again after a minute; this is half of one, and the tests take a second.
    const FORGOTTEN: Duration = Duration::from_secs(30);

    /// Rounds of a race: enough to meet it, few enough for an interpreter.
    const ROUNDS: u64 = if cfg!(miri) { 20 } else { 5000 };

    #[test]
    fn turns_never_overlap_and_nobody_is_forgotten() {
        let began = Instant::now();
        let (turn, inside, total) = (Turn::default(), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let taken = turn.take(|| Ok::<_, ()>(Duration::from_secs(60))).unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                        total.fetch_add(1, Ordering::Relaxed);
                        inside.fetch_sub(1, Ordering::Relaxed);
                        drop(taken);
                    }
                });
            }
        });
        assert_eq!(total.into_inner(), 4 * ROUNDS);
        assert!(began.elapsed() < FORGOTTEN);
    }

    #[test]
    fn who_stands_in_line_leaves_when_it_has_waited_enough() {
        let turn = Turn::default();
        let first = turn.take(|| Err(())).expect("it was free");
        let mut looks = 0;
        let left = turn.take(|| {
            looks += 1;
            if looks < 3 { Ok(Duration::from_millis(1)) } else { Err("enough") }
        });
        assert_eq!(left.err(), Some("enough"));
        let (said, heard) = channel();
        std::thread::scope(|scope| {
            let turn = &turn;
            scope.spawn(move || {
                drop(turn.take(|| {
                    let _ = said.send(());
                    Ok::<_, ()>(Duration::from_secs(60))
                }));
            });
            heard.recv().expect("it stands in line");
            drop(first);
        });
        drop(turn.take(|| Err("it is free again")).unwrap());
    }

    const LONG: Result<Duration, ()> = Ok(Duration::from_secs(60));

    #[test]
    fn on_a_floor_who_is_alone_is_alone_and_nobody_is_forgotten() {
        let began = Instant::now();
        let (floor, sharing, total) = (Floor::default(), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (floor, sharing, total) = (&floor, &sharing, &total);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        if (thread + round) % 3 == 0 {
                            let place = floor.alone(|| LONG).unwrap();
                            assert_eq!(sharing.load(Ordering::Relaxed), 0);
                            total.store(total.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                            drop(place);
                        } else {
                            let place = floor.share(|| LONG).unwrap();
                            sharing.fetch_add(1, Ordering::Relaxed);
                            sharing.fetch_sub(1, Ordering::Relaxed);
                            drop(place);
                        }
                    }
                });
            }
        });
        assert_eq!(
            total.into_inner(),
            (0..4).flat_map(|t| (0..ROUNDS).map(move |r| (t + r) % 3)).filter(|&k| k == 0).count() as u64
        );
        assert_eq!(floor.word.load(Ordering::Relaxed) & !AWAITED, 0);
        assert!(began.elapsed() < FORGOTTEN);
    }

    #[test]
    fn who_wants_to_be_alone_goes_first_and_holds_nobody_up_once_it_has_waited_enough() {
        let floor = Floor::default();
        let first = floor.share(|| Err(())).expect("it was free");
        let second = floor.share(|| Err(())).expect("it is shared");
        let mut looks = 0;
        let left = floor.alone(|| {
            looks += 1;
            assert!(floor.share(|| Err(())).is_err(), "it stands before those who come later");
            if looks < 3 { Ok(Duration::from_millis(1)) } else { Err("enough") }
        });
        assert_eq!(left.err(), Some("enough"));
        drop((floor.share(|| Err(())).expect("nobody waits to be alone"), first, second));
        let alone = floor.alone(|| Err(())).expect("everybody has left");
        assert!(floor.share(|| Err(())).is_err() && floor.alone(|| Err(())).is_err());
        drop(alone);
        drop(floor.share(|| Err(())).expect("it is free again"));
    }

    #[test]
    fn who_panics_in_the_line_stands_in_it_no_more() {
        let floor = Floor::default();
        let first = floor.share(|| Err(())).expect("it was free");
        let waits = || floor.alone(|| -> Result<Duration, ()> { panic!("in its look") }).is_ok();
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(waits)).unwrap_err();
        drop((floor.share(|| Err(())).expect("nobody waits to be alone"), first));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    /// Time does not pass in a model: a thread that is forgotten sleeps for good, which loom calls a deadlock.
    const LONG: Result<Duration, ()> = Ok(Duration::from_secs(60));

    /// What is written inside, without a lock: loom fails where two meet (T-1).
    struct Shared<T> {
        line: T,
        count: UnsafeCell<u32>,
    }

    // SAFETY: the count is reached by `write` and `read` alone, whose callers are inside. That this is enough is what loom checks.
    unsafe impl<T: Sync> Sync for Shared<T> {}

    impl<T: Default> Shared<T> {
        fn new() -> Arc<Self> {
            Arc::new(Self { line: T::default(), count: UnsafeCell::new(0) })
        }

        fn write(&self) {
            // SAFETY: the caller is inside, alone.
            self.count.with_mut(|count| unsafe { *count += 1 });
        }

        fn read(&self) -> u32 {
            // SAFETY: the caller is inside, and no thread is alone.
            self.count.with(|count| unsafe { *count })
        }
    }

    impl Shared<Turn> {
        /// Takes a turn; how often it had to sleep.
        fn go(&self) -> u32 {
            let mut looks = 0;
            let taken = self.line.take(|| {
                looks += 1;
                LONG
            });
            self.write();
            drop(taken);
            looks
        }

        /// Waits for a turn no longer than a look.
        fn try_to(&self) -> bool {
            let taken = self.line.take(|| Err(()));
            taken.is_ok_and(|_taken| {
                self.write();
                true
            })
        }
    }

    impl Shared<Floor> {
        fn alone(&self) {
            let place = self.line.alone(|| LONG);
            self.write();
            drop(place);
        }

        fn share(&self) -> u32 {
            let _place = self.line.share(|| LONG);
            self.read()
        }

        /// Comes in, and leaves; whether it had to sleep.
        fn enter(&self) -> bool {
            let mut looks = 0;
            drop(self.line.share(|| {
                looks += 1;
                LONG
            }));
            looks > 0
        }
    }

    /// What came up in all interleavings, with few switches of threads that need not be: without a bound they take hours.
    fn explore<T: Ord + Clone + Send + 'static>(
        switches: usize,
        model: impl Fn() -> T + Send + Sync + 'static,
    ) -> BTreeSet<T> {
        let seen = std::sync::Arc::new(Mutex::new(BTreeSet::new()));
        let all = std::sync::Arc::clone(&seen);
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(switches);
        builder.check(move || {
            let outcome = model();
            seen.lock().unwrap().insert(outcome);
        });
        let all = all.lock().unwrap();
        all.clone()
    }

    #[test]
    fn turns_never_overlap_and_nobody_is_forgotten() {
        let seen = explore(3, || {
            let shared = Shared::<Turn>::new();
            let threads = [0, 1].map(|_| {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || shared.go() > 0)
            });
            let slept = shared.go() > 0;
            let slept = [slept].into_iter().chain(threads.map(|thread| thread.join().unwrap()));
            let slept = slept.filter(|&slept| slept).count();
            drop(shared.line.take(|| Err("it is free again")).unwrap());
            assert_eq!(shared.read(), 3, "T-1");
            slept
        });
        assert_eq!(seen, BTreeSet::from([0, 1, 2]));
    }

    #[test]
    fn who_leaves_the_line_leaves_nobody_in_it() {
        let seen = explore(3, || {
            let shared = Shared::<Turn>::new();
            let first = Arc::clone(&shared);
            let leaves = loom::thread::spawn(move || first.try_to());
            let second = Arc::clone(&shared);
            let stays = loom::thread::spawn(move || second.go() > 0);
            let slept = shared.go() > 0;
            let (left, stayed) = (!leaves.join().unwrap(), stays.join().unwrap());
            drop(shared.line.take(|| Err("it is free again")).unwrap());
            assert_eq!(shared.read(), 3 - u32::from(left), "T-1");
            (left, slept || stayed)
        });
        assert_eq!(seen, BTreeSet::from([(false, false), (false, true), (true, false), (true, true)]));
    }

    #[test]
    fn who_is_alone_meets_nobody_and_nobody_is_forgotten() {
        let seen = explore(2, || {
            let shared = Shared::<Floor>::new();
            let (first, second) = (Arc::clone(&shared), Arc::clone(&shared));
            let first = loom::thread::spawn(move || first.alone());
            let second = loom::thread::spawn(move || second.share());
            let seen = shared.share();
            first.join().unwrap();
            let seen = [seen, second.join().unwrap()];
            drop(shared.line.alone(|| Err("everybody has left")).unwrap());
            assert_eq!(shared.read(), 1, "T-1");
            seen
        });
        assert_eq!(seen, BTreeSet::from([[0, 0], [0, 1], [1, 0], [1, 1]]));
    }

    #[test]
    fn two_who_want_to_be_alone_are_alone_one_after_the_other() {
        let seen = explore(2, || {
            let shared = Shared::<Floor>::new();
            let (first, second) = (Arc::clone(&shared), Arc::clone(&shared));
            let first = loom::thread::spawn(move || first.alone());
            let second = loom::thread::spawn(move || second.share());
            shared.alone();
            first.join().unwrap();
            let seen = second.join().unwrap();
            drop(shared.line.alone(|| Err("everybody has left")).unwrap());
            assert_eq!(shared.read(), 2, "T-1");
            seen
        });
        assert_eq!(seen, BTreeSet::from([0, 1, 2]));
    }

    #[test]
    fn who_gives_up_being_alone_holds_nobody_up() {
        let seen = explore(2, || {
            let shared = Shared::<Floor>::new();
            let before = shared.line.share(|| Err(())).expect("it was free");
            let (first, second) = (Arc::clone(&shared), Arc::clone(&shared));
            let gives_up = loom::thread::spawn(move || first.line.alone(|| Err(())).is_err());
            let shares = loom::thread::spawn(move || second.enter());
            // `before` stays until those behind have come in: T-2.
            let slept = [shared.enter(), shares.join().unwrap()];
            assert!(gives_up.join().unwrap());
            drop(before);
            drop(shared.line.alone(|| Err("everybody has left")).unwrap());
            slept
        });
        assert_eq!(seen, BTreeSet::from([[false, false], [false, true], [true, false], [true, true]]));
    }
}
