//! Propagation: who moves a tensor's values from their home to the readers, and when readers see them.
//!
//! | | a home sends a reader on another host | a reader sees |
//! |---|---|---|
//! | pull | what it fetches; under BSP a push has asked for its result | the value, as new as it is |
//! | broadcast | what is new, as soon as it is final, unasked from its first fetch on | versions that are final |
//! | update | the same, as what is new was made: the aggregated update, which the reader folds for itself | versions that are final |
//!
//! Under BSP each fold makes a version, and under ASP none is ever final: there each fold is sent. Under SSP a version is final once
//! every worker has contributed to it or passed it by (parameter-flow.md, 3.2.1, UCC-SSP). What was folded by then, of later
//! iterations too, is in the first version that is final after it, once (equation 5). What is folded before is in the home's value
//! and in nobody's sight, so that all who read a version read the same, on whatever host; a worker does not see its own updates
//! before they are in a version.
//!
//! A value that is sent as [updates](crate::update) is one under BSP: out of step each contribution is an update of its own, and
//! what a slow link skips of them could not be made up for (equation 4).

use crate::consistency::Consistency;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Who moves values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Propagation {
    /// Readers fetch them.
    #[default]
    Pull,
    /// Their home sends them.
    Broadcast,
    /// Their home sends the updates that it folds, and the readers fold them too. BSP only.
    Update,
}

impl Propagation {
    /// All that there are.
    pub const ALL: [Self; 3] = [Self::Pull, Self::Broadcast, Self::Update];

    /// Whether what is new comes unasked to whoever has asked for the value once.
    pub fn is_unasked(self) -> bool {
        self != Self::Pull
    }

    /// Whether readers see nothing of a value between two versions, so that it has to be kept beside what they see.
    pub fn shows_versions_only(self, consistency: Consistency) -> bool {
        self == Self::Broadcast && matches!(consistency, Consistency::Ssp(_))
    }

    /// The slack of a read that may have this one, in a job of so many workers. Alone, a worker waits for nobody: it is promised its
    /// own updates in any mode, by the version that has them.
    pub fn slack(self, slack: Option<u32>, workers: u32) -> Option<u32> {
        if self.is_unasked() && workers == 1 { Some(0) } else { slack }
    }

    /// Whether a reader finds all of its own updates in what it reads. Under BSP they are in the version that it reads anyway.
    pub fn shows_own(self, consistency: Consistency) -> bool {
        self == Self::Pull && !consistency.folds_together()
    }
}

impl fmt::Display for Propagation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pull => "pull",
            Self::Broadcast => "broadcast",
            Self::Update => "update",
        })
    }
}

/// A propagation that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected propagation `pull`, `broadcast` or `update`, got `{got}`")]
pub struct ParsePropagationError {
    got: String,
}

impl FromStr for Propagation {
    type Err = ParsePropagationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|one| one.to_string() == text);
        named.ok_or_else(|| ParsePropagationError { got: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_broadcast_of_bounded_staleness_shows_versions_alone_and_only_pulls_show_own_updates() {
        let all = [Consistency::Bsp, Consistency::Ssp(0), Consistency::Ssp(4), Consistency::Asp];
        let (pull, broadcast) = (Propagation::Pull, Propagation::Broadcast);
        assert_eq!(all.map(|one| broadcast.shows_versions_only(one)), [false, true, true, false]);
        assert_eq!(all.map(|one| pull.shows_versions_only(one)), [false; 4]);
        assert_eq!(all.map(|one| pull.shows_own(one)), [false, true, true, true]);
        assert_eq!(all.map(|one| broadcast.shows_own(one)), [false; 4]);
        assert_eq!([None, Some(3)].map(|slack| broadcast.slack(slack, 1)), [Some(0); 2]);
        assert_eq!(
            [(pull, 1), (broadcast, 2)].map(|(one, workers)| one.slack(Some(3), workers)),
            [Some(3); 2]
        );
    }

    #[test]
    fn each_reads_back_as_it_was_written_and_nothing_else_is_one() {
        for propagation in Propagation::ALL {
            assert_eq!(propagation.to_string().parse(), Ok(propagation));
        }
        for text in ["", "Pull", "eager", "broadcast "] {
            let said = text.parse::<Propagation>().unwrap_err().to_string();
            assert_eq!(said, format!("expected propagation `pull`, `broadcast` or `update`, got `{text}`"));
        }
    }
}
