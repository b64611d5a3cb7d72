//! How much memory a control thread touches in one turn. The kernel clears what is touched, about a second for each gigabyte; the
//! thread shows life and hears others between two parts, and whoever needs the memory has its answer when all of it was touched.
//! So there is either all of it, or the one that asked is told that there is none, before anybody uses it.

use super::pace::Pace;
use penstock_fabric::region::Untouched;
use rustix::io;
use std::time::Instant;

/// Bytes that are touched in one turn: some ten milliseconds. Smaller parts would take the same time together, but for what a turn
/// takes beside.
const A_TURN: usize = 16 << 20;
/// Bytes that a job may have touched in vain, beside another job: at once, and in a second, which takes a twentieth of a core. What
/// it keeps is not in it: that is bounded by its memory.
const IN_VAIN: f64 = (256 << 20) as f64;
const IN_VAIN_A_SECOND: f64 = (64 << 20) as f64;
/// Seconds for which a job waits at most for what it has had touched in vain.
const LONGEST: f64 = 30.0;

/// What may still be touched in a turn, of tables and of tensors together.
#[derive(Debug)]
pub(super) struct FirstTouch {
    left: usize,
    /// Whether tables come before tensors in this turn: either may take all of it.
    tables_first: bool,
    /// Bytes that were touched so far.
    touched: u64,
    /// The most of them that the job did not keep.
    most_in_vain: u64,
    in_vain: Pace,
    /// Nothing is touched until what was touched in vain is paid for.
    waits: bool,
    /// There is no memory for more than these bytes.
    #[cfg(test)]
    pub(super) memory: usize,
}

impl Default for FirstTouch {
    fn default() -> Self {
        Self {
            left: A_TURN,
            tables_first: false,
            touched: 0,
            most_in_vain: 0,
            in_vain: Pace::new(IN_VAIN_A_SECOND, IN_VAIN, Instant::now()),
            waits: false,
            #[cfg(test)]
            memory: usize::MAX,
        }
    }
}

impl FirstTouch {
    /// Where there is no memory for more.
    #[cfg(test)]
    pub(super) fn within(memory: usize) -> Self {
        Self { memory, ..Self::default() }
    }

    /// Another turn.
    pub(super) fn begin_turn(&mut self) {
        self.left = A_TURN;
        self.tables_first = !self.tables_first;
    }

    /// The job keeps so many bytes now, of what was touched and of others, and is beside another job or by itself: there it owes
    /// nobody anything.
    pub(super) fn keeps(&mut self, bytes: u64, beside_another: bool, now: Instant) {
        let in_vain = self.touched.saturating_sub(bytes);
        self.in_vain.earn(now);
        let more = in_vain.saturating_sub(self.most_in_vain) as f64;
        self.in_vain.owe(more, LONGEST * IN_VAIN_A_SECOND);
        self.most_in_vain = self.most_in_vain.max(in_vain);
        if !beside_another {
            self.in_vain.forgive();
        }
        self.waits = beside_another && self.in_vain.is_out(now);
    }

    /// Whether nothing is touched until what was touched in vain is paid for.
    pub(super) fn waits(&self) -> bool {
        self.waits
    }

    pub(super) fn is_for_tables_first(&self) -> bool {
        self.tables_first
    }

    /// Whether no more may be touched in this turn.
    pub(super) fn is_over(&self) -> bool {
        self.left == 0 || self.waits
    }

    /// Something was touched at once.
    pub(super) fn spend(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
        self.touched = self.touched.saturating_add(bytes as u64);
    }

    /// Touches as much of it as the turn allows; whether that was all.
    pub(super) fn touch(&mut self, memory: &mut Untouched) -> io::Result<bool> {
        if !memory.is_done() && !self.is_over() {
            let touched = memory.touch(self.left)?;
            #[cfg(test)]
            {
                self.memory = self.memory.checked_sub(touched).ok_or(io::Errno::NOMEM)?;
            }
            self.spend(touched);
        }
        Ok(memory.is_done())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    // A tensor that was touched, refused and unmapped cost its job a request: its neighbours took up to six times as long.
    #[test]
    fn what_is_touched_in_vain_is_paid_for_beside_another_job_and_what_is_kept_is_not() {
        let began = Instant::now();
        let mut first_touch = FirstTouch::default();
        first_touch.spend(10 << 30);
        first_touch.keeps(11 << 30, true, began);
        assert!(!first_touch.waits());
        // Ten seconds of a tensor that comes and goes, a turn for each.
        let (mut touched, mut at) = (0_usize, began);
        while at < began + Duration::from_secs(10) {
            first_touch.begin_turn();
            if !first_touch.is_over() {
                first_touch.spend(A_TURN);
                touched += A_TURN;
            }
            at += Duration::from_millis(10);
            first_touch.keeps(10 << 30, true, at);
        }
        let most = IN_VAIN + 10.0 * IN_VAIN_A_SECOND + 2.0 * A_TURN as f64;
        assert!(touched as f64 <= most && touched as f64 > IN_VAIN, "{touched}");
        // A large table that is given back: what comes next waits, and not for minutes.
        first_touch.keeps(0, true, at);
        assert!(first_touch.waits());
        first_touch.keeps(0, true, at + Duration::from_secs(29));
        assert!(first_touch.waits());
        first_touch.keeps(0, true, at + Duration::from_secs(31));
        assert!(!first_touch.waits());
        // So does what comes behind many small ones that are given back one by one.
        for part in 1..=24 {
            first_touch.spend(250 << 20);
            first_touch.keeps(0, true, at + Duration::from_millis(31_000 + part));
        }
        first_touch.keeps(0, true, at + Duration::from_secs(60));
        assert!(first_touch.waits());
        first_touch.keeps(0, true, at + Duration::from_secs(62));
        assert!(!first_touch.waits());
        at += Duration::from_secs(31);
        // By itself a job waits for nothing.
        first_touch.spend(10 << 30);
        first_touch.keeps(0, false, at + Duration::from_secs(31));
        first_touch.keeps(0, true, at + Duration::from_millis(31_020));
        assert!(!first_touch.waits());
    }
}
