//! Joining the servers of a job: by shared memory where they are on this host, else by the network.

use super::{Counters, Job};
use crate::options::{Options, Transport};
use crate::server::{Server, ServerConfig, StartError};
use crate::sockets::socket_of;
use crate::wait::Deadline;
use crate::wire::dial::Dialer;
use crate::wire::random;
use crate::worker::Error;
use crate::worker::fate::Fate;
use crate::worker::link::{Introduction, Link, Threshold};
use penstock_fabric::descriptors;
use penstock_fabric::net::endpoint::Endpoint;
use penstock_fabric::net::stream::Traffic;
use penstock_fabric::socket::Connection;
use penstock_proto::Rank;
use penstock_proto::error::Refusal;
use penstock_proto::handshake::Session;
use penstock_proto::message::{Departure, Secret};
use penstock_proto::redial::{Pauses, Redial};
use rustix::io::Errno;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Who this worker is, and where the servers are.
#[derive(Debug, Clone)]
pub struct Membership {
    /// Where the servers are, in the servers' order.
    pub servers: Vec<Endpoint>,
    /// The job's name.
    pub job: String,
    /// The job's secret.
    pub secret: Secret,
    /// This worker's number.
    pub rank: Rank,
    /// Workers of the job.
    pub size: u32,
}

impl Job {
    /// Joins the job whose servers listen on the sockets, waiting for them as long as the option `deadline` says.
    pub fn connect(membership: &Membership, options: Options) -> Result<Self, Error> {
        Self::connect_interruptibly(membership, options, None)
    }

    /// The same; `interrupt` is asked now and then whether to give up waiting, here and in every later wait.
    pub fn connect_interruptibly(
        membership: &Membership,
        options: Options,
        interrupt: Option<Box<dyn Fn() -> bool + Send + Sync>>,
    ) -> Result<Self, Error> {
        let fate = Arc::new(Fate::default());
        if let Some(interrupt) = interrupt {
            fate.on_interrupt(interrupt);
        }
        let Membership { secret, rank, size, .. } = *membership;
        let deadline = Deadline::new(options.deadline);
        let (job, threshold) = (membership.job.clone(), Threshold::new(&options));
        let who = Introduction { job, secret, session: session()?, rank, size, threshold };
        fate.expect_notes(membership.servers.iter().filter(|at| is_here(at)).filter_map(note).collect());
        let (mut links, counters) = (Vec::new(), Counters::default());
        let joining =
            Joining { who: &who, options: &options, fate: &fate, traffic: &counters.traffic, deadline };
        if let Err(error) = joining.join_all(&mut links, membership) {
            // The servers that have taken this worker in would otherwise report only that this worker failed, not why.
            let how = match (fate.failure(), &error) {
                (Some(failure), _) => Departure::Heard(failure),
                (None, Error::Failed(failure)) => Departure::Heard(failure.clone()),
                _ => Departure::Failed { what: format!("it could not join: {error}") },
            };
            fate.end();
            for link in links {
                link.bid_farewell(how.clone());
            }
            return Err(error);
        }
        fate.mark_joined();
        let membership = Some((membership.clone(), who.session));
        Ok(Self::new(links, fate, counters, &who, options, None, membership))
    }

    /// A job of one worker, with a server in this process.
    pub fn embedded(options: Options) -> Result<Self, Error> {
        let secret = random::bytes();
        let secret = secret.map_err(Error::system("make a secret"))?;
        let job = "embedded".to_owned();
        let (secret, threshold) = (Secret(secret), Threshold::new(&options));
        let who = Introduction { job, secret, session: session()?, rank: 0, size: 1, threshold };
        let config = ServerConfig {
            path: None,
            listen: Vec::new(),
            job: who.job.clone(),
            secret: who.secret,
            index: 0,
            servers: 1,
            workers: 1,
            options: options.clone(),
        };
        let server = Server::start(config)?;
        let connection = server.connect().map_err(Error::system("make a socket"))?;
        let fate = Arc::new(Fate::default());
        let link = Link::join(connection, &who, 0, &fate, Deadline::new(options.deadline))?;
        Ok(Self::new(vec![link], fate, Counters::default(), &who, options, Some(server), None))
    }
}

/// What identifies this process to the servers over reconnects.
fn session() -> Result<Session, Error> {
    random::bytes().map_err(Error::system("draw a session"))
}

/// What a worker joins servers with.
struct Joining<'a> {
    who: &'a Introduction,
    options: &'a Options,
    fate: &'a Arc<Fate>,
    traffic: &'a Arc<Traffic>,
    deadline: Deadline,
}

impl Joining<'_> {
    /// Joins the servers one by one; with an error `links` has those that were joined before.
    fn join_all(&self, links: &mut Vec<Link>, membership: &Membership) -> Result<(), Error> {
        for (endpoint, server) in membership.servers.iter().zip(0..) {
            links.push(self.join(endpoint, &membership.job, server)?);
        }
        let what = match links.first() {
            Some(first) if first.welcome.servers as usize == links.len() => return Ok(()),
            Some(first) => {
                let (servers, told) = (first.welcome.servers, links.len());
                format!("the job has {servers} servers, this worker was told of {told}")
            }
            None => "no server was named".to_owned(),
        };
        Err(Error::Protocol { server: 0, what })
    }

    /// Joins a server: by shared memory if it is on this host, else by the network.
    fn join(&self, endpoint: &Endpoint, job: &str, server: u32) -> Result<Link, Error> {
        let Self { who, options, fate, traffic, deadline } = *self;
        let here = is_here(endpoint);
        let forced = options.transport == Transport::Tcp && endpoint.tcp.is_some();
        let local = endpoint.unix.as_deref().filter(|_| here && !forced);
        let local = local.map(|path| socket_of(path, job));
        match (local.as_deref(), &endpoint.tcp) {
            (Some(path), None) => {
                let connection = reach(path, server, deadline, fate)?;
                self.join_here(path, connection, server)
            }
            // The server may be in a container that shares the network but not the file system.
            (Some(path), Some(_)) if let Ok(connection) = Connection::connect(path) => {
                self.join_here(path, connection, server)
            }
            (_, Some(address)) => {
                let dialer = Dialer::new(address.clone(), job, who.secret, options);
                let dialer = dialer.map_err(StartError::from)?.counting(traffic);
                Link::join_remote(dialer, &endpoint.also, who, server, fate, options, deadline)
            }
            (None, None) => {
                let what = "its socket is on another host, and it has no network address".to_owned();
                Err(Error::Protocol { server, what })
            }
        }
    }

    /// Joins a server of this host, again and again where it has no room to listen: many stand before it then, which may
    /// not be workers.
    fn join_here(&self, path: &Path, mut connection: Connection, server: u32) -> Result<Link, Error> {
        let Self { who, fate, deadline, .. } = *self;
        loop {
            match Link::join(connection, who, server, fate, deadline) {
                Err(Error::Refused(Refusal::Busy)) if !deadline.left().is_zero() => {
                    fate.look()?;
                    std::thread::sleep(BUSY.min(deadline.left()));
                    connection = reach(path, server, deadline, fate)?;
                }
                joined => return joined,
            }
        }
    }
}

/// Whether a server is on this host.
fn is_here(endpoint: &Endpoint) -> bool {
    endpoint.host.as_ref().is_none_or(|host| *host == crate::host::id())
}

/// Where the launcher notes which process is lost, for workers that no server tells.
fn note(endpoint: &Endpoint) -> Option<std::path::PathBuf> {
    endpoint.unix.as_deref().map(crate::notes::beside)
}

/// Pause before a server is asked again that had no room to listen.
const BUSY: Duration = Duration::from_millis(20);

/// Connects to a server that may not be up yet. There is no event to wait for: the path may not exist, nor its directory.
fn reach(path: &Path, server: u32, deadline: Deadline, fate: &Fate) -> Result<Connection, Error> {
    let pauses = Pauses::doubling(Duration::from_micros(500), Duration::from_millis(10));
    let redial = Redial::until(pauses, deadline.waited() + deadline.left());
    let late = |errno: Errno| {
        let (path, reason) = (path.display().to_string(), errno.to_string());
        Error::ConnectTimeout { server, path, reason, waited: deadline.waited() }
    };
    let attempt = || match Connection::connect(path) {
        Ok(connection) => Ok(ControlFlow::Break(connection)),
        Err(errno @ (Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN)) => Ok(ControlFlow::Continue(errno)),
        Err(errno) if descriptors::is_no_room(&errno.into()) => Err(Error::system("make a socket")(errno)),
        Err(errno) => Err(late(errno)),
    };
    let sleep = |pause| {
        // The wait for a later server fails at once if one that this worker has joined reports a failure.
        fate.look()?;
        std::thread::sleep(pause);
        Ok::<_, Error>(())
    };
    match redial.run(|| deadline.waited(), sleep, attempt)? {
        ControlFlow::Break(connection) => Ok(connection),
        ControlFlow::Continue(errno) => Err(late(errno)),
    }
}
