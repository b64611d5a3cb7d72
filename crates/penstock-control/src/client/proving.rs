//! A connection on which every call proves its secret, and every answer too: a challenge first, then the call with what follows
//! from it.

use super::plain::{Plain, ask, hear};
use crate::error::{Reason, Refusal, in_our_words, reason};
use crate::limits;
use crate::proof::{Nonces, Prover, Said};
use crate::proto;
use crate::proto::proofs_client::ProofsClient;
use crate::reply::{Reply, Told};
use crate::seal::Seal;
use crate::secret::random;
use crate::server_key::ServerKey;
use http_body_util::{BodyExt, Full};
use penstock_proto::message::Secret;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::codegen::http::request::Parts;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{BoxFuture, Bytes, Service, StdError};
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Code, Status};

/// A channel to a manager for calls of one prover; generated clients run on it as on a bare one.
///
/// A manager that does not prove that it knows the secret is told who asks, and for which job, and nothing else; the call fails
/// with the refusal of a wrong secret. So it does where the answer is not proved. A challenge that has gone stale on the way
/// (the manager was restarted) is asked for once more.
#[derive(Debug, Clone)]
pub struct Proving {
    channel: Channel,
    prover: Prover,
    secret: Secret,
    key: Option<ServerKey>,
}

/// A call, as it is said again where its challenge was stale.
struct Call {
    parts: Parts,
    body: Bytes,
    said: Said,
}

impl Proving {
    /// Calls as `prover`, which knows `secret`.
    pub fn new(channel: Channel, prover: Prover, secret: Secret) -> Self {
        Self { channel, prover, secret, key: None }
    }

    /// Calls of the server whose key this is: they are signed with it too.
    #[must_use]
    pub fn signing(self, key: ServerKey) -> Self {
        Self { key: Some(key), ..self }
    }

    async fn prove(self, request: Request<Body>) -> Result<Response<Body>, StdError> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let said = Said::new(parts.uri.path(), &body);
        let call = Call { parts, body, said };
        let first = self.attempt(&call).await;
        match is_stale(&first) {
            true => self.attempt(&call).await,
            false => first,
        }
    }

    async fn attempt(&self, call: &Call) -> Result<Response<Body>, StdError> {
        let nonces = self.challenge().await?;
        let mut parts = call.parts.clone();
        let mut metadata = MetadataMap::from_headers(std::mem::take(&mut parts.headers));
        call.said.prove(&self.secret, &nonces, &self.prover).show(&mut metadata);
        if let Some(key) = &self.key {
            key.show(&call.said.to_sign(&nonces), &mut metadata);
        }
        parts.headers = metadata.into_headers();
        let request = Request::from_parts(parts, Body::new(Full::new(Bytes::clone(&call.body))));
        let response = ask(&self.channel, request).await?;
        let told = Told::proved(response.headers(), &self.secret, &nonces, &call.said.path);
        // What is not proved can be nothing but a refusal, which is short.
        let reply = hear(response, told.map_or(limits::STRANGER_BYTES, |told| told.most())).await?;
        if told != Some(reply.told()) {
            return Err(self.unproved(&reply).into());
        }
        let mut response = reply.into_response();
        response.extensions_mut().insert(Seal::new(&self.secret, &nonces));
        Ok(response)
    }

    /// What an answer without a proof counts as: no more than a lost answer.
    fn unproved(&self, reply: &Reply) -> Status {
        use Code::{Cancelled, DeadlineExceeded, ResourceExhausted, Unavailable};
        match (reason(reply.outcome()), reply.code()) {
            (Some(Reason::Busy), _) => Refusal::busy().into(),
            (Some(Reason::StaleProof), _) => Refusal::stale().into(),
            (None, code @ (Cancelled | DeadlineExceeded | ResourceExhausted | Unavailable)) => {
                in_our_words(code)
            }
            _ => Refusal::not_proved(&self.prover).into(),
        }
    }

    /// The nonces of a call, once the manager has proved itself.
    async fn challenge(&self) -> Result<Nonces, Status> {
        let client = random();
        let (prover, job) = match &self.prover {
            Prover::Admin => (proto::Prover::Admin, String::new()),
            Prover::Server => (proto::Prover::Server, String::new()),
            Prover::Worker { job } => (proto::Prover::Worker, job.clone()),
        };
        let asked = proto::ChallengeRequest { nonce: client.to_vec(), prover: prover.into(), job };
        let not_its_manager = || Refusal::not_its_manager(&self.prover);
        let reply = match ProofsClient::new(Plain(self.channel.clone())).challenge(asked).await {
            Ok(reply) => reply.into_inner(),
            // Nothing has been proved yet. A manager that is believed to be busy can do no more than one that says nothing.
            Err(status) => match reason(status.metadata().as_ref()) {
                None => return Err(status),
                Some(Reason::Busy) => return Err(Refusal::busy().into()),
                Some(_) => return Err(not_its_manager().into()),
            },
        };
        let manager = reply.nonce.try_into().map_err(|_| not_its_manager())?;
        let nonces = Nonces { client, manager };
        match nonces.manager_proves(&self.secret, &self.prover, &reply.proof) {
            true => Ok(nonces),
            false => Err(not_its_manager().into()),
        }
    }
}

/// Whether the manager's nonce was no longer good. Anyone could say so, but asking once more does no harm.
fn is_stale(answer: &Result<Response<Body>, StdError>) -> bool {
    let told = match answer {
        Ok(response) => reason(response.headers()),
        Err(error) => {
            let status = error.downcast_ref::<Status>();
            status.and_then(|status| reason(status.metadata().as_ref()))
        }
    };
    told == Some(Reason::StaleProof)
}

impl Service<Request<Body>> for Proving {
    type Response = Response<Body>;
    type Error = StdError;
    type Future = BoxFuture<Response<Body>, StdError>;

    /// Each call waits for its own turns on the channel.
    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), StdError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().prove(request))
    }
}
