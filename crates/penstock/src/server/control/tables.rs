//! What concerns tables of rows: their requests, and the thread that passes rows on.

use super::Control;
use crate::server::tables::{Answers, Asker, Sealed};
use crate::server::{StartError, items};
use penstock_fabric::net::stream::Stream;
use penstock_proto::Rank;
use penstock_proto::handshake::Session;
use penstock_proto::items::control::TableAsk;
use penstock_proto::message::Answer;
use penstock_proto::peer::PeerId;
use std::sync::Arc;
use std::time::Instant;

impl Control {
    /// Hands a peer's connection to the thread that passes rows on.
    pub(super) fn attach_items(&mut self, peer: PeerId, session: Session, stream: Stream) {
        let Some(worker) = self.known(peer, session) else { return };
        // A worker of this host comes for rows of others.
        let (waiting, local) = (worker.to_items.clone(), !worker.is_remote());
        if self.items.is_none() {
            match self.start_items() {
                Ok(items) => self.items = Some(items),
                Err(error) => {
                    tracing::warn!(%error, "rows of tables cannot be passed on");
                    return;
                }
            }
        }
        if let Some(items) = &self.items
            && waiting.put(stream)
        {
            items.send(items::Command::Enter { peer, waiting, local });
        }
    }

    /// Has the thread that passes rows on, if there is one, listen to the bells that have come.
    fn pass_bells(&mut self) {
        if let Some(items) = &self.items {
            self.bells.take_new().into_iter().for_each(|bell| items.send(items::Command::Bell(bell)));
        }
    }

    fn start_items(&mut self) -> Result<items::Handle, StartError> {
        let setup = items::Setup {
            account: self.account.clone(),
            reports: self.shards.sender.clone(),
            control: Arc::clone(&self.shared),
            lease: self.config.options.lease,
            server: self.config.index,
            place: self.place.clone(),
        };
        let items = items::start(setup)?;
        self.bells.all().for_each(|bell| items.send(items::Command::Bell(bell)));
        for (producer, sealed) in self.sealed.drain(..) {
            items.send(items::Command::Partition { producer, sealed });
        }
        Ok(items)
    }

    pub(super) fn table(&mut self, rank: Rank, request: u64, ask: TableAsk) {
        let members = self.roster.members();
        let local = self.workers.get(&rank).is_some_and(|worker| !worker.is_remote());
        let asker = Asker { rank, request, local, members: &members, passer: self.items.as_ref() };
        let (answers, sealed) = self.tables.ask(&asker, ask, &mut self.bells);
        self.pay_for(self.tables.take_gone_over());
        // Before its partition is known there: from then on it rings for what it sets.
        self.pass_bells();
        self.pass_partitions(sealed);
        self.free_tables();
        self.answer_tables(answers);
    }

    /// Rows of a worker on another host come over the network: a worker that asked to map them is refused.
    pub(super) fn table_elsewhere(&mut self, rank: Rank) {
        let answers = self.tables.come_from_elsewhere(rank);
        self.answer_tables(answers);
    }

    /// Nothing waits for a worker that has gone, nor for rows that it had not mapped.
    pub(super) fn table_without(&mut self, rank: Rank) {
        let members = self.roster.members();
        let (mut answers, sealed) = self.tables.abandon(rank, &members.live, &mut self.bells);
        self.pass_bells();
        self.pass_partitions(sealed);
        answers.append(&mut self.tables.join(&members));
        // Nobody asked for that.
        self.tables.take_gone_over();
        self.free_tables();
        self.answer_tables(answers);
    }

    /// Whether there is something to do for tables at once, whether or not anything comes.
    pub(super) fn has_unsettled_tables(&self) -> bool {
        self.is_open() && self.tables.is_unsettled()
    }

    /// Whether memory of theirs is to be touched.
    pub(super) fn has_untouched_tables(&self) -> bool {
        self.is_open() && self.tables.is_untouched()
    }

    /// Whether that is to be done in this turn.
    pub(super) fn may_settle_tables(&self) -> bool {
        self.is_open() && self.tables.may_settle()
    }

    /// Another turn: beside other jobs ranges of rows may have to rest, for which this is `true`. They do too while the job's clients
    /// are `out`: the waits are gone over in each turn in which ranges are, and that is paid for as requests are.
    pub(super) fn begin_sweeps(&mut self, now: Instant, out: bool) -> bool {
        self.sweeping.earn(now);
        self.sweeping.sweep(self.tables.take_swept());
        let swept = self.sweeping.is_out(now) && self.is_beside_another();
        if !self.is_beside_another() {
            self.sweeping.forgive();
        }
        self.tables.rest(swept || out);
        swept
    }

    /// Goes on with large tables, a part each turn: between two parts others are heard.
    pub(super) fn settle_tables(&mut self) {
        if self.may_settle_tables() {
            let answers = self.tables.settle(&self.roster.members());
            self.pay_for(self.tables.take_gone_over());
            self.answer_tables(answers);
        }
        if self.has_untouched_tables() {
            let (answers, sealed) =
                self.tables.touch(&self.roster.members(), &mut self.bells, &mut self.first_touch);
            self.pass_bells();
            self.pass_partitions(sealed);
            self.answer_tables(answers);
        }
    }

    /// Seals what could not be sealed when its producer went.
    pub(super) fn seal_again(&mut self) {
        if self.tables.is_unsealed() {
            let (answers, sealed) = self.tables.seal_again(&self.roster.members(), &mut self.bells);
            self.pass_bells();
            self.pass_partitions(sealed);
            self.answer_tables(answers);
        }
    }

    fn pass_partitions(&mut self, sealed: Vec<Sealed>) {
        for sealed in sealed {
            let producer = self.roster.peer(sealed.id.rank);
            match &self.items {
                Some(items) => items.send(items::Command::Partition { producer, sealed }),
                None => self.sealed.push((producer, sealed)),
            }
        }
        if self.items.is_none() {
            // A worker that is still to come for rows finds nothing of those that went before, and needs nothing.
            let members = self.roster.members();
            self.sealed.retain(|(_, sealed)| !members.is_gone(sealed.id.rank));
        }
    }

    /// Lets go of tables that all have dropped.
    pub(super) fn free_tables(&mut self) {
        for table in self.tables.free() {
            self.sealed.retain(|(_, sealed)| sealed.id.table != table);
            if let Some(items) = &self.items {
                items.send(items::Command::Drop { table });
            }
        }
    }

    pub(super) fn answer_tables(&mut self, answers: Answers) {
        for (rank, request, answer) in answers {
            self.answer(rank, request, answer.map(|(answer, fds)| (Answer::Table(answer), fds)));
        }
    }
}
