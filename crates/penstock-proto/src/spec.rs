//! What a tensor is declared to be. Every worker declares the same; the first declaration decides, and a different one is
//! refused with the name of what differs.

use crate::consistency::{Consistency, MAX_SLACK};
use crate::encoding::Agreed;
use crate::propagation::Propagation;
use crate::text::MAX_TEXT_BYTES;
use crate::travel::{Registry, Terms, Travel, TravelError};
use crate::update::Updates;
use penstock_kernels::{Dtype, Plan, Rule, sums_exactly};
use serde::{Deserialize, Serialize};

/// Longest name of a tensor, in bytes: a declaration has to fit into one control message.
pub const MAX_NAME_BYTES: usize = 512;
/// Most dimensions of a tensor (NumPy's own limit is 64).
pub const MAX_DIMENSIONS: usize = 64;
/// Largest tensor: chunk indices of the smallest chunk size stay below 2^31.
pub const MAX_TENSOR_BYTES: u64 = 1 << 42;

/// How the workers' contributions become one gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reduce {
    /// Their sum.
    Sum,
    /// Their sum divided by the number of live workers.
    Mean,
}

/// As Python and messages say it.
impl std::fmt::Display for Reduce {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
        })
    }
}

/// A tensor's declaration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TensorSpec {
    /// Its key: 1 to [`MAX_NAME_BYTES`] bytes without control characters.
    pub name: String,
    /// Its shape; empty for a scalar. No dimension is 0.
    pub shape: Vec<u64>,
    /// Element type.
    pub dtype: Dtype,
    /// The fold: what the home does with contributions.
    pub rule: Rule,
    /// What a reader must see where it does not say.
    pub consistency: Consistency,
    /// Who moves values to the readers.
    pub propagation: Propagation,
    /// Sum or mean.
    pub reduce: Reduce,
    /// Factor on the reduced gradient, before clipping.
    pub rescale: f64,
    /// Each element of the reduced gradient is clipped to [-clip, clip].
    pub clip: Option<f64>,
    /// Whether a contribution with a NaN or an infinity is refused.
    pub refuse_nonfinite: bool,
    /// How its chunks travel between hosts.
    pub travel: Travel,
}

/// Why a tensor cannot be declared like this.
#[derive(Debug, Clone, PartialEq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum SpecError {
    /// The name is empty, too long, or holds control characters.
    #[error("expected a tensor name of 1 to {MAX_NAME_BYTES} bytes without control characters, got {got:?}")]
    BadName {
        /// The name, cut to 80 characters.
        got: String,
    },
    /// A dimension is 0, or there are too many.
    #[error("`{name}`: expected at most {MAX_DIMENSIONS} dimensions, each at least 1, got shape {got:?}")]
    BadShape {
        /// The tensor.
        name: String,
        /// The shape.
        got: Vec<u64>,
    },
    /// The tensor is larger than any tensor may be.
    #[error("`{name}`: expected at most {MAX_TENSOR_BYTES} bytes, got shape {got:?}")]
    TooLarge {
        /// The tensor.
        name: String,
        /// The shape.
        got: Vec<u64>,
    },
    /// A number is out of its range.
    #[error("`{name}`: expected {expected} for `{what}`, got {got}")]
    BadNumber {
        /// The tensor.
        name: String,
        /// Which number.
        what: String,
        /// Its range.
        expected: String,
        /// What came.
        got: f64,
    },
    /// Each contribution would replace the value by a part of itself.
    #[error(
        "`{name}`: expected bsp where contributions replace the value by their mean, got {consistency}: nothing is averaged there"
    )]
    ReplacesAlone {
        /// The tensor.
        name: String,
        /// The consistency that was asked for.
        consistency: Consistency,
    },
    /// What a filter holds back of a value belongs to the next: here nothing of it does.
    #[error(
        "`{name}`: expected no filter of values where each contribution replaces the value: what is held back of one would stand in the next"
    )]
    FiltersReplaced {
        /// The tensor.
        name: String,
    },
    /// Values cannot be made of such updates elsewhere.
    #[error("`{name}`: expected {expected} where updates are broadcast (propagation `update`), got {got}")]
    Updates {
        /// The tensor.
        name: String,
        /// What it has to be declared with, and what to declare instead.
        expected: String,
        /// What it was declared with.
        got: String,
    },
    /// It cannot travel as it is declared to.
    #[error("`{name}`: {why}")]
    Travel {
        /// The tensor.
        name: String,
        /// Why.
        why: TravelError,
    },
}

impl SpecError {
    /// All texts in it that are to be shown cut and clean.
    pub(crate) fn texts(&mut self) -> Vec<&mut String> {
        match self {
            Self::BadNumber { name, what, expected, got: _ } => vec![name, what, expected],
            // It is shown as it would be spelled in a program: a line's end in it is what is wrong with it.
            Self::BadName { got } => Vec::from_iter((got.len() > MAX_TEXT_BYTES).then_some(got)),
            Self::Updates { name, expected, got } => vec![name, expected, got],
            Self::FiltersReplaced { name }
            | Self::BadShape { name, .. }
            | Self::TooLarge { name, .. }
            | Self::ReplacesAlone { name, .. } => vec![name],
            Self::Travel { name, why } => std::iter::once(name).chain(why.texts()).collect(),
        }
    }
}

impl TensorSpec {
    /// Elements; `None` if they overflow or a dimension is 0.
    pub fn elements(&self) -> Option<u64> {
        let product = self.shape.iter().try_fold(1u64, |product, &dimension| product.checked_mul(dimension));
        product.filter(|&elements| elements > 0)
    }

    /// Bytes of the value. Call it on a checked declaration.
    pub fn bytes(&self) -> u64 {
        self.elements().unwrap_or(0) * self.dtype.size() as u64
    }

    /// Bytes of optimizer state for `elements` elements.
    pub fn state_bytes(&self, elements: u64) -> u64 {
        elements * (self.rule.slots().count() * self.dtype.accumulator_size()) as u64
    }

    /// What the kernels need to know.
    pub fn plan(&self) -> Plan {
        Plan { dtype: self.dtype, rule: self.rule, clip: self.clip, refuse_nonfinite: self.refuse_nonfinite }
    }

    /// Factor on the sum of contributions when `live` workers are live.
    pub fn scale(&self, live: u32) -> f64 {
        match self.reduce {
            Reduce::Sum => self.rescale,
            Reduce::Mean => self.rescale / f64::from(live.max(1)),
        }
    }

    /// Judges a declaration, foreign or our own, in a process that has these codecs and filters. Returns what it comes to
    /// there.
    pub fn check(&self, known: &Registry) -> Result<Terms, SpecError> {
        self.check_name()?;
        self.check_shape()?;
        self.check_numbers()?;
        self.check_replacement()?;
        let refused = |why| SpecError::Travel { name: self.name.clone(), why };
        let terms = self.terms(known).map_err(refused)?;
        if self.rule == Rule::Replace && terms.filter.holds_back() {
            return Err(SpecError::FiltersReplaced { name: self.name.clone() });
        }
        self.check_updates(&terms)?;
        Ok(terms)
    }

    /// Whoever is sent updates comes to the home's value by the home's own steps, with all that these work on.
    fn check_updates(&self, terms: &Terms) -> Result<(), SpecError> {
        if self.propagation != Propagation::Update {
            return Ok(());
        }
        let refused = |expected: &str, got: String| {
            let (name, expected) = (self.name.clone(), expected.to_owned());
            Err(SpecError::Updates { name, expected, got })
        };
        if self.consistency != Consistency::Bsp {
            let expected =
                "bsp (out of step each contribution is an update of its own: `broadcast` sends values)";
            return refused(expected, self.consistency.to_string());
        }
        if terms.filter.holds_back() {
            let expected =
                "no filter of broadcasts (what readers compute is the whole value; one of pushes may be set)";
            return refused(expected, "a filter that holds some of it back".to_owned());
        }
        if !sums_exactly(self.dtype) {
            let expected =
                "float32 or float64 (half precision is summed in float32: `broadcast` sends values)";
            return refused(expected, self.dtype.name().to_owned());
        }
        Ok(())
    }

    /// What it comes to in a process that has these codecs and filters.
    pub fn terms(&self, known: &Registry) -> Result<Terms, TravelError> {
        let propagation = self.propagation;
        let shows_versions_only = propagation.shows_versions_only(self.consistency);
        let low_rank = self.travel.factors(&self.shape, self.dtype)?;
        let terms = self.travel.resolve(self.dtype, known)?;
        let terms = Terms { propagation, shows_versions_only, low_rank, ..terms };
        if propagation != Propagation::Update {
            return Ok(terms);
        }
        // Values go whole where they go at all: no difference is taken, and nothing is kept to take one from.
        let updates = Updates { agreed: Travel::updates(self.dtype, known), plan: self.plan() };
        Ok(Terms { values: Agreed::RAW, updates: Some(updates), ..terms })
    }

    /// Where contributions are folded one by one each has its share of the mean, so that their sum is a mean; of these the last
    /// alone would stay.
    fn check_replacement(&self) -> Result<(), SpecError> {
        let means = self.rule == Rule::Replace && self.reduce == Reduce::Mean;
        if means && !self.consistency.folds_together() {
            let (name, consistency) = (self.name.clone(), self.consistency);
            return Err(SpecError::ReplacesAlone { name, consistency });
        }
        Ok(())
    }

    fn check_name(&self) -> Result<(), SpecError> {
        let fits = (1..=MAX_NAME_BYTES).contains(&self.name.len());
        if fits && !self.name.chars().any(char::is_control) {
            return Ok(());
        }
        Err(SpecError::BadName { got: self.name.chars().take(80).collect() })
    }

    fn check_shape(&self) -> Result<(), SpecError> {
        let refused = || (self.name.clone(), self.shape.clone());
        if self.shape.len() > MAX_DIMENSIONS || self.shape.contains(&0) {
            let (name, got) = refused();
            return Err(SpecError::BadShape { name, got });
        }
        match self.elements().and_then(|elements| elements.checked_mul(self.dtype.size() as u64)) {
            Some(bytes) if bytes <= MAX_TENSOR_BYTES => Ok(()),
            _ => {
                let (name, got) = refused();
                Err(SpecError::TooLarge { name, got })
            }
        }
    }

    fn check_numbers(&self) -> Result<(), SpecError> {
        let bad = |what: &str, expected: &str, got| {
            let (name, what, expected) = (self.name.clone(), what.to_owned(), expected.to_owned());
            Err(SpecError::BadNumber { name, what, expected, got })
        };
        if !self.rescale.is_finite() {
            return bad("rescale", "a finite number", self.rescale);
        }
        if let Some(clip) = self.clip.filter(|clip| !(clip.is_finite() && *clip > 0.0)) {
            return bad("clip", "a finite number above 0", clip);
        }
        if let Consistency::Ssp(slack) = self.consistency
            && slack > MAX_SLACK
        {
            return bad("slack", &format!("0 to {MAX_SLACK}"), f64::from(slack));
        }
        Ok(())
    }

    /// The first setting in which `other` differs, as (what, ours, theirs); `None` if they agree.
    pub fn difference(&self, other: &Self) -> Option<(&'static str, String, String)> {
        let none_or = |number: Option<f64>| number.map_or_else(|| "none".to_owned(), |it| it.to_string());
        let pairs = [
            ("shape", format!("{:?}", self.shape), format!("{:?}", other.shape)),
            ("dtype", self.dtype.name().to_owned(), other.dtype.name().to_owned()),
            ("optimizer", self.rule.to_string(), other.rule.to_string()),
            ("consistency", self.consistency.to_string(), other.consistency.to_string()),
            ("propagation", self.propagation.to_string(), other.propagation.to_string()),
            ("reduce", self.reduce.to_string(), other.reduce.to_string()),
            ("rescale", self.rescale.to_string(), other.rescale.to_string()),
            ("clip", none_or(self.clip), none_or(other.clip)),
            ("refuse_nonfinite", self.refuse_nonfinite.to_string(), other.refuse_nonfinite.to_string()),
        ];
        let first = pairs.into_iter().find(|(_, ours, theirs)| ours != theirs);
        let travel = || self.travel.difference(&other.travel);
        match first {
            // Where "auto" chose, nobody has said it: the filters by which it did, programs have.
            Some(("propagation", ..)) => travel().or(first),
            _ => first.or_else(travel),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::encoding::Encoding;
    use crate::travel::Filtering;

    pub(crate) fn spec(consistency: Consistency) -> TensorSpec {
        TensorSpec {
            name: "w".into(),
            shape: vec![4, 2],
            dtype: Dtype::F32,
            rule: Rule::Add,
            consistency,
            propagation: Propagation::Pull,
            reduce: Reduce::Sum,
            rescale: 1.0,
            clip: None,
            refuse_nonfinite: false,
            travel: Travel::default(),
        }
    }

    fn check(spec: &TensorSpec) -> Result<(), SpecError> {
        spec.check(&Registry::ALL).map(drop)
    }

    #[test]
    fn a_name_that_could_break_a_terminal_is_refused() {
        for name in ["", "a\u{1b}[2J", "line\nbreak", &"x".repeat(MAX_NAME_BYTES + 1)] {
            let bad = TensorSpec { name: name.into(), ..spec(Consistency::Bsp) };
            assert!(matches!(check(&bad), Err(SpecError::BadName { .. })), "{name:?}");
        }
        assert_eq!(check(&TensorSpec { name: "層.重み".into(), ..spec(Consistency::Bsp) }), Ok(()));
    }

    #[test]
    fn a_shape_whose_size_overflows_is_refused_before_a_byte_is_allocated() {
        let bad = TensorSpec { shape: vec![u64::MAX, 3], ..spec(Consistency::Bsp) };
        assert!(matches!(check(&bad), Err(SpecError::TooLarge { .. })));
        let bad = TensorSpec { shape: vec![1 << 41], ..spec(Consistency::Bsp) };
        assert!(matches!(check(&bad), Err(SpecError::TooLarge { .. })));
        let bad = TensorSpec { shape: vec![3, 0], ..spec(Consistency::Bsp) };
        assert!(matches!(check(&bad), Err(SpecError::BadShape { .. })));
    }

    #[test]
    fn a_scalar_has_one_element() {
        let scalar = TensorSpec { shape: vec![], ..spec(Consistency::Bsp) };
        assert_eq!((check(&scalar), scalar.elements(), scalar.bytes()), (Ok(()), Some(1), 4));
    }

    #[test]
    fn a_difference_names_what_differs() {
        let ours = spec(Consistency::Bsp);
        assert_eq!(ours.difference(&ours.clone()), None);
        let theirs = TensorSpec { dtype: Dtype::F64, ..ours.clone() };
        assert_eq!(ours.difference(&theirs), Some(("dtype", "float32".into(), "float64".into())));
        let sgd = Rule::Sgd { momentum: true, nesterov: true, maximize: false };
        let theirs = TensorSpec { rule: sgd, ..ours.clone() };
        let expected = ("optimizer", "Add".into(), "SGD with momentum and nesterov".into());
        assert_eq!(ours.difference(&theirs), Some(expected));
        let theirs = TensorSpec { clip: Some(1.5), ..ours.clone() };
        assert_eq!(ours.difference(&theirs), Some(("clip", "none".into(), "1.5".into())));
        let mut theirs = ours.clone();
        theirs.travel.values.insert(0, Encoding(9));
        assert_eq!(
            ours.difference(&theirs),
            Some(("encodings of values (as `sparse` says)", "[0]".into(), "[9, 0]".into()))
        );
    }

    #[test]
    fn a_filter_of_values_is_refused_where_values_are_replaced_unless_it_holds_nothing_back() {
        let filtered = |rule, low| {
            let filter = Filtering::of_values("DVF", &[low, 1.0, 0.0, low, 0.0]).unwrap();
            let travel = Travel::filtered(Filtering::NONE, filter, Dtype::F32);
            check(&TensorSpec { rule, travel, ..spec(Consistency::Bsp) })
        };
        assert_eq!(filtered(Rule::Replace, 0.5), Err(SpecError::FiltersReplaced { name: "w".into() }));
        assert_eq!((filtered(Rule::Replace, 0.0), filtered(Rule::Add, 0.5)), (Ok(()), Ok(())));
    }

    #[test]
    fn updates_are_refused_where_others_could_not_come_to_the_home_s_value_by_them() {
        let updates = |spec: TensorSpec| TensorSpec { propagation: Propagation::Update, ..spec };
        let sends = updates(spec(Consistency::Bsp)).check(&Registry::ALL).unwrap();
        assert!(sends.updates.is_some() && !sends.values.uses_base() && !sends.holds_back());
        assert!(spec(Consistency::Bsp).check(&Registry::ALL).unwrap().updates.is_none());
        let filter = Filtering::of_values("DVF", &[0.5, 1.0, 0.0, 0.5, 0.0]).unwrap();
        let filtered = Travel::filtered(Filtering::NONE, filter, Dtype::F32);
        for (bad, expected, got) in [
            (spec(Consistency::Ssp(4)), "expected bsp", "got ssp"),
            (spec(Consistency::Asp), "expected bsp", "got asp"),
            (
                TensorSpec { travel: filtered, ..spec(Consistency::Bsp) },
                "expected no filter",
                "holds some of it back",
            ),
            (
                TensorSpec { dtype: Dtype::F16, ..spec(Consistency::Bsp) },
                "expected float32 or",
                "got float16",
            ),
            (
                TensorSpec { dtype: Dtype::Bf16, ..spec(Consistency::Bsp) },
                "expected float32 or",
                "got bfloat16",
            ),
        ] {
            assert_eq!(check(&bad), Ok(()));
            let said = check(&updates(bad)).unwrap_err().to_string();
            assert!(said.starts_with("`w`: ") && said.contains(expected) && said.contains(got), "{said}");
        }
        // Of pushes a filter may hold back what it likes: what is summed is what was sent.
        let sums = Filtering::of_sums("DVF", &[0.5, 1.0, 0.0, 0.5, 0.0]);
        let travel = Travel::filtered(sums.unwrap(), Filtering::NONE, Dtype::F32);
        assert_eq!(check(&updates(TensorSpec { travel, ..spec(Consistency::Bsp) })), Ok(()));
    }

    #[test]
    fn what_cannot_travel_as_it_is_declared_is_refused_by_the_tensor_s_name() {
        let mut bad = spec(Consistency::Bsp);
        bad.travel.contributions = vec![Encoding(200), Encoding::RAW];
        let said = check(&bad).unwrap_err().to_string();
        assert!(
            said.starts_with("`w`: expected encodings of contributions among [0, 1, 2, 3, 16, "),
            "{said}"
        );
        assert!(said.ends_with(", 55], got 200: a newer version may know it"), "{said}");
    }
}
