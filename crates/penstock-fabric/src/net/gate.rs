//! Gates: where connections from the network come in, and what becomes of them when there is no room for one more.
//!
//! Until a connection has proved who it is it is a *stranger*, and strangers have a limited number of [`Places`]. When all are
//! taken, or when the system has no descriptor left, one of them goes for the next. While there is none to go, newcomers stand in
//! the kernel's queue and the gate stays closed for a moment, since a listener that cannot accept would be ready all the time for
//! the same connection.
//!
//! The owner of a gate polls its listeners, and keeps the strangers: see [`Strangers`].

use super::loopback;
use crate::descriptors;
use penstock_proto::strangers::{Places, Stranger};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// A connection that has said nothing for this long is not a process that is joining: the first words of one follow at once, but
/// for a lost packet.
pub const SILENT: Duration = Duration::from_secs(1);
/// How long nothing is accepted where the system had no descriptor left: there is no event for that.
pub const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Connections that may stand in the kernel's queue, if the system allows as many.
const QUEUE: i32 = 4096;
/// Connections accepted in one turn.
const TURN: usize = 64;

/// The strangers behind a gate, as their owner keeps them.
pub trait Strangers {
    /// What it knows a stranger by: the later one came, the greater.
    type Key: Copy + Ord;

    /// All of them.
    fn all(&self) -> impl Iterator<Item = Stranger<Self::Key>> + Clone;

    /// Takes one more in; there is room for it.
    fn insert(&mut self, socket: TcpStream, host: IpAddr);

    /// Closes the connection of one that has to go.
    fn remove(&mut self, key: Self::Key);

    /// The system accepts connections, and none had to go for the last one.
    fn flows(&mut self);

    /// The system could not accept a connection. Whether the owner has seen to it that another try may succeed at once.
    fn is_stuck(&mut self, error: &io::Error) -> bool;
}

/// Listeners, and the strangers' places behind them.
#[derive(Debug)]
pub struct Gate {
    listeners: Vec<TcpListener>,
    places: Places,
    /// Until when nothing is accepted: the system could not, most often for want of a descriptor.
    closed: Option<Instant>,
}

impl Gate {
    /// With listeners from [`listen`].
    pub fn new(listeners: Vec<TcpListener>, places: Places) -> Self {
        Self { listeners, places, closed: None }
    }

    /// Its listeners, to be watched unless it is [closed](Self::closed_for).
    pub fn listeners(&self) -> &[TcpListener] {
        &self.listeners
    }

    /// How long nothing is accepted from `now` on; `None`: it is open.
    pub fn closed_for(&mut self, now: Instant) -> Option<Duration> {
        self.closed = self.closed.filter(|&until| until > now);
        self.closed.map(|until| until - now)
    }

    /// A listener is ready: takes in what has come there, one turn of it.
    pub fn accept(&mut self, listener: usize, strangers: &mut impl Strangers) {
        let (mut came, mut replaced) = (false, false);
        for _ in 0..TURN {
            match self.listeners[listener].accept() {
                Ok((socket, from)) => {
                    self.let_in(socket, from, strangers);
                    // One at a time: those that talk go on in between.
                    if replaced {
                        return;
                    }
                    strangers.flows();
                    came = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {} // it ended before it was accepted
                // The system says so before it looks whether anyone else stands there: if so, the listener is ready again. And
                // who has just come is not to go unheard.
                Err(error) if came && descriptors::is_no_room(&error) => return,
                Err(error) if strangers.is_stuck(&error) => {}
                Err(error) => {
                    replaced = !replaced && descriptors::is_no_room(&error) && self.make_room(strangers);
                    if !replaced {
                        self.closed = Some(Instant::now() + LOOK_AGAIN);
                        return;
                    }
                }
            }
        }
    }

    /// One more stranger. If there is no room another goes.
    fn let_in(&self, socket: TcpStream, from: SocketAddr, strangers: &mut impl Strangers) {
        let host = from.ip().to_canonical();
        replace(self.places, host, strangers);
        strangers.insert(socket, host);
    }

    /// If there is a stranger it goes, as when all places are taken. Else the newcomer stands in the queue.
    fn make_room(&self, strangers: &mut impl Strangers) -> bool {
        let places = Places { all: strangers.all().count(), ..self.places };
        replace(places, Ipv4Addr::UNSPECIFIED.into(), strangers)
    }
}

/// Whether another had to go for one more of `host`.
fn replace(places: Places, host: IpAddr, strangers: &mut impl Strangers) -> bool {
    let gone = places.who_goes(strangers.all(), host);
    gone.inspect(|&key| strangers.remove(key)).is_some()
}

/// Listens on the first of these addresses that can be had.
pub fn listen(addresses: impl ToSocketAddrs) -> io::Result<TcpListener> {
    // std sets SO_REUSEADDR: a server that was killed can be started again at once.
    let listener = TcpListener::bind(addresses)?;
    listener.set_nonblocking(true)?;
    loopback::listens(&listener);
    // std asks for a queue of 128; the system takes what it allows at most.
    let _ = rustix::net::listen(&listener, QUEUE);
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const PLACES: Places = Places { a_host: 2, all: 4, few: 2 };

    #[derive(Default)]
    struct Kept {
        sockets: BTreeMap<u64, TcpStream>,
        came: u64,
    }

    impl Strangers for Kept {
        type Key = u64;

        fn all(&self) -> impl Iterator<Item = Stranger<u64>> + Clone {
            let host = Ipv4Addr::LOCALHOST.into();
            self.sockets.keys().map(move |&key| Stranger { key, host, silent: false })
        }

        fn insert(&mut self, socket: TcpStream, host: IpAddr) {
            assert_eq!(host, Ipv4Addr::LOCALHOST);
            self.sockets.insert(self.came, socket);
            self.came += 1;
        }

        fn remove(&mut self, key: u64) {
            self.sockets.remove(&key).expect("it is there");
        }

        fn flows(&mut self) {}

        fn is_stuck(&mut self, _: &io::Error) -> bool {
            false
        }
    }

    fn gate() -> (Gate, SocketAddr) {
        let listener = listen((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let address = listener.local_addr().expect("it has one");
        (Gate::new(vec![listener], PLACES), address)
    }

    #[test]
    fn a_host_that_fills_its_places_loses_the_oldest_of_its_own() {
        let (mut gate, address) = gate();
        let callers: Vec<_> = (0..3).map(|_| TcpStream::connect(address).expect("it listens")).collect();
        let mut kept = Kept::default();
        gate.accept(0, &mut kept);
        assert_eq!(kept.sockets.keys().collect::<Vec<_>>(), [&1, &2]);
        assert_eq!(gate.closed_for(Instant::now()), None);
        drop(callers);
    }

    #[test]
    fn a_stranger_makes_room_when_the_system_has_none_and_without_one_no_room_is_made() {
        let (gate, address) = gate();
        let mut kept = Kept::default();
        assert!(!gate.make_room(&mut kept));
        let (mut open, _) = (gate, TcpStream::connect(address).expect("it listens"));
        open.accept(0, &mut kept);
        assert!(open.make_room(&mut kept));
        assert!(kept.sockets.is_empty());
    }

    #[test]
    fn a_gate_that_was_closed_opens_by_itself() {
        let (mut gate, _) = gate();
        let now = Instant::now();
        gate.closed = Some(now + LOOK_AGAIN);
        assert_eq!(gate.closed_for(now), Some(LOOK_AGAIN));
        assert_eq!(gate.closed_for(now + LOOK_AGAIN), None);
    }
}
