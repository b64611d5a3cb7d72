//! The overlay without trees: who has asked is sent to.

use crate::TensorId;
use crate::numbered::Numbered;
use crate::peer::PeerId;

/// The plain overlay: every home sends to each of its subscribers itself.
///
/// Cost of asking: one look. Memory: 12 bytes for each tensor that a peer has asked for.
#[derive(Debug, Default)]
pub struct Direct {
    /// By tensor, ascending.
    subscribers: Numbered<Vec<PeerId>>,
}

impl Direct {
    /// `peer` has asked for values of the tensor, for the first time or again.
    pub fn subscribe(&mut self, tensor: TensorId, peer: PeerId) {
        match self.subscribers.get_mut(tensor) {
            None => self.subscribers.insert(tensor, vec![peer]),
            Some(peers) => {
                if let Err(place) = peers.binary_search(&peer) {
                    peers.insert(place, peer);
                }
            }
        }
    }

    /// `peer` has gone for good, and subscribes to nothing.
    pub fn leave(&mut self, peer: PeerId) {
        for (_, peers) in self.subscribers.iter_mut() {
            if let Ok(place) = peers.binary_search(&peer) {
                peers.remove(place);
            }
        }
    }

    /// The peers that this home sends the tensor's values to.
    pub fn next_hops(&self, tensor: TensorId) -> &[PeerId] {
        self.subscribers.get(tensor).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::Role;

    const FOLLOWER: PeerId = PeerId::first(Role::Follower, 0);

    #[test]
    fn a_home_sends_to_each_that_has_asked_once_whatever_its_role() {
        let mut overlay = Direct::default();
        assert_eq!(overlay.next_hops(7), []);
        for peer in [FOLLOWER, PeerId::worker(1), PeerId::worker(0), FOLLOWER, PeerId::worker(1)] {
            overlay.subscribe(7, peer);
        }
        overlay.subscribe(2, PeerId::worker(1));
        assert_eq!(overlay.next_hops(7), [PeerId::worker(0), PeerId::worker(1), FOLLOWER]);
        assert_eq!(overlay.next_hops(2), [PeerId::worker(1)]);
    }

    #[test]
    fn who_has_gone_is_sent_nothing_and_the_others_are() {
        let mut overlay = Direct::default();
        for tensor in [0, 7] {
            overlay.subscribe(tensor, FOLLOWER);
            overlay.subscribe(tensor, PeerId::worker(1));
        }
        overlay.leave(FOLLOWER);
        overlay.leave(PeerId { incarnation: 1, ..PeerId::worker(1) });
        assert_eq!(overlay.next_hops(0), [PeerId::worker(1)]);
        assert_eq!(overlay.next_hops(7), [PeerId::worker(1)]);
    }
}
