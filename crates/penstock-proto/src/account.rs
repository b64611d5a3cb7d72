//! Accounts: whatever a peer makes a process keep is charged to it, and bounded.
//!
//! A job has one account with a limit for each [`Resource`]; each of its peers has an account within it. What is kept holds a
//! [`Charge`], which gives back when it is dropped: so what is counted is what is there, and nothing can be forgotten. Charges
//! are made where something is declared or queued, never for each chunk or row that passes.
//!
//! No worker takes what another needs: of what a job shares, a worker has at most [four times](SHARE) what is left to the others,
//! so a worker that asks without end is refused while the others still get theirs. What the job itself declares leaves [a
//! part](KEPT_FOR_WORKERS) of the memory, the descriptors and the mappings to its workers.

use crate::Rank;
use crate::peer::{PeerId, Role};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Something of which a process has only so much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Resource {
    /// Bytes of memory.
    Bytes,
    /// Open file descriptors.
    Descriptors,
    /// Mappings of address space.
    Mappings,
    /// Threads.
    Threads,
    /// Things that wait: requests without an answer, fetches, subscriptions.
    Entries,
    /// Tables. Until all workers have declared one, it is charged to the worker that began it.
    Tables,
}

impl Resource {
    const COUNT: usize = 6;

    /// Whether both a job's declarations and its workers draw on it; on each other resource only one of the two draws.
    fn is_shared(self) -> bool {
        matches!(self, Self::Bytes | Self::Descriptors | Self::Mappings)
    }

    /// What raises the limit.
    pub fn raised_by(self) -> &'static str {
        match self {
            Self::Bytes => "raise the option `memory`",
            Self::Descriptors => "raise the limit on open files of the server's process (`ulimit -n`)",
            Self::Mappings => "raise `vm.max_map_count` on the server's host (sysctl)",
            Self::Threads => "raise the option `shards`, which sets the number of the job's threads",
            Self::Entries => "wait for answers before asking more: so many open requests are a mistake",
            Self::Tables => "begin no more tables before all workers have declared those that were begun",
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bytes => "bytes of memory",
            Self::Descriptors => "file descriptors",
            Self::Mappings => "mappings",
            Self::Threads => "threads",
            Self::Entries => "waiting entries",
            Self::Tables => "tables",
        })
    }
}

/// How much there may be of each resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits([u64; Resource::COUNT]);

impl Limits {
    /// No limit.
    pub const NONE: Self = Self([u64::MAX; Resource::COUNT]);

    /// The same, but at most `most` of `resource`.
    #[must_use]
    pub fn with(mut self, resource: Resource, most: u64) -> Self {
        self.0[resource as usize] = most;
        self
    }
}

#[derive(Debug)]
struct Ledger {
    within: Option<Account>,
    limits: Limits,
    taken: [AtomicU64; Resource::COUNT],
    /// Accounts of peers within this one, as long as anything is charged to them or they are used.
    peers: Mutex<BTreeMap<(Role, u32), Weak<Self>>>,
}

/// An account. Clones are the same account.
#[derive(Debug, Clone)]
pub struct Account(Arc<Ledger>);

impl Default for Account {
    fn default() -> Self {
        Self::new(Limits::NONE)
    }
}

/// How many times as much as it leaves to the others one worker may have.
pub const SHARE: u64 = 4;

/// The part of its bytes, descriptors and mappings that a job leaves to its workers, whatever it declares: one of so many.
pub const KEPT_FOR_WORKERS: u64 = 16;

/// Most entries that may wait for one worker: more than it has threads, and few enough that they cost little.
pub const PEER_ENTRIES: u64 = 1 << 16;

impl Account {
    /// An account of its own.
    pub fn new(limits: Limits) -> Self {
        Self::within(None, limits)
    }

    fn within(within: Option<Self>, limits: Limits) -> Self {
        let (taken, peers) = (Default::default(), Mutex::default());
        Self(Arc::new(Ledger { within, limits, taken, peers }))
    }

    /// The account of a rank's worker within this one, the same for every incarnation.
    pub fn worker(&self, rank: Rank) -> Self {
        self.peer(PeerId::worker(rank))
    }

    /// The account of a peer within this one: always the same for the same role and number, so that a peer that connects again,
    /// or comes back as another incarnation, owes what is still kept for it.
    pub fn peer(&self, peer: PeerId) -> Self {
        let holder = (peer.role, peer.number);
        let mut peers = self.0.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let limits = Limits::NONE.with(Resource::Entries, PEER_ENTRIES);
        if let Some(ledger) = peers.get(&holder).and_then(Weak::upgrade) {
            return Self(ledger);
        }
        // An account that is no longer used still takes its place, and that of its ledger.
        peers.retain(|_, ledger| ledger.strong_count() > 0);
        let account = Self::within(Some(self.clone()), limits);
        peers.insert(holder, Arc::downgrade(&account.0));
        account
    }

    /// Takes `amount`, or says why not. Nothing is taken then.
    pub fn charge(&self, resource: Resource, amount: u64) -> Result<Charge, Exhausted> {
        self.take(resource, amount)?;
        Ok(Charge(Some((self.clone(), resource, amount))))
    }

    fn take(&self, resource: Resource, amount: u64) -> Result<(), Exhausted> {
        // What is charged as it grows begins with nothing.
        if amount == 0 {
            return Ok(());
        }
        let left = self.left(resource);
        if amount > left {
            let (asked, limit) = (amount, self.limit(resource));
            return Err(Exhausted { resource, asked, left, limit });
        }
        self.enter(resource, amount)
    }

    /// Notes what was taken here and in the accounts that this one is within, as far as their limits allow.
    fn enter(&self, resource: Resource, amount: u64) -> Result<(), Exhausted> {
        let most = self.0.limits.0[resource as usize];
        let add = |taken: u64| taken.checked_add(amount).filter(|&sum| sum <= most);
        let taken = &self.0.taken[resource as usize];
        if let Err(taken) = taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            return Err(Exhausted { resource, asked: amount, left: most.saturating_sub(taken), limit: most });
        }
        let up = self.0.within.as_ref().map_or(Ok(()), |within| within.enter(resource, amount));
        if up.is_err() {
            taken.fetch_sub(amount, Ordering::Relaxed);
        }
        up
    }

    fn give_back(&self, resource: Resource, amount: u64) {
        if amount == 0 {
            return;
        }
        self.0.taken[resource as usize].fetch_sub(amount, Ordering::Relaxed);
        if let Some(within) = &self.0.within {
            within.give_back(resource, amount);
        }
    }

    /// What is taken.
    pub fn taken(&self, resource: Resource) -> u64 {
        self.0.taken[resource as usize].load(Ordering::Relaxed)
    }

    /// What may still be taken: of what is left here, and in the accounts that this one is within, as much as leaves
    /// the others theirs.
    pub fn left(&self, resource: Resource) -> u64 {
        let here = self.unused(resource);
        let most = match &self.0.within {
            // With x more it would have taken + x, and leave the others what there is less x.
            Some(within) => {
                let shared = u128::from(within.unused(resource)) * u128::from(SHARE);
                let more = shared.saturating_sub(self.taken(resource).into()) / u128::from(SHARE + 1);
                u64::try_from(more).unwrap_or(u64::MAX)
            }
            None if resource.is_shared() => {
                here.saturating_sub(self.0.limits.0[resource as usize] / KEPT_FOR_WORKERS)
            }
            None => here,
        };
        here.min(most)
    }

    fn unused(&self, resource: Resource) -> u64 {
        self.0.limits.0[resource as usize].saturating_sub(self.taken(resource))
    }

    /// The least of the limits here and in the accounts that this one is within.
    fn limit(&self, resource: Resource) -> u64 {
        let here = self.0.limits.0[resource as usize];
        self.0.within.as_ref().map_or(here, |within| here.min(within.limit(resource)))
    }
}

/// What something that is kept was charged. It is given back when this is dropped.
#[derive(Debug, Default)]
pub struct Charge(Option<(Account, Resource, u64)>);

impl Charge {
    /// How much.
    pub fn amount(&self) -> u64 {
        self.0.as_ref().map_or(0, |charge| charge.2)
    }

    /// Takes `more` of the same.
    pub fn grow(&mut self, more: u64) -> Result<(), Exhausted> {
        if let Some((account, resource, amount)) = &mut self.0 {
            account.take(*resource, more)?;
            *amount += more;
        }
        Ok(())
    }

    /// Gives back what is above `amount`.
    pub fn shrink_to(&mut self, amount: u64) {
        if let Some((account, resource, taken)) = &mut self.0 {
            let less = taken.saturating_sub(amount);
            account.give_back(*resource, less);
            *taken -= less;
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some((account, resource, amount)) = self.0.take() {
            account.give_back(resource, amount);
        }
    }
}

/// An account does not hold that much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("it asked for {asked} {resource}, but only {left} of {limit} are left")]
pub struct Exhausted {
    /// Of what.
    pub resource: Resource,
    /// What was asked.
    pub asked: u64,
    /// What is left.
    pub left: u64,
    /// What there may be.
    pub limit: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use Resource::{Bytes, Entries};

    #[test]
    fn what_is_dropped_is_given_back_to_every_account_that_it_was_taken_of() {
        let job = Account::new(Limits::NONE.with(Bytes, 160));
        let worker = job.worker(3);
        let charge = worker.charge(Bytes, 60).unwrap();
        assert_eq!((job.left(Bytes), worker.taken(Bytes)), (90, 60));
        drop(charge);
        assert_eq!((job.taken(Bytes), worker.taken(Bytes)), (0, 0));
    }

    #[test]
    fn a_refusal_takes_nothing_and_says_what_was_asked_and_left() {
        let job = Account::new(Limits::NONE.with(Bytes, 160));
        let kept = job.charge(Bytes, 150).unwrap();
        let refused = job.worker(1).charge(Bytes, 9).unwrap_err();
        assert_eq!(refused, Exhausted { resource: Bytes, asked: 9, left: 8, limit: 160 });
        assert_eq!(job.worker(1).taken(Bytes), 0, "nor within the worker's own account");
        assert!(job.charge(Bytes, u64::MAX).is_err(), "a sum that would wrap is refused");
        drop(kept);
    }

    #[test]
    fn who_takes_all_it_gets_leaves_the_others_theirs() {
        let job = Account::new(Limits::NONE.with(Bytes, 1600));
        let declared = job.charge(Bytes, 1501).unwrap_err();
        assert_eq!(declared.left, 1500, "what the job declares leaves its workers a part");
        let greedy = job.worker(0);
        let mut taken = Vec::new();
        while let Ok(charge) = greedy.charge(Bytes, 1) {
            taken.push(charge);
        }
        assert_eq!(greedy.taken(Bytes), 1280, "four times what is left");
        assert_eq!(greedy.charge(Bytes, 1).unwrap_err().left, 0);
        assert_eq!(job.worker(1).left(Bytes), 256);
        let _its = job.worker(1).charge(Bytes, 256).unwrap();
        assert!(job.worker(2).charge(Bytes, 51).is_ok(), "and so on");
    }

    // A job that declared tensors until it was refused had no descriptor left for the worker that came then.
    #[test]
    fn what_a_job_declares_leaves_its_workers_descriptors_and_mappings_too() {
        for resource in [Bytes, Resource::Descriptors, Resource::Mappings] {
            let job = Account::new(Limits::NONE.with(resource, 240));
            let mut declared = Vec::new();
            while let Ok(charge) = job.charge(resource, 2) {
                declared.push(charge);
            }
            assert_eq!(job.taken(resource), 224, "{resource}");
            assert!(
                job.worker(1).charge(resource, 3).is_ok(),
                "{resource}: the next worker gets what it needs"
            );
        }
    }

    #[test]
    fn ranks_that_nobody_uses_any_more_take_no_memory() {
        let job = Account::default();
        let here = job.worker(0);
        for rank in 1..1000 {
            drop(job.worker(rank));
        }
        assert!(job.0.peers.lock().unwrap().len() <= 2);
        drop(here);
    }

    #[test]
    fn a_worker_that_comes_again_owes_what_it_owed() {
        let job = Account::default();
        let _kept = job.worker(0).charge(Entries, PEER_ENTRIES).unwrap();
        assert!(job.worker(0).charge(Entries, 1).is_err());
        assert!(job.worker(1).charge(Entries, 1).is_ok(), "another has its own");
        let again = PeerId { incarnation: 1, ..PeerId::worker(0) };
        assert!(
            job.peer(again).charge(Entries, 1).is_err(),
            "it came back, and what was kept for it still is"
        );
        assert!(
            job.peer(PeerId::first(Role::Follower, 0)).charge(Entries, 1).is_ok(),
            "a follower is another"
        );
    }

    #[test]
    fn a_charge_grows_and_shrinks_with_what_it_stands_for() {
        let job = Account::new(Limits::NONE.with(Bytes, 100));
        let mut charge = job.charge(Bytes, 10).unwrap();
        charge.grow(80).unwrap();
        assert!(charge.grow(80).is_err());
        assert_eq!((charge.amount(), job.taken(Bytes)), (90, 90));
        charge.shrink_to(20);
        assert_eq!(job.taken(Bytes), 20);
        charge.shrink_to(50);
        assert_eq!(job.taken(Bytes), 20, "it does not grow by shrinking");
    }
}
