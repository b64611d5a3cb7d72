//! RMSprop (Hinton, lecture 6), with the centered form and momentum of Graves 2013.
//!
//! `square_avg = alpha square_avg + (1 - alpha) g g`, `value -= lr g / (sqrt(square_avg) + eps)`. While momentum is 0, its buffer
//! stays as it is.

use super::rules::MOST_SLOTS;
use super::update::{Gradient, Lerp, Moment, Update};
use crate::number::Real;
use crate::vector::Vector;

/// Slots: `square_avg`, then `momentum_buffer` and `grad_avg` as present.
#[derive(Clone, Copy)]
pub(crate) struct RmsProp<S, const MOMENTUM: bool, const CENTERED: bool> {
    gradient: Gradient<S>,
    mean: Lerp<S>,
    minus_lr: S,
    alpha: S,
    rest: S,
    eps: S,
    momentum: S,
    rests: bool,
}

impl<S: Real, const MOMENTUM: bool, const CENTERED: bool> RmsProp<S, MOMENTUM, CENTERED> {
    pub(crate) fn new(at: Moment<'_>, maximize: bool) -> Self {
        let [lr, alpha, eps, decay, momentum] = at.settings.0;
        Self {
            gradient: Gradient::new(maximize, decay),
            mean: Lerp::new(1.0 - alpha),
            minus_lr: S::of(-lr),
            alpha: S::of(alpha),
            rest: S::of(1.0 - alpha),
            eps: S::of(eps),
            momentum: S::of(momentum),
            rests: momentum == 0.0,
        }
    }
}

impl<V: Vector, const MOMENTUM: bool, const CENTERED: bool> Update<V>
    for RmsProp<V::Scalar, MOMENTUM, CENTERED>
{
    const SLOTS: usize = 1 + MOMENTUM as usize + CENTERED as usize;

    #[inline(always)]
    fn apply(&self, g: V, value: V, state: &mut [V; MOST_SLOTS]) -> V {
        let g = self.gradient.of(g, value);
        state[0] = V::splat(self.alpha).mul(state[0]).add(V::splat(self.rest).mul(g).mul(g));
        let mut square = state[0];
        if CENTERED {
            let mean = &mut state[1 + MOMENTUM as usize];
            *mean = self.mean.of(*mean, g);
            square = square.sub(mean.mul(*mean));
        }
        let deviation = square.sqrt().add(V::splat(self.eps));
        if !MOMENTUM || self.rests {
            return value.add(V::splat(self.minus_lr).mul(g).div(deviation));
        }
        state[1] = V::splat(self.momentum).mul(state[1]).add(g.div(deviation));
        value.add(V::splat(self.minus_lr).mul(state[1]))
    }
}
