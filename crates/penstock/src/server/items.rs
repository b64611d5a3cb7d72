//! Passes rows of tables on to workers that share no memory with their producer: one thread for each job on a server, started
//! with the first such worker. [`penstock_proto::items::node`] decides what is sent to which peer.

use super::arrivals::Newest;
use super::bells;
use super::fair_share::Place;
use super::shard::Report;
use super::tables::{PartitionCharges, Sealed};
use super::{Obituary, StartError};
use crate::thread::{self, Inbox};
use crate::wait::{self, Crowd, Patience};
use crate::wire::Ended;
use crate::wire::items::ItemWire;
use crate::wire::vigil::look_every;
use penstock_fabric::items::partition::{Layout, Rows, Waiters, Writer};
use penstock_fabric::items::partition_memory::PartitionMemory;
use penstock_fabric::items::waiters::{Announcing, announce_then_look};
use penstock_fabric::net::stream::Stream;
use penstock_proto::account::{Account, Charge, Resource};
use penstock_proto::items::node::{Host, Node};
use penstock_proto::items::spec::TableId;
use penstock_proto::items::wire::{PartitionId, Shape};
use penstock_proto::peer::PeerId;
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::ops::Bound;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What the thread is told.
pub(super) enum Command {
    /// A producer of this host has made its rows.
    Partition {
        producer: PeerId,
        sealed: Sealed,
    },
    /// A peer's connection.
    Enter {
        peer: PeerId,
        waiting: Newest<Stream>,
        /// Whether it shares this host's memory: then its rows do not come by this.
        local: bool,
    },
    /// A peer has gone: what it says from now on is not listened to.
    Leave {
        peer: PeerId,
    },
    /// A worker of this host rings with this from now on.
    Bell(Arc<OwnedFd>),
    /// And no longer with this.
    Silence(Arc<OwnedFd>),
    /// The process of a peer has ended: the control thread wants to know when all that it sent has come.
    AwaitEnd {
        peer: PeerId,
    },
    /// All have dropped a table.
    Drop {
        table: TableId,
    },
    Stop,
}

/// The control thread's end.
pub(super) struct Handle {
    thread: thread::Handle<Command>,
    kept: Kept,
}

/// Partitions that are kept here, for the control thread: of producers on other hosts it knows nothing.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<BTreeSet<PartitionId>>>);

impl Kept {
    fn change(&self, change: impl FnOnce(&mut BTreeSet<PartitionId>)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Handle {
    pub(super) fn send(&self, command: Command) {
        self.thread.send(command);
    }

    /// Whether rows of a table are kept there.
    pub(super) fn has(&self, table: TableId) -> bool {
        let kept = self.kept.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.range(PartitionId { table, rank: 0 }..).next().is_some_and(|id| id.table == table)
    }
}

impl thread::Command for Command {
    const STOP: Self = Self::Stop;
}

/// What the thread is started with.
pub(super) struct Setup {
    /// The job's.
    pub(super) account: Account,
    pub(super) reports: Sender<Report>,
    pub(super) control: Arc<super::Shared>,
    pub(super) lease: Duration,
    /// The server's number.
    pub(super) server: u32,
    /// The job's place among those behind the same acceptor.
    pub(super) place: Option<Place>,
}

pub(super) fn start(setup: Setup) -> Result<Handle, StartError> {
    let system = StartError::system;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("make an epoll descriptor"))?;
    let data = epoll::EventData::new_u64(COMMANDS);
    let (mut thread, inbox) = thread::commanded().map_err(system("make a wake-up descriptor"))?;
    epoll::add(&epoll, inbox.wakeup(), data, epoll::EventFlags::IN).map_err(system("watch a descriptor"))?;
    let (control, reports) = (Arc::clone(&setup.control), setup.reports.clone());
    let obituary = Obituary { thread: "passes rows on", server: setup.server, reports, control };
    let kept = Kept::default();
    let passer = Passer::new(setup, inbox, epoll, kept.clone());
    let started = thread.start("penstock-items", move || {
        let _obituary = obituary;
        passer.run();
    });
    started.map_err(StartError::thread)?;
    Ok(Handle { thread, kept })
}

/// Tokens of the poll; all others number connections.
const COMMANDS: u64 = u64::MAX;
const BELL: u64 = u64::MAX - 1;
/// Longest sleep while rows of this host are passed on.
const LONGEST: Duration = Duration::from_secs(1);
/// Between two attempts to map what could not be mapped: the system may have room again.
const AGAIN: Duration = Duration::from_secs(1);
/// Times that all that there is to send is sent before what comes is heard again.
const ROUNDS: usize = 16;
/// And how long the rounds before the last may have taken.
const ROUNDS_WITHIN: Duration = Duration::from_millis(10);
/// Peers that are told nothing, after which the thread shows that it lives: to find that out of one takes as long as there are
/// partitions.
const QUIET_A_SIGN: u32 = 16;
/// Bytes that are heard of a peer once it has gone: more than its connection holds.
const MOST_UNDER_WAY: u64 = 8 << 20;

/// Memory for rows of producers on other hosts.
struct Memories {
    account: Account,
    charges: BTreeMap<PartitionId, [Charge; 2]>,
    kept: Kept,
    /// Peers of this host that are here.
    local: BTreeSet<PeerId>,
}

impl Host for Memories {
    type Memory = PartitionMemory;

    fn make(&mut self, id: PartitionId, shape: &Shape) -> Option<PartitionMemory> {
        let layout = Layout::checked(shape.slots, shape.row_bytes)?;
        let needed = (layout.total() + layout.most_beside()) as u64;
        let peer = self.account.worker(id.rank);
        let bytes = peer.charge(Resource::Bytes, needed).ok()?;
        let mappings = peer.charge(Resource::Mappings, 2).ok()?;
        let writer = Writer::private(layout).ok()?;
        let memory = PartitionMemory::mirror(writer, Waiters::private().ok()?);
        self.charges.insert(id, [bytes, mappings]);
        self.kept.change(|kept| _ = kept.insert(id));
        Some(memory)
    }

    fn account(&self, peer: PeerId) -> Account {
        self.account.peer(peer)
    }

    fn is_elsewhere(&self, peer: PeerId) -> bool {
        !self.local.contains(&peer)
    }

    fn answered(&mut self, _: u64) {}

    fn flushed(&mut self, _: u64) {}

    fn unmade(&mut self, id: PartitionId, _: &Shape) {
        self.charges.remove(&id);
        self.kept.change(|kept| _ = kept.remove(&id));
    }
}

struct Passer {
    setup: Setup,
    inbox: Inbox<Command>,
    epoll: OwnedFd,
    node: Node<Memories>,
    wires: BTreeMap<PeerId, Watched>,
    /// Whose connection a token of the poll is.
    tokens: BTreeMap<u64, PeerId>,
    /// The token of the next.
    next: u64,
    /// Partitions that producers of this host write, and what they were charged.
    followed: BTreeMap<PartitionId, Arc<PartitionCharges>>,
    /// Partitions of this host that this process could not map so far, with their producers: readers elsewhere wait for their
    /// rows until it can.
    unreadable: BTreeMap<PartitionId, (PeerId, Sealed)>,
    /// When that was last tried.
    tried: Instant,
    kept: Kept,
    /// Peers whose processes have ended, but not their connections.
    ending: BTreeSet<PeerId>,
    /// Peers of whom more may have come than their last turn had time for.
    unheard: BTreeSet<PeerId>,
    /// Whether more was asked about partitions that are not there than the last turn had time for.
    unanswered: bool,
    /// Peers that have gone for good, but are not heard out.
    gone: BTreeSet<PeerId>,
    /// When peers were last shown that this thread lives, and when it was last asked who is silent.
    shown: Instant,
    watched: Instant,
    running: bool,
}

/// A connection, as the poll knows it.
struct Watched {
    wire: ItemWire,
    token: u64,
    /// Whether the poll watches it for room to write.
    writing: bool,
    last: Option<Last>,
}

/// Why nothing is said on a connection any more. What has come on it counts, and is heard in turns before it is ended: others have
/// theirs meanwhile.
struct Last {
    why: Ended,
    /// It is heard until so many bytes have come: its peer may still be speaking.
    until: u64,
}

/// What happens when something has come.
trait Turn {
    /// Hears whoever has said something.
    fn hear(&mut self);

    /// Takes what the control thread has said, such as which partitions there are.
    fn take_commands(&mut self);

    /// Answers what was asked about partitions that are not there.
    fn answer_waiting(&mut self);

    /// In this order (N-6): a peer asks for rows once it knows that they were made, and then their partition stands in the
    /// inbox. So it is taken behind what peers say, and what is not there by then was never made.
    fn take_turn(&mut self) {
        self.hear();
        self.take_commands();
        self.answer_waiting();
    }
}

/// Messages to or from its workers count as something that the job does; signs of life do not.
fn note_deeds(wire: &mut ItemWire, place: Option<&Place>) {
    if wire.take_acted() {
        place.into_iter().for_each(Place::acted);
    }
}

/// The thread, with whom the poll says to hear.
struct Woken<'a> {
    passer: &'a mut Passer,
    events: Vec<epoll::Event>,
}

impl Turn for Woken<'_> {
    fn hear(&mut self) {
        let mut peers = std::mem::take(&mut self.passer.unheard);
        for event in self.events.drain(..) {
            match event.data.u64() {
                COMMANDS => self.passer.inbox.wakeup().clear(),
                BELL => {}
                token => peers.extend(self.passer.tokens.get(&token)),
            }
        }
        for peer in peers {
            self.passer.hear(peer);
            self.passer.show_life();
        }
    }

    fn take_commands(&mut self) {
        self.passer.take_commands();
    }

    fn answer_waiting(&mut self) {
        let Passer { node, unreadable, unanswered, .. } = &mut *self.passer;
        *unanswered = node.answer_waiting(|id| unreadable.contains_key(id));
    }
}

impl Passer {
    fn new(setup: Setup, inbox: Inbox<Command>, epoll: OwnedFd, kept: Kept) -> Self {
        let memories = Memories {
            account: setup.account.clone(),
            charges: BTreeMap::new(),
            kept: kept.clone(),
            local: BTreeSet::new(),
        };
        Self {
            node: Node::new(memories),
            kept,
            setup,
            inbox,
            epoll,
            wires: BTreeMap::new(),
            tokens: BTreeMap::new(),
            next: 0,
            followed: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            tried: Instant::now(),
            ending: BTreeSet::new(),
            unheard: BTreeSet::new(),
            unanswered: false,
            gone: BTreeSet::new(),
            shown: Instant::now(),
            watched: Instant::now(),
            running: true,
        }
    }

    fn run(mut self) {
        let mut patience = Patience::new(&Crowd::Taken(true));
        while self.running {
            if !self.unreadable.is_empty() && self.tried.elapsed() >= AGAIN {
                self.follow_again();
            }
            // A thread that has just been busy looks again for a while: a wake-up costs more than a look. What comes is heard
            // also where there is always something to send.
            let sent = self.transmit_all();
            let came = self.look(Some(Duration::ZERO));
            if self.watched.elapsed() >= look_every(self.setup.lease) {
                self.keep_vigil();
            }
            if came || sent {
                patience = Patience::new(&Crowd::Taken(true));
                continue;
            }
            if patience.pause() {
                continue;
            }
            if !announce_then_look(&mut self, Self::announce, Self::transmit_all) {
                self.wait();
            }
            patience = Patience::new(&Crowd::Taken(true));
        }
    }

    /// Says that it sleeps, where it is looked for.
    fn announce(&mut self, by: &Announcing) {
        for id in self.followed.keys() {
            if self.node.is_wanted(*id)
                && let Some(memory) = self.node.memory(*id)
            {
                memory.announce_follower(by);
            }
        }
    }

    /// Sends what there is to send, not without end: rows may be set as fast as they go. Whether anything was.
    fn transmit_all(&mut self) -> bool {
        // Most times nothing is, and then the time is asked for once in [`QUIET_A_SIGN`] peers.
        let (mut any, mut since) = (false, None);
        for _ in 0..ROUNDS {
            self.node.collect_all();
            let mut sent = false;
            let mut lost = Vec::new();
            let (mut next, mut quiet) = (Some(Bound::Unbounded), 0u32);
            while let Some(from) = next.take() {
                for (&peer, Watched { wire, last, .. }) in self.wires.range_mut((from, Bound::Unbounded)) {
                    if last.is_some() {
                        continue;
                    }
                    if !wire.holds_output() && !self.node.owes(peer) {
                        self.node.taken(peer);
                        quiet += 1;
                        if quiet.is_multiple_of(QUIET_A_SIGN) {
                            next = Some(Bound::Excluded(peer));
                            break;
                        }
                        continue;
                    }
                    since.get_or_insert_with(Instant::now);
                    match wire.transmit(&mut self.node, peer) {
                        Ok(some) => sent |= some,
                        Err(ended) => lost.push((peer, ended)),
                    }
                    note_deeds(wire, self.setup.place.as_ref());
                    next = Some(Bound::Excluded(peer));
                    break;
                }
                // To find what a peer is told may have taken a while.
                if next.is_some() {
                    self.show_life();
                }
            }
            while let Some((peer, broken)) = self.node.overdrawn() {
                lost.push((peer, Ended::from(broken)));
            }
            // What they had said last may have to be passed on, and what others waited for of them is answered.
            sent |= !lost.is_empty();
            for (peer, ended) in lost {
                self.end_heard(peer, ended);
            }
            any |= sent;
            if !sent || since.is_some_and(|since: Instant| since.elapsed() > ROUNDS_WITHIN) {
                break;
            }
        }
        self.watch_output();
        any
    }

    /// Watches for room to write where something waits for it, and only there: a socket that has room is ready all the time.
    fn watch_output(&mut self) {
        for Watched { wire, token, writing, last } in self.wires.values_mut() {
            let waits = last.is_none() && wire.holds_output();
            if std::mem::replace(writing, waits) != waits {
                let mut flags = epoll::EventFlags::IN;
                flags.set(epoll::EventFlags::OUT, waits);
                let _ = epoll::modify(&self.epoll, wire.stream(), epoll::EventData::new_u64(*token), flags);
            }
        }
    }

    /// Sleeps until something comes. A consumer that clears the flag which says that this thread sleeps delays others by a
    /// second.
    fn wait(&mut self) {
        // Without a peer at the other end there is none to show that this thread lives.
        let longest = look_every(self.setup.lease);
        let longest = if self.followed.is_empty() { longest } else { longest.min(LONGEST) };
        let longest = if self.unreadable.is_empty() { longest } else { longest.min(AGAIN) };
        self.look((!self.wires.is_empty()).then_some(longest));
        self.keep_vigil();
    }

    /// Shows all peers that this thread lives, and ends the connections of those that are silent.
    fn keep_vigil(&mut self) {
        (self.shown, self.watched) = (Instant::now(), Instant::now());
        // A peer may have spoken whose turn has not come yet, or is not through.
        let silent = |(&peer, Watched { wire, last, .. }): (&PeerId, &mut Watched)| {
            (last.is_none() && wire.is_silent()).then_some(peer)
        };
        let silent: Vec<PeerId> = self.wires.iter_mut().filter_map(silent).collect();
        silent.into_iter().for_each(|peer| self.hear(peer));
        let Self { wires, unheard, .. } = self;
        let ended = |(&peer, Watched { wire, last, .. }): (&PeerId, &mut Watched)| {
            let kept = match last {
                Some(_) => Ok(()),
                None if unheard.contains(&peer) => wire.beat(),
                None => wire.keep_vigil(),
            };
            Some((peer, kept.err()?))
        };
        let ended: Vec<(PeerId, Ended)> = wires.iter_mut().filter_map(ended).collect();
        for (peer, ended) in ended {
            self.end_heard(peer, ended);
        }
    }

    /// Ends a connection on which nothing can be said any more: what had come by then counts, and is heard first.
    fn end_heard(&mut self, peer: PeerId, ended: Ended) {
        match ended {
            Ended::Connection(_) => self.hear_out(peer, ended),
            Ended::Peer(_) | Ended::Exhausted { .. } => self.end(peer, ended),
        }
    }

    /// Shows all peers that this thread lives, while others have their turns, if it is time: many turns may take longer than a
    /// lease. Whose connection has ended is found out in its own turn.
    fn show_life(&mut self) {
        if self.shown.elapsed() >= look_every(self.setup.lease) {
            self.shown = Instant::now();
            for Watched { wire, .. } in self.wires.values_mut().filter(|watched| watched.last.is_none()) {
                let _ = wire.beat();
            }
        }
    }

    /// Takes what has come, or waits for it; whether anything had.
    fn look(&mut self, longest: Option<Duration>) -> bool {
        let goes_on = !self.unheard.is_empty() || self.unanswered;
        let events = wait::events(&self.epoll, 64, if goes_on { Some(Duration::ZERO) } else { longest });
        let any = !events.is_empty() || goes_on;
        if any {
            Woken { passer: self, events }.take_turn();
        }
        any
    }

    fn hear(&mut self, peer: PeerId) {
        let Some(Watched { wire, last, .. }) = self.wires.get_mut(&peer) else { return };
        let received = wire.receive(&mut self.node, peer);
        note_deeds(wire, self.setup.place.as_ref());
        if let Err(ended) = received {
            return self.end(peer, ended);
        }
        let more = wire.holds_input();
        let is_heard_out = |last: &mut Last| !more || wire.heard() >= last.until;
        if let Some(Last { why, .. }) = last.take_if(is_heard_out) {
            self.end(peer, why);
        } else if more {
            self.unheard.insert(peer);
        } else {
            self.unheard.remove(&peer);
        }
    }

    /// Says nothing more to a peer, and ends its connection once all is heard that is there, and no more than there can be. What it
    /// asks for is done for it no more: so that what it has left takes few turns.
    fn hear_out(&mut self, peer: PeerId, why: Ended) {
        let Some(Watched { wire, last: last @ None, .. }) = self.wires.get_mut(&peer) else { return };
        *last = Some(Last { why, until: wire.heard() + MOST_UNDER_WAY });
        self.node.stop_answering(peer);
        self.hear(peer);
        self.show_life();
    }

    fn part(&mut self, peer: PeerId) {
        self.unheard.remove(&peer);
        if let Some(Watched { wire, token, .. }) = self.wires.remove(&peer) {
            let _ = epoll::delete(&self.epoll, wire.stream());
            self.tokens.remove(&token);
        }
        self.node.lost(peer);
    }

    fn end(&mut self, peer: PeerId, ended: Ended) {
        self.part(peer);
        match ended {
            Ended::Connection(error) => {
                tracing::debug!(%peer, %error, "a peer's connection for items ended")
            }
            Ended::Peer(what) => self.report(Report::Broke { peer, what }),
            Ended::Exhausted { what, why } => self.report(Report::Exhausted { peer, what, why }),
        }
        self.tell_end(peer);
        self.forget_gone(peer);
    }

    /// A peer that has gone for good, and is heard out, is forgotten.
    fn forget_gone(&mut self, peer: PeerId) {
        if self.wires.contains_key(&peer) || !self.gone.remove(&peer) {
            return;
        }
        self.node.host().local.remove(&peer);
        let unused = self.node.forget(peer);
        self.followed.retain(|id, _| !unused.contains(id));
        self.kept.change(|kept| kept.retain(|id| !unused.contains(id)));
        self.forget_unreadable();
    }

    fn report(&self, report: Report) {
        let _ = self.setup.reports.send(report);
        self.setup.control.wakeup.ring();
    }

    /// Tells that a connection whose end was awaited has ended.
    fn tell_end(&mut self, peer: PeerId) {
        if !self.wires.contains_key(&peer) && self.ending.remove(&peer) {
            self.report(Report::Ended { peer });
        }
    }

    fn take_commands(&mut self) {
        while let Some(command) = self.inbox.next() {
            match command {
                Command::Stop => self.running = false,
                Command::Partition { producer, sealed } => self.follow(producer, sealed),
                Command::Bell(bell) => {
                    if let Err(error) = bells::listen(&self.epoll, &bell, BELL) {
                        tracing::warn!(%error, "a producer's bell cannot be heard");
                    }
                }
                Command::Silence(bell) => _ = epoll::delete(&self.epoll, &bell),
                Command::AwaitEnd { peer } => {
                    self.ending.insert(peer);
                    self.tell_end(peer);
                }
                Command::Drop { table } => {
                    self.node.drop_table(table);
                    self.followed.retain(|id, _| id.table != table);
                    self.unreadable.retain(|id, _| id.table != table);
                    self.kept.change(|kept| kept.retain(|id| id.table != table));
                }
                Command::Leave { peer } => {
                    self.gone.insert(peer);
                    // What it sent before it went is there already.
                    self.hear_out(peer, Ended::Connection(ErrorKind::ConnectionAborted.into()));
                    self.forget_gone(peer);
                }
                Command::Enter { peer, waiting, local } => {
                    if local {
                        self.node.host().local.insert(peer);
                    }
                    if let Some(stream) = waiting.take() {
                        self.enter(peer, stream);
                    }
                }
            }
        }
    }

    fn enter(&mut self, peer: PeerId, stream: Stream) {
        self.part(peer);
        // Nor is more heard of one that has gone and comes again: its rows would be in its way.
        let before = self.gone.iter().copied();
        let before = before.filter(|gone| (gone.role, gone.number) == (peer.role, peer.number));
        for gone in before.collect::<Vec<PeerId>>() {
            self.part(gone);
            self.tell_end(gone);
            self.forget_gone(gone);
        }
        let token = self.next;
        self.next += 1;
        let data = epoll::EventData::new_u64(token);
        if epoll::add(&self.epoll, &stream, data, epoll::EventFlags::IN).is_ok() {
            let account = self.setup.account.peer(peer);
            let wire = ItemWire::new(stream, self.setup.lease, account);
            self.wires.insert(peer, Watched { wire, token, writing: false, last: None });
            self.tokens.insert(token, peer);
            self.node.connected(peer);
            // What came together with the proof does not ring again.
            self.hear(peer);
        } else {
            // The one before has ended all the same.
            self.tell_end(peer);
        }
    }

    fn follow(&mut self, producer: PeerId, sealed: Sealed) {
        let id = sealed.id;
        if self.followed.contains_key(&id) {
            return; // its producer went before any other worker on this host asked: nothing was set
        }
        if let Err((error, sealed)) = self.pass_on(producer, sealed) {
            tracing::warn!(%error, table = id.table, rank = id.rank, "rows of a table cannot be passed on so far");
            self.unreadable.insert(id, (producer, sealed));
            // So that this thread hears when its table is dropped.
            self.kept.change(|kept| _ = kept.insert(id));
        }
    }

    /// Tries once more to map what could not be mapped.
    fn follow_again(&mut self) {
        self.tried = Instant::now();
        for (id, (producer, sealed)) in std::mem::take(&mut self.unreadable) {
            if let Err((_, sealed)) = self.pass_on(producer, sealed) {
                self.unreadable.insert(id, (producer, sealed));
            }
        }
    }

    /// What could not be mapped goes with its producer and the last peer that waits for it, as what is mapped does. Who
    /// subscribes later is told that nothing of it was set, and nothing was: a producer sets no row before all workers that are
    /// there, or may still come, are ready for its table, and one is ready when its homes have its subscriptions.
    fn forget_unreadable(&mut self) {
        let Self { node, unreadable, kept, .. } = self;
        let unused = |id: &PartitionId, producer: PeerId| node.has_gone(producer) && !node.is_awaited(*id);
        unreadable.retain(|id, (producer, _)| {
            let unused = unused(id, *producer);
            if unused {
                kept.change(|kept| _ = kept.remove(id));
            }
            !unused
        });
    }

    /// Maps rows of this host and passes them on, or says why they cannot be mapped.
    fn pass_on(&mut self, producer: PeerId, sealed: Sealed) -> Result<(), (Errno, Sealed)> {
        let (id, shape) = (sealed.id, sealed.shape);
        let rows = match Rows::open(sealed.layout, sealed.partition.as_fd()) {
            Ok(rows) => rows,
            Err(error) => return Err((error, sealed)),
        };
        let memory = PartitionMemory::followed(rows, sealed.waiters);
        // Rows of other hosts are neither mapped here nor offered by a worker that maps: what is here would be lost with
        // its subscribers.
        if !self.node.produce(id, producer, shape, memory, None) {
            tracing::error!(
                table = id.table,
                rank = id.rank,
                "rows are passed on already that a worker has mapped"
            );
            return Ok(());
        }
        self.followed.insert(id, sealed.charges);
        self.kept.change(|kept| _ = kept.insert(id));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
