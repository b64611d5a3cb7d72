//! Sparse contributions: numbers that are added where they belong.

use crate::accumulate::accumulate;
use crate::control_word::settled;
use crate::dtype::Dtype;
use half::{bf16, f16};
use std::ops::Range;

/// Runs of more elements are added by vectors.
const SHORT: usize = 4;

/// Adds runs of `values` to runs of `onto` of the same length, one run after the other, in `dtype` (half precision through f32, each
/// sum rounded): what is named twice is summed in the order in which it is named. `runs`: ranges of `values`, and where each
/// begins in `onto`, in elements. Any alignment will do.
///
/// Speed of light: short runs are a load and a store each, some nanoseconds where `onto` is in a near cache; long ones move three
/// times their length.
///
/// # Panics
///
/// If a run leaves `values` or `onto`.
pub fn scatter_add(
    dtype: Dtype,
    onto: &mut [u8],
    values: &[u8],
    runs: impl IntoIterator<Item = (Range<usize>, usize)>,
) {
    settled(|| add_runs(dtype, onto, values, runs));
}

fn add_runs(
    dtype: Dtype,
    onto: &mut [u8],
    values: &[u8],
    runs: impl IntoIterator<Item = (Range<usize>, usize)>,
) {
    let size = dtype.size();
    for (run, at) in runs {
        let run_onto = &mut onto[at * size..(at + run.len()) * size];
        let values = &values[run.start * size..run.end * size];
        if run.len() > SHORT {
            accumulate(dtype, run_onto, values);
            continue;
        }
        match dtype {
            Dtype::F32 => {
                each(run_onto, values, |a, b| (f32::from_le_bytes(a) + f32::from_le_bytes(b)).to_le_bytes())
            }
            Dtype::F64 => {
                each(run_onto, values, |a, b| (f64::from_le_bytes(a) + f64::from_le_bytes(b)).to_le_bytes())
            }
            Dtype::F16 => each(run_onto, values, |a, b| {
                f16::from_f32(f16::from_le_bytes(a).to_f32() + f16::from_le_bytes(b).to_f32()).to_le_bytes()
            }),
            Dtype::Bf16 => each(run_onto, values, |a, b| {
                bf16::from_f32(bf16::from_le_bytes(a).to_f32() + bf16::from_le_bytes(b).to_f32())
                    .to_le_bytes()
            }),
        }
    }
}

fn each<const SIZE: usize>(
    onto: &mut [u8],
    values: &[u8],
    sum: impl Fn([u8; SIZE], [u8; SIZE]) -> [u8; SIZE],
) {
    for (onto, value) in onto.as_chunks_mut::<SIZE>().0.iter_mut().zip(values.as_chunks::<SIZE>().0) {
        *onto = sum(*onto, *value);
    }
}
