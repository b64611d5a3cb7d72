//! Couriers: on a worker's side, one thread for each shard of a server on another host.
//!
//! A courier stands in for the shard: it pops the same submissions from the same ring, keeps a mirror of the chunks that the
//! shard is home of, publishes in it, counts and rings as a shard would. So everything above it is the same with and without
//! a network. What has come, and what is asked for again on a new connection, its machine knows
//! ([`penstock_proto::remote::mirror`]). Its frames are copied out of the lane, each once; values are received beside the mirror, verified, and then
//! published in it, so that no reader ever sees half a chunk or a damaged one.

use super::Fate;
use crate::wait::Patience;
use crate::wire::dial::{DialError, Dialer};
use crate::wire::frames::{BATCH, BATCH_BYTES, FrameReader, FrameWriter, Places, Step};
use crate::wire::vigil::{Vigil, look_every};
use penstock_fabric::doorbell::{self, ANYTHING, Bell, Sleeping};
use penstock_fabric::layout::{board, page};
use penstock_fabric::memory::{HomeMemory, LaneView, StateMirror};
use penstock_fabric::net::stream::Stream;
use penstock_fabric::publish::Published;
use penstock_fabric::region::Mapping;
use penstock_fabric::ring::{Consumer, Ring};
use penstock_fabric::sync::Ordering;
use penstock_kernels::Foreign;
use penstock_proto::frame::{Body, HEADER_BYTES, Header, Notice, job_number};
use penstock_proto::handshake::Purpose;
use penstock_proto::numbered::Numbered;
use penstock_proto::remote::mirror::{Effect, Frame, Mirror};
use penstock_proto::submission::Submission;
use penstock_proto::{Rank, TensorId};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::time::Timespec;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Frames that wait to be sent at most, before more is taken from the ring.
const MOST_UNSENT: u64 = 4096;
/// Frames taken between two looks at the ring.
const FRAMES: usize = 32;
/// Longest single attempt to connect again.
const ATTEMPT: Duration = Duration::from_secs(2);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// What a tensor and the courier of one of its homes tell each other.
#[derive(Debug, Default)]
pub(in crate::worker) struct RemoteHome {
    /// The last ticket that was given out.
    pub(in crate::worker) ticket: AtomicU64,
    /// The last ticket that came back.
    pub(in crate::worker) fetched: AtomicU64,
    /// Whether the result of the push that is under way is wanted as soon as it is there.
    pub(in crate::worker) wants: AtomicBool,
    /// The version + 1 that pushes have asked for.
    pub(in crate::worker) wanted: AtomicU64,
    /// Whether the value was pulled since the last push.
    pub(in crate::worker) pulled: AtomicBool,
}

/// What a courier is told by its own process.
pub(super) enum Command {
    /// A tensor, as far as the shard is home of it.
    Declare {
        id: TensorId,
        home: HomeMemory,
        lane: LaneView,
        remote: Arc<RemoteHome>,
    },
    /// Where its state goes.
    State {
        id: TensorId,
        state: StateMirror,
    },
    /// Say so when everything that was submitted was taken.
    Drain {
        done: Sender<()>,
    },
    Stop,
}

/// How far the shard has taken what it was sent: frames.
#[derive(Debug, Default)]
struct Progress {
    taken: AtomicU64,
    submitted: AtomicU64,
}

/// The link's end of a courier.
pub(super) struct Handle {
    commands: Sender<Command>,
    progress: Arc<Progress>,
    flag: Arc<AtomicBool>,
    wakeup: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Handle {
    /// Sends a command, and wakes the courier unless it may wait: what is declared is first named by a submission, and the courier
    /// takes its commands before it looks at one. So who declares many tensors wakes nobody for each.
    pub(super) fn send(&self, command: Command) {
        let may_wait = matches!(command, Command::Declare { .. });
        let _ = self.commands.send(command);
        // Pairs with the acquire load in `take_commands`: who sees a submission that the ring has published since sees this too.
        self.flag.store(true, Ordering::Release);
        if !may_wait {
            let _ = rustix::io::write(&*self.wakeup, &1u64.to_le_bytes());
        }
    }

    /// How many frames the shard has taken, of how many; there may be more in the ring that are not counted so far.
    pub(super) fn progress(&self) -> (u64, u64) {
        let Progress { taken, submitted } = &*self.progress;
        // The smaller one first: it cannot have grown past the other then.
        let taken = taken.load(Ordering::Relaxed);
        (taken, submitted.load(Ordering::Relaxed).max(taken))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What a courier is started with.
pub(super) struct Setup {
    pub(super) server: u32,
    /// This worker's.
    pub(super) rank: Rank,
    pub(super) shard: u32,
    pub(super) purpose: Purpose,
    pub(super) crowded: bool,
    pub(super) lease: Duration,
    pub(super) dialer: Arc<Dialer>,
    pub(super) page: Arc<Mapping>,
    pub(super) board: Arc<Mapping>,
    pub(super) fate: Arc<Fate>,
}

/// Starts a courier; the descriptor is what it is woken with.
pub(super) fn start(setup: Setup) -> std::io::Result<(Handle, OwnedFd)> {
    let (commands, inbox) = channel();
    let flag = Arc::new(AtomicBool::new(false));
    let wakeup = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let rung = wakeup.as_fd().try_clone_to_owned()?;
    let progress = Arc::new(Progress::default());
    let name = format!("penstock-courier-{}.{}", setup.server, setup.shard);
    let courier = Courier {
        ring_at: page::ring(setup.shard),
        inbox,
        flag: Arc::clone(&flag),
        wakeup: Arc::clone(&wakeup),
        consumer: Consumer::default(),
        machine: Mirror::default(),
        wire: None,
        vigil: Vigil::new(setup.lease),
        heard: 1,
        mirrors: Mirrors::default(),
        drains: Vec::new(),
        progress: Arc::clone(&progress),
        running: true,
        setup,
    };
    let thread = std::thread::Builder::new().name(name).spawn(move || courier.run())?;
    Ok((Handle { commands, progress, flag, wakeup, thread: Some(thread) }, rung))
}

/// Where the chunks of one tensor are mirrored that the shard is home of.
struct Mirrored {
    home: HomeMemory,
    lane: LaneView,
    remote: Arc<RemoteHome>,
    state: Option<StateMirror>,
}

/// All mirrors, and the place beside them where payloads are received.
#[derive(Default)]
struct Mirrors {
    job: u64,
    tensors: Numbered<Mirrored>,
    stage: Vec<u8>,
}

/// The frames of one batch, what they carry of lanes copied out. A lane is read once, so what its checksum was taken of is what is
/// sent, whatever a thread of the worker's writes there meanwhile; and nothing here takes for a slice what others may write.
#[derive(Default)]
struct Outgoing {
    headers: SmallVec<[[u8; HEADER_BYTES]; BATCH]>,
    /// Where the payload of each frame ends.
    ends: SmallVec<[usize; BATCH]>,
    /// It only grows: as long as the longest batch was.
    payloads: Vec<u8>,
}

impl Outgoing {
    fn clear(&mut self) {
        self.headers.clear();
        self.ends.clear();
    }

    fn len(&self) -> usize {
        self.headers.len()
    }

    /// Bytes of payloads.
    fn bytes(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    fn push(&mut self, header: Header, payload: Option<Foreign<'_>>) {
        let start = self.bytes();
        let end = start + payload.map_or(0, |lane| lane.len());
        if self.payloads.len() < end {
            self.payloads.resize(end, 0);
        }
        let header = match payload {
            Some(lane) => {
                let copy = &mut self.payloads[start..end];
                lane.copy_to(copy);
                header.with_payload(copy)
            }
            None => header,
        };
        self.headers.push(header.encode());
        self.ends.push(end);
    }

    fn frames(&self) -> SmallVec<[([u8; HEADER_BYTES], &[u8]); BATCH]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let payloads = starts.zip(&self.ends).map(|(start, &end)| &self.payloads[start..end]);
        self.headers.iter().copied().zip(payloads).collect()
    }
}

impl Mirrors {
    /// The tensor's memory, if the shard is home of the chunk.
    fn of(&self, tensor: TensorId, chunk: u32) -> Option<&Mirrored> {
        self.tensors.get(tensor).filter(|mirrored| mirrored.home.find(chunk).is_some())
    }

    /// A frame's header, and its payload where it stands in the lane.
    fn frame(&self, frame: &Frame) -> Option<(Header, Option<Foreign<'_>>)> {
        let Frame { sequence, submission, payload } = *frame;
        let (mut wanted, mut bytes) = (false, None);
        if let Some((tensor, chunk)) = payload {
            let mirrored = self.tensors.get(tensor)?;
            bytes = Some(mirrored.lane.contribution(mirrored.home.range(chunk)));
            let is_push = matches!(submission, Submission::Push { .. });
            wanted = is_push && mirrored.remote.wants.load(Ordering::Relaxed);
        }
        Some((Header::bare(self.job, sequence, Body::Submission { submission, wanted }), bytes))
    }
}

/// Where a payload is received.
#[derive(Debug, Clone, Copy)]
struct Stage(usize);

impl Places for Mirrors {
    type Place = Stage;

    fn place(&mut self, header: &Header) -> Result<Stage, String> {
        let Body::Notice(notice) = header.body else { return Err("a worker's frame".to_owned()) };
        if header.job != self.job || header.epoch != 0 {
            return Err("a frame of another job or epoch".to_owned());
        }
        let expected = match notice {
            Notice::Value { tensor, chunk, .. } => {
                self.of(tensor, chunk).map(|mirrored| mirrored.home.range(chunk).len())
            }
            Notice::State { tensor, chunk } => {
                let state = self.of(tensor, chunk).and_then(|mirrored| mirrored.state.as_ref());
                state.map(|state| state.bytes(chunk))
            }
            Notice::Folded { .. } | Notice::Fetched { .. } | Notice::Taken => Some(0),
        };
        let length = header.length as usize;
        if expected != Some(length) {
            return Err(format!(
                "{length} bytes for {notice:?}, which was not asked for or has another size"
            ));
        }
        if self.stage.len() < length {
            self.stage.resize(length, 0);
        }
        Ok(Stage(length))
    }

    fn memory<'a>(&'a mut self, place: &'a mut Stage) -> &'a mut [u8] {
        &mut self.stage[..place.0]
    }
}

struct Wire {
    stream: Stream,
    reader: FrameReader<Stage>,
    writer: FrameWriter,
    outgoing: Outgoing,
    readable: bool,
    writable: bool,
    /// Whether a sign of life is due, if nothing else is.
    beat: bool,
}

struct Courier {
    setup: Setup,
    inbox: Receiver<Command>,
    flag: Arc<AtomicBool>,
    wakeup: Arc<OwnedFd>,
    ring_at: usize,
    consumer: Consumer,
    machine: Mirror,
    wire: Option<Wire>,
    vigil: Vigil,
    /// Bytes that came on connections before this one.
    heard: u64,
    mirrors: Mirrors,
    drains: Vec<Sender<()>>,
    progress: Arc<Progress>,
    running: bool,
}

impl Courier {
    fn run(mut self) {
        self.mirrors.job = job_number(self.setup.dialer.job());
        let mut patience = Patience::new(self.setup.crowded);
        while self.running {
            if self.wire.is_none() {
                self.connect();
                continue;
            }
            if self.look() {
                patience = Patience::new(self.setup.crowded);
            } else if !patience.pause() {
                self.sleep();
                patience = Patience::new(self.setup.crowded);
            }
        }
    }

    fn fail(&mut self, reason: String) {
        let (server, rank) = (self.setup.server, self.setup.rank);
        self.setup.fate.fail(self.vigil.verdict(server, rank, reason));
        self.running = false;
    }

    // Connecting

    /// One attempt to connect; a pause after one that failed.
    fn connect(&mut self) {
        self.take_commands();
        if !self.running {
            return;
        }
        let (flag, fate) = (Arc::clone(&self.flag), Arc::clone(&self.setup.fate));
        let vigil = &self.vigil;
        let give_up = move || {
            vigil.tick();
            flag.load(Ordering::Acquire) || fate.is_over()
        };
        match self.setup.dialer.dial(self.setup.purpose, Instant::now() + ATTEMPT, &give_up) {
            Ok(stream) => {
                self.wire = Some(Wire {
                    stream,
                    reader: FrameReader::new(),
                    writer: FrameWriter::default(),
                    outgoing: Outgoing::default(),
                    readable: true,
                    writable: true,
                    beat: false,
                });
                self.machine.connect();
                self.vigil.connected();
            }
            Err(DialError::GivenUp) => {}
            // Whether the job has ended there, the link's own thread hears with the reason.
            Err(DialError::Refused(refusal)) => self.bear_with(refusal.to_string()),
            Err(DialError::Untrusted(reason)) => self.bear_with(reason),
            Err(DialError::Lacking(lack)) => {
                self.vigil.lacks(Some(lack.clone()));
                self.bear_with(lack);
            }
            Err(DialError::Unreachable(error)) => self.bear_with(error.to_string()),
        }
        if self.setup.fate.is_over() {
            self.running = false;
        }
    }

    fn bear_with(&mut self, reason: String) {
        if self.vigil.is_gone(self.heard) {
            let (shard, epitaph) = (self.setup.shard, self.vigil.epitaph());
            return self.fail(format!("its shard {shard} {epitaph}: {reason}"));
        }
        self.wait_for_wakeup(PAUSE);
    }

    /// Gives up a connection on which the shard is silent, and a shard that is silent altogether; shows it that this end lives.
    fn keep_vigil(&mut self) {
        let Some(wire) = &mut self.wire else { return };
        let heard = self.heard + wire.reader.heard();
        wire.beat |= self.vigil.is_time_to_beat();
        if self.vigil.is_gone(heard) {
            let (shard, epitaph) = (self.setup.shard, self.vigil.epitaph());
            self.fail(format!("its shard {shard} {epitaph}"));
        } else if self.vigil.is_silent(heard) {
            self.lose_connection("it is silent");
        }
    }

    fn wait_for_wakeup(&self, longest: Duration) {
        let longest = Timespec { tv_sec: 0, tv_nsec: i64::from(longest.subsec_nanos()) };
        let _ = poll(&mut [PollFd::new(&*self.wakeup, PollFlags::IN)], Some(&longest));
        let _ = rustix::io::read(&*self.wakeup, &mut [0; 8]);
    }

    fn lose_connection(&mut self, why: &str) {
        tracing::info!(server = self.setup.server, shard = self.setup.shard, why, "a connection has ended");
        let Some(wire) = self.wire.take() else { return };
        self.heard += wire.reader.heard();
        // One that ended before it brought anything is not made again at once.
        if !self.machine.is_resumed() {
            self.bear_with(why.to_owned());
        }
    }

    // Looking

    fn look(&mut self) -> bool {
        let mut busy = self.take_commands();
        self.poll_wire();
        busy |= self.take_submissions();
        busy |= self.receive();
        busy |= self.send();
        if busy {
            let (taken, submitted) = self.machine.progress();
            self.progress.submitted.store(submitted, Ordering::Relaxed);
            self.progress.taken.store(taken, Ordering::Relaxed);
        }
        if self.machine.is_delivered() && !self.drains.is_empty() && self.consumer.is_empty(self.ring()) {
            self.drains.drain(..).for_each(|done| _ = done.send(()));
        }
        busy
    }

    fn ring(&self) -> &Ring {
        self.setup.page.at(self.ring_at)
    }

    fn bell(&self) -> &Bell {
        self.setup.page.at(page::BELL)
    }

    fn has_output(&self, wire: &Wire) -> bool {
        !wire.writer.is_clear()
            || wire.stream.holds_output()
            || (self.machine.is_resumed() && (wire.beat || self.machine.unsent() > 0))
    }

    fn has_work(&self) -> bool {
        let room = self.machine.unsent() < MOST_UNSENT;
        self.flag.load(Ordering::Acquire)
            || (room && !self.consumer.is_empty(self.ring()))
            || self.wire.as_ref().is_none_or(|wire| wire.readable || (wire.writable && self.has_output(wire)))
    }

    /// Asks whether the socket is ready, without waiting.
    fn poll_wire(&mut self) {
        self.poll(Some(Timespec { tv_sec: 0, tv_nsec: 0 }));
    }

    fn poll(&mut self, limit: Option<Timespec>) {
        let Some(wire) = &self.wire else { return };
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, !wire.writable && self.has_output(wire));
        let mut fds = [PollFd::new(&wire.stream, flags), PollFd::new(&*self.wakeup, PollFlags::IN)];
        let _ = poll(&mut fds, limit.as_ref());
        let (socket, woken) = (fds[0].revents(), fds[1].revents());
        if !woken.is_empty() {
            let _ = rustix::io::read(&*self.wakeup, &mut [0; 8]);
        }
        if let Some(wire) = &mut self.wire {
            wire.writable |= socket.contains(PollFlags::OUT);
            // Errors and hang-ups are found out by reading.
            wire.readable |= socket.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR);
        }
    }

    fn sleep(&mut self) {
        let sleeping: &Sleeping = self.setup.board.at(board::sleeping(self.setup.shard));
        sleeping.announce();
        if !self.has_work() {
            let longest = look_every(self.setup.lease);
            self.poll(Some(Timespec {
                tv_sec: i64::try_from(longest.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(longest.subsec_nanos()),
            }));
            self.keep_vigil();
        }
        self.setup.board.at::<Sleeping>(board::sleeping(self.setup.shard)).awake();
    }

    fn take_commands(&mut self) -> bool {
        if !self.flag.load(Ordering::Acquire) {
            return false;
        }
        self.flag.store(false, Ordering::Relaxed);
        while let Ok(command) = self.inbox.try_recv() {
            match command {
                Command::Declare { id, home, lane, remote } => {
                    self.machine.declare(id, home.chunks().to_vec());
                    self.mirrors.tensors.insert(id, Mirrored { home, lane, remote, state: None });
                }
                Command::State { id, state } => {
                    if let Some(mirrored) = self.mirrors.tensors.get_mut(id) {
                        mirrored.state = Some(state);
                    }
                }
                Command::Drain { done } => self.drains.push(done),
                Command::Stop => self.running = false,
            }
        }
        true
    }

    fn take_submissions(&mut self) -> bool {
        let mut taken = 0;
        while self.machine.unsent() < MOST_UNSENT {
            let ring: &Ring = self.setup.page.at(self.ring_at);
            // The ring is this process's own: it cannot be broken but by this process.
            let Ok(Some(words)) = self.consumer.pop(ring) else { break };
            let Ok(submission) = Submission::decode(words) else { break };
            // What a submission names was declared before; the command may still be on its way.
            self.take_commands();
            taken += 1;
            self.machine.submit(submission);
        }
        if taken > 0 {
            doorbell::published();
            if self.bell().must_ring(ANYTHING) {
                self.bell().ring();
            }
        }
        taken > 0
    }

    // Receiving

    fn receive(&mut self) -> bool {
        let mut taken = 0;
        while taken < FRAMES {
            let Some(wire) = self.wire.as_mut().filter(|wire| wire.readable) else { break };
            match wire.reader.next(&mut wire.stream, &mut self.mirrors) {
                Step::Frame(header, stage) => {
                    taken += 1;
                    self.hear(&header, stage);
                }
                Step::Nothing => wire.readable = false,
                Step::Ended(why) => self.lose_connection(&why),
                Step::Broke(what) => self.fail(format!("it broke the protocol: {what}")),
            }
        }
        taken > 0
    }

    fn hear(&mut self, header: &Header, stage: Stage) {
        let Body::Notice(notice) = header.body else { return };
        let Mirrors { tensors, stage: staged, .. } = &mut self.mirrors;
        let wanted =
            |id| tensors.get(id).map_or(0, |mirrored| mirrored.remote.wanted.load(Ordering::Acquire));
        let effect = match self.machine.hear(header.sequence, &notice, wanted) {
            Ok(effect) => effect,
            Err(broken) => return self.fail(format!("it broke the protocol: {broken}")),
        };
        let (Effect::Publish { tensor, .. }
        | Effect::State { tensor, .. }
        | Effect::Folded { tensor, .. }
        | Effect::Fetched { tensor, .. }) = effect
        else {
            return;
        };
        let Some(mirrored) = tensors.get_mut(tensor) else { return };
        match effect {
            Effect::Nothing => {}
            Effect::Publish { chunk, version, steps, progress, .. } => {
                let mut place = mirrored.home.chunk(chunk);
                place.header.begin();
                place.value.copy_from_slice(&staged[..stage.0]);
                place.header.publish(Published { version, steps });
                if let Some(progress) = progress {
                    // Pairs with the acquire load in the worker's pull: who sees the progress sees the chunks.
                    mirrored.home.progress().0.store(progress, Ordering::Release);
                    self.tell(tensor);
                }
            }
            Effect::State { chunk, .. } => {
                if let Some(state) = &mirrored.state {
                    state.write(chunk, &staged[..stage.0]);
                }
            }
            Effect::Folded { count, .. } => {
                // Pairs with the acquire load before the worker writes its lane again.
                mirrored.lane.folded(self.setup.shard).0.store(count, Ordering::Release);
                self.tell(tensor);
            }
            Effect::Fetched { ticket, .. } => {
                // Pairs with the acquire load in the worker's pull.
                mirrored.remote.fetched.fetch_max(ticket, Ordering::Release);
                self.tell(tensor);
            }
        }
    }

    fn tell(&self, tensor: TensorId) {
        doorbell::published();
        if self.bell().must_ring(tensor + 1) {
            self.bell().ring();
        }
    }

    // Sending

    fn send(&mut self) -> bool {
        let mut busy = false;
        while let Some(wire) = self.wire.as_mut().filter(|wire| wire.writable) {
            let flushed = wire.writer.flush(&mut wire.stream);
            let sent = match flushed {
                Ok(true) if self.machine.is_resumed() => {
                    Self::send_batch(&mut self.machine, &self.mirrors, wire)
                }
                Ok(true) => break,
                other => other.map(|_| Some(false)),
            };
            match sent {
                Ok(None) => break,
                Ok(Some(taken)) => {
                    busy = true;
                    wire.writable = taken;
                }
                Err(error) => self.lose_connection(&error.to_string()),
            }
        }
        busy
    }

    /// Sends one batch: `None` if nothing is due, else whether the socket took it whole.
    fn send_batch(machine: &mut Mirror, mirrors: &Mirrors, wire: &mut Wire) -> std::io::Result<Option<bool>> {
        let outgoing = &mut wire.outgoing;
        outgoing.clear();
        while outgoing.len() < BATCH && outgoing.bytes() < BATCH_BYTES {
            let Some(frame) = machine.due() else { break };
            let Some((header, payload)) = mirrors.frame(&frame) else {
                return Err(std::io::Error::other("a submission of a tensor that was not declared"));
            };
            outgoing.push(header, payload);
            machine.sent();
        }
        // Whatever is sent is a sign of life.
        let beats = std::mem::take(&mut wire.beat);
        if outgoing.len() == 0 && beats {
            outgoing.push(Header::bare(mirrors.job, 0, Body::Alive), None);
        }
        if outgoing.len() == 0 {
            return Ok(None);
        }
        wire.writer.send(&mut wire.stream, &outgoing.frames()).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_proto::submission::Submission;

    #[test]
    fn what_is_sent_of_a_lane_is_what_its_checksum_was_taken_of() {
        let lane = [const { AtomicU64::new(1) }; 8];
        // SAFETY: the lane outlives it, and only atomics touch it.
        let foreign = unsafe { Foreign::new(lane.as_ptr().cast(), size_of_val(&lane)) };
        let submission = Submission::Clock { clock: 1 };
        let header = Header::bare(1, 1, Body::Submission { submission, wanted: false });
        let mut outgoing = Outgoing::default();
        for _ in 0..2 {
            outgoing.clear();
            outgoing.push(header, Some(foreign));
            outgoing.push(header, None);
            lane.iter().for_each(|word| _ = word.fetch_add(1, Ordering::Relaxed));
            let frames = outgoing.frames();
            let payload = frames[0].1;
            assert_eq!(payload.len(), size_of_val(&lane));
            assert_eq!(header.with_payload(payload).encode(), frames[0].0);
            assert!(frames[1].1.is_empty() && frames[1].0 == header.encode());
        }
    }
}
