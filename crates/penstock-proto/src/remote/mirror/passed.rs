//! How values come to a subscriber that others feed: what these pass on of its home's notices, what is late of it, and what the home
//! is told of them.

use super::{Effect, Mirror};
use crate::clock::MAX_CLOCK;
use crate::frame::Notice;
use crate::overlay::{MAX_STRIPES, Route, Stripes};
use crate::submission::{HELD, NOBODY, Submission, UNDECIDED};
use crate::{Rank, TensorId};
use std::collections::BTreeSet;
use std::time::Duration;

/// Of so many doubts one is of all that a stripe has, however fresh.
const ALL_DOUBTED: u32 = 4;

/// Whose fault it was that a parent is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nobody's.
    Nobodys,
    /// This parent's.
    Its(Rank),
    /// This parent's, if the home then brings more. It is told later.
    Perhaps(Rank),
}

impl Mirror {
    /// The home says how values come from now on. What changes the owner sees to: it connects to the parents that it has no
    /// connection to.
    pub fn route(&mut self, route: Route) {
        let before = self.route.as_ref().map_or(0, |route| route.striping);
        let (epoch, striping) = (route.epoch, route.striping);
        if striping == before {
            self.lag.reroute();
        } else {
            self.lag.clear();
            for (_, mirrored) in self.tensors.iter_mut() {
                mirrored.digests.cut(&route.shares);
            }
        }
        self.route = Some(route);
        // Stripes are others now: all that comes, comes from the home again, which is told what is held.
        if striping != before && before != 0 {
            self.fed = Stripes::default();
            self.gave_back = false;
            self.tell_held(epoch, Stripes::first(MAX_STRIPES));
            self.has_told();
        }
    }

    fn tell_held(&mut self, epoch: u32, stripes: Stripes) {
        if self.left {
            return;
        }
        for (tensor, mirrored) in
            self.tensors.iter().filter(|(_, mirrored)| mirrored.broadcast && mirrored.asked)
        {
            mirrored.held(tensor, epoch, stripes).for_each(|holds| self.outbox.submit(holds, 1));
        }
    }

    /// Tells the home what is held of those chunks of which nothing has come for long, though others of their stripes go on coming;
    /// now and then of all: a parent may bring old values of some, one by one, ever later.
    fn tell_doubtful(&mut self, stripes: Stripes) {
        self.doubts = self.doubts.wrapping_add(1);
        let all = self.doubts.is_multiple_of(ALL_DOUBTED);
        let Some(epoch) = self.route.as_ref().map(|route| route.epoch).filter(|_| !self.left) else { return };
        for (tensor, mirrored) in self.tensors.iter_mut() {
            if !mirrored.broadcast || !mirrored.asked {
                continue;
            }
            for start in (0..mirrored.chunks.len()).step_by(HELD) {
                let mut locals = start..(start + HELD).min(mirrored.chunks.len());
                let is_told = |local: usize| {
                    (all || !mirrored.fresh[local]) && stripes.has(mirrored.digests.stripe(local))
                };
                if locals.any(is_told) {
                    self.outbox.submit(mirrored.held_from(start, tensor, epoch), 1);
                }
            }
            mirrored.fresh.fill(false);
        }
    }

    /// Tells the home what is held of those chunks for which a ticket has been waiting for long. Stripes of which that stands in a
    /// lender's memory, where nothing that the home sends can be written: these are late.
    fn tell_overdue(&mut self, now: Duration) -> Stripes {
        let mut late = Stripes::default();
        let Some(epoch) = self.route.as_ref().map(|route| route.epoch).filter(|_| !self.left) else {
            return late;
        };
        for &tensor in &self.keeping {
            let Some(mirrored) = self.tensors.get_mut(tensor) else { continue };
            let Some(overdue) = mirrored.returning.overdue(now) else { continue };
            if mirrored.borrowed {
                late = overdue.keys().fold(late, |late, &local| late.with(mirrored.digests.stripe(local)));
                continue;
            }
            let starts: BTreeSet<usize> = overdue.keys().map(|local| local / HELD * HELD).collect();
            for start in starts {
                self.outbox.submit(mirrored.held_from(start, tensor, epoch), 1);
            }
        }
        late
    }

    /// Nothing more is taken of these stripes for now, as what is fed here has not taken what came: no parent is late meanwhile.
    pub fn held_up(&mut self, stripes: Stripes) {
        self.lag.hold(stripes);
    }

    /// Tells the home of parents, unless the worker has said goodbye: nothing may follow that.
    fn tell(&mut self, submission: Submission) {
        if !self.left {
            self.outbox.submit(submission, 1);
        }
    }

    /// How values come, if the home has said so on this connection.
    pub fn way(&self) -> Option<&Route> {
        self.route.as_ref()
    }

    /// Stripes that others feed.
    pub fn fed(&self) -> Stripes {
        self.fed
    }

    /// A parent feeds these stripes from now on: the home is told.
    pub fn attach(&mut self, stripes: Stripes) {
        self.doubt(Stripes::default());
        let Some(epoch) = self.route.as_ref().map(|route| route.epoch) else { return };
        self.fed = self.fed.or(stripes);
        self.tell(Submission::Attached { epoch, stripes });
    }

    /// A parent has said that it feeds these stripes from now on. It passes on what comes to it by now: of those that another fed until
    /// now it is not known whether that had passed on all that came before, so the home is asked for what is missing.
    pub fn hand_over(&mut self, stripes: Stripes) {
        let before = self.fed.and(stripes);
        self.attach(stripes);
        self.lag.hand_over(before);
        self.tell_owed();
    }

    fn tell_owed(&mut self) {
        let owed = self.lag.take_owed().and(self.fed);
        if let Some(epoch) = self.route.as_ref().map(|route| route.epoch).filter(|_| !owed.is_empty()) {
            self.tell_held(epoch, owed);
        }
    }

    /// The parents of these stripes feed them no more, by somebody's fault or not: the home is told so, and what is held.
    pub fn stray(&mut self, stripes: Stripes, fault: Fault) {
        let Some(epoch) = self.route.as_ref().map(|route| route.epoch).filter(|_| !stripes.is_empty()) else {
            return;
        };
        self.doubt(stripes);
        let parent = match fault {
            Fault::Nobodys => NOBODY,
            Fault::Its(parent) => parent,
            // Where nothing will be seen that could be told later, that is all: there is to be another route.
            Fault::Perhaps(parent) => {
                let told = self.outbox.progress().1 + 1;
                if self.lag.try_parent(epoch, parent, stripes, told) { UNDECIDED } else { NOBODY }
            }
        };
        self.fed = self.fed.without(stripes);
        self.lag.forget(stripes);
        // Until there is another route.
        let feeds = self.route.iter_mut().flat_map(|route| route.feeds.iter_mut().enumerate());
        feeds.filter(|(stripe, _)| stripes.has(*stripe)).for_each(|(_, feed)| feed.parent = None);
        self.tell(Submission::Strayed { epoch, stripes, parent });
        self.tell_held(epoch, stripes);
        self.has_told();
    }

    /// Those that fed these stripes, for which the route names others by now, feed them no more: the home does until those do.
    pub fn lost(&mut self, stripes: Stripes) {
        let Some(epoch) = self.route.as_ref().map(|route| route.epoch).filter(|_| !stripes.is_empty()) else {
            return;
        };
        self.doubt(stripes);
        self.fed = self.fed.without(stripes);
        self.lag.forget(stripes);
        self.tell(Submission::Strayed { epoch: epoch - 1, stripes, parent: NOBODY });
        self.tell_held(epoch, stripes);
        self.has_told();
    }

    /// What another passes on of the home's notices, which was verified to be the home's. What has come before, or is a difference
    /// against something else than what is held, is left alone: what is missing then is late at some time. It came with so many bytes;
    /// what is only repeated is nothing that was waited for.
    pub fn hear_passed(&mut self, notice: &Notice, bytes: u64) -> Effect {
        let is_news = self.is_news(notice);
        let effect = self.take_passed(notice);
        if is_news && effect != Effect::Nothing {
            self.brought(notice, bytes);
        }
        effect
    }

    fn take_passed(&mut self, notice: &Notice) -> Effect {
        let (Notice::Value { tensor, .. } | Notice::Raised { tensor, .. }) = *notice else {
            return Effect::Nothing;
        };
        let Some(mirrored) = self.tensors.get_mut(tensor).filter(|it| it.broadcast && it.asked) else {
            return Effect::Nothing;
        };
        let epoch = self.route.as_ref().map_or(0, |route| route.epoch);
        match *notice {
            Notice::Value { tensor, chunk, version, steps, publication, base, content } => {
                let Ok(local) = mirrored.chunks.binary_search(&chunk) else { return Effect::Nothing };
                let held = mirrored.positions[local];
                // What was held when another connection ended has no position any more.
                let fell = version + 1 < mirrored.versions[local] || content < mirrored.contents[local];
                if publication <= held || version > MAX_CLOCK || fell {
                    return Effect::Nothing;
                }
                if base > 0 && base != held {
                    // The home has sent this one something in between, and so has what it lacks.
                    if let Some(holds) = mirrored.asks_whole(local, tensor, epoch) {
                        self.tell(holds);
                    }
                    return Effect::Nothing;
                }
                let progress = mirrored.take(local, version, publication, content);
                Effect::Publish { tensor, chunk, version, steps, progress }
            }
            Notice::Raised { tensor, chunk, count, version, steps, contents } => {
                if mirrored.contents(chunk, count) != Some(contents) {
                    return Effect::Nothing;
                }
                let doubted = mirrored.doubted(chunk, count);
                match mirrored.raise(chunk, count, version) {
                    Ok(progress) => {
                        mirrored.doubt_publications(doubted);
                        Effect::Raise { tensor, chunk, count, version, steps, progress }
                    }
                    Err(_) => Effect::Nothing,
                }
            }
            _ => Effect::Nothing,
        }
    }

    /// Whether something that another passes on is newer than what is held: then those that are fed here may lack it too.
    pub fn is_news(&self, notice: &Notice) -> bool {
        let (Notice::Value { tensor, chunk, .. } | Notice::Raised { tensor, chunk, .. }) = *notice else {
            return false;
        };
        let Some(mirrored) = self.tensors.get(tensor) else { return false };
        let Ok(local) = mirrored.chunks.binary_search(&chunk) else { return false };
        match *notice {
            Notice::Value { publication, .. } => publication > mirrored.positions[local],
            Notice::Raised { version, .. } => version + 1 > mirrored.versions[local],
            _ => false,
        }
    }

    /// The stripe that something is of which the home has sent, if it can be passed on.
    pub fn stripe(&self, notice: &Notice) -> Option<usize> {
        let (Notice::Value { tensor, chunk, .. } | Notice::Raised { tensor, chunk, .. }) = *notice else {
            return None;
        };
        self.stripe_of(tensor, chunk)
    }

    /// The same, and whose it is.
    pub fn stripe_and_tensor(&self, notice: &Notice) -> Option<(usize, TensorId)> {
        let (Notice::Value { tensor, .. } | Notice::Raised { tensor, .. }) = *notice else { return None };
        Some((self.stripe(notice)?, tensor))
    }

    /// The stripe of a chunk.
    pub fn stripe_of(&self, tensor: TensorId, chunk: u32) -> Option<usize> {
        let mirrored = self.tensors.get(tensor)?;
        let local = mirrored.chunks.binary_search(&chunk).ok()?;
        Some(mirrored.digests.stripe(local))
    }

    /// A notice came with so many bytes, of the home or of what another passes on that is news.
    pub fn brought(&mut self, notice: &Notice, bytes: u64) {
        if let Some(stripe) = self.stripe(notice) {
            self.lag.came(stripe, bytes);
        }
    }

    pub(super) fn stands(&mut self, tensor: TensorId, stripe: u32, digest: u64) {
        let Some(mirrored) = self.tensors.get_mut(tensor) else { return };
        (mirrored.by_trees, mirrored.direct) = (true, 0);
        if self.fed.has(stripe as usize) {
            let held = mirrored.digests.of(stripe as usize).unwrap_or(digest);
            self.lag.told(tensor, stripe, digest, held);
        }
    }

    /// Stripes that others feed and that are late, as of a moment of the owner's clock. Of those of which it has not been seen for long
    /// that all has come, the home is told what is held.
    pub fn late(&mut self, now: Duration) -> Stripes {
        self.doubt(Stripes::default());
        let doubtful = self.lag.doubtful(now);
        if !doubtful.is_empty() {
            self.tell_doubtful(doubtful.and(self.fed));
        }
        let overdue = self.tell_overdue(now);
        let Self { lag, route, tensors, .. } = self;
        let depth = |stripe: usize| {
            route.as_ref().and_then(|route| route.feeds.get(stripe)).map_or(1, |feed| feed.depth)
        };
        let held =
            |tensor, stripe: usize| tensors.get(tensor).and_then(|it| it.digests.of(stripe)).unwrap_or(0);
        let judged = lag.judge(now, held);
        let late = lag.look(now, depth, held).or(overdue);
        for (epoch, parent, is_its) in judged {
            let parent = if is_its { parent } else { NOBODY };
            self.tell(Submission::Strayed { epoch, stripes: Stripes::default(), parent });
        }
        self.tell_owed();
        late
    }

    /// Whether something is missing that others feed: then it is to be looked at again soon whether it is late.
    pub fn is_behind(&self) -> bool {
        self.lag.is_behind() || !self.keeping.is_empty() || self.gave_back
    }
}
