//! Instruction sets: which there are, which this machine has, and the only module that hands them out.
//!
//! `generic` is portable Rust; the others hold the crate's intrinsics and vector assembly, but for those of plain
//! copies (`foreign/copy.rs`, `past_cache.rs`). A token such as `Avx512`
//! exists only where the processor has what it names, so running with it needs no further check.

use crate::control_word::settled;
use crate::vector::{Element, Words};

pub(crate) mod generic;
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) mod x86_64;

// Elements are read from bytes as little-endian numbers and handed to NumPy as native ones.
const _: () = assert!(cfg!(target_endian = "little"), "penstock runs on little-endian machines only");

/// A variant of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    /// Portable Rust.
    Generic,
    /// x86-64 with AVX2, F16C, and what counts bits.
    Avx2,
    /// x86-64 with AVX-512F, and what counts bits.
    Avx512,
}

impl Arch {
    /// Every variant, slowest first.
    pub const ALL: [Self; 3] = [Self::Generic, Self::Avx2, Self::Avx512];

    /// The fastest variant that this machine has.
    pub fn best() -> Self {
        on_best(Name)
    }

    /// Whether this machine has it.
    pub fn is_available(self) -> bool {
        on(self, Name) == Some(self)
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Generic => "generic",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

/// A loop over a chunk. Its `run` is inlined into the function that enables the instruction set.
pub(crate) trait Kernel {
    type Output;
    fn run(self) -> Self::Output;
}

/// An instruction set that this machine is known to have: code that holds one may run with it.
pub(crate) trait Isa: Copy {
    /// Its name.
    const ARCH: Arch;
    type F32: Element;
    type F64: Element;
    type F16: Element;
    type Bf16: Element;
    type Words2: Words;
    type Words4: Words;
    type Words8: Words;

    fn run<K: Kernel>(self, kernel: K) -> K::Output;
}

/// Work that can be done with any instruction set.
pub(crate) trait Dispatch: Sized {
    type Output;
    fn on<I: Isa>(self, isa: I) -> Self::Output;
}

/// Does the work with the fastest instruction set there is. Detection is cached by the standard library: a load and a test.
/// With `--cfg penstock_portable`, and under Miri, the portable variant is used: tools that check memory cannot see into
/// assembly.
pub(crate) fn on_best<D: Dispatch>(work: D) -> D::Output {
    #[cfg(all(target_arch = "x86_64", not(any(miri, penstock_portable))))]
    {
        if let Some(isa) = x86_64::avx512::Avx512::detect() {
            return work.on(isa);
        }
        if let Some(isa) = x86_64::avx2::Avx2::detect() {
            return work.on(isa);
        }
    }
    work.on(generic::Generic)
}

/// Does the work with `arch`, or nothing where the machine lacks it.
pub(crate) fn on<D: Dispatch>(arch: Arch, work: D) -> Option<D::Output> {
    match arch {
        Arch::Generic => Some(work.on(generic::Generic)),
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        Arch::Avx2 => x86_64::avx2::Avx2::detect().map(|isa| work.on(isa)),
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        Arch::Avx512 => x86_64::avx512::Avx512::detect().map(|isa| work.on(isa)),
        #[cfg(any(miri, not(target_arch = "x86_64")))]
        Arch::Avx2 | Arch::Avx512 => None,
    }
}

/// [`on_best`] for work that computes: under the default control word.
pub(crate) fn compute_on_best<D: Dispatch>(work: D) -> D::Output {
    settled(|| on_best(work))
}

/// [`on`], likewise.
pub(crate) fn compute_on<D: Dispatch>(arch: Arch, work: D) -> Option<D::Output> {
    settled(|| on(arch, work))
}

struct Name;

impl Dispatch for Name {
    type Output = Arch;

    fn on<I: Isa>(self, _: I) -> Arch {
        I::ARCH
    }
}
