//! What workers pass on of a home's values, over any link: a worker's *children*, which it feeds, and its *parents*, which feed it.
//!
//! What is passed on is a frame of the home as it was, with the seal by which the child knows that it is the home's. It is kept once
//! for all children, until the last has taken it. Where much waits for a child, nothing more of its stripes is read of a parent, and
//! so on up that tree; what the home itself sends is read all the same. A child for which too much waits, or that takes nothing or too
//! little for long, is let go, and asks the home.

use super::frames::{FrameReader, FrameWriter, Outgoing, Places, Step};
use super::link::{Got, Interest, Link, Segment};
use penstock_kernels::codec::Codec;
use penstock_proto::frame::{Body, HEADER_BYTES, Header, Notice};
use penstock_proto::message::MAX_WORKERS;
use penstock_proto::overlay::lending::Rendezvous;
use penstock_proto::overlay::{Parent, Stripes};
use penstock_proto::seal::Verifier;
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
/// How long a parent may take to say that it feeds a child: it may have to hear of the child's route first.
const GREETS_WITHIN: Duration = Duration::from_secs(2);
/// How long it may take that shows meanwhile that it lives: it goes back to memory of its own, and passes nothing on before.
const SHOWS_LIFE_FOR: Duration = Duration::from_secs(60);
/// How long a child may wait for a cut that is not known here.
const WAITS_WITHIN: Duration = Duration::from_secs(10);
/// How long what the parent before has under way is still taken.
const ENDS_WITHIN: Duration = Duration::from_millis(400);
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
        self.0.iter().any(|child| child.rank == rank && child.rendezvous.as_ref() == Some(rendezvous))
    }

    /// Whether it is sent what is new by now.
    pub(super) fn feeds(&self, (rank, rendezvous): (Rank, &Rendezvous)) -> bool {
        let is_it = |child: &&Child<L>| child.rank == rank && child.rendezvous.as_ref() == Some(rendezvous);
        self.0.iter().filter(is_it).any(|child| child.greeted && !child.stripes.is_empty())
    }

    /// It reads a tensor's values where they are kept here from now on; whether it is fed any.
    pub(super) fn lend(&mut self, (rank, rendezvous): (Rank, &Rendezvous), tensor: TensorId) -> bool {
        // Of a name any child may say that it is its own, by its rank it was let in.
        let is_it =
            |child: &&mut Child<L>| child.rank == rank && child.rendezvous.as_ref() == Some(rendezvous);
        let child = self.0.iter_mut().find(is_it);
        child.map(|child| child.lent.insert(tensor)).is_some()
    }

    /// It reads them here no more: they are passed on to it again.
    pub(super) fn lend_no_more(&mut self, (rank, rendezvous): (Rank, &Rendezvous), tensor: TensorId) {
        let is_it =
            |child: &&mut Child<L>| child.rank == rank && child.rendezvous.as_ref() == Some(rendezvous);
        self.0.iter_mut().filter(is_it).for_each(|child| _ = child.lent.remove(&tensor));
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

/// One that feeds this worker.
pub(super) struct Feeder<L> {
    pub(super) parent: Parent,
    /// Whether it has said that it does; since when it has been waited for, and, whatever it said, at all; whether it has shown since
    /// it was looked at that it lives.
    pub(super) greeted: bool,
    since: Option<Duration>,
    awaited: Option<Duration>,
    lives: bool,
    /// What it feeds; what another feeds by now, of which it may have something that the other never had to pass on; since when.
    pub(super) stripes: Stripes,
    /// Whether values stand in memory that it lends, or stood there: of some it says only that they are new, also after that.
    pub(super) lends: bool,
    ending: Stripes,
    ends: Option<Duration>,
    link: L,
    reader: FrameReader<Option<&'static dyn Codec>>,
    /// Of the frame that comes next, if it has come.
    seal: Vec<u8>,
    is_sealed: bool,
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
    /// The connection has ended.
    Ended(String),
    /// It feeds no more: why.
    Over(String),
}

impl<L: Link> Feeder<L> {
    pub(super) fn new(parent: Parent, stripes: Stripes, link: L, read: usize) -> Self {
        let reader = FrameReader::reading_ahead(read);
        Self {
            parent,
            greeted: false,
            since: None,
            awaited: None,
            lives: false,
            stripes,
            lends: false,
            ending: Stripes::default(),
            ends: None,
            link,
            reader,
            seal: Vec::new(),
            is_sealed: false,
            readable: true,
        }
    }

    pub(super) fn stripes(&self) -> Stripes {
        self.stripes
    }

    /// Whether something of this stripe is taken of it.
    pub(super) fn brings(&self, stripe: usize) -> bool {
        self.stripes.or(self.ending).has(stripe)
    }

    /// It feeds these no more; whether anything is left.
    pub(super) fn forget(&mut self, stripes: Stripes) -> bool {
        (self.stripes, self.ending) = (self.stripes.without(stripes), self.ending.without(stripes));
        !self.stripes.or(self.ending).is_empty()
    }

    /// Another feeds these from now on: what is under way still comes. Whether anything is left.
    pub(super) fn hand_over(&mut self, stripes: Stripes) -> bool {
        let ending = if self.greeted { self.stripes.and(stripes) } else { Stripes::default() };
        self.stripes = self.stripes.without(stripes);
        if !ending.is_empty() {
            (self.ending, self.ends) = (self.ending.or(ending), None);
        }
        !self.stripes.or(self.ending).is_empty()
    }

    /// Whether something that was under way may still come.
    pub(super) fn is_ending(&self) -> bool {
        !self.ending.is_empty()
    }

    /// It is waited for no longer than for a while, as of a moment of the owner's clock; whether anything is left.
    pub(super) fn end(&mut self, now: Duration) -> bool {
        if self.is_ending() && now.saturating_sub(*self.ends.get_or_insert(now)) > ENDS_WITHIN {
            self.ending = Stripes::default();
        }
        !self.stripes.or(self.ending).is_empty()
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
                if header.body == Body::Alive && !self.greeted {
                    self.lives = true;
                    return Fed::Part;
                }
                let greets = header.body == Body::Notice(Notice::Taken);
                if greets == self.greeted {
                    return Fed::Over("it sent something else than a greeting and values".to_owned());
                }
                if greets {
                    self.greeted = true;
                    return Fed::Greeting;
                }
                if header.body == Body::Notice(Notice::Seal) {
                    if std::mem::replace(&mut self.is_sealed, true) {
                        return Fed::Over("it sent two seals for one frame".to_owned());
                    }
                    self.seal.clear();
                    self.seal.extend_from_slice(self.reader.payload());
                    return Fed::Part;
                }
                // What it says of its own memory nobody else has made, and whoever looks there believes nothing but what it finds.
                if matches!(header.body, Body::Notice(Notice::Lent { .. })) && self.lends && !self.is_sealed {
                    return Fed::Frame(header, None);
                }
                if !std::mem::take(&mut self.is_sealed) {
                    return Fed::Over("it sent a frame without a seal".to_owned());
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
            Step::Ended(why) => Fed::Ended(why),
            Step::Broke(why) => Fed::Over(why),
        }
    }

    /// Time in which this process did nothing does not count.
    pub(super) fn begin_again(&mut self) {
        if !self.greeted {
            (self.since, self.awaited) = (None, None);
        }
    }

    /// Whether it has said nothing for long, or no greeting for very long, as of a moment of the owner's clock.
    pub(super) fn is_silent(&mut self, now: Duration) -> bool {
        if std::mem::take(&mut self.lives) {
            self.since = Some(now);
        }
        let for_long =
            |since: &mut Option<Duration>, most| now.saturating_sub(*since.get_or_insert(now)) > most;
        !self.greeted
            && (for_long(&mut self.since, GREETS_WITHIN) | for_long(&mut self.awaited, SHOWS_LIFE_FOR))
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

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_proto::overlay::Pass;
    use penstock_proto::seal::{Scope, Sealer};

    const JOB: u64 = 7;
    const SCOPE: Scope = Scope { job: JOB, server: 1, shard: 2 };

    /// A link in memory, which takes so many bytes in all and brings what it holds. One that `buffers` takes more, as TLS does, and
    /// holds it until there is room.
    #[derive(Default)]
    struct Memory {
        room: usize,
        buffers: bool,
        held: VecDeque<u8>,
        went: Vec<u8>,
        comes: VecDeque<u8>,
        ended: bool,
    }

    impl Link for Memory {
        fn read(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<Got> {
            let room = parts.iter_mut().flat_map(|part| part.iter_mut());
            let came = room.map_while(|byte| self.comes.pop_front().map(|came| *byte = came)).count();
            Ok(match came {
                0 if self.ended => Got::End,
                0 => Got::Nothing,
                came => Got::Bytes(came),
            })
        }

        fn write(&mut self, parts: &[Segment<'_>]) -> io::Result<usize> {
            if self.buffers {
                let bytes = Segment::copied(parts, 1 << 20);
                self.held.extend(&bytes);
                self.flush()?;
                return Ok(bytes.len());
            }
            let bytes = Segment::copied(parts, self.room);
            self.room -= bytes.len();
            self.went.extend_from_slice(&bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<bool> {
            let going = self.room.min(self.held.len());
            self.room -= going;
            self.went.extend(self.held.drain(..going));
            Ok(self.held.is_empty())
        }

        fn holds_output(&self) -> bool {
            !self.held.is_empty()
        }

        fn resize(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
    }

    struct Anything;

    impl Places for Anything {
        type Place = Option<&'static dyn Codec>;

        fn place(&mut self, _: &Header) -> Result<Self::Place, String> {
            Ok(None)
        }

        fn memory<'a>(&'a mut self, _: &'a mut Self::Place) -> Option<&'a mut [u8]> {
            None
        }
    }

    fn value(chunk: u32, payload: &[u8]) -> Header {
        let (version, steps, publication, base, content) = (1, 1, 2, 0, 2);
        let notice = Notice::Value { tensor: 0, chunk, version, steps, publication, base, content };
        Header::bare(JOB, 99, Body::Notice(notice)).with_payload(payload)
    }

    fn sealed(chunk: u32, payload: &[u8]) -> Passed {
        let (sealer, header) = (Sealer::new(&[1; 32], SCOPE), value(chunk, payload));
        let mut seal = Vec::new();
        sealer.seal(&[sealer.leaf(&header, payload)], |_, proof| seal = proof.to_vec());
        Passed::new(JOB, &seal, &header, payload)
    }

    fn stripes<const N: usize>(of: [usize; N]) -> Stripes {
        of.into_iter().collect()
    }

    fn children(links: impl IntoIterator<Item = Memory>) -> Children<Memory> {
        let mut children = Children::default();
        for (rank, link) in (0..).zip(links) {
            children.take_in(rank, (3, stripes([rank as usize % 2])), None, link);
        }
        children.greet(JOB, 3);
        children
    }

    fn endless() -> Memory {
        Memory { room: usize::MAX, ..Memory::default() }
    }

    fn feeder(bytes: &[u8]) -> Feeder<Memory> {
        let link = Memory { comes: bytes.to_vec().into(), ..Memory::default() };
        let pass = Pass::new(&[0; 16], 0, 0);
        let parent = Parent { rank: 4, address: "10.0.0.4:1".parse().unwrap(), pass };
        Feeder::new(parent, stripes([0]), link, 4096)
    }

    /// What a child that looks at seals makes of what comes.
    fn heard(bytes: &[u8], key: &[u8; 32]) -> Result<Vec<u32>, String> {
        let (mut feeder, mut chunks) = (feeder(bytes), Vec::new());
        let mut verifier = Verifier::new(key, SCOPE).unwrap();
        loop {
            feeder.ready();
            match feeder.hear(&mut Anything, &mut verifier) {
                Fed::Nothing => return Ok(chunks),
                Fed::Over(why) | Fed::Ended(why) => return Err(why),
                Fed::Frame(Header { body: Body::Notice(Notice::Value { chunk, .. }), .. }, _) => {
                    chunks.push(chunk);
                }
                Fed::Frame(header, _) => return Err(format!("{header:?}")),
                Fed::Greeting | Fed::Part => {}
            }
        }
    }

    #[test]
    fn each_child_is_passed_its_stripe_as_it_was_sealed_whatever_it_takes_at_once() {
        let key = Sealer::new(&[1; 32], SCOPE).key();
        let mut children = children([endless(), endless(), Memory::default()]);
        for chunk in 0..40 {
            children.pass_on((chunk % 2, 0), sealed(chunk as u32, &[chunk as u8; 1000]));
        }
        children.send();
        for _ in 0..2000 {
            children.0[2].link.room = 37;
            children.ready();
            children.send();
        }
        let heard: Vec<Vec<u32>> =
            children.0.iter().map(|child| heard(&child.link.went, &key).unwrap()).collect();
        let even: Vec<u32> = (0..40).filter(|chunk| chunk % 2 == 0).collect();
        let odd: Vec<u32> = (0..40).filter(|chunk| chunk % 2 == 1).collect();
        assert_eq!(heard, [even.clone(), odd, even]);
        assert!(!children.has_due() && children.0.iter().all(|child| child.queued == 0));
    }

    // The last of a broadcast stayed in the TLS of a socket that was full just then, until the next broadcast or until the child had
    // left.
    #[test]
    fn what_a_link_has_taken_and_holds_goes_when_it_can_though_nothing_comes_behind_it() {
        let key = Sealer::new(&[1; 32], SCOPE).key();
        let mut children = children([Memory { room: 50, buffers: true, ..Memory::default() }]);
        children.pass_on((0, 0), sealed(0, &[1; 1000]));
        children.send();
        assert!(!children.has_work());
        assert!(children.links().all(|(_, interest)| interest.write), "it is waited for");
        children.0[0].link.room = usize::MAX;
        children.ready();
        children.0[0].readable = false;
        assert!(children.has_work());
        children.send();
        assert_eq!(heard(&children.0[0].link.went, &key), Ok(vec![0]));
        assert!(!children.has_work());
    }

    #[test]
    fn what_was_changed_on_the_way_or_is_anothers_is_refused_and_nothing_behind_it_is_taken() {
        let key = Sealer::new(&[1; 32], SCOPE).key();
        let mut children = children([endless()]);
        let mut forged = sealed(1, &[5; 100]);
        // As a parent would that knows how frames are made.
        forged.0[1] = (value(1, &[6; 100]).encode(), [6; 100].into());
        for passed in [sealed(0, &[1; 100]), forged, sealed(2, &[3; 100])] {
            children.pass_on((0, 0), passed);
        }
        children.send();
        assert!(heard(&children.0[0].link.went, &key).is_err());
        let honest = children_of_one(&[sealed(0, &[1; 100])]);
        assert_eq!(heard(&honest, &key), Ok(vec![0]));
        assert!(heard(&honest, &Sealer::new(&[2; 32], SCOPE).key()).is_err(), "another server's");
        assert!(heard(&honest[HEADER_BYTES..], &key).is_err(), "it has to greet first");
        let twice = [&honest[..HEADER_BYTES], &honest[..HEADER_BYTES]].concat();
        assert!(heard(&twice, &key).is_err(), "and once");
    }

    fn children_of_one(passed: &[Passed]) -> Vec<u8> {
        let mut children = children([endless()]);
        passed.iter().for_each(|Passed(frames)| children.pass_on((0, 0), Passed(frames.clone())));
        children.send();
        std::mem::take(&mut children.0[0].link.went)
    }

    /// To hang up on it would look as if this end had failed: it does so itself when it hears of the new cut.
    #[test]
    fn a_child_of_a_newer_cut_waits_until_that_is_known_here_and_one_of_an_older_cut_gets_nothing_more() {
        let mut children = Children::default();
        for striping in [2, 3, 4] {
            children.take_in(striping, (striping, stripes([0])), None, endless());
        }
        let mut went = |known| {
            children.greet(JOB, known);
            children.pass_on((0, 0), sealed(0, &[1; 10]));
            children.send();
            let went = |child: &mut Child<Memory>| !std::mem::take(&mut child.link.went).is_empty();
            children.0.iter_mut().map(|child| (child.rank, went(child))).collect::<Vec<_>>()
        };
        assert_eq!(went(3), [(2, false), (3, true), (4, false)]);
        assert_eq!(went(4), [(2, false), (3, false), (4, true)]);
    }

    #[test]
    fn who_comes_again_for_some_stripes_keeps_what_it_has_of_the_others() {
        let mut children = Children::default();
        children.take_in(1, (3, stripes([0, 1])), None, endless());
        children.take_in(1, (3, stripes([1])), None, endless());
        let fed =
            |children: &Children<Memory>| children.0.iter().map(|child| child.stripes).collect::<Vec<_>>();
        assert_eq!(fed(&children), [stripes([0]), stripes([1])]);
        children.take_in(1, (3, stripes([0])), None, endless());
        assert_eq!(fed(&children), [stripes([1]), stripes([0])]);
        children.take_in(1, (4, stripes([0])), None, endless());
        assert_eq!(fed(&children), [stripes([0])], "it has left all of the older cut");
    }

    #[test]
    fn who_takes_nothing_for_long_is_let_go_and_who_takes_little_is_not() {
        let mut children = children([Memory::default(), endless(), Memory::default()]);
        children.pass_on((0, 0), sealed(0, &[1; 100_000]));
        for after in 0..20 {
            children.0.iter_mut().filter(|child| child.rank == 2).for_each(|child| child.link.room = 10);
            children.ready();
            children.send();
            children.look(Duration::from_millis(100 * after));
        }
        assert_eq!(children.0.iter().map(|child| child.rank).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn who_takes_less_than_comes_for_long_is_let_go_and_holds_nobody_up_any_more() {
        let mut children = children([Memory::default(), endless()]);
        for after in 0..40 {
            while !children.is_full(stripes([0])) {
                children.pass_on((0, 0), sealed(0, &[0; 1 << 20]));
            }
            children.0[0].link.room += 10_000;
            children.ready();
            children.send();
            children.look(Duration::from_millis(100 * after));
            assert_eq!(children.0.len(), if after <= 20 { 2 } else { 1 }, "after {after}");
            if children.0.len() == 1 {
                break;
            }
        }
        assert!(!children.is_full(stripes([0])));
    }

    #[test]
    fn who_has_hung_up_is_let_go_and_who_comes_again_takes_its_own_place() {
        let mut children = children([endless(), endless()]);
        children.0[0].link.ended = true;
        children.ready();
        assert!(children.send());
        assert_eq!(children.0.len(), 1);
        children.take_in(1, (3, stripes([1, 2])), None, endless());
        assert_eq!(children.0.len(), 1, "the old connection has a stripe in common with the new one");
        children.take_in(1, (3, stripes([0])), None, endless());
        assert_eq!(children.0.len(), 2);
        (0..2000).for_each(|rank| children.take_in(rank, (3, stripes([5])), None, endless()));
        assert_eq!(children.0.len(), MOST_CHILDREN);
    }

    // One worker could fill all places, each with a cut that nobody knows.
    #[test]
    fn who_waits_for_a_cut_that_is_not_known_here_waits_with_one_connection() {
        let mut children = Children::default();
        (0..1000).rev().for_each(|striping| children.take_in(1, (striping, stripes([0])), None, endless()));
        assert_eq!(children.0.len(), 1);
        children.greet(7, 0);
        assert!(children.any_of(0, 0), "the newest is the one that stays");
    }

    // A worker that was suspended took its own pause for its children's.
    #[test]
    fn time_in_which_this_end_did_nothing_is_not_a_childs() {
        for is_told in [false, true] {
            let mut children = children([Memory::default()]);
            children.pass_on((0, 0), sealed(0, &[0; 1 << 20]));
            children.send();
            children.look(Duration::ZERO);
            if is_told {
                children.begin_again();
            }
            children.look(Duration::from_secs(5));
            assert_eq!(children.0.len(), usize::from(is_told));
        }
    }

    #[test]
    fn of_chunks_that_follow_each_other_a_borrower_is_told_by_one_frame_as_long_as_that_waits() {
        let (rendezvous, mut children) = ([5; 16], Children::default());
        children.take_in(1, (3, stripes([0])), Some(rendezvous), Memory::default());
        children.greet(JOB, 3);
        for tensor in [7, 8] {
            assert!(children.lend((1, &rendezvous), tensor));
        }
        // The third is another shard's.
        let next = |chunk| [Some(1), Some(3), None, Some(4), None][chunk as usize];
        let show = |children: &mut Children<Memory>, tensor, chunk, count, last| {
            children.show(JOB, 0, (tensor, chunk, count), || next(last));
        };
        for chunk in [0, 1, 3, 1, 0] {
            show(&mut children, 7, chunk, 1, chunk);
        }
        show(&mut children, 8, 4, 1, 4);
        show(&mut children, 7, 4, 1, 4);
        show(&mut children, 7, 0, 2, 1);
        show(&mut children, 7, 3, 2, 4);
        let took = |children: &mut Children<Memory>| -> Vec<Notice> {
            let link = &mut children.0[0].link;
            link.room = 10_000;
            children.ready();
            children.send();
            let went = std::mem::take(&mut children.0[0].link.went);
            let headers = went.as_chunks::<HEADER_BYTES>().0.iter();
            headers
                .map(|header| match Header::decode(header).unwrap().body {
                    Body::Notice(notice) => notice,
                    other => panic!("{other:?}"),
                })
                .collect()
        };
        let lent = |tensor, chunk, count| Notice::Lent { tensor, chunk, count };
        let said = [Notice::Taken, lent(7, 0, 3), lent(8, 4, 1), lent(7, 4, 1), lent(7, 0, 4)];
        assert_eq!(took(&mut children), said);
        show(&mut children, 7, 4, 1, 4);
        assert_eq!(took(&mut children), [lent(7, 4, 1)], "what has gone says nothing more");
        assert!(!children.has_due());
    }

    // Its parent let it go after 10 s, which went on borrowing.
    #[test]
    fn a_child_that_is_shown_life_is_not_let_go_for_what_it_waits_for() {
        let mut children = Children::default();
        children.take_in(0, (3, stripes([0])), None, endless());
        for second in 0..40 {
            children.reassure(JOB);
            children.look(Duration::from_secs(second));
        }
        assert_eq!(children.0.len(), 1);
        for second in 40..60 {
            children.look(Duration::from_secs(second));
        }
        assert!(children.0.is_empty());
    }

    // It copied back what it had borrowed, for longer than that.
    #[test]
    fn a_parent_that_shows_that_it_lives_is_not_silent_for_a_minute() {
        let sign = Header::bare(JOB, 0, Body::Alive).encode();
        let mut verifier = Verifier::new(&Sealer::new(&[1; 32], SCOPE).key(), SCOPE).unwrap();
        let (mut mute, mut shows) = (feeder(&[]), feeder(&sign.repeat(100)));
        let mut silent = [None; 2];
        for second in 0..90 {
            assert!(matches!(shows.hear(&mut Anything, &mut verifier), Fed::Part));
            for (feeder, silent) in [&mut mute, &mut shows].into_iter().zip(&mut silent) {
                if feeder.is_silent(Duration::from_secs(second)) {
                    silent.get_or_insert(second);
                }
            }
        }
        assert_eq!(silent, [Some(3), Some(61)]);
        // Behind its greeting it says nothing but what is sealed.
        let greeting = Header::bare(JOB, 0, Body::Notice(Notice::Taken)).encode();
        let mut feeder = feeder(&[greeting, sign].concat());
        while !matches!(feeder.hear(&mut Anything, &mut verifier), Fed::Greeting) {}
        assert!((0..3).any(|_| matches!(feeder.hear(&mut Anything, &mut verifier), Fed::Over(_))));
    }

    #[test]
    fn as_long_as_too_much_waits_for_a_child_nothing_more_is_to_be_read() {
        let mut children = children([Memory::default()]);
        let mut passed = 0;
        while !children.is_full(stripes([0])) {
            children.pass_on((0, 0), sealed(passed, &[0; 1 << 20]));
            passed += 1;
            assert!(passed < 20);
        }
        assert!(!children.is_full(stripes([1])), "no stripe waits for another");
        children.0[0].link.room = usize::MAX;
        children.ready();
        children.send();
        assert!(!children.is_full(stripes([0])) && !children.has_due());
        children.0[0].link.room = 0;
        (0..260).for_each(|chunk| children.pass_on((0, 0), sealed(chunk, &[0; 1 << 20])));
        children.send();
        assert!(children.0.is_empty(), "what the home sends is read whatever waits");
    }
}
