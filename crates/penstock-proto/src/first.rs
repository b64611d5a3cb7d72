//! What worker 0 does for all workers, such as loading a value: all meet, it does it while the others wait, and all meet again.
//!
//! Worker 0 says at each of the two meetings what it is about, and so the others never take one for the other: whatever keeps it
//! from the second, its next attempt begins with a first, at which the others go on to wait.
//!
//! - **M-4** A worker that waits for what worker 0 does goes on as if it were done only when worker 0 has said so.

use crate::error::{MAX_TEXT_BYTES, shorten};
use serde::{Deserialize, Serialize};

/// What worker 0 says to those that it meets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Word {
    /// What it does for all. Those that wait for something else do not wait for this.
    pub what: String,
    /// How far it is.
    pub stage: Stage,
}

/// How far worker 0 is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// It does it now.
    Begins,
    /// It has done it.
    Done,
    /// It has not, or only a part.
    Failed {
        /// Why.
        why: String,
    },
}

impl Word {
    /// That it is so far with `what`.
    pub fn new(what: &str, stage: Stage) -> Self {
        Self { what: what.to_owned(), stage }.brief()
    }

    /// The same, shortened so that it fits into a message.
    #[must_use]
    pub fn brief(mut self) -> Self {
        shorten(&mut self.what, MAX_TEXT_BYTES);
        if let Stage::Failed { why } = &mut self.stage {
            shorten(why, MAX_TEXT_BYTES);
        }
        self
    }
}

/// What a meeting tells a worker that waits for what worker 0 does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// Worker 0 does it now, maybe anew: wait for the next meeting.
    Begins,
    /// It is done.
    Done,
    /// It is not done.
    Not {
        /// What worker 0 did instead, in words that follow its name.
        instead: String,
    },
}

/// What a worker that waits for `what` hears from worker 0, which was at the meeting; no word: it stands at a barrier.
pub fn hear(what: &str, word: Option<Word>) -> Heard {
    let awaited = Word::new(what, Stage::Begins).what;
    let instead = match word {
        None => "stands at a barrier instead".to_owned(),
        Some(Word { what, stage }) if what == awaited => match stage {
            Stage::Begins => return Heard::Begins,
            Stage::Done => return Heard::Done,
            Stage::Failed { why } => format!("failed: {why}"),
        },
        Some(Word { what, .. }) => format!("does something else: {what}"),
    };
    Heard::Not { instead }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: &str = "load of `w`";

    // M-4.
    #[test]
    fn only_the_word_that_it_is_done_is_taken_for_that() {
        let says = |what, stage| hear(LOAD, Some(Word::new(what, stage)));
        let failed = || Stage::Failed { why: "no room".to_owned() };
        assert_eq!(says(LOAD, Stage::Done), Heard::Done);
        assert_eq!(says(LOAD, Stage::Begins), Heard::Begins);
        assert_eq!(says(LOAD, failed()), Heard::Not { instead: "failed: no room".to_owned() });
        for stage in [Stage::Begins, Stage::Done, failed()] {
            let Heard::Not { instead } = says("load of `v`", stage) else { panic!("of another tensor") };
            assert!(instead.contains("load of `v`"));
        }
        assert!(matches!(hear(LOAD, None), Heard::Not { .. }));
    }

    #[test]
    fn a_long_name_is_known_again_when_it_is_shortened() {
        let long = "w".repeat(4 * MAX_TEXT_BYTES);
        let word = Word::new(&long, Stage::Done);
        assert!(word.what.len() < long.len());
        assert_eq!(hear(&long, Some(word)), Heard::Done);
    }
}
