//! Progress: the least of many counts, as a tensor's chunks reach versions one by one.

/// The least of many counts that only grow. It is told of each that leaves its place, and looks at all of them only when none
/// is left where the least was: so a step of n chunks costs n, in whatever order they come.
#[derive(Debug, Default)]
pub struct Progress {
    least: Option<u64>,
    /// Counts that stand at `least`.
    lagging: usize,
}

impl Progress {
    /// Of so many counts that all stand at 0.
    pub fn of_zeros(counts: usize) -> Self {
        Self { least: Some(0), lagging: counts }
    }

    /// The least when it was last looked; `None` if it never was.
    pub fn least(&self) -> Option<u64> {
        self.least
    }

    /// A count that stood at `from` has grown.
    pub fn leaves(&mut self, from: u64) {
        if Some(from) == self.least {
            self.lagging -= 1;
        }
    }

    /// The least of `counts`, all of them, if it has risen since the last call.
    pub fn risen(&mut self, counts: impl Iterator<Item = u64> + Clone) -> Option<u64> {
        if self.least.is_some() && self.lagging > 0 {
            return None;
        }
        let least = counts.clone().min()?;
        self.lagging = counts.filter(|&count| count == least).count();
        (self.least.replace(least) != Some(least)).then_some(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_tells_the_least_whenever_it_rises_and_only_then(
            mut counts in prop::collection::vec(0u64..1, 1..6),
            moves in prop::collection::vec((any::<prop::sample::Index>(), 1u64..4), 0..60),
        ) {
            let mut progress = Progress::of_zeros(counts.len());
            let mut told = 0;
            for (which, more) in moves {
                let count = which.get_mut(&mut counts);
                progress.leaves(*count);
                *count += more;
                let least = counts.iter().copied().min().unwrap();
                let risen = progress.risen(counts.iter().copied());
                prop_assert_eq!(risen, (least > told).then_some(least));
                told = least;
                prop_assert_eq!(progress.least(), Some(told));
            }
        }
    }

    #[test]
    fn what_was_never_looked_at_is_told_once_also_where_it_is_zero() {
        let mut progress = Progress::default();
        assert_eq!(progress.risen([3, 0].into_iter()), Some(0));
        assert_eq!(progress.risen([3, 0].into_iter()), None);
        assert_eq!(Progress::default().risen(std::iter::empty()), None);
    }
}
