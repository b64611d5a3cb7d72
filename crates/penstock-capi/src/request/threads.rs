//! The threads of a job that carry out what was started: a pool for what goes in lines, a pool for gets.

use super::registry::{Registry, State, desk, registry};
use crate::status::{Failure, penstock_status};
use penstock::worker::Error;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Gets of one job that wait at one time, each on a thread.
pub(super) const MOST_GETS: usize = 64;
/// A thread without work ends after this time.
const IDLE: Duration = Duration::from_secs(5);
/// Their stacks: they run this library's code only.
const STACK: usize = 256 * 1024;

/// What a thread takes up: the requests for a tensor, one after the other, or a get. Each kind has threads of its own, so that
/// waiting tensors hold up no gets, and gets no tensors.
#[derive(Clone, Copy)]
pub(super) enum Task {
    Line(u64),
    Get(u64),
}

/// Threads for one kind of task.
#[derive(Default)]
struct Pool {
    queue: VecDeque<u64>,
    threads: usize,
    idle: usize,
}

/// The threads of a job.
#[derive(Default)]
pub(super) struct Pools {
    lines: Pool,
    gets: Pool,
    pub(super) handles: Vec<JoinHandle<()>>,
    pub(super) over: bool,
}

impl Pools {
    fn pool(&mut self, task: Task) -> &mut Pool {
        match task {
            Task::Line(_) => &mut self.lines,
            Task::Get(_) => &mut self.gets,
        }
    }
}

impl Registry {
    /// Queues a task, for a thread that there is or will be.
    pub(super) fn hand_over(&mut self, job: u64, task: Task) -> Result<(), Failure> {
        let pools = self.pools.entry(job).or_default();
        if pools.over {
            return Err(Error::Closed.into());
        }
        let pool = pools.pool(task);
        let enough = matches!(task, Task::Get(_)) && pool.threads >= MOST_GETS;
        if pool.idle <= pool.queue.len() && !enough {
            pools.grow(job, task)?;
        }
        let (Task::Line(id) | Task::Get(id)) = task;
        pools.pool(task).queue.push_back(id);
        desk().work.notify_all();
        Ok(())
    }
}

impl Pools {
    fn grow(&mut self, job: u64, task: Task) -> Result<(), Failure> {
        self.handles.retain(|thread| !thread.is_finished());
        let thread = std::thread::Builder::new().name("penstock-request".to_owned()).stack_size(STACK);
        let thread = thread.spawn(move || serve(job, task)).map_err(|error| {
            let what = format!("could not start a thread for a request: {error}");
            Failure::new(
                penstock_status::PENSTOCK_SYSTEM,
                what,
                "wait for some requests before more are started",
            )
        })?;
        self.pool(task).threads += 1;
        self.handles.push(thread);
        Ok(())
    }
}

/// A thread of a job's pool for tasks of this `kind`.
fn serve(job: u64, kind: Task) {
    let mut registry = registry();
    loop {
        let Some(pools) = registry.pools.get_mut(&job) else { return };
        let over = pools.over;
        let next = pools.pool(kind).queue.pop_front();
        match (next, kind) {
            (Some(id), Task::Get(_)) => {
                if let Some(entry) = registry.requests.get_mut(&id) {
                    entry.queued = false;
                }
                drop(registry);
                carry_out(id, None);
                registry = super::registry::registry();
            }
            (Some(line), Task::Line(_)) => {
                while let Some(id) = registry.lines.get_mut(&line).and_then(VecDeque::pop_front) {
                    drop(registry);
                    carry_out(id, None);
                    registry = super::registry::registry();
                }
                registry.lines.remove(&line);
            }
            (None, _) if over => break,
            (None, _) => {
                pools.pool(kind).idle += 1;
                let slept = desk().work.wait_timeout(registry, IDLE);
                let (woken, slept) = slept.unwrap_or_else(PoisonError::into_inner);
                registry = woken;
                let Some(pools) = registry.pools.get_mut(&job) else { return };
                let pool = pools.pool(kind);
                pool.idle -= 1;
                if slept.timed_out() && pool.queue.is_empty() {
                    break;
                }
            }
        }
    }
    if let Some(pools) = registry.pools.get_mut(&job) {
        pools.pool(kind).threads -= 1;
    }
}

/// Carries out a request that no thread has taken up, at most until `until`.
pub(super) fn carry_out(id: u64, until: Option<Instant>) {
    let mut registry = registry();
    let Some(mut work) = registry.requests.get_mut(&id).and_then(super::registry::Entry::begin) else {
        return;
    };
    drop(registry);
    let done = catch_unwind(AssertUnwindSafe(|| work(until)))
        .unwrap_or_else(|panic| Some(Err(Failure::bug(&*panic))));
    let mut registry = super::registry::registry();
    let Some(entry) = registry.requests.get_mut(&id) else { return };
    // What it holds is let go of when the registry is free again.
    let _work = match done {
        Some(result) => {
            entry.finish(result);
            Some(work)
        }
        None => {
            entry.state = State::Queued(work);
            registry.queue_again(id)
        }
    };
    desk().changed.notify_all();
    drop(registry);
}

impl Registry {
    /// A get that a thread has left as it is: a thread that is free may go on with it.
    fn queue_again(&mut self, id: u64) -> Option<super::registry::Work> {
        let entry = self.requests.get_mut(&id).filter(|entry| !entry.queued)?;
        entry.queued = true;
        let job = entry.job;
        let refused = self.hand_over(job, Task::Get(id)).err()?;
        let entry = self.requests.get_mut(&id)?;
        entry.queued = false;
        match entry.finish(Err(refused)) {
            State::Queued(work) => Some(work),
            _ => None,
        }
    }
}
