//! A home, a lender and its borrower, over links and memory that the test holds in its hands.

use penstock_fabric::memory::Unread;
use penstock_fabric::net::link::{Got, Link, Segment};
use penstock_fabric::net::remote_shard::{
    GoingBack, Kept, Left, Limits, Looked, Mirrored, NewChild, RemoteShard, Submitter, Value,
};
use penstock_fabric::publish::{Published, Torn};
use penstock_kernels::Foreign;
use penstock_kernels::codec::Undecodable;
use penstock_proto::encoding::Agreed;
use penstock_proto::factors::LowRank;
use penstock_proto::frame::{Body, HEADER_BYTES, Header, Notice};
use penstock_proto::overlay::lending::Rendezvous;
use penstock_proto::overlay::{Feed, Parent, Pass, Route, WHOLE};
use penstock_proto::remote::mirror::Stands;
use penstock_proto::seal::{Scope, Sealer, Verifier};
use penstock_proto::submission::{NO_MORE, NO_TICKET, Submission};
use penstock_proto::{Rank, TensorId};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::rc::Rc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

pub(super) const W: TensorId = 3;
const CHUNK: usize = 64;
const CHUNKS: [u32; 3] = [0, 1, 2];
const SCOPE: Scope = Scope { job: 7, server: 1, shard: 2 };
pub(super) const LENDER: Rank = 0;
pub(super) const BORROWER: Rank = 1;
pub(super) const NAME: Rendezvous = [5; 16];

type Bytes = Rc<RefCell<VecDeque<u8>>>;

/// One end of a link in memory. The other hears that it has gone.
pub(super) struct End {
    comes: Bytes,
    goes: Bytes,
    other: Rc<()>,
}

pub(super) fn pipe() -> (End, End) {
    let (one, other, both) = (Bytes::default(), Bytes::default(), Rc::new(()));
    let there = End { comes: Rc::clone(&other), goes: Rc::clone(&one), other: Rc::clone(&both) };
    (End { comes: one, goes: other, other: both }, there)
}

impl Link for End {
    fn read(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<Got> {
        let mut comes = self.comes.borrow_mut();
        let room = parts.iter_mut().flat_map(|part| part.iter_mut());
        let came = room.map_while(|byte| comes.pop_front().map(|came| *byte = came)).count();
        Ok(match came {
            0 if Rc::strong_count(&self.other) == 1 => Got::End,
            0 => Got::Nothing,
            came => Got::Bytes(came),
        })
    }

    fn write(&mut self, parts: &[Segment<'_>]) -> io::Result<usize> {
        let bytes = Segment::copied(parts, usize::MAX);
        self.goes.borrow_mut().extend(&bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    fn holds_output(&self) -> bool {
        false
    }

    fn resize(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
}

/// What frames that came at an end say, which have no payload.
pub(super) fn bodies(end: &mut End) -> Vec<Body> {
    let bytes: Vec<u8> = end.comes.borrow_mut().drain(..).collect();
    bytes.as_chunks::<HEADER_BYTES>().0.iter().map(|header| Header::decode(header).unwrap().body).collect()
}

/// What stands of each chunk in a worker's memory.
pub(super) type Memory = Rc<RefCell<Vec<Option<Stands>>>>;

/// A mirror that keeps only the numbers.
pub(super) struct Mirror {
    pub(super) own: Memory,
    pub(super) offered: Option<Memory>,
    loan: Option<Memory>,
    pub(super) progress: u64,
    /// What keeps readers from what it borrows; whether a chunk is being written whenever it goes back.
    pub(super) unread: Option<Unread>,
    pub(super) torn: bool,
    /// How often it went back, and what happens while it does, and when it has shown that it lives.
    pub(super) went_back: usize,
    pub(super) meanwhile: Option<Box<dyn FnOnce()>>,
    pub(super) behind: Option<Box<dyn FnOnce()>>,
}

impl Mirror {
    fn new() -> Self {
        let own = Rc::new(RefCell::new(vec![None; CHUNKS.len()]));
        Self {
            own,
            offered: None,
            loan: None,
            progress: 0,
            torn: false,
            unread: None,
            went_back: 0,
            meanwhile: None,
            behind: None,
        }
    }

    /// The version of each chunk as its worker sees it.
    pub(super) fn seen(&self) -> Vec<Option<u64>> {
        let memory = self.loan.as_ref().unwrap_or(&self.own);
        memory.borrow().iter().map(|stands| stands.map(|stands| stands.version)).collect()
    }
}

impl Mirrored for Mirror {
    fn chunks(&self) -> &[u32] {
        &CHUNKS
    }

    fn values(&self) -> &Agreed {
        &Agreed::RAW
    }

    fn contributions(&self) -> &Agreed {
        &Agreed::RAW
    }

    fn bytes(&self, chunk: u32) -> Option<usize> {
        CHUNKS.contains(&chunk).then_some(CHUNK)
    }

    fn state_bytes(&self, _: u32) -> Option<usize> {
        None
    }

    fn contribution(&self, _: u32) -> Foreign<'_> {
        unreachable!("nobody pushes")
    }

    fn low_rank(&self) -> Option<LowRank> {
        None
    }

    fn range_of(&self, _: u32) -> Range<u64> {
        unreachable!("nobody pushes")
    }

    fn right_factor(&self, _: u32, _: Range<usize>) -> Foreign<'_> {
        unreachable!("nobody pushes")
    }

    fn left_factor(&self, _: u32, _: u32) -> Foreign<'_> {
        unreachable!("nobody pushes")
    }

    fn is_broadcast(&self) -> bool {
        true
    }

    fn is_lane_exposed(&self) -> bool {
        false
    }

    fn wants(&self) -> bool {
        false
    }

    fn wanted(&self) -> u64 {
        0
    }

    fn is_borrowed(&self) -> bool {
        self.loan.is_some()
    }

    fn look_there(&self, chunk: u32) -> Result<Option<Stands>, Torn> {
        let memory = self.loan.as_ref().or(self.offered.as_ref());
        Ok(memory.and_then(|memory| memory.borrow()[chunk as usize]))
    }

    fn take_unread(&mut self) -> Option<Unread> {
        self.unread
    }

    fn borrow(&mut self, progress: u64) -> Result<bool, String> {
        self.loan = self.offered.take();
        self.progress = progress;
        Ok(self.loan.is_some())
    }

    fn take_back(
        &mut self,
        way: &mut GoingBack<'_>,
        _: &dyn Fn(u32, &Stands) -> bool,
    ) -> Result<Vec<(u32, Kept)>, String> {
        let Some(lent) = self.loan.take() else { return Ok(Vec::new()) };
        self.went_back += 1;
        self.meanwhile.take().into_iter().for_each(|happens| happens());
        way.wrote(1 << 30);
        self.behind.take().into_iter().for_each(|happens| happens());
        let mut kept =
            lent.borrow().iter().map(|stands| stands.map_or(Kept::Lost, Kept::Whole)).collect::<Vec<_>>();
        if self.torn {
            kept[0] = Kept::Lost;
        }
        // The lender may write there at any time.
        *self.own.borrow_mut() = lent.borrow().clone();
        Ok(CHUNKS.into_iter().zip(kept).collect())
    }

    fn publish(&mut self, chunk: u32, value: &Value<'_>, _: Published) -> Result<(), Undecodable> {
        let Body::Notice(Notice::Value { version, steps, publication, content, .. }) = value.header.body
        else {
            unreachable!("only values come")
        };
        self.own.borrow_mut()[chunk as usize] = Some(Stands { version, steps, publication, content });
        Ok(())
    }

    fn raise(&mut self, _: u32, _: Published) {
        unreachable!("nothing is raised")
    }

    fn progress(&mut self, progress: u64) {
        self.progress = progress;
    }

    fn state(&mut self, _: u32, _: &[u8]) {}

    fn folded(&mut self, _: u64) {}

    fn fetched(&mut self, _: u64) {}
}

/// It asks for the value once.
pub(super) struct Asks(Option<Submission>);

impl Submitter for Asks {
    fn pop(&mut self) -> Option<Submission> {
        self.0.take()
    }

    fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    fn tell(&self, _: u32) {}
}

pub(super) type Shard = RemoteShard<Mirror, Asks, End>;

/// A worker's line to the home, as that has it.
struct Line {
    link: End,
    came: Vec<u8>,
    /// Frames that it has sent so far, and that the home has heard.
    taken: u64,
    /// Whether others feed it; parents that it has left, as it said.
    fed: bool,
    blamed: Vec<Rank>,
    left: bool,
}

impl Line {
    fn say(&mut self, notice: Notice, payload: &[u8]) {
        let header = Header::bare(SCOPE.job, self.taken, Body::Notice(notice));
        let header = if payload.is_empty() { header } else { header.with_payload(payload) };
        self.link.write(&[Segment::Own(&header.encode()), Segment::Own(payload)]).unwrap();
    }
}

/// All of them.
pub(super) struct Rig {
    sealer: Sealer,
    lines: [Line; 2],
    pub(super) workers: [Shard; 2],
    /// Where others come in at each.
    pub(super) entrances: [Sender<NewChild<End>>; 2],
    pub(super) version: u64,
    epoch: u32,
    striping: u32,
    /// Whether values go by trees; whether the home sends nothing more.
    pub(super) by_trees: bool,
    pub(super) is_mute: bool,
    pub(super) now: Duration,
}

impl Rig {
    /// Two workers that have the first version, each of the home.
    pub(super) fn new() -> Self {
        let sealer = Sealer::new(&[1; 32], SCOPE);
        let ends = [pipe(), pipe()];
        let mut lines = Vec::new();
        let mut workers = Vec::new();
        let mut entrances = Vec::new();
        for (here, there) in ends {
            let fetch = Submission::Fetch { tensor: W, state: false, version: 0, ticket: NO_TICKET };
            let mut shard =
                RemoteShard::new(SCOPE.job, Asks(Some(fetch)), Limits { unsent: 4096, read: 4096 });
            let (entrance, newcomers) = channel();
            shard.open_to(newcomers);
            shard.trust(Verifier::new(&sealer.key(), SCOPE).unwrap());
            shard.declare(W, Mirror::new());
            shard.attach(there);
            workers.push(shard);
            entrances.push(entrance);
            let mut line =
                Line { link: here, came: Vec::new(), taken: 0, fed: false, blamed: Vec::new(), left: false };
            line.say(Notice::Taken, &[]);
            lines.push(line);
        }
        let (Ok(lines), Ok(workers), Ok(entrances)) =
            (lines.try_into(), workers.try_into(), entrances.try_into())
        else {
            unreachable!("two of each")
        };
        let (version, epoch, striping, now) = (0, 0, 0, Duration::from_secs(1));
        let mut rig = Self {
            sealer,
            lines,
            workers,
            entrances,
            version,
            epoch,
            striping,
            by_trees: false,
            is_mute: false,
            now,
        };
        rig.publish();
        rig.settle();
        rig
    }

    /// The borrower stands at the lender, and reads what that has.
    pub(super) fn borrowing() -> Self {
        let mut rig = Self::new();
        rig.by_trees = true;
        rig.route(1, &[1]);
        rig.connect(NAME);
        rig.settle();
        rig.stands();
        rig.settle();
        rig.offer();
        assert!(rig.borrow());
        rig
    }

    pub(super) fn borrower(&mut self) -> &mut Shard {
        &mut self.workers[BORROWER as usize]
    }

    pub(super) fn mirror(&mut self, of: Rank) -> &mut Mirror {
        self.workers[of as usize].tensor_mut(W).unwrap()
    }

    /// The lender offers its memory, as it does over a socket of the host.
    pub(super) fn offer(&mut self) {
        let memory = Rc::clone(&self.mirror(LENDER).own);
        self.mirror(BORROWER).offered = Some(memory);
    }

    /// The borrower reads there, and says so.
    pub(super) fn borrow(&mut self) -> bool {
        let borrows = self.borrower().borrow(W, LENDER);
        borrows && self.workers[LENDER as usize].lend((BORROWER, &NAME), W)
    }

    /// Who feeds each worker from now on: the home the lender, and the lender the borrower the stripes of these numbers; of others, the
    /// home.
    pub(super) fn route(&mut self, striping: u32, by_lender: &[u8]) {
        self.epoch += 1;
        if std::mem::replace(&mut self.striping, striping) != striping {
            self.lines.iter_mut().for_each(|line| line.fed = false);
        }
        for rank in [LENDER, BORROWER] {
            let feed = |by: &u8| {
                let pass = Pass::new(&[0; 16], SCOPE.server, BORROWER);
                let parent = Parent { rank: LENDER, address: "10.0.0.1:1".parse().unwrap(), pass };
                Feed { parent: Some(parent).filter(|_| *by == 1 && rank == BORROWER), depth: 1 }
            };
            let feeds: Vec<Feed> = by_lender.iter().map(feed).collect();
            let shares = vec![WHOLE / feeds.len() as u32; feeds.len()];
            let route = Route { epoch: self.epoch, striping, shares, feeds };
            self.lines[rank as usize].say(Notice::Route, &route.encode());
        }
        self.look();
    }

    /// The borrower connects to those that its home has named; how many.
    pub(super) fn connect(&mut self, name: Rendezvous) -> usize {
        let wishes = self.borrower().take_wishes();
        for wish in &wishes {
            let (child, parent) = pipe();
            let came = NewChild {
                rank: BORROWER,
                striping: wish.striping,
                stripes: wish.stripes,
                rendezvous: Some(name),
                link: parent,
            };
            self.entrances[LENDER as usize].send(came).unwrap();
            self.borrower().parent_came(wish, Ok(child));
        }
        wishes.len()
    }

    /// The home publishes a version of all chunks.
    pub(super) fn publish(&mut self) {
        self.version += 1;
        for rank in [LENDER, BORROWER] {
            if self.by_trees && self.lines[rank as usize].fed {
                self.stands();
            } else {
                CHUNKS.into_iter().for_each(|chunk| self.send(rank, chunk));
            }
        }
    }

    /// The home sends a chunk as it is now.
    fn send(&mut self, rank: Rank, chunk: u32) {
        if self.is_mute {
            return;
        }
        let (version, publication) = (self.version, 2 * self.version);
        let (tensor, steps, base, content) = (W, version, 0, publication);
        let notice = Notice::Value { tensor, chunk, version, steps, publication, base, content };
        let payload = [version as u8; CHUNK];
        let header = Header::bare(SCOPE.job, 0, Body::Notice(notice)).with_payload(&payload);
        let mut seal = Vec::new();
        self.sealer.seal(&[self.sealer.leaf(&header, &payload)], |_, proof| seal = proof.to_vec());
        let line = &mut self.lines[rank as usize];
        line.say(Notice::Seal, &seal);
        line.say(notice, &payload);
    }

    /// The home tells the borrower what it should hold of its only stripe.
    pub(super) fn stands(&mut self) {
        let digest = (2 * self.version + self.version + 1) * CHUNKS.len() as u64;
        self.lines[BORROWER as usize].say(Notice::Standing { tensor: W, stripe: 0, digest }, &[]);
    }

    /// The home hears what workers say; whether there was anything.
    fn hear(&mut self, rank: Rank) -> bool {
        let line = &mut self.lines[rank as usize];
        let mut parts = [0; 4096];
        while let Ok(Got::Bytes(came)) = line.link.read(&mut [IoSliceMut::new(&mut parts)]) {
            line.came.extend(&parts[..came]);
        }
        let mut busy = false;
        while let Some((header, rest)) = self.lines[rank as usize].came.split_first_chunk::<HEADER_BYTES>() {
            busy = true;
            let header = Header::decode(header).unwrap();
            assert_eq!(header.length, 0, "nobody pushes");
            self.lines[rank as usize].came = rest.to_vec();
            let line = &mut self.lines[rank as usize];
            let Body::Submission { submission, .. } = header.body else { continue };
            line.taken += 1;
            match submission {
                Submission::Leave => line.left = true,
                Submission::Attached { .. } => line.fed = true,
                Submission::Strayed { stripes, parent, .. } => {
                    line.fed &= stripes.is_empty();
                    line.blamed.push(parent);
                }
                Submission::Holds { first, positions, .. } => {
                    let held = (first..).zip(positions).take_while(|(_, position)| *position != NO_MORE);
                    let lacks =
                        held.filter(|(_, position)| *position < 2 * self.version || *position > NO_MORE - 9);
                    lacks.collect::<Vec<_>>().into_iter().for_each(|(chunk, _)| self.send(rank, chunk));
                }
                _ => {}
            }
        }
        busy
    }

    /// Each worker takes what has come; whether there was anything.
    pub(super) fn look(&mut self) -> bool {
        let mut busy = false;
        for worker in &mut self.workers {
            worker.ready(true, true);
            worker.links_ready();
            let Looked { busy: did, over } = worker.look(32, |_| {});
            assert_eq!(over, None);
            busy |= did;
        }
        busy
    }

    pub(super) fn settle(&mut self) {
        while self.look() | self.hear(LENDER) | self.hear(BORROWER) {}
    }

    /// So much time passes, in which both look at the clock.
    pub(super) fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now += Duration::from_millis(20);
            let now = self.now;
            self.workers.iter_mut().for_each(|worker| worker.tick(now));
            self.settle();
        }
    }

    /// Whom the borrower has said that it left, and whom it has left.
    pub(super) fn left(&mut self) -> (Vec<Rank>, Vec<Left>) {
        (std::mem::take(&mut self.lines[BORROWER as usize].blamed), self.borrower().take_left())
    }

    /// Whether the borrower has left the job.
    pub(super) fn said_goodbye(&self) -> bool {
        self.lines[BORROWER as usize].left
    }

    /// Whether the home feeds the borrower itself.
    pub(super) fn is_fed_by_home(&self) -> bool {
        !self.lines[BORROWER as usize].fed
    }

    /// What the borrower's worker sees.
    pub(super) fn seen(&self) -> Vec<Option<u64>> {
        self.workers[BORROWER as usize].tensor(W).unwrap().seen()
    }

    /// All as the home has it now.
    pub(super) fn all(&self) -> Vec<Option<u64>> {
        vec![Some(self.version); CHUNKS.len()]
    }
}
