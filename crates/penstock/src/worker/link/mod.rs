//! One server, as a worker sees it: a channel for control messages, this worker's page with a ring to each shard, and a thread
//! that keeps the lease and hears when the job fails.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | waiting, asking |
//! | [`outlet`] | submitting |
//! | [`barrier`] | waiting for other workers, and going away from there |
//! | [`leaving`] | waiting for what was submitted to be taken; leaving |
//! | [`local`] | a server on this host: descriptors beside the messages, shards at the other end of the rings |
//! | [`remote`] | a server on another host: messages on a connection that is made again when it breaks |
//! | [`doors`] | there, where workers come in that this one passes values on to, and from where it goes to its own parents |
//! | [`proxy`] | there, what stands at the other end of each ring: a thread, and the shard as it sees it, over any link |

mod barrier;
mod doors;
mod leaving;
mod local;
mod outlet;
mod proxy;
mod remote;
mod slabs;

pub(super) use barrier::{Met, Passed};
pub(super) use doors::{Newcomer, Threshold};
pub(super) use outlet::{Room, Rooms, TELL_CLOCK, Untold, ring};
pub(super) use proxy::RemoteHome;

use super::Error;
use crate::thread::Wakeup;
use crate::wait::{Crowd, Deadline, INTERRUPT_EVERY, OneCore, Patience};
use crate::worker::fate::Fate;
use outlet::{NoRoom, Outlets};
use penstock_fabric::doorbell::{ANYTHING, Bell};
use penstock_fabric::layout::page;
use penstock_fabric::region::Mapping;
use penstock_fabric::socket::{Connection, Received};
use penstock_fabric::sync::Ordering;
use penstock_proto::Rank;
use penstock_proto::error::{JobFailure, Refusal};
use penstock_proto::handshake::Session;
use penstock_proto::message::{
    Answer, Ask, MAX_SERVERS, MAX_SHARDS, Reply, Request, Secret, Welcome, decode, encode,
};
use penstock_proto::request::Requests;
use remote::Records;
use rustix::fd::OwnedFd;
use rustix::net::SendFlags;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waited {
    Done,
    TimedOut,
}

type Answered = (Answer, Vec<OwnedFd>);

/// An answer, or why this process could not take it.
type Heard = Result<Answered, Error>;

/// How messages come and go.
enum Channel {
    /// By a socket of this host.
    Local(Connection),
    /// By the network.
    Remote(Box<Records>),
}

/// Shared by the thread and the callers.
struct Wire {
    channel: Channel,
    page: Arc<Mapping>,
    /// What has no answer so far, and where it goes.
    open: Mutex<Requests<SyncSender<Heard>>>,
    slabs: Mutex<slabs::Slabs>,
    outlets: Arc<Outlets>,
    server: u32,
    /// This worker's.
    rank: Rank,
    /// Whether this worker has heard that it was let go, or has begun to say why it leaves otherwise, whichever was first: the
    /// server may then hang up, and no failure that is heard of afterwards is this worker's.
    left: AtomicBool,
    /// Whether that it was let go is the last that the server said of it, heard in time or too late.
    let_go: AtomicBool,
}

/// How a worker introduces itself.
pub(super) struct Introduction {
    pub(super) job: String,
    pub(super) secret: Secret,
    pub(super) session: Session,
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) threshold: Threshold,
}

pub(super) struct Link {
    pub(super) welcome: Welcome,
    wire: Arc<Wire>,
    waiters: Mutex<u32>,
    /// The request to let this worker go; 0 before it was asked.
    asked: AtomicU64,
    /// The answer to a barrier of which it is not known whether this worker has passed it.
    doubtful: Mutex<Option<Receiver<Heard>>>,
    fate: Arc<Fate>,
    stop: Arc<Wakeup>,
    thread: Option<JoinHandle<()>>,
    /// One a shard, for a server on another host.
    proxies: Vec<proxy::Handle>,
    crowd: Arc<Crowd>,
    one_core: OneCore,
}

impl Link {
    fn bell(&self) -> &Bell {
        self.wire.page.at(page::BELL)
    }

    /// Whether more of the job's threads are awake on this host than it has cores.
    pub(super) fn crowd(&self) -> &Arc<Crowd> {
        &self.crowd
    }

    /// Waits for room for `count` submissions in a shard's ring, at most [`CAPACITY`](penstock_fabric::ring::CAPACITY), and
    /// reserves it, so that they need not wait. A call that tells several shards something tells all of them or none: it first
    /// reserves room at each, in the order of servers and shards, so that no two calls hold what the other wants.
    pub(super) fn room(&self, shard: u32, count: u64, deadline: Deadline) -> Result<Room<'_>, Error> {
        self.room_while(|| self.fate.check(), shard, count, deadline)
    }

    fn room_while(
        &self,
        stands: impl Fn() -> Result<(), Error>,
        shard: u32,
        count: u64,
        deadline: Deadline,
    ) -> Result<Room<'_>, Error> {
        let outlets = &self.wire.outlets;
        loop {
            match outlets.room(shard, count) {
                Ok(room) => return Ok(room),
                Err(NoRoom::Sealed) => {
                    self.fate.check()?;
                    return Err(Error::Closed);
                }
                Err(NoRoom::Full) => {}
            }
            let has_room = || outlets.has_room(shard, count);
            if self.wait_while(&stands, ANYTHING, deadline, has_room)? == Waited::TimedOut {
                let (server, waited) = (self.wire.server, deadline.waited());
                return Err(Error::Unanswered { server, what: "take submissions", waited });
            }
        }
    }

    /// Whether a shard is home of one of this worker's tensors; only then is it told of every clock at once.
    pub(super) fn is_home(&self, shard: u32) -> bool {
        self.wire.outlets.is_home(shard)
    }

    /// From now on it is. Then those that were not told are to be [told](outlet::Untold::tell).
    pub(super) fn make_home(&self, shard: u32) {
        self.wire.outlets.make_home(shard);
    }

    /// Waits until `done`, which only the server can bring about by something that happens to `what`.
    pub(super) fn wait(
        &self,
        what: u32,
        deadline: Deadline,
        done: impl FnMut() -> bool,
    ) -> Result<Waited, Error> {
        self.wait_while(|| self.fate.check(), what, deadline, done)
    }

    /// The same, as long as the job `stands`.
    fn wait_while(
        &self,
        stands: impl Fn() -> Result<(), Error>,
        what: u32,
        deadline: Deadline,
        mut done: impl FnMut() -> bool,
    ) -> Result<Waited, Error> {
        let mut patience = Patience::new(&self.crowd).heeding(&self.one_core);
        while patience.pause() {
            if done() {
                patience.answered();
                return Ok(Waited::Done);
            }
        }
        let waiter = Waiter::new(self, what);
        let mut slept = false;
        loop {
            let rings = waiter.announce();
            if done() {
                return Ok(Waited::Done);
            }
            stands()?;
            // Before a signal handler may fork: the child comes back into this wait, and the rings are its parent's.
            let untold = self.fate.untold.before_sleep(&mut slept);
            self.fate.check_interrupt()?;
            let left = deadline.left();
            if left.is_zero() {
                return Ok(Waited::TimedOut);
            }
            self.bell().sleep(rings, left.min(INTERRUPT_EVERY).min(untold));
        }
    }

    /// Asks the server something and waits for its answer.
    pub(super) fn ask(&self, body: Ask, what: &'static str, deadline: Deadline) -> Result<Answered, Error> {
        self.fate.check()?;
        let asked = self.wire.ask(body)?;
        self.hear_answer(asked, || self.fate.check(), what, deadline)
    }

    /// The same, for what may take long: `look` is asked now and then, and ends the wait by its error.
    pub(super) fn ask_while(
        &self,
        body: Ask,
        what: &'static str,
        deadline: Deadline,
        mut look: impl FnMut() -> Result<(), Error>,
    ) -> Result<Answered, Error> {
        self.fate.check()?;
        let asked = self.wire.ask(body)?;
        self.hear_answer(asked, || self.fate.check().and_then(|()| look()), what, deadline)
    }

    /// Waits for an answer, as long as the job `stands`.
    fn hear_answer(
        &self,
        (id, receiver): (u64, Receiver<Heard>),
        stands: impl FnMut() -> Result<(), Error>,
        what: &'static str,
        deadline: Deadline,
    ) -> Result<Answered, Error> {
        let heard = self.listen(&receiver, stands, || self.fate.check_interrupt(), deadline);
        match heard {
            Ok(Some(answered)) => Ok(answered),
            Ok(None) | Err(_) => {
                self.forget(id);
                heard?;
                Err(Error::Unanswered { server: self.wire.server, what, waited: deadline.waited() })
            }
        }
    }

    /// The same; `None` when the time is up, and nothing is forgotten. `patient` is asked as well, until an answer is there.
    fn listen(
        &self,
        receiver: &Receiver<Heard>,
        mut stands: impl FnMut() -> Result<(), Error>,
        patient: impl Fn() -> Result<(), Error>,
        deadline: Deadline,
    ) -> Result<Option<Answered>, Error> {
        self.fate.untold.tell();
        loop {
            match receiver.recv_timeout(deadline.left().min(INTERRUPT_EVERY)) {
                Ok(Ok((Answer::Refused(refusal), _))) => return Err(refusal.into()),
                Ok(heard) => return heard.map(Some),
                Err(RecvTimeoutError::Disconnected) => {
                    stands()?;
                    return Err(Error::Closed);
                }
                Err(RecvTimeoutError::Timeout) => {
                    stands()?;
                    self.fate.untold.tell();
                    patient()?;
                    if deadline.left().is_zero() {
                        return Ok(None);
                    }
                }
            }
        }
    }

    fn forget(&self, id: u64) {
        lock(&self.wire.open).settle(id);
    }

    /// The answer was not of the kind that was asked for.
    pub(super) fn misunderstood(&self, answer: &Answer) -> Error {
        Error::Protocol {
            server: self.wire.server,
            what: format!("an answer that was not asked for: {answer:?}"),
        }
    }
}

/// One thread that waits on a link. While several do, the server is told that they wait for anything.
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

/// Whether a welcome is one that the server with this number may give.
fn judge(welcome: &Welcome, server: u32) -> Result<(), Error> {
    let numbers = welcome.server == server
        && (1..=MAX_SERVERS).contains(&welcome.servers)
        && (1..=MAX_SHARDS).contains(&welcome.shards)
        && penstock_proto::chunk::is_chunk_size(welcome.chunk_bytes);
    if numbers {
        return Ok(());
    }
    let what =
        "its welcome makes no sense, or the servers are listed in another order than they were started";
    Err(Error::Protocol { server, what: what.to_owned() })
}

fn lost(server: u32, reason: &str) -> JobFailure {
    JobFailure::ServerLost { server, reason: reason.to_owned() }
}

impl Wire {
    /// How long the link's thread may sleep as far as clocks are concerned that shards were not told. One
    /// thread for all links looks.
    fn look_for_untold(&self) -> Duration {
        if self.server == 0 { TELL_CLOCK } else { Duration::MAX }
    }

    /// Sends a request; the answer comes through the receiver.
    fn ask(&self, body: Ask) -> Result<(u64, Receiver<Heard>), Error> {
        let (answer, receiver) = sync_channel(1);
        let protocol = |error: penstock_proto::message::MessageError| Error::Protocol {
            server: self.server,
            what: error.to_string(),
        };
        let (id, bytes) = lock(&self.open).ask(body, answer).map_err(protocol)?;
        match &self.channel {
            Channel::Local(connection) => match connection.send(&bytes, &[], SendFlags::empty()) {
                // The server has hung up. The link's thread hears why in a moment, and then no answer comes.
                Ok(()) | Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => {}
                Err(errno) => {
                    lock(&self.open).settle(id);
                    return Err(Error::system("send to a server")(errno));
                }
            },
            Channel::Remote(records) => records.send(&bytes),
        }
        Ok((id, receiver))
    }

    /// Takes one message of the server; `false` when there will be no more.
    fn hear(&self, fate: &Fate, message: &[u8], came: Received) -> bool {
        match decode::<Reply>(message).map(|Reply { id, body }| Reply { id, body: body.brief() }) {
            Ok(Reply { body: Answer::Failed(failure), .. }) => {
                self.let_go.store(false, Ordering::Release);
                if !self.left.load(Ordering::Acquire) {
                    fate.fail(failure);
                }
                self.confirm();
                false
            }
            Ok(Reply { id: remote::HELLO, body: Answer::Refused(refusal) }) => self.shut_out(fate, refusal),
            Ok(Reply { id, body }) => {
                let Received { mut descriptors, cut } = came;
                if let Answer::Declared { slabs: Some(spots), .. } = &body {
                    lock(&self.slabs).keep(spots, std::mem::take(&mut descriptors));
                }
                if body == Answer::Alive
                    && let Channel::Remote(records) = &self.channel
                {
                    records.count_answer();
                }
                let (last, mut late) = (body == Answer::Left, false);
                if last {
                    self.let_go.store(true, Ordering::Release);
                    // Before any thread looks at what follows: the server may hang up at once.
                    late = self.left.swap(true, Ordering::AcqRel);
                    if !late {
                        self.confirm();
                    }
                }
                let Some(answer) = lock(&self.open).settle(id) else { return !last || late };
                if late {
                    // Only the last word is confirmed: one that came too late to be waited for may be followed by another.
                    self.confirm();
                }
                let heard = if cut { Err(local::no_room()) } else { Ok((body, descriptors)) };
                let _ = answer.try_send(heard);
                // To the last word nothing else is answered, and who came again when the server hangs up would ask for it anew.
                !last
            }
            Err(error) => self.gone(fate, &format!("it sent something that is not a message: {error}")),
        }
    }

    /// Tells a server on another host that its last word has come, so that it need not wait for this worker to return.
    fn confirm(&self) {
        if let Channel::Remote(records) = &self.channel
            && let Ok(bytes) =
                encode(&Request { id: remote::HEARD, settled: 0, open: Vec::new(), body: Ask::Heard })
        {
            records.send(&bytes);
        }
    }

    /// The server no longer lets this worker in: the job has failed, or it takes the worker for another.
    fn shut_out(&self, fate: &Fate, refusal: Refusal) -> bool {
        match refusal {
            Refusal::Ended(failure) if !self.left.load(Ordering::Acquire) => {
                fate.fail(failure);
                false
            }
            refusal => self.gone(fate, &format!("it lets this worker in no more: {refusal}")),
        }
    }

    /// The server is lost, unless this worker has left it.
    fn gone(&self, fate: &Fate, reason: &str) -> bool {
        if !self.left.load(Ordering::Acquire) {
            fate.fail(lost(self.server, reason));
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_fabric::layout::flags;
    use penstock_fabric::region::{Region, Writers};

    fn wire() -> Wire {
        let region = |bytes| Region::new("penstock-test", bytes, Writers::Holders).unwrap();
        let (page, flags) = (region(page::bytes(1)), region(flags::BYTES));
        let page = Arc::clone(page.mapping());
        let wakeups = vec![crate::thread::bell().unwrap()];
        Wire {
            channel: Channel::Local(Connection::pair().unwrap().0),
            outlets: Arc::new(Outlets::new(Arc::clone(&page), Arc::clone(flags.mapping()), wakeups)),
            page,
            open: Mutex::default(),
            slabs: Mutex::default(),
            server: 0,
            rank: 0,
            left: AtomicBool::new(false),
            let_go: AtomicBool::new(false),
        }
    }

    // It went on listening: when the server hung up, which waited for no one any more, it came again, and was waited for anew.
    #[test]
    fn who_has_heard_that_it_was_let_go_listens_no_longer() {
        let hears = |left: bool, asked: u64, answered: u64| {
            let (wire, (answer, receiver)) = (wire(), sync_channel(1));
            wire.left.store(left, Ordering::Relaxed);
            let (id, _) = lock(&wire.open).ask(Ask::Clocks, answer).unwrap();
            assert_eq!(id, asked);
            let left = encode(&Reply { id: answered, body: Answer::Left }).unwrap();
            let listens = wire.hear(&Fate::default(), &left, Received::default());
            (listens, receiver.try_recv().is_ok())
        };
        assert_eq!(hears(false, 1, 1), (false, true));
        assert_eq!(hears(false, 1, 2), (false, false), "who asked has given up waiting for it");
        assert_eq!(hears(true, 1, 1), (false, true), "it has said that it fails, and this answers that");
        assert_eq!(hears(true, 1, 2), (true, false), "what it said after that is still to be answered");
    }
}
