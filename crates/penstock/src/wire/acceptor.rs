//! The acceptor: one thread that accepts network connections, of a server or of a worker that takes others in, lets strangers prove
//! which job they belong to, and passes those that did to what is [behind](Behind) it under the job's name.
//!
//! Strangers get little: a deadline, a bounded number of places, of which one host cannot take those of another
//! ([`penstock_proto::strangers`]), and no thread of any job. A job that does not exist is answered like a wrong secret.

use super::dial::PLAIN;
use super::random;
use super::records::RecordStream;
use crate::options::{Options, Security};
use crate::server::StartError;
use crate::server::fair_share::LONG;
use crate::thread::{self, Wakeup};
use crate::wait;
use penstock_fabric::forked::Maker;
use penstock_fabric::net::endpoint::Address;
use penstock_fabric::net::gate::{self, Gate, SILENT};
use penstock_fabric::net::link::{Got, Link as _};
use penstock_fabric::net::stream::Stream;
use penstock_fabric::net::tls;
use penstock_proto::error::{JobFailure, Refusal};
use penstock_proto::handshake::{MAX_HANDSHAKE_BYTES, Purpose, ServerHandshake, Verdict, verdict};
use penstock_proto::message::Secret;
use penstock_proto::strangers::{self, Places};
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use rustls::ServerConfig;
use std::collections::HashMap;
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// For connections that have not proved who they are.
pub(crate) const AT_SERVERS: Places = Places { a_host: 256, all: 2048, few: 64 };
/// The same at a worker, whose descriptors are its program's.
pub(crate) const AT_WORKERS: Places = Places { a_host: 32, all: 64, few: 16 };
/// Longest time that a stranger may take.
const PROVE_WITHIN: Duration = Duration::from_secs(10);

const WAKEUP: u64 = u64::MAX;
const LISTENERS: u64 = u64::MAX - 1024;

/// What is behind an acceptor under the name of a job. It is asked and told by the acceptor's thread, and keeps it waiting for
/// nothing.
pub(crate) trait Behind: Send + Sync {
    /// How the job ended; `None` as long as it goes on. Who comes later is told so.
    fn outcome(&self) -> Option<Result<(), JobFailure>>;

    /// What both ends of a connection for this prove that they know: the secret of the job, unless they know more of each other.
    fn secret(&self, _: &Purpose, of_job: Secret) -> Secret {
        of_job
    }

    /// Whether a connection may come in for this; it has proved that it belongs to the job.
    fn may_enter(&self, purpose: &Purpose) -> Result<(), Refusal>;

    /// Takes it in.
    fn enter(&self, arrival: Arrival);
}

/// A connection from the network, and what it is for.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) stream: Stream,
    pub(crate) purpose: Purpose,
    /// Whether its round trip is long.
    pub(crate) long: bool,
}

/// A job behind the acceptor.
struct Job {
    secret: Secret,
    behind: Arc<dyn Behind>,
}

struct State {
    jobs: Mutex<HashMap<String, Job>>,
    /// Whether connections are let in; until then they stand in the kernel's queue.
    open: AtomicBool,
    stop: AtomicBool,
    wakeup: Wakeup,
}

impl State {
    fn jobs(&self) -> MutexGuard<'_, HashMap<String, Job>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The acceptor.
pub(crate) struct Acceptor {
    state: Arc<State>,
    addresses: Vec<SocketAddr>,
    thread: Option<JoinHandle<()>>,
    maker: Maker,
}

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Acceptor").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

impl Acceptor {
    /// Listens on these addresses, and lets no connection in before it [is open](Self::open).
    pub(crate) fn new(listen: &[Address], options: &Options, places: Places) -> Result<Self, StartError> {
        let files = match (&options.certificate, &options.key) {
            (Some(certificate), Some(key)) => Some((certificate.as_path(), key.as_path())),
            (None, None) => None,
            _ => return Err(StartError::HalfCertificate),
        };
        let tls = tls::server(files)?;
        let listeners = listen.iter().map(bind).collect::<Result<Vec<_>, _>>()?;
        let failed = StartError::system::<io::Error>("ask for an address");
        let addresses = listeners
            .iter()
            .map(|listener| listener.local_addr().map_err(&failed))
            .collect::<Result<_, _>>()?;
        let state = Arc::new(State {
            jobs: Mutex::default(),
            open: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            wakeup: Wakeup::new().map_err(StartError::system("make a wake-up descriptor"))?,
        });
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(StartError::system("make an epoll descriptor"))?;
        let watch = |fd: rustix::fd::BorrowedFd<'_>, token, flags| {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(token), flags)
                .map_err(StartError::system("watch a descriptor"))
        };
        watch(state.wakeup.as_fd(), WAKEUP, epoll::EventFlags::IN)?;
        for (listener, token) in listeners.iter().zip(LISTENERS..) {
            watch(listener.as_fd(), token, epoll::EventFlags::empty())?;
        }
        let run = Loop {
            state: Arc::clone(&state),
            gate: Gate::new(listeners, places),
            strangers: Strangers {
                epoll,
                patience: options.lease,
                by_token: HashMap::new(),
                next: 0,
                warned: false,
            },
            tls,
            security: options.security,
            accepting: false,
        };
        let thread = thread::spawn("penstock-accept", move || run.run());
        let thread = thread.map_err(StartError::thread)?;
        Ok(Self { state, addresses, thread: Some(thread), maker: Maker::this() })
    }

    /// Lets in workers of its jobs, from now on until it is dropped.
    pub(crate) fn open(&self) {
        self.state.open.store(true, Ordering::Release);
        self.state.wakeup.ring();
    }

    /// Where it listens.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Lets a job's workers in from now on; `false` if a job of this name is there.
    pub(crate) fn admit(&self, name: &str, secret: Secret, behind: Arc<dyn Behind>) -> bool {
        let mut jobs = self.state.jobs();
        let free = !jobs.contains_key(name);
        if free {
            jobs.insert(name.to_owned(), Job { secret, behind });
        }
        free
    }

    /// Lets no worker of this job in any more.
    pub(crate) fn dismiss(&self, name: &str) {
        self.state.jobs().remove(name);
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        // In a forked child the thread is the parent's: nothing ends here.
        if !self.maker.is_here() {
            std::mem::forget(self.thread.take());
            return;
        }
        self.state.stop.store(true, Ordering::Release);
        self.state.wakeup.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn bind(address: &Address) -> Result<TcpListener, StartError> {
    let failed =
        |error: io::Error| StartError::Bind { address: address.to_string(), reason: error.to_string() };
    let addresses: Vec<SocketAddr> =
        (&address.host[..], address.port).to_socket_addrs().map_err(failed)?.collect();
    gate::listen(&addresses[..]).map_err(failed)
}

/// How far a stranger has come.
enum Phase {
    /// Nothing was said: with or without TLS?
    Silent(Stream),
    /// The TLS handshake is under way.
    Encrypting(Stream),
    /// Nothing, or only the hello, has come.
    Talking(Box<RecordStream>, Option<Box<Challenged>>),
}

/// A stranger that was asked for its proof.
struct Challenged {
    handshake: ServerHandshake,
    since: Instant,
}

impl Phase {
    fn stream(&self) -> &Stream {
        match self {
            Self::Silent(stream) | Self::Encrypting(stream) => stream,
            Self::Talking(records, _) => records.stream(),
        }
    }

    fn holds_output(&self) -> bool {
        match self {
            Self::Silent(_) => false,
            Self::Encrypting(stream) => stream.holds_output(),
            Self::Talking(records, _) => records.holds_output(),
        }
    }
}

struct Stranger {
    phase: Phase,
    since: Instant,
    host: IpAddr,
}

/// What becomes of a stranger after a look at what it said.
enum Next {
    Wait(Phase),
    /// It has proved to belong to this job.
    Enter {
        records: Box<RecordStream>,
        job: String,
        purpose: Purpose,
        long: bool,
    },
    Refuse(Box<RecordStream>, Refusal),
}

/// The connections that have not proved which job they belong to.
struct Strangers {
    epoll: OwnedFd,
    patience: Duration,
    by_token: HashMap<u64, Stranger>,
    next: u64,
    /// Whether it was said that the system accepts no connection, and still is so.
    warned: bool,
}

impl gate::Strangers for Strangers {
    type Key = u64;

    fn all(&self) -> impl Iterator<Item = strangers::Stranger<u64>> + Clone {
        let now = Instant::now();
        self.by_token.iter().map(move |(&key, stranger)| strangers::Stranger {
            key,
            host: stranger.host,
            silent: matches!(stranger.phase, Phase::Silent(_)) && now - stranger.since >= SILENT,
        })
    }

    fn insert(&mut self, socket: TcpStream, host: IpAddr) {
        let Ok(stream) = Stream::plain(socket, self.patience) else { return };
        let token = self.next;
        self.next += 1;
        let flags = epoll::EventFlags::IN;
        if epoll::add(&self.epoll, &stream, epoll::EventData::new_u64(token), flags).is_ok() {
            let phase = Phase::Silent(stream);
            self.by_token.insert(token, Stranger { phase, since: Instant::now(), host });
        }
    }

    fn remove(&mut self, key: u64) {
        self.by_token.remove(&key);
    }

    fn flows(&mut self) {
        self.warned = false;
    }

    fn is_stuck(&mut self, error: &io::Error) -> bool {
        if !std::mem::replace(&mut self.warned, true) {
            tracing::warn!(%error, "a connection could not be accepted so far");
        }
        false
    }
}

struct Loop {
    state: Arc<State>,
    gate: Gate,
    strangers: Strangers,
    tls: Arc<ServerConfig>,
    security: Security,
    /// Whether the poll watches the listeners.
    accepting: bool,
}

impl Loop {
    fn run(mut self) {
        while !self.state.stop.load(Ordering::Acquire) {
            let closed = self.gate.closed_for(Instant::now());
            self.watch_listeners(self.state.open.load(Ordering::Acquire) && closed.is_none());
            let longest = (!self.strangers.by_token.is_empty()).then_some(Duration::from_secs(1));
            let events = wait::events(&self.strangers.epoll, 64, closed.or(longest));
            let (listeners, others): (Vec<u64>, Vec<u64>) = events
                .iter()
                .map(|event| event.data.u64())
                .partition(|token| *token >= LISTENERS && *token != WAKEUP);
            for token in others {
                match token {
                    WAKEUP => self.state.wakeup.clear(),
                    token => self.hear(token),
                }
            }
            // Last: where descriptors run out a newcomer takes the place of one that has said nothing so far.
            for token in listeners {
                self.gate.accept((token - LISTENERS) as usize, &mut self.strangers);
            }
            self.strangers.by_token.retain(|_, stranger| stranger.since.elapsed() < PROVE_WITHIN);
        }
    }

    fn watch_listeners(&mut self, accepting: bool) {
        if self.accepting == accepting {
            return;
        }
        self.accepting = accepting;
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, accepting);
        for (listener, token) in self.gate.listeners().iter().zip(LISTENERS..) {
            let _ = epoll::modify(&self.strangers.epoll, listener, epoll::EventData::new_u64(token), flags);
        }
    }

    fn hear(&mut self, token: u64) {
        let Some(Stranger { phase, since, host }) = self.strangers.by_token.remove(&token) else { return };
        match self.advance(phase) {
            Ok(Next::Wait(phase)) => {
                let mut flags = epoll::EventFlags::IN;
                flags.set(epoll::EventFlags::OUT, phase.holds_output());
                let event = epoll::EventData::new_u64(token);
                if epoll::modify(&self.strangers.epoll, phase.stream(), event, flags).is_ok() {
                    self.strangers.by_token.insert(token, Stranger { phase, since, host });
                }
            }
            Ok(Next::Enter { records, job, purpose, long }) => self.enter(*records, &job, purpose, long),
            Ok(Next::Refuse(mut records, refusal)) => {
                tracing::debug!(%host, %refusal, "a stranger was refused");
                let _ = records.send(&verdict(&Verdict::Refused(refusal)));
            }
            Err(error) => tracing::debug!(%host, %error, "a stranger was dropped"),
        }
    }

    fn advance(&self, mut phase: Phase) -> io::Result<Next> {
        loop {
            phase = match phase {
                Phase::Silent(mut stream) => {
                    let mut first = [0];
                    match stream.socket().peek(&mut first) {
                        Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {
                            return Ok(Next::Wait(Phase::Silent(stream)));
                        }
                        Err(error) => return Err(error),
                        Ok(_) if first[0] != PLAIN => {
                            Phase::Encrypting(stream.accept_tls(Arc::clone(&self.tls))?)
                        }
                        Ok(_) => {
                            let local = stream.peer()?.ip().to_canonical().is_loopback();
                            if stream.read(&mut [IoSliceMut::new(&mut first)])? != Got::Bytes(1) {
                                return Err(ErrorKind::UnexpectedEof.into());
                            }
                            let records = Box::new(RecordStream::new(stream, MAX_HANDSHAKE_BYTES));
                            match self.security {
                                Security::Auto if !local => {
                                    return Ok(Next::Refuse(records, Refusal::TlsRequired));
                                }
                                Security::Tls => return Ok(Next::Refuse(records, Refusal::TlsRequired)),
                                Security::Auto | Security::Insecure => Phase::Talking(records, None),
                            }
                        }
                    }
                }
                Phase::Encrypting(mut stream) => {
                    if !stream.is_ready()? {
                        return Ok(Next::Wait(Phase::Encrypting(stream)));
                    }
                    Phase::Talking(Box::new(RecordStream::new(stream, MAX_HANDSHAKE_BYTES)), None)
                }
                Phase::Talking(mut records, handshake) => {
                    records.flush()?;
                    let Some(message) = records.receive()? else {
                        return Ok(Next::Wait(Phase::Talking(records, handshake)));
                    };
                    match handshake {
                        None => match self.challenge(&mut records, &message)? {
                            Ok(handshake) => {
                                let challenged = Challenged { handshake, since: Instant::now() };
                                Phase::Talking(records, Some(Box::new(challenged)))
                            }
                            Err(refusal) => return Ok(Next::Refuse(records, refusal)),
                        },
                        Some(challenged) => {
                            let Challenged { handshake, since } = *challenged;
                            // The loopback has no queue to overflow: it too is left to the kernel.
                            let local = records.stream().peer()?.ip().to_canonical().is_loopback();
                            return Ok(match handshake.finish(&message) {
                                Ok(()) => Next::Enter {
                                    records,
                                    job: handshake.job,
                                    purpose: handshake.purpose,
                                    long: local || since.elapsed() > LONG,
                                },
                                Err(refusal) => Next::Refuse(records, refusal),
                            });
                        }
                    }
                }
            }
        }
    }

    fn challenge(
        &self,
        records: &mut RecordStream,
        hello: &[u8],
    ) -> io::Result<Result<ServerHandshake, Refusal>> {
        let mut handshake = match ServerHandshake::start(hello) {
            Ok(handshake) => handshake,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let known = self.state.jobs().get(&handshake.job).map(|job| (job.secret, Arc::clone(&job.behind)));
        let known = known.map(|(secret, behind)| behind.secret(&handshake.purpose, secret));
        let unknown = Secret(random::bytes()?);
        let (nonce, binding) = (random::bytes()?, records.stream().binding()?);
        records.send(&handshake.challenge(known.unwrap_or(unknown), nonce, binding))?;
        Ok(Ok(handshake))
    }

    fn enter(&self, mut records: RecordStream, job: &str, purpose: Purpose, long: bool) {
        let _ = epoll::delete(&self.strangers.epoll, records.stream());
        // Not under the lock: what is behind takes locks of its own.
        let behind = self.state.jobs().get(job).map(|job| Arc::clone(&job.behind));
        // A worker that comes when the job has ended is told so, as long as there is somebody to tell.
        let said = match behind.as_ref().and_then(|behind| behind.outcome()) {
            None => match behind.as_ref().map_or(Ok(()), |behind| behind.may_enter(&purpose)) {
                Ok(()) => Verdict::Accepted,
                Err(refusal) => Verdict::Refused(refusal),
            },
            Some(Ok(())) => Verdict::Refused(Refusal::Over),
            Some(Err(failure)) => Verdict::Refused(Refusal::Ended(failure)),
        };
        let sent = records.send(&verdict(&said));
        if said != Verdict::Accepted || sent.is_err() || records.holds_output() {
            return;
        }
        if let Some(behind) = behind {
            behind.enter(Arrival { stream: records.into_stream(), purpose, long });
        }
    }
}
