//! Doors of workers of one job, over real sockets; the proxies behind them are inboxes that the test looks into.

use super::*;
use crate::thread::{Handle, Inbox, commanded};
use crate::wire::dial::DialError;
use penstock_fabric::net::remote_shard::NewChild;
use penstock_proto::error::{JobFailure, Loss, Refusal};
use penstock_proto::handshake::Purpose;
use penstock_proto::message::Secret;
use penstock_proto::peer::PeerId;
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const JOB: &str = "job";
const SECRET: Secret = Secret([3; 32]);
const SIZE: u32 = 4;
const LONG: Duration = Duration::from_secs(20);

/// A worker with a door, and the proxy of shard 1 of server 2 behind it.
struct Worker {
    doors: Doors,
    fate: Arc<Fate>,
    inbox: Inbox<Command>,
    came: Receiver<NewChild<Stream>>,
    _handle: Handle<Command>,
}

fn options(given: &[(&str, &str)]) -> Options {
    Options::load(given.iter().copied()).unwrap()
}

fn dialer(secret: Secret, given: &[(&str, &str)]) -> Dialer {
    let nowhere = Address { host: "127.0.0.1".to_owned(), port: 1 };
    Dialer::new(nowhere, JOB, secret, &options(given)).unwrap()
}

fn session_of(rank: Rank) -> Session {
    [rank as u8 + 100; 16]
}

fn worker(rank: Rank, given: &[(&str, &str)]) -> Worker {
    let (fate, options) = (Arc::<Fate>::default(), options(given));
    let who = Newcomer {
        options: &options,
        secret: SECRET,
        session: session_of(rank),
        rank,
        size: SIZE,
        fate: &fate,
    };
    let doors = Doors::open(&who, "127.0.0.1:1".parse().unwrap(), &dialer(SECRET, given)).unwrap();
    let (handle, inbox) = commanded().unwrap();
    let (entrance, came) = channel();
    doors.lead_to(2, 1, (handle.teller(), entrance));
    Worker { doors, fate, inbox, came, _handle: handle }
}

impl Worker {
    /// The next thing that the proxy is told.
    fn told(&self) -> Command {
        let since = Instant::now();
        loop {
            self.inbox.open();
            if let Some(command) = self.inbox.next() {
                return command;
            }
            assert!(since.elapsed() < LONG, "nothing came");
            self.inbox.wakeup().sleep(LONG);
            self.inbox.wakeup().clear();
        }
    }

    fn wish(&self, epoch: u32, parent: SocketAddr, stripes: Stripes) -> Request {
        let pass = Pass::new(&session_of(1), 2, 0);
        let (server, shard, rank, address) = (2, 1, 1, parent);
        let (striping, child, parents, rendezvous) = (9, 0, 1, Some([6; 16]));
        Request { server, shard, epoch, rank, address, pass, striping, stripes, child, rendezvous, parents }
    }
}

fn stripes(bits: u64) -> Stripes {
    Stripes(bits)
}

/// Knocks at the door of worker 1 by hand, as whoever is named.
fn knock(at: SocketAddr, dialer: &Dialer, purpose: Purpose) -> Result<Stream, DialError> {
    let pass = match purpose {
        Purpose::Relay { child, server, .. } => Some(Pass::new(&session_of(1), server, child)),
        _ => None,
    };
    knock_showing(at, dialer, pass, purpose)
}

fn knock_showing(
    at: SocketAddr,
    dialer: &Dialer,
    pass: Option<Pass>,
    purpose: Purpose,
) -> Result<Stream, DialError> {
    let dialer = dialer.by(Address { host: at.ip().to_string(), port: at.port() });
    let dialer = match pass {
        Some(pass) => dialer.showing(&pass),
        None => dialer,
    };
    dialer.dial(purpose, Instant::now() + LONG, &|| false)
}

fn relay(child: Rank, server: u32, shard: u32) -> Purpose {
    Purpose::Relay { child, server, shard, striping: 9, stripes: stripes(5), rendezvous: None }
}

#[test]
fn a_child_that_dials_its_parent_is_led_to_the_proxy_that_it_names_and_each_hears_of_the_other() {
    for security in ["auto", "tls", "insecure"] {
        let given = [("security", security)];
        let (child, parent) = (worker(0, &given), worker(1, &given));
        child.doors.dial(child.wish(7, parent.doors.address(), stripes(5)));
        let Command::Child { rank: 0, stripes: Stripes(5), rendezvous } = parent.told() else {
            panic!("{security}: not a child")
        };
        assert_eq!(rendezvous, Some([6; 16]), "and where it would be lent to");
        // It had come in before that was said.
        let NewChild { rank: 0, striping: 9, stripes: Stripes(5), rendezvous: Some(_), link: mut theirs } =
            parent.came.try_recv().unwrap()
        else {
            panic!("{security}: another one")
        };
        let Command::Parent { epoch: 7, rank: 1, stripes: Stripes(5), stream: Ok(mut ours) } = child.told()
        else {
            panic!("{security}: not its parent")
        };
        assert_eq!(ours.peer().unwrap(), parent.doors.address());
        use penstock_fabric::net::link::{Link as _, Segment};
        theirs.write(&[Segment::Own(b"a frame")]).unwrap();
        let (mut bytes, since) = ([0; 7], Instant::now());
        let mut at = 0;
        while at < bytes.len() {
            assert!(since.elapsed() < LONG);
            let into = std::io::IoSliceMut::new(&mut bytes[at..]);
            if let penstock_fabric::net::link::Got::Bytes(more) = ours.read(&mut [into]).unwrap() {
                at += more;
            }
        }
        assert_eq!(&bytes, b"a frame");
    }
}

#[test]
fn nobody_comes_in_who_is_no_child_of_the_same_job() {
    let parent = worker(1, &[]);
    let at = parent.doors.address();
    let honest = dialer(SECRET, &[]);
    let refused = |purpose| match knock(at, &honest, purpose) {
        Err(DialError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    let stranger = knock(at, &dialer(Secret([4; 32]), &[]), relay(0, 2, 1));
    assert!(matches!(stranger, Err(DialError::Unproved(Refusal::Authentication))), "{stranger:?}");
    let (peer, session) = (PeerId::worker(0), [0; 16]);
    for (purpose, said) in [
        (Purpose::Control, "takes in only workers that it feeds"),
        (Purpose::Shard { peer, session, shard: 1 }, "takes in only workers that it feeds"),
        (Purpose::Items { peer, session }, "takes in only workers that it feeds"),
        (relay(0, 3, 1), "is sent nothing by shard 1 of server 3"),
        (relay(0, 2, 0), "is sent nothing by shard 0 of server 2"),
        (relay(1, 2, 1), "feeds others, and some stripes"),
        (
            Purpose::Relay {
                child: 0,
                server: 2,
                shard: 1,
                striping: 9,
                stripes: stripes(0),
                rendezvous: None,
            },
            "some stripes",
        ),
    ] {
        let refusal = refused(purpose);
        assert!(matches!(&refusal, Refusal::Malformed { what } if what.contains(said)), "{refusal}");
    }
    assert_eq!(refused(relay(SIZE, 2, 1)), Refusal::RankOutOfRange { rank: SIZE, size: SIZE });
    assert!(knock(at, &honest, relay(0, 2, 1)).is_ok());
    assert!(matches!(parent.told(), Command::Child { rank: 0, .. }));
    assert!(parent.inbox.next().is_none(), "the proxy has heard of nobody else");
}

/// Any worker of the job could come as another's child, and had that one left.
#[test]
fn a_worker_of_the_job_comes_in_as_nobody_else_and_nobody_else_passes_for_its_parent() {
    for security in ["tls", "insecure"] {
        let given = [("security", security)];
        let parent = worker(1, &given);
        let (at, honest) = (parent.doors.address(), dialer(SECRET, &given));
        let of = |session, server, child| Some(Pass::new(&session, server, child));
        // What worker 3 knows: the secret, its own session, and its passes: of this parent, of another server, of another parent.
        let known = [
            None,
            of(session_of(3), 2, 0),
            of(session_of(1), 2, 3),
            of(session_of(1), 0, 0),
            of(session_of(2), 2, 0),
        ];
        for pass in known {
            let refused = knock_showing(at, &honest, pass, relay(0, 2, 1));
            assert!(matches!(refused, Err(DialError::Unproved(Refusal::Authentication))), "{refused:?}");
        }
        assert!(parent.inbox.next().is_none(), "the proxy has heard of nobody");
        assert!(knock_showing(at, &honest, of(session_of(1), 2, 3), relay(3, 2, 1)).is_ok());
        // Worker 2, at the address of worker 1.
        let (child, other) = (worker(0, &given), worker(2, &given));
        child.doors.dial(child.wish(1, other.doors.address(), stripes(1)));
        let Command::Parent { stream: Err(why), .. } = child.told() else {
            panic!("it was taken for its parent")
        };
        assert!(why.is_its, "{why:?}");
    }
}

#[test]
fn whoever_does_not_speak_tls_where_it_is_spoken_is_refused() {
    let parent = worker(1, &[("security", "tls")]);
    let plain = knock(parent.doors.address(), &dialer(SECRET, &[("security", "insecure")]), relay(0, 2, 1));
    assert!(matches!(plain, Err(DialError::Unproved(Refusal::TlsRequired))), "{plain:?}");
}

#[test]
fn a_proxy_that_takes_nothing_is_told_of_few_and_of_more_when_it_has() {
    let parent = worker(1, &[]);
    let (at, honest) = (parent.doors.address(), dialer(SECRET, &[]));
    let knock = || knock(at, &honest, relay(0, 2, 1));
    let mut full = None;
    for came in 0..200 {
        if let Err(error) = knock() {
            full = Some((came, error));
            break;
        }
    }
    // That there is no room is for now only.
    assert!(matches!(full, Some((64, DialError::Unreachable(_)))), "{full:?}");
    parent.inbox.open();
    assert_eq!(std::iter::from_fn(|| parent.inbox.next()).count(), 64);
    assert!(knock().is_ok());
}

#[test]
fn a_worker_whose_job_has_ended_lets_nobody_in_and_says_why() {
    let parent = worker(1, &[]);
    let lost = JobFailure::WorkerLost { rank: 3, loss: Loss::Died };
    parent.fate.fail(lost.clone());
    let refused = knock(parent.doors.address(), &dialer(SECRET, &[]), relay(0, 2, 1));
    assert!(
        matches!(&refused, Err(DialError::Refused(Refusal::Ended(failure))) if *failure == lost),
        "{refused:?}"
    );
}

#[test]
fn a_parent_that_is_not_there_is_said_not_to_be_of_every_wish_for_it() {
    let child = worker(0, &[]);
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    child.doors.dial(child.wish(1, nobody, stripes(1)));
    let Command::Parent { epoch: 1, rank: 1, stripes: Stripes(1), stream: Err(why) } = child.told() else {
        panic!("it was answered otherwise")
    };
    assert!(why.is_its && why.why.contains("refused"), "{why:?}");
}

/// A parent that accepts connections and says nothing.
#[test]
fn a_newer_wish_takes_the_place_of_one_for_the_same_stripes_that_is_under_way() {
    let (child, parent) = (worker(0, &[]), worker(1, &[]));
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = silent.local_addr().unwrap();
    child.doors.dial(child.wish(1, at, stripes(3)));
    let _held = silent.accept().unwrap();
    child.doors.dial(child.wish(1, at, stripes(4)));
    child.doors.dial(child.wish(2, parent.doors.address(), stripes(2)));
    // The first was given up at once and is not answered, the second waits as long as any.
    let Command::Parent { epoch: 1, stripes: Stripes(4), stream: Err(_), .. } = child.told() else {
        panic!("the second was answered otherwise")
    };
    assert!(matches!(child.told(), Command::Parent { epoch: 2, stripes: Stripes(2), stream: Ok(_), .. }));
    assert!(child.inbox.next().is_none());
}

#[test]
fn doors_end_with_their_threads_though_a_parent_says_nothing() {
    let child = worker(0, &[]);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = child.doors.address();
    child.doors.dial(child.wish(1, silent.local_addr().unwrap(), stripes(1)));
    let _held = silent.accept().unwrap();
    drop(child);
    assert!(std::net::TcpStream::connect(at).is_err(), "the door is closed");
}

fn newcomer<'a>(options: &'a Options, fate: &'a Arc<Fate>) -> Newcomer<'a> {
    Newcomer { options, secret: SECRET, session: session_of(0), rank: 0, size: SIZE, fate }
}

#[test]
fn who_wants_a_star_has_no_door_and_says_nothing_of_itself() {
    let (options, fate) = (options(&[("rack", "r7")]), Arc::<Fate>::default());
    let threshold = Threshold::new(&options);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let stream = Stream::plain(socket, LONG).unwrap();
    let who = newcomer(&options, &fate);
    let joining = threshold.joining_by(&stream, &dialer(SECRET, &[]), &who).unwrap();
    assert!(joining == Joining::default() && threshold.doors().is_none());
}

#[test]
fn a_door_is_opened_once_at_the_address_by_which_a_server_was_reached() {
    let (options, fate) = (options(&[("tree", "striped:2"), ("rack", "zone/r7")]), Arc::<Fate>::default());
    let threshold = Threshold::new(&options);
    let here = threshold.joining();
    assert_eq!((&here.tree[..], here.door), ("striped:2", None), "a server on this host needs no door");
    let listener = TcpListener::bind("127.0.0.2:0").unwrap();
    let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let local = socket.local_addr().unwrap();
    let stream = Stream::plain(socket, LONG).unwrap();
    let who = newcomer(&options, &fate);
    let joining = || threshold.joining_by(&stream, &dialer(SECRET, &[]), &who).unwrap();
    let (first, second) = (joining(), joining());
    let door = first.door.unwrap();
    assert_eq!((door.ip(), &first.rack[..]), (local.ip(), "zone/r7"));
    assert!(first == second && door.port() != local.port());
}

#[test]
fn a_worker_that_others_could_not_trust_passes_nothing_on() {
    let fate = Arc::<Fate>::default();
    // What is in the file is for the dialer to read.
    let ca = std::env::current_exe().unwrap();
    let options = options(&[("tree", "chain"), ("ca", ca.to_str().unwrap())]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let stream = Stream::plain(socket, LONG).unwrap();
    let who = newcomer(&options, &fate);
    let joining = Threshold::new(&options).joining_by(&stream, &dialer(SECRET, &[]), &who).unwrap();
    assert_eq!((&joining.tree[..], joining.door), ("chain", None));
}
