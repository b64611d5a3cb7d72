//! When a filter of values chooses: when a chunk is published with something new in it, and seldom while it rests.
//!
//! A filter goes over all of a chunk. If it chose anew at each publication of a chunk that rests, from what it held back before,
//! each clock would cost as much as a push; and how much has come through would depend on how many publications there were, which
//! even where all go in step is a matter of timing. So what is held back waits for the next change. A bound that shrinks is
//! followed in a few steps ([`Filter::again_at`]), each at a clock of its own, whatever was published meanwhile.

use super::{Coordinates, Filter};

/// How far what receivers hold of one chunk is behind its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Behind {
    /// Not at all.
    #[default]
    Not,
    /// By what has changed since the filter chose.
    Changed,
    /// By what the filter held back when it chose last, at this clock.
    Since(u64),
}

impl Behind {
    /// The value has changed.
    pub fn falls(&mut self) {
        *self = Self::Changed;
    }

    /// All of it passes; whether something may have been held back before.
    pub fn catches_up(&mut self) -> bool {
        std::mem::take(self) != Self::Not
    }

    /// The chunk is published, with this `value`: `held` becomes what receivers are to hold. How often the filter chose.
    ///
    /// For callers that are [`settled`](crate::settled).
    pub fn publish(&mut self, filter: &dyn Filter, at: Coordinates, value: &[u8], held: &mut [u8]) -> u32 {
        let mut choices = 0;
        while let Some(clock) = self.due(filter, at.clock) {
            filter.next(Coordinates { clock, ..at }, value, held);
            *self = Self::Since(clock);
            choices += 1;
        }
        choices
    }

    /// The clock at which the filter is to choose, of those up to this one.
    fn due(self, filter: &dyn Filter, clock: u64) -> Option<u64> {
        match self {
            Self::Not => None,
            Self::Changed => Some(clock),
            Self::Since(last) => filter.again_at(last).filter(|&again| last < again && again <= clock),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ALL, Pressure};
    use super::*;
    use crate::Dtype;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn filter(name: &str, settings: &[f64]) -> Arc<dyn Filter> {
        let entry = ALL.iter().find(|entry| entry.name == name).unwrap();
        (entry.make)(Dtype::F32, settings).unwrap()
    }

    fn bytes(numbers: &[f32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    /// What is held of a value that came at clock `first` after it was published at those clocks, too, and how often was chosen.
    fn rested(filter: &dyn Filter, value: &[u8], first: u64, then: &[u64]) -> (Vec<u8>, u32) {
        let (mut behind, mut held) = (Behind::Changed, vec![0; value.len()]);
        let clocks = std::iter::once(&first).chain(then);
        let choose = |&clock| {
            behind.publish(
                filter,
                Coordinates { clock, first: 0, pressure: Pressure::NONE },
                value,
                &mut held,
            )
        };
        let choices = clocks.map(choose).sum();
        (held, choices)
    }

    #[test]
    fn what_rests_is_gone_over_once_where_the_bound_stays() {
        let value = bytes(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        let clocks: Vec<u64> = (1..100).collect();
        for (name, settings) in [
            ("TopK", &[0.25][..]),
            ("RandomK", &[0.25, 3.0]),
            ("DVF", &[6.5, 0.0, 0.0, 6.5, 0.0]),
            ("DVF", &[1.2, 0.0, 1.0, 1.2, 0.0]),
        ] {
            let filter = filter(name, settings);
            let (held, choices) = rested(&*filter, &value, 0, &clocks);
            assert_eq!(choices, 1, "{name}");
            assert!(held != value && held != [0; 32], "{name}");
            // And the next change finds what was held back.
            let (mut behind, mut held) = (Behind::Changed, held);
            behind.publish(
                &*filter,
                Coordinates { clock: 100, first: 0, pressure: Pressure::NONE },
                &value,
                &mut held,
            );
            assert_eq!(behind, Behind::Since(100));
            assert!(behind.catches_up() && !behind.catches_up());
        }
    }

    #[test]
    fn a_bound_that_shrinks_lets_all_pass_at_last_in_as_many_choices_as_it_has_halves() {
        let value = bytes(&[1.0, 2.0, 3.0, 4.0]);
        for relative in [0.0, 1.0] {
            let filter = filter("DVF", &[8.0, 1.0, relative, 8.0, 0.0]);
            let (held, choices) = rested(&*filter, &value, 0, &(1..2000).collect::<Vec<_>>());
            assert_eq!(choices, 6, "at clocks 0, 3, 15, 63, 255 and 1023");
            assert_eq!(held, value);
            // Whatever clocks come: those of the life of a job.
            assert_eq!(rested(&*filter, &value, 0, &[1 << 62]).1, 32);
        }
    }

    proptest! {
        /// Where workers go in step, the same clocks bring the same bits, however many publications there were.
        #[test]
        fn what_has_passed_does_not_depend_on_what_was_published_on_the_way(
            value in prop::collection::vec(-9.0_f32..9.0, 1..40),
            low in 0.5..20.0,
            relative: bool,
            first in 0_u64..20,
            skipped in prop::collection::vec(any::<bool>(), 0..300),
        ) {
            let filter = filter("DVF", &[low, 1.0, f64::from(u8::from(relative)), low, 0.0]);
            let value = bytes(&value);
            let last = first + skipped.len() as u64 + 1;
            let all: Vec<u64> = (first + 1..=last).collect();
            let some: Vec<u64> =
                all.iter().zip(skipped.iter().chain([&false])).filter(|(_, skipped)| !**skipped).map(|(&at, _)| at).collect();
            prop_assert_eq!(rested(&*filter, &value, first, &all), rested(&*filter, &value, first, &some));
            if !relative {
                let (held, _) = rested(&*filter, &value, first, &some);
                let most = 2.0 * low / ((last + 1) as f64).sqrt();
                for (now, held) in value.as_chunks().0.iter().zip(held.as_chunks().0) {
                    let behind = f32::from_le_bytes(*now) - f32::from_le_bytes(*held);
                    prop_assert!(f64::from(behind.abs()) <= most * (1.0 + 1e-6));
                }
            }
        }
    }
}
