//! Messages about items on a network connection: [what reads and writes them](penstock_fabric::net::messages), the node that they
//! are for, and whether the peer lives.

use super::Ended;
use super::vigil::Vigil;
use penstock_fabric::net::link::Link;
use penstock_fabric::net::messages::{MessageReader, MessageWriter, WRITE};
use penstock_fabric::net::stream::Stream;
use penstock_proto::account::Account;
use penstock_proto::items::node::{Host, Node};
use penstock_proto::peer::PeerId;
use std::cell::Cell;
use std::io;
use std::time::{Duration, Instant};

/// How long what one peer says, or is told, may keep others waiting, but for one step of the node that looks for what to say, and for
/// the first message that comes.
const TURN: Duration = Duration::from_millis(10);

/// How long a turn has lasted: since it was first asked.
#[derive(Default)]
struct Watch(Cell<Option<Instant>>);

impl Watch {
    /// Whether a turn of this length has time left.
    fn has_time(&self, turn: Duration) -> bool {
        match self.0.get() {
            Some(since) => since.elapsed() < turn,
            None => {
                self.0.set(Some(Instant::now()));
                !turn.is_zero()
            }
        }
    }
}

/// A connection, over any link.
#[derive(Debug)]
pub(crate) struct ItemWire<L = Stream> {
    stream: L,
    reader: MessageReader,
    writer: MessageWriter,
    vigil: Vigil,
    /// Whether the node had not looked at all that the peer may be sent when the last turn ended, and whether it has since, but not
    /// in one turn: something may have come meanwhile.
    unfinished: bool,
    looks_again: bool,
    /// Whether a message came or was made since it was last asked: signs of life do not count.
    acted: bool,
    /// How long a turn is.
    turn: Duration,
}

impl<L: Link> ItemWire<L> {
    /// What it has to keep for the peer beyond what every connection keeps is charged to `account`.
    pub(crate) fn new(stream: L, lease: Duration, account: Account) -> Self {
        let (reader, writer) = (MessageReader::new(account.clone()), MessageWriter::new(account));
        let (turn, vigil) = (TURN, Vigil::new(lease));
        Self { stream, reader, writer, vigil, unfinished: false, looks_again: false, acted: false, turn }
    }

    /// From now on a turn takes one message at most.
    #[cfg(test)]
    pub(crate) fn shorten_turns(&mut self) {
        self.turn = Duration::ZERO;
    }

    pub(crate) fn stream(&self) -> &L {
        &self.stream
    }

    /// Passes on what has come, for one turn; whether anything had. `true` also where more may be there.
    pub(crate) fn receive<H: Host>(&mut self, node: &mut Node<H>, peer: PeerId) -> Result<bool, Ended> {
        // Most times nothing has come, and the time is not asked for.
        let watch = Watch::default();
        self.reader.receive(
            &mut self.stream,
            || watch.has_time(self.turn),
            |message| {
                self.acted = true;
                node.receive(peer, message)
            },
        )
    }

    /// Whether a message, and not only signs of life, has come or was made to be sent since this was last asked.
    pub(crate) fn take_acted(&mut self) -> bool {
        std::mem::take(&mut self.acted)
    }

    /// Whether more may have come than the last turn had time for: the connection need not say so again.
    pub(crate) fn holds_input(&self) -> bool {
        self.reader.is_behind()
    }

    /// Sends what the peer is to be sent, for one turn and as far as the connection takes it; whether it took anything. `true` also
    /// where what there is to send has not been found out.
    pub(crate) fn transmit<H: Host>(&mut self, node: &mut Node<H>, peer: PeerId) -> Result<bool, Ended> {
        let (watch, turn, goes_on) = (Watch::default(), self.turn, self.unfinished);
        // From now on: to find what there is to say may take long.
        watch.has_time(turn);
        let (unfinished, acted, mut more) = (&mut self.unfinished, &mut self.acted, true);
        let has_time = || watch.has_time(turn);
        let sent = self.writer.transmit(&mut self.stream, has_time, |output| {
            // Nothing has come meanwhile, and what was given has gone.
            if !more {
                node.taken(peer);
                return 0;
            }
            // Batch by batch: it may take long to find the next.
            loop {
                let before = output.len();
                more = node.transmit(peer, output, before + 1);
                *unfinished = more && output.len() == before;
                *acted |= output.len() > before;
                if !more || output.len() >= WRITE || !has_time() {
                    break node.paid(peer);
                }
            }
        })?;
        self.looks_again = goes_on && !self.unfinished;
        // What waits for room is sent when there is some.
        Ok(sent || (self.unfinished || self.looks_again) && self.writer.is_clear())
    }

    /// Whether nothing has been read from the peer for half a lease.
    pub(crate) fn is_silent(&mut self) -> bool {
        self.vigil.is_silent(self.reader.heard())
    }

    /// Sends a sign of life when it is time, unless something else is on its way; an error if the peer is silent.
    pub(crate) fn keep_vigil(&mut self) -> Result<(), Ended> {
        if self.is_silent() {
            return Err(io::Error::from(io::ErrorKind::TimedOut).into());
        }
        self.beat()
    }

    /// The same between the turns of others, where this peer may not have been heard for long.
    pub(crate) fn beat(&mut self) -> Result<(), Ended> {
        if self.vigil.is_time_to_beat() {
            self.writer.beat(&mut self.stream)?;
        }
        Ok(())
    }

    /// Bytes that ever came: it grows while the peer lives.
    pub(crate) fn heard(&self) -> u64 {
        self.reader.heard()
    }

    /// Whether something waits until the connection takes more, or for its next turn.
    pub(crate) fn holds_output(&self) -> bool {
        let looks = self.unfinished || self.looks_again;
        looks || self.writer.is_behind() || !self.writer.is_clear() || self.stream.holds_output()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_fabric::items::partition::{Layout, Waiters, Writer};
    use penstock_fabric::items::partition_memory::PartitionMemory;
    use penstock_proto::account::{Limits, Resource};
    use penstock_proto::items::RowSet;
    use penstock_proto::items::spec::{MAX_ROW_BYTES, Propagation};
    use penstock_proto::items::wire::{Encoder, Message, PartitionId, Shape};
    use penstock_proto::record::LENGTH_BYTES;
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
        assert!(wire.writer.capacity() <= 2 * WRITE, "{} bytes are kept", wire.writer.capacity());
        drop(wire);
        assert!(reader.join().unwrap() > MAX_ROW_BYTES as usize);
    }

    // It was, for the words of its readers: they lay on its connection, and it was to pay for them.
    #[test]
    fn a_producer_that_can_pay_for_nothing_more_is_told_what_others_want_and_stays() {
        const SLOTS: u32 = 2 << 20;
        struct Home(Account);
        impl Host for Home {
            type Memory = PartitionMemory;

            fn make(&mut self, _: PartitionId, _: &Shape) -> Option<PartitionMemory> {
                let writer = Writer::private(Layout::new(1, 8)).unwrap();
                Some(PartitionMemory::mirror(writer, Waiters::private().unwrap()))
            }

            fn account(&self, peer: PeerId) -> Account {
                self.0.peer(peer)
            }

            fn answered(&mut self, _: u64) {}

            fn flushed(&mut self, _: u64) {}
        }
        let reader = PeerId::worker(2);
        let (partition, shape) = (
            PartitionId { table: 0, rank: 1 },
            Shape { slots: SLOTS, row_bytes: 8, propagation: Propagation::Lazy },
        );
        // As many bytes as rows: every other.
        let rows = RowSet::from_rows((0..SLOTS.into()).step_by(2));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream = Stream::plain(listener.accept().unwrap().0, LEASE).unwrap();
        let account = Account::new(Limits::NONE.with(Resource::Bytes, 1 << 30));
        let mut node = Node::new(Home(account.clone()));
        [PEER, reader].into_iter().for_each(|peer| node.connected(peer));
        let say = |node: &mut Node<Home>, peer, message: &Message<'_>| {
            let mut bytes = Vec::new();
            Encoder::message(&mut bytes, message);
            node.receive(peer, &bytes[LENGTH_BYTES..]).unwrap();
        };
        say(&mut node, PEER, &Message::Offer { partition, shape });
        say(&mut node, reader, &Message::Subscribe { partition, shape, done: 0, serial: 1, rows });
        let most = account.peer(PEER).left(Resource::Bytes);
        let _rows = account.peer(PEER).charge(Resource::Bytes, most).unwrap();
        let heard = std::thread::spawn(move || theirs.read_to_end(&mut Vec::new()).unwrap());
        let mut wire = ItemWire::new(stream, LEASE, account.peer(PEER));
        wire.transmit(&mut node, PEER).expect("others pay for what they want");
        while wire.holds_output() {
            wire.transmit(&mut node, PEER).unwrap();
            std::thread::yield_now();
        }
        drop(wire);
        assert!(heard.join().unwrap() >= SLOTS as usize);
    }

    // Nothing else tells the thread to look for the rest.
    #[test]
    fn a_turn_that_found_nothing_yet_is_followed_by_another() {
        const SLOTS: u32 = 9;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream = Stream::plain(listener.accept().unwrap().0, LEASE).unwrap();
        let mut wire = ItemWire::new(stream, LEASE, Account::default());
        wire.shorten_turns();
        let partition = PartitionId { table: 0, rank: 0 };
        let shape = Shape { slots: SLOTS, row_bytes: 8, propagation: Propagation::Bounded };
        let mut writer = Writer::private(Layout::new(SLOTS, 8)).unwrap();
        let mut set = writer.begin(1);
        set.put(SLOTS - 1, 1, &[7; 8]);
        set.finish();
        let mut node = Node::new(Nobody);
        node.look_at_most(1);
        let memory = PartitionMemory::followed(writer.rows().clone(), Waiters::private().unwrap());
        node.produce(partition, PeerId::worker(0), shape, memory, None);
        node.connected(PEER);
        let rows = RowSet::from_ranges(std::iter::once(0..SLOTS.into()));
        for message in [
            Message::Subscribe { partition, shape, done: 0, serial: 1, rows },
            Message::Need { partition, versions: vec![1] },
        ] {
            let mut bytes = Vec::new();
            Encoder::message(&mut bytes, &message);
            node.receive(PEER, &bytes[LENGTH_BYTES..]).unwrap();
        }
        let (mut turns, mut traffic) = (0, 0);
        while wire.transmit(&mut node, PEER).unwrap() {
            (turns, traffic) = (turns + 1, node.traffic(0).0);
            assert!(traffic > 0 || wire.holds_output(), "it sleeps");
        }
        assert!(turns >= SLOTS && traffic > 0, "{turns} turns, {traffic} bytes");
        assert!(!wire.holds_output());
        // Once all has been looked at nothing is, until something has come.
        assert!(!wire.transmit(&mut node, PEER).unwrap());
    }

    #[test]
    fn who_cannot_pay_for_a_row_on_its_way_is_lost() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream = Stream::plain(listener.accept().unwrap().0, LEASE).unwrap();
        let account = Account::new(Limits::NONE.with(Resource::Bytes, 1 << 20));
        let mut wire = ItemWire::new(stream, LEASE, account.peer(PEER));
        let ended = wire.transmit(&mut node_with_a_long_row(), PEER).unwrap_err();
        assert!(matches!(ended, Ended::Exhausted { what: "rows on their way", .. }), "{ended:?}");
    }
}
