//! The worker's machine: what an update is stamped with, and what a pull has to wait for.
//!
//! The *position* of a worker on a tensor is its clock, plus one once it has pushed the tensor in this iteration. A pull
//! asks for version `position - slack`: under BSP a pull before the push sees exactly version t and a pull after it exactly
//! t + 1, in every run, because no version can pass without this worker.

use crate::consistency::Consistency;
use crate::propagation::Propagation;

/// A worker's position on one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// Last stamp + 1; 0 before the first push.
    pushed: u64,
    /// The iteration of which contributions stand in the lane, to be added to. Those of one that has ended are lost.
    open: Option<u64>,
    /// Whether what stands in the lane is what was loaded last, which is no contribution.
    loaded: bool,
}

/// A second push in one iteration that the first did not announce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this worker already pushed in iteration {iteration}")]
pub struct AlreadyPushed {
    /// The iteration.
    pub iteration: u64,
}

/// What a contribution is, to the lane and to the homes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contribution {
    /// The clock that it is stamped with.
    pub stamp: u64,
    /// Whether it is added to what stands in the lane (else it overwrites).
    pub adds: bool,
    /// Whether it is the iteration's last, and goes to the homes now.
    pub leaves: bool,
}

/// What a pull has to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requirement {
    /// Least version of each chunk.
    pub version: u64,
    /// Whether all of this worker's own contributions must be folded first (read your writes where folds are single).
    pub own_folded: bool,
    /// Whether the value then stands still until this worker's next push, so that it may be looked at in place.
    pub stands_still: bool,
}

impl Position {
    /// The position at `clock`.
    pub fn at(&self, clock: u64) -> u64 {
        clock.max(self.pushed)
    }

    /// What a push at `clock` is; with `more`, another of the same iteration will follow. Nothing changes until
    /// [`Position::contributed`].
    pub fn contribute(&self, clock: u64, more: bool) -> Result<Contribution, AlreadyPushed> {
        if self.pushed > clock {
            return Err(AlreadyPushed { iteration: clock });
        }
        Ok(Contribution { stamp: clock, adds: self.is_open(clock), leaves: !more })
    }

    /// Whether contributions stand in the lane at `clock` that have not left.
    pub fn is_open(&self, clock: u64) -> bool {
        self.open == Some(clock)
    }

    /// Whether what stands in the lane at `clock` is nothing that may be contributed: the rest of an iteration that has ended,
    /// which is lost, or what was loaded; and nobody has asked for the lane since, to fill it.
    pub fn is_stale(&self, clock: u64) -> bool {
        self.loaded || self.open.is_some_and(|open| open != clock)
    }

    /// Notes that somebody fills the lane at `clock`.
    pub fn lent(&mut self, clock: u64) {
        self.open = self.open.filter(|open| *open == clock);
        self.loaded = false;
    }

    /// Notes that something was loaded, which went through the lane.
    pub fn loaded(&mut self) {
        self.loaded = true;
    }

    /// Notes that the contribution stands in the lane, and has left if it leaves.
    pub fn contributed(&mut self, contribution: Contribution) {
        self.loaded = false;
        self.open = (!contribution.leaves).then_some(contribution.stamp);
        if contribution.leaves {
            self.pushed = contribution.stamp + 1;
        }
    }

    /// What a pull at `clock` with its own `slack` (or the tensor's) has to wait for.
    pub fn requirement(
        &self,
        clock: u64,
        slack: Option<u32>,
        consistency: Consistency,
        propagation: Propagation,
    ) -> Requirement {
        let position = self.at(clock);
        let version = consistency.required(position, slack);
        Requirement {
            version,
            own_folded: propagation.shows_own(consistency),
            stands_still: consistency.folds_together() && version == position,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(position: &mut Position, clock: u64, more: bool) -> Result<Contribution, AlreadyPushed> {
        let contribution = position.contribute(clock, more)?;
        position.contributed(contribution);
        Ok(contribution)
    }

    #[test]
    fn a_pull_after_the_push_waits_for_the_version_that_holds_it() {
        let mut position = Position::default();
        assert_eq!(position.requirement(0, None, Consistency::Bsp, Propagation::Pull).version, 0);
        push(&mut position, 0, false).unwrap();
        assert_eq!(position.requirement(0, None, Consistency::Bsp, Propagation::Pull).version, 1);
        assert_eq!(
            position.requirement(1, None, Consistency::Bsp, Propagation::Pull).version,
            1,
            "the clock adds nothing to it"
        );
    }

    #[test]
    fn a_second_push_in_one_iteration_is_refused_and_changes_nothing() {
        let mut position = Position::default();
        push(&mut position, 3, false).unwrap();
        let before = position;
        assert_eq!(push(&mut position, 3, false), Err(AlreadyPushed { iteration: 3 }));
        assert_eq!(position, before);
        assert_eq!(push(&mut position, 4, false).unwrap().stamp, 4);
    }

    #[test]
    fn contributions_announced_with_more_add_up_and_leave_once() {
        let mut position = Position::default();
        assert_eq!(
            push(&mut position, 0, true).unwrap(),
            Contribution { stamp: 0, adds: false, leaves: false }
        );
        assert_eq!(
            push(&mut position, 0, true).unwrap(),
            Contribution { stamp: 0, adds: true, leaves: false }
        );
        assert_eq!(
            push(&mut position, 0, false).unwrap(),
            Contribution { stamp: 0, adds: true, leaves: true }
        );
        assert_eq!(
            push(&mut position, 1, false).unwrap(),
            Contribution { stamp: 1, adds: false, leaves: true }
        );
    }

    #[test]
    fn what_was_announced_and_has_not_left_when_its_iteration_ended_is_added_to_nothing() {
        for clocks in [1, 2] {
            let mut position = Position::default();
            push(&mut position, 0, true).unwrap();
            assert!(position.is_open(0) && !position.is_open(clocks));
            let next = Contribution { stamp: clocks, adds: false, leaves: false };
            assert_eq!(push(&mut position, clocks, true).unwrap(), next);
            assert_eq!(
                push(&mut position, clocks, false).unwrap(),
                Contribution { adds: true, leaves: true, ..next }
            );
        }
    }

    // It was sent by the next push of the lane.
    #[test]
    fn what_is_lost_or_was_loaded_is_contributed_only_by_who_fills_the_lane_anew() {
        let mut position = Position::default();
        assert!(!position.is_stale(0), "a fresh lane holds zeros");
        push(&mut position, 0, true).unwrap();
        assert!(!position.is_stale(0));
        position.lent(0);
        assert!(position.is_open(0), "the lane is filled, and the parts of this iteration stay");
        assert!(position.is_stale(1));
        position.lent(1);
        assert!(!position.is_stale(1) && !position.is_stale(2));
        position.loaded();
        assert!(position.is_stale(1));
        position.lent(1);
        assert!(!position.is_stale(1));
        position.loaded();
        push(&mut position, 1, true).unwrap();
        assert!(!position.is_stale(1));
    }

    #[test]
    fn only_a_synchronous_value_without_slack_stands_still() {
        let position = Position::default();
        assert!(position.requirement(5, None, Consistency::Bsp, Propagation::Pull).stands_still);
        assert!(!position.requirement(5, Some(1), Consistency::Bsp, Propagation::Pull).stands_still);
        assert!(!position.requirement(5, Some(0), Consistency::Ssp(3), Propagation::Pull).stands_still);
        assert!(!position.requirement(5, None, Consistency::Asp, Propagation::Pull).stands_still);
    }

    #[test]
    fn own_updates_are_waited_for_out_of_step_and_not_where_versions_are_broadcast() {
        let mut position = Position::default();
        push(&mut position, 5, false).unwrap();
        for (consistency, pull) in
            [(Consistency::Bsp, false), (Consistency::Ssp(3), true), (Consistency::Asp, true)]
        {
            let own = |propagation| position.requirement(5, None, consistency, propagation).own_folded;
            assert_eq!((own(Propagation::Pull), own(Propagation::Broadcast)), (pull, false), "{consistency}");
            // By the version it is promised all the same.
            let all = position.requirement(5, Some(0), consistency, Propagation::Broadcast);
            assert_eq!(all.version, 6);
        }
    }
}
