//! The limit: the work of one synchronous step, done by nothing but vector code over plain memory.
//!
//! Work: `workers` gradients of `bytes` bytes of f32 stand in memory; afterwards `w -= lr * (g0 + g1 + ...)` is done. Bytes
//! counted: every gradient read once, the parameters read and written once. Rounds between threads: one start, one end.
//!
//! The same buffers serve every repeat, as in every system that stands beside this: what fits into the caches is *hot*, what
//! does not is *cold*. Memory is on huge pages, touched beforehand by the thread that uses it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::cores::{allowed, pin, spin_until};
use crate::huge_pages::Floats;
use crate::step;

/// A power of two, so that the check below is exact.
const LEARNING_RATE: f32 = 0.5;
/// Steps before the first that counts, after which the answer is checked.
const WARMUP: usize = 3;
/// Floats of one cache line: threads share none.
const LINE: usize = 16;
/// Floats by which each array is shifted against the one before it. Arrays that all start on a huge page would fall into the
/// same sets of the first-level cache and into the same 4 KiB window: 1088 floats are 4 KiB and four lines.
const STAGGER: usize = 1088;

/// Seconds for one step on `threads` threads, from the common start to the last finish; one for each of `repeats` repeats.
///
/// `bytes` is the size of one gradient, and of the parameters. The threads are bound to the cores that this process may use,
/// in order, where there are enough of them. The answer is checked before anything is timed.
///
/// # Panics
///
/// If `bytes` is zero or not a multiple of four, if there are no workers or no threads, if the memory cannot be had, or if the
/// step computes anything but what it should.
pub fn sgd(bytes: usize, workers: usize, threads: usize, repeats: usize) -> Vec<f64> {
    assert!(
        bytes > 0 && bytes.is_multiple_of(size_of::<f32>()),
        "expected bytes of whole floats, got {bytes}"
    );
    assert!(workers > 0 && threads > 0, "expected workers and threads, got {workers} and {threads}");
    let len = bytes / size_of::<f32>();
    let stride = len.next_multiple_of(LINE) + STAGGER;
    let mut memory = match Floats::map(stride * (workers + 1)) {
        Ok(memory) => memory,
        Err(error) => panic!("{} bytes for the limit of the machine: {error}", 4 * stride * (workers + 1)),
    };
    let mut arrays: Vec<&mut [f32]> =
        memory.as_mut().chunks_mut(stride).map(|array| &mut array[..len]).collect();
    let gradients = arrays.split_off(1);
    let Some(parameters) = arrays.pop() else { return Vec::new() };
    measure(parameters, gradients, threads, repeats)
}

/// The value of element `i` of gradient `worker`: tells the workers apart, and the places.
fn gradient(worker: usize, i: usize) -> f32 {
    ((worker + 1) * (i % 7 + 1)) as f32
}

/// Cuts the arrays, gives each thread its part, and takes the times.
fn measure(parameters: &mut [f32], gradients: Vec<&mut [f32]>, threads: usize, repeats: usize) -> Vec<f64> {
    let part = parameters.len().div_ceil(threads).next_multiple_of(LINE);
    let mut cut: Vec<_> = gradients.into_iter().map(|g| g.chunks_mut(part)).collect();
    let parts: Vec<Part<'_>> = parameters
        .chunks_mut(part)
        .enumerate()
        .map(|(index, w)| Part {
            first: index * part,
            w,
            gradients: cut.iter_mut().filter_map(Iterator::next).collect(),
        })
        .collect();
    let cpus = allowed();
    let gate =
        Gate { threads: parts.len(), arrived: Line(AtomicUsize::new(0)), open: Line(AtomicUsize::new(0)) };
    let runs: Vec<Vec<(Instant, Instant)>> = std::thread::scope(|scope| {
        let handles: Vec<_> = parts
            .into_iter()
            .enumerate()
            .map(|(thread, part)| {
                let cpu = if cpus.len() >= threads { cpus.get(thread).copied() } else { None };
                let gate = &gate;
                scope.spawn(move || {
                    cpu.into_iter().for_each(pin);
                    run(part, gate, thread, repeats)
                })
            })
            .collect();
        handles
            .into_iter()
            .map(|handle| handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    (0..repeats)
        .map(|repeat| {
            // The first thread opens the gate, so its start is the common one.
            let start = runs[0][repeat].0;
            runs.iter().map(|run| run[repeat].1 - start).fold(Duration::ZERO, Duration::max).as_secs_f64()
        })
        .collect()
}

/// What one thread works on: the same range of every array.
struct Part<'a> {
    first: usize,
    w: &'a mut [f32],
    gradients: Vec<&'a mut [f32]>,
}

/// One thread: fills its part, checks a few steps, then takes times.
fn run(part: Part<'_>, gate: &Gate, thread: usize, repeats: usize) -> Vec<(Instant, Instant)> {
    let Part { first, w, gradients } = part;
    w.fill(0.0);
    let mut filled: Vec<&[f32]> = Vec::with_capacity(gradients.len());
    for (worker, g) in gradients.into_iter().enumerate() {
        for (i, value) in g.iter_mut().enumerate() {
            *value = gradient(worker, first + i);
        }
        filled.push(g);
    }
    for _ in 0..WARMUP {
        step::sgd(w, &filled, LEARNING_RATE);
    }
    let wrong = first_wrong(w, first, filled.len());
    let times = (0..repeats).map(|repeat| {
        let start = gate.pass(thread, repeat);
        step::sgd(w, &filled, LEARNING_RATE);
        (start, Instant::now())
    });
    let times = times.collect();
    // Only now: a thread that panics earlier leaves the others waiting at the gate.
    assert!(wrong.is_none(), "the limit of the machine computes something else at element {wrong:?}");
    times
}

/// The first element that `WARMUP` steps from zero did not bring to where they should.
fn first_wrong(w: &[f32], first: usize, workers: usize) -> Option<usize> {
    let expected = |i| {
        let sum: f32 = (0..workers).map(|worker| gradient(worker, i)).sum();
        -LEARNING_RATE * sum * WARMUP as f32
    };
    w.iter().enumerate().map(|(i, &w)| (first + i, w)).find(|&(i, w)| w != expected(i)).map(|(i, _)| i)
}

/// A counter that shares its cache lines with nothing.
#[repr(align(128))]
struct Line(AtomicUsize);

/// Lets all threads start a repeat together.
struct Gate {
    threads: usize,
    arrived: Line,
    open: Line,
}

impl Gate {
    /// Waits, spinning, for all threads to come to `repeat`; returns when this one started.
    fn pass(&self, thread: usize, repeat: usize) -> Instant {
        // Release and acquire, so that a repeat starts after all threads have finished the one before.
        self.arrived.0.fetch_add(1, Ordering::Release);
        if thread > 0 {
            spin_until(|| self.open.0.load(Ordering::Acquire) > repeat);
            return Instant::now();
        }
        spin_until(|| self.arrived.0.load(Ordering::Acquire) == self.threads * (repeat + 1));
        let start = Instant::now();
        self.open.0.store(repeat + 1, Ordering::Release);
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The oracle.
    fn naive(w: &mut [f32], gradients: &[&[f32]], lr: f32) {
        for i in 0..w.len() {
            w[i] -= lr * gradients.iter().map(|g| g[i]).sum::<f32>();
        }
    }

    #[test]
    fn a_step_is_the_obvious_loop_for_any_length_and_any_number_of_gradients() {
        for workers in 1..=11 {
            for len in [0, 1, 15, 16, 17, 2047, 2048, 2049, 5000] {
                let gradients: Vec<Vec<f32>> =
                    (0..workers).map(|worker| (0..len).map(|i| gradient(worker, i)).collect()).collect();
                let gradients: Vec<&[f32]> = gradients.iter().map(Vec::as_slice).collect();
                let mut got: Vec<f32> = (0..len).map(|i| i as f32).collect();
                let mut expected = got.clone();
                step::sgd(&mut got, &gradients, 0.25);
                naive(&mut expected, &gradients, 0.25);
                assert_eq!(got, expected, "{workers} gradients of {len} floats");
            }
        }
    }

    #[test]
    fn every_repeat_has_a_time_whatever_the_number_of_threads() {
        // One float on three threads, odd sizes, more threads than cores: the answer is checked inside.
        for (bytes, workers, threads) in [(4, 1, 3), (4 * 1001, 3, 2), (1 << 20, 2, 1), (1 << 16, 9, 4)] {
            let times = sgd(bytes, workers, threads, 5);
            assert_eq!(times.len(), 5);
            assert!(times.iter().all(|&time| time > 0.0), "{times:?}");
        }
    }

    #[test]
    fn a_wrong_parameter_is_found_where_it_stands() {
        let mut w: Vec<f32> = (0..100).map(|i| -1.5 * (gradient(0, 40 + i) + gradient(1, 40 + i))).collect();
        assert_eq!(first_wrong(&w, 40, 2), None);
        w[60] += 0.5;
        assert_eq!(first_wrong(&w, 40, 2), Some(100));
    }

    #[test]
    #[should_panic(expected = "whole floats")]
    fn a_size_that_is_no_multiple_of_four_is_refused() {
        sgd(6, 1, 1, 1);
    }
}
