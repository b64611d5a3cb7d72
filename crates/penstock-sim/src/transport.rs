//! Links: what a worker says to a shard, in order within one link and in any order between two.
//!
//! To a worker on the same host a link is a [`Ring`] in shared memory: nothing in it is lost. To one on another host it is a
//! [`Wire`]: bytes that arrive in order while a connection stands, and are lost with it. What is written at once may arrive in two
//! pieces, and a read brings what its end is ready to take of whatever has arrived: a part of a frame, or several. Which are sent
//! again is not the wire's concern: the machines at its ends see to that. To what reads and writes there each [`End`] of a wire
//! is a link like any other.

use crate::rng::Rng;
use penstock_fabric::net::link::{Got, Link, Segment};
use penstock_proto::submission::WORDS;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSliceMut};

/// The way from a worker to a shard of its own host.
#[derive(Debug, Default)]
pub struct Ring {
    under_way: VecDeque<(u64, [u64; WORDS])>,
    last_due: u64,
}

impl Ring {
    /// Takes a submission that would be seen at `due`; when it is.
    pub fn send(&mut self, words: [u64; WORDS], due: u64) -> u64 {
        self.last_due = due.max(self.last_due + 1);
        self.under_way.push_back((self.last_due, words));
        self.last_due
    }

    /// What is seen at `now`, if anything is.
    pub fn receive(&mut self, now: u64) -> Option<[u64; WORDS]> {
        self.under_way.front().filter(|(due, _)| *due <= now)?;
        self.under_way.pop_front().map(|(_, words)| words)
    }

    /// The worker died: a part of what it was writing is there, from the front.
    pub fn abandon(&mut self, rng: &mut Rng) {
        let left = rng.within(0..=self.under_way.len() as u64);
        self.under_way.truncate(left as usize);
    }
}

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the worker to the shard.
    Up,
    /// From the shard to the worker.
    Down,
}

impl Way {
    /// The other one.
    pub fn back(self) -> Self {
        match self {
            Self::Up => Self::Down,
            Self::Down => Self::Up,
        }
    }
}

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Break {
    /// All that is under way is lost, both ways.
    Cut,
    /// From some byte on nothing arrives any more this way, and neither end is told.
    Silent(Way),
}

#[derive(Debug, Default)]
struct Lane {
    /// Pieces, and when each arrives.
    under_way: VecDeque<(u64, Vec<u8>)>,
    /// Bytes of the first that were read.
    read: usize,
    last_due: u64,
    silent: bool,
    /// Whether the reader is still to hear that the connection was cut.
    cut: bool,
    /// Whether it has heard so.
    told: bool,
}

impl Lane {
    fn lose(&mut self, left: usize) {
        self.under_way.truncate(left);
        if left == 0 {
            self.read = 0;
        }
        self.silent = true;
    }

    /// The next bytes that have arrived by `now`, at most as many as there is room for; how many.
    fn take(&mut self, into: &mut [u8], now: u64) -> usize {
        let mut taken = 0;
        while taken < into.len()
            && let Some((_, piece)) = self.under_way.front().filter(|(due, _)| *due <= now)
        {
            let rest = &piece[self.read..];
            let count = rest.len().min(into.len() - taken);
            into[taken..taken + count].copy_from_slice(&rest[..count]);
            taken += count;
            self.read += count;
            if self.read == piece.len() {
                self.under_way.pop_front();
                self.read = 0;
            }
        }
        taken
    }
}

/// The connections between a worker and a shard of another host, one after the other.
#[derive(Debug, Default)]
pub struct Wire {
    /// The number of the connection, from 1: what was meant for an earlier one is of no use.
    pub number: u64,
    /// Whether the worker's end stands.
    pub at_worker: bool,
    /// Whether the shard's end stands.
    pub at_shard: bool,
    /// Whether its break is under way.
    pub doomed: bool,
    /// Whether anything on it was damaged.
    pub damaged: bool,
    lanes: [Lane; 2],
}

impl Wire {
    /// A new connection. Whatever the old one still carried is lost.
    pub fn connect(&mut self) {
        *self = Self { number: self.number + 1, at_worker: true, at_shard: true, ..Self::default() };
    }

    fn lane(&mut self, way: Way) -> &mut Lane {
        &mut self.lanes[way as usize]
    }

    /// Whether fewer than `most` pieces are under way this way.
    pub fn has_room(&self, way: Way, most: usize) -> bool {
        self.lanes[way as usize].under_way.len() < most
    }

    /// Takes a piece that would arrive at `due`; when it does, if ever.
    pub fn send(&mut self, way: Way, piece: Vec<u8>, due: u64) -> Option<u64> {
        let lane = self.lane(way);
        if lane.silent {
            return None;
        }
        lane.last_due = due.max(lane.last_due + 1);
        lane.under_way.push_back((lane.last_due, piece));
        Some(lane.last_due)
    }

    /// Nobody listens at that end any more: what has arrived by `now` is lost.
    pub fn discard(&mut self, way: Way, now: u64) {
        let lane = self.lane(way);
        while lane.under_way.front().is_some_and(|(due, _)| *due <= now) {
            lane.under_way.pop_front();
            lane.read = 0;
        }
    }

    /// Whether the end that writes this way has closed, or the one that reads has heard that the connection was cut.
    pub fn is_over(&self, way: Way) -> bool {
        let stands = if way == Way::Up { self.at_worker } else { self.at_shard };
        !stands || self.lanes[way as usize].told
    }

    /// The end that reads this way finds out otherwise that the connection was cut; whether it was, and that was not known.
    pub fn hears_of_cut(&mut self, way: Way) -> bool {
        let Lane { cut, told, .. } = self.lane(way);
        let hears = *cut && !*told;
        *told |= hears;
        hears
    }

    /// Whether the end that reads this way stands.
    pub fn is_read(&self, way: Way) -> bool {
        if way == Way::Up { self.at_shard } else { self.at_worker }
    }

    /// When each piece that is under way this way arrives, unless it is lost before.
    pub fn arrivals(&self, way: Way) -> impl Iterator<Item = u64> + '_ {
        self.lanes[way as usize].under_way.iter().map(|(due, _)| *due)
    }

    /// Whether bytes have arrived this way by `now`.
    fn has_arrived(&self, way: Way, now: u64) -> bool {
        self.lanes[way as usize].under_way.front().is_some_and(|(due, _)| *due <= now)
    }

    /// Whether the end that reads this way at `now` gets anything: bytes, the end, or an error.
    pub fn has_news(&self, way: Way, now: u64) -> bool {
        let Lane { under_way, cut, told, .. } = &self.lanes[way as usize];
        let over = *cut || *told || !self.at_worker || !self.at_shard;
        self.has_arrived(way, now) || (under_way.is_empty() && over)
    }

    /// The connection breaks, though neither end knows so far. What has arrived by `now` does not get lost by a silence.
    pub fn shatter(&mut self, how: Break, now: u64, rng: &mut Rng) {
        for way in [Way::Up, Way::Down] {
            let lane = self.lane(way);
            let left = match how {
                Break::Cut => 0,
                Break::Silent(silent) if silent == way => {
                    let arrived = lane.under_way.partition_point(|(due, _)| *due <= now);
                    rng.within(arrived as u64..=lane.under_way.len() as u64)
                }
                Break::Silent(_) => continue,
            };
            lane.lose(left as usize);
            lane.cut = how == Break::Cut;
        }
    }

    /// The worker gives it up. What it has sent still arrives.
    pub fn close_at_worker(&mut self) {
        self.at_worker = false;
        self.lane(Way::Down).lose(0);
    }

    /// The shard gives it up. What it has sent still arrives.
    pub fn close_at_shard(&mut self) {
        self.at_shard = false;
        self.lane(Way::Up).lose(0);
    }

    /// The worker died: a part of what is under way still arrives, from the front.
    pub fn abandon(&mut self, now: u64, rng: &mut Rng) {
        self.close_at_worker();
        self.shatter(Break::Silent(Way::Up), now, rng);
    }
}

/// One end of a wire, at one moment.
#[derive(Debug)]
pub struct End<'a> {
    /// The connection.
    pub wire: &'a mut Wire,
    /// The way on which this end writes.
    pub out: Way,
    /// The time.
    pub now: u64,
    /// When what is written would arrive.
    pub due: u64,
    /// How many bytes of what is written would arrive before the others, and when.
    pub ahead: Option<(usize, u64)>,
    /// Pieces that may be under way at once: more are not taken.
    pub window: usize,
    /// What says how much each read brings at most; without it, all that has arrived.
    pub reads: Option<&'a mut Rng>,
    /// Bytes that a write takes at most.
    pub takes: usize,
    /// A byte of what is written (it is counted round), and what of it is flipped on its way.
    pub damage: Option<(usize, u8)>,
    /// When what was written arrives, if ever: what came ahead, and the rest.
    pub arrives: [Option<u64>; 2],
}

impl<'a> End<'a> {
    /// The end that writes this way, at `now`, of a wire that takes what it is given, delays nothing and cuts nothing into pieces.
    pub fn new(wire: &'a mut Wire, out: Way, now: u64) -> Self {
        let (ahead, reads, damage) = (None, None, None);
        let (due, window, takes) = (now, usize::MAX, usize::MAX);
        Self { wire, out, now, due, ahead, window, reads, takes, damage, arrives: [None; 2] }
    }
}

/// Bytes that a read brings at most: less than a header, than a chunk, or more than several of these.
fn some_bytes(rng: &mut Rng) -> usize {
    let most = rng.pick(&[100, 5_000, 100_000]);
    rng.within(1..=most) as usize
}

impl Link for End<'_> {
    fn read(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<Got> {
        let (into, now) = (self.out.back(), self.now);
        if !self.wire.is_read(into) || self.wire.lane(into).told {
            return Ok(Got::End);
        }
        if !self.wire.has_news(into, now) {
            return Ok(Got::Nothing);
        }
        let lane = self.wire.lane(into);
        if lane.under_way.is_empty() {
            if lane.cut {
                lane.told = true;
                return Err(ErrorKind::ConnectionReset.into());
            }
            return Ok(Got::End);
        }
        let most = self.reads.as_mut().map_or(usize::MAX, |rng| some_bytes(rng));
        let mut came = 0;
        for part in parts {
            let room = part.len().min(most - came);
            came += lane.take(&mut part[..room], now);
        }
        Ok(Got::Bytes(came))
    }

    /// A read takes nothing into account but what has arrived, and brings all of it that there is room for.
    fn short_is_all(&self) -> bool {
        self.reads.is_none()
    }

    fn write(&mut self, parts: &[Segment<'_>]) -> io::Result<usize> {
        let into = self.out.back();
        if !self.wire.is_read(into) || self.wire.lane(into).told {
            return Err(ErrorKind::BrokenPipe.into());
        }
        if !self.wire.has_room(self.out, self.window) {
            return Ok(0);
        }
        let mut bytes = Segment::copied(parts, self.takes);
        let count = bytes.len();
        if let Some((at, bits)) = self.damage {
            bytes[at % count] ^= bits;
            self.wire.damaged = true;
        }
        if let Some((ahead, due)) = self.ahead.filter(|(ahead, _)| *ahead < count) {
            let rest = bytes.split_off(ahead);
            self.arrives[0] = self.wire.send(self.out, bytes, due);
            bytes = rest;
        }
        self.arrives[1] = self.wire.send(self.out, bytes, self.due);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    fn holds_output(&self) -> bool {
        false
    }

    /// It is the window that says how much is under way.
    fn resize(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UP: Way = Way::Up;
    const DOWN: Way = Way::Down;

    fn connected() -> Wire {
        let mut wire = Wire::default();
        wire.connect();
        wire
    }

    /// All that arrives this way, though the end may have been closed.
    fn arrivals(wire: &mut Wire, way: Way) -> Vec<u8> {
        let mut bytes = vec![0; 100];
        let count = wire.lane(way).take(&mut bytes, 1000);
        bytes.truncate(count);
        bytes
    }

    #[test]
    fn a_link_keeps_its_order_whatever_the_delays() {
        let mut ring = Ring::default();
        ring.send([1; WORDS], 50);
        let due = ring.send([2; WORDS], 10);
        assert!(due > 50);
        assert_eq!(ring.receive(10), None);
        assert_eq!((ring.receive(due), ring.receive(due)), (Some([1; WORDS]), Some([2; WORDS])));
        let mut wire = connected();
        wire.send(UP, vec![1], 50);
        assert!(wire.send(UP, vec![2], 10).unwrap() > 50);
        assert!(!wire.has_arrived(UP, 10) && !wire.has_room(UP, 2) && wire.has_room(DOWN, 2));
        assert_eq!(arrivals(&mut wire, UP), [1, 2]);
    }

    #[test]
    fn what_is_written_at_once_comes_in_pieces_and_a_read_brings_some_of_several() {
        let mut sizes = std::collections::BTreeSet::new();
        for seed in 0..40 {
            let (mut wire, mut rng) = (connected(), Rng::new(seed));
            let sent: Vec<u8> = (0..200).collect();
            for half in sent.chunks(100) {
                let mut end = End { ahead: Some((30, 5)), due: 9, ..End::new(&mut wire, UP, 0) };
                assert_eq!(end.write(&[Segment::Own(&half[..50]), Segment::Own(&half[50..])]).unwrap(), 100);
                assert!(end.arrives[0] < end.arrives[1] && end.arrives[1].is_some());
            }
            let (mut came, mut bytes) = (Vec::new(), [0; 200]);
            for now in [4, 5, 9, 20, 20, 20, 20, 20, 20, 20, 20] {
                let mut end = End { reads: Some(&mut rng), ..End::new(&mut wire, DOWN, now) };
                let (one, other) = bytes.split_at_mut(40);
                match end.read(&mut [IoSliceMut::new(one), IoSliceMut::new(other)]).unwrap() {
                    Got::Bytes(count) => came.extend_from_slice(&bytes[..count]),
                    got => assert_eq!(got, Got::Nothing),
                }
                assert!(now > 4 || came.is_empty());
                assert!(now > 5 || came.len() <= 30);
                sizes.insert(came.len());
            }
            assert!(sent.starts_with(&came));
        }
        assert!(sizes.len() > 20 && sizes.contains(&200), "{sizes:?}");
    }

    #[test]
    fn a_cut_loses_all_that_is_under_way_and_a_new_connection_starts_empty() {
        let mut wire = connected();
        for way in [UP, DOWN] {
            wire.send(way, vec![1], 1);
        }
        wire.shatter(Break::Cut, 0, &mut Rng::new(1));
        assert_eq!(wire.send(UP, vec![2], 1), None);
        assert!(arrivals(&mut wire, UP).is_empty() && arrivals(&mut wire, DOWN).is_empty());
        wire.connect();
        wire.send(DOWN, vec![3], 1);
        assert_eq!((wire.number, arrivals(&mut wire, DOWN)), (2, vec![3]));
    }

    #[test]
    fn what_falls_silent_one_way_still_carries_the_other() {
        let mut arrived = std::collections::BTreeSet::new();
        for seed in 0..40 {
            let mut wire = connected();
            for number in 0..3 {
                wire.send(UP, vec![number], 1);
                wire.send(DOWN, vec![number], 1);
            }
            wire.shatter(Break::Silent(UP), 0, &mut Rng::new(seed));
            wire.send(DOWN, vec![3], 1);
            assert_eq!(arrivals(&mut wire, DOWN), [0, 1, 2, 3]);
            arrived.insert(arrivals(&mut wire, UP));
        }
        let prefixes = [vec![], vec![0], vec![0, 1], vec![0, 1, 2]];
        assert_eq!(arrived, prefixes.into_iter().collect());
    }

    /// An end that was suspended lost what its kernel held.
    #[test]
    fn what_has_arrived_before_a_silence_is_read() {
        for seed in 0..40 {
            let mut wire = connected();
            (0..3).for_each(|number| _ = wire.send(UP, vec![number], 1 + 10 * u64::from(number)));
            wire.shatter(Break::Silent(UP), 11, &mut Rng::new(seed));
            assert!(arrivals(&mut wire, UP).starts_with(&[0, 1]));
        }
    }

    #[test]
    fn what_was_sent_before_an_end_was_closed_arrives_at_the_other() {
        let mut wire = connected();
        for way in [UP, DOWN] {
            wire.send(way, vec![1], 1);
        }
        wire.close_at_worker();
        assert_eq!((arrivals(&mut wire, UP), arrivals(&mut wire, DOWN)), (vec![1], vec![]));
        let mut wire = connected();
        for way in [UP, DOWN] {
            wire.send(way, vec![1], 1);
        }
        wire.close_at_shard();
        assert_eq!((arrivals(&mut wire, UP), arrivals(&mut wire, DOWN)), (vec![], vec![1]));
    }

    #[test]
    fn what_a_dead_worker_leaves_under_way_arrives_from_the_front() {
        let mut arrived = std::collections::BTreeSet::new();
        for seed in 0..40 {
            let mut ring = Ring::default();
            (0..3).for_each(|number| _ = ring.send([number; WORDS], 1));
            ring.abandon(&mut Rng::new(seed));
            arrived.insert(std::iter::from_fn(|| ring.receive(10)).map(|words| words[0]).collect::<Vec<_>>());
        }
        let prefixes = [vec![], vec![0], vec![0, 1], vec![0, 1, 2]];
        assert_eq!(arrived, prefixes.into_iter().collect());
    }
}
