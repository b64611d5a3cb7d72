//! Control messages on a network connection, without blocking.

use super::Ended;
use penstock_fabric::net::link::{Got, Link};
use penstock_fabric::net::stream::Stream;
use penstock_proto::record::{RecordError, Records, record};
use std::io::{self, IoSlice, IoSliceMut};

/// Bytes that wait for a peer at most: one that does not read its answers is not waited for.
const MOST_HELD: usize = 4 << 20;
/// Bytes that have gone and are still kept before those that wait: to move those up for each message would cost more.
const MOST_GONE: usize = 64 << 10;

/// A stream of records, over any link.
#[derive(Debug)]
pub(crate) struct RecordStream<L = Stream> {
    stream: L,
    records: Records,
    held: Vec<u8>,
    at: usize,
}

impl<L: Link> RecordStream<L> {
    /// Records of at most `limit` bytes.
    pub(crate) fn new(stream: L, limit: usize) -> Self {
        Self { stream, records: Records::new(limit), held: Vec::new(), at: 0 }
    }

    pub(crate) fn stream(&self) -> &L {
        &self.stream
    }

    /// The stream, from behind the last record: nothing beyond it was read.
    pub(crate) fn into_stream(self) -> L {
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
        self.forget_gone();
        self.held.extend_from_slice(&record(message));
        self.flush()?;
        Ok(())
    }

    /// Gives back what has gone: a reader that is always a little behind never lets all of it go. Only where at least as much
    /// has gone as waits, so that no byte is moved more often than it was sent.
    fn forget_gone(&mut self) {
        if self.at > MOST_GONE && self.at >= self.held.len() - self.at {
            self.held.drain(..self.at);
            self.at = 0;
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    // What had gone was kept until everything had.
    #[test]
    fn what_has_gone_is_not_kept_for_a_reader_that_is_always_a_little_behind() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut reader = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream = Stream::plain(listener.accept().unwrap().0, Duration::from_secs(30)).unwrap();
        let mut records = RecordStream::new(stream, 1 << 20);
        let message = vec![7; 64 << 10];
        let (mut sent, mut read) = (0, 0);
        let mut bytes = vec![0; 64 << 10];
        while read < 4 * MOST_HELD {
            // Until the kernel takes no more: from here on something always waits.
            while records.held.len() - records.at < MOST_HELD / 4 {
                records.send(&message).unwrap();
                sent += message.len();
            }
            read += reader.read(&mut bytes).unwrap();
            records.flush().unwrap();
            assert!(records.holds_output(), "it is always behind");
        }
        assert!(sent > read);
        assert!(records.held.capacity() <= 2 * MOST_HELD, "{} bytes are kept", records.held.capacity());
    }
}
