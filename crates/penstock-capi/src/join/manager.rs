//! A job that a manager keeps: it names the servers, and gives out ranks where no launcher did.

use super::{JoinError, endpoints};
use penstock::options::{Options, Security, TABLE};
use penstock::worker::{Job, Membership};
use penstock_control::client::{Client, Target, Worker};
use penstock_fabric::net::quiet::quietly;
use penstock_join::launcher::{Environment, Place};

/// Asks the manager at `address` for the job that PENSTOCK_JOB and PENSTOCK_SECRET name, and joins it.
pub(super) fn join(
    environment: &Environment<'_>,
    address: &str,
    place: Option<&Place>,
    given: &[(&str, &str)],
) -> Result<Job, JoinError> {
    let job = environment.get("PENSTOCK_JOB").ok_or(JoinError::JobMissing)?;
    let missing = JoinError::SecretMissing { announced_by: "PENSTOCK_MANAGER" };
    let secret = environment.secret()?.ok_or(missing)?;
    let options = load(given.iter().copied())?;
    let insecure = options.security == Security::Insecure;
    let client = Client::new(Target { ca: options.ca.clone(), insecure, ..Target::new(address) })?;
    let (rank, size) = (place.map(|place| place.rank), place.map(|place| place.size));
    let worker = Worker { rank, size, host: penstock::host::id() };
    // The client writes on this thread, which is the program's.
    let found = quietly(|| client.connect(&job, &secret, &worker, options.deadline))?;

    // What the job was created with counts where this process says nothing.
    let silent = |name: &str| TABLE.iter().any(|row| row.name == name && environment.get(row.env).is_none());
    let settings = found.settings.iter().filter(|(name, _)| silent(name));
    let settings = settings.map(|(name, value)| (&name[..], &value[..]));
    // The CA is the manager's. A server proves itself by the job's secret, and may have made its certificate itself.
    let options = load(settings.chain(given.iter().copied()).chain([("ca", "")]))?;
    let servers = endpoints(&found.servers)?;
    let membership = Membership { servers, job, secret, rank: found.rank, size: found.size };
    Ok(Job::connect(&membership, options)?)
}

fn load<'a>(given: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Options, JoinError> {
    Ok(Options::load(given).map_err(penstock::worker::Error::from)?)
}
