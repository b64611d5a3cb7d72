//! AVX2 with F16C: two registers of 32 bytes a vector.

mod element;
mod vector;

use crate::arch::Arch;
use crate::arch::{Isa, Kernel};

/// Proof that this processor has AVX2 and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// The proof, if the processor has them.
    #[inline]
    pub(crate) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")).then_some(Self(()))
    }
}

impl Isa for Avx2 {
    const ARCH: Arch = Arch::Avx2;
    type F32 = element::F32;
    type F64 = element::F64;
    type F16 = element::F16;
    type Bf16 = element::Bf16;

    #[inline]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: `detect`, which alone makes the token, found both features.
        unsafe { enabled(kernel) }
    }
}

#[target_feature(enable = "avx2,f16c")]
fn enabled<K: Kernel>(kernel: K) -> K::Output {
    kernel.run()
}
