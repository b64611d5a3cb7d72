//! Arithmetic over one chunk: its lanes summed in rank order and given to an optimizer, in one pass. And what of it travels
//! between hosts: what now and what later ([`filter`]), in which bytes ([`codec`]).
//!
//! No I/O, no allocation, no lock, no thread: slices in, slices out. What every caller may rely on:
//!
//! - **Same bits everywhere.** Sums go in rank order; every operation is one IEEE operation in the order written, never fused,
//!   never reassociated. So the variants for AVX-512, AVX2 and everything else agree bit for bit, which the tests check against
//!   an oracle of a few lines a rule. The calling thread's control word has no effect (`control_word.rs`), and no function of
//!   the system's mathematical library is called. (Where several NaNs meet, which payload survives is not promised.)
//! - **Lanes may be written while they are read.** See [`Foreign`] and [`ForeignMut`]: no reference ever covers them.
//! - **State is the dtype's accumulator**: float64 for float64, float32 for all else. Half precision is rounded once.
//!
//! # Speed of light, and how near we are
//!
//! A fold of N lanes of B bytes with S state slots cannot move less than (N + 2 + 2 S) B bytes. Float32 under SGD in
//! chunks of 32 KiB, by `cargo bench -p penstock-kernels -- sgd/float32`, on two cores of an EPYC (Zen 4) that were busy
//! with other work: each figure is the least of three to five medians, which scattered by up to a factor of two, so
//! differences below some 10 % mean nothing. (The generic variant ran cold only beside heavy load: no figure.)
//!
//! | lanes | fold (AVX-512) | the same loop over ordinary `&[f32]` | `copy_from_slice` of each lane | scratch | generic |
//! |---|---|---|---|---|---|
//! | 1, hot | 0.70 us | 0.66 us | 0.58 us | 0.89 us | 2.8 us |
//! | 2, hot | 0.88 us | 0.87 us | 1.17 us | 1.57 us | 4.8 us |
//! | 4, hot | 1.53 us | 1.53 us | 2.34 us | 3.35 us | 8.3 us |
//! | 8, hot | 2.66 us | 2.79 us | 4.68 us | 7.82 us | 17 us |
//! | 1, 64 MiB cold | 3.6 ms | 3.4 ms | 3.3 ms | 4.5 ms | - |
//! | 2, 64 MiB cold | 8.3 ms | 8.2 ms | 8.5 ms | 10 ms | - |
//! | 4, 64 MiB cold | 12 ms | 13 ms | 16 ms | 31 ms | - |
//! | 8, 64 MiB cold | 21 ms | 22 ms | 33 ms | 66 ms | - |
//!
//! # Decisions
//!
//! - **Lanes are read by vector loads in inline assembly**, four cache lines of one lane at a time, straight into the
//!   registers that sum them. A `&[f32]` would promise that the lane stands still; relaxed atomics are defined but are
//!   not vectorized (column "generic"); a copy of 4 KiB a lane into L1 first (column "scratch") takes 1.2 to 3.2 times as
//!   long, the more lanes the longer.
//! - **One generic body** over a small vector trait; each instruction set supplies registers and conversions only, and one
//!   function with the feature enabled into which everything inlines. Special paths for single rules were not needed.
//! - **Tails are padded** with zeros into one vector and take the same path: one body, the same bits.
//! - **Refusing NaN is check, then fold**, not copy, then fold: each lane is read twice, the second time from cache where
//!   the chunk's lanes fit it, and no scratch is needed (its cost was not measured). Lanes that change in between are
//!   caught by the fold itself, which takes 0 for a sum that is not finite: an honest lane never changes there, and a
//!   hostile one could have sent that 0.
//!
//! Where we lose: bfloat16 (widening, and rounding without the flush of denormals that `vcvtneps2bf16` brings) takes 4.4
//! times (1 lane) to 1.5 times (8 lanes) the copy when hot, and 1.6 times with one lane when cold; from two cold lanes on it
//! is level or faster. Hot Adam takes 2.0 times the copy with one lane: two divisions and a root an element.
//!
//! ```
//! use penstock_kernels::{Dtype, Foreign, Plan, Rule, Settings, fold};
//!
//! #[repr(align(64))]
//! struct Chunk([u8; 4]);
//!
//! let plan = Plan {
//!     dtype: Dtype::F32,
//!     rule: Rule::Sgd { momentum: false, nesterov: false, maximize: false },
//!     clip: None,
//!     refuse_nonfinite: true,
//! };
//! let settings = Settings([0.5, 0.0, 0.0, 0.0, 0.0]);
//! settings.check(plan.rule)?;
//!
//! let (one, three) = (Chunk(1_f32.to_le_bytes()), Chunk(3_f32.to_le_bytes()));
//! let mut value = Chunk(10_f32.to_le_bytes());
//! fold(&plan, &settings, 0, 1.0, &[Foreign::of(&one.0), Foreign::of(&three.0)], &mut value.0, &mut [])?;
//! assert_eq!(f32::from_le_bytes(value.0), 10.0 - 0.5 * (1.0 + 3.0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod accumulate;
mod arch;
mod blocks;
pub mod codec;
pub mod compress;
mod control_word;
mod dtype;
pub mod filter;
mod fold;
mod foreign;
mod moves;
mod number;
mod optimizer;
mod past_cache;
mod product;
mod round;
mod scatter;
mod summed;
mod sweep;
#[cfg(test)]
mod tests;
mod vector;

pub use accumulate::{
    accumulate, accumulate_into, accumulate_on, add_into, first_nonfinite, first_nonfinite_on,
};
pub use arch::Arch;
pub use control_word::{settle_this_thread, settled};
pub use dtype::Dtype;
pub use fold::{NonFinite, Plan, cpu_features, fold, fold_on};
pub use foreign::{ALIGNMENT, Foreign, ForeignMut};
pub use optimizer::{Bound, Flag, Flags, RULES, Row, Rule, Setting, Settings, SettingsError, Slot};
pub use past_cache::copy_past_cache;
pub use product::{Factors, product, product_on, widen};
pub use scatter::scatter_add;
pub use summed::{SumRoom, apply, fold_summed, sum_lanes, sums_exactly};
