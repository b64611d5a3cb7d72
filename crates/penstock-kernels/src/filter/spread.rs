//! How numbers are spread, for bounds that are relative to them.

/// What there is of numbers: the root of the mean of their squares, and the largest magnitude.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Spread {
    pub(super) root_mean_square: f64,
    pub(super) largest: f64,
}
