//! Adam (Kingma and Ba 2015), AMSGrad (Reddi et al. 2018), AdamW (Loshchilov and Hutter 2019).
//!
//! `m = lerp(m, g, 1 - beta1)`, `v = beta2 v + (1 - beta2) g g`, `value -= lr / c1 m / (sqrt(v) / sqrt(c2) + eps)` with
//! the bias corrections `c = 1 - beta^t`, t counted from 1. Two divisions and a root for each element: the one rule whose
//! arithmetic a hot chunk can feel.

use super::rules::MOST_SLOTS;
use super::update::{Gradient, Lerp, Moment, Update};
use crate::number::Real;
use crate::vector::Vector;

/// Slots: `exp_avg`, `exp_avg_sq`, and `max_exp_avg_sq` with AMSGrad.
#[derive(Clone, Copy)]
pub(crate) struct Adam<S, const AMSGRAD: bool> {
    gradient: Gradient<S>,
    shrinks: bool,
    shrink: S,
    mean: Lerp<S>,
    beta2: S,
    rest2: S,
    minus_step: S,
    root_correction: S,
    eps: S,
}

impl<S: Real, const AMSGRAD: bool> Adam<S, AMSGRAD> {
    /// `decoupled`: the weight decay shrinks the value itself (AdamW) instead of entering the gradient.
    pub(crate) fn new(at: Moment<'_>, decoupled: bool, maximize: bool) -> Self {
        let [lr, beta1, beta2, eps, decay] = at.settings.0;
        // Not the standard library's, which is the system's: its last bit differs from system to system.
        let (t, power) = ((at.step + 1) as f64, libm::pow);
        let step = lr / (1.0 - power(beta1, t));
        Self {
            gradient: Gradient::new(maximize, if decoupled { 0.0 } else { decay }),
            shrinks: decoupled && decay != 0.0,
            shrink: S::of(1.0 - lr * decay),
            mean: Lerp::new(1.0 - beta1),
            beta2: S::of(beta2),
            rest2: S::of(1.0 - beta2),
            minus_step: S::of(-step),
            root_correction: S::of((1.0 - power(beta2, t)).sqrt()),
            eps: S::of(eps),
        }
    }
}

impl<V: Vector, const AMSGRAD: bool> Update<V> for Adam<V::Scalar, AMSGRAD> {
    const SLOTS: usize = 2 + AMSGRAD as usize;

    #[inline(always)]
    fn apply(&self, g: V, value: V, state: &mut [V; MOST_SLOTS]) -> V {
        let g = self.gradient.of(g, value);
        let value = if self.shrinks { value.mul(V::splat(self.shrink)) } else { value };
        state[0] = self.mean.of(state[0], g);
        state[1] = V::splat(self.beta2).mul(state[1]).add(V::splat(self.rest2).mul(g).mul(g));
        let mut square = state[1];
        if AMSGRAD {
            state[2] = state[2].larger(square);
            square = state[2];
        }
        let deviation = square.sqrt().div(V::splat(self.root_correction)).add(V::splat(self.eps));
        value.add(V::splat(self.minus_step).mul(state[0]).div(deviation))
    }
}
