//! Tokens and secrets: 32 random bytes, written as 64 hexadecimal digits, compared in constant time, never shown; and the
//! keys of servers.

use crate::error::Error;
use crate::proof::header;
use penstock_proto::message::Secret;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::{Digest, Sha256};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use subtle::ConstantTimeEq;
use tonic::metadata::MetadataMap;

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

/// The bytes of as many hexadecimal digits.
pub(crate) fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

/// An identity of 32 hexadecimal digits that no other process draws.
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

/// Name of the header in which a server shows its public key and what it signed.
const SERVER_PROOF: &str = "penstock-server-proof";

/// The key, Ed25519, with which a server, and no other, can speak for itself. Its identity, which is public, is made from the
/// public half: so the manager needs to keep nothing to know whose identity is whose, the token that all servers share does not
/// let one speak for another, and nothing that is sent lets a listener do so.
#[derive(Debug, Clone)]
pub struct ServerKey(Arc<Ed25519KeyPair>);

impl ServerKey {
    /// A new one.
    pub fn draw() -> Self {
        Self::from_seed(&random())
    }

    fn from_seed(seed: &[u8; 32]) -> Self {
        Self(Arc::new(Ed25519KeyPair::from_seed_unchecked(seed).expect("the seed has 32 bytes")))
    }

    /// The identity that it is the key of: 32 hexadecimal digits.
    pub fn identity(&self) -> String {
        server_identity(self.0.public_key().as_ref())
    }

    /// Signs what is said, and shows that in a request's header.
    pub(crate) fn show(&self, said: &[u8], metadata: &mut MetadataMap) {
        let text = format!("{} {}", hex(self.0.public_key().as_ref()), hex(self.0.sign(said).as_ref()));
        metadata.insert(SERVER_PROOF, header(&text));
    }

    /// The identity of the server that has signed what is said.
    pub(crate) fn shown(said: &[u8], metadata: &MetadataMap) -> Option<String> {
        let (public, signature) = metadata.get(SERVER_PROOF)?.to_str().ok()?.split_once(' ')?;
        let (public, signature) = (unhex::<32>(public)?, unhex::<64>(signature)?);
        UnparsedPublicKey::new(&ED25519, &public).verify(said, &signature).ok()?;
        Some(server_identity(&public))
    }
}

fn server_identity(public: &[u8]) -> String {
    let digest = Sha256::new().chain_update(b"penstock server identity 2 ").chain_update(public).finalize();
    hex(&digest[..16])
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
    fn a_servers_key_makes_its_identity_and_signs_for_no_other() {
        let (key, other) = (ServerKey::draw(), ServerKey::draw());
        assert!(is_identity(&key.identity()) && key.identity() != other.identity());
        let mut metadata = MetadataMap::new();
        assert_eq!(ServerKey::shown(b"said", &metadata), None);
        key.show(b"said", &mut metadata);
        assert_eq!(ServerKey::shown(b"said", &metadata), Some(key.identity()));
        assert_eq!(ServerKey::shown(b"sold", &metadata), None);
        // Its public half with another's signature.
        let mut others = MetadataMap::new();
        other.show(b"said", &mut others);
        let words = |metadata: &MetadataMap| {
            let (public, signature) =
                metadata.get(SERVER_PROOF).unwrap().to_str().unwrap().split_once(' ').unwrap();
            (public.to_owned(), signature.to_owned())
        };
        let mixed = format!("{} {}", words(&metadata).0, words(&others).1);
        metadata.insert(SERVER_PROOF, header(&mixed));
        assert_eq!(ServerKey::shown(b"said", &metadata), None);
    }

    #[test]
    fn a_servers_key_is_neither_sent_nor_shown() {
        let seed: [u8; 32] = random();
        let key = ServerKey::from_seed(&seed);
        let mut metadata = MetadataMap::new();
        key.show(b"said", &mut metadata);
        let sent = metadata.get(SERVER_PROOF).unwrap().to_str().unwrap();
        assert!(!format!("{sent} {key:?} {}", key.identity()).contains(&hex(&seed)[..16]));
        assert!(!format!("{key:?}").contains(&format!("{:?}", &seed[..4]).replace(['[', ']'], "")));
    }

    #[test]
    fn digits_are_read_as_they_are_written_and_nothing_else_is() {
        let bytes: [u8; 32] = random();
        assert_eq!(unhex(&hex(&bytes)), Some(bytes));
        for wrong in ["", "0", "000", "+0", "0g", "\u{e9}"] {
            assert_eq!(unhex::<1>(wrong), None, "{wrong}");
        }
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
