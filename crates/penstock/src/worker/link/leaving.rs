//! Waiting for what was submitted to be taken, and leaving a server.
//!
//! Leaving is a protocol. Behind all that it has submitted the worker says goodbye to each shard, in the same ring, so over
//! the network in the same numbered frames: a shard that has taken the goodbye has taken everything. It then asks the server
//! to let it go, and the server answers when all its shards have taken it; only then does this worker count as one that left
//! cleanly. The wait ends with the caller's deadline, with an error that says how much was taken; the server is then told that
//! this worker failed.
//!
//! It may have let this worker go in the same moment. So it answers: that this worker counts as failed, or that this came too
//! late, as where the job had ended, and that it has left. On another host this worker says it again on another connection if
//! the first breaks.

use super::proxy::Command;
use super::{Heard, Link, Waited, lock};
use crate::wait::{Deadline, INTERRUPT_EVERY};
use crate::worker::Error;
use penstock_fabric::doorbell::ANYTHING;
use penstock_fabric::sync::Ordering;
use penstock_proto::message::{Answer, Ask, Departure};
use penstock_proto::submission::Submission;
use smallvec::SmallVec;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

/// A request to be let go that has no answer yet.
pub(in crate::worker) struct Asked((u64, Receiver<Heard>));

/// What the server knows of how this worker leaves.
pub(in crate::worker) enum Farewell {
    /// It has let this worker go, and is told nothing else.
    LetGo,
    /// It was told why this worker leaves, and had not been asked to let it go.
    Told,
    /// It was told, but may have let this worker go before: its answer says which counts.
    Doubtful(Receiver<Heard>),
}

impl Link {
    /// Waits until a server on another host has taken what was submitted: control messages travel on another connection.
    pub(in crate::worker) fn drain(&self, what: &'static str, deadline: Deadline) -> Result<(), Error> {
        let (done, drained) = channel();
        for proxy in &self.proxies {
            proxy.send(Command::Drain { done: done.clone() });
        }
        drop(done);
        let mut open = self.proxies.len();
        while open > 0 {
            match drained.recv_timeout(deadline.left().min(INTERRUPT_EVERY)) {
                Ok(()) => open -= 1,
                Err(error) => {
                    self.fate.check()?;
                    self.fate.check_interrupt()?;
                    if deadline.left().is_zero() || error == RecvTimeoutError::Disconnected {
                        return Err(self.not_taken(what, deadline));
                    }
                }
            }
        }
        Ok(())
    }

    /// Waits until the shards of a server on this host have taken out of their rings what stands there now.
    pub(in crate::worker) fn empty_rings(&self, what: &'static str, deadline: Deadline) -> Result<(), Error> {
        if self.is_remote() {
            return Ok(());
        }
        let outlets = &self.wire.outlets;
        // Most often the rings are empty, and nothing is to be waited for: not even the first look of a wait, which is a yield
        // where threads share cores.
        let submitted = (0..self.welcome.shards).map(|shard| (shard, outlets.taken_by(shard)));
        let standing: SmallVec<[(u32, u64); 16]> = submitted
            .filter(|(_, (taken, submitted))| taken < submitted)
            .map(|(shard, (_, submitted))| (shard, submitted))
            .collect();
        for (shard, submitted) in standing {
            let taken = || outlets.taken_by(shard).0 >= submitted;
            if !taken() && self.wait(ANYTHING, deadline, taken)? == Waited::TimedOut {
                let (server, waited) = (self.wire.server, deadline.waited());
                return Err(Error::Unanswered { server, what, waited });
            }
        }
        Ok(())
    }

    /// Says goodbye to every shard, behind everything that was submitted. Nothing can be submitted afterwards.
    pub(in crate::worker) fn say_goodbye(&self, deadline: Deadline) -> Result<(), Error> {
        let within = deadline.left();
        self.proxies.iter().for_each(|proxy| proxy.send(Command::Leave { within }));
        (0..self.welcome.shards).try_for_each(|shard| {
            let mut room = self.room_while(|| self.fate.stands(), shard, 1, deadline)?;
            room.submit(&Submission::Leave);
            Ok(())
        })
    }

    /// Asks the server to let this worker go once its shards have taken everything.
    pub(in crate::worker) fn ask_to_leave(&self) -> Result<Asked, Error> {
        let (id, answer) = self.wire.ask(Ask::Leave { how: Departure::Done })?;
        self.asked.store(id, Ordering::Relaxed);
        Ok(Asked((id, answer)))
    }

    /// Waits until the server has let this worker go.
    pub(in crate::worker) fn confirm(&self, asked: Asked, deadline: Deadline) -> Result<(), Error> {
        let what = "confirm that this worker has left";
        match self.hear_answer(asked.0, || self.fate.stands(), what, deadline) {
            Ok((Answer::Left, _)) => {
                // Otherwise they would try for ever to reach shards that no longer know this worker.
                self.proxies.iter().for_each(|proxy| proxy.send(Command::Stop));
                Ok(())
            }
            Ok((other, _)) => Err(self.misunderstood(&other)),
            Err(Error::Unanswered { .. }) => Err(self.not_taken(what, deadline)),
            Err(error) => Err(error),
        }
    }

    /// The server had not taken everything in time; if it had, it did not say so.
    fn not_taken(&self, what: &'static str, deadline: Deadline) -> Error {
        let (server, waited) = (self.wire.server, deadline.waited());
        let progress = self.proxies.iter().map(|proxy| proxy.progress());
        let (taken, submitted) = match self.is_remote() {
            true => progress.fold((0, 0), |(taken, all), (some, more)| (taken + some, all + more)),
            false => self.wire.outlets.taken(),
        };
        if taken < submitted {
            Error::NotTaken { server, taken, submitted, waited }
        } else {
            Error::Unanswered { server, what, waited }
        }
    }

    /// Tells the server why this worker leaves, unless it is known to have let it go.
    pub(in crate::worker) fn bid_farewell(&self, how: Departure) -> Farewell {
        let asked = self.asked.load(Ordering::Relaxed);
        // Nobody waits for that answer any more: it is not to be taken for the one to this.
        self.forget(asked);
        if self.wire.left.swap(true, Ordering::AcqRel) {
            return Farewell::LetGo;
        }
        match self.wire.ask(Ask::Leave { how }) {
            Ok((_, answer)) if asked != 0 => Farewell::Doubtful(answer),
            Ok((id, _)) => {
                self.forget(id);
                Farewell::Told
            }
            Err(_) => Farewell::Told,
        }
    }

    /// Ends the link. Whether the server has let this worker go; where that is in doubt, this waits for its answer, and takes
    /// silence for a no.
    pub(in crate::worker) fn part(mut self, farewell: Farewell, deadline: Deadline) -> bool {
        let let_go = match farewell {
            Farewell::LetGo => true,
            Farewell::Told => false,
            Farewell::Doubtful(answer) => match answer.recv_timeout(deadline.left()) {
                Ok(heard) => matches!(heard, Ok((Answer::Left, _))),
                // On this host, one that lets a worker go and hangs up without another word has not read what came too late.
                Err(RecvTimeoutError::Disconnected) => {
                    !self.is_remote() && self.wire.let_go.load(Ordering::Acquire)
                }
                Err(RecvTimeoutError::Timeout) => false,
            },
        };
        self.hang_up();
        let_go
    }

    pub(super) fn hang_up(&mut self) {
        self.stop.ring();
        self.proxies.iter().for_each(|proxy| proxy.send(Command::Stop));
        self.proxies.clear();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        lock(&self.wire.open).close();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.wire.left.store(true, Ordering::Release);
        self.hang_up();
    }
}
