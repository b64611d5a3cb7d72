//! What is kept by a tensor's number, whatever numbers a peer names.
//!
//! On the first server numbers count up; another takes those that its workers bring, and a shard is home of some of its tensors
//! only. So things stand one behind the other in the order in which they came, and a number is not an index: one entry costs as
//! much as any other.
//!
//! Cost of a look: one comparison where numbers have come in order without a gap, else one look into a hash table.

use crate::TensorId;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Things by tensor, in the order in which they came.
#[derive(Debug)]
pub struct Numbered<T> {
    held: Vec<(TensorId, T)>,
    /// Where those stand whose number is not their place.
    places: HashMap<TensorId, usize, BuildHasherDefault<Mix>>,
}

/// Spreads a number over 64 bits: numbers are below [`crate::message::MAX_TENSORS`], so a few that collide
/// cost their own job little.
#[derive(Debug, Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(byte.into());
        }
    }

    fn write_u32(&mut self, number: u32) {
        // 2^64 divided by the golden ratio (Knuth, The Art of Computer Programming 3, section 6.4).
        let mixed = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self { held: Vec::new(), places: HashMap::default() }
    }
}

impl<T> Numbered<T> {
    fn place(&self, id: TensorId) -> Option<usize> {
        match self.held.get(id as usize) {
            Some(&(own, _)) if own == id => Some(id as usize),
            _ => self.places.get(&id).copied(),
        }
    }

    /// What is kept of this tensor.
    pub fn get(&self, id: TensorId) -> Option<&T> {
        self.place(id).map(|place| &self.held[place].1)
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, id: TensorId) -> Option<&mut T> {
        self.place(id).map(|place| &mut self.held[place].1)
    }

    /// Keeps this of a tensor, instead of what was kept of it.
    pub fn insert(&mut self, id: TensorId, kept: T) {
        match self.place(id) {
            Some(place) => self.held[place].1 = kept,
            None => {
                let place = self.held.len();
                if place != id as usize {
                    self.places.insert(id, place);
                }
                self.held.push((id, kept));
            }
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The number of the tensor that came as the `place`th, from 0.
    pub fn number(&self, place: usize) -> Option<TensorId> {
        self.held.get(place).map(|&(id, _)| id)
    }

    /// All, in the order in which they came.
    pub fn iter(&self) -> impl Iterator<Item = (TensorId, &T)> {
        self.held.iter().map(|(id, kept)| (*id, kept))
    }

    /// The same, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (TensorId, &mut T)> {
        self.held.iter_mut().map(|(id, kept)| (*id, kept))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::MAX_TENSORS;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn whatever_numbers_come_each_has_its_own_and_they_stay_in_order(
            ids in prop::collection::vec(prop_oneof![0..8u32, 0..MAX_TENSORS], 0..40)
        ) {
            let (mut numbered, mut plain, mut order) = (Numbered::default(), BTreeMap::new(), Vec::new());
            for (&id, at) in ids.iter().zip(0..) {
                numbered.insert(id, at);
                if plain.insert(id, at).is_none() {
                    order.push(id);
                }
            }
            for id in (0..16).chain(ids.iter().copied()) {
                prop_assert_eq!(numbered.get(id), plain.get(&id));
            }
            prop_assert_eq!(numbered.iter().map(|(id, _)| id).collect::<Vec<_>>(), order);
        }
    }

    #[test]
    fn the_largest_number_costs_no_more_than_another() {
        let mut numbered = Numbered::default();
        numbered.insert(MAX_TENSORS - 1, ());
        assert!(numbered.held.capacity() + numbered.places.capacity() < 16);
    }
}
