//! What comes back, as plain data. Texts are shown to administrators: none of them controls a terminal.

use crate::error::harmless;
use crate::{proto, settings};
use penstock_proto::message::Secret;

/// A job to create.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSpec {
    /// Its name.
    pub name: String,
    /// Its workers.
    pub workers: u32,
    /// Its servers.
    pub servers: u32,
    /// Bytes on all its servers together.
    pub memory: u64,
    /// Its part of each server's bandwidth, above 0 up to 1.
    pub share: f64,
    /// Its settings, by the names of the table of options.
    pub settings: Vec<(String, String)>,
}

impl JobSpec {
    /// A job on one server, with 1 GiB and a share of 1.
    pub fn new(name: &str, workers: u32) -> Self {
        Self { name: name.to_owned(), workers, servers: 1, memory: 1 << 30, share: 1.0, settings: Vec::new() }
    }
}

impl From<&JobSpec> for proto::JobSpec {
    fn from(spec: &JobSpec) -> Self {
        let setting =
            |(name, value): &(String, String)| proto::Setting { name: name.clone(), value: value.clone() };
        Self {
            name: spec.name.clone(),
            workers: spec.workers,
            servers: spec.servers,
            memory: spec.memory,
            share: spec.share,
            settings: spec.settings.iter().map(setting).collect(),
        }
    }
}

/// A job that was created.
#[derive(Debug, Clone, PartialEq)]
pub struct Created {
    /// As it is shown.
    pub job: Job,
    /// Its secret.
    pub secret: Secret,
    /// How evenly jobs lie on the servers, with this one.
    pub balance: Balance,
}

impl Created {
    pub(super) fn read(reply: proto::CreateJobReply, secret: Secret) -> Self {
        Self {
            job: reply.job.unwrap_or_default().into(),
            secret,
            balance: reply.balance.unwrap_or_default().into(),
        }
    }
}

/// A job.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Its name.
    pub name: String,
    /// Its workers.
    pub workers: u32,
    /// Bytes on all its servers together.
    pub memory: u64,
    /// Its part of each server's bandwidth.
    pub share: f64,
    /// Its settings.
    pub settings: Vec<(String, String)>,
    /// `waiting`, `starting`, `ready`, `running`, `ended`, `failed` or `server-lost`.
    pub state: &'static str,
    /// Why it waits or failed; else empty.
    pub detail: String,
    /// Servers that it wants.
    pub servers_wanted: u32,
    /// Its servers, by index; empty until it is placed.
    pub servers: Vec<JobServer>,
    /// When it was created: seconds since 1970.
    pub created: u64,
}

impl From<proto::Job> for Job {
    fn from(job: proto::Job) -> Self {
        use proto::JobState::{Ended, Failed, Ready, Running, ServerLost, Starting, Unspecified, Waiting};
        let state = match job.state() {
            Unspecified => "unknown",
            Waiting => "waiting",
            Starting => "starting",
            Ready => "ready",
            Running => "running",
            Ended => "ended",
            Failed => "failed",
            ServerLost => "server-lost",
        };
        let spec = job.spec.unwrap_or_default();
        Self {
            name: harmless(spec.name),
            workers: spec.workers,
            memory: spec.memory,
            share: spec.share,
            settings: settings::pairs(spec.settings)
                .into_iter()
                .map(|(name, value)| (harmless(name), harmless(value)))
                .collect(),
            state,
            detail: harmless(job.detail),
            servers_wanted: spec.servers,
            servers: job.servers.into_iter().map(JobServer::from).collect(),
            created: job.created,
        }
    }
}

/// A job's part on a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobServer {
    /// The server's identity.
    pub server: String,
    /// Its endpoint string; empty while it is not known.
    pub endpoint: String,
    /// Whether it is heard of.
    pub live: bool,
    /// Whether it hosts the job.
    pub hosted: bool,
    /// Workers that have joined there.
    pub workers_joined: u32,
    /// Bytes that the job takes there.
    pub memory_used: u64,
}

impl From<proto::JobServer> for JobServer {
    fn from(part: proto::JobServer) -> Self {
        let proto::JobServer { server, endpoint, live, hosted, workers_joined, memory_used } = part;
        let (server, endpoint) = (harmless(server), harmless(endpoint));
        Self { server, endpoint, live, hosted, workers_joined, memory_used }
    }
}

/// A server.
#[derive(Debug, Clone, PartialEq)]
pub struct Server {
    /// Its identity.
    pub id: String,
    /// Its endpoint string.
    pub endpoint: String,
    /// Bytes that its jobs may take together.
    pub memory: u64,
    /// Bytes of these that are promised to no job.
    pub memory_free: u64,
    /// Sum of its jobs' shares.
    pub load: f64,
    /// Jobs placed on it.
    pub jobs: u32,
    /// Whether it is heard of.
    pub live: bool,
}

impl From<proto::Server> for Server {
    fn from(server: proto::Server) -> Self {
        let proto::Server { id, endpoint, memory, memory_free, load, jobs, live } = server;
        let (id, endpoint) = (harmless(id), harmless(endpoint));
        Self { id, endpoint, memory, memory_free, load, jobs, live }
    }
}

/// How evenly the shares lie on the live servers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Balance {
    /// Sum of the shares on the most loaded server.
    pub most: f64,
    /// The mean over the servers.
    pub mean: f64,
    /// Servers counted.
    pub servers: u32,
}

impl From<proto::Balance> for Balance {
    fn from(balance: proto::Balance) -> Self {
        Self { most: balance.most, mean: balance.mean, servers: balance.servers }
    }
}

/// All that a manager shows an administrator.
#[derive(Debug, Clone, PartialEq)]
pub struct Listing {
    /// Jobs, by name.
    pub jobs: Vec<Job>,
    /// Servers, by identity.
    pub servers: Vec<Server>,
    /// How evenly the jobs lie.
    pub balance: Balance,
}

impl From<proto::ListJobsReply> for Listing {
    fn from(reply: proto::ListJobsReply) -> Self {
        Self {
            jobs: reply.jobs.into_iter().map(Job::from).collect(),
            servers: reply.servers.into_iter().map(Server::from).collect(),
            balance: reply.balance.unwrap_or_default().into(),
        }
    }
}

/// A worker's place in its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Endpoint strings of the servers, in their order.
    pub servers: Vec<String>,
    /// The worker's rank.
    pub rank: u32,
    /// Workers of the job.
    pub size: u32,
    /// The job's settings.
    pub settings: Vec<(String, String)>,
}

impl From<proto::ConnectReply> for Place {
    fn from(reply: proto::ConnectReply) -> Self {
        Self {
            servers: reply.servers,
            rank: reply.rank,
            size: reply.size,
            settings: settings::of_a_job(reply.settings),
        }
    }
}
