//! What a table is declared to be, and what may be wrong with it.

use super::rows::RowSet;
use crate::Rank;
use crate::account::Exhausted;
use crate::consistency::MAX_SLACK;
use crate::text::{Hint, MAX_TEXT_BYTES};
use penstock_kernels::Dtype;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A table's number in its job.
pub type TableId = u32;
/// Most rows of one worker in one table: slots are 32 bits.
pub const MAX_OWN_ROWS: u64 = 1 << 31;
/// Longest row, in bytes.
pub const MAX_ROW_BYTES: u32 = 1 << 24;
/// Most tables of a job.
pub const MAX_TABLES: u32 = 1 << 16;

/// How rows move where producer and consumer share no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Propagation {
    /// Every set is sent to its consumers at once (lapser.md, 3.2.2.A: Push).
    Eager,
    /// A row is fetched when a get finds it too old (lapser.md, 3.2.2.B: Pull).
    Lazy,
    /// A row is sent when the next get of a consumer, one clock on, would find it too old (lapser.md, 6.1: conservative).
    Bounded,
}

impl fmt::Display for Propagation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Eager => "eager",
            Self::Lazy => "lazy",
            Self::Bounded => "bounded",
        })
    }
}

/// A propagation that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected propagation `eager`, `lazy` or `bounded`, got `{got}`")]
pub struct ParsePropagationError {
    got: String,
}

impl FromStr for Propagation {
    type Err = ParsePropagationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "eager" => Ok(Self::Eager),
            "lazy" => Ok(Self::Lazy),
            "bounded" => Ok(Self::Bounded),
            _ => Err(ParsePropagationError { got: text.to_owned() }),
        }
    }
}

/// How old a row may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Slack {
    /// At most this many clocks: 0 is BSP, more is SSP (lapser.md, 3.1.3.C).
    Bound(u32),
    /// However old it is: ASP.
    Unbounded,
}

impl Slack {
    /// Least version that a get at `clock` must return.
    pub fn required(self, clock: u64) -> u64 {
        match self {
            Self::Bound(slack) => clock.saturating_sub(u64::from(slack)),
            Self::Unbounded => 0,
        }
    }
}

/// A table's declaration: every worker declares the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableSpec {
    /// Its key, as a tensor's.
    pub name: String,
    /// Rows: keys are `0..rows`.
    pub rows: u64,
    /// Bytes of a row.
    pub row_bytes: u32,
    /// Whether any number of producers may add to a row, and as what. Without it a row has one producer.
    pub sum: Option<Dtype>,
    /// How rows move.
    pub propagation: Propagation,
    /// What a row holds, in the program's words: their elements' type, and how many. Empty where it does not say.
    pub holds: String,
}

/// Longest words for what a row holds.
pub const MAX_HOLDS_BYTES: usize = 256;

/// Why a table's declaration is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum TableError {
    /// The name.
    #[error("expected a table name of 1 to 512 bytes without control characters, got {got:?}")]
    BadName {
        /// The name, cut to 80 characters.
        got: String,
    },
    /// What the worker, or its job, may make the server keep is used up.
    #[error("table `{name}`: {why}")]
    Exhausted {
        /// The table.
        name: String,
        /// What was asked, what is left.
        why: Exhausted,
    },
    /// Its last declaration failed, and workers that made it do not know yet.
    #[error(
        "table `{name}`: its last declaration failed ({why}), and workers {ranks:?} have not been told yet"
    )]
    NotAllTold {
        /// The table.
        name: String,
        /// Why it failed. As text: an error within an error would be as deep as its sender likes.
        why: String,
        /// Those workers.
        ranks: Vec<Rank>,
    },
    /// Row length.
    #[error("table `{name}`: expected rows of 1 to {MAX_ROW_BYTES} bytes, got {got}")]
    BadRowBytes {
        /// The table.
        name: String,
        /// What came.
        got: u32,
    },
    /// Sums are of floating-point numbers.
    #[error(
        "table `{name}`: expected float32 or float64 for a sum, in whole elements, got {got} in rows of {row_bytes} bytes"
    )]
    BadSum {
        /// The table.
        name: String,
        /// The element type.
        got: String,
        /// Bytes of a row.
        row_bytes: u32,
    },
    /// A row outside the table.
    #[error("table `{name}`: expected rows below {rows}, got row {got} among those that are {what}")]
    RowOutOfRange {
        /// The table.
        name: String,
        /// Its rows.
        rows: u64,
        /// The row.
        got: u64,
        /// Produced or consumed.
        what: String,
    },
    /// More rows than a worker may have.
    #[error("table `{name}`: expected at most {MAX_OWN_ROWS} rows {what} by one worker, got {got}")]
    TooManyRows {
        /// The table.
        name: String,
        /// Produced or consumed.
        what: String,
        /// How many.
        got: u64,
    },
    /// Two workers want to produce a row of a table without a sum.
    #[error(
        "table `{name}`: expected one producer for each row, got workers {first} and {second} for row {row}"
    )]
    TwoProducers {
        /// The table.
        name: String,
        /// The row.
        row: u64,
        /// One.
        first: Rank,
        /// The other.
        second: Rank,
    },
    /// A worker consumes what no worker produces.
    #[error(
        "table `{name}`: worker {rank} consumes row {row}, which no worker produces{}",
        without(.gone)
    )]
    NoProducer {
        /// The table.
        name: String,
        /// The row.
        row: u64,
        /// The consumer.
        rank: Rank,
        /// Workers that went before they declared the table.
        gone: Vec<Rank>,
    },
    /// Two workers declare different tables of one name.
    #[error(
        "table `{name}`: expected the same declaration on every worker; they differ in {what}: {first} here, {second} elsewhere"
    )]
    Differs {
        /// The table.
        name: String,
        /// What differs.
        what: String,
        /// What the first said.
        first: String,
        /// What another said.
        second: String,
    },
    /// It was declared by this worker before, but differently.
    #[error("table `{name}` was declared before by this worker with other {what}: {before} then, {now} now")]
    DeclaredTwice {
        /// The table.
        name: String,
        /// What differs.
        what: String,
        /// What it was.
        before: String,
        /// What came.
        now: String,
    },
    /// There are too many tables.
    #[error("expected at most {MAX_TABLES} tables in a job")]
    TooManyTables,
    /// Another message than the protocol has there.
    #[error("unexpected: {what}")]
    OutOfTurn {
        /// What came.
        what: String,
    },
}

/// Names the workers that went without saying which rows they produce.
fn without(gone: &[Rank]) -> String {
    match gone {
        [] => String::new(),
        gone => format!("; workers {gone:?} left before they declared the table"),
    }
}

impl TableError {
    /// All texts in it that are to be shown cut and clean.
    pub(crate) fn texts(&mut self) -> Vec<&mut String> {
        match self {
            Self::TooManyTables => Vec::new(),
            Self::NotAllTold { name, why: what, .. }
            | Self::BadSum { name, got: what, .. }
            | Self::RowOutOfRange { name, what, .. }
            | Self::TooManyRows { name, what, .. } => vec![name, what],
            Self::Differs { name, what, first: one, second: other }
            | Self::DeclaredTwice { name, what, before: one, now: other } => vec![name, what, one, other],
            // It is shown as it would be spelled in a program: a line's end in it is what is wrong with it.
            Self::BadName { got } => Vec::from_iter((got.len() > MAX_TEXT_BYTES).then_some(got)),
            Self::Exhausted { name: text, .. }
            | Self::BadRowBytes { name: text, .. }
            | Self::TwoProducers { name: text, .. }
            | Self::NoProducer { name: text, .. }
            | Self::OutOfTurn { what: text } => vec![text],
        }
    }

    /// A worker's rows of a table, if it declares others now than before. `what`: produced or consumed.
    pub fn rows_differ(name: &str, before: &RowSet, now: &RowSet, what: &str) -> Option<Self> {
        let (row, was) = before.difference(now)?;
        let said =
            |is: bool| format!("row {row} {}among those that are {what}", if is { "" } else { "not " });
        let (name, what) = (name.to_owned(), "rows".to_owned());
        Some(Self::DeclaredTwice { name, what, before: said(was), now: said(!was) })
    }
}

impl Hint for TableError {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::BadSum { .. } => "declare the table with float32 or float64, or without a sum",
            Self::BadRowBytes { .. } => "make rows shorter; what is larger is a tensor",
            Self::TwoProducers { .. } => {
                "split the rows so that each has one producer, or declare the table with fold=\"sum\" and use add"
            }
            Self::NoProducer { gone, .. } if !gone.is_empty() => {
                "every worker must declare the table; find out why those left"
            }
            Self::NoProducer { .. } => "let a worker produce the row, or do not consume it",
            Self::Differs { .. } => {
                "make the same declaration on every worker, or give the table another name"
            }
            Self::Exhausted { why, .. } => why.resource.raised_by(),
            Self::NotAllTold { .. } => {
                "declare it again in a moment: they are told as soon as their own calls reach the server"
            }
            Self::DeclaredTwice { .. } => "make the same declaration, give it another name, or drop it first",
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

impl TableSpec {
    /// Judges a declaration, foreign or our own.
    pub fn check(&self) -> Result<(), TableError> {
        let name = &self.name;
        if self.holds.len() > MAX_HOLDS_BYTES || self.holds.chars().any(char::is_control) {
            let what = format!("{} bytes of words for what a row holds", self.holds.len());
            return Err(TableError::OutOfTurn { what });
        }
        let fits = (1..=crate::spec::MAX_NAME_BYTES).contains(&name.len());
        if !fits || name.chars().any(char::is_control) {
            return Err(TableError::BadName { got: name.chars().take(80).collect() });
        }
        if !(1..=MAX_ROW_BYTES).contains(&self.row_bytes) {
            return Err(TableError::BadRowBytes { name: name.clone(), got: self.row_bytes });
        }
        match self.sum {
            Some(dtype @ (Dtype::F32 | Dtype::F64))
                if (self.row_bytes as usize).is_multiple_of(dtype.size()) =>
            {
                Ok(())
            }
            None => Ok(()),
            Some(dtype) => {
                let (name, got) = (name.clone(), format!("{dtype:?}"));
                Err(TableError::BadSum { name, got, row_bytes: self.row_bytes })
            }
        }
    }

    /// Names what differs from another declaration of the same name.
    pub fn compare(&self, other: &Self) -> Result<(), TableError> {
        self.difference(other).map_or(Ok(()), |(what, first, second)| {
            Err(TableError::Differs { name: self.name.clone(), what: what.to_owned(), first, second })
        })
    }

    /// The first thing in which another declaration of the same name differs, as it is here and there.
    pub fn difference(&self, other: &Self) -> Option<(&'static str, String, String)> {
        let sum = |spec: &Self| {
            spec.sum.map_or_else(|| "none".to_owned(), |dtype| format!("sum of {}", dtype.name()))
        };
        let fields = [
            ("rows", self.rows.to_string(), other.rows.to_string()),
            ("bytes of a row", self.row_bytes.to_string(), other.row_bytes.to_string()),
            ("fold", sum(self), sum(other)),
            ("propagation", self.propagation.to_string(), other.propagation.to_string()),
            ("elements", self.holds.clone(), other.holds.clone()),
        ];
        // A declaration that does not say what a row holds takes it for what the others say.
        let known = usize::from(!self.holds.is_empty() && !other.holds.is_empty());
        fields.into_iter().take(4 + known).find(|(_, mine, theirs)| mine != theirs)
    }
}

/// Whether a slack can be asked for.
pub fn is_slack(slack: u32) -> bool {
    slack <= MAX_SLACK
}
