//! A subscriber that others feed, and its home: who is sent what when, whatever becomes of those in between.
//!
//! The home sends to two: a parent, which it feeds, and its child, which the parent feeds once it stands there.

use penstock_proto::frame::Notice;
use penstock_proto::overlay::{Direct, Feed, Parent, Pass, Route, Stripes, Striping, WHOLE};
use penstock_proto::peer::PeerId;
use penstock_proto::remote::home::{Chunks, Event, Owing, Publication, Subscriber, Subscribers, tell};
use penstock_proto::remote::mirror::{Effect, Fault, Mirror, Stands};
use penstock_proto::shard::Shard;
use penstock_proto::submission::{NO_TICKET, NOBODY, Submission};
use penstock_proto::{Rank, TensorId};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

const W: TensorId = 3;
const CHUNKS: usize = 5;
const PARENT: Rank = 0;
const CHILD: Rank = 1;

struct Home {
    published: Vec<Publication>,
    striping: Striping,
    by_trees: bool,
}

impl Home {
    fn publish(&mut self, local: usize, changes: bool) {
        let it = &mut self.published[local];
        it.sequence += 2;
        it.version += 1;
        if changes {
            it.changed = it.sequence;
        }
    }
}

impl Chunks for Home {
    fn chunks(&self, _: TensorId) -> usize {
        CHUNKS
    }

    fn publication(&self, _: TensorId, local: usize) -> Publication {
        self.published[local]
    }

    fn local(&self, _: TensorId, chunk: u32) -> Option<usize> {
        (chunk < CHUNKS as u32).then_some(chunk as usize)
    }

    fn broadcasts(&self, _: TensorId) -> bool {
        true
    }

    fn has_lane(&self, _: TensorId, _: Rank) -> bool {
        true
    }

    fn goes_by_trees(&self, _: TensorId) -> bool {
        self.by_trees
    }

    fn stripe(&self, _: TensorId, local: usize) -> usize {
        self.striping.of(local)
    }

    fn digest(&self, _: TensorId, stripe: usize) -> u64 {
        let of = |(local, it): (usize, &Publication)| match it.sequence {
            _ if self.striping.of(local) != stripe => 0,
            0 => 0,
            _ => it.changed + it.version + 1,
        };
        self.published.iter().enumerate().map(of).sum()
    }
}

/// One of the two, and its line to the home.
struct Reader {
    rank: Rank,
    mirror: Mirror,
    subscriber: Subscriber,
    to_mirror: VecDeque<(u64, Said)>,
    /// What it holds of each chunk: by which publication that came to be, and its version.
    held: Vec<(u64, u64)>,
    /// By chunk and publication: by which one that came to be.
    contents: BTreeMap<(u32, u64), u64>,
    /// Values that it was sent by the home.
    values: usize,
    /// What stands of each chunk in its memory, for who borrows that.
    stands: Vec<Option<Stands>>,
    /// Tickets that have not come back: the last that was drawn, and what stood at the home of each chunk when it took the fetch.
    tickets: u64,
    open: BTreeMap<u64, Vec<(u64, u64)>>,
}

#[derive(Debug, Clone, PartialEq)]
enum Said {
    Notice(Notice),
    Route(Vec<u8>),
}

impl Reader {
    fn new(rank: Rank) -> Self {
        let (mut mirror, mut subscriber) = (Mirror::default(), Subscriber::default());
        mirror.declare(W, (0..CHUNKS as u32).collect(), 4096, true);
        mirror.connect();
        subscriber.connect();
        let held = vec![(0, 0); CHUNKS];
        let (to_mirror, contents) = (VecDeque::new(), BTreeMap::new());
        let (tickets, open) = (NO_TICKET, BTreeMap::new());
        let stands = vec![None; CHUNKS];
        Self { rank, mirror, subscriber, to_mirror, held, contents, values: 0, stands, tickets, open }
    }

    /// Publishes what came. A difference that is against something else is caught here.
    fn take(&mut self, notice: &Notice, effect: Effect) {
        if let Notice::Value { chunk, publication, content, .. } = notice {
            self.contents.insert((*chunk, *publication), *content);
        }
        match (notice, effect) {
            (Notice::Value { chunk, base, content, .. }, Effect::Publish { version, .. }) => {
                let held = &mut self.held[*chunk as usize];
                let against = *base > 0 && self.contents[&(*chunk, *base)] != held.0;
                assert!(!against, "{notice:?} onto {held:?}");
                assert!(*content >= held.0 && version >= held.1);
                *held = (*content, version);
                let Notice::Value { publication, steps, content, .. } = *notice else { unreachable!() };
                self.stands[*chunk as usize] = Some(Stands { version, steps, publication, content });
            }
            (_, Effect::Raise { chunk, count, version, .. }) => {
                for stands in self.stands[chunk as usize..(chunk + count) as usize].iter_mut().flatten() {
                    stands.version = version;
                }
                for held in &mut self.held[chunk as usize..(chunk + count) as usize] {
                    assert!(version >= held.1);
                    held.1 = version;
                }
            }
            (_, Effect::Fetched { ticket, .. }) => self.returned(ticket),
            _ => {}
        }
        if let Some(ticket) = self.mirror.take_returned(W) {
            self.returned(ticket);
        }
    }

    fn fetch(&mut self) {
        self.tickets += 1;
        self.mirror.submit(Submission::Fetch { tensor: W, state: false, version: 0, ticket: self.tickets });
    }

    /// S-3.
    fn returned(&mut self, ticket: u64) {
        let rest = self.open.split_off(&(ticket + 1));
        for (ticket, stood) in std::mem::replace(&mut self.open, rest) {
            let lacks = self.held.iter().zip(&stood).position(|(held, at)| held.0 < at.0 || held.1 < at.1);
            assert_eq!(lacks, None, "ticket {ticket} came back before chunk {stood:?}: {:?}", self.held);
        }
    }
}

struct Rig {
    home: Home,
    machine: Shard,
    overlay: Direct,
    readers: Readers,
    /// What the parent passes on, while the child stands there.
    link: Option<VecDeque<Notice>>,
    /// Whether the child reads in its parent's memory. The home sends it what it cannot write then.
    borrows: bool,
    epoch: u32,
}

struct Readers([Reader; 2]);

impl Subscribers for Readers {
    fn of(&mut self, peer: PeerId) -> Option<&mut Subscriber> {
        self.contributor(peer.rank()?)
    }

    fn contributor(&mut self, rank: Rank) -> Option<&mut Subscriber> {
        Some(&mut self.0[rank as usize].subscriber)
    }
}

impl Rig {
    fn new() -> Self {
        let published = vec![Publication { version: 0, steps: 0, sequence: 0, changed: 0 }; CHUNKS];
        let striping = Striping::new(W, CHUNKS, 4096, &[WHOLE]);
        let home = Home { published, striping, by_trees: true };
        let readers = Readers([PARENT, CHILD].map(Reader::new));
        let (machine, overlay) = (Shard::new(2), Direct::default());
        let mut rig = Self { home, machine, overlay, readers, link: None, borrows: false, epoch: 0 };
        for rank in [PARENT, CHILD] {
            let fetch = Submission::Fetch { tensor: W, state: false, version: 0, ticket: NO_TICKET };
            rig.readers.0[rank as usize].mirror.submit(fetch);
        }
        rig.settle();
        for local in 0..CHUNKS {
            rig.publish(local, true);
        }
        rig.settle();
        rig
    }

    fn publish(&mut self, local: usize, changes: bool) {
        self.home.publish(local, changes);
        let event = Event::Published { tensor: W, local };
        tell(event, &self.overlay, &mut self.readers, &self.home);
    }

    /// The child stands at its parent, but the home sends each its values itself.
    fn past_trees() -> Self {
        let mut rig = Self::new();
        rig.home.by_trees = false;
        rig.route(true);
        rig.settle();
        rig.attach();
        rig.settle();
        rig
    }

    /// Values go by trees from now on, or do not.
    fn go_by_trees(&mut self, by_trees: bool) {
        self.home.by_trees = by_trees;
        self.readers.0.iter_mut().for_each(|reader| reader.subscriber.turned(W, &self.home));
    }

    /// The child stands at its parent.
    fn attached() -> Self {
        let mut rig = Self::new();
        rig.route(true);
        rig.settle();
        rig.attach();
        rig.settle();
        rig
    }

    /// The home names the parent, or nobody.
    fn route(&mut self, by_parent: bool) {
        self.epoch += 1;
        for rank in [PARENT, CHILD] {
            let address = "10.0.0.1:1".parse().unwrap();
            let pass = Pass::new(&[0; 16], 0, CHILD);
            let parent = (by_parent && rank == CHILD).then_some(Parent { rank: PARENT, address, pass });
            let feeds = vec![Feed { parent, depth: 1 }];
            let route = Route { epoch: self.epoch, striping: 1, shares: vec![WHOLE], feeds };
            let subscriber = &mut self.readers.0[rank as usize].subscriber;
            subscriber.route(self.epoch, route.parents(), route.encode().into(), &self.home);
        }
    }

    /// The child takes what the home has said so far, one thing of it; whether there was any.
    fn hear(&mut self, rank: Rank) -> bool {
        let reader = &mut self.readers.0[rank as usize];
        let Some((taken, said)) = reader.to_mirror.pop_front() else { return false };
        match said {
            Said::Notice(notice) => {
                let effect = reader.mirror.hear(taken, &notice, |_| 0).unwrap();
                reader.mirror.brought(&notice, 64);
                reader.take(&notice, effect);
                if rank == PARENT && effect != Effect::Nothing {
                    self.pass_on(notice);
                }
            }
            Said::Route(bytes) => {
                let before = reader.mirror.way().map_or_else(Stripes::default, Route::parents);
                let before = before.or(reader.mirror.fed());
                let route = Route::decode(&bytes).unwrap();
                let named = route.parents();
                reader.mirror.hear(taken, &Notice::Route, |_| 0).unwrap();
                reader.mirror.route(route);
                if !before.without(named).is_empty() {
                    if rank == CHILD {
                        self.give_back(None);
                    }
                    let reader = &mut self.readers.0[rank as usize];
                    self.link = None;
                    reader.mirror.stray(before.without(named), Fault::Nobodys);
                } else if self.link.is_some() && rank == CHILD {
                    reader.mirror.attach(named);
                }
            }
        }
        true
    }

    fn pass_on(&mut self, notice: Notice) {
        let (Some(link), Notice::Value { .. } | Notice::Raised { .. }) = (&mut self.link, notice) else {
            return;
        };
        link.push_back(match notice {
            Notice::Value { tensor, chunk, .. } if self.borrows => Notice::Lent { tensor, chunk, count: 1 },
            Notice::Raised { tensor, chunk, count, .. } if self.borrows => {
                Notice::Lent { tensor, chunk, count }
            }
            other => other,
        });
    }

    /// The child reads in its parent's memory from now on, if it may.
    fn borrow(&mut self) {
        let Readers([parent, child]) = &mut self.readers;
        let stands: Option<Vec<_>> =
            (0..).zip(&parent.stands).map(|(chunk, it)| Some((chunk, (*it)?))).collect();
        let stands_there =
            |mirror: &Mirror| stands.clone().is_some_and(|stands| mirror.is_reached(W, stands));
        if self.link.is_some() && child.mirror.may_borrow(W) && stands_there(&child.mirror) {
            child.mirror.borrow(W, true);
            self.borrows = true;
            self.look(0, CHUNKS as u32);
        }
    }

    /// The child looks there.
    fn look(&mut self, chunk: u32, count: u32) {
        let Readers([parent, child]) = &mut self.readers;
        for (chunk, stands) in (0..).zip(&parent.stands).skip(chunk as usize).take(count as usize) {
            let stands = stands.unwrap();
            let was = child.held[chunk as usize];
            assert!(stands.content >= was.0 && stands.version >= was.1, "nothing falls");
            child.mirror.found(W, chunk, stands).unwrap();
            child.held[chunk as usize] = (stands.content, stands.version);
            child.contents.insert((chunk, stands.publication), stands.content);
        }
        if let Some(ticket) = child.mirror.take_returned(W) {
            child.returned(ticket);
        }
    }

    /// The child goes back to memory of its own, with what stood there, but for a chunk that was being written.
    fn give_back(&mut self, torn: Option<usize>) {
        if !std::mem::take(&mut self.borrows) {
            return;
        }
        self.look(0, CHUNKS as u32);
        let child = &mut self.readers.0[CHILD as usize];
        if let Some(torn) = torn {
            let version = child.held[torn].1;
            child.mirror.lose(W, torn as u32);
            child.held[torn] = (0, version);
        }
        child.mirror.borrow(W, false);
    }

    /// The child connects to its parent, if the home has named it.
    fn attach(&mut self) {
        let mirror = &mut self.readers.0[CHILD as usize].mirror;
        let named = mirror.way().map_or_else(Stripes::default, Route::parents);
        if self.link.is_none() && !named.is_empty() {
            self.link = Some(VecDeque::new());
            mirror.attach(named);
        }
    }

    /// The child loses its parent, and with it what is under way.
    fn lose(&mut self) {
        self.give_back(None);
        if self.link.take().is_some() {
            let mirror = &mut self.readers.0[CHILD as usize].mirror;
            mirror.stray(Stripes::first(1), Fault::Its(PARENT));
        }
    }

    /// Another parent takes the place of the child's, and passes on what comes to it from then on.
    fn hand_over(&mut self) {
        self.give_back(None);
        if self.link.is_some() {
            self.link = Some(VecDeque::new());
            let mirror = &mut self.readers.0[CHILD as usize].mirror;
            mirror.hand_over(mirror.fed());
        }
    }

    /// Stripes that are late to the child in this time, in milliseconds.
    fn late(&mut self, from: u64, to: u64) -> Stripes {
        let child = &mut self.readers.0[CHILD as usize].mirror;
        let at = (from..to).step_by(20).map(Duration::from_millis);
        at.map(|at| child.late(at)).fold(Stripes::default(), Stripes::or)
    }

    fn take_passed(&mut self) -> bool {
        let Some(notice) = self.link.as_mut().and_then(VecDeque::pop_front) else { return false };
        let new = match notice {
            Notice::Lent { chunk, count, .. } | Notice::Raised { chunk, count, .. } => (chunk, count),
            Notice::Value { chunk, .. } => (chunk, 1),
            other => panic!("nobody passes on {other:?}"),
        };
        if self.borrows {
            self.look(new.0, new.1);
            return true;
        }
        if matches!(notice, Notice::Lent { .. }) {
            return true;
        }
        let child = &mut self.readers.0[CHILD as usize];
        let effect = child.mirror.hear_passed(&notice, 64);
        child.take(&notice, effect);
        true
    }

    /// The home takes one frame of a reader's; whether there was one.
    fn submit(&mut self, rank: Rank) -> bool {
        let reader = &mut self.readers.0[rank as usize];
        let Some(frame) = reader.mirror.due() else { return false };
        reader.mirror.sent();
        reader.subscriber.expect(frame.sequence).unwrap();
        reader.subscriber.take().unwrap();
        let peer = PeerId::worker(reader.rank);
        let at_home = (&self.machine, &mut self.overlay);
        if let Submission::Fetch { ticket: ticket @ 1.., .. } = frame.submission {
            reader
                .open
                .insert(ticket, self.home.published.iter().map(|it| (it.changed, it.version)).collect());
        }
        reader.subscriber.ask(peer, &frame.submission, false, at_home, &self.home).unwrap();
        true
    }

    /// The home says one thing to a reader; whether there was anything.
    fn say(&mut self, rank: Rank) -> bool {
        let reader = &mut self.readers.0[rank as usize];
        let owing = reader.subscriber.next(&self.home);
        if owing.is_none() && !reader.subscriber.must_tell() {
            return false;
        }
        let chunk = |local: usize| local as u32;
        let said = match owing {
            None => Said::Notice(Notice::Taken),
            Some(Owing::Value { tensor, local, publication, position }) => {
                reader.values += 1;
                let Publication { version, steps, sequence, changed } = publication;
                // Against whatever it is believed to hold: the worst that a codec could do.
                let notice = Notice::Value {
                    tensor,
                    chunk: chunk(local),
                    version,
                    steps,
                    publication: sequence,
                    base: position,
                    content: changed,
                };
                Said::Notice(notice)
            }
            Some(Owing::Raised { tensor, local, count, version, steps, contents }) => {
                let (chunk, count) = (chunk(local), count as u32);
                Said::Notice(Notice::Raised { tensor, chunk, count, version, steps, contents })
            }
            Some(Owing::Standing { tensor, stripe, digest }) => {
                Said::Notice(Notice::Standing { tensor, stripe, digest })
            }
            Some(Owing::Expected { tensor, local, held }) => {
                Said::Notice(Notice::Expected { tensor, first: chunk(local), held })
            }
            Some(Owing::Fetched { tensor, ticket }) => Said::Notice(Notice::Fetched { tensor, ticket }),
            Some(Owing::Route(route)) => Said::Route(route.to_vec()),
            Some(other) => panic!("nobody asked for {other:?}"),
        };
        reader.to_mirror.push_back((reader.subscriber.tell(), said));
        true
    }

    fn turn(&mut self) -> bool {
        let mut busy = false;
        for rank in [PARENT, CHILD] {
            busy |= self.submit(rank) | self.say(rank) | self.hear(rank);
        }
        busy | self.take_passed()
    }

    fn settle(&mut self) {
        while self.turn() {}
    }

    /// Nothing is under way any more; a child that lacks something leaves its parent at some time.
    fn end(&mut self) {
        self.settle();
        self.attach();
        self.settle();
        // It may be asked for, or left.
        let late = self.late(0, 10_000);
        self.settle();
        if !late.is_empty() {
            self.lose();
        }
        self.settle();
        for reader in &self.readers.0 {
            assert!(reader.open.is_empty(), "worker {} waits for {:?}", reader.rank, reader.open);
            for (local, (it, held)) in self.home.published.iter().zip(&reader.held).enumerate() {
                assert!(
                    held.0 == it.changed && held.1 == it.version,
                    "worker {} holds {held:?} of chunk {local}, expected {it:?}",
                    reader.rank
                );
            }
        }
    }
}

#[test]
fn who_stands_at_its_parent_is_sent_no_value_by_the_home_until_it_has_left() {
    let mut rig = Rig::new();
    rig.route(true);
    rig.settle();
    rig.publish(0, true);
    rig.settle();
    let child = |rig: &Rig| (rig.readers.0[1].values, rig.readers.0[1].held[0].1);
    assert_eq!(child(&rig), (CHUNKS + 1, 2), "the home feeds it until it stands there");
    rig.attach();
    rig.settle();
    rig.publish(0, true);
    rig.settle();
    assert_eq!(child(&rig), (CHUNKS + 1, 3), "then its parent does");
    rig.publish(1, true);
    rig.lose();
    rig.settle();
    assert_eq!(child(&rig).0, CHUNKS + 2, "what it lacks, and nothing else");
    rig.end();
}

// The new parent was waited for as long as the old one had been, and then taken for as bad.
#[test]
fn what_a_parent_owed_comes_from_the_home_as_soon_as_another_takes_its_place() {
    for quiet in [300, 20] {
        let mut rig = Rig::attached();
        rig.publish(0, true);
        while rig.submit(PARENT) | rig.say(PARENT) | rig.hear(PARENT) {}
        rig.link.as_mut().unwrap().clear();
        rig.settle();
        assert!(rig.late(0, quiet).is_empty());
        let before = rig.readers.0[CHILD as usize].values;
        rig.hand_over();
        rig.settle();
        // What the old one may have under way is waited for a little.
        assert!(rig.late(quiet, quiet + 160).is_empty());
        rig.settle();
        let child = &rig.readers.0[CHILD as usize];
        assert_eq!((child.values - before, child.held[0].1), (1, 2), "and nothing else");
        assert!(rig.late(quiet + 160, 5_000).is_empty(), "nobody is left for it");
        rig.publish(1, true);
        rig.settle();
        assert_eq!(rig.readers.0[CHILD as usize].values - before, 1, "the new one feeds it");
    }
}

impl Rig {
    /// The child stands at its parent, which keeps something back.
    fn lacking() -> Self {
        let mut rig = Self::attached();
        rig.publish(0, true);
        while rig.submit(PARENT) | rig.say(PARENT) | rig.hear(PARENT) {}
        rig.link.as_mut().unwrap().clear();
        rig.settle();
        rig
    }

    /// The child leaves its parent as late, whose fault that may be.
    fn leave(&mut self) {
        self.link = None;
        self.readers.0[CHILD as usize].mirror.stray(Stripes::first(1), Fault::Perhaps(PARENT));
    }

    fn blame(&mut self) -> Option<Rank> {
        self.readers.0[CHILD as usize].subscriber.take_blame()
    }
}

// Its pushes stood in front of it: nothing came for that, and a parent that hung was taken for as good as the home.
#[test]
fn a_parent_is_judged_from_when_the_home_has_heard_that_it_was_left() {
    let mut rig = Rig::lacking();
    assert!(!rig.late(0, 4_000).is_empty());
    rig.leave();
    rig.late(4_000, 20_000);
    rig.settle();
    assert_eq!(rig.blame(), None);
    rig.late(20_000, 20_100);
    rig.settle();
    assert_eq!(rig.blame(), Some(PARENT));
}

// No verdict came, and so no route.
#[test]
fn a_parent_that_is_left_where_nothing_can_show_whose_fault_that_was_is_nobodys_fault_at_once() {
    let mut rig = Rig::attached();
    rig.leave();
    rig.settle();
    assert_eq!(rig.blame(), Some(NOBODY));
}

// One that hung on what it had said before was never late.
#[test]
fn what_a_parent_raises_again_and_again_is_nothing_that_was_waited_for() {
    let mut rig = Rig::attached();
    rig.publish(1, false);
    while rig.submit(PARENT) | rig.say(PARENT) | rig.hear(PARENT) {}
    let raised = *rig.link.as_ref().unwrap().front().unwrap();
    assert!(matches!(raised, Notice::Raised { .. }), "{raised:?}");
    rig.settle();
    rig.publish(0, true);
    while rig.submit(PARENT) | rig.say(PARENT) | rig.hear(PARENT) {}
    rig.link.as_mut().unwrap().clear();
    rig.settle();
    let is_late = (0..4_000).step_by(100).any(|now| {
        rig.pass_on(raised);
        rig.take_passed();
        !rig.late(now, now + 100).is_empty()
    });
    assert!(is_late);
}

#[test]
fn a_ticket_waits_for_what_the_parent_brings_and_the_home_sends_nothing_for_it() {
    let mut rig = Rig::attached();
    let before = rig.readers.0[1].values;
    rig.publish(0, true);
    rig.publish(4, true);
    rig.readers.0[1].fetch();
    // The home has said everything, and the parent nothing so far.
    while rig.submit(CHILD) | rig.say(CHILD) | rig.hear(CHILD) {}
    assert_eq!(rig.readers.0[1].open.len(), 1);
    rig.settle();
    assert!(rig.readers.0[1].open.is_empty() && rig.readers.0[1].values == before);
    // One that is not to be had of the parent comes from the home in the end.
    rig.publish(1, true);
    while rig.submit(PARENT) | rig.say(PARENT) | rig.hear(PARENT) {}
    rig.link.as_mut().unwrap().clear();
    rig.readers.0[1].fetch();
    rig.settle();
    assert_eq!(rig.readers.0[1].open.len(), 1);
    rig.end();
}

#[test]
fn what_is_fetched_for_the_first_time_comes_from_the_home_whoever_feeds_it_otherwise() {
    let mut rig = Rig::new();
    rig.publish(0, true);
    rig.settle();
    let child = &mut rig.readers.0[CHILD as usize];
    (child.mirror, child.subscriber) = {
        let fresh = Reader::new(CHILD);
        (fresh.mirror, fresh.subscriber)
    };
    rig.route(true);
    rig.settle();
    rig.attach();
    rig.settle();
    rig.readers.0[1].fetch();
    rig.settle();
    assert!(rig.readers.0[1].open.is_empty());
    rig.end();
}

// What it held by the old connection was taken for held on the new one, and a worker that left ended the job.
#[test]
fn one_that_has_left_says_nothing_of_parents_on_its_next_connection() {
    let mut rig = Rig::attached();
    rig.publish(0, true);
    rig.settle();
    rig.lose();
    let mirror = &mut rig.readers.0[CHILD as usize].mirror;
    mirror.submit(Submission::Leave);
    let (taken, _) = mirror.progress();
    mirror.connect();
    mirror.hear(taken, &Notice::Taken, |_| 0).unwrap();
    let mut due = Vec::new();
    while let Some(frame) = mirror.due() {
        due.push(frame.submission);
        mirror.sent();
    }
    assert_eq!(due, [Submission::Leave]);
}

#[test]
fn a_parent_that_brings_old_values_one_by_one_keeps_nothing_back_for_ever() {
    const PUBLISHED: usize = 7;
    let mut rig = Rig::attached();
    for _ in 0..PUBLISHED {
        (0..CHUNKS).for_each(|local| rig.publish(local, true));
        while rig.submit(PARENT) | rig.say(PARENT) | rig.hear(PARENT) {}
        // The home says what stands.
        while rig.submit(CHILD) | rig.say(CHILD) | rig.hear(CHILD) {}
    }
    let passed: Vec<Notice> = rig.link.as_ref().unwrap().iter().copied().collect();
    assert_eq!(passed.len(), PUBLISHED * CHUNKS);
    let mirror = &mut rig.readers.0[CHILD as usize].mirror;
    let mut told = 0;
    for (round, old) in (0..).zip(passed.chunks(CHUNKS)).take(PUBLISHED - 1) {
        for notice in old {
            assert_ne!(
                mirror.hear_passed(notice, 64),
                Effect::Nothing,
                "something of each chunk goes on coming"
            );
        }
        // Whether it is late is not asked here: it may keep back so little that it is not.
        let _ = mirror.late(Duration::from_secs(31 * round));
        while let Some(frame) = mirror.due() {
            mirror.sent();
            told += usize::from(matches!(frame.submission, Submission::Holds { .. }));
        }
    }
    assert!(told > 0);
}

#[test]
fn what_a_parent_repeats_changes_nothing() {
    let mut rig = Rig::attached();
    rig.publish(0, true);
    rig.publish(1, false);
    while rig.submit(PARENT) | rig.say(PARENT) | rig.hear(PARENT) {}
    let passed: Vec<Notice> = rig.link.as_ref().unwrap().iter().copied().collect();
    assert!(matches!(passed[..], [Notice::Value { .. }, Notice::Raised { .. }]), "{passed:?}");
    rig.settle();
    rig.publish(0, true);
    rig.publish(1, false);
    rig.settle();
    for notice in passed {
        assert_eq!(rig.readers.0[1].mirror.hear_passed(&notice, 64), Effect::Nothing, "{notice:?}");
    }
    rig.end();
}

#[test]
fn versions_of_what_a_child_does_not_hold_are_not_raised() {
    let mut rig = Rig::attached();
    rig.publish(0, true);
    while rig.submit(PARENT) | rig.say(PARENT) | rig.hear(PARENT) {}
    rig.link.as_mut().unwrap().clear();
    rig.publish(0, false);
    rig.settle();
    assert_eq!(rig.readers.0[1].held[0].1, 1, "the value did not come");
    rig.end();
}

#[test]
fn a_tensor_that_not_all_have_asked_for_goes_to_each_from_the_home() {
    let mut rig = Rig::past_trees();
    rig.publish(0, true);
    rig.link.as_mut().unwrap().clear();
    rig.settle();
    assert_eq!(rig.readers.0[1].held[0].1, 2);
    let before = rig.readers.0[1].values;
    for by_trees in [true, false] {
        rig.go_by_trees(by_trees);
        rig.publish(2, true);
        rig.settle();
    }
    assert!(rig.readers.0[1].values > before, "once it goes by trees no more, the home sends it");
    rig.end();
}

#[test]
fn what_the_home_sends_to_one_that_borrows_is_not_held_before_it_stands_there() {
    let mut rig = Rig::attached();
    rig.borrow();
    assert!(rig.borrows);
    // It is sent something nevertheless, as if it had said that it lacks it.
    rig.publish(2, true);
    let holds = Submission::Holds { tensor: W, first: 0, epoch: 1, positions: [1; 6] };
    let at_home = (&rig.machine, &mut rig.overlay);
    let child = &mut rig.readers.0[CHILD as usize];
    child.subscriber.ask(PeerId::worker(CHILD), &holds, false, at_home, &rig.home).unwrap();
    child.fetch();
    while rig.submit(CHILD) | rig.say(CHILD) | rig.hear(CHILD) {}
    let child = &rig.readers.0[CHILD as usize];
    assert_eq!((child.held[2].1, child.open.len()), (1, 1), "the ticket waits until it stands there");
    // It never does, as the parent has gone. The home believes that it has sent it.
    rig.lose();
    rig.settle();
    assert_eq!(rig.readers.0[CHILD as usize].held[2].1, 2);
    rig.end();
}

#[test]
fn what_was_being_written_where_it_was_borrowed_is_sent_whole_and_nothing_else_is() {
    let mut rig = Rig::attached();
    rig.borrow();
    rig.publish(0, true);
    rig.publish(1, true);
    rig.settle();
    assert_eq!(rig.readers.0[CHILD as usize].held[1].1, 2);
    let before = rig.readers.0[CHILD as usize].values;
    rig.give_back(Some(1));
    rig.lose();
    rig.settle();
    let child = &rig.readers.0[CHILD as usize];
    assert_eq!((child.values - before, child.held[1].1), (1, 2));
    rig.end();
}

// The home was told only by who left that parent: the next was blamed for what nobody sent.
#[test]
fn what_was_being_written_is_sent_whole_also_where_another_parent_takes_its_lenders_place() {
    let hand_over = |rig: &mut Rig| rig.hand_over();
    let attach = |rig: &mut Rig| rig.readers.0[CHILD as usize].mirror.attach(Stripes::first(1));
    for (goes_on, content) in [(hand_over as fn(&mut Rig), false), (attach, true)] {
        let mut rig = Rig::attached();
        rig.borrow();
        // It was rewriting what the child held, or something new.
        rig.publish(1, content);
        rig.settle();
        let before = rig.readers.0[CHILD as usize].values;
        rig.give_back(Some(1));
        goes_on(&mut rig);
        rig.settle();
        let child = &rig.readers.0[CHILD as usize];
        assert_eq!((child.values - before, child.held[1].1, child.mirror.lacks()), (1, 2, false));
        assert!(rig.late(0, 5_000).is_empty(), "nobody is to blame");
        rig.end();
    }
}

#[test]
fn no_ticket_comes_back_before_what_was_being_written_has_come_again() {
    let mut rig = Rig::attached();
    rig.borrow();
    rig.publish(1, true);
    rig.settle();
    rig.readers.0[CHILD as usize].fetch();
    // The home has said what is to be held, which it was.
    while rig.submit(CHILD) | rig.say(CHILD) {}
    let is_ticket = |it: &(u64, Said)| matches!(it.1, Said::Notice(Notice::Fetched { .. }));
    while !rig.readers.0[CHILD as usize].to_mirror.front().is_none_or(is_ticket) {
        rig.hear(CHILD);
    }
    rig.give_back(Some(1));
    while rig.hear(CHILD) {}
    assert_eq!(rig.readers.0[CHILD as usize].open.len(), 1);
    rig.lose();
    rig.settle();
    assert!(rig.readers.0[CHILD as usize].open.is_empty());
    rig.end();
}

/// Beyond what anybody has published, and what is not what the home has.
#[test]
fn what_a_lender_said_that_was_not_so_counts_no_more_once_its_memory_was_left() {
    let beyond = |_: Stands| Stands { version: 1 << 40, steps: 0, publication: 1 << 60, content: 1 << 60 };
    let other = |it: Stands| Stands { content: it.publication, ..it };
    let lies: [fn(Stands) -> Stands; 2] = [beyond, other];
    for (lie, leaves) in lies.into_iter().flat_map(|lie| [(lie, true), (lie, false)]) {
        let mut rig = Rig::attached();
        (0..CHUNKS).for_each(|local| rig.publish(local, false));
        rig.settle();
        rig.borrow();
        let (before, stands) = (rig.readers.0[1].values, rig.readers.0[0].stands.clone());
        let child = &mut rig.readers.0[CHILD as usize];
        for (chunk, stands) in (0..).zip(stands) {
            // As it says of a chunk that was published anew, with what was published last.
            let lie = lie(Stands { publication: 4, ..stands.unwrap() });
            child.mirror.found(W, chunk, lie).unwrap();
            child.held[chunk as usize] = (0, 0);
        }
        child.mirror.borrow(W, false);
        rig.borrows = false;
        if leaves {
            rig.lose()
        } else {
            rig.hand_over()
        }
        rig.settle();
        let child = &rig.readers.0[CHILD as usize];
        assert_eq!(child.values - before, CHUNKS, "all come whole");
        assert_eq!((child.mirror.least(W), child.mirror.lacks()), (3, false));
        rig.publish(2, true);
        rig.settle();
        assert_eq!(rig.readers.0[CHILD as usize].held[2].1, 3);
        assert!(rig.late(0, 5_000).is_empty());
        rig.end();
    }
}

#[test]
fn what_does_not_go_by_trees_is_not_borrowed_and_not_for_long_where_it_does_no_more() {
    let mut rig = Rig::past_trees();
    rig.borrow();
    assert!(!rig.borrows);
    rig.go_by_trees(true);
    rig.settle();
    rig.borrow();
    assert!(rig.borrows);
    (0..5).for_each(|_| {
        (0..CHUNKS).for_each(|local| rig.publish(local, true));
        rig.settle();
    });
    assert_eq!(rig.readers.0[1].mirror.sent_past().count(), 0);
    rig.home.by_trees = false;
    rig.readers.0.iter_mut().for_each(|reader| reader.subscriber.turned(W, &rig.home));
    (0..5).for_each(|_| {
        (0..CHUNKS).for_each(|local| rig.publish(local, true));
        rig.settle();
    });
    assert_eq!(rig.readers.0[1].mirror.sent_past().collect::<Vec<_>>(), [W]);
    rig.give_back(None);
    rig.settle();
    rig.end();
}

#[derive(Debug, Clone)]
enum Step {
    Borrow,
    GiveBack(usize, bool),
    Publish(usize, bool),
    Route(bool),
    Attach,
    Lose,
    HandOver,
    Drop,
    Fetch(Rank),
    Submit(Rank),
    Say(Rank),
    Hear(Rank),
    Pass,
}

fn step() -> impl Strategy<Value = Step> {
    let rank = || prop_oneof![Just(PARENT), Just(CHILD)];
    prop_oneof![
        4 => (0..CHUNKS, any::<bool>()).prop_map(|(local, changes)| Step::Publish(local, changes)),
        1 => any::<bool>().prop_map(Step::Route),
        2 => Just(Step::Attach),
        2 => Just(Step::Borrow),
        1 => (0..2 * CHUNKS, any::<bool>()).prop_map(|(torn, leaves)| Step::GiveBack(torn, leaves)),
        1 => Just(Step::Lose),
        1 => Just(Step::HandOver),
        1 => Just(Step::Drop),
        2 => rank().prop_map(Step::Fetch),
        6 => rank().prop_map(Step::Submit),
        8 => rank().prop_map(Step::Say),
        8 => rank().prop_map(Step::Hear),
        6 => Just(Step::Pass),
    ]
}

proptest! {
    /// S-3, S-5 and E-1, by whatever way: differences fit, nothing falls, and in the end both hold what stands at the home.
    #[test]
    fn whatever_becomes_of_the_parent_the_child_gets_everything_and_no_difference_against_something_else(
        steps in prop::collection::vec(step(), 0..200)
    ) {
        let mut rig = Rig::new();
        for step in steps {
            match step {
                Step::Publish(local, changes) => rig.publish(local, changes),
                Step::Route(by_parent) => rig.route(by_parent),
                Step::Attach => rig.attach(),
                Step::Borrow => rig.borrow(),
                // Some chunk was being written, or none. It leaves that parent then, for the home or another.
                Step::GiveBack(torn, leaves) => {
                    if rig.borrows {
                        rig.give_back((torn < CHUNKS).then_some(torn));
                        if leaves { rig.lose() } else { rig.hand_over() }
                    }
                }
                Step::Lose => rig.lose(),
                Step::HandOver => rig.hand_over(),
                // A parent that loses something: it never got it, or is no honest one.
                Step::Drop => _ = rig.link.as_mut().and_then(VecDeque::pop_front),
                Step::Fetch(rank) => rig.readers.0[rank as usize].fetch(),
                Step::Submit(rank) => _ = rig.submit(rank),
                Step::Say(rank) => _ = rig.say(rank),
                Step::Hear(rank) => _ = rig.hear(rank),
                Step::Pass => _ = rig.take_passed(),
            }
        }
        rig.end();
    }
}
