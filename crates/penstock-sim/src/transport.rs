//! Links: what a worker says to a shard, in order within one link and in any order between two.
//!
//! To a worker on the same host a link is a ring in shared memory: nothing in it is lost. To a remote one it is a connection
//! that may be cut: all that is under way is lost, and once it heals the worker resends. The rule of the resend: the shard
//! names the worker's clock as it knows it, and everything since that clock goes again, also pushes that had come (the
//! shard's machine folds them once, C-3), but no load that had come (it would take the lane for the value once more).

use crate::rng::Rng;
use penstock_proto::TensorId;
use penstock_proto::submission::WORDS;
use std::collections::VecDeque;
use std::rc::Rc;

/// The bytes of some chunks of a tensor's lane, where they travel with the submission.
#[derive(Debug, Clone)]
pub struct Payload {
    /// The tensor.
    pub tensor: TensorId,
    /// Each chunk's bytes.
    pub chunks: Vec<(u32, Vec<u8>)>,
}

/// What travels on a link.
#[derive(Debug, Clone)]
pub enum Message {
    /// A submission, and its payload if the worker is remote.
    Submission([u64; WORDS], Option<Rc<Payload>>),
    /// The worker has left; all it said before stands.
    Bye,
}

/// What a message is to the resend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// May come twice.
    Push,
    /// Everything before it has come when it comes.
    Clock,
    /// Comes once.
    Other,
}

#[derive(Debug, Clone)]
struct Logged {
    id: u64,
    kind: Kind,
    message: Message,
    delivered: bool,
}

/// The way from one worker to one shard.
#[derive(Debug, Default)]
pub struct Link {
    under_way: VecDeque<(u64, u64, Message)>,
    log: VecDeque<Logged>,
    next_id: u64,
    last_due: u64,
    cut: bool,
}

impl Link {
    /// Takes a message that would arrive at `due`; when it does arrive, unless the link is cut.
    pub fn send(&mut self, message: Message, kind: Kind, due: u64, remote: bool) -> Option<u64> {
        let id = self.next_id;
        self.next_id += 1;
        if remote {
            self.log.push_back(Logged { id, kind, message: message.clone(), delivered: false });
        }
        (!self.cut).then(|| self.put(id, message, due))
    }

    fn put(&mut self, id: u64, message: Message, due: u64) -> u64 {
        self.last_due = due.max(self.last_due + 1);
        self.under_way.push_back((self.last_due, id, message));
        self.last_due
    }

    /// What arrives at `now`, if anything does.
    pub fn receive(&mut self, now: u64) -> Option<Message> {
        if self.under_way.front()?.0 > now {
            return None; // the event belonged to a message that was lost
        }
        let (_, id, message) = self.under_way.pop_front()?;
        if let Some(at) = self.log.iter().position(|logged| logged.id == id) {
            self.log[at].delivered = true;
            if self.log[at].kind == Kind::Clock {
                self.log.drain(..=at);
            }
        }
        Some(message)
    }

    /// Loses all that is under way and takes nothing more until it heals; `false` if it is cut already.
    pub fn cut(&mut self) -> bool {
        self.under_way.clear();
        !std::mem::replace(&mut self.cut, true)
    }

    /// Resends what the cut may have lost; when each message arrives.
    pub fn heal(&mut self, now: u64, delay: impl Fn(&mut Rng) -> u64, rng: &mut Rng) -> Vec<u64> {
        self.cut = false;
        let again = self.log.iter().filter(|logged| !logged.delivered || logged.kind == Kind::Push);
        let again: Vec<(u64, Message)> = again.map(|logged| (logged.id, logged.message.clone())).collect();
        again.into_iter().map(|(id, message)| self.put(id, message, now + delay(rng))).collect()
    }

    /// The worker died: a part of what is under way still arrives, from the front.
    pub fn abandon(&mut self, rng: &mut Rng) {
        let left = rng.within(0..=self.under_way.len() as u64);
        self.under_way.truncate(left as usize);
        self.log.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(word: u64) -> Message {
        Message::Submission([word; WORDS], None)
    }

    fn word(message: Option<Message>) -> Option<u64> {
        match message? {
            Message::Submission(words, _) => Some(words[0]),
            Message::Bye => None,
        }
    }

    fn heal(link: &mut Link) -> usize {
        link.heal(100, |rng| rng.within(1..=5), &mut Rng::new(1)).len()
    }

    #[test]
    fn a_link_keeps_its_order_whatever_the_delays() {
        let mut link = Link::default();
        link.send(message(1), Kind::Push, 50, false);
        let due = link.send(message(2), Kind::Push, 10, false).unwrap();
        assert!(due > 50);
        assert_eq!(word(link.receive(10)), None);
        assert_eq!((word(link.receive(due)), word(link.receive(due))), (Some(1), Some(2)));
    }

    #[test]
    fn a_healed_link_resends_all_that_was_lost_and_every_push_since_the_last_clock() {
        let mut link = Link::default();
        let kinds = [Kind::Push, Kind::Clock, Kind::Other, Kind::Push, Kind::Push, Kind::Clock];
        for (number, kind) in (0..).zip(kinds) {
            link.send(message(number), kind, number, true);
        }
        for _ in 0..4 {
            link.receive(10).unwrap();
        }
        assert!(link.cut() && !link.cut());
        assert_eq!(link.send(message(6), Kind::Push, 20, true), None);
        assert_eq!(heal(&mut link), 4);
        let came: Vec<u64> = std::iter::from_fn(|| word(link.receive(1000))).collect();
        assert_eq!(came, [3, 4, 5, 6], "the push that had come comes again, the load does not");
    }

    #[test]
    fn what_a_dead_worker_leaves_under_way_arrives_from_the_front() {
        let mut arrived = std::collections::BTreeSet::new();
        for seed in 0..40 {
            let mut link = Link::default();
            for number in 0..3 {
                link.send(message(number), Kind::Push, 1, false);
            }
            link.abandon(&mut Rng::new(seed));
            arrived.insert(std::iter::from_fn(|| word(link.receive(10))).collect::<Vec<_>>());
        }
        let prefixes = [vec![], vec![0], vec![0, 1], vec![0, 1, 2]];
        assert_eq!(arrived, prefixes.into_iter().collect());
    }
}
