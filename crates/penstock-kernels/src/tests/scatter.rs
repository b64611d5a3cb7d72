//! Sparse contributions beside a loop.

use super::chunk::{decode, encode};
use crate::{Dtype, scatter_add};
use proptest::prelude::*;
use std::ops::Range;

proptest! {
    #[test]
    fn runs_are_added_where_they_belong_and_repeated_ones_are_summed(
        dtype in prop::sample::select(Dtype::ALL.to_vec()),
        size in 1_usize..80,
        runs in prop::collection::vec((any::<u16>(), 1_usize..12, any::<u16>()), 0..12),
    ) {
        // Whole numbers whose sums every dtype has.
        let values: Vec<f64> = (0..size).map(|at| (at % 7) as f64 - 3.0).collect();
        let mut expected: Vec<f64> = (0..size).map(|at| (at % 3) as f64).collect();
        let mut onto = encode(dtype, &expected);
        let runs: Vec<(Range<usize>, usize)> = runs.into_iter().map(|(from, long, at)| {
            let long = long.min(size);
            let from = usize::from(from) % (size - long + 1);
            (from..from + long, usize::from(at) % (size - long + 1))
        }).collect();
        for (run, at) in &runs {
            run.clone().zip(*at..).for_each(|(from, at)| expected[at] += values[from]);
        }
        scatter_add(dtype, &mut onto, &encode(dtype, &values), runs);
        prop_assert_eq!(decode(dtype, &onto), expected);
    }
}
