//! What passes over the links: messages are sent, come, and are lost as connections break and are made again. What an end sends is
//! judged by what it was asked; some sabotages are at work here, on what nodes give and are given.

use super::run::{HOME, Run};
use super::worker::{Leaving, Worker};
use super::{Sabotage, Scenario};
use crate::transport::Way;
use penstock_fabric::net::Ended;
use penstock_proto::items::RowSet;
use penstock_proto::items::wire::{Encoder, Head, MAX_MESSAGE_BYTES, Message};
use penstock_proto::peer::PeerId;
use penstock_proto::record::{self, LENGTH_BYTES};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// Steps in which a node may look for what there is to send, before others have their turn.
const LOOKS: u64 = 4;
/// The longest time for which a link stays broken where workers leave.
const AWAY: u64 = 2_000;

impl Run<'_> {
    /// A new connection stands. The home may not have noticed that the old one has ended.
    pub(super) fn connect(&mut self, rank: usize) {
        if self.workers[rank].leaving == Leaving::Left {
            return;
        }
        self.workers[rank].away = 0;
        let mistakes = self.scenario.sabotage == Some(Sabotage::MistakesConnections);
        let mistaken = mistakes && self.links[rank].stands(Way::Down);
        self.links[rank].connect(&mut self.rng);
        let (up, down) = &mut self.traffic[rank];
        up.connected();
        down.connected();
        if !mistaken {
            self.home.connected(PeerId::worker(rank as u32));
        }
        self.workers[rank].node.connected(HOME);
    }

    /// The connection breaks, and neither end knows so far.
    pub(super) fn shatter(&mut self, rank: usize) {
        let broke = self.links[rank].shatter(self.now, &mut self.rng);
        self.tally.cuts += u64::from(broke);
    }

    /// The end that writes this way gives the connection up; the worker makes another, sooner or later.
    fn give_up(&mut self, rank: usize, out: Way) {
        self.links[rank].close(out);
        self.tally.ends += 1;
        match out {
            Way::Down => self.home.lost(PeerId::worker(rank as u32)),
            Way::Up => {
                self.workers[rank].node.lost(HOME);
                let long = self.scenario.leaves && self.rng.once_in(2);
                let longest = if long { AWAY } else { 2 * self.scenario.links.delay };
                self.workers[rank].away = self.rng.within(1..=longest);
            }
        }
    }

    /// Time passes: ends give silent connections up, and what was broken for long enough, or all that is, is made again. Whether
    /// anything was done.
    pub(super) fn pass_time(&mut self, steps: u64, all: bool) -> bool {
        self.now += steps;
        let mut did = false;
        for rank in 0..self.workers.len() {
            while let Some(out) = self.links[rank].silent(self.now) {
                self.give_up(rank, out);
                did = true;
            }
            let worker = &mut self.workers[rank];
            if worker.away > 0 {
                worker.away -= 1;
                if all || worker.away == 0 {
                    self.connect(rank);
                    did = true;
                }
            }
        }
        did
    }

    /// Both ends of a link put what they have on it.
    pub(super) fn exchange(&mut self, rank: usize) -> Result<bool, String> {
        let scenario = self.scenario;
        self.workers[rank].node.collect_all();
        self.home.collect_all();
        let mut did = false;
        for out in [Way::Up, Way::Down] {
            if !self.links[rank].stands(out) {
                continue;
            }
            let (up, down) = &mut self.traffic[rank];
            let (node, peer, traffic) = match out {
                Way::Up => (&mut self.workers[rank].node, HOME, up),
                Way::Down => (&mut self.home, PeerId::worker(rank as u32), down),
            };
            let (mut judged, mut more) = (Ok(()), false);
            let sent = self.links[rank].transmit(out, self.now, &mut self.rng, |bytes| {
                for _ in 0..LOOKS {
                    more = node.transmit(peer, bytes, scenario.links.gives) && bytes.is_empty();
                    if !more {
                        break;
                    }
                }
                let mut spoilt = Vec::new();
                for message in messages(bytes) {
                    for message in as_it_goes(scenario, message) {
                        judged = std::mem::replace(&mut judged, Ok(())).and_then(|()| traffic.sent(&message));
                        if scenario.sabotage.is_some() {
                            Encoder::message(&mut spoilt, &message);
                        }
                    }
                }
                if scenario.sabotage.is_some() {
                    *bytes = spoilt;
                }
                node.paid(peer)
            });
            judged?;
            match sent {
                // What came while it was looked for in several steps is found when it is looked for once more.
                Ok(sent) => {
                    did |= sent || more || std::mem::replace(&mut self.unfinished[rank][out as usize], more);
                }
                Err(Ended::Connection(_)) => {
                    self.give_up(rank, out);
                    did = true;
                }
                Err(Ended::Peer(what)) => return Err(what),
                Err(Ended::Exhausted { what, why }) => return Err(format!("for {what} {why}")),
            }
        }
        Ok(did)
    }

    /// What has come to one end of a link is taken.
    pub(super) fn deliver(&mut self, rank: usize, up: bool) -> Result<bool, String> {
        let scenario = self.scenario;
        // By the way on which the end writes.
        let out = if up { Way::Down } else { Way::Up };
        if !self.links[rank].stands(out) {
            return Ok(false);
        }
        let (of_worker, of_home) = &mut self.traffic[rank];
        let Worker { node, kept, .. } = &mut self.workers[rank];
        let (node, peer, traffic) = match up {
            true => (&mut self.home, PeerId::worker(rank as u32), of_home),
            false => (node, HOME, of_worker),
        };
        let (bytes, none) = (&mut self.tally.bytes, BTreeSet::new());
        let came = self.links[rank].receive(out, self.now, |record| {
            *bytes += if up { 0 } else { record.len() as u64 };
            // What is damaged the node finds out.
            let Ok(message) = Message::decode(record) else { return Ok(node.receive(peer, record)?) };
            let again = traffic.is_subscribed(&message);
            traffic.asked(&message);
            match as_it_comes(scenario, record, message, again, if up { &none } else { kept }) {
                Some(record) => Ok(node.receive(peer, &record)?),
                None => Ok(()),
            }
        });
        let came = match came {
            Ok(came) => came,
            Err(Ended::Connection(why)) => {
                if !self.links[rank].is_harmed(out) {
                    return Err(format!("link {rank}: bytes are read as others than were sent: {why}"));
                }
                self.give_up(rank, out);
                true
            }
            Err(Ended::Peer(what)) => return Err(format!("link {rank}: {what}")),
            Err(Ended::Exhausted { what, why }) => return Err(format!("link {rank}: for {what} {why}")),
        };
        let wrong = self.seen.borrow_mut().wrong.take();
        wrong.map_or(Ok(came), |wrong| Err(format!("worker {rank}, {wrong}")))
    }
}

/// The messages of a node's bytes.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let (head, rest) = bytes.split_first_chunk::<LENGTH_BYTES>()?;
        let length = record::length(head, MAX_MESSAGE_BYTES).expect("it is undamaged");
        let (record, rest) = rest.split_at(length);
        bytes = rest;
        Some(Message::decode(record).expect("it is undamaged"))
    })
}

/// A message as it goes out, perhaps twice, where that is broken on purpose.
fn as_it_goes<'a>(scenario: &Scenario, message: Message<'a>) -> impl Iterator<Item = Message<'a>> {
    let repeats = scenario.sabotage == Some(Sabotage::SendsAgain) && matches!(message, Message::Rows { .. });
    let message = match (message, scenario.sabotage) {
        (Message::Rows { partition, head, entries }, Some(Sabotage::ForgetsTickets)) => {
            Message::Rows { partition, head: Head { ticket: 0, ..head }, entries }
        }
        (message, _) => message,
    };
    let again = repeats.then(|| message.clone());
    [Some(message), again].into_iter().flatten()
}

/// A message as it comes to the end that is asked, if it does, where that is broken on purpose. `again`: it replaces a
/// subscription. An answer to a fetch that is `kept` comes as none.
fn as_it_comes<'a>(
    scenario: &Scenario,
    record: &'a [u8],
    message: Message<'_>,
    again: bool,
    kept: &BTreeSet<u64>,
) -> Option<Cow<'a, [u8]>> {
    let Some(sabotage) = scenario.sabotage else { return Some(record.into()) };
    let spoilt = match (message, sabotage) {
        (Message::Subscribe { .. }, Sabotage::IgnoresResubscriptions) if again => return None,
        (Message::Withdraw { .. }, Sabotage::IgnoresWithdrawals) => return None,
        (Message::Fetch { partition, ticket, places, .. }, Sabotage::AnswersTooEarly) => {
            Message::Fetch { partition, ticket, version: 0, places }
        }
        (Message::Fetch { partition, ticket, version, places }, Sabotage::AnswersInPart)
            if places.len() > 1 =>
        {
            let places = RowSet::from_rows(places.iter().skip(1));
            Message::Fetch { partition, ticket, version, places }
        }
        (Message::Fetch { partition, ticket, version, places }, Sabotage::AnswersTooMuch) => {
            let places = places.union(&RowSet::from_rows([0]));
            Message::Fetch { partition, ticket, version, places }
        }
        (Message::Rows { partition, head, entries }, Sabotage::KeepsQuestions)
            if kept.contains(&head.ticket) =>
        {
            Message::Rows { partition, head: Head { ticket: 0, ..head }, entries }
        }
        // A flush of the home's own rows, of which the worker is sent none, is through at once.
        (Message::Bring { id, .. }, Sabotage::BringsNothing) => Message::Flush { id },
        (Message::Need { partition, .. }, Sabotage::SendsUnneeded) => {
            Message::Need { partition, versions: (1..=scenario.iterations).collect() }
        }
        _ => return Some(record.into()),
    };
    let mut bytes = Vec::new();
    Encoder::message(&mut bytes, &spoilt);
    Some(bytes.split_off(LENGTH_BYTES).into())
}
