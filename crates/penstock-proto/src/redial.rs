//! When a connection is tried again: one rule for all that make connections.
//!
//! | what happened last | the next attempt |
//! |---|---|
//! | nothing | at once |
//! | an attempt failed, or a connection ended that had brought nothing | after a pause, which nothing cuts short |
//! | a connection ended that had brought something | at once, and the pauses begin anew |
//!
//! Nothing tells when a server on another host begins to listen: so pauses, of one length or each twice as long as the one
//! before. Where there is a deadline the last pause reaches up to it: an attempt for which there is hardly any time would say that
//! it timed out, and not why the one before it failed. One attempt is made however late it is.
//!
//! Pure state: the caller has the clock, and counts its time from wherever it likes.

use std::ops::ControlFlow;
use std::time::Duration;

/// How long the pauses between attempts are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pauses {
    first: Duration,
    next: Duration,
    longest: Duration,
}

impl Pauses {
    /// All of one length.
    pub const fn even(pause: Duration) -> Self {
        Self::doubling(pause, pause)
    }

    /// Each twice as long as the one before, up to the longest.
    pub const fn doubling(first: Duration, longest: Duration) -> Self {
        Self { first, next: first, longest }
    }

    /// The length of the next one.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (2 * pause).min(self.longest);
        pause
    }

    /// The next is the first again.
    pub fn begin_anew(&mut self) {
        self.next = self.first;
    }

    /// Whether the next is the first.
    pub fn are_fresh(&self) -> bool {
        self.next == self.first
    }
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// To try.
    Attempt,
    /// To wait so long.
    Pause(Duration),
    /// To give up: the time is over.
    TooLate,
}

/// The attempts to make one connection, and to make it again.
#[derive(Debug)]
pub struct Redial {
    pauses: Pauses,
    /// When the pause ends that the last failure made, if the last attempt failed.
    due: Option<Duration>,
    deadline: Option<Duration>,
}

impl Redial {
    /// Attempts without end.
    pub const fn new(pauses: Pauses) -> Self {
        Self { pauses, due: None, deadline: None }
    }

    /// Attempts until that time.
    pub const fn until(pauses: Pauses, deadline: Duration) -> Self {
        Self { pauses, due: None, deadline: Some(deadline) }
    }

    /// Makes attempts until one breaks off with what came of it, or the time is over: then it returns why the last one failed.
    /// `now` is the caller's clock. `pause` sleeps, perhaps for less; its error ends the attempts, and so does an attempt's own.
    pub fn run<Done, Failed, Error>(
        mut self,
        now: impl Fn() -> Duration,
        mut pause: impl FnMut(Duration) -> Result<(), Error>,
        mut attempt: impl FnMut() -> Result<ControlFlow<Done, Failed>, Error>,
    ) -> Result<ControlFlow<Done, Failed>, Error> {
        loop {
            let failed = match attempt()? {
                ControlFlow::Continue(failed) => failed,
                done @ ControlFlow::Break(_) => return Ok(done),
            };
            self.failed(now());
            loop {
                match self.next(now()) {
                    Next::Attempt => break,
                    Next::Pause(left) => pause(left)?,
                    Next::TooLate => return Ok(ControlFlow::Continue(failed)),
                }
            }
        }
    }

    /// What is to be done now.
    pub fn next(&self, now: Duration) -> Next {
        let Some(due) = self.due else { return Next::Attempt };
        match due.saturating_sub(now) {
            Duration::ZERO if self.deadline.is_some_and(|deadline| now >= deadline) => Next::TooLate,
            Duration::ZERO => Next::Attempt,
            left => Next::Pause(left),
        }
    }

    /// An attempt failed.
    pub fn failed(&mut self, now: Duration) {
        let pause = self.pauses.pause();
        let due = now + pause;
        self.due = Some(match self.deadline {
            Some(deadline) if deadline < due + pause => deadline,
            _ => due,
        });
    }

    /// A connection has ended that `brought` something, or did not.
    pub fn ended(&mut self, brought: bool, now: Duration) {
        if brought {
            self.pauses.begin_anew();
            self.due = None;
        } else {
            self.failed(now);
        }
    }

    /// The next pause is the first again, though the last attempt failed.
    pub fn begin_anew(&mut self) {
        self.pauses.begin_anew();
    }

    /// Whether the next pause is the first.
    pub fn is_fresh(&self) -> bool {
        self.pauses.are_fresh()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::ops::ControlFlow::{Break, Continue};

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// A clock that goes on by what is waited and by what attempts take.
    struct Simulated {
        redial: Redial,
        now: Duration,
        attempts: Vec<u64>,
    }

    impl Simulated {
        fn new(redial: Redial) -> Self {
            Self { redial, now: ms(0), attempts: Vec::new() }
        }

        /// Attempts that take 3 ms each, to a server that listens from `listens` on; whether one came about.
        fn connects(&mut self, listens: u64) -> bool {
            loop {
                match self.redial.next(self.now) {
                    Next::Attempt => {
                        self.attempts.push(self.now.as_millis() as u64);
                        let reached = self.now >= ms(listens);
                        self.now += ms(3);
                        if reached {
                            return true;
                        }
                        self.redial.failed(self.now);
                    }
                    // Something else wakes the thread all the time.
                    Next::Pause(pause) => self.now += pause.min(ms(7)),
                    Next::TooLate => return false,
                }
            }
        }
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_nothing_cuts_them_short() {
        let mut far = Simulated::new(Redial::new(Pauses::doubling(ms(10), ms(35))));
        assert!(far.connects(150));
        assert_eq!(far.attempts, [0, 13, 36, 74, 112, 150]);
        let mut far = Simulated::new(Redial::new(Pauses::even(ms(10))));
        assert!(far.connects(30));
        assert_eq!(far.attempts, [0, 13, 26, 39]);
    }

    // A connection that ended at once was made again at once, as fast as the thread could.
    #[test]
    fn a_connection_that_brought_something_is_made_again_at_once_and_one_that_did_not_after_a_pause() {
        let mut far = Simulated::new(Redial::new(Pauses::doubling(ms(10), ms(40))));
        for brought in [true, false, false, true, false] {
            assert!(far.connects(0));
            far.redial.ended(brought, far.now);
        }
        assert!(far.connects(0));
        assert_eq!(far.attempts, [0, 3, 16, 39, 42, 55]);
    }

    #[test]
    fn the_last_pause_reaches_up_to_the_deadline_and_behind_that_nothing_is_tried() {
        for deadline in [25, 26, 38, 45] {
            let mut far = Simulated::new(Redial::until(Pauses::even(ms(10)), ms(deadline)));
            assert!(!far.connects(1000));
            // None begins with less than a pause left.
            let begun: Vec<u64> = (0..).map(|at| 13 * at).take_while(|at| at + 10 <= deadline).collect();
            assert_eq!(far.attempts, begun, "{deadline}");
            assert_eq!(far.now, ms(deadline));
        }
    }

    #[test]
    fn attempts_that_are_run_end_with_what_came_of_one_or_why_the_last_failed_or_an_error() {
        let run = |listens: u64, interrupted: Option<u64>| {
            let (now, attempts) = (Cell::new(ms(0)), Cell::new(0));
            let pause = |pause: Duration| {
                now.set(now.get() + pause.min(ms(7)));
                if interrupted.is_some_and(|at| now.get() >= ms(at)) { Err("interrupted") } else { Ok(()) }
            };
            let attempt = || {
                attempts.set(attempts.get() + 1);
                let reached = now.get() >= ms(listens);
                now.set(now.get() + ms(3));
                Ok(if reached { Break(attempts.get()) } else { Continue(attempts.get()) })
            };
            Redial::until(Pauses::even(ms(10)), ms(40)).run(|| now.get(), pause, attempt)
        };
        assert_eq!(run(0, None), Ok(Break(1)));
        assert_eq!(run(20, None), Ok(Break(3)));
        assert_eq!(run(1000, None), Ok(Continue(3)));
        assert_eq!(run(1000, Some(20)), Err("interrupted"));
    }

    #[test]
    fn one_attempt_is_made_however_late_it_is() {
        let mut late = Simulated::new(Redial::until(Pauses::even(ms(10)), ms(0)));
        assert!(!late.connects(1000));
        assert_eq!(late.attempts, [0]);
        assert!(Simulated::new(Redial::until(Pauses::even(ms(10)), ms(0))).connects(0));
    }
}
