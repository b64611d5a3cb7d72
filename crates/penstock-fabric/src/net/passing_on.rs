//! What workers pass on of a home's values, over any link: a worker's *children*, which it feeds. Its parents are `feeder.rs`'s.
//!
//! What is passed on is a frame of the home as it was, with the seal by which the child knows that it is the home's. It is kept once
//! for all children, until the last has taken it. Where much waits for a child, nothing more of its stripes is read of a parent, and
//! so on up that tree; what the home itself sends is read all the same. A child for which too much waits, or that takes nothing or too
//! little for long, is let go, and asks the home.

use super::frames::{FrameWriter, Outgoing};
use super::link::{Got, Interest, Link, Segment};
use penstock_proto::frame::{Body, HEADER_BYTES, Header, Notice};
use penstock_proto::message::MAX_WORKERS;
use penstock_proto::overlay::Stripes;
use penstock_proto::overlay::lending::Rendezvous;
use penstock_proto::{Rank, TensorId};
use smallvec::{SmallVec, smallvec};
use std::collections::{BTreeSet, VecDeque};
use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::time::Duration;

/// Children of one proxy at most: a plan may give it all other workers.
const MOST_CHILDREN: usize = MAX_WORKERS as usize;
/// Bytes that wait for one child before nothing more is read for it of a parent.
const QUEUED: usize = 16 << 20;
/// Bytes at which it is let go. What the home itself sends is read whatever waits: it brings more than values.
const MOST_QUEUED: usize = 16 * QUEUED;
/// How long half of that may wait without an end: a child that is so slow would hold up all others.
const CROWDED: Duration = Duration::from_secs(2);
/// How long a child may take nothing of what waits for it.
const STUCK: Duration = Duration::from_millis(500);
/// How long a child may wait for a cut that is not known here.
const WAITS_WITHIN: Duration = Duration::from_secs(10);
/// Values in one batch: with its seal each is two frames.
const BATCH: usize = 8;

/// A frame that is passed on, with its seal.
pub(super) struct Passed(SmallVec<[Frame; 2]>);

/// A header and its payload.
type Frame = ([u8; HEADER_BYTES], Box<[u8]>);

impl Passed {
    /// `header`: as it came. Its number was its connection's.
    pub(super) fn new(job: u64, seal: &[u8], header: &Header, payload: &[u8]) -> Self {
        let sealing = Header::bare(job, 0, Body::Notice(Notice::Seal)).with_payload(seal);
        let header = Header { sequence: 0, ..*header };
        Self(smallvec![(sealing.encode(), seal.into()), (header.encode(), payload.into())])
    }

    /// What is new of a tensor's chunks where a borrower looks itself.
    fn lent(job: u64, tensor: TensorId, chunk: u32, count: u32) -> Self {
        let notice = Notice::Lent { tensor, chunk, count };
        Self(smallvec![(Header::bare(job, 0, Body::Notice(notice)).encode(), Box::default())])
    }

    /// The first word to a child: from now on it is fed.
    fn greeting(job: u64) -> Self {
        Self(smallvec![(Header::bare(job, 0, Body::Notice(Notice::Taken)).encode(), Box::default())])
    }

    /// Before that: it will be.
    fn sign_of_life(job: u64) -> Self {
        Self(smallvec![(Header::bare(job, 0, Body::Alive).encode(), Box::default())])
    }

    fn bytes(&self) -> usize {
        self.0.iter().map(|(header, payload)| header.len() + payload.len()).sum()
    }
}

/// Chunks of a tensor that one is told are new: from which on, how many, and the one behind them.
#[derive(Debug, Clone, Copy)]
struct Run {
    tensor: TensorId,
    first: u32,
    count: u32,
    next: Option<u32>,
}

impl Run {
    /// With chunks that follow, or are among these already; `None`: they do not.
    fn with(self, tensor: TensorId, chunk: u32, count: u32, next: Option<u32>) -> Option<Self> {
        if tensor != self.tensor {
            return None;
        }
        if count == 1 && chunk >= self.first && self.next.is_none_or(|end| chunk < end) {
            return Some(self);
        }
        (self.next == Some(chunk)).then_some(Self { count: self.count + count, next, ..self })
    }
}

/// One child.
struct Child<L> {
    rank: Rank,
    striping: u32,
    stripes: Stripes,
    /// Where it is lent to, if it is of this host, and the tensors of which it reads what is kept here.
    rendezvous: Option<Rendezvous>,
    lent: BTreeSet<TensorId>,
    greeted: bool,
    link: L,
    writer: FrameWriter,
    queue: VecDeque<Arc<Passed>>,
    /// Bytes of the queue; what its last frame says, if it says what is new where the child reads it.
    queued: usize,
    shown: Option<Run>,
    readable: bool,
    writable: bool,
    /// Bytes that it took since the last look at the clock, and when it last had taken some, or nothing waited.
    taken: usize,
    moved: Option<Duration>,
    /// When it came, if it waits for a cut that is not known here.
    came: Option<Duration>,
    /// Since when much has waited.
    crowded: Option<Duration>,
    /// More waits than may.
    is_over: bool,
}

impl<L> Child<L> {
    /// Whether it is this worker, which is lent to there. Any child may say that a name is its own; by its rank it was let in.
    fn is(&self, rank: Rank, rendezvous: &Rendezvous) -> bool {
        self.rank == rank && self.rendezvous.as_ref() == Some(rendezvous)
    }

    fn is_passed(&self, stripe: usize, tensor: TensorId) -> bool {
        self.greeted && self.stripes.has(stripe) && !self.lent.contains(&tensor)
    }
}

impl<L: Link> Child<L> {
    fn push(&mut self, passed: Arc<Passed>) {
        self.queued += passed.bytes();
        self.is_over |= self.queued > MOST_QUEUED;
        self.queue.push_back(passed);
        self.shown = None;
    }

    /// Says that chunks are new, by the last frame that waits, where that says so of the ones before.
    fn show(&mut self, job: u64, (tensor, chunk, count): (TensorId, u32, u32), next: Option<u32>) {
        let run = self.shown.filter(|_| !self.queue.is_empty());
        if let (Some(run), Some(last)) =
            (run.and_then(|run| run.with(tensor, chunk, count, next)), self.queue.back_mut())
        {
            *last = Arc::new(Passed::lent(job, tensor, run.first, run.count));
            self.shown = Some(run);
            return;
        }
        self.push(Arc::new(Passed::lent(job, tensor, chunk, count)));
        self.shown = Some(Run { tensor, first: chunk, count, next });
    }

    fn left(&self) -> usize {
        self.queued + self.writer.held()
    }

    /// Whether anything waits to be sent: here, or in the link, which under TLS takes more than the socket does.
    fn is_owed(&self) -> bool {
        self.left() > 0 || self.link.holds_output()
    }

    /// Sends what waits, as far as the link takes it; whether it took anything. An error ends it.
    fn send(&mut self) -> io::Result<bool> {
        let before = self.left();
        while self.writable && self.is_owed() {
            if !self.writer.is_clear() || self.link.holds_output() {
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
        self.crowded = self.crowded.filter(|_| self.queued > QUEUED / 2);
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

    /// Whether it has taken nothing, or too little, of what waits for it for long, as of a moment of the owner's clock.
    fn is_stuck(&mut self, now: Duration) -> bool {
        let crowded = self.queued > QUEUED / 2;
        self.crowded = self.crowded.filter(|_| crowded).or_else(|| crowded.then_some(now));
        let left = self.left();
        let moved = self.moved.get_or_insert(now);
        if std::mem::take(&mut self.taken) > 0 || left == 0 {
            *moved = now;
        }
        let for_long = |since: Duration, most| now.saturating_sub(since) > most;
        if !self.greeted {
            return for_long(self.came.get_or_insert(now).to_owned(), WAITS_WITHIN);
        }
        for_long(*moved, STUCK) || self.crowded.is_some_and(|since| for_long(since, CROWDED))
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
    /// One comes to be fed these stripes. It has left what it was fed by before, but for other stripes of the same cut: to close that
    /// would look as if this end had failed.
    pub(super) fn take_in(
        &mut self,
        rank: Rank,
        (striping, stripes): (u32, Stripes),
        rendezvous: Option<Rendezvous>,
        link: L,
    ) {
        self.0.retain_mut(|child| {
            // Of a cut that is not known here it waits with one connection, the newest.
            if child.rank == rank && child.striping != striping && !child.greeted {
                return false;
            }
            if child.rank != rank || child.striping != striping {
                return child.rank != rank || child.striping > striping;
            }
            // This end may know of a newer cut already.
            let is_idle = child.stripes.is_empty();
            child.stripes = child.stripes.without(stripes);
            is_idle || !child.stripes.is_empty()
        });
        if self.0.len() == MOST_CHILDREN
            && let Some(idle) = self.0.iter().position(|child| child.stripes.is_empty())
        {
            self.0.swap_remove(idle);
        }
        if self.0.len() < MOST_CHILDREN {
            let (writer, queue) = (FrameWriter::default(), VecDeque::new());
            let (readable, writable, queued, taken, moved) = (true, true, 0, 0, None);
            let greeted = false;
            self.0.push(Child {
                rank,
                striping,
                stripes,
                rendezvous,
                lent: BTreeSet::new(),
                greeted,
                link,
                writer,
                queue,
                queued,
                shown: None,
                readable,
                writable,
                taken,
                moved,
                came: None,
                crowded: None,
                is_over: false,
            });
        }
    }

    /// Feeds those that speak of this cut into stripes. One of an older cut gets nothing more, and hangs up when it hears of this one;
    /// one of a newer one waits until that is known here too.
    pub(super) fn greet(&mut self, job: u64, striping: u32) {
        for child in self.0.iter_mut().filter(|child| child.striping < striping) {
            child.queue.clear();
            (child.stripes, child.queued) = (Stripes::default(), 0);
        }
        for child in self.0.iter_mut().filter(|child| child.striping == striping && !child.greeted) {
            child.greeted = true;
            child.push(Arc::new(Passed::greeting(job)));
        }
    }

    /// Those that wait to be fed are shown that this end lives, and sent what waits for any, as far as it goes.
    pub(super) fn reassure(&mut self, job: u64) {
        for child in self.0.iter_mut().filter(|child| !child.greeted && child.left() == 0) {
            child.push(Arc::new(Passed::sign_of_life(job)));
            // It waits for what it knows of.
            child.came = None;
        }
        self.send();
    }

    /// Whether any is fed something.
    pub(super) fn any(&self) -> bool {
        self.0.iter().any(|child| child.greeted && !child.stripes.is_empty())
    }

    /// Whether this worker of this host, which is lent to there, has come to be fed here.
    pub(super) fn is_child(&self, (rank, rendezvous): (Rank, &Rendezvous)) -> bool {
        self.0.iter().any(|child| child.is(rank, rendezvous))
    }

    /// Whether it is sent what is new by now.
    pub(super) fn feeds(&self, (rank, rendezvous): (Rank, &Rendezvous)) -> bool {
        self.0.iter().any(|child| child.is(rank, rendezvous) && child.greeted && !child.stripes.is_empty())
    }

    /// It reads a tensor's values where they are kept here from now on; whether it is fed any.
    pub(super) fn lend(&mut self, (rank, rendezvous): (Rank, &Rendezvous), tensor: TensorId) -> bool {
        let child = self.0.iter_mut().find(|child| child.is(rank, rendezvous));
        child.map(|child| child.lent.insert(tensor)).is_some()
    }

    /// It reads them here no more: they are passed on to it again.
    pub(super) fn lend_no_more(&mut self, (rank, rendezvous): (Rank, &Rendezvous), tensor: TensorId) {
        let children = self.0.iter_mut().filter(|child| child.is(rank, rendezvous));
        children.for_each(|child| _ = child.lent.remove(&tensor));
    }

    /// How many read a tensor's values here.
    pub(super) fn borrowers(&self, tensor: TensorId) -> usize {
        self.0.iter().filter(|child| child.lent.contains(&tensor)).count()
    }

    /// Chunks of a tensor are new here: those that read them here are told. `next`: the one behind them.
    pub(super) fn show(
        &mut self,
        job: u64,
        stripe: usize,
        new: (TensorId, u32, u32),
        next: impl FnOnce() -> Option<u32>,
    ) {
        let tensor = new.0;
        let told = |child: &&mut Child<L>| {
            child.greeted && child.stripes.has(stripe) && child.lent.contains(&tensor)
        };
        let mut told = self.0.iter_mut().filter(told).peekable();
        if told.peek().is_none() {
            return;
        }
        let next = next();
        told.for_each(|child| child.show(job, new, next));
    }

    /// Whether one is fed this stripe of a tensor by frames.
    pub(super) fn any_of(&self, stripe: usize, tensor: TensorId) -> bool {
        self.0.iter().any(|child| child.is_passed(stripe, tensor))
    }

    /// Passes something of this stripe of a tensor on.
    pub(super) fn pass_on(&mut self, (stripe, tensor): (usize, TensorId), passed: Passed) {
        let passed = Arc::new(passed);
        for child in self.0.iter_mut().filter(|child| child.is_passed(stripe, tensor)) {
            child.push(Arc::clone(&passed));
        }
    }

    /// Whether so much waits for one that is fed some of these stripes that nothing more of them is to be read of a parent. A tree has
    /// no circles, and other stripes go on.
    pub(super) fn is_full(&self, stripes: Stripes) -> bool {
        self.0.iter().any(|child| child.queued > QUEUED && !child.stripes.and(stripes).is_empty())
    }

    /// How many are fed here.
    pub(super) fn fed(&self) -> usize {
        self.0.iter().filter(|child| child.greeted && !child.stripes.is_empty()).count()
    }

    /// Whether one waits for a cut that is not known here.
    pub(super) fn awaits_cut(&self) -> bool {
        self.0.iter().any(|child| !child.greeted)
    }

    /// Whether something waits for one.
    pub(super) fn has_due(&self) -> bool {
        self.0.iter().any(|child| child.left() > 0)
    }

    /// Whether there may be something to do at once.
    pub(super) fn has_work(&self) -> bool {
        self.0.iter().any(|child| child.readable || child.writable && child.is_owed())
    }

    /// Sends what waits; whether anything was taken. Those that have hung up are let go.
    pub(super) fn send(&mut self) -> bool {
        let mut busy = false;
        self.0.retain_mut(|child| {
            if child.is_over || child.has_ended() {
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

    /// Stripes of which nothing more is to be read for now, as too much of them waits for one.
    pub(super) fn full(&self) -> Stripes {
        self.0
            .iter()
            .filter(|child| child.queued > QUEUED)
            .map(|child| child.stripes)
            .fold(Stripes::default(), Stripes::or)
    }

    /// Time in which this process did nothing counts against none of them.
    pub(super) fn begin_again(&mut self) {
        self.0.iter_mut().for_each(|child| (child.moved, child.came, child.crowded) = (None, None, None));
    }

    /// Lets go those that have taken nothing, or too little, for long.
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

#[cfg(test)]
mod tests;
