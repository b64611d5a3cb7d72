//! One step of a rule, on a vector of elements: from the clipped sum, the value and the state to the new value and state.
//!
//! Settings become the accumulator's numbers once per chunk, after all arithmetic between settings was done in f64.

use super::rules::MOST_SLOTS;
use super::settings::Settings;
use crate::number::Real;
use crate::vector::Vector;

/// A rule with its settings, ready to run.
pub(crate) trait Update<V>: Copy {
    /// How many state slots there are.
    const SLOTS: usize;
    /// The new value; `state` holds `SLOTS` vectors, updated in place.
    fn apply(&self, g: V, value: V, state: &mut [V; MOST_SLOTS]) -> V;
}

/// How a gradient enters every optimizer of torch: negated to climb, then with the L2 penalty added.
#[derive(Clone, Copy)]
pub(crate) struct Gradient<S> {
    sign: S,
    decay: S,
    decays: bool,
}

impl<S: Real> Gradient<S> {
    pub(crate) fn new(maximize: bool, decay: f64) -> Self {
        Self { sign: S::of(if maximize { -0.0 } else { 0.0 }), decay: S::of(decay), decays: decay != 0.0 }
    }

    /// Without decay the value is not touched: 0 * inf would make NaN of an infinite weight.
    #[inline(always)]
    pub(crate) fn of<V: Vector<Scalar = S>>(&self, g: V, value: V) -> V {
        let g = g.flip(V::splat(self.sign));
        if self.decays { g.add(V::splat(self.decay).mul(value)) } else { g }
    }
}

/// torch's `lerp`: counted from the nearer end, so that a weight of 0 or 1 gives that end exactly.
#[derive(Clone, Copy)]
pub(crate) struct Lerp<S> {
    weight: S,
    from_end: bool,
}

impl<S: Real> Lerp<S> {
    pub(crate) fn new(weight: f64) -> Self {
        let from_end = weight >= 0.5;
        // The weight is rounded first, as torch does; the difference to 1 is then exact (Sterbenz).
        let weight = S::of(weight);
        Self { weight: if from_end { S::of(weight.wide() - 1.0) } else { weight }, from_end }
    }

    #[inline(always)]
    pub(crate) fn of<V: Vector<Scalar = S>>(&self, start: V, end: V) -> V {
        let base = if self.from_end { end } else { start };
        base.add(V::splat(self.weight).mul(end.sub(start)))
    }
}

/// `value += g`.
#[derive(Clone, Copy)]
pub(crate) struct Add;

impl<V: Vector> Update<V> for Add {
    const SLOTS: usize = 0;

    #[inline(always)]
    fn apply(&self, g: V, value: V, _: &mut [V; MOST_SLOTS]) -> V {
        value.add(g)
    }
}

/// `value = g`.
#[derive(Clone, Copy)]
pub(crate) struct Replace;

impl<V: Vector> Update<V> for Replace {
    const SLOTS: usize = 0;

    #[inline(always)]
    fn apply(&self, g: V, _: V, _: &mut [V; MOST_SLOTS]) -> V {
        g
    }
}

/// What every constructor of a rule takes: settings as checked, and how many steps the chunk took before.
#[derive(Clone, Copy)]
pub(crate) struct Moment<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) step: u64,
}
