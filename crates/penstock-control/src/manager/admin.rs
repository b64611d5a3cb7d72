//! The administrator's calls.

use super::job::{Job, Outcome, Spec};
use super::proved::require_admin;
use super::registry::Registry;
use super::shared::Shared;
use crate::error::Reason;
use crate::proto;
use crate::proto::admin_server::Admin;
use crate::secret::{identity, random};
use penstock_proto::message::Secret;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tonic::{Request, Response, Status};

pub(super) struct AdminService(pub(super) Arc<Shared>);

#[tonic::async_trait]
impl Admin for AdminService {
    async fn create_job(
        &self,
        request: Request<proto::CreateJobRequest>,
    ) -> Result<Response<proto::CreateJobReply>, Status> {
        let proved = require_admin(&request)?;
        let sent = request.into_inner().spec.unwrap_or_default();
        let spec = Spec::check(sent, &*self.0.check)?;
        let job = Job {
            spec,
            id: identity(),
            secret: Secret(random()),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            placement: Vec::new(),
            pinned: false,
            ranks: BTreeMap::new(),
            outcome: None,
            linger: Duration::ZERO,
        };
        let (name, id) = (job.spec.name.clone(), job.id.clone());
        let secret = proved.seal().close(&name, &job.secret);
        let made = self.0.carry_out(&proved, |registry, now| {
            registry.create(now, job)?;
            Ok(proto::CreateJobReply {
                job: Some(show(registry, now, &registry.jobs[&name])),
                secret,
                balance: Some(balance(registry, now)),
            })
        });
        if matches!(&made, Err(refusal) if refusal.reason == Reason::State) {
            // Its secret was told to no one: it must not keep the name.
            let _ = self.0.change(|registry, now| match registry.jobs.get(&name) {
                Some(job) if job.id == id => registry.delete(now, &name),
                // Another of this name has been made since.
                _ => Ok(()),
            });
        }
        let made = made?;
        tracing::info!(job = name, "created");
        Ok(Response::new(made))
    }

    async fn list_jobs(
        &self,
        request: Request<proto::ListJobsRequest>,
    ) -> Result<Response<proto::ListJobsReply>, Status> {
        require_admin(&request)?;
        let (registry, now) = (self.0.look(), self.0.now());
        let reply = proto::ListJobsReply {
            jobs: registry.jobs.values().map(|job| show(&registry, now, job)).collect(),
            servers: servers(&registry, now),
            balance: Some(balance(&registry, now)),
        };
        Ok(Response::new(reply))
    }

    async fn show_job(
        &self,
        request: Request<proto::ShowJobRequest>,
    ) -> Result<Response<proto::ShowJobReply>, Status> {
        let seal = require_admin(&request)?.seal();
        let (registry, now) = (self.0.look(), self.0.now());
        let asked = request.get_ref();
        let job = registry.job(&asked.name)?;
        let secret = if asked.reveal { seal.close(&asked.name, &job.secret) } else { Vec::new() };
        Ok(Response::new(proto::ShowJobReply { job: Some(show(&registry, now, job)), secret }))
    }

    async fn delete_job(
        &self,
        request: Request<proto::DeleteJobRequest>,
    ) -> Result<Response<proto::DeleteJobReply>, Status> {
        let proved = require_admin(&request)?;
        let name = request.into_inner().name;
        self.0.carry_out(&proved, |registry, now| registry.delete(now, &name))?;
        tracing::info!(job = name, "deleted");
        Ok(Response::new(proto::DeleteJobReply {}))
    }
}

fn show(registry: &Registry, now: Duration, job: &Job) -> proto::Job {
    let (state, detail) = state(registry, now, job);
    let part = |id: &String| {
        let server = registry.servers.get(id);
        let status =
            server.and_then(|server| server.hosted.get(&job.spec.name)).filter(|status| status.id == job.id);
        proto::JobServer {
            server: id.clone(),
            endpoint: server.map(|server| server.endpoint.clone()).unwrap_or_default(),
            live: server.is_some_and(|server| registry.is_live(now, server)),
            hosted: status.is_some_and(|status| status.refused.is_empty()),
            workers_joined: status.map_or(0, |status| status.workers_joined),
            memory_used: status.map_or(0, |status| status.memory_used),
        }
    };
    proto::Job {
        spec: Some(job.spec.to_proto()),
        state: state.into(),
        detail,
        servers: job.placement.iter().map(part).collect(),
        created: job.created,
    }
}

fn state(registry: &Registry, now: Duration, job: &Job) -> (proto::JobState, String) {
    use proto::JobState::{Ended, Failed, Ready, Running, ServerLost, Starting, Waiting};
    match &job.outcome {
        Some(Outcome::Ended) => return (Ended, String::new()),
        Some(Outcome::Failed(why)) => return (Failed, why.clone()),
        None => {}
    }
    let joined = |id: &String| {
        let status = registry.servers.get(id).and_then(|server| server.hosted.get(&job.spec.name));
        status.is_some_and(|status| status.id == job.id && status.workers_joined > 0)
    };
    match registry.missing(now, job) {
        Some(why) if job.placement.is_empty() => (Waiting, why),
        Some(why) if registry.has_lost_a_server(now, job) => (ServerLost, why),
        Some(why) => (Starting, why),
        None if job.placement.iter().any(joined) => (Running, String::new()),
        None => (Ready, String::new()),
    }
}

fn servers(registry: &Registry, now: Duration) -> Vec<proto::Server> {
    let rooms = registry.rooms(now, |_| true);
    let show = |(id, server): (&String, &super::job::Server)| {
        let room = rooms.get(id);
        proto::Server {
            id: id.clone(),
            endpoint: server.endpoint.clone(),
            memory: server.memory,
            memory_free: room.map_or(0, |room| room.free),
            load: room.map_or(0.0, |room| room.load),
            jobs: registry.desired(id).len() as u32,
            live: room.is_some(),
        }
    };
    registry.servers.iter().map(show).collect()
}

fn balance(registry: &Registry, now: Duration) -> proto::Balance {
    let loads: Vec<f64> =
        registry.rooms(now, |job| job.outcome.is_none()).values().map(|room| room.load).collect();
    proto::Balance {
        most: loads.iter().copied().fold(0.0, f64::max),
        mean: if loads.is_empty() { 0.0 } else { loads.iter().sum::<f64>() / loads.len() as f64 },
        servers: loads.len() as u32,
    }
}
