//! Submissions: the 64 bytes by which a worker tells a shard what stands in its lane.
//!
//! A worker writes submissions into a ring that it alone writes and the shard alone reads. The ring is the worker's
//! memory, so what comes out of it is foreign: [`Submission::decode`] judges a private copy of the eight words and nothing
//! else. The layout is drawn in docs/layout.md, which a test compares with this file.
//!
//! Every push carries the optimizer's numbers: a learning rate changed between two iterations takes effect with exactly
//! the update it was meant for, on every worker and every chunk, and a repeated submission repeats them.

use crate::factors::MAX_RANK;
use crate::overlay::Stripes;
use crate::{Rank, TensorId};
use penstock_kernels::Settings;

/// Words of a submission, 8 bytes each.
pub const WORDS: usize = 8;

/// The ticket of a fetch that brings none back: what a connection that is made again asks for on behalf of pushes.
pub const NO_TICKET: u64 = 0;

/// Chunks that one [`Submission::Holds`] tells of.
pub const HELD: usize = 6;
/// In the place of a publication: the chunks before it were the last.
pub const NO_MORE: u64 = u64::MAX;
/// In the place of a publication: nothing is held of the chunk, whatever was sent of it. Who went by another's memory may not have what
/// stood there.
pub const LOST: u64 = u64::MAX - 1;

/// What a worker says to a shard.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Submission {
    /// The chunks `first..first + count` of the tensor stand in this worker's lane; fold them.
    Push {
        /// The tensor.
        tensor: TensorId,
        /// First chunk, counted over the whole tensor.
        first: u32,
        /// How many chunks; the shard takes those that it is home of.
        count: u32,
        /// Iterations that the worker had completed when it computed the update.
        stamp: u64,
        /// The optimizer's numbers for this update.
        settings: Settings,
    },
    /// The worker has nothing for the chunks `first..first + count` in this iteration: what it would contribute is zeros, which change
    /// nothing by the optimizer's rule and these numbers. Nothing of them stands in the lane.
    Skip {
        /// The tensor.
        tensor: TensorId,
        /// First chunk, counted over the whole tensor.
        first: u32,
        /// How many chunks; the shard takes those that it is home of.
        count: u32,
        /// As of a push.
        stamp: u64,
        /// The optimizer's numbers for this update.
        settings: Settings,
    },
    /// The worker has completed this many iterations, and will push nothing more for any of them.
    Clock {
        /// Iterations completed.
        clock: u64,
    },
    /// The chunks stand in this worker's lane; take them as the value (`slot` 0) or as state array `slot - 1`.
    Load {
        /// The tensor.
        tensor: TensorId,
        /// First chunk, counted over the whole tensor.
        first: u32,
        /// How many chunks.
        count: u32,
        /// 0: the value; n: the n-th state array, counted from 1.
        slot: u32,
        /// Which lane-full of the array's chunk, where its elements are wider than the tensor's: 0, or 1 for f16 and bf16.
        part: u32,
        /// Optimizer steps that the loaded state has behind it.
        steps: u64,
    },
    /// The tensor starts at zero: nothing to take from the lane.
    Zero {
        /// The tensor.
        tensor: TensorId,
    },
    /// Only from workers on other hosts: send me what has changed and has this version, and the rest once it has it.
    Fetch {
        /// The tensor.
        tensor: TensorId,
        /// Whether the optimizer's state is meant, instead of the value.
        state: bool,
        /// Least version of each chunk.
        version: u64,
        /// Comes back behind what has this version by now. Grows with every fetch, from 1; or [`NO_TICKET`].
        ticket: u64,
    },
    /// Only from workers on other hosts: the same of the chunks `first..first + count`'s values.
    FetchChunks {
        /// The tensor.
        tensor: TensorId,
        /// First chunk, counted over the whole tensor.
        first: u32,
        /// How many chunks; the shard takes those that it is home of.
        count: u32,
        /// Least version of each.
        version: u64,
        /// As of a fetch, among which it counts.
        ticket: u64,
    },
    /// What a filter holds back of the tensor's values is to pass, all of it.
    Flush {
        /// The tensor.
        tensor: TensorId,
    },
    /// Only from workers on other hosts: a piece of the right factor of the contribution that follows
    /// ([`factors`](crate::factors)).
    Factor {
        /// The tensor.
        tensor: TensorId,
        /// Rows of the factor.
        rank: u32,
        /// Where the piece begins, in bytes.
        at: u64,
    },
    /// To the proxy of a shard of another host alone: as a push, but that factors stand in the lane, at the beginning of the extent. To
    /// the shard it is pieces of a factor, and pushes.
    PushProduct {
        /// The tensor.
        tensor: TensorId,
        /// First chunk, counted over the whole tensor.
        first: u32,
        /// How many chunks.
        count: u32,
        /// As of a push.
        stamp: u64,
        /// The optimizer's numbers for this update.
        settings: Settings,
        /// The factors', at most [`MAX_RANK`].
        rank: u32,
    },
    /// Only from workers on other hosts: it stands at its parents of these stripes, and is fed by them from now on.
    Attached {
        /// The route's number.
        epoch: u32,
        /// Which.
        stripes: Stripes,
    },
    /// Only from workers on other hosts: it has left its parents of these stripes, and is to be fed by the home. What it holds of all
    /// tensors follows ([`Submission::Holds`]). Of no stripes: whose fault it was that was not known then.
    Strayed {
        /// The route's number.
        epoch: u32,
        /// Which.
        stripes: Stripes,
        /// The parent that it left, whose fault that was; [`NOBODY`] or [`UNDECIDED`].
        parent: Rank,
    },
    /// Only from workers on other hosts: what it holds of some chunks, one after the other among those that are homed there. What of them
    /// is newer is to be sent.
    Holds {
        /// The tensor.
        tensor: TensorId,
        /// The first of them, counted over the whole tensor.
        first: u32,
        /// The route's number.
        epoch: u32,
        /// Of each the publication that it holds, or 0; or [`LOST`]. [`NO_MORE`]: there are no more.
        positions: [u64; HELD],
    },
    /// The last that comes from this worker: it leaves. Everything before it counts.
    Leave,
}

/// It was nobody's fault that a worker has left a parent.
pub const NOBODY: Rank = Rank::MAX;
/// Whose fault it was shows what the home brings from now on.
pub const UNDECIDED: Rank = Rank::MAX - 1;

/// A submission that no honest worker writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmissionError {
    /// The kind is not one of ours.
    #[error("expected a submission of kind 1 to 14, got {got}")]
    UnknownKind {
        /// What stood in the kind field.
        got: u32,
    },
}

const PUSH: u32 = 1;
const CLOCK: u32 = 2;
const LOAD: u32 = 3;
const ZERO: u32 = 4;
const FETCH: u32 = 5;
const LEAVE: u32 = 6;
const FLUSH: u32 = 7;
const SKIP: u32 = 8;
const FACTOR: u32 = 9;
const PUSH_PRODUCT: u32 = 10;
/// Where the rank of factors stands beside the kind: there is no other room.
const RANK_SHIFT: u32 = 16;
const _: () = assert!(MAX_RANK < 1 << RANK_SHIFT);
const FETCH_CHUNKS: u32 = 11;
const ATTACHED: u32 = 12;
const STRAYED: u32 = 13;
const HOLDS: u32 = 14;

/// Two halves of a word.
pub(crate) fn pack(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// The halves of a word, the low one first.
pub(crate) fn unpack(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

impl Submission {
    /// The eight words of this submission.
    pub fn encode(&self) -> [u64; WORDS] {
        let contribution = |kind, tensor, first, count, stamp, settings: Settings| {
            let [a, b, c, d, e] = settings.0.map(f64::to_bits);
            [pack(kind, tensor), pack(first, count), stamp, a, b, c, d, e]
        };
        match *self {
            Self::Push { tensor, first, count, stamp, settings } => {
                contribution(PUSH, tensor, first, count, stamp, settings)
            }
            Self::Skip { tensor, first, count, stamp, settings } => {
                contribution(SKIP, tensor, first, count, stamp, settings)
            }
            Self::Clock { clock } => [pack(CLOCK, 0), 0, clock, 0, 0, 0, 0, 0],
            Self::Load { tensor, first, count, slot, part, steps } => {
                [pack(LOAD, tensor), pack(first, count), steps, pack(slot, part), 0, 0, 0, 0]
            }
            Self::Zero { tensor } => [pack(ZERO, tensor), 0, 0, 0, 0, 0, 0, 0],
            Self::Fetch { tensor, state, version, ticket } => {
                [pack(FETCH, tensor), u64::from(state), version, ticket, 0, 0, 0, 0]
            }
            Self::FetchChunks { tensor, first, count, version, ticket } => {
                [pack(FETCH_CHUNKS, tensor), pack(first, count), version, ticket, 0, 0, 0, 0]
            }
            Self::Flush { tensor } => [pack(FLUSH, tensor), 0, 0, 0, 0, 0, 0, 0],
            Self::Factor { tensor, rank, at } => [pack(FACTOR, tensor), pack(rank, 0), at, 0, 0, 0, 0, 0],
            Self::PushProduct { tensor, first, count, stamp, settings, rank } => {
                contribution(PUSH_PRODUCT | rank << RANK_SHIFT, tensor, first, count, stamp, settings)
            }
            Self::Attached { epoch, stripes } => {
                [pack(ATTACHED, 0), pack(epoch, 0), stripes.0, 0, 0, 0, 0, 0]
            }
            Self::Strayed { epoch, stripes, parent } => {
                [pack(STRAYED, 0), pack(epoch, parent), stripes.0, 0, 0, 0, 0, 0]
            }
            Self::Holds { tensor, first, epoch, positions: [a, b, c, d, e, f] } => {
                [pack(HOLDS, tensor), pack(first, epoch), a, b, c, d, e, f]
            }
            Self::Leave => [pack(LEAVE, 0), 0, 0, 0, 0, 0, 0, 0],
        }
    }

    /// What these words say. Ranges and numbers are judged by the shard, which knows the tensor.
    pub fn decode(words: [u64; WORDS]) -> Result<Self, SubmissionError> {
        let (kind, tensor) = unpack(words[0]);
        let (first, count) = unpack(words[1]);
        match kind {
            PUSH | SKIP => {
                let [_, _, stamp, a, b, c, d, e] = words;
                let settings = Settings([a, b, c, d, e].map(f64::from_bits));
                Ok(match kind {
                    PUSH => Self::Push { tensor, first, count, stamp, settings },
                    _ => Self::Skip { tensor, first, count, stamp, settings },
                })
            }
            CLOCK => Ok(Self::Clock { clock: words[2] }),
            LOAD => {
                let (slot, part) = unpack(words[3]);
                Ok(Self::Load { tensor, first, count, slot, part, steps: words[2] })
            }
            ZERO => Ok(Self::Zero { tensor }),
            FETCH => Ok(Self::Fetch { tensor, state: words[1] != 0, version: words[2], ticket: words[3] }),
            FETCH_CHUNKS => {
                Ok(Self::FetchChunks { tensor, first, count, version: words[2], ticket: words[3] })
            }
            FLUSH => Ok(Self::Flush { tensor }),
            LEAVE => Ok(Self::Leave),
            ATTACHED => Ok(Self::Attached { epoch: first, stripes: Stripes(words[2]) }),
            STRAYED => Ok(Self::Strayed { epoch: first, stripes: Stripes(words[2]), parent: count }),
            HOLDS => {
                let [_, _, a, b, c, d, e, f] = words;
                Ok(Self::Holds { tensor, first, epoch: count, positions: [a, b, c, d, e, f] })
            }
            FACTOR => Ok(Self::Factor { tensor, rank: first, at: words[2] }),
            kind if kind % (1 << RANK_SHIFT) == PUSH_PRODUCT => {
                let [_, _, stamp, a, b, c, d, e] = words;
                let settings = Settings([a, b, c, d, e].map(f64::from_bits));
                Ok(Self::PushProduct { tensor, first, count, stamp, settings, rank: kind >> RANK_SHIFT })
            }
            got => Err(SubmissionError::UnknownKind { got }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_words_decode_to_something_that_encodes_to_itself_or_are_refused(words: [u64; WORDS]) {
            if let Ok(submission) = Submission::decode(words) {
                prop_assert_eq!(Submission::decode(submission.encode()).map(|s| s.encode()), Ok(submission.encode()));
            }
        }

        #[test]
        fn a_push_reads_back_bit_for_bit(tensor: u32, first: u32, count: u32, stamp: u64, lr: f64) {
            let push = Submission::Push { tensor, first, count, stamp, settings: Settings([lr, 0.0, 0.0, 0.0, 1.0]) };
            prop_assert_eq!(Submission::decode(push.encode()).unwrap().encode(), push.encode());
            let skip = Submission::Skip { tensor, first, count, stamp, settings: Settings([lr, 0.0, 0.0, 0.0, 1.0]) };
            prop_assert_eq!(Submission::decode(skip.encode()).unwrap().encode(), skip.encode());
            let (settings, rank) = (Settings([lr, 0.0, 0.0, 0.0, 1.0]), count % 65536);
            let product = Submission::PushProduct { tensor, first, count, stamp, settings, rank };
            prop_assert_eq!(Submission::decode(product.encode()).unwrap().encode(), product.encode());
        }
    }

    #[test]
    fn a_kind_that_does_not_exist_is_refused() {
        assert_eq!(Submission::decode([0; WORDS]), Err(SubmissionError::UnknownKind { got: 0 }));
        assert_eq!(Submission::decode([15; WORDS]), Err(SubmissionError::UnknownKind { got: 15 }));
    }
}
