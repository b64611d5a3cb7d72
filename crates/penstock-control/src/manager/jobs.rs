//! The workers' call.

use super::admission::{Caller, Protection};
use super::job;
use super::proofs::worker;
use super::registry::Readiness;
use super::shared::Shared;
use crate::error::{Reason, Refusal};
use crate::limits;
use crate::proto;
use crate::proto::jobs_server::Jobs;
use crate::secret::is_identity;
use penstock_proto::message::Secret;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tonic::{Request, Response, Status};

pub(super) struct JobsService(pub(super) Arc<Shared>);

#[tonic::async_trait]
impl Jobs for JobsService {
    async fn connect(
        &self,
        request: Request<proto::ConnectRequest>,
    ) -> Result<Response<proto::ConnectReply>, Status> {
        let who = worker(&request.get_ref().job);
        let secret = self.0.look().secret_of(&request.get_ref().job);
        self.0.prove(&request, &who, &secret)?;
        let workers = self.0.look().proved(&request.get_ref().job, &secret)?.spec.workers;
        let caller = request.extensions().get::<Caller>().cloned();
        let sent = request.into_inner();
        if !is_identity(&sent.worker) {
            let message = "expected a worker's identity of 32 hexadecimal digits";
            return Err(Refusal::new(Reason::Invalid, message).into());
        }
        let _turn =
            Turn::take(&self.0, &sent.job, workers as usize + limits::SPARE_WAITS_PER_JOB, caller.as_ref())?;
        self.ready(&sent, &secret).await?;
        // The rank comes last: a worker that gave up waiting has taken none.
        let reply = self.0.change(|registry, now| {
            registry.proved(&sent.job, &secret)?;
            let servers = match registry.hand_out(now, &sent.job)? {
                Readiness::Ready(servers) => servers,
                Readiness::NotYet(why) => return Err(Refusal::new(Reason::NotReady, why)),
            };
            let rank = registry.enlist(&sent.job, &sent.worker, sent.rank, sent.size)?;
            let spec = &registry.job(&sent.job)?.spec;
            Ok(proto::ConnectReply {
                servers,
                rank,
                size: spec.workers,
                settings: job::settings(&spec.settings),
            })
        })?;
        tracing::info!(
            job = sent.job,
            rank = reply.rank,
            host = job::cut(&sent.host, 64),
            "a worker was introduced"
        );
        Ok(Response::new(reply))
    }
}

impl JobsService {
    /// Waits until all servers of the job host it.
    async fn ready(&self, sent: &proto::ConnectRequest, secret: &Secret) -> Result<(), Refusal> {
        let wait = Duration::from_millis(sent.wait_milliseconds.into()).min(limits::CONNECT_WAIT);
        let until = tokio::time::Instant::now() + wait;
        let (mut changed, mut stopping) = (self.0.watch(), self.0.stopping.subscribe());
        loop {
            let why = match self.look(sent, secret)? {
                Readiness::Ready(_) => return Ok(()),
                Readiness::NotYet(why) => why,
            };
            tokio::select! {
                _ = changed.changed() => {}
                _ = stopping.wait_for(|&stopping| stopping) => {
                    return Err(Refusal::new(Reason::NotReady, "the manager stops"));
                }
                () = tokio::time::sleep_until(until) => return Err(Refusal::new(Reason::NotReady, why)),
            }
        }
    }

    fn look(&self, sent: &proto::ConnectRequest, secret: &Secret) -> Result<Readiness, Refusal> {
        let mut registry = self.0.look();
        // Each time: the job may have been deleted meanwhile, and its name given to another.
        registry.proved(&sent.job, secret)?.check_worker(sent.rank, sent.size)?;
        registry.readiness(self.0.now(), &sent.job)
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
