//! How hard the network presses a sender, as far as a filter [follows](Follows) that: one decision a stream.
//!
//! - **By bandwidth**, as Parameter Flow does (3.3.3): not at all while every link of the sender has the bandwidth that suffices,
//!   else as hard as it can.
//! - **By time**, which is ours, and needs no number: what counts is the part of the time for which the busiest link is at work on
//!   what is sent. While that part is noticeable the pressure rises, by more steps the larger it is; once it has been small for
//!   long enough it eases by one. Pressure that comes back right after doubles the patience before the next try.
//!
//! Both come from what is sent anyway, by what the transport says of each link. No probe is sent, and no clock is read here:
//! times come from outside. What is short says nothing of a link's bandwidth, since it takes a round trip in any case: so by
//! bandwidth it is no reason, and by time pressure that does not shorten the sending is given up.

use crate::consistency::Consistency;
use penstock_kernels::filter::{Follows, Pressure};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Duration;

/// Least time between two looks, and least of the sender's turns.
const APART: (Duration, u32) = (Duration::from_millis(100), 4);
/// Part of the time from which on sending is noticeable where everybody waits for it: there all of it could be saved.
const WAITED_FOR: f64 = 0.1;
/// The same where workers go on meanwhile: until links are nearly always at work, sending hides behind computing.
const HIDDEN: f64 = 0.8;
/// Looks at little sending before the pressure eases: at first, and at most.
const PATIENCE: (u32, u32) = (4, 64);
/// Looks at the most pressure before it has to have shortened the sending, and to which part of what it was at least.
const TRIAL: (u32, f64) = (4, 0.8);
/// Looks under pressure after which it is seen once more what is without: at first, and at most.
const AGAIN: (u32, u32) = (64, 1024);
/// Looks at none after pressure was in vain: at first, and at most.
const REST: (u32, u32) = (32, 4096);
/// Changes that are kept to be shown.
const SHOWN: usize = 16;

/// What a link has carried, and how fast.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Flow {
    /// Bytes that the other end has had of it, since the connection was made.
    pub sent: u64,
    /// Bytes a second at which they went; `None`: not known yet.
    pub rate: Option<f64>,
    /// Whether there was too little to send for that to be all that the link has: then it has as much at least, and what is short
    /// takes a round trip, whatever the link's bandwidth.
    pub cut_short: bool,
}

/// A decision, and why.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The sender's turn that was about the first under it: a worker's clock, or a version.
    pub at: u64,
    /// What was decided.
    pub pressure: Pressure,
    /// For which part of the time the busiest link was at work, by its bytes and its rate.
    pub busy: f64,
    /// Bytes a second of the slowest link, if any is known.
    pub slowest: Option<f64>,
}

/// Decides for one stream.
#[derive(Debug, Clone)]
pub struct Gauge {
    follows: Follows,
    noticeable: f64,
    pressure: Pressure,
    /// When it was looked last, and what each link had sent by then, by its place.
    last: Option<(Duration, Vec<Option<u64>>)>,
    /// Turns since.
    turns: u32,
    /// Looks at little sending; since the pressure has eased.
    calm: u32,
    since_eased: u32,
    patience: u32,
    trial: Trial,
    /// Looks under pressure since there was none, and after how many there is none again, to compare with.
    pressed: u32,
    again: u32,
    changes: VecDeque<Change>,
}

/// Whether pressure does any good. What is short takes a round trip or some, which fewer bytes do not shorten: it looks like a link
/// that is slow.
#[derive(Debug, Clone, Copy)]
struct Trial {
    /// Seconds of sending a turn, when the pressure rose.
    before: f64,
    /// Looks at the most pressure since.
    looks: u32,
    /// Whether it was seen to shorten that.
    proven: bool,
    /// Looks for which nothing is tried, now, and after the next pressure in vain.
    rests: u32,
    next: u32,
}

impl Gauge {
    /// For a stream of a tensor whose workers go in step, or not.
    pub fn new(follows: Follows, consistency: Consistency) -> Self {
        let noticeable = if consistency.slack() == Some(0) { WAITED_FOR } else { HIDDEN };
        Self {
            follows,
            noticeable,
            pressure: Pressure::NONE,
            last: None,
            turns: 0,
            calm: 0,
            since_eased: u32::MAX,
            patience: PATIENCE.0,
            trial: Trial { before: 0.0, looks: 0, proven: false, rests: 0, next: REST.0 },
            pressed: 0,
            again: AGAIN.0,
            changes: VecDeque::new(),
        }
    }

    /// What is in force.
    pub fn pressure(&self) -> Pressure {
        self.pressure
    }

    /// The last decisions, the newest last.
    pub fn changes(&self) -> impl ExactSizeIterator<Item = &Change> {
        self.changes.iter()
    }

    /// The sender has so many turns more: whether it is time to [look](Self::look).
    pub fn is_time(&mut self, turns: u32, now: Duration) -> bool {
        self.turns = self.turns.saturating_add(turns);
        match &self.last {
            None => true,
            Some((last, _)) => self.turns >= APART.1 && now.saturating_sub(*last) >= APART.0,
        }
    }

    /// Looks at all links of the sender, and decides. Each link has its place among them, where there is none while it is not
    /// connected. `at` is the turn that comes next. The first look has nothing to compare with.
    pub fn look(&mut self, now: Duration, at: u64, flows: impl Iterator<Item = Option<Flow>>) {
        let turns = std::mem::take(&mut self.turns).max(1);
        let flows: Vec<Option<Flow>> = flows.collect();
        let sent = flows.iter().map(|flow| flow.map(|flow| flow.sent)).collect();
        let Some((since, before)) = self.last.replace((now, sent)) else { return };
        let slowest =
            |flow: fn(&Flow) -> Option<f64>| flows.iter().flatten().filter_map(flow).reduce(f64::min);
        // A connection that was made anew counts from its own beginning. One that was not there before is seen at the next look.
        let time = |(flow, before): (&Option<Flow>, &Option<u64>)| {
            let (Some(flow), Some(before)) = (flow, before) else { return 0.0 };
            let new = flow.sent.checked_sub(*before).unwrap_or(flow.sent) as f64;
            flow.rate.filter(|rate| *rate > 0.0).map_or(0.0, |rate| new / rate)
        };
        let elapsed = now.saturating_sub(since).as_secs_f64().max(1e-9);
        let sending = flows.iter().zip(&before).map(time).fold(0.0, f64::max);
        let busy = sending / elapsed;
        let pressure = match self.follows {
            Follows::Bandwidth(enough) => {
                let known = slowest(|flow| flow.rate.filter(|_| !flow.cut_short));
                match slowest(|flow| flow.rate) {
                    _ if known.is_some_and(|known| known < enough) => Pressure::MOST,
                    // What was cut short may have been faster: it changes nothing.
                    Some(slowest) if slowest < enough => self.pressure,
                    _ => Pressure::NONE,
                }
            }
            Follows::Time => self.by_time(busy, sending / f64::from(turns)),
        };
        let pressure = self.seen_anew(pressure);
        if pressure != self.pressure {
            self.pressure = pressure;
            if self.changes.len() == SHOWN {
                self.changes.pop_front();
            }
            self.changes.push_back(Change { at, pressure, busy, slowest: slowest(|flow| flow.rate) });
        }
    }

    /// `sending`: seconds of a turn.
    fn by_time(&mut self, busy: f64, sending: f64) -> Pressure {
        if self.trial.rests > 0 {
            self.trial.rests -= 1;
            return Pressure::NONE;
        }
        self.since_eased = self.since_eased.saturating_add(1);
        if busy > self.noticeable {
            self.calm = 0;
            if self.is_in_vain(sending) {
                return Pressure::NONE;
            }
            if self.since_eased <= self.patience {
                self.patience = (2 * self.patience).min(PATIENCE.1);
            }
            let steps = (busy / self.noticeable - 1.0).ceil().clamp(1.0, Pressure::MOST.steps().into());
            return Pressure::of(self.pressure.steps() + steps as u8);
        }
        self.calm += 1;
        if self.pressure > Pressure::NONE && self.calm >= self.patience {
            (self.calm, self.since_eased) = (0, 0);
            return self.pressure.eased();
        }
        if self.calm >= 2 * self.patience {
            // Calm for long at no pressure: the next trouble is met with fresh patience.
            self.patience = PATIENCE.0;
        }
        self.pressure
    }

    /// This pressure, or for one look none where there was some for long: it may have been of use once, and no longer.
    fn seen_anew(&mut self, pressure: Pressure) -> Pressure {
        if pressure == Pressure::NONE {
            if self.pressure > Pressure::NONE && self.pressed < self.again {
                self.again = AGAIN.0;
            }
            self.pressed = 0;
            return pressure;
        }
        self.pressed += 1;
        if self.pressed < self.again {
            return pressure;
        }
        self.pressed = 0;
        self.again = (2 * self.again).min(AGAIN.1);
        Pressure::NONE
    }

    /// Whether pressure was tried, and has not shortened the sending: then it is not tried for a while.
    fn is_in_vain(&mut self, sending: f64) -> bool {
        let trial = &mut self.trial;
        if self.pressure == Pressure::NONE {
            (trial.before, trial.looks, trial.proven) = (sending, 0, false);
        } else if self.pressure == Pressure::MOST && !trial.proven {
            trial.looks += 1;
            if sending < TRIAL.1 * trial.before {
                (trial.proven, trial.next) = (true, REST.0);
            } else if trial.looks >= TRIAL.0 {
                trial.rests = trial.next;
                trial.next = (2 * trial.next).min(REST.1);
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BSP: Consistency = Consistency::Bsp;
    const SSP: Consistency = Consistency::Ssp(4);
    const RATE: f64 = 1e6;

    /// A sender whose bytes per turn go with the pressure, over one link; a turn computes for so long.
    struct Sender {
        gauge: Gauge,
        now: f64,
        sent: u64,
        /// Whether sending adds to the time that a turn takes.
        waits: bool,
        /// Seconds that sending takes beside that for its bytes, which the link's rate does not tell apart.
        round_trip: f64,
    }

    impl Sender {
        fn new(follows: Follows, consistency: Consistency) -> Self {
            let waits = consistency == BSP;
            Self { gauge: Gauge::new(follows, consistency), now: 0.0, sent: 0, waits, round_trip: 0.0 }
        }

        /// Takes turns that send `bytes` at no pressure and a tenth at most, and gives the pressure after each.
        fn turns(&mut self, turns: u64, bytes: f64, computes: f64, rate: f64) -> Vec<u8> {
            let mut seen = None;
            let turn = |at| {
                if self.gauge.is_time(1, Duration::from_secs_f64(self.now)) {
                    let flow = Flow { sent: self.sent, rate: seen, cut_short: self.round_trip > 0.0 };
                    self.gauge.look(Duration::from_secs_f64(self.now), at, [Some(flow)].into_iter());
                }
                let bytes = bytes * (1.0 - 0.9 * self.gauge.pressure().share());
                self.sent += bytes as u64;
                let sending = bytes / rate + self.round_trip;
                seen = Some(bytes / sending);
                self.now += if self.waits { computes + sending } else { computes.max(sending) };
                self.gauge.pressure().steps()
            };
            (0..turns).map(turn).collect()
        }
    }

    #[test]
    fn sending_that_is_waited_for_raises_the_pressure_and_little_sending_never_does() {
        let mut sender = Sender::new(Follows::Time, BSP);
        assert_eq!(sender.turns(500, 0.1 * RATE, 2.0, RATE), [0; 500], "5% of the time");
        let pressed = sender.turns(40, 2.0 * RATE, 1.0, RATE);
        assert_eq!(pressed.last(), Some(&4));
        let change = sender.gauge.changes().next().unwrap();
        assert!((500..510).contains(&(500 + change.at)) && change.slowest == Some(RATE), "{change:?}");
        assert!(change.busy > 0.1, "{change:?}");
    }

    #[test]
    fn sending_that_hides_behind_computing_does_not_press_until_links_are_always_at_work() {
        let mut sender = Sender::new(Follows::Time, SSP);
        assert_eq!(sender.turns(300, 0.7 * RATE, 1.0, RATE), [0; 300]);
        let pressed = sender.turns(60, 1.5 * RATE, 1.0, RATE);
        assert!(pressed.iter().any(|steps| *steps > 0));
        let hidden = *pressed.last().unwrap();
        assert!((1..=3).contains(&hidden), "only as much as it takes to hide: {pressed:?}");
    }

    #[test]
    fn pressure_eases_when_the_network_is_better_and_tries_seldom_while_it_is_not() {
        let mut sender = Sender::new(Follows::Time, BSP);
        let pressed = sender.turns(4000, 0.5 * RATE, 1.0, RATE);
        let tries = pressed.windows(2).filter(|pair| pair[1] < pair[0]).count();
        assert!((1..=25).contains(&tries), "{tries} in 1000 looks");
        assert!(sender.gauge.changes().len() <= SHOWN);
        // A competing flow has gone.
        let eased = sender.turns(4000, 0.5 * RATE, 1.0, 100.0 * RATE);
        assert_eq!(eased.last(), Some(&0));
    }

    #[test]
    fn round_trips_are_no_reason_to_send_less_for_long() {
        let mut sender = Sender { round_trip: 0.3, ..Sender::new(Follows::Time, BSP) };
        let pressed = sender.turns(4000, 0.001 * RATE, 0.7, RATE);
        let looks = pressed.iter().filter(|steps| **steps > 0).count();
        assert!((1..400).contains(&looks), "{looks} turns of 4000 under pressure in vain");
        assert!(
            pressed[3000..].iter().filter(|steps| **steps > 0).count() < 60,
            "it is tried ever more seldom"
        );
        // Where bytes cost as well it is worth it.
        let mut sender = Sender { round_trip: 0.1, ..Sender::new(Follows::Time, BSP) };
        let pressed = sender.turns(400, RATE, 0.7, RATE);
        assert!(pressed.iter().filter(|steps| **steps == 4).count() > 300, "{pressed:?}");
        // Also behind a time in which it was of use.
        let mut sender = Sender::new(Follows::Time, BSP);
        assert_eq!(sender.turns(100, RATE, 0.7, RATE).last(), Some(&4));
        sender.round_trip = 0.12;
        let pressed = sender.turns(8000, 0.001 * RATE, 0.88, RATE);
        let late = pressed[4000..].iter().filter(|steps| **steps > 0).count();
        assert!(late < 200, "{late} turns of 4000 under pressure in vain");
        // And what is not noticeable is none, for however little.
        let mut sender = Sender::new(Follows::Time, BSP);
        assert_eq!(sender.turns(100, RATE, 0.7, RATE).last(), Some(&4));
        sender.round_trip = 0.07;
        assert_eq!(sender.turns(2000, 0.001 * RATE, 0.93, RATE).last(), Some(&0));
        let mut gauge = Gauge::new(Follows::Bandwidth(50.0), BSP);
        let mut look = |second, rate, cut_short| {
            let flow = Flow { sent: 0, rate: Some(rate), cut_short };
            gauge.look(Duration::from_secs(second), second, [Some(flow)].into_iter());
            gauge.pressure()
        };
        look(0, 1.0, false);
        assert_eq!(look(1, 1.0, false), Pressure::MOST);
        assert_eq!(look(2, 2.0, true), Pressure::MOST, "it says as much at least, and changes nothing");
        assert_eq!(look(3, 60.0, true), Pressure::NONE);
        let mut gauge = Gauge::new(Follows::Bandwidth(50.0), BSP);
        for second in 0..9 {
            let flow = Flow { sent: 0, rate: Some(1.0), cut_short: true };
            gauge.look(Duration::from_secs(second), second, [Some(flow)].into_iter());
            assert_eq!(gauge.pressure(), Pressure::NONE, "as much at least");
        }
    }

    #[test]
    fn by_bandwidth_there_are_two_ends_and_the_slowest_link_decides() {
        let mut gauge = Gauge::new(Follows::Bandwidth(50.0), BSP);
        let mut look = |seconds, rates: &[Option<f64>]| {
            let flow = |rate: &Option<f64>| Some(Flow { rate: *rate, ..Flow::default() });
            gauge.look(Duration::from_secs(seconds), seconds, rates.iter().map(flow));
            gauge.pressure()
        };
        look(0, &[Some(1.0)]);
        assert_eq!(look(1, &[Some(60.0), Some(50.0)]), Pressure::NONE);
        assert_eq!(look(2, &[Some(60.0), Some(49.9)]), Pressure::MOST);
        assert_eq!(look(3, &[Some(60.0), None]), Pressure::NONE, "what is not known is not in the way");
        assert_eq!(look(4, &[]), Pressure::NONE, "everybody is on this host");
        let all: Vec<_> = gauge.changes().map(|change| (change.at, change.slowest)).collect();
        assert_eq!(all, [(2, Some(49.9)), (3, Some(60.0))]);
    }

    #[test]
    fn a_connection_that_is_made_anew_and_links_that_come_and_go_are_no_trouble() {
        let mut gauge = Gauge::new(Follows::Time, BSP);
        let large = 1 << 40;
        let looks = [
            [Some(large), Some(large), None],
            [Some(5), Some(large + 3), None],
            [None, Some(large + 4), Some(2 * large)],
            [Some(large), Some(large + 9), Some(2 * large + 1)],
            [Some(large + 1), None, None],
        ];
        for (second, links) in (0..).zip(looks) {
            let flow =
                |sent: Option<u64>| sent.map(|sent| Flow { sent, rate: Some(1000.0), cut_short: false });
            gauge.look(Duration::from_secs(second), 0, links.into_iter().map(flow));
            assert_eq!(gauge.pressure(), Pressure::NONE, "second {second}");
        }
    }

    proptest! {
        #[test]
        fn whatever_links_say_the_pressure_is_in_its_range_and_the_last_change_says_it(
            looks in prop::collection::vec(
                (
                    0_u64..1000,
                    prop::collection::vec(
                        prop::option::of((any::<u64>(), prop::option::of(-1.0_f64..1e12), any::<bool>())),
                        0..4,
                    ),
                ),
                0..60,
            ),
            by_time: bool,
        ) {
            let follows = if by_time { Follows::Time } else { Follows::Bandwidth(1e9) };
            let mut gauge = Gauge::new(follows, BSP);
            let mut now = Duration::ZERO;
            for (at, (later, flows)) in looks.into_iter().enumerate() {
                now += Duration::from_millis(later);
                let flow = |(sent, rate, cut_short)| Flow { sent, rate, cut_short };
                gauge.look(now, at as u64, flows.into_iter().map(|given| given.map(flow)));
                prop_assert!(gauge.pressure() <= Pressure::MOST);
                let shown = gauge.changes().last().map_or(Pressure::NONE, |change| change.pressure);
                prop_assert_eq!(shown, gauge.pressure());
            }
        }
    }
}
