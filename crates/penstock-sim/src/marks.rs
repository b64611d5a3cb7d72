//! Marks: contributions that can be read back out of their sum.
//!
//! Update (worker, stamp) adds one to a digit of its own: base 4, 26 digits in the 52 bits that an `f64` adds exactly. Where
//! there are more updates than digits, neighbouring elements take turns. So a sum tells of each update whether it is in it
//! not at all, once or more often, and every chunk tells it many times over: a torn one contradicts itself.

use penstock_proto::Rank;

const DIGITS: u64 = 26;

/// How the updates of a job are marked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Marks {
    iterations: u64,
    groups: u64,
}

/// A value that no whole set of updates sums up to.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum Unreadable {
    /// Two elements of one chunk hold different sets of updates.
    #[error("element {element} holds {got}, others of its kind {expected}: the chunk is torn")]
    Torn {
        /// Counted over the whole tensor.
        element: u64,
        /// What the first element of its kind holds.
        expected: f64,
        /// What it holds.
        got: f64,
    },
    /// Not a sum of marks.
    #[error("element {element} holds {got}, which is not a sum of marks")]
    NoSum {
        /// Counted over the whole tensor.
        element: u64,
        /// What it holds.
        got: f64,
    },
}

impl Marks {
    /// Marks for `workers` workers that make up to `iterations` updates each.
    pub fn new(workers: u32, iterations: u64) -> Self {
        Self { iterations, groups: (u64::from(workers) * iterations).div_ceil(DIGITS) }
    }

    /// Neighbouring elements that take turns.
    pub fn groups(&self) -> u64 {
        self.groups
    }

    fn place(&self, rank: Rank, stamp: u64) -> (u64, u64) {
        let update = u64::from(rank) * self.iterations + stamp;
        (update / DIGITS, update % DIGITS)
    }

    /// The contribution of `rank` in iteration `stamp`: one number for each of a tensor's elements.
    pub fn contribution(&self, rank: Rank, stamp: u64, elements: u64) -> Vec<f64> {
        let (group, digit) = self.place(rank, stamp);
        let mark = (1u64 << (2 * digit)) as f64;
        (0..elements).map(|element| if element % self.groups == group { mark } else { 0.0 }).collect()
    }

    /// How often each update is in these elements, of which the first is number `first` of the tensor.
    pub fn read(&self, first: u64, values: impl Iterator<Item = f64>) -> Result<Counts, Unreadable> {
        let mut sums: Vec<Option<f64>> = vec![None; self.groups as usize];
        for (element, got) in (first..).zip(values) {
            let sum = &mut sums[(element % self.groups) as usize];
            match *sum {
                None if got.fract() == 0.0 && (0.0..(1u64 << 52) as f64).contains(&got) => *sum = Some(got),
                None => return Err(Unreadable::NoSum { element, got }),
                Some(expected) if expected == got => {}
                Some(expected) => return Err(Unreadable::Torn { element, expected, got }),
            }
        }
        Ok(Counts { marks: *self, sums: sums.into_iter().map(|sum| sum.unwrap_or(0.0) as u64).collect() })
    }
}

/// How often each update is in a value: 0 to 3 times.
#[derive(Debug, Clone, PartialEq)]
pub struct Counts {
    marks: Marks,
    sums: Vec<u64>,
}

impl Counts {
    /// How often the update of `rank` stamped `stamp` is in the value.
    pub fn of(&self, rank: Rank, stamp: u64) -> u64 {
        let (group, digit) = self.marks.place(rank, stamp);
        self.sums[group as usize] >> (2 * digit) & 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_tells_how_often_each_update_is_in_it() {
        let marks = Marks::new(6, 8);
        let mut sum = [0.0; 20];
        let mut add = |rank, stamp| {
            let contribution = marks.contribution(rank, stamp, 20);
            sum.iter_mut().zip(contribution).for_each(|(sum, more)| *sum += more);
        };
        (0..6).for_each(|rank| (0..8).for_each(|stamp| add(rank, stamp)));
        add(5, 7);
        let counts = marks.read(7, sum[7..].iter().copied()).unwrap();
        for (rank, stamp) in (0..6).flat_map(|rank| (0..8).map(move |stamp| (rank, stamp))) {
            let expected = if (rank, stamp) == (5, 7) { 2 } else { 1 };
            assert_eq!(counts.of(rank, stamp), expected, "{rank} {stamp}");
        }
    }

    #[test]
    fn a_value_of_two_halves_contradicts_itself() {
        let marks = Marks::new(2, 3);
        let mut value = marks.contribution(0, 1, 8);
        value[4..].copy_from_slice(&marks.contribution(1, 2, 4));
        let torn = marks.read(0, value.into_iter()).unwrap_err();
        assert!(matches!(torn, Unreadable::Torn { element: 4, .. }), "{torn}");
        let odd = marks.read(3, [0.5].into_iter()).unwrap_err();
        assert_eq!(odd, Unreadable::NoSum { element: 3, got: 0.5 });
    }
}
