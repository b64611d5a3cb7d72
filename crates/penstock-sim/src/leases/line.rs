//! A connection of a worker to the server: a simulated wire, and at both of its ends what a real job reads and writes control
//! messages by.

use crate::control::HEAD_BYTES;
use crate::rng::Rng;
use crate::transport::{Break, End, Way, Wire};
use penstock_fabric::net::Ended;
use penstock_fabric::net::records::{RecordReader, RecordWriter};
use penstock_proto::message::MAX_MESSAGE_BYTES;
use std::collections::BTreeSet;

/// One record in so many arrives in two pieces.
const PIECES_ONCE_IN: u64 = 4;

/// The connection, until its end was read at the server.
pub(super) struct Line {
    wire: Wire,
    /// By the way that is read.
    readers: [RecordReader; 2],
    /// When the last pieces of records arrive, unless they are lost before; likewise.
    whole: [BTreeSet<u64>; 2],
    /// Whether the worker has said who it is.
    pub(super) greeted: bool,
}

impl Line {
    /// It stands.
    pub(super) fn new() -> Self {
        let mut wire = Wire::default();
        wire.connect();
        let readers = [(); 2].map(|()| RecordReader::new(MAX_MESSAGE_BYTES));
        Self { wire, readers, whole: [BTreeSet::new(), BTreeSet::new()], greeted: false }
    }

    /// A message goes out at `now` and arrives later, up to `longest`. Where the connection is over, or silent, it is lost.
    pub(super) fn send(&mut self, way: Way, message: &[u8], now: u64, longest: u64, rng: &mut Rng) {
        let due = now + rng.within(1..=longest);
        let bytes = (HEAD_BYTES + message.len()) as u64;
        let ahead = rng
            .once_in(PIECES_ONCE_IN)
            .then(|| (rng.within(1..=bytes - 1) as usize, rng.within(now + 1..=due)));
        let mut end = End { due, ahead, ..End::new(&mut self.wire, way, now) };
        let _ = RecordWriter::default().send(&mut end, message);
        self.whole[way as usize].extend(end.arrives[1]);
    }

    /// The next message that has come this way; an error: the connection has ended.
    pub(super) fn next(&mut self, way: Way, now: u64) -> Result<Option<Vec<u8>>, Ended> {
        self.readers[way as usize].next(&mut End::new(&mut self.wire, way.back(), now))
    }

    /// Whether there is anything to read this way: bytes, or the end.
    pub(super) fn has_news(&self, way: Way, now: u64) -> bool {
        self.wire.is_read(way) && self.wire.has_news(way, now)
    }

    /// Whether the last bytes of a message arrive this way now.
    pub(super) fn brings(&self, way: Way, now: u64) -> bool {
        let last = |due: u64| due == now && self.whole[way as usize].contains(&due);
        self.wire.is_read(way) && self.wire.arrivals(way).any(last)
    }

    /// Whether the worker's end stands.
    pub(super) fn stands(&self) -> bool {
        self.wire.is_read(Way::Down)
    }

    /// From some byte on nothing arrives any more this way.
    pub(super) fn fall_silent(&mut self, way: Way, now: u64, rng: &mut Rng) {
        self.wire.shatter(Break::Silent(way), now, rng);
    }

    /// The worker gives it up. What it has sent still arrives.
    pub(super) fn close_at_worker(&mut self) {
        self.wire.close_at_worker();
    }

    /// The server gives it up, likewise.
    pub(super) fn close_at_server(&mut self) {
        self.wire.close_at_shard();
    }
}
