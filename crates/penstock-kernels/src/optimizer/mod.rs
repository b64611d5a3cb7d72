//! Optimizers: what a chunk does with the sum of its lanes.
//!
//! The rules are those of `torch.optim`, operation for operation as in its single-tensor CPU path, except that nothing is
//! fused: torch multiplies and adds in one rounding where its build does so, here every operation rounds once, so that
//! each instruction set gives the same bits. Half-precision tensors keep their state and compute their update in f32.

mod adagrad;
mod adam;
#[cfg(test)]
pub(crate) mod naive;
mod rmsprop;
mod rules;
mod settings;
mod sgd;
pub(crate) mod update;

pub(crate) use {
    rules::MOST_SLOTS,
    update::{Moment, Update},
};
pub use {
    rules::{Bound, Flag, Flags, RULES, Row, Rule, Setting, Slot},
    settings::{Settings, SettingsError},
};

use crate::control_word::settled;
use crate::vector::Vector;
use {
    adagrad::Adagrad,
    adam::Adam,
    rmsprop::RmsProp,
    sgd::{Momentum, Sgd},
    update::{Add, Replace},
};

/// What is done with a rule once the compiler knows which.
pub(crate) trait Runs<V: Vector> {
    /// Does it.
    fn run<R: Update<V>>(self, rule: R);
}

impl Rule {
    /// Whether a step by a gradient of zeros leaves value and state as they are, whatever they are: of finite numbers (and sums that
    /// are squares'), bit for bit but for the sign of a zero. Then a contribution of zeros need not be folded. A step it is all the
    /// same (Adagrad's rate may fall with their count).
    pub fn ignores_zeros(self, settings: &Settings) -> bool {
        // A worker and its shard ask, and must hear the same: a denormal is not zero for either.
        settled(|| self.moves_nothing_by_zeros(settings))
    }

    fn moves_nothing_by_zeros(self, settings: &Settings) -> bool {
        let [lr, second, third, decay, _] = settings.0;
        // In the accumulators' type: an infinite rate makes NaN of zeros.
        let moves_nothing = decay == 0.0 && (lr as f32).is_finite();
        match self {
            Self::Add => true,
            Self::Sgd { momentum, .. } => moves_nothing && (!momentum || second == 0.0),
            // Without an epsilon 0 is divided by 0, where nothing has come so far.
            Self::Adagrad { .. } => moves_nothing && third as f32 > 0.0,
            Self::Replace | Self::RmsProp { .. } | Self::Adam { .. } | Self::AdamW { .. } => false,
        }
    }

    /// Gives `with` the rule, ready to run at this moment.
    pub(crate) fn run<V: Vector>(self, at: Moment<'_>, with: impl Runs<V>) {
        match self {
            Self::Add => with.run(Add),
            Self::Replace => with.run(Replace),
            Self::Sgd { momentum: false, maximize, .. } => with.run(Sgd::new(at, maximize)),
            Self::Sgd { momentum: true, nesterov, maximize } => {
                with.run(Momentum::new(at, nesterov, maximize))
            }
            Self::Adagrad { maximize } => with.run(Adagrad::new(at, maximize)),
            Self::RmsProp { momentum, centered, maximize } => match (momentum, centered) {
                (false, false) => with.run(RmsProp::<_, false, false>::new(at, maximize)),
                (false, true) => with.run(RmsProp::<_, false, true>::new(at, maximize)),
                (true, false) => with.run(RmsProp::<_, true, false>::new(at, maximize)),
                (true, true) => with.run(RmsProp::<_, true, true>::new(at, maximize)),
            },
            Self::Adam { amsgrad: false, maximize } => with.run(Adam::<_, false>::new(at, false, maximize)),
            Self::Adam { amsgrad: true, maximize } => with.run(Adam::<_, true>::new(at, false, maximize)),
            Self::AdamW { amsgrad: false, maximize } => with.run(Adam::<_, false>::new(at, true, maximize)),
            Self::AdamW { amsgrad: true, maximize } => with.run(Adam::<_, true>::new(at, true, maximize)),
        }
    }
}
