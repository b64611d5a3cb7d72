//! A peer on another host, as one shard sees it: its connection, over any link. Which of its frames were taken, and what is owed
//! to it, its machine knows ([`penstock_proto::remote::home`]).
//!
//! A payload is received straight into the peer's lane, or decompressed and decoded into it once all of it is here, and taken
//! only when it was verified. Of a contribution that comes as [factors](penstock_proto::factors) the right one is kept here, over connections, and
//! multiplied by the rows of the left one where another payload is decoded. A value is sent from where it stands.
//!
//! Where lanes and values lie is the shard's, by [`Homed`]: shared memory in a job, its own in the simulator. No byte and no
//! frame goes through a pointer to a function of theirs. When to look, and when a peer is silent, is the shard's, too.

use super::frames::{Batch, FrameReader, FrameWriter, Outgoing, Places, Step};
use super::link::{Interest, Link, Segment};
use super::squeeze::{Squeezer, unpack};
use super::stream::Stream;
use crate::spent::Spent;
use penstock_kernels::codec::{Base, Undecodable};
use penstock_kernels::{Factors, product, widen};
use penstock_proto::encoding::{Agreed, Encoding, Sent, Source};
use penstock_proto::factors::down::Named;
use penstock_proto::factors::{Held, LowRank, PIECE};
use penstock_proto::frame::{Body, HEADER_BYTES, Header, Notice};
use penstock_proto::layer::Layer;
use penstock_proto::numbered::Numbered;
use penstock_proto::peer::PeerId;
use penstock_proto::remote::home::{Chunks, Owing, Publication, Subscriber};
use penstock_proto::remote::judge::{self, FactorPart, Incoming, Lane, LanePart, Made};
use penstock_proto::seal::{Leaf, MOST_LEAVES, Sealer};
use penstock_proto::shard::{Judged, Shard};
use penstock_proto::update::{self, Updates};
use penstock_proto::{Rank, TensorId};
use smallvec::SmallVec;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// The memory of a shard, as far as peers on other hosts write it and are sent what stands there.
pub trait Homed: Chunks {
    /// Where the chunk lies in a lane, if it is homed here.
    fn homed(&self, tensor: TensorId, chunk: u32) -> Option<Range<usize>>;
    /// Where the chunk begins in the tensor, in bytes, if it is homed here.
    fn start(&self, tensor: TensorId, chunk: u32) -> Option<u64>;
    /// How contributions to a tensor travel that is declared here.
    fn contributions(&self, tensor: TensorId) -> &Agreed;
    /// Whether they may as factors.
    fn low_rank(&self, tensor: TensorId) -> Option<LowRank>;
    /// That part of a lane, which was found by the functions above, to be written: as long as its range, and the same bytes each
    /// time while its payload comes in pieces.
    fn receive(&mut self, part: &LanePart) -> &mut [u8];
    /// What came was worked on for as long as so many bytes take to be passed over: whoever waits may have to be shown that this
    /// end lives.
    fn worked(&mut self, _bytes: usize) {}
    /// To how many peers the thread sends a chunk's values itself: as often as it compresses them.
    fn links(&self, _tensor: TensorId, _local: usize) -> usize {
        1
    }
    /// A chunk's number.
    fn chunk(&self, tensor: TensorId, local: usize) -> u32;
    /// A chunk's number, how its values travel, and what of its value is sent to a peer at this position.
    fn value(&self, tensor: TensorId, local: usize, position: u64) -> (u32, &Agreed, Sent<'_>);
    /// How updates of a tensor travel, and what is sent whole beside them; `None`: it is values that are sent.
    fn updates(&self, _tensor: TensorId) -> Option<&Updates> {
        None
    }
    /// A chunk's number and its [update](penstock_proto::update::Kept::payload), which [leads](Chunks::update_base) to what stands
    /// there.
    fn update(&self, _tensor: TensorId, _local: usize) -> (u32, Encoding, &[u8]) {
        unreachable!("values are sent")
    }
    /// A worker's right factor is here, whole: it is kept where updates may name it.
    fn keep_right(&mut self, _tensor: TensorId, _writer: Rank, _rank: u32, _bytes: &[u8]) {}
    /// The product of these rows with that stands in that part of a lane: they are kept likewise, until something else is received
    /// there or it was folded.
    fn keep_rows(&mut self, _part: &LanePart, _rank: u32, _rows: &[u8]) {}
    /// A right factor that an update [names](Chunks::needed).
    fn right(&self, _tensor: TensorId, _name: Named) -> &[u8] {
        unreachable!("no update names one")
    }
    /// A chunk's number, and what stands there of its value.
    fn standing(&self, _tensor: TensorId, _local: usize) -> (u32, &[u8]) {
        unreachable!("values are sent")
    }
    /// What seals values that are passed on, if any are.
    fn sealer(&self) -> Option<&Sealer>;
    /// A chunk's number and the optimizer's arrays of it, to be sent.
    fn state(&self, tensor: TensorId, local: usize) -> (u32, &[u8]);
}

/// The connection.
struct Wire<L> {
    link: L,
    reader: FrameReader<Incoming>,
    writer: FrameWriter,
    /// Where chunks are encoded that are not sent from where they are.
    outgoing: Vec<u8>,
    /// Whether the link may have something.
    readable: bool,
    /// Whether the link takes something.
    writable: bool,
    /// Whether it is not read for now.
    paused: bool,
    /// What the shard's poll watches.
    watched: Interest,
}

/// One peer, over any link.
pub struct RemotePeer<L = Stream> {
    job: u64,
    peer: PeerId,
    wire: Option<Wire<L>>,
    subscriber: Subscriber,
    factors: Kept,
    squeezer: Squeezer,
    received: u64,
    sent: u64,
    /// Frames without a value that were sealed since it was asked last.
    sealed_bare: usize,
    /// Whether it passes on what it is sent, which is sealed then.
    passes_on: bool,
    spent: Option<Arc<Spent>>,
}

/// The right factors of a peer's contributions, room to widen rows of a left one in, and to decompress payloads in.
#[derive(Default)]
struct Kept {
    right: Numbered<Held>,
    rows: Vec<u8>,
    unpacked: Vec<u8>,
}

/// What a look at the connection brought.
pub enum Heard {
    /// A submission.
    Submission(Taken),
    /// A sign of life.
    Alive,
    /// A header, which is judged at the next look.
    Header,
    /// Nothing now.
    Nothing,
    /// The connection has ended, or brought damaged bytes: it was given up, and the peer may make another.
    Ended(String),
    /// It broke the protocol. The connection stands, and must be given up.
    Broke(String),
}

/// A submission that has come whole, and was taken.
pub struct Taken {
    /// What it says.
    pub judged: Judged,
    /// Whether its result is wanted.
    pub wanted: bool,
    /// Bytes that came with it, decompressed.
    pub bytes: u32,
    /// What they were encoded by.
    pub encoding: Encoding,
}

/// Judges frames of one peer before their payload is let in.
struct Judge<'a, H> {
    job: u64,
    peer: PeerId,
    subscriber: &'a Subscriber,
    machine: &'a Shard,
    factors: &'a mut Kept,
    memory: &'a mut H,
}

impl<H: Homed> Places for Judge<'_, H> {
    type Place = Incoming;

    fn place(&mut self, header: &Header) -> Result<Incoming, String> {
        let Self { job, peer, subscriber, machine, factors, memory } = self;
        let lane = |rank, tensor, chunk| {
            let range = memory.homed(tensor, chunk).filter(|_| memory.has_lane(tensor, rank))?;
            let (start, agreed) = (memory.start(tensor, chunk)?, *memory.contributions(tensor));
            Some(Lane { range, start, agreed, low_rank: memory.low_rank(tensor) })
        };
        let low_rank = |rank, tensor| memory.low_rank(tensor).filter(|_| memory.has_lane(tensor, rank));
        let held = |tensor| factors.right.get(tensor);
        judge::submission(header, *job, *peer, (machine, subscriber), lane, low_rank, held)
    }

    fn memory<'a>(&'a mut self, place: &'a mut Incoming) -> Option<&'a mut [u8]> {
        match place {
            Incoming::Alive | Incoming::Submission(_, None) => Some(&mut []),
            Incoming::Factor(_, FactorPart { tensor, low_rank, rank, piece }) => {
                if self.factors.right.get(*tensor).is_none() {
                    self.factors.right.insert(*tensor, Held::default());
                }
                let held = self.factors.right.get_mut(*tensor)?;
                Some(held.receive(low_rank, *rank, piece.clone()))
            }
            Incoming::Submission(_, Some(part)) if part.is_verbatim() => Some(self.memory.receive(part)),
            Incoming::Submission(_, Some(_)) => None,
        }
    }
}

/// The payload is here, verified: decodes it into its lane, if it is not there already, or multiplies it.
fn settle(
    part: &LanePart,
    payload: &[u8],
    factors: &mut Kept,
    memory: &mut impl Homed,
) -> Result<(), Undecodable> {
    match part.made {
        Made::By(_) if part.is_verbatim() => Ok(()),
        Made::By(codec) => {
            let payload = unpack(part.packed, payload, &mut factors.unpacked)?;
            codec.decode(payload, Base::Zeros, memory.receive(part))
        }
        Made::Product { low_rank: LowRank { dtype, columns, .. }, rank, column } => {
            let Kept { right, rows, .. } = factors;
            rows.resize(payload.len() / dtype.size() * dtype.accumulator_size(), 0);
            widen(dtype, payload, rows);
            let v = right.get(part.tensor).map_or(&[][..], Held::whole);
            let (columns, rank) = (columns as usize, rank as usize);
            let lane = memory.receive(part);
            let work = lane.len().saturating_mul(rank.max(1));
            product(dtype, Factors { u: rows, v, columns, rank }, column, lane);
            memory.keep_rows(part, rank as u32, payload);
            memory.worked(work);
            Ok(())
        }
    }
}

impl<L: Link> RemotePeer<L> {
    /// A peer that has no connection. `job`: the job's number in frames.
    pub fn new(job: u64, peer: PeerId) -> Self {
        let (subscriber, factors, squeezer) = (Subscriber::default(), Kept::default(), Squeezer::default());
        let (wire, spent) = (None, None);
        let (received, sent, sealed_bare, passes_on) = (0, 0, 0, false);
        Self { job, peer, wire, subscriber, factors, squeezer, received, sent, sealed_bare, passes_on, spent }
    }

    /// Counts the time that it takes.
    pub fn count_time(&mut self, spent: Arc<Spent>) {
        self.spent = Some(spent);
    }

    /// Who is at the other end.
    pub fn peer(&self) -> PeerId {
        self.peer
    }

    /// What is owed to the peer.
    pub fn subscriber(&mut self) -> &mut Subscriber {
        &mut self.subscriber
    }

    /// Whether it passes on what it is sent. Who once has does so on the same connection as long as it feeds anybody who has not
    /// found another.
    pub fn passes_on(&mut self, passes_on: bool) {
        self.passes_on |= passes_on;
    }

    /// How far ahead of the others' folds its contributions are.
    pub fn lead(&self) -> u64 {
        self.subscriber.lead()
    }

    /// Bytes of frames that were taken so far.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Bytes of frames that were sent so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Frames without a value that were sealed since this was asked last: what they take no bytes show.
    pub fn take_sealed_bare(&mut self) -> usize {
        std::mem::take(&mut self.sealed_bare)
    }

    // The connection

    /// The link, while a connection stands.
    pub fn link(&self) -> Option<&L> {
        self.wire.as_ref().map(|wire| &wire.link)
    }

    /// A new connection, instead of the one before. The poll begins by watching what there is to read.
    pub fn attach(&mut self, link: L) {
        self.wire = Some(Wire {
            link,
            reader: FrameReader::new(),
            writer: FrameWriter::default(),
            outgoing: Vec::new(),
            readable: true,
            writable: true,
            paused: false,
            watched: Interest { read: true, write: false },
        });
        self.passes_on = false;
        self.squeezer.connect();
        self.subscriber.connect();
    }

    /// The connection is over; the peer may make another.
    pub fn detach(&mut self) {
        self.wire = None;
        self.subscriber.disconnect();
    }

    /// The peer has said goodbye: nothing may follow.
    pub fn let_go(&mut self) {
        self.subscriber.let_go();
    }

    /// Bytes that ever came on this connection.
    pub fn heard(&self) -> u64 {
        self.wire.as_ref().map_or(0, |wire| wire.reader.heard())
    }

    /// The link is ready, as the poll says.
    pub fn ready(&mut self, read: bool, write: bool) {
        if let Some(wire) = &mut self.wire {
            wire.readable |= read;
            wire.writable |= write;
            if read {
                wire.reader.look_again();
            }
        }
    }

    /// Reads on, or not for now.
    pub fn pause(&mut self, pause: bool) {
        if let Some(wire) = &mut self.wire {
            wire.paused = pause;
        }
    }

    /// Whether it is not read for now.
    pub fn is_paused(&self) -> bool {
        self.wire.as_ref().is_some_and(|wire| wire.paused)
    }

    /// Whether there may be something to take or to send at once.
    pub fn has_work(&self) -> bool {
        let has_output = |wire: &Wire<L>| wire.writable && self.interest(wire).write;
        self.wire.as_ref().is_some_and(|wire| (wire.readable && !wire.paused) || has_output(wire))
    }

    fn interest(&self, wire: &Wire<L>) -> Interest {
        wire.link.interest(self.subscriber.has_due() || !wire.writer.is_clear())
    }

    /// The poll watches for nothing any more.
    pub fn left_poll(&mut self) {
        if let Some(wire) = &mut self.wire {
            wire.watched = Interest { read: false, write: false };
        }
    }

    /// What the poll has to watch from now on, if that has changed.
    pub fn change_of_interest(&mut self) -> Option<Interest> {
        let Interest { read, write } = self.interest(self.wire.as_ref()?);
        let wire = self.wire.as_mut()?;
        let wanted = Interest { read: read && !wire.paused, write: write && !wire.writable };
        (wire.watched != wanted).then(|| {
            wire.watched = wanted;
            wanted
        })
    }

    // What comes

    /// The next submission.
    pub fn hear(&mut self, machine: &Shard, memory: &mut impl Homed) -> Heard {
        let Self { job, peer, wire, subscriber, factors, spent, .. } = self;
        let spent = spent.as_deref();
        let Some(wire) = wire.as_mut().filter(|wire| wire.readable) else { return Heard::Nothing };
        let mut judge = Judge { job: *job, peer: *peer, subscriber, machine, factors, memory };
        let step = Spent::on_if(spent, Layer::Receive, || wire.reader.next(&mut wire.link, &mut judge));
        if let Step::Frame(header, _) = &step {
            // Whatever the frame says, its bytes have come.
            self.received += HEADER_BYTES as u64 + u64::from(header.length);
        }
        match step {
            Step::Frame(header, Incoming::Submission(judged, part)) => {
                let mut settle = |part| {
                    Spent::on_if(spent, Layer::Decode, || {
                        settle(part, wire.reader.payload(), factors, memory)
                    })
                };
                if let Some(part) = part
                    && let Err(undecodable) = settle(&part)
                {
                    return Heard::Broke(undecodable.to_string());
                }
                self.taken(&header, judged)
            }
            Step::Frame(header, Incoming::Factor(judged, FactorPart { tensor, rank, piece, .. })) => {
                if let Some(held) = factors.right.get_mut(tensor) {
                    held.came(piece);
                    if let (Some(writer), Some(whole)) = (peer.rank(), held.complete(rank)) {
                        memory.keep_right(tensor, writer, rank, whole);
                    }
                }
                self.taken(&header, judged)
            }
            Step::Frame(_, Incoming::Alive) => Heard::Alive,
            Step::Header => Heard::Header,
            Step::Nothing => {
                wire.readable = false;
                Heard::Nothing
            }
            Step::Ended(why) => {
                self.detach();
                Heard::Ended(why)
            }
            Step::Broke(what) => Heard::Broke(what),
        }
    }

    /// A frame was taken whole.
    fn taken(&mut self, header: &Header, judged: Judged) -> Heard {
        if let Err(broken) = self.subscriber.take() {
            return Heard::Broke(broken.to_string());
        }
        let &Header { body, encoding, .. } = header;
        // As many as are worked on.
        // What it became behind them did not cross the network.
        let bytes = header.length;
        let wanted = matches!(body, Body::Submission { wanted: true, .. });
        Heard::Submission(Taken { judged, wanted, bytes, encoding })
    }

    // What goes

    /// Sends what is due, as far as the link takes it; whether it sent anything. An error has ended the connection.
    pub fn send(&mut self, memory: &impl Homed) -> io::Result<bool> {
        let sent = self.send_batches(memory);
        if sent.is_err() {
            self.detach();
        }
        sent
    }

    /// A sign of life, if the link takes one at once. Nothing of memory is sent, which somebody may be at work on. Where the link is
    /// broken, whoever reads or sends next finds that.
    pub fn beat(&mut self) {
        let _ = self.try_beat();
    }

    fn try_beat(&mut self) -> io::Result<()> {
        let Self { job, wire: Some(wire), subscriber, .. } = self else { return Ok(()) };
        // Whether it takes more by now nobody has asked meanwhile.
        if !wire.writer.flush(&mut wire.link)? {
            return Ok(());
        }
        let mut batch = Batch::new(&mut wire.outgoing);
        batch.push(Header::bare(*job, subscriber.tell(), Body::Notice(Notice::Taken)));
        self.sent += (batch.bytes() + batch.len() * HEADER_BYTES) as u64;
        wire.writable = wire.writer.send(&mut wire.link, &batch.frames())?;
        Ok(())
    }

    fn send_batches(&mut self, memory: &impl Homed) -> io::Result<bool> {
        let mut busy = false;
        while let Some(wire) = self.wire.as_mut().filter(|wire| wire.writable) {
            let spent = self.spent.as_deref();
            let taken = if !Spent::on_if(spent, Layer::Send, || wire.writer.flush(&mut wire.link))? {
                false
            } else if let Some(taken) = self.send_batch(memory)? {
                taken
            } else {
                break;
            };
            busy = true;
            if let Some(wire) = &mut self.wire {
                wire.writable = taken;
            }
        }
        Ok(busy)
    }

    /// Sends one batch: `None` if nothing is due, else whether the link took it whole.
    fn send_batch(&mut self, memory: &impl Homed) -> io::Result<Option<bool>> {
        let Self { job, wire: Some(wire), subscriber, passes_on, squeezer, spent, sealed_bare, .. } = self
        else {
            return Ok(None);
        };
        let spent = spent.as_deref();
        let mut squeezing = squeezer.onto(&wire.link, 1);
        let sealer = memory.sealer().filter(|_| *passes_on);
        let mut batch = Batch::new(&mut wire.outgoing);
        // A seal before each takes as many frames again.
        while !batch.is_full() && (sealer.is_none() || batch.len() < SEALED) {
            let Some(owing) = subscriber.next(memory) else { break };
            if let Owing::Route(route) = &owing {
                let header = Header::bare(*job, subscriber.tell(), Body::Notice(Notice::Route));
                batch.push_bytes(header, route);
                continue;
            }
            if let Owing::Value { tensor, local, .. } = owing {
                squeezing.serves(memory.links(tensor, local));
            }
            let (notice, carried) = notice(owing, memory);
            let header = Header::bare(*job, subscriber.tell(), Body::Notice(notice));
            match carried {
                Carried::Chunk(tensor, agreed, sent) => {
                    squeezing.goes_on(*passes_on && memory.goes_by_trees(tensor));
                    let push = || batch.push_squeezed(header, (tensor, agreed), &sent, &mut squeezing);
                    Spent::on_if(spent, Layer::Encode, push);
                }
                Carried::Factor(piece) => batch.push_as(header, Encoding::RAW, Source::Stands(piece)),
                Carried::Update(encoding, update) => {
                    let source = Source::Stands(update);
                    Spent::on_if(spent, Layer::Encode, || batch.push_as(header, encoding, source));
                }
                Carried::Whole(agreed, value, state) => Spent::on_if(spent, Layer::Encode, || {
                    let (encoding, payload) = update::whole(agreed, value, state);
                    batch.push_bytes_as(header, encoding, &payload);
                }),
                Carried::Nothing => batch.push(header),
            }
        }
        if batch.is_empty() {
            if !subscriber.must_tell() {
                return Ok(None);
            }
            batch.push(Header::bare(*job, subscriber.tell(), Body::Notice(Notice::Taken)));
        }
        let Some(sealer) = sealer else {
            self.sent += (batch.bytes() + batch.len() * HEADER_BYTES) as u64;
            let frames = batch.frames();
            return Spent::on_if(spent, Layer::Send, || wire.writer.send(&mut wire.link, &frames)).map(Some);
        };
        let mut seals = Seals::default();
        let frames = batch.frames();
        let since = spent.map(|spent| (spent, Instant::now()));
        let (frames, bare) = seals.put_before(&frames, *job, (sealer, memory));
        *sealed_bare += bare;
        if let Some((spent, since)) = since {
            spent.add(Layer::Encode, since.elapsed());
        }
        self.sent +=
            frames.iter().map(|(header, payload)| (header.len() + payload.len()) as u64).sum::<u64>();
        Spent::on_if(spent, Layer::Send, || wire.writer.send(&mut wire.link, &frames)).map(Some)
    }
}

/// Frames of a batch that are sealed, at most: as many seals are sent with them.
const SEALED: usize = 8;
const _: () = assert!(SEALED <= MOST_LEAVES);

/// Where a seal is among those of its batch, and its header.
type Seal = (Range<usize>, [u8; HEADER_BYTES]);

/// The seals of one batch.
#[derive(Default)]
struct Seals {
    bytes: Vec<u8>,
    /// Of each frame that has one: where its seal begins in them, and the header of that.
    of: SmallVec<[Option<Seal>; SEALED]>,
}

impl Seals {
    /// The frames, each value and each raised version behind its seal; and how many of those that have one carry nothing.
    fn put_before<'a>(
        &'a mut self,
        frames: &[Outgoing<'a>],
        job: u64,
        (sealer, memory): (&Sealer, &impl Chunks),
    ) -> (SmallVec<[Outgoing<'a>; 2 * SEALED]>, usize) {
        let leaf = |(header, payload): &Outgoing<'_>| {
            let header = Header::decode(header).ok()?;
            let Body::Notice(Notice::Value { tensor, .. } | Notice::Raised { tensor, .. }) = header.body
            else {
                return None;
            };
            // What goes to all from here is not passed on.
            if !memory.goes_by_trees(tensor) {
                return None;
            }
            match payload {
                Segment::Own(payload) => Some((sealer.leaf(&header, payload), header.sequence)),
                // Values stand in memory of our own.
                Segment::Foreign(_) => None,
            }
        };
        let leaves: SmallVec<[Option<(Leaf, u64)>; SEALED]> = frames.iter().map(leaf).collect();
        let is_bare = |payload: &Segment<'_>| matches!(payload, Segment::Own(payload) if payload.is_empty());
        let bare = frames
            .iter()
            .zip(&leaves)
            .filter(|((_, payload), leaf)| leaf.is_some() && is_bare(payload))
            .count();
        let sealed: SmallVec<[Leaf; SEALED]> = leaves.iter().flatten().map(|&(leaf, _)| leaf).collect();
        let mut ranges: SmallVec<[Range<usize>; SEALED]> = SmallVec::new();
        if !sealed.is_empty() {
            sealer.seal(&sealed, |_, proof| {
                let at = self.bytes.len();
                self.bytes.extend_from_slice(proof);
                ranges.push(at..self.bytes.len());
            });
        }
        let mut ranges = ranges.into_iter();
        for leaf in leaves {
            let sealed = leaf.and_then(|(_, sequence)| Some((ranges.next()?, sequence)));
            self.of.push(sealed.map(|(range, sequence)| {
                let header = Header::bare(job, sequence, Body::Notice(Notice::Seal));
                let header = header.with_payload(&self.bytes[range.clone()]);
                (range, header.encode())
            }));
        }
        let mut all = SmallVec::new();
        for (frame, seal) in frames.iter().zip(&self.of) {
            if let Some((range, header)) = seal {
                all.push((*header, Segment::Own(&self.bytes[range.clone()])));
            }
            all.push(*frame);
        }
        (all, bare)
    }
}

/// What goes with a notice.
enum Carried<'a> {
    Nothing,
    /// A chunk, to be encoded.
    Chunk(TensorId, &'a Agreed, Sent<'a>),
    /// An update, as it is kept.
    Update(Encoding, &'a [u8]),
    /// A piece of a right factor.
    Factor(&'a [u8]),
    /// A chunk's value and state.
    Whole(&'a Agreed, &'a [u8], &'a [u8]),
}

/// What is said of that, and what goes with it.
fn notice(owing: Owing, memory: &impl Homed) -> (Notice, Carried<'_>) {
    match owing {
        Owing::Update { tensor, local, publication, base } => {
            let (chunk, encoding, update) = memory.update(tensor, local);
            let Publication { version, steps, sequence, changed } = publication;
            // What it leads to: versions may have passed since without another.
            let publication = changed.min(sequence);
            let notice = Notice::Update { tensor, chunk, version, steps, publication, base };
            (notice, Carried::Update(encoding, update))
        }
        Owing::Factor { tensor, name, rank, at } => {
            let right = memory.right(tensor, name);
            let piece = &right[at..(at + PIECE).min(right.len())];
            (Notice::Factor { tensor, name, rank, at: at as u64 }, Carried::Factor(piece))
        }
        Owing::Whole { tensor, local, publication } => {
            let (chunk, value) = memory.standing(tensor, local);
            let (_, state) = memory.state(tensor, local);
            let Publication { version, steps, sequence: publication, changed } = publication;
            let content = changed.min(publication);
            let notice = Notice::Whole { tensor, chunk, version, steps, publication, content };
            let agreed = memory.updates(tensor).map_or(&Agreed::RAW, |updates| &updates.agreed);
            (notice, Carried::Whole(agreed, value, state))
        }
        Owing::Value { tensor, local, publication, position } => {
            let (chunk, agreed, sent) = memory.value(tensor, local, position);
            let Publication { version, steps, sequence, changed } = publication;
            let content = changed.min(sequence);
            let notice =
                Notice::Value { tensor, chunk, version, steps, publication: sequence, base: 0, content };
            (notice, Carried::Chunk(tensor, agreed, sent))
        }
        Owing::Raised { tensor, local, count, version, steps, contents } => {
            let chunk = memory.chunk(tensor, local);
            (
                Notice::Raised { tensor, chunk, count: count as u32, version, steps, contents },
                Carried::Nothing,
            )
        }
        Owing::State { tensor, local } => {
            let (chunk, state) = memory.state(tensor, local);
            let sent = Sent { source: Source::Stands(state), shadow: None, position: 0 };
            (Notice::State { tensor, chunk }, Carried::Chunk(tensor, &Agreed::RAW, sent))
        }
        Owing::Standing { tensor, stripe, digest } => {
            (Notice::Standing { tensor, stripe, digest }, Carried::Nothing)
        }
        Owing::Expected { tensor, local, held } => {
            let first = memory.chunk(tensor, local);
            (Notice::Expected { tensor, first, held }, Carried::Nothing)
        }
        Owing::Route(_) => (Notice::Route, Carried::Nothing),
        Owing::Folded { tensor, count } => (Notice::Folded { tensor, count }, Carried::Nothing),
        Owing::Fetched { tensor, ticket } => (Notice::Fetched { tensor, ticket }, Carried::Nothing),
    }
}
