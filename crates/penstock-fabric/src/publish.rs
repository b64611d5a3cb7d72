//! Publication: how a chunk's home changes its value under the eyes of readers, and how a reader notices.
//!
//! The value is changed in place (the model is read and written once per fold, the least the memory allows), so a reader
//! that copies while the home folds would see a mixture. A sequence number tells: odd while the home is inside, two more
//! after each change. Readers never write, so they can neither block nor harm the home.
//!
//! - **P-1** A reader that gets a copy gets the payload, version and step count of one publication, unmixed.
//! - **P-2** The versions that one reader gets of one chunk never fall.
//!
//! Why it holds. The home's odd sequence is ordered before its payload writes by the release fence in [`begin`]; a reader
//! that saw any of those writes therefore sees, behind its acquire fence, a sequence that is not the even one it started
//! from. The even sequence is stored with release after the payload, so a reader that starts from it sees all of it. It is
//! lapser.md, 3.3.1 (figure 3.1: a clock that overtakes its value) with the clock inside what is verified; a checksum adds
//! nothing where the memory is coherent.
//!
//! [`begin`]: Publisher::begin

use crate::sync::{AtomicU64, Ordering, fence};

/// Header of a chunk, 64 bytes, written by its home only. Drawn in docs/layout.md.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct ChunkHeader {
    /// Odd while the home is inside; two more after each publication.
    sequence: AtomicU64,
    /// The chunk's version.
    version: AtomicU64,
    /// Optimizer steps that it has behind it.
    steps: AtomicU64,
    /// Of a mirror's: by which numbers the home knows what stands there, for who borrows it. A home leaves them 0.
    publication: AtomicU64,
    content: AtomicU64,
}

/// The numbers by which a home knows what it has published of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Numbers {
    /// The publication that came last with a value.
    pub publication: u64,
    /// The one that last changed what is seen.
    pub content: u64,
}

/// What a reader got with a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Published {
    /// The chunk's version.
    pub version: u64,
    /// Optimizer steps behind it.
    pub steps: u64,
}

/// The home was inside while the reader looked: what was copied must not be used. Try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Torn;

impl ChunkHeader {
    /// The header of a chunk of zeros: what fresh shared memory holds.
    pub fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self { sequence: zero(), version: zero(), steps: zero(), publication: zero(), content: zero() }
    }

    /// The version + 1, or a later one's; 0 before the first. What is then [read](Self::read) is not older.
    pub fn progress(&self) -> u64 {
        // Pairs with the release in `leave`. The first publication ends with sequence 2.
        match self.sequence.load(Ordering::Acquire) {
            0 | 1 => 0,
            // Another process may have written any number.
            _ => self.version.load(Ordering::Relaxed).saturating_add(1),
        }
    }

    /// What stands there, and by which numbers its home knows it, with the sequence that counts publications; `None` before the first.
    pub fn numbers(&self) -> Result<Option<(u64, Published, Numbers)>, Torn> {
        let mut numbers = Numbers::default();
        let sequence = self.sequence.load(Ordering::Relaxed);
        let published = self.read(|| {
            let Self { publication, content, .. } = self;
            (numbers.publication, numbers.content) =
                (publication.load(Ordering::Relaxed), content.load(Ordering::Relaxed));
        })?;
        // It has not changed since, or what was read belongs to a later one: then the sequence looks older than that, and whoever
        // compares it looks again.
        Ok((sequence > 1).then_some((sequence, published, numbers)))
    }

    /// Counts publications; odd while the home is inside. Behind it nothing is read that is older.
    pub fn sequence(&self) -> u64 {
        self.sequence.load(Ordering::Acquire)
    }

    /// Copies the payload with `copy`, which must use racing-safe loads, and says what it got.
    pub fn read(&self, copy: impl FnOnce()) -> Result<Published, Torn> {
        let before = self.sequence.load(Ordering::Acquire);
        if before % 2 == 1 {
            return Err(Torn);
        }
        let version = self.version.load(Ordering::Relaxed);
        let steps = self.steps.load(Ordering::Relaxed);
        copy();
        // Pairs with the release fence in `begin`.
        fence(Ordering::Acquire);
        if self.sequence.load(Ordering::Relaxed) != before {
            return Err(Torn);
        }
        Ok(Published { version, steps })
    }
}

/// The home's end of a header: it alone writes it, and keeps the sequence itself rather than reading it back.
#[derive(Debug)]
pub struct Publisher<'a> {
    header: &'a ChunkHeader,
    sequence: &'a mut u64,
}

impl<'a> Publisher<'a> {
    /// For the header of a chunk and the sequence that its home keeps, 0 at first.
    pub fn new(header: &'a ChunkHeader, sequence: &'a mut u64) -> Self {
        Self { header, sequence }
    }

    fn is_inside(&self) -> bool {
        *self.sequence % 2 == 1
    }

    /// The home goes in: from now on readers refuse what they see.
    pub fn begin(&mut self) {
        if !self.is_inside() {
            *self.sequence += 1;
            self.header.sequence.store(*self.sequence, Ordering::Relaxed);
            // Pairs with the acquire fence in `read`: a reader that sees a write that follows also sees the odd sequence.
            fence(Ordering::Release);
        }
    }

    /// The home comes out: the payload as it stands is this version. Goes in first if it was not.
    pub fn publish(&mut self, published: Published) {
        self.begin();
        self.header.version.store(published.version, Ordering::Relaxed);
        self.header.steps.store(published.steps, Ordering::Relaxed);
        self.leave();
    }

    /// The home, which is another's here, knows what is published next by these numbers.
    pub fn number(&mut self, Numbers { publication, content }: Numbers) {
        self.begin();
        self.header.publication.store(publication, Ordering::Relaxed);
        self.header.content.store(content, Ordering::Relaxed);
    }

    /// The home comes out without having changed anything.
    pub fn leave(&mut self) {
        if self.is_inside() {
            *self.sequence += 1;
            // Pairs with the acquire load in `read`: a reader that sees the new sequence also sees the new payload.
            self.header.sequence.store(*self.sequence, Ordering::Release);
        }
    }
}

impl Default for ChunkHeader {
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

    struct Chunk {
        header: ChunkHeader,
        words: [AtomicU64; 2],
    }

    impl Chunk {
        fn change(&self, sequence: &mut u64, to: u64) {
            let mut publisher = Publisher::new(&self.header, sequence);
            publisher.begin();
            for word in &self.words {
                word.store(to, Ordering::Relaxed);
            }
            publisher.publish(Published { version: to, steps: to });
        }

        fn read(&self) -> Result<u64, Torn> {
            let mut words = [0; 2];
            let published = self.header.read(|| {
                for (copy, word) in words.iter_mut().zip(&self.words) {
                    *copy = word.load(Ordering::Relaxed);
                }
            })?;
            assert_eq!(words, [published.version; 2], "P-1");
            assert_eq!(published.steps, published.version, "P-1");
            Ok(published.version)
        }
    }

    fn chunk() -> Arc<Chunk> {
        Arc::new(Chunk { header: ChunkHeader::new(), words: [AtomicU64::new(0), AtomicU64::new(0)] })
    }

    #[test]
    fn a_reader_never_pairs_a_version_with_words_of_another() {
        let outcomes = std::sync::Arc::new(Mutex::new(BTreeSet::new()));
        let seen = std::sync::Arc::clone(&outcomes);
        loom::model(move || {
            let chunk = chunk();
            let home = Arc::clone(&chunk);
            let writer = loom::thread::spawn(move || {
                let mut sequence = 0;
                home.change(&mut sequence, 1);
                home.change(&mut sequence, 2);
            });
            let read = chunk.read();
            seen.lock().unwrap().insert(read);
            writer.join().unwrap();
            assert_eq!(chunk.read(), Ok(2), "a reader that comes after it sees it");
        });
        // A model that never met a race proves nothing: every outcome must have come up.
        assert_eq!(*outcomes.lock().unwrap(), BTreeSet::from([Ok(0), Ok(1), Ok(2), Err(Torn)]));
    }

    #[test]
    fn the_versions_that_a_reader_gets_never_fall() {
        let outcomes = std::sync::Arc::new(Mutex::new(BTreeSet::new()));
        let seen = std::sync::Arc::clone(&outcomes);
        loom::model(move || {
            let chunk = chunk();
            let home = Arc::clone(&chunk);
            let writer = loom::thread::spawn(move || home.change(&mut 0, 1));
            let (first, second) = (chunk.read(), chunk.read());
            if let (Ok(first), Ok(second)) = (first, second) {
                assert!(first <= second, "P-2");
            }
            seen.lock().unwrap().insert((first, second));
            writer.join().unwrap();
        });
        let outcomes = outcomes.lock().unwrap();
        for expected in
            [(Ok(0), Ok(0)), (Ok(0), Ok(1)), (Ok(1), Ok(1)), (Err(Torn), Ok(1)), (Ok(0), Err(Torn))]
        {
            assert!(outcomes.contains(&expected), "{expected:?} never came up");
        }
    }

    /// What a reader waits for before it reads one chunk of several.
    #[test]
    fn what_is_read_behind_a_look_at_the_progress_is_not_older() {
        let outcomes = std::sync::Arc::new(Mutex::new(BTreeSet::new()));
        let seen = std::sync::Arc::clone(&outcomes);
        let mut model = loom::model::Builder::new();
        // All interleavings of both changes take minutes.
        model.preemption_bound = Some(3);
        model.check(move || {
            let chunk = chunk();
            let home = Arc::clone(&chunk);
            let writer = loom::thread::spawn(move || {
                let mut sequence = 0;
                home.change(&mut sequence, 1);
                home.change(&mut sequence, 2);
            });
            let progress = chunk.header.progress();
            let read = chunk.read();
            assert!(read.is_err() || read >= Ok(progress.saturating_sub(1)), "{progress}, {read:?}");
            seen.lock().unwrap().insert((progress, read.is_ok()));
            writer.join().unwrap();
        });
        let outcomes = outcomes.lock().unwrap();
        for expected in [(0, true), (2, true), (2, false), (3, true)] {
            assert!(outcomes.contains(&expected), "{expected:?} never came up");
        }
    }

    /// What a borrower goes by.
    #[test]
    fn the_numbers_that_are_read_are_those_of_the_version_beside_them() {
        let outcomes = std::sync::Arc::new(Mutex::new(BTreeSet::new()));
        let seen = std::sync::Arc::clone(&outcomes);
        let mut model = loom::model::Builder::new();
        // Two writes of five words: all interleavings take minutes.
        model.preemption_bound = Some(2);
        model.check(move || {
            let chunk = chunk();
            let home = Arc::clone(&chunk);
            let writer = loom::thread::spawn(move || {
                let mut sequence = 0;
                for version in [1, 2] {
                    let mut publisher = Publisher::new(&home.header, &mut sequence);
                    publisher.number(Numbers { publication: 10 * version, content: 10 * version });
                    publisher.publish(Published { version, steps: version });
                }
            });
            let read = chunk.header.numbers();
            if let Ok(Some((_, published, numbers))) = read {
                let number = 10 * published.version;
                assert_eq!(numbers, Numbers { publication: number, content: number });
            }
            seen.lock().unwrap().insert(read.map(|read| read.map(|(_, published, _)| published.version)));
            writer.join().unwrap();
        });
        let outcomes = outcomes.lock().unwrap();
        for expected in [Ok(None), Ok(Some(1)), Ok(Some(2)), Err(Torn)] {
            assert!(outcomes.contains(&expected), "{expected:?} never came up");
        }
    }

    #[test]
    fn a_visit_that_changes_nothing_leaves_the_chunk_readable() {
        loom::model(|| {
            let chunk = chunk();
            let home = Arc::clone(&chunk);
            let writer = loom::thread::spawn(move || {
                let mut sequence = 0;
                let mut publisher = Publisher::new(&home.header, &mut sequence);
                publisher.begin();
                publisher.leave();
            });
            assert!(matches!(chunk.read(), Ok(0) | Err(Torn)));
            writer.join().unwrap();
            assert_eq!(chunk.read(), Ok(0));
        });
    }
}
