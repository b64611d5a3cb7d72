//! Turns: one thread at a time, where whoever is inside may wait for long.
//!
//! A lock would make those behind wait as long as the one inside does, whatever their own deadline, and deaf to Ctrl-C. So who
//! stands in line looks up now and then, and leaves when it has waited enough. The word is a futex: free, taken, or taken while
//! somebody may sleep (Drepper, *Futexes are tricky*, mutex 3).
//!
//! A `Floor` is the same for what many may do together, or one alone. Who wants to be alone goes before those who come later.

use rustix::thread::futex;
use rustix::time::Timespec;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Taken, and whoever leaves wakes the next.
const WANTED: u32 = 2;

/// What threads take turns at.
#[derive(Debug, Default)]
pub struct Turn(AtomicU32);

/// A turn; it ends when this is dropped.
#[derive(Debug)]
pub struct Taken<'a>(&'a Turn);

impl Turn {
    /// Waits for a turn. `look` is asked before each sleep how long it may be; its error ends the wait.
    pub fn take<E>(&self, mut look: impl FnMut() -> Result<Duration, E>) -> Result<Taken<'_>, E> {
        if self.0.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return Ok(Taken(self));
        }
        // Others may sleep beside this thread, so whoever comes in from here on leaves the word as wanted.
        while self.0.swap(WANTED, Ordering::Acquire) != FREE {
            sleep(&self.0, WANTED, look()?);
        }
        Ok(Taken(self))
    }
}

/// Sleeps while the word is as it was, at most as long. Whatever ends the sleep, who slept looks again.
fn sleep(word: &AtomicU32, was: u32, longest: Duration) {
    let timeout = Timespec {
        tv_sec: i64::try_from(longest.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(longest.subsec_nanos()),
    };
    let _ = futex::wait(word, futex::Flags::PRIVATE, was, Some(&timeout));
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if self.0.0.swap(FREE, Ordering::Release) == WANTED {
            let _ = futex::wake(&self.0.0, futex::Flags::PRIVATE, 1);
        }
    }
}

/// One is inside, alone.
const ALONE: u32 = 1 << 31;
/// Somebody may sleep: whoever leaves the floor empty wakes all.
const AWAITED: u32 = 1 << 30;

/// What many threads are on together, or one alone.
#[derive(Debug, Default)]
pub(crate) struct Floor {
    /// How many are on it, or [`ALONE`]; and [`AWAITED`].
    word: AtomicU32,
    /// How many wait to be alone.
    line: AtomicU32,
}

/// A place on the floor; it is given up when this is dropped.
#[derive(Debug)]
pub(crate) struct Place<'a>(&'a Floor);

impl Floor {
    /// Waits until nobody is alone, or wants to be. `look` as in [`Turn::take`].
    pub(crate) fn share<E>(&self, look: impl FnMut() -> Result<Duration, E>) -> Result<Place<'_>, E> {
        let free = |word: u32| word & ALONE == 0 && self.line.load(Ordering::Relaxed) == 0;
        self.enter(|word| free(word).then_some(word + 1), look)
    }

    /// Waits until nobody else is there. `look` as in [`Turn::take`].
    pub(crate) fn alone<E>(&self, look: impl FnMut() -> Result<Duration, E>) -> Result<Place<'_>, E> {
        self.line.fetch_add(1, Ordering::Relaxed);
        let entered = self.enter(|word| (word & !AWAITED == 0).then_some(word | ALONE), look);
        self.line.fetch_sub(1, Ordering::Relaxed);
        if entered.is_err() {
            // Those behind it need not wait for those before it. The word changes, so whoever still saw the line does not sleep.
            self.word.fetch_and(!AWAITED, Ordering::Release);
            let _ = futex::wake(&self.word, futex::Flags::PRIVATE, i32::MAX as u32);
        }
        entered
    }

    fn enter<E>(
        &self,
        inside: impl Fn(u32) -> Option<u32>,
        mut look: impl FnMut() -> Result<Duration, E>,
    ) -> Result<Place<'_>, E> {
        let swap =
            |was, next| self.word.compare_exchange(was, next, Ordering::Acquire, Ordering::Relaxed).is_ok();
        loop {
            let word = self.word.load(Ordering::Acquire);
            match inside(word) {
                Some(next) if swap(word, next) => return Ok(Place(self)),
                // Announced: everything is looked at once more before a sleep, since the word may have come round.
                None if word & AWAITED == 0 => {
                    swap(word, word | AWAITED);
                }
                None => sleep(&self.word, word, look()?),
                _ => {}
            }
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let leave = |word: u32| {
            let next = if word & ALONE != 0 { word & !ALONE } else { word - 1 };
            Some(if next == AWAITED { 0 } else { next })
        };
        let before = self.0.word.fetch_update(Ordering::Release, Ordering::Relaxed, leave);
        let word = before.unwrap_or_else(|word| word);
        if word & AWAITED != 0 && (word & ALONE != 0 || word & !AWAITED == 1) {
            let _ = futex::wake(&self.0.word, futex::Flags::PRIVATE, i32::MAX as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use std::sync::mpsc::channel;
    use std::time::Instant;

    /// Who is forgotten looks again after a minute; this is half of one, and the tests take a second.
    const FORGOTTEN: Duration = Duration::from_secs(30);

    #[test]
    fn turns_never_overlap_and_nobody_is_forgotten() {
        let began = Instant::now();
        let (turn, inside, total) = (Turn::default(), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5000 {
                        let taken = turn.take(|| Ok::<_, ()>(Duration::from_secs(60))).unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                        total.fetch_add(1, Ordering::Relaxed);
                        inside.fetch_sub(1, Ordering::Relaxed);
                        drop(taken);
                    }
                });
            }
        });
        assert_eq!(total.into_inner(), 20_000);
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
                    for round in 0..5000 {
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
            (0..4).flat_map(|t| (0..5000).map(move |r| (t + r) % 3)).filter(|&k| k == 0).count() as u64
        );
        assert_eq!(floor.word.into_inner() & !AWAITED, 0);
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
}
