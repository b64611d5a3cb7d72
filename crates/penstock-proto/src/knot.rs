//! Knots: workers that wait for each other in a circle, so that none of their waits can end before its deadline.
//!
//! - **K-1** Only workers that truly wait for each other in a circle are called a knot.
//!
//! A worker that has waited for a while says for whom, again and again; one at the barrier waits for whoever is missing there.
//! It says so only where no other thread of its process could end the wait, and where the wait has no timeout of its own. Each
//! of these waits needs *every* worker that it names. So once all members of a circle wait at one and the same time, none of
//! them can act any more; that they did is known when each has said the same again twice since the last of them began, having
//! asked the shards in between whom it waits for.
//!
//! Pure state, held by the first server's control thread. Memory: one entry a worker.

use crate::Rank;
use std::collections::{BTreeMap, BTreeSet};

/// Longest name of what is waited for.
const MAX_WHAT: usize = 600;

#[derive(Debug)]
enum For {
    /// Whoever is missing at the barrier.
    Barrier,
    /// These, for something; which of the worker's waits it is.
    Ranks { wait: u64, what: String, ranks: Vec<Rank> },
}

#[derive(Debug)]
struct Wait {
    goal: For,
    /// The numbers of the first look, of the last, and of the one before it.
    first: u64,
    last: u64,
    before: u64,
}

/// Who waits for whom.
#[derive(Debug, Default)]
pub struct Knots {
    waits: BTreeMap<Rank, Wait>,
    looks: u64,
}

impl Knots {
    /// `rank` stands at the barrier, and nothing else happens in its process.
    pub fn at_barrier(&mut self, rank: Rank) {
        self.looks += 1;
        let look = self.looks;
        self.waits.insert(rank, Wait { goal: For::Barrier, first: look, last: look, before: look });
    }

    /// `rank` still waits for `ranks`, all of them; `wait` numbers its waits.
    pub fn waits(&mut self, rank: Rank, wait: u64, mut what: String, ranks: Vec<Rank>) {
        self.looks += 1;
        let look = self.looks;
        let end = (0..=what.len().min(MAX_WHAT)).rev().find(|&at| what.is_char_boundary(at));
        what.truncate(end.unwrap_or(0));
        let (first, before) = match self.waits.get(&rank) {
            Some(Wait { goal: For::Ranks { wait: same, .. }, first, last, .. }) if *same == wait => {
                (*first, *last)
            }
            _ => (look, look),
        };
        self.waits.insert(rank, Wait { goal: For::Ranks { wait, what, ranks }, first, last: look, before });
    }

    /// `rank` waits no more.
    pub fn end(&mut self, rank: Rank) {
        self.waits.remove(&rank);
    }

    /// The knot that `rank` is in, if it is in one: what each member waits for.
    pub fn find(&self, rank: Rank, missing_at_barrier: &[Rank]) -> Option<String> {
        let needs = |wait: &Wait| match &wait.goal {
            For::Barrier => missing_at_barrier.to_vec(),
            For::Ranks { ranks, .. } => ranks.clone(),
        };
        let mut members: BTreeSet<Rank> = self.waits.keys().copied().collect();
        loop {
            let held = |rank: &Rank| needs(&self.waits[rank]).iter().any(|needed| members.contains(needed));
            let rest: BTreeSet<Rank> = members.iter().copied().filter(held).collect();
            if rest.len() == members.len() {
                break;
            }
            members = rest;
        }
        if !members.contains(&rank) {
            return None;
        }
        let began = members.iter().map(|member| self.waits[member].first).max()?;
        let confirmed = |member: &Rank| {
            let wait = &self.waits[member];
            matches!(wait.goal, For::Barrier) || wait.before > began
        };
        if !members.iter().all(confirmed) {
            return None;
        }
        let say = |member: &Rank| {
            let wait = &self.waits[member];
            let ranks = needs(wait);
            match &wait.goal {
                For::Barrier => {
                    format!("worker {member} stands at the barrier and waits for workers {ranks:?}")
                }
                For::Ranks { what, .. } => format!("worker {member} waits for `{what}` of workers {ranks:?}"),
            }
        };
        Some(members.iter().map(say).collect::<Vec<_>>().join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn say(knots: &mut Knots, rank: Rank, wait: u64, ranks: &[Rank]) {
        knots.waits(rank, wait, "w".to_owned(), ranks.to_vec());
    }

    #[test]
    fn a_circle_is_a_knot_once_every_member_has_said_so_twice_since_the_last_began() {
        let mut knots = Knots::default();
        say(&mut knots, 0, 1, &[1]);
        say(&mut knots, 0, 1, &[1]);
        say(&mut knots, 1, 1, &[0]);
        assert_eq!(knots.find(1, &[]), None);
        say(&mut knots, 0, 1, &[1]);
        say(&mut knots, 1, 1, &[0]);
        assert_eq!(knots.find(1, &[]), None, "neither has asked the shards since both wait");
        say(&mut knots, 0, 1, &[1]);
        say(&mut knots, 1, 1, &[0]);
        let knot = knots.find(1, &[]).unwrap();
        assert_eq!(knot, "worker 0 waits for `w` of workers [1]; worker 1 waits for `w` of workers [0]");
        knots.end(0);
        assert_eq!(knots.find(1, &[]), None);
    }

    #[test]
    fn a_wait_for_who_stands_at_the_barrier_that_this_worker_is_missing_at_is_a_knot() {
        let mut knots = Knots::default();
        knots.at_barrier(0);
        for _ in 0..3 {
            say(&mut knots, 1, 7, &[0]);
        }
        assert!(knots.find(1, &[1]).unwrap().starts_with("worker 0 stands at the barrier"));
        assert_eq!(knots.find(1, &[2]), None, "worker 2 may come");
    }

    #[test]
    fn whoever_waits_for_one_that_may_act_is_in_no_knot_and_another_wait_begins_anew() {
        let mut knots = Knots::default();
        for wait in 0..9 {
            say(&mut knots, 0, wait, &[1]);
            say(&mut knots, 1, 5, &[0]);
            assert_eq!(knots.find(1, &[]), None, "worker 0's wait is another one every time");
        }
        for _ in 0..5 {
            say(&mut knots, 0, 9, &[2]);
            assert_eq!(knots.find(1, &[]), None, "worker 2 computes, and then pushes");
        }
    }
}
