//! What worker 0 does for all, while the others wait: see [`penstock_proto::first`].

use super::Job;
use crate::wait::Deadline;
use crate::worker::Error;
use penstock_proto::first::{Heard, Stage, Word, hear};
use penstock_proto::message::Ask;
use std::time::Duration;

/// How long worker 0 waits for others that may have stopped waiting for it.
const STILL_THERE: Duration = Duration::from_secs(1);

impl Job {
    /// Has worker 0 `act` for all workers, each of which makes this call. Returns when it has; its error otherwise, which the
    /// others are told of. `timeout` is for the others to come, the job's deadline for each wait behind that.
    pub fn by_first(
        &self,
        what: &str,
        timeout: Option<Duration>,
        act: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        if !self.begin_by_first(what, timeout)? {
            return Ok(());
        }
        if self.inner.rank != 0 {
            return self.end_by_first(what, None, None);
        }
        act().inspect_err(|error| {
            // Who asks to stop waiting is not kept until the others come. Otherwise they stand there already, unless a deadline has
            // passed, which may have been theirs too: they must not hear of this when they come again.
            let at_once = match error {
                Error::Interrupted => Some(Duration::ZERO),
                Error::PullTimeout { .. } | Error::LaneTimeout { .. } | Error::Knot { .. } => {
                    Some(STILL_THERE)
                }
                _ => None,
            };
            // Those that cannot be told wait for worker 0's next attempt, until their deadline.
            let _ = self.end_by_first(what, Some(error.to_string()), at_once);
        })?;
        self.end_by_first(what, None, None)
    }

    /// The first half of [`Job::by_first`]: all meet. Returns whether there is a second: not for a worker that gave up waiting for
    /// what has been done by now.
    pub fn begin_by_first(&self, what: &str, timeout: Option<Duration>) -> Result<bool, Error> {
        let deadline = self.inner.deadline(timeout);
        if self.inner.rank == 0 {
            self.say(what, Stage::Begins, deadline)?;
            return Ok(true);
        }
        Ok(self.listen(what, deadline)? == Heard::Begins)
    }

    /// The second half. On worker 0 it says whether it was done or, with an error's text, was not; on the others it waits for that.
    pub fn end_by_first(
        &self,
        what: &str,
        failed: Option<String>,
        timeout: Option<Duration>,
    ) -> Result<(), Error> {
        let deadline = self.inner.deadline(timeout);
        if self.inner.rank == 0 {
            let stage = failed.map_or(Stage::Done, |why| Stage::Failed { why });
            return self.say(what, stage, deadline);
        }
        while self.listen(what, deadline)? == Heard::Begins {}
        Ok(())
    }

    fn say(&self, what: &str, stage: Stage, deadline: Deadline) -> Result<(), Error> {
        let word = Some(Word::new(what, stage));
        self.stand(what, Ask::Meet { word }, deadline).map(drop)
    }

    fn listen(&self, what: &str, deadline: Deadline) -> Result<Heard, Error> {
        let (met, word) = self.stand(what, Ask::Meet { word: None }, deadline)?;
        if !met.ranks.contains(&0) {
            return Err(Error::FirstGone { what: what.to_owned() });
        }
        match hear(what, word) {
            Heard::Not { instead } => Err(Error::FirstFailed { what: what.to_owned(), instead }),
            heard => Ok(heard),
        }
    }
}
