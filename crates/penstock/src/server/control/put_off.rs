//! Searches for circles that are left to a later look: beside another job a search is paid for, and there may be nothing left.

use crate::server::pace::REQUESTS_A_SECOND;
use crate::wait;
use penstock_proto::Rank;
use std::collections::VecDeque;

/// Who still waits asks again sooner, in milliseconds: a look of two questions, each answered in time, half a second before the
/// next, and a second for what is late. One that asks later may lose its place, and asks for another.
const ASKS_AGAIN_MS: u64 = 2 * wait::ASK_WITHIN.as_millis() as u64 + 1_500;
/// Of so many that wait one more is let through in each turn.
const WAITING_A_SEARCH: usize = 64;
/// Turns whose searches are saved at most.
const TURNS_SAVED: usize = 8;
/// Most that is owed for searches, in requests: what a minute earns.
const MOST_OWED: f64 = 60.0 * REQUESTS_A_SECOND;

/// Whose searches were put off. Some in each turn are made all the same, in the order in which they were put off: in a job that
/// always asks too much its workers are heard in one order, and the last would never have theirs. None is made before those
/// before it are paid for: requests are soon heard again, whatever they cost, and searches would be free with them.
#[derive(Debug, Default)]
pub(super) struct PutOff {
    /// Each with when it asked last.
    waiting: VecDeque<(Rank, u64)>,
    /// How many are let through now.
    allowed: usize,
    /// What searches have cost beyond what was taken off the job's pace, in requests, as of this moment.
    owed: f64,
    paid: u64,
}

impl PutOff {
    pub(super) fn begin_turn(&mut self, now: u64) {
        let more = 1 + self.waiting.len() / WAITING_A_SEARCH;
        self.allowed = (self.allowed + more).min(TURNS_SAVED * more);
        let passed = now.saturating_sub(self.paid) as f64 / 1000.0;
        (self.owed, self.paid) = ((self.owed - REQUESTS_A_SECOND * passed).max(0.0), now);
    }

    /// A search has cost that much more than is taken off the job's pace.
    pub(super) fn owe(&mut self, cost: f64) {
        self.owed = (self.owed + cost).min(MOST_OWED);
    }

    /// Whether earlier searches are not paid for.
    pub(super) fn owes(&self) -> bool {
        self.owed > 0.0
    }

    /// Nothing is owed any more.
    pub(super) fn forgive(&mut self) {
        self.owed = 0.0;
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
        // For each of those before it one is left.
        if !self.owes() && place.unwrap_or(self.waiting.len()) < self.allowed {
            self.allowed -= 1;
            place.map(|place| self.waiting.remove(place));
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
        put_off.begin_turn(now);
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
        assert_eq!(turn(&mut put_off, 2, &[3]), [3], "one is left for worker 2, which is silent");
        assert_eq!(turn(&mut put_off, 3, &[4, 5]), [4]);
        assert_eq!(turn(&mut put_off, ASKS_AGAIN_MS, &[4, 5, 6]), [5], "it comes before worker 4 now");
        assert_eq!(turn(&mut put_off, ASKS_AGAIN_MS + 1, &[6]), [6], "worker 2 has lost its place");
    }

    // One in a turn, and only if it asked in that turn: a circle of 900 workers was not found within 48 s.
    #[test]
    fn each_of_many_that_ask_at_their_leisure_has_its_search_within_seconds() {
        const MANY: Rank = 900;
        let (mut put_off, mut searched) = (PutOff::default(), std::collections::BTreeSet::new());
        // A turn is a fifth of a second. Each asks every 2.2 s, the next ones in the next turn.
        for at in 0..150 {
            let asks: Vec<Rank> = (0..MANY).filter(|rank| (rank + at) % 11 == 0).collect();
            searched.extend(turn(&mut put_off, 200 * u64::from(at), &asks));
        }
        assert_eq!(searched.len(), MANY as usize, "within 30 s");
    }

    // What a search cost beyond a fifth of a second of the job's pace was forgiven.
    #[test]
    fn no_search_is_made_before_those_before_it_are_paid_for() {
        let mut put_off = PutOff::default();
        assert_eq!(turn(&mut put_off, 0, &[0]), [0]);
        put_off.owe(REQUESTS_A_SECOND);
        assert_eq!(turn(&mut put_off, 990, &[1, 2]), []);
        assert_eq!(turn(&mut put_off, 1_010, &[1, 2]), [1, 2], "in this turn and in the one that was saved");
        put_off.owe(f64::INFINITY);
        assert_eq!(turn(&mut put_off, 61_000, &[1]), []);
        assert_eq!(turn(&mut put_off, 61_020, &[1]), [1], "a minute at most");
        put_off.owe(1.0);
        put_off.forgive();
        assert!(!put_off.owes());
    }
}
