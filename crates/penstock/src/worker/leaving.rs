//! Leaving a job: cleanly, or because of an error.

use super::Error;
use super::job::{Inner, Job};
use super::link::{Link, lock};
use super::table::TableInner;
use crate::turn::Turn;
use crate::wait::{ASK_WITHIN, Deadline, INTERRUPT_EVERY};
use penstock_proto::error::JobFailure;
use penstock_proto::message::Departure;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// One thread leaves; others that want to leave meanwhile wait for it and learn the outcome. Only that thread tells the servers
/// how this worker leaves.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    turn: Turn,
    error: Mutex<Option<Error>>,
    /// Whether the thread that has the turn wants to leave cleanly.
    cleanly: AtomicBool,
    /// Why this worker fails, for the thread that leaves meanwhile.
    failing: Mutex<Option<String>>,
}

impl Job {
    /// Leaves the job cleanly, so that the others go on without this worker: when this returns, the servers have taken
    /// everything that it did. Waits at most for `timeout`, else the option `deadline`.
    ///
    /// An error means that this worker has left as one that failed: [`Error::NotTaken`] names the server that had not taken
    /// everything. A failure of the job that no call of this thread has told so far is told here. Leaving twice does nothing;
    /// while another thread leaves, this one waits for it and returns the same ([`Error::InLine`] where its own time is up
    /// before); where another thread fails the job meanwhile ([`Job::fail`]) this one has not left cleanly ([`Error::Closed`]),
    /// unless all servers had let it go by then. Where a server may have done so in the same moment, this waits a little longer
    /// for what it says: a tenth of the limit, at most two seconds. If its line is down for all that time the error stands,
    /// and the others may take this worker for one that left.
    ///
    /// In a child of `fork` the job is the parent's: it stays as it is ([`Error::Forked`]).
    pub fn leave(&self, timeout: Option<Duration>) -> Result<(), Error> {
        let inner = &self.inner;
        if inner.fate.is_abandoned() {
            return Err(Error::Forked);
        }
        let deadline = inner.deadline(timeout);
        let told = inner.fate.was_told();
        inner.fate.close();
        let mut stood = false;
        let _turn = self.leaving.turn.take(|| {
            stood = true;
            inner.look_at_leave(deadline)
        })?;
        self.leaving.cleanly.store(true, Ordering::Relaxed);
        let settled = inner.settle(deadline);
        let links = inner.take_links();
        if links.is_empty() {
            return lock(&self.leaving.error).clone().filter(|_| stood).map_or(Ok(()), Err);
        }
        let result = settled.and_then(|()| inner.depart(&links, deadline));
        let failing = || lock(&self.leaving.failing).take();
        let how = match &result {
            Ok(()) => Departure::Done,
            Err(error) => Departure::Failed {
                what: failing().unwrap_or_else(|| format!("it could not leave cleanly: {error}")),
            },
        };
        let let_go = self.part(links, how, deadline.for_questions());
        let result = match result {
            Err(Error::Failed(_)) if told => Ok(()),
            // As it counts for the others.
            Err(Error::Closed | Error::NotTaken { .. } | Error::Unanswered { .. }) if let_go => Ok(()),
            result => result,
        };
        *lock(&self.leaving.error) = result.clone().err();
        result
    }

    /// Leaves the job because of an error: the others hear of it. Does not wait for them. A thread that leaves meanwhile
    /// ([`Job::leave`]) and has not been let go by all servers leaves as one that failed, and tells them this instead; for that
    /// thread this waits, at most two seconds, as it may have to find out what the servers know, or to tell them again where its
    /// line has just broken.
    pub fn fail(&self, what: &str) {
        let inner = &self.inner;
        if inner.fate.is_abandoned() {
            return;
        }
        inner.fate.close();
        let deadline = Deadline::new(ASK_WITHIN);
        let turn = self.leaving.turn.take(|| {
            // The thread that leaves cleanly is to give that up, and to say why.
            if self.leaving.cleanly.load(Ordering::Relaxed) {
                lock(&self.leaving.failing).get_or_insert_with(|| what.to_owned());
                inner.fate.end();
            }
            inner.look_at_leave(deadline)
        });
        // The thread that does not end in time has the links, or takes them and says so.
        let Ok(_turn) = turn else { return };
        // What has begun to be submitted goes whole where it can.
        let _ = inner.settle(deadline);
        let links = inner.take_links();
        if links.is_empty() {
            return;
        }
        // For a thread that comes to leave while this goes on.
        *lock(&self.leaving.error) = Some(inner.fate.failure().map_or(Error::Closed, Error::Failed));
        self.part(links, Departure::Failed { what: what.to_owned() }, deadline);
    }

    /// Why the job has failed, if it has. Looking does not count as having told it: [`Job::leave`] does what it would have done.
    pub fn failure(&self) -> Option<JobFailure> {
        if self.inner.fate.is_abandoned() { None } else { self.inner.fate.failure() }
    }

    /// Leaves the job: cleanly ([`Job::leave`]), or because it `failed` ([`Job::fail`]).
    pub fn close(&self, failed: Option<String>) -> Result<(), Error> {
        match failed {
            None => self.leave(None),
            Some(what) => {
                self.fail(&what);
                Ok(())
            }
        }
    }

    /// Ends all links and threads of this worker. Servers that have not let it go are told why it leaves; whether all had. What
    /// is in doubt is waited for until the deadline.
    fn part(&self, links: Vec<Link>, how: Departure, deadline: Deadline) -> bool {
        // What this worker has heard explains more than how it ended.
        let how = self.inner.fate.failure().map_or(how, Departure::Heard).brief();
        self.inner.fate.end();
        let relays = std::mem::take(&mut *lock(&self.inner.relays));
        relays.into_values().for_each(|relay| relay.end());
        let farewells: Vec<_> = links.iter().map(|link| link.bid_farewell(how.clone())).collect();
        let mut let_go = true;
        for (link, farewell) in links.into_iter().zip(farewells) {
            let_go &= link.part(farewell, deadline);
        }
        if let Some(mut server) = lock(&self.embedded).take() {
            server.stop();
        }
        self.inner.forget_all();
        let_go
    }
}

impl Inner {
    /// Waits until no call is in the middle of submitting something. After an error it never ends what it has begun.
    fn settle(&self, deadline: Deadline) -> Result<(), Error> {
        let look = || {
            self.fate.stands()?;
            self.look_at_leave(deadline)
        };
        // A push shares the clock from before its first submission to behind its last.
        self.stamping.alone(look).map(drop).inspect_err(|_| self.fate.end())
    }

    /// How long a thread that waits for others to let it leave may sleep until it looks again.
    fn look_at_leave(&self, deadline: Deadline) -> Result<Duration, Error> {
        self.fate.check_interrupt()?;
        let left = deadline.left();
        if left.is_zero() {
            return Err(Error::InLine { what: "leaving the job".to_owned(), waited: deadline.waited() });
        }
        Ok(left.min(INTERRUPT_EVERY))
    }

    /// Takes the links away from all calls: those that wait have heard that they are to end.
    fn take_links(&self) -> Vec<Link> {
        std::mem::take(&mut *self.links.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until all servers have taken everything that this worker did, and have let it go.
    fn depart(&self, links: &[Link], deadline: Deadline) -> Result<(), Error> {
        self.fate.stands()?;
        self.each_table(TableInner::leave);
        for relay in self.all_relays() {
            relay.hand_over(deadline)?;
        }
        links.iter().try_for_each(|link| link.say_goodbye(deadline))?;
        // The first server opens barriers: it hears of it last, so that no worker passes one before the others have everything.
        let Some((first, others)) = links.split_first() else { return Ok(()) };
        let asked = others.iter().map(Link::ask_to_leave).collect::<Result<Vec<_>, _>>()?;
        for ((link, asked), server) in others.iter().zip(asked).zip(1..) {
            link.confirm(asked, deadline)?;
            // Otherwise it would be taken for lost, since it no longer listens to this worker, however long the first server
            // takes.
            let relay = lock(&self.relays).remove(&server);
            relay.inspect(|relay| relay.end());
        }
        first.confirm(first.ask_to_leave()?, deadline)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if self.inner.fate.is_abandoned() {
            // What it stands for is the parent's: its connections are not ended here, its threads not waited for, and its locks
            // may have been copied while they were held.
            std::mem::forget(std::sync::Arc::clone(&self.inner));
            std::mem::forget(self.embedded.get_mut().map(Option::take));
            return;
        }
        self.fail("it dropped the job without closing it");
    }
}
