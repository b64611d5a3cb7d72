//! A host measures its link by what the transport says of its connections: no probe is sent.
//!
//! It looks at all of them in one moment, again and again. Between two looks a connection to a host that is fed was *at work* if
//! bytes waited in the kernel for the network at both, and it was busy all the time without having to wait for its receiver. The
//! uplink carried what went meanwhile. Such pieces are added up until they are long enough to be believed, those
//! that went to one host alone by themselves.
//!
//! The greatest rate of the last while is what the link has: others on the line, a receiver that others send to as well, and a
//! queue that overflows make a piece slower, and hardly anything makes one faster.

use super::Measured;
use crate::Rank;
use std::collections::BTreeMap;
use std::time::Duration;

/// Bytes and time of sending that make a rate.
const BASIS: (u64, Duration) = (2 << 20, Duration::from_millis(50));
/// Time, idle or not, in which what all connections carried is added up: so much at least is there. Shorter, a queue that lets a
/// burst through at once would count.
const SPAN: Duration = Duration::from_millis(250);
/// After so long, or between twice as long and that, a rate is forgotten for newer ones.
const LATELY: Duration = Duration::from_secs(10);
/// Of the time between two looks, how much is all of it; and how coarse the kernel's counts of time are.
const THROUGHOUT: f64 = 0.9;
const TICK: Duration = Duration::from_millis(10);
/// Hosts that pieces are kept for that went to them alone.
const MOST_ALONE: usize = 64;

/// Where a connection leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum To {
    /// To a worker that is fed over it.
    Child(Rank),
    /// Elsewhere. What goes there takes its part of the uplink, and may be slow for other reasons: many send to one server at once.
    Other,
}

/// What a connection has carried since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carried {
    /// Where it leads.
    pub to: To,
    /// Bytes that the other end has had.
    pub sent: u64,
    /// Bytes that have come.
    pub received: u64,
    /// Time in which something was under way or waited to be.
    pub busy: Duration,
    /// Of that, the time in which it waited for the receiver or for this host's buffers, and not for the network.
    pub held: Duration,
    /// Whether bytes wait for the network now.
    pub waits: bool,
}

/// Bytes, and the time that they took.
#[derive(Debug, Clone, Copy, Default)]
struct Piece {
    bytes: u64,
    time: Duration,
}

impl Piece {
    fn add(&mut self, bytes: u64, time: Duration) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.time = self.time.saturating_add(time);
    }

    fn rate(&self) -> f64 {
        self.bytes as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

/// The greatest of the last while.
#[derive(Debug, Clone, Copy, Default)]
struct Greatest {
    now: Option<(f64, Option<Rank>)>,
    before: Option<(f64, Option<Rank>)>,
    since: Duration,
}

impl Greatest {
    fn note(&mut self, rate: f64, to: Option<Rank>, now: Duration) {
        if now.saturating_sub(self.since) > LATELY {
            (self.before, self.since) = (self.now.take(), now);
        }
        if self.now.is_none_or(|(greatest, _)| rate > greatest) {
            self.now = Some((rate, to));
        }
    }

    /// As of this time: what nothing has borne out for long is not known any more.
    fn get(&self, now: Duration) -> Option<(f64, Option<Rank>)> {
        let age = now.saturating_sub(self.since);
        let [newest, older] = [self.now.filter(|_| age <= 2 * LATELY), self.before.filter(|_| age <= LATELY)];
        let both = [newest, older].into_iter().flatten();
        both.max_by(|one, other| one.0.total_cmp(&other.0))
    }
}

/// Measures one host's link.
#[derive(Debug, Default)]
pub struct Gauge {
    last: Option<(Duration, BTreeMap<u64, Carried>)>,
    /// Pieces of sending: to several, or to one alone.
    pieces: BTreeMap<Option<Rank>, Piece>,
    sends: Greatest,
    /// What went and what came since a while, whether it was busy or not.
    span: (Piece, Piece),
    takes: Greatest,
    news: u64,
}

impl Gauge {
    /// Looks at all connections, each by a number that no other ever has.
    pub fn look(&mut self, now: Duration, connections: impl IntoIterator<Item = (u64, Carried)>) {
        let now_carried: BTreeMap<u64, Carried> = connections.into_iter().collect();
        let Some((since, before)) = &self.last else {
            self.last = Some((now, now_carried));
            return;
        };
        let elapsed = now.saturating_sub(*since);
        if elapsed.is_zero() {
            return;
        }
        let both = now_carried.iter().filter_map(|(number, now)| Some((before.get(number)?, now)));
        let looked = Looked::of(elapsed, both);
        self.last = Some((now, now_carried));
        self.note_span(now, elapsed, looked.sent, looked.received);
        if let Some((to, bytes, time)) = looked.at_work {
            self.note_piece(now, to, bytes, time);
        }
    }

    fn note_piece(&mut self, now: Duration, to: Option<Rank>, bytes: u64, time: Duration) {
        if !self.pieces.contains_key(&to) && self.pieces.len() >= MOST_ALONE {
            self.pieces.clear();
        }
        let piece = self.pieces.entry(to).or_default();
        piece.add(bytes, time);
        if piece.bytes >= BASIS.0 && piece.time >= BASIS.1 {
            let rate = std::mem::take(piece).rate();
            self.sends.note(rate, to, now);
            self.news += 1;
        }
    }

    fn note_span(&mut self, now: Duration, elapsed: Duration, sent: u64, received: u64) {
        let (went, came) = &mut self.span;
        went.add(sent, elapsed);
        came.add(received, elapsed);
        if went.time < SPAN {
            return;
        }
        let (went, came) = std::mem::take(&mut self.span);
        // It does not tell what the uplink has, but that it has no less.
        if went.bytes >= BASIS.0
            && let Some((rate, _)) = self.sends.get(now)
            && went.rate() > rate
        {
            self.sends.note(went.rate(), None, now);
            self.news += 1;
        }
        if came.bytes >= BASIS.0 {
            self.takes.note(came.rate(), None, now);
            self.news += 1;
        }
    }

    /// What is known as of this time, if anything is.
    pub fn measured(&self, now: Duration) -> Option<Measured> {
        let (sends, takes) = (self.sends.get(now), self.takes.get(now));
        if sends.is_none() && takes.is_none() {
            return None;
        }
        let whole = |rate: Option<(f64, Option<Rank>)>| rate.map_or(0, |(rate, _)| (rate as u64).max(1));
        let to = sends.and_then(|(_, to)| to);
        Some(Measured { sends: whole(sends), to, takes: whole(takes) }.sane())
    }

    /// Grows with whatever is learnt, also if it is what was known before.
    pub fn news(&self) -> u64 {
        self.news
    }
}

/// What happened between two looks.
#[derive(Debug, Default)]
struct Looked {
    sent: u64,
    received: u64,
    /// Where it went while the uplink was at work, what, and for how long.
    at_work: Option<(Option<Rank>, u64, Duration)>,
}

impl Looked {
    fn of<'a>(elapsed: Duration, both: impl Iterator<Item = (&'a Carried, &'a Carried)>) -> Self {
        let (mut sent, mut received) = (0_u64, 0_u64);
        let mut at_work: Option<Option<Rank>> = None;
        for (before, now) in both {
            let went = now.sent.saturating_sub(before.sent);
            sent = sent.saturating_add(went);
            received = received.saturating_add(now.received.saturating_sub(before.received));
            let To::Child(rank) = now.to else { continue };
            let busy = now.busy.saturating_sub(before.busy).min(elapsed);
            let held = now.held.saturating_sub(before.held).min(busy);
            // What has gone before the end may have waited for others' bytes at the receiver, while this end was idle. That nothing was
            // confirmed meanwhile is no reason: a link that loses much stands still for long.
            if before.waits && now.waits && busy + TICK - held >= elapsed.mul_f64(THROUGHOUT) {
                let alone = at_work.is_none_or(|to| to == Some(rank));
                at_work = Some(alone.then_some(rank));
            }
        }
        Self { sent, received, at_work: at_work.map(|to| (to, sent, elapsed)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MB: u64 = 1_000_000;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn carried(to: Rank) -> Carried {
        let (busy, held) = (Duration::ZERO, Duration::ZERO);
        Carried { to: To::Child(to), sent: 0, received: 0, busy, held, waits: false }
    }

    /// Connections that are looked at every 20 ms.
    struct Host {
        gauge: Gauge,
        now: Duration,
        all: Vec<Carried>,
    }

    impl Host {
        fn new(all: Vec<Carried>) -> Self {
            let mut host = Self { gauge: Gauge::default(), now: Duration::ZERO, all };
            host.look();
            host
        }

        fn look(&mut self) {
            self.gauge.look(self.now, (0..).zip(self.all.iter().copied()));
        }

        /// So many looks, between each of which a connection sends so many bytes a second for so much of the 20 ms.
        fn send(&mut self, looks: u32, at: &[(f64, u64)]) {
            for _ in 0..looks {
                for (one, &(rate, busy)) in self.all.iter_mut().zip(at) {
                    one.waits = true;
                    one.sent += (rate * busy as f64 / 1e3) as u64;
                    one.busy += ms(busy);
                }
                // What waited is gone before the look where it was not busy throughout, and was there at the one before.
                self.now += ms(20);
                self.look();
            }
        }

        fn rest(&mut self, time: Duration) {
            self.all.iter_mut().for_each(|one| one.waits = false);
            self.look_later(time);
        }

        fn look_later(&mut self, time: Duration) {
            self.now += time;
            self.look();
        }

        fn sends(&self) -> Option<(u64, Option<Rank>)> {
            let measured = self.gauge.measured(self.now).filter(|measured| measured.sends > 0)?;
            Some(((measured.sends + MB / 2) / MB, measured.to))
        }
    }

    // Idle time counted, so that idle hosts looked slow.
    #[test]
    fn time_in_which_nothing_is_to_be_sent_is_not_counted() {
        let mut host = Host::new(vec![carried(3)]);
        for _ in 0..20 {
            // 10 ms of 100 MB/s, then a second of nothing.
            host.send(1, &[(100e6, 10)]);
            host.rest(ms(1000));
        }
        // The first look of each burst finds nothing that waited before: only what did counts, and nothing of it is slow.
        assert!(host.sends().is_none_or(|(rate, _)| rate >= 99), "{:?}", host.sends());
        for _ in 0..20 {
            host.send(3, &[(100e6, 20)]);
            host.rest(ms(1000));
        }
        assert_eq!(host.sends(), Some((100, Some(3))));
    }

    #[test]
    fn a_receiver_that_reads_slowly_says_nothing_of_the_uplink() {
        let mut host = Host::new(vec![carried(1)]);
        for _ in 0..500 {
            host.send(1, &[(5e6, 20)]);
            host.all[0].held += ms(15);
        }
        assert_eq!(host.sends(), None);
        // Beside one that takes all that comes, the other's bytes are the uplink's as well.
        let mut host = Host::new(vec![carried(1), carried(2)]);
        for _ in 0..50 {
            host.all[0].held += ms(15);
            host.send(1, &[(5e6, 20), (95e6, 20)]);
        }
        assert_eq!(host.sends(), Some((100, Some(2))));
    }

    // One connection's rate was taken for the host's.
    #[test]
    fn connections_that_share_the_uplink_count_together() {
        let mut host = Host::new(vec![carried(1), carried(2), Carried { to: To::Other, ..carried(0) }]);
        host.send(20, &[(50e6, 20), (40e6, 20), (10e6, 20)]);
        assert_eq!(host.sends(), Some((100, None)));
        // Neither is at work all the time.
        let mut host = Host::new(vec![carried(1), carried(2)]);
        for _ in 0..40 {
            host.send(3, &[(60e6, 20), (40e6, 20)]);
            // One goes on at times, with what the line has left then.
            host.send(1, &[(60e6, 20), (0.0, 0)]);
            host.rest(ms(40));
        }
        assert!(
            host.sends().is_some_and(|(rate, to)| (95..105).contains(&rate) && to.is_none()),
            "{:?}",
            host.sends()
        );
    }

    #[test]
    fn what_goes_to_a_server_alone_is_no_measure_of_the_uplink() {
        let mut host = Host::new(vec![Carried { to: To::Other, ..carried(0) }]);
        host.send(100, &[(10e6, 20)]);
        assert_eq!(host.sends(), None, "many send there at once");
    }

    #[test]
    fn a_link_that_has_become_slower_is_seen_to_be_and_one_that_carries_more_at_once() {
        let mut host = Host::new(vec![carried(1), carried(2)]);
        host.send(50, &[(50e6, 20), (50e6, 20)]);
        host.send(100, &[(10e6, 20), (10e6, 20)]);
        assert_eq!(host.sends(), Some((100, None)), "something may have been in the way");
        host.send(1500, &[(10e6, 20), (10e6, 20)]);
        assert_eq!(host.sends(), Some((20, None)));
        // Though it is not busy all the time, so much has gone.
        for _ in 0..100 {
            host.all.iter_mut().for_each(|one| (one.sent, one.waits) = (one.sent + MB, false));
            host.look_later(ms(20));
        }
        assert_eq!(host.sends(), Some((100, None)));
    }

    #[test]
    fn what_comes_is_known_as_so_much_at_least() {
        let mut host = Host::new(vec![Carried { to: To::Other, ..carried(0) }]);
        for _ in 0..30 {
            host.all[0].received += MB;
            host.look_later(ms(20));
        }
        let measured = host.gauge.measured(host.now).unwrap();
        assert_eq!((measured.sends, measured.takes / MB), (0, 50));
    }

    proptest! {
        #[test]
        fn whatever_counters_say_rates_are_such_as_links_have(
            looks in prop::collection::vec(
                (0_u64..5000, prop::collection::vec(
                    (0_u64..4, any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>(), any::<bool>()), 0..4,
                )),
                0..50,
            ),
        ) {
            let (mut gauge, mut now) = (Gauge::default(), Duration::ZERO);
            for (later, all) in looks {
                now += ms(later);
                let all = all.into_iter().map(|(number, sent, received, busy, held, waits)| {
                    let (busy, held) = (ms(busy.into()), ms(held.into()));
                    let to = if number > 2 { To::Other } else { To::Child(number as Rank) };
                    (number, Carried { to, sent, received, busy, held, waits })
                });
                gauge.look(now, all);
                if let Some(measured) = gauge.measured(now) {
                    prop_assert_eq!(measured, measured.sane());
                }
            }
        }
    }
}
