//! How a chunk travels between hosts: encoded by what its tensor's declaration agreed to, and checked before it is read.
//!
//! What a [codec](penstock_kernels::codec) makes of a chunk is the payload of one frame; the payload's length and the chunk's
//! are two different things. A **stream** is the sequence of a chunk's publications, and its state, what its receivers hold, is
//! kept by the sender ([`stream`](crate::stream)). A receiver's **position** in the stream is the number of the publication
//! that it holds: the home keeps one for each subscriber ([`remote::home`](crate::remote::home)), and the mirror its own
//! ([`remote::mirror`](crate::remote::mirror)). What is agreed to is [declared](crate::travel).
//!
//! - **E-1** A difference goes only to a receiver that holds the publication it is against, and any other receiver refuses it;
//!   they get the chunk whole. So each receiver holds exactly what the sender believes it to hold, bit for bit. And a contribution
//!   stands at its shard as it was sent.
//! - **E-2** A payload in an encoding, or by a compressor, that was not agreed to, or of an impossible length before or behind
//!   that, is refused before a byte of it is decoded or put anywhere, and one that cannot be decoded changes nothing.
//!
//! Encodings that make a chunk shorter and lose nothing are tried where that is worth it ([`Worth`]).
//!
//! Contributions are sums and always whole: elements that are not sent read 0. The optimizer's arrays travel raw.

mod worth;

pub use worth::{Attempt, Worth};

use crate::checksum::OncePublished;
use crate::compress::{Compress, Packed};
use penstock_kernels::Foreign;
use penstock_kernels::codec::{Codec, Raw};
use penstock_kernels::compress::Compressor;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Most encodings that a tensor agrees to one way: each may be tried for each chunk.
pub const MAX_ENCODINGS: usize = 4;

/// How a payload is encoded: a byte of its frame's header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Encoding(pub u8);

impl Encoding {
    /// The chunk itself.
    pub const RAW: Self = Self(0);
}

/// An encoding and its codec.
#[derive(Debug, Clone, Copy)]
pub struct Member {
    /// Its number.
    pub encoding: Encoding,
    /// What turns chunks into payloads and back.
    pub codec: &'static dyn Codec,
}

impl Member {
    /// Every tensor agrees to it.
    pub const RAW: Self = Self { encoding: Encoding::RAW, codec: &Raw };
}

/// The encodings that a tensor's declaration agreed to, one way, in the order in which they are tried: the first that pays is
/// sent.
#[derive(Debug, Clone, Copy)]
pub struct Agreed {
    members: [Member; MAX_ENCODINGS],
    count: usize,
    compress: Compress,
}

/// Raw alone.
impl Default for Agreed {
    fn default() -> Self {
        Self::RAW
    }
}

/// Why a payload is refused before it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unexpected {
    /// This process does not know the encoding, or the tensor's declaration did not agree to it.
    #[error("expected an encoding that the tensor agreed to, got {}", got.0)]
    NotAgreed {
        /// What came.
        got: Encoding,
    },
    /// Nothing of the tensor is compressed so.
    #[error("expected a payload that is compressed as the tensor agreed to, by {agreed}, got one by {got}")]
    NotCompressed {
        /// What was agreed to.
        agreed: Compress,
        /// What came.
        got: Compressor,
    },
    /// No chunk of that size has that length in this encoding.
    #[error("expected {least} to {most} bytes of a chunk of {bytes}, got {got}")]
    Length {
        /// Least bytes.
        least: usize,
        /// Most bytes.
        most: usize,
        /// The chunk's.
        bytes: usize,
        /// What came.
        got: usize,
    },
}

/// Where the chunk to be sent is.
#[derive(Debug, Clone, Copy)]
pub enum Source<'a> {
    /// In memory that does not change until it is sent.
    Stands(&'a [u8]),
    /// The same, which others are sent as well: what its checksum is known by, and the publication that it is.
    Published(&'a [u8], &'a OncePublished, u64),
    /// In a lane that only we write, and not now: it is sent from there. Were it written meanwhile, the frame would be damaged,
    /// which its receiver sees.
    Lane(Foreign<'a>),
    /// In a lane whose address others have, who may be writing: it is copied out, and the copy is sent, which is what its
    /// checksum was taken of.
    ExposedLane(Foreign<'a>),
}

impl Source<'_> {
    /// Bytes of the chunk.
    pub fn len(&self) -> usize {
        match self {
            Self::Stands(bytes) | Self::Published(bytes, ..) => bytes.len(),
            Self::Lane(lane) | Self::ExposedLane(lane) => lane.len(),
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What the receivers at one publication of a stream hold.
#[derive(Debug, Clone, Copy)]
pub struct Shadow<'a> {
    /// Which.
    pub publication: u64,
    /// As long as the chunk.
    pub bytes: &'a [u8],
}

/// One chunk to be sent to one receiver.
#[derive(Debug, Clone, Copy)]
pub struct Sent<'a> {
    /// What the receiver is to hold.
    pub source: Source<'a>,
    /// The stream's, if it keeps one. Raw needs none, and a sum has none.
    pub shadow: Option<Shadow<'a>>,
    /// The receiver's position: the publication that it holds; 0 if it holds none, and for a sum.
    pub position: u64,
}

/// Where a payload is.
#[derive(Debug, Clone)]
pub enum Payload<'a> {
    /// Where the chunk is.
    Stands(&'a [u8]),
    /// In the lane itself, from where it is sent.
    Lane(Foreign<'a>),
    /// In the buffer.
    Buffered(Range<usize>),
}

/// A chunk as it is sent.
#[derive(Debug, Clone)]
pub struct Encoded<'a> {
    /// How it is encoded.
    pub encoding: Encoding,
    /// The publication that it is a difference against; 0: it is whole.
    pub base: u64,
    /// Its bytes.
    pub payload: Payload<'a>,
    /// Their checksum, if the source is known by it.
    pub checksum: Option<u64>,
}

impl Agreed {
    /// Raw alone: for tensors that declare nothing else, and for what is neither a value nor a contribution.
    pub const RAW: Self = Self::new(&[Member::RAW]);

    /// These, the last of them raw, which always pays.
    ///
    /// # Panics
    /// If the last is not raw, or there are more than [`MAX_ENCODINGS`].
    pub const fn new(members: &[Member]) -> Self {
        let [.., Member { encoding: Encoding::RAW, .. }] = members else {
            panic!("every tensor agrees to raw")
        };
        let mut agreed =
            Self { members: [Member::RAW; MAX_ENCODINGS], count: members.len(), compress: Compress::None };
        let mut at = 0;
        while at < members.len() {
            agreed.members[at] = members[at];
            at += 1;
        }
        agreed
    }

    /// The same, and what comes of it may be compressed.
    #[must_use]
    pub const fn compressed(self, compress: Compress) -> Self {
        Self { compress, ..self }
    }

    /// How payloads may be compressed.
    pub fn compress(&self) -> Compress {
        self.compress
    }

    /// Whether raw may go in place of all other encodings wherever that is [cheaper](Worth): nobody has asked for these but to be
    /// cheaper than raw.
    pub fn gives_way(&self) -> bool {
        let mut others = self.members().iter().filter(|member| !member.codec.is_verbatim()).peekable();
        self.compress.is_choice() && others.peek().is_some() && others.all(|member| member.codec.gives_way())
    }

    fn members(&self) -> &[Member] {
        &self.members[..self.count]
    }

    /// Whether the chunk itself is all that is ever sent: then neither end needs room to encode or decode it in.
    pub fn is_verbatim(&self) -> bool {
        self.compress == Compress::None && self.members().iter().all(|member| member.codec.is_verbatim())
    }

    /// Whether the sender of values has to keep what their receivers hold.
    pub fn uses_base(&self) -> bool {
        self.members().iter().any(|member| member.codec.uses_base())
    }

    /// Most bytes of a payload for a chunk of `bytes` bytes, before it is compressed.
    pub fn longest(&self, bytes: usize) -> usize {
        self.members().iter().map(|member| *member.codec.lengths(bytes).end()).max().unwrap_or(bytes)
    }

    /// Encodes a chunk. Unless it is sent from where it is, it is written into `buffer` from byte `at` on; the buffer only
    /// grows.
    pub fn encode<'a>(&self, sent: &Sent<'a>, buffer: &mut Vec<u8>, at: usize) -> Encoded<'a> {
        let shadow = sent.shadow.filter(|shadow| shadow.publication == sent.position && sent.position > 0);
        for &Member { encoding, codec } in self.members() {
            let chunk = match sent.source {
                Source::Stands(bytes) if codec.is_verbatim() => {
                    return Encoded { encoding, base: 0, payload: Payload::Stands(bytes), checksum: None };
                }
                Source::Published(bytes, sum, publication) if codec.is_verbatim() => {
                    let checksum = Some(sum.of(publication, bytes));
                    return Encoded { encoding, base: 0, payload: Payload::Stands(bytes), checksum };
                }
                Source::Lane(lane) if codec.is_verbatim() => {
                    return Encoded { encoding, base: 0, payload: Payload::Lane(lane), checksum: None };
                }
                Source::Stands(bytes) | Source::Published(bytes, ..) => Foreign::of(bytes),
                Source::Lane(lane) | Source::ExposedLane(lane) => lane,
            };
            let end = at + codec.lengths(chunk.len()).end();
            if buffer.len() < end {
                buffer.resize(end, 0);
            }
            let shadow = shadow.filter(|_| codec.uses_base());
            if let Some(length) = codec.encode(chunk, shadow.map(|shadow| shadow.bytes), &mut buffer[at..end])
            {
                debug_assert!(codec.lengths(chunk.len()).contains(&length), "{codec:?} keeps to its bounds");
                let base = shadow.map_or(0, |shadow| shadow.publication);
                let payload = Payload::Buffered(at..at + length);
                return Encoded { encoding, base, payload, checksum: None };
            }
        }
        unreachable!("raw is the last, and always pays")
    }

    /// The codec for a payload whose header has come, of a chunk of `bytes` bytes. `length`: its own; or if it is compressed, what
    /// it decompresses to, which decides, is in `packed`.
    pub fn expect(
        &self,
        encoding: Encoding,
        (length, packed): (usize, Option<Packed>),
        bytes: usize,
    ) -> Result<&'static dyn Codec, Unexpected> {
        let agreed = self.compress;
        if let Some(got) = packed.map(|packed| packed.by).filter(|by| !agreed.allows(*by)) {
            return Err(Unexpected::NotCompressed { agreed, got });
        }
        let length = packed.map_or(length, |packed| packed.length as usize);
        let member = self.members().iter().find(|member| member.encoding == encoding);
        let codec = member.ok_or(Unexpected::NotAgreed { got: encoding })?.codec;
        let lengths = codec.lengths(bytes);
        if lengths.contains(&length) {
            return Ok(codec);
        }
        let (least, most) = lengths.into_inner();
        Err(Unexpected::Length { least, most, bytes, got: length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_goes_from_where_it_stands_or_by_one_copy_where_that_is_asked_for_and_is_whole() {
        let (chunk, mut buffer) = ([1, 2, 3, 4], vec![9; 2]);
        let shadow = Some(Shadow { publication: 3, bytes: &[0; 4] });
        let sent = |source| Sent { source, shadow, position: 3 };
        let agreed = Agreed::default();
        let mut encode = |source| {
            let encoded = agreed.encode(&sent(source), &mut buffer, 2);
            assert_eq!((encoded.encoding, encoded.base), (Encoding::RAW, 0));
            (encoded.payload, encoded.checksum)
        };
        let stands = encode(Source::Stands(&chunk));
        assert!(matches!(stands, (Payload::Stands(bytes), None) if std::ptr::eq(bytes, &chunk)));
        let (lane, sum) = encode(Source::Lane(Foreign::of(&chunk)));
        assert!(
            matches!(lane, Payload::Lane(memory) if memory.as_ptr() == chunk.as_ptr() && memory.len() == 4)
        );
        assert_eq!(sum, None);
        let copied = encode(Source::ExposedLane(Foreign::of(&chunk)));
        assert!(matches!(copied, (Payload::Buffered(range), None) if range == (2..6)));
        assert_eq!(buffer, [9, 9, 1, 2, 3, 4]);
    }

    #[test]
    fn what_was_not_agreed_to_and_what_is_too_long_is_refused_before_it_is_read() {
        let agreed = Agreed::default();
        assert!(agreed.expect(Encoding::RAW, (32, None), 32).is_ok_and(|codec| codec.is_verbatim()));
        let refused = agreed.expect(Encoding(7), (32, None), 32).unwrap_err();
        assert_eq!(refused, Unexpected::NotAgreed { got: Encoding(7) });
        assert_eq!(refused.to_string(), "expected an encoding that the tensor agreed to, got 7");
        for got in [0, 31, 33] {
            let refused = agreed.expect(Encoding::RAW, (got, None), 32).unwrap_err();
            assert_eq!(refused, Unexpected::Length { least: 32, most: 32, bytes: 32, got });
        }
    }

    #[test]
    fn what_is_compressed_is_judged_by_what_it_decompresses_to_and_by_what_was_agreed_to() {
        let packed = |by, length| (5, Some(Packed { by, length }));
        let by = |compress| Agreed::RAW.compressed(compress);
        assert!(!by(Compress::Auto).is_verbatim() && by(Compress::None).is_verbatim());
        for one in Compressor::ALL {
            for agreed in [by(Compress::By(one)), by(Compress::Auto)] {
                assert!(agreed.expect(Encoding::RAW, packed(one, 32), 32).is_ok());
                assert!(agreed.expect(Encoding::RAW, (32, None), 32).is_ok(), "it need not be");
                for got in [0, 5, 31, 33, u32::MAX] {
                    let refused = agreed.expect(Encoding::RAW, packed(one, got), 32).unwrap_err();
                    let got = got as usize;
                    assert_eq!(refused, Unexpected::Length { least: 32, most: 32, bytes: 32, got });
                }
            }
        }
        let refused = by(Compress::None).expect(Encoding::RAW, packed(Compressor::Lz4, 32), 32).unwrap_err();
        let said = "expected a payload that is compressed as the tensor agreed to, by none, got one by lz4";
        assert_eq!(refused.to_string(), said);
        let zstd = by(Compress::By(Compressor::Zstd));
        assert!(zstd.expect(Encoding::RAW, packed(Compressor::Lz4, 32), 32).is_err());
    }
}
