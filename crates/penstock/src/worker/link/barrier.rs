//! Standing at the barrier, and going away from it: a worker that is told that the barrier was in vain no longer stands there, so
//! that the others do not pass it as if it had come. The server answers in order, so its answer to the withdrawal comes after
//! the opening, if the barrier opened first. As long as the server has not answered, it is uncertain which came first: the next
//! call waits for that answer, and has passed if the barrier did open.

use super::{Answered, Heard, Link, lock};
use crate::wait::Deadline;
use crate::worker::Error;
use penstock_proto::Rank;
use penstock_proto::first::Word;
use penstock_proto::message::{Answer, Ask};
use std::sync::mpsc::Receiver;

/// How standing at a barrier ended.
pub(in crate::worker) enum Met {
    /// All came.
    Passed {
        /// Workers that stood there.
        ranks: Vec<Rank>,
        /// Workers that had left the job.
        left: Vec<Rank>,
        /// What worker 0 said, if it was asked what that is.
        word: Option<Word>,
    },
    /// The time was up.
    InVain {
        /// The workers that the barrier waited for; empty where the server did not say.
        missing: Vec<Rank>,
    },
}

impl Link {
    /// Stands at the barrier until it opens, with what `ask` says there. `look` is called now and then, and its error ends the wait. After an error this
    /// worker has not passed, except after [`Error::Interrupted`] at the very moment in which the barrier opened.
    pub(in crate::worker) fn stand_at_barrier(
        &self,
        ask: Ask,
        deadline: Deadline,
        mut look: impl FnMut() -> Result<(), Error>,
    ) -> Result<Met, Error> {
        self.fate.check()?;
        let mut stands = || self.fate.check().and_then(|()| look());
        let patient = || self.fate.check_interrupt();
        if let Some((asked, opens)) = lock(&self.doubtful).take() {
            match self.listen(&opens, &mut stands, patient, deadline) {
                // What was said there, or heard, was about something else: it passed that barrier, and comes to this one.
                Ok(Some((Answer::BarrierPassed { .. } | Answer::Met { .. }, _))) if asked != ask => {}
                Ok(Some(passed @ (Answer::BarrierPassed { .. } | Answer::Met { .. }, _))) => {
                    return self.passed(passed);
                }
                Ok(Some(_)) => {}
                unheard => {
                    *lock(&self.doubtful) = Some((asked, opens));
                    return unheard.map(|_| Met::InVain { missing: Vec::new() });
                }
            }
        }
        let (barrier, opens) = self.wire.ask(ask.clone())?;
        let why = match self.listen(&opens, stands, patient, deadline) {
            Ok(Some(answered)) => return self.passed(answered),
            Ok(None) => None,
            // A child of a signal handler's fork would take its parent away from the barrier.
            Err(error) if self.fate.is_abandoned() => return Err(error),
            Err(error) => Some(error),
        };
        let missing = self.withdraw(barrier, deadline)?;
        match opens.try_recv() {
            Ok(Ok(passed @ (Answer::BarrierPassed { .. } | Answer::Met { .. }, _)))
                if matches!(why, None | Some(Error::Knot { .. })) =>
            {
                return self.passed(passed);
            }
            Err(_) if missing.is_none() => *lock(&self.doubtful) = Some((ask, opens)),
            _ => {}
        }
        why.map_or_else(|| Ok(Met::InVain { missing: missing.unwrap_or_default() }), Err)
    }

    /// Goes away from the barrier. Returns the workers that it waited for, `None` if the server does not say so now. A caller
    /// that was interrupted is not asked again: this is short.
    fn withdraw(&self, barrier: u64, deadline: Deadline) -> Result<Option<Vec<Rank>>, Error> {
        let (_, answer): (u64, Receiver<Heard>) = self.wire.ask(Ask::Withdraw { barrier })?;
        // A request that is not waited for any longer stays open: on another connection it is said again.
        match self.listen(&answer, || self.fate.check(), || Ok(()), deadline.for_questions())? {
            Some((Answer::Missing { ranks }, _)) => Ok(Some(ranks)),
            Some((other, _)) => Err(self.misunderstood(&other)),
            None => Ok(None),
        }
    }

    fn passed(&self, (answer, _): Answered) -> Result<Met, Error> {
        match answer {
            Answer::BarrierPassed { ranks, left } => Ok(Met::Passed { ranks, left, word: None }),
            Answer::Met { ranks, left, word } => Ok(Met::Passed { ranks, left, word }),
            other => Err(self.misunderstood(&other)),
        }
    }
}
