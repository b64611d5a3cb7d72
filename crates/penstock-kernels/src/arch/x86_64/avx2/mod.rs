//! AVX2 with F16C, and what counts bits: two registers of 32 bytes a vector.

mod element;
mod vector;
mod words;

use crate::arch::Arch;
use crate::arch::x86_64::counts_bits;
use crate::arch::{Isa, Kernel};

/// Proof that this processor has AVX2, F16C, and what counts bits.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// The proof, if the processor has them.
    #[inline]
    pub(crate) fn detect() -> Option<Self> {
        let vectors = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c");
        (vectors && counts_bits()).then_some(Self(()))
    }
}

impl Isa for Avx2 {
    const ARCH: Arch = Arch::Avx2;
    type F32 = element::F32;
    type F64 = element::F64;
    type F16 = element::F16;
    type Bf16 = element::Bf16;
    type Words2 = words::Words2;
    type Words4 = words::Words4;
    type Words8 = words::Words8;

    #[inline]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: `detect`, which alone makes the token, found all of them.
        unsafe { enabled(kernel) }
    }
}

#[target_feature(enable = "avx2,f16c,bmi1,lzcnt,popcnt")]
fn enabled<K: Kernel>(kernel: K) -> K::Output {
    kernel.run()
}
