//! What a shard's values are passed on by: parents, which feed this worker, and children, which it feeds.

use super::super::feeder::{Fed, Feeder};
use super::super::frames::Places;
use super::super::link::{Interest, Link};
use super::super::passing_on::Passed;
use super::{Mirrored, Mirrors, Over, RemoteShard, Submitter, Value, carry_out, decompressed, show};
use crate::spent::Spent;
use penstock_kernels::codec::Codec;
use penstock_proto::chunk::MAX_CHUNK_BYTES;
use penstock_proto::frame::{Body, HEADER_BYTES, Header, Notice};
use penstock_proto::layer::Layer;
use penstock_proto::overlay::{Parent, Route, Stripes};
use penstock_proto::remote::mirror::Fault;
use penstock_proto::seal::Verifier;
use penstock_proto::{Rank, TensorId};
use std::collections::BTreeSet;
use std::time::Duration;

/// Longest time from one look at the clock to the next, while something is awaited, that counts.
const UNLOOKED: Duration = Duration::from_millis(300);

/// A parent that the owner is to connect to, for [`RemoteShard::parent_came`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// The route's number, and that of the cut into stripes.
    pub epoch: u32,
    /// See there.
    pub striping: u32,
    /// Who.
    pub parent: Parent,
    /// What it is to feed.
    pub stripes: Stripes,
}

/// Why there is no connection to a parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreached {
    /// What happened.
    pub why: String,
    /// Whether that is its fault: nobody answers, or not as one of the job does. That it is busy, or this end lacks something, is not.
    pub is_its: bool,
}

/// A parent that was left, which feeds this worker no more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Who; `None`: nobody fed what was missing.
    pub parent: Option<Rank>,
    /// Why.
    pub what: String,
}

/// What comes of parents. They may know tensors that are not known here so far.
struct Elsewhere<'a, M>(&'a mut Mirrors<M>);

impl<M: Mirrored> Places for Elsewhere<'_, M> {
    type Place = Option<&'static dyn Codec>;

    fn place(&mut self, header: &Header) -> Result<Self::Place, String> {
        match header.body {
            Body::Notice(Notice::Value { tensor, .. })
                if self.0.tensors.get(tensor).is_none() && header.length <= MAX_CHUNK_BYTES =>
            {
                Ok(None)
            }
            Body::Notice(Notice::Lent { tensor, chunk, count }) if header.is_bare() => {
                let chunks = self.0.tensors.get(tensor).map_or(&[][..], M::chunks);
                let from = chunks.binary_search(&chunk).map_or(0, |at| chunks.len() - at);
                // Of one that is not known here nothing is looked at.
                if !chunks.is_empty() && !(1..=from).contains(&(count as usize)) {
                    return Err(format!(
                        "{count} chunks from {chunk} on of tensor {tensor}, which has not so many"
                    ));
                }
                Ok(None)
            }
            Body::Alive if header.is_bare() && header.job == self.0.job => Ok(None),
            Body::Notice(Notice::Value { .. } | Notice::Raised { .. } | Notice::Seal | Notice::Taken) => {
                self.0.place(header).map(Some)
            }
            _ => Err("something else than values of the home".to_owned()),
        }
    }

    fn memory<'b>(&'b mut self, _: &'b mut Self::Place) -> Option<&'b mut [u8]> {
        None
    }
}

impl<M: Mirrored, S: Submitter, L: Link> RemoteShard<M, S, L> {
    /// From now on what others pass on is believed that has the home's seal.
    pub fn trust(&mut self, verifier: Verifier) {
        self.verifier = Some(verifier);
    }

    /// Parents that the home has named and that are to be connected to, each once.
    pub fn take_wishes(&mut self) -> Vec<Wish> {
        std::mem::take(&mut self.wishes)
    }

    /// How values come, as the home has said last.
    pub fn way(&self) -> Option<&Route> {
        self.machine.way()
    }

    /// How many parents the home has named.
    pub fn parents_named(&self) -> usize {
        let feeds = self.machine.way().into_iter().flat_map(|route| &route.feeds);
        let parents: BTreeSet<Rank> = feeds.filter_map(|feed| Some(feed.parent.as_ref()?.rank)).collect();
        parents.len()
    }

    /// Parents that were left since this was asked last.
    pub fn take_left(&mut self) -> Vec<Left> {
        std::mem::take(&mut self.left)
    }

    /// The home says how values come from now on. Who feeds a stripe goes on until its next parent does.
    pub(super) fn reroute(&mut self, route: Route) {
        let named = route.parents();
        let striping = route.striping;
        let before = self.machine.way().map(|before| (before.striping, before.parents()));
        let (cut_before, named_before) = before.unwrap_or_default();
        let fed_before = named_before.or(self.machine.fed());
        self.carry_loans(&route, cut_before != striping);
        self.machine.route(route);
        self.greet();
        if cut_before == striping {
            self.leave(fed_before.without(named), Fault::Nobodys);
        } else {
            self.parents.clear();
        }
        self.wishes.clear();
        self.keep_parents();
        let Some(route) = self.machine.way().filter(|_| self.verifier.is_some()) else { return };
        for stripe in named.iter() {
            let Some(parent) = route.feeds.get(stripe).and_then(|feed| feed.parent.as_ref()) else {
                continue;
            };
            if self.parents.iter().any(|feeder| feeder.parent == *parent && feeder.stripes.has(stripe)) {
                continue;
            }
            match self.wishes.iter_mut().find(|wish| wish.parent == *parent) {
                Some(wish) => wish.stripes = wish.stripes.with(stripe),
                None => self.wishes.push(Wish {
                    epoch: route.epoch,
                    striping: route.striping,
                    parent: parent.clone(),
                    stripes: Stripes::default().with(stripe),
                }),
            }
        }
    }

    /// Of parents that the route names, those that feed here already go on. Of others, those that do until others do.
    fn keep_parents(&mut self) {
        let Some(route) = self.machine.way() else { return };
        let is_named = |feeder: &Feeder<L>, stripe: &usize| {
            route.feeds.get(*stripe).is_some_and(|feed| feed.parent.as_ref() == Some(&feeder.parent))
        };
        self.parents
            .retain(|feeder| feeder.greeted || feeder.stripes.iter().all(|stripe| is_named(feeder, &stripe)));
        let greeted = self.parents.iter().filter(|feeder| feeder.greeted);
        let stays = |feeder| Feeder::stripes(feeder).iter().filter(|stripe| is_named(feeder, stripe));
        let stay: Stripes = greeted.flat_map(stays).collect();
        if !stay.is_empty() {
            self.machine.attach(stay);
        }
    }

    /// A connection to a parent that was wished for, or why there is none.
    pub fn parent_came(&mut self, wish: &Wish, link: Result<L, Unreached>) {
        let Wish { parent, stripes, .. } = wish;
        let Some(route) = self.machine.way() else { return };
        let is_its = |stripe: &usize| {
            let feeds = |feeder: &Feeder<L>| feeder.parent == *parent && feeder.stripes.has(*stripe);
            route.feeds.get(*stripe).is_some_and(|feed| feed.parent.as_ref() == Some(parent))
                && !self.parents.iter().any(feeds)
        };
        let wanted: Stripes = stripes.iter().filter(is_its).collect();
        if wanted.is_empty() {
            return;
        }
        match link {
            Ok(link) => {
                self.parents.push(Feeder::new(parent.clone(), wanted, link, self.limits.read));
            }
            Err(Unreached { why, is_its }) => {
                let what = format!("it cannot be reached: {why}");
                self.left.push(Left { parent: Some(parent.rank), what });
                self.leave(wanted, if is_its { Fault::Its(parent.rank) } else { Fault::Nobodys });
            }
        }
    }

    /// Another worker comes to be fed these stripes.
    pub fn child_came(&mut self, rank: Rank, (striping, stripes): (u32, Stripes), link: L) {
        self.borrower_came(rank, (striping, stripes), None, link);
    }

    /// Those that feed these stripes feed them no more.
    fn forget(&mut self, stripes: Stripes) {
        self.parents.retain_mut(|feeder| feeder.forget(stripes));
    }

    /// Leaves the parents of these stripes, and says so.
    fn leave(&mut self, stripes: Stripes, fault: Fault) {
        self.forget(stripes);
        if !stripes.is_empty() {
            self.carried = None;
        }
        self.settle_loans();
        self.machine.stray(stripes, fault);
    }

    /// A parent feeds no more, by its fault or not.
    pub(super) fn lost(&mut self, at: usize, what: String, fault: impl FnOnce(Rank) -> Fault) {
        let Feeder { parent, stripes, .. } = self.parents.remove(at);
        self.carried.take_if(|(lender, _)| *lender == parent);
        self.settle_loans();
        let route = self.machine.way();
        let names = |stripe: &usize| {
            let feed = route.and_then(|route| route.feeds.get(*stripe));
            feed.is_some_and(|feed| feed.parent.as_ref() == Some(&parent))
        };
        let named: Stripes = stripes.iter().filter(names).collect();
        if !stripes.is_empty() {
            self.left.push(Left { parent: Some(parent.rank), what });
        }
        // For the others a newer parent is on its way.
        self.machine.lost(stripes.without(named));
        self.leave(named, fault(parent.rank));
    }

    /// Takes what parents have passed on.
    pub(super) fn hear_parents(&mut self, most: usize) -> (bool, Option<Over>) {
        let mut busy = false;
        let mut at = 0;
        while at < self.parents.len() {
            let mut taken = 0;
            let over = loop {
                let (Some(feeder), Some(verifier)) = (self.parents.get_mut(at), &mut self.verifier) else {
                    break None;
                };
                if taken >= most || self.children.is_full(feeder.stripes()) {
                    break None;
                }
                let hear = || feeder.hear(&mut Elsewhere(&mut self.mirrors), verifier);
                match Spent::on_if(self.spent.as_deref(), Layer::Receive, hear) {
                    Fed::Nothing => break None,
                    Fed::Part => taken += 1,
                    Fed::Greeting => {
                        // Its stripes are its own from now on. What it had passed on before, others may have under way.
                        let mut feeder = self.parents.remove(at);
                        self.parents.retain_mut(|other| other.hand_over(feeder.stripes));
                        feeder.greeted = true;
                        if self.is_carried_by(&feeder.parent, feeder.stripes) {
                            feeder.lends = true;
                        } else {
                            self.settle_loans();
                            self.leave_past_lender();
                        }
                        self.machine.hand_over(feeder.stripes);
                        at = self.parents.len();
                        let lends = feeder.lends;
                        self.parents.push(feeder);
                        if lends {
                            self.look_at_all();
                        }
                        busy = true;
                    }
                    Fed::Ended(why) => break Some((why, false)),
                    Fed::Over(why) => break Some((why, true)),
                    Fed::Frame(header, codec) => {
                        if let Some((tensor, chunk, count)) = self.borrowed_by(&header) {
                            match self.look_at(tensor, chunk, count) {
                                // One notice may say this of all chunks, again and again.
                                Ok((looked, is_news)) => {
                                    (taken, busy) = (taken + looked.max(1), busy | is_news)
                                }
                                Err(what) => break Some((what, true)),
                            }
                            continue;
                        }
                        (taken, busy) = (taken + 1, true);
                        if let Err(what) = self.take_passed(at, &header, codec) {
                            self.detach();
                            return (busy, Some(Over::Broke(what)));
                        }
                    }
                }
            };
            let Some((why, is_its)) = over else {
                at += 1;
                continue;
            };
            // One that has hung up may have had reason to. Whether it is there, the next attempt shows.
            self.lost(at, why, |parent| if is_its { Fault::Its(parent) } else { Fault::Nobodys });
            busy = true;
        }
        (busy, None)
    }

    /// Which chunks a parent's frame says are new where they are borrowed, if it is about such.
    fn borrowed_by(&self, header: &Header) -> Option<(TensorId, u32, u32)> {
        let Body::Notice(notice) = header.body else { return None };
        let new = match notice {
            Notice::Lent { tensor, chunk, count } | Notice::Raised { tensor, chunk, count, .. } => {
                (tensor, chunk, count)
            }
            Notice::Value { tensor, chunk, .. } => (tensor, chunk, 1),
            _ => return None,
        };
        let is_lent = matches!(notice, Notice::Lent { .. });
        (is_lent || self.machine.is_borrowed(new.0)).then_some(new)
    }

    /// Takes a frame of the home that a parent has passed on.
    fn take_passed(
        &mut self,
        at: usize,
        header: &Header,
        codec: Option<&'static dyn Codec>,
    ) -> Result<(), String> {
        let Self { machine, mirrors, submitter, children, parents, traffic, unpacked, spent, .. } = self;
        let (Body::Notice(notice), Some(codec), Some(feeder)) = (header.body, codec, parents.get(at)) else {
            return Ok(());
        };
        // A parent that feeds other stripes here still passes on what it was left for. The home knows better by now what is held of
        // that.
        if machine.stripe(&notice).is_none_or(|stripe| !feeder.brings(stripe)) {
            return Ok(());
        }
        let is_news = machine.is_news(&notice);
        let effect = machine.hear_passed(&notice, HEADER_BYTES as u64 + u64::from(header.length));
        let payload = feeder.payload();
        if is_news
            && let Some((stripe, tensor)) = machine.stripe_and_tensor(&notice)
            && children.any_of(stripe, tensor)
        {
            children.pass_on((stripe, tensor), Passed::new(mirrors.job, feeder.seal(), header, payload));
        }
        let spent = spent.as_deref();
        let payload = Spent::on_if(spent, Layer::Decode, || {
            decompressed(&effect, header, payload, &mirrors.tensors, (traffic, unpacked))
        })?;
        let value = Value { header, payload, codec };
        let Mirrors { tensors, shown, .. } = mirrors;
        carry_out(effect, &value, (machine, tensors, shown), (submitter, spent))?;
        show(&effect, (machine, mirrors), children);
        Ok(())
    }

    /// Leaves parents whose values are late, and lets children go that take nothing, as of a moment of the owner's clock.
    pub fn tick(&mut self, now: Duration) {
        // While nobody looked this process was suspended, or had no core, or there was nothing to look for.
        if now.saturating_sub(std::mem::replace(&mut self.ticked, now)) > UNLOOKED {
            self.children.begin_again();
            self.parents.iter_mut().for_each(Feeder::begin_again);
        }
        self.children.look(now);
        self.reassure(now);
        self.look_at_loans(now);
        self.go_on_leaving(Some(now));
        // What is not read of a parent is not its fault.
        self.machine.held_up(self.children.full());
        self.parents.retain_mut(|feeder| feeder.end(now));
        while let Some(at) = self.parents.iter_mut().position(|feeder| feeder.is_silent(now)) {
            self.lost(at, "it says nothing".to_owned(), Fault::Its);
        }
        let mut late = self.machine.late(now);
        while let Some(stripe) = late.iter().next() {
            let what = "what it passes on is late".to_owned();
            let stripes =
                match self.parents.iter().position(|feeder| feeder.greeted && feeder.stripes.has(stripe)) {
                    Some(at) => {
                        let stripes = self.parents[at].stripes;
                        self.lost(at, what, Fault::Perhaps);
                        stripes
                    }
                    None => {
                        let stripes = Stripes::default().with(stripe);
                        self.left.push(Left { parent: None, what });
                        self.leave(stripes, Fault::Nobodys);
                        stripes
                    }
                };
            late = late.without(stripes);
        }
    }

    /// Whether something is awaited that may be late: then there is to be a [tick](Self::tick) soon.
    pub fn awaits(&self) -> bool {
        let awaited = self.parents.iter().any(|feeder| !feeder.greeted || feeder.is_ending());
        awaited
            || self.leaving.is_some()
            || self.machine.is_behind()
            || self.children.has_due()
            || self.children.awaits_cut()
    }

    /// The links of parents and children, with what has to be waited for.
    pub fn links(&self) -> impl Iterator<Item = (&L, Interest)> {
        // A link that is not to be read is not asked for: where its other end has hung up, a wait would not wait.
        let read = self.parents.iter().filter(|feeder| !self.children.is_full(feeder.stripes()));
        let parents = read.map(|feeder| (feeder.link(), feeder.link().interest(false)));
        parents.chain(self.children.links())
    }

    /// Some of these may be ready.
    pub fn links_ready(&mut self) {
        self.parents.iter_mut().for_each(Feeder::ready);
        self.children.ready();
    }

    /// Counts those that feed it, and those that it feeds.
    pub(super) fn count_place(&mut self) {
        let feeds = |feeder: &&Feeder<L>| feeder.greeted && !feeder.stripes.is_empty();
        let place = (self.parents.iter().filter(feeds).count(), self.children.fed());
        self.traffic.moves(std::mem::replace(&mut self.place, place), place);
    }

    /// Who feeds it which stripes.
    pub fn feeders(&self) -> impl Iterator<Item = (Rank, Stripes)> {
        self.parents.iter().map(|feeder| (feeder.parent.rank, feeder.stripes))
    }
}
