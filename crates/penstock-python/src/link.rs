//! Sockets that measure a path, for `penstock bench link`.

use crate::detach::{Core, let_go};
use penstock_bench::link::{
    HEADER, MOST_MESSAGES, MOST_PAYLOAD, MOST_TOGETHER, Receiver, Socket, Stream, TOKEN,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::time::Duration;

/// Messages that count: how many, datagrams of each, nanoseconds from one to the next.
type Messages = (u32, usize, u64);
/// Messages that were sent, seconds, of them paused, of them blocked.
type Sent = (u32, f64, f64, f64);
/// Index, nanoseconds of its send, nanoseconds of its arrival.
type Arrived = (u32, u64, u64);
/// The messages that came, datagrams of them, datagrams sent ahead, foreign ones.
type Heard = (Vec<Arrived>, u64, u64, u64);

/// A UDP socket, and the stream that it receives.
#[pyclass(frozen, module = "penstock._core")]
pub(crate) struct LinkSocket {
    inner: Core<Mutex<(Socket, Option<Receiver>)>>,
}

#[pymethods]
impl LinkSocket {
    #[new]
    fn new(address: IpAddr, port: u16) -> PyResult<Self> {
        Ok(Self { inner: Core::new(Mutex::new((Socket::bind(SocketAddr::new(address, port))?, None))) })
    }

    fn port(&self, py: Python<'_>) -> PyResult<u16> {
        Ok(self.with(py, |socket, _| socket.port())??)
    }

    fn connect(&self, py: Python<'_>, address: IpAddr, port: u16) -> PyResult<()> {
        Ok(self.with(py, |socket, _| socket.connect(SocketAddr::new(address, port)))??)
    }

    fn greet(&self, py: Python<'_>, token: [u8; TOKEN]) -> PyResult<()> {
        Ok(self.with(py, |socket, _| socket.greet(&token))??)
    }

    fn met(&self, py: Python<'_>, token: [u8; TOKEN], peer: IpAddr, limit: f64) -> PyResult<bool> {
        let limit = span(limit)?;
        Ok(self.with(py, |socket, _| socket.met(&token, peer, limit))??)
    }

    fn mtu(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.with(py, |socket, _| socket.mtu())??)
    }

    fn dropped(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.with(py, |socket, _| socket.dropped())??)
    }

    #[expect(clippy::too_many_arguments, reason = "the stream, as numbers")]
    fn send(
        &self,
        py: Python<'_>,
        token: [u8; TOKEN],
        number: u32,
        payload: usize,
        counted: Messages,
        ahead: (u32, u64),
        limit: f64,
    ) -> PyResult<Sent> {
        let (messages, together, gap) = counted;
        let fits = (HEADER..=MOST_PAYLOAD).contains(&payload)
            && (1..=MOST_TOGETHER).contains(&together)
            && payload * together <= MOST_PAYLOAD;
        if !fits || messages >= MOST_MESSAGES || ahead.0 >= MOST_MESSAGES {
            return Err(PyValueError::new_err(format!(
                "expected datagrams of {HEADER} bytes or more, 1 to {MOST_TOGETHER} of them and at most {MOST_PAYLOAD} bytes \
                 a message, fewer than {MOST_MESSAGES} messages, got {payload}, {together}, {messages}, {ahead:?}"
            )));
        }
        let stream = Stream {
            token,
            number,
            payload,
            together,
            messages,
            gap: Duration::from_nanos(gap),
            ahead: ahead.0,
            ahead_gap: Duration::from_nanos(ahead.1),
            limit: span(limit)?,
        };
        let sent = self.with(py, |socket, _| stream.send(socket))??;
        let seconds = |span: Duration| span.as_secs_f64();
        Ok((sent.messages, seconds(sent.elapsed), seconds(sent.paused), seconds(sent.blocked)))
    }

    fn expect(
        &self,
        py: Python<'_>,
        token: [u8; TOKEN],
        number: u32,
        messages: u32,
        together: u32,
    ) -> PyResult<()> {
        if messages >= MOST_MESSAGES {
            return Err(PyValueError::new_err(format!(
                "expected fewer than {MOST_MESSAGES} messages, got {messages}"
            )));
        }
        self.with(py, |_, receiver| *receiver = Some(Receiver::new(token, number, messages, together)))
    }

    fn receive(&self, py: Python<'_>, quiet: f64, limit: f64) -> PyResult<bool> {
        let (quiet, limit) = (span(quiet)?, span(limit)?);
        let done = self.with(py, |socket, receiver| {
            receiver.as_mut().map(|receiver| receiver.run(socket, quiet, limit))
        })?;
        done.ok_or_else(nothing_expected)?.map_err(PyErr::from)
    }

    fn end(&self, py: Python<'_>, messages: u32) -> PyResult<()> {
        self.with(py, |_, receiver| receiver.iter_mut().for_each(|receiver| receiver.end(messages)))
    }

    fn heard(&self, py: Python<'_>) -> PyResult<Heard> {
        let heard = self.with(py, |_, receiver| {
            receiver.take().map(|receiver| {
                let came = (0..)
                    .zip(receiver.messages())
                    .filter(|(_, message)| message.datagrams > 0)
                    .map(|(index, message)| (index, message.sent_ns, message.came_ns))
                    .collect();
                let heard = receiver.heard();
                (came, heard.datagrams, heard.ahead, heard.foreign)
            })
        })?;
        heard.ok_or_else(nothing_expected)
    }
}

impl LinkSocket {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Socket, &mut Option<Receiver>) -> T + Send,
    ) -> PyResult<T> {
        let done = let_go(py, |detached| {
            let (socket, receiver) = &mut *self.inner.lock(detached);
            work(socket, receiver)
        });
        // What a call ended with when a signal interrupted it is of no interest beside what its handler raises.
        py.check_signals()?;
        done
    }
}

fn span(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err(format!("expected seconds, got {seconds}")))
}

fn nothing_expected() -> PyErr {
    PyValueError::new_err("expected a stream to be expected first")
}
