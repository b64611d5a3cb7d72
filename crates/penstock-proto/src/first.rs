//! What worker 0 does for all workers, such as loading a value. The others come, and wait for it: once all of them do, it begins,
//! and when it is done, or has failed, those that wait are told.
//!
//! Worker 0 waits for nobody when it says how it ended. But a server may not answer for a while, time may be up, and worker 0 may
//! be interrupted when it has said so; then the call is made again. So worker 0 numbers its calls, by those that have returned
//! well, and each of its attempts at one has a number too. Whoever comes says which call it knows to be done: it is told of the
//! next that was, however late it comes, and waits through a call that worker 0 repeats. What has failed is told only to those
//! that wait for it then.
//!
//! - **M-4** A worker that waits for what worker 0 does goes on as if it were done only when worker 0 has done so, in a call that
//!   this worker has not returned from before.
//!
//! Pure state, held by the first server's control thread. Memory: an entry for each that waits, and one for each thing that
//! worker 0 ever did for all; both carry what was charged for them. Time: what a worker says costs as much as there are that
//! wait for the same; whoever goes, as much as there is that has no answer. Neither grows with what was done before.

mod deeds;

use self::deeds::{Deed, Deeds, Failed, Open};
use crate::error::{MAX_TEXT_BYTES, shorten};
use crate::{Rank, membership::Members};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// The worker that does it.
pub const FIRST: Rank = 0;

const NO_ROOM: &str = "the server has no room for the reason";

/// What a worker says to the first server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Say {
    /// Worker 0: it is about to do this for all. Answered when all others wait for it, with [`Heard::Begins`].
    Gathers {
        /// What.
        what: String,
        /// Its calls for that which have returned well, and this one.
        call: u64,
    },
    /// Worker 0: how that ended. Answered at once.
    Ends {
        /// What.
        what: String,
        /// The attempt.
        attempt: u64,
        /// Why it has failed, if it has.
        failed: Option<String>,
    },
    /// Another: it waits for worker 0 to do this.
    Waits {
        /// What.
        what: String,
        /// The last call of worker 0 that it knows to be done; 0: none.
        done: u64,
        /// The attempt that it knows to have begun, by which it is here; 0: none.
        begun: u64,
    },
}

impl Say {
    /// The same, shortened so that it fits into a message and a server keeps little of it.
    #[must_use]
    pub fn brief(mut self) -> Self {
        let (Self::Gathers { what, .. } | Self::Ends { what, .. } | Self::Waits { what, .. }) = &mut self;
        shorten(what, MAX_TEXT_BYTES);
        if let Self::Ends { failed: Some(why), .. } = &mut self {
            shorten(why, MAX_TEXT_BYTES);
        }
        self
    }
}

/// What it hears.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Heard {
    /// All wait for this attempt: worker 0 does it now.
    Begins {
        /// The attempt.
        attempt: u64,
    },
    /// This call of worker 0 is done.
    Done {
        /// Its number.
        call: u64,
    },
    /// The attempt that it waited for has failed.
    Failed {
        /// Why.
        why: String,
    },
    /// Worker 0 has left the job, or was lost.
    Gone,
    /// To [`Say::Ends`].
    Noted,
}

/// What somebody is told: whose request it answers.
pub type Told = (Rank, u64, Heard);

/// What is kept of what a worker says, with so many bytes of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// That it waits, as long as it does.
    Waits(usize),
    /// What worker 0 does, for good.
    Deed(usize),
    /// Why its last attempt has failed, until the next.
    Why(usize),
}

/// What worker 0 does for all, has done, and is waited for. `C` is what was charged for something that is kept.
#[derive(Debug)]
pub struct Firsts<C> {
    /// Attempts so far, of whatever.
    attempts: u64,
    deeds: Deeds<C>,
    open: Open,
    /// How many waits and workers were gone over.
    gone_over: Cell<usize>,
}

impl<C> Default for Firsts<C> {
    fn default() -> Self {
        Self { attempts: 0, deeds: Deeds::default(), open: Open::new(), gone_over: Cell::default() }
    }
}

/// The requests of a worker.
fn of(rank: Rank) -> RangeInclusive<(Rank, u64)> {
    (rank, 0)..=(rank, u64::MAX)
}

impl<C> Firsts<C> {
    /// What a worker says; those that are told something now. `charge` is for what is kept of it. Who says what is another's to
    /// say, or what it has said before on another connection, changes nothing.
    pub fn say<E>(
        &mut self,
        (rank, request): (Rank, u64),
        say: Say,
        members: &Members,
        charge: impl FnOnce(Kept) -> Result<C, E>,
    ) -> Result<Vec<Told>, E> {
        let mut told = Vec::new();
        // A request is for one thing, whatever it was for before.
        self.close(rank, request);
        match say.brief() {
            Say::Gathers { what, call } if rank == FIRST => {
                if self.deeds.get(&what).is_none_or(|deed| deed.charge.is_none()) {
                    let charge = charge(Kept::Deed(what.len()))?;
                    self.deeds.named(&what).1.charge = Some(charge);
                }
                let (name, deed) = self.deeds.named(&what);
                if let Some((before, _)) = deed.gathers.replace((request, call)) {
                    self.open.remove(&(FIRST, before));
                }
                // One that was not told how the last attempt ended waits for this one.
                deed.acts = None;
                self.open.insert((FIRST, request), name);
                self.begin(&what, members, &mut told);
            }
            Say::Ends { what, attempt, failed } if rank == FIRST => {
                told.push((rank, request, Heard::Noted));
                let deed = self.deeds.get_mut(&what).filter(|_| !members.is_gone(FIRST));
                let acts = |deed: &mut Deed<C>| deed.acts.take_if(|(number, _)| *number == attempt);
                if let Some((deed, (_, call))) = deed.and_then(|deed| acts(deed).map(|acts| (deed, acts))) {
                    let heard = match failed {
                        None => {
                            (deed.done, deed.failed) = (call, None);
                            Heard::Done { call }
                        }
                        Some(why) => {
                            deed.failed = None;
                            let charge = charge(Kept::Why(why.len())).ok();
                            // It must be told all the same.
                            let why = if charge.is_some() { why } else { NO_ROOM.to_owned() };
                            deed.failed = Some(Failed { attempt, call, why: why.clone(), _charge: charge });
                            Heard::Failed { why }
                        }
                    };
                    deed.tell(call, &heard, &mut self.open, &mut told);
                }
            }
            Say::Waits { what, done, begun } if rank != FIRST => {
                let gone = || members.is_gone(FIRST).then_some(Heard::Gone);
                let heard = self.deeds.get(&what).map_or_else(gone, |deed| deed.heard(done, begun, members));
                if let Some(heard) = heard {
                    told.push((rank, request, heard));
                    return Ok(told);
                }
                let charge = charge(Kept::Waits(what.len()))?;
                let (name, deed) = self.deeds.named(&what);
                deed.waiting.insert((rank, request), (done, charge));
                self.open.insert((rank, request), name);
                self.begin(&what, members, &mut told);
            }
            Say::Gathers { .. } | Say::Ends { .. } | Say::Waits { .. } => {
                let why = "worker 0 does what is done for all, and the others wait for it".to_owned();
                told.push((rank, request, Heard::Failed { why }));
            }
        }
        Ok(told)
    }

    /// Begins what worker 0 gathers the others for, if all of them are there.
    fn begin(&mut self, what: &str, members: &Members, told: &mut Vec<Told>) {
        let Some(deed) = self.deeds.get_mut(what) else { return };
        let all_wait = |_: &(u64, u64)| deed.missing(members, &self.gone_over).is_empty();
        let Some((request, call)) = deed.gathers.filter(all_wait) else { return };
        self.attempts += 1;
        let attempt = self.attempts;
        (deed.gathers, deed.acts) = (None, Some((attempt, call)));
        self.open.remove(&(FIRST, request));
        told.push((FIRST, request, Heard::Begins { attempt }));
        deed.tell(u64::MAX, &Heard::Begins { attempt }, &mut self.open, told);
    }

    /// How many waits and workers were gone over since the last call of this.
    pub fn take_gone_over(&self) -> usize {
        self.gone_over.take()
    }

    /// A worker no longer waits for the answer to that request. For whom it waited, unless it was answered before.
    pub fn withdraw(&mut self, rank: Rank, request: u64, members: &Members) -> Option<Vec<Rank>> {
        let deed = self.deeds.get(self.open.get(&(rank, request))?)?;
        let mut missing = match deed.gathers {
            Some(_) => deed.missing(members, &self.gone_over),
            None => Vec::new(),
        };
        if rank != FIRST && missing.is_empty() {
            missing.push(FIRST);
        }
        self.close(rank, request);
        Some(missing)
    }

    /// There is nobody any more to be answered to that request.
    fn close(&mut self, rank: Rank, request: u64) {
        let Some(what) = self.open.remove(&(rank, request)) else { return };
        if let Some(deed) = self.deeds.get_mut(&what) {
            deed.gathers.take_if(|(gathers, _)| rank == FIRST && *gathers == request);
            deed.waiting.remove(&(rank, request));
        }
        self.deeds.forget(&what);
    }

    /// A worker that has gone, and is not lost so far, waits for nothing, and is waited for by whoever does.
    pub fn stand_aside(&mut self, rank: Rank) {
        let requests: Vec<u64> = self.open.range(of(rank)).map(|(&(_, request), _)| request).collect();
        requests.into_iter().for_each(|request| self.close(rank, request));
    }

    /// The workers are `members` now: who is told something by that.
    pub fn without(&mut self, rank: Rank, members: &Members) -> Vec<Told> {
        self.stand_aside(rank);
        if rank == FIRST {
            let open: Vec<(Rank, u64)> = self.open.keys().copied().collect();
            return open
                .into_iter()
                .map(|(rank, request)| {
                    self.close(rank, request);
                    (rank, request, Heard::Gone)
                })
                .collect();
        }
        let gathers: Vec<Arc<str>> = self.open.range(of(FIRST)).map(|(_, what)| Arc::clone(what)).collect();
        let mut told = Vec::new();
        gathers.iter().for_each(|what| self.begin(what, members, &mut told));
        told
    }

    /// For whom a worker waits that has said that it waits for `what`.
    pub fn needs(&self, rank: Rank, what: &str, members: &Members) -> Vec<Rank> {
        if rank != FIRST {
            return if self.open.range(of(rank)).next().is_some() { vec![FIRST] } else { Vec::new() };
        }
        let gathers = self.deeds.get(what).filter(|deed| deed.gathers.is_some());
        gathers.map_or_else(Vec::new, |deed| deed.missing(members, &self.gone_over))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeSet, VecDeque};
    use std::convert::Infallible;

    const W: &str = "load of `w`";

    fn gathers(what: &str, call: u64) -> Say {
        Say::Gathers { what: what.to_owned(), call }
    }

    fn ends(attempt: u64, failed: Option<&str>) -> Say {
        Say::Ends { what: W.to_owned(), attempt, failed: failed.map(str::to_owned) }
    }

    fn waits(what: &str, done: u64, begun: u64) -> Say {
        Say::Waits { what: what.to_owned(), done, begun }
    }

    /// Of a job of three.
    struct Job {
        firsts: Firsts<()>,
        members: Members,
    }

    impl Job {
        fn new() -> Self {
            Self { firsts: Firsts::default(), members: Members::of(0..3) }
        }

        fn say(&mut self, rank: Rank, request: u64, say: Say) -> Vec<Told> {
            self.firsts.say((rank, request), say, &self.members, |_| Ok::<_, Infallible>(())).unwrap()
        }

        /// It is known what each request is for that somebody waits by, and nothing else is kept than what is waited for or was
        /// paid for.
        fn check(&self) {
            let mut open = Open::new();
            for (what, deed) in self.firsts.deeds.all() {
                let gathers = deed.gathers.map(|(request, _)| (FIRST, request));
                let requests = deed.waiting.keys().copied().chain(gathers);
                requests.for_each(|request| assert!(open.insert(request, what.clone()).is_none()));
                assert!(deed.charge.is_some() || !deed.waiting.is_empty(), "{what} is kept for nobody");
            }
            assert_eq!(self.firsts.open, open);
        }
    }

    #[test]
    fn worker_0_begins_when_all_others_wait_and_they_are_told_how_it_ends() {
        let mut job = Job::new();
        assert_eq!(job.say(1, 10, waits(W, 0, 0)), []);
        assert_eq!(job.say(2, 20, waits("load of `v`", 0, 0)), []);
        assert_eq!(job.say(0, 1, gathers(W, 1)), [], "worker 2 waits for something else");
        assert_eq!(job.firsts.needs(0, W, &job.members), [2]);
        assert_eq!(job.firsts.needs(1, W, &job.members), [0]);
        let begins = Heard::Begins { attempt: 1 };
        let told = job.say(2, 21, waits(W, 0, 0));
        assert_eq!(told, [(0, 1, begins.clone()), (1, 10, begins.clone()), (2, 21, begins)]);
        assert_eq!(job.say(1, 11, waits(W, 0, 1)), []);
        let done = Heard::Done { call: 1 };
        assert_eq!(job.say(0, 2, ends(1, None)), [(0, 2, Heard::Noted), (1, 11, done.clone())]);
        assert_eq!(job.say(2, 22, waits(W, 0, 1)), [(2, 22, done)], "it came after the end");
        assert_eq!(job.say(2, 23, waits(W, 1, 0)), [], "that is another one");
        // Worker 0 was interrupted when it had said so, and makes the call again.
        job.say(1, 12, waits(W, 1, 0));
        assert_eq!(job.say(0, 3, gathers(W, 1)).len(), 3);
        assert!(job.say(1, 13, waits(W, 1, 2)).is_empty() && job.say(2, 24, waits(W, 1, 2)).is_empty());
        assert_eq!(job.say(0, 4, ends(2, None)), [(0, 4, Heard::Noted)], "they wait for the next");
        assert_eq!(job.say(0, 5, gathers(W, 2)).len(), 3);
        assert_eq!(job.say(0, 6, ends(3, None)), [(0, 6, Heard::Noted)]);
        assert_eq!(job.say(1, 14, waits(W, 1, 3)), [(1, 14, Heard::Done { call: 2 })]);
    }

    #[test]
    fn what_failed_is_told_to_those_that_wait_for_that_attempt_and_to_no_other() {
        let mut job = Job::new();
        job.say(0, 1, gathers(W, 1));
        job.say(1, 10, waits(W, 0, 0));
        job.say(2, 20, waits(W, 0, 0));
        job.say(1, 11, waits(W, 0, 1));
        let failed = Heard::Failed { why: "no room".to_owned() };
        assert_eq!(job.say(0, 2, ends(1, Some("no room"))), [(0, 2, Heard::Noted), (1, 11, failed.clone())]);
        assert_eq!(job.say(2, 21, waits(W, 0, 1)), [(2, 21, failed)]);
        assert_eq!(job.say(2, 22, waits(W, 0, 0)), [], "its time was up: it comes for the next attempt");
        job.say(1, 12, waits(W, 0, 0));
        assert_eq!(job.say(0, 3, gathers(W, 1)).len(), 3);
        assert_eq!(job.say(0, 4, ends(1, None)), [(0, 4, Heard::Noted)], "that attempt is over");
    }

    #[test]
    fn who_has_withdrawn_or_gone_is_not_told_and_a_worker_that_has_gone_is_not_waited_for() {
        let mut job = Job::new();
        job.say(0, 1, gathers(W, 1));
        job.say(1, 10, waits(W, 0, 0));
        assert_eq!(job.firsts.withdraw(1, 10, &job.members), Some(vec![2]));
        assert_eq!(job.firsts.withdraw(1, 10, &job.members), None);
        assert_eq!(job.firsts.withdraw(0, 1, &job.members), Some(vec![1, 2]));
        assert_eq!(job.say(2, 20, waits(W, 0, 0)), []);
        assert_eq!(job.firsts.withdraw(2, 20, &job.members), Some(vec![0]));
        job.say(2, 21, waits(W, 0, 0));
        job.say(0, 2, gathers(W, 1));
        job.members = Members { live: [0, 2].into(), left: [1].into(), lost: BTreeSet::new() };
        assert_eq!(job.firsts.without(1, &job.members).len(), 2, "worker 0 begins");
        job.say(2, 22, waits(W, 0, 1));
        job.members = Members { live: [2].into(), left: [0, 1].into(), lost: BTreeSet::new() };
        assert_eq!(job.firsts.without(0, &job.members), [(2, 22, Heard::Gone)]);
        assert_eq!(job.say(2, 23, waits(W, 0, 0)), [(2, 23, Heard::Gone)]);
    }

    #[test]
    fn what_is_kept_of_those_that_only_wait_goes_with_them() {
        let mut job = Job::new();
        for request in 0..100 {
            job.say(1, request, waits(&format!("load {request}"), 0, 0));
        }
        assert_eq!(job.firsts.deeds.all().len(), 100);
        job.firsts.stand_aside(1);
        assert!(job.firsts.deeds.all().is_empty());
        for (rank, say) in [(1, gathers(W, 1)), (2, ends(1, None)), (0, waits(W, 0, 0))] {
            assert!(matches!(&job.say(rank, 1, say)[..], [(_, 1, Heard::Failed { .. })]));
        }
        assert!(job.firsts.deeds.all().is_empty());
    }

    /// How many things that worker 0 does for all are looked at for each of these, where it has done so many.
    fn looks(deeds: u64) -> Vec<usize> {
        type Act = fn(&mut Job);
        let mut job = Job::new();
        for request in 0..deeds {
            job.say(0, request, gathers(&format!("load {request}"), 1));
            assert_eq!(job.firsts.withdraw(0, request, &job.members), Some(vec![1, 2]));
        }
        assert_eq!(job.firsts.deeds.all().len() as u64, deeds);
        let acts: [Act; 12] = [
            |job| assert_eq!(job.say(1, 1, waits(W, 0, 0)), []),
            |job| assert_eq!(job.firsts.needs(1, W, &job.members), [0]),
            |job| assert_eq!(job.firsts.withdraw(1, 1, &job.members), Some(vec![0])),
            |job| assert_eq!(job.firsts.withdraw(1, 1, &job.members), None),
            |job| assert_eq!(job.say(0, 1, gathers(W, 1)), []),
            |job| assert_eq!(job.firsts.needs(0, W, &job.members), [1, 2]),
            |job| assert_eq!(job.firsts.withdraw(0, 1, &job.members), Some(vec![1, 2])),
            |job| assert_eq!(job.say(1, 2, waits("load of `v`", 0, 0)), []),
            |job| job.firsts.stand_aside(1),
            |job| assert_eq!(job.say(0, 2, gathers(W, 1)), []),
            |job| {
                job.members = Members { live: [0, 2].into(), left: [1].into(), lost: BTreeSet::new() };
                assert_eq!(job.firsts.without(1, &job.members), []);
            },
            |job| {
                job.say(2, 1, waits("load of `v`", 0, 0));
                job.members = Members { live: [2].into(), left: [0, 1].into(), lost: BTreeSet::new() };
                assert_eq!(job.firsts.without(0, &job.members), [(2, 1, Heard::Gone)]);
            },
        ];
        let counted = acts.map(|act| {
            job.firsts.deeds.looks.set(0);
            act(&mut job);
            job.check();
            job.firsts.deeds.looks.get()
        });
        counted.to_vec()
    }

    // All that worker 0 had ever done for all was gone through for each request, and it may have done any number of things.
    #[test]
    fn what_a_request_costs_does_not_grow_with_what_worker_0_has_done() {
        assert_eq!(looks(3), looks(3000));
    }

    // Each of many waits for the same went over all of them, and cost what any request does.
    #[test]
    fn what_a_wait_has_gone_over_is_counted_while_worker_0_gathers() {
        let mut job = Job::new();
        for request in 0..100 {
            job.say(1, request, waits(W, 0, 0));
        }
        assert_eq!(job.firsts.take_gone_over(), 0, "nobody looks who is missing");
        job.say(0, 1, gathers(W, 1));
        assert!(job.firsts.take_gone_over() >= 100);
        job.say(1, 100, waits(W, 0, 0));
        assert!(job.firsts.take_gone_over() >= 101);
        assert_eq!(job.firsts.withdraw(1, 100, &job.members), Some(vec![2]));
        assert!(job.firsts.take_gone_over() >= 101);
        assert_eq!(job.firsts.needs(0, W, &job.members), [2]);
        assert!(job.firsts.take_gone_over() >= 100);
    }

    // The reason was kept, and only the name charged: three times as much as was paid for.
    #[test]
    fn what_is_charged_covers_the_longest_name_and_the_longest_reason_as_long_as_it_is_kept() {
        let mut firsts = Firsts::default();
        let members = Members::of(0..2);
        let mut say = |request, say, room: bool| {
            let charge = |kept| match kept {
                Kept::Why(_) if !room => Err(()),
                Kept::Waits(bytes) | Kept::Deed(bytes) | Kept::Why(bytes) => Ok(bytes),
            };
            let rank = Rank::from(matches!(say, Say::Waits { .. }));
            firsts.say((rank, request), say, &members, charge).unwrap()
        };
        let what = "w".repeat(3 * MAX_TEXT_BYTES);
        let failed = || Some("é".repeat(MAX_TEXT_BYTES));
        say(1, waits(&what, 0, 0), true);
        say(2, gathers(&what, 1), true);
        say(3, Say::Ends { what: what.clone(), attempt: 1, failed: failed() }, true);
        let why = match &say(4, waits(&what, 0, 1), true)[..] {
            [(1, 4, Heard::Failed { why })] => why.clone(),
            told => panic!("{told:?}"),
        };
        say(5, waits(&what, 0, 0), true);
        say(6, gathers(&what, 1), true);
        say(7, Say::Ends { what: what.clone(), attempt: 2, failed: failed() }, false);
        let told = say(8, waits(&what, 0, 2), false);
        assert_eq!(told, [(1, 8, Heard::Failed { why: NO_ROOM.to_owned() })]);
        say(9, waits(&what, 0, 0), true);
        say(10, gathers(&what, 1), true);
        say(11, Say::Ends { what: what.clone(), attempt: 3, failed: failed() }, true);
        let (name, deed) = firsts.deeds.all().first_key_value().unwrap();
        let failed = deed.failed.as_ref().unwrap();
        assert_eq!(failed.why, why);
        assert!(deed.charge >= Some(name.len()) && failed._charge >= Some(why.len()), "{deed:?}");
        assert!(deed.waiting.values().all(|(_, charge)| *charge >= name.len()), "{deed:?}");
        firsts.say::<()>((0, 12), gathers(&what, 1), &members, |_| panic!("it is paid for")).unwrap();
        firsts.say((1, 13), waits(&what, 0, 0), &members, |_| Ok::<_, ()>(0)).unwrap();
        let ends = Say::Ends { what, attempt: 4, failed: None };
        firsts.say((0, 14), ends, &members, |_| Ok::<_, ()>(0)).unwrap();
        assert!(
            firsts.deeds.all().values().all(|deed| deed.failed.is_none()),
            "nobody is told of it any more"
        );
    }

    /// Where a worker is in its program: it loads 1, then 2, and so on, each until it is told that it is done.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum State {
        /// Worker 0 gathers the others, or another waits, by this request.
        Asked(u64),
        /// Worker 0 acts.
        Acts(u64),
        /// It is about to make the call once more.
        Between,
    }

    #[derive(Debug)]
    struct Worker {
        state: State,
        load: u64,
        done: u64,
        begun: u64,
        requests: u64,
        out: VecDeque<(u64, Option<Say>)>,
        into: VecDeque<(u64, Heard)>,
    }

    impl Worker {
        fn new() -> Self {
            let (out, into) = (VecDeque::new(), VecDeque::new());
            Self { state: State::Between, load: 1, done: 0, begun: 0, requests: 0, out, into }
        }

        fn ask(&mut self, say: Say) -> u64 {
            self.requests += 1;
            self.out.push_back((self.requests, Some(say)));
            self.requests
        }

        fn call(&mut self, rank: usize) {
            let say = if rank == 0 { gathers(W, self.load) } else { waits(W, self.done, self.begun) };
            self.state = State::Asked(self.ask(say));
        }

        /// Worker 0 gives `value` what it loads.
        fn hear(&mut self, rank: usize, request: u64, heard: Heard, value: u64) {
            if self.state != State::Asked(request) {
                return; // nobody waits for that answer any more
            }
            match heard {
                Heard::Begins { attempt } if rank == 0 => self.state = State::Acts(attempt),
                Heard::Begins { attempt } => {
                    self.begun = attempt;
                    self.call(rank);
                }
                Heard::Done { call } => {
                    assert_eq!(value, self.load, "M-4: worker {rank} is told that this load is done");
                    (self.done, self.begun, self.load, self.state) = (call, 0, self.load + 1, State::Between);
                }
                Heard::Failed { .. } | Heard::Gone | Heard::Noted => {
                    (self.begun, self.state) = (0, State::Between);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn whatever_is_said_it_is_known_what_each_request_is_for(
            steps in prop::collection::vec((0u32..3, 0u64..3, 0u8..8, 0usize..3, 0u64..4), 1..200),
        ) {
            let mut job = Job::new();
            for (rank, request, what, name, number) in steps {
                let name = [W, "load of `v`", "load of `u`"][name];
                match what {
                    0 | 1 => _ = job.say(rank, request, gathers(name, number)),
                    2 | 3 => _ = job.say(rank, request, waits(name, number, 0)),
                    4 => _ = job.say(rank, request, Say::Ends { what: name.to_owned(), attempt: number, failed: None }),
                    5 => _ = job.firsts.withdraw(rank, request, &job.members),
                    6 => job.firsts.stand_aside(rank),
                    // No more than half of the time is somebody lost.
                    _ if number > 0 => {}
                    _ => {
                        job.members.live.remove(&rank);
                        job.members.lost.insert(rank);
                        let told = job.firsts.without(rank, &job.members);
                        prop_assert!(rank != FIRST || told.iter().all(|(_, _, heard)| *heard == Heard::Gone));
                    }
                }
                job.check();
            }
        }

        // Retried, a load was taken for the next one, or the next for it.
        #[test]
        fn whoever_makes_its_calls_again_until_they_are_done_stays_in_step(
            steps in prop::collection::vec((0usize..3, 0u8..8), 1..400),
        ) {
            let mut job = Job::new();
            let mut workers = [Worker::new(), Worker::new(), Worker::new()];
            let mut value = 0;
            for (rank, what) in steps.into_iter().chain((0..600).map(|step| (step % 3, (step / 3 % 4) as u8))) {
                job.check();
                let worker = &mut workers[rank];
                match (what, worker.state) {
                    (0, State::Between) => worker.call(rank),
                    (0, State::Acts(attempt)) => {
                        value = worker.load;
                        worker.ask(ends(attempt, None));
                        (worker.load, worker.state) = (worker.load + 1, State::Between);
                    }
                    // It fails before or after a part of it.
                    (5, State::Acts(attempt)) => {
                        worker.ask(ends(attempt, Some("no room")));
                        worker.state = State::Between;
                    }
                    // Its time is up, or it was interrupted; the server may not answer to that.
                    (6, State::Asked(request)) => {
                        worker.out.push_back((request, None));
                        (worker.begun, worker.state) = (0, State::Between);
                    }
                    // It is interrupted when it has said so, or so quickly that nobody is told.
                    (6, State::Acts(attempt)) => {
                        value = worker.load;
                        worker.ask(ends(attempt, None));
                        worker.state = State::Between;
                    }
                    (7, State::Acts(_)) => worker.state = State::Between,
                    (1 | 2, _) => match worker.out.pop_front() {
                        Some((request, Some(say))) => {
                            for (to, request, heard) in job.say(rank as Rank, request, say) {
                                workers[to as usize].into.push_back((request, heard));
                            }
                        }
                        Some((request, None)) => _ = job.firsts.withdraw(rank as Rank, request, &job.members),
                        None => {}
                    },
                    _ => {
                        if let Some((request, heard)) = worker.into.pop_front() {
                            worker.hear(rank, request, heard, value);
                        }
                    }
                }
            }
            let loads = workers.each_ref().map(|worker| worker.load);
            prop_assert!(loads.iter().all(|load| *load >= loads[0] - 1 && *load > 5), "{loads:?}");
        }
    }
}
