//! Sparse pulls: some elements of a tensor, as fresh as a pull of all of it would be.
//!
//! Time and memory traffic go with the chunks that are touched, and so does what travels: those are waited for, each by itself, and no
//! others, and of a home on another host they are fetched. Each chunk is copied out once, verified by its sequence. A value that is broadcast is there, or comes, in any case.

use super::pull::Asked;
use super::sparse::{Piece, check_units, pieces};
use super::{HomeShard, Tensor};
use crate::wait::Deadline;
use crate::worker::Error;
use crate::worker::link::RemoteHome;
use penstock_fabric::sync::Ordering;
use penstock_kernels::ForeignMut;
use penstock_proto::remote::asking::{self, Changes, Known};
use penstock_proto::submission::{NO_TICKET, Submission};
use penstock_proto::worker::Requirement;
use smallvec::SmallVec;
use std::cell::Cell;
use std::ops::Range;
use std::time::Duration;

/// Runs of chunks that a home is asked for at once: a submission each.
const BATCH: usize = 64;

/// What a sparse pull waits for at one home.
enum Awaited {
    /// Nothing: no chunk that it touches is there.
    Nothing,
    /// These chunks, and where it is on another host a ticket.
    Chunks {
        chunks: Vec<u32>,
        /// As many of them were seen to have come: versions do not fall.
        came: Cell<usize>,
        ticket: u64,
    },
}

impl Tensor {
    /// Copies elements into `out`: `units[i]` names those from `units[i] * unit` on, `unit` of them, which go to `i * unit` elements from
    /// its start. As fresh as [`Tensor::pull_into`]; returns the least version among the chunks that they are in, and waits for no
    /// others. Of nothing it waits for nothing, and the version is the one that a pull would wait for.
    pub fn pull_sparse<'o>(
        &self,
        units: &[u64],
        unit: usize,
        out: impl Into<ForeignMut<'o>>,
        slack: Option<i64>,
        timeout: Option<Duration>,
    ) -> Result<u64, Error> {
        self.pull_sparse_asked(self.ask(slack)?, units, unit, out, timeout)
    }

    /// [`Tensor::pull_sparse`] as of an earlier moment, as [`Tensor::pull_asked`].
    pub fn pull_sparse_asked<'o>(
        &self,
        asked: Asked,
        units: &[u64],
        unit: usize,
        out: impl Into<ForeignMut<'o>>,
        timeout: Option<Duration>,
    ) -> Result<u64, Error> {
        let mut out = out.into();
        self.check_gather(units, unit, out.len())?;
        let Asked { position, requirement } = asked;
        let pieces = pieces(self.spec.dtype, self.memory.cut(), units, unit);
        let Some(touched) = Touched::of(&pieces) else { return Ok(requirement.version) };
        let deadline = self.job.deadline(timeout);
        self.wait_for_chunks(&touched.0, &requirement, deadline)?;
        let size = self.spec.dtype.size();
        let mut least = u64::MAX;
        for of_chunk in pieces.chunk_by(|one, next| one.chunk == next.chunk) {
            let parts = || {
                let bytes = |piece: &Piece| {
                    let at = piece.at as usize * size;
                    (at..at + piece.len as usize * size, piece.from * size)
                };
                of_chunk.iter().map(bytes)
            };
            let read = || self.memory.read_parts(of_chunk[0].chunk, parts(), &mut out);
            least = least.min(self.verified(deadline, read)?.version);
        }
        self.count_pull(position, least, out.len());
        Ok(least)
    }

    /// [`Tensor::pull_sparse`] of the value itself, as [`Tensor::pull_whole`]: where that has to look at all of it, so does this.
    pub fn pull_sparse_whole<'o>(
        &self,
        units: &[u64],
        unit: usize,
        out: impl Into<ForeignMut<'o>>,
        slack: Option<i64>,
        timeout: Option<Duration>,
    ) -> Result<u64, Error> {
        self.pull_sparse_whole_asked(self.ask(slack)?, units, unit, out, timeout)
    }

    /// [`Tensor::pull_sparse_whole`] as of an earlier moment, as [`Tensor::pull_asked`].
    pub fn pull_sparse_whole_asked<'o>(
        &self,
        asked: Asked,
        units: &[u64],
        unit: usize,
        out: impl Into<ForeignMut<'o>>,
        timeout: Option<Duration>,
    ) -> Result<u64, Error> {
        if !self.lags() {
            return self.pull_sparse_asked(asked, units, unit, out, timeout);
        }
        let mut out = out.into();
        self.check_gather(units, unit, out.len())?;
        let mut whole = vec![0; self.spec.bytes() as usize];
        let version = self.pull_whole_asked(asked, &mut whole, timeout)?;
        let bytes = unit * self.spec.dtype.size();
        for (place, &index) in units.iter().enumerate() {
            let from = index as usize * bytes;
            out.part(place * bytes..(place + 1) * bytes).copy_from((&whole[from..from + bytes]).into());
        }
        Ok(version)
    }

    fn check_gather(&self, units: &[u64], unit: usize, got: usize) -> Result<(), Error> {
        check_units(&self.spec, units, unit)?;
        let expected = units.len().saturating_mul(unit * self.spec.dtype.size());
        if got == expected {
            return Ok(());
        }
        Err(Error::WrongSize { name: self.spec.name.clone(), expected, got })
    }

    /// Waits until these chunks, ascending, are as fresh as that.
    fn wait_for_chunks(
        &self,
        touched: &[u32],
        requirement: &Requirement,
        deadline: Deadline,
    ) -> Result<(), Error> {
        // What is new of a value that is broadcast comes whole.
        if self.spec.propagation.is_unasked() {
            return self.wait_for_version(requirement, deadline);
        }
        let anew = self.changes().are_newer_than(self.fetched_at());
        let ask = |home| self.ask_for_chunks(home, touched, requirement, anew, deadline);
        let awaited = self.homes.iter().map(ask).collect::<Result<SmallVec<[Awaited; 4]>, Error>>()?;
        let is_old = |home: &HomeShard| match &awaited[home.place] {
            Awaited::Nothing => false,
            Awaited::Chunks { chunks, came, .. } => {
                let rest = &chunks[came.get()..];
                let new =
                    rest.iter().take_while(|&&chunk| self.memory.chunk_progress(chunk) > requirement.version);
                came.set(came.get() + new.count());
                came.get() < chunks.len()
            }
        };
        let is_fresh = |home: &HomeShard| {
            let is_fetched = match (&awaited[home.place], &home.remote) {
                (Awaited::Nothing, _) => return true,
                (Awaited::Chunks { ticket, .. }, Some(remote)) => remote.has_come(*ticket),
                _ => true,
            };
            is_fetched && !is_old(home) && (!requirement.own_folded || self.lane_is_free(home))
        };
        let is_without = |&chunk: &u32| self.memory.chunk_progress(chunk) == 0;
        let lacks_value = || touched.iter().any(is_without) && self.may_lack_value();
        self.wait_until_fresh(requirement, deadline, true, (is_fresh, is_old, lacks_value))
    }

    /// Asks a home for what it has to be asked for: what is then to be waited for there.
    fn ask_for_chunks(
        &self,
        home: &HomeShard,
        touched: &[u32],
        requirement: &Requirement,
        anew: bool,
        deadline: Deadline,
    ) -> Result<Awaited, Error> {
        let Some(remote) = &home.remote else {
            // Which of the server's shards is home of which is not known here: each of them stands for all.
            let extent = home.extent.chunks();
            let chunks: Vec<u32> = touched.iter().copied().filter(|chunk| extent.contains(chunk)).collect();
            return Ok(match chunks.is_empty() {
                true => Awaited::Nothing,
                false => Awaited::Chunks { chunks, came: Cell::new(0), ticket: NO_TICKET },
            });
        };
        let place = |chunk: &u32| remote.chunks.binary_search(chunk).ok();
        let places: Vec<usize> = touched.iter().filter_map(place).collect();
        if places.is_empty() {
            return Ok(Awaited::Nothing);
        }
        remote.is_fresh.store(false, Ordering::Relaxed);
        let wanted = remote.wanted.load(Ordering::Relaxed);
        let asks = |place: &usize| {
            let progress = self.memory.chunk_progress(remote.chunks[*place]);
            asking::at_pull_of_chunk(requirement, Known { progress, wanted, is_sent: false }, anew)
        };
        let asked: Vec<usize> = places.iter().copied().filter(asks).collect();
        let ticket = match asked.is_empty() {
            true => remote.renewed.load(Ordering::Relaxed),
            false => self.fetch_chunks(home, remote, &asked, requirement.version, true, deadline)?,
        };
        let chunks = places.into_iter().map(|place| remote.chunks[place]).collect();
        Ok(Awaited::Chunks { chunks, came: Cell::new(0), ticket })
    }

    /// Asks a home on another host for some of its chunks, by their places among them, ascending: the ticket, if it is to have one,
    /// that comes back behind those that have the version.
    pub(super) fn fetch_chunks(
        &self,
        home: &HomeShard,
        remote: &RemoteHome,
        places: &[usize],
        version: u64,
        with_ticket: bool,
        deadline: Deadline,
    ) -> Result<u64, Error> {
        let runs = places.chunk_by(|one, next| one + 1 == *next);
        let runs: Vec<Range<u32>> =
            runs.map(|run| remote.chunks[run[0]]..remote.chunks[run[run.len() - 1]] + 1).collect();
        let (links, mut newest) = (self.job.links(), NO_TICKET);
        let link = links.get(home.server).ok_or(Error::Closed)?;
        for batch in runs.chunks(BATCH) {
            let mut room = link.room(home.shard, batch.len() as u64, deadline)?;
            for run in batch {
                // Each has one: by that it is asked for again where its answer is lost with a connection.
                room.put(|| {
                    if with_ticket {
                        newest = remote.ticket.fetch_add(1, Ordering::Relaxed) + 1;
                    }
                    let (first, count) = (run.start, run.end - run.start);
                    Submission::FetchChunks { tensor: self.id, first, count, version, ticket: newest }
                });
            }
        }
        Ok(newest)
    }

    /// What may have changed the value without a new version, so far, and when it was last fetched from every home.
    pub(super) fn changes(&self) -> Changes {
        Changes { barriers: self.job.barriers(), loads: self.loads.load(Ordering::Acquire) }
    }

    pub(super) fn fetched_at(&self) -> Changes {
        Changes {
            barriers: self.seen_barriers.load(Ordering::Acquire),
            loads: self.seen_loads.load(Ordering::Acquire),
        }
    }
}

/// The chunks that are touched, ascending; there is one at least.
struct Touched(Vec<u32>);

impl Touched {
    fn of(pieces: &[Piece]) -> Option<Self> {
        let chunks: Vec<u32> =
            pieces.chunk_by(|one, next| one.chunk == next.chunk).map(|pieces| pieces[0].chunk).collect();
        (!chunks.is_empty()).then_some(Self(chunks))
    }
}
