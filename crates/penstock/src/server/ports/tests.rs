//! A shard as it runs, with peers at the other ends of real connections: two workers, and a follower, which contributes nothing.

use super::*;
use crate::server::Shared;
use crate::server::arrivals::Newest;
use crate::server::shard::{self, Command, Flags, Handle, Report, Setup};
use crate::wire::travel::members::{plain_tensor, terms};
use penstock_fabric::memory::{ExtentLayout, HomeRegions, LaneView};
use penstock_fabric::net::stream::Stream;
use penstock_kernels::{Dtype, Settings};
use penstock_proto::TensorId;
use penstock_proto::chunk::Cut;
use penstock_proto::consistency::Consistency;
use penstock_proto::frame::{Body, HEADER_BYTES, Header, Notice};
use penstock_proto::job::job_number;
use penstock_proto::peer::Role;
use penstock_proto::placement::Extent;
use penstock_proto::spec::TensorSpec;
use penstock_proto::submission::{NO_TICKET, Submission};
use penstock_proto::travel::Travel;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

const W: TensorId = 3;
const WORKERS: u32 = 2;
const CHUNKS: u32 = 2;
const FOLLOWER: PeerId = PeerId::first(Role::Follower, 0);
/// Elements of each chunk: the last is short.
const ELEMENTS: [usize; CHUNKS as usize] = [1024, 10];
const LEASE: Duration = Duration::from_secs(30);

/// The thread ends when its handle has gone.
struct Rig {
    shard: Option<Handle>,
    thread: Option<JoinHandle<()>>,
    reports: Receiver<Report>,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.shard = None;
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, Some(Ok(()))), "the shard panicked");
    }
}

fn spec(consistency: Consistency) -> TensorSpec {
    let elements = ELEMENTS.iter().sum::<usize>() as u64;
    TensorSpec { consistency, ..plain_tensor("w", elements, Travel::default()) }
}

impl Rig {
    /// A shard that is home of one tensor, which both workers have declared.
    fn new(consistency: Consistency) -> Self {
        let (sender, reports) = channel();
        let setup = Setup {
            index: 0,
            server: 0,
            job: "job".to_owned(),
            workers: WORKERS,
            others: WORKERS,
            shards: 1,
            cores: 1,
            seal_seed: [0; 32],
            lease: LEASE,
            place: None,
            core: None,
            flags: Flags::new().unwrap(),
            reports: sender,
            uplink: Arc::new(crate::uplink::Uplink::at_rest()),
            control: Arc::new(Shared::new().unwrap()),
            spent: Arc::default(),
        };
        let (shard, thread) = shard::start(setup).unwrap();
        let bytes = 4 * ELEMENTS.iter().sum::<usize>() as u64;
        let extent = Extent { first: 0, count: CHUNKS };
        let layout = ExtentLayout::new(Cut::new(bytes, 4096), extent, Dtype::F32, 0);
        let (mut homes, _) = HomeRegions::new("w", layout).unwrap().split(&[0, 0], 1);
        shard.send(Command::Declare {
            id: W,
            spec: Box::new(spec(consistency)),
            terms: Arc::new(terms(&Travel::default())),
            total: CHUNKS,
            home: homes.remove(0),
        });
        for rank in 0..WORKERS {
            let lane = LaneView::private(layout, &[0, 0].into(), 1).unwrap().0.remove(0);
            shard.send(Command::Lane { id: W, rank, lane });
        }
        Self { shard: Some(shard), thread: Some(thread), reports }
    }

    fn send(&self, command: Command) {
        self.shard.as_ref().unwrap().send(command);
    }

    /// A peer that has joined and connected.
    fn join(&self, peer: PeerId) -> Peer {
        self.send(Command::JoinRemote { peer });
        Peer { socket: self.connect(peer), sequence: 0 }
    }

    fn connect(&self, peer: PeerId) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let stream = Stream::plain(stream, LEASE).unwrap();
        let waiting = Newest::default();
        waiting.put((stream, false));
        self.send(Command::Attach { peer, waiting });
        socket.set_read_timeout(Some(LEASE)).unwrap();
        socket
    }

    fn report(&self) -> Report {
        self.reports.recv_timeout(LEASE).unwrap()
    }

    /// The workers that the tensor waits for before it has the version.
    fn missing(&self, version: u64) -> Vec<Rank> {
        self.send(Command::Missing { ticket: 1, id: W, version });
        match self.report() {
            Report::Missing { ranks, .. } => ranks,
            other => panic!("{other:?}"),
        }
    }
}

/// A peer's end of its connection.
struct Peer {
    socket: TcpStream,
    sequence: u64,
}

/// A chunk, its version and its bytes.
type Value = (u32, u64, Vec<u8>);

impl Peer {
    fn say(&mut self, submission: Submission, wanted: bool, payload: &[u8]) {
        self.sequence += 1;
        let header = Header::bare(job_number("job"), self.sequence, Body::Submission { submission, wanted });
        let header = if payload.is_empty() { header } else { header.with_payload(payload) };
        self.socket.write_all(&header.encode()).unwrap();
        self.socket.write_all(payload).unwrap();
    }

    fn hear(&mut self) -> (Notice, Vec<u8>) {
        let mut header = [0; HEADER_BYTES];
        self.socket.read_exact(&mut header).unwrap();
        let header = Header::decode(&header).unwrap();
        let mut payload = vec![0; header.length as usize];
        self.socket.read_exact(&mut payload).unwrap();
        match header.body {
            Body::Notice(notice) => (notice, payload),
            other => panic!("{other:?}"),
        }
    }

    /// Pushes the whole tensor, each element `element`, and asks for the result.
    fn push(&mut self, stamp: u64, element: f32) {
        for (first, elements) in (0..CHUNKS).zip(ELEMENTS) {
            let settings = Settings([0.0; 5]);
            let push = Submission::Push { tensor: W, first, count: 1, stamp, settings };
            self.say(push, true, &element.to_le_bytes().repeat(elements));
        }
        self.say(Submission::Clock { clock: stamp + 1 }, false, &[]);
    }

    /// Asks for the tensor once it has the version, and waits until the shard has heard that; what came by then.
    fn ask(&mut self, version: u64, ticket: u64) -> Vec<Value> {
        self.say(Submission::Fetch { tensor: W, state: false, version, ticket }, false, &[]);
        let mut came = Vec::new();
        loop {
            match self.hear() {
                (Notice::Fetched { ticket: heard, .. }, _) if heard == ticket => return came,
                (Notice::Value { chunk, version, .. }, bytes) => came.push((chunk, version, bytes)),
                _ => {}
            }
        }
    }

    /// The next values of all chunks, in their order.
    fn values(&mut self) -> Vec<Value> {
        let mut came = Vec::new();
        while came.len() < CHUNKS as usize {
            if let (Notice::Value { chunk, version, .. }, bytes) = self.hear() {
                came.push((chunk, version, bytes));
            }
        }
        came.sort();
        came
    }
}

fn expected(version: u64, element: f32) -> Vec<Value> {
    let chunks = (0..CHUNKS).zip(ELEMENTS);
    chunks.map(|(chunk, elements)| (chunk, version, element.to_le_bytes().repeat(elements))).collect()
}

/// What a worker pushes in an iteration.
type Element = fn(Rank, u64) -> f32;

/// Sums of these are not exact: they are the same only where they are added in the same order.
fn inexact(rank: Rank, stamp: u64) -> f32 {
    0.1 + stamp as f32 * 0.3 + rank as f32 * 0.7
}

/// Sums of these are, whatever comes first.
fn exact(rank: Rank, stamp: u64) -> f32 {
    stamp as f32 + rank as f32 * 0.5
}

/// One iteration of all workers, each of which gets its result.
fn step(workers: &mut [Peer], stamp: u64, element: Element, sum: &mut f32) {
    for (worker, rank) in workers.iter_mut().zip(0..) {
        worker.push(stamp, element(rank, stamp));
    }
    *sum += element(0, stamp) + element(1, stamp);
    for worker in workers {
        assert_eq!(worker.values(), expected(stamp + 1, *sum));
    }
}

fn start(rig: &Rig) -> Vec<Peer> {
    let mut workers: Vec<Peer> = (0..WORKERS).map(|rank| rig.join(PeerId::worker(rank))).collect();
    workers[0].say(Submission::Zero { tensor: W }, false, &[]);
    for worker in &mut workers {
        // As soon as it is there: worker 0's words and another's come in any order.
        worker.say(Submission::Fetch { tensor: W, state: false, version: 0, ticket: NO_TICKET }, false, &[]);
        assert_eq!(worker.values(), expected(0, 0.0));
    }
    workers
}

#[test]
fn a_follower_gets_every_version_bit_for_bit_and_nobody_waits_for_it() {
    for (consistency, element) in [(Consistency::Bsp, inexact as Element), (Consistency::Ssp(1), exact)] {
        let rig = Rig::new(consistency);
        let mut workers = start(&rig);
        let mut follower = rig.join(FOLLOWER);
        let mut first = follower.ask(0, 1);
        first.sort();
        assert_eq!(first, expected(0, 0.0), "what stands there comes at once");
        let mut sum = 0.0;
        for stamp in 0..6 {
            assert_eq!(follower.ask(stamp + 1, stamp + 2), [], "the next comes when it is there");
            step(&mut workers, stamp, element, &mut sum);
            assert_eq!(follower.values(), expected(stamp + 1, sum), "{consistency:?}");
        }
        // It asks for nothing more, and says nothing: the workers go on.
        step(&mut workers, 6, element, &mut sum);
        assert_eq!(rig.missing(8), [0, 1], "only workers contribute");
        // It leaves well, and later it is removed: neither concerns any other.
        follower.say(Submission::Leave, false, &[]);
        assert!(matches!(rig.report(), Report::Departed { peer: FOLLOWER }));
        step(&mut workers, 7, element, &mut sum);
        rig.send(Command::Remove { peer: FOLLOWER });
        step(&mut workers, 8, element, &mut sum);
        assert_eq!(rig.missing(10), [0, 1], "no worker was removed with it");
    }
}

#[test]
fn a_follower_that_vanishes_disturbs_nobody_and_may_come_back() {
    let rig = Rig::new(Consistency::Bsp);
    let mut workers = start(&rig);
    let mut follower = rig.join(FOLLOWER);
    follower.ask(1, 1);
    drop(follower.socket);
    let mut sum = 0.0;
    (0..2).for_each(|stamp| step(&mut workers, stamp, inexact, &mut sum));
    follower.socket = rig.connect(FOLLOWER);
    let mut came = follower.ask(1, 2);
    came.sort();
    assert_eq!(came, expected(2, sum));
    rig.send(Command::AwaitEnd { peer: FOLLOWER });
    drop(follower);
    assert!(matches!(rig.report(), Report::Ended { peer: FOLLOWER }));
}

#[test]
fn what_a_follower_contributes_is_refused_by_type_and_changes_nothing() {
    let rig = Rig::new(Consistency::Bsp);
    let mut workers = start(&rig);
    let mut sum = 0.0;
    for (number, contribution) in [
        Submission::Zero { tensor: W },
        Submission::Clock { clock: 1 },
        Submission::Push { tensor: W, first: 0, count: 1, stamp: 0, settings: Settings([0.0; 5]) },
        Submission::Load { tensor: W, first: 0, count: 1, slot: 0, part: 0, steps: 0 },
    ]
    .into_iter()
    .enumerate()
    {
        let follower = PeerId::first(Role::Follower, number as u32);
        rig.join(follower).say(contribution, false, &[]);
        let Report::Broke { peer, what } = rig.report() else { panic!("{contribution:?} was taken") };
        assert_eq!(peer, follower);
        assert_eq!(what, format!("expected contributions of workers only, got one of follower {number}"));
        step(&mut workers, number as u64, inexact, &mut sum);
    }
}

fn port(peer: PeerId) -> Port {
    Port::Remote(Box::new(Remote::new(1, peer, None, LEASE)))
}

#[test]
fn a_port_is_one_peers_and_not_another_incarnations_or_roles() {
    let (first, again) = (PeerId::worker(1), PeerId { incarnation: 1, ..PeerId::worker(1) });
    let mut ports = Ports::new(WORKERS);
    assert_eq!((ports.open(first, port(first)), ports.place(first)), (1, Some(1)));
    assert_eq!((ports.place(again), ports.place(PeerId::first(Role::Follower, 1))), (None, None));
    assert_eq!(ports.open(again, port(again)), 1, "who comes back takes the place");
    assert_eq!((ports.place(first), ports.place(again)), (None, Some(1)));
    assert_eq!(ports.remote_at(1).map(|remote| remote.peer()), Some(again));
    assert!(ports.contributor(1).is_some() && ports.of(again).is_some() && ports.of(first).is_none());
    assert_eq!(ports.place(PeerId::worker(9)), None);
}

#[test]
fn others_stand_behind_the_workers_and_a_place_is_used_again() {
    let others: Vec<PeerId> = (0..3).map(|number| PeerId::first(Role::Follower, number)).collect();
    let mut ports = Ports::new(WORKERS);
    for (&peer, place) in others.iter().zip(2..) {
        assert_eq!((ports.open(peer, port(peer)), ports.peer_at(place)), (place, Some(peer)));
    }
    assert!(ports.close(3).is_some() && ports.place(others[1]).is_none());
    let relay = PeerId::first(Role::Relay, 0);
    assert_eq!((ports.open(relay, port(relay)), ports.places()), (3, 0..5));
    assert!(ports.remote(relay).is_some() && ports.contributor(0).is_none());
}
