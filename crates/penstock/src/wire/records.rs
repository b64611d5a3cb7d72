//! Control messages on a network connection, without blocking.

use super::Ended;
use penstock_fabric::net::stream::{Got, Stream};
use penstock_proto::record::{RecordError, Records, record};
use std::io::{self, IoSlice, IoSliceMut};

/// Bytes that wait for a peer at most: one that does not read its answers is not waited for.
const MOST_HELD: usize = 4 << 20;

/// A stream of records.
#[derive(Debug)]
pub(crate) struct RecordStream {
    stream: Stream,
    records: Records,
    held: Vec<u8>,
    at: usize,
}

impl RecordStream {
    /// Records of at most `limit` bytes.
    pub(crate) fn new(stream: Stream, limit: usize) -> Self {
        Self { stream, records: Records::new(limit), held: Vec::new(), at: 0 }
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The stream, from behind the last record: nothing beyond it was read.
    pub(crate) fn into_stream(self) -> Stream {
        self.stream
    }

    /// The next message, if it is here whole. It reads no byte beyond it. An error ends the connection.
    pub(crate) fn receive(&mut self) -> Result<Option<Vec<u8>>, Ended> {
        let mut buffer = [0; 4096];
        loop {
            let next = self.records.take().map_err(|error| match error {
                RecordError::Damaged => Ended::damaged(&error),
                RecordError::TooLong { .. } => Ended::Peer(error.to_string()),
            })?;
            if let Some(message) = next {
                return Ok(Some(message.to_vec()));
            }
            let missing = self.records.missing().clamp(1, buffer.len());
            match self.stream.read(&mut [IoSliceMut::new(&mut buffer[..missing])])? {
                Got::Bytes(bytes) => self.records.feed(&buffer[..bytes]),
                Got::Nothing => return Ok(None),
                Got::End => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            }
        }
    }

    /// Sends a message, at once or when the socket takes it.
    pub(crate) fn send(&mut self, message: &[u8]) -> Result<(), Ended> {
        if self.held.len() - self.at > MOST_HELD {
            return Err(Ended::Peer("it does not read its answers".to_owned()));
        }
        self.held.extend_from_slice(&record(message));
        self.flush()?;
        Ok(())
    }

    /// Goes on with what is held; whether the socket took it all.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        while self.at < self.held.len() {
            match self.stream.write(&[IoSlice::new(&self.held[self.at..])])? {
                0 => return Ok(false),
                bytes => self.at += bytes,
            }
        }
        self.held.clear();
        self.at = 0;
        self.stream.flush()
    }

    /// Whether something waits for the socket.
    pub(crate) fn holds_output(&self) -> bool {
        self.at < self.held.len() || self.stream.holds_output()
    }
}
