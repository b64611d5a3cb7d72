//! The directory in which the processes of one user of this host meet. No other user can enter it.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// The environment variable that names where it is, if it is set.
pub const RUNTIME: &str = "XDG_RUNTIME_DIR";
/// Longest path that this may name: a socket's path, with its name behind it, has to fit into 107 bytes.
const LONGEST: usize = 60;

/// Where it is.
#[derive(Debug, Clone)]
pub struct UserDirectory(PathBuf);

/// Why processes cannot meet there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the processes of this host cannot meet in {}: {reason}", path.display())]
pub struct NoDirectory {
    /// The directory.
    pub path: PathBuf,
    /// What it is instead, or what the system said.
    pub reason: String,
}

impl UserDirectory {
    /// `penstock` in what [`RUNTIME`] names, or `penstock-UID` in /tmp.
    pub fn of(runtime: Option<String>) -> Self {
        let runtime = runtime.map(PathBuf::from).filter(|path| {
            // What has a meaning in endpoint strings may not stand in a socket's path.
            let plain = path.to_str().is_some_and(|text| !text.contains([',', '?', '&', '#', '%']));
            plain && path.is_absolute() && path.is_dir() && path.as_os_str().len() <= LONGEST
        });
        Self(match runtime {
            Some(runtime) => runtime.join("penstock"),
            None => PathBuf::from(format!("/tmp/penstock-{}", rustix::process::getuid().as_raw())),
        })
    }

    /// Makes it unless it is there; refused is what others may enter.
    pub fn make(&self) -> Result<&Path, NoDirectory> {
        let Self(path) = self;
        let refuse = |reason: String| NoDirectory { path: path.clone(), reason };
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(refuse(error.to_string()));
            }
            _ => {}
        }
        // Any user may have made a directory of this name in /tmp.
        let found = std::fs::symlink_metadata(path).map_err(|error| refuse(error.to_string()))?;
        let user = rustix::process::getuid().as_raw();
        match (found.is_dir(), found.uid() == user, found.mode() & 0o077) {
            (true, true, 0) => Ok(path),
            (false, ..) => Err(refuse("it is not a directory".to_owned())),
            (_, false, _) => Err(refuse(format!("it belongs to user {}", found.uid()))),
            (_, _, others) => Err(refuse(format!("others may enter it (mode {others:03o})"))),
        }
    }
}

#[cfg(test)]
impl From<&Path> for UserDirectory {
    fn from(path: &Path) -> Self {
        Self(path.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::Directory;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn processes_do_not_meet_where_others_may_enter() {
        let folder = Directory::new(&std::env::temp_dir(), "penstock-runtimes-").expect("there is room");
        let directory = UserDirectory::of(folder.path().to_str().map(str::to_owned));
        let made = directory.make().expect("there is room");
        assert!(made.starts_with(folder.path()) && directory.make() == Ok(made), "and it is found again");
        std::fs::set_permissions(made, Permissions::from_mode(0o755)).expect("it is this user's");
        assert!(directory.make().unwrap_err().reason.contains("others may enter"));
        std::fs::remove_dir(made).expect("it is empty");
        std::os::unix::fs::symlink(folder.path(), made).expect("there is room");
        assert_eq!(directory.make().unwrap_err().reason, "it is not a directory");
    }
}
