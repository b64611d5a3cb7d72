//! What administrators and workers call: blocking functions, each with a deadline.

mod dial;
mod model;
mod plain;
mod proving;

pub use dial::Target;
pub(crate) use dial::{DIAL, Dialer};
pub use model::{Balance, Created, Job, JobServer, JobSpec, Listing, Place, Server};
pub use proving::Proving;

use crate::error::{Error, Reason, Refusal};
use crate::limits;
use crate::proof::Prover;
use crate::proto::admin_client::AdminClient;
use crate::proto::jobs_client::JobsClient;
use crate::proto::{
    ConnectRequest, CreateJobRequest, DeleteJobRequest, ListJobsRequest, ShowJobReply, ShowJobRequest,
};
use crate::seal::Seal;
use crate::secret::{hex, random};
use penstock_proto::message::Secret;
use penstock_proto::redial::{Next, Pauses, Redial};
use plain::Plain;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// How long a call waits for its answer, unless told otherwise.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// How often a wait looks whether it is interrupted.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Pauses between attempts to reach a manager that is away.
const RETRY: Pauses = Pauses::even(Duration::from_millis(100));

/// Asked now and then by every wait: whether the caller wants it to end.
pub type Interrupted = Arc<dyn Fn() -> bool + Send + Sync>;

/// What a worker knows of itself when it connects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Worker {
    /// The rank that a launcher gave it.
    pub rank: Option<u32>,
    /// The number of workers that a launcher started.
    pub size: Option<u32>,
    /// Identity of its host.
    pub host: String,
}

/// Talks to one manager. Each call makes a connection of its own.
#[derive(Clone)]
pub struct Client {
    dialer: Dialer,
    timeout: Duration,
    interrupted: Interrupted,
    /// Identity of this worker: a worker that calls again with it gets the rank that it has.
    worker: String,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("address", &self.dialer.name()).finish_non_exhaustive()
    }
}

impl Client {
    /// Reads the target; does not connect yet.
    pub fn new(target: Target) -> Result<Self, Error> {
        Ok(Self {
            dialer: Dialer::new(&target)?,
            timeout: TIMEOUT,
            interrupted: Arc::new(|| false),
            worker: hex(&random::<16>()),
        })
    }

    /// With waits that end when `interrupted` says so.
    #[must_use]
    pub fn with_interrupt(self, interrupted: Interrupted) -> Self {
        Self { interrupted, ..self }
    }

    /// Creates a job; the reply carries its secret.
    pub fn create_job(&self, admin: &Secret, spec: &JobSpec) -> Result<Created, Error> {
        let sent = CreateJobRequest { spec: Some(spec.into()) };
        let (reply, seal) =
            self.admin(admin, sent, async |mut client, request| client.create_job(request).await)?;
        let opened = seal.open(&spec.name, &reply.secret);
        let secret = opened.ok_or_else(|| self.strange("a created job's secret that cannot be opened"))?;
        Ok(Created::read(reply, secret))
    }

    /// All jobs and servers.
    pub fn list_jobs(&self, admin: &Secret) -> Result<Listing, Error> {
        let sent = ListJobsRequest {};
        self.admin(admin, sent, async |mut client, request| client.list_jobs(request).await)
            .map(|(reply, _)| Listing::from(reply))
    }

    /// One job.
    pub fn show_job(&self, admin: &Secret, name: &str) -> Result<Job, Error> {
        self.show(admin, name, false).map(|(reply, _)| reply.job.unwrap_or_default().into())
    }

    /// One job's secret.
    pub fn reveal_secret(&self, admin: &Secret, name: &str) -> Result<Secret, Error> {
        let (reply, seal) = self.show(admin, name, true)?;
        seal.open(name, &reply.secret).ok_or_else(|| self.strange("a job's secret that cannot be opened"))
    }

    fn show(&self, admin: &Secret, name: &str, reveal: bool) -> Result<(ShowJobReply, Seal), Error> {
        let sent = ShowJobRequest { name: name.to_owned(), reveal };
        self.admin(admin, sent, async |mut client, request| client.show_job(request).await)
    }

    /// Deletes a job.
    pub fn delete_job(&self, admin: &Secret, name: &str) -> Result<(), Error> {
        let sent = DeleteJobRequest { name: name.to_owned() };
        self.admin(admin, sent, async |mut client, request| client.delete_job(request).await).map(|_| ())
    }

    /// Joins worker and servers: waits until all servers of the job host it, also through a restart of the manager.
    ///
    /// Called again by the same client, it gives the same rank.
    pub fn connect(
        &self,
        job: &str,
        secret: &Secret,
        worker: &Worker,
        patience: Duration,
    ) -> Result<Place, Error> {
        let started = Instant::now();
        self.block(async {
            let mut redial = Redial::until(RETRY, patience);
            loop {
                let left = patience.saturating_sub(started.elapsed());
                let wait = left.min(limits::CONNECT_WAIT);
                let sent = ConnectRequest {
                    worker: self.worker.clone(),
                    rank: worker.rank,
                    size: worker.size.unwrap_or(0),
                    host: worker.host.clone(),
                    wait_milliseconds: u32::try_from(wait.as_millis()).unwrap_or(u32::MAX),
                };
                // The manager answers after `wait`; what is added is for the way there and back.
                let call = async |channel, request| {
                    let prover = Prover::Worker { job: job.to_owned() };
                    JobsClient::new(Proving::new(channel, prover, *secret)).connect(request).await
                };
                let error = match self.call(sent, wait + self.timeout.min(DIAL), call).await {
                    Ok(place) => return Ok(place.into_inner().into()),
                    Err(error) => error,
                };
                if error.is_passing() && another_is_due(&mut redial, started).await {
                    continue;
                }
                return Err(match error {
                    Error::Refused(Refusal { reason: Reason::NotReady, message }) => {
                        Error::NotReady { message, waited: started.elapsed() }
                    }
                    error => error,
                });
            }
        })
    }

    /// Whether the manager serves (grpc.health.v1).
    pub fn health(&self) -> Result<bool, Error> {
        let check = HealthCheckRequest { service: String::new() };
        let call = async |channel, request| HealthClient::new(Plain(channel)).check(request).await;
        let reply = self.block(self.call(check, self.timeout, call))?;
        Ok(reply.into_inner().status == i32::from(ServingStatus::Serving))
    }

    fn admin<Q, R>(
        &self,
        token: &Secret,
        sent: Q,
        call: impl AsyncFnOnce(AdminClient<Proving>, Request<Q>) -> Result<Response<R>, Status>,
    ) -> Result<(R, Seal), Error> {
        let with = async |channel, request| {
            let channel = Proving::new(channel, Prover::Admin, *token);
            let client = AdminClient::new(channel).max_decoding_message_size(limits::REPLY_BYTES);
            call(client, request).await
        };
        self.block(self.call(sent, self.timeout, with)).map(open)
    }

    async fn call<Q, R>(
        &self,
        sent: Q,
        timeout: Duration,
        call: impl AsyncFnOnce(Channel, Request<Q>) -> Result<Response<R>, Status>,
    ) -> Result<Response<R>, Error> {
        let started = Instant::now();
        let address = self.dialer.name();
        let attempt = async {
            let channel = self.dialer.dial().await?;
            let reply = call(channel, request(sent, timeout)).await;
            reply.map_err(|status| Error::from_status(&status, &address, started.elapsed()))
        };
        match tokio::time::timeout(timeout, attempt).await {
            Ok(reply) => reply,
            Err(_) => Err(Error::Unanswered { address, waited: timeout }),
        }
    }

    /// Runs `work` on this thread; ends it when the caller is interrupted.
    fn block<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| self.strange(&error.to_string()))?;
        let result = runtime.block_on(async {
            let mut look = tokio::time::interval(LOOK_EVERY);
            let mut work = std::pin::pin!(work);
            loop {
                tokio::select! {
                    result = &mut work => return result,
                    _ = look.tick() => if (self.interrupted)() {
                        return Err(Error::Interrupted);
                    },
                }
            }
        });
        // Looking a name up may hang in the system for longer than any caller waits.
        runtime.shutdown_background();
        result
    }

    fn strange(&self, reason: &str) -> Error {
        Error::Protocol { address: self.dialer.name(), reason: reason.to_owned() }
    }
}

/// An attempt, of those that began at `started`, has failed: waits until another is due; `false` if none is, since the time is over.
pub(crate) async fn another_is_due(redial: &mut Redial, started: Instant) -> bool {
    redial.failed(started.elapsed());
    loop {
        match redial.next(started.elapsed()) {
            Next::Attempt => return true,
            Next::Pause(left) => tokio::time::sleep(left).await,
            Next::TooLate => return false,
        }
    }
}

/// A request with its deadline, which the manager keeps too.
pub(crate) fn request<Q>(sent: Q, timeout: Duration) -> Request<Q> {
    let mut request = Request::new(sent);
    request.set_timeout(timeout);
    request
}

/// The reply to a call that was proved, and what opens the secrets in it.
pub(crate) fn open<R>(reply: Response<R>) -> (R, Seal) {
    let seal = *reply.extensions().get::<Seal>().expect("every reply on a proving channel has one");
    (reply.into_inner(), seal)
}
