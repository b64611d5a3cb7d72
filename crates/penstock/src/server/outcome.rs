//! How the job ended at a server: what the control thread says, and what is said if a thread panics.

use super::arrivals::Arrivals;
use super::{StartError, shard};
use crate::thread::Wakeup;
use penstock_proto::error::JobFailure;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex};

/// What the control thread shows to others of its process, and those to it.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) outcome: Mutex<Option<Result<(), JobFailure>>>,
    pub(super) ended: Condvar,
    pub(super) wakeup: Wakeup,
    /// Connections that wait for it.
    pub(super) arrivals: Arrivals,
    /// Workers that are here, and bytes that tensors take.
    pub(super) workers: AtomicU32,
    pub(super) memory: AtomicU64,
}

impl Shared {
    pub(super) fn new() -> Result<Self, StartError> {
        Ok(Self {
            outcome: Mutex::default(),
            ended: Condvar::new(),
            wakeup: Wakeup::new().map_err(StartError::system("make a wake-up descriptor"))?,
            arrivals: Arrivals::default(),
            workers: AtomicU32::new(0),
            memory: AtomicU64::new(0),
        })
    }
}

impl Shared {
    /// How the job ended; `None` as long as it goes on.
    pub(super) fn outcome(&self) -> Option<Result<(), JobFailure>> {
        self.outcome.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

/// Held by the control thread: should it end before the job has, those that wait for the server hear that it is gone.
pub(super) struct LastWill {
    pub(super) shared: Arc<Shared>,
    pub(super) index: u32,
}

impl Drop for LastWill {
    fn drop(&mut self) {
        self.shared.arrivals.clear();
        let mut outcome = self.shared.outcome.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        outcome.get_or_insert_with(|| {
            let reason = "its control thread panicked, which is a bug in Penstock".to_owned();
            Err(JobFailure::ServerLost { server: self.index, reason })
        });
        self.shared.ended.notify_all();
    }
}

/// Held by a thread that the job cannot do without: if it panics, the job ends at once, with an error that names the thread.
pub(super) struct Obituary {
    /// What the thread does.
    pub(super) thread: &'static str,
    pub(super) server: u32,
    pub(super) reports: Sender<shard::Report>,
    pub(super) control: Arc<Shared>,
}

impl Drop for Obituary {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let reason = format!("the thread that {} panicked, which is a bug in Penstock", self.thread);
            let failure = JobFailure::ServerLost { server: self.server, reason };
            let _ = self.reports.send(shard::Report::Failed(failure));
            self.control.wakeup.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_server_whose_control_thread_panics_has_ended_for_who_waits_for_it() {
        let shared = Arc::new(Shared::new().unwrap());
        let last_will = LastWill { shared: Arc::clone(&shared), index: 3 };
        let thread = std::thread::spawn(move || {
            let _last_will = last_will;
            panic!("a mistake");
        });
        assert!(thread.join().is_err());
        assert!(matches!(shared.outcome(), Some(Err(JobFailure::ServerLost { server: 3, .. }))));
        drop(LastWill { shared: Arc::clone(&shared), index: 4 });
        assert!(matches!(shared.outcome(), Some(Err(JobFailure::ServerLost { server: 3, .. }))), "it stays");
    }

    // It was not noticed that the thread that passes rows on had gone: workers waited for rows until their deadline.
    #[test]
    fn a_thread_that_panics_ends_the_job_with_the_server_and_the_reason() {
        let (control, (reports, inbox)) = (Arc::new(Shared::new().unwrap()), channel());
        let obituary = |thread| {
            let (reports, control) = (reports.clone(), Arc::clone(&control));
            Obituary { thread, server: 3, reports, control }
        };
        let held = obituary("passes rows on");
        let thread = std::thread::spawn(move || {
            let _held = held;
            panic!("a mistake");
        });
        assert!(thread.join().is_err());
        let Ok(shard::Report::Failed(JobFailure::ServerLost { server: 3, reason })) = inbox.try_recv() else {
            panic!("the job goes on");
        };
        assert!(reason.contains("passes rows on panicked"), "{reason}");
        drop(obituary("ends well"));
        assert!(inbox.try_recv().is_err());
    }
}
