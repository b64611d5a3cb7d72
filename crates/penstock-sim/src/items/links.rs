//! A link between a worker's node and the home's: a simulated wire, and at both of its ends what a real job reads and writes
//! messages by.

use crate::rng::Rng;
use crate::transport::{Break, End, Way, Wire};
use penstock_fabric::net::Ended;
use penstock_fabric::net::messages::{MessageReader, MessageWriter};
use penstock_proto::account::Account;

/// What befalls all links of a run, but for breaks. Times are in steps.
#[derive(Debug, Clone, Copy)]
pub struct Faults {
    /// Longest time under way.
    pub delay: u64,
    /// Bytes of one look in so many arrive damaged; 0: never.
    pub damage_once_in: u64,
    /// Pieces under way at most, each way.
    pub window: usize,
    /// Bytes that are taken at once at most.
    pub takes: usize,
    /// Bytes that an end's buffer has room for, before a message needs more.
    pub reads: usize,
    /// Bytes that are asked of a node at a time, about.
    pub gives: usize,
}

/// How long an end hears nothing before it gives the connection up: half a lease.
pub(super) const SILENCE: u64 = 300;
/// So many breaks of one link, and they become as many times rarer: what comes whole on no connection would never come.
const USUAL_BREAKS: u64 = 8;
/// One write in so many arrives in two pieces.
const PIECES_ONCE_IN: u64 = 4;
/// Messages for which a short turn has time.
const SHORT_TURN: u32 = 3;
/// One look in so many shows the other end a sign of life.
const BEAT_ONCE_IN: u64 = 64;

impl Faults {
    /// None: everything arrives soon, whole, and however much there is.
    pub const NONE: Self = Self {
        delay: 1,
        damage_once_in: 0,
        window: usize::MAX,
        takes: usize::MAX,
        reads: 64 << 10,
        gives: 300_000,
    };

    /// Whether a link carries little at a time, beside what rows may take.
    pub(super) fn is_thin(&self) -> bool {
        self.window.saturating_mul(self.takes) < 10_000
    }

    pub(super) fn some(rng: &mut Rng) -> Self {
        Self {
            delay: rng.pick(&[1, 5, 30]),
            damage_once_in: rng.pick(&[0, 0, 0, 100]),
            window: rng.pick(&[4, 40, usize::MAX]),
            takes: rng.pick(&[2_000, 60_000, usize::MAX]),
            reads: rng.pick(&[100, 8 << 10, 64 << 10]),
            gives: rng.pick(&[1, 3_000, 300_000]),
        }
    }
}

/// One end.
struct At {
    reader: MessageReader,
    writer: MessageWriter,
    /// What says how much a read brings, where that is not all that has arrived.
    reads: Option<Rng>,
    /// When it gives the connection up, because nothing comes.
    silent_until: Option<u64>,
}

impl At {
    fn new(faults: &Faults, rng: &mut Rng) -> Self {
        Self {
            reader: MessageReader::reading_ahead(faults.reads, Account::default()),
            writer: MessageWriter::new(Account::default()),
            reads: rng.once_in(2).then(|| Rng::new(rng.word())),
            silent_until: None,
        }
    }
}

pub(super) struct Link {
    faults: Faults,
    wire: Wire,
    /// By the way on which each writes: the worker's, and the home's.
    ends: [At; 2],
}

impl Link {
    /// Before its first connection.
    pub(super) fn new(faults: Faults, rng: &mut Rng) -> Self {
        let ends = [(); 2].map(|()| At::new(&faults, rng));
        Self { faults, wire: Wire::default(), ends }
    }

    /// A new connection stands.
    pub(super) fn connect(&mut self, rng: &mut Rng) {
        self.wire.connect();
        self.ends = [(); 2].map(|()| At::new(&self.faults, rng));
    }

    /// Whether the end stands that writes this way.
    pub(super) fn stands(&self, out: Way) -> bool {
        self.wire.is_read(out.back())
    }

    /// Whether what comes to that end may end the connection: it is over, or something was damaged.
    pub(super) fn is_harmed(&self, out: Way) -> bool {
        self.wire.damaged || self.wire.is_over(out.back())
    }

    /// That end gives the connection up.
    pub(super) fn close(&mut self, out: Way) {
        match out {
            Way::Up => self.wire.close_at_worker(),
            Way::Down => self.wire.close_at_shard(),
        }
        self.ends[out as usize].silent_until = None;
    }

    /// The connection breaks, if it stands unbroken; whether it did.
    pub(super) fn shatter(&mut self, now: u64, rng: &mut Rng) -> bool {
        let stands = !self.wire.doomed && self.stands(Way::Up) && self.stands(Way::Down);
        if !stands || !rng.once_in(1 + self.wire.number / USUAL_BREAKS) {
            return false;
        }
        self.wire.doomed = true;
        let how = rng.pick(&[Break::Cut, Break::Cut, Break::Silent(Way::Up), Break::Silent(Way::Down)]);
        self.wire.shatter(how, now, rng);
        if let Break::Silent(way) = how {
            // The end that hears nothing gives the connection up, and the other then reads that it has ended.
            self.ends[way.back() as usize].silent_until = Some(now + SILENCE);
        }
        true
    }

    /// The end on whose connection nothing came for so long, by the way on which it writes.
    pub(super) fn silent(&self, now: u64) -> Option<Way> {
        [Way::Up, Way::Down].into_iter().find(|&out| {
            let until = self.ends[out as usize].silent_until;
            self.stands(out) && until.is_some_and(|until| until <= now)
        })
    }

    /// What has come to the end that writes this way is passed on; whether anything had.
    pub(super) fn receive(
        &mut self,
        out: Way,
        now: u64,
        take: impl FnMut(&[u8]) -> Result<(), Ended>,
    ) -> Result<bool, Ended> {
        let At { reader, reads, .. } = &mut self.ends[out as usize];
        // Where reads are short, so are turns.
        let mut left = if reads.is_some() { SHORT_TURN } else { u32::MAX };
        let has_time = || {
            left -= 1;
            left > 0
        };
        let mut end = End { reads: reads.as_mut(), ..End::new(&mut self.wire, out, now) };
        reader.receive(&mut end, has_time, take)
    }

    /// That end sends what `give` adds, as far as the wire takes it; whether it took anything.
    pub(super) fn transmit(
        &mut self,
        out: Way,
        now: u64,
        rng: &mut Rng,
        give: impl FnMut(&mut Vec<u8>) -> u64,
    ) -> Result<bool, Ended> {
        let Faults { delay, damage_once_in, window, takes, .. } = self.faults;
        let due = now + rng.within(1..=delay);
        let ahead = rng
            .once_in(PIECES_ONCE_IN)
            .then(|| (rng.within(1..=takes.min(10_000) as u64) as usize, rng.within(now..=due)));
        let damage = rng.once_in(damage_once_in).then(|| (rng.word() as usize, 1 << rng.within(0..=7)));
        let has_room = self.wire.has_room(out, window);
        let end = End::new(&mut self.wire, out, now);
        let mut end = End { due, ahead, window, takes, damage, ..end };
        let writer = &mut self.ends[out as usize].writer;
        // In place of a sign of life goes what is left of a message, perhaps the last of it.
        let mut sent = false;
        if rng.once_in(BEAT_ONCE_IN) {
            sent = has_room && !writer.is_clear();
            writer.beat(&mut end)?;
        }
        Ok(writer.transmit(&mut end, || true, give)? || sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_proto::items::wire::{Encoder, Message};

    // A run was ended, and its workers said to be stuck, while the end of what they waited for was on its way.
    #[test]
    fn what_is_sent_of_a_message_in_place_of_a_sign_of_life_counts_as_sent() {
        let mut message = Vec::new();
        Encoder::message(&mut message, &Message::Flush { id: 1 });
        let faults = Faults { window: 1, takes: message.len() - 1, ..Faults::NONE };
        for seed in 0..1_000 {
            let mut rng = Rng::new(seed);
            let mut link = Link::new(faults, &mut rng);
            link.connect(&mut rng);
            let mut give = |bytes: &mut Vec<u8>| {
                bytes.append(&mut message.clone());
                0
            };
            link.transmit(Way::Up, 0, &mut rng, &mut give).unwrap();
            let (mut now, mut came) = (0, false);
            loop {
                now += 10;
                let take = |_: &[u8]| {
                    came = true;
                    Ok(())
                };
                link.receive(Way::Down, now, take).unwrap();
                if came {
                    break;
                }
                let sent = link.transmit(Way::Up, now, &mut rng, |_| 0).unwrap();
                assert!(sent, "seed {seed}: the rest was sent, and was said not to be");
            }
        }
    }
}
