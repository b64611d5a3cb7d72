//! Sparse contributions: some elements of a tensor, and zeros for all others.
//!
//! In the lane each chunk that is touched stands whole. Of one that is not nothing does, where zeros change nothing by the tensor's
//! rule: then the homes are told that it is skipped, and time and memory traffic go with the chunks that are touched. Elsewhere
//! (momentum, Adam, filters, parts of one contribution) all chunks are filled, and it is a push like any other: a filter of values
//! chooses whenever a chunk was contributed to.

use super::Tensor;
use super::push::{Fill, Given, MOST};
use crate::worker::Error;
use penstock_fabric::memory::OwnLane;
use penstock_kernels::{Dtype, Foreign, Settings, first_nonfinite, scatter_add};
use penstock_proto::chunk::Cut;
use penstock_proto::spec::TensorSpec;
use std::ops::Range;
use std::time::Duration;

/// Elements of one chunk, one after the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub(super) chunk: u32,
    /// The first, in the chunk.
    pub(super) at: u32,
    /// The first of their values.
    pub(super) from: usize,
    pub(super) len: u32,
}

/// `units[i]` names elements `units[i] * unit..` of a tensor, `unit` of them, whose values stand together from `i * unit` on. They exist.
/// By chunk; of one chunk in the order in which they were named.
pub(super) fn pieces(dtype: Dtype, cut: Cut, units: &[u64], unit: usize) -> Vec<Piece> {
    let per_chunk = cut.chunk_bytes() as usize / dtype.size();
    let mut pieces = Vec::with_capacity(units.len());
    for (place, &index) in units.iter().enumerate() {
        let (mut at, mut from) = (index as usize * unit, place * unit);
        let end = at + unit;
        while at < end {
            let (chunk, within) = (at / per_chunk, at % per_chunk);
            let len = (per_chunk - within).min(end - at);
            pieces.push(Piece { chunk: chunk as u32, at: within as u32, from, len: len as u32 });
            (at, from) = (at + len, from + len);
        }
    }
    // Stable.
    pieces.sort_by_key(|piece| piece.chunk);
    pieces
}

/// Whether the tensor has all units that are named, of so many elements each.
pub(super) fn check_units(spec: &TensorSpec, units: &[u64], unit: usize) -> Result<(), Error> {
    let count = spec.elements().unwrap_or(0).checked_div(unit as u64).unwrap_or(0);
    match units.iter().position(|&index| index >= count) {
        Some(place) => {
            Err(Error::UnknownElement { name: spec.name.clone(), place, got: units[place], count })
        }
        None => Ok(()),
    }
}

/// A sparse contribution, by chunk.
#[derive(Debug)]
pub(super) struct Scattered {
    dtype: Dtype,
    cut: Cut,
    /// By chunk; of one chunk in the order in which they were given.
    pieces: Vec<Piece>,
    values: Vec<u8>,
    /// A chunk that is being put together.
    scratch: Vec<u8>,
}

impl Scattered {
    /// What these [pieces] name, and there are as many values. What is named twice is summed in the order in which it was named.
    fn new(dtype: Dtype, cut: Cut, units: &[u64], unit: usize, values: Vec<u8>) -> Self {
        let pieces = pieces(dtype, cut, units, unit);
        Self { dtype, cut, pieces, values, scratch: vec![0; cut.chunk_bytes() as usize] }
    }

    /// Bytes of the values.
    pub(super) fn bytes(&self) -> usize {
        self.values.len()
    }

    /// Chunks that are touched, ascending.
    pub(super) fn touched(&self) -> Vec<u32> {
        self.pieces.chunk_by(|one, next| one.chunk == next.chunk).map(|pieces| pieces[0].chunk).collect()
    }

    /// The first element of the tensor that is NaN or infinite in what is given, in their sums where it is named twice.
    pub(super) fn first_nonfinite(&self) -> Option<usize> {
        let mut scratch = vec![0; self.cut.chunk_bytes() as usize];
        self.touched().into_iter().find_map(|chunk| {
            let (at, bytes) = self.put_together(chunk, &mut scratch);
            Some(at / self.dtype.size() + first_nonfinite(self.dtype, bytes)?)
        })
    }

    /// Puts a chunk together: where it starts in the tensor, and what is given of it among zeros.
    fn put_together<'a>(&self, chunk: u32, scratch: &'a mut [u8]) -> (usize, Foreign<'a>) {
        let Self { dtype, cut, pieces, values, .. } = self;
        let range = cut.range(chunk);
        let scratch = &mut scratch[..(range.end - range.start) as usize];
        scratch.fill(0);
        let first = pieces.partition_point(|piece| piece.chunk < chunk);
        let runs = pieces[first..].iter().take_while(|piece| piece.chunk == chunk);
        let runs = runs.map(|piece| (piece.from..piece.from + piece.len as usize, piece.at as usize));
        scatter_add(*dtype, scratch, values, runs);
        (range.start as usize, Foreign::of(scratch))
    }
}

impl Fill for Scattered {
    /// Zeros, and what is given of it.
    fn write(&mut self, lane: &mut OwnLane, chunk: u32) {
        let mut scratch = std::mem::take(&mut self.scratch);
        let (at, bytes) = self.put_together(chunk, &mut scratch);
        lane.write(at, bytes);
        self.scratch = scratch;
    }

    fn add(&mut self, lane: &mut OwnLane) {
        let mut scratch = std::mem::take(&mut self.scratch);
        for chunk in self.touched() {
            let (at, bytes) = self.put_together(chunk, &mut scratch);
            lane.add(self.dtype, at, bytes);
        }
        self.scratch = scratch;
    }
}

/// Chunks one after the other that are all touched, or all not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) chunks: Range<u32>,
    pub(super) touched: bool,
}

/// The runs of `0..chunks` of which `touched` are touched, ascending: `most` at most, of which at least 3 are allowed. Where there
/// would be more the shortest that are not count as touched.
pub(super) fn runs(touched: &[u32], chunks: u32, most: usize) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut end = 0;
    for group in touched.chunk_by(|one, next| one + 1 == *next) {
        let (first, last) = (group[0], group[group.len() - 1] + 1);
        if end < first {
            runs.push(Run { chunks: end..first, touched: false });
        }
        runs.push(Run { chunks: first..last, touched: true });
        end = last;
    }
    if end < chunks {
        runs.push(Run { chunks: end..chunks, touched: false });
    }
    if runs.len() <= most {
        return runs;
    }
    // Each that is filled joins three to one.
    let fill = (runs.len() - most).div_ceil(2);
    let inner = |place: usize| !runs[place].touched && place > 0 && place + 1 < runs.len();
    let mut gaps: Vec<usize> = (0..runs.len()).filter(|&place| inner(place)).collect();
    gaps.sort_by_key(|&place| runs[place].chunks.len());
    gaps[..fill.min(gaps.len())].iter().for_each(|&place| runs[place].touched = true);
    let mut joined: Vec<Run> = Vec::with_capacity(most);
    for run in runs {
        match joined.last_mut().filter(|last| last.touched && run.touched) {
            Some(last) => last.chunks.end = run.chunks.end,
            None => joined.push(run),
        }
    }
    joined
}

impl Tensor {
    /// Contributes zeros but for some elements: `units[i]` names the elements from `units[i] * unit` on, `unit` of them, which stand in
    /// `values` one unit after the other. What is named twice is summed, in the order given, each sum rounded to the dtype. The same as
    /// [`Tensor::push`] of all of it; what then stands in the lane may not be pushed from there. Returns the clock that it is stamped
    /// with.
    pub fn push_sparse(
        &self,
        units: &[u64],
        unit: usize,
        values: Foreign<'_>,
        settings: Settings,
        more: bool,
        timeout: Option<Duration>,
    ) -> Result<u64, Error> {
        check_units(&self.spec, units, unit)?;
        let expected = units.len().saturating_mul(unit * self.spec.dtype.size());
        if values.len() != expected {
            return Err(Error::WrongSize { name: self.spec.name.clone(), expected, got: values.len() });
        }
        let mut copy = vec![0; expected];
        values.copy_to(&mut copy);
        let mut scattered = Scattered::new(self.spec.dtype, self.memory.cut(), units, unit, copy);
        let deadline = self.job.deadline(timeout);
        self.contribute(Given::Sparse(&mut scattered), settings, more, deadline)
    }
}

/// Most runs of a push: a submission each.
pub(super) const MOST_RUNS: usize = MOST;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn flags(runs: &[Run], chunks: u32) -> Vec<bool> {
        let mut next = 0;
        let mut flags = Vec::new();
        for Run { chunks, touched } in runs {
            assert_eq!(chunks.start, next);
            assert!(chunks.end > chunks.start);
            flags.extend(std::iter::repeat_n(*touched, chunks.len()));
            next = chunks.end;
        }
        assert_eq!(next, chunks);
        flags
    }

    proptest! {
        #[test]
        fn runs_cover_every_chunk_once_and_touch_all_that_is_touched_in_few_submissions(
            touched in prop::collection::btree_set(0_u32..60, 0..40), beyond in 0_u32..5, most in 3_usize..90,
        ) {
            let touched: Vec<u32> = touched.into_iter().collect();
            let chunks = touched.last().map_or(1, |last| last + 1) + beyond;
            let found = runs(&touched, chunks, most);
            prop_assert!(found.len() <= most);
            prop_assert!(found.windows(2).all(|two| two[0].touched != two[1].touched));
            let flags = flags(&found, chunks);
            prop_assert!(touched.iter().all(|&chunk| flags[chunk as usize]));
            let exact = runs(&touched, chunks, usize::MAX);
            if exact.len() <= most {
                prop_assert_eq!(found, exact);
            }
        }
    }

    #[test]
    fn where_there_are_too_many_runs_the_shortest_gaps_are_filled() {
        let touched = [0, 2, 10, 12, 30];
        let filled: Vec<Range<u32>> =
            runs(&touched, 31, 5).into_iter().filter(|run| run.touched).map(|run| run.chunks).collect();
        assert_eq!(filled, [0..3, 10..13, 30..31]);
        assert_eq!(runs(&[], 4, 3), [Run { chunks: 0..4, touched: false }]);
    }
}
