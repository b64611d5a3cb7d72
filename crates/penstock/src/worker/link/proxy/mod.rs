//! Proxies: on a worker's side, one thread for each shard of a server on another host.
//!
//! A proxy stands in for the shard: it pops the same submissions from the same ring, keeps a mirror of the chunks that the
//! shard is home of, publishes in it, counts and rings as a shard would. So everything above it is the same with and without a
//! network. Here is its thread, which connects, waits and is told what to do; what it says to the shard and makes of what it
//! hears, over any link, is in [`remote_shard`](penstock_fabric::net::remote_shard).

mod allowance;
mod bypass;
mod lending;
mod mirrored;
#[cfg(test)]
mod rig;
#[cfg(test)]
mod updates;

use crate::thread::{self, Inbox};
use crate::user_directory::UserDirectory;
use crate::wait::{Crowd, Patience, poll};
use crate::wire::dial::Dialer;
use crate::wire::redial::{Caller, Failed, Redial};
use crate::wire::vigil::{Vigil, look_every};
use crate::worker::fate::Fate;
use crate::worker::link::doors::{Doors, Request};
use crate::worker::link::lock;
use lending::{Attempt, Borrower, Lender};
use mirrored::Mirrored;
use penstock_fabric::doorbell::Sleeping;
use penstock_fabric::inlet::Inlet;
use penstock_fabric::layout::flags;
use penstock_fabric::memory::{HomeMemory, LaneView, StateMirror};
use penstock_fabric::net::link::Link as _;
use penstock_fabric::net::remote_shard::{
    Left, Limits, Looked, NewChild, Over, RemoteShard, Unreached, Wish,
};
use penstock_fabric::net::stream::Stream;
use penstock_fabric::region::Mapping;
use penstock_fabric::sync::Ordering;
use penstock_proto::error::{JobFailure, Loss};
use penstock_proto::handshake::Purpose;
use penstock_proto::job::job_number;
use penstock_proto::overlay::lending::Rendezvous;
use penstock_proto::overlay::{Parent, Pass, Stripes};
use penstock_proto::pressure::Flow;
use penstock_proto::seal::Verifier;
use penstock_proto::travel::Terms;
use penstock_proto::uplink::To;
use penstock_proto::{Rank, TensorId};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::OwnedFd;
use smallvec::{SmallVec, smallvec};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Links to poll, of most proxies at most.
const USUAL_LINKS: usize = 8;
/// Frames taken between two looks at the ring.
const FRAMES: usize = 32;
/// Time from one look whether something is late to the next.
const TICKS_APART: Duration = Duration::from_millis(20);
/// Time from one question to the connection, what it has carried, to the next.
const FLOWS_APART: Duration = Duration::from_millis(10);

pub(in crate::worker) use allowance::{Allowance, For};
pub(in crate::worker::link) use lending::Credentials;
pub(in crate::worker) use mirrored::{Lendable, Own};

/// What a tensor and the proxy of one of its homes tell each other.
#[derive(Debug, Default)]
pub(in crate::worker) struct RemoteHome {
    /// The last ticket that was given out. Tickets are drawn where they are submitted, in that order.
    pub(in crate::worker) ticket: AtomicU64,
    /// The last ticket that came back.
    pub(in crate::worker) fetched: AtomicU64,
    /// The ticket with which all that there was of the value was last fetched, after a barrier or a load.
    pub(in crate::worker) renewed: AtomicU64,
    /// Whether the result of the push that is under way is wanted as soon as it is there.
    pub(in crate::worker) wants: AtomicBool,
    /// The version + 1 that pushes have asked for.
    pub(in crate::worker) wanted: AtomicU64,
    /// Whether all of the value was pulled since the last push.
    pub(in crate::worker) pulled: AtomicBool,
    /// Whether it is not known how the value will be pulled: nothing was pulled or pushed so far.
    pub(in crate::worker) is_fresh: AtomicBool,
    /// The chunks that the shard is home of, ascending.
    pub(in crate::worker) chunks: Box<[u32]>,
    /// Whether the home sends what is new unasked: it broadcasts, and was asked for the value.
    pub(in crate::worker) is_sent: AtomicBool,
    /// Whether the lane's address was given to somebody who may write there at any time.
    pub(in crate::worker) is_lane_exposed: AtomicBool,
    /// Whether the value is read in another worker's memory.
    pub(in crate::worker) borrows: AtomicBool,
}

impl RemoteHome {
    /// Whether what was asked for with this ticket or before has come.
    pub(in crate::worker) fn has_come(&self, ticket: u64) -> bool {
        // Pairs with the release in the proxy: a thread that sees the ticket sees the chunks.
        self.fetched.load(Ordering::Acquire) >= ticket
    }
}

/// What a proxy is told by its own process.
pub(super) enum Command {
    /// A tensor, as far as the shard is home of it.
    Declare {
        id: TensorId,
        home: Box<HomeMemory>,
        lane: LaneView,
        remote: Arc<RemoteHome>,
        /// How its chunks travel.
        terms: Arc<Terms>,
        /// What it takes to lend it, or to borrow another's.
        lendable: Option<Lendable>,
    },
    /// Where its state goes.
    State {
        id: TensorId,
        state: StateMirror,
    },
    /// Another worker has come in at the [entrance](Handle::entrance), to be fed these stripes.
    Child {
        rank: Rank,
        stripes: Stripes,
        /// Where it would be lent to, if it is of this host.
        rendezvous: Option<Rendezvous>,
    },
    /// A connection to a parent that this proxy has asked for, or why there is none.
    Parent {
        epoch: u32,
        rank: Rank,
        stripes: Stripes,
        stream: Result<Stream, Unreached>,
    },
    /// Behind what is submitted comes a goodbye, and there is so long for it.
    Leave {
        within: Duration,
    },
    /// Say so when everything that was submitted was taken.
    Drain {
        done: Sender<()>,
    },
    Stop,
}

/// How far the shard has taken what it was sent: frames. And what the connection says of itself.
#[derive(Debug, Default)]
struct Progress {
    taken: AtomicU64,
    submitted: AtomicU64,
    flow: Mutex<Option<Flow>>,
}

/// Where those come in that a proxy is to feed: it sees them also while it has no time for anything else.
pub(super) type Entrance = Sender<NewChild<Stream>>;

/// The link's end of a proxy.
pub(super) struct Handle {
    thread: thread::Handle<Command>,
    entrance: Entrance,
    progress: Arc<Progress>,
    /// Whether what it mirrors may be lent.
    pub(super) lends: bool,
}

impl thread::Command for Command {
    const STOP: Self = Self::Stop;
}

impl Handle {
    /// Sends a command, and wakes the proxy unless it may wait: what is declared is first named by a submission, and the proxy
    /// takes its commands before it looks at one. So declaring many tensors does not wake the proxy once for each.
    pub(super) fn send(&self, command: Command) {
        match command {
            Command::Declare { .. } => self.thread.leave(command),
            command => self.thread.send(command),
        }
    }

    /// For others that tell the proxy something.
    pub(super) fn teller(&self) -> thread::Teller<Command> {
        self.thread.teller()
    }

    /// For whoever lets others in, and then [says so](Command::Child).
    pub(super) fn entrance(&self) -> Entrance {
        self.entrance.clone()
    }

    /// How many frames the shard has taken, of how many; there may be more in the ring that are not counted so far.
    pub(super) fn progress(&self) -> (u64, u64) {
        let Progress { taken, submitted, .. } = &*self.progress;
        // The smaller one first: it cannot have grown past the other then.
        let taken = taken.load(Ordering::Relaxed);
        (taken, submitted.load(Ordering::Relaxed).max(taken))
    }

    /// What its connection has carried, and how fast, as of some milliseconds ago.
    pub(super) fn flow(&self) -> Option<Flow> {
        *lock(&self.progress.flow)
    }
}

/// What a proxy is started with.
pub(super) struct Setup {
    pub(super) server: u32,
    /// This worker's.
    pub(super) rank: Rank,
    /// Workers of the job.
    pub(super) size: u32,
    pub(super) shard: u32,
    pub(super) purpose: Purpose,
    pub(super) crowd: Arc<Crowd>,
    pub(super) lease: Duration,
    pub(super) dialer: Arc<Dialer>,
    pub(super) page: Arc<Mapping>,
    pub(super) flags: Arc<Mapping>,
    pub(super) fate: Arc<Fate>,
    /// Who dials parents for it, and lets its children in; `None` where each server sends to each worker itself.
    pub(super) doors: Option<Arc<Doors>>,
    /// By what the shard's values are known that others pass on; `None`: its server's key is none.
    pub(super) verifier: Option<Verifier>,
    /// By what it knows its children, and is known by its parents.
    pub(super) credentials: Credentials,
    /// Where workers of one host meet that share a copy of what trees bring; `None`: they share none.
    pub(super) meets: Option<UserDirectory>,
}

impl Setup {
    /// Its own worker cannot go on, which is why the job fails.
    fn fail_self(&self, what: String) {
        self.fate.fail(JobFailure::WorkerLost { rank: self.rank, loss: Loss::Failed { what } });
    }
}

/// Starts a proxy; the descriptor is what it is woken with.
pub(super) fn start(setup: Setup) -> std::io::Result<(Handle, OwnedFd)> {
    let (mut thread, inbox) = thread::commanded()?;
    let rung = thread.bell()?;
    let name = format!("penstock-proxy-{}.{}", setup.server, setup.shard);
    let mut proxy = new(setup, inbox);
    let (entrance, newcomers) = channel();
    proxy.remote.open_to(newcomers);
    let progress = Arc::clone(&proxy.progress);
    let lends = proxy.setup.meets.is_some() && proxy.setup.doors.is_some() && proxy.setup.verifier.is_some();
    thread.start(name, move || proxy.run())?;
    Ok((Handle { thread, entrance, progress, lends }, rung))
}

fn new(setup: Setup, inbox: Inbox<Command>) -> Proxy {
    let inlet = Inlet::new(Arc::clone(&setup.page), setup.shard);
    let mut remote = RemoteShard::new(job_number(setup.dialer.job()), inlet, Limits::USUAL);
    remote.of_workers(setup.size);
    remote.count_in(setup.dialer.traffic());
    if let (Some(_), Some(verifier)) = (&setup.doors, &setup.verifier) {
        remote.trust(verifier.clone());
    }
    remote.count_time(Arc::clone(setup.dialer.traffic().spent()));
    Proxy {
        remote,
        orders: Orders {
            shard: setup.shard,
            server: setup.server,
            credentials: setup.credentials,
            inbox,
            drains: Vec::new(),
            wished: Vec::new(),
            doors: setup.doors.clone(),
            declared: 0,
            lender: Lender::default(),
            meets: setup.meets.clone(),
            fed: BTreeMap::new(),
            running: true,
        },
        borrower: None,
        borrow_at: None,
        loans_ready: false,
        next_loans: Instant::now(),
        redial: Redial::new(Arc::clone(&setup.dialer), setup.purpose),
        vigil: Vigil::new(setup.lease),
        progress: Arc::default(),
        next_flow: Instant::now(),
        next_vigil: Instant::now(),
        since: Instant::now(),
        next_tick: Instant::now(),
        routed: None,
        place: Vec::new(),
        setup,
    }
}

struct Proxy {
    setup: Setup,
    orders: Orders,
    remote: RemoteShard<Mirrored>,
    redial: Redial,
    vigil: Vigil,
    progress: Arc<Progress>,
    /// When the connection is next asked what it has carried; when it is next seen to that both ends live.
    next_flow: Instant,
    next_vigil: Instant,
    /// When the thread began; when it next looks whether something is late that others pass on.
    since: Instant,
    next_tick: Instant,
    /// The route of which it was last looked who feeds it, and who does.
    routed: Option<u32>,
    place: Vec<Option<Rank>>,
    /// What a parent of this host lends to it; when it is next looked whether what it has offered is new enough.
    borrower: Option<Borrower>,
    borrow_at: Option<Instant>,
    /// Whether something may be said of loans; when it is next looked, whatever is known.
    loans_ready: bool,
    next_loans: Instant,
}

/// What a proxy is told, and what it has been told so far.
struct Orders {
    /// The shard, among those of its server.
    shard: u32,
    server: u32,
    credentials: Credentials,
    inbox: Inbox<Command>,
    /// Tensors that were declared, those that they are lent to, and where these are met.
    declared: usize,
    lender: Lender,
    meets: Option<UserDirectory>,
    /// Who is to be told that everything was taken.
    drains: Vec<Sender<()>>,
    /// Parents that the doors were asked to dial.
    wished: Vec<Wish>,
    /// Where what they lead to is measured.
    doors: Option<Arc<Doors>>,
    /// Children that have come, and for which stripes: each was said once.
    fed: BTreeMap<Rank, Stripes>,
    running: bool,
}

impl Orders {
    fn take(&mut self, remote: &mut RemoteShard<Mirrored>) -> bool {
        if !self.inbox.open() {
            return false;
        }
        while let Some(command) = self.inbox.next() {
            match command {
                Command::Declare { id, home, lane, remote: told, terms, lendable } => {
                    self.declared += 1;
                    let mirrored = Mirrored::new(self.shard, *home, lane, told, terms);
                    remote.declare(id, mirrored.lending(lendable));
                }
                Command::State { id, state } => {
                    if let Some(mirrored) = remote.tensor_mut(id) {
                        mirrored.state = Some(state);
                    }
                }
                Command::Child { rank, stripes, rendezvous } => {
                    let (shard, stripes_fed) = (self.shard, numbers(stripes));
                    // One that comes again and again is no news.
                    if self.fed.insert(rank, stripes) == Some(stripes) {
                        tracing::debug!(
                            shard,
                            child = rank,
                            stripes = stripes_fed,
                            "this worker feeds another again"
                        );
                    } else {
                        tracing::info!(
                            shard,
                            child = rank,
                            stripes = stripes_fed,
                            "this worker feeds another"
                        );
                    }
                    remote.let_in();
                    if let (Some(rendezvous), Some(meets)) = (rendezvous, &self.meets) {
                        let Credentials { secret, session } = &self.credentials;
                        let pass = Pass::new(session, self.server, rank).secret(secret);
                        self.lender.attempt(meets, Attempt::new(rank, rendezvous, pass), Instant::now());
                    }
                }
                Command::Parent { epoch, rank, stripes, stream } => {
                    let asked =
                        |wish: &Wish| (wish.epoch, wish.parent.rank, wish.stripes) == (epoch, rank, stripes);
                    if let Some(at) = self.wished.iter().position(asked) {
                        if let (Some(doors), Ok(stream)) = (&self.doors, &stream) {
                            doors.uplink().watch(stream, To::Other);
                        }
                        remote.parent_came(&self.wished.swap_remove(at), stream);
                    }
                }
                Command::Leave { within } => remote.leave_within(within),
                Command::Drain { done } => self.drains.push(done),
                Command::Stop => self.running = false,
            }
        }
        true
    }
}

/// Stripes as they are named in the log: from 1 on.
fn numbers(stripes: Stripes) -> String {
    stripes.iter().map(|stripe| (stripe + 1).to_string()).collect::<Vec<_>>().join(" ")
}

/// A proxy that has no connection.
struct Connecting<'a> {
    inbox: &'a Inbox<Command>,
    fate: &'a Fate,
}

impl Caller for Connecting<'_> {
    fn is_over(&self) -> bool {
        self.inbox.is_open() || self.fate.is_over()
    }

    fn sleep(&self, longest: Duration) {
        self.inbox.wakeup().sleep(longest);
        self.inbox.wakeup().clear();
    }
}

impl Proxy {
    fn run(mut self) {
        let crowd = Arc::clone(&self.setup.crowd);
        let mut patience = Patience::at_sockets(&crowd);
        while self.orders.running {
            if self.remote.link().is_none() {
                self.connect();
                continue;
            }
            if self.look() {
                patience = Patience::at_sockets(&crowd);
            } else if !patience.pause() {
                self.sleep();
                patience = Patience::at_sockets(&crowd);
            }
        }
        // What views show from now on is this process's own.
        self.remote.take_back();
        // Views show what may change at any time, or be gone: whoever holds one is told.
        if let Some(what) = self.remote.take_failed() {
            let (server, shard) = (self.setup.server, self.setup.shard);
            tracing::error!(server, shard, what, "views show another worker's memory from now on");
            self.setup.fail_self(what);
        }
    }

    fn fail(&mut self, reason: String) {
        let (server, rank) = (self.setup.server, self.setup.rank);
        self.setup.fate.fail(self.vigil.verdict(server, rank, reason));
        self.orders.running = false;
    }

    // Connecting

    /// Connects, unless something else is to be done first.
    fn connect(&mut self) {
        self.orders.take(&mut self.remote);
        if !self.orders.running {
            return;
        }
        let caller = Connecting { inbox: &self.orders.inbox, fate: &self.setup.fate };
        match self.redial.connect(&mut self.vigil, self.remote.sign(), &caller) {
            Ok(stream) => {
                if let Some(doors) = &self.setup.doors {
                    doors.uplink().watch(&stream, To::Other);
                }
                self.remote.attach(stream);
            }
            // Whether the job has ended there, the link's own thread hears with the reason.
            Err(Failed::GivenUp | Failed::Refused(_) | Failed::Untrusted(_)) => {}
            Err(Failed::Gone(reason)) => {
                let (shard, epitaph) = (self.setup.shard, self.vigil.epitaph());
                let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
                self.fail(format!("its shard {shard} {epitaph}{reason}"));
            }
        }
        if self.setup.fate.is_over() {
            self.orders.running = false;
        }
    }

    /// Gives up a connection on which the shard is silent, and a shard that is silent altogether; shows it that this end lives. By the
    /// clock: whoever has the proxy look again and again keeps it from sleeping, and from nothing else.
    fn keep_vigil(&mut self) {
        let now = Instant::now();
        if self.remote.link().is_none() || now < self.next_vigil {
            return;
        }
        self.next_vigil = now + look_every(self.setup.lease) / 2;
        if self.vigil.is_time_to_beat() {
            self.remote.beat();
        }
        let sign = self.remote.sign();
        if self.vigil.is_gone(sign) {
            let (shard, epitaph) = (self.setup.shard, self.vigil.epitaph());
            self.fail(format!("its shard {shard} {epitaph}"));
        } else if self.vigil.is_silent(sign) {
            self.remote.detach();
            self.lost("it is silent");
        }
    }

    /// The connection has ended.
    fn lost(&mut self, why: &str) {
        tracing::info!(server = self.setup.server, shard = self.setup.shard, why, "a connection has ended");
        self.redial.ended(self.remote.is_resumed(), why);
    }

    // Looking

    fn look(&mut self) -> bool {
        let mut busy = self.orders.take(&mut self.remote);
        self.poll_link();
        let Self { remote, orders, .. } = self;
        let Looked { busy: looked, over } = remote.look(FRAMES, |remote| _ = orders.take(remote));
        match over {
            None => {}
            Some(Over::Ended(why)) => self.lost(&why),
            Some(Over::Broke(what)) => self.fail(format!("it broke the protocol: {what}")),
        }
        busy |= looked;
        busy |= self.see_to_loans(busy);
        self.see_to_others();
        self.keep_vigil();
        if busy {
            let (taken, submitted) = self.remote.progress();
            self.progress.submitted.store(submitted, Ordering::Relaxed);
            self.progress.taken.store(taken, Ordering::Relaxed);
            self.note_flow();
        }
        if !self.orders.drains.is_empty() && self.remote.is_delivered() {
            self.orders.drains.drain(..).for_each(|done| _ = done.send(()));
        }
        busy
    }

    /// Has parents dialed that the shard has named, and leaves those that are late.
    fn see_to_others(&mut self) {
        let Some(doors) = &self.setup.doors else { return };
        let now = Instant::now();
        doors.uplink().look(now);
        self.note_place();
        if now >= self.next_tick && (self.remote.awaits() || self.remote.lender().is_some()) {
            self.next_tick = now + TICKS_APART;
            self.remote.tick(now - self.since);
        }
        for Left { parent, what } in self.remote.take_left() {
            let (server, shard) = (self.setup.server, self.setup.shard);
            tracing::warn!(server, shard, parent, what, "a worker feeds this one no more");
        }
        let parents = self.remote.parents_named();
        for wish in self.remote.take_wishes() {
            let rendezvous = self.expect_lender(&wish);
            let Some(doors) = &self.setup.doors else { return };
            let Wish { epoch, striping, ref parent, stripes } = wish;
            doors.dial(Request {
                server: self.setup.server,
                shard: self.setup.shard,
                epoch,
                rank: parent.rank,
                address: parent.address,
                pass: parent.pass,
                striping,
                stripes,
                child: self.setup.rank,
                rendezvous,
                parents,
            });
            self.orders.wished.retain(|before| before.stripes.and(stripes).is_empty());
            self.orders.wished.push(wish);
        }
    }

    /// Says by whom values come, if that is new.
    fn note_place(&mut self) {
        let Some(route) = self.remote.way().filter(|route| self.routed != Some(route.epoch)) else { return };
        let by = |parent: &Parent| parent.rank;
        let place: Vec<_> = route.feeds.iter().map(|feed| feed.parent.as_ref().map(by)).collect();
        self.routed = Some(route.epoch);
        if place == self.place {
            return;
        }
        self.place = place;
        let (server, shard, stripes) = (self.setup.server, self.setup.shard, self.place.len());
        let by: BTreeSet<Option<Rank>> = self.place.iter().copied().collect();
        let of = |rank: Option<Rank>| {
            let all = self.place.iter().enumerate().filter(|(_, by)| **by == rank);
            let who = rank.map_or_else(|| "the server".to_owned(), |rank| format!("worker {rank}"));
            format!("{who}: {}", numbers(all.map(|(stripe, _)| stripe).collect()))
        };
        let parents = by.into_iter().map(of).collect::<Vec<_>>().join("; ");
        tracing::info!(server, shard, stripes, parents, "who feeds this worker which stripes");
    }

    /// Where a parent that is wished for is to lend, if it is of this host and feeds everything.
    fn expect_lender(&mut self, wish: &Wish) -> Option<Rendezvous> {
        // Nobody else lends now, whoever this one is.
        self.decline();
        let (doors, meets) = (self.setup.doors.as_ref()?, self.setup.meets.as_ref()?);
        let [here, there] = [doors.address(), wish.parent.address].map(|at| at.ip().to_canonical());
        // Behind loopback each worker stands for a host, as in the plan: those in between feed others.
        let is_here = here == there && !here.is_loopback();
        if !is_here || wish.stripes != self.remote.stripes() {
            return None;
        }
        match Borrower::open(meets, wish.parent.rank, &wish.parent.pass, &self.setup.credentials.secret) {
            Ok(borrower) => Some(self.borrower.insert(borrower).rendezvous()),
            Err(error) => {
                let lender = wish.parent.rank;
                lending::not_shared(None, Some(lender), &error);
                None
            }
        }
    }

    /// What was offered is of no use any more.
    fn decline(&mut self) {
        if let Some(mut borrower) = self.borrower.take() {
            borrower.close(&mut self.remote);
        }
    }

    /// Gives up what a parent has offered that neither feeds this worker nor is on its way: its memory stays as long as it is kept.
    fn decline_useless(&mut self) {
        let Some(lender) = self.borrower.as_ref().map(Borrower::lender) else { return };
        let is_wished = self.orders.wished.iter().any(|wish| wish.parent.rank == lender);
        if !is_wished && !self.remote.feeders().any(|(rank, _)| rank == lender) {
            self.decline();
        }
    }

    /// Lends and borrows; whether anything was done.
    fn see_to_loans(&mut self, was_busy: bool) -> bool {
        self.decline_useless();
        let Self { remote, orders, borrower, borrow_at, .. } = self;
        let now = Instant::now();
        // A look at each socket costs a system call. One that says something is seen when nothing else is to be done, or soon.
        let looks = std::mem::take(&mut self.loans_ready) || self.next_loans <= now;
        let mut busy = false;
        if looks {
            self.next_loans = now + TICKS_APART;
            if let Some(meets) = &orders.meets {
                busy |= orders.lender.look(meets, remote, orders.declared, now);
            }
        }
        if let Some(what) = remote.take_failed() {
            self.setup.fail_self(what);
            self.orders.running = false;
            return true;
        }
        let returned = remote.take_returned();
        if !returned.is_empty() && !borrower.as_mut().is_some_and(|it| it.say_returned(&returned)) {
            remote.leave_lender();
        }
        let Some(borrower) = borrower else { return busy };
        let came = looks && borrower.look(remote, now);
        busy |= came;
        if borrower.offered.is_empty() {
            *borrow_at = None;
            return busy;
        }
        if came || was_busy {
            borrow_at.get_or_insert(if came { now } else { now + TICKS_APART });
        }
        if borrow_at.is_some_and(|at| at <= now) {
            *borrow_at = None;
            let borrows = borrower.borrow(remote);
            // Where it failed halfway nobody reads any more: that is said at the next look, which is now.
            busy |= borrows || remote.has_failed();
            if borrows {
                // What was mirrored here is given up.
                orders.lender.give_up();
                let (server, shard, lender) = (self.setup.server, self.setup.shard, borrower.lender());
                tracing::info!(server, shard, lender, "a worker of this host lends its copy of the values");
            }
        }
        busy
    }

    /// Asks the connection what it has carried, if that was not done just now: a system call.
    fn note_flow(&mut self) {
        let now = Instant::now();
        if now >= self.next_flow
            && let Some(link) = self.remote.link()
        {
            self.next_flow = now + FLOWS_APART;
            *lock(&self.progress.flow) = link.flow();
        }
    }

    fn has_work(&self) -> bool {
        self.orders.inbox.is_open() || self.remote.has_work()
    }

    /// Finds out whether the socket is ready, without waiting. Whether it can be read is seen by reading, which costs no more
    /// than a question and spares the read that follows one; a write that the socket takes little of would be worse than none.
    fn poll_link(&mut self) {
        self.remote.ready(true, false);
        self.remote.links_ready();
        if !self.remote.is_writable() {
            self.poll(Duration::ZERO);
        }
    }

    fn poll(&mut self, longest: Duration) {
        let (Some(link), Some(interest)) = (self.remote.link(), self.remote.interest()) else { return };
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, interest.read);
        flags.set(PollFlags::OUT, interest.write);
        let mut fds: SmallVec<[PollFd<'_>; USUAL_LINKS]> =
            smallvec![PollFd::new(link, flags), PollFd::new(self.orders.inbox.wakeup(), PollFlags::IN)];
        for (link, interest) in self.remote.links() {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, interest.read);
            flags.set(PollFlags::OUT, interest.write);
            fds.push(PollFd::new(link, flags));
        }
        let loans_at = fds.len();
        for (fd, flags) in lending::fds(self.borrower.as_ref(), &self.orders.lender) {
            fds.push(PollFd::from_borrowed_fd(fd, flags));
        }
        let is_pressing =
            self.borrower.as_ref().is_some_and(Borrower::is_pressing) || self.orders.lender.is_pressing();
        let longest = if self.remote.awaits() || is_pressing { longest.min(TICKS_APART) } else { longest };
        let longest = self.remote.looks_at_loans_within().map_or(longest, |within| longest.min(within));
        let longest = match self.borrow_at {
            Some(at) => longest.min(at.saturating_duration_since(Instant::now())),
            None => longest,
        };
        let _ = poll(&mut fds, Some(longest));
        let (socket, woken) = (fds[0].revents(), fds[1].revents());
        let others = fds[2..loans_at].iter().any(|fd| !fd.revents().is_empty());
        let loans = fds[loans_at..].iter().any(|fd| !fd.revents().is_empty());
        drop(fds);
        self.loans_ready |= loans;
        if others {
            self.remote.links_ready();
        }
        if !woken.is_empty() {
            self.orders.inbox.wakeup().clear();
        }
        // Errors and hang-ups are found out by reading.
        let read = socket.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR);
        self.remote.ready(read, socket.contains(PollFlags::OUT));
    }

    fn sleep(&mut self) {
        let sleeping: &Sleeping = self.setup.flags.at(flags::sleeping(self.setup.shard));
        sleeping.announce();
        if !self.has_work() {
            self.poll(look_every(self.setup.lease));
        } else {
            self.orders.inbox.wakeup().clear();
        }
        self.setup.flags.at::<Sleeping>(flags::sleeping(self.setup.shard)).awake();
    }
}

#[cfg(test)]
mod tests {
    use super::rig::{self, Seen, W, good, good_behind, only_good};
    use super::*;
    use crate::options::Options;
    use crate::wire::Ended;
    use crate::wire::dial::PLAIN;
    use crate::wire::records::RecordStream;
    use crate::wire::travel::members::CHANGES;
    use penstock_fabric::layout::page;
    use penstock_fabric::net::stream::Stream;
    use penstock_fabric::region::Mapping;
    use penstock_proto::encoding::Agreed;
    use penstock_proto::frame::{Body, HEADER_BYTES, Header, Notice};
    use penstock_proto::handshake::{MAX_HANDSHAKE_BYTES, PLAIN_BINDING, ServerHandshake, Verdict, verdict};
    use penstock_proto::message::Secret;
    use penstock_proto::peer::PeerId;
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc::channel;

    const SECRET: Secret = Secret([3; 32]);
    const LONG: Duration = Duration::from_secs(20);

    /// A worker's proxy, and the server that it dials.
    struct Far {
        listener: TcpListener,
        fate: Arc<Fate>,
        seen: Seen,
        proxy: Handle,
    }

    fn setup(listener: &TcpListener, fate: &Arc<Fate>, lease: Duration) -> Setup {
        let address = format!("127.0.0.1:{}", listener.local_addr().unwrap().port()).parse().unwrap();
        let dialer = Dialer::new(address, rig::JOB, SECRET, &Options::load([]).unwrap()).unwrap();
        Setup {
            server: 4,
            rank: 0,
            size: 1,
            shard: 0,
            purpose: Purpose::Shard { peer: PeerId::worker(0), session: [0; 16], shard: 0 },
            crowd: Arc::new(Crowd::Taken(true)),
            lease,
            dialer: Arc::new(dialer),
            page: Mapping::private(page::bytes(1)).unwrap(),
            flags: Mapping::private(flags::BYTES).unwrap(),
            fate: Arc::clone(fate),
            doors: None,
            verifier: None,
            credentials: Credentials { secret: SECRET, session: [0; 16] },
            meets: None,
        }
    }

    /// And the connection on which it is at work.
    fn far() -> (Far, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fate = Arc::<Fate>::default();
        let (proxy, _) = start(setup(&listener, &fate, Duration::from_secs(60))).unwrap();
        let (Mirrored { home, lane, remote, terms, .. }, seen) = rig::tensor(Agreed::RAW);
        let home = Box::new(home);
        let (done, works) = channel();
        proxy.send(Command::Declare { id: W, home, lane, remote, terms, lendable: None });
        proxy.send(Command::Drain { done });
        let far = Far { listener, fate, seen, proxy };
        loop {
            // A proxy that is told something while it connects begins again.
            let socket = far.accept();
            while socket.as_ref().is_ok_and(|socket| socket.peek(&mut [0]).is_err()) {
                if works.try_recv().is_ok() {
                    let socket = socket.unwrap();
                    socket.set_nonblocking(false).unwrap();
                    return (far, socket);
                }
            }
        }
    }

    impl Far {
        /// Takes the proxy's connection, as a server of the job.
        fn accept(&self) -> Result<TcpStream, Ended> {
            let (socket, _) = self.listener.accept()?;
            shake_hands(&socket).map(|()| socket)
        }
    }

    fn shake_hands(mut socket: &TcpStream) -> Result<(), Ended> {
        socket.set_read_timeout(Some(LONG))?;
        let mut first = [0];
        socket.read_exact(&mut first)?;
        assert_eq!(first, [PLAIN]);
        let stream = Stream::plain(socket.try_clone()?, LONG)?;
        let mut records = RecordStream::new(stream, MAX_HANDSHAKE_BYTES);
        let hear = |records: &mut RecordStream| loop {
            match records.receive()? {
                Some(message) => break Ok::<_, Ended>(message),
                None => std::thread::yield_now(),
            }
        };
        let mut handshake = ServerHandshake::start(&hear(&mut records)?).unwrap();
        records.send(&handshake.challenge(SECRET, [2; 32], PLAIN_BINDING))?;
        handshake.finish(&hear(&mut records)?).unwrap();
        records.send(&verdict(&Verdict::Accepted))
    }

    /// Says this at once, and waits until the proxy has hung up.
    fn say(mut socket: TcpStream, frames: &[Vec<u8>]) {
        socket.write_all(&frames.concat()).unwrap();
        if let Err(error) = socket.read_to_end(&mut Vec::new()) {
            // What was not read makes a reset of the end.
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        }
    }

    fn until(mut has_come: impl FnMut() -> bool) {
        let since = Instant::now();
        while !has_come() {
            assert!(since.elapsed() < LONG);
            std::thread::yield_now();
        }
    }

    // The value behind the breach was published.
    #[test]
    fn a_server_that_breaks_the_protocol_is_lost_and_nothing_it_says_behind_that_is_taken() {
        // By its place: an unknown tensor, a chunk of another shard, a wrong length, and an encoding that was not agreed to.
        let breaches = rig::breaches(CHANGES);
        for (bad, said) in [0, 1, 3, 7].map(|at| breaches[at].clone()) {
            let (far, socket) = far();
            say(socket, &[good(3), bad, good_behind(4)]);
            until(|| far.fate.failure().is_some());
            let Some(JobFailure::ServerLost { server: 4, reason }) = far.fate.failure() else {
                panic!("{:?}", far.fate.failure())
            };
            assert!(reason.starts_with("it broke the protocol: ") && reason.contains(said), "{reason}");
            drop(far.proxy);
            assert_eq!(far.seen.what(), only_good(3));
            far.listener.set_nonblocking(true).unwrap();
            assert!(far.listener.accept().is_err(), "it dials no more");
        }
    }

    #[test]
    fn a_frame_that_came_damaged_ends_its_connection_and_the_next_goes_on() {
        let (far, socket) = far();
        let mut damaged = good(4);
        damaged[200] ^= 1;
        say(socket, &[good(3), damaged, good_behind(5)]);
        let mut again = far.accept().unwrap();
        assert_eq!(far.seen.what(), only_good(3));
        again.write_all(&good(4)).unwrap();
        until(|| far.seen.what() == only_good(4));
        assert_eq!(far.fate.failure(), None);
    }

    // It showed that it lives, and looked whether others do, before it slept: whoever had it look again and again, a parent that says
    // nothing new or a home that sends on and on, kept it from both.
    #[test]
    fn a_proxy_that_never_sleeps_shows_that_it_lives_all_the_same() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (_thread, inbox) = thread::commanded::<Command>().unwrap();
        let setup = setup(&listener, &Arc::default(), Duration::from_millis(400));
        let mut proxy = new(setup, inbox);
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut home = listener.accept().unwrap().0;
        home.set_nonblocking(true).unwrap();
        proxy.remote.attach(Stream::plain(ours, LONG).unwrap());
        let (taken, mut said) = (rig::notice(Notice::Taken).encode(), Vec::new());
        until(|| {
            home.write_all(&taken).unwrap();
            proxy.look();
            let mut bytes = [0; 1024];
            let came = home.read(&mut bytes).unwrap_or(0);
            said.extend_from_slice(&bytes[..came]);
            said.len() >= 3 * HEADER_BYTES
        });
        let bodies = said.chunks_exact(HEADER_BYTES);
        let bodies = bodies.map(|frame| Header::decode(frame.try_into().unwrap()).unwrap().body);
        assert!(bodies.into_iter().all(|body| body == Body::Alive));
    }
}
