//! A shard of another host, as its proxy sees it: the ring to it, the mirrors of its chunks, and its connection, over any link.
//! What has come, and what is asked for again on a new connection, its machine knows ([`penstock_proto::remote::mirror`]).
//!
//! Frames are encoded out of the lane; values are received beside the mirror, verified, and then decoded and published in it, so
//! that no reader ever sees half a chunk or a damaged one. Behind a breach of the protocol nothing more is taken: the
//! connection is given up with it.

use super::RemoteHome;
use penstock_fabric::doorbell;
use penstock_fabric::inlet::Inlet;
use penstock_fabric::memory::{HomeMemory, LaneView, StateMirror};
use penstock_fabric::net::frames::{Batch, FrameReader, FrameWriter, Places, Step};
use penstock_fabric::net::link::{Interest, Link};
use penstock_fabric::net::stream::Stream;
use penstock_fabric::publish::Published;
use penstock_fabric::sync::Ordering;
use penstock_kernels::codec::{Base, Codec, Undecodable};
use penstock_proto::TensorId;
use penstock_proto::encoding::{Agreed, Sent, Source};
use penstock_proto::frame::{Body, Header, Notice};
use penstock_proto::numbered::Numbered;
use penstock_proto::remote::judge;
use penstock_proto::remote::mirror::{Effect, Frame, Mirror};
use penstock_proto::submission::Submission;
use penstock_proto::travel::Terms;
use std::sync::Arc;

/// Frames that wait to be sent at most, before more is taken from the ring.
const MOST_UNSENT: u64 = 4096;
/// Bytes of values that one read brings at most.
const READ: usize = 256 * 1024;

/// Where the chunks of one tensor are mirrored that the shard is home of.
pub(super) struct Mirrored {
    pub(super) home: HomeMemory,
    pub(super) lane: LaneView,
    pub(super) remote: Arc<RemoteHome>,
    pub(super) state: Option<StateMirror>,
    /// How its chunks travel, both ways.
    pub(super) terms: Arc<Terms>,
}

impl Mirrored {
    /// Decodes a chunk's new value and publishes it. Readers never see a payload that is refused.
    fn publish(
        &mut self,
        chunk: u32,
        codec: &dyn Codec,
        payload: &[u8],
        base: Base,
        published: Published,
    ) -> Result<(), Undecodable> {
        let mut place = self.home.chunk(chunk);
        place.header.begin();
        match codec.decode(payload, base, place.value) {
            Ok(()) => place.header.publish(published),
            Err(refused) => {
                place.header.leave();
                return Err(refused);
            }
        }
        Ok(())
    }
}

/// All mirrors.
struct Mirrors {
    job: u64,
    tensors: Numbered<Mirrored>,
}

impl Mirrors {
    /// The tensor's memory, if the shard is home of the chunk.
    fn of(&self, tensor: TensorId, chunk: u32) -> Option<&Mirrored> {
        self.tensors.get(tensor).filter(|mirrored| mirrored.home.find(chunk).is_some())
    }

    /// Adds a frame to a batch, with what it carries of the lane. `None`: the tensor was not declared.
    fn push<'a>(&'a self, batch: &mut Batch<'a>, frame: &Frame) -> Option<()> {
        let Frame { sequence, submission, payload } = *frame;
        let header = |wanted| Header::bare(self.job, sequence, Body::Submission { submission, wanted });
        let Some((tensor, chunk)) = payload else {
            batch.push(header(false));
            return Some(());
        };
        let mirrored = self.tensors.get(tensor)?;
        let is_push = matches!(submission, Submission::Push { .. });
        let wanted = is_push && mirrored.remote.wants.load(Ordering::Relaxed);
        let source = Source::Lane(mirrored.lane.contribution(mirrored.home.range(chunk)));
        batch.push_chunk(
            header(wanted),
            &mirrored.terms.contributions,
            &Sent { source, shadow: None, position: 0 },
        );
        Some(())
    }
}

impl Places for Mirrors {
    /// What decodes the payload.
    type Place = &'static dyn Codec;

    fn place(&mut self, header: &Header) -> Result<Self::Place, String> {
        judge::notice(header, self.job, |notice| match *notice {
            Notice::Value { tensor, chunk, .. } => {
                let mirrored = self.of(tensor, chunk)?;
                Some((mirrored.terms.values, mirrored.home.range(chunk).len()))
            }
            Notice::State { tensor, chunk } => {
                let state = self.of(tensor, chunk)?.state.as_ref()?;
                Some((Agreed::default(), state.bytes(chunk)))
            }
            Notice::Folded { .. } | Notice::Fetched { .. } | Notice::Taken => None,
        })
    }

    /// Beside the mirror: a payload may be damaged.
    fn memory<'a>(&'a mut self, _: &'a mut Self::Place) -> Option<&'a mut [u8]> {
        None
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

/// What a look at the connection brought.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// A frame, which was taken.
    Frame,
    /// A header, which is judged at the next look.
    Header,
    /// Nothing now.
    Nothing,
    /// The connection has ended: why. Another may be made.
    Ended(String),
    /// The shard broke the protocol: how. The connection was given up.
    Broke(String),
}

/// The shard, over any link.
pub(super) struct RemoteShard<L = Stream> {
    shard: u32,
    inlet: Inlet,
    machine: Mirror,
    mirrors: Mirrors,
    wire: Option<Wire<L>>,
    /// Bytes that came on connections before this one.
    heard: u64,
}

impl<L: Link> RemoteShard<L> {
    /// Shard `shard`, which no connection stands to. `job`: the job's number in frames.
    pub(super) fn new(job: u64, shard: u32, inlet: Inlet) -> Self {
        let mirrors = Mirrors { job, tensors: Numbered::default() };
        Self { shard, inlet, machine: Mirror::default(), mirrors, wire: None, heard: 1 }
    }

    // What its worker declares

    /// A tensor, as far as the shard is home of it.
    pub(super) fn declare(&mut self, id: TensorId, mirrored: Mirrored) {
        self.machine.declare(id, mirrored.home.chunks().to_vec());
        self.mirrors.tensors.insert(id, mirrored);
    }

    /// Where the state of a tensor goes.
    pub(super) fn give_state(&mut self, id: TensorId, state: StateMirror) {
        if let Some(mirrored) = self.mirrors.tensors.get_mut(id) {
            mirrored.state = Some(state);
        }
    }

    // The connection

    pub(super) fn link(&self) -> Option<&L> {
        self.wire.as_ref().map(|wire| &wire.link)
    }

    /// A new connection.
    pub(super) fn attach(&mut self, link: L) {
        self.wire = Some(Wire {
            link,
            reader: FrameReader::reading_ahead(READ),
            writer: FrameWriter::default(),
            outgoing: Vec::new(),
            readable: true,
            writable: true,
            beat: false,
        });
        self.machine.connect();
    }

    /// The connection is given up; another may be made.
    pub(super) fn detach(&mut self) {
        if let Some(wire) = self.wire.take() {
            self.heard += wire.reader.heard();
        }
    }

    /// Whether the shard has spoken on this connection, or on the last one.
    pub(super) fn is_resumed(&self) -> bool {
        self.machine.is_resumed()
    }

    /// Grows with what comes, over all connections.
    pub(super) fn sign(&self) -> u64 {
        self.heard + self.wire.as_ref().map_or(0, |wire| wire.reader.heard())
    }

    /// A sign of life is due, if nothing else is sent.
    pub(super) fn beat(&mut self) {
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
    pub(super) fn interest(&self) -> Option<Interest> {
        let wire = self.wire.as_ref()?;
        let Interest { read, write } = self.interest_of(wire);
        Some(Interest { read, write: write && !wire.writable })
    }

    /// The link is ready, as a wait said, or as is to be made sure of.
    pub(super) fn ready(&mut self, read: bool, write: bool) {
        if let Some(wire) = &mut self.wire {
            wire.readable |= read;
            wire.writable |= write;
            if read {
                wire.reader.look_again();
            }
        }
    }

    /// Whether the link took all that it was last given.
    pub(super) fn is_writable(&self) -> bool {
        self.wire.as_ref().is_some_and(|wire| wire.writable)
    }

    /// Whether there may be something to take or to send at once.
    pub(super) fn has_work(&self) -> bool {
        let ready = |wire: &Wire<L>| wire.readable || (wire.writable && self.interest_of(wire).write);
        (self.has_room() && !self.inlet.is_empty()) || self.wire.as_ref().is_none_or(ready)
    }

    // What its worker submits

    fn has_room(&self) -> bool {
        self.machine.unsent() < MOST_UNSENT
    }

    /// The next submission of the ring, if there is one and room for its frames.
    pub(super) fn pop(&mut self) -> Option<Submission> {
        if !self.has_room() {
            return None;
        }
        // The ring is this process's own: it cannot be broken but by this process.
        let words = self.inlet.pop().ok().flatten()?;
        Submission::decode(words).ok()
    }

    /// Takes a submission. What it names was declared.
    pub(super) fn submit(&mut self, submission: Submission) {
        self.machine.submit(submission);
    }

    /// Rings the worker if it waits for this: a tensor's number + 1, or anything.
    pub(super) fn tell(&self, topic: u32) {
        doorbell::published();
        if self.inlet.bell().must_ring(topic) {
            self.inlet.bell().ring();
        }
    }

    /// How many frames the shard has taken, of how many that were submitted.
    pub(super) fn progress(&self) -> (u64, u64) {
        self.machine.progress()
    }

    /// Whether everything that was submitted was taken.
    pub(super) fn is_delivered(&self) -> bool {
        self.machine.is_delivered() && self.inlet.is_empty()
    }

    // Receiving

    /// Takes the next frame, if it has come.
    pub(super) fn hear(&mut self) -> Heard {
        let Some(wire) = self.wire.as_mut().filter(|wire| wire.readable) else { return Heard::Nothing };
        let over = match wire.reader.next(&mut wire.link, &mut self.mirrors) {
            Step::Frame(header, codec) => match self.take(&header, codec) {
                Ok(()) => return Heard::Frame,
                Err(what) => Heard::Broke(what),
            },
            Step::Header => return Heard::Header,
            Step::Nothing => {
                wire.readable = false;
                return Heard::Nothing;
            }
            Step::Ended(why) => Heard::Ended(why),
            Step::Broke(what) => Heard::Broke(what),
        };
        // What came behind it is not looked at.
        self.detach();
        over
    }

    /// Does what a frame says; how it broke the protocol, if it did.
    fn take(&mut self, header: &Header, codec: &dyn Codec) -> Result<(), String> {
        let (Body::Notice(notice), Some(wire)) = (header.body, &self.wire) else { return Ok(()) };
        let tensors = &mut self.mirrors.tensors;
        let wanted =
            |id| tensors.get(id).map_or(0, |mirrored| mirrored.remote.wanted.load(Ordering::Acquire));
        let effect =
            self.machine.hear(header.sequence, &notice, wanted).map_err(|broken| broken.to_string())?;
        let (Effect::Publish { tensor, .. }
        | Effect::State { tensor, .. }
        | Effect::Folded { tensor, .. }
        | Effect::Fetched { tensor, .. }) = effect
        else {
            return Ok(());
        };
        let Some(mirrored) = tensors.get_mut(tensor) else { return Ok(()) };
        match effect {
            Effect::Nothing => {}
            Effect::Publish { chunk, version, steps, progress, .. } => {
                let (payload, published) = (wire.reader.payload(), Published { version, steps });
                mirrored
                    .publish(chunk, codec, payload, header.base(), published)
                    .map_err(|refused| format!("chunk {chunk}: {refused}"))?;
                if let Some(progress) = progress {
                    // Pairs with the acquire load in the worker's pull: who sees the progress sees the chunks.
                    mirrored.home.progress().0.store(progress, Ordering::Release);
                    self.tell(tensor + 1);
                }
            }
            Effect::State { chunk, .. } => {
                if let Some(state) = &mirrored.state {
                    state.write(chunk, wire.reader.payload());
                }
            }
            Effect::Folded { count, .. } => {
                // Pairs with the acquire load before the worker writes its lane again.
                mirrored.lane.folded(self.shard).0.store(count, Ordering::Release);
                self.tell(tensor + 1);
            }
            Effect::Fetched { ticket, .. } => {
                // Pairs with the acquire load in the worker's pull.
                mirrored.remote.fetched.fetch_max(ticket, Ordering::Release);
                self.tell(tensor + 1);
            }
        }
        Ok(())
    }

    // Sending

    /// Sends what is due, as far as the link takes it; whether it sent anything. An error has ended the connection.
    pub(super) fn send(&mut self) -> std::io::Result<bool> {
        let sent = self.send_batches();
        if sent.is_err() {
            self.detach();
        }
        sent
    }

    fn send_batches(&mut self) -> std::io::Result<bool> {
        let mut busy = false;
        while let Some(wire) = self.wire.as_mut().filter(|wire| wire.writable) {
            let taken = if !wire.writer.flush(&mut wire.link)? {
                false
            } else if self.machine.is_resumed()
                && let Some(taken) = Self::send_batch(&mut self.machine, &self.mirrors, wire)?
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

    /// Sends one batch: `None` if nothing is due, else whether the link took it whole.
    fn send_batch(
        machine: &mut Mirror,
        mirrors: &Mirrors,
        wire: &mut Wire<L>,
    ) -> std::io::Result<Option<bool>> {
        let mut batch = Batch::new(&mut wire.outgoing);
        while !batch.is_full() {
            let Some(frame) = machine.due() else { break };
            if mirrors.push(&mut batch, &frame).is_none() {
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
        wire.writer.send(&mut wire.link, &batch.frames()).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::super::rig::{self, CHUNK, JOB, Seen, W, breaches, good, good_behind, only_good};
    use super::*;
    use crate::wire::travel::members::{AGREED, CHANGES};
    use penstock_fabric::layout::page;
    use penstock_fabric::net::link::Got;
    use penstock_fabric::region::Mapping;
    use penstock_kernels::Settings;
    use penstock_kernels::codec::Raw;
    use penstock_proto::encoding::{Encoding, Shadow};
    use penstock_proto::frame::HEADER_BYTES;
    use penstock_proto::job::job_number;
    use std::collections::VecDeque;
    use std::io::{self, IoSlice, IoSliceMut};

    /// A link in memory: brings what the shard says and keeps what it is told, so many bytes a call.
    struct Memory {
        most: usize,
        comes: VecDeque<u8>,
        went: Vec<u8>,
    }

    impl Link for Memory {
        fn read(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<Got> {
            let most = self.most.min(self.comes.len());
            let room = parts.iter_mut().flat_map(|part| part.iter_mut()).take(most);
            let came = room.map(|byte| *byte = self.comes.pop_front().unwrap()).count();
            Ok(if came == 0 { Got::Nothing } else { Got::Bytes(came) })
        }

        fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
            let before = self.went.len();
            self.went.extend(parts.iter().flat_map(|part| part.iter()).take(self.most));
            Ok(self.went.len() - before)
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

    /// All in one read, and byte by byte.
    const PIECES: [usize; 3] = [usize::MAX, 100, 1];

    fn shard(agreed: Agreed) -> (RemoteShard<Memory>, Seen) {
        let inlet = Inlet::new(Mapping::private(page::bytes(1)).unwrap(), 0);
        let (mut shard, (mirrored, seen)) =
            (RemoteShard::new(job_number(JOB), 0, inlet), rig::tensor(agreed));
        shard.declare(W, mirrored);
        (shard, seen)
    }

    fn link(most: usize, says: &[Vec<u8>]) -> Memory {
        Memory { most, comes: says.concat().into(), went: Vec::new() }
    }

    /// Everything that is heard until nothing more comes, but headers.
    fn heard(shard: &mut RemoteShard<Memory>) -> Vec<Heard> {
        let mut all = Vec::new();
        while all.last() != Some(&Heard::Nothing) {
            shard.ready(true, true);
            all.push(shard.hear());
        }
        all.retain(|heard| *heard != Heard::Header);
        all.pop();
        all
    }

    /// Frames that were sent: submissions, and what they carried.
    fn went(shard: &RemoteShard<Memory>) -> Vec<(Body, Vec<u8>)> {
        let mut rest = &shard.link().unwrap().went[..];
        let mut frames = Vec::new();
        while let Some((header, behind)) = rest.split_first_chunk::<HEADER_BYTES>() {
            let header = Header::decode(header).unwrap();
            let (payload, behind) = behind.split_at(header.length as usize);
            assert!(payload.is_empty() || header.check(payload).is_ok());
            frames.push((header.body, payload.to_vec()));
            rest = behind;
        }
        frames
    }

    // A breach was followed by a good value in the same read: that was published, though the job had failed.
    #[test]
    fn behind_a_breach_of_the_protocol_nothing_is_taken_however_it_comes() {
        for most in PIECES {
            for (bad, said) in breaches(CHANGES) {
                let (mut shard, seen) = shard(AGREED);
                shard.attach(link(most, &[good(3), bad, good_behind(4)]));
                let heard = heard(&mut shard);
                let [Heard::Frame, Heard::Broke(what)] = &heard[..] else { panic!("{said}: {heard:?}") };
                assert!(what.contains(said), "{what}, not {said}");
                assert!(shard.link().is_none(), "{said}: the connection is given up");
                assert_eq!(seen.what(), only_good(3), "{said}");
                assert!(!shard.send().unwrap() && shard.hear() == Heard::Nothing);
            }
        }
    }

    #[test]
    fn an_encoding_that_was_not_agreed_to_is_a_breach_where_only_raw_was() {
        let (mut shard, seen) = shard(Agreed::default());
        let header = rig::value(W, 0, 4).with_encoded(CHANGES, 0, &[0; 8]).encode();
        shard.attach(link(usize::MAX, &[good(3), header.to_vec(), vec![0; 8], good_behind(4)]));
        let heard = heard(&mut shard);
        let [Heard::Frame, Heard::Broke(what)] = &heard[..] else { panic!("{heard:?}") };
        assert!(what.contains("expected an encoding that the tensor agreed to, got 9"), "{what}");
        assert_eq!(seen.what(), only_good(3));
    }

    #[test]
    fn behind_damage_nothing_is_taken_until_there_is_another_connection() {
        for most in PIECES {
            for at in [0, 40, HEADER_BYTES, HEADER_BYTES + CHUNK - 1] {
                let (mut shard, seen) = shard(AGREED);
                let mut damaged = good(4);
                damaged[at] ^= 1;
                shard.attach(link(most, &[good(3), damaged, good_behind(5)]));
                let before = shard.sign();
                let heard_first = heard(&mut shard);
                assert!(matches!(&heard_first[..], [Heard::Frame, Heard::Ended(_)]), "{heard_first:?}");
                assert!(shard.link().is_none() && shard.sign() > before);
                assert_eq!(seen.what(), only_good(3));
                shard.attach(link(most, &[good(4)]));
                assert_eq!(heard(&mut shard), [Heard::Frame]);
                assert_eq!(seen.what(), only_good(4));
            }
        }
    }

    #[test]
    fn what_was_submitted_goes_out_in_order_with_the_lane_and_again_on_the_next_connection() {
        let settings = Settings([0.0; 5]);
        let push = Submission::Push { tensor: W, first: 0, count: 2, stamp: 0, settings };
        let clock = Submission::Clock { clock: 1 };
        // Of a push goes what the shard is home of.
        let pushed = Submission::Push { tensor: W, first: 0, count: 1, stamp: 0, settings };
        let body = |submission| Body::Submission { submission, wanted: false };
        let taken = || rig::notice(Notice::Taken).encode().to_vec();
        for most in PIECES {
            let (mut shard, _) = shard(AGREED);
            shard.attach(link(most, &[]));
            [push, clock].into_iter().for_each(|submission| shard.submit(submission));
            assert!(heard(&mut shard).is_empty() && !shard.send().unwrap(), "the shard speaks first");
            for _ in 0..2 {
                shard.attach(link(most, &[taken()]));
                assert_eq!(heard(&mut shard), [Heard::Frame]);
                while shard.has_work() && shard.send().unwrap() {
                    shard.ready(false, true);
                }
                // A lane of zeros travels as no change.
                assert_eq!(went(&shard), [(body(pushed), vec![]), (body(clock), vec![])]);
                assert_eq!((shard.progress(), shard.is_delivered()), ((0, 2), false));
            }
            let counts = Header { sequence: 2, ..rig::notice(Notice::Taken) }.encode();
            shard.attach(link(most, &[counts.to_vec()]));
            assert_eq!(heard(&mut shard), [Heard::Frame]);
            assert_eq!((shard.progress(), shard.is_delivered()), ((2, 2), true));
        }
    }

    #[test]
    fn a_difference_is_received_beside_the_mirror_and_decoded_onto_what_stands_there() {
        let before = vec![3; CHUNK];
        let now = [vec![3; CHUNK - 16], vec![8; 16]].concat();
        let (mut buffer, shadow) = (Vec::new(), Some(Shadow { publication: 6, bytes: &before }));
        let mut batch = Batch::new(&mut buffer);
        let sent = Sent { source: Source::Stands(&now), shadow, position: 6 };
        batch.push_chunk(rig::value(W, 0, 4), &AGREED, &sent);
        let frames: Vec<u8> =
            batch.frames().iter().flat_map(|(header, payload)| [&header[..], payload].concat()).collect();
        assert_eq!(frames.len(), HEADER_BYTES + 32, "what has changed travels");
        for most in PIECES {
            let (mut shard, seen) = shard(AGREED);
            shard.attach(link(most, &[good(3), frames.clone()]));
            assert_eq!(heard(&mut shard), [Heard::Frame, Heard::Frame]);
            assert_eq!(seen.what(), (now.clone(), 4, 5, 0, 0));
        }
    }

    /// E-2.
    #[test]
    fn a_payload_that_is_refused_is_never_seen_by_a_reader() {
        let (mut mirrored, seen) = rig::tensor(AGREED);
        let published = Published { version: 1, steps: 1 };
        mirrored.publish(0, &Raw, &[7; CHUNK], Base::Zeros, published).unwrap();
        let changes = AGREED.expect(CHANGES, 7, CHUNK).unwrap();
        for payload in [&[1; 7][..], &[0xff; 8], &[1; 16]] {
            let refused =
                mirrored.publish(0, changes, payload, Base::Held, Published { version: 2, steps: 2 });
            assert!(refused.is_err());
            assert_eq!(mirrored.home.value(0), [7; CHUNK]);
            // Readers may go in, and see what they saw.
            assert_eq!(mirrored.home.sequence(0) % 2, 0);
            assert_eq!(seen.what(), (vec![7; CHUNK], 1, 0, 0, 0));
        }
        let mut mirrors = Mirrors { job: job_number(JOB), tensors: Numbered::default() };
        mirrors.tensors.insert(W, mirrored);
        let next = rig::value(W, 0, 6);
        let broken = mirrors.place(&next.with_encoded(CHANGES, 4, &[0; CHUNK])).unwrap_err();
        assert!(broken.contains("expected 0 to 4095 bytes of a chunk of 4096, got 4096"), "{broken}");
        let broken = mirrors.place(&next.with_encoded(Encoding(8), 4, &[0; 8])).unwrap_err();
        assert!(broken.contains("expected an encoding that the tensor agreed to, got 8"), "{broken}");
    }
}
