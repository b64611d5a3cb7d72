//! Waiting: how a thread with nothing to do spends its time before it sleeps, and how it sleeps on descriptors.
//!
//! A wake-up across cores costs tens of microseconds here, a look at a cache line a tenth of one: so whoever expects an
//! answer soon looks again for a while. On a host with more of the job's threads than cores the one that is waited for may
//! need this very core, so it is offered at once (yield) instead of spun on.

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, epoll};
use rustix::fd::AsFd;
use rustix::io;
use rustix::thread::sched_yield;
use rustix::time::Timespec;
use std::time::{Duration, Instant};

/// Looks at memory before the first yield, where every thread has a core of its own. About 20 microseconds.
const SPINS: u32 = 1000;
/// The same for a look that takes no system call, where threads share cores: as long as a yield or two take.
const FEW_SPINS: u32 = 100;
/// Longest time of yielding before sleep. Some times a wake-up's cost: longer buys nothing, since then the sleep is the
/// smaller part of the wait.
const YIELDING: Duration = Duration::from_micros(150);
/// Yields between two looks at the time.
const YIELDS_A_LOOK: u32 = 8;

/// One wait's patience.
#[derive(Debug)]
pub(crate) struct Patience {
    spins: u32,
    yields: u32,
    since: Option<Instant>,
}

impl Patience {
    /// Fresh patience; `crowded` where the job has more threads than the host has cores.
    pub(crate) fn new(crowded: bool) -> Self {
        Self { spins: if crowded { 0 } else { SPINS }, yields: 0, since: None }
    }

    /// Fresh patience of who waits for another worker, and looks at memory only: that one has a core of its own as often as not,
    /// even where the job has more threads than there are cores.
    pub(crate) fn for_memory(crowded: bool) -> Self {
        Self { spins: if crowded { FEW_SPINS } else { SPINS }, yields: 0, since: None }
    }

    /// Passes a little time; `false` when it is time to sleep.
    pub(crate) fn pause(&mut self) -> bool {
        if self.spins > 0 {
            self.spins -= 1;
            std::hint::spin_loop();
            return true;
        }
        self.yields += 1;
        if self.yields % YIELDS_A_LOOK == 1 {
            let since = *self.since.get_or_insert_with(Instant::now);
            if since.elapsed() > YIELDING {
                return false;
            }
        }
        sched_yield();
        true
    }
}

/// What is too long for the system is as long as it can say.
fn timespec(longest: Duration) -> Timespec {
    Timespec::try_from(longest).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 })
}

/// Sleeps until one of `fds` is ready, at most for `longest` if that is given; how many are. A signal ends it early: who waits looks again.
pub(crate) fn poll(fds: &mut [PollFd<'_>], longest: Option<Duration>) -> io::Result<usize> {
    rustix::event::poll(fds, longest.map(timespec).as_ref())
}

/// The same for one descriptor: whether there is something to read, or it is broken.
pub(crate) fn until_readable(fd: &impl AsFd, longest: Duration) -> io::Result<bool> {
    match poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(longest)) {
        Err(io::Errno::INTR) => Ok(false),
        ready => ready.map(|ready| ready > 0),
    }
}

/// The same for what `epoll` watches: what has happened, `most` events of it.
pub(crate) fn events(epoll: &impl AsFd, most: usize, longest: Option<Duration>) -> Vec<epoll::Event> {
    let mut events = Vec::with_capacity(most);
    let _ = epoll::wait(epoll, spare_capacity(&mut events), longest.map(timespec).as_ref());
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_as_long_as_was_asked_for_or_as_the_system_can_say() {
        let long = timespec(Duration::from_millis(61_250));
        assert_eq!((long.tv_sec, long.tv_nsec), (61, 250_000_000));
        assert_eq!(timespec(Duration::MAX).tv_sec, i64::MAX);
    }
}
