//! A worker on another host, as one shard sees it: its connection. Which of its frames were taken, and what is owed to it, its
//! machine knows ([`penstock_proto::remote::home`]).

use super::memory::Memory;
use super::shares;
use crate::wire::frames::{BATCH, BATCH_BYTES, FrameReader, FrameWriter, Places, Step};
use crate::wire::vigil::Vigil;
use penstock_fabric::net::stream::Stream;
use penstock_proto::frame::{Body, HEADER_BYTES, Header, Notice};
use penstock_proto::remote::home::{Owing, Subscriber};
use penstock_proto::shard::{Shard, SubmissionRefused};
use penstock_proto::submission::Submission;
use penstock_proto::{Rank, TensorId};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Bytes of a connection that may be past the kernel and not be taken: a frame that is here in part, and what TLS has decrypted.
const UNDER_WAY: u64 = 2 << 20;

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
    subscriber: Subscriber,
    last_sign: Instant,
    vigil: Vigil,
    /// Bytes of frames that were taken.
    received: u64,
    /// Whether the worker's process has ended, and the control thread waits for its connection to.
    ending: bool,
}

/// What a look at the connection brought.
pub(super) enum Heard {
    /// A submission, whole; whether its result is wanted; bytes that came with it.
    Submission(Submission, bool, u32),
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
    subscriber: &'a Subscriber,
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
        self.subscriber.expect(header.sequence).map_err(|error| error.to_string())?;
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
            subscriber: Subscriber::default(),
            last_sign: Instant::now(),
            vigil: Vigil::new(lease),
            received: 0,
            ending: false,
        }
    }

    pub(super) fn stream(&self) -> Option<&Stream> {
        self.wire.as_ref().map(|wire| &wire.stream)
    }

    /// A new connection.
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
        self.subscriber.connect();
    }

    /// The worker has said goodbye: nothing may follow.
    pub(super) fn let_go(&mut self) {
        self.subscriber.let_go();
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
        self.subscriber.disconnect();
    }

    /// Gives up a connection on which the worker is silent, for it to make another; shows it that this end lives.
    pub(super) fn keep_vigil(&mut self) {
        let Some(wire) = &self.wire else { return };
        if self.vigil.is_time_to_beat() {
            self.subscriber.tell_again();
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

    /// Whether the worker is sending, and how far ahead it is.
    pub(super) fn progress(&self, now: Instant) -> Option<u64> {
        let sends = self.wire.is_some() && now.duration_since(self.last_sign) < SENDING;
        sends.then(|| self.subscriber.lead())
    }

    /// Whether the worker is so far ahead that another, which is sending and that it has to wait for anyway, should have the
    /// link instead. Without that a worker that gets the larger part of a shared link is done early, the other's chunks come
    /// last and alone, and the way back stands idle meanwhile.
    pub(super) fn is_too_far_ahead(&self, least_of_others: Option<u64>) -> bool {
        let lead = self.subscriber.lead();
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
        self.subscriber.has_due() || !wire.writer.is_clear() || wire.stream.holds_output()
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
        let Self { job, rank, wire, subscriber, .. } = self;
        let Some(wire) = wire.as_mut().filter(|wire| wire.readable) else { return Heard::Nothing };
        let mut judge = Judge { job: *job, rank: *rank, subscriber, machine, memory };
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
            Step::Frame(Header { body: Body::Submission { submission, wanted }, length, .. }, _) => {
                if let Err(broken) = self.subscriber.take(&submission) {
                    return Heard::Broke(broken.to_string());
                }
                self.last_sign = Instant::now();
                Heard::Submission(submission, wanted, length)
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

    /// What is owed to the worker.
    pub(super) fn subscriber(&mut self) -> &mut Subscriber {
        &mut self.subscriber
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
            let Some(owing) = self.subscriber.next(memory) else { break };
            let (notice, payload) = notice(owing, memory);
            let header = Header::bare(self.job, self.subscriber.tell(), Body::Notice(notice));
            let header = if payload.is_empty() { header } else { header.with_payload(payload) };
            bytes += payload.len();
            frames.push((header.encode(), payload));
        }
        if frames.is_empty() {
            if !self.subscriber.must_tell() {
                return Ok(None);
            }
            let header = Header::bare(self.job, self.subscriber.tell(), Body::Notice(Notice::Taken));
            frames.push((header.encode(), &[]));
        }
        if let Some(place) = &self.place {
            let bytes = bytes + frames.len() * HEADER_BYTES;
            place.moved.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        let Some(wire) = &mut self.wire else { return Ok(None) };
        wire.writer.send(&mut wire.stream, &frames).map(Some)
    }
}

/// What is said of that, and the bytes that go with it.
fn notice(owing: Owing, memory: &Memory) -> (Notice, &[u8]) {
    match owing {
        Owing::Value { tensor, local, publication } => {
            let (chunk, value) = memory.value(tensor, local);
            let (version, steps) = (publication.version, publication.steps);
            (Notice::Value { tensor, chunk, version, steps }, value)
        }
        Owing::State { tensor, local } => {
            let (chunk, state) = memory.state(tensor, local);
            (Notice::State { tensor, chunk }, state)
        }
        Owing::Folded { tensor, count } => (Notice::Folded { tensor, count }, &[]),
        Owing::Fetched { tensor, ticket } => (Notice::Fetched { tensor, ticket }, &[]),
    }
}
