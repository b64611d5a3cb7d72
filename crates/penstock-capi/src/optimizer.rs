//! What a tensor does with contributions.

use crate::status::{Failure, penstock_status};
use penstock_kernels::{Flag, Flags, RULES, Row, Rule, Settings};

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
    /// Adagrad: lr, lr_decay, eps, weight_decay.
    PENSTOCK_ADAGRAD = 3,
    /// RMSprop: lr, alpha, eps, weight_decay, momentum; PENSTOCK_CENTERED.
    PENSTOCK_RMSPROP = 4,
    /// Adam, weight decay as an L2 penalty: lr, beta1, beta2, eps, weight_decay; PENSTOCK_AMSGRAD.
    PENSTOCK_ADAM = 5,
    /// Adam with decoupled weight decay: lr, beta1, beta2, eps, weight_decay; PENSTOCK_AMSGRAD.
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
    /// Part of the gradient that does not enter the direction, 0 or above; 0 with PENSTOCK_NESTEROV.
    pub dampening: f64,
    /// Weight decay, 0 or above.
    pub weight_decay: f64,
    /// The rate in step n is lr / (1 + (n - 1) * lr_decay); 0 or above.
    pub lr_decay: f64,
    /// Decay of RMSprop's running mean, 0 or above and below 1.
    pub alpha: f64,
    /// Decay of Adam's running mean of the gradient, 0 or above and below 1.
    pub beta1: f64,
    /// Decay of Adam's running mean of its square, 0 or above and below 1.
    pub beta2: f64,
    /// Added to the root, 0 or above.
    pub eps: f64,
}

/// Stochastic gradient descent with this learning rate.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_sgd(lr: f64) -> penstock_optimizer {
    penstock_optimizer::of(penstock_rule::PENSTOCK_SGD, lr)
}

/// Adagrad with this learning rate, eps 1e-10.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_adagrad(lr: f64) -> penstock_optimizer {
    penstock_optimizer::of(penstock_rule::PENSTOCK_ADAGRAD, lr)
}

/// RMSprop with this learning rate, alpha 0.99, eps 1e-8.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_rmsprop(lr: f64) -> penstock_optimizer {
    penstock_optimizer::of(penstock_rule::PENSTOCK_RMSPROP, lr)
}

/// Adam with this learning rate, betas 0.9 and 0.999, eps 1e-8.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_adam(lr: f64) -> penstock_optimizer {
    penstock_optimizer::of(penstock_rule::PENSTOCK_ADAM, lr)
}

/// AdamW with this learning rate, betas 0.9 and 0.999, eps 1e-8, weight decay 0.01.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_adamw(lr: f64) -> penstock_optimizer {
    penstock_optimizer::of(penstock_rule::PENSTOCK_ADAMW, lr)
}

/// The bit by which C sets a flag; 0 where it goes by the number of the same name.
fn bit(flag: Flag) -> u32 {
    use penstock_optimizer_flag::*;
    match flag {
        Flag::Momentum => 0,
        Flag::Nesterov => PENSTOCK_NESTEROV as u32,
        Flag::Centered => PENSTOCK_CENTERED as u32,
        Flag::Amsgrad => PENSTOCK_AMSGRAD as u32,
        Flag::Maximize => PENSTOCK_MAXIMIZE as u32,
    }
}

impl penstock_optimizer {
    /// The rule with its defaults, but for the rate.
    fn of(rule: penstock_rule, lr: f64) -> Self {
        let mut made = Self { rule: rule as u32, ..Self::default() };
        for (name, number) in made.numbers() {
            let setting = RULES[rule as usize].settings.iter().find(|setting| setting.name == name);
            *number = setting.map_or(0.0, |setting| setting.default);
        }
        Self { lr, ..made }
    }

    /// The rule and its numbers as the core has them.
    pub(crate) fn read(&self, tensor: &str) -> Result<(Rule, Settings), Failure> {
        let refuse = |message: String, hint: &str| {
            Err(Failure::new(penstock_status::PENSTOCK_BAD_SETTINGS, format!("`{tensor}`: {message}"), hint))
        };
        let row = self.row(tensor)?;
        let excess = self.flags & !row.flags.iter().fold(0, |all, &flag| all | bit(flag));
        if excess != 0 {
            let message = format!("{} has no flag {excess:#x}", row.name);
            return refuse(message, "penstock.h says beside each rule what it has");
        }
        let mut numbers = *self;
        let mut settings = Settings::NONE;
        for (name, &mut got) in numbers.numbers() {
            if let Some(place) = row.settings.iter().position(|setting| setting.name == name) {
                settings.0[place] = got;
            } else if got != 0.0 {
                let message = format!("{} has no `{name}`, so it must be 0, got {got}", row.name);
                return refuse(message, "penstock.h says beside each rule what it has");
            }
        }
        let is_set = |flag: Flag| {
            let by_number = |(name, &mut got): (&str, &mut f64)| name == flag.name() && got != 0.0;
            self.flags & bit(flag) != 0 || { *self }.numbers().into_iter().any(by_number)
        };
        let flags: Flags = row.flags.iter().copied().filter(|flag| is_set(*flag)).collect();
        let rule = row.plain.with(flags);
        match settings.check(rule) {
            Ok(()) => Ok((rule, settings)),
            Err(error) => refuse(error.to_string(), &error.hint()),
        }
    }

    fn row(&self, tensor: &str) -> Result<&'static Row, Failure> {
        RULES.get(self.rule as usize).ok_or_else(|| {
            let (most, got) = (RULES.len() - 1, self.rule);
            Failure::argument(format!("`{tensor}`: expected a rule from 0 to {most}, got {got}"))
        })
    }

    /// Its numbers, by their names in C.
    fn numbers(&mut self) -> [(&'static str, &mut f64); 9] {
        [
            ("lr", &mut self.lr),
            ("momentum", &mut self.momentum),
            ("dampening", &mut self.dampening),
            ("weight_decay", &mut self.weight_decay),
            ("lr_decay", &mut self.lr_decay),
            ("alpha", &mut self.alpha),
            ("beta1", &mut self.beta1),
            ("beta2", &mut self.beta2),
            ("eps", &mut self.eps),
        ]
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
        let (_, settings) = penstock_adam(0.1).read("w").expect("they are in range");
        assert_eq!(settings, Settings([0.1, 0.9, 0.999, 1e-8, 0.0]));
        let (_, settings) = penstock_adamw(0.1).read("w").expect("they are in range");
        assert_eq!(settings, Settings([0.1, 0.9, 0.999, 1e-8, 0.01]));
        let (_, settings) = penstock_rmsprop(0.1).read("w").expect("they are in range");
        assert_eq!(settings, Settings([0.1, 0.99, 1e-8, 0.0, 0.0]));
        let (_, settings) = penstock_adagrad(0.1).read("w").expect("they are in range");
        assert_eq!(settings, Settings([0.1, 0.0, 1e-10, 0.0, 0.0]));
    }

    #[test]
    fn the_table_s_defaults_are_c_s_and_every_number_of_it_has_a_place() {
        for make in [penstock_sgd, penstock_adagrad, penstock_rmsprop, penstock_adam, penstock_adamw] {
            let mut made = make(0.125);
            let row = &RULES[made.rule as usize];
            for setting in row.settings {
                let number = made.numbers().into_iter().find(|(name, _)| *name == setting.name);
                let (_, &mut got) = number.expect("C has a field for it");
                let expected = if setting.name == "lr" { 0.125 } else { setting.default };
                assert_eq!(got, expected, "`{}` of {}", setting.name, row.name);
            }
        }
    }

    #[test]
    fn a_number_that_is_not_zero_sets_the_flag_of_its_name() {
        let rms = penstock_optimizer { momentum: 0.5, flags: 2, ..penstock_rmsprop(0.1) };
        let (rule, settings) = rms.read("w").expect("they are in range");
        assert_eq!(rule, Rule::RmsProp { momentum: true, centered: true, maximize: false });
        assert_eq!(settings, Settings([0.1, 0.99, 1e-8, 0.0, 0.5]));
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
        let beyond = penstock_optimizer { rule: RULES.len() as u32, ..Default::default() };
        assert!(beyond.read("w").is_err());
        assert!(penstock_sgd(-1.0).read("w").is_err());
    }
}
