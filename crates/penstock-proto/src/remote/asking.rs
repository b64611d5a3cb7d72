//! What a worker asks of a home on another host, and when: at a pull, and at a push.
//!
//! A value that stands still (BSP without slack) is asked for once, most often by the push before: a pull then only waits for it. A
//! value that moves by itself is fetched at every pull. After a barrier, and after a load of this worker's own, a value may have
//! changed without a new version: then all of it is fetched anew, and whoever pulls later waits for that, too. A home that
//! broadcasts has to be asked once, and then sends what is new.

use crate::consistency::Consistency;
use crate::worker::Requirement;

/// What may have changed a value without a new version, counted: each worker counts for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Changes {
    /// Barriers that it has passed, behind which it sees what others have loaded.
    pub barriers: u64,
    /// Its own loads of the tensor.
    pub loads: u64,
}

impl Changes {
    /// Whether the value may have changed since it was last fetched from every home, which was at `fetched`.
    pub fn are_newer_than(self, fetched: Self) -> bool {
        self != fetched
    }
}

/// What a worker knows of a tensor at one home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// The least version of all chunks that has come + 1; 0: none.
    pub progress: u64,
    /// The version + 1 that pushes have asked for; 0: none.
    pub wanted: u64,
    /// Whether the home sends what is new unasked: it broadcasts, and was asked before.
    pub is_sent: bool,
}

/// What a pull asks of a home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtPull {
    /// Nothing: what it requires has come, or comes unasked. It waits for what was last fetched anew, if that is still to come.
    Nothing,
    /// Chunks that have changed and have this version, and the others once they have it. It waits for the ticket.
    Fetch {
        /// The version.
        version: u64,
    },
    /// All that has changed, whatever its version: a fetch of version 0. It waits for the ticket, as later pulls do that ask for
    /// nothing.
    Anew {
        /// The version that it requires, to be asked for without a ticket; `None`: it has come, or comes unasked.
        want: Option<u64>,
    },
}

/// What a pull asks of a home. `anew`: the value may have changed without a new version since it was last fetched.
pub fn at_pull(requirement: &Requirement, known: Known, anew: bool) -> AtPull {
    let Requirement { version, stands_still, .. } = *requirement;
    let comes = known.is_sent || known.progress > version || known.wanted > version;
    match (anew, comes && (stands_still || known.is_sent)) {
        (true, _) => AtPull::Anew { want: (!comes).then_some(version) },
        (false, true) => AtPull::Nothing,
        (false, false) => AtPull::Fetch { version },
    }
}

/// Whether a pull of some chunks asks a home for this one, with a ticket that it waits for, as it does for the chunk's version: also
/// behind a barrier or a load, since what comes then stands for later pulls of nothing else. `known`: of that chunk, at a home that
/// does not broadcast. Otherwise it has come or is on its way, with the ticket of what was last fetched anew at the latest.
pub fn at_pull_of_chunk(requirement: &Requirement, known: Known, anew: bool) -> bool {
    let Requirement { version, stands_still, .. } = *requirement;
    anew || !stands_still || known.progress <= version && known.wanted <= version
}

/// The version that a push asks a home to send as soon as it is there, chunk by chunk: its result, where that is the next to be
/// pulled. `pulled`: all of the value was pulled since the push before, so that this one's is likely to be. `is_sent`: it comes
/// unasked.
pub fn at_push(pulled: bool, is_sent: bool, consistency: Consistency, stamp: u64) -> Option<u64> {
    (pulled && !is_sent && consistency.folds_together()).then_some(stamp + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::propagation::Propagation;
    use crate::worker::Position;

    /// A pull of a worker that has pushed in its iterations 0, 1 and 2 and is in its third.
    fn requirement(slack: Option<u32>, consistency: Consistency) -> Requirement {
        let mut position = Position::default();
        for clock in 0..3 {
            position.contributed(position.contribute(clock, false).unwrap());
        }
        position.requirement(3, slack, consistency, Propagation::Pull)
    }

    const NEVER: Known = known(0, 0);

    const fn known(progress: u64, wanted: u64) -> Known {
        Known { progress, wanted, is_sent: false }
    }

    #[test]
    fn a_result_that_the_push_has_asked_for_is_not_asked_for_again() {
        let still = requirement(None, Consistency::Bsp);
        assert_eq!(still.version, 3);
        for (known, asks) in [
            (NEVER, AtPull::Fetch { version: 3 }),
            (known(3, 3), AtPull::Fetch { version: 3 }),
            (known(3, 4), AtPull::Nothing),
            (known(4, 0), AtPull::Nothing),
        ] {
            assert_eq!(at_pull(&still, known, false), asks, "{known:?}");
        }
    }

    #[test]
    fn what_moves_by_itself_is_fetched_at_every_pull_though_it_is_there() {
        let there = known(9, 9);
        for (slack, consistency, version) in [
            (Some(1), Consistency::Bsp, 2),
            (None, Consistency::Ssp(2), 1),
            (Some(0), Consistency::Ssp(2), 3),
            (None, Consistency::Asp, 0),
        ] {
            let asks = at_pull(&requirement(slack, consistency), there, false);
            assert_eq!(asks, AtPull::Fetch { version }, "{slack:?} {consistency:?}");
        }
    }

    #[test]
    fn after_a_barrier_or_a_load_all_is_fetched_whatever_is_there_and_a_version_only_if_it_does_not_come() {
        for consistency in [Consistency::Bsp, Consistency::Ssp(0)] {
            let required = requirement(None, consistency);
            for (known, want) in
                [(NEVER, Some(3)), (known(3, 3), Some(3)), (known(0, 4), None), (known(4, 0), None)]
            {
                assert_eq!(
                    at_pull(&required, known, true),
                    AtPull::Anew { want },
                    "{consistency:?} {known:?}"
                );
            }
        }
    }

    #[test]
    fn of_a_chunk_by_itself_is_asked_what_has_not_come_moves_or_may_have_changed() {
        let still = requirement(None, Consistency::Bsp);
        for (known, anew, asks) in [
            (NEVER, false, true),
            (known(3, 3), false, true),
            (known(3, 4), false, false),
            (known(4, 0), false, false),
            (known(4, 0), true, true),
        ] {
            assert_eq!(at_pull_of_chunk(&still, known, anew), asks, "{known:?} {anew}");
        }
        for (slack, consistency) in
            [(Some(1), Consistency::Bsp), (None, Consistency::Ssp(2)), (None, Consistency::Asp)]
        {
            assert!(at_pull_of_chunk(&requirement(slack, consistency), known(9, 9), false));
        }
    }

    #[test]
    fn a_barrier_or_an_own_load_since_the_last_fetch_makes_it_anew() {
        let fetched = Changes { barriers: 2, loads: 1 };
        assert!(!fetched.are_newer_than(fetched));
        assert!(Changes { barriers: 3, ..fetched }.are_newer_than(fetched));
        assert!(Changes { loads: 2, ..fetched }.are_newer_than(fetched));
    }

    #[test]
    fn a_push_asks_for_its_result_if_the_last_was_looked_at_and_all_fold_together() {
        assert_eq!(at_push(true, false, Consistency::Bsp, 4), Some(5));
        assert_eq!(at_push(false, false, Consistency::Bsp, 4), None);
        assert_eq!(at_push(true, false, Consistency::Ssp(0), 4), None);
        assert_eq!(at_push(true, false, Consistency::Asp, 4), None);
    }

    #[test]
    fn what_is_sent_unasked_is_asked_for_by_no_pull_and_no_push_but_anew_behind_a_barrier() {
        let sent = |progress| Known { progress, wanted: 0, is_sent: true };
        for (slack, consistency) in [
            (None, Consistency::Bsp),
            (Some(1), Consistency::Bsp),
            (None, Consistency::Ssp(2)),
            (None, Consistency::Asp),
        ] {
            let required = requirement(slack, consistency);
            for progress in [0, 4] {
                assert_eq!(at_pull(&required, sent(progress), false), AtPull::Nothing, "{consistency:?}");
                assert_eq!(at_pull(&required, sent(progress), true), AtPull::Anew { want: None });
            }
            assert_eq!(at_push(true, true, consistency, 4), None);
        }
    }
}
