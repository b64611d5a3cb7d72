//! Test chunks: numbers of every kind in every dtype, and the oracle applied to a whole one.

use std::fmt;

use half::{bf16, f16};

use crate::optimizer::naive::{self, Aligned};
use crate::{Dtype, Foreign, NonFinite, Plan, Settings};

/// The numbers of `bytes`; exact, because f64 holds every number of every dtype.
pub(super) fn decode(dtype: Dtype, bytes: &[u8]) -> Vec<f64> {
    let elements = bytes.chunks_exact(dtype.size());
    elements
        .map(|b| match dtype {
            Dtype::F32 => f32::from_le_bytes(b.try_into().unwrap()).into(),
            Dtype::F64 => f64::from_le_bytes(b.try_into().unwrap()),
            Dtype::F16 => f16::from_le_bytes(b.try_into().unwrap()).into(),
            Dtype::Bf16 => bf16::from_le_bytes(b.try_into().unwrap()).into(),
        })
        .collect()
}

/// The bytes of `numbers`, which are rounded from the accumulator as a store does.
pub(super) fn encode(dtype: Dtype, numbers: &[f64]) -> Vec<u8> {
    let bytes = |number: &f64| match dtype {
        Dtype::F32 => (*number as f32).to_le_bytes().to_vec(),
        Dtype::F64 => number.to_le_bytes().to_vec(),
        Dtype::F16 => f16::from_f32(*number as f32).to_le_bytes().to_vec(),
        Dtype::Bf16 => bf16::from_f32(*number as f32).to_le_bytes().to_vec(),
    };
    numbers.iter().flat_map(bytes).collect()
}

/// The dtype of accumulators and state.
pub(super) fn accumulator(dtype: Dtype) -> Dtype {
    if dtype == Dtype::F64 { Dtype::F64 } else { Dtype::F32 }
}

/// Numbers from a seed (SplitMix64): mostly around 1, some of any bit pattern, some of the awkward ones.
pub(super) struct Numbers {
    pub(super) seed: u64,
    /// One in so many is NaN, infinite, denormal, zero of either sign, or any bits at all; 0: none is.
    pub(super) awkward: u64,
}

impl Numbers {
    fn bits(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn number(&mut self) -> f64 {
        const AWKWARD: [f64; 12] = [
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            0.0,
            -0.0,
            1e-40,
            -1e-45,
            6e-8,
            65504.0,
            65520.0,
            3e38,
            1e300,
        ];
        let bits = self.bits();
        if self.awkward != 0 && bits.is_multiple_of(self.awkward) {
            let choice = self.bits() as usize % (AWKWARD.len() + 1);
            return AWKWARD.get(choice).copied().unwrap_or_else(|| f32::from_bits(self.bits() as u32).into());
        }
        (bits >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }

    pub(super) fn take(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| self.number()).collect()
    }
}

/// One chunk with its lanes.
pub(super) struct Chunk {
    pub(super) plan: Plan,
    pub(super) settings: Settings,
    pub(super) step: u64,
    pub(super) scale: f64,
    pub(super) lanes: Vec<Aligned>,
    pub(super) value: Aligned,
    pub(super) state: Aligned,
}

impl Chunk {
    pub(super) fn new(
        plan: Plan,
        settings: Settings,
        lanes: usize,
        elements: usize,
        numbers: &mut Numbers,
    ) -> Self {
        let mut fresh = || Aligned::new(&encode(plan.dtype, &numbers.take(elements)));
        let (lanes, value) = ((0..lanes).map(|_| fresh()).collect(), fresh());
        let state = numbers.take(elements * plan.rule.slots().count());
        let state = Aligned::new(&encode(accumulator(plan.dtype), &state));
        Self { plan, settings, step: 0, scale: 1.0, lanes, value, state }
    }

    /// Runs `fold` on copies of value and state, and returns them.
    pub(super) fn folded(&self, fold: impl Fold) -> (Result<(), NonFinite>, Vec<u8>, Vec<u8>) {
        let (mut value, mut state) = (Aligned::new(&self.value), Aligned::new(&self.state));
        let lanes: Vec<Foreign<'_>> = self.lanes.iter().map(|lane| Foreign::of(lane)).collect();
        let done = fold(&self.plan, &self.settings, self.step, self.scale, &lanes, &mut value, &mut state);
        (done, value.to_vec(), state.to_vec())
    }

    /// What the oracle makes of value and state.
    pub(super) fn expected(&self) -> (Vec<u8>, Vec<u8>) {
        let dtype = self.plan.dtype;
        let lanes: Vec<Vec<f64>> = self.lanes.iter().map(|lane| decode(dtype, lane)).collect();
        let mut value = decode(dtype, &self.value);
        let mut state = decode(accumulator(dtype), &self.state);
        for i in 0..value.len() {
            let column = |slot: usize| slot * value.len() + i;
            let slots = 0..self.plan.rule.slots().count();
            let mut s: Vec<f64> = slots.clone().map(|slot| state[column(slot)]).collect();
            let l: Vec<f64> = lanes.iter().map(|lane| lane[i]).collect();
            let new = self.expected_element(&l, value[i], &mut s);
            slots.for_each(|slot| state[column(slot)] = s[slot]);
            value[i] = new;
        }
        (encode(dtype, &value), encode(accumulator(dtype), &state))
    }

    fn expected_element(&self, l: &[f64], w: f64, s: &mut [f64]) -> f64 {
        let Self { plan, settings, step, scale, .. } = self;
        if plan.dtype == Dtype::F64 {
            let g = naive::f64::gradient(l, *scale, plan.clip);
            return naive::f64::update(plan.rule, settings, *step, g, w, s);
        }
        let l: Vec<f32> = l.iter().map(|&x| x as f32).collect();
        let mut narrow: Vec<f32> = s.iter().map(|&x| x as f32).collect();
        let g = naive::f32::gradient(&l, *scale, plan.clip);
        let new = naive::f32::update(plan.rule, settings, *step, g, w as f32, &mut narrow);
        s.iter_mut().zip(narrow).for_each(|(s, n)| *s = n.into());
        new.into()
    }
}

/// The signature of `fold`.
pub(super) trait Fold:
    Fn(&Plan, &Settings, u64, f64, &[Foreign<'_>], &mut [u8], &mut [u8]) -> Result<(), NonFinite>
{
}

impl<F> Fold for F where
    F: Fn(&Plan, &Settings, u64, f64, &[Foreign<'_>], &mut [u8], &mut [u8]) -> Result<(), NonFinite>
{
}

/// Equal bits; a NaN equals any NaN, because which payload survives an addition is the compiler's choice.
#[track_caller]
pub(super) fn assert_same(dtype: Dtype, got: &[u8], expected: &[u8], what: &str) {
    let (got, expected) = (decode(dtype, got), decode(dtype, expected));
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
        let same = got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan());
        assert!(same, "{what}, element {i}: got {got:e}, expected {expected:e}");
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plan, settings, step, scale, lanes, value, .. } = self;
        let (lanes, bytes) = (lanes.len(), value.len());
        write!(f, "{plan:?} {settings:?} step {step} scale {scale}, {lanes} lanes of {bytes} bytes")
    }
}
