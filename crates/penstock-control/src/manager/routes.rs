//! Which service a call is for: the first part of its path names it.
//!
//! Four services with fixed names need no web framework behind gRPC; it was a third of what the manager compiles.

use std::convert::Infallible;
use std::task::{Context, Poll};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{BoxFuture, Service};
use tonic::server::NamedService;

/// The manager's services behind one connection.
#[derive(Clone)]
pub(super) struct Routes<Health, Admin, Servers, Jobs> {
    pub(super) health: Health,
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
{
}

impl<S> Grpc for S where
    S: Service<
            Request<Body>,
            Response = Response<Body>,
            Error = Infallible,
            Future: Future<Output = Result<Response<Body>, Infallible>> + Send + 'static,
        > + NamedService
{
}

/// The service's name in a path `/package.Service/Method`.
fn service_of(path: &str) -> Option<&str> {
    let (service, _method) = path.strip_prefix('/')?.split_once('/')?;
    Some(service)
}

impl<Health: Grpc, Admin: Grpc, Servers: Grpc, Jobs: Grpc> Service<Request<Body>>
    for Routes<Health, Admin, Servers, Jobs>
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    /// Generated services are always ready.
    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        match service_of(request.uri().path()) {
            Some(name) if name == Health::NAME => Box::pin(self.health.call(request)),
            Some(name) if name == Admin::NAME => Box::pin(self.admin.call(request)),
            Some(name) if name == Servers::NAME => Box::pin(self.servers.call(request)),
            Some(name) if name == Jobs::NAME => Box::pin(self.jobs.call(request)),
            _ => Box::pin(std::future::ready(Ok(Status::unimplemented("").into_http()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::service_of;

    #[test]
    fn a_path_names_its_service_and_nothing_else_does() {
        assert_eq!(service_of("/penstock.v1.Jobs/Join"), Some("penstock.v1.Jobs"));
        assert_eq!(service_of("/penstock.v1.Jobs"), None);
        assert_eq!(service_of("penstock.v1.Jobs/Join"), None);
        assert_eq!(service_of(""), None);
    }
}
