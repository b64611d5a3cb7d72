//! The table of optimizers: a row says everything about one but its arithmetic.
//!
//! What reads it: [`Settings::check`](super::Settings::check), the layout of a chunk's state, the C interface with its
//! defaults, and, by way of `penstock._core.optimizers()`, Python's classes and the adapter of torch, which calls its
//! optimizers by the same names.
//!
//! What a new optimizer needs, and what reports it if it is missing:
//!
//! | file | what | missed by |
//! |---|---|---|
//! | `rules.rs` | its row: torch's names, defaults and state | `tests/api/test_optimizers.py` |
//! | `NAME.rs` | its arithmetic | |
//! | `mod.rs` | the module, and the rule's arm | the compiler |
//! | `naive.rs` | its arithmetic again, in a few obvious lines | the compiler |
//! | `tests/torch.rs` | four of torch's steps | `four_steps_of_every_rule_give_torch_s_weights_and_state` |
//! | `crates/penstock-capi/src/optimizer.rs` | a constant, a function that takes its rate; a field for a new number | `tests/header.rs` |
//! | `python/penstock/optim.py` | the class: signature and docstring | `tests/api/test_optimizers.py` |
//! | `python/penstock/optim.py` | in `DIVIDED`, what its settings are divided by where each contribution is a step | `tests/torch` |
//! | `python/penstock/__init__.py` | its export | `tests/api/test_optimizers.py` |
//! | `tests/trajectories/trajectory.py` | its arguments, for steps beside torch's | `tests/trajectories/test_against_torch.py` |
//!
//! `penstock.h` is written by its test.

use serde::{Deserialize, Serialize};

/// State slots of the rule that has most.
pub(crate) const MOST_SLOTS: usize = 3;
/// Numbers that travel with a push: room for the rule that has most.
pub(super) const MOST_SETTINGS: usize = 5;

/// What a rule may be declared with; it decides which state a chunk carries, or how the sum enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flag {
    /// Keeps a velocity. A declaration by numbers asks for it by a `momentum` that is not 0.
    Momentum,
    /// Looks ahead along the velocity.
    Nesterov,
    /// Subtracts the squared mean gradient from the mean squared gradient.
    Centered,
    /// Divides by the largest second moment so far.
    Amsgrad,
    /// Climbs instead of descending.
    Maximize,
}

impl Flag {
    /// Every flag.
    pub const ALL: [Self; 5] =
        [Self::Momentum, Self::Nesterov, Self::Centered, Self::Amsgrad, Self::Maximize];

    /// As the optimizers' arguments are called.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Momentum => "momentum",
            Self::Nesterov => "nesterov",
            Self::Centered => "centered",
            Self::Amsgrad => "amsgrad",
            Self::Maximize => "maximize",
        }
    }

    /// The flag without which this one means nothing.
    pub const fn needs(self) -> Option<Self> {
        if matches!(self, Self::Nesterov) { Some(Self::Momentum) } else { None }
    }

    /// The flag of this name, which must be one: for the table below, where the compiler asks.
    const fn named(name: &str) -> Self {
        let mut at = 0;
        while at < Self::ALL.len() {
            if same(Self::ALL[at].name(), name) {
                return Self::ALL[at];
            }
            at += 1;
        }
        panic!("no flag has this name")
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A set of flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u8);

impl Flags {
    /// Whether `flag` is among them.
    pub const fn has(self, flag: Flag) -> bool {
        self.0 & flag.bit() != 0
    }

    /// The flags, in the order of [`Flag::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Flag> {
        Flag::ALL.into_iter().filter(move |flag| self.has(*flag))
    }

    /// Whether `flag` is among them, or nothing is asked.
    const fn allow(self, flag: Option<Flag>) -> bool {
        match flag {
            Some(flag) => self.has(flag),
            None => true,
        }
    }
}

impl FromIterator<Flag> for Flags {
    fn from_iter<T: IntoIterator<Item = Flag>>(flags: T) -> Self {
        Self(flags.into_iter().fold(0, |bits, flag| bits | flag.bit()))
    }
}

/// What a number may be: from 0 up to, not including, `below`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// The least number that is too large; infinite for all that are finite.
    pub below: f64,
    /// The same in words.
    pub expected: &'static str,
}

impl Bound {
    /// Whether `number` lies within.
    pub const fn holds(&self, number: f64) -> bool {
        0.0 <= number && number < self.below
    }
}

/// A number of a rule, which may change from one push to the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// torch's own name; the two of its `betas` are `beta1` and `beta2`.
    pub name: &'static str,
    /// torch's own default.
    pub default: f64,
    /// What it may be: what torch takes, or less where that can only be a mistake.
    pub bound: Bound,
    /// The flag without which the rule does not read it, and it must be 0.
    pub needs: Option<Flag>,
    /// The flag with which it must be 0.
    pub zero_with: Option<Flag>,
}

impl Setting {
    /// Whether a rule with these flags reads it.
    pub const fn is_read(&self, flags: Flags) -> bool {
        flags.allow(self.needs)
    }

    /// Whether a rule with these flags, which reads it, runs with this number.
    pub(super) const fn takes(&self, flags: Flags, number: f64) -> bool {
        let may_be_any = match self.zero_with {
            Some(flag) => !flags.has(flag),
            None => true,
        };
        self.bound.holds(number) && (may_be_any || number == 0.0)
    }

    const fn only_with(self, flag: Flag) -> Self {
        Self { needs: Some(flag), ..self }
    }

    const fn zero_with(self, flag: Flag) -> Self {
        Self { zero_with: Some(flag), ..self }
    }
}

const fn at_least_zero(name: &'static str, default: f64) -> Setting {
    let bound = Bound { below: f64::INFINITY, expected: "finite and at least 0" };
    Setting { name, default, bound, needs: None, zero_with: None }
}

const fn below_one(name: &'static str, default: f64) -> Setting {
    let bound = Bound { below: 1.0, expected: "at least 0 and below 1" };
    Setting { name, default, bound, needs: None, zero_with: None }
}

/// A state array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// torch's own name.
    pub name: &'static str,
    /// The flag without which it is not there.
    pub needs: Option<Flag>,
}

const fn slot(name: &'static str) -> Slot {
    Slot { name, needs: None }
}

const fn slot_with(flag: Flag, name: &'static str) -> Slot {
    Slot { name, needs: Some(flag) }
}

/// A row of [`RULES`].
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The class in `torch.optim` and in Python's `penstock`. In small letters it names the rule between Python and the core, in
    /// capitals C's constant.
    pub name: &'static str,
    /// Its numbers, in the order in which they stand in [`Settings`](super::Settings).
    pub settings: &'static [Setting],
    /// Its state arrays, in the order in which they stand in a chunk's state.
    pub slots: &'static [Slot],
    /// What it may be declared with.
    pub flags: &'static [Flag],
    /// The rule without flags.
    pub plain: Rule,
}

/// Makes [`Rule`] and [`RULES`]: a variant with its flags is followed by the rest of its row.
macro_rules! rules {
    ($(
        $(#[$doc:meta])*
        $rule:ident $({ $($(#[$flag_doc:meta])* $flag:ident,)+ })?
        name: $name:literal,
        settings: $settings:expr,
        slots: $slots:expr;
    )+) => {
        /// The update rule of a tensor. Fixed when the tensor is declared: it decides which state a chunk carries.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Rule {
            $($(#[$doc])* $rule $({ $($(#[$flag_doc])* $flag: bool,)+ })?,)+
        }

        /// Where a rule stands in the table.
        enum Place {
            $($rule,)+
        }

        /// Every optimizer. Their order is that of [`Rule`] and of C's constants.
        pub static RULES: &[Row] = &[$(Row {
            name: $name,
            settings: &$settings,
            slots: &$slots,
            flags: &[$($(Flag::named(stringify!($flag)),)+)?],
            plain: Rule::$rule $({ $($flag: false,)+ })?,
        },)+];

        impl Rule {
            /// The rule's row.
            pub fn row(&self) -> &'static Row {
                let place = match self {
                    $(Self::$rule { .. } => Place::$rule,)+
                };
                &RULES[place as usize]
            }

            /// What is set of what it may be declared with.
            pub const fn flags(&self) -> Flags {
                Flags(match *self {
                    $(Self::$rule $({ $($flag,)+ })? => {
                        0 $($(| ($flag as u8 * const { Flag::named(stringify!($flag)).bit() }))+)?
                    })+
                })
            }

            /// The same rule with `flags`, of those that it has.
            #[must_use]
            pub const fn with(&self, flags: Flags) -> Self {
                match self {
                    $(Self::$rule { .. } => Self::$rule $({
                        $($flag: flags.has(const { Flag::named(stringify!($flag)) }),)+
                    })?,)+
                }
            }
        }
    };
}

rules! {
    /// `value += g`.
    Add
    name: "Add",
    settings: [],
    slots: [];

    /// `value = g`.
    Replace
    name: "Replace",
    settings: [],
    slots: [];

    /// Stochastic gradient descent.
    Sgd {
        /// Keeps a velocity.
        momentum,
        /// Looks ahead along the velocity; needs `momentum`.
        nesterov,
        /// Climbs instead of descending.
        maximize,
    }
    name: "SGD",
    settings: [
        at_least_zero("lr", 1e-3),
        at_least_zero("momentum", 0.0).only_with(Flag::Momentum),
        at_least_zero("dampening", 0.0).only_with(Flag::Momentum).zero_with(Flag::Nesterov),
        at_least_zero("weight_decay", 0.0),
    ],
    slots: [slot_with(Flag::Momentum, "momentum_buffer")];

    /// AdaGrad (Duchi et al. 2011).
    Adagrad {
        /// Climbs instead of descending.
        maximize,
    }
    name: "Adagrad",
    settings: [
        at_least_zero("lr", 1e-2),
        at_least_zero("lr_decay", 0.0),
        at_least_zero("eps", 1e-10),
        at_least_zero("weight_decay", 0.0),
    ],
    slots: [slot("sum")];

    /// RMSprop (Hinton, lecture 6; centered: Graves 2013).
    RmsProp {
        /// Keeps a velocity.
        momentum,
        /// Subtracts the squared mean gradient from the mean squared gradient.
        centered,
        /// Climbs instead of descending.
        maximize,
    }
    name: "RMSprop",
    settings: [
        at_least_zero("lr", 1e-2),
        below_one("alpha", 0.99),
        at_least_zero("eps", 1e-8),
        at_least_zero("weight_decay", 0.0),
        at_least_zero("momentum", 0.0).only_with(Flag::Momentum),
    ],
    slots: [
        slot("square_avg"),
        slot_with(Flag::Momentum, "momentum_buffer"),
        slot_with(Flag::Centered, "grad_avg"),
    ];

    /// Adam (Kingma and Ba 2015), weight decay as an L2 penalty.
    Adam {
        /// Divides by the largest second moment so far (Reddi et al. 2018).
        amsgrad,
        /// Climbs instead of descending.
        maximize,
    }
    name: "Adam",
    settings: [
        at_least_zero("lr", 1e-3),
        below_one("beta1", 0.9),
        below_one("beta2", 0.999),
        at_least_zero("eps", 1e-8),
        at_least_zero("weight_decay", 0.0),
    ],
    slots: [slot("exp_avg"), slot("exp_avg_sq"), slot_with(Flag::Amsgrad, "max_exp_avg_sq")];

    /// Adam with decoupled weight decay (Loshchilov and Hutter 2019).
    AdamW {
        /// Divides by the largest second moment so far (Reddi et al. 2018).
        amsgrad,
        /// Climbs instead of descending.
        maximize,
    }
    name: "AdamW",
    settings: [
        at_least_zero("lr", 1e-3),
        below_one("beta1", 0.9),
        below_one("beta2", 0.999),
        at_least_zero("eps", 1e-8),
        at_least_zero("weight_decay", 1e-2),
    ],
    slots: [slot("exp_avg"), slot("exp_avg_sq"), slot_with(Flag::Amsgrad, "max_exp_avg_sq")];
}

impl Rule {
    /// The rule's name, as messages call it.
    pub fn name(&self) -> &'static str {
        self.row().name
    }

    /// Names of the state arrays, torch's own, in the order in which they stand in a chunk's state.
    pub fn slots(self) -> impl Iterator<Item = &'static str> {
        let flags = self.flags();
        self.row().slots.iter().filter(move |slot| flags.allow(slot.needs)).map(|slot| slot.name)
    }
}

/// As messages say it: `SGD with momentum and nesterov`.
impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())?;
        let mut before = " with ";
        self.flags()
            .iter()
            .try_for_each(|flag| write!(f, "{}{}", std::mem::replace(&mut before, " and "), flag.name()))
    }
}

const fn same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

// What a row may not say: more than there is room for, or a default that is refused as the rule is declared by default.
const _: () = {
    let mut at = 0;
    while at < RULES.len() {
        let row = &RULES[at];
        assert!(row.settings.len() <= MOST_SETTINGS && row.slots.len() <= MOST_SLOTS);
        let mut place = 0;
        while place < row.settings.len() {
            let Setting { default, bound, needs, .. } = row.settings[place];
            assert!(bound.holds(default) && (needs.is_none() || default == 0.0));
            place += 1;
        }
        at += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_s_flags_make_it_again() {
        for row in RULES {
            assert_eq!(row.plain.flags(), Flags::default(), "{}", row.name);
            let all = row.plain.with(row.flags.iter().copied().collect());
            assert_eq!(all.flags().iter().collect::<Vec<_>>().len(), row.flags.len(), "{}", row.name);
            assert_eq!(all.with(Flags::default()), row.plain);
            assert_eq!((all.row().name, row.plain.row().name), (row.name, row.name));
            for &flag in row.flags {
                let one = row.plain.with([flag].into_iter().collect());
                assert_eq!(one.flags().iter().collect::<Vec<_>>(), [flag], "{}", row.name);
            }
        }
    }

    #[test]
    fn what_a_row_needs_is_in_it() {
        for row in RULES {
            let settings = row.settings.iter().flat_map(|setting| [setting.needs, setting.zero_with]);
            let slots = row.slots.iter().map(|slot| slot.needs);
            for flag in settings.chain(slots).chain(row.flags.iter().map(|flag| flag.needs())).flatten() {
                assert!(row.flags.contains(&flag), "{}: {flag:?}", row.name);
            }
        }
    }

    #[test]
    fn a_rule_says_what_it_is_declared_with() {
        let sgd = Rule::Sgd { momentum: true, nesterov: true, maximize: false };
        assert_eq!(sgd.to_string(), "SGD with momentum and nesterov");
        assert_eq!(Rule::Add.to_string(), "Add");
    }

    #[test]
    fn state_follows_the_flags_in_torch_s_order() {
        let rms = |momentum, centered| -> Vec<_> {
            Rule::RmsProp { momentum, centered, maximize: true }.slots().collect()
        };
        assert_eq!(rms(false, false), ["square_avg"]);
        assert_eq!(rms(false, true), ["square_avg", "grad_avg"]);
        assert_eq!(rms(true, true), ["square_avg", "momentum_buffer", "grad_avg"]);
        assert_eq!(Rule::Replace.slots().count(), 0);
    }
}
