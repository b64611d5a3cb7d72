//! When the ends of a connection to a shard look at it, and what comes of a look: at a worker's end its proxy's, at the shard's end a
//! turn of that peer's.
//!
//! Bytes that arrive are looked at at once, or later if the end has something else to do. A look takes as many frames as there are,
//! or as one look takes at most. What an end does then it is told by the code that it runs, as in a real job: it looks again if
//! there is work left, and else sleeps until what it waits for is there. Half of the ends bring whatever has arrived in a read, as
//! TCP does; the others some of it.

use super::{Cluster, Event, Failure, Server};
use crate::history::Observation;
use crate::remote::{self, Deed};
use crate::sabotage::Sabotage;
use crate::transport::Way;
use crate::worker::State;
use penstock_fabric::doorbell::single_chunks;
use penstock_fabric::net::remote_peer::{Heard, Homed as _, Taken};
use penstock_fabric::net::remote_shard::{Looked, Over};
use penstock_proto::encoding::Encoding;
use penstock_proto::peer::PeerId;
use penstock_proto::remote::home::{Chunks as _, Undeclared};
use penstock_proto::submission::{NO_MORE, NO_TICKET, Submission};
use penstock_proto::{Rank, TensorId};

/// Frames of a look at most, as in a real job.
const FRAMES: u64 = 32;
/// One end in so many has something else to do when bytes arrive.
const BUSY_ONCE_IN: u64 = 4;
/// One look at a connection in so many shows the other end a sign of life.
const BEAT_ONCE_IN: u64 = 24;
/// One turn of a peer in so many is not read, as where another is to have the line.
const PAUSE_ONCE_IN: u64 = 16;

impl Cluster<'_> {
    /// Whether this is about the present connection, and the end that reads this way stands.
    pub(super) fn is_present(&self, rank: Rank, shard: usize, number: u64, way: Way) -> bool {
        let wire = self.wire(rank, shard);
        wire.number == number && wire.is_read(way)
    }

    /// Bytes have arrived.
    pub(super) fn arrive(&mut self, rank: Rank, shard: usize, number: u64, way: Way) -> Result<(), Failure> {
        if shard == self.control() {
            return self.hear_records(rank, number, way);
        }
        // A shard's poll does not say so where it does not watch for it.
        let watched = match &self.servers[shard].ports.0[rank as usize] {
            Some(port) if way == Way::Up => port.watched.read,
            _ => true,
        };
        if !watched || !self.is_present(rank, shard, number, way) {
            return Ok(());
        }
        self.look_soon(rank, shard, way)
    }

    /// An end is woken: it looks at once, or when it comes to it.
    pub(super) fn look_soon(&mut self, rank: Rank, shard: usize, way: Way) -> Result<(), Failure> {
        if self.looks[rank as usize][shard][way as usize] {
            return Ok(());
        }
        if self.rng.once_in(BUSY_ONCE_IN) {
            self.look_later(rank, shard, way);
            return Ok(());
        }
        self.look_at(rank, shard, way)
    }

    /// The end that reads this way looks after a while.
    pub(super) fn look_later(&mut self, rank: Rank, shard: usize, way: Way) {
        if !std::mem::replace(&mut self.looks[rank as usize][shard][way as usize], true) {
            let (delay, number) = (self.delay(), self.wire(rank, shard).number);
            self.later(delay, Event::Read { rank, shard, number, way });
        }
    }

    /// An end that had something else to do looks.
    pub(super) fn read(&mut self, rank: Rank, shard: usize, number: u64, way: Way) -> Result<(), Failure> {
        if !self.is_present(rank, shard, number, way) {
            return Ok(());
        }
        self.looks[rank as usize][shard][way as usize] = false;
        self.look_at(rank, shard, way)
    }

    fn look_at(&mut self, rank: Rank, shard: usize, way: Way) -> Result<(), Failure> {
        match way {
            Way::Up => self.look_at_shard(rank, shard)?,
            Way::Down => self.look_at_worker(rank, shard)?,
        }
        self.rouse(rank, shard);
        Ok(())
    }

    /// Frames that a look takes at most.
    fn some_frames(&mut self) -> u64 {
        self.rng.pick(&[1, 2, FRAMES])
    }

    /// Whether an end that has work left sleeps all the same.
    fn forgets(&self) -> bool {
        self.scenario.sabotage == Some(Sabotage::ForgetsWhatItHasRead)
    }

    /// Wakes the ends that wait for room on the line, where there is some.
    pub(super) fn rouse(&mut self, rank: Rank, shard: usize) {
        let most = self.scenario.faults.window;
        let port = &self.servers[shard].ports.0[rank as usize];
        let waits = [
            self.proxies[rank as usize][shard].shard.interest().is_some_and(|interest| interest.write),
            port.as_ref().is_some_and(|port| port.peer.link().is_some() && port.watched.write),
        ];
        for ((out, waits), into) in [Way::Up, Way::Down].into_iter().zip(waits).zip([Way::Down, Way::Up]) {
            let wire = self.wire(rank, shard);
            let room = wire.is_read(into) && wire.has_room(out, most);
            drop(wire);
            if waits && room {
                self.look_later(rank, shard, into);
            }
        }
    }

    // A worker's end

    /// A proxy takes what its worker has submitted and what has come, and sends what is due.
    pub(super) fn look_at_worker(&mut self, rank: Rank, shard: usize) -> Result<(), Failure> {
        let proxy = &mut self.proxies[rank as usize][shard];
        let Some((_, room)) = proxy.shard.link().map(|socket| socket.poll()) else { return Ok(()) };
        if self.suspended(rank).is_some() || self.hangs(rank) {
            return Ok(());
        }
        self.poll_others(rank, shard);
        let (beats, most) = (self.rng.once_in(BEAT_ONCE_IN), self.some_frames());
        let number = self.wire(rank, shard).number;
        let proxy = &mut self.proxies[rank as usize][shard];
        if beats {
            proxy.shard.beat();
        }
        proxy.shard.ready(true, room);
        let Looked { over, .. } = proxy.shard.look(most as usize, |_| {});
        self.see_to_others(rank, shard)?;
        let has_work = self.proxies[rank as usize][shard].shard.has_work();
        self.see_deeds(rank, shard)?;
        self.sent();
        self.lied()?;
        if matches!(over, Some(Over::Ended(_))) && self.breaks(Sabotage::KeepsEndedConnections, 4) {
            let socket = self.socket(rank, shard, Way::Up);
            self.proxies[rank as usize][shard].shard.attach(socket);
        }
        match over {
            Some(Over::Ended(_)) => return self.lose_wire(rank, shard, number, Way::Down),
            Some(Over::Broke(what)) => return Err(self.broke(rank, shard, &what)),
            None => {}
        }
        if has_work && !self.forgets() {
            self.look_later(rank, shard, Way::Down);
        }
        self.rouse_others(rank, shard);
        Ok(())
    }

    /// What came is seen, and the worker woken if it waits for any of it.
    fn see_deeds(&mut self, rank: Rank, shard: usize) -> Result<(), Failure> {
        for deed in self.proxies[rank as usize][shard].take_deeds() {
            match deed {
                Deed::Came { tensor, chunk, version, encoding, base, value } => {
                    let value = &*value;
                    self.see(Observation::Came { rank, tensor, chunk, version, encoding, base, value })?;
                }
                Deed::Updated { tensor, chunk, whole } => {
                    self.see(Observation::Updated { rank, tensor, chunk, whole })?;
                }
                Deed::Stated { tensor, chunk } => self.see(Observation::Stated { rank, tensor, chunk })?,
                Deed::Returned { tensor, ticket } if !self.proxies[rank as usize][shard].left => {
                    self.see(Observation::Returned { rank, shard, tensor, ticket })?;
                }
                Deed::Returned { .. } => {}
            }
        }
        let proxy = &mut self.proxies[rank as usize][shard];
        let (sent, came) = proxy.shard.squeezed();
        let squeezed = std::mem::replace(&mut proxy.squeezed, sent.chunks + came.chunks);
        self.tally.count("squeeze", proxy.squeezed - squeezed);
        let waits_for = match &self.workers[rank as usize].state {
            State::Waiting { needs, .. } => needs.first().map(|need| match need.chunks {
                Some(_) => single_chunks(need.tensor + 1),
                None => need.tensor + 1,
            }),
            _ => None,
        };
        if self.proxies[rank as usize][shard].take_told(waits_for) {
            self.wake_later(rank);
        }
        Ok(())
    }

    // The shard's end

    /// A shard takes what has come of a peer, in its turn, and sends to all what is due to them.
    fn look_at_shard(&mut self, rank: Rank, shard: usize) -> Result<(), Failure> {
        let pauses = self.rng.once_in(PAUSE_ONCE_IN);
        match &mut self.servers[shard].ports.0[rank as usize] {
            Some(port) => {
                port.poll();
                port.peer.pause(pauses);
                if !pauses {
                    self.take_turn(rank, shard)?;
                }
            }
            // It is not listened to any more.
            None => {
                let now = self.now;
                self.wire(rank, shard).discard(Way::Up, now);
            }
        }
        self.answer_all(shard)?;
        // Who was not read may have no bell to ring.
        if pauses && self.servers[shard].ports.0[rank as usize].is_some() {
            self.look_later(rank, shard, Way::Up);
        }
        Ok(())
    }

    /// Takes some frames of one peer.
    fn take_turn(&mut self, rank: Rank, shard: usize) -> Result<(), Failure> {
        let number = self.wire(rank, shard).number;
        let mut left = self.some_frames();
        while left > 0 {
            let Server { machine, memory, ports, .. } = &mut self.servers[shard];
            let Some(port) = &mut ports.0[rank as usize] else { break };
            match port.peer.hear(machine, memory) {
                Heard::Nothing => break,
                Heard::Header => {}
                Heard::Alive => left -= 1,
                Heard::Submission(taken) => {
                    left -= 1;
                    self.take(rank, shard, taken)?;
                }
                Heard::Ended(_) => {
                    self.keep_ended(rank, shard);
                    return self.lose_wire(rank, shard, number, Way::Up);
                }
                Heard::Broke(what) => return self.refused(rank, shard, &what),
            }
        }
        Ok(())
    }

    /// Where that is broken on purpose, a shard goes on with a connection that has ended.
    fn keep_ended(&mut self, rank: Rank, shard: usize) {
        if self.breaks(Sabotage::KeepsEndedConnections, 4) {
            let socket = self.socket(rank, shard, Way::Down);
            if let Some(port) = &mut self.servers[shard].ports.0[rank as usize] {
                port.attach(socket);
            }
        }
    }

    /// A submission has come to a shard, whole and verified; its payload stands in its lane.
    fn take(&mut self, rank: Rank, shard: usize, taken: Taken) -> Result<(), Failure> {
        let Taken { judged, wanted, encoding, .. } = taken;
        let submission = *judged.submission();
        if let Submission::Push { tensor, first: chunk, .. } | Submission::Load { tensor, first: chunk, .. } =
            submission
        {
            self.lodged(rank, shard, encoding, tensor, chunk)?;
        }
        match self.take_question(rank, shard, &submission, wanted) {
            Ok(()) => {
                self.heed(rank, shard, &submission)?;
                self.take_judged(rank, shard, judged)
            }
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
        let Server { machine, memory, ports, overlay, .. } = &mut self.servers[shard];
        let port = ports.0[rank as usize].as_mut().expect("it is listened to");
        if let Submission::Fetch { tensor, ticket, .. } | Submission::FetchChunks { tensor, ticket, .. } =
            *submission
            && ticket != NO_TICKET
        {
            let newest = port.tickets.entry(tensor).or_insert(0);
            let again = ticket <= *newest;
            *newest = ticket.max(*newest);
            if sabotage == Some(Sabotage::DoesNotFetchAgain) && again {
                return Ok(());
            }
        }
        let submission = &match *submission {
            Submission::FetchChunks { tensor, version, ticket, .. }
                if sabotage == Some(Sabotage::SendsAllForSome) =>
            {
                Submission::Fetch { tensor, state: false, version, ticket }
            }
            Submission::FetchChunks { tensor, first, version, ticket, .. }
                if sabotage == Some(Sabotage::SendsOneForSome) =>
            {
                Submission::FetchChunks { tensor, first, count: 1, version, ticket }
            }
            Submission::Strayed { .. } | Submission::Holds { .. }
                if sabotage == Some(Sabotage::ForgetsWhoStrayed) =>
            {
                return Ok(());
            }
            Submission::Holds { tensor, first, epoch, positions }
                if sabotage == Some(Sabotage::TrustsPositions) =>
            {
                let local = memory.local(tensor, first).unwrap_or(0);
                let stands = |at| memory.publication(tensor, local + at).sequence;
                let trusted = |at: usize| match positions[at] {
                    NO_MORE => NO_MORE,
                    _ => stands(at),
                };
                let positions = std::array::from_fn(trusted);
                Submission::Holds { tensor, first, epoch, positions }
            }
            submission => submission,
        };
        let wanted = wanted && sabotage != Some(Sabotage::ForgetsWhatIsWanted);
        let subscriber = port.peer.subscriber();
        subscriber.ask(PeerId::worker(rank), submission, wanted, (machine, overlay), memory)
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
        let flips = self.scenario.sabotage == Some(Sabotage::BelievesDamagedFrames);
        let Server { memory, .. } = &mut self.servers[shard];
        debug_assert!(memory.homed(tensor, chunk).is_some());
        let came = memory.lane(tensor, chunk, rank);
        remote::flip(came, flips.then_some(&mut self.rng));
        let came = came.to_vec();
        // What was sent stands there until it is folded.
        let lane = std::rc::Rc::clone(&self.workers[rank as usize].lanes[tensor as usize]);
        let (sent, came) = (&lane[range], &came[..]);
        self.see(Observation::Lodged { shard, rank, tensor, chunk, encoding, sent, came })
    }

    /// Sends what is due to all workers on other hosts, as far as there is room.
    pub(super) fn answer_all(&mut self, shard: usize) -> Result<(), Failure> {
        for rank in 0..self.workload.workers() {
            if self.is_remote(rank) {
                self.answer(rank, shard)?;
            }
        }
        Ok(())
    }

    fn answer(&mut self, rank: Rank, shard: usize) -> Result<(), Failure> {
        let beats = self.rng.once_in(8 * BEAT_ONCE_IN);
        let number = self.wire(rank, shard).number;
        let Server { memory, ports, .. } = &mut self.servers[shard];
        let Some(port) = &mut ports.0[rank as usize] else { return Ok(()) };
        if beats {
            port.peer.subscriber().tell_again();
        }
        let over = port.peer.send(memory).is_err();
        let changed = port.peer.change_of_interest();
        port.watched = changed.unwrap_or(port.watched);
        let has_work = port.peer.has_work();
        self.sent();
        if over {
            self.keep_ended(rank, shard);
            return self.lose_wire(rank, shard, number, Way::Up);
        }
        // A poll says at once what is there already of what it is to watch from now on.
        if changed.is_some() || (has_work && !self.forgets()) {
            self.look_later(rank, shard, Way::Up);
        }
        self.rouse(rank, shard);
        Ok(())
    }
}
