//! What a shard owes to a subscriber on another host.
//!
//! Kept as chunk numbers, not as bytes: a chunk is sent from where it stands, as new as it is then. So a subscriber that does
//! not read costs a shard a few bytes a chunk and one batch of frames, however slow it is (S-4).

mod chunks;
mod owing;

pub use chunks::{Chunks, Event, Publication, Subscribers, tell};
pub use owing::Owing;

use super::awaited::Awaited;
use super::contents::{self, Contents};
use super::feeding::Feeding;
use super::returning::Holding;
use crate::factors::down::Told;
use crate::frame::EXPECTED_CHUNKS;
use crate::numbered::Numbered;
use crate::outbox::{Inbox, OutOfOrder};
use crate::overlay::{Direct, MAX_STRIPES, Stripes};
use crate::peer::PeerId;
use crate::shard::Shard;
use crate::submission::{LOST, NO_MORE, NO_TICKET, Submission, UNDECIDED};
use crate::{Rank, TensorId};
use std::collections::VecDeque;
use std::sync::Arc;

/// A worker names a tensor that it has not declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Undeclared {
    /// By something that stands in its lane, of which it has none.
    #[error("it submitted tensor {0} without having declared it")]
    Lane(TensorId),
    /// By a fetch. What it is sent was charged to it when it declared the tensor.
    #[error("a fetch of tensor {0}, which it has not declared")]
    Fetch(TensorId),
}

/// Whether a worker has declared what its submission names; it knows a tensor's number by that alone. Of other peers nothing is
/// asked.
pub fn check_declared(peer: PeerId, submission: &Submission, home: &impl Chunks) -> Result<(), Undeclared> {
    let Some(rank) = peer.rank() else { return Ok(()) };
    match *submission {
        Submission::Push { tensor, .. }
        | Submission::Factor { tensor, .. }
        | Submission::Skip { tensor, .. }
        | Submission::Load { tensor, .. }
        | Submission::Flush { tensor }
            if !home.has_lane(tensor, rank) =>
        {
            Err(Undeclared::Lane(tensor))
        }
        Submission::Fetch { tensor, .. } | Submission::FetchChunks { tensor, .. }
            if !home.has_lane(tensor, rank) =>
        {
            Err(Undeclared::Fetch(tensor))
        }
        _ => Ok(()),
    }
}

/// What is owed of one chunk.
#[derive(Debug, Clone, Copy, Default)]
struct OwedChunk {
    /// Versions that pushes and fetches asked for and that it did not have. No ticket waits for them.
    awaited: Awaited,
    /// Whether it stands in the queue.
    queued: bool,
    /// The publication that it was last told of on this connection.
    seen: u64,
    /// The one of which the value was sent last, or which it says that it holds. It holds this one, or a newer one that others fed it.
    sent: u64,
    /// The least version + 1 that was fetched of it by itself and waits for own contributions; 0: none.
    held: u64,
    /// Whether others have fed it, and it may hold something newer than what was sent last.
    unsure: bool,
}

impl OwedChunk {
    /// Whether what was sent of it on this connection is what is published now, but for its version.
    fn has(&self, publication: &Publication) -> bool {
        self.sent > 0 && publication.changed <= self.sent
    }

    /// It is told of this publication.
    fn tell(&mut self, publication: &Publication) {
        self.queued = false;
        self.seen = publication.sequence;
        self.awaited.came(publication.version);
    }
}

/// What is owed of one tensor.
#[derive(Debug, Default)]
struct Owed {
    chunks: Vec<OwedChunk>,
    /// Whether each publication is owed: the home broadcasts, and was asked on this connection.
    each: bool,
    /// Fetches that wait for own contributions.
    held: Option<Held>,
    /// Tickets that are next to be returned, and those behind them.
    batches: [Option<Batch>; 2],
    /// The chunk whose state is sent next, when one is; and the first of those of which it is told next what others bring.
    next_state: usize,
    next_expected: usize,
    /// Contributions that were folded, and whether that is due to be told.
    count: u64,
    folded: bool,
    /// Contributions that came, and how many of those that wait may be skips.
    contributed: u64,
    skips: u64,
    /// Stripes of which it is to be told what stands.
    standing: Stripes,
    /// Whether it has ever asked for each publication.
    asked: bool,
    /// Right factors that it was sent.
    factors: Told,
}

/// Fetches that are taken up together, when so many of the subscriber's contributions were folded.
#[derive(Debug)]
struct Held {
    folded: u64,
    /// The least version that was asked for of all chunks, if one was: those that have it are sent. Also those that others feed it,
    /// where it asks for the first time.
    version: Option<u64>,
    is_first: bool,
    /// Chunks that were asked for by themselves, each once.
    locals: Vec<usize>,
    ticket: u64,
}

/// Tickets that are returned as one. Tickets that come while a batch is under way join the next one: so, however often the
/// subscriber asks, each batch comes to an end.
#[derive(Debug, Clone, Copy)]
struct Batch {
    /// The newest of them.
    ticket: u64,
    /// Chunks of the optimizer's state that are sent before it.
    states: usize,
    /// Whether others bring some of what was asked for.
    is_fed: bool,
    /// Whether it stands in the queue, behind the values that were asked for with it.
    queued: bool,
}

/// What stands in the queue: each of these at most once.
#[derive(Debug, Clone, Copy)]
enum Due {
    Value { tensor: TensorId, local: usize },
    State { tensor: TensorId },
    Folded { tensor: TensorId },
    Fetched { tensor: TensorId },
    Standing { tensor: TensorId, stripe: u32 },
}

/// It said goodbye, and went on sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it went on after it had said goodbye")]
pub struct WentOn;

/// One subscriber, as a shard keeps it over all its connections.
#[derive(Debug, Default)]
pub struct Subscriber {
    connected: bool,
    inbox: Inbox,
    /// What it was last told of the inbox, on this connection.
    told: Option<u64>,
    owed: Numbered<Owed>,
    due: VecDeque<Due>,
    /// Contributions that came, and how many of them were folded.
    contributed: (u64, u64),
    /// Of all tensors, those that wait and may be skips.
    skips: u64,
    left: bool,
    /// Who else feeds it, and whom it has left.
    feeding: Feeding,
    blames: Option<Rank>,
    /// How many parents it has left under the last route of which it will say whose fault that was.
    undecided: u32,
}

impl Subscriber {
    /// A new connection: whatever the old one carried is forgotten, but not what was taken. The subscriber asks again for
    /// what it misses.
    pub fn connect(&mut self) {
        self.connected = true;
        self.undecided = 0;
        self.told = None;
        self.due.clear();
        self.feeding.connect();
        for (id, owed) in self.owed.iter_mut() {
            owed.chunks.fill(OwedChunk::default());
            owed.factors.connect();
            (owed.each, owed.held, owed.batches) = (false, None, [None; 2]);
            owed.next_expected = 0;
            (owed.folded, owed.standing) = (true, Stripes::default());
            self.due.push_back(Due::Folded { tensor: id });
        }
    }

    /// The connection is over; there may be another.
    pub fn disconnect(&mut self) {
        self.connected = false;
        self.due.clear();
    }

    /// It has said goodbye: nothing may follow.
    pub fn let_go(&mut self) {
        self.left = true;
    }

    // What comes

    /// Whether this frame is the next.
    pub fn expect(&self, sequence: u64) -> Result<(), OutOfOrder> {
        self.inbox.expect(sequence)
    }

    /// The frame that was expected is here, whole and verified.
    pub fn take(&mut self) -> Result<(), WentOn> {
        if self.left {
            return Err(WentOn);
        }
        self.inbox.take();
        Ok(())
    }

    /// Notes what `peer` asks for by a submission that was judged and taken: by a fetch, or by a push or a skip whose result is
    /// `wanted`.
    pub fn ask(
        &mut self,
        peer: PeerId,
        submission: &Submission,
        wanted: bool,
        (machine, overlay): (&Shard, &mut Direct),
        home: &impl Chunks,
    ) -> Result<(), Undeclared> {
        check_declared(peer, submission, home)?;
        match *submission {
            Submission::Fetch { tensor, state: true, ticket, .. } => self.fetch_state(tensor, ticket, home),
            Submission::Fetch { tensor, version, ticket, .. } => {
                overlay.subscribe(tensor, peer);
                self.fetch(tensor, version, ticket, machine.promised(peer, tensor), home);
            }
            Submission::FetchChunks { tensor, first, count, version, ticket } => {
                overlay.subscribe(tensor, peer);
                let locals = (first..first + count).filter_map(|chunk| home.local(tensor, chunk));
                self.fetch_chunks(tensor, locals, version, ticket, machine.promised(peer, tensor), home);
            }
            Submission::Push { tensor, first, count, stamp, .. }
            | Submission::Skip { tensor, first, count, stamp, .. }
                if wanted =>
            {
                for local in (first..first + count).filter_map(|chunk| home.local(tensor, chunk)) {
                    overlay.subscribe(tensor, peer);
                    self.want(tensor, local, stamp + 1, home);
                }
            }
            Submission::Attached { epoch, stripes } => self.attached(epoch, stripes, home),
            Submission::Strayed { epoch, stripes, parent } => self.strayed(epoch, stripes, parent, home),
            Submission::Holds { tensor, first, epoch, positions } => {
                self.holds(tensor, first, epoch, &positions, home);
            }
            _ => {}
        }
        let contribution = match *submission {
            Submission::Push { tensor, .. } | Submission::Load { tensor, .. } => Some((tensor, 1, 0)),
            Submission::Skip { tensor, first, count, .. } => {
                let skips =
                    (first..first + count).filter(|&chunk| home.local(tensor, chunk).is_some()).count();
                Some((tensor, skips as u64, skips as u64))
            }
            _ => None,
        };
        if let Some((tensor, count, skips)) = contribution {
            let owed = self.owed(tensor, home);
            owed.contributed += count;
            owed.skips += skips;
            self.contributed.0 += count;
            self.skips += skips;
        }
        Ok(())
    }

    /// Contributions that wait for other workers', those that brought bytes: of each tensor, what waits is counted as skips as far as
    /// it had any.
    pub fn lead(&self) -> u64 {
        self.contributed.0 - self.contributed.1 - self.skips
    }

    /// It wants this chunk's `version` as soon as it is published.
    pub fn want(&mut self, id: TensorId, local: usize, version: u64, home: &impl Chunks) {
        self.owed(id, home).chunks[local].awaited.want(version);
        self.settle(id, local, home);
    }

    /// It wants every chunk that has this version and has changed since it was sent, as it stands once `folded` of its
    /// contributions were folded ([`Shard::promised`](crate::shard::Shard::promised)), then the ticket; and the others as soon
    /// as they have the version. With [`NO_TICKET`] it is as if pushes had asked. From a home that broadcasts it wants whatever is
    /// published from now on, too.
    pub fn fetch(&mut self, id: TensorId, version: u64, ticket: u64, folded: u64, home: &impl Chunks) {
        let owed = self.owed(id, home);
        let is_first = !std::mem::replace(&mut owed.each, home.broadcasts(id));
        owed.asked |= owed.each;
        for local in 0..home.chunks(id) {
            let published = home.publication(id, local);
            if published.version < version || published.sequence == 0 {
                self.known(id).chunks[local].awaited.want(version);
            }
        }
        if ticket != NO_TICKET
            && let Some(held) = self.hold(id, ticket, folded)
        {
            held.version = Some(held.version.map_or(version, |before| before.min(version)));
            held.is_first |= is_first;
            return;
        }
        let is_fed = self.renew(id, version, is_first, home);
        self.join(id, ticket, 0, is_fed);
    }

    /// The same of some of the chunks. Also with [`NO_TICKET`] it is as they stand once the contributions were folded: so several
    /// bring back one ticket, the last one's.
    pub fn fetch_chunks(
        &mut self,
        id: TensorId,
        locals: impl Iterator<Item = usize>,
        version: u64,
        ticket: u64,
        folded: u64,
        home: &impl Chunks,
    ) {
        self.owed(id, home);
        let holds = self.hold(id, ticket, folded).is_some();
        for local in locals {
            let published = home.publication(id, local);
            let chunk = &mut self.known(id).chunks[local];
            if published.version < version || published.sequence == 0 {
                chunk.awaited.want(version);
            }
            if !holds {
                self.renew_one(id, local, version, home);
                continue;
            }
            let before = chunk.held;
            chunk.held = if before == 0 { version + 1 } else { before.min(version + 1) };
            if before == 0
                && let Some(held) = &mut self.known(id).held
            {
                held.locals.push(local);
            }
        }
        if !holds {
            self.join(id, ticket, 0, false);
        }
    }

    /// What a fetch is kept with that comes before the contributions that it is to see were folded; `None`: they were.
    fn hold(&mut self, id: TensorId, ticket: u64, folded: u64) -> Option<&mut Held> {
        let owed = self.known(id);
        if owed.count >= folded {
            return None;
        }
        let none = Held { folded, version: None, is_first: false, locals: Vec::new(), ticket: NO_TICKET };
        let held = owed.held.get_or_insert(none);
        (held.folded, held.ticket) = (folded.max(held.folded), ticket.max(held.ticket));
        Some(held)
    }

    /// It wants the optimizer's state, as it is now, then the ticket.
    pub fn fetch_state(&mut self, id: TensorId, ticket: u64, home: &impl Chunks) {
        self.owed(id, home);
        self.join(id, ticket, home.chunks(id), false);
    }

    // Who else feeds it

    /// It is told how values come to it from now on: a [`Route`](crate::overlay::Route) of this number, which names parents for
    /// these stripes. To one that has no connection it is told on the next.
    pub fn route(&mut self, epoch: u32, parents: Stripes, route: Arc<[u8]>, home: &impl Chunks) {
        if self.connected {
            self.undecided = 0;
            let new = self.feeding.route(epoch, parents, route);
            self.doubt(new, home);
        }
    }

    /// Values are cut into other stripes from now on: what it holds is not known any more, until it says so.
    pub fn recut(&mut self, home: &impl Chunks) {
        self.feeding.recut();
        for (_, owed) in self.owed.iter_mut() {
            owed.standing = Stripes::default();
        }
        self.due.retain(|due| !matches!(due, Due::Standing { .. }));
        self.doubt(Stripes::first(MAX_STRIPES), home);
    }

    /// Whether others feed it this stripe of values that are broadcast.
    pub fn is_fed(&self, stripe: usize) -> bool {
        self.feeding.is_fed(stripe)
    }

    /// What it holds of these stripes is not known any more.
    fn doubt(&mut self, stripes: Stripes, home: &impl Chunks) {
        if stripes.is_empty() {
            return;
        }
        let is_fed = |id: TensorId| home.broadcasts(id) && !home.sends_updates(id);
        for (id, owed) in self.owed.iter_mut().filter(|(id, _)| is_fed(*id)) {
            for (local, chunk) in owed.chunks.iter_mut().enumerate() {
                if stripes.has(home.stripe(id, local)) {
                    (chunk.unsure, chunk.seen) = (true, 0);
                }
            }
        }
    }

    /// Which parent it has left since this was asked last, for its fault; [`NOBODY`](crate::submission::NOBODY): for
    /// nobody's.
    pub fn take_blame(&mut self) -> Option<Rank> {
        self.blames.take()
    }

    fn attached(&mut self, epoch: u32, stripes: Stripes, home: &impl Chunks) {
        let new = self.feeding.attached(epoch, stripes);
        // A frame that says nothing new costs no look at all tensors.
        if new.is_empty() {
            return;
        }
        let each: Vec<TensorId> = self.owed.iter().filter(|(_, owed)| owed.each).map(|(id, _)| id).collect();
        for id in each.into_iter().filter(|&id| home.goes_by_trees(id)) {
            new.iter().for_each(|stripe| self.stands(id, stripe));
        }
    }

    /// Whether it has ever asked for what is broadcast of a tensor. On each connection it asks again.
    pub fn asks_for_each(&self, id: TensorId) -> bool {
        self.owed.get(id).is_some_and(|owed| owed.asked)
    }

    /// A tensor's values [go by others too](Chunks::goes_by_trees) from now on, or no more: then what others were to feed it is owed.
    pub fn turned(&mut self, id: TensorId, home: &impl Chunks) {
        if !self.connected || !self.owed.get(id).is_some_and(|owed| owed.each) {
            return;
        }
        if home.goes_by_trees(id) {
            let fed = (0..home.chunks(id)).map(|local| home.stripe(id, local)).collect::<Stripes>();
            let fed = fed.iter().filter(|&stripe| self.feeding.is_fed(stripe)).collect::<Stripes>();
            fed.iter().for_each(|stripe| self.stands(id, stripe));
            return;
        }
        for local in 0..home.chunks(id) {
            if self.feeding.is_fed(home.stripe(id, local)) {
                self.known(id).chunks[local].seen = 0;
                self.settle(id, local, home);
            }
        }
    }

    /// It says what it holds behind this, or whose fault it was that it has left a parent before.
    fn strayed(&mut self, epoch: u32, stripes: Stripes, parent: Rank, home: &impl Chunks) {
        let left = self.feeding.strayed(epoch, stripes);
        // Of an earlier route it knows nothing better by now; and what it says again, it has said.
        if self.feeding.is_last(epoch) {
            match (stripes.is_empty(), left.is_empty()) {
                (false, false) if parent == UNDECIDED => self.undecided += 1,
                (false, false) => self.blames = Some(parent),
                (true, _) if self.undecided > 0 && parent != UNDECIDED => {
                    self.undecided -= 1;
                    self.blames = Some(parent);
                }
                _ => {}
            }
        }
        self.doubt(left, home);
    }

    /// It holds these publications of chunks from `first` on, or newer ones that were sent since; under a route of another cut into
    /// stripes, or that others have fed it since.
    fn holds(&mut self, id: TensorId, first: u32, epoch: u32, positions: &[u64], home: &impl Chunks) {
        // Of what comes as updates nothing comes from others, and what it holds is what it was sent.
        if home.sends_updates(id) {
            return;
        }
        let Some(start) = home.local(id, first).filter(|_| self.owed.get(id).is_some()) else { return };
        for (local, &position) in (start..home.chunks(id)).zip(positions) {
            if position == NO_MORE {
                break;
            }
            let is_fed = !self.feeding.is_of_these(epoch) || self.feeding.is_unsure(home.stripe(id, local));
            let chunk = &mut self.known(id).chunks[local];
            let published = home.publication(id, local);
            // More than was ever published is a lie, its own or that of whoever it had it of: it holds nothing that is known here.
            if position == LOST || position > published.sequence {
                (chunk.sent, chunk.seen, chunk.unsure) = (0, 0, is_fed);
                self.settle(id, local, home);
                continue;
            }
            chunk.sent = chunk.sent.max(position);
            // It is told whether that is what stands here.
            (chunk.unsure, chunk.seen) = (chunk.unsure && is_fed, 0);
            self.settle(id, local, home);
        }
    }

    /// It is to be told what stands of a stripe.
    fn stands(&mut self, id: TensorId, stripe: usize) {
        let owed = self.known(id);
        if !owed.standing.has(stripe) {
            owed.standing = owed.standing.with(stripe);
            self.due.push_back(Due::Standing { tensor: id, stripe: stripe as u32 });
        }
    }

    // What happens at home

    /// A chunk was published.
    pub fn published(&mut self, id: TensorId, local: usize, home: &impl Chunks) {
        if !self.connected {
            return;
        }
        let Some(owed) = self.owed.get(id) else { return };
        let stripe = home.stripe(id, local);
        if owed.each && self.feeding.is_fed(stripe) && home.goes_by_trees(id) {
            self.stands(id, stripe);
        } else {
            self.settle(id, local, home);
        }
    }

    /// So many of its contributions to the tensor were folded.
    pub fn folded(&mut self, id: TensorId, count: u64, home: &impl Chunks) {
        let owed = self.owed(id, home);
        let new = !std::mem::replace(&mut owed.folded, true);
        let before = std::mem::replace(&mut owed.count, count);
        let skips = owed.skips.min(owed.contributed.saturating_sub(count));
        let over = std::mem::replace(&mut owed.skips, skips) - skips;
        self.skips -= over;
        self.contributed.1 += count - before;
        if new {
            self.due.push_back(Due::Folded { tensor: id });
        }
        let held = self.known(id).held.take_if(|held| held.folded <= count);
        if let Some(Held { version, is_first, locals, ticket, .. }) = held {
            let is_fed = version.is_some_and(|version| self.renew(id, version, is_first, home));
            for local in locals {
                let version = std::mem::take(&mut self.known(id).chunks[local].held) - 1;
                self.renew_one(id, local, version, home);
            }
            self.join(id, ticket, 0, is_fed);
        }
    }

    // What goes

    /// Whether there may be something to send.
    pub fn has_due(&self) -> bool {
        !self.due.is_empty() || self.must_tell() || self.feeding.has_route()
    }

    /// Whether it does not know how many of its frames were taken.
    pub fn must_tell(&self) -> bool {
        self.told != Some(self.inbox.count())
    }

    /// It is told again, though nothing has changed: a sign of life.
    pub fn tell_again(&mut self) {
        self.told = None;
    }

    /// How many of its frames were taken, which is said with everything that is sent.
    pub fn tell(&mut self) -> u64 {
        self.told = Some(self.inbox.count());
        self.inbox.count()
    }

    /// What is to be sent next: this call counts it as sent.
    pub fn next(&mut self, home: &impl Chunks) -> Option<Owing> {
        if let Some(route) = self.feeding.take_route() {
            return Some(Owing::Route(route));
        }
        while let Some(due) = self.due.pop_front() {
            match due {
                Due::Value { tensor, local } => {
                    let publication = home.publication(tensor, local);
                    let is_fed = home.broadcasts(tensor)
                        && !home.sends_updates(tensor)
                        && self.feeding.is_unsure(home.stripe(tensor, local));
                    let chunk = &mut self.known(tensor).chunks[local];
                    if chunk.has(&publication) {
                        // What others feed may have other versions: each is told by itself.
                        let alone = chunk.unsure || is_fed;
                        let count = self.raise(tensor, local, &publication, alone, home);
                        let Publication { version, steps, .. } = publication;
                        let held =
                            (local..local + count).map(|local| home.publication(tensor, local).changed);
                        let contents = if self.feeding.was_routed() {
                            contents::contents(held)
                        } else {
                            Contents::default()
                        };
                        return Some(Owing::Raised { tensor, local, count, version, steps, contents });
                    }
                    if home.sends_updates(tensor) {
                        // U-1: it holds what was sent last, and nothing else feeds it.
                        let held = chunk.sent;
                        let base = home.update_base(tensor, local).filter(|&base| held > 0 && base <= held);
                        if base.is_some()
                            && let Some(factor) = self.next_factor(tensor, local, home)
                        {
                            self.due.push_front(due);
                            return Some(factor);
                        }
                        let chunk = &mut self.known(tensor).chunks[local];
                        chunk.tell(&publication);
                        chunk.sent = publication.sequence;
                        return Some(match base {
                            Some(base) => Owing::Update { tensor, local, publication, base },
                            None => Owing::Whole { tensor, local, publication },
                        });
                    }
                    chunk.tell(&publication);
                    // Whatever it holds, it holds this or something newer then.
                    let unsure = std::mem::replace(&mut chunk.unsure, is_fed) || is_fed;
                    let position = std::mem::replace(&mut chunk.sent, publication.sequence);
                    let position = if unsure { 0 } else { position };
                    return Some(Owing::Value { tensor, local, publication, position });
                }
                Due::State { tensor } => {
                    if let Some(local) = self.next_of_state(tensor) {
                        return Some(Owing::State { tensor, local });
                    }
                }
                Due::Folded { tensor } => {
                    let owed = self.known(tensor);
                    owed.folded = false;
                    return Some(Owing::Folded { tensor, count: owed.count });
                }
                Due::Standing { tensor, stripe } => {
                    let owed = self.known(tensor);
                    owed.standing = owed.standing.without(Stripes::default().with(stripe as usize));
                    let digest = home.digest(tensor, stripe as usize);
                    return Some(Owing::Standing { tensor, stripe, digest });
                }
                Due::Fetched { tensor } => {
                    if let Some((local, held)) = self.next_expected(tensor, home) {
                        self.due.push_front(due);
                        return Some(Owing::Expected { tensor, local, held });
                    }
                    if let Some(ticket) = self.end_batch(tensor) {
                        return Some(Owing::Fetched { tensor, ticket });
                    }
                }
            }
        }
        None
    }

    /// The next piece of a right factor that a chunk's update names and that it was not sent so far (U-2).
    fn next_factor(&mut self, id: TensorId, local: usize, home: &impl Chunks) -> Option<Owing> {
        let told = &mut self.known(id).factors;
        let mut needed = (0..).map_while(|place| home.needed(id, local, place));
        needed.find_map(|one| {
            let at = told.next(one)?;
            Some(Owing::Factor { tensor: id, name: one.name, rank: one.rank, at })
        })
    }

    /// Tells of a publication that is the chunk's value as it was sent, and of those that stand in the queue behind it and are the
    /// same to the chunks that follow; how many they are. So what rests costs a frame a clock, whatever its size.
    fn raise(
        &mut self,
        id: TensorId,
        first: usize,
        publication: &Publication,
        alone: bool,
        home: &impl Chunks,
    ) -> usize {
        self.known(id).chunks[first].tell(publication);
        let mut next = first + 1;
        while let Some(&Due::Value { tensor, local }) = self.due.front()
            && !alone
            && (tensor, local) == (id, next)
        {
            let following = home.publication(id, next);
            let same = (following.version, following.steps) == (publication.version, publication.steps)
                && home.stripe(id, next) == home.stripe(id, first);
            let chunk = &mut self.known(id).chunks[next];
            if !same || chunk.unsure || !chunk.has(&following) {
                break;
            }
            chunk.tell(&following);
            self.due.pop_front();
            next += 1;
        }
        next - first
    }

    fn owed(&mut self, id: TensorId, home: &impl Chunks) -> &mut Owed {
        if self.owed.get(id).is_none() {
            let chunks = vec![OwedChunk::default(); home.chunks(id)];
            self.owed.insert(id, Owed { chunks, ..Owed::default() });
        }
        self.known(id)
    }

    /// The same for a tensor of which something was owed before.
    fn known(&mut self, id: TensorId) -> &mut Owed {
        self.owed.get_mut(id).expect("what is due was owed")
    }

    /// Queues a chunk of which a version stands there that is awaited, or a publication that is owed as each is.
    fn settle(&mut self, id: TensorId, local: usize, home: &impl Chunks) {
        let published = home.publication(id, local);
        let owed = self.known(id);
        let chunk = &owed.chunks[local];
        let is_owed =
            owed.each && published.sequence != chunk.seen || chunk.awaited.is_met(published.version);
        if published.sequence > 0 && is_owed {
            self.queue(id, local);
        }
    }

    /// Queues each chunk that has the version and has changed since it was sent. Not those that others feed it, unless it asks for the
    /// first time: of these nobody has brought it what was published before. Whether there are any.
    fn renew(&mut self, id: TensorId, version: u64, is_first: bool, home: &impl Chunks) -> bool {
        let by_others = !is_first && self.known(id).each && home.goes_by_trees(id);
        let mut is_fed = false;
        for local in 0..home.chunks(id) {
            // What was never sent on this connection nobody may have brought.
            if by_others
                && self.feeding.is_fed(home.stripe(id, local))
                && self.known(id).chunks[local].sent > 0
            {
                is_fed = true;
            } else {
                self.renew_one(id, local, version, home);
            }
        }
        is_fed
    }

    /// What it is to hold of some chunks before the ticket that is next to be returned, if others bring some of what was fetched with it
    /// and it has not been told of all. Also of those that it is sent: what is fed by whom may have changed since.
    fn next_expected(
        &mut self,
        id: TensorId,
        home: &impl Chunks,
    ) -> Option<(usize, [Holding; EXPECTED_CHUNKS])> {
        let owed = self.known(id);
        let first = owed.next_expected;
        if !owed.batches[0].is_some_and(|batch| batch.is_fed) || first >= owed.chunks.len() {
            owed.next_expected = 0;
            return None;
        }
        let mut expected = [Holding::NONE; EXPECTED_CHUNKS];
        for (expected, local) in expected.iter_mut().zip(first..owed.chunks.len()) {
            let Publication { version, sequence, changed, .. } = home.publication(id, local);
            *expected = match sequence {
                0 => Holding::UNPUBLISHED,
                _ => Holding { content: changed.min(sequence), version },
            };
        }
        owed.next_expected = first + EXPECTED_CHUNKS;
        Some((first, expected))
    }

    fn renew_one(&mut self, id: TensorId, local: usize, version: u64, home: &impl Chunks) {
        let published = home.publication(id, local);
        if published.version >= version && published.sequence != self.known(id).chunks[local].seen {
            self.queue(id, local);
        }
    }

    fn queue(&mut self, id: TensorId, local: usize) {
        if !std::mem::replace(&mut self.known(id).chunks[local].queued, true) {
            self.due.push_back(Due::Value { tensor: id, local });
        }
    }

    /// The ticket is returned with the first batch that does not stand in the queue by now, behind so many chunks of the state, and
    /// `is_fed`, behind what others bring by now.
    fn join(&mut self, id: TensorId, ticket: u64, states: usize, is_fed: bool) {
        if (ticket, states) == (NO_TICKET, 0) {
            return;
        }
        let [first, second] = &mut self.known(id).batches;
        let begins = first.is_none();
        // A newly requested state is not the one that is under way.
        let fits = |batch: &Batch| !batch.queued && states == 0 && second.is_none();
        let batch = if first.as_ref().is_none_or(fits) { first } else { second };
        let before = batch.unwrap_or(Batch { ticket, states, is_fed, queued: false });
        *batch = Some(Batch {
            ticket: ticket.max(before.ticket),
            states: states.max(before.states),
            is_fed: is_fed || before.is_fed,
            queued: false,
        });
        match begins {
            true => self.begin_batch(id),
            false => self.close(id),
        }
    }

    fn begin_batch(&mut self, id: TensorId) {
        if self.known(id).batches[0].is_some_and(|batch| batch.states > 0) {
            self.due.push_back(Due::State { tensor: id });
        }
        self.close(id);
    }

    /// Queues the ticket behind what is due by now, unless some of the state is to be sent before it, or a fetch waits: that
    /// may have been asked for first (S-3).
    fn close(&mut self, id: TensorId) {
        let owed = self.known(id);
        if owed.held.is_none()
            && let Some(batch) = owed.batches[0].as_mut().filter(|batch| batch.states == 0 && !batch.queued)
        {
            batch.queued = true;
            self.due.push_back(Due::Fetched { tensor: id });
        }
    }

    /// The ticket to be returned, if the batch has one; the next batch begins.
    fn end_batch(&mut self, id: TensorId) -> Option<u64> {
        let [under_way, next] = &mut self.known(id).batches;
        let ended = std::mem::replace(under_way, next.take());
        self.begin_batch(id);
        ended.map(|batch| batch.ticket).filter(|&ticket| ticket != NO_TICKET)
    }

    /// The chunk whose state is sent now. The rest goes to the end of the queue, behind what others wait for.
    fn next_of_state(&mut self, id: TensorId) -> Option<usize> {
        let owed = self.known(id);
        let batch = owed.batches[0].as_mut()?;
        batch.states = batch.states.checked_sub(1)?;
        let local = owed.next_state;
        owed.next_state = (local + 1) % owed.chunks.len();
        match batch.states {
            0 => self.close(id),
            _ => self.due.push_back(Due::State { tensor: id }),
        }
        Some(local)
    }
}
