//! Notes that a job's launcher leaves for workers that no server can tell: which process is lost.
//!
//! A server that has ended tells no worker. A worker that comes later finds no socket, or one where nothing answers: it would
//! wait as for a server that is about to start. One whose connections go over the network would wait a lease, as for a line that
//! is broken. The note stands beside the server's socket: two lines, `server 1` or `worker 1`, and how it ended.

use penstock_proto::error::{JobFailure, Loss};
use rustix::fs::OFlags;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Longest note.
const MAX_BYTES: u64 = 4096;

/// Where it stands.
pub(crate) fn beside(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lost");
    path.into()
}

/// What a note says; nothing where there is none, or one that this user did not write.
pub(crate) fn read(path: &Path) -> Option<JobFailure> {
    // Neither a link nor a pipe without a writer.
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let file = File::options().read(true).custom_flags(flags.bits() as i32).open(path).ok()?;
    let about = file.metadata().ok()?;
    if !about.is_file() || about.uid() != rustix::process::geteuid().as_raw() {
        return None;
    }
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    let (who, how) = text.trim_end().split_once('\n')?;
    let (role, number) = who.split_once(' ')?;
    let (number, how) = (number.parse().ok()?, how.to_owned());
    match role {
        "server" => Some(JobFailure::ServerLost { server: number, reason: format!("its process {how}") }),
        "worker" => Some(JobFailure::WorkerLost { rank: number, loss: Loss::Ended { how } }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_and_anything_else_is_none() {
        let folder = std::env::temp_dir().join(format!("penstock-notes-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = beside(&folder.join("s0"));
        assert_eq!(path, folder.join("s0.lost"));
        assert_eq!(read(&path), None);
        let says = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read(&path)
        };
        let how = || "was killed by SIGKILL".to_owned();
        let lost = JobFailure::ServerLost { server: 1, reason: format!("its process {}", how()) };
        assert_eq!(says("server 1\nwas killed by SIGKILL\n"), Some(lost));
        let lost = JobFailure::WorkerLost { rank: 2, loss: Loss::Ended { how: how() } };
        assert_eq!(says("worker 2\nwas killed by SIGKILL"), Some(lost));
        for text in ["", "server 1", "server x\nhow", "nobody 1\nhow"] {
            assert_eq!(says(text), None, "{text:?}");
        }
        assert_eq!(read(&folder), None, "a folder");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
