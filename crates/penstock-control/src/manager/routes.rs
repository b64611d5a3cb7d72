//! Which service a call is for: the first part of its path names it.
//!
//! The services that ask for a proof are told what was said: the path and the body, before it is decoded. The body is read
//! only when the headers have a proof that may be good, and only up to what its service takes.
//!
//! Five services with fixed names need no web framework behind gRPC; it was a third of what the manager compiles.

use super::shared::Shared;
use crate::error::{Reason, Refusal};
use crate::limits;
use crate::proof::{Proof, Prover, Said, shows_token};
use http_body_util::{BodyExt, Full};
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, Request, Response};
use tonic::codegen::{BoxFuture, Bytes, Service};
use tonic::server::NamedService;

/// The manager's services behind one connection.
#[derive(Clone)]
pub(super) struct Routes<Health, Proofs, Admin, Servers, Jobs> {
    pub(super) shared: Arc<Shared>,
    pub(super) health: Health,
    pub(super) proofs: Proofs,
    pub(super) admin: Admin,
    pub(super) servers: Servers,
    pub(super) jobs: Jobs,
}

/// What a generated service is.
pub(super) trait Grpc:
    Service<
        Request<Body>,
        Response = Response<Body>,
        Error = Infallible,
        Future: Future<Output = Result<Response<Body>, Infallible>> + Send + 'static,
    > + NamedService
    + Clone
    + Send
    + 'static
{
}

impl<S> Grpc for S where
    S: Service<
            Request<Body>,
            Response = Response<Body>,
            Error = Infallible,
            Future: Future<Output = Result<Response<Body>, Infallible>> + Send + 'static,
        > + NamedService
        + Clone
        + Send
        + 'static
{
}

/// Bytes before each message.
const FRAME: usize = 5;

/// What calls a service, and how much it may say.
struct Guard {
    shared: Arc<Shared>,
    /// `None`: workers; which job's stands in the request.
    who: Option<Prover>,
    most: usize,
}

impl Guard {
    /// Reads a request whole, notes what it says, and passes it on.
    async fn pass<S: Grpc>(
        self,
        mut service: S,
        request: Request<Body>,
    ) -> Result<Response<Body>, Infallible> {
        let (mut parts, body) = request.into_parts();
        let heard = async {
            let proof = self.proof(&parts.headers)?;
            Ok::<_, Status>((proof, read(body, self.most).await?))
        };
        let (proof, body) = match heard.await {
            Ok(heard) => heard,
            Err(status) => return Ok(status.into_http()),
        };
        parts.extensions.insert(Said::new(parts.uri.path(), &body));
        parts.extensions.insert(proof);
        service.call(Request::from_parts(parts, Body::new(Full::new(body)))).await
    }

    /// The proof in the headers, if there is one that may be good: strangers are not listened to any further.
    fn proof(&self, headers: &HeaderMap) -> Result<Proof, Refusal> {
        let refusal = || self.who.as_ref().map_or_else(Refusal::job_secret, Prover::refusal);
        let Some(proof) = Proof::read(headers) else {
            return Err(if shows_token(headers) { refusal().shown() } else { refusal() });
        };
        if let Some(who) = &self.who {
            self.shared.challenges.recognize(self.shared.now(), who, &proof.nonces)?;
        }
        Ok(proof)
    }
}

/// A body of one message of at most `most` bytes, in one piece: very many small ones would take very much memory.
async fn read(mut body: Body, most: usize) -> Result<Bytes, Status> {
    let mut whole = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Status::cancelled("the request broke off"))?;
        // Trailers say nothing.
        let part = frame.into_data().unwrap_or_default();
        if whole.len() + part.len() > most + FRAME {
            let message = format!("expected a request of at most {most} bytes, got more");
            return Err(Refusal::new(Reason::Invalid, message).into());
        }
        whole.extend_from_slice(&part);
    }
    Ok(whole.into())
}

/// The service's name in a path `/package.Service/Method`.
fn service_of(path: &str) -> Option<&str> {
    let (service, _method) = path.strip_prefix('/')?.split_once('/')?;
    Some(service)
}

impl<Health: Grpc, Proofs: Grpc, Admin: Grpc, Servers: Grpc, Jobs: Grpc> Service<Request<Body>>
    for Routes<Health, Proofs, Admin, Servers, Jobs>
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    /// Generated services are always ready.
    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let guard = |who, most| Guard { shared: Arc::clone(&self.shared), who, most };
        let admin = || guard(Some(Prover::Admin), limits::ADMIN_BYTES);
        let server = || guard(Some(Prover::Server), limits::SERVER_BYTES);
        let worker = || guard(None, limits::STRANGER_BYTES);
        match service_of(request.uri().path()) {
            Some(name) if name == Health::NAME => Box::pin(self.health.call(request)),
            Some(name) if name == Proofs::NAME => Box::pin(self.proofs.call(request)),
            Some(name) if name == Admin::NAME => Box::pin(admin().pass(self.admin.clone(), request)),
            Some(name) if name == Servers::NAME => Box::pin(server().pass(self.servers.clone(), request)),
            Some(name) if name == Jobs::NAME => Box::pin(worker().pass(self.jobs.clone(), request)),
            _ => Box::pin(std::future::ready(Ok(Status::unimplemented("").into_http()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::channel::Channel;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A frame of one byte, which is counted as long as it is there.
    struct Piece(Arc<AtomicUsize>);

    impl AsRef<[u8]> for Piece {
        fn as_ref(&self) -> &[u8] {
            b"x"
        }
    }

    impl Drop for Piece {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Reads a body of `frames` such frames; also says how many there were at once, and how many were sent.
    async fn read_pieces(frames: usize, most: usize) -> (Result<Bytes, Status>, usize, usize) {
        let (mut sender, body) = Channel::<Bytes, Status>::new(1);
        let there = Arc::new(AtomicUsize::new(0));
        let send = async {
            let mut at_once = 0;
            for sent in 0..frames {
                at_once = at_once.max(there.fetch_add(1, Ordering::Relaxed));
                let piece = Bytes::from_owner(Piece(Arc::clone(&there)));
                if sender.send_data(piece).await.is_err() {
                    return (at_once, sent);
                }
            }
            drop(sender);
            (at_once, frames)
        };
        let (read, (at_once, sent)) = tokio::join!(read(Body::new(body), most), send);
        (read, at_once, sent)
    }

    #[test]
    fn a_body_of_very_many_small_frames_takes_no_more_than_its_bytes() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (whole, at_once, _) = runtime.block_on(read_pieces(5000 + FRAME, 5000));
        assert_eq!(whole.unwrap().len(), 5000 + FRAME);
        assert!(at_once < 8, "{at_once} frames are kept");
        let (refused, _, sent) = runtime.block_on(read_pieces(100_000, 5000));
        assert_eq!(refused.unwrap_err().code(), tonic::Code::InvalidArgument);
        assert!(sent < 5100, "{sent} frames are read");
    }

    #[test]
    fn a_path_names_its_service_and_nothing_else_does() {
        assert_eq!(service_of("/penstock.v1.Jobs/Join"), Some("penstock.v1.Jobs"));
        assert_eq!(service_of("/penstock.v1.Jobs"), None);
        assert_eq!(service_of("penstock.v1.Jobs/Join"), None);
        assert_eq!(service_of(""), None);
    }
}
