//! A worker's way to a server on another host: connect, encrypt, prove that both know the job's secret.

use super::Ended;
use super::random;
use super::records::RecordStream;
use crate::limits;
use crate::options::{Options, Security};
use crate::wait::poll;
use penstock_fabric::descriptors;
use penstock_fabric::net::endpoint::Address;
use penstock_fabric::net::link::{Link as _, Segment};
use penstock_fabric::net::loopback;
use penstock_fabric::net::stream::{Stream, Traffic};
use penstock_fabric::net::tls::{self, TlsError};
use penstock_proto::error::Refusal;
use penstock_proto::handshake::{MAX_HANDSHAKE_BYTES, Purpose, WorkerHandshake};
use penstock_proto::message::Secret;
use penstock_proto::overlay::Pass;
use rustix::event::{PollFd, PollFlags};
use rustls::ClientConfig;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest single attempt to connect: a lost packet costs one of these, not the whole deadline.
const ATTEMPT: Duration = Duration::from_secs(1);
/// Longest sleep between two looks at whether to give up.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// First byte of a connection without TLS, whose own first byte is 22.
pub(crate) const PLAIN: u8 = b'P';

/// Why there is no connection.
#[derive(Debug)]
pub(crate) enum DialError {
    /// The server refused: there is no use in trying again.
    Refused(Refusal),
    /// What answered refused, or did not prove that it is the server: it may be anyone. There is no use in trying again unless the
    /// server was reached before, since then the server itself would not say so.
    Unproved(Refusal),
    /// Its certificate is not trusted, or it does not speak TLS: there is no use in trying again either.
    Untrusted(String),
    /// This process or host has run out of something that a connection needs; the other end is not to blame. Why.
    Lacking(String),
    /// It could not be reached now.
    Unreachable(io::Error),
    /// The caller gave up.
    GivenUp,
}

impl From<io::Error> for DialError {
    fn from(error: io::Error) -> Self {
        if descriptors::is_no_room(&error) {
            Self::Lacking(limits::explain_io(&error))
        } else {
            Self::Unreachable(error)
        }
    }
}

impl From<Ended> for DialError {
    fn from(ended: Ended) -> Self {
        Self::Unreachable(ended.into())
    }
}

impl DialError {
    /// A refusal of this kind, unless it is for now only.
    fn refused(refusal: Refusal, kind: impl FnOnce(Refusal) -> Self) -> Self {
        if refusal == Refusal::Busy {
            Self::Unreachable(io::Error::other(refusal.to_string()))
        } else {
            kind(refusal)
        }
    }
}

/// How to reach one server of a job.
#[derive(Debug)]
pub(crate) struct Dialer {
    address: Address,
    job: String,
    secret: Secret,
    security: Security,
    tls: Arc<ClientConfig>,
    /// How long the kernel puts up with a silent peer.
    patience: Duration,
    /// What its connections add to.
    traffic: Arc<Traffic>,
}

impl Dialer {
    pub(crate) fn new(
        address: Address,
        job: &str,
        secret: Secret,
        options: &Options,
    ) -> Result<Self, TlsError> {
        Ok(Self {
            address,
            job: job.to_owned(),
            secret,
            security: options.security,
            tls: tls::client(options.ca.as_deref())?,
            patience: options.lease,
            traffic: Arc::default(),
        })
    }

    /// The same, whose connections add to this count.
    pub(crate) fn counting(self, traffic: &Arc<Traffic>) -> Self {
        Self { traffic: Arc::clone(traffic), ..self }
    }

    /// The same server, by another of its addresses.
    pub(crate) fn by(&self, address: Address) -> Self {
        let (tls, traffic) = (Arc::clone(&self.tls), Arc::clone(&self.traffic));
        Self { address, job: self.job.clone(), tls, traffic, ..*self }
    }

    /// The same, to a worker that knows who comes by this pass, and is known by it.
    pub(crate) fn showing(self, pass: &Pass) -> Self {
        Self { secret: pass.secret(&self.secret), ..self }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// What its connections add to.
    pub(crate) fn traffic(&self) -> &Arc<Traffic> {
        &self.traffic
    }

    pub(crate) fn job(&self) -> &str {
        &self.job
    }

    /// How long a single attempt may take where the other end says nothing: a lost packet is sent again within it.
    pub(crate) fn attempt(&self) -> Duration {
        (self.patience / 2).max(ATTEMPT)
    }

    /// One attempt, which takes until `until` at most. `give_up` is asked now and then.
    pub(crate) fn dial(
        &self,
        purpose: Purpose,
        until: Instant,
        give_up: &dyn Fn() -> bool,
    ) -> Result<Stream, DialError> {
        // An attempt shorter than a look at the clock: see `Vigil`.
        let attempt = ATTEMPT.min(self.patience / 4).max(LOOK_EVERY);
        let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
        let addresses = (&self.address.host[..], self.address.port).to_socket_addrs()?;
        for address in addresses {
            let left = until.saturating_duration_since(Instant::now()).min(attempt);
            if left.is_zero() {
                return Err(io::Error::from(ErrorKind::TimedOut).into());
            }
            match loopback::connect(address, left) {
                Ok(socket) => return self.introduce(socket, address, purpose, until, give_up),
                Err(error) => last = error,
            }
            if give_up() {
                return Err(DialError::GivenUp);
            }
        }
        Err(last.into())
    }

    fn introduce(
        &self,
        socket: TcpStream,
        address: SocketAddr,
        purpose: Purpose,
        until: Instant,
        give_up: &dyn Fn() -> bool,
    ) -> Result<Stream, DialError> {
        let mut stream = Stream::plain(socket, self.patience)?.counted(Arc::clone(&self.traffic));
        let encrypt = match self.security {
            Security::Auto => !address.ip().to_canonical().is_loopback(),
            Security::Tls => true,
            Security::Insecure => false,
        };
        let wait = |stream: &Stream, write: bool| -> Result<(), DialError> {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::from(ErrorKind::TimedOut).into());
            }
            if give_up() {
                return Err(DialError::GivenUp);
            }
            let flags = if write { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            let _ = poll(&mut [PollFd::new(stream, flags)], Some(left.min(LOOK_EVERY)));
            Ok(())
        };
        if encrypt {
            stream = stream.connect_tls(Arc::clone(&self.tls), &self.address.host)?;
            let refused = |error: io::Error| match error.kind() {
                ErrorKind::InvalidData => DialError::Untrusted(error.to_string()),
                _ => error.into(),
            };
            while !stream.is_ready().map_err(refused)? {
                wait(&stream, stream.holds_output())?;
            }
        }
        if !encrypt {
            // Tells a plain hello from the first byte of TLS.
            stream.write(&[Segment::Own(&[PLAIN])])?;
        }
        let binding = stream.binding()?;
        let nonce = random::bytes().map_err(io::Error::from)?;
        let (handshake, hello) =
            WorkerHandshake::start(&self.job, self.secret, purpose, nonce).map_err(DialError::Refused)?;
        let mut records = RecordStream::new(stream, MAX_HANDSHAKE_BYTES);
        let mut ask = |message: &[u8]| -> Result<Vec<u8>, DialError> {
            records.send(message)?;
            loop {
                records.flush()?;
                if let Some(answer) = records.receive()? {
                    return Ok(answer);
                }
                wait(records.stream(), records.holds_output())?;
            }
        };
        let challenge = ask(&hello)?;
        let answered = handshake.answer(&challenge, &binding);
        let proof = answered.map_err(|refusal| DialError::refused(refusal, DialError::Unproved))?;
        let verdict = ask(&proof)?;
        WorkerHandshake::finish(&verdict)
            .map_err(|refusal| DialError::refused(refusal, DialError::Refused))?;
        Ok(records.into_stream())
    }
}
