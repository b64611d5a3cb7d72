//! Rings: one worker's submissions to one shard, in order.
//!
//! One writer (the worker), one reader (the shard). The ring lies in the worker's page, all of which the worker may scribble on:
//! the shard keeps its own count, judges the writer's count before it believes it, and copies the eight words of a submission
//! once before anything looks at them. The worst that a hostile worker can do is submit nonsense, which the shard's machine
//! refuses, or break its own ring.
//!
//! - **R-1** What is popped was pushed whole, in order, once.

use crate::sync::{AtomicU64, Ordering};
use penstock_proto::submission::WORDS;

/// Submissions that a ring holds. A push of a tensor is one submission for each shard and, when its bytes are copied, for
/// each window of them; a worker that is this far ahead of a shard waits.
#[cfg(not(loom))]
pub const CAPACITY: u64 = 512;
/// Small enough to wrap around within a model.
#[cfg(loom)]
pub const CAPACITY: u64 = 2;

/// The shared part, in the worker's page.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Ring {
    tail: Line,
    head: Line,
    slots: [Slot; CAPACITY as usize],
}

#[derive(Debug)]
#[repr(C, align(64))]
struct Line(AtomicU64);

#[derive(Debug)]
#[repr(C, align(64))]
struct Slot([AtomicU64; WORDS]);

impl Ring {
    /// An empty ring: what fresh shared memory holds.
    pub fn new() -> Self {
        let slot = |_| Slot(std::array::from_fn(|_| AtomicU64::new(0)));
        Self {
            tail: Line(AtomicU64::new(0)),
            head: Line(AtomicU64::new(0)),
            slots: std::array::from_fn(slot),
        }
    }

    fn slot(&self, at: u64) -> &Slot {
        &self.slots[(at % CAPACITY) as usize]
    }
}

impl Default for Ring {
    fn default() -> Self {
        Self::new()
    }
}

/// The worker's end: its own count. `&mut self`: one writer, by type.
#[derive(Debug, Default)]
pub struct Producer {
    tail: u64,
    /// The reader's count when last looked at.
    head: u64,
}

/// The ring is full: the shard has to take something first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

impl Producer {
    /// Whether `count` pushes would find room.
    pub fn has_room(&mut self, ring: &Ring, count: u64) -> bool {
        if self.free() < count {
            // Pairs with the release store in `pop`: the shard has copied what it counts as taken.
            self.head = ring.head.0.load(Ordering::Acquire);
        }
        self.free() >= count
    }

    /// Slots that the reader had taken when last looked at. A reader's count that cannot be true frees none.
    fn free(&self) -> u64 {
        CAPACITY.saturating_sub(self.tail.wrapping_sub(self.head))
    }

    /// How many submissions the reader has taken, as it says, of how many that were pushed.
    pub fn taken(&self, ring: &Ring) -> (u64, u64) {
        (ring.head.0.load(Ordering::Acquire).min(self.tail), self.tail)
    }

    /// Pushes one submission.
    pub fn push(&mut self, ring: &Ring, words: [u64; WORDS]) -> Result<(), Full> {
        if !self.has_room(ring, 1) {
            return Err(Full);
        }
        for (shared, word) in ring.slot(self.tail).0.iter().zip(words) {
            shared.store(word, Ordering::Relaxed);
        }
        self.tail += 1;
        // Pairs with the acquire load in `pop`: a reader that sees the count also sees the words, and the lane behind them.
        ring.tail.0.store(self.tail, Ordering::Release);
        Ok(())
    }
}

/// The shard's end: its own count, which no worker can reach.
#[derive(Debug, Default)]
pub struct Consumer {
    head: u64,
}

/// The worker's count cannot be true.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it claims {claimed} submissions in a ring of {CAPACITY}")]
pub struct Broken {
    /// What it claims.
    pub claimed: u64,
}

impl Consumer {
    /// Whether nothing waits here. A broken ring counts as not empty, so that it is found out.
    pub fn is_empty(&self, ring: &Ring) -> bool {
        ring.tail.0.load(Ordering::Acquire) == self.head
    }

    /// How many submissions wait here now: as many as the worker says, but never more than fit. One that cannot be true counts
    /// as one, so that it is found out.
    pub fn waiting(&self, ring: &Ring) -> u64 {
        match ring.tail.0.load(Ordering::Acquire).wrapping_sub(self.head) {
            waiting if waiting > CAPACITY => 1,
            waiting => waiting,
        }
    }

    /// Takes the next submission, if there is one.
    pub fn pop(&mut self, ring: &Ring) -> Result<Option<[u64; WORDS]>, Broken> {
        // Pairs with the release store in `push`.
        let waiting = ring.tail.0.load(Ordering::Acquire).wrapping_sub(self.head);
        if waiting == 0 {
            return Ok(None);
        }
        if waiting > CAPACITY {
            return Err(Broken { claimed: waiting });
        }
        let slot = ring.slot(self.head);
        let words = std::array::from_fn(|word| slot.0[word].load(Ordering::Relaxed));
        self.head += 1;
        // Pairs with the acquire load in `has_room`: the slot is overwritten only after the words were copied.
        ring.head.0.store(self.head, Ordering::Release);
        Ok(Some(words))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_full_ring_takes_nothing_more_until_something_was_taken() {
        let (ring, mut producer, mut consumer) = (Ring::new(), Producer::default(), Consumer::default());
        for n in 0..CAPACITY {
            producer.push(&ring, [n; WORDS]).unwrap();
        }
        assert_eq!(producer.push(&ring, [0; WORDS]), Err(Full));
        assert_eq!(consumer.waiting(&ring), CAPACITY);
        assert_eq!(consumer.pop(&ring), Ok(Some([0; WORDS])));
        assert!(producer.has_room(&ring, 1) && !producer.has_room(&ring, 2));
        assert_eq!(producer.push(&ring, [CAPACITY; WORDS]), Ok(()));
    }

    #[test]
    fn a_count_that_cannot_be_true_is_found_out() {
        let (ring, mut consumer) = (Ring::new(), Consumer::default());
        for claimed in [CAPACITY + 1, u64::MAX] {
            ring.tail.0.store(claimed, Ordering::Relaxed);
            assert!(!consumer.is_empty(&ring));
            assert_eq!(consumer.waiting(&ring), 1);
            assert_eq!(consumer.pop(&ring), Err(Broken { claimed }));
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    #[test]
    fn what_is_popped_was_pushed_whole_and_in_order() {
        let outcomes = std::sync::Arc::new(Mutex::new(BTreeSet::new()));
        let seen = std::sync::Arc::clone(&outcomes);
        loom::model(move || {
            let ring = Arc::new(Ring::new());
            let worker = Arc::clone(&ring);
            let writer = loom::thread::spawn(move || {
                let mut producer = Producer::default();
                // One more than fits, so that the ring wraps where the shard was fast.
                (1..=CAPACITY + 1).map(|n| producer.push(&worker, [n; WORDS]).is_ok()).collect::<Vec<_>>()
            });
            let mut consumer = Consumer::default();
            let mut popped = Vec::new();
            for _ in 0..2 {
                if let Some(words) = consumer.pop(&ring).unwrap() {
                    assert!(words.iter().all(|&word| word == words[0]), "R-1: whole");
                    popped.push(words[0]);
                }
            }
            let pushed = writer.join().unwrap();
            let early = popped.len();
            while let Some(words) = consumer.pop(&ring).unwrap() {
                popped.push(words[0]);
            }
            let accepted = pushed.iter().filter(|&&ok| ok).count() as u64;
            assert_eq!(popped, (1..=accepted).collect::<Vec<_>>(), "R-1: in order, once");
            seen.lock().unwrap().insert((early, accepted));
        });
        let outcomes = outcomes.lock().unwrap();
        for expected in [(0, 2), (1, 2), (1, 3), (2, 3)] {
            assert!(outcomes.contains(&expected), "{expected:?} never came up, only {outcomes:?}");
        }
    }
}
