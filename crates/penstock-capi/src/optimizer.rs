//! What a tensor does with contributions.

use crate::status::{Failure, penstock_status};
use penstock_kernels::{Rule, Settings};

/// What a tensor does with the reduced contributions g of an iteration.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum penstock_rule {
    /// value += g.
    PENSTOCK_ADD = 0,
    /// value = g: an all-reduce.
    PENSTOCK_REPLACE = 1,
    /// Stochastic gradient descent: lr, momentum, dampening, weight_decay; PENSTOCK_NESTEROV.
    PENSTOCK_SGD = 2,
    /// AdaGrad: lr, lr_decay, eps, weight_decay.
    PENSTOCK_ADAGRAD = 3,
    /// RMSProp: lr, alpha, eps, weight_decay, momentum; PENSTOCK_CENTERED.
    PENSTOCK_RMSPROP = 4,
    /// Adam, weight decay as an L2 penalty: lr, beta1, beta2, eps, weight_decay; PENSTOCK_AMSGRAD.
    PENSTOCK_ADAM = 5,
    /// Adam with decoupled weight decay: as PENSTOCK_ADAM.
    PENSTOCK_ADAMW = 6,
}

/// Flags of an optimizer, to be added up.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum penstock_optimizer_flag {
    /// Looks ahead along the momentum.
    PENSTOCK_NESTEROV = 1,
    /// Subtracts the squared mean gradient from the mean squared gradient.
    PENSTOCK_CENTERED = 2,
    /// Divides by the largest second moment so far.
    PENSTOCK_AMSGRAD = 4,
    /// Climbs instead of descending.
    PENSTOCK_MAXIMIZE = 8,
}

/// An optimizer: a rule, with its numbers. Zeroed: PENSTOCK_ADD.
///
/// penstock_sgd() and its like return the numbers that torch.optim has as defaults; change what should be otherwise. A number
/// or a flag that the rule does not have must be 0.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct penstock_optimizer {
    /// One of penstock_rule.
    pub rule: u32,
    /// Of penstock_optimizer_flag, added up.
    pub flags: u32,
    /// Learning rate, 0 or above.
    pub lr: f64,
    /// Factor on the old direction, 0 or above; 0: no such state is kept.
    pub momentum: f64,
    /// Part of the gradient that does not enter the direction.
    pub dampening: f64,
    /// Weight decay, 0 or above.
    pub weight_decay: f64,
    /// The rate in step n is lr / (1 + (n - 1) * lr_decay).
    pub lr_decay: f64,
    /// Decay of RMSProp's running mean.
    pub alpha: f64,
    /// Decay of Adam's running mean of the gradient.
    pub beta1: f64,
    /// Decay of Adam's running mean of its square.
    pub beta2: f64,
    /// Added to the root.
    pub eps: f64,
}

/// Stochastic gradient descent with this learning rate.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_sgd(lr: f64) -> penstock_optimizer {
    penstock_optimizer { rule: penstock_rule::PENSTOCK_SGD as u32, lr, ..Default::default() }
}

/// AdaGrad with this learning rate, eps 1e-10.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_adagrad(lr: f64) -> penstock_optimizer {
    penstock_optimizer { rule: penstock_rule::PENSTOCK_ADAGRAD as u32, lr, eps: 1e-10, ..Default::default() }
}

/// RMSProp with this learning rate, alpha 0.99, eps 1e-8.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_rmsprop(lr: f64) -> penstock_optimizer {
    let rule = penstock_rule::PENSTOCK_RMSPROP as u32;
    penstock_optimizer { rule, lr, alpha: 0.99, eps: 1e-8, ..Default::default() }
}

/// Adam with this learning rate, betas 0.9 and 0.999, eps 1e-8.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_adam(lr: f64) -> penstock_optimizer {
    let rule = penstock_rule::PENSTOCK_ADAM as u32;
    penstock_optimizer { rule, lr, beta1: 0.9, beta2: 0.999, eps: 1e-8, ..Default::default() }
}

/// AdamW with this learning rate, betas 0.9 and 0.999, eps 1e-8, weight decay 0.01.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_adamw(lr: f64) -> penstock_optimizer {
    let rule = penstock_rule::PENSTOCK_ADAMW as u32;
    penstock_optimizer {
        rule,
        lr,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        weight_decay: 0.01,
        ..Default::default()
    }
}

/// A number of an optimizer, by its name in C.
type Number = (&'static str, f64);

impl penstock_optimizer {
    /// The rule and its numbers as the core has them.
    pub(crate) fn read(&self, tensor: &str) -> Result<(Rule, Settings), Failure> {
        let refuse = |message: String, hint: &str| {
            Err(Failure::new(penstock_status::PENSTOCK_BAD_SETTINGS, format!("`{tensor}`: {message}"), hint))
        };
        let (rule, uses, flags) = self.rule(tensor)?;
        if self.flags & !flags != 0 {
            let message = format!("{} has no flag {:#x}", rule.name(), self.flags & !flags);
            return refuse(message, "penstock.h says beside each rule what it has");
        }
        if let Some((name, got)) = self
            .numbers()
            .into_iter()
            .find(|(name, got)| *got != 0.0 && !uses.iter().any(|used| used == name))
        {
            let message = format!("{} has no `{name}`, so it must be 0, got {got}", rule.name());
            return refuse(message, "penstock.h says beside each rule what it has");
        }
        let mut settings = Settings::NONE;
        for (slot, name) in settings.0.iter_mut().zip(uses) {
            *slot = self.numbers().into_iter().find(|(known, _)| known == name).map_or(0.0, |(_, got)| got);
        }
        match settings.check(rule) {
            Ok(()) => Ok((rule, settings)),
            Err(error) => refuse(error.to_string(), &error.hint()),
        }
    }

    fn numbers(&self) -> [Number; 9] {
        [
            ("lr", self.lr),
            ("momentum", self.momentum),
            ("dampening", self.dampening),
            ("weight_decay", self.weight_decay),
            ("lr_decay", self.lr_decay),
            ("alpha", self.alpha),
            ("beta1", self.beta1),
            ("beta2", self.beta2),
            ("eps", self.eps),
        ]
    }

    /// The rule, its numbers in the order of [`Settings`], and its flags.
    fn rule(&self, tensor: &str) -> Result<(Rule, &'static [&'static str], u32), Failure> {
        use penstock_optimizer_flag::*;
        let has = |flag: penstock_optimizer_flag| self.flags & flag as u32 != 0;
        let (maximize, momentum) = (has(PENSTOCK_MAXIMIZE), self.momentum != 0.0);
        let climbs = PENSTOCK_MAXIMIZE as u32;
        let rules: [(Rule, &'static [&'static str], u32); 7] = [
            (Rule::Add, &[], 0),
            (Rule::Replace, &[], 0),
            (
                Rule::Sgd { momentum, nesterov: has(PENSTOCK_NESTEROV), maximize },
                &["lr", "momentum", "dampening", "weight_decay"],
                climbs | PENSTOCK_NESTEROV as u32,
            ),
            (Rule::Adagrad { maximize }, &["lr", "lr_decay", "eps", "weight_decay"], climbs),
            (
                Rule::RmsProp { momentum, centered: has(PENSTOCK_CENTERED), maximize },
                &["lr", "alpha", "eps", "weight_decay", "momentum"],
                climbs | PENSTOCK_CENTERED as u32,
            ),
            (
                Rule::Adam { amsgrad: has(PENSTOCK_AMSGRAD), maximize },
                &["lr", "beta1", "beta2", "eps", "weight_decay"],
                climbs | PENSTOCK_AMSGRAD as u32,
            ),
            (
                Rule::AdamW { amsgrad: has(PENSTOCK_AMSGRAD), maximize },
                &["lr", "beta1", "beta2", "eps", "weight_decay"],
                climbs | PENSTOCK_AMSGRAD as u32,
            ),
        ];
        rules.get(self.rule as usize).copied().ok_or_else(|| {
            let message =
                format!("`{tensor}`: expected a rule from 0 to {}, got {}", rules.len() - 1, self.rule);
            Failure::argument(message)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_go_where_the_core_looks_for_them() {
        let mut sgd = penstock_sgd(0.1);
        (sgd.momentum, sgd.flags) = (0.9, penstock_optimizer_flag::PENSTOCK_NESTEROV as u32);
        let (rule, settings) = sgd.read("w").expect("they are in range");
        assert_eq!(rule, Rule::Sgd { momentum: true, nesterov: true, maximize: false });
        assert_eq!(settings, Settings([0.1, 0.9, 0.0, 0.0, 0.0]));
        let (_, settings) = penstock_adamw(0.1).read("w").expect("they are in range");
        assert_eq!(settings, Settings([0.1, 0.9, 0.999, 1e-8, 0.01]));
        let (_, settings) = penstock_rmsprop(0.1).read("w").expect("they are in range");
        assert_eq!(settings, Settings([0.1, 0.99, 1e-8, 0.0, 0.0]));
        let (_, settings) = penstock_adagrad(0.1).read("w").expect("they are in range");
        assert_eq!(settings, Settings([0.1, 0.0, 1e-10, 0.0, 0.0]));
    }

    #[test]
    fn zeroed_it_adds() {
        assert_eq!(penstock_optimizer::default().read("w").ok(), Some((Rule::Add, Settings::NONE)));
    }

    #[test]
    fn what_a_rule_does_not_have_is_refused_by_name() {
        let refused = penstock_optimizer { momentum: 0.9, ..penstock_adam(0.1) }.read("w");
        assert!(refused.is_err_and(|failure| failure.message.contains("no `momentum`")));
        let nesterov = penstock_optimizer { flags: 1, ..penstock_adam(0.1) }.read("w");
        assert!(nesterov.is_err_and(|failure| failure.message.contains("no flag 0x1")));
        assert!(penstock_optimizer { rule: 7, ..Default::default() }.read("w").is_err());
        assert!(penstock_sgd(-1.0).read("w").is_err());
    }
}
