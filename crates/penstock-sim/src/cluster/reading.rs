//! How the ends of the wires read: one reader for as long as its connection lives, as at a proxy and a shard of a real job.
//!
//! Bytes that arrive are looked at at once, or later if the end has something else to do. A look takes as many frames as there are,
//! or as one look takes at most; the reader has then perhaps read more of them, or a part of one, and the end looks again. Half of
//! the ends bring whatever has arrived in a read, as TCP does; the others some of it.

use super::wires::{Decoder, Judge, Mirrors};
use super::{Cluster, Event, Failure};
use crate::remote::Proxy;
use crate::rng::Rng;
use crate::sabotage::Sabotage;
use crate::transport::{End, Way};
use penstock_fabric::net::frames::{FrameReader, Step};
use penstock_proto::Rank;
use penstock_proto::remote::judge::Incoming;

/// Frames of a look at most, as in a real job.
const FRAMES: u64 = 32;
/// Bytes of values that a read of a worker's end brings at most: here chunks are short, and two of the longest fit.
const READ: usize = 32 * 1024;
/// One end in so many has something else to do when bytes arrive.
const BUSY_ONCE_IN: u64 = 4;

/// What reads at both ends of a connection.
#[derive(Default)]
pub(super) struct Readers {
    /// Each is taken out for a look.
    worker: Option<FrameReader<Decoder>>,
    shard: Option<FrameReader<Incoming>>,
    /// What says how much a read brings, where that is not all that has arrived; by the way that is read.
    reads: [Option<Rng>; 2],
    /// Whether the end looks later.
    later: [bool; 2],
}

impl Readers {
    /// Of a new connection.
    pub(super) fn new(rng: &mut Rng) -> Self {
        let most = rng.pick(&[4096, READ]);
        let reads = [(); 2].map(|()| rng.once_in(2).then(|| Rng::new(rng.word())));
        let (worker, shard) = (Some(FrameReader::reading_ahead(most)), Some(FrameReader::new()));
        Self { worker, shard, reads, later: [false; 2] }
    }
}

impl Cluster<'_> {
    /// Whether this is about the present connection, and the end that reads this way stands.
    pub(super) fn is_present(&self, rank: Rank, shard: usize, number: u64, way: Way) -> bool {
        let wire = &self.wires[rank as usize][shard];
        wire.number == number && wire.is_read(way)
    }

    /// Bytes have arrived.
    pub(super) fn arrive(&mut self, rank: Rank, shard: usize, number: u64, way: Way) -> Result<(), Failure> {
        if shard == self.control() {
            return self.hear_records(rank, number, way);
        }
        if !self.is_present(rank, shard, number, way)
            || self.readers[rank as usize][shard].later[way as usize]
        {
            return Ok(());
        }
        if self.rng.once_in(BUSY_ONCE_IN) {
            self.read_later(rank, shard, number, way);
            return Ok(());
        }
        self.look_at(rank, shard, number, way)
    }

    fn read_later(&mut self, rank: Rank, shard: usize, number: u64, way: Way) {
        self.readers[rank as usize][shard].later[way as usize] = true;
        let delay = self.delay();
        self.later(delay, Event::Read { rank, shard, number, way });
    }

    /// An end that had something else to do looks.
    pub(super) fn read(&mut self, rank: Rank, shard: usize, number: u64, way: Way) -> Result<(), Failure> {
        if !self.is_present(rank, shard, number, way) {
            return Ok(());
        }
        self.readers[rank as usize][shard].later[way as usize] = false;
        self.look_at(rank, shard, number, way)
    }

    fn look_at(&mut self, rank: Rank, shard: usize, number: u64, way: Way) -> Result<(), Failure> {
        let more = match way {
            Way::Up => self.look_at_shard(rank, shard)?,
            Way::Down => self.look_at_worker(rank, shard)?,
        };
        let forgets = self.scenario.sabotage == Some(Sabotage::ForgetsWhatItHasRead);
        if more && !forgets && self.is_present(rank, shard, number, way) {
            self.read_later(rank, shard, number, way);
        }
        self.answer(rank, shard);
        self.dispatch(rank, shard);
        Ok(())
    }

    /// Frames that a look takes at most.
    fn some_frames(&mut self) -> u64 {
        self.rng.pick(&[1, 2, FRAMES])
    }

    /// A shard takes what has come; whether it stopped before that was all.
    fn look_at_shard(&mut self, rank: Rank, shard: usize) -> Result<bool, Failure> {
        let reader = self.readers[rank as usize][shard].shard.take();
        let mut reader = reader.expect("a connection that stands has a reader");
        reader.look_again();
        let mut left = self.some_frames();
        while left > 0 {
            if self.servers[shard].ports.0[rank as usize].is_none() {
                self.wires[rank as usize][shard].discard(Way::Up, self.now); // it is not listened to any more
                break;
            }
            let wire = &mut self.wires[rank as usize][shard];
            let number = wire.number;
            let reads = self.readers[rank as usize][shard].reads[Way::Up as usize].as_mut();
            let mut end = End { reads, ..End::new(wire, Way::Down, self.now) };
            let mut judge = Judge { server: &mut self.servers[shard], rank };
            match reader.next(&mut end, &mut judge) {
                Step::Frame(header, place) => {
                    left -= 1;
                    self.take(rank, shard, &header, place, reader.payload())?;
                }
                Step::Header => {}
                Step::Nothing => break,
                Step::Ended(_) => {
                    self.lose_wire(rank, shard, number, Way::Up)?;
                    break;
                }
                Step::Broke(what) => {
                    self.refused(rank, shard, &what)?;
                    break;
                }
            }
        }
        self.readers[rank as usize][shard].shard = Some(reader);
        Ok(left == 0)
    }

    /// A worker's proxy takes what has come; whether it stopped before that was all.
    fn look_at_worker(&mut self, rank: Rank, shard: usize) -> Result<bool, Failure> {
        let reader = self.readers[rank as usize][shard].worker.take();
        let mut reader = reader.expect("a connection that stands has a reader");
        reader.look_again();
        let mut left = self.some_frames();
        while left > 0 {
            let wire = &mut self.wires[rank as usize][shard];
            let number = wire.number;
            let reads = self.readers[rank as usize][shard].reads[Way::Down as usize].as_mut();
            let mut end = End { reads, ..End::new(wire, Way::Up, self.now) };
            let Proxy { tensors, .. } = &self.proxies[rank as usize][shard];
            let mut mirrors = Mirrors { maps: &self.maps, workload: self.workload, tensors };
            match reader.next(&mut end, &mut mirrors) {
                Step::Frame(header, codec) => {
                    left -= 1;
                    self.hear(rank, shard, &header, codec, reader.payload())?;
                }
                Step::Header => {}
                Step::Nothing => break,
                Step::Ended(_) => {
                    self.lose_wire(rank, shard, number, Way::Down)?;
                    break;
                }
                Step::Broke(what) => return Err(self.broke(rank, shard, &what)),
            }
        }
        if left == 0 && self.breaks(Sabotage::DropsWhatItHasRead, 4) {
            reader = FrameReader::reading_ahead(READ);
        }
        self.readers[rank as usize][shard].worker = Some(reader);
        Ok(left == 0)
    }
}
