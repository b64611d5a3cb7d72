//! A fold in two steps: the sum of the lanes, and what the rule makes of it. Whoever has value and state as they were, and is given
//! the sum, takes the second step for itself, and comes to the same bits (parameter-flow.md, equation 4: both kinds of nodes apply
//! F to the aggregated update).
//!
//! Bytes of a chunk of B bytes under N lanes and S slots: N + 3 + 2 S times B, one B more than [`fold`] in one step, which a chunk's
//! length in the nearest caches hides.

use crate::foreign::ALIGNMENT;
use crate::{Dtype, Foreign, NonFinite, Plan, Rule, Settings, fold};

/// Room for one chunk's sum, used again and again: it starts on a cache line, as a lane has to.
#[derive(Debug, Default)]
pub struct SumRoom(Vec<u8>);

impl SumRoom {
    /// The room, as long as a chunk of `bytes` bytes. What stands in it is from before.
    pub fn of(&mut self, bytes: usize) -> &mut [u8] {
        if self.0.len() < bytes + ALIGNMENT {
            self.0.resize(bytes + ALIGNMENT, 0);
        }
        let start = self.0.as_ptr().align_offset(ALIGNMENT);
        &mut self.0[start..start + bytes]
    }
}

/// Whether what a rule is given of such elements can be written as one of them: half precision is summed in float32, and would be
/// rounded.
pub fn sums_exactly(dtype: Dtype) -> bool {
    dtype.accumulator_size() == dtype.size()
}

/// [`fold`], which leaves in `sum` what the rule was given: the lanes in rank order, scaled and clipped.
///
/// # Errors
///
/// [`NonFinite`], as of [`fold`]: value and state are as they were.
///
/// # Panics
///
/// If the dtype does not [sum exactly](sums_exactly), or as [`fold`] does; `sum` is as long as `value`, and starts 64-byte aligned.
#[expect(clippy::too_many_arguments, reason = "those of `fold`, and the sum")]
pub fn fold_summed(
    plan: &Plan,
    settings: &Settings,
    step: u64,
    scale: f64,
    lanes: &[Foreign<'_>],
    sum: &mut [u8],
    value: &mut [u8],
    state: &mut [u8],
) -> Result<(), NonFinite> {
    assert!(sums_exactly(plan.dtype), "a sum of {} is longer than its elements", plan.dtype.name());
    fold(&Plan { rule: Rule::Replace, ..*plan }, settings, step, scale, lanes, sum, &mut [])?;
    apply(plan, settings, step, Foreign::of(sum), value, state);
    Ok(())
}

/// What [`fold_summed`] leaves in `sum`, of lanes that it did not refuse: for who is given them, in the same order, with the same scale.
///
/// # Panics
///
/// As [`fold_summed`] does.
pub fn sum_lanes(
    plan: &Plan,
    settings: &Settings,
    step: u64,
    scale: f64,
    lanes: &[Foreign<'_>],
    sum: &mut [u8],
) {
    assert!(sums_exactly(plan.dtype), "a sum of {} is longer than its elements", plan.dtype.name());
    let plan = Plan { rule: Rule::Replace, refuse_nonfinite: false, ..*plan };
    let summed = fold(&plan, settings, step, scale, lanes, sum, &mut []);
    debug_assert_eq!(summed, Ok(()), "nothing is refused");
}

/// What the rule makes of such a sum: clipped and refused was before it came to that.
///
/// # Panics
///
/// As [`fold`] does.
pub fn apply(
    plan: &Plan,
    settings: &Settings,
    step: u64,
    sum: Foreign<'_>,
    value: &mut [u8],
    state: &mut [u8],
) {
    let plan = Plan { clip: None, refuse_nonfinite: false, ..*plan };
    let applied = fold(&plan, settings, step, 1.0, &[sum], value, state);
    debug_assert_eq!(applied, Ok(()), "nothing is refused");
}
