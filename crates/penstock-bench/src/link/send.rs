//! The sender: one message every gap, by spinning.

use std::io::{ErrorKind, Result};
use std::time::{Duration, Instant};

use super::datagram::{AHEAD, HEADER, Header, TOKEN};
use super::socket::Socket;
use super::{MOST_MESSAGES, MOST_PAYLOAD, MOST_TOGETHER};

/// A message that is late by less than this part of the stream is made up for, so that the mean is the rate.
const MADE_UP: u32 = 128;
/// A longer wait than this is slept through, but for its end.
const SLEPT: Duration = Duration::from_millis(4);
const WOKEN_BEFORE: Duration = Duration::from_millis(2);

/// What to send.
#[derive(Debug, Clone)]
pub struct Stream {
    /// Of the measurement.
    pub token: [u8; TOKEN],
    /// Of the stream in it.
    pub number: u32,
    /// Bytes of each datagram.
    pub payload: usize,
    /// Datagrams of each message.
    pub together: usize,
    /// Messages that count.
    pub messages: u32,
    /// From the start of one to the start of the next.
    pub gap: Duration,
    /// Messages before those, which only fill what a shaper lets through at once.
    pub ahead: u32,
    /// From the start of one of these to the start of the next.
    pub ahead_gap: Duration,
    /// It ends after that, whatever has been sent.
    pub limit: Duration,
}

/// What was sent of the messages that count.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sent {
    /// How many.
    pub messages: u32,
    /// From the start of the first to one gap behind the start of the last.
    pub elapsed: Duration,
    /// How late the next one would have been, where the stream ended there: the sender had not been at work. What a queue loses
    /// meanwhile, and what a shaper saves, would be taken for the path's.
    pub paused: Duration,
    /// Of that, the host's own queue took nothing: the path takes less than the rate.
    pub blocked: Duration,
}

impl Stream {
    /// Sends it. Takes a core for itself meanwhile.
    ///
    /// # Errors
    ///
    /// The kernel's: the path takes no datagrams of this length, or the other end has closed its port.
    ///
    /// # Panics
    ///
    /// If a length or a number is outside of what the module allows.
    pub fn send(&self, socket: &mut Socket) -> Result<Sent> {
        assert!(
            self.payload >= HEADER && (1..=MOST_TOGETHER).contains(&self.together),
            "expected datagrams of {HEADER} bytes, 1 to {MOST_TOGETHER} a message, got {self:?}"
        );
        assert!(self.payload * self.together <= MOST_PAYLOAD, "more than a packet holds: {self:?}");
        assert!(self.messages < MOST_MESSAGES && self.ahead < MOST_MESSAGES, "too many messages: {self:?}");
        let mut message = Outgoing { stream: self, bytes: filler(self.payload * self.together) };
        let end = Instant::now() + self.limit;
        // What is sent ahead only has to be sent, at whatever rate.
        message.run(socket, self.ahead, self.ahead_gap, end, Duration::MAX, |_| AHEAD)?;
        let made_up = self.gap * self.messages / MADE_UP;
        message.run(socket, self.messages, self.gap, end, made_up, |index| index)
    }
}

/// A message in the making.
struct Outgoing<'a> {
    stream: &'a Stream,
    bytes: Vec<u8>,
}

impl Outgoing<'_> {
    fn run(
        &mut self,
        socket: &mut Socket,
        messages: u32,
        gap: Duration,
        end: Instant,
        made_up: Duration,
        place: impl Fn(u32) -> u32,
    ) -> Result<Sent> {
        let mut sent = Sent::default();
        let start = Instant::now();
        let mut due = start;
        for index in 0..messages {
            let now = wait(due);
            if now > end {
                break;
            }
            if now - due > made_up {
                sent.paused = now - due;
                break;
            }
            self.stamp(place(index), now - start - sent.blocked);
            let blocked = self.hand_over(socket, end)?;
            sent.blocked += blocked;
            sent.messages += 1;
            due += blocked + gap;
        }
        sent.elapsed = due - start;
        Ok(sent)
    }

    fn stamp(&mut self, message: u32, sent: Duration) {
        let header = Header { stream: self.stream.number, message, sent_ns: sent.as_nanos() as u64 };
        for datagram in self.bytes.chunks_mut(self.stream.payload) {
            header.write(&self.stream.token, datagram);
        }
    }

    /// Hands the message to the kernel; how long its queue was full.
    fn hand_over(&self, socket: &mut Socket, end: Instant) -> Result<Duration> {
        if self.stream.together > 1 && socket.cut(self.stream.payload) {
            match push(socket, &self.bytes, end) {
                // The device does no checksums, or an old kernel: one by one.
                Err(error) if error.raw_os_error() == Some(libc::EIO) => {}
                done => return done,
            }
        }
        socket.cut_not();
        self.bytes.chunks(self.stream.payload).map(|datagram| push(socket, datagram, end)).sum()
    }
}

/// Sends what one call takes; how long the queue was full. After `end` it is given up.
fn push(socket: &Socket, bytes: &[u8], end: Instant) -> Result<Duration> {
    let mut since = None;
    loop {
        match socket.send(bytes) {
            Ok(()) => return Ok(since.map_or(Duration::ZERO, |since: Instant| since.elapsed())),
            Err(error)
                if error.kind() == ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ENOBUFS) =>
            {
                let since = *since.get_or_insert_with(Instant::now);
                if Instant::now() > end {
                    return Ok(since.elapsed());
                }
                std::thread::yield_now();
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits for `due`; the time after it.
fn wait(due: Instant) -> Instant {
    loop {
        let now = Instant::now();
        if now >= due {
            return now;
        }
        if due - now > SLEPT {
            std::thread::sleep(due - now - WOKEN_BEFORE);
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Bytes that no link makes shorter.
fn filler(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}
