//! Tokens and secrets are proved, never sent: what both sides compute, without sockets. `proofs.proto` says what travels.
//!
//! ```text
//! caller                                        manager
//!   Challenge: who, client nonce           ->
//!                                          <-   manager nonce, HMAC(secret, both nonces, who)
//!   headers: digest of the body, HMAC(secret, both nonces, digest, path)  ->
//!   body                                   ->
//!                                          <-   headers: digest of the reply, HMAC(secret, both nonces, digest, path)
//!                                          <-   reply
//! ```
//!
//! The caller proves itself last: a process that listens at a manager's address without knowing the secret is told nothing that
//! it could use, and what was recorded is of no use in another call. Both judge the other by its headers: the manager reads
//! nothing more of a caller that has not proved itself, and the caller no more of an answer than a refusal takes. The labels
//! differ, so no proof serves as another. The reply's proof is made in `reply.rs`.

use crate::error::Refusal;
use crate::secret::{hex, unhex, unhex_all};
use hmac::{Hmac, Mac as _};
use penstock_proto::message::Secret;
use sha2::{Digest as _, Sha256};
use tonic::codegen::http::HeaderMap;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};

/// Random bytes, drawn for one call.
pub(crate) type Nonce = [u8; 32];
/// A proof, or a digest of a request's body.
pub(crate) type Digest = [u8; 32];

/// Name of the header that carries the proof of a token or a secret.
const AUTHORIZATION: &str = "authorization";
/// How its value began in every version, whatever followed.
const ANY_FORM: &str = "Penstock-Proof";
/// First word of its value: the form of a call's proof and of its answer's. Whoever changes either changes this too, so that a
/// call of another form is refused before it is carried out; its client would not believe the answer.
const SCHEME: &str = "Penstock-Proof-2";

/// Which caller proves that it knows what.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Prover {
    /// An administrator: the admin token.
    Admin,
    /// A server: the server token.
    Server,
    /// A worker: its job's secret.
    Worker {
        /// The job's name.
        job: String,
    },
}

impl Prover {
    /// As it stands in the manager's proof, at the end.
    pub(crate) fn spell(&self) -> String {
        match self {
            Self::Admin => "admin".to_owned(),
            Self::Server => "server".to_owned(),
            Self::Worker { job } => format!("worker {job}"),
        }
    }

    /// The one refusal of a manager for all that is wrong with a proof.
    pub(crate) fn refusal(&self) -> Refusal {
        match self {
            Self::Admin => Refusal::token("admin"),
            Self::Server => Refusal::token("server"),
            Self::Worker { .. } => Refusal::job_secret(),
        }
    }
}

/// The nonces of both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nonces {
    /// The caller's.
    pub(crate) client: Nonce,
    /// The manager's.
    pub(crate) manager: Nonce,
}

/// HMAC with a label. All parts but the last have a fixed length, and no label is the beginning of another.
pub(crate) fn mac(key: &Secret, label: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    penstock_proto::mac::of(&key.0, std::iter::once(label).chain(parts.iter().copied()))
}

impl Nonces {
    fn manager_mac(&self, secret: &Secret, who: &Prover) -> Hmac<Sha256> {
        mac(secret, b"penstock manager proof 1 ", &[&self.client, &self.manager, who.spell().as_bytes()])
    }

    /// That the manager knows the secret.
    pub(crate) fn manager_proof(&self, secret: &Secret, who: &Prover) -> Digest {
        self.manager_mac(secret, who).finalize().into_bytes().into()
    }

    /// Whether it does; takes equally long for all wrong ones.
    pub(crate) fn manager_proves(&self, secret: &Secret, who: &Prover, proof: &[u8]) -> bool {
        self.manager_mac(secret, who).verify_slice(proof).is_ok()
    }
}

/// A call, as its proof sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Said {
    /// Such as `/penstock.v1.Admin/ListJobs`.
    pub(crate) path: String,
    /// SHA-256 of the request's body, as gRPC frames it.
    pub(crate) body: Digest,
}

impl Said {
    pub(crate) fn new(path: &str, body: &[u8]) -> Self {
        Self { path: path.to_owned(), body: Sha256::digest(body).into() }
    }

    /// Whether this is the body that was announced.
    pub(crate) fn has_body(&self, body: &[u8]) -> bool {
        *Sha256::digest(body) == self.body
    }

    fn mac(&self, secret: &Secret, nonces: &Nonces) -> Hmac<Sha256> {
        let parts: [&[u8]; 4] = [&nonces.client, &nonces.manager, &self.body, self.path.as_bytes()];
        mac(secret, b"penstock call proof 2 ", &parts)
    }

    /// What a server signs.
    pub(crate) fn to_sign(&self, nonces: &Nonces) -> Vec<u8> {
        [b"penstock server call 1 ", &nonces.client[..], &nonces.manager, &self.body, self.path.as_bytes()]
            .concat()
    }

    /// The header that proves that `who` knows the secret.
    pub(crate) fn prove(&self, secret: &Secret, nonces: &Nonces, who: &Prover) -> Proof {
        let job = if let Prover::Worker { job } = who { job.clone() } else { String::new() };
        let proof = self.mac(secret, nonces).finalize().into_bytes().into();
        Proof { nonces: *nonces, body: self.body, proof, job }
    }

    /// Whether `proof` does; takes equally long for all wrong ones.
    pub(crate) fn proves(&self, secret: &Secret, proof: &Proof) -> bool {
        self.mac(secret, &proof.nonces).verify_slice(&proof.proof).is_ok()
    }
}

/// What a call carries in its headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Proof {
    pub(crate) nonces: Nonces,
    /// Digest of the body, known before that is read.
    body: Digest,
    proof: Digest,
    /// A worker's job; else empty.
    pub(crate) job: String,
}

impl Proof {
    /// The call of this path that it is of.
    pub(crate) fn said(&self, path: &str) -> Said {
        Said { path: path.to_owned(), body: self.body }
    }

    /// As a header; kept out of the tables of HTTP/2, since it comes once.
    pub(crate) fn show(&self, metadata: &mut MetadataMap) {
        let Self { nonces, body, proof, job } = self;
        // A job may be asked for by any name: digits go into a header.
        let words = [&nonces.manager[..], &nonces.client, body, proof, job.as_bytes()].map(hex);
        metadata.insert(AUTHORIZATION, header(format!("{SCHEME} {}", words.join(" ")).trim_end()));
    }

    /// The one that a request carries.
    pub(crate) fn read(headers: &HeaderMap) -> Option<Self> {
        let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
        let mut words = value.strip_prefix(SCHEME)?.strip_prefix(' ')?.split(' ');
        let mut next = || unhex::<32>(words.next()?);
        let (manager, client, body, proof) = (next()?, next()?, next()?, next()?);
        let job = String::from_utf8(unhex_all(words.next().unwrap_or_default())?).ok()?;
        words.next().is_none().then_some(Self { nonces: Nonces { client, manager }, body, proof, job })
    }
}

/// Whether a request shows a token, or a proof of another form, as earlier versions did.
pub(crate) fn of_another_version(headers: &HeaderMap) -> bool {
    let value = headers.get(AUTHORIZATION).map_or(&b""[..], |value| value.as_bytes());
    [b"Bearer ", ANY_FORM.as_bytes()].iter().any(|scheme| value.starts_with(scheme))
}

/// A header of ASCII text.
pub(crate) fn header(text: &str) -> MetadataValue<Ascii> {
    let mut value: MetadataValue<Ascii> = text.parse().expect("the text is ASCII");
    value.set_sensitive(true);
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::random;
    use crate::server_key::ServerKey;
    use proptest::prelude::*;

    fn nonces() -> Nonces {
        Nonces { client: random(), manager: random() }
    }

    #[test]
    fn a_proof_is_of_one_secret_one_method_one_body_and_both_nonces() {
        let (secret, nonces) = (Secret(random()), nonces());
        let said = Said::new("/a.B/C", b"body");
        let proof = said.prove(&secret, &nonces, &Prover::Admin);
        assert!(said.proves(&secret, &proof) && proof.said("/a.B/C") == said);
        assert!(said.has_body(b"body") && !said.has_body(b"bodz"));
        assert!(!said.proves(&Secret(random()), &proof));
        assert!(!Said::new("/a.B/D", b"body").proves(&secret, &proof));
        assert!(!Said::new("/a.B/C", b"bodz").proves(&secret, &proof));
        for other in [
            Nonces { client: random(), ..nonces },
            Nonces { manager: random(), ..nonces },
            Nonces { client: nonces.manager, manager: nonces.client },
        ] {
            assert!(!said.proves(&secret, &Proof { nonces: other, ..proof.clone() }));
        }
    }

    #[test]
    fn a_managers_proof_is_for_one_caller_and_is_none_of_a_call() {
        let (secret, nonces) = (Secret(random()), nonces());
        let worker = |job: &str| Prover::Worker { job: job.to_owned() };
        let proof = nonces.manager_proof(&secret, &worker("a"));
        assert!(nonces.manager_proves(&secret, &worker("a"), &proof));
        for who in [worker("b"), Prover::Admin, Prover::Server] {
            assert!(!nonces.manager_proves(&secret, &who, &proof));
        }
        assert!(!nonces.manager_proves(&secret, &worker("a"), &proof[..31]));
        let said = Said::new("", b"");
        let shown = said.prove(&secret, &nonces, &worker("a"));
        assert!(said.proves(&secret, &shown) && !said.proves(&secret, &Proof { proof, ..shown }));
    }

    #[test]
    fn a_proof_goes_into_a_header_and_comes_out_and_nothing_else_does() {
        let mut metadata = MetadataMap::new();
        assert_eq!(Proof::read(metadata.as_ref()), None);
        let worker = |job: &str| Prover::Worker { job: job.to_owned() };
        for who in [Prover::Admin, worker("mnist"), worker("a b\n\u{e9}"), worker("")] {
            let proof = Said::new("/a.B/C", b"").prove(&Secret(random()), &nonces(), &who);
            proof.show(&mut metadata);
            assert_eq!(Proof::read(metadata.as_ref()), Some(proof));
        }
        let digits = "0".repeat(64);
        let four = format!("{digits} {digits} {digits} {digits}");
        for wrong in [
            format!("Bearer {digits}"),
            format!("Penstock-Proof {four}"),
            format!("Penstock-Proof-1 {four}"),
            format!("Penstock-Proof-22 {four}"),
            format!("Penstock-Proof-2 {digits} {digits} {digits}"),
            format!("Penstock-Proof-2 {four} 6"),
            format!("Penstock-Proof-2 {four} ff"),
            format!("Penstock-Proof-2 {four} 61 61"),
            format!("Penstock-Proof-2 {}", &four[1..]),
            format!("Penstock-Proof-2{four}"),
            format!("Penstock-Proof-2  {four}"),
        ] {
            metadata.insert(AUTHORIZATION, header(&wrong));
            assert_eq!(Proof::read(metadata.as_ref()), None, "{wrong}");
            assert!(of_another_version(metadata.as_ref()), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn whatever_a_stranger_writes_into_its_headers_is_read_or_not_and_proves_nothing(
            words in proptest::collection::vec("[0-9a-f]{64}|[0-9a-fA-F]{0,130}|[ -~]{0,70}", 0..6),
            scheme in "Penstock-Proof-2|[ -~]{0,20}",
        ) {
            let mut metadata = MetadataMap::new();
            metadata.insert(AUTHORIZATION, header(&format!("{scheme} {}", words.join(" "))));
            metadata.insert("penstock-server-proof", header(&words.join(" ")));
            let said = Said::new("/a.B/C", b"");
            if let Some(proof) = Proof::read(metadata.as_ref()) {
                prop_assert!(!said.proves(&Secret([1; 32]), &proof));
            }
            prop_assert_eq!(ServerKey::shown(b"said", &metadata), None);
        }
    }
}
