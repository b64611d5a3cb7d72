//! Where the Unix sockets of a service's jobs are.

use penstock_proto::checksum;
use std::path::{Path, PathBuf};

/// A job's socket in its service's directory.
pub(crate) fn socket_in(directory: &Path, job: &str) -> PathBuf {
    directory.join(format!("{}.sock", checksum::name_of(job)))
}

/// The socket that a service's path names for this job.
pub(crate) fn socket_of(path: &Path, job: &str) -> PathBuf {
    match (path.file_name(), path.parent()) {
        (Some(name), Some(directory)) if name == "{job}.sock" => socket_in(directory, job),
        _ => path.to_owned(),
    }
}
