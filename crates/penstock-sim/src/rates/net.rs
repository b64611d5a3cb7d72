//! Time, and a network with rates: what every byte takes from one host to another.
//!
//! A host has one link to a switch that is never the bottleneck: an uplink and a downlink, both at once. Connections
//! share an uplink by turns, a packet each. A packet is on its way for as long as its bytes take over the uplink, then a hop;
//! where several come to one host at once, they wait for its downlink in the order in which they were sent.
//!
//! A connection has a buffer at each end, as one over TCP has: a write takes what there is room for until what was written before has
//! arrived, and nothing is sent that its receiver has no room for. Nothing is lost. What headers of Ethernet, IP and TCP add is a
//! factor on the rate; acknowledgements and congestion control are not there.

use super::tally::Tally;
use penstock_fabric::net::link::{Got, Link, Segment};
use penstock_proto::Rank;
use penstock_proto::uplink::{Carried, To};
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{self, ErrorKind, IoSliceMut, Read as _};
use std::rc::Rc;
use std::time::Duration;

/// Nanoseconds.
pub(super) type Time = u64;

/// One way of a connection, or a host: its number.
pub(super) type Number = usize;

/// What happens at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// A host's uplink has sent a packet.
    Sent(Number),
    /// So many bytes have come to the other end of a way.
    Came(Number, usize),
    /// So has its end.
    Ended(Number),
    /// A host has something to look at.
    Look(Number),
    /// It is to look at the clock.
    Tick(Number),
    /// Something that the owner of the network knows of.
    Due(Number),
}

/// How fast everything is.
#[derive(Debug, Clone)]
pub(super) struct Speed {
    /// By host, bytes a second of its link: out, and in.
    pub(super) rates: Vec<(f64, f64)>,
    /// From one host to another, beside the bytes' own time.
    pub(super) hop: Time,
    /// Bytes that a connection sends before it is another's turn.
    pub(super) packet: usize,
    /// Bytes of a connection's buffers, at each end.
    pub(super) buffer: usize,
    /// Bytes that each byte of a value stands for.
    pub(super) scale: f64,
}

/// A host's link.
#[derive(Debug, Default)]
struct Port {
    up: f64,
    down: f64,
    sends: bool,
    /// What it is sending, of which way, as bulk.
    sending: Option<(Number, f64, f64)>,
    /// Ways that have something to send, in turn.
    turns: VecDeque<Number>,
    /// When the downlink is free again.
    free: Time,
    sent: u64,
    /// Bytes of something else that it has to send, by turns with all that is sent here.
    owes: f64,
    /// What has gone of that.
    paid: f64,
    /// Whether it is to look, and at what.
    looks: bool,
    news: Vec<Number>,
}

/// One way of a connection.
#[derive(Debug)]
struct Way {
    from: Number,
    to: Number,
    /// What can be read, then what is under way, then what was not sent.
    bytes: VecDeque<u8>,
    readable: usize,
    under_way: usize,
    unsent: usize,
    /// Whether it stands among the turns of its sender; whether that waits for room.
    in_turn: bool,
    is_full: bool,
    /// Whether its sender has closed it, whether its receiver knows; whether its receiver has.
    closed: bool,
    ended: bool,
    deaf: bool,
    tally: Tally,
    /// What has gone, and come, of it, as bulk; time in which something was under way or waited to be, and in which its receiver had no
    /// room, so far and since when.
    went: f64,
    came: f64,
    busy: Since,
    held: Since,
    /// Of what was not sent, runs of bytes, and whether they are of values.
    runs: VecDeque<(usize, bool)>,
}

/// Time that has gone by while something was so.
#[derive(Debug, Clone, Copy, Default)]
struct Since {
    so_far: Time,
    since: Option<Time>,
}

impl Since {
    fn is(&mut self, so: bool, now: Time) {
        match (so, self.since) {
            (true, None) => self.since = Some(now),
            (false, Some(since)) => (self.so_far, self.since) = (self.so_far + now - since, None),
            _ => {}
        }
    }

    fn get(&self, now: Time) -> Duration {
        Duration::from_nanos(self.so_far + self.since.map_or(0, |since| now - since))
    }
}

impl Way {
    fn append(&mut self, bytes: &[u8]) {
        let Self { tally, runs, .. } = self;
        tally.write(bytes, |bytes, is_value| match runs.back_mut() {
            Some((run, of_value)) if *of_value == is_value => *run += bytes,
            _ => runs.push_back((bytes, is_value)),
        });
        self.bytes.extend(bytes);
    }

    /// So many bytes are sent next: how many of them are of values.
    fn take(&mut self, mut bytes: usize) -> usize {
        let mut of_values = 0;
        while bytes > 0
            && let Some((run, is_value)) = self.runs.front_mut()
        {
            let taken = bytes.min(*run);
            (*run, bytes) = (*run - taken, bytes - taken);
            of_values += if *is_value { taken } else { 0 };
            if *run == 0 {
                self.runs.pop_front();
            }
        }
        of_values
    }
}

/// All of it.
pub(super) struct Net {
    pub(super) now: Time,
    count: u64,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    ports: Vec<Port>,
    ways: Vec<Way>,
    hop: Time,
    packet: usize,
    buffer: usize,
    scale: f64,
    /// Of all ways that are no more.
    gone: Tally,
}

impl Net {
    pub(super) fn new(speed: &Speed) -> Self {
        let Speed { ref rates, hop, packet, buffer, scale } = *speed;
        let port = |&(up, down): &(f64, f64)| Port { up, down, ..Port::default() };
        Self {
            now: 0,
            count: 0,
            events: BinaryHeap::new(),
            ports: rates.iter().map(port).collect(),
            ways: Vec::new(),
            hop,
            packet: packet.min(buffer),
            buffer,
            scale,
            gone: Tally::default(),
        }
    }

    /// What happens next; the clock goes there.
    pub(super) fn next(&mut self) -> Option<Event> {
        let Reverse((at, _, event)) = self.events.pop()?;
        self.now = at;
        Some(event)
    }

    pub(super) fn at(&mut self, at: Time, event: Event) {
        self.count += 1;
        self.events.push(Reverse((at.max(self.now), self.count, event)));
    }

    /// The same, so much later than now.
    pub(super) fn after(&mut self, later: Time, event: Event) {
        self.at(self.now + later, event);
    }

    pub(super) fn hop(&self) -> Time {
        self.hop
    }

    /// From now on a host's link has these rates, up and down.
    pub(super) fn set_rates(&mut self, host: Number, (up, down): (f64, f64)) {
        (self.ports[host].up, self.ports[host].down) = (up, down);
    }

    /// A host's uplink has so many bytes more to send, of something that is not there.
    pub(super) fn owe(&mut self, host: Number, bytes: u64) {
        self.ports[host].owes += bytes as f64;
    }

    /// Bytes that each host's uplink has sent so far.
    pub(super) fn sent(&self) -> Vec<u64> {
        self.ports.iter().map(|port| port.sent).collect()
    }

    /// What was written so far.
    pub(super) fn tally(&self) -> Tally {
        self.ways.iter().fold(self.gone, |sum, way| sum.and(&way.tally))
    }

    /// A connection between two hosts, which stands at once: its ends.
    pub(super) fn connect(net: &Rc<RefCell<Self>>, one: Number, other: Number) -> [Socket; 2] {
        let mut inner = net.borrow_mut();
        let first = inner.ways.len();
        for (from, to) in [(one, other), (other, one)] {
            inner.ways.push(Way {
                from,
                to,
                bytes: VecDeque::new(),
                readable: 0,
                under_way: 0,
                unsent: 0,
                in_turn: false,
                is_full: false,
                closed: false,
                ended: false,
                deaf: false,
                tally: Tally::default(),
                went: 0.0,
                came: 0.0,
                busy: Since::default(),
                held: Since::default(),
                runs: VecDeque::new(),
            });
        }
        let end = |out, comes| Socket { net: Rc::clone(net), out, comes };
        [end(first, first + 1), end(first + 1, first)]
    }

    /// What a host's connections have carried, as it sees them itself: `child` says which worker's host another one is, if that is fed.
    pub(super) fn carried(
        &self,
        host: Number,
        child: impl Fn(Number) -> Option<Rank>,
    ) -> impl Iterator<Item = (u64, Carried)> {
        let idle = Duration::ZERO;
        let sent = self.ports[host].paid as u64;
        let beside = Carried { to: To::Other, sent, received: 0, busy: idle, held: idle, waits: false };
        let of_host = self.ways.iter().enumerate().filter(move |(_, way)| way.from == host && !way.closed);
        let of_ways = of_host.map(move |(number, way)| {
            // The other way of the connection has the number beside it.
            let back = &self.ways[number ^ 1];
            let to = child(way.to).map_or(To::Other, To::Child);
            let (sent, received) = (way.went as u64, back.came as u64);
            let (busy, held) = (way.busy.get(self.now), way.held.get(self.now));
            (number as u64, Carried { to, sent, received, busy, held, waits: way.unsent > 0 })
        });
        of_ways.chain([(u64::MAX, beside)])
    }

    /// A host has something to look at, besides what comes.
    pub(super) fn rouse(&mut self, host: Number) {
        if !std::mem::replace(&mut self.ports[host].looks, true) {
            self.after(0, Event::Look(host));
        }
    }

    /// A host looks: the ways that have something to read, or room again, since it last did.
    pub(super) fn look(&mut self, host: Number) -> Vec<Number> {
        let port = &mut self.ports[host];
        port.looks = false;
        std::mem::take(&mut port.news)
    }

    fn tell(&mut self, host: Number, way: Number) {
        self.ports[host].news.push(way);
        self.rouse(host);
    }

    /// Does what the network does by itself.
    pub(super) fn happens(&mut self, event: Event) {
        match event {
            Event::Sent(host) => {
                self.ports[host].sends = false;
                if let Some((number, bulk, owed)) = self.ports[host].sending.take() {
                    self.ways[number].went += bulk;
                    self.ports[host].paid += owed;
                }
                self.send(host);
            }
            Event::Came(number, bytes) => {
                let room = self.buffer / 3;
                let way = &mut self.ways[number];
                way.under_way -= bytes;
                let (from, to) = (way.from, way.to);
                if way.unsent + way.under_way == 0 {
                    way.busy.is(false, self.now);
                    way.held.is(false, self.now);
                }
                if way.deaf {
                    way.bytes.drain(..bytes);
                } else {
                    way.readable += bytes;
                }
                // As a socket says that it can be written: not for a few bytes.
                let has_room = way.under_way + way.unsent + room <= self.buffer;
                let tells = way.is_full && has_room;
                way.is_full &= !has_room;
                let (deaf, is_over) = (way.deaf, way.closed && way.unsent + way.under_way == 0);
                if !deaf {
                    self.tell(to, number);
                }
                if tells {
                    self.tell(from, number);
                }
                if is_over {
                    self.after(0, Event::Ended(number));
                }
            }
            Event::Ended(number) => {
                let way = &mut self.ways[number];
                way.ended = true;
                if way.deaf {
                    self.gone = self.gone.and(&way.tally);
                    (way.tally, way.bytes) = (Tally::default(), VecDeque::new());
                } else {
                    let to = way.to;
                    self.tell(to, number);
                }
            }
            Event::Look(_) | Event::Tick(_) | Event::Due(_) => {}
        }
    }

    /// A way has something to send, or room where it goes.
    fn takes_turn(&mut self, number: Number) {
        let way = &mut self.ways[number];
        if way.unsent > 0 {
            way.busy.is(true, self.now);
        }
        if way.unsent > 0 && !std::mem::replace(&mut way.in_turn, true) {
            let from = way.from;
            self.ports[from].turns.push_back(number);
            self.send(from);
        }
    }

    /// Sends a packet, if the uplink sends none and there is one.
    fn send(&mut self, host: Number) {
        while !self.ports[host].sends
            && let Some(number) = self.ports[host].turns.pop_front()
        {
            let way = &mut self.ways[number];
            way.in_turn = false;
            let room = self.buffer - way.under_way - way.readable;
            let bytes = self.packet.min(way.unsent);
            // Until there is room it has no turn.
            way.held.is(bytes > room, self.now);
            if bytes == 0 || bytes > room {
                continue;
            }
            (way.unsent, way.under_way) = (way.unsent - bytes, way.under_way + bytes);
            let to = way.to;
            // What goes with values is there as a whole, though not all of them is.
            let of_values = way.take(bytes);
            let bulk = of_values as f64 * self.scale + (bytes - of_values) as f64;
            let takes = |rate: f64, bulk: f64| (bulk * 1e9 / rate).round() as Time;
            let uplink = &mut self.ports[host];
            let owed = bulk.min(uplink.owes);
            uplink.owes -= owed;
            let sent = self.now + takes(uplink.up, bulk + owed);
            let downlink = &mut self.ports[to];
            let begins = downlink.free.max(self.now + self.hop);
            downlink.free = (begins + takes(downlink.down, bulk)).max(sent + self.hop);
            self.ways[number].came += bulk;
            let comes = downlink.free;
            self.ports[host].sends = true;
            self.ports[host].sending = Some((number, bulk, owed));
            self.ports[host].sent += bulk.round() as u64;
            self.at(sent, Event::Sent(host));
            self.at(comes, Event::Came(number, bytes));
            if self.ways[number].unsent > 0 {
                self.ways[number].in_turn = true;
                self.ports[host].turns.push_back(number);
            }
        }
    }
}

/// One end of a connection.
pub(super) struct Socket {
    net: Rc<RefCell<Net>>,
    out: Number,
    comes: Number,
}

impl Socket {
    /// The way that comes to this end, and the one that goes from it.
    pub(super) fn ways(&self) -> (Number, Number) {
        (self.comes, self.out)
    }

    /// Whether a wait for room would end.
    pub(super) fn has_room(&self) -> bool {
        !self.net.borrow().ways[self.out].is_full
    }
}

impl Link for Socket {
    fn read(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<Got> {
        let mut net = self.net.borrow_mut();
        let way = &mut net.ways[self.comes];
        let mut got = 0;
        for part in parts {
            let mut part = &mut part[..];
            while !part.is_empty() && way.readable > 0 {
                let room = part.len().min(way.readable);
                let bytes = way.bytes.read(&mut part[..room])?;
                (part, way.readable, got) = (&mut part[bytes..], way.readable - bytes, got + bytes);
            }
        }
        if got == 0 {
            return Ok(if way.ended { Got::End } else { Got::Nothing });
        }
        net.takes_turn(self.comes);
        Ok(Got::Bytes(got))
    }

    fn short_is_all(&self) -> bool {
        true
    }

    fn write(&mut self, parts: &[Segment<'_>]) -> io::Result<usize> {
        let mut net = self.net.borrow_mut();
        let buffer = net.buffer;
        let way = &mut net.ways[self.out];
        if way.deaf || net.ways[self.comes].ended {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let way = &mut net.ways[self.out];
        let room = buffer - way.under_way - way.unsent;
        let mut taken = 0;
        for part in parts {
            let bytes = part.len().min(room - taken);
            match part.slice(0..bytes) {
                Segment::Own(bytes) => way.append(bytes),
                Segment::Foreign(memory) => {
                    let mut bytes = vec![0; memory.len()];
                    memory.copy_to(&mut bytes);
                    way.append(&bytes);
                }
            }
            taken += bytes;
            if bytes < part.len() {
                way.is_full = true;
                break;
            }
        }
        way.unsent += taken;
        net.takes_turn(self.out);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    fn holds_output(&self) -> bool {
        false
    }

    /// Buffers are as large as the run's scenario says.
    fn resize(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
}

/// It is closed: what was written goes still, what comes is not wanted any more.
impl Drop for Socket {
    fn drop(&mut self) {
        let mut net = self.net.borrow_mut();
        let way = &mut net.ways[self.comes];
        way.deaf = true;
        // What is under way arrives in vain.
        let left = way.under_way;
        let skip = way.readable;
        way.bytes.drain(..skip);
        way.bytes.truncate(left);
        (way.readable, way.unsent) = (0, 0);
        way.runs.clear();
        let way = &mut net.ways[self.out];
        way.closed = true;
        if way.unsent + way.under_way == 0 {
            let hop = net.hop;
            net.after(hop, Event::Ended(self.out));
        }
    }
}
