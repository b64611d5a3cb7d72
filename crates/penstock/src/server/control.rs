//! The control thread: takes workers in, declares tensors, watches leases, ends the job. It waits for descriptors only, and
//! what it sends it sends without waiting: a worker that does not read its answers is lost, not waited for.
//!
//! A worker on this host is lost with its connection. One on another host is not: until its lease ends it may connect again,
//! and repeats the requests that it has no answer to. Each is carried out once: the last answers are kept.

use super::bells::Bells;
use super::catalog::{Catalog, NewTensor};
use super::client::{Channel, Client, Received, Worker};
use super::door::LOOK_AGAIN;
use super::items;
use super::proof::Proof;
use super::shard::{Board, Command, Handle, Report};
use super::tables::{Answers, Asker, Sealed, Tables};
use super::{Order, ServerConfig, Shared, StartError, Wakeup, crowding};
use crate::options::OnWorkerLoss;
use crate::wire::records::RecordStream;
use crate::wire::vigil::{LivedClock, look_every};
use penstock_fabric::layout::{board, page};
use penstock_fabric::net::stream::Stream;
use penstock_fabric::region::{Mapping, Region, Writers};
use penstock_fabric::socket::Listener;
use penstock_proto::account::{Account, Charge, Limits, Resource};
use penstock_proto::error::{JobFailure, Loss, Refusal};
use penstock_proto::handshake::{Purpose, Session, Verdict, verdict};
use penstock_proto::items::control::TableAsk;
use penstock_proto::knot::Knots;
use penstock_proto::membership::{Lease, Member, Roster};
use penstock_proto::message::{
    Answer, Ask, MAX_MESSAGE_BYTES, PROTOCOL_VERSION, Reply, Request, Welcome, decode, encode,
};
use penstock_proto::{Rank, TensorId};
use rustix::event::epoll;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::time::Timespec;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

/// Connections that have not said who they are. One more is closed at once: strangers get no room to pile up.
const MAX_STRANGERS: usize = 256;
/// Longest time that a connection may take to say who it is, in milliseconds.
const HELLO_WITHIN_MS: u64 = 10_000;
/// How long a worker whose connection broke while it was told the last word may take to come and ask for it, in milliseconds.
const RETURN_WITHIN_MS: u64 = 2_000;
/// Looks at the sockets in one turn, before leases are judged: enough for one at every worker's.
const ROUNDS: usize = 32;

/// Requests taken of one client before others get their turn.
const REQUESTS: usize = 64;
/// Entries that a question to the shards counts for: every shard keeps it until it answers.
const TICKET_ENTRIES: u64 = 256;

const LISTENER: u64 = u64::MAX;
const WAKEUP: u64 = u64::MAX - 1;

/// The control thread's end of the shards.
#[derive(Debug)]
pub(super) struct Shards {
    pub(super) handles: Vec<Handle>,
    pub(super) reports: Receiver<Report>,
    /// For other threads that report.
    pub(super) sender: Sender<Report>,
    pub(super) board: Board,
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
    /// What the job makes this process keep.
    account: Account,
    _threads: Charge,
    catalog: Catalog,
    tables: Tables,
    /// Who passes rows on, from the first worker that needs it; the regions that it is told of then; and its bell, which producers
    /// on this host ring.
    items: Option<items::Handle>,
    sealed: Vec<Sealed>,
    bells: Bells,
    /// Clients that had not said all when their turn was over.
    unfinished: Vec<u64>,
    tickets: HashMap<u64, Ticket>,
    next_ticket: u64,
    pub(super) clock: LivedClock,
    /// Workers on other hosts that have left or were lost, by their session.
    pub(super) departed: HashMap<Rank, (Session, Last)>,
    /// Those that have not said that they heard the last word, and until when they may come and ask for it.
    pub(super) partings: BTreeMap<Rank, u64>,
    /// Whether the process wants the server to end now, whoever has not heard of it.
    stopping: bool,
    /// Since when those who came have gone, while others are awaited.
    deserted_since: Option<u64>,
    /// Whether anybody came.
    came: bool,
    ended: Option<Result<(), JobFailure>>,
    buffer: Box<[u8; MAX_MESSAGE_BYTES]>,
}

/// What a request is answered with, at once.
pub(super) type Answered = Result<(Answer, Vec<OwnedFd>), Refusal>;

/// Says why not, to who has not proved who it is, and hangs up.
fn refuse(mut channel: Channel, refusal: Refusal) {
    tracing::debug!(%refusal, "a stranger was refused");
    let _ = channel.send(&verdict(&Verdict::Refused(refusal)), &[]);
}

fn plain(answer: Answer) -> Option<Answered> {
    Some(Ok((answer, Vec::new())))
}

/// What a worker is told that comes when the job has ended.
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
        // The limit leaves room for these, and for who passes rows on.
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
            catalog,
            tables: Tables::charged_to(&account),
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
            tickets: HashMap::new(),
            next_ticket: 0,
            clock,
            departed: HashMap::new(),
            partings: BTreeMap::new(),
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
        if let Err(failure) = &outcome {
            self.tell_all(failure);
        }
        for shard in &self.shards.handles {
            shard.send(Command::Stop);
        }
        // Those that have not come yet are about to: nobody else would tell them why there is no job.
        let late_until = self.clock.now() + if outcome.is_err() { RETURN_WITHIN_MS } else { 0 };
        while !self.stopping && self.roster.awaited().next().is_some() && self.clock.now() < late_until {
            self.turn();
        }
        // The socket goes before anyone hears of the end: whoever starts the next server finds the path free.
        self.listener = None;
        // Who has no connection just now, or had one that broke, comes again and is told how the job ended.
        while !self.stopping && !self.partings.is_empty() {
            self.turn();
        }
        *self.shared.outcome.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(outcome);
        self.shared.ended.notify_all();
    }

    fn turn(&mut self) {
        self.shards.board.beat(board::CONTROL);
        let mut longest = match self.unfinished.is_empty() {
            true => look_every(self.config.options.lease),
            false => Duration::ZERO,
        };
        if self.full {
            longest = longest.min(LOOK_AGAIN);
        }
        // Everything that lies in the sockets is read before leases are judged: after a pause of this process that is much.
        for _ in 0..ROUNDS {
            if !self.take_events(longest) {
                break;
            }
            longest = Duration::ZERO;
        }
        // What TLS has decrypted already rings no more.
        for client in std::mem::take(&mut self.unfinished) {
            self.serve(client);
        }
        self.take_orders();
        self.take_reports();
        self.look_at_leases();
        self.look_for_the_awaited();
        self.shared.workers.store(self.workers.len() as u32, Ordering::Relaxed);
        self.shared.memory.store(self.account.taken(Resource::Bytes), Ordering::Relaxed);
        if self.ended.is_none() && self.roster.is_over() {
            self.ended = Some(Ok(()));
        }
    }

    /// Waits for events, at most for `longest`, and takes them; whether there may be more.
    fn take_events(&mut self, longest: Duration) -> bool {
        let mut events = Vec::with_capacity(64);
        let timeout = Timespec {
            tv_sec: i64::try_from(longest.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(longest.subsec_nanos()),
        };
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout));
        self.watch_listener(false);
        let full = events.len() == events.capacity();
        for event in events {
            match event.data.u64() {
                LISTENER => self.accept(),
                WAKEUP => Wakeup::clear(self.shared.wakeup.as_fd()),
                client => self.serve(client),
            }
        }
        full
    }

    fn take_orders(&mut self) {
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Accept(connection) => self.welcome_stranger(Channel::Local(connection)),
                Order::Enter { stream, purpose: Purpose::Control, .. } => {
                    self.welcome_stranger(Channel::Remote(Box::new(RecordStream::new(
                        stream,
                        MAX_MESSAGE_BYTES,
                    ))));
                }
                // Whoever comes to work when the job has ended hears of it on the control connection.
                Order::Enter { .. } if self.ended.is_some() => {}
                Order::Enter { stream, purpose: Purpose::Shard { rank, session, shard }, long } => {
                    self.attach(rank, session, shard, stream, long);
                }
                Order::Enter { stream, purpose: Purpose::Items { rank, session }, .. } => {
                    self.attach_items(rank, session, stream);
                }
                Order::Gone { rank, how } => self.gone(rank, how),
                Order::Stop => {
                    self.stopping = true;
                    self.end(JobFailure::Stopped);
                }
            }
        }
    }

    fn take_reports(&mut self) {
        while let Ok(report) = self.shards.reports.try_recv() {
            match report {
                Report::Failed(failure) => self.end(failure),
                Report::Broke { rank, what } => self.lose_rank(rank, Loss::Broke { what }),
                Report::Departed { rank } => {
                    if let Some(worker) = self.workers.get_mut(&rank) {
                        worker.departed += 1;
                        self.let_go(rank);
                    }
                }
                Report::Missing { ticket, ranks } => self.collect(ticket, ranks),
                Report::Clocks { ticket, clocks } => {
                    if let Some(ticket) = self.tickets.remove(&ticket) {
                        self.answer(ticket.rank, ticket.request, Ok((Answer::Clocks { clocks }, Vec::new())));
                    }
                }
            }
        }
    }

    pub(super) fn end(&mut self, failure: JobFailure) {
        if self.ended.is_none() {
            self.ended = Some(Err(failure));
        }
    }

    fn tell_all(&mut self, failure: &JobFailure) {
        let reply = Reply { id: 0, body: Answer::Failed(failure.clone()) };
        let Ok(bytes) = encode(&reply) else { return };
        let until = self.clock.now() + self.lease_ms();
        for (&rank, worker) in &self.workers {
            if worker.is_remote() {
                self.partings.insert(rank, until);
            }
        }
        let told: Vec<u64> = self
            .clients
            .iter()
            .filter(|(_, client)| client.rank.is_some())
            .map(|(&token, _)| token)
            .collect();
        for token in told {
            let Some(client) = self.clients.get_mut(&token) else { continue };
            client.parting = client.rank;
            // One that cannot be told now is told when it comes again.
            let _ = client.channel.send(&bytes, &[]);
            self.watch(token);
        }
    }

    pub(super) fn lease_ms(&self) -> u64 {
        self.config.options.lease.as_millis() as u64
    }

    // Connections

    fn accept(&mut self) {
        match self.listener.as_ref().map(Listener::accept) {
            Some(Ok(connection)) => self.welcome_stranger(Channel::Local(connection)),
            None | Some(Err(Errno::AGAIN | Errno::CONNABORTED)) => {}
            Some(Err(error)) => {
                tracing::warn!(%error, "a connection could not be accepted so far");
                self.watch_listener(true);
            }
        }
    }

    /// While there is no descriptor left the listener is not watched: it would ring all the time for the same connection.
    fn watch_listener(&mut self, full: bool) {
        if self.full == full {
            return;
        }
        self.full = full;
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, !full);
        if let Some(listener) = &self.listener {
            let _ = epoll::modify(&self.epoll, listener, epoll::EventData::new_u64(LISTENER), flags);
        }
    }

    fn welcome_stranger(&mut self, channel: Channel) {
        let strangers = self.clients.values().filter(|client| client.rank.is_none()).count();
        if strangers >= MAX_STRANGERS {
            return;
        }
        let proof = match &channel {
            Channel::Remote(_) => Proof::Given,
            Channel::Local(connection) if connection.is_own_users() == Ok(true) => Proof::Wanted,
            // Another user of this host, or nobody knows who. Nothing of it is read.
            Channel::Local(_) => return refuse(channel, Refusal::Authentication),
        };
        let token = self.next_client;
        self.next_client += 1;
        let flags = epoll::EventFlags::IN;
        if epoll::add(&self.epoll, &channel, epoll::EventData::new_u64(token), flags).is_ok() {
            let since = self.clock.now();
            self.clients.insert(token, Client { channel, since, proof, rank: None, parting: None });
        }
    }

    /// Hears who has not proved to belong to the job. `false` if it has, and its message is a request.
    fn examine(&mut self, token: u64, words: &[u8]) -> bool {
        let Some(client) = self.clients.get_mut(&token).filter(|client| !client.proof.is_given()) else {
            return false;
        };
        match client.proof.hear(words, self.config.secret) {
            Ok(answer) => self.send(token, &answer, &[]),
            Err(refusal) => {
                if let Some(client) = self.clients.remove(&token) {
                    let _ = epoll::delete(&self.epoll, &client.channel);
                    refuse(client.channel, refusal);
                }
            }
        }
        true
    }

    /// Passes a worker's connection on to the shard that it is for.
    fn attach(&mut self, rank: Rank, session: Session, shard: u32, stream: Stream, long: bool) {
        let known =
            self.workers.get(&rank).is_some_and(|worker| worker.is_remote() && worker.session == session);
        if let Some(handle) = self.shards.handles.get(shard as usize)
            && known
        {
            handle.send(Command::Attach { rank, stream, long });
        }
    }

    /// Passes a worker's connection on to who passes rows on.
    fn attach_items(&mut self, rank: Rank, session: Session, stream: Stream) {
        if self.workers.get(&rank).is_none_or(|worker| worker.session != session) {
            return;
        }
        if self.items.is_none() {
            match self.start_items() {
                Ok(items) => self.items = Some(items),
                Err(error) => {
                    tracing::warn!(%error, "rows of tables cannot be passed on");
                    return;
                }
            }
        }
        if let Some(items) = &self.items {
            items.send(items::Command::Enter { rank, stream });
        }
    }

    /// Has who passes rows on, if there is one, listen to the bells that have come.
    fn pass_bells(&mut self) {
        if let Some(items) = &self.items {
            self.bells.take_new().into_iter().for_each(|bell| items.send(items::Command::Bell(bell)));
        }
    }

    fn start_items(&mut self) -> Result<items::Handle, StartError> {
        let setup = items::Setup {
            account: self.account.clone(),
            reports: self.shards.sender.clone(),
            control: Arc::clone(&self.shared),
            lease: self.config.options.lease,
        };
        let items = items::start(setup)?;
        self.bells.all().for_each(|bell| items.send(items::Command::Bell(bell)));
        for sealed in self.sealed.drain(..) {
            items.send(items::Command::Region(sealed));
        }
        Ok(items)
    }

    /// Takes what a client asks; of one that asks without end some, so that the others, and the end of the job, get their turn.
    fn serve(&mut self, token: u64) {
        for _ in 0..REQUESTS {
            let Some(client) = self.clients.get_mut(&token) else { return };
            let message = match client.channel.receive(&mut self.buffer) {
                Received::Message(message) => message,
                Received::Nothing => return self.watch(token),
                Received::End(loss) => return self.close(token, loss),
            };
            if self.examine(token, &message) {
                continue;
            }
            match decode::<Request>(&message) {
                Err(error) => return self.close(token, Loss::Broke { what: error.to_string() }),
                Ok(request) => self.take(token, request),
            }
        }
        if !self.unfinished.contains(&token) {
            self.unfinished.push(token);
        }
    }

    fn take(&mut self, token: u64, request: Request) {
        let id = request.id;
        let Some(client) = self.clients.get(&token) else { return };
        if let (Some(rank), Ask::Heard) = (client.parting, &request.body) {
            self.partings.remove(&rank);
            self.drop_client(token);
            return;
        }
        let Some(rank) = client.rank else {
            if let Some(answer) = self.ask_stranger(token, request) {
                self.answer_client(token, id, answer);
            }
            return;
        };
        if self.ended.is_some() {
            return; // it was told so, and nothing else is answered
        }
        if let Some(worker) = self.workers.get_mut(&rank) {
            worker.signs += 1;
            worker.settle(request.settled);
            if let Some(bytes) = worker.answered(id) {
                return self.send(token, &bytes, &[]);
            }
        }
        if request.body == Ask::Beat {
            return self.answer_client(token, id, Ok((Answer::Alive, Vec::new())));
        }
        if let Some(answer) = self.ask(token, rank, request) {
            self.answer(rank, id, answer);
        }
    }

    fn encode(id: u64, answer: Answered) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
        let (body, descriptors) = answer.unwrap_or_else(|refusal| (Answer::Refused(refusal), Vec::new()));
        encode(&Reply { id, body }).ok().map(|bytes| (bytes, descriptors))
    }

    /// Answers a worker, now or when it has connected again.
    pub(super) fn answer(&mut self, rank: Rank, id: u64, answer: Answered) {
        let Some((bytes, descriptors)) = Self::encode(id, answer) else { return };
        let Some(worker) = self.workers.get_mut(&rank) else { return };
        if !worker.keep_answer(id, &bytes) {
            return self.lose_rank(rank, Loss::Broke { what: "it settles none of its answers".to_owned() });
        }
        if let Some(token) = worker.client {
            let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
            self.send(token, &bytes, &descriptors);
        }
    }

    fn answer_client(&mut self, token: u64, id: u64, answer: Answered) {
        if let Some((bytes, descriptors)) = Self::encode(id, answer) {
            let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
            self.send(token, &bytes, &descriptors);
        }
    }

    fn send(&mut self, token: u64, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let Some(client) = self.clients.get_mut(&token) else { return };
        match client.channel.send(bytes, descriptors) {
            Ok(()) => self.watch(token),
            Err(loss) => self.close(token, loss),
        }
    }

    /// Waits for room to write where something waits for it.
    fn watch(&self, token: u64) {
        if let Some(client) = self.clients.get(&token)
            && let Channel::Remote(records) = &client.channel
        {
            let mut flags = epoll::EventFlags::IN;
            flags.set(epoll::EventFlags::OUT, records.holds_output());
            let _ = epoll::modify(&self.epoll, &client.channel, epoll::EventData::new_u64(token), flags);
        }
    }

    /// The connection is over. A worker on this host is lost with it; one on another host may come again.
    pub(super) fn close(&mut self, token: u64, loss: Loss) {
        let Some(client) = self.drop_client(token) else { return };
        if let Some(until) = client.parting.and_then(|rank| self.partings.get_mut(&rank)) {
            *until = (*until).min(self.clock.now() + RETURN_WITHIN_MS);
        }
        let Some(rank) = client.rank else { return };
        let may_return = matches!(client.channel, Channel::Remote(_)) && loss == Loss::Died;
        if let Some(worker) = self.workers.get_mut(&rank)
            && may_return
        {
            if worker.client == Some(token) {
                worker.client = None;
            }
            return;
        }
        self.lose(rank, loss);
    }

    pub(super) fn drop_client(&mut self, token: u64) -> Option<Client> {
        let client = self.clients.remove(&token)?;
        let _ = epoll::delete(&self.epoll, &client.channel);
        Some(client)
    }

    fn lose_rank(&mut self, rank: Rank, loss: Loss) {
        match self.workers.get(&rank).and_then(|worker| worker.client) {
            Some(token) if matches!(loss, Loss::Broke { .. }) => self.close(token, loss),
            _ => self.lose(rank, loss),
        }
    }

    /// Whoever started a worker saw its process end.
    fn gone(&mut self, rank: Rank, how: Option<String>) {
        match how {
            None if self.roster.miss(rank, true) => self.go_on_without(rank),
            Some(how) if self.roster.miss(rank, false) => self.note_loss(rank, Loss::Ended { how }),
            // What it sent before may still be on its way, and counts if the others go on; else nobody need wait for the lease.
            Some(how) if self.config.options.on_worker_loss == OnWorkerLoss::Stop => {
                self.lose(rank, Loss::Ended { how });
            }
            _ => {}
        }
    }

    /// Those who came have gone, and others never came: nobody would end this server.
    fn look_for_the_awaited(&mut self) {
        let now = self.clock.now();
        self.came |= !self.workers.is_empty();
        let deserted = self.came && self.workers.is_empty();
        let Some(rank) = self.roster.awaited().next().filter(|_| deserted) else {
            self.deserted_since = None;
            return;
        };
        let waited_ms = now - *self.deserted_since.get_or_insert(now);
        if u128::from(waited_ms) > self.config.options.deadline.as_millis() {
            self.end(JobFailure::WorkerLost { rank, loss: Loss::Absent { waited_ms } });
        }
    }

    fn lose(&mut self, rank: Rank, loss: Loss) {
        if let Some(worker) = self.workers.remove(&rank) {
            if worker.is_remote() {
                self.departed.insert(rank, (worker.session, Last::Lost(loss.clone())));
            }
            if let Some(token) = worker.client {
                self.dismiss(token, rank, &loss);
            }
        }
        self.forget(rank);
        if self.roster.lose(rank) {
            self.note_loss(rank, loss);
        }
    }

    fn note_loss(&mut self, rank: Rank, loss: Loss) {
        tracing::warn!(rank, %loss, "a worker was lost");
        match self.config.options.on_worker_loss {
            OnWorkerLoss::Stop => self.end(JobFailure::WorkerLost { rank, loss }),
            OnWorkerLoss::Continue => self.go_on_without(rank),
        }
    }

    /// Tells a worker that is lost, and may not know it, why: it was suspended and wakes, or its line was silent.
    fn dismiss(&mut self, token: u64, rank: Rank, loss: &Loss) {
        let failure = JobFailure::WorkerLost { rank, loss: loss.clone() };
        let reply = Reply { id: 0, body: Answer::Failed(failure) };
        let until = self.clock.now() + RETURN_WITHIN_MS;
        match (self.clients.get_mut(&token), encode(&reply)) {
            (Some(client), Ok(bytes)) if matches!(loss, Loss::Silent { .. }) => {
                let sent = client.channel.send(&bytes, &[]).is_ok();
                if sent && matches!(client.channel, Channel::Remote(_)) {
                    (client.rank, client.parting) = (None, Some(rank));
                    self.partings.insert(rank, until);
                    return self.watch(token);
                }
            }
            _ => {}
        }
        self.drop_client(token);
    }

    /// Nothing is kept for a worker that has gone.
    pub(super) fn forget(&mut self, rank: Rank) {
        self.catalog.forget(rank);
        self.tables.forget(rank);
        self.tickets.retain(|_, ticket| ticket.rank != rank);
    }

    pub(super) fn go_on_without(&mut self, rank: Rank) {
        self.knots.end(rank);
        if let (Some(bell), Some(items)) = (self.bells.remove(rank), &self.items) {
            items.send(items::Command::Silence(bell));
        }
        let answers = self.tables.join(&self.live());
        self.free_tables();
        self.answer_tables(answers);
        for shard in &self.shards.handles {
            shard.send(Command::Remove { rank });
        }
        self.open_barrier();
    }

    fn look_at_leases(&mut self) {
        let (now, lease_ms) = (self.clock.now(), self.lease_ms());
        if self.ended.is_none() {
            let silent = |(&rank, worker): (&Rank, &mut Worker)| worker.is_silent(now).then_some(rank);
            let silent: Vec<Rank> = self.workers.iter_mut().filter_map(silent).collect();
            for rank in silent {
                self.lose_rank(rank, Loss::Silent { lease_ms });
            }
        }
        self.partings.retain(|_, until| now <= *until);
        let partings = &self.partings;
        self.clients.retain(|_, client| match (client.rank, client.parting) {
            (None, Some(rank)) => partings.contains_key(&rank),
            (None, None) => now.saturating_sub(client.since) <= HELLO_WITHIN_MS,
            (Some(_), _) => true,
        });
    }

    // Requests

    /// Answers who has not said hello.
    fn ask_stranger(&mut self, token: u64, request: Request) -> Option<Answered> {
        match request.body {
            Ask::Hello { version, session, rank, size } => {
                Some(self.hello(token, version, session, rank, size))
            }
            // It has left, and the answer was lost with a connection.
            Ask::Leave { .. } if self.clients.get(&token)?.parting.is_some() => plain(Answer::Left),
            _ if self.clients.get(&token)?.parting.is_some() => None,
            _ => Some(Err(Refusal::Authentication)),
        }
    }

    /// Answers a worker's request, now or later.
    fn ask(&mut self, token: u64, rank: Rank, request: Request) -> Option<Answered> {
        match request.body {
            Ask::Hello { .. } => Some(Err(Refusal::Malformed { what: "it said hello twice".to_owned() })),
            Ask::Beat => plain(Answer::Alive),
            Ask::Heard => None,
            Ask::Declare { spec, decided } => Some(self.declare(rank, spec, decided)),
            Ask::Waits { wait, what, ranks } => {
                let knot = self.wait_in_circles(rank, wait, what, ranks);
                plain(Answer::Knot { knot })
            }
            Ask::Barrier { alone } => {
                let waits = self.workers.get_mut(&rank)?.at_barrier.replace(request.id);
                if waits != Some(request.id) {
                    self.roster.arrive(rank);
                    if alone {
                        self.knots.at_barrier(rank);
                    }
                    self.open_barrier();
                }
                None
            }
            Ask::Missing { tensor, version } => self.missing(rank, request.id, tensor, version),
            Ask::MissingAtBarrier => {
                self.knots.end(rank); // its wait was in vain
                plain(Answer::Missing { ranks: self.roster.missing_at_barrier() })
            }
            Ask::Clocks => {
                let ticket = match self.ticket(rank, request.id, 1) {
                    Ok(ticket) => ticket,
                    Err(refusal) => return Some(Err(refusal)),
                };
                self.shards.handles[0].send(Command::Clocks { ticket });
                None
            }
            Ask::State { tensor } => Some(self.state(tensor)),
            Ask::Table(ask) => {
                self.table(rank, request.id, ask);
                None
            }
            Ask::Leave { how } => self.leave(token, rank, request.id, how),
        }
    }

    fn hello(&mut self, token: u64, version: u32, session: Session, rank: Rank, size: u32) -> Answered {
        let system = |what: &str| {
            let what = what.to_owned();
            move |errno: Errno| Refusal::System { what, reason: errno.to_string() }
        };
        let client = self.clients.get(&token).ok_or(Refusal::Authentication)?;
        let Channel::Local(_) = &client.channel else {
            return self.hello_remote(token, version, session, rank, size);
        };
        if let Some(outcome) = &self.ended {
            self.roster.miss(rank, false);
            return Ok((last_word(outcome)?, Vec::new()));
        }
        if version != PROTOCOL_VERSION {
            return Err(Refusal::ProtocolVersion { expected: PROTOCOL_VERSION, got: version });
        }
        let shards = self.shards.handles.len() as u32;
        let charge = self.charge_descriptors(rank, shards + 1)?;
        let page = Region::new("penstock-page", page::bytes(shards), Writers::Holders)
            .map_err(system("make a page"))?;
        let clone = |fd: BorrowedFd<'_>| fd.try_clone_to_owned();
        let mut descriptors = Vec::with_capacity(shards as usize + 2);
        let mut wakeups = Vec::with_capacity(shards as usize);
        let copied = (|| -> std::io::Result<()> {
            descriptors.push(clone(page.fd())?);
            descriptors.push(clone(self.shards.board.region().fd())?);
            for _ in 0..shards {
                let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
                descriptors.push(clone(wakeup.as_fd())?);
                wakeups.push(wakeup);
            }
            Ok(())
        })();
        copied.map_err(|error| Refusal::System {
            what: "pass descriptors".to_owned(),
            reason: error.to_string(),
        })?;
        // Last, because it cannot be taken back: a rank joins once.
        self.roster.join(rank, size)?;
        for (shard, wakeup) in self.shards.handles.iter().zip(wakeups) {
            shard.send(Command::Join { rank, page: Arc::clone(page.mapping()), wakeup });
        }
        let page = Some(Arc::clone(page.mapping()));
        Ok((Answer::Welcome(self.enroll(token, rank, session, page, charge)), descriptors))
    }

    /// A worker on another host, whose connection has proved that it knows the secret: for the first time, or again.
    fn hello_remote(
        &mut self,
        token: u64,
        version: u32,
        session: Session,
        rank: Rank,
        size: u32,
    ) -> Answered {
        if version != PROTOCOL_VERSION {
            return Err(Refusal::ProtocolVersion { expected: PROTOCOL_VERSION, got: version });
        }
        let departed =
            self.departed.get(&rank).filter(|(theirs, _)| *theirs == session).map(|(_, last)| last);
        let here = self.workers.get(&rank).is_some_and(|worker| worker.session == session);
        let word = match (&self.ended, departed) {
            (_, Some(Last::Left)) => Some(Ok(Answer::Welcome(self.welcome()))), // it will say again that it leaves
            (Some(outcome), _) => Some(last_word(outcome)),
            (None, Some(Last::Lost(loss))) => {
                Some(Ok(Answer::Failed(JobFailure::WorkerLost { rank, loss: loss.clone() })))
            }
            (None, None) => None,
        };
        if let Some(word) = word {
            self.roster.miss(rank, false);
            if departed.is_some() || here {
                self.clients.get_mut(&token).ok_or(Refusal::Authentication)?.parting = Some(rank);
                let until = self.clock.now() + RETURN_WITHIN_MS;
                self.partings.entry(rank).or_insert(until);
            }
            return word.map(|word| (word, Vec::new()));
        }
        let again = |worker: &&mut Worker| worker.is_remote() && worker.session == session;
        if let Some(worker) = self.workers.get_mut(&rank).filter(again) {
            worker.signs += 1;
            if let Some(old) = worker.client.replace(token) {
                self.drop_client(old);
            }
            self.clients.get_mut(&token).ok_or(Refusal::Authentication)?.rank = Some(rank);
            return Ok((Answer::Welcome(self.welcome()), Vec::new()));
        }
        let charge = self.charge_descriptors(rank, self.shards.handles.len() as u32 + 2)?;
        self.roster.join(rank, size)?;
        for shard in &self.shards.handles {
            shard.send(Command::JoinRemote { rank });
        }
        Ok((Answer::Welcome(self.enroll(token, rank, session, None, charge)), Vec::new()))
    }

    /// Connections and wake-ups of a worker, for as long as it is here.
    fn charge_descriptors(&self, rank: Rank, count: u32) -> Result<Charge, Refusal> {
        let charge = self.account.peer(rank).charge(Resource::Descriptors, count.into());
        charge.map_err(|why| why.refuse("another worker's connections"))
    }

    fn enroll(
        &mut self,
        token: u64,
        rank: Rank,
        session: Session,
        page: Option<Arc<Mapping>>,
        descriptors: Charge,
    ) -> Welcome {
        let lease = Lease::new(self.lease_ms(), self.clock.now());
        let worker = Worker::new(page, session, lease, token, descriptors);
        self.workers.insert(rank, worker);
        if let Some(client) = self.clients.get_mut(&token) {
            client.rank = Some(rank);
        }
        self.welcome()
    }

    fn welcome(&self) -> Welcome {
        Welcome {
            server: self.config.index,
            servers: self.config.servers,
            shards: self.shards.handles.len() as u32,
            chunk_bytes: self.config.options.chunk_bytes,
            lease_ms: self.config.options.lease.as_millis() as u64,
            crowding: crowding(&self.config),
        }
    }

    fn declare(
        &mut self,
        rank: Rank,
        spec: penstock_proto::spec::TensorSpec,
        decided: Option<(TensorId, Vec<penstock_proto::placement::Extent>)>,
    ) -> Answered {
        if matches!(self.roster.of(0), Member::Left | Member::Lost) && !self.catalog.knows(&spec.name) {
            return Err(Refusal::NoValue { name: spec.name });
        }
        let (id, new) = self.catalog.declare(rank, spec, decided)?;
        if let Some(NewTensor { id, spec, total, homes }) = new {
            // A shard that is home of none of it need not know it.
            let homes = self.shards.handles.iter().zip(homes);
            for (shard, home) in homes.filter(|(_, home)| !home.chunks().is_empty()) {
                shard.send(Command::Declare { id, spec: Box::new(spec.clone()), total, home });
            }
        }
        let remote = self.workers.get(&rank).is_some_and(Worker::is_remote);
        let lanes = self.catalog.lane(id, rank, remote)?;
        let (slabs, descriptors) = self.catalog.pass(id, rank)?;
        let entry = self.catalog.get(id)?;
        for ((shard, lane), homed) in self.shards.handles.iter().zip(lanes).zip(&entry.homed) {
            if *homed > 0 {
                shard.send(Command::Lane { id, rank, lane });
            }
        }
        let answer = Answer::Declared {
            tensor: id,
            extents: entry.extents.clone(),
            homed: entry.homed.clone(),
            loads: entry.loads.clone(),
            slabs,
        };
        Ok((answer, descriptors))
    }

    /// Workers that are here or may still come.
    fn live(&self) -> BTreeSet<Rank> {
        let gone = |rank: &Rank| matches!(self.roster.of(*rank), Member::Left | Member::Lost);
        (0..self.config.workers).filter(|rank| !gone(rank)).collect()
    }

    fn table(&mut self, rank: Rank, request: u64, ask: TableAsk) {
        let live = self.live();
        let local = self.workers.get(&rank).is_some_and(|worker| !worker.is_remote());
        let asker = Asker { rank, request, local, live: &live };
        let (answers, sealed) = self.tables.ask(&asker, ask, &mut self.catalog, &mut self.bells);
        // Before its region is known there: what it sets from then on it rings for.
        self.pass_bells();
        if let Some(sealed) = sealed {
            match &self.items {
                Some(items) => items.send(items::Command::Region(sealed)),
                None => self.sealed.push(sealed),
            }
        }
        self.free_tables();
        self.answer_tables(answers);
    }

    /// Lets go of tables that all have dropped.
    fn free_tables(&mut self) {
        for table in self.tables.free() {
            self.sealed.retain(|sealed| sealed.id.table != table);
            if let Some(items) = &self.items {
                items.send(items::Command::Drop { table });
            }
        }
    }

    fn answer_tables(&mut self, answers: Answers) {
        for (rank, request, answer) in answers {
            self.answer(rank, request, answer.map(|(answer, fds)| (Answer::Table(answer), fds)));
        }
    }

    fn state(&mut self, tensor: TensorId) -> Answered {
        let entry = self.catalog.get(tensor)?;
        let fds = entry.state().map(|fd| fd.try_clone_to_owned()).transpose();
        let fds = fds.map_err(|error| Refusal::System {
            what: "pass the state".to_owned(),
            reason: error.to_string(),
        })?;
        Ok((Answer::State, fds.into_iter().collect()))
    }

    /// Notes whom a worker still waits for; the circle that the wait is part of.
    fn wait_in_circles(
        &mut self,
        rank: Rank,
        wait: u64,
        what: String,
        mut ranks: Vec<Rank>,
    ) -> Option<String> {
        ranks.truncate(self.config.workers as usize);
        if ranks.is_empty() {
            self.knots.end(rank);
            return None;
        }
        self.knots.waits(rank, wait, what, ranks);
        self.knots.find(rank, &self.roster.missing_at_barrier())
    }

    fn open_barrier(&mut self) {
        let Some(ranks) = self.roster.pass_barrier() else { return };
        for &rank in &ranks {
            self.knots.end(rank);
            if let Some(request) = self.workers.get_mut(&rank).and_then(|worker| worker.at_barrier.take()) {
                let answer = Answer::BarrierPassed { ranks: ranks.clone() };
                self.answer(rank, request, Ok((answer, Vec::new())));
            }
        }
    }

    // Questions to the shards

    fn ticket(&mut self, rank: Rank, request: u64, open: usize) -> Result<u64, Refusal> {
        let charge = self.account.peer(rank).charge(Resource::Entries, TICKET_ENTRIES);
        let entries = charge.map_err(|why| why.refuse("another question to the shards"))?;
        self.next_ticket += 1;
        let ticket = Ticket { rank, request, open, ranks: Vec::new(), _entries: entries };
        self.tickets.insert(self.next_ticket, ticket);
        Ok(self.next_ticket)
    }

    fn missing(&mut self, rank: Rank, request: u64, id: TensorId, version: u64) -> Option<Answered> {
        if let Err(refusal) = self.catalog.get(id) {
            return Some(Err(refusal));
        }
        let ticket = match self.ticket(rank, request, self.shards.handles.len()) {
            Ok(ticket) => ticket,
            Err(refusal) => return Some(Err(refusal)),
        };
        for shard in &self.shards.handles {
            shard.send(Command::Missing { ticket, id, version });
        }
        None
    }

    fn collect(&mut self, number: u64, ranks: Vec<Rank>) {
        let Some(ticket) = self.tickets.get_mut(&number) else { return };
        ticket.ranks.extend(ranks);
        ticket.open -= 1;
        if ticket.open == 0 {
            let Ticket { rank, request, mut ranks, .. } =
                self.tickets.remove(&number).expect("it was just there");
            ranks.sort_unstable();
            ranks.dedup();
            self.answer(rank, request, Ok((Answer::Missing { ranks }, Vec::new())));
        }
    }
}
