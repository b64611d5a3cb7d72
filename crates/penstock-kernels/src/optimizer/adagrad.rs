//! AdaGrad (Duchi et al. 2011): `sum += g g`, `value -= clr g / (sqrt(sum) + eps)`.

use super::rules::MOST_SLOTS;
use super::update::{Gradient, Moment, Update};
use crate::number::Real;
use crate::vector::Vector;

#[derive(Clone, Copy)]
pub(crate) struct Adagrad<S> {
    gradient: Gradient<S>,
    minus_clr: S,
    eps: S,
}

impl<S: Real> Adagrad<S> {
    pub(crate) fn new(at: Moment<'_>, maximize: bool) -> Self {
        let [lr, lr_decay, eps, decay, _] = at.settings.0;
        let clr = lr / (1.0 + at.step as f64 * lr_decay);
        Self { gradient: Gradient::new(maximize, decay), minus_clr: S::of(-clr), eps: S::of(eps) }
    }
}

impl<V: Vector> Update<V> for Adagrad<V::Scalar> {
    const SLOTS: usize = 1;

    #[inline(always)]
    fn apply(&self, g: V, value: V, state: &mut [V; MOST_SLOTS]) -> V {
        let g = self.gradient.of(g, value);
        state[0] = state[0].add(g.mul(g));
        let deviation = state[0].sqrt().add(V::splat(self.eps));
        value.add(V::splat(self.minus_clr).mul(g).div(deviation))
    }
}
