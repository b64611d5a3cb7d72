//! The loop over a chunk: lanes summed in registers, in rank order, straight into the rule.
//!
//! Per vector: one load from each lane, one load and one store of the value and of each state slot; nothing else touches
//! memory. What fills no vector is padded with zeros into one on the stack and goes through the same arithmetic.

use std::marker::PhantomData;

use crate::arch::Kernel;
use crate::foreign::Foreign;
use crate::number::Real;
use crate::optimizer::{MOST_SLOTS, Update};
use crate::vector::{Element, TAIL, Vector};

/// The scalar that an element's dtype is computed in.
pub(crate) type ScalarOf<E> = <<E as Element>::Vector as Vector>::Scalar;

/// What happens to the sum before the rule sees it.
#[derive(Clone, Copy)]
pub(crate) struct Gather<'a, S> {
    pub(crate) lanes: &'a [Foreign<'a>],
    pub(crate) scale: S,
    pub(crate) clip: Option<S>,
    /// Zero in place of what is not finite. Only a lane that changed since it was checked can bring such a sum here.
    pub(crate) refuse: bool,
}

impl<'a, S: Real> Gather<'a, S> {
    pub(crate) fn new(lanes: &'a [Foreign<'a>], scale: f64, clip: Option<f64>, refuse: bool) -> Self {
        Self { lanes, scale: S::of(scale), clip: clip.map(S::of), refuse }
    }

    /// `((l0 + l1) + l2 ...) * scale`, where `load` gives one lane's vector.
    #[inline(always)]
    fn scaled_sum<V: Vector<Scalar = S>>(&self, load: impl Fn(&Foreign<'a>) -> V) -> V {
        let (first, rest) = self.lanes.split_first().expect("a fold has at least one lane");
        let mut sum = load(first);
        for lane in rest {
            sum = sum.add(load(lane));
        }
        sum.mul(V::splat(self.scale))
    }

    /// What the rule is given.
    #[inline(always)]
    fn gradient<V: Vector<Scalar = S>>(&self, load: impl Fn(&Foreign<'a>) -> V) -> V {
        let mut g = self.scaled_sum(load);
        if self.refuse {
            g = g.finite_or_zero();
        }
        match self.clip {
            Some(limit) => g.clamp(V::splat(limit)),
            None => g,
        }
    }

    /// The lane with which the scaled sum stops being finite; if only the scale does that, the last.
    fn culprit<V: Vector<Scalar = S>>(&self, load: impl Fn(&Foreign<'a>) -> V) -> Option<usize> {
        let (mut sum, mut culprit) = (V::splat(S::of(0.0)), None);
        for (rank, lane) in self.lanes.iter().enumerate() {
            sum = if rank == 0 { load(lane) } else { sum.add(load(lane)) };
            if culprit.is_none() && !sum.is_finite() {
                culprit = Some(rank);
            }
        }
        let overflows = || !sum.mul(V::splat(self.scale)).is_finite();
        culprit.or_else(|| overflows().then_some(self.lanes.len() - 1))
    }
}

/// One lane's last elements, padded with zeros.
#[inline(always)]
fn load_tail<E: Element>(lane: &Foreign<'_>, at: usize, bytes: usize) -> E::Vector {
    let mut padded = [0; TAIL];
    lane.copy_words(at, &mut padded[..bytes]);
    E::load(&padded)
}

/// Sum, scale, clip and update of one chunk.
pub(crate) struct Sweep<'a, E: Element, R> {
    pub(crate) gather: Gather<'a, ScalarOf<E>>,
    pub(crate) rule: R,
    pub(crate) value: &'a mut [u8],
    pub(crate) state: &'a mut [u8],
}

impl<E: Element, R: Update<E::Vector>> Kernel for Sweep<'_, E, R> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { gather, rule, value, state } = self;
        let size = size_of::<ScalarOf<E>>();
        let mut slots = cut::<{ MOST_SLOTS }>(state, R::SLOTS, value.len() / E::SIZE * size);
        let (mut at, mut state_at) = (0, 0);
        let mut blocks = value.chunks_exact_mut(E::BYTES);
        for block in &mut blocks {
            let g = gather.gradient(|lane| E::load_foreign(lane, at));
            step::<E, R>(&rule, g, block, &mut slots, state_at);
            at += E::BYTES;
            state_at += E::State::BYTES;
        }
        let rest = blocks.into_remainder();
        if !rest.is_empty() {
            let g = gather.gradient(|lane| load_tail::<E>(lane, at, rest.len()));
            last_step::<E, R>(&rule, g, rest, &mut slots, state_at);
        }
    }
}

/// The state's slots, each of `bytes`; empty beyond the first `count`.
#[inline(always)]
fn cut<const N: usize>(mut state: &mut [u8], count: usize, bytes: usize) -> [&mut [u8]; N] {
    std::array::from_fn(|slot| {
        let len = if slot < count { bytes } else { 0 };
        state.split_off_mut(..len).expect("the state has the rule's slots")
    })
}

#[inline(always)]
fn step<E: Element, R: Update<E::Vector>>(
    rule: &R,
    g: E::Vector,
    value: &mut [u8],
    slots: &mut [&mut [u8]; MOST_SLOTS],
    at: usize,
) {
    let mut state = [g; MOST_SLOTS];
    for slot in 0..R::SLOTS {
        state[slot] = E::State::load(&slots[slot][at..]);
    }
    let new = rule.apply(g, E::load(value), &mut state);
    E::store(new, value);
    for slot in 0..R::SLOTS {
        E::State::store(state[slot], &mut slots[slot][at..]);
    }
}

/// [`step`] for the elements that fill no vector: the same on padded copies.
#[inline(always)]
fn last_step<E: Element, R: Update<E::Vector>>(
    rule: &R,
    g: E::Vector,
    value: &mut [u8],
    slots: &mut [&mut [u8]; MOST_SLOTS],
    at: usize,
) {
    let mut padded_value = [0; TAIL];
    padded_value[..value.len()].copy_from_slice(value);
    let mut padded = [[0; TAIL]; MOST_SLOTS];
    for (copy, slot) in padded.iter_mut().zip(&*slots).take(R::SLOTS) {
        copy[..slot.len() - at].copy_from_slice(&slot[at..]);
    }
    {
        let mut views = padded.each_mut().map(|copy| copy.as_mut_slice());
        step::<E, R>(rule, g, &mut padded_value, &mut views, 0);
    }
    value.copy_from_slice(&padded_value[..value.len()]);
    for (copy, slot) in padded.iter().zip(slots).take(R::SLOTS) {
        let len = slot.len() - at;
        slot[at..].copy_from_slice(&copy[..len]);
    }
}

/// Finds a sum that is not finite, and whose lane made it so; changes nothing.
///
/// The first look at a vector only asks whether. The second finds the lane, and if the lanes have changed in between so
/// that there is none, they count as what they are now: the sweep guards itself against lanes that change after this.
pub(crate) struct Check<'a, E: Element> {
    pub(crate) gather: Gather<'a, ScalarOf<E>>,
    pub(crate) bytes: usize,
    pub(crate) element: PhantomData<E>,
}

impl<E: Element> Kernel for Check<'_, E> {
    type Output = Option<usize>;

    #[inline(always)]
    fn run(self) -> Option<usize> {
        let Self { gather, bytes, .. } = self;
        let mut at = 0;
        while bytes - at >= E::BYTES {
            if !gather.scaled_sum(|lane| E::load_foreign(lane, at)).is_finite() {
                let culprit = gather.culprit(|lane| E::load_foreign(lane, at));
                if culprit.is_some() {
                    return culprit;
                }
            }
            at += E::BYTES;
        }
        if at == bytes {
            return None;
        }
        gather.culprit(|lane| load_tail::<E>(lane, at, bytes - at))
    }
}
