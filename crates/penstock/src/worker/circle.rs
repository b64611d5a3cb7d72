//! Whether a long wait is part of a circle of waits ([`penstock_proto::knot`]): what a worker says about its wait, and when.
//!
//! A wait says too whether anything else of this worker can happen meanwhile: the caller may have named a timeout, after which it
//! does something else, and another thread may use the job. That is looked at every time. Where nothing can, a circle ends the
//! wait; where something may, the server tells of it by a warning.

use super::Error;
use super::job::Inner;
use crate::wait::{ASK_WITHIN, Deadline};
use penstock_fabric::sync::Ordering;
use penstock_fabric::this_thread::this_thread;
use penstock_proto::knot::{Goal, Knot};
use penstock_proto::message::{Answer, Ask};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};

/// How long a wait is before it asks whether it is part of a circle, and how often then.
const LONG: Duration = Duration::from_secs(1);
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often a wait asks that no circle ends.
const DOUBT_EVERY: Duration = Duration::from_millis(500);
/// What the questions of one look may take: a wait whose own timeout leaves less asks nothing, and ends in time.
const LOOKS_WITHIN: Duration = Duration::from_secs(2 * ASK_WITHIN.as_secs() + 1);

/// Says whether no thread but the calling one could use the job.
pub(super) type Alone = Box<dyn Fn() -> bool + Send + Sync>;

/// The threads that use a job, or may.
#[derive(Default)]
pub(super) struct Company {
    /// The thread that used the job first (0: none has), and whether another has. A thread with the same number as one that has
    /// ended counts as that one: nothing can happen there any more.
    first: AtomicUsize,
    several: AtomicBool,
    /// One of several threads that wait says so.
    told: AtomicBool,
    alone: OnceLock<Alone>,
}

impl Company {
    /// Notes which thread uses the job.
    #[inline]
    pub(super) fn touch(&self) {
        let me = this_thread();
        if self.first.load(Ordering::Relaxed) != me {
            let first = self.first.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            self.several.fetch_or(!first, Ordering::Relaxed);
        }
    }

    /// From now on `alone` is asked; the first one given counts.
    pub(super) fn on_alone(&self, alone: Alone) {
        let _ = self.alone.set(alone);
    }

    /// Whether nothing else of this worker can happen while the calling thread waits. A thread that has not used the job yet may.
    fn is_alone(&self) -> bool {
        !self.several.load(Ordering::Relaxed) && self.alone.get().map_or_else(is_only_thread, |alone| alone())
    }
}

/// Whether this process has no threads but the calling one and those of this library, which are known by their names. If that
/// cannot be found out, it is assumed to have others.
fn is_only_thread() -> bool {
    // A request of the C interface does in its thread what the program asked for. The kernel keeps 15 bytes of a name.
    let is_ours = |name: &str| name.starts_with("penstock-") && !name.starts_with("penstock-reques");
    let name = |path: &std::path::Path| std::fs::read_to_string(path.join("comm")).unwrap_or_default();
    let me = rustix::thread::gettid().as_raw_nonzero().to_string();
    // A thread has the name of the thread that started it until it takes its own.
    if is_ours(&name("/proc/self".as_ref())) {
        return false;
    }
    let Ok(mut tasks) = std::fs::read_dir("/proc/self/task") else { return false };
    tasks.all(|task| task.is_ok_and(|task| task.file_name() == *me || is_ours(&name(&task.path()))))
}

/// One wait.
pub(super) struct Circle<'a> {
    job: &'a Inner,
    deadline: Deadline,
    looked: Instant,
    said: Option<Said>,
}

/// What was said of a wait.
#[derive(Clone, Copy)]
struct Said {
    /// Its number.
    wait: u64,
    /// Whether nothing else of this worker can happen.
    alone: bool,
}

impl<'a> Circle<'a> {
    /// A wait that begins now.
    pub(super) fn new(job: &'a Inner, deadline: Deadline) -> Self {
        Self::begun(Instant::now(), job, deadline)
    }

    /// A wait that began at `since`.
    pub(super) fn begun(since: Instant, job: &'a Inner, deadline: Deadline) -> Self {
        Self { job, deadline, looked: since, said: None }
    }

    /// Asked by the wait now and then: where it has become long, says what it is for. An error if it is part of a circle.
    pub(super) fn look(&mut self, goal: impl FnOnce() -> Result<Option<Goal>, Error>) -> Result<(), Error> {
        let pause = match self.said {
            None => LONG,
            Some(Said { alone: true, .. }) => LOOK_EVERY,
            Some(Said { alone: false, .. }) => DOUBT_EVERY,
        };
        let in_time = self.deadline.is_default() || self.deadline.left() >= LOOKS_WITHIN;
        if self.looked.elapsed() < pause || !in_time {
            return Ok(());
        }
        let found = self.ask(goal);
        self.looked = Instant::now();
        found
    }

    fn ask(&mut self, goal: impl FnOnce() -> Result<Option<Goal>, Error>) -> Result<(), Error> {
        let alone = self.deadline.is_default() && self.job.company.is_alone();
        if self.said.is_some_and(|said| said.alone != alone) {
            self.end()?;
        }
        // A server knows one wait of each worker. Of several that of the thread which came first is as good as any.
        let told = &self.job.company.told;
        if !alone && self.said.is_none() && told.load(Ordering::Relaxed) {
            return Ok(());
        }
        // A server that does not answer now may do so the next time.
        let Some(goal) = patient(goal())?.flatten() else { return Ok(()) };
        let said = match self.said {
            Some(said) => said,
            None if !alone && told.swap(true, Ordering::Relaxed) => return Ok(()),
            None => Said { wait: self.job.waits.fetch_add(1, Ordering::Relaxed), alone },
        };
        self.said = Some(said);
        match self.say(said, Some(goal.clone()))? {
            Some(Knot { words, ranks }) => {
                let (knot, missing) = (words, ranks);
                Err(Error::Knot { goal, knot, missing, waited: self.deadline.waited() })
            }
            None => Ok(()),
        }
    }

    /// Says that it no longer waits, or waits otherwise.
    fn end(&mut self) -> Result<(), Error> {
        let Some(said) = self.said.take() else { return Ok(()) };
        let ended = self.say(said, None).map(drop);
        if !said.alone {
            self.job.company.told.store(false, Ordering::Relaxed);
        }
        ended
    }

    fn say(&self, Said { wait, alone }: Said, goal: Option<Goal>) -> Result<Option<Knot>, Error> {
        // The wait may hold them, and a thread that leaves the job may wait for them: a second lock would then never come.
        let Ok(links) = self.job.links.try_read() else { return Ok(None) };
        let first = links.first().ok_or(Error::Closed)?;
        // That a wait has ended is said whether or not it is answered in time; and one that says nothing more is in no knot.
        let within = match goal {
            None => self.deadline.for_questions(),
            Some(_) => self.deadline.for_a_look(),
        };
        let asked = first.ask(Ask::Waits { wait, goal, alone }, "say who waits for whom", within);
        match patient(asked)? {
            Some((Answer::Knot { knot }, _)) => Ok(knot),
            Some((other, _)) => Err(first.misunderstood(&other)),
            None => Ok(None),
        }
    }
}

impl Drop for Circle<'_> {
    fn drop(&mut self) {
        // Whatever comes of it, the wait has ended: the next one has another number. A job that has failed is told nothing.
        if !self.job.fate.is_closed() {
            let _ = self.end();
        }
    }
}

/// What ends a wait, and what only was not answered in time.
fn patient<T>(asked: Result<T, Error>) -> Result<Option<T>, Error> {
    match asked {
        Ok(answer) => Ok(Some(answer)),
        Err(Error::Unanswered { .. } | Error::NotTaken { .. } | Error::Refused(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
