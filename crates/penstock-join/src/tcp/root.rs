//! Rank 0's end of a rendezvous: it listens.

use super::caller::{Caller, Expected};
use super::{Party, RendezvousAddress, RendezvousError, STRANGER_TIME, again, nonce};
use crate::exchange::{Contributions, GONE, VERDICT_MARGIN, is_failure};
use crate::patience::{Interrupted, Patience};
use crate::resolve::{Lookup, Resolver, Unresolved, plain, system};
use penstock_fabric::descriptors;
use penstock_fabric::net::gate::{self, Gate, SILENT};
use penstock_fabric::net::quiet::Quiet;
use penstock_proto::strangers::{Places, Stranger};
use rustix::event::{PollFd, PollFlags};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Connections of one host that have not proved themselves and are listened to at once; one more drops the oldest.
pub const STRANGERS: usize = 256;
/// The same for all hosts, and how many of one network are few.
const PLACES: Places = Places { a_host: STRANGERS, all: 4 * STRANGERS, few: 64 };
/// After the failure of another process, rank 0 stays this long to tell those that are about to come.
const LATE: Duration = Duration::from_secs(1);
const READ_BYTES: usize = 8192;

/// A connection to rank 0.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    host: IpAddr,
    /// When it came, or proved itself.
    since: Instant,
    caller: Caller,
}

/// The connection has ended, or does not belong here.
struct Gone;

impl Connection {
    /// Takes what has come.
    fn read(&mut self) -> Result<(), Gone> {
        let mut bytes = [0; READ_BYTES];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(Gone),
            Ok(count) => self.caller.receive(&bytes[..count]).map_err(|_| Gone),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(()),
            Err(_) => Err(Gone),
        }
    }

    /// Sends as much as goes.
    fn send(&mut self) -> Result<(), Gone> {
        while !self.caller.to_send.is_empty() {
            match Quiet(&self.stream).write(&self.caller.to_send) {
                Ok(count) => drop(self.caller.to_send.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Gone),
            }
        }
        Ok(())
    }

    fn watch(&self) -> PollFd<'_> {
        let sends = if self.caller.to_send.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        PollFd::new(&self.stream, PollFlags::IN | sends)
    }
}

/// Connections that have not proved themselves.
#[derive(Default)]
struct Strangers {
    /// In the order in which they came.
    connections: VecDeque<Connection>,
    /// What the system said where it had no room, until one could be let in without another being dropped, or none knocks any more.
    no_room: Option<String>,
}

impl gate::Strangers for Strangers {
    type Key = usize;

    fn all(&self) -> impl Iterator<Item = Stranger<usize>> + Clone {
        let now = Instant::now();
        self.connections.iter().enumerate().map(move |(key, one)| Stranger {
            key,
            host: one.host,
            silent: one.caller.is_silent() && now - one.since >= SILENT,
        })
    }

    fn insert(&mut self, stream: TcpStream, host: IpAddr) {
        let (Ok(()), Ok(nonce)) = (stream.set_nonblocking(true), nonce()) else { return };
        let since = Instant::now();
        self.connections.push_back(Connection { stream, host, since, caller: Caller::new(nonce) });
    }

    fn remove(&mut self, key: usize) {
        self.connections.remove(key);
    }

    fn flows(&mut self) {
        self.no_room = None;
    }

    fn is_stuck(&mut self, error: &io::Error) -> bool {
        if !descriptors::is_no_room(error) {
            return false;
        }
        let raised = matches!(descriptors::raise_limit(), Ok(true));
        if !raised {
            self.no_room = Some(plain(error));
        }
        raised
    }
}

/// What has come to rank 0 in a round.
#[derive(Clone, PartialEq, Eq)]
pub struct Collected {
    /// By rank; without everyone's, where one of them cannot go on.
    pub came: Contributions,
    /// Ranks that did not come in time, where all others can go on.
    pub missing: Vec<u32>,
    /// What the system said where it could not let in all that came.
    pub no_room: Option<String>,
}

/// Without what was said: it may hold the job's secret.
impl fmt::Debug for Collected {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let came: Vec<&u32> = self.came.keys().collect();
        let mut shown = formatter.debug_struct("Collected");
        shown.field("came", &came).field("missing", &self.missing).field("no_room", &self.no_room).finish()
    }
}

/// Rank 0's end.
pub struct Root {
    expected: Expected,
    gate: Gate,
    port: u16,
    strangers: Strangers,
    members: BTreeMap<u32, Connection>,
    came: Contributions,
    /// Ranks that have ever given something.
    heard: BTreeSet<u32>,
    /// Where the last process came from that could not prove that it knows the secret.
    unproved: Option<IpAddr>,
}

/// Without what was said.
impl fmt::Debug for Root {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Root").field("port", &self.port).finish_non_exhaustive()
    }
}

impl Root {
    /// Listens at `at`: at an address that was given as such, on every interface for a name. A host's own name often leads to its
    /// loopback address, where no other host could come. The rank of `party` is not looked at. `patience`: for the name server,
    /// and for a name that becomes known later than this process begins.
    pub fn listen(
        party: Party,
        at: &RendezvousAddress,
        patience: &Patience<'_>,
    ) -> Result<Self, RendezvousError> {
        Self::listen_with(party, at, patience, system)
    }

    fn listen_with(
        party: Party,
        at: &RendezvousAddress,
        patience: &Patience<'_>,
        resolver: Resolver,
    ) -> Result<Self, RendezvousError> {
        party.refuse_too_many()?;
        let Party { size, secret, job, .. } = party;
        let first = first_address(at, patience, resolver)?;
        let bare = at.host.split('%').next().unwrap_or_default();
        let exactly = at.host == "localhost" || bare.parse::<IpAddr>().is_ok();
        let everywhere = match first {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let address = if exactly { first } else { SocketAddr::new(everywhere, at.port) };
        let refused = |error: std::io::Error| match error.kind() {
            ErrorKind::AddrInUse => RendezvousError::InUse { port: at.port },
            _ => RendezvousError::Listen { at: at.clone(), reason: plain(&error) },
        };
        let listener = gate::listen(address).map_err(refused)?;
        let port = listener.local_addr().map_err(refused)?.port();
        Ok(Self {
            expected: Expected { size, secret, job },
            gate: Gate::new(vec![listener], PLACES),
            port,
            strangers: Strangers::default(),
            members: BTreeMap::new(),
            came: Contributions::new(),
            heard: BTreeSet::new(),
            unproved: None,
        })
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The host of a process that spoke as a process of a job does but had another secret or job name, if there was one.
    pub fn unproved(&self) -> Option<IpAddr> {
        self.unproved
    }

    /// Everyone's contribution, `own` among them. As soon as one says that its process cannot go on, the rest are not waited for.
    pub fn collect(&mut self, own: &[u8], patience: &Patience<'_>) -> Result<Collected, RendezvousError> {
        let gone = self.heard.iter().filter(|&rank| !self.members.contains_key(rank));
        self.came = gone.map(|&rank| (rank, GONE.to_vec())).collect();
        self.came.insert(0, own.to_vec());
        // What came before it was asked for.
        for rank in self.members.keys().copied().collect::<Vec<_>>() {
            self.hear(rank);
        }
        // If this process cannot go on, it stays just long enough to tell those that come; if another cannot, a little less.
        let (mut patience, mut ending) = (*patience, false);
        while self.came.len() < self.expected.size as usize {
            if !ending && self.came.values().any(|one| is_failure(one)) {
                ending = true;
                patience = patience.at_most(if is_failure(own) { VERDICT_MARGIN } else { LATE });
            }
            if patience.is_over() {
                let missing = (0..self.expected.size).filter(|rank| !self.came.contains_key(rank));
                let missing = if ending { Vec::new() } else { missing.collect() };
                return Ok(Collected {
                    came: self.came.clone(),
                    missing,
                    no_room: self.strangers.no_room.clone(),
                });
            }
            self.step(&patience)?;
        }
        Ok(Collected { came: self.came.clone(), missing: Vec::new(), no_room: None })
    }

    /// Hands the verdict to all that are here.
    pub fn announce(&mut self, verdict: &[u8], patience: &Patience<'_>) -> Result<(), RendezvousError> {
        let patience = patience.another(VERDICT_MARGIN);
        for rank in self.members.keys().copied().collect::<Vec<_>>() {
            if let Some(connection) = self.members.get_mut(&rank) {
                connection.caller.tell(verdict);
                if connection.send().is_err() {
                    self.leave(rank);
                }
            }
        }
        while self.members.values().any(|one| !one.caller.to_send.is_empty()) && !patience.is_over() {
            self.step(&patience)?;
        }
        Ok(())
    }

    /// Waits for something to happen, and deals with it.
    fn step(&mut self, patience: &Patience<'_>) -> Result<(), Interrupted> {
        let now = Instant::now();
        self.strangers.connections.retain(|one| now - one.since < STRANGER_TIME);
        let unheard = self.members.iter().filter(|(rank, _)| !self.heard.contains(rank)).map(|(_, one)| one);
        let due = self.strangers.connections.front().into_iter().chain(unheard);
        let due = due.map(|one| (one.since + STRANGER_TIME).saturating_duration_since(now)).min();
        let closed = self.gate.closed_for(now);
        let due = due.into_iter().chain(closed).min().unwrap_or(Duration::MAX);
        let ranks: Vec<u32> = self.members.keys().copied().collect();
        let accepts = if closed.is_none() { PollFlags::IN } else { PollFlags::empty() };
        let mut watched = vec![PollFd::new(&self.gate.listeners()[0], accepts)];
        watched.extend(self.strangers.connections.iter().chain(self.members.values()).map(Connection::watch));
        patience.poll(&mut watched, due)?;
        let seen: Vec<PollFlags> = watched.iter().map(PollFd::revents).collect();
        drop(watched);

        let (strangers, members) = seen[1..].split_at(self.strangers.connections.len());
        for (connection, &seen) in std::mem::take(&mut self.strangers.connections).into_iter().zip(strangers)
        {
            self.attend(connection, seen);
        }
        for (rank, &seen) in ranks.into_iter().zip(members) {
            self.serve(rank, seen);
            // A process that has proved itself gives something at once. One that gives nothing would keep its rank from the
            // process that does.
            let silent = |one: &Connection| seen.is_empty() && one.since.elapsed() >= STRANGER_TIME;
            if !self.heard.contains(&rank) && self.members.get(&rank).is_some_and(silent) {
                self.leave(rank);
            }
        }
        if seen[0].contains(PollFlags::IN) {
            self.gate.accept(0, &mut self.strangers);
        } else if accepts == PollFlags::IN && seen[1..].iter().any(|seen| !seen.is_empty()) {
            // The system has looked, and none stands in the queue: the one that a place was wanted for has it, or went. An
            // accept would not say so: it wants a descriptor before it looks at the queue.
            self.strangers.no_room = None;
        }
        Ok(())
    }

    /// A connection that has not proved itself: it stays one, becomes a member, or is dropped.
    fn attend(&mut self, mut connection: Connection, seen: PollFlags) {
        if seen.is_empty() {
            return self.strangers.connections.push_back(connection);
        }
        if connection.read().is_err() {
            return;
        }
        // A process that was heard and has gone is not replaced: what it said stands for its rank.
        let is_taken = |rank| self.members.contains_key(&rank) || self.heard.contains(&rank);
        let rank = connection.caller.shake_hands(&self.expected, is_taken);
        if connection.caller.is_unproved() {
            self.unproved = Some(connection.host);
        }
        // A stranger is told why, if that goes at once.
        let sent = connection.send();
        match (rank, sent) {
            (Ok(None), Ok(())) => self.strangers.connections.push_back(connection),
            (Ok(Some(rank)), Ok(())) => {
                connection.since = Instant::now();
                self.members.insert(rank, connection);
                self.hear(rank);
            }
            _ => {}
        }
    }

    /// A process of the job.
    fn serve(&mut self, rank: u32, seen: PollFlags) {
        let Some(connection) = self.members.get_mut(&rank).filter(|_| !seen.is_empty()) else { return };
        let reads = seen.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR);
        if connection.send().is_err() || (reads && connection.read().is_err()) {
            self.leave(rank);
        } else {
            self.hear(rank);
        }
    }

    /// Takes the contribution of the process of this rank, if this round lacks it and it has come.
    fn hear(&mut self, rank: u32) {
        let Some(connection) = self.members.get_mut(&rank).filter(|_| !self.came.contains_key(&rank)) else {
            return;
        };
        match connection.caller.message() {
            Ok(None) => {}
            Ok(Some(contribution)) => {
                self.came.insert(rank, contribution);
                self.heard.insert(rank);
            }
            Err(_) => self.leave(rank),
        }
    }

    /// The connection has ended, or is ended. A process that was heard will not come again.
    fn leave(&mut self, rank: u32) {
        self.members.remove(&rank);
        if self.heard.contains(&rank) {
            self.came.entry(rank).or_insert_with(|| GONE.to_vec());
        }
    }
}

/// The first address of the rendezvous host. Its name may be made known later than rank 0 begins, as for the others.
fn first_address(
    at: &RendezvousAddress,
    patience: &Patience<'_>,
    resolver: Resolver,
) -> Result<SocketAddr, RendezvousError> {
    let mut lookup = Lookup::default();
    let host = || at.host.clone();
    let attempt = || match lookup.resolve(&at.host, at.port, patience, resolver) {
        Ok(found) => Ok(ControlFlow::Break(found[0])),
        Err(Unresolved::Refused(reason)) => Ok(ControlFlow::Continue(reason)),
        Err(Unresolved::Late) => Err(RendezvousError::Unresolved { host: host(), waited: patience.waited() }),
        Err(Unresolved::NotAsked(reason)) => Err(RendezvousError::System { what: "look up a name", reason }),
        Err(Unresolved::Interrupted(interrupted)) => Err(interrupted.into()),
    };
    match again(patience, attempt)? {
        ControlFlow::Break(address) => Ok(address),
        ControlFlow::Continue(reason) => Err(RendezvousError::NoAddress { host: host(), reason }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_proto::message::Secret;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn party() -> Party {
        Party { rank: 0, size: 2, secret: Secret([7; 32]), job: "job".to_owned() }
    }

    // Rank 0 ended at once, and the others waited for it until their deadline.
    #[test]
    fn a_name_that_becomes_known_later_is_waited_for() {
        static ASKED: AtomicU32 = AtomicU32::new(0);
        let resolver: Resolver = |_, port| match ASKED.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => Err(std::io::Error::other("it is unknown")),
            _ => Ok(vec![SocketAddr::from(([10, 0, 0, 1], port))]),
        };
        let at = RendezvousAddress { host: "a".to_owned(), port: 0 };
        let long = Patience::new(Duration::from_secs(60), &|| false);
        assert!(Root::listen_with(party(), &at, &long, resolver).is_ok());
        let unknown: Resolver = |_, _| Err(std::io::Error::other("it is unknown"));
        let short = Patience::new(Duration::from_millis(200), &|| false);
        let refused = Root::listen_with(party(), &at, &short, unknown).expect_err("nobody knows it");
        assert!(
            matches!(refused, RendezvousError::NoAddress { .. } | RendezvousError::Unresolved { .. }),
            "{refused:?}"
        );
    }

    #[test]
    fn whoever_shows_what_came_does_not_show_what_was_said() {
        let came = Contributions::from([(0, b"77".to_vec())]);
        let shown = format!("{:?}", Collected { came, missing: vec![1], no_room: None });
        assert_eq!(shown, "Collected { came: [0], missing: [1], no_room: None }");
        let mut caller = Caller::new([7; 32]);
        caller.receive(b"77").expect("it is short");
        assert_eq!(format!("{caller:?}"), "Caller { admitted: false, .. }");
    }
}
