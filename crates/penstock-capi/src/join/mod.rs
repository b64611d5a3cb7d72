//! How a process finds the servers of its job, as `penstock.init()` does in Python.
//!
//! | the environment says | then |
//! |---|---|
//! | PENSTOCK_SERVERS (`penstock run`, or by hand) | those servers |
//! | PENSTOCK_MANAGER, PENSTOCK_JOB and PENSTOCK_SECRET | the servers that the manager names ([`manager`]) |
//! | PENSTOCK_RENDEZVOUS | they meet there: the first of each host carries a server ([`by_tcp`]) |
//! | a launcher started several processes on this host | they meet: rank 0 carries a server ([`by_file`]) |
//! | nothing | this process is alone, with a server inside |

mod by_file;
mod by_tcp;
mod carried;
mod error;
mod manager;

pub(crate) use error::JoinError;

use penstock::environment::strays;
use penstock::options::Options;
use penstock::server::Server;
use penstock::worker::{Error, Job, Membership};
use penstock_fabric::net::endpoint::Endpoint;
use penstock_join::launcher::{BadVariable, Environment, Launcher, Place};
use std::io::Write as _;
use std::time::Duration;

/// What says rank and size where the program does.
const OPTIONS: &str = "penstock_init_with()";

/// How often a worker that carries the server looks whether the job has ended, should a wake-up be lost.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A job that this process has joined.
pub(crate) struct Joined {
    pub(crate) job: Job,
    /// The server that this process carries for the others.
    carried: Option<Server>,
}

impl Joined {
    /// Leaves, within the time; a worker that carries the server then stays until the job has ended for all.
    pub(crate) fn leave(self, failed: Option<String>, wait: Option<Duration>) -> Result<(), Error> {
        let left = match failed {
            None => self.job.leave(wait),
            Some(what) => {
                self.job.fail(&what);
                Ok(())
            }
        };
        if let Some(server) = self.carried {
            while server.wait(LOOK_EVERY).is_none() {}
        }
        left
    }
}

/// What a program says of its job itself; what it leaves open, the environment says.
#[derive(Default)]
pub(crate) struct Given<'a> {
    pub(crate) job: Option<&'a str>,
    pub(crate) secret: Option<&'a str>,
    /// Endpoint strings, in the servers' order.
    pub(crate) servers: Vec<&'a str>,
    /// Rank and size.
    pub(crate) place: Option<(u32, u32)>,
    /// Names and values.
    pub(crate) options: Vec<(&'a str, &'a str)>,
}

impl Given<'_> {
    /// A variable, as if the environment had it.
    fn get(&self, name: &str) -> Option<String> {
        match name {
            "PENSTOCK_JOB" if self.job.is_some() => self.job.map(str::to_owned),
            "PENSTOCK_SECRET" if self.secret.is_some() => self.secret.map(str::to_owned),
            "PENSTOCK_SERVERS" if !self.servers.is_empty() => Some(self.servers.join(",")),
            // The environment's servers were started for the environment's job, and its processes meet for it.
            "PENSTOCK_SERVERS" | "PENSTOCK_RENDEZVOUS" if self.job.is_some_and(|job| job != outer_job()) => {
                None
            }
            _ => std::env::var(name).ok(),
        }
    }
}

/// The name of the job that the environment speaks of.
fn outer_job() -> String {
    Environment(&|name| std::env::var(name).ok()).job()
}

/// Joins the job that this process was started for, or that it names; alone, embeds a server.
pub(crate) fn join(given: &Given<'_>) -> Result<Joined, JoinError> {
    check_names()?;
    let set = |name: &str| given.get(name);
    let environment = Environment(&set);
    let options = Options::load(given.options.iter().copied()).map_err(penstock::worker::Error::from)?;
    let place = match given.place {
        Some((rank, size)) if rank >= size => {
            return Err(BadVariable::OutOfSize { rank, size, announced_by: OPTIONS }.into());
        }
        Some((rank, size)) => {
            // The launcher of the processes still says where they meet.
            let launcher = environment.place().ok().flatten().map_or(Launcher::Hand, |place| place.launcher);
            let launcher = if launcher == Launcher::Penstock { Launcher::Hand } else { launcher };
            Some(Place { launcher, rank, size, announced_by: OPTIONS })
        }
        None => environment.place()?,
    };
    let servers = environment.servers();
    if !servers.is_empty() {
        let job = by_names(&environment, &servers, place, options)?;
        return Ok(Joined { job, carried: None });
    }
    if let Some(address) = environment.get("PENSTOCK_MANAGER") {
        let job = manager::join(&environment, &address, place.as_ref(), &given.options)?;
        return Ok(Joined { job, carried: None });
    }
    match place {
        Some(place) if place.size > 1 => find_each_other(&environment, &place, options),
        Some(_) if given.place.is_some() => Ok(Joined { job: Job::embedded(options)?, carried: None }),
        _ => match environment.several_without_step() {
            Some(tasks) => Err(JoinError::NoStep { tasks }),
            None => {
                // A program that says it is alone may be told where others meet.
                if place.is_none() {
                    environment.refuse_rendezvous_alone()?;
                }
                Ok(Joined { job: Job::embedded(options)?, carried: None })
            }
        },
    }
}

/// Refuses variables that are nearly ours, and says on stderr which others are not read: another program may use the prefix too.
fn check_names() -> Result<(), JoinError> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for stray in strays(names) {
        if stray.meant.is_some() {
            return Err(JoinError::Misspelled(stray));
        }
        let _ = writeln!(std::io::stderr(), "penstock: {stray}");
    }
    Ok(())
}

/// The environment names the servers.
fn by_names(
    environment: &Environment<'_>,
    servers: &[String],
    place: Option<Place>,
    options: Options,
) -> Result<Job, JoinError> {
    let secret =
        environment.secret()?.ok_or(JoinError::SecretMissing { announced_by: "PENSTOCK_SERVERS" })?;
    let missing =
        || ["PENSTOCK_RANK", "PENSTOCK_SIZE"].into_iter().find(|name| environment.get(name).is_none());
    let place =
        place.ok_or_else(|| JoinError::PlaceMissing { name: missing().unwrap_or("PENSTOCK_RANK") })?;
    let servers = endpoints(servers)?;
    let Place { rank, size, .. } = place;
    Ok(Job::connect(&Membership { servers, job: environment.job(), secret, rank, size }, options)?)
}

fn endpoints(servers: &[String]) -> Result<Vec<Endpoint>, JoinError> {
    let servers = servers.iter().map(|server| server.parse());
    servers.collect::<Result<_, _>>().map_err(|what| JoinError::BadServer { what })
}

/// The processes of the job find each other.
fn find_each_other(
    environment: &Environment<'_>,
    place: &Place,
    options: Options,
) -> Result<Joined, JoinError> {
    if let Some(at) = environment.get("PENSTOCK_RENDEZVOUS") {
        let (job, carried) = by_tcp::meet(environment, place, &at, options)?;
        return Ok(Joined { job, carried });
    }
    let &Place { launcher, size, announced_by, .. } = place;
    if launcher == Launcher::Penstock {
        return Err(JoinError::NoServers { size });
    }
    if environment.on_several_hosts(place) {
        return Err(JoinError::SeveralHosts { size, announced_by });
    }
    let (job, carried) = by_file::meet(environment, place, options)?;
    Ok(Joined { job, carried })
}
