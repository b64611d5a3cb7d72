//! Dropping a table: every worker does, as every worker declared it; then its memory is free everywhere, and its name.

use super::declare::{asked, asked_together};
use super::{Table, TableInner};
use crate::wait::Deadline;
use crate::worker::Error;
use crate::worker::link::lock;
use penstock_proto::items::control::{TableAnswer, TableAsk};
use penstock_proto::knot::Goal;
use penstock_proto::message::Answer;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Table {
    /// Drops the table, and waits until all live workers have. From the call on this worker's other calls for it fail, through
    /// any handle; if the wait fails, the same call goes on with it. Memory of this worker is free when no handle is left.
    pub fn discard(&self, timeout: Option<Duration>) -> Result<(), Error> {
        let inner = &self.inner;
        inner.job.fate.check()?;
        inner.job.touch();
        let deadline = inner.job.deadline(timeout);
        if !inner.dropped.swap(true, Ordering::Relaxed) {
            // Those that still wait for a row of this worker are not to wait for ever.
            inner.leave();
            lock(&inner.job.tables).retain(|other| !Arc::ptr_eq(other, inner));
        }
        inner.discard_everywhere(deadline)?;
        for relay in inner.relays() {
            relay.drop_table(inner.id);
        }
        let mut declared = lock(&inner.job.declared);
        if declared.get(&inner.spec.name).is_some_and(|progress| progress.is_of(inner)) {
            declared.remove(&inner.spec.name);
        }
        Ok(())
    }
}

impl TableInner {
    fn discard_everywhere(&self, deadline: Deadline) -> Result<(), Error> {
        let goal = Goal::Drop { name: self.spec.name.clone(), id: self.id };
        for link in self.job.links().iter() {
            let ask = TableAsk::Drop { name: self.spec.name.clone(), id: self.id };
            match asked_together(&self.job, link, ask, &goal, deadline) {
                Ok((TableAnswer::Done, _)) => {}
                Ok((other, _)) => return Err(link.misunderstood(&Answer::Table(other))),
                Err(Error::Unanswered { waited, .. }) => {
                    let users = asked(link, TableAsk::Users { id: self.id }, deadline.for_questions());
                    let missing = match users {
                        Ok((TableAnswer::Absent { ranks }, _)) => ranks,
                        _ => Vec::new(),
                    };
                    return Err(Error::DropTimeout { name: self.spec.name.clone(), missing, waited });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
