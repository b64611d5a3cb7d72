//! Accounts: whatever a peer makes a process keep is charged to it, and bounded.
//!
//! A job has one account with a limit for each [`Resource`]; each of its workers has an account within it. What is kept holds a
//! [`Charge`], which gives back when it is dropped: so what is counted is what is there, and nothing can be forgotten. Charges are
//! made where something is declared or queued, never for each chunk or row that passes.

use crate::Rank;
use crate::error::Refusal;
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
}

impl Resource {
    const COUNT: usize = 5;

    /// What raises the limit.
    pub fn raised_by(self) -> &'static str {
        match self {
            Self::Bytes => "raise the option `memory`",
            Self::Descriptors => "raise the limit on open files of the server's process (`ulimit -n`)",
            Self::Mappings => "raise `vm.max_map_count` on the server's host (sysctl)",
            Self::Threads => "raise the option `shards`, which the job's threads follow",
            Self::Entries => {
                "wait for answers before asking more: no program of ours has so many requests open"
            }
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
    /// Accounts of workers within this one, as long as anything is charged to them or they are used.
    peers: Mutex<BTreeMap<Rank, Weak<Self>>>,
}

/// An account. Clones are the same account.
#[derive(Debug, Clone)]
pub struct Account(Arc<Ledger>);

impl Default for Account {
    fn default() -> Self {
        Self::new(Limits::NONE)
    }
}

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

    /// The account of a worker within this one: always the same for the same rank, so that who connects again owes what it owed.
    pub fn peer(&self, rank: Rank) -> Self {
        let mut peers = self.0.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let limits = Limits::NONE.with(Resource::Entries, PEER_ENTRIES);
        if let Some(ledger) = peers.get(&rank).and_then(Weak::upgrade) {
            return Self(ledger);
        }
        let account = Self::within(Some(self.clone()), limits);
        peers.insert(rank, Arc::downgrade(&account.0));
        account
    }

    /// Takes `amount`, or says why not. Nothing is taken then.
    pub fn charge(&self, resource: Resource, amount: u64) -> Result<Charge, Exhausted> {
        self.take(resource, amount)?;
        Ok(Charge(Some((self.clone(), resource, amount))))
    }

    fn take(&self, resource: Resource, amount: u64) -> Result<(), Exhausted> {
        let most = self.0.limits.0[resource as usize];
        let add = |taken: u64| taken.checked_add(amount).filter(|&sum| sum <= most);
        let taken = &self.0.taken[resource as usize];
        if let Err(taken) = taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            return Err(Exhausted { resource, asked: amount, left: most.saturating_sub(taken), limit: most });
        }
        let up = self.0.within.as_ref().map_or(Ok(()), |within| within.take(resource, amount));
        if up.is_err() {
            taken.fetch_sub(amount, Ordering::Relaxed);
        }
        up
    }

    fn give_back(&self, resource: Resource, amount: u64) {
        self.0.taken[resource as usize].fetch_sub(amount, Ordering::Relaxed);
        if let Some(within) = &self.0.within {
            within.give_back(resource, amount);
        }
    }

    /// What is taken.
    pub fn taken(&self, resource: Resource) -> u64 {
        self.0.taken[resource as usize].load(Ordering::Relaxed)
    }

    /// What is left, here and in the accounts that this one is within.
    pub fn left(&self, resource: Resource) -> u64 {
        let here = self.0.limits.0[resource as usize].saturating_sub(self.taken(resource));
        self.0.within.as_ref().map_or(here, |within| here.min(within.left(resource)))
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

/// An account does not hold as much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("it asked for {asked} {resource}, {left} are left of {limit}")]
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

impl Exhausted {
    /// As the refusal of `what`.
    pub fn refuse(self, what: impl Into<String>) -> Refusal {
        Refusal::Exhausted { what: what.into(), why: self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Resource::{Bytes, Entries};

    #[test]
    fn what_is_dropped_is_given_back_to_every_account_that_it_was_taken_of() {
        let job = Account::new(Limits::NONE.with(Bytes, 100));
        let worker = job.peer(3);
        let charge = worker.charge(Bytes, 60).unwrap();
        assert_eq!((job.left(Bytes), worker.taken(Bytes)), (40, 60));
        drop(charge);
        assert_eq!((job.taken(Bytes), worker.taken(Bytes)), (0, 0));
    }

    #[test]
    fn a_refusal_takes_nothing_and_says_what_was_asked_and_left() {
        let job = Account::new(Limits::NONE.with(Bytes, 100));
        let kept = job.peer(0).charge(Bytes, 90).unwrap();
        let refused = job.peer(1).charge(Bytes, 11).unwrap_err();
        assert_eq!(refused, Exhausted { resource: Bytes, asked: 11, left: 10, limit: 100 });
        assert_eq!(job.peer(1).taken(Bytes), 0, "nor within the worker's own account");
        assert!(job.charge(Bytes, u64::MAX).is_err(), "a sum that would wrap is refused");
        drop(kept);
    }

    #[test]
    fn a_worker_that_comes_again_owes_what_it_owed() {
        let job = Account::default();
        let _kept = job.peer(0).charge(Entries, PEER_ENTRIES).unwrap();
        assert!(job.peer(0).charge(Entries, 1).is_err());
        assert!(job.peer(1).charge(Entries, 1).is_ok(), "another has its own");
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
