//! A TCP connection that never blocks, plain or under TLS 1.3.
//!
//! Plain, bytes go straight between the socket and the caller's memory (a lane, a chunk's value): one copy, the kernel's.
//! Under TLS they pass through rustls' buffers, which are bounded.

use super::link::{Got, Link, SEGMENTS, Segment};
use super::quiet::Quiet;
use super::{loopback, sharing, tcp_info};
use crate::spent::Spent;
use penstock_proto::compress::Squeezed;
use penstock_proto::handshake::PLAIN_BINDING;
use penstock_proto::pressure::Flow;
use penstock_proto::uplink::{Carried, To};
use rustix::fd::{AsFd, BorrowedFd};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use smallvec::SmallVec;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Bytes of plaintext that wait for encryption at most.
const TLS_BUFFER: usize = 256 * 1024;

/// Looks at a socket, in one read under TLS, that bring no plaintext: a record of 16 KiB takes a few.
const MOST_LOOKS: u32 = 64;

/// What a connection is tied to: the TLS exporter's 32 bytes (RFC 9266), zeros without TLS.
pub type Binding = [u8; 32];

/// Bytes that connections took and brought, before encryption, without those of TLS and TCP themselves.
#[derive(Debug, Default)]
pub struct Traffic {
    sent: AtomicU64,
    received: AtomicU64,
    spent: Arc<Spent>,
    /// What became of chunks that may be compressed: of those that were sent, and of those that came.
    squeezed: Mutex<(Squeezed, Squeezed)>,
    /// Connections to other workers that feed this one now, and to those that it feeds.
    parents: AtomicUsize,
    children: AtomicUsize,
}

impl Traffic {
    /// What they took so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// What they brought so far.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// How many connections to other workers feed this one now, and by how many it feeds others.
    pub fn place(&self) -> (usize, usize) {
        (self.parents.load(Ordering::Relaxed), self.children.load(Ordering::Relaxed))
    }

    /// One proxy's are so many by now.
    pub(super) fn moves(&self, before: (usize, usize), now: (usize, usize)) {
        for (all, before, now) in [(&self.parents, before.0, now.0), (&self.children, before.1, now.1)] {
            if now != before {
                // Modulo its size: each proxy takes off what it has added.
                all.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
            }
        }
    }

    /// The time that went into what they carry.
    pub fn spent(&self) -> &Arc<Spent> {
        &self.spent
    }

    /// What became so far of chunks that may be compressed: of those that were sent, and of those that came.
    pub fn squeezed(&self) -> (Squeezed, Squeezed) {
        *self.squeezed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts more of them.
    pub fn squeeze(&self, sent: Squeezed, received: Squeezed) {
        if (sent, received) != Default::default() {
            let mut squeezed = self.squeezed.lock().unwrap_or_else(PoisonError::into_inner);
            *squeezed = (squeezed.0 + sent, squeezed.1 + received);
        }
    }
}

/// A connection.
pub struct Stream {
    /// Only this holds it, but for those that look at it in a moment: it closes with the stream.
    socket: Arc<TcpStream>,
    tls: Option<Box<Connection>>,
    traffic: Option<Arc<Traffic>>,
    /// Whether what came was not TLS, or not this connection's: nothing more is read or written.
    failed: bool,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("socket", &self.socket).field("tls", &self.tls.is_some()).finish()
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A connection that is watched, from any thread.
#[derive(Debug, Clone)]
pub struct Watched(Weak<TcpStream>);

impl Watched {
    /// Whether it stands no more.
    pub fn is_over(&self) -> bool {
        self.0.strong_count() == 0
    }

    /// What it has carried to where it leads, as the kernel counts it; `None`: it stands no more, or the kernel does not count.
    pub fn carried(&self, to: To) -> Option<Carried> {
        self.0.upgrade().and_then(|socket| tcp_info::carried(&*socket, to))
    }
}

/// How long a peer may stay silent before the kernel gives its connection up.
fn watch_over(socket: &TcpStream, patience: Duration) -> io::Result<()> {
    use rustix::net::sockopt;
    let seconds = patience.max(Duration::from_secs(4));
    socket.set_nodelay(true)?;
    sockopt::set_tcp_user_timeout(socket, u32::try_from(seconds.as_millis()).unwrap_or(u32::MAX))?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, seconds / 4)?;
    sockopt::set_tcp_keepintvl(socket, (seconds / 4).max(Duration::from_secs(1)))?;
    Ok(())
}

impl Stream {
    /// Over a socket that is connected. `patience`: how long unacknowledged bytes or an idle, unreachable peer are tolerated.
    pub fn plain(socket: TcpStream, patience: Duration) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        watch_over(&socket, patience)?;
        let socket = Arc::new(socket);
        Ok(Self { socket, tls: None, traffic: None, failed: false })
    }

    /// The same, which adds to a count.
    pub fn counted(self, traffic: Arc<Traffic>) -> Self {
        Self { traffic: Some(traffic), ..self }
    }

    /// Speaks TLS from here on, as the server.
    pub fn accept_tls(mut self, config: Arc<ServerConfig>) -> io::Result<Self> {
        let connection = ServerConnection::new(config).map_err(io::Error::other)?;
        self.tls = Some(Box::new(Connection::Server(connection)));
        self.limit_buffers();
        Ok(self)
    }

    /// Speaks TLS from here on, as the worker; `host` is the server's name or address.
    pub fn connect_tls(mut self, config: Arc<ClientConfig>, host: &str) -> io::Result<Self> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| io::Error::new(ErrorKind::InvalidInput, format!("{host:?} is not a host name")))?;
        let connection = ClientConnection::new(config, name).map_err(io::Error::other)?;
        self.tls = Some(Box::new(Connection::Client(connection)));
        self.limit_buffers();
        Ok(self)
    }

    fn limit_buffers(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.set_buffer_limit(Some(TLS_BUFFER));
        }
    }

    /// Lets the other end have little under way, if it is near: it is one of so many that send here at once.
    pub fn take_as_one_of(&self, parents: usize) -> io::Result<()> {
        sharing::take_as_one_of(&self.socket, parents)
    }

    /// The other end's address.
    pub fn peer(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    /// The socket, for its options.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Goes on with the TLS handshake; whether it is done.
    pub fn is_ready(&mut self) -> io::Result<bool> {
        let Self { socket, tls, .. } = self;
        let Some(tls) = tls else { return Ok(true) };
        while tls.is_handshaking() {
            if tls.wants_write() {
                match tls.write_tls(&mut Quiet(socket)) {
                    Ok(_) => continue,
                    Err(error) if is_nothing(&error) => return Ok(false),
                    Err(error) => return Err(error),
                }
            }
            match tls.read_tls(&mut &**socket) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if is_nothing(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
            let processed = tls.process_new_packets();
            if let Err(error) = processed {
                // The alert that says why, if it can be sent at once.
                let _ = tls.write_tls(&mut Quiet(socket));
                return Err(io::Error::new(ErrorKind::InvalidData, error));
            }
        }
        self.flush()?;
        Ok(true)
    }

    /// What ties a handshake to this very connection. To be asked when [`Stream::is_ready`].
    pub fn binding(&self) -> io::Result<Binding> {
        let Some(tls) = &self.tls else { return Ok(PLAIN_BINDING) };
        tls.export_keying_material([0; 32], b"EXPORTER-Channel-Binding", Some(b"")).map_err(io::Error::other)
    }

    /// For one that wants to know what it has carried as long as it stands, and does not keep it from ending. `None`: both ends are on
    /// this host, where nothing goes over a link.
    pub fn watched(&self) -> Option<Watched> {
        let (here, there) = (self.socket.local_addr().ok()?, self.socket.peer_addr().ok()?);
        let is_far = !loopback::is_loopback(there) && here.ip().to_canonical() != there.ip().to_canonical();
        is_far.then(|| Watched(Arc::downgrade(&self.socket)))
    }

    /// Ends the connection in both directions: a thread that reads it at either end hears of it.
    pub fn shutdown(&self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }
}

impl Link for Stream {
    fn send_evenly(&self) {
        sharing::send_evenly(&self.socket);
    }

    fn stays_here(&self) -> bool {
        self.socket.peer_addr().is_ok_and(loopback::is_loopback)
    }

    fn flow(&self) -> Option<Flow> {
        tcp_info::flow(&self.socket)
    }

    fn now(&self) -> Option<Duration> {
        static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);
        Some(FIRST.elapsed())
    }

    fn read(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<Got> {
        let Self { socket, tls, traffic, failed } = self;
        let mut looks = 0;
        loop {
            let result = match tls {
                None => (&**socket).read_vectored(parts),
                Some(_) if *failed => return Ok(Got::End),
                Some(tls) => tls.reader().read_vectored(parts),
            };
            match result {
                Ok(0) => return Ok(Got::End),
                Ok(bytes) => {
                    if let Some(traffic) = traffic {
                        traffic.received.fetch_add(bytes as u64, Ordering::Relaxed);
                    }
                    return Ok(Got::Bytes(bytes));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if is_nothing(&error) => {}
                // The end came without TLS's goodbye, and is an end all the same: frames have checksums and numbers of their own.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(Got::End),
                Err(error) => return Err(error),
            }
            let Some(tls) = tls else { return Ok(Got::Nothing) };
            // The plaintext is used up: more of the socket, but not without end. Records may be empty, one after the other; what
            // is left rings again.
            looks += 1;
            if looks > MOST_LOOKS {
                return Ok(Got::Nothing);
            }
            match tls.read_tls(&mut &**socket) {
                Ok(0) => return Ok(Got::End),
                Ok(_) => {}
                Err(error) if is_nothing(&error) => return Ok(Got::Nothing),
                Err(error) => return Err(error),
            }
            tls.process_new_packets().map_err(|error| {
                *failed = true;
                io::Error::new(ErrorKind::InvalidData, error)
            })?;
        }
    }

    /// Not under TLS: what is used up there are decrypted bytes.
    fn short_is_all(&self) -> bool {
        self.tls.is_none()
    }

    fn write(&mut self, parts: &[Segment<'_>]) -> io::Result<usize> {
        let written = match &mut self.tls {
            None => loop {
                match Quiet(&self.socket).gather(parts) {
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) if is_nothing(&error) => return Ok(0),
                    result => break result?,
                }
            },
            Some(_) if self.failed => return Err(ErrorKind::BrokenPipe.into()),
            Some(tls) => encrypt(&mut tls.writer(), parts)?,
        };
        if let Some(traffic) = &self.traffic {
            traffic.sent.fetch_add(written as u64, Ordering::Relaxed);
        }
        self.flush()?;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<bool> {
        let Self { socket, tls, .. } = self;
        let Some(tls) = tls else { return Ok(true) };
        while tls.wants_write() {
            match tls.write_tls(&mut Quiet(socket)) {
                Ok(_) => {}
                Err(error) if is_nothing(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn holds_output(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// The socket's buffers. Those left to the kernel it sizes itself; once told a size, it keeps to it.
    fn resize(&self, bytes: usize) -> io::Result<()> {
        use rustix::net::sockopt;
        sockopt::set_socket_recv_buffer_size(&self.socket, bytes)?;
        Ok(sockopt::set_socket_send_buffer_size(&self.socket, bytes)?)
    }
}

/// Bytes of foreign memory that are copied together to be encrypted: as many as a record has.
const RECORD: usize = 16 << 10;

/// Gives `parts` to be encrypted, as far as there is room for what comes of them; how many bytes that were.
fn encrypt(writer: &mut impl Write, parts: &[Segment<'_>]) -> io::Result<usize> {
    let own = parts.iter().map(|part| match part {
        Segment::Own(bytes) => Some(IoSlice::new(bytes)),
        Segment::Foreign(_) => None,
    });
    if let Some(own) = own.collect::<Option<SmallVec<[_; SEGMENTS]>>>() {
        return writer.write_vectored(&own);
    }
    let (mut copy, mut written) = ([0; RECORD], 0);
    loop {
        let bytes = copy_behind(parts, written, &mut copy);
        let taken = if bytes > 0 { writer.write(&copy[..bytes]) } else { Ok(0) };
        match taken {
            Ok(taken) => written += taken,
            // What was taken before counts; the error comes again.
            Err(_) if written > 0 => {}
            Err(error) => return Err(error),
        }
        if !matches!(taken, Ok(RECORD)) {
            return Ok(written);
        }
    }
}

/// Copies what stands behind the first `skip` bytes of `parts`, as much as there is room for.
fn copy_behind(parts: &[Segment<'_>], mut skip: usize, out: &mut [u8]) -> usize {
    let mut done = 0;
    for part in parts {
        let from = skip.min(part.len());
        skip -= from;
        let bytes = (part.len() - from).min(out.len() - done);
        part.slice(from..from + bytes).copy_to(&mut out[done..done + bytes]);
        done += bytes;
    }
    done
}

fn is_nothing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock)
}

#[cfg(test)]
mod tests {
    use super::super::tls;
    use super::*;
    use penstock_kernels::Foreign;
    use std::net::TcpListener;

    fn pair() -> (Stream, Stream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        let patience = Duration::from_secs(10);
        (Stream::plain(one, patience).unwrap(), Stream::plain(other, patience).unwrap())
    }

    fn wait(stream: &Stream) {
        let mut fds = [rustix::event::PollFd::new(stream, rustix::event::PollFlags::IN)];
        let longest = rustix::time::Timespec { tv_sec: 10, tv_nsec: 0 };
        assert_ne!(rustix::event::poll(&mut fds, Some(&longest)), Ok(0), "nothing came in ten seconds");
    }

    fn encrypted() -> (Stream, Stream) {
        let (one, other) = pair();
        let mut worker = one.connect_tls(tls::client(None).unwrap(), "127.0.0.1").unwrap();
        let mut server = other.accept_tls(tls::server(None).unwrap()).unwrap();
        while !(worker.is_ready().unwrap() & server.is_ready().unwrap()) {}
        (worker, server)
    }

    fn transfer(from: &mut Stream, to: &mut Stream, data: &[u8]) -> Vec<u8> {
        let (mut sent, mut got) = (0, vec![0; data.len()]);
        let mut received = 0;
        while received < data.len() {
            let (head, tail) = data[sent..].split_at((data.len() - sent) / 3);
            sent += from.write(&[Segment::Own(head), Segment::Foreign(Foreign::of(tail))]).unwrap();
            from.flush().unwrap();
            match to.read(&mut [IoSliceMut::new(&mut got[received..])]).unwrap() {
                Got::Bytes(bytes) => received += bytes,
                Got::Nothing => wait(to),
                Got::End => panic!("the end came early"),
            }
        }
        got
    }

    #[test]
    fn bytes_arrive_whole_and_in_order_plain_and_encrypted() {
        let data: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
        for (mut one, mut other) in [pair(), encrypted()] {
            assert!(transfer(&mut one, &mut other, &data) == data);
            assert!(transfer(&mut other, &mut one, &data) == data);
        }
    }

    #[test]
    fn both_ends_of_one_encrypted_connection_are_bound_alike_and_to_no_other() {
        let ((one, other), (another, _)) = (encrypted(), encrypted());
        assert_eq!(one.binding().unwrap(), other.binding().unwrap());
        assert_ne!(one.binding().unwrap(), another.binding().unwrap());
        assert_ne!(one.binding().unwrap(), PLAIN_BINDING);
    }

    #[test]
    fn garbage_instead_of_tls_is_an_error_and_not_the_end_of_the_world() {
        let (mut one, other) = pair();
        let mut server = other.accept_tls(tls::server(None).unwrap()).unwrap();
        one.write(&[Segment::Own(&[0x50; 300])]).unwrap();
        wait(&server);
        assert!(server.is_ready().is_err());
    }

    #[test]
    fn a_certificate_that_no_named_authority_signed_is_refused() {
        let directory = std::env::temp_dir().join(format!("penstock-tls-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("ca.pem");
        let other = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        std::fs::write(&path, other.cert.pem()).unwrap();
        let (one, other) = pair();
        let mut worker = one.connect_tls(tls::client(Some(&path)).unwrap(), "127.0.0.1").unwrap();
        let mut server = other.accept_tls(tls::server(None).unwrap()).unwrap();
        let refused = loop {
            let _ = server.is_ready();
            match worker.is_ready() {
                Ok(ready) => assert!(!ready),
                Err(error) => break error,
            }
        };
        assert!(refused.to_string().contains("certificate"), "{refused}");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
