//! Portable Rust: arrays that the compiler may vectorize for whatever the target always has.

mod element;
mod vector;
mod words;

use crate::arch::Arch;
use crate::arch::{Isa, Kernel};

/// Every machine has it.
#[derive(Clone, Copy)]
pub(crate) struct Generic;

impl Isa for Generic {
    const ARCH: Arch = Arch::Generic;
    type F32 = element::F32;
    type F64 = element::F64;
    type F16 = element::F16;
    type Bf16 = element::Bf16;
    type Words2 = words::Words2;
    type Words4 = words::Words4;
    type Words8 = words::Words8;

    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run()
    }
}
