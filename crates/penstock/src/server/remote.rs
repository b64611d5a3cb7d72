//! A peer on another host, as one shard of a job sees it: its [connection](penstock_fabric::net::remote_peer), when that is silent,
//! and what it counts for among the connections of its job and of others.

use super::fair_share;
use super::shard_memory::Memory;
use crate::wire::vigil::Vigil;
use penstock_fabric::net::link::{Interest, Link};
use penstock_fabric::net::remote_peer::{Heard, RemotePeer};
use penstock_fabric::net::stream::Stream;
use penstock_fabric::spent::Spent;
use penstock_proto::chunk::MAX_CHUNK_BYTES;
use penstock_proto::overlay::Route;
use penstock_proto::peer::PeerId;
use penstock_proto::pressure::Flow;
use penstock_proto::remote::home::Subscriber;
use penstock_proto::shard::Shard;
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of a connection that may be past the kernel and not be taken: a frame that is here in part, what was read ahead of it,
/// and what TLS has decrypted.
const UNDER_WAY: u64 = MAX_CHUNK_BYTES as u64 + (2 << 20);

/// Chunks that a worker may be ahead of the others' before its connection has to wait: 1 MiB of the usual ones.
const LEAD: u64 = 32;
/// How long after it has left a parent by nobody's fault a worker is told of its route again; twice as long each time, so many times.
const ROUTE_AGAIN: Duration = Duration::from_secs(1);
const MOST_DOUBLED: u32 = 6;
/// How long ago a worker must have sent something to count as sending.
const SENDING: Duration = Duration::from_millis(20);

/// A connection, which counts among its job's while this lives.
struct Counted(fair_share::Place);

impl Counted {
    fn new(place: &fair_share::Place) -> Self {
        place.shares.count(place.job, 1);
        Self(place.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.shares.count(self.0.job, -1);
    }
}

/// One peer's port, over any link.
pub(super) struct Remote<L = Stream> {
    connection: RemotePeer<L>,
    place: Option<fair_share::Place>,
    counted: Option<Counted>,
    /// What the connection's buffers were sized to; `None`: left to the kernel.
    buffer: Option<usize>,
    /// Whether its round trip is long.
    long: bool,
    last_sign: Instant,
    vigil: Vigil,
    /// Whether the peer's process has ended, and the control thread waits for its connection to.
    ending: bool,
    /// Whether the poll watches the connection.
    watched: bool,
    /// Whether it was told of a route.
    routed: bool,
    /// How often it has left a parent by nobody's fault.
    left: u32,
}

impl<L: Link> Remote<L> {
    pub(super) fn new(job: u64, peer: PeerId, place: Option<fair_share::Place>, lease: Duration) -> Self {
        Self {
            connection: RemotePeer::new(job, peer),
            place,
            counted: None,
            buffer: None,
            long: false,
            last_sign: Instant::now(),
            vigil: Vigil::new(lease),
            ending: false,
            watched: false,
            routed: false,
            left: 0,
        }
    }

    /// Counts the time that its connections take.
    pub(super) fn count_time(&mut self, spent: Arc<Spent>) {
        self.connection.count_time(spent);
    }

    /// Who is at the other end.
    pub(super) fn peer(&self) -> PeerId {
        self.connection.peer()
    }

    pub(super) fn link(&self) -> Option<&L> {
        self.connection.link()
    }

    /// What the connection has carried to the peer, and how fast.
    pub(super) fn flow(&self) -> Option<Flow> {
        self.link().and_then(Link::flow)
    }

    /// A new connection.
    pub(super) fn attach(&mut self, link: L, long: bool) {
        self.counted = self.place.as_ref().map(Counted::new);
        (self.buffer, self.long, self.watched) = (None, long, true);
        self.vigil.connected();
        self.connection.attach(link);
    }

    /// How values come to the peer from now on, and whether it passes them on.
    pub(super) fn route(&mut self, route: &Route, passes_on: bool, memory: &Memory) {
        self.routed = true;
        self.connection.passes_on(passes_on);
        if let Some(link) = self.link().filter(|_| passes_on) {
            // Of several stripes each has a first one, and what goes to it shares this host's line.
            link.send_evenly();
        }
        let bytes = route.encode().into();
        self.subscriber().route(route.epoch, route.parents(), bytes, memory);
    }

    /// How long after it has left a parent by nobody's fault it is told of its route again: longer each time.
    pub(super) fn next_route_in(&mut self) -> Duration {
        let doubled = self.left.min(MOST_DOUBLED);
        self.left += 1;
        ROUTE_AGAIN * (1 << doubled)
    }

    /// It stands at a parent again.
    pub(super) fn stands(&mut self) {
        self.left = self.left.saturating_sub(1);
    }

    /// Whether it was ever told so.
    pub(super) fn was_routed(&self) -> bool {
        self.routed
    }

    /// The peer has said goodbye: nothing may follow.
    pub(super) fn let_go(&mut self) {
        self.connection.let_go();
    }

    /// The peer's process has ended: no other connection comes when this one is over.
    pub(super) fn await_end(&mut self) {
        self.ending = true;
    }

    /// Whether that has come to pass; once.
    pub(super) fn take_end(&mut self) -> bool {
        self.link().is_none() && std::mem::take(&mut self.ending)
    }

    /// Gives up a connection on which the peer is silent, for it to make another; shows it that this end lives.
    pub(super) fn keep_vigil(&mut self) {
        if self.link().is_none() {
            return;
        }
        if self.vigil.is_time_to_beat() {
            self.subscriber().tell_again();
        }
        if self.is_paused() {
            // What it says is not read for now.
            self.vigil.heard();
        } else if self.vigil.is_silent(self.connection.heard()) {
            tracing::info!(peer = %self.peer(), "a peer's connection is silent");
            self.connection.detach();
            self.counted = None;
        }
    }

    /// Shows the peer that this end lives, if it is time to, from the middle of whatever takes long.
    pub(super) fn beat(&mut self) {
        if self.link().is_some() && self.vigil.is_time_to_beat() {
            self.connection.beat();
        }
    }

    /// Sizes the connection's buffers, if they have another size.
    pub(super) fn resize(&mut self, buffer: Option<usize>) {
        if let (Some(link), Some(bytes)) = (self.connection.link(), buffer)
            && !self.long
            && self.buffer != buffer
        {
            if let Err(error) = link.resize(bytes) {
                tracing::warn!(%error, "a connection's buffers stay as they are");
            }
            self.buffer = buffer;
        }
    }

    /// The socket is ready, as the poll says.
    pub(super) fn ready(&mut self, read: bool, write: bool) {
        self.connection.ready(read, write);
    }

    /// Whether there may be something to take or to send at once.
    pub(super) fn has_work(&self) -> bool {
        self.connection.has_work()
    }

    /// Whether it is a worker that is sending, and how far ahead it is. No worker is held back for a peer that contributes
    /// nothing.
    pub(super) fn progress(&self, now: Instant) -> Option<u64> {
        let sends = self.peer().rank().is_some()
            && self.link().is_some()
            && now.duration_since(self.last_sign) < SENDING;
        sends.then(|| self.connection.lead())
    }

    /// Whether the worker is so far ahead that another worker, which is sending and which it has to wait for anyway, should
    /// have the link instead. Without that a worker that gets the larger part of a shared link is done early, the other's
    /// chunks come last and alone, and the way back stands idle meanwhile.
    pub(super) fn is_too_far_ahead(&self, least_of_others: Option<u64>) -> bool {
        let lead = self.connection.lead();
        lead > LEAD && least_of_others.is_some_and(|least| least + LEAD / 2 < lead)
    }

    /// Reads on, or not for now.
    pub(super) fn pause(&mut self, pause: bool) {
        self.connection.pause(pause);
    }

    /// Whether it is not read for now.
    pub(super) fn is_paused(&self) -> bool {
        self.connection.is_paused()
    }

    /// What the poll has to watch from now on, if that has changed.
    pub(super) fn change_of_interest(&mut self) -> Option<Interest> {
        self.connection.change_of_interest()
    }

    /// The next submission.
    pub(super) fn hear(&mut self, machine: &Shard, memory: &mut Memory) -> Heard {
        let before = self.received();
        let heard = self.connection.hear(machine, memory);
        self.moved(self.received() - before);
        match &heard {
            Heard::Submission(_) => self.last_sign = Instant::now(),
            Heard::Ended(why) => self.ended(why),
            _ => {}
        }
        heard
    }

    /// Bytes of frames that were taken so far.
    pub(super) fn received(&self) -> u64 {
        self.connection.received()
    }

    /// What is owed to the peer.
    pub(super) fn subscriber(&mut self) -> &mut Subscriber {
        self.connection.subscriber()
    }

    /// Sends what is due, as far as the socket takes it; whether it sent anything.
    pub(super) fn send(&mut self, memory: &Memory) -> bool {
        let before = self.connection.sent();
        let sent = self.connection.send(memory);
        self.moved(self.connection.sent() - before);
        sent.unwrap_or_else(|error| {
            self.ended(&error.to_string());
            true
        })
    }

    /// Frames without a value that were sealed since this was asked last.
    pub(super) fn take_sealed_bare(&mut self) -> usize {
        self.connection.take_sealed_bare()
    }

    /// So many bytes were moved for the job.
    fn moved(&self, bytes: u64) {
        if let Some(place) = self.place.as_ref().filter(|_| bytes > 0) {
            place.moved(bytes);
        }
    }

    fn ended(&mut self, why: &str) {
        tracing::info!(peer = %self.peer(), why, "a peer's connection has ended");
        self.counted = None;
    }
}

impl<L: Link + AsFd> Remote<L> {
    /// The poll tells of a connection that is broken whatever it is asked for, and would never wait: while it is not read it is not
    /// watched. What came before is read when its turn comes.
    pub(super) fn leave_poll(&mut self, epoll: &OwnedFd) {
        if self.is_paused()
            && self.watched
            && let Some(link) = self.link()
        {
            self.watched = epoll::delete(epoll, link).is_err();
            if !self.watched {
                self.connection.left_poll();
            }
        }
    }

    /// The poll is to watch for this from now on.
    pub(super) fn watch(&mut self, epoll: &OwnedFd, token: u64, Interest { read, write }: Interest) {
        let Some(link) = self.link() else { return };
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, read);
        flags.set(epoll::EventFlags::OUT, write);
        let token = epoll::EventData::new_u64(token);
        if self.watched {
            let _ = epoll::modify(epoll, link, token, flags);
        } else if read {
            self.watched = epoll::add(epoll, link, token, flags).is_ok();
            if !self.watched {
                // It is asked for again.
                self.connection.left_poll();
            }
        }
    }

    /// What [`received`](Self::received) will be when everything is taken that has come by now, at most: what the kernel holds,
    /// and what may stand in buffers here.
    pub(super) fn standing(&self) -> u64 {
        let held = self.link().and_then(|link| rustix::io::ioctl_fionread(link).ok());
        self.received() + held.map_or(0, |held| held + UNDER_WAY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::shard::Flags;
    use crate::wire::travel::members::{CHANGES, differences, plain_tensor, terms};
    use penstock_fabric::memory::{ExtentLayout, HomeRegions, LaneView};
    use penstock_fabric::net::frames::Batch;
    use penstock_fabric::net::link::Segment;
    use penstock_fabric::net::remote_peer::{Homed as _, Taken};
    use penstock_kernels::compress::{Compressor, compress};
    use penstock_kernels::filter::{Coordinates, Filter};
    use penstock_kernels::{Dtype, Foreign, Settings};
    use penstock_proto::TensorId;
    use penstock_proto::chunk::Cut;
    use penstock_proto::compress::{Compress, Packed};
    use penstock_proto::encoding::{Encoding, Sent, Source};
    use penstock_proto::factors::{LowRank, ROWS};
    use penstock_proto::frame::{Body, Header};
    use penstock_proto::overlay::{Feed, Member, Parent, Routes, WHOLE};
    use penstock_proto::peer::Role;
    use penstock_proto::placement::Extent;
    use penstock_proto::remote::home::{Chunks as _, Owing};
    use penstock_proto::submission::Submission;
    use penstock_proto::travel::{Filtering, Terms, Travel};
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::{AtomicUsize, Ordering};

    const W: TensorId = 3;
    /// The second chunk is short.
    const BYTES: usize = 4096 + 40;

    /// A shard that is home of a tensor of one worker on another host, and that worker's end of the connection.
    struct Rig {
        machine: Shard,
        memory: Memory,
        remote: Remote,
        worker: TcpStream,
    }

    fn rig(travel: &Travel) -> Rig {
        rig_of(PeerId::worker(0), travel)
    }

    fn rig_of(peer: PeerId, travel: &Travel) -> Rig {
        rig_on(peer, travel, terms(travel))
    }

    fn rig_on(peer: PeerId, travel: &Travel, terms: Terms) -> Rig {
        let spec = plain_tensor("w", BYTES as u64 / 4, travel.clone());
        let extent = Extent { first: 0, count: 2 };
        let layout = ExtentLayout::new(Cut::new(BYTES as u64, 4096), extent, Dtype::F32, 0)
            .holding_back(terms.holds_back());
        let (mut homes, _) = HomeRegions::new("w", layout).unwrap().split(&[0, 0], 1);
        let (mut lanes, _) = LaneView::private(layout, &[0, 0].into(), 1).unwrap();
        let (mut machine, mut memory) = (Shard::new(1), Memory::new(0, Flags::new().unwrap()));
        memory.declare(W, spec.plan(), Arc::new(terms), homes.remove(0), spec.consistency, 1);
        machine.declare(W, spec, 2, vec![0, 1]);
        memory.give_lane(W, 0, lanes.remove(0));
        machine.submit(0, &Submission::Zero { tensor: W }, &mut memory).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let worker = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let mut remote = Remote::new(1, peer, None, Duration::from_secs(10));
        remote.attach(Stream::plain(stream, Duration::from_secs(10)).unwrap(), false);
        Rig { machine, memory, remote, worker }
    }

    impl Rig {
        /// The worker sends this of chunk `first`, and goes no further; what the shard makes of it.
        fn say(&mut self, first: u32, encoding: Encoding, payload: &[u8]) -> Heard {
            self.say_packed(first, encoding, None, payload)
        }

        /// The same, compressed, if it is.
        fn say_packed(
            &mut self,
            first: u32,
            encoding: Encoding,
            packed: Option<Packed>,
            payload: &[u8],
        ) -> Heard {
            let settings = Settings([0.0; 5]);
            let submission = Submission::Push { tensor: W, first, count: 1, stamp: 0, settings };
            let header = Header::bare(1, 1, Body::Submission { submission, wanted: false });
            let header = header.with_encoded(encoding, 0, payload).with_packed(packed);
            self.worker.write_all(&header.encode()).unwrap();
            self.worker.write_all(payload).unwrap();
            self.hear()
        }

        fn hear(&mut self) -> Heard {
            loop {
                self.remote.ready(true, false);
                match self.remote.hear(&self.machine, &mut self.memory) {
                    Heard::Header => {}
                    Heard::Nothing => std::thread::yield_now(),
                    heard => return heard,
                }
            }
        }

        fn lane(&mut self, chunk: u32) -> &mut [u8] {
            let range = self.memory.homed(W, chunk).unwrap();
            self.memory.lane(W, 0).receive(range)
        }
    }

    /// What a worker sends of a chunk.
    fn encoded(chunk: &[u8]) -> (Encoding, Vec<u8>) {
        let (mut buffer, source) = (Vec::new(), Source::Lane(Foreign::of(chunk)));
        let mut batch = Batch::new(&mut buffer);
        let header = Header::bare(1, 1, Body::Alive);
        let agreed = terms(&differences(Filtering::NONE)).contributions;
        batch.push_chunk(header, &agreed, &Sent { source, shadow: None, position: 0 });
        let (header, payload) = batch.frames()[0];
        (Header::decode(&header).unwrap().encoding, Segment::copied(&[payload], usize::MAX))
    }

    /// A matrix of 22 rows, which the first chunk does not end with.
    const LOW: LowRank = LowRank { dtype: Dtype::F32, columns: 47, most: 2 };

    fn rig_of_factors() -> Rig {
        let travel = Travel::default();
        rig_on(PeerId::worker(0), &travel, Terms { low_rank: Some(LOW), ..terms(&travel) })
    }

    fn numbers(count: usize, first: f32) -> Vec<u8> {
        (0..count).flat_map(|at| (first + at as f32).to_le_bytes()).collect()
    }

    impl Rig {
        /// The worker sends a frame of this number; what the shard makes of it.
        fn send(&mut self, number: u64, submission: Submission, encoding: Encoding, payload: &[u8]) -> Heard {
            let header = Header::bare(1, number, Body::Submission { submission, wanted: false });
            self.worker.write_all(&header.with_encoded(encoding, 0, payload).encode()).unwrap();
            self.worker.write_all(payload).unwrap();
            self.hear()
        }
    }

    fn factor(rank: u32, at: u64) -> Submission {
        Submission::Factor { tensor: W, rank, at }
    }

    fn rows_of(first: u32) -> Submission {
        Submission::Push { tensor: W, first, count: 1, stamp: 0, settings: Settings([0.0; 5]) }
    }

    #[test]
    fn a_contribution_that_comes_as_factors_stands_in_its_lane_as_their_product() {
        let mut rig = rig_of_factors();
        let (u, v) = (numbers(22 * 2, 1.0), numbers(2 * 47, -40.0));
        let number =
            |bytes: &[u8], at: usize| f32::from_le_bytes(bytes[4 * at..4 * at + 4].try_into().unwrap());
        let product: Vec<u8> = (0..22 * 47)
            .flat_map(|at| {
                let (row, column) = (at / 47, at % 47);
                let terms = [0, 1].map(|rank| number(&u, 2 * row + rank) * number(&v, 47 * rank + column));
                (0.0 + terms[0] + terms[1]).to_le_bytes()
            })
            .collect();
        let taken = |heard| matches!(heard, Heard::Submission(_));
        assert!(taken(rig.send(1, factor(2, 0), Encoding::RAW, &v)));
        // 1024 elements are 21 rows, and a part of the next.
        assert!(taken(rig.send(2, rows_of(0), ROWS, &u)));
        assert!(rig.lane(0) == &product[..4096]);
        assert!(taken(rig.send(3, rows_of(1), ROWS, &u[21 * 8..])));
        assert!(rig.lane(1) == &product[4096..]);
    }

    // E-2.
    #[test]
    fn factors_that_no_honest_worker_sends_are_refused_before_they_are_read() {
        let (u, v) = (numbers(22 * 2, 1.0), numbers(2 * 47, -40.0));
        let push = Submission::PushProduct {
            tensor: W,
            first: 0,
            count: 1,
            stamp: 0,
            settings: Settings([0.0; 5]),
            rank: 2,
        };
        let load = Submission::Load { tensor: W, first: 0, count: 1, slot: 0, part: 0, steps: 0 };
        for (submission, encoding, payload, said) in [
            (factor(3, 0), Encoding::RAW, &v[..], "expected factors of rank 1 to 2, got 3"),
            (factor(0, 0), Encoding::RAW, &v, "expected factors of rank 1 to 2, got 0"),
            (
                factor(2, 4),
                Encoding::RAW,
                &v,
                "expected bytes 0 to at most 376 of a right factor, got 376 from 4 on",
            ),
            (factor(2, u64::MAX), Encoding::RAW, &v, "from 18446744073709551615 on"),
            (factor(1, 0), Encoding::RAW, &v, "expected bytes 0 to at most 188 of a right factor, got 376"),
            (factor(2, 0), Encoding::RAW, &[], "got 0 from 0 on"),
            (factor(2, 0), ROWS, &v, "whose contributions do not travel so"),
            (Submission::Factor { tensor: 9, rank: 1, at: 0 }, Encoding::RAW, &v, "tensor 9"),
            (rows_of(0), ROWS, &u, "of which 0 of 0 bytes have come"),
            (push, ROWS, &u, "factors of tensor 3 where a push is expected"),
            (load, ROWS, &u, "expected an encoding that the tensor agreed to, got 63"),
        ] {
            let mut far = rig_of_factors();
            far.lane(0).fill(0xee);
            let Heard::Broke(what) = far.send(1, submission, encoding, payload) else { panic!("{said}") };
            assert!(what.contains(said), "{what}");
            assert!(far.lane(0).iter().all(|&byte| byte == 0xee));
        }
        // Of a right factor that is not whole, and rows that are not the chunk's.
        let mut far = rig_of_factors();
        assert!(matches!(far.send(1, factor(2, 0), Encoding::RAW, &v[..100]), Heard::Submission(_)));
        let Heard::Broke(what) = far.send(2, rows_of(0), ROWS, &u) else { panic!("it is not whole") };
        assert!(what.contains("of which 100 of 376 bytes have come"), "{what}");
        let mut far = rig_of_factors();
        assert!(matches!(far.send(1, factor(2, 0), Encoding::RAW, &v), Heard::Submission(_)));
        let Heard::Broke(what) = far.send(2, rows_of(0), ROWS, &u[8..]) else { panic!("a row is missing") };
        assert!(what.contains("expected 176 bytes of rows of a left factor, got 168"), "{what}");
        // Where the declaration does not say that they travel.
        let mut far = rig(&Travel::default());
        let Heard::Broke(what) = far.send(1, factor(1, 0), Encoding::RAW, &v[..188]) else {
            panic!("it is not")
        };
        assert!(what.contains("whose contributions do not travel so"), "{what}");
    }

    #[test]
    fn a_contribution_stands_in_its_lane_as_it_was_sent_whatever_it_travels_as() {
        let sparse = |bytes: usize| [vec![0; bytes - 9], vec![5; 9]].concat();
        for (first, chunk) in [(0, sparse(4096)), (1, sparse(40)), (0, vec![7; 4096]), (1, vec![7; 40])] {
            let mut rig = rig(&differences(Filtering::NONE));
            rig.lane(first).fill(0xee);
            let (encoding, payload) = encoded(&chunk);
            assert_eq!(encoding == CHANGES, chunk[0] == 0, "what pays is sent");
            assert!(payload.len() < chunk.len() || encoding == Encoding::RAW);
            assert!(matches!(rig.say(first, encoding, &payload), Heard::Submission(..)));
            assert_eq!(rig.lane(first), chunk);
        }
    }

    /// E-2.
    #[test]
    fn what_was_not_agreed_to_or_cannot_be_decoded_is_refused_and_changes_nothing() {
        let (known, plain) = (&differences(Filtering::NONE), &Travel::default());
        let unordered = [[1, 0, 0, 0, 9, 9, 9, 9], [1, 0, 0, 0, 9, 9, 9, 9]].concat();
        for (travel, encoding, payload, said) in [
            (
                plain,
                CHANGES,
                vec![0; 8],
                "chunk 1 of tensor 3: expected an encoding that the tensor agreed to, got 9",
            ),
            (
                known,
                Encoding(8),
                vec![0; 8],
                "chunk 1 of tensor 3: expected an encoding that the tensor agreed to, got 8",
            ),
            (
                known,
                CHANGES,
                vec![0; 40],
                "chunk 1 of tensor 3: expected 0 to 39 bytes of a chunk of 40, got 40",
            ),
            (
                known,
                Encoding::RAW,
                vec![0; 41],
                "chunk 1 of tensor 3: expected 40 to 40 bytes of a chunk of 40, got 41",
            ),
            (known, CHANGES, unordered, "a payload's least word: expected 2, got 1"),
            (known, CHANGES, vec![10, 0, 0, 0, 9, 9, 9, 9], "a payload's last word: expected 9, got 10"),
        ] {
            let mut rig = rig(travel);
            rig.lane(1).fill(0xee);
            match rig.say(1, encoding, &payload) {
                Heard::Broke(what) => assert_eq!(what, said),
                _ => panic!("it was taken: {said}"),
            }
            assert_eq!(rig.lane(1), [0xee; 40], "{said}");
            assert!(rig.remote.subscriber().expect(1).is_ok(), "no frame was taken");
        }
    }

    /// So many bytes that a chunk came to in its encoding, compressed.
    fn packed(by: Compressor, bytes: &[u8]) -> (Option<Packed>, Vec<u8>) {
        let mut out = Vec::new();
        let length = compress(by, bytes, &mut out).unwrap();
        out.truncate(length);
        (Some(Packed { by, length: bytes.len() as u32 }), out)
    }

    #[test]
    fn what_was_compressed_stands_in_its_lane_as_it_was_encoded_or_decoded() {
        for by in Compressor::ALL {
            for travel in [Travel::default(), differences(Filtering::NONE)] {
                let mut rig = rig(&travel.compressed(Compress::Auto));
                rig.lane(0).fill(0xee);
                let (packed, payload) = packed(by, &[7; 4096]);
                let heard = rig.say_packed(0, Encoding::RAW, packed, &payload);
                let Heard::Submission(Taken { bytes, .. }) = heard else { panic!("{by}") };
                assert_eq!(bytes as usize, payload.len(), "what came on the line");
                assert!(*rig.lane(0) == [7; 4096]);
            }
            let mut rig = rig(&differences(Filtering::NONE).compressed(Compress::By(by)));
            let (encoding, encoded) = encoded(&[vec![0; 3072], vec![5; 1024]].concat());
            assert_eq!(encoding, CHANGES);
            let (packed, payload) = packed(by, &encoded);
            assert!(matches!(rig.say_packed(0, encoding, packed, &payload), Heard::Submission(..)));
            assert_eq!(*rig.lane(0), [vec![0; 3072], vec![5; 1024]].concat());
        }
    }

    /// E-2.
    #[test]
    fn what_was_compressed_otherwise_than_agreed_or_does_not_decompress_is_refused_and_changes_nothing() {
        let by = Compressor::Zstd;
        let agreed = Travel::default().compressed(Compress::By(by));
        let (plain, lengths) = (Travel::default(), "expected 4096 to 4096 bytes of a chunk of 4096, got");
        let (good, bytes) = packed(by, &[7; 4096]);
        // A bomb: far more than the chunk, of few bytes; one that says so, and one that does not.
        let (bomb, bombs) = packed(by, &[0; 1 << 20]);
        let (longer, other) = (Some(Packed { by, length: 4097 }), packed(Compressor::Lz4, &[7; 4096]));
        let cut = &bytes[..bytes.len() - 1];
        let unpacked = "a payload's bytes once decompressed: expected 4096, got";
        for (travel, packed, payload, said) in [
            (&plain, good, &bytes[..], "as the tensor agreed to, by none, got one by zstd"),
            (&agreed, other.0, &other.1, "as the tensor agreed to, by zstd, got one by lz4"),
            (&agreed, bomb, &bombs, lengths),
            (&agreed, longer, &bytes, lengths),
            (&agreed, None, &bytes, lengths),
            (&agreed, good, &bombs, unpacked),
            (&agreed, good, cut, unpacked),
            (&agreed, good, &[9; 40], unpacked),
        ] {
            let mut rig = rig(travel);
            rig.lane(0).fill(0xee);
            match rig.say_packed(0, Encoding::RAW, packed, payload) {
                Heard::Broke(what) => assert!(what.contains(said), "{what}, not {said}"),
                _ => panic!("it was taken: {said}"),
            }
            assert!(rig.lane(0).iter().all(|&byte| byte == 0xee), "{said}");
            assert!(rig.remote.subscriber().expect(1).is_ok(), "no frame was taken");
        }
    }

    /// A filter that counts how often it goes over a chunk.
    #[derive(Debug)]
    struct Counted(Arc<dyn Filter>, Arc<AtomicUsize>);

    impl Filter for Counted {
        fn again_at(&self, clock: u64) -> Option<u64> {
            self.0.again_at(clock)
        }

        fn next(&self, at: Coordinates, value: &[u8], held: &mut [u8]) {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.next(at, value, held);
        }
    }

    /// Each clock without a push made the filter go over all of it, and beside other jobs its worker wait for that.
    #[test]
    fn a_value_that_rests_is_not_gone_over_and_owes_nothing_for_what_its_push_brought() {
        for (name, settings, expected) in [
            ("TopK", &[0.01][..], 1),
            ("RandomK", &[0.01, 1.0], 1),
            ("DVF", &[99.0, 0.0, 0.0, 99.0, 0.0], 1),
            // At versions 1, 4, 16 and 64, where its bound has halved.
            ("DVF", &[99.0, 1.0, 0.0, 99.0, 0.0], 4),
        ] {
            let travel = differences(Filtering::of_values(name, settings).unwrap());
            let (count, known) = (Arc::new(AtomicUsize::new(0)), terms(&travel));
            let filter = Arc::new(Counted(known.filter, Arc::clone(&count)));
            let mut rig = rig_on(PeerId::worker(0), &travel, Terms { filter, ..known });
            rig.lane(0).as_chunks_mut().0.iter_mut().for_each(|word| *word = 1.0_f32.to_le_bytes());
            let mut submit = |submission| {
                let _ = (rig.machine.take_gone_over(), rig.memory.take_idle_looks());
                rig.machine.submit(0, &submission, &mut rig.memory).unwrap();
                let seen = rig.memory.standing(W, 0).1.to_vec();
                (rig.machine.take_gone_over() + rig.memory.take_idle_looks(), seen)
            };
            let settings = Settings([0.0; 5]);
            let push = Submission::Push { tensor: W, first: 0, count: 1, stamp: 0, settings };
            let (looks, seen) = submit(push);
            assert_eq!(looks, 0, "{name}");
            for clock in 1..100 {
                let (looks, now) = submit(Submission::Clock { clock });
                assert!(looks <= 50, "{name}: {looks} looks for two chunks");
                assert!(now == seen, "{name}: clock {clock}");
            }
            assert_eq!(count.load(Ordering::Relaxed), expected, "{name}");
            let (looks, now) = submit(Submission::Flush { tensor: W });
            assert!(looks <= 50, "{name}: {looks} looks for two chunks");
            assert_eq!(now, [1.0_f32.to_le_bytes(); 1024].as_flattened());
            submit(Submission::Clock { clock: 1000 });
            assert_eq!(count.load(Ordering::Relaxed), expected, "{name}: nothing is held back");
        }
    }

    // The poll told of it again and again, and the shard never slept as long as it was not read.
    #[test]
    fn a_broken_connection_that_is_not_read_for_now_is_not_watched_and_is_read_later() {
        let Rig { machine, mut memory, mut remote, mut worker } = rig(&Travel::default());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let link = remote.link().unwrap();
        epoll::add(&epoll, link, epoll::EventData::new_u64(7), epoll::EventFlags::IN).unwrap();
        let watch = |remote: &mut Remote, pause| {
            remote.pause(pause);
            let interest = remote.change_of_interest().unwrap();
            remote.watch(&epoll, 7, interest);
        };
        let told = |longest| crate::wait::events(&epoll, 1, Some(longest)).len();
        watch(&mut remote, true);
        let submission = Submission::Zero { tensor: W };
        let header = Header::bare(1, 1, Body::Submission { submission, wanted: false });
        worker.write_all(&header.encode()).unwrap();
        rustix::net::sockopt::set_socket_linger(&worker, Some(Duration::ZERO)).unwrap();
        drop(worker);
        assert_eq!(told(Duration::from_secs(30)), 1, "it is told of whatever is asked for");
        remote.leave_poll(&epoll);
        assert_eq!(told(Duration::ZERO), 0);
        assert!(remote.change_of_interest().is_none(), "it is not watched, and need not be");
        watch(&mut remote, false);
        assert_eq!(told(Duration::from_secs(30)), 1);
        let mut hear = || loop {
            remote.ready(true, false);
            match remote.hear(&machine, &mut memory) {
                Heard::Header | Heard::Nothing => {}
                heard => return heard,
            }
        };
        assert!(matches!(hear(), Heard::Submission(..)), "what came before is taken");
        assert!(matches!(hear(), Heard::Ended(_)));
    }

    #[test]
    fn nobody_is_held_back_for_a_peer_that_contributes_nothing() {
        for (peer, least) in [(PeerId::worker(0), Some(0)), (PeerId::first(Role::Follower, 0), None)] {
            let mut rig = rig_of(peer, &Travel::default());
            let submission = Submission::Fetch { tensor: W, state: false, version: 0, ticket: 1 };
            let header = Header::bare(1, 1, Body::Submission { submission, wanted: false });
            rig.worker.write_all(&header.encode()).unwrap();
            assert!(matches!(rig.hear(), Heard::Submission(..)));
            assert_eq!(rig.remote.progress(rig.remote.last_sign), least, "{peer}");
        }
    }

    #[test]
    fn a_chunk_that_goes_by_trees_is_compressed_for_those_alone_that_it_goes_to_from_here() {
        let mut memory = rig(&Travel::default()).memory;
        memory.serve(5);
        let pass = penstock_proto::overlay::Pass::new(&[0; 16], 0, 1);
        let near = Parent { rank: 0, address: "127.0.0.1:1".parse().unwrap(), pass };
        let member = |parent: &Option<Parent>| {
            let feeds = vec![Feed { parent: parent.clone(), depth: 1 }];
            Member { feeds, passes_on: parent.is_none() }
        };
        let members = (0..).zip([None, Some(near.clone()), Some(near)].iter().map(member)).collect();
        let routes = Routes { striping: 1, shares: vec![WHOLE], members };
        memory.stripe_by(&routes.shares);
        memory.send_along(&routes);
        assert_eq!(memory.links(W, 0), 5, "it goes to all from here");
        assert!(memory.go_by_trees(W, true));
        assert_eq!(memory.links(W, 0), 3, "to two that no route is for, and to one that is");
        memory.send_along(&Routes::default());
        assert_eq!(memory.links(W, 0), 5);
    }

    #[test]
    fn a_value_is_sent_from_where_it_stands_and_says_which_publication_it_is() {
        let mut rig = rig(&Travel::default());
        rig.remote.subscriber().fetch(W, 0, 1, 0, &rig.memory);
        let mut sent = Vec::new();
        while let Some(owing) = rig.remote.subscriber().next(&rig.memory) {
            let Owing::Value { tensor, local, publication, position } = owing else { continue };
            let (_, _, chunk) = rig.memory.value(tensor, local, position);
            let Source::Published(bytes, _, number) = chunk.source else { panic!("it is copied") };
            assert!(std::ptr::eq(bytes, rig.memory.standing(W, local).1));
            assert_eq!(number, publication.sequence, "by which its checksum is known");
            assert_eq!(publication, rig.memory.publication(W, local));
            assert!(publication.sequence > 0);
            sent.push(bytes.len());
        }
        assert_eq!(sent, [4096, 40]);
    }
}
