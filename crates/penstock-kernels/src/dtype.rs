//! Dtypes: what an element is, and what sums and optimizer state of such elements are kept in.
//!
//! | dtype | bytes | sums, update and state in | bytes |
//! |---|---|---|---|
//! | float32 | 4 | float32 | 4 |
//! | float64 | 8 | float64 | 8 |
//! | float16 | 2 | float32 | 4 |
//! | bfloat16 | 2 | float32 | 4 |
//!
//! Half-precision values are widened when they are read and rounded once, to nearest even, when the new value is stored.

use serde::{Deserialize, Serialize};

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Dtype {
    /// IEEE 754 binary32.
    F32 = 0,
    /// IEEE 754 binary64.
    F64 = 1,
    /// IEEE 754 binary16.
    F16 = 2,
    /// The upper half of a binary32.
    Bf16 = 3,
}

impl Dtype {
    /// Every dtype, in the order of its code.
    pub const ALL: [Self; 4] = [Self::F32, Self::F64, Self::F16, Self::Bf16];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    /// Bytes of the accumulator, which is also the type of one element of optimizer state: f64 for F64, else f32.
    pub const fn accumulator_size(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 | Self::F16 | Self::Bf16 => 4,
        }
    }

    /// NumPy's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F64 => "float64",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
        }
    }

    /// The dtype that [`name`](Self::name) calls `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dtype_is_found_by_its_own_name_and_by_no_other() {
        for dtype in Dtype::ALL {
            assert_eq!(Dtype::from_name(dtype.name()), Some(dtype));
        }
        assert_eq!(Dtype::from_name("int8"), None);
        assert_eq!(Dtype::from_name("Float32"), None);
    }

    #[test]
    fn the_codes_are_stable_because_they_are_written_to_shared_memory() {
        assert_eq!(Dtype::ALL.map(|dtype| dtype as u8), [0, 1, 2, 3]);
    }
}
