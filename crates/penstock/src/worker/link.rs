//! One server, as a worker sees it: its socket, this worker's page with a ring to each shard, and a thread that keeps the
//! lease and hears when the job fails.

use super::Error;
use crate::wait::Patience;
use penstock_fabric::doorbell::{ANYTHING, Bell, Sleeping};
use penstock_fabric::layout::{Count, board, page};
use penstock_fabric::region::{Access, Mapping, Part};
use penstock_fabric::ring::{Producer, Ring};
use penstock_fabric::socket::Connection;
use penstock_fabric::sync::Ordering;
use penstock_proto::error::JobFailure;
use penstock_proto::message::{
    Answer, Ask, MAX_MESSAGE_BYTES, MAX_SERVERS, MAX_SHARDS, PROTOCOL_VERSION, Reply, Request, Secret,
    Welcome, decode, encode,
};
use penstock_proto::submission::Submission;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{RecvFlags, SendFlags};
use rustix::time::Timespec;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest sleep between two looks at whether the caller was interrupted.
const INTERRUPT_EVERY: Duration = Duration::from_millis(50);
/// How long an attempt to leave cleanly may take.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks whether the caller wants to stop waiting.
pub(super) type Interrupt = Box<dyn Fn() -> bool + Send + Sync>;

/// What all links of a job share.
#[derive(Default)]
pub(super) struct Fate {
    ended: AtomicBool,
    failure: Mutex<Option<JobFailure>>,
    /// The pages to ring when the job fails.
    pages: Mutex<Vec<Arc<Mapping>>>,
    interrupt: RwLock<Option<Interrupt>>,
}

impl Fate {
    /// Whether the job goes on.
    pub(super) fn check(&self) -> Result<(), Error> {
        if !self.ended.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(lock(&self.failure).clone().map_or(Error::Closed, Error::Failed))
    }

    fn fail(&self, failure: JobFailure) {
        lock(&self.failure).get_or_insert(failure);
        self.end();
    }

    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        for page in lock(&self.pages).iter() {
            page.at::<Bell>(page::BELL).ring();
        }
    }

    pub(super) fn on_interrupt(&self, interrupt: Interrupt) {
        *self.interrupt.write().unwrap_or_else(PoisonError::into_inner) = Some(interrupt);
    }

    pub(super) fn check_interrupt(&self) -> Result<(), Error> {
        let interrupt = self.interrupt.read().unwrap_or_else(PoisonError::into_inner);
        match &*interrupt {
            Some(interrupt) if interrupt() => Err(Error::Interrupted),
            _ => Ok(()),
        }
    }
}

/// The end of a wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    since: Instant,
    longest: Duration,
}

impl Deadline {
    pub(super) fn new(longest: Duration) -> Self {
        Self { since: Instant::now(), longest }
    }

    pub(super) fn waited(&self) -> Duration {
        self.since.elapsed()
    }

    pub(super) fn left(&self) -> Duration {
        self.longest.saturating_sub(self.waited())
    }
}

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waited {
    Done,
    TimedOut,
}

type Answered = (Answer, Vec<OwnedFd>);

struct Open {
    requests: Mutex<HashMap<u64, SyncSender<Answered>>>,
    next: AtomicU64,
}

/// What the thread and the callers share.
struct Wire {
    connection: Connection,
    page: Arc<Mapping>,
    open: Open,
    server: u32,
    /// Whether this worker has said that it leaves: the server may then hang up.
    leaving: AtomicBool,
}

/// How a worker introduces itself.
#[derive(Debug, Clone)]
pub(super) struct Introduction {
    pub(super) secret: Secret,
    pub(super) rank: u32,
    pub(super) size: u32,
}

pub(super) struct Link {
    pub(super) welcome: Welcome,
    wire: Arc<Wire>,
    board: Arc<Mapping>,
    wakeups: Vec<OwnedFd>,
    producers: Vec<Mutex<Producer>>,
    waiters: Mutex<u32>,
    fate: Arc<Fate>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

fn system(what: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
    move |errno| Error::System { what, reason: errno.to_string() }
}

impl Link {
    /// Joins through a connection. `server` is the number that it must have.
    pub(super) fn join(
        connection: Connection,
        who: &Introduction,
        server: u32,
        fate: &Arc<Fate>,
        deadline: Deadline,
    ) -> Result<Self, Error> {
        let hello =
            Ask::Hello { version: PROTOCOL_VERSION, secret: who.secret, rank: who.rank, size: who.size };
        let (welcome, descriptors) = introduce(&connection, hello, server, deadline, fate)?;
        let bad = |what: &str| Error::Protocol { server, what: what.to_owned() };
        let numbers = welcome.server == server
            && (1..=MAX_SERVERS).contains(&welcome.servers)
            && (1..=MAX_SHARDS).contains(&welcome.shards)
            && penstock_proto::chunk::is_chunk_size(welcome.chunk_bytes);
        if !numbers || descriptors.len() != welcome.shards as usize + 2 {
            return Err(bad(
                "its welcome makes no sense, or the servers are listed in another order than they were started",
            ));
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
        let open = Open { requests: Mutex::default(), next: AtomicU64::new(1) };
        let wire =
            Wire { connection, page: Arc::clone(&page), open, server, leaving: AtomicBool::new(false) };
        let wire = Arc::new(wire);
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
        })
    }

    fn bell(&self) -> &Bell {
        self.wire.page.at(page::BELL)
    }

    fn crowded(&self) -> bool {
        self.welcome.crowding > 1
    }

    /// Tells a shard something; waits for room in its ring.
    pub(super) fn submit(
        &self,
        shard: u32,
        submission: &Submission,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let ring: &Ring = self.wire.page.at(page::ring(shard));
        let mut producer = lock(&self.producers[shard as usize]);
        if !producer.has_room(ring)
            && self.wait(ANYTHING, deadline, || producer.has_room(ring))? == Waited::TimedOut
        {
            let (server, waited) = (self.wire.server, deadline.waited());
            return Err(Error::Unanswered { server, what: "take submissions", waited });
        }
        let pushed = producer.push(ring, submission.encode());
        debug_assert!(pushed.is_ok(), "there was room");
        let sleeping: &Sleeping = self.board.at(board::sleeping(shard));
        if sleeping.must_ring() {
            // It fails only when it is full, and then the shard is awake already.
            let _ = rustix::io::write(&self.wakeups[shard as usize], &1u64.to_le_bytes());
        }
        Ok(())
    }

    /// Waits until `done`, which only the server can bring about by something that happens to `what`.
    pub(super) fn wait(
        &self,
        what: u32,
        deadline: Deadline,
        mut done: impl FnMut() -> bool,
    ) -> Result<Waited, Error> {
        let mut patience = Patience::new(self.crowded());
        while patience.pause() {
            if done() {
                return Ok(Waited::Done);
            }
        }
        let waiter = Waiter::new(self, what);
        loop {
            let rings = waiter.announce();
            if done() {
                return Ok(Waited::Done);
            }
            self.fate.check()?;
            self.fate.check_interrupt()?;
            let left = deadline.left();
            if left.is_zero() {
                return Ok(Waited::TimedOut);
            }
            self.bell().sleep(rings, left.min(INTERRUPT_EVERY));
        }
    }

    /// Asks the server something and waits for its answer.
    pub(super) fn ask(&self, body: Ask, what: &'static str, deadline: Deadline) -> Result<Answered, Error> {
        self.fate.check()?;
        let id = self.wire.open.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = sync_channel(1);
        lock(&self.wire.open.requests).insert(id, sender);
        let forget = || lock(&self.wire.open.requests).remove(&id);
        let server = self.wire.server;
        let protocol = |error: penstock_proto::message::MessageError| Error::Protocol {
            server,
            what: error.to_string(),
        };
        let bytes = encode(&Request { id, body }).map_err(protocol)?;
        match self.wire.connection.send(&bytes, &[], SendFlags::empty()) {
            // The server has hung up. Why, the link's thread hears in a moment, and then nobody answers.
            Ok(()) | Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => {}
            Err(errno) => {
                forget();
                return Err(Error::System { what: "send to a server", reason: errno.to_string() });
            }
        }
        loop {
            match receiver.recv_timeout(deadline.left().min(INTERRUPT_EVERY)) {
                Ok((Answer::Refused(refusal), _)) => return Err(refusal.into()),
                Ok(answered) => return Ok(answered),
                Err(RecvTimeoutError::Disconnected) => {
                    self.fate.check()?;
                    return Err(Error::Closed);
                }
                Err(RecvTimeoutError::Timeout) => {
                    let look = self.fate.check().and_then(|()| self.fate.check_interrupt());
                    if deadline.left().is_zero() || look.is_err() {
                        forget();
                        look?;
                        return Err(Error::Unanswered { server, what, waited: deadline.waited() });
                    }
                }
            }
        }
    }

    /// The answer was not of the kind that was asked for.
    pub(super) fn misunderstood(&self, answer: &Answer) -> Error {
        Error::Protocol {
            server: self.wire.server,
            what: format!("an answer that was not asked for: {answer:?}"),
        }
    }

    /// Leaves, cleanly or not, and ends the thread.
    pub(super) fn leave(&mut self, failed: Option<String>) {
        self.wire.leaving.store(true, Ordering::Release);
        let clean = failed.is_none();
        let id = self.wire.open.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = sync_channel(1);
        if clean {
            lock(&self.wire.open.requests).insert(id, sender);
        }
        if let Ok(bytes) = encode(&Request { id, body: Ask::Leave { failed } })
            && self.wire.connection.send(&bytes, &[], SendFlags::empty()).is_ok()
            && clean
        {
            // Until the server has taken the last submissions into account.
            let _ = receiver.recv_timeout(LEAVE_WITHIN);
        }
        self.hang_up();
    }

    fn hang_up(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_le_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.wire.leaving.store(true, Ordering::Release);
        self.hang_up();
    }
}

/// One thread that waits on a link. While several do, the server is told that anything is waited for.
struct Waiter<'a> {
    link: &'a Link,
    what: u32,
}

impl<'a> Waiter<'a> {
    fn new(link: &'a Link, what: u32) -> Self {
        *lock(&link.waiters) += 1;
        Self { link, what }
    }

    fn announce(&self) -> u32 {
        let waiters = lock(&self.link.waiters);
        self.link.bell().announce(if *waiters == 1 { self.what } else { ANYTHING })
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut waiters = lock(&self.link.waiters);
        *waiters -= 1;
        match *waiters {
            0 => self.link.bell().awake(),
            // Those that are left announced themselves as one of several, or do so when they next look.
            _ => _ = self.link.bell().announce(ANYTHING),
        }
    }
}

/// Says hello and waits for the welcome, before there is a thread to listen.
fn introduce(
    connection: &Connection,
    hello: Ask,
    server: u32,
    deadline: Deadline,
    fate: &Fate,
) -> Result<(Welcome, Vec<OwnedFd>), Error> {
    let protocol = |what: String| Error::Protocol { server, what };
    let bytes = encode(&Request { id: 1, body: hello }).map_err(|error| protocol(error.to_string()))?;
    connection.send(&bytes, &[], SendFlags::empty()).map_err(system("send to a server"))?;
    while !readable(connection, deadline.left().min(INTERRUPT_EVERY))? {
        fate.check_interrupt()?;
        if deadline.left().is_zero() {
            return Err(Error::Unanswered { server, what: "welcome this worker", waited: deadline.waited() });
        }
    }
    let mut buffer = Box::new([0; MAX_MESSAGE_BYTES]);
    let received = connection.receive_with_descriptors(&mut buffer, RecvFlags::empty());
    let (length, descriptors) = received.map_err(system("receive from a server"))?;
    if length == 0 {
        return Err(Error::Failed(lost(server, "it closed the connection")));
    }
    match decode::<Reply>(&buffer[..length]).map_err(|error| protocol(error.to_string()))?.body {
        Answer::Welcome(welcome) => Ok((welcome, descriptors)),
        Answer::Refused(refusal) => Err(refusal.into()),
        Answer::Failed(failure) => Err(failure.into()),
        other => Err(protocol(format!("{other:?} instead of a welcome"))),
    }
}

fn lost(server: u32, reason: &str) -> JobFailure {
    JobFailure::ServerLost { server, reason: reason.to_owned() }
}

fn readable(connection: &Connection, longest: Duration) -> Result<bool, Error> {
    let mut fds = [PollFd::new(connection, PollFlags::IN)];
    match poll(&mut fds, Some(&timespec(longest))) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(errno) => Err(system("wait for a server")(errno)),
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
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
            let mut fds = [PollFd::new(&self.connection, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
            let _ = poll(&mut fds, Some(&timespec(next_beat.saturating_duration_since(now))));
            if !fds[1].revents().is_empty() {
                break;
            }
            if !fds[0].revents().is_empty() && !self.hear(fate, &mut buffer) {
                break;
            }
        }
        // Whoever still waits for an answer hears that none will come.
        lock(&self.open.requests).clear();
    }

    /// Takes one message; `false` when there will be no more.
    fn hear(&self, fate: &Fate, buffer: &mut [u8; MAX_MESSAGE_BYTES]) -> bool {
        let gone = |reason: &str| {
            if !self.leaving.load(Ordering::Acquire) {
                fate.fail(lost(self.server, reason));
            }
            false
        };
        let (length, descriptors) =
            match self.connection.receive_with_descriptors(buffer, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return gone("it closed the connection"),
                Ok(received) => received,
                Err(rustix::io::Errno::AGAIN) => return true,
                Err(errno) => return gone(&errno.to_string()),
            };
        match decode::<Reply>(&buffer[..length]) {
            Ok(Reply { body: Answer::Failed(failure), .. }) => {
                fate.fail(failure);
                false
            }
            Ok(Reply { id, body }) => {
                if let Some(waiting) = lock(&self.open.requests).remove(&id) {
                    let _ = waiting.try_send((body, descriptors));
                }
                true
            }
            Err(error) => gone(&format!("it sent what is no message: {error}")),
        }
    }
}
