//! Consistency: what version a reader must see, a predicate on clocks.
//!
//! *Version v* of a value reflects every update stamped < v from every live worker, and maybe some later ones. A read at
//! position t with slack s returns a version >= t - s, where the *position* of a worker on a tensor is its clock, plus one
//! if it has already pushed the tensor in this iteration: a worker reads its own writes.
//!
//! | | folds | a read at position t sees | costs |
//! |---|---|---|---|
//! | BSP | once a version, all live workers' updates in rank order | exactly version t | a wait for the slowest, each iteration |
//! | SSP(s) | each update when it arrives | at least t - s, and all own updates | a wait only when more than s ahead |
//! | ASP | each update when it arrives | all own updates | never a wait for others |
//!
//! Own updates are seen at once where readers [pull](crate::propagation). Stale synchronous parallel: Ho et al. 2013, section
//! 2. The papers count differently by one: Lapser's `base_version` is the position, its `slack` ours (lapser.md, 3.1.3.C). With
//! one worker all three give the same values.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What a reader of a tensor must see. The default of a job, of a tensor, and (as a slack) of a single read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Consistency {
    /// Bulk synchronous: everyone's updates of the last iteration, bit for bit the same in every run.
    Bsp,
    /// Stale synchronous: at most this many iterations behind.
    Ssp(u32),
    /// Asynchronous: whatever stands there.
    Asp,
}

/// The largest slack that can be asked for: beyond it, ask for ASP. Keeps `position - slack` far from any overflow.
pub const MAX_SLACK: u32 = 1 << 30;

impl Consistency {
    /// The slack of a read that names none; `None` is unbounded.
    pub fn slack(self) -> Option<u32> {
        match self {
            Self::Bsp => Some(0),
            Self::Ssp(slack) => Some(slack),
            Self::Asp => None,
        }
    }

    /// Whether a chunk is folded once for all workers (BSP), not once for each update.
    pub fn folds_together(self) -> bool {
        self == Self::Bsp
    }

    /// Least version that a read at `position` must return, with its own `slack` or else this consistency's.
    pub fn required(self, position: u64, slack: Option<u32>) -> u64 {
        match slack.or_else(|| self.slack()) {
            Some(slack) => position.saturating_sub(u64::from(slack)),
            None => 0,
        }
    }
}

impl fmt::Display for Consistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bsp => f.write_str("bsp"),
            Self::Ssp(slack) => write!(f, "ssp:{slack}"),
            Self::Asp => f.write_str("asp"),
        }
    }
}

/// A consistency that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected consistency `bsp`, `ssp:SLACK` (0 to {MAX_SLACK}) or `asp`, got `{got}`")]
pub struct ParseConsistencyError {
    got: String,
}

impl FromStr for Consistency {
    type Err = ParseConsistencyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let slack = |digits: &str| digits.parse().ok().filter(|&slack| slack <= MAX_SLACK).map(Self::Ssp);
        let parsed = match text {
            "bsp" => Some(Self::Bsp),
            "asp" => Some(Self::Asp),
            _ => text.strip_prefix("ssp:").and_then(slack),
        };
        parsed.ok_or_else(|| ParseConsistencyError { got: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_never_allowed_to_be_more_than_its_slack_behind() {
        assert_eq!(Consistency::Bsp.required(7, None), 7);
        assert_eq!(Consistency::Ssp(4).required(7, None), 3);
        assert_eq!(Consistency::Ssp(4).required(2, None), 0);
        assert_eq!(Consistency::Asp.required(7, None), 0);
    }

    #[test]
    fn a_read_may_ask_for_less_slack_than_its_tensors() {
        assert_eq!(Consistency::Ssp(4).required(7, Some(1)), 6);
        assert_eq!(Consistency::Asp.required(7, Some(0)), 7);
    }

    #[test]
    fn every_consistency_reads_back_as_it_was_written() {
        for consistency in [Consistency::Bsp, Consistency::Ssp(0), Consistency::Ssp(4), Consistency::Asp] {
            assert_eq!(consistency.to_string().parse(), Ok(consistency));
        }
    }

    #[test]
    fn what_is_no_consistency_is_refused() {
        for text in ["", "ssp", "ssp:", "ssp:-1", "ssp:1.5", "BSP", "ssp:99999999999"] {
            assert!(text.parse::<Consistency>().is_err(), "{text}");
        }
    }
}
