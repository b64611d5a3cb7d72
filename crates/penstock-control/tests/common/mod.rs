//! A manager on loopback, servers in memory, and waits with a deadline.
#![allow(dead_code, unreachable_pub, reason = "each test takes what it needs")]

use http_body_util::{BodyExt, Full};
use penstock_control::agent::{Agent, Host, HostedJob, HostedStatus};
use penstock_control::client::{Client, Created, JobSpec, Place, Proving, Target, Worker};
use penstock_control::manager::{Config, Manager, Timing};
use penstock_control::secret;
use penstock_control::{Error, Prover, limits, proto};
use penstock_proto::message::Secret;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tonic::body::Body;
use tonic::codegen::Bytes;
use tonic::codegen::http::{Request, Response};
use tower::ServiceExt;

/// Far above what anything here takes.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// Waits until `done`.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < DEADLINE, "waited {DEADLINE:?} until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A lease that a test can wait out.
pub const SHORT: Timing = Timing { lease: Duration::from_millis(900), heartbeat: Duration::from_millis(200) };

pub struct Site {
    pub folder: TempDir,
    pub manager: Option<Manager>,
    pub address: String,
}

impl Site {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut Config)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut site = Self { folder, manager: None, address: "127.0.0.1:0".to_owned() };
        site.start(change);
        site
    }

    /// Starts a manager where the last one was.
    pub fn start(&mut self, change: impl FnOnce(&mut Config)) {
        let mut config = Config::new(&self.address, self.state());
        change(&mut config);
        let manager = Manager::start(config).unwrap();
        self.address = manager.address().to_string();
        self.manager = Some(manager);
    }

    pub fn stop(&mut self) {
        self.manager = None;
    }

    pub fn state(&self) -> std::path::PathBuf {
        self.folder.path().join("state")
    }

    pub fn token(&self, name: &str) -> Secret {
        secret::read(&self.state().join(name)).unwrap()
    }

    pub fn admin(&self) -> Secret {
        self.token("admin.token")
    }

    pub fn client(&self) -> Client {
        Client::new(Target::new(&self.address)).unwrap()
    }

    pub fn create(&self, name: &str, change: impl FnOnce(&mut JobSpec)) -> Result<Created, Error> {
        let mut spec = JobSpec { memory: 10, ..JobSpec::new(name, 2) };
        change(&mut spec);
        self.client().create_job(&self.admin(), &spec)
    }

    pub fn connect(&self, job: &str, secret: &Secret) -> Result<Place, Error> {
        self.client().connect(job, secret, &Worker::default(), DEADLINE)
    }

    pub fn server(&self, endpoint: &str, memory: u64) -> (Arc<Memory>, Agent) {
        let host = Memory::new(endpoint, memory);
        let token = self.token("server.token");
        let agent = Agent::start(&Target::new(&self.address), token, Arc::<Memory>::clone(&host)).unwrap();
        (host, agent)
    }

    pub fn state_of(&self, job: &str) -> &'static str {
        self.client().show_job(&self.admin(), job).unwrap().state
    }
}

/// A host that keeps its jobs in a map.
pub struct Memory {
    endpoint: String,
    memory: u64,
    pub jobs: Mutex<BTreeMap<String, (HostedJob, HostedStatus)>>,
    /// What it answers to every new job.
    pub refusal: Mutex<Option<String>>,
    /// Everything that it was told.
    pub log: Mutex<Vec<String>>,
}

impl Memory {
    pub fn new(endpoint: &str, memory: u64) -> Arc<Self> {
        Arc::new(Self {
            endpoint: endpoint.to_owned(),
            memory,
            jobs: Mutex::default(),
            refusal: Mutex::default(),
            log: Mutex::default(),
        })
    }

    pub fn hosts(&self, name: &str) -> bool {
        self.jobs.lock().unwrap().contains_key(name)
    }

    pub fn change(&self, name: &str, change: impl FnOnce(&mut HostedStatus)) {
        change(&mut self.jobs.lock().unwrap().get_mut(name).unwrap().1);
    }

    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }
}

impl Host for Memory {
    fn endpoint(&self) -> String {
        self.endpoint.clone()
    }

    fn memory(&self) -> u64 {
        self.memory
    }

    fn create(&self, job: HostedJob) -> Result<(), String> {
        if let Some(refusal) = self.refusal.lock().unwrap().clone() {
            return Err(refusal);
        }
        self.log.lock().unwrap().push(format!("create {}", job.name));
        let status = HostedStatus { name: job.name.clone(), workers_joined: 0, memory_used: 0, ended: None };
        self.jobs.lock().unwrap().insert(job.name.clone(), (job, status));
        Ok(())
    }

    fn delete(&self, name: &str) {
        self.log.lock().unwrap().push(format!("delete {name}"));
        self.jobs.lock().unwrap().remove(name);
    }

    fn status(&self) -> Vec<HostedStatus> {
        self.jobs.lock().unwrap().values().map(|(_, status)| status.clone()).collect()
    }
}

/// Everything in a folder, as one text.
pub fn all_text(folder: &Path) -> String {
    let mut text = String::new();
    for entry in folder.read_dir().unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => text += &all_text(&path),
            false => text += &std::fs::read_to_string(path).unwrap(),
        }
    }
    text
}

/// A connection below the client, for what no client of ours would do.
pub async fn channel(address: &str) -> tonic::transport::Channel {
    tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

/// A request that does not end.
pub fn without_end(path: &str, shown: &str) -> Request<Body> {
    let body = Full::new(Bytes::from_static(b"\0")).with_trailers(std::future::pending());
    Request::post(format!("http://manager{path}"))
        .header("content-type", "application/grpc")
        .header("authorization", shown)
        .body(Body::new(body))
        .unwrap()
}

/// The answer to a call whose request does not end, long before the manager would stop listening to one that is proved.
pub async fn call_without_end(address: &str, method: &str, shown: &str) -> Response<Body> {
    let call = channel(address).await.oneshot(without_end(&format!("/penstock.v1.{method}"), shown));
    tokio::time::timeout(limits::PROOF_LIFE / 2, call).await.expect("it waits for the rest").unwrap()
}

/// Both nonces of a call, as they stand in its header: the manager's, which anyone may ask for, and the caller's.
pub async fn nonces(address: &str, prover: proto::Prover, job: &str) -> String {
    let asked = proto::ChallengeRequest { nonce: vec![7; 32], prover: prover.into(), job: job.to_owned() };
    let mut client = proto::proofs_client::ProofsClient::new(channel(address).await);
    let reply = client.challenge(asked).await.unwrap().into_inner();
    format!("{} {}", secret::hex(&reply.nonce), secret::hex(&[7; 32]))
}

/// The same for a worker, whose calls prove its job's secret.
pub async fn worker(address: &str, job: &str, secret: &Secret) -> Proving {
    Proving::new(channel(address).await, Prover::Worker { job: job.to_owned() }, *secret)
}

/// The same for a server, whose calls prove the token.
pub async fn server(address: &str, token: &Secret) -> Proving {
    Proving::new(channel(address).await, Prover::Server, *token)
}
