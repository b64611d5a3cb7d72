//! A server on this host: a Unix socket, and shared memory whose descriptors come beside its messages.

use super::{
    Channel, Deadline, Fate, INTERRUPT_EVERY, Introduction, Link, Wire, judge, lock, lost, system, timespec,
};
use crate::wire::random;
use crate::worker::Error;
use penstock_fabric::layout::{Count, board, page};
use penstock_fabric::region::{Access, Mapping, Part};
use penstock_fabric::socket::{Connection, own_user};
use penstock_fabric::sync::Ordering;
use penstock_proto::handshake::{Purpose, SOCKET_BINDING, WorkerHandshake};
use penstock_proto::message::{
    Answer, Ask, MAX_MESSAGE_BYTES, PROTOCOL_VERSION, Reply, Request, Welcome, decode, encode,
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

impl Link {
    /// Joins through a connection. `server` is the number that it must have.
    pub(in crate::worker) fn join(
        connection: Connection,
        who: &Introduction,
        server: u32,
        fate: &Arc<Fate>,
        deadline: Deadline,
    ) -> Result<Self, Error> {
        let (welcome, descriptors) =
            Introducing { connection: &connection, server, deadline, fate }.run(who)?;
        let bad = |what: &str| Error::Protocol { server, what: what.to_owned() };
        judge(&welcome, server)?;
        if descriptors.len() != welcome.shards as usize + 2 {
            return Err(bad("its welcome came without its descriptors"));
        }
        let mut descriptors = descriptors.into_iter();
        let mut map = |bytes, access| {
            let fd = descriptors.next().ok_or_else(|| bad("its welcome lacks descriptors"))?;
            Mapping::new(&[Part { fd: fd.as_fd(), offset: 0, bytes }], access)
                .map_err(system("map a server's page"))
        };
        let page = map(page::bytes(welcome.shards), Access::Write)?;
        let board = map(board::BYTES, Access::Read)?;
        page.touch().map_err(system("touch a page"))?;
        let wire = Arc::new(Wire {
            channel: Channel::Local(connection),
            page: Arc::clone(&page),
            open: Mutex::new(BTreeMap::new()),
            next: AtomicU64::new(1),
            server,
            leaving: AtomicBool::new(false),
        });
        lock(&fate.pages).push(page);
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(system("make a descriptor"))?);
        let beat = Duration::from_millis((welcome.lease_ms / 4).max(1));
        let thread = {
            let (wire, fate, stop) = (Arc::clone(&wire), Arc::clone(fate), Arc::clone(&stop));
            let thread = std::thread::Builder::new().name(format!("penstock-link-{server}"));
            thread.spawn(move || wire.listen(&fate, &stop, beat))
        };
        let thread =
            thread.map_err(|error| Error::System { what: "start a thread", reason: error.to_string() })?;
        Ok(Self {
            producers: (0..welcome.shards).map(|_| Mutex::default()).collect(),
            welcome,
            wire,
            board,
            wakeups: descriptors.collect(),
            waiters: Mutex::new(0),
            fate: Arc::clone(fate),
            stop,
            thread: Some(thread),
            couriers: Vec::new(),
        })
    }
}

/// The beginning of a connection, before there is a thread to listen.
struct Introducing<'a> {
    connection: &'a Connection,
    server: u32,
    deadline: Deadline,
    fate: &'a Fate,
}

impl Introducing<'_> {
    /// Proves that this worker belongs to the job, has the server prove the same, and asks to be let in. Nothing is said to a
    /// socket of another user: whoever may write where the socket stands can put one of its own there.
    fn run(&self, who: &Introduction) -> Result<(Welcome, Vec<OwnedFd>), Error> {
        let peer = self.connection.peer().map_err(system("ask who is at the other end of a socket"))?;
        if peer.uid != own_user() {
            return Err(Error::OtherUser { server: self.server, expected: own_user(), got: peer.uid });
        }
        let nonce = random::bytes().map_err(system("draw a nonce"))?;
        let (handshake, hello) = WorkerHandshake::start(&who.job, who.secret, Purpose::Control, nonce)?;
        self.say(&hello)?;
        let (challenge, _) = self.hear()?;
        self.say(&handshake.answer(&challenge, &SOCKET_BINDING)?)?;
        let (verdict, _) = self.hear()?;
        WorkerHandshake::finish(&verdict)?;
        let Introduction { session, rank, size, .. } = *who;
        let body = Ask::Hello { version: PROTOCOL_VERSION, session, rank, size };
        self.say(&encode(&Request { id: 1, body }).map_err(|error| self.broke(error.to_string()))?)?;
        let (welcome, descriptors) = self.hear()?;
        match decode::<Reply>(&welcome).map_err(|error| self.broke(error.to_string()))?.body {
            Answer::Welcome(welcome) => Ok((welcome, descriptors)),
            Answer::Refused(refusal) => Err(refusal.into()),
            Answer::Failed(failure) => Err(failure.into()),
            other => Err(self.broke(format!("{other:?} instead of a welcome"))),
        }
    }

    fn broke(&self, what: String) -> Error {
        Error::Protocol { server: self.server, what }
    }

    fn say(&self, message: &[u8]) -> Result<(), Error> {
        match self.connection.send(message, &[], SendFlags::empty()) {
            // It has hung up. Why, its last words say.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            Err(errno) => Err(system("send to a server")(errno)),
        }
    }

    fn hear(&self) -> Result<(Vec<u8>, Vec<OwnedFd>), Error> {
        let &Self { connection, server, deadline, fate } = self;
        while !readable(connection, deadline.left().min(INTERRUPT_EVERY))? {
            fate.check_interrupt()?;
            if deadline.left().is_zero() {
                let waited = deadline.waited();
                return Err(Error::Unanswered { server, what: "welcome this worker", waited });
            }
        }
        let mut buffer = Box::new([0; MAX_MESSAGE_BYTES]);
        let received = connection.receive_with_descriptors(&mut buffer, RecvFlags::empty());
        let (length, descriptors) = received.map_err(system("receive from a server"))?;
        if length == 0 {
            return Err(Error::Failed(lost(server, "it closed the connection")));
        }
        Ok((buffer[..length].to_vec(), descriptors))
    }
}

fn readable(connection: &Connection, longest: Duration) -> Result<bool, Error> {
    let mut fds = [PollFd::new(connection, PollFlags::IN)];
    match poll(&mut fds, Some(&timespec(longest))) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(errno) => Err(system("wait for a server")(errno)),
    }
}

impl Wire {
    /// The link's thread: a sign of life every `beat`, and whatever the server says.
    fn listen(&self, fate: &Fate, stop: &OwnedFd, beat: Duration) {
        let mut buffer = Box::new([0; MAX_MESSAGE_BYTES]);
        let mut next_beat = Instant::now();
        loop {
            let now = Instant::now();
            if now >= next_beat {
                self.page.at::<Count>(page::HEARTBEAT).0.fetch_add(1, Ordering::Relaxed);
                next_beat = now + beat;
            }
            let Channel::Local(connection) = &self.channel else { break };
            let mut fds = [PollFd::new(connection, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
            let _ = poll(&mut fds, Some(&timespec(next_beat.saturating_duration_since(now))));
            if !fds[1].revents().is_empty() {
                break;
            }
            if !fds[0].revents().is_empty() && !self.receive(connection, fate, &mut buffer) {
                break;
            }
        }
        // Whoever still waits for an answer hears that none will come.
        lock(&self.open).clear();
    }

    /// Takes one message; `false` when there will be no more.
    fn receive(&self, connection: &Connection, fate: &Fate, buffer: &mut [u8; MAX_MESSAGE_BYTES]) -> bool {
        match connection.receive_with_descriptors(buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => self.gone(fate, "it closed the connection"),
            Ok((length, descriptors)) => self.hear(fate, &buffer[..length], descriptors),
            Err(rustix::io::Errno::AGAIN) => true,
            Err(errno) => self.gone(fate, &errno.to_string()),
        }
    }
}
