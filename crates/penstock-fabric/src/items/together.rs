//! Several rows at once: whether what was seen of each belongs together (I-3).

use super::slot::{Look, Moment, Progress, Torn};

/// Rows that were looked at together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Together {
    /// The least version among them.
    pub version: u64,
    /// The last set after which they were still the newest.
    pub as_of: u64,
}

/// Looks at several rows, which are to belong together.
#[derive(Debug)]
pub struct Gathered<'a> {
    progress: &'a Progress,
    first: Moment,
    now: Moment,
    /// All looks were from one moment.
    strict: bool,
    /// Some row carries a limit of its own: rows come here one by one, and the partition's progress says nothing of their sets.
    apart: bool,
    version: u64,
    newest: u64,
    as_of: u64,
}

impl<'a> Gathered<'a> {
    /// None so far.
    pub fn new(progress: &'a Progress) -> Self {
        let first = progress.now();
        let (strict, apart) = (true, false);
        Self { progress, first, now: first, strict, apart, version: u64::MAX, newest: 0, as_of: u64::MAX }
    }

    /// Looks at some rows, as of the moment that is given.
    #[inline]
    pub fn look<T>(&mut self, mut look: impl FnMut(Moment) -> Result<T, Torn>) -> Result<T, Torn> {
        look(self.now).or_else(|Torn| {
            // The writer came round here. If its sets are of one row each, a later moment will do.
            (self.now, self.strict) = (self.progress.now(), false);
            look(self.now)
        })
    }

    /// What was seen of a row, or of some that one set wrote.
    #[inline]
    pub fn take(&mut self, look: Look) {
        self.version = self.version.min(look.clock.max(self.now.floor));
        self.newest = self.newest.max(look.number);
        self.as_of = self.as_of.min(look.as_of);
        self.apart |= look.as_of > self.now.done;
    }

    /// All of them, if they belong together.
    pub fn together(&self) -> Result<Together, Torn> {
        // Rows looked at as of one moment are all within its limit; rows of a mirror must have been current at one common set.
        let common = self.newest <= self.as_of;
        let alone = || !self.strict && !self.apart && self.progress.belong_together(self.first);
        if common || alone() {
            return Ok(Together { version: self.version, as_of: self.as_of });
        }
        Err(Torn)
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::super::model::{Memory, Writer};
    use super::*;
    use loom::sync::Arc;
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    /// Both rows of a mirror.
    fn both(mirror: &Memory) -> Result<[u64; 2], Torn> {
        let mut all = Gathered::new(&mirror.progress);
        let mut numbers = [0; 2];
        for (row, number) in numbers.iter_mut().enumerate() {
            let look = all.look(|now| mirror.look(row, now.done))?;
            *number = look.number;
            all.take(look);
        }
        all.together().map(|_| numbers)
    }

    #[test]
    fn rows_that_come_one_by_one_are_seen_as_one_set_left_them_or_not_at_all() {
        let seen = std::sync::Arc::new(Mutex::new(BTreeSet::new()));
        let all = std::sync::Arc::clone(&seen);
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let mirror = Memory::new(2, 1);
            let mut writer = Writer::over(Arc::clone(&mirror));
            let thread = loom::thread::spawn(move || {
                // Each set wrote both rows.
                for number in 1..3 {
                    writer.refresh_to(0, number);
                    writer.refresh_to(1, number);
                }
            });
            let got = both(&mirror);
            if let Ok([one, other]) = got {
                assert_eq!(one, other, "I-3");
            }
            seen.lock().unwrap().insert(got);
            thread.join().unwrap();
            assert_eq!(both(&mirror), Ok([2, 2]));
        });
        let all = all.lock().unwrap();
        for expected in [Ok([0, 0]), Ok([1, 1]), Ok([2, 2]), Err(Torn)] {
            assert!(all.contains(&expected), "{expected:?} never came up: {all:?}");
        }
    }
}
