//! Which compressor a sender tries for the next chunk of a stream, by what that is known to cost.
//!
//! Where the declaration names one, it is tried for each chunk. Under `auto` three numbers decide, all of them measured: the seconds
//! that each compressor takes for a byte of this stream, what it leaves of it, and the seconds that the link takes for a byte. Raw
//! costs a byte's time on the link. A compressor costs its own time, as much again at the receiver, and what is left of a byte on the
//! link; its own time, not the receiver's, counts once for each link that the same thread serves, as it does nothing else meanwhile.
//! That is the dearest reading: in fact a thread compresses while the kernel sends what came before. The cheapest is taken, and a compressor only where it
//! is cheaper than raw by [`MARGIN`].
//!
//! What is in use is measured with each chunk. What is not is tried now and then, since streams change: after ever more chunks, and
//! only out of what was saved up for it, a [share](TRIALS) of the time that sending raw takes. So where compressing does not pay, it
//! costs no more than that share and the first two trials. Where the link's rate is not known, nothing is tried: a link on which there
//! was never enough to send to see what it carries is not what holds anything up.
//!
//! It has no clock: durations and the link's rate are told.

use super::Compress;
use crate::cost::Known;
use penstock_kernels::compress::Compressor;
use std::time::Duration;

/// By how much of raw's cost a compressor has to be cheaper.
const MARGIN: f64 = 1.0 / 32.0;
/// The share of the time of sending raw that trials may take.
const TRIALS: f64 = 1.0 / 100.0;
/// Most seconds that are saved up for trials, but for one that costs more: what is quiet for hours does not spend minutes then.
const SAVED: f64 = 0.01;
/// Chunks from one trial to the next, at first and at most.
const APART: (u32, u32) = (16, 4096);
/// What the receiver takes, in times of the sender: zstd takes about as long to decompress what it made of full-width numbers, and
/// both take less else.
const RECEIVER: f64 = 1.0;

/// What shorter payloads than this are: nothing that compressing could help, whatever was declared.
pub const LEAST: usize = 128;

/// Chooses for one stream of chunks that goes over one link one way.
#[derive(Debug)]
pub struct Chooser {
    compress: Compress,
    known: [Option<Known>; Compressor::ALL.len()],
    /// Seconds that the link takes for a byte.
    link: Option<f64>,
    /// Links that the thread serves.
    links: f64,
    chosen: Option<Compressor>,
    /// Seconds saved up for trials.
    saved: f64,
    /// Chunks until the next trial; how many it will be until the one after.
    wait: u32,
    apart: u32,
    /// Which is tried next.
    turn: usize,
    /// Bytes of the last chunk.
    bytes: f64,
}

impl Chooser {
    /// Nothing is known so far.
    pub fn new(compress: Compress) -> Self {
        Self {
            compress,
            known: [None; Compressor::ALL.len()],
            link: None,
            links: 1.0,
            chosen: None,
            saved: 0.0,
            wait: 0,
            apart: APART.0,
            turn: 0,
            bytes: 0.0,
        }
    }

    /// Whether it has to be told what the link carries.
    pub fn asks(&self) -> bool {
        self.compress == Compress::Auto
    }

    /// What the link carries, bytes a second, if that is known; of how many links that the thread serves.
    pub fn carries(&mut self, rate: Option<f64>, links: usize) {
        self.link = rate.filter(|rate| rate.is_finite() && *rate >= 1.0).map(f64::recip);
        self.links = links.max(1) as f64;
        self.decide();
    }

    /// What the next chunk is to be tried with; `None`: it goes as it is.
    pub fn attempt(&mut self) -> Option<Compressor> {
        match self.compress {
            Compress::None => None,
            Compress::By(by) => Some(by),
            Compress::Auto => self.link.and_then(|link| self.on_trial(link).or(self.chosen)),
        }
    }

    /// Another compressor than the chosen one, if the time has come and there is enough saved up.
    fn on_trial(&mut self, link: f64) -> Option<Compressor> {
        let price = self.known[self.turn].map(|Known { takes, .. }| self.spends(takes) * self.bytes);
        self.saved = (self.saved + TRIALS * self.bytes * link).min(SAVED.max(price.unwrap_or(0.0)));
        self.wait = self.wait.saturating_sub(1);
        let by = Compressor::ALL[self.turn];
        if self.chosen == Some(by) {
            self.turn = (self.turn + 1) % Compressor::ALL.len();
            return None;
        }
        // The first trial of each is free.
        if let Some(price) = price {
            if self.wait > 0 || price > self.saved {
                return None;
            }
            self.saved -= price;
        }
        self.turn = (self.turn + 1) % Compressor::ALL.len();
        self.wait = self.apart;
        self.apart = (2 * self.apart).min(APART.1);
        Some(by)
    }

    /// A chunk of so many bytes was tried: how many it became, as many if it did not become shorter, and what that took, if anybody
    /// has looked.
    pub fn tried(&mut self, by: Compressor, bytes: usize, became: usize, took: Option<Duration>) {
        self.bytes = bytes as f64;
        let (Some(took), Some(place)) = (took, Compressor::ALL.iter().position(|one| *one == by)) else {
            return;
        };
        self.known[place] = Some(Known::learnt(self.known[place], bytes, became, took));
        self.decide();
    }

    /// A chunk of so many bytes went as it was encoded, and nothing was tried.
    pub fn went(&mut self, bytes: usize) {
        self.bytes = bytes as f64;
    }

    /// What is in use where cost decides.
    pub fn chosen(&self) -> Option<Compressor> {
        self.chosen
    }

    fn decide(&mut self) {
        let before = self.chosen;
        self.chosen = self.link.and_then(|link| self.cheapest(link));
        if self.chosen != before {
            // What holds has changed, and may again.
            self.apart = APART.0;
        }
    }

    /// Seconds that both ends spend on a byte.
    fn spends(&self, takes: f64) -> f64 {
        takes * (self.links + RECEIVER)
    }

    fn cheapest(&self, link: f64) -> Option<Compressor> {
        let cost = |known: &Known| self.spends(known.takes) + known.leaves * link;
        let each = Compressor::ALL.into_iter().zip(&self.known);
        let costs = each.filter_map(|(by, known)| Some((by, cost(known.as_ref()?))));
        let (by, least) = costs.min_by(|one, other| one.1.total_cmp(&other.1))?;
        (least < (1.0 - MARGIN) * link).then_some(by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What holds in truth of a stream and its link.
    #[derive(Debug, Clone, Copy)]
    struct Truth {
        /// Of lz4 and zstd: seconds for a byte, and what is left of it.
        each: [(f64, f64); 2],
        /// Bytes a second.
        rate: f64,
    }

    impl Truth {
        fn of(&self, by: Option<Compressor>) -> f64 {
            let link = 1.0 / self.rate;
            by.map_or(link, |by| {
                let (takes, leaves) = self.each[usize::from(by.number()) - 1];
                2.0 * takes + leaves * link
            })
        }
    }

    /// Sends so many chunks, and gives the seconds that took, and those that raw would have taken.
    fn send(chooser: &mut Chooser, truth: Truth, chunks: usize, bytes: usize) -> (f64, f64) {
        let (mut took, mut raw) = (0.0, 0.0);
        for at in 0..chunks {
            if at % 8 == 0 {
                chooser.carries(Some(truth.rate), 1);
            }
            let by = chooser.attempt();
            match by {
                None => chooser.went(bytes),
                Some(by) => {
                    let (takes, leaves) = truth.each[usize::from(by.number()) - 1];
                    let duration = Duration::from_secs_f64(takes * bytes as f64);
                    chooser.tried(by, bytes, (leaves * bytes as f64) as usize, Some(duration));
                }
            }
            took += truth.of(by) * bytes as f64;
            raw += truth.of(None) * bytes as f64;
        }
        (took, raw)
    }

    const NS: f64 = 1e-9;
    const MBIT: f64 = 125e3;
    /// As measured of dense gradients: lz4 leaves all of it, zstd nine tenths.
    const DENSE: [(f64, f64); 2] = [(0.04 * NS, 1.0), (0.6 * NS, 0.92)];
    /// Of zeros that no encoding leaves out.
    const ZEROS: [(f64, f64); 2] = [(0.3 * NS, 0.2), (0.7 * NS, 0.15)];

    #[test]
    fn what_is_named_is_tried_for_each_chunk_and_nothing_where_nothing_is() {
        for by in Compressor::ALL {
            let mut chooser = Chooser::new(Compress::By(by));
            for _ in 0..100 {
                assert_eq!(chooser.attempt(), Some(by));
                chooser.tried(by, 1000, 1000, None);
            }
        }
        assert_eq!(Chooser::new(Compress::None).attempt(), None);
    }

    #[test]
    fn slow_links_have_what_leaves_least_fast_ones_what_takes_least_and_the_fastest_nothing() {
        for (each, rate, chosen) in [
            (DENSE, 100.0 * MBIT, Some(Compressor::Zstd)),
            (DENSE, 10_000.0 * MBIT, None),
            (ZEROS, 100.0 * MBIT, Some(Compressor::Zstd)),
            (ZEROS, 1000.0 * MBIT, Some(Compressor::Lz4)),
            (ZEROS, 40_000.0 * MBIT, None),
        ] {
            let mut chooser = Chooser::new(Compress::Auto);
            send(&mut chooser, Truth { each, rate }, 1000, 32_768);
            assert_eq!(chooser.chosen(), chosen, "{each:?} at {rate}");
        }
    }

    #[test]
    fn a_thread_that_serves_many_links_compresses_for_all_of_them() {
        let mut chooser = Chooser::new(Compress::Auto);
        send(&mut chooser, Truth { each: ZEROS, rate: 1000.0 * MBIT }, 100, 32_768);
        assert!(chooser.chosen().is_some());
        chooser.carries(Some(1000.0 * MBIT), 100);
        assert_eq!(chooser.chosen(), None);
    }

    #[test]
    fn a_link_of_which_nothing_is_known_and_a_sender_without_a_clock_leave_all_as_it_is() {
        let mut chooser = Chooser::new(Compress::Auto);
        for rate in [None, Some(0.0), Some(-1.0), Some(f64::NAN), Some(f64::INFINITY)] {
            chooser.carries(rate, 1);
            assert_eq!(chooser.attempt(), None, "{rate:?}");
        }
        chooser.carries(Some(1.0), 1);
        for _ in 0..10 {
            if let Some(by) = chooser.attempt() {
                chooser.tried(by, 1000, 1, None);
            }
        }
        assert_eq!(chooser.chosen(), None);
    }

    #[test]
    fn who_was_put_aside_in_the_first_trial_or_has_long_chunks_is_tried_again() {
        let zeros = Truth { each: ZEROS, rate: 100.0 * MBIT };
        let mut chooser = Chooser::new(Compress::Auto);
        chooser.carries(Some(zeros.rate), 1);
        chooser.went(32_768);
        for by in [Compressor::Lz4, Compressor::Zstd] {
            assert_eq!(chooser.attempt(), Some(by));
            chooser.tried(by, 32_768, 6000, Some(Duration::from_millis(30)));
        }
        send(&mut chooser, zeros, 5_000, 32_768);
        assert_eq!(chooser.chosen(), Some(Compressor::Zstd));
        let mut chooser = Chooser::new(Compress::Auto);
        send(&mut chooser, Truth { each: DENSE, rate: 10_000.0 * MBIT }, 2_000, 4 << 20);
        assert_eq!(chooser.chosen(), None);
        send(&mut chooser, Truth { each: ZEROS, rate: 1000.0 * MBIT }, 10_000, 4 << 20);
        assert!(chooser.chosen().is_some());
    }

    #[test]
    fn a_stream_that_changes_is_noticed_and_trials_grow_seldom_while_it_does_not() {
        let fast = |each| Truth { each, rate: 1000.0 * MBIT };
        let mut chooser = Chooser::new(Compress::Auto);
        let dense = [(0.05 * NS, 1.0), (0.7 * NS, 1.0)];
        let (took, raw) = send(&mut chooser, fast(dense), 20_000, 32_768);
        assert!(took <= 1.01 * raw, "{took} for {raw}");
        assert_eq!(chooser.apart, APART.1);
        // It has become mostly zeros.
        send(&mut chooser, fast(ZEROS), 10_000, 32_768);
        assert_eq!(chooser.chosen(), Some(Compressor::Lz4));
        // And is dense again: a few chunks show it.
        let (took, raw) = send(&mut chooser, fast(dense), 1000, 32_768);
        assert!(chooser.chosen().is_none() && took < 1.03 * raw, "{took} for {raw}");
        // A thread that was put aside once has measured that.
        send(&mut chooser, fast(ZEROS), 10_000, 32_768);
        chooser.tried(Compressor::Lz4, 32_768, 6000, Some(Duration::from_millis(50)));
        send(&mut chooser, fast(ZEROS), 5_000, 32_768);
        assert_eq!(chooser.chosen(), Some(Compressor::Lz4));
    }

    proptest! {
        /// The promise: whatever compressors are like, never slower than raw by more than 3 % behind the first trials.
        #[test]
        fn whatever_holds_auto_is_within_three_percent_of_raw(
            lz4 in (0.01_f64..20.0, 0.001_f64..1.0), zstd in (0.01_f64..60.0, 0.001_f64..1.0),
            rate in 1.0_f64..1e5, bytes in 200_usize..4_194_304, chunks in 1_usize..3000,
        ) {
            let truth = Truth { each: [(lz4.0 * NS, lz4.1), (zstd.0 * NS, zstd.1)], rate: rate * MBIT };
            let mut chooser = Chooser::new(Compress::Auto);
            let (took, raw) = send(&mut chooser, truth, chunks, bytes);
            let firsts = 2.0 * (lz4.0 + zstd.0) * NS * bytes as f64;
            prop_assert!(took <= 1.03 * raw + firsts, "{took} for {raw}");
            // And where one is much better, most of that is had.
            let best = Compressor::ALL.map(|by| truth.of(Some(by))).into_iter().fold(f64::MAX, f64::min);
            if best < 0.5 * truth.of(None) && chunks > 500 {
                prop_assert!(took < 0.6 * raw + firsts, "{took} for {raw}, {best} would do");
            }
        }

        #[test]
        fn whatever_is_told_the_choice_is_one_of_those_there_are(
            told in prop::collection::vec(
                (any::<f64>(), 0_usize..1000, 0_usize..100_000, 0_usize..100_000, any::<u32>()), 0..200,
            ),
        ) {
            let mut chooser = Chooser::new(Compress::Auto);
            for (rate, links, bytes, became, nanos) in told {
                chooser.carries(Some(rate), links);
                match chooser.attempt() {
                    Some(by) => chooser.tried(by, bytes, became, Some(Duration::from_nanos(nanos.into()))),
                    None => chooser.went(bytes),
                }
                prop_assert!(chooser.saved.is_finite() && chooser.saved >= 0.0);
            }
        }
    }
}
