//! A program's own filter, which the core cannot run: it asks the program what is sent of what is due, and is told.
//!
//! What it has of its own is the carry. Of a contribution that comes without the program's word all is sent.

use super::split::release;
use super::{Coordinates, Made, SumFilter};
use crate::filter::Unfit;
use crate::{Dtype, Foreign, ForeignMut};
use std::sync::Arc;

/// Holds back what a program says, and of itself nothing.
#[derive(Clone, Copy, Debug)]
pub struct Own {
    dtype: Dtype,
}

impl Own {
    /// The setting says which filter it is, so that workers with different ones hear of it.
    pub(super) fn make(dtype: Dtype, settings: &[f64]) -> Made {
        match *settings {
            [which] if which >= 0.0 && which.fract() == 0.0 => Ok(Some(Arc::new(Self { dtype }))),
            _ => Err(Unfit::Setting { place: 0, expected: "a whole number of at least 0" }),
        }
    }
}

impl SumFilter for Own {
    fn split(&self, _: Coordinates, sum: Foreign<'_>, sent: &mut ForeignMut<'_>, carry: &mut [u8]) {
        release(self.dtype, Some(sum), sent, carry);
    }
}
