//! Secrets of jobs in a manager's reply, which may cross the network in plain text: sealed with what only the caller and the
//! manager know of the call.

use crate::proof::{Nonces, mac};
use hmac::Mac as _;
use penstock_proto::message::Secret;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

/// Seals and opens the secrets of jobs in the reply to one call, with what both sides know of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seal {
    secret: Secret,
    nonces: Nonces,
}

impl Seal {
    /// Of the call that was proved with `secret`.
    pub(crate) fn new(secret: &Secret, nonces: &Nonces) -> Self {
        Self { secret: *secret, nonces: *nonces }
    }

    /// A key for one job's secret in this reply: no key seals twice, so its nonce may be zero.
    fn key(&self, job: &str) -> LessSafeKey {
        let parts: [&[u8]; 3] = [&self.nonces.client, &self.nonces.manager, job.as_bytes()];
        let key = mac(&self.secret, b"penstock sealed secret 1 ", &parts).finalize().into_bytes();
        LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, &key).expect("the key has 32 bytes"))
    }

    /// Seals a job's secret.
    pub(crate) fn close(&self, job: &str, secret: &Secret) -> Vec<u8> {
        let mut sealed = secret.0.to_vec();
        self.key(job)
            .seal_in_place_append_tag(Nonce::assume_unique_for_key([0; 12]), Aad::empty(), &mut sealed)
            .expect("32 bytes can be sealed");
        sealed
    }

    /// Opens it; `None` if it was not sealed for this job in the reply to this call.
    pub(crate) fn open(&self, job: &str, sealed: &[u8]) -> Option<Secret> {
        let mut sealed = sealed.to_vec();
        let opened = self
            .key(job)
            .open_in_place(Nonce::assume_unique_for_key([0; 12]), Aad::empty(), &mut sealed)
            .ok()?;
        (&*opened).try_into().ok().map(Secret)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::random;

    #[test]
    fn a_sealed_secret_opens_for_its_job_in_its_call_only() {
        let (token, nonces, secret) =
            (Secret(random()), Nonces { client: random(), manager: random() }, Secret(random()));
        let seal = Seal::new(&token, &nonces);
        let sealed = seal.close("a", &secret);
        assert_eq!(seal.open("a", &sealed), Some(secret));
        assert_eq!(seal.open("b", &sealed), None);
        assert_eq!(seal.open("a", &sealed[1..]), None);
        assert_eq!(seal.open("a", &secret.0), None);
        assert_eq!(Seal::new(&Secret(random()), &nonces).open("a", &sealed), None);
        let other = Nonces { manager: random(), ..nonces };
        assert_eq!(Seal::new(&token, &other).open("a", &sealed), None);
        assert!(!sealed.windows(8).any(|part| secret.0.windows(8).any(|own| own == part)));
    }
}
