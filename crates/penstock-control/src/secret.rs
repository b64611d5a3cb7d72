//! Tokens and secrets: 32 random bytes, written as 64 hexadecimal digits, in files that only their owners read.

use crate::error::Error;
pub use penstock_proto::hex::hex;
pub(crate) use penstock_proto::hex::unhex;
use penstock_proto::message::Secret;
use rustix::rand::{GetRandomFlags, getrandom};
use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Longest token file that is read: the digits and some white space, so that a wrong path does not fill memory.
const MAX_TOKEN_FILE_BYTES: u64 = 4096;

/// `N` bytes from the system.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        // The system's source cannot run dry after boot; what it can be is interrupted.
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty()).unwrap_or(0);
    }
    bytes
}

/// The bytes of any number of hexadecimal digits.
pub(crate) fn unhex_all(text: &str) -> Option<Vec<u8>> {
    let byte = |pair| unhex::<1>(std::str::from_utf8(pair).ok()?).map(|[byte]| byte);
    text.as_bytes().chunks(2).map(byte).collect()
}

/// An identity of 32 hexadecimal digits that no other process draws.
pub(crate) fn identity() -> String {
    hex(&random::<16>())
}

/// Whether `text` looks like an identity.
pub(crate) fn is_identity(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Reads a token from a file of 64 hexadecimal digits.
pub fn read(path: &Path) -> Result<Secret, Error> {
    let file = |reason: String| Error::File { path: path.to_owned(), reason };
    let open = File::open(path).map_err(|error| file(error.to_string()))?;
    let mut text = String::new();
    open.take(MAX_TOKEN_FILE_BYTES).read_to_string(&mut text).map_err(|error| file(error.to_string()))?;
    // What stands in the file is not repeated: it may be a secret all the same.
    Secret::from_hex(text.trim()).ok_or_else(|| file("expected a token of 64 hexadecimal digits".to_owned()))
}

/// Why what stands there may be another user's, who is neither this one nor root; `None`: it is not.
pub(crate) fn distrust(found: &Metadata) -> Option<String> {
    // Its group may write it: that of a Kubernetes volume is the pod's own.
    if found.mode() & 0o002 != 0 {
        return Some("every user may write it".to_owned());
    }
    (!is_trusted(found)).then(|| format!("it belongs to user {}", found.uid()))
}

/// What root leaves is trusted by every user.
fn is_trusted(found: &Metadata) -> bool {
    [0, rustix::process::geteuid().as_raw()].contains(&found.uid())
}

/// Why what stands in a folder may be another user's, who is neither this one nor root; `None`: it is not. Of a link that leads
/// there its owner counts too: where it leads was for that user to say.
pub(crate) fn distrust_folder(path: &Path) -> io::Result<Option<String>> {
    // Without a slash or a dot behind, which would lead on.
    let path = match path.components().as_path() {
        nothing if nothing.as_os_str().is_empty() => Path::new("."),
        path => path,
    };
    let (named, found) = (std::fs::symlink_metadata(path)?, std::fs::metadata(path)?);
    if named.is_symlink() && !is_trusted(&named) {
        return Ok(Some(format!("it is a link that belongs to user {}", named.uid())));
    }
    Ok(distrust(&found))
}

/// Reads a file that stands in such a folder, or says why it may be another user's.
pub(crate) fn read_trusted(path: &Path) -> io::Result<Result<Vec<u8>, String>> {
    // Whoever waits at the other end of a pipe is not waited for.
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let mut file = File::options().read(true).custom_flags(flags).open(path)?;
    // Of what is read, not of what may stand there by then.
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no ordinary file"));
    }
    if let Some(reason) = distrust(&found) {
        return Ok(Err(reason));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(Ok(bytes))
}

/// Writes `bytes` into a file that only its owner may read. It must not exist, unless `replace`.
pub fn write_private(path: &Path, bytes: &[u8], replace: bool) -> io::Result<()> {
    write(path, bytes, replace, 0o600)
}

/// Writes through a file beside it, so that a reader finds all of it or nothing, also after a power cut.
pub(crate) fn write(path: &Path, bytes: &[u8], replace: bool, mode: u32) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let beside = folder.join(format!(".{}.{}", name.to_string_lossy(), hex(&random::<6>())));
    let result = (|| {
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        if replace {
            std::fs::rename(&beside, path)?;
        } else {
            // A link fails where the name is taken; a rename would replace it.
            std::fs::hard_link(&beside, path)?;
            std::fs::remove_file(&beside)?;
        }
        File::open(folder)?.sync_all()
    })();
    if result.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_private_file_is_its_owners_alone_and_is_not_replaced_unasked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        write_private(&path, b"one", false).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(write_private(&path, b"two", false).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
        write_private(&path, b"two", true).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn digits_are_read_as_they_are_written_and_nothing_else_is() {
        let bytes: [u8; 32] = random();
        assert_eq!(unhex(&hex(&bytes)), Some(bytes));
        for wrong in ["", "0", "000", "+0", "0g", "\u{e9}"] {
            assert_eq!(unhex::<1>(wrong), None, "{wrong}");
            assert_eq!(unhex_all(wrong), wrong.is_empty().then(Vec::new), "{wrong}");
        }
        assert_eq!(unhex_all(&hex(&bytes)), Some(bytes.to_vec()));
    }

    #[test]
    fn what_is_in_a_wrong_token_file_is_not_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "hunter2").unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("64 hexadecimal digits") && !error.contains("hunter2"), "{error}");
    }
}
