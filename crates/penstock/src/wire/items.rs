//! Messages about items on a network connection, without blocking: into a node and out of one.

use penstock_fabric::net::stream::{Got, Stream};
use penstock_proto::items::node::{Broken, Host, Node, Peer};
use penstock_proto::items::wire::MAX_MESSAGE_BYTES;
use std::io::{self, IoSlice, IoSliceMut};

/// Bytes read at a time.
const READ: usize = 256 * 1024;
/// Bytes taken of a node at a time.
const WRITE: usize = 512 * 1024;
/// Bytes taken of a connection before others get their turn.
const TURN: usize = 4 << 20;

/// A connection.
#[derive(Debug)]
pub(crate) struct ItemWire {
    stream: Stream,
    input: Vec<u8>,
    /// Bytes of `input` that are read, and before which they are used.
    filled: usize,
    used: usize,
    output: Vec<u8>,
    written: usize,
}

/// Why a connection is over.
#[derive(Debug)]
pub(crate) enum Ended {
    /// It broke; another may be made.
    Connection(io::Error),
    /// The peer said what no honest one says.
    Peer(String),
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        Self::Connection(error)
    }
}

impl From<Broken> for Ended {
    fn from(broken: Broken) -> Self {
        Self::Peer(broken.to_string())
    }
}

impl ItemWire {
    pub(crate) fn new(stream: Stream) -> Self {
        Self { stream, input: vec![0; READ], filled: 0, used: 0, output: Vec::new(), written: 0 }
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Passes on what has come; whether anything had. `true` also where more may be there.
    pub(crate) fn receive<H: Host>(&mut self, node: &mut Node<H>, peer: Peer) -> Result<bool, Ended> {
        let mut taken = 0;
        while taken < TURN {
            if self.filled == self.input.len() {
                self.make_room()?;
            }
            let got = self.stream.read(&mut [IoSliceMut::new(&mut self.input[self.filled..])])?;
            let bytes = match got {
                Got::Bytes(bytes) => bytes,
                Got::Nothing => return Ok(taken > 0),
                Got::End => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            };
            self.filled += bytes;
            taken += bytes;
            while let Some(record) = Self::record(&self.input[self.used..self.filled])? {
                let length = record.len();
                node.receive(peer, record)?;
                self.used += 4 + length;
            }
            if self.used == self.filled {
                (self.used, self.filled) = (0, 0);
            }
        }
        Ok(true)
    }

    /// The first record, if it is here whole.
    fn record(bytes: &[u8]) -> Result<Option<&[u8]>, Ended> {
        let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MAX_MESSAGE_BYTES {
            return Err(Ended::Peer(format!("it announced a message of {length} bytes")));
        }
        Ok(rest.get(..length))
    }

    /// Makes room behind what is read: moves it to the front, and grows only as far as the record that is under way is long.
    fn make_room(&mut self) -> Result<(), Ended> {
        self.input.copy_within(self.used..self.filled, 0);
        (self.filled, self.used) = (self.filled - self.used, 0);
        if self.filled == self.input.len() {
            let longer = (2 * self.input.len()).min(MAX_MESSAGE_BYTES + READ);
            if longer == self.input.len() {
                return Err(Ended::Peer("it sent a message without an end".to_owned()));
            }
            self.input.resize(longer, 0);
        }
        Ok(())
    }

    /// Sends what the peer is to be sent, as far as the connection takes it; whether it took anything.
    pub(crate) fn transmit<H: Host>(&mut self, node: &mut Node<H>, peer: Peer) -> Result<bool, Ended> {
        let mut sent = 0;
        while sent < TURN {
            if self.written == self.output.len() {
                self.output.clear();
                self.written = 0;
                node.transmit(peer, &mut self.output, WRITE);
                if self.output.is_empty() {
                    self.stream.flush()?;
                    return Ok(sent > 0);
                }
            }
            match self.stream.write(&[IoSlice::new(&self.output[self.written..])])? {
                0 => return Ok(sent > 0),
                bytes => {
                    self.written += bytes;
                    sent += bytes;
                }
            }
        }
        Ok(true)
    }

    /// Whether something waits until the connection takes more.
    pub(crate) fn holds_output(&self) -> bool {
        self.written < self.output.len() || self.stream.holds_output()
    }
}
