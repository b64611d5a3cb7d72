//! Patience: how a thread with nothing to do spends its time before it sleeps.
//!
//! A wake-up across cores costs tens of microseconds here, a look at a cache line a tenth of one: so whoever expects an
//! answer soon looks again for a while. On a host with more of the job's threads than cores the one that is waited for may
//! need this very core, so it is offered at once (yield) instead of spun on.

use rustix::thread::sched_yield;
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
