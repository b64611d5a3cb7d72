//! A filter that holds back what has hardly changed.

use penstock_kernels::Dtype;
use penstock_kernels::filter::{Coordinates, Filter, Made, Unfit};
use std::sync::Arc;

/// Lets the words pass that differ from what is held in more than so many of their lower bytes.
#[derive(Debug)]
pub(crate) struct Loud {
    pub(crate) quiet: usize,
}

impl Loud {
    /// For elements of four bytes.
    #[allow(dead_code, reason = "each test uses its part")]
    pub(crate) fn make(dtype: Dtype, settings: &[f64]) -> Made {
        match *settings {
            _ if dtype != Dtype::F32 => Err(Unfit::Dtype),
            [quiet] if [0.0, 1.0, 2.0, 3.0].contains(&quiet) => Ok(Arc::new(Self { quiet: quiet as usize })),
            _ => Err(Unfit::Setting { place: 0, expected: "0, 1, 2 or 3" }),
        }
    }
}

impl Filter for Loud {
    fn next(&self, _: Coordinates, value: &[u8], held: &mut [u8]) {
        for (now, held) in value.chunks(4).zip(held.chunks_mut(4)) {
            let loud = self.quiet.min(now.len())..;
            if now[loud.clone()] != held[loud] {
                held.copy_from_slice(now);
            }
        }
    }
}
