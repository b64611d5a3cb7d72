//! The workers' call.

use super::admission::{Caller, Protection};
use super::job::{cut, settings};
use super::proved::{Proved, proved};
use super::registry::Readiness;
use super::shared::Shared;
use crate::error::{Reason, Refusal, harmless};
use crate::limits;
use crate::proto;
use crate::proto::jobs_server::Jobs;
use crate::secret::is_identity;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tonic::{Request, Response, Status};

/// Bytes of a worker's host in the log.
const HOST_BYTES: usize = 64;

pub(super) struct JobsService(pub(super) Arc<Shared>);

#[tonic::async_trait]
impl Jobs for JobsService {
    async fn connect(
        &self,
        request: Request<proto::ConnectRequest>,
    ) -> Result<Response<proto::ConnectReply>, Status> {
        let proved = proved(&request).clone();
        let (job, secret) = proved.job()?;
        let workers = self.0.look().proved(job, &secret)?.spec.workers;
        let caller = request.extensions().get::<Caller>().cloned();
        let sent = request.into_inner();
        if !is_identity(&sent.worker) {
            let message = "expected a worker's identity of 32 hexadecimal digits";
            return Err(Refusal::new(Reason::Invalid, message).into());
        }
        let _turn =
            Turn::take(&self.0, job, workers as usize + limits::SPARE_WAITS_PER_JOB, caller.as_ref())?;
        self.ready(&sent, &proved).await?;
        // The rank comes last: a worker that gave up waiting has taken none.
        let reply = self.0.carry_out(&proved, |registry, now| {
            registry.proved(job, &secret)?;
            let servers = match registry.hand_out(now, job)? {
                Readiness::Ready(servers) => servers,
                Readiness::NotYet(why) => return Err(Refusal::new(Reason::NotReady, why)),
            };
            let rank = registry.enlist(job, &sent.worker, sent.rank, sent.size)?;
            let spec = &registry.job(job)?.spec;
            Ok(proto::ConnectReply { servers, rank, size: spec.workers, settings: settings(&spec.settings) })
        })?;
        let host = harmless(cut(&sent.host, HOST_BYTES));
        tracing::info!(job, rank = reply.rank, host, "a worker was introduced");
        Ok(Response::new(reply))
    }
}

impl JobsService {
    /// Waits until all servers of the job host it, and no longer than the call's proof is good: what is held back on the way is
    /// not carried out later than any other call.
    async fn ready(&self, sent: &proto::ConnectRequest, proved: &Proved) -> Result<(), Refusal> {
        let wait = Duration::from_millis(sent.wait_milliseconds.into()).min(limits::CONNECT_WAIT);
        let until = tokio::time::Instant::now() + wait.min(proved.until.saturating_sub(self.0.now()));
        let (mut changed, mut stopping) = (self.0.watch(), self.0.stopping.subscribe());
        loop {
            let why = match self.look(sent, proved)? {
                Readiness::Ready(_) => return Ok(()),
                Readiness::NotYet(why) => why,
            };
            tokio::select! {
                _ = changed.changed() => {}
                _ = stopping.wait_for(|&stopping| stopping) => {
                    return Err(Refusal::new(Reason::Busy, "the manager stops"));
                }
                () = tokio::time::sleep_until(until) => return Err(Refusal::new(Reason::NotReady, why)),
            }
        }
    }

    fn look(&self, sent: &proto::ConnectRequest, proved: &Proved) -> Result<Readiness, Refusal> {
        let (job, secret) = proved.job()?;
        let mut registry = self.0.look();
        // Each time: the job may have been deleted meanwhile, and its name given to another.
        registry.proved(job, &secret)?.check_worker(sent.rank, sent.size)?;
        registry.readiness(self.0.now(), job)
    }
}

/// One of the calls of a job that may wait at once.
struct Turn {
    shared: Arc<Shared>,
    job: String,
    _protection: Option<Protection>,
}

impl Turn {
    fn take(shared: &Arc<Shared>, job: &str, most: usize, caller: Option<&Caller>) -> Result<Self, Refusal> {
        let mut waits = shared.waits.lock().unwrap_or_else(PoisonError::into_inner);
        let count = waits.entry(job.to_owned()).or_default();
        if *count >= most {
            return Err(Refusal::new(Reason::Busy, format!("{most} workers of the job are waiting already")));
        }
        *count += 1;
        Ok(Self { shared: Arc::clone(shared), job: job.to_owned(), _protection: caller.map(Caller::protect) })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut waits = self.shared.waits.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = waits.get_mut(&self.job) {
            *count -= 1;
            if *count == 0 {
                waits.remove(&self.job);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::job::{Job, Spec, Status as JobStatus};
    use super::*;
    use crate::error::reason;
    use penstock_proto::message::Secret;
    use std::collections::BTreeMap;
    use std::time::Instant;

    const SECRET: Secret = Secret([7; 32]);

    fn job() -> Job {
        Job {
            spec: Spec {
                name: "mnist".to_owned(),
                workers: 2,
                servers: 1,
                memory: 1,
                share: 1.0,
                settings: Vec::new(),
            },
            id: "1".to_owned(),
            secret: SECRET,
            created: 0,
            placement: Vec::new(),
            pinned: false,
            ranks: BTreeMap::new(),
            outcome: None,
            linger: Duration::ZERO,
        }
    }

    #[test]
    fn a_call_that_waits_is_not_carried_out_once_its_proof_is_over() {
        let folder = tempfile::tempdir().unwrap();
        let shared = Arc::new(Shared::in_folder(folder.path()));
        shared.look().create(Duration::ZERO, job()).unwrap();
        let service = JobsService(Arc::clone(&shared));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        let connect = |life| {
            let mut request = Request::new(proto::ConnectRequest {
                worker: "7".repeat(32),
                wait_milliseconds: 10_000,
                ..proto::ConnectRequest::default()
            });
            request.extensions_mut().insert(Proved::of_worker("mnist", SECRET, shared.now() + life));
            runtime.block_on(service.connect(request)).map(Response::into_inner)
        };
        let why = |status: Status| reason(status.metadata().as_ref());
        let started = Instant::now();
        let refused = connect(Duration::from_millis(100)).unwrap_err();
        assert!(started.elapsed() < Duration::from_secs(8), "it waited beyond its proof");
        assert_eq!(why(refused), Some(Reason::NotReady));
        shared.stopping.send_replace(true);
        assert_eq!(
            why(connect(limits::PROOF_LIFE).unwrap_err()),
            Some(Reason::Busy),
            "its servers would come"
        );
        shared.stopping.send_replace(false);
        // The servers are ready now, and the call, which was held back, is too late.
        let hosted =
            BTreeMap::from([("mnist".to_owned(), JobStatus { id: "1".to_owned(), ..JobStatus::default() })]);
        shared.look().register(Duration::ZERO, "s", "/a.sock", 1).unwrap();
        shared.look().heartbeat(Duration::ZERO, "s", hosted).unwrap();
        assert_eq!(why(connect(Duration::ZERO).unwrap_err()), Some(Reason::Busy), "its servers are ready");
        assert!(shared.look().jobs["mnist"].ranks.is_empty(), "it took a rank");
        assert_eq!(connect(limits::PROOF_LIFE).unwrap().servers, ["/a.sock"]);
    }
}
