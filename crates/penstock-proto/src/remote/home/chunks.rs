//! What a home publishes, and whom it tells.

use super::Subscriber;
use crate::factors::down::Needed;
use crate::overlay::Direct;
use crate::peer::PeerId;
use crate::{Rank, TensorId};

/// What stands published of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Publication {
    /// Its version.
    pub version: u64,
    /// Optimizer steps behind it.
    pub steps: u64,
    /// The number of this publication; 0 before the first.
    pub sequence: u64,
    /// The last publication that changed what is seen: those after it raised its version alone.
    pub changed: u64,
}

/// The chunks that the shard is home of, by tensor and by their place among them.
pub trait Chunks {
    /// How many there are of a tensor.
    fn chunks(&self, tensor: TensorId) -> usize;
    /// What stands published of one.
    fn publication(&self, tensor: TensorId, local: usize) -> Publication;
    /// A chunk's place among those homed here.
    fn local(&self, tensor: TensorId, chunk: u32) -> Option<usize>;
    /// Whether what is new of a tensor goes unasked to whoever has asked for it once.
    fn broadcasts(&self, tensor: TensorId) -> bool;
    /// Whether what is sent of a tensor are [updates](crate::update), and value and state whole where none leads there.
    fn sends_updates(&self, _tensor: TensorId) -> bool {
        false
    }
    /// The content from which the update that is kept leads to what stands there.
    fn update_base(&self, _tensor: TensorId, _local: usize) -> Option<u64> {
        None
    }
    /// The right factor that comes at this place among those that this update names, if there are as many.
    fn needed(&self, _tensor: TensorId, _local: usize, _place: usize) -> Option<Needed> {
        None
    }
    /// Whether a worker has declared the tensor, which gives it a lane here.
    fn has_lane(&self, tensor: TensorId, rank: Rank) -> bool;
    /// Whether a tensor's values go by others too ([`Routes::may_carry`](crate::overlay::Routes::may_carry)).
    fn goes_by_trees(&self, tensor: TensorId) -> bool;
    /// The stripe of a chunk.
    fn stripe(&self, tensor: TensorId, local: usize) -> usize;
    /// The sum, over the chunks of a stripe that were published, of their versions + 1 and of the publications that last changed what
    /// is seen of them; modulo 2^64.
    fn digest(&self, tensor: TensorId, stripe: usize) -> u64;
}

/// Something that happened at a home, of which subscribers may have to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A chunk was published.
    Published {
        /// The tensor.
        tensor: TensorId,
        /// The chunk's place among those homed here.
        local: usize,
    },
    /// So many contributions of a worker were folded.
    Folded {
        /// The tensor.
        tensor: TensorId,
        /// Whose.
        writer: Rank,
        /// How many, since the start.
        count: u64,
    },
}

/// The subscribers that a home has.
pub trait Subscribers {
    /// The one that is this peer.
    fn of(&mut self, peer: PeerId) -> Option<&mut Subscriber>;
    /// The one by which a contribution came: whichever worker has the rank now.
    fn contributor(&mut self, rank: Rank) -> Option<&mut Subscriber>;
}

/// Tells the subscribers whom it concerns of an event.
pub fn tell(event: Event, overlay: &Direct, subscribers: &mut impl Subscribers, home: &impl Chunks) {
    match event {
        Event::Published { tensor, local } => {
            for &peer in overlay.next_hops(tensor) {
                if let Some(subscriber) = subscribers.of(peer) {
                    subscriber.published(tensor, local, home);
                }
            }
        }
        Event::Folded { tensor, writer, count } => {
            if let Some(subscriber) = subscribers.contributor(writer) {
                subscriber.folded(tensor, count, home);
            }
        }
    }
}
