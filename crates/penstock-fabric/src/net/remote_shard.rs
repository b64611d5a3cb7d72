//! A shard of another host, as its proxy sees it: what its worker submits to it, the mirrors of its chunks, and its connection,
//! over any link. What has come, and what is asked for again on a new connection, its machine knows
//! ([`penstock_proto::remote::mirror`]).
//!
//! Frames are encoded out of the lane, or sent from there; out of a lane whose address others have, by a copy, so that no frame is
//! damaged by who writes there meanwhile. Values are received beside the mirror, verified, and then decoded and published in it,
//! so that no reader ever sees half a chunk or a damaged one. Behind a breach of the protocol nothing more is taken: the
//! connection is given up with it.
//!
//! Where mirrors and lanes lie, and how the worker submits and is woken, is its owner's: a proxy of a job has them in shared
//! memory, the simulator in its own. No byte and no frame goes through a pointer to a function of theirs. When to look and what
//! to wait for is the owner's too, by what is [of interest](RemoteShard::interest) and [due](RemoteShard::has_work) here.

mod borrowing;
mod parents;
mod update;

pub use borrowing::{GoingBack, Kept, NewChild};
pub use parents::{Left, Unreached, Wish};
pub use update::{Sum, Update};

use super::feeder::Feeder;
use super::frames::{Batch, FrameReader, FrameWriter, Places, Step};
use super::link::{Interest, Link};
use super::passing_on::{Children, Passed};
use super::squeeze::{Squeezer, Squeezing, unpack};
use super::stream::{Stream, Traffic};
use crate::doorbell::{self, ANYTHING, single_chunks};
use crate::inlet::Inlet;
use crate::memory::Unread;
use crate::publish::{Published, Torn};
use crate::spent::Spent;
use penstock_kernels::codec::{Codec, Undecodable};
use penstock_kernels::{Foreign, copy_past_cache};
use penstock_proto::compress::{Compress, Squeezed};
use penstock_proto::encoding::{Agreed, Encoding, Sent, Source};
use penstock_proto::factors::down::{Named, Shown};
use penstock_proto::factors::{self, LowRank, ROWS};
use penstock_proto::frame::{Body, HEADER_BYTES, Header, Notice};
use penstock_proto::layer::Layer;
use penstock_proto::numbered::Numbered;
use penstock_proto::overlay::{Parent, Route};
use penstock_proto::remote::judge;
use penstock_proto::remote::mirror::{Carried, Effect, Frame, Mirror, Stands};
use penstock_proto::seal::Verifier;
use penstock_proto::submission::Submission;
use penstock_proto::update::Updates;
use penstock_proto::{Rank, TensorId};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;
use update::updated;

/// What is kept for one shard.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Frames that wait to be sent at most, before more is taken of what the worker submits: some tens of bytes each.
    pub unsent: u64,
    /// Bytes of values that one read brings at most, while a connection stands.
    pub read: usize,
}

impl Limits {
    /// Those of a proxy of a job.
    pub const USUAL: Self = Self { unsent: 4096, read: 256 * 1024 };
}

/// Where the chunks of one tensor are mirrored that the shard is home of, and what its worker has to do with them.
pub trait Mirrored {
    /// Those chunks, ascending.
    fn chunks(&self) -> &[u32];
    /// How their values travel.
    fn values(&self) -> &Agreed;
    /// How contributions to them do.
    fn contributions(&self) -> &Agreed;
    /// Bytes of a chunk's value; `None`: the shard is not its home.
    fn bytes(&self, chunk: u32) -> Option<usize>;
    /// Bytes of the optimizer's state of a chunk; `None`: the shard is not its home, or there is no place for the state.
    fn state_bytes(&self, chunk: u32) -> Option<usize>;
    /// What stands in the worker's lane of a chunk, which the shard is home of.
    fn contribution(&self, chunk: u32) -> Foreign<'_>;
    /// Whether contributions may travel as factors, and so what updates are of.
    fn low_rank(&self) -> Option<LowRank>;
    /// Which bytes of the tensor a chunk is, which the shard is home of.
    fn range_of(&self, chunk: u32) -> Range<u64>;
    /// Where factors of this rank stand in the worker's lane, bytes of the right one.
    fn right_factor(&self, rank: u32, bytes: Range<usize>) -> Foreign<'_>;
    /// Likewise the rows of the left one that a chunk, which the shard is home of, has a part of.
    fn left_factor(&self, rank: u32, chunk: u32) -> Foreign<'_>;
    /// Whether the shard sends what is new of the values unasked, once it was asked for them.
    fn is_broadcast(&self) -> bool;
    /// Whether others have the lane's address, and may write there at any time.
    fn is_lane_exposed(&self) -> bool;
    /// Whether the result of the push that is under way is wanted as soon as it is there.
    fn wants(&self) -> bool;
    /// The version + 1 that pushes have asked for.
    fn wanted(&self) -> u64;

    /// How updates travel that are folded here as at their home, and what comes whole beside them; `None`: it is values that come.
    fn updates(&self) -> Option<&Updates> {
        None
    }
    /// Bytes of a chunk's value and of the optimizer's state that is kept beside it, where updates come.
    fn whole_bytes(&self, _chunk: u32) -> Option<usize> {
        None
    }
    /// Folds an update into value and state of a chunk, and publishes that. Readers never see one that is refused.
    fn update(&mut self, _chunk: u32, _update: &Update<'_>, _: Published) -> Result<(), Undecodable> {
        unreachable!("values come")
    }
    /// Decodes a chunk's new value and state, and publishes the value, likewise.
    fn whole(&mut self, _chunk: u32, _whole: &Value<'_>, _: Published) -> Result<(), Undecodable> {
        unreachable!("values come")
    }

    /// Whether its values stand in memory that another worker lends.
    fn is_borrowed(&self) -> bool {
        false
    }
    /// What stands of a chunk in memory that another worker has offered; `None`: nothing so far.
    fn look_there(&self, _chunk: u32) -> Result<Option<Stands>, Torn> {
        Ok(None)
    }
    /// Its worker sees that memory from now on, if it can; whether it does. Nothing is published here then.
    /// `progress`: the least version + 1 of what is held so far.
    ///
    /// # Errors
    /// It sees some of both, of which nobody reads anything: why.
    fn borrow(&mut self, _progress: u64) -> Result<bool, String> {
        Ok(false)
    }
    /// The worst that keeps its worker's readers from chunks that stand there, since this was asked last.
    fn take_unread(&mut self) -> Option<Unread> {
        None
    }
    /// Its worker sees memory of its own again, with what stood there: of each chunk what was kept, and published here. What is not so by
    /// `is_so`, which is asked of a chunk's number and what stands there, is not kept.
    ///
    /// # Errors
    /// It cannot, as there is no memory, or no mapping: why. What could not be taken back stays borrowed.
    fn take_back(
        &mut self,
        _way: &mut GoingBack<'_>,
        _is_so: &dyn Fn(u32, &Stands) -> bool,
    ) -> Result<Vec<(u32, Kept)>, String> {
        Ok(Vec::new())
    }

    /// Decodes a chunk's new value and publishes it. Readers never see a payload that is refused.
    fn publish(&mut self, chunk: u32, value: &Value<'_>, published: Published) -> Result<(), Undecodable>;
    /// Publishes what is mirrored of a chunk, of which something has come, as this version.
    fn raise(&mut self, chunk: u32, published: Published);
    /// The least version of all chunks + 1 has risen to this. Who sees it sees the chunks.
    fn progress(&mut self, progress: u64);
    /// The optimizer's state of a chunk has come.
    fn state(&mut self, chunk: u32, state: &[u8]);
    /// So many contributions were taken from the lane, since the start. Who sees it sees what was published before.
    fn folded(&mut self, count: u64);
    /// What was asked for with this ticket or before has come, and whoever sees that sees it. Tickets may come out of order: the
    /// greatest counts.
    fn fetched(&mut self, ticket: u64);
}

/// A chunk's new value, as it has come.
pub struct Value<'a> {
    /// Of its frame.
    pub header: &'a Header,
    /// What came with it, decompressed.
    pub payload: &'a [u8],
    /// What decodes that.
    pub codec: &'a dyn Codec,
}

impl Value<'_> {
    /// Decodes it onto what is mirrored of the chunk.
    pub fn decode(&self, onto: &mut [u8]) -> Result<(), Undecodable> {
        self.codec.decode(self.payload, self.header.base(), onto)
    }

    /// The same where nobody looks at it before it is gone from the caches.
    pub fn decode_past_cache(&self, onto: &mut [u8]) -> Result<(), Undecodable> {
        if self.codec.is_verbatim() && self.payload.len() == onto.len() {
            copy_past_cache(self.payload, onto);
            return Ok(());
        }
        self.decode(onto)
    }
}

/// The worker that submits to the shard.
pub trait Submitter {
    /// The next submission, if there is one.
    fn pop(&mut self) -> Option<Submission>;
    /// Whether there is none.
    fn is_empty(&self) -> bool;
    /// Wakes the worker if it waits for this: a tensor's number + 1, single chunks of it, or anything. What was stored before is seen by whoever is not
    /// asleep yet: it orders earlier stores before it looks for sleepers.
    fn tell(&self, topic: u32);
}

impl Submitter for Inlet {
    fn pop(&mut self) -> Option<Submission> {
        // The ring is this process's own: it cannot be broken but by this process.
        let words = self.pop().ok().flatten()?;
        Submission::decode(words).ok()
    }

    fn is_empty(&self) -> bool {
        self.is_empty()
    }

    fn tell(&self, topic: u32) {
        doorbell::published();
        if self.bell().must_ring(topic) {
            self.bell().ring();
        }
    }
}

/// All mirrors.
struct Mirrors<M> {
    job: u64,
    /// Workers of the job: the ranks below that may be named.
    workers: u32,
    tensors: Numbered<M>,
    /// Right factors that came of those of which updates do.
    shown: Numbered<Shown>,
}

impl<M: Mirrored> Mirrors<M> {
    /// Adds a frame to a batch, with what it carries of the lane. `None`: the tensor was not declared.
    fn push<'a, L: Link>(
        &'a self,
        batch: &mut Batch<'a>,
        frame: &Frame,
        squeezing: &mut Squeezing<'_, L>,
    ) -> Option<()> {
        let Frame { sequence, submission, payload } = *frame;
        let header = |wanted| Header::bare(self.job, sequence, Body::Submission { submission, wanted });
        let Some(carried) = payload else {
            let wanted = match submission {
                Submission::Skip { tensor, .. } => self.tensors.get(tensor)?.wants(),
                _ => false,
            };
            batch.push(header(wanted));
            return Some(());
        };
        let (Carried::Chunk { tensor, .. } | Carried::Rows { tensor, .. } | Carried::Piece { tensor, .. }) =
            carried;
        let mirrored = self.tensors.get(tensor)?;
        let wanted = matches!(submission, Submission::Push { .. }) && mirrored.wants();
        let source =
            |lane| if mirrored.is_lane_exposed() { Source::ExposedLane(lane) } else { Source::Lane(lane) };
        match carried {
            Carried::Chunk { chunk, .. } => {
                let sent = Sent { source: source(mirrored.contribution(chunk)), shadow: None, position: 0 };
                let agreed = (tensor, mirrored.contributions());
                batch.push_squeezed(header(wanted), agreed, &sent, squeezing);
            }
            Carried::Rows { chunk, rank, .. } => {
                batch.push_as(header(wanted), ROWS, source(mirrored.left_factor(rank, chunk)));
            }
            Carried::Piece { rank, index, .. } => {
                let bytes = factors::piece(mirrored.low_rank()?.right(rank), index);
                let factor = mirrored.right_factor(rank, bytes);
                batch.push_as(header(false), Encoding::RAW, source(factor));
            }
        }
        Some(())
    }
}

impl<M: Mirrored> Mirrors<M> {
    /// A piece of a right factor has come, of a tensor whose updates may name it.
    fn show(
        &mut self,
        tensor: TensorId,
        (name, rank, at): (Named, u32, u64),
        piece: &[u8],
    ) -> Result<(), String> {
        let Self { workers, tensors, shown, .. } = self;
        let mirrored = tensors.get(tensor).filter(|mirrored| mirrored.updates().is_some());
        let low_rank = mirrored.and_then(M::low_rank).filter(|_| name.writer < *workers);
        let low_rank = low_rank.ok_or_else(|| {
            format!("a factor of worker {} of tensor {tensor}, whose updates name none", name.writer)
        })?;
        if shown.get(tensor).is_none() {
            shown.insert(tensor, Shown::default());
        }
        let Some(shown) = shown.get_mut(tensor) else { return Ok(()) };
        shown.come(&low_rank, name, rank, at, piece).map_err(|refused| format!("tensor {tensor}: {refused}"))
    }
}

impl<M: Mirrored> Places for Mirrors<M> {
    /// What decodes the payload.
    type Place = &'static dyn Codec;

    fn place(&mut self, header: &Header) -> Result<Self::Place, String> {
        judge::notice(header, self.job, |notice| match *notice {
            Notice::Value { tensor, chunk, .. } => {
                let mirrored = self.tensors.get(tensor).filter(|mirrored| mirrored.updates().is_none())?;
                Some((*mirrored.values(), mirrored.bytes(chunk)?))
            }
            Notice::Update { tensor, chunk, .. } => {
                let mirrored = self.tensors.get(tensor)?;
                Some((mirrored.updates()?.agreed, mirrored.bytes(chunk)?))
            }
            Notice::Whole { tensor, chunk, .. } => {
                let mirrored = self.tensors.get(tensor)?;
                Some((mirrored.updates()?.agreed, mirrored.whole_bytes(chunk)?))
            }
            Notice::State { tensor, chunk } => {
                Some((Agreed::default(), self.tensors.get(tensor)?.state_bytes(chunk)?))
            }
            Notice::Raised { .. }
            | Notice::Folded { .. }
            | Notice::Fetched { .. }
            | Notice::Seal
            | Notice::Factor { .. }
            | Notice::Standing { .. }
            | Notice::Expected { .. }
            | Notice::Route
            | Notice::Lent { .. }
            | Notice::Taken => None,
        })
    }

    /// Beside the mirror: a payload may be damaged.
    fn memory<'a>(&'a mut self, _: &'a mut Self::Place) -> Option<&'a mut [u8]> {
        None
    }
}

/// What came with a notice that is acted on, decompressed into `room` if it was compressed, and counted.
fn decompressed<'a, M: Mirrored>(
    effect: &Effect,
    header: &Header,
    payload: &'a [u8],
    tensors: &Numbered<M>,
    (traffic, room): (&Traffic, &'a mut Vec<u8>),
) -> Result<&'a [u8], String> {
    let Effect::Publish { tensor, chunk, .. } = effect else { return Ok(payload) };
    let compress = tensors.get(*tensor).map(|mirrored| mirrored.values().compress());
    if compress.is_some_and(|compress| compress != Compress::None) {
        let mut one = Squeezed::default();
        one.count(payload.len(), header.packed);
        traffic.squeeze(Squeezed::default(), one);
    }
    unpack(header.packed, payload, room).map_err(|refused| format!("chunk {chunk}: {refused}"))
}

/// Does what a notice asks for, and what was waiting for that.
fn carry_out<M: Mirrored>(
    effect: Effect,
    value: &Value<'_>,
    (machine, tensors, shown): (&mut Mirror, &mut Numbered<M>, &Numbered<Shown>),
    (submitter, spent): (&impl Submitter, Option<&Spent>),
) -> Result<(), String> {
    let Some(tensor) = effect.tensor() else { return Ok(()) };
    let Some(mirrored) = tensors.get_mut(tensor) else { return Ok(()) };
    // Who waits for all of it is told where that may be over, who waits for some of its chunks always.
    let mut tell_all = true;
    match effect {
        Effect::Nothing => {}
        Effect::Publish { chunk, version, steps, progress, .. } => {
            let publish = || mirrored.publish(chunk, value, Published { version, steps });
            Spent::on_if(spent, Layer::Decode, publish)
                .map_err(|refused| format!("chunk {chunk}: {refused}"))?;
            tell_all = progress.is_some();
            progress.into_iter().for_each(|progress| mirrored.progress(progress));
        }
        Effect::Update { chunk, version, steps, progress, .. } => {
            let named = |what: String| format!("chunk {chunk}: {what}");
            let update = updated(mirrored, chunk, value, steps, shown.get(tensor)).map_err(named)?;
            let fold = || mirrored.update(chunk, &update, Published { version, steps });
            Spent::on_if(spent, Layer::Fold, fold).map_err(|refused| named(refused.to_string()))?;
            tell_all = progress.is_some();
            progress.into_iter().for_each(|progress| mirrored.progress(progress));
        }
        Effect::Whole { chunk, version, steps, progress, .. } => {
            let publish = || mirrored.whole(chunk, value, Published { version, steps });
            Spent::on_if(spent, Layer::Decode, publish)
                .map_err(|refused| format!("chunk {chunk}: {refused}"))?;
            tell_all = progress.is_some();
            progress.into_iter().for_each(|progress| mirrored.progress(progress));
        }
        Effect::Raise { chunk, count, version, steps, progress, .. } => {
            let first = mirrored.chunks().partition_point(|&homed| homed < chunk);
            for place in first..first + count as usize {
                let chunk = mirrored.chunks()[place];
                mirrored.raise(chunk, Published { version, steps });
            }
            tell_all = progress.is_some();
            progress.into_iter().for_each(|progress| mirrored.progress(progress));
        }
        Effect::State { chunk, .. } => {
            mirrored.state(chunk, value.payload);
            return Ok(());
        }
        Effect::Folded { count, .. } => mirrored.folded(count),
        Effect::Fetched { ticket, .. } => mirrored.fetched(ticket),
    }
    if let Some(ticket) = machine.take_returned(tensor) {
        mirrored.fetched(ticket);
        tell_all = true;
    }
    if tell_all {
        submitter.tell(tensor + 1);
    }
    submitter.tell(single_chunks(tensor + 1));
    Ok(())
}

/// Those that read here what was published are told of it.
fn show<M: Mirrored, L: Link>(
    effect: &Effect,
    (machine, mirrors): (&Mirror, &Mirrors<M>),
    children: &mut Children<L>,
) {
    let new = match *effect {
        Effect::Publish { tensor, chunk, .. } => (tensor, chunk, 1),
        Effect::Raise { tensor, chunk, count, .. } => (tensor, chunk, count),
        _ => return,
    };
    if let Some(stripe) = machine.stripe_of(new.0, new.1) {
        let (tensor, chunk, count) = new;
        let next = || {
            let chunks = mirrors.tensors.get(tensor)?.chunks();
            chunks.get(chunks.binary_search(&chunk).ok()? + count as usize).copied()
        };
        children.show(mirrors.job, stripe, new, next);
    }
}

/// The connection.
struct Wire<L> {
    link: L,
    reader: FrameReader<&'static dyn Codec>,
    writer: FrameWriter,
    /// Where chunks are encoded.
    outgoing: Vec<u8>,
    readable: bool,
    writable: bool,
    /// Whether a sign of life is due, if nothing else is.
    beat: bool,
}

/// What a look for one frame brought.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// A frame, which was taken.
    Frame,
    /// A header, which is judged at the next look.
    Header,
    /// Nothing now.
    Nothing,
    /// The end of the connection, which was given up.
    Over(Over),
}

/// Why a connection was given up.
#[derive(Debug, PartialEq, Eq)]
pub enum Over {
    /// It has ended, or brought damaged bytes: why. Another may be made.
    Ended(String),
    /// The shard broke the protocol: how.
    Broke(String),
}

/// What a look at everything came to.
#[derive(Debug, PartialEq, Eq)]
pub struct Looked {
    /// Whether anything was taken or sent.
    pub busy: bool,
    /// Whether the connection was given up, and why.
    pub over: Option<Over>,
}

/// The shard, over any link.
pub struct RemoteShard<M, S = Inlet, L = Stream> {
    limits: Limits,
    submitter: S,
    machine: Mirror,
    mirrors: Mirrors<M>,
    wire: Option<Wire<L>>,
    squeezer: Squeezer,
    /// Where what comes compressed is decompressed.
    unpacked: Vec<u8>,
    /// What became of chunks that may be compressed.
    traffic: Arc<Traffic>,
    /// Bytes that came on connections before this one.
    heard: u64,
    /// By what values are known that others pass on; `None`: no parent is believed.
    verifier: Option<Verifier>,
    /// Of the frame that comes next on the connection.
    seal: Vec<u8>,
    parents: Vec<Feeder<L>>,
    children: Children<L>,
    /// Where others come in that are to be fed; when those that wait were shown last that this end lives.
    entrance: Option<Receiver<NewChild<L>>>,
    reassured: Duration,
    /// How many of both feed, as it was counted last.
    place: (usize, usize),
    wishes: Vec<Wish>,
    left: Vec<Left>,
    /// Whose memory some values stand in; tensors that stand there no more, of which it is still to be told; why its worker cannot go
    /// on, if that could not be left.
    lender: Option<Rank>,
    /// Whether that is to feed it all stripes of a new cut, on another connection: who, and since when, once the time is known.
    carried: Option<(Parent, Option<Duration>)>,
    returned: Vec<TensorId>,
    failed: Option<String>,
    /// When it was last looked whether readers get what its lender lends, and how many more looks found that they do not than that they
    /// do; a worker that says goodbye waits for what a lender was writing, since when, once the time is known,
    /// and how long.
    looked: Duration,
    unread: u32,
    leaving: Option<Option<Duration>>,
    lacks_for: Duration,
    /// When it was last looked at the clock.
    ticked: Duration,
    spent: Option<Arc<Spent>>,
}

impl<M: Mirrored, S: Submitter, L: Link> RemoteShard<M, S, L> {
    /// A shard that no connection stands to. `job`: the job's number in frames.
    pub fn new(job: u64, submitter: S, limits: Limits) -> Self {
        let mirrors = Mirrors { job, workers: 0, tensors: Numbered::default(), shown: Numbered::default() };
        Self {
            limits,
            submitter,
            machine: Mirror::default(),
            mirrors,
            wire: None,
            squeezer: Squeezer::default(),
            unpacked: Vec::new(),
            traffic: Arc::default(),
            heard: 1,
            verifier: None,
            seal: Vec::new(),
            parents: Vec::new(),
            children: Children::default(),
            entrance: None,
            reassured: Duration::ZERO,
            place: (0, 0),
            wishes: Vec::new(),
            left: Vec::new(),
            lender: None,
            carried: None,
            returned: Vec::new(),
            failed: None,
            looked: Duration::ZERO,
            unread: 0,
            leaving: None,
            lacks_for: borrowing::LACKS_FOR,
            ticked: Duration::ZERO,
            spent: None,
        }
    }

    /// Counts the time that it takes.
    pub fn count_time(&mut self, spent: Arc<Spent>) {
        self.spent = Some(spent);
    }

    /// The job has so many workers: factors of others are not taken.
    pub fn of_workers(&mut self, workers: u32) {
        self.mirrors.workers = workers;
    }

    // Its worker

    /// Declares a tensor, as far as the shard is home of it.
    pub fn declare(&mut self, id: TensorId, mirrored: M) {
        // All but the tensor's last are as long as the longest.
        let longest = mirrored.chunks().first().and_then(|&chunk| mirrored.bytes(chunk)).unwrap_or(0);
        self.machine.declare(id, mirrored.chunks().to_vec(), longest as u64, mirrored.is_broadcast());
        if let Some(low_rank) = mirrored.low_rank() {
            self.machine.declare_factors(id, low_rank);
        }
        self.mirrors.tensors.insert(id, mirrored);
    }

    /// What is mirrored of a tensor.
    pub fn tensor(&self, id: TensorId) -> Option<&M> {
        self.mirrors.tensors.get(id)
    }

    /// The same, to be changed.
    pub fn tensor_mut(&mut self, id: TensorId) -> Option<&mut M> {
        self.mirrors.tensors.get_mut(id)
    }

    /// What the worker submits by.
    pub fn submitter(&mut self) -> &mut S {
        &mut self.submitter
    }

    // The connection

    /// The link, while a connection stands.
    pub fn link(&self) -> Option<&L> {
        self.wire.as_ref().map(|wire| &wire.link)
    }

    /// A new connection.
    pub fn attach(&mut self, link: L) {
        self.wire = Some(Wire {
            link,
            reader: FrameReader::reading_ahead(self.limits.read),
            writer: FrameWriter::default(),
            outgoing: Vec::new(),
            readable: true,
            writable: true,
            beat: false,
        });
        self.squeezer.connect();
        self.machine.connect();
        self.mirrors.shown.iter_mut().for_each(|(_, shown)| shown.connect());
    }

    /// The connection is given up; another may be made. What was said of parents was said on it.
    pub fn detach(&mut self) {
        self.parents.clear();
        self.carried = None;
        self.settle_loans();
        self.wishes.clear();
        self.count_place();
        self.seal.clear();
        if let Some(wire) = self.wire.take() {
            self.heard += wire.reader.heard();
        }
    }

    /// Whether the shard has spoken on this connection, or on the last one.
    pub fn is_resumed(&self) -> bool {
        self.machine.is_resumed()
    }

    /// Grows with what comes, over all connections.
    pub fn sign(&self) -> u64 {
        self.heard + self.wire.as_ref().map_or(0, |wire| wire.reader.heard())
    }

    /// A sign of life is due, if nothing else is sent.
    pub fn beat(&mut self) {
        if let Some(wire) = &mut self.wire {
            wire.beat = true;
        }
    }

    /// What has to be waited for, as long as neither is known to be ready.
    fn interest_of(&self, wire: &Wire<L>) -> Interest {
        let due = self.machine.is_resumed() && (wire.beat || self.machine.unsent() > 0);
        wire.link.interest(due || !wire.writer.is_clear())
    }

    /// What has to be waited for now.
    pub fn interest(&self) -> Option<Interest> {
        let wire = self.wire.as_ref()?;
        let Interest { read, write } = self.interest_of(wire);
        Some(Interest { read, write: write && !wire.writable })
    }

    /// The link is ready, as a wait said, or as is to be made sure of.
    pub fn ready(&mut self, read: bool, write: bool) {
        if let Some(wire) = &mut self.wire {
            wire.readable |= read;
            wire.writable |= write;
            if read {
                wire.reader.look_again();
            }
        }
    }

    /// Whether the link took all that it was last given.
    pub fn is_writable(&self) -> bool {
        self.wire.as_ref().is_some_and(|wire| wire.writable)
    }

    /// Whether there may be something to take or to send at once.
    pub fn has_work(&self) -> bool {
        let ready = |wire: &Wire<L>| wire.readable || (wire.writable && self.interest_of(wire).write);
        let reads = |feeder: &Feeder<L>| feeder.is_readable() && !self.children.is_full(feeder.stripes());
        let feeds = self.children.has_work() || self.parents.iter().any(reads);
        feeds || (self.has_room() && !self.submitter.is_empty()) || self.wire.as_ref().is_none_or(ready)
    }

    // A look

    /// Takes what the worker has submitted and what has come, `most` frames of it, and sends what is due. `declare` is called
    /// before a submission is taken: what it names was declared before, but that may still be on its way here.
    pub fn look(&mut self, most: usize, declare: impl FnMut(&mut Self)) -> Looked {
        self.let_in();
        let submitted = self.take_submissions(declare);
        let (heard, mut over) = self.receive(most);
        let mut passed = false;
        if over.is_none() {
            (passed, over) = self.hear_parents(most);
        }
        let spent = self.spent.as_deref().filter(|_| self.children.has_work());
        passed |= Spent::on_if(spent, Layer::Send, || self.children.send());
        self.go_on_leaving(None);
        let sent = self.send().unwrap_or_else(|error| {
            over = Some(Over::Ended(error.to_string()));
            true
        });
        self.count_place();
        Looked { busy: submitted || heard || passed || sent, over }
    }

    fn take_submissions(&mut self, mut declare: impl FnMut(&mut Self)) -> bool {
        let mut taken = false;
        while let Some(submission) = self.pop() {
            declare(self);
            taken = true;
            self.submit(submission);
        }
        if taken {
            self.submitter.tell(ANYTHING);
        }
        taken
    }

    fn receive(&mut self, most: usize) -> (bool, Option<Over>) {
        let mut taken = 0;
        while taken < most {
            match self.hear() {
                Heard::Frame => taken += 1,
                Heard::Header => {}
                Heard::Nothing => break,
                Heard::Over(over) => return (taken > 0, Some(over)),
            }
        }
        (taken > 0, None)
    }

    // What its worker submits

    fn has_room(&self) -> bool {
        self.machine.unsent() < self.limits.unsent
    }

    /// The next submission, if there is one and room for its frames.
    fn pop(&mut self) -> Option<Submission> {
        if !self.has_room() {
            return None;
        }
        self.submitter.pop()
    }

    /// Takes a submission. What it names was declared.
    pub fn submit(&mut self, submission: Submission) {
        // Behind it the others go on without this one, and its lender's memory with them.
        if submission == Submission::Leave {
            self.take_leave();
            if self.leaving.is_some() {
                return;
            }
        }
        self.machine.submit(submission);
    }

    /// How many frames the shard has taken, of how many that were submitted.
    pub fn progress(&self) -> (u64, u64) {
        self.machine.progress()
    }

    /// What becomes of chunks of tensors that may be compressed is counted there from now on: before what came is seen.
    pub fn count_in(&mut self, traffic: &Arc<Traffic>) {
        self.traffic = Arc::clone(traffic);
    }

    /// What became of them so far: of those that were sent, and of those that came.
    pub fn squeezed(&self) -> (Squeezed, Squeezed) {
        self.traffic.squeezed()
    }

    /// Whether everything that was submitted was taken.
    pub fn is_delivered(&self) -> bool {
        self.machine.is_delivered() && self.submitter.is_empty() && self.leaving.is_none()
    }

    // Receiving

    /// Takes the next frame, if it has come.
    pub fn hear(&mut self) -> Heard {
        let Some(wire) = self.wire.as_mut().filter(|wire| wire.readable) else { return Heard::Nothing };
        let next = || wire.reader.next(&mut wire.link, &mut self.mirrors);
        let over = match Spent::on_if(self.spent.as_deref(), Layer::Receive, next) {
            Step::Frame(header, codec) => match self.take(&header, codec) {
                Ok(()) => return Heard::Frame,
                Err(what) => Over::Broke(what),
            },
            Step::Header => return Heard::Header,
            Step::Nothing => {
                wire.readable = false;
                return Heard::Nothing;
            }
            Step::Ended(why) => Over::Ended(why),
            Step::Broke(what) => Over::Broke(what),
        };
        // What came behind it is not looked at.
        self.detach();
        Heard::Over(over)
    }

    /// Does what a frame says; how it broke the protocol, if it did.
    fn take(&mut self, header: &Header, codec: &dyn Codec) -> Result<(), String> {
        let (Body::Notice(notice), Some(wire)) = (header.body, &self.wire) else { return Ok(()) };
        let tensors = &mut self.mirrors.tensors;
        let wanted = |id| tensors.get(id).map_or(0, M::wanted);
        let effect =
            self.machine.hear(header.sequence, &notice, wanted).map_err(|broken| broken.to_string())?;
        if effect != Effect::Nothing {
            self.machine.brought(&notice, HEADER_BYTES as u64 + u64::from(header.length));
        }
        match notice {
            Notice::Seal => {
                self.seal.clear();
                self.seal.extend_from_slice(wire.reader.payload());
            }
            Notice::Route => {
                let route = Route::decode(wire.reader.payload()).map_err(|error| error.to_string())?;
                self.reroute(route);
            }
            Notice::Factor { tensor, name, rank, at } => {
                self.mirrors.show(tensor, (name, rank, at), wire.reader.payload())?;
            }
            _ => {}
        }
        let Self { machine, mirrors, wire: Some(wire), submitter, children, seal, spent, .. } = self else {
            return Ok(());
        };
        let (traffic, unpacked) = (&*self.traffic, &mut self.unpacked);
        // Before anything is done with it: the next one has it sooner.
        if matches!(effect, Effect::Publish { .. } | Effect::Raise { .. })
            && !seal.is_empty()
            && let Some(stripe) = machine.stripe(&notice)
            && let Some(tensor) = effect.tensor()
            && children.any_of(stripe, tensor)
        {
            children.pass_on((stripe, tensor), Passed::new(mirrors.job, seal, header, wire.reader.payload()));
        }
        if notice != Notice::Seal {
            seal.clear();
        }
        let spent = spent.as_deref();
        let payload = wire.reader.payload();
        let payload = Spent::on_if(spent, Layer::Decode, || {
            decompressed(&effect, header, payload, &mirrors.tensors, (traffic, unpacked))
        })?;
        let value = Value { header, payload, codec };
        let Mirrors { tensors, shown, .. } = mirrors;
        carry_out(effect, &value, (machine, tensors, shown), (submitter, spent))?;
        show(&effect, (machine, mirrors), children);
        Ok(())
    }

    // Sending

    /// Sends what is due, as far as the link takes it; whether it sent anything. An error has ended the connection.
    pub fn send(&mut self) -> std::io::Result<bool> {
        let sent = self.send_batches();
        if sent.is_err() {
            self.detach();
        }
        sent
    }

    fn send_batches(&mut self) -> std::io::Result<bool> {
        let mut busy = false;
        while let Some(wire) = self.wire.as_mut().filter(|wire| wire.writable) {
            let spent = self.spent.as_deref();
            let taken = if !Spent::on_if(spent, Layer::Send, || wire.writer.flush(&mut wire.link))? {
                false
            } else if self.machine.is_resumed()
                && let Some(taken) = Self::send_batch(
                    &mut self.machine,
                    &self.mirrors,
                    (&mut self.squeezer, &*self.traffic),
                    (wire, spent),
                )?
            {
                taken
            } else {
                break;
            };
            busy = true;
            wire.writable = taken;
        }
        Ok(busy)
    }

    /// Shows that this end lives, in the middle of something that takes long. An error is found when something else is sent.
    fn beat_now(job: u64, wire: &mut Wire<L>) {
        if !wire.writable || !wire.writer.flush(&mut wire.link).unwrap_or(false) {
            return;
        }
        let mut batch = Batch::new(&mut wire.outgoing);
        batch.push(Header::bare(job, 0, Body::Alive));
        wire.writable = wire.writer.send(&mut wire.link, &batch.frames()).unwrap_or(false);
    }

    /// Sends one batch: `None` if nothing is due, else whether the link took it whole.
    fn send_batch(
        machine: &mut Mirror,
        mirrors: &Mirrors<M>,
        (squeezer, traffic): (&mut Squeezer, &Traffic),
        (wire, spent): (&mut Wire<L>, Option<&Spent>),
    ) -> std::io::Result<Option<bool>> {
        let mut squeezing = squeezer.onto(&wire.link, 1);
        let mut batch = Batch::new(&mut wire.outgoing);
        while !batch.is_full() {
            let Some(frame) = machine.due() else { break };
            let pushed =
                Spent::on_if(spent, Layer::Encode, || mirrors.push(&mut batch, &frame, &mut squeezing));
            if pushed.is_none() {
                return Err(std::io::Error::other("a submission of a tensor that was not declared"));
            }
            machine.sent();
        }
        // Whatever is sent is a sign of life.
        let beats = std::mem::take(&mut wire.beat);
        if batch.is_empty() && beats {
            batch.push(Header::bare(mirrors.job, 0, Body::Alive));
        }
        if batch.is_empty() {
            return Ok(None);
        }
        traffic.squeeze(squeezer.take_sent(), Squeezed::default());
        Spent::on_if(spent, Layer::Send, || wire.writer.send(&mut wire.link, &batch.frames())).map(Some)
    }
}
