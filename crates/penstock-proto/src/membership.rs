//! Membership: who has joined, who left, who was lost, and who stands at a barrier.
//!
//! - **M-1** A rank joins once; a barrier waits only for workers that may still come to it, and no worker passes it together
//!   with one that was told that it has not passed.
//! - **M-3** A worker has left only when every shard has taken everything that it submitted; before, it is here or lost.
//!
//! A peer that comes says which it is; what it contributes, and its place at the barrier, go by the rank that it then has.
//!
//! Pure state, held by a server's control thread. A rank joins once; a worker that left cleanly is not lost: the others go on
//! without it. Leases are judged by the caller, which has a clock: [`Lease`] only compares signs of life.

use crate::Rank;
use crate::error::Refusal;
use crate::peer::PeerId;
use std::collections::BTreeSet;

/// What is known of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Member {
    /// Not here yet.
    Awaited,
    /// Here.
    Joined,
    /// Closed the job.
    Left,
    /// Died, fell silent or broke the protocol.
    Lost,
}

/// Which workers a job has by now, for what all of them do together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Members {
    /// Workers that are here or may still come.
    pub live: BTreeSet<Rank>,
    /// Those that closed the job.
    pub left: BTreeSet<Rank>,
    /// Those that died, fell silent or broke the protocol.
    pub lost: BTreeSet<Rank>,
}

impl Members {
    /// These are here, and none has gone.
    pub fn of(live: impl IntoIterator<Item = Rank>) -> Self {
        Self { live: live.into_iter().collect(), ..Self::default() }
    }

    /// All workers, whatever became of them.
    pub fn size(&self) -> u32 {
        (self.live.len() + self.left.len() + self.lost.len()) as u32
    }

    /// Whether a worker of this job has left or was lost.
    pub fn is_gone(&self, rank: Rank) -> bool {
        self.left.contains(&rank) || self.lost.contains(&rank)
    }
}

/// The workers of a job, and their barrier.
#[derive(Debug)]
pub struct Roster {
    /// The peer that has each rank, or will.
    peers: Vec<PeerId>,
    members: Vec<Member>,
    at_barrier: Vec<bool>,
}

impl Roster {
    /// `size` workers, all awaited.
    pub fn new(size: u32) -> Self {
        Self {
            peers: (0..size).map(PeerId::worker).collect(),
            members: vec![Member::Awaited; size as usize],
            at_barrier: vec![false; size as usize],
        }
    }

    /// Workers that the job was made for.
    pub fn size(&self) -> u32 {
        self.members.len() as u32
    }

    /// What is known of `rank`. A rank that does not exist never comes.
    pub fn of(&self, rank: Rank) -> Member {
        self.members.get(rank as usize).copied().unwrap_or(Member::Lost)
    }

    /// The rank under which a peer takes part: one that contributes nothing has none, and one that comes
    /// back finds its rank taken.
    pub fn admit(&self, peer: PeerId) -> Result<Rank, Refusal> {
        peer.rank().filter(|_| peer.incarnation == 0).ok_or(Refusal::NotAdmitted { peer })
    }

    /// The peer that has this rank, or will.
    pub fn peer(&self, rank: Rank) -> PeerId {
        self.peers.get(rank as usize).copied().unwrap_or_else(|| PeerId::worker(rank))
    }

    /// Whether [`Self::join`] would take `peer` in, to be asked before anything is kept for it. Returns the rank
    /// that it then has.
    pub fn may_join(&self, peer: PeerId, size: u32) -> Result<Rank, Refusal> {
        let rank = self.admit(peer)?;
        if size != self.size() {
            return Err(Refusal::SizeMismatch { expected: self.size(), got: size });
        }
        match self.members.get(rank as usize) {
            None => Err(Refusal::RankOutOfRange { rank, size }),
            Some(Member::Awaited) => Ok(rank),
            Some(_) => Err(Refusal::RankTaken { rank }),
        }
    }

    /// All workers, by what is known of them.
    pub fn members(&self) -> Members {
        let mut members = Members::default();
        for (member, rank) in self.members.iter().zip(0..) {
            let whose = match member {
                Member::Awaited | Member::Joined => &mut members.live,
                Member::Left => &mut members.left,
                Member::Lost => &mut members.lost,
            };
            whose.insert(rank);
        }
        members
    }

    /// Takes `peer` in, which says that the job has `size` workers.
    pub fn join(&mut self, peer: PeerId, size: u32) -> Result<(), Refusal> {
        let rank = self.may_join(peer, size)? as usize;
        (self.peers[rank], self.members[rank]) = (peer, Member::Joined);
        Ok(())
    }

    /// Notes that `rank` closed the job; `false` if it was not here.
    pub fn leave(&mut self, rank: Rank) -> bool {
        self.end(rank, Member::Left)
    }

    /// Notes that `rank` is lost; `false` if it was not here.
    pub fn lose(&mut self, rank: Rank) -> bool {
        self.end(rank, Member::Lost)
    }

    /// Notes that `rank`, which has not joined, never will: as one that left if its process ended well. `false` if it had joined.
    pub fn miss(&mut self, rank: Rank, well: bool) -> bool {
        let Some(member) = self.members.get_mut(rank as usize).filter(|member| **member == Member::Awaited)
        else {
            return false;
        };
        *member = if well { Member::Left } else { Member::Lost };
        true
    }

    /// Notes that `rank`, which had left, has failed after all: it is lost. `false` if it had not left.
    pub fn disown(&mut self, rank: Rank) -> bool {
        let Some(member) = self.members.get_mut(rank as usize).filter(|member| **member == Member::Left)
        else {
            return false;
        };
        *member = Member::Lost;
        true
    }

    /// Ranks that have not joined.
    pub fn awaited(&self) -> impl Iterator<Item = Rank> + '_ {
        (0..self.size()).filter(|&rank| self.of(rank) == Member::Awaited)
    }

    fn end(&mut self, rank: Rank, how: Member) -> bool {
        self.withdraw(rank);
        let here = self.members.get_mut(rank as usize).filter(|member| **member == Member::Joined);
        here.map(|member| *member = how).is_some()
    }

    /// Whether every worker has come and gone.
    pub fn is_over(&self) -> bool {
        self.members.iter().all(|member| matches!(member, Member::Left | Member::Lost))
    }

    /// Ranks that are here.
    pub fn joined(&self) -> impl Iterator<Item = Rank> + '_ {
        (0..self.size()).filter(|&rank| self.of(rank) == Member::Joined)
    }

    /// Notes that `rank` stands at the barrier.
    pub fn arrive(&mut self, rank: Rank) {
        if let Some(stands) = self.at_barrier.get_mut(rank as usize) {
            *stands = true;
        }
    }

    /// Notes that `rank` no longer stands at the barrier.
    pub fn withdraw(&mut self, rank: Rank) {
        if let Some(stands) = self.at_barrier.get_mut(rank as usize) {
            *stands = false;
        }
    }

    /// Ranks that the barrier waits for: those that may still come to it.
    pub fn missing_at_barrier(&self) -> Vec<Rank> {
        let may_come = |&rank: &Rank| {
            matches!(self.of(rank), Member::Awaited | Member::Joined) && !self.at_barrier[rank as usize]
        };
        (0..self.size()).filter(may_come).collect()
    }

    /// The workers that may pass, if all that may come have come; the barrier then stands open for its next use.
    pub fn pass_barrier(&mut self) -> Option<Vec<Rank>> {
        if !self.at_barrier.contains(&true) || !self.missing_at_barrier().is_empty() {
            return None;
        }
        let waiting = (0..self.size()).filter(|&rank| std::mem::take(&mut self.at_barrier[rank as usize]));
        Some(waiting.collect())
    }
}

/// A worker's lease: it ends when no sign of life came for `lease` milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct Lease {
    lease_ms: u64,
    last_sign: u64,
    seen_at_ms: u64,
}

impl Lease {
    /// A lease that starts at `now_ms`.
    pub fn new(lease_ms: u64, now_ms: u64) -> Self {
        Self { lease_ms, last_sign: 0, seen_at_ms: now_ms }
    }

    /// Looks at the worker's heartbeat counter (foreign: any change counts as life); whether the lease has ended.
    pub fn has_ended(&mut self, sign: u64, now_ms: u64) -> bool {
        if sign != self.last_sign {
            (self.last_sign, self.seen_at_ms) = (sign, now_ms);
        }
        now_ms.saturating_sub(self.seen_at_ms) > self.lease_ms
    }
}

/// Time as a process experiences it, in milliseconds. While the process is stopped (SIGSTOP, a debugger, a host that starves
/// it), it can hear no signs of life, so at most `step` of the time between two looks counts.
///
/// - **M-2** A process that wakes from suspension declares no peer lost before all peers have had time to speak again.
#[derive(Debug, Clone, Copy)]
pub struct Lived {
    step_ms: u64,
    last_ms: u64,
    lived_ms: u64,
}

impl Lived {
    /// For one that looks at least every `step_ms`.
    pub fn new(step_ms: u64, now_ms: u64) -> Self {
        Self { step_ms, last_ms: now_ms, lived_ms: 0 }
    }

    /// What has been lived until `now_ms`.
    pub fn until(&mut self, now_ms: u64) -> u64 {
        let passed = now_ms.saturating_sub(std::mem::replace(&mut self.last_ms, now_ms));
        self.lived_ms += passed.min(self.step_ms);
        self.lived_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::Role;

    #[test]
    fn a_rank_that_never_comes_is_not_waited_for() {
        let mut roster = Roster::new(3);
        roster.join(PeerId::worker(0), 3).unwrap();
        assert!(!roster.miss(0, false), "it is here");
        assert!(roster.miss(1, false) && !roster.miss(1, false) && roster.miss(2, true));
        assert!(!roster.miss(3, true), "there is no such rank");
        assert!(!roster.lose(3) && !roster.leave(3) && roster.of(3) == Member::Lost);
        roster.arrive(0);
        assert_eq!(roster.pass_barrier(), Some(vec![0]));
        assert!(roster.join(PeerId::worker(1), 3).is_err());
        roster.leave(0);
        assert!(roster.is_over());
    }

    #[test]
    fn who_leaves_and_then_fails_is_lost() {
        let mut roster = Roster::new(3);
        roster.join(PeerId::worker(0), 3).unwrap();
        assert!(!roster.disown(0) && !roster.disown(1) && !roster.disown(3), "none of these has left");
        roster.leave(0);
        assert!(roster.disown(0) && !roster.disown(0));
        roster.miss(1, true);
        let members = Members { live: [2].into(), left: [1].into(), lost: [0].into() };
        assert_eq!(roster.members(), members);
    }

    /// M-1.
    #[test]
    fn a_rank_joins_once() {
        let mut roster = Roster::new(2);
        assert_eq!(roster.join(PeerId::worker(1), 2), Ok(()));
        assert_eq!(roster.join(PeerId::worker(1), 2), Err(Refusal::RankTaken { rank: 1 }));
        assert_eq!(roster.join(PeerId::worker(2), 2), Err(Refusal::RankOutOfRange { rank: 2, size: 2 }));
        assert_eq!(roster.join(PeerId::worker(0), 3), Err(Refusal::SizeMismatch { expected: 2, got: 3 }));
    }

    #[test]
    fn who_is_no_worker_or_comes_back_is_not_taken_in_and_nobody_waits_for_it() {
        let mut roster = Roster::new(1);
        let returned = PeerId { incarnation: 1, ..PeerId::worker(0) };
        for peer in [PeerId::first(Role::Follower, 0), PeerId::first(Role::Relay, 0), returned] {
            assert_eq!(roster.join(peer, 1), Err(Refusal::NotAdmitted { peer }));
        }
        assert_eq!((roster.of(0), roster.peer(0)), (Member::Awaited, PeerId::worker(0)));
        assert_eq!(roster.join(PeerId::worker(0), 1), Ok(()));
        roster.arrive(0);
        assert_eq!(roster.pass_barrier(), Some(vec![0]));
    }

    #[test]
    fn a_barrier_opens_when_the_last_worker_stands_at_it() {
        let mut roster = Roster::new(2);
        roster.join(PeerId::worker(0), 2).unwrap();
        roster.arrive(0);
        assert_eq!(roster.pass_barrier(), None);
        assert_eq!(roster.missing_at_barrier(), [1], "a worker that has not come yet is waited for");
        roster.join(PeerId::worker(1), 2).unwrap();
        roster.arrive(1);
        assert_eq!(roster.pass_barrier(), Some(vec![0, 1]));
        assert_eq!(roster.pass_barrier(), None, "and then it is closed again");
    }

    /// M-1.
    #[test]
    fn a_barrier_does_not_wait_for_workers_that_left_or_were_lost() {
        let mut roster = Roster::new(3);
        for rank in 0..3 {
            roster.join(PeerId::worker(rank), 3).unwrap();
        }
        roster.arrive(0);
        assert!(roster.leave(1) && roster.lose(2));
        assert_eq!(roster.pass_barrier(), Some(vec![0]));
    }

    #[test]
    fn a_lease_ends_only_after_silence() {
        let mut lease = Lease::new(100, 0);
        assert!(!lease.has_ended(1, 90));
        assert!(!lease.has_ended(1, 190));
        assert!(lease.has_ended(1, 191));
        assert!(!lease.has_ended(2, 192), "a late sign is still a sign");
    }

    /// M-2.
    #[test]
    fn whoever_was_suspended_gives_the_others_time_when_it_wakes() {
        let (mut lived, mut lease) = (Lived::new(25, 0), Lease::new(100, 0));
        let looks = [(10, 1), (30, 2), (60_030, 2), (60_060, 2), (60_090, 2)];
        for (now, sign) in looks {
            assert!(!lease.has_ended(sign, lived.until(now)), "at {now}");
        }
        let mut wait = (60_100..).step_by(10);
        let lost = wait.find(|&now| lease.has_ended(2, lived.until(now))).unwrap();
        assert!(lost < 60_150, "a silent one is found all the same, at {lost}");
    }
}
