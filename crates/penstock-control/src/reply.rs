//! What a manager answers: read whole, proved, and believed as far as its proof goes and no further.

use crate::body::{self, Broken};
use crate::error::REASON;
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

    fn mac(&self, secret: &Secret, nonces: &Nonces, path: &str) -> Hmac<Sha256> {
        let mut outcome = Sha256::new();
        for name in OUTCOME {
            // No header holds a line's end.
            outcome.update(self.outcome.get(name).map_or(&b""[..], HeaderValue::as_bytes));
            outcome.update(b"\n");
        }
        let (outcome, body): (Digest, Digest) =
            (outcome.finalize().into(), Sha256::digest(&self.body).into());
        let parts: [&[u8]; 5] = [&nonces.client, &nonces.manager, &body, &outcome, path.as_bytes()];
        mac(secret, b"penstock reply proof 1 ", &parts)
    }

    /// As it is sent, with the proof that it comes from a manager that knows the secret, for this one call.
    pub(crate) fn prove(self, secret: &Secret, nonces: &Nonces, path: &str) -> Response<Body> {
        let proof = hex(&self.mac(secret, nonces, path).finalize().into_bytes());
        let mut value = HeaderValue::try_from(proof).expect("digits are ASCII");
        // Kept out of the tables of HTTP/2, since it comes once.
        value.set_sensitive(true);
        let mut response = self.into_response();
        response.headers_mut().insert(REPLY_PROOF, value);
        response
    }

    /// Whether `proof` is one of this reply; takes equally long for all wrong ones.
    pub(crate) fn proves(&self, secret: &Secret, nonces: &Nonces, path: &str, proof: &Digest) -> bool {
        self.mac(secret, nonces, path).verify_slice(proof).is_ok()
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

/// The proof that a reply shows.
pub(crate) fn shown(headers: &HeaderMap) -> Option<Digest> {
    unhex(headers.get(REPLY_PROOF)?.to_str().ok()?)
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
        let proof = shown(right.clone().prove(&secret, &nonces, path).headers()).unwrap();
        assert!(right.proves(&secret, &nonces, path, &proof));
        assert!(!right.proves(&Secret(random()), &nonces, path, &proof));
        assert!(!right.proves(&secret, &nonces, "/a.B/D", &proof));
        for other in [Nonces { client: random(), ..nonces }, Nonces { manager: random(), ..nonces }] {
            assert!(!right.proves(&secret, &other, path, &proof));
        }
        for wrong in [
            reply(full(), b"bodz"),
            reply(Status::ok(""), b"body"),
            reply(Refusal::new(Reason::Full, "no rank is right").into(), b"body"),
            reply(Refusal::new(Reason::Ended, "no rank is left").into(), b"body"),
            reply(Status::failed_precondition("no rank is left"), b"body"),
        ] {
            assert!(!wrong.proves(&secret, &nonces, path, &proof), "{wrong:?}");
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
