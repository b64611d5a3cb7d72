//! A connection whose other end has proved nothing: little is read of what it says, and less is kept.

use crate::body::Broken;
use crate::error::{Refusal, in_our_words, reason};
use crate::limits;
use crate::reply::Reply;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::codegen::http::{Request, Response, StatusCode};
use tonic::codegen::{BoxFuture, Service, StdError};
use tonic::transport::Channel;
use tonic::{Code, Status};
use tower::ServiceExt;

/// Calls, and returns as soon as there are headers.
pub(super) async fn ask(channel: &Channel, request: Request<Body>) -> Result<Response<Body>, StdError> {
    let response = channel.clone().oneshot(request).await?;
    match response.status() {
        StatusCode::OK => Ok(response),
        status => Err(not_grpc(status).into()),
    }
}

/// Reads the reply whole, of at most `most` bytes. What is kept is what a proof is of, whether there is one or not: a header
/// that anyone may choose can break the code of clients (tonic panics at one that it cannot decode).
pub(super) async fn hear(response: Response<Body>, most: usize) -> Result<Reply, Status> {
    Reply::read(response, most).await.map_err(|broken| match broken {
        Broken::Off => Status::unavailable("the connection broke off during the answer"),
        Broken::Long => Status::out_of_range("the answer is longer than a manager's"),
    })
}

/// What an answer says that is not gRPC's: of something in between, such as a proxy whose manager is away.
fn not_grpc(status: StatusCode) -> Status {
    let text = format!("it answered with the HTTP status {}", status.as_u16());
    match status.as_u16() {
        431 => Status::unimplemented(format!(
            "{text}: the call's headers are longer than it takes ({} KiB, if it is a manager); a proxy may have added some",
            limits::HEADER_BYTES >> 10
        )),
        429 | 502 | 503 | 504 => Status::unavailable(text),
        _ => Status::unimplemented(text),
    }
}

/// A channel for calls that prove nothing. Of a refusal it takes the code and our own word for it, but no text: that could be
/// anyone's, and would be shown in a user's terminal.
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
            let reply = hear(ask(&channel, request).await?, limits::STRANGER_BYTES).await?;
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
