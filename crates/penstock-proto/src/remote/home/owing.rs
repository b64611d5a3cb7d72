//! What a subscriber is sent next.

use super::Publication;
use crate::TensorId;
use crate::factors::down::Named;
use crate::frame::EXPECTED_CHUNKS;
use crate::remote::{Contents, Holding};
use std::sync::Arc;

/// What is to be sent to the subscriber next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owing {
    /// A chunk's value, as it stands.
    Value {
        /// The tensor.
        tensor: TensorId,
        /// The chunk's place among those homed here.
        local: usize,
        /// What stands there.
        publication: Publication,
        /// The subscriber's position in the chunk's stream: the publication that was sent last on this connection, or 0.
        position: u64,
    },
    /// The update by which a chunk came to what stands there.
    Update {
        /// The tensor.
        tensor: TensorId,
        /// The chunk's place among those homed here.
        local: usize,
        /// What stands there.
        publication: Publication,
        /// The content that the subscriber holds.
        base: u64,
    },
    /// A piece of a right factor, which an update names that is sent next.
    Factor {
        /// The tensor.
        tensor: TensorId,
        /// Which factor.
        name: Named,
        /// Its rank.
        rank: u32,
        /// Where the piece begins.
        at: usize,
    },
    /// A chunk's value and the optimizer's state, as they stand, of a tensor whose updates are sent.
    Whole {
        /// The tensor.
        tensor: TensorId,
        /// The chunk's place among those homed here.
        local: usize,
        /// What stands there.
        publication: Publication,
    },
    /// That chunks have come to a version with what was sent of them.
    Raised {
        /// The tensor.
        tensor: TensorId,
        /// The first chunk's place among those homed here.
        local: usize,
        /// How many, one after the other.
        count: usize,
        /// Their version.
        version: u64,
        /// Optimizer steps behind each.
        steps: u64,
        /// What it is to hold of them; zeros if no other feeds it.
        contents: Contents,
    },
    /// A chunk's optimizer state, as it stands.
    State {
        /// The tensor.
        tensor: TensorId,
        /// The chunk's place among those homed here.
        local: usize,
    },
    /// How many of its contributions were folded.
    Folded {
        /// The tensor.
        tensor: TensorId,
        /// Contributions since the start.
        count: u64,
    },
    /// What it is to hold of a stripe that others feed it, once all that was published has come.
    Standing {
        /// The tensor.
        tensor: TensorId,
        /// The stripe.
        stripe: u32,
        /// The [digest](super::Chunks::digest).
        digest: u64,
    },
    /// What it is to hold of some chunks before the next ticket counts, which others bring.
    Expected {
        /// The tensor.
        tensor: TensorId,
        /// The first chunk's place among those homed here.
        local: usize,
        /// Of each; [`Holding::NONE`] of those behind the last.
        held: [Holding; EXPECTED_CHUNKS],
    },
    /// Its route, as it travels.
    Route(Arc<[u8]>),
    /// What was fetched with this ticket or before has been sent, as new as it was then.
    Fetched {
        /// The tensor.
        tensor: TensorId,
        /// The ticket.
        ticket: u64,
    },
}
