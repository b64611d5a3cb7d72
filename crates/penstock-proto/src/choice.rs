//! Which propagation `auto` is: chosen once, where a tensor is declared, from what all workers of a job declare alike.
//!
//! | | no filter of values holds anything back | one does |
//! |---|---|---|
//! | BSP, a tree | broadcast | broadcast |
//! | BSP, no tree | pull | pull |
//! | SSP | pull | broadcast |
//! | ASP | pull | pull |
//!
//! Under BSP a broadcast promises what a pull does, and saves nothing by itself: a push has asked for its result. Along a tree a home
//! sends a version once, and not to each host (docs/tree-performance.md). Under SSP a worker that pulls sees all of its own updates,
//! which it does not of what is broadcast: that is given up only where a filter shows it a part of them anyway, and chooses once for
//! each version in place of once for each fold (three times the bytes: docs/flow-performance.md, `mf`). Under ASP a home would send
//! at every fold.

use crate::consistency::Consistency;
use crate::overlay::Shape;
use crate::propagation::{ParsePropagationError, Propagation};
use std::fmt;
use std::str::FromStr;

/// What a declaration says of who moves its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// This one does.
    For(Propagation),
    /// Whichever suits.
    Auto,
}

/// What it depends on: the same on all workers, or their declarations differ.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Circumstances {
    /// The tensor's.
    pub consistency: Consistency,
    /// The job's option `tree`.
    pub tree: Shape,
    /// Whether the filter of the tensor's values may hold something back.
    pub holds_back: bool,
}

/// What was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chosen {
    /// Who moves values.
    pub propagation: Propagation,
    /// Why; `None`: it was asked for by its name.
    pub why: Option<Why>,
}

/// Why `auto` is what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// BSP, and a tree.
    Tree,
    /// BSP, and none.
    NoTree,
    /// SSP, and a filter of values.
    Filter,
    /// SSP, and none.
    OwnUpdates,
    /// ASP.
    EveryFold,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tree => "the job has a tree, along which a server sends each version once",
            Self::NoTree => "under BSP a push asks for its result already, and the job has no tree",
            Self::Filter => {
                "under SSP its filter of broadcasts then chooses once for each version, not at each push"
            }
            Self::OwnUpdates => "under SSP a worker that pulls sees its own updates at once",
            Self::EveryFold => "under ASP servers would send at each push",
        })
    }
}

impl Asked {
    /// Who moves values.
    pub fn choose(self, found: &Circumstances) -> Chosen {
        let why = match (self, found.consistency) {
            (Self::For(propagation), _) => return Chosen { propagation, why: None },
            (Self::Auto, Consistency::Bsp) if found.tree == Shape::Star => Why::NoTree,
            (Self::Auto, Consistency::Bsp) => Why::Tree,
            (Self::Auto, Consistency::Ssp(_)) if found.holds_back => Why::Filter,
            (Self::Auto, Consistency::Ssp(_)) => Why::OwnUpdates,
            (Self::Auto, Consistency::Asp) => Why::EveryFold,
        };
        let propagation = match why {
            Why::Tree | Why::Filter => Propagation::Broadcast,
            Why::NoTree | Why::OwnUpdates | Why::EveryFold => Propagation::Pull,
        };
        Chosen { propagation, why: Some(why) }
    }
}

/// A text that says of no propagation that it is asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}; `auto` chooses")]
pub struct ParseAskedError(#[from] ParsePropagationError);

impl FromStr for Asked {
    type Err = ParseAskedError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "auto" { Ok(Self::Auto) } else { Ok(Self::For(text.parse()?)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlay::Shape;

    #[test]
    fn auto_gives_up_a_workers_own_updates_only_where_a_filter_of_values_shows_a_part_of_them_anyway() {
        for tree in [Shape::Star, Shape::Chain, Shape::Auto, Shape::Striped { stripes: None }] {
            for holds_back in [false, true] {
                let chosen = |consistency| {
                    Asked::Auto.choose(&Circumstances { consistency, tree, holds_back }).propagation
                };
                let has_tree = tree != Shape::Star;
                assert_eq!(chosen(Consistency::Bsp) == Propagation::Broadcast, has_tree);
                for slack in [0, 1, 9] {
                    assert_eq!(chosen(Consistency::Ssp(slack)) == Propagation::Broadcast, holds_back);
                }
                assert_eq!(chosen(Consistency::Asp), Propagation::Pull);
            }
        }
    }

    #[test]
    fn what_is_asked_for_by_its_name_is_what_it_is_and_nobody_asks_why() {
        for propagation in [Propagation::Pull, Propagation::Broadcast] {
            let asked: Asked = propagation.to_string().parse().unwrap();
            for consistency in [Consistency::Bsp, Consistency::Ssp(2), Consistency::Asp] {
                let found = Circumstances { consistency, tree: Shape::Chain, holds_back: true };
                assert_eq!(asked.choose(&found), Chosen { propagation, why: None });
            }
        }
        assert_eq!("auto".parse(), Ok(Asked::Auto));
        let said = "Auto".parse::<Asked>().unwrap_err().to_string();
        assert!(said.ends_with("got `Auto`; `auto` chooses"), "{said}");
    }
}
