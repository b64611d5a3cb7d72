//! Which places an open set has written that the change log lists no longer: a set may have more rows than it has entries. What is
//! noted is gone over when the set is dropped, so that this takes as long as the rows took that were put, not as the partition has.

/// Some of a partition's places, by number.
#[derive(Debug)]
pub(super) struct Written {
    /// A bit for each place.
    bits: Vec<u64>,
    /// The words of them that are not zero.
    words: Vec<u32>,
}

/// Places of a word.
const BITS: usize = u64::BITS as usize;

impl Written {
    /// None of so many places. Only what is noted takes memory.
    pub(super) fn of(places: usize) -> Self {
        let words = places.div_ceil(BITS);
        Self { bits: vec![0; words], words: Vec::with_capacity(words) }
    }

    /// Most bytes that are taken for so many places.
    #[cfg(not(loom))]
    pub(super) const fn most_bytes(places: usize) -> usize {
        places.div_ceil(BITS) * (size_of::<u64>() + size_of::<u32>())
    }

    pub(super) fn note(&mut self, place: usize) {
        let word = place / BITS;
        if self.bits[word] == 0 {
            self.words.push(word as u32);
        }
        self.bits[word] |= 1 << (place % BITS);
    }

    /// Each once.
    pub(super) fn into_places(self) -> impl Iterator<Item = usize> {
        let Self { bits, words } = self;
        words.into_iter().flat_map(move |word| {
            let (mut left, first) = (bits[word as usize], word as usize * BITS);
            std::iter::from_fn(move || {
                let place = (left != 0).then(|| first + left.trailing_zeros() as usize);
                left &= left.wrapping_sub(1);
                place
            })
        })
    }
}
