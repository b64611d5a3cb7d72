//! Tokens and secrets: 32 random bytes, written as 64 hexadecimal digits, compared in constant time, never shown.

use crate::error::Error;
use penstock_proto::message::Secret;
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::{Digest, Sha256};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use subtle::ConstantTimeEq;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};

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

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An identity of 32 hexadecimal digits that nobody else draws.
pub(crate) fn identity() -> String {
    hex(&random::<16>())
}

/// Whether `text` looks like an identity.
pub(crate) fn is_identity(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether two secrets are the same; takes equally long for all that differ.
pub(crate) fn same(a: &Secret, b: &Secret) -> bool {
    a.0.ct_eq(&b.0).into()
}

/// The bearer token of a request.
pub(crate) fn bearer(metadata: &MetadataMap) -> Option<Secret> {
    let value = metadata.get("authorization")?.to_str().ok()?;
    Secret::from_hex(value.strip_prefix("Bearer ")?)
}

/// The header for a token; marked so that HTTP/2 keeps it out of its tables and Debug does not print it.
pub(crate) fn authorization(token: &Secret) -> MetadataValue<Ascii> {
    let text = format!("Bearer {}", hex(&token.0));
    let mut value: MetadataValue<Ascii> = text.parse().expect("hexadecimal digits make a header");
    value.set_sensitive(true);
    value
}

/// Name of the header in which a server shows its key.
const SERVER_KEY: &str = "penstock-server-key";

/// What a server, and nobody else, can speak for itself with. Its identity, which everybody may know, is made from the key: so the
/// manager needs to keep nothing to know whose identity is whose, and the token that all servers share does not let one speak for
/// another.
#[derive(Debug, Clone)]
pub struct ServerKey(Secret);

impl ServerKey {
    /// A new one.
    pub fn draw() -> Self {
        Self(Secret(random()))
    }

    /// The identity that it is the key of: 32 hexadecimal digits.
    pub fn identity(&self) -> String {
        let digest =
            Sha256::new().chain_update(b"penstock server identity 1 ").chain_update(self.0.0).finalize();
        hex(&digest[..16])
    }

    /// Shows it in a request's header.
    pub fn show(&self, metadata: &mut MetadataMap) {
        let mut value: MetadataValue<Ascii> =
            hex(&self.0.0).parse().expect("hexadecimal digits make a header");
        value.set_sensitive(true);
        metadata.insert(SERVER_KEY, value);
    }

    /// The key that a request shows.
    pub(crate) fn shown(metadata: &MetadataMap) -> Option<Self> {
        Secret::from_hex(metadata.get(SERVER_KEY)?.to_str().ok()?).map(Self)
    }
}

/// Reads a token from a file of 64 hexadecimal digits.
pub fn read(path: &Path) -> Result<Secret, Error> {
    let file = |reason: String| Error::File { path: path.to_owned(), reason };
    let open = std::fs::File::open(path).map_err(|error| file(error.to_string()))?;
    let mut text = String::new();
    open.take(MAX_TOKEN_FILE_BYTES).read_to_string(&mut text).map_err(|error| file(error.to_string()))?;
    // What stands in the file is not repeated: it may be a secret all the same.
    Secret::from_hex(text.trim()).ok_or_else(|| file("expected a token of 64 hexadecimal digits".to_owned()))
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
        std::fs::File::open(folder)?.sync_all()
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
    fn a_token_goes_into_a_header_and_comes_out_but_is_not_shown() {
        let token = Secret(random());
        let mut metadata = MetadataMap::new();
        metadata.insert("authorization", authorization(&token));
        assert!(same(&bearer(&metadata).unwrap(), &token));
        assert!(!format!("{metadata:?}").contains(&hex(&token.0)));
    }

    #[test]
    fn a_servers_key_makes_its_identity_and_no_other_and_is_not_shown() {
        let (key, other) = (ServerKey::draw(), ServerKey::draw());
        assert!(is_identity(&key.identity()) && key.identity() != other.identity());
        assert!(!hex(&key.0.0).contains(&key.identity()));
        let mut metadata = MetadataMap::new();
        assert!(ServerKey::shown(&metadata).is_none());
        key.show(&mut metadata);
        assert_eq!(ServerKey::shown(&metadata).unwrap().identity(), key.identity());
        assert!(!format!("{metadata:?}{key:?}").contains(&hex(&key.0.0)));
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
