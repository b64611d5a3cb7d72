//! A server that this process carries for the others, and the directory that holds its socket.

use super::error::JoinError;
use penstock::options::Options;
use penstock::server::{Server, ServerConfig};
use penstock_fabric::net::endpoint::{Address, Endpoint};
use penstock_join::launcher::Environment;
use penstock_proto::hex::hex;
use penstock_proto::message::Secret;
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// Where a server on the only host listens if its workers are to use TCP.
pub(super) const LOOPBACK: &str = "127.0.0.1";
/// Longest path of the directory: a socket's path, with its name behind it, has to fit into 107 bytes.
const LONGEST_DIRECTORY: usize = 60;

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

/// The directory in which the processes of this user meet: `penstock` in XDG_RUNTIME_DIR, or `penstock-UID` in /tmp.
pub(super) fn directory(environment: &Environment<'_>) -> Result<PathBuf, JoinError> {
    let user = rustix::process::getuid().as_raw();
    let runtime = environment.get("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| {
        // What has a meaning in endpoint strings may not stand in a socket's path.
        let plain = path.to_str().is_some_and(|text| !text.contains([',', '?', '&', '#', '%']));
        plain && path.is_absolute() && path.is_dir() && path.as_os_str().len() <= LONGEST_DIRECTORY
    });
    let path = match runtime {
        Some(runtime) => runtime.join("penstock"),
        None => PathBuf::from(format!("/tmp/penstock-{user}")),
    };
    let refuse = |reason: String| JoinError::Directory { path: path.clone(), reason };
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(refuse(error.to_string()));
        }
        _ => {}
    }
    // Any user may have made a directory of this name in /tmp.
    let found = std::fs::symlink_metadata(&path).map_err(|error| refuse(error.to_string()))?;
    match (found.is_dir(), found.uid() == user, found.mode() & 0o077) {
        (true, true, 0) => Ok(path),
        (false, ..) => Err(refuse("it is not a directory".to_owned())),
        (_, false, _) => Err(refuse(format!("it belongs to user {}", found.uid()))),
        (_, _, others) => Err(refuse(format!("others may enter it (mode {others:03o})"))),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_do_not_meet_where_others_may_enter() {
        let folder = tempfile::tempdir().expect("there is room");
        let inside = folder.path().join("penstock");
        DirBuilder::new().mode(0o755).create(&inside).expect("there is room");
        let runtime = folder.path().to_str().map(str::to_owned);
        let lookup = |name: &str| runtime.clone().filter(|_| name == "XDG_RUNTIME_DIR");
        let refused = directory(&Environment(&lookup));
        assert!(
            matches!(refused, Err(JoinError::Directory { reason, .. }) if reason.contains("others may enter"))
        );
    }
}
