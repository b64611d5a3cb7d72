//! What a frame may be, judged by its header before its payload is let in: at a home, and at a mirror.
//!
//! Only the caller knows where a payload goes: it is asked which bytes of a lane, or of a value, the frame may carry.

use super::home::Subscriber;
use crate::compress::Packed;
use crate::encoding::{Agreed, Encoding};
use crate::factors::{Held, LowRank, PIECE, ROWS};
use crate::frame::{Body, Header, Notice};
use crate::overlay::MAX_ROUTE_BYTES;
use crate::peer::PeerId;
use crate::seal::MAX_SEAL_BYTES;
use crate::shard::{Judged, Shard};
use crate::submission::Submission;
use crate::update::PREFIX_BYTES;
use crate::{Rank, TensorId};
use penstock_kernels::codec::{Codec, Raw};
use std::fmt::Display;
use std::ops::Range;

impl LanePart {
    /// Whether the payload goes straight to its place.
    pub fn is_verbatim(&self) -> bool {
        self.packed.is_none() && self.made.is_verbatim()
    }
}

/// A frame of a worker, or of another peer of a home.
#[derive(Debug)]
pub enum Incoming {
    /// A sign of life.
    Alive,
    /// A submission, and the part of a lane that its payload is for, if it has one.
    Submission(Judged, Option<LanePart>),
    /// A piece of a right factor.
    Factor(Judged, FactorPart),
}

/// A piece of a right factor, to be kept.
#[derive(Debug, Clone)]
pub struct FactorPart {
    /// Of which tensor.
    pub tensor: TensorId,
    /// How its contributions may travel.
    pub low_rank: LowRank,
    /// The factors'.
    pub rank: u32,
    /// Which bytes of it.
    pub piece: Range<usize>,
}

/// What is made of a payload.
#[derive(Debug, Clone, Copy)]
pub enum Made {
    /// What a codec decodes.
    By(&'static dyn Codec),
    /// The product of rows of a left factor with the right one that is kept.
    Product {
        /// How the tensor's contributions may travel.
        low_rank: LowRank,
        /// The factors'.
        rank: u32,
        /// Where it begins in the first of the rows.
        column: usize,
    },
}

impl Made {
    /// Whether the payload is what it is made of, and goes straight to its place.
    pub fn is_verbatim(&self) -> bool {
        matches!(self, Self::By(codec) if codec.is_verbatim())
    }
}

/// A worker's lane of a tensor, as a frame is judged.
#[derive(Debug)]
pub struct Lane {
    /// Where the chunk lies in it.
    pub range: Range<usize>,
    /// Where the chunk begins in the tensor, in bytes.
    pub start: u64,
    /// How contributions travel.
    pub agreed: Agreed,
    /// Whether they may as factors.
    pub low_rank: Option<LowRank>,
}

/// A chunk of a worker's lane of a tensor, which a payload goes into: straight, unless it has to be decoded.
#[derive(Debug, Clone)]
pub struct LanePart {
    /// Whose lane.
    pub rank: Rank,
    /// Of which tensor.
    pub tensor: TensorId,
    /// The chunk.
    pub chunk: u32,
    /// Where it lies in the lane.
    pub range: Range<usize>,
    /// What is made of the payload.
    pub made: Made,
    /// Whether it has to be decompressed first.
    pub packed: Option<Packed>,
}

/// Judges a frame that comes to a home. `lane`: where a chunk lies in the lane that a worker has of a tensor, and how it travels;
/// `None` if it has none or the chunk is not homed here. `low_rank`: whether contributions to a tensor, of which the worker has a
/// lane, may travel as factors; `held`: the right one of those, as far as it has come.
pub fn submission<'a>(
    header: &Header,
    job: u64,
    peer: PeerId,
    (machine, subscriber): (&Shard, &Subscriber),
    lane: impl FnOnce(Rank, TensorId, u32) -> Option<Lane>,
    low_rank: impl FnOnce(Rank, TensorId) -> Option<LowRank>,
    held: impl FnOnce(TensorId) -> Option<&'a Held>,
) -> Result<Incoming, String> {
    if header.job != job || header.epoch != 0 {
        return Err("it sent a frame of another job or epoch".to_owned());
    }
    if header.body == Body::Alive && header.is_bare() {
        return Ok(Incoming::Alive);
    }
    subscriber.expect(header.sequence).map_err(|error| error.to_string())?;
    let Body::Submission { submission, .. } = header.body else {
        return Err("it sent a shard's frame".to_owned());
    };
    let judged = machine.judge(peer, &submission).map_err(|refused| refused.to_string())?;
    let nothing = Held::default();
    if let Submission::Factor { tensor, rank, at } = submission {
        let found = peer.rank().and_then(|of| low_rank(of, tensor));
        let low_rank =
            found.filter(|_| header.encoding == Encoding::RAW && header.packed.is_none()).ok_or_else(
                || format!("it sent a factor of tensor {tensor}, whose contributions do not travel so"),
            )?;
        let held = held(tensor).unwrap_or(&nothing);
        let piece = held.expect(&low_rank, rank, at, header.length as usize);
        let piece = piece.map_err(|unexpected| format!("tensor {tensor}: {unexpected}"))?;
        return Ok(Incoming::Factor(judged, FactorPart { tensor, low_rank, rank, piece }));
    }
    let is_push = matches!(submission, Submission::Push { .. });
    let (Submission::Push { tensor, first: chunk, count, .. }
    | Submission::Load { tensor, first: chunk, count, .. }) = submission
    else {
        return if header.is_bare() {
            Ok(Incoming::Submission(judged, None))
        } else {
            Err("it sent a payload for nothing".to_owned())
        };
    };
    // Only workers contribute: any other peer was refused above.
    let rank = peer.rank().filter(|_| count == 1);
    let part = rank.and_then(|rank| Some((rank, lane(rank, tensor, chunk)?)));
    let Some((rank, Lane { range, start, agreed, low_rank })) = part else {
        return Err(format!(
            "it sent chunk {chunk} of tensor {tensor}, which it did not declare or which is not homed here"
        ));
    };
    let length = header.length as usize;
    let refused = |unexpected: &dyn Display| format!("chunk {chunk} of tensor {tensor}: {unexpected}");
    let made = match low_rank.filter(|_| is_push && header.encoding == ROWS && header.packed.is_none()) {
        Some(low_rank) => {
            let held = held(tensor).unwrap_or(&nothing);
            let rank = held.expect_rows(&low_rank, start..start + range.len() as u64, length);
            let rank = rank.map_err(|unexpected| refused(&unexpected))?;
            Made::Product { low_rank, rank, column: low_rank.column(start) }
        }
        None => {
            let codec = agreed.expect(header.encoding, (length, header.packed), range.len());
            Made::By(codec.map_err(|unexpected| refused(&unexpected))?)
        }
    };
    Ok(Incoming::Submission(
        judged,
        Some(LanePart { rank, tensor, chunk, range, made, packed: header.packed }),
    ))
}

/// Judges a frame that comes to a mirror: what decodes its payload. `chunk`: how the chunk that the notice is about travels, and
/// its bytes (of an update those of its sum, and of what goes whole those of value and state); `None` if it was not asked for.
pub fn notice(
    header: &Header,
    job: u64,
    chunk: impl FnOnce(&Notice) -> Option<(Agreed, usize)>,
) -> Result<&'static dyn Codec, String> {
    let Body::Notice(notice) = header.body else { return Err("a worker's frame".to_owned()) };
    if header.job != job || header.epoch != 0 {
        return Err("a frame of another job or epoch".to_owned());
    }
    let length = header.length as usize;
    let is_plain = header.encoding == Encoding::RAW && header.packed.is_none();
    let chunk = match notice {
        // Judged by whoever reads them.
        Notice::Seal if is_plain && length <= MAX_SEAL_BYTES => return Ok(&Raw),
        Notice::Route if is_plain && length <= MAX_ROUTE_BYTES => return Ok(&Raw),
        Notice::Factor { .. } if is_plain && length <= PIECE => return Ok(&Raw),
        Notice::Value { .. } | Notice::State { .. } => chunk(&notice),
        // They are folded from where they came, and never compressed.
        Notice::Update { .. } | Notice::Whole { .. } if header.packed.is_none() => chunk(&notice),
        _ if header.is_bare() => return Ok(&Raw),
        _ => None,
    };
    let Some((agreed, bytes)) = chunk else {
        return Err(format!("{length} bytes for {notice:?}, which was not asked for"));
    };
    let before = if matches!(notice, Notice::Update { .. }) { PREFIX_BYTES } else { 0 };
    let Some(length) = length.checked_sub(before) else {
        return Err(format!("{notice:?}: expected an update, of at least {before} bytes, got {length}"));
    };
    // Likewise: they are sent where they are shorter than what they are in place of.
    if before > 0 && header.encoding == ROWS && length < bytes {
        return Ok(&Raw);
    }
    let codec = agreed.expect(header.encoding, (length, header.packed), bytes);
    codec.map_err(|unexpected| format!("{notice:?}: {unexpected}"))
}
