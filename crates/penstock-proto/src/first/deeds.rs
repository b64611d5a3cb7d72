//! What worker 0 does for all, by name. It is looked at by its name alone, and never all of it: worker 0 may have any number.

use super::{FIRST, Heard, Told};
use crate::{Rank, membership::Members};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What each request is for that has no answer: of worker 0, what it gathers the others for; of another, what it waits for.
pub(super) type Open = BTreeMap<(Rank, u64), Arc<str>>;

#[derive(Debug)]
pub(super) struct Deeds<C> {
    by_name: BTreeMap<Arc<str>, Deed<C>>,
    /// How often one was looked at.
    #[cfg(test)]
    pub(super) looks: std::cell::Cell<usize>,
}

#[derive(Debug)]
pub(super) struct Deed<C> {
    /// Those that wait for it, by worker and request: the last call that each knows to be done. All know of the attempt that has
    /// begun, if one has.
    pub(super) waiting: BTreeMap<(Rank, u64), (u64, C)>,
    /// The request by which worker 0 gathers the others, and the number of its call.
    pub(super) gathers: Option<(u64, u64)>,
    /// The attempt that worker 0 is at, and the call, until it has gone.
    pub(super) acts: Option<(u64, u64)>,
    /// The last call that was done; and the last attempt that has failed, its call, and the reason.
    pub(super) done: u64,
    pub(super) failed: Option<Failed<C>>,
    /// From worker 0's first attempt on.
    pub(super) charge: Option<C>,
}

#[derive(Debug)]
pub(super) struct Failed<C> {
    pub(super) attempt: u64,
    pub(super) call: u64,
    pub(super) why: String,
    /// `None`: there was no room for worker 0's reason.
    pub(super) _charge: Option<C>,
}

impl<C> Default for Deeds<C> {
    fn default() -> Self {
        Self {
            by_name: BTreeMap::new(),
            #[cfg(test)]
            looks: std::cell::Cell::default(),
        }
    }
}

impl<C> Deeds<C> {
    pub(super) fn get(&self, what: &str) -> Option<&Deed<C>> {
        self.count();
        self.by_name.get(what)
    }

    pub(super) fn get_mut(&mut self, what: &str) -> Option<&mut Deed<C>> {
        self.count();
        self.by_name.get_mut(what)
    }

    /// With its name, to be noted as what a request is for. Who keeps nothing in it has it forgotten.
    pub(super) fn named(&mut self, what: &str) -> (Arc<str>, &mut Deed<C>) {
        self.count();
        let name = self.by_name.get_key_value(what).map_or_else(|| what.into(), |(name, _)| Arc::clone(name));
        (Arc::clone(&name), self.by_name.entry(name).or_default())
    }

    /// If nobody waits for it and worker 0 never did it.
    pub(super) fn forget(&mut self, what: &str) {
        if self.get(what).is_some_and(|deed| deed.charge.is_none() && deed.waiting.is_empty()) {
            self.by_name.remove(what);
        }
    }

    fn count(&self) {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> &BTreeMap<Arc<str>, Deed<C>> {
        &self.by_name
    }
}

impl<C> Default for Deed<C> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), gathers: None, acts: None, done: 0, failed: None, charge: None }
    }
}

impl<C> Deed<C> {
    /// What one that comes is told at once.
    pub(super) fn heard(&self, done: u64, begun: u64, members: &Members) -> Option<Heard> {
        if self.done > done {
            return Some(Heard::Done { call: self.done });
        }
        if let Some(failed) = &self.failed
            && (1..=failed.attempt).contains(&begun)
            && failed.call > done
        {
            return Some(Heard::Failed { why: failed.why.clone() });
        }
        if members.is_gone(FIRST) {
            return Some(Heard::Gone);
        }
        self.acts.filter(|&(attempt, _)| attempt > begun).map(|(attempt, _)| Heard::Begins { attempt })
    }

    /// Those that worker 0 waits for, and that do not wait for it. Each wait is noted twice: it finds its place among the others.
    pub(super) fn missing(&self, members: &Members, gone_over: &Cell<usize>) -> Vec<Rank> {
        gone_over.set(gone_over.get() + 2 * self.waiting.len() + members.live.len());
        let waits: BTreeSet<Rank> = self.waiting.keys().map(|(rank, _)| *rank).collect();
        members.live.iter().copied().filter(|rank| *rank != FIRST && !waits.contains(rank)).collect()
    }

    /// Those that wait for `call` are told this.
    pub(super) fn tell(&mut self, call: u64, heard: &Heard, open: &mut Open, told: &mut Vec<Told>) {
        self.waiting.retain(|&(rank, request), (done, _)| {
            let waits = *done < call;
            if waits {
                open.remove(&(rank, request));
                told.push((rank, request, heard.clone()));
            }
            !waits
        });
    }
}
