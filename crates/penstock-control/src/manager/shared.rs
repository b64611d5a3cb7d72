//! What the services share: the registry behind one lock, the disk beside it, and those that wait for a change.

use super::job::{CheckSettings, cut};
use super::proofs::{Challenges, Kind};
use super::registry::Registry;
use super::store::{StateError, Store};
use crate::error::{Reason, Refusal};
use crate::limits;
use crate::proof::Prover;
use penstock_proto::message::Secret;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Leases and heartbeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Silence after which a server counts as lost.
    pub lease: Duration,
    /// Longest time that the reply to a heartbeat is held back.
    pub heartbeat: Duration,
}

pub(super) struct Shared {
    registry: Mutex<Registry>,
    pub(super) store: Store,
    pub(super) timing: Timing,
    pub(super) check: Arc<CheckSettings>,
    pub(super) challenges: Challenges,
    changed: watch::Sender<()>,
    pub(super) stopping: watch::Sender<bool>,
    /// Waiting `Connect` calls, by job.
    pub(super) waits: Mutex<BTreeMap<String, usize>>,
    started: Instant,
}

impl Shared {
    pub(super) fn new(registry: Registry, store: Store, timing: Timing, check: Arc<CheckSettings>) -> Self {
        Self {
            registry: Mutex::new(registry),
            store,
            timing,
            check,
            challenges: Challenges::new(),
            changed: watch::channel(()).0,
            stopping: watch::channel(false).0,
            waits: Mutex::default(),
            started: Instant::now(),
        }
    }

    /// Without jobs or servers; none is given up for a minute.
    #[cfg(test)]
    pub(super) fn in_folder(folder: &std::path::Path) -> Self {
        let lease = Duration::from_secs(60);
        let (store, jobs) = Store::open(folder).unwrap();
        let registry = Registry::new(jobs, lease, Secret([0; 32]));
        Self::new(registry, store, Timing { lease, heartbeat: lease }, Arc::new(|_| Ok(())))
    }

    /// Time since the manager started.
    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// The registry, to look at.
    pub(super) fn look(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the registry, writes what changed to disk, and wakes those that wait. What a caller is told is on disk.
    pub(super) fn change<T>(
        &self,
        work: impl FnOnce(&mut Registry, Duration) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        // Writing waits for the disk: other calls may use the other thread meanwhile.
        tokio::task::block_in_place(|| {
            let mut registry = self.look();
            let result = work(&mut registry, self.now())?;
            let saved = self.save(&mut registry);
            drop(registry);
            self.changed.send_replace(());
            saved.map(|()| result)
        })
    }

    /// What could not be written stays marked, and is tried again with the next change.
    fn save(&self, registry: &mut Registry) -> Result<(), Refusal> {
        for name in registry.unsaved.clone() {
            let written = match registry.jobs.get(&name) {
                Some(job) => self.store.save(job),
                None => self.store.remove(&name),
            };
            written.map_err(|error: StateError| {
                tracing::error!(%error, "the state could not be written");
                Refusal::new(Reason::State, "the manager could not write its state")
            })?;
            registry.unsaved.remove(&name);
        }
        Ok(())
    }

    /// Told of every change from now on.
    pub(super) fn watch(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// A caller of this kind, and the secret that it has to prove. No job has a name longer than what is kept of one: the
    /// secret of that is nobody's.
    pub(super) fn whose(&self, kind: Kind, job: &str) -> (Prover, Secret) {
        match kind {
            Kind::Admin => (Prover::Admin, self.store.admin),
            Kind::Server => (Prover::Server, self.store.server),
            Kind::Worker => {
                let who = Prover::Worker { job: cut(job, limits::NAME_BYTES).to_owned() };
                (who, self.look().secret_of(job))
            }
        }
    }
}
