//! Tickets that came back before what was asked for with them did.
//!
//! Where others feed a subscriber, its home does not send what they bring anyway: before the ticket it says what is to be held of each
//! chunk by then. So a ticket may be here sooner than that is; the subscriber keeps it back until it has everything, whichever way it
//! comes (S-3). That is exact, whatever is published meanwhile: what is held of a chunk is known by its version and the number of the
//! publication that last changed it, and these never fall.

use crate::submission::NO_MORE;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Tickets that are kept apart; what comes behind them is kept as one.
const APART: usize = 8;
/// How long nothing may come of what tickets wait for before the home is told what is held of the chunks that the first waits for.
const PATIENCE: Duration = Duration::from_secs(2);

/// What somebody holds of a chunk, or something newer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    /// The last publication that changed what is seen of it.
    pub content: u64,
    /// Its version.
    pub version: u64,
}

impl Holding {
    /// Whatever the home may have said.
    pub(super) const ALL: Self = Self { content: u64::MAX, version: u64::MAX };
    /// Nothing is said.
    pub const NONE: Self = Self { content: NO_MORE, version: NO_MORE };
    /// It was never published, and nothing is expected of it.
    pub const UNPUBLISHED: Self = Self { content: 0, version: NO_MORE };

    /// Whether it is that, or newer.
    pub(super) fn reaches(self, other: Self) -> bool {
        self.content >= other.content && self.version >= other.version
    }

    fn or_newer(self, other: Self) -> Self {
        Self { content: self.content.max(other.content), version: self.version.max(other.version) }
    }
}

/// By chunk, by its place: what is lacking.
type Lacking = BTreeMap<usize, Holding>;

fn add(lacking: &mut Lacking, local: usize, expected: Holding) {
    lacking.entry(local).and_modify(|before| *before = before.or_newer(expected)).or_insert(expected);
}

/// One tensor's.
#[derive(Debug, Default)]
pub(super) struct Returning {
    /// What is to be held before the ticket that comes next is returned.
    next: Lacking,
    /// Tickets that are kept back, ascending. Who has what a later one waits for has what an earlier one does.
    kept: VecDeque<(u64, Lacking)>,
    /// Since when nothing has come of it, or since when the home was last told.
    since: Option<Duration>,
}

impl Returning {
    /// A new connection: tickets that were kept back are asked for again.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Of a chunk this, which is lacking, is to be held before the next ticket is returned.
    pub(super) fn expect(&mut self, local: usize, expected: Holding) {
        add(&mut self.next, local, expected);
    }

    /// Of a chunk this was held, and is no more: no ticket is returned before it is held again.
    pub(super) fn loses(&mut self, local: usize, was: Holding) {
        for lacking in std::iter::once(&mut self.next).chain(self.kept.iter_mut().map(|(_, it)| it)) {
            add(lacking, local, was);
        }
    }

    /// A ticket has come; whether it is returned now.
    pub(super) fn came_back(&mut self, ticket: u64) -> bool {
        let lacking = std::mem::take(&mut self.next);
        if lacking.is_empty() && self.kept.is_empty() {
            return true;
        }
        if self.kept.len() < APART {
            self.kept.push_back((ticket, lacking));
        } else if let Some((last, before)) = self.kept.back_mut() {
            *last = ticket.max(*last);
            lacking.into_iter().for_each(|(local, expected)| add(before, local, expected));
        }
        false
    }

    /// This is held of a chunk by now.
    pub(super) fn holds(&mut self, local: usize, held: Holding) {
        for lacking in std::iter::once(&mut self.next).chain(self.kept.iter_mut().map(|(_, it)| it)) {
            if lacking.get(&local).is_some_and(|&lacked| held.reaches(lacked)) {
                lacking.remove(&local);
                // As long as something comes, the rest may.
                self.since = None;
            }
        }
    }

    /// The newest of the tickets of which everything is here, to be returned now.
    pub(super) fn take(&mut self) -> Option<u64> {
        let mut newest = None;
        while self.kept.front().is_some_and(|(_, lacking)| lacking.is_empty()) {
            newest = self.kept.pop_front().map(|(ticket, _)| ticket);
        }
        if newest.is_some() {
            self.since = None;
        }
        newest
    }

    /// Whether any ticket is kept back.
    pub(super) fn keeps(&self) -> bool {
        !self.kept.is_empty()
    }

    /// The chunks that the first ticket waits for, if nothing has come for long as of this moment: each time once.
    pub(super) fn overdue(&mut self, now: Duration) -> Option<&Lacking> {
        let (_, lacking) = self.kept.front()?;
        if now.saturating_sub(*self.since.get_or_insert(now)) < PATIENCE {
            return None;
        }
        self.since = Some(now);
        Some(lacking)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(content: u64, version: u64) -> Holding {
        Holding { content, version }
    }

    #[test]
    fn a_ticket_is_returned_once_everything_is_held_that_was_to_be_and_not_before_an_earlier_one() {
        let mut returning = Returning::default();
        assert!(returning.came_back(1), "nothing was to be held");
        returning.expect(0, at(4, 2));
        returning.holds(0, at(4, 2));
        assert!(returning.came_back(2), "it was");
        returning.expect(0, at(8, 3));
        returning.expect(2, at(4, 3));
        assert!(!returning.came_back(3));
        assert!(!returning.came_back(4), "3 is out");
        returning.holds(0, at(6, 4));
        returning.holds(2, at(10, 3));
        returning.holds(1, at(100, 100));
        assert_eq!(returning.take(), None);
        returning.holds(0, at(8, 2));
        assert_eq!(returning.take(), None, "of another version");
        returning.holds(0, at(8, 3));
        assert_eq!((returning.take(), returning.keeps()), (Some(4), false));
    }

    #[test]
    fn what_is_expected_later_does_not_keep_an_earlier_ticket() {
        let mut returning = Returning::default();
        for ticket in 1..=20 {
            returning.expect(0, at(ticket, 0));
            assert!(!returning.came_back(ticket));
        }
        returning.expect(0, at(21, 0));
        for ticket in 1..8 {
            returning.holds(0, at(ticket, 0));
            assert_eq!(returning.take(), Some(ticket));
        }
        returning.holds(0, at(19, 0));
        assert_eq!(returning.take(), None, "the last of them are one");
        returning.holds(0, at(20, 0));
        assert_eq!(returning.take(), Some(20));
    }

    #[test]
    fn what_is_lacking_for_long_is_told_once_in_a_while() {
        let mut returning = Returning::default();
        returning.expect(3, at(2, 0));
        returning.came_back(1);
        let told: Vec<u64> = (0..=100)
            .filter(|&tenth| returning.overdue(Duration::from_millis(tenth * 100)).is_some())
            .collect();
        assert_eq!(told, [20, 40, 60, 80, 100]);
        // As long as something comes, the rest is not asked for.
        returning.expect(4, at(2, 0));
        returning.expect(5, at(2, 0));
        returning.came_back(2);
        for (local, second) in [(4, 11), (5, 12)] {
            returning.holds(local, at(2, 0));
            assert!(returning.overdue(Duration::from_secs(second)).is_none());
        }
        assert!(returning.overdue(Duration::from_secs(14)).is_some());
        returning.holds(3, at(2, 0));
        returning.take();
        assert!(returning.overdue(Duration::from_secs(100)).is_none());
    }
}
