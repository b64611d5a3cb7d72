//! The control thread: takes workers in, declares tensors, watches leases, ends the job. It waits for descriptors only, and sends
//! without waiting: a worker that does not read its answers is lost, not waited for.
//!
//! A worker on this host is lost with its connection. One on another host is not: until its lease ends it may connect again,
//! and repeats the requests that it has no answer to. Each is carried out once: the last answers are kept.

mod absent;
mod declaring;
mod entry;
mod put_off;
mod rates;
mod requests;
mod tables;
mod trees;

use super::arrivals::Arrival;
use super::bells::Bells;
use super::catalog::Catalog;
use super::client::{Channel, Client, Worker};
use super::fair_share::Place;
use super::first_touch::FirstTouch;
use super::pace::{self, BREATH, KeptWaiting, Pace};
use super::shard::{Command, Flags, Handle, Report};
use super::tables::{Sealed, Tables};
use super::{Order, ServerConfig, Shared, StartError, items};
use crate::thread;
use crate::uplink::Uplink;
use crate::wait;
use crate::wire::records::RecordStream;
use crate::wire::vigil::{LivedClock, look_every};
use penstock_fabric::layout::flags;
use penstock_fabric::net::gate::LOOK_AGAIN;
use penstock_fabric::socket::Listener;
use penstock_fabric::spent::Spent;
use penstock_proto::Rank;
use penstock_proto::account::{Account, Charge, Limits, Resource};
use penstock_proto::error::{JobFailure, Loss, Refusal};
use penstock_proto::first::Firsts;
use penstock_proto::handshake::{Purpose, Session, Verdict, verdict};
use penstock_proto::knot::Knots;
use penstock_proto::membership::{Member, Roster};
use penstock_proto::message::{Answer, LEFT, MAX_MESSAGE_BYTES, Reply, encode};
use penstock_proto::overlay::{MAX_RACK_BYTES, MAX_SHAPE_BYTES};
use penstock_proto::peer::PeerId;
use penstock_proto::seal::Key;
use put_off::PutOff;
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
pub(super) use trees::Made;
use trees::{Planning, Trees};

/// Connections that have not said who they are. For one more another goes: strangers get no room to pile up.
const MAX_STRANGERS: usize = 256;
/// Longest message of a connection that has not been let in: an honest one says hello, which names no request. What has come of a
/// message is kept for a stranger at nobody's charge.
const MAX_HELLO_BYTES: usize = 256 + MAX_SHAPE_BYTES + MAX_RACK_BYTES;
/// Longest time that a connection may take to say who it is, in milliseconds.
const HELLO_WITHIN_MS: u64 = 10_000;
/// How long a worker whose connection broke while it was told the last word may take to come and ask for it, in milliseconds.
pub(super) const RETURN_WITHIN_MS: u64 = 2_000;
/// Looks at the sockets in one turn, before leases are judged: enough for one at every worker's.
const ROUNDS: usize = 32;
/// Events taken in one look.
const EVENTS: usize = 64;

/// Requests taken of one client before others get their turn.
const REQUESTS: usize = 64;
/// Longest time for one client's requests before others get their turn; the last request may overrun it.
const REQUESTS_WITHIN: Duration = Duration::from_millis(10);
/// How long a job is not heard at most for what its clients have asked in one turn, but for a breath or two; a quarter of a lease, if
/// that is less. Below [`wait::ASK_AT_LEAST`]: who puts one question at a time takes a server that answers later for silent.
const MOST_OWED: Duration = Duration::from_millis(200);
const _: () = assert!(MOST_OWED.as_millis() + 2 * BREATH.as_millis() < wait::ASK_AT_LEAST.as_millis());
/// Entries that a question to the shards counts for: every shard keeps it until it answers.
const TICKET_ENTRIES: u64 = 256;

const LISTENER: u64 = u64::MAX;
const WAKEUP: u64 = u64::MAX - 1;

/// The control thread's end of the shards.
#[derive(Debug)]
pub(super) struct Shards {
    pub(super) handles: Vec<Handle>,
    /// The time that each one's layers have taken.
    pub(super) spent: Vec<Arc<Spent>>,
    /// What this host's link carries.
    pub(super) uplink: Arc<Uplink>,
    pub(super) reports: Receiver<Report>,
    /// For other threads that report.
    pub(super) sender: Sender<Report>,
    pub(super) flags: Flags,
    /// By which what they seal is known.
    pub(super) key: Key,
}

/// How it ended with a worker on another host, which may come again because it has not heard of it.
pub(super) enum Last {
    Left,
    Lost(Loss),
}

/// A question that all shards answer.
struct Ticket {
    rank: Rank,
    request: u64,
    open: usize,
    ranks: Vec<Rank>,
    _entries: Charge,
}

pub(super) struct Control {
    pub(super) config: ServerConfig,
    listener: Option<Listener>,
    /// The system had no descriptor left for one more connection.
    full: bool,
    pub(super) shards: Shards,
    orders: Receiver<Order>,
    shared: Arc<Shared>,
    epoll: OwnedFd,
    pub(super) clients: HashMap<u64, Client>,
    next_client: u64,
    pub(super) workers: HashMap<Rank, Worker>,
    pub(super) roster: Roster,
    knots: Knots,
    /// What worker 0 does for all.
    firsts: Firsts<[Charge; 2]>,
    /// What the job makes this process keep.
    account: Account,
    _threads: Charge,
    catalog: Catalog,
    /// Who passes on what the shards send to workers on other hosts.
    trees: Trees,
    /// Threads that plan them, which takes long: one, beside those whose plans nobody waits for any more.
    planners: Vec<JoinHandle<()>>,
    tables: Tables,
    /// Memory of both.
    first_touch: FirstTouch,
    /// The thread that passes rows on, from the first worker that needs it; the partitions that it is told of then; and its bell,
    /// which producers on this host ring.
    items: Option<items::Handle>,
    sealed: Vec<(PeerId, Sealed)>,
    bells: Bells,
    /// Clients that may have had more to say when their turn was over.
    unfinished: Vec<u64>,
    /// The job's place among those behind the same acceptor, and what all its clients together may ask beside them.
    place: Option<Place>,
    pace: Pace,
    /// What they have asked that is not taken off it yet.
    spent: f64,
    /// Connections that are heard for a worker, as of this turn: strangers share nothing of what the workers may ask.
    heard: usize,
    /// For how long they were not heard, as they had asked more.
    kept: KeptWaiting,
    /// The same for what it has had cleared in vain, and for the ranges of its tables.
    kept_for_memory: KeptWaiting,
    kept_for_ranges: KeptWaiting,
    /// What bringing its tables' producers and consumers together may take beside other jobs.
    sweeping: Pace,
    /// Searches for circles that were put off, as nothing was left.
    put_off: PutOff,
    /// Declarations of tensors that wait for memory.
    declaring: VecDeque<declaring::Declaring>,
    tickets: HashMap<u64, Ticket>,
    next_ticket: u64,
    pub(super) clock: LivedClock,
    started: Instant,
    /// Peers on other hosts that have left or were lost, by their session, until they say that they have heard the last word.
    pub(super) departed: HashMap<PeerId, (Session, Last)>,
    /// Those that have not confirmed that they heard the last word, and until when they may come and ask for it.
    pub(super) partings: BTreeMap<PeerId, u64>,
    /// What workers that have left have heard elsewhere of the job's failure, and until when others may know better.
    pub(super) hearsay: BTreeMap<Rank, (u64, JobFailure)>,
    /// How worker 0 was lost, for workers that wait for a value that only it gives.
    loss_of_first: Option<Loss>,
    /// Whether the process wants the server to end now, even if some workers have not heard of the job's end.
    stopping: bool,
    /// Since when those that came have gone, while others are awaited.
    deserted_since: Option<u64>,
    /// Whether any worker came.
    came: bool,
    ended: Option<Result<(), JobFailure>>,
    buffer: Box<[u8; MAX_MESSAGE_BYTES]>,
}

/// What a request is answered with, at once.
pub(super) type Answered = Result<(Answer, Vec<OwnedFd>), Refusal>;

/// Says why not, to a connection that has not proved who it is, and hangs up.
fn refuse(mut channel: Channel, refusal: Refusal) {
    tracing::debug!(%refusal, "a stranger was refused");
    let _ = channel.send(&verdict(&Verdict::Refused(refusal)), &[]);
}

pub(super) fn plain(answer: Answer) -> Option<Answered> {
    Some(Ok((answer, Vec::new())))
}

/// What a worker that comes when the job has ended is told.
fn last_word(outcome: &Result<(), JobFailure>) -> Result<Answer, Refusal> {
    match outcome {
        Ok(()) => Err(Refusal::Over),
        Err(failure) => Ok(Answer::Failed(failure.clone())),
    }
}

impl Control {
    pub(super) fn new(
        config: ServerConfig,
        listener: Option<Listener>,
        shards: Shards,
        orders: Receiver<Order>,
        shared: Arc<Shared>,
        place: Option<Place>,
        limits: Limits,
    ) -> Result<Self, StartError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(StartError::system("make an epoll descriptor"))?;
        let watch = |fd: BorrowedFd<'_>, token| {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
                .map_err(StartError::system("watch a descriptor"))
        };
        watch(shared.wakeup.as_fd(), WAKEUP)?;
        if let Some(listener) = &listener {
            watch(listener.as_fd(), LISTENER)?;
        }
        let account = Account::new(limits);
        // The limit leaves room for these, and for the thread that passes rows on.
        let threads = 1 + shards.handles.len() as u64;
        let threads = account.charge(Resource::Threads, threads).unwrap_or_default();
        let catalog = Catalog::new(
            config.index,
            config.servers,
            shards.handles.len() as u32,
            config.workers,
            config.options.chunk_bytes,
            account.clone(),
        );
        let clock = LivedClock::new(config.options.lease);
        Ok(Self {
            roster: Roster::new(config.workers),
            knots: Knots::default(),
            firsts: Firsts::default(),
            catalog,
            trees: Trees::new(config.index, config.servers, config.options.chunk_bytes)
                .measuring(Arc::clone(&shards.uplink), (config.workers, config.options.rate)),
            planners: Vec::new(),
            tables: Tables::charged_to(&account, config.index == 0, config.servers),
            first_touch: FirstTouch::default(),
            _threads: threads,
            account,
            items: None,
            sealed: Vec::new(),
            bells: Bells::default(),
            config,
            listener,
            full: false,
            shards,
            orders,
            shared,
            epoll,
            clients: HashMap::new(),
            next_client: 0,
            workers: HashMap::new(),
            unfinished: Vec::new(),
            place,
            pace: Pace::of_requests(Instant::now()),
            put_off: PutOff::default(),
            spent: 0.0,
            heard: 0,
            kept: KeptWaiting::new(Instant::now()),
            kept_for_memory: KeptWaiting::new(Instant::now()),
            kept_for_ranges: KeptWaiting::new(Instant::now()),
            sweeping: Pace::of_sweeps(Instant::now()),
            declaring: VecDeque::new(),
            tickets: HashMap::new(),
            next_ticket: 0,
            clock,
            started: Instant::now(),
            departed: HashMap::new(),
            partings: BTreeMap::new(),
            hearsay: BTreeMap::new(),
            loss_of_first: None,
            stopping: false,
            deserted_since: None,
            came: false,
            ended: None,
            buffer: Box::new([0; MAX_MESSAGE_BYTES]),
        })
    }

    pub(super) fn run(mut self) {
        while self.ended.is_none() {
            self.turn();
        }
        let outcome = self.ended.clone().unwrap_or(Ok(()));
        self.items = None;
        // Before any worker hears of a failure: what a worker pushes after another has heard of it is not folded any more.
        for shard in &self.shards.handles {
            shard.send(Command::Stop);
        }
        if let Err(failure) = &outcome {
            self.tell_all(failure);
        }
        // Workers that have not come yet are about to, and no other process would tell them why there is no job.
        let late_until = self.clock.now() + if outcome.is_err() { RETURN_WITHIN_MS } else { 0 };
        while !self.stopping && self.roster.awaited().next().is_some() && self.clock.now() < late_until {
            self.turn();
        }
        // The socket goes before any worker hears of the end: the next server to be started finds the path free.
        self.listener = None;
        // A worker that has no connection just now, or had one that broke, comes again and is told how the job ended: within its
        // lease, and not again and again.
        let until = self.clock.now() + self.lease_ms() + RETURN_WITHIN_MS;
        while !self.stopping && !self.partings.is_empty() && self.clock.now() < until {
            self.turn();
        }
        *self.shared.outcome.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(outcome);
        self.shared.ended.notify_all();
        for planner in self.planners.drain(..) {
            let _ = planner.join();
        }
    }

    fn turn(&mut self) {
        self.shards.flags.beat(flags::CONTROL);
        let now = Instant::now();
        self.place.iter().for_each(|place| place.shares.look(now));
        let out = self.is_out();
        self.put_off.begin_turn(self.clock.now());
        if self.is_beside_another() {
            self.heard = self.clients.values().filter(|client| !client.is_stranger()).count();
        }
        let rests = self.begin_sweeps(now, out) && self.has_unsettled_tables();
        let waits_for_memory =
            (self.is_declaring() || self.has_untouched_tables()) && self.first_touch.waits();
        for (kept, waits, why) in [
            (&mut self.kept, out, "they ask too much"),
            (
                &mut self.kept_for_memory,
                waits_for_memory,
                "they had much memory cleared that they did not keep",
            ),
            (&mut self.kept_for_ranges, rests, "their tables have very many ranges of rows"),
        ] {
            if kept.note(waits, now) {
                tracing::warn!(job = %self.config.job, why, "the job's workers are kept waiting beside other jobs");
            }
        }
        if out {
            self.draw_breath();
        } else {
            self.take_what_is_said();
        }
        self.take_orders();
        // Before what others say of each other.
        self.trees.runs(self.started.elapsed().as_millis() as u64, self.clock.now());
        self.take_reports();
        if !out {
            // Workers whose words lie there unread are not called silent.
            self.look_at_leases();
        }
        self.route();
        self.judge_hearsay();
        self.look_for_the_awaited();
        self.seal_again();
        self.first_touch.begin_turn();
        let (kept, beside) = (self.account.taken(Resource::Bytes), self.is_beside_another());
        self.first_touch.keeps(kept, beside, Instant::now());
        if self.first_touch.is_for_tables_first() {
            self.settle_tables();
            self.go_on_declaring();
        } else {
            self.go_on_declaring();
            self.settle_tables();
        }
        self.shared.workers.store(self.workers.len() as u32, Ordering::Relaxed);
        self.shared.memory.store(self.account.taken(Resource::Bytes), Ordering::Relaxed);
        if self.ended.is_none() && self.roster.is_over() {
            self.ended = Some(Ok(()));
        }
    }

    /// Whether the job's clients have asked more than they may while there are other jobs.
    fn is_out(&mut self) -> bool {
        let most = self.most_spent();
        self.pace.spend(std::mem::take(&mut self.spent).min(most));
        let out = self.pace.is_out(Instant::now());
        if self.is_beside_another() {
            return out;
        }
        // By itself a job owes nobody anything, also later.
        self.pace.forgive();
        self.put_off.forgive();
        false
    }

    /// The most that is taken off for what was asked within a turn: it is owed for a while that no worker takes for the loss of
    /// this server.
    fn most_spent(&self) -> f64 {
        let longest = MOST_OWED.min(self.config.options.lease / 4);
        self.pace.left() + pace::REQUESTS_A_SECOND * longest.as_secs_f64()
    }

    /// Whether nothing is left to them beside other jobs, after what was asked in this turn.
    fn has_spent_all(&self) -> bool {
        self.is_beside_another() && self.pace.left() <= self.spent
    }

    fn is_beside_another(&self) -> bool {
        self.place.as_ref().is_some_and(Place::is_beside_another)
    }

    /// While the job's clients have asked too much: only shards and the process are heard.
    fn draw_breath(&self) {
        self.shared.wakeup.sleep(BREATH);
        self.shared.wakeup.clear();
    }

    fn take_what_is_said(&mut self) {
        let touches = self.is_declaring() || self.has_untouched_tables();
        let may_touch = touches && !self.first_touch.waits();
        let busy = !self.unfinished.is_empty() || self.may_settle_tables() || may_touch;
        let mut longest = if busy { Duration::ZERO } else { look_every(self.config.options.lease) };
        // However long a lease is: what is waited for here ends by itself, and sooner.
        let ends = !self.hearsay.is_empty() || !self.partings.is_empty();
        if self.full || ends || touches || self.has_unsettled_tables() || self.tables.is_unsealed() {
            longest = longest.min(LOOK_AGAIN);
        }
        if let Some(apart) = self.trees.runs_again_in() {
            longest = longest.min(apart);
        }
        if let Some(at) = self.trees.hears_out_at() {
            longest = longest.min(Duration::from_millis(at.saturating_sub(self.clock.now())));
        }
        let unfinished = std::mem::take(&mut self.unfinished);
        // Something of each worker whose words lie in the sockets is read before leases are judged: after a pause of this process
        // that is many.
        for round in 1..=ROUNDS {
            // The listener and the wake-up take places too.
            let each_was_heard = round * EVENTS >= self.clients.len() + 2;
            if !self.take_events(longest) || each_was_heard && self.has_spent_all() {
                break;
            }
            longest = Duration::ZERO;
        }
        // Bytes that TLS has already decrypted do not wake the poll again. Whatever the others asked, each is heard in each turn.
        for client in unfinished {
            self.serve(client);
        }
    }

    /// Waits for events, at most for `longest`, and takes them; whether there may be more.
    fn take_events(&mut self, longest: Duration) -> bool {
        let events = wait::events(&self.epoll, EVENTS, Some(longest));
        // Before anything is taken: what was earned asleep pays for nothing beyond the burst.
        self.pace.earn(Instant::now());
        self.watch_listener(false);
        let full = events.len() == EVENTS;
        for event in events {
            match event.data.u64() {
                LISTENER => self.accept(),
                WAKEUP => self.shared.wakeup.clear(),
                client => self.serve(client),
            }
        }
        full
    }

    fn take_orders(&mut self) {
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Accept(connection) => self.welcome_stranger(Channel::Local(connection)),
                Order::Enter => {
                    if let Some(arrival) = self.shared.arrivals.take() {
                        self.let_in(arrival);
                    }
                }
                Order::Gone { rank, how } => self.gone(rank, how),
                Order::Stop => {
                    self.stopping = true;
                    self.end(JobFailure::Stopped { server: self.config.index });
                }
            }
        }
    }

    fn let_in(&mut self, Arrival { stream, purpose, long }: Arrival) {
        match purpose {
            Purpose::Control => {
                let records = RecordStream::new(stream, MAX_HELLO_BYTES);
                self.welcome_stranger(Channel::Remote(Box::new(records)));
            }
            // Connections for shards and rows that come when the job has ended are dropped: the worker hears of the end on its
            // control connection.
            _ if self.ended.is_some() => {}
            Purpose::Shard { peer, session, shard } => self.attach(peer, session, shard, stream, long),
            // Workers take those in, servers none.
            Purpose::Relay { .. } => {}
            Purpose::Items { peer, session } => self.attach_items(peer, session, stream),
        }
    }

    fn take_reports(&mut self) {
        while let Ok(report) = self.shards.reports.try_recv() {
            match report {
                Report::Failed(JobFailure::NoValue { name, .. }) => {
                    self.end(JobFailure::NoValue { name, loss: self.loss_of_first.clone() });
                }
                Report::Failed(failure) => self.end(failure),
                // Nothing more is heard from a peer that has gone, and may have come back as another.
                Report::Broke { peer, what } => {
                    if let Some(rank) = self.rank_of(peer) {
                        self.lose_rank(rank, Loss::Broke { what });
                    }
                }
                Report::Exhausted { peer, what, why } => {
                    if let Some(rank) = self.rank_of(peer) {
                        self.lose_rank(rank, Loss::Exhausted { what: what.to_owned(), why });
                    }
                }
                Report::Departed { peer } => {
                    if let Some(rank) = self.rank_of(peer)
                        && let Some(worker) = self.workers.get_mut(&rank)
                    {
                        worker.departed += 1;
                        self.let_go(rank);
                    }
                }
                Report::Ended { peer } => {
                    if let Some(rank) = self.rank_of(peer)
                        && let Some((_, open)) =
                            self.workers.get_mut(&rank).and_then(|worker| worker.ending.as_mut())
                    {
                        *open = open.saturating_sub(1);
                        self.look_at_end(rank);
                    }
                }
                Report::Strayed { rank, parent } => self.trees.stray(rank, parent, self.clock.now()),
                Report::Planned(made) => self.trees.made(*made),
                Report::Missing { ticket, ranks } => self.collect(ticket, ranks),
                Report::Followed { ticket, changes } => {
                    if let Some(ticket) = self.tickets.remove(&ticket) {
                        let answer = Answer::Followed { changes };
                        self.answer(ticket.rank, ticket.request, Ok((answer, Vec::new())));
                    }
                }
                Report::Clocks { ticket, clocks } => {
                    if let Some(ticket) = self.tickets.remove(&ticket) {
                        // The shard knows that it is gone, and not how.
                        let left = |rank| self.roster.of(rank) == Member::Left;
                        let shown = |(clock, rank)| if clock < 0 && left(rank) { LEFT } else { clock };
                        let clocks = clocks.into_iter().zip(0..).map(shown).collect();
                        self.answer(ticket.rank, ticket.request, Ok((Answer::Clocks { clocks }, Vec::new())));
                    }
                }
            }
        }
    }

    /// Tells the shards by which ways values go from now on, if these are others than before.
    fn route(&mut self) {
        let all_came = self.roster.awaited().next().is_none();
        self.trees.hear_out(self.clock.now());
        self.trees.forgive(self.clock.now());
        for rank in self.trees.take_again() {
            let peer = self.roster.peer(rank);
            self.shards.handles.iter().for_each(|shard| shard.send(Command::RouteAgain { peer }));
        }
        self.trees.weigh(self.clock.now());
        if let Some(routes) = self.trees.routes(all_came).filter(|_| self.ended.is_none()) {
            for shard in &self.shards.handles {
                shard.send(Command::Routes(Arc::clone(&routes)));
            }
        }
        if let Some(planning) = self.trees.take_planning() {
            self.plan(planning);
        }
    }

    /// Has trees planned on a thread of their own: of a thousand hosts that takes longer than a worker waits for an answer.
    fn plan(&mut self, planning: Planning) {
        self.planners.retain(|planner| !planner.is_finished());
        let (reports, shared) = (self.shards.sender.clone(), Arc::clone(&self.shared));
        let started = thread::spawn("penstock-plan", move || {
            let _ = reports.send(Report::Planned(Box::new(planning.make_or_none())));
            shared.wakeup.ring();
        });
        match started {
            Ok(thread) => self.planners.push(thread),
            Err(error) => {
                tracing::warn!(%error, "no thread plans trees now: they stay as they are until a worker comes or goes");
                self.trees.not_made();
            }
        }
    }

    /// Whether the job has not ended.
    pub(super) fn is_open(&self) -> bool {
        self.ended.is_none()
    }

    /// The rank that a peer has, as far as it is that peer that has it.
    pub(super) fn rank_of(&self, peer: PeerId) -> Option<Rank> {
        peer.rank().filter(|&rank| self.roster.peer(rank) == peer)
    }

    pub(super) fn end(&mut self, failure: JobFailure) {
        if self.ended.is_none() {
            self.ended = Some(Err(failure.brief()));
        }
    }

    fn tell_all(&mut self, failure: &JobFailure) {
        let reply = Reply { id: 0, body: Answer::Failed(failure.clone()) };
        let Ok(bytes) = encode(&reply) else { return };
        let until = self.clock.now() + self.lease_ms();
        for (rank, worker) in &self.workers {
            if worker.is_remote() && !self.hearsay.contains_key(rank) {
                self.partings.insert(worker.peer, until);
            }
        }
        let told: Vec<u64> = self
            .clients
            .iter()
            .filter(|(_, client)| client.peer.is_some())
            .map(|(&token, _)| token)
            .collect();
        for token in told {
            let Some(client) = self.clients.get_mut(&token) else { continue };
            client.parting = client.peer;
            // One that cannot be told now is told when it comes again.
            let _ = client.channel.send(&bytes, &[]);
            self.watch(token);
        }
    }

    pub(super) fn lease_ms(&self) -> u64 {
        self.config.options.lease.as_millis() as u64
    }
}
