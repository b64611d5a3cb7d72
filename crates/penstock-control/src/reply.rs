//! What a manager answers: proved by its headers, so that nothing is read of what anyone else makes up, and believed as far as
//! that proof goes and no further.

use crate::body::{self, Broken};
use crate::error::REASON;
use crate::limits;
use crate::proof::{Digest, Nonces, mac};
use crate::secret::{hex, unhex};
use hmac::{Hmac, Mac as _};
use http_body_util::{BodyExt, Full};
use penstock_proto::message::Secret;
use sha2::{Digest as _, Sha256};
use tonic::Code;
use tonic::body::Body;
use tonic::codegen::Bytes;
use tonic::codegen::http::{HeaderMap, HeaderName, HeaderValue, Response};

/// Name of the header that carries the proof.
const REPLY_PROOF: HeaderName = HeaderName::from_static("penstock-reply-proof");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
/// What says how a call ended: in the headers of a reply without a body, else in its trailers.
const OUTCOME: [HeaderName; 3] =
    [STATUS, HeaderName::from_static(REASON), HeaderName::from_static("grpc-message")];
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// What a reply's headers say of it, and prove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Told {
    /// Bytes of its body.
    bytes: u64,
    body: Digest,
    outcome: Digest,
}

impl Told {
    fn mac(&self, secret: &Secret, nonces: &Nonces, path: &str) -> Hmac<Sha256> {
        let Self { bytes, body, outcome } = self;
        let bytes = bytes.to_le_bytes();
        let parts: [&[u8]; 6] = [&nonces.client, &nonces.manager, &bytes, body, outcome, path.as_bytes()];
        mac(secret, b"penstock reply proof 2 ", &parts)
    }

    /// As a header, with the proof that it comes from a manager that knows the secret, for this one call.
    fn prove(&self, secret: &Secret, nonces: &Nonces, path: &str) -> HeaderValue {
        let Self { bytes, body, outcome } = self;
        let proof = self.mac(secret, nonces, path).finalize().into_bytes();
        let words = [&bytes.to_le_bytes()[..], body, outcome, &proof].map(hex);
        let mut value = HeaderValue::try_from(words.join(" ")).expect("digits are ASCII");
        // Kept out of the tables of HTTP/2, since it comes once.
        value.set_sensitive(true);
        value
    }

    /// What the headers of a reply prove; takes equally long for all wrong proofs.
    pub(crate) fn proved(headers: &HeaderMap, secret: &Secret, nonces: &Nonces, path: &str) -> Option<Self> {
        let mut words = headers.get(REPLY_PROOF)?.to_str().ok()?.split(' ');
        let bytes = u64::from_le_bytes(unhex(words.next()?)?);
        let mut next = || unhex::<32>(words.next()?);
        let (body, outcome, proof) = (next()?, next()?, next()?);
        let told = Self { bytes, body, outcome };
        (words.next().is_none() && told.mac(secret, nonces, path).verify_slice(&proof).is_ok())
            .then_some(told)
    }

    /// Bytes of the message in the body, as far as any reply may have them.
    pub(crate) fn most(&self) -> usize {
        let bytes = usize::try_from(self.bytes).unwrap_or(usize::MAX);
        bytes.saturating_sub(body::FRAME).min(limits::REPLY_BYTES)
    }
}

/// A reply without anything that no proof is of.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reply {
    body: Bytes,
    outcome: HeaderMap,
}

impl Reply {
    /// Reads a reply of at most `most` bytes.
    pub(crate) async fn read(response: Response<Body>, most: usize) -> Result<Self, Broken> {
        let (parts, body) = response.into_parts();
        let (body, trailers) = body::read(body, most).await?;
        let told = if parts.headers.contains_key(STATUS) { parts.headers } else { trailers };
        Ok(Self { body, outcome: outcome(&told) })
    }

    /// How the call ended.
    pub(crate) fn outcome(&self) -> &HeaderMap {
        &self.outcome
    }

    /// The gRPC status; without one, unknown.
    pub(crate) fn code(&self) -> Code {
        self.outcome.get(STATUS).map_or(Code::Unknown, |code| Code::from_bytes(code.as_bytes()))
    }

    /// What its headers have to say.
    pub(crate) fn told(&self) -> Told {
        let mut outcome = Sha256::new();
        for name in OUTCOME {
            // No header holds a line's end.
            outcome.update(self.outcome.get(name).map_or(&b""[..], HeaderValue::as_bytes));
            outcome.update(b"\n");
        }
        Told {
            bytes: self.body.len() as u64,
            body: Sha256::digest(&self.body).into(),
            outcome: outcome.finalize().into(),
        }
    }

    /// As it is sent, with its proof.
    pub(crate) fn prove(self, secret: &Secret, nonces: &Nonces, path: &str) -> Response<Body> {
        let shown = self.told().prove(secret, nonces, path);
        let mut response = self.into_response();
        response.headers_mut().insert(REPLY_PROOF, shown);
        response
    }

    /// As the code of services and clients takes it.
    pub(crate) fn into_response(self) -> Response<Body> {
        let Self { body, outcome } = self;
        let mut response = Response::new(Body::empty());
        if body.is_empty() {
            *response.headers_mut() = outcome;
        } else {
            let whole = Full::new(body).with_trailers(std::future::ready(Some(Ok(outcome))));
            *response.body_mut() = Body::new(whole);
        }
        response.headers_mut().insert(HeaderName::from_static("content-type"), GRPC);
        response
    }
}

fn outcome(told: &HeaderMap) -> HeaderMap {
    let kept = |name: HeaderName| told.get(&name).map(|value| (name, value.clone()));
    OUTCOME.into_iter().filter_map(kept).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Reason, Refusal};
    use crate::secret::random;
    use tonic::Status;

    fn reply(status: Status, body: &'static [u8]) -> Reply {
        let headers = status.into_http::<Body>().into_parts().0.headers;
        Reply { body: Bytes::from_static(body), outcome: outcome(&headers) }
    }

    #[test]
    fn a_proof_is_of_one_secret_one_call_one_body_and_one_outcome() {
        let (secret, nonces) = (Secret(random()), Nonces { client: random(), manager: random() });
        let full = || Status::from(Refusal::new(Reason::Full, "no rank is left"));
        let (path, right) = ("/a.B/C", reply(full(), b"body"));
        let mut headers = right.clone().prove(&secret, &nonces, path).into_parts().0.headers;
        let told = Told::proved(&headers, &secret, &nonces, path).unwrap();
        assert_eq!(told, right.told());
        assert_eq!(Told::proved(&headers, &Secret(random()), &nonces, path), None);
        assert_eq!(Told::proved(&headers, &secret, &nonces, "/a.B/D"), None);
        for other in [Nonces { client: random(), ..nonces }, Nonces { manager: random(), ..nonces }] {
            assert_eq!(Told::proved(&headers, &secret, &other, path), None);
        }
        for wrong in [
            reply(full(), b"bodz"),
            reply(Status::ok(""), b"body"),
            reply(Refusal::new(Reason::Full, "no rank is right").into(), b"body"),
            reply(Refusal::new(Reason::Ended, "no rank is left").into(), b"body"),
            reply(Status::failed_precondition("no rank is left"), b"body"),
        ] {
            assert_ne!(wrong.told(), told, "{wrong:?}");
        }
        // No digit of what the headers say can be another: not of the length, nor of a digest, nor of the proof.
        let shown = headers[REPLY_PROOF].to_str().unwrap().to_owned();
        for (at, digit) in shown.char_indices() {
            let mut wrong = shown.clone();
            wrong.replace_range(at..=at, if digit == '0' { "1" } else { "0" });
            headers.insert(REPLY_PROOF, wrong.parse().unwrap());
            assert_eq!(Told::proved(&headers, &secret, &nonces, path), None, "{wrong}");
        }
        for wrong in [&shown[1..], &shown[17..], &shown[..shown.len() - 1], &format!("{shown} 00"), ""] {
            headers.insert(REPLY_PROOF, wrong.parse().unwrap());
            assert_eq!(Told::proved(&headers, &secret, &nonces, path), None, "{wrong}");
        }
    }

    #[test]
    fn a_reply_is_read_as_it_was_sent_and_without_what_no_proof_is_of() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for sent in [reply(Status::ok(""), b"body"), reply(Status::not_found("a\tb"), b"")] {
            let mut response = sent.clone().into_response();
            // It would make tonic panic.
            response.headers_mut().insert("grpc-status-details-bin", HeaderValue::from_static("no base 64"));
            assert_eq!(runtime.block_on(Reply::read(response, 4)), Ok(sent));
        }
        let long = reply(Status::ok(""), b"0123456789").into_response();
        assert_eq!(runtime.block_on(Reply::read(long, 4)), Err(Broken::Long));
    }
}
