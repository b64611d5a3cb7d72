//! What travels, through the machines at both ends and their frames, with an encoding that stores differences and a filter that
//! holds back: over links that lose what is under way whenever they break.

#[path = "../../penstock-kernels/tests/travel/mod.rs"]
mod travel;

use penstock_kernels::codec::{Base, Sparse};
use penstock_kernels::filter::{Coordinates, Filter, Pressure, sums};
use penstock_kernels::{Dtype, Foreign, Settings};
use penstock_proto::encoding::{
    Agreed, Encoded, Encoding, Member, Payload, Sent, Shadow, Source, Unexpected,
};
use penstock_proto::frame::{Body, HEADER_BYTES, Header, Notice};
use penstock_proto::remote::home::{Chunks, Owing, Publication, Subscriber};
use penstock_proto::remote::mirror::{Broken, Carried, Effect, Mirror};
use penstock_proto::stream::{Streams, bytes_kept};
use penstock_proto::submission::Submission;
use penstock_proto::travel::{Filtering, Registry, Terms, Travel};
use penstock_proto::{Rank, TensorId};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use travel::changes::{Changes, ENTRY};

const W: TensorId = 3;
/// Bytes of its chunks: the last is short.
const CHUNKS: [usize; 3] = [64, 64, 23];
const CHANGES: Encoding = Encoding(9);
const AGREED: Agreed = Agreed::new(&[Member { encoding: CHANGES, codec: &Changes }, Member::RAW]);
/// What the product has for elements of four bytes. The last chunk is no whole number of them, and goes raw.
const SPARSE: Agreed = Agreed::new(&[Member { encoding: Encoding(2), codec: &Sparse::<4> }, Member::RAW]);

/// A byte that is written somewhere.
type Edit = (prop::sample::Index, u8);
/// What happens, to which line or chunk, and what is written.
type Move = (u8, usize, Vec<Edit>);

/// Where a chunk lies in a lane.
fn range(chunk: usize) -> Range<usize> {
    let start = CHUNKS[..chunk].iter().sum();
    start..start + CHUNKS[chunk]
}

/// What tests' declarations may name.
const KNOWN: Registry = Registry { codecs: travel::CODECS, filters: travel::FILTERS, sums: sums::ALL };
/// Everything, and what holds small changes back.
const FILTERS: [Filtering; 2] =
    [Filtering::NONE, Filtering { filter: 207, settings: [2.0, 0.0, 0.0, 0.0, 0.0] }];

/// What a declaration comes to that names differences, both ways, and this filter.
fn terms(filter: Filtering) -> Terms {
    let encodings = vec![CHANGES, Encoding::RAW];
    let travel = Travel { filter, values: encodings.clone(), contributions: encodings, ..Travel::default() };
    travel.resolve(Dtype::F32, &KNOWN).unwrap()
}

#[derive(Debug)]
struct Home {
    values: Vec<Vec<u8>>,
    published: Vec<Publication>,
    /// What the filter has let pass of them.
    held: Vec<Vec<u8>>,
    filter: Arc<dyn Filter>,
    streams: Streams,
    /// What the receivers of each publication hold.
    history: BTreeMap<(usize, u64), Vec<u8>>,
}

impl Home {
    fn new(filter: Filtering) -> Self {
        let mut home = Self {
            values: CHUNKS.map(|bytes| vec![0; bytes]).into(),
            held: CHUNKS.map(|bytes| vec![0; bytes]).into(),
            filter: terms(filter).filter,
            published: vec![Publication { version: 0, steps: 0, sequence: 0, changed: 0 }; CHUNKS.len()],
            streams: Streams::new(&terms(filter), CHUNKS).unwrap(),
            history: BTreeMap::new(),
        };
        (0..CHUNKS.len()).for_each(|local| home.publish(local, 0, &[]));
        home
    }

    fn publish(&mut self, local: usize, newer: u64, edits: &[Edit]) {
        let (value, place) = (&mut self.values[local], &mut self.published[local]);
        self.streams.keep(local, place.sequence, &self.held[local]);
        edits.iter().for_each(|(at, byte)| *at.get_mut(value) = *byte);
        place.version += newer;
        place.sequence += 2;
        place.changed = place.sequence;
        self.filter.next(
            Coordinates::of_version(place.version, 0, Pressure::NONE),
            value,
            &mut self.held[local],
        );
    }
}

impl Chunks for Home {
    fn chunks(&self, _: TensorId) -> usize {
        CHUNKS.len()
    }

    fn publication(&self, _: TensorId, local: usize) -> Publication {
        self.published[local]
    }

    fn local(&self, _: TensorId, chunk: u32) -> Option<usize> {
        Some(chunk as usize).filter(|local| *local < CHUNKS.len())
    }

    fn broadcasts(&self, _: TensorId) -> bool {
        false
    }

    fn has_lane(&self, _: TensorId, _: Rank) -> bool {
        true
    }

    fn goes_by_trees(&self, _: TensorId) -> bool {
        false
    }

    fn stripe(&self, _: TensorId, _: usize) -> usize {
        0
    }

    fn digest(&self, _: TensorId, _: usize) -> u64 {
        0
    }
}

type Bytes = ([u8; HEADER_BYTES], Vec<u8>);

/// A frame's bytes, as both ends make them.
fn frame(agreed: &Agreed, header: Header, sent: &Sent<'_>) -> Bytes {
    let mut buffer = Vec::new();
    let Encoded { encoding, base, payload, .. } = agreed.encode(sent, &mut buffer, 0);
    let payload = match payload {
        Payload::Stands(bytes) => bytes.to_vec(),
        Payload::Lane(lane) => {
            let mut bytes = vec![0; lane.len()];
            lane.copy_to(&mut bytes);
            bytes
        }
        Payload::Buffered(range) => buffer[range].to_vec(),
    };
    (header.with_encoded(encoding, base, &payload).encode(), payload)
}

/// One receiver, and what is under way between it and the home.
struct Line {
    agreed: Agreed,
    subscriber: Subscriber,
    mirror: Mirror,
    held: Vec<Vec<u8>>,
    lane: Vec<u8>,
    to_home: VecDeque<Bytes>,
    to_mirror: VecDeque<Bytes>,
    connected: bool,
    asked: u64,
    stamp: u64,
    fetched: u64,
    /// Values that came whole, and as differences; contributions.
    came: [usize; 3],
}

impl Line {
    fn new(agreed: Agreed) -> Self {
        let mut mirror = Mirror::default();
        mirror.declare(W, (0..CHUNKS.len() as u32).collect(), 4096, false);
        Self {
            agreed,
            subscriber: Subscriber::default(),
            mirror,
            held: CHUNKS.map(|bytes| vec![0xee; bytes]).into(),
            lane: vec![0; CHUNKS.iter().sum()],
            to_home: VecDeque::new(),
            to_mirror: VecDeque::new(),
            connected: false,
            asked: 0,
            stamp: 0,
            fetched: 0,
            came: [0; 3],
        }
    }

    fn cut(&mut self) {
        self.to_home.clear();
        self.to_mirror.clear();
        self.subscriber.disconnect();
        self.connected = false;
    }

    fn connect(&mut self) {
        if !self.connected {
            self.connected = true;
            self.mirror.connect();
            self.subscriber.connect();
        }
    }

    fn ask(&mut self) {
        self.asked += 1;
        self.mirror.submit(Submission::Fetch { tensor: W, state: false, version: 0, ticket: self.asked });
    }

    /// The lane is not written before what stands in it was taken.
    fn push(&mut self, edits: &[Edit]) {
        if self.mirror.is_delivered() {
            edits.iter().for_each(|(at, byte)| *at.get_mut(&mut self.lane) = *byte);
            let (settings, stamp) = (Settings([0.5, 0.0, 0.0, 0.0, 0.0]), self.stamp);
            self.mirror.submit(Submission::Push { tensor: W, first: 0, count: 3, stamp, settings });
            self.stamp += 1;
        }
    }

    fn send(&mut self) -> bool {
        let Some(due) = self.mirror.due().filter(|_| self.connected) else { return false };
        let body = Body::Submission { submission: due.submission, wanted: false };
        let header = Header::bare(1, due.sequence, body);
        self.to_home.push_back(match due.payload {
            None => (header.encode(), Vec::new()),
            Some(Carried::Piece { .. } | Carried::Rows { .. }) => unreachable!("none are pushed"),
            Some(Carried::Chunk { chunk, .. }) => {
                let source = Source::Lane(Foreign::of(&self.lane[range(chunk as usize)]));
                frame(&self.agreed, header, &Sent { source, shadow: None, position: 0 })
            }
        });
        self.mirror.sent();
        true
    }

    fn take(&mut self, home: &Home) -> bool {
        let Some((bytes, payload)) = self.to_home.pop_front() else { return false };
        let header = Header::decode(&bytes).unwrap();
        let Body::Submission { submission, .. } = header.body else { panic!("{header:?}") };
        self.subscriber.expect(header.sequence).unwrap();
        match submission {
            Submission::Push { first, .. } => {
                let lane = &self.lane[range(first as usize)];
                let codec = self
                    .agreed
                    .expect(header.encoding, (header.length as usize, header.packed), lane.len())
                    .unwrap();
                header.check(&payload).unwrap();
                // What the contribution before left there does not count.
                let mut taken = vec![0xdd; lane.len()];
                codec.decode(&payload, header.base(), &mut taken).unwrap();
                assert_eq!(taken, lane, "a contribution comes as it stands in the lane");
                self.came[2] += 1;
            }
            Submission::Fetch { tensor, version, ticket, .. } => {
                self.subscriber.fetch(tensor, version, ticket, 0, home);
            }
            _ => {}
        }
        self.subscriber.take().unwrap();
        true
    }

    fn answer(&mut self, home: &mut Home) -> bool {
        if !self.connected || !self.subscriber.has_due() {
            return false;
        }
        let owing = self.subscriber.next(home);
        let bare = |notice| Header::bare(1, 0, Body::Notice(notice));
        let (mut bytes, payload) = match owing {
            Some(Owing::Raised { .. }) => unreachable!("here each publication changes something"),
            Some(Owing::Standing { .. } | Owing::Expected { .. } | Owing::Route(_)) => {
                unreachable!("no other feeds it")
            }
            Some(Owing::Update { .. } | Owing::Factor { .. } | Owing::Whole { .. }) => {
                unreachable!("values are sent")
            }
            None => (bare(Notice::Taken), Vec::new()),
            Some(Owing::Fetched { tensor, ticket }) => (bare(Notice::Fetched { tensor, ticket }), Vec::new()),
            Some(Owing::Folded { tensor, count }) => (bare(Notice::Folded { tensor, count }), Vec::new()),
            Some(Owing::Value { tensor, local, publication, position }) => {
                let Publication { version, steps, sequence, .. } = publication;
                let held = home.held[local].clone();
                let before = home.history.insert((local, sequence), held.clone());
                assert!(
                    before.is_none_or(|before| before == held),
                    "all that are sent a publication hold the same"
                );
                let sent = home.streams.send(local, sequence, &home.held[local], position);
                let chunk = local as u32;
                let notice = Notice::Value {
                    tensor,
                    chunk,
                    version,
                    steps,
                    publication: sequence,
                    base: 0,
                    content: 1,
                };
                let (bytes, payload) = frame(&self.agreed, bare(notice), &sent);
                (Header::decode(&bytes).unwrap(), payload)
            }
            Some(Owing::State { .. }) => unreachable!("nobody asks for it"),
        };
        bytes.sequence = self.subscriber.tell();
        self.to_mirror.push_back((bytes.encode(), payload));
        true
    }

    fn hear(&mut self, home: &Home) -> bool {
        let Some((bytes, payload)) = self.to_mirror.pop_front() else { return false };
        let header = Header::decode(&bytes).unwrap();
        let Body::Notice(notice) = header.body else { panic!("{header:?}") };
        match self.mirror.hear(header.sequence, &notice, |_| 0).unwrap() {
            Effect::Publish { chunk, .. } => {
                let Notice::Value { publication, .. } = notice else { panic!("{notice:?}") };
                let (local, held) = (chunk as usize, &mut self.held[chunk as usize]);
                let codec = self
                    .agreed
                    .expect(header.encoding, (header.length as usize, header.packed), held.len())
                    .unwrap();
                header.check(&payload).unwrap();
                codec.decode(&payload, header.base(), held).unwrap();
                assert_eq!(*held, home.history[&(local, publication)], "E-1: chunk {chunk}");
                self.came[usize::from(header.base() == Base::Held)] += 1;
            }
            Effect::Fetched { ticket, .. } => self.fetched = self.fetched.max(ticket),
            _ => {}
        }
        true
    }

    /// Until nothing more happens.
    fn settle(&mut self, home: &mut Home) {
        self.connect();
        while self.send() | self.take(home) | self.answer(home) | self.hear(home) {}
    }
}

/// Plays moves on a home with three receivers. What came: whole, as differences, contributions.
fn play(agreed: Agreed, filter: Filtering, moves: &[Move]) -> [usize; 3] {
    let mut home = Home::new(filter);
    let mut lines = [(); 3].map(|()| Line::new(agreed));
    for (what, which, edits) in moves {
        let line = &mut lines[which % 3];
        match what {
            0 | 1 => {
                let local = which % CHUNKS.len();
                home.publish(local, u64::from(*what), edits);
                lines.iter_mut().for_each(|line| line.subscriber.published(W, local, &home));
            }
            2 | 3 => line.ask(),
            4 => line.push(edits),
            5 => line.cut(),
            6 => line.connect(),
            7 => _ = line.send() | line.send(),
            8 => _ = line.take(&home) | line.take(&home),
            9 => _ = line.answer(&mut home) | line.answer(&mut home),
            10 => _ = line.hear(&home) | line.hear(&home),
            _ => line.settle(&mut home),
        }
    }
    for line in &mut lines {
        line.ask();
        line.settle(&mut home);
        assert_eq!(line.fetched, line.asked);
        assert!(line.mirror.is_delivered());
    }
    for local in 0..CHUNKS.len() {
        let held = &home.held[local];
        assert!(
            lines.iter().all(|line| line.held[local] == *held),
            "all receivers hold what the sender counts"
        );
        assert!(filter != Filtering::NONE || *held == home.values[local]);
    }
    lines.iter().fold([0; 3], |sum, line| [0, 1, 2].map(|at| sum[at] + line.came[at]))
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let edits = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    prop::collection::vec((0u8..14, 0usize..9, edits), 0..150)
}

#[test]
fn whoever_stands_where_receives_what_the_sender_counts_wherever_connections_break() {
    use proptest::test_runner::{Config, TestRunner};
    for (agreed, filter) in
        [AGREED, SPARSE].into_iter().flat_map(|agreed| FILTERS.map(|filter| (agreed, filter)))
    {
        let came = std::cell::Cell::new([0; 3]);
        let mut runner = TestRunner::new(Config { cases: 300, ..Config::default() });
        let played = runner.run(&moves(), |moves| {
            let (before, now) = (came.get(), play(agreed, filter, &moves));
            came.set([0, 1, 2].map(|at| before[at] + now[at]));
            Ok(())
        });
        played.unwrap();
        // A run that never met the other case proves nothing. (The moves are drawn anew each time: a
        // thousand of each are common.)
        assert!(came.get().iter().all(|&count| count > 100), "{filter:?}: {:?}", came.get());
    }
}

#[test]
fn a_receiver_that_stands_elsewhere_gets_the_chunk_whole_and_one_that_stands_there_the_difference() {
    let (before, now) = (vec![1; 64], [vec![1; 60], vec![2; 4]].concat());
    let sent = |position| Sent {
        source: Source::Stands(&now),
        shadow: Some(Shadow { publication: 4, bytes: &before }),
        position,
    };
    let notice =
        Notice::Value { tensor: W, chunk: 0, version: 0, steps: 0, publication: 6, base: 0, content: 1 };
    let header = Header::bare(1, 0, Body::Notice(notice));
    for (position, bytes, base) in [(4, ENTRY, Base::Held), (2, 64, Base::Zeros), (0, 64, Base::Zeros)] {
        let (header, payload) = frame(&AGREED, header, &sent(position));
        let header = Header::decode(&header).unwrap();
        assert_eq!((payload.len(), header.base()), (bytes, base), "position {position}");
    }
    // No receiver holds publication 0.
    let nowhere = Sent { shadow: Some(Shadow { publication: 0, bytes: &before }), ..sent(0) };
    assert_eq!(frame(&AGREED, header, &nowhere).1, now);
}

#[test]
fn a_difference_against_what_is_not_held_is_refused_and_the_first_on_a_connection_is_whole() {
    let mut mirror = Mirror::default();
    mirror.declare(W, vec![0], 4096, false);
    let value = |publication, base| Notice::Value {
        tensor: W,
        chunk: 0,
        version: 1,
        steps: 0,
        publication,
        base,
        content: 1,
    };
    let baseless = |held, got| Err(Broken::Baseless { chunk: 0, held, got });
    assert_eq!(mirror.hear(0, &value(4, 2), |_| 0), baseless(0, 2));
    assert!(mirror.hear(0, &value(4, 0), |_| 0).is_ok());
    assert_eq!(mirror.hear(0, &value(8, 6), |_| 0), baseless(4, 6));
    assert!(mirror.hear(0, &value(8, 4), |_| 0).is_ok());
    mirror.connect();
    assert_eq!(mirror.hear(0, &value(10, 8), |_| 0), baseless(0, 8), "it may have another home by now");
}

/// E-2.
#[test]
fn what_does_not_pay_goes_raw_and_only_what_was_agreed_to_comes_in() {
    let (now, mut buffer) = ([7; 64], Vec::new());
    let sent = Sent { source: Source::Lane(Foreign::of(&now)), shadow: None, position: 0 };
    assert_eq!(AGREED.encode(&sent, &mut buffer, 0).encoding, Encoding::RAW);
    let quiet = Sent { source: Source::Stands(&[0; 64]), ..sent };
    let encoded = AGREED.encode(&quiet, &mut buffer, 0);
    assert_eq!(encoded.encoding, CHANGES);
    assert!(matches!(encoded.payload, Payload::Buffered(range) if range == (0..0)));
    for length in [0, 8, 63] {
        assert!(AGREED.expect(CHANGES, (length, None), 64).is_ok());
        let refused = Agreed::default().expect(CHANGES, (length, None), 64).unwrap_err();
        assert_eq!(refused, Unexpected::NotAgreed { got: CHANGES });
    }
    let long = Unexpected::Length { least: 0, most: 63, bytes: 64, got: 64 };
    assert_eq!(AGREED.expect(CHANGES, (64, None), 64).unwrap_err(), long);
}

/// A home of one chunk, with what its receivers hold, and who is sent what.
struct One {
    streams: Streams,
    value: Vec<u8>,
    publication: u64,
}

impl One {
    fn new(terms: &Terms) -> Self {
        Self { streams: Streams::new(terms, [8]).unwrap(), value: vec![0; 8], publication: 0 }
    }

    fn publish(&mut self, byte: u8) {
        self.streams.keep(0, self.publication, &self.value);
        self.value.fill(byte);
        self.publication += 2;
    }

    /// To a receiver at this position: what it is sent, and the publication and bytes that a difference would be against.
    fn send(&self, position: u64) -> (Vec<u8>, Option<(u64, Vec<u8>)>) {
        let sent = self.streams.send(0, self.publication, &self.value, position);
        let Source::Stands(held) = sent.source else { panic!("{sent:?}") };
        (held.to_vec(), sent.shadow.map(|shadow| (shadow.publication, shadow.bytes.to_vec())))
    }
}

#[test]
fn where_everything_travels_and_no_encoding_uses_a_base_nothing_is_kept() {
    let whole = Travel::default().resolve(Dtype::F32, &KNOWN).unwrap();
    assert!(Streams::new(&whole, CHUNKS).is_none());
    assert_eq!(bytes_kept(&whole, 1 << 20, 1 << 40), 0);
    let [differences, both] = FILTERS.map(|filter| bytes_kept(&terms(filter), 3, 1000));
    assert_eq!(both, differences, "what a filter lets pass stands where readers see it");
    assert!((1000..1200).contains(&differences), "{differences}");
    let one = One::new(&terms(Filtering::NONE));
    let sent = one.streams.send(0, 2, &one.value, 0);
    let Source::Stands(stands) = sent.source else { panic!("{sent:?}") };
    assert!(std::ptr::eq(stands, &one.value[..]), "sent from where it stands");
}

/// E-1.
#[test]
fn the_shadow_is_the_last_publication_that_anybody_was_sent_before_the_newest() {
    let mut one = One::new(&terms(Filtering::NONE));
    one.publish(1);
    one.publish(2);
    assert_eq!(one.send(0), (vec![2; 8], None), "nobody was sent anything before");
    one.publish(3);
    // One that was sent nothing yet is sent it whole all the same: the position decides.
    assert_eq!(one.send(4), (vec![3; 8], Some((4, vec![2; 8]))));
    one.publish(4);
    let expected = (vec![4; 8], Some((6, vec![3; 8])));
    assert_eq!(one.send(4), expected, "who is slow is at another publication");
    assert_eq!(one.send(6), expected);
    one.publish(5);
    one.publish(6);
    one.publish(7);
    assert_eq!(
        one.send(8),
        (vec![7; 8], Some((8, vec![4; 8]))),
        "what nobody was sent is no base for anybody"
    );
}
