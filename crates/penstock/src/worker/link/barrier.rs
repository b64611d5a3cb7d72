//! Standing at the barrier, and going away from it: whoever is told that the barrier was in vain stands there no more, so that the
//! others do not pass it as if it had come. The server answers in order, so what it says of going away comes behind the opening,
//! where that was quicker.

use super::{ASK_WITHIN, Answered, Deadline, Heard, Link};
use crate::worker::Error;
use penstock_proto::Rank;
use penstock_proto::message::{Answer, Ask};
use std::sync::mpsc::Receiver;

/// How standing at a barrier ended.
pub(in crate::worker) enum Met {
    /// All came.
    Passed {
        /// Who stood there.
        ranks: Vec<Rank>,
        /// Who had left the job.
        left: Vec<Rank>,
    },
    /// The time was up.
    InVain {
        /// Whom the barrier waited for; empty where the server did not say.
        missing: Vec<Rank>,
    },
}

impl Link {
    /// Stands at the barrier until it opens. `look` is asked now and then, and ends the wait by its error. After an error this worker
    /// has not passed, but for [`Error::Interrupted`] in the moment in which the barrier opened.
    pub(in crate::worker) fn meet(
        &self,
        deadline: Deadline,
        mut look: impl FnMut() -> Result<(), Error>,
    ) -> Result<Met, Error> {
        self.fate.check()?;
        let (barrier, opens) = self.wire.ask(Ask::Barrier)?;
        let stands = || self.fate.check().and_then(|()| look());
        let why = match self.listen(&opens, stands, || self.fate.check_interrupt(), deadline) {
            Ok(Some(answered)) => return self.passed(answered),
            Ok(None) => None,
            Err(error) => Some(error),
        };
        let withdrawn = self.withdraw(barrier);
        let opened = opens.try_recv();
        self.forget(barrier);
        match (opened, why) {
            (_, Some(why @ (Error::Interrupted | Error::Closed | Error::Failed(_)))) => Err(why),
            (Ok(Ok(answered @ (Answer::BarrierPassed { .. }, _))), _) => self.passed(answered),
            (_, Some(why)) => Err(why),
            (_, None) => Ok(Met::InVain { missing: withdrawn? }),
        }
    }

    /// Goes away from the barrier; whom it waited for. Whoever was interrupted is not asked again: this is short.
    fn withdraw(&self, barrier: u64) -> Result<Vec<Rank>, Error> {
        let (_, answer): (u64, Receiver<Heard>) = self.wire.ask(Ask::Withdraw { barrier })?;
        // A request that is not waited for any longer stays open: on another connection it is said again.
        match self.listen(&answer, || self.fate.check(), || Ok(()), Deadline::new(ASK_WITHIN))? {
            Some((Answer::Missing { ranks }, _)) => Ok(ranks),
            Some((other, _)) => Err(self.misunderstood(&other)),
            None => Ok(Vec::new()),
        }
    }

    fn passed(&self, (answer, _): Answered) -> Result<Met, Error> {
        match answer {
            Answer::BarrierPassed { ranks, left } => Ok(Met::Passed { ranks, left }),
            other => Err(self.misunderstood(&other)),
        }
    }
}
