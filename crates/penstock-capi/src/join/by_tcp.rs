//! Processes that meet where PENSTOCK_RENDEZVOUS says, on one host or several, and whatever they are written in.
//!
//! Two rounds: in the first each says which host it is on, so that all know who starts a server (the first of each host); in
//! the second those that started one say where it is. A process that fails takes part in the round as one that failed, so no
//! other waits for it.

use super::carried::{self, Role};
use super::endpoints;
use super::error::JoinError;
use penstock::options::{Options, Transport};
use penstock::server::Server;
use penstock::worker::{Job, Membership};
use penstock_join::address::reachable;
use penstock_join::introduce::{Introduction, Plan, agree, servers};
use penstock_join::launcher::{Environment, Place};
use penstock_join::patience::Patience;
use penstock_join::tcp::{Party, Rendezvous, RendezvousAddress, RoundError};
use penstock_proto::message::Secret;

/// Joins with the others at `at`; returns the server too if this process carries one.
pub(super) fn join(
    environment: &Environment<'_>,
    secret: Secret,
    place: &Place,
    at: &str,
    options: Options,
) -> Result<(Job, Option<Server>), JoinError> {
    let at: RendezvousAddress = at.parse()?;
    let &Place { rank, size, .. } = place;
    let party = Party { rank, size, secret, job: environment.job() };
    let patience = Patience::new(options.deadline, &|| false);
    let late = |error| match error {
        RoundError::Late { missing, waited, cause } => JoinError::Late { missing, size, waited, cause },
        error => error.into(),
    };
    let mut rendezvous = Rendezvous::open(party, &at, &patience)?;

    let topology = match environment.topology() {
        Ok(topology) => topology,
        Err(error) => {
            rendezvous.fail(&error.to_string(), size, &patience);
            return Err(error.into());
        }
    };
    let introduction = Introduction {
        host: penstock::host::id(),
        job: environment.job(),
        has_secret: true,
        topology: (rank == 0).then_some(topology),
        secret: None,
    };
    let plan = agree(&rendezvous.gather(&introduction.spell(), size, &patience).map_err(late)?)?;
    let own = match carry(environment, place, &at, secret, &options, &plan, &patience) {
        Ok(own) => own,
        Err(error) => {
            rendezvous.fail(&error.to_string(), size, &patience);
            return Err(error);
        }
    };
    let (endpoint, server) = own.unzip();
    let told = rendezvous.gather(endpoint.unwrap_or_default().as_bytes(), size, &patience).map_err(late)?;
    let servers = endpoints(&servers(&plan.owners, &told)?)?;
    let membership = Membership { servers, job: environment.job(), secret, rank, size };
    Ok((Job::connect(&membership, options)?, server))
}

/// The server of this host and where it is, if this process starts it.
fn carry(
    environment: &Environment<'_>,
    place: &Place,
    at: &RendezvousAddress,
    secret: Secret,
    options: &Options,
    plan: &Plan,
    patience: &Patience<'_>,
) -> Result<Option<(String, Server)>, JoinError> {
    let Some(index) = plan.owners.iter().position(|&owner| owner == place.rank as usize) else {
        return Ok(None);
    };
    let listen = if plan.one_host {
        // A user asks for TCP on one host to see what it costs.
        (options.transport == Transport::Tcp).then(|| carried::LOOPBACK.to_owned())
    } else {
        // Nothing interrupts here: a C program has no way to say so.
        let found = || reachable(&at.host, patience).ok().flatten();
        Some(environment.get("PENSTOCK_ADDRESS").or_else(found).ok_or(JoinError::NoAddress)?)
    };
    let servers = plan.owners.len();
    let role = Role { index: index as u32, servers: servers as u32, workers: place.size, listen, secret };
    let (endpoint, server) = carried::start(environment, &carried::directory(environment)?, role, options)?;
    Ok(Some((endpoint.to_string(), server)))
}
