//! Descriptors that lending may keep of what this process may have open: a share, so that what needed none before finds as many as ever.
//! Whatever there is no descriptor for is not lent, or not borrowed, and comes by frames.

use crate::limits;
use std::sync::atomic::{AtomicU64, Ordering};

/// For what.
#[derive(Debug, Clone, Copy)]
pub(in crate::worker) struct For {
    /// How many are kept.
    kept: &'static AtomicU64,
    /// How many one takes.
    takes: u64,
    /// Of what the process may have open one in so many is for this.
    one_in: u64,
}

impl For {
    /// A region of its own that may be lent.
    pub(in crate::worker) const OWN: Self = {
        static KEPT: AtomicU64 = AtomicU64::new(0);
        Self { kept: &KEPT, takes: 1, one_in: 4 }
    };
    /// One that is offered, and what its values go back to.
    pub(in crate::worker) const OFFER: Self = {
        static KEPT: AtomicU64 = AtomicU64::new(0);
        Self { kept: &KEPT, takes: 2, one_in: 4 }
    };
    /// One that is offered before it can be judged: few, so that who offers many keeps no other lender of this process out.
    pub(in crate::worker) const EARLY: Self = {
        static KEPT: AtomicU64 = AtomicU64::new(0);
        Self { kept: &KEPT, takes: 1, one_in: 32 }
    };
}

/// That descriptors may be kept, as long as this is.
#[derive(Debug)]
pub(in crate::worker) struct Allowance(For);

impl Allowance {
    /// One more, unless that would be beyond the share.
    pub(in crate::worker) fn take(of: For) -> Option<Self> {
        Self::below(of, limits::descriptors() / of.one_in)
    }

    fn below(of: For, most: u64) -> Option<Self> {
        let more = |kept: u64| kept.checked_add(of.takes).filter(|&kept| kept <= most);
        // Ordering: it is a number, and guards nothing.
        of.kept.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Self(of))
    }

    /// The same for what it is kept for now, as far as there is room for that; else it counts as it did.
    pub(in crate::worker) fn now_for(self, of: For) -> Self {
        Self::take(of).unwrap_or(self)
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        self.0.kept.fetch_sub(self.0.takes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_may_be_kept_and_one_that_is_let_go_makes_room_for_another() {
        static KEPT: AtomicU64 = AtomicU64::new(0);
        let of = For { kept: &KEPT, takes: 2, one_in: 4 };
        let mut all: Vec<_> = std::iter::from_fn(|| Allowance::below(of, 9)).collect();
        assert_eq!(all.len(), 4);
        all.pop();
        all.extend(Allowance::below(of, 9));
        assert!(all.len() == 4 && Allowance::below(of, 9).is_none());
        drop(all);
        assert_eq!(KEPT.load(Ordering::Relaxed), 0);
    }
}
