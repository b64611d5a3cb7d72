//! How far a worker is on a chunk: the clock of its last contribution, and whether that stands in its lane.

/// It is skipped: bit 63 of the word. Clocks stay below ([`MAX_CLOCK`](crate::clock::MAX_CLOCK)).
const SKIPPED: u64 = 1 << 63;

/// The last contribution of a worker to a chunk: its stamp + 1, or 0 for none, and whether it is zeros, of which nothing stands in
/// the lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Stamp(u64);

impl Stamp {
    /// A contribution of the iteration `stamp`.
    pub(super) fn of(stamp: u64, in_lane: bool) -> Self {
        Self((stamp + 1) | if in_lane { 0 } else { SKIPPED })
    }

    /// Its stamp + 1; 0: there was none.
    pub(super) fn reached(self) -> u64 {
        self.0 & !SKIPPED
    }

    /// Whether it is one of the iteration `stamp` of which nothing does.
    pub(super) fn is_skipped(self, stamp: u64) -> bool {
        self.0 == Self::of(stamp, false).0
    }

    /// Whether it is one of the iteration `stamp` that stands in the lane.
    pub(super) fn is_in_lane(self, stamp: u64) -> bool {
        self.0 == stamp + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::MAX_CLOCK;

    #[test]
    fn what_is_skipped_reaches_as_far_and_is_in_no_lane() {
        assert_eq!(Stamp::default().reached(), 0);
        for stamp in [0, 1, 7, MAX_CLOCK] {
            let (pushed, skipped) = (Stamp::of(stamp, true), Stamp::of(stamp, false));
            assert_eq!((pushed.reached(), skipped.reached()), (stamp + 1, stamp + 1));
            assert!(skipped.is_skipped(stamp) && !pushed.is_skipped(stamp) && !skipped.is_skipped(stamp + 1));
            assert!(pushed.is_in_lane(stamp) && !skipped.is_in_lane(stamp) && !pushed.is_in_lane(stamp + 1));
        }
    }
}
