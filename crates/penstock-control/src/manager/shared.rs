//! What the services share: the registry behind one lock, the disk beside it, and those that wait for a change.

use super::job::{CheckSettings, cut};
use super::proofs::{Challenges, Kind};
use super::proved::Proved;
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

    /// Changes the registry, writes what changed to disk, and wakes those that wait. What a caller is told is on disk. What a
    /// caller asks for goes by way of [`Self::carry_out`].
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

    /// Changes the registry as a caller asks, while its proof is good. Judged once all that came before is on disk: by then its
    /// client may have given up long ago, and have done something else.
    pub(super) fn carry_out<T>(
        &self,
        proved: &Proved,
        work: impl FnOnce(&mut Registry, Duration) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        self.change(|registry, now| {
            proved.in_time(now)?;
            work(registry, now)
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

    /// A caller of this kind, and the secret that it has to prove. Of a name longer than any job's only the beginning is kept,
    /// and its secret is one that no caller has.
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

#[cfg(test)]
mod tests {
    use super::super::admin::AdminService;
    use super::super::servers::ServersService;
    use super::*;
    use crate::error::reason;
    use crate::proto;
    use crate::proto::admin_server::Admin;
    use crate::proto::servers_server::Servers;
    use crate::server_key::ServerKey;
    use std::sync::mpsc::channel;
    use tonic::{Request, Status};

    /// Longer than what comes before a call waits for the disk.
    const AMPLE: Duration = Duration::from_secs(60);

    /// Nothing, or the word of the refusal.
    type Answered = Result<(), Option<Reason>>;

    /// A manager whose disk stalls during each call until the call's proof, of which `life` is left, is over, or for a moment.
    struct Stalling {
        shared: Arc<Shared>,
        runtime: tokio::runtime::Runtime,
        key: ServerKey,
    }

    impl Stalling {
        fn call<Q, R>(
            &self,
            who: Prover,
            sent: Q,
            life: Duration,
            call: impl AsyncFnOnce(Arc<Shared>, Request<Q>) -> Result<R, Status>,
        ) -> Result<R, Option<Reason>> {
            let until = self.shared.now() + life;
            let proved = Proved::of(who, Secret([7; 32]), until);
            let mut request = Request::new(sent);
            self.key.show(&proved.to_sign(), request.metadata_mut());
            request.extensions_mut().insert(proved);
            let (stalls, stalled) = channel();
            let shared = Arc::clone(&self.shared);
            let end = until.min(self.shared.now() + Duration::from_millis(100));
            // As a slow save does, with the registry locked.
            let disk = std::thread::spawn(move || {
                let stall = |_: &mut Registry, _| {
                    stalls.send(()).unwrap();
                    while shared.now() < end {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    Ok(())
                };
                shared.change(stall).unwrap();
            });
            stalled.recv().unwrap();
            let answer = self.runtime.block_on(call(Arc::clone(&self.shared), request));
            disk.join().unwrap();
            answer.map_err(|status| reason(status.metadata().as_ref()))
        }

        fn create(&self, name: &str, life: Duration) -> Answered {
            let spec = proto::JobSpec {
                name: name.to_owned(),
                workers: 1,
                servers: 1,
                memory: 1,
                share: 1.0,
                settings: vec![],
            };
            let sent = proto::CreateJobRequest { spec: Some(spec) };
            self.call(Prover::Admin, sent, life, async |shared, request| {
                AdminService(shared).create_job(request).await.map(drop)
            })
        }

        fn delete(&self, name: &str, life: Duration) -> Answered {
            let sent = proto::DeleteJobRequest { name: name.to_owned() };
            self.call(Prover::Admin, sent, life, async |shared, request| {
                AdminService(shared).delete_job(request).await.map(drop)
            })
        }

        fn register(&self, memory: u64, life: Duration) -> Answered {
            let sent =
                proto::RegisterRequest { id: self.key.identity(), endpoint: "/a.sock".to_owned(), memory };
            self.call(Prover::Server, sent, life, async |shared, request| {
                ServersService(shared).register(request).await.map(drop)
            })
        }

        fn heartbeat(&self, failure: &str, life: Duration) -> Answered {
            let name = "kept".to_owned();
            let id = self.shared.look().jobs[&name].id.clone();
            let status = proto::HostedStatus {
                name,
                id,
                ended: true,
                failure: failure.to_owned(),
                ..Default::default()
            };
            let sent = proto::HeartbeatRequest { id: self.key.identity(), hosted: vec![status] };
            self.call(Prover::Server, sent, life, async |shared, request| {
                // Its answer comes when there is something new.
                let heartbeat = ServersService(Arc::clone(&shared));
                shared.stopping.send_replace(true);
                heartbeat.heartbeat(request).await.map(drop)
            })
        }

        fn leave(&self, life: Duration) -> Answered {
            let sent = proto::LeaveRequest { id: self.key.identity() };
            self.call(Prover::Server, sent, life, async |shared, request| {
                ServersService(shared).leave(request).await.map(drop)
            })
        }

        /// All that calls change.
        fn state(&self) -> String {
            let registry = self.shared.look();
            format!("{:?} {:?}", registry.jobs, registry.servers)
        }
    }

    #[test]
    fn a_call_that_waited_for_the_disk_until_its_proof_was_over_is_not_carried_out() {
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let manager = Stalling {
            shared: Arc::new(Shared::in_folder(folder.path())),
            runtime: runtime.unwrap(),
            key: ServerKey::draw(),
        };
        let calls: [(&str, &dyn Fn(Duration) -> Answered); 6] = [
            ("register", &|life| manager.register(2, life)),
            ("create", &|life| manager.create("kept", life)),
            ("create", &|life| manager.create("other", life)),
            ("delete", &|life| manager.delete("other", life)),
            ("heartbeat", &|life| manager.heartbeat("it fell", life)),
            ("leave", &|life| manager.leave(life)),
        ];
        for (name, call) in calls {
            let before = manager.state();
            assert_eq!(call(Duration::from_millis(50)), Err(Some(Reason::StaleProof)), "{name}");
            assert_eq!(manager.state(), before, "{name} was carried out");
            // Waiting alone does no harm.
            assert_eq!(call(AMPLE), Ok(()), "{name}");
            assert_ne!(manager.state(), before, "{name} changes nothing that this test sees");
        }
    }
}
