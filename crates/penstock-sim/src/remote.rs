//! Both ends of a wire: the real machines of `penstock_proto::remote`, and what stands around them.
//!
//! What a [`Proxy`] and its worker tell each other is what `RemoteHome` is in a real job.

use crate::shard_memory::Mirror;
use crate::worker::Need;
use penstock_proto::consistency::Consistency;
use penstock_proto::encoding::Agreed;
use penstock_proto::peer::PeerId;
use penstock_proto::remote::asking::{self, AtPull, Known};
use penstock_proto::remote::home::{Subscriber, Subscribers};
use penstock_proto::remote::mirror::Mirror as Machine;
use penstock_proto::submission::{NO_TICKET, Submission};
use penstock_proto::worker::Requirement;
use penstock_proto::{Rank, TensorId};
use std::collections::BTreeMap;

/// What a worker has of a tensor, as far as one shard of another host is home of it.
#[derive(Debug, Default)]
pub struct Mirrored {
    /// How its values are encoded.
    pub values_as: Agreed,
    /// How its contributions are.
    pub contributions_as: Agreed,
    /// What came of each chunk.
    pub values: BTreeMap<u32, Mirror>,
    /// The least version of all chunks + 1.
    pub progress: u64,
    /// Own contributions that were taken from the lane.
    pub folded: u64,
    /// The last ticket that was given out.
    pub ticket: u64,
    /// The last ticket that came back.
    pub fetched: u64,
    /// The ticket with which all that there was of the value was last fetched, after a barrier or a load.
    pub renewed: u64,
    /// Whether the result of the push that is under way is wanted as soon as it is there.
    pub wants: bool,
    /// The version + 1 that pushes have asked for.
    pub wanted: u64,
    /// Whether the value was pulled since the last push.
    pub pulled: bool,
}

/// A worker's stand-in for one shard of another host.
#[derive(Debug, Default)]
pub struct Proxy {
    /// What is to be sent, and what has come.
    pub machine: Machine,
    /// Tensors that the shard is home of some of.
    pub tensors: BTreeMap<TensorId, Mirrored>,
    /// Whether the worker has said goodbye: what comes is not looked at any more.
    pub left: bool,
}

impl Proxy {
    /// Whether what is needed of the shard is there.
    pub fn meets(&self, need: &Need) -> bool {
        let Some(mirrored) = self.tensors.get(&need.tensor) else { return false };
        need.version.is_none_or(|version| mirrored.progress > version)
            && mirrored.folded >= need.folded
            && mirrored.fetched >= need.ticket
    }

    /// A fetch of what has changed, once it has `version`, or of the optimizer's state.
    pub fn fetch(&mut self, tensor: TensorId, version: u64, state: bool) -> Option<Submission> {
        let mirrored = self.tensors.get_mut(&tensor)?;
        mirrored.ticket += 1;
        Some(Submission::Fetch { tensor, state, version, ticket: mirrored.ticket })
    }

    /// Asks for a version that is sent once it is there, without a ticket.
    pub fn want(&self, tensor: TensorId, version: u64) -> Submission {
        Submission::Fetch { tensor, state: false, version, ticket: NO_TICKET }
    }

    /// What a pull asks for, in this order, and the ticket that it waits for. `anew`: the worker has passed a barrier, or loaded
    /// something, since it last asked.
    pub fn freshen(
        &mut self,
        tensor: TensorId,
        requirement: &Requirement,
        anew: bool,
    ) -> (Vec<Submission>, u64) {
        let Some(mirrored) = self.tensors.get_mut(&tensor) else { return (Vec::new(), NO_TICKET) };
        mirrored.pulled = true;
        let known = Known { progress: mirrored.progress, wanted: mirrored.wanted };
        let asked: Vec<Submission> = match asking::at_pull(requirement, known, anew) {
            AtPull::Nothing => return (Vec::new(), mirrored.renewed),
            AtPull::Fetch { version } => self.fetch(tensor, version, false).into_iter().collect(),
            AtPull::Anew { want } => {
                let fetch = self.fetch(tensor, 0, false);
                fetch.into_iter().chain(want.map(|version| self.want(tensor, version))).collect()
            }
        };
        let Some(mirrored) = self.tensors.get_mut(&tensor) else { return (asked, NO_TICKET) };
        if anew {
            mirrored.renewed = mirrored.ticket;
        }
        (asked, mirrored.ticket)
    }

    /// A push, of the whole tensor or of a part: the version that it asks for, if it does.
    pub fn ask_for_result(
        &mut self,
        tensor: TensorId,
        stamp: u64,
        whole: bool,
        consistency: Consistency,
    ) -> Option<u64> {
        let mirrored = self.tensors.get_mut(&tensor)?;
        // Only here may a push be of a part, and what it leaves out is not asked for.
        let version =
            asking::at_push(std::mem::take(&mut mirrored.pulled), consistency, stamp).filter(|_| whole);
        mirrored.wants = version.is_some();
        mirrored.wanted = version.map_or(mirrored.wanted, |version| version + 1);
        version
    }
}

/// The shard's ends: of each worker on another host that it listens to.
#[derive(Debug)]
pub struct Ports(pub Vec<Option<Port>>);

impl Subscribers for Ports {
    fn of(&mut self, peer: PeerId) -> Option<&mut Subscriber> {
        self.contributor(peer.rank()?)
    }

    fn contributor(&mut self, rank: Rank) -> Option<&mut Subscriber> {
        self.0[rank as usize].as_mut().map(|port| &mut port.subscriber)
    }
}

/// One of them.
#[derive(Debug, Default)]
pub struct Port {
    /// Which frames were taken, and what is owed.
    pub subscriber: Subscriber,
    /// The last ticket of each tensor that was asked for: of use to [`Sabotage`](crate::sabotage::Sabotage) alone.
    pub tickets: BTreeMap<TensorId, u64>,
}
