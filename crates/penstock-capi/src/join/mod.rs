//! How a process finds the servers of its job, as `penstock.init()` does in Python. [`penstock_join::way`] says which way it goes;
//! here is what a C program does on it.
//!
//! | way | then |
//! |---|---|
//! | servers | it joins them |
//! | manager | it asks the manager for them ([`manager`]) |
//! | rendezvous | the processes meet there: the first of each host carries a server ([`by_tcp`]) |
//! | launcher | they meet on this host: rank 0 carries a server ([`by_file`]) |
//! | alone | it has a server inside |

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
use penstock_join::launcher::{Environment, Launcher, Place};
use penstock_join::way::{self, Way, way};
use std::io::Write as _;
use std::time::Duration;

/// What says rank and size where the program does.
pub(crate) const OPTIONS: &str = "penstock_init_with()";

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

/// What a program says of its job itself, and its options: names and values.
#[derive(Default)]
pub(crate) struct Given<'a> {
    pub(crate) said: way::Given<'a>,
    pub(crate) options: Vec<(&'a str, &'a str)>,
}

/// Joins the job that this process was started for, or that it names; alone, embeds a server.
pub(crate) fn join(given: &Given<'_>) -> Result<Joined, JoinError> {
    check_names()?;
    let outer = |name: &str| std::env::var(name).ok();
    let set = |name: &str| given.said.over(&Environment(&outer), name);
    let environment = Environment(&set);
    let options = Options::load(given.options.iter().copied()).map_err(penstock::worker::Error::from)?;
    let (job, carried) = match way(&given.said, &environment)? {
        Way::Servers { servers, secret, place: Place { rank, size, .. } } => {
            let (servers, job) = (endpoints(&servers)?, environment.job());
            (Job::connect(&Membership { servers, job, secret, rank, size }, options)?, None)
        }
        Way::Manager { address, secret, place } => {
            (manager::join(&environment, &address, secret, place.as_ref(), &given.options)?, None)
        }
        Way::Rendezvous { at, secret, place } => by_tcp::join(&environment, secret, &place, &at, options)?,
        Way::Launcher(place) => join_on_this_host(&environment, &place, options)?,
        Way::Alone { .. } => (Job::embedded(options)?, None),
    };
    Ok(Joined { job, carried })
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

fn endpoints(servers: &[String]) -> Result<Vec<Endpoint>, JoinError> {
    let servers = servers.iter().map(|server| server.parse());
    servers.collect::<Result<_, _>>().map_err(|what| JoinError::BadServer { what })
}

/// The processes that a launcher started find each other, if all are on this host.
fn join_on_this_host(
    environment: &Environment<'_>,
    place: &Place,
    options: Options,
) -> Result<(Job, Option<Server>), JoinError> {
    let &Place { launcher, size, announced_by, .. } = place;
    if launcher == Launcher::Penstock {
        return Err(JoinError::NoServers { size });
    }
    if environment.on_several_hosts(place) {
        return Err(JoinError::SeveralHosts { size, announced_by });
    }
    by_file::join(environment, place, options)
}
