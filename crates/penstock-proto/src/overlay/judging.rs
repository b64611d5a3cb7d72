//! Who is at fault, of all that are said to be.
//!
//! A worker that starves cannot feed others, so those below it may leave it before it has left the one that starves it. What is said of
//! one that is itself fed by another is therefore not believed at once, but after [`HEARD_OUT_MS`]; and not at all, once it is known that
//! one above it is at fault.
//!
//! Pure state. Times are of the owner's clock.

use super::routes::Routes;
use crate::Rank;
use std::collections::{BTreeMap, BTreeSet};

/// How long is waited whether one above is at fault, in milliseconds: who is nearer to the home has less patience, by 200 ms for each
/// edge.
pub const HEARD_OUT_MS: u64 = 400;
/// How long nothing is believed of those below one that was at fault: they have nothing to pass on until they are fed again.
pub const EXCUSED_MS: u64 = 1_000;

/// What becomes of what a worker says of its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// The parent is at fault.
    Believed,
    /// That will be seen.
    HeardOut,
    /// It is not: it starved itself.
    Excused,
}

/// What is said of the workers of one server's trees.
#[derive(Debug, Default)]
pub struct Judging {
    /// Who is said to be at fault: who said so first, and when it is believed.
    accused: BTreeMap<Rank, (Rank, u64)>,
    /// Of whom nothing is believed, until when.
    excused: BTreeMap<Rank, u64>,
}

impl Judging {
    /// A worker says that its parent, which feeds it along these routes, is at fault.
    pub fn accuse(&mut self, routes: &Routes, (rank, parent): (Rank, Rank), now: u64) -> Said {
        self.excused.retain(|_, until| *until > now);
        if self.excused.contains_key(&parent) {
            return Said::Excused;
        }
        if !is_fed_where_it_feeds(routes, parent, rank) {
            return Said::Believed;
        }
        self.accused.entry(parent).or_insert((rank, now + HEARD_OUT_MS));
        Said::HeardOut
    }

    /// One is at fault, along these routes, which are the ones before it is taken out of them: those below it are excused.
    pub fn found(&mut self, routes: &Routes, parent: Rank, now: u64) {
        self.accused.remove(&parent);
        for rank in below(routes, parent) {
            self.accused.remove(&rank);
            self.excused.insert(rank, now + EXCUSED_MS);
        }
    }

    /// One that has waited for long enough, and is at fault: who said so, and who it is.
    pub fn take_due(&mut self, now: u64) -> Option<(Rank, Rank)> {
        let (&parent, &(rank, _)) = self.accused.iter().find(|(_, (_, at))| *at <= now)?;
        self.accused.remove(&parent);
        Some((rank, parent))
    }

    /// When the next is due, if one waits.
    pub fn next(&self) -> Option<u64> {
        self.accused.values().map(|(_, at)| *at).min()
    }

    /// One has left.
    pub fn forget(&mut self, rank: Rank) {
        self.accused.remove(&rank);
        self.excused.remove(&rank);
        self.accused.retain(|_, (by, _)| *by != rank);
    }
}

/// Whether in a stripe in which it feeds this child a parent is itself fed by another.
fn is_fed_where_it_feeds(routes: &Routes, parent: Rank, child: Rank) -> bool {
    let feeds = |rank: Rank| routes.members.get(&rank).into_iter().flat_map(|member| &member.feeds);
    let by = |of: &super::routes::Feed| of.parent.as_ref().map(|parent| parent.rank);
    feeds(child).zip(feeds(parent)).any(|(own, its)| by(own) == Some(parent) && by(its).is_some())
}

/// All that are fed through one, in any stripe.
fn below(routes: &Routes, top: Rank) -> BTreeSet<Rank> {
    let mut all = BTreeSet::new();
    for stripe in 0..routes.shares.len() {
        let mut children: BTreeMap<Rank, Vec<Rank>> = BTreeMap::new();
        for (&rank, member) in &routes.members {
            if let Some(parent) = member.feeds.get(stripe).and_then(|feed| feed.parent.as_ref()) {
                children.entry(parent.rank).or_default().push(rank);
            }
        }
        let mut next = vec![top];
        while let Some(rank) = next.pop() {
            // Routes that were made for a test may have circles.
            next.extend(children.remove(&rank).into_iter().flatten().inspect(|&child| _ = all.insert(child)));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlay::{Feed, Member, Parent, Pass, WHOLE};

    /// One stripe: who feeds each.
    fn routes(fed: &[(Rank, Option<Rank>)]) -> Routes {
        let address = ([10, 0, 0, 1], 4000).into();
        let parent = |child, rank| Parent { rank, address, pass: Pass::new(&[0; 16], 0, child) };
        let member = |(child, by): (Rank, Option<Rank>)| Member {
            feeds: vec![Feed { parent: by.map(|by| parent(child, by)), depth: 1 }],
            passes_on: false,
        };
        let members = fed.iter().map(|&(rank, by)| (rank, member((rank, by)))).collect();
        Routes { striping: 1, shares: vec![WHOLE], members }
    }

    /// 0 feeds 1, which feeds 2 and 3; 3 feeds 4.
    fn some() -> Routes {
        routes(&[(0, None), (1, Some(0)), (2, Some(1)), (3, Some(1)), (4, Some(3))])
    }

    #[test]
    fn one_that_the_home_feeds_is_at_fault_at_once_and_another_when_nobody_above_it_is() {
        let (routes, mut judging) = (some(), Judging::default());
        assert_eq!(judging.accuse(&routes, (1, 0), 1_000), Said::Believed);
        assert_eq!(judging.accuse(&routes, (2, 1), 1_000), Said::HeardOut);
        assert_eq!(judging.accuse(&routes, (3, 1), 1_300), Said::HeardOut, "that puts nothing off");
        assert_eq!(judging.next(), Some(1_000 + HEARD_OUT_MS));
        assert_eq!(judging.take_due(999 + HEARD_OUT_MS), None);
        assert_eq!(judging.take_due(1_000 + HEARD_OUT_MS), Some((2, 1)));
        assert_eq!((judging.take_due(10_000), judging.next()), (None, None));
    }

    #[test]
    fn who_starved_is_excused_whoever_speaks_first() {
        let (routes, mut judging) = (some(), Judging::default());
        assert_eq!(judging.accuse(&routes, (4, 3), 1_000), Said::HeardOut);
        judging.found(&routes, 0, 1_100);
        assert_eq!(judging.next(), None);
        for (now, said) in [(1_099, Said::Excused), (1_100, Said::HeardOut)] {
            for pair in [(4, 3), (2, 1)] {
                assert_eq!(judging.accuse(&routes, pair, now + EXCUSED_MS), said);
            }
        }
    }

    #[test]
    fn nobody_is_heard_out_who_has_left() {
        let (routes, mut judging) = (some(), Judging::default());
        for gone in [2, 1] {
            judging.accuse(&routes, (2, 1), 1_000);
            judging.forget(gone);
            assert_eq!(judging.next(), None);
        }
    }
}
