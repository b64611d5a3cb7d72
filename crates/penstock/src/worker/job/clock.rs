//! The worker's clock: what is stamped with it, when it moves, and which shards are told.

use super::{Inner, Job};
use crate::turn::Place;
use crate::wait::Deadline;
use crate::worker::Error;
use crate::worker::link::{self, Link, Rooms, TELL_CLOCK, lock};
use penstock_fabric::sync::Ordering;
use penstock_proto::layer::Nanos;
use penstock_proto::message::{Answer, Ask};
use penstock_proto::submission::Submission;
use std::time::{Duration, Instant};

impl Inner {
    /// Moves the clock. Tells it to the shards that are home of a tensor, all or none; to the others later, or, if it is time to,
    /// as far as they have room.
    fn move_clock(&self, clock: u64, deadline: Deadline) -> Result<(), Error> {
        let (links, mut rooms, untold) = (self.links(), Rooms::new(), &self.fate.untold);
        let mut others = 0;
        for link in links.iter() {
            for shard in 0..link.welcome.shards {
                match link.is_home(shard) {
                    true => rooms.push(link.room(shard, 1, deadline)?),
                    false => others += 1,
                }
            }
        }
        if !rooms.is_empty() {
            rooms.iter_mut().for_each(|room| room.put(|| Submission::Clock { clock }));
            link::ring(&mut rooms);
        }
        let still = || {
            let strangers =
                |link: &Link| (0..link.welcome.shards).filter(|&shard| !link.is_home(shard)).count();
            links.iter().map(strangers).sum()
        };
        untold.move_to(clock, others, still);
        if others > 0 && self.is_time_to_tell(deadline.began()) {
            untold.tell();
        }
        Ok(())
    }

    /// Asked by the thread that moves the clock.
    fn is_time_to_tell(&self, now: Instant) -> bool {
        let now = now.saturating_duration_since(self.made).as_nanos() as u64;
        let is_time = now >= self.tell_from.load(Ordering::Relaxed);
        if is_time {
            self.tell_from.store(now + TELL_CLOCK.as_nanos() as u64, Ordering::Relaxed);
        }
        is_time
    }

    /// Tells the clock to those shards that do not know it.
    pub(in crate::worker) fn tell_clock(&self, deadline: Deadline) -> Result<(), Error> {
        if self.fate.untold.tell() {
            return Ok(());
        }
        // Some have no room: they are waited for.
        for link in self.links().iter() {
            for shard in 0..link.welcome.shards {
                link.room(shard, 0, deadline)?;
            }
        }
        Ok(())
    }

    /// From now on these shards, by server, hear of every clock at once.
    pub(in crate::worker) fn move_in(
        &self,
        homes: impl Iterator<Item = (usize, u32)>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        for (server, shard) in homes {
            self.links().get(server).ok_or(Error::Closed)?.make_home(shard);
        }
        self.tell_clock(deadline)
    }

    /// Waits until no thread is stamping anything, so that the clock may move.
    fn stop_clock(&self, what: &str, deadline: Deadline) -> Result<Place<'_>, Error> {
        self.stamping.alone(|| self.look(what, deadline))
    }

    fn complete_iteration(&self) {
        let Some(adaptive) = self.adaptive.get() else { return };
        let mut adaptive = lock(adaptive);
        let now = Instant::now();
        if let Some(began) = adaptive.began.replace(now) {
            adaptive.controllers.values().for_each(|controller| lock(controller).iteration(now - began));
        }
    }

    /// The clock, which stands still as long as the place is held; nor is the job closed meanwhile.
    pub(in crate::worker) fn clock(&self, deadline: Deadline) -> Result<(u64, Place<'_>), Error> {
        let place = self.stamping.share(|| self.look("stamping what was submitted", deadline))?;
        self.fate.check()?;
        Ok((self.shown_clock(), place))
    }

    pub(in crate::worker) fn shown_clock(&self) -> u64 {
        self.fate.untold.clock()
    }
}

impl Job {
    /// Completes an iteration; returns the new clock. Tensors that were not pushed in it are thereby passed by.
    pub fn clock(&self) -> Result<u64, Error> {
        self.inner.fate.check()?;
        self.inner.touch();
        let deadline = self.inner.deadline(None);
        let _alone = self.inner.stop_clock("completing the iteration", deadline)?;
        // Once more: the job may have been closed while this waited for its turn.
        self.inner.fate.check()?;
        let next = self.inner.shown_clock() + 1;
        self.inner.move_clock(next, deadline)?;
        self.inner.each_table(|table| table.raise(next));
        self.inner.complete_iteration();
        Ok(next)
    }

    /// The time that each layer has taken since the start: of this worker's filters and connections, and of each server's shards, for all
    /// workers of the job.
    pub fn spent(&self, timeout: Option<Duration>) -> Result<(Nanos, Vec<Nanos>), Error> {
        self.inner.fate.check()?;
        let deadline = self.inner.deadline(timeout);
        let ask = |link: &Link| match link.ask(Ask::Spent, "tell where its time goes", deadline)? {
            (Answer::Spent { nanos }, _) => Ok(nanos),
            (other, _) => Err(link.misunderstood(&other)),
        };
        let servers = self.inner.links().iter().map(ask).collect::<Result<_, Error>>()?;
        Ok((self.inner.counters.traffic.spent().nanos(), servers))
    }

    /// The clocks of all workers as the first shard of the first server last heard of them; -1 for one that is gone. If it is
    /// home of none of a worker's tensors it hears of that worker's clock within a tenth of a second, at once if the worker
    /// waits for anything. This worker's own is what it is now.
    pub fn clocks(&self) -> Result<Vec<i64>, Error> {
        self.inner.fate.check()?;
        let deadline = self.inner.deadline(None);
        self.inner.tell_clock(deadline)?;
        let links = self.inner.links();
        let first = links.first().ok_or(Error::Closed)?;
        match first.ask(Ask::Clocks, "tell the clocks", deadline)? {
            (Answer::Clocks { clocks }, _) => {
                let mut clocks: Vec<i64> = clocks.into_iter().map(|clock| clock.max(-1)).collect();
                // It was told just before it was asked, on another way: it may not have heard yet.
                if let Some(own) = clocks.get_mut(self.inner.rank as usize).filter(|own| **own >= 0) {
                    *own = self.inner.shown_clock().cast_signed().max(*own);
                }
                Ok(clocks)
            }
            (other, _) => Err(first.misunderstood(&other)),
        }
    }
}
