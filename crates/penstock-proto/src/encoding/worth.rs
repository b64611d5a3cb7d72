//! Whether a sender tries a stream's encodings for its next chunk, or sends it raw, by what encoding is known to cost.
//!
//! An encoding leaves a chunk shorter, and takes time at both ends: on a link that is fast enough raw is there sooner. Two measured
//! numbers decide, beside what the link takes for a byte: the seconds that encoding takes for a byte of this stream, whatever comes of
//! it, and what it leaves of it. Raw costs a byte's time on the link. An encoding costs its own time, once for each link that the same
//! thread sends the same to, as much again at the receiver, and what is left on the link. That is the dearest reading: a thread encodes
//! while the kernel sends what came before. Raw is chosen where the encodings cost more by [`MARGIN`]; and they again where they cost
//! less.
//!
//! Only what loses nothing either way is decided so, whatever was declared: bits never change. While encodings are in use one chunk in
//! [`MEASURED`] is measured. While raw is, no chunk is looked at but for trials: after ever more chunks, out of what was saved up for
//! them, a [share](TRIALS) of the time that sending takes. Where the link's rate is not known, encodings are in use: a link on which
//! there was never enough to send to see what it carries is not what holds anything up.
//!
//! It has no clock: durations and the link's rate are told.

use crate::cost::Known;
use std::time::Duration;

/// By how much of raw's cost encodings have to be dearer.
const MARGIN: f64 = 1.0 / 32.0;
/// The share of the time of sending that trials may take, beyond what sending raw would have.
const TRIALS: f64 = 1.0 / 100.0;
/// Most seconds that are saved up for trials, but for one that costs more.
const SAVED: f64 = 0.01;
/// Chunks from one that is measured to the next, about: looking at the clock twice takes a hundredth of encoding a chunk of 32 KiB.
const MEASURED: u32 = 16;
/// Chunks from one trial to the next, at first and at most, about.
const APART: (u32, u32) = (16, 4096);
/// So many more or fewer, another number each time: chunks of a tensor go in the same order again and again, and none is to be the one
/// that is measured each time.
const STRAYS: u32 = 16;
/// What the receiver takes, in times of the sender: decoding sparse elements takes about as long as encoding them.
const RECEIVER: f64 = 1.0;

/// What the next chunk is sent as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// The encodings are tried.
    Encoded,
    /// The same, and how long that takes is to be [told](Worth::tried).
    Measured,
    /// Raw.
    Raw,
}

/// Decides for one stream of chunks that goes over one link one way.
#[derive(Debug)]
pub struct Worth {
    known: Option<Known>,
    /// Seconds that the link takes for a byte.
    link: Option<f64>,
    /// Links that the thread sends the same to.
    links: f64,
    /// Whether encodings are in use.
    pays: bool,
    /// Chunks until the next one that is measured.
    wait: u32,
    /// While raw is in use, how many that will be until the one after.
    apart: u32,
    /// What the next distance is drawn by.
    turn: u32,
    /// Seconds saved up for trials.
    saved: f64,
    /// Bytes of the last chunk that was measured.
    bytes: f64,
}

impl Default for Worth {
    fn default() -> Self {
        Self {
            known: None,
            link: None,
            links: 1.0,
            pays: true,
            wait: 0,
            apart: APART.0,
            turn: 0,
            saved: 0.0,
            bytes: 0.0,
        }
    }
}

impl Worth {
    /// What the link carries, bytes a second, if that is known; to how many links the thread sends the same.
    pub fn carries(&mut self, rate: Option<f64>, links: usize) {
        self.link = rate.filter(|rate| rate.is_finite() && *rate >= 1.0).map(f64::recip);
        self.links = links.max(1) as f64;
        self.decide();
    }

    /// What the next chunk is sent as.
    pub fn attempt(&mut self) -> Attempt {
        let Some(link) = self.link else { return Attempt::Encoded };
        if self.pays {
            let is_due = self.wait == 0;
            self.wait = if is_due { self.about(MEASURED) } else { self.wait - 1 };
            return if is_due { Attempt::Measured } else { Attempt::Encoded };
        }
        let beyond = self.known.map_or(0.0, |known| (self.cost(&known, link) - link).max(0.0) * self.bytes);
        self.saved = (self.saved + TRIALS * self.bytes * link).min(SAVED.max(beyond));
        self.wait = self.wait.saturating_sub(1);
        if self.wait > 0 || beyond > self.saved {
            return Attempt::Raw;
        }
        self.saved -= beyond;
        self.wait = self.about(self.apart);
        self.apart = (2 * self.apart).min(APART.1);
        Attempt::Measured
    }

    fn about(&mut self, chunks: u32) -> u32 {
        // All numbers below 2^16 come in turn (Hull and Dobell), and the upper bits look random.
        self.turn = (self.turn * 25_173 + 13_849) % (1 << 16);
        chunks - STRAYS / 2 + (self.turn >> 8) % STRAYS
    }

    /// A chunk of so many bytes was encoded: how many it became, as many if it went raw after all, and how long that took, if anybody
    /// has looked.
    pub fn tried(&mut self, bytes: usize, became: usize, took: Option<Duration>) {
        self.bytes = (bytes as f64).max(1.0);
        let Some(took) = took else { return };
        self.known = Some(Known::learnt(self.known, bytes, became, took));
        self.decide();
    }

    /// Whether encodings are in use.
    pub fn pays(&self) -> bool {
        self.pays
    }

    fn decide(&mut self) {
        let before = self.pays;
        self.pays = match (self.link, &self.known) {
            // The first measurement is not believed in what it says against encodings.
            (Some(link), Some(known)) if !known.is_first => {
                let most = if before { (1.0 + MARGIN) * link } else { link };
                self.cost(known, link) <= most
            }
            _ => true,
        };
        if self.pays != before {
            (self.wait, self.apart) = (if self.pays { 0 } else { APART.0 }, APART.0);
        }
    }

    /// Seconds that encoding costs for a byte, with what is left of it on the link.
    fn cost(&self, known: &Known, link: f64) -> f64 {
        known.takes * (self.links + RECEIVER) + known.leaves * link
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NS: f64 = 1e-9;
    const GBIT: f64 = 125e6;
    const CHUNK: usize = 32_768;
    /// Seconds for a byte and what is left, of half zeros, nine in ten, and of none.
    const HALF: (f64, f64) = (0.12 * NS, 0.533);
    const FEW: (f64, f64) = (0.1 * NS, 0.12);
    const DENSE: (f64, f64) = (0.005 * NS, 1.0);

    /// Sends so many chunks; the seconds that took, and those that raw would have taken.
    fn send(worth: &mut Worth, (takes, leaves): (f64, f64), rate: f64, chunks: usize) -> (f64, f64) {
        let (mut took, mut raw) = (0.0, 0.0);
        for at in 0..chunks {
            if at % 16 == 0 {
                worth.carries(Some(rate), 1);
            }
            let attempt = worth.attempt();
            let encoded = 2.0 * takes + leaves / rate;
            took += if attempt == Attempt::Raw { 1.0 / rate } else { encoded };
            raw += 1.0 / rate;
            if attempt == Attempt::Measured {
                let duration = Duration::from_secs_f64(takes * CHUNK as f64);
                worth.tried(CHUNK, (leaves * CHUNK as f64) as usize, Some(duration));
            }
        }
        (took, raw)
    }

    #[test]
    fn encodings_are_in_use_where_they_are_cheaper_and_raw_where_the_link_is_too_fast_for_them() {
        for (stream, gbits, pays) in [
            (HALF, 1.0, true),
            (HALF, 10.0, true),
            (HALF, 40.0, false),
            (FEW, 10.0, true),
            (FEW, 20.0, true),
            (FEW, 100.0, false),
            (DENSE, 1.0, true),
            (DENSE, 10.0, true),
        ] {
            let mut worth = Worth::default();
            send(&mut worth, stream, gbits * GBIT, 1000);
            assert_eq!(worth.pays(), pays, "{stream:?} at {gbits} Gbit/s");
        }
    }

    #[test]
    fn what_does_not_pay_is_never_slower_than_raw_by_more_than_a_few_in_a_hundred() {
        for (stream, gbits) in [(HALF, 40.0), (HALF, 400.0), (FEW, 100.0), (FEW, 1000.0)] {
            let mut worth = Worth::default();
            let first = send(&mut worth, stream, gbits * GBIT, 64);
            let (took, raw) = send(&mut worth, stream, gbits * GBIT, 10_000);
            assert!(took <= 1.03 * raw, "{stream:?} at {gbits} Gbit/s: {}", took / raw);
            assert!(first.0 > first.1, "{stream:?} at {gbits} Gbit/s");
        }
    }

    // Of as many chunks as lay between two measurements the same one was measured each time.
    #[test]
    fn one_chunk_of_those_that_come_again_and_again_does_not_speak_for_all() {
        for chunks in [1, 2, 4, 8, 16, 17, 32, 64] {
            for odd in [0, chunks - 1] {
                let (mut worth, mut took, mut raw) = (Worth::default(), 0.0, 0.0);
                for at in 0..64_000 {
                    let stream = if at % chunks == odd { (0.02 * NS, 0.0) } else { HALF };
                    let one = send(&mut worth, stream, 40.0 * GBIT, 1);
                    (took, raw) = (took + one.0, raw + one.1);
                }
                assert!(took <= 1.05 * raw, "{odd} of {chunks} chunks: {}", took / raw);
            }
        }
    }

    #[test]
    fn while_raw_is_in_use_no_chunk_is_looked_at_but_for_trials_ever_further_apart() {
        let mut worth = Worth::default();
        send(&mut worth, HALF, 100.0 * GBIT, 200_000);
        let looked = (0..100_000).filter(|_| worth.attempt() != Attempt::Raw).count();
        assert!(looked <= 100_000 / 4080 + 1, "{looked}");
    }

    #[test]
    fn a_stream_or_a_link_that_changes_is_noticed() {
        let mut worth = Worth::default();
        send(&mut worth, HALF, 40.0 * GBIT, 1000);
        assert!(!worth.pays());
        send(&mut worth, (0.02 * NS, 0.001), 40.0 * GBIT, 20_000);
        assert!(worth.pays(), "it has become empty");
        send(&mut worth, HALF, 40.0 * GBIT, 1000);
        assert!(!worth.pays());
        // What is known of it is enough.
        worth.carries(Some(GBIT), 1);
        assert!(worth.pays(), "the link has become slow");
        worth.carries(Some(GBIT), 1000);
        assert!(!worth.pays(), "the thread encodes for many links");
    }

    #[test]
    fn a_link_of_which_nothing_is_known_and_a_sender_without_a_clock_leave_all_as_it_is() {
        let mut worth = Worth::default();
        for rate in [None, Some(0.0), Some(-1.0), Some(f64::NAN), Some(f64::INFINITY)] {
            worth.carries(rate, 1);
            assert_eq!(worth.attempt(), Attempt::Encoded, "{rate:?}");
        }
        worth.carries(Some(1e12), 1);
        for _ in 0..100 {
            assert_ne!(worth.attempt(), Attempt::Raw);
            worth.tried(CHUNK, CHUNK / 2, None);
        }
    }

    #[test]
    fn one_measurement_of_a_thread_that_was_put_aside_ends_nothing() {
        let mut worth = Worth::default();
        worth.carries(Some(10.0 * GBIT), 1);
        assert_eq!(worth.attempt(), Attempt::Measured);
        worth.tried(CHUNK, CHUNK / 10, Some(Duration::from_millis(30)));
        assert!(worth.pays(), "it was the first");
        send(&mut worth, FEW, 10.0 * GBIT, 100);
        worth.tried(CHUNK, CHUNK / 10, Some(Duration::from_millis(30)));
        send(&mut worth, FEW, 10.0 * GBIT, 10_000);
        assert!(worth.pays());
    }
}
