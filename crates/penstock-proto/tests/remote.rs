//! The two ends of a tensor between hosts, over a link that loses what is under way whenever it breaks.

use penstock_kernels::Settings;
use penstock_proto::clock::MAX_CLOCK;
use penstock_proto::frame::Notice;
use penstock_proto::overlay::Direct;
use penstock_proto::peer::{PeerId, Role};
use penstock_proto::remote::home::{
    self, Chunks, Event, Owing, Publication, Subscriber, Subscribers, Undeclared,
};
use penstock_proto::remote::mirror::{Broken, Effect, Frame, Mirror};
use penstock_proto::shard::Shard;
use penstock_proto::submission::{NO_TICKET, Submission};
use penstock_proto::{Rank, TensorId};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};

const W: TensorId = 3;
const OTHER: TensorId = 5;
/// The latest version that a fetch may ask for.
const LATEST: u64 = MAX_CLOCK + 1;

/// The home's chunks. A value is its version, so that what is seen of one says when it was sent.
#[derive(Debug)]
struct Home {
    /// Chunks of the whole tensor that are homed here.
    chunks: Vec<u32>,
    published: Vec<Publication>,
    broadcast: bool,
}

impl Home {
    fn new(chunks: &[u32]) -> Self {
        let none = Publication { version: 0, steps: 0, sequence: 0, changed: 0 };
        Self { chunks: chunks.to_vec(), published: vec![none; chunks.len()], broadcast: false }
    }

    fn publish(&mut self, local: usize, version: u64) {
        let place = &mut self.published[local];
        let sequence = place.sequence + 1;
        *place = Publication { version, steps: version, sequence, changed: sequence };
    }
}

impl Chunks for Home {
    fn chunks(&self, _: TensorId) -> usize {
        self.chunks.len()
    }

    fn publication(&self, _: TensorId, local: usize) -> Publication {
        self.published[local]
    }

    fn local(&self, _: TensorId, chunk: u32) -> Option<usize> {
        self.chunks.binary_search(&chunk).ok()
    }

    fn broadcasts(&self, _: TensorId) -> bool {
        self.broadcast
    }

    /// Worker 0 has declared `W`, and nobody anything else.
    fn has_lane(&self, tensor: TensorId, rank: Rank) -> bool {
        matches!(tensor, W | OTHER) && rank == 0
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

impl Home {
    /// The chunk's version rises, and nothing else.
    fn raise(&mut self, local: usize, version: u64) {
        let place = &mut self.published[local];
        *place = Publication { version, sequence: place.sequence + 1, ..*place };
    }
}

/// The subscribers of a home that has one, worker 0.
struct Only<'a>(&'a mut Subscriber);

impl Subscribers for Only<'_> {
    fn of(&mut self, peer: PeerId) -> Option<&mut Subscriber> {
        (peer == PeerId::worker(0)).then_some(&mut *self.0)
    }

    fn contributor(&mut self, rank: Rank) -> Option<&mut Subscriber> {
        (rank == 0).then_some(&mut *self.0)
    }
}

/// Both ends, and what is under way between them.
struct Line {
    home: Home,
    subscriber: Subscriber,
    overlay: Direct,
    mirror: Mirror,
    to_home: VecDeque<Frame>,
    to_mirror: VecDeque<(u64, Notice)>,
    connected: bool,
    /// What the shard took, as (what it says, its chunk).
    taken: Vec<Frame>,
    folded: u64,
    /// What the mirror has: each chunk's version, the progress that was told, contributions folded, the ticket that came back.
    seen: BTreeMap<u32, u64>,
    progress: u64,
    told: u64,
    fetched: u64,
    /// Tickets that came back, in their order, until a test looks.
    returned: Vec<u64>,
    states: usize,
    /// The version + 1 that pushes asked for.
    wanted: u64,
}

impl Line {
    fn new(chunks: &[u32]) -> Self {
        Self::sending(chunks, false)
    }

    /// From a home that broadcasts, or does not.
    fn sending(chunks: &[u32], broadcast: bool) -> Self {
        let mut mirror = Mirror::default();
        mirror.declare(W, chunks.to_vec(), 4096, broadcast);
        Self {
            home: Home { broadcast, ..Home::new(chunks) },
            subscriber: Subscriber::default(),
            overlay: Direct::default(),
            mirror,
            to_home: VecDeque::new(),
            to_mirror: VecDeque::new(),
            connected: false,
            taken: Vec::new(),
            folded: 0,
            seen: BTreeMap::new(),
            progress: 0,
            told: 0,
            fetched: 0,
            returned: Vec::new(),
            states: 0,
            wanted: 0,
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

    /// The mirror sends a frame, if it may.
    fn send(&mut self) -> bool {
        let Some(frame) = self.mirror.due().filter(|_| self.connected) else { return false };
        self.to_home.push_back(frame);
        self.mirror.sent();
        true
    }

    /// The shard takes a frame that has come.
    fn take(&mut self) -> bool {
        let Some(frame) = self.to_home.pop_front() else { return false };
        self.subscriber.expect(frame.sequence).unwrap();
        self.subscriber.take().unwrap();
        self.taken.push(frame);
        // Every push asks for its result.
        self.ask(PeerId::worker(0), &frame.submission, true).unwrap();
        true
    }

    fn ask(&mut self, peer: PeerId, submission: &Submission, wanted: bool) -> Result<(), Undeclared> {
        // The machine has nothing to say of what folds together.
        let machine = &Shard::new(1);
        self.subscriber.ask(peer, submission, wanted, (machine, &mut self.overlay), &self.home)
    }

    fn tell(&mut self, event: Event) {
        home::tell(event, &self.overlay, &mut Only(&mut self.subscriber), &self.home);
    }

    /// The shard folds what came of a chunk.
    fn fold(&mut self) -> bool {
        let is_push = |frame: &&Frame| matches!(frame.submission, Submission::Push { .. });
        let Some(&frame) = self.taken.iter().filter(is_push).nth(self.folded as usize) else { return false };
        let Submission::Push { first, stamp, .. } = frame.submission else { return false };
        self.folded += 1;
        let local = self.home.chunks.binary_search(&first).unwrap();
        let version = self.home.published[local].version.max(stamp + 1);
        self.home.publish(local, version);
        self.tell(Event::Published { tensor: W, local });
        self.tell(Event::Folded { tensor: W, writer: 0, count: self.folded });
        true
    }

    /// The shard sends one notice, if anything is due.
    fn answer(&mut self) -> bool {
        if !self.connected || !self.subscriber.has_due() {
            return false;
        }
        let notice = match self.subscriber.next(&self.home) {
            None => Notice::Taken,
            Some(Owing::Value {
                tensor,
                local,
                publication: Publication { version, steps, sequence, changed },
                ..
            }) => {
                let chunk = self.home.chunks[local];
                Notice::Value {
                    tensor,
                    chunk,
                    version,
                    steps,
                    publication: sequence,
                    base: 0,
                    content: changed,
                }
            }
            Some(Owing::Raised { tensor, local, count, version, steps, contents }) => {
                let (chunk, count) = (self.home.chunks[local], count as u32);
                Notice::Raised { tensor, chunk, count, version, steps, contents }
            }
            Some(Owing::State { tensor, local }) => Notice::State { tensor, chunk: self.home.chunks[local] },
            Some(Owing::Folded { tensor, count }) => Notice::Folded { tensor, count },
            Some(Owing::Fetched { tensor, ticket }) => Notice::Fetched { tensor, ticket },
            Some(other) => panic!("{other:?} to one that no other feeds"),
        };
        self.to_mirror.push_back((self.subscriber.tell(), notice));
        true
    }

    /// The mirror hears a notice that has come.
    fn hear(&mut self) -> bool {
        let Some((taken, notice)) = self.to_mirror.pop_front() else { return false };
        match self.mirror.hear(taken, &notice, |_| self.wanted).unwrap() {
            Effect::Nothing => {}
            Effect::Publish { chunk, version, progress, .. } => {
                let before = self.seen.insert(chunk, version);
                assert!(before <= Some(version), "a version fell");
                if let Some(progress) = progress {
                    let least =
                        self.home.chunks.iter().map(|chunk| self.seen.get(chunk).map_or(0, |v| v + 1));
                    assert_eq!(Some(progress), least.min(), "it is told what has come");
                    assert!(progress > self.progress);
                    self.progress = progress;
                }
            }
            Effect::Raise { chunk, count, version, progress, .. } => {
                let first = self.home.chunks.binary_search(&chunk).unwrap();
                for chunk in &self.home.chunks[first..first + count as usize] {
                    assert!(self.seen.insert(*chunk, version) <= Some(version), "a version fell");
                }
                self.progress = progress.unwrap_or(self.progress);
            }
            Effect::Update { .. } | Effect::Whole { .. } => unreachable!("values are sent"),
            Effect::State { .. } => self.states += 1,
            Effect::Folded { count, .. } => {
                assert!(count >= self.told);
                self.told = count;
            }
            Effect::Fetched { ticket, .. } => {
                self.fetched = self.fetched.max(ticket);
                self.returned.push(ticket);
            }
        }
        true
    }

    /// Until nothing more happens.
    fn settle(&mut self) {
        self.connect();
        while self.send() | self.take() | self.fold() | self.answer() | self.hear() {}
    }

    /// Until nothing more is under way; nothing is folded.
    fn exchange(&mut self) {
        self.connect();
        while self.send() | self.take() | self.answer() | self.hear() {}
    }

    /// A line over which chunk 0 has come as version 0.
    fn started() -> Self {
        let mut line = Self::new(&[0]);
        line.home.publish(0, 0);
        line.fetch(1, false, 0);
        line.exchange();
        assert_eq!((line.fetched, line.seen[&0]), (1, 0));
        line
    }

    fn fetch(&mut self, ticket: u64, state: bool, version: u64) {
        self.mirror.submit(Submission::Fetch { tensor: W, state, version, ticket });
    }
}

/// What has to come before a ticket, as it was when that was asked for: the versions of chunks, or so many states in all.
#[derive(Debug, Clone)]
struct Asked {
    ticket: u64,
    least: BTreeMap<u32, u64>,
    states: usize,
}

impl Asked {
    fn value(line: &Line, ticket: u64, version: u64) -> Self {
        let now = line.home.chunks.iter().zip(&line.home.published).map(|(&chunk, at)| (chunk, at.version));
        Self { ticket, least: now.filter(|(_, now)| *now >= version).collect(), states: 0 }
    }

    /// Of chunks among `first..first + count` alone.
    fn some(line: &Line, ticket: u64, version: u64, (first, count): (u32, u32)) -> Self {
        let mut asked = Self::value(line, ticket, version);
        asked.least.retain(|chunk, _| (first..first + count).contains(chunk));
        asked
    }

    fn state(line: &Line, ticket: u64) -> Self {
        Self { ticket, least: BTreeMap::new(), states: line.states + line.home.chunks.len() }
    }

    fn has_come(&self, line: &Line) -> bool {
        line.states >= self.states
            && self.least.iter().all(|(chunk, version)| line.seen.get(chunk) >= Some(version))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn wherever_connections_break_all_that_is_said_is_taken_once_and_all_that_is_asked_for_comes(
        chunks in prop::sample::subsequence((0u32..7).collect::<Vec<_>>(), 1..5),
        broadcast: bool,
        moves in prop::collection::vec((0u8..19, 1usize..5), 0..200),
    ) {
        let mut line = Line::sending(&chunks, broadcast);
        for local in 0..chunks.len() {
            line.home.publish(local, 0);
        }
        let (mut stamp, mut ticket) = (0, 0);
        let (mut said, mut asked) = (Vec::new(), VecDeque::<Asked>::new());
        // A ticket that was drawn and is late: others overtake it.
        let mut late = None;
        let (mut states, mut latest, mut valued) = (0, 0, false);
        // What was asked for of chunks by themselves.
        let mut singles = BTreeMap::<u32, u64>::new();
        let fetch = |line: &mut Line, asked: &mut VecDeque<Asked>, ticket, state, version| {
            asked.push_back(if state { Asked::state(line, ticket) } else { Asked::value(line, ticket, version) });
            line.fetch(ticket, state, version);
        };
        for (what, times) in moves {
            for _ in 0..times {
                _ = match what {
                    0 => {
                        // The lane is free, as a worker waits for it to be.
                        if line.told == stamp * chunks.len() as u64 {
                            let settings = Settings([0.5, 0.0, 0.0, 0.0, 0.0]);
                            line.mirror.submit(Submission::Push { tensor: W, first: 0, count: 7, stamp, settings });
                            said.extend(chunks.iter().map(|&chunk| (chunk, stamp)));
                            stamp += 1;
                            line.wanted = stamp + 1;
                        }
                        true
                    }
                    1 => {
                        ticket += 1;
                        let version = (stamp + 3).saturating_sub(times as u64).min(line.home.published[0].version + 2);
                        (latest, valued) = (version.max(latest), true);
                        fetch(&mut line, &mut asked, ticket, false, version);
                        true
                    }
                    2 => {
                        (ticket, states) = (ticket + 1, states + 1);
                        fetch(&mut line, &mut asked, ticket, true, 0);
                        true
                    }
                    12 => {
                        if late.is_none() {
                            ticket += 1;
                            late = Some(ticket);
                        }
                        true
                    }
                    13 | 14 => {
                        if let Some(late) = late.take() {
                            valued |= what == 14;
                            fetch(&mut line, &mut asked, late, what == 13, 0);
                        }
                        true
                    }
                    15 | 16 => {
                        let first = chunks[times % chunks.len()];
                        let count = [1, 2, 7][times % 3].min(7 - first);
                        let version = (stamp + times as u64 % 3).saturating_sub(u64::from(what == 15));
                        let version = version.min(line.home.published[0].version + 2);
                        let own = if what == 15 { ticket += 1; ticket } else { NO_TICKET };
                        for &chunk in chunks.iter().filter(|chunk| (first..first + count).contains(chunk)) {
                            let latest = singles.entry(chunk).or_default();
                            *latest = version.max(*latest);
                        }
                        if what == 15 {
                            asked.push_back(Asked::some(&line, own, version, (first, count)));
                        }
                        line.mirror.submit(Submission::FetchChunks { tensor: W, first, count, version, ticket: own });
                        true
                    }
                    17 => {
                        let local = times % chunks.len();
                        let version = line.home.published[local].version;
                        line.home.publish(local, version);
                        line.tell(Event::Published { tensor: W, local });
                        true
                    }
                    3 | 18 => {
                        line.cut();
                        true
                    }
                    4 => {
                        line.connect();
                        true
                    }
                    5 | 6 => line.send(),
                    7 | 8 => line.take(),
                    9 => line.fold(),
                    10 => line.answer(),
                    _ => line.hear(),
                };
                for back in std::mem::take(&mut line.returned) {
                    // It stands for those that were submitted before it.
                    let before = asked.iter().position(|asked| asked.ticket == back).map_or(0, |at| at + 1);
                    for asked in asked.drain(..before) {
                        prop_assert!(asked.has_come(&line), "S-2, S-3: {back} came before {asked:?}");
                    }
                }
            }
        }
        if let Some(late) = late.take() {
            valued = true;
            fetch(&mut line, &mut asked, late, false, 0);
        }
        line.settle();
        let pushed = line.taken.iter().filter_map(|frame| match frame.submission {
            Submission::Push { first, stamp, .. } => Some((first, stamp)),
            _ => None,
        });
        prop_assert_eq!(pushed.collect::<Vec<_>>(), said, "S-1");
        prop_assert_eq!(line.fetched, ticket, "every ticket comes back");
        prop_assert_eq!(line.told, line.folded);
        prop_assert!(line.mirror.is_delivered());
        prop_assert!(states == 0 || line.states >= chunks.len());
        if stamp > 0 {
            prop_assert_eq!(line.progress, stamp + 1, "every push asked for its result");
        }
        let newest = singles.values().copied().max().unwrap_or(0).max(latest).max(stamp) + 1;
        for local in 0..chunks.len() {
            line.home.publish(local, newest);
            line.subscriber.published(W, local, &line.home);
        }
        line.exchange();
        for (chunk, version) in &singles {
            prop_assert!(line.seen.get(chunk) >= Some(version), "S-2: what was asked for of chunk {chunk}");
        }
        if stamp == 0 && !valued {
            prop_assert!(line.seen.keys().all(|chunk| singles.contains_key(chunk)), "nobody has asked for others");
        }
        prop_assert!(line.seen.values().all(|&version| version >= latest), "S-2: what fetches asked for");
        if broadcast && valued {
            let published = line.home.published.iter().map(|published| published.version);
            prop_assert!(line.seen.values().copied().eq(published), "S-5: all that is new");
        }
    }
}

#[test]
fn a_subscriber_that_asks_and_does_not_read_makes_what_is_owed_no_longer() {
    let mut line = Line::new(&[0, 1, 2]);
    line.settle();
    for ticket in 1..=1000 {
        for (local, state) in [(0, false), (2, true)] {
            line.home.publish(local, ticket);
            line.subscriber.published(W, local, &line.home);
            match state {
                false => line.subscriber.fetch(W, 0, ticket, 0, &line.home),
                true => line.subscriber.fetch_state(W, ticket, &line.home),
            }
            line.subscriber.fetch_chunks(W, [0, 2].into_iter(), 0, ticket, 0, &line.home);
            line.subscriber.fetch_chunks(W, [0, 2].into_iter(), ticket + 1, ticket, u64::MAX, &line.home);
        }
    }
    let mut sent = 0;
    while line.answer() {
        sent += 1;
    }
    // Values and states of three chunks, the one chunk that never had a value not at all; the first ticket and the last.
    assert!(sent <= 3 + 3 + 2, "S-4: {sent} frames");
}

// Each connection that broke before it had carried anything queued all that was open once more, for ever.
#[test]
fn a_line_that_breaks_again_and_again_makes_what_is_to_be_sent_no_longer() {
    let asks: [&[(bool, u64)]; 4] =
        [&[(false, 3)], &[(true, 0)], &[(false, 3), (true, 0)], &[(true, 0), (false, 3)]];
    for (fetches, taken) in asks.iter().flat_map(|fetches| [0, 1, 2].map(|taken| (fetches, taken))) {
        for broadcast in [false, true] {
            let mut mirror = Mirror::default();
            mirror.declare(W, vec![0], 4096, broadcast);
            mirror.connect();
            mirror.hear(0, &Notice::Taken, |_| 0).unwrap();
            for (&(state, version), ticket) in fetches.iter().zip(1..) {
                mirror.submit(Submission::Fetch { tensor: W, state, version, ticket });
            }
            let taken = taken.min(fetches.len()) as u64;
            (0..fetches.len()).for_each(|_| mirror.sent());
            let mut cut = |wanted| {
                mirror.connect();
                mirror.hear(taken, &Notice::Taken, |_| wanted).unwrap();
                mirror.unsent()
            };
            let (once, more) = (cut(5), cut(6));
            assert!(more <= 5 && once <= 5, "{fetches:?}, {taken} taken: {once}, {more}");
            assert!((7..100).all(|wanted| cut(wanted) == more), "{fetches:?}, {taken} taken");
            // The last of them brings the last ticket back.
            let mut said = Vec::new();
            while let Some(frame) = mirror.due() {
                mirror.sent();
                said.push(frame.submission);
            }
            let tickets: Vec<u64> = said
                .iter()
                .map(|fetch| match fetch {
                    Submission::Fetch { ticket, .. } => *ticket,
                    other => panic!("{other:?}"),
                })
                .filter(|&ticket| ticket > 0)
                .collect();
            assert_eq!(tickets, [fetches.len() as u64], "{said:?}");
            // Of what is broadcast all that is new comes again, once the value was asked for.
            let version = if broadcast && fetches.iter().any(|&(state, _)| !state) { 0 } else { 98 };
            assert!(
                said.contains(&Submission::Fetch { tensor: W, state: false, version, ticket: 0 }),
                "{said:?}"
            );
        }
    }
}

#[test]
fn chunks_that_are_asked_for_by_themselves_come_alone_and_again_on_a_new_connection() {
    let mut line = Line::new(&[0, 2, 3, 6]);
    (0..4).for_each(|local| line.home.publish(local, 0));
    let fetch = |line: &mut Line, first, count, version, ticket| {
        line.mirror.submit(Submission::FetchChunks { tensor: W, first, count, version, ticket });
    };
    fetch(&mut line, 2, 2, 0, 1);
    line.exchange();
    assert_eq!((&line.seen, line.fetched, line.progress), (&BTreeMap::from([(2, 0), (3, 0)]), 1, 0));
    // One has the version that is asked for, and one does not: the ticket waits for neither.
    let publish = |line: &mut Line, local, version| {
        line.home.publish(local, version);
        line.tell(Event::Published { tensor: W, local });
    };
    publish(&mut line, 1, 1);
    fetch(&mut line, 2, 2, 1, 2);
    line.exchange();
    assert_eq!((line.seen[&2], line.seen[&3], line.fetched), (1, 0, 2));
    for (local, version) in [(0, 1), (2, 1), (3, 1), (1, 2)] {
        publish(&mut line, local, version);
    }
    // It is lost on its way, and nothing of what nobody asked for comes in its place.
    line.answer();
    line.cut();
    line.exchange();
    assert_eq!(&line.seen, &BTreeMap::from([(2, 1), (3, 1)]));
    // A pull of all of it finds what is missing.
    line.fetch(3, false, 1);
    line.exchange();
    assert_eq!((line.fetched, line.progress, line.seen[&2]), (3, 2, 2));
    // What has come in the meantime is not the version that is still to come.
    fetch(&mut line, 3, 1, 5, NO_TICKET);
    fetch(&mut line, 3, 1, 3, NO_TICKET);
    line.exchange();
    publish(&mut line, 2, 3);
    line.exchange();
    assert_eq!(line.seen[&3], 3);
    line.cut();
    line.exchange();
    publish(&mut line, 2, 5);
    line.exchange();
    assert_eq!(line.seen[&3], 5);
}

// As the tensors that are fetched whole.
#[test]
fn a_fetch_of_some_chunks_waits_for_own_contributions_that_are_promised() {
    let mut line = Line::started();
    // Also what brings no ticket back: another's behind it stands for both.
    line.subscriber.fetch_chunks(W, [0].into_iter(), 0, NO_TICKET, 1, &line.home);
    line.subscriber.fetch_chunks(W, [0].into_iter(), 0, 2, 1, &line.home);
    line.subscriber.fetch_chunks(W, [0].into_iter(), 0, 3, 1, &line.home);
    line.exchange();
    assert_eq!(line.fetched, 1);
    line.home.publish(0, 0);
    line.subscriber.published(W, 0, &line.home);
    line.subscriber.folded(W, 1, &line.home);
    let told = |line: &mut Line| line.to_mirror.iter().map(|(_, notice)| *notice).collect::<Vec<_>>();
    while line.answer() {}
    let value =
        Notice::Value { tensor: W, chunk: 0, version: 0, steps: 0, publication: 2, base: 0, content: 2 };
    let expected = [Notice::Folded { tensor: W, count: 1 }, value, Notice::Fetched { tensor: W, ticket: 3 }];
    assert_eq!(told(&mut line), expected);
}

#[test]
fn a_line_that_breaks_again_and_again_asks_for_single_chunks_once_each_and_brings_one_ticket_back() {
    let chunks = [0, 1, 4, 5, 8];
    let (settings, stamp) = (Settings([0.0; 5]), 0);
    for taken in 0..6_u64 {
        for whole in [false, true] {
            let mut mirror = Mirror::default();
            mirror.declare(W, chunks.to_vec(), 4096, false);
            mirror.connect();
            mirror.hear(0, &Notice::Taken, |_| 0).unwrap();
            let single =
                |first, ticket| Submission::FetchChunks { tensor: W, first, count: 1, version: 3, ticket };
            if whole {
                mirror.submit(Submission::Fetch { tensor: W, state: false, version: 5, ticket: 1 });
            }
            mirror.submit(single(0, 2));
            mirror.submit(Submission::Skip { tensor: W, first: 0, count: 9, stamp, settings });
            [(4, 3), (1, 4), (8, 5)]
                .into_iter()
                .for_each(|(first, ticket)| mirror.submit(single(first, ticket)));
            while mirror.due().is_some() {
                mirror.sent();
            }
            let taken = taken.min(mirror.progress().1);
            let mut cut = || {
                mirror.connect();
                mirror.hear(taken, &Notice::Taken, |_| 0).unwrap();
                mirror.unsent()
            };
            let once = cut();
            assert!((0..50).all(|_| cut() == once), "{whole}, {taken} taken");
            let frames: Vec<Submission> = std::iter::from_fn(|| {
                let due = mirror.due()?;
                mirror.sent();
                Some(due.submission)
            })
            .collect();
            let skip = frames.iter().position(|frame| matches!(frame, Submission::Skip { .. }));
            let of_ticket = |frame: &Submission| match *frame {
                Submission::Fetch { ticket, .. } | Submission::FetchChunks { ticket, .. } => ticket == 5,
                _ => false,
            };
            // It is the last that brings it back, or the one that stands for all.
            let fetches = |frame: &&Submission| matches!(frame, Submission::FetchChunks { .. });
            assert_eq!(frames.iter().filter(|frame| of_ticket(frame)).count(), 1, "{frames:?}");
            assert!(whole || of_ticket(frames.iter().rfind(fetches).unwrap()), "{frames:?}");
            // What comes with the ticket has to have what was pushed before it.
            let first = frames.iter().position(of_ticket).unwrap();
            assert!(skip.is_none_or(|skip| skip < first), "{frames:?}");
            let mut asked = std::collections::BTreeSet::new();
            for frame in &frames {
                match *frame {
                    Submission::FetchChunks { first, count, version: 3, .. } => {
                        asked.extend(first..first + count)
                    }
                    Submission::Fetch { version: 3, ticket: 5, .. } if whole => asked.extend(chunks),
                    Submission::Fetch { version: 5, ticket: NO_TICKET, .. } if whole => {}
                    Submission::Skip { .. } => {}
                    ref other => panic!("{other:?}"),
                }
            }
            assert!([0, 1, 4, 8].iter().all(|chunk| asked.contains(chunk)), "{frames:?}");
            assert!(whole || !asked.contains(&5), "{frames:?}");
        }
    }
}

#[test]
fn a_home_that_broadcasts_sends_what_is_new_unasked_and_what_a_slow_line_misses_as_one() {
    let mut line = Line::sending(&[0, 3], true);
    (0..2).for_each(|local| line.home.publish(local, 0));
    let publish = |line: &mut Line, local, version| {
        line.home.publish(local, version);
        line.tell(Event::Published { tensor: W, local });
    };
    line.connect();
    publish(&mut line, 0, 1);
    line.exchange();
    assert!(line.seen.is_empty(), "nobody has asked");
    line.fetch(1, false, 0);
    line.exchange();
    assert_eq!((line.fetched, line.progress), (1, 1));
    (2..9).for_each(|version| publish(&mut line, 0, version));
    publish(&mut line, 1, 5);
    let mut sent = 0;
    while line.answer() {
        sent += 1;
    }
    assert_eq!(sent, 2, "each chunk once, as new as it is");
    line.exchange();
    assert_eq!((line.seen[&0], line.seen[&3], line.progress), (8, 5, 6));
    // What was on its way when the line broke, and what was published since, though its version is an old one.
    publish(&mut line, 1, 6);
    line.answer();
    line.cut();
    publish(&mut line, 0, 8);
    line.exchange();
    assert_eq!((line.seen[&0], line.seen[&3]), (8, 6));
    assert_eq!(line.home.published[0].sequence, 10);
    publish(&mut line, 1, 7);
    line.exchange();
    assert_eq!(line.seen[&3], 7, "as before");
}

#[test]
fn nothing_is_sent_before_the_shard_has_spoken_and_nothing_follows_a_goodbye() {
    let mut line = Line::new(&[0]);
    line.mirror.submit(Submission::Clock { clock: 1 });
    line.connect();
    assert!(line.mirror.due().is_none() && line.mirror.unsent() == 1);
    line.mirror.submit(Submission::Fetch { tensor: W, state: false, version: 0, ticket: 1 });
    line.mirror.submit(Submission::Leave);
    line.settle();
    assert!(matches!(line.taken.last().unwrap().submission, Submission::Leave));
    line.subscriber.let_go();
    line.cut();
    line.settle();
    assert_eq!(line.taken.len(), 3, "who has left asks for nothing again");
    assert!(line.subscriber.take().is_err());
}

// Found by the simulator: the fetch that had not been taken went first on the new connection, and its ticket
// stood for the state too.
#[test]
fn a_ticket_does_not_pass_a_state_whose_answer_was_lost() {
    let mut line = Line::started();
    line.fetch(2, true, 0);
    assert!(line.send() && line.take());
    line.fetch(3, false, 0);
    line.cut();
    line.connect();
    while line.fetched < 3 {
        assert!(line.send() | line.take() | line.answer() | line.hear());
        assert!(line.fetched < 2 || line.states > 0, "S-3: ticket {} before its state", line.fetched);
    }
}

// Likewise: with its ticket the fetch of the value counted as answered, and was not made again when the connection broke.
#[test]
fn a_version_that_is_awaited_is_asked_for_again_though_its_ticket_has_come_back() {
    let mut line = Line::started();
    line.fetch(2, false, 5);
    line.fetch(3, true, 0);
    line.exchange();
    assert_eq!((line.states, line.fetched), (1, 3));
    line.cut();
    line.home.publish(0, 5);
    line.exchange();
    assert_eq!((line.seen[&0], line.fetched), (5, 3));
}

// A pull that had timed out left its version behind, and every later fetch waited until that was there.
#[test]
fn a_fetch_for_a_version_that_does_not_come_keeps_no_other_back() {
    let mut line = Line::started();
    line.fetch(2, false, 5);
    line.exchange();
    line.home.publish(0, 1);
    for (ticket, cut) in [(3, false), (4, true)] {
        line.fetch(ticket, false, 0);
        if cut {
            line.cut();
        }
        line.exchange();
        assert_eq!((line.seen[&0], line.fetched), (1, ticket));
    }
    line.fetch(5, true, 0);
    line.exchange();
    assert_eq!((line.states, line.fetched), (1, 5));
}

#[test]
fn who_asked_for_an_earlier_version_does_not_wait_for_a_later_one() {
    for cut in [false, true] {
        let mut line = Line::started();
        line.fetch(2, false, 5);
        line.fetch(3, false, 7);
        line.exchange();
        if cut {
            line.cut();
            line.exchange();
        }
        for version in [5, 7] {
            line.home.publish(0, version);
            line.subscriber.published(W, 0, &line.home);
            line.exchange();
            assert_eq!(line.seen[&0], version);
        }
    }
}

#[test]
fn a_ticket_comes_back_though_others_ask_without_end() {
    let mut line = Line::new(&[0, 1, 2]);
    line.connect();
    for local in 0..3 {
        line.home.publish(local, 0);
    }
    for ticket in 1..=100 {
        line.home.publish(ticket as usize % 3, ticket);
        line.subscriber.fetch(W, 0, 2 * ticket - 1, 0, &line.home);
        line.subscriber.fetch_state(W, 2 * ticket, &line.home);
        assert!(line.answer());
        while line.hear() {}
        // Values, states and a ticket of what is under way and of what comes next.
        assert!(2 * ticket < line.fetched + 80, "ticket {}, {} came back", 2 * ticket, line.fetched);
    }
}

// Likewise: workers that pulled with slack after their pushes waited for each other.
#[test]
fn a_fetch_with_slack_does_not_wait_for_the_result_of_a_push() {
    let mut line = Line::started();
    let settings = Settings([0.5, 0.0, 0.0, 0.0, 0.0]);
    line.mirror.submit(Submission::Push { tensor: W, first: 0, count: 1, stamp: 0, settings });
    line.wanted = 2;
    line.fetch(2, false, 0);
    line.exchange();
    assert_eq!((line.seen[&0], line.fetched), (0, 2));
    line.fetch(3, false, 0);
    line.cut();
    line.exchange();
    assert_eq!((line.seen[&0], line.fetched), (0, 3), "nor on a new connection, which asks for it again");
    line.settle();
    assert_eq!(line.seen[&0], 1);
}

// Likewise: a reader out of step missed its own update, which the home had folded and not committed.
#[test]
fn a_fetch_waits_for_own_contributions_that_are_promised() {
    let mut line = Line::started();
    line.subscriber.fetch(W, 0, 2, 1, &line.home);
    line.subscriber.fetch_state(W, 3, &line.home);
    line.exchange();
    assert_eq!((line.states, line.fetched), (1, 1));
    line.home.publish(0, 0);
    line.subscriber.published(W, 0, &line.home);
    line.subscriber.folded(W, 1, &line.home);
    let told = |line: &mut Line| line.to_mirror.iter().map(|(_, notice)| *notice).collect::<Vec<_>>();
    while line.answer() {}
    let value =
        Notice::Value { tensor: W, chunk: 0, version: 0, steps: 0, publication: 2, base: 0, content: 2 };
    let expected = [Notice::Folded { tensor: W, count: 1 }, value, Notice::Fetched { tensor: W, ticket: 3 }];
    assert_eq!(told(&mut line), expected);
}

#[test]
fn a_subscriber_whose_tickets_mean_nothing_harms_only_itself() {
    let mut line = Line::started();
    for (version, ticket) in [(0, u64::MAX), (LATEST, 0), (LATEST, u64::MAX), (0, 3), (LATEST, 3), (0, 0)] {
        for folded in [0, u64::MAX] {
            line.subscriber.fetch(W, version, ticket, folded, &line.home);
            line.subscriber.fetch_state(W, ticket, &line.home);
        }
    }
    let mut sent = 0;
    while line.answer() {
        sent += 1;
    }
    assert!(sent <= 2, "S-4: {sent} frames");
    // What it asked for without sense ends with the connection.
    line.cut();
    line.fetch(2, false, 0);
    line.exchange();
    assert_eq!(line.fetched, 2);
}

#[test]
fn a_shard_whose_versions_fall_or_that_miscounts_is_found_out() {
    let mut mirror = Mirror::default();
    mirror.declare(W, vec![0], 4096, false);
    let value = |version| Notice::Value {
        tensor: W,
        chunk: 0,
        version,
        steps: 0,
        publication: 2,
        base: 0,
        content: 1,
    };
    mirror.hear(0, &value(4), |_| 0).unwrap();
    assert_eq!(mirror.hear(0, &value(3), |_| 0), Err(Broken::Fell { chunk: 0, version: 3 }));
    let most = u64::MAX;
    assert_eq!(mirror.hear(0, &value(most), |_| 0), Err(Broken::TooNew { chunk: 0, version: most }));
    let again = Effect::Publish { tensor: W, chunk: 0, version: 4, steps: 0, progress: None };
    assert_eq!(mirror.hear(0, &value(4), |_| 0), Ok(again), "a value may be loaded over");
    assert!(matches!(mirror.hear(1, &Notice::Taken, |_| 0), Err(Broken::Miscounted(_))));
}

/// What a submission of each kind that names a tensor looks like.
fn naming(tensor: TensorId) -> [Submission; 5] {
    let settings = Settings([0.0; 5]);
    [
        Submission::Push { tensor, first: 0, count: 1, stamp: 0, settings },
        Submission::Load { tensor, first: 0, count: 1, slot: 0, part: 0, steps: 0 },
        Submission::Fetch { tensor, state: false, version: 0, ticket: NO_TICKET },
        Submission::Fetch { tensor, state: true, version: 0, ticket: 1 },
        Submission::FetchChunks { tensor, first: 0, count: 1, version: 0, ticket: 1 },
    ]
}

#[test]
fn a_worker_that_names_a_tensor_which_it_has_not_declared_is_refused_and_owed_nothing() {
    let mut line = Line::new(&[0]);
    line.home.publish(0, 0);
    line.connect();
    let other = W + 1;
    for (submission, undeclared) in naming(other).into_iter().zip([
        Undeclared::Lane(other),
        Undeclared::Lane(other),
        Undeclared::Fetch(other),
        Undeclared::Fetch(other),
        Undeclared::Fetch(other),
    ]) {
        assert_eq!(line.ask(PeerId::worker(0), &submission, true), Err(undeclared));
        let (worker, another) = (PeerId::worker(0), PeerId::worker(1));
        assert_eq!(home::check_declared(worker, &submission, &line.home), Err(undeclared));
        assert!(home::check_declared(another, &submission, &line.home).is_err());
        assert!(line.overlay.next_hops(other).is_empty() && line.subscriber.next(&line.home).is_none());
    }
    for submission in naming(W) {
        home::check_declared(PeerId::worker(0), &submission, &line.home).unwrap();
        home::check_declared(PeerId::worker(1), &submission, &line.home).unwrap_err();
        home::check_declared(PeerId::first(Role::Follower, 1), &submission, &line.home).unwrap();
    }
}

#[test]
fn only_who_has_asked_for_values_is_sent_what_is_published_and_who_reads_states_is_not() {
    let mut line = Line::new(&[0]);
    line.connect();
    let [push, _, fetch, state, some] = naming(W);
    for (submission, wanted, asks) in [
        (state, false, false),
        (push, false, false),
        (push, true, true),
        (fetch, false, true),
        (some, false, true),
    ] {
        line.overlay = Direct::default();
        line.ask(PeerId::worker(0), &submission, wanted).unwrap();
        assert_eq!(line.overlay.next_hops(W) == [PeerId::worker(0)], asks, "{submission:?}");
    }
    line.home.publish(0, 1);
    line.tell(Event::Published { tensor: W, local: 0 });
    let values = std::iter::from_fn(|| line.subscriber.next(&line.home));
    assert_eq!(values.filter(|owing| matches!(owing, Owing::Value { .. })).count(), 1);
}

#[test]
fn what_rests_costs_one_frame_whatever_its_size_and_is_sent_whole_where_it_was_not() {
    let chunks = [0, 3, 5, 9];
    let mut line = Line::sending(&chunks, true);
    let told = |line: &mut Line, change: &dyn Fn(&mut Home, usize)| {
        for local in 0..chunks.len() {
            change(&mut line.home, local);
            line.tell(Event::Published { tensor: W, local });
        }
        let mut sent = Vec::new();
        while line.answer() {
            sent.extend(line.to_mirror.back().map(|(_, notice)| *notice));
        }
        line.exchange();
        sent
    };
    (0..chunks.len()).for_each(|local| line.home.publish(local, 0));
    line.fetch(1, false, 0);
    line.exchange();
    // No other feeds it.
    let raised = |chunk, count: u32, version| {
        let contents = [0; 4];
        Notice::Raised { tensor: W, chunk, count, version, steps: 0, contents }
    };
    assert_eq!(told(&mut line, &|home, local| home.raise(local, 1)), [raised(0, 4, 1)]);
    assert_eq!((line.progress, &line.seen), (2, &chunks.map(|chunk| (chunk, 1)).into()));
    // One of them has changed, and one is of another version.
    let sent = told(&mut line, &|home, local| match local {
        1 => home.publish(local, 2),
        3 => home.raise(local, 7),
        _ => home.raise(local, 2),
    });
    assert_eq!((sent[0], &sent[2..]), (raised(0, 1, 2), &[raised(5, 1, 2), raised(9, 1, 7)][..]));
    assert!(matches!(sent[1], Notice::Value { chunk: 3, version: 2, .. }));
    assert_eq!(line.progress, 3);
    // A new connection knows nothing of what was sent.
    line.cut();
    (0..chunks.len()).for_each(|local| line.home.raise(local, 8));
    line.connect();
    let mut whole = 0;
    while line.send() | line.take() | line.answer() | line.hear() {
        whole = line.progress;
    }
    assert_eq!((whole, &line.seen), (9, &chunks.map(|chunk| (chunk, 8)).into()));
    // And the next value is a difference to what was sent, whatever the versions since.
    line.home.publish(0, 9);
    line.tell(Event::Published { tensor: W, local: 0 });
    let sent = line.home.published[0].sequence - 1;
    assert!(
        matches!(line.subscriber.next(&line.home), Some(Owing::Value { local: 0, position, .. }) if position == sent)
    );
}

#[test]
fn what_was_not_sent_cannot_be_raised() {
    let mut line = Line::new(&[2, 4]);
    (0..2).for_each(|local| line.home.publish(local, 3));
    let raise = |line: &mut Line, chunk, count, version| {
        let notice = Notice::Raised { tensor: W, chunk, count, version, steps: 0, contents: [1, 1, 2, 3] };
        line.mirror.hear(line.mirror.progress().0, &notice, |_| 0)
    };
    line.connect();
    assert!(matches!(raise(&mut line, 2, 2, 4), Err(Broken::Unsent { chunk: 2, count: 2, version: 4 })));
    line.fetch(1, false, 0);
    line.exchange();
    assert_eq!(line.seen.len(), 2);
    for (chunk, count, version) in [(3, 1, 4), (2, 3, 4), (4, 2, 4), (2, u32::MAX, 4)] {
        let broken = raise(&mut line, chunk, count, version).unwrap_err();
        assert!(matches!(broken, Broken::Unsent { .. }), "{broken}");
    }
    assert!(matches!(raise(&mut line, 2, 1, 2), Err(Broken::Fell { chunk: 2, version: 2 })));
    assert!(matches!(raise(&mut line, 2, 1, LATEST + 1), Err(Broken::TooNew { .. })));
    assert!(raise(&mut line, 2, 2, 4).is_ok());
}

// A worker that had skipped a tensor of many chunks was taken for one far ahead, and was not read.
#[test]
fn what_was_skipped_brings_nobody_ahead() {
    let mut line = Line::new(&[0, 1, 2, 3, 4]);
    let settings = Settings([0.5, 0.0, 0.0, 0.0, 0.0]);
    let ask = |line: &mut Line, submission| line.ask(PeerId::worker(0), &submission, false).unwrap();
    ask(&mut line, Submission::Skip { tensor: W, first: 0, count: 3, stamp: 0, settings });
    assert_eq!(line.subscriber.lead(), 0);
    for first in [3, 4] {
        ask(&mut line, Submission::Push { tensor: W, first, count: 1, stamp: 0, settings });
    }
    assert_eq!(line.subscriber.lead(), 2);
    line.subscriber.folded(W, 2, &line.home);
    assert_eq!(line.subscriber.lead(), 0, "which of them is not known");
    ask(&mut line, Submission::Push { tensor: OTHER, first: 0, count: 1, stamp: 0, settings });
    assert_eq!(line.subscriber.lead(), 1, "skips of one tensor hide nothing of another");
    line.subscriber.folded(W, 5, &line.home);
    assert_eq!(line.subscriber.lead(), 1);
    line.subscriber.folded(OTHER, 1, &line.home);
    assert_eq!(line.subscriber.lead(), 0);
    ask(&mut line, Submission::Push { tensor: W, first: 0, count: 1, stamp: 1, settings });
    assert_eq!(line.subscriber.lead(), 1, "and what is pushed then counts as ever");
}
