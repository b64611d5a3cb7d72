//! A job that a manager keeps: it names the servers, and gives out ranks where no launcher did.

use super::{JoinError, endpoints};
use penstock::options::{Options, Security, TABLE};
use penstock::worker::{Job, Membership};
use penstock_control::client::{Client, Target, Worker};
use penstock_fabric::net::quiet::quietly;
use penstock_join::launcher::{Environment, Place};
use penstock_join::way::options_under_manager;
use penstock_proto::message::Secret;

/// Asks the manager at `address` for the environment's job, and joins it.
pub(super) fn join(
    environment: &Environment<'_>,
    address: &str,
    secret: Secret,
    place: Option<&Place>,
    given: &[(&str, &str)],
) -> Result<Job, JoinError> {
    let (job, given) = (environment.job(), given.iter().copied());
    let options = load(given.clone())?;
    let insecure = options.security == Security::Insecure;
    let client = Client::new(Target { ca: options.ca.clone(), insecure, ..Target::new(address) })?;
    let (rank, size) = (place.map(|place| place.rank), place.map(|place| place.size));
    let worker = Worker { rank, size, host: penstock::host::id() };
    // The client writes on this thread, which is the program's.
    let found = quietly(|| client.connect(&job, &secret, &worker, options.deadline))?;

    let says = |name: &str| TABLE.iter().any(|row| row.name == name && environment.get(row.env).is_some());
    let of_job = found.settings.iter().map(|(name, value)| (&name[..], &value[..]));
    let options = load(options_under_manager(of_job, given, says))?;
    let servers = endpoints(&found.servers)?;
    let membership = Membership { servers, job, secret, rank: found.rank, size: found.size };
    Ok(Job::connect(&membership, options)?)
}

fn load<'a>(given: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Options, JoinError> {
    Ok(Options::load(given).map_err(penstock::worker::Error::from)?)
}
