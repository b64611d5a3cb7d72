//! What a notice asks a subscriber to do, and how it may break the protocol.

use crate::TensorId;
use crate::clock::MAX_CLOCK;
use crate::outbox::Miscounted;

/// What a notice asks to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    Nothing,
    /// The value that came is published in the mirror.
    Publish {
        /// The tensor.
        tensor: TensorId,
        /// The chunk.
        chunk: u32,
        /// Its version.
        version: u64,
        /// Optimizer steps behind it.
        steps: u64,
        /// To be told once it is published: the least version of all chunks + 1, if it has risen with this one.
        progress: Option<u64>,
    },
    /// The update that came is folded into the mirror, whose numbers are those of step `steps` - 1, and published.
    Update {
        /// The tensor.
        tensor: TensorId,
        /// The chunk.
        chunk: u32,
        /// Its version.
        version: u64,
        /// Optimizer steps behind it.
        steps: u64,
        /// As of [`Effect::Publish`].
        progress: Option<u64>,
    },
    /// The value and the state that came are published in the mirror.
    Whole {
        /// The tensor.
        tensor: TensorId,
        /// The chunk.
        chunk: u32,
        /// Its version.
        version: u64,
        /// Optimizer steps behind it.
        steps: u64,
        /// As of [`Effect::Publish`].
        progress: Option<u64>,
    },
    /// What is in the mirror of these chunks is published as a later version.
    Raise {
        /// The tensor.
        tensor: TensorId,
        /// The first chunk.
        chunk: u32,
        /// How many of the tensor's chunks there, from it on.
        count: u32,
        /// Their version.
        version: u64,
        /// Optimizer steps behind each.
        steps: u64,
        /// As of [`Effect::Publish`].
        progress: Option<u64>,
    },
    /// The state that came is put where it belongs.
    State {
        /// The tensor.
        tensor: TensorId,
        /// The chunk.
        chunk: u32,
    },
    /// So many contributions were taken from the lane.
    Folded {
        /// The tensor.
        tensor: TensorId,
        /// Contributions since the start.
        count: u64,
    },
    /// What was asked for with this ticket or before has come.
    Fetched {
        /// The tensor.
        tensor: TensorId,
        /// The ticket.
        ticket: u64,
    },
}

impl Effect {
    /// The tensor that it is on.
    pub fn tensor(&self) -> Option<TensorId> {
        match *self {
            Self::Nothing => None,
            Self::Publish { tensor, .. }
            | Self::Update { tensor, .. }
            | Self::Whole { tensor, .. }
            | Self::Raise { tensor, .. }
            | Self::State { tensor, .. }
            | Self::Folded { tensor, .. }
            | Self::Fetched { tensor, .. } => Some(tensor),
        }
    }
}

/// The shard broke the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// It counts frames that it was not sent.
    #[error(transparent)]
    Miscounted(#[from] Miscounted),
    /// A version fell.
    #[error("chunk {chunk} fell to version {version}")]
    Fell {
        /// The chunk.
        chunk: u32,
        /// What came.
        version: u64,
    },
    /// A version that no job reaches.
    #[error("chunk {chunk} has version {version}, expected at most {MAX_CLOCK}")]
    TooNew {
        /// The chunk.
        chunk: u32,
        /// What came.
        version: u64,
    },
    /// A version of chunks of which nothing has come on this connection, or that are not there.
    #[error("chunks {chunk}+{count} were raised to version {version}, expected those that have come")]
    Unsent {
        /// The first chunk.
        chunk: u32,
        /// How many.
        count: u32,
        /// What came.
        version: u64,
    },
    /// An update of something that is not held here, or none at all (U-1 of [`update`](crate::update)).
    #[error("chunk {chunk} came as update {publication} of {got} to step {steps}, expected one of {held}")]
    Misfit {
        /// The chunk.
        chunk: u32,
        /// What is held.
        held: u64,
        /// What the update is of.
        got: u64,
        /// What it leads to.
        publication: u64,
        /// The steps behind that.
        steps: u64,
    },
    /// A difference against a publication that is not held here (E-1 of [`encoding`](crate::encoding)).
    #[error("chunk {chunk} came as a difference against publication {got}, expected {held}")]
    Baseless {
        /// The chunk.
        chunk: u32,
        /// The publication that is held; 0: none.
        held: u64,
        /// The one that the difference is against.
        got: u64,
    },
}
