//! Control messages of a link and onto it, without blocking.

use super::Ended;
use super::backlog::Backlog;
use super::link::{Got, Link, Segment};
use penstock_proto::record::{RecordError, Records, record};
use std::io::{self, ErrorKind, IoSliceMut};

/// Bytes that wait for a peer at most: one that does not read its answers is not waited for.
const MOST_HELD: usize = 4 << 20;

/// The receiving end.
#[derive(Debug)]
pub struct RecordReader {
    records: Records,
}

impl RecordReader {
    /// For records of at most `limit` bytes, and a link of which nothing was read.
    pub fn new(limit: usize) -> Self {
        Self { records: Records::new(limit) }
    }

    /// From the next record on at most `limit` bytes.
    pub fn set_limit(&mut self, limit: usize) {
        self.records.set_limit(limit);
    }

    /// The next message, if it is here whole. It reads no byte beyond it. An error ends the connection.
    pub fn next<L: Link>(&mut self, link: &mut L) -> Result<Option<Vec<u8>>, Ended> {
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
            match link.read(&mut [IoSliceMut::new(&mut buffer[..missing])])? {
                Got::Bytes(bytes) => self.records.feed(&buffer[..bytes]),
                Got::Nothing => return Ok(None),
                Got::End => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
            }
        }
    }
}

/// The sending end. What the link does not take is held here, up to 4 MiB.
#[derive(Debug, Default)]
pub struct RecordWriter {
    backlog: Backlog,
}

impl RecordWriter {
    /// Sends a message, at once or when the link takes it.
    pub fn send<L: Link>(&mut self, link: &mut L, message: &[u8]) -> Result<(), Ended> {
        if self.backlog.len() > MOST_HELD {
            return Err(Ended::Peer("it does not read its answers".to_owned()));
        }
        self.backlog.hold(Segment::Own(&record(message)));
        self.flush(link)?;
        Ok(())
    }

    /// Goes on with what is held; whether the link took it all.
    pub fn flush<L: Link>(&mut self, link: &mut L) -> io::Result<bool> {
        self.backlog.flush(link)
    }

    /// Whether the link took everything.
    pub fn is_clear(&self) -> bool {
        self.backlog.is_clear()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::stream::Stream;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    // What had gone was kept until everything had.
    #[test]
    fn what_has_gone_is_not_kept_for_a_reader_that_is_always_a_little_behind() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut reader = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut stream = Stream::plain(listener.accept().unwrap().0, Duration::from_secs(30)).unwrap();
        let mut writer = RecordWriter::default();
        let message = vec![7; 64 << 10];
        let (mut sent, mut read) = (0, 0);
        let mut bytes = vec![0; 64 << 10];
        while read < 4 * MOST_HELD {
            // Until the kernel takes no more: from here on something always waits.
            while writer.backlog.len() < MOST_HELD / 4 {
                writer.send(&mut stream, &message).unwrap();
                sent += message.len();
            }
            read += reader.read(&mut bytes).unwrap();
            writer.flush(&mut stream).unwrap();
            assert!(!writer.is_clear(), "it is always behind");
        }
        assert!(sent > read);
        assert!(writer.backlog.capacity() <= 2 * MOST_HELD, "{} bytes are kept", writer.backlog.capacity());
    }
}
