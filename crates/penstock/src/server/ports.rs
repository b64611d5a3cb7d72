//! Ports of a shard: one for each peer that it hears and sends to.
//!
//! A port stands at a *place*, by which the shard's loop and its poll go: a worker's is its rank, others stand behind the
//! workers. So what comes is taken in rank order, and a look costs an index.

use super::remote::Remote;
use penstock_fabric::inlet::Inlet;
use penstock_proto::Rank;
use penstock_proto::peer::PeerId;
use penstock_proto::remote::home::{Subscriber, Subscribers};
use rustix::fd::OwnedFd;

/// A peer, as far as a shard has to do with it.
pub(super) enum Port {
    /// On this host: its page, and what it rings.
    Local(Local),
    /// On another: its connection.
    Remote(Box<Remote>),
}

pub(super) struct Local {
    pub(super) inlet: Inlet,
    pub(super) wakeup: OwnedFd,
}

impl Port {
    pub(super) fn local(&self) -> Option<&Local> {
        match self {
            Self::Local(local) => Some(local),
            Self::Remote(_) => None,
        }
    }

    pub(super) fn has_work(&self) -> bool {
        match self {
            Self::Local(local) => !local.inlet.is_empty(),
            Self::Remote(remote) => remote.has_work(),
        }
    }
}

/// All ports, by place.
pub(super) struct Ports {
    workers: usize,
    places: Vec<Option<(PeerId, Port)>>,
}

impl Ports {
    /// No peer has come yet, of a job of `workers` workers.
    pub(super) fn new(workers: u32) -> Self {
        let workers = workers as usize;
        Self { workers, places: (0..workers).map(|_| None).collect() }
    }

    /// Places that there are, with a port or without.
    pub(super) fn places(&self) -> std::ops::Range<usize> {
        0..self.places.len()
    }

    /// Makes a peer's port, instead of one that it had. Returns its place.
    pub(super) fn open(&mut self, peer: PeerId, port: Port) -> usize {
        let place = match peer.rank() {
            Some(rank) => rank as usize,
            None => self.place(peer).unwrap_or_else(|| self.free_place()),
        };
        self.places[place] = Some((peer, port));
        place
    }

    /// A place behind the workers'.
    fn free_place(&mut self) -> usize {
        let behind = self.places[self.workers..].iter().position(Option::is_none);
        behind.map_or_else(
            || {
                self.places.push(None);
                self.places.len() - 1
            },
            |at| self.workers + at,
        )
    }

    /// Where the peer's port stands, if it has one. Another incarnation's port is not its own.
    pub(super) fn place(&self, peer: PeerId) -> Option<usize> {
        let is_its = |held: &Option<(PeerId, Port)>| held.as_ref().is_some_and(|(other, _)| *other == peer);
        match peer.rank() {
            Some(rank) => self.places.get(rank as usize).is_some_and(is_its).then_some(rank as usize),
            None => self.places[self.workers..].iter().position(is_its).map(|at| self.workers + at),
        }
    }

    /// Removes the port at a place.
    pub(super) fn close(&mut self, place: usize) -> Option<Port> {
        self.places[place].take().map(|(_, port)| port)
    }

    pub(super) fn at(&self, place: usize) -> Option<&Port> {
        self.places.get(place)?.as_ref().map(|(_, port)| port)
    }

    pub(super) fn at_mut(&mut self, place: usize) -> Option<&mut Port> {
        self.places.get_mut(place)?.as_mut().map(|(_, port)| port)
    }

    pub(super) fn local_at(&mut self, place: usize) -> Option<&mut Local> {
        match self.at_mut(place) {
            Some(Port::Local(local)) => Some(local),
            _ => None,
        }
    }

    pub(super) fn remote_at(&mut self, place: usize) -> Option<&mut Remote> {
        match self.at_mut(place) {
            Some(Port::Remote(remote)) => Some(remote),
            _ => None,
        }
    }

    /// Whose port stands at a place.
    pub(super) fn peer_at(&self, place: usize) -> Option<PeerId> {
        self.places.get(place)?.as_ref().map(|(peer, _)| *peer)
    }

    /// The connection of a peer.
    pub(super) fn remote(&mut self, peer: PeerId) -> Option<&mut Remote> {
        self.place(peer).and_then(|place| self.remote_at(place))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Port> {
        self.places.iter().flatten().map(|(_, port)| port)
    }

    pub(super) fn locals(&self) -> impl Iterator<Item = &Local> {
        self.iter().filter_map(Port::local)
    }

    /// The connections that there are, by place.
    pub(super) fn remotes(&mut self) -> impl Iterator<Item = (usize, &mut Remote)> {
        self.places.iter_mut().enumerate().filter_map(|(place, held)| match held {
            Some((_, Port::Remote(remote))) => Some((place, &mut **remote)),
            _ => None,
        })
    }
}

impl Subscribers for Ports {
    fn of(&mut self, peer: PeerId) -> Option<&mut Subscriber> {
        self.remote(peer).map(Remote::subscriber)
    }

    fn contributor(&mut self, rank: Rank) -> Option<&mut Subscriber> {
        self.remote_at(rank as usize).map(Remote::subscriber)
    }
}

#[cfg(test)]
mod tests;
