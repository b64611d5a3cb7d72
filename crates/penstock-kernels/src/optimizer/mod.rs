//! Optimizers: what a chunk does with the sum of its lanes.
//!
//! The rules are those of `torch.optim`, operation for operation as in its single-tensor CPU path, except that nothing is
//! fused: torch multiplies and adds in one rounding where its build does so, here every operation rounds once, so that
//! each instruction set gives the same bits. Half-precision tensors keep their state and compute their update in f32.

mod adagrad;
mod adam;
mod rmsprop;
mod settings;
mod sgd;
mod update;

use serde::{Deserialize, Serialize};

pub use settings::{Settings, SettingsError};
pub(crate) use {
    adagrad::Adagrad,
    adam::Adam,
    rmsprop::RmsProp,
    sgd::{Momentum, Sgd},
    update::{Add, MOST_SLOTS, Moment, Replace, Update},
};

/// The update rule of a tensor. Fixed when the tensor is declared: it decides which state a chunk carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Rule {
    /// `value += g`.
    Add,
    /// `value = g`.
    Replace,
    /// Stochastic gradient descent.
    Sgd {
        /// Keeps a velocity.
        momentum: bool,
        /// Looks ahead along the velocity; needs `momentum`.
        nesterov: bool,
        /// Climbs instead of descending.
        maximize: bool,
    },
    /// AdaGrad (Duchi et al. 2011).
    Adagrad {
        /// Climbs instead of descending.
        maximize: bool,
    },
    /// RMSprop (Hinton, lecture 6; centered: Graves 2013).
    RmsProp {
        /// Keeps a velocity.
        momentum: bool,
        /// Subtracts the squared mean gradient from the mean squared gradient.
        centered: bool,
        /// Climbs instead of descending.
        maximize: bool,
    },
    /// Adam (Kingma and Ba 2015), weight decay as an L2 penalty.
    Adam {
        /// Divides by the largest second moment so far (Reddi et al. 2018).
        amsgrad: bool,
        /// Climbs instead of descending.
        maximize: bool,
    },
    /// Adam with decoupled weight decay (Loshchilov and Hutter 2019).
    AdamW {
        /// Divides by the largest second moment so far (Reddi et al. 2018).
        amsgrad: bool,
        /// Climbs instead of descending.
        maximize: bool,
    },
}

impl Rule {
    /// Names of the state arrays, torch's own, in the order in which they stand in a chunk's state.
    pub const fn slots(&self) -> &'static [&'static str] {
        match self {
            Self::Add | Self::Replace | Self::Sgd { momentum: false, .. } => &[],
            Self::Sgd { momentum: true, .. } => &["momentum_buffer"],
            Self::Adagrad { .. } => &["sum"],
            Self::RmsProp { momentum: false, centered: false, .. } => &["square_avg"],
            Self::RmsProp { momentum: true, centered: false, .. } => &["square_avg", "momentum_buffer"],
            Self::RmsProp { momentum: false, centered: true, .. } => &["square_avg", "grad_avg"],
            Self::RmsProp { momentum: true, centered: true, .. } => {
                &["square_avg", "momentum_buffer", "grad_avg"]
            }
            Self::Adam { amsgrad: false, .. } | Self::AdamW { amsgrad: false, .. } => {
                &["exp_avg", "exp_avg_sq"]
            }
            Self::Adam { amsgrad: true, .. } | Self::AdamW { amsgrad: true, .. } => {
                &["exp_avg", "exp_avg_sq", "max_exp_avg_sq"]
            }
        }
    }

    /// The rule's name, as messages call it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Add => "Add",
            Self::Replace => "Replace",
            Self::Sgd { .. } => "SGD",
            Self::Adagrad { .. } => "Adagrad",
            Self::RmsProp { .. } => "RMSprop",
            Self::Adam { .. } => "Adam",
            Self::AdamW { .. } => "AdamW",
        }
    }

    /// What is set of what it may be declared with, as the optimizers' arguments are called.
    fn flags(&self) -> impl Iterator<Item = &'static str> {
        let (momentum, nesterov, centered, amsgrad, maximize) = match *self {
            Self::Add | Self::Replace => (false, false, false, false, false),
            Self::Sgd { momentum, nesterov, maximize } => (momentum, nesterov, false, false, maximize),
            Self::Adagrad { maximize } => (false, false, false, false, maximize),
            Self::RmsProp { momentum, centered, maximize } => (momentum, false, centered, false, maximize),
            Self::Adam { amsgrad, maximize } | Self::AdamW { amsgrad, maximize } => {
                (false, false, false, amsgrad, maximize)
            }
        };
        let flags = [
            (momentum, "momentum"),
            (nesterov, "nesterov"),
            (centered, "centered"),
            (amsgrad, "amsgrad"),
            (maximize, "maximize"),
        ];
        flags.into_iter().filter_map(|(is_set, name)| is_set.then_some(name))
    }
}

/// As messages say it: `SGD with momentum and nesterov`.
impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())?;
        let mut before = " with ";
        self.flags().try_for_each(|flag| write!(f, "{}{flag}", std::mem::replace(&mut before, " and ")))
    }
}
