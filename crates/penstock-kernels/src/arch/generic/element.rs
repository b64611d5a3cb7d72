//! Elements through little-endian bytes; half precision through the `half` crate.

use half::{bf16, f16};

use super::vector::{Array, F32s, F64s};
use crate::foreign::{Foreign, ForeignMut};
use crate::vector::{Element, LARGEST_BF16, LARGEST_F16};

macro_rules! element {
    ($name:ident, $number:ident, $vector:ident, $lanes:literal, $state:ident, $largest:expr, $widen:expr, $narrow:expr) => {
        /// One dtype, portably.
        pub(crate) struct $name;

        impl Element for $name {
            type Vector = $vector;
            type State = $state;
            const SIZE: usize = size_of::<$number>();
            const LARGEST: f64 = $largest;

            #[inline(always)]
            fn load(bytes: &[u8]) -> $vector {
                let (words, _) = bytes[..Self::BYTES].as_chunks::<{ size_of::<$number>() }>();
                let mut out = [Default::default(); $lanes];
                for (number, word) in out.iter_mut().zip(words) {
                    *number = $widen($number::from_le_bytes(*word));
                }
                Array(out)
            }

            #[inline(always)]
            fn load_foreign(lane: &Foreign<'_>, at: usize) -> $vector {
                // Word by word in registers: a detour over memory would be stored narrow and loaded wide, which stalls.
                let words = lane.words::<{ size_of::<$number>() * $lanes / 8 }>(at);
                let mut copy = [0; size_of::<$number>() * $lanes];
                for (bytes, word) in copy.as_chunks_mut::<8>().0.iter_mut().zip(words) {
                    *bytes = word.to_le_bytes();
                }
                Self::load(&copy)
            }

            #[inline(always)]
            fn store_foreign(vector: $vector, target: &mut ForeignMut<'_>, at: usize) {
                let mut copy = [0; size_of::<$number>() * $lanes];
                Self::store(vector, &mut copy);
                target.store_words(at, &copy);
            }

            #[inline(always)]
            fn store(vector: $vector, bytes: &mut [u8]) {
                let (words, _) = bytes[..Self::BYTES].as_chunks_mut::<{ size_of::<$number>() }>();
                for (number, word) in vector.0.into_iter().zip(words) {
                    *word = $narrow(number).to_le_bytes();
                }
            }
        }
    };
}

element!(F32, f32, F32s, 16, F32, f32::MAX as f64, std::convert::identity, std::convert::identity);
element!(F64, f64, F64s, 8, F64, f64::MAX, std::convert::identity, std::convert::identity);
element!(F16, f16, F32s, 16, F32, LARGEST_F16, f16::to_f32, f16::from_f32);
element!(Bf16, bf16, F32s, 16, F32, LARGEST_BF16, bf16::to_f32, bf16::from_f32);
