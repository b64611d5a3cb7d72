//! Who may be connected: a place for each connection, so that slow, silent and half-open ones cannot take them all.
//!
//! At the limit the oldest stranger makes room for the newcomer. A connection that has shown the admin or the server
//! token is no stranger any more; one that has shown a job's secret is none while its call waits, and the number of these
//! is limited for each job. So whoever holds no token can only push out others that hold none, no job can keep out
//! another, and to keep an honest client from its first call a stranger has to open
//! [`CONNECTIONS`](crate::limits::CONNECTIONS) connections while that call is under way.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
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
    known: BTreeMap<u64, Thread>,
}

/// All connections.
#[derive(Debug, Clone)]
pub(super) struct Admission {
    seats: Arc<Mutex<Seats>>,
    limit: usize,
}

impl Admission {
    pub(super) fn new(limit: usize) -> Self {
        Self { seats: Arc::default(), limit }
    }

    /// A place for one more; `None` when all are taken by clients that have shown a token.
    pub(super) fn admit(&self) -> Option<Seat> {
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        if seats.strangers.len() + seats.known.len() >= self.limit {
            seats.strangers.pop_first()?;
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
    /// From now on it is not put out.
    pub(super) fn is_known(&self) {
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = seats.strangers.remove(&self.number) {
            seats.known.insert(self.number, thread);
        }
    }

    /// It may be put out again.
    fn is_stranger(&self) {
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = seats.known.remove(&self.number) {
            seats.strangers.insert(self.number, thread);
        }
    }

    /// Not put out until what is returned is dropped.
    pub(super) fn protect(&self) -> Protection {
        self.is_known();
        Protection(self.clone())
    }
}

/// Keeps a connection from being put out.
#[derive(Debug)]
pub(super) struct Protection(Caller);

impl Drop for Protection {
    fn drop(&mut self) {
        self.0.is_stranger();
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

/// A connection that has shown the preface of HTTP/2, and shows it again to who reads on.
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

    fn is_cut(seat: &mut Seat) -> bool {
        seat.poll_cut(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn the_oldest_stranger_makes_room_and_a_known_caller_never_does() {
        let admission = Admission::new(2);
        let (mut known, mut stranger) = (admission.admit().unwrap(), admission.admit().unwrap());
        known.caller.is_known();
        let mut newcomer = admission.admit().unwrap();
        assert!(is_cut(&mut stranger) && !is_cut(&mut known) && !is_cut(&mut newcomer));
        newcomer.caller.is_known();
        assert!(admission.admit().is_none());
        drop(known);
        assert!(admission.admit().is_some());
    }

    #[test]
    fn a_caller_is_protected_only_as_long_as_its_call() {
        let admission = Admission::new(1);
        let mut seat = admission.admit().unwrap();
        let protection = seat.caller.protect();
        assert!(admission.admit().is_none());
        drop(protection);
        assert!(admission.admit().is_some());
        assert!(is_cut(&mut seat));
    }
}
