//! A server that this process carries for the others, and the directory that holds its socket.

use super::error::JoinError;
use penstock::options::Options;
use penstock::server::{Server, ServerConfig};
use penstock::user_directory::{RUNTIME, UserDirectory};
use penstock_fabric::net::endpoint::{Address, Endpoint};
use penstock_join::launcher::Environment;
use penstock_proto::hex::hex;
use penstock_proto::message::Secret;
use std::path::{Path, PathBuf};

/// Where a server on the only host listens if its workers are to use TCP.
pub(super) const LOOPBACK: &str = "127.0.0.1";

/// Which of the job's servers it is, and for which workers.
pub(super) struct Role {
    pub(super) index: u32,
    pub(super) servers: u32,
    pub(super) workers: u32,
    /// The address at which others reach it by TCP, if they are to.
    pub(super) listen: Option<String>,
    pub(super) secret: Secret,
}

/// Starts it; returns where it is.
pub(super) fn start(
    environment: &Environment<'_>,
    directory: &Path,
    role: Role,
    options: &Options,
) -> Result<(Endpoint, Server), JoinError> {
    let unix = directory.join(format!("{}.s", hex(&random::<8>()?)));
    let Role { index, servers, workers, listen, secret } = role;
    let config = ServerConfig {
        path: Some(unix.clone()),
        listen: listen.into_iter().map(|host| Address { host, port: 0 }).collect(),
        job: environment.job(),
        secret,
        index,
        servers,
        workers,
        options: options.clone(),
    };
    let server = Server::start(config).map_err(JoinError::Server)?;
    let tcp = server.addresses().first();
    let tcp = tcp.map(|address| Address { host: address.ip().to_string(), port: address.port() });
    let host = tcp.is_some().then(penstock::host::id);
    Ok((Endpoint { tcp, also: Vec::new(), unix: Some(unix), host }, server))
}

/// The directory in which the processes of this user meet.
pub(super) fn directory(environment: &Environment<'_>) -> Result<PathBuf, JoinError> {
    let directory = UserDirectory::of(environment.get(RUNTIME));
    Ok(directory.make()?.to_owned())
}

pub(super) fn random<const N: usize>() -> Result<[u8; N], JoinError> {
    let mut bytes = [0; N];
    let drawn = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    match drawn {
        Ok(count) if count == N => Ok(bytes),
        Ok(_) => Err(JoinError::System { what: "make a secret", reason: "too few random bytes".to_owned() }),
        Err(errno) => Err(JoinError::System { what: "make a secret", reason: errno.to_string() }),
    }
}
