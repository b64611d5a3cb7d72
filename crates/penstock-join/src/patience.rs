//! How long a call may wait, and what may end it earlier.

use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Longest sleep between two looks at whether the caller was interrupted.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The caller was interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// A span that begins now. `stop` is asked now and then, and after every signal, whether to give up.
#[derive(Clone, Copy)]
pub struct Patience<'a> {
    began: Instant,
    until: Instant,
    stop: &'a dyn Fn() -> bool,
}

impl std::fmt::Debug for Patience<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Patience").field("left", &self.left()).finish_non_exhaustive()
    }
}

impl<'a> Patience<'a> {
    /// A span of that length.
    pub fn new(longest: Duration, stop: &'a dyn Fn() -> bool) -> Self {
        let began = Instant::now();
        Self { began, until: began + longest, stop }
    }

    /// What is left of it.
    pub fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// What has passed of it.
    pub fn waited(&self) -> Duration {
        self.began.elapsed()
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// A span that begins now and ends with this one, or after `longest`.
    pub(crate) fn at_most(&self, longest: Duration) -> Self {
        Self::new(longest.min(self.left()), self.stop)
    }

    /// A span of another length, for the same caller.
    pub(crate) fn another(&self, longest: Duration) -> Self {
        Self::new(longest, self.stop)
    }

    /// Waits for one of `watched`, at most `longest` and not beyond the span's end. A wait may end before anything has happened.
    pub(crate) fn poll(&self, watched: &mut [PollFd<'_>], longest: Duration) -> Result<(), Interrupted> {
        let end = Instant::now() + longest.min(self.left());
        loop {
            if (self.stop)() {
                return Err(Interrupted);
            }
            let left = end.saturating_duration_since(Instant::now());
            let slice = left.min(LOOK_EVERY);
            let timeout = Timespec::try_from(slice).expect("a slice is short");
            match poll(watched, Some(&timeout)) {
                Ok(0) if left <= slice => return Ok(()),
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                // No memory for the call, or fewer descriptors allowed than are watched: either may pass.
                Err(_) if left.is_zero() => return Ok(()),
                Err(_) => std::thread::sleep(slice),
            }
        }
    }

    /// What another thread sends; `None` if it has not come in time, or will not come.
    pub(crate) fn receive<T>(&self, from: &Receiver<T>) -> Result<Option<T>, Interrupted> {
        loop {
            if (self.stop)() {
                return Err(Interrupted);
            }
            match from.recv_timeout(self.left().min(LOOK_EVERY)) {
                Ok(said) => return Ok(Some(said)),
                Err(RecvTimeoutError::Timeout) if !self.is_over() => {}
                Err(_) => return Ok(None),
            }
        }
    }

    /// Sleeps.
    pub(crate) fn sleep(&self, span: Duration) -> Result<(), Interrupted> {
        self.poll(&mut [], span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::PollFlags;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::cell::Cell;

    #[test]
    fn a_wait_ends_when_its_caller_is_interrupted_and_no_later_than_its_span() {
        let looks = Cell::new(0);
        let stop = || {
            looks.set(looks.get() + 1);
            looks.get() > 2
        };
        assert_eq!(
            Patience::new(Duration::from_secs(600), &stop).sleep(Duration::from_secs(600)),
            Err(Interrupted)
        );
        let patience = Patience::new(Duration::from_millis(10), &|| false);
        assert_eq!(patience.sleep(Duration::from_secs(600)), Ok(()));
        assert!(patience.is_over() && patience.waited() >= Duration::from_millis(10));
    }

    // The span's end was not looked at any more.
    #[test]
    fn a_wait_that_the_system_refuses_ends_with_its_span_too() {
        let before = getrlimit(Resource::Nofile);
        let few = before.current.map_or(4096, |current| current.min(4096));
        setrlimit(Resource::Nofile, Rlimit { current: Some(few), ..before }).expect("it may be lowered");
        let (one, _other) = std::os::unix::net::UnixStream::pair().expect("there is room");
        // More than a process may have open.
        let mut watched: Vec<_> = (0..=few).map(|_| PollFd::new(&one, PollFlags::IN)).collect();
        assert!(poll(&mut watched, Some(&Timespec::default())).is_err());
        let patience = Patience::new(Duration::from_millis(10), &|| false);
        assert_eq!(patience.poll(&mut watched, Duration::MAX), Ok(()));
        setrlimit(Resource::Nofile, before).expect("it was so");
    }
}
