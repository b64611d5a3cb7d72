//! An end of a wire, between a worker and a shard or between two workers, for as long as its connection lives: to the code of a
//! proxy and of a shard it is a link like any other.
//!
//! What is written arrives later, perhaps in two pieces or damaged. A write takes all that it is given, or a part of that: then
//! nothing more until the end has waited for room, as with a buffer that is full. A connection that was cut is found out by a
//! read, or by a write.

use crate::faults::Faults;
use crate::liar::{Liar, Lie};
use crate::rng::Rng;
use crate::transport::{End, Way, Wire};
use penstock_fabric::net::link::{Got, Link, Segment};
use penstock_proto::Rank;
use penstock_proto::frame::{Body, HEADER_BYTES, Header, Notice};
use penstock_proto::pressure::Flow;
use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind, IoSliceMut};
use std::rc::Rc;
use std::time::Duration;

/// One write in so many takes a part of what it is given.
const PART_ONCE_IN: u64 = 6;
/// One write in so many arrives in two pieces.
pub const PIECES_ONCE_IN: u64 = 4;

/// How many of so many bytes that go out now arrive before the others, which arrive at `due`, and when.
pub fn some_ahead(bytes: usize, (now, due): (u64, u64), rng: &mut Rng) -> Option<(usize, u64)> {
    if !rng.once_in(PIECES_ONCE_IN) {
        return None;
    }
    Some((rng.within(1..=bytes as u64 - 1) as usize, rng.within(now..=due)))
}

/// Whose a wire is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// A worker's and a shard's.
    Shard {
        /// The worker.
        rank: Rank,
        /// The shard.
        shard: usize,
    },
    /// A worker's, and one's that feeds it and stands where the shard would. Whichever end lets its socket go closes the connection.
    Branch {
        /// Its number among these.
        number: usize,
        /// Who is fed.
        child: Rank,
        /// By whom.
        parent: Rank,
    },
}

impl Line {
    /// How much longer anything is under way than elsewhere.
    fn slowness(self, faults: &Faults) -> u64 {
        match self {
            Self::Shard { rank, .. } => faults.slow[rank as usize],
            Self::Branch { child, parent, .. } => {
                faults.slow[child as usize].max(faults.slow[parent as usize])
            }
        }
    }
}

/// Something was written: when its pieces arrive, if ever.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    /// On this wire,
    pub line: Line,
    /// this way.
    pub way: Way,
    /// What came ahead, and the rest.
    pub arrives: [Option<u64>; 2],
}

/// What all ends share.
#[derive(Debug, Default)]
pub struct Air {
    /// The time.
    pub now: Cell<u64>,
    /// What was written since this was asked last.
    pub sent: RefCell<Vec<Sent>>,
    /// Connections between workers that were closed since, by the end that writes this way.
    pub closed: RefCell<Vec<(usize, Way)>>,
    /// What was passed on since by workers that lie: by whom, to whom, and how.
    pub lies: RefCell<Vec<(Rank, Rank, Lie)>>,
}

/// What is broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// One value in so many does not go out, though it is taken.
    LosesValues(u64),
    /// One read in so many loses the last of what it has brought.
    LosesTheEnd(u64),
}

/// One end.
pub struct Socket<'a> {
    /// The connection, and its number.
    wire: Rc<RefCell<Wire>>,
    number: u64,
    air: Rc<Air>,
    faults: &'a Faults,
    line: Line,
    /// The way that is written.
    out: Way,
    rng: Rng,
    /// What says how much a read brings, where that is not all that has arrived.
    reads: Option<Rng>,
    /// Whether a write has taken a part: no more until it was waited for.
    full: Cell<bool>,
    broken: Option<Broken>,
    liar: Option<Liar>,
    /// What compressors take, and what is carried: whatever the seed says. And the moment that was told last.
    told: RefCell<(Rng, Duration)>,
}

impl<'a> Socket<'a> {
    /// An end of the connection that stands.
    pub fn new(
        wire: &Rc<RefCell<Wire>>,
        air: &Rc<Air>,
        faults: &'a Faults,
        line: Line,
        out: Way,
        mut rng: Rng,
        broken: Option<Broken>,
    ) -> Self {
        let reads = rng.once_in(2).then(|| Rng::new(rng.word()));
        let (wire, number, air) = (Rc::clone(wire), wire.borrow().number, Rc::clone(air));
        let told = RefCell::new((Rng::new(rng.clone().word()), Duration::ZERO));
        Self {
            wire,
            number,
            air,
            faults,
            line,
            out,
            rng,
            reads,
            full: Cell::new(false),
            broken,
            liar: None,
            told,
        }
    }

    /// The same, which passes on something else than it is given.
    #[must_use]
    pub fn lying(mut self, liar: Option<Liar>) -> Self {
        self.liar = liar;
        self
    }

    /// Which wire this is an end of.
    pub fn line(&self) -> Line {
        self.line
    }

    /// What a poll says: whether it can be read, and whether it can be written.
    pub fn poll(&self) -> (bool, bool) {
        let wire = self.wire.borrow();
        self.full.set(false);
        let news = wire.has_news(self.out.back(), self.air.now.get());
        (news, wire.has_room(self.out, self.faults.window))
    }

    /// What a liar passes on goes at once, or not at all.
    fn lie(&mut self, parts: &[Segment<'_>]) -> io::Result<usize> {
        let given = Segment::copied(parts, usize::MAX);
        let Self { wire, air, faults, line, out, liar: Some(liar), .. } = self else { return Ok(0) };
        let mut wire = wire.borrow_mut();
        if !wire.has_room(*out, faults.window) {
            return Ok(0);
        }
        let (told, lies) = liar.pass_on(&given);
        if let Line::Branch { child, parent, .. } = *line {
            air.lies.borrow_mut().extend(lies.into_iter().map(|lie| (parent, child, lie)));
        }
        if told.is_empty() {
            return Ok(given.len());
        }
        let now = air.now.get();
        let due = now + faults.some_delay(&mut self.rng) * line.slowness(faults);
        let mut end = End { due, ..End::new(&mut wire, *out, now) };
        end.write(&[Segment::Own(&told)])?;
        let (line, way, arrives) = (*line, *out, end.arrives);
        air.sent.borrow_mut().push(Sent { line, way, arrives });
        Ok(given.len())
    }

    /// Values that are lost on purpose go no further than this.
    fn lose_values<'b>(&mut self, parts: &[Segment<'b>]) -> Vec<Segment<'b>> {
        let Some(Broken::LosesValues(once_in)) = self.broken else { return parts.to_vec() };
        let (mut left, mut parts) = (Vec::new(), parts.iter().copied());
        while let Some(part) = parts.next() {
            let header = match part {
                Segment::Own(bytes) => {
                    bytes.first_chunk::<HEADER_BYTES>().filter(|_| part.len() == HEADER_BYTES)
                }
                Segment::Foreign(_) => None,
            };
            let header = header.and_then(|header| Header::decode(header).ok());
            let is_value =
                header.is_some_and(|header| matches!(header.body, Body::Notice(Notice::Value { .. })));
            if !is_value || !self.rng.once_in(once_in) {
                left.push(part);
            } else if header.is_some_and(|header| header.length > 0) {
                parts.next();
            }
        }
        left
    }
}

impl Link for Socket<'_> {
    fn read(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<Got> {
        let mut wire = self.wire.borrow_mut();
        if wire.number != self.number {
            return Ok(Got::End);
        }
        let mut end = End { reads: self.reads.as_mut(), ..End::new(&mut wire, self.out, self.air.now.get()) };
        let got = end.read(parts)?;
        match (got, self.broken) {
            (Got::Bytes(bytes), Some(Broken::LosesTheEnd(once_in))) if self.rng.once_in(once_in) => {
                Ok(Got::Bytes(self.rng.within(1..=bytes as u64) as usize))
            }
            _ => Ok(got),
        }
    }

    fn short_is_all(&self) -> bool {
        self.reads.is_none()
    }

    /// Compressing pays, and does not.
    fn flow(&self) -> Option<Flow> {
        let (rng, _) = &mut *self.told.borrow_mut();
        let rate = rng.pick(&[1e6, 1e7, 1e8, 1e10]);
        Some(Flow { sent: 0, rate: Some(rate), cut_short: rng.once_in(4) })
    }

    fn now(&self) -> Option<Duration> {
        let (rng, moment) = &mut *self.told.borrow_mut();
        *moment += Duration::from_nanos(rng.within(0..=40_000));
        Some(*moment)
    }

    fn write(&mut self, parts: &[Segment<'_>]) -> io::Result<usize> {
        if self.full.get() {
            return Ok(0);
        }
        if self.liar.is_some() {
            return self.lie(parts);
        }
        let given: usize = parts.iter().map(|part| part.len()).sum();
        let parts = self.lose_values(parts);
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let Self { wire, number, air, faults, line, out, rng, .. } = self;
        let mut wire = wire.borrow_mut();
        if wire.number != *number || (rng.once_in(2) && wire.hears_of_cut(out.back())) {
            return Err(ErrorKind::ConnectionReset.into());
        }
        if bytes == 0 {
            return Ok(given);
        }
        let now = air.now.get();
        let due = now + faults.some_delay(rng) * line.slowness(faults);
        let part = bytes == given && bytes > 1 && rng.once_in(PART_ONCE_IN);
        let takes = if part { rng.within(1..=bytes as u64 - 1) as usize } else { bytes };
        let damaged = rng.once_in(faults.damage_once_in);
        let damage = damaged.then(|| (rng.within(0..=takes as u64 - 1) as usize, 1 << rng.within(0..=7)));
        let ahead = if takes > 1 { some_ahead(takes, (now, due), rng) } else { None };
        let window = faults.window;
        let mut end = End { due, ahead, damage, window, takes, ..End::new(&mut wire, *out, now) };
        let taken = end.write(&parts)?;
        let arrives = end.arrives;
        if taken == 0 {
            return Ok(0);
        }
        self.full.set(part);
        air.sent.borrow_mut().push(Sent { line: *line, way: *out, arrives });
        Ok(if part { taken } else { given })
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

impl Drop for Socket<'_> {
    fn drop(&mut self) {
        let Line::Branch { number, .. } = self.line else { return };
        let mut wire = self.wire.borrow_mut();
        match self.out {
            Way::Up => wire.close_at_worker(),
            Way::Down => wire.close_at_shard(),
        }
        self.air.closed.borrow_mut().push((number, self.out));
    }
}
