//! Words one by one.

use crate::vector::{GROUP, Words};

macro_rules! words {
    ($name:ident, $size:literal) => {
        /// Of one width, portably.
        pub(crate) struct $name;

        impl Words for $name {
            const SIZE: usize = $size;

            #[inline(always)]
            fn pack(now: &[u8], base: &[u8], out: &mut [u8]) -> u64 {
                let (now, base) = (cut(now), cut::<$size>(base));
                let (out, _) = out[..Self::BYTES].as_chunks_mut::<$size>();
                let (mut which, mut count) = (0, 0);
                for (at, (now, base)) in now.iter().zip(base).enumerate() {
                    // Written in any case: what differs is no branch then.
                    out[count] = *now;
                    let differs = now != base;
                    which |= u64::from(differs) << at;
                    count += usize::from(differs);
                }
                which
            }

            #[inline(always)]
            fn unpack(mut which: u64, packed: &[u8], group: &mut [u8]) {
                let (group, _) = group[..Self::BYTES].as_chunks_mut::<$size>();
                for packed in cut::<$size>(packed) {
                    if which == 0 {
                        break;
                    }
                    group[which.trailing_zeros() as usize] = *packed;
                    which &= which - 1;
                }
            }

            #[inline(always)]
            fn repeats(mut which: u64, packed: &[u8], group: &[u8]) -> bool {
                let group = cut::<$size>(group);
                let mut repeats = false;
                for packed in cut::<$size>(packed) {
                    if which == 0 {
                        break;
                    }
                    repeats |= group[which.trailing_zeros() as usize] == *packed;
                    which &= which - 1;
                }
                repeats
            }

            #[inline(always)]
            fn numbers(mut which: u64, first: u16, out: &mut [u16; GROUP]) {
                for out in out {
                    if which == 0 {
                        break;
                    }
                    *out = first + which.trailing_zeros() as u16;
                    which &= which - 1;
                }
            }
        }
    };
}

/// A group's elements.
#[inline(always)]
fn cut<const SIZE: usize>(group: &[u8]) -> &[[u8; SIZE]] {
    group[..SIZE * GROUP].as_chunks().0
}

words!(Words2, 2);
words!(Words4, 4);
words!(Words8, 8);
