//! Pace: what a connection may make a server do that several jobs share, where it moves no values.
//!
//! A frame without a payload, or a question, costs its sender less than the server: a few microseconds of its processor time made
//! a server spend ten times as many, on the cores that the other jobs' threads need. Values pay for themselves, since a job's
//! share of the network is measured by them ([`super::fair_share`]); all else is paced while another job does something. Frames
//! of an honest worker are paid for by the values of the same exchange. What its clocks have a shard go over is not: a job that
//! keeps gigabytes which rest, and moves little, is slower beside another.

use std::time::{Duration, Instant};

/// How long a connection that has spent everything is not heard, counted in what it earns meanwhile: so it is looked at less
/// often, for more each time.
pub(super) const BREATH: Duration = Duration::from_millis(10);
/// Bytes of payload that make up for one frame.
const BYTES_A_FRAME: f64 = 128.0;
/// Chunks that a shard looks at in the time that a frame takes it.
const CHUNKS_A_FRAME: f64 = 32.0;
/// Most that a frame earns.
const MOST_EARNED: f64 = 1.0;
/// How long a shard takes to look at how far a worker is with a chunk.
const SECONDS_A_LOOK: f64 = 5e-9;
/// How long a shard takes to seal a frame without a value: its part of a signature, and some hashes.
const SECONDS_A_SEAL: f64 = 3e-6;
/// How long a control thread takes to go over an end of a range of rows where a table's producers and consumers are brought together.
const SECONDS_AN_END: f64 = 50e-9;
/// The largest part of a core that a shard may spend on what is not a contribution, and a control thread on bringing tables' producers
/// and consumers together.
const MOST_OF_A_CORE: f64 = 0.05;
/// Requests to the control thread.
pub(super) const REQUESTS_A_SECOND: f64 = 2_000.0;
/// Seconds for which nobody waits longer, whatever it was that he had a shard do.
const LONGEST: f64 = 60.0;

/// What one connection, or all of a job's to one thread, have left to spend.
#[derive(Debug, Clone)]
pub(super) struct Pace {
    rate: f64,
    burst: f64,
    left: f64,
    filled: Instant,
    /// It has spent everything, and must wait.
    out: bool,
}

impl Pace {
    /// May spend `burst` at once, and `rate` a second.
    pub(super) fn new(rate: f64, burst: f64, now: Instant) -> Self {
        Self { rate, burst, left: burst, filled: now, out: false }
    }

    /// For frames to a shard. A hundred thousand bare ones take a shard about 30 ms.
    pub(super) fn of_frames(now: Instant) -> Self {
        Self::new(100_000.0, 50_000.0, now)
    }

    /// For requests to the control thread; one that asks the shards counts for several.
    pub(super) fn of_requests(now: Instant) -> Self {
        Self::new(REQUESTS_A_SECOND, 20_000.0, now)
    }

    /// For what clocks, flushes, skips and first values have a shard go over, in seconds of its time. What is contributed is not in it:
    /// folding and filtering that is what a shard is for. With a quarter of a core for each of two shards a neighbour took 1.8 times
    /// as long on two cores, with a twentieth 1.16 times (when a look was priced lower than now). So all `shards` of the job
    /// have a fiftieth of all `cores`, and each at most a twentieth of one: shards of other jobs may stand on the same.
    pub(super) fn of_work(shards: u32, cores: u32, now: Instant) -> Self {
        let rate = (0.02 * f64::from(cores) / f64::from(shards.max(1))).min(MOST_OF_A_CORE);
        // What was spent at once is earned again within the longest wait.
        Self::new(rate, (LONGEST * rate).min(0.25), now)
    }

    /// For bringing producers and consumers of tables together, in seconds of the control thread's time. A job does that when it
    /// begins, for as many ranges as it has: tens of millions are paid for at once.
    pub(super) fn of_sweeps(now: Instant) -> Self {
        Self::new(MOST_OF_A_CORE, 4.0, now)
    }

    /// Nothing is owed any more.
    pub(super) fn forgive(&mut self) {
        (self.left, self.out) = (self.left.max(0.0), false);
    }

    /// What may be spent now; nothing, or less, if it owes.
    pub(super) fn left(&self) -> f64 {
        self.left
    }

    pub(super) fn spend(&mut self, cost: f64) {
        // What was spent before this is not owed beyond the burst: all that is taken at once is, which may have cost any amount.
        let most = self.burst.max(cost.min(LONGEST * self.rate)).max(-self.left);
        self.left = (self.left - cost).clamp(-most, self.burst);
    }

    /// Spends what comes bit by bit, and also while it is out: the debts add up, to `most`.
    pub(super) fn owe(&mut self, cost: f64, most: f64) {
        self.left = (self.left - cost).max(-most);
    }

    /// A frame came, with so many bytes of payload.
    pub(super) fn frame(&mut self, payload: u32) {
        self.spend((1.0 - f64::from(payload) / BYTES_A_FRAME).max(-MOST_EARNED));
    }

    /// A frame made the shard look at so many chunks.
    pub(super) fn look_at(&mut self, chunks: usize) {
        self.spend(chunks as f64 / CHUNKS_A_FRAME);
    }

    /// A frame without values made the shard go over that much, in looks at how far a worker is with a chunk.
    pub(super) fn work(&mut self, looks: usize) {
        self.spend(looks as f64 * SECONDS_A_LOOK);
    }

    /// So many frames without a value were sealed, for those that pass them on.
    pub(super) fn seal(&mut self, frames: usize) {
        self.spend(frames as f64 * SECONDS_A_SEAL);
    }

    /// So many ends of ranges were gone over.
    pub(super) fn sweep(&mut self, ends: u64) {
        self.spend(ends as f64 * SECONDS_AN_END);
    }

    /// What it has earned until `now`. To be called before anything is spent: what was earned in the time before a debt is no more
    /// than the burst, and pays for nothing of it.
    pub(super) fn earn(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.filled);
        self.filled = self.filled.max(now);
        self.left = self.rate.mul_add(passed.as_secs_f64(), self.left).min(self.burst);
    }

    /// Whether it must not be heard for now.
    pub(super) fn is_out(&mut self, now: Instant) -> bool {
        self.earn(now);
        if self.out || self.left <= 0.0 {
            self.out = self.left < self.enough();
        }
        self.out
    }

    /// What it must have earned to be heard again.
    fn enough(&self) -> f64 {
        self.rate * BREATH.as_secs_f64()
    }

    /// How long it will not be heard, if it spends nothing meanwhile, as of the last look at what it has earned.
    pub(super) fn out_for(&self) -> Duration {
        match self.out {
            true => Duration::from_secs_f64(((self.enough() - self.left) / self.rate).max(0.0)),
            false => Duration::ZERO,
        }
    }
}

/// How long a job is kept waiting within a minute before that is worth a word.
const WORTH_A_WORD: Duration = Duration::from_secs(1);

/// For how long a job was kept waiting within the minute.
#[derive(Debug)]
pub(super) struct KeptWaiting {
    began: Instant,
    last: Instant,
    is_out: bool,
    waited: Duration,
    told: bool,
}

impl KeptWaiting {
    pub(super) fn new(now: Instant) -> Self {
        Self { began: now, last: now, is_out: false, waited: Duration::ZERO, told: false }
    }

    /// Whether it is time to say so, once in the minute, given whether it waits from now on.
    pub(super) fn note(&mut self, is_out: bool, now: Instant) -> bool {
        if now.saturating_duration_since(self.began) > Duration::from_secs(60) {
            *self = Self { is_out: self.is_out, last: self.last, ..Self::new(now) };
        }
        if self.is_out {
            self.waited += now.saturating_duration_since(self.last);
        }
        (self.last, self.is_out) = (now, is_out);
        let tells = self.waited >= WORTH_A_WORD && !self.told;
        self.told |= tells;
        tells
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Costs that are taken in a second of looks every millisecond, each of which takes what there is up to `most`.
    fn taken(pace: &mut Pace, from: Instant, most: u32, payload: u32) -> u32 {
        let mut taken = 0;
        for millisecond in 0..1000 {
            let now = from + Duration::from_millis(millisecond);
            for _ in 0..most {
                if pace.is_out(now) {
                    break;
                }
                pace.frame(payload);
                taken += 1;
            }
        }
        taken
    }

    #[test]
    fn bare_frames_are_taken_at_the_rate_after_the_burst() {
        let now = Instant::now();
        let mut pace = Pace::new(100_000.0, 50_000.0, now);
        let first = taken(&mut pace, now, 1_000_000, 0);
        assert!((50_000..=152_000).contains(&first), "{first}");
        let second = taken(&mut pace, now + Duration::from_secs(1), 1_000_000, 0);
        assert!((95_000..=103_000).contains(&second), "{second}");
    }

    #[test]
    fn frames_with_values_pay_for_as_many_without() {
        let now = Instant::now();
        let mut pace = Pace::new(100.0, 100.0, now);
        for _ in 0..10_000 {
            assert!(!pace.is_out(now));
            pace.frame(4096);
            pace.frame(0);
        }
        assert_eq!(taken(&mut Pace::new(100.0, 100.0, now), now, 50, 4096), 50_000);
    }

    /// A job that had spent without end while it was alone stood still for as long, once there was another.
    #[test]
    fn whoever_has_spent_far_too_much_is_heard_again_soon() {
        let now = Instant::now();
        let mut pace = Pace::of_work(2, 2, now);
        (0..1000).for_each(|_| pace.work(1 << 30));
        assert!(pace.is_out(now + Duration::from_secs(1)));
        assert!(!pace.is_out(now + Duration::from_secs(61)));
    }

    // Its clocks were not paced at all with one shard on 64 cores, and it waited for minutes with many on few.
    #[test]
    fn a_shard_takes_little_of_its_core_and_owes_no_more_than_a_minute_whatever_their_numbers() {
        for (shards, cores) in [(1, 64), (4, 64), (2, 2), (16, 2), (64, 1)] {
            let now = Instant::now();
            let mut pace = Pace::of_work(shards, cores, now);
            pace.work(60_000_000);
            assert!(pace.is_out(now + Duration::from_millis(1)), "{shards} on {cores}: more than the burst");
            let mut at = now + Duration::from_secs(61);
            let mut spent = 0.0;
            assert!(!pace.is_out(at), "{shards} on {cores}: a minute later");
            while at < now + Duration::from_secs(161) {
                if !pace.is_out(at) {
                    pace.work(100_000);
                    spent += 100_000.0 * SECONDS_A_LOOK;
                }
                at += Duration::from_millis(5);
            }
            assert!(spent <= 0.06 * 100.0 + 0.25, "{shards} on {cores}: {spent} s in 100");
        }
    }

    // What a minute of rest had earned paid for the first clock, whatever it cost.
    #[test]
    fn who_has_rested_pays_for_what_costs_more_than_the_burst() {
        let now = Instant::now();
        let mut pace = Pace::of_work(2, 2, now);
        let later = now + Duration::from_secs(60);
        assert!(!pace.is_out(later));
        pace.work(200_000_000);
        assert!(pace.is_out(later + Duration::from_millis(1)), "a second, and there was a quarter of one");
        assert!(pace.is_out(later + Duration::from_secs(30)));
    }

    #[test]
    fn who_is_not_heard_is_heard_again_when_it_was_said_to_be() {
        let now = Instant::now();
        let mut pace = Pace::new(1000.0, 100.0, now);
        assert_eq!(pace.out_for(), Duration::ZERO);
        pace.spend(300.0);
        assert!(pace.is_out(now));
        let again = pace.out_for();
        assert!((Duration::from_millis(200)..Duration::from_millis(300)).contains(&again), "{again:?}");
        assert!(pace.is_out(now + again - Duration::from_millis(1)));
        assert!(!pace.is_out(now + again + Duration::from_millis(1)));
        assert_eq!(pace.out_for(), Duration::ZERO);
    }

    #[test]
    fn that_a_job_is_kept_waiting_is_said_once_a_minute() {
        let now = Instant::now();
        let mut kept = KeptWaiting::new(now);
        let mut told = vec![];
        // It waits a tenth of the time.
        for look in 0..1200 {
            if kept.note(look % 10 == 0, now + Duration::from_millis(100 * look)) {
                told.push(look);
            }
        }
        assert_eq!(told, [91, 691], "behind ten waits of a tenth of a second, in each minute");
    }

    #[test]
    fn what_is_owed_is_not_forgiven_for_what_is_spent_next() {
        let now = Instant::now();
        let mut pace = Pace::of_work(2, 2, now);
        pace.work(1 << 30);
        pace.work(1);
        assert!(pace.is_out(now + Duration::from_secs(30)));
    }

    #[test]
    fn nobody_saves_more_than_the_burst() {
        let now = Instant::now();
        let mut pace = Pace::new(1000.0, 100.0, now);
        (0..100_000).for_each(|_| pace.frame(4096));
        let later = now + Duration::from_secs(100);
        let mut taken = 0;
        while !pace.is_out(later) {
            pace.frame(0);
            taken += 1;
        }
        // What it had, and what a hundred seconds fill up again.
        assert!(taken <= 200, "{taken}");
    }
}
