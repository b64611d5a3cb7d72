//! The control thread: takes workers in, declares tensors, watches leases, ends the job. It waits for descriptors only, and
//! what it sends it sends without waiting: a worker that does not read its answers is lost, not waited for.
//!
//! A worker on this host is lost with its connection. One on another host is not: until its lease ends it may connect again,
//! and repeats the requests that it has no answer to. Each is carried out once: the last answers are kept.

use super::catalog::{Catalog, NewTensor};
use super::client::{Channel, Client, Received, Worker};
use super::items;
use super::proof::Proof;
use super::shard::{Board, Command, Handle, Report};
use super::tables::{Answers, Asker, Sealed, Tables};
use super::{Order, ServerConfig, Shared, StartError, Wakeup, budget, crowding};
use crate::options::OnWorkerLoss;
use crate::wire::records::RecordStream;
use penstock_fabric::layout::page;
use penstock_fabric::net::stream::Stream;
use penstock_fabric::region::{Mapping, Region, Writers};
use penstock_fabric::socket::Listener;
use penstock_proto::error::{JobFailure, Loss, Refusal};
use penstock_proto::handshake::{Purpose, Session, Verdict, verdict};
use penstock_proto::items::control::TableAsk;
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
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

/// Connections that have not said who they are. One more is closed at once: strangers get no room to pile up.
const MAX_STRANGERS: usize = 256;
/// Longest time that a connection may take to say who it is.
const HELLO_WITHIN: Duration = Duration::from_secs(10);

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

/// A question that all shards answer.
struct Ticket {
    rank: Rank,
    request: u64,
    open: usize,
    ranks: Vec<Rank>,
}

pub(super) struct Control {
    config: ServerConfig,
    listener: Option<Listener>,
    shards: Shards,
    orders: Receiver<Order>,
    shared: Arc<Shared>,
    epoll: OwnedFd,
    clients: HashMap<u64, Client>,
    next_client: u64,
    workers: HashMap<Rank, Worker>,
    roster: Roster,
    catalog: Catalog,
    tables: Tables,
    /// Who passes rows on, from the first worker that needs it; the regions that it is told of then; and its bell, which producers
    /// on this host ring.
    items: Option<items::Handle>,
    sealed: Vec<Sealed>,
    items_bell: OwnedFd,
    tickets: HashMap<u64, Ticket>,
    next_ticket: u64,
    started: Instant,
    ended: Option<Result<(), JobFailure>>,
    buffer: Box<[u8; MAX_MESSAGE_BYTES]>,
}

/// What a request is answered with, at once.
type Answered = Result<(Answer, Vec<OwnedFd>), Refusal>;

/// Says why not, to who has not proved who it is, and hangs up.
fn refuse(mut channel: Channel, refusal: Refusal) {
    tracing::debug!(%refusal, "a stranger was refused");
    let _ = channel.send(&verdict(&Verdict::Refused(refusal)), &[]);
}

fn plain(answer: Answer) -> Option<Answered> {
    Some(Ok((answer, Vec::new())))
}

impl Control {
    pub(super) fn new(
        config: ServerConfig,
        listener: Option<Listener>,
        shards: Shards,
        orders: Receiver<Order>,
        shared: Arc<Shared>,
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
        let catalog = Catalog::new(
            config.index,
            config.servers,
            shards.handles.len() as u32,
            config.workers,
            config.options.chunk_bytes,
            budget::budget(config.options.memory),
        );
        Ok(Self {
            roster: Roster::new(config.workers),
            catalog,
            tables: Tables::default(),
            items: None,
            sealed: Vec::new(),
            items_bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(StartError::system("make a wake-up descriptor"))?,
            config,
            listener,
            shards,
            orders,
            shared,
            epoll,
            clients: HashMap::new(),
            next_client: 0,
            workers: HashMap::new(),
            tickets: HashMap::new(),
            next_ticket: 0,
            started: Instant::now(),
            ended: None,
            buffer: Box::new([0; MAX_MESSAGE_BYTES]),
        })
    }

    pub(super) fn run(mut self) {
        while self.ended.is_none() {
            self.turn();
        }
        let outcome = self.ended.take().unwrap_or(Ok(()));
        self.items = None;
        if let Err(failure) = &outcome {
            self.tell_all(failure);
        }
        for shard in &self.shards.handles {
            shard.send(Command::Stop);
        }
        // The socket goes before anyone hears of the end: whoever starts the next server finds the path free.
        self.listener = None;
        *self.shared.outcome.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(outcome);
        self.shared.ended.notify_all();
    }

    fn turn(&mut self) {
        let mut events = Vec::with_capacity(32);
        let tick = self.config.options.lease / 4;
        let timeout = Timespec {
            tv_sec: i64::try_from(tick.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(tick.subsec_nanos()),
        };
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout));
        for event in events {
            match event.data.u64() {
                LISTENER => self.accept(),
                WAKEUP => Wakeup::clear(self.shared.wakeup.as_fd()),
                client => self.serve(client),
            }
        }
        self.take_orders();
        self.take_reports();
        self.look_at_leases();
        self.shared.workers.store(self.workers.len() as u32, Ordering::Relaxed);
        self.shared.memory.store(self.catalog.taken(), Ordering::Relaxed);
        if self.ended.is_none() && self.roster.is_over() {
            self.ended = Some(Ok(()));
        }
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
                Order::Enter { stream, purpose: Purpose::Shard { rank, session, shard }, long } => {
                    self.attach(rank, session, shard, stream, long);
                }
                Order::Enter { stream, purpose: Purpose::Items { rank, session }, .. } => {
                    self.attach_items(rank, session, stream);
                }
                Order::Stop => self.end(JobFailure::Stopped),
            }
        }
    }

    fn take_reports(&mut self) {
        while let Ok(report) = self.shards.reports.try_recv() {
            match report {
                Report::Failed(failure) => self.end(failure),
                Report::Broke { rank, what } => self.lose_rank(rank, Loss::Broke { what }),
                Report::Missing { ticket, ranks } => self.collect(ticket, ranks),
                Report::Clocks { ticket, clocks } => {
                    if let Some(ticket) = self.tickets.remove(&ticket) {
                        self.answer(ticket.rank, ticket.request, Ok((Answer::Clocks { clocks }, Vec::new())));
                    }
                }
            }
        }
    }

    fn end(&mut self, failure: JobFailure) {
        if self.ended.is_none() {
            self.ended = Some(Err(failure));
        }
    }

    fn tell_all(&mut self, failure: &JobFailure) {
        let reply = Reply { id: 0, body: Answer::Failed(failure.clone()) };
        let Ok(bytes) = encode(&reply) else { return };
        for client in self.clients.values_mut().filter(|client| client.rank.is_some()) {
            let _ = client.channel.send(&bytes, &[]);
        }
    }

    // Connections

    fn accept(&mut self) {
        let accepted = self.listener.as_ref().map(Listener::accept);
        if let Some(Ok(connection)) = accepted {
            self.welcome_stranger(Channel::Local(connection));
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
            self.clients.insert(token, Client { channel, since: Instant::now(), proof, rank: None });
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

    fn start_items(&mut self) -> Result<items::Handle, StartError> {
        let copied = |error: std::io::Error| StartError::System {
            what: "copy a descriptor",
            reason: error.to_string(),
        };
        let setup = items::Setup {
            bell: self.items_bell.as_fd().try_clone_to_owned().map_err(copied)?,
            memory: Arc::clone(self.catalog.memory_left()),
            reports: self.shards.sender.clone(),
            control: Arc::clone(&self.shared),
        };
        let items = items::start(setup)?;
        for sealed in self.sealed.drain(..) {
            items.send(items::Command::Region(sealed));
        }
        Ok(items)
    }

    fn serve(&mut self, token: u64) {
        loop {
            let Some(client) = self.clients.get_mut(&token) else { return };
            let message = match client.channel.receive(&mut self.buffer) {
                Received::Message(message) => message,
                Received::Nothing => return self.watch(token),
                Received::End => return self.close(token, Loss::Died),
                Received::Oversized => {
                    return self.close(token, Loss::Broke { what: "an oversized message".to_owned() });
                }
            };
            if self.examine(token, &message) {
                continue;
            }
            match decode::<Request>(&message) {
                Err(error) => return self.close(token, Loss::Broke { what: error.to_string() }),
                Ok(request) => self.take(token, request),
            }
        }
    }

    fn take(&mut self, token: u64, request: Request) {
        let id = request.id;
        let rank = self.clients.get(&token).and_then(|client| client.rank);
        let Some(rank) = rank else {
            if let Some(answer) = self.ask_stranger(token, request) {
                self.answer_client(token, id, answer);
            }
            return;
        };
        if let Some(worker) = self.workers.get_mut(&rank) {
            worker.signs += 1;
            if let Some(bytes) = worker.answered(id) {
                return self.send(token, &bytes, &[]);
            }
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
    fn answer(&mut self, rank: Rank, id: u64, answer: Answered) {
        let Some((bytes, descriptors)) = Self::encode(id, answer) else { return };
        let Some(worker) = self.workers.get_mut(&rank) else { return };
        worker.keep_answer(id, &bytes);
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
        if client.channel.send(bytes, descriptors).is_err() {
            self.close(token, Loss::Broke { what: "it does not read its answers".to_owned() });
        } else {
            self.watch(token);
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
    fn close(&mut self, token: u64, loss: Loss) {
        let Some(client) = self.clients.remove(&token) else { return };
        let _ = epoll::delete(&self.epoll, &client.channel);
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

    fn lose_rank(&mut self, rank: Rank, loss: Loss) {
        match self.workers.get(&rank).and_then(|worker| worker.client) {
            Some(token) if loss != Loss::Died => self.close(token, loss),
            _ => self.lose(rank, loss),
        }
    }

    fn lose(&mut self, rank: Rank, loss: Loss) {
        if let Some(token) = self.workers.remove(&rank).and_then(|worker| worker.client) {
            self.clients.remove(&token);
        }
        if !self.roster.lose(rank) {
            return;
        }
        tracing::warn!(rank, %loss, "a worker was lost");
        match self.config.options.on_worker_loss {
            OnWorkerLoss::Stop => self.end(JobFailure::WorkerLost { rank, loss }),
            OnWorkerLoss::Continue => self.go_on_without(rank),
        }
    }

    fn go_on_without(&mut self, rank: Rank) {
        let answers = self.tables.join(&self.live());
        self.answer_tables(answers);
        for shard in &self.shards.handles {
            shard.send(Command::Remove { rank });
        }
        self.open_barrier();
    }

    fn look_at_leases(&mut self) {
        let now = self.started.elapsed().as_millis() as u64;
        let lease_ms = self.config.options.lease.as_millis() as u64;
        let silent = |(&rank, worker): (&Rank, &mut Worker)| worker.is_silent(now).then_some(rank);
        let silent: Vec<Rank> = self.workers.iter_mut().filter_map(silent).collect();
        for rank in silent {
            self.lose_rank(rank, Loss::Silent { lease_ms });
        }
        self.clients.retain(|_, client| client.rank.is_some() || client.since.elapsed() <= HELLO_WITHIN);
    }

    // Requests

    /// Answers who has not said hello.
    fn ask_stranger(&mut self, token: u64, request: Request) -> Option<Answered> {
        match request.body {
            Ask::Hello { version, session, rank, size } => {
                Some(self.hello(token, version, session, rank, size))
            }
            _ => Some(Err(Refusal::Authentication)),
        }
    }

    /// Answers a worker's request, now or later.
    fn ask(&mut self, token: u64, rank: Rank, request: Request) -> Option<Answered> {
        match request.body {
            Ask::Hello { .. } => Some(Err(Refusal::Malformed { what: "it said hello twice".to_owned() })),
            Ask::Beat => plain(Answer::Alive),
            Ask::Declare { spec, decided } => Some(self.declare(rank, spec, decided)),
            Ask::Barrier => {
                let waits = self.workers.get_mut(&rank)?.at_barrier.replace(request.id);
                if waits != Some(request.id) {
                    self.roster.arrive(rank);
                    self.open_barrier();
                }
                None
            }
            Ask::Missing { tensor, version } => self.missing(rank, request.id, tensor, version),
            Ask::MissingAtBarrier => plain(Answer::Missing { ranks: self.roster.missing_at_barrier() }),
            Ask::Clocks => {
                let ticket = self.ticket(rank, request.id, 1);
                self.shards.handles[0].send(Command::Clocks { ticket });
                None
            }
            Ask::State { tensor } => Some(self.state(tensor)),
            Ask::Table(ask) => {
                self.table(rank, request.id, ask);
                None
            }
            Ask::Leave { failed } => self.leave(token, rank, request.id, failed),
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
        if version != PROTOCOL_VERSION {
            return Err(Refusal::ProtocolVersion { expected: PROTOCOL_VERSION, got: version });
        }
        let shards = self.shards.handles.len() as u32;
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
        Ok((Answer::Welcome(self.enroll(token, rank, session, page)), descriptors))
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
        let again = |worker: &&mut Worker| worker.is_remote() && worker.session == session;
        if let Some(worker) = self.workers.get_mut(&rank).filter(again) {
            worker.signs += 1;
            let old = worker.client.replace(token);
            if let Some(old) = old {
                self.clients.remove(&old);
            }
            self.clients.get_mut(&token).ok_or(Refusal::Authentication)?.rank = Some(rank);
            return Ok((Answer::Welcome(self.welcome()), Vec::new()));
        }
        self.roster.join(rank, size)?;
        for shard in &self.shards.handles {
            shard.send(Command::JoinRemote { rank });
        }
        Ok((Answer::Welcome(self.enroll(token, rank, session, None)), Vec::new()))
    }

    fn enroll(&mut self, token: u64, rank: Rank, session: Session, page: Option<Arc<Mapping>>) -> Welcome {
        let lease_ms = self.config.options.lease.as_millis() as u64;
        let lease = Lease::new(lease_ms, self.started.elapsed().as_millis() as u64);
        self.workers.insert(rank, Worker::new(page, session, lease, token));
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
            for (shard, home) in self.shards.handles.iter().zip(homes) {
                shard.send(Command::Declare { id, spec: Box::new(spec.clone()), total, home });
            }
        }
        let remote = self.workers.get(&rank).is_some_and(Worker::is_remote);
        let mut descriptors = Vec::new();
        if remote && let Some(lane) = self.catalog.remote_lane(id, rank)? {
            for shard in &self.shards.handles {
                shard.send(Command::Lane { id, rank, lane: lane.clone() });
            }
        }
        let lane = if remote { None } else { self.catalog.lane(id)? };
        let entry = self.catalog.get(id)?;
        if let (Some((lane, region)), Some(model)) = (lane, &entry.descriptors) {
            let clone = |fd: BorrowedFd<'_>| {
                fd.try_clone_to_owned().map_err(|error| Refusal::System {
                    what: "pass a tensor's memory".to_owned(),
                    reason: error.to_string(),
                })
            };
            descriptors.push(clone(model.model())?);
            descriptors.push(clone(region.fd())?);
            for shard in &self.shards.handles {
                shard.send(Command::Lane { id, rank, lane: lane.clone() });
            }
        }
        let answer = Answer::Declared {
            tensor: id,
            extents: entry.extents.clone(),
            homed: entry.homed.clone(),
            loads: entry.loads.clone(),
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
        let asker = Asker { rank, request, local, bell: self.items_bell.as_fd(), live: &live };
        let (answers, sealed) = self.tables.ask(&asker, ask, &mut self.catalog);
        if let Some(sealed) = sealed {
            match &self.items {
                Some(items) => items.send(items::Command::Region(sealed)),
                None => self.sealed.push(sealed),
            }
        }
        self.answer_tables(answers);
    }

    fn answer_tables(&mut self, answers: Answers) {
        for (rank, request, answer) in answers {
            self.answer(rank, request, answer.map(|(answer, fds)| (Answer::Table(answer), fds)));
        }
    }

    fn state(&mut self, tensor: TensorId) -> Answered {
        let entry = self.catalog.get(tensor)?;
        let state = entry.descriptors.as_ref().and_then(|descriptors| descriptors.state());
        let fds = state.map(|fd| fd.try_clone_to_owned()).transpose();
        let fds = fds.map_err(|error| Refusal::System {
            what: "pass the state".to_owned(),
            reason: error.to_string(),
        })?;
        Ok((Answer::State, fds.into_iter().collect()))
    }

    fn leave(&mut self, token: u64, rank: Rank, request: u64, failed: Option<String>) -> Option<Answered> {
        match failed {
            Some(what) => self.close(token, Loss::Failed { what }),
            None => {
                self.answer(rank, request, Ok((Answer::Left, Vec::new())));
                self.workers.remove(&rank);
                if self.roster.leave(rank) {
                    self.go_on_without(rank);
                }
                if let Some(client) = self.clients.remove(&token) {
                    let _ = epoll::delete(&self.epoll, &client.channel);
                }
            }
        }
        None
    }

    fn open_barrier(&mut self) {
        let Some(ranks) = self.roster.pass_barrier() else { return };
        for rank in ranks {
            if let Some(request) = self.workers.get_mut(&rank).and_then(|worker| worker.at_barrier.take()) {
                self.answer(rank, request, Ok((Answer::BarrierPassed, Vec::new())));
            }
        }
    }

    // Questions to the shards

    fn ticket(&mut self, rank: Rank, request: u64, open: usize) -> u64 {
        self.next_ticket += 1;
        self.tickets.insert(self.next_ticket, Ticket { rank, request, open, ranks: Vec::new() });
        self.next_ticket
    }

    fn missing(&mut self, rank: Rank, request: u64, id: TensorId, version: u64) -> Option<Answered> {
        if let Err(refusal) = self.catalog.get(id) {
            return Some(Err(refusal));
        }
        let ticket = self.ticket(rank, request, self.shards.handles.len());
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
