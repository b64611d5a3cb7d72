//! Stochastic gradient descent, with and without momentum (Sutskever et al. 2013, as torch writes it).

use super::rules::MOST_SLOTS;
use super::update::{Gradient, Moment, Update};
use crate::number::Real;
use crate::vector::Vector;

/// `value -= lr g`.
#[derive(Clone, Copy)]
pub(crate) struct Sgd<S> {
    gradient: Gradient<S>,
    minus_lr: S,
}

impl<S: Real> Sgd<S> {
    pub(crate) fn new(at: Moment<'_>, maximize: bool) -> Self {
        let [lr, _, _, decay, _] = at.settings.0;
        Self { gradient: Gradient::new(maximize, decay), minus_lr: S::of(-lr) }
    }
}

impl<V: Vector> Update<V> for Sgd<V::Scalar> {
    const SLOTS: usize = 0;

    #[inline(always)]
    fn apply(&self, g: V, value: V, _: &mut [V; MOST_SLOTS]) -> V {
        let g = self.gradient.of(g, value);
        value.add(V::splat(self.minus_lr).mul(g))
    }
}

/// `buf = momentum buf + (1 - dampening) g`, `value -= lr buf`; the first step takes `buf = g`.
///
/// While momentum is 0 it is `value -= lr g`, and the buffer stays as it is.
#[derive(Clone, Copy)]
pub(crate) struct Momentum<S> {
    gradient: Gradient<S>,
    minus_lr: S,
    momentum: S,
    undamped: S,
    rests: bool,
    first: bool,
    nesterov: bool,
}

impl<S: Real> Momentum<S> {
    pub(crate) fn new(at: Moment<'_>, nesterov: bool, maximize: bool) -> Self {
        let [lr, momentum, dampening, decay, _] = at.settings.0;
        Self {
            gradient: Gradient::new(maximize, decay),
            minus_lr: S::of(-lr),
            momentum: S::of(momentum),
            undamped: S::of(1.0 - dampening),
            rests: momentum == 0.0,
            first: at.step == 0,
            nesterov,
        }
    }
}

impl<V: Vector> Update<V> for Momentum<V::Scalar> {
    const SLOTS: usize = 1;

    #[inline(always)]
    fn apply(&self, g: V, value: V, state: &mut [V; MOST_SLOTS]) -> V {
        let g = self.gradient.of(g, value);
        if self.rests {
            return value.add(V::splat(self.minus_lr).mul(g));
        }
        let momentum = V::splat(self.momentum);
        let moved = momentum.mul(state[0]).add(V::splat(self.undamped).mul(g));
        let buffer = if self.first { g } else { moved };
        state[0] = buffer;
        let direction = if self.nesterov { g.add(momentum.mul(buffer)) } else { buffer };
        value.add(V::splat(self.minus_lr).mul(direction))
    }
}
