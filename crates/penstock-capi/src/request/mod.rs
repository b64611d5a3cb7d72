//! Requests: pushes, pulls and gets that are started, and tested or waited for later.
//!
//! Whatever cannot be done at once is carried out by threads of the job's own, in two pools: so it goes on while the program
//! computes, without further calls. Requests for one tensor go one after the other, in the order in which they were started, on
//! one thread; gets each on their own, up to [`threads::MOST_GETS`] at one time. A get beyond that stands in a queue, and a
//! call that waits for it carries it out itself; one that waits for one of several looks at each and waits for them by turns.
//!
//! All that is known of requests stands in one registry, under one lock: `penstock_wait_any` may wait for requests of several
//! jobs. A handle is a number in that registry, not an address, so one that is done already is noticed and not followed.
//!
//! A contribution is stamped with the clock that it meets, so `penstock_clock` waits until every push that was started has left. A pull
//! takes the clock with it when it is started, and whatever is set for a tensor is copied then: what the program does later changes nothing
//! of what it has started before.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | requests of a job, and those for one tensor or table |
//! | `registry.rs` | what is known of each |
//! | `threads.rs` | the threads that carry them out |
//! | `lent.rs` | the program's memory meanwhile |
//! | `calls.rs` | what a C program calls |
//! | `some.rs` | pushes and pulls, of which a C program may start those of some rows, elements and factors here |

mod calls;
mod lent;
mod registry;
mod some;
mod threads;

pub use calls::*;
pub use some::*;

use crate::boundary::Told;
use crate::status::{Failure, penstock_status};
use penstock::turn::{Taken, Turn};
use registry::{Count, Entry, State, Work, desk, number, registry, wait_for_none};
use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use threads::Task;

/// Those of a job.
pub(crate) struct Requests {
    job: u64,
    told: Arc<Told>,
    pushes: Arc<Count>,
}

/// Those for one tensor or table.
pub(crate) struct Line {
    job: u64,
    told: Arc<Told>,
    id: u64,
    all: Arc<Count>,
    pushes: Arc<Count>,
}

/// The end of a wait. No time is too long.
pub(crate) fn later(since: Instant, wait: Duration) -> Instant {
    since.checked_add(wait).unwrap_or_else(|| since + Duration::from_secs(1 << 30))
}

/// Some were not done in time.
fn late(what: &str, waited: Duration, left: u64, kind: &str) -> Failure {
    let (s, were) = if left == 1 { ("", "was") } else { ("s", "were") };
    let message = format!("{what} waited {waited:.1?} for {left} {kind}{s} that {were} started before");
    let hint = "wait for the requests first, with penstock_wait(), or allow more time";
    Failure::new(penstock_status::PENSTOCK_DEADLINE_EXCEEDED, message, hint)
}

impl Requests {
    pub(crate) fn new() -> Self {
        Self { job: number(), told: Arc::default(), pushes: Arc::default() }
    }

    /// Whether the program knows that the job has failed.
    pub(crate) fn told(&self) -> &Told {
        &self.told
    }

    pub(crate) fn line(&self) -> Line {
        let (told, pushes) = (Arc::clone(&self.told), Arc::clone(&self.pushes));
        Line { job: self.job, told, id: number(), all: Arc::default(), pushes }
    }

    /// Waits until every push that was started has left, so that it counts for the iteration in which it was started. Returns
    /// what is left of the time. A push that failed, and whose request was neither tested nor waited for, is an error here, once,
    /// and one in each call.
    pub(crate) fn settle(&self, what: &str, wait: Duration) -> Result<Duration, Failure> {
        // Those of several tensors are done in any order.
        let left = || self.pushes.left(self.pushes.started());
        if left() == 0 {
            return self.untold().map_or(Ok(wait), Err);
        }
        let since = Instant::now();
        wait_for_none(left, later(since, wait)).map_err(|left| late(what, since.elapsed(), left, "push"))?;
        self.untold().map_or_else(|| Ok(wait.saturating_sub(since.elapsed())), Err)
    }

    /// Why the first push failed, of those whose requests stand in the registry and that were not reported.
    fn untold(&self) -> Option<Failure> {
        if self.pushes.has_failed() { registry().tell_failure(&self.pushes) } else { None }
    }

    /// The job is over, and its calls return: nothing of the program's memory is touched behind this, and its requests are gone.
    pub(crate) fn end(&self) {
        let mut registry = registry();
        let mut given_up = Vec::new();
        for entry in registry.requests.values_mut().filter(|entry| entry.job == self.job) {
            if matches!(entry.state, State::Queued(_)) {
                given_up.push(entry.finish(Err(penstock::worker::Error::Closed.into())));
            }
        }
        let pools = registry.pools.entry(self.job).or_default();
        let handles = std::mem::take(&mut pools.handles);
        pools.over = true;
        desk().work.notify_all();
        desk().changed.notify_all();
        drop(registry);
        drop(given_up); // what they hold may need locks
        for thread in handles {
            let _ = thread.join();
        }
        let mut registry = registry::registry();
        // What a thread of the program's carries out.
        while registry
            .requests
            .values()
            .any(|entry| entry.job == self.job && matches!(entry.state, State::Running))
        {
            registry = desk().changed.wait(registry).unwrap_or_else(PoisonError::into_inner);
        }
        registry.requests.retain(|_, entry| entry.job != self.job);
        registry.pools.remove(&self.job);
    }
}

impl Line {
    /// Whether the program knows that the job has failed.
    pub(crate) fn told(&self) -> &Told {
        &self.told
    }

    /// Whether nothing is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.left(self.all.started()) == 0
    }

    /// Waits until nothing that was started before is under way.
    pub(crate) fn take_turn(&self, what: &str, since: Instant, until: Instant) -> Result<(), Failure> {
        let started = self.all.started();
        wait_for_none(|| self.all.left(started), until)
            .map_err(|left| late(what, since.elapsed(), left, "request"))
    }

    /// Notes something that is done already.
    fn note(&self) -> u64 {
        let id = number();
        registry().requests.insert(id, Entry::done(self.job, Arc::clone(&self.told)));
        id
    }

    /// Starts something that goes behind whatever was started before for the same tensor.
    fn in_turn(&self, work: Work, push: bool) -> Result<u64, Failure> {
        let (id, mut registry) = (number(), registry());
        if let Some(line) = registry.lines.get_mut(&self.id) {
            line.push_back(id);
        } else {
            registry.hand_over(self.job, Task::Line(self.id))?;
            registry.lines.insert(self.id, VecDeque::from([id]));
        }
        let mut counts = vec![Arc::clone(&self.all)];
        counts.extend(push.then(|| Arc::clone(&self.pushes)));
        registry.requests.insert(id, Entry::new(self.job, Arc::clone(&self.told), work, false, counts));
        Ok(id)
    }

    /// Starts something that goes beside everything else.
    fn beside(&self, work: Work) -> Result<u64, Failure> {
        let (id, mut registry) = (number(), registry());
        registry.hand_over(self.job, Task::Get(id))?;
        let counts = vec![Arc::clone(&self.all)];
        registry.requests.insert(id, Entry::new(self.job, Arc::clone(&self.told), work, true, counts));
        Ok(id)
    }
}

/// One call at a time, behind what was started before it.
pub(crate) struct Turns<'a> {
    pub(crate) turn: &'a Turn,
    /// What goes first.
    pub(crate) requests: Option<&'a Line>,
    /// The call that waits, for the error.
    pub(crate) what: &'a str,
}

impl<'a> Turns<'a> {
    /// Waits for a turn at most as long as the call says, else `default`. Returns what is left of its time; as it was where nothing had
    /// to be waited for, which needs no look at the clock on the wall.
    pub(crate) fn take(
        &self,
        wait: Option<Duration>,
        default: Duration,
    ) -> Result<(Taken<'a>, Option<Duration>), Failure> {
        if self.requests.is_none_or(Line::is_empty)
            && let Ok(taken) = self.turn.take(|| Err(()))
        {
            return Ok((taken, wait));
        }
        let since = Instant::now();
        let until = later(since, wait.unwrap_or(default));
        if let Some(requests) = self.requests {
            requests.take_turn(self.what, since, until)?;
        }
        let left = || until.saturating_duration_since(Instant::now());
        let taken = self.turn.take(|| match left() {
            Duration::ZERO => Err(late(self.what, since.elapsed(), 1, "call")),
            left => Ok(left),
        })?;
        Ok((taken, Some(left())))
    }
}
