//! A server on this host: a Unix socket, and shared memory whose descriptors come beside its messages.

use super::{Channel, Introduction, Link, Outlets, Wire, judge, lock, lost};
use crate::thread::{self, Wakeup};
use crate::wait::{Crowd, Deadline, INTERRUPT_EVERY, OneCore, Shards, cores, poll, until_readable};
use crate::wire::random;
use crate::wire::vigil::{LivedClock, look_every};
use crate::worker::Error;
use crate::worker::fate::Fate;
use penstock_fabric::layout::{Count, flags, page};
use penstock_fabric::region::{Access, Mapping, Part};
use penstock_fabric::socket::{Connection, Received, own_user};
use penstock_fabric::sync::Ordering;
use penstock_proto::handshake::{Purpose, SOCKET_BINDING, WorkerHandshake};
use penstock_proto::membership::Lease;
use penstock_proto::message::{
    Answer, Ask, MAX_MESSAGE_BYTES, PROTOCOL_VERSION, Reply, Request, Welcome, decode, encode,
};
use penstock_proto::peer::PeerId;
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
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
                .map_err(Error::system("map a server's page"))
        };
        let page = map(page::bytes(welcome.shards), Access::Write)?;
        let flags = map(flags::BYTES, Access::Read)?;
        page.touch().map_err(Error::system("touch a page"))?;
        let outlets = Outlets::new(Arc::clone(&page), Arc::clone(&flags), descriptors.collect());
        let outlets = fate.untold.add(outlets);
        let wire = Arc::new(Wire {
            channel: Channel::Local(connection),
            page: Arc::clone(&page),
            open: Mutex::default(),
            slabs: Mutex::default(),
            outlets,
            server,
            rank: who.rank,
            left: AtomicBool::new(false),
            let_go: AtomicBool::new(false),
        });
        fate.rings(page);
        let stop = Arc::new(Wakeup::new().map_err(Error::system("make a descriptor"))?);
        let watch = Watch::new(&flags, &welcome);
        let (shards, others, cores) = (welcome.shards, welcome.others, cores());
        let crowd = Arc::new(Crowd::Counted(Shards { flags, shards, others, cores }));
        let thread = {
            let (wire, fate, stop) = (Arc::clone(&wire), Arc::clone(fate), Arc::clone(&stop));
            thread::spawn(format!("penstock-link-{server}"), move || wire.listen(&fate, &stop, watch))
        };
        let thread = thread.map_err(Error::system("start a thread"))?;
        Ok(Self {
            welcome,
            wire,
            waiters: Mutex::new(0),
            asked: AtomicU64::new(0),
            doubtful: Mutex::default(),
            fate: Arc::clone(fate),
            stop,
            thread: Some(thread),
            proxies: Vec::new(),
            crowd,
            one_core: OneCore::default(),
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
    /// socket of another user: any process that may write where the socket stands can put one of its own there.
    fn run(&self, who: &Introduction) -> Result<(Welcome, Vec<OwnedFd>), Error> {
        let peer =
            self.connection.peer().map_err(Error::system("ask who is at the other end of a socket"))?;
        if peer.uid != own_user() {
            return Err(Error::OtherUser { server: self.server, expected: own_user(), got: peer.uid });
        }
        let nonce = random::bytes().map_err(Error::system("draw a nonce"))?;
        let (handshake, hello) = WorkerHandshake::start(&who.job, who.secret, Purpose::Control, nonce)?;
        self.say(&hello)?;
        let (challenge, _) = self.hear()?;
        self.say(&handshake.answer(&challenge, &SOCKET_BINDING)?)?;
        let (verdict, _) = self.hear()?;
        WorkerHandshake::finish(&verdict)?;
        let Introduction { session, rank, size, .. } = *who;
        let body = Ask::Hello {
            version: PROTOCOL_VERSION,
            session,
            peer: PeerId::worker(rank),
            size,
            overlay: who.threshold.joining(),
        };
        self.say(
            &encode(&Request { id: 1, settled: 1, open: Vec::new(), body })
                .map_err(|error| self.broke(error.to_string()))?,
        )?;
        let (welcome, descriptors) = self.hear()?;
        match decode::<Reply>(&welcome).map_err(|error| self.broke(error.to_string()))?.body.brief() {
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
            // It has hung up. Its last words say why.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            Err(errno) => Err(Error::system("send to a server")(errno)),
        }
    }

    fn hear(&self) -> Result<(Vec<u8>, Vec<OwnedFd>), Error> {
        let &Self { connection, server, deadline, fate } = self;
        let readable =
            |longest| until_readable(connection, longest).map_err(Error::system("wait for a server"));
        while !readable(deadline.left().min(INTERRUPT_EVERY))? {
            fate.look()?;
            if deadline.left().is_zero() {
                let waited = deadline.waited();
                return Err(Error::Unanswered { server, what: "welcome this worker", waited });
            }
        }
        let mut buffer = Box::new([0; MAX_MESSAGE_BYTES]);
        let (length, came) = match take(connection, &mut buffer, RecvFlags::empty()) {
            Err(Errno::CONNRESET | Errno::PIPE) => (0, Received::default()),
            received => received.map_err(Error::system("receive from a server"))?,
        };
        if length == 0 {
            // Its job may have failed just now: the launcher notes that before the server hears of it.
            fate.look()?;
            return Err(Error::Failed(lost(server, "it ended before it welcomed this worker")));
        }
        if came.cut {
            return Err(no_room());
        }
        Ok((buffer[..length].to_vec(), came.descriptors))
    }
}

/// Descriptors came beside a message, and this process had no room for all of them.
pub(super) fn no_room() -> Error {
    Error::system("take the memory that a server passes")(Errno::MFILE)
}

/// Takes one message. A server that hangs up while a request lies unread resets the connection, and the reset is told before
/// what it said last: that is read all the same.
fn take(
    connection: &Connection,
    buffer: &mut [u8; MAX_MESSAGE_BYTES],
    flags: RecvFlags,
) -> rustix::io::Result<(usize, Received)> {
    match connection.receive_with_descriptors(buffer, flags) {
        Err(Errno::CONNRESET) => connection.receive_with_descriptors(buffer, flags),
        received => received,
    }
}

/// Watches the heartbeats behind a server's flags: its control thread's, and each shard's.
struct Watch {
    flags: Arc<Mapping>,
    lease: Duration,
    clock: LivedClock,
    control: Lease,
    shards: Vec<Lease>,
}

impl Watch {
    fn new(flags: &Arc<Mapping>, welcome: &Welcome) -> Self {
        let lease = Lease::new(welcome.lease_ms, 0);
        let duration = Duration::from_millis(welcome.lease_ms);
        Self {
            flags: Arc::clone(flags),
            lease: duration,
            clock: LivedClock::new(duration),
            control: lease,
            shards: vec![lease; welcome.shards as usize],
        }
    }

    /// The message about a server's thread that gives no more signs of life.
    fn find_silent(&mut self) -> Option<String> {
        let Self { flags, lease, clock, control, shards } = self;
        let now = clock.now();
        let sign = |thread| flags::beats(flags, thread);
        let silent =
            |who: String| format!("{who} gave no sign of life for {} ms (the lease)", lease.as_millis());
        if control.has_ended(sign(flags::CONTROL), now) {
            return Some(silent("it".to_owned()));
        }
        let mut shards = shards.iter_mut().zip(0..);
        let hung = shards.find_map(|(lease, shard)| lease.has_ended(sign(shard), now).then_some(shard))?;
        Some(silent(format!("its shard {hung}")))
    }
}

impl Wire {
    /// The link's thread: signs of life, this worker's and the server's, and whatever the server says.
    fn listen(&self, fate: &Fate, stop: &Wakeup, mut watch: Watch) {
        let mut buffer = Box::new([0; MAX_MESSAGE_BYTES]);
        let beat = look_every(watch.lease);
        let mut next_beat = Instant::now();
        loop {
            let now = Instant::now();
            fate.untold.tell();
            if now >= next_beat {
                self.page.at::<Count>(page::HEARTBEAT).0.fetch_add(1, Ordering::Relaxed);
                next_beat = now + beat;
                if let Some(silent) = watch.find_silent() {
                    self.gone(fate, &silent);
                    break;
                }
            }
            let Channel::Local(connection) = &self.channel else { break };
            let mut fds = [PollFd::new(connection, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
            let _ =
                poll(&mut fds, Some(next_beat.saturating_duration_since(now).min(self.look_for_untold())));
            if !fds[1].revents().is_empty() {
                break;
            }
            if !fds[0].revents().is_empty() && !self.receive(connection, fate, &mut buffer) {
                break;
            }
        }
        // Threads that still wait for an answer learn that none will come.
        lock(&self.open).close();
    }

    /// Takes one message; `false` when there will be no more.
    fn receive(&self, connection: &Connection, fate: &Fate, buffer: &mut [u8; MAX_MESSAGE_BYTES]) -> bool {
        match take(connection, buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => self.gone(fate, "it closed the connection"),
            Ok((length, came)) => self.hear(fate, &buffer[..length], came),
            Err(rustix::io::Errno::AGAIN) => true,
            Err(errno) => self.gone(fate, &errno.to_string()),
        }
    }
}
