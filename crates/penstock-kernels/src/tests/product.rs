//! Products of factors beside three loops.

use super::chunk::{decode, encode};
use crate::{Arch, Dtype, Factors, product_on, widen};
use half::{bf16, f16};
use proptest::prelude::*;

/// As it is promised, with every rounding written out.
fn naive(dtype: Dtype, u: &[f64], v: &[f64], columns: usize, rank: usize, element: usize) -> f64 {
    let (row, column) = (element / columns, element % columns);
    let terms = (0..rank).map(|at| (u[row * rank + at], v[at * columns + column]));
    match dtype {
        Dtype::F64 => terms.fold(0.0, |sum, (u, v)| sum + u * v),
        _ => {
            let sum = terms.fold(0.0_f32, |sum, (u, v)| sum + u as f32 * v as f32);
            match dtype {
                Dtype::F16 => f16::from_f32(sum).to_f64(),
                Dtype::Bf16 => bf16::from_f32(sum).to_f64(),
                _ => sum.into(),
            }
        }
    }
}

fn wide(dtype: Dtype, numbers: &[u8]) -> Vec<u8> {
    let mut wide = vec![0; numbers.len() / dtype.size() * dtype.accumulator_size()];
    widen(dtype, numbers, &mut wide);
    wide
}

/// Numbers that show every rounding, and what is not finite.
fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        12 => -3.0..3.0_f64,
        1 => Just(f64::INFINITY),
        1 => Just(f64::NAN),
        1 => Just(-0.0),
        1 => Just(6e4),
        1 => Just(1e-7),
    ]
}

proptest! {
    #[test]
    fn any_piece_has_the_bits_of_the_whole_with_every_instruction_set(
        dtype in prop::sample::select(Dtype::ALL.to_vec()),
        rows in 1_usize..5,
        columns in prop_oneof![1_usize..9, 60_usize..70, 120_usize..300],
        rank in 0_usize..6,
        numbers in prop::collection::vec(number(), 40),
        cut: prop::sample::Index,
        length: prop::sample::Index,
    ) {
        let drawn = |count: usize, step: usize| -> Vec<f64> {
            let numbers = (0..count).map(|at| numbers[at * step % numbers.len()] * (1.0 + at as f64 / 64.0));
            decode(dtype, &encode(dtype, &numbers.collect::<Vec<_>>()))
        };
        let (u, v) = (drawn(rows * rank, 7), drawn(rank * columns, 11));
        let all = rows * columns;
        let first = cut.index(all);
        let count = 1 + length.index(all - first);
        let expected: Vec<f64> =
            (first..first + count).map(|element| naive(dtype, &u, &v, columns, rank, element)).collect();
        let whole = wide(dtype, &encode(dtype, &u));
        let from = first / columns * rank * dtype.accumulator_size();
        let v = encode(dtype, &v);
        let factors = Factors { u: &whole[from..], v: &v, columns, rank };
        for arch in Arch::ALL {
            let mut out = vec![0xee; count * dtype.size()];
            if product_on(arch, dtype, factors, first % columns, &mut out).is_none() {
                continue;
            }
            for (at, (got, expected)) in decode(dtype, &out).into_iter().zip(&expected).enumerate() {
                let same = got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan();
                prop_assert!(same, "{arch:?} {dtype:?} at {at}: {got} is not {expected}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "u has every row of the piece")]
fn a_piece_that_reaches_behind_the_last_row_is_refused() {
    let factors = Factors { u: &[0; 8], v: &[0; 24], columns: 3, rank: 2 };
    product_on(Arch::Generic, Dtype::F32, factors, 2, &mut [0; 8]);
}
