//! Which service a call is for: the first part of its path names it.
//!
//! The services that ask for a proof are told who has proved what. A request is read only when its headers have proved it, and
//! only up to what its service takes.
//!
//! Five services with fixed names need no web framework behind gRPC; it was a third of what the manager compiles.

use super::proofs::Kind;
use super::proved::Proved;
use super::shared::Shared;
use crate::body;
use crate::limits;
use crate::reply::Reply;
use http_body_util::Full;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, Request, Response};
use tonic::codegen::{BoxFuture, Service};
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

/// What calls a service, and how much it may say.
struct Guard {
    shared: Arc<Shared>,
    kind: Kind,
    most: usize,
}

impl Guard {
    /// Reads the request of a caller that has proved itself, passes it on, and proves the answer.
    async fn pass<S: Grpc>(
        self,
        mut service: S,
        request: Request<Body>,
    ) -> Result<Response<Body>, Infallible> {
        let (mut parts, body) = request.into_parts();
        let proved = match Proved::check(&self.shared, self.kind, parts.uri.path(), &parts.headers) {
            Ok(proved) => proved,
            Err(refusal) => return Ok(Status::from(refusal).into_http()),
        };
        let response = match proved.hear(&self.shared, body, self.most).await {
            Ok(body) => {
                proved.mark(&mut parts);
                service.call(Request::from_parts(parts, Body::new(Full::new(body)))).await?
            }
            Err(status) => status.into_http(),
        };
        Ok(proved.answer(response).await)
    }
}

/// A call of anyone. Of what it sends its body alone is kept, and that goes at the end of its time. Its answer is whole by then,
/// or it gets none: there are no streams for strangers.
async fn briefly<S: Grpc>(mut service: S, request: Request<Body>) -> Result<Response<Body>, Infallible> {
    let (mut parts, body) = request.into_parts();
    // Very many small ones take more memory than they have bytes.
    parts.headers = HeaderMap::new();
    let whole = async {
        let body = match body::read(body, limits::STRANGER_BYTES).await {
            Ok((body, _trailers)) => body,
            Err(broken) => return Ok(broken.of_request(limits::STRANGER_BYTES).into_http()),
        };
        let response = service.call(Request::from_parts(parts, Body::new(Full::new(body)))).await?;
        let reply = Reply::read(response, limits::STRANGER_BYTES).await;
        Ok(reply.map_or_else(|_| Status::internal("the answer broke off").into_http(), Reply::into_response))
    };
    let late = || Ok(Status::deadline_exceeded("the call did not end in time").into_http());
    tokio::time::timeout(limits::STRANGER_CALL, whole).await.unwrap_or_else(|_| late())
}

/// A stream of the service's health.
const WATCH: &str = "/grpc.health.v1.Health/Watch";

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
        let guard = |kind, most| Guard { shared: Arc::clone(&self.shared), kind, most };
        let admin = || guard(Kind::Admin, limits::ADMIN_BYTES);
        let server = || guard(Kind::Server, limits::SERVER_BYTES);
        let worker = || guard(Kind::Worker, limits::WORKER_BYTES);
        let unimplemented =
            || -> Self::Future { Box::pin(std::future::ready(Ok(Status::unimplemented("").into_http()))) };
        match service_of(request.uri().path()) {
            // By its definition that keeps clients from asking again and again.
            _ if request.uri().path() == WATCH => unimplemented(),
            Some(name) if name == Health::NAME => Box::pin(briefly(self.health.clone(), request)),
            Some(name) if name == Proofs::NAME => Box::pin(briefly(self.proofs.clone(), request)),
            Some(name) if name == Admin::NAME => Box::pin(admin().pass(self.admin.clone(), request)),
            Some(name) if name == Servers::NAME => Box::pin(server().pass(self.servers.clone(), request)),
            Some(name) if name == Jobs::NAME => Box::pin(worker().pass(self.jobs.clone(), request)),
            _ => unimplemented(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_its_service_and_nothing_else_does() {
        assert_eq!(service_of("/penstock.v1.Jobs/Join"), Some("penstock.v1.Jobs"));
        assert_eq!(service_of("/penstock.v1.Jobs"), None);
        assert_eq!(service_of("penstock.v1.Jobs/Join"), None);
        assert_eq!(service_of(""), None);
    }
}
