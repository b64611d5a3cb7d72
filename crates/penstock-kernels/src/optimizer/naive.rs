//! The oracle: every rule in a few obvious lines, one element after the other, on plain vectors.

use std::ops::{Deref, DerefMut};

use crate::{ALIGNMENT, Rule, Settings};

/// Bytes that start on a cache line.
pub(crate) struct Aligned {
    buffer: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let mut buffer = vec![0; bytes.len() + ALIGNMENT];
        let start = buffer.as_ptr().align_offset(ALIGNMENT);
        buffer[start..start + bytes.len()].copy_from_slice(bytes);
        Self { buffer, start, len: bytes.len() }
    }
}

impl Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.start..][..self.len]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start..][..self.len]
    }
}

macro_rules! oracle {
    ($real:ident) => {
        pub(crate) mod $real {
            use super::*;

            type Real = $real;

            fn lerp(start: Real, end: Real, weight: Real) -> Real {
                if weight < 0.5 {
                    start + weight * (end - start)
                } else {
                    end + (weight - 1.0) * (end - start)
                }
            }

            /// `((l0 + l1) + l2 ...) * scale`, clipped; NaN stays NaN.
            pub(crate) fn gradient(lanes: &[Real], scale: f64, clip: Option<f64>) -> Real {
                let sum = lanes[1..].iter().fold(lanes[0], |sum, lane| sum + lane) * scale as Real;
                clip.map_or(sum, |limit| sum.clamp(-limit as Real, limit as Real))
            }

            /// One element's new value; `s` is its state, slot by slot.
            pub(crate) fn update(
                rule: Rule,
                settings: &Settings,
                step: u64,
                g: Real,
                w: Real,
                s: &mut [Real],
            ) -> Real {
                let n = settings.0.map(|number| number as Real);
                match rule {
                    Rule::Add => w + g,
                    Rule::Replace => g,
                    Rule::Sgd { momentum: false, maximize, .. } => w - n[0] * ascent(maximize, n[3], g, w),
                    Rule::Sgd { momentum: true, nesterov, maximize } => {
                        let g = ascent(maximize, n[3], g, w);
                        if n[1] == 0.0 {
                            return w - n[0] * g;
                        }
                        s[0] = if step == 0 { g } else { n[1] * s[0] + (1.0 - settings.0[2]) as Real * g };
                        w - n[0] * if nesterov { g + n[1] * s[0] } else { s[0] }
                    }
                    Rule::Adagrad { maximize } => {
                        let g = ascent(maximize, n[3], g, w);
                        s[0] += g * g;
                        let clr = settings.0[0] / (1.0 + step as f64 * settings.0[1]);
                        w + (-clr as Real * g) / (s[0].sqrt() + n[2])
                    }
                    Rule::RmsProp { momentum, centered, maximize } => {
                        let g = ascent(maximize, n[3], g, w);
                        rmsprop(settings, momentum, centered, g, w, s)
                    }
                    Rule::Adam { maximize, .. } => adam(settings, step, ascent(maximize, n[4], g, w), w, s),
                    Rule::AdamW { maximize, .. } => {
                        let shrink = (1.0 - settings.0[0] * settings.0[4]) as Real;
                        let shrunk = if n[4] == 0.0 { w } else { w * shrink };
                        adam(settings, step, ascent(maximize, 0.0, g, w), shrunk, s)
                    }
                }
            }

            fn ascent(maximize: bool, decay: Real, g: Real, w: Real) -> Real {
                let g = if maximize { -g } else { g };
                if decay == 0.0 { g } else { g + decay * w }
            }

            fn rmsprop(
                settings: &Settings,
                momentum: bool,
                centered: bool,
                g: Real,
                w: Real,
                s: &mut [Real],
            ) -> Real {
                let rest = (1.0 - settings.0[1]) as Real;
                let [lr, alpha, eps, _, keep] = settings.0.map(|number| number as Real);
                s[0] = alpha * s[0] + rest * g * g;
                let mean = s.last_mut().filter(|_| centered).map_or(0.0, |s| {
                    *s = lerp(*s, g, rest);
                    *s
                });
                let deviation = (s[0] - mean * mean).sqrt() + eps;
                if !momentum || keep == 0.0 {
                    return w + -lr * g / deviation;
                }
                s[1] = keep * s[1] + g / deviation;
                w - lr * s[1]
            }

            fn adam(settings: &Settings, step: u64, g: Real, w: Real, s: &mut [Real]) -> Real {
                let [lr, beta1, beta2, eps, _] = settings.0;
                let correction = |beta: f64| 1.0 - libm::pow(beta, (step + 1) as f64);
                s[0] = lerp(s[0], g, (1.0 - beta1) as Real);
                s[1] = beta2 as Real * s[1] + (1.0 - beta2) as Real * g * g;
                if let [_, v, top] = s {
                    *top = if *top > *v || top.is_nan() { *top } else { *v };
                }
                let root = s[s.len() - 1].sqrt() / correction(beta2).sqrt() as Real;
                w + -(lr / correction(beta1)) as Real * s[0] / (root + eps as Real)
            }
        }
    };
}

oracle!(f32);
oracle!(f64);
