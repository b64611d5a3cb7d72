//! A connection to a manager: TLS 1.3, or plain text that stays on this host.

use crate::address::{Address, stays_here};
use crate::error::{Error, deepest};
use crate::{limits, tls};
use hyper_util::rt::TokioIo;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::transport::{Channel, Endpoint, Uri};

/// Longest time for a connection with its handshake.
pub(crate) const DIAL: Duration = Duration::from_secs(5);

/// Which manager, and how to talk to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// `HOST:PORT`.
    pub address: String,
    /// PEM file of the CAs to trust; without one the manager has to be on this host.
    pub ca: Option<PathBuf>,
    /// Whether plain text may go to other hosts. Tokens and secrets are never in it.
    pub insecure: bool,
}

impl Target {
    /// A manager on this host, or, with [`Target::ca`] set, anywhere.
    pub fn new(address: &str) -> Self {
        Self { address: address.to_owned(), ca: None, insecure: false }
    }
}

/// Makes connections to one manager.
#[derive(Clone)]
pub(crate) struct Dialer {
    address: Address,
    tls: Option<TlsConnector>,
    insecure: bool,
}

/// Bytes to and fro, whichever way.
trait Wire: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Wire for T {}

impl Dialer {
    pub(crate) fn new(target: &Target) -> Result<Self, Error> {
        let address = Address::parse(&target.address)?;
        let tls = target.ca.as_deref().map(tls::connector).transpose()?;
        Ok(Self { address, tls, insecure: target.insecure })
    }

    /// The manager's address, for messages.
    pub(crate) fn name(&self) -> String {
        self.address.to_string()
    }

    /// Connects, or says why not.
    pub(crate) async fn dial(&self) -> Result<Channel, Error> {
        let unreachable = |reason: String| Error::Unreachable { address: self.name(), reason };
        let addresses = self.address.resolve().await.map_err(|error| unreachable(error.to_string()))?;
        if self.tls.is_none() && !self.insecure && !stays_here(&addresses) {
            return Err(Error::NeedsTls { address: self.name() });
        }
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address))
            .map_err(|_| Error::Address { got: self.name() })?
            .connect_timeout(DIAL)
            .http2_keep_alive_interval(limits::KEEP_ALIVE)
            .keep_alive_timeout(limits::KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(limits::AHEAD_BYTES)
            .initial_connection_window_size(limits::AHEAD_BYTES);
        let (tls, host) = (self.tls.clone(), self.address.host.clone());
        let addresses: Arc<[SocketAddr]> = addresses.into();
        // The transport tells its errors apart by text only.
        let distrust = Arc::new(OnceLock::new());
        let said = Arc::clone(&distrust);
        let connector = tower::service_fn(move |_: Uri| {
            let (tls, host, addresses) = (tls.clone(), host.clone(), Arc::clone(&addresses));
            let said = Arc::clone(&said);
            async move {
                let wire = wire(tls, host, &addresses).await;
                if let Some(reason) = wire.as_ref().err().and_then(not_trusted) {
                    let _ = said.set(reason);
                }
                wire.map(TokioIo::new)
            }
        });
        match tokio::time::timeout(DIAL, endpoint.connect_with_connector(connector)).await {
            Ok(Ok(channel)) => Ok(channel),
            Ok(Err(error)) => Err(match distrust.get().cloned() {
                Some(reason) => Error::Untrusted { address: self.name(), reason },
                None => unreachable(deepest(&error)),
            }),
            Err(_) => Err(Error::Unanswered { address: self.name(), waited: DIAL }),
        }
    }
}

/// Why the other side's certificate was refused, if that was it.
fn not_trusted(error: &io::Error) -> Option<String> {
    let inner = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    matches!(inner, rustls::Error::InvalidCertificate(_)).then(|| inner.to_string())
}

async fn wire(
    tls: Option<TlsConnector>,
    host: String,
    addresses: &[SocketAddr],
) -> io::Result<Box<dyn Wire>> {
    let stream = TcpStream::connect(addresses).await?;
    stream.set_nodelay(true)?;
    let Some(tls) = tls else { return Ok(Box::new(stream)) };
    let name =
        ServerName::try_from(host).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    Ok(Box::new(tls.connect(name, stream).await?))
}
