//! What worker 0 does for all, while the others wait: see [`penstock_proto::first`].

use super::{Inner, Job};
use crate::turn::Turn;
use crate::wait::Deadline;
use crate::worker::Error;
use crate::worker::circle::Circle;
use crate::worker::link::{Link, Met, lock};
use penstock_fabric::sync::Ordering;
use penstock_proto::first::{Heard, Say};
use penstock_proto::knot::Goal;
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What was done for all so far, by its name.
#[derive(Default)]
pub(super) struct Deeds(Mutex<HashMap<String, Arc<Deed>>>);

#[derive(Default)]
struct Deed {
    /// Of the threads of this worker that come for the same.
    turn: Turn,
    /// On worker 0, of its threads: each from its beginning to its end.
    acting: Turn,
    /// Calls of worker 0 that this worker knows to be done.
    done: AtomicU64,
    /// On worker 0, the attempt that it is at; 0: none.
    at: AtomicU64,
}

impl Deeds {
    fn of(&self, what: &str) -> Arc<Deed> {
        Arc::clone(lock(&self.0).entry(what.to_owned()).or_default())
    }
}

impl Job {
    /// Has worker 0 `act` for all workers, each of which makes this call. Returns when it has; its error otherwise, which the
    /// others are told of. `timeout` is for the others to come, the job's deadline for each wait behind that.
    pub fn by_first(
        &self,
        what: &str,
        timeout: Option<Duration>,
        act: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        // Before any lock: in a child of a fork nobody lets go of it.
        self.inner.fate.check()?;
        let (deed, deadline) = (self.inner.deeds.of(what), self.inner.deadline(timeout));
        let mine = || self.inner.look(what, deadline);
        let _acting = (self.inner.rank == 0).then(|| deed.acting.take(mine)).transpose()?;
        if !self.begin_by_first(what, timeout.map(|_| deadline.left()), None)? {
            return Ok(());
        }
        act()
            .and_then(|()| self.end_by_first(what, None))
            .inspect_err(|error| self.fail_by_first(what, error.to_string()))
    }

    /// The first half of [`Job::by_first`]. True: this is worker 0, and all others have come. No other thread of it may begin the
    /// same before it ends. False: it is done. `then` is for worker 0 to end what it has begun.
    pub fn begin_by_first(
        &self,
        what: &str,
        timeout: Option<Duration>,
        then: Option<Duration>,
    ) -> Result<bool, Error> {
        self.inner.fate.check()?;
        self.inner.touch();
        let deed = self.inner.deeds.of(what);
        let deadline = self.inner.deadline(timeout);
        let what = what.to_owned();
        let _turn = deed.turn.take(|| self.inner.look(&what, deadline))?;
        if self.inner.rank == 0 {
            let call = deed.done.load(Ordering::Relaxed) + 1;
            let say = Say::Gathers { what: what.clone(), call };
            // All came, but this call does not return: they are told so.
            let late = |link: &Link, heard| {
                if let Heard::Begins { attempt } = heard {
                    let failed = Some("it was interrupted".to_owned());
                    let _ = link.say(Say::Ends { what: what.clone(), attempt, failed });
                }
            };
            return match self.take_part(&what, say, deadline, late)? {
                Heard::Begins { attempt } => {
                    deed.at.store(attempt, Ordering::Relaxed);
                    Ok(true)
                }
                heard => Err(self.not_asked_for(&heard)),
            };
        }
        let (mut begun, mut deadline) = (0, deadline);
        loop {
            let say = Say::Waits { what: what.clone(), done: deed.done.load(Ordering::Relaxed), begun };
            match self.take_part(&what, say, deadline, |_, _| ())? {
                Heard::Begins { attempt } => {
                    if begun == 0 {
                        deadline = self.inner.deadline(then);
                    }
                    begun = attempt;
                }
                Heard::Done { call } => {
                    deed.done.store(call, Ordering::Relaxed);
                    return Ok(false);
                }
                Heard::Failed { why } => return Err(Error::FirstFailed { what, why }),
                Heard::Gone => return Err(Error::FirstGone { what }),
                heard @ Heard::Noted => return Err(self.not_asked_for(&heard)),
            }
        }
    }

    /// Worker 0 has done it: the others go on once all servers have taken what that was. After an error they have not, and are to
    /// be told so.
    pub fn end_by_first(&self, what: &str, timeout: Option<Duration>) -> Result<(), Error> {
        self.inner.settle_before(&goal(what), self.inner.deadline(timeout))?;
        let deed = self.inner.deeds.of(what);
        let attempt = deed.at.load(Ordering::Relaxed);
        let links = self.inner.links();
        links.first().ok_or(Error::Closed)?.say(Say::Ends {
            what: what.to_owned(),
            attempt,
            failed: None,
        })?;
        // It reaches the server before whatever this worker says next.
        deed.at.store(0, Ordering::Relaxed);
        deed.done.fetch_add(1, Ordering::Relaxed);
        self.inner.barriers.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// How often this was done, as far as this worker knows. Takes no lock that is held across a wait.
    pub fn done_by_first(&self, what: &str) -> Result<u64, Error> {
        self.inner.fate.check()?;
        Ok(self.inner.deeds.of(what).done.load(Ordering::Relaxed))
    }

    /// Worker 0 has not done what it has begun. Waits for nothing; changes nothing where it has, or has begun nothing.
    pub fn fail_by_first(&self, what: &str, why: String) {
        if self.inner.fate.check().is_err() {
            return;
        }
        let attempt = self.inner.deeds.of(what).at.swap(0, Ordering::Relaxed);
        if attempt != 0
            && let Some(first) = self.inner.links().first()
        {
            // Where it cannot be said, the job has failed, and they hear of that.
            let _ = first.say(Say::Ends { what: what.to_owned(), attempt, failed: Some(why) });
        }
    }

    /// Takes part in it once all that this worker has submitted was taken.
    fn take_part(
        &self,
        what: &str,
        say: Say,
        deadline: Deadline,
        late: impl FnOnce(&Link, Heard),
    ) -> Result<Heard, Error> {
        let goal = goal(what);
        self.inner.settle_before(&goal, deadline)?;
        let links = self.inner.links();
        let first = links.first().ok_or(Error::Closed)?;
        let mut circle = Circle::new(&self.inner, deadline);
        let look = || circle.look(|| Ok(Some(goal.clone())));
        match first.take_part(say, deadline, look, |heard| late(first, heard))? {
            Met::Passed(heard) => {
                self.inner.barriers.fetch_add(1, Ordering::Relaxed);
                Ok(heard)
            }
            Met::InVain { missing } => Err(Inner::in_vain(&goal, missing, None, deadline)),
        }
    }

    fn not_asked_for(&self, heard: &Heard) -> Error {
        Error::Protocol { server: 0, what: format!("an answer that was not asked for: {heard:?}") }
    }
}

fn goal(what: &str) -> Goal {
    Goal::First { what: what.to_owned() }
}
