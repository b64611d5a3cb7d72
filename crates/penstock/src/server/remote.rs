//! A worker on another host, as one shard sees it: its connection, which of its frames were taken, and what is owed to it.
//!
//! What is owed is kept as chunk numbers, not as bytes: a chunk is sent from where it stands, as new as it is then. So a
//! worker that does not read costs a shard a few bytes a chunk and one batch of frames, however slow it is.

use super::memory::Memory;
use super::shares;
use crate::wire::frames::{BATCH, BATCH_BYTES, FrameReader, FrameWriter, Places, Step};
use crate::wire::vigil::Vigil;
use penstock_fabric::net::stream::Stream;
use penstock_proto::frame::{Body, HEADER_BYTES, Header, Notice};
use penstock_proto::numbered::Numbered;
use penstock_proto::outbox::Inbox;
use penstock_proto::shard::{Shard, SubmissionRefused};
use penstock_proto::submission::Submission;
use penstock_proto::{Rank, TensorId};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Bytes of a connection that may be past the kernel and not be taken: a frame that is here in part, and what TLS has decrypted.
const UNDER_WAY: u64 = 2 << 20;

/// What is owed to a worker of one chunk.
#[derive(Debug, Clone, Copy, Default)]
struct OwedChunk {
    /// The version that it wants + 1; 0: it wants nothing.
    wanted: u64,
    /// Whether it stands in the queue.
    queued: bool,
    /// The publication that was sent last on this connection.
    seen: u64,
}

/// What is owed to a worker of one tensor.
#[derive(Debug, Default)]
struct Owed {
    chunks: Vec<OwedChunk>,
    /// Chunks that are wanted.
    open: usize,
    /// The ticket to be returned when none is wanted any more. A later one stands for those before it.
    ticket: Option<u64>,
    /// The ticket that is to be returned, and stands in the queue.
    returned: Option<u64>,
    /// The optimizer's state, if it is asked for.
    state: Option<OwedState>,
    /// Contributions that were folded, and whether that is due to be told.
    count: u64,
    folded: bool,
}

/// What is still to be sent of a tensor's state: so many chunks, from this one on and round. One that is asked for again while it is
/// sent goes round once more, whoever asks how often.
#[derive(Debug, Clone, Copy)]
struct OwedState {
    next: usize,
    left: usize,
    ticket: u64,
}

/// What stands in the queue: each of these at most once, so that a worker that asks and does not read makes it no longer.
#[derive(Debug, Clone, Copy)]
enum Due {
    Value { tensor: TensorId, local: usize },
    State { tensor: TensorId },
    Folded { tensor: TensorId },
    Fetched { tensor: TensorId },
}

/// Where the payload of a worker's frame goes.
#[derive(Debug)]
pub(super) enum Place {
    /// There is none.
    Nowhere,
    /// Into its lane of this tensor.
    Lane { tensor: TensorId, range: Range<usize> },
}

/// Chunks that a worker may be ahead of the others' before its connection has to wait: 1 MiB of the usual ones.
const LEAD: u64 = 32;
/// How long ago a worker must have sent something to count as sending.
const SENDING: Duration = Duration::from_millis(20);

/// The connection. It counts among its job's while it lives.
struct Wire {
    stream: Stream,
    reader: FrameReader<Place>,
    writer: FrameWriter,
    /// Whether the socket may have something.
    readable: bool,
    /// Whether the socket takes something.
    writable: bool,
    /// Whether it is not read for now, because the worker is too far ahead.
    paused: bool,
    /// What the poll watches: whether it can be read, and written.
    watched: (bool, bool),
    /// What its buffers were sized to; `None`: left to the kernel.
    buffer: Option<usize>,
    /// Whether its round trip is long.
    long: bool,
    place: Option<shares::Place>,
}

impl Drop for Wire {
    fn drop(&mut self) {
        if let Some(place) = &self.place {
            place.shares.count(place.job, -1);
        }
    }
}

/// One worker's port.
pub(super) struct Remote {
    job: u64,
    rank: Rank,
    place: Option<shares::Place>,
    wire: Option<Wire>,
    inbox: Inbox,
    /// What the worker was last told of it.
    told: Option<u64>,
    owed: Numbered<Owed>,
    due: VecDeque<Due>,
    /// Contributions that came, and how many of them were folded.
    contributed: (u64, u64),
    last_sign: Instant,
    vigil: Vigil,
    /// Bytes of frames that were taken.
    received: u64,
    /// Whether the worker has said goodbye.
    left: bool,
    /// Whether the worker's process has ended, and the control thread waits for its connection to.
    ending: bool,
}

/// What a look at the connection brought.
pub(super) enum Heard {
    /// A submission, whole; whether its result is wanted.
    Submission(Submission, bool),
    /// A sign of life.
    Alive,
    /// Nothing now.
    Nothing,
    /// It broke the protocol.
    Broke(String),
}

/// Judges frames of one worker before their payload is let in.
struct Judge<'a> {
    job: u64,
    rank: Rank,
    inbox: &'a Inbox,
    machine: &'a Shard,
    memory: &'a mut Memory,
}

impl Places for Judge<'_> {
    type Place = Place;

    fn place(&mut self, header: &Header) -> Result<Place, String> {
        if header.job != self.job || header.epoch != 0 {
            return Err("it sent a frame of another job or epoch".to_owned());
        }
        if header.body == Body::Alive && header.length == 0 {
            return Ok(Place::Nowhere);
        }
        self.inbox.expect(header.sequence).map_err(|error| error.to_string())?;
        let Body::Submission { submission, .. } = header.body else {
            return Err("it sent a shard's frame".to_owned());
        };
        match self.machine.judge(self.rank, &submission) {
            // It breaks nothing, but the job has failed by it: the machine says so by type when it takes the frame.
            Ok(()) | Err(SubmissionRefused::Failure(_)) => {}
            Err(refused) => return Err(refused.to_string()),
        }
        let (Submission::Push { tensor, first, count, .. } | Submission::Load { tensor, first, count, .. }) =
            submission
        else {
            return if header.length == 0 {
                Ok(Place::Nowhere)
            } else {
                Err("it sent a payload for nothing".to_owned())
            };
        };
        let range = self
            .memory
            .homed(tensor, first)
            .filter(|_| count == 1 && self.memory.has_lane(tensor, self.rank));
        match range {
            Some(range) if range.len() == header.length as usize => Ok(Place::Lane { tensor, range }),
            Some(range) => Err(format!("it sent {} bytes for a chunk of {}", header.length, range.len())),
            None => Err(format!(
                "it sent chunk {first} of tensor {tensor}, which it did not declare or which is not homed here"
            )),
        }
    }

    fn memory<'a>(&'a mut self, place: &'a mut Place) -> &'a mut [u8] {
        match place {
            Place::Nowhere => &mut [],
            Place::Lane { tensor, range } => self.memory.lane(*tensor, self.rank).receive(range.clone()),
        }
    }
}

impl Remote {
    pub(super) fn new(job: u64, rank: Rank, place: Option<shares::Place>, lease: Duration) -> Self {
        Self {
            job,
            rank,
            place,
            wire: None,
            inbox: Inbox::default(),
            told: None,
            owed: Numbered::default(),
            due: VecDeque::new(),
            contributed: (0, 0),
            last_sign: Instant::now(),
            vigil: Vigil::new(lease),
            received: 0,
            left: false,
            ending: false,
        }
    }

    pub(super) fn stream(&self) -> Option<&Stream> {
        self.wire.as_ref().map(|wire| &wire.stream)
    }

    /// A new connection: whatever the old one carried is forgotten, but not what was taken. The worker asks again for what it
    /// misses.
    pub(super) fn attach(&mut self, stream: Stream, long: bool) {
        if let Some(place) = &self.place {
            place.shares.count(place.job, 1);
        }
        self.wire = Some(Wire {
            place: self.place.clone(),
            buffer: None,
            long,
            stream,
            reader: FrameReader::new(),
            writer: FrameWriter::default(),
            readable: true,
            writable: true,
            paused: false,
            watched: (true, false),
        });
        self.vigil.connected();
        self.told = None;
        self.due.clear();
        for (id, owed) in self.owed.iter_mut() {
            owed.chunks.fill(OwedChunk::default());
            (owed.open, owed.ticket) = (0, None);
            (owed.returned, owed.state) = (None, None);
            owed.folded = true;
            self.due.push_back(Due::Folded { tensor: id });
        }
    }

    /// The worker has said goodbye: nothing may follow.
    pub(super) fn let_go(&mut self) {
        self.left = true;
    }

    /// The worker's process has ended: no other connection comes when this one is over.
    pub(super) fn await_end(&mut self) {
        self.ending = true;
    }

    /// Whether that has come to pass; once.
    pub(super) fn take_end(&mut self) -> bool {
        self.wire.is_none() && std::mem::take(&mut self.ending)
    }

    /// The connection is over; the worker may make another.
    pub(super) fn detach(&mut self) {
        self.wire = None;
        self.due.clear();
    }

    /// Gives up a connection on which the worker is silent, for it to make another; shows it that this end lives.
    pub(super) fn keep_vigil(&mut self) {
        let Some(wire) = &self.wire else { return };
        if self.vigil.is_time_to_beat() {
            self.told = None;
        }
        if wire.paused {
            // What it says is not read for now.
            self.vigil.heard();
        } else if self.vigil.is_silent(wire.reader.heard()) {
            tracing::info!(rank = self.rank, "a worker's connection is silent");
            self.detach();
        }
    }

    /// Sizes the connection's buffers, if they have another size.
    pub(super) fn resize(&mut self, buffer: Option<usize>) {
        if let (Some(wire), Some(bytes)) = (&mut self.wire, buffer)
            && !wire.long
            && wire.buffer != buffer
        {
            shares::apply(&wire.stream, bytes);
            wire.buffer = buffer;
        }
    }

    /// The socket is ready, as the poll says.
    pub(super) fn ready(&mut self, read: bool, write: bool) {
        if let Some(wire) = &mut self.wire {
            wire.readable |= read;
            wire.writable |= write;
        }
    }

    /// Whether there may be something to take or to send at once.
    pub(super) fn has_work(&self) -> bool {
        self.wire
            .as_ref()
            .is_some_and(|wire| (wire.readable && !wire.paused) || (wire.writable && self.has_output(wire)))
    }

    /// Contributions that wait for other workers'.
    fn lead(&self) -> u64 {
        self.contributed.0 - self.contributed.1
    }

    /// Whether the worker is sending, and how far ahead it is.
    pub(super) fn progress(&self, now: Instant) -> Option<u64> {
        let sends = self.wire.is_some() && now.duration_since(self.last_sign) < SENDING;
        sends.then(|| self.lead())
    }

    /// Whether the worker is so far ahead that another, which is sending and that it has to wait for anyway, should have the
    /// link instead. Without that a worker that gets the larger part of a shared link is done early, the other's chunks come
    /// last and alone, and the way back stands idle meanwhile.
    pub(super) fn is_too_far_ahead(&self, least_of_others: Option<u64>) -> bool {
        let lead = self.lead();
        lead > LEAD && least_of_others.is_some_and(|least| least + LEAD / 2 < lead)
    }

    /// Reads on, or not for now.
    pub(super) fn pause(&mut self, pause: bool) {
        if let Some(wire) = &mut self.wire {
            wire.paused = pause;
        }
    }

    /// Whether it is not read for now.
    pub(super) fn is_paused(&self) -> bool {
        self.wire.as_ref().is_some_and(|wire| wire.paused)
    }

    fn has_output(&self, wire: &Wire) -> bool {
        !self.due.is_empty()
            || self.told != Some(self.inbox.count())
            || !wire.writer.is_clear()
            || wire.stream.holds_output()
    }

    /// What the poll has to watch from now on, if that has changed: whether it can be read, and written.
    pub(super) fn change_of_interest(&mut self) -> Option<(bool, bool)> {
        let writes = self.wire.as_ref().is_some_and(|wire| !wire.writable && self.has_output(wire));
        let wire = self.wire.as_mut()?;
        let wanted = (!wire.paused, writes);
        (wire.watched != wanted).then(|| {
            wire.watched = wanted;
            wanted
        })
    }

    /// The next submission.
    pub(super) fn hear(&mut self, machine: &Shard, memory: &mut Memory) -> Heard {
        let Self { job, rank, wire, inbox, .. } = self;
        let Some(wire) = wire.as_mut().filter(|wire| wire.readable) else { return Heard::Nothing };
        let mut judge = Judge { job: *job, rank: *rank, inbox, machine, memory };
        let step = wire.reader.next(&mut wire.stream, &mut judge);
        if let Step::Frame(header, _) = &step {
            // Whatever the frame says, its bytes have come.
            let bytes = HEADER_BYTES as u64 + u64::from(header.length);
            self.received += bytes;
            if let Some(place) = &self.place {
                place.moved.fetch_add(bytes, Ordering::Relaxed);
            }
        }
        match step {
            Step::Frame(Header { body: Body::Submission { submission, wanted }, .. }, _) => {
                if self.left {
                    return Heard::Broke("it went on after it had said goodbye".to_owned());
                }
                self.inbox.take();
                if matches!(submission, Submission::Push { .. } | Submission::Load { .. }) {
                    self.contributed.0 += 1;
                }
                self.last_sign = Instant::now();
                Heard::Submission(submission, wanted)
            }
            Step::Frame(Header { body: Body::Alive, .. }, _) => Heard::Alive,
            Step::Frame(..) => Heard::Broke("it sent a shard's frame".to_owned()),
            Step::Nothing => {
                wire.readable = false;
                Heard::Nothing
            }
            Step::Ended(why) => {
                tracing::info!(rank, why, "a worker's connection has ended");
                self.detach();
                Heard::Nothing
            }
            Step::Broke(what) => Heard::Broke(what),
        }
    }

    /// Bytes of frames that were taken so far.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// What [`received`](Self::received) will be when everything is taken that has come by now, at most: what the kernel holds, and what
    /// may stand in buffers here.
    pub(super) fn standing(&self) -> u64 {
        let held = self.stream().and_then(|stream| rustix::io::ioctl_fionread(stream).ok());
        held.map_or(self.received, |held| self.received + held + UNDER_WAY)
    }

    fn owed(&mut self, id: TensorId, memory: &Memory) -> &mut Owed {
        if self.owed.get(id).is_none() {
            let chunks = vec![OwedChunk::default(); memory.chunks(id)];
            self.owed.insert(id, Owed { chunks, ..Owed::default() });
        }
        self.known(id)
    }

    /// The same of a tensor of which something was owed before.
    fn known(&mut self, id: TensorId) -> &mut Owed {
        self.owed.get_mut(id).expect("what is due was owed")
    }

    /// The worker wants this chunk's `version` as soon as it is published.
    pub(super) fn want(&mut self, id: TensorId, local: usize, version: u64, memory: &Memory) {
        let owed = self.owed(id, memory);
        let chunk = &mut owed.chunks[local];
        owed.open += usize::from(chunk.wanted == 0);
        chunk.wanted = chunk.wanted.max(version + 1);
        self.settle(id, local, memory);
    }

    /// The worker wants every chunk that has changed since it was sent, and that has this version or once it has.
    pub(super) fn fetch(&mut self, id: TensorId, version: u64, ticket: u64, memory: &Memory) {
        for local in 0..memory.chunks(id) {
            let chunk = self.owed(id, memory).chunks[local];
            let (published, sequence) = memory.published(id, local);
            if chunk.seen != sequence || published.version < version || sequence == 0 {
                self.want(id, local, version, memory);
            }
        }
        let owed = self.owed(id, memory);
        owed.ticket = Some(ticket);
        self.close(id, memory);
    }

    /// The worker wants the optimizer's state, as it is now.
    pub(super) fn fetch_state(&mut self, id: TensorId, ticket: u64, memory: &Memory) {
        let chunks = memory.chunks(id);
        let owed = self.owed(id, memory);
        if chunks == 0 {
            return self.give_back(id, ticket);
        }
        match &mut owed.state {
            Some(state) => (state.left, state.ticket) = (chunks, ticket),
            None => {
                owed.state = Some(OwedState { next: 0, left: chunks, ticket });
                self.due.push_back(Due::State { tensor: id });
            }
        }
    }

    /// A chunk was published.
    pub(super) fn published(&mut self, id: TensorId, local: usize, memory: &Memory) {
        if self.wire.is_some() && self.owed.get(id).is_some_and(|owed| owed.open > 0) {
            self.settle(id, local, memory);
        }
    }

    /// So many of the worker's contributions to the tensor were folded.
    pub(super) fn folded(&mut self, id: TensorId, count: u64, memory: &Memory) {
        let owed = self.owed(id, memory);
        let new = !std::mem::replace(&mut owed.folded, true);
        let before = std::mem::replace(&mut owed.count, count);
        self.contributed.1 += count - before;
        if new {
            self.due.push_back(Due::Folded { tensor: id });
        }
    }

    /// Queues a chunk that is wanted and fresh enough.
    fn settle(&mut self, id: TensorId, local: usize, memory: &Memory) {
        let (published, sequence) = memory.published(id, local);
        let chunk = &mut self.owed(id, memory).chunks[local];
        let fresh = sequence > 0 && published.version + 1 >= chunk.wanted;
        if chunk.wanted > 0 && fresh && !chunk.queued {
            chunk.queued = true;
            self.due.push_back(Due::Value { tensor: id, local });
        }
    }

    /// Returns the ticket if nothing is wanted any more. Tickets come back in order: not before those of a state under way.
    fn close(&mut self, id: TensorId, memory: &Memory) {
        let owed = self.owed(id, memory);
        if owed.open == 0
            && owed.state.is_none()
            && let Some(ticket) = owed.ticket.take()
        {
            self.give_back(id, ticket);
        }
    }

    fn give_back(&mut self, id: TensorId, ticket: u64) {
        let returned = &mut self.known(id).returned;
        match returned {
            Some(before) => *before = ticket.max(*before),
            None => {
                *returned = Some(ticket);
                self.due.push_back(Due::Fetched { tensor: id });
            }
        }
    }

    /// Sends what is due, as far as the socket takes it; whether it sent anything.
    pub(super) fn send(&mut self, memory: &Memory) -> bool {
        let mut busy = false;
        while let Some(wire) = self.wire.as_mut().filter(|wire| wire.writable) {
            let flushed = wire.writer.flush(&mut wire.stream);
            let sent = match flushed {
                Ok(true) => self.send_batch(memory),
                other => other.map(|_| Some(false)),
            };
            let Some(wire) = &mut self.wire else { break };
            match sent {
                Ok(None) => break,
                Ok(Some(taken)) => {
                    busy = true;
                    wire.writable = taken;
                }
                Err(error) => {
                    tracing::info!(rank = self.rank, %error, "a worker's connection has ended");
                    self.detach();
                }
            }
        }
        busy
    }

    /// Sends one batch: `None` if nothing is due, else whether the socket took it whole.
    fn send_batch(&mut self, memory: &Memory) -> std::io::Result<Option<bool>> {
        let mut frames: Vec<([u8; HEADER_BYTES], &[u8])> = Vec::with_capacity(BATCH);
        let mut bytes = 0;
        while frames.len() < BATCH && bytes < BATCH_BYTES {
            let Some(due) = self.due.pop_front() else { break };
            if let Some((notice, payload)) = self.frame(due, memory) {
                let header = Header::bare(self.job, self.inbox.count(), Body::Notice(notice));
                let header = if payload.is_empty() { header } else { header.with_payload(payload) };
                bytes += payload.len();
                frames.push((header.encode(), payload));
            }
        }
        if frames.is_empty() {
            if self.told == Some(self.inbox.count()) {
                return Ok(None);
            }
            let header = Header::bare(self.job, self.inbox.count(), Body::Notice(Notice::Taken));
            frames.push((header.encode(), &[]));
        }
        self.told = Some(self.inbox.count());
        if let Some(place) = &self.place {
            let bytes = bytes + frames.len() * HEADER_BYTES;
            place.moved.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        let Some(wire) = &mut self.wire else { return Ok(None) };
        wire.writer.send(&mut wire.stream, &frames).map(Some)
    }

    fn frame<'a>(&mut self, due: Due, memory: &'a Memory) -> Option<(Notice, &'a [u8])> {
        match due {
            Due::Value { tensor, local } => {
                let (published, sequence) = memory.published(tensor, local);
                let owed = self.known(tensor);
                let chunk = &mut owed.chunks[local];
                chunk.queued = false;
                if published.version + 1 < chunk.wanted {
                    return None; // a newer one is wanted by now, and comes when it is published
                }
                chunk.wanted = 0;
                chunk.seen = sequence;
                owed.open -= 1;
                self.close(tensor, memory);
                let (chunk, value) = memory.value(tensor, local);
                let notice =
                    Notice::Value { tensor, chunk, version: published.version, steps: published.steps };
                Some((notice, value))
            }
            Due::State { tensor } => {
                let (chunk, state) = memory.state(tensor, self.next_of_state(tensor, memory)?);
                Some((Notice::State { tensor, chunk }, state))
            }
            Due::Folded { tensor } => {
                let owed = self.known(tensor);
                owed.folded = false;
                Some((Notice::Folded { tensor, count: owed.count }, &[]))
            }
            Due::Fetched { tensor } => {
                let ticket = self.known(tensor).returned.take()?;
                Some((Notice::Fetched { tensor, ticket }, &[]))
            }
        }
    }

    /// The chunk whose state is sent now. The rest goes to the end of the queue, behind what others wait for.
    fn next_of_state(&mut self, id: TensorId, memory: &Memory) -> Option<usize> {
        let owed = self.known(id);
        let OwedState { next, left, ticket } = owed.state.take()?;
        if left > 1 {
            let chunks = owed.chunks.len();
            owed.state = Some(OwedState { next: (next + 1) % chunks, left: left - 1, ticket });
            self.due.push_back(Due::State { tensor: id });
        } else {
            self.give_back(id, ticket);
            self.close(id, memory);
        }
        Some(next)
    }
}
