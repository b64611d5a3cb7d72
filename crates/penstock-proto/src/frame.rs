//! Frames: what travels on the connection between a worker and a shard of another host.
//!
//! A frame is a header of 128 bytes and, for some kinds, a payload: one chunk, [encoded](crate::encoding), and maybe
//! [compressed](crate::compress) behind that. A worker's frames
//! carry a [`Submission`], the same 64 bytes that it would write into a ring in shared memory; a shard's frames carry a
//! [`Notice`]. The header is drawn in docs/layout.md.
//!
//! A connection is a stream of foreign bytes: [`Header::decode`] judges a private copy of the 128 bytes, among them a
//! checksum over all the others, before a single field is believed. The payload has a checksum of its own, which the header's
//! covers, so version and payload are verified together (lapser.md, 3.3.1: a value without its clock is worthless).
//!
//! The sequence number makes reconnecting exact: see [`crate::outbox`].

use crate::checksum;
use crate::compress::Packed;
use crate::encoding::Encoding;
use crate::factors::down::Named;
use crate::remote::{Contents, Holding};
use crate::submission::{Submission, SubmissionError, WORDS, pack, unpack};
use crate::{TensorId, chunk::MAX_CHUNK_BYTES};
use penstock_kernels::codec::Base;
use penstock_kernels::compress::Compressor;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 128;
/// Longest payload: a chunk's optimizer state, three arrays of elements four times as wide as the chunk's.
pub const MAX_PAYLOAD_BYTES: u32 = MAX_CHUNK_BYTES * 12;
/// "PSF" and the version of the frame's layout.
const MAGIC: u32 = u32::from_le_bytes(*b"PSF\x01");

/// Which end says it: the low byte of the kind word.
const FROM_WORKER: u8 = 1;
const FROM_SHARD: u8 = 2;
const ALIVE: u8 = 3;

/// What a frame says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Body {
    /// From a worker.
    Submission {
        /// What it submits.
        submission: Submission,
        /// With a push: the chunk's next version is to be sent back as soon as it is published.
        wanted: bool,
    },
    /// From a shard.
    Notice(Notice),
    /// A sign of life from a worker that has nothing to submit, or cannot greet a child so far. Such a frame has no number, and does not
    /// count as taken.
    Alive,
}

/// Chunks of which one frame says what is to be held.
pub const EXPECTED_CHUNKS: usize = 3;

/// What a shard says to a worker of another host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// The payload is this chunk's value.
    Value {
        /// The tensor.
        tensor: TensorId,
        /// The chunk, counted over the whole tensor.
        chunk: u32,
        /// Its version.
        version: u64,
        /// Optimizer steps behind it.
        steps: u64,
        /// The number of this publication in the chunk's stream: the receiver's position once it has decoded the payload.
        publication: u64,
        /// The publication that the payload is a difference against; 0 if it is whole.
        base: u64,
        /// The last publication up to this one that changed what is seen: by it a receiver knows that it holds the same, however that
        /// came.
        content: u64,
    },
    /// Chunks that were sent on this connection have come to this version as they are.
    Raised {
        /// The tensor.
        tensor: TensorId,
        /// The first chunk.
        chunk: u32,
        /// How many, of those that are homed there, from it on.
        count: u32,
        /// Their version.
        version: u64,
        /// Optimizer steps behind each.
        steps: u64,
        /// What is held of them, as [`remote::contents`](crate::remote::contents) says it: who holds something else has not received
        /// all that came before. Zeros to who is fed by the home alone.
        contents: Contents,
    },
    /// The payload is the [update](crate::update) by which this chunk came to what it is.
    Update {
        /// The tensor.
        tensor: TensorId,
        /// The chunk.
        chunk: u32,
        /// Its version.
        version: u64,
        /// Optimizer steps behind it, this one among them.
        steps: u64,
        /// The number of this publication, which is also that of what is held of the chunk then.
        publication: u64,
        /// What has to be held before: the last publication that changed what is seen.
        base: u64,
    },
    /// The payload is this chunk's value, and behind it the optimizer's state, of a tensor whose updates are sent.
    Whole {
        /// The tensor.
        tensor: TensorId,
        /// The chunk.
        chunk: u32,
        /// Its version.
        version: u64,
        /// Optimizer steps behind it.
        steps: u64,
        /// As of [`Notice::Value`].
        publication: u64,
        /// As of [`Notice::Value`].
        content: u64,
    },
    /// The payload is a piece of a right factor that updates of the tensor name, which follow
    /// ([`factors::down`](crate::factors::down)).
    Factor {
        /// The tensor.
        tensor: TensorId,
        /// Which factor.
        name: Named,
        /// Its rows.
        rank: u32,
        /// Where the piece begins, in bytes.
        at: u64,
    },
    /// The payload is the optimizer's state of this chunk: all arrays, one after the other.
    State {
        /// The tensor.
        tensor: TensorId,
        /// The chunk.
        chunk: u32,
    },
    /// So many of the worker's chunk contributions to the tensor were folded here, since the start.
    Folded {
        /// The tensor.
        tensor: TensorId,
        /// How many.
        count: u64,
    },
    /// Everything that was asked for with this ticket, or an earlier one, has been sent.
    Fetched {
        /// The tensor.
        tensor: TensorId,
        /// The ticket.
        ticket: u64,
    },
    /// The payload is the seal of the value, or the raised versions, that the next frame brings: by it who gets that from another than
    /// the home knows that it is the home's ([`crate::seal`]).
    Seal,
    /// What the receiver will hold of one stripe of a tensor once all that was published has come, on whatever way: the sum of all
    /// its chunks' versions and contents' numbers, modulo 2^64.
    Standing {
        /// The tensor.
        tensor: TensorId,
        /// The stripe.
        stripe: u32,
        /// The sum.
        digest: u64,
    },
    /// What the receiver is to hold, before the next ticket counts, of some chunks that are homed there, from this one on. Others bring
    /// it.
    Expected {
        /// The tensor.
        tensor: TensorId,
        /// The first chunk.
        first: u32,
        /// Of each; [`Holding::NONE`] of those behind the last.
        held: [Holding; EXPECTED_CHUNKS],
    },
    /// The payload is a [`Route`](crate::overlay::Route): how values come to the receiver from now on.
    Route,
    /// From a worker to another of its host, which [borrows](crate::overlay::lending) the memory that it keeps the tensor's values in:
    /// what stands there of these chunks is new.
    Lent {
        /// The tensor.
        tensor: TensorId,
        /// The first chunk.
        chunk: u32,
        /// How many, of those that are homed there, from it on.
        count: u32,
    },
    /// Nothing but how far the worker's frames were taken. The first frame of every connection is one.
    Taken,
}

/// A frame's header.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Header {
    /// The job's number: a hash of its name. A frame of another job is refused.
    pub job: u64,
    /// The epoch of the job's placement. There is only one so far: 0.
    pub epoch: u64,
    /// From a worker: the number of this frame, from 1, over all its connections to the shard. From a shard: how many of the
    /// worker's frames were taken.
    pub sequence: u64,
    /// Bytes of the payload.
    pub length: u32,
    /// How it is encoded.
    pub encoding: Encoding,
    /// Whether what came of that was compressed; never to no bytes, or as many.
    pub packed: Option<Packed>,
    /// Its checksum (XXH3, 64 bits); 0 where there is none.
    pub checksum: u64,
    /// What it says.
    pub body: Body,
}

/// A header that no honest peer sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// It does not start as a frame does.
    #[error("expected a frame, got bytes that start with {got:#010x}")]
    NoFrame {
        /// The first four bytes.
        got: u32,
    },
    /// The header's checksum does not match.
    #[error("a frame's header arrived damaged")]
    Damaged,
    /// It is longer than any payload.
    #[error("expected a payload of at most {MAX_PAYLOAD_BYTES} bytes, got {got}")]
    TooLong {
        /// Its length.
        got: u32,
    },
    /// A compressor that does not exist.
    #[error("expected a payload that is compressed by 1, 2 or nothing, got {got}")]
    UnknownCompressor {
        /// What came.
        got: u8,
    },
    /// A compressed payload that is not shorter than what it is of, or of nothing; or bytes before compression where nothing is.
    #[error(
        "expected a payload of {length} bytes to decompress to more, and to {MAX_PAYLOAD_BYTES} at most, got {got}"
    )]
    Packed {
        /// The payload's length.
        length: u32,
        /// What it is said to decompress to.
        got: u32,
    },
    /// A direction or notice that does not exist.
    #[error("expected a worker's or a shard's frame, got kind {got}")]
    UnknownKind {
        /// What came.
        got: u32,
    },
    /// The submission in it is not a valid one.
    #[error(transparent)]
    Submission(#[from] SubmissionError),
    /// The payload's checksum does not match.
    #[error("a payload of {bytes} bytes arrived damaged")]
    DamagedPayload {
        /// Its length.
        bytes: usize,
    },
}

const VALUE: u32 = 1;
const STATE: u32 = 2;
const FOLDED: u32 = 3;
const FETCHED: u32 = 4;
const TAKEN: u32 = 5;
const RAISED: u32 = 6;
const SEAL: u32 = 7;
const STANDING: u32 = 8;
const ROUTE: u32 = 9;
const EXPECTED: u32 = 10;
const UPDATE: u32 = 11;
const WHOLE: u32 = 12;
const FACTOR: u32 = 13;
const LENT: u32 = 14;

impl Notice {
    /// Its words.
    pub(crate) fn encode(&self) -> [u64; WORDS] {
        match *self {
            Self::Value { tensor, chunk, version, steps, publication, base, content } => {
                [pack(VALUE, tensor), u64::from(chunk), version, steps, publication, base, content, 0]
            }
            Self::Update { tensor, chunk, version, steps, publication, base } => {
                [pack(UPDATE, tensor), u64::from(chunk), version, steps, publication, base, 0, 0]
            }
            Self::Whole { tensor, chunk, version, steps, publication, content } => {
                [pack(WHOLE, tensor), u64::from(chunk), version, steps, publication, content, 0, 0]
            }
            Self::Factor { tensor, name: Named { writer, turn }, rank, at } => {
                [pack(FACTOR, tensor), pack(writer, rank), turn, at, 0, 0, 0, 0]
            }
            Self::Raised { tensor, chunk, count, version, steps, contents } => {
                let [a, b, c, d] = contents;
                [pack(RAISED, tensor), pack(chunk, count), version, steps, a, b, c, d]
            }
            Self::Seal => [pack(SEAL, 0), 0, 0, 0, 0, 0, 0, 0],
            Self::Standing { tensor, stripe, digest } => {
                [pack(STANDING, tensor), u64::from(stripe), digest, 0, 0, 0, 0, 0]
            }
            Self::Expected { tensor, first, held: [a, b, c] } => [
                pack(EXPECTED, tensor),
                u64::from(first),
                a.content,
                a.version,
                b.content,
                b.version,
                c.content,
                c.version,
            ],
            Self::Route => [pack(ROUTE, 0), 0, 0, 0, 0, 0, 0, 0],
            Self::State { tensor, chunk } => [pack(STATE, tensor), u64::from(chunk), 0, 0, 0, 0, 0, 0],
            Self::Folded { tensor, count } => [pack(FOLDED, tensor), 0, count, 0, 0, 0, 0, 0],
            Self::Fetched { tensor, ticket } => [pack(FETCHED, tensor), 0, ticket, 0, 0, 0, 0, 0],
            Self::Lent { tensor, chunk, count } => [pack(LENT, tensor), pack(chunk, count), 0, 0, 0, 0, 0, 0],
            Self::Taken => [pack(TAKEN, 0), 0, 0, 0, 0, 0, 0, 0],
        }
    }

    fn decode(words: &[u64; WORDS]) -> Result<Self, FrameError> {
        let (kind, tensor) = unpack(words[0]);
        let chunk = words[1] as u32;
        Ok(match kind {
            VALUE => {
                let [_, _, version, steps, publication, base, content, _] = *words;
                Self::Value { tensor, chunk, version, steps, publication, base, content }
            }
            UPDATE => {
                let [_, _, version, steps, publication, base, ..] = *words;
                Self::Update { tensor, chunk, version, steps, publication, base }
            }
            WHOLE => {
                let [_, _, version, steps, publication, content, ..] = *words;
                Self::Whole { tensor, chunk, version, steps, publication, content }
            }
            FACTOR => {
                let (writer, rank) = unpack(words[1]);
                Self::Factor { tensor, name: Named { writer, turn: words[2] }, rank, at: words[3] }
            }
            RAISED => {
                let (chunk, count) = unpack(words[1]);
                let contents = [words[4], words[5], words[6], words[7]];
                Self::Raised { tensor, chunk, count, version: words[2], steps: words[3], contents }
            }
            SEAL => Self::Seal,
            STANDING => Self::Standing { tensor, stripe: chunk, digest: words[2] },
            EXPECTED => {
                let held = [2, 4, 6].map(|at| Holding { content: words[at], version: words[at + 1] });
                Self::Expected { tensor, first: chunk, held }
            }
            ROUTE => Self::Route,
            STATE => Self::State { tensor, chunk },
            FOLDED => Self::Folded { tensor, count: words[2] },
            FETCHED => Self::Fetched { tensor, ticket: words[2] },
            LENT => {
                let (chunk, count) = unpack(words[1]);
                Self::Lent { tensor, chunk, count }
            }
            TAKEN => Self::Taken,
            got => return Err(FrameError::UnknownKind { got }),
        })
    }
}

impl Header {
    /// A header without a payload.
    pub fn bare(job: u64, sequence: u64, body: Body) -> Self {
        let (length, encoding, packed, checksum) = (0, Encoding::RAW, None, 0);
        Self { job, epoch: 0, sequence, length, encoding, packed, checksum, body }
    }

    /// Whether it has no payload, nor says how one would be encoded.
    pub fn is_bare(&self) -> bool {
        self.length == 0 && self.encoding == Encoding::RAW && self.packed.is_none()
    }

    /// The same, for a raw payload that it is then sent with.
    pub fn with_payload(self, payload: &[u8]) -> Self {
        self.with_encoded(Encoding::RAW, 0, payload)
    }

    /// The same for a payload in any encoding, and for a value the publication that it is a difference against; 0 if it is whole.
    pub fn with_encoded(self, encoding: Encoding, base: u64, payload: &[u8]) -> Self {
        self.with_sum(encoding, base, payload.len(), checksum::of(payload))
    }

    /// The same for a payload of which length and checksum are known.
    pub fn with_sum(mut self, encoding: Encoding, base: u64, length: usize, checksum: u64) -> Self {
        self.encoding = encoding;
        if let Body::Notice(Notice::Value { base: of_value, .. }) = &mut self.body {
            *of_value = base;
        }
        self.length = u32::try_from(length).expect("what is sent has bounds");
        self.checksum = checksum;
        self
    }

    /// The same for a payload that was compressed to what it is sent with.
    pub fn with_packed(self, packed: Option<Packed>) -> Self {
        Self { packed, ..self }
    }

    /// Bytes of the payload before it was compressed, if it was.
    pub fn unpacked(&self) -> u32 {
        self.packed.map_or(self.length, |packed| packed.length)
    }

    /// What the payload has to be decoded onto.
    pub fn base(&self) -> Base {
        match self.body {
            Body::Notice(Notice::Value { base: 1.., .. }) => Base::Held,
            _ => Base::Zeros,
        }
    }

    /// Its bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let (from, wanted, body) = match self.body {
            Body::Submission { submission, wanted } => (FROM_WORKER, wanted, submission.encode()),
            Body::Notice(notice) => (FROM_SHARD, false, notice.encode()),
            Body::Alive => (ALIVE, false, [0; WORDS]),
        };
        let (by, unpacked) = self.packed.map_or((0, 0), |packed| (packed.by.number(), packed.length));
        let kind = u32::from_le_bytes([from, self.encoding.0, u8::from(wanted), by]);
        let mut words = [0u64; HEADER_BYTES / 8];
        words[..6].copy_from_slice(&[
            pack(MAGIC, kind),
            self.job,
            self.epoch,
            self.sequence,
            pack(self.length, unpacked),
            self.checksum,
        ]);
        words[6..14].copy_from_slice(&body);
        let mut bytes = [0; HEADER_BYTES];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let sum = checksum::of(&bytes[..HEADER_BYTES - 8]);
        bytes[HEADER_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// What these bytes say. Ranges, job, sequence and encoding are judged by the caller, which knows them.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        let mut words = [0u64; HEADER_BYTES / 8];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        // First, because whatever else is wrong with bytes that were damaged is not the sender's fault.
        if words[15] != checksum::of(&bytes[..HEADER_BYTES - 8]) {
            return Err(FrameError::Damaged);
        }
        let (magic, kind) = unpack(words[0]);
        if magic != MAGIC {
            return Err(FrameError::NoFrame { got: magic });
        }
        let (length, unpacked) = unpack(words[4]);
        if length > MAX_PAYLOAD_BYTES {
            return Err(FrameError::TooLong { got: length });
        }
        let [from, encoding, wanted, by] = kind.to_le_bytes();
        let by = match by {
            0 => None,
            got => Some(Compressor::numbered(got).ok_or(FrameError::UnknownCompressor { got })?),
        };
        let packed = by.map(|by| Packed { by, length: unpacked });
        // Zero where nothing is compressed.
        let fits = packed
            .map_or(unpacked == 0, |_| length > 0 && (length + 1..=MAX_PAYLOAD_BYTES).contains(&unpacked));
        if !fits {
            return Err(FrameError::Packed { length, got: unpacked });
        }
        let body: [u64; WORDS] = words[6..14].try_into().expect("eight words");
        let body = match from {
            FROM_WORKER => Body::Submission { submission: Submission::decode(body)?, wanted: wanted != 0 },
            FROM_SHARD => Body::Notice(Notice::decode(&body)?),
            ALIVE => Body::Alive,
            _ => return Err(FrameError::UnknownKind { got: kind }),
        };
        Ok(Self {
            job: words[1],
            epoch: words[2],
            sequence: words[3],
            length,
            encoding: Encoding(encoding),
            packed,
            checksum: words[5],
            body,
        })
    }

    /// Whether `payload` is the one that the header announced.
    pub fn check(&self, payload: &[u8]) -> Result<(), FrameError> {
        if payload.len() == self.length as usize && checksum::of(payload) == self.checksum {
            return Ok(());
        }
        Err(FrameError::DamagedPayload { bytes: payload.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::job_number;
    use penstock_kernels::Settings;
    use proptest::prelude::*;

    fn push(tensor: u32, chunk: u32, stamp: u64) -> Header {
        let settings = Settings([0.1, 0.9, 0.0, 0.0, 0.0]);
        let submission = Submission::Push { tensor, first: chunk, count: 1, stamp, settings };
        Header::bare(job_number("a"), 7, Body::Submission { submission, wanted: true })
            .with_payload(b"gradient")
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(bytes: [u8; HEADER_BYTES / 4], at in 0usize..96) {
            let mut whole = push(1, 2, 3).encode();
            whole[at..at + bytes.len()].copy_from_slice(&bytes);
            let _ = Header::decode(&whole);
        }

        #[test]
        fn a_header_reads_back_as_it_was_written(tensor: u32, chunk: u32, stamp: u64, sequence: u64) {
            let mut header = push(tensor, chunk, stamp);
            header.sequence = sequence;
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
            let packed = Compressor::ALL.map(|by| Some(Packed { by, length: 9 + tensor % MAX_CHUNK_BYTES }));
            for header in packed.map(|packed| header.with_packed(packed)) {
                prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
            }
        }

        #[test]
        fn a_single_flipped_bit_anywhere_is_noticed(at in 0usize..HEADER_BYTES, bit in 0u8..8) {
            let mut bytes = push(1, 2, 3).encode();
            bytes[at] ^= 1 << bit;
            prop_assert!(Header::decode(&bytes).is_err());
        }
    }

    #[test]
    fn every_notice_reads_back_as_it_was_written() {
        let one = Holding { content: 8, version: 4 };
        for notice in [
            Notice::Value { tensor: 1, chunk: 2, version: 3, steps: 4, publication: 6, base: 5, content: 4 },
            Notice::Raised { tensor: 1, chunk: 2, count: 3, version: 4, steps: 5, contents: [6, 7, 8, 9] },
            Notice::Update { tensor: 1, chunk: 2, version: 3, steps: 4, publication: 6, base: 5 },
            Notice::Whole { tensor: 1, chunk: 2, version: 3, steps: 4, publication: 6, content: 5 },
            Notice::Factor { tensor: 1, name: Named { writer: 2, turn: u64::MAX }, rank: 4, at: 5 },
            Notice::Seal,
            Notice::Standing { tensor: 3, stripe: 2, digest: u64::MAX },
            Notice::Expected { tensor: 3, first: 7, held: [one, Holding::NONE, Holding::NONE] },
            Notice::Route,
            Notice::State { tensor: 1, chunk: u32::MAX },
            Notice::Folded { tensor: 9, count: u64::MAX },
            Notice::Fetched { tensor: 0, ticket: 5 },
            Notice::Lent { tensor: 3, chunk: 7, count: u32::MAX },
            Notice::Taken,
        ] {
            let header = Header::bare(1, 2, Body::Notice(notice));
            assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
    }

    #[test]
    fn a_payload_is_compressed_to_fewer_bytes_and_to_some_by_what_exists() {
        let header = push(1, 2, 3);
        let decoded = |length, unpacked, by: u8| {
            let mut bytes = Header { length, ..header }.encode();
            bytes[7] = by;
            bytes[36..40].copy_from_slice(&u32::to_le_bytes(unpacked));
            let sum = checksum::of(&bytes[..HEADER_BYTES - 8]);
            bytes[HEADER_BYTES - 8..].copy_from_slice(&sum.to_le_bytes());
            Header::decode(&bytes).map(|header| header.packed)
        };
        assert_eq!(decoded(8, 0, 0), Ok(None));
        for by in Compressor::ALL {
            for length in [9, MAX_PAYLOAD_BYTES] {
                assert_eq!(decoded(8, length, by.number()), Ok(Some(Packed { by, length })));
            }
            for (length, got) in [(8, 8), (8, 0), (0, 0), (0, 9), (8, MAX_PAYLOAD_BYTES + 1), (8, u32::MAX)] {
                assert_eq!(decoded(length, got, by.number()), Err(FrameError::Packed { length, got }));
            }
        }
        assert_eq!(decoded(8, 9, 0), Err(FrameError::Packed { length: 8, got: 9 }));
        assert_eq!(decoded(8, 9, 3), Err(FrameError::UnknownCompressor { got: 3 }));
        assert_eq!(
            decoded(MAX_PAYLOAD_BYTES + 1, 0, 0).unwrap_err(),
            FrameError::TooLong { got: MAX_PAYLOAD_BYTES + 1 }
        );
    }

    #[test]
    fn a_payload_that_is_not_the_announced_one_is_refused() {
        let header = push(1, 2, 3);
        assert_eq!(header.check(b"gradient"), Ok(()));
        assert_eq!(header.check(b"gradienT"), Err(FrameError::DamagedPayload { bytes: 8 }));
        assert!(header.check(b"gradien").is_err());
    }
}
