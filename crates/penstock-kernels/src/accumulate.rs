//! A worker's own arithmetic on its lane: adding a second contribution, and looking for numbers that will be refused.
//!
//! Speed of light: `accumulate` moves three times its length, `first_nonfinite` once.

use std::marker::PhantomData;

use crate::Dtype;
use crate::arch::{self, Arch, Dispatch};
use crate::vector::{Element, Isa, Kernel, TAIL, Vector};

/// `dst += src`, element by element in `dtype` (half precision through f32, rounded once). Any alignment will do.
///
/// # Panics
///
/// If the lengths differ or hold no whole number of elements.
pub fn accumulate(dtype: Dtype, dst: &mut [u8], src: &[u8]) {
    arch::on_best(Accumulate { dtype, dst, src });
}

/// [`accumulate`] with the variant `arch`; `None`, with nothing done, where this machine lacks it.
pub fn accumulate_on(arch: Arch, dtype: Dtype, dst: &mut [u8], src: &[u8]) -> Option<()> {
    arch::on(arch, Accumulate { dtype, dst, src })
}

/// Index of the first element that is NaN or infinite. Any alignment will do.
///
/// # Panics
///
/// If `data` holds no whole number of elements.
pub fn first_nonfinite(dtype: Dtype, data: &[u8]) -> Option<usize> {
    arch::on_best(FirstNonFinite { dtype, data })
}

/// [`first_nonfinite`] with the variant `arch`; the outer `None` where this machine lacks it.
pub fn first_nonfinite_on(arch: Arch, dtype: Dtype, data: &[u8]) -> Option<Option<usize>> {
    arch::on(arch, FirstNonFinite { dtype, data })
}

struct Accumulate<'a> {
    dtype: Dtype,
    dst: &'a mut [u8],
    src: &'a [u8],
}

impl Dispatch for Accumulate<'_> {
    type Output = ();

    fn on<I: Isa>(self, isa: I) {
        let Self { dtype, dst, src } = self;
        assert_eq!(dst.len(), src.len(), "a contribution is as long as the lane it is added to");
        assert_eq!(dst.len() % dtype.size(), 0, "a lane holds whole elements");
        match dtype {
            Dtype::F32 => isa.run(AccumulateOn::<I::F32> { dst, src, element: PhantomData }),
            Dtype::F64 => isa.run(AccumulateOn::<I::F64> { dst, src, element: PhantomData }),
            Dtype::F16 => isa.run(AccumulateOn::<I::F16> { dst, src, element: PhantomData }),
            Dtype::Bf16 => isa.run(AccumulateOn::<I::Bf16> { dst, src, element: PhantomData }),
        }
    }
}

struct AccumulateOn<'a, E> {
    dst: &'a mut [u8],
    src: &'a [u8],
    element: PhantomData<E>,
}

impl<E: Element> Kernel for AccumulateOn<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let mut to = self.dst.chunks_exact_mut(E::BYTES);
        let mut from = self.src.chunks_exact(E::BYTES);
        for (to, from) in (&mut to).zip(&mut from) {
            E::store(E::load(to).add(E::load(from)), to);
        }
        let (to, from) = (to.into_remainder(), from.remainder());
        let mut sum = padded(to);
        E::store(E::load(&sum).add(E::load(&padded(from))), &mut sum);
        to.copy_from_slice(&sum[..to.len()]);
    }
}

/// Less than a vector's worth of elements, with zeros behind.
#[inline(always)]
fn padded(bytes: &[u8]) -> [u8; TAIL] {
    let mut out = [0; TAIL];
    out[..bytes.len()].copy_from_slice(bytes);
    out
}

struct FirstNonFinite<'a> {
    dtype: Dtype,
    data: &'a [u8],
}

impl Dispatch for FirstNonFinite<'_> {
    type Output = Option<usize>;

    fn on<I: Isa>(self, isa: I) -> Option<usize> {
        let Self { dtype, data } = self;
        assert_eq!(data.len() % dtype.size(), 0, "data holds whole elements");
        match dtype {
            Dtype::F32 => isa.run(FirstNonFiniteOn::<I::F32> { data, element: PhantomData }),
            Dtype::F64 => isa.run(FirstNonFiniteOn::<I::F64> { data, element: PhantomData }),
            Dtype::F16 => isa.run(FirstNonFiniteOn::<I::F16> { data, element: PhantomData }),
            Dtype::Bf16 => isa.run(FirstNonFiniteOn::<I::Bf16> { data, element: PhantomData }),
        }
    }
}

struct FirstNonFiniteOn<'a, E> {
    data: &'a [u8],
    element: PhantomData<E>,
}

impl<E: Element> Kernel for FirstNonFiniteOn<'_, E> {
    type Output = Option<usize>;

    #[inline(always)]
    fn run(self) -> Option<usize> {
        let mut blocks = self.data.chunks_exact(E::BYTES);
        let mut before = 0;
        for block in &mut blocks {
            if !E::load(block).is_finite() {
                return within::<E>(block).map(|index| before + index);
            }
            before += <E::Vector as Vector>::LANES;
        }
        within::<E>(blocks.remainder()).map(|index| before + index)
    }
}

/// One element after the other: only where there is something to find, and in the tail.
fn within<E: Element>(block: &[u8]) -> Option<usize> {
    block.chunks_exact(E::SIZE).position(|element| !E::load(&padded(element)).is_finite())
}
