//! A connection whose other end has proved nothing: little is read of what it says, and less is kept.

use crate::body::Broken;
use crate::error::{Refusal, in_our_words, reason};
use crate::limits;
use crate::proof::Digest;
use crate::reply::{self, Reply};
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::codegen::http::{Request, Response, StatusCode};
use tonic::codegen::{BoxFuture, Service, StdError};
use tonic::transport::Channel;
use tonic::{Code, Status};
use tower::ServiceExt;

/// Calls, and reads the reply whole, with the proof that it shows. What is kept is what a proof is of, whether there is one or
/// not: a header of anyone's choice may confuse the code of clients (one that tonic cannot decode makes it panic).
///
/// `most` says how many bytes the reply may have, knowing whether it shows a proof.
pub(super) async fn fetch(
    channel: &Channel,
    request: Request<Body>,
    most: impl FnOnce(bool) -> usize,
) -> Result<(Reply, Option<Digest>), StdError> {
    let response = channel.clone().oneshot(request).await?;
    if response.status() != StatusCode::OK {
        return Err(not_grpc(response.status()).into());
    }
    let proof = reply::shown(response.headers());
    match Reply::read(response, most(proof.is_some())).await {
        Ok(reply) => Ok((reply, proof)),
        Err(Broken::Off) => Err(Status::unavailable("the connection broke off during the answer").into()),
        Err(Broken::Long) => Err(Status::out_of_range("the answer is longer than any manager's").into()),
    }
}

/// What an answer says that is not gRPC's: of something in between, such as a proxy whose manager is away.
fn not_grpc(status: StatusCode) -> Status {
    let text = format!("it answered with the HTTP status {}", status.as_u16());
    match status.as_u16() {
        429 | 502 | 503 | 504 => Status::unavailable(text),
        _ => Status::unimplemented(text),
    }
}

/// A channel for calls that prove nothing: of a refusal it takes the code and our word, and no text, which may be anyone's and
/// would stand in a user's terminal.
#[derive(Debug, Clone)]
pub(super) struct Plain(pub(super) Channel);

impl Service<Request<Body>> for Plain {
    type Response = Response<Body>;
    type Error = StdError;
    type Future = BoxFuture<Response<Body>, StdError>;

    /// Each call waits for its own turn on the channel.
    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), StdError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let channel = self.0.clone();
        Box::pin(async move {
            let (reply, _) = fetch(&channel, request, |_| limits::STRANGER_BYTES).await?;
            match (reply.code(), reason(reply.outcome())) {
                (Code::Ok, _) => Ok(reply.into_response()),
                // A word of ours may be believed; whatever stands beside it is a stranger's.
                (code, None) => Err(in_our_words(code).into()),
                (_, Some(reason)) => {
                    Err(Status::from(Refusal::new(reason, "it refuses, without a proof")).into())
                }
            }
        })
    }
}
