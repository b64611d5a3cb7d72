//! What the services share: the registry behind one lock, the disk beside it, and those that wait for a change.

use super::admission::Caller;
use super::job::CheckSettings;
use super::proofs::Challenges;
use super::registry::Registry;
use super::store::{StateError, Store};
use crate::error::{Reason, Refusal};
use crate::proof::{Proof, Prover, Said};
use crate::seal::Seal;
use penstock_proto::message::Secret;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tonic::Request;

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

    /// Refuses a caller that does not prove that it knows the admin token.
    pub(super) fn require_admin<T>(&self, request: &Request<T>) -> Result<Seal, Refusal> {
        self.prove(request, &Prover::Admin, &self.store.admin).inspect(|_| mark_known(request))
    }

    /// Refuses a caller that does not prove that it knows the server token.
    pub(super) fn require_server<T>(&self, request: &Request<T>) -> Result<Seal, Refusal> {
        self.prove(request, &Prover::Server, &self.store.server).inspect(|_| mark_known(request))
    }

    /// Refuses a caller that does not prove that it knows `secret`, for this very call and no earlier one.
    pub(super) fn prove<T>(
        &self,
        request: &Request<T>,
        who: &Prover,
        secret: &Secret,
    ) -> Result<Seal, Refusal> {
        let heard = request.extensions().get::<Said>().zip(request.extensions().get::<Proof>());
        let (said, proof) = heard.expect("every call comes by way of the routes");
        let now = self.now();
        let mark = self.challenges.recognize(now, who, &proof.nonces)?;
        if !said.proves(secret, proof) {
            return Err(who.refusal());
        }
        // Last: only a caller that knows the secret makes the manager remember anything.
        self.challenges.take(now, who, mark)?;
        Ok(Seal::new(secret, &proof.nonces))
    }
}

/// The connection of a caller that has proved itself is not put out.
fn mark_known<T>(request: &Request<T>) {
    if let Some(caller) = request.extensions().get::<Caller>() {
        caller.mark_known(Instant::now());
    }
}
