//! A worker's own arithmetic on its lane: adding a second contribution, and looking for numbers that will be refused.
//!
//! Speed of light: `accumulate` moves three times its length, `first_nonfinite` once.

use std::marker::PhantomData;

use crate::arch::{self, Arch, Dispatch};
use crate::arch::{Isa, Kernel};
use crate::vector::{Element, TAIL, Vector};
use crate::{Dtype, Foreign, ForeignMut};

/// `dst += src`, element by element in `dtype` (half precision through f32, rounded once). Any alignment will do.
///
/// # Panics
///
/// If the lengths differ or hold no whole number of elements.
pub fn accumulate(dtype: Dtype, dst: &mut [u8], src: &[u8]) {
    accumulate_into(dtype, &mut ForeignMut::of(dst), Foreign::of(src));
}

/// [`accumulate`] with the variant `arch`; `None`, with nothing done, where this machine lacks it.
pub fn accumulate_on(arch: Arch, dtype: Dtype, dst: &mut [u8], src: &[u8]) -> Option<()> {
    let mut dst = ForeignMut::of(dst);
    arch::compute_on(arch, Accumulate::into_itself(dtype, &mut dst, Foreign::of(src)))
}

/// [`accumulate`] where others may look at `dst` or write `src` meanwhile. The two may be one.
///
/// # Panics
///
/// As [`accumulate`].
pub fn accumulate_into(dtype: Dtype, dst: &mut ForeignMut<'_>, src: Foreign<'_>) {
    arch::compute_on_best(Accumulate::into_itself(dtype, dst, src));
}

/// `dst = a + b`, likewise.
///
/// # Panics
///
/// As [`accumulate`].
pub fn add_into(dtype: Dtype, dst: &mut ForeignMut<'_>, a: Foreign<'_>, b: Foreign<'_>) {
    arch::compute_on_best(Accumulate { dtype, dst: dst.part(0..dst.len()), a: Some(a), b });
}

/// Index of the first element that is NaN or infinite. Any alignment will do.
///
/// # Panics
///
/// If `data` holds no whole number of elements.
pub fn first_nonfinite(dtype: Dtype, data: Foreign<'_>) -> Option<usize> {
    arch::on_best(FirstNonFinite { dtype, data })
}

/// [`first_nonfinite`] with the variant `arch`; the outer `None` where this machine lacks it.
pub fn first_nonfinite_on(arch: Arch, dtype: Dtype, data: &[u8]) -> Option<Option<usize>> {
    arch::on(arch, FirstNonFinite { dtype, data: Foreign::of(data) })
}

struct Accumulate<'a> {
    dtype: Dtype,
    dst: ForeignMut<'a>,
    /// `None`: what stands in `dst`.
    a: Option<Foreign<'a>>,
    b: Foreign<'a>,
}

impl<'a> Accumulate<'a> {
    fn into_itself(dtype: Dtype, dst: &'a mut ForeignMut<'_>, src: Foreign<'a>) -> Self {
        let bytes = dst.len();
        Self { dtype, dst: dst.part(0..bytes), a: None, b: src }
    }
}

impl Dispatch for Accumulate<'_> {
    type Output = ();

    fn on<I: Isa>(self, isa: I) {
        let Self { dtype, dst, a, b } = self;
        assert_eq!(dst.len(), b.len(), "a contribution is as long as the lane it is added to");
        assert!(a.is_none_or(|a| a.len() == dst.len()), "a sum is as long as what it is of");
        assert_eq!(dst.len() % dtype.size(), 0, "a lane holds whole elements");
        match dtype {
            Dtype::F32 => isa.run(AccumulateOn::<I::F32> { dst, a, b, element: PhantomData }),
            Dtype::F64 => isa.run(AccumulateOn::<I::F64> { dst, a, b, element: PhantomData }),
            Dtype::F16 => isa.run(AccumulateOn::<I::F16> { dst, a, b, element: PhantomData }),
            Dtype::Bf16 => isa.run(AccumulateOn::<I::Bf16> { dst, a, b, element: PhantomData }),
        }
    }
}

struct AccumulateOn<'a, E> {
    dst: ForeignMut<'a>,
    a: Option<Foreign<'a>>,
    b: Foreign<'a>,
    element: PhantomData<E>,
}

impl<E: Element> Kernel for AccumulateOn<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { mut dst, a, b, .. } = self;
        let mut at = 0;
        while dst.len() - at >= E::BYTES {
            let a = E::load_foreign(&a.unwrap_or(dst.as_foreign()), at);
            E::store_foreign(a.add(E::load_foreign(&b, at)), &mut dst, at);
            at += E::BYTES;
        }
        let bytes = dst.len() - at;
        if bytes > 0 {
            let a = padded(&a.unwrap_or(dst.as_foreign()), at);
            let mut sum = [0; TAIL];
            E::store(E::load(&a).add(E::load(&padded(&b, at))), &mut sum);
            dst.store_words(at, &sum[..bytes]);
        }
    }
}

/// What is left from byte `at` on, less than a vector's worth of elements, with zeros behind.
#[inline(always)]
pub(crate) fn padded(bytes: &Foreign<'_>, at: usize) -> [u8; TAIL] {
    let mut out = [0; TAIL];
    bytes.copy_words(at, &mut out[..bytes.len() - at]);
    out
}

struct FirstNonFinite<'a> {
    dtype: Dtype,
    data: Foreign<'a>,
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
    data: Foreign<'a>,
    element: PhantomData<E>,
}

impl<E: Element> Kernel for FirstNonFiniteOn<'_, E> {
    type Output = Option<usize>;

    #[inline(always)]
    fn run(self) -> Option<usize> {
        let Self { data, .. } = self;
        let mut at = 0;
        while data.len() - at >= E::BYTES {
            // Another writer may meanwhile have made it finite again when it is looked at closely.
            if !E::load_foreign(&data, at).is_finite()
                && let Some(index) = within::<E>(&data.part(at..at + E::BYTES))
            {
                return Some(at / E::SIZE + index);
            }
            at += E::BYTES;
        }
        within::<E>(&data.part(at..data.len())).map(|index| at / E::SIZE + index)
    }
}

/// One element after the other: only where there is something to find, and in the tail.
fn within<E: Element>(block: &Foreign<'_>) -> Option<usize> {
    let mut copy = [0; TAIL];
    let copy = &mut copy[..block.len()];
    block.copy_words(0, copy);
    let finite = |element: &[u8]| {
        let mut padded = [0; TAIL];
        padded[..element.len()].copy_from_slice(element);
        E::load(&padded).is_finite()
    };
    copy.chunks_exact(E::SIZE).position(|element| !finite(element))
}
