//! Settings: the numbers of a rule that may change from one push to the next, checked by its row.

use serde::{Deserialize, Serialize};

use super::rules::{Flag, MOST_SETTINGS, Row, Rule, Setting};

/// Numbers that may change from one push to the next, in the order of the rule's [`Row::settings`](super::Row::settings); what
/// it does not have, or does not read as it was declared, is 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings(pub [f64; MOST_SETTINGS]);

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
        expected: String,
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
    /// The rule contradicts itself: a flag without the one that it builds on.
    #[error("{rule} with {} needs {}, but was declared without it", .flag.name(), .needs.name())]
    Contradiction {
        /// The rule's name.
        rule: &'static str,
        /// Nesterov's step, say.
        flag: Flag,
        /// The momentum to look ahead along.
        needs: Flag,
    },
}

impl SettingsError {
    #[cold]
    fn of(row: &Row, setting: Option<&Setting>, place: usize, got: f64) -> Self {
        let rule = row.name;
        let Some(Setting { name, bound, zero_with, .. }) = setting else {
            return Self::Unused { rule, place, got };
        };
        let expected = match zero_with {
            Some(flag) if bound.holds(got) => format!("0 with {}", flag.name()),
            _ => bound.expected.to_owned(),
        };
        Self::OutOfRange { rule, setting: name, expected, got }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::OutOfRange { setting, expected, .. } => format!("pass `{setting}` {expected}"),
            Self::Unused { .. } => {
                "leave the setting out, or declare the rule with the feature it belongs to".into()
            }
            Self::Contradiction { flag, needs, .. } => {
                format!("pass a {} above 0, or leave `{}` out", needs.name(), flag.name())
            }
        }
    }
}

impl Settings {
    /// All zeros: the settings of [`Rule::Add`] and [`Rule::Replace`].
    pub const NONE: Self = Self([0.0; MOST_SETTINGS]);

    /// Whether `rule` can run with these numbers.
    ///
    /// # Errors
    ///
    /// The first setting, in their order, that is out of its range, or not 0 where the rule has none.
    pub fn check(&self, rule: Rule) -> Result<(), SettingsError> {
        let (row, flags) = (rule.row(), rule.flags());
        let mut built_on = flags.iter().filter_map(|flag| Some((flag, flag.needs()?)));
        if let Some((flag, needs)) = built_on.find(|(_, needs)| !flags.has(*needs)) {
            return Err(SettingsError::Contradiction { rule: row.name, flag, needs });
        }
        for (place, got) in self.0.into_iter().enumerate() {
            let setting = row.settings.get(place).filter(|setting| setting.is_read(flags));
            if !setting.map_or(got == 0.0, |setting| setting.takes(flags, got)) {
                return Err(SettingsError::of(row, setting, place, got));
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
