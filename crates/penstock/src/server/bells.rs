//! The bells of the thread that passes rows on: one for each worker of this host that sets rows, so that nothing that one of
//! them does to its own (fill its count, clear its flags) affects another.
//!
//! The server never reads them, and never writes them: the worker has the same open file, and could make either wait for ever.
//! Each ring is an edge in the poll, whatever stands in the count.

use crate::limits::lacking;
use crate::thread;
use penstock_proto::Rank;
use penstock_proto::account::{Account, Charge, Resource};
use penstock_proto::error::Refusal;
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use rustix::io;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

/// All of a job's.
#[derive(Debug, Default)]
pub(super) struct Bells {
    of: BTreeMap<Rank, (Arc<OwnedFd>, Charge)>,
    /// Those that are not listened to so far.
    new: Vec<Arc<OwnedFd>>,
}

impl Bells {
    /// A worker's, made when it is first asked for and charged to it.
    pub(super) fn of(&mut self, rank: Rank, account: &Account) -> Result<&OwnedFd, Refusal> {
        match self.of.entry(rank) {
            Entry::Occupied(bell) => Ok(&bell.into_mut().0),
            Entry::Vacant(place) => {
                let charge = account.worker(rank).charge(Resource::Descriptors, 1);
                let charge = charge.map_err(|why| why.refuse("a bell"))?;
                let bell = Arc::new(thread::bell().map_err(lacking("make a bell"))?);
                self.new.push(Arc::clone(&bell));
                Ok(&place.insert((bell, charge)).0)
            }
        }
    }

    /// Those that have come since this was asked last.
    pub(super) fn take_new(&mut self) -> Vec<Arc<OwnedFd>> {
        std::mem::take(&mut self.new)
    }

    /// All, for a thread that begins to listen.
    pub(super) fn all(&mut self) -> impl Iterator<Item = Arc<OwnedFd>> {
        self.new.clear();
        self.of.values().map(|(bell, _)| Arc::clone(bell))
    }

    /// That of a worker that is gone, not to be listened to any more.
    pub(super) fn remove(&mut self, rank: Rank) -> Option<Arc<OwnedFd>> {
        let (bell, _) = self.of.remove(&rank)?;
        self.new.retain(|new| !Arc::ptr_eq(new, &bell));
        Some(bell)
    }
}

/// Has `epoll` report every ring of a descriptor that another process shares.
pub(super) fn listen(epoll: &OwnedFd, bell: &OwnedFd, token: u64) -> io::Result<()> {
    let rung = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(epoll, bell, epoll::EventData::new_u64(token), rung)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait;
    use std::time::Duration;

    #[test]
    fn a_bell_that_is_never_read_is_heard_each_time_and_only_then() {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let mut bells = Bells::default();
        let bell = bells.of(3, &Account::default()).unwrap();
        listen(&epoll, bell, 7).unwrap();
        let heard = || wait::events(&epoll, 4, Some(Duration::ZERO)).len();
        assert_eq!(heard(), 0);
        for _ in 0..100 {
            thread::ring(bell);
            assert_eq!(heard(), 1);
            assert_eq!(heard(), 0);
        }
    }
}
