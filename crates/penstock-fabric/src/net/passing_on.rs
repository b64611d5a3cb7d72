//! What workers pass on of a home's values, over any link: a worker's *children*, which it feeds, and its *parents*, which feed it.
//!
//! What is passed on is a frame of the home as it was, with the seal by which the child knows that it is the home's. It is kept once
//! for all children, until the last has taken it. A child that takes less than comes holds its parent up: nothing more is read for
//! it meanwhile, and so on up to the home, which sends what is newest when there is room again. One that takes nothing at all is let
//! go after a while, and asks the home.

use super::frames::{FrameReader, FrameWriter, Outgoing, Places, Step};
use super::link::{Got, Interest, Link, Segment};
use penstock_kernels::codec::Codec;
use penstock_proto::Rank;
use penstock_proto::frame::{Body, HEADER_BYTES, Header, Notice};
use penstock_proto::overlay::{Parent, Stripes};
use penstock_proto::seal::Verifier;
use smallvec::{SmallVec, smallvec};
use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::time::Duration;

/// Children of one proxy at most: a plan gives it fewer.
const MOST_CHILDREN: usize = 64;
/// Bytes that wait for one child before nothing more is read for it.
const QUEUED: usize = 16 << 20;
/// How long a child may take nothing of what waits for it.
const STUCK: Duration = Duration::from_millis(500);
/// How long a parent may take to say that it feeds a child: it may have to hear of the child's route first.
const GREETS_WITHIN: Duration = Duration::from_secs(2);
/// Values in one batch: with its seal each is two frames.
const BATCH: usize = 8;

/// A frame that is passed on, with its seal.
pub(super) struct Passed(SmallVec<[([u8; HEADER_BYTES], Box<[u8]>); 2]>);

impl Passed {
    /// `header`: as it came. Its number was its connection's.
    pub(super) fn new(job: u64, seal: &[u8], header: &Header, payload: &[u8]) -> Self {
        let sealing = Header::bare(job, 0, Body::Notice(Notice::Seal)).with_payload(seal);
        let header = Header { sequence: 0, ..*header };
        Self(smallvec![(sealing.encode(), seal.into()), (header.encode(), payload.into())])
    }

    /// The first word to a child: from now on it is fed.
    fn greeting(job: u64) -> Self {
        Self(smallvec![(Header::bare(job, 0, Body::Notice(Notice::Taken)).encode(), Box::default())])
    }

    fn bytes(&self) -> usize {
        self.0.iter().map(|(header, payload)| header.len() + payload.len()).sum()
    }
}

/// One child.
struct Child<L> {
    rank: Rank,
    striping: u32,
    stripes: Stripes,
    greeted: bool,
    link: L,
    writer: FrameWriter,
    queue: VecDeque<Arc<Passed>>,
    /// Bytes of the queue.
    queued: usize,
    readable: bool,
    writable: bool,
    /// Bytes that it took since the last look at the clock, and when it last had taken some, or nothing waited.
    taken: usize,
    moved: Option<Duration>,
}

impl<L: Link> Child<L> {
    fn left(&self) -> usize {
        self.queued + self.writer.held()
    }

    /// Sends what waits, as far as the link takes it; whether it took anything. An error ends it.
    fn send(&mut self) -> io::Result<bool> {
        let before = self.left();
        while self.writable && self.left() > 0 {
            if !self.writer.is_clear() {
                self.writable = self.writer.flush(&mut self.link)?;
                continue;
            }
            let batch: SmallVec<[Arc<Passed>; BATCH]> =
                self.queue.drain(..self.queue.len().min(BATCH)).collect();
            self.queued -= batch.iter().map(|passed| passed.bytes()).sum::<usize>();
            let frames: SmallVec<[Outgoing<'_>; 2 * BATCH]> = batch
                .iter()
                .flat_map(|passed| &passed.0)
                .map(|(header, payload)| (*header, Segment::Own(payload)))
                .collect();
            self.writable = self.writer.send(&mut self.link, &frames)?;
        }
        self.taken += before - self.left();
        Ok(self.left() < before)
    }

    /// Whether it has hung up. It says nothing.
    fn has_ended(&mut self) -> bool {
        if !std::mem::take(&mut self.readable) {
            return false;
        }
        let mut byte = [0];
        !matches!(self.link.read(&mut [IoSliceMut::new(&mut byte)]), Ok(Got::Nothing))
    }

    /// Whether it has taken nothing of what waits for it for long, as of a moment of the owner's clock.
    fn is_stuck(&mut self, now: Duration) -> bool {
        let left = self.left();
        let moved = self.moved.get_or_insert(now);
        if std::mem::take(&mut self.taken) > 0 || left == 0 {
            *moved = now;
        }
        now.saturating_sub(*moved) > STUCK
    }
}

/// Those that are fed here.
pub(super) struct Children<L>(Vec<Child<L>>);

impl<L> Default for Children<L> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<L: Link> Children<L> {
    /// One comes to be fed these stripes. It has left what it was fed by before.
    pub(super) fn take_in(&mut self, rank: Rank, (striping, stripes): (u32, Stripes), link: L) {
        self.0.retain(|child| child.rank != rank || child.stripes.and(stripes).is_empty());
        if self.0.len() < MOST_CHILDREN {
            let (writer, queue) = (FrameWriter::default(), VecDeque::new());
            let (readable, writable, queued, taken, moved) = (true, true, 0, 0, None);
            let greeted = false;
            self.0.push(Child {
                rank,
                striping,
                stripes,
                greeted,
                link,
                writer,
                queue,
                queued,
                readable,
                writable,
                taken,
                moved,
            });
        }
    }

    /// Feeds those that speak of this cut into stripes. One of an older cut has nothing to wait for, one of a newer one waits until
    /// that is known here too.
    pub(super) fn greet(&mut self, job: u64, striping: u32) {
        self.0.retain(|child| child.striping >= striping);
        for child in self.0.iter_mut().filter(|child| child.striping == striping && !child.greeted) {
            child.greeted = true;
            let greeting = Arc::new(Passed::greeting(job));
            child.queued += greeting.bytes();
            child.queue.push_back(greeting);
        }
    }

    /// Whether one is fed this stripe.
    pub(super) fn any_of(&self, stripe: usize) -> bool {
        self.0.iter().any(|child| child.greeted && child.stripes.has(stripe))
    }

    /// Passes something of this stripe on.
    pub(super) fn pass_on(&mut self, stripe: usize, passed: Passed) {
        let passed = Arc::new(passed);
        for child in self.0.iter_mut().filter(|child| child.greeted && child.stripes.has(stripe)) {
            child.queued += passed.bytes();
            child.queue.push_back(Arc::clone(&passed));
        }
    }

    /// Whether more waits for one than may.
    pub(super) fn is_full(&self) -> bool {
        self.0.iter().any(|child| child.queued > QUEUED)
    }

    /// Whether something waits for one.
    pub(super) fn has_due(&self) -> bool {
        self.0.iter().any(|child| child.left() > 0)
    }

    /// Whether there may be something to do at once.
    pub(super) fn has_work(&self) -> bool {
        self.0.iter().any(|child| child.readable || child.writable && child.left() > 0)
    }

    /// Sends what waits; whether anything was taken. Those that have hung up are let go.
    pub(super) fn send(&mut self) -> bool {
        let mut busy = false;
        self.0.retain_mut(|child| {
            if child.has_ended() {
                busy = true;
                return false;
            }
            match child.send() {
                Ok(sent) => {
                    busy |= sent;
                    true
                }
                Err(_) => false,
            }
        });
        busy
    }

    /// Lets go those that have taken nothing for long.
    pub(super) fn look(&mut self, now: Duration) {
        self.0.retain_mut(|child| !child.is_stuck(now));
    }

    /// Their links may be ready.
    pub(super) fn ready(&mut self) {
        self.0.iter_mut().for_each(|child| (child.readable, child.writable) = (true, true));
    }

    /// The links, with what has to be waited for.
    pub(super) fn links(&self) -> impl Iterator<Item = (&L, Interest)> {
        self.0.iter().map(|child| {
            let Interest { read, write } = child.link.interest(child.left() > 0);
            (&child.link, Interest { read, write: write && !child.writable })
        })
    }
}

/// One that feeds this worker.
pub(super) struct Feeder<L> {
    pub(super) parent: Parent,
    /// Whether it has said that it does; since when it has been waited for.
    pub(super) greeted: bool,
    pub(super) since: Option<Duration>,
    /// What it feeds.
    pub(super) stripes: Stripes,
    link: L,
    reader: FrameReader<Option<&'static dyn Codec>>,
    /// Of the frame that comes next.
    seal: Vec<u8>,
    readable: bool,
}

/// What a look at one brought.
pub(super) enum Fed {
    /// A frame of the home, and what decodes it, if its tensor is known here; its payload is the reader's.
    Frame(Header, Option<&'static dyn Codec>),
    /// It feeds from now on.
    Greeting,
    /// A seal, or part of something.
    Part,
    /// Nothing now.
    Nothing,
    /// It feeds no more: why.
    Over(String),
}

impl<L: Link> Feeder<L> {
    pub(super) fn new(parent: Parent, stripes: Stripes, link: L, read: usize) -> Self {
        let reader = FrameReader::reading_ahead(read);
        Self { parent, greeted: false, since: None, stripes, link, reader, seal: Vec::new(), readable: true }
    }

    pub(super) fn stripes(&self) -> Stripes {
        self.stripes
    }

    /// The next frame that it has, if it is the home's.
    pub(super) fn hear(
        &mut self,
        places: &mut impl Places<Place = Option<&'static dyn Codec>>,
        verifier: &mut Verifier,
    ) -> Fed {
        if !self.readable {
            return Fed::Nothing;
        }
        match self.reader.next(&mut self.link, places) {
            Step::Frame(header, codec) => {
                let greets = header.body == Body::Notice(Notice::Taken);
                if greets == self.greeted {
                    return Fed::Over("it sent something else than a greeting and values".to_owned());
                }
                if greets {
                    self.greeted = true;
                    return Fed::Greeting;
                }
                if header.body == Body::Notice(Notice::Seal) {
                    self.seal.clear();
                    self.seal.extend_from_slice(self.reader.payload());
                    return Fed::Part;
                }
                match verifier.check(&self.seal, &header, self.reader.payload()) {
                    Ok(()) => Fed::Frame(header, codec),
                    Err(forged) => Fed::Over(forged.to_string()),
                }
            }
            Step::Header => Fed::Part,
            Step::Nothing => {
                self.readable = false;
                Fed::Nothing
            }
            Step::Ended(why) | Step::Broke(why) => Fed::Over(why),
        }
    }

    /// Whether it has not greeted for long, as of a moment of the owner's clock.
    pub(super) fn is_silent(&mut self, now: Duration) -> bool {
        !self.greeted && now.saturating_sub(*self.since.get_or_insert(now)) > GREETS_WITHIN
    }

    pub(super) fn seal(&self) -> &[u8] {
        &self.seal
    }

    pub(super) fn payload(&self) -> &[u8] {
        self.reader.payload()
    }

    pub(super) fn ready(&mut self) {
        self.readable = true;
        self.reader.look_again();
    }

    pub(super) fn is_readable(&self) -> bool {
        self.readable
    }

    pub(super) fn link(&self) -> &L {
        &self.link
    }
}
