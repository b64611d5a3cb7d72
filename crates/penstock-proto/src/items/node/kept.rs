//! What a peer makes a node keep, and what it is charged for it.

use super::Broken;
use crate::account::{Account, Charge, Resource};
use crate::items::rows::RowSet;
use crate::message::MAX_WORKERS;
use crate::peer::{PeerId, Role};
use std::sync::Arc;

/// Most versions that a consumer's need may name: one for each of so many gets that wait, the newest that one asked for, and
/// the one that the next will ask for.
const MOST_NEEDS: usize = 1024 + 2;

/// Most versions that a peer's need may name: a peer that passes rows on speaks for all the consumers behind it, and cannot
/// make them need less.
pub(super) fn most_needs(peer: PeerId) -> usize {
    match peer.role {
        Role::Server | Role::Relay => MOST_NEEDS * MAX_WORKERS as usize,
        Role::Worker | Role::Follower | Role::Replica => MOST_NEEDS,
    }
}

/// What was charged for something that is kept: bytes and entries.
pub(super) type Kept = [Charge; 2];

/// The same, of something that is also said to another peer: whoever asked for it pays until that peer has heard.
pub(super) type Shared = Arc<Kept>;

/// Charges a peer with something to be kept for it.
pub(super) fn keep(account: &Account, what: &'static str, bytes: u64) -> Result<Kept, Broken> {
    let refuse = |why| Broken::Exhausted { what, why };
    let entry = account.charge(Resource::Entries, 1).map_err(refuse)?;
    Ok([account.charge(Resource::Bytes, bytes).map_err(refuse)?, entry])
}

/// Bytes of what is kept for a subscription or a fetch, beside its rows.
pub(super) const ENTRY_BYTES: u64 = 512;
/// Bytes of what is kept for the rows of a subscription: they, also as what is wanted of the source and said to it.
pub(super) fn wanted_bytes(rows: &RowSet) -> u64 {
    ENTRY_BYTES + 3 * rows.kept_bytes()
}

/// Bytes of what is kept for what a source is asked to fetch: the rows, ascending, as a set here and as said to it, and at the
/// source one by one. They are known before the set is made, which may take many times as many bytes as the rows.
pub(super) fn fetch_bytes(slots: &[u32]) -> u64 {
    let gaps = slots.windows(2).filter(|pair| pair[0] + 1 < pair[1]).count();
    let ranges = if slots.is_empty() { 0 } else { 1 + gaps as u64 };
    ENTRY_BYTES + 2 * RowSet::bytes_of_ranges(ranges) + size_of_val(slots) as u64
}

/// Bytes of what is kept for each version that a peer needs: here, and as said to the source, a number each; among those that are
/// needed of the source a place in a tree, at most.
pub(super) const NEED_BYTES: u64 = 2 * size_of::<u64>() as u64 + 40;
/// Bytes of messages for a peer that are not charged: what is always under way.
pub(super) const FREE_BYTES: u64 = 64 * 1024;

/// Versions that are needed, ascending, and what they were charged.
#[derive(Debug, Default)]
pub(super) struct Needs {
    pub(super) versions: Vec<u64>,
    pub(super) kept: Shared,
}

impl Needs {
    pub(super) fn new(account: &Account, versions: Vec<u64>) -> Result<Self, Broken> {
        let charge = account.charge(Resource::Bytes, versions.len() as u64 * NEED_BYTES);
        let kept = charge.map_err(|why| Broken::Exhausted { what: "versions that it needs", why })?;
        Ok(Self { versions, kept: Arc::new([kept, Charge::default()]) })
    }
}

/// What a peer that is not here had subscribed to.
#[derive(Debug)]
pub(super) struct Away {
    pub(super) rows: RowSet,
    pub(super) kept: Shared,
}
