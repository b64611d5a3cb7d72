//! Frames of a link and onto it, without blocking.
//!
//! A reader asks its owner where each payload goes as soon as the header has come and been judged, and reads it straight to
//! there. The same system call reads a little ahead: the next header, and frames without a payload behind it, which would cost
//! a call each. A payload that is decoded to somewhere else anyway has no such place: the reader keeps it, and one call brings
//! many of them. A payload counts only when its checksum was verified; decoding it is up to the owner. A sender collects frames
//! in a [`Batch`], which [encodes](penstock_proto::encoding) their payloads.

use super::backlog::Backlog;
use super::link::{Got, Link, SEGMENTS, Segment};
use super::squeeze::Squeezing;
use penstock_proto::TensorId;
use penstock_proto::checksum;
use penstock_proto::encoding::{Agreed, Attempt, Encoded, Encoding, Payload, Sent, Source};
use penstock_proto::frame::{FrameError, HEADER_BYTES, Header};
use smallvec::SmallVec;
use std::io::{self, IoSliceMut};
use std::ops::Range;

/// Where payloads go.
pub trait Places {
    /// One payload's place.
    type Place;
    /// Judges a header and finds the place of its payload.
    fn place(&mut self, header: &Header) -> Result<Self::Place, String>;
    /// The memory of a place, as long as its payload; `None`: the reader keeps the payload, for [`FrameReader::payload`].
    fn memory<'a>(&'a mut self, place: &'a mut Self::Place) -> Option<&'a mut [u8]>;
}

/// What a look at a link brought.
#[derive(Debug)]
pub enum Step<P> {
    /// A header, which is judged at the next look: whatever its sender knew is known here by then, if that
    /// is asked for in between.
    Header,
    /// A whole frame, its payload verified and in its place.
    Frame(Header, P),
    /// Nothing more now.
    Nothing,
    /// The connection has ended, or brought damaged bytes: another may be made.
    Ended(String),
    /// The peer broke the protocol.
    Broke(String),
}

struct Open<P> {
    header: Header,
    place: P,
    done: usize,
}

impl<P> Open<P> {
    /// Bytes of its payload that have not come.
    fn missing(&self) -> usize {
        self.header.length as usize - self.done
    }
}

/// Whether this is the payload of the frame.
fn check(header: &Header, payload: &[u8]) -> Result<(), FrameError> {
    if header.length == 0 { Ok(()) } else { header.check(payload) }
}

/// Bytes read ahead where payloads have places: some frames without one. What they hold of a payload is copied, which takes less
/// than a call.
const AHEAD: usize = 32 * HEADER_BYTES;

/// The receiving end.
pub struct FrameReader<P> {
    /// What came and was not given out, between `at` and `end`.
    ahead: Vec<u8>,
    at: usize,
    end: usize,
    /// The payload of the frame that was given out last, if it was kept.
    payload: Range<usize>,
    open: Option<Open<P>>,
    heard: u64,
    /// Whether the last read brought all that was there.
    dry: bool,
}

impl<P> Default for FrameReader<P> {
    fn default() -> Self {
        Self::reading_ahead(0)
    }
}

impl<P> FrameReader<P> {
    /// For a link of which nothing was read, and payloads that have places.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same that reads up to `bytes` ahead, for payloads that have no place: one read brings many of them. Its memory is not
    /// touched before it is needed.
    pub fn reading_ahead(bytes: usize) -> Self {
        let ahead = vec![0; if bytes > 0 { bytes + AHEAD } else { AHEAD }];
        Self { ahead, at: 0, end: 0, payload: 0..0, open: None, heard: 0, dry: false }
    }

    /// Bytes that ever came: it grows while the peer lives.
    pub fn heard(&self) -> u64 {
        self.heard
    }

    /// The payload of the frame that was given out last, if it was kept; else nothing.
    pub fn payload(&self) -> &[u8] {
        &self.ahead[self.payload.clone()]
    }

    /// There may be more to read: a wait said so, or it is to be made sure of.
    pub fn look_again(&mut self) {
        self.dry = false;
    }

    /// Goes on reading until a frame is whole or nothing is there. After [`Step::Nothing`] a link is read
    /// once it has been waited for.
    pub fn next<L: Link, T: Places<Place = P>>(&mut self, link: &mut L, places: &mut T) -> Step<P> {
        self.payload = 0..0;
        loop {
            if self.open.is_none()
                && let Some(header) = self.header()
            {
                match Header::decode(&header) {
                    Ok(header) => match places.place(&header) {
                        Ok(place) => self.open = Some(Open { header, place, done: 0 }),
                        Err(what) => return Step::Broke(what),
                    },
                    Err(FrameError::Damaged) => return Step::Ended(FrameError::Damaged.to_string()),
                    Err(error) => return Step::Broke(error.to_string()),
                }
            }
            if let Some(step) = self.whole(places) {
                return step;
            }
            if std::mem::take(&mut self.dry) {
                return Step::Nothing;
            }
            match self.read(link, places) {
                Ok(Got::Bytes(bytes)) => {
                    self.heard += bytes as u64;
                    if self.open.is_none() && self.end - self.at >= HEADER_BYTES {
                        return Step::Header;
                    }
                }
                Ok(Got::Nothing) => return Step::Nothing,
                Ok(Got::End) => return Step::Ended("the connection was closed".to_owned()),
                Err(error) => return Step::Ended(error.to_string()),
            }
        }
    }

    /// The next header, if it has come.
    fn header(&mut self) -> Option<[u8; HEADER_BYTES]> {
        let header = *self.ahead[self.at..self.end].first_chunk()?;
        self.at += HEADER_BYTES;
        Some(header)
    }

    /// The frame that is under way, if all of it has come.
    fn whole<T: Places<Place = P>>(&mut self, places: &mut T) -> Option<Step<P>> {
        let open = self.open.as_mut()?;
        let (header, missing) = (open.header, open.missing());
        let had = missing.min(self.end - self.at);
        let come = self.at..self.at + had;
        let checked = match places.memory(&mut open.place) {
            Some(memory) => {
                let memory = &mut memory[..header.length as usize];
                memory[open.done..open.done + had].copy_from_slice(&self.ahead[come]);
                self.at += had;
                open.done += had;
                if had < missing {
                    return None;
                }
                check(&header, memory)
            }
            None if had < missing => return None,
            None => {
                self.at += had;
                let checked = check(&header, &self.ahead[come.clone()]);
                if checked.is_ok() {
                    self.payload = come;
                }
                checked
            }
        };
        let Open { place, .. } = self.open.take()?;
        Some(match checked {
            Ok(()) => Step::Frame(header, place),
            Err(error) => Step::Ended(error.to_string()),
        })
    }

    /// Reads once: into the place of what is under way, and ahead.
    fn read<L: Link, T: Places<Place = P>>(&mut self, link: &mut L, places: &mut T) -> io::Result<Got> {
        let open = self.open.as_mut();
        let wanted = open.as_ref().map_or(HEADER_BYTES, |open| open.missing());
        let place = open.and_then(|open| Some((places.memory(&mut open.place)?, &mut open.done)));
        let (got, rest, room) = match place {
            Some((memory, done)) => {
                // What was ahead is there.
                (self.at, self.end) = (0, 0);
                let rest = &mut memory[*done..*done + wanted];
                // Not more, however much room there is since a long payload was kept: what is read ahead is copied.
                let ahead = &mut self.ahead[..AHEAD];
                let got = link.read(&mut [IoSliceMut::new(rest), IoSliceMut::new(ahead)])?;
                if let Got::Bytes(bytes) = got {
                    *done += bytes.min(wanted);
                }
                (got, wanted, AHEAD)
            }
            None => {
                self.make_room(wanted);
                let room = &mut self.ahead[self.end..];
                let bytes = room.len();
                (link.read(&mut [IoSliceMut::new(room)])?, 0, bytes)
            }
        };
        if let Got::Bytes(bytes) = got {
            self.dry = bytes < rest + room && link.short_is_all();
            self.end += bytes.saturating_sub(rest);
        }
        Ok(got)
    }

    /// Room for `bytes` in a row, and for a long read: what is left of the last one goes to the front before
    /// little room is left behind it.
    fn make_room(&mut self, bytes: usize) {
        if self.at == self.end || self.at >= self.ahead.len() / 2 || self.ahead.len() - self.at < bytes {
            self.ahead.copy_within(self.at..self.end, 0);
            (self.at, self.end) = (0, self.end - self.at);
        }
        if self.ahead.len() < bytes {
            // And for the header behind it: else a long payload after another would be moved to the front, each of them.
            self.ahead.resize(bytes + AHEAD, 0);
        }
    }
}

/// Frames handed to the kernel in one call at most.
const BATCH: usize = 16;
const _: () = assert!(SEGMENTS == 2 * BATCH, "a header and a payload each");
/// Bytes of them, but for the last: a socket rarely takes more at once, and what it does not take is copied.
pub const BATCH_BYTES: usize = 256 * 1024;

/// The frames of one batch. Nothing here takes memory for a slice that others may write. A chunk in such memory is sent from
/// there, unless it is to be [copied](penstock_proto::encoding::Source::Copied): then the bytes that are sent are those that the
/// checksum was taken of.
pub struct Batch<'a> {
    /// It only grows, to the longest batch so far.
    buffer: &'a mut Vec<u8>,
    /// Bytes of it that this batch uses.
    used: usize,
    headers: SmallVec<[[u8; HEADER_BYTES]; BATCH]>,
    payloads: SmallVec<[Payload<'a>; BATCH]>,
    bytes: usize,
}

impl<'a> Batch<'a> {
    /// An empty batch. The buffer is the sender's, and is used again by the next one.
    #[inline]
    pub fn new(buffer: &'a mut Vec<u8>) -> Self {
        Self { buffer, used: 0, headers: SmallVec::new(), payloads: SmallVec::new(), bytes: 0 }
    }

    /// Frames.
    #[inline]
    pub fn len(&self) -> usize {
        self.headers.len()
    }

    /// Whether there is nothing to send.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.headers.is_empty()
    }

    /// Bytes of payloads.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether it should be sent before more is added.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.len() == BATCH || self.bytes >= BATCH_BYTES
    }

    /// A frame without a payload.
    #[inline]
    pub fn push(&mut self, header: Header) {
        self.headers.push(header.encode());
        self.payloads.push(Payload::Stands(&[]));
    }

    /// A frame with a chunk.
    pub fn push_chunk(&mut self, header: Header, agreed: &Agreed, sent: &Sent<'a>) {
        self.push_encoded(header, agreed, sent, None);
    }

    /// The same, compressed where that was agreed to and is to be tried.
    pub(super) fn push_squeezed<L: Link>(
        &mut self,
        header: Header,
        (tensor, agreed): (TensorId, &Agreed),
        sent: &Sent<'a>,
        squeezing: &mut Squeezing<'_, L>,
    ) {
        let by = squeezing.next(tensor, agreed);
        let source = match sent.source {
            // What is read more than once, and by other code, is a copy.
            Source::Lane(lane) if by.is_some() => Source::ExposedLane(lane),
            source => source,
        };
        let attempt = squeezing.encodes(tensor, agreed);
        let encodings = if attempt == Attempt::Raw { &Agreed::RAW } else { agreed };
        let begun = if attempt == Attempt::Measured { squeezing.now() } else { None };
        let encoded = encodings.encode(&Sent { source, ..*sent }, self.buffer, self.used);
        if attempt == Attempt::Measured {
            let became = segment(self.buffer, &encoded.payload).len();
            squeezing.encoded(tensor, begun, source.len(), became);
        }
        let squeezed = by.and_then(|by| match segment(self.buffer, &encoded.payload) {
            Segment::Own(bytes) => squeezing.squeeze(tensor, by, bytes),
            Segment::Foreign(_) => None,
        });
        let Some((packed, bytes)) = squeezed else {
            let length = self.push_payload(header, encoded, None);
            squeezing.goes((tensor, agreed), length, None, by.is_some());
            return;
        };
        let (at, end) = (self.used, self.used + bytes.len());
        if self.buffer.len() < end {
            self.buffer.resize(end, 0);
        }
        // Over what was encoded there, if it was.
        self.buffer[at..end].copy_from_slice(bytes);
        let payload = Payload::Buffered(at..end);
        let header = header.with_packed(Some(packed));
        let length = self.push_payload(header, Encoded { payload, checksum: None, ..encoded }, None);
        squeezing.goes((tensor, agreed), length, Some(packed), true);
    }

    /// `named`: another name for the encoding.
    fn push_encoded(&mut self, header: Header, agreed: &Agreed, sent: &Sent<'a>, named: Option<Encoding>) {
        let encoded = agreed.encode(sent, self.buffer, self.used);
        self.push_payload(header, encoded, named);
    }

    /// Adds a frame with that payload. How long it is.
    fn push_payload(&mut self, header: Header, encoded: Encoded<'a>, named: Option<Encoding>) -> usize {
        let Encoded { encoding, base, payload, checksum } = encoded;
        let encoding = named.unwrap_or(encoding);
        if let Payload::Buffered(range) = &payload {
            self.used = range.end;
        }
        let segment = segment(self.buffer, &payload);
        let length = segment.len();
        self.bytes += length;
        let checksum = checksum.unwrap_or_else(|| match segment {
            Segment::Own(bytes) => checksum::of(bytes),
            Segment::Foreign(memory) => checksum::of_foreign(memory),
        });
        self.headers.push(header.with_sum(encoding, base, length, checksum).encode());
        self.payloads.push(payload);
        length
    }

    /// A frame with bytes of a lane that are sent as they are and mean something else than a chunk.
    pub fn push_as(&mut self, header: Header, encoding: Encoding, source: Source<'a>) {
        self.push_encoded(header, &Agreed::RAW, &Sent { source, shadow: None, position: 0 }, Some(encoding));
    }

    /// A frame with bytes that are neither a chunk nor a part of a lane.
    pub fn push_bytes(&mut self, header: Header, bytes: &[u8]) {
        self.push_bytes_as(header, Encoding::RAW, bytes);
    }

    /// The same with bytes that are encoded already, whole.
    pub fn push_bytes_as(&mut self, header: Header, encoding: Encoding, bytes: &[u8]) {
        let (at, end) = (self.used, self.used + bytes.len());
        if self.buffer.len() < end {
            self.buffer.resize(end, 0);
        }
        self.buffer[at..end].copy_from_slice(bytes);
        (self.used, self.bytes) = (end, self.bytes + bytes.len());
        self.headers.push(header.with_encoded(encoding, 0, bytes).encode());
        self.payloads.push(Payload::Buffered(at..end));
    }

    /// The frames, to be [sent](FrameWriter::send).
    pub fn frames(&self) -> SmallVec<[Outgoing<'_>; BATCH]> {
        let payloads = self.payloads.iter().map(|payload| segment(self.buffer, payload));
        self.headers.iter().copied().zip(payloads).collect()
    }
}

/// A frame to be sent: its header and its payload.
pub type Outgoing<'a> = ([u8; HEADER_BYTES], Segment<'a>);

fn segment<'b>(buffer: &'b [u8], payload: &Payload<'b>) -> Segment<'b> {
    match payload {
        Payload::Stands(bytes) => Segment::Own(bytes),
        Payload::Lane(lane) => Segment::Foreign(*lane),
        Payload::Buffered(range) => Segment::Own(&buffer[range.clone()]),
    }
}

/// The sending end. What the link does not take of a batch is held here: never more than a batch.
#[derive(Debug, Default)]
pub struct FrameWriter {
    backlog: Backlog,
}

impl FrameWriter {
    /// Whether the last batch has gone; only then another may be sent.
    #[inline]
    pub fn is_clear(&self) -> bool {
        self.backlog.is_clear()
    }

    /// Bytes that are held.
    pub fn held(&self) -> usize {
        self.backlog.len()
    }

    /// Goes on with what is held; whether the link took it all.
    pub fn flush<L: Link>(&mut self, link: &mut L) -> io::Result<bool> {
        self.backlog.flush(link)
    }

    /// Sends frames; whether the link took them all.
    pub fn send<L: Link>(&mut self, link: &mut L, frames: &[Outgoing<'_>]) -> io::Result<bool> {
        debug_assert!(self.is_clear() && frames.len() <= BATCH, "one batch at a time");
        let total: usize = frames.iter().map(|(header, payload)| header.len() + payload.len()).sum();
        let mut sent = 0;
        while sent < total {
            let mut parts = [Segment::Own(&[]); SEGMENTS];
            match link.write(rest(frames, sent, &mut parts))? {
                0 => {
                    self.hold(frames, sent);
                    return Ok(false);
                }
                bytes => sent += bytes,
            }
        }
        link.flush()
    }

    fn hold(&mut self, frames: &[Outgoing<'_>], mut skip: usize) {
        for segment in segments(frames) {
            let from = skip.min(segment.len());
            skip -= from;
            self.backlog.hold(segment.slice(from..segment.len()));
        }
    }
}

fn segments<'a>(frames: &'a [Outgoing<'a>]) -> impl Iterator<Item = Segment<'a>> {
    frames.iter().flat_map(|(header, payload)| [Segment::Own(header), *payload])
}

/// What is left of `frames` behind their first `skip` bytes.
fn rest<'a, 'b>(
    frames: &'a [Outgoing<'a>],
    mut skip: usize,
    rest: &'b mut [Segment<'a>; SEGMENTS],
) -> &'b [Segment<'a>] {
    let mut count = 0;
    for segment in segments(frames) {
        let from = skip.min(segment.len());
        skip -= from;
        if from < segment.len() {
            rest[count] = segment.slice(from..segment.len());
            count += 1;
        }
    }
    &rest[..count]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::squeeze::{Squeezer, unpack};
    use crate::net::stream::Stream;
    use crate::sync::Ordering;
    use penstock_kernels::Foreign;
    use penstock_kernels::codec::{Base, Sparse};
    use penstock_kernels::compress::Compressor;
    use penstock_proto::compress::{Compress, Squeezed};
    use penstock_proto::encoding::{Member, Shadow, Source};
    use penstock_proto::frame::{Body, Notice};
    use penstock_proto::pressure::Flow;
    use penstock_proto::submission::Submission;
    use proptest::prelude::*;
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    struct Anywhere;

    impl Places for Anywhere {
        type Place = Vec<u8>;

        fn place(&mut self, header: &Header) -> Result<Vec<u8>, String> {
            if header.job != 1 {
                return Err("another job".to_owned());
            }
            Ok(vec![0; header.length as usize])
        }

        fn memory<'a>(&'a mut self, place: &'a mut Vec<u8>) -> Option<&'a mut [u8]> {
            Some(place)
        }
    }

    fn pair() -> (Stream, Stream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        let patience = Duration::from_secs(10);
        (Stream::plain(one, patience).unwrap(), Stream::plain(other, patience).unwrap())
    }

    fn value(chunk: u32, payload: &[u8]) -> Header {
        let notice =
            Notice::Value { tensor: 0, chunk, version: 1, steps: 1, publication: 2, base: 0, content: 1 };
        Header::bare(1, 0, Body::Notice(notice)).with_payload(payload)
    }

    fn next(reader: &mut FrameReader<Vec<u8>>, stream: &mut Stream) -> Step<Vec<u8>> {
        loop {
            match reader.next(stream, &mut Anywhere) {
                Step::Header => {}
                Step::Nothing => std::thread::yield_now(),
                step => return step,
            }
        }
    }

    #[test]
    fn frames_arrive_as_they_were_sent_though_the_socket_takes_them_in_pieces() {
        let (mut one, mut other) = pair();
        let payloads: Vec<Vec<u8>> =
            (0..200u32).map(|n| vec![n as u8; (n as usize * 977) % 70_000]).collect();
        let reading = std::thread::spawn(move || {
            let mut reader = FrameReader::new();
            let frames = (0..200).map(|_| match next(&mut reader, &mut other) {
                Step::Frame(_, payload) => payload,
                step => panic!("{step:?}"),
            });
            frames.collect::<Vec<_>>()
        });
        let mut writer = FrameWriter::default();
        for batch in payloads.chunks(7) {
            while !writer.flush(&mut one).unwrap() {
                std::thread::yield_now();
            }
            let frames: Vec<_> =
                batch.iter().map(|payload| (value(0, payload).encode(), Segment::Own(payload))).collect();
            writer.send(&mut one, &frames).unwrap();
        }
        while !writer.flush(&mut one).unwrap() {
            std::thread::yield_now();
        }
        assert_eq!(reading.join().unwrap(), payloads);
    }

    /// Whether a frame is whole whose lane is written between its checksum and its going out.
    fn is_whole(source: impl Fn(Foreign<'static>) -> Source<'static>) -> bool {
        static LANE: [AtomicU64; 8] = [const { AtomicU64::new(1) }; 8];
        // SAFETY: the lane lives for ever, and only atomics touch it.
        let foreign = unsafe { Foreign::new(LANE.as_ptr().cast(), size_of_val(&LANE)) };
        let submission = Submission::Clock { clock: 1 };
        let header = Header::bare(1, 1, Body::Submission { submission, wanted: false });
        let mut buffer = Vec::new();
        // The second time the buffer is used again.
        let whole = [(); 2].map(|()| {
            let mut batch = Batch::new(&mut buffer);
            let sent = Sent { source: source(foreign), shadow: None, position: 0 };
            batch.push_chunk(header, &Agreed::default(), &sent);
            batch.push(header);
            LANE.iter().for_each(|word| _ = word.fetch_add(1, Ordering::Relaxed));
            let frames = batch.frames();
            assert!(frames[1].1.is_empty() && frames[1].0 == header.encode());
            let payload = Segment::copied(&[frames[0].1], usize::MAX);
            assert_eq!(payload.len(), size_of_val(&LANE));
            Header::decode(&frames[0].0).unwrap().check(&payload).is_ok()
        });
        assert_eq!(whole[0], whole[1]);
        whole[0]
    }

    #[test]
    fn a_lane_that_is_lent_is_sent_as_its_checksum_was_taken() {
        assert!(is_whole(Source::ExposedLane));
    }

    #[test]
    fn another_that_is_written_all_the_same_makes_a_damaged_frame() {
        assert!(!is_whole(Source::Lane));
    }

    #[test]
    fn a_value_is_sent_from_where_it_stands() {
        let (chunk, mut buffer) = ([7; 4096], Vec::new());
        let mut batch = Batch::new(&mut buffer);
        for position in 0..3 {
            let shadow = Some(Shadow { publication: 2, bytes: &[0; 4096] });
            let sent = Sent { source: Source::Stands(&chunk), shadow, position };
            batch.push_chunk(value(0, &[]), &Agreed::default(), &sent);
        }
        assert_eq!(batch.bytes(), 3 * 4096);
        assert!(batch.frames().iter().all(|(_, payload)| payload.as_ptr() == chunk.as_ptr()));
        assert!(batch.buffer.is_empty(), "nothing was copied");
    }

    /// A link that carries so much, bytes a second, and a clock on which all takes a microsecond.
    struct Clocked(f64, std::cell::Cell<u64>);

    impl Link for Clocked {
        fn read(&mut self, _: &mut [IoSliceMut<'_>]) -> io::Result<Got> {
            Ok(Got::Nothing)
        }

        fn write(&mut self, _: &[Segment<'_>]) -> io::Result<usize> {
            Ok(0)
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

        fn flow(&self) -> Option<Flow> {
            Some(Flow { sent: 0, rate: Some(self.0), cut_short: false })
        }

        fn now(&self) -> Option<Duration> {
            self.1.set(self.1.get() + 1);
            Some(Duration::from_micros(self.1.get()))
        }
    }

    #[test]
    fn half_a_chunk_of_zeros_goes_sparse_on_a_slow_link_and_from_where_it_stands_on_one_that_is_too_fast_for_that()
     {
        let chunk: Vec<u8> = (0..32_768_u32).map(|at| (at / 4 % 2) as u8).collect();
        let sparse = Member { encoding: Encoding(2), codec: &Sparse::<4> };
        let agreed = Agreed::new(&[sparse, Member::RAW]);
        for (compress, rate, most) in [
            (Compress::None, 1e8, 0),
            (Compress::Auto, 1e8, 0),
            (Compress::None, 1e12, 200),
            // Who names a compressor has what it is given be short.
            (Compress::By(Compressor::Lz4), 1e12, 0),
        ] {
            let agreed = agreed.compressed(compress);
            let (mut squeezer, link, mut buffer) = (Squeezer::default(), Clocked(rate, 0.into()), Vec::new());
            let mut raw = 0;
            for _ in 0..200 {
                let mut batch = Batch::new(&mut buffer);
                let mut squeezing = squeezer.onto(&link, 1);
                let sent = Sent { source: Source::Lane(Foreign::of(&chunk)), shadow: None, position: 0 };
                batch.push_squeezed(value(0, &[]), (0, &agreed), &sent, &mut squeezing);
                let frames = batch.frames();
                let (header, payload) = &frames[0];
                let header = Header::decode(header).unwrap();
                let is_raw = header.encoding == Encoding::RAW;
                assert_eq!(is_raw, payload.as_ptr() == chunk.as_ptr(), "it is not copied");
                raw += usize::from(is_raw);
                let bytes = Segment::copied(&[*payload], usize::MAX);
                let mut room = Vec::new();
                let bytes = unpack(header.packed, &bytes, &mut room).unwrap();
                let codec = agreed.expect(header.encoding, (bytes.len(), None), chunk.len()).unwrap();
                let mut decoded = vec![9; chunk.len()];
                codec.decode(bytes, Base::Zeros, &mut decoded).unwrap();
                assert_eq!(decoded, chunk);
            }
            assert!(raw <= most && (most == 0 || raw > 150), "{compress}, {rate}: {raw} went raw");
        }
    }

    #[test]
    fn each_chunk_goes_compressed_where_that_makes_it_shorter_and_else_as_it_is() {
        let repeats = vec![[1, 2, 3, 4]; 1024].concat();
        let mut state = 1_u64;
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let noise: Vec<u8> = (0..4096).map(|_| draw()).collect();
        for compress in [Compress::By(Compressor::Lz4), Compress::By(Compressor::Zstd), Compress::Auto] {
            let (mut squeezer, link, mut buffer) = (Squeezer::default(), Clocked(1e6, 0.into()), Vec::new());
            let agreed = Agreed::RAW.compressed(compress);
            for round in 0..4 {
                let mut batch = Batch::new(&mut buffer);
                let mut squeezing = squeezer.onto(&link, 1);
                // Both ways there are, and what must not be tried.
                let chunks = [&repeats[..], &noise, &repeats, &noise[..40], &repeats[..100]];
                for (at, &chunk) in chunks.iter().enumerate() {
                    let source = match (at + round) % 3 {
                        0 => Source::Lane(Foreign::of(chunk)),
                        1 => Source::ExposedLane(Foreign::of(chunk)),
                        _ => Source::Stands(chunk),
                    };
                    let sent = Sent { source, shadow: None, position: 0 };
                    batch.push_squeezed(value(at as u32, &[]), (0, &agreed), &sent, &mut squeezing);
                }
                let mut bytes = 0;
                for ((header, payload), chunk) in batch.frames().iter().zip(chunks) {
                    let header = Header::decode(header).unwrap();
                    let payload = Segment::copied(&[*payload], usize::MAX);
                    bytes += payload.len();
                    assert_eq!(header.check(&payload), Ok(()));
                    assert_eq!(header.packed.is_some(), chunk == repeats, "round {round}");
                    assert!(payload.len() < chunk.len() / 10 || header.packed.is_none());
                    let mut room = Vec::new();
                    assert_eq!(unpack(header.packed, &payload, &mut room).unwrap(), chunk);
                }
                assert_eq!(batch.bytes(), bytes);
                let Squeezed { chunks, raw, before, after } = squeezer.take_sent();
                assert_eq!((chunks, raw, before), (2, 3, 3 * 4096 + 140), "{compress}");
                assert_eq!(after, bytes as u64);
            }
        }
    }

    /// Counts the headers that it has judged.
    struct Judged(u32);

    impl Places for Judged {
        type Place = Vec<u8>;

        fn place(&mut self, header: &Header) -> Result<Vec<u8>, String> {
            self.0 += 1;
            Ok(vec![0; header.length as usize])
        }

        fn memory<'a>(&'a mut self, place: &'a mut Vec<u8>) -> Option<&'a mut [u8]> {
            Some(place)
        }
    }

    // A shard took its commands and then read and judged a frame that was sent behind the one that declared its tensor:
    // its worker counted as lost.
    #[test]
    fn no_header_is_judged_at_the_look_that_brought_it() {
        let (mut one, mut other) = pair();
        let frames = [value(0, b"abc").encode(), value(0, b"abc").encode()];
        let slices = [&frames[0][..], b"abc", &frames[1][..], b"abc"].map(Segment::Own);
        one.write(&slices).unwrap();
        let (mut reader, mut judged) = (FrameReader::new(), Judged(0));
        let mut looks = Vec::new();
        while looks.len() < 3 {
            let before = judged.0;
            match reader.next(&mut other, &mut judged) {
                Step::Nothing => std::thread::yield_now(),
                Step::Header => looks.push(("header", judged.0 - before)),
                Step::Frame(..) => looks.push(("frame", judged.0 - before)),
                step => panic!("{step:?}"),
            }
        }
        assert_eq!(looks, [("header", 0), ("frame", 1), ("frame", 1)]);
    }

    /// Brings so many bytes a read, over and over, and counts the reads that had something to bring.
    struct Pieces {
        bytes: Vec<u8>,
        at: usize,
        sizes: Vec<usize>,
        reads: usize,
        short_is_all: bool,
    }

    impl Pieces {
        fn new(frames: &[(u32, Vec<u8>)], sizes: Vec<usize>) -> Self {
            let bytes = frames.iter().flat_map(|(chunk, payload)| {
                value(*chunk, payload).encode().into_iter().chain(payload.iter().copied())
            });
            Self { bytes: bytes.collect(), at: 0, sizes, reads: 0, short_is_all: false }
        }
    }

    impl Link for Pieces {
        fn read(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<Got> {
            let size = self.sizes[self.reads % self.sizes.len()];
            let piece = &self.bytes[self.at..(self.at + size).min(self.bytes.len())];
            let mut come = 0;
            for part in parts {
                let bytes = part.len().min(piece.len() - come);
                part[..bytes].copy_from_slice(&piece[come..come + bytes]);
                come += bytes;
            }
            self.at += come;
            self.reads += 1;
            Ok(if come == 0 { Got::Nothing } else { Got::Bytes(come) })
        }

        fn short_is_all(&self) -> bool {
            self.short_is_all
        }

        fn write(&mut self, _: &[Segment<'_>]) -> io::Result<usize> {
            Ok(0)
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

    /// Payloads of chunks with an even number have a place, others are kept.
    struct Either;

    impl Places for Either {
        type Place = Option<Vec<u8>>;

        fn place(&mut self, header: &Header) -> Result<Self::Place, String> {
            let Body::Notice(Notice::Value { chunk, .. }) = header.body else {
                return Err("no value".to_owned());
            };
            if header.length > 1 << 16 {
                return Err("too long".to_owned());
            }
            Ok(chunk.is_multiple_of(2).then(|| vec![0; header.length as usize]))
        }

        fn memory<'a>(&'a mut self, place: &'a mut Self::Place) -> Option<&'a mut [u8]> {
            place.as_deref_mut()
        }
    }

    fn all_of(link: &mut Pieces, mut reader: FrameReader<Option<Vec<u8>>>) -> Vec<(u32, Vec<u8>)> {
        let mut frames = Vec::new();
        loop {
            match reader.next(link, &mut Either) {
                Step::Frame(Header { body: Body::Notice(Notice::Value { chunk, .. }), .. }, place) => {
                    assert!(place.is_none() || reader.payload().is_empty());
                    frames.push((chunk, place.unwrap_or_else(|| reader.payload().to_vec())));
                }
                Step::Header => {}
                Step::Nothing if link.at == link.bytes.len() => return frames,
                Step::Nothing => reader.look_again(),
                step => panic!("{step:?}"),
            }
        }
    }

    proptest! {
        #[test]
        fn frames_are_the_same_in_whatever_pieces_they_come(
            lengths in prop::collection::vec(prop_oneof![Just(0), 1..300usize, 3000..9000usize], 1..40),
            sizes in prop::collection::vec(1..9000usize, 1..10),
            short_is_all in any::<bool>(),
            most in prop_oneof![Just(0), 4096..40_000usize],
        ) {
            let payload = |length| (0..length).map(|n| (n % 251) as u8).collect();
            let frames: Vec<(u32, Vec<u8>)> = (0..).zip(lengths.into_iter().map(payload)).collect();
            let mut link = Pieces { short_is_all, ..Pieces::new(&frames, sizes) };
            prop_assert_eq!(all_of(&mut link, FrameReader::reading_ahead(most)), frames);
        }
    }

    proptest! {
        #[test]
        fn whatever_bytes_come_the_reader_ends_and_gives_out_nothing_that_was_not_sent(
            lengths in prop::collection::vec(0..5000usize, 1..8),
            at in any::<prop::sample::Index>(),
            with in prop::collection::vec(any::<u8>(), 1..300),
            sizes in prop::collection::vec(1..9000usize, 1..10),
        ) {
            let frames: Vec<(u32, Vec<u8>)> = (0..).zip(lengths.iter().map(|&length| vec![7; length])).collect();
            let mut link = Pieces::new(&frames, sizes);
            let at = at.index(link.bytes.len());
            for (byte, with) in link.bytes[at..].iter_mut().zip(with) {
                *byte = with;
            }
            let (mut reader, mut came) = (FrameReader::reading_ahead(0), Vec::new());
            loop {
                match reader.next(&mut link, &mut Either) {
                    Step::Frame(Header { body: Body::Notice(Notice::Value { chunk, .. }), .. }, place) => {
                        came.push((chunk, place.unwrap_or_else(|| reader.payload().to_vec())));
                    }
                    Step::Header => {}
                    Step::Nothing if link.at < link.bytes.len() => {}
                    _ => break,
                }
            }
            prop_assert!(frames.starts_with(&came));
        }
    }

    #[test]
    fn a_long_payload_after_another_takes_one_read_each() {
        for bytes in [256 << 10, 1 << 20] {
            let frames: Vec<(u32, Vec<u8>)> = (0..8).map(|at| (2 * at + 1, vec![7; bytes])).collect();
            let mut link = Pieces::new(&frames, vec![usize::MAX / 2]);
            struct Kept;
            impl Places for Kept {
                type Place = ();

                fn place(&mut self, _: &Header) -> Result<(), String> {
                    Ok(())
                }

                fn memory<'a>(&'a mut self, _: &'a mut ()) -> Option<&'a mut [u8]> {
                    None
                }
            }
            let mut reader = FrameReader::reading_ahead(256 << 10);
            let mut came = 0;
            while came < 8 {
                if let Step::Frame(..) = reader.next(&mut link, &mut Kept) {
                    assert_eq!(reader.payload(), frames[came].1);
                    came += 1;
                }
            }
            assert!(link.reads <= 10, "{} reads of 8 payloads of {bytes} bytes", link.reads);
        }
    }

    #[test]
    fn many_frames_come_in_a_read_and_a_short_read_is_the_last() {
        let frames = |bytes| (0..20).map(|chunk| (chunk, vec![7; bytes])).collect::<Vec<_>>();
        for bytes in [0, 3001] {
            for (short_is_all, reads) in [(false, 2), (true, 1)] {
                let frames = frames(bytes);
                let mut link = Pieces { short_is_all, ..Pieces::new(&frames, vec![usize::MAX / 2]) };
                assert_eq!(all_of(&mut link, FrameReader::reading_ahead(1 << 16)), frames);
                assert_eq!(link.reads, reads, "{bytes} bytes");
            }
        }
    }

    #[test]
    fn a_damaged_payload_is_never_given_out() {
        let (mut one, mut other) = pair();
        one.write(&[Segment::Own(&value(0, b"abc").encode()), Segment::Own(b"abd")]).unwrap();
        assert!(matches!(next(&mut FrameReader::new(), &mut other), Step::Ended(_)));
    }

    #[test]
    fn a_frame_that_has_no_place_breaks_the_protocol() {
        let (mut one, mut other) = pair();
        one.write(&[Segment::Own(&Header { job: 2, ..value(0, b"abc") }.encode())]).unwrap();
        assert!(matches!(next(&mut FrameReader::new(), &mut other), Step::Broke(_)));
    }

    #[test]
    fn a_bit_that_flips_anywhere_ends_the_connection_and_is_no_fault_of_the_peer() {
        let header = value(0, b"abc").encode();
        for at in 0..8 * HEADER_BYTES {
            let mut damaged = header;
            damaged[at / 8] ^= 1 << (at % 8);
            let (mut one, mut other) = pair();
            one.write(&[Segment::Own(&damaged)]).unwrap();
            assert!(matches!(next(&mut FrameReader::new(), &mut other), Step::Ended(_)), "bit {at}");
        }
    }
}
