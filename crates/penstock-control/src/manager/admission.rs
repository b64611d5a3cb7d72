//! Who may be connected: a place for each connection, so that slow, silent and half-open ones cannot take them all.
//!
//! At the limit the oldest stranger makes room for the newcomer. A connection that has proved the admin or the server token is
//! not a stranger for a lease from then on: a server's next heartbeat comes sooner, and a client that passes on the calls of
//! others over very many connections takes no place for good. One that has proved a job's secret is not one while its call waits,
//! and the number of these is limited for each job. So a client without a token can push out only others that hold none or have
//! proved none for a lease, and no job can keep out another. To keep an honest client from its first call, a stranger has to
//! open [`CONNECTIONS`](crate::limits::CONNECTIONS) connections while its challenge and that call are under way.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

/// The first bytes of HTTP/2.
pub(super) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Dropping it puts the connection out.
type Thread = oneshot::Sender<()>;

#[derive(Debug, Default)]
struct Seats {
    next: u64,
    strangers: BTreeMap<u64, Thread>,
    known: BTreeMap<u64, Known>,
}

/// A connection that has proved something.
#[derive(Debug)]
struct Known {
    thread: Thread,
    /// When it last did; `None` while a call protects it.
    since: Option<Instant>,
}

/// All connections.
#[derive(Debug, Clone)]
pub(super) struct Admission {
    seats: Arc<Mutex<Seats>>,
    limit: usize,
    lease: Duration,
}

impl Admission {
    /// Places for `limit`; a client that has proved a token keeps its own for `lease`.
    pub(super) fn new(limit: usize, lease: Duration) -> Self {
        Self { seats: Arc::default(), limit, lease }
    }

    /// A place for one more; `None` when all are taken by clients that have proved a token.
    pub(super) fn admit(&self, now: Instant) -> Option<Seat> {
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        let seats = &mut *seats;
        if seats.strangers.len() + seats.known.len() >= self.limit && seats.strangers.pop_first().is_none() {
            let is_over = |known: &Known| {
                known.since.is_some_and(|since| now.saturating_duration_since(since) >= self.lease)
            };
            let number = *seats.known.iter().find(|(_, known)| is_over(known))?.0;
            seats.known.remove(&number);
        }
        let number = seats.next;
        seats.next += 1;
        let (thread, cut) = oneshot::channel();
        seats.strangers.insert(number, thread);
        Some(Seat { caller: Caller { seats: Arc::clone(&self.seats), number }, cut: Some(cut) })
    }
}

/// A connection, as its calls see it.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    seats: Arc<Mutex<Seats>>,
    number: u64,
}

impl Caller {
    /// It has proved a token: it is not put out for as long as a lease.
    pub(super) fn mark_known(&self, now: Instant) {
        self.know(Some(now));
    }

    fn know(&self, since: Option<Instant>) {
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        let thread = match seats.known.remove(&self.number) {
            Some(known) => Some(known.thread),
            None => seats.strangers.remove(&self.number),
        };
        // None: it was put out already.
        if let Some(thread) = thread {
            seats.known.insert(self.number, Known { thread, since });
        }
    }

    /// It may be put out again.
    fn mark_stranger(&self) {
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = seats.known.remove(&self.number) {
            seats.strangers.insert(self.number, known.thread);
        }
    }

    /// Not put out until what is returned is dropped.
    pub(super) fn protect(&self) -> Protection {
        self.know(None);
        Protection(self.clone())
    }
}

/// Keeps a connection from being put out.
#[derive(Debug)]
pub(super) struct Protection(Caller);

impl Drop for Protection {
    fn drop(&mut self) {
        self.0.mark_stranger();
    }
}

/// The place of a connection, given back when dropped.
#[derive(Debug)]
pub(super) struct Seat {
    caller: Caller,
    /// `None` once the connection was put out.
    cut: Option<oneshot::Receiver<()>>,
}

impl Seat {
    /// Ready once the connection is put out.
    pub(super) fn poll_cut(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(cut) = &mut self.cut {
            // Nothing is ever sent: it can only be dropped.
            let _ = ready!(Pin::new(cut).poll(context));
            self.cut = None;
        }
        Poll::Ready(())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut seats = self.caller.seats.lock().unwrap_or_else(PoisonError::into_inner);
        seats.strangers.remove(&self.caller.number);
        seats.known.remove(&self.caller.number);
    }
}

/// The bytes below HTTP/2.
#[derive(Debug)]
pub(super) enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A connection that has shown the preface of HTTP/2, and shows it again to the next reader.
#[derive(Debug)]
pub(super) struct Connection {
    wire: Wire,
    seat: Seat,
    /// Bytes of the preface that were read again.
    again: usize,
}

impl Connection {
    pub(super) fn new(wire: Wire, seat: Seat) -> Self {
        Self { wire, seat, again: 0 }
    }

    fn poll_cut(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.seat.poll_cut(context) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        self.seat.caller.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_cut(context)?;
        let rest = &PREFACE[self.again..];
        if !rest.is_empty() {
            let taken = rest.len().min(buffer.remaining());
            buffer.put_slice(&rest[..taken]);
            self.again += taken;
            return Poll::Ready(Ok(()));
        }
        match &mut self.wire {
            Wire::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Wire::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.wire {
            Wire::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Wire::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.wire {
            Wire::Plain(stream) => Pin::new(stream).poll_flush(context),
            Wire::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.wire {
            Wire::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Wire::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    const LEASE: Duration = Duration::from_secs(10);

    fn is_cut(seat: &mut Seat) -> bool {
        seat.poll_cut(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn the_oldest_stranger_makes_room_and_a_known_caller_never_does() {
        let (admission, now) = (Admission::new(2, LEASE), Instant::now());
        let (mut known, mut stranger) = (admission.admit(now).unwrap(), admission.admit(now).unwrap());
        known.caller.mark_known(now);
        let mut newcomer = admission.admit(now).unwrap();
        assert!(is_cut(&mut stranger) && !is_cut(&mut known) && !is_cut(&mut newcomer));
        newcomer.caller.mark_known(now);
        assert!(admission.admit(now).is_none());
        drop(known);
        assert!(admission.admit(now).is_some());
    }

    #[test]
    fn who_has_proved_nothing_for_a_lease_makes_room_too() {
        let (admission, start) = (Admission::new(2, LEASE), Instant::now());
        let (mut silent, mut server) = (admission.admit(start).unwrap(), admission.admit(start).unwrap());
        silent.caller.mark_known(start);
        server.caller.mark_known(start);
        server.caller.mark_known(start + LEASE / 2);
        assert!(admission.admit(start + LEASE - Duration::from_nanos(1)).is_none());
        let mut newcomer = admission.admit(start + LEASE).unwrap();
        assert!(is_cut(&mut silent) && !is_cut(&mut server));
        // One whose call waits is not put out, however long.
        let _protection = newcomer.caller.protect();
        let _next = admission.admit(start + LEASE * 2).unwrap();
        assert!(is_cut(&mut server));
        let _last = admission.admit(start + LEASE * 9).unwrap();
        assert!(!is_cut(&mut newcomer));
    }

    #[test]
    fn a_caller_is_protected_only_as_long_as_its_call() {
        let (admission, now) = (Admission::new(1, LEASE), Instant::now());
        let mut seat = admission.admit(now).unwrap();
        let protection = seat.caller.protect();
        assert!(admission.admit(now).is_none());
        drop(protection);
        assert!(admission.admit(now).is_some());
        assert!(is_cut(&mut seat));
    }
}
