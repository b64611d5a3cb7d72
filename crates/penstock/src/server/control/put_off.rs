//! Searches for circles that are left to a later look: beside another job a search is paid for, and there may be nothing left.

use penstock_proto::Rank;
use std::collections::VecDeque;

/// Who still waits asks again sooner, in milliseconds, where its last questions were answered within 750 each: a look of two
/// questions every half second. One that is answered later may lose its place, and asks for another.
const ASKS_AGAIN_MS: u64 = 2_000;

/// Whose searches were put off. One in a turn is made all the same, in the order in which they were put off: in a job that always
/// asks too much its workers are heard in one order, and the last would never have theirs.
#[derive(Debug, Default)]
pub(super) struct PutOff {
    /// Each with when it asked last.
    waiting: VecDeque<(Rank, u64)>,
    /// One was let through in this turn.
    let_through: bool,
}

impl PutOff {
    pub(super) fn begin_turn(&mut self) {
        self.let_through = false;
    }

    /// A worker waits no longer.
    pub(super) fn end(&mut self, rank: Rank) {
        self.waiting.retain(|&(waits, _)| waits != rank);
    }

    /// Whether a worker's search is made now, where nothing is left for it.
    pub(super) fn lets_through(&mut self, rank: Rank, now: u64) -> bool {
        // One that asks no more holds nobody up: it may have been stopped, or have nothing to say just now.
        while let Some(&(first, asked)) = self.waiting.front()
            && first != rank
            && now.saturating_sub(asked) > ASKS_AGAIN_MS
        {
            self.waiting.pop_front();
        }
        let place = self.waiting.iter().position(|&(waits, _)| waits == rank);
        if !self.let_through && place.unwrap_or(self.waiting.len()) == 0 {
            self.let_through = true;
            self.waiting.pop_front();
            return true;
        }
        match place {
            Some(place) => self.waiting[place].1 = now,
            None => self.waiting.push_back((rank, now)),
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who of `asks` is let through in one turn.
    fn turn(put_off: &mut PutOff, now: u64, asks: &[Rank]) -> Vec<Rank> {
        put_off.begin_turn();
        asks.iter().copied().filter(|&rank| put_off.lets_through(rank, now)).collect()
    }

    #[test]
    fn one_in_a_turn_is_let_through_and_each_in_its_order_whoever_is_heard_first() {
        let mut put_off = PutOff::default();
        let through: Vec<Rank> = (0..9).flat_map(|now| turn(&mut put_off, now, &[0, 1, 2])).collect();
        assert_eq!(through.len(), 9);
        for rank in 0..3 {
            assert_eq!(through.iter().filter(|&&one| one == rank).count(), 3, "{through:?}");
        }
    }

    #[test]
    fn who_waits_no_longer_or_asks_no_more_holds_nobody_up() {
        let mut put_off = PutOff::default();
        assert_eq!(turn(&mut put_off, 0, &[0, 1, 2, 3]), [0]);
        put_off.end(1);
        assert_eq!(turn(&mut put_off, 1, &[3]), [], "worker 2 was put off before it");
        assert_eq!(turn(&mut put_off, 2, &[2]), [2]);
        assert_eq!(turn(&mut put_off, 3, &[2, 3]), [3]);
        // Worker 2 is the first now, and is silent.
        assert_eq!(turn(&mut put_off, ASKS_AGAIN_MS, &[3]), []);
        assert_eq!(turn(&mut put_off, ASKS_AGAIN_MS + 4, &[3]), [3]);
    }
}
