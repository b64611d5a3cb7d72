//! What must hold of leases, seen from outside: by which process ran when, and what came where, not by any clock of the machines.

use penstock_proto::vigil;
use std::ops::Range;

/// One that watches, or is watched.
#[derive(Debug, Clone, Default)]
pub(super) struct Life {
    /// Ticks in which it ran, up to each tick.
    pub(super) ran: Vec<u64>,
    /// When it was suspended.
    pub(super) suspended: Vec<Range<u64>>,
    /// When it ended, for whatever reason.
    pub(super) ended: Option<u64>,
}

impl Life {
    /// A tick passes, in which it runs or does not.
    pub(super) fn passes(&mut self, runs: bool) {
        let before = self.ran.last().copied().unwrap_or(0);
        self.ran.push(before + u64::from(runs));
    }

    /// Ticks in which it ran between two.
    fn ran(&self, since: u64, until: u64) -> u64 {
        let at = |tick: u64| self.ran.get(tick as usize).or_else(|| self.ran.last()).copied().unwrap_or(0);
        at(until) - at(since)
    }

    fn suspensions(&self, since: u64, until: u64) -> u64 {
        self.suspended.iter().filter(|range| range.start < until && range.end > since).count() as u64
    }
}

/// One look of a watcher at one that it watches.
pub(super) struct Look<'a> {
    pub(super) watcher: &'a Life,
    pub(super) watched: &'a Life,
    /// When the last sign of the watched came to where the watcher finds it.
    pub(super) sign: u64,
    /// When the way between them failed, and for how long: of connections at most one within a lease is made good.
    pub(super) outages: &'a [Range<u64>],
    pub(super) broken: &'a [u64],
    /// Whether it says at this look that the watched is lost.
    pub(super) lost: bool,
    pub(super) now: u64,
}

/// Judges a look.
pub(super) fn judge(lease: u64, look: &Look<'_>) -> Result<(), String> {
    let Look { watcher, watched, sign, outages, broken, lost, now } = *look;
    let ran = watcher.ran(sign, now);
    if !lost {
        // It finds a sign at its next look, and that none came at another.
        let bound = lease + 2 * vigil::look_every(lease) + 2;
        return match ran > bound {
            true => {
                Err(format!("nothing came for {ran} ticks of its own, more than {bound}, and nobody is lost"))
            }
            false => Ok(()),
        };
    }
    if now - sign < lease {
        return Err(format!(
            "said to be lost {} ticks after a sign of life, the lease is {lease}",
            now - sign
        ));
    }
    // M-2. At most a quarter of a lease of a gap between two looks counts, however long this process was suspended in it.
    let counts = ran + watcher.suspensions(sign, now) * (lease / 4);
    if counts < lease {
        return Err(format!(
            "said to be lost after {ran} ticks in which who says it ran, the lease is {lease} (M-2)"
        ));
    }
    let since = now.saturating_sub(2 * lease);
    let suspended = watcher.suspensions(since, now) + watched.suspensions(since, now) > 0;
    let failed = outages.iter().any(|range| range.start < now && range.end > since)
        || broken.iter().filter(|&&at| at > since).count() > 1;
    if !suspended && !failed && watched.ended.is_none() {
        return Err(
            "said to be lost though it ran and spoke all the time: a silent connection was not made again"
                .to_owned(),
        );
    }
    Ok(())
}
