//! The control plane's messages between a worker and a server, and their only encoder and decoder.
//!
//! One message is one datagram of a `SOCK_SEQPACKET` socket, or one [record](crate::record) of a network connection:
//! [`postcard`] of the types below, at most [`MAX_MESSAGE_BYTES`]. File descriptors travel beside the message, in the order
//! named at each reply. Nothing that happens once per iteration goes this way but barriers.

use crate::error::{JobFailure, MAX_TEXT_BYTES, Refusal, shorten};
use crate::first::{Heard, Say};
use crate::hex::unhex;
use crate::items::control::{TableAnswer, TableAsk};
use crate::knot::{Goal, Knot};
use crate::layer::Nanos;
use crate::peer::PeerId;
use crate::placement::Extent;
use crate::pressure::Change;
use crate::spec::TensorSpec;
use crate::uplink::Measured;
use crate::{Rank, TensorId};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// Version of messages, submissions and shared layouts together. Both sides must be of the same.
pub const PROTOCOL_VERSION: u32 = 18;
/// Largest message: a declaration with the longest name and most dimensions, with room; the answer that names every rank
/// missing of the largest job, likewise.
pub const MAX_MESSAGE_BYTES: usize = 64 * 1024;
/// Most workers of a job: each has a ring of 32 KiB in every shard, and the shard looks at all of them.
pub const MAX_WORKERS: u32 = 1024;
/// Most servers of a job on one host.
pub const MAX_SERVERS: u32 = 64;
/// Most shards of a server: their wake-up descriptors travel in one message (the kernel passes at most 253).
pub const MAX_SHARDS: u32 = 64;
/// Most tensors of a job: each costs a server some kilobytes, and a worker must not be able to ask for any number.
pub const MAX_TENSORS: u32 = 1 << 20;

/// Where a worker's clock would stand: it has left.
pub const LEFT: i64 = -2;

/// Identifies a peer's process over reconnects.
pub type Session = [u8; 16];

/// A job's secret, 32 bytes. It cannot be part of any message: what is sent is a [proof](crate::handshake).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub [u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// Reads 64 hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        unhex(text).map(Self)
    }
}

/// A request and its number, which the reply repeats.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the worker, above 0.
    pub id: u64,
    /// Every request with a lower number has its answer, or needs none any more, but for those that are `open`: the server
    /// need not keep those answers, and carries out none of these requests again.
    pub settled: u64,
    /// Requests with lower numbers than `settled` that wait for their answers, in their order: at most
    /// [`MOST_NAMED`](crate::request::MOST_NAMED).
    pub open: Vec<u64>,
    /// What it asks.
    pub body: Ask,
}

/// What a worker asks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Ask {
    /// The first message behind the [handshake](crate::handshake), which has proved that the worker knows the job's secret.
    Hello {
        /// [`PROTOCOL_VERSION`] of the worker.
        version: u32,
        /// Drawn once by the worker's process: by this it is known again when it reconnects.
        session: Session,
        /// Who it is.
        peer: PeerId,
        /// Workers of the job, as it was told.
        size: u32,
        /// How values are to come to it.
        overlay: Joining,
    },
    /// Declares a tensor. The first server is asked without extents and decides them; the others are told.
    Declare {
        /// The declaration.
        spec: TensorSpec,
        /// Number and extents, as the first server decided them.
        decided: Option<(TensorId, Vec<Extent>)>,
    },
    /// On a network connection: the worker is alive. Answered at once, so that the worker knows that the server is too.
    Beat,
    /// Stands at the barrier; answered when all do.
    Barrier,
    /// Still waits: see [`crate::knot`].
    Waits {
        /// Which of its waits.
        wait: u64,
        /// For what; none: it no longer waits.
        goal: Option<Goal>,
        /// Whether nothing else of this worker can happen meanwhile.
        alone: bool,
    },
    /// Which workers keep this tensor from reaching `version`?
    Missing {
        /// The tensor.
        tensor: TensorId,
        /// The version waited for.
        version: u64,
    },
    /// No longer waits for others, at the barrier or for what worker 0 does for all, unless that was answered before. For which
    /// workers did it wait?
    Withdraw {
        /// The request that waits. It is answered with `Missing` as well.
        request: u64,
    },
    /// The clocks of all workers.
    Clocks,
    /// The time that the layers of this server's shards have taken.
    Spent,
    /// How a shard's filter of a tensor's values has followed the network.
    Followed {
        /// The tensor.
        tensor: TensorId,
        /// The shard, among those of this server.
        shard: u32,
    },
    /// The optimizer's state of a tensor.
    State {
        /// The tensor.
        tensor: TensorId,
    },
    /// About a table of items.
    Table(TableAsk),
    /// Leaves the job for good.
    Leave {
        /// Why.
        how: Departure,
    },
    /// On a network connection: the worker has heard the server's last word (`Left` or `Failed`), which is not repeated then.
    Heard,
    /// About something that worker 0 does for all: see [`crate::first`].
    First(Say),
    /// On a network connection, seldom: what the worker has measured of its host's link, for the trees that are planned. Answered as a
    /// sign of life is.
    Uplink(Measured),
}

/// How a worker leaves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Departure {
    /// It is done: everything that it submitted counts. Each shard is told by a last submission
    /// ([`Leave`](crate::submission::Submission::Leave)), and the answer comes when all have taken theirs.
    Done,
    /// Because of an error of its own.
    Failed {
        /// The error.
        what: String,
    },
    /// Because it has heard that the job has failed; this server may not have.
    Heard(JobFailure),
}

impl Departure {
    /// The same, shortened so that it fits into a message, and so does what the others are told of it.
    #[must_use]
    pub fn brief(self) -> Self {
        match self {
            Self::Done => Self::Done,
            Self::Failed { mut what } => {
                shorten(&mut what, MAX_TEXT_BYTES);
                Self::Failed { what }
            }
            Self::Heard(failure) => Self::Heard(failure.brief()),
        }
    }
}

/// A reply to request `id`; 0 is for what no request asked for: the job's failure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// The request's.
    pub id: u64,
    /// The answer.
    pub body: Answer,
}

/// What a server answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// To `Hello`. Descriptors: the worker's page, the flags, one wake-up (eventfd) a shard.
    Welcome(Welcome),
    /// To `Declare`. Descriptors, on one host and unless this server's extent is empty: the model's region, the worker's lane;
    /// of a tensor that lies in slabs, those of the two that are new to this worker.
    Declared {
        /// The tensor's number.
        tensor: TensorId,
        /// Every server's extent.
        extents: Vec<Extent>,
        /// How many of this server's chunks each of its shards is home of.
        homed: Vec<u32>,
        /// Bytes that each shard was home of before, from which [`crate::placement::shards`] gives the home of each chunk.
        loads: Vec<u64>,
        /// Where the model and the lane lie, if they share regions with others.
        slabs: Option<[SlabSpot; 2]>,
    },
    /// To `Beat`.
    Alive,
    /// To `Barrier`: all came.
    BarrierPassed {
        /// Workers that stood there.
        ranks: Vec<Rank>,
        /// Workers that had left the job, and were not waited for.
        left: Vec<Rank>,
    },
    /// To `Missing` and `Withdraw`.
    Missing {
        /// Their ranks.
        ranks: Vec<Rank>,
    },
    /// To `Waits`: the circle of waits that this one is part of, if nothing can end it.
    Knot {
        /// The circle.
        knot: Option<Knot>,
    },
    /// To `Clocks`: by rank, -1 for one that is not live, [`LEFT`] for one that has left.
    Clocks {
        /// Iterations completed.
        clocks: Vec<i64>,
    },
    /// To `Spent`.
    Spent {
        /// By layer, of all shards.
        nanos: Nanos,
    },
    /// To `Followed`: the last changes, the oldest first.
    Followed {
        /// Each with its reason.
        changes: Vec<Change>,
    },
    /// To `State`. Descriptor: the state's region, read-only.
    State,
    /// To `Table`.
    Table(TableAnswer),
    /// To `Leave`, if it was done: every shard has taken everything that the worker submitted.
    Left,
    /// No.
    Refused(Refusal),
    /// The job has failed.
    Failed(JobFailure),
    /// To `First`.
    First(Heard),
}

impl Answer {
    /// The same; what it says went wrong is cut and clean, so that it may be shown.
    #[must_use]
    pub fn brief(self) -> Self {
        match self {
            Self::Refused(refusal) => Self::Refused(refusal.brief()),
            Self::Failed(failure) => Self::Failed(failure.brief()),
            other => other,
        }
    }
}

/// Where something lies among others in one region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlabSpot {
    /// The region's number, among those of its kind.
    pub slab: u32,
    /// The first byte.
    pub at: u64,
    /// Whether the region's descriptor comes with this message.
    pub new: bool,
}

/// What a worker learns when it joins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// This server's number.
    pub server: u32,
    /// Servers of the job.
    pub servers: u32,
    /// Shards of this server.
    pub shards: u32,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Milliseconds without a sign of life after which a worker counts as lost.
    pub lease_ms: u64,
    /// Threads of the job on the server's host, beside this server's shards, that may want a core: its workers, and other
    /// servers' shards. [`u32::MAX`] where other jobs share the host.
    pub others: u32,
    /// By which values of this server are known that others pass on ([`crate::seal`]).
    pub key: [u8; 32],
}

/// What a worker says of itself for the trees that a server sends along ([`crate::overlay`]).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Joining {
    /// The shape of the trees, as the option `tree` says it; empty: `star`. All workers say the same.
    pub tree: String,
    /// Where it takes children in; `None`: it passes nothing on.
    pub door: Option<SocketAddr>,
    /// The rack of its host, behind its zone if it has one: `rack` or `zone/rack`; empty: it is not known.
    pub rack: String,
    /// Bytes a second of its host's uplink, as its user says; 0: nobody does.
    pub rate: u64,
}

/// A message that cannot be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// It is longer than any message.
    #[error("expected a message of at most {MAX_MESSAGE_BYTES} bytes, got {got}")]
    TooLong {
        /// Its length.
        got: usize,
    },
    /// It is not one of ours.
    #[error("expected one whole message, got {bytes} bytes that are not one")]
    Malformed {
        /// Its length.
        bytes: usize,
    },
}

/// Bytes of a message.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, MessageError> {
    let bytes = postcard::to_stdvec(message).map_err(|_| MessageError::Malformed { bytes: 0 })?;
    if bytes.len() > MAX_MESSAGE_BYTES {
        return Err(MessageError::TooLong { got: bytes.len() });
    }
    Ok(bytes)
}

/// The message in `bytes`, all of them.
pub fn decode<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Result<T, MessageError> {
    if bytes.len() > MAX_MESSAGE_BYTES {
        return Err(MessageError::TooLong { got: bytes.len() });
    }
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        _ => Err(MessageError::Malformed { bytes: bytes.len() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consistency::Consistency;
    use proptest::prelude::*;

    fn declare() -> Request {
        let spec = crate::spec::tests::spec(Consistency::Ssp(3));
        Request {
            id: 7,
            settled: 6,
            open: vec![2, 5],
            body: Ask::Declare { spec, decided: Some((3, vec![Extent { first: 0, count: 2 }])) },
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode::<Request>(&bytes);
            let _ = decode::<Reply>(&bytes);
        }

        #[test]
        fn a_damaged_message_is_refused_or_is_another_message(at in 0usize..60, bit in 0u8..8) {
            let mut bytes = encode(&declare()).unwrap();
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            if let Ok(message) = decode::<Request>(&bytes) {
                prop_assert_ne!(message, declare());
            }
        }
    }

    #[test]
    fn a_message_reads_back_whole_and_only_whole() {
        let bytes = encode(&declare()).unwrap();
        assert_eq!(decode::<Request>(&bytes), Ok(declare()));
        for cut in 0..bytes.len() {
            assert!(decode::<Request>(&bytes[..cut]).is_err());
        }
        assert!(decode::<Request>(&[bytes, vec![0]].concat()).is_err());
    }

    #[test]
    fn a_hostile_length_is_refused_before_a_byte_is_allocated() {
        let honest = encode(&declare()).unwrap();
        let name = honest.iter().position(|&byte| byte == b'w').unwrap();
        // The open requests' and the shape's: one that says in nine bytes that 2^60 follow where two do.
        for at in [2, name + 1] {
            assert_eq!(honest[at], 2);
            let hostile = [&honest[..at], &[0xff; 8], &[0x0f], &honest[at + 1..]].concat();
            assert_eq!(decode::<Request>(&hostile), Err(MessageError::Malformed { bytes: hostile.len() }));
        }
        assert!(matches!(
            decode::<Request>(&vec![0; MAX_MESSAGE_BYTES + 1]),
            Err(MessageError::TooLong { .. })
        ));
    }

    #[test]
    fn a_secret_is_never_shown() {
        let secret = Secret::from_hex(&"5a".repeat(32)).unwrap();
        assert!(!format!("{secret:?}").contains("5a") && !format!("{secret:?}").contains("90"));
        assert!(Secret::from_hex("5a").is_none() && Secret::from_hex(&"zz".repeat(32)).is_none());
    }
}
