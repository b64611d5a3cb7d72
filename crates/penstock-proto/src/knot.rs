//! Knots, which others call deadlocks: workers that wait for each other in a circle, so that none of their waits can end
//! before its deadline.
//!
//! - **K-1** Only workers that truly wait for each other in a circle are called a knot.
//!
//! A worker that has waited for a while says for what, again and again, and whether nothing else of it can happen meanwhile: no
//! other thread of its process could end the wait, and it has no timeout of its own. Where that changes, it says so as another
//! wait. Each of these waits needs *every* worker that it is for: those that are missing at the barrier, those that have not
//! declared the table, those that it names itself. So once all members of a circle wait at one and the same time, none of them
//! can act any more; that they all waited is known when each has said the same again twice since the last of them began, having
//! asked in between for which workers it waits.
//!
//! A circle some of whose members may yet act is no knot: it may be over with the next thing that another thread does, or with a
//! timeout. It is worth a warning, and ends no wait.
//!
//! Pure state, held by the first server's control thread. Memory: one entry a worker.

use crate::Rank;
use crate::text::shorten;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What an error says of a wait that is part of a circle. Others recognize by these words that a worker failed because of a
/// circle.
pub const CANNOT_COME: &str = "for what cannot happen";
/// What to do about a circle, for everyone in it.
pub const REMEDY: &str = "all workers must do the same things in the same order: declare tensors and tables, train the same number of iterations, load states, come to barriers";

/// How often a circle whose members may yet act is told of, in milliseconds: its words are its members', and so is how often they
/// wait otherwise.
const TOLD_EVERY: u64 = 60_000;
/// Longest name of what is waited for.
const MAX_WHAT: usize = 600;
/// Most ranks, and most groups of workers that wait for the same, that the words of a knot tell one by one.
const MAX_TOLD: usize = 16;

/// What a worker waits for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Goal {
    /// The workers missing at the barrier.
    Barrier {
        /// What it is for, as the program says; empty where it does not.
        what: String,
    },
    /// On worker 0, the workers that do not wait for what it does for all; on the others, worker 0.
    First {
        /// What it does.
        what: String,
    },
    /// The workers that have not declared the table.
    Table {
        /// Its name.
        name: String,
    },
    /// The workers that have not dropped the table.
    Drop {
        /// Its name.
        name: String,
        /// Its number.
        id: u32,
    },
    /// These, all of them.
    Ranks {
        /// For what, in words.
        what: String,
        /// The workers it waits for.
        ranks: Vec<Rank>,
    },
}

impl Goal {
    /// Cuts what a peer may have made too long, or said twice.
    fn cut(&mut self) {
        let (Self::Barrier { what: text }
        | Self::First { what: text }
        | Self::Table { name: text }
        | Self::Drop { name: text, .. }
        | Self::Ranks { what: text, .. }) = self;
        shorten(text, MAX_WHAT);
        if let Self::Ranks { ranks, .. } = self {
            ranks.sort_unstable();
            ranks.dedup();
        }
    }

    /// What those that wait for it do.
    fn says(&self, several: bool) -> String {
        let s = if several { "" } else { "s" };
        match self {
            Self::Ranks { what, .. } => format!("wait{s} for {what} of"),
            Self::Barrier { .. } | Self::First { .. } => format!("stand{s} at {self} and wait{s} for"),
            Self::Table { name } => format!("declare{s} table `{name}` and wait{s} for"),
            Self::Drop { name, .. } => format!("drop{s} table `{name}` and wait{s} for"),
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Barrier { what } if what.is_empty() => f.write_str("the barrier"),
            Self::Barrier { what } | Self::First { what } => write!(f, "the barrier `{what}`"),
            Self::Table { name } => write!(f, "the declaration of table `{name}`"),
            Self::Drop { name, .. } => write!(f, "the drop of table `{name}`"),
            Self::Ranks { what, .. } => f.write_str(what),
        }
    }
}

/// A circle of waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Knot {
    /// Which worker waits for which, and for what.
    pub words: String,
    /// The workers that the one that asks waits for.
    pub ranks: Vec<Rank>,
}

#[derive(Debug)]
struct Wait {
    /// Which of the worker's waits it is.
    number: u64,
    goal: Goal,
    /// Nothing else of the worker can happen meanwhile.
    alone: bool,
    /// A warning has told of a circle that it is in.
    told: bool,
    /// The numbers of the first look, of the last, and of the one before it.
    first: u64,
    last: u64,
    before: u64,
}

/// Which workers wait for which.
#[derive(Debug, Default)]
pub struct Knots {
    waits: BTreeMap<Rank, Wait>,
    looks: u64,
    /// How many waits, and workers that are waited for by each, were gone over.
    gone_over: Cell<usize>,
    /// When a circle was told of last.
    told: Option<u64>,
}

impl Knots {
    /// `rank` still waits for `goal`; `alone`: nothing else happens in its process. `number` numbers its waits.
    pub fn waits(&mut self, rank: Rank, number: u64, mut goal: Goal, alone: bool) {
        self.looks += 1;
        let look = self.looks;
        goal.cut();
        let (first, before, told) = match self.waits.get(&rank) {
            Some(same) if (same.number, same.alone) == (number, alone) => (same.first, same.last, same.told),
            _ => (look, look, false),
        };
        self.waits.insert(rank, Wait { number, goal, alone, told, first, last: look, before });
    }

    /// How many waits, and workers that are waited for by each, were gone over since the last call of this.
    pub fn take_gone_over(&self) -> usize {
        self.gone_over.take()
    }

    fn note(&self, times: usize) {
        self.gone_over.set(self.gone_over.get() + times);
    }

    /// `rank` no longer waits.
    pub fn end(&mut self, rank: Rank) {
        self.waits.remove(&rank);
    }

    /// The knot that `rank` is in, if it is in one. `needs` says which workers a worker's wait is for, now.
    pub fn find(&self, rank: Rank, needs: impl Fn(Rank, &Goal) -> Vec<Rank>) -> Option<Knot> {
        let members = self.circle(rank, needs, |wait| wait.alone)?;
        let ranks = members[&rank].clone();
        Some(Knot { words: self.words(rank, members), ranks })
    }

    /// The words of a circle that `rank` is in, whose members may yet act; once for the same waits, and of all circles one in
    /// each [minute](TOLD_EVERY). A worker that waits for itself is in none: it alone could say so again and again.
    pub fn doubt(
        &mut self,
        rank: Rank,
        now: u64,
        needs: impl Fn(Rank, &Goal) -> Vec<Rank>,
    ) -> Option<String> {
        if self.told.is_some_and(|told| now.saturating_sub(told) < TOLD_EVERY) {
            return None;
        }
        let others =
            |rank, goal: &Goal| needs(rank, goal).into_iter().filter(|&needed| needed != rank).collect();
        let members = self.circle(rank, others, |_| true)?;
        let mut news = false;
        for member in members.keys() {
            news |= self.waits.get_mut(member).is_some_and(|wait| !std::mem::replace(&mut wait.told, true));
        }
        if !news {
            return None;
        }
        self.told = Some(now);
        Some(self.words(rank, members))
    }

    /// Those of the waits that count which wait for each other in a circle, or for one that does: which workers each needs.
    fn circle(
        &self,
        rank: Rank,
        needs: impl Fn(Rank, &Goal) -> Vec<Rank>,
        counts: impl Fn(&Wait) -> bool,
    ) -> Option<BTreeMap<Rank, Vec<Rank>>> {
        let counted = |rank: &Rank| self.waits.get(rank).filter(|wait| counts(wait));
        let own = needs(rank, &counted(&rank)?.goal);
        self.note(own.len() + 1);
        // Most long waits are for a worker that computes: nothing more is looked at then.
        if !own.iter().any(|needed| counted(needed).is_some()) {
            return None;
        }
        let all = self.waits.iter().filter(|(_, wait)| counts(wait));
        let waiting: Vec<(Rank, Vec<Rank>)> =
            all.map(|(&rank, wait)| (rank, needs(rank, &wait.goal))).collect();
        // Where each is among them.
        let mut places = vec![None; waiting.last().map_or(0, |&(last, _)| last as usize + 1)];
        waiting.iter().enumerate().for_each(|(place, &(rank, _))| places[rank as usize] = Some(place));
        // For how many of them each waits, and which wait for it.
        let (mut held, mut waiters) = (vec![0_usize; waiting.len()], vec![Vec::new(); waiting.len()]);
        for (waiter, (_, needed)) in waiting.iter().enumerate() {
            self.note(needed.len() + 1);
            for needed in needed.iter().filter_map(|&rank| *places.get(rank as usize)?) {
                held[waiter] += 1;
                waiters[needed].push(waiter);
            }
        }
        // Who waits for none of them is free, and then whoever waited for none but for those: each wait is gone over once.
        let mut free: Vec<usize> = (0..held.len()).filter(|&place| held[place] == 0).collect();
        while let Some(one) = free.pop() {
            let freed = std::mem::take(&mut waiters[one]);
            self.note(freed.len());
            for waiter in freed {
                held[waiter] -= 1;
                if held[waiter] == 0 {
                    free.push(waiter);
                }
            }
        }
        let members: BTreeMap<Rank, Vec<Rank>> =
            waiting.into_iter().zip(held).filter(|&(_, held)| held > 0).map(|(one, _)| one).collect();
        let began = members.keys().map(|member| self.waits[member].first).max()?;
        let confirmed = members.keys().all(|member| self.waits[member].before > began);
        (confirmed && members.contains_key(&rank)).then_some(members)
    }

    /// Which worker waits for which, and for what: those that wait for the same together, and of many only some, the one that
    /// asks among them.
    fn words(&self, asks: Rank, members: BTreeMap<Rank, Vec<Rank>>) -> String {
        let mut groups: Vec<(&Goal, Vec<Rank>, Vec<Rank>)> = Vec::new();
        for (rank, needed) in members {
            let goal = &self.waits[&rank].goal;
            // Each may be long, and another only at its end.
            self.note(10 * groups.len());
            match groups.iter_mut().find(|(same, who, _)| *same == goal && !needed.contains(&who[0])) {
                Some((_, who, all)) => {
                    who.push(rank);
                    all.extend(needed);
                }
                None => groups.push((goal, vec![rank], needed)),
            }
        }
        let say = |(goal, who, needed): (&Goal, Vec<Rank>, Vec<Rank>)| {
            let needed: BTreeSet<Rank> = needed.into_iter().collect();
            let needed: Vec<Rank> = needed.into_iter().collect();
            let subject = match &who[..] {
                [one] => format!("worker {one}"),
                several => format!("workers {}", told(several)),
            };
            format!("{subject} {} workers {}", goal.says(who.len() > 1), told(&needed))
        };
        if let Some(own) = groups.iter().position(|(_, who, _)| who.contains(&asks)) {
            groups.swap(own, own.min(MAX_TOLD - 1));
        }
        let more = groups.len().saturating_sub(MAX_TOLD);
        let mut said: Vec<String> = groups.into_iter().take(MAX_TOLD).map(say).collect();
        if more > 0 {
            said.push(format!("and so on, {more} more"));
        }
        said.join("; ")
    }
}

/// The first of `ranks`, and how many there are.
fn told(ranks: &[Rank]) -> String {
    match ranks.get(..MAX_TOLD) {
        Some(first) if ranks.len() > MAX_TOLD => {
            let first: Vec<String> = first.iter().map(ToString::to_string).collect();
            format!("[{}, ...] ({} of them)", first.join(", "), ranks.len())
        }
        _ => format!("{ranks:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn say(knots: &mut Knots, rank: Rank, number: u64, ranks: &[Rank]) {
        knots.waits(rank, number, Goal::Ranks { what: "`w`".to_owned(), ranks: ranks.to_vec() }, true);
    }

    fn find(knots: &Knots, rank: Rank, missing: &[Rank]) -> Option<String> {
        let needs = |_, goal: &Goal| match goal {
            Goal::Ranks { ranks, .. } => ranks.clone(),
            _ => missing.to_vec(),
        };
        knots.find(rank, needs).map(|knot| knot.words)
    }

    #[test]
    fn a_circle_is_a_knot_once_every_member_has_said_so_twice_since_the_last_began() {
        let mut knots = Knots::default();
        say(&mut knots, 0, 1, &[1]);
        say(&mut knots, 0, 1, &[1]);
        say(&mut knots, 1, 1, &[0]);
        assert_eq!(find(&knots, 1, &[]), None);
        say(&mut knots, 0, 1, &[1]);
        say(&mut knots, 1, 1, &[0]);
        assert_eq!(find(&knots, 1, &[]), None, "neither has asked the shards since both wait");
        say(&mut knots, 0, 1, &[1]);
        say(&mut knots, 1, 1, &[0]);
        let knot = find(&knots, 1, &[]).unwrap();
        assert_eq!(knot, "worker 0 waits for `w` of workers [1]; worker 1 waits for `w` of workers [0]");
        knots.end(0);
        assert_eq!(find(&knots, 1, &[]), None);
    }

    #[test]
    fn a_wait_for_who_stands_at_the_barrier_that_this_worker_is_missing_at_is_a_knot() {
        let mut knots = Knots::default();
        for _ in 0..3 {
            knots.waits(0, 3, Goal::Barrier { what: "epoch".to_owned() }, true);
            say(&mut knots, 1, 7, &[0]);
        }
        assert!(find(&knots, 1, &[1]).unwrap().starts_with("worker 0 stands at the barrier `epoch` and"));
        assert_eq!(find(&knots, 1, &[2]), None, "worker 2 may come");
    }

    #[test]
    fn a_worker_that_takes_back_that_it_only_waits_is_in_no_knot() {
        let mut knots = Knots::default();
        for _ in 0..3 {
            knots.waits(0, 3, Goal::Barrier { what: String::new() }, true);
            say(&mut knots, 1, 7, &[0]);
        }
        knots.end(0); // another thread of it uses the job
        say(&mut knots, 1, 7, &[0]);
        assert_eq!(find(&knots, 1, &[1]), None);
        knots.waits(0, 3, Goal::Barrier { what: String::new() }, true);
        say(&mut knots, 1, 7, &[0]);
        assert_eq!(find(&knots, 1, &[1]), None, "it says so anew, and not yet twice");
    }

    #[test]
    fn a_circle_one_of_whose_members_may_act_is_told_of_once_and_is_no_knot() {
        let mut knots = Knots::default();
        let needs = |_, goal: &Goal| match goal {
            Goal::Ranks { ranks, .. } => ranks.clone(),
            _ => vec![1],
        };
        for _ in 0..3 {
            knots.waits(0, 3, Goal::Barrier { what: String::new() }, false);
            say(&mut knots, 1, 7, &[0]);
        }
        assert_eq!((knots.find(0, needs), knots.find(1, needs)), (None, None));
        let words = knots.doubt(1, 5, needs).unwrap();
        assert!(words.contains("worker 0 stands at the barrier and waits for workers [1]"), "{words}");
        let later = 5 + TOLD_EVERY;
        assert_eq!((knots.doubt(1, later, needs), knots.doubt(0, later, needs)), (None, None), "it was told");
        // From here on nothing else of it can happen, which is another wait.
        for _ in 0..2 {
            knots.waits(0, 4, Goal::Barrier { what: String::new() }, true);
            say(&mut knots, 1, 7, &[0]);
            assert_eq!(knots.find(1, needs), None);
        }
        knots.waits(0, 4, Goal::Barrier { what: String::new() }, true);
        say(&mut knots, 1, 7, &[0]);
        assert!(knots.find(1, needs).is_some());
    }

    // Each was a line of its own words in the log, in which no other was written then.
    #[test]
    fn who_waits_for_itself_or_otherwise_again_and_again_is_told_of_once_a_minute_at_most() {
        let needs = |_, goal: &Goal| match goal {
            Goal::Ranks { ranks, .. } => ranks.clone(),
            _ => Vec::new(),
        };
        let mut knots = Knots::default();
        let mut wait = |ranks: [(Rank, Rank); 2], number: u64, now| {
            let mut told = 0;
            for _ in 0..3 {
                for (rank, other) in ranks {
                    let goal = Goal::Ranks { what: format!("{number}"), ranks: vec![other] };
                    knots.waits(rank, number, goal, false);
                    told += usize::from(knots.doubt(rank, now, needs).is_some());
                }
            }
            told
        };
        let alone: usize = (0..9).map(|number| wait([(3, 3), (4, 3)], number, number * TOLD_EVERY)).sum();
        assert_eq!(alone, 0, "no circle of one, nor of those that wait for it");
        let two: usize = (10..1010).map(|number| wait([(3, 4), (4, 3)], number, number)).sum();
        assert_eq!(two, 1);
        assert_eq!(wait([(3, 4), (4, 3)], 2000, 10 + TOLD_EVERY), 1, "a minute later it is told of again");
    }

    #[test]
    fn workers_that_declare_tables_in_different_orders_are_a_knot_and_named_together() {
        let mut knots = Knots::default();
        for _ in 0..3 {
            for rank in 0..4 {
                let name = if rank < 2 { "T" } else { "U" }.to_owned();
                knots.waits(rank, 1, Goal::Table { name }, true);
            }
        }
        let needs = |_, goal: &Goal| match goal {
            Goal::Table { name } if name == "T" => vec![2, 3],
            _ => vec![0, 1],
        };
        let expected = "workers [0, 1] declare table `T` and wait for workers [2, 3]; \
                        workers [2, 3] declare table `U` and wait for workers [0, 1]";
        assert_eq!(knots.find(3, needs).unwrap(), Knot { words: expected.to_owned(), ranks: vec![0, 1] });
    }

    #[test]
    fn a_knot_of_the_largest_job_fits_a_message() {
        let mut knots = Knots::default();
        let all = crate::message::MAX_WORKERS;
        for _ in 0..3 {
            for rank in 0..all {
                let what = format!("`{rank}{}`", "w".repeat(700));
                let ranks = (0..all).filter(|&r| r != rank).collect();
                knots.waits(rank, 1, Goal::Ranks { what, ranks }, true);
            }
        }
        let needs = |_, goal: &Goal| match goal {
            Goal::Ranks { ranks, .. } => ranks.clone(),
            _ => Vec::new(),
        };
        let knot = knots.find(all - 1, needs).unwrap();
        assert!(knot.words.contains(&format!("worker {} waits", all - 1)), "the one that asks is named");
        assert!(knot.words.len() < 20_000 && knot.words.ends_with("; and so on, 1008 more"));
        let answer = crate::message::Answer::Knot { knot: Some(knot) };
        crate::message::encode(&crate::message::Reply { id: 1, body: answer }).unwrap();
    }

    // Each question took a round for each of them, over all that each waits for: a second of the control thread's time.
    #[test]
    fn each_wait_is_gone_over_once_however_many_wait_for_each_other_in_a_row() {
        let mut knots = Knots::default();
        let all = crate::message::MAX_WORKERS;
        for rank in 0..all - 1 {
            let ranks = std::iter::repeat_n(rank + 1, all as usize).collect();
            knots.waits(rank, 1, Goal::Ranks { what: String::new(), ranks }, true);
        }
        say(&mut knots, all - 1, 1, &[all]);
        let _ = knots.take_gone_over();
        assert_eq!(find(&knots, 0, &[]), None);
        let gone_over = knots.take_gone_over();
        assert!(gone_over <= 4 * all as usize, "{gone_over}");
        assert_eq!(find(&knots, all - 1, &[]), None);
        assert_eq!(knots.take_gone_over(), 2, "it waits for one that does not wait");
    }

    /// K-1.
    #[test]
    fn whoever_waits_for_one_that_may_act_is_in_no_knot_and_another_wait_begins_anew() {
        let mut knots = Knots::default();
        for wait in 0..9 {
            say(&mut knots, 0, wait, &[1]);
            say(&mut knots, 1, 5, &[0]);
            assert_eq!(find(&knots, 1, &[]), None, "worker 0's wait is another one every time");
        }
        for _ in 0..5 {
            say(&mut knots, 0, 9, &[2]);
            assert_eq!(find(&knots, 1, &[]), None, "worker 2 computes, and then pushes");
        }
    }
}
