//! A server's side of the control plane: it makes itself known, and hosts what the manager says.
//!
//! The agent compares what the manager wants hosted with what is: it creates what is missing and drops what is gone.
//! While the manager is away everything goes on as it is; when it is back the agent registers again. What a manager with
//! another state directory gave it (another identity) is not dropped: it stays until it has ended.

use crate::client::{DIAL, Dialer, Proving, Target, another_is_due, open, request};
use crate::error::{Error, Reason};
use crate::limits;
use crate::proof::Prover;
use crate::proto;
use crate::proto::servers_client::ServersClient;
use crate::seal::Seal;
use crate::server_key::ServerKey;
use crate::settings;
use penstock_proto::message::Secret;
use penstock_proto::redial::{Pauses, Redial};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tonic::Response;

/// Pauses between attempts to reach a manager that is away.
const RETRY: Pauses = Pauses::doubling(Duration::from_millis(100), Duration::from_secs(2));
/// How often the host is asked whether a job has changed, while the manager holds back its reply.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Time for saying goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

/// What hosts jobs. It is called on the agent's thread, and heartbeats wait for it: well below a lease.
pub trait Host: Send + Sync {
    /// The endpoint string that workers are given.
    fn endpoint(&self) -> String;
    /// Bytes that its jobs may take together.
    fn memory(&self) -> u64;
    /// Starts hosting a job. `Err` says why it cannot; it is asked again at the next heartbeat.
    fn create(&self, job: HostedJob) -> Result<(), String>;
    /// Stops hosting a job, whether its workers are done or not.
    fn delete(&self, name: &str);
    /// How its jobs stand.
    fn status(&self) -> Vec<HostedStatus>;
}

/// A job to host.
#[derive(Debug, Clone, PartialEq)]
pub struct HostedJob {
    /// Its name.
    pub name: String,
    /// Its secret.
    pub secret: Secret,
    /// This server's number among the job's.
    pub index: u32,
    /// Servers of the job.
    pub servers: u32,
    /// Workers of the job.
    pub workers: u32,
    /// Its settings, by the names of the table of options.
    pub options: Vec<(String, String)>,
    /// Its bandwidth share, above 0 up to 1.
    pub share: f64,
    /// Bytes that it may take here.
    pub memory: u64,
}

/// How a job stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostedStatus {
    /// Its name.
    pub name: String,
    /// Workers that have joined.
    pub workers_joined: u32,
    /// Bytes taken.
    pub memory_used: u64,
    /// Whether it has ended, and why it failed if it did.
    pub ended: Option<Result<(), String>>,
}

/// A job that this agent was given.
#[derive(Debug, Clone)]
struct Held {
    /// Which of the jobs of that name.
    id: String,
    /// Which manager gave it.
    manager: String,
    /// Why the host could not create it.
    refused: Option<String>,
}

type Ended = Arc<(Mutex<Option<Result<(), Error>>>, Condvar)>;

/// A running agent; it says goodbye when stopped or dropped.
#[derive(Debug)]
pub struct Agent {
    stop: watch::Sender<bool>,
    ended: Ended,
    thread: Option<JoinHandle<()>>,
}

impl Agent {
    /// Starts talking to the manager, on a thread of its own. It waits for a manager that is away, without end.
    pub fn start(target: &Target, token: Secret, host: Arc<dyn Host>) -> Result<Self, Error> {
        let dialer = Dialer::new(target)?;
        let (stop, stopped) = watch::channel(false);
        let ended = Ended::default();
        let told = Arc::clone(&ended);
        let key = ServerKey::draw();
        let session = Session {
            dialer,
            token,
            host,
            id: key.identity(),
            key,
            held: BTreeMap::new(),
            blocked: Vec::new(),
            manager: None,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let system = |error: std::io::Error| Error::Unreachable {
            address: target.address.clone(),
            reason: error.to_string(),
        };
        let runtime = runtime.map_err(system)?;
        let work = move || {
            let how = runtime.block_on(session.run(stopped));
            runtime.shutdown_background();
            let (slot, waiting) = &*told;
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(how);
            waiting.notify_all();
        };
        let thread =
            std::thread::Builder::new().name("penstock-agent".to_owned()).spawn(work).map_err(system)?;
        Ok(Self { stop, ended, thread: Some(thread) })
    }

    /// Waits until the agent has ended, at most `timeout`: stopped, or refused by the manager from the start.
    pub fn wait(&self, timeout: Duration) -> Option<Result<(), Error>> {
        let (ended, told) = &*self.ended;
        let ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
        let (ended, _) = told
            .wait_timeout_while(ended, timeout, |ended| ended.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        ended.clone()
    }

    /// Says goodbye and ends. The host's jobs are left as they are.
    pub fn stop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            // A panic has been reported where it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Runs an agent until `interrupted` says so, or until the manager refuses it from the start.
pub fn run(
    target: &Target,
    token: Secret,
    host: Arc<dyn Host>,
    interrupted: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let agent = Agent::start(target, token, host)?;
    loop {
        if let Some(how) = agent.wait(LOOK_EVERY) {
            return how;
        }
        if interrupted() {
            return Err(Error::Interrupted);
        }
    }
}

struct Session {
    dialer: Dialer,
    token: Secret,
    host: Arc<dyn Host>,
    /// Identity of this server, and the key with which it proves that it is its own.
    id: String,
    key: ServerKey,
    held: BTreeMap<String, Held>,
    /// What cannot be hosted while another manager's job of the same name runs here: name and id.
    blocked: Vec<(String, String)>,
    /// Identity of the manager that it registered with last.
    manager: Option<String>,
}

impl Session {
    async fn run(mut self, mut stopped: watch::Receiver<bool>) -> Result<(), Error> {
        let (mut redial, started) = (Redial::new(RETRY), Instant::now());
        loop {
            let error = tokio::select! {
                error = self.attend(&mut redial) => error,
                _ = stopped.wait_for(|&stopped| stopped) => {
                    let _ = tokio::time::timeout(GOODBYE, self.leave()).await;
                    return Ok(());
                }
            };
            // An error that waiting cannot mend, before anything has worked, is for the user to put right.
            if self.manager.is_none() && !error.is_passing() {
                return Err(error);
            }
            // Once, until it has answered.
            if redial.is_fresh() {
                tracing::warn!(%error, "the manager does not answer; this server keeps asking");
            }
            tokio::select! {
                _ = another_is_due(&mut redial, started) => {}
                _ = stopped.wait_for(|&stopped| stopped) => return Ok(()),
            }
        }
    }

    /// Registers and heartbeats until something fails.
    async fn attend(&mut self, redial: &mut Redial) -> Error {
        match self.try_attend(redial).await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    async fn try_attend(&mut self, redial: &mut Redial) -> Result<std::convert::Infallible, Error> {
        let mut client = self.client().await?;
        loop {
            let registered = self.register(&mut client).await?;
            redial.begin_anew();
            match self.heartbeats(&mut client, &registered).await {
                // The manager was restarted, or has thought this server lost.
                Error::Refused(refusal) if refusal.reason == Reason::UnknownServer => {}
                error => return Err(error),
            }
        }
    }

    /// Its calls prove the token and the key.
    async fn client(&self) -> Result<ServersClient<Proving>, Error> {
        let channel =
            Proving::new(self.dialer.dial().await?, Prover::Server, self.token).signing(self.key.clone());
        Ok(ServersClient::new(channel).max_decoding_message_size(limits::REPLY_BYTES))
    }

    async fn register(&mut self, client: &mut ServersClient<Proving>) -> Result<proto::RegisterReply, Error> {
        let sent = proto::RegisterRequest {
            id: self.id.clone(),
            endpoint: self.host.endpoint(),
            memory: self.host.memory(),
        };
        let (reply, _) = self.settle(client.register(request(sent, DIAL)), DIAL).await?;
        self.manager = Some(reply.manager.clone());
        Ok(reply)
    }

    async fn heartbeats(
        &mut self,
        client: &mut ServersClient<Proving>,
        registered: &proto::RegisterReply,
    ) -> Error {
        let held_back = Duration::from_millis(registered.heartbeat_milliseconds.into());
        loop {
            let said = self.report(&registered.manager);
            let sent = proto::HeartbeatRequest { id: self.id.clone(), hosted: said.clone() };
            let timeout = held_back + DIAL;
            let call = self.settle(client.heartbeat(request(sent, timeout)), timeout);
            let (wanted, seal) = tokio::select! {
                reply = call => match reply {
                    Ok((reply, seal)) => (reply.jobs, seal),
                    Err(error) => return error,
                },
                // A client that waits for a job to start or to end should not wait for the next heartbeat.
                () = self.news(&registered.manager, &said) => continue,
            };
            self.reconcile(&registered.manager, wanted, &seal);
        }
    }

    /// Waits until a job has started or ended since `said`.
    async fn news(&self, manager: &str, said: &[proto::HostedStatus]) {
        let gist = |all: &[proto::HostedStatus]| -> Vec<_> {
            all.iter().map(|one| (one.id.clone(), one.workers_joined, one.ended)).collect()
        };
        let before = gist(said);
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if gist(&self.report(manager)) != before {
                return;
            }
        }
    }

    /// How the jobs of this manager stand.
    fn report(&self, manager: &str) -> Vec<proto::HostedStatus> {
        let statuses: BTreeMap<_, _> =
            self.host.status().into_iter().map(|status| (status.name.clone(), status)).collect();
        let own = self.held.iter().filter(|(_, held)| held.manager == manager);
        let blocked = self.blocked.iter().map(|(name, id)| proto::HostedStatus {
            name: name.clone(),
            id: id.clone(),
            refused: "a job of this name that another manager created still runs here".to_owned(),
            ..proto::HostedStatus::default()
        });
        own.map(|(name, held)| {
            let status = statuses.get(name).filter(|_| held.refused.is_none());
            let ended = status.and_then(|status| status.ended.as_ref());
            proto::HostedStatus {
                name: name.clone(),
                id: held.id.clone(),
                workers_joined: status.map_or(0, |status| status.workers_joined),
                memory_used: status.map_or(0, |status| status.memory_used),
                ended: ended.is_some(),
                failure: ended.and_then(|how| how.as_ref().err()).cloned().unwrap_or_default(),
                refused: held.refused.clone().unwrap_or_default(),
            }
        })
        .chain(blocked)
        .collect()
    }

    /// Makes what is hosted what `manager` wants hosted.
    fn reconcile(&mut self, manager: &str, wanted: Vec<proto::HostedJob>, seal: &Seal) {
        let keep = |name: &str, held: &Held| {
            held.manager != manager || wanted.iter().any(|job| job.name == name && job.id == held.id)
        };
        let gone: Vec<_> =
            self.held.iter().filter(|(name, held)| !keep(name, held)).map(|(name, _)| name.clone()).collect();
        for name in gone.into_iter().chain(self.orphans_that_ended(manager)) {
            let held = self.held.remove(&name).expect("listed from there");
            if held.refused.is_none() {
                tracing::info!(job = name, "dropped");
                self.host.delete(&name);
            }
        }
        self.blocked.clear();
        for job in wanted {
            match self.held.get(&job.name) {
                Some(held) if held.manager != manager => self.blocked.push((job.name, job.id)),
                Some(held) if held.refused.is_none() => {}
                _ => self.create(manager, job, seal),
            }
        }
    }

    /// Jobs of other managers that need no host any more.
    fn orphans_that_ended(&self, manager: &str) -> Vec<String> {
        let ended = self.host.status().into_iter().filter(|status| status.ended.is_some());
        let orphan = |name: &String| self.held.get(name).is_some_and(|held| held.manager != manager);
        ended.map(|status| status.name).filter(orphan).collect()
    }

    fn create(&mut self, manager: &str, job: proto::HostedJob, seal: &Seal) {
        let (name, id) = (job.name.clone(), job.id.clone());
        let made = read(job, seal).and_then(|job| self.host.create(job));
        match &made {
            Ok(()) => tracing::info!(job = name, "hosted"),
            Err(reason) => tracing::warn!(job = name, reason, "cannot be hosted"),
        }
        self.held.insert(name, Held { id, manager: manager.to_owned(), refused: made.err() });
    }

    async fn leave(&self) -> Result<(), Error> {
        let sent = proto::LeaveRequest { id: self.id.clone() };
        let mut client = self.client().await?;
        self.settle(client.leave(request(sent, GOODBYE)), GOODBYE).await.map(|_| ())
    }

    async fn settle<R>(
        &self,
        call: impl Future<Output = Result<Response<R>, tonic::Status>>,
        timeout: Duration,
    ) -> Result<(R, Seal), Error> {
        let address = self.dialer.name();
        match tokio::time::timeout(timeout, call).await {
            Ok(Ok(reply)) => Ok(open(reply)),
            Ok(Err(status)) => Err(Error::from_status(&status, &address, timeout)),
            Err(_) => Err(Error::Unanswered { address, waited: timeout }),
        }
    }
}

fn read(job: proto::HostedJob, seal: &Seal) -> Result<HostedJob, String> {
    let secret =
        seal.open(&job.name, &job.secret).ok_or("the manager sent a secret that cannot be opened")?;
    Ok(HostedJob {
        name: job.name,
        secret,
        index: job.index,
        servers: job.servers,
        workers: job.workers,
        options: settings::of_a_job(job.settings),
        share: job.share,
        memory: job.memory,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::Nonces;

    #[test]
    fn a_hosted_job_does_not_show_its_secret() {
        let seal = Seal::new(&Secret([1; 32]), &Nonces { client: [2; 32], manager: [3; 32] });
        let secret = seal.close("a", &Secret([0x5a; 32]));
        let job = proto::HostedJob { name: "a".to_owned(), secret, ..Default::default() };
        let clear = proto::HostedJob { secret: vec![0x5a; 32], ..job.clone() };
        let shown = format!("{clear:?}{:?}", read(job, &seal).unwrap());
        assert!(!shown.contains("90") && !shown.contains("5a"), "{shown}");
    }
}
