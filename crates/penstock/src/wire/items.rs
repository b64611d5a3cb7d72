//! Messages about items on a network connection, without blocking: into a node and out of one.

use super::Ended;
use super::vigil::Vigil;
use penstock_fabric::net::link::{Got, Link};
use penstock_fabric::net::stream::Stream;
use penstock_proto::account::{Account, Charge, Resource};
use penstock_proto::items::node::{Broken, Host, Node};
use penstock_proto::items::wire::MAX_MESSAGE_BYTES;
use penstock_proto::peer::PeerId;
use penstock_proto::record::{self, LENGTH_BYTES, RecordError};
use std::io::{self, IoSlice, IoSliceMut};
use std::time::Duration;

/// Bytes read at a time.
const READ: usize = 256 * 1024;
/// Bytes taken of a node at a time.
const WRITE: usize = 512 * 1024;
/// Bytes taken of a connection before others get their turn.
const TURN: usize = 4 << 20;

/// A connection, over any link.
#[derive(Debug)]
pub(crate) struct ItemWire<L = Stream> {
    stream: L,
    account: Account,
    /// For what `input` has grown by.
    charge: Charge,
    input: Vec<u8>,
    /// Bytes of `input` that are read, and before which they are used.
    filled: usize,
    used: usize,
    output: Vec<u8>,
    written: usize,
    /// For what `output` takes beyond what any connection's may take.
    output_charge: Charge,
    /// Bytes that ever came: it grows while the peer lives.
    heard: u64,
    vigil: Vigil,
    /// Its turn ended while the node had more to send.
    behind: bool,
}

impl From<Broken> for Ended {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Malformed(damaged) if damaged.is_damage() => Self::damaged(&damaged),
            broken => Self::Peer(broken.to_string()),
        }
    }
}

impl<L: Link> ItemWire<L> {
    /// What it has to keep of the peer's beyond what any connection has is charged to `account`.
    pub(crate) fn new(stream: L, lease: Duration, account: Account) -> Self {
        let (input, output, charge) = (vec![0; READ], Vec::new(), Charge::default());
        let (filled, used, written, heard, vigil) = (0, 0, 0, 0, Vigil::new(lease));
        let (behind, output_charge) = (false, Charge::default());
        Self {
            stream,
            account,
            charge,
            input,
            filled,
            used,
            output,
            written,
            output_charge,
            heard,
            vigil,
            behind,
        }
    }

    pub(crate) fn stream(&self) -> &L {
        &self.stream
    }

    /// Passes on what has come; whether anything had. `true` also where more may be there.
    pub(crate) fn receive<H: Host>(&mut self, node: &mut Node<H>, peer: PeerId) -> Result<bool, Ended> {
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
            self.heard += bytes as u64;
            while let Some(record) = Self::record(&self.input[self.used..self.filled])? {
                let length = record.len();
                // An empty one says only that its sender is alive.
                if length > 0 {
                    node.receive(peer, record)?;
                }
                self.used += LENGTH_BYTES + length;
            }
            if self.used == self.filled {
                (self.used, self.filled) = (0, 0);
                if self.input.len() > 4 * READ {
                    (self.input, self.charge) = (vec![0; READ], Charge::default());
                }
            }
        }
        Ok(true)
    }

    /// The first record, if it is here whole.
    fn record(bytes: &[u8]) -> Result<Option<&[u8]>, Ended> {
        let Some((head, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = record::length(head, MAX_MESSAGE_BYTES).map_err(|error| match error {
            RecordError::Damaged => Ended::damaged(&error),
            RecordError::TooLong { got, .. } => Ended::Peer(format!("it announced a message of {got} bytes")),
        })?;
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
            let charge = self.account.charge(Resource::Bytes, longer as u64);
            self.charge = charge.map_err(|why| Ended::Peer(format!("for a long message {why}")))?;
            self.input.resize(longer, 0);
        }
        Ok(())
    }

    /// Sends what the peer is to be sent, as far as the connection takes it; whether it took anything.
    pub(crate) fn transmit<H: Host>(&mut self, node: &mut Node<H>, peer: PeerId) -> Result<bool, Ended> {
        let mut sent = 0;
        self.behind = false;
        while sent < TURN {
            if self.written == self.output.len() {
                self.empty_output();
                node.transmit(peer, &mut self.output, WRITE);
                self.pay_for_output()?;
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
        self.behind = true;
        Ok(true)
    }

    /// What was written is not kept: a row may have been long, and the next ones are short.
    fn empty_output(&mut self) {
        self.output.clear();
        self.written = 0;
        if self.output.capacity() > 2 * WRITE {
            (self.output, self.output_charge) = (Vec::new(), Charge::default());
        }
    }

    fn pay_for_output(&mut self) -> Result<(), Ended> {
        let more = self.output.capacity().saturating_sub(2 * WRITE) as u64;
        if more > self.output_charge.amount() {
            self.output_charge = Charge::default();
            let charge = self.account.charge(Resource::Bytes, more);
            self.output_charge = charge.map_err(|why| Ended::Peer(format!("for rows on their way {why}")))?;
        }
        Ok(())
    }

    /// Sends a sign of life when it is time, unless something else is on its way; an error if the peer is silent.
    pub(crate) fn keep_vigil(&mut self) -> Result<(), Ended> {
        if self.vigil.is_silent(self.heard) {
            return Err(io::Error::from(io::ErrorKind::TimedOut).into());
        }
        if self.vigil.is_time_to_beat() && self.written == self.output.len() {
            self.empty_output();
            self.output.extend_from_slice(&record::length_bytes(0));
            self.written = self.stream.write(&[IoSlice::new(&self.output)])?;
        }
        Ok(())
    }

    /// Bytes that ever came: it grows while the peer lives.
    pub(crate) fn heard(&self) -> u64 {
        self.heard
    }

    /// Whether something waits until the connection takes more, or for its next turn.
    pub(crate) fn holds_output(&self) -> bool {
        self.behind || self.written < self.output.len() || self.stream.holds_output()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_fabric::items::partition::{Layout, Waiters, Writer};
    use penstock_fabric::items::partition_memory::PartitionMemory;
    use penstock_proto::account::Limits;
    use penstock_proto::items::RowSet;
    use penstock_proto::items::spec::{MAX_ROW_BYTES, Propagation};
    use penstock_proto::items::wire::{Encoder, Message, PartitionId, Shape};
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    struct Nobody;

    impl Host for Nobody {
        type Memory = PartitionMemory;

        fn make(&mut self, _: PartitionId, _: &Shape) -> Option<PartitionMemory> {
            None
        }

        fn answered(&mut self, _: u64) {}

        fn flushed(&mut self, _: u64) {}
    }

    const PEER: PeerId = PeerId::worker(1);
    const LEASE: Duration = Duration::from_secs(30);

    /// A node whose one row, as long as a row may be, is wanted.
    fn node_with_a_long_row() -> Node<Nobody> {
        let (partition, row_bytes) = (PartitionId { table: 0, rank: 0 }, MAX_ROW_BYTES);
        let shape = Shape { slots: 1, row_bytes, propagation: Propagation::Eager };
        let mut writer = Writer::private(Layout::new(1, row_bytes)).unwrap();
        let mut set = writer.begin(1);
        set.put(0, 1, &vec![7; row_bytes as usize]);
        set.finish();
        let mut node = Node::new(Nobody);
        let memory = PartitionMemory::followed(writer.rows().clone(), Waiters::private().unwrap());
        node.produce(partition, PeerId::worker(0), shape, memory, None);
        node.connected(PEER);
        let mut message = Vec::new();
        let rows = RowSet::from_rows([0]);
        Encoder::message(&mut message, &Message::Subscribe { partition, shape, done: 0, serial: 1, rows });
        node.receive(PEER, &message[LENGTH_BYTES..]).unwrap();
        node
    }

    #[test]
    fn a_long_row_is_paid_for_while_it_is_on_its_way_and_its_room_is_given_back() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream = Stream::plain(listener.accept().unwrap().0, LEASE).unwrap();
        let account = Account::new(Limits::NONE.with(Resource::Bytes, 1 << 30));
        let mut wire = ItemWire::new(stream, LEASE, account.peer(PEER));
        let mut node = node_with_a_long_row();
        wire.transmit(&mut node, PEER).unwrap();
        assert!(wire.holds_output(), "nobody reads it");
        assert!(account.taken(Resource::Bytes) >= u64::from(MAX_ROW_BYTES) - 2 * WRITE as u64);
        let reader = std::thread::spawn(move || theirs.read_to_end(&mut Vec::new()).unwrap());
        while wire.holds_output() {
            wire.transmit(&mut node, PEER).unwrap();
            std::thread::yield_now();
        }
        assert_eq!(account.taken(Resource::Bytes), 0);
        assert!(wire.output.capacity() <= 2 * WRITE, "{} bytes are kept", wire.output.capacity());
        drop(wire);
        assert!(reader.join().unwrap() > MAX_ROW_BYTES as usize);
    }

    #[test]
    fn who_cannot_pay_for_a_row_on_its_way_is_lost() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream = Stream::plain(listener.accept().unwrap().0, LEASE).unwrap();
        let account = Account::new(Limits::NONE.with(Resource::Bytes, 1 << 20));
        let mut wire = ItemWire::new(stream, LEASE, account.peer(PEER));
        let ended = wire.transmit(&mut node_with_a_long_row(), PEER).unwrap_err();
        assert!(matches!(ended, Ended::Peer(_)), "{ended:?}");
    }
}
