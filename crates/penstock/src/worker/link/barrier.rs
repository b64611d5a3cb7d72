//! Waiting at the first server for other workers: standing at the barrier, or taking part in what worker 0 does for all; and going
//! away from there. A worker that is told that it waited in vain no longer waits, so that the others do not go on as if it had
//! come. The server answers in order, so its answer to the withdrawal comes after the one that was waited for, if that came first.
//! As long as the server has not answered, it is uncertain which came first: at the barrier the next call waits for that answer,
//! and has passed if the barrier did open.

use super::{Answered, Heard, Link, lock};
use crate::wait::Deadline;
use crate::worker::Error;
use penstock_proto::Rank;
use penstock_proto::first::{self, Say};
use penstock_proto::message::{Answer, Ask};
use std::sync::mpsc::Receiver;

/// How a wait for others ended.
pub(in crate::worker) enum Met<T> {
    /// As it should.
    Passed(T),
    /// The time was up.
    InVain {
        /// The workers that were waited for; empty where the server did not say.
        missing: Vec<Rank>,
    },
}

/// Who passed the barrier.
pub(in crate::worker) struct Passed {
    /// Workers that stood there.
    pub(in crate::worker) ranks: Vec<Rank>,
    /// Workers that had left the job.
    pub(in crate::worker) left: Vec<Rank>,
}

/// A wait that was not answered.
struct Vain {
    /// `None`: the time was up.
    why: Option<Error>,
    /// `None`: the server did not say.
    missing: Option<Vec<Rank>>,
    /// The answer, where it came all the same.
    late: Option<Answer>,
    /// Where it comes, if it is not known whether it will.
    doubtful: Option<Receiver<Heard>>,
}

impl Vain {
    fn over<T>(self) -> Result<Met<T>, Error> {
        self.why.map_or_else(|| Ok(Met::InVain { missing: self.missing.unwrap_or_default() }), Err)
    }
}

impl Link {
    /// Stands at the barrier until it opens. `look` is called now and then, and its error ends the wait. After an error this
    /// worker has not passed, except after [`Error::Interrupted`] at the very moment in which the barrier opened.
    pub(in crate::worker) fn stand_at_barrier(
        &self,
        deadline: Deadline,
        mut look: impl FnMut() -> Result<(), Error>,
    ) -> Result<Met<Passed>, Error> {
        self.fate.check()?;
        // Not in the condition: what is locked there stays so behind it.
        let doubtful = lock(&self.doubtful).take();
        if let Some(opens) = doubtful {
            let stands = || self.fate.check().and_then(|()| look());
            match self.listen(&opens, stands, || self.fate.check_interrupt(), deadline) {
                Ok(Some((Answer::BarrierPassed { ranks, left }, _))) => {
                    return Ok(Met::Passed(Passed { ranks, left }));
                }
                Ok(Some(_)) => {}
                unheard => {
                    *lock(&self.doubtful) = Some(opens);
                    return unheard.map(|_| Met::InVain { missing: Vec::new() });
                }
            }
        }
        match self.wait_for_others(Ask::Barrier, deadline, look)? {
            Ok((Answer::BarrierPassed { ranks, left }, _)) => Ok(Met::Passed(Passed { ranks, left })),
            Ok((other, _)) => Err(self.misunderstood(&other)),
            Err(mut vain) => {
                if let Some(doubtful) = vain.doubtful.take() {
                    *lock(&self.doubtful) = Some(doubtful);
                }
                vain.over()
            }
        }
    }

    /// Takes part in what worker 0 does for all. What it hears is told by `late` where it can no longer be returned.
    pub(in crate::worker) fn take_part(
        &self,
        say: Say,
        deadline: Deadline,
        look: impl FnMut() -> Result<(), Error>,
        late: impl FnOnce(first::Heard),
    ) -> Result<Met<first::Heard>, Error> {
        self.fate.check()?;
        match self.wait_for_others(Ask::First(say), deadline, look)? {
            Ok((Answer::First(heard), _)) => Ok(Met::Passed(heard)),
            Ok((other, _)) => Err(self.misunderstood(&other)),
            Err(mut vain) => {
                if let Some(Answer::First(heard)) = vain.late.take() {
                    late(heard);
                }
                vain.over()
            }
        }
    }

    /// Says something of what worker 0 does for all, and waits for nothing: where the connection breaks, it is said again.
    pub(in crate::worker) fn say(&self, say: Say) -> Result<(), Error> {
        self.fate.check()?;
        self.wire.ask(Ask::First(say)).map(drop)
    }

    fn wait_for_others(
        &self,
        ask: Ask,
        deadline: Deadline,
        mut look: impl FnMut() -> Result<(), Error>,
    ) -> Result<Result<Answered, Vain>, Error> {
        let (request, answer) = self.wire.ask(ask)?;
        let waits = || self.fate.check().and_then(|()| look());
        let why = match self.listen(&answer, waits, || self.fate.check_interrupt(), deadline) {
            Ok(Some(answered)) => return Ok(Ok(answered)),
            Ok(None) => None,
            // A child of a signal handler's fork would take its parent away from there.
            Err(error) if self.fate.is_abandoned() => return Err(error),
            Err(error) => Some(error),
        };
        let missing = self.withdraw(request, deadline)?;
        let (mut late, mut doubtful) = (None, None);
        match answer.try_recv() {
            // The withdrawal answers it, too, where nothing else did.
            Ok(Ok((Answer::Missing { .. }, _))) => {}
            Ok(Ok(answered)) if matches!(why, None | Some(Error::Knot { .. })) => return Ok(Ok(answered)),
            Ok(Ok((answer, _))) => late = Some(answer),
            Ok(Err(_)) => {}
            Err(_) => doubtful = missing.is_none().then_some(answer),
        }
        Ok(Err(Vain { why, missing, late, doubtful }))
    }

    /// No longer waits for the answer to a request. Returns the workers that it waited for, `None` if the server does not say so
    /// now. A caller that was interrupted is not asked again: this is short.
    fn withdraw(&self, request: u64, deadline: Deadline) -> Result<Option<Vec<Rank>>, Error> {
        let (_, answer): (u64, Receiver<Heard>) = self.wire.ask(Ask::Withdraw { request })?;
        // A request that is not waited for any longer stays open: on another connection it is said again.
        match self.listen(&answer, || self.fate.check(), || Ok(()), deadline.for_questions())? {
            Some((Answer::Missing { ranks }, _)) => Ok(Some(ranks)),
            Some((other, _)) => Err(self.misunderstood(&other)),
            None => Ok(None),
        }
    }
}
