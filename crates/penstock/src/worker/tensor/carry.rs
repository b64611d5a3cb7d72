//! What a filter of contributions holds back, until it is sent with a later push.

use super::{HomeShard, Tensor};
use crate::worker::Error;
use crate::worker::link::lock;
use penstock_fabric::memory::OwnLane;
use penstock_fabric::sync::Ordering;
use penstock_kernels::filter::sums::{self, Coordinates, HeldBack, Pressure, SumFilter};
use penstock_kernels::{Dtype, Foreign, Settings, settled};
use penstock_proto::message::{Answer, Ask};
use penstock_proto::pressure::{Change, Flow, Gauge};
use penstock_proto::spec::TensorSpec;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A tensor's carry: private memory of this process, as large as the value in the dtype's accumulators.
#[derive(Debug)]
pub(super) struct Carry {
    filter: Arc<dyn SumFilter>,
    dtype: Dtype,
    bytes: Vec<u8>,
    pressed: Option<Pressed>,
    /// Whether nothing is carried.
    is_empty: bool,
}

/// What becomes of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Passing {
    /// It goes as it is, with nothing to add, and nothing is held back: no look at the carry is needed.
    Untouched,
    /// All that is due goes.
    All,
    /// What the filter chooses goes, or what a program has chosen.
    Chosen,
}

/// How hard the network presses the pushes of a tensor whose filter follows that.
#[derive(Debug)]
struct Pressed {
    gauge: Gauge,
    since: Instant,
}

/// Where the sum is that a push sends a part of.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sum<'a> {
    /// In the caller's memory: all of it.
    Given(Foreign<'a>),
    /// In the lane.
    Lane,
    /// Nowhere: zeros.
    None,
}

impl Carry {
    /// Empty.
    pub(super) fn new(spec: &TensorSpec, filter: Arc<dyn SumFilter>) -> Result<Self, Error> {
        let length = spec.elements().unwrap_or(0) as usize * spec.dtype.accumulator_size();
        let mut bytes = Vec::new();
        let none = Error::system("get the memory for what a filter carries");
        bytes
            .try_reserve_exact(length)
            .map_err(|_| none(std::io::Error::from(std::io::ErrorKind::OutOfMemory)))?;
        bytes.resize(length, 0);
        sums::empty(spec.dtype, &mut bytes);
        let pressed = filter.follows().map(|follows| {
            let gauge = Gauge::new(follows, spec.consistency);
            Pressed { gauge, since: Instant::now() }
        });
        Ok(Self { filter, dtype: spec.dtype, bytes, pressed, is_empty: true })
    }

    /// Bytes of it.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Adds what is carried to a chunk's sum: all that is due of it then stands in `due`, an accumulator for each element.
    pub(super) fn add_to(&self, chunk: Range<usize>, sum: Foreign<'_>, due: &mut Vec<u8>) -> Range<usize> {
        let size = self.dtype.accumulator_size();
        let accumulators = chunk.start / self.dtype.size() * size..chunk.end / self.dtype.size() * size;
        due.clear();
        due.extend_from_slice(&self.bytes[accumulators.clone()]);
        settled(|| sums::collect(self.dtype, sum, due));
        accumulators
    }

    /// From now on this is carried.
    pub(super) fn keep(&mut self, kept: Foreign<'_>) {
        self.is_empty = false;
        kept.copy_to(&mut self.bytes);
    }

    /// A push of this clock begins, of `all` that is due or as the filter says: the network is looked at, if it is time to.
    pub(super) fn begin<I: Iterator<Item = Option<Flow>>>(
        &mut self,
        clock: u64,
        all: bool,
        flows: impl FnOnce() -> I,
    ) -> Passing {
        if let Some(Pressed { gauge, since }) = &mut self.pressed {
            let now = since.elapsed();
            if gauge.is_time(1, now) {
                gauge.look(now, clock, flows());
            }
        }
        match all || self.filter.passes_all(self.pressure()) {
            false => Passing::Chosen,
            // A flush of nothing still writes zeros.
            true if self.is_empty && !all => Passing::Untouched,
            true => Passing::All,
        }
    }

    /// It was made.
    pub(super) fn end(&mut self, passing: Passing) {
        match passing {
            Passing::Untouched => {}
            // Of numbers of half precision what rounding cuts off stays.
            Passing::All => self.is_empty = self.dtype.size() == self.dtype.accumulator_size(),
            Passing::Chosen => self.is_empty = false,
        }
    }

    fn pressure(&self) -> Pressure {
        self.pressed.as_ref().map_or(Pressure::NONE, |pressed| pressed.gauge.pressure())
    }

    /// Puts into the lane what is sent of a chunk's sum, which may stand there: what the filter chooses, or all of it.
    pub(super) fn pass(
        &mut self,
        lane: &mut OwnLane,
        chunk: Range<usize>,
        sum: Sum<'_>,
        clock: u64,
        all: bool,
    ) {
        let pressure = self.pressure();
        let Self { filter, dtype, bytes, .. } = self;
        let first = chunk.start / dtype.size();
        let accumulators = first..chunk.end / dtype.size();
        let size = dtype.accumulator_size();
        let carry = &mut bytes[accumulators.start * size..accumulators.end * size];
        let given = match sum {
            Sum::Given(data) => Some(data.part(chunk.clone())),
            Sum::Lane | Sum::None => None,
        };
        // As `SumFilter::split` wants it.
        settled(|| {
            lane.rewrite(chunk, given, |sum_there, sent| match sum {
                Sum::None => sums::release(*dtype, None, sent, carry),
                _ if all => sums::release(*dtype, Some(sum_there), sent, carry),
                _ => {
                    filter.split(Coordinates { clock, first: first as u64, pressure }, sum_there, sent, carry)
                }
            });
        });
    }
}

impl Tensor {
    /// How much this worker holds back of what it has pushed; nothing where the tensor has no filter of contributions.
    pub fn held_back(&self) -> Result<HeldBack, Error> {
        self.job.fate.check()?;
        let Some(carry) = &self.carry else { return Ok(HeldBack::default()) };
        let _turn = self.take_turn(self.job.deadline(None))?;
        let carry = lock(carry);
        Ok(sums::held_back(carry.dtype, &carry.bytes))
    }

    /// How each shard's filter of the values has followed the network: server, shard, and its last changes, the oldest first; none
    /// where it does not follow it.
    pub fn values_followed(
        &self,
        timeout: Option<Duration>,
    ) -> Result<Vec<(usize, u32, Vec<Change>)>, Error> {
        self.job.fate.check()?;
        if !self.filter_follows {
            return Ok(Vec::new());
        }
        let deadline = self.job.deadline(timeout);
        let links = self.job.links();
        let ask = |home: &HomeShard| {
            let link = links.get(home.server).ok_or(Error::Closed)?;
            let ask = Ask::Followed { tensor: self.id, shard: home.shard };
            match link.ask(ask, "tell how a filter follows the network", deadline)? {
                (Answer::Followed { changes }, _) => Ok((home.server, home.shard, changes)),
                (other, _) => Err(link.misunderstood(&other)),
            }
        };
        self.homes.iter().map(ask).collect()
    }

    /// How the filter of this worker's pushes has followed the network: its last changes, the oldest first; none where it does not
    /// follow it, or had no reason to.
    pub fn pushes_followed(&self, timeout: Option<Duration>) -> Result<Vec<Change>, Error> {
        self.job.fate.check()?;
        let Some(carry) = &self.carry else { return Ok(Vec::new()) };
        let _turn = self.take_turn(self.job.deadline(timeout))?;
        let changes = |pressed: &Pressed| pressed.gauge.changes().copied().collect();
        Ok(lock(carry).pressed.as_ref().map(changes).unwrap_or_default())
    }

    /// Pushes all that this worker holds back, with what stands in the lane of an unfinished contribution: a push like any other,
    /// which brings nothing new. Returns the clock that it is stamped with; `None`, and pushes nothing, where the tensor has no
    /// filter of contributions. Where the push of this iteration was a flush there is nothing left to send, and its clock is returned:
    /// a caller that was interrupted at its end makes the call again.
    pub fn flush(&self, settings: Settings, timeout: Option<Duration>) -> Result<Option<u64>, Error> {
        if self.carry.is_none() {
            self.job.fate.check()?;
            return Ok(None);
        }
        match self.flush_within(settings, self.job.deadline(timeout)) {
            // Whoever sees that this iteration's push was made sees whether it was a flush: both are noted in one turn.
            Err(Error::AlreadyPushed { iteration, .. })
                if self.flushed.load(Ordering::Relaxed) == iteration + 1 =>
            {
                Ok(Some(iteration))
            }
            flushed => flushed.map(Some),
        }
    }
}
