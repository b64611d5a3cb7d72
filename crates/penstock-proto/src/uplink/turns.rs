//! How often a plan is made anew because of rates: each time what moves is handed over, which costs something.

/// Milliseconds from one look at other plans to the next, at least; twice as many after each new plan, so many times.
const APART_MS: u64 = 10_000;
const MOST_DOUBLED: u32 = 6;
/// Looks that find nothing better are further apart each time, so many times: for many hosts one takes long.
const MOST_LOOKS_DOUBLED: u32 = 3;
/// After so long without a new plan it is as at first, in milliseconds.
const CALM_MS: u64 = 1_800_000;
const _: () = assert!(APART_MS << MOST_DOUBLED < CALM_MS);

/// When a plan may be made anew.
#[derive(Debug, Clone, Copy, Default)]
pub struct Turns {
    next: u64,
    times: u32,
    last: u64,
    /// Looks since then, for nothing.
    looks: u32,
}

impl Turns {
    /// Whether it is time to look, as of this time in milliseconds.
    pub fn is_time(&self, now: u64) -> bool {
        now >= self.next
    }

    /// There was a look, and all stays as it is.
    pub fn looked(&mut self, now: u64) {
        self.next = self.next.max(now + (APART_MS << self.looks.min(MOST_LOOKS_DOUBLED)));
        self.looks += 1;
    }

    /// There is a new plan because of rates.
    pub fn moved(&mut self, now: u64) {
        if self.times > 0 && now.saturating_sub(self.last) > CALM_MS {
            self.times = 0;
        }
        self.next = now + (APART_MS << self.times.min(MOST_DOUBLED));
        (self.times, self.last, self.looks) = (self.times + 1, now, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_made_anew_ever_more_seldom_until_there_was_calm() {
        let mut turns = Turns::default();
        let (mut now, mut moved) = (0, Vec::new());
        while now < 2_000_000 {
            if turns.is_time(now) {
                turns.moved(now);
                moved.push(now / 1000);
            }
            now += 1000;
        }
        assert_eq!(moved, [0, 10, 30, 70, 150, 310, 630, 1270, 1910]);
        now += CALM_MS;
        turns.moved(now);
        turns.looked(now);
        assert!(!turns.is_time(now + APART_MS - 1) && turns.is_time(now + APART_MS));
        for apart in [2, 4, 8, 8] {
            now += 100 * APART_MS;
            turns.looked(now);
            assert!(!turns.is_time(now + apart * APART_MS - 1) && turns.is_time(now + apart * APART_MS));
        }
    }
}
