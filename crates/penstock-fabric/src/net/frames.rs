//! Frames of a link and onto it, without blocking.
//!
//! A reader asks its owner where each payload goes as soon as the header has come and been judged, and reads it straight to
//! there, together with the next header in one system call. A payload counts only when its checksum was verified; decoding it is
//! up to the owner. A sender collects frames in a [`Batch`], which [encodes](penstock_proto::encoding) their payloads.

use super::link::{Got, Link};
use penstock_proto::encoding::{Agreed, Encoded, Payload, Sent};
use penstock_proto::frame::{FrameError, HEADER_BYTES, Header};
use smallvec::SmallVec;
use std::io::{self, IoSlice, IoSliceMut};

/// Where payloads go.
pub trait Places {
    /// One payload's place.
    type Place;
    /// Judges a header and finds the place of its payload.
    fn place(&mut self, header: &Header) -> Result<Self::Place, String>;
    /// The memory of a place, as long as its payload.
    fn memory<'a>(&'a mut self, place: &'a mut Self::Place) -> &'a mut [u8];
}

/// What a look at a link brought.
#[derive(Debug)]
pub enum Step<P> {
    /// A header, which is judged at the next look: whatever its sender knew is known here by then, if that is asked for in between.
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

/// The receiving end.
pub struct FrameReader<P> {
    header: [u8; HEADER_BYTES],
    have: usize,
    open: Option<Open<P>>,
    heard: u64,
}

impl<P> Default for FrameReader<P> {
    fn default() -> Self {
        Self { header: [0; HEADER_BYTES], have: 0, open: None, heard: 0 }
    }
}

impl<P> FrameReader<P> {
    /// For a link of which nothing was read.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes that ever came: it grows while the peer lives.
    pub fn heard(&self) -> u64 {
        self.heard
    }

    /// Goes on reading until a frame is whole or nothing is there.
    pub fn next<L: Link, T: Places<Place = P>>(&mut self, link: &mut L, places: &mut T) -> Step<P> {
        loop {
            if self.open.is_none() && self.have == HEADER_BYTES {
                self.have = 0;
                match Header::decode(&self.header) {
                    Ok(header) => match places.place(&header) {
                        Ok(place) => self.open = Some(Open { header, place, done: 0 }),
                        Err(what) => return Step::Broke(what),
                    },
                    Err(FrameError::Damaged) => return Step::Ended(FrameError::Damaged.to_string()),
                    Err(error) => return Step::Broke(error.to_string()),
                }
            }
            if let Some(open) = self.open.take_if(|open| open.done == open.header.length as usize) {
                let Open { header, mut place, .. } = open;
                if header.length > 0
                    && let Err(error) = header.check(places.memory(&mut place))
                {
                    return Step::Ended(error.to_string());
                }
                return Step::Frame(header, place);
            }
            let missing = self.open.as_ref().map_or(0, |open| open.header.length as usize - open.done);
            let read = match &mut self.open {
                None => link.read(&mut [IoSliceMut::new(&mut self.header[self.have..])]),
                Some(open) => {
                    let rest = &mut places.memory(&mut open.place)[open.done..];
                    link.read(&mut [IoSliceMut::new(rest), IoSliceMut::new(&mut self.header)])
                }
            };
            match read {
                Ok(Got::Bytes(bytes)) => {
                    self.heard += bytes as u64;
                    if let Some(open) = &mut self.open {
                        open.done += bytes.min(missing);
                    }
                    self.have += bytes.saturating_sub(missing);
                    if self.open.is_none() && self.have == HEADER_BYTES {
                        return Step::Header;
                    }
                }
                Ok(Got::Nothing) => return Step::Nothing,
                Ok(Got::End) => return Step::Ended("the connection was closed".to_owned()),
                Err(error) => return Step::Ended(error.to_string()),
            }
        }
    }
}

/// Frames handed to the kernel in one call at most.
const BATCH: usize = 16;
/// Bytes of them, but for the last: a socket rarely takes more at once, and what it does not take is copied.
pub const BATCH_BYTES: usize = 256 * 1024;

/// The frames of one batch. A chunk that others may be writing is read once, into the buffer: so the bytes that are sent are those
/// that the checksum was taken of, and nothing here takes memory for a slice that others may write.
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
        let Encoded { encoding, base, payload } = agreed.encode(sent, self.buffer, self.used);
        if let Payload::Buffered(range) = &payload {
            self.used = range.end;
        }
        let bytes = bytes(self.buffer, &payload);
        self.bytes += bytes.len();
        self.headers.push(header.with_encoded(encoding, base, bytes).encode());
        self.payloads.push(payload);
    }

    /// The frames, to be [sent](FrameWriter::send).
    pub fn frames(&self) -> SmallVec<[([u8; HEADER_BYTES], &[u8]); BATCH]> {
        let payloads = self.payloads.iter().map(|payload| bytes(self.buffer, payload));
        self.headers.iter().copied().zip(payloads).collect()
    }
}

fn bytes<'b>(buffer: &'b [u8], payload: &'b Payload<'_>) -> &'b [u8] {
    match payload {
        Payload::Stands(bytes) => bytes,
        Payload::Buffered(range) => &buffer[range.clone()],
    }
}

/// The sending end. What the link does not take of a batch is held here: never more than a batch.
#[derive(Debug, Default)]
pub struct FrameWriter {
    held: Vec<u8>,
    at: usize,
}

impl FrameWriter {
    /// Whether the last batch has gone; only then another may be sent.
    #[inline]
    pub fn is_clear(&self) -> bool {
        self.at == self.held.len()
    }

    /// Goes on with what is held; whether the link took it all.
    pub fn flush<L: Link>(&mut self, link: &mut L) -> io::Result<bool> {
        while !self.is_clear() {
            match link.write(&[IoSlice::new(&self.held[self.at..])])? {
                0 => return Ok(false),
                bytes => self.at += bytes,
            }
        }
        self.held.clear();
        self.at = 0;
        link.flush()
    }

    /// Sends frames, each a header and a payload; whether the link took them all.
    pub fn send<L: Link>(
        &mut self,
        link: &mut L,
        frames: &[([u8; HEADER_BYTES], &[u8])],
    ) -> io::Result<bool> {
        debug_assert!(self.is_clear() && frames.len() <= BATCH, "one batch at a time");
        let total: usize = frames.iter().map(|(header, payload)| header.len() + payload.len()).sum();
        let mut sent = 0;
        while sent < total {
            let mut parts = [IoSlice::new(&[]); 2 * BATCH];
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

    fn hold(&mut self, frames: &[([u8; HEADER_BYTES], &[u8])], mut skip: usize) {
        self.held.clear();
        self.at = 0;
        for part in frames.iter().flat_map(|(header, payload)| [&header[..], payload]) {
            let from = skip.min(part.len());
            skip -= from;
            self.held.extend_from_slice(&part[from..]);
        }
    }
}

/// What is left of `frames` behind their first `skip` bytes.
fn rest<'a, 'b>(
    frames: &'a [([u8; HEADER_BYTES], &'a [u8])],
    mut skip: usize,
    parts: &'b mut [IoSlice<'a>; 2 * BATCH],
) -> &'b [IoSlice<'a>] {
    let mut count = 0;
    for part in frames.iter().flat_map(|(header, payload)| [&header[..], payload]) {
        let from = skip.min(part.len());
        skip -= from;
        if from < part.len() {
            parts[count] = IoSlice::new(&part[from..]);
            count += 1;
        }
    }
    &parts[..count]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::stream::Stream;
    use crate::sync::Ordering;
    use penstock_kernels::Foreign;
    use penstock_proto::encoding::{Shadow, Source};
    use penstock_proto::frame::{Body, Notice};
    use penstock_proto::submission::Submission;
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

        fn memory<'a>(&'a mut self, place: &'a mut Vec<u8>) -> &'a mut [u8] {
            place
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
        let notice = Notice::Value { tensor: 0, chunk, version: 1, steps: 1, publication: 2, base: 0 };
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
                batch.iter().map(|payload| (value(0, payload).encode(), &payload[..])).collect();
            writer.send(&mut one, &frames).unwrap();
        }
        while !writer.flush(&mut one).unwrap() {
            std::thread::yield_now();
        }
        assert_eq!(reading.join().unwrap(), payloads);
    }

    #[test]
    fn what_is_sent_of_a_lane_is_what_its_checksum_was_taken_of() {
        let lane = [const { AtomicU64::new(1) }; 8];
        // SAFETY: the lane outlives it, and only atomics touch it.
        let foreign = unsafe { Foreign::new(lane.as_ptr().cast(), size_of_val(&lane)) };
        let submission = Submission::Clock { clock: 1 };
        let header = Header::bare(1, 1, Body::Submission { submission, wanted: false });
        let mut buffer = Vec::new();
        for _ in 0..2 {
            let mut batch = Batch::new(&mut buffer);
            let sent = Sent { source: Source::Lane(foreign), shadow: None, position: 0 };
            batch.push_chunk(header, &Agreed::default(), &sent);
            batch.push(header);
            lane.iter().for_each(|word| _ = word.fetch_add(1, Ordering::Relaxed));
            let frames = batch.frames();
            let payload = frames[0].1;
            assert_eq!(payload.len(), size_of_val(&lane));
            assert_eq!(header.with_payload(payload).encode(), frames[0].0);
            assert!(frames[1].1.is_empty() && frames[1].0 == header.encode());
        }
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
        assert!(batch.frames().iter().all(|(_, payload)| std::ptr::eq(*payload, &chunk)));
        assert!(batch.buffer.is_empty(), "nothing was copied");
    }

    /// Counts the headers that it has judged.
    struct Judged(u32);

    impl Places for Judged {
        type Place = Vec<u8>;

        fn place(&mut self, header: &Header) -> Result<Vec<u8>, String> {
            self.0 += 1;
            Ok(vec![0; header.length as usize])
        }

        fn memory<'a>(&'a mut self, place: &'a mut Vec<u8>) -> &'a mut [u8] {
            place
        }
    }

    // A shard took its commands and then read and judged a frame that was sent behind the one that declared its tensor: its worker
    // counted as lost.
    #[test]
    fn no_header_is_judged_at_the_look_that_brought_it() {
        let (mut one, mut other) = pair();
        let frames = [value(0, b"abc").encode(), value(0, b"abc").encode()];
        let slices = [&frames[0][..], b"abc", &frames[1][..], b"abc"].map(IoSlice::new);
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

    #[test]
    fn a_damaged_payload_is_never_given_out() {
        let (mut one, mut other) = pair();
        one.write(&[IoSlice::new(&value(0, b"abc").encode()), IoSlice::new(b"abd")]).unwrap();
        assert!(matches!(next(&mut FrameReader::new(), &mut other), Step::Ended(_)));
    }

    #[test]
    fn a_frame_that_has_no_place_breaks_the_protocol() {
        let (mut one, mut other) = pair();
        one.write(&[IoSlice::new(&Header { job: 2, ..value(0, b"abc") }.encode())]).unwrap();
        assert!(matches!(next(&mut FrameReader::new(), &mut other), Step::Broke(_)));
    }

    #[test]
    fn a_bit_that_flips_anywhere_ends_the_connection_and_is_no_fault_of_the_peer() {
        let header = value(0, b"abc").encode();
        for at in 0..8 * HEADER_BYTES {
            let mut damaged = header;
            damaged[at / 8] ^= 1 << (at % 8);
            let (mut one, mut other) = pair();
            one.write(&[IoSlice::new(&damaged)]).unwrap();
            assert!(matches!(next(&mut FrameReader::new(), &mut other), Step::Ended(_)), "bit {at}");
        }
    }
}
