//! Settings: the numbers of a rule that may change from one push to the next, and what each may be.
//!
//! The bounds are those that `torch.optim` checks when an optimizer is made, and every number must be finite.

use serde::{Deserialize, Serialize};

use super::Rule;

/// Numbers that may change from one push to the next. Their meaning, by rule:
///
/// | rule | 0 | 1 | 2 | 3 | 4 |
/// |---|---|---|---|---|---|
/// | Add, Replace | 0 | 0 | 0 | 0 | 0 |
/// | Sgd | lr | momentum | dampening | weight_decay | 0 |
/// | Adagrad | lr | lr_decay | eps | weight_decay | 0 |
/// | RmsProp | lr | alpha | eps | weight_decay | momentum |
/// | Adam, AdamW | lr | beta1 | beta2 | eps | weight_decay |
///
/// Without `momentum` in the rule, its momentum (and SGD's dampening) is unused and 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings(pub [f64; 5]);

/// Why settings do not fit their rule. The settings in force stay as they were.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A setting lies outside its range, or is NaN or infinite.
    #[error("{rule} needs `{setting}` {expected}, got {got}")]
    OutOfRange {
        /// The rule's name.
        rule: &'static str,
        /// The setting's name, torch's own.
        setting: &'static str,
        /// What it may be, in words.
        expected: &'static str,
        /// What came.
        got: f64,
    },
    /// A number stands where the rule has no setting.
    #[error("{rule} uses no setting at place {place} as declared, so it must be 0 there, got {got}")]
    Unused {
        /// The rule's name.
        rule: &'static str,
        /// Index into [`Settings`].
        place: usize,
        /// What came.
        got: f64,
    },
    /// The rule itself contradicts itself: Nesterov's step without a momentum to look ahead along.
    #[error("{rule} with nesterov needs momentum, but was declared without it")]
    NesterovWithoutMomentum {
        /// The rule's name.
        rule: &'static str,
    },
}

impl SettingsError {
    /// What the user can do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::OutOfRange { setting, expected, .. } => format!("pass `{setting}` {expected}"),
            Self::Unused { .. } => {
                "leave the setting out, or declare the rule with the feature it belongs to".into()
            }
            Self::NesterovWithoutMomentum { .. } => "pass a momentum above 0, or leave `nesterov` out".into(),
        }
    }
}

/// One setting of a rule: its name, what it may be in words, and the same as a predicate.
struct Bound {
    name: &'static str,
    expected: &'static str,
    holds: fn(f64) -> bool,
}

const fn at_least_zero(name: &'static str) -> Option<Bound> {
    Some(Bound { name, expected: "finite and at least 0", holds: |x| x.is_finite() && x >= 0.0 })
}

const fn below_one(name: &'static str) -> Option<Bound> {
    Some(Bound { name, expected: "at least 0 and below 1", holds: |x| (0.0..1.0).contains(&x) })
}

const fn finite(name: &'static str) -> Option<Bound> {
    Some(Bound { name, expected: "finite", holds: f64::is_finite })
}

const fn zero(name: &'static str) -> Option<Bound> {
    Some(Bound { name, expected: "0 with nesterov", holds: |x| x == 0.0 })
}

fn bounds(rule: Rule) -> [Option<Bound>; 5] {
    let lr = at_least_zero("lr");
    let decay = at_least_zero("weight_decay");
    let eps = at_least_zero("eps");
    match rule {
        Rule::Add | Rule::Replace => [const { None }; 5],
        Rule::Sgd { momentum: false, .. } => [lr, None, None, decay, None],
        Rule::Sgd { nesterov: true, .. } => [lr, at_least_zero("momentum"), zero("dampening"), decay, None],
        Rule::Sgd { .. } => [lr, at_least_zero("momentum"), finite("dampening"), decay, None],
        Rule::Adagrad { .. } => [lr, at_least_zero("lr_decay"), eps, decay, None],
        Rule::RmsProp { momentum, .. } => {
            [lr, at_least_zero("alpha"), eps, decay, if momentum { at_least_zero("momentum") } else { None }]
        }
        Rule::Adam { .. } | Rule::AdamW { .. } => [lr, below_one("beta1"), below_one("beta2"), eps, decay],
    }
}

impl Settings {
    /// All zeros: the settings of [`Rule::Add`] and [`Rule::Replace`].
    pub const NONE: Self = Self([0.0; 5]);

    /// Whether `rule` can run with these numbers.
    ///
    /// # Errors
    ///
    /// The first setting, in their order, that is out of its range, or not 0 where the rule has none.
    pub fn check(&self, rule: Rule) -> Result<(), SettingsError> {
        let name = rule.name();
        if let Rule::Sgd { momentum: false, nesterov: true, .. } = rule {
            return Err(SettingsError::NesterovWithoutMomentum { rule: name });
        }
        for (place, (bound, got)) in bounds(rule).into_iter().zip(self.0).enumerate() {
            match bound {
                Some(Bound { name: setting, expected, holds }) if !holds(got) => {
                    return Err(SettingsError::OutOfRange { rule: name, setting, expected, got });
                }
                None if got != 0.0 => return Err(SettingsError::Unused { rule: name, place, got }),
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SGD: Rule = Rule::Sgd { momentum: true, nesterov: false, maximize: false };
    const ADAM: Rule = Rule::Adam { amsgrad: false, maximize: false };

    #[test]
    fn torch_defaults_are_accepted() {
        let plain = Rule::Sgd { momentum: false, nesterov: false, maximize: false };
        let rms = Rule::RmsProp { momentum: false, centered: true, maximize: true };
        Settings::NONE.check(Rule::Add).unwrap();
        Settings([1e-3, 0.0, 0.0, 0.0, 0.0]).check(plain).unwrap();
        Settings([1e-2, 0.0, 1e-10, 0.0, 0.0]).check(Rule::Adagrad { maximize: false }).unwrap();
        Settings([1e-2, 0.99, 1e-8, 0.0, 0.0]).check(rms).unwrap();
        Settings([1e-3, 0.9, 0.999, 1e-8, 0.0]).check(ADAM).unwrap();
        Settings([1e-3, 0.9, 0.999, 1e-8, 1e-2])
            .check(Rule::AdamW { amsgrad: true, maximize: false })
            .unwrap();
    }

    #[test]
    fn a_setting_out_of_range_is_named_with_what_was_expected_and_what_came() {
        let error = Settings([1e-3, 1.0, 0.999, 1e-8, 0.0]).check(ADAM).unwrap_err();
        assert_eq!(error.to_string(), "Adam needs `beta1` at least 0 and below 1, got 1");
        let error = Settings([-0.5, 0.9, 0.0, 0.0, 0.0]).check(SGD).unwrap_err();
        assert_eq!(error.to_string(), "SGD needs `lr` finite and at least 0, got -0.5");
    }

    #[test]
    fn no_setting_may_be_nan_or_infinite() {
        for place in 0..5 {
            for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                let mut settings = Settings([0.1, 0.1, 0.1, 0.1, 0.1]);
                settings.0[place] = bad;
                settings.check(ADAM).unwrap_err();
                let mut settings = Settings::NONE;
                settings.0[place] = bad;
                settings.check(SGD).unwrap_err();
                settings.check(Rule::Add).unwrap_err();
            }
        }
    }

    #[test]
    fn an_unused_place_must_be_zero() {
        let error = Settings([0.0, 0.0, 0.0, 0.0, 0.5]).check(SGD).unwrap_err();
        assert_eq!(error, SettingsError::Unused { rule: "SGD", place: 4, got: 0.5 });
        let plain = Rule::Sgd { momentum: false, nesterov: false, maximize: false };
        Settings([0.1, 0.9, 0.0, 0.0, 0.0]).check(plain).unwrap_err();
    }

    #[test]
    fn nesterov_needs_momentum_and_zero_dampening() {
        let ahead = |momentum| Rule::Sgd { momentum, nesterov: true, maximize: false };
        Settings([0.1, 0.9, 0.0, 0.0, 0.0]).check(ahead(true)).unwrap();
        Settings([0.1, 0.9, 0.1, 0.0, 0.0]).check(ahead(true)).unwrap_err();
        let error = Settings([0.1, 0.0, 0.0, 0.0, 0.0]).check(ahead(false)).unwrap_err();
        assert!(error.hint().contains("momentum"));
    }
}
