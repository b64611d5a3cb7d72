//! Arithmetic over one chunk: its lanes summed in rank order and given to an optimizer, in one pass.
//!
//! No I/O, no allocation, no lock, no thread: slices in, slices out. What every caller may rely on:
//!
//! - **Same bits everywhere.** Sums go in rank order; every operation is one IEEE operation in the order written, never
//!   fused, never reassociated. So the variants for AVX-512, AVX2 and everything else agree bit for bit, which the tests
//!   check against an oracle of a few lines a rule. (Where several NaNs meet, which payload survives is not promised.)
//! - **Lanes may be written while they are read.** See [`Foreign`]: no reference ever covers them.
//! - **State is the dtype's accumulator**: float64 for float64, float32 for all else. Half precision is rounded once.
//!
//! # Speed of light, and how near we are
//!
//! A fold of N lanes of B bytes with S state slots cannot move less than (N + 2 + 2 S) B bytes. Medians on two shared
//! cores of an EPYC (Zen 4), 32 KiB chunks of float32 under SGD, `cargo bench -p penstock-kernels -- sgd/float32`:
//!
//! @@TABLE@@
//!
//! # Decisions
//!
//! - **Lanes are read by vector loads in inline assembly**, four cache lines of one lane at a time, straight into the
//!   registers that sum them. A `&[f32]` would promise that the lane stands still; relaxed atomics are defined but are
//!   not vectorized (row "generic"); a copy of 4 KiB a lane into L1 first (row "scratch") costs @@SCRATCH@@.
//! - **One generic body** over a small vector trait; each instruction set supplies registers and conversions only, and one
//!   function with the feature enabled into which everything inlines. Special paths for single rules were not needed.
//! - **Tails are padded** with zeros into one vector and take the same path: one body, the same bits.
//! - **Refusing NaN is check, then fold**, not copy, then fold: the check reads all lanes once more (from cache) and needs
//!   no scratch. Lanes that change in between are caught by the fold itself, which takes 0 for a sum that is not finite:
//!   an honest lane never changes there, and a hostile one could have sent that 0.
//!
//! Where we lose: hot bfloat16 takes @@BF16@@ (widening, and rounding without the flush of
//! denormals that `vcvtneps2bf16` brings); hot Adam waits for two divisions and a root an element. Cold, both hide behind memory.

mod accumulate;
mod arch;
mod dtype;
mod fold;
mod foreign;
#[cfg(test)]
mod naive;
mod optimizer;
mod sweep;
#[cfg(test)]
mod tests;
mod vector;

pub use accumulate::{accumulate, accumulate_on, first_nonfinite, first_nonfinite_on};
pub use arch::Arch;
pub use dtype::Dtype;
pub use fold::{NonFinite, Plan, cpu_features, fold, fold_on};
pub use foreign::{ALIGNMENT, Foreign};
pub use optimizer::{Rule, Settings, SettingsError};
