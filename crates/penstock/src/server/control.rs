//! The control thread: takes workers in, declares tensors, watches leases, ends the job. It waits for descriptors only, and
//! what it sends it sends without waiting: a worker that does not read its answers is lost, not waited for.

use super::catalog::{Catalog, NewTensor};
use super::shard::{Board, Command, Handle, Report};
use super::{Order, ServerConfig, Shared, StartError, Wakeup, budget, crowding};
use crate::options::OnWorkerLoss;
use penstock_fabric::layout::{Count, page};
use penstock_fabric::region::{Mapping, Region, Writers};
use penstock_fabric::socket::{Connection, Listener};
use penstock_fabric::sync::Ordering;
use penstock_proto::error::{JobFailure, Loss, Refusal};
use penstock_proto::membership::{Lease, Member, Roster};
use penstock_proto::message::{
    Answer, Ask, MAX_MESSAGE_BYTES, PROTOCOL_VERSION, Reply, Request, Secret, Welcome, decode, encode,
};
use penstock_proto::{Rank, TensorId};
use rustix::event::epoll;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::time::Timespec;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;

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
    pub(super) board: Board,
}

struct Client {
    connection: Connection,
    since: Instant,
    worker: Option<Worker>,
}

struct Worker {
    rank: Rank,
    page: Arc<Mapping>,
    lease: Lease,
    /// The request that stands at the barrier.
    at_barrier: Option<u64>,
}

/// A question that all shards answer.
struct Ticket {
    client: u64,
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
    roster: Roster,
    catalog: Catalog,
    tickets: HashMap<u64, Ticket>,
    next_ticket: u64,
    started: Instant,
    ended: Option<Result<(), JobFailure>>,
    buffer: Box<[u8; MAX_MESSAGE_BYTES]>,
}

/// What a request is answered with, at once.
type Answered = Result<(Answer, Vec<OwnedFd>), Refusal>;

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
            config,
            listener,
            shards,
            orders,
            shared,
            epoll,
            clients: HashMap::new(),
            next_client: 0,
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
        if self.ended.is_none() && self.roster.is_over() {
            self.ended = Some(Ok(()));
        }
    }

    fn take_orders(&mut self) {
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Accept(connection) => self.welcome_stranger(connection),
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
                        self.answer(
                            ticket.client,
                            ticket.request,
                            Ok((Answer::Clocks { clocks }, Vec::new())),
                        );
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
        for client in self.clients.values().filter(|client| client.worker.is_some()) {
            let _ = client.connection.send(&bytes, &[], SendFlags::DONTWAIT);
        }
    }

    // Connections

    fn accept(&mut self) {
        let accepted = self.listener.as_ref().map(Listener::accept);
        if let Some(Ok(connection)) = accepted {
            self.welcome_stranger(connection);
        }
    }

    fn welcome_stranger(&mut self, connection: Connection) {
        let strangers = self.clients.values().filter(|client| client.worker.is_none()).count();
        if strangers >= MAX_STRANGERS {
            return;
        }
        let token = self.next_client;
        self.next_client += 1;
        let flags = epoll::EventFlags::IN;
        if epoll::add(&self.epoll, &connection, epoll::EventData::new_u64(token), flags).is_ok() {
            self.clients.insert(token, Client { connection, since: Instant::now(), worker: None });
        }
    }

    fn serve(&mut self, token: u64) {
        let Some(client) = self.clients.get(&token) else { return };
        let request = match client.connection.receive(&mut self.buffer, RecvFlags::DONTWAIT) {
            Ok(0) => return self.close(token, Loss::Died),
            Ok(length) => decode::<Request>(&self.buffer[..length]),
            Err(Errno::AGAIN) => return,
            Err(Errno::MSGSIZE) => {
                return self.close(token, Loss::Broke { what: "an oversized message".to_owned() });
            }
            Err(_) => return self.close(token, Loss::Died),
        };
        match request {
            Err(error) => self.close(token, Loss::Broke { what: error.to_string() }),
            Ok(request) => {
                let id = request.id;
                if let Some(answer) = self.ask(token, request) {
                    self.answer(token, id, answer);
                }
            }
        }
    }

    fn answer(&mut self, token: u64, id: u64, answer: Answered) {
        let Some(client) = self.clients.get(&token) else { return };
        let (body, descriptors) = answer.unwrap_or_else(|refusal| (Answer::Refused(refusal), Vec::new()));
        let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        let Ok(bytes) = encode(&Reply { id, body }) else { return };
        if client.connection.send(&bytes, &descriptors, SendFlags::DONTWAIT).is_err() {
            self.close(token, Loss::Broke { what: "it does not read its answers".to_owned() });
        }
    }

    /// The connection is over; if it was a worker's, the worker is lost.
    fn close(&mut self, token: u64, loss: Loss) {
        if let Some(client) = self.clients.remove(&token) {
            let _ = epoll::delete(&self.epoll, &client.connection);
            if let Some(worker) = client.worker {
                self.lose(worker.rank, loss);
            }
        }
    }

    fn lose_rank(&mut self, rank: Rank, loss: Loss) {
        let of = |client: &Client| client.worker.as_ref().is_some_and(|worker| worker.rank == rank);
        if let Some(token) = self.clients.iter().find(|(_, client)| of(client)).map(|(&token, _)| token) {
            self.close(token, loss);
        }
    }

    fn lose(&mut self, rank: Rank, loss: Loss) {
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
        for shard in &self.shards.handles {
            shard.send(Command::Remove { rank });
        }
        self.open_barrier();
    }

    fn look_at_leases(&mut self) {
        let now = self.started.elapsed().as_millis() as u64;
        let lease_ms = self.config.options.lease.as_millis() as u64;
        let mut over = Vec::new();
        for (&token, client) in &mut self.clients {
            match &mut client.worker {
                Some(worker) => {
                    let sign = worker.page.at::<Count>(page::HEARTBEAT).0.load(Ordering::Relaxed);
                    if worker.lease.has_ended(sign, now) {
                        over.push((token, Loss::Silent { lease_ms }));
                    }
                }
                None if client.since.elapsed() > HELLO_WITHIN => over.push((token, Loss::Died)),
                None => {}
            }
        }
        for (token, loss) in over {
            self.close(token, loss);
        }
    }

    // Requests

    /// Answers a request, now or later.
    fn ask(&mut self, token: u64, request: Request) -> Option<Answered> {
        let rank = self.clients.get(&token)?.worker.as_ref().map(|worker| worker.rank);
        match (rank, request.body) {
            (None, Ask::Hello { version, secret, rank, size }) => {
                Some(self.hello(token, version, &secret, rank, size))
            }
            (None, _) => Some(Err(Refusal::Authentication)),
            (Some(_), Ask::Hello { .. }) => {
                Some(Err(Refusal::Malformed { what: "it said hello twice".to_owned() }))
            }
            (Some(rank), Ask::Declare { spec, decided }) => Some(self.declare(rank, spec, decided)),
            (Some(rank), Ask::Barrier) => {
                self.worker(token)?.at_barrier = Some(request.id);
                self.roster.arrive(rank);
                self.open_barrier();
                None
            }
            (Some(_), Ask::Missing { tensor, version }) => self.missing(token, request.id, tensor, version),
            (Some(_), Ask::MissingAtBarrier) => {
                plain(Answer::Missing { ranks: self.roster.missing_at_barrier() })
            }
            (Some(_), Ask::Clocks) => {
                let ticket = self.ticket(token, request.id, 1);
                self.shards.handles[0].send(Command::Clocks { ticket });
                None
            }
            (Some(_), Ask::State { tensor }) => Some(self.state(tensor)),
            (Some(rank), Ask::Leave { failed }) => self.leave(token, rank, request.id, failed),
        }
    }

    fn worker(&mut self, token: u64) -> Option<&mut Worker> {
        self.clients.get_mut(&token)?.worker.as_mut()
    }

    fn hello(&mut self, token: u64, version: u32, secret: &Secret, rank: Rank, size: u32) -> Answered {
        let system = |what: &str| {
            let what = what.to_owned();
            move |errno: Errno| Refusal::System { what, reason: errno.to_string() }
        };
        let client = self.clients.get(&token).ok_or(Refusal::Authentication)?;
        let peer = client.connection.peer().map_err(system("ask who is there"))?;
        let same_user = peer.uid == rustix::process::getuid().as_raw();
        let same_secret = bool::from(secret.0[..].ct_eq(&self.config.secret.0[..]));
        if !same_user || !same_secret {
            return Err(Refusal::Authentication);
        }
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
        let lease_ms = self.config.options.lease.as_millis() as u64;
        let lease = Lease::new(lease_ms, self.started.elapsed().as_millis() as u64);
        let worker = Worker { rank, page: Arc::clone(page.mapping()), lease, at_barrier: None };
        self.clients.get_mut(&token).ok_or(Refusal::Authentication)?.worker = Some(worker);
        let welcome = Welcome {
            server: self.config.index,
            servers: self.config.servers,
            shards,
            chunk_bytes: self.config.options.chunk_bytes,
            lease_ms,
            crowding: crowding(&self.config),
        };
        Ok((Answer::Welcome(welcome), descriptors))
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
        let lane = self.catalog.lane(id)?;
        let entry = self.catalog.get(id)?;
        let mut descriptors = Vec::new();
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
        let answer =
            Answer::Declared { tensor: id, extents: entry.extents.clone(), homed: entry.homed.clone() };
        Ok((answer, descriptors))
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
                self.answer(token, request, Ok((Answer::Left, Vec::new())));
                if self.roster.leave(rank) {
                    self.go_on_without(rank);
                }
                if let Some(client) = self.clients.remove(&token) {
                    let _ = epoll::delete(&self.epoll, &client.connection);
                }
            }
        }
        None
    }

    fn open_barrier(&mut self) {
        let Some(ranks) = self.roster.pass_barrier() else { return };
        let mut passed = Vec::new();
        for (&token, client) in &mut self.clients {
            if let Some(worker) = client.worker.as_mut().filter(|worker| ranks.contains(&worker.rank)) {
                passed.extend(worker.at_barrier.take().map(|request| (token, request)));
            }
        }
        for (token, request) in passed {
            self.answer(token, request, Ok((Answer::BarrierPassed, Vec::new())));
        }
    }

    // Questions to the shards

    fn ticket(&mut self, client: u64, request: u64, open: usize) -> u64 {
        self.next_ticket += 1;
        self.tickets.insert(self.next_ticket, Ticket { client, request, open, ranks: Vec::new() });
        self.next_ticket
    }

    fn missing(&mut self, client: u64, request: u64, id: TensorId, version: u64) -> Option<Answered> {
        if let Err(refusal) = self.catalog.get(id) {
            return Some(Err(refusal));
        }
        let ticket = self.ticket(client, request, self.shards.handles.len());
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
            let Ticket { client, request, mut ranks, .. } =
                self.tickets.remove(&number).expect("it was just there");
            ranks.sort_unstable();
            ranks.dedup();
            self.answer(client, request, Ok((Answer::Missing { ranks }, Vec::new())));
        }
    }
}
