//! What to plan, and how it is written: the option `tree`.
//!
//! | text | trees |
//! |---|---|
//! | `star` | none: the root sends to all |
//! | `chain` | each sends to the next |
//! | `striped`, `striped:K` | one for each of K stripes; as many as take the least time, where K is left out |
//! | `tree:degree=T,depth=H,leaf_penalty=A` | the tree of least cost; H left out: the least that reaches all; A left out: 0 |
//! | `auto` | whichever takes the least time |

use super::limits::Limits;
use super::routes::MAX_STRIPES;
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

/// Longest text of a shape, in bytes: of a tree with the longest numbers.
pub const MAX_SHAPE_BYTES: usize = 96;
/// Where a depth is left open: as deep as reaches all, and no deeper.
pub const LEAST_DEPTH: u32 = 0;
/// The largest penalty on a leaf; no edge costs more than 1.
pub const MAX_LEAF_PENALTY: f64 = 1e6;

/// What to plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shape {
    /// The root sends to all.
    Star,
    /// Each sends to the next.
    Chain,
    /// The tree of least cost (parameter-flow.md, equation 12).
    Tree {
        /// The most children, and the most edges from the root: T and H. A depth that is left open ([`LEAST_DEPTH`]) is to be
        /// [settled](Shape::settled) before anything is planned.
        limits: Limits,
        /// What a leaf costs: alpha.
        leaf_penalty: f64,
    },
    /// A tree for each stripe, with inner nodes that no other has.
    Striped {
        /// How many; `None`: as many as take the least time.
        stripes: Option<u32>,
    },
    /// Whichever of these takes the least time.
    Auto,
}

/// Why a text is no shape.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {}, got `{got}`", .what.expected())]
pub struct ShapeError {
    /// What is wrong.
    pub what: WrongShape,
    /// The part of the text that is.
    pub got: String,
}

/// What is wrong with a text that should be a shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WrongShape {
    /// It begins with no shape's name, or a shape has something behind its name that has no numbers.
    Name,
    /// The number of stripes.
    Stripes,
    /// A tree's settings: there is none of that name, or it comes twice, or the degree is missing.
    Settings,
    /// The degree.
    Degree,
    /// The depth.
    Depth,
    /// The penalty on leaves.
    LeafPenalty,
}

impl WrongShape {
    /// What was expected instead.
    pub fn expected(self) -> String {
        match self {
            Self::Name => {
                "star, auto, chain, striped, striped:STRIPES or tree:degree=T,depth=H,leaf_penalty=A".into()
            }
            Self::Stripes => format!("1 to {MAX_STRIPES} stripes, as in striped:8"),
            Self::Settings => {
                "tree:degree=T,depth=H,leaf_penalty=A, in which all but the degree may be left out".into()
            }
            Self::Degree => "a degree of at least 1, as in tree:degree=2".into(),
            Self::Depth => "a depth of at least 1, as in tree:degree=2,depth=5, or none: the least".into(),
            Self::LeafPenalty => format!("a leaf_penalty from 0 to {MAX_LEAF_PENALTY}"),
        }
    }
}

impl Shape {
    /// The same for so many hosts: a depth that was left open is the least that reaches all of them, and there are no more stripes than
    /// hosts.
    #[must_use]
    pub fn settled(self, hosts: usize) -> Self {
        match self {
            Self::Tree { limits: Limits { degree, depth: LEAST_DEPTH }, leaf_penalty } => {
                let depth = Limits::least_depth(hosts, degree).unwrap_or(LEAST_DEPTH);
                Self::Tree { limits: Limits { degree, depth }, leaf_penalty }
            }
            Self::Striped { stripes: Some(stripes) } => {
                Self::Striped { stripes: Some(stripes.min(hosts.max(1) as u32)) }
            }
            other => other,
        }
    }
}

impl Display for Shape {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Star => f.write_str("star"),
            Self::Chain => f.write_str("chain"),
            Self::Auto => f.write_str("auto"),
            Self::Striped { stripes: None } => f.write_str("striped"),
            Self::Striped { stripes: Some(stripes) } => write!(f, "striped:{stripes}"),
            Self::Tree { limits: Limits { degree, depth }, leaf_penalty } => {
                write!(f, "tree:degree={degree}")?;
                if depth != LEAST_DEPTH {
                    write!(f, ",depth={depth}")?;
                }
                match leaf_penalty {
                    0.0 => Ok(()),
                    // Not a row of zeros: the text is short whatever the number.
                    small if small < 1e-4 => write!(f, ",leaf_penalty={small:e}"),
                    penalty => write!(f, ",leaf_penalty={penalty}"),
                }
            }
        }
    }
}

impl FromStr for Shape {
    type Err = ShapeError;

    fn from_str(text: &str) -> Result<Self, ShapeError> {
        let wrong = |what, got: &str| Err(ShapeError { what, got: got.to_owned() });
        let (name, behind) = match text.split_once(':') {
            Some((name, behind)) => (name, Some(behind)),
            None => (text, None),
        };
        match (name, behind) {
            ("star", None) => Ok(Self::Star),
            ("chain", None) => Ok(Self::Chain),
            ("auto", None) => Ok(Self::Auto),
            ("striped", None) => Ok(Self::Striped { stripes: None }),
            ("striped", Some(behind)) => match number(behind) {
                Some(stripes) if stripes as usize <= MAX_STRIPES => {
                    Ok(Self::Striped { stripes: Some(stripes) })
                }
                _ => wrong(WrongShape::Stripes, behind),
            },
            ("tree", Some(behind)) => tree(behind),
            ("tree", None) => wrong(WrongShape::Settings, text),
            _ => wrong(WrongShape::Name, text),
        }
    }
}

/// A number of at least 1, in digits alone.
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|&number| number > 0 && text.bytes().all(|byte| byte.is_ascii_digit()))
}

fn tree(settings: &str) -> Result<Shape, ShapeError> {
    let wrong = |what, got: &str| ShapeError { what, got: got.to_owned() };
    let (mut degree, mut depth, mut penalty) = (None, None, None);
    for setting in settings.split(',') {
        let Some((name, value)) = setting.split_once('=') else {
            return Err(wrong(WrongShape::Settings, setting));
        };
        let twice = match name {
            "degree" => {
                let degrees = number(value).ok_or_else(|| wrong(WrongShape::Degree, value))?;
                degree.replace(degrees).is_some()
            }
            "depth" => {
                let edges = number(value).ok_or_else(|| wrong(WrongShape::Depth, value))?;
                depth.replace(edges).is_some()
            }
            "leaf_penalty" => {
                let costs = value.parse().ok().filter(|cost| (0.0..=MAX_LEAF_PENALTY).contains(cost));
                // Minus zero is another text for the same.
                let costs = costs.ok_or_else(|| wrong(WrongShape::LeafPenalty, value))? + 0.0;
                penalty.replace(costs).is_some()
            }
            _ => true,
        };
        if twice {
            return Err(wrong(WrongShape::Settings, setting));
        }
    }
    let degree = degree.ok_or_else(|| wrong(WrongShape::Settings, settings))?;
    let limits = Limits { degree, depth: depth.unwrap_or(LEAST_DEPTH) };
    Ok(Shape::Tree { limits, leaf_penalty: penalty.unwrap_or(0.0) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_shape() -> impl Strategy<Value = Shape> {
        let limits = (1..=u32::MAX, any::<u32>()).prop_map(|(degree, depth)| Limits { degree, depth });
        prop_oneof![
            Just(Shape::Star),
            Just(Shape::Chain),
            Just(Shape::Auto),
            Just(Shape::Striped { stripes: None }),
            (1..=MAX_STRIPES as u32).prop_map(|stripes| Shape::Striped { stripes: Some(stripes) }),
            (limits, prop_oneof![Just(0.0), 0.0..=MAX_LEAF_PENALTY, 0.0..1e-300])
                .prop_map(|(limits, leaf_penalty)| Shape::Tree { limits, leaf_penalty }),
        ]
    }

    proptest! {
        #[test]
        fn a_shape_reads_back_as_it_was_written_and_is_short(shape in any_shape()) {
            let text = shape.to_string();
            prop_assert!(text.len() <= MAX_SHAPE_BYTES, "{text}");
            prop_assert_eq!(text.parse(), Ok(shape));
        }

        #[test]
        fn what_is_no_shape_is_refused_with_what_was_expected(text in "(tree|striped|star|x)?[:=,a-z0-9.-]{0,12}") {
            match text.parse::<Shape>() {
                Ok(shape) => prop_assert_eq!(shape.to_string().parse(), Ok(shape)),
                Err(error) => prop_assert!(error.to_string().starts_with("expected "), "{error}"),
            }
        }
    }

    #[test]
    fn what_may_be_left_out_is_left_out() {
        let limits = |degree, depth| Limits { degree, depth };
        for (text, shape) in [
            ("tree:degree=2", Shape::Tree { limits: limits(2, LEAST_DEPTH), leaf_penalty: 0.0 }),
            ("tree:degree=2,depth=3", Shape::Tree { limits: limits(2, 3), leaf_penalty: 0.0 }),
            (
                "tree:degree=3,leaf_penalty=0.5",
                Shape::Tree { limits: limits(3, LEAST_DEPTH), leaf_penalty: 0.5 },
            ),
            ("striped:8", Shape::Striped { stripes: Some(8) }),
        ] {
            assert_eq!((text.parse(), shape.to_string()), (Ok(shape), text.to_owned()));
        }
        let given = "tree:leaf_penalty=-0.0,depth=1,degree=1".parse::<Shape>().unwrap();
        assert_eq!(given.to_string(), "tree:degree=1,depth=1", "in any order");
    }

    #[test]
    fn what_is_wrong_is_named_with_what_was_expected() {
        for (text, what, got) in [
            ("", WrongShape::Name, ""),
            ("Star", WrongShape::Name, "Star"),
            ("star:2", WrongShape::Name, "star:2"),
            ("auto:2", WrongShape::Name, "auto:2"),
            ("ring", WrongShape::Name, "ring"),
            ("striped:0", WrongShape::Stripes, "0"),
            ("striped:65", WrongShape::Stripes, "65"),
            ("striped:+8", WrongShape::Stripes, "+8"),
            ("striped:", WrongShape::Stripes, ""),
            ("tree", WrongShape::Settings, "tree"),
            ("tree:", WrongShape::Settings, ""),
            ("tree:2", WrongShape::Settings, "2"),
            ("tree:depth=2", WrongShape::Settings, "depth=2"),
            ("tree:degree=2,degree=3", WrongShape::Settings, "degree=3"),
            ("tree:degree=2,width=3", WrongShape::Settings, "width=3"),
            ("tree:degree=0", WrongShape::Degree, "0"),
            ("tree:degree=-1", WrongShape::Degree, "-1"),
            ("tree:degree=4294967296", WrongShape::Degree, "4294967296"),
            ("tree:degree=2,depth=0", WrongShape::Depth, "0"),
            ("tree:degree=2,depth=", WrongShape::Depth, ""),
            ("tree:degree=2,leaf_penalty=-0.5", WrongShape::LeafPenalty, "-0.5"),
            ("tree:degree=2,leaf_penalty=NaN", WrongShape::LeafPenalty, "NaN"),
            ("tree:degree=2,leaf_penalty=inf", WrongShape::LeafPenalty, "inf"),
            ("tree:degree=2,leaf_penalty=1000001", WrongShape::LeafPenalty, "1000001"),
        ] {
            let error = text.parse::<Shape>().unwrap_err();
            assert_eq!(error, ShapeError { what, got: got.to_owned() }, "{text}");
            assert_eq!(error.to_string(), format!("expected {}, got `{got}`", what.expected()));
        }
    }

    #[test]
    fn a_depth_that_is_left_open_is_the_least_that_reaches_all() {
        let settled = |text: &str, hosts| text.parse::<Shape>().unwrap().settled(hosts).to_string();
        assert_eq!(settled("tree:degree=2", 6), "tree:degree=2,depth=2");
        assert_eq!(settled("tree:degree=2,leaf_penalty=0.5", 7), "tree:degree=2,depth=3,leaf_penalty=0.5");
        assert_eq!(settled("tree:degree=2,depth=1", 7), "tree:degree=2,depth=1", "what is said stays");
        assert_eq!(settled("striped", 7), "striped");
    }
}
