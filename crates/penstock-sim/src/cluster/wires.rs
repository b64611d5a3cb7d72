//! What happens on the wires: frames go, are judged and taken as a proxy and a shard of a real job do it; connections break,
//! unnoticed at first, and are made again. How they are read is [`super::reading`]'s.

use super::reading::Readers;
use super::requests::Records;
use super::{Cluster, Event, Failure, Map, Server};
use crate::encodings;
use crate::history::Observation;
use crate::remote::{Mirrored, Port, Ports, Proxy};
use crate::sabotage::Sabotage;
use crate::shard_memory::Mirror;
use crate::transport::{Break, End, Way};
use crate::worker::State;
use crate::workload::Workload;
use penstock_fabric::net::frames::{Batch, FrameWriter, Places};
use penstock_kernels::Foreign;
use penstock_kernels::codec::{Base, Codec};
use penstock_proto::encoding::{Agreed, Encoding, Sent, Shadow, Source};
use penstock_proto::frame::{Body, HEADER_BYTES, Header, Notice};
use penstock_proto::peer::PeerId;
use penstock_proto::remote::home::{Chunks, Owing, Publication, Undeclared};
use penstock_proto::remote::judge::{self, Incoming, LanePart};
use penstock_proto::remote::mirror::{Effect, Frame};
use penstock_proto::submission::{NO_TICKET, Submission};
use penstock_proto::travel::Terms;
use penstock_proto::{Rank, TensorId};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The job's number in frames.
const JOB: u64 = 0x0070_656e_7374_6f63;
/// How long an end tolerates silence, in units of the longest delay.
const PATIENCE: u64 = 5;
/// One write in so many arrives in two pieces.
const PIECES_ONCE_IN: u64 = 4;
/// One look at a wire in so many shows the other end a sign of life.
const BEAT_ONCE_IN: u64 = 24;
/// So many breaks of one wire, and they become as many times rarer: what is sent whole on no connection would never come.
const USUAL_BREAKS: u64 = 8;
/// What stands in a mirror before anything has come.
const UNWRITTEN: u8 = 0xee;

/// What decodes a value's payload.
pub(super) type Decoder = &'static dyn Codec;

/// Judges a shard's frames before their payload is let in.
pub(super) struct Mirrors<'a> {
    pub(super) maps: &'a [Map],
    pub(super) workload: &'a Workload,
    pub(super) tensors: &'a BTreeMap<TensorId, Mirrored>,
}

impl Places for Mirrors<'_> {
    type Place = Decoder;

    fn place(&mut self, header: &Header) -> Result<Self::Place, String> {
        let bytes = |tensor: TensorId, chunk| self.maps[tensor as usize].bytes(chunk).len();
        judge::notice(header, JOB, |notice| match *notice {
            Notice::Value { tensor, chunk, .. } => {
                Some((self.tensors.get(&tensor)?.values_as, bytes(tensor, chunk)))
            }
            Notice::State { tensor, chunk } => {
                let spec = self.workload.spec(tensor);
                let elements = (bytes(tensor, chunk) / spec.dtype.size()) as u64;
                Some((Agreed::default(), spec.state_bytes(elements) as usize))
            }
            Notice::Folded { .. } | Notice::Fetched { .. } | Notice::Taken => None,
        })
    }

    fn memory<'a>(&'a mut self, _: &'a mut Self::Place) -> Option<&'a mut [u8]> {
        None
    }
}

/// Judges a worker's frames before their payload is let in.
pub(super) struct Judge<'a> {
    pub(super) server: &'a mut Server,
    pub(super) rank: Rank,
}

impl Places for Judge<'_> {
    type Place = Incoming;

    fn place(&mut self, header: &Header) -> Result<Incoming, String> {
        let Server { machine, memory, ports, .. } = &*self.server;
        let port = ports.0[self.rank as usize].as_ref().expect("it was asked whether anybody listens");
        let peer = PeerId::worker(self.rank);
        judge::submission(header, JOB, peer, (machine, &port.subscriber), |_, tensor, chunk| {
            let bytes = memory.bytes(tensor, chunk).filter(|_| memory.has_lane(tensor, self.rank))?;
            Some((0..bytes, *memory.contributions(tensor)))
        })
    }

    fn memory<'a>(&'a mut self, place: &'a mut Incoming) -> Option<&'a mut [u8]> {
        match place {
            Incoming::Alive | Incoming::Submission(_, None) => Some(&mut []),
            Incoming::Submission(_, Some(part)) if part.codec.is_verbatim() => {
                Some(self.server.memory.lane(part.tensor, part.chunk, part.rank))
            }
            Incoming::Submission(_, Some(_)) => None,
        }
    }
}

/// A chunk that a shard owes, and what it is encoded by.
struct Owed {
    agreed: Agreed,
    value: Rc<[u8]>,
    /// What its difference would be against, and which publication that is.
    before: Option<(u64, Rc<[u8]>)>,
    /// The publication that the receiver holds.
    position: u64,
}

impl Owed {
    fn sent(&self) -> (Agreed, Sent<'_>) {
        let shadow =
            self.before.as_ref().map(|(publication, bytes)| Shadow { publication: *publication, bytes });
        (self.agreed, Sent { source: Source::Stands(&self.value), shadow, position: self.position })
    }
}

/// The port of a worker that is listened to.
fn open_port(ports: &mut Ports, rank: Rank) -> &mut Port {
    ports.0[rank as usize].as_mut().expect("it was asked whether anybody listens")
}

impl Cluster<'_> {
    // Connections

    /// A frame was sent: it may be one of the last.
    fn tempt(&mut self, rank: Rank, shard: usize) {
        if self.is_planned(shard) {
            return;
        }
        let faults = &self.scenario.faults;
        let wire = &self.wires[rank as usize][shard];
        let once_in = faults.cut_once_in * (1 + wire.number / USUAL_BREAKS);
        if wire.doomed || !self.rng.once_in(once_in) {
            return;
        }
        let number = wire.number;
        self.wires[rank as usize][shard].doomed = true;
        let how = self.rng.pick(&[Break::Cut, Break::Cut, Break::Silent(Way::Up), Break::Silent(Way::Down)]);
        let delay = self.rng.within(0..=2 * self.scenario.faults.delay);
        self.later(delay, Event::Break { rank, shard, number, how });
    }

    /// Whether leases decide what breaks connections there, and which end notices it.
    pub(super) fn is_planned(&self, shard: usize) -> bool {
        self.watch.is_some() && shard == self.control()
    }

    /// Whether this is about the present connection, and the worker still cares about it.
    fn minds(&self, rank: Rank, shard: usize, number: u64) -> bool {
        self.wires[rank as usize][shard].number == number && !self.workers[rank as usize].has_ended()
    }

    pub(super) fn break_wire(
        &mut self,
        rank: Rank,
        shard: usize,
        number: u64,
        how: Break,
    ) -> Result<(), Failure> {
        if !self.minds(rank, shard, number) {
            return Ok(());
        }
        self.wires[rank as usize][shard].shatter(how, self.now, &mut self.rng);
        let patience = PATIENCE * self.scenario.faults.delay;
        let (how, at_worker, at_shard) = match how {
            Break::Cut => {
                let (one, other) = (self.delay(), self.delay());
                ("cut", Some(one), self.rng.once_in(2).then_some(other))
            }
            // The end that hears nothing gives the connection up, and the other then hears that it has ended.
            Break::Silent(Way::Up) => ("silent up", None, Some(patience)),
            Break::Silent(Way::Down) => {
                ("silent down", Some(patience), self.rng.once_in(4).then_some(patience))
            }
        };
        let scripted = !self.is_planned(shard);
        if let Some(delay) = at_worker.filter(|_| scripted) {
            self.later(delay, Event::GiveUp { rank, shard, number });
        }
        if let Some(delay) = at_shard.filter(|_| scripted) {
            self.later(delay, Event::Drop { rank, shard, number });
        }
        self.see(Observation::Cut { rank, shard, how })
    }

    /// The shard gives a connection up, and closes it.
    pub(super) fn drop_wire(&mut self, rank: Rank, shard: usize, number: u64) {
        let wire = &mut self.wires[rank as usize][shard];
        if wire.number != number || !wire.at_shard {
            return;
        }
        wire.close_at_shard();
        if shard == self.control() {
            self.desk.greeted.remove(&rank);
        } else if let Some(port) = &mut self.servers[shard].ports.0[rank as usize] {
            port.subscriber.disconnect();
        }
        let delay = self.delay();
        self.later(delay, Event::GiveUp { rank, shard, number });
    }

    /// The worker gives a connection up, and makes another.
    pub(super) fn give_up(&mut self, rank: Rank, shard: usize, number: u64) {
        let wire = &mut self.wires[rank as usize][shard];
        if wire.number == number && wire.at_worker {
            wire.close_at_worker();
            let delay = self.delay();
            self.later(delay, Event::Connect { rank, shard, number });
        }
    }

    /// A new connection stands. The shard may not have noticed that the old one has ended.
    pub(super) fn connect(&mut self, rank: Rank, shard: usize, number: u64) -> Result<(), Failure> {
        if !self.minds(rank, shard, number) {
            return Ok(());
        }
        if shard == self.control() {
            self.wires[rank as usize][shard].connect();
            self.records[rank as usize] = Records::new(&mut self.rng);
            self.watch_server(rank);
            self.introduce(rank);
            return self.see(Observation::Connected { rank, shard, taken: 0, submitted: 0 });
        }
        let Some(port) = &mut self.servers[shard].ports.0[rank as usize] else { return Ok(()) };
        port.subscriber.connect();
        self.proxies[rank as usize][shard].machine.connect();
        self.wires[rank as usize][shard].connect();
        self.readers[rank as usize][shard] = Readers::new(&mut self.rng);
        let (taken, submitted) = self.proxies[rank as usize][shard].machine.progress();
        self.see(Observation::Connected { rank, shard, taken, submitted })?;
        self.answer(rank, shard);
        Ok(())
    }

    /// A frame goes out: its bytes, which may arrive as others. The caller has checked that there is room.
    fn post(
        &mut self,
        rank: Rank,
        shard: usize,
        way: Way,
        header: Header,
        chunk: Option<(Agreed, Sent<'_>)>,
    ) {
        let mut outgoing = std::mem::take(&mut self.outgoing);
        let flipped = match chunk {
            Some((_, sent)) if self.breaks(Sabotage::BelievesDamagedFrames, 8) => self.flipped(&sent),
            _ => None,
        };
        let mut batch = Batch::new(&mut outgoing);
        match (&chunk, &flipped) {
            (Some((agreed, sent)), None) => batch.push_chunk(header, agreed, sent),
            (Some((agreed, sent)), Some(flipped)) => {
                batch.push_chunk(header, agreed, &Sent { source: Source::Stands(flipped), ..*sent });
            }
            (None, _) => batch.push(header),
        }
        let damage = self.rng.once_in(self.scenario.faults.damage_once_in).then(|| {
            let at = self.rng.within(0..=(HEADER_BYTES + batch.bytes()) as u64 - 1) as usize;
            (at, 1 << self.rng.within(0..=7))
        });
        let bytes = HEADER_BYTES + batch.bytes();
        let due = self.due(rank);
        let ahead = self.some_ahead(bytes, due);
        let wire = &mut self.wires[rank as usize][shard];
        let mut end = End { due, ahead, damage, ..End::new(wire, way, self.now) };
        // Where the connection is over, the frame is lost.
        let _ = FrameWriter::default().send(&mut end, &batch.frames());
        let arrives = end.arrives;
        drop(batch);
        self.outgoing = outgoing;
        self.left(rank, shard, way, arrives);
    }

    /// How many of so many bytes arrive before the others, which arrive at `due`, and when.
    pub(super) fn some_ahead(&mut self, bytes: usize, due: u64) -> Option<(usize, u64)> {
        if !self.rng.once_in(PIECES_ONCE_IN) {
            return None;
        }
        Some((self.rng.within(1..=bytes as u64 - 1) as usize, self.rng.within(self.now..=due)))
    }

    /// A chunk that goes out, with a bit flipped.
    fn flipped(&mut self, sent: &Sent<'_>) -> Option<Vec<u8>> {
        let source = match sent.source {
            Source::Stands(bytes) => Foreign::of(bytes),
            Source::Lane(lane) => lane,
        };
        let mut chunk = vec![0; source.len()];
        source.copy_to(&mut chunk);
        let at = self.rng.within(0..=chunk.len().checked_sub(1)? as u64) as usize;
        chunk[at] ^= 1 << self.rng.within(0..=7);
        Some(chunk)
    }

    /// When what goes out now would arrive.
    pub(super) fn due(&mut self, rank: Rank) -> u64 {
        self.now + self.delay() * self.scenario.faults.slow[rank as usize]
    }

    /// Something has gone out, and arrives then, if ever.
    pub(super) fn left(&mut self, rank: Rank, shard: usize, way: Way, arrives: [Option<u64>; 2]) {
        let number = self.wires[rank as usize][shard].number;
        for due in arrives.into_iter().flatten() {
            self.at(due, Event::Arrive { rank, shard, number, way });
        }
        if self.is_remote(rank) {
            self.tempt(rank, shard);
        }
    }

    pub(super) fn breaks(&mut self, sabotage: Sabotage, once_in: u64) -> bool {
        self.scenario.sabotage == Some(sabotage) && self.rng.once_in(once_in)
    }

    // The worker's end

    /// Hands a submission to the proxy.
    pub(super) fn say(&mut self, rank: Rank, shard: usize, submission: Submission) -> Result<(), Failure> {
        let proxy = &mut self.proxies[rank as usize][shard];
        proxy.machine.submit(submission);
        proxy.left |= matches!(submission, Submission::Leave);
        if let Submission::Fetch { tensor, state, version, ticket } = submission {
            let maps = std::mem::take(&mut self.maps);
            let chunks = &maps[tensor as usize].homes[shard];
            let seen = self.see(Observation::Asked { rank, shard, tensor, ticket, version, state, chunks });
            self.maps = maps;
            seen?;
        }
        self.dispatch(rank, shard);
        Ok(())
    }

    /// Sends what is due to the shard, as far as there is room.
    pub(super) fn dispatch(&mut self, rank: Rank, shard: usize) {
        if self.suspended(rank).is_some() {
            return;
        }
        let most = self.scenario.faults.window;
        loop {
            let wire = &self.wires[rank as usize][shard];
            let proxy = &mut self.proxies[rank as usize][shard];
            if !wire.at_worker || !proxy.machine.is_resumed() || !wire.has_room(Way::Up, most) {
                return;
            }
            let Some(frame) = proxy.machine.due() else { break };
            proxy.machine.sent();
            let Frame { sequence, submission, payload } = frame;
            let header = |wanted| Header::bare(JOB, sequence, Body::Submission { submission, wanted });
            let Some((tensor, chunk)) = payload else {
                self.post(rank, shard, Way::Up, header(false), None);
                continue;
            };
            let Mirrored { contributions_as: agreed, wants, .. } = proxy.tensors[&tensor];
            let wanted = wants && matches!(submission, Submission::Push { .. });
            // As it stands in the lane now.
            let range = self.maps[tensor as usize].bytes(chunk);
            let lane = std::mem::take(&mut self.workers[rank as usize].lanes[tensor as usize]);
            let source = Source::Lane(Foreign::of(&lane[range]));
            let sent = Sent { source, shadow: None, position: 0 };
            self.post(rank, shard, Way::Up, header(wanted), Some((agreed, sent)));
            self.workers[rank as usize].lanes[tensor as usize] = lane;
        }
        if self.rng.once_in(BEAT_ONCE_IN) {
            self.post(rank, shard, Way::Up, Header::bare(JOB, 0, Body::Alive), None);
        }
    }

    /// A frame has come to a proxy.
    pub(super) fn hear(
        &mut self,
        rank: Rank,
        shard: usize,
        header: &Header,
        codec: Decoder,
        payload: &[u8],
    ) -> Result<(), Failure> {
        let Body::Notice(notice) = header.body else { return Ok(()) };
        let Proxy { machine, tensors, .. } = &mut self.proxies[rank as usize][shard];
        let wanted = |id: TensorId| tensors.get(&id).map_or(0, |mirrored| mirrored.wanted);
        match machine.hear(header.sequence, &notice, wanted) {
            Ok(effect) => self.obey(rank, shard, effect, header, (codec, payload)),
            Err(what) => Err(self.broke(rank, shard, &what)),
        }
    }

    /// A shard does what none does.
    pub(super) fn broke(&self, rank: Rank, shard: usize, what: &dyn std::fmt::Display) -> Failure {
        let what = format!("shard {shard} broke the protocol to worker {rank}: {what}");
        Failure::Broke { at: self.now, what }
    }

    /// Does what the mirror's machine says, and wakes the worker.
    fn obey(
        &mut self,
        rank: Rank,
        shard: usize,
        effect: Effect,
        header: &Header,
        (codec, payload): (&dyn Codec, &[u8]),
    ) -> Result<(), Failure> {
        let (Effect::Publish { tensor, .. }
        | Effect::State { tensor, .. }
        | Effect::Folded { tensor, .. }
        | Effect::Fetched { tensor, .. }) = effect
        else {
            return Ok(());
        };
        let Proxy { tensors, left, .. } = &mut self.proxies[rank as usize][shard];
        let left = *left;
        let Some(mirrored) = tensors.get_mut(&tensor) else { return Ok(()) };
        let Mirrored { values, progress, folded, fetched, .. } = mirrored;
        match effect {
            Effect::Nothing => {}
            Effect::Publish { chunk, version, steps, progress: risen, .. } => {
                // It is decoded onto what the mirror holds; the header says whether any of that counts.
                let mut value: Rc<[u8]> = match values.get(&chunk) {
                    Some(held) => Rc::from(&held.value[..]),
                    None => vec![UNWRITTEN; self.maps[tensor as usize].bytes(chunk).len()].into(),
                };
                let onto = Rc::get_mut(&mut value).expect("nobody else has it yet");
                codec.decode(payload, header.base(), onto).map_err(|refused| {
                    let what = format!("shard {shard} sent worker {rank} chunk {chunk}: {refused}");
                    Failure::Broke { at: self.now, what }
                })?;
                values.insert(chunk, Mirror { version, steps, value: value.clone() });
                *progress = risen.unwrap_or(*progress);
                let base = match header.body {
                    Body::Notice(Notice::Value { base, .. }) => base,
                    _ => 0,
                };
                let (encoding, value) = (header.encoding, &*value);
                self.see(Observation::Came { rank, tensor, chunk, version, encoding, base, value })?;
            }
            Effect::State { chunk, .. } => self.see(Observation::Stated { rank, tensor, chunk })?,
            Effect::Folded { count, .. } => *folded = count,
            Effect::Fetched { ticket, .. } => {
                *fetched = ticket.max(*fetched);
                if !left {
                    self.see(Observation::Returned { rank, shard, tensor, ticket })?;
                }
            }
        }
        if matches!(self.workers[rank as usize].state, State::Waiting { .. }) {
            self.wake_later(rank);
        }
        Ok(())
    }

    /// An end finds out that a connection has ended, or that bytes came damaged: it gives the connection up.
    pub(super) fn lose_wire(
        &mut self,
        rank: Rank,
        shard: usize,
        number: u64,
        way: Way,
    ) -> Result<(), Failure> {
        let wire = &self.wires[rank as usize][shard];
        let (told, damaged) = (wire.is_over(way), wire.damaged);
        match way {
            Way::Up => self.drop_wire(rank, shard, number),
            Way::Down => self.give_up(rank, shard, number),
        }
        if told {
            return Ok(());
        }
        if !damaged {
            let what =
                format!("bytes between worker {rank} and shard {shard} are read as others than were sent");
            return Err(Failure::Broke { at: self.now, what });
        }
        self.see(Observation::Cut { rank, shard, how: "damaged" })
    }

    /// Fetches made for `rank` at each shard that is home of some of the tensor.
    pub(super) fn ask(
        &mut self,
        rank: Rank,
        tensor: TensorId,
        fetch: impl Fn(&mut Proxy) -> Option<Submission>,
    ) -> Result<(), Failure> {
        for shard in 0..self.servers.len() {
            if let Some(submission) = fetch(&mut self.proxies[rank as usize][shard]) {
                debug_assert!(!self.maps[tensor as usize].homes[shard].is_empty());
                self.say(rank, shard, submission)?;
            }
        }
        Ok(())
    }

    /// The declaration stands everywhere: mirrors are made.
    pub(super) fn mirror(&mut self, rank: Rank, tensor: TensorId) {
        for (proxy, homed) in self.proxies[rank as usize].iter_mut().zip(&self.maps[tensor as usize].homes) {
            if !homed.is_empty() {
                proxy.machine.declare(tensor, homed.clone());
                let terms = encodings::terms(self.workload.spec(tensor), &encodings::KNOWN);
                let Terms { values: values_as, contributions: contributions_as, .. } = terms;
                let mirrored = Mirrored { values_as, contributions_as, ..Mirrored::default() };
                proxy.tensors.insert(tensor, mirrored);
            }
        }
    }

    /// A push asks for its result.
    pub(super) fn want(
        &mut self,
        rank: Rank,
        tensor: TensorId,
        stamp: u64,
        whole: bool,
    ) -> Result<(), Failure> {
        let consistency = self.workload.spec(tensor).consistency;
        for shard in 0..self.servers.len() {
            let proxy = &mut self.proxies[rank as usize][shard];
            if let Some(version) = proxy.ask_for_result(tensor, stamp, whole, consistency) {
                self.see(Observation::Wanted { rank, shard, tensor, version })?;
            }
        }
        Ok(())
    }

    // The shard's end

    /// A frame has come to a shard, where it was judged and verified: its payload is let into its lane, and it is taken.
    pub(super) fn take(
        &mut self,
        rank: Rank,
        shard: usize,
        header: &Header,
        incoming: Incoming,
        payload: &[u8],
    ) -> Result<(), Failure> {
        let Incoming::Submission(judged, part) = incoming else { return Ok(()) };
        if let Some(part) = part {
            let LanePart { tensor, chunk, codec, .. } = part;
            let lane = self.servers[shard].memory.lane(tensor, chunk, rank);
            if !codec.is_verbatim()
                && let Err(undecodable) = codec.decode(payload, Base::Zeros, lane)
            {
                return self.refused(rank, shard, &undecodable.to_string());
            }
            self.lodged(rank, shard, header.encoding, tensor, chunk)?;
        }
        let submission = *judged.submission();
        let wanted = matches!(header.body, Body::Submission { wanted: true, .. });
        if let Err(what) = open_port(&mut self.servers[shard].ports, rank).subscriber.take(&submission) {
            return self.refused(rank, shard, &what.to_string());
        }
        match self.take_question(rank, shard, &submission, wanted) {
            Ok(()) => self.take_judged(rank, shard, judged),
            Err(undeclared) => self.refused(rank, shard, &undeclared.to_string()),
        }
    }

    /// Notes what a submission asks for, unless that is forgotten on purpose.
    fn take_question(
        &mut self,
        rank: Rank,
        shard: usize,
        submission: &Submission,
        wanted: bool,
    ) -> Result<(), Undeclared> {
        let sabotage = self.scenario.sabotage;
        let Server { machine, memory, ports, overlay } = &mut self.servers[shard];
        let Port { subscriber, tickets } = open_port(ports, rank);
        let ticket = match *submission {
            Submission::Fetch { tensor, ticket, .. } if ticket != NO_TICKET => Some((tensor, ticket)),
            _ => None,
        };
        if let Some((tensor, ticket)) = ticket {
            let newest = tickets.entry(tensor).or_insert(0);
            let again = ticket <= *newest;
            *newest = ticket.max(*newest);
            if sabotage == Some(Sabotage::DoesNotFetchAgain) && again {
                return Ok(());
            }
        }
        let wanted = wanted && sabotage != Some(Sabotage::ForgetsWhatIsWanted);
        subscriber.ask(PeerId::worker(rank), submission, wanted, (machine, overlay), memory)?;
        if let Some((tensor, ticket)) = ticket
            && sabotage == Some(Sabotage::ReturnsTicketsTooEarly)
        {
            let body = Body::Notice(Notice::Fetched { tensor, ticket });
            let header =
                Header::bare(JOB, open_port(&mut self.servers[shard].ports, rank).subscriber.tell(), body);
            self.post(rank, shard, Way::Down, header, None);
        }
        Ok(())
    }

    /// A payload stands in its lane.
    fn lodged(
        &mut self,
        rank: Rank,
        shard: usize,
        encoding: Encoding,
        tensor: TensorId,
        chunk: u32,
    ) -> Result<(), Failure> {
        let range = self.maps[tensor as usize].bytes(chunk);
        // What was sent stands there until it is folded.
        let lane = std::mem::take(&mut self.workers[rank as usize].lanes[tensor as usize]);
        let (sent, came) = (&lane[range], &self.servers[shard].memory.lane(tensor, chunk, rank).to_vec());
        let seen = self.see(Observation::Lodged { shard, rank, tensor, chunk, encoding, sent, came });
        self.workers[rank as usize].lanes[tensor as usize] = lane;
        seen
    }

    /// Sends what is due to a worker, as far as there is room.
    pub(super) fn answer(&mut self, rank: Rank, shard: usize) {
        let most = self.scenario.faults.window;
        loop {
            let wire = &self.wires[rank as usize][shard];
            if !wire.at_shard || !wire.has_room(Way::Down, most) {
                return;
            }
            let Server { memory, ports, .. } = &mut self.servers[shard];
            let Some(Port { subscriber, .. }) = &mut ports.0[rank as usize] else { return };
            if self.rng.once_in(8 * BEAT_ONCE_IN) {
                subscriber.tell_again();
            }
            let (notice, sent): (_, Option<Owed>) = match subscriber.next(memory) {
                None if subscriber.must_tell() => (Notice::Taken, None),
                None => return,
                Some(Owing::Value { tensor, local, publication, position }) => {
                    let chunk = memory.chunk_at(tensor, local);
                    let (agreed, sent) = memory.send(tensor, chunk, position);
                    let before = sent.shadow.map(|shadow| (shadow.publication, Rc::from(shadow.bytes)));
                    let stands = &memory.mirror(tensor, chunk).expect("what is sent is published").value;
                    let value = match sent.source {
                        // What a filter has let pass.
                        Source::Stands(bytes) if !std::ptr::eq(bytes, &raw const **stands) => Rc::from(bytes),
                        _ => stands.clone(),
                    };
                    let Publication { version, steps, sequence } = publication;
                    let notice =
                        Notice::Value { tensor, chunk, version, steps, publication: sequence, base: 0 };
                    (notice, Some(Owed { agreed: *agreed, value, before, position }))
                }
                Some(Owing::State { tensor, local }) => {
                    let chunk = memory.chunk_at(tensor, local);
                    let value = Rc::from(memory.state(tensor, chunk));
                    let owed = Owed { agreed: Agreed::default(), value, before: None, position: 0 };
                    (Notice::State { tensor, chunk }, Some(owed))
                }
                Some(Owing::Folded { tensor, count }) => (Notice::Folded { tensor, count }, None),
                Some(Owing::Fetched { tensor, ticket }) => (Notice::Fetched { tensor, ticket }, None),
            };
            let header = Header::bare(JOB, subscriber.tell(), Body::Notice(notice));
            let loses = matches!(notice, Notice::Value { .. }) && self.breaks(Sabotage::LosesNotices, 4);
            if !loses {
                self.post(rank, shard, Way::Down, header, sent.as_ref().map(Owed::sent));
            }
        }
    }
}
