//! Connections that have proved to belong to a job, on their way to the threads that hear them. They are charged to nobody: so
//! however long a thread is busy, few of them wait for it. Whoever connects again has given up its connection before, and says
//! on the new one whatever was not heard on that.

pub(super) use crate::wire::acceptor::Arrival;
use penstock_proto::handshake::Purpose;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most connections that wait for a job's control thread. For one more the oldest goes: a worker whose connection was closed makes
/// another.
const MOST: usize = 512;

/// Those that wait for the control thread, which does not know so far whether they are whose they say.
#[derive(Debug, Default)]
pub(super) struct Arrivals(Mutex<VecDeque<Arrival>>);

impl Arrivals {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<Arrival>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves one for the control thread, in the place of another where it replaces that; whether there is one more now.
    pub(super) fn put(&self, arrival: Arrival) -> bool {
        let mut waiting = self.waiting();
        // Of control connections nobody knows whose they are. In all others a peer of another session is another.
        let same = |before: &Arrival| before.purpose == arrival.purpose && before.purpose != Purpose::Control;
        let replaced = waiting.iter().position(same).or_else(|| (waiting.len() == MOST).then_some(0));
        let before = replaced.and_then(|at| waiting.remove(at));
        waiting.push_back(arrival);
        before.is_none()
    }

    /// The oldest.
    pub(super) fn take(&self) -> Option<Arrival> {
        self.waiting().pop_front()
    }

    /// Closes all: nobody takes them any more.
    pub(super) fn clear(&self) {
        self.waiting().clear();
    }
}

/// What waits for one thread of one peer's connections: the newest.
#[derive(Debug)]
pub(super) struct Newest<T>(Arc<Mutex<Option<T>>>);

impl<T> Clone for Newest<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Newest<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Newest<T> {
    fn waiting(&self) -> MutexGuard<'_, Option<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves a connection for the thread; whether the thread is to be told, which it was if one waits already.
    pub(super) fn put(&self, connection: T) -> bool {
        self.waiting().replace(connection).is_none()
    }

    /// The newest, unless it was taken.
    pub(super) fn take(&self) -> Option<T> {
        self.waiting().take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_fabric::net::stream::Stream;
    use penstock_proto::peer::PeerId;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    const LEASE: Duration = Duration::from_secs(60);

    /// A connection, and the other end of it.
    fn connection() -> (Stream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        theirs.set_read_timeout(Some(LEASE)).unwrap();
        (Stream::plain(listener.accept().unwrap().0, LEASE).unwrap(), theirs)
    }

    fn put(arrivals: &Arrivals, purpose: Purpose) -> (bool, TcpStream) {
        let (stream, theirs) = connection();
        (arrivals.put(Arrival { stream, purpose, long: false }), theirs)
    }

    fn is_closed(mut theirs: &TcpStream) -> bool {
        theirs.set_nonblocking(true).unwrap();
        matches!(theirs.read(&mut [0]), Ok(0))
    }

    fn of(rank: u32, session: u8) -> Purpose {
        Purpose::Items { peer: PeerId::worker(rank), session: [session; 16] }
    }

    // They stood in an unbounded queue: one worker took all descriptors of a server that others' jobs share.
    #[test]
    fn a_peer_that_connects_again_while_its_connection_waits_replaces_it_and_nobody_elses() {
        let arrivals = Arrivals::default();
        let (first, second) = (put(&arrivals, of(0, 1)), put(&arrivals, of(0, 1)));
        assert!(first.0 && !second.0 && is_closed(&first.1) && !is_closed(&second.1));
        // Nor by one who says that it is another, and does not know its session.
        let others =
            [of(1, 1), of(0, 2), Purpose::Shard { peer: PeerId::worker(0), session: [1; 16], shard: 0 }];
        let others = others.map(|purpose| put(&arrivals, purpose));
        assert!(others.iter().all(|(more, theirs)| *more && !is_closed(theirs)) && !is_closed(&second.1));
        let taken: Vec<Purpose> = std::iter::from_fn(|| arrivals.take()).map(|it| it.purpose).collect();
        assert_eq!((taken.len(), taken[0]), (4, of(0, 1)));
    }

    #[test]
    fn however_long_the_control_thread_is_busy_so_many_connections_wait_for_it_and_no_more() {
        let arrivals = Arrivals::default();
        let waiting: Vec<_> = (0..MOST as u32)
            .map(|rank| put(&arrivals, if rank % 2 == 0 { Purpose::Control } else { of(rank, 1) }))
            .collect();
        assert!(waiting.iter().all(|(more, theirs)| *more && !is_closed(theirs)));
        let (more, newest) = put(&arrivals, Purpose::Control);
        assert!(!more && is_closed(&waiting[0].1) && !is_closed(&waiting[1].1) && !is_closed(&newest));
        assert_eq!(std::iter::from_fn(|| arrivals.take()).count(), MOST);
    }

    #[test]
    fn of_what_waits_for_a_thread_that_is_busy_the_newest_is_taken_and_the_thread_told_once() {
        let waiting = Newest::default();
        let (first, second) = (connection(), connection());
        let its = second.0.peer().unwrap();
        assert!(waiting.put(first.0) && !waiting.put(second.0));
        assert!(is_closed(&first.1) && !is_closed(&second.1));
        assert_eq!(waiting.clone().take().map(|stream| stream.peer().unwrap()), Some(its));
        assert!(waiting.take().is_none() && waiting.put(connection().0), "the next is told again");
    }
}
