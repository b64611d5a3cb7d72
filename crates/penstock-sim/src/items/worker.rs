//! A worker on its way: it sets its rows, completes an iteration, meets the others at a barrier behind some, reads what it consumes,
//! and leaves when it is done.

use super::judge::Read;
use super::producer::{After, Shared};
use super::run::{HOME, Here, Run, partition};
use super::{Plan, Sabotage};
use crate::rng::hash;
use crate::transport::Way;
use penstock_proto::items::node::Node;
use penstock_proto::items::{Propagation, RowSet};
use penstock_proto::peer::PeerId;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// How far a worker that leaves has come: it flushes, hands its rows over, and flushes again, as a relay does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Leaving {
    Works,
    Flushes(u64),
    HandsOver(u64),
    Left,
}

/// How far a worker is at a barrier. It flushes, so that its rows are at the home, and stands there until all do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meeting {
    /// There is none, or it has passed it.
    Works,
    Comes,
    Flushes(u64),
    Stands,
}

/// What is here of a producer since the last barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Since {
    /// All that was set before this barrier, counted from 1.
    Here(u64),
    /// That is asked for, by this number.
    Asked(u64),
}

pub(super) struct Worker {
    pub(super) plan: Plan,
    pub(super) node: Node<Here>,
    producer: Shared,
    pub(super) clock: u64,
    /// Whether this iteration's rows are set.
    set: bool,
    /// Producers that are still to be read in this iteration, each in two gets: the first half of the rows, and the others.
    pub(super) unread: Vec<(u32, bool)>,
    ticket: Option<u64>,
    /// What it has given up without saying so: of use to [`Sabotage`] alone.
    pub(super) kept: BTreeSet<u64>,
    waits: bool,
    pub(super) meeting: Meeting,
    /// Barriers passed.
    pub(super) barriers: u64,
    /// What was set before the last, by producer: the number of the last set.
    pub(super) due: Vec<usize>,
    since: BTreeMap<u32, Since>,
    /// What it has got on at barriers.
    pub(super) met: u64,
    pub(super) leaving: Leaving,
    /// For how many steps its link stays broken.
    pub(super) away: u64,
    /// Newest number read, by producer and slot.
    newest: BTreeMap<u32, After>,
}

impl Worker {
    pub(super) fn new(plan: Plan, node: Node<Here>, producer: Shared) -> Self {
        Self {
            plan,
            node,
            producer,
            clock: 0,
            set: false,
            unread: Vec::new(),
            ticket: None,
            kept: BTreeSet::new(),
            waits: false,
            meeting: Meeting::Works,
            barriers: 0,
            due: Vec::new(),
            since: BTreeMap::new(),
            met: 0,
            leaving: Leaving::Works,
            away: 0,
            newest: BTreeMap::new(),
        }
    }

    /// Grows whenever the worker gets on.
    pub(super) fn gone(&self) -> u64 {
        (self.clock * 2 + u64::from(self.set)) * 2 * (self.plan.consumes.len() as u64 + 1)
            - self.unread.len() as u64
            + self.met
            + match self.leaving {
                Leaving::Works => 0,
                Leaving::Flushes(_) => 1,
                Leaving::HandsOver(_) => 2,
                Leaving::Left => 3,
            }
    }
}

impl Run<'_> {
    /// A worker goes on, if it can.
    pub(super) fn step(&mut self, rank: usize) -> Result<bool, String> {
        let worker = &mut self.workers[rank];
        if worker.meeting != Meeting::Works {
            return Ok(self.meet(rank));
        }
        if !worker.unread.is_empty() {
            let (producer, half) = worker.unread[0];
            let asked = |worker: &Worker| (worker.ticket, worker.since.get(&producer).copied());
            let before = asked(worker);
            if self.read(rank, producer, half)? {
                self.workers[rank].unread.remove(0);
                return Ok(true);
            }
            return Ok(asked(&self.workers[rank]) != before);
        }
        if worker.clock == self.scenario.iterations {
            return Ok(self.scenario.leaves && self.leave(rank));
        }
        if !worker.set {
            worker.set = true;
            worker.producer.borrow_mut().iterate();
            return Ok(true);
        }
        (worker.clock, worker.set) = (worker.clock + 1, false);
        worker.producer.borrow_mut().complete(self.scenario.iterations);
        if self.scenario.meets(worker.clock) {
            worker.meeting = Meeting::Comes;
        }
        worker.unread =
            worker.plan.consumes.keys().flat_map(|&other| [(other, true), (other, false)]).collect();
        self.rng.shuffle(&mut worker.unread);
        Ok(true)
    }

    /// A worker comes to a barrier, flushes, and stands there; whether it got on.
    fn meet(&mut self, rank: usize) -> bool {
        let early = self.scenario.sabotage == Some(Sabotage::StandsUnflushed);
        let worker = &mut self.workers[rank];
        let comes = worker.meeting == Meeting::Comes;
        worker.meeting = match worker.meeting {
            Meeting::Comes => {
                self.stood[rank] = worker.producer.borrow().done();
                Meeting::Flushes(worker.node.flush(HOME))
            }
            Meeting::Flushes(id) if early || worker.node.host().flushed.contains(&id) => Meeting::Stands,
            _ => return false,
        };
        worker.met += 1;
        if comes {
            self.tempt(rank);
        }
        if self.workers.iter().all(|worker| worker.meeting == Meeting::Stands) {
            self.tally.barriers += 1;
            for worker in &mut self.workers {
                (worker.meeting, worker.barriers) = (Meeting::Works, worker.barriers + 1);
                worker.due.clone_from(&self.stood);
            }
            (0..self.workers.len()).for_each(|rank| self.tempt(rank));
        }
        true
    }

    /// A moment at which a link that breaks loses most: what is set before a barrier is on its way.
    fn tempt(&mut self, rank: usize) {
        if self.scenario.cuts > 0 && self.rng.once_in(3) {
            self.shatter(rank);
        }
    }

    /// What was set before the last barrier must be here before a worker reads: asks for it, and says whether it is.
    fn is_renewed(&mut self, rank: usize, producer: u32) -> bool {
        let (worker, id) = (&mut self.workers[rank], partition(producer));
        let since = match worker.since.get(&producer) {
            Some(Since::Here(barriers)) if *barriers == worker.barriers => return true,
            None if worker.barriers == 0 => return true,
            Some(Since::Asked(number)) => {
                let Here { answered, flushed, .. } = worker.node.host();
                if !answered.contains(number) && !flushed.contains(number) {
                    return false;
                }
                worker.met += 1;
                Since::Here(worker.barriers)
            }
            _ => {
                let count = worker.plan.consumes[&producer].len();
                let asked = match self.scenario.propagation {
                    Propagation::Eager => worker.node.bring(id),
                    _ => worker.node.fetch(id, &RowSet::from_ranges(std::iter::once(0..count)), 0),
                };
                asked.map_or(Since::Here(worker.barriers), Since::Asked)
            }
        };
        worker.since.insert(producer, since);
        matches!(since, Since::Here(_))
    }

    /// A worker that is done leaves; whether it got on.
    fn leave(&mut self, rank: usize) -> bool {
        let worker = &mut self.workers[rank];
        let (node, peer) = (&mut worker.node, PeerId::worker(rank as u32));
        worker.leaving = match worker.leaving {
            Leaving::Works => {
                worker.producer.borrow_mut().leave();
                Leaving::Flushes(node.flush(HOME))
            }
            Leaving::Flushes(id) if node.host().flushed.contains(&id) => {
                node.hand_over();
                self.traffic[rank].0.handed_over();
                Leaving::HandsOver(node.flush(HOME))
            }
            Leaving::HandsOver(id) if node.host().flushed.contains(&id) => {
                node.lost(HOME);
                [Way::Up, Way::Down].into_iter().for_each(|out| self.links[rank].close(out));
                self.home.lost(peer);
                self.home.forget(peer);
                worker.away = 0;
                Leaving::Left
            }
            _ => return false,
        };
        true
    }

    /// Reads what a worker consumes of a producer, if it is fresh enough.
    fn read(&mut self, rank: usize, producer: u32, half: bool) -> Result<bool, String> {
        let (scenario, id) = (self.scenario, partition(producer));
        let direct = self.workers[rank].plan.near && self.workers[producer as usize].plan.near;
        if !direct && !self.is_renewed(rank, producer) {
            return Ok(false);
        }
        let from = Rc::clone(&self.workers[producer as usize].producer);
        let worker = &mut self.workers[rank];
        // Each get has a slack of its own, at most the plan's.
        let slack = hash(&[worker.clock, producer.into(), half.into()]) % (worker.plan.slack + 1);
        let wanted = worker.clock.saturating_sub(slack);
        let all: Vec<u32> = worker.plan.consumes[&producer].iter().map(|slot| slot as u32).collect();
        let (places, slots): (Vec<u32>, Vec<u32>) =
            (0u32..).zip(all.iter().copied()).filter(|(at, _)| (2 * *at < all.len() as u32) == half).unzip();
        if slots.is_empty() {
            return Ok(true);
        }
        let rows = match worker.node.memory(id) {
            Some(memory) => memory.rows().clone(),
            None => from.borrow().rows().clone(),
        };
        let at = if direct { &slots } else { &places };
        let bytes = scenario.row_bytes as usize;
        let mut out = vec![0; bytes * slots.len()];
        let follow = at.windows(2).all(|pair| pair[1] == pair[0] + 1);
        let together = if follow {
            rows.read_run(at[0], &mut out)
        } else {
            let meanwhile = |at| {
                from.borrow_mut().go_on();
                at
            };
            rows.read_together(at, meanwhile, &mut out)
        };
        let fresh = together.as_ref().is_ok_and(|together| together.version >= wanted);
        if !fresh {
            if !worker.waits {
                (worker.waits, self.tally.waits) = (true, self.tally.waits + 1);
            }
            let asked = worker.ticket.is_some_and(|ticket| !worker.node.host().answered.contains(&ticket));
            // Its time is up: nobody waits any more for what it fetched. The program tries again, or does without.
            if let Some(ticket) = worker.ticket.filter(|_| asked && self.rng.once_in(worker.plan.patience)) {
                if scenario.sabotage == Some(Sabotage::KeepsQuestions) {
                    worker.kept.insert(ticket);
                } else {
                    worker.node.give_up(ticket);
                }
                (worker.waits, worker.ticket) = (false, None);
                return Ok(self.rng.once_in(2));
            }
            if !direct && scenario.propagation == Propagation::Bounded {
                worker.node.need(id, vec![wanted]);
            }
            let alone = scenario.propagation == Propagation::Bounded && together.is_ok();
            if !direct && scenario.propagation != Propagation::Eager && !asked && !alone {
                let all = RowSet::from_rows(places.iter().map(|&place| place.into()));
                worker.ticket = worker.node.fetch(id, &all, wanted);
            }
            return Ok(false);
        }
        let version = together.map(|together| together.version).unwrap_or(0);
        (worker.waits, worker.ticket) = (false, None);
        if !direct && scenario.propagation == Propagation::Bounded {
            let next = (worker.clock + 1).saturating_sub(slack);
            worker.node.need(id, vec![wanted, next]);
        }
        self.tally.reads += 1;
        self.tally.staleness = self.tally.staleness.max(worker.clock.saturating_sub(version));
        // Looked at while the producer went on, rows of different sets need not have been current together.
        let read = Read {
            slots: &slots,
            values: &out,
            row_bytes: bytes,
            version: wanted,
            due: worker.due.get(producer as usize).copied().unwrap_or(0),
            apart: direct && !follow,
        };
        let newest = worker.newest.entry(producer).or_default();
        read.judge(&from.borrow(), newest).map_err(|what| format!("of producer {producer}, {what}"))?;
        Ok(true)
    }
}
