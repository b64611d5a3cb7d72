//! Where the cores are: how long one cache line takes to another core and back.
//!
//! Virtual cores move between two placements, every few seconds to minutes: *near* (they share a last-level cache; 50 to
//! 60 ns) and *far* (320 to 430 ns). Everything that hands data from core to core changes by three to five times with it,
//! so a figure without its placement says little.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Round trips in one batch: a batch takes 0.1 ms near and 0.8 ms far, less than a scheduler's tick.
const ROUND_TRIPS: u32 = 2_000;
/// Batches; the quickest counts, since whatever disturbs a batch only makes it slower.
const BATCHES: u32 = 5;
/// Spins before a waiting thread lets others run: where both threads sit on one core, the other must get its turn.
const SPINS: u32 = 20_000;

/// The CPUs that this process may use, in order; empty if the kernel does not say.
pub(crate) fn allowed() -> Vec<usize> {
    sched_getaffinity(None)
        .map(|set| (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
        .unwrap_or_default()
}

/// Keeps the calling thread on `cpu`. A kernel that refuses leaves it where it was, which only costs precision.
pub(crate) fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    let _ = sched_setaffinity(None, &set);
}

/// Waits until `ready`, spinning; yields now and then.
pub(crate) fn spin_until(mut ready: impl FnMut() -> bool) {
    let mut spins = 0u32;
    while !ready() {
        spins += 1;
        if spins.is_multiple_of(SPINS) {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

/// A cache line of its own (two, because neighbours are fetched in pairs).
#[repr(align(128))]
struct Line(AtomicU32);

/// Nanoseconds for a cache line to go to another core and back: about 50 near, 400 far. NaN where there is only one core.
///
/// Measured between the first two CPUs that this process may use; takes a few milliseconds.
pub fn distance_ns() -> f64 {
    let cpus = allowed();
    let &[here, there, ..] = cpus.as_slice() else { return f64::NAN };
    let line = Line(AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(there);
            echo(&line.0);
        });
        // A thread of its own for this side too: pinning must not outlive the measurement.
        scope
            .spawn(|| {
                pin(here);
                (0..BATCHES).map(|batch| call(&line.0, batch)).fold(f64::INFINITY, f64::min)
            })
            .join()
            .unwrap_or(f64::NAN)
    })
}

/// One batch seen from the caller's side: odd numbers go out, the next even number comes back.
fn call(line: &AtomicU32, batch: u32) -> f64 {
    let first = 2 * batch * ROUND_TRIPS;
    let start = Instant::now();
    for trip in 0..ROUND_TRIPS {
        let sent = first + 2 * trip + 1;
        line.store(sent, Ordering::Release);
        spin_until(|| line.load(Ordering::Acquire) == sent + 1);
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(ROUND_TRIPS)
}

/// The other side: answers each odd number with the next even one, until all batches are done.
fn echo(line: &AtomicU32) {
    for trip in 0..BATCHES * ROUND_TRIPS {
        let expected = 2 * trip + 1;
        spin_until(|| line.load(Ordering::Acquire) == expected);
        line.store(expected + 1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_is_a_time_wherever_there_are_two_cores() {
        let distance = distance_ns();
        assert_eq!(distance.is_nan(), allowed().len() < 2);
        assert!(distance.is_nan() || distance > 0.0);
    }

    #[test]
    fn measuring_leaves_the_callers_affinity_alone() {
        let before = allowed();
        distance_ns();
        assert_eq!(allowed(), before);
    }
}
