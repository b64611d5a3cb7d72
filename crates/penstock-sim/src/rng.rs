//! Chance, from a seed. SplitMix64 (Steele, Lea and Flood 2014): small, and the same on every machine and in every release.

use std::ops::RangeInclusive;

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A stream of numbers.
#[derive(Debug, Clone)]
pub struct Rng(u64);

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number that depends on all of `words` and on nothing else.
pub fn hash(words: &[u64]) -> u64 {
    words.iter().fold(STEP, |at, &word| mix(at.wrapping_mul(STEP) ^ mix(word.wrapping_add(STEP))))
}

/// A digest of bytes: equal bytes have equal digests, different ones very probably not.
pub fn digest(bytes: &[u8]) -> u64 {
    penstock_proto::checksum::of(bytes)
}

impl Rng {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(mix(seed.wrapping_add(STEP)))
    }

    /// Any number.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number in `range`; the ranges here are so small that the bias of a remainder does not matter.
    pub fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        let (low, high) = range.into_inner();
        low + self.word() % (high - low + 1)
    }

    /// True once in `times`; never if `times` is 0.
    pub fn once_in(&mut self, times: u64) -> bool {
        times > 0 && self.word().is_multiple_of(times)
    }

    /// One of `items`.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.within(0..=items.len() as u64 - 1) as usize]
    }

    /// Puts `items` into any order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.within(0..=at as u64) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_in_every_release() {
        let mut rng = Rng::new(1);
        assert_eq!([rng.word(), rng.word()], [6_791_897_765_849_424_158, 17_405_687_883_870_564_846]);
    }

    #[test]
    fn a_digest_depends_on_every_byte_and_on_the_length() {
        let bytes = [7u8; 19];
        for at in 0..bytes.len() {
            let mut other = bytes;
            other[at] ^= 1;
            assert_ne!(digest(&bytes), digest(&other), "byte {at}");
            assert_ne!(digest(&bytes), digest(&bytes[..at]));
        }
    }
}
