//! Fold: the lanes of one chunk summed in rank order and given to its rule, in one pass.
//!
//! Speed of light, for N lanes of B bytes and S state slots: memory moves (N + 2 + 2 S) B bytes (each lane read, value and
//! state read and written), nothing else. Arithmetic hides behind it, but for half precision and Adam in a hot cache: the
//! crate's header has the figures.

use std::marker::PhantomData;

use crate::arch::Isa;
use crate::arch::{self, Arch, Dispatch};
use crate::foreign::ALIGNMENT;
use crate::optimizer::{Moment, Runs, Update};
use crate::sweep::{Check, Gather, Sweep};
use crate::vector::Element;
use crate::{Dtype, Foreign, Rule, Settings};

/// What a tensor's chunks do with their lanes; fixed when the tensor is declared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// Type of the elements.
    pub dtype: Dtype,
    /// The update rule.
    pub rule: Rule,
    /// Clips every element of the scaled sum to `[-clip, clip]`; at least 0.
    pub clip: Option<f64>,
    /// Refuses lanes whose scaled sum is not finite everywhere.
    ///
    /// The whole chunk is checked before anything changes. A lane that its worker rewrites between the check and the
    /// sum harms only what it could have sent anyway: where the sum is then not finite, it counts as zero. What the rule
    /// makes of finite sums may still overflow (a huge learning rate), as it would in one process.
    pub refuse_nonfinite: bool,
}

/// A fold was refused because the sum of its lanes holds NaN or Inf. Value and state are as they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected finite numbers, but the sum stopped being finite with lane {lane}")]
pub struct NonFinite {
    /// The first lane, in rank order, with which the sum was no longer finite.
    pub lane: usize,
}

/// Sums the lanes in rank order, `g = ((l0 + l1) + l2 ...) * scale`, clips, and applies the rule to `value` and `state`.
///
/// - `value`: the chunk's elements. `state`: the rule's [slots](Rule::slots) one after the other, each with one
///   accumulator for each element. Both start 64-byte aligned.
/// - `step`: optimizer steps this chunk took before, 0 at first. `scale`: 1 for a sum, 1/N for a mean.
/// - `lanes`: at least one, each as long as `value`. They may be written while this runs.
///
/// The same inputs give the same bits on every machine. Half precision is widened, computed in f32, and rounded once.
///
/// # Errors
///
/// [`NonFinite`], only where the plan refuses such sums; value and state are as they were.
///
/// # Panics
///
/// If lengths or alignments are not as above: the caller laid the chunk out.
pub fn fold(
    plan: &Plan,
    settings: &Settings,
    step: u64,
    scale: f64,
    lanes: &[Foreign<'_>],
    value: &mut [u8],
    state: &mut [u8],
) -> Result<(), NonFinite> {
    arch::compute_on_best(Fold { plan, moment: Moment { settings, step }, scale, lanes, value, state })
}

/// [`fold`] with the variant `arch`; `None`, with nothing done, where this machine lacks it. For tests and benchmarks.
#[expect(clippy::too_many_arguments, reason = "those of `fold`, and which variant")]
pub fn fold_on(
    arch: Arch,
    plan: &Plan,
    settings: &Settings,
    step: u64,
    scale: f64,
    lanes: &[Foreign<'_>],
    value: &mut [u8],
    state: &mut [u8],
) -> Option<Result<(), NonFinite>> {
    arch::compute_on(arch, Fold { plan, moment: Moment { settings, step }, scale, lanes, value, state })
}

/// Which variant [`fold`] runs on this machine: "avx512", "avx2" or "generic".
pub fn cpu_features() -> &'static str {
    Arch::best().name()
}

struct Fold<'a> {
    plan: &'a Plan,
    moment: Moment<'a>,
    scale: f64,
    lanes: &'a [Foreign<'a>],
    value: &'a mut [u8],
    state: &'a mut [u8],
}

impl Fold<'_> {
    fn assert_layout(&self) {
        let Plan { dtype, rule, .. } = self.plan;
        let elements = self.value.len() / dtype.size();
        assert_eq!(self.value.len() % dtype.size(), 0, "a chunk holds whole elements");
        assert!(starts_aligned(self.value), "a value must start on a cache line");
        let state = rule.slots().count() * elements * dtype.accumulator_size();
        assert_eq!(self.state.len(), state, "a chunk's state has an accumulator per slot and element");
        assert!(starts_aligned(self.state), "a state must start on a cache line");
        assert!(!self.lanes.is_empty(), "a fold has at least one lane");
        assert!(
            self.lanes.iter().all(|lane| lane.len() == self.value.len()),
            "a lane is as long as its chunk"
        );
        assert!(self.lanes.iter().all(Foreign::is_aligned), "a lane must start on a cache line");
    }
}

fn starts_aligned(bytes: &[u8]) -> bool {
    bytes.is_empty() || (bytes.as_ptr() as usize).is_multiple_of(ALIGNMENT)
}

impl Dispatch for Fold<'_> {
    type Output = Result<(), NonFinite>;

    fn on<I: Isa>(self, isa: I) -> Result<(), NonFinite> {
        self.assert_layout();
        match self.plan.dtype {
            Dtype::F32 => self.with_element::<I, I::F32>(isa),
            Dtype::F64 => self.with_element::<I, I::F64>(isa),
            Dtype::F16 => self.with_element::<I, I::F16>(isa),
            Dtype::Bf16 => self.with_element::<I, I::Bf16>(isa),
        }
    }
}

impl Fold<'_> {
    fn with_element<I: Isa, E: Element>(self, isa: I) -> Result<(), NonFinite> {
        let Plan { rule, clip, refuse_nonfinite: refuse, .. } = *self.plan;
        let gather = Gather::new(self.lanes, self.scale, clip, refuse);
        if refuse {
            let check = Check::<E> { gather, bytes: self.value.len(), element: PhantomData };
            if let Some(lane) = isa.run(check) {
                return Err(NonFinite { lane });
            }
        }
        let run = Run { isa, gather, value: self.value, state: self.state, element: PhantomData::<E> };
        rule.run(self.moment, run);
        Ok(())
    }
}

type GatherOf<'a, E> = Gather<'a, crate::sweep::ScalarOf<E>>;

struct Run<'a, I, E: Element> {
    isa: I,
    gather: GatherOf<'a, E>,
    value: &'a mut [u8],
    state: &'a mut [u8],
    element: PhantomData<E>,
}

impl<I: Isa, E: Element> Runs<E::Vector> for Run<'_, I, E> {
    fn run<R: Update<E::Vector>>(self, rule: R) {
        let Self { isa, gather, value, state, .. } = self;
        isa.run(Sweep::<E, R> { gather, rule, value, state });
    }
}
