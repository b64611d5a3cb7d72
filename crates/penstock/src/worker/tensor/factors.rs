//! Contributions of low rank, given as their factors: `u @ v`.
//!
//! For servers on this host the product is written into the lane, chunk by chunk, as the bytes of an array would be. For those on
//! others, where the declaration says so and it [pays](LowRank::pays), the factors themselves stand there in its place, and they are
//! what travels ([`factors`](penstock_proto::factors)). Elsewhere (filters, parts of one contribution) the product is a push like
//! any other. It has the same bits in each case: one kernel multiplies, here or at the shard.

use super::push::{Fill, Given};
use super::{HomeShard, Tensor};
use crate::wait::Deadline;
use crate::worker::Error;
use crate::worker::link::ring;
use penstock_fabric::memory::OwnLane;
use penstock_kernels::{Dtype, Factors, Foreign, ForeignMut, Settings, first_nonfinite, product, widen};
use penstock_proto::chunk::Cut;
use penstock_proto::factors::{LowRank, Standing};
use penstock_proto::placement::Extent;
use penstock_proto::submission::Submission;
use std::ops::Range;
use std::time::Duration;

/// Two factors.
#[derive(Debug)]
pub(super) struct Product {
    dtype: Dtype,
    cut: Cut,
    columns: usize,
    rank: usize,
    u: Vec<u8>,
    /// The same, in accumulators.
    wide: Vec<u8>,
    v: Vec<u8>,
    /// A chunk that is being multiplied.
    scratch: Vec<u8>,
}

impl Product {
    /// `u` has `rank` columns and `v` as many rows, of `columns` elements.
    fn new((dtype, cut): (Dtype, Cut), columns: usize, rank: usize, [u, v]: [Foreign<'_>; 2]) -> Self {
        let copied = |factor: Foreign<'_>| {
            let mut copy = vec![0; factor.len()];
            factor.copy_to(&mut copy);
            copy
        };
        let (u, v) = (copied(u), copied(v));
        let mut wide = vec![0; u.len() / dtype.size() * dtype.accumulator_size()];
        widen(dtype, &u, &mut wide);
        Self { dtype, cut, columns, rank, u, wide, v, scratch: vec![0; cut.chunk_bytes() as usize] }
    }

    /// Bytes of the factors.
    fn bytes(&self) -> usize {
        self.u.len() + self.v.len()
    }

    /// Multiplies a chunk: where it starts in the tensor, and what it is.
    fn multiply<'a>(&self, chunk: u32, scratch: &'a mut [u8]) -> (usize, Foreign<'a>) {
        let &Self { dtype, cut, columns, rank, .. } = self;
        let range = cut.range(chunk);
        let scratch = &mut scratch[..(range.end - range.start) as usize];
        let first = range.start as usize / dtype.size();
        let row = first / columns * rank * dtype.accumulator_size();
        let factors = Factors { u: &self.wide[row..], v: &self.v, columns, rank };
        product(dtype, factors, first % columns, scratch);
        (range.start as usize, Foreign::of(scratch))
    }

    /// The first element of the product that is NaN or infinite.
    pub(super) fn first_nonfinite(&self) -> Option<usize> {
        let mut scratch = vec![0; self.cut.chunk_bytes() as usize];
        (0..self.cut.chunks()).find_map(|chunk| {
            let (at, bytes) = self.multiply(chunk, &mut scratch);
            Some(at / self.dtype.size() + first_nonfinite(self.dtype, bytes)?)
        })
    }

    /// Puts the factors into the lane, in place of these bytes of the tensor, an extent.
    fn stand(&self, lane: &mut OwnLane, low_rank: LowRank, extent: Range<u64>) {
        let standing = Standing { low_rank, rank: self.rank as u32, start: extent.start };
        let row = low_rank.left(standing.rank);
        let rows = low_rank.rows(extent.clone());
        let u = &self.u[rows.start as usize * row..rows.end as usize * row];
        let start = extent.start as usize;
        lane.write(start + standing.right().start, Foreign::of(&self.v));
        lane.write(start + standing.left(extent).start, Foreign::of(u));
    }
}

impl Fill for Product {
    fn write(&mut self, lane: &mut OwnLane, chunk: u32) {
        let mut scratch = std::mem::take(&mut self.scratch);
        let (at, bytes) = self.multiply(chunk, &mut scratch);
        lane.write(at, bytes);
        self.scratch = scratch;
    }

    fn add(&mut self, lane: &mut OwnLane) {
        let mut scratch = std::mem::take(&mut self.scratch);
        for chunk in 0..self.cut.chunks() {
            let (at, bytes) = self.multiply(chunk, &mut scratch);
            lane.add(self.dtype, at, bytes);
        }
        self.scratch = scratch;
    }
}

impl Tensor {
    /// Contributes `u @ v` to a matrix: `u` has as many rows as it, `rank` elements each, and `v` `rank` rows as long as its. The
    /// same as [`Tensor::push`] of the product, each element of which is summed in the order of the ranks in the dtype's
    /// accumulator, from 0 on, and rounded once; what then stands in the lane may not be pushed from there. Returns the clock that
    /// it is stamped with.
    pub fn push_factors(
        &self,
        u: Foreign<'_>,
        v: Foreign<'_>,
        rank: usize,
        settings: Settings,
        more: bool,
        timeout: Option<Duration>,
    ) -> Result<u64, Error> {
        let mut product = self.product_of(u, v, rank)?;
        if rank == 0 {
            return self.push_sparse(&[], 1, Foreign::of(&[]), settings, more, timeout);
        }
        self.contribute(Given::Product(&mut product), settings, more, self.job.deadline(timeout))
    }

    /// What [`Tensor::push_factors`] contributes.
    pub fn product<'o>(
        &self,
        u: Foreign<'_>,
        v: Foreign<'_>,
        rank: usize,
        out: impl Into<ForeignMut<'o>>,
    ) -> Result<(), Error> {
        let (product, mut out) = (self.product_of(u, v, rank)?, out.into());
        self.check_size(out.len())?;
        let mut scratch = vec![0; product.cut.chunk_bytes() as usize];
        for chunk in 0..product.cut.chunks() {
            let (at, bytes) = product.multiply(chunk, &mut scratch);
            out.part(at..at + bytes.len()).copy_from(bytes);
        }
        Ok(())
    }

    fn product_of(&self, u: Foreign<'_>, v: Foreign<'_>, rank: usize) -> Result<Product, Error> {
        let name = || self.spec.name.clone();
        let &[rows, columns] = &self.spec.shape[..] else {
            return Err(Error::NoMatrix { name: name(), got: self.spec.shape.clone() });
        };
        for (factor, elements) in [(u, rows), (v, columns)] {
            let expected = (elements as usize).saturating_mul(rank).saturating_mul(self.spec.dtype.size());
            if factor.len() != expected {
                return Err(Error::WrongSize { name: name(), expected, got: factor.len() });
            }
        }
        Ok(Product::new((self.spec.dtype, self.memory.cut()), columns as usize, rank, [u, v]))
    }

    /// Whether the home's server is sent factors of this rank, in place of its extent.
    fn travels_as_factors(&self, home: &HomeShard, rank: usize) -> Option<LowRank> {
        let low_rank = self.low_rank.filter(|_| home.remote.is_some())?;
        let shards = self.homes.iter().filter(|other| other.server == home.server).count() as u64;
        let rank = u32::try_from(rank).ok()?;
        let chunks = home.extent.count.into();
        low_rank.pays(rank, self.bytes_of(home.extent), shards, chunks).then_some(low_rank)
    }

    /// Whether any server is.
    pub(super) fn any_travels_as_factors(&self, product: &Product) -> bool {
        self.homes.iter().any(|home| self.travels_as_factors(home, product.rank).is_some())
    }

    fn bytes_of(&self, extent: Extent) -> Range<u64> {
        let cut = self.memory.cut();
        cut.range(extent.first).start..cut.range(extent.first + extent.count - 1).end
    }

    /// Contributes factors where they travel, and the product elsewhere.
    pub(super) fn deliver_product(
        &self,
        lane: &mut OwnLane,
        product: &mut Product,
        stamp: u64,
        settings: Settings,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let links = self.job.links();
        let rank = product.rank;
        let low_rank = |home: &HomeShard| self.travels_as_factors(home, rank);
        let window = self.window();
        let count = |home: &HomeShard| if low_rank(home).is_some() { 1 } else { self.windows(home, window) };
        let mut rooms = self.rooms(&links, count, deadline)?;
        self.ask_for_result(stamp, false);
        self.count_submitted();
        let (tensor, rank) = (self.id, rank as u32);
        // First what is short: it is on its way while the rest is multiplied.
        let mut stands = None;
        for (home, room) in self.homes.iter().zip(&mut *rooms) {
            let Some(low_rank) = low_rank(home) else { continue };
            if stands.replace(home.server) != Some(home.server) {
                product.stand(lane, low_rank, self.bytes_of(home.extent));
            }
            let Extent { first, count } = home.extent;
            room.put(|| Submission::PushProduct { tensor, first, count, stamp, settings, rank });
        }
        ring(&mut rooms);
        let whole: Vec<Extent> =
            self.homes.iter().filter(|home| low_rank(home).is_none()).map(|home| home.extent).collect();
        let holds = |extent: &Extent, chunk: u32| extent.chunks().contains(&chunk);
        for start in (0..self.spec.bytes() as usize).step_by(window) {
            let chunks = self.places_of(start..(start + window).min(self.spec.bytes() as usize));
            for chunk in chunks.clone() {
                if whole.iter().any(|extent| holds(extent, chunk)) {
                    product.write(lane, chunk);
                }
            }
            for (home, room) in self.homes.iter().zip(&mut *rooms) {
                let Some((first, count)) = Self::within(home, &chunks).filter(|_| low_rank(home).is_none())
                else {
                    continue;
                };
                room.put(|| Submission::Push { tensor, first, count, stamp, settings });
            }
            ring(&mut rooms);
        }
        self.count_push(if whole.is_empty() { product.bytes() } else { self.spec.bytes() as usize });
        Ok(())
    }
}
