//! What a frame may be, judged by its header before its payload is let in: at a home, and at a mirror.
//!
//! Only the caller knows where a payload goes: it is asked which bytes of a lane, or of a value, the frame may carry.

use super::home::Subscriber;
use crate::encoding::Agreed;
use crate::frame::{Body, Header, Notice};
use crate::peer::PeerId;
use crate::shard::{Judged, Shard};
use crate::submission::Submission;
use crate::{Rank, TensorId};
use penstock_kernels::codec::{Codec, Raw};
use std::ops::Range;

/// A frame of a worker, or of another peer of a home.
#[derive(Debug)]
pub enum Incoming {
    /// A sign of life.
    Alive,
    /// A submission, and the part of a lane that its payload is for, if it has one.
    Submission(Judged, Option<LanePart>),
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
    /// What decodes the payload.
    pub codec: &'static dyn Codec,
}

/// Judges a frame that comes to a home. `lane`: where a chunk lies in the lane that a worker has of a tensor, and how it travels;
/// `None` if it has none or the chunk is not homed here.
pub fn submission(
    header: &Header,
    job: u64,
    peer: PeerId,
    (machine, subscriber): (&Shard, &Subscriber),
    lane: impl FnOnce(Rank, TensorId, u32) -> Option<(Range<usize>, Agreed)>,
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
    let Some((rank, (range, agreed))) = part else {
        return Err(format!(
            "it sent chunk {chunk} of tensor {tensor}, which it did not declare or which is not homed here"
        ));
    };
    let codec = agreed.expect(header.encoding, header.length as usize, range.len());
    let codec = codec.map_err(|unexpected| format!("chunk {chunk} of tensor {tensor}: {unexpected}"))?;
    Ok(Incoming::Submission(judged, Some(LanePart { rank, tensor, chunk, range, codec })))
}

/// Judges a frame that comes to a mirror: what decodes its payload. `chunk`: how the chunk that the notice is about travels, and
/// its bytes; `None` if it was not asked for.
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
    let chunk = match notice {
        Notice::Value { .. } | Notice::State { .. } => chunk(&notice),
        _ if header.is_bare() => return Ok(&Raw),
        _ => None,
    };
    let Some((agreed, bytes)) = chunk else {
        return Err(format!("{length} bytes for {notice:?}, which was not asked for"));
    };
    let codec = agreed.expect(header.encoding, length, bytes);
    codec.map_err(|unexpected| format!("{notice:?}: {unexpected}"))
}
