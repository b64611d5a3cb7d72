//! The rows that one end of a link sends, compared with what the other asked of it: nothing that is not needed.
//!
//! - **N-3** Lazy: a row is sent only in answer to a fetch, and never older than it asks for. An answer is whole.
//!   A fetch that was withdrawn is not answered any more.
//! - **N-4** Bounded: a row is sent only if a consumer needs a version that it lacks, and it has it; or in answer to a fetch.
//!
//! It judges by the messages on the wire alone: by what has come to the sender when it sends.

use penstock_proto::items::wire::{Entries, Entry, Head, Message, PartitionId};
use penstock_proto::items::{Propagation, RowSet};
use std::collections::{BTreeMap, BTreeSet};

/// A fetch that has come and is not answered.
#[derive(Debug)]
struct Asked {
    version: u64,
    places: RowSet,
    /// Those that the answer has brought so far, if it has begun.
    answered: Option<BTreeSet<u32>>,
    /// Whether nobody waits for it any more.
    withdrawn: bool,
}

/// What was asked of one partition.
#[derive(Debug, Default)]
struct Wanted {
    serial: u64,
    fetches: BTreeMap<u64, Asked>,
    /// Those that were withdrawn and are not to be answered.
    withdrawn: BTreeSet<u64>,
    needs: Vec<u64>,
    /// What was needed when the batch was made that is being sent: it is sent to its end whatever is needed meanwhile.
    of_batch: Vec<u64>,
    /// The version of each row that was sent because it was needed, by place.
    sent: BTreeMap<u32, u64>,
}

/// One direction of a link.
#[derive(Debug)]
pub(super) struct Traffic {
    propagation: Propagation,
    row_bytes: u32,
    partitions: BTreeMap<PartitionId, Wanted>,
    /// Whether the sender leaves: it sends all that any other may come to need.
    hands_over: bool,
    /// Fetches that were withdrawn before they were answered.
    pub(super) withdrawn: u64,
}

impl Traffic {
    pub(super) fn new(propagation: Propagation, row_bytes: u32) -> Self {
        Self { propagation, row_bytes, partitions: BTreeMap::new(), hands_over: false, withdrawn: 0 }
    }

    /// The sender leaves.
    pub(super) fn handed_over(&mut self) {
        self.hands_over = true;
    }

    /// A new connection: everything is asked again.
    pub(super) fn connected(&mut self) {
        self.partitions.clear();
    }

    /// Whether this subscribes to what was subscribed to on this connection.
    pub(super) fn is_subscribed(&self, message: &Message<'_>) -> bool {
        matches!(message, Message::Subscribe { partition, .. } if self.partitions.contains_key(partition))
    }

    /// The sender is told this.
    pub(super) fn asked(&mut self, message: &Message<'_>) {
        match message {
            Message::Subscribe { partition, serial, .. } => {
                self.partitions.insert(*partition, Wanted { serial: *serial, ..Wanted::default() });
            }
            Message::Fetch { partition, ticket, version, places } => {
                if let Some(wanted) = self.partitions.get_mut(partition) {
                    let (version, places) = (*version, places.clone());
                    let asked = Asked { version, places, answered: None, withdrawn: false };
                    wanted.fetches.insert(*ticket, asked);
                }
            }
            Message::Withdraw { partition, ticket } => {
                let wanted = self.partitions.get_mut(partition);
                if let Some(asked) = wanted.and_then(|wanted| wanted.fetches.get_mut(ticket)) {
                    asked.withdrawn = true;
                    self.withdrawn += 1;
                }
            }
            Message::Need { partition, versions } => {
                if let Some(wanted) = self.partitions.get_mut(partition) {
                    wanted.needs.clone_from(versions);
                }
            }
            _ => {}
        }
    }

    /// The sender sends this.
    pub(super) fn sent(&mut self, message: &Message<'_>) -> Result<(), String> {
        let Message::Rows { partition, head, entries } = message else { return Ok(()) };
        if self.propagation == Propagation::Eager {
            return Ok(());
        }
        let wanted = self.partitions.get_mut(partition).ok_or("rows that nobody subscribed to")?;
        if head.serial != wanted.serial {
            // The rest of what was begun before the subscription that replaced it came.
            return if head.first {
                Err("rows of a subscription that was replaced".to_owned())
            } else {
                Ok(())
            };
        }
        if head.first {
            wanted.of_batch.clone_from(&wanted.needs);
        }
        for entry in Entries::new(entries, self.row_bytes, head.apart) {
            let entry = entry.map_err(|malformed| malformed.to_string())?;
            match head.ticket {
                0 if self.hands_over => {}
                0 if self.propagation == Propagation::Lazy => {
                    return Err(format!("N-3: row {} is sent, which nobody fetched", entry.place));
                }
                0 => wanted.needed(&entry)?,
                _ => wanted.fetched(head, &entry)?,
            }
        }
        if head.last && head.ticket > 0 {
            wanted.answered(head.ticket)?;
        }
        if head.first {
            self.partitions.values_mut().for_each(Wanted::forget_withdrawn);
        }
        Ok(())
    }
}

impl Wanted {
    /// A batch goes out. One may have been under way when a fetch was withdrawn, and be its answer; any other that is begun is not.
    fn forget_withdrawn(&mut self) {
        let Self { fetches, withdrawn, .. } = self;
        fetches.retain(|&ticket, asked| {
            let goes = asked.withdrawn && asked.answered.is_none();
            if goes {
                withdrawn.insert(ticket);
            }
            !goes
        });
    }

    fn fetched(&mut self, head: &Head, entry: &Entry<'_>) -> Result<(), String> {
        let ticket = head.ticket;
        let what = if self.withdrawn.contains(&ticket) { "was withdrawn" } else { "is not open" };
        let asked = self.fetches.get_mut(&ticket);
        let asked = asked.ok_or_else(|| format!("N-3: an answer to fetch {ticket}, which {what}"))?;
        if !asked.places.contains(entry.place.into()) {
            return Err(format!(
                "N-3: an answer to fetch {ticket} brings row {}, which it did not ask for",
                entry.place
            ));
        }
        if entry.clock < asked.version {
            return Err(format!(
                "N-3: row {} is sent at version {} to fetch {ticket}, which asks for {}",
                entry.place, entry.clock, asked.version
            ));
        }
        asked.answered.get_or_insert_default().insert(entry.place);
        Ok(())
    }

    fn answered(&mut self, ticket: u64) -> Result<(), String> {
        let asked = self.fetches.remove(&ticket);
        let asked = asked.ok_or_else(|| format!("N-3: an answer to fetch {ticket}, which is not open"))?;
        let came = asked.answered.map_or(0, |places| places.len() as u64);
        match came == asked.places.len() {
            true => Ok(()),
            false => {
                Err(format!("N-3: the answer to fetch {ticket} has {came} of {} rows", asked.places.len()))
            }
        }
    }

    fn needed(&mut self, entry: &Entry<'_>) -> Result<(), String> {
        let before = self.sent.insert(entry.place, entry.clock).unwrap_or(0);
        if self.of_batch.iter().any(|&need| before < need && need <= entry.clock) {
            return Ok(());
        }
        Err(format!(
            "N-4: row {} is sent at version {} after {before}, and {:?} are needed",
            entry.place, entry.clock, self.of_batch
        ))
    }
}
