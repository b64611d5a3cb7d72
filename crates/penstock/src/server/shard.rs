//! A shard: one thread that owns its chunks, with one loop. It takes orders, pops submissions, lets the machine of
//! `penstock-proto` decide, folds in shared memory, publishes, wakes the workers that wait, and sleeps when there is nothing to
//! do.

use super::arrivals::Newest;
use super::bells;
use super::control::Made;
use super::living::Living;
use super::pace::{KeptWaiting, Pace};
use super::ports::{Local, Port, Ports};
use super::remote::Remote;
use super::shard_memory::{Memory, Touched};
use super::{Obituary, Shared, StartError, fair_share};
use crate::thread::{self, Inbox};
use crate::uplink::Uplink;
use crate::wait::{self, Crowd, OneCore, Patience, Shards};
use crate::wire::vigil::look_every;
use penstock_fabric::doorbell::{self, ANYTHING, Sleeping, single_chunks};
use penstock_fabric::inlet::Inlet;
use penstock_fabric::layout::{Count, flags};
use penstock_fabric::memory::{HomeMemory, LaneView};
use penstock_fabric::net::remote_peer::{Heard, Taken};
use penstock_fabric::net::stream::Stream;
use penstock_fabric::region::{Mapping, Region, Writers};
use penstock_fabric::ring::Broken;
use penstock_fabric::spent::Spent;
use penstock_fabric::sync::Ordering;
use penstock_proto::account::Exhausted;
use penstock_proto::error::JobFailure;
use penstock_proto::job::job_number;
use penstock_proto::overlay::{Direct, Routes};
use penstock_proto::peer::PeerId;
use penstock_proto::pressure::Change;
use penstock_proto::remote::home::{self, Chunks, Subscribers};
use penstock_proto::seal::{Scope, Sealer};
use penstock_proto::shard::{Judged, Shard, SubmissionRefused};
use penstock_proto::spec::TensorSpec;
use penstock_proto::submission::{NOBODY, Submission, WORDS};
use penstock_proto::travel::Terms;
use penstock_proto::uplink::To;
use penstock_proto::{Rank, TensorId};
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Submissions taken from one worker before the next worker's turn.
const TURN: u64 = 16;
/// Frames taken from one worker on another host before the next worker's turn.
const FRAMES: usize = 32;
/// Longest sleep while a worker is held back for another.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// The same while all are for what they have spent: where the other job falls silent they may be heard sooner.
const LOOK_BESIDE: Duration = Duration::from_millis(100);
/// Time from one question to the connections, what they have carried, to the next, where a filter follows that.
const FLOWS_APART: Duration = Duration::from_millis(25);
/// Tokens of the connections of peers on other hosts, in the shard's poll: this and the port's place.
const CONNECTIONS: u64 = 1 << 32;

/// What the control thread tells a shard.
#[derive(Debug)]
pub(super) enum Command {
    Join {
        peer: PeerId,
        page: Arc<Mapping>,
        wakeup: OwnedFd,
    },
    /// A peer on another host has joined.
    JoinRemote {
        peer: PeerId,
    },
    /// It has connected to this shard, for the first time or again.
    Attach {
        peer: PeerId,
        /// The connection; whether its round trip is long.
        waiting: Newest<(Stream, bool)>,
    },
    Declare {
        id: TensorId,
        spec: Box<TensorSpec>,
        /// What it says of how chunks travel.
        terms: Arc<Terms>,
        total: u32,
        home: HomeMemory,
    },
    Lane {
        id: TensorId,
        rank: Rank,
        lane: LaneView,
    },
    Remove {
        peer: PeerId,
    },
    /// The process of a peer on another host has ended: the control thread wants to know when all that it sent has come.
    AwaitEnd {
        peer: PeerId,
    },
    Missing {
        ticket: u64,
        id: TensorId,
        version: u64,
    },
    Clocks {
        ticket: u64,
    },
    Followed {
        ticket: u64,
        id: TensorId,
    },
    /// How values go to peers on other hosts from now on.
    Routes(Arc<Routes>),
    /// A peer is to be told of its route again, after a while: the parent that it has left was not at fault.
    RouteAgain {
        peer: PeerId,
    },
    Stop,
}

/// What a shard tells the control thread.
#[derive(Debug)]
pub(super) enum Report {
    Failed(JobFailure),
    Broke {
        peer: PeerId,
        what: String,
    },
    /// What a peer needs is more than may be kept for it.
    Exhausted {
        peer: PeerId,
        what: &'static str,
        why: Exhausted,
    },
    /// The peer has said goodbye, and everything before that was taken.
    Departed {
        peer: PeerId,
    },
    /// A peer's process has ended, and so has its connection: nothing more comes of it.
    Ended {
        peer: PeerId,
    },
    /// A worker has left one that fed it, whose fault that was.
    Strayed {
        rank: Rank,
        parent: Rank,
    },
    Missing {
        ticket: u64,
        ranks: Vec<Rank>,
    },
    Clocks {
        ticket: u64,
        clocks: Vec<i64>,
    },
    Followed {
        ticket: u64,
        changes: Vec<Change>,
    },
    /// Trees were planned, on a thread of their own.
    Planned(Box<Made>),
}

/// Where all shards of a server show whether they sleep.
#[derive(Debug, Clone)]
pub(super) struct Flags(Arc<Region>);

impl Flags {
    pub(super) fn new() -> rustix::io::Result<Self> {
        Ok(Self(Arc::new(Region::new("penstock-flags", flags::BYTES, Writers::Maker)?)))
    }

    pub(super) fn region(&self) -> &Region {
        &self.0
    }

    /// Shows that a shard, or the control thread, lives. Only that thread calls this for itself.
    pub(super) fn beat(&self, shard: u32) {
        let count = &self.0.mapping().at::<Count>(flags::heartbeat(shard)).0;
        // A count of one writer: no read-modify-write, which would cost a shard's loop more than all the rest of a look.
        count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    fn sleeping(&self, shard: u32) -> &Sleeping {
        self.0.mapping().at(flags::sleeping(shard))
    }
}

/// What a shard is started with.
pub(super) struct Setup {
    pub(super) index: u32,
    /// The server's number.
    pub(super) server: u32,
    /// The job's name.
    pub(super) job: String,
    pub(super) workers: u32,
    /// Threads that may want a core beside this server's `shards`, and cores.
    pub(super) others: u32,
    pub(super) shards: u32,
    pub(super) cores: u32,
    /// Of the server's key: what is passed on is sealed with it.
    pub(super) seal_seed: [u8; 32],
    pub(super) lease: Duration,
    /// The job's place among those behind the same acceptor.
    pub(super) place: Option<fair_share::Place>,
    pub(super) core: Option<usize>,
    pub(super) flags: Flags,
    pub(super) reports: Sender<Report>,
    pub(super) control: Arc<Shared>,
    /// Counts the time that its layers take.
    pub(super) spent: Arc<Spent>,
    /// What this host's link carries, as far as this job uses it.
    pub(super) uplink: Arc<Uplink>,
}

impl thread::Command for Command {
    const STOP: Self = Self::Stop;
}

/// The control thread's end of a shard.
pub(super) type Handle = thread::Handle<Command>;

/// The thread is for the caller to wait for: all are told to end before one is waited for.
pub(super) fn start(setup: Setup) -> Result<(Handle, JoinHandle<()>), StartError> {
    let (handle, inbox) = thread::commanded().map_err(StartError::system("make a wake-up descriptor"))?;
    let epoll =
        epoll::create(epoll::CreateFlags::CLOEXEC).map_err(StartError::system("make an epoll descriptor"))?;
    let watch =
        epoll::add(&epoll, inbox.wakeup(), epoll::EventData::new_u64(u64::MAX), epoll::EventFlags::IN);
    watch.map_err(StartError::system("watch a wake-up descriptor"))?;
    let name = format!("penstock-shard-{}", setup.index);
    let ports = Ports::new(setup.workers);
    let mut memory = Memory::new(setup.index, setup.flags.clone());
    let scope = Scope { job: job_number(&setup.job), server: setup.server, shard: setup.index };
    memory.seal_with(Sealer::new(&setup.seal_seed, scope));
    memory.count_time(Arc::clone(&setup.spent));
    let (control, reports) = (Arc::clone(&setup.control), setup.reports.clone());
    let obituary = Obituary { thread: "folds", server: setup.server, reports, control };
    let machine = Shard::new(setup.workers);
    let work = Pace::of_work(setup.shards, setup.cores, Instant::now());
    let run = Loop {
        setup,
        inbox,
        epoll,
        machine,
        ports,
        overlay: Direct::default(),
        routes: Arc::default(),
        epoch: 0,
        again: Vec::new(),
        memory,
        networked: false,
        generation: 0,
        running: true,
        failed: false,
        next_vigil: Instant::now(),
        since: Instant::now(),
        next_flow: Instant::now(),
        now: Instant::now(),
        pace: Pace::of_frames(Instant::now()),
        work,
        kept: KeptWaiting::new(Instant::now()),
        out: false,
        moved: false,
    };
    let thread = thread::spawn(name, move || {
        let _obituary = obituary;
        // Kernels see to themselves; this is for the numbers that the machine gives them.
        penstock_kernels::settle_this_thread();
        run.run();
    });
    Ok((handle, thread.map_err(StartError::thread)?))
}

struct Loop {
    setup: Setup,
    inbox: Inbox<Command>,
    epoll: OwnedFd,
    machine: Shard,
    ports: Ports,
    /// The peers that values are sent to.
    overlay: Direct,
    /// Who else feeds them; the last route's number.
    routes: Arc<Routes>,
    epoch: u32,
    /// Who is to be told of its route again, and when.
    again: Vec<(Instant, PeerId)>,
    memory: Memory,
    /// Whether some peer is on another host: then the poll is asked at every look.
    networked: bool,
    /// The change of shares that was applied last.
    generation: u64,
    running: bool,
    /// The job has failed here: nothing more is folded or published, so that nobody takes half an update for a whole one.
    failed: bool,
    /// When connections are next looked at for silence.
    next_vigil: Instant,
    /// When the loop began; when its connections are next asked what they have carried.
    since: Instant,
    next_flow: Instant,
    /// When the current look began, where some peer is on another host.
    now: Instant,
    /// What all connections together may say that moves no values, beside other jobs; whether they have said it all.
    pace: Pace,
    /// What their clocks, flushes and first values have it go over.
    work: Pace,
    out: bool,
    /// For how long that was so.
    kept: KeptWaiting,
    /// Whether something came lately that is worth waiting for more of.
    moved: bool,
}

impl Loop {
    fn run(mut self) {
        self.pin();
        let crowd = Crowd::Counted(Shards {
            flags: Arc::clone(self.setup.flags.region().mapping()),
            shards: self.setup.shards,
            others: self.setup.others,
            cores: self.setup.cores,
        });
        // Which threads of other hosts are awake cannot be seen from here, and looking at connections takes system calls,
        // unlike looking at memory.
        let everybody = Crowd::Taken(self.setup.others.saturating_add(self.setup.shards) > self.setup.cores);
        let one_core = OneCore::default();
        let fresh = |networked: bool| match networked {
            true => Patience::at_sockets(&everybody),
            false => Patience::new(&crowd).heeding(&one_core),
        };
        let mut patience = fresh(self.networked);
        while self.running {
            let busy = self.look();
            if std::mem::take(&mut self.moved) || (busy && !self.is_shared()) {
                patience.answered();
                patience = fresh(self.networked);
            } else if !busy && !patience.pause() {
                self.sleep();
                // Beside other jobs this thread stays awake only for peers that move values: staying awake takes processor
                // time, which is theirs too.
                if !self.is_shared() {
                    patience = fresh(self.networked);
                }
            }
        }
    }

    fn is_shared(&self) -> bool {
        self.setup.place.as_ref().is_some_and(|place| place.shares.is_shared())
    }

    fn is_beside_another(&self) -> bool {
        self.setup.place.as_ref().is_some_and(fair_share::Place::is_beside_another)
    }

    fn note_deed(&self) {
        self.setup.place.iter().for_each(fair_share::Place::acted);
    }

    fn pin(&self) {
        if let Some(core) = self.setup.core {
            let mut set = rustix::thread::CpuSet::new();
            set.set(core);
            if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
                tracing::warn!(shard = self.setup.index, core, %error, "the shard is not bound to its core");
            }
        }
    }

    /// Does what there is to do; `false` if there was nothing.
    fn look(&mut self) -> bool {
        self.setup.flags.beat(self.setup.index);
        let mut busy = self.take_commands();
        if self.failed {
            return busy;
        }
        if self.networked {
            self.poll(Duration::ZERO);
            self.now = Instant::now();
            self.keep_to_share();
            let out = [&mut self.pace, &mut self.work].map(|pace| pace.is_out(self.now));
            self.out = out.contains(&true) && self.is_beside_another();
            if self.kept.note(self.out, self.now) {
                tracing::warn!(
                    job = %self.setup.job,
                    shard = self.setup.index,
                    "the job's workers are kept waiting beside other jobs: they have this shard do much for few values"
                );
            }
        }
        for place in self.ports.places() {
            busy |= self.take_turn(place);
        }
        if self.networked {
            busy |= self.send();
            self.tell_ends();
            self.look_at_network();
            self.setup.uplink.look(self.now);
            self.tell_again();
            // A thread that always finds something to do never comes to sleep.
            if self.now >= self.next_vigil {
                self.keep_vigil();
            }
        }
        busy
    }

    fn has_work(&self) -> bool {
        self.inbox.is_open() || (!self.failed && self.ports.iter().any(Port::has_work))
    }

    fn sleep(&mut self) {
        let sleeping = self.setup.flags.sleeping(self.setup.index);
        sleeping.announce();
        if !self.has_work() {
            // A shard that sleeps still has to show that it lives.
            self.poll(look_every(self.setup.lease).min(self.until_heard()));
        }
        self.setup.flags.sleeping(self.setup.index).awake();
        self.now = Instant::now();
        // Before anything is taken: what was earned asleep pays for nothing beyond the burst.
        [&mut self.pace, &mut self.work].into_iter().for_each(|pace| pace.earn(self.now));
        if self.networked && !self.failed {
            self.keep_vigil();
        }
    }

    /// How long it may sleep for peers that it does not hear now.
    fn until_heard(&self) -> Duration {
        let paused = |port: &Port| matches!(port, Port::Remote(remote) if remote.is_paused());
        if self.out && !self.failed {
            self.pace.out_for().max(self.work.out_for()).min(LOOK_BESIDE)
        } else if self.ports.iter().any(paused) {
            // Such a peer waits for others, and one of those may stop sending, which rings no bell.
            LOOK_AGAIN
        } else {
            Duration::MAX
        }
    }

    /// Looks for connections that are silent, now and then.
    fn keep_vigil(&mut self) {
        let now = Instant::now();
        if now < self.next_vigil {
            return;
        }
        self.next_vigil = now + look_every(self.setup.lease);
        // First whatever has come, which may lie there since before this process was suspended.
        for place in self.ports.places() {
            if let Some(remote) = self.ports.remote_at(place) {
                remote.ready(true, false);
                self.take_turn(place);
            }
        }
        for (_, remote) in self.ports.remotes() {
            remote.keep_vigil();
        }
    }

    /// Asks the poll what is ready, and waits for something, at most for `longest`.
    fn poll(&mut self, longest: Duration) {
        for event in wait::events(&self.epoll, 16, Some(longest)) {
            let (token, flags) = (event.data.u64(), event.flags);
            if token == u64::MAX {
                self.inbox.wakeup().clear();
                continue;
            }
            // Where there is no connection a worker has rung, which is all there is to know. Its descriptor is
            // never read: see `bells`.
            if let Some(remote) = self.ports.remote_at((token % CONNECTIONS) as usize) {
                // Errors and hang-ups are found out by reading.
                remote.ready(flags != epoll::EventFlags::OUT, flags.contains(epoll::EventFlags::OUT));
                if flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP) {
                    remote.leave_poll(&self.epoll);
                }
            }
        }
    }

    /// Sizes the connections' buffers anew when jobs or connections behind the acceptor have come or gone.
    fn keep_to_share(&mut self) {
        let Some(place) = &self.setup.place else { return };
        place.shares.look(self.now);
        let generation = place.shares.generation();
        if generation == self.generation {
            return;
        }
        self.generation = generation;
        let buffer = place.shares.buffer(place.job);
        for (_, remote) in self.ports.remotes() {
            remote.resize(buffer);
        }
    }

    /// Tells of the connections that were awaited to end.
    fn tell_ends(&mut self) {
        for place in self.ports.places() {
            if let Some(remote) = self.ports.remote_at(place)
                && remote.take_end()
            {
                let peer = remote.peer();
                self.report(Report::Ended { peer });
            }
        }
    }

    /// Sends what is due to peers on other hosts.
    fn send(&mut self) -> bool {
        let mut busy = false;
        let mut sealed = 0;
        for (place, remote) in self.ports.remotes() {
            busy |= remote.send(&self.memory);
            sealed += remote.take_sealed_bare();
            if let Some(interest) = remote.change_of_interest() {
                remote.watch(&self.epoll, CONNECTIONS + place as u64, interest);
            }
        }
        // Chunks that rest are told one by one as long as it is not known what those that pass them on hold of them.
        if sealed > 0 && self.is_beside_another() {
            self.work.seal(sealed);
        }
        busy
    }

    /// Looks at what the connections have carried, and how fast, for filters that follow it.
    fn look_at_network(&mut self) {
        if self.now < self.next_flow || !self.memory.follows() {
            return;
        }
        self.next_flow = self.now + FLOWS_APART;
        let Self { memory, ports, since, now, .. } = self;
        let mut flows = None;
        let mut look = || {
            let places = ports.places();
            places.map(|place| ports.remote_at(place).and_then(|remote| remote.flow())).collect::<Vec<_>>()
        };
        memory.look_at_network(now.duration_since(*since), || flows.get_or_insert_with(&mut look).clone());
    }

    fn take_commands(&mut self) -> bool {
        if !self.inbox.open() {
            return false;
        }
        while let Some(command) = self.inbox.next() {
            self.obey(command);
        }
        true
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Join { peer, page, wakeup } => self.join(peer, page, wakeup),
            Command::JoinRemote { peer } => {
                self.networked = true;
                self.memory.keep_events();
                let (job, place) = (job_number(&self.setup.job), self.setup.place.clone());
                let mut remote = Remote::new(job, peer, place, self.setup.lease);
                remote.count_time(Arc::clone(&self.setup.spent));
                self.ports.open(peer, Port::Remote(Box::new(remote)));
                self.memory.serve(self.ports.remotes().count());
            }
            Command::Attach { peer, waiting } => {
                if let Some((stream, long)) = waiting.take() {
                    self.attach(peer, stream, long);
                }
            }
            Command::Declare { id, spec, terms, total, home } => {
                let chunks = home.chunks().to_vec();
                self.memory.declare(id, spec.plan(), terms, home, spec.consistency, self.setup.workers);
                self.machine.declare(id, *spec, total, chunks);
            }
            Command::Lane { id, rank, lane } => self.memory.give_lane(id, rank, lane),
            Command::Remove { peer } => self.remove(peer),
            Command::AwaitEnd { peer } => match self.ports.remote(peer) {
                Some(remote) => remote.await_end(),
                None => self.report(Report::Ended { peer }),
            },
            Command::Missing { ticket, id, version } => {
                let ranks = self.machine.missing(id, version);
                self.report(Report::Missing { ticket, ranks });
            }
            Command::Clocks { ticket } => {
                let clocks = self.machine.clocks();
                let shown = |rank| if clocks.is_live(rank) { clocks.of(rank) as i64 } else { -1 };
                let clocks = (0..clocks.size()).map(shown).collect();
                self.report(Report::Clocks { ticket, clocks });
            }
            Command::Followed { ticket, id } => {
                let changes = self.memory.followed(id);
                self.report(Report::Followed { ticket, changes });
            }
            Command::Routes(routes) => self.reroute(routes),
            Command::RouteAgain { peer } => self.route_again(peer),
            Command::Stop => self.running = false,
        }
    }

    fn report(&self, report: Report) {
        let _ = self.setup.reports.send(report);
        self.setup.control.wakeup.ring();
    }

    fn join(&mut self, peer: PeerId, page: Arc<Mapping>, wakeup: OwnedFd) {
        let inlet = Inlet::new(page, self.setup.index);
        let place = self.ports.open(peer, Port::Local(Local { inlet, wakeup }));
        let Some(local) = self.ports.local_at(place) else { return };
        // Never read: see `bells`.
        if let Err(error) = bells::listen(&self.epoll, &local.wakeup, place as u64) {
            self.ports.close(place);
            self.report(Report::Broke { peer, what: format!("its wake-up cannot be watched: {error}") });
        }
    }

    fn attach(&mut self, peer: PeerId, stream: Stream, long: bool) {
        let Some(place) = self.ports.place(peer) else { return };
        let token = epoll::EventData::new_u64(CONNECTIONS + place as u64);
        // The old connection, if there is one, is closed by being replaced, and leaves the poll with that.
        if let Some(remote) = self.ports.remote_at(place)
            && epoll::add(&self.epoll, &stream, token, epoll::EventFlags::IN).is_ok()
        {
            if let Some(rank) = peer.rank() {
                self.setup.uplink.watch(&stream, To::Child(rank));
            }
            remote.attach(stream, long);
            self.tell_route(peer);
        }
    }

    /// Values go to peers on other hosts along other routes from now on.
    fn reroute(&mut self, routes: Arc<Routes>) {
        let is_cut_anew = routes.striping != self.routes.striping;
        self.routes = routes;
        self.memory.send_along(&self.routes);
        if is_cut_anew {
            let Self { routes, ports, memory, .. } = self;
            memory.stripe_by(&routes.shares);
            ports.remotes().for_each(|(_, remote)| remote.subscriber().recut(memory));
        }
        let peers: Vec<PeerId> = self.ports.remotes().map(|(_, remote)| remote.peer()).collect();
        peers.into_iter().for_each(|peer| self.tell_route(peer));
        self.memory.broadcast().into_iter().for_each(|id| self.look_who_asks(id));
    }

    /// Tells a peer how values come to it, if that is not by this shard alone.
    fn tell_route(&mut self, peer: PeerId) {
        let Self { routes, ports, memory, epoch, .. } = self;
        let Some((remote, rank)) = ports.remote(peer).zip(peer.rank()) else { return };
        // A peer that was never told of any gets everything from here as it is.
        if !routes.members.contains_key(&rank) && !remote.was_routed() {
            return;
        }
        *epoch += 1;
        let (route, passes_on) = routes.of(rank, *epoch);
        remote.route(&route, passes_on, memory);
    }

    /// A worker has left one that fed it. If that was nobody's fault it is told of its route again, later each time.
    fn look_who_is_blamed(&mut self, peer: PeerId) {
        let Some(remote) = self.ports.remote(peer) else { return };
        match (remote.subscriber().take_blame(), peer.rank()) {
            (Some(NOBODY), _) => self.route_again(peer),
            (Some(parent), Some(rank)) => self.report(Report::Strayed { rank, parent }),
            _ => {}
        }
    }

    fn route_again(&mut self, peer: PeerId) {
        // Of several stripes at once, once.
        if !self.again.iter().any(|(_, other)| *other == peer)
            && let Some(remote) = self.ports.remote(peer)
        {
            let at = Instant::now() + remote.next_route_in();
            self.again.push((at, peer));
        }
    }

    /// Tells those of their routes again for whom it is time.
    fn tell_again(&mut self) {
        let now = self.now;
        let due: Vec<PeerId> =
            self.again.extract_if(.., |(at, _)| *at <= now).map(|(_, peer)| peer).collect();
        due.into_iter().for_each(|peer| self.tell_route(peer));
    }

    /// Finds out whether others may pass on a tensor's values, and tells those whom it concerns if that is new.
    fn look_who_asks(&mut self, id: TensorId) {
        let Self { routes, ports, memory, .. } = self;
        // One that is not here has left, or comes when its server has planned.
        let may = routes
            .may_carry(|rank| ports.contributor(rank).is_none_or(|subscriber| subscriber.asks_for_each(id)));
        if memory.go_by_trees(id, may) {
            for (_, remote) in ports.remotes() {
                remote.subscriber().turned(id, memory);
            }
        }
    }

    fn close_port(&mut self, place: usize) {
        match self.ports.close(place) {
            Some(Port::Local(local)) => _ = epoll::delete(&self.epoll, &local.wakeup),
            Some(Port::Remote(_)) => self.memory.serve(self.ports.remotes().count()),
            None => {}
        }
    }

    /// Takes what the peer had submitted until now, then goes on without it. What it submits meanwhile is not waited
    /// for: it might never end.
    fn remove(&mut self, peer: PeerId) {
        self.now = Instant::now();
        if let Some(place) = self.ports.place(peer) {
            self.take_the_rest(place);
            self.close_port(place);
        }
        self.overlay.leave(peer);
        // Nothing waits for a peer that contributes nothing.
        let Some(rank) = peer.rank().filter(|_| !self.failed) else { return };
        let Self { machine, memory, ports, .. } = self;
        memory.left(rank);
        let result = machine.remove(rank, &mut Living { memory, ports });
        self.tell_waiting();
        if let Err(failure) = result {
            self.fail(failure);
        }
    }

    fn take_the_rest(&mut self, place: usize) {
        if let Some(local) = self.ports.local_at(place) {
            let stood = local.inlet.waiting();
            self.take_local_turn(place, stood);
        } else if let Some(remote) = self.ports.remote_at(place) {
            // The workers that remain are not charged for it.
            let before = (self.pace.clone(), self.work.clone(), self.out);
            let until = remote.standing();
            // The poll was asked before, and this is as late as it gets.
            remote.ready(true, false);
            while self.running
                && !self.failed
                && self.ports.remote_at(place).is_some_and(|remote| remote.received() < until)
                && self.take_frames(place)
            {}
            (self.pace, self.work, self.out) = before;
        }
    }

    /// The peer has said goodbye: nothing more is taken from it, and the control thread hears of it.
    fn let_go(&mut self, peer: PeerId) {
        let Some(place) = self.ports.place(peer) else { return };
        match self.ports.remote_at(place) {
            // It still has to hear that its goodbye was taken.
            Some(remote) => remote.let_go(),
            None => self.close_port(place),
        }
        self.report(Report::Departed { peer });
    }

    /// Takes some submissions of one peer; `false` if there were none.
    fn take_turn(&mut self, place: usize) -> bool {
        match self.ports.at(place) {
            None => false,
            Some(Port::Local(_)) => self.take_local_turn(place, TURN),
            Some(Port::Remote(_)) => self.take_remote_turn(place),
        }
    }

    fn take_local_turn(&mut self, place: usize, most: u64) -> bool {
        let Some(peer) = self.ports.peer_at(place) else { return false };
        let mut taken = 0;
        while taken < most && self.running && !self.failed && self.has_submission(place) {
            // A tensor, or a lane, is announced here before the worker hears of it, so before it can submit from it; a failed
            // job before any worker hears of the failure, so before anything that such a worker submits.
            self.take_commands();
            if !self.running {
                break;
            }
            match self.pop(place) {
                Ok(None) => return true, // it was removed just now
                Ok(Some(words)) => {
                    taken += 1;
                    // Each may be about any number of bytes.
                    self.setup.flags.beat(self.setup.index);
                    let submission = Submission::decode(words).map_err(|error| error.to_string());
                    if let Err(what) = submission.and_then(|submission| self.submit(peer, &submission)) {
                        self.drop_peer(peer, what);
                    }
                    self.tell_waiting();
                }
                Err(broken) => {
                    self.drop_peer(peer, broken.to_string());
                    return true;
                }
            }
        }
        if taken > 0 {
            self.moved = true;
            self.note_deed();
            self.tell_who_waits_for_room(place);
        }
        taken > 0
    }

    fn take_remote_turn(&mut self, place: usize) -> bool {
        !self.hold_back(place) && self.take_frames(place)
    }

    fn take_frames(&mut self, place: usize) -> bool {
        let Some(peer) = self.ports.peer_at(place) else { return false };
        let mut taken = 0;
        while taken < FRAMES && self.running && !self.failed {
            // As above: what a frame names was announced here before the worker could name it, and that the job
            // has failed before anyone heard of that. So commands are taken between the look that brings a header
            // and the one that judges it.
            self.take_commands();
            if !self.running {
                break;
            }
            let Some(remote) = self.ports.remote_at(place) else { return true };
            let heard = remote.hear(&self.machine, &mut self.memory);
            // A product of factors may have taken long.
            if self.memory.take_long() {
                self.ports.remotes().for_each(|(_, remote)| remote.beat());
            }
            match heard {
                Heard::Nothing | Heard::Ended(_) => break,
                Heard::Header => {}
                // It costs a look like any other frame: a peer that sends nothing else must not take them all.
                Heard::Alive => {
                    taken += 1;
                    self.pace.frame(0);
                }
                Heard::Broke(what) => {
                    self.drop_peer(peer, what);
                    return true;
                }
                Heard::Submission(Taken { judged, wanted, bytes, .. }) => {
                    taken += 1;
                    self.setup.flags.beat(self.setup.index);
                    self.pace.frame(bytes);
                    self.moved |= bytes > 0;
                    self.note_deed();
                    if let Err(what) = self.submit_remote(peer, judged, wanted) {
                        self.drop_peer(peer, what);
                    }
                    self.tell_waiting();
                    // Each may have cost any amount: the next waits until this one is paid for.
                    self.out |= self.is_beside_another() && self.work.is_out(self.now);
                    if self.out {
                        break;
                    }
                }
            }
        }
        taken > 0
    }

    /// Keeps workers that share a link in step: one that is far ahead of another that is sending is not read for now.
    fn hold_back(&mut self, place: usize) -> bool {
        let now = self.now;
        let others = self.ports.remotes().filter(|(other, _)| *other != place);
        let least = others.filter_map(|(_, remote)| remote.progress(now)).min();
        let Some(remote) = self.ports.remote_at(place) else { return false };
        let pause = self.out || remote.is_too_far_ahead(least);
        remote.pause(pause);
        pause
    }

    fn submit_remote(&mut self, peer: PeerId, judged: Judged, wanted: bool) -> Result<(), String> {
        let Self { ports, overlay, memory, machine, .. } = self;
        let Some(remote) = ports.remote(peer) else { return Ok(()) };
        let asked = remote.subscriber().ask(peer, judged.submission(), wanted, (machine, overlay), memory);
        asked.map_err(|undeclared| undeclared.to_string())?;
        match *judged.submission() {
            Submission::Fetch { tensor, state: false, .. } if memory.broadcasts(tensor) => {
                self.look_who_asks(tensor);
                self.pace.look_at(self.ports.remotes().count());
            }
            Submission::Strayed { .. } => self.look_who_is_blamed(peer),
            Submission::Attached { .. } => {
                if let Some(remote) = self.ports.remote(peer) {
                    remote.stands();
                }
            }
            _ => {}
        }
        let memory = &self.memory;
        if let Submission::Fetch { tensor, state: false, .. } = *judged.submission() {
            self.pace.look_at(memory.chunks(tensor));
        } else if let Submission::FetchChunks { tensor, count, .. } = *judged.submission() {
            self.pace.look_at(memory.chunks(tensor).min(count as usize));
        }
        let moves_values = matches!(judged.submission(), Submission::Push { .. } | Submission::Load { .. });
        // What peers of this host have caused is not theirs.
        let _ = (self.machine.take_gone_over(), self.memory.take_idle_looks());
        let taken = self.take(peer, judged);
        let looks = self.machine.take_gone_over() + self.memory.take_idle_looks();
        // By itself on its server, or beside jobs that do nothing, a job owes nobody anything.
        if !moves_values && self.is_beside_another() {
            self.work.work(looks);
        }
        taken
    }

    fn has_submission(&self, place: usize) -> bool {
        self.ports.at(place).and_then(Port::local).is_some_and(|local| !local.inlet.is_empty())
    }

    fn pop(&mut self, place: usize) -> Result<Option<[u64; WORDS]>, Broken> {
        self.ports.local_at(place).map_or(Ok(None), |local| local.inlet.pop())
    }

    fn fail(&mut self, failure: JobFailure) {
        self.failed = true;
        self.report(Report::Failed(failure));
    }

    /// The shard listens to this peer no more; the control thread decides what becomes of the job.
    fn drop_peer(&mut self, peer: PeerId, what: String) {
        if let Some(place) = self.ports.place(peer) {
            self.close_port(place);
        }
        self.report(Report::Broke { peer, what });
    }

    /// Takes what a peer of this host has submitted.
    fn submit(&mut self, peer: PeerId, submission: &Submission) -> Result<(), String> {
        home::check_declared(peer, submission, &self.memory).map_err(|undeclared| undeclared.to_string())?;
        let judged = self.machine.judge_local(peer, submission).map_err(|refused| refused.to_string())?;
        self.take(peer, judged)
    }

    fn take(&mut self, peer: PeerId, judged: Judged) -> Result<(), String> {
        let leaves = matches!(judged.submission(), Submission::Leave);
        let Self { machine, memory, ports, .. } = self;
        match machine.take(judged, &mut Living { memory, ports }) {
            Ok(()) => {
                if leaves {
                    self.let_go(peer);
                }
                Ok(())
            }
            Err(SubmissionRefused::Failure(failure)) => {
                self.fail(failure);
                Ok(())
            }
            Err(refused) => Err(refused.to_string()),
        }
    }

    /// Tells everyone who waits what has just happened: rings for those on this host, queues for the others.
    fn tell_waiting(&mut self) {
        if self.networked {
            self.queue_events();
        }
        let (touched, published) = self.memory.take_touched();
        if touched.is_none() && published.is_none() {
            return;
        }
        doorbell::published();
        let waits = |local: &&Local| {
            let bell = local.inlet.bell();
            let has_news = match touched {
                None => false,
                Some(Touched::One(id)) => bell.must_ring(id + 1) || bell.must_ring(single_chunks(id + 1)),
                Some(Touched::Many) => bell.waits(),
            };
            // Who waits for all of a tensor is not woken for a chunk.
            has_news
                || match published {
                    None => false,
                    Some(Touched::One(id)) => bell.must_ring(single_chunks(id + 1)),
                    Some(Touched::Many) => bell.waits_singly(),
                }
        };
        self.ports.locals().filter(waits).for_each(|local| local.inlet.bell().ring());
    }

    fn queue_events(&mut self) {
        let events = self.memory.events();
        for &event in &events {
            home::tell(event, &self.overlay, &mut self.ports, &self.memory);
        }
        self.memory.recycle(events);
    }

    fn tell_who_waits_for_room(&self, place: usize) {
        if let Some(local) = self.ports.at(place).and_then(Port::local) {
            doorbell::published();
            if local.inlet.bell().must_ring(ANYTHING) {
                local.inlet.bell().ring();
            }
        }
    }
}
