//! Calls whose callers have proved themselves: by their headers alone, so that nothing is read of anyone else. Their answers
//! carry a proof in return.

use super::admission::Caller;
use super::proofs::Kind;
use super::shared::Shared;
use crate::body;
use crate::error::{Reason, Refusal};
use crate::limits;
use crate::proof::{Nonces, Proof, Prover, Said, of_another_version};
use crate::reply::Reply;
use crate::seal::Seal;
use penstock_proto::message::Secret;
use std::time::{Duration, Instant};
use tonic::body::Body;
use tonic::codegen::Bytes;
use tonic::codegen::http::request::Parts;
use tonic::codegen::http::{HeaderMap, Response};
use tonic::{Request, Status};

/// A call whose caller has proved a secret.
#[derive(Debug, Clone)]
pub(super) struct Proved {
    who: Prover,
    secret: Secret,
    nonces: Nonces,
    said: Said,
    /// Until when it may be carried out, since the manager started.
    pub(super) until: Duration,
}

impl Proved {
    /// One that may be carried out until then.
    #[cfg(test)]
    pub(super) fn of(who: Prover, secret: Secret, until: Duration) -> Self {
        let (nonces, said) = (Nonces { client: [0; 32], manager: [0; 32] }, Said::new("", b""));
        Self { who, secret, nonces, said, until }
    }

    /// A worker's.
    #[cfg(test)]
    pub(super) fn of_worker(job: &str, secret: Secret, until: Duration) -> Self {
        Self::of(Prover::Worker { job: job.to_owned() }, secret, until)
    }

    /// Refuses a caller that does not prove that it knows its secret, for this very call and no earlier one.
    pub(super) fn check(
        shared: &Shared,
        kind: Kind,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Self, Refusal> {
        let Some(proof) = Proof::read(headers) else {
            let refusal = kind.refusal();
            return Err(if of_another_version(headers) { refusal.of_another_version() } else { refusal });
        };
        let (who, secret) = shared.whose(kind, &proof.job);
        let now = shared.now();
        let mark = shared.challenges.recognize(now, &who, &proof.nonces)?;
        let said = proof.said(path);
        if !said.proves(&secret, &proof) {
            return Err(who.refusal());
        }
        // After the proof: only a caller that knows the secret makes the manager remember anything. Before the body: a caller
        // that repeats headers that it has overheard is not listened to.
        shared.challenges.take(now, &who, mark)?;
        Ok(Self { who, secret, nonces: proof.nonces, said, until: mark.0 + limits::PROOF_LIFE })
    }

    /// The request's body, if it comes in time and is the one that was proved.
    pub(super) async fn hear(&self, shared: &Shared, body: Body, most: usize) -> Result<Bytes, Status> {
        let left = self.until.saturating_sub(shared.now());
        let heard = tokio::time::timeout(left, body::read(body, most)).await.map_err(|_| Refusal::stale())?;
        let body = match heard {
            Ok((body, _trailers)) => body,
            Err(broken) => return Err(broken.of_request(most)),
        };
        if !self.said.has_body(&body) {
            let message =
                "the request is not the one that its proof is of: something on the way has changed it";
            return Err(Refusal::new(self.who.refusal().reason, message).into());
        }
        Ok(body)
    }

    /// Refuses a call whose proof is over by now. Its client asks again, if it still waits.
    pub(super) fn in_time(&self, now: Duration) -> Result<(), Refusal> {
        if now < self.until {
            return Ok(());
        }
        Err(match self.who {
            // Its client calls again as long as it likes. It is not its servers that it waited for.
            Prover::Worker { .. } => Refusal::new(Reason::Busy, "the manager came to this call too late"),
            Prover::Admin | Prover::Server => Refusal::stale(),
        })
    }

    /// The call goes on to its service as one of this caller's; the connection of one that knows a token is not put out.
    pub(super) fn mark(&self, parts: &mut Parts) {
        let caller = parts.extensions.get::<Caller>().filter(|_| !matches!(self.who, Prover::Worker { .. }));
        if let Some(caller) = caller {
            caller.mark_known(Instant::now());
        }
        parts.extensions.insert(self.clone());
    }

    /// The answer, with its proof.
    pub(super) async fn answer(&self, response: Response<Body>) -> Response<Body> {
        match Reply::read(response, usize::MAX).await {
            Ok(reply) => reply.prove(&self.secret, &self.nonces, &self.said.path),
            Err(_) => Status::internal("the answer broke off").into_http(),
        }
    }

    /// The job whose secret a worker has proved, and that secret.
    pub(super) fn job(&self) -> Result<(&str, Secret), Refusal> {
        match &self.who {
            Prover::Worker { job } => Ok((job, self.secret)),
            Prover::Admin | Prover::Server => Err(Refusal::job_secret()),
        }
    }

    /// What seals secrets in the answer.
    pub(super) fn seal(&self) -> Seal {
        Seal::new(&self.secret, &self.nonces)
    }

    /// What a server has signed.
    pub(super) fn to_sign(&self) -> Vec<u8> {
        self.said.to_sign(&self.nonces)
    }
}

/// What the caller of a request has proved.
pub(super) fn proved<T>(request: &Request<T>) -> &Proved {
    request.extensions().get().expect("every call comes by way of the routes")
}

/// What an administrator has proved; refuses whoever is not one.
pub(super) fn require_admin<T>(request: &Request<T>) -> Result<Proved, Refusal> {
    require(request, &Prover::Admin)
}

/// What a server has proved; refuses whoever is not one.
pub(super) fn require_server<T>(request: &Request<T>) -> Result<Proved, Refusal> {
    require(request, &Prover::Server)
}

fn require<T>(request: &Request<T>, who: &Prover) -> Result<Proved, Refusal> {
    let proved = proved(request);
    match proved.who == *who {
        true => Ok(proved.clone()),
        false => Err(who.refusal()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::reason;
    use http_body_util::{BodyExt, Full};

    #[test]
    fn a_request_is_heard_if_it_is_the_one_that_was_proved_and_ends_while_its_proof_is_good() {
        let folder = tempfile::tempdir().unwrap();
        let shared = Shared::in_folder(folder.path());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let hear = |text: &'static [u8], ends: bool, life| {
            let body = Full::new(Bytes::from_static(text));
            let body = match ends {
                true => Body::new(body),
                false => Body::new(body.with_trailers(std::future::pending())),
            };
            let said = Said::new("/a.B/C", b"body");
            let proved = Proved::of_worker("a", Secret([7; 32]), shared.now() + life);
            let proved = Proved { said, ..proved };
            let heard = runtime.block_on(proved.hear(&shared, body, 4));
            heard.map_err(|status| reason(status.metadata().as_ref()).unwrap())
        };
        assert_eq!(hear(b"body", true, limits::PROOF_LIFE), Ok(Bytes::from_static(b"body")));
        assert_eq!(hear(b"bodz", true, limits::PROOF_LIFE), Err(Reason::JobSecret));
        assert_eq!(hear(b"body and more", false, limits::PROOF_LIFE), Err(Reason::Invalid));
        assert_eq!(hear(b"body", false, Duration::from_millis(50)), Err(Reason::StaleProof));
    }
}
