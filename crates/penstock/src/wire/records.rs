//! Control messages on a network connection: [the records](penstock_fabric::net::records) and the link that carries them.

use super::Ended;
use penstock_fabric::net::link::Link;
use penstock_fabric::net::records::{RecordReader, RecordWriter};
use penstock_fabric::net::stream::Stream;
use std::io;

/// A stream of records, over any link.
#[derive(Debug)]
pub(crate) struct RecordStream<L = Stream> {
    stream: L,
    reader: RecordReader,
    writer: RecordWriter,
}

impl<L: Link> RecordStream<L> {
    /// Records of at most `limit` bytes.
    pub(crate) fn new(stream: L, limit: usize) -> Self {
        Self { stream, reader: RecordReader::new(limit), writer: RecordWriter::default() }
    }

    /// From the next record on at most `limit` bytes.
    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.reader.set_limit(limit);
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
        self.reader.next(&mut self.stream)
    }

    /// Sends a message, at once or when the socket takes it.
    pub(crate) fn send(&mut self, message: &[u8]) -> Result<(), Ended> {
        self.writer.send(&mut self.stream, message)
    }

    /// Goes on with what is held; whether the socket took it all.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        self.writer.flush(&mut self.stream)
    }

    /// Whether something waits for the socket.
    pub(crate) fn holds_output(&self) -> bool {
        !self.writer.is_clear() || self.stream.holds_output()
    }
}
