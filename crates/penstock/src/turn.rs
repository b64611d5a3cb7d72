//! Turns: one thread at a time, where whoever is inside may wait for long.
//!
//! A lock would make those behind wait as long as the one inside does, whatever their own deadline, and deaf to Ctrl-C. So who
//! stands in line looks up now and then, and leaves when it has waited enough. The word is a futex: free, taken, or taken while
//! somebody may sleep (Drepper, *Futexes are tricky*, mutex 3).

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
pub(crate) struct Turn(AtomicU32);

/// A turn; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Taken<'a>(&'a Turn);

impl Turn {
    /// Waits for a turn. `look` is asked before each sleep how long it may be; its error ends the wait.
    pub(crate) fn take<E>(&self, mut look: impl FnMut() -> Result<Duration, E>) -> Result<Taken<'_>, E> {
        if self.0.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return Ok(Taken(self));
        }
        // Others may sleep beside this thread, so whoever comes in from here on leaves the word as wanted.
        while self.0.swap(WANTED, Ordering::Acquire) != FREE {
            let longest = look()?;
            let timeout = Timespec {
                tv_sec: i64::try_from(longest.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(longest.subsec_nanos()),
            };
            // Whatever ends the sleep, the loop looks again.
            let _ = futex::wait(&self.0, futex::Flags::PRIVATE, WANTED, Some(&timeout));
        }
        Ok(Taken(self))
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if self.0.0.swap(FREE, Ordering::Release) == WANTED {
            let _ = futex::wake(&self.0.0, futex::Flags::PRIVATE, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use std::sync::mpsc::channel;

    #[test]
    fn turns_never_overlap_and_nobody_is_forgotten() {
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
}
