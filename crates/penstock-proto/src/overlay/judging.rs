//! Who is at fault, of all that are said to be.
//!
//! A worker that starves cannot feed others, so those below it may leave it before it has left the one that starves it. What is said of
//! one that is itself fed by another is therefore not believed at once, but after [`HEARD_OUT_MS`]; and not at all, once it is known that
//! one above it is at fault. Nor is anything believed for a while once the home stood still itself (it was suspended, say): then all were
//! late that it feeds.
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

/// How long a home that looks often enough does not look where it stood still: who is fed by it directly leaves a parent after 600 ms.
pub const STOOD_STILL_MS: u64 = 300;
/// How long it may sleep, so that it sees that.
pub const LOOKS_APART_MS: u64 = 200;
const _: () = assert!(LOOKS_APART_MS < STOOD_STILL_MS, "else sleep counts as standing still");

/// What becomes of what a worker says of its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// The parent is at fault.
    Believed,
    /// That will be seen.
    HeardOut,
    /// It is not: it starved itself, or the home stood still.
    Excused,
}

/// Who is said to be at fault.
#[derive(Debug)]
struct Accused {
    /// Who said so, in that order: each once.
    by: Vec<Rank>,
    /// When it is believed, unless one above is accused that is not believed by then.
    at: u64,
}

/// What is said of the workers of one server's trees.
#[derive(Debug, Default)]
pub struct Judging {
    accused: BTreeMap<Rank, Accused>,
    /// Of whom nothing is believed, until when.
    excused: BTreeMap<Rank, u64>,
    /// When the home was seen to run last, by a clock that never stands still.
    ran: Option<u64>,
    /// Until when nobody is at fault, as the home itself stood still before.
    stood: u64,
}

impl Judging {
    /// The home runs, at `ran` by a clock that goes on while it does not, in milliseconds, and at `now`. It looks every [`LOOKS_APART_MS`]
    /// at most. If it did not, all that it feeds were late by its fault: nothing is believed of anybody for a while, and who waits to be
    /// heard out does so from now on. Whether that is so.
    pub fn runs(&mut self, ran: u64, now: u64) -> bool {
        let stood = self.ran.replace(ran).is_some_and(|before| ran.saturating_sub(before) > STOOD_STILL_MS);
        if stood {
            self.stood = now + EXCUSED_MS;
            self.accused.values_mut().for_each(|accused| accused.at = now + HEARD_OUT_MS);
        }
        stood
    }

    /// Nothing goes along routes now, and the home looks as seldom as it likes.
    pub fn rests(&mut self) {
        self.ran = None;
    }

    /// A worker says that its parent, which feeds it along these routes, is at fault.
    pub fn accuse(&mut self, routes: &Routes, (rank, parent): (Rank, Rank), now: u64) -> Said {
        self.excused.retain(|_, until| *until > now);
        if now < self.stood || self.excused.contains_key(&parent) {
            return Said::Excused;
        }
        if !is_fed_where_it_feeds(routes, parent, rank) {
            return Said::Believed;
        }
        let fresh = || Accused { by: Vec::new(), at: now + HEARD_OUT_MS };
        let accused = self.accused.entry(parent).or_insert_with(fresh);
        if !accused.by.contains(&rank) {
            accused.by.push(rank);
        }
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

    /// One that has waited for long enough, and is at fault if any of those is believed who say so: who they are, the first of them first,
    /// and who it is. Of several the highest.
    pub fn take_due(&mut self, routes: &Routes, now: u64) -> Option<(Vec<Rank>, Rank)> {
        let due = self.due(routes);
        let waited = due.into_iter().filter(|(_, at, _)| *at <= now);
        let (parent, ..) = waited.min_by_key(|&(_, at, is_below)| (is_below, at))?;
        self.accused.remove(&parent).map(|accused| (accused.by, parent))
    }

    /// When the next is due, if one waits.
    pub fn next(&self, routes: &Routes) -> Option<u64> {
        self.due(routes).into_iter().map(|(_, at, _)| at).min()
    }

    /// When all that are accused are due: nobody before those above it that are; and whether one is above it that it is not above itself.
    fn due(&self, routes: &Routes) -> Vec<(Rank, u64, bool)> {
        let above: BTreeMap<Rank, BTreeSet<Rank>> =
            self.accused.keys().map(|&rank| (rank, self.accused_above(routes, rank))).collect();
        let mut at: BTreeMap<Rank, u64> =
            self.accused.iter().map(|(&rank, accused)| (rank, accused.at)).collect();
        // Those above may wait for others, in other stripes. In a circle all wait for the last.
        loop {
            let later = |(rank, above): (&Rank, &BTreeSet<Rank>)| {
                let last = above.iter().map(|other| at[other]).max()?;
                (last > at[rank]).then_some((*rank, last))
            };
            let later: Vec<(Rank, u64)> = above.iter().filter_map(later).collect();
            if later.is_empty() {
                break;
            }
            at.extend(later);
        }
        let is_below = |rank: Rank| above[&rank].iter().any(|other| !above[other].contains(&rank));
        at.into_iter().map(|(rank, at)| (rank, at, is_below(rank))).collect()
    }

    /// Those that are accused and through which one is fed, in any stripe.
    fn accused_above(&self, routes: &Routes, rank: Rank) -> BTreeSet<Rank> {
        let parent_of = |rank: Rank, stripe: usize| {
            let feed = routes.members.get(&rank).and_then(|member| member.feeds.get(stripe))?;
            feed.parent.as_ref().map(|parent| parent.rank)
        };
        let way_up = |stripe: usize| {
            let ranks = std::iter::successors(parent_of(rank, stripe), move |&rank| parent_of(rank, stripe));
            // Routes that were made for a test may have circles.
            ranks.take(routes.members.len())
        };
        let above = (0..routes.shares.len()).flat_map(way_up);
        above.filter(|other| *other != rank && self.accused.contains_key(other)).collect()
    }

    /// One has left.
    pub fn forget(&mut self, rank: Rank) {
        self.accused.remove(&rank);
        self.excused.remove(&rank);
        self.accused.retain(|_, accused| {
            accused.by.retain(|by| *by != rank);
            !accused.by.is_empty()
        });
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
        judging.accuse(&routes, (2, 1), 1_350);
        assert_eq!(judging.next(&routes), Some(1_000 + HEARD_OUT_MS));
        assert_eq!(judging.take_due(&routes, 999 + HEARD_OUT_MS), None);
        assert_eq!(judging.take_due(&routes, 1_000 + HEARD_OUT_MS), Some((vec![2, 3], 1)), "all that say so");
        assert_eq!((judging.take_due(&routes, 10_000), judging.next(&routes)), (None, None));
    }

    #[test]
    fn who_starved_is_excused_whoever_speaks_first() {
        let (routes, mut judging) = (some(), Judging::default());
        assert_eq!(judging.accuse(&routes, (4, 3), 1_000), Said::HeardOut);
        judging.found(&routes, 0, 1_100);
        assert_eq!(judging.next(&routes), None);
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
            assert_eq!(judging.next(&routes), None);
        }
    }

    // Patience stops growing at 16 edges: those far down leave at one time, and the lower one may be heard first.
    #[test]
    fn of_two_that_are_accused_the_lower_is_not_due_before_the_upper() {
        let (routes, mut judging) = (some(), Judging::default());
        judging.accuse(&routes, (4, 3), 1_000);
        judging.accuse(&routes, (3, 1), 1_300);
        assert_eq!(judging.next(&routes), Some(1_300 + HEARD_OUT_MS));
        assert_eq!(judging.take_due(&routes, 1_299 + HEARD_OUT_MS), None);
        assert_eq!(judging.take_due(&routes, 1_300 + HEARD_OUT_MS), Some((vec![3], 1)));
        judging.found(&routes, 1, 1_300 + HEARD_OUT_MS);
        assert_eq!(judging.next(&routes), None, "it starved");
    }

    #[test]
    fn of_two_that_are_due_at_once_the_upper_is_at_fault_whatever_their_ranks() {
        for [upper, lower] in [[1, 2], [2, 1]] {
            let routes = routes(&[(0, None), (upper, Some(0)), (lower, Some(upper)), (3, Some(lower))]);
            let mut judging = Judging::default();
            judging.accuse(&routes, (3, lower), 1_000);
            judging.accuse(&routes, (lower, upper), 1_000);
            assert_eq!(judging.take_due(&routes, 9_000), Some((vec![lower], upper)));
        }
    }

    #[test]
    fn those_that_are_above_each_other_in_different_stripes_are_due_with_the_last_of_them() {
        let first = routes(&[(0, None), (1, Some(0)), (2, Some(1)), (3, Some(2))]);
        let second = routes(&[(0, None), (2, Some(0)), (1, Some(2)), (3, Some(1))]);
        let mut both = Routes { shares: vec![WHOLE / 2; 2], ..first };
        for (rank, member) in &mut both.members {
            member.feeds.extend(second.members[rank].feeds.iter().cloned());
        }
        let mut judging = Judging::default();
        judging.accuse(&both, (3, 2), 1_000);
        judging.accuse(&both, (3, 1), 1_200);
        assert_eq!(judging.next(&both), Some(1_200 + HEARD_OUT_MS));
        let due = [0, 0].map(|_| judging.take_due(&both, 1_200 + HEARD_OUT_MS).map(|(_, parent)| parent));
        assert_eq!(due, [Some(1), Some(2)]);
    }

    // A home that was suspended for a second had all of its children blamed when it went on.
    #[test]
    fn nobody_is_at_fault_where_the_home_stood_still() {
        let (routes, mut judging) = (some(), Judging::default());
        assert!(!judging.runs(5_000, 100));
        assert!(
            (1..10).all(|look| !judging.runs(5_000 + STOOD_STILL_MS * look, 100 + STOOD_STILL_MS * look))
        );
        judging.accuse(&routes, (2, 1), 3_000);
        // Its own clock does not count what it did not live.
        assert!(judging.runs(20_000, 3_100));
        assert_eq!(judging.next(&routes), Some(3_100 + HEARD_OUT_MS), "nobody could speak for one meanwhile");
        for pair in [(1, 0), (2, 1)] {
            assert_eq!(judging.accuse(&routes, pair, 3_099 + EXCUSED_MS), Said::Excused);
        }
        assert_eq!(judging.accuse(&routes, (1, 0), 3_100 + EXCUSED_MS), Said::Believed);
    }
}
