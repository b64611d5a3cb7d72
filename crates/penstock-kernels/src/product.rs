//! Products of two thin matrices: contributions of low rank, given as their factors.
//!
//! An element is `((0 + u0 * v0) + u1 * v1) + ...`, in the accumulator, each product and each sum rounded, and once more to the
//! dtype where that is narrower. So it does not matter who multiplies, nor how the product is cut: the bits are the same.
//!
//! Speed of light: a multiplication and an addition for each element and rank. A vector's worth of four rows stays in registers
//! while the rows of `v` go by, which are read once for each four rows of the product, from a near cache where they fit one.

use crate::arch::{self, Arch, Dispatch, Isa, Kernel};
use crate::dtype::Dtype;
use crate::number::Number;
use crate::sweep::ScalarOf;
use crate::vector::{Element, TAIL, Vector};
use half::{bf16, f16};
use std::marker::PhantomData;
use std::ops::Range;

/// A piece of `u @ v`, where `v` has `rank` rows of `columns` elements each.
#[derive(Debug, Clone, Copy)]
pub struct Factors<'a> {
    /// The rows of `u` that the piece is of, [widened](widen): `rank` accumulators each.
    pub u: &'a [u8],
    /// All of `v`, in the dtype.
    pub v: &'a [u8],
    /// Columns of the product.
    pub columns: usize,
    /// Columns of `u`, and rows of `v`.
    pub rank: usize,
}

/// Writes a piece of a product: as many elements as `out` has, from this column of the first row of `u` on, row by row. Any
/// alignment will do.
///
/// # Panics
///
/// If the factors are not as long as they say, or `out` has elements behind the last row of `u`.
pub fn product(dtype: Dtype, factors: Factors<'_>, column: usize, out: &mut [u8]) {
    arch::compute_on_best(Product { dtype, factors, column, out });
}

/// [`product`] with the variant `arch`; `None`, with nothing done, where this machine lacks it.
pub fn product_on(
    arch: Arch,
    dtype: Dtype,
    factors: Factors<'_>,
    column: usize,
    out: &mut [u8],
) -> Option<()> {
    arch::compute_on(arch, Product { dtype, factors, column, out })
}

/// Numbers of the dtype as its accumulators, which hold them exactly.
///
/// # Panics
///
/// If `wide` has not an accumulator for each element of `numbers`.
pub fn widen(dtype: Dtype, numbers: &[u8], wide: &mut [u8]) {
    let count = numbers.len() / dtype.size();
    assert_eq!(wide.len(), count * dtype.accumulator_size(), "there is an accumulator for each number");
    let halves = |widened: fn([u8; 2]) -> f32, wide: &mut [u8]| {
        for (wide, number) in wide.as_chunks_mut::<4>().0.iter_mut().zip(numbers.as_chunks::<2>().0) {
            *wide = widened(*number).to_le_bytes();
        }
    };
    match dtype {
        Dtype::F32 | Dtype::F64 => wide.copy_from_slice(numbers),
        Dtype::F16 => halves(|bytes| f16::from_le_bytes(bytes).to_f32(), wide),
        Dtype::Bf16 => halves(|bytes| bf16::from_le_bytes(bytes).to_f32(), wide),
    }
}

struct Product<'a> {
    dtype: Dtype,
    factors: Factors<'a>,
    column: usize,
    out: &'a mut [u8],
}

impl Dispatch for Product<'_> {
    type Output = ();

    fn on<I: Isa>(self, isa: I) {
        let Self { dtype, factors, column, out } = self;
        let Factors { u, v, columns, rank } = factors;
        assert_eq!(v.len(), rank * columns * dtype.size(), "v has a row for each rank");
        assert!(column < columns, "a row has no column {column}");
        let rows = (column + out.len() / dtype.size()).div_ceil(columns);
        assert!(u.len() >= rows * rank * dtype.accumulator_size(), "u has every row of the piece");
        match dtype {
            Dtype::F32 => isa.run(ProductOn::<I::F32> { factors, column, out, element: PhantomData }),
            Dtype::F64 => isa.run(ProductOn::<I::F64> { factors, column, out, element: PhantomData }),
            Dtype::F16 => isa.run(ProductOn::<I::F16> { factors, column, out, element: PhantomData }),
            Dtype::Bf16 => isa.run(ProductOn::<I::Bf16> { factors, column, out, element: PhantomData }),
        }
    }
}

struct ProductOn<'a, E> {
    factors: Factors<'a>,
    column: usize,
    out: &'a mut [u8],
    element: PhantomData<E>,
}

/// Rows that are summed at a time: what is loaded of `v` is used for each.
const ROWS: usize = 4;

impl<E: Element> Kernel for ProductOn<'_, E>
where
    ScalarOf<E>: Number,
{
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { factors: Factors { u, v, columns, rank }, column, mut out, .. } = self;
        let stride = columns * E::SIZE;
        // Without a rank `u` has no words, and all is 0.
        let words = ScalarOf::<E>::words(u);
        let row = |number: usize| &words[number * rank..(number + 1) * rank];
        let (mut number, mut at) = (0, column * E::SIZE);
        while !out.is_empty() {
            let whole = if at == 0 { out.len() / stride } else { 0 };
            if whole >= ROWS {
                let rows: [_; ROWS] = std::array::from_fn(|next| row(number + next));
                write_rows::<E, ROWS>(rows, v, stride, 0, take(&mut out, ROWS * stride));
                number += ROWS;
            } else if whole >= 2 {
                write_rows::<E, 2>([row(number), row(number + 1)], v, stride, 0, take(&mut out, 2 * stride));
                number += 2;
            } else {
                let bytes = out.len().min(stride - at);
                write_rows::<E, 1>([row(number)], v, stride, at, take(&mut out, bytes));
                (number, at) = (number + 1, 0);
            }
        }
    }
}

/// The first so many bytes, which are gone from there.
#[inline(always)]
fn take<'a>(bytes: &mut &'a mut [u8], count: usize) -> &'a mut [u8] {
    bytes.split_off_mut(..count).expect("there are as many")
}

/// Writes a piece of each row, from byte `at` of it on, one row behind the other.
#[inline(always)]
fn write_rows<E: Element, const N: usize>(
    rows: [&[<ScalarOf<E> as Number>::Word]; N],
    v: &[u8],
    stride: usize,
    at: usize,
    out: &mut [u8],
) where
    ScalarOf<E>: Number,
{
    let bytes = out.len() / N;
    let mut done = 0;
    while bytes - done >= E::BYTES {
        let sums = sum::<E, N>(rows, |rank| E::load(&v[rank * stride + at + done..]));
        for (row, sum) in sums.into_iter().enumerate() {
            E::store(sum, &mut out[row * bytes + done..][..E::BYTES]);
        }
        done += E::BYTES;
    }
    if done < bytes {
        // Numbers of the next row of `v` may be summed as well, for nothing.
        let left = bytes - done;
        let sums = sum::<E, N>(rows, |rank| {
            let first = rank * stride + at + done;
            load::<E>(v, first..first + left)
        });
        for (row, sum) in sums.into_iter().enumerate() {
            let mut padded = [0; TAIL];
            E::store(sum, &mut padded);
            out[row * bytes + done..][..left].copy_from_slice(&padded[..left]);
        }
    }
}

/// A vector that begins with these bytes, behind which anything may stand.
#[inline(always)]
fn load<E: Element>(v: &[u8], range: Range<usize>) -> E::Vector {
    match v.get(range.start..range.start + E::BYTES) {
        Some(whole) => E::load(whole),
        None => {
            let mut padded = [0; TAIL];
            padded[..range.len()].copy_from_slice(&v[range]);
            E::load(&padded)
        }
    }
}

/// Of each row the numbers in the columns of a vector, which `load` gives of each row of `v`.
#[inline(always)]
fn sum<E: Element, const N: usize>(
    rows: [&[<ScalarOf<E> as Number>::Word]; N],
    load: impl Fn(usize) -> E::Vector,
) -> [E::Vector; N]
where
    ScalarOf<E>: Number,
{
    let mut sums = [E::Vector::splat(ScalarOf::<E>::of_narrow(0.0)); N];
    for rank in 0..rows[0].len() {
        let vector = load(rank);
        for (sum, row) in sums.iter_mut().zip(rows) {
            *sum = sum.add(E::Vector::splat(ScalarOf::<E>::read(row[rank])).mul(vector));
        }
    }
    sums
}
