//! The keys with which servers speak for themselves to the manager.

use crate::proof::header;
use crate::secret::{hex, random, unhex};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use tonic::metadata::MetadataMap;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::is_identity;

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
}
