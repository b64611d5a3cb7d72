//! Which workers are said to be lost, and when, where leases decide: judged by when signs of life came to the server and by what
//! the scenario does to the workers, not by any clock of the machines.
//!
//! - A worker that is suspended for less than a lease is not lost. Nor is one whose connection is silent in either direction: it
//!   is made again (`tests/seeds.rs`).
//! - A worker that gives no sign of life for longer than a lease and two looks is said to be lost; and every shard then
//!   goes on without it.
//! - No worker takes the server for lost, which is never suspended here.
//!
//! Signs of life and looks are no observations: there are too many of them for a log. The event loop tells of them directly.

use crate::faults::Leases;
use penstock_proto::Rank;
use penstock_proto::vigil;

/// What was seen of a worker.
#[derive(Debug, Default)]
struct Seen {
    joined: bool,
    /// When its last sign of life came.
    last: u64,
    /// When it was said to be lost.
    lost: Option<u64>,
}

/// Watches over which workers are said to be lost.
#[derive(Debug)]
pub struct Losses<'a> {
    plan: &'a Leases,
    seen: Vec<Seen>,
}

impl<'a> Losses<'a> {
    /// Its name, for failures.
    pub const NAME: &'static str = "losses";

    /// Of a run in which these leases decide.
    pub fn new(plan: &'a Leases) -> Self {
        Self { plan, seen: plan.suspended.iter().map(|_| Seen::default()).collect() }
    }

    /// A worker is taken in: from now on its signs of life count.
    pub fn joined(&mut self, rank: Rank) {
        self.seen[rank as usize].joined = true;
    }

    /// A sign of life of a worker came to where the control thread finds it.
    pub fn sign(&mut self, rank: Rank, now: u64) {
        self.seen[rank as usize].last = now;
    }

    /// A worker, which had `died` or not, is said to be lost.
    pub fn lost(&mut self, rank: Rank, died: bool, now: u64) -> Result<(), String> {
        let Leases { lease, suspended, .. } = self.plan;
        let Seen { last, lost, .. } = &mut self.seen[rank as usize];
        *lost = Some(now);
        let silent = now - *last;
        let slept = suspended[rank as usize].as_ref().filter(|range| range.start <= now);
        let slept = slept.map_or(0, |range| range.end - range.start);
        if silent < *lease || (!died && slept < *lease) {
            return Err(format!(
                "worker {rank} is said to be lost {silent} ticks after a sign of life, having been suspended for {slept}; the lease \
                 is {lease}"
            ));
        }
        Ok(())
    }

    /// The control thread has looked at the lease of a worker that is in the job still.
    pub fn kept(&self, rank: Rank, now: u64) -> Result<(), String> {
        let Seen { joined, last, lost } = self.seen[rank as usize];
        let most = self.plan.lease + 2 * vigil::look_every(self.plan.lease) + 2;
        let silent = now - last;
        if lost.is_none() && joined && silent > most {
            return Err(format!(
                "worker {rank} gave no sign of life for {silent} ticks, more than {most}, and is not lost"
            ));
        }
        Ok(())
    }

    /// Whether every shard goes on without those that are lost, once it has had `delay` to hear of it. `waiting`: a shard for which
    /// a worker is live.
    pub fn are_heard_of(
        &self,
        now: u64,
        delay: u64,
        waiting: impl Fn(Rank) -> Option<usize>,
    ) -> Result<(), String> {
        for (rank, seen) in (0..).zip(&self.seen) {
            if let Some(lost) = seen.lost.filter(|&lost| now > lost + delay)
                && let Some(shard) = waiting(rank)
            {
                let since = now - lost;
                return Err(format!(
                    "worker {rank} has been lost for {since} ticks, and shard {shard} still waits for it"
                ));
            }
        }
        Ok(())
    }

    /// A worker takes the server for lost: none may that is not lost itself.
    pub fn server_lost(&self, rank: Rank) -> Result<(), String> {
        match self.seen[rank as usize].lost {
            Some(_) => Ok(()),
            None => Err(format!("worker {rank} takes the server for lost, which runs")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: u64 = 80;

    /// Worker 0 is never suspended, worker 1 for half a lease, worker 2 for two.
    fn plan() -> Leases {
        let suspended = [None, Some(100..100 + LEASE / 2), Some(100..100 + 2 * LEASE)];
        Leases { lease: LEASE, suspended: suspended.into(), falls_silent: vec![Vec::new(); 3] }
    }

    /// All are there, and spoke last at tick 99.
    fn all_spoke(plan: &Leases) -> Losses<'_> {
        let mut losses = Losses::new(plan);
        for rank in 0..3 {
            losses.joined(rank);
            losses.sign(rank, 99);
        }
        losses
    }

    #[test]
    fn only_who_died_or_slept_for_a_lease_and_was_silent_for_one_may_be_lost() {
        let plan = plan();
        let said = |rank, died, now| all_spoke(&plan).lost(rank, died, now);
        said(2, false, 99 + LEASE).unwrap();
        said(0, true, 99 + LEASE).unwrap();
        for (rank, died, now) in
            [(2, false, 98 + LEASE), (0, true, 98 + LEASE), (1, false, 99 + LEASE), (0, false, 99 + LEASE)]
        {
            let early = said(rank, died, now).unwrap_err();
            assert!(early.contains("after a sign of life"), "{early}");
        }
    }

    #[test]
    fn who_is_silent_for_a_lease_and_two_looks_and_not_lost_is_seen() {
        let plan = plan();
        let mut losses = all_spoke(&plan);
        let last = 99 + LEASE + 2 * vigil::look_every(LEASE) + 2;
        losses.kept(2, last).unwrap();
        let late = losses.kept(2, last + 1).unwrap_err();
        assert!(late.contains("and is not lost"), "{late}");
        losses.lost(2, false, last).unwrap();
        losses.kept(2, last + 1).unwrap();
        Losses::new(&plan).kept(2, last + 1).unwrap();
    }

    #[test]
    fn a_shard_that_waits_for_who_is_lost_is_seen_once_it_has_had_time_to_hear() {
        let plan = plan();
        let mut losses = all_spoke(&plan);
        let waiting = |rank| (rank == 2).then_some(5);
        losses.are_heard_of(1000, 10, waiting).unwrap();
        losses.lost(2, false, 200).unwrap();
        losses.are_heard_of(210, 10, waiting).unwrap();
        losses.are_heard_of(211, 10, |_| None).unwrap();
        let deaf = losses.are_heard_of(211, 10, waiting).unwrap_err();
        assert!(deaf.contains("shard 5 still waits"), "{deaf}");
    }

    #[test]
    fn who_takes_the_server_for_lost_and_is_not_lost_is_seen() {
        let plan = plan();
        let mut losses = all_spoke(&plan);
        losses.server_lost(2).unwrap_err();
        losses.lost(2, false, 200).unwrap();
        losses.server_lost(2).unwrap();
    }
}
