//! The servers' calls.

use super::job::{self, Status as JobStatus};
use super::proved::{proved, require_server};
use super::registry::Registry;
use super::shared::Shared;
use crate::error::{Reason, Refusal, harmless};
use crate::limits;
use crate::proto;
use crate::proto::servers_server::Servers;
use crate::seal::Seal;
use crate::secret::is_identity;
use crate::server_key::ServerKey;
use std::sync::Arc;
use std::time::Duration;
use tonic::{Request, Response, Status};

pub(super) struct ServersService(pub(super) Arc<Shared>);

#[tonic::async_trait]
impl Servers for ServersService {
    async fn register(
        &self,
        request: Request<proto::RegisterRequest>,
    ) -> Result<Response<proto::RegisterReply>, Status> {
        let proved = require_server(&request)?;
        check_identity(&request, &request.get_ref().id)?;
        let sent = request.into_inner();
        check_endpoint(&sent.endpoint)?;
        self.0.carry_out(&proved, |registry, now| {
            registry.register(now, &sent.id, &sent.endpoint, sent.memory)
        })?;
        tracing::info!(server = sent.id, endpoint = sent.endpoint, "registered");
        let timing = self.0.timing;
        Ok(Response::new(proto::RegisterReply {
            manager: self.0.store.identity.clone(),
            lease_milliseconds: milliseconds(timing.lease),
            heartbeat_milliseconds: milliseconds(timing.heartbeat),
        }))
    }

    async fn heartbeat(
        &self,
        request: Request<proto::HeartbeatRequest>,
    ) -> Result<Response<proto::HeartbeatReply>, Status> {
        let proved = require_server(&request)?;
        check_identity(&request, &request.get_ref().id)?;
        let sent = request.into_inner();
        let hosted = sent.hosted.into_iter().take(limits::JOBS).map(read).collect();
        self.0.carry_out(&proved, |registry, now| registry.heartbeat(now, &sent.id, hosted))?;
        let until = tokio::time::Instant::now() + self.0.timing.heartbeat;
        let (mut changed, mut stopping) = (self.0.watch(), self.0.stopping.subscribe());
        loop {
            if !self.0.look().is_content(&sent.id) {
                break;
            }
            tokio::select! {
                _ = changed.changed() => {}
                _ = stopping.wait_for(|&stopping| stopping) => break,
                () = tokio::time::sleep_until(until) => break,
            }
        }
        Ok(Response::new(proto::HeartbeatReply { jobs: desired(&self.0.look(), &sent.id, &proved.seal()) }))
    }

    async fn leave(
        &self,
        request: Request<proto::LeaveRequest>,
    ) -> Result<Response<proto::LeaveReply>, Status> {
        let proved = require_server(&request)?;
        check_identity(&request, &request.get_ref().id)?;
        let id = request.into_inner().id;
        self.0.carry_out(&proved, |registry, now| {
            registry.leave(now, &id);
            Ok(())
        })?;
        tracing::info!(server = id, "left");
        Ok(Response::new(proto::LeaveReply {}))
    }
}

fn milliseconds(span: Duration) -> u32 {
    u32::try_from(span.as_millis()).unwrap_or(u32::MAX)
}

/// Whether the caller is the server that it names: the token says only that it is some server.
fn check_identity<T>(request: &Request<T>, id: &str) -> Result<(), Refusal> {
    if !is_identity(id) {
        return Err(Refusal::new(Reason::Invalid, "expected a server's identity of 32 hexadecimal digits"));
    }
    match ServerKey::shown(&proved(request).to_sign(), request.metadata()) {
        Some(signer) if signer == id => Ok(()),
        _ => {
            let message =
                format!("expected a signature with the key that the server {id} has made its identity from");
            Err(Refusal::new(Reason::Token, message))
        }
    }
}

/// A list of endpoints is separated by commas, and travels in the environment.
fn check_endpoint(endpoint: &str) -> Result<(), Refusal> {
    let known = endpoint.starts_with('/') || endpoint.starts_with("tcp://");
    let plain = endpoint.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',');
    match known && plain && endpoint.len() <= limits::ENDPOINT_BYTES {
        true => Ok(()),
        false => Err(Refusal::new(
            Reason::Invalid,
            format!(
                "expected an endpoint like tcp://HOST:PORT or /path/to.sock of at most {} bytes, without commas",
                limits::ENDPOINT_BYTES
            ),
        )),
    }
}

fn read(sent: proto::HostedStatus) -> (String, JobStatus) {
    let status = JobStatus {
        id: sent.id,
        workers_joined: sent.workers_joined,
        memory_used: sent.memory_used,
        ended: sent.ended,
        failure: harmless(sent.failure),
        refused: harmless(sent.refused),
    };
    (sent.name, status)
}

fn desired(registry: &Registry, id: &str, seal: &Seal) -> Vec<proto::HostedJob> {
    let show = |(index, job): (usize, &job::Job)| proto::HostedJob {
        name: job.spec.name.clone(),
        id: job.id.clone(),
        secret: seal.close(&job.spec.name, &job.secret),
        index: index as u32,
        servers: job.spec.servers,
        workers: job.spec.workers,
        settings: job::settings(&job.spec.settings),
        share: job.spec.share,
        memory: job.spec.memory_each(),
    };
    registry.desired(id).into_iter().map(show).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_that_would_break_a_list_is_refused() {
        for endpoint in ["/run/a.sock", "tcp://h:1", "tcp://[::1]:1?host=ab&unix=/x"] {
            assert!(check_endpoint(endpoint).is_ok(), "{endpoint}");
        }
        for endpoint in ["", "h:1", "/a,/b", "/a b", "/a\n", "tcp://\u{e9}:1"] {
            assert!(check_endpoint(endpoint).is_err(), "{endpoint}");
        }
        assert!(check_endpoint(&format!("/{}", "x".repeat(limits::ENDPOINT_BYTES))).is_err());
    }
}
