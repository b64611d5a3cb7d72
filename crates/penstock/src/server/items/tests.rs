use super::super::fair_share::Shares;
use super::*;
use penstock_fabric::items::partition::make;
use penstock_proto::account::Limits;
use penstock_proto::items::RowSet;
use penstock_proto::items::spec::Propagation;
use penstock_proto::items::wire::{Encoder, Message};
use penstock_proto::record::{self, LENGTH_BYTES};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::mpsc::Receiver;

const PRODUCER: PeerId = PeerId::worker(0);
const READER: PeerId = PeerId::worker(1);
const ID: PartitionId = PartitionId { table: 0, rank: 0 };
const SHAPE: Shape = Shape { slots: 1, row_bytes: 8, propagation: Propagation::Eager };

/// Where the control thread makes partitions and says so, and then a peer that knows of them asks for their rows: while the
/// thread hears whoever has said something.
#[derive(Default)]
struct Busy {
    inbox: Vec<u32>,
    known: Vec<u32>,
    asked: Vec<u32>,
    told_that_there_is_none: Vec<u32>,
}

impl Turn for Busy {
    fn hear(&mut self) {
        self.inbox.push(7);
        self.asked.push(7);
    }

    fn take_commands(&mut self) {
        self.known.append(&mut self.inbox);
    }

    fn answer_waiting(&mut self) {
        let unknown = self.asked.drain(..).filter(|asked| !self.known.contains(asked));
        self.told_that_there_is_none.extend(unknown);
    }
}

// N-6: a get behind a barrier returned rows from before it.
#[test]
fn nobody_is_told_that_rows_were_not_made_while_word_of_them_lies_in_the_inbox() {
    let mut busy = Busy::default();
    busy.take_turn();
    assert_eq!((&busy.known[..], &busy.asked[..]), (&[7][..], &[][..]));
    assert_eq!(busy.told_that_there_is_none, [0; 0]);
}

fn passer() -> (Passer, thread::Handle<Command>) {
    let (passer, handle, _) = reporting();
    (passer, handle)
}

fn reporting() -> (Passer, thread::Handle<Command>, Receiver<Report>) {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let (handle, inbox) = thread::commanded().unwrap();
    let (reports, reported) = std::sync::mpsc::channel();
    let control = Arc::new(crate::server::Shared::new().unwrap());
    let (account, lease) = (Account::new(Limits::NONE), Duration::from_secs(60));
    let setup = Setup { account, reports, control, lease, server: 0, place: None };
    (Passer::new(setup, inbox, epoll, Kept::default()), handle, reported)
}

// The answer to a sign of life came while the thread was awake, once a minute or more often: a job that slept paced its neighbours.
#[test]
fn a_job_acts_by_messages_about_rows_and_not_by_signs_of_life() {
    let (mut passer, _handle) = passer();
    let shares = Arc::new(Shares::default());
    let neighbour = shares.admit(1, 1.0);
    passer.setup.place = Some(shares.admit(2, 1.0));
    let come = Instant::now();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let ours = Stream::plain(listener.accept().unwrap().0, Duration::from_secs(60)).unwrap();
    passer.enter(READER, ours);
    let mut after = |bytes: &[u8], minutes: u64| {
        theirs.write_all(bytes).unwrap();
        while !passer.look(Some(Duration::from_secs(10))) {}
        passer.transmit_all();
        shares.look(come + Duration::from_secs(60 * minutes));
        neighbour.is_beside_another()
    };
    assert!(!after(&record::length_bytes(0), 2), "by a sign of life");
    let mut message = Vec::new();
    Encoder::message(&mut message, &Message::Flush { id: 1 });
    assert!(after(&message, 4), "not by a message");
    assert!(!after(&record::length_bytes(0), 6), "by a sign of life behind it");
}

/// A row that this process cannot map, since what is there is no memory; and the memory.
fn unreadable() -> (Sealed, OwnedFd) {
    let layout = Layout::new(SHAPE.slots, SHAPE.row_bytes);
    let memory = make(&layout).unwrap().fd().try_clone_to_owned().unwrap();
    let charge = || Account::new(Limits::NONE).charge(Resource::Bytes, 0).unwrap();
    let charges = Arc::new([charge(), charge(), charge()]);
    let (partition, waiters) = (thread::bell().unwrap(), Waiters::private().unwrap());
    (Sealed { id: ID, partition, layout, shape: SHAPE, waiters, charges }, memory)
}

/// A reader of another host subscribes.
fn subscribe(passer: &mut Passer) {
    passer.node.connected(READER);
    let mut said = Vec::new();
    let rows = RowSet::from_rows([0]);
    Encoder::message(
        &mut said,
        &Message::Subscribe { partition: ID, shape: SHAPE, done: 0, serial: 1, rows },
    );
    passer.node.receive(READER, &said[LENGTH_BYTES..]).unwrap();
}

// The producer's partition is sealed, and so passed on, once: nobody elsewhere ever had its rows.
#[test]
fn rows_that_could_not_be_mapped_are_mapped_once_they_can_be() {
    let (mut passer, _handle) = passer();
    subscribe(&mut passer);
    let (sealed, memory) = unreadable();
    passer.follow(PRODUCER, sealed);
    passer.follow_again();
    assert!(!passer.node.is_wanted(ID) && passer.node.is_awaited(ID) && passer.unreadable.contains_key(&ID));
    passer.unreadable.get_mut(&ID).unwrap().1.partition = memory;
    passer.follow_again();
    assert!(passer.node.is_wanted(ID) && passer.followed.contains_key(&ID) && passer.unreadable.is_empty());
    assert_eq!(*passer.kept.0.lock().unwrap(), BTreeSet::from([ID]));
}

// They stayed for as long as the job, where the table does not exist.
#[test]
fn rows_that_cannot_be_mapped_go_with_their_producer_and_the_last_that_waits_for_them() {
    let leave = |passer: &mut Passer, handle: &thread::Handle<Command>, peer| {
        handle.send(Command::Leave { peer });
        passer.take_commands();
        (passer.unreadable.len(), passer.kept.0.lock().unwrap().len())
    };
    for gone in [[READER, PRODUCER], [PRODUCER, READER]] {
        let (mut passer, handle) = passer();
        subscribe(&mut passer);
        passer.follow(PRODUCER, unreadable().0);
        assert_eq!(leave(&mut passer, &handle, gone[0]), (1, 1), "{gone:?}");
        assert_eq!(leave(&mut passer, &handle, gone[1]), (0, 0), "{gone:?}");
    }
}

/// A connection for items, and the peer's end.
fn entered(passer: &mut Passer, peer: PeerId) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    theirs.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    passer.enter(peer, Stream::plain(listener.accept().unwrap().0, passer.setup.lease).unwrap());
    theirs
}

// Peers whose requests took long made others lose their server: only a thread that slept showed that it lived.
#[test]
fn while_one_peer_has_its_turns_others_are_shown_that_the_server_lives() {
    let (mut passer, _handle) = passer();
    passer.setup.lease = Duration::from_secs(1);
    let _busy = entered(&mut passer, PRODUCER);
    let mut idle = entered(&mut passer, READER);
    passer.unheard.insert(PRODUCER);
    passer.shown = Instant::now().checked_sub(passer.setup.lease).unwrap();
    assert!(passer.look(Some(Duration::from_secs(60))), "what a turn left is heard without a wait");
    let mut sign = [1; LENGTH_BYTES];
    idle.read_exact(&mut sign).unwrap();
    assert_eq!(sign, record::length_bytes(0));
    assert!(passer.unheard.is_empty() && passer.wires.len() == 2);
}

// It was heard at once, up to eight megabytes of it, and meanwhile nobody else: no row was passed on for more than a minute.
#[test]
fn what_a_peer_has_left_is_heard_in_turns_before_its_end_is_told_and_it_is_forgotten() {
    const LONG: Option<Duration> = Some(Duration::from_secs(60));
    const QUESTIONS: u64 = 9;
    for leaves in [false, true] {
        let (mut passer, handle, reports) = reporting();
        subscribe(&mut passer);
        let mut theirs = entered(&mut passer, PRODUCER);
        passer.wires.get_mut(&PRODUCER).unwrap().wire.shorten_turns();
        let mut words = Vec::new();
        (0..QUESTIONS).for_each(|id| Encoder::message(&mut words, &Message::Flush { id }));
        Encoder::message(&mut words, &Message::Offer { partition: ID, shape: SHAPE });
        theirs.write_all(&words).unwrap();
        assert!(passer.look(LONG), "they have come");
        handle.send(Command::AwaitEnd { peer: PRODUCER });
        if leaves {
            handle.send(Command::Leave { peer: PRODUCER });
        } else {
            passer.end_heard(PRODUCER, Ended::Connection(ErrorKind::BrokenPipe.into()));
        }
        passer.take_commands();
        let mut turns = 0;
        while passer.wires.contains_key(&PRODUCER) {
            assert!(passer.node.memory(ID).is_none() && !passer.node.has_gone(PRODUCER));
            assert!(reports.try_recv().is_err());
            passer.transmit_all();
            assert!(passer.look(LONG));
            turns += 1;
        }
        assert!(turns >= QUESTIONS, "{turns} turns");
        assert!(passer.node.memory(ID).is_some(), "what it said last counts: another wants those rows");
        assert!(matches!(reports.try_recv(), Ok(Report::Ended { peer: PRODUCER })));
        assert_eq!((passer.node.has_gone(PRODUCER), passer.unheard.len(), passer.gone.len()), (leaves, 0, 0));
        assert_eq!(theirs.read_to_end(&mut Vec::new()).unwrap(), 0, "nothing is said to it");
    }
}

// The thread could sleep once with what followed from a peer's end unsent.
#[test]
fn after_a_peers_end_it_looks_once_more_for_what_others_are_to_be_sent() {
    let (mut passer, _handle) = passer();
    subscribe(&mut passer);
    let mut theirs = entered(&mut passer, PRODUCER);
    let mut offer = Vec::new();
    Encoder::message(&mut offer, &Message::Offer { partition: ID, shape: SHAPE });
    theirs.write_all(&offer).unwrap();
    assert!(passer.look(Some(Duration::from_secs(60))));
    // It is to be told what is wanted, and its connection is reset.
    rustix::net::sockopt::set_socket_linger(&theirs, Some(Duration::ZERO)).unwrap();
    drop(theirs);
    assert!(passer.transmit_all(), "it has ended");
    assert!(passer.wires.is_empty());
    assert!(!passer.transmit_all(), "nothing is left");
}
