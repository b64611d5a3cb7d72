//! Products of two thin matrices: contributions of low rank, given as their factors.
//!
//! An element is `((0 + u0 * v0) + u1 * v1) + ...`, in the accumulator, each product and each sum rounded, and once more to the
//! dtype where that is narrower. So it does not matter who multiplies, nor how the product is cut into pieces: the bits are the same.
//!
//! Speed of light: a multiplication and an addition for each element and rank. A tile of a few vectors stays in registers while
//! the rows of `v` go by, which are read once for each row of the product, from a near cache where they fit one.

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

/// Vectors of a row that are summed at a time: the additions of one do not wait for those of another.
const TILE: usize = 2;

impl<E: Element> Kernel for ProductOn<'_, E>
where
    ScalarOf<E>: Number,
{
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { factors: Factors { u, v, columns, rank }, mut column, mut out, .. } = self;
        let mut rows = ScalarOf::<E>::words(u).chunks_exact(rank.max(1));
        while !out.is_empty() {
            // Without a rank there are no rows, and all is 0.
            let row = rows.next().unwrap_or_default();
            let bytes = out.len().min((columns - column) * E::SIZE);
            let (piece, rest) = std::mem::take(&mut out).split_at_mut(bytes);
            write_row::<E>(row, v, columns * E::SIZE, column * E::SIZE, piece);
            (out, column) = (rest, 0);
        }
    }
}

/// Writes a piece of one row, from byte `at` of it on.
#[inline(always)]
fn write_row<E: Element>(
    row: &[<ScalarOf<E> as Number>::Word],
    v: &[u8],
    stride: usize,
    mut at: usize,
    mut out: &mut [u8],
) where
    ScalarOf<E>: Number,
{
    while out.len() >= TILE * E::BYTES {
        let (tile, rest) = std::mem::take(&mut out).split_at_mut(TILE * E::BYTES);
        let sums = sum::<E, TILE>(row, |rank, vector| E::load(&v[rank * stride + at + vector * E::BYTES..]));
        for (sum, out) in sums.into_iter().zip(tile.chunks_exact_mut(E::BYTES)) {
            E::store(sum, out);
        }
        (out, at) = (rest, at + TILE * E::BYTES);
    }
    while out.len() >= E::BYTES {
        let (vector, rest) = std::mem::take(&mut out).split_at_mut(E::BYTES);
        let [sum] = sum::<E, 1>(row, |rank, _| E::load(&v[rank * stride + at..]));
        E::store(sum, vector);
        (out, at) = (rest, at + E::BYTES);
    }
    if !out.is_empty() {
        // Numbers of the next row may be summed as well, for nothing.
        let [sum] =
            sum::<E, 1>(row, |rank, _| load::<E>(v, rank * stride + at..rank * stride + at + out.len()));
        let mut padded = [0; TAIL];
        E::store(sum, &mut padded);
        out.copy_from_slice(&padded[..out.len()]);
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

#[inline(always)]
fn sum<E: Element, const N: usize>(
    row: &[<ScalarOf<E> as Number>::Word],
    load: impl Fn(usize, usize) -> E::Vector,
) -> [E::Vector; N]
where
    ScalarOf<E>: Number,
{
    let mut sums = [E::Vector::splat(ScalarOf::<E>::of_narrow(0.0)); N];
    for (rank, word) in row.iter().enumerate() {
        let factor = E::Vector::splat(ScalarOf::<E>::read(*word));
        for (vector, sum) in sums.iter_mut().enumerate() {
            *sum = sum.add(factor.mul(load(rank, vector)));
        }
    }
    sums
}
