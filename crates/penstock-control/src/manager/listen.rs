//! Taking connections in: a seat, TLS, the first bytes of HTTP/2, all within [`limits::HANDSHAKE`].

use super::admission::{Admission, Connection, PREFACE, Seat, Wire};
use crate::limits;
use std::future::poll_fn;
use std::io;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

/// Pause after the system refused a connection: it is out of descriptors, and asking again at once would spin.
const BREATH: Duration = Duration::from_millis(50);

/// Accepts until the other end of `ready` is gone.
pub(super) async fn accept(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    admission: Admission,
    ready: mpsc::Sender<io::Result<Connection>>,
) {
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted,
            () = ready.closed() => return,
        };
        let stream = match stream {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(BREATH).await;
                continue;
            }
        };
        let Some(seat) = admission.admit(Instant::now()) else {
            tracing::warn!("a connection was closed: all places are taken");
            continue;
        };
        let (tls, ready) = (tls.clone(), ready.clone());
        tokio::spawn(async move {
            // A connection that does not speak HTTP/2 in time is closed without a word.
            if let Ok(Some(connection)) =
                tokio::time::timeout(limits::HANDSHAKE, greet(stream, tls, seat)).await
            {
                let _ = ready.send(Ok(connection)).await;
            }
        });
    }
}

async fn greet(stream: TcpStream, tls: Option<TlsAcceptor>, mut seat: Seat) -> Option<Connection> {
    let wire = tokio::select! {
        wire = handshake(stream, tls) => wire.ok()?,
        () = poll_fn(|context| seat.poll_cut(context)) => return None,
    };
    Some(Connection::new(wire, seat))
}

async fn handshake(stream: TcpStream, tls: Option<TlsAcceptor>) -> io::Result<Wire> {
    stream.set_nodelay(true)?;
    Ok(match tls {
        None => {
            let mut stream = stream;
            preface(&mut stream).await?;
            Wire::Plain(stream)
        }
        Some(tls) => {
            let mut stream = tls.accept(stream).await?;
            preface(&mut stream).await?;
            Wire::Tls(Box::new(stream))
        }
    })
}

async fn preface(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    let mut first = [0; PREFACE.len()];
    stream.read_exact(&mut first).await?;
    match first == *PREFACE {
        true => Ok(()),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}
