//! Proxies: on a worker's side, one thread for each shard of a server on another host.
//!
//! A proxy stands in for the shard: it pops the same submissions from the same ring, keeps a mirror of the chunks that the
//! shard is home of, publishes in it, counts and rings as a shard would. So everything above it is the same with and without a
//! network. What has come, and what is asked for again on a new connection, its machine knows
//! ([`penstock_proto::remote::mirror`]). Its frames are encoded out of the lane; values are received beside the mirror,
//! verified, and then decoded and published in it, so that no reader ever sees half a chunk or a damaged one.

use crate::thread::{self, Inbox};
use crate::wait::{Crowd, Patience, poll};
use crate::wire::dial::Dialer;
use crate::wire::redial::{Failed, PAUSE, redial};
use crate::wire::vigil::{Vigil, look_every};
use crate::worker::fate::Fate;
use penstock_fabric::doorbell::{self, ANYTHING, Sleeping};
use penstock_fabric::inlet::Inlet;
use penstock_fabric::layout::flags;
use penstock_fabric::memory::{HomeMemory, LaneView, StateMirror};
use penstock_fabric::net::frames::{Batch, FrameReader, FrameWriter, Places, Step};
use penstock_fabric::net::link::{Interest, Link as _};
use penstock_fabric::net::stream::Stream;
use penstock_fabric::publish::Published;
use penstock_fabric::region::Mapping;
use penstock_fabric::sync::Ordering;
use penstock_kernels::codec::{Base, Codec, Raw, Undecodable};
use penstock_proto::encoding::{Agreed, Sent, Source};
use penstock_proto::frame::{Body, Header, Notice};
use penstock_proto::handshake::Purpose;
use penstock_proto::job::job_number;
use penstock_proto::numbered::Numbered;
use penstock_proto::remote::mirror::{Effect, Frame, Mirror};
use penstock_proto::submission::Submission;
use penstock_proto::travel::Terms;
use penstock_proto::{Rank, TensorId};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::Sender;
use std::time::Duration;

/// Frames that wait to be sent at most, before more is taken from the ring.
const MOST_UNSENT: u64 = 4096;
/// Bytes of values that one read brings at most.
const READ: usize = 256 * 1024;
/// Frames taken between two looks at the ring.
const FRAMES: usize = 32;

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
    /// Whether the value was pulled since the last push.
    pub(in crate::worker) pulled: AtomicBool,
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

/// The link's end of a proxy.
pub(super) struct Handle {
    thread: thread::Handle<Command>,
    progress: Arc<Progress>,
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

    /// How many frames the shard has taken, of how many; there may be more in the ring that are not counted so far.
    pub(super) fn progress(&self) -> (u64, u64) {
        let Progress { taken, submitted } = &*self.progress;
        // The smaller one first: it cannot have grown past the other then.
        let taken = taken.load(Ordering::Relaxed);
        (taken, submitted.load(Ordering::Relaxed).max(taken))
    }
}

/// What a proxy is started with.
pub(super) struct Setup {
    pub(super) server: u32,
    /// This worker's.
    pub(super) rank: Rank,
    pub(super) shard: u32,
    pub(super) purpose: Purpose,
    pub(super) crowd: Arc<Crowd>,
    pub(super) lease: Duration,
    pub(super) dialer: Arc<Dialer>,
    pub(super) page: Arc<Mapping>,
    pub(super) flags: Arc<Mapping>,
    pub(super) fate: Arc<Fate>,
}

/// Starts a proxy; the descriptor is what it is woken with.
pub(super) fn start(setup: Setup) -> std::io::Result<(Handle, OwnedFd)> {
    let (mut thread, inbox) = thread::commanded()?;
    let rung = thread.bell()?;
    let progress = Arc::new(Progress::default());
    let name = format!("penstock-proxy-{}.{}", setup.server, setup.shard);
    let proxy = Proxy {
        inlet: Inlet::new(Arc::clone(&setup.page), setup.shard),
        inbox,
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
    thread.start(name, move || proxy.run())?;
    Ok((Handle { thread, progress }, rung))
}

/// Where the chunks of one tensor are mirrored that the shard is home of.
struct Mirrored {
    home: HomeMemory,
    lane: LaneView,
    remote: Arc<RemoteHome>,
    state: Option<StateMirror>,
    /// How its chunks travel.
    terms: Arc<Terms>,
}

impl Mirrored {
    /// Decodes a chunk's new value and publishes it. Readers never see a payload that is refused.
    fn publish(
        &mut self,
        chunk: u32,
        codec: &dyn Codec,
        payload: &[u8],
        base: Base,
        published: Published,
    ) -> Result<(), Undecodable> {
        let mut place = self.home.chunk(chunk);
        place.header.begin();
        match codec.decode(payload, base, place.value) {
            Ok(()) => place.header.publish(published),
            Err(refused) => {
                place.header.leave();
                return Err(refused);
            }
        }
        Ok(())
    }
}

/// All mirrors.
#[derive(Default)]
struct Mirrors {
    job: u64,
    tensors: Numbered<Mirrored>,
}

impl Mirrors {
    /// The tensor's memory, if the shard is home of the chunk.
    fn of(&self, tensor: TensorId, chunk: u32) -> Option<&Mirrored> {
        self.tensors.get(tensor).filter(|mirrored| mirrored.home.find(chunk).is_some())
    }

    /// Adds a frame to a batch, with what it carries of the lane. `None`: the tensor was not declared.
    fn push<'a>(&'a self, batch: &mut Batch<'a>, frame: &Frame) -> Option<()> {
        let Frame { sequence, submission, payload } = *frame;
        let header = |wanted| Header::bare(self.job, sequence, Body::Submission { submission, wanted });
        let Some((tensor, chunk)) = payload else {
            batch.push(header(false));
            return Some(());
        };
        let mirrored = self.tensors.get(tensor)?;
        let is_push = matches!(submission, Submission::Push { .. });
        let wanted = is_push && mirrored.remote.wants.load(Ordering::Relaxed);
        let source = Source::Lane(mirrored.lane.contribution(mirrored.home.range(chunk)));
        batch.push_chunk(
            header(wanted),
            &mirrored.terms.contributions,
            &Sent { source, shadow: None, position: 0 },
        );
        Some(())
    }
}

impl Places for Mirrors {
    /// What decodes the payload.
    type Place = &'static dyn Codec;

    fn place(&mut self, header: &Header) -> Result<Self::Place, String> {
        let Body::Notice(notice) = header.body else { return Err("a worker's frame".to_owned()) };
        if header.job != self.job || header.epoch != 0 {
            return Err("a frame of another job or epoch".to_owned());
        }
        let length = header.length as usize;
        let chunk = match notice {
            Notice::Value { tensor, chunk, .. } => {
                let mirrored = self.of(tensor, chunk);
                mirrored.map(|mirrored| (&mirrored.terms.values, mirrored.home.range(chunk).len()))
            }
            Notice::State { tensor, chunk } => {
                let state = self.of(tensor, chunk).and_then(|mirrored| mirrored.state.as_ref());
                state.map(|state| (&Agreed::RAW, state.bytes(chunk)))
            }
            Notice::Folded { .. } | Notice::Fetched { .. } | Notice::Taken if header.is_bare() => {
                return Ok(&Raw);
            }
            Notice::Folded { .. } | Notice::Fetched { .. } | Notice::Taken => None,
        };
        let Some((agreed, bytes)) = chunk else {
            return Err(format!("{length} bytes for {notice:?}, which was not asked for"));
        };
        let codec = agreed.expect(header.encoding, length, bytes);
        codec.map_err(|unexpected| format!("{notice:?}: {unexpected}"))
    }

    /// Beside the mirror: a payload may be damaged.
    fn memory<'a>(&'a mut self, _: &'a mut Self::Place) -> Option<&'a mut [u8]> {
        None
    }
}

struct Wire {
    stream: Stream,
    reader: FrameReader<&'static dyn Codec>,
    writer: FrameWriter,
    /// Where chunks are encoded.
    outgoing: Vec<u8>,
    readable: bool,
    writable: bool,
    /// Whether a sign of life is due, if nothing else is.
    beat: bool,
}

struct Proxy {
    setup: Setup,
    inbox: Inbox<Command>,
    inlet: Inlet,
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

impl Proxy {
    fn run(mut self) {
        self.mirrors.job = job_number(self.setup.dialer.job());
        let crowd = Arc::clone(&self.setup.crowd);
        let mut patience = Patience::new(&crowd);
        while self.running {
            if self.wire.is_none() {
                self.connect();
                continue;
            }
            if self.look() {
                patience = Patience::new(&crowd);
            } else if !patience.pause() {
                self.sleep();
                patience = Patience::new(&crowd);
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
        let Setup { dialer, purpose, fate, .. } = &self.setup;
        let is_over = || self.inbox.is_open() || fate.is_over();
        match redial(dialer, *purpose, &mut self.vigil, is_over) {
            Ok(stream) => {
                self.wire = Some(Wire {
                    stream,
                    reader: FrameReader::reading(READ),
                    writer: FrameWriter::default(),
                    outgoing: Vec::new(),
                    readable: true,
                    writable: true,
                    beat: false,
                });
                self.machine.connect();
                self.vigil.connected();
            }
            Err(Failed::GivenUp) => {}
            // Whether the job has ended there, the link's own thread hears with the reason.
            Err(Failed::Refused(refusal)) => self.bear_with(refusal.to_string()),
            Err(Failed::Untrusted(reason) | Failed::ForNow(reason)) => self.bear_with(reason),
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
        self.inbox.wakeup().sleep(PAUSE);
        self.inbox.wakeup().clear();
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
        if self.machine.is_delivered() && !self.drains.is_empty() && self.inlet.is_empty() {
            self.drains.drain(..).for_each(|done| _ = done.send(()));
        }
        busy
    }

    fn has_output(&self, wire: &Wire) -> bool {
        self.interest(wire).write
    }

    /// What has to be waited for, as long as neither is known to be ready.
    fn interest(&self, wire: &Wire) -> Interest {
        let due = self.machine.is_resumed() && (wire.beat || self.machine.unsent() > 0);
        wire.stream.interest(due || !wire.writer.is_clear())
    }

    fn has_work(&self) -> bool {
        let room = self.machine.unsent() < MOST_UNSENT;
        self.inbox.is_open()
            || (room && !self.inlet.is_empty())
            || self.wire.as_ref().is_none_or(|wire| wire.readable || (wire.writable && self.has_output(wire)))
    }

    /// Finds out whether the socket is ready, without waiting. Whether it can be read is seen by reading, which costs no more
    /// than a question and spares the read that follows one; a write that the socket takes little of would be worse than none.
    fn poll_wire(&mut self) {
        let Some(wire) = &mut self.wire else { return };
        wire.readable = true;
        wire.reader.look_again();
        if !wire.writable {
            self.poll(Duration::ZERO);
        }
    }

    fn poll(&mut self, longest: Duration) {
        let Some(wire) = &self.wire else { return };
        let interest = self.interest(wire);
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, interest.read);
        flags.set(PollFlags::OUT, interest.write && !wire.writable);
        let mut fds = [PollFd::new(&wire.stream, flags), PollFd::new(self.inbox.wakeup(), PollFlags::IN)];
        let _ = poll(&mut fds, Some(longest));
        let (socket, woken) = (fds[0].revents(), fds[1].revents());
        if !woken.is_empty() {
            self.inbox.wakeup().clear();
        }
        if let Some(wire) = &mut self.wire {
            wire.writable |= socket.contains(PollFlags::OUT);
            // Errors and hang-ups are found out by reading.
            if socket.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                wire.readable = true;
                wire.reader.look_again();
            }
        }
    }

    fn sleep(&mut self) {
        let sleeping: &Sleeping = self.setup.flags.at(flags::sleeping(self.setup.shard));
        sleeping.announce();
        if !self.has_work() {
            self.poll(look_every(self.setup.lease));
            self.keep_vigil();
        } else {
            self.inbox.wakeup().clear();
        }
        self.setup.flags.at::<Sleeping>(flags::sleeping(self.setup.shard)).awake();
    }

    fn take_commands(&mut self) -> bool {
        if !self.inbox.open() {
            return false;
        }
        while let Some(command) = self.inbox.next() {
            match command {
                Command::Declare { id, home, lane, remote, terms } => {
                    self.machine.declare(id, home.chunks().to_vec());
                    let mirrored = Mirrored { home: *home, lane, remote, state: None, terms };
                    self.mirrors.tensors.insert(id, mirrored);
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
            // The ring is this process's own: it cannot be broken but by this process.
            let Ok(Some(words)) = self.inlet.pop() else { break };
            let Ok(submission) = Submission::decode(words) else { break };
            // What a submission names was declared before; the command may still be on its way.
            self.take_commands();
            taken += 1;
            self.machine.submit(submission);
        }
        if taken > 0 {
            doorbell::published();
            if self.inlet.bell().must_ring(ANYTHING) {
                self.inlet.bell().ring();
            }
        }
        taken > 0
    }

    // Receiving

    fn receive(&mut self) -> bool {
        let mut taken = 0;
        // What comes behind a breach of the protocol is not looked at.
        while taken < FRAMES && self.running {
            let Some(wire) = self.wire.as_mut().filter(|wire| wire.readable) else { break };
            match wire.reader.next(&mut wire.stream, &mut self.mirrors) {
                Step::Frame(header, codec) => {
                    taken += 1;
                    self.hear(&header, codec);
                }
                Step::Header => {}
                Step::Nothing => wire.readable = false,
                Step::Ended(why) => self.lose_connection(&why),
                Step::Broke(what) => self.fail(format!("it broke the protocol: {what}")),
            }
        }
        taken > 0
    }

    fn hear(&mut self, header: &Header, codec: &dyn Codec) {
        let (Body::Notice(notice), Some(wire)) = (header.body, &self.wire) else { return };
        let tensors = &mut self.mirrors.tensors;
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
                let (payload, published) = (wire.reader.payload(), Published { version, steps });
                if let Err(refused) = mirrored.publish(chunk, codec, payload, header.base(), published) {
                    return self.fail(format!("it broke the protocol: chunk {chunk}: {refused}"));
                }
                if let Some(progress) = progress {
                    // Pairs with the acquire load in the worker's pull: who sees the progress sees the chunks.
                    mirrored.home.progress().0.store(progress, Ordering::Release);
                    self.tell(tensor);
                }
            }
            Effect::State { chunk, .. } => {
                if let Some(state) = &mirrored.state {
                    state.write(chunk, wire.reader.payload());
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
        if self.inlet.bell().must_ring(tensor + 1) {
            self.inlet.bell().ring();
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
        let mut batch = Batch::new(&mut wire.outgoing);
        while !batch.is_full() {
            let Some(frame) = machine.due() else { break };
            if mirrors.push(&mut batch, &frame).is_none() {
                return Err(std::io::Error::other("a submission of a tensor that was not declared"));
            }
            machine.sent();
        }
        // Whatever is sent is a sign of life.
        let beats = std::mem::take(&mut wire.beat);
        if batch.is_empty() && beats {
            batch.push(Header::bare(mirrors.job, 0, Body::Alive));
        }
        if batch.is_empty() {
            return Ok(None);
        }
        wire.writer.send(&mut wire.stream, &batch.frames()).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::travel::members::{CHANGES, differences, terms};
    use penstock_fabric::memory::{ExtentLayout, HomeRegions};
    use penstock_kernels::Dtype;
    use penstock_proto::chunk::Cut;
    use penstock_proto::encoding::{Encoding, Shadow};
    use penstock_proto::placement::Extent;
    use penstock_proto::travel::{Filtering, Travel};
    use std::net::{TcpListener, TcpStream};

    const W: TensorId = 3;

    fn mirrors(travel: &Travel) -> Mirrors {
        let extent = Extent { first: 0, count: 1 };
        let layout = ExtentLayout::new(Cut::new(4096, 4096), extent, Dtype::F32, 0);
        let (mut homes, _) = HomeRegions::new("w", layout).unwrap().split(&[0], 1);
        let mut lanes = LaneView::private(layout, &[0].into(), 1).unwrap();
        let (home, lane, remote) = (homes.remove(0), lanes.remove(0), Arc::default());
        let mut mirrors = Mirrors { job: 1, ..Mirrors::default() };
        let terms = Arc::new(terms(travel));
        mirrors.tensors.insert(W, Mirrored { home, lane, remote, state: None, terms });
        mirrors
    }

    fn value(publication: u64) -> Header {
        let notice = Notice::Value { tensor: W, chunk: 0, version: 1, steps: 1, publication, base: 0 };
        Header::bare(1, 0, Body::Notice(notice))
    }

    #[test]
    fn a_difference_is_received_beside_the_mirror_and_decoded_onto_what_stands_there() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let home = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (worker, _) = listener.accept().unwrap();
        let patience = Duration::from_secs(10);
        let mut home = Stream::plain(home, patience).unwrap();
        let mut worker = Stream::plain(worker, patience).unwrap();
        let travel = differences(Filtering::NONE);
        let (mut mirrors, mut reader) = (mirrors(&travel), FrameReader::reading(READ));
        let agreed = terms(&travel).values;
        let before = vec![7; 4096];
        let now = [vec![7; 4080], vec![8; 16]].concat();
        let (mut buffer, mut writer) = (Vec::new(), FrameWriter::default());
        let mut batch = Batch::new(&mut buffer);
        let shadow = Some(Shadow { publication: 2, bytes: &before });
        let sent = |source, position| Sent { source: Source::Stands(source), shadow, position };
        batch.push_chunk(value(2), &agreed, &sent(&before, 0));
        batch.push_chunk(value(4), &agreed, &sent(&now, 2));
        assert!(writer.send(&mut home, &batch.frames()).unwrap());
        for (value, bytes, base, encoding) in
            [(&before, 4096, Base::Zeros, Encoding::RAW), (&now, 32, Base::Held, CHANGES)]
        {
            let (header, codec) = loop {
                match reader.next(&mut worker, &mut mirrors) {
                    Step::Frame(header, codec) => break (header, codec),
                    Step::Header => {}
                    Step::Nothing => std::thread::yield_now(),
                    step => panic!("{step:?}"),
                }
            };
            assert_eq!((reader.payload().len(), header.base(), header.encoding), (bytes, base, encoding));
            let mirrored = mirrors.tensors.get_mut(W).unwrap();
            let published = Published { version: 1, steps: 1 };
            mirrored.publish(0, codec, reader.payload(), header.base(), published).unwrap();
            assert_eq!(mirrored.home.value(0), value);
        }
    }

    /// E-2.
    #[test]
    fn a_payload_that_is_refused_is_never_seen_by_a_reader() {
        let travel = differences(Filtering::NONE);
        let mut mirrors = mirrors(&travel);
        let mirrored = mirrors.tensors.get_mut(W).unwrap();
        let published = Published { version: 1, steps: 1 };
        mirrored.publish(0, &Raw, &[7; 4096], Base::Zeros, published).unwrap();
        let changes = terms(&travel).values.expect(CHANGES, 7, 4096).unwrap();
        for payload in [&[1; 7][..], &[0xff; 8], &[1; 16]] {
            let refused =
                mirrored.publish(0, changes, payload, Base::Held, Published { version: 2, steps: 2 });
            assert!(refused.is_err());
            assert_eq!(mirrored.home.value(0), [7; 4096]);
            let even = mirrored.home.sequence(0);
            assert_eq!(even % 2, 0, "readers may go in");
        }
        let broken = mirrors.place(&value(6).with_encoded(CHANGES, 4, &[0; 4096])).unwrap_err();
        assert!(broken.contains("expected 0 to 4095 bytes of a chunk of 4096, got 4096"), "{broken}");
        let unknown = self::mirrors(&Travel::default()).place(&value(6).with_encoded(CHANGES, 4, &[0; 8]));
        let unknown = unknown.unwrap_err();
        assert!(unknown.contains("expected an encoding that the tensor agreed to, got 9"), "{unknown}");
    }
}
