//! Versions of one thing that are awaited, kept as the least and the greatest of them.
//!
//! Every version from the least to the greatest counts as awaited when it comes: so a reader that asked for an earlier version
//! does not wait for the later one that another reader asked for.

/// Versions that are awaited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Awaited {
    /// The least + 1; 0: none.
    from: u64,
    /// The greatest + 1.
    to: u64,
}

impl Awaited {
    /// This one too, or any later one in its place.
    pub(super) fn want(&mut self, version: u64) {
        self.from = if self.from == 0 { version + 1 } else { self.from.min(version + 1) };
        self.to = self.to.max(version + 1);
    }

    /// Whether it stands for one that is awaited.
    pub(super) fn is_met(&self, version: u64) -> bool {
        self.from > 0 && version + 1 >= self.from
    }

    /// It has come, which stands for those before it.
    pub(super) fn came(&mut self, version: u64) {
        *self = match version + 1 >= self.to {
            true => Self::default(),
            false => Self { from: self.from.max(version + 2), ..*self },
        };
    }

    /// The least and the greatest.
    pub(super) fn bounds(&self) -> Option<(u64, u64)> {
        (self.from > 0).then(|| (self.from - 1, self.to - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_version_that_is_awaited_keeps_no_earlier_one_back() {
        let mut awaited = Awaited::default();
        assert!(!awaited.is_met(0) && awaited.bounds().is_none());
        awaited.want(7);
        awaited.want(5);
        assert!(!awaited.is_met(4) && awaited.is_met(5));
        awaited.came(5);
        assert_eq!((awaited.bounds(), awaited.is_met(5), awaited.is_met(6)), (Some((6, 7)), false, true));
        awaited.came(7);
        assert_eq!(awaited, Awaited::default());
    }
}
