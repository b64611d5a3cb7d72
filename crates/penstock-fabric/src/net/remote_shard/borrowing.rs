//! Values that stand in memory which another worker of the host lends: its parent of all stripes. That says which chunks are new, and
//! whoever borrows looks there; nothing of them comes by the connection.
//!
//! A worker that feeds others does not borrow, as it has no frames to pass on. It goes back to memory of its own, in which then stands
//! what was seen, before it leaves that parent, leaves the job, or loses its own connection to the home: so whatever it says of what it
//! holds is so. Only where the same parent is to feed it all stripes of a new cut nothing goes back while that is connected to once
//! more.

use super::super::link::Link;
use super::super::passing_on::Children;
use super::{Mirrored, Mirrors, RemoteShard, Submitter};
use crate::doorbell::single_chunks;
use crate::memory::Unread;
use penstock_proto::frame::Notice;
use penstock_proto::overlay::lending::Rendezvous;
use penstock_proto::overlay::{Parent, Route, Stripes};
use penstock_proto::remote::mirror::{Effect, Fault, Stands};
use penstock_proto::submission::Submission;
use penstock_proto::{Rank, TensorId};
use std::sync::mpsc::Receiver;
use std::time::Duration;

/// How long a worker that leaves waits for what its lender was writing, at most, and no more than half of the time that it has.
pub(super) const LACKS_FOR: Duration = Duration::from_secs(2);
/// Time from one look whether readers get what is lent to the next; the same once they were found not to.
const LOOKS_APART: Duration = Duration::from_millis(500);
const NEXT_LOOKS_APART: Duration = Duration::from_millis(100);
/// How many more looks find that they do not than that they do, before the lender is left: about a second of it.
const UNREAD_LOOKS: u32 = 10;

/// Bytes that are copied on the way back between two signs of life, and time that is waited.
const A_BEAT: usize = 64 << 20;
const BEATS_APART: Duration = Duration::from_millis(10);
/// How long chunks that are being written in a lender's memory are looked at again, of all tensors together, before they are given up: a
/// lender that lives has written them by then, also one that had no core for a while.
const WAITS_FOR: Duration = Duration::from_millis(50);

/// How long a lender that is to feed this worker stripes of a new cut is waited for.
const CARRIED_FOR: Duration = Duration::from_secs(3);
/// How often children that wait, as this worker borrows, are shown that it lives.
const REASSURED_EVERY: Duration = Duration::from_millis(500);

/// Another worker that comes to be fed these stripes.
#[derive(Debug)]
pub struct NewChild<L> {
    /// Its rank.
    pub rank: Rank,
    /// Of which cut, and which.
    pub striping: u32,
    /// See there.
    pub stripes: Stripes,
    /// Where it is lent to, if it is of this host: it reads there what it can be lent.
    pub rendezvous: Option<Rendezvous>,
    /// What it is fed over.
    pub link: L,
}

/// What was taken back of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// This.
    Whole(Stands),
    /// Nothing that is known: its lender was in the middle of a write.
    Lost,
}

/// A way back from a lender's memory, of all tensors that stand there: the signs of life along it, and the time that it may wait.
pub struct GoingBack<'a> {
    beat: &'a mut dyn FnMut(),
    /// Bytes that were written, and time that was waited, since the last sign of life.
    written: usize,
    waited: Duration,
    /// Time that may still be waited.
    left: Duration,
}

impl<'a> GoingBack<'a> {
    /// From one look at a chunk that is being written to the next, at least.
    pub const LOOKS_APART: Duration = Duration::from_micros(200);

    /// `beat` is called all along: there may be much to copy.
    pub fn new(beat: &'a mut dyn FnMut()) -> Self {
        Self { beat, written: 0, waited: Duration::ZERO, left: WAITS_FOR }
    }

    /// So many bytes were written, or their pages brought in.
    pub fn wrote(&mut self, bytes: usize) {
        self.written = self.written.saturating_add(bytes);
        if self.written >= A_BEAT {
            self.beat();
        }
    }

    /// Whether a chunk that is being written may be looked at again.
    pub fn may_wait(&self) -> bool {
        !self.left.is_zero()
    }

    /// One was waited for, and looked at in vain before: so long.
    pub fn waited(&mut self, time: Duration) {
        // So that they are so many at most, whatever a clock says.
        let time = time.max(Self::LOOKS_APART);
        self.left = self.left.saturating_sub(time);
        self.waited = self.waited.saturating_add(time);
        if self.waited >= BEATS_APART {
            self.beat();
        }
    }

    fn beat(&mut self) {
        (self.written, self.waited) = (0, Duration::ZERO);
        (self.beat)();
    }
}

/// Takes those that have come by now to be fed; whether any has.
fn take_in<L: Link>(entrance: Option<&Receiver<NewChild<L>>>, children: &mut Children<L>) -> bool {
    let came = entrance.into_iter().flat_map(Receiver::try_iter);
    let took = |NewChild { rank, striping, stripes, rendezvous, link }| {
        children.take_in(rank, (striping, stripes), rendezvous, link);
    };
    came.map(took).count() > 0
}

impl<M: Mirrored, S: Submitter, L: Link> RemoteShard<M, S, L> {
    /// From now on others come in there. They are seen whatever this end is busy with.
    pub fn open_to(&mut self, entrance: Receiver<NewChild<L>>) {
        self.entrance = Some(entrance);
    }

    /// Takes those that have come by now.
    pub fn let_in(&mut self) {
        if take_in(self.entrance.as_ref(), &mut self.children) {
            self.greet();
        }
    }

    /// Another worker comes to be fed these stripes, of this host: it reads there what it can be lent.
    pub fn borrower_came(
        &mut self,
        rank: Rank,
        (striping, stripes): (u32, Stripes),
        rendezvous: Option<Rendezvous>,
        link: L,
    ) {
        self.children.take_in(rank, (striping, stripes), rendezvous, link);
        self.greet();
    }

    /// Greets those that wait for that. Who borrows passes nothing on, until another route has come, but shows that it lives.
    pub(super) fn greet(&mut self) {
        match self.machine.way() {
            Some(route) if self.lender.is_none() => self.children.greet(self.mirrors.job, route.striping),
            _ if self.lender.is_some() => self.children.reassure(self.mirrors.job),
            _ => {}
        }
    }

    /// Shows those that wait while it borrows now and then that it lives: it goes back once another feeds it, and until then that is not
    /// its fault.
    pub(super) fn reassure(&mut self, now: Duration) {
        if self.lender.is_some() && now.saturating_sub(self.reassured) >= REASSURED_EVERY {
            self.reassured = now;
            self.children.reassure(self.mirrors.job);
        }
    }

    /// Whether this worker, which is lent to there, has come to be fed here.
    pub fn is_child(&self, who: (Rank, &Rendezvous)) -> bool {
        self.children.is_child(who)
    }

    /// Whether it is sent what is new by now: no more than that is offered to it. Who is fed nothing may be so for long, as who borrows
    /// feeds nobody, and gives up what could be lent.
    pub fn feeds(&self, who: (Rank, &Rendezvous)) -> bool {
        self.children.feeds(who)
    }

    /// It reads a tensor's values where they are mirrored here from now on; whether it is fed here.
    pub fn lend(&mut self, who: (Rank, &Rendezvous), tensor: TensorId) -> bool {
        self.children.lend(who, tensor)
    }

    /// It reads them here no more, though it is fed here.
    pub fn lend_no_more(&mut self, who: (Rank, &Rendezvous), tensor: TensorId) {
        self.children.lend_no_more(who, tensor);
    }

    /// Goes back to memory of its own with one tensor, which stands nowhere else any more: its lender has said where it does.
    pub fn take_one_back(&mut self, id: TensorId) {
        self.take_some_back(vec![id]);
    }

    /// Tensors that are borrowed no more, though their lender feeds this worker: it is to be told so, as it says of them only what is
    /// new. If it cannot be, it is to be [left](Self::leave_lender).
    pub fn take_returned(&mut self) -> Vec<TensorId> {
        std::mem::take(&mut self.returned)
    }

    /// Its lender has heard that a tensor is borrowed no more, and feeds it again.
    pub fn renew(&mut self, id: TensorId) {
        self.machine.renew(id);
    }

    /// Leaves its lender, by nobody's fault: the home names it again.
    pub fn leave_lender(&mut self) {
        let Some(lender) = self.lender else { return };
        while let Some(at) = self.parents.iter().position(|feeder| feeder.parent.rank == lender) {
            self.lost(at, "it goes on lending what is not borrowed any more".to_owned(), |_| Fault::Nobodys);
        }
    }

    /// How many read a tensor's values here.
    pub fn borrowers(&self, tensor: TensorId) -> usize {
        self.children.borrowers(tensor)
    }

    /// Tensors that are declared.
    pub fn tensors(&self) -> impl Iterator<Item = (TensorId, &M)> {
        self.mirrors.tensors.iter()
    }

    /// Who lends, if one does.
    pub fn lender(&self) -> Option<Rank> {
        self.lender
    }

    /// All stripes of the route.
    pub fn stripes(&self) -> Stripes {
        Stripes::first(self.machine.way().map_or(0, |route| route.feeds.len()))
    }

    /// Whether this parent feeds all stripes.
    pub fn is_fed_by(&self, rank: Rank) -> bool {
        let all = self.stripes();
        let feeds = |feeder: &super::Feeder<L>| {
            feeder.greeted && feeder.parent.rank == rank && all.without(feeder.stripes).is_empty()
        };
        !all.is_empty() && self.parents.iter().any(feeds)
    }

    /// Whether a tensor may be borrowed of this parent as soon as what stands there is new enough.
    pub fn may_borrow(&self, id: TensorId, rank: Rank) -> bool {
        self.lender.is_none_or(|lender| lender == rank)
            && !self.children.any()
            && self.is_fed_by(rank)
            && self.machine.may_borrow(id)
    }

    /// Reads a tensor's values where this parent has offered them, unless something older stands there, or it is being written; whether
    /// it does.
    pub fn borrow(&mut self, id: TensorId, rank: Rank) -> bool {
        if !self.may_borrow(id, rank) {
            return false;
        }
        let Some(mirrored) = self.mirrors.tensors.get_mut(id) else { return false };
        let looks = mirrored.chunks().iter().map(|&chunk| Some((chunk, mirrored.look_there(chunk).ok()??)));
        let Some(looks) = looks.collect::<Option<Vec<_>>>() else { return false };
        if !self.machine.is_reached(id, looks) {
            return false;
        }
        match mirrored.borrow(self.machine.least(id)) {
            Ok(true) => {}
            Ok(false) => return false,
            Err(what) => {
                self.failed.get_or_insert(what);
                return false;
            }
        }
        self.machine.borrow(id, true);
        if self.lender.replace(rank).is_none() {
            self.unread = 0;
        }
        self.parents
            .iter_mut()
            .filter(|feeder| feeder.parent.rank == rank)
            .for_each(|feeder| feeder.lends = true);
        // What was written between. An error comes again at the next look.
        let _ = self.look_at(id, 0, u32::MAX);
        true
    }

    /// Looks at what stands of chunks where they are borrowed: how many it looked at, and whether any of that was news; how the lender
    /// broke the protocol, if it did.
    pub(super) fn look_at(&mut self, id: TensorId, first: u32, count: u32) -> Result<(usize, bool), String> {
        let Self { machine, mirrors, submitter, .. } = self;
        let Some(mirrored) = mirrors.tensors.get_mut(id).filter(|mirrored| mirrored.is_borrowed()) else {
            return Ok((0, false));
        };
        let (mut news, mut risen) = (false, false);
        let start = mirrored.chunks().partition_point(|&homed| homed < first);
        let end = mirrored.chunks().len().min(start.saturating_add(count as usize));
        for place in start..end {
            let chunk = mirrored.chunks()[place];
            // One that is being written is said to be new again behind that.
            let Ok(Some(stands)) = mirrored.look_there(chunk) else { continue };
            let effect = machine.found(id, chunk, stands).map_err(|broken| broken.to_string())?;
            let Effect::Publish { tensor, chunk, version, steps, progress } = effect else { continue };
            let Stands { publication, content, .. } = stands;
            let notice = Notice::Value { tensor, chunk, version, steps, publication, base: 0, content };
            machine.brought(&notice, mirrored.bytes(chunk).unwrap_or(0) as u64);
            news = true;
            if let Some(progress) = progress {
                mirrored.progress(progress);
                risen = true;
            }
        }
        if let Some(ticket) = machine.take_returned(id) {
            mirrored.fetched(ticket);
            (news, risen) = (true, true);
        }
        if risen {
            submitter.tell(id + 1);
        }
        if news {
            submitter.tell(single_chunks(id + 1));
        }
        Ok((end.saturating_sub(start), news))
    }

    /// Goes back to memory of its own if its lender feeds it no more, nor is to feed it soon.
    pub(super) fn settle_loans(&mut self) {
        if self.carried.is_none() && self.lender.is_some_and(|lender| !self.is_fed_by(lender)) {
            self.take_back();
        }
    }

    /// There is to be another route. Where its lender is to feed it all stripes of that too, though of another cut, what is borrowed stays
    /// so while it connects once more: nobody has failed. What comes between it sees when it is greeted.
    pub(super) fn carry_loans(&mut self, route: &Route, is_recut: bool) {
        let Some(lender) = self.lender else { return };
        let feeds = |feeder: &&super::Feeder<L>| feeder.parent.rank == lender;
        let parent = match self.carried.take() {
            Some((parent, _)) => Some(parent),
            None if is_recut => self.parents.iter().find(feeds).map(|feeder| feeder.parent.clone()),
            None => return,
        };
        // By its pass it is the same process.
        let feeds_all = |parent: &Parent| {
            !route.feeds.is_empty() && route.feeds.iter().all(|feed| feed.parent.as_ref() == Some(parent))
        };
        match parent.filter(feeds_all) {
            Some(parent) => self.carried = Some((parent, None)),
            None => self.take_back(),
        }
    }

    /// This parent feeds these stripes from now on; whether it is its lender, which was waited for.
    pub(super) fn is_carried_by(&mut self, parent: &Parent, stripes: Stripes) -> bool {
        let is_its = |(lender, _): &mut (Parent, _)| lender == parent;
        self.stripes().without(stripes).is_empty() && self.carried.take_if(is_its).is_some()
    }

    /// Looks at all that is borrowed. An error comes again at the next look.
    pub(super) fn look_at_all(&mut self) {
        let borrowed = self.mirrors.tensors.iter().filter(|(_, mirrored)| mirrored.is_borrowed());
        let borrowed: Vec<TensorId> = borrowed.map(|(id, _)| id).collect();
        borrowed.into_iter().for_each(|id| _ = self.look_at(id, 0, u32::MAX));
    }

    /// Goes back where its lender does not come.
    fn wait_for_lender(&mut self, now: Duration) {
        let Some((_, since)) = &mut self.carried else { return };
        if now.saturating_sub(*since.get_or_insert(now)) > CARRIED_FOR {
            self.carried = None;
            self.settle_loans();
        }
    }

    /// Another parent feeds some of what a lender did. Of the rest the one before says only what is new in memory that is not looked at any
    /// more: the home sends it.
    pub(super) fn leave_past_lender(&mut self) {
        if self.lender.is_some() {
            return;
        }
        let rest = self.parents.iter().filter(|feeder| feeder.lends).map(|feeder| feeder.stripes);
        let rest = rest.fold(Stripes::default(), Stripes::or);
        self.parents.retain_mut(|feeder| !feeder.lends || feeder.hand_over(rest));
        self.machine.lost(rest);
    }

    /// Goes back to memory of its own, in which then stands what was seen in its lender's, or newer.
    pub fn take_back(&mut self) {
        if self.lender.take().is_none() {
            return;
        }
        self.unread = 0;
        // Its lender is left with them.
        self.returned.clear();
        self.carried = None;
        let borrowed = self.mirrors.tensors.iter().filter(|(_, mirrored)| mirrored.is_borrowed());
        let borrowed: Vec<TensorId> = borrowed.map(|(id, _)| id).collect();
        self.take_some_back(borrowed);
        self.greet();
    }

    /// The same for some tensors.
    fn take_some_back(&mut self, ids: Vec<TensorId>) {
        let Self { machine, mirrors, submitter, failed, wire, children, entrance, .. } = self;
        let Mirrors { job, tensors, .. } = mirrors;
        let mut wire = wire.as_mut().filter(|_| machine.is_resumed());
        // This may take longer than those wait that come to be fed, and they would blame this worker.
        take_in(entrance.as_ref(), children);
        children.reassure(*job);
        let mut beat = || {
            wire.iter_mut().for_each(|wire| Self::beat_now(*job, wire));
            take_in(entrance.as_ref(), children);
            children.reassure(*job);
        };
        let mut way = GoingBack::new(&mut beat);
        for id in ids {
            let Some(mirrored) = tensors.get_mut(id) else { continue };
            let is_so = |chunk, stands: &Stands| machine.is_reached_at(id, chunk, stands);
            let kept = match mirrored.take_back(&mut way, &is_so) {
                Ok(kept) => kept,
                Err(what) => {
                    // This worker has failed. What it has not taken back stays borrowed: nothing is written where there may be no memory.
                    failed.get_or_insert(what);
                    return;
                }
            };
            for (chunk, kept) in kept {
                match kept {
                    Kept::Whole(stands) if machine.found(id, chunk, stands).is_ok() => {}
                    // The home sends it again.
                    _ => machine.lose(id, chunk),
                }
            }
            machine.borrow(id, false);
            mirrored.progress(machine.least(id));
            if let Some(ticket) = machine.take_returned(id) {
                mirrored.fetched(ticket);
            }
            submitter.tell(id + 1);
            submitter.tell(single_chunks(id + 1));
        }
    }

    /// How long the owner may wait until the next [tick](Self::tick) for what a lender does: a reader that does not get what it lends wakes
    /// nobody. `None`: nothing is lent here.
    pub fn looks_at_loans_within(&self) -> Option<Duration> {
        self.lender.map(|_| if self.unread == 0 { LOOKS_APART } else { NEXT_LOOKS_APART })
    }

    /// Goes back where it is no use to borrow, or nobody knows what stands there: of tensors that the home sends here itself, and from a
    /// lender of whose memory readers do not get what they wait for.
    pub(super) fn look_at_loans(&mut self, now: Duration) {
        self.wait_for_lender(now);
        let (Some(lender), Some(apart)) = (self.lender, self.looks_at_loans_within()) else { return };
        let past: Vec<TensorId> = self.machine.sent_past().collect();
        if !past.is_empty() {
            self.take_some_back(past.clone());
            past.iter().for_each(|&id| self.machine.goes_past(id));
            self.returned.extend(past);
        }
        if now.saturating_sub(self.looked) < apart {
            return;
        }
        self.looked = now;
        // Of all tensors together: one chunk after the other may hold up the same reader.
        let borrowed = self.mirrors.tensors.iter_mut().filter(|(_, mirrored)| mirrored.is_borrowed());
        let unread = borrowed.filter_map(|(_, mirrored)| mirrored.take_unread()).max();
        match unread {
            None => self.unread = self.unread.saturating_sub(1),
            Some(Unread::HalfWritten) => self.unread += 1,
            Some(Unread::NotSo) => self.unread = UNREAD_LOOKS,
        }
        if self.unread >= UNREAD_LOOKS {
            self.unread = 0;
            if let Some(at) = self.parents.iter().position(|feeder| feeder.parent.rank == lender) {
                // It may have had no core. Where it does nothing for long, what it passes on is late.
                let fault = |lender| match unread {
                    Some(Unread::NotSo) => Fault::Its(lender),
                    _ => Fault::Nobodys,
                };
                self.lost(at, "what it lends is half-written, or not so".to_owned(), fault);
            }
        }
    }

    /// The worker leaves the job: what its views show then is its own, and stays.
    pub(super) fn take_leave(&mut self) {
        let mut stripes = Stripes::default();
        if let Some(lender) = self.lender {
            self.take_back();
            self.parents.retain(|feeder| {
                let is_its = feeder.parent.rank == lender;
                if is_its {
                    stripes = stripes.or(feeder.stripes);
                }
                !is_its
            });
        }
        // What views show is then what the home has. It may have gone back a moment ago, as its lender died.
        if self.machine.lacks() {
            if !stripes.is_empty() {
                self.machine.stray(stripes, Fault::Nobodys);
            }
            self.leaving = Some(None);
        }
    }

    /// Its worker has so long for leaving the job.
    pub fn leave_within(&mut self, time: Duration) {
        self.lacks_for = LACKS_FOR.min(time / 2);
    }

    /// Says goodbye once nothing is missing any more that a lender had, or after a while.
    pub(super) fn go_on_leaving(&mut self, now: Option<Duration>) {
        let Some(since) = &mut self.leaving else { return };
        let is_late = now.is_some_and(|now| now.saturating_sub(*since.get_or_insert(now)) > self.lacks_for);
        if is_late || !self.machine.lacks() {
            self.leaving = None;
            self.machine.submit(Submission::Leave);
        }
    }

    /// Whether its worker cannot go on.
    pub fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Why its worker cannot go on, if it cannot.
    pub fn take_failed(&mut self) -> Option<String> {
        self.failed.take()
    }
}

#[cfg(test)]
mod tests;
